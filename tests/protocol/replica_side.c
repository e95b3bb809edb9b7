/* replica_side: copies of running sequences, and what becomes of one whose worker is lost, as
 * common/worker/replica.c has them. */
#include "tests/protocol/world.h"

#include <stdlib.h>

struct replica {
    struct seq_key key;
    uint64_t target;
    uint32_t blocks;
};

bool c_local(const struct node *n, const struct job *j)
{
    return j->target.instance == n->instance;
}

static void drop(struct ticket *k)
{
    free(k->replica);
    k->replica = NULL;
}

void c_stop(struct world *w, struct node *n, struct ticket *k)
{
    if (k->copying)
        p_end(w, n, k->copying);
    drop(k);
}

void c_advance(struct world *w, struct node *n, struct ticket *k)
{
    const struct replica *r = k->replica;
    uint32_t full = (k->n_tokens - 1) / BLOCK;
    if (w->mutant == MUTANT_OPEN_COPY && k->n_tokens % BLOCK == 0)
        full = k->n_tokens / BLOCK; /* the last token has no KV yet */
    if (!r || k->copying || k->move || full < r->blocks + 1)
        return;
    struct proto_job p = {
        .request = seq_request(&r->key), .prompt = {k->tokens, full * BLOCK}, .max_tokens = 2};
    struct proto_target t = {.instance = r->target, .data_address = {"a", 1}};
    struct job *j;
    if (job_create(&r->key, &p, &t, w->s->layers, w->now, &j) != STATUS_OK ||
        job_copy_begin(j, n->pool, k, k->blocks, k->tokens[full * BLOCK]) != STATUS_OK) {
        world_fail(w, "no memory");
        return;
    }
    j->arrival = ++n->arrivals;
    list_push_back(&n->jobs, &j->node);
    n->n_jobs++;
    k->copying = j;
    p_reserve(w, n, j);
}

void c_start(struct world *w, struct node *n, const struct msg *m)
{
    struct seq_key old = {ROUTER, m->counter, m->old_attempt, 0};
    struct seq_key key = {ROUTER, m->counter, m->attempt, 0};
    struct ticket *k = ticket_by_key(&n->tickets, &old);
    if (!k || k->state != TICKET_ACTIVE) {
        node_lost(w, n, &key, PROTO_REASON_UNKNOWN, false);
        return;
    }
    c_stop(w, n, k);
    k->replica = malloc(sizeof *k->replica);
    *k->replica = (struct replica){key, m->instance, 0};
    c_advance(w, n, k);
}

void c_confirmed(struct world *w, struct node *n, struct job *j)
{
    j->moving->replica->blocks = j->n_blocks;
    j->asked = false;
    p_end(w, n, j);
}

void c_lost(struct world *w, struct node *n, struct job *j, enum proto_reason reason)
{
    struct ticket *k = j->moving;
    node_lost(w, n, &j->key, reason, false);
    p_end(w, n, j);
    drop(k);
}

void c_adopt(struct world *w, struct node *n, struct job *j)
{
    int32_t ids[IDS];
    uint32_t prompt = (uint32_t)j->spec.job.prompt.n;
    struct ticket_request q = {.key = j->key,
                               .source = n->instance,
                               .ids = j->tokens,
                               .n_ids = j->n_tokens,
                               .n_tokens = j->n_tokens,
                               .salt = ""};
    struct proto_handoff h = {.instance = n->instance, .job = j->spec.job, .last = j->first};
    memcpy(ids, j->tokens, j->n_tokens * sizeof *ids);
    ids[j->n_tokens] = j->first.token;
    h.job.emitted = (struct proto_ids){ids + prompt, j->n_tokens + 1 - prompt};
    struct ticket *k = ticket_adopt(&n->tickets, &q, j->blocks, &h);
    if (!k || ticket_activate(&n->tickets, k, w->now) != STATUS_OK) {
        world_fail(w, "a sequence that was computed here cannot go on");
        return;
    }
    k->stream = j->stream;
    j->stream = NULL;
    uint32_t *active = &w->seqs[k->key.counter - 1].active[k->key.attempt % 32];
    if (++*active > 1)
        world_fail(w, "%s became active twice", seq_text(&k->key));
    p_end(w, n, j);
}
