/* jinja_tests: the tests behind "is", and the global functions.
 *
 * Tests are told apart by their name in one switch-like table; those that compare take one argument
 * and share the operators' rules. strftime_now formats UTC. */
#include <stdio.h>
#include <time.h>

#include "common/text/jinja_eval.h"

enum test_kind {
    T_BOOLEAN,
    T_CALLABLE,
    T_DEFINED,
    T_DIVISIBLE,
    T_EQ,
    T_ESCAPED,
    T_EVEN,
    T_FALSE,
    T_FILTER,
    T_FLOAT,
    T_GE,
    T_GT,
    T_IN,
    T_INTEGER,
    T_ITERABLE,
    T_LE,
    T_LOWER,
    T_LT,
    T_MAPPING,
    T_NE,
    T_NONE,
    T_NUMBER,
    T_ODD,
    T_SAMEAS,
    T_SEQUENCE,
    T_STRING,
    T_TEST,
    T_TRUE,
    T_UNDEFINED,
    T_UPPER
};

static const struct {
    const char *name;
    enum test_kind kind;
    unsigned n_args;
} tests[] = {
    {"!=", T_NE, 1},
    {"<", T_LT, 1},
    {"<=", T_LE, 1},
    {"==", T_EQ, 1},
    {">", T_GT, 1},
    {">=", T_GE, 1},
    {"boolean", T_BOOLEAN, 0},
    {"callable", T_CALLABLE, 0},
    {"defined", T_DEFINED, 0},
    {"divisibleby", T_DIVISIBLE, 1},
    {"eq", T_EQ, 1},
    {"equalto", T_EQ, 1},
    {"escaped", T_ESCAPED, 0},
    {"even", T_EVEN, 0},
    {"false", T_FALSE, 0},
    {"filter", T_FILTER, 0},
    {"float", T_FLOAT, 0},
    {"ge", T_GE, 1},
    {"greaterthan", T_GT, 1},
    {"gt", T_GT, 1},
    {"in", T_IN, 1},
    {"integer", T_INTEGER, 0},
    {"iterable", T_ITERABLE, 0},
    {"le", T_LE, 1},
    {"lessthan", T_LT, 1},
    {"lower", T_LOWER, 0},
    {"lt", T_LT, 1},
    {"mapping", T_MAPPING, 0},
    {"ne", T_NE, 1},
    {"none", T_NONE, 0},
    {"number", T_NUMBER, 0},
    {"odd", T_ODD, 0},
    {"sameas", T_SAMEAS, 1},
    {"sequence", T_SEQUENCE, 0},
    {"string", T_STRING, 0},
    {"test", T_TEST, 0},
    {"true", T_TRUE, 0},
    {"undefined", T_UNDEFINED, 0},
    {"upper", T_UPPER, 0},
};
#define N_TESTS (sizeof tests / sizeof *tests)

static size_t test_index(const struct jstr *name)
{
    size_t i = 0;
    while (i < N_TESTS && !jstr_is(name, tests[i].name))
        i++;
    return i;
}

bool jtest_known(const struct jstr *name)
{
    return test_index(name) < N_TESTS;
}

/* The same object: scalars by type and value, the rest by identity. */
static bool same(struct jrt *rt, struct jvalue a, struct jvalue b)
{
    if (a.type != b.type)
        return false;
    switch (a.type) {
    case J_NONE:
    case J_BOOL:
    case J_INT:
        return jvalue_equal(rt, a, b);
    default:
        return a.s == b.s;
    }
}

static bool divisible(struct jrt *rt, struct jvalue v, struct jvalue by)
{
    struct jvalue rest = jop_binary(rt, '%', v, by);
    return jvalue_is_number(rest) && jvalue_double(rest) == 0;
}

static bool is_sequence(struct jvalue v)
{
    return v.type == J_LIST || v.type == J_TUPLE || v.type == J_STR || v.type == J_DICT ||
           v.type == J_RANGE || v.type == J_UNDEFINED;
}

static bool is_callable(struct jvalue v)
{
    return v.type == J_MACRO || v.type == J_FUNCTION || v.type == J_METHOD ||
           v.type == J_UNDEFINED || v.type == J_JOINER || v.type == J_LOOP;
}

bool jtest_apply(struct jrt *rt, const struct jstr *name, struct jvalue v, const struct jargs *a)
{
    size_t i = test_index(name);
    if (i == N_TESTS)
        jinja_fail(rt, STATUS_INVALID, "no test is named '%.*s'",
                   (int)(name->n < 64 ? name->n : 64), name->p);
    if (a->n != tests[i].n_args || a->n_kw)
        jinja_fail(rt, STATUS_INVALID, "the test '%s' takes %u arguments", tests[i].name,
                   tests[i].n_args);
    switch (tests[i].kind) {
    case T_BOOLEAN:
        return v.type == J_BOOL;
    case T_CALLABLE:
        return is_callable(v);
    case T_DEFINED:
        return v.type != J_UNDEFINED;
    case T_DIVISIBLE:
        return divisible(rt, v, a->pos[0]);
    case T_EQ:
        return jop_compare(rt, JCMP_EQ, v, a->pos[0]);
    case T_ESCAPED:
        return v.type == J_STR && v.s->markup;
    case T_EVEN:
        return divisible(rt, v, jint(2));
    case T_FALSE:
        return v.type == J_BOOL && !v.b;
    case T_FILTER:
        return v.type == J_STR && jfilter_find(v.s);
    case T_FLOAT:
        return v.type == J_FLOAT;
    case T_GE:
        return jop_compare(rt, JCMP_GE, v, a->pos[0]);
    case T_GT:
        return jop_compare(rt, JCMP_GT, v, a->pos[0]);
    case T_IN:
        return jop_compare(rt, JCMP_IN, v, a->pos[0]);
    case T_INTEGER:
        return v.type == J_INT;
    case T_ITERABLE:
        return jvalue_iterable(v);
    case T_LE:
        return jop_compare(rt, JCMP_LE, v, a->pos[0]);
    case T_LOWER:
        return jmethod_all_cased(rt, jvalue_str(rt, v), jchar_lower);
    case T_LT:
        return jop_compare(rt, JCMP_LT, v, a->pos[0]);
    case T_MAPPING:
        return v.type == J_DICT;
    case T_NE:
        return jop_compare(rt, JCMP_NE, v, a->pos[0]);
    case T_NONE:
        return v.type == J_NONE;
    case T_NUMBER:
        return jvalue_is_number(v);
    case T_ODD: {
        struct jvalue rest = jop_binary(rt, '%', v, jint(2));
        return jvalue_is_number(rest) && jvalue_double(rest) == 1;
    }
    case T_SAMEAS:
        return same(rt, v, a->pos[0]);
    case T_SEQUENCE:
        return is_sequence(v);
    case T_STRING:
        return v.type == J_STR;
    case T_TEST:
        return v.type == J_STR && jtest_known(v.s);
    case T_TRUE:
        return v.type == J_BOOL && v.b;
    case T_UNDEFINED:
        return v.type == J_UNDEFINED;
    case T_UPPER:
        return jmethod_all_cased(rt, jvalue_str(rt, v), jchar_upper);
    }
    return false;
}

/* -- global functions -- */

static struct jdict *dict_from(struct jrt *rt, const struct jargs *a, const char *what)
{
    struct jdict *d = jdict_new(rt, a->n_kw);
    if (a->n > 1)
        jinja_fail(rt, STATUS_INVALID, "%s takes one positional argument at most", what);
    if (a->n == 1 && a->pos[0].type == J_DICT) {
        for (size_t i = 0; i < a->pos[0].d->n; i++)
            jdict_set(rt, d, a->pos[0].d->e[i].key, a->pos[0].d->e[i].value);
    } else if (a->n == 1) {
        struct jlist *items = jvalue_items(rt, a->pos[0]);
        for (size_t i = 0; i < items->n; i++) {
            struct jlist *pair = jvalue_items(rt, items->v[i]);
            if (pair->n != 2)
                jinja_fail(rt, STATUS_INVALID, "%s needs pairs", what);
            jdict_set(rt, d, pair->v[0], pair->v[1]);
        }
    }
    for (size_t i = 0; i < a->n_kw; i++)
        jdict_set(rt, d, jstring(a->kw[i].name), a->kw[i].v);
    return d;
}

static struct jvalue g_namespace(struct jrt *rt, const struct jargs *a)
{
    return (struct jvalue){.type = J_NAMESPACE, .d = dict_from(rt, a, "namespace")};
}

static struct jvalue g_dict(struct jrt *rt, const struct jargs *a)
{
    return jdict_value(dict_from(rt, a, "dict"));
}

static struct jvalue g_range(struct jrt *rt, const struct jargs *a)
{
    jmethod_need(rt, a, 1, 3, "range");
    int64_t v[3];
    for (size_t i = 0; i < a->n; i++)
        v[i] = jvalue_index(rt, a->pos[i], "range");
    return jrange_value(rt, a->n > 1 ? v[0] : 0, a->n > 1 ? v[1] : v[0], a->n > 2 ? v[2] : 1);
}

static struct jvalue g_raise_exception(struct jrt *rt, const struct jargs *a)
{
    struct jvalue p[1];
    JARGS_BIND(rt, "raise_exception", a, 1, p, "message");
    const struct jstr *s = jvalue_str(rt, p[0]);
    if (s->n == 0)
        jinja_fail(rt, STATUS_INVALID, "the template refuses this conversation");
    jinja_fail_bare(rt, STATUS_INVALID, s->p, s->n);
}

static struct jvalue g_cycler(struct jrt *rt, const struct jargs *a)
{
    if (a->n == 0 || a->n_kw)
        jinja_fail(rt, STATUS_INVALID, "cycler needs items");
    struct jcycler *c = jinja_alloc(rt, sizeof *c);
    c->items = jlist_new(rt, a->n);
    for (size_t i = 0; i < a->n; i++)
        jlist_push(rt, c->items, a->pos[i]);
    return (struct jvalue){.type = J_CYCLER, .cycler = c};
}

static struct jvalue g_joiner(struct jrt *rt, const struct jargs *a)
{
    struct jvalue p[1];
    JARGS_BIND(rt, "joiner", a, 0, p, "sep");
    struct jjoiner *j = jinja_alloc(rt, sizeof *j);
    j->sep = p[0].type == J_MISSING ? jstr_literal(rt, ", ") : jmethod_str_arg(rt, p[0], "joiner");
    return (struct jvalue){.type = J_JOINER, .joiner = j};
}

/* Every conversion but %f, which C lacks: the clock has whole seconds. */
static struct jvalue g_strftime_now(struct jrt *rt, const struct jargs *a)
{
    struct jvalue p[1];
    JARGS_BIND(rt, "strftime_now", a, 1, p, "format");
    struct jstr *fmt = jmethod_str_arg(rt, p[0], "strftime_now");
    time_t now = (time_t)rt->now;
    struct tm tm;
    if (!gmtime_r(&now, &tm))
        jinja_fail(rt, STATUS_RANGE, "the time is out of range");
    struct jbuf b = {0};
    for (size_t i = 0; i < fmt->n;) {
        const char *next = memchr(fmt->p + i, '%', fmt->n - i);
        size_t to = next ? (size_t)(next - fmt->p) : fmt->n, end = to + 1;
        jbuf_sub(rt, &b, fmt, i, to);
        if (!next)
            break;
        while (end < fmt->n && strchr("-_0^#EO", fmt->p[end]) && fmt->p[end])
            end++;
        end += end < fmt->n;
        char one[16], text[256];
        if (end - to >= sizeof one - 1)
            jinja_fail(rt, STATUS_INVALID, "strftime_now has a malformed format");
        memcpy(one, fmt->p + to, end - to);
        memcpy(one + (end - to), " ", 2); /* so that an empty result is no failure */
        size_t n = strftime(text, sizeof text, one, &tm);
        if (one[end - to - 1] == 'f')
            jbuf_puts(rt, &b, "000000", true);
        else
            jbuf_bytes(rt, &b, text, n ? n - 1 : 0, jstr_trusted_at(fmt, to));
        i = end;
    }
    return jstring(jbuf_finish(rt, &b));
}

const struct jfunction *jfunction_find(const struct jstr *name)
{
    static const struct jfunction table[] = {
        {"cycler", g_cycler},
        {"dict", g_dict},
        {"joiner", g_joiner},
        {"namespace", g_namespace},
        {"raise_exception", g_raise_exception},
        {"range", g_range},
        {"strftime_now", g_strftime_now},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (jstr_is(name, table[i].name))
            return &table[i];
    return NULL;
}
