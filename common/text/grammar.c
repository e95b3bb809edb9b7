/* grammar: one entry for all kinds of sources. */
#include "common/text/grammar.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/json.h"
#include "common/text/grammar_machine.h"
#include "common/text/unicode.h"

#define CHOICES_MAX 10000
#define ACCEPT_WORK 20000000u

static uint32_t build_choices(struct grammar_builder *b, const json_t *list)
{
    uint32_t rule = grammar_rule_new(b, "choice");
    struct automaton a;
    size_t i;
    const json_t *v;
    automaton_init(&a, &b->budget);
    json_array_foreach(list, i, v)
    {
        if (!json_is_string(v)) {
            grammar_fail(b, STATUS_FORMAT, "choice %zu is not a string", i);
            break;
        }
        uint32_t end = automaton_bytes(&a, 0, json_string_value(v), json_string_length(v));
        if (a.status == STATUS_OK)
            a.final[end] = 1;
    }
    return grammar_rule_set(b, rule, &a) == STATUS_OK ? rule : 0;
}

static uint32_t choice_build(struct grammar_builder *b, const char *source, size_t n)
{
    json_error_t e;
    json_t *list = json_loadb(source, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    uint32_t rule = 0;
    if (!json_is_array(list) || json_array_size(list) == 0)
        grammar_fail(b, STATUS_FORMAT, "choices are not a list of strings with at least one");
    else if (json_array_size(list) > CHOICES_MAX)
        grammar_fail(b, STATUS_LIMIT, "more than %d choices", CHOICES_MAX);
    else
        rule = build_choices(b, list);
    json_decref(list);
    return rule;
}

static uint32_t build(struct grammar_builder *b, enum grammar_kind kind, const char *source,
                      size_t n)
{
    if (n > GRAMMAR_SOURCE_MAX)
        grammar_fail(b, STATUS_LIMIT, "it is larger than %u bytes", GRAMMAR_SOURCE_MAX);
    else if (unicode_valid(source, n) != n)
        grammar_fail(b, STATUS_FORMAT, "it is not UTF-8");
    if (b->status != STATUS_OK)
        return 0;
    switch (kind) {
    case GRAMMAR_JSON:
        return schema_build_any(b);
    case GRAMMAR_SCHEMA:
        return schema_build(b, source, n);
    case GRAMMAR_REGEX:
        return regex_build(b, source, n);
    case GRAMMAR_CHOICE:
        return choice_build(b, source, n);
    case GRAMMAR_GBNF:
        return gbnf_build(b, source, n);
    case GRAMMAR_NONE:
        break;
    }
    grammar_fail(b, STATUS_INVALID, "unknown kind of grammar");
    return 0;
}

int grammar_compile(enum grammar_kind kind, const char *source, size_t n,
                    const struct grammar_options *options, struct grammar **out, char *err,
                    size_t errlen)
{
    struct grammar_builder b;
    int rc = grammar_builder_init(&b, options, err, errlen);
    uint32_t root = rc == STATUS_OK ? build(&b, kind, source ? source : "", n) : 0;
    if (root)
        rc = grammar_finish(&b, root, out);
    rc = b.status;
    ASSERT(root || rc != STATUS_OK);
    grammar_builder_fini(&b);
    return rc;
}

struct grammar *grammar_get(struct grammar *g)
{
    __atomic_add_fetch(&g->refs, 1, __ATOMIC_RELAXED);
    return g;
}

void grammar_put(struct grammar *g)
{
    if (!g || __atomic_sub_fetch(&g->refs, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    free(g->nodes);
    free(g->edges);
    free(g->calls);
    free(g->rules);
    free(g);
}

size_t grammar_bytes(const struct grammar *g)
{
    return g->bytes;
}

int grammar_accepts(const struct grammar *g, const char *p, size_t n, bool *out)
{
    struct machine m;
    TRY(machine_init(&m, g));
    m.work = ACCEPT_WORK;
    uint32_t c = machine_step_bytes(&m, m.start, p, n);
    bool done = machine_done(&m, c), failed = m.failed;
    machine_fini(&m);
    if (failed)
        return STATUS_LIMIT;
    *out = done;
    return STATUS_OK;
}
