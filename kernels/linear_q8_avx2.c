/* linear_q8: Q8 weights x int8 activations on VPMADDUBSW. Micro tile: 4 rows x 16 columns. */
#define MR    4
#define CHUNK 512 /* 17 KB */
#include "kernels/linear_avx2.h"
#include "kernels/signed_avx2.h"

INLINE size_t panel_bytes(size_t k)
{
    return k / Q_BLOCK * Q8_BLOCK_BYTES;
}

INLINE void micro(const int mr, const int nv, const struct linear_args *a, uint32_t row,
                  uint32_t column, uint32_t k0, uint32_t n, float (*sum)[PANEL],
                  const uint8_t *next)
{
    const size_t blocks = a->k / Q_BLOCK, first = row * blocks + k0 / Q_BLOCK;
    const int8_t *x = a->a.q + (size_t)row * a->k + k0;
    const float *d = a->a.d + first;
    const uint8_t *w = a->w + panel_bytes(k0);
    for (uint32_t b = 0; b < n / Q_BLOCK; b++, w += Q8_BLOCK_BYTES, x += Q_BLOCK) {
        __m256i dot[MR][4];
        fetch_block(nv, w, Q8_BLOCK_BYTES, &next);
        signed_dots(mr, nv, Q_BLOCK, x, a->k, w + 4 * column, dot);
        signed_scale(mr, nv, dot, w + PANEL * Q_BLOCK + 2 * column, d + b, blocks, sum, column);
    }
}

void linear_q8_avx2(const struct linear_args *a)
{
    linear_frame(a);
}
