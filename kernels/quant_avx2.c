/* quant: activations to int8, one float scale per 32 numbers. */
#include "kernels/cpu.h"
#include "kernels/exp2_avx2.h"

#define QUANT_MIN 1e-30f /* below, a block is zero: see quant.c */

INLINE int32_t sum_integers(__m256i s)
{
    __m128i t = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(t, _mm_shuffle_epi32(t, 0xb1)));
}

/* The sums of the integers, of the first and the second 16. */
INLINE void quant_block(const float *x, int8_t *q, float *d, __m256i *first, __m256i *second)
{
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    __m256 v[4], top = _mm256_setzero_ps();
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_loadu_ps(x + 8 * i);
        top = _mm256_max_ps(top, _mm256_and_ps(v[i], magnitude));
    }
    float max = max_256(top);
    *d = max > QUANT_MIN ? max * (1.0f / 127) : 0;
    __m256 inverse = _mm256_set1_ps(max > QUANT_MIN ? 1 / *d : 0);
    __m256i n[4];
    for (int i = 0; i < 4; i++)
        n[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
    __m256i all =
        _mm256_packs_epi16(_mm256_packs_epi32(n[0], n[1]), _mm256_packs_epi32(n[2], n[3]));
    /* The packs work within 128-bit halves: put the groups of four back in order. */
    all = _mm256_permutevar8x32_epi32(all, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)(void *)q, all);
    *first = _mm256_add_epi32(n[0], n[1]);
    *second = _mm256_add_epi32(n[2], n[3]);
}

void quant_q8_avx2(const float *x, size_t n, int8_t *q, float *d, int32_t *s)
{
    for (size_t b = 0; b < n / Q_BLOCK; b++) {
        __m256i u, v;
        quant_block(x + b * Q_BLOCK, q + b * Q_BLOCK, &d[b], &u, &v);
        s[b] = -128 * sum_integers(_mm256_add_epi32(u, v));
    }
}

void quant_q4_avx2(const float *x, size_t n, int8_t *q, float *d, float *ds)
{
    for (size_t b = 0; b < n / Q_BLOCK; b++) {
        __m256i u, v;
        quant_block(x + b * Q_BLOCK, q + b * Q_BLOCK, &d[b], &u, &v);
        ds[b] = d[b] * (float)sum_integers(_mm256_add_epi32(u, v));
    }
}

void quant_q8k_avx2(const float *x, size_t n, int8_t *q, float *d, int32_t *s, float *ds)
{
    for (size_t b = 0; b < n / Q_BLOCK; b++) {
        __m256i u, v;
        quant_block(x + b * Q_BLOCK, q + b * Q_BLOCK, &d[b], &u, &v);
        int32_t first = sum_integers(u), second = sum_integers(v);
        s[2 * b] = -128 * first;
        s[2 * b + 1] = -128 * second;
        ds[b] = d[b] * (float)(first + second);
    }
}
