/* lifecycle: what a running router is told from outside: drain (SIGTERM, SIGINT), reload (SIGHUP),
 * and what it tells its service manager: usable, why not, still alive. */
#ifndef BATON_ROUTERD_LIFECYCLE_H
#define BATON_ROUTERD_LIFECYCLE_H

#include "common/net/loop.h"
#include "routerd/call.h"
#include "routerd/relay.h"
#include "routerd/server.h"
#include "routerd/settings.h"

struct lifecycle_parts {
    struct loop *loop;
    struct settings *settings; /* a reload changes them */
    struct relay *relay;
    struct workers *workers;
    struct calls *calls;
    struct server *server;
    struct otlp *otlp;
    int argc; /* the command line, which a reload reads again */
    char **argv;
};

struct lifecycle;
int lifecycle_create(const struct lifecycle_parts *parts, struct lifecycle **out) WARN_UNUSED;
void lifecycle_destroy(struct lifecycle *l); /* NULL is fine */

#endif
