/* linear_bf16: bf16 weights x bf16 activations on VDPBF16PS. Weights: [k/2][32][2] per panel.
 *
 * A vector holds 16 columns x 2 k, so one instruction adds both products to the column's float. A
 * row gives a 4-byte broadcast per k pair. Micro tile: 12 rows x 2 vectors = 24 accumulators, 2
 * weights, 1 broadcast. Every output is one accumulator, pair after pair. */
#include "kernels/linear_avx512.h"

#define MR     12
#define K_STEP 16

INLINE void pairs(const int mr, const uint16_t *x, size_t k_row, const uint8_t *w, __m512 (*acc)[2])
{
    __m512bh w0 = (__m512bh)_mm512_load_si512(w), w1 = (__m512bh)_mm512_load_si512(w + 64);
#pragma GCC unroll 12
    for (int r = 0; r < mr; r++) {
        int32_t pair;
        __builtin_memcpy(&pair, x + (size_t)r * k_row, sizeof pair);
        __m512bh v = (__m512bh)_mm512_set1_epi32(pair);
        acc[r][0] = _mm512_dpbf16_ps(acc[r][0], v, w0);
        acc[r][1] = _mm512_dpbf16_ps(acc[r][1], v, w1);
    }
}

INLINE void micro(const int mr, const struct linear_args *a, uint32_t row, struct fetch *f)
{
    const uint16_t *x = a->a.h + (size_t)row * a->k;
    const uint8_t *w = a->w;
    __m512 acc[MR][2];
#pragma GCC unroll 12
    for (int r = 0; r < mr; r++)
        acc[r][0] = acc[r][1] = _mm512_setzero_ps();
    uint32_t k = 0;
    for (; k + K_STEP <= a->k; k += K_STEP) {
        fetch_step(f);
#pragma GCC unroll 2
        for (int i = 0; i < K_STEP; i += 2, w += 128)
            pairs(mr, x + k + i, a->k, w, acc);
    }
    for (; k < a->k; k += 2, w += 128)
        pairs(mr, x + k, a->k, w, acc);
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

void linear_bf16_avx512(const struct linear_args *a)
{
    LINEAR_PANEL((size_t)a->k * PANEL * 2, a->k / K_STEP + 1);
}
