/* probes: small kernels that test the emulation itself, right ones and wrong ones. */
#include "kernels/cuda_device.cuh"

#include "tests/cuda/probes.h"

struct probe_args {
    enum probe kind;
    uint32_t *out;
    const uint16_t *in;
};

DEVICE void probe_mma(const probe_args &a)
{
    /* in: A 16 x 16 by rows, then B 16 x 8 by columns; out: D 16 x 8 as floats, begun at 1. */
    uint32_t l = lane_id(), g = l / 4, t = l % 4;
    const uint16_t *b = a.in + 256;
    uint32_t x[6];
    for (int i = 0; i < 6; i++) {
        const uint16_t *p = i < 4 ? a.in + (g + i % 2 * 8) * 16 + 2 * t + i / 2 * 8
                                  : b + g * 16 + 2 * t + (i - 4) * 8;
        x[i] = p[0] | (uint32_t)p[1] << 16;
    }
    float d[4] = {1, 1, 1, 1};
    mma16816(d, x[0], x[1], x[2], x[3], x[4], x[5]);
    for (int i = 0; i < 4; i++)
        a.out[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = __float_as_uint(d[i]);
}

DEVICE void probe_warp(const probe_args &a)
{
    uint32_t l = lane_id(), *out = a.out + 8 * l;
    out[0] = __shfl_xor_sync(FULL, l * 3, 5);
    out[1] = (uint32_t)(__shfl_up_sync(FULL, (uint64_t)l << 40, 4u) >> 40);
    out[2] = __shfl_sync(FULL, l, 9);
    out[3] = __ballot_sync(FULL, l % 3 == 0);
    out[4] = __reduce_add_sync(FULL, l);
    /* Row g, columns 2 t and 2 t + 1 hold 100 row + column; transposed: 100 column + row. */
    uint32_t row = l / 4, column = l % 4 * 2;
    out[5] = transpose8x8((100 * row + column) | (100 * row + column + 1) << 16);
    out[6] = __float_as_uint(sum_lanes<32>((float)l));
    out[7] = __float_as_uint(max_rows((float)l));
}

/* Each warp writes its number, another one reads it: right only with a barrier between. */
DEVICE void probe_exchange(const probe_args &a, bool barrier)
{
    SHARED_ARRAY(uint32_t, word, 64);
    word[threadIdx.x] = threadIdx.x;
    if (barrier)
        __syncthreads();
    a.out[threadIdx.x] = word[63 - threadIdx.x];
}

DEVICE void probe_copy(const probe_args &a)
{
    SHARED_ARRAY(uint4, v, 64);
    uint32_t i = threadIdx.x;
    copy_async(&v[i], a.in + 8 * i, i == 3 ? 4 : 16);
    copy_commit();
    a.out[i] = v[i].x; /* not there yet: NaN */
    if (a.kind == PROBE_COPY_LOST)
        return;
    copy_commit();
    copy_wait<1>();
    a.out[64 + i] = v[i].x;
    a.out[128 + i] = v[i].w;
}

__global__ void probe_kernel(const __grid_constant__ probe_args a)
{
    SHARED_DYNAMIC(uint32_t, dynamic);
    SHARED_ARRAY(uint32_t, fixed, 8);
    uint32_t i = threadIdx.x;
    switch (a.kind) {
    case PROBE_MMA:
        return probe_mma(a);
    case PROBE_WARP:
        return probe_warp(a);
    case PROBE_EXCHANGE:
        return probe_exchange(a, true);
    case PROBE_RACE:
        return probe_exchange(a, false);
    case PROBE_COPY:
    case PROBE_COPY_LOST:
        return probe_copy(a);
    case PROBE_BARRIER_MISSED:
        if (i >= 32 && i < 48)
            __syncwarp();
        __syncthreads();
        return;
    case PROBE_BARRIERS_MIXED:
        if (i < 32)
            __syncthreads();
        else
            __syncthreads();
        return;
    case PROBE_WARP_MIXED:
        if (i % 32 < 16)
            __syncwarp();
        else
            __ballot_sync(FULL, true);
        return;
    case PROBE_LANES_GONE:
        if (i % 32 < 31)
            __syncwarp();
        return;
    case PROBE_MISALIGNED:
        a.out[i] = load16(a.in + 4 * i).x;
        return;
    case PROBE_ORDER:
        if (i == 0)
            a.out[1 + atomicAdd(&a.out[0], 1u)] = blockIdx.x + gridDim.x * blockIdx.y;
        return;
    case PROBE_FRESH:
        a.out[i] = fixed[i % 8] & dynamic[i];
        __syncthreads();
        fixed[i % 8] = 1;
        dynamic[i] = 2;
        return;
    case PROBE_OUT_OF_SHARED:
        fixed[i == 7 ? 8 : 0] = 1;
        return;
    case PROBE_OUT_OF_DYNAMIC:
        dynamic[i == 7 ? 64 : 0] = 1;
        return;
    case PROBE_OUT_OF_GLOBAL:
        a.out[i + 1] = 1;
        return;
    case PROBE_WAIT_FORGOTTEN:
        if (i != 40)
            grid_wait();
        return;
    case PROBE_EARLY_READ:
        a.out[i] = a.in[i];
        grid_wait();
        a.out[64 + i] = a.in[i];
        return;
    }
}

int probe(enum probe kind, uint32_t blocks, uint32_t threads, const uint16_t *in, uint32_t *out)
{
    struct gpu_launch l = {};
    struct probe_args a = {kind, out, in};
    return LAUNCH(&l, probe_kernel, dim3(blocks, blocks > 1 ? 2 : 1), dim3(threads),
                  64 * sizeof(uint32_t), a);
}
