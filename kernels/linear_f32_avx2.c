/* linear_f32: float weights x float activations. Weights: [k][32] per panel. Micro tile: 6 rows x
 * 16 columns; every output is one chain of fused multiply-adds in k order. */
#define MR    6
#define CHUNK 128 /* 16 KB */
#include "kernels/linear_avx2.h"

INLINE size_t panel_bytes(size_t k)
{
    return k * PANEL * 4;
}

INLINE void micro(const int mr, const int nv, const struct linear_args *a, uint32_t row,
                  uint32_t column, uint32_t k0, uint32_t n, float (*sum)[PANEL],
                  const uint8_t *next)
{
    const float *x = a->a.f + (size_t)row * a->k + k0;
    const float *w = (const float *)(const void *)(a->w + panel_bytes(k0)) + column;
    __m256 acc[MR][4];
    sums_load(mr, nv, sum, column, acc);
    for (uint32_t k = 0; k < n; k++, w += PANEL) {
        __m256 wv[4];
        if (nv == 4)
            fetch_near((const uint8_t *)w, 128);
        else if (k % 2 == 0)
            fetch_next(&next, 1);
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++)
            wv[v] = _mm256_loadu_ps(w + 8 * v);
#pragma GCC unroll 6
        for (int r = 0; r < mr; r++) {
            __m256 xv = _mm256_broadcast_ss(x + (size_t)r * a->k + k);
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++)
                acc[r][v] = _mm256_fmadd_ps(xv, wv[v], acc[r][v]);
        }
    }
    sums_store(mr, nv, sum, column, acc);
}

void linear_f32_avx2(const struct linear_args *a)
{
    linear_frame(a);
}
