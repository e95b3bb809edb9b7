/* peers: the other workers, over the data link.
 *
 * A prefill worker connects to the decode worker that a job names, a decode worker to the prefill
 * worker that a RESERVE names. UCX does not notice a stopped peer: one on which KV is under way and
 * nothing ends for peer_stall is closed by force, which ends every operation, so that no block
 * stays pinned (R6). */
#include "common/worker/internal.h"

#include <stdio.h>
#include <string.h>

#define PROGRESS_BUDGET 256
#define STALLS          4 /* peer_stall = STALLS * stall_ms */
#define FRAME_ARENA     ((size_t)64 << 20)

struct peer *peer_find(struct worker *w, uint64_t instance)
{
    struct peer *p;
    HASH_FIND(hh, w->peers, &instance, sizeof instance, p);
    return p;
}

struct peer *peer_get(struct worker *w, uint64_t instance, const void *address, size_t n)
{
    struct peer *p = peer_find(w, instance);
    if (p || instance == 0 || instance == w->instance)
        return p;
    p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->w = w;
    p->instance = instance;
    if (xfer_peer_open(w->xfer, address, n, p, &p->xp) != STATUS_OK) {
        free(p);
        return NULL;
    }
    HASH_ADD(hh, w->peers, instance, sizeof p->instance, p);
    if (!p->hh.tbl) {
        xfer_peer_close(p->xp);
        free(p);
        return NULL;
    }
    log_debug("peer %016llx: connecting", (unsigned long long)instance);
    return p;
}

/* Closes and forgets the peer, then ends what depended on it. */
static void peer_drop(struct peer *p, const char *why)
{
    struct worker *w = p->w;
    uint64_t instance = p->instance;
    log_warn("peer %016llx is lost: %s", (unsigned long long)instance, why);
    HASH_DEL(w->peers, p);
    xfer_peer_close(p->xp);
    free(p);
    prefill_peer_lost(w, instance);
    decode_peer_lost(w, instance);
    worker_wake(w);
}

bool peer_send(struct peer *p, const struct proto_msg *m)
{
    struct buf *b = &p->w->scratch;
    if (fault_message(proto_type_name(m->type), "sent") == FAULT_DROP)
        return true;
    buf_reset(b);
    proto_encode(b, m);
    int rc = buf_ok(b) ? xfer_send(p->xp, b->data, b->len) : STATUS_NOMEM;
    if (rc != STATUS_OK)
        log_debug("peer %016llx: %s not sent: %s", (unsigned long long)p->instance,
                  proto_type_name(m->type), status_text(rc));
    return rc == STATUS_OK;
}

void peer_busy(struct peer *p)
{
    if (p->in_flight++ == 0)
        p->progress_ms = worker_now(p->w);
}

void peer_idle(struct peer *p)
{
    if (p->in_flight > 0) /* an operation may outlive the peer's first endpoint */
        p->in_flight--;
    p->progress_ms = worker_now(p->w);
}

void peers_tick(struct worker *w, uint64_t now)
{
    uint64_t stall = STALLS * (uint64_t)w->settings->stall_ms;
    struct peer *p, *next;
    HASH_ITER (hh, w->peers, p, next) {
        if (p->in_flight > 0 && now - p->progress_ms > stall)
            peer_drop(p, "transfers do not move");
    }
}

static void on_message(void *arg, const uint8_t *data, size_t n)
{
    struct worker *w = arg;
    struct arena arena;
    struct proto_msg m;
    arena_init(&arena, FRAME_ARENA);
    int rc = proto_decode(data, n, &arena, &m);
    if (rc != STATUS_OK) {
        if (rc != STATUS_UNSUPPORTED)
            log_warn("data link: a message of %zu bytes is dropped: %s", n, status_text(rc));
        arena_fini(&arena);
        return;
    }
    if (fault_message(proto_type_name(m.type), "received") == FAULT_DROP) {
        arena_fini(&arena);
        return;
    }
    switch (m.type) {
    case PROTO_RESERVE:
    case PROTO_HANDOFF:
    case PROTO_RELEASE:
        decode_message(w, &m);
        break;
    case PROTO_GRANT:
    case PROTO_WAIT:
    case PROTO_REFUSE:
    case PROTO_HANDOFF_OK:
    case PROTO_HANDOFF_BAD:
        prefill_message(w, &m);
        break;
    default:
        log_debug("data link: %s ignored", proto_type_name(m.type));
        break;
    }
    arena_fini(&arena);
}

static void on_lost(void *arg, struct xfer_peer *xp, int status)
{
    peer_drop(xfer_peer_arg(xp), status_text(status));
}

static void on_readable(void *arg)
{
    struct worker *w = arg;
    xfer_progress(w->xfer, PROGRESS_BUDGET); /* stays readable while there is more */
}

int peers_open(struct worker *w, char *err, size_t errlen)
{
    const char *devices = w->settings->data_devices;
    if (devices && *devices && strcmp(devices, "lo") != 0 && w->key.n == 0) {
        snprintf(err, errlen, "data_devices = %s reaches beyond loopback: set cluster_key_file",
                 devices);
        return STATUS_AUTH;
    }
    struct xfer_options o = {.devices = devices, .msg_max = PROTO_FRAME_MAX};
    static const struct xfer_callbacks cb = {
        .message = on_message, .kv_begin = receiver_begin, .kv_end = receiver_end, .lost = on_lost};
    TRY(xfer_create(&o, &cb, w, &w->xfer, err, errlen));
    int rc = loop_on_readable(w->loop, xfer_fd(w->xfer), on_readable, w);
    if (rc != STATUS_OK)
        snprintf(err, errlen, "data link: %s", status_text(rc));
    return rc;
}

void peers_close(struct worker *w)
{
    struct peer *p, *next;
    HASH_ITER (hh, w->peers, p, next) {
        HASH_DEL(w->peers, p);
        xfer_peer_close(p->xp);
        free(p);
    }
}
