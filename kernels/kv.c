/* kv: single tokens in and out of the cell layouts of kv.h, in plain C. */
#include "kernels/cpu.h"

#include <math.h>

#include "kernels/half.h"

void kv_append_bf16_c(void *sub, size_t head_dim, size_t slot, const float *k, const float *v,
                      bool zero_partner)
{
    uint16_t *cell = sub;
    uint16_t *kp = cell + kv_k_index(slot, 0);
    for (size_t d = 0; d < head_dim; d += 2, kp += 2 * KV_SUB) {
        kp[0] = bf16_from_f32(k[d]);
        kp[1] = bf16_from_f32(k[d + 1]);
    }
    uint16_t *vp = cell + kv_v_index(head_dim, slot, 0);
    for (size_t d = 0; d < head_dim; d++)
        vp[2 * d] = bf16_from_f32(v[d]);
    if (zero_partner)
        for (size_t d = 0; d < head_dim; d++)
            vp[2 * d + 1] = 0;
}

void kv_append_f32_c(void *sub, size_t head_dim, size_t slot, const float *k, const float *v,
                     bool zero_partner)
{
    float *cell = sub;
    (void)zero_partner; /* nobody reads in pairs */
    for (size_t d = 0; d < head_dim; d++) {
        cell[kv_k_index(slot, d)] = k[d];
        cell[kv_v_index(head_dim, slot, d)] = v[d];
    }
}

/* The scale that takes the largest magnitude to 127; numbers that are no numbers become 0. */
static float scale_of(const float *x, size_t n, float *inverse)
{
    float max = 0;
    for (size_t i = 0; i < n; i++)
        max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
    bool usable = max > 1e-30f && max < 1e30f;
    *inverse = usable ? 127 / max : 0;
    return usable ? max * (1.0f / 127) : 0;
}

static int8_t to_int8(float x)
{
    long v = x == x ? lrintf(x) : 0;
    return (int8_t)(v < -127 ? -127 : v > 127 ? 127 : v);
}

void kv_append_int8_c(void *sub, size_t head_dim, size_t slot, const float *k, const float *v,
                      bool zero_partner)
{
    int8_t *cell = sub;
    float *scales = kv_scales(sub, head_dim), inverse_k, inverse_v;
    scales[slot] = scale_of(k, head_dim, &inverse_k);
    scales[KV_SUB + slot] = scale_of(v, head_dim, &inverse_v);
    for (size_t d = 0; d < head_dim; d++) {
        cell[kv_k_index(slot, d)] = to_int8(k[d] * inverse_k);
        cell[kv_v_index(head_dim, slot, d)] = to_int8(v[d] * inverse_v);
    }
    if (zero_partner)
        scales[KV_SUB + slot + 1] = 0;
}

/* Each number times its scale, rounded to bf16. */
void kv_expand_c(const uint8_t *sub, size_t head_dim, uint16_t *out)
{
    const int8_t *cell = (const int8_t *)sub;
    const float *scales = (const float *)(const void *)(sub + 2 * KV_SUB * head_dim);
    for (size_t i = 0; i < KV_SUB * head_dim; i++)
        out[i] = bf16_from_f32((float)cell[i] * scales[i / 2 % KV_SUB]);
    for (size_t i = 0; i < KV_SUB * head_dim; i++) {
        size_t at = KV_SUB * head_dim + i, token = i / (2 * head_dim) * 2 + i % 2;
        out[at] = bf16_from_f32((float)cell[at] * scales[KV_SUB + token]);
    }
}

static float read_at(enum kv_format f, const void *sub, size_t head_dim, size_t at, size_t scale)
{
    if (f == KV_F32)
        return ((const float *)sub)[at];
    if (f == KV_BF16)
        return bf16_to_f32(((const uint16_t *)sub)[at]);
    const float *scales =
        (const float *)(const void *)((const uint8_t *)sub + 2 * KV_SUB * head_dim);
    return (float)((const int8_t *)sub)[at] * scales[scale];
}

float kv_read_k(enum kv_format f, const void *sub, size_t head_dim, size_t slot, size_t dim)
{
    return read_at(f, sub, head_dim, kv_k_index(slot, dim), slot);
}

float kv_read_v(enum kv_format f, const void *sub, size_t head_dim, size_t slot, size_t dim)
{
    return read_at(f, sub, head_dim, kv_v_index(head_dim, slot, dim), KV_SUB + slot);
}

static void clear_slot(enum kv_format f, uint8_t *sub, size_t head_dim, size_t slot)
{
    for (size_t d = 0; d < head_dim; d++) {
        size_t k = kv_k_index(slot, d), v = kv_v_index(head_dim, slot, d);
        if (f == KV_F32)
            ((float *)(void *)sub)[k] = ((float *)(void *)sub)[v] = 0;
        else if (f == KV_BF16)
            ((uint16_t *)(void *)sub)[k] = ((uint16_t *)(void *)sub)[v] = 0;
        else
            sub[k] = sub[v] = 0;
    }
    if (f == KV_INT8) {
        float *scales = kv_scales(sub, head_dim);
        scales[slot] = scales[KV_SUB + slot] = 0;
    }
}

void kv_clear_tail(enum kv_format f, void *cell, size_t head_dim, size_t tokens, size_t used)
{
    for (size_t slot = used; slot < tokens; slot++)
        clear_slot(f, (uint8_t *)cell + slot / KV_SUB * kv_sub_bytes(f, head_dim), head_dim,
                   slot % KV_SUB);
}
