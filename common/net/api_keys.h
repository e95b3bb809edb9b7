/* api_keys: who may use an HTTP listener: a file of key hashes, and the check of a request's bearer
 * key against them.
 *
 * The file has one "name:hash" a line: a name of letters, digits, '.', '_' and '-' (at most 64),
 * and the SHA-256 of the key in hexadecimal. Blank lines and lines that begin with '#' are skipped.
 * The keys themselves are stored nowhere. Behind the hash, apart by blanks, there may be:
 *
 *   tenant=NAME               whose key it is, in metrics; of the form of a name. Default: the name
 *   requests_per_minute=N     1 to 1000000000; default: no limit, as for the next two
 *   tokens_per_minute=N
 *   concurrency=N             requests at a time
 *   priority=low|normal|high  class; default: normal */
#ifndef BATON_NET_API_KEYS_H
#define BATON_NET_API_KEYS_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

#define API_KEY_NAME_MAX 64

struct api_keys;
enum api_priority { API_PRIORITY_LOW, API_PRIORITY_NORMAL, API_PRIORITY_HIGH };
struct api_limits { /* 0: none */
    uint32_t requests_per_minute, tokens_per_minute, concurrency;
    enum api_priority priority;
};
struct api_key {
    char name[API_KEY_NAME_MAX + 1], tenant[API_KEY_NAME_MAX + 1];
    unsigned char hash[32];
    struct api_limits limits;
};

/* path NULL or "": *out is NULL, which lets everybody in. An empty file is refused, since it would
 * let nobody in. err: one line with the place, in which setting is what the path came from. */
int api_keys_load(const char *setting, const char *path, struct api_keys **out, char *err,
                  size_t errlen) WARN_UNUSED;
void api_keys_destroy(struct api_keys *k);
/* Which key an Authorization header ("Bearer KEY"; may be NULL) carries, or NULL. The time that it
 * takes depends on the length of the header alone. */
const struct api_key *api_keys_find(const struct api_keys *k, const char *authorization);
/* The key of this name, or NULL. */
const struct api_key *api_keys_named(const struct api_keys *k, const char *name);

#endif
