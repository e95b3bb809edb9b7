/* Tests of common/text/chat against hostile templates and conversations: every budget is kept, and
 * no source, however broken, does more than fail. LONG=1 tries twenty times as many. */
#include <time.h>

#include "common/base/rng.h"
#include "tests/text/chat_rig.h"

/* -- budgets -- */

/* Within a second of computing (of CPU time, since the machine may be busy with other tests). */
static void expect_limit(const char *source, size_t n, const char *context)
{
    clock_t start = clock();
    expect_failure(source, n, context, STATUS_LIMIT, "line");
    double s = (double)(clock() - start) / CLOCKS_PER_SEC;
    ck_assert_msg(s < (is_set("SANITIZE") ? 20 : 1), "%.60s took %.3f s", source, s);
}

START_TEST(budget_of_evaluation)
{
    static const char *const sources[] = {
        "{% for i in range(10**9) %}{% endfor %}",
        "{% for i in range(1000000000) %}x{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{% macro f(n) %}{% if true %}{% for i in [1] %}{{ f(n) }}{% endfor %}{% endif %}"
        "{% endmacro %}{{ f(0) }}",
        "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{{ 'x' * 10**12 }}",
        "{{ [1] * 10**12 }}",
        "{{ 'x' * 9223372036854775807 }}",
        "{{ 'abc' * 9223372036854775807 }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ '%.999999999f' % 1.5 }}",
        "{{ 'x'.center(10**12) }}",
        "{{ 'x' | indent(10**12, true) }}",
        "{% set ns = namespace(s='xy') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}"
        "{% endfor %}",
        "{% set ns = namespace(s='xy') %}{% for i in range(99999) %}"
        "{% set ns.s = ns.s.replace('x', 'xxx') %}{% endfor %}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}"
        "{% endfor %}",
        /* small values that are huge, or deep, to walk */
        "{% set ns = namespace(l=[1], m=[1]) %}{% for i in range(64) %}{% set ns.l = [ns.l, ns.l] "
        "%}"
        "{% set ns.m = [ns.m, ns.m] %}{% endfor %}{{ ns.l == ns.m }}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(64) %}{% set ns.l = [ns.l, ns.l] %}"
        "{% endfor %}{{ ns.l | tojson }}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(99999) %}{% set ns.l = [ns.l] %}"
        "{% endfor %}{{ ns.l }}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(99999) %}{% set ns.l = [ns.l] %}"
        "{% endfor %}{{ ns.l | tojson }}",
        "{% set ns = namespace(l=[1], m=[1]) %}{% for i in range(99999) %}{% set ns.l = [ns.l] %}"
        "{% set ns.m = [ns.m] %}{% endfor %}{{ ns.l == ns.m }}",
        "{% set s = 'a' * 1000000 %}{% for i in range(99999) %}{% set x = s == s + 'b' %}"
        "{% endfor %}",
        "{% set s = 'a' * 1000000 %}{% for i in range(99999) %}{% set x = 'b' in s %}{% endfor %}",
        "{% set s = 'a' * 1000000 %}{% for i in range(99999) %}{% set x = s.rfind('b') %}"
        "{% endfor %}",
        "{{ ('a' * 1000000).strip('b' * 1000000 + 'a') }}",
        "{% set s = '\xc3\xa9' * 100000 %}{{ s[::2] }}",
    };
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++)
        expect_limit(sources[i], strlen(sources[i]), "{}");
}
END_TEST

/* head, then n times part, then tail. */
static void expect_repeated_limit(const char *head, const char *part, const char *tail)
{
    struct buf b;
    buf_init(&b, 0);
    buf_puts(&b, head);
    for (int i = 0; i < 100000; i++)
        buf_puts(&b, part);
    buf_puts(&b, tail);
    expect_limit(buf_str(&b), b.len, "{}");
    buf_fini(&b);
}

START_TEST(budget_of_nesting)
{
    expect_repeated_limit("{{ ", "(", "");
    expect_repeated_limit("{{ ", "[", "");
    expect_repeated_limit("{{ ", "{1:", "");
    expect_repeated_limit("{{ ", "a(", "");
    expect_repeated_limit("{{ ", "a[", "");
    expect_repeated_limit("{{ ", "-", "1 }}");
    expect_repeated_limit("{{ ", "not ", "1 }}");
    expect_repeated_limit("{{ ", "1 if 1 else ", "1 }}");
    expect_repeated_limit("{{ 1", " + 1", " }}");
    expect_repeated_limit("{{ 1", " and 1", " }}");
    expect_repeated_limit("{{ 1", " ** 1", " }}");
    expect_repeated_limit("{{ 1", " if 1", " }}");
    expect_repeated_limit("{{ a", ".a", " }}");
    expect_repeated_limit("{{ a", "[0]", " }}");
    expect_repeated_limit("{{ a", "()", " }}");
    expect_repeated_limit("{{ a", "|e", " }}");
    expect_repeated_limit("", "{% if 1 %}", "");
    expect_repeated_limit("", "{% for a in b %}", "");
    expect_repeated_limit("", "{% macro a() %}", "");
    expect_repeated_limit("", "{% set a %}", "");
    expect_repeated_limit("", "{% call a() %}", "");
    expect_repeated_limit("", "{% filter e %}", "");
    expect_repeated_limit("", "{% with %}", "");
    expect_repeated_limit("", "{% generation %}", "");
}
END_TEST

START_TEST(budget_of_context_depth)
{
    struct buf b;
    json_error_t e;
    buf_init(&b, 0);
    buf_puts(&b, "{\"a\": ");
    for (int i = 0; i < 2000; i++)
        buf_putc(&b, '[');
    for (int i = 0; i < 2000; i++)
        buf_putc(&b, ']');
    buf_putc(&b, '}');
    json_t *c = json_loadb(buf_str(&b), b.len, 0, &e);
    ck_assert_ptr_nonnull(c);
    struct result r = run("{{ a }}", 7, c);
    ck_assert_int_eq(r.rc, STATUS_LIMIT);
    json_decref(c);
    buf_fini(&b);
}
END_TEST

/* Long, but harmless: a chain of elif, a long list, many statements. */
START_TEST(budget_leaves_room)
{
    struct buf b;
    buf_init(&b, 0);
    buf_puts(&b, "{% if x == -1 %}");
    for (int i = 0; i < 2000; i++)
        buf_printf(&b, "{%% elif x == %d %%}%d", i, i);
    buf_puts(&b, "{% endif %}{{ [");
    for (int i = 0; i < 2000; i++)
        buf_puts(&b, "1, ");
    buf_puts(&b, "] | length }}{{ ''");
    for (int i = 0; i < 2000; i++)
        buf_puts(&b, " ~ 'a'");
    buf_puts(&b, " | length }}{{ x");
    for (int i = 0; i < 100; i++)
        buf_puts(&b, " + 1");
    buf_puts(&b, " }}");
    json_t *c = parse("{\"x\": 1999}");
    struct result r = run(buf_str(&b), b.len, c);
    ck_assert_msg(r.rc == STATUS_OK, "%s", r.err);
    ck_assert(strstr(buf_str(&r.out.text), "19992000") == buf_str(&r.out.text));
    result_fini(&r);
    json_decref(c);
    buf_fini(&b);
}
END_TEST

/* -- hostile sources -- */

static const char *const seeds[] = {
    "{%- for m in messages %}{{ '<|' + m['role'] + '|>' ~ (m.content | trim)[1:-1:2] }}"
    "{% if loop.last and not loop.first %}{{ loop.index0 * 2 - 1 }}{% elif m is mapping %}"
    "{{ m.items() | list | tojson(indent=2) }}{% else %}{% break %}{% endif %}{%- endfor -%}",
    "{% macro f(a, b=[1, {'k': (2,)}], *c) %}{{ a }}{% endmacro %}",
    "{% macro f(a, b={'k': 1.5e3}) %}{{ caller(a) }}{{ varargs }}{{ kwargs }}{% endmacro %}"
    "{% call(x) f(1, 2, z=3) %}{{ x }}{% endcall %}{% set ns = namespace(n=0) %}"
    "{% set ns.n = ns.n + 1 %}{% filter upper | indent(2) %}a\n\n{{ tools | length }}{% endfilter "
    "%}",
    "{# c -#}  {% raw %}{{ }}{% endraw %}{% set a, (b, c) = 1, 'xy' %}{% with q = a if b else c %}"
    "{{ '%5.2f|%-3s' % (q, 'x') }}{{ '{0!r:>{w}}'.format(b, w=9) }}{% endwith %}"
    "{{ messages | selectattr('role', 'in', ['user']) | map(attribute='content') | join(', ') }}",
};

static uint32_t draw(uint64_t seed, uint32_t *counter, uint32_t below)
{
    return rng_philox(seed, (*counter)++, 0).v[0] % below;
}

/* Changes p[0..*n) in one of several ways; there is room for 4096 more bytes. */
static void mutate(char *p, size_t *n, uint64_t seed, uint32_t *counter)
{
    static const char *const words[] = {"{%",
                                        "%}",
                                        "{{",
                                        "}}",
                                        "{#",
                                        "#}",
                                        "-",
                                        "(",
                                        ")",
                                        "[",
                                        "]",
                                        "{",
                                        "}",
                                        "|",
                                        ".",
                                        ",",
                                        ":",
                                        "'",
                                        "\"",
                                        "\\",
                                        " if ",
                                        " else ",
                                        " for ",
                                        " in ",
                                        " is ",
                                        " not ",
                                        " and ",
                                        "~",
                                        "**",
                                        "//",
                                        "%",
                                        "=",
                                        "==",
                                        "0",
                                        "-1",
                                        "9223372036854775807",
                                        "1e999",
                                        "none",
                                        "loop",
                                        "range(9)",
                                        "messages",
                                        "[::-1]",
                                        "|tojson",
                                        "|list",
                                        "|sort",
                                        "|join",
                                        "|groupby('role')",
                                        "|batch(0)",
                                        "|slice(-1)",
                                        "|round(-400)",
                                        ".format()",
                                        "{% endif %}",
                                        "{% endfor %}",
                                        "{% for x in",
                                        "\xc3\xa9",
                                        "\n",
                                        "{%- raw -%}",
                                        "*",
                                        "|string|float|int",
                                        ".split()",
                                        "{:>99}",
                                        "%s%d%%",
                                        "|center(0)",
                                        "|truncate(3)",
                                        "|indent",
                                        "recursive",
                                        "{{ loop(messages) }}",
                                        "|unique"};
    for (uint32_t k = 1 + draw(seed, counter, 4); k > 0; k--) {
        size_t at = draw(seed, counter, (uint32_t)*n + 1), len = draw(seed, counter, 40);
        if (len > *n - at)
            len = *n - at;
        switch (draw(seed, counter, 4)) {
        case 0: /* cut a stretch */
            memmove(p + at, p + at + len, *n - at - len);
            *n -= len;
            break;
        case 1: /* double a stretch */
            memmove(p + at + len, p + at, *n - at);
            *n += len;
            break;
        case 2: /* change a byte */
            if (at < *n)
                p[at] = (char)draw(seed, counter, 128);
            break;
        default: { /* insert a word */
            const char *w = words[draw(seed, counter, sizeof words / sizeof *words)];
            memmove(p + at + strlen(w), p + at, *n - at);
            memcpy(p + at, w, strlen(w));
            *n += strlen(w);
        }
        }
    }
}

static void render_mutants(const char *source, size_t n, const json_t *contexts, uint64_t seed,
                           int count, size_t *compiled)
{
    uint32_t counter = 0;
    char *p = malloc(n + 4096);
    ck_assert_ptr_nonnull(p);
    for (int i = 0; i < count; i++) {
        size_t len = n;
        memcpy(p, source, n);
        mutate(p, &len, seed + (uint64_t)i, &counter);
        char *exact = malloc(len ? len : 1); /* so that reading beyond it is noticed */
        memcpy(exact, p, len);
        struct chat_template *t = NULL;
        char err[128];
        if (chat_template_create(exact, len, &t, err, sizeof err) == STATUS_OK) {
            const char *key;
            json_t *c;
            int k = 0;
            ++*compiled;
            json_object_foreach((json_t *)(uintptr_t)contexts, key, c)
            {
                struct chat_output out;
                if (k++ % 4 != i % 4)
                    continue;
                if (chat_render(t, c, NOW, &out, err, sizeof err) == STATUS_OK)
                    chat_output_fini(&out);
            }
        }
        chat_template_destroy(t);
        free(exact);
    }
    free(p);
}

START_TEST(hostile_sources_do_not_crash)
{
    size_t n, length, compiled = 0;
    int times = is_set("LONG") ? 20 : 1;
    json_t *contexts = load("templates/contexts.json");
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++)
        render_mutants(seeds[i], strlen(seeds[i]), contexts, 1000000 * i, 400 * times, &compiled);
    char **names = vector_names(&n);
    for (size_t i = 0; i < n; i++) {
        char *source = template_source(names[i], &length);
        if (source)
            render_mutants(source, length, contexts, 1000000 * i, 30 * times, &compiled);
        free(source);
    }
    ck_assert_uint_gt(compiled, 200); /* not all of them stop at the parser */
    names_free(names, n);
    json_decref(contexts);
}
END_TEST

/* Every prefix of the seeds. */
START_TEST(hostile_prefixes_do_not_crash)
{
    json_t *c = parse("{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}");
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++)
        for (size_t n = 0; n < strlen(seeds[i]); n++) {
            char *exact = malloc(n ? n : 1);
            memcpy(exact, seeds[i], n);
            struct result r = run(exact, n, c);
            result_fini(&r);
            free(exact);
        }
    json_decref(c);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("chat_limits");
    TCase *tc = tcase_create("chat_limits");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, budget_of_evaluation);
    tcase_add_test(tc, budget_of_nesting);
    tcase_add_test(tc, budget_of_context_depth);
    tcase_add_test(tc, budget_leaves_room);
    tcase_add_test(tc, hostile_sources_do_not_crash);
    tcase_add_test(tc, hostile_prefixes_do_not_crash);
    suite_add_tcase(s, tc);
    return s;
}
