/* schema_rewrite: keywords that are said by simpler ones.
 *
 *   not S                    the keywords of S turned round, one alternative for each
 *   if A then B else C       anyOf [A and B], [not A, and C]
 *   oneOf [A, B, …]          anyOf; branches that may overlap also exclude the others
 *   dependentRequired, dependentSchemas, dependencies
 *                            anyOf [the property is absent], [it is there, and …]
 *
 * What is made is remembered by the schema that it was made of, so that the same place gives the
 * same schema again, and the set of schemas stays finite. Sub-schemas are shared, not copied. A
 * keyword that cannot be turned round is refused. */
#include <stdlib.h>
#include <string.h>

#include "common/text/schema_internal.h"

enum { MADE_NOT = 1, MADE_IF, MADE_DEPENDENT, MADE_ONE, MADE_WRAPPED };

static json_t *made_find(struct schema *s, const json_t *schema, uint64_t what)
{
    struct schema_made_key key;
    struct schema_made *m = NULL;
    memset(&key, 0, sizeof key);
    key.schema = schema;
    key.what = what;
    HASH_FIND(hh, s->made, &key, sizeof key, m);
    return m ? m->made : NULL;
}

/* Takes made. */
static json_t *made_keep(struct schema *s, const json_t *schema, uint64_t what, json_t *made)
{
    struct schema_made *m = mem_array(1, sizeof *m);
    if (!made || !m) {
        json_decref(made);
        free(m);
        grammar_fail(s->b, STATUS_NOMEM, "%s", status_text(STATUS_NOMEM));
        return NULL;
    }
    m->key.schema = schema;
    m->key.what = what;
    m->made = made;
    HASH_ADD(hh, s->made, key, sizeof m->key, m);
    if (!m->hh.tbl) {
        json_decref(made);
        free(m);
        grammar_fail(s->b, STATUS_NOMEM, "%s", status_text(STATUS_NOMEM));
        return NULL;
    }
    return made;
}

/* A schema of ours, called like the one it comes from. Takes v; may return NULL. */
static json_t *ours(struct schema *s, const json_t *like, json_t *v)
{
    if (v)
        schema_note(s, v, like);
    else
        grammar_fail(s->b, STATUS_NOMEM, "%s", status_text(STATUS_NOMEM));
    return v;
}

/* {key: v}; shares v. */
static json_t *wrap(struct schema *s, const json_t *like, const char *key, const json_t *v)
{
    return ours(s, like, json_pack("{s:O}", key, (json_t *)v));
}

static json_t *not_of(struct schema *s, const json_t *like, const json_t *v)
{
    return wrap(s, like, "not", v);
}

/* {"type": type, key: value}; takes value. */
static json_t *typed(struct schema *s, const json_t *like, const char *type, const char *key,
                     json_t *value)
{
    return ours(s, like, json_pack("{s:s,s:o}", "type", type, key, value));
}

/* An object that has this property, which satisfies v (taken). */
static json_t *with_property(struct schema *s, const json_t *like, const char *name, json_t *v)
{
    return ours(s, like,
                json_pack("{s:s,s:[s],s:{s:o}}", "type", "object", "required", name, "properties",
                          name, v));
}

static json_t *without_property(struct schema *s, const json_t *like, const char *name)
{
    return ours(s, like, json_pack("{s:{s:b}}", "properties", name, 0));
}

/* ---- not ---- */

static json_t *not_type(struct schema *s, const json_t *schema)
{
    static const struct {
        uint32_t type;
        const char *name;
    } types[] = {{SCHEMA_NULL, "null"},     {SCHEMA_BOOL, "boolean"},
                 {SCHEMA_INT, "integer"},   {SCHEMA_FRACTION, SCHEMA_FRACTION_NAME},
                 {SCHEMA_STRING, "string"}, {SCHEMA_ARRAY, "array"},
                 {SCHEMA_OBJECT, "object"}};
    uint32_t have = schema_types(s, schema);
    json_t *list = json_array();
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (!(have & types[i].type))
            json_array_append_new(list, json_string(types[i].name));
    }
    if (json_array_size(list) == 0) {
        json_decref(list);
        return json_false();
    }
    return ours(s, schema, json_pack("{s:o}", "type", list));
}

/* A limit turned round: numbers. */
static json_t *not_limit(struct schema *s, const json_t *schema, const char *key, const json_t *v)
{
    static const char *const pairs[][2] = {{"minimum", "exclusiveMaximum"},
                                           {"maximum", "exclusiveMinimum"},
                                           {"exclusiveMinimum", "maximum"},
                                           {"exclusiveMaximum", "minimum"}};
    for (size_t i = 0; i < 4; i++) {
        if (strcmp(key, pairs[i][0]) == 0 && json_is_number(v))
            return typed(s, schema, "number", pairs[i][1], json_incref((json_t *)v));
    }
    return NULL;
}

/* The same for sizes; NULL: key is none. */
static json_t *not_size(struct schema *s, const json_t *schema, const char *key)
{
    static const char *const sizes[][3] = {{"minLength", "maxLength", "string"},
                                           {"maxLength", "minLength", "string"},
                                           {"minItems", "maxItems", "array"},
                                           {"maxItems", "minItems", "array"},
                                           {"minProperties", "maxProperties", "object"},
                                           {"maxProperties", "minProperties", "object"}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (strcmp(key, sizes[i][0]) != 0)
            continue;
        uint32_t n = schema_size(s, schema, key);
        bool least = key[1] == 'i';
        if (n == SCHEMA_NONE || (least && n == 0))
            return json_false();
        return typed(s, schema, sizes[i][2], sizes[i][1], json_integer(least ? n - 1.0 : n + 1.0));
    }
    return NULL;
}

/* anyOf over what a list's members give, each by its own negation. */
static json_t *not_each(struct schema *s, const json_t *schema, const json_t *list)
{
    json_t *out = json_array();
    size_t i;
    const json_t *v;
    json_array_foreach(list, i, v) json_array_append_new(out, not_of(s, schema, v));
    return out;
}

static json_t *not_one_of(struct schema *s, const json_t *schema, const json_t *list)
{
    size_t n = json_array_size(list);
    json_t *any = json_array();
    json_array_append_new(any,
                          ours(s, schema, json_pack("{s:o}", "allOf", not_each(s, schema, list))));
    for (size_t i = 0; i < n; i++) {
        for (size_t k = i + 1; k < n; k++)
            json_array_append_new(any, ours(s, schema,
                                            json_pack("{s:[O,O]}", "allOf", json_array_get(list, i),
                                                      json_array_get(list, k))));
    }
    return ours(s, schema, json_pack("{s:o}", "anyOf", any));
}

static json_t *not_items(struct schema *s, const json_t *schema, const json_t *items)
{
    if (json_object_get(schema, "prefixItems") || json_is_array(items)) {
        schema_refuse(s, STATUS_UNSUPPORTED, schema, "not around lists of items is not supported");
        return NULL;
    }
    return typed(s, schema, "array", "contains", not_of(s, schema, items));
}

static json_t *not_prefix(struct schema *s, const json_t *schema, const json_t *list, size_t at)
{
    json_t *prefix = json_array();
    for (size_t i = 0; i < at; i++)
        json_array_append_new(prefix, json_true());
    json_array_append_new(prefix, not_of(s, schema, json_array_get(list, at)));
    return ours(s, schema,
                json_pack("{s:s,s:I,s:o}", "type", "array", "minItems", (json_int_t)at + 1,
                          "prefixItems", prefix));
}

static void add(struct schema *s, json_t *any, json_t *v)
{
    if (!v || json_array_append_new(any, v) != 0)
        grammar_fail(s->b, STATUS_NOMEM, "%s", status_text(STATUS_NOMEM));
}

/* Adds the ways in which the keyword is not satisfied. False: it is not to be turned round. */
static bool not_keyword(struct schema *s, const json_t *schema, const char *key, json_t *v,
                        json_t *any)
{
    static const char *const hard[] = {
        "additionalProperties", "patternProperties", "propertyNames", "additionalItems",
        "minContains",          "maxContains",       "$ref"};
    const char *name;
    json_t *x;
    size_t i;
    if (strcmp(key, "type") == 0) {
        add(s, any, not_type(s, schema));
    } else if (strcmp(key, "const") == 0) {
        add(s, any, ours(s, schema, json_pack("{s:[O]}", SCHEMA_NOT_ENUM, v)));
    } else if (strcmp(key, "enum") == 0) {
        add(s, any, wrap(s, schema, SCHEMA_NOT_ENUM, v));
    } else if (strcmp(key, "not") == 0) {
        add(s, any, json_incref(v));
    } else if (strcmp(key, "allOf") == 0) {
        json_array_foreach(v, i, x) add(s, any, not_of(s, schema, x));
    } else if (strcmp(key, "anyOf") == 0) {
        add(s, any, ours(s, schema, json_pack("{s:o}", "allOf", not_each(s, schema, v))));
    } else if (strcmp(key, "oneOf") == 0) {
        add(s, any, not_one_of(s, schema, v));
    } else if (strcmp(key, "required") == 0) {
        json_array_foreach(v, i, x)
        {
            json_t *absent = ours(s, schema,
                                  json_pack("{s:s,s:{s:b}}", "type", "object", "properties",
                                            json_string_value(x), 0));
            add(s, any, absent);
        }
    } else if (strcmp(key, "properties") == 0) {
        json_object_foreach(v, name, x)
            add(s, any, with_property(s, schema, name, not_of(s, schema, x)));
    } else if (strcmp(key, "dependentRequired") == 0) {
        json_object_foreach(v, name, x)
        {
            const json_t *other;
            json_array_foreach(x, i, other)
                add(s, any,
                    ours(s, schema,
                         json_pack("{s:s,s:[s],s:{s:b}}", "type", "object", "required", name,
                                   "properties", json_string_value(other), 0)));
        }
    } else if (strcmp(key, "dependentSchemas") == 0) {
        json_object_foreach(v, name, x)
            add(s, any,
                ours(s, schema,
                     json_pack("{s:s,s:[s],s:o}", "type", "object", "required", name, "not",
                               json_incref(x))));
    } else if (strcmp(key, "pattern") == 0) {
        add(s, any, typed(s, schema, "string", SCHEMA_NOT_PATTERN, json_incref(v)));
    } else if (strcmp(key, "format") == 0) {
        bool known = false;
        if (!s->b->options.formats_ignored && json_is_string(v))
            schema_format(json_string_value(v), &known);
        if (known)
            add(s, any, typed(s, schema, "string", SCHEMA_NOT_FORMAT, json_incref(v)));
    } else if (strcmp(key, "multipleOf") == 0) {
        add(s, any, typed(s, schema, "number", SCHEMA_NOT_MULTIPLE, json_incref(v)));
    } else if (strcmp(key, "items") == 0) {
        add(s, any, not_items(s, schema, v));
    } else if (strcmp(key, "prefixItems") == 0) {
        for (i = 0; i < json_array_size(v); i++)
            add(s, any, not_prefix(s, schema, v, i));
    } else if (strcmp(key, "contains") == 0 && !json_object_get(schema, "minContains") &&
               !json_object_get(schema, "maxContains")) {
        add(s, any, typed(s, schema, "array", "items", not_of(s, schema, v)));
    } else if (strcmp(key, "uniqueItems") == 0) {
        return !json_is_true(v);
    } else if (strcmp(key, "if") == 0 || strcmp(key, "dependencies") == 0 ||
               key[0] == SCHEMA_OWN[0]) {
        return false;
    } else {
        for (i = 0; i < sizeof hard / sizeof *hard; i++) {
            if (strcmp(key, hard[i]) == 0)
                return false;
        }
        x = not_limit(s, schema, key, v);
        if (!x)
            x = not_size(s, schema, key);
        if (x)
            add(s, any, x);
    }
    return true;
}

/* A schema for what `schema` does not accept; a loan. */
static const json_t *negate(struct schema *s, const json_t *schema)
{
    json_t *known = made_find(s, schema, MADE_NOT), *any, *v;
    const char *key;
    if (json_is_boolean(schema))
        return json_is_true(schema) ? json_false() : json_true();
    if (known)
        return known;
    if (!json_is_object(schema)) {
        grammar_fail(s->b, STATUS_FORMAT, "a schema is neither an object nor true or false");
        return NULL;
    }
    schema_check_keywords(s, schema);
    const json_t *ref = json_object_get(schema, "$ref");
    any = json_array();
    if (ref) { /* lazily: the target is turned round when it is its turn */
        const json_t *to = schema_resolve(s, schema, ref);
        if (to)
            add(s, any, not_of(s, schema, to));
    }
    json_object_foreach((json_t *)schema, key, v)
    {
        if (schema_failed(s) || (ref && s->draft7))
            break;
        if (strcmp(key, "$ref") != 0 && !not_keyword(s, schema, key, v, any))
            schema_refuse(s, STATUS_UNSUPPORTED, schema, "not around %.60s is not supported",
                          key[0] == SCHEMA_OWN[0] ? key + 1 : key);
    }
    if (schema_failed(s)) {
        json_decref(any);
        return NULL;
    }
    if (json_array_size(any) == 0) {
        json_decref(any);
        return made_keep(s, schema, MADE_NOT, json_false());
    }
    return made_keep(s, schema, MADE_NOT, ours(s, schema, json_pack("{s:o}", "anyOf", any)));
}

const json_t *schema_not(struct schema *s, const json_t *schema)
{
    json_t *known = made_find(s, schema, MADE_WRAPPED);
    return known ? known : made_keep(s, schema, MADE_WRAPPED, not_of(s, schema, schema));
}

/* ---- if, oneOf, dependent… ---- */

static const json_t *rewrite_if(struct schema *s, const json_t *schema)
{
    const json_t *condition = json_object_get(schema, "if"), *known;
    const json_t *yes = json_object_get(schema, "then"), *no = json_object_get(schema, "else");
    if ((known = made_find(s, schema, MADE_IF)))
        return known;
    json_t *list = json_pack(
        "[o,o]",
        ours(s, schema, json_pack("{s:[O,O]}", "allOf", condition, yes ? yes : json_true())),
        ours(s, schema,
             json_pack("{s:[o,O]}", "allOf", not_of(s, schema, condition), no ? no : json_true())));
    return made_keep(s, schema, MADE_IF, list);
}

static const json_t *rewrite_one_of(struct schema *s, const json_t *schema)
{
    const json_t *list = json_object_get(schema, "oneOf"), *known;
    size_t n = json_array_size(list);
    if ((known = made_find(s, schema, MADE_ONE)))
        return known;
    if (n > 100) {
        schema_refuse(s, STATUS_LIMIT, schema, "oneOf has more than 100 branches");
        return NULL;
    }
    json_t *any = json_array();
    for (size_t i = 0; i < n && !schema_failed(s); i++) {
        json_t *all = json_pack("[O]", json_array_get(list, i));
        for (size_t k = 0; k < n; k++) {
            if (k != i && !schema_disjoint(s, json_array_get(list, i), json_array_get(list, k)))
                json_array_append_new(all, not_of(s, schema, json_array_get(list, k)));
        }
        json_array_append_new(any, ours(s, schema, json_pack("{s:o}", "allOf", all)));
    }
    return made_keep(s, schema, MADE_ONE, any);
}

static void depend(struct schema *s, const json_t *schema, const char *name, json_t *on,
                   json_t *all)
{
    json_t *then = NULL;
    if (json_is_array(on)) {
        json_t *names = json_deep_copy(on);
        size_t i;
        const json_t *v;
        json_array_foreach(on, i, v)
        {
            if (!json_is_string(v))
                schema_refuse(s, STATUS_FORMAT, schema, "a name in a dependency is not a string");
        }
        json_array_append_new(names, json_string(name));
        then = ours(s, schema, json_pack("{s:s,s:o}", "type", "object", "required", names));
    } else {
        then =
            ours(s, schema,
                 json_pack("{s:s,s:[s],s:[O]}", "type", "object", "required", name, "allOf", on));
    }
    add(s, all,
        ours(s, schema, json_pack("{s:[o,o]}", "anyOf", without_property(s, schema, name), then)));
}

static const json_t *rewrite_dependent(struct schema *s, const json_t *schema)
{
    static const char *const keys[] = {"dependentRequired", "dependentSchemas", "dependencies"};
    const json_t *known = made_find(s, schema, MADE_DEPENDENT);
    if (known)
        return known;
    json_t *all = json_array(), *on;
    const char *name;
    for (int i = 0; i < 3; i++) {
        json_object_foreach(json_object_get(schema, keys[i]), name, on)
            depend(s, schema, name, on, all);
    }
    if (json_array_size(all) == 0) {
        json_decref(all);
        return made_keep(s, schema, MADE_DEPENDENT, json_true());
    }
    return made_keep(s, schema, MADE_DEPENDENT, ours(s, schema, json_pack("{s:o}", "allOf", all)));
}

const json_t *schema_rewrite(struct schema *s, const struct schema_conj *c, uint32_t *part,
                             uint32_t *did)
{
    for (uint32_t i = 0; i < c->n; i++) {
        const json_t *x = c->parts[i].schema, *v;
        uint32_t done = c->parts[i].done;
        *part = i;
        if (!(done & SCHEMA_DID_NOT) && (v = json_object_get(x, "not"))) {
            *did = SCHEMA_DID_NOT;
            return negate(s, v);
        }
        if (!(done & SCHEMA_DID_DEPENDENT) &&
            (json_object_get(x, "dependentRequired") || json_object_get(x, "dependentSchemas") ||
             json_object_get(x, "dependencies"))) {
            *did = SCHEMA_DID_DEPENDENT;
            return rewrite_dependent(s, x);
        }
        if (!(done & SCHEMA_DID_IF) && json_object_get(x, "if") &&
            (json_object_get(x, "then") || json_object_get(x, "else"))) {
            *did = SCHEMA_DID_IF;
            return rewrite_if(s, x);
        }
        if (!(done & SCHEMA_DID_ONE) && json_object_get(x, "oneOf")) {
            *did = SCHEMA_DID_ONE;
            return rewrite_one_of(s, x);
        }
        if (!(done & SCHEMA_DID_ANY) && (v = json_object_get(x, "anyOf"))) {
            *did = SCHEMA_DID_ANY;
            return v;
        }
    }
    return NULL;
}

/* ---- whether branches of a oneOf exclude each other ---- */

/* Values that a schema lists; NULL: it does not. single: const. */
static const json_t *listed(const struct schema_conj *c, bool *single)
{
    for (uint32_t i = 0; i < c->n; i++) {
        const json_t *v = json_object_get(c->parts[i].schema, "const");
        *single = v != NULL;
        if (!v)
            v = json_object_get(c->parts[i].schema, "enum");
        if (v)
            return v;
    }
    return NULL;
}

static bool none_satisfies(struct schema *s, const json_t *list, bool single, const json_t *schema)
{
    size_t n = single ? 1 : json_array_size(list);
    for (size_t i = 0; i < n; i++) {
        if (schema_check(s, schema, single ? list : json_array_get(list, i)))
            return false;
    }
    return true;
}

/* a requires a property that b forbids, or that b wants otherwise. */
static bool apart_by_property(struct schema *s, const struct schema_conj *a,
                              const struct schema_conj *b)
{
    for (uint32_t i = 0; i < a->n; i++) {
        const json_t *required = json_object_get(a->parts[i].schema, "required"), *v;
        size_t r;
        json_array_foreach(required, r, v)
        {
            const char *name = json_string_value(v);
            for (uint32_t k = 0; name && k < b->n; k++) {
                const json_t *of_b =
                    json_object_get(json_object_get(b->parts[k].schema, "properties"), name);
                if (!of_b &&
                    json_is_false(json_object_get(b->parts[k].schema, "additionalProperties")) &&
                    !json_object_get(b->parts[k].schema, "patternProperties"))
                    return true;
                for (uint32_t j = 0; of_b && j < a->n; j++) {
                    const json_t *of_a =
                        json_object_get(json_object_get(a->parts[j].schema, "properties"), name);
                    if (json_is_false(of_b) || (of_a && schema_disjoint(s, of_a, of_b)))
                        return true;
                }
            }
        }
    }
    return false;
}

bool schema_disjoint(struct schema *s, const json_t *a, const json_t *b)
{
    struct schema_conj one[2] = {{0}}, all[2] = {{0}};
    bool never[2] = {false, false}, single = false, apart = false;
    if (schema_failed(s) || ++s->depth > 8) {
        if (!schema_failed(s))
            s->depth--;
        return false;
    }
    for (int i = 0; i < 2; i++) {
        if (!schema_conj_add(s, &one[i], i ? b : a) ||
            !schema_expand(s, &one[i], &all[i], &never[i]))
            return false;
    }
    uint32_t types[2] = {SCHEMA_ANY, SCHEMA_ANY};
    for (int i = 0; i < 2; i++) {
        for (uint32_t k = 0; k < all[i].n; k++)
            types[i] &= schema_types(s, all[i].parts[k].schema);
    }
    const json_t *list;
    if (never[0] || never[1] || !(types[0] & types[1]))
        apart = true;
    else if ((list = listed(&all[0], &single)))
        apart = none_satisfies(s, list, single, b);
    else if ((list = listed(&all[1], &single)))
        apart = none_satisfies(s, list, single, a);
    else if ((types[0] & types[1]) == SCHEMA_OBJECT)
        apart = apart_by_property(s, &all[0], &all[1]) || apart_by_property(s, &all[1], &all[0]);
    s->depth--;
    return apart && !schema_failed(s);
}
