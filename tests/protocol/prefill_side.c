/* prefill_side: jobs of a prefill worker, as common/worker/prefill.c and sender.c have them. */
#include "tests/protocol/world.h"

#include <stdlib.h>

#define REPAIRS_MAX 3
#define EXTENT_MAX  1 /* blocks in one message */
#define TAIL        5 /* tokens that a decode worker computes of a prompt */

static void free_job(struct node *n, struct job *j)
{
    job_put_blocks(j, n->pool);
    n->n_jobs--;
    job_free(j);
}

static void unhold(struct node *n, struct job *j)
{
    if (--j->holds == 0 && j->state == JOB_ENDED)
        free_job(n, j);
}

static void release_target(struct world *w, struct node *n, struct job *j)
{
    bool asked = j->asked;
    j->asked = false;
    if (!asked)
        return;
    struct msg m = {.type = PROTO_RELEASE, .counter = j->key.counter, .attempt = j->key.attempt};
    memcpy(m.ticket, j->ticket, sizeof m.ticket);
    send_to_peer(w, n, j->target.instance, &m);
}

void p_end(struct world *w, struct node *n, struct job *j)
{
    if (j->state == JOB_ENDED)
        return;
    if (j->moving)
        m_detach(j);
    release_target(w, n, j);
    stream_drop(j->stream);
    j->stream = NULL;
    job_set_state(j, JOB_ENDED);
    if (j->holds == 0)
        free_job(n, j);
}

static void fail(struct world *w, struct node *n, struct job *j, enum proto_reason reason)
{
    if (j->moving) {
        m_lost(w, n, j, reason);
        return;
    }
    node_lost(w, n, &j->key, reason, false);
    p_end(w, n, j);
}

static struct job *find(struct node *n, const struct seq_key *k)
{
    LIST_FOR (it, &n->jobs) {
        struct job *j = container_of(it, struct job, node);
        if (j->state != JOB_ENDED && memcmp(&j->key, k, sizeof *k) == 0)
            return j;
    }
    return NULL;
}

static bool needs_decode(const struct job *j)
{
    return j->spec.job.max_tokens > j->spec.job.emitted.n + 1;
}

void p_accept(struct world *w, struct node *n, const struct msg *m)
{
    struct seq_key key = {ROUTER, m->counter, m->attempt, 0};
    const struct seq *s = &w->seqs[m->counter - 1];
    struct proto_job job = {.request = seq_request(&key),
                            .prompt = {s->prompt, s->n_prompt},
                            .emitted = {m->ids, m->n},
                            .max_tokens = m->max_tokens,
                            .deadline_ms = REQUEST_MS};
    struct proto_target t = {.instance = m->instance, .data_address = {"a", 1}};
    struct job *j;
    if (find(n, &key))
        return;
    if (job_create(&key, &job, &t, w->s->layers, w->now, &j) != STATUS_OK) {
        world_fail(w, "no memory");
        return;
    }
    j->arrival = ++n->arrivals;
    list_push_back(&n->jobs, &j->node);
    n->n_jobs++;
}

void p_cancel(struct world *w, struct node *n, uint64_t counter, uint32_t attempt)
{
    LIST_FOR_SAFE (it, &n->jobs) {
        struct job *j = container_of(it, struct job, node);
        if (j->key.counter == counter && j->key.attempt == attempt)
            p_end(w, n, j);
    }
}

void p_router_gone(struct world *w, struct node *n)
{
    LIST_FOR_SAFE (it, &n->jobs)
        p_end(w, n, container_of(it, struct job, node));
}

void p_keep_only(struct world *w, struct node *n, const struct proto_seq_pos *list, uint32_t count)
{
    LIST_FOR_SAFE (it, &n->jobs) {
        struct job *j = container_of(it, struct job, node);
        bool wanted = false;
        for (uint32_t i = 0; i < count && !wanted; i++)
            wanted = list[i].counter == j->key.counter && list[i].attempt == j->key.attempt;
        if (!wanted)
            p_end(w, n, j);
    }
}

bool p_resume(struct world *w, struct node *n, const struct seq_key *k)
{
    struct job *j = find(n, k);
    if (j && j->state == JOB_PARKED)
        node_lost(w, n, k, PROTO_REASON_PEER_LOST, true);
    return j != NULL;
}

static void target_lost(struct world *w, struct node *n, struct job *j, enum proto_reason reason)
{
    if (j->moving) {
        m_lost(w, n, j, reason);
        return;
    }
    release_target(w, n, j);
    if (j->reservation != JOB_RES_REFUSED)
        job_set_reservation(j, JOB_RES_REFUSED);
    if (reason == PROTO_REASON_CANCELED) {
        fail(w, n, j, reason);
        return;
    }
    j->parked_ms = w->now;
    job_set_state(j, JOB_PARKED);
    node_lost(w, n, &j->key, reason, true);
}

void p_reserve(struct world *w, struct node *n, struct job *j)
{
    struct msg m = {.type = PROTO_RESERVE,
                    .counter = j->key.counter,
                    .attempt = j->key.attempt,
                    .room = j->moving ? j->room : j->n_tokens,
                    .copy = j->copy,
                    .n = j->n_tokens};
    memcpy(m.ids, j->tokens, j->n_tokens * sizeof *m.ids);
    send_to_peer(w, n, j->target.instance, &m);
    j->asked = true;
    j->progress_ms = w->now;
    job_set_reservation(j, JOB_RES_ASKED);
}

void p_redirect(struct world *w, struct node *n, const struct msg *m)
{
    struct seq_key old = {ROUTER, m->counter, m->old_attempt, 0};
    struct job *j = find(n, &old);
    struct proto_target t = {.instance = m->instance, .data_address = {"a", 1}};
    if (!j) {
        old.attempt = m->attempt;
        node_lost(w, n, &old, PROTO_REASON_UNKNOWN, false);
        return;
    }
    release_target(w, n, j);
    if (job_redirect(j, m->attempt, &t) != STATUS_OK) {
        world_fail(w, "no memory");
        return;
    }
    if (j->drawn) {
        stream_drop(j->stream);
        j->stream = stream_open(&n->outbox, j->key.counter, j->key.attempt, 0);
        if (!j->stream || stream_push(j->stream, &j->first) != STATUS_OK)
            world_fail(w, "no memory");
    }
    if (j->state != JOB_QUEUED && needs_decode(j))
        p_reserve(w, n, j);
}

/* ---- sender ---- */

void p_pump(struct world *w, struct node *n, struct job *j)
{
    struct proto_extent e;
    bool again;
    if (j->moving && j->reservation == JOB_RES_GRANTED)
        m_prepare(w, n, j);
    while (j->sends < 4 && job_next_extent(j, EXTENT_MAX, &e, &again)) {
        uint32_t i = (uint32_t)__builtin_ctz(~n->flying);
        if (i >= FLIGHTS) {
            world_fail(w, "too many flights for the model");
            return;
        }
        struct flight *f = &n->flights[i];
        *f = (struct flight){.state = FLIGHT_FLYING,
                             .job = j,
                             .to = j->target.instance,
                             .attempt = j->key.attempt,
                             .layer = e.layer,
                             .n = e.n};
        struct msg m = {.type = MSG_KV, .flight = i, .layer = e.layer, .first = e.first, .n = e.n};
        memcpy(m.ticket, j->ticket, sizeof m.ticket);
        for (uint32_t b = 0; b < e.n; b++) {
            f->blocks[b] = j->blocks[e.first + b];
            m.sums[b] = n->kv[e.layer][f->blocks[b]];
            if (!again)
                j->digest += digest_term(e.layer, e.first + b, m.sums[b]);
        }
        if ((n->flying | n->landing) == 0)
            n->moved_ms = w->now;
        n->flying |= 1u << i;
        j->sends++;
        j->holds++;
        send_to_peer(w, n, j->target.instance, &m);
    }
    if (!job_all_sent(j))
        return;
    struct msg m = {.type = PROTO_HANDOFF,
                    .counter = j->key.counter,
                    .attempt = j->key.attempt,
                    .prompt = (uint32_t)j->spec.job.prompt.n,
                    .max_tokens = j->spec.job.max_tokens,
                    .digest = j->digest,
                    .n = j->n_tokens + 1};
    memcpy(m.ids, j->tokens, j->n_tokens * sizeof *m.ids);
    m.ids[j->n_tokens] = j->first.token;
    if (j->moving && !j->copy && j->moving->stream->n > 0)
        m.earlier = j->moving->stream->n - 1;
    memcpy(m.ticket, j->ticket, sizeof m.ticket);
    send_to_peer(w, n, j->target.instance, &m);
    j->progress_ms = w->now;
    job_set_state(j, JOB_HANDED);
    if (w->mutant == MUTANT_FREE_BEFORE_OK) {
        j->asked = false;
        p_end(w, n, j);
    }
}

void p_sent(struct world *w, struct node *n, uint32_t flight)
{
    struct flight f = n->flights[flight];
    struct job *j = f.job;
    bool current = j->key.attempt == f.attempt && j->target.instance == f.to;
    n->flights[flight].state = FLIGHT_NONE;
    n->flying &= ~(1u << flight);
    n->moved_ms = w->now;
    if (current)
        j->sends--;
    if (f.state == FLIGHT_DONE && current)
        j->progress_ms = w->now;
    else if (f.state != FLIGHT_DONE && current && j->state != JOB_ENDED && j->state != JOB_PARKED)
        target_lost(w, n, j, PROTO_REASON_PEER_LOST);
    if (j->state != JOB_ENDED)
        p_pump(w, n, j);
    unhold(n, j);
}

/* ---- peers ---- */

static bool targets(const struct job *j, uint64_t instance)
{
    return j->target.instance == instance && j->reservation != JOB_RES_NONE &&
           (j->state == JOB_RUNNING || j->state == JOB_COMPUTED || j->state == JOB_HANDED);
}

void p_peer_lost(struct world *w, struct node *n, uint64_t instance)
{
    for (uint32_t bits = n->flying; bits; bits &= bits - 1) {
        uint32_t i = (uint32_t)__builtin_ctz(bits);
        struct flight *f = &n->flights[i];
        if (n->flying & 1u << i && f->state == FLIGHT_FLYING && f->to == instance) {
            f->state = FLIGHT_FAILED;
            p_sent(w, n, i);
        }
    }
    LIST_FOR_SAFE (it, &n->jobs) {
        struct job *j = container_of(it, struct job, node);
        if (targets(j, instance))
            target_lost(w, n, j, PROTO_REASON_PEER_LOST);
    }
}

static void on_grant(struct world *w, struct node *n, const struct msg *m, struct job *j)
{
    if (!j || !targets(j, m->instance)) {
        struct msg r = {.type = PROTO_RELEASE, .counter = m->counter, .attempt = m->attempt};
        memcpy(r.ticket, m->ticket, sizeof r.ticket);
        send_to_peer(w, n, m->instance, &r);
        return;
    }
    if (j->reservation != JOB_RES_ASKED && j->reservation != JOB_RES_WAITING)
        return;
    struct proto_grant g = {.held_blocks = m->held};
    memcpy(g.ticket, m->ticket, sizeof g.ticket);
    if (!job_grant(j, &g, BLOCK)) {
        target_lost(w, n, j, PROTO_REASON_INVALID);
        return;
    }
    j->progress_ms = w->now;
    p_pump(w, n, j);
}

static struct job *by_ticket(struct node *n, const struct msg *m)
{
    LIST_FOR (it, &n->jobs) {
        struct job *j = container_of(it, struct job, node);
        if (j->reservation == JOB_RES_GRANTED && j->state == JOB_HANDED &&
            j->target.instance == m->instance &&
            memcmp(j->ticket, m->ticket, sizeof j->ticket) == 0)
            return j;
    }
    return NULL;
}

static void prefix_insert(struct node *n, const struct job *j)
{
    kv_prefix_insert(n->pool, j->spec.job.salt.p, j->spec.job.salt.n, j->tokens, j->n_tokens,
                     j->blocks);
}

void p_message(struct world *w, struct node *n, const struct msg *m)
{
    struct seq_key key = {ROUTER, m->counter, m->attempt, 0};
    struct job *j = find(n, &key);
    switch (m->type) {
    case PROTO_GRANT:
        on_grant(w, n, m, j);
        break;
    case PROTO_WAIT:
        if (j && j->moving) {
            m_lost(w, n, j, PROTO_REASON_FULL);
        } else if (j && targets(j, m->instance) && j->reservation == JOB_RES_ASKED) {
            j->progress_ms = w->now;
            job_set_reservation(j, JOB_RES_WAITING);
        }
        break;
    case PROTO_REFUSE:
        if (j && targets(j, m->instance)) {
            j->asked = false;
            target_lost(w, n, j, (enum proto_reason)m->reason);
        }
        break;
    case PROTO_HANDOFF_OK:
        j = by_ticket(n, m);
        if (j && j->copy) {
            c_confirmed(w, n, j);
        } else if (j && j->moving) {
            j->confirmed = true;
            j->progress_ms = w->now;
        } else if (j) {
            prefix_insert(n, j);
            j->asked = false;
            p_end(w, n, j);
        }
        break;
    case PROTO_HANDOFF_BAD:
        j = by_ticket(n, m);
        if (!j)
            break;
        if (++j->repairs > REPAIRS_MAX || job_send_again(j, m->extents, m->n) != STATUS_OK) {
            target_lost(w, n, j, PROTO_REASON_CORRUPT);
            break;
        }
        job_set_state(j, JOB_COMPUTED);
        p_pump(w, n, j);
        break;
    }
}

/* ---- engine ---- */

static struct job *next_job(const struct node *n)
{
    LIST_FOR (it, &n->jobs) {
        struct job *j = container_of(it, struct job, node);
        if (j->state == JOB_RUNNING && j->computed < j->n_tokens)
            return j;
        bool fits = kv_pool_free(n->pool) >= blocks_for(j->n_tokens, BLOCK);
        if (j->state == JOB_QUEUED && (fits || c_local(n, j)))
            return j;
    }
    return NULL;
}

bool p_preempt(struct world *w, struct node *n)
{
    struct job *youngest = NULL;
    LIST_FOR (it, &n->jobs) {
        struct job *j = container_of(it, struct job, node);
        if (j->state == JOB_ENDED && job_frees_blocks(j, n->pool))
            return true;
        if (j->state != JOB_ENDED && j->n_blocks > 0 && c_local(n, j))
            youngest = j;
    }
    if (youngest)
        fail(w, n, youngest, PROTO_REASON_PREEMPTED);
    return youngest != NULL;
}

bool p_can_compute(const struct node *n)
{
    return n->computing || next_job(n);
}

static void computed(struct world *w, struct node *n, struct job *j)
{
    const struct proto_job *s = &j->spec.job;
    if (j->state == JOB_RUNNING)
        job_set_state(j, JOB_COMPUTED);
    struct proto_token t = {.position = (uint32_t)s->emitted.n,
                            .token = token_of(j->tokens, j->n_tokens, n->numerics)};
    t.finish = spec_finish(s, t.token, (uint32_t)s->emitted.n + 1, j->n_tokens + 1, CONTEXT);
    j->first = t;
    j->drawn = true;
    j->stream = n->known ? stream_open(&n->outbox, j->key.counter, j->key.attempt, 0) : NULL;
    if (!j->stream || stream_push(j->stream, &t) != STATUS_OK) {
        fail(w, n, j, PROTO_REASON_INTERNAL);
        return;
    }
    node_flush(w, n); /* with the step that drew it */
    if (t.finish != PROTO_FINISH_NONE) {
        prefix_insert(n, j);
        stream_release(j->stream, w->now);
        j->stream = NULL;
        p_end(w, n, j);
    } else if (j->state == JOB_COMPUTED && c_local(n, j)) {
        c_adopt(w, n, j);
    } else if (j->state == JOB_COMPUTED) {
        p_pump(w, n, j);
    }
}

/* Stage 0: the step begins. Then one stage for each layer; with the last one it ends. */
void p_compute(struct world *w, struct node *n)
{
    struct job *j = n->computing;
    if (!j) {
        j = next_job(n);
        if (j->state == JOB_QUEUED) {
            uint32_t spare = c_local(n, j) ? ticket_spare(&n->tickets) : 0;
            bool begun = job_start(j, n->pool, spare, w->now) == STATUS_OK;
            if (!begun && !c_local(n, j)) {
                world_fail(w, "a job that fits cannot start");
                return;
            }
            if (c_local(n, j) && (!begun || j->n_tokens - j->cached_tokens > TAIL)) {
                fail(w, n, j, PROTO_REASON_FULL);
                return;
            }
            if (!c_local(n, j) && needs_decode(j))
                p_reserve(w, n, j);
        }
        uint32_t left = j->n_tokens - j->computed;
        j->step_tokens = left < BLOCK ? left : BLOCK;
        j->in_step = true;
        j->holds++;
        n->computing = j;
        n->stage = 0;
        return;
    }
    uint32_t first = j->computed / BLOCK, end_token = j->computed + j->step_tokens;
    n->kv[n->stage][j->blocks[first]] = kv_of(n->stage, j->tokens, end_token);
    if (j->state != JOB_ENDED) {
        job_layer_done(j, n->stage, BLOCK);
        if (j->state == JOB_RUNNING || j->state == JOB_COMPUTED)
            p_pump(w, n, j);
    }
    if (++n->stage < w->s->layers)
        return;
    n->computing = NULL;
    j->in_step = false;
    if (j->state != JOB_ENDED && job_step_done(j))
        computed(w, n, j);
    unhold(n, j);
}

/* ---- time ---- */

/* When this job ends its waiting by itself. */
static uint64_t job_due(const struct job *j)
{
    uint64_t at = j->expires_ms ? j->expires_ms : UINT64_MAX, own = UINT64_MAX;
    bool moving = j->sends > 0 || j->state == JOB_HANDED;
    if (j->state == JOB_PARKED)
        own = j->parked_ms + GRACE_MS + 1;
    else if (j->state != JOB_RUNNING && j->state != JOB_COMPUTED && j->state != JOB_HANDED)
        own = UINT64_MAX;
    else if (j->reservation == JOB_RES_ASKED || (j->reservation == JOB_RES_GRANTED && moving))
        own = j->progress_ms + LEASE_MS + 1;
    else if (j->reservation == JOB_RES_WAITING)
        own = j->progress_ms + 20 * LEASE_MS + 1;
    return own < at ? own : at;
}

void p_tick(struct world *w, struct node *n)
{
    LIST_FOR_SAFE (it, &n->jobs) {
        struct job *j = container_of(it, struct job, node);
        if (j->state == JOB_ENDED || w->now < job_due(j))
            continue;
        if (j->expires_ms && w->now >= j->expires_ms)
            fail(w, n, j, PROTO_REASON_TIMEOUT);
        else if (j->state == JOB_PARKED)
            p_end(w, n, j);
        else if (w->mutant != MUTANT_NO_LEASE)
            target_lost(w, n, j, PROTO_REASON_TIMEOUT);
    }
}

uint64_t p_due(const struct node *n)
{
    uint64_t at = UINT64_MAX;
    LIST_FOR (it, &n->jobs) {
        const struct job *j = container_of(it, struct job, node);
        uint64_t due = j->state == JOB_ENDED ? UINT64_MAX : job_due(j);
        at = due < at ? due : at;
    }
    return at;
}

void p_close(struct node *n)
{
    LIST_FOR_SAFE (it, &n->jobs) {
        struct job *j = container_of(it, struct job, node);
        stream_drop(j->stream);
        j->holds = 0;
        job_put_blocks(j, n->pool);
        job_free(j);
    }
    n->n_jobs = 0;
    n->computing = NULL;
}
