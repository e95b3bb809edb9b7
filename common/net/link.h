/* link: a router-worker connection: TCP, length-prefixed frames, HELLO, heartbeats, liveness.
 *
 * The worker listens, the router connects (and reconnects with jittered back-off). On a new
 * connection both sides send HELLO; each checks the other's version, MAC (when there is a cluster
 * key) and, through on_hello, what the owner thinks of it; then frames flow. A link is up between
 * `up` and `down`. Heartbeats are sent every heartbeat_ms with what fill_heartbeat puts in; a link
 * on which nothing arrives for stall_ms is reported as silent (R9) and, after dead_ms, closed.
 * Sends are queued without blocking; a peer that lets more than queue_max bytes wait is dropped. */
#ifndef BATON_NET_LINK_H
#define BATON_NET_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/net/loop.h"
#include "common/net/mac.h"
#include "common/net/tls.h"
#include "common/proto/proto.h"

struct link;

struct link_options {                            /* zero: the default */
    uint64_t heartbeat_ms;                       /* 250 */
    uint64_t stall_ms;                           /* 2000 */
    uint64_t dead_ms;                            /* 10000 */
    uint64_t connect_timeout_ms;                 /* 2000, until the link is up */
    uint64_t reconnect_min_ms, reconnect_max_ms; /* 50, 1000 */
    size_t queue_max;                            /* 64 MiB */
    struct mac_key key;                          /* proves who HELLO is from */
    /* TLS 1.3 by certificates, kept; NULL: under a pre-shared key that is derived from `key`, or
     * none without one. */
    struct tls_context *certificates;
};

struct link_callbacks {
    /* The peer's HELLO has arrived and its MAC is right. Return STATUS_OK to accept; otherwise put
     * a line into why: HELLO_NO is sent and the link closes. */
    int (*hello)(void *arg, struct link *l, const struct proto_hello *h, char *why, size_t whylen);
    void (*up)(void *arg, struct link *l); /* both sides accepted */
    /* Every later message but heartbeats; m is a loan for the call. */
    void (*message)(void *arg, struct link *l, const struct proto_msg *m);
    void (*heartbeat)(void *arg, struct link *l, const struct proto_heartbeat *h);
    void (*fill_heartbeat)(void *arg, struct link *l, struct proto_heartbeat *h);
    /* Nothing arrived for stall_ms (silent true), or something did again (false). */
    void (*silent)(void *arg, struct link *l, bool silent);
    /* Connecting side, may be NULL: an attempt to connect came to nothing. refused: nobody listens
     * there, so the process that did is gone. */
    void (*failed)(void *arg, struct link *l, bool refused, const char *why);
    /* The link is gone (once per `up`). Accepted links are freed after this call; connecting ones
     * try again until link_close. why and link_peer are loans for the call. */
    void (*down)(void *arg, struct link *l, int status, const char *why);
};

/* Worker: listens on "host:port" (port 0: any; the bound address is in link_listener_address).
 * Non-loopback addresses with neither key nor certificates are refused: STATUS_AUTH. */
struct link_listener;
int link_listen(struct loop *loop, const char *address, const struct proto_hello *self,
                const struct link_options *o, const struct link_callbacks *cb, void *arg,
                struct link_listener **out, char *err, size_t errlen) WARN_UNUSED;
const char *link_listener_address(const struct link_listener *l);
void link_listener_close(struct link_listener *l); /* stops accepting; accepted links stay */

/* Router: connects to "host:port" and keeps trying. `self` is copied (strings included). With
 * neither key nor certificates only to loopback addresses. */
int link_connect(struct loop *loop, const char *address, const struct proto_hello *self,
                 const struct link_options *o, const struct link_callbacks *cb, void *arg,
                 struct link **out, char *err, size_t errlen) WARN_UNUSED;
/* Closes and frees (after the current callback); no further callbacks. What was queued is still
 * sent if the peer takes it within a second. */
void link_close(struct link *l);

/* Renewed certificates, where there were some before, from the next connection on; kept. */
void link_set_certificates(struct link *l, struct tls_context *certificates);
void link_listener_set_certificates(struct link_listener *l, struct tls_context *certificates);

bool link_is_up(const struct link *l);
const char *link_address(const struct link *l);            /* of the peer, "127.0.0.1:40123" */
const struct proto_hello *link_peer(const struct link *l); /* its HELLO, while up */
void link_set_data(struct link *l, void *data);
void *link_data(const struct link *l);
/* Queues one message; frames of one turn of the loop leave together. STATUS_CLOSED when the link is
 * not up, STATUS_LIMIT for a message above PROTO_FRAME_MAX (the link stays), STATUS_FULL when
 * queue_max was passed (`down` follows). */
int link_send(struct link *l, const struct proto_msg *m) WARN_UNUSED;
size_t link_queued(const struct link *l);
/* Why a connecting link is not up: the reason of its last failure, "" before the first. */
const char *link_last_error(const struct link *l);

#endif
