/* link: HELLO, authentication, heartbeats and liveness on top of wire.c; the contract is link.h.
 *
 * Handshake. R is the connecting side (router), W the accepting one (worker); N are nonces, the MAC
 * of a side covers the other's nonce and its own instance and role.
 *
 *     R -> W   HELLO(Nr)            W -> R   HELLO(Nw)
 *     R -> W   HELLO_OK(mac Nw)     R shows that it has the key
 *     W: MAC right, owner's hello() says yes
 *     W -> R   HELLO_OK(mac Nr)     W shows that it has it, and accepts
 *     R: MAC right, hello() says yes: up, sends its first HEARTBEAT
 *     W: first frame after its HELLO_OK: up
 *
 * So `up` means on both sides that both have accepted. A refusal is HELLO_NO with a reason, and the
 * side that connects tries again at its longest back-off. Before a peer has authenticated, its
 * frames are small (HELLO_FRAME_MAX), time is limited, and their number per listener is bounded.
 *
 * Liveness. A tick every heartbeat_ms sends a heartbeat and looks at when bytes last arrived. When
 * the tick itself is late, our own loop was stopped (a long callback, SIGSTOP): nothing could be
 * read meanwhile, so the lateness is not held against the peer.
 *
 * State. link_set_state is the only writer. link_close frees the link on a later turn, so a link
 * may be closed from within any callback; code that calls out looks at the state afterwards. */
#include "common/net/link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/net/address.h"
#include "common/net/loop_uv.h"
#include "common/net/wire.h"

#define HELLO_FRAME_MAX (160u << 10)
#define HANDSHAKES_MAX  128
#define WHY_MAX         256

enum link_state {
    LINK_WAITING,    /* connecting side: until the next attempt */
    LINK_RESOLVING,  /* looking up the host name */
    LINK_CONNECTING, /* TCP */
    LINK_HELLO,      /* own HELLO sent, the peer's awaited */
    LINK_PROOF,      /* the peer's HELLO is here, its HELLO_OK awaited */
    LINK_CONFIRM,    /* accepting side: HELLO_OK sent, the peer's first frame awaited */
    LINK_UP,
    LINK_CLOSED
};
static const char *const state_names[] = {"waiting", "resolving", "connecting", "hello",
                                          "proof",   "confirm",   "up",         "closed"};

struct lookup { /* outlives the link when it is closed meanwhile */
    uv_getaddrinfo_t req;
    struct link *link;
};

struct link {
    struct loop *loop;
    struct loop_owner owner;
    struct link_options options;
    struct link_callbacks cb;
    void *arg, *data;
    struct arena arena; /* of self */
    struct proto_hello self;
    bool connecting;
    enum link_state state;
    struct wire *wire;
    struct tls_context *tls; /* NULL with neither key nor certificates */
    struct lookup *lookup;
    struct address_parts target;
    char address[ADDRESS_TEXT_MAX + 256];
    struct loop_timer *deadline; /* of the handshake, or until the next attempt */
    struct loop_timer *tick;
    uint64_t tick_ms;  /* when the tick fired last */
    uint64_t quiet_ms; /* time in which the loop did not run since bytes arrived last */
    uint64_t quiet_rx; /* wire->last_rx_ms to which quiet_ms belongs */
    bool silent;
    uint64_t backoff_ms;
    unsigned attempts;
    struct arena peer_arena;
    struct proto_hello peer;
    char why[WHY_MAX];
    struct link_listener *listener; /* while in its list of handshakes */
    struct list pending;
};

struct link_listener {
    uv_tcp_t tcp;
    struct loop *loop;
    struct loop_owner owner;
    struct link_options options;
    struct link_callbacks cb;
    void *arg;
    struct arena arena;
    struct proto_hello self;
    struct list pending; /* struct link, until it is up or closed */
    unsigned n_pending;
    struct log_limit log;
    char address[ADDRESS_TEXT_MAX];
    struct tls_context *tls; /* NULL with neither key nor certificates */
};

static void link_set_state(struct link *l, enum link_state to)
{
    static const uint8_t next[] = {
        [LINK_WAITING] = 1 << LINK_RESOLVING | 1 << LINK_CONNECTING | 1 << LINK_HELLO,
        [LINK_RESOLVING] = 1 << LINK_WAITING | 1 << LINK_CONNECTING,
        [LINK_CONNECTING] = 1 << LINK_WAITING | 1 << LINK_HELLO,
        [LINK_HELLO] = 1 << LINK_WAITING | 1 << LINK_PROOF,
        [LINK_PROOF] = 1 << LINK_WAITING | 1 << LINK_CONFIRM | 1 << LINK_UP,
        [LINK_CONFIRM] = 1 << LINK_UP,
        [LINK_UP] = 1 << LINK_WAITING,
    };
    ASSERT_MSG(l->state != LINK_CLOSED && (to == LINK_CLOSED || next[l->state] >> to & 1),
               "link %s: %s -> %s", l->address, state_names[l->state], state_names[to]);
    log_trace("link %s: %s -> %s", l->address, state_names[l->state], state_names[to]);
    l->state = to;
}

/* ---- options and HELLO copies ---- */

static struct link_options options_with_defaults(const struct link_options *o)
{
    struct link_options r = *o;
#define DEFAULT(field, value) r.field = r.field ? r.field : (value)
    DEFAULT(heartbeat_ms, 250);
    DEFAULT(stall_ms, 2000);
    DEFAULT(dead_ms, 10000);
    DEFAULT(connect_timeout_ms, 2000);
    DEFAULT(reconnect_min_ms, 50);
    DEFAULT(reconnect_max_ms, 1000);
    DEFAULT(queue_max, (size_t)64 << 20);
#undef DEFAULT
    return r;
}

static int bytes_copy(struct arena *a, struct proto_bytes *b)
{
    char *p = arena_strndup(a, b->n ? b->p : "", b->n);
    if (!p)
        return STATUS_NOMEM;
    b->p = p;
    return STATUS_OK;
}

static int hello_copy(struct arena *a, struct proto_hello *to, const struct proto_hello *from)
{
    *to = *from;
    TRY(bytes_copy(a, &to->name));
    TRY(bytes_copy(a, &to->model_name));
    TRY(bytes_copy(a, &to->kv_layout));
    TRY(bytes_copy(a, &to->numerics));
    TRY(bytes_copy(a, &to->data_address));
    if (to->version_max == 0) {
        to->version_min = PROTO_VERSION_MIN;
        to->version_max = PROTO_VERSION;
    }
    return STATUS_OK;
}

/* ---- ends of connections ---- */

static void pending_remove(struct link *l)
{
    if (!l->listener)
        return;
    list_remove(&l->pending);
    l->listener->n_pending--;
    l->listener = NULL;
}

static void link_free(void *arg)
{
    struct link *l = arg;
    arena_fini(&l->arena);
    arena_fini(&l->peer_arena);
    tls_context_put(l->tls);
    free(l);
}

static void lookup_drop(struct link *l)
{
    if (!l->lookup)
        return;
    l->lookup->link = NULL;
    uv_cancel((uv_req_t *)&l->lookup->req);
    l->lookup = NULL;
}

void link_close(struct link *l)
{
    if (!l || l->state == LINK_CLOSED)
        return;
    link_set_state(l, LINK_CLOSED);
    pending_remove(l);
    lookup_drop(l);
    wire_finish(l->wire);
    l->wire = NULL;
    loop_timer_free(l->deadline);
    loop_timer_free(l->tick);
    loop_owner_remove(&l->owner);
    loop_defer(l->loop, link_free, l);
}

static void retry_later(struct link *l)
{
    uint64_t wait = l->backoff_ms / 2 + rng_u64() % (l->backoff_ms / 2 + 1);
    l->backoff_ms *= 2;
    if (l->backoff_ms > l->options.reconnect_max_ms)
        l->backoff_ms = l->options.reconnect_max_ms;
    link_set_state(l, LINK_WAITING);
    loop_timer_start(l->deadline, wait, 0);
}

static void log_failure(struct link *l, const char *why)
{
    uint32_t held_back = 0;
    if (l->connecting) {
        if (strcmp(l->why, why) != 0) /* the same again at every attempt is not news */
            log_warn("link %s: %s", l->address, why);
    } else if (!l->listener ||
               log_limit_pass(&l->listener->log, loop_now_ms(l->loop), &held_back)) {
        log_warn("link %s: %s%s", l->address, why,
                 held_back ? " (and others that were not logged)" : "");
    }
}

/* The connection is over. Calls down() or failed() as its last act; the link may be gone
 * afterwards. The wire has been closed or is finishing on its own. */
static void connection_over(struct link *l, int status, const char *reason)
{
    char why[WHY_MAX];
    bool was_up = l->state == LINK_UP;
    bool refused = l->state == LINK_CONNECTING && status == STATUS_CLOSED;

    snprintf(why, sizeof why, "%s", reason);
    log_failure(l, why);
    memcpy(l->why, why, sizeof why);
    l->wire = NULL;
    lookup_drop(l);
    loop_timer_stop(l->tick);
    loop_timer_stop(l->deadline);
    l->silent = false;
    if (was_up)
        l->backoff_ms = l->options.reconnect_min_ms;
    if (l->connecting)
        retry_later(l);
    else
        link_close(l);
    if (was_up && l->cb.down)
        l->cb.down(l->arg, l, status, why);
    else if (!was_up && l->connecting && l->cb.failed)
        l->cb.failed(l->arg, l, refused, why);
}

static void link_fail(struct link *l, int status, const char *why)
{
    wire_close(l->wire);
    connection_over(l, status, why);
}

/* HELLO_NO: the peer learns why, and the connection closes once it has been told. */
static void link_refuse(struct link *l, enum proto_reason reason, const char *why)
{
    struct proto_msg m = {.type = PROTO_HELLO_NO};
    char line[WHY_MAX];
    m.hello_no.reason = reason;
    m.hello_no.detail = (struct proto_bytes){why, strlen(why)};
    snprintf(line, sizeof line, "refused the peer: %s", why);
    l->backoff_ms = l->options.reconnect_max_ms;
    if (wire_send(l->wire, &m) != STATUS_OK)
        log_debug("link %s: the peer cannot be told why it is refused", l->address);
    wire_finish(l->wire);
    connection_over(l, reason == PROTO_REASON_AUTH ? STATUS_AUTH : STATUS_MISMATCH, line);
}

/* ---- up ---- */

static void send_heartbeat(struct link *l)
{
    struct proto_msg m = {.type = PROTO_HEARTBEAT};
    if (l->cb.fill_heartbeat)
        l->cb.fill_heartbeat(l->arg, l, &m.heartbeat);
    if (l->state == LINK_UP && wire_send(l->wire, &m) != STATUS_OK)
        log_debug("link %s: no heartbeat could be sent", l->address); /* `failed` is on its way */
}

static void set_silent(struct link *l, bool silent)
{
    if (l->silent == silent)
        return;
    l->silent = silent;
    log_info("link %s: %s", l->address, silent ? "the peer is silent" : "the peer is heard again");
    if (l->cb.silent)
        l->cb.silent(l->arg, l, silent);
}

static void tick_cb(void *arg)
{
    struct link *l = arg;
    uint64_t now = loop_now_ms(l->loop), period = l->options.heartbeat_ms;
    uint64_t since = now - l->tick_ms;

    if (l->quiet_rx != l->wire->last_rx_ms) {
        l->quiet_rx = l->wire->last_rx_ms;
        l->quiet_ms = 0;
    }
    if (since > 2 * period)
        l->quiet_ms += since - period;
    l->tick_ms = now;
    uint64_t quiet = now - l->wire->last_rx_ms;
    quiet -= quiet < l->quiet_ms ? quiet : l->quiet_ms;
    if (quiet >= l->options.dead_ms) {
        link_fail(l, STATUS_TIMEOUT, "nothing was heard from the peer for too long");
        return;
    }
    send_heartbeat(l);
    if (l->state == LINK_UP)
        set_silent(l, quiet >= l->options.stall_ms);
}

static void link_go_up(struct link *l)
{
    link_set_state(l, LINK_UP);
    pending_remove(l);
    loop_timer_stop(l->deadline);
    l->why[0] = 0;
    l->tick_ms = loop_now_ms(l->loop);
    l->quiet_ms = 0;
    loop_timer_start(l->tick, l->options.heartbeat_ms, l->options.heartbeat_ms);
    log_info("link %s: up, peer %.*s instance %016llx", l->address, (int)l->peer.name.n,
             (const char *)l->peer.name.p, (unsigned long long)l->peer.instance);
    send_heartbeat(l);
    if (l->state == LINK_UP && l->cb.up)
        l->cb.up(l->arg, l);
}

/* ---- handshake ---- */

static void hello_mac(const struct link *l, const struct proto_hello *signer,
                      const uint8_t nonce[32], uint8_t out[32])
{
    uint8_t data[32 + 8 + 4];
    memcpy(data, nonce, 32);
    for (int i = 0; i < 8; i++)
        data[32 + i] = (uint8_t)(signer->instance >> 8 * i);
    for (int i = 0; i < 4; i++)
        data[40 + i] = (uint8_t)(signer->role >> 8 * i);
    mac_sign(&l->options.key, "hello", data, sizeof data, out);
}

static int send_proof(struct link *l)
{
    struct proto_msg m = {.type = PROTO_HELLO_OK};
    hello_mac(l, &l->self, l->peer.nonce, m.hello_ok.mac);
    return wire_send(l->wire, &m);
}

static void connection_begins(struct link *l)
{
    struct proto_msg m = {.type = PROTO_HELLO, .hello = l->self};
    rng_bytes(l->self.nonce, sizeof l->self.nonce);
    memcpy(m.hello.nonce, l->self.nonce, sizeof m.hello.nonce);
    tcp_tune(&l->wire->tcp, l->options.dead_ms);
    l->wire->frame_max = HELLO_FRAME_MAX;
    l->wire->queue_max = l->options.queue_max;
    link_set_state(l, LINK_HELLO);
    int rc = wire_send(l->wire, &m);
    if (rc)
        link_fail(l, rc, status_text(rc));
}

static void take_hello(struct link *l, const struct proto_hello *h)
{
    char why[WHY_MAX];
    arena_fini(&l->peer_arena);
    int rc = hello_copy(&l->peer_arena, &l->peer, h);
    if (rc) {
        link_fail(l, rc, status_text(rc));
        return;
    }
    if (h->version_min > l->self.version_max || l->self.version_min > h->version_max) {
        snprintf(why, sizeof why, "protocol versions %u to %u and %u to %u do not overlap",
                 l->self.version_min, l->self.version_max, h->version_min, h->version_max);
        link_refuse(l, PROTO_REASON_MISMATCH, why);
        return;
    }
    if (h->instance == l->self.instance) {
        link_refuse(l, PROTO_REASON_INVALID, "a process connected to itself");
        return;
    }
    link_set_state(l, LINK_PROOF);
    if (l->connecting && (rc = send_proof(l)) != STATUS_OK)
        link_fail(l, rc, status_text(rc));
}

static void take_proof(struct link *l, const struct proto_hello_ok *ok)
{
    uint8_t expected[32];
    char why[WHY_MAX] = "refused";

    hello_mac(l, &l->peer, l->self.nonce, expected);
    if (!mac_equal(expected, ok->mac)) {
        link_refuse(l, PROTO_REASON_AUTH, "the cluster keys differ");
        return;
    }
    int rc = l->cb.hello ? l->cb.hello(l->arg, l, &l->peer, why, sizeof why) : STATUS_OK;
    if (l->state != LINK_PROOF) /* closed by its owner */
        return;
    if (rc != STATUS_OK) {
        link_refuse(l, PROTO_REASON_MISMATCH, why);
        return;
    }
    l->wire->frame_max = PROTO_FRAME_MAX;
    if (l->connecting) {
        link_go_up(l);
        return;
    }
    link_set_state(l, LINK_CONFIRM);
    rc = send_proof(l);
    if (rc)
        link_fail(l, rc, status_text(rc));
}

static void take_refusal(struct link *l, const struct proto_hello_no *no)
{
    char why[WHY_MAX];
    int n = (int)(no->detail.n < 160 ? no->detail.n : 160);
    snprintf(why, sizeof why, "the peer refused: %.*s (%s)", n, n ? (const char *)no->detail.p : "",
             proto_reason_name((enum proto_reason)no->reason));
    l->backoff_ms = l->options.reconnect_max_ms;
    link_fail(l, no->reason == PROTO_REASON_AUTH ? STATUS_AUTH : STATUS_MISMATCH, why);
}

static void take_message(struct link *l, const struct proto_msg *m)
{
    switch (m->type) {
    case PROTO_HELLO_NO:
        take_refusal(l, &m->hello_no);
        return;
    case PROTO_HELLO:
        if (l->state == LINK_HELLO) {
            take_hello(l, &m->hello);
            return;
        }
        break;
    case PROTO_HELLO_OK:
        if (l->state == LINK_PROOF) {
            take_proof(l, &m->hello_ok);
            return;
        }
        break;
    default:
        if (l->state == LINK_CONFIRM)
            link_go_up(l);
        if (l->state == LINK_UP && l->silent)
            set_silent(l, false);
        if (l->state == LINK_CLOSED || l->state == LINK_WAITING)
            return;
        if (l->state != LINK_UP)
            break;
        if (m->type != PROTO_HEARTBEAT) {
            if (l->cb.message)
                l->cb.message(l->arg, l, m);
        } else if (l->cb.heartbeat) {
            l->cb.heartbeat(l->arg, l, &m->heartbeat);
        }
        return;
    }
    char why[80];
    snprintf(why, sizeof why, "%s out of place", proto_type_name(m->type));
    link_fail(l, STATUS_FORMAT, why);
}

static void frame_cb(void *arg, const void *p, size_t n)
{
    struct link *l = arg;
    struct proto_msg m;
    struct arena arena;

    /* In memory a list entry takes at most 8 times its bytes on the wire. */
    arena_init(&arena, 8 * n + 4096);
    int rc = proto_decode(p, n, &arena, &m);
    if (rc == STATUS_OK)
        take_message(l, &m);
    else if (rc == STATUS_UNSUPPORTED)
        log_debug("link %s: a message of unknown type is ignored", l->address);
    else
        link_fail(l, rc, "the peer sent a malformed message");
    arena_fini(&arena);
}

static void failed_cb(void *arg, int status, const char *why)
{
    link_fail(arg, status, why);
}

/* ---- the connecting side ---- */

static void opened_cb(void *arg, int status)
{
    struct link *l = arg;
    (void)status;
    connection_begins(l);
}

static int wire_for(struct link *l)
{
    TRY(wire_create(l->loop, l->tls, !l->connecting, &l->wire));
    l->wire->opened = opened_cb;
    l->wire->frame = frame_cb;
    l->wire->failed = failed_cb;
    l->wire->arg = l;
    return STATUS_OK;
}

static void connect_to(struct link *l, const struct sockaddr *to)
{
    link_set_state(l, LINK_CONNECTING);
    if (!l->tls && !address_is_loopback((const struct sockaddr_storage *)to)) {
        link_fail(l, STATUS_AUTH, "not on loopback: set cluster_key_file, or link_cert_file");
        return;
    }
    int rc = wire_for(l);
    if (rc == STATUS_OK)
        rc = wire_connect(l->wire, to);
    if (rc)
        link_fail(l, rc, status_text(rc));
}

static void lookup_cb(uv_getaddrinfo_t *req, int status, struct addrinfo *list)
{
    struct lookup *q = container_of(req, struct lookup, req);
    struct link *l = q->link;
    free(q);
    if (l) {
        l->lookup = NULL;
        if (status < 0) {
            link_fail(l, STATUS_NOTFOUND, uv_strerror(status));
        } else {
            unsigned n = 0;
            for (struct addrinfo *a = list; a; a = a->ai_next)
                n++;
            struct addrinfo *a = list; /* each attempt tries the next of the host's addresses */
            for (unsigned skip = n ? l->attempts % n : 0; skip; skip--)
                a = a->ai_next;
            connect_to(l, a->ai_addr);
        }
    }
    uv_freeaddrinfo(list);
}

static void attempt(struct link *l)
{
    struct sockaddr_storage ss;
    l->attempts++;
    loop_timer_start(l->deadline, l->options.connect_timeout_ms, 0);
    if (address_numeric(&l->target, &ss) == STATUS_OK) {
        connect_to(l, (struct sockaddr *)&ss);
        return;
    }
    link_set_state(l, LINK_RESOLVING);
    struct lookup *q = calloc(1, sizeof *q);
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    if (!q) {
        link_fail(l, STATUS_NOMEM, status_text(STATUS_NOMEM));
        return;
    }
    int rc =
        uv_getaddrinfo(&l->loop->uv, &q->req, lookup_cb, l->target.host, l->target.port, &hints);
    if (rc < 0) {
        free(q);
        link_fail(l, status_from_uv(rc), uv_strerror(rc));
        return;
    }
    q->link = l;
    l->lookup = q;
}

static void deadline_cb(void *arg)
{
    struct link *l = arg;
    if (l->state == LINK_WAITING)
        attempt(l);
    else
        link_fail(l, STATUS_TIMEOUT, "no answer in time");
}

/* ---- creation ---- */

static void link_owner_close(struct loop_owner *o)
{
    link_close(container_of(o, struct link, owner));
}

static int link_tls(const struct link_options *o, struct tls_context **out)
{
    uint8_t psk[32];
    if (o->certificates) {
        *out = tls_context_get(o->certificates);
        return STATUS_OK;
    }
    if (o->key.n == 0)
        return STATUS_OK;
    mac_sign(&o->key, "link tls", NULL, 0, psk);
    return tls_context_psk(psk, out);
}

static void replace_tls(struct tls_context **at, struct tls_context *certificates)
{
    tls_context_put(*at);
    *at = tls_context_get(certificates);
}

void link_set_certificates(struct link *l, struct tls_context *certificates)
{
    replace_tls(&l->tls, certificates);
}

void link_listener_set_certificates(struct link_listener *q, struct tls_context *certificates)
{
    replace_tls(&q->tls, certificates);
}

static int link_create(struct loop *loop, const struct proto_hello *self,
                       const struct link_options *o, const struct link_callbacks *cb, void *arg,
                       struct tls_context *tls, struct link **out)
{
    struct link *l = calloc(1, sizeof *l);
    if (!l)
        return STATUS_NOMEM;
    l->loop = loop;
    l->options = options_with_defaults(o);
    l->cb = *cb;
    l->arg = arg;
    l->backoff_ms = l->options.reconnect_min_ms;
    list_init(&l->pending);
    arena_init(&l->arena, 0);
    arena_init(&l->peer_arena, 0);
    int rc = hello_copy(&l->arena, &l->self, self);
    l->tls = tls_context_get(tls);
    if (rc == STATUS_OK)
        rc = loop_timer_create(loop, deadline_cb, l, &l->deadline);
    if (rc == STATUS_OK)
        rc = loop_timer_create(loop, tick_cb, l, &l->tick);
    if (rc) {
        loop_timer_free(l->deadline);
        link_free(l);
        return rc;
    }
    loop_owner_add(loop, &l->owner, link_owner_close);
    *out = l;
    return STATUS_OK;
}

int link_connect(struct loop *loop, const char *address, const struct proto_hello *self,
                 const struct link_options *o, const struct link_callbacks *cb, void *arg,
                 struct link **out, char *err, size_t errlen)
{
    struct address_parts target;
    struct link *l;
    TRY(address_split(address, &target, err, errlen));
    struct tls_context *tls = NULL;
    int rc = link_tls(o, &tls);
    if (rc == STATUS_OK)
        rc = link_create(loop, self, o, cb, arg, tls, &l);
    tls_context_put(tls);
    if (rc) {
        snprintf(err, errlen, "%s", status_text(rc));
        return rc;
    }
    l->connecting = true;
    l->target = target;
    snprintf(l->address, sizeof l->address, "%s", address);
    loop_timer_start(l->deadline, 0, 0);
    *out = l;
    return STATUS_OK;
}

static void stranger_closed(uv_handle_t *h)
{
    free(h);
}

/* Out of memory for a link: the connection must still be taken, or libuv accepts no more. */
static void turn_away(uv_stream_t *s)
{
    uv_tcp_t *h = malloc(sizeof *h);
    if (!h)
        return;
    uv_tcp_init(s->loop, h);
    uv_accept(s, (uv_stream_t *)h);
    uv_close((uv_handle_t *)h, stranger_closed);
}

static void accept_cb(uv_stream_t *s, int status)
{
    struct link_listener *q = container_of((uv_tcp_t *)s, struct link_listener, tcp);
    struct sockaddr_storage ss;
    int len = sizeof ss;
    struct link *l = NULL;

    if (status < 0) {
        uint32_t held_back;
        if (log_limit_pass(&q->log, loop_now_ms(q->loop), &held_back))
            log_error("listener %s: %s", q->address, uv_strerror(status));
        return;
    }
    if (link_create(q->loop, &q->self, &q->options, &q->cb, q->arg, q->tls, &l) != STATUS_OK) {
        turn_away(s);
        return;
    }
    l->listener = q;
    list_push_back(&q->pending, &l->pending);
    q->n_pending++;
    snprintf(l->address, sizeof l->address, "unknown");
    if (wire_for(l) != STATUS_OK || wire_accept(l->wire, s) != STATUS_OK) {
        link_close(l);
        return;
    }
    if (uv_tcp_getpeername(&l->wire->tcp, (struct sockaddr *)&ss, &len) == 0)
        address_format(&ss, l->address);
    if (q->n_pending > HANDSHAKES_MAX) {
        link_fail(l, STATUS_FULL, "too many connections that have not said who they are");
        return;
    }
    loop_timer_start(l->deadline, l->options.connect_timeout_ms, 0);
    connection_begins(l);
}

static void listener_closed(uv_handle_t *h)
{
    struct link_listener *q = container_of((uv_tcp_t *)h, struct link_listener, tcp);
    arena_fini(&q->arena);
    tls_context_put(q->tls);
    free(q);
}

void link_listener_close(struct link_listener *q)
{
    if (!q || uv_is_closing((uv_handle_t *)&q->tcp))
        return;
    LIST_FOR_SAFE (it, &q->pending)
        pending_remove(container_of(it, struct link, pending));
    loop_owner_remove(&q->owner);
    uv_close((uv_handle_t *)&q->tcp, listener_closed);
}

static void listener_owner_close(struct loop_owner *o)
{
    link_listener_close(container_of(o, struct link_listener, owner));
}

int link_listen(struct loop *loop, const char *address, const struct proto_hello *self,
                const struct link_options *o, const struct link_callbacks *cb, void *arg,
                struct link_listener **out, char *err, size_t errlen)
{
    struct sockaddr_storage ss;
    int len = sizeof ss;

    if (!o->certificates)
        TRY(mac_check_listen(&o->key, address, err, errlen));
    TRY(address_resolve(address, &ss, err, errlen));
    struct link_listener *q = calloc(1, sizeof *q);
    if (!q) {
        snprintf(err, errlen, "%s", status_text(STATUS_NOMEM));
        return STATUS_NOMEM;
    }
    q->loop = loop;
    q->options = *o;
    q->cb = *cb;
    q->arg = arg;
    list_init(&q->pending);
    arena_init(&q->arena, 0);
    uv_tcp_init(&loop->uv, &q->tcp);
    loop_owner_add(loop, &q->owner, listener_owner_close);
    int rc = hello_copy(&q->arena, &q->self, self);
    if (rc == STATUS_OK)
        rc = link_tls(o, &q->tls);
    int uv_rc = uv_tcp_bind(&q->tcp, (struct sockaddr *)&ss, 0);
    if (uv_rc == 0)
        uv_rc = uv_listen((uv_stream_t *)&q->tcp, 128, accept_cb);
    if (uv_rc == 0)
        uv_rc = uv_tcp_getsockname(&q->tcp, (struct sockaddr *)&ss, &len);
    if (rc == STATUS_OK && uv_rc < 0)
        rc = status_from_uv(uv_rc);
    if (rc) {
        snprintf(err, errlen, "cannot listen on \"%.100s\": %s", address,
                 uv_rc < 0 ? uv_strerror(uv_rc) : status_text(rc));
        link_listener_close(q);
        return rc;
    }
    address_format(&ss, q->address);
    *out = q;
    return STATUS_OK;
}

const char *link_listener_address(const struct link_listener *l)
{
    return l->address;
}

/* ---- what owners ask and send ---- */

bool link_is_up(const struct link *l)
{
    return l->state == LINK_UP && !l->wire->full;
}

const char *link_address(const struct link *l)
{
    return l->address;
}

const char *link_last_error(const struct link *l)
{
    return l->why;
}

const struct proto_hello *link_peer(const struct link *l)
{
    return &l->peer;
}

void link_set_data(struct link *l, void *data)
{
    l->data = data;
}

void *link_data(const struct link *l)
{
    return l->data;
}

int link_send(struct link *l, const struct proto_msg *m)
{
    return l->state == LINK_UP ? wire_send(l->wire, m) : STATUS_CLOSED;
}

size_t link_queued(const struct link *l)
{
    return l->wire ? wire_queued(l->wire) : 0;
}
