/* move: a running sequence goes to another decode worker (R2, R3, R4).
 *
 * The router says where to (MOVE), and which attempt it will be there. The sequence runs on; a job
 * beside it (job.h) reserves blocks at the target and sends what is complete, block by block. When
 * the job has caught up, or the sequence has grown into all the room that was reserved, the
 * sequence is frozen: it is in no further step, its last blocks follow, and HANDOFF takes the job,
 * all tokens, and those that the router has not acknowledged. So nothing of this worker is needed
 * once the target is active.
 *
 * HANDOFF_OK frees nothing: the target may die before anybody has heard from it. The sequence
 * stays, frozen, until the router, which has the target's first token, ends it (CANCEL of its
 * attempt).
 *
 * Whatever fails, the sequence goes on here, and the router hears first that the move is off (LOST
 * of the new attempt); or it says so itself (CANCEL of the new attempt). From either on it takes no
 * token of the new attempt, even if the target has the sequence; and a router that had taken one
 * before does not hear the old attempt any more. */
#include "common/worker/internal.h"

#include <string.h>

#define ROOM_MIN   64 /* tokens that a sequence may draw while it is copied */
#define ROOM_SHARE 16 /* or this part of its length */
#define MARGIN     3  /* tokens of steps that are under way when it is frozen */

/* Positions to reserve: what is there, and what may come until it is handed over. */
static uint32_t room_for(const struct worker *w, const struct ticket *k)
{
    const struct proto_job *j = &k->spec.job;
    uint64_t n = k->n_tokens - 1, most = (uint64_t)j->prompt.n + j->max_tokens;
    uint64_t room = n + ROOM_MIN + n / ROOM_SHARE;
    if (most > w->info.context)
        most = w->info.context;
    room = room < most ? room : most;
    return (uint32_t)(room > n ? room : n);
}

struct ticket *move_sequence(struct worker *w, uint64_t router, uint64_t counter, uint32_t attempt)
{
    LIST_FOR (n, &w->tickets.all) {
        struct ticket *k = container_of(n, struct ticket, node);
        if (k->state == TICKET_ACTIVE && k->key.router == router && k->key.counter == counter &&
            k->key.attempt == attempt)
            return k;
    }
    return NULL;
}

static int begin(struct worker *w, struct ticket *k, const struct seq_key *key,
                 const struct proto_target *target)
{
    struct proto_job p = k->spec.job; /* loans: job_create copies */
    struct job *j;
    p.request.attempt = key->attempt;
    p.emitted = (struct proto_ids){k->tokens + p.prompt.n, k->n_tokens - 1 - p.prompt.n};
    p.score_prompt = false;
    TRY(job_create(key, &p, target, w->info.n_layers, worker_now(w), &j));
    j->arrival = ++w->arrivals;
    j->expires_ms = k->expires_ms;
    list_push_back(&w->jobs, &j->node);
    w->n_jobs++;
    k->move = j;
    fault("move.start");
    job_follow_begin(j, k, room_for(w, k));
    prefill_reserve(w, j);
    return STATUS_OK;
}

void move_start(struct worker *w, struct router *r, const struct proto_move *m)
{
    struct ticket *k = move_sequence(w, r->instance, m->request.counter, m->old_attempt);
    struct seq_key key = {r->instance, m->request.counter, m->request.attempt, 0};
    const char *why = NULL;
    if (!k)
        why = "there is nothing to move";
    else if (k->move)
        why = "it cannot be moved now";
    if (k)
        key.choice = k->key.choice;
    if (why || m->decode.instance == w->instance) {
        router_lost(w, &key, PROTO_REASON_UNKNOWN, false, why ? why : "it is here");
        return;
    }
    if (k->copying) /* the replica can wait */
        prefill_end(w, k->copying);
    log_debug_about(ticket_about(k), "%s: copying it to %016llx as attempt %u", seq_text(&k->key),
                    (unsigned long long)m->decode.instance, key.attempt);
    if (begin(w, k, &key, &m->decode) != STATUS_OK)
        router_lost(w, &key, PROTO_REASON_INTERNAL, false, "out of memory");
}

/* The entry of the last token: as the stream has it, or, when the router has it already, bare. */
static struct proto_token last_entry(const struct ticket *k)
{
    const struct stream *s = k->stream;
    if (s->n > 0)
        return s->tokens[s->n - 1];
    return (struct proto_token){.token = k->tokens[k->n_tokens - 1], .position = k->emitted - 1};
}

int move_prepare(struct worker *w, struct job *j)
{
    struct ticket *k = j->moving;
    uint32_t size = w->info.kv_block_size, n_kv = k->n_tokens - 1;
    if (j->state != JOB_RUNNING)
        return STATUS_OK;
    bool caught_up;
    TRY(job_follow(j, w->pool, k->blocks, n_kv / size, &caught_up));
    if (!k->frozen && (caught_up || k->n_tokens + MARGIN > j->room)) {
        k->frozen = true;
        j->computed_ns = clock_ns();
    }
    if (!k->frozen || k->in_step > 0)
        return STATUS_OK;
    fault("move.frozen");
    struct proto_token last = last_entry(k);
    TRY(job_follow_end(j, w->pool, k->tokens, k->n_tokens, k->blocks, &last));
    for (uint32_t l = 0; n_kv % size && l < w->info.n_layers; l++)
        engine_kv_clear_tail(engine_thread_engine(w->engine), l, j->blocks[j->n_blocks - 1],
                             n_kv % size);
    return STATUS_OK;
}

void move_stepped(struct worker *w, struct ticket *k)
{
    struct job *j = k->move;
    if (j->reservation == JOB_RES_GRANTED)
        sender_pump(w, j);
    else if (k->n_tokens + MARGIN > j->room)
        move_lost(w, j, PROTO_REASON_FULL, "there was no room in time");
}

void move_earlier(const struct job *j, struct proto_handoff *h)
{
    const struct stream *s = j->moving->stream;
    h->n_earlier = s->n > 0 ? s->n - 1 : 0;
    h->earlier = s->tokens;
}

void move_lost(struct worker *w, struct job *j, enum proto_reason reason, const char *detail)
{
    if (j->copy) {
        replica_lost(w, j, reason, detail);
        return;
    }
    metrics_add(w->metrics.failures, 1);
    router_lost(w, &j->key, reason, false, detail); /* before the next token */
    prefill_end(w, j);
}

/* It stood still until now. */
static void count_pause(struct worker *w, struct job *j)
{
    if (!j->confirmed && j->computed_ns)
        metrics_add(w->metrics.move_pause, (double)(clock_ns() - j->computed_ns) * 1e-9);
    j->confirmed = true;
}

void move_detach(struct worker *w, struct job *j)
{
    struct ticket *k = j->moving;
    if (j->copy) {
        replica_detach(j);
        return;
    }
    count_pause(w, j);
    j->moving = NULL;
    k->move = NULL;
    k->frozen = false;
    worker_wake(w);
}

void move_confirmed(struct worker *w, struct job *j)
{
    if (j->copy) {
        replica_confirmed(w, j);
        return;
    }
    j->progress_ms = worker_now(w); /* the router's CANCEL is next */
    count_pause(w, j);
    log_debug_about(job_about(j), "%s: is at %016llx now: %u tokens, %llu bytes", seq_text(&j->key),
                    (unsigned long long)j->target.instance, j->n_tokens,
                    (unsigned long long)j->sent_bytes);
}
