/* quant: activations to int8 (one float scale per 32 numbers) or to bf16. */
#include "kernels/cpu.h"
#include "kernels/exp2_avx512.h"

#define QUANT_MIN 1e-30f /* below, a block is zero: see quant.c */

/* The sums of the integers, of the first and the second 16. */
INLINE void quant_block(const float *x, int8_t *q, float *d, __m512i *first, __m512i *second)
{
    __m512 x0 = _mm512_loadu_ps(x), x1 = _mm512_loadu_ps(x + 16);
    float max = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(x0), _mm512_abs_ps(x1)));
    *d = max > QUANT_MIN ? max * (1.0f / 127) : 0;
    __m512 inverse = _mm512_set1_ps(max > QUANT_MIN ? 1 / *d : 0);
    __m512i i0 = _mm512_cvtps_epi32(_mm512_mul_ps(x0, inverse));
    __m512i i1 = _mm512_cvtps_epi32(_mm512_mul_ps(x1, inverse));
    _mm_storeu_si128((__m128i *)(void *)q, _mm512_cvtsepi32_epi8(i0));
    _mm_storeu_si128((__m128i *)(void *)(q + 16), _mm512_cvtsepi32_epi8(i1));
    *first = i0;
    *second = i1;
}

void quant_q8_avx512(const float *x, size_t n, int8_t *q, float *d, int32_t *s)
{
    for (size_t b = 0; b < n / Q_BLOCK; b++) {
        __m512i u, v;
        quant_block(x + b * Q_BLOCK, q + b * Q_BLOCK, &d[b], &u, &v);
        s[b] = -128 * _mm512_reduce_add_epi32(_mm512_add_epi32(u, v));
    }
}

void quant_q4_avx512(const float *x, size_t n, int8_t *q, float *d, float *ds)
{
    for (size_t b = 0; b < n / Q_BLOCK; b++) {
        __m512i u, v;
        quant_block(x + b * Q_BLOCK, q + b * Q_BLOCK, &d[b], &u, &v);
        ds[b] = d[b] * (float)_mm512_reduce_add_epi32(_mm512_add_epi32(u, v));
    }
}

void quant_q8k_avx512(const float *x, size_t n, int8_t *q, float *d, int32_t *s, float *ds)
{
    for (size_t b = 0; b < n / Q_BLOCK; b++) {
        __m512i u, v;
        quant_block(x + b * Q_BLOCK, q + b * Q_BLOCK, &d[b], &u, &v);
        int32_t first = _mm512_reduce_add_epi32(u), second = _mm512_reduce_add_epi32(v);
        s[2 * b] = -128 * first;
        s[2 * b + 1] = -128 * second;
        ds[b] = d[b] * (float)(first + second);
    }
}

void quant_bf16_avx512(const float *x, size_t n, uint16_t *h)
{
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 m = n - i < 16 ? (__mmask16)((1u << (n - i)) - 1) : (__mmask16)0xffff;
        __m256bh v = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(m, x + i));
        _mm256_mask_storeu_epi16(h + i, m, (__m256i)v);
    }
}
