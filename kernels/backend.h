/* backend: what a device must do for the engine. Implementations: ref (plain C, the oracle), cpu
 * (AVX-512 with BF16/VNNI, AVX2 or plain C, chosen at run time) and cuda.
 *
 * The engine describes one forward pass as a flat list of operations over named buffers (struct op)
 * and hands it to the backend once per bucket. The backend turns it into something that can be
 * replayed: on CUDA a captured graph, on the CPU bound kernel calls over static buffers. A step
 * then writes struct step_args in place and replays. Nothing is allocated or planned in the steady
 * state.
 *
 * One answer: every output row is reduced in one fixed order, whatever the bucket, the number of
 * rows or the chunk; a decode step is a chunk of one. The same row gives the same bits. */
#ifndef BATON_KERNELS_BACKEND_H
#define BATON_KERNELS_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

/* A matrix as a model file has it: rows x cols, row-major. type: enum tensor_type of
 * common/model/model.h (the same numbers: 0 F32, 1 F16, 2 Q4_0, 3 Q4_1, 6 Q5_0, 7 Q5_1, 8 Q8_0,
 * 12 Q4_K, 13 Q5_K, 14 Q6_K, 30 BF16). */
struct matrix_view {
    uint32_t type;
    uint64_t rows, cols;
    const void *data;
};

/* Packed weights in the layout that the backend's kernels stream. AUTO: F32/F16/BF16 -> BF16,
 * Q8_0 -> Q8, Q4_0/Q4_1/Q4_K -> Q4, Q5_0/Q5_1/Q5_K/Q6_K -> Q8K, and Q8K too for a stack of several
 * of these: all exact, but that scales of K-quants, products of two numbers, round to fp16. */
enum weight_format { WEIGHT_AUTO, WEIGHT_F32, WEIGHT_BF16, WEIGHT_Q8, WEIGHT_Q4, WEIGHT_Q8K };
struct weight; /* out rows (N) x in cols (K) */

/* Buffers of a forward pass. All fp32, row-major, one row per token of the step. */
enum graph_buffer {
    BUFFER_X,      /* residual stream   [rows][hidden] */
    BUFFER_QKV,    /* q | k | v         [rows][(n_heads + 2 n_kv_heads) head_dim] */
    BUFFER_ATT,    /* attention output  [rows][n_heads head_dim] */
    BUFFER_HID,    /* silu(gate) * up   [rows][ffn] */
    BUFFER_LOGITS, /* [n_logits][vocab] */
    BUFFER_N
};

enum op_kind {
    OP_EMBED,       /* X[r] = row token[r] of w */
    OP_QKV,         /* QKV = rmsnorm(X, norm) * w^T + bias; w is q|k|v stacked */
    OP_ROPE_APPEND, /* per row: q_norm/k_norm (RMS over head_dim) when given, RoPE on q and k at
                       position[r], then K and V of the row go into the row's KV block */
    OP_ATTENTION,   /* ATT = softmax(q k^T / sqrt(head_dim)) v over keys 0..position[r] of the
                       row's sequence */
    OP_OUT,         /* X += ATT * w^T */
    OP_GATE_UP,     /* HID = silu(g) * u with g|u = rmsnorm(X, norm) * w^T; w holds gate and up */
    OP_DOWN,        /* X += HID * w^T */
    OP_KV_READY,    /* all rows' K and V of `layer` are in memory: call step_args.layer_done */
    OP_LOGITS       /* LOGITS[i] = rmsnorm(X[logit_row[i]], norm) * w^T */
};
#define OP_KINDS (OP_LOGITS + 1)

struct op {
    enum op_kind kind;
    uint32_t layer;
    const struct weight *w;
    const float *norm;            /* gain, or NULL */
    const float *bias;            /* or NULL */
    const float *q_norm, *k_norm; /* OP_ROPE_APPEND: [head_dim], or NULL */
};

/* Keys and values in the cache: bf16, or 8 bits with one scale per token, head and K or V. Floats
 * are for backend "ref" alone: the yardstick of the others' loss. */
enum kv_format { KV_BF16, KV_INT8, KV_F32 };

struct backend_dims {
    uint32_t n_layers, hidden, n_heads, n_kv_heads, head_dim, ffn, vocab;
    uint32_t context;       /* longest sequence */
    uint32_t max_rows;      /* largest bucket */
    uint32_t max_seqs;      /* block tables in step_args */
    uint32_t max_logits;    /* rows of BUFFER_LOGITS */
    uint32_t kv_block_size; /* tokens, a multiple of 16 */
    enum kv_format kv_format;
    float rms_eps, rope_theta;
    bool rope_neox;
    /* [head_dim / 2] radians for each position; a loan for backend_create. NULL: from rope_theta.
     */
    const double *rope_freqs;
    float rope_magnitude; /* of cosines and sines; 0: 1 */
};

/* The KV pool: [layer][block][kv head] cells of kv_cell_bytes(), K then V inside a cell in the
 * backend's own order, which kv_layout() names. Block 0 is the sink: padding may touch it. */
struct kv_view {
    void *base;
    uint32_t n_blocks;
};

/* Everything that changes between steps; the memory belongs to the backend (device memory on a
 * GPU), the engine writes it in place before each replay. */
struct step_args {
    uint32_t n_rows;     /* live rows; the rest up to the bucket is padding */
    uint32_t n_segments; /* runs of neighbouring rows that belong to one sequence, in order */
    uint32_t n_logits;
    int32_t *token;    /* [max_rows] */
    int32_t *position; /* [max_rows] absolute, from 0; -1 in padded rows */
    uint32_t *seq;     /* [max_rows] index of the row's block table */
    uint32_t *segment; /* [max_rows + 1] first row of each segment; segment[n_segments] = n_rows */
    uint32_t *logit_row; /* [max_logits] */
    uint32_t *tables;    /* [max_seqs][table_stride] block ids */
    uint32_t table_stride;
    /* Called from the thread that replays, after OP_KV_READY of each layer; may be NULL. */
    void (*layer_done)(void *arg, uint32_t layer);
    void *layer_arg;
    /* Set by any thread when nobody wants the step any more; may be NULL. A CPU replay then ends
     * after the operation it is in, reports no further layer and returns STATUS_CANCELED. */
    const _Atomic bool *stop;
};

struct backend;
struct replay;

struct backend_options {
    const char *name; /* "auto", "ref", "cpu", "cuda" (in programs built with it) */
    const char *isa;  /* cpu: "auto", "amx", "avx512", "avx2", "c"; $BATON_ISA overrides "auto" */
    int threads;      /* compute threads, the caller's included; at least 1 */
    int helpers;      /* cpu: further threads that use only what nobody else wants (threads.h) */
    const char *cpus; /* affinity, "0-3,8" or NULL; the i-th thread gets the i-th CPU */
    /* cuda: */
    int device;  /* index */
    bool strict; /* one order of sums for every row, also in prefill and large batches */
    bool graphs; /* false: kernels are launched one by one, for comparison */
};

/* What "auto" stands for: "cuda" in a program that has it, where there is a device, else "cpu". */
const char *backend_auto(void);
int backend_create(const struct backend_options *o, const struct backend_dims *d,
                   struct backend **out, char *err, size_t errlen) WARN_UNUSED;
void backend_destroy(struct backend *b);
/* "cpu/avx512" … : with the weight format, the numerics class that workers announce. */
const char *backend_name(const struct backend *b);
/* "kv1/bf16/k2x16-v16x2/b16/h3x64", "kv1/int8/k2x16-v16x2-s32/b16/h3x64": names the order inside a
 * cell, tokens per block, heads and head size; equal names can exchange blocks. */
const char *backend_kv_layout(const struct backend *b);
/* Bytes of one (block, kv head) cell. */
size_t backend_kv_cell_bytes(const struct backend *b);
/* Zeroes the token slots from `used` on in every head's cell of one (layer, block). */
void backend_kv_clear_tail(const struct backend *b, void *block, uint32_t used);
/* Copies one (layer, block) is a plain memcpy of n_kv_heads * kv_cell_bytes. */

/* Packs the stacked parts (equal cols; rows are concatenated) into one weight. For OP_GATE_UP the
 * two parts are gate and up, and `interleave` is set so that the backend may interleave their rows.
 * With `embed` the weight must also serve OP_EMBED. The views are loans for the call. */
int backend_weight_create(struct backend *b, const struct matrix_view *parts, size_t n_parts,
                          enum weight_format format, bool interleave, bool embed,
                          struct weight **out) WARN_UNUSED;
void backend_weight_destroy(struct backend *b, struct weight *w);
size_t backend_weight_bytes(const struct weight *w);
struct backend_weight_info {
    uint32_t n, k;             /* output columns, depth */
    enum weight_format format; /* as packed, never AUTO */
    size_t bytes;              /* that a product reads */
};
void backend_weight_info(const struct weight *w, struct backend_weight_info *out);

struct step_args *backend_step_args(struct backend *b);
/* Binds the list to the pool for steps of up to `bucket` rows. The ops are copied; weights and norm
 * vectors are loans until the replay is destroyed. */
int backend_capture(struct backend *b, const struct op *ops, size_t n_ops, uint32_t bucket,
                    const struct kv_view *kv, struct replay **out) WARN_UNUSED;
/* Runs the pass over the rows in step_args; returns when BUFFER_LOGITS is complete. */
int backend_replay(struct backend *b, struct replay *r) WARN_UNUSED;
void backend_replay_destroy(struct backend *b, struct replay *r);
/* Runs `run` for tiles 0 .. n - 1 on the backend's compute threads; thread: 0 ..
 * backend_threads() - 1. Between replays, from the thread that replays. */
void backend_parallel(struct backend *b, size_t n, void (*run)(void *arg, size_t tile, int thread),
                      void *arg);
int backend_threads(const struct backend *b);
/* Where the time of passes goes: while p is set, replays add to it. For measurements; only the CPU
 * backend keeps it. */
struct backend_profile {
    bool cpu_time; /* of the replaying thread; for one compute thread */
    double seconds[OP_KINDS];
    uint64_t passes;
};
void backend_set_profile(struct backend *b, struct backend_profile *p);
/* "avx512", … : what its kernels are compiled for; "c" where that means nothing. */
const char *backend_isa(const struct backend *b);
/* Host view of the logits of the last replay: row i at +i*vocab. */
const float *backend_logits(const struct backend *b);
/* Buffer contents of the last replay, for tests. */
const float *backend_buffer(const struct backend *b, enum graph_buffer which);

#endif
