/* gen: one sequence from the router's point of view (R1-R4, R9, R10 of docs/PROTOCOL.md). Pure: the
 * clock, the random numbers and what is known of the workers are passed in; what is to be done
 * comes out as a short list of actions. relay.c does the I/O.
 *
 *   WAITING ──pair found──> PREFILL ──first token of D──> DECODE ──last token──> DONE
 *      ^                     │  ^                            │
 *      │                     v  │ REDIRECT                   │
 *      │                    PARKED                           │
 *      └──── next attempt ────┴──────────────────────────────┘     any ──fail, cancel──> DONE
 *
 * WAITING: no worker has it. PARKED: the prefill worker has its KV and no decode worker to give it
 * to. PREFILL: sent to a prefill worker, the decode worker has said nothing yet. DECODE: the decode
 * worker has sent a token.
 *
 * A sequence in DECODE may be on the move: its decode worker copies what is finished to another one
 * and goes on under the present attempt, until the other one's first token, under the attempt of
 * the move, says that it has taken over.
 *
 * It may also have a replica: its decode worker keeps a copy of what is finished on another one. An
 * attempt that follows goes there, with that worker in both roles, and only the end of the tokens
 * is computed again. Whether a replica is good is found out when it is needed.
 *
 * What a worker says counts only when instance and attempt are those of the present attempt: late
 * words of a worker that was given up, or that woke up again, are dropped. Every state has a
 * deadline, which gen_tick acts on; gen_wake_ms says when. */
#ifndef BATON_ROUTERD_GEN_H
#define BATON_ROUTERD_GEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/log.h"
#include "common/base/status.h"
#include "common/proto/proto.h"
#include "routerd/pick.h"

enum gen_state { GEN_WAITING, GEN_PARKED, GEN_PREFILL, GEN_DECODE, GEN_DONE };
const char *gen_state_name(enum gen_state s);

#define GEN_GAP_MAX   64
#define GEN_ACK_EVERY 32 /* tokens between two acknowledgements of a sequence */

struct gen_limits {
    uint64_t request_timeout_ms; /* the whole request */
    uint64_t worker_wait_ms;     /* for a worker of a missing kind */
    uint64_t queue_timeout_ms;   /* for a busy worker */
    uint64_t stall_ms;           /* for a token that is missing between others */
    uint64_t park_ms;            /* for a decode worker that takes the parked KV */
    uint32_t replica_tokens;     /* given before a replica is worth it */
};

/* Attempts that follow attempts without progress come from this common budget, so that many failing
 * requests do not become a storm of them: a token bucket of GEN_BUDGET_MAX, filled with
 * GEN_BUDGET_PER_S. One that gets nothing waits. */
#define GEN_BUDGET_MAX   64
#define GEN_BUDGET_PER_S 64
struct gen_budget {
    uint64_t at_ms;
    uint64_t milli; /* thousandths of an attempt */
};
void gen_budget_init(struct gen_budget *b, uint64_t now_ms);
bool gen_budget_take(struct gen_budget *b, uint64_t now_ms);

enum gen_action_type {
    GEN_SEND_PREFILL,  /* the job to `worker`, with `decode` as target, under `attempt` */
    GEN_SEND_REDIRECT, /* parked KV from old_attempt: the same */
    GEN_SEND_MOVE,     /* the sequence that `worker` runs as old_attempt: copy it, hand it over */
    GEN_SEND_COPY,     /* the same, but only copy it, and go on doing so */
    GEN_SEND_CANCEL,   /* of `attempt` to `worker` */
    GEN_GIVE_SCORES,   /* the owner gets the scores that came */
    GEN_GIVE_TOKEN,    /* the owner gets `token` */
    GEN_GIVE_FINISH,   /* … and nothing after this */
    GEN_GIVE_FAILED
};
struct gen_action {
    enum gen_action_type type;
    uint64_t worker, decode; /* instances */
    uint32_t attempt, old_attempt;
    struct proto_token token; /* top: a loan until the next call for this gen */
    enum proto_finish finish;
    int status; /* GIVE_FAILED: maps to the HTTP status */
};

/* One event: what it may look at, and what is to be done after it, in this order. */
#define GEN_ACTIONS_MAX 6
struct gen_turn {
    uint64_t now_ms, random;
    struct gen_action actions[GEN_ACTIONS_MAX];
    uint32_t n;
    bool diverged; /* a token came again with another id; it was dropped */
    char why[256]; /* GIVE_FAILED: a sentence for the client; else why an attempt or a move ended */
};
void gen_turn_init(struct gen_turn *t, uint64_t now_ms, uint64_t random);

struct gen {
    const struct gen_limits *limits;
    enum gen_state state;
    uint64_t counter;
    uint32_t pool; /* of the workers that it may go to; set by the owner */
    uint32_t attempt;
    struct proto_job job; /* prompt, stop_ids, salt: loans from the owner for the gen's life */
    int32_t *emitted;     /* [n_emitted] */
    uint32_t n_emitted, cap_emitted;
    uint64_t prefill, decode; /* instances that the present attempt names; 0: none, or done */
    bool settled;             /* the prefill worker has drawn its token: the prompt is computed */
    bool doubt;               /* the decode worker did not know the attempt when it came back */
    bool scored;              /* the scores have come, or are not wanted */
    uint64_t numerics;        /* class that computed the first tokens; 0: none yet */
    uint64_t avoid[2];        /* workers that failed it */
    uint64_t pair[2];         /* workers of its last attempt, prefill and decode */
    uint64_t near[2];         /* those that another path of its prompt was at; 0: none */
    uint64_t move_to;         /* decode worker that the sequence is on its way to; 0: none */
    uint32_t move_attempt;    /* what it will have there */
    uint64_t move_after_ms;   /* none before that: one has just failed */
    uint32_t moves, moves_failed;
    uint64_t replica;          /* decode worker that has a copy of what is finished; 0: none */
    uint32_t replica_attempt;  /* the number it is kept under */
    uint64_t replica_after_ms; /* none before that: one has just failed */
    uint32_t adopted;          /* attempts that went to a replica */
    uint32_t last_attempt;     /* the highest number that was ever given */
    uint32_t retries;          /* attempts after the first */
    uint32_t fruitless, fruitless_at; /* retries without progress, since it had so many tokens */
    uint32_t deaths, deaths_at;       /* the same for workers that died under it */
    bool trial;
    uint64_t created_ms, deadline_ms, since_ms, retry_ms; /* since_ms: in this state */
    uint32_t acked;
    struct proto_token *gap; /* [GEN_GAP_MAX] tokens that came before their turn; own their top */
    uint32_t n_gap;
    uint64_t gap_ms;
    struct proto_top *lent; /* top of the last token that came out of the gap */
    uint32_t cached_tokens, queue_ms, prefill_ms; /* as the first attempt reported them */
    uint32_t work_queue_ms, work_ms; /* the same two of the present attempt, once settled */
    bool work_known;                 /* the prefill worker has told them */
};

void gen_init(struct gen *g, const struct gen_limits *l, uint64_t counter,
              const struct proto_job *job, uint64_t now_ms);
/* Before gen_place: it goes where `other`, which has the same prompt, was placed last, if it can.
 */
void gen_follow(struct gen *g, const struct gen *other);
void gen_fini(struct gen *g);
/* For log lines about it; in a static ring of buffers. */
struct log_about gen_about(const struct gen *g);
/* The same under another attempt's name, for what is sent about one that is to come. */
struct log_about gen_about_attempt(const struct gen *g, uint32_t attempt);

/* WAITING or PARKED: finds workers if it is time and there are some; the view then counts what it
 * was given. It may also end, when it has waited too long or can never be placed. budget may be
 * NULL. */
void gen_place(struct gen *g, struct pick_worker *view, uint32_t n, struct gen_budget *budget,
               struct gen_turn *t);
/* SEND_PREFILL, SEND_REDIRECT, SEND_MOVE or SEND_COPY could not be sent. */
void gen_unsent(struct gen *g, int status, struct gen_turn *t);

/* A token from a worker; at most one is given to the owner. Call gen_next until it returns false.
 */
void gen_token(struct gen *g, uint64_t from, const struct proto_token *tok, struct gen_turn *t);
/* The next of the tokens that came too early, when it is its turn. */
bool gen_next(struct gen *g, struct gen_turn *t);
void gen_scores(struct gen *g, uint64_t from, uint32_t attempt, struct gen_turn *t);
/* LOST. name: of the worker, for people. */
void gen_lost(struct gen *g, uint64_t from, const char *name, const struct proto_lost *l,
              struct gen_turn *t);

enum gen_loss {
    GEN_LOSS_DEAD,       /* the process is gone */
    GEN_LOSS_DEAD_ALONE, /* and nothing else of this router was under way there (gen_under) */
    GEN_LOSS_SUSPECT     /* silent, without progress, or not to be reached */
};
/* Is the worker at work for it, or its KV there, so that its death may be the sequence's doing? */
bool gen_under(const struct gen *g, uint64_t instance);
/* Workers have died under it, and under others, so nobody knows which one it was: it is to be tried
 * while no other of its kind is, until it has made progress. */
bool gen_on_trial(const struct gen *g);
void gen_worker_lost(struct gen *g, uint64_t instance, enum gen_loss how, const char *why,
                     struct gen_turn *t);
/* Can the sequence be moved from its decode worker to another one now? */
bool gen_can_move(const struct gen *g, uint64_t now_ms);
/* Begins that, to the decode worker of this instance: one of the same model, KV layout and numerics
 * class, other than the present one. */
void gen_move(struct gen *g, uint64_t to, struct gen_turn *t);
/* The same for a replica. If the sequence's worker is lost, the next attempt goes to it. */
bool gen_can_copy(const struct gen *g, uint64_t now_ms);
void gen_copy(struct gen *g, uint64_t to, struct gen_turn *t);
void gen_tick(struct gen *g, struct gen_turn *t);
/* The owner wants no more; no callback follows. */
void gen_cancel(struct gen *g, struct gen_turn *t);

/* When gen_tick or gen_place has something to do even if nothing happens. Never "never". */
uint64_t gen_wake_ms(const struct gen *g);
/* RESUME: the attempts that need this worker, at most GEN_RESUME_MAX, and from which token on. */
#define GEN_RESUME_MAX 2
uint32_t gen_resume(const struct gen *g, uint64_t instance, struct proto_seq_pos *out);
/* ACK: true when one is due after this token. */
bool gen_ack(struct gen *g, const struct proto_token *tok, struct proto_seq_pos *out);
/* Prompt tokens that the prefill worker still has to compute for it. */
uint32_t gen_prompt_left(const struct gen *g);

#endif
