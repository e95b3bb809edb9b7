/* matrix: quantised blocks of model files; see matrix.h. What ggml calls them, bytes in a file:
 *
 *   Q4_0  32: fp16 d, nibbles: d (q - 8)          Q4_1  32: fp16 d, m, nibbles: d q + m
 *   Q5_0  32: fp16 d, 32 high bits, nibbles: d (q - 16)
 *   Q5_1  32: fp16 d, m, 32 high bits, nibbles: d q + m
 *   Q8_0  32: fp16 d, 32 signed bytes: d q
 *   Q4_K 256: fp16 d, dmin, 8 x (6-bit scale, 6-bit minimum), nibbles: d scale q - dmin minimum
 *   Q5_K 256: the same with 256 high bits before the nibbles
 *   Q6_K 256: nibbles, 2-bit highs, 16 signed scales of 16 numbers each, fp16 d: d scale (q - 32)
 *
 * Byte j of 16 nibble bytes holds numbers j (low) and j + 16; in K-quants byte j of 32 holds j of
 * one 32 and j of another. All little-endian, nothing aligned. */
#include "kernels/matrix.h"

#include <string.h>

#include "common/base/assert.h"
#include "kernels/half.h"

#define K_BLOCK    256
#define Q4_K_BYTES 144
#define Q5_K_BYTES 176
#define Q6_K_BYTES 210

/* Numbers and bytes of a block of the file; 0 for an unknown type. */
struct layout {
    uint16_t elems, bytes;
};
static struct layout layout_of(uint32_t type)
{
    switch (type) {
    case MATRIX_F32:
        return (struct layout){1, 4};
    case MATRIX_F16:
    case MATRIX_BF16:
        return (struct layout){1, 2};
    case MATRIX_Q4_0:
        return (struct layout){Q_BLOCK, 18};
    case MATRIX_Q4_1:
        return (struct layout){Q_BLOCK, 20};
    case MATRIX_Q5_0:
        return (struct layout){Q_BLOCK, 22};
    case MATRIX_Q5_1:
        return (struct layout){Q_BLOCK, 24};
    case MATRIX_Q8_0:
        return (struct layout){Q_BLOCK, 34};
    case MATRIX_Q4_K:
        return (struct layout){K_BLOCK, Q4_K_BYTES};
    case MATRIX_Q5_K:
        return (struct layout){K_BLOCK, Q5_K_BYTES};
    case MATRIX_Q6_K:
        return (struct layout){K_BLOCK, Q6_K_BYTES};
    default:
        return (struct layout){0, 0};
    }
}

size_t matrix_row_bytes(uint32_t type, uint64_t n)
{
    struct layout l = layout_of(type);
    return l.elems == 0 || n % l.elems ? 0 : (size_t)(n / l.elems * l.bytes);
}

bool matrix_quantised(uint32_t type)
{
    return layout_of(type).elems > 1;
}

static uint16_t load16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}
static float load_half(const uint8_t *p)
{
    return f16_to_f32(load16(p));
}

/* 16 bytes of nibbles, and the bits above them (NULL: none). */
static void read_nibbles(const uint8_t *p, const uint8_t *high, int offset, int *q)
{
    for (int i = 0; i < Q_BLOCK / 2; i++) {
        q[i] = (p[i] & 15) - offset;
        q[i + Q_BLOCK / 2] = (p[i] >> 4) - offset;
    }
    for (int i = 0; high && i < Q_BLOCK; i++)
        q[i] += (high[i / 8] >> i % 8 & 1) << 4;
}

/* Sub-block j of the 12 bytes that hold 8 scales and 8 minima of 6 bits. */
static void k_scale(const uint8_t *p, int j, int *scale, int *min)
{
    if (j < 4) {
        *scale = p[j] & 63;
        *min = p[j + 4] & 63;
    } else {
        *scale = (p[j + 4] & 15) | p[j - 4] >> 6 << 4;
        *min = p[j + 4] >> 4 | p[j] >> 6 << 4;
    }
}

/* Sub-block j (32 numbers) of Q4_K or Q5_K. */
static void read_k(const uint8_t *p, int j, bool five, struct matrix_block *b)
{
    int scale, min;
    k_scale(p + 4, j, &scale, &min);
    b->d[0] = b->d[1] = load_half(p) * (float)scale;
    b->m = -(load_half(p + 2) * (float)min);
    const uint8_t *high = p + 16, *low = p + (five ? 48 : 16) + j / 2 * 32;
    for (int i = 0; i < Q_BLOCK; i++) {
        b->q[i] = j % 2 ? low[i] >> 4 : low[i] & 15;
        if (five)
            b->q[i] += (high[i] >> j & 1) << 4;
    }
}

static void read_q6_k(const uint8_t *p, int j, struct matrix_block *b)
{
    int half = j / 4, quarter = j % 4;
    const uint8_t *low = p + 64 * half + 32 * (quarter % 2), *high = p + 128 + 32 * half;
    const uint8_t *scales = p + 192 + 8 * half + 2 * quarter;
    float d = load_half(p + 208);
    b->d[0] = d * (float)(int8_t)scales[0];
    b->d[1] = d * (float)(int8_t)scales[1];
    b->m = 0;
    for (int i = 0; i < Q_BLOCK; i++)
        b->q[i] =
            ((quarter < 2 ? low[i] & 15 : low[i] >> 4) | (high[i] >> 2 * quarter & 3) << 4) - 32;
}

void matrix_block(const struct matrix_view *v, uint64_t row, uint64_t block, struct matrix_block *b)
{
    struct layout l = layout_of(v->type);
    unsigned per = l.elems / Q_BLOCK;
    const uint8_t *p =
        (const uint8_t *)v->data + row * matrix_row_bytes(v->type, v->cols) + block / per * l.bytes;
    int j = (int)(block % per);
    if (v->type == MATRIX_Q4_K || v->type == MATRIX_Q5_K) {
        read_k(p, j, v->type == MATRIX_Q5_K, b);
        return;
    }
    if (v->type == MATRIX_Q6_K) {
        read_q6_k(p, j, b);
        return;
    }
    b->d[0] = b->d[1] = load_half(p);
    b->m = 0;
    switch (v->type) {
    case MATRIX_Q4_0:
        read_nibbles(p + 2, NULL, 8, b->q);
        return;
    case MATRIX_Q4_1:
        b->m = load_half(p + 2);
        read_nibbles(p + 4, NULL, 0, b->q);
        return;
    case MATRIX_Q5_0:
        read_nibbles(p + 6, p + 2, 16, b->q);
        return;
    case MATRIX_Q5_1:
        b->m = load_half(p + 2);
        read_nibbles(p + 8, p + 4, 0, b->q);
        return;
    default:
        ASSERT_MSG(v->type == MATRIX_Q8_0, "type %u", v->type);
        for (int i = 0; i < Q_BLOCK; i++)
            b->q[i] = (int8_t)p[2 + i];
    }
}

void matrix_decode(const struct matrix_view *v, uint64_t row, uint64_t first, uint64_t n,
                   float *out)
{
    const uint8_t *p = (const uint8_t *)v->data + row * matrix_row_bytes(v->type, v->cols);
    switch (v->type) {
    case MATRIX_F32:
        memcpy(out, p + first * 4, n * 4);
        return;
    case MATRIX_F16:
        for (uint64_t i = 0; i < n; i++)
            out[i] = f16_to_f32(load16(p + 2 * (first + i)));
        return;
    case MATRIX_BF16:
        for (uint64_t i = 0; i < n; i++)
            out[i] = bf16_to_f32(load16(p + 2 * (first + i)));
        return;
    default:
        ASSERT(first % Q_BLOCK == 0 && n % Q_BLOCK == 0);
        for (uint64_t i = 0; i < n; i += Q_BLOCK, out += Q_BLOCK) {
            struct matrix_block b;
            matrix_block(v, row, (first + i) / Q_BLOCK, &b);
            for (int j = 0; j < Q_BLOCK; j++)
                out[j] = matrix_block_value(&b, j);
        }
    }
}
