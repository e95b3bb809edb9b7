/* matrix: the numbers of a matrix as a model file has them. */
#ifndef BATON_KERNELS_MATRIX_H
#define BATON_KERNELS_MATRIX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/backend.h"

#define Q_BLOCK 32 /* numbers along K that share scales */

/* The numbers of matrix_view.type (GGUF's). */
enum matrix_type {
    MATRIX_F32 = 0,
    MATRIX_F16 = 1,
    MATRIX_Q4_0 = 2,
    MATRIX_Q4_1 = 3,
    MATRIX_Q5_0 = 6,
    MATRIX_Q5_1 = 7,
    MATRIX_Q8_0 = 8,
    MATRIX_Q4_K = 12,
    MATRIX_Q5_K = 13,
    MATRIX_Q6_K = 14,
    MATRIX_BF16 = 30
};
bool matrix_quantised(uint32_t type);

/* 32 numbers of any quantised type: d[i / 16] q[i] + m, with q within -128..127. */
struct matrix_block {
    int q[Q_BLOCK];
    float d[2], m;
};
/* Without a minimum a zero keeps the sign of its scale. */
static inline float matrix_block_value(const struct matrix_block *b, int i)
{
    float x = b->d[i / (Q_BLOCK / 2)] * (float)b->q[i];
    return b->m != 0 ? x + b->m : x;
}
void matrix_block(const struct matrix_view *v, uint64_t row, uint64_t block,
                  struct matrix_block *b);

/* Bytes of a row of n numbers; 0 for an unknown type or an n that is no whole number of blocks. */
size_t matrix_row_bytes(uint32_t type, uint64_t n);
/* Numbers first .. first + n - 1 of a row, as the file defines them. For quantised types both are
 * multiples of 32. */
void matrix_decode(const struct matrix_view *v, uint64_t row, uint64_t first, uint64_t n,
                   float *out);

#endif
