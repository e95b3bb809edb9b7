/* kv: the order of numbers inside a KV cell, shared by every CPU implementation.
 *
 * A cell holds the keys and values of one (block, kv head): kv_block_size / 16 consecutive
 * sub-blocks of 16 tokens. A sub-block of KV_BF16:
 *
 *   OFFSET              SIZE             WHAT
 *   0                   32 * head_dim    K [head_dim / 2][16 tokens][2 dims], bf16
 *   32 * head_dim       32 * head_dim    V [8 token pairs][head_dim][2 tokens], bf16
 *
 * and of KV_INT8, where a number is an integer -127..127 times its token's scale:
 *
 *   0                   16 * head_dim    K, in the same order, int8
 *   16 * head_dim       16 * head_dim    V, likewise
 *   32 * head_dim       64               float scale of K [16 tokens]
 *   32 * head_dim + 64  64               float scale of V [16 tokens]
 *
 * KV_F32 has the order of KV_BF16 in floats.
 *
 * So one vector of K is 16 tokens x 2 dims (scores of 16 tokens accumulate in one register) and one
 * of V is 16 dims x 2 tokens; both are the pair layout that bf16 dot products take, and prefill and
 * decode read the same bytes.
 *
 * Values are read in pairs of tokens: whoever appends a token at an even slot zeroes its odd
 * partner (or that one's scale), so that a stale NaN there cannot leak through 0 * NaN. Stale keys
 * are harmless: their scores are replaced. */
#ifndef BATON_KERNELS_KV_H
#define BATON_KERNELS_KV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/backend.h"

#define KV_SUB 16 /* tokens of a sub-block */

static inline size_t kv_sub_bytes(enum kv_format f, size_t head_dim)
{
    size_t numbers = 2 * KV_SUB * head_dim;
    return f == KV_BF16   ? 2 * numbers
           : f == KV_INT8 ? numbers + 2 * KV_SUB * sizeof(float)
                          : 4 * numbers;
}
/* Indices in numbers from the start of the sub-block. */
static inline size_t kv_k_index(size_t slot, size_t dim)
{
    return dim / 2 * 2 * KV_SUB + slot * 2 + dim % 2;
}
static inline size_t kv_v_index(size_t head_dim, size_t slot, size_t dim)
{
    return KV_SUB * head_dim + (slot / 2) * 2 * head_dim + dim * 2 + slot % 2;
}
/* KV_INT8: scales of K [16], then of V [16]. */
static inline float *kv_scales(void *sub, size_t head_dim)
{
    return (float *)(void *)((uint8_t *)sub + 2 * KV_SUB * head_dim);
}

/* Writes one token's k and v [head_dim] into slot 0..15 of a sub-block. zero_partner: an even slot
 * whose neighbour is not written in this step. */
typedef void (*kv_append_fn)(void *sub, size_t head_dim, size_t slot, const float *k,
                             const float *v, bool zero_partner);
void kv_append_bf16_c(void *sub, size_t head_dim, size_t slot, const float *k, const float *v,
                      bool zero_partner);
void kv_append_f32_c(void *sub, size_t head_dim, size_t slot, const float *k, const float *v,
                     bool zero_partner);
void kv_append_int8_c(void *sub, size_t head_dim, size_t slot, const float *k, const float *v,
                      bool zero_partner);

/* The number at slot and dim, for those who take their time. */
float kv_read_k(enum kv_format f, const void *sub, size_t head_dim, size_t slot, size_t dim);
float kv_read_v(enum kv_format f, const void *sub, size_t head_dim, size_t slot, size_t dim);
/* Zeroes the slots from `used` on of a cell of `tokens` slots. */
void kv_clear_tail(enum kv_format f, void *cell, size_t head_dim, size_t tokens, size_t used);

#endif
