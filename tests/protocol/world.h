/* world: a router, two prefill and two decode workers in one piece of memory, under one virtual
 * clock and one random generator, for exploring what the protocol does under every order of events.
 *
 * Real code: the router's sequence (routerd/gen, pick), the workers' jobs, tickets and outboxes
 * (common/worker), the KV pool with its prefix cache. Modelled here: what lies between them, that
 * is links, data links, the engine (a token is a hash of all tokens before it and the worker's
 * class; a KV block is a hash of the tokens up to its end), and the glue of relay.c, workers.c,
 * prefill.c, decode.c, move.c, links.c, sender.c and receiver.c, event for event.
 *
 * Control links keep order and may be cut at any time; each end notices for itself. Data links keep
 * order per direction, lose or repeat single messages, and may be torn. A worker may be killed and
 * come back as another instance, or be stopped and go on later. */
#ifndef BATON_TESTS_PROTOCOL_WORLD_H
#define BATON_TESTS_PROTOCOL_WORLD_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/list.h"
#include "common/kv/pool.h"
#include "common/proto/proto.h"
#include "common/worker/job.h"
#include "common/worker/outbox.h"
#include "common/worker/ticket.h"
#include "routerd/gen.h"

#define NODES      4 /* prefill workers 0 and 1, decode workers 2 and 3 */
#define SEQS       3
#define LAYERS     2
#define BLOCK      2 /* tokens in one */
#define BLOCKS     24
#define IDS        16 /* longest sequence */
#define QUEUE_MAX  32
#define FLIGHTS    16
#define ROUTER     ((uint64_t)7 << 32)
#define CONTEXT    64
#define LEASE_MS   3000
#define GRACE_MS   600
#define STALL_MS   200
#define RELINK_MS  100
#define PARK_MS    400
#define WAIT_MS    20000
#define REQUEST_MS 120000
#define SETTLE_MS  30000 /* after the last fault everything is over by then */

/* Deliberate mistakes, to see that the checks find them. */
enum mutant {
    MUTANT_NONE,
    MUTANT_STALE_ATTEMPT,    /* the router takes tokens of attempts that are over */
    MUTANT_ACCEPT_DUPLICATE, /* … and those that it has already */
    MUTANT_IGNORE_LOST,      /* … and does not hear LOST */
    MUTANT_NO_TOMBSTONE,     /* a canceled attempt may be reserved again */
    MUTANT_SAME_TICKET,      /* tickets are not fresh */
    MUTANT_NO_QUARANTINE,    /* blocks are given back while KV still lands in them */
    MUTANT_NO_CHECKSUM,      /* what arrived is taken for right */
    MUTANT_NO_LEASE,         /* what waits for a message that was lost waits for ever */
    MUTANT_NO_GRACE,         /* what a router that is gone has left stays */
    MUTANT_NO_REWIND,        /* tokens that went down with a link do not come again */
    MUTANT_NO_RESUME_ANSWER, /* attempts that are not there are not reported after RESUME */
    MUTANT_FREE_BEFORE_OK,   /* the prefill worker lets go when HANDOFF is sent */
    MUTANT_QUIET_THAW,       /* a sequence goes on after its HANDOFF, and the router is not told */
    MUTANT_NOT_FROZEN,       /* … and draws tokens while it is handed over */
    MUTANT_MOVED_TWICE,      /* the router takes the target's tokens after a LOST of the move */
    MUTANT_COPY_RUNS,        /* a copy is taken for a sequence */
    MUTANT_OPEN_COPY,        /* a replica has a block that is not complete */
    MUTANTS
};
const char *mutant_name(enum mutant m);

struct scenario {
    const char *name;
    uint32_t n_prefill, n_decode, n_seqs, layers, blocks;
    uint32_t prompt[SEQS], answer[SEQS]; /* tokens */
    bool prefix_cache, mixed;            /* mixed: the workers compute different bits */
    bool replicas;                       /* what decodes gets one */
    /* How many of each may happen in one run, and the chance per event, in percent. */
    uint32_t kills, cuts, tears, drops, repeats, flips, stops, cancels, deaths, moves;
    uint32_t percent;
};

enum { MSG_UP = 100, MSG_KV };
struct msg {
    int type;          /* enum proto_type, or one of the above */
    uint64_t instance; /* PREFILL, REDIRECT, MOVE: of the decode worker; data link: of the sender */
    uint64_t counter;
    uint32_t attempt, old_attempt, reason, held;
    bool parked, again, copy;
    uint32_t n; /* entries of what follows */
    union {
        int32_t ids[IDS]; /* PREFILL: emitted; RESERVE, HANDOFF: all tokens */
        struct proto_token tokens[4];
        struct proto_seq_pos pos[GEN_RESUME_MAX * SEQS];
        struct proto_extent extents[8];
    };
    uint32_t prompt, max_tokens, room, earlier;
    uint8_t ticket[16];
    uint64_t digest;
    uint32_t layer, first, flight; /* KV */
    uint64_t sums[IDS / BLOCK];
};

struct queue {
    uint32_t head, n;
    struct msg m[QUEUE_MAX];
};

/* Router and one worker. */
struct control {
    bool whole;   /* what is sent arrives */
    bool w_stale; /* the worker's link is dead, and it has not noticed */
    struct queue to_w, to_r;
};

struct flight { /* of KV, at the sender */
    enum { FLIGHT_NONE, FLIGHT_FLYING, FLIGHT_DONE, FLIGHT_FAILED } state;
    struct job *job;
    uint64_t to; /* instance */
    uint32_t attempt, layer, n, blocks[IDS / BLOCK];
};
struct landing { /* of KV, at the receiver */
    struct ticket *ticket;
    uint64_t from;
    uint32_t flight, layer, first, n, blocks[IDS / BLOCK];
    uint64_t sums[IDS / BLOCK];
    bool freed; /* MUTANT_NO_QUARANTINE: the ticket is gone */
};

struct node {
    uint32_t index;
    bool decode, alive, stopped;
    uint64_t stopped_ms, instance, numerics;
    struct kv_pool *pool;
    uint64_t kv[LAYERS][BLOCKS + 1];
    /* Its router. */
    bool known, linked;
    uint64_t down_ms, back_ms; /* back_ms: RESUME is awaited; 0: not */
    struct outbox outbox;
    /* Prefill worker. */
    struct list jobs;
    uint32_t n_jobs;
    uint64_t arrivals;
    struct job *computing;
    uint32_t stage;
    struct flight flights[FLIGHTS];
    uint32_t flying, landing; /* bit i: flight i, landing i */
    /* Decode worker. */
    struct ticket_table tickets;
    struct ticket *stepping[SEQS * 2];
    uint32_t n_stepping;
    struct landing landings[FLIGHTS];
    /* Peers that are lost, which it has not noticed. */
    uint64_t notices[8];
    uint32_t n_notices;
    uint64_t moved_ms; /* a KV operation began or ended */
};

/* The router's view of a worker, as in workers.c. */
struct link_view {
    bool up, silent, relinking;
    uint64_t instance, relink_until_ms;
    uint32_t running;
};

struct seq {
    bool open; /* the router has it */
    struct gen g;
    int32_t prompt[IDS];
    uint32_t n_prompt, max_tokens;
    bool over; /* finish or failed was given, or it was canceled */
    bool canceled, failed;
    uint32_t given;      /* tokens */
    uint32_t active[32]; /* by attempt: how often it was activated */
};

/* Everything that can happen. */
enum event_type {
    EV_PLACE,    /* the router looks for workers for what waits */
    EV_TO_R,     /* a message of worker a arrives at the router */
    EV_TO_W,     /* … of the router at worker a */
    EV_R_DOWN,   /* the router notices that the link to a is gone */
    EV_W_DOWN,   /* worker a notices */
    EV_RELINK,   /* the router connects to worker a */
    EV_REFUSED,  /* … and nobody listens there */
    EV_TO_PEER,  /* a message of worker a arrives at worker b */
    EV_COMPUTE,  /* prefill worker a goes on with its step */
    EV_STEP,     /* decode worker a begins or ends a step */
    EV_LAND,     /* KV lands at decode worker a, landing b */
    EV_SENT,     /* prefill worker a learns that flight b has ended */
    EV_NOTICE,   /* worker a notices that a peer is lost */
    EV_RESTART,  /* worker a starts again */
    EV_CONTINUE, /* a stopped worker goes on */
    EV_COPY,     /* the router wants a replica of sequence a at decode worker b */
    EV_TIME,     /* the clock moves on to what is next due */
    /* Faults. */
    EV_KILL,
    EV_STOP,
    EV_CUT,    /* control link of worker a */
    EV_TEAR,   /* data link between a and b */
    EV_DROP,   /* the next message from a to b (by b >= 2) or back is lost */
    EV_REPEAT, /* … comes once more later */
    EV_FLIP,   /* KV of landing b at a arrives with a wrong bit */
    EV_CANCEL, /* the owner of sequence a wants no more */
    EV_DEATH,  /* the router is killed for good */
    EV_MOVE    /* sequence a is to go to decode worker b */
};
struct event {
    uint8_t type, a, b;
};
const char *event_name(enum event_type t);

struct world {
    const struct scenario *s;
    enum mutant mutant;
    uint64_t now, random;
    bool trace;
    struct node nodes[NODES];
    struct control control[NODES];
    struct queue data[NODES][NODES]; /* from, to */
    /* Router. */
    bool router_dead;
    struct link_view views[NODES];
    struct seq seqs[SEQS];
    struct gen_limits limits;
    struct gen_budget budget;
    uint64_t instances;
    /* What has happened. */
    struct scenario left; /* faults that may still happen */
    bool settling;        /* no more faults */
    uint64_t steps, kills, stops, messages;
    uint64_t *sent, *reasons; /* [64] by type, [16] of LOST and REFUSE; the explorer's */
    uint8_t tickets[64][16];
    uint32_t n_tickets;
    struct {
        uint32_t node;
        uint64_t counter, at_ms;
        uint32_t attempt;
    } canceled[64];
    uint32_t n_canceled;
    bool broken; /* a check failed */
    char why[256];
};

/* explore.c: checks and the trace. */
void world_fail(struct world *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void world_say(struct world *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#define SAY(w, ...)                                                                                \
    do {                                                                                           \
        if (__builtin_expect((w)->trace, 0))                                                       \
            world_say(w, __VA_ARGS__);                                                             \
    } while (0)
uint64_t world_random(struct world *w);
const char *node_name(const struct world *w, uint64_t instance);

/* net.c */
bool queue_put(struct world *w, struct queue *q, const struct msg *m);
void queue_take(struct queue *q, struct msg *out);
struct queue *data_queue(struct world *w, uint32_t from, uint32_t to);
struct node *node_of(struct world *w, uint64_t instance); /* alive, or NULL */
void send_to_router(struct world *w, struct node *n, const struct msg *m);
void send_to_worker(struct world *w, uint64_t instance, const struct msg *m);
/* Over the data link; true also when it is lost on the way. */
void send_to_peer(struct world *w, struct node *n, uint64_t instance, struct msg *m);
bool peer_is_dead(const struct node *n, uint64_t instance);
void notice_later(struct node *n, uint64_t instance);
void net_tear(struct world *w, struct node *a, struct node *b);
void net_cut(struct world *w, uint32_t node);

/* A token and the KV of a block: functions of the tokens before them. */
int32_t token_of(const int32_t *ids, uint32_t n, uint64_t numerics);
uint64_t kv_of(uint32_t layer, const int32_t *ids, uint32_t end);

/* worker_side.c: router links and the life of a worker */
void node_start(struct world *w, struct node *n);
void node_kill(struct world *w, struct node *n);
void node_down(struct world *w, struct node *n);
void node_message(struct world *w, struct node *n, const struct msg *m);
void node_flush(struct world *w, struct node *n);
void node_tick(struct world *w, struct node *n);
void node_lost(struct world *w, struct node *n, const struct seq_key *k, enum proto_reason reason,
               bool parked);
void node_notice(struct world *w, struct node *n, uint64_t instance);
void node_check(struct world *w, struct node *n); /* owners of blocks */
bool node_is_idle(const struct node *n);
uint64_t node_due(const struct node *n); /* when node_tick has something to do; UINT64_MAX */

/* prefill_side.c */
void p_accept(struct world *w, struct node *n, const struct msg *m);
void p_redirect(struct world *w, struct node *n, const struct msg *m);
void p_cancel(struct world *w, struct node *n, uint64_t counter, uint32_t attempt);
void p_keep_only(struct world *w, struct node *n, const struct proto_seq_pos *list, uint32_t count);
bool p_resume(struct world *w, struct node *n, const struct seq_key *k);
void p_router_gone(struct world *w, struct node *n);
void p_peer_lost(struct world *w, struct node *n, uint64_t instance);
void p_message(struct world *w, struct node *n, const struct msg *m);
bool p_preempt(struct world *w, struct node *n);
bool p_can_compute(const struct node *n);
void p_compute(struct world *w, struct node *n);
void p_sent(struct world *w, struct node *n, uint32_t flight);
void p_tick(struct world *w, struct node *n);
uint64_t p_due(const struct node *n);
void p_close(struct node *n);

void p_reserve(struct world *w, struct node *n, struct job *j);
void p_end(struct world *w, struct node *n, struct job *j);
void p_pump(struct world *w, struct node *n, struct job *j);

/* move_side.c */
void m_start(struct world *w, struct node *n, const struct msg *m);
void m_prepare(struct world *w, struct node *n, struct job *j);
void m_stepped(struct world *w, struct node *n, struct ticket *k);
void m_lost(struct world *w, struct node *n, struct job *j, enum proto_reason reason);
void m_detach(struct job *j);

/* replica_side.c */
void c_start(struct world *w, struct node *n, const struct msg *m);
void c_advance(struct world *w, struct node *n, struct ticket *k);
void c_stop(struct world *w, struct node *n, struct ticket *k);
void c_confirmed(struct world *w, struct node *n, struct job *j);
void c_lost(struct world *w, struct node *n, struct job *j, enum proto_reason reason);
void c_adopt(struct world *w, struct node *n, struct job *j);
bool c_local(const struct node *n, const struct job *j);

/* decode_side.c */
void d_end(struct world *w, struct node *n, struct ticket *k);
void d_cancel(struct world *w, struct node *n, uint64_t counter, uint32_t attempt);
void d_keep_only(struct world *w, struct node *n, const struct proto_seq_pos *list, uint32_t count);
void d_router_gone(struct world *w, struct node *n);
void d_peer_lost(struct world *w, struct node *n, uint64_t instance);
void d_message(struct world *w, struct node *n, const struct msg *m);
void d_admit(struct world *w, struct node *n);
bool d_can_step(const struct node *n);
void d_step(struct world *w, struct node *n);
void d_land(struct world *w, struct node *n, uint32_t landing, bool ok, bool flip);
void d_tick(struct world *w, struct node *n);
uint64_t d_due(const struct node *n);
void d_close(struct node *n);

/* router_side.c */
void r_start(struct world *w);
void r_close(struct world *w);
void r_place(struct world *w);
bool r_can_place(const struct world *w);
void r_message(struct world *w, struct node *n, const struct msg *m);
void r_down(struct world *w, uint32_t node);
void r_up(struct world *w, uint32_t node);
void r_refused(struct world *w, uint32_t node);
void r_tick(struct world *w);
uint64_t r_due(const struct world *w);
void r_cancel(struct world *w, uint32_t seq);
void r_death(struct world *w);
bool r_can_copy(const struct world *w, uint32_t seq, uint32_t node);
void r_copy(struct world *w, uint32_t seq, uint32_t node);
bool r_can_move(const struct world *w, uint32_t seq, uint32_t node);
void r_move(struct world *w, uint32_t seq, uint32_t node);

/* explore.c */
void world_open(struct world *w, const struct scenario *s, uint64_t seed, enum mutant m);
void world_close(struct world *w);
#define EVENTS_MAX 128
uint32_t world_events(struct world *w, struct event *list);
uint32_t world_faults(struct world *w, struct event *list);
void world_do(struct world *w, struct event e);
/* Lets everything run to its end, and checks that it does. */
void world_settle(struct world *w);

#endif
