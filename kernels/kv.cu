/* kv: checksums of blocks, and clearing what a block's tokens do not use; see cuda_kernels.h for
 * the order inside a cell. */
#include "kernels/cuda_device.cuh"

#define THREADS 256
#define STEP    0x9e3779b97f4a7c15u

struct checksum_args {
    const uint8_t *base;
    const uint64_t *offset;
    size_t words;
    uint64_t *out;
};

DEVICE uint64_t mix64(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

__global__ void __launch_bounds__(THREADS) checksum_kernel(const __grid_constant__ checksum_args a)
{
    SHARED_ARRAY(uint64_t, part, THREADS / 32);
    grid_wait();
    grid_launch_next();
    const uint8_t *p = a.base + a.offset[blockIdx.x];
    uint64_t sum = 0;
    for (size_t i = 2 * threadIdx.x; i < a.words; i += 2 * THREADS) {
        uint4 v = load16(p + 8 * i);
        sum += mix64((v.x | (uint64_t)v.y << 32) + (i + 1) * STEP);
        sum += mix64((v.z | (uint64_t)v.w << 32) + (i + 2) * STEP);
    }
    for (int o = 16; o > 0; o /= 2)
        sum += __shfl_xor_sync(FULL, sum, o);
    if (lane_id() == 0)
        part[warp_id()] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < THREADS / 32; i++)
            sum += part[i];
        a.out[blockIdx.x] = sum;
    }
}

int cuda_kv_checksum(struct gpu_launch l, const uint8_t *base, const uint64_t *offset, uint32_t n,
                     size_t bytes, uint64_t *out)
{
    ASSERT(n > 0 && bytes % 16 == 0);
    struct checksum_args a = {base, offset, bytes / 8, out};
    return LAUNCH(&l, checksum_kernel, dim3(n), dim3(THREADS), 0, a);
}

struct clear_args {
    uint8_t *base;
    size_t layer_stride, cell;
    uint32_t block_size, hp, used;
};

__global__ void __launch_bounds__(THREADS) clear_tail_kernel(const __grid_constant__ clear_args a)
{
    grid_wait();
    grid_launch_next();
    uint16_t *cell = (uint16_t *)(a.base + blockIdx.y * a.layer_stride + blockIdx.x * a.cell);
    for (uint32_t i = a.used * a.hp + threadIdx.x; i < a.block_size * a.hp; i += THREADS) {
        cell[gpu_kv_k_index(a.hp, i / a.hp, i % a.hp)] = 0;
        cell[gpu_kv_v_index(a.hp, i / a.hp, i % a.hp)] = 0;
    }
}

int cuda_kv_clear_tail(struct gpu_launch l, uint8_t *base, uint32_t n_layers, size_t layer_stride,
                       uint32_t n_kv_heads, uint32_t kv_block_size, uint32_t head_dim,
                       uint32_t used)
{
    ASSERT(n_layers > 0 && n_layers <= 65535 && used <= kv_block_size);
    struct clear_args a = {base,          layer_stride,           gpu_kv_cell_bytes(kv_block_size, head_dim),
                           kv_block_size, gpu_pad_head(head_dim), used};
    return LAUNCH(&l, clear_tail_kernel, dim3(n_kv_heads, n_layers), dim3(THREADS), 0, a);
}
