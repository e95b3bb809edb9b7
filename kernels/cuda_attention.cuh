/* cuda_attention: what rope_append and both attention kernels share: heads (norm, RoPE), addresses
 * in the pool, masks, and the merge of two partial softmaxes. Each is written once, with explicit
 * rounding, so that fused and separate kernels give equal bits. */
#ifndef BATON_KERNELS_CUDA_ATTENTION_CUH
#define BATON_KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda_device.cuh"

#define LOG2E    1.44269504088896340736f
#define SCORE_NO (-INFINITY) /* of a key that must not be seen */

/* What a head needs; part of every attention kernel's arguments. */
struct head_args {
    uint32_t head_dim;
    float eps;
    bool neox;
    const float *rope; /* [context][head_dim] */
};

/* Sub-block (16 tokens) that holds `position` of a sequence's kv head. */
DEVICE uint8_t *kv_sub(const struct gpu_model &m, uint32_t layer, const uint32_t *table,
                       uint32_t head, uint32_t position)
{
    uint32_t hp = gpu_pad_head(m.head_dim), block = table[position / m.kv_block_size];
    return m.kv +
           (((size_t)layer * m.n_blocks + block) * m.n_kv_heads + head) *
               gpu_kv_cell_bytes(m.kv_block_size, m.head_dim) +
           (size_t)(position % m.kv_block_size / GPU_KV_SUB) * (2 * GPU_KV_SUB * 2) * hp;
}

/* One head by one warp: RMS norm (when gain is given), RoPE, scale; to bf16 at out[0..HD), with
 * zeroes from head_dim on. Lane l has the pairs l, l + 32, ... */
template <int HD>
DEVICE void head_prepare(const struct head_args &h, const float *x, const float *bias,
                         const float *gain, uint32_t position, float scale, uint16_t *out)
{
    constexpr int PAIRS = (HD / 2 + 31) / 32;
    uint32_t half = h.head_dim / 2, lane = lane_id();
    float lo[PAIRS], hi[PAIRS], sum = 0;
    const float *rope = h.rope + (size_t)position * h.head_dim;
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
        uint32_t i = lane + 32 * j, p = h.neox ? i : 2 * i, q = h.neox ? half + i : 2 * i + 1;
        lo[j] = hi[j] = 0;
        if (i < half) {
            lo[j] = bias ? __fadd_rn(x[p], bias[p]) : x[p];
            hi[j] = bias ? __fadd_rn(x[q], bias[q]) : x[q];
        }
        sum = __fadd_rn(sum, __fadd_rn(__fmul_rn(lo[j], lo[j]), __fmul_rn(hi[j], hi[j])));
    }
    float rs = 1;
    if (gain) {
        sum = sum_lanes<32>(sum);
        rs = __fdiv_rn(1.0f, sqrtf(__fadd_rn(__fdiv_rn(sum, (float)h.head_dim), h.eps)));
    }
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
        uint32_t i = lane + 32 * j, p = h.neox ? i : 2 * i, q = h.neox ? half + i : 2 * i + 1;
        if (i < half) {
            float a = lo[j], b = hi[j], c = rope[i], s = rope[half + i];
            if (gain) {
                a = __fmul_rn(__fmul_rn(a, rs), gain[p]);
                b = __fmul_rn(__fmul_rn(b, rs), gain[q]);
            }
            out[p] = to_bf16(__fmul_rn(scale, __fsub_rn(__fmul_rn(a, c), __fmul_rn(b, s))));
            out[q] = to_bf16(__fmul_rn(scale, __fadd_rn(__fmul_rn(b, c), __fmul_rn(a, s))));
        }
    }
    for (uint32_t i = h.head_dim + lane; i < (uint32_t)HD; i += 32)
        out[i] = 0;
}

/* k (after head_prepare would be in place: written here) and v of a row into the pool, by one warp.
 */
template <int HD>
DEVICE void append_v(const struct head_args &h, uint8_t *sub, uint32_t position, const float *v,
                     const float *bias)
{
    uint16_t *to = (uint16_t *)sub;
    for (uint32_t d = lane_id(); d < h.head_dim; d += 32)
        to[gpu_kv_v_index(HD, position % GPU_KV_SUB, d)] =
            to_bf16(bias ? __fadd_rn(v[d], bias[d]) : v[d]);
}

/* V of two neighbouring tokens, of which the first is at `position`, seen by a sequence of `len`
 * tokens: what lies beyond is anything, also NaN, and must not meet a weight of zero. */
DEVICE uint32_t mask_pair(uint32_t pair, uint32_t position, uint32_t len)
{
    return position + 1 < len ? pair : position < len ? pair & 0xffffu : 0;
}
DEVICE uint4 mask_pairs(uint4 v, uint32_t position, uint32_t len)
{
    return make_uint4(mask_pair(v.x, position, len), mask_pair(v.y, position, len),
                      mask_pair(v.z, position, len), mask_pair(v.w, position, len));
}

/* A partial softmax: maximum (base 2), sum, and one number of the weighted values. `m` of an empty
 * one is SCORE_NO. Folding the parts in order is the only way they are ever merged. */
struct partial {
    float m, l, o;
};
DEVICE struct partial fold(struct partial a, struct partial b)
{
    float m = fmaxf(a.m, b.m), x = ex2(__fsub_rn(a.m, m)), y = ex2(__fsub_rn(b.m, m));
    return {m, __fmaf_rn(a.l, x, __fmul_rn(b.l, y)), __fmaf_rn(a.o, x, __fmul_rn(b.o, y))};
}

/* Finds the index of the entry that work item `item` belongs to, and what of it, by a whole warp:
 * entry i has count(i) items. Returns n when there are fewer items. */
template <class F> DEVICE uint32_t find_item(uint32_t n, uint32_t item, uint32_t *rest, F count)
{
    for (uint32_t base = 0; base < n; base += 32) {
        uint32_t i = base + lane_id(), c = i < n ? count(i) : 0, end = c;
        for (uint32_t o = 1; o < 32; o *= 2) {
            uint32_t below = __shfl_up_sync(FULL, end, o);
            end += lane_id() >= o ? below : 0;
        }
        uint32_t beyond = __ballot_sync(FULL, end > item);
        if (beyond) {
            int first = __ffs(beyond) - 1;
            *rest = item - __shfl_sync(FULL, end - c, first);
            return base + first;
        }
        item -= __shfl_sync(FULL, end, 31);
    }
    return n;
}

/* The statement after head_dim, with HD as a constant. */
#define WITH_HEAD_DIM(head_dim, ...)                   \
    switch (gpu_pad_head(head_dim)) {                  \
    case 32: { constexpr int HD = 32; __VA_ARGS__; }   \
    case 64: { constexpr int HD = 64; __VA_ARGS__; }   \
    case 96: { constexpr int HD = 96; __VA_ARGS__; }   \
    case 128: { constexpr int HD = 128; __VA_ARGS__; } \
    default: { constexpr int HD = 256; __VA_ARGS__; }  \
    }

#endif
