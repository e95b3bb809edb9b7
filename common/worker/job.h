/* job: one prompt on a prefill worker, from PREFILL to HANDOFF_OK (R2, R4). Pure: the clock is
 * passed in, there is no I/O.
 *
 *   QUEUED ──start──> RUNNING ──prompt done──> COMPUTED ──all sent──> HANDED ──ok──> ENDED
 *                        │                        │  ^                   │
 *                        └──── D lost/refuses ────┤  └── bad: send again ┘
 *                                                 v
 *                                              PARKED ──REDIRECT──> RUNNING or COMPUTED
 *   any ──cancel, finish at the first token, time-out──> ENDED ──no hold──> freed
 *
 * Beside it runs the reservation at the decode worker:
 *   NONE ──RESERVE──> ASKED ──> WAITING ──> GRANTED, or REFUSED
 *
 * KV that is computed before the GRANT waits in the job's own blocks and goes out afterwards.
 * A job may also hand on a sequence that runs here already (a move, see move.c). It has no prompt
 * to compute: it is RUNNING while the sequence is, following it block by block, and COMPUTED when
 * that stands still. Its blocks are the sequence's, with a reference of its own on each. Or it
 * takes the blocks that are finished to a replica (replica.c): then it is COMPUTED from the start.
 *
 * A hold is a KV send in flight or the engine step the job is in: an ENDED job keeps its blocks
 * until the last one ends. */
#ifndef BATON_WORKER_JOB_H
#define BATON_WORKER_JOB_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/list.h"
#include "common/kv/pool.h"
#include "common/proto/proto.h"
#include "common/worker/guide.h"
#include "common/worker/outbox.h"
#include "common/worker/spec.h"

enum job_state { JOB_QUEUED, JOB_RUNNING, JOB_COMPUTED, JOB_HANDED, JOB_PARKED, JOB_ENDED };
enum job_reservation {
    JOB_RES_NONE,
    JOB_RES_ASKED,
    JOB_RES_WAITING,
    JOB_RES_GRANTED,
    JOB_RES_REFUSED
};
const char *job_state_name(enum job_state s);
const char *job_reservation_name(enum job_reservation r);

struct ticket;
struct job_target { /* the decode worker; owns a copy of the address */
    uint64_t instance;
    uint8_t *address;
    size_t n_address;
    uint8_t mac[32];
};

struct job {
    struct list node; /* the worker's jobs, in order of arrival */
    uint64_t arrival;
    struct seq_key key;
    struct spec spec;
    struct job_target target;
    enum job_state state;
    enum job_reservation reservation;

    int32_t *tokens; /* [n_tokens] prompt and what was emitted before */
    uint32_t n_tokens;
    uint32_t *blocks; /* [n_blocks] from RUNNING on */
    uint32_t n_blocks;
    uint32_t cached_tokens; /* came from the prefix cache */
    uint32_t computed;      /* tokens in the KV cache, in all layers */
    uint32_t step_tokens;   /* in the step that runs: positions computed .. + step_tokens */
    uint32_t chunk;         /* number of that step */
    uint32_t holds;
    bool in_step;
    bool asked; /* a RESERVE went to the target: it may hold something for us */

    uint8_t ticket[16];
    uint32_t held;   /* leading blocks that the decode worker has */
    uint32_t *ready; /* [n_layers] leading blocks whose KV is complete in that layer */
    uint32_t *sent;  /* [n_layers] leading blocks given to the data link */
    uint32_t n_layers;
    struct proto_extent *again; /* [n_again] to be sent again, from again_next on */
    uint32_t n_again, again_next;
    uint32_t sends;  /* in flight to the target */
    uint64_t digest; /* over what was sent, each (layer, block) once */
    uint64_t progress_ms;

    bool drawn;
    struct proto_token first; /* the token the prompt ended with */
    struct proto_top first_top[PROTO_TOP_MAX];
    struct stream *stream;
    struct sample_result *scores; /* [n_tokens] when score_prompt */
    float *pooled;                /* [hidden] instead, for an embedding: the sum so far */
    struct sample_params sampling;
    struct guide *guide; /* or NULL */

    uint64_t arrived_ms, started_ms, computed_ms, parked_ms, handed_ms;
    uint64_t expires_ms;  /* the job's own deadline; 0: none */
    uint64_t computed_ns; /* when the prompt was complete, for the exposed time */
    uint64_t sending_ns;  /* when its first KV went to the present target; 0: none has */
    uint64_t early_bytes, sent_bytes;
    uint32_t repairs; /* HANDOFF_BAD so far */

    struct ticket *moving; /* the sequence that is handed on; NULL: a prompt */
    uint32_t room;         /* of a move: positions that were reserved */
    bool confirmed;        /* of a move: HANDOFF_OK has come, or the move is over */
    bool copy;             /* it brings a replica of `moving` up to date, and hands nothing over */
};

static inline struct log_about job_about(const struct job *j)
{
    return spec_about(&j->spec, &j->key);
}
/* Copies the job and the target. n_layers: of the model. */
int job_create(const struct seq_key *key, const struct proto_job *j, const struct proto_target *t,
               uint32_t n_layers, uint64_t now, struct job **out) WARN_UNUSED;
/* Frees; holds must be 0 and the blocks given back. Takes it off its list. */
void job_free(struct job *j);
void job_set_state(struct job *j, enum job_state to); /* the only writer of the state */
void job_set_reservation(struct job *j, enum job_reservation to);

/* QUEUED -> RUNNING: a prefix from the cache and blocks for the whole prompt, if `spare` stay free.
 * STATUS_FULL leaves everything as it was. */
int job_start(struct job *j, struct kv_pool *pool, uint32_t spare, uint64_t now) WARN_UNUSED;
/* The step that runs has finished this layer of its positions. */
void job_layer_done(struct job *j, uint32_t layer, uint32_t block_size);
/* The step has ended well. True when the prompt is complete. */
bool job_step_done(struct job *j);

/* GRANT. False when it is not acceptable (held_blocks out of range). */
bool job_grant(struct job *j, const struct proto_grant *g, uint32_t block_size);
/* The next extent to send, at most max blocks; false when there is none now. again: it is a
 * repetition. It counts as sent. */
bool job_next_extent(struct job *j, uint32_t max, struct proto_extent *out, bool *again);
/* HANDOFF_BAD: keeps a copy of the list. Extents out of range make it fail. */
int job_send_again(struct job *j, const struct proto_extent *list, uint32_t n) WARN_UNUSED;
/* COMPUTED, granted, everything sent and every send ended: HANDOFF may go. */
bool job_all_sent(const struct job *j);
/* Another decode worker (REDIRECT) under a new attempt; nothing counts as sent, and sends that are
 * still under way are no longer the job's. QUEUED stays so; otherwise RUNNING or COMPUTED after. */
int job_redirect(struct job *j, uint32_t attempt, const struct proto_target *t) WARN_UNUSED;
/* A move of a sequence that has n_tokens of its tokens in the KV cache, the first ones of the job:
 * QUEUED -> RUNNING. room: as many as will be reserved. */
void job_follow_begin(struct job *j, struct ticket *k, uint32_t room);
/* The first n of the sequence's blocks are complete and may be sent. caught_up: all of them have
 * been, and have arrived as far as the data link knows. */
int job_follow(struct job *j, struct kv_pool *pool, const uint32_t *blocks, uint32_t n,
               bool *caught_up) WARN_UNUSED;
/* The sequence stands still: its tokens [n] (the last of which has no KV yet), its blocks, and
 * `last`, the entry of its last token: RUNNING -> COMPUTED. */
int job_follow_end(struct job *j, struct kv_pool *pool, const int32_t *tokens, uint32_t n,
                   const uint32_t *blocks, const struct proto_token *last) WARN_UNUSED;
/* A copy of the first n_tokens / block_size blocks of a sequence, all of which are complete, and
 * `next`, the token behind them: QUEUED -> COMPUTED. NOMEM leaves it without blocks. */
int job_copy_begin(struct job *j, struct kv_pool *pool, struct ticket *k, const uint32_t *blocks,
                   int32_t next) WARN_UNUSED;
/* Would giving its blocks back free any? Others may hold them, too. */
bool job_frees_blocks(const struct job *j, const struct kv_pool *pool);
/* Blocks are given back: all of them at once. */
void job_put_blocks(struct job *j, struct kv_pool *pool);

#endif
