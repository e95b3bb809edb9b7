/* links: the routers that talk to this worker (R2, R3).
 *
 * A router is known by its instance. Its link may break and come back: until router_grace_ms have
 * passed everything of it is kept, and RESUME then says what is still wanted and from which token
 * on. A router that has come back gets no tokens before its RESUME. */
#include "common/worker/internal.h"

#include <stdio.h>
#include <string.h>

#define TOKENS_FRAME_MAX 512
#define NOTES_MAX        1024

struct router *router_find(struct worker *w, uint64_t instance)
{
    LIST_FOR (n, &w->routers) {
        struct router *r = container_of(n, struct router, node);
        if (r->instance == instance)
            return r;
    }
    return NULL;
}

bool router_is_up(struct worker *w, uint64_t instance)
{
    struct router *r = router_find(w, instance);
    return r && r->link;
}

void router_send(struct router *r, const struct proto_msg *m)
{
    if (fault_message(proto_type_name(m->type), "sent") == FAULT_DROP)
        return;
    if (r->link && link_send(r->link, m) != STATUS_OK)
        log_debug("router %016llx: %s not sent", (unsigned long long)r->instance,
                  proto_type_name(m->type));
}

static void send_lost(struct router *r, const struct seq_key *k, enum proto_reason reason,
                      bool parked, const char *detail)
{
    struct proto_msg m = {.type = PROTO_LOST,
                          .lost = {.request = seq_request(k),
                                   .choice = k->choice,
                                   .reason = reason,
                                   .detail = {detail, strlen(detail)},
                                   .parked = parked}};
    router_send(r, &m);
}

struct log_about worker_about(struct worker *w, const struct seq_key *k)
{
    const struct job *j = prefill_find(w, k);
    const struct ticket *t = j ? NULL : ticket_by_key(&w->tickets, k);
    return j ? job_about(j) : t ? ticket_about(t) : seq_about(k);
}

void router_lost(struct worker *w, const struct seq_key *k, enum proto_reason reason, bool parked,
                 const char *detail)
{
    struct router *r = router_find(w, k->router);
    log_info_about(worker_about(w, k), "%s cannot go on here: %s%s%s%s", seq_text(k),
                   proto_reason_name(reason), *detail ? ": " : "", detail,
                   parked ? " (KV parked)" : "");
    if (!r)
        return;
    if (r->link) {
        send_lost(r, k, reason, parked, detail);
        return;
    }
    struct lost_note *note = r->n_notes < NOTES_MAX ? malloc(sizeof *note) : NULL;
    if (!note)
        return; /* the router's own time-outs find it */
    *note = (struct lost_note){.key = *k, .reason = reason, .parked = parked};
    list_push_back(&r->notes, &note->node);
    r->n_notes++;
}

static void drop_notes(struct router *r)
{
    LIST_FOR_SAFE (n, &r->notes) {
        list_remove(n);
        free(container_of(n, struct lost_note, node));
    }
    r->n_notes = 0;
}

static void send_notes(struct router *r)
{
    LIST_FOR (n, &r->notes) {
        struct lost_note *note = container_of(n, struct lost_note, node);
        send_lost(r, &note->key, note->reason, note->parked, "");
    }
    drop_notes(r);
}

static void router_gone(struct worker *w, struct router *r)
{
    log_info("router %016llx is gone: freeing what it left", (unsigned long long)r->instance);
    prefill_router_gone(w, r->instance);
    decode_router_gone(w, r->instance);
    outbox_fini(&r->outbox);
    drop_notes(r);
    list_remove(&r->node);
    free(r);
    worker_wake(w);
}

/* Messages. */

static void resumed(struct worker *w, struct router *r)
{
    r->back_since = 0;
    outbox_rewind(&r->outbox);
    send_notes(r);
    worker_wake(w);
}

static void on_resume(struct worker *w, struct router *r, const struct proto_resume *m)
{
    prefill_keep_only(w, r->instance, m->list, m->n);
    decode_keep_only(w, r->instance, m->list, m->n);
    outbox_keep_only(&r->outbox, m->list, m->n);
    drop_notes(r); /* what they tell is told anew */
    for (uint32_t i = 0; i < m->n; i++) {
        const struct proto_seq_pos *p = &m->list[i];
        struct seq_key key = {r->instance, p->counter, p->attempt, p->choice};
        bool here = prefill_resume(w, &key);
        if (!here && !ticket_by_key(&w->tickets, &key) && !outbox_has(&r->outbox, p))
            router_lost(w, &key, PROTO_REASON_UNKNOWN, false, "");
        outbox_ack(&r->outbox, p);
    }
    resumed(w, r);
}

static void on_cancel(struct worker *w, struct router *r, const struct proto_request *q)
{
    prefill_cancel(w, r->instance, q->counter, q->attempt);
    decode_cancel(w, r->instance, q->counter, q->attempt);
    outbox_cancel(&r->outbox, q->counter, q->attempt);
    worker_wake(w);
}

static void on_message(void *arg, struct link *l, const struct proto_msg *m)
{
    struct worker *w = arg;
    struct router *r = link_data(l);
    if (!r || fault_message(proto_type_name(m->type), "received") == FAULT_DROP)
        return;
    switch (m->type) {
    case PROTO_PREFILL:
        prefill_accept(w, r, &m->prefill);
        break;
    case PROTO_REDIRECT:
        prefill_redirect(w, r, &m->redirect);
        break;
    case PROTO_MOVE:
        if (m->move.copy)
            replica_start(w, r, &m->move);
        else
            move_start(w, r, &m->move);
        break;
    case PROTO_DRAIN:
        worker_drain(w, !m->drain.off);
        break;
    case PROTO_CANCEL:
        on_cancel(w, r, &m->cancel.request);
        break;
    case PROTO_ACK:
        for (uint32_t i = 0; i < m->ack.n; i++)
            outbox_ack(&r->outbox, &m->ack.list[i]);
        if (w->leaving)
            worker_wake(w);
        break;
    case PROTO_RESUME:
        on_resume(w, r, &m->resume);
        break;
    default:
        log_debug("router %016llx: %s ignored", (unsigned long long)r->instance,
                  proto_type_name(m->type));
        break;
    }
}

/* The link itself. */

static int on_hello(void *arg, struct link *l, const struct proto_hello *h, char *why, size_t n)
{
    if (h->role != PROTO_ROUTER) {
        snprintf(why, n, "only routers connect here");
        return STATUS_MISMATCH;
    }
    if (h->instance == 0) {
        snprintf(why, n, "the instance is missing");
        return STATUS_MISMATCH;
    }
    return STATUS_OK;
}

static void send_drain(struct worker *w, struct router *r)
{
    uint64_t now = worker_now(w);
    struct proto_msg m = {.type = PROTO_DRAIN};
    m.drain.remaining_ms = (uint32_t)(w->drain_until > now ? w->drain_until - now : 0);
    router_send(r, &m);
}

static void on_up(void *arg, struct link *l)
{
    struct worker *w = arg;
    const struct proto_hello *h = link_peer(l);
    struct router *r = router_find(w, h->instance);
    bool known = r != NULL;
    if (!known) {
        r = calloc(1, sizeof *r);
        if (!r) {
            link_close(l);
            return;
        }
        r->w = w;
        r->instance = h->instance;
        outbox_init(&r->outbox);
        list_init(&r->notes);
        list_push_back(&w->routers, &r->node);
    } else if (r->link) { /* a second link: the first one is a corpse that TCP has not buried */
        link_set_data(r->link, NULL);
        link_close(r->link);
    }
    r->link = l;
    r->page = 0;
    r->back_since = known ? worker_now(w) : 0;
    link_set_data(l, r);
    log_info("router %.*s %016llx %s from %s", (int)h->name.n, (const char *)h->name.p,
             (unsigned long long)r->instance, known ? "is back" : "connected", link_address(l));
    if (w->leaving)
        send_drain(w, r);
    worker_wake(w);
}

static void on_down(void *arg, struct link *l, int status, const char *why)
{
    struct worker *w = arg;
    struct router *r = link_data(l);
    if (!r || r->link != l)
        return;
    r->link = NULL;
    r->down_since = worker_now(w);
    log_info("router %016llx: link lost: %s", (unsigned long long)r->instance, why);
    if (w->settings->router_grace_ms == 0)
        router_gone(w, r);
}

static void on_fill(void *arg, struct link *l, struct proto_heartbeat *h)
{
    *h = worker_load(arg);
}

static void on_heartbeat(void *arg, struct link *l, const struct proto_heartbeat *h)
{
}

static void on_silent(void *arg, struct link *l, bool silent)
{
    struct router *r = link_data(l);
    if (r)
        log_warn("router %016llx %s", (unsigned long long)r->instance,
                 silent ? "is silent" : "is heard again");
}

int links_open(struct worker *w, char *err, size_t errlen)
{
    const struct worker_settings *s = w->settings;
    size_t n;
    const uint8_t *address = xfer_address(w->xfer, &n);
    struct proto_hello self = {
        .version_min = fault_number("hello.version.min", PROTO_VERSION_MIN),
        .version_max = fault_number("hello.version", PROTO_VERSION),
        .features = PROTO_FEATURE_MOVE | PROTO_FEATURE_COPY,
        .instance = w->instance,
        .role = w->policy->role,
        .name = {w->name, strlen(w->name)},
        .model_name = {w->model_name, strlen(w->model_name)},
        .model = w->info.model,
        .kv_layout = {w->info.kv_layout, strlen(w->info.kv_layout)},
        .numerics = {w->info.numerics, strlen(w->info.numerics)},
        .data_address = {address, n},
        .kv_blocks = kv_pool_size(w->pool),
        .kv_block_size = w->info.kv_block_size,
        .n_layers = w->info.n_layers,
        .context = w->info.context,
        .vocab = w->info.vocab,
        .max_batch = (uint32_t)s->max_batch,
        .prefill_chunk = (uint32_t)s->prefill_chunk,
    };
    struct link_options o = {.heartbeat_ms = (uint64_t)s->heartbeat_ms,
                             .stall_ms = (uint64_t)s->stall_ms,
                             .dead_ms = 5 * (uint64_t)s->stall_ms,
                             .connect_timeout_ms = 5000,
                             .reconnect_min_ms = 50,
                             .reconnect_max_ms = 1000,
                             .queue_max = (size_t)64 << 20,
                             .key = w->key,
                             .certificates = w->certificates};
    static const struct link_callbacks cb = {.hello = on_hello,
                                             .up = on_up,
                                             .message = on_message,
                                             .heartbeat = on_heartbeat,
                                             .fill_heartbeat = on_fill,
                                             .silent = on_silent,
                                             .down = on_down};
    return link_listen(w->loop, s->listen, &self, &o, &cb, w, &w->listener, err, errlen);
}

void links_close(struct worker *w)
{
    if (w->listener)
        link_listener_close(w->listener);
    w->listener = NULL;
    LIST_FOR_SAFE (n, &w->routers) {
        struct router *r = container_of(n, struct router, node);
        if (r->link) {
            link_set_data(r->link, NULL);
            link_close(r->link);
        }
        outbox_fini(&r->outbox);
        drop_notes(r);
        list_remove(n);
        free(r);
    }
}

void links_flush(struct worker *w)
{
    struct proto_token list[TOKENS_FRAME_MAX];
    LIST_FOR (n, &w->routers) {
        struct router *r = container_of(n, struct router, node);
        while (r->link && !r->back_since && r->outbox.unsent > 0) {
            struct proto_msg m = {.type = PROTO_TOKENS};
            m.tokens.list = list;
            m.tokens.n = outbox_collect(&r->outbox, list, TOKENS_FRAME_MAX);
            router_send(r, &m);
        }
    }
}

void links_tick(struct worker *w, uint64_t now)
{
    LIST_FOR_SAFE (n, &w->routers) {
        struct router *r = container_of(n, struct router, node);
        if (!r->link && now - r->down_since >= (uint64_t)w->settings->router_grace_ms)
            router_gone(w, r);
        else if (r->back_since && now - r->back_since >= (uint64_t)w->settings->stall_ms)
            resumed(w, r); /* without RESUME: all that was not acknowledged comes again */
        else
            outbox_expire(&r->outbox, now, (uint64_t)w->settings->lease_ms);
    }
}

void links_drain(struct worker *w)
{
    LIST_FOR (n, &w->routers)
        send_drain(w, container_of(n, struct router, node));
}

bool links_any(const struct worker *w)
{
    LIST_FOR (n, &w->routers) {
        if (container_of(n, struct router, node)->link)
            return true;
    }
    return false;
}

bool links_idle(const struct worker *w)
{
    LIST_FOR (n, &w->routers) {
        const struct router *r = container_of(n, struct router, node);
        if (r->link && (!list_empty(&r->outbox.streams) || link_queued(r->link) > 0))
            return false;
    }
    return true;
}
