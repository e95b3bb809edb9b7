/* linear_f32: float weights x float activations. Weights: [k][32] per panel. Micro tile: 12 rows x
 * 2 vectors of 16 columns; every output is one chain of fused multiply-adds in k order. */
#include "kernels/linear_avx512.h"

#define MR     12
#define K_STEP 8

INLINE void column(const int mr, const float *x, size_t k_row, const uint8_t *w, __m512 (*acc)[2])
{
    __m512 w0 = _mm512_load_ps(w), w1 = _mm512_load_ps(w + 64);
#pragma GCC unroll 12
    for (int r = 0; r < mr; r++) {
        __m512 v = _mm512_set1_ps(x[(size_t)r * k_row]);
        acc[r][0] = _mm512_fmadd_ps(v, w0, acc[r][0]);
        acc[r][1] = _mm512_fmadd_ps(v, w1, acc[r][1]);
    }
}

INLINE void micro(const int mr, const struct linear_args *a, uint32_t row, struct fetch *f)
{
    const float *x = a->a.f + (size_t)row * a->k;
    const uint8_t *w = a->w;
    __m512 acc[MR][2];
#pragma GCC unroll 12
    for (int r = 0; r < mr; r++)
        acc[r][0] = acc[r][1] = _mm512_setzero_ps();
    uint32_t k = 0;
    for (; k + K_STEP <= a->k; k += K_STEP) {
        fetch_step(f);
#pragma GCC unroll 2
        for (int i = 0; i < K_STEP; i++, w += 128)
            column(mr, x + k + i, a->k, w, acc);
    }
    for (; k < a->k; k++, w += 128)
        column(mr, x + k, a->k, w, acc);
#pragma GCC unroll 12
    for (int r = 0; r < mr; r++)
        linear_finish(a, row + (uint32_t)r, acc[r][0], acc[r][1]);
}

#define LINEAR_CASES                                                                               \
    LINEAR_CASE(1)                                                                                 \
    LINEAR_CASE(2)                                                                                 \
    LINEAR_CASE(3)                                                                                 \
    LINEAR_CASE(4)                                                                                 \
    LINEAR_CASE(5)                                                                                 \
    LINEAR_CASE(6)                                                                                 \
    LINEAR_CASE(7)                                                                                 \
    LINEAR_CASE(8)                                                                                 \
    LINEAR_CASE(9)                                                                                 \
    LINEAR_CASE(10)                                                                                \
    LINEAR_CASE(11)                                                                                \
    LINEAR_CASE(12)

void linear_f32_avx512(const struct linear_args *a)
{
    LINEAR_PANEL((size_t)a->k * PANEL * 4, a->k / K_STEP + 1);
}
