/* cuda_kernels: the device kernels of the CUDA backend, one launcher each, for C.
 *
 * A launcher checks its shapes (ASSERT), enqueues one kernel on launch.stream and returns 0 or a
 * cudaError_t. It allocates nothing and reads nothing of the host but its arguments, so it may run
 * during stream capture. All pointers are device memory that outlives the graph. What changes from
 * step to step is read on the device from one struct gpu_step_args.
 *
 * Matrices are row-major. Widths are padded so that no kernel has a tail in the inner loop:
 *
 *   NAME    TYPE  SHAPE                              WHAT
 *   x       f32   [rows][pad64(hidden)]              residual stream
 *   xg      bf16  [rows][pad64(hidden)]              x * gain of the norm that comes next
 *   ssq     f32   [rows][pad64(hidden) / 16]         sums of x^2 over 16 neighbours
 *   xn      bf16  [rows][pad64(hidden)]              rmsnorm(x) * gain, for cuBLASLt
 *   qkv     f32   [rows][pad16((nq + 2 nkv) hd)]     q | k | v
 *   q       bf16  [rows][nq][padh(hd)]               q after norm, RoPE and scale
 *   att     bf16  [rows][pad64(nq hd)]               attention output
 *   gu      bf16  [rows][2 pad8(ffn)]                gate and up in runs of 8: g0-7 u0-7 g8-15 ...
 *   hid     bf16  [rows][pad64(ffn)]                 silu(gate) * up
 *   logits  f32   [max_logits][pad128(vocab)]
 *   weight  bf16  [pad16(N)][pad64(K)]               pad128(N) for the head; gate|up interleaved by
 * 8
 *
 * Padding must be zero: the caller clears the buffers once at start-up, and no kernel ever writes
 * anything but zero there. Norm gains and biases are f32, [pad64(hidden)] and [pad16(N)], padded
 * with zeros.
 *
 * The RMSNorm of a fused pair is split: whoever makes x also makes xg and ssq; the reader computes
 * rs(row) = 1 / sqrt(sum(ssq) / hidden + eps) and y = rs * (W xg). So no node normalises.
 *
 * Every output of the cuda_linear_* kernels is reduced over K in one fixed order, for any number of
 * rows; attention is cut at absolute multiples of 256 positions and merged in one fixed order that
 * depends on the row's own length. A row's bits never depend on its neighbours or the bucket. With
 * these kernels alone (numerics = strict) prefill, decode and recompute give equal bits. */
#ifndef BATON_KERNELS_CUDA_KERNELS_H
#define BATON_KERNELS_CUDA_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__CUDACC__)
#define GPU_INLINE static __host__ __device__ __forceinline__
#else
#define GPU_INLINE static inline
#endif

#ifdef __cplusplus
extern "C" {
#endif

GPU_INLINE uint32_t gpu_pad(uint32_t n, uint32_t to)
{
    return (n + to - 1) / to * to;
}
/* The head size that the kernels are built for; 0: none. */
GPU_INLINE uint32_t gpu_pad_head(uint32_t hd)
{
    return hd <= 32 ? 32 : hd <= 64 ? 64 : hd <= 96 ? 96 : hd <= 128 ? 128 : hd <= 256 ? 256 : 0;
}

/* ---- what changes between steps ------------------------------------------------------------- */

/* A row (token) of a step. */
struct gpu_row {
    int32_t token;    /* id, or GPU_TOKEN_OF_SLOT */
    int32_t position; /* absolute, from 0; -1: padding, skipped */
    uint32_t slot;    /* its sequence: block table and struct gpu_slot */
    uint32_t flags;   /* GPU_ROW_* */
};
#define GPU_TOKEN_OF_SLOT (-1) /* the token sampled last for the slot, still on the device */
#define GPU_ROW_SINGLE    1u   /* the only row of its sequence in this step */
#define GPU_ROW_IF_ALIVE  2u   /* padding when the slot met a stop token: launch-ahead */

/* tables[slot][index] = block. (slot, index) pairs are distinct within a step. Applied by
 * cuda_step_begin before anything reads a table. */
struct gpu_patch {
    uint32_t slot, index, block;
};

#define GPU_BANNED_MAX 8
#define GPU_STOP_MAX   8
#define GPU_NO_MASK    0xffffffffu
#define GPU_TOP_MAX    20

/* What is changed about an id's logit: struct sample_adjust, member for member. */
struct gpu_adjust {
    int32_t id;
    uint32_t count, seen;
    float bias;
};

/* What is sampled from logits row i. Semantics: common/engine/sample.h, token for token. */
struct gpu_sample {
    uint64_t seed;
    const struct gpu_adjust *adjust; /* [n_adjust], each id once; device or mapped host memory */
    uint32_t n_adjust;
    float presence, frequency, repetition; /* repetition 0: off */
    float temperature;                     /* <= 0: greedy */
    float top_p;                           /* >= 1: off */
    float min_floor;                       /* logf(min_p) computed on the host; -INFINITY: off */
    int32_t top_k;                         /* <= 0: off */
    uint32_t choice;
    uint32_t position;      /* of the token that is drawn */
    uint32_t slot;          /* GPU_NO_SLOT: the token is only reported */
    uint32_t n_ids;         /* larger ids are masked; 0: all are known */
    uint32_t mask;          /* row of the mask buffer, or GPU_NO_MASK */
    uint32_t flags;         /* GPU_SAMPLE_* */
    uint32_t n_top;         /* alternatives to report, 0..GPU_TOP_MAX */
    uint32_t n_banned;      /* ids that must not be drawn; more than fit go into a mask row */
    uint32_t n_stop;        /* ids that end the sequence: the slot dies when one is drawn */
    uint32_t last_position; /* the slot dies when position >= last_position */
    int32_t banned[GPU_BANNED_MAX];
    int32_t stop[GPU_STOP_MAX];
};
#define GPU_NO_SLOT         0xffffffffu
#define GPU_SAMPLE_LOGPROB  1u /* fill logprob (always filled when n_top > 0) */
#define GPU_SAMPLE_SKIP     2u /* nothing is drawn from this row */
#define GPU_SAMPLE_IF_ALIVE 4u /* only when the slot is alive; else token -1 is reported */

/* State of a sequence that stays on the device between steps. The host sets it by a patch. */
struct gpu_slot {
    int32_t token; /* drawn last */
    uint32_t alive;
};
struct gpu_slot_patch {
    uint32_t slot;
    struct gpu_slot to;
};

struct gpu_result {
    int32_t token; /* -1: the slot was dead */
    uint32_t position;
    uint32_t ended; /* 1: a stop id or the last position */
    uint32_t n_top;
    float logprob;
    int32_t top_id[GPU_TOP_MAX]; /* descending, ties by id */
    float top_logprob[GPU_TOP_MAX];
};

/* Capacities; one per backend, fixed at start-up. */
struct gpu_caps {
    uint32_t max_rows, max_logits, max_patches, max_slot_patches;
};

/* The block of a step: this header, then the arrays, at offsets that depend on the capacities
 * only. The host fills an image of it in pinned memory and copies gpu_step_bytes() of it to the
 * device ahead of the replay, in stream order. */
struct gpu_step_args {
    uint32_t n_rows;     /* live rows; the rest up to the bucket is padding */
    uint32_t n_segments; /* runs of neighbouring rows of one sequence, at ascending positions */
    uint32_t n_logits;
    uint32_t n_patches, n_slot_patches;
    uint32_t reserved[11];
};

/*   OFFSET                          SIZE
 *   0                               64                             struct gpu_step_args
 *   64                              16 max_rows                    struct gpu_row rows[]
 *   + 16 max_rows                   sizeof(gpu_sample) max_logits  struct gpu_sample samples[]
 *   then                            4 max_logits                   uint32_t logit_row[]
 *   then                            4 (max_rows + 1)               uint32_t segment[]
 *   then                            12 max_patches                 struct gpu_patch patches[]
 *   then                            12 max_slot_patches            struct gpu_slot_patch slots[] */
GPU_INLINE struct gpu_row *gpu_step_rows(const struct gpu_step_args *s)
{
    return (struct gpu_row *)(s + 1);
}
GPU_INLINE struct gpu_sample *gpu_step_samples(const struct gpu_step_args *s,
                                               const struct gpu_caps *c)
{
    return (struct gpu_sample *)(gpu_step_rows(s) + c->max_rows);
}
GPU_INLINE uint32_t *gpu_step_logit_row(const struct gpu_step_args *s, const struct gpu_caps *c)
{
    return (uint32_t *)(gpu_step_samples(s, c) + c->max_logits);
}
/* First row of each segment; segment[n_segments] = n_rows. */
GPU_INLINE uint32_t *gpu_step_segment(const struct gpu_step_args *s, const struct gpu_caps *c)
{
    return gpu_step_logit_row(s, c) + c->max_logits;
}
GPU_INLINE struct gpu_patch *gpu_step_patches(const struct gpu_step_args *s,
                                              const struct gpu_caps *c)
{
    return (struct gpu_patch *)(gpu_step_segment(s, c) + c->max_rows + 1);
}
GPU_INLINE struct gpu_slot_patch *gpu_step_slots(const struct gpu_step_args *s,
                                                 const struct gpu_caps *c)
{
    return (struct gpu_slot_patch *)(gpu_step_patches(s, c) + c->max_patches);
}
GPU_INLINE size_t gpu_step_bytes(const struct gpu_caps *c)
{
    return sizeof(struct gpu_step_args) + c->max_rows * sizeof(struct gpu_row) +
           c->max_logits * (sizeof(struct gpu_sample) + sizeof(uint32_t)) +
           ((size_t)c->max_rows + 1) * sizeof(uint32_t) +
           c->max_patches * sizeof(struct gpu_patch) +
           c->max_slot_patches * sizeof(struct gpu_slot_patch);
}

/* ---- KV ---------------------------------------------------------------------------------------
 * The pool is [layer][block][kv head] cells. A cell is kv_block_size / 16 sub-blocks of 16 tokens,
 * bf16, with hp = padh(head_dim) (dims beyond head_dim are zero):
 *
 *   OFFSET    SIZE     WHAT
 *   0         32 hp    K [16 tokens][hp]
 *   32 hp     32 hp    V [8 token pairs][hp][2 tokens]
 *
 * K rows and V pairs are operands of mma.m16n8k16, 16 bytes a lane. What lies behind the end of a
 * sequence may be anything, also NaN: readers mask scores and V there. The caller zeroes the pool
 * once; kernels write zeroes behind head_dim in K and nothing there in V. Layout name:
 * "kv1/bf16/cuda-k16-v8x2" + "/b<block>/h<heads>x<hd>".
 */
#define GPU_KV_LAYOUT "kv1/bf16/cuda-k16-v8x2"
#define GPU_KV_SUB    16

GPU_INLINE size_t gpu_kv_cell_bytes(uint32_t block_size, uint32_t head_dim)
{
    return (size_t)block_size * gpu_pad_head(head_dim) * 4;
}
/* Indices in 16-bit numbers from the start of a cell. */
GPU_INLINE size_t gpu_kv_k_index(uint32_t hp, uint32_t slot, uint32_t dim)
{
    return (size_t)(slot / 16) * 32 * hp + slot % 16 * hp + dim;
}
GPU_INLINE size_t gpu_kv_v_index(uint32_t hp, uint32_t slot, uint32_t dim)
{
    return (size_t)(slot / 16) * 32 * hp + 16 * hp + slot % 16 / 2 * 2 * hp + dim * 2 + slot % 2;
}

/* ---- launching ------------------------------------------------------------------------------ */

struct gpu_launch {
    void *stream; /* cudaStream_t */
    int n_sms;    /* multiprocessors of the device: grids of the work-item kernels */
    bool pdl;     /* programmatic dependent launch (sm_90 and later) */
};

/* What every kernel of a graph shares. */
struct gpu_model {
    uint32_t hidden, n_heads, n_kv_heads, head_dim, ffn, vocab;
    uint32_t context, kv_block_size;
    uint32_t max_slots, table_stride; /* block tables [max_slots][table_stride] */
    uint32_t n_blocks;                /* of the KV pool */
    float rms_eps;
    bool rope_neox;
    const float *rope; /* [context][head_dim]: head_dim / 2 cosines, then as many sines */
    uint8_t *kv;       /* the pool */
    uint32_t *tables;
    struct gpu_slot *slots; /* [max_slots] */
    struct gpu_caps caps;
    const struct gpu_step_args *step;
    struct gpu_row *rows; /* [max_rows] the resolved rows: written by cuda_step_begin for every row
                             of the bucket, read by all others (token >= 0, or position -1) */
};

/* One per process and device before the first launch: dynamic shared memory limits. Returns 0 or a
 * cudaError_t. Not during capture. */
int cuda_kernels_init(void);

/* First node: applies the patches, resolves the rows, and embeds: x = row token of w
 * [pad16(vocab)][pad64(hidden)]; xg, ssq for `gain` (of the first layer). Rows >= n_rows and dead
 * ones get position -1. */
int cuda_step_begin(struct gpu_launch l, const struct gpu_model *m, uint32_t bucket,
                    const uint16_t *w, const float *gain, float *x, uint16_t *xg, float *ssq);

/* qkv = rs * (w xg) + bias; w [pad16((nq + 2 nkv) hd)][pad64(hidden)]; bias may be NULL. */
int cuda_linear_qkv(struct gpu_launch l, const struct gpu_model *m, uint32_t bucket,
                    const uint16_t *w, const float *bias, const uint16_t *xg, const float *ssq,
                    float *qkv);
/* x += w in; then xg and ssq of the new x for `next_gain`. in: att (k = nq hd) or hid (k = ffn),
 * [rows][pad64(k)]. w [pad16(hidden)][pad64(k)]. */
int cuda_linear_residual(struct gpu_launch l, const struct gpu_model *m, uint32_t bucket,
                         const uint16_t *w, uint32_t k, const uint16_t *in, float *x,
                         const float *next_gain, uint16_t *xg, float *ssq);
/* hid = silu(rs * (gate xg)) * (rs * (up xg)); w [2 pad8(ffn)][pad64(hidden)] interleaved by 8. */
int cuda_linear_gate_up(struct gpu_launch l, const struct gpu_model *m, uint32_t bucket,
                        const uint16_t *w, const uint16_t *xg, const float *ssq, uint16_t *hid);
/* logits[i] = rs * (w xg) of row logit_row[i], for i < n_logits; grid for up to max_logits rows.
 * w [pad128(vocab)][pad64(hidden)]. */
int cuda_linear_logits(struct gpu_launch l, const struct gpu_model *m, uint32_t max_logits,
                       const uint16_t *w, const uint16_t *xg, const float *ssq, float *logits);

/* Attention by chunks of 256 positions: one query row at a time.
 *   qkv != NULL: rows of distinct sequences (pure decode). The prologue does bias-free QK norm and
 *     RoPE and appends k and v of each row to its block. q is ignored.
 *   qkv == NULL: q (after cuda_rope_append) is attended; keys 0..position are in the pool.
 * split: work items of several CTAs per row, partial results in `scratch`, merged by the last
 * block; else one CTA walks a row's chunks (no scratch), with equal bits. single_only: only rows
 * with GPU_ROW_SINGLE (the rest is cuda_attention_prefill's). */
struct gpu_attention {
    uint32_t layer;
    const float *qkv, *q_norm, *k_norm; /* norms [head_dim] or NULL */
    const uint16_t *q;
    uint16_t *att;
    bool split, single_only;
    float *scratch;     /* gpu_attention_scratch() floats; may be shared by all layers */
    uint32_t *counters; /* [bucket][n_kv_heads], zero before the first launch; left at zero */
};
#define GPU_ATTENTION_CHUNK  256
#define GPU_ATTENTION_SPLITS 32 /* a row has at most so many work items per kv head */
GPU_INLINE size_t gpu_attention_scratch(uint32_t bucket, uint32_t n_heads, uint32_t head_dim)
{
    return (size_t)bucket * n_heads * GPU_ATTENTION_SPLITS * (gpu_pad_head(head_dim) + 2);
}
int cuda_attention_decode(struct gpu_launch l, const struct gpu_model *m, uint32_t bucket,
                          const struct gpu_attention *a);

/* ---- prefill and large batches --------------------------------------------------------------- */

/* q, k (+ bias) -> QK norm, RoPE; q scaled by log2(e) / sqrt(head_dim) into q, k and v into the
 * pool. bias [pad16((nq + 2 nkv) hd)] or NULL: cuda_linear_qkv has added it already, a GEMM has
 * not. */
int cuda_rope_append(struct gpu_launch l, const struct gpu_model *m, uint32_t bucket,
                     uint32_t layer, const float *qkv, const float *bias, const float *q_norm,
                     const float *k_norm, uint16_t *q);
/* Flash attention over the segments: causal at any offset, keys 0..position from the pool.
 * skip_single: segments of one row are left to cuda_attention_decode. */
int cuda_attention_prefill(struct gpu_launch l, const struct gpu_model *m, uint32_t bucket,
                           uint32_t layer, const uint16_t *q, bool skip_single, uint16_t *att);
/* x += add (when not NULL, [rows][pad64(hidden)]); xn = x rs(x) gain. */
int cuda_rmsnorm(struct gpu_launch l, const struct gpu_model *m, uint32_t bucket, float *x,
                 const float *add, const float *gain, uint16_t *xn);
/* xg and ssq of x: ahead of a fused node that follows a GEMM. Equal bits to those that
 * cuda_linear_residual makes of the same x. */
int cuda_norm_prepare(struct gpu_launch l, const struct gpu_model *m, uint32_t bucket,
                      const float *x, const float *gain, uint16_t *xg, float *ssq);
/* hid = silu(gate) * up; gu [rows][2 pad8(ffn)] interleaved by 8. */
int cuda_swiglu(struct gpu_launch l, const struct gpu_model *m, uint32_t bucket, const uint16_t *gu,
                uint16_t *hid);

/* ---- sampling -------------------------------------------------------------------------------- */

/* For i < n_logits: draws from logits[i] by samples[i], updates the slot, writes results[i]
 * (device or mapped host memory). mask: [rows][mask_stride] words, bit id set: allowed; may be
 * NULL when no sample names one. scratch: [max_logits][pad128(vocab)] floats. */
int cuda_sample(struct gpu_launch l, const struct gpu_model *m, uint32_t max_logits,
                const float *logits, const uint32_t *mask, uint32_t mask_stride, float *scratch,
                struct gpu_result *results);

/* ---- KV blocks ------------------------------------------------------------------------------- */

/* out[i] = hash_kv of common/base/hash.h over the `bytes` (a multiple of 16) at base + offset[i].
 * offset and out: device or mapped host memory. */
int cuda_kv_checksum(struct gpu_launch l, const uint8_t *base, const uint64_t *offset, uint32_t n,
                     size_t bytes, uint64_t *out);
/* Zeroes the token slots from `used` on in every head's cell of `n_layers` blocks, the first at
 * base and then every layer_stride bytes. */
int cuda_kv_clear_tail(struct gpu_launch l, uint8_t *base, uint32_t n_layers, size_t layer_stride,
                       uint32_t n_kv_heads, uint32_t kv_block_size, uint32_t head_dim,
                       uint32_t used);

#ifdef __cplusplus
}
#endif

#endif
