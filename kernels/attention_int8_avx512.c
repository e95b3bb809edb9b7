/* attention: the steps of attention.c over an 8-bit cache, on VPDPWSSD. Keys and values are widened
 * to 16 bits in registers, one instruction for 32 numbers; queries and softmax weights are 16-bit
 * integers too, so every product and sum over a tile is exact:
 *
 *   score = (sum q k) (scale of q) (scale of k's token)
 *   o     = alpha o + (sum w v) (scale of the tile's w), with w = p (scale of v's token)
 *
 * No sum leaves 32 bits: 32767 * 127 * 256 < 2^31. Loops and prefetching are those of
 * attention_avx512.c. A row of q keeps its scale in its last float, a row of p too. */
#include "kernels/cpu.h"
#include "kernels/exp2_avx512.h"

#define MR        12 /* rows of a call */
#define FEW_ROWS  6
#define INT_MAX_F 32767.0f

INLINE void dot(__m512i *acc, __m512i w, __m512i x)
{
    __asm__("vpdpwssd %2, %1, %0" : "+v"(*acc) : "v"(w), "v"(x));
}

INLINE __m512i widen(const void *p)
{
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)p));
}

INLINE __m512i broadcast_pair(const void *p)
{
    int32_t pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return _mm512_set1_epi32(pair);
}

static void load_q(const float *q, float scale, size_t head_dim, void *out)
{
    __m512 top = _mm512_setzero_ps();
    for (size_t d = 0; d < head_dim; d += 16)
        top = _mm512_max_ps(_mm512_abs_ps(_mm512_loadu_ps(q + d)), top);
    float max = _mm512_reduce_max_ps(top);
    bool usable = max > 1e-30f && max < 1e30f;
    __m512 inverse = _mm512_set1_ps(usable ? INT_MAX_F / max : 0);
    for (size_t d = 0; d < head_dim; d += 16) {
        __m512i i = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(q + d), inverse));
        _mm256_store_si256((__m256i *)(void *)((int16_t *)out + d), _mm512_cvtsepi32_epi16(i));
    }
    ((float *)out)[HEAD_DIM_MAX - 1] = usable ? max / INT_MAX_F * scale : 0;
}

/* Two sub-blocks for n rows; a0 and a1 are fetched when `ahead`. */
INLINE void score_pair(const int n, const bool ahead, const float (*q)[HEAD_DIM_MAX],
                       const uint8_t *k0, const uint8_t *k1, const uint8_t *a0, const uint8_t *a1,
                       size_t head_dim, float *s)
{
    __m512i acc[MR][2];
#pragma GCC unroll 12
    for (int r = 0; r < n; r++)
        acc[r][0] = acc[r][1] = _mm512_setzero_si512();
    for (size_t i = 0; ahead && i < 128; i += 64) {
        _mm_prefetch(a0 + 32 * head_dim + i, _MM_HINT_T1);
        _mm_prefetch(a1 + 32 * head_dim + i, _MM_HINT_T1);
    }
    for (size_t d = 0; d < head_dim / 2; d += 2) {
        if (ahead) {
            _mm_prefetch(a0 + 32 * d, _MM_HINT_T1);
            _mm_prefetch(a1 + 32 * d, _MM_HINT_T1);
        }
#pragma GCC unroll 2
        for (size_t i = d; i < d + 2; i++) {
            __m512i v0 = widen(k0 + 32 * i), v1 = widen(k1 + 32 * i);
#pragma GCC unroll 12
            for (int r = 0; r < n; r++) {
                __m512i x = broadcast_pair((const int16_t *)q[r] + 2 * i);
                dot(&acc[r][0], v0, x);
                dot(&acc[r][1], v1, x);
            }
        }
    }
    __m512 s0 = _mm512_loadu_ps(k0 + 32 * head_dim), s1 = _mm512_loadu_ps(k1 + 32 * head_dim);
#pragma GCC unroll 12
    for (int r = 0; r < n; r++) {
        __m512 own = _mm512_set1_ps(q[r][HEAD_DIM_MAX - 1]);
        _mm512_store_ps(s + r * ATTENTION_TILE,
                        _mm512_mul_ps(_mm512_cvtepi32_ps(acc[r][0]), _mm512_mul_ps(s0, own)));
        _mm512_store_ps(s + r * ATTENTION_TILE + 16,
                        _mm512_mul_ps(_mm512_cvtepi32_ps(acc[r][1]), _mm512_mul_ps(s1, own)));
    }
}

INLINE void score_tile(const int n, const bool ahead, const float (*q)[HEAD_DIM_MAX],
                       const uint8_t *const *sub, unsigned n_sub, size_t head_dim, float *s)
{
    for (unsigned j = 0; j < n_sub; j += 2)
        score_pair(n, ahead, q, sub[j], sub[j + 1], sub[j + ATTENTION_AHEAD],
                   sub[j + 1 + ATTENTION_AHEAD], head_dim, s + 16 * j);
}

static void scores(unsigned n, const float (*q)[HEAD_DIM_MAX], const uint8_t *const *sub,
                   unsigned n_sub, size_t head_dim, float (*out)[ATTENTION_TILE])
{
#define CASE(rows)                                                                                 \
    case rows:                                                                                     \
        if (head_dim == 64)                                                                        \
            score_tile(rows, rows <= FEW_ROWS, q, sub, n_sub, 64, out[0]);                         \
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

static void softmax(const float *s, void *out, const uint8_t *const *sub, size_t head_dim,
                    unsigned n_sub, unsigned visible, float *max, float *sum, float *alpha)
{
    const __m512 none = _mm512_set1_ps(-1e30f);
    _Alignas(64) float w[ATTENTION_TILE];
    __m512 top = none;
    for (unsigned j = 0; j < n_sub; j++)
        top = _mm512_max_ps(top, _mm512_mask_load_ps(none, lanes(j, visible), s + 16 * j));
    float m = _mm512_reduce_max_ps(top);
    m = m > *max ? m : *max;
    *alpha = _mm512_cvtss_f32(exp2_512(_mm512_set1_ps(*max - m)));
    *max = m;
    /* Sub-block j always adds to sum j % 2, and what is masked adds 0: the same bits with more. */
    __m512 mm = _mm512_set1_ps(m), total[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    top = _mm512_setzero_ps();
    for (unsigned j = 0; j < n_sub; j++) {
        __mmask16 live = lanes(j, visible);
        __m512 x = _mm512_sub_ps(_mm512_mask_load_ps(none, live, s + 16 * j), mm);
        __m512 e = exp2_512(x); /* of -1e30: exactly 0 */
        total[j % 2] = _mm512_add_ps(total[j % 2], e);
        __m512 v = _mm512_maskz_loadu_ps(live, sub[j] + 32 * head_dim + 64);
        v = _mm512_mul_ps(e, v);
        top = _mm512_max_ps(top, v);
        _mm512_store_ps(w + 16 * j, v);
    }
    *sum = *sum * *alpha + _mm512_reduce_add_ps(_mm512_add_ps(total[0], total[1]));
    float largest = _mm512_reduce_max_ps(top);
    bool usable = largest > 1e-30f;
    __m512 inverse = _mm512_set1_ps(usable ? INT_MAX_F / largest : 0);
    for (unsigned j = 0; j < n_sub; j++) {
        __m512i i = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(w + 16 * j), inverse));
        _mm256_store_si256((__m256i *)(void *)((int16_t *)out + 16 * j), _mm512_cvtsepi32_epi16(i));
    }
    ((float *)out)[ATTENTION_TILE - 1] = usable ? largest / INT_MAX_F : 0;
}

/* n rows x 16 nv dims from dim `first` on. */
INLINE void value_tile(const int n, const int nv, const bool ahead, float (*o)[HEAD_DIM_MAX],
                       const float (*p)[ATTENTION_TILE], const float *alpha,
                       const uint8_t *const *sub, unsigned n_pairs, size_t head_dim, size_t first)
{
    __m512i acc[6][4];
#pragma GCC unroll 6
    for (int r = 0; r < n; r++)
#pragma GCC unroll 4
        for (int i = 0; i < nv; i++)
            acc[r][i] = _mm512_setzero_si512();
    for (unsigned j = 0; j * 8 < n_pairs; j++) {
        size_t at = 16 * head_dim + 2 * first; /* V behind K */
        const uint8_t *v = sub[j] + at, *next = sub[j + ATTENTION_AHEAD] + at;
        unsigned pairs = n_pairs - j * 8 < 8 ? n_pairs - j * 8 : 8;
        for (unsigned t = 0; t < pairs; t++, v += 2 * head_dim, next += 2 * head_dim) {
            __m512i w[4];
#pragma GCC unroll 4
            for (int i = 0; i < nv; i++) {
                w[i] = widen(v + 32 * i);
                if (ahead && i % 2 == 0)
                    _mm_prefetch(next + 32 * i, _MM_HINT_T1);
            }
#pragma GCC unroll 6
            for (int r = 0; r < n; r++) {
                __m512i x = broadcast_pair((const int16_t *)p[r] + 16 * j + 2 * t);
#pragma GCC unroll 4
                for (int i = 0; i < nv; i++)
                    dot(&acc[r][i], w[i], x);
            }
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < n; r++) {
        __m512 scale = _mm512_set1_ps(p[r][ATTENTION_TILE - 1]), a = _mm512_set1_ps(alpha[r]);
#pragma GCC unroll 4
        for (int i = 0; i < nv; i++) {
            float *to = o[r] + first + 16 * (size_t)i;
            __m512 sum = _mm512_mul_ps(_mm512_cvtepi32_ps(acc[r][i]), scale);
            _mm512_store_ps(to, _mm512_fmadd_ps(a, _mm512_load_ps(to), sum));
        }
    }
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

const struct attention_kernel attention_int8_avx512 = {MR, load_q, scores, softmax, values};
