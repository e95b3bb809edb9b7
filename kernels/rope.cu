/* rope: QK norm, RoPE and append as a node of its own: for steps with several rows of a sequence,
 * whose attention must find them all in the pool. A warp per head of a row. */
#include "kernels/cuda_attention.cuh"

#define WARPS 8

struct rope_args {
    struct gpu_model m;
    uint32_t layer;
    const float *qkv, *bias, *q_norm, *k_norm;
    uint16_t *q;
    float scale;
};

template <int HD>
__global__ void __launch_bounds__(WARPS * 32) rope_append_kernel(const __grid_constant__ rope_args a)
{
    grid_wait();
    grid_launch_next();
    uint32_t r = blockIdx.x, head = blockIdx.y * WARPS + warp_id(), hd = a.m.head_dim;
    uint32_t nq = a.m.n_heads, nkv = a.m.n_kv_heads;
    struct gpu_row row = a.m.rows[r];
    if (row.position < 0 || head >= nq + nkv)
        return;
    struct head_args h = {hd, a.m.rms_eps, a.m.rope_neox, a.m.rope};
    const float *x = a.qkv + (size_t)r * gpu_pad((nq + 2 * nkv) * hd, 16), *bias = a.bias;
    if (head < nq) {
        head_prepare<HD>(h, x + (size_t)head * hd, bias ? bias + head * hd : NULL, a.q_norm,
                         row.position, a.scale, a.q + ((size_t)r * nq + head) * HD);
        return;
    }
    uint8_t *sub = kv_sub(a.m, a.layer, a.m.tables + (size_t)row.slot * a.m.table_stride, head - nq,
                          row.position);
    head_prepare<HD>(h, x + (size_t)head * hd, bias ? bias + head * hd : NULL, a.k_norm,
                     row.position, 1, (uint16_t *)sub + row.position % GPU_KV_SUB * HD);
    head += nkv;
    append_v<HD>(h, sub, row.position, x + (size_t)head * hd, bias ? bias + head * hd : NULL);
}

int cuda_rope_append(struct gpu_launch l, const struct gpu_model *m, uint32_t bucket,
                     uint32_t layer, const float *qkv, const float *bias, const float *q_norm,
                     const float *k_norm, uint16_t *q)
{
    ASSERT(m->head_dim % 16 == 0 && m->head_dim <= 256);
    struct rope_args a = {*m,     layer,  qkv, bias,
                          q_norm, k_norm, q,   LOG2E / sqrtf((float)m->head_dim)};
    dim3 grid(bucket, (m->n_heads + m->n_kv_heads + WARPS - 1) / WARPS);
    WITH_HEAD_DIM(m->head_dim,
                  return LAUNCH(&l, rope_append_kernel<HD>, grid, dim3(WARPS * 32), 0, a));
}
