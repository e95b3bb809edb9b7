/* signed_avx2: dot products of signed bytes for the AVX2 linear kernels.
 *
 * VPMADDUBSW multiplies unsigned by signed bytes and adds neighbours in 16 bits. Weights are stored
 * + 128; 255 * 127 * 2 would saturate, so they are made signed, and then |w| times (activation with
 * the sign of w): at most 128 * 127 * 2, which fits. (Two sums of nibbles, as in linear_q4_avx2.c,
 * would need as many instructions and be slower by an eighth.) */
#ifndef BATON_KERNELS_SIGNED_AVX2_H
#define BATON_KERNELS_SIGNED_AVX2_H

#include "kernels/linear_avx2.h"

/* acc += q times x. By hand: the compiler would move loads up and run out of registers. */
INLINE void signed_dot(__m256i *acc, __m256i q, __m256i magnitude, __m256i x, __m256i ones)
{
    __m256i t;
    __asm__("vpsignb %3, %2, %1\n\tvpmaddubsw %1, %4, %1\n\tvpmaddwd %5, %1, %1\n\t"
            "vpaddd %1, %0, %0"
            : "+x"(*acc), "=&x"(t)
            : "x"(x), "x"(q), "x"(magnitude), "x"(ones));
}

/* dot[r][v] = x[r] times columns 8 v .. 8 v + 7, over n k. w: [n/4][32][4], at the first column. */
INLINE void signed_dots(const int mr, const int nv, const int n, const int8_t *x, size_t k_row,
                        const uint8_t *w, __m256i (*dot)[4])
{
    const __m256i ones = _mm256_set1_epi16(1), sign = _mm256_set1_epi8((char)0x80);
#pragma GCC unroll 4
    for (int r = 0; r < mr; r++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++)
            dot[r][v] = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int k = 0; k < n; k += 4, w += 4 * PANEL) {
        __m256i q[4], magnitude[4];
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) {
            q[v] = _mm256_xor_si256(load_256(w + 32 * v), sign);
            magnitude[v] = _mm256_abs_epi8(q[v]);
        }
#pragma GCC unroll 4
        for (int r = 0; r < mr; r++) {
            __m256i xq = broadcast_quad(x + (size_t)r * k_row + k);
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++)
                signed_dot(&dot[r][v], q[v], magnitude[v], xq, ones);
        }
    }
}

/* sum[r][column + i] += dot times the scales of columns and row: halves at `scales`, d[r * d_row].
 */
INLINE void signed_scale(const int mr, const int nv, __m256i (*dot)[4], const uint8_t *scales,
                         const float *d, size_t d_row, float (*sum)[PANEL], uint32_t column)
{
#pragma GCC unroll 4
    for (int v = 0; v < nv; v++) {
        __m256 dw = halves_256(scales + 16 * v);
#pragma GCC unroll 4
        for (int r = 0; r < mr; r++) {
            float *to = sum[r] + column + 8 * v;
            __m256 both = _mm256_mul_ps(dw, _mm256_broadcast_ss(d + r * d_row));
            __m256 s = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[r][v]), both, _mm256_load_ps(to));
            _mm256_store_ps(to, s);
        }
    }
}

#endif
