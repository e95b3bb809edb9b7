/* cpu: the kernels of the CPU backend, one table per instruction set.
 *
 * Each operation is a file per instruction set: linear_q4.c (plain C), linear_q4_avx2.c,
 * linear_q4_avx512.c. The plain versions read the same packed weights and KV cells as the fast
 * ones. All of them keep one rule: an output is one chain of operations in K order (attention: in
 * the order of positions, cut at absolute multiples of ATTENTION_TILE), whatever rows are computed
 * beside it. Row i of a batch has the bits that it has alone. */
#ifndef BATON_KERNELS_CPU_H
#define BATON_KERNELS_CPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/backend.h"
#include "kernels/kv.h"
#include "kernels/weight.h"

/* Activations of a linear layer in the form that its weights want, [rows][k]. */
struct act {
    float *f;    /* F32; BF16 where the set has no bf16 dot product */
    uint16_t *h; /* BF16 */
    int8_t *q;   /* Q8, Q8K, Q4: integers -127..127, and per Q_BLOCK: */
    float *d;    /*   scale */
    int32_t *s;  /*   Q8: -128 times the sum of the integers (weights are stored + 128); Q8K: two
                      of them, for 16 integers each */
    float *ds;   /*   Q8K, Q4: scale times the sum of the integers (for the minimum) */
};

/* One panel of a linear layer over m rows: c[r][0..31] (+)= a[r] * w^T (+ bias). */
struct linear_args {
    const uint8_t *w; /* panel; the next one is expected behind it */
    uint32_t k, m;
    struct act a; /* of the first row; the rows follow */
    float *c;
    size_t ldc;
    const float *bias; /* [32] or NULL */
    bool add;          /* to what is in c */
};
typedef void (*linear_fn)(const struct linear_args *a);
/* How the plain versions finish row r. */
static inline void linear_store(const struct linear_args *a, uint32_t r, const float *sum)
{
    float *c = a->c + r * a->ldc;
    for (int i = 0; i < PANEL; i++) {
        float v = a->bias ? sum[i] + a->bias[i] : sum[i];
        c[i] = a->add ? c[i] + v : v;
    }
}

#define ATTENTION_ROWS  16 /* most rows of a kernel's call */
#define ATTENTION_MOST  48 /* and of attention_rows */
#define ATTENTION_TILE  256
#define ATTENTION_PART  2048 /* keys, a multiple of the tile: see attention_part */
#define ATTENTION_SUBS  (ATTENTION_TILE / KV_SUB)
#define ATTENTION_AHEAD 8 /* sub-blocks that can be fetched early */
#define HEAD_DIM_MAX    256

/* The steps of attention over one tile of keys. A row is one query head of one token. */
struct attention_kernel {
    unsigned rows; /* most of a call */
    /* q[head_dim] times scale, in the kernel's own form (at most HEAD_DIM_MAX floats). */
    void (*load_q)(const float *q, float scale, size_t head_dim, void *out);
    /* s[r][16 j + t] = q[r] . K(sub[j], t), j < n_sub. */
    void (*scores)(unsigned n, const float (*q)[HEAD_DIM_MAX], const uint8_t *const *sub,
                   unsigned n_sub, size_t head_dim, float (*s)[ATTENTION_TILE]);
    /* p = 2^(s - max) over the first `visible` (>= 1) of 16 n_sub scores, exact 0 beyond. Moves the
     * running maximum and sum on and gives the factor for what was accumulated before. sub: for the
     * scales of an 8-bit cache. */
    void (*softmax)(const float *s, void *p, const uint8_t *const *sub, size_t head_dim,
                    unsigned n_sub, unsigned visible, float *max, float *sum, float *alpha);
    /* o[r] = alpha[r] o[r] + sum over token pairs of p[r] V. */
    void (*values)(unsigned n, float (*o)[HEAD_DIM_MAX], const float (*p)[ATTENTION_TILE],
                   const float *alpha, const uint8_t *const *sub, unsigned n_pairs,
                   size_t head_dim);
};

/* The rows of one segment for one KV head. */
struct attention_args {
    const float *q; /* of the segment's first token and the group's first head */
    float *out;
    size_t q_stride, out_stride; /* floats from token to token */
    const int32_t *position;     /* [tokens] */
    uint32_t group, head_dim;    /* query heads of this KV head */
    const uint8_t *kv;           /* this head's cell of block 0 */
    size_t block_stride;         /* bytes from block to block */
    const uint32_t *table;
    uint32_t block_size;
    enum kv_format format;
    /* What the thread will read next, to be fetched early: another head or table; or NULL. */
    const uint8_t *next_kv;
    const uint32_t *next_table;
    uint32_t next_keys;
};
/* What a row has gathered from the keys so far: sum over them of 2^(s - max) V, and of 2^(s - max).
 */
struct attention_state {
    _Alignas(64) float o[ATTENTION_MOST][HEAD_DIM_MAX];
    float max[ATTENTION_MOST], sum[ATTENTION_MOST];
};
struct attention_scratch {
    _Alignas(64) float q[ATTENTION_MOST][HEAD_DIM_MAX];
    float s[ATTENTION_ROWS][ATTENTION_TILE], p[ATTENTION_ROWS][ATTENTION_TILE];
    struct attention_state all, part;
    size_t visible[ATTENTION_MOST]; /* keys */
    /* KV_INT8, when it is expanded: a tile as bf16, [ATTENTION_SUBS][sub-block], aligned to 64. */
    uint16_t *expanded;
};
static inline size_t attention_expanded_bytes(size_t head_dim)
{
    return ATTENTION_SUBS * kv_sub_bytes(KV_BF16, head_dim);
}
struct kernels;
/* Rows first .. first + n - 1 (n <= ATTENTION_MOST) of the segment's tokens x group. */
void attention_rows(const struct kernels *k, const struct attention_args *a, size_t first,
                    unsigned n, struct attention_scratch *s);

/* The same in parts of ATTENTION_PART keys, which several threads can compute at once, for a
 * segment of one token: all rows (group <= ATTENTION_MOST) over part `part` into out, then all
 * parts joined into a->out. The bits are those of attention_rows, which joins part after part as
 * well. */
static inline size_t attention_part_floats(uint32_t group, uint32_t head_dim)
{
    return group * ((size_t)head_dim + 2); /* o[group][head_dim], max[group], sum[group] */
}
void attention_part(const struct kernels *k, const struct attention_args *a, size_t part,
                    struct attention_scratch *s, float *out);
void attention_join(const struct attention_args *a, const float *parts, size_t n_parts,
                    struct attention_scratch *s);

struct kernels {
    const char *isa;
    bool bf16_act; /* BF16 weights take bf16 activations */
    unsigned rows; /* of a tile of a linear layer: what amortises the reading of its weights */
    linear_fn linear_f32, linear_bf16, linear_q8, linear_q8k, linear_q4;
    /* y = x / rms(x) * gain; gain may be NULL. y may be x. */
    void (*rmsnorm)(const float *x, const float *gain, size_t n, float eps, float *y);
    /* Activations from n floats: n a multiple of Q_BLOCK but for bf16. */
    void (*quant_bf16)(const float *x, size_t n, uint16_t *h);
    void (*quant_q8)(const float *x, size_t n, int8_t *q, float *d, int32_t *s);
    void (*quant_q4)(const float *x, size_t n, int8_t *q, float *d, float *ds);
    void (*quant_q8k)(const float *x, size_t n, int8_t *q, float *d, int32_t *s, float *ds);
    /* out[i] = silu(g[i]) * u[i], n <= PANEL; all three have room for PANEL. */
    void (*silu)(const float *g, const float *u, size_t n, float *out);
    /* Rotates one head in place: halves (neox) or neighbours. table: cosines, then sines. */
    void (*rope)(float *x, const float *table, size_t head_dim, bool neox);
    /* By enum kv_format. For KV_INT8 it may be NULL: then tiles are expanded to bf16. */
    const struct attention_kernel *attention[2];
    kv_append_fn kv_append[2]; /* by enum kv_format */
    void (*kv_expand)(const uint8_t *sub, size_t head_dim, uint16_t *out);
};

/* NULL when this build or machine lacks the set. isa: "auto", "amx", "avx512", "avx2", "c". */
const struct kernels *kernels_select(const char *isa);

#define KERNELS_DECLARE(set)                                                                       \
    void linear_f32_##set(const struct linear_args *a);                                            \
    void linear_bf16_##set(const struct linear_args *a);                                           \
    void linear_q8_##set(const struct linear_args *a);                                             \
    void linear_q8k_##set(const struct linear_args *a);                                            \
    void linear_q4_##set(const struct linear_args *a);                                             \
    void rmsnorm_##set(const float *x, const float *gain, size_t n, float eps, float *y);          \
    void quant_q8_##set(const float *x, size_t n, int8_t *q, float *d, int32_t *s);                \
    void quant_q4_##set(const float *x, size_t n, int8_t *q, float *d, float *ds);                 \
    void quant_q8k_##set(const float *x, size_t n, int8_t *q, float *d, int32_t *s, float *ds);    \
    void silu_##set(const float *g, const float *u, size_t n, float *out);                         \
    void rope_##set(float *x, const float *table, size_t head_dim, bool neox);                     \
    extern const struct attention_kernel attention_##set;                                          \
    void kv_expand_##set(const uint8_t *sub, size_t head_dim, uint16_t *out);
KERNELS_DECLARE(c)
KERNELS_DECLARE(avx2)
KERNELS_DECLARE(avx512)
#undef KERNELS_DECLARE
extern const struct attention_kernel attention_int8_avx512;
void kv_append_bf16_avx512(void *sub, size_t head_dim, size_t slot, const float *k, const float *v,
                           bool zero_partner);
void kv_append_int8_avx512(void *sub, size_t head_dim, size_t slot, const float *k, const float *v,
                           bool zero_partner);
void quant_bf16_avx512(const float *x, size_t n, uint16_t *h);
void attention_load_q_avx512(const float *q, float scale, size_t head_dim, void *out);
void attention_softmax_avx512(const float *s, void *out, const uint8_t *const *sub, size_t head_dim,
                              unsigned n_sub, unsigned visible, float *max, float *sum,
                              float *alpha);
/* amx: AVX-512, with these instead. */
void linear_bf16_amx(const struct linear_args *a);
void linear_q8_amx(const struct linear_args *a);
void linear_q4_amx(const struct linear_args *a);
extern const struct attention_kernel attention_amx;

#endif
