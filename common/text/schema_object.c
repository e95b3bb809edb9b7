/* schema_object: objects.
 *
 * Properties that the schemas name come in the order in which they are named, optional ones or not;
 * then any others. The automaton's states are (next named property, properties written so far), the
 * latter as far as commas and limits depend on it. Named properties appear at most once.
 *
 * Other properties have keys that are none of the names, sorted by which patterns they match: each
 * set of patterns is a class of keys with its own schema for the values. That two of them are equal
 * cannot be said by an automaton; a reader takes the last, which is as valid. Only their number
 * would be wrong, so at most one of them counts towards minProperties. */
#include <stdlib.h>
#include <string.h>

#include "common/text/schema_internal.h"
#include "common/text/unicode.h"

#define PATTERNS_MAX 6
#define STATES_MAX   20000
#define NAMES_MAX    5000

struct property {
    const char *name;
    bool required;
    uint32_t rule; /* of its value; 0: it may not be there */
};
struct key_class {       /* of keys that no name is */
    uint32_t key, value; /* rules */
};

struct objects {
    struct schema *s;
    const struct schema_conj *c;
    const char *path;
    const json_t *where;
    struct property *names; /* in the arena */
    uint32_t n_names;
    uint32_t min, max; /* properties; max: SCHEMA_NONE */
    struct {
        const char *text;
        const json_t *schema; /* where it stands */
        struct automaton a;
    } patterns[PATTERNS_MAX];
    uint32_t n_patterns;
    struct key_class classes[1 << PATTERNS_MAX];
    uint32_t n_classes;
};

/* ---- what the schemas say ---- */

static bool add_name(struct objects *x, const char *name, bool required, uint32_t cap)
{
    for (uint32_t i = 0; i < x->n_names; i++) {
        if (strcmp(x->names[i].name, name) == 0) {
            x->names[i].required |= required;
            return true;
        }
    }
    if (x->n_names == cap)
        return false;
    x->names[x->n_names++] = (struct property){.name = name, .required = required};
    return true;
}

static void collect_names(struct objects *x)
{
    struct schema *s = x->s;
    size_t n = 0, k;
    const char *name;
    json_t *v;
    const json_t *r;
    for (uint32_t i = 0; i < x->c->n; i++)
        n += json_object_size(json_object_get(x->c->parts[i].schema, "properties")) +
             json_array_size(json_object_get(x->c->parts[i].schema, "required"));
    x->names = n > NAMES_MAX ? NULL : arena_alloc(&s->b->arena, (n + 1) * sizeof *x->names);
    if (!x->names) {
        schema_refuse(s, STATUS_LIMIT, x->where, "an object with more than %d properties",
                      NAMES_MAX);
        return;
    }
    for (uint32_t i = 0; i < x->c->n; i++) {
        json_object_foreach(json_object_get(x->c->parts[i].schema, "properties"), name, v)
            add_name(x, name, false, (uint32_t)n);
    }
    for (uint32_t i = 0; i < x->c->n; i++) {
        json_array_foreach(json_object_get(x->c->parts[i].schema, "required"), k, r)
            add_name(x, json_string_value(r), true, (uint32_t)n);
    }
}

static void collect_patterns(struct objects *x)
{
    struct schema *s = x->s;
    const char *text;
    json_t *v;
    for (uint32_t i = 0; i < x->c->n && !schema_failed(s); i++) {
        const json_t *schema = x->c->parts[i].schema;
        json_object_foreach(json_object_get(schema, "patternProperties"), text, v)
        {
            uint32_t k = 0;
            while (k < x->n_patterns && strcmp(x->patterns[k].text, text) != 0)
                k++;
            if (k < x->n_patterns)
                continue;
            if (k == PATTERNS_MAX) {
                schema_refuse(s, STATUS_LIMIT, schema, "more than %d patterns for properties",
                              PATTERNS_MAX);
                return;
            }
            x->patterns[k].text = text;
            x->patterns[k].schema = schema;
            if (schema_pattern(s, schema, text, strlen(text), &x->patterns[k].a) != STATUS_OK)
                return;
            x->n_patterns++;
        }
    }
}

static void collect_sizes(struct objects *x)
{
    x->max = SCHEMA_NONE;
    for (uint32_t i = 0; i < x->c->n; i++) {
        uint32_t n = schema_size(x->s, x->c->parts[i].schema, "minProperties");
        if (n != SCHEMA_NONE && n > x->min)
            x->min = n;
        n = schema_size(x->s, x->c->parts[i].schema, "maxProperties");
        if (n < x->max)
            x->max = n;
    }
}

/* What holds for the value of a property: a named one, or one that matches exactly the patterns in
 * `matched`. False: it cannot be there, or failure. */
static bool value_conj(struct objects *x, const char *name, uint32_t matched,
                       struct schema_conj *out)
{
    for (uint32_t i = 0; i < x->c->n; i++) {
        const json_t *schema = x->c->parts[i].schema;
        const json_t *own =
            name ? json_object_get(json_object_get(schema, "properties"), name) : NULL;
        const json_t *by_pattern = json_object_get(schema, "patternProperties");
        const json_t *rest = json_object_get(schema, "additionalProperties");
        bool found = own != NULL;
        if (json_is_false(own) || (own && !schema_conj_add(x->s, out, own)))
            return false;
        for (uint32_t k = 0; k < x->n_patterns; k++) {
            const json_t *v =
                matched >> k & 1 ? json_object_get(by_pattern, x->patterns[k].text) : NULL;
            if (!v)
                continue;
            found = true;
            if (json_is_false(v) || !schema_conj_add(x->s, out, v))
                return false;
        }
        if (!found && rest && (json_is_false(rest) || !schema_conj_add(x->s, out, rest)))
            return false;
    }
    return true;
}

static void make_names(struct objects *x)
{
    struct schema *s = x->s;
    for (uint32_t i = 0; i < x->n_names && !schema_failed(s); i++) {
        struct property *p = &x->names[i];
        struct schema_conj c = {0};
        uint32_t matched = 0;
        bool allowed = true;
        for (uint32_t k = 0; k < x->n_patterns; k++) {
            if (automaton_accepts(&x->patterns[k].a, p->name, strlen(p->name), true))
                matched |= 1u << k;
        }
        for (uint32_t k = 0; k < x->c->n && allowed; k++) {
            const json_t *names = json_object_get(x->c->parts[k].schema, "propertyNames");
            if (names)
                allowed = schema_check_string(s, names, p->name, strlen(p->name));
        }
        if (allowed && value_conj(x, p->name, matched, &c))
            p->rule = schema_value(s, &c);
    }
}

/* ---- other keys ---- */

static int combine(struct automaton *a, const struct automaton *b, bool subtract)
{
    struct automaton out;
    int rc = subtract ? automaton_subtract(a, b, &out) : automaton_intersect(a, b, &out);
    if (rc == STATUS_OK) {
        automaton_fini(a);
        *a = out;
    }
    return rc;
}

/* Keys that match exactly these patterns and are no name; code points. */
static int class_automaton(struct objects *x, uint32_t matched, struct automaton *a)
{
    struct schema *s = x->s;
    struct automaton names;
    automaton_init(a, &s->b->budget);
    automaton_edge(a, 0, 0, UNICODE_MAX, 0);
    if (a->status == STATUS_OK)
        a->final[0] = 1;
    int rc = a->status == STATUS_OK ? automaton_index(a) : a->status;
    automaton_init(&names, &s->b->budget);
    for (uint32_t i = 0; i < x->n_names && names.status == STATUS_OK; i++) {
        uint32_t end = automaton_chars(&names, 0, x->names[i].name, strlen(x->names[i].name));
        if (names.status == STATUS_OK)
            names.final[end] = 1;
    }
    if (rc == STATUS_OK)
        rc = names.status == STATUS_OK ? automaton_minimise(&names) : names.status;
    if (rc == STATUS_OK)
        rc = combine(a, &names, true);
    automaton_fini(&names);
    for (uint32_t k = 0; k < x->n_patterns && rc == STATUS_OK; k++)
        rc = combine(a, &x->patterns[k].a, !(matched >> k & 1));
    if (rc != STATUS_OK) {
        grammar_fail_automaton(s->b, rc, x->path);
        automaton_fini(a);
    }
    return rc;
}

/* The schemas of all propertyNames. False: they allow none, or failure. */
static bool restrict_names(struct objects *x, struct schema_conj *out)
{
    for (uint32_t i = 0; i < x->c->n; i++) {
        const json_t *names = json_object_get(x->c->parts[i].schema, "propertyNames");
        if (json_is_false(names))
            return false;
        if (names && !schema_conj_add(x->s, out, names))
            return false;
    }
    return true;
}

static uint32_t key_rule(struct objects *x, uint32_t matched)
{
    struct schema *s = x->s;
    struct schema_conj names = {0};
    struct automaton a;
    if (!restrict_names(x, &names))
        return 0;
    if (x->n_patterns == 0 && x->n_names == 0 && names.n == 0)
        return schema_any_string(s);
    if (class_automaton(x, matched, &a) != STATUS_OK)
        return 0;
    if (names.n > 0)
        schema_keep_strings(s, &names, &a);
    if (schema_failed(s) || automaton_is_never(&a)) {
        automaton_fini(&a);
        return 0;
    }
    return schema_string_of(s, x->where, &a);
}

static void make_classes(struct objects *x)
{
    for (uint32_t matched = 0; matched < 1u << x->n_patterns && !schema_failed(x->s); matched++) {
        struct schema_conj c = {0};
        if (!value_conj(x, NULL, matched, &c))
            continue;
        uint32_t key = key_rule(x, matched);
        uint32_t value = key ? schema_value(x->s, &c) : 0;
        if (value)
            x->classes[x->n_classes++] = (struct key_class){key, value};
    }
}

/* ---- the automaton ---- */

/* What stands before a key. */
static uint32_t before_key(struct objects *x, struct automaton *a, uint32_t from, bool first)
{
    return schema_space(x->s, a, first ? from : automaton_bytes(a, from, ",", 1));
}

static uint32_t after_key(struct objects *x, struct automaton *a, uint32_t from)
{
    return schema_blank(x->s, a, automaton_bytes(a, from, ":", 1));
}

/* Properties that no name is, from a state with `have` properties; chain of states up to the limit.
 * Everything that is behind them leads to close. */
static void add_others(struct objects *x, struct automaton *a, const uint32_t *states,
                       uint32_t n_states, uint32_t close)
{
    uint32_t top = n_states - 1; /* this many properties, or more */
    uint32_t *after = arena_alloc(&x->s->b->arena, n_states * sizeof *after);
    if (!after) {
        grammar_fail(x->s->b, STATUS_LIMIT, "the schema takes too much memory");
        return;
    }
    for (uint32_t n = 1; n < n_states; n++)
        after[n] = automaton_state(a);
    for (uint32_t n = 0; n < n_states && a->status == STATUS_OK; n++) {
        bool limit = x->max != SCHEMA_NONE && n >= x->max;
        uint32_t to = n < top ? n + 1 : top;
        if (n > 0)
            automaton_empty(a, schema_space(x->s, a, after[n]), close);
        if (limit || to == 0)
            continue;
        for (int again = 0; again < 2; again++) { /* the first other one, and further ones */
            if (again ? n == 0 : n + 1 < x->min)
                continue;
            uint32_t from = before_key(x, a, again ? after[n] : states[n], n == 0);
            for (uint32_t k = 0; k < x->n_classes; k++) {
                uint32_t key = automaton_state(a);
                automaton_call(a, from, x->classes[k].key, key);
                automaton_call(a, after_key(x, a, key), x->classes[k].value, after[to]);
            }
        }
    }
}

static void build(struct objects *x, struct automaton *a)
{
    struct schema *s = x->s;
    uint32_t open = automaton_bytes(a, 0, "{", 1), close = automaton_state(a);
    uint32_t end = automaton_bytes(a, close, "}", 1), required = 0;
    for (uint32_t i = 0; i < x->n_names; i++)
        required += x->names[i].required;
    if (a->status == STATUS_OK)
        a->final[end] = 1;
    if (x->n_classes && x->min > required + 1) { /* several others could be what makes it valid */
        schema_refuse(s, STATUS_UNSUPPORTED, x->where,
                      "minProperties is more than the required properties and one other");
        return;
    }
    if (x->min > x->n_names + (x->n_classes > 0))
        return;
    uint32_t cap = x->min > 1 ? x->min : 1; /* counted so far */
    if (x->max != SCHEMA_NONE && x->max > cap)
        cap = x->n_classes == 0 && x->max > x->n_names ? x->n_names : x->max;
    if (cap == 0)
        cap = 1;
    uint32_t n_states = cap + 1;
    if ((uint64_t)n_states * (x->n_names + 2) > STATES_MAX) {
        schema_refuse(s, STATUS_LIMIT, x->where,
                      "limits on the number of properties are too large");
        return;
    }
    uint32_t *now = arena_alloc(&s->b->arena, n_states * sizeof *now);
    uint32_t *next = arena_alloc(&s->b->arena, n_states * sizeof *next);
    if (!now || !next) {
        grammar_fail(s->b, STATUS_LIMIT, "the schema takes too much memory");
        return;
    }
    now[0] = open;
    for (uint32_t n = 1; n < n_states; n++)
        now[n] = automaton_state(a);
    for (uint32_t i = 0; i < x->n_names && a->status == STATUS_OK && !schema_failed(s); i++) {
        const struct property *p = &x->names[i];
        for (uint32_t n = 0; n < n_states; n++)
            next[n] = automaton_state(a);
        for (uint32_t n = 0; n < n_states && a->status == STATUS_OK; n++) {
            if (!p->required)
                automaton_empty(a, now[n], next[n]);
            if (!p->rule || (x->max != SCHEMA_NONE && n >= x->max))
                continue;
            uint32_t key =
                schema_quoted(s, a, before_key(x, a, now[n], n == 0), p->name, strlen(p->name));
            automaton_call(a, after_key(x, a, key), p->rule, next[n < cap ? n + 1 : cap]);
        }
        memcpy(now, next, n_states * sizeof *now);
    }
    for (uint32_t n = x->min; n < n_states && a->status == STATUS_OK; n++)
        automaton_empty(a, n ? schema_space(s, a, now[n]) : now[n], close);
    if (x->n_classes && a->status == STATUS_OK)
        add_others(x, a, now, n_states, close);
}

uint32_t schema_object_rule(struct schema *s, const struct schema_conj *c)
{
    struct objects *x = mem_array(1, sizeof *x);
    struct automaton a;
    if (!x) {
        grammar_fail(s->b, STATUS_NOMEM, "%s", status_text(STATUS_NOMEM));
        return 0;
    }
    x->s = s;
    x->c = c;
    x->where = c->n ? c->parts[0].schema : NULL;
    x->path = schema_path(s, x->where);
    automaton_init(&a, &s->b->budget);
    collect_names(x);
    if (!schema_failed(s))
        collect_patterns(x);
    collect_sizes(x);
    if (!schema_failed(s))
        make_names(x);
    if (!schema_failed(s))
        make_classes(x);
    if (!schema_failed(s))
        build(x, &a);
    uint32_t rule = 0;
    if (schema_failed(s))
        automaton_fini(&a);
    else
        rule = schema_rule(s, x->path, &a);
    for (uint32_t k = 0; k < x->n_patterns; k++)
        automaton_fini(&x->patterns[k].a);
    free(x);
    return rule;
}
