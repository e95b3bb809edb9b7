/* linear_avx512: the frame that the AVX-512 linear kernels share.
 *
 * A kernel file defines MR (most rows of a micro tile) and micro(): mr rows x the 32 columns of a
 * panel, mr a constant. linear_panel cuts the rows into balanced micro tiles (16 rows are 8 + 8,
 * not 12 + 4) and, with many rows, spreads the fetching of the next panel over the first of them.
 */
#ifndef BATON_KERNELS_LINEAR_AVX512_H
#define BATON_KERNELS_LINEAR_AVX512_H

#include "kernels/cpu.h"
#include "kernels/exp2_avx512.h"

/* Where to fetch from: `lines` cache lines per step of the micro tile's loop. */
struct fetch {
    const char *at;
    unsigned lines;
};

/* Into L2: with t0 or nta the L1 fill buffers become the bottleneck. */
INLINE void fetch_step(struct fetch *f)
{
    for (unsigned i = 0; i < f->lines; i++)
        _mm_prefetch(f->at + 64 * i, _MM_HINT_T1);
    f->at += 64 * f->lines;
}

/* What to fetch while a panel is multiplied. Few rows read as fast as memory can: a second stream
 * one panel ahead would cost them a third of it, so they stay close, or leave it to the hardware.
 * Many rows come to the next panel so late that the hardware will have forgotten it.
 * steps: of a micro tile's loop; panel: bytes. */
#define FETCH_NEAR_ROWS  3
#define FETCH_NEAR_BYTES 1024
#define FETCH_NONE_ROWS  5
INLINE struct fetch fetch_begin(const struct linear_args *a, size_t panel, uint32_t steps,
                                uint32_t tiles)
{
    uint32_t over = tiles < 4 ? tiles : 4;
    uint32_t lines = (uint32_t)(panel / 64);
    if (a->m <= FETCH_NONE_ROWS) {
        uint32_t near = a->m <= FETCH_NEAR_ROWS ? (lines + steps - 1) / steps : 0;
        return (struct fetch){(const char *)a->w + FETCH_NEAR_BYTES, near};
    }
    return (struct fetch){(const char *)a->w + panel, (lines + steps * over - 1) / (steps * over)};
}

/* 16 scales, fp16, aligned to 32. */
INLINE __m512 halves(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(const void *)p));
}

/* 16 columns of a row, from column `col` on. */
INLINE void linear_finish_half(const struct linear_args *a, uint32_t row, size_t col, __m512 v)
{
    float *c = a->c + row * a->ldc + col;
    if (a->bias)
        v = _mm512_add_ps(v, _mm512_loadu_ps(a->bias + col));
    if (a->add)
        v = _mm512_add_ps(_mm512_loadu_ps(c), v);
    _mm512_storeu_ps(c, v);
}

INLINE void linear_finish(const struct linear_args *a, uint32_t row, __m512 v0, __m512 v1)
{
    linear_finish_half(a, row, 0, v0);
    linear_finish_half(a, row, 16, v1);
}

/* Runs `micro` (a macro of a constant row count) for mr rows. */
#define LINEAR_CASE(n)                                                                             \
    case n:                                                                                        \
        micro(n, a, row, &f);                                                                      \
        break;
#define LINEAR_PANEL(panel, steps)                                                                 \
    do {                                                                                           \
        uint32_t tiles = (a->m + MR - 1) / MR, row = 0;                                            \
        struct fetch f = fetch_begin(a, panel, steps, tiles);                                      \
        const char *end = (const char *)a->w + 2 * (panel);                                        \
        for (uint32_t i = 0; i < tiles; i++) {                                                     \
            uint32_t mr = (a->m - row + tiles - i - 1) / (tiles - i);                              \
            if (f.at >= end)                                                                       \
                f.lines = 0;                                                                       \
            switch (mr) {                                                                          \
                LINEAR_CASES                                                                       \
            }                                                                                      \
            row += mr;                                                                             \
        }                                                                                          \
    } while (0)

#endif
