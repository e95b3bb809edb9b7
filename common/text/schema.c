/* schema: JSON Schema to rules.
 *
 * What holds for the value at one place is a set of schemas (a "conj"): one to begin with, more by
 * allOf, by a reference with siblings, by several sources for one property. The set is the key
 * under which its rule is remembered, so recursive schemas end: there are finitely many sets. Rules
 * are numbered when they are first asked for and made later, one after the other: no recursion.
 *
 * A set is made a rule in this order:
 *   1. references and allOf are followed; a reference that leads back to itself without a value in
 *      between is refused;
 *   2. enum and const: their values, those that satisfy everything else (schema_check.c);
 *   3. anyOf is a choice of rules, each for the set with one branch put in its place; not, if,
 *      oneOf and dependent… are first said by simpler keywords (schema_rewrite.c);
 *   4. what is left are plain keywords, one rule for each type that is allowed.
 *
 * Keywords that say nothing about what is valid (title, default, …), and unknown ones, are ignored
 * as the standard has it. Those that do and are not honoured are refused by name. */
#include <stdlib.h>
#include <string.h>

#include "common/text/schema_internal.h"

#define PARTS_MAX    200
#define BRANCHES_MAX 1000

bool schema_failed(const struct schema *s)
{
    return s->b->status != STATUS_OK;
}

static bool add_part(struct schema *s, struct schema_conj *c, struct schema_part part)
{
    if (c->n == c->cap) {
        uint32_t cap = c->cap ? c->cap * 2 : 4;
        struct schema_part *p =
            cap > PARTS_MAX * 2 ? NULL : arena_alloc(&s->b->arena, cap * sizeof *p);
        if (!p) {
            schema_refuse(s, STATUS_LIMIT, part.schema, "too many schemas hold for one value");
            return false;
        }
        if (c->n)
            memcpy(p, c->parts, c->n * sizeof *p);
        c->parts = p;
        c->cap = cap;
    }
    c->parts[c->n++] = part;
    return true;
}

bool schema_conj_add(struct schema *s, struct schema_conj *c, const json_t *schema)
{
    return add_part(s, c, (struct schema_part){schema, 0, SCHEMA_NONE});
}

/* ---- keywords that are not honoured ---- */

static void check_keywords(struct schema *s, const json_t *schema)
{
    static const char *const refused[] = {"unevaluatedItems", "unevaluatedProperties",
                                          "$dynamicRef",      "$recursiveRef",
                                          "$vocabulary",      "disallow",
                                          "divisibleBy"};
    static const char *const lists[] = {"allOf", "anyOf", "oneOf", "prefixItems"};
    static const char *const objects[] = {"properties", "patternProperties", "dependentSchemas",
                                          "dependentRequired", "dependencies"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (json_object_get(schema, refused[i]))
            schema_refuse(s, STATUS_UNSUPPORTED, schema, "%s is not supported", refused[i]);
    }
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        const json_t *v = json_object_get(schema, lists[i]);
        if (v && (!json_is_array(v) || json_array_size(v) == 0))
            schema_refuse(s, STATUS_FORMAT, schema, "%s is not a list with at least one schema",
                          lists[i]);
    }
    for (size_t i = 0; i < sizeof objects / sizeof *objects; i++) {
        const json_t *v = json_object_get(schema, objects[i]);
        if (v && !json_is_object(v))
            schema_refuse(s, STATUS_FORMAT, schema, "%s is not an object", objects[i]);
    }
    const json_t *required = json_object_get(schema, "required"), *name;
    size_t k;
    if (required && !json_is_array(required))
        schema_refuse(s, STATUS_FORMAT, schema, "required is not a list of names");
    json_array_foreach(required, k, name)
    {
        if (!json_is_string(name))
            schema_refuse(s, STATUS_FORMAT, schema, "required is not a list of names");
    }
    const json_t *enumeration = json_object_get(schema, "enum");
    if (enumeration && (!json_is_array(enumeration) || json_array_size(enumeration) == 0))
        schema_refuse(s, STATUS_FORMAT, schema, "enum is not a list with at least one value");
    const json_t *unique = json_object_get(schema, "uniqueItems");
    if (unique && !json_is_boolean(unique))
        schema_refuse(s, STATUS_FORMAT, schema, "uniqueItems is not true or false");
    schema_types(s, schema);
}

void schema_check_keywords(struct schema *s, const json_t *schema)
{
    struct schema_path *p = NULL;
    HASH_FIND_PTR(s->paths, &schema, p);
    if (p && p->checked)
        return;
    if (p)
        p->checked = true;
    check_keywords(s, schema);
}

uint32_t schema_type_of(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_NULL:
        return SCHEMA_NULL;
    case JSON_TRUE:
    case JSON_FALSE:
        return SCHEMA_BOOL;
    case JSON_INTEGER:
        return SCHEMA_INT;
    case JSON_REAL: {
        double d = json_real_value(v);
        return d == __builtin_floor(d) ? SCHEMA_INT : SCHEMA_FRACTION;
    }
    case JSON_STRING:
        return SCHEMA_STRING;
    case JSON_ARRAY:
        return SCHEMA_ARRAY;
    case JSON_OBJECT:
        return SCHEMA_OBJECT;
    }
    return 0;
}

static uint32_t type_by_name(struct schema *s, const json_t *schema, const json_t *name)
{
    static const struct {
        const char *name;
        uint32_t type;
    } types[] = {{"null", SCHEMA_NULL},     {"boolean", SCHEMA_BOOL},
                 {"integer", SCHEMA_INT},   {"number", SCHEMA_NUMBER},
                 {"string", SCHEMA_STRING}, {"array", SCHEMA_ARRAY},
                 {"object", SCHEMA_OBJECT}, {SCHEMA_FRACTION_NAME, SCHEMA_FRACTION}};
    const char *text = json_string_value(name);
    for (size_t i = 0; text && i < sizeof types / sizeof *types; i++) {
        if (strcmp(text, types[i].name) == 0)
            return types[i].type;
    }
    if (text)
        schema_refuse(s, STATUS_FORMAT, schema, "unknown type \"%.60s\"", text);
    else
        schema_refuse(s, STATUS_FORMAT, schema, "a type is not a string");
    return 0;
}

uint32_t schema_types(struct schema *s, const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type");
    uint32_t types = 0;
    if (!type)
        return SCHEMA_ANY;
    if (json_is_array(type)) {
        size_t i;
        const json_t *v;
        json_array_foreach(type, i, v) types |= type_by_name(s, schema, v);
        if (json_array_size(type) == 0)
            schema_refuse(s, STATUS_FORMAT, schema, "type is an empty list");
    } else {
        types = type_by_name(s, schema, type);
    }
    if (json_is_true(json_object_get(schema, "nullable")))
        types |= SCHEMA_NULL;
    return types;
}

uint32_t schema_size(struct schema *s, const json_t *schema, const char *key)
{
    const json_t *v = json_object_get(schema, key);
    double d = json_number_value(v);
    if (!v)
        return SCHEMA_NONE;
    if (!json_is_number(v) || d < 0 || d != __builtin_floor(d)) {
        schema_refuse(s, STATUS_FORMAT, schema, "%s is not a whole number from 0 on", key);
        return SCHEMA_NONE;
    }
    return d < 4e9 ? (uint32_t)d : SCHEMA_NONE - 1;
}

/* ---- references and allOf ---- */

/* Adds a part that `parent` asks for, unless it holds already. */
static void ask_for(struct schema *s, struct schema_conj *c, const json_t *schema, uint32_t parent)
{
    /* In draft-7 a reference hides what stands beside it: its target holds instead. */
    for (int hops = 0; s->draft7 && !schema_failed(s) && json_object_get(schema, "$ref"); hops++) {
        const json_t *to = schema_resolve(s, schema, json_object_get(schema, "$ref"));
        if (hops > 100)
            schema_refuse(s, STATUS_UNSUPPORTED, schema, "it refers to itself");
        schema = to;
    }
    if (schema_failed(s) || json_is_true(schema))
        return;
    for (uint32_t i = parent; i != SCHEMA_NONE; i = c->parts[i].parent) {
        if (c->parts[i].schema == schema) {
            schema_refuse(s, STATUS_UNSUPPORTED, schema, "it refers to itself");
            return;
        }
    }
    for (uint32_t i = 0; i < c->n; i++) {
        if (c->parts[i].schema == schema)
            return;
    }
    add_part(s, c, (struct schema_part){schema, 0, parent});
}

static void expand_part(struct schema *s, struct schema_conj *c, uint32_t i)
{
    const json_t *schema = c->parts[i].schema, *ref, *v;
    size_t k;
    c->parts[i].done |= SCHEMA_DID_EXPAND;
    if (!json_is_object(schema)) {
        grammar_fail(s->b, STATUS_FORMAT, "%s: a schema is neither an object nor true or false",
                     c->parts[i].parent == SCHEMA_NONE
                         ? "#"
                         : schema_path(s, c->parts[c->parts[i].parent].schema));
        return;
    }
    ref = json_object_get(schema, "$ref");
    if (ref) {
        const json_t *to = schema_resolve(s, schema, ref);
        if (to)
            ask_for(s, c, to, i);
    }
    schema_check_keywords(s, schema);
    json_array_foreach(json_object_get(schema, "allOf"), k, v) ask_for(s, c, v, i);
}

bool schema_expand(struct schema *s, const struct schema_conj *c, struct schema_conj *out,
                   bool *never)
{
    *never = false;
    for (uint32_t i = 0; i < c->n; i++) {
        const struct schema_part *p = &c->parts[i];
        if (p->done & SCHEMA_DID_EXPAND)
            add_part(s, out, *p);
        else
            ask_for(s, out, p->schema, p->parent);
    }
    for (uint32_t i = 0; i < out->n && !schema_failed(s); i++) {
        if (json_is_false(out->parts[i].schema))
            *never = true;
        else if (!(out->parts[i].done & SCHEMA_DID_EXPAND))
            expand_part(s, out, i);
    }
    return !schema_failed(s);
}

/* ---- rules that many need ---- */

uint32_t schema_rule(struct schema *s, const char *name, struct automaton *a)
{
    uint32_t rule = grammar_rule_new(s->b, name);
    if (!rule) {
        automaton_fini(a);
        return 0;
    }
    return grammar_rule_set(s->b, rule, a) == STATUS_OK ? rule : 0;
}

static uint32_t space_rule(struct schema *s)
{
    if (s->space)
        return s->space;
    struct automaton a;
    automaton_init(&a, &s->b->budget);
    uint32_t end = automaton_state(&a), at = automaton_state(&a);
    automaton_edge(&a, 0, ' ', ' ', end);
    automaton_edge(&a, 0, '\n', '\n', at);
    for (int i = 0; i < 33 && a.status == STATUS_OK; i++) {
        a.final[at] = 1;
        if (i == 32)
            break;
        uint32_t next = automaton_state(&a);
        automaton_edge(&a, at, ' ', ' ', next);
        automaton_edge(&a, at, '\t', '\t', next);
        at = next;
    }
    if (a.status == STATUS_OK)
        a.final[0] = a.final[end] = 1;
    return s->space = schema_rule(s, "blanks", &a);
}

uint32_t schema_space(struct schema *s, struct automaton *a, uint32_t from)
{
    if (s->b->options.compact)
        return from;
    uint32_t to = automaton_state(a), rule = space_rule(s);
    if (rule)
        automaton_call(a, from, rule, to);
    return to;
}

uint32_t schema_blank(struct schema *s, struct automaton *a, uint32_t from)
{
    if (s->b->options.compact)
        return from;
    uint32_t to = automaton_state(a);
    automaton_empty(a, from, to);
    automaton_edge(a, from, ' ', ' ', to);
    return to;
}

/* ---- literals ---- */

uint32_t schema_quoted(struct schema *s, struct automaton *a, uint32_t from, const char *p,
                       size_t n)
{
    json_t *v = json_stringn_nocheck(p, n);
    char *text = v ? json_dumps(v, JSON_ENCODE_ANY) : NULL;
    if (!text)
        grammar_fail(s->b, STATUS_NOMEM, "%s", status_text(STATUS_NOMEM));
    else
        from = automaton_bytes(a, from, text, strlen(text));
    free(text);
    json_decref(v);
    return from;
}

static uint32_t list_literal(struct schema *s, struct automaton *a, uint32_t from, const json_t *v)
{
    bool object = json_is_object(v), any = false;
    from = automaton_bytes(a, from, object ? "{" : "[", 1);
    if (object ? json_object_size(v) : json_array_size(v)) {
        size_t i;
        const char *key;
        json_t *x;
        from = schema_space(s, a, from);
        json_array_foreach(v, i, x)
        {
            if (any)
                from = schema_space(s, a, automaton_bytes(a, from, ",", 1));
            any = true;
            from = schema_literal(s, a, from, x);
        }
        json_object_foreach((json_t *)v, key, x)
        {
            if (any)
                from = schema_space(s, a, automaton_bytes(a, from, ",", 1));
            any = true;
            from = schema_quoted(s, a, from, key, strlen(key));
            from = schema_blank(s, a, automaton_bytes(a, from, ":", 1));
            from = schema_literal(s, a, from, x);
        }
        from = schema_space(s, a, from);
    }
    return automaton_bytes(a, from, object ? "}" : "]", 1);
}

uint32_t schema_literal(struct schema *s, struct automaton *a, uint32_t from, const json_t *v)
{
    char text[SCHEMA_NUMBER_TEXT];
    if (schema_failed(s))
        return from;
    if (++s->depth > SCHEMA_DEPTH) {
        grammar_fail(s->b, STATUS_LIMIT, "a value of enum or const is nested too deep");
        return from;
    }
    switch (json_typeof(v)) {
    case JSON_NULL:
        from = automaton_bytes(a, from, "null", 4);
        break;
    case JSON_TRUE:
        from = automaton_bytes(a, from, "true", 4);
        break;
    case JSON_FALSE:
        from = automaton_bytes(a, from, "false", 5);
        break;
    case JSON_STRING:
        from = schema_quoted(s, a, from, json_string_value(v), json_string_length(v));
        break;
    case JSON_INTEGER:
    case JSON_REAL:
        schema_number_text(v, text);
        from = automaton_bytes(a, from, text, strlen(text));
        break;
    case JSON_ARRAY:
    case JSON_OBJECT:
        from = list_literal(s, a, from, v);
        break;
    }
    s->depth--;
    return from;
}

/* ---- one place in a document ---- */

/* Values by enum and const; UINT32_MAX: there is neither. */
static uint32_t value_listed(struct schema *s, const struct schema_conj *c, const char *name)
{
    const json_t *only = NULL, *list = NULL;
    for (uint32_t i = 0; i < c->n && !only && !list; i++) {
        only = json_object_get(c->parts[i].schema, "const");
        list = json_object_get(c->parts[i].schema, "enum");
    }
    if (!only && !list)
        return UINT32_MAX;
    struct automaton a;
    automaton_init(&a, &s->b->budget);
    size_t n = only ? 1 : json_array_size(list);
    for (size_t i = 0; i < n && !schema_failed(s); i++) {
        const json_t *v = only ? only : json_array_get(list, i);
        bool good = true;
        for (uint32_t k = 0; k < c->n && good; k++)
            good = schema_check(s, c->parts[k].schema, v);
        if (!good || schema_failed(s))
            continue;
        uint32_t end = schema_literal(s, &a, 0, v);
        if (a.status == STATUS_OK)
            a.final[end] = 1;
    }
    return schema_rule(s, name, &a);
}

static uint32_t simple_rule(struct schema *s, const char *name, uint32_t types)
{
    struct automaton a;
    automaton_init(&a, &s->b->budget);
    uint32_t end = automaton_state(&a);
    if (types & SCHEMA_NULL)
        automaton_empty(&a, automaton_bytes(&a, 0, "null", 4), end);
    if (types & SCHEMA_BOOL) {
        automaton_empty(&a, automaton_bytes(&a, 0, "true", 4), end);
        automaton_empty(&a, automaton_bytes(&a, 0, "false", 5), end);
    }
    if (a.status == STATUS_OK)
        a.final[end] = 1;
    return schema_rule(s, name, &a);
}

static uint32_t value_by_type(struct schema *s, const struct schema_conj *c, const char *name)
{
    uint32_t types = SCHEMA_ANY, rules[5], n = 0;
    for (uint32_t i = 0; i < c->n; i++)
        types &= schema_types(s, c->parts[i].schema);
    for (uint32_t i = 0; i < c->n; i++) { /* values that are excluded one by one */
        const json_t *v;
        size_t k;
        json_array_foreach(json_object_get(c->parts[i].schema, SCHEMA_NOT_ENUM), k, v)
        {
            if (json_is_null(v))
                types &= ~(uint32_t)SCHEMA_NULL;
            else if ((json_is_boolean(v) && types & SCHEMA_BOOL) ||
                     (json_is_array(v) && types & SCHEMA_ARRAY) ||
                     (json_is_object(v) && types & SCHEMA_OBJECT))
                schema_refuse(s, STATUS_UNSUPPORTED, c->parts[i].schema,
                              "excluding this value is not supported");
        }
    }
    if (types & (SCHEMA_NULL | SCHEMA_BOOL))
        rules[n++] = simple_rule(s, name, types);
    if (types & SCHEMA_NUMBER && !schema_failed(s))
        rules[n++] = schema_number_rule(s, c, types & SCHEMA_NUMBER);
    if (types & SCHEMA_STRING && !schema_failed(s))
        rules[n++] = schema_string_rule(s, c);
    if (types & SCHEMA_ARRAY && !schema_failed(s))
        rules[n++] = schema_array_rule(s, c);
    if (types & SCHEMA_OBJECT && !schema_failed(s))
        rules[n++] = schema_object_rule(s, c);
    if (n == 1)
        return schema_failed(s) ? 0 : rules[0];
    struct automaton a;
    automaton_init(&a, &s->b->budget);
    uint32_t end = automaton_state(&a);
    for (uint32_t i = 0; i < n && !schema_failed(s); i++)
        automaton_call(&a, 0, rules[i], end);
    if (a.status == STATUS_OK)
        a.final[end] = 1;
    return schema_rule(s, name, &a);
}

/* The parts, one keyword of `part` dealt with, and what it asks for instead. */
static uint32_t value_with(struct schema *s, const struct schema_conj *c, uint32_t part,
                           uint32_t did, const json_t *more)
{
    struct schema_conj with = {0};
    for (uint32_t k = 0; k < c->n; k++) {
        struct schema_part p = c->parts[k];
        p.done |= k == part ? did : 0;
        if (!add_part(s, &with, p))
            return 0;
    }
    return add_part(s, &with, (struct schema_part){more, 0, part}) ? schema_value(s, &with) : 0;
}

/* A choice of rules, by the branches of an anyOf. */
static void value_by_branches(struct schema *s, const struct schema_conj *c, uint32_t part,
                              const json_t *branches, uint32_t did, struct automaton *a)
{
    uint32_t end = automaton_state(a);
    size_t i;
    const json_t *v;
    if (json_array_size(branches) > BRANCHES_MAX)
        schema_refuse(s, STATUS_LIMIT, c->parts[part].schema, "more than %d alternatives",
                      BRANCHES_MAX);
    json_array_foreach(branches, i, v)
    {
        uint32_t rule = value_with(s, c, part, did, v);
        if (!rule)
            return;
        automaton_call(a, 0, rule, end);
    }
    if (a->status == STATUS_OK)
        a->final[end] = 1;
}

/* Makes the rule `rule` for the parts. */
static void build_value(struct schema *s, const struct schema_conj *given, uint32_t rule)
{
    struct schema_conj c = {0};
    struct automaton a;
    bool never;
    if (!schema_expand(s, given, &c, &never))
        return;
    const char *name = s->b->rules[rule].name;
    automaton_init(&a, &s->b->budget);
    uint32_t end = automaton_state(&a), part = 0, did = 0, as = UINT32_MAX;
    if (!never)
        as = value_listed(s, &c, name);
    if (!never && as == UINT32_MAX && !schema_failed(s)) {
        const json_t *more = schema_rewrite(s, &c, &part, &did);
        if (more && json_is_array(more)) {
            value_by_branches(s, &c, part, more, did, &a);
        } else if (more) {
            as = value_with(s, &c, part, did, more);
        } else if (!schema_failed(s)) {
            as = value_by_type(s, &c, name);
        }
    }
    if (as != UINT32_MAX && as && !schema_failed(s)) {
        automaton_call(&a, 0, as, end);
        if (a.status == STATUS_OK)
            a.final[end] = 1;
    }
    int rc = grammar_rule_set(s->b, rule, &a);
    (void)rc; /* it is in the builder */
}

static int part_order(const void *x, const void *y)
{
    const struct schema_part *a = x, *b = y;
    if (a->schema != b->schema)
        return a->schema < b->schema ? -1 : 1;
    return a->done < b->done ? -1 : a->done > b->done;
}

uint32_t schema_value(struct schema *s, const struct schema_conj *c)
{
    struct schema_memo *m, *found = NULL;
    size_t n = c->n * sizeof *c->parts;
    if (schema_failed(s))
        return 0;
    m = arena_alloc(&s->b->arena, sizeof *m + n); /* zeroed */
    struct schema_part *copy = m ? arena_alloc(&s->b->arena, n + 1) : NULL;
    if (!copy) {
        grammar_fail(s->b, STATUS_LIMIT, "the schema takes too much memory");
        return 0;
    }
    for (uint32_t i = 0; i < c->n; i++) {
        m->key[i].schema = c->parts[i].schema;
        m->key[i].done = c->parts[i].done;
    }
    /* The key is a set; the parts themselves stay in order, which is that of the properties. */
    if (c->n > 1)
        qsort(m->key, c->n, sizeof *m->key, part_order);
    HASH_FIND(hh, s->memo, m->key, (unsigned)n, found);
    if (found)
        return found->rule;
    if (n)
        memcpy(copy, c->parts, n);
    m->conj = (struct schema_conj){copy, c->n, c->n};
    m->rule = grammar_rule_new(s->b, c->n ? schema_path(s, c->parts[0].schema) : "#");
    HASH_ADD_KEYPTR(hh, s->memo, m->key, (unsigned)n, m);
    if (!m->hh.tbl)
        grammar_fail(s->b, STATUS_NOMEM, "%s", status_text(STATUS_NOMEM));
    *s->todo_last = m;
    s->todo_last = &m->todo;
    return schema_failed(s) ? 0 : m->rule;
}

/* ---- the entry ---- */

static void find_dialect(struct schema *s)
{
    const json_t *v = json_object_get(s->root, "$schema");
    const char *uri = json_string_value(v);
    s->draft7 = s->b->options.dialect == GRAMMAR_DRAFT_7;
    if (!v)
        return;
    if (!uri)
        grammar_fail(s->b, STATUS_FORMAT, "#: $schema is not a string");
    else if (strstr(uri, "json-schema.org/draft-04/") || strstr(uri, "json-schema.org/draft-06/") ||
             strstr(uri, "json-schema.org/draft-07/"))
        s->draft7 = true;
    else if (strstr(uri, "json-schema.org/draft/2019-09/") ||
             strstr(uri, "json-schema.org/draft/2020-12/") || strstr(uri, "json-schema.org/schema"))
        s->draft7 = false;
    else
        grammar_fail(s->b, STATUS_UNSUPPORTED, "#: unknown $schema \"%.100s\"", uri);
}

static void schema_fini(struct schema *s)
{
    struct schema_made *m, *next;
    struct schema_pattern *p, *after;
    HASH_CLEAR(hh, s->paths);
    HASH_CLEAR(hh, s->memo);
    HASH_ITER (hh, s->made, m, next) {
        HASH_DELETE(hh, s->made, m);
        json_decref(m->made);
        free(m);
    }
    HASH_ITER (hh, s->patterns, p, after) {
        HASH_DELETE(hh, s->patterns, p);
        automaton_fini(&p->a);
        free(p);
    }
    json_decref(s->root);
}

static uint32_t build_root(struct grammar_builder *b, json_t *root)
{
    struct schema s = {.b = b, .root = root};
    uint32_t rule = 0;
    s.todo_last = &s.todo;
    find_dialect(&s);
    if (b->status == STATUS_OK && schema_scan(&s) == STATUS_OK) {
        struct schema_conj c = {0};
        if (schema_conj_add(&s, &c, root))
            rule = schema_value(&s, &c);
        for (struct schema_memo *m = s.todo; m && b->status == STATUS_OK; m = m->todo)
            build_value(&s, &m->conj, m->rule);
    }
    schema_fini(&s);
    return b->status == STATUS_OK ? rule : 0;
}

uint32_t schema_build(struct grammar_builder *b, const char *source, size_t n)
{
    json_error_t e;
    json_t *root = json_loadb(source, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
    if (!root && json_error_code(&e) == json_error_numeric_overflow)
        root =
            json_loadb(source, n, JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &e);
    if (!root) {
        grammar_fail(b, STATUS_FORMAT, "the schema is not JSON: %s", e.text);
        return 0;
    }
    if (!json_is_object(root) && !json_is_boolean(root)) {
        grammar_fail(b, STATUS_FORMAT, "#: a schema is an object, or true or false");
        json_decref(root);
        return 0;
    }
    return build_root(b, root);
}

uint32_t schema_build_any(struct grammar_builder *b)
{
    json_t *root = json_pack("{s:s}", "type", "object");
    if (!root) {
        grammar_fail(b, STATUS_NOMEM, "%s", status_text(STATUS_NOMEM));
        return 0;
    }
    return build_root(b, root);
}
