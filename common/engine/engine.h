/* engine: a model on a backend: packed weights, the captured forward pass per bucket, sampling.
 *
 * One thread at a time calls engine_step (the worker's engine thread). The engine knows nothing of
 * requests, tickets or transfers: it gets rows with block tables and gives tokens back. It is a
 * pure function of (weights, KV, rows): no state of a sequence lives in it.
 *
 * On a GPU a step takes its time beside the host, and the next one can be launched before its
 * tokens are read (engine_launch). The device then remembers, for each id, the token it drew last
 * and whether the sequence goes on; nothing of it is needed to resume elsewhere. */
#ifndef BATON_ENGINE_ENGINE_H
#define BATON_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/engine/forward.h"
#include "common/engine/sample.h"
#include "common/model/model.h"

struct engine_options {
    const char *backend;   /* "auto", "ref", "cpu", "cuda" */
    const char *isa;       /* "auto", "amx", "avx512", "avx2", "c" */
    const char *weights;   /* "auto", "bf16", "int8", "int4", "f32" */
    const char *kv_format; /* NULL or "auto" (bf16), "bf16", "int8"; "f32" with backend "ref" */
    int threads;
    int helpers; /* further threads of the CPU backend that use only what nobody else wants */
    const char *cpus;
    uint32_t context;       /* 0: the model's own */
    uint32_t max_batch;     /* sequences in one step */
    uint32_t prefill_chunk; /* most prompt tokens in one step; a multiple of the block size */
    uint32_t kv_block_size;
    bool graphs; /* false: bind the pass anew for every step (for comparison) */
    /* backend "cuda" only */
    const char *numerics; /* "fast", or "strict": a row has the same bits however it is batched */
    int device;
    uint32_t device_memory_percent; /* of the device's memory, for all that lies there; 0: 92 */
    struct forward_watch watch;     /* of the packing, on the thread of engine_create */
};

struct engine_info {
    uint32_t n_layers, vocab, context, kv_block_size;
    uint32_t hidden;       /* length of a hidden state; 0: this backend gives none */
    uint32_t max_tokens;   /* most tokens in one step: room for a chunk and a full batch */
    size_t kv_block_bytes; /* one (layer, block): all heads, K and V */
    size_t weight_bytes;
    uint32_t ahead;      /* steps that may be launched before the first of them is finished */
    bool kv_on_device;   /* KV is reached by engine_kv_* only; its memory by engine_kv_alloc */
    size_t kv_bytes_max; /* what the device has left for KV; 0 on the host: not known here */
    size_t graph_bytes;  /* what the captured passes take on the device */
    char numerics[64];   /* numerics class: "cpu/avx512/q4/tp1"; equal classes give equal bits */
    char kv_layout[96];  /* layout fingerprint; equal ones can exchange blocks */
    uint64_t model;      /* model fingerprint */
};

struct engine;
/* Packs the weights; the model may be closed afterwards. err: one line. */
int engine_create(const struct model *m, const struct engine_options *o, struct engine **out,
                  char *err, size_t errlen) WARN_UNUSED;
void engine_destroy(struct engine *e);
const struct engine_info *engine_info(const struct engine *e);

/* The decode buckets: 1 2 4 8, steps of 8 to 64, of 16 to 256, of 32 above; and the chunk buckets,
 * powers of two from 64 (and prefill_chunk itself). Smallest bucket that holds n rows. */
uint32_t engine_bucket(const struct engine *e, uint32_t n);

/* Gives the engine its KV pool ([layer][block] of kv_block_bytes, n_blocks with the sink) and
 * captures every bucket. Once, before the first step. */
int engine_bind_kv(struct engine *e, void *base, uint32_t n_blocks) WARN_UNUSED;
/* Address of one (layer, block). */
void *engine_kv_block(const struct engine *e, uint32_t layer, uint32_t block);
/* Zeroes the slots from `used` on of one (layer, block), before it is sent. */
void engine_kv_clear_tail(const struct engine *e, uint32_t layer, uint32_t block, uint32_t used);

/* KV on a device. These may be called by another thread than the steps; they return when the work
 * is done. Memory for KV, owned by the engine: then engine_bind_kv with it. err: one line. */
int engine_kv_alloc(struct engine *e, uint32_t n_blocks, void **out, char *err,
                    size_t errlen) WARN_UNUSED;
/* Page-locked host memory, for the two below. */
void *engine_host_alloc(struct engine *e, size_t n);
void engine_host_free(struct engine *e, void *p);
/* n blocks of one layer, one after another in host memory. */
int engine_kv_read(struct engine *e, uint32_t layer, const uint32_t *blocks, uint32_t n,
                   void *to) WARN_UNUSED;
int engine_kv_write(struct engine *e, uint32_t layer, const uint32_t *blocks, uint32_t n,
                    const void *from) WARN_UNUSED;
/* hash_kv of each, computed where they lie. */
int engine_kv_sums(struct engine *e, uint32_t layer, const uint32_t *blocks, uint32_t n,
                   uint64_t *out) WARN_UNUSED;
/* The block is going to be received; and it was, by somebody else than engine_kv_write. */
void engine_kv_incoming(struct engine *e, uint32_t layer, uint32_t block);
void engine_kv_arrived(struct engine *e, uint32_t layer, uint32_t block);

/* One sequence's share of a step. */
struct engine_row {
    /* n_tokens ids at positions position .. position + n_tokens - 1. NULL (n_tokens 1): the token
     * that was drawn last for `id`, which nobody may have read yet. */
    const int32_t *tokens;
    uint32_t n_tokens;
    uint32_t position;
    const uint32_t *blocks; /* block table up to position + n_tokens - 1 */
    /* When set, the token after the last one is sampled: params, and the draw's (seed, choice,
     * position of the sampled token). */
    const struct sample_params *sampling;
    uint32_t choice;
    struct sample_result result; /* out, when sampling was set; token -1: it had ended before */
    /* Names the sequence from step to step, so that its table and its last token may stay on the
     * device; 0: none. Unique among the rows of a step and the sequences that run. */
    uint64_t id;
    /* What ends it, so that a step that was launched ahead need not compute it: any of these ids
     * drawn, or a token drawn for last_position or later (0: no such limit). Hints: whoever reads
     * the tokens decides. */
    const int32_t *stop;
    uint32_t n_stop, last_position;
    /* When set, the log probability of tokens[1..n_tokens) and of `next_token` (when >= 0) under
     * the model is written: scores[i] is for the token after tokens[i]. For echo with logprobs. */
    struct sample_result *scores;
    int32_t next_token;
    /* When set, [info.hidden]: the hidden states behind the last norm of the tokens from
     * hidden_from on are added to it. */
    float *hidden;
    uint32_t hidden_from;
    uint32_t score_top; /* alternatives to report in scores, 0..SAMPLE_TOP_MAX */
    uint32_t score_ids; /* ids that may be reported as alternatives are below this; 0: all */
};

struct engine_step {
    struct engine_row *rows;
    uint32_t n_rows;
    /* Called on the stepping thread as soon as a layer's K and V of all rows are in memory. */
    void (*layer_done)(void *arg, uint32_t layer);
    void *layer_arg;
    /* Any thread may set it when nobody wants the step any more; NULL: never. The step then ends
     * soon (between two operations of a layer) with STATUS_CANCELED and without results. */
    const _Atomic bool *stop;
    uint32_t bucket; /* out: the bucket that was replayed */
    /* Sampling waits for engine_sample: the rows' masks (sample_params.allowed) depend on tokens
     * that are still being computed. What `sampling` points to is not read before. No row may be
     * scored then. */
    bool late;
    void *flight; /* the engine's */
};
/* Runs one step: the sum of n_tokens must not exceed the largest bucket, n_rows not max_batch (but
 * at least 1). Rows that share blocks must not write the same block. STATUS_INVALID for counts or
 * token ids out of range, STATUS_RANGE for positions beyond the context: nothing was computed. */
int engine_step(struct engine *e, struct engine_step *s) WARN_UNUSED;

/* The same in pieces: launch, sample when late, and poll until it is not STATUS_AGAIN any more. Up
 * to info.ahead steps may be between launch and the end of poll; they end in order. The step and
 * what it points to belong to the engine meanwhile. On the host, launch does all the work.
 * STATUS_FULL: too many, or one that scores or is still to be sampled is under way. */
int engine_launch(struct engine *e, struct engine_step *s) WARN_UNUSED;
int engine_sample(struct engine *e, struct engine_step *s) WARN_UNUSED;
/* wait: return only when it is complete or, with layer_done set, another layer is. */
int engine_poll(struct engine *e, struct engine_step *s, bool wait) WARN_UNUSED;
/* The device has failed for good: no step will succeed any more. */
bool engine_lost(const struct engine *e);
/* Logits [vocab] of the place that was answered last: of the last row that samples or is scored.
 * Valid until the next step; for tests. */
const float *engine_logits(const struct engine *e);

#endif
