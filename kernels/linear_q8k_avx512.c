/* linear_q8k: Q8K weights (d[k / 16] q + m) x int8 activations on VPDPBUSD: linear_q8_avx512.c with
 * a scale for each 16 k and linear_q4_avx512.c's minimum. 8 of 13 instructions on the multiplier
 * pipes are products: 61 % of the VPDPBUSD peak is the limit. */
#include "kernels/linear_avx512.h"

#define MR 6

INLINE void dot(__m512i *acc, __m512i w, __m512i x)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*acc) : "v"(w), "v"(x));
}

/* 16 k of all rows: their integers, then into the sums. s: where the accumulators start. */
INLINE void sixteen(const int mr, const int8_t *x, size_t k_row, const uint8_t *w, const int32_t *s,
                    size_t s_row, const float *d, size_t d_row, const uint8_t *scales,
                    __m512 (*sum)[2])
{
    __m512i acc[MR][2];
#pragma GCC unroll 6
    for (int r = 0; r < mr; r++)
        acc[r][0] = acc[r][1] = _mm512_set1_epi32(s[(size_t)r * s_row]);
#pragma GCC unroll 4
    for (int k = 0; k < 16; k += 4) {
        __m512i w0 = _mm512_load_si512(w + PANEL * k);
        __m512i w1 = _mm512_load_si512(w + PANEL * k + 64);
#pragma GCC unroll 6
        for (int r = 0; r < mr; r++) {
            int32_t quad;
            __builtin_memcpy(&quad, x + (size_t)r * k_row + k, sizeof quad);
            __m512i v = _mm512_set1_epi32(quad);
            dot(&acc[r][0], w0, v);
            dot(&acc[r][1], w1, v);
        }
    }
#pragma GCC unroll 2
    for (int v = 0; v < 2; v++) {
        __m512 dw = halves(scales + 32 * v);
#pragma GCC unroll 6
        for (int r = 0; r < mr; r++) {
            __m512 both = _mm512_mul_ps(dw, _mm512_set1_ps(d[(size_t)r * d_row]));
            sum[r][v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[r][v]), both, sum[r][v]);
        }
    }
}

INLINE void micro(const int mr, const struct linear_args *a, uint32_t row, struct fetch *f)
{
    const uint32_t blocks = a->k / Q_BLOCK;
    const int8_t *x = a->a.q + (size_t)row * a->k;
    const float *d = a->a.d + (size_t)row * blocks, *ds = a->a.ds + (size_t)row * blocks;
    const int32_t *s = a->a.s + (size_t)row * 2 * blocks;
    const uint8_t *w = a->w;
    __m512 sum[MR][2];
#pragma GCC unroll 6
    for (int r = 0; r < mr; r++)
        sum[r][0] = sum[r][1] = _mm512_setzero_ps();
    for (uint32_t b = 0; b < blocks; b++, w += Q8K_BLOCK_BYTES, x += Q_BLOCK) {
        const uint8_t *scales = w + PANEL * Q_BLOCK;
        fetch_step(f);
        sixteen(mr, x, a->k, w, s + 2 * b, 2 * (size_t)blocks, d + b, blocks, scales, sum);
        sixteen(mr, x + 16, a->k, w + PANEL * 16, s + 2 * b + 1, 2 * (size_t)blocks, d + b, blocks,
                scales + 2 * PANEL, sum);
#pragma GCC unroll 2
        for (int v = 0; v < 2; v++) {
            __m512 mw = halves(scales + 4 * PANEL + 32 * v);
#pragma GCC unroll 6
            for (int r = 0; r < mr; r++)
                sum[r][v] =
                    _mm512_fmadd_ps(mw, _mm512_set1_ps(ds[(size_t)r * blocks + b]), sum[r][v]);
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

void linear_q8k_avx512(const struct linear_args *a)
{
    LINEAR_PANEL((size_t)a->k / Q_BLOCK * Q8K_BLOCK_BYTES, a->k / Q_BLOCK);
}
