/* attention: the steps of attention.c on VDPBF16PS, with q and the softmax weights in bf16.
 *
 * Scores: a vector of K is 16 tokens x 2 dims, so the scores of 16 tokens grow in one register,
 * pair of dims after pair, without any reduction; 12 rows x 2 sub-blocks = 24 accumulators. Values:
 * a vector of V is 16 dims x 2 tokens; 6 rows x 4 vectors = 24 accumulators, pair of tokens after
 * pair. Sub-blocks are scattered over memory, where the hardware prefetcher starts anew each time,
 * so both loops fetch AHEAD sub-blocks early into L2 when few rows (decode) wait for
 * memory. */
#include "kernels/cpu.h"
#include "kernels/exp2_avx512.h"

#define MR       12 /* rows of a call */
#define AHEAD    4  /* sub-blocks: 16 KB with a head of 64 */
#define FEW_ROWS 6  /* up to so many rows a pass over K and V is bound by memory */

void attention_load_q_avx512(const float *q, float scale, size_t head_dim, void *out)
{
    __m512 s = _mm512_set1_ps(scale);
    for (size_t d = 0; d < head_dim; d += 16)
        _mm256_store_si256((__m256i *)(void *)((uint16_t *)out + d),
                           (__m256i)_mm512_cvtneps_pbh(_mm512_mul_ps(s, _mm512_loadu_ps(q + d))));
}

INLINE __m512bh broadcast_pair(const void *p)
{
    int32_t pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}

/* Two sub-blocks for n rows; a0 and a1 are fetched when `ahead`. */
INLINE void score_pair(const int n, const bool ahead, const float (*q)[HEAD_DIM_MAX],
                       const uint8_t *k0, const uint8_t *k1, const uint8_t *a0, const uint8_t *a1,
                       size_t head_dim, float *s)
{
    __m512 acc[MR][2];
#pragma GCC unroll 12
    for (int r = 0; r < n; r++)
        acc[r][0] = acc[r][1] = _mm512_setzero_ps();
#pragma GCC unroll 2
    for (size_t d = 0; d < head_dim / 2; d++) {
        __m512bh v0 = (__m512bh)_mm512_load_si512(k0 + 64 * d);
        __m512bh v1 = (__m512bh)_mm512_load_si512(k1 + 64 * d);
        if (ahead) {
            _mm_prefetch(a0 + 64 * d, _MM_HINT_T1);
            _mm_prefetch(a1 + 64 * d, _MM_HINT_T1);
        }
#pragma GCC unroll 12
        for (int r = 0; r < n; r++) {
            __m512bh x = broadcast_pair((const uint16_t *)q[r] + 2 * d);
            acc[r][0] = _mm512_dpbf16_ps(acc[r][0], x, v0);
            acc[r][1] = _mm512_dpbf16_ps(acc[r][1], x, v1);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < n; r++) {
        _mm512_store_ps(s + r * ATTENTION_TILE, acc[r][0]);
        _mm512_store_ps(s + r * ATTENTION_TILE + 16, acc[r][1]);
    }
}

INLINE void score_tile(const int n, const bool ahead, const float (*q)[HEAD_DIM_MAX],
                       const uint8_t *const *sub, unsigned n_sub, size_t head_dim, float *s)
{
    for (unsigned j = 0; j < n_sub; j += 2)
        /* Behind the last sub-block comes a copy of its address: scores that nobody reads. */
        score_pair(n, ahead, q, sub[j], sub[j + 1], sub[j + AHEAD], sub[j + 1 + AHEAD], head_dim,
                   s + 16 * j);
}

static void scores(unsigned n, const float (*q)[HEAD_DIM_MAX], const uint8_t *const *sub,
                   unsigned n_sub, size_t head_dim, float (*out)[ATTENTION_TILE])
{
#define CASE(rows)                                                                                 \
    case rows:                                                                                     \
        if (head_dim == 64)                                                                        \
            score_tile(rows, rows <= FEW_ROWS, q, sub, n_sub, 64, out[0]);                         \
        else if (head_dim == 128)                                                                  \
            score_tile(rows, rows <= FEW_ROWS, q, sub, n_sub, 128, out[0]);                        \
        else                                                                                       \
            score_tile(rows, rows <= FEW_ROWS, q, sub, n_sub, head_dim, out[0]);                   \
        break;
    switch (n) {
        CASE(1)
        CASE(2)
        CASE(3)
        CASE(4)
        CASE(5)
        CASE(6)
        CASE(7)
        CASE(8)
        CASE(9)
        CASE(10)
        CASE(11)
        CASE(12)
    }
#undef CASE
}

/* Lanes of sub-block j that are among the first `visible` keys. */
INLINE __mmask16 lanes(unsigned j, unsigned visible)
{
    if (visible >= 16 * (j + 1))
        return 0xffff;
    return visible > 16 * j ? (__mmask16)((1u << (visible - 16 * j)) - 1) : 0;
}

void attention_softmax_avx512(const float *s, void *out, const uint8_t *const *sub, size_t head_dim,
                              unsigned n_sub, unsigned visible, float *max, float *sum,
                              float *alpha)
{
    uint16_t *p = out;
    const __m512 none = _mm512_set1_ps(-1e30f);
    __m512 m0 = none, m1 = none;
    unsigned whole = visible / 16, j = 0;
    for (; j + 2 <= whole; j += 2) {
        m0 = _mm512_max_ps(m0, _mm512_load_ps(s + 16 * j));
        m1 = _mm512_max_ps(m1, _mm512_load_ps(s + 16 * j + 16));
    }
    for (; j < n_sub; j++)
        m0 = _mm512_max_ps(m0, _mm512_mask_load_ps(none, lanes(j, visible), s + 16 * j));
    float m = _mm512_reduce_max_ps(_mm512_max_ps(m0, m1));
    m = m > *max ? m : *max;
    *alpha = _mm512_cvtss_f32(exp2_512(_mm512_set1_ps(*max - m)));
    *max = m;
    /* Sub-block j always adds to sum j % 2, and what is masked adds 0: the same bits with more. */
    __m512 mm = _mm512_set1_ps(m), s0 = _mm512_setzero_ps(), s1 = s0;
    for (j = 0; j + 2 <= whole; j += 2) {
        __m512 e0 = exp2_512(_mm512_sub_ps(_mm512_load_ps(s + 16 * j), mm));
        __m512 e1 = exp2_512(_mm512_sub_ps(_mm512_load_ps(s + 16 * j + 16), mm));
        s0 = _mm512_add_ps(s0, e0);
        s1 = _mm512_add_ps(s1, e1);
        _mm512_store_si512(p + 16 * j, (__m512i)_mm512_cvtne2ps_pbh(e1, e0));
    }
    for (; j < n_sub; j++) {
        __mmask16 live = lanes(j, visible);
        __m512 x = _mm512_sub_ps(_mm512_mask_load_ps(none, live, s + 16 * j), mm);
        __m512 e = exp2_512(x); /* of -1e30: exactly 0 */
        if (j % 2)
            s1 = _mm512_add_ps(s1, e);
        else
            s0 = _mm512_add_ps(s0, e);
        _mm256_store_si256((__m256i *)(void *)(p + 16 * j), (__m256i)_mm512_cvtneps_pbh(e));
    }
    *sum = *sum * *alpha + _mm512_reduce_add_ps(_mm512_add_ps(s0, s1));
}

/* n rows x 16 nv dims from dim `first` on. */
INLINE void value_tile(const int n, const int nv, const bool ahead, float (*o)[HEAD_DIM_MAX],
                       const float (*p)[ATTENTION_TILE], const float *alpha,
                       const uint8_t *const *sub, unsigned n_pairs, size_t head_dim, size_t first)
{
    __m512 acc[6][4];
#pragma GCC unroll 6
    for (int r = 0; r < n; r++)
#pragma GCC unroll 4
        for (int i = 0; i < nv; i++)
            acc[r][i] = _mm512_mul_ps(_mm512_set1_ps(alpha[r]),
                                      _mm512_load_ps(o[r] + first + 16 * (size_t)i));
    for (unsigned j = 0; j * 8 < n_pairs; j++) {
        size_t at = 32 * head_dim + 4 * first; /* V behind K */
        const uint8_t *v = sub[j] + at, *next = sub[j + AHEAD] + at;
        unsigned pairs = n_pairs - j * 8 < 8 ? n_pairs - j * 8 : 8;
        for (unsigned t = 0; t < pairs; t++, v += 4 * head_dim, next += 4 * head_dim) {
            __m512bh w[4];
#pragma GCC unroll 4
            for (int i = 0; i < nv; i++) {
                w[i] = (__m512bh)_mm512_load_si512(v + 64 * i);
                if (ahead)
                    _mm_prefetch(next + 64 * i, _MM_HINT_T1);
            }
#pragma GCC unroll 6
            for (int r = 0; r < n; r++) {
                __m512bh x = broadcast_pair((const uint16_t *)p[r] + 16 * j + 2 * t);
#pragma GCC unroll 4
                for (int i = 0; i < nv; i++)
                    acc[r][i] = _mm512_dpbf16_ps(acc[r][i], x, w[i]);
            }
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < n; r++)
#pragma GCC unroll 4
        for (int i = 0; i < nv; i++)
            _mm512_store_ps(o[r] + first + 16 * (size_t)i, acc[r][i]);
}

INLINE void value_rows(const int n, const bool ahead, float (*o)[HEAD_DIM_MAX],
                       const float (*p)[ATTENTION_TILE], const float *alpha,
                       const uint8_t *const *sub, unsigned n_pairs, size_t head_dim)
{
    size_t d = 0;
    for (; d + 64 <= head_dim; d += 64)
        value_tile(n, 4, ahead, o, p, alpha, sub, n_pairs, head_dim, d);
    for (; d < head_dim; d += 16)
        value_tile(n, 1, ahead, o, p, alpha, sub, n_pairs, head_dim, d);
}

static void values(unsigned n, float (*o)[HEAD_DIM_MAX], const float (*p)[ATTENTION_TILE],
                   const float *alpha, const uint8_t *const *sub, unsigned n_pairs, size_t head_dim)
{
    bool ahead = n <= FEW_ROWS;
#define CASE(rows)                                                                                 \
    case rows:                                                                                     \
        if (head_dim == 64)                                                                        \
            value_rows(rows, ahead, o, p, alpha, sub, n_pairs, 64);                                \
        else if (head_dim == 128)                                                                  \
            value_rows(rows, ahead, o, p, alpha, sub, n_pairs, 128);                               \
        else                                                                                       \
            value_rows(rows, ahead, o, p, alpha, sub, n_pairs, head_dim);                          \
        break;
    while (n > 0) {
        unsigned part = n > 6 && n < 12 ? (n + 1) / 2 : n > 6 ? 6 : n;
        switch (part) {
            CASE(1)
            CASE(2)
            CASE(3)
            CASE(4)
            CASE(5)
            CASE(6)
        }
        o += part, p += part, alpha += part, n -= part;
    }
#undef CASE
}

const struct attention_kernel attention_avx512 = {MR, attention_load_q_avx512, scores,
                                                  attention_softmax_avx512, values};
