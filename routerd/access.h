/* access: what is decided about a request from its head alone: whether pages of other origins may
 * see the answer (CORS), and whether the request has a key. */
#ifndef BATON_ROUTERD_ACCESS_H
#define BATON_ROUTERD_ACCESS_H

#include "common/net/api_keys.h"
#include "common/net/http.h"

struct access;

/* key_file: see common/net/api_keys.h; NULL for no keys. origins: comma-separated, each like
 * "https://host[:port]", or "*"; NULL for none. setting: the name that errors call the file by. */
int access_create(const char *setting, const char *key_file, const char *origins,
                  struct access **out, char *err, size_t errlen) WARN_UNUSED;
/* Only what is open is answered from now on: there is no key that would do, and why. A static
 * string. */
void access_lock(struct access *a, const char *why);
void access_destroy(struct access *a);
/* The names of its users begin so (http_user): the same name elsewhere is somebody else. Static. */
void access_prefix(struct access *a, const char *prefix);
/* Whether the request's key is one still, as it was when its head came; *out: that key, or NULL
 * where none is asked for. */
bool access_key(const struct access *a, const struct http_request *r, const struct api_key **out);
/* For http_callbacks.head: adds the CORS headers; 0, or 401 with the message. open: the path is
 * served without a key. */
int access_head(const struct access *a, struct http_request *r, bool open, const char **message);
/* Answers OPTIONS, also a preflight; methods: what the path takes, "GET, HEAD". */
void access_options(const struct access *a, struct http_request *r, const char *methods);

#endif
