/* move_side: sequences that go from one decode worker to another, as common/worker/move.c has them.
 */
#include "tests/protocol/world.h"

#define ROOM 4 /* tokens that may be drawn meanwhile */

static uint32_t room_for(const struct ticket *k)
{
    uint32_t n = k->n_tokens - 1, most = (uint32_t)k->spec.job.prompt.n + k->spec.job.max_tokens;
    return n + ROOM < most ? n + ROOM : most;
}

static struct ticket *sequence_of(struct node *n, uint64_t counter, uint32_t attempt)
{
    struct seq_key key = {ROUTER, counter, attempt, 0};
    struct ticket *k = ticket_by_key(&n->tickets, &key);
    return k && k->state == TICKET_ACTIVE ? k : NULL;
}

void m_start(struct world *w, struct node *n, const struct msg *m)
{
    struct ticket *k = sequence_of(n, m->counter, m->old_attempt);
    struct seq_key key = {ROUTER, m->counter, m->attempt, 0};
    struct proto_target t = {.instance = m->instance, .data_address = {"a", 1}};
    struct job *j;
    if (!k || k->move) {
        node_lost(w, n, &key, PROTO_REASON_UNKNOWN, false);
        return;
    }
    if (k->copying)
        p_end(w, n, k->copying);
    struct proto_job p = k->spec.job;
    p.request.attempt = key.attempt;
    p.emitted = (struct proto_ids){k->tokens + p.prompt.n, k->n_tokens - 1 - p.prompt.n};
    if (job_create(&key, &p, &t, w->s->layers, w->now, &j) != STATUS_OK) {
        world_fail(w, "no memory");
        return;
    }
    j->arrival = ++n->arrivals;
    j->expires_ms = k->expires_ms;
    list_push_back(&n->jobs, &j->node);
    n->n_jobs++;
    k->move = j;
    job_follow_begin(j, k, room_for(k));
    p_reserve(w, n, j);
}

static struct proto_token last_entry(const struct ticket *k)
{
    const struct stream *s = k->stream;
    if (s->n > 0)
        return s->tokens[s->n - 1];
    return (struct proto_token){.token = k->tokens[k->n_tokens - 1], .position = k->emitted - 1};
}

void m_prepare(struct world *w, struct node *n, struct job *j)
{
    struct ticket *k = j->moving;
    if (j->state != JOB_RUNNING)
        return;
    bool caught_up;
    if (job_follow(j, n->pool, k->blocks, (k->n_tokens - 1) / BLOCK, &caught_up) != STATUS_OK)
        world_fail(w, "no memory");
    k->frozen |= caught_up || k->n_tokens + 1 > j->room;
    if (!k->frozen || k->in_step > 0)
        return;
    struct proto_token last = last_entry(k);
    if (job_follow_end(j, n->pool, k->tokens, k->n_tokens, k->blocks, &last) != STATUS_OK)
        world_fail(w, "no memory");
}

void m_stepped(struct world *w, struct node *n, struct ticket *k)
{
    struct job *j = k->move;
    if (j->reservation == JOB_RES_GRANTED)
        p_pump(w, n, j);
    else if (k->n_tokens + 1 > j->room)
        m_lost(w, n, j, PROTO_REASON_FULL);
}

void m_lost(struct world *w, struct node *n, struct job *j, enum proto_reason reason)
{
    if (j->copy) {
        c_lost(w, n, j, reason);
        return;
    }
    if (w->mutant != MUTANT_QUIET_THAW)
        node_lost(w, n, &j->key, reason, false);
    p_end(w, n, j);
}

void m_detach(struct job *j)
{
    struct ticket *k = j->moving;
    j->moving = NULL;
    if (j->copy) {
        k->copying = NULL;
        return;
    }
    k->move = NULL;
    k->frozen = false;
}
