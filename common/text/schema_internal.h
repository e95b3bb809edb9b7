/* schema_internal: what the files of the schema compiler share.
 *
 *   schema.c          the entry; what holds at one place in a document ("conj"), its alternatives
 *   schema_ref.c      $ref, $id, anchors, paths
 *   schema_rewrite.c  not, if, oneOf, dependent… said by simpler keywords
 *   schema_check.c    whether a value (of enum, const, a property's name) satisfies a schema
 *   schema_number.c schema_string.c schema_format.c schema_array.c schema_object.c   one type each
 */
#ifndef BATON_TEXT_SCHEMA_INTERNAL_H
#define BATON_TEXT_SCHEMA_INTERNAL_H

#include "common/base/json.h"
#include "common/base/map.h"
#include "common/text/grammar_build.h"

#define SCHEMA_NONE  UINT32_MAX
#define SCHEMA_DEPTH 100 /* schemas inside each other, in functions that recurse */

enum {
    SCHEMA_NULL = 1,
    SCHEMA_BOOL = 2,
    SCHEMA_INT = 4,
    SCHEMA_FRACTION = 8, /* a number that is no integer */
    SCHEMA_STRING = 16,
    SCHEMA_ARRAY = 32,
    SCHEMA_OBJECT = 64,
    SCHEMA_NUMBER = SCHEMA_INT | SCHEMA_FRACTION,
    SCHEMA_ANY = 127
};

/* Keywords of our own in rewritten schemas; no JSON text of a user reaches them, because the
 * compiler refuses names that begin with this byte. */
#define SCHEMA_OWN           "\x01"
#define SCHEMA_NOT_ENUM      SCHEMA_OWN "notEnum"
#define SCHEMA_NOT_PATTERN   SCHEMA_OWN "notPattern"
#define SCHEMA_NOT_FORMAT    SCHEMA_OWN "notFormat"
#define SCHEMA_NOT_MULTIPLE  SCHEMA_OWN "notMultipleOf"
#define SCHEMA_FRACTION_NAME SCHEMA_OWN "fraction" /* a value of "type" */

/* Applicators of a schema that have been dealt with already. */
enum {
    SCHEMA_DID_ANY = 1,
    SCHEMA_DID_ONE = 2,
    SCHEMA_DID_IF = 4,
    SCHEMA_DID_NOT = 8,
    SCHEMA_DID_DEPENDENT = 16,
    SCHEMA_DID_EXPAND = 32 /* $ref and allOf */
};
struct schema_part {
    const json_t *schema;
    uint32_t done;
    uint32_t parent; /* the part of the same conj that asked for it; SCHEMA_NONE: none */
};
/* Schemas that all hold for one value. */
struct schema_conj {
    struct schema_part *parts; /* in the builder's arena */
    uint32_t n, cap;
};

struct schema_path { /* of a schema, for messages; and its resource, for $ref */
    UT_hash_handle hh;
    const json_t *schema;
    const char *path;
    const struct schema_resource *resource;
    bool checked;
};
struct schema_resource { /* a schema with an $id, or the whole document */
    struct schema_resource *next;
    const char *uri;
    const json_t *root;
};
struct schema_anchor {
    struct schema_anchor *next;
    const struct schema_resource *resource;
    const char *name;
    const json_t *schema;
};
struct schema_made { /* a rewritten schema: by whose, and which keyword */
    UT_hash_handle hh;
    struct schema_made_key {
        const json_t *schema;
        uint64_t what;
    } key;
    json_t *made; /* owned */
};
struct schema_pattern { /* an expression that values were checked against */
    UT_hash_handle hh;
    struct automaton a; /* owned */
    char text[];
};
struct schema_memo { /* the rule of a conj */
    UT_hash_handle hh;
    struct schema_memo *todo; /* made next */
    struct schema_conj conj;
    uint32_t rule;
    struct schema_part key[];
};

struct schema {
    struct grammar_builder *b;
    json_t *root;
    bool draft7;
    struct schema_path *paths;
    struct schema_resource *resources;
    struct schema_anchor *anchors;
    struct schema_made *made;
    struct schema_pattern *patterns;
    struct schema_memo *memo, *todo, **todo_last;
    /* rules that many schemas need; 0: not made yet */
    uint32_t any, string, number, integer, space, blank, character;
    int depth; /* of the recursion over schemas */
};

/* ---- schema.c ---- */
bool schema_failed(const struct schema *s);
/* Refuses keywords that are malformed, or not honoured. */
void schema_check_keywords(struct schema *s, const json_t *schema);
/* Adds a part; false when memory or the budget is used up. */
bool schema_conj_add(struct schema *s, struct schema_conj *c, const json_t *schema);
/* The rule for values that satisfy all parts; 0 on failure. */
uint32_t schema_value(struct schema *s, const struct schema_conj *c);
/* The parts with $ref and allOf followed, true left out; parts that were expanded before come first
 * and keep their places. *never: one is false. */
bool schema_expand(struct schema *s, const struct schema_conj *c, struct schema_conj *out,
                   bool *never);
/* Types that a schema's own "type" (and "nullable") allows. */
uint32_t schema_types(struct schema *s, const json_t *schema);
uint32_t schema_type_of(const json_t *v);
/* A size such as minLength: SCHEMA_NONE when it is not there; noted as a failure when malformed. */
uint32_t schema_size(struct schema *s, const json_t *schema, const char *key);
/* A rule for this automaton over bytes and calls; takes it. 0 on failure. */
uint32_t schema_rule(struct schema *s, const char *name, struct automaton *a);
/* Optional blanks: after { [ , and before } ]; and after :. They return the state behind. */
uint32_t schema_space(struct schema *s, struct automaton *a, uint32_t from);
uint32_t schema_blank(struct schema *s, struct automaton *a, uint32_t from);
/* The value as it is written. */
uint32_t schema_literal(struct schema *s, struct automaton *a, uint32_t from, const json_t *v);
/* Appends a string with its quotes. */
uint32_t schema_quoted(struct schema *s, struct automaton *a, uint32_t from, const char *p,
                       size_t n);

/* ---- schema_ref.c ---- */
/* Finds resources, anchors and the paths of all schemas. */
int schema_scan(struct schema *s) WARN_UNUSED;
const char *schema_path(struct schema *s, const json_t *schema);
/* The path of a schema that was made from another. */
void schema_note(struct schema *s, const json_t *schema, const json_t *like);
int schema_refuse(struct schema *s, int status, const json_t *schema, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* What $ref names; NULL after a failure. */
const json_t *schema_resolve(struct schema *s, const json_t *schema, const json_t *ref);

/* ---- schema_rewrite.c ---- */
/* The keyword that is rewritten next, if any, among the parts (expanded). *part: whose; *did: its
 * bit. The result says the same without it: a schema that may be false. NULL: none is left. */
const json_t *schema_rewrite(struct schema *s, const struct schema_conj *c, uint32_t *part,
                             uint32_t *did);
/* {"not": schema}, the same for the same schema; a loan. NULL on failure. */
const json_t *schema_not(struct schema *s, const json_t *schema);
/* No value satisfies both; false also when that is not known. */
bool schema_disjoint(struct schema *s, const json_t *a, const json_t *b);

/* ---- schema_check.c ---- */
bool schema_check(struct schema *s, const json_t *schema, const json_t *v);
bool schema_check_string(struct schema *s, const json_t *schema, const char *p, size_t n);
bool schema_equal(const json_t *a, const json_t *b);
/* The shortest decimal text of a number: 1, 0.1, 1e+30. */
#define SCHEMA_NUMBER_TEXT 40
void schema_number_text(const json_t *v, char out[SCHEMA_NUMBER_TEXT]);

/* ---- one type each: rules for values that satisfy all parts (expanded); 0 on failure ---- */
uint32_t schema_number_rule(struct schema *s, const struct schema_conj *c, uint32_t types);
uint32_t schema_string_rule(struct schema *s, const struct schema_conj *c);
uint32_t schema_array_rule(struct schema *s, const struct schema_conj *c);
uint32_t schema_object_rule(struct schema *s, const struct schema_conj *c);

/* schema_number.c: whether the number is a multiple; exact, by decimal digits. */
bool schema_is_multiple(struct schema *s, const json_t *schema, const char *key, const json_t *v);

/* schema_string.c: a pattern or format as a deterministic automaton over code points. */
int schema_pattern(struct schema *s, const json_t *schema, const char *pattern, size_t n,
                   struct automaton *out) WARN_UNUSED;
/* The rule of any string with its quotes. */
uint32_t schema_any_string(struct schema *s);
/* The rule of the strings of an automaton over code points, with quotes; takes it. */
uint32_t schema_string_of(struct schema *s, const json_t *where, struct automaton *a);
/* Leaves the strings that satisfy all parts (propertyNames). Failures are noted. */
void schema_keep_strings(struct schema *s, const struct schema_conj *c, struct automaton *a);

/* schema_format.c: the expression of a format; NULL: it means nothing to us (*known false), or it
 * is one of the standard's that is not supported. */
const char *schema_format(const char *name, bool *known);

#endif
