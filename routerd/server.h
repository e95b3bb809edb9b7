/* server: the HTTP endpoints of routerd. */
#ifndef BATON_ROUTERD_SERVER_H
#define BATON_ROUTERD_SERVER_H

#include "routerd/call.h"
#include "routerd/settings.h"

struct access;
struct server;

struct server_parts { /* loans for the server's life */
    struct loop *loop;
    struct relay *relay;
    struct workers *workers;
    struct calls *calls;
    const struct models *models;
    struct otlp *otlp;
};
int server_create(const struct settings *s, const struct server_parts *parts, struct server **out,
                  char *err, size_t errlen) WARN_UNUSED;
bool server_secure(const struct server *s); /* HTTPS */
/* "127.0.0.1:8080" */
const char *server_address(const struct server *s);
const char *server_admin_address(const struct server *s); /* NULL: there is none */
/* Whether a request for some model would be answered; reasons get what is missing, also for others.
 */
bool server_ready(const struct server *s, struct buf *reasons);
/* Who may use the listeners, and their certificate: what the files hold that settings name. */
struct server_gate {
    struct access *api, *admin;
    struct tls_context *tls; /* NULL: plain HTTP */
};
/* srv: its API listens where it does, whatever settings say (it may be a service manager's socket);
 * NULL: where they say. STATUS_AUTH when other machines reach a listener where nobody is asked for
 * a key. */
int server_gate_load(const struct settings *s, const struct server *srv, struct server_gate *out,
                     char *err, size_t errlen) WARN_UNUSED;
void server_gate_fini(struct server_gate *g);
/* Keys from the next request on, the certificate from the next connection; empties g. */
void server_set_gate(struct server *srv, struct server_gate *g);
/* The limits of s that a reload may change. */
void server_set_limits(struct server *srv, const struct settings *s);
/* From now on /ready is 503 and new generation requests get 503. Where the service manager holds
 * the listener, new connections wait for the next process instead, and those that are open may
 * finish their request. done fires once no answer runs any more, or after drain_ms. */
void server_drain(struct server *s, uint64_t drain_ms, void (*done)(void *arg), void *arg);
void server_destroy(struct server *s);

#endif
