/* tiles_amx: the tile registers of AMX, which the *_amx.c kernels share.
 *
 * A tile has up to 16 rows of 64 bytes; a product takes C[rows][16] += A[rows][k] B[k][16], with k
 * in groups that fill 32 bits: pairs of bf16, quads of int8. B is what memory holds for the AVX-512
 * kernels: a row of 64 bytes is 16 columns x one group. A product takes as long for one row as for
 * 16 (16 cycles on Sapphire Rapids to Granite Rapids), and as long for half of k.
 *
 * Shapes are set for a thread and stay until it needs others: setting them takes 50 ns. */
#ifndef BATON_KERNELS_TILES_AMX_H
#define BATON_KERNELS_TILES_AMX_H

#include <stddef.h>
#include <stdint.h>

#define TILE_ROWS  16 /* most rows of A and C */
#define TILE_BYTES 64 /* of a row of C and B, most of A */

/* Tiles 0..3 are C [rows][16] in every layout; the others:
 *
 *              4             5             6           7
 *   FULL       A 64 bytes    A 64 bytes    B 16 rows   B 16 rows
 *   HALF       A 32 bytes    A 32 bytes    B 8 rows    B 8 rows
 *   BOTH       A 64 bytes    A 32 bytes    B 16 rows   B 8 rows
 */
enum tiles_layout { TILES_NONE, TILES_FULL, TILES_HALF, TILES_BOTH };

/* What this thread has set: layout << 8 | rows. */
extern _Thread_local uint32_t tiles_now;
void tiles_set(enum tiles_layout layout, uint32_t rows);

/* rows: of A and C, 1..16. */
static inline void tiles_shape(enum tiles_layout layout, uint32_t rows)
{
    if (tiles_now != ((uint32_t)layout << 8 | rows))
        tiles_set(layout, rows);
}

/* Instructions, with tiles as literals. The compilers' own intrinsics do not say that a load reads
 * memory, which lets stores wander behind it. */
#define TILE_LOAD(t, from, stride)                                                                 \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t                                               \
                     :                                                                             \
                     : "r"((const void *)(from)), "r"((size_t)(stride))                            \
                     : "memory")
#define TILE_STORE(t, to, stride)                                                                  \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)"                                           \
                     :                                                                             \
                     : "r"((void *)(to)), "r"((size_t)(stride))                                    \
                     : "memory")
#define TILE_ZERO(t)         __asm__ volatile("tilezero %%tmm" #t ::)
#define TILE_BF16(c, a, b)   __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)
#define TILE_SIGNED(c, a, b) __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)

/* Rows 0..m - 1 in equal tiles, so that one shape does for all: the last one reaches back over rows
 * that the one before it has done, and leaves those alone. */
struct tile_rows {
    uint32_t tiles, rows; /* of each */
};
static inline struct tile_rows tile_rows(uint32_t m)
{
    uint32_t tiles = (m + TILE_ROWS - 1) / TILE_ROWS;
    return (struct tile_rows){tiles, (m + tiles - 1) / tiles};
}
/* First row that tile i computes; it keeps those from i * rows on. */
static inline uint32_t tile_start(struct tile_rows t, uint32_t i, uint32_t m)
{
    return i * t.rows < m - t.rows ? i * t.rows : m - t.rows;
}

#endif
