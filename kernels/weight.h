/* weight: a matrix packed into the layout that the CPU kernels stream.
 *
 * Panels of 32 output columns (rows of the model's matrix), each one contiguous stream over K:
 *
 *   FORMAT  PER K                        BYTES OF A PANEL
 *   F32     1: [32] float                128 K
 *   BF16    2: [32][2] bf16              64 K
 *   Q8      32: u8 q + 128 [8][32][4] (four K of a column side by side), fp16 d[32]
 *                                        34 K
 *   Q8K     32: u8 q + 128 as in Q8, fp16 d[2][32] (for 16 K each), fp16 m[32]
 *                                        38 K
 *   Q4      32: nibbles [4][32][4]: byte j of row i has k = 8 i + j in its low and 8 i + 4 + j in
 *           its high half; fp16 d[32], fp16 m[32]
 *                                        20 K
 *
 * Q8 is w = d (u - 128), Q4 is w = d q + m: the numbers of GGUF's Q8_0 and Q4_1, unchanged. Q8K is
 * w = d[k / 16] (u - 128) + m, which holds all other quantised types. The last panel is filled up
 * with zero columns. */
#ifndef BATON_KERNELS_WEIGHT_H
#define BATON_KERNELS_WEIGHT_H

#include "kernels/backend.h"
#include "kernels/matrix.h"
#include "kernels/threads.h"

#define PANEL 32 /* columns of a panel */

#define Q8_BLOCK_BYTES  (PANEL * Q_BLOCK + PANEL * 2)
#define Q8K_BLOCK_BYTES (PANEL * Q_BLOCK + PANEL * 6)
#define Q4_BLOCK_BYTES  (PANEL * Q_BLOCK / 2 + PANEL * 4)

struct weight_slab; /* memory that several weights share */

struct weight {
    enum weight_format format;
    uint32_t n, k; /* output columns (of all parts) and depth */
    uint32_t n_panels;
    bool interleave; /* panel 2 i is of gate, 2 i + 1 of up, columns 32 i .. 32 i + 31 of each */
    size_t panel_bytes;
    uint8_t *data; /* [n_panels][panel_bytes] */
    size_t bytes;
    /* OP_EMBED of a weight whose format rounds what the file says: the rows as they are there. */
    uint32_t rows_type;
    size_t row_bytes;
    uint8_t *rows; /* [n][row_bytes] or NULL */
    float *plain;  /* ref only: [n][k] */
    struct weight_slab *slab;
};

/* Where packed weights live: slabs of huge pages, freed when their last weight goes. */
struct weight_store {
    struct weight_slab *open; /* the slab that still has room */
};

/* See backend_weight_create. Logs what it refuses. */
int weight_check(const struct matrix_view *parts, size_t n_parts, enum weight_format *format,
                 bool interleave, bool embed);
int weight_create(struct weight_store *store, struct threads *pool, const struct matrix_view *parts,
                  size_t n_parts, enum weight_format format, bool interleave, bool embed,
                  struct weight **out) WARN_UNUSED;
void weight_destroy(struct weight_store *store, struct weight *w);
void weight_store_fini(struct weight_store *store);

/* Row `row` of the matrix as floats [k]: the numbers of the file; of K-quants, with their scales
 * rounded to fp16. */
void weight_embed(const struct weight *w, uint32_t row, float *out);

#endif
