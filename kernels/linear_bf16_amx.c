/* linear_bf16: bf16 weights x bf16 activations on TDPBF16PS. Weights: [k/2][32][2] per panel.
 *
 * 32 rows x 32 columns are four tiles of C; 32 k are two tiles of A and two of B, four loads for
 * four products, which L1 can just give and L2 cannot. So many rows walk K in chunks whose weights
 * stay in L1 while all of them pass, and C waits in memory between chunks. Every output is one sum
 * per 32 k, of even and odd k apart, added to one chain: an order of AMX's own, so that rows of
 * every number go this way, single ones too. */
#include "kernels/linear_avx512.h"
#include "kernels/tiles_amx.h"

#define K_STEP      32
#define CHUNK_STEPS 9   /* of K_STEP: 18 KB of weights */
#define MOST_ROWS   128 /* of a pass */

typedef float c_tiles[2][TILE_ROWS][16]; /* both halves of a panel's columns */

/* Steps of K for one or two tiles of rows; x: their activations, c: their sums so far. */
INLINE void micro(const bool two, const uint16_t *const *x, size_t stride, const uint8_t *w,
                  uint32_t steps, bool first, c_tiles *c, struct fetch *f)
{
    const uint16_t *x0 = x[0], *x1 = x[1];
    if (first) {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
    } else {
        TILE_LOAD(0, c[0][0], TILE_BYTES);
        TILE_LOAD(1, c[0][1], TILE_BYTES);
        if (two) {
            TILE_LOAD(2, c[1][0], TILE_BYTES);
            TILE_LOAD(3, c[1][1], TILE_BYTES);
        }
    }
    for (uint32_t i = 0; i < steps; i++) {
        fetch_step(f);
        TILE_LOAD(4, x0, stride);
        TILE_LOAD(6, w, 4 * PANEL);
        TILE_BF16(0, 4, 6);
        TILE_LOAD(7, w + TILE_BYTES, 4 * PANEL);
        TILE_BF16(1, 4, 7);
        if (two) {
            TILE_LOAD(5, x1, stride);
            TILE_BF16(2, 5, 6);
            TILE_BF16(3, 5, 7);
        }
        x0 += K_STEP;
        x1 += K_STEP;
        w += 2 * PANEL * K_STEP;
    }
    TILE_STORE(0, c[0][0], TILE_BYTES);
    TILE_STORE(1, c[0][1], TILE_BYTES);
    if (two) {
        TILE_STORE(2, c[1][0], TILE_BYTES);
        TILE_STORE(3, c[1][1], TILE_BYTES);
    }
}

/* At most MOST_ROWS rows. */
static void linear_pass(const struct linear_args *a)
{
    _Alignas(64) c_tiles c[MOST_ROWS / TILE_ROWS];
    const uint32_t steps = a->k / K_STEP;
    const size_t step_bytes = 2 * PANEL * K_STEP, panel = steps * step_bytes;
    struct tile_rows t = tile_rows(a->m);
    uint32_t pairs = (t.tiles + 1) / 2, chunk = pairs > 1 ? CHUNK_STEPS : steps;
    struct fetch f = fetch_begin(a, panel, steps, pairs);
    const char *end = (const char *)a->w + 2 * panel;
    tiles_shape(TILES_FULL, t.rows);
    for (uint32_t at = 0, n; at < steps; at += n) {
        uint32_t chunks = (steps - at + chunk - 1) / chunk;
        n = (steps - at + chunks - 1) / chunks;
        const uint8_t *w = a->w + at * step_bytes;
        for (uint32_t i = 0; i < t.tiles; i += 2) {
            const uint16_t *from = a->a.h + at * K_STEP;
            const uint16_t *x[2] = {from + (size_t)tile_start(t, i, a->m) * a->k,
                                    from + (size_t)tile_start(t, i + 1, a->m) * a->k};
            if (f.at >= end)
                f.lines = 0;
            if (i + 1 < t.tiles)
                micro(true, x, 2 * (size_t)a->k, w, n, at == 0, c + i, &f);
            else
                micro(false, x, 2 * (size_t)a->k, w, n, at == 0, c + i, &f);
        }
    }
    for (uint32_t i = 0; i < t.tiles; i++) {
        uint32_t row = tile_start(t, i, a->m);
        for (uint32_t r = i * t.rows - row; r < t.rows; r++)
            linear_finish(a, row + r, _mm512_load_ps(c[i][0][r]), _mm512_load_ps(c[i][1][r]));
    }
}

void linear_bf16_amx(const struct linear_args *all)
{
    if (all->k % K_STEP) {
        linear_bf16_avx512(all);
        return;
    }
    struct linear_args a = *all;
    for (uint32_t row = 0; row < all->m; row += a.m) {
        a.m = all->m - row < MOST_ROWS ? all->m - row : MOST_ROWS;
        a.a.h = all->a.h + (size_t)row * a.k;
        a.c = all->c + row * all->ldc;
        linear_pass(&a);
    }
}
