/* linear_bf16: bf16 weights x float activations. Weights: [k/2][32][2] per panel: a shift or a mask
 * turns the even or odd k of eight columns into floats. Micro tile: 4 rows x 16 columns, so tight
 * in registers that the pairs are read once for the even and once for the odd. */
#define MR    4
#define CHUNK 256 /* 16 KB */
#include "kernels/linear_avx2.h"

/* One k of all rows; w: the pairs that it is in. */
INLINE void column_step(const int mr, const int nv, const bool odd, const float *x, size_t k_row,
                        const uint8_t *w, __m256 (*acc)[4])
{
    __m256 wv[4];
#pragma GCC unroll 4
    for (int v = 0; v < nv; v++)
        wv[v] = odd ? bf16_odd(load_256(w + 32 * v)) : bf16_even(load_256(w + 32 * v));
#pragma GCC unroll 4
    for (int r = 0; r < mr; r++) {
        __m256 xv = _mm256_broadcast_ss(x + (size_t)r * k_row);
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++)
            acc[r][v] = _mm256_fmadd_ps(xv, wv[v], acc[r][v]);
    }
}

INLINE size_t panel_bytes(size_t k)
{
    return k * PANEL * 2;
}

INLINE void micro(const int mr, const int nv, const struct linear_args *a, uint32_t row,
                  uint32_t column, uint32_t k0, uint32_t n, float (*sum)[PANEL],
                  const uint8_t *next)
{
    const float *x = a->a.f + (size_t)row * a->k + k0;
    const uint8_t *w = a->w + panel_bytes(k0) + 4 * column;
    __m256 acc[MR][4];
    sums_load(mr, nv, sum, column, acc);
    for (uint32_t k = 0; k < n; k += 2, x += 2, w += 4 * PANEL) {
        if (nv == 4)
            fetch_near(w, 128);
        else if (k % 4 == 0)
            fetch_next(&next, 1);
        column_step(mr, nv, false, x, a->k, w, acc);
        READ_AGAIN();
        column_step(mr, nv, true, x + 1, a->k, w, acc);
    }
    sums_store(mr, nv, sum, column, acc);
}

void linear_bf16_avx2(const struct linear_args *a)
{
    linear_frame(a);
}
