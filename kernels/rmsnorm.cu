/* rmsnorm: the norm as a node of its own, ahead of a GEMM (xn), and the half of the split norm that
 * goes ahead of a fused node when x comes from a GEMM (xg, ssq). One block per row. */
#include "kernels/cuda_device.cuh"

#define THREADS 256

struct norm_args {
    const struct gpu_row *live;
    uint32_t hidden, ld;
    float eps;
    float *x;
    const float *add, *gain;
    uint16_t *out;
    float *ssq;
};

__global__ void __launch_bounds__(THREADS) rmsnorm_kernel(const __grid_constant__ norm_args a)
{
    SHARED_ARRAY(float, part, THREADS / 32);
    grid_wait();
    grid_launch_next();
    if (a.live[blockIdx.x].position < 0)
        return;
    size_t at = (size_t)blockIdx.x * a.ld;
    float sum = 0;
    for (uint32_t i = threadIdx.x; i < a.ld; i += THREADS) {
        float x = a.x[at + i];
        if (a.add) {
            x = __fadd_rn(x, a.add[at + i]);
            a.x[at + i] = x;
        }
        sum = __fadd_rn(sum, __fmul_rn(x, x));
    }
    sum = sum_lanes<32>(sum);
    if (lane_id() == 0)
        part[warp_id()] = sum;
    __syncthreads();
    sum = 0;
    for (int i = 0; i < THREADS / 32; i++)
        sum = __fadd_rn(sum, part[i]);
    float rs = __fdiv_rn(1.0f, sqrtf(__fadd_rn(__fdiv_rn(sum, (float)a.hidden), a.eps)));
    for (uint32_t i = threadIdx.x; i < a.ld; i += THREADS)
        a.out[at + i] = to_bf16(__fmul_rn(__fmul_rn(a.x[at + i], rs), a.gain[i]));
}

__global__ void __launch_bounds__(THREADS) norm_prepare_kernel(const __grid_constant__ norm_args a)
{
    grid_wait();
    grid_launch_next();
    if (a.live[blockIdx.x].position < 0)
        return;
    size_t at = (size_t)blockIdx.x * a.ld;
    for (uint32_t i = threadIdx.x; i < a.ld; i += THREADS) {
        float x = a.x[at + i], s = ssq16(x);
        a.out[at + i] = to_bf16(__fmul_rn(x, a.gain[i]));
        if (i % 16 == 0)
            a.ssq[(at + i) / 16] = s;
    }
}

int cuda_rmsnorm(struct gpu_launch l, const struct gpu_model *m, uint32_t bucket, float *x,
                 const float *add, const float *gain, uint16_t *xn)
{
    struct norm_args a = {m->rows, m->hidden, gpu_pad(m->hidden, 64), m->rms_eps, x, add, gain, xn,
                          NULL};
    return LAUNCH(&l, rmsnorm_kernel, dim3(bucket), dim3(THREADS), 0, a);
}

int cuda_norm_prepare(struct gpu_launch l, const struct gpu_model *m, uint32_t bucket,
                      const float *x, const float *gain, uint16_t *xg, float *ssq)
{
    struct norm_args a = {m->rows, m->hidden, gpu_pad(m->hidden, 64), m->rms_eps, (float *)x, NULL,
                          gain, xg, ssq};
    return LAUNCH(&l, norm_prepare_kernel, dim3(bucket), dim3(THREADS), 0, a);
}
