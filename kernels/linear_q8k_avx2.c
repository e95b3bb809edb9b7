/* linear_q8k: Q8K weights (d[k / 16] q + m) x int8 activations on VPMADDUBSW. Micro tile: 4 rows x
 * 16 columns. */
#define MR    4
#define CHUNK 512 /* 19 KB */
#include "kernels/linear_avx2.h"
#include "kernels/signed_avx2.h"

INLINE size_t panel_bytes(size_t k)
{
    return k / Q_BLOCK * Q8K_BLOCK_BYTES;
}

INLINE void micro(const int mr, const int nv, const struct linear_args *a, uint32_t row,
                  uint32_t column, uint32_t k0, uint32_t n, float (*sum)[PANEL],
                  const uint8_t *next)
{
    const size_t blocks = a->k / Q_BLOCK, first = row * blocks + k0 / Q_BLOCK;
    const int8_t *x = a->a.q + (size_t)row * a->k + k0;
    const float *d = a->a.d + first, *ds = a->a.ds + first;
    const uint8_t *w = a->w + panel_bytes(k0);
    for (uint32_t b = 0; b < n / Q_BLOCK; b++, w += Q8K_BLOCK_BYTES, x += Q_BLOCK) {
        const uint8_t *scales = w + PANEL * Q_BLOCK + 2 * column;
        __m256i dot[MR][4];
        fetch_block(nv, w, Q8K_BLOCK_BYTES, &next);
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            signed_dots(mr, nv, 16, x + 16 * h, a->k, w + PANEL * 16 * h + 4 * column, dot);
            signed_scale(mr, nv, dot, scales + 2 * PANEL * h, d + b, blocks, sum, column);
        }
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) {
            __m256 mw = halves_256(scales + 4 * PANEL + 16 * v);
#pragma GCC unroll 4
            for (int r = 0; r < mr; r++) {
                float *to = sum[r] + column + 8 * v;
                __m256 s = _mm256_broadcast_ss(ds + r * blocks + b);
                _mm256_store_ps(to, _mm256_fmadd_ps(mw, s, _mm256_load_ps(to)));
            }
        }
    }
}

void linear_q8k_avx2(const struct linear_args *a)
{
    linear_frame(a);
}
