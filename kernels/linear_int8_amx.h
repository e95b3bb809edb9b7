/* linear_int8_amx: the frame of the block-scaled linear kernels on TDPBSSD, for many rows.
 *
 * A product takes one block of 32 k. Its integers are exact, and what follows (to float, times both
 * scales, added in the order of blocks) is what the AVX-512 kernel does: the bits are the same, so
 * the number of rows may choose between them. The weights are brought into signed bytes once per
 * panel, for all rows: a kernel file declares BLOCK_BYTES, SCALES_AT (within a block), MINIMUM
 * where blocks have one, and defines expand().
 *
 * A micro tile is up to 16 rows x 16 columns: 16 float accumulators. While a block's integers are
 * scaled, which bounds the kernel (three or four instructions a row, for which a core has one port
 * while tiles are multiplied: 48 or 64 cycles to the product's 16), the next block is multiplied.
 */
#ifndef BATON_KERNELS_LINEAR_INT8_AMX_H
#define BATON_KERNELS_LINEAR_INT8_AMX_H

#include "kernels/linear_avx512.h"
#include "kernels/tiles_amx.h"

#define LEAST_ROWS   24 /* fewer are faster on AVX-512 */
#define MOST_ROWS    96 /* of a pass */
#define CHUNK_BLOCKS 64 /* of K: 64 KB of bytes */
#define BLOCK_SIGNED (PANEL * Q_BLOCK)

/* A micro tile over a chunk of K. */
struct micro_tile {
    const int8_t *x;               /* activations of its first row */
    const float *d, *ds;           /* their scales and scaled sums */
    int8_t *w;                     /* weights as signed bytes */
    const uint8_t *packed;         /* and where they come from, for the first micro tile; or NULL */
    const uint8_t *scales;         /* of the weights */
    const int8_t *x_next, *w_next; /* of the micro tile behind it */
    float (*sum)[PANEL];           /* so far, of its first row; first, last: chunk of K */
    bool first, last;
    uint32_t row, from; /* first of its rows, and first that it keeps */
    size_t col;         /* 0 or 16 */
};

/* A block's weights as signed bytes, [k/4][32][4]. */
INLINE void expand(const uint8_t *from, int8_t *to);

#define PRODUCT(c, ta, tb, x, w, k_row, to)                                                        \
    do {                                                                                           \
        TILE_ZERO(c);                                                                              \
        TILE_LOAD(ta, x, k_row);                                                                   \
        TILE_LOAD(tb, w, 4 * PANEL);                                                               \
        TILE_SIGNED(c, ta, tb);                                                                    \
        TILE_STORE(c, to, TILE_BYTES);                                                             \
    } while (0)

/* Float r of 16 with a stride, from four of its multiples: addresses that one instruction can form.
 */
struct strided {
    const float *low, *high; /* of row 0 and of row 8 */
    size_t s1, s3, s5, s7;
};
INLINE float strided_at(const struct strided *s, int r)
{
    const float *p = r < 8 ? s->low : s->high;
    switch (r % 8) {
    case 0:
        return p[0];
    case 1:
        return p[s->s1];
    case 2:
        return p[s->s1 * 2];
    case 3:
        return p[s->s3];
    case 4:
        return p[s->s1 * 4];
    case 5:
        return p[s->s5];
    case 6:
        return p[s->s3 * 2];
    default:
        return p[s->s7];
    }
}

/* One block's integers into the sums. */
INLINE void scale_block(const int mr, const int32_t (*c)[16], const uint8_t *scales,
                        const struct strided *d, const struct strided *ds, __m512 *sum)
{
    __m512 dw = halves(scales);
#ifdef MINIMUM
    __m512 mw = halves(scales + 2 * PANEL);
#else
    (void)ds;
#endif
#pragma GCC unroll 16
    for (int r = 0; r < mr; r++) {
        __m512 both = _mm512_mul_ps(dw, _mm512_set1_ps(strided_at(d, r)));
        sum[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(c[r])), both, sum[r]);
#ifdef MINIMUM
        sum[r] = _mm512_fmadd_ps(mw, _mm512_set1_ps(strided_at(ds, r)), sum[r]);
#endif
    }
}

INLINE void next_block(struct strided *s)
{
    s->low++;
    s->high++;
    __asm__("" : "+r"(s->low), "+r"(s->high)); /* or the compiler makes 16 pointers of it */
}

/* n blocks; the first one's integers are in c[0] already, and the next tile's will be. */
INLINE void micro(const int mr, const struct linear_args *a, const struct micro_tile *t, size_t n,
                  int32_t (*c)[TILE_ROWS][16], struct fetch *f)
{
    const size_t k = a->k, s = k / Q_BLOCK;
    struct strided d = {t->d, t->d + 8 * s, s, 3 * s, 5 * s, 7 * s}, ds = d;
    ds.low = t->ds;
    ds.high = t->ds + 8 * s;
    const int8_t *x = t->x, *w = t->w;
    const uint8_t *scales = t->scales;
    const uint8_t *packed = t->packed ? t->packed + 2 * BLOCK_BYTES : NULL;
    int8_t *expanded = t->w + 2 * BLOCK_SIGNED;
    __m512 sum[TILE_ROWS];
#pragma GCC unroll 16
    for (int r = 0; r < mr; r++)
        sum[r] = t->first ? _mm512_setzero_ps() : _mm512_load_ps(t->sum[r] + t->col);
    for (size_t b = 0; b + 2 <= n; b += 2) {
        fetch_step(f);
        PRODUCT(1, 5, 7, x + Q_BLOCK, w + BLOCK_SIGNED, k, c[1]);
        if (packed && b + 2 < n) {
            expand(packed, expanded);
            if (b + 3 < n)
                expand(packed + BLOCK_BYTES, expanded + BLOCK_SIGNED);
            packed += 2 * BLOCK_BYTES;
            expanded += 2 * BLOCK_SIGNED;
        }
        scale_block(mr, (const int32_t(*)[16])c[0], scales, &d, &ds, sum);
        next_block(&d);
        next_block(&ds);
        x = b + 2 < n ? x + 2 * Q_BLOCK : t->x_next;
        w = b + 2 < n ? w + 2 * BLOCK_SIGNED : t->w_next;
        PRODUCT(0, 4, 6, x, w, k, c[0]);
        scale_block(mr, (const int32_t(*)[16])c[1], scales + BLOCK_BYTES, &d, &ds, sum);
        next_block(&d);
        next_block(&ds);
        scales += 2 * BLOCK_BYTES;
    }
    if (n % 2) {
        scale_block(mr, (const int32_t(*)[16])c[0], scales, &d, &ds, sum);
        PRODUCT(0, 4, 6, t->x_next, t->w_next, k, c[0]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < mr; r++) {
        uint32_t row = t->row + (uint32_t)r;
        if (row < t->from)
            continue;
        if (t->last)
            linear_finish_half(a, row, t->col, sum[r]);
        else
            _mm512_store_ps(t->sum[r] + t->col, sum[r]);
    }
}

#define MICRO_CASE(rows)                                                                           \
    case rows:                                                                                     \
        micro(rows, a, t, n, c, f);                                                                \
        break;
/* mr: 11 (of 33 rows in three tiles) is the least that LEAST_ROWS and more come to. */
static void micro_rows(uint32_t mr, const struct linear_args *a, const struct micro_tile *t,
                       size_t n, int32_t (*c)[TILE_ROWS][16], struct fetch *f)
{
    switch (mr) {
        MICRO_CASE(11)
        MICRO_CASE(12)
        MICRO_CASE(13)
        MICRO_CASE(14)
        MICRO_CASE(15)
        MICRO_CASE(16)
    }
}

/* At most MOST_ROWS rows. */
static void linear_pass(const struct linear_args *a)
{
    _Alignas(64) int8_t w[CHUNK_BLOCKS * BLOCK_SIGNED];
    _Alignas(64) float sum[MOST_ROWS][PANEL];
    _Alignas(64) int32_t c[2][TILE_ROWS][16];
    const size_t k = a->k, blocks = k / Q_BLOCK;
    struct tile_rows t = tile_rows(a->m);
    struct fetch f = fetch_begin(a, blocks * BLOCK_BYTES, (uint32_t)blocks, 2 * t.tiles);
    const char *end = (const char *)a->w + 2 * blocks * BLOCK_BYTES;
    tiles_shape(TILES_HALF, t.rows);
    for (size_t b = 0, n; b < blocks; b += n) {
        const uint8_t *from = a->w + b * BLOCK_BYTES;
        n = blocks - b < CHUNK_BLOCKS ? blocks - b : CHUNK_BLOCKS;
        expand(from, w);
        if (n > 1)
            expand(from + BLOCK_BYTES, w + BLOCK_SIGNED);
        const int8_t *x = a->a.q + b * Q_BLOCK;
        PRODUCT(0, 4, 6, x, w, k, c[0]);
        for (uint32_t i = 0; i < 2 * t.tiles; i++) {
            size_t row = tile_start(t, i / 2, a->m), col = i % 2 * 16, right = !col * TILE_BYTES;
            size_t next = i + 1 < 2 * t.tiles ? tile_start(t, (i + 1) / 2, a->m) : row;
            struct micro_tile tile = {.x = x + row * k,
                                      .d = a->a.d + row * blocks + b,
                                      .ds = a->a.ds + row * blocks + b,
                                      .w = w + 4 * col,
                                      .packed = i ? NULL : from,
                                      .scales = from + SCALES_AT + 2 * col,
                                      .x_next = x + next * k,
                                      .w_next = w + right,
                                      .sum = sum + row,
                                      .first = b == 0,
                                      .last = b + n == blocks,
                                      .row = (uint32_t)row,
                                      .from = i / 2 * t.rows,
                                      .col = col};
            if (f.at >= end)
                f.lines = 0;
            micro_rows(t.rows, a, &tile, n, c, &f);
        }
    }
}

/* A call of more rows in passes; `few` for what AVX-512 does better. */
INLINE void linear_passes(const struct linear_args *all, linear_fn few)
{
    struct linear_args a = *all;
    const size_t k = a.k, blocks = k / Q_BLOCK;
    for (uint32_t row = 0; row < all->m; row += a.m) {
        a.m = all->m - row < MOST_ROWS ? all->m - row : MOST_ROWS;
        a.a.q = all->a.q + row * k;
        a.a.d = all->a.d + row * blocks;
        a.a.s = all->a.s + row * blocks;
        a.a.ds = all->a.ds + row * blocks;
        a.c = all->c + row * all->ldc;
        if (a.m < LEAST_ROWS)
            few(&a);
        else
            linear_pass(&a);
    }
}

#endif
