/* structured: see structured.h.
 *
 * A grammar is compiled here only to know that it can be: workers compile it again from its source,
 * which is what travels. Sources that were good are remembered by their hash (keyed, 128 bits, so
 * that nobody can make another one look like them), because clients repeat themselves. */
#include "routerd/structured.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/base/rng.h"

#define KNOWN_MAX 256

/* Shared by the threads that parse requests. */
static struct {
    pthread_mutex_t lock;
    uint64_t key;
    struct hash128 hashes[KNOWN_MAX];
    uint32_t n, next;
} known = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool is_known(struct hash128 h)
{
    bool found = false;
    for (uint32_t i = 0; i < known.n && !found; i++)
        found = known.hashes[i].lo == h.lo && known.hashes[i].hi == h.hi;
    return found;
}

static struct hash128 hash_of(const struct structured *s)
{
    struct hash128 h;
    if (known.key == 0)
        known.key = rng_u64() | 1;
    h = hash128(s->source, s->n, known.key);
    h.lo ^= hash_mix64((uint64_t)s->kind * 2 + s->compact);
    return h;
}

static int check(const struct structured *s, const char *param, struct api_error *e)
{
    const struct grammar_options o = {.compact = s->compact};
    struct grammar *g = NULL;
    char err[400];
    pthread_mutex_lock(&known.lock);
    struct hash128 h = hash_of(s);
    bool good = is_known(h);
    pthread_mutex_unlock(&known.lock);
    if (good)
        return STATUS_OK;
    int rc = grammar_compile(s->kind, s->source, s->n, &o, &g, err, sizeof err);
    if (rc == STATUS_NOMEM)
        return rc;
    if (rc != STATUS_OK)
        return api_fail(e, param, rc == STATUS_UNSUPPORTED ? "unsupported_value" : NULL,
                        "'%s' cannot be used: %s.", param, err);
    grammar_put(g);
    pthread_mutex_lock(&known.lock);
    known.hashes[known.next++ % KNOWN_MAX] = h;
    known.n = known.n < KNOWN_MAX ? known.n + 1 : KNOWN_MAX;
    pthread_mutex_unlock(&known.lock);
    return STATUS_OK;
}

/* ---- sources ---- */

static int set_text(struct structured *s, enum grammar_kind kind, const char *p, size_t n)
{
    s->source = malloc(n + 1);
    if (!s->source)
        return STATUS_NOMEM;
    memcpy(s->source, p, n);
    s->source[n] = 0;
    s->n = n;
    s->kind = kind;
    return STATUS_OK;
}

/* Takes the text of a JSON value. */
static int set_json(struct structured *s, enum grammar_kind kind, const json_t *v)
{
    char *text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
    if (!text)
        return STATUS_NOMEM;
    s->source = text;
    s->n = strlen(text);
    s->kind = kind;
    return STATUS_OK;
}

static int set_string(struct structured *s, enum grammar_kind kind, const json_t *v,
                      const char *param, struct api_error *e)
{
    if (!json_is_string(v) || json_string_length(v) == 0)
        return api_fail(e, param, NULL, "'%s' must be a string that is not empty.", param);
    return set_text(s, kind, json_string_value(v), json_string_length(v));
}

/* A schema: an object, true or false; where text is allowed, that as JSON. */
static int set_schema(struct structured *s, const json_t *v, bool text, const char *param,
                      struct api_error *e)
{
    if (text && json_is_string(v))
        return set_string(s, GRAMMAR_SCHEMA, v, param, e);
    if (!json_is_object(v) && !json_is_boolean(v))
        return api_fail(e, param, NULL, "'%s' must be a JSON Schema: an object.", param);
    return set_json(s, GRAMMAR_SCHEMA, v);
}

static int set_choice(struct structured *s, const json_t *v, const char *param, struct api_error *e)
{
    if (!json_is_array(v) || json_array_size(v) == 0)
        return api_fail(e, param, NULL, "'%s' must be a list of strings with at least one.", param);
    return set_json(s, GRAMMAR_CHOICE, v);
}

/* ---- fields ---- */

static int parse_format(const json_t *o, struct structured *s, const char **param,
                        struct api_error *e)
{
    const json_t *format = field_get(o, "response_format"), *v;
    if (!format)
        return STATUS_OK;
    const json_t *type = field_get(format, "type");
    if (!json_is_string(type))
        return api_fail(e, "response_format", NULL,
                        "'response_format' must be an object with a 'type'.");
    const char *name = json_string_value(type);
    if (strcmp(name, "text") == 0)
        return STATUS_OK;
    *param = "response_format";
    if (strcmp(name, "json_object") == 0)
        return set_text(s, GRAMMAR_JSON, "", 0);
    if (strcmp(name, "json_schema") != 0)
        return api_fail(e, "response_format", NULL,
                        "'response_format' has the unknown type '%.60s'; it may be 'text', "
                        "'json_object' or 'json_schema'.",
                        name);
    *param = "response_format.json_schema.schema";
    v = field_get(format, "json_schema");
    if (!json_is_object(v))
        return api_fail(e, "response_format.json_schema", NULL,
                        "'response_format' of type 'json_schema' needs an object 'json_schema'.");
    const json_t *title = field_get(v, "name");
    bool strict = false;
    if (title && !json_is_string(title))
        return api_fail(e, "response_format.json_schema.name", NULL,
                        "'response_format.json_schema.name' must be a string.");
    if (field_bool(v, "strict", &strict, e) != STATUS_OK) /* either way the schema is kept to */
        return api_fail(e, "response_format.json_schema.strict", NULL,
                        "'response_format.json_schema.strict' must be true or false.");
    if (!field_get(v, "schema"))
        return api_fail(e, *param, NULL, "'%s' is missing.", *param);
    return set_schema(s, field_get(v, "schema"), false, *param, e);
}

/* One member of structured_outputs, or an older name for it. */
static int parse_member(const char *kind, const json_t *v, const char *param, struct structured *s,
                        struct api_error *e)
{
    if (strcmp(kind, "json") == 0)
        return set_schema(s, v, true, param, e);
    if (strcmp(kind, "regex") == 0)
        return set_string(s, GRAMMAR_REGEX, v, param, e);
    if (strcmp(kind, "choice") == 0)
        return set_choice(s, v, param, e);
    if (strcmp(kind, "grammar") == 0)
        return set_string(s, GRAMMAR_GBNF, v, param, e);
    if (!json_is_boolean(v))
        return api_fail(e, param, NULL, "'%s' must be true or false.", param);
    return json_is_true(v) ? set_text(s, GRAMMAR_JSON, "", 0) : STATUS_OK;
}

/* Names the parameter when the request has it. Two of them are one too many. */
static int take_member(const json_t *o, const char *member, const char *kind, const char *param,
                       struct structured *s, const char **have, struct api_error *e)
{
    const json_t *v = field_get(o, member);
    enum grammar_kind before = s->kind;
    if (!v)
        return STATUS_OK;
    if (before != GRAMMAR_NONE)
        return api_fail(e, param, NULL, "'%s' and '%s' exclude each other.", *have, param);
    TRY(parse_member(kind, v, param, s, e));
    if (s->kind != GRAMMAR_NONE)
        *have = param;
    return STATUS_OK;
}

static int parse_outputs(const json_t *o, struct structured *s, const char **have,
                         struct api_error *e)
{
    static const struct {
        const char *member, *kind, *param;
    } members[] = {{"json", "json", "structured_outputs.json"},
                   {"regex", "regex", "structured_outputs.regex"},
                   {"choice", "choice", "structured_outputs.choice"},
                   {"grammar", "grammar", "structured_outputs.grammar"},
                   {"json_object", "json_object", "structured_outputs.json_object"}},
      older[] = {{"guided_json", "json", "guided_json"},
                 {"guided_regex", "regex", "guided_regex"},
                 {"guided_choice", "choice", "guided_choice"},
                 {"guided_grammar", "grammar", "guided_grammar"},
                 {"guided_json_object", "json_object", "guided_json_object"}},
      plain[] = {{"json_schema", "json", "json_schema"}, /* llama.cpp and SGLang */
                 {"grammar", "grammar", "grammar"},
                 {"regex", "regex", "regex"}};
    const json_t *outputs = field_get(o, "structured_outputs");
    if (outputs && !json_is_object(outputs))
        return api_fail(e, "structured_outputs", NULL, "'structured_outputs' must be an object.");
    for (size_t i = 0; outputs && i < sizeof members / sizeof *members; i++)
        TRY(take_member(outputs, members[i].member, members[i].kind, members[i].param, s, have, e));
    static const char *const refused[] = {"structural_tag", "whitespace_pattern",
                                          "disable_additional_properties"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const json_t *v = field_get(outputs, refused[i]);
        if (v && !json_is_false(v))
            return api_fail(e, "structured_outputs", "unsupported_value",
                            "'structured_outputs.%s' is not supported.", refused[i]);
    }
    if (outputs && s->kind == GRAMMAR_NONE)
        return api_fail(e, "structured_outputs", NULL,
                        "'structured_outputs' needs one of json, regex, choice, grammar and "
                        "json_object.");
    if (outputs)
        TRY(field_bool(outputs, "disable_any_whitespace", &s->compact, e));
    for (size_t i = 0; i < sizeof older / sizeof *older; i++)
        TRY(take_member(o, older[i].member, older[i].kind, older[i].param, s, have, e));
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        const json_t *v = field_get(o, plain[i].member);
        if (!json_is_string(v) || json_string_length(v) > 0) /* some clients send all they know */
            TRY(take_member(o, plain[i].member, plain[i].kind, plain[i].param, s, have, e));
    }
    return STATUS_OK;
}

bool structured_mentioned(const char *body, size_t n)
{
    static const char *const words[] = {
        "response_format", "structured_outputs", "guided_",    "json_schema",
        "grammar",         "\"regex\"",          "tool_choice"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (memmem(body, n, words[i], strlen(words[i])))
            return true;
    }
    return false;
}

int structured_parse(const json_t *request, struct structured *out, struct api_error *e)
{
    const char *have = NULL;
    *out = (struct structured){0};
    int rc = parse_format(request, out, &have, e);
    if (rc == STATUS_OK)
        rc = parse_outputs(request, out, &have, e);
    if (rc == STATUS_OK && out->kind != GRAMMAR_NONE)
        rc = check(out, have, e);
    if (rc != STATUS_OK)
        structured_fini(out);
    return rc;
}

void structured_fini(struct structured *s)
{
    free(s->source);
    *s = (struct structured){0};
}

/* ---- calls ---- */

/* {"type":"object","properties":{"name":{"const":…},"parameters":…},…}. The parameters stay a
 * document of their own, in which "#/…" means what it meant. */
static json_t *call_schema(const json_t *function, size_t i)
{
    const json_t *parameters = field_get(function, "parameters");
    json_t *own = parameters ? json_copy((json_t *)parameters)
                             : json_pack("{s:s,s:b}", "type", "object", "additionalProperties", 0);
    if (json_is_object(own) && !json_object_get(own, "$id"))
        json_object_set_new(own, "$id", json_sprintf("urn:baton:tool:%zu", i));
    return json_pack("{s:s,s:{s:{s:O},s:o},s:[s,s],s:b}", "type", "object", "properties", "name",
                     "const", field_get(function, "name"), "parameters", own, "required", "name",
                     "parameters", "additionalProperties", 0);
}

int structured_call(const json_t *tools, const char *name, struct structured *out,
                    struct api_error *e)
{
    json_t *any = json_array(), *schema;
    size_t i;
    const json_t *tool;
    *out = (struct structured){0};
    json_array_foreach(tools, i, tool)
    {
        const json_t *function = field_get(tool, "function");
        const char *own = json_string_value(field_get(function, "name"));
        if (own && (!name || strcmp(own, name) == 0))
            json_array_append_new(any, call_schema(function, i));
    }
    if (json_array_size(any) == 0) {
        json_decref(any);
        return name ? api_fail(e, "tool_choice", NULL,
                               "'tool_choice' names '%.100s', which is none of the 'tools'.", name)
                    : api_fail(e, "tool_choice", NULL, "'tool_choice' needs 'tools'.");
    }
    schema = json_pack("{s:o}", "anyOf", any);
    int rc = schema ? set_json(out, GRAMMAR_SCHEMA, schema) : STATUS_NOMEM;
    json_decref(schema);
    if (rc == STATUS_OK)
        rc = check(out, "tools", e);
    if (rc != STATUS_OK)
        structured_fini(out);
    return rc;
}
