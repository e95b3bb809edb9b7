/* tensor: sizes of the tensor types, and rows as float32. */
#ifndef BATON_MODEL_TENSOR_H
#define BATON_MODEL_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/model/model.h"

/* Like tensor_type_layout, but also for the ggml types that Baton does not compute with, so that
 * a file can be checked and the type named. NULL for numbers that ggml does not define. */
const struct tensor_layout *tensor_any_layout(uint32_t type);

/* Bytes of rows x cols elements; false when cols is not a multiple of the block or the product
 * does not fit. */
bool tensor_size(const struct tensor_layout *layout, uint64_t rows, uint64_t cols, uint64_t *bytes);

/* Writes row `row` (cols values) of an F32, F16, BF16, Q4_0, Q4_1 or Q8_0 tensor as float32. Exact,
 * but for Q4_1, whose d q + m is rounded once. (Matrices of all types are decoded where they are
 * packed: kernels/matrix.h.) */
void tensor_row_f32(const struct tensor *t, uint64_t row, float *out);

#endif
