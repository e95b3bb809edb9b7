/* relay_internal: the relay's one state, for relay.c and relay_move.c. Nobody else includes it. */
#ifndef BATON_ROUTERD_RELAY_INTERNAL_H
#define BATON_ROUTERD_RELAY_INTERNAL_H

#include "common/base/list.h"
#include "common/base/map.h"
#include "common/base/metrics.h"
#include "routerd/relay.h"
#include "routerd/timeline.h"

struct entry {
    struct gen g;
    struct relay *relay;
    struct list in_list; /* relay's waiting or running list; none when done */
    UT_hash_handle hh;   /* by g.counter */
    bool waits;
    struct gen_callbacks cb;
    void *arg;
    /* What is counted for it in the workers' load and in the metrics. */
    uint64_t at_prefill, at_decode;
    uint32_t at_tokens, retries, moves, moves_failed, adopted;
    struct timeline *timeline; /* the owner's, or NULL */
};

struct relay {
    struct workers *workers;
    struct relay_options o;
    struct gen_limits limits;
    struct gen_budget budget;
    uint64_t next_counter;
    uint64_t trial; /* counter of the sequence that is on trial, or was last */
    struct entry *by_counter;
    struct list waiting, running;
    uint32_t n_waiting, n_running;
    struct loop_timer *tick, *soon; /* soon: dispatch in the next turn */
    struct pick_worker *view;       /* scratch, [WORKERS_MAX] */
    uint32_t *moving;               /* the same: moves that go on from there */
    bool dispatching;
    struct metric *m_running, *m_waiting, *m_divergence, *m_retries, *m_redirects, *m_resumed;
    struct metric *m_moves, *m_moves_failed, *m_adopted;
};

static inline struct entry *entry_of(struct gen *g)
{
    return container_of(g, struct entry, g);
}

/* Does what the machine decided. False when an owner was called: anything may be gone then. scores:
 * those that have just come, or NULL. */
bool relay_run(struct entry *e, const struct gen_turn *t, const struct proto_scores *scores);

/* relay_move.c: what runs goes elsewhere, or is copied there. Call no owner. */
void relay_move_away(struct relay *r, uint64_t now);
void relay_replicate(struct relay *r, uint64_t now);

#endif
