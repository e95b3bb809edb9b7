/* linear_q8: Q8 weights x int8 activations on VPDPBUSD. Per block of 32 k, and exactly as the plain
 * version up to rounding: c += (sum qa qw) * (da dw).
 *
 * VPDPBUSD multiplies unsigned (the weights, in a register) by signed (the activations, broadcast).
 * So weights are stored + 128, and -128 sum(qa), known per row and block, is where the integer
 * accumulator starts: the correction is free. Scales sit behind their block in the same stream.
 *
 * Micro tile: 6 rows x 2 vectors, each an int32 and a float accumulator (24 registers). Per block
 * and pair: 8 VPDPBUSD, convert, multiply, FMA; two of these share the multiplier pipes, so 80 % of
 * the VPDPBUSD peak is the limit. The instruction is written as assembly: gcc 12 spills the
 * accumulators of the intrinsic. */
#include "kernels/linear_avx512.h"

#define MR 6

INLINE void dot(__m512i *acc, __m512i w, __m512i x)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*acc) : "v"(w), "v"(x));
}

INLINE void micro(const int mr, const struct linear_args *a, uint32_t row, struct fetch *f)
{
    const uint32_t blocks = a->k / Q_BLOCK;
    const int8_t *x = a->a.q + (size_t)row * a->k;
    const float *d = a->a.d + (size_t)row * blocks;
    const int32_t *s = a->a.s + (size_t)row * blocks;
    const uint8_t *w = a->w;
    __m512 sum[MR][2];
#pragma GCC unroll 6
    for (int r = 0; r < mr; r++)
        sum[r][0] = sum[r][1] = _mm512_setzero_ps();
    for (uint32_t b = 0; b < blocks; b++, w += Q8_BLOCK_BYTES, x += Q_BLOCK) {
        fetch_step(f);
        __m512i acc[MR][2];
#pragma GCC unroll 6
        for (int r = 0; r < mr; r++)
            acc[r][0] = acc[r][1] = _mm512_set1_epi32(s[(size_t)r * blocks + b]);
#pragma GCC unroll 8
        for (int k = 0; k < Q_BLOCK; k += 4) {
            __m512i w0 = _mm512_load_si512(w + PANEL * k);
            __m512i w1 = _mm512_load_si512(w + PANEL * k + 64);
#pragma GCC unroll 6
            for (int r = 0; r < mr; r++) {
                int32_t quad;
                __builtin_memcpy(&quad, x + (size_t)r * a->k + k, sizeof quad);
                __m512i v = _mm512_set1_epi32(quad);
                dot(&acc[r][0], w0, v);
                dot(&acc[r][1], w1, v);
            }
        }
#pragma GCC unroll 2
        for (int v = 0; v < 2; v++) {
            __m512 dw = halves(w + PANEL * Q_BLOCK + 32 * v);
#pragma GCC unroll 6
            for (int r = 0; r < mr; r++) {
                __m512 both = _mm512_mul_ps(dw, _mm512_set1_ps(d[(size_t)r * blocks + b]));
                sum[r][v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[r][v]), both, sum[r][v]);
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

void linear_q8_avx512(const struct linear_args *a)
{
    LINEAR_PANEL((size_t)a->k / Q_BLOCK * Q8_BLOCK_BYTES, a->k / Q_BLOCK);
}
