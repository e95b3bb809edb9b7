/* schema_ref: the document as a whole: where its schemas are, what they are called, and what a
 * reference names.
 *
 * One walk over everything that may be a schema notes a path for messages ("#/properties/a"), the
 * resource it belongs to ($id makes a new one) and anchors. References are resolved inside the
 * document alone; nothing is ever fetched. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/text/schema_internal.h"

#define PATH_SHOWN 200 /* bytes of a path in a message */

static struct schema_path *path_find(struct schema *s, const json_t *schema)
{
    struct schema_path *p = NULL;
    HASH_FIND_PTR(s->paths, &schema, p);
    return p;
}

const char *schema_path(struct schema *s, const json_t *schema)
{
    const struct schema_path *p = path_find(s, schema);
    return p ? p->path : "#";
}

int schema_refuse(struct schema *s, int status, const json_t *schema, const char *fmt, ...)
{
    char text[400];
    const char *path = schema_path(s, schema);
    size_t n = strlen(path);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return grammar_fail(s->b, status, "%s%s: %s", n > PATH_SHOWN ? "…" : "",
                        n > PATH_SHOWN ? path + n - PATH_SHOWN : path, text);
}

static void note(struct schema *s, const json_t *schema, const char *path,
                 const struct schema_resource *resource)
{
    if (!json_is_object(schema) || path_find(s, schema))
        return;
    struct schema_path *p = arena_alloc(&s->b->arena, sizeof *p);
    if (p) {
        *p = (struct schema_path){.schema = schema, .path = path, .resource = resource};
        HASH_ADD_PTR(s->paths, schema, p);
    }
    if (!p || !p->hh.tbl)
        grammar_fail(s->b, STATUS_LIMIT, "the schema takes too much memory");
}

void schema_note(struct schema *s, const json_t *schema, const json_t *like)
{
    const struct schema_path *p = path_find(s, like);
    note(s, schema, p ? p->path : "#", p ? p->resource : s->resources);
}

/* ---- URIs ---- */

static bool has_scheme(const char *uri)
{
    size_t n = strspn(uri, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-.");
    return n > 0 && uri[n] == ':';
}

/* uri as seen from base, both without fragments. Dot segments stay: they are compared as text. */
static const char *join(struct schema *s, const char *base, const char *uri)
{
    if (has_scheme(uri) || !*base)
        return uri;
    if (!*uri)
        return base;
    const char *authority = strstr(base, "://");
    const char *path = authority ? strchr(authority + 3, '/') : NULL;
    if (*uri == '/') {
        size_t keep = path ? (size_t)(path - base) : strlen(base);
        return grammar_printf(s->b, "%.*s%s", (int)keep, base, uri);
    }
    const char *slash = strrchr(base, '/');
    if (authority && !path)
        return grammar_printf(s->b, "%s/%s", base, uri);
    if (!slash) { /* urn:… or a plain name */
        return uri;
    }
    return grammar_printf(s->b, "%.*s%s", (int)(slash + 1 - base), base, uri);
}

/* ---- the walk ---- */

struct scan_item {
    const json_t *v;
    const char *path;
    const struct schema_resource *resource;
    bool schema; /* else a map or list of schemas */
    bool property_names;
};
struct scan {
    struct scan_item *items;
    size_t n, cap;
};

static void push(struct schema *s, struct scan *w, struct scan_item it)
{
    if (!json_is_object(it.v) && !json_is_array(it.v))
        return;
    if (w->n == w->cap) {
        size_t cap = w->cap ? w->cap * 2 : 64;
        struct scan_item *p = mem_resize(w->items, cap, sizeof *p);
        if (!p) {
            grammar_fail(s->b, STATUS_NOMEM, "%s", status_text(STATUS_NOMEM));
            return;
        }
        w->items = p;
        w->cap = cap;
    }
    w->items[w->n++] = it;
}

static void add_anchor(struct schema *s, const struct schema_resource *r, const char *name,
                       const json_t *schema)
{
    struct schema_anchor *a = arena_alloc(&s->b->arena, sizeof *a);
    if (!a || !name) {
        grammar_fail(s->b, STATUS_LIMIT, "the schema takes too much memory");
        return;
    }
    *a = (struct schema_anchor){s->anchors, r, name, schema};
    s->anchors = a;
}

/* Whether draft-7's rule holds that $ref hides everything beside it. */
static bool ref_alone(const struct schema *s, const json_t *schema)
{
    return s->draft7 && json_is_string(json_object_get(schema, "$ref"));
}

static const struct schema_resource *enter(struct schema *s, const json_t *schema,
                                           const struct schema_resource *r)
{
    const char *id = json_string_value(json_object_get(schema, "$id"));
    if (id && !ref_alone(s, schema)) {
        if (id[0] == '#') { /* draft-7's way to name a place */
            add_anchor(s, r, id + 1, schema);
        } else {
            struct schema_resource *x = arena_alloc(&s->b->arena, sizeof *x);
            char *plain = grammar_printf(s->b, "%.*s", (int)strcspn(id, "#"), id);
            if (!x || !plain)
                return r;
            *x = (struct schema_resource){s->resources, join(s, r->uri, plain), schema};
            s->resources = x;
            r = x;
        }
    }
    static const char *const anchors[] = {"$anchor", "$dynamicAnchor"};
    for (int i = 0; i < 2; i++) {
        const char *name = json_string_value(json_object_get(schema, anchors[i]));
        if (name)
            add_anchor(s, r, name, schema);
    }
    return r;
}

static bool one_of(const char *key, const char *const *names)
{
    for (; *names; names++) {
        if (strcmp(key, *names) == 0)
            return true;
    }
    return false;
}

/* A key as a part of a path: ~ and / escaped. */
static const char *child_path(struct schema *s, const char *path, const char *key)
{
    char text[128];
    size_t n = 0;
    for (; *key && n + 3 < sizeof text; key++) {
        if (*key == '~' || *key == '/') {
            text[n++] = '~';
            text[n++] = *key == '~' ? '0' : '1';
        } else {
            text[n++] = *key;
        }
    }
    text[n] = 0;
    return grammar_printf(s->b, "%s/%s%s", path, text, *key ? "…" : "");
}

static void scan_object(struct schema *s, struct scan *w, const struct scan_item *it)
{
    static const char *const plain[] = {"enum", "const", "default", "examples", "example", NULL};
    static const char *const maps[] = {"properties",  "patternProperties", "$defs",
                                       "definitions", "dependentSchemas",  "dependencies",
                                       NULL};
    const struct schema_resource *r = it->resource;
    const char *key;
    json_t *v;
    if (it->schema) {
        r = enter(s, it->v, r);
        note(s, it->v, it->path, r);
    }
    json_object_foreach((json_t *)it->v, key, v)
    {
        if (s->b->status != STATUS_OK)
            return;
        if (it->schema && key[0] == SCHEMA_OWN[0])
            schema_refuse(s, STATUS_UNSUPPORTED, it->v,
                          "a keyword begins with a control character");
        if (it->schema && one_of(key, plain))
            continue;
        const char *path = child_path(s, it->path, key);
        if (path)
            push(s, w, (struct scan_item){v, path, r, !(it->schema && one_of(key, maps)), false});
    }
}

int schema_scan(struct schema *s)
{
    struct schema_resource *root = arena_alloc(&s->b->arena, sizeof *root);
    if (!root)
        return grammar_fail(s->b, STATUS_NOMEM, "%s", status_text(STATUS_NOMEM));
    *root = (struct schema_resource){NULL, "", s->root};
    s->resources = root;
    struct scan w = {0};
    push(s, &w, (struct scan_item){s->root, "#", root, true, false});
    while (w.n > 0 && s->b->status == STATUS_OK) {
        struct scan_item it = w.items[--w.n];
        if (json_is_object(it.v)) {
            scan_object(s, &w, &it);
            continue;
        }
        for (size_t i = 0; i < json_array_size(it.v) && s->b->status == STATUS_OK; i++) {
            const json_t *x = json_array_get(it.v, i);
            if (json_is_object(x))
                push(s, &w,
                     (struct scan_item){x, grammar_printf(s->b, "%s/%zu", it.path, i), it.resource,
                                        true, false});
        }
    }
    free(w.items);
    return s->b->status;
}

/* ---- references ---- */

static int hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* A copy with %XX decoded. */
static char *percent_decode(struct schema *s, const char *p)
{
    char *out = grammar_printf(s->b, "%s", p), *to = out;
    for (const char *c = p; to && *c; c++) {
        if (*c == '%' && hex(c[1]) >= 0 && hex(c[2]) >= 0) {
            *to++ = (char)(hex(c[1]) << 4 | hex(c[2]));
            c += 2;
        } else {
            *to++ = *c;
        }
    }
    if (to)
        *to = 0;
    return out;
}

/* A JSON pointer that begins with a slash. Writes into it. */
static const json_t *follow_pointer(const json_t *v, char *pointer)
{
    char *next = pointer + 1;
    while (v && next) {
        char *part = next, *to = part, *slash = strchr(part, '/');
        if (slash)
            *slash = 0;
        next = slash ? slash + 1 : NULL;
        for (const char *c = part; *c; c++) {
            if (*c == '~' && (c[1] == '0' || c[1] == '1'))
                *to++ = *++c == '0' ? '~' : '/';
            else
                *to++ = *c;
        }
        *to = 0;
        if (json_is_array(v)) {
            char *end;
            unsigned long i = strtoul(part, &end, 10);
            v = *end || end == part ? NULL : json_array_get(v, i);
        } else {
            v = json_object_get(v, part);
        }
    }
    return v;
}

const json_t *schema_resolve(struct schema *s, const json_t *schema, const json_t *ref)
{
    const struct schema_path *from = path_find(s, schema);
    const struct schema_resource *r = from ? from->resource : s->resources;
    if (!json_is_string(ref)) {
        schema_refuse(s, STATUS_FORMAT, schema, "$ref is not a string");
        return NULL;
    }
    const char *text = json_string_value(ref);
    size_t n = strcspn(text, "#");
    char *plain = grammar_printf(s->b, "%.*s", (int)n, text);
    char *fragment = percent_decode(s, text[n] ? text + n + 1 : "");
    if (!plain || !fragment)
        return NULL;
    const json_t *found = NULL;
    if (n > 0) {
        const char *uri = join(s, r->uri, plain);
        const struct schema_resource *x = s->resources;
        while (uri && x && strcmp(x->uri, uri) != 0)
            x = x->next;
        if (!x) {
            schema_refuse(s, STATUS_UNSUPPORTED, schema, "$ref \"%.100s\" leads out of this schema",
                          text);
            return NULL;
        }
        r = x;
    }
    if (!*fragment) {
        found = r->root;
    } else if (*fragment == '/') {
        found = follow_pointer(r->root, fragment);
    } else {
        for (const struct schema_anchor *a = s->anchors; a && !found; a = a->next) {
            if (a->resource == r && strcmp(a->name, fragment) == 0)
                found = a->schema;
        }
    }
    if (!json_is_object(found) && !json_is_boolean(found)) {
        schema_refuse(s, STATUS_FORMAT, schema, "$ref \"%.100s\" names no schema", text);
        return NULL;
    }
    note(s, found, text[0] == '#' ? text : "#", r); /* when it lies where none is expected */
    return found;
}
