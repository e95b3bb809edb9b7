/* silu: hid = silu(gate) * up after a GEMM; a thread takes 8 gates and the 8 ups beside them. */
#include "kernels/cuda_device.cuh"

#define THREADS 256

struct swiglu_args {
    const struct gpu_row *live;
    uint32_t groups; /* of 8 outputs */
    uint32_t ld_in, ld_out;
    const uint16_t *gu;
    uint16_t *hid;
};

DEVICE uint32_t swiglu_pair(uint32_t gate, uint32_t up)
{
    return pack_bf16(__fmul_rn(silu(bf16_lo(gate)), bf16_lo(up)),
                     __fmul_rn(silu(bf16_hi(gate)), bf16_hi(up)));
}

__global__ void __launch_bounds__(THREADS) swiglu_kernel(const __grid_constant__ swiglu_args a)
{
    grid_wait();
    grid_launch_next();
    uint32_t i = blockIdx.y * THREADS + threadIdx.x;
    if (i >= a.groups || a.live[blockIdx.x].position < 0)
        return;
    const uint16_t *in = a.gu + (size_t)blockIdx.x * a.ld_in + 16 * i;
    uint4 g = load16(in), u = load16(in + 8);
    store16(a.hid + (size_t)blockIdx.x * a.ld_out + 8 * i,
            make_uint4(swiglu_pair(g.x, u.x), swiglu_pair(g.y, u.y), swiglu_pair(g.z, u.z),
                       swiglu_pair(g.w, u.w)));
}

int cuda_swiglu(struct gpu_launch l, const struct gpu_model *m, uint32_t bucket, const uint16_t *gu,
                uint16_t *hid)
{
    uint32_t ffn = gpu_pad(m->ffn, 8);
    struct swiglu_args a = {m->rows, ffn / 8, 2 * ffn, gpu_pad(m->ffn, 64), gu, hid};
    return LAUNCH(&l, swiglu_kernel, dim3(bucket, (a.groups + THREADS - 1) / THREADS),
                  dim3(THREADS), 0, a);
}
