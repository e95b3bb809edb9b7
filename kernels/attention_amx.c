/* attention: scores and values on TDPBF16PS; q and the softmax weights are bf16 and what lies
 * between is AVX-512, as in attention_avx512.c.
 *
 * The layout of a sub-block (kv.h) is that of B. Scores: 16 rows x 4 sub-blocks are four tiles of
 * C, over 32 dims each time. Values: 16 rows x 64 dims are four tiles, over the 16 tokens of a
 * sub-block, which fill half of a product's k; that still beats AVX-512 by six. Few rows (decode)
 * go the same way and get the same bits; they wait for memory, not for products. */
#include "kernels/cpu.h"
#include "kernels/exp2_avx512.h"
#include "kernels/tiles_amx.h"

#include <string.h>

#define AHEAD    4 /* sub-blocks: 16 KB with a head of 64 */
#define FEW_ROWS 6 /* up to so many rows a pass over K and V is bound by memory */

#define Q_STRIDE (HEAD_DIM_MAX * sizeof(float))
#define S_STRIDE (ATTENTION_TILE * sizeof(float)) /* of scores and weights */

/* What a tile of B just loaded will be, AHEAD sub-blocks on. */
INLINE void fetch(const uint8_t *p, size_t stride, int lines)
{
#pragma GCC unroll 16
    for (int i = 0; i < lines; i++)
        _mm_prefetch((const char *)p + (size_t)i * stride, _MM_HINT_T1);
}

/* 32 dims (whole) or 16 of four sub-blocks. */
#define SCORE_SUB(i, ta, tb, lines)                                                                \
    do {                                                                                           \
        TILE_LOAD(tb, k[i] + at, TILE_BYTES);                                                      \
        if (ahead)                                                                                 \
            fetch(k[(i) + AHEAD] + at, TILE_BYTES, lines);                                         \
        TILE_BF16(i, ta, tb);                                                                      \
    } while (0)

INLINE void score_subs(const bool ahead, const uint16_t *q, const uint8_t *const *k,
                       size_t head_dim, float *s)
{
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
    size_t at = 0;
    for (; at + TILE_ROWS * TILE_BYTES <= 32 * head_dim; at += TILE_ROWS * TILE_BYTES, q += 32) {
        TILE_LOAD(4, q, Q_STRIDE);
        SCORE_SUB(0, 4, 6, 16);
        SCORE_SUB(1, 4, 6, 16);
        SCORE_SUB(2, 4, 6, 16);
        SCORE_SUB(3, 4, 6, 16);
    }
    if (at < 32 * head_dim) { /* 16 dims more */
        TILE_LOAD(5, q, Q_STRIDE);
        SCORE_SUB(0, 5, 7, 8);
        SCORE_SUB(1, 5, 7, 8);
        SCORE_SUB(2, 5, 7, 8);
        SCORE_SUB(3, 5, 7, 8);
    }
    TILE_STORE(0, s, S_STRIDE);
    TILE_STORE(1, s + 16, S_STRIDE);
    TILE_STORE(2, s + 32, S_STRIDE);
    TILE_STORE(3, s + 48, S_STRIDE);
}

static void scores(unsigned n, const float (*q)[HEAD_DIM_MAX], const uint8_t *const *sub,
                   unsigned n_sub, size_t head_dim, float (*s)[ATTENTION_TILE])
{
    const uint16_t *from = (const uint16_t *)(const void *)q;
    tiles_shape(TILES_BOTH, n);
    /* Behind the last sub-block come addresses of others: scores that nobody reads. */
    for (unsigned j = 0; j < n_sub; j += 4)
        if (n <= FEW_ROWS)
            score_subs(true, from, sub + j, head_dim, s[0] + 16 * j);
        else
            score_subs(false, from, sub + j, head_dim, s[0] + 16 * j);
}

/* 16 tokens of 16 dims; next: what to fetch, or NULL. */
#define VALUE_TILE(i)                                                                              \
    do {                                                                                           \
        TILE_LOAD(7, v + 64 * (i), stride);                                                        \
        if (next)                                                                                  \
            fetch(next + 64 * (i), stride, 8);                                                     \
        TILE_BF16(i, 5, 7);                                                                        \
    } while (0)

/* One sub-block's tokens, with weights p, into the sums of 16 (tiles 1) or 64 (4) dims. */
INLINE void values_sub(const int tiles, const uint16_t *p, const uint8_t *v, const uint8_t *next,
                       size_t stride)
{
    TILE_LOAD(5, p, S_STRIDE);
    VALUE_TILE(0);
    if (tiles > 1) {
        VALUE_TILE(1);
        VALUE_TILE(2);
        VALUE_TILE(3);
    }
}

/* 16 or 64 dims from `first` on. last: the last sub-block's V when it is not whole. */
INLINE void values_dims(const int tiles, const bool ahead, float (*o)[HEAD_DIM_MAX],
                        const uint16_t *p, const uint8_t *const *sub, unsigned n_sub,
                        const uint8_t *last, size_t head_dim, size_t first)
{
    const size_t at = 32 * head_dim + 4 * first, stride = 4 * head_dim; /* V behind K */
    TILE_LOAD(0, o[0] + first, Q_STRIDE);
    if (tiles > 1) {
        TILE_LOAD(1, o[0] + first + 16, Q_STRIDE);
        TILE_LOAD(2, o[0] + first + 32, Q_STRIDE);
        TILE_LOAD(3, o[0] + first + 48, Q_STRIDE);
    }
    unsigned whole = last ? n_sub - 1 : n_sub;
    for (unsigned j = 0; j < whole; j++)
        values_sub(tiles, p + 16 * j, sub[j] + at, ahead ? sub[j + AHEAD] + at : NULL, stride);
    if (last)
        values_sub(tiles, p + 16 * whole, last + 4 * first, NULL, stride);
    TILE_STORE(0, o[0] + first, Q_STRIDE);
    if (tiles > 1) {
        TILE_STORE(1, o[0] + first + 16, Q_STRIDE);
        TILE_STORE(2, o[0] + first + 32, Q_STRIDE);
        TILE_STORE(3, o[0] + first + 48, Q_STRIDE);
    }
}

INLINE void values_rows(const bool ahead, float (*o)[HEAD_DIM_MAX], const uint16_t *p,
                        const uint8_t *const *sub, unsigned n_sub, const uint8_t *last,
                        size_t head_dim)
{
    size_t d = 0;
    for (; d + 64 <= head_dim; d += 64)
        values_dims(4, ahead, o, p, sub, n_sub, last, head_dim, d);
    for (; d < head_dim; d += 16)
        values_dims(1, ahead, o, p, sub, n_sub, last, head_dim, d);
}

static void values(unsigned n, float (*o)[HEAD_DIM_MAX], const float (*p)[ATTENTION_TILE],
                   const float *alpha, const uint8_t *const *sub, unsigned n_pairs, size_t head_dim)
{
    /* Pairs that nobody wrote may hold anything: 0 * NaN is not 0. */
    _Alignas(64) uint8_t padded[KV_SUB * 2 * HEAD_DIM_MAX];
    const uint8_t *last = NULL;
    unsigned n_sub = (n_pairs + 7) / 8, rest = n_pairs % 8;
    if (rest) {
        size_t used = rest * 4 * head_dim;
        memcpy(padded, sub[n_sub - 1] + 32 * head_dim, used);
        memset(padded + used, 0, 32 * head_dim - used);
        last = padded;
    }
    for (unsigned r = 0; r < n; r++)
        for (size_t d = 0; d < head_dim; d += 16)
            _mm512_store_ps(o[r] + d,
                            _mm512_mul_ps(_mm512_set1_ps(alpha[r]), _mm512_load_ps(o[r] + d)));
    tiles_shape(TILES_BOTH, n);
    const uint16_t *weights = (const uint16_t *)(const void *)p;
    if (n <= FEW_ROWS)
        values_rows(true, o, weights, sub, n_sub, last, head_dim);
    else
        values_rows(false, o, weights, sub, n_sub, last, head_dim);
}

const struct attention_kernel attention_amx = {TILE_ROWS, attention_load_q_avx512, scores,
                                               attention_softmax_avx512, values};
