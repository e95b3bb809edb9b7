/* tensor: sizes of the tensor types, and rows as float32; see tensor.h.
 *
 * Block formats (all little-endian, d and m are float16):
 *   Q4_0  18 bytes: d, 16 bytes of nibbles; x[i] = d (q - 8). Byte j holds element j in its low
 *         and element j + 16 in its high nibble.
 *   Q4_1  20 bytes: d, m, 16 bytes of nibbles in the same order; x[i] = d q + m.
 *   Q8_0  34 bytes: d, 32 signed bytes; x[i] = d q.
 * Data in a file need not be aligned to its type (a quantised block never is), so every read goes
 * through memcpy. */
#include "common/model/tensor.h"

#include <string.h>

#include "common/base/assert.h"

static const struct tensor_layout layouts[] = {
    [0] = {"F32", 1, 4},         [1] = {"F16", 1, 2},         [2] = {"Q4_0", 32, 18},
    [3] = {"Q4_1", 32, 20},      [6] = {"Q5_0", 32, 22},      [7] = {"Q5_1", 32, 24},
    [8] = {"Q8_0", 32, 34},      [9] = {"Q8_1", 32, 36},      [10] = {"Q2_K", 256, 84},
    [11] = {"Q3_K", 256, 110},   [12] = {"Q4_K", 256, 144},   [13] = {"Q5_K", 256, 176},
    [14] = {"Q6_K", 256, 210},   [15] = {"Q8_K", 256, 292},   [16] = {"IQ2_XXS", 256, 66},
    [17] = {"IQ2_XS", 256, 74},  [18] = {"IQ3_XXS", 256, 98}, [19] = {"IQ1_S", 256, 50},
    [20] = {"IQ4_NL", 32, 18},   [21] = {"IQ3_S", 256, 110},  [22] = {"IQ2_S", 256, 82},
    [23] = {"IQ4_XS", 256, 136}, [24] = {"I8", 1, 1},         [25] = {"I16", 1, 2},
    [26] = {"I32", 1, 4},        [27] = {"I64", 1, 8},        [28] = {"F64", 1, 8},
    [29] = {"IQ1_M", 256, 56},   [30] = {"BF16", 1, 2},       [34] = {"TQ1_0", 256, 54},
    [35] = {"TQ2_0", 256, 66},   [39] = {"MXFP4", 32, 17},
};

const struct tensor_layout *tensor_any_layout(uint32_t type)
{
    if (type >= sizeof layouts / sizeof *layouts || !layouts[type].name)
        return NULL;
    return &layouts[type];
}

const struct tensor_layout *tensor_type_layout(uint32_t type)
{
    switch (type) {
    case TENSOR_F32:
    case TENSOR_F16:
    case TENSOR_BF16:
    case TENSOR_Q8_0:
    case TENSOR_Q4_0:
    case TENSOR_Q4_1:
    case TENSOR_Q5_0:
    case TENSOR_Q5_1:
    case TENSOR_Q4_K:
    case TENSOR_Q5_K:
    case TENSOR_Q6_K:
        return &layouts[type];
    default:
        return NULL;
    }
}

bool tensor_size(const struct tensor_layout *layout, uint64_t rows, uint64_t cols, uint64_t *bytes)
{
    uint64_t row_bytes;
    if (cols % layout->block_elems)
        return false;
    return !__builtin_mul_overflow(cols / layout->block_elems, (uint64_t)layout->block_bytes,
                                   &row_bytes) &&
           !__builtin_mul_overflow(row_bytes, rows, bytes);
}

static float bits_to_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static float half_to_float(const uint8_t *p)
{
    uint32_t h = (uint32_t)p[0] | (uint32_t)p[1] << 8;
    uint32_t sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31, fraction = h & 0x3ffu;
    if (exponent == 0) /* zero and subnormals: fraction * 2^-24 is exact in float32 */
        return bits_to_float(sign | 0x3f800000u) * ((float)fraction * 0x1p-24f);
    if (exponent == 31)
        return bits_to_float(sign | 0x7f800000u | fraction << 13);
    return bits_to_float(sign | (exponent + 112) << 23 | fraction << 13);
}

static void nibbles(const uint8_t *q, float d, float m, float *out)
{
    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)(q[i] & 15) + m;
        out[i + 16] = d * (float)(q[i] >> 4) + m;
    }
}

void tensor_row_f32(const struct tensor *t, uint64_t row, float *out)
{
    const struct tensor_layout *layout = tensor_type_layout(t->type);
    ASSERT(layout && row < t->rows);
    uint64_t n = t->cols / layout->block_elems;
    const uint8_t *p = (const uint8_t *)t->data + row * n * layout->block_bytes;
    if (t->type == TENSOR_F32) {
        memcpy(out, p, n * sizeof *out);
        return;
    }
    for (uint64_t i = 0; i < n; i++, p += layout->block_bytes, out += layout->block_elems)
        switch (t->type) {
        case TENSOR_F16:
            *out = half_to_float(p);
            break;
        case TENSOR_BF16:
            *out = bits_to_float((uint32_t)p[0] << 16 | (uint32_t)p[1] << 24);
            break;
        case TENSOR_Q4_0: {
            float d = half_to_float(p);
            nibbles(p + 2, d, -8 * d, out);
            break;
        }
        case TENSOR_Q4_1:
            nibbles(p + 4, half_to_float(p), half_to_float(p + 2), out);
            break;
        case TENSOR_Q8_0: {
            float d = half_to_float(p);
            for (int j = 0; j < 32; j++)
                out[j] = d * (float)(int8_t)p[2 + j];
            break;
        }
        default:
            ASSERT(0);
        }
}
