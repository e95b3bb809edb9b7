/* linear_q4: Q4 weights (d q + m) x int8 activations on VPDPBUSD. Per block of 32 k:
 * c += (sum qa q) * (da d) + m * (da sum qa).
 *
 * The nibbles are unsigned already, so there is no offset to correct, and they are unpacked in
 * registers: decode reads 5 bits a weight, prefill pays six cheap instructions per 24 dot products.
 * Micro tile as in linear_q8_avx512.c, with one more FMA per block and pair for the minimum: 73 %
 * of the VPDPBUSD peak is the limit. */
#include "kernels/linear_avx512.h"

#define MR 6

INLINE void dot(__m512i *acc, __m512i w, __m512i x)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*acc) : "v"(w), "v"(x));
}

/* Four k of all rows. */
INLINE void quad(const int mr, const int8_t *x, size_t k_row, __m512i w0, __m512i w1,
                 __m512i (*acc)[2])
{
#pragma GCC unroll 6
    for (int r = 0; r < mr; r++) {
        int32_t four;
        __builtin_memcpy(&four, x + (size_t)r * k_row, sizeof four);
        __m512i v = _mm512_set1_epi32(four);
        dot(&acc[r][0], w0, v);
        dot(&acc[r][1], w1, v);
    }
}

INLINE void micro(const int mr, const struct linear_args *a, uint32_t row, struct fetch *f)
{
    const uint32_t blocks = a->k / Q_BLOCK;
    const int8_t *x = a->a.q + (size_t)row * a->k;
    const float *d = a->a.d + (size_t)row * blocks, *ds = a->a.ds + (size_t)row * blocks;
    const uint8_t *w = a->w;
    const __m512i mask = _mm512_set1_epi8(15);
    __m512 sum[MR][2];
#pragma GCC unroll 6
    for (int r = 0; r < mr; r++)
        sum[r][0] = sum[r][1] = _mm512_setzero_ps();
    for (uint32_t b = 0; b < blocks; b++, w += Q4_BLOCK_BYTES, x += Q_BLOCK) {
        fetch_step(f);
        __m512i acc[MR][2];
#pragma GCC unroll 6
        for (int r = 0; r < mr; r++)
            acc[r][0] = acc[r][1] = _mm512_setzero_si512();
#pragma GCC unroll 4
        for (int k = 0; k < Q_BLOCK; k += 8) {
            __m512i w0 = _mm512_load_si512(w + PANEL * k / 2);
            __m512i w1 = _mm512_load_si512(w + PANEL * k / 2 + 64);
            quad(mr, x + k, a->k, _mm512_and_si512(w0, mask), _mm512_and_si512(w1, mask), acc);
            w0 = _mm512_and_si512(_mm512_srli_epi16(w0, 4), mask);
            w1 = _mm512_and_si512(_mm512_srli_epi16(w1, 4), mask);
            quad(mr, x + k + 4, a->k, w0, w1, acc);
        }
        const uint8_t *scales = w + PANEL * Q_BLOCK / 2;
#pragma GCC unroll 2
        for (int v = 0; v < 2; v++) {
            __m512 dw = halves(scales + 32 * v), mw = halves(scales + 2 * PANEL + 32 * v);
#pragma GCC unroll 6
            for (int r = 0; r < mr; r++) {
                size_t i = (size_t)r * blocks + b;
                __m512 both = _mm512_mul_ps(dw, _mm512_set1_ps(d[i]));
                sum[r][v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[r][v]), both, sum[r][v]);
                sum[r][v] = _mm512_fmadd_ps(mw, _mm512_set1_ps(ds[i]), sum[r][v]);
            }
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < mr; r++)
        linear_finish(a, row + (uint32_t)r, sum[r][0], sum[r][1]);
}

#define LINEAR_CASES                                                                               \
    LINEAR_CASE(1)                                                                                 \
    LINEAR_CASE(2)                                                                                 \
    LINEAR_CASE(3)                                                                                 \
    LINEAR_CASE(4)                                                                                 \
    LINEAR_CASE(5)                                                                                 \
    LINEAR_CASE(6)

void linear_q4_avx512(const struct linear_args *a)
{
    LINEAR_PANEL((size_t)a->k / Q_BLOCK * Q4_BLOCK_BYTES, a->k / Q_BLOCK);
}
