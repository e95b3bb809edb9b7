/* replica: what is finished of a running sequence is kept a second time, on another decode worker.
 *
 * The router says where (MOVE with `co`). Whenever the sequence has enough new full blocks, a job
 * of its own (job.h) takes them there as a hand-over would: RESERVE names all tokens up to there,
 * the GRANT says how many blocks the other one holds already, the rest is sent, and HANDOFF lets it
 * verify them. They enter its prefix cache, and the ticket is over. So a replica is nothing but
 * cached blocks: it holds up nobody (cached blocks are free, the first to go, and stay as long as
 * they are not needed), nothing has to be released when the sequence ends, and it grows by itself.
 *
 * Blocks go out in batches, for a copy costs one message for each layer, and the larger the longer
 * the sequence is: what is sent of token ids, and looked up there, stays in proportion to the KV.
 *
 * When the sequence's worker dies, the router sends the next attempt to the one with the replica,
 * as PREFILL that names this very worker as the one to continue. The prompt starts behind what the
 * prefix cache has, and when it is computed the sequence goes on in the same blocks
 * (replica_adopt). Prompts of which too little is held are refused: they are computed by a prefill
 * worker, as without a replica.
 *
 * Whatever fails, the replica is given up and the router told; the sequence notices nothing. */
#include "common/worker/internal.h"

#include <string.h>

/* New blocks go out when they are so many, or this part of those that are there. */
#define LAG_MIN   4
#define LAG_SHARE 64

struct replica {
    struct seq_key key; /* with the attempt that the router has given it */
    struct proto_target target;
    uint32_t blocks; /* that are there */
    uint8_t address[];
};

static void drop(struct ticket *k)
{
    free(k->replica);
    k->replica = NULL;
}

void replica_stop(struct worker *w, struct ticket *k)
{
    if (k->copying)
        prefill_end(w, k->copying);
    drop(k);
}

static int begin(struct worker *w, struct ticket *k, uint32_t n_blocks)
{
    const struct replica *r = k->replica;
    uint32_t n = n_blocks * w->info.kv_block_size;
    struct proto_job p = {.request = seq_request(&r->key),
                          .choice = r->key.choice,
                          .prompt = {k->tokens, n},
                          .max_tokens = 2,
                          .salt = k->spec.job.salt,
                          .priority = k->spec.job.priority};
    struct job *j;
    TRY(job_create(&r->key, &p, &r->target, w->info.n_layers, worker_now(w), &j));
    if (job_copy_begin(j, w->pool, k, k->blocks, k->tokens[n]) != STATUS_OK) {
        job_free(j);
        return STATUS_NOMEM;
    }
    j->arrival = ++w->arrivals;
    list_push_back(&w->jobs, &j->node);
    w->n_jobs++;
    k->copying = j;
    fault("replica.start");
    prefill_reserve(w, j);
    return STATUS_OK;
}

void replica_advance(struct worker *w, struct ticket *k)
{
    const struct replica *r = k->replica;
    if (!r || k->copying || k->move)
        return;
    uint32_t full = (k->n_tokens - 1) / w->info.kv_block_size;
    uint32_t lag = r->blocks / LAG_SHARE > LAG_MIN ? r->blocks / LAG_SHARE : LAG_MIN;
    if (full < r->blocks + (r->blocks > 0 ? lag : 1))
        return;
    if (begin(w, k, full) != STATUS_OK) {
        router_lost(w, &r->key, PROTO_REASON_INTERNAL, false, "out of memory");
        drop(k);
    }
}

void replica_start(struct worker *w, struct router *r, const struct proto_move *m)
{
    struct ticket *k = move_sequence(w, r->instance, m->request.counter, m->old_attempt);
    struct seq_key key = {r->instance, m->request.counter, m->request.attempt, 0};
    const struct proto_bytes *from = &m->decode.data_address;
    if (!k || m->decode.instance == w->instance) {
        router_lost(w, &key, PROTO_REASON_UNKNOWN, false, "there is nothing to copy");
        return;
    }
    key.choice = k->key.choice;
    replica_stop(w, k);
    if (k->n_salt <= KV_SALT_MAX) /* else the other one would not find it */
        k->replica = malloc(sizeof *k->replica + from->n);
    if (!k->replica) {
        router_lost(w, &key, PROTO_REASON_FULL, false, "it cannot be copied");
        return;
    }
    *k->replica = (struct replica){.key = key, .target = m->decode};
    memcpy(k->replica->address, from->p, from->n);
    k->replica->target.data_address.p = k->replica->address;
    replica_advance(w, k);
}

void replica_confirmed(struct worker *w, struct job *j)
{
    struct replica *r = j->moving->replica;
    r->blocks = j->n_blocks;
    log_debug_about(job_about(j), "%s: %u blocks are copied, %llu bytes", seq_text(&j->key),
                    r->blocks, (unsigned long long)j->sent_bytes);
    j->asked = false; /* the ticket is over */
    prefill_end(w, j);
}

void replica_lost(struct worker *w, struct job *j, enum proto_reason reason, const char *detail)
{
    struct ticket *k = j->moving;
    router_lost(w, &j->key, reason, false, detail);
    prefill_end(w, j);
    drop(k);
}

void replica_detach(struct job *j)
{
    j->moving->copying = NULL;
    j->moving = NULL;
}

uint32_t replica_copied(const struct ticket *k)
{
    return k->replica ? k->replica->blocks : 0;
}

uint32_t replica_blocks(const struct worker *w)
{
    uint32_t n = 0;
    LIST_FOR (it, &w->tickets.all)
        n += replica_copied(container_of(it, struct ticket, node));
    return n;
}

void replica_adopt(struct worker *w, struct job *j)
{
    const struct proto_job *spec = &j->spec.job;
    size_t n = spec->emitted.n;
    uint64_t now = worker_now(w);
    int32_t *emitted = mem_array(n + 1, sizeof *emitted);
    struct proto_handoff h = {.instance = w->instance, .job = *spec, .last = j->first};
    if (emitted && n)
        memcpy(emitted, spec->emitted.p, n * sizeof *emitted);
    if (emitted)
        emitted[n] = j->first.token;
    h.job.emitted = (struct proto_ids){emitted, n + 1};
    if (j->expires_ms)
        h.job.deadline_ms = j->expires_ms > now ? j->expires_ms - now : 1;
    if (!emitted || !decode_adopt(w, j, &h))
        router_lost(w, &j->key, PROTO_REASON_INTERNAL, false, "out of memory");
    else
        log_info_about(job_about(j), "%s goes on here: %u of %u tokens were held",
                       seq_text(&j->key), j->cached_tokens, j->n_tokens);
    free(emitted);
    prefill_end(w, j);
}
