/* schema_array: arrays. Positions with a schema of their own (prefixItems, or a list of items) come
 * one by one; the rest is a loop, counted when its number is limited. `contains` adds a second
 * number to each position: how many items have been chosen to match it. */
#include <string.h>

#include "common/text/schema_internal.h"

#define PREFIX_MAX 2000
#define GRID_MAX   20000 /* positions × matches */

struct arrays {
    struct schema *s;
    const struct schema_conj *c;
    const char *name;
    const json_t *where;
    uint32_t prefix;   /* positions with their own schemas */
    uint32_t min, max; /* max: SCHEMA_NONE for no limit */
    const json_t *contains;
    uint32_t least, most; /* matches */
};

static const json_t *prefix_of(const json_t *schema)
{
    const json_t *items = json_object_get(schema, "items");
    return json_is_array(items) ? items : json_object_get(schema, "prefixItems");
}

/* The schema of a part for one position; NULL: anything. */
static const json_t *item_schema(const json_t *schema, uint32_t at)
{
    const json_t *prefix = prefix_of(schema), *items = json_object_get(schema, "items");
    if (at < json_array_size(prefix))
        return json_array_get(prefix, at);
    return json_is_array(items) ? json_object_get(schema, "additionalItems") : items;
}

/* What holds for the item at a position (prefix: for all behind it). False on failure; *never: no
 * item may be there. */
static bool item_conj(struct arrays *x, uint32_t at, struct schema_conj *out, bool *never)
{
    *never = false;
    for (uint32_t i = 0; i < x->c->n; i++) {
        const json_t *v = item_schema(x->c->parts[i].schema, at);
        if (json_is_false(v))
            *never = true;
        if (v && !schema_conj_add(x->s, out, v))
            return false;
    }
    return true;
}

static uint32_t item_rule(struct arrays *x, uint32_t at, const json_t *also)
{
    struct schema_conj c = {0};
    bool never;
    if (!item_conj(x, at, &c, &never) || (also && !schema_conj_add(x->s, &c, also)))
        return 0;
    return schema_value(x->s, &c);
}

static void collect(struct arrays *x)
{
    struct schema *s = x->s;
    x->max = x->most = SCHEMA_NONE;
    for (uint32_t i = 0; i < x->c->n; i++) {
        const json_t *schema = x->c->parts[i].schema, *v;
        uint32_t n = schema_size(s, schema, "minItems");
        if (n != SCHEMA_NONE && n > x->min)
            x->min = n;
        n = schema_size(s, schema, "maxItems");
        if (n < x->max)
            x->max = n;
        n = (uint32_t)json_array_size(prefix_of(schema));
        if (n > x->prefix)
            x->prefix = n;
        v = json_object_get(schema, "contains");
        if (v && x->contains && v != x->contains)
            schema_refuse(s, STATUS_UNSUPPORTED, schema,
                          "two contains for one array are not supported");
        if (v) {
            x->contains = v;
            x->least = schema_size(s, schema, "minContains");
            x->least = x->least == SCHEMA_NONE ? 1 : x->least;
            x->most = schema_size(s, schema, "maxContains");
        }
    }
    if (x->prefix > PREFIX_MAX)
        schema_refuse(s, STATUS_LIMIT, x->where, "more than %d items with schemas of their own",
                      PREFIX_MAX);
    for (uint32_t at = 0; at <= x->prefix && at < x->max && !schema_failed(s); at++) {
        struct schema_conj c = {0};
        bool never;
        if (item_conj(x, at, &c, &never) && never)
            x->max = at;
    }
    if (x->least == 0 && x->most == SCHEMA_NONE)
        x->contains = NULL;
    for (uint32_t i = 0; i < x->c->n && x->max > 1; i++) {
        if (json_is_true(json_object_get(x->c->parts[i].schema, "uniqueItems")))
            schema_refuse(s, STATUS_UNSUPPORTED, x->c->parts[i].schema,
                          "uniqueItems is not supported");
    }
}

/* What comes before the item at a position. */
static uint32_t before_item(struct arrays *x, struct automaton *a, uint32_t from, uint32_t at)
{
    if (at > 0)
        from = automaton_bytes(a, from, ",", 1);
    return schema_space(x->s, a, from);
}

/* min to max further items behind position `at`; at > 0. */
static uint32_t rest(struct arrays *x, struct automaton *a, uint32_t from, uint32_t min,
                     uint32_t max)
{
    struct schema *s = x->s;
    uint32_t item = item_rule(x, x->prefix, NULL);
    if (!item)
        return from;
    if (max == SCHEMA_NONE && min <= 1) {
        uint32_t end = automaton_state(a), back = automaton_state(a);
        automaton_call(a, before_item(x, a, from, 1), item, back);
        automaton_call(a, before_item(x, a, back, 1), item, back);
        automaton_empty(a, back, end);
        if (min == 0)
            automaton_empty(a, from, end);
        return end;
    }
    struct automaton body;
    automaton_init(&body, &s->b->budget);
    uint32_t end = automaton_state(&body);
    automaton_call(&body, before_item(x, &body, 0, 1), item, end);
    if (body.status == STATUS_OK)
        body.final[end] = 1;
    uint32_t rule = schema_rule(s, x->name, &body);
    rule = rule ? grammar_rule_loop(s->b, x->name, rule, min,
                                    max == SCHEMA_NONE ? GRAMMAR_NO_MAX : max)
                : 0;
    uint32_t to = automaton_state(a);
    if (rule)
        automaton_call(a, from, rule, to);
    return to;
}

/* Without contains. Returns false on failure. */
static void plain_items(struct arrays *x, struct automaton *a, uint32_t from, uint32_t close)
{
    uint32_t at = 0;
    for (; at < x->prefix && at < x->max && !schema_failed(x->s); at++) {
        if (at >= x->min)
            automaton_empty(a, at ? schema_space(x->s, a, from) : from, close);
        uint32_t to = automaton_state(a), item = item_rule(x, at, NULL);
        if (item)
            automaton_call(a, before_item(x, a, from, at), item, to);
        from = to;
    }
    if (at < x->max && at == 0 && !schema_failed(x->s)) { /* the first has no comma */
        if (x->min == 0)
            automaton_empty(a, from, close);
        uint32_t to = automaton_state(a), item = item_rule(x, at++, NULL);
        if (item)
            automaton_call(a, before_item(x, a, from, 0), item, to);
        from = to;
    }
    if (at < x->max && !schema_failed(x->s))
        from = rest(x, a, from, x->min > at ? x->min - at : 0,
                    x->max == SCHEMA_NONE ? SCHEMA_NONE : x->max - at);
    if (x->min <= x->max)
        automaton_empty(a, at ? schema_space(x->s, a, from) : from, close);
}

/* With contains: state (position, matches), both up to where nothing changes any more. */
static void grid_items(struct arrays *x, struct automaton *a, uint32_t from, uint32_t close)
{
    struct schema *s = x->s;
    uint32_t last = x->prefix > x->min ? x->prefix : x->min;
    if (x->max != SCHEMA_NONE)
        last = x->max;
    if (last == 0)
        last = 1; /* a comma or none */
    uint32_t wanted = x->most == SCHEMA_NONE ? x->least : x->most;
    if ((uint64_t)(last + 1) * (wanted + 1) > GRID_MAX) {
        schema_refuse(s, STATUS_LIMIT, x->where, "contains in an array as long as this");
        return;
    }
    if (x->most != SCHEMA_NONE && x->least > x->most)
        return;
    const json_t *apart = x->most == SCHEMA_NONE ? NULL : schema_not(s, x->contains);
    uint32_t base = a->n;
    for (uint32_t i = 0; i < (last + 1) * (wanted + 1); i++)
        automaton_state(a);
    automaton_empty(a, from, base);
    for (uint32_t at = 0; at <= last && !schema_failed(s); at++) {
        uint32_t of = at < x->prefix ? at : x->prefix;
        uint32_t to = at < last ? at + 1 : at;
        bool more = x->max == SCHEMA_NONE || at < x->max;
        uint32_t match = more ? item_rule(x, of, x->contains) : 0;
        uint32_t other = more ? item_rule(x, of, apart) : 0;
        for (uint32_t k = 0; k <= wanted && a->status == STATUS_OK; k++) {
            uint32_t here = base + at * (wanted + 1) + k;
            if (at >= x->min && k >= x->least)
                automaton_empty(a, at ? schema_space(s, a, here) : here, close);
            if (!more || !match || !other)
                continue;
            uint32_t item = before_item(x, a, here, at);
            automaton_call(a, item, other, base + to * (wanted + 1) + k);
            if (k < wanted)
                automaton_call(a, item, match, base + to * (wanted + 1) + k + 1);
        }
    }
}

uint32_t schema_array_rule(struct schema *s, const struct schema_conj *c)
{
    struct arrays x = {.s = s, .c = c, .where = c->n ? c->parts[0].schema : NULL};
    struct automaton a;
    x.name = schema_path(s, x.where);
    collect(&x);
    if (schema_failed(s))
        return 0;
    automaton_init(&a, &s->b->budget);
    uint32_t open = automaton_bytes(&a, 0, "[", 1), close = automaton_state(&a);
    uint32_t end = automaton_bytes(&a, close, "]", 1);
    if (x.contains)
        grid_items(&x, &a, open, close);
    else
        plain_items(&x, &a, open, close);
    if (a.status == STATUS_OK)
        a.final[end] = 1;
    if (schema_failed(s)) {
        automaton_fini(&a);
        return 0;
    }
    return schema_rule(s, x.name, &a);
}
