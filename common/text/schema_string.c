/* schema_string: strings.
 *
 * Without conditions, or with lengths alone, a string is any characters in any of JSON's spellings;
 * lengths are a counted loop over one character. A pattern or format is an automaton over code
 * points, several conditions are their product; it is then written with as few escapes as JSON
 * allows. A single pattern keeps its long repetitions as counted loops, and one that only says
 * "characters of this class" keeps its length as one. */
#include <stdlib.h>
#include <string.h>

#include "common/text/regex.h"
#include "common/text/schema_internal.h"
#include "common/text/unicode.h"

#define LENGTH_MAX 20000 /* of a string whose length and pattern are both limited */

static uint32_t character_rule(struct schema *s)
{
    if (s->character)
        return s->character;
    struct automaton a;
    automaton_init(&a, &s->b->budget);
    uint32_t end = automaton_state(&a);
    automaton_json_char(&a, 0, end);
    if (a.status == STATUS_OK)
        a.final[end] = 1;
    return s->character = schema_rule(s, "character", &a);
}

uint32_t schema_any_string(struct schema *s)
{
    if (s->string)
        return s->string;
    struct automaton a;
    automaton_init(&a, &s->b->budget);
    uint32_t in = automaton_bytes(&a, 0, "\"", 1), end = automaton_bytes(&a, in, "\"", 1);
    automaton_json_char(&a, in, in);
    if (a.status == STATUS_OK)
        a.final[end] = 1;
    return s->string = schema_rule(s, "any string", &a);
}

int schema_pattern(struct schema *s, const json_t *schema, const char *pattern, size_t n,
                   struct automaton *out)
{
    TRY(regex_compile(s->b, pattern, n, REGEX_SEARCH, AUTOMATON_JSON, schema_path(s, schema), out));
    int rc = automaton_minimise(out);
    if (rc != STATUS_OK) {
        grammar_fail_automaton(s->b, rc, schema_path(s, schema));
        automaton_fini(out);
    }
    return s->b->status;
}

/* All conditions on the strings of a conj. */
struct strings {
    struct schema *s;
    const json_t *where; /* for messages */
    uint32_t min, max;
    struct condition {
        const json_t *schema;
        const char *pattern;
        size_t n;
        bool negate;
    } conditions[64];
    uint32_t n;
    const json_t *excluded[64]; /* lists of values */
    uint32_t n_excluded;
};

static void add_condition(struct strings *x, const json_t *schema, const char *p, size_t n,
                          bool negate)
{
    for (uint32_t i = 0; i < x->n; i++) {
        if (x->conditions[i].negate == negate && x->conditions[i].n == n &&
            memcmp(x->conditions[i].pattern, p, n) == 0)
            return;
    }
    if (x->n == sizeof x->conditions / sizeof *x->conditions)
        schema_refuse(x->s, STATUS_LIMIT, schema, "too many patterns for one string");
    else
        x->conditions[x->n++] = (struct condition){schema, p, n, negate};
}

static void add_pattern(struct strings *x, const json_t *schema, const char *key, bool negate)
{
    const json_t *v = json_object_get(schema, key);
    if (v && !json_is_string(v))
        schema_refuse(x->s, STATUS_FORMAT, schema, "pattern is not a string");
    else if (v)
        add_condition(x, schema, json_string_value(v), json_string_length(v), negate);
}

static void add_format(struct strings *x, const json_t *schema, const char *key, bool negate)
{
    const json_t *v = json_object_get(schema, key);
    bool known;
    if (!v || x->s->b->options.formats_ignored)
        return;
    if (!json_is_string(v)) {
        schema_refuse(x->s, STATUS_FORMAT, schema, "format is not a string");
        return;
    }
    const char *pattern = schema_format(json_string_value(v), &known);
    if (pattern)
        add_condition(x, schema, pattern, strlen(pattern), negate);
    else if (known)
        schema_refuse(x->s, STATUS_UNSUPPORTED, schema, "the format %.60s is not supported",
                      json_string_value(v));
}

static void collect(struct strings *x, const struct schema_conj *c)
{
    x->max = SCHEMA_NONE;
    for (uint32_t i = 0; i < c->n; i++) {
        const json_t *schema = c->parts[i].schema, *v;
        uint32_t min = schema_size(x->s, schema, "minLength");
        uint32_t max = schema_size(x->s, schema, "maxLength");
        size_t k;
        if (min != SCHEMA_NONE && min > x->min)
            x->min = min;
        if (max < x->max)
            x->max = max;
        add_pattern(x, schema, "pattern", false);
        add_pattern(x, schema, SCHEMA_NOT_PATTERN, true);
        add_format(x, schema, "format", false);
        add_format(x, schema, SCHEMA_NOT_FORMAT, true);
        json_array_foreach(json_object_get(schema, SCHEMA_NOT_ENUM), k, v)
        {
            if (json_is_string(v) && x->n_excluded < sizeof x->excluded / sizeof *x->excluded)
                x->excluded[x->n_excluded++] = v;
            else if (json_is_string(v))
                schema_refuse(x->s, STATUS_LIMIT, schema, "too many strings are excluded");
        }
    }
}

/* The rule for "body{min,max}" where body is a rule for one character. */
static uint32_t counted_rule(struct strings *x, uint32_t body, uint32_t min, uint32_t max)
{
    struct schema *s = x->s;
    const char *name = schema_path(s, x->where);
    struct automaton a;
    uint32_t loop = 0;
    automaton_init(&a, &s->b->budget);
    if (body && min <= max)
        loop = grammar_rule_loop(s->b, name, body, min, max == SCHEMA_NONE ? GRAMMAR_NO_MAX : max);
    if (loop) { /* else nothing is that long: the rule of an automaton that accepts nothing */
        uint32_t out = automaton_state(&a);
        automaton_call(&a, automaton_bytes(&a, 0, "\"", 1), loop, out);
        uint32_t end = automaton_bytes(&a, out, "\"", 1);
        if (a.status == STATUS_OK)
            a.final[end] = 1;
    }
    return schema_rule(s, name, &a);
}

/* Puts quotes around an automaton over bytes; takes it. */
static uint32_t quoted_rule(struct strings *x, struct automaton *in)
{
    struct automaton a;
    automaton_init(&a, &x->s->b->budget);
    uint32_t open = automaton_bytes(&a, 0, "\"", 1), close = automaton_state(&a);
    automaton_splice(&a, open, in, close);
    automaton_fini(in);
    uint32_t end = automaton_bytes(&a, close, "\"", 1);
    if (a.status == STATUS_OK)
        a.final[end] = 1;
    return schema_rule(x->s, schema_path(x->s, x->where), &a);
}

static int lower(struct strings *x, struct automaton *a)
{
    int rc = automaton_lower(a, AUTOMATON_JSON);
    if (rc != STATUS_OK) {
        grammar_fail_automaton(x->s->b, rc, schema_path(x->s, x->where));
        automaton_fini(a);
    }
    return rc;
}

/* Whether a minimal automaton says "characters of one class, at least *min of them"; then the class
 * is what leads out of its start. */
static bool is_class(const struct automaton *a, uint32_t *min)
{
    uint32_t last = a->n - 1;
    if (a->n > 2 || !a->final[last] || a->n_edges == 0)
        return false;
    for (uint32_t e = 0; e < a->n_edges; e++) {
        if (a->edges[e].to != last)
            return false;
    }
    *min = a->final[0] ? 0 : 1;
    if (a->n == 1)
        return true;
    uint32_t n = a->first[1]; /* both states have the same edges */
    if (a->n_edges != 2 * n || a->final[0])
        return false;
    for (uint32_t e = 0; e < n; e++) {
        if (a->edges[e].lo != a->edges[n + e].lo || a->edges[e].hi != a->edges[n + e].hi)
            return false;
    }
    return true;
}

static uint32_t class_rule(struct strings *x, const struct automaton *a, uint32_t min)
{
    struct automaton body;
    automaton_init(&body, &x->s->b->budget);
    uint32_t end = automaton_state(&body);
    for (uint32_t e = a->first[0]; e < a->first[1]; e++)
        automaton_edge(&body, 0, a->edges[e].lo, a->edges[e].hi, end);
    if (body.status == STATUS_OK)
        body.final[end] = 1;
    if (lower(x, &body) != STATUS_OK)
        return 0;
    uint32_t rule = schema_rule(x->s, schema_path(x->s, x->where), &body);
    return counted_rule(x, rule, x->min > min ? x->min : min, x->max);
}

/* Lengths of the shortest and longest text; UINT32_MAX: there is no longest. Trimmed automata that
 * loop have paths longer than they have states. */
static void text_lengths(const struct automaton *a, uint32_t *shortest, uint32_t *longest)
{
    uint32_t *near = mem_array(a->n, sizeof *near), *far = mem_array(a->n, sizeof *far);
    bool changed = near && far, loops = !changed;
    for (uint32_t i = 1; changed && i < a->n; i++)
        near[i] = UINT32_MAX;
    for (int round = 0; changed && !loops; round++) { /* states are numbered breadth first: few */
        changed = false;
        for (uint32_t e = 0; e < a->n_edges; e++) {
            const struct automaton_edge *y = &a->edges[e];
            if (near[y->from] == UINT32_MAX)
                continue;
            if (near[y->from] + 1 < near[y->to])
                near[y->to] = near[y->from] + 1, changed = true;
            if (far[y->from] + 1 > far[y->to])
                far[y->to] = far[y->from] + 1, changed = true;
            loops |= far[y->to] >= a->n || round > 1000;
        }
    }
    *shortest = near && far ? UINT32_MAX : 0;
    *longest = loops ? UINT32_MAX : 0;
    for (uint32_t i = 0; near && far && i < a->n; i++) {
        if (a->final[i] && near[i] < *shortest && !loops)
            *shortest = near[i];
        if (a->final[i] && far[i] > *longest)
            *longest = far[i];
    }
    if (loops)
        *shortest = 0; /* not looked for */
    free(near);
    free(far);
}

/* Any min to max characters. */
static void length_automaton(struct automaton *a, uint32_t min, uint32_t max)
{
    uint32_t s = 0, n = max == SCHEMA_NONE ? min : max;
    for (uint32_t i = 0; i <= n && a->status == STATUS_OK; i++) {
        if (i >= min)
            a->final[s] = 1;
        if (i == n)
            break;
        uint32_t t = automaton_state(a);
        automaton_edge(a, s, 0, UNICODE_MAX, t);
        s = t;
    }
    if (max == SCHEMA_NONE && a->status == STATUS_OK)
        automaton_edge(a, s, 0, UNICODE_MAX, s);
}

/* automaton_combine of a deterministic b. */
static void combine(struct automaton *a, struct automaton *b, bool subtract)
{
    if (a->status == STATUS_OK && b->status == STATUS_OK)
        b->status = automaton_index(b);
    automaton_combine(a, b, subtract);
}

/* The product of all conditions but the lengths. */
static int product(struct strings *x, struct automaton *a)
{
    struct schema *s = x->s;
    automaton_init(a, &s->b->budget);
    a->final[0] = 1;
    automaton_edge(a, 0, 0, UNICODE_MAX, 0);
    int rc = automaton_index(a);
    for (uint32_t i = 0; i < x->n && rc == STATUS_OK; i++) {
        const struct condition *k = &x->conditions[i];
        struct automaton b;
        rc = schema_pattern(s, k->schema, k->pattern, k->n, &b);
        if (rc == STATUS_OK) {
            combine(a, &b, k->negate);
            rc = a->status;
        }
    }
    for (uint32_t i = 0; i < x->n_excluded && rc == STATUS_OK; i++) {
        struct automaton b;
        automaton_init(&b, &s->b->budget);
        uint32_t end = automaton_chars(&b, 0, json_string_value(x->excluded[i]),
                                       json_string_length(x->excluded[i]));
        if (b.status == STATUS_OK)
            b.final[end] = 1;
        combine(a, &b, true);
        rc = a->status;
    }
    if (rc != STATUS_OK) {
        grammar_fail_automaton(s->b, rc, schema_path(s, x->where));
        automaton_fini(a);
    }
    return rc;
}

/* A single pattern without lengths: as it stands, with its loops. */
static uint32_t pattern_rule(struct strings *x)
{
    const struct condition *k = &x->conditions[0];
    struct automaton a;
    if (regex_compile(x->s->b, k->pattern, k->n, REGEX_SEARCH | REGEX_LOOPS, AUTOMATON_JSON,
                      schema_path(x->s, k->schema), &a) != STATUS_OK ||
        lower(x, &a) != STATUS_OK)
        return 0;
    return quoted_rule(x, &a);
}

/* Leaves texts of the right lengths; a is minimal. */
static void limit_lengths(struct strings *x, struct automaton *a)
{
    uint32_t shortest, longest;
    struct automaton b;
    text_lengths(a, &shortest, &longest);
    if (shortest >= x->min && longest <= x->max)
        return;
    if ((x->max == SCHEMA_NONE ? x->min : x->max) > LENGTH_MAX) {
        schema_refuse(x->s, STATUS_LIMIT, x->where,
                      "with a pattern, lengths are at most %d characters", LENGTH_MAX);
        return;
    }
    automaton_init(&b, &x->s->b->budget);
    length_automaton(&b, x->min, x->max);
    combine(a, &b, false);
    if (a->status != STATUS_OK)
        grammar_fail_automaton(x->s->b, a->status, schema_path(x->s, x->where));
}

uint32_t schema_string_of(struct schema *s, const json_t *where, struct automaton *a)
{
    struct strings x = {.s = s, .where = where};
    return lower(&x, a) == STATUS_OK ? quoted_rule(&x, a) : 0;
}

uint32_t schema_string_rule(struct schema *s, const struct schema_conj *c)
{
    struct strings x = {.s = s, .where = c->n ? c->parts[0].schema : NULL};
    struct automaton a;
    uint32_t min;
    collect(&x, c);
    if (schema_failed(s))
        return 0;
    bool lengths = x.min > 0 || x.max != SCHEMA_NONE;
    if (x.n == 0 && x.n_excluded == 0)
        return lengths ? counted_rule(&x, character_rule(s), x.min, x.max) : schema_any_string(s);
    if (x.n == 1 && !x.conditions[0].negate && x.n_excluded == 0 && !lengths)
        return pattern_rule(&x);
    if (product(&x, &a) != STATUS_OK)
        return 0;
    if (automaton_minimise(&a) == STATUS_OK && lengths && is_class(&a, &min)) {
        uint32_t rule = class_rule(&x, &a, min);
        automaton_fini(&a);
        return rule;
    }
    limit_lengths(&x, &a);
    if (schema_failed(s)) {
        automaton_fini(&a);
        return 0;
    }
    return schema_string_of(s, x.where, &a);
}

/* The strings that enum or const list; false: there is neither. */
static bool listed(struct schema *s, const struct schema_conj *c, struct automaton *out)
{
    const json_t *only = NULL, *list = NULL;
    for (uint32_t i = 0; i < c->n && !only && !list; i++) {
        only = json_object_get(c->parts[i].schema, "const");
        list = json_object_get(c->parts[i].schema, "enum");
    }
    if (!only && !list)
        return false;
    automaton_init(out, &s->b->budget);
    for (size_t i = 0; i < (only ? 1 : json_array_size(list)) && !schema_failed(s); i++) {
        const json_t *v = only ? only : json_array_get(list, i);
        bool good = json_is_string(v);
        for (uint32_t k = 0; k < c->n && good; k++)
            good = schema_check(s, c->parts[k].schema, v);
        uint32_t end =
            good ? automaton_chars(out, 0, json_string_value(v), json_string_length(v)) : 0;
        if (good && out->status == STATUS_OK)
            out->final[end] = 1;
    }
    return true;
}

void schema_keep_strings(struct schema *s, const struct schema_conj *given, struct automaton *a)
{
    struct schema_conj c = {0};
    struct strings x = {.s = s};
    struct automaton b;
    bool never;
    uint32_t part, did;
    if (!schema_expand(s, given, &c, &never))
        return;
    x.where = c.n ? c.parts[0].schema : given->parts[0].schema;
    for (uint32_t i = 0; i < c.n; i++)
        never |= !(schema_types(s, c.parts[i].schema) & SCHEMA_STRING);
    if (never) {
        automaton_init(&b, &s->b->budget);
    } else if (!listed(s, &c, &b)) {
        if (schema_rewrite(s, &c, &part, &did) || schema_failed(s)) {
            schema_refuse(s, STATUS_UNSUPPORTED, x.where,
                          "propertyNames with alternatives is not supported");
            return;
        }
        collect(&x, &c);
        if (schema_failed(s) || product(&x, &b) != STATUS_OK)
            return;
        limit_lengths(&x, &b);
    }
    int rc = b.status == STATUS_OK ? automaton_minimise(&b) : b.status;
    if (rc == STATUS_OK)
        combine(a, &b, false);
    else
        automaton_fini(&b);
    if (rc == STATUS_OK)
        rc = a->status;
    if (rc != STATUS_OK)
        grammar_fail_automaton(s->b, rc, schema_path(s, x.where));
}
