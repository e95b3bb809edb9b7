/* linear_avx2: the frame that the AVX2 linear kernels share.
 *
 * A kernel file defines MR (most rows of a micro tile), CHUNK (k that it takes at a time) and
 * micro(): mr rows x 8 nv columns of a panel, both constants, from k0 on for n k, added to sums in
 * memory. The frame cuts the work:
 *
 *   - one or two rows (decode) take all columns and all of K at once, which reads memory in one
 *     stream;
 *   - more rows take a chunk of K at a time, which stays in L1 while tile after tile of rows goes
 *     over its two halves of 16 columns. 16 registers hold no more.
 *
 * Both do the operations of an output in the same order. */
#ifndef BATON_KERNELS_LINEAR_AVX2_H
#define BATON_KERNELS_LINEAR_AVX2_H

#include <string.h>

#include "kernels/cpu.h"
#include "kernels/exp2_avx2.h"

#define ROWS_MOST  96 /* rows whose sums wait in memory between chunks */
#define NEAR_BYTES 1024

/* sum[r][column + i] += row r of the tile times column i, over k0 .. k0 + n - 1. Column: 0 or 16.
 * Meanwhile it fetches about a quarter of as many weights from `next` on, if not NULL, to L2. */
INLINE void micro(const int mr, const int nv, const struct linear_args *a, uint32_t row,
                  uint32_t column, uint32_t k0, uint32_t n, float (*sum)[PANEL],
                  const uint8_t *next);
/* Bytes of a panel's first k. */
INLINE size_t panel_bytes(size_t k);

/* A part of the next panel, where many rows come so late that the hardware has lost the stream. */
INLINE void fetch_next(const uint8_t **next, const int lines)
{
    if (!*next)
        return;
#pragma GCC unroll 5
    for (int i = 0; i < lines; i++)
        _mm_prefetch((const char *)*next + 64 * i, _MM_HINT_T1);
    *next += 64 * lines;
}

/* Few rows: the hardware's stream ends at each page; this carries it over. */
INLINE void fetch_near(const uint8_t *w, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64)
        _mm_prefetch((const char *)w + NEAR_BYTES + i, _MM_HINT_T0);
}

INLINE __m256 halves_256(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

/* Before a block of so many bytes of weights: the one or the other. */
INLINE void fetch_block(const int nv, const uint8_t *w, const int bytes, const uint8_t **next)
{
    if (nv == 4)
        fetch_near(w, (size_t)bytes);
    else
        fetch_next(next, (bytes / 64 + 3) / 4);
}

/* Sums of floats, which grow in registers. */
INLINE void sums_load(const int mr, const int nv, float (*sum)[PANEL], uint32_t column,
                      __m256 (*acc)[4])
{
#pragma GCC unroll 6
    for (int r = 0; r < mr; r++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++)
            acc[r][v] = _mm256_load_ps(sum[r] + column + 8 * v);
}
INLINE void sums_store(const int mr, const int nv, float (*sum)[PANEL], uint32_t column,
                       __m256 (*acc)[4])
{
#pragma GCC unroll 6
    for (int r = 0; r < mr; r++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++)
            _mm256_store_ps(sum[r] + column + 8 * v, acc[r][v]);
}

/* Four activations in all lanes. */
INLINE __m256i broadcast_quad(const int8_t *x)
{
    int32_t quad;
    memcpy(&quad, x, sizeof quad);
    return _mm256_set1_epi32(quad);
}

/* Forgets what was read, so that a second use of the same memory needs no register meanwhile. */
#define READ_AGAIN() __asm__ volatile("" ::: "memory")

INLINE void linear_finish(const struct linear_args *a, uint32_t row, const float *sum)
{
    float *c = a->c + row * a->ldc;
#pragma GCC unroll 4
    for (int i = 0; i < PANEL; i += 8) {
        __m256 v = _mm256_load_ps(sum + i);
        if (a->bias)
            v = _mm256_add_ps(v, _mm256_loadu_ps(a->bias + i));
        if (a->add)
            v = _mm256_add_ps(_mm256_loadu_ps(c + i), v);
        _mm256_storeu_ps(c + i, v);
    }
}

#define LINEAR_CASE(mr)                                                                            \
    case mr:                                                                                       \
        micro(mr, 2, a, row, 0, k0, n, sum, next);                                                 \
        micro(mr, 2, a, row, 16, k0, n, sum, next ? next + quarter : NULL);                        \
        break;
#if MR == 4
#define LINEAR_CASES LINEAR_CASE(1) LINEAR_CASE(2) LINEAR_CASE(3) LINEAR_CASE(4)
#else
#define LINEAR_CASES                                                                               \
    LINEAR_CASE(1) LINEAR_CASE(2) LINEAR_CASE(3) LINEAR_CASE(4) LINEAR_CASE(5) LINEAR_CASE(6)
#endif

static void linear_tile(const struct linear_args *a, uint32_t row, uint32_t mr, uint32_t k0,
                        uint32_t n, float (*sum)[PANEL], const uint8_t *next)
{
    size_t quarter = panel_bytes(n) / 4;
    switch (mr) {
        LINEAR_CASES
    }
}

static void linear_rows(const struct linear_args *a, uint32_t first, uint32_t rows)
{
    _Alignas(64) float sum[ROWS_MOST][PANEL];
    memset(sum, 0, rows * sizeof sum[0]);
    if (rows == 1) {
        micro(1, 4, a, first, 0, 0, a->k, sum, NULL);
    } else if (rows == 2) {
        micro(2, 4, a, first, 0, 0, a->k, sum, NULL);
    } else {
        uint32_t chunks = (a->k + CHUNK - 1) / CHUNK, tiles = (rows + MR - 1) / MR;
        uint32_t step = (a->k + chunks - 1) / chunks;
        step = (step + Q_BLOCK - 1) / Q_BLOCK * Q_BLOCK;
        for (uint32_t k0 = 0; k0 < a->k; k0 += step) {
            uint32_t n = a->k - k0 < step ? a->k - k0 : step, row = 0;
            const uint8_t *next = a->w + panel_bytes(a->k) + panel_bytes(k0);
            for (uint32_t i = 0; i < tiles; i++) {
                uint32_t mr = (rows - row + tiles - i - 1) / (tiles - i);
                linear_tile(a, first + row, mr, k0, n, sum + row,
                            i < 2 ? next + i * panel_bytes(n) / 2 : NULL);
                row += mr;
            }
        }
    }
    for (uint32_t r = 0; r < rows; r++)
        linear_finish(a, first + r, sum[r]);
}

INLINE void linear_frame(const struct linear_args *a)
{
    for (uint32_t row = 0; row < a->m; row += ROWS_MOST)
        linear_rows(a, row, a->m - row < ROWS_MOST ? a->m - row : ROWS_MOST);
}

#endif
