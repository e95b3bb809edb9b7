/* decode_side: tickets and sequences of a decode worker, as common/worker/decode.c, receiver.c and
 * steps.c have them. */
#include "tests/protocol/world.h"

#include <stdlib.h>

static void refuse(struct world *w, struct node *n, uint64_t to, const struct seq_key *k,
                   enum proto_reason reason)
{
    struct msg m = {
        .type = PROTO_REFUSE, .counter = k->counter, .attempt = k->attempt, .reason = reason};
    send_to_peer(w, n, to, &m);
}

void d_end(struct world *w, struct node *n, struct ticket *k)
{
    if (k->move)
        p_end(w, n, k->move);
    c_stop(w, n, k);
    stream_drop(k->stream);
    k->stream = NULL;
    if (w->mutant == MUTANT_NO_QUARANTINE && k->holds > 0 && k->state == TICKET_FILLING) {
        for (uint32_t i = 0; i < FLIGHTS; i++) {
            if (n->landing & 1u << i && n->landings[i].ticket == k)
                n->landings[i].freed = true;
        }
        k->holds = 0;
    }
    ticket_end(&n->tickets, k);
}

static void send_grant(struct world *w, struct node *n, struct ticket *k)
{
    struct msg m = {
        .type = PROTO_GRANT, .counter = k->key.counter, .attempt = k->key.attempt, .held = k->held};
    memcpy(m.ticket, k->id, sizeof m.ticket);
    send_to_peer(w, n, k->source, &m);
}

static void check_grant(struct world *w, struct node *n, struct ticket *k)
{
    if (w->mutant == MUTANT_SAME_TICKET) {
        HASH_DELETE(by_id, n->tickets.by_id, k);
        memset(k->id, 9, sizeof k->id);
        HASH_ADD(by_id, n->tickets.by_id, id, sizeof k->id, k);
    }
    for (uint32_t i = 0; i < w->n_tickets; i++) {
        if (memcmp(w->tickets[i], k->id, sizeof k->id) == 0)
            world_fail(w, "%s: a ticket is used again for %s", node_name(w, n->instance),
                       seq_text(&k->key));
    }
    if (w->n_tickets < 64)
        memcpy(w->tickets[w->n_tickets++], k->id, sizeof k->id);
    for (uint32_t i = 0; i < w->n_canceled; i++) {
        if (w->canceled[i].node == n->index && w->canceled[i].counter == k->key.counter &&
            w->canceled[i].attempt == k->key.attempt && w->now < w->canceled[i].at_ms + LEASE_MS)
            world_fail(w, "%s: %s is granted after its CANCEL", node_name(w, n->instance),
                       seq_text(&k->key));
    }
}

void d_admit(struct world *w, struct node *n)
{
    struct ticket *k;
    while ((k = ticket_admit(&n->tickets, w->now))) {
        check_grant(w, n, k);
        send_grant(w, n, k);
    }
}

static void on_reserve(struct world *w, struct node *n, const struct msg *m)
{
    struct seq_key key = {ROUTER, m->counter, m->attempt, 0};
    struct ticket_request q = {.key = key,
                               .source = m->instance,
                               .ids = m->ids,
                               .n_ids = m->n,
                               .n_tokens = m->room,
                               .salt = "",
                               .copy = m->copy && w->mutant != MUTANT_COPY_RUNS};
    struct ticket *k = NULL;
    enum proto_reason bad = n->known && n->linked ? PROTO_REASON_NONE : PROTO_REASON_NO_ROUTER;
    if (bad == PROTO_REASON_NONE)
        bad = ticket_reserve(&n->tickets, w->now, &q, &k);
    if (bad != PROTO_REASON_NONE) {
        refuse(w, n, m->instance, &key, bad);
        return;
    }
    if (k->state != TICKET_WAITING) {
        send_grant(w, n, k);
        return;
    }
    d_admit(w, n);
    k = ticket_by_key(&n->tickets, &key);
    if (!k || k->state != TICKET_WAITING)
        return;
    if (k->copy) {
        refuse(w, n, m->instance, &key, PROTO_REASON_FULL);
        d_end(w, n, k);
        return;
    }
    struct msg wait = {.type = PROTO_WAIT, .counter = m->counter, .attempt = m->attempt};
    send_to_peer(w, n, m->instance, &wait);
}

/* ---- KV ---- */

static void on_kv(struct world *w, struct node *n, const struct msg *m)
{
    struct ticket *k = ticket_by_id(&n->tickets, m->ticket);
    struct node *p = node_of(w, m->instance);
    uint32_t i = (uint32_t)__builtin_ctz(~n->landing);
    if (i >= FLIGHTS) {
        world_fail(w, "too many landings for the model");
        return;
    }
    if (!k || k->source != m->instance ||
        !ticket_kv_begin(&n->tickets, k, w->now, m->layer, m->first, m->n)) {
        if (p) /* what is dropped completes as well */
            p->flights[m->flight].state = FLIGHT_DONE;
        return;
    }
    struct landing *l = &n->landings[i];
    *l = (struct landing){.ticket = k,
                          .from = m->instance,
                          .flight = m->flight,
                          .layer = m->layer,
                          .first = m->first,
                          .n = m->n};
    for (uint32_t b = 0; b < m->n; b++) {
        l->blocks[b] = k->blocks[m->first + b];
        l->sums[b] = m->sums[b];
    }
    if ((n->flying | n->landing) == 0)
        n->moved_ms = w->now;
    n->landing |= 1u << i;
}

static void verify(struct world *w, struct node *n, struct ticket *k);

/* The bytes are read where the sender has them, and written where the receive was posted, whatever
 * has become of the ticket. */
void d_land(struct world *w, struct node *n, uint32_t landing, bool ok, bool flip)
{
    struct landing l = n->landings[landing];
    struct node *p = node_of(w, l.from);
    bool right[IDS / BLOCK];
    n->landing &= ~(1u << landing);
    n->moved_ms = w->now;
    if (ok) {
        struct flight *f = &p->flights[l.flight];
        for (uint32_t b = 0; b < l.n; b++)
            n->kv[l.layer][l.blocks[b]] = p->kv[l.layer][f->blocks[b]] ^ (flip ? 2 : 0);
        f->state = FLIGHT_DONE;
    }
    if (l.freed)
        return;
    struct ticket *k = l.ticket;
    bool filling = k->state == TICKET_FILLING;
    for (uint32_t b = 0; b < l.n; b++)
        right[b] = n->kv[l.layer][l.blocks[b]] == l.sums[b] || w->mutant == MUTANT_NO_CHECKSUM;
    ticket_kv_end(&n->tickets, k, w->now, l.layer, l.first, l.n, l.sums,
                  ok && filling ? right : NULL);
    if (filling)
        verify(w, n, k);
}

/* ---- hand-over ---- */

static void send_handoff_ok(struct world *w, struct node *n, const struct ticket *k)
{
    struct msg m = {.type = PROTO_HANDOFF_OK};
    memcpy(m.ticket, k->id, sizeof m.ticket);
    send_to_peer(w, n, k->source, &m);
}

static void take_over(struct world *w, struct node *n, struct ticket *k)
{
    ticket_seal(&n->tickets, k);
    if (k->copy) {
        send_handoff_ok(w, n, k);
        d_end(w, n, k);
        return;
    }
    if (!n->known) {
        refuse(w, n, k->source, &k->key, PROTO_REASON_NO_ROUTER);
        d_end(w, n, k);
        return;
    }
    if (ticket_activate(&n->tickets, k, w->now) != STATUS_OK ||
        !(k->stream = stream_open(&n->outbox, k->key.counter, k->key.attempt, 0)))
        world_fail(w, "no memory");
    for (uint32_t i = 0; i < k->n_earlier; i++) {
        if (stream_push(k->stream, &k->earlier[i]) != STATUS_OK)
            world_fail(w, "no memory");
    }
    if (stream_push(k->stream, &k->last) != STATUS_OK)
        world_fail(w, "no memory");
    uint32_t *active = &w->seqs[k->key.counter - 1].active[k->key.attempt % 32];
    if (++*active > 1)
        world_fail(w, "%s became active twice", seq_text(&k->key));
    send_handoff_ok(w, n, k);
}

static void verify(struct world *w, struct node *n, struct ticket *k)
{
    struct proto_extent list[8];
    struct msg m = {.type = PROTO_HANDOFF_BAD};
    uint32_t count;
    if (!k->verify_due)
        return;
    switch (ticket_verify(&n->tickets, k, list, 8, &count)) {
    case TICKET_PENDING:
        return;
    case TICKET_COMPLETE:
        k->verify_due = false;
        take_over(w, n, k);
        return;
    case TICKET_MISSING:
        k->verify_due = false;
        m.n = count;
        memcpy(m.extents, list, count * sizeof *list);
        memcpy(m.ticket, k->id, sizeof m.ticket);
        send_to_peer(w, n, k->source, &m);
        return;
    case TICKET_HOPELESS:
        refuse(w, n, k->source, &k->key, PROTO_REASON_CORRUPT);
        d_end(w, n, k);
        return;
    }
}

static void on_handoff(struct world *w, struct node *n, const struct msg *m)
{
    struct seq_key key = {ROUTER, m->counter, m->attempt, 0};
    struct ticket *k = ticket_by_id(&n->tickets, m->ticket);
    if (!k || k->source != m->instance || memcmp(&k->key, &key, sizeof key) != 0) {
        bool canceled = ticket_buried(&n->tickets, w->now, &key);
        refuse(w, n, m->instance, &key, canceled ? PROTO_REASON_CANCELED : PROTO_REASON_TIMEOUT);
        return;
    }
    if (k->state == TICKET_SEALED || k->state == TICKET_ACTIVE) {
        send_handoff_ok(w, n, k);
        return;
    }
    struct proto_handoff h = {.instance = m->instance,
                              .job = {.request = seq_request(&key),
                                      .prompt = {m->ids, m->prompt},
                                      .emitted = {m->ids + m->prompt, m->n - m->prompt},
                                      .max_tokens = m->max_tokens,
                                      .deadline_ms = REQUEST_MS},
                              .last = {.position = m->n - m->prompt - 1, .token = m->ids[m->n - 1]},
                              .digest = m->digest};
    struct proto_token earlier[IDS];
    h.earlier = earlier;
    h.n_earlier = m->earlier;
    for (uint32_t i = 0; i < m->earlier && m->earlier <= h.last.position; i++) {
        uint32_t position = h.last.position - m->earlier + i;
        earlier[i] = (struct proto_token){.position = position, .token = h.job.emitted.p[position]};
    }
    enum proto_reason bad = ticket_handoff(&n->tickets, k, &h);
    if (bad != PROTO_REASON_NONE) {
        refuse(w, n, m->instance, &key, bad);
        d_end(w, n, k);
        return;
    }
    k->verify_due = true;
    verify(w, n, k);
}

void d_message(struct world *w, struct node *n, const struct msg *m)
{
    struct seq_key key = {ROUTER, m->counter, m->attempt, 0};
    struct ticket *k;
    switch (m->type) {
    case PROTO_RESERVE:
        on_reserve(w, n, m);
        break;
    case PROTO_HANDOFF:
        on_handoff(w, n, m);
        break;
    case PROTO_RELEASE:
        k = ticket_by_key(&n->tickets, &key);
        if (k && k->source == m->instance && k->state != TICKET_ACTIVE)
            d_end(w, n, k);
        break;
    case MSG_KV:
        on_kv(w, n, m);
        break;
    }
}

/* ---- from the router ---- */

void d_cancel(struct world *w, struct node *n, uint64_t counter, uint32_t attempt)
{
    if (w->mutant != MUTANT_NO_TOMBSTONE)
        ticket_tombstone(&n->tickets, w->now, ROUTER, counter, attempt);
    LIST_FOR_SAFE (it, &n->tickets.all) {
        struct ticket *k = container_of(it, struct ticket, node);
        if (k->key.counter == counter && k->key.attempt == attempt && k->state != TICKET_QUARANTINE)
            d_end(w, n, k);
    }
}

static void give_up(struct world *w, struct node *n, struct ticket *k)
{
    if (k->state >= TICKET_SEALED)
        node_lost(w, n, &k->key, PROTO_REASON_UNKNOWN, false);
    else
        refuse(w, n, k->source, &k->key, PROTO_REASON_NO_ROUTER);
    d_end(w, n, k);
}

void d_router_gone(struct world *w, struct node *n)
{
    LIST_FOR_SAFE (it, &n->tickets.all) {
        struct ticket *k = container_of(it, struct ticket, node);
        if (k->state != TICKET_QUARANTINE)
            give_up(w, n, k);
    }
}

void d_keep_only(struct world *w, struct node *n, const struct proto_seq_pos *list, uint32_t count)
{
    LIST_FOR_SAFE (it, &n->tickets.all) {
        struct ticket *k = container_of(it, struct ticket, node);
        bool wanted = k->state == TICKET_QUARANTINE;
        for (uint32_t i = 0; i < count && !wanted; i++)
            wanted = list[i].counter == k->key.counter && list[i].attempt == k->key.attempt;
        if (!wanted)
            give_up(w, n, k);
    }
}

void d_peer_lost(struct world *w, struct node *n, uint64_t instance)
{
    for (uint32_t bits = n->landing; bits; bits &= bits - 1) {
        uint32_t i = (uint32_t)__builtin_ctz(bits);
        if (n->landing & 1u << i && n->landings[i].from == instance)
            d_land(w, n, i, false, false);
    }
    LIST_FOR_SAFE (it, &n->tickets.all) {
        struct ticket *k = container_of(it, struct ticket, node);
        if (k->source == instance && k->state < TICKET_SEALED)
            d_end(w, n, k);
    }
}

/* ---- engine ---- */

bool d_can_step(const struct node *n)
{
    LIST_FOR (it, &n->tickets.all) {
        const struct ticket *k = container_of(it, struct ticket, node);
        if (k->state == TICKET_ACTIVE && !k->frozen)
            return true;
    }
    return n->n_stepping > 0;
}

static bool grow(struct world *w, struct node *n, struct ticket *k)
{
    while (ticket_grow(&n->tickets, k) != STATUS_OK) {
        if (n->tickets.n_quarantine > 0 || p_preempt(w, n))
            return false;
        struct ticket *youngest = ticket_youngest(&n->tickets);
        bool self = youngest == k;
        if (youngest->state == TICKET_ACTIVE)
            node_lost(w, n, &youngest->key, PROTO_REASON_PREEMPTED, false);
        else
            refuse(w, n, youngest->source, &youngest->key, PROTO_REASON_PREEMPTED);
        d_end(w, n, youngest);
        if (self)
            return false;
    }
    return true;
}

static int by_admission(const void *a, const void *b)
{
    const struct ticket *x = *(struct ticket *const *)a, *y = *(struct ticket *const *)b;
    return x->admitted < y->admitted ? -1 : x->admitted > y->admitted;
}

static void begin_step(struct world *w, struct node *n)
{
    struct ticket *list[SEQS * 2];
    uint32_t count = 0;
    LIST_FOR (it, &n->tickets.all) {
        struct ticket *k = container_of(it, struct ticket, node);
        if (k->state == TICKET_ACTIVE && count < SEQS * 2)
            list[count++] = k;
    }
    if (count > 1)
        qsort(list, count, sizeof *list, by_admission);
    for (uint32_t i = 0; i < count && i < n->tickets.n_active; i++) {
        struct ticket *k = list[i];
        if ((k->frozen && w->mutant != MUTANT_NOT_FROZEN) || !grow(w, n, k))
            continue;
        k->in_step = true;
        ticket_hold(k);
        n->stepping[n->n_stepping++] = k;
    }
}

/* The row of one sequence: reads all its KV and adds that of its last token. */
static int32_t compute(struct world *w, struct node *n, const struct ticket *k)
{
    uint32_t n_kv = k->n_tokens - 1;
    bool right = true;
    for (uint32_t l = 0; l < w->s->layers; l++) {
        for (uint32_t i = 0; i * BLOCK < n_kv; i++) {
            uint32_t stop = (i + 1) * BLOCK < n_kv ? (i + 1) * BLOCK : n_kv;
            right &= n->kv[l][k->blocks[i]] == kv_of(l, k->tokens, stop);
        }
        n->kv[l][k->blocks[n_kv / BLOCK]] = kv_of(l, k->tokens, k->n_tokens);
    }
    return right ? token_of(k->tokens, k->n_tokens, n->numerics) : 1;
}

static void stepped(struct world *w, struct node *n, struct ticket *k)
{
    int32_t token = k->state == TICKET_ACTIVE ? compute(w, n, k) : 0;
    bool active = k->state == TICKET_ACTIVE;
    k->in_step = false;
    ticket_unhold(&n->tickets, k);
    if (!active)
        return;
    struct proto_token t = {.position = k->emitted, .token = token};
    k->tokens[k->n_tokens++] = t.token;
    k->emitted++;
    t.finish = spec_finish(&k->spec.job, t.token, k->emitted, k->n_tokens, CONTEXT);
    if (t.finish == PROTO_FINISH_NONE && !ticket_fits(&n->tickets, k))
        t.finish = PROTO_FINISH_LENGTH;
    if (stream_push(k->stream, &t) != STATUS_OK) {
        node_lost(w, n, &k->key, PROTO_REASON_INTERNAL, false);
        d_end(w, n, k);
        return;
    }
    if (t.finish == PROTO_FINISH_NONE) {
        if (k->move)
            m_stepped(w, n, k);
        else
            c_advance(w, n, k);
        return;
    }
    stream_release(k->stream, w->now);
    k->stream = NULL;
    d_end(w, n, k);
}

void d_step(struct world *w, struct node *n)
{
    if (n->n_stepping == 0) {
        begin_step(w, n);
        return;
    }
    uint32_t count = n->n_stepping;
    n->n_stepping = 0;
    for (uint32_t i = 0; i < count; i++)
        stepped(w, n, n->stepping[i]);
}

/* ---- time ---- */

void d_tick(struct world *w, struct node *n)
{
    struct ticket *k;
    while (w->mutant != MUTANT_NO_LEASE && (k = ticket_expired(&n->tickets, w->now))) {
        refuse(w, n, k->source, &k->key, PROTO_REASON_TIMEOUT);
        d_end(w, n, k);
    }
    LIST_FOR_SAFE (it, &n->tickets.all) {
        k = container_of(it, struct ticket, node);
        if (k->state != TICKET_ACTIVE || w->now < k->expires_ms)
            continue;
        node_lost(w, n, &k->key, PROTO_REASON_TIMEOUT, false);
        d_end(w, n, k);
    }
}

uint64_t d_due(const struct node *n)
{
    uint64_t at = UINT64_MAX;
    LIST_FOR (it, &n->tickets.all) {
        const struct ticket *k = container_of(it, struct ticket, node);
        uint64_t due = UINT64_MAX;
        if (k->state >= TICKET_RESERVED && k->state <= TICKET_SEALED)
            due = k->deadline;
        else if (k->state == TICKET_ACTIVE)
            due = k->expires_ms;
        at = due < at ? due : at;
    }
    return at;
}

void d_close(struct node *n)
{
    ticket_table_fini(&n->tickets);
    n->n_stepping = 0;
}
