/* proto: the control messages between router and workers (TCP) and between workers (UCX).
 *
 * A message is a MessagePack map; on TCP a frame is a 16-byte header and the map, at
 * most PROTO_FRAME_MAX. Key "t" holds the type; unknown keys are ignored, missing optional keys are
 * zero. docs/PROTOCOL.md describes every message and its meaning; proto_fields.h is the table that
 * encoder, decoder and that page are made from.
 *
 * Decoded strings, bytes and arrays are loans from the frame or the arena. Encoding never fails but
 * for memory (buf_ok). Ids, times and lengths from peers are checked for range on decoding. */
#ifndef BATON_PROTO_PROTO_H
#define BATON_PROTO_PROTO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/mem.h"
#include "common/base/status.h"

#define PROTO_VERSION     1
#define PROTO_VERSION_MIN 1
#define PROTO_FRAME_MAX   (64u << 20)
#define PROTO_TOP_MAX     20

/* Bits of HELLO's features. */
#define PROTO_FEATURE_MOVE 1u /* takes MOVE, and RESERVE from decode workers */
#define PROTO_FEATURE_COPY 2u /* … that ask for a copy, and PREFILL that names itself */

enum proto_type {
    /* router <-> worker */
    PROTO_HELLO = 1,     /* both: who I am; first frame in each direction */
    PROTO_HELLO_OK = 2,  /* both: you are accepted */
    PROTO_HELLO_NO = 3,  /* both: refused, with the reason; the link closes */
    PROTO_HEARTBEAT = 4, /* both, every heartbeat_ms: progress and load */
    PROTO_METRICS = 5,   /* worker -> router: its metrics page */
    PROTO_PREFILL = 6,   /* router -> prefill worker: a whole job */
    PROTO_TOKENS = 7,    /* worker -> router: new tokens of all its sequences, one frame a step */
    PROTO_ACK = 8,       /* router -> worker: tokens up to here have been taken (cumulative) */
    PROTO_CANCEL = 9,    /* router -> worker: this attempt is over; free everything */
    PROTO_LOST = 10,     /* worker -> router: this attempt cannot go on here, with the reason */
    PROTO_RESUME = 11,   /* router -> worker on a new link: the attempts still wanted */
    PROTO_SCORES = 12,   /* prefill worker -> router: log probabilities of the prompt (echo) */
    PROTO_REDIRECT = 13, /* router -> prefill worker: hand the parked KV to another decode worker */
    PROTO_DRAIN = 14,    /* worker -> router: take no new work here; router -> worker: be so */
    PROTO_MOVE = 15,     /* router -> decode worker: copy a running sequence, then hand it over */
    /* prefill worker <-> decode worker */
    PROTO_RESERVE = 32,     /* P -> D: blocks for one sequence */
    PROTO_GRANT = 33,       /* D -> P: ticket, and how much of the prefix D already holds */
    PROTO_WAIT = 34,        /* D -> P: queued; a GRANT or REFUSE follows */
    PROTO_REFUSE = 35,      /* D -> P: no, with the reason */
    PROTO_HANDOFF = 36,     /* P -> D: all KV is sent; the job, the tokens so far, the digest */
    PROTO_HANDOFF_OK = 37,  /* D -> P: verified, the sequence is mine */
    PROTO_HANDOFF_BAD = 38, /* D -> P: these extents are missing or wrong, send them again */
    PROTO_RELEASE = 39      /* P -> D: I give this ticket (or this reservation) up */
};

enum proto_role { PROTO_ROUTER = 0, PROTO_PREFILL_WORKER = 1, PROTO_DECODE_WORKER = 2 };

enum proto_finish {
    PROTO_FINISH_NONE = 0,
    PROTO_FINISH_STOP = 1,   /* a stop id was drawn (it is the entry's token) */
    PROTO_FINISH_LENGTH = 2, /* max_tokens or the context is reached */
    PROTO_FINISH_ERROR = 3
};

/* Why a reservation, a hand-over or an attempt failed. */
enum proto_reason {
    PROTO_REASON_NONE = 0,
    PROTO_REASON_NO_ROUTER = 1, /* D has no link to that router */
    PROTO_REASON_FULL = 2,      /* no blocks, and waiting is not possible */
    PROTO_REASON_DRAINING = 3,
    PROTO_REASON_CANCELED = 4,  /* a tombstone: the attempt was canceled before */
    PROTO_REASON_MISMATCH = 5,  /* model, KV layout or protocol differ */
    PROTO_REASON_AUTH = 6,      /* MAC wrong */
    PROTO_REASON_PEER_LOST = 7, /* the other worker's endpoint failed or went silent */
    PROTO_REASON_TIMEOUT = 8,
    PROTO_REASON_PREEMPTED = 9,
    PROTO_REASON_TOO_LARGE = 10, /* can never fit the pool */
    PROTO_REASON_INTERNAL = 11,
    PROTO_REASON_CORRUPT = 12, /* KV could not be verified */
    PROTO_REASON_INVALID = 13, /* the job itself is not acceptable */
    PROTO_REASON_UNKNOWN = 14  /* RESUME or REDIRECT names an attempt that is not here */
};
const char *proto_reason_name(enum proto_reason r); /* "no_router", … */

struct proto_bytes {
    const void *p;
    size_t n;
};
struct proto_ids { /* int32 little-endian on the wire (a MessagePack bin) */
    const int32_t *p;
    size_t n;
};

/* R1: request = (router instance, counter); attempt is counted by the router alone. */
struct proto_request {
    uint64_t router; /* instance of the router */
    uint64_t counter;
    uint32_t attempt; /* from 0 */
};

struct proto_hello {
    uint32_t version_min, version_max;
    uint64_t features;
    uint64_t instance;       /* 64 random bits per process start */
    uint32_t role;           /* enum proto_role */
    struct proto_bytes name; /* "decoded-1" */
    struct proto_bytes model_name;
    uint64_t model; /* fingerprint of the weights */
    struct proto_bytes kv_layout, numerics;
    struct proto_bytes data_address; /* UCX worker address */
    uint32_t kv_blocks, kv_block_size, n_layers, context, vocab, max_batch, prefill_chunk;
    uint8_t nonce[32]; /* fresh; the peer's MAC answers it */
};
struct proto_hello_ok {
    uint8_t mac[32]; /* HMAC-SHA256(cluster key, "hello" | peer's nonce | own instance | own role),
                        or zero without a key */
};
struct proto_hello_no {
    uint32_t reason;           /* enum proto_reason */
    struct proto_bytes detail; /* one line */
};
struct proto_heartbeat {
    uint64_t progress;      /* grows with every layer computed */
    uint32_t running;       /* sequences in work */
    uint32_t waiting;       /* jobs queued or parked */
    uint32_t kv_free;       /* blocks free or only cached */
    uint32_t queued_tokens; /* prompt tokens still to compute */
    uint32_t credits;       /* jobs the worker will take */
    bool draining;
    bool busy;        /* has work, so progress is expected */
    uint32_t step_us; /* typical duration of the operation between two progress ticks */
};
struct proto_metrics {
    struct proto_bytes page;
};

struct proto_sampling {
    float temperature, top_p, min_p;
    int32_t top_k;
    uint64_t seed;
    float presence, frequency;  /* penalties for tokens of the answer */
    float repetition;           /* for those of prompt and answer; 0: none */
    uint32_t min_tokens;        /* stop ids are not drawn before */
    struct proto_ids bias_ids;  /* logit_bias: these ids … */
    struct proto_bytes bias;    /* … and as many float32, little-endian */
    struct proto_ids allowed;   /* only these are drawn; empty: all */
    struct proto_ids banned;    /* these never are */
    struct proto_ids bad_words; /* token sequences that must not occur, one after another … */
    struct proto_ids bad_word_sizes; /* … and how many ids each has, none 0 */
};
/* Everything a worker needs to run one choice of a request; travels in PREFILL and in HANDOFF. */
enum proto_pool { PROTO_POOL_NONE, PROTO_POOL_MEAN, PROTO_POOL_LAST };
struct proto_job {
    struct proto_request request;
    uint32_t choice;
    struct proto_ids prompt;  /* what the client sent */
    struct proto_ids emitted; /* tokens already given to the router (attempts after the first) */
    struct proto_sampling sampling;
    uint32_t max_tokens;       /* of the whole answer, emitted ones included */
    struct proto_ids stop_ids; /* end the sequence (EOS and friends) */
    bool ignore_eos;           /* stop_ids are not drawn at all */
    bool logprobs;
    uint32_t top_logprobs;
    bool score_prompt; /* echo with logprobs: SCORES wanted; no prefix cache */
    uint32_t score_top;
    uint32_t n_ids;          /* ids the tokenizer knows; larger ones are masked */
    struct proto_bytes salt; /* cache salt, "" for none */
    uint32_t priority;       /* larger is more urgent */
    uint64_t deadline_ms;    /* remaining time, never a clock reading; 0: none */

    /* A budget of thinking (common/text/budget.h); all empty without one. */
    uint32_t think_limit;            /* tokens of thinking, plus 1 */
    uint32_t think_start;            /* enum reasoning_start: where the prompt ends */
    struct proto_bytes think_open;   /* what begins thinking, */
    struct proto_bytes think_close;  /* ends it, */
    struct proto_bytes think_breaks; /* ends it too, as part of the answer, */
    struct proto_bytes think_force;  /* and is forced at the limit */

    /* What the answer looks like (common/text/grammar.h); all empty when anything goes. */
    uint32_t grammar_kind; /* enum grammar_kind */
    bool grammar_compact;  /* JSON without blanks */
    struct proto_bytes grammar;

    uint32_t pool; /* enum proto_pool: an embedding is wanted, in SCORES; with score_prompt */

    struct proto_bytes trace; /* for log lines: the client's request id, " " and traceparent */
};
struct proto_target { /* the decode worker of a pair */
    uint64_t instance;
    struct proto_bytes data_address;
    uint8_t
        mac[32]; /* R6: HMAC-SHA256(cluster key, "reserve" | router | counter | attempt | P | D) */
};
struct proto_prefill {
    struct proto_job job;
    struct proto_target decode;
};

struct proto_top {
    int32_t id;
    float logprob;
};
/* One new token. */
struct proto_token {
    uint64_t counter; /* request of the router that the frame goes to */
    uint32_t attempt, choice;
    uint32_t position; /* index within the answer, from 0 */
    int32_t token;
    float logprob;
    struct proto_top *top;
    uint32_t n_top;
    uint32_t finish; /* enum proto_finish; the entry is the last of its sequence */
    /* Only with position == first new one of an attempt on P: */
    uint32_t cached_tokens;
    uint32_t queue_ms, prefill_ms;
};
struct proto_tokens {
    struct proto_token *list;
    uint32_t n;
};
struct proto_seq_pos {
    uint64_t counter;
    uint32_t attempt, choice, position;
};
struct proto_ack { /* position: the next one the router expects */
    struct proto_seq_pos *list;
    uint32_t n;
};
struct proto_resume { /* everything of this router that is not listed is to be freed */
    struct proto_seq_pos *list;
    uint32_t n;
};
struct proto_cancel {
    struct proto_request request;
};
struct proto_lost {
    struct proto_request request;
    uint32_t choice;
    uint32_t reason; /* enum proto_reason */
    struct proto_bytes detail;
    bool parked; /* P still holds the KV: REDIRECT is possible */
};
struct proto_redirect {
    struct proto_request request; /* with the new attempt */
    uint32_t old_attempt;
    struct proto_target decode;
};
struct proto_score {
    float logprob; /* of prompt[i+1] given prompt[..i] */
    struct proto_top *top;
    uint32_t n_top;
    uint32_t rank; /* of that token among all, from 1; 0: not said */
};
struct proto_scores {
    struct proto_request request;
    struct proto_score *list; /* prompt length - 1 entries, or none */
    uint32_t n;
    struct proto_bytes hidden; /* the embedding: float32, little-endian */
};
struct proto_move {
    struct proto_request request; /* with the attempt that the target will have */
    uint32_t old_attempt;         /* the one that runs, and runs on until it is handed over */
    struct proto_target decode;
    bool copy; /* hand nothing over: keep a copy there of what is finished */
};
struct proto_drain {
    uint32_t remaining_ms;
    bool off; /* router -> worker: take new work again */
};

struct proto_reserve {
    struct proto_request request;
    uint32_t choice;
    uint64_t instance;               /* of P */
    struct proto_bytes data_address; /* of P */
    uint64_t model;
    struct proto_bytes kv_layout;
    uint32_t n_tokens;    /* KV positions that will come at most */
    struct proto_ids ids; /* those of them that are known, so that D can find a cached prefix */
    struct proto_bytes salt;
    uint32_t priority;
    uint8_t mac[32];
    bool copy; /* no sequence follows: the blocks are for the prefix cache */
};
struct proto_grant {
    struct proto_request request;
    uint32_t choice;
    uint64_t instance; /* of D */
    uint8_t ticket[16];
    uint32_t held_blocks; /* leading blocks that D already has */
    uint32_t lease_ms;
};
struct proto_wait {
    struct proto_request request;
    uint32_t choice;
    uint64_t instance;
};
struct proto_refuse {
    struct proto_request request;
    uint32_t choice;
    uint64_t instance;
    uint32_t reason;
    struct proto_bytes detail;
};
struct proto_handoff {
    uint8_t ticket[16];
    uint64_t instance;       /* of P */
    struct proto_job job;    /* emitted includes the token that P drew */
    struct proto_token last; /* that token with its logprobs, so that D can repeat it */
    uint64_t digest; /* over the checksums of all (layer, block) that were sent, see PROTOCOL.md */
    struct proto_token *earlier; /* tokens before it that the router may not have yet */
    uint32_t n_earlier;
};
struct proto_handoff_ok {
    uint8_t ticket[16];
    uint64_t instance; /* of D */
};
struct proto_extent {
    uint32_t layer, first, n;
};
struct proto_handoff_bad {
    uint8_t ticket[16];
    uint64_t instance;
    struct proto_extent *list;
    uint32_t n;
};
struct proto_release {
    struct proto_request request;
    uint32_t choice;
    uint64_t instance;  /* of P */
    uint8_t ticket[16]; /* zero while there was no GRANT */
};

struct proto_msg {
    enum proto_type type;
    union {
        struct proto_hello hello;
        struct proto_hello_ok hello_ok;
        struct proto_hello_no hello_no;
        struct proto_heartbeat heartbeat;
        struct proto_metrics metrics;
        struct proto_prefill prefill;
        struct proto_tokens tokens;
        struct proto_ack ack;
        struct proto_cancel cancel;
        struct proto_lost lost;
        struct proto_resume resume;
        struct proto_scores scores;
        struct proto_redirect redirect;
        struct proto_drain drain;
        struct proto_move move;
        struct proto_reserve reserve;
        struct proto_grant grant;
        struct proto_wait wait;
        struct proto_refuse refuse;
        struct proto_handoff handoff;
        struct proto_handoff_ok handoff_ok;
        struct proto_handoff_bad handoff_bad;
        struct proto_release release;
    };
};

/* Appends the MessagePack map of m (no length prefix). */
void proto_encode(struct buf *out, const struct proto_msg *m);
/* Decodes one map that fills the n bytes. STATUS_FORMAT for anything malformed or missing,
 * STATUS_UNSUPPORTED for an unknown type (which is ignored, not an error of the link). Arrays live
 * in the arena, which bounds what a frame can ask for. */
int proto_decode(const void *p, size_t n, struct arena *arena, struct proto_msg *out) WARN_UNUSED;
const char *proto_type_name(enum proto_type t); /* "PREFILL" */

#endif
