/* post: sends bodies to one HTTP server, for what may also be lost (traces).
 *
 * One body at a time, each on a connection of its own, with one deadline for all of it. Nothing
 * here blocks: names are looked up on the loop's pool, and a server that does not answer costs its
 * deadline. The answer's body is read and forgotten. Plain HTTP only: what speaks TLS to the world
 * is the collector on this machine or in this network. */
#ifndef BATON_NET_POST_H
#define BATON_NET_POST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/net/address.h"
#include "common/net/loop.h"

struct post_url {
    struct address_parts at;
    char host[300]; /* as the header wants it */
    char path[512]; /* "/" at least, with the query */
};
/* "http://host[:port][/path]"; err: one line that quotes it. */
int post_url_parse(const char *url, struct post_url *out, char *err, size_t errlen) WARN_UNUSED;

struct post;
int post_create(struct loop *l, const struct post_url *to, uint64_t timeout_ms,
                struct post **out) WARN_UNUSED;
/* Under way: no further one can be sent. */
bool post_busy(const struct post *p);
/* Sends the body as JSON (a loan until done). done(arg, rc): the HTTP status, or a negative status
 * code when there was no answer; never from inside this call, and not after an error of it
 * (NOMEM). Only when not busy. */
int post_send(struct post *p, const void *body, size_t n, void (*done)(void *arg, int rc),
              void *arg) WARN_UNUSED;
/* What is under way is cut, and its done does not come. NULL is fine. */
void post_destroy(struct post *p);

#endif
