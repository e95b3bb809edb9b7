/* attention: the steps of attention.c for AVX2, with q and the softmax weights in float. K and V
 * are turned from bf16 to float in registers: the even dims (or tokens) by a shift, the odd by a
 * mask. Micro tiles: 4 rows x 16 tokens (values: 16 dims); of up to 3 rows (decode) x 32, since
 * multiply-adds need 8 independent sums to keep busy. Decode waits for memory, whose stream starts
 * anew at each sub-block: there both loops fetch AHEAD sub-blocks early. */
#include "kernels/cpu.h"
#include "kernels/exp2_avx2.h"

#define MR       4
#define FEW_ROWS 8 /* up to so many rows a pass over K and V waits for memory */
#define AHEAD    4 /* sub-blocks: 16 KB with a head of 64 */

static void load_q(const float *q, float scale, size_t head_dim, void *out)
{
    __m256 s = _mm256_set1_ps(scale);
    for (size_t d = 0; d < head_dim; d += 8)
        _mm256_storeu_ps((float *)out + d, _mm256_mul_ps(s, _mm256_loadu_ps(q + d)));
}

/* acc[r] += x[r][0] even + x[r][1] odd, of n rows and the 8 nv pairs at p and (two vectors each) q.
 */
INLINE void pair_step(const int n, const int nv, const float *x, size_t x_row, const uint8_t *p,
                      const uint8_t *q, __m256 (*acc)[4])
{
    const int step = n * nv > 8 ? 1 : 2; /* vectors at a time: what 16 registers hold */
#pragma GCC unroll 4
    for (int first = 0; first < nv; first += step) {
        __m256 even[2], odd[2];
#pragma GCC unroll 2
        for (int v = 0; v < step; v++) {
            __m256i pairs = load_256((first < 2 ? p : q) + 32 * ((first + v) % 2));
            even[v] = bf16_even(pairs);
            odd[v] = bf16_odd(pairs);
        }
#pragma GCC unroll 4
        for (int r = 0; r < n; r++) {
            __m256 x0 = _mm256_broadcast_ss(x + r * x_row);
            __m256 x1 = _mm256_broadcast_ss(x + r * x_row + 1);
#pragma GCC unroll 2
            for (int v = 0; v < step; v++) {
                __m256 *to = &acc[r][first + v];
                *to = _mm256_fmadd_ps(x1, odd[v], _mm256_fmadd_ps(x0, even[v], *to));
            }
        }
    }
}

/* Scores of sub[0], and of sub[1] when nv is 4. */
INLINE void score_rows(const int n, const int nv, const bool ahead, const float (*q)[HEAD_DIM_MAX],
                       const uint8_t *const *sub, size_t head_dim, float (*s)[ATTENTION_TILE])
{
    __m256 acc[MR][4];
#pragma GCC unroll 4
    for (int r = 0; r < n; r++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++)
            acc[r][v] = _mm256_setzero_ps();
    for (size_t d = 0; d < head_dim; d += 2) {
        if (ahead)
            _mm_prefetch(sub[AHEAD] + 32 * d, _MM_HINT_T0);
        if (ahead && nv == 4)
            _mm_prefetch(sub[AHEAD + 1] + 32 * d, _MM_HINT_T0);
        pair_step(n, nv, q[0] + d, HEAD_DIM_MAX, sub[0] + 32 * d, sub[1] + 32 * d, acc);
    }
#pragma GCC unroll 4
    for (int r = 0; r < n; r++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++)
            _mm256_storeu_ps(s[r] + 8 * v, acc[r][v]);
}

/* Behind the last sub-block comes a copy of its address: scores that nobody reads. */
INLINE void score_tile(const int n, const int nv, const bool ahead, const float (*q)[HEAD_DIM_MAX],
                       const uint8_t *const *sub, unsigned n_sub, size_t head_dim,
                       float (*s)[ATTENTION_TILE])
{
    for (unsigned j = 0; j < n_sub; j += (unsigned)nv / 2)
        score_rows(n, nv, ahead, q, sub + j, head_dim,
                   (float(*)[ATTENTION_TILE])(void *)(s[0] + 16 * (size_t)j));
}

static void scores(unsigned n, const float (*q)[HEAD_DIM_MAX], const uint8_t *const *sub,
                   unsigned n_sub, size_t head_dim, float (*s)[ATTENTION_TILE])
{
    bool ahead = n <= FEW_ROWS; /* the first rows fetch for all */
    for (; n > 0; n -= n < MR ? n : MR, q += MR, s += MR, ahead = false)
        if (n == 1)
            score_tile(1, 4, ahead, q, sub, n_sub, head_dim, s);
        else if (n == 2)
            score_tile(2, 4, ahead, q, sub, n_sub, head_dim, s);
        else if (n == 3)
            score_tile(3, 4, ahead, q, sub, n_sub, head_dim, s);
        else if (ahead)
            score_tile(4, 2, true, q, sub, n_sub, head_dim, s);
        else
            score_tile(4, 2, false, q, sub, n_sub, head_dim, s);
}

/* The lanes of keys i .. i + 7 that are among the first `visible`. */
INLINE __m256 lanes(unsigned i, unsigned visible)
{
    const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32((int)visible - (int)i), index));
}

static void softmax(const float *s, void *out, const uint8_t *const *sub, size_t head_dim,
                    unsigned n_sub, unsigned visible, float *max, float *sum, float *alpha)
{
    float *p = out;
    const __m256 none = _mm256_set1_ps(-1e30f);
    __m256 top = none;
    for (unsigned i = 0; i < n_sub * KV_SUB; i += 8)
        top = _mm256_max_ps(top, _mm256_blendv_ps(none, _mm256_loadu_ps(s + i), lanes(i, visible)));
    float m = max_256(top);
    m = m > *max ? m : *max;
    *alpha = _mm256_cvtss_f32(exp2_256(_mm256_set1_ps(*max - m)));
    *max = m;
    __m256 total = _mm256_setzero_ps(), mm = _mm256_set1_ps(m);
    for (unsigned i = 0; i < n_sub * KV_SUB; i += 8) {
        __m256 live = lanes(i, visible);
        __m256 x = _mm256_blendv_ps(none, _mm256_loadu_ps(s + i), live);
        __m256 e = _mm256_and_ps(live, exp2_256(_mm256_sub_ps(x, mm)));
        total = _mm256_add_ps(total, e);
        _mm256_storeu_ps(p + i, e);
    }
    *sum = *sum * *alpha + sum_256(total);
}

/* 8 nv dims from `first` on. */
INLINE void value_rows(const int n, const int nv, const bool ahead, float (*o)[HEAD_DIM_MAX],
                       const float (*p)[ATTENTION_TILE], const float *alpha,
                       const uint8_t *const *sub, unsigned n_pairs, size_t head_dim, size_t first)
{
    __m256 acc[MR][4];
#pragma GCC unroll 4
    for (int r = 0; r < n; r++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++)
            acc[r][v] = _mm256_mul_ps(_mm256_set1_ps(alpha[r]),
                                      _mm256_loadu_ps(o[r] + first + 8 * (size_t)v));
    for (unsigned i = 0; i < n_pairs; i++) {
        size_t at = 32 * head_dim + i % 8 * 4 * head_dim + 4 * first; /* V behind K */
        const uint8_t *v = sub[i / 8] + at;
        if (ahead) {
            _mm_prefetch(sub[i / 8 + AHEAD] + at, _MM_HINT_T0);
            if (nv == 4)
                _mm_prefetch(sub[i / 8 + AHEAD] + at + 64, _MM_HINT_T0);
        }
        pair_step(n, nv, p[0] + 2 * i, ATTENTION_TILE, v, v + 64, acc);
    }
#pragma GCC unroll 4
    for (int r = 0; r < n; r++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++)
            _mm256_storeu_ps(o[r] + first + 8 * (size_t)v, acc[r][v]);
}

INLINE void value_tile(const int n, const int nv, const bool ahead, float (*o)[HEAD_DIM_MAX],
                       const float (*p)[ATTENTION_TILE], const float *alpha,
                       const uint8_t *const *sub, unsigned n_pairs, size_t head_dim)
{
    size_t d = 0;
    for (; d + 8 * (size_t)nv <= head_dim; d += 8 * (size_t)nv)
        value_rows(n, nv, ahead, o, p, alpha, sub, n_pairs, head_dim, d);
    for (; nv == 4 && d < head_dim; d += 16)
        value_rows(n, 2, ahead, o, p, alpha, sub, n_pairs, head_dim, d);
}

static void values(unsigned n, float (*o)[HEAD_DIM_MAX], const float (*p)[ATTENTION_TILE],
                   const float *alpha, const uint8_t *const *sub, unsigned n_pairs, size_t head_dim)
{
    bool ahead = n <= FEW_ROWS;
    for (; n > 0; n -= n < MR ? n : MR, o += MR, p += MR, alpha += MR, ahead = false)
        if (n == 1)
            value_tile(1, 4, ahead, o, p, alpha, sub, n_pairs, head_dim);
        else if (n == 2)
            value_tile(2, 4, ahead, o, p, alpha, sub, n_pairs, head_dim);
        else if (n == 3)
            value_tile(3, 4, ahead, o, p, alpha, sub, n_pairs, head_dim);
        else if (ahead)
            value_tile(4, 2, true, o, p, alpha, sub, n_pairs, head_dim);
        else
            value_tile(4, 2, false, o, p, alpha, sub, n_pairs, head_dim);
}

const struct attention_kernel attention_avx2 = {12, load_q, scores, softmax, values};
