/* Chat templates: any source with one conversation, and any conversation with a few templates. */
#include "common/text/chat.h"
#include "tests/fuzz/fuzz.h"

static json_t *parse(const char *text)
{
    json_error_t e;
    json_t *j = json_loads(text, 0, &e);
    FUZZ_CHECK(j);
    return j;
}

/* The spans cover the text, in order, and neighbours differ. */
static void check_output(struct chat_output *out)
{
    size_t at = 0;
    for (size_t i = 0; i < out->n_spans; i++) {
        FUZZ_CHECK(out->spans[i].begin == at && out->spans[i].end > at);
        FUZZ_CHECK(i == 0 || out->spans[i].from_template != out->spans[i - 1].from_template);
        at = out->spans[i].end;
    }
    FUZZ_CHECK(at == out->text.len);
    chat_output_fini(out);
}

static void render(const struct chat_template *t, const json_t *context)
{
    char err[200] = "";
    struct chat_output out;
    int rc = chat_render(t, context, 1735787045, &out, err, sizeof err);
    if (rc == STATUS_OK)
        check_output(&out);
    else
        FUZZ_CHECK(rc == STATUS_NOMEM || err[0]);
}

void fuzz_template_source(const uint8_t *data, size_t n)
{
    static json_t *context;
    struct chat_template *t;
    char err[200] = "";
    if (!context)
        context = parse(
            "{\"messages\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", "
            "\"content\": \"Hi <b> \\u00e9\\n\"}, {\"role\": \"assistant\", \"content\": null, "
            "\"tool_calls\": [{\"id\": \"a\", \"type\": \"function\", \"function\": {\"name\": "
            "\"f\", \"arguments\": {\"x\": [1, 2.5, true, null]}}}]}], \"tools\": [{\"type\": "
            "\"function\", \"function\": {\"name\": \"f\", \"parameters\": {}}}], "
            "\"add_generation_prompt\": true, \"bos_token\": \"<s>\", \"eos_token\": \"</s>\", "
            "\"n\": 3, \"x\": -1.5, \"s\": \"abc\", \"l\": [3, 1, 2], \"d\": {\"k\": \"v\"}}");
    if (chat_template_create((const char *)data, n, &t, err, sizeof err) != STATUS_OK)
        return;
    render(t, context);
    chat_template_destroy(t);
}

/* Between them: loops, macros, namespaces, slices, tests, filters and methods over the context. */
static const char *const sources[] = {
    "{% macro m(x) %}{% if x is mapping %}{% for k, v in x.items() %}{{ k ~ '=' }}{{ m(v) }};"
    "{% endfor %}{% elif x is string %}{{ x | trim | replace('a', 'b') | upper }}{% elif x is "
    "iterable %}{% for i in x %}{{ loop.index }}{{ m(i) }},{% endfor %}{% else %}{{ x }}{% endif "
    "%}{% endmacro %}{{ m(messages) }}{{ tools | tojson(indent=2) }}{{ tools }}",
    "{% set ns = namespace(n=0, last=none) %}{% for m in messages if m.role != 'system' %}{% set "
    "ns.n = ns.n + 1 %}{% set ns.last = m %}{{ m.role }}: {{ m['content'][:5] }}{{ "
    "m.content.split('</think>')[-1].strip() if m.content is string }}{% if "
    "not loop.last %}{{ loop.nextitem.role }}{% endif %}{% endfor %}{{ ns.n }}{{ ns.last }}{{ "
    "messages | map(attribute='role') | join(',') }}{{ messages | selectattr('role', 'equalto', "
    "'user') | list | length }}",
    "{{ messages | tojson }}{{ messages[0].content | default('') }}{{ (messages | first).role }}{{ "
    "messages[::-1] }}{% for g in messages | groupby('role') %}{{ g.grouper }}{% endfor %}{{ "
    "messages | string | length }}{{ n + 1 }}{{ n // 2 }}{{ n * s }}{{ '%s|%r' | format(s, n) }}{{ "
    "d "
    "| dictsort }}{{ l | sort }}{{ l | sum }}{{ l | unique | list }}",
};
#define N_SOURCES (sizeof sources / sizeof *sources)

void fuzz_template_context(const uint8_t *data, size_t n)
{
    static struct chat_template *t[N_SOURCES + 1];
    json_error_t e;
    char err[200];
    for (size_t i = 0; !t[i] && i < N_SOURCES; i++)
        FUZZ_CHECK(chat_template_create(sources[i], strlen(sources[i]), &t[i], err, sizeof err) ==
                   0);
    if (!t[N_SOURCES])
        FUZZ_CHECK(chat_template_create(chat_default_template(), strlen(chat_default_template()),
                                        &t[N_SOURCES], err, sizeof err) == 0);
    json_t *context = json_loadb((const char *)data, n, JSON_ALLOW_NUL, &e);
    for (size_t i = 0; context && i <= N_SOURCES; i++)
        render(t[i], context);
    json_decref(context);
}
