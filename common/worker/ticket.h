/* ticket: blocks of a decode worker promised to one sequence, from RESERVE to the last token (R5,
 * R6, R7). Pure: the clock is passed in, there is no I/O; memory of the blocks is never touched.
 *
 *   WAITING ──admit──> RESERVED ──KV──> FILLING ──verified──> SEALED ──> ACTIVE
 *      │                   │               │                    │          │
 *      └───────────────────┴──── ticket_end: refused, canceled, lost, ended ┘
 *                                   │ holds > 0              │ holds == 0
 *                              QUARANTINE ──last hold ends──> FREE
 *
 * A hold is a receive in flight or the engine step that the sequence is in: blocks go back to the
 * pool only when nobody may touch them any more. */
#ifndef BATON_WORKER_TICKET_H
#define BATON_WORKER_TICKET_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/list.h"
#include "common/base/map.h"
#include "common/base/status.h"
#include "common/kv/pool.h"
#include "common/proto/proto.h"
#include "common/worker/guide.h"
#include "common/worker/outbox.h"
#include "common/worker/spec.h"

enum ticket_state {
    TICKET_WAITING,
    TICKET_RESERVED,
    TICKET_FILLING,
    TICKET_SEALED,
    TICKET_ACTIVE,
    TICKET_QUARANTINE,
    TICKET_FREE
};
const char *ticket_state_name(enum ticket_state s);

struct ticket {
    UT_hash_handle by_id, by_key;
    struct list node; /* table.all */
    struct list wait; /* table.waiting, while WAITING */
    struct seq_key key;
    enum ticket_state state;
    uint8_t id[16];    /* random; zero while WAITING */
    uint64_t source;   /* instance of the prefill worker */
    uint64_t admitted; /* order of the grants; 0 while WAITING */
    uint64_t deadline; /* of the lease, ms; until ACTIVE */
    uint32_t priority;

    int32_t *tokens; /* [n_tokens], of which the first n_kv are in the KV cache at hand-over */
    uint32_t
        n_tokens;  /* until HANDOFF: those that RESERVE named; ACTIVE: prompt and answer so far */
    uint32_t n_kv; /* positions whose KV comes: until HANDOFF as many as there is room for */
    char *salt;
    size_t n_salt;

    uint32_t *blocks; /* [n_blocks] of room for blocks_cap */
    uint32_t n_blocks, blocks_cap;
    uint32_t n_sent;         /* blocks for n_kv positions */
    uint32_t stride;         /* n_sent as it was reserved */
    uint32_t held;           /* leading ones that came from the prefix cache */
    uint64_t *begun, *good;  /* bits [layer][stride]: accepted, and verified */
    uint32_t n_good, n_want; /* (layer, block) */
    uint64_t digest;         /* over the good ones */
    uint32_t holds;

    /* From HANDOFF on. */
    bool handed;     /* spec is filled */
    bool verify_due; /* HANDOFF is to be answered when the receives have ended */
    struct spec spec;
    uint64_t want_digest;
    uint32_t repairs; /* HANDOFF_BAD so far */
    struct proto_token last;
    struct proto_top last_top[PROTO_TOP_MAX];
    struct proto_token *earlier; /* [n_earlier] before it, for the stream; own their top */
    uint32_t n_earlier;

    /* The running sequence. */
    struct stream *stream;
    struct guide *guide; /* or NULL */
    uint32_t emitted;
    uint64_t turn;       /* see batch_running */
    uint64_t expires_ms; /* the job's own deadline; 0: none */
    uint8_t in_step;     /* steps under way that it is in: the last token is one behind each */
    bool stalled;        /* no block to grow into until somebody's quarantine ends */
    /* On the move to another decode worker (move.c). */
    struct job *move; /* what copies it; NULL: nothing does */
    bool frozen;      /* in no further step: it is being handed over */
    /* Its replica on another decode worker (replica.c). */
    struct replica *replica; /* where; NULL: it has none */
    struct job *copying;     /* what brings it up to date; NULL: nothing does now */
    bool copy;               /* this is no sequence: blocks of another worker's, for the cache */
};

static inline struct log_about ticket_about(const struct ticket *k)
{
    return spec_about(&k->spec, &k->key);
}

struct ticket_config {
    uint32_t n_layers, block_size, context;
    uint64_t lease_ms;
    uint32_t waiting_max;
};

struct tombstone;
struct ticket_table {
    struct ticket_config config;
    struct kv_pool *pool;
    struct ticket *by_id, *by_key;
    struct list all, waiting;
    uint32_t n_waiting, n_granted, n_active; /* n_granted: RESERVED, FILLING, SEALED */
    uint32_t n_quarantine;
    uint64_t grants;
    struct tombstone *tombs;
    struct list tombs_by_age;
    uint32_t n_tombs;
};

void ticket_table_init(struct ticket_table *t, const struct ticket_config *c, struct kv_pool *pool);
/* Frees everything, whatever its state. */
void ticket_table_fini(struct ticket_table *t);

struct ticket_request {
    struct seq_key key;
    uint64_t source;
    const int32_t *ids;
    uint32_t n_ids;
    uint32_t n_tokens; /* positions to come, at most; n_ids at least */
    const void *salt;
    size_t n_salt;
    uint32_t priority;
    bool copy;
};
/* RESERVE. PROTO_REASON_NONE: *out is the ticket, WAITING when it is new and as it is when the
 * request is a repetition. Otherwise the reason to refuse. */
enum proto_reason ticket_reserve(struct ticket_table *t, uint64_t now,
                                 const struct ticket_request *r, struct ticket **out);
/* Grants the first waiting reservation if the capacity rule of R7 allows it: RESERVED, with a fresh
 * id and its blocks. NULL when none can be granted now; call until then. */
struct ticket *ticket_admit(struct ticket_table *t, uint64_t now);

struct ticket *ticket_by_id(struct ticket_table *t, const uint8_t id[16]);
struct ticket *ticket_by_key(struct ticket_table *t, const struct seq_key *k);

/* May this extent come in? Then its receive is a hold, to be ended by ticket_kv_end. */
bool ticket_kv_begin(struct ticket_table *t, struct ticket *k, uint64_t now, uint32_t layer,
                     uint32_t first, uint32_t n);
/* The receive has ended. right[i]: block i of the extent has the checksum sums[i]; NULL: nothing
 * arrived. The ticket may be gone after the call (QUARANTINE and the last hold). */
void ticket_kv_end(struct ticket_table *t, struct ticket *k, uint64_t now, uint32_t layer,
                   uint32_t first, uint32_t n, const uint64_t *sums, const bool *right);

/* HANDOFF: remembers the job, and gives back what was reserved beyond it. INVALID when it does not
 * fit what was reserved. */
enum proto_reason ticket_handoff(struct ticket_table *t, struct ticket *k,
                                 const struct proto_handoff *h);
enum ticket_verdict {
    TICKET_PENDING, /* receives are still in flight: ask again when they have ended */
    TICKET_COMPLETE,
    TICKET_MISSING, /* list has what must be sent again */
    TICKET_HOPELESS /* repaired too often */
};
/* After ticket_handoff: is everything there? At most max extents are listed. */
enum ticket_verdict ticket_verify(struct ticket_table *t, struct ticket *k,
                                  struct proto_extent *list, uint32_t max, uint32_t *n);
/* COMPLETE: SEALED, and its full blocks enter the prefix cache. */
void ticket_seal(struct ticket_table *t, struct ticket *k);
/* SEALED -> ACTIVE: makes room for the answer. */
int ticket_activate(struct ticket_table *t, struct ticket *k, uint64_t now) WARN_UNUSED;
/* A sequence whose KV was computed here, in blocks of which it takes a reference each: a ticket
 * that is SEALED at once. NULL: out of memory, or it does not fit h. */
struct ticket *ticket_adopt(struct ticket_table *t, const struct ticket_request *r,
                            const uint32_t *blocks, const struct proto_handoff *h);
/* ACTIVE: a block for the position of the last token, when it needs one. STATUS_FULL. */
int ticket_grow(struct ticket_table *t, struct ticket *k) WARN_UNUSED;
/* The same for the token behind it, which is being computed. */
int ticket_grow_ahead(struct ticket_table *t, struct ticket *k) WARN_UNUSED;
/* ACTIVE: can the sequence go on after its last token, in this pool, if it were alone? */
bool ticket_fits(const struct ticket_table *t, const struct ticket *k);
/* Blocks that must stay free when something new begins (R7): one for each sequence, and its own. */
uint32_t ticket_spare(const struct ticket_table *t);
/* Whom to preempt (R7): the youngest that holds blocks, copies before all; NULL when there is none.
 */
struct ticket *ticket_youngest(struct ticket_table *t);

/* Holds by the engine step. */
void ticket_hold(struct ticket *k);
void ticket_unhold(struct ticket_table *t, struct ticket *k); /* k may be gone after the call */

/* Ends the ticket, in whatever state: FREE, or QUARANTINE while there are holds. The stream is the
 * caller's to drop or release first. k may be gone after the call. */
void ticket_end(struct ticket_table *t, struct ticket *k);
/* A ticket whose lease has run out, or NULL. */
struct ticket *ticket_expired(struct ticket_table *t, uint64_t now);

/* R5: a canceled attempt, so that a later RESERVE is refused. */
void ticket_tombstone(struct ticket_table *t, uint64_t now, uint64_t router, uint64_t counter,
                      uint32_t attempt);
/* Was this attempt canceled a short time ago? */
bool ticket_buried(struct ticket_table *t, uint64_t now, const struct seq_key *k);

#endif
