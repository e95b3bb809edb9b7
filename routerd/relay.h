/* relay: the router's sequences and their workers: what gen.h decides is sent, and what workers say
 * is given to the sequence that it belongs to (R2-R4 of docs/PROTOCOL.md).
 *
 * A sequence (struct gen) waits for a pair of workers, is sent to the prefill worker, and its
 * tokens come back first from there, then from the decode worker. Whatever happens to a worker, the
 * next attempt starts from prompt + emitted ids on another pair; the owner of the gen sees each
 * token once, in order, and then exactly one of `finish` or `failed`. */
#ifndef BATON_ROUTERD_RELAY_H
#define BATON_ROUTERD_RELAY_H

#include "common/base/buf.h"
#include "common/net/mac.h"
#include "routerd/gen.h"
#include "routerd/workers.h"

struct relay;

struct gen_callbacks {
    /* The next token; t->position counts from 0. A stop id that ended the sequence comes too. */
    void (*token)(void *arg, struct gen *g, const struct proto_token *t);
    /* Log probabilities of the prompt, before the first token. */
    void (*scores)(void *arg, struct gen *g, const struct proto_scores *s);
    void (*finish)(void *arg, struct gen *g, enum proto_finish f);
    /* status maps to the HTTP status; why is a sentence for the client. */
    void (*failed)(void *arg, struct gen *g, int status, const char *why);
};

struct relay_options {
    uint64_t instance;
    uint64_t request_timeout_ms, worker_wait_ms, queue_timeout_ms, stall_ms;
    uint32_t queue_max;
    uint32_t replicas; /* of each running sequence, on other decode workers: 0 or 1 */
    struct mac_key key;
};

int relay_create(struct loop *loop, const struct relay_options *o, struct relay **out) WARN_UNUSED;
void relay_destroy(struct relay *r);
/* The workers' callbacks (with the relay as arg), and the workers once they exist. */
extern const struct workers_callbacks relay_workers_callbacks;
int relay_set_workers(struct relay *r, struct workers *ws) WARN_UNUSED;

/* Starts a sequence on workers of the pool; job.request is filled in here. STATUS_FULL when
 * queue_max wait already. The callbacks come later, never from inside this call. */
int relay_start(struct relay *r, uint32_t pool, const struct proto_job *job,
                const struct gen_callbacks *cb, void *arg, struct gen **out) WARN_UNUSED;
/* The same for another path of the prompt of `like`, which has been handed over or has ended: it
 * goes to the same workers, which have the prompt's KV, if it can. There is always room. */
int relay_fork(struct relay *r, const struct proto_job *job, const struct gen *like,
               const struct gen_callbacks *cb, void *arg, struct gen **out) WARN_UNUSED;
/* Writes down what happens to the sequence from now on; the owner's, and complete when the sequence
 * has ended or was freed. */
struct timeline;
void relay_watch(struct gen *g, struct timeline *t);
/* The owner is done with it: cancels what still runs and frees it. Allowed in its callbacks. */
void relay_free(struct gen *g);

/* For all sequences, also those that run. */
void relay_set_limits(struct relay *r, uint64_t request_timeout_ms, uint64_t worker_wait_ms,
                      uint64_t queue_timeout_ms, uint32_t queue_max);
/* How many replicas sequences get from now on: 0 or 1. Those that are there stay. */
void relay_set_replicas(struct relay *r, uint32_t n);
/* Moves a sequence from its decode worker to the one of this instance, while it runs; nothing of it
 * is computed anew. INVALID when it does not run on a decode worker, is on the move already, or
 * cannot go there. The owner of the gen notices nothing. A worker that drains is emptied so without
 * being asked. */
int relay_move(struct gen *g, uint64_t to) WARN_UNUSED;

uint32_t relay_waiting(const struct relay *r);
uint32_t relay_running(const struct relay *r);
/* Longest sequence that the connected workers of the pool can hold; 0 while there is no pair. */
uint32_t relay_context(struct relay *r, uint32_t pool);
/* Appends one JSON object per live sequence, comma-separated; at most max. */
void relay_debug(const struct relay *r, uint32_t max, struct buf *out);

#endif
