/* worker_side: a worker's life and its link to the router, as common/worker/links.c has them. */
#include "tests/protocol/world.h"

void node_start(struct world *w, struct node *n)
{
    n->alive = true;
    n->stopped = n->known = n->linked = false;
    n->instance = ++w->instances;
    n->n_notices = 0;
    n->arrivals = 0;
    n->flying = n->landing = 0;
    n->computing = NULL;
    n->n_stepping = n->n_jobs = 0;
    n->moved_ms = w->now;
    list_init(&n->jobs);
    outbox_init(&n->outbox);
    if (kv_pool_create(w->s->blocks + 1, BLOCK, w->s->prefix_cache, &n->pool) != STATUS_OK)
        world_fail(w, "no memory");
    struct ticket_config c = {.n_layers = w->s->layers,
                              .block_size = BLOCK,
                              .context = CONTEXT,
                              .lease_ms = LEASE_MS,
                              .waiting_max = 8};
    ticket_table_init(&n->tickets, &c, n->pool);
}

/* Its memory is gone; what it has sent is still on its way. */
void node_kill(struct world *w, struct node *n)
{
    struct control *c = &w->control[n->index];
    c->whole = c->w_stale = false;
    c->to_w.n = 0;
    for (uint32_t i = 0; i < NODES; i++) {
        if (i == n->index)
            continue;
        data_queue(w, i, n->index)->n = 0;
        if (w->nodes[i].alive)
            notice_later(&w->nodes[i], n->instance);
    }
    p_close(n);
    d_close(n);
    outbox_fini(&n->outbox);
    kv_pool_destroy(n->pool);
    n->pool = NULL;
    n->alive = n->known = n->linked = n->stopped = false;
    n->instance = 0;
}

static void router_gone(struct world *w, struct node *n)
{
    if (w->mutant == MUTANT_NO_GRACE)
        return;
    SAY(w, "  %s frees what the router has left", node_name(w, n->instance));
    p_router_gone(w, n);
    d_router_gone(w, n);
    outbox_fini(&n->outbox);
    n->known = false;
}

void node_down(struct world *w, struct node *n)
{
    w->control[n->index].w_stale = false;
    n->linked = false;
    n->down_ms = w->now;
}

void node_lost(struct world *w, struct node *n, const struct seq_key *k, enum proto_reason reason,
               bool parked)
{
    struct msg m = {.type = PROTO_LOST,
                    .counter = k->counter,
                    .attempt = k->attempt,
                    .reason = reason,
                    .parked = parked};
    send_to_router(w, n, &m); /* when the link is down, RESUME asks again */
}

static void resumed(struct node *n, bool rewind)
{
    n->back_ms = 0;
    if (rewind)
        outbox_rewind(&n->outbox);
}

static void on_resume(struct world *w, struct node *n, const struct msg *m)
{
    p_keep_only(w, n, m->pos, m->n);
    d_keep_only(w, n, m->pos, m->n);
    outbox_keep_only(&n->outbox, m->pos, m->n);
    for (uint32_t i = 0; i < m->n; i++) {
        const struct proto_seq_pos *p = &m->pos[i];
        struct seq_key key = {ROUTER, p->counter, p->attempt, p->choice};
        bool here = p_resume(w, n, &key);
        if (!here && !ticket_by_key(&n->tickets, &key) && !outbox_has(&n->outbox, p) &&
            w->mutant != MUTANT_NO_RESUME_ANSWER)
            node_lost(w, n, &key, PROTO_REASON_UNKNOWN, false);
        outbox_ack(&n->outbox, p);
    }
    resumed(n, w->mutant != MUTANT_NO_REWIND);
}

static void on_up(struct world *w, struct node *n)
{
    w->control[n->index].w_stale = false; /* an older link is a corpse */
    n->back_ms = n->known ? w->now : 0;
    if (!n->known)
        outbox_init(&n->outbox);
    n->known = n->linked = true;
}

static void on_cancel(struct world *w, struct node *n, const struct msg *m)
{
    if (w->n_canceled < 64 && n->decode) {
        w->canceled[w->n_canceled].node = n->index;
        w->canceled[w->n_canceled].counter = m->counter;
        w->canceled[w->n_canceled].attempt = m->attempt;
        w->canceled[w->n_canceled++].at_ms = w->now;
    }
    p_cancel(w, n, m->counter, m->attempt);
    if (n->decode)
        d_cancel(w, n, m->counter, m->attempt);
    outbox_cancel(&n->outbox, m->counter, m->attempt);
}

void node_message(struct world *w, struct node *n, const struct msg *m)
{
    switch (m->type) {
    case MSG_UP:
        on_up(w, n);
        break;
    case PROTO_RESUME:
        on_resume(w, n, m);
        break;
    case PROTO_CANCEL:
        on_cancel(w, n, m);
        break;
    case PROTO_ACK:
        for (uint32_t i = 0; i < m->n; i++)
            outbox_ack(&n->outbox, &m->pos[i]);
        break;
    case PROTO_PREFILL:
        p_accept(w, n, m);
        break;
    case PROTO_REDIRECT:
        p_redirect(w, n, m);
        break;
    case PROTO_MOVE:
        if (m->copy)
            c_start(w, n, m);
        else
            m_start(w, n, m);
        break;
    }
}

void node_flush(struct world *w, struct node *n)
{
    if (n->decode)
        d_admit(w, n);
    while (n->linked && n->back_ms == 0 && n->outbox.unsent > 0) {
        struct msg m = {.type = PROTO_TOKENS};
        m.n = outbox_collect(&n->outbox, m.tokens, 4);
        send_to_router(w, n, &m);
    }
}

void node_notice(struct world *w, struct node *n, uint64_t instance)
{
    for (uint32_t i = 0; i < n->n_notices; i++) {
        if (n->notices[i] == instance)
            n->notices[i--] = n->notices[--n->n_notices];
    }
    p_peer_lost(w, n, instance);
    d_peer_lost(w, n, instance);
}

/* peers_tick: nothing moves to or from a peer that has stopped. */
static void stuck_transfers(struct world *w, struct node *n)
{
    for (uint32_t i = 0; i < 2 * FLIGHTS && w->now - n->moved_ms > 4 * STALL_MS; i++) {
        const struct flight *f = &n->flights[i % FLIGHTS];
        uint64_t peer = 0;
        if (i < FLIGHTS && n->flying & 1u << i && f->state == FLIGHT_FLYING)
            peer = f->to;
        else if (i >= FLIGHTS && n->landing & 1u << (i - FLIGHTS))
            peer = n->landings[i - FLIGHTS].from;
        if (peer == 0)
            continue;
        struct node *other = node_of(w, peer);
        if (other)
            net_tear(w, n, other);
        node_notice(w, n, peer);
    }
}

void node_tick(struct world *w, struct node *n)
{
    p_tick(w, n);
    d_tick(w, n);
    stuck_transfers(w, n);
    if (n->known && !n->linked && w->now - n->down_ms >= GRACE_MS)
        router_gone(w, n);
    else if (n->back_ms && w->now - n->back_ms >= STALL_MS)
        resumed(n, true);
    else
        outbox_expire(&n->outbox, w->now, LEASE_MS);
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t node_due(const struct node *n)
{
    uint64_t at = earlier(p_due(n), d_due(n));
    if (n->known && !n->linked)
        at = earlier(at, n->down_ms + GRACE_MS);
    if (n->back_ms)
        at = earlier(at, n->back_ms + STALL_MS);
    bool moving = n->landing != 0;
    for (uint32_t bits = n->flying; bits; bits &= bits - 1)
        moving |= n->flights[__builtin_ctz(bits)].state == FLIGHT_FLYING;
    if (moving)
        at = earlier(at, n->moved_ms + 4 * STALL_MS + 1);
    LIST_FOR (it, &n->outbox.streams) {
        const struct stream *s = container_of(it, struct stream, node);
        if (s->released && s->sent == s->n)
            at = earlier(at, s->since + LEASE_MS + 1);
    }
    return at;
}

bool node_is_idle(const struct node *n)
{
    return !n->alive ||
           (n->n_jobs == 0 && list_empty(&n->tickets.all) && !n->computing && n->n_stepping == 0 &&
            kv_pool_free(n->pool) == kv_pool_size(n->pool) && list_empty(&n->outbox.streams));
}

/* Every block has exactly the references of those who own it, and only the cache shares them. */
void node_check(struct world *w, struct node *n)
{
    uint32_t refs[BLOCKS + 1] = {0}, shared[BLOCKS + 1] = {0}, used = 0;
    if (!n->alive)
        return;
    LIST_FOR (it, &n->jobs) {
        const struct job *j = container_of(it, struct job, node);
        for (uint32_t i = 0; i < j->n_blocks; i++) {
            refs[j->blocks[i]]++;
            shared[j->blocks[i]] += n->decode; /* with its sequence */
        }
    }
    LIST_FOR (it, &n->tickets.all) {
        const struct ticket *k = container_of(it, struct ticket, node);
        for (uint32_t i = 0; i < k->n_blocks; i++)
            refs[k->blocks[i]]++;
    }
    for (uint32_t b = 1; b <= w->s->blocks; b++) {
        used += refs[b] > 0;
        if (refs[b] != kv_pool_refs(n->pool, b))
            world_fail(w, "%s: block %u has %u owners and %u references", node_name(w, n->instance),
                       b, refs[b], kv_pool_refs(n->pool, b));
        if (refs[b] > 1 + shared[b] && !w->s->prefix_cache)
            world_fail(w, "%s: block %u is owned twice", node_name(w, n->instance), b);
    }
    if (used + kv_pool_free(n->pool) != kv_pool_size(n->pool))
        world_fail(w, "%s: %u blocks are used and %u free", node_name(w, n->instance), used,
                   kv_pool_free(n->pool));
}
