/* decode: tickets and the sequences they become (R3, R5, R7).
 *
 * The state machine is ticket.c; here is what it says to the outside: GRANT, WAIT and REFUSE to
 * prefill workers, tokens and LOST to routers. Whoever gives blocks back calls worker_wake, so that
 * those who wait are granted and those who stall go on. */
#include "common/worker/internal.h"

#include <string.h>

#define MISSING_MAX 1024 /* extents in one HANDOFF_BAD */

static void refuse(struct worker *w, uint64_t to, const struct seq_key *k, enum proto_reason reason,
                   const char *detail)
{
    struct peer *p = peer_find(w, to);
    struct proto_msg m = {.type = PROTO_REFUSE,
                          .refuse = {.request = seq_request(k),
                                     .choice = k->choice,
                                     .instance = w->instance,
                                     .reason = reason,
                                     .detail = {detail, strlen(detail)}}};
    log_info_about(worker_about(w, k), "%s refused: %s %s", seq_text(k), proto_reason_name(reason),
                   detail);
    if (p && !peer_send(p, &m))
        log_debug_about(worker_about(w, k), "%s: REFUSE not sent", seq_text(k));
}

void decode_end(struct worker *w, struct ticket *k)
{
    if (k->move)
        prefill_end(w, k->move);
    replica_stop(w, k);
    stream_drop(k->stream);
    k->stream = NULL;
    ticket_end(&w->tickets, k);
    worker_wake(w);
}

static void send_grant(struct worker *w, struct ticket *k)
{
    struct peer *p = peer_find(w, k->source);
    struct proto_msg m = {.type = PROTO_GRANT,
                          .grant = {.request = seq_request(&k->key),
                                    .choice = k->key.choice,
                                    .instance = w->instance,
                                    .held_blocks = k->held,
                                    .lease_ms = (uint32_t)w->settings->lease_ms}};
    memcpy(m.grant.ticket, k->id, sizeof k->id);
    if (!p || !peer_send(p, &m))
        decode_end(w, k); /* its prefill worker is gone */
}

void decode_admit(struct worker *w)
{
    struct ticket *k;
    while ((k = ticket_admit(&w->tickets, worker_now(w)))) {
        metrics_add(w->metrics.hit_tokens, (double)k->held * w->info.kv_block_size);
        log_debug_about(ticket_about(k), "ticket %s: granted %u blocks, %u of them held",
                        seq_text(&k->key), k->n_blocks, k->held);
        send_grant(w, k);
    }
}

/* RESERVE. */

static bool mac_ok(struct worker *w, const struct proto_reserve *m)
{
    uint8_t mac[32];
    if (w->key.n == 0)
        return true;
    mac_reserve(&w->key, m->request.router, m->request.counter, m->request.attempt, m->instance,
                w->instance, mac);
    return mac_equal(mac, m->mac);
}

static enum proto_reason refuse_reserve(struct worker *w, const struct proto_reserve *m,
                                        const char **detail)
{
    if (w->policy->role != PROTO_DECODE_WORKER) {
        *detail = "not a decode worker";
        return PROTO_REASON_MISMATCH;
    }
    if (w->draining)
        return PROTO_REASON_DRAINING;
    if (fault("reserve") == FAULT_REFUSE)
        return PROTO_REASON_FULL;
    if (!router_is_up(w, m->request.router))
        return PROTO_REASON_NO_ROUTER;
    if (m->copy && !w->settings->prefix_cache) {
        *detail = "prefix_cache is off";
        return PROTO_REASON_MISMATCH;
    }
    if (m->model != w->info.model) {
        *detail = "another model";
        return PROTO_REASON_MISMATCH;
    }
    if (m->kv_layout.n != strlen(w->info.kv_layout) ||
        memcmp(m->kv_layout.p, w->info.kv_layout, m->kv_layout.n) != 0) {
        *detail = "another KV layout";
        return PROTO_REASON_MISMATCH;
    }
    for (size_t i = 0; i < m->ids.n; i++) {
        if (m->ids.p[i] < 0 || (uint32_t)m->ids.p[i] >= w->info.vocab) {
            *detail = "a token id is outside of the vocabulary";
            return PROTO_REASON_INVALID;
        }
    }
    return PROTO_REASON_NONE;
}

static void on_reserve(struct worker *w, const struct proto_reserve *m)
{
    struct seq_key key = seq_key_of(&m->request, m->choice);
    const char *detail = "";
    if (!mac_ok(w, m)) { /* a known worker is told; to a stranger not even a connection is opened */
        refuse(w, m->instance, &key, PROTO_REASON_AUTH, "");
        return;
    }
    if (!peer_get(w, m->instance, m->data_address.p, m->data_address.n)) {
        log_warn_about(seq_about(&key), "%s: RESERVE from a worker that cannot be reached",
                       seq_text(&key));
        return;
    }
    enum proto_reason bad = refuse_reserve(w, m, &detail);
    struct ticket_request q = {.key = key,
                               .source = m->instance,
                               .ids = m->ids.p,
                               .n_ids = (uint32_t)m->ids.n,
                               .n_tokens = m->n_tokens,
                               .salt = m->salt.n ? m->salt.p : "",
                               .n_salt = m->salt.n,
                               .priority = m->priority,
                               .copy = m->copy};
    struct ticket *k = NULL;
    if (bad == PROTO_REASON_NONE)
        bad = ticket_reserve(&w->tickets, worker_now(w), &q, &k);
    if (bad != PROTO_REASON_NONE) {
        refuse(w, m->instance, &key, bad, detail);
        return;
    }
    if (k->state != TICKET_WAITING) { /* a repetition */
        send_grant(w, k);
        return;
    }
    decode_admit(w);
    k = ticket_by_key(&w->tickets, &key);
    if (!k || k->state != TICKET_WAITING)
        return;
    if (k->copy) { /* nobody waits behind it */
        refuse(w, m->instance, &key, PROTO_REASON_FULL, "no room for a copy");
        decode_end(w, k);
        return;
    }
    struct proto_msg wait = {
        .type = PROTO_WAIT,
        .wait = {.request = m->request, .choice = m->choice, .instance = w->instance}};
    struct peer *p = peer_find(w, m->instance);
    if (!p || !peer_send(p, &wait))
        decode_end(w, k);
}

static void on_release(struct worker *w, const struct proto_release *m)
{
    struct seq_key key = seq_key_of(&m->request, m->choice);
    struct ticket *k = ticket_by_key(&w->tickets, &key);
    if (!k || k->source != m->instance || k->state == TICKET_ACTIVE)
        return; /* what is active is the router's business alone */
    decode_end(w, k);
}

/* HANDOFF. */

static void send_handoff_ok(struct worker *w, const struct ticket *k)
{
    struct peer *p = peer_find(w, k->source);
    struct proto_msg m = {.type = PROTO_HANDOFF_OK, .handoff_ok = {.instance = w->instance}};
    memcpy(m.handoff_ok.ticket, k->id, sizeof k->id);
    if (p && !peer_send(p, &m))
        log_debug_about(ticket_about(k), "%s: HANDOFF_OK not sent", seq_text(&k->key));
}

static void send_handoff_bad(struct worker *w, const struct ticket *k, struct proto_extent *list,
                             uint32_t n)
{
    struct peer *p = peer_find(w, k->source);
    struct proto_msg m = {.type = PROTO_HANDOFF_BAD,
                          .handoff_bad = {.instance = w->instance, .list = list, .n = n}};
    memcpy(m.handoff_bad.ticket, k->id, sizeof k->id);
    log_warn_about(ticket_about(k),
                   "ticket %s: %u of %u pieces are right, asking for %u extents again",
                   seq_text(&k->key), k->n_good, k->n_want, n);
    if (p && !peer_send(p, &m))
        log_debug_about(ticket_about(k), "%s: HANDOFF_BAD not sent", seq_text(&k->key));
}

/* Its first frame repeats the token that the source drew last, and those before it that the router
 * may not have. */
static bool open_stream(struct router *r, struct ticket *k)
{
    k->stream = stream_open(&r->outbox, k->key.counter, k->key.attempt, k->key.choice);
    for (uint32_t i = 0; k->stream && i < k->n_earlier; i++) {
        if (stream_push(k->stream, &k->earlier[i]) != STATUS_OK)
            return false;
    }
    return k->stream && stream_push(k->stream, &k->last) == STATUS_OK;
}

/* Everything is there: the sequence is ours. */
static void take_over(struct worker *w, struct ticket *k)
{
    struct router *r = router_find(w, k->key.router);
    ticket_seal(&w->tickets, k);
    if (k->copy) { /* its blocks are in the prefix cache: that is all */
        send_handoff_ok(w, k);
        decode_end(w, k);
        return;
    }
    if (!r || ticket_activate(&w->tickets, k, worker_now(w)) != STATUS_OK || !open_stream(r, k)) {
        refuse(w, k->source, &k->key, r ? PROTO_REASON_FULL : PROTO_REASON_NO_ROUTER, "");
        decode_end(w, k);
        return;
    }
    log_debug_about(ticket_about(k), "ticket %s: active, %u tokens", seq_text(&k->key),
                    k->n_tokens);
    send_handoff_ok(w, k);
    worker_wake(w);
}

void decode_verify(struct worker *w, struct ticket *k)
{
    struct proto_extent list[MISSING_MAX];
    uint32_t n;
    if (!k->verify_due)
        return;
    switch (ticket_verify(&w->tickets, k, list, MISSING_MAX, &n)) {
    case TICKET_PENDING:
        return;
    case TICKET_COMPLETE:
        k->verify_due = false;
        take_over(w, k);
        return;
    case TICKET_MISSING:
        k->verify_due = false;
        send_handoff_bad(w, k, list, n);
        return;
    case TICKET_HOPELESS:
        refuse(w, k->source, &k->key, PROTO_REASON_CORRUPT, "");
        decode_end(w, k);
        return;
    }
}

static void on_handoff(struct worker *w, const struct proto_handoff *m)
{
    struct ticket *k = ticket_by_id(&w->tickets, m->ticket);
    struct seq_key key = seq_key_of(&m->job.request, m->job.choice);
    struct spec_limits limits = {.vocab = w->info.vocab, .context = w->info.context};
    char why[128] = "";
    if (!k || k->source != m->instance || memcmp(&k->key, &key, sizeof key) != 0) {
        bool canceled = ticket_buried(&w->tickets, worker_now(w), &key);
        refuse(w, m->instance, &key, canceled ? PROTO_REASON_CANCELED : PROTO_REASON_TIMEOUT,
               "no such ticket");
        return;
    }
    if (k->state == TICKET_SEALED || k->state == TICKET_ACTIVE) {
        send_handoff_ok(w, k); /* a repetition */
        return;
    }
    enum proto_reason bad = spec_check(&m->job, &limits, why, sizeof why);
    if (bad == PROTO_REASON_NONE)
        bad = ticket_handoff(&w->tickets, k, m);
    if (bad != PROTO_REASON_NONE) {
        refuse(w, m->instance, &key, bad, *why ? why : "not what was reserved");
        decode_end(w, k);
        return;
    }
    if (!k->copy && !k->guide &&
        guide_create(&k->spec.job, engine_thread_tokenizer(w->engine), w->info.vocab, w->grammars,
                     &k->guide) != STATUS_OK) {
        refuse(w, m->instance, &key, PROTO_REASON_INVALID,
               "what guides the answer cannot be kept here");
        decode_end(w, k);
        return;
    }
    k->verify_due = true;
    decode_verify(w, k);
}

void decode_message(struct worker *w, const struct proto_msg *m)
{
    if (!w->ready)
        return;
    switch (m->type) {
    case PROTO_RESERVE:
        on_reserve(w, &m->reserve);
        break;
    case PROTO_HANDOFF:
        on_handoff(w, &m->handoff);
        break;
    case PROTO_RELEASE:
        on_release(w, &m->release);
        break;
    default:
        break;
    }
}

bool decode_adopt(struct worker *w, struct job *j, const struct proto_handoff *h)
{
    const struct ticket_request q = {.key = j->key,
                                     .source = w->instance,
                                     .ids = j->tokens,
                                     .n_ids = j->n_tokens,
                                     .n_tokens = j->n_tokens,
                                     .salt = j->spec.job.salt.p,
                                     .n_salt = j->spec.job.salt.n,
                                     .priority = j->spec.job.priority};
    struct ticket *k = ticket_adopt(&w->tickets, &q, j->blocks, h);
    if (!k || ticket_activate(&w->tickets, k, worker_now(w)) != STATUS_OK ||
        guide_create(&k->spec.job, engine_thread_tokenizer(w->engine), w->info.vocab, w->grammars,
                     &k->guide) != STATUS_OK) {
        if (k)
            decode_end(w, k);
        return false;
    }
    k->stream = j->stream;
    j->stream = NULL;
    return true;
}

/* From routers. */

void decode_cancel(struct worker *w, uint64_t router, uint64_t counter, uint32_t attempt)
{
    ticket_tombstone(&w->tickets, worker_now(w), router, counter, attempt);
    LIST_FOR_SAFE (n, &w->tickets.all) {
        struct ticket *k = container_of(n, struct ticket, node);
        if (k->key.router == router && k->key.counter == counter && k->key.attempt == attempt &&
            k->state != TICKET_QUARANTINE)
            decode_end(w, k);
    }
}

/* Ends a ticket that neither its prefill worker nor its router has given up: whoever relies on it
 * is told, for nobody else would say so. */
static void give_up(struct worker *w, struct ticket *k)
{
    if (k->state >= TICKET_SEALED)
        router_lost(w, &k->key, PROTO_REASON_UNKNOWN, false, "not named in RESUME");
    else
        refuse(w, k->source, &k->key, PROTO_REASON_NO_ROUTER, "");
    decode_end(w, k);
}

void decode_router_gone(struct worker *w, uint64_t router)
{
    LIST_FOR_SAFE (n, &w->tickets.all) {
        struct ticket *k = container_of(n, struct ticket, node);
        if (k->key.router == router && k->state != TICKET_QUARANTINE)
            give_up(w, k);
    }
}

void decode_keep_only(struct worker *w, uint64_t router, const struct proto_seq_pos *list,
                      uint32_t count)
{
    LIST_FOR_SAFE (n, &w->tickets.all) {
        struct ticket *k = container_of(n, struct ticket, node);
        bool wanted = k->key.router != router || k->state == TICKET_QUARANTINE;
        for (uint32_t i = 0; i < count && !wanted; i++)
            wanted = list[i].counter == k->key.counter && list[i].attempt == k->key.attempt &&
                     list[i].choice == k->key.choice;
        if (!wanted) /* it may be newer than the RESUME */
            give_up(w, k);
    }
}

void decode_peer_lost(struct worker *w, uint64_t instance)
{
    LIST_FOR_SAFE (n, &w->tickets.all) {
        struct ticket *k = container_of(n, struct ticket, node);
        if (k->source == instance && k->state < TICKET_SEALED)
            decode_end(w, k); /* active sequences do not need their prefill worker any more */
    }
}

/* From the engine. */

void decode_stepped(struct worker *w, struct ticket *k, const struct engine_row *row, int status)
{
    k->in_step--;
    fault("decode.token");
    if (k->state != TICKET_ACTIVE) { /* ended meanwhile */
        ticket_unhold(&w->tickets, k);
        return;
    }
    ticket_unhold(&w->tickets, k);
    if (status != STATUS_OK) {
        router_lost(w, &k->key, PROTO_REASON_INTERNAL, false, status_text(status));
        decode_end(w, k);
        return;
    }
    struct proto_top top[SAMPLE_TOP_MAX];
    struct proto_token t = {.position = k->emitted};
    const struct proto_job *j = &k->spec.job;
    spec_token(j, &row->result, top, &t);
    k->tokens[k->n_tokens++] = t.token;
    k->emitted++;
    t.finish = spec_finish(j, t.token, k->emitted, k->n_tokens, w->info.context);
    if (t.finish == PROTO_FINISH_NONE && !ticket_fits(&w->tickets, k))
        t.finish = PROTO_FINISH_LENGTH; /* R7: one that alone exceeds the pool */
    metrics_add(w->metrics.generated, 1);
    int rc = guide_feed(k->guide, t.token);
    if (rc == STATUS_OK && guide_ended(k->guide))
        t.finish = PROTO_FINISH_STOP;
    if (rc != STATUS_OK || stream_push(k->stream, &t) != STATUS_OK) {
        const char *why = guide_error(k->guide);
        router_lost(w, &k->key, PROTO_REASON_INTERNAL, false, why ? why : "out of memory");
        decode_end(w, k);
        return;
    }
    if (t.finish == PROTO_FINISH_NONE) {
        if (k->move)
            move_stepped(w, k);
        else
            replica_advance(w, k);
        return;
    }
    fault("token.last");
    log_debug_about(ticket_about(k), "ticket %s: finished after %u tokens", seq_text(&k->key),
                    k->emitted);
    stream_release(k->stream, worker_now(w));
    k->stream = NULL;
    decode_end(w, k);
}

void decode_grammars(struct worker *w)
{
    LIST_FOR_SAFE (n, &w->tickets.all) {
        struct ticket *k = container_of(n, struct ticket, node);
        if (k->state == TICKET_QUARANTINE || !guide_ready(k->guide) || !guide_error(k->guide))
            continue;
        if (k->state >= TICKET_SEALED)
            router_lost(w, &k->key, PROTO_REASON_INVALID, false, guide_error(k->guide));
        else
            refuse(w, k->source, &k->key, PROTO_REASON_INVALID, guide_error(k->guide));
        decode_end(w, k);
    }
}

void decode_preempt(struct worker *w, struct ticket *k)
{
    metrics_add(w->metrics.preemptions, 1);
    if (k->state == TICKET_ACTIVE)
        router_lost(w, &k->key, PROTO_REASON_PREEMPTED, false, "");
    else
        refuse(w, k->source, &k->key, PROTO_REASON_PREEMPTED, "");
    decode_end(w, k);
}

void decode_tick(struct worker *w, uint64_t now)
{
    struct ticket *k;
    while ((k = ticket_expired(&w->tickets, now))) {
        refuse(w, k->source, &k->key, PROTO_REASON_TIMEOUT, "the lease has run out");
        decode_end(w, k);
    }
    LIST_FOR_SAFE (n, &w->tickets.all) {
        k = container_of(n, struct ticket, node);
        if (k->state != TICKET_ACTIVE || k->expires_ms == 0 || now < k->expires_ms)
            continue;
        router_lost(w, &k->key, PROTO_REASON_TIMEOUT, false, "the request's deadline has passed");
        decode_end(w, k);
    }
}

void decode_drain(struct worker *w)
{
    LIST_FOR_SAFE (n, &w->tickets.all) {
        struct ticket *k = container_of(n, struct ticket, node);
        if (k->state != TICKET_WAITING)
            continue;
        refuse(w, k->source, &k->key, PROTO_REASON_DRAINING, "");
        decode_end(w, k);
    }
}
