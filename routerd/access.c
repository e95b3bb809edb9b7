/* access: see access.h.
 *
 * An origin is allowed when it is on the list, compared byte by byte; credentials (cookies) never
 * are, so "*" gives nothing away that the key does not guard. A preflight carries no key and is
 * answered without one; what it asks about is answered only with one. The headers that a preflight
 * names are allowed as they are: clients send many of their own, and none of them does anything. */
#include "routerd/access.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"

#define ORIGINS_MAX   64
#define ALLOWED_BYTES 1024
#define EXPOSED                                                                                    \
    "X-Request-Id, Retry-After, Retry-After-Ms, X-RateLimit-Limit-Requests, "                      \
    "X-RateLimit-Remaining-Requests, X-RateLimit-Reset-Requests, X-RateLimit-Limit-Tokens, "       \
    "X-RateLimit-Remaining-Tokens, X-RateLimit-Reset-Tokens"
#define PREFLIGHT_LIFE "600"

struct access {
    struct api_keys *keys; /* NULL: no key is asked for */
    const char *prefix;    /* of users' names */
    const char *locked;    /* why no key would do; NULL: one does */
    char *origins[ORIGINS_MAX];
    size_t n_origins;
    bool any_origin;
};

static bool is_origin(const char *p)
{
    size_t scheme = strncmp(p, "https://", 8) == 0 ? 8 : strncmp(p, "http://", 7) == 0 ? 7 : 0;
    const char *host = p + scheme;
    return scheme && *host &&
           strspn(host, "abcdefghijklmnopqrstuvwxyz0123456789.-_:[]") == strlen(host);
}

static int add_origin(struct access *a, const char *p, size_t n, char *err, size_t errlen)
{
    if (n == 1 && *p == '*') {
        a->any_origin = true;
        return STATUS_OK;
    }
    if (a->n_origins == ORIGINS_MAX) {
        snprintf(err, errlen, "cors_origins: at most %d origins", ORIGINS_MAX);
        return STATUS_LIMIT;
    }
    char *origin = strndup(p, n);
    if (!origin) {
        snprintf(err, errlen, "out of memory");
        return STATUS_NOMEM;
    }
    a->origins[a->n_origins++] = origin;
    if (is_origin(origin))
        return STATUS_OK;
    snprintf(err, errlen,
             "cors_origins: \"%.100s\" is not an origin such as https://chat.example.com or "
             "http://localhost:3000 (lower case, no path), nor *",
             origin);
    return STATUS_INVALID;
}

int access_create(const char *setting, const char *key_file, const char *origins,
                  struct access **out, char *err, size_t errlen)
{
    struct access *a = mem_array(1, sizeof *a);
    if (!a) {
        snprintf(err, errlen, "out of memory");
        return STATUS_NOMEM;
    }
    a->prefix = "";
    int rc = api_keys_load(setting, key_file, &a->keys, err, errlen);
    for (const char *p = origins ? origins : ""; *p && rc == STATUS_OK;) {
        p += strspn(p, ", \t");
        size_t n = strcspn(p, ", \t");
        if (n)
            rc = add_origin(a, p, n, err, errlen);
        p += n;
    }
    if (rc != STATUS_OK) {
        access_destroy(a);
        return rc;
    }
    *out = a;
    return STATUS_OK;
}

void access_destroy(struct access *a)
{
    if (!a)
        return;
    for (size_t i = 0; i < a->n_origins; i++)
        free(a->origins[i]);
    api_keys_destroy(a->keys);
    free(a);
}

void access_lock(struct access *a, const char *why)
{
    a->locked = why;
}

void access_prefix(struct access *a, const char *prefix)
{
    a->prefix = prefix;
}

bool access_key(const struct access *a, const struct http_request *r, const struct api_key **out)
{
    *out = NULL;
    if (!a->keys)
        return true;
    size_t n = strlen(a->prefix);
    if (strncmp(http_user(r), a->prefix, n) == 0)
        *out = api_keys_named(a->keys, http_user(r) + n);
    return *out;
}

static bool origin_allowed(const struct access *a, const char *origin)
{
    for (size_t i = 0; i < a->n_origins; i++) {
        if (strcmp(a->origins[i], origin) == 0)
            return true;
    }
    return a->any_origin;
}

int access_head(const struct access *a, struct http_request *r, bool open, const char **message)
{
    const char *origin = http_header(r, "origin");
    if (!a->any_origin && a->n_origins)
        http_add_header(r, "Vary", "Origin");
    if (origin && origin_allowed(a, origin)) {
        http_add_header(r, "Access-Control-Allow-Origin", a->any_origin ? "*" : origin);
        http_add_header(r, "Access-Control-Expose-Headers", EXPOSED);
    }
    if ((!a->keys && !a->locked) || open || strcmp(http_method(r), "OPTIONS") == 0)
        return 0;
    if (a->locked) {
        http_add_header(r, "WWW-Authenticate", "Bearer");
        *message = a->locked;
        return 401;
    }
    const char *authorization = http_header(r, "authorization");
    const struct api_key *key = api_keys_find(a->keys, authorization);
    if (key) {
        char user[HTTP_USER_MAX + 1];
        snprintf(user, sizeof user, "%s%s", a->prefix, key->name);
        http_set_user(r, user);
        return 0;
    }
    http_add_header(r, "WWW-Authenticate", "Bearer");
    *message = authorization ? "The API key is not valid."
                             : "An API key is needed: send it as 'Authorization: Bearer KEY'.";
    return 401;
}

/* A list of header names, short enough to be sent back. */
static bool is_header_list(const char *p)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "-_, ";
    size_t n = strspn(p, plain);
    return p[n] == '\0' && n <= ALLOWED_BYTES;
}

void access_options(const struct access *a, struct http_request *r, const char *methods)
{
    const char *origin = http_header(r, "origin");
    const char *headers = http_header(r, "access-control-request-headers");
    http_add_header(r, "Allow", methods);
    if (origin && http_header(r, "access-control-request-method") && origin_allowed(a, origin)) {
        http_add_header(r, "Access-Control-Allow-Methods", methods);
        http_add_header(r, "Access-Control-Allow-Headers",
                        headers && is_header_list(headers) ? headers
                                                           : "Authorization, Content-Type");
        http_add_header(r, "Access-Control-Max-Age", PREFLIGHT_LIFE);
    }
    http_respond(r, 204, NULL, NULL, 0);
}
