/* cuda_device: the vocabulary of the kernels: loads, bf16, mma.sync, cp.async, programmatic
 * dependent launch, reductions, and LAUNCH. Two versions of the primitives: inline PTX for nvcc, and
 * the emulation of tests/cuda_emu (CUDA_EMU) for g++. Everything below them is common.
 *
 * Rules of every kernel:
 *   - it takes one struct by value, and static device addresses only;
 *   - before grid_wait() it reads nothing but weights, norms, and what nodes before its predecessor
 *     wrote (block tables, resolved rows); it writes nothing. Every thread calls grid_wait();
 *   - sums that decide a row's bits are formed in one fixed order with explicit __f*_rn operations,
 *     so that two kernels that must agree do not depend on what the compiler contracts. */
#ifndef BATON_KERNELS_CUDA_DEVICE_CUH
#define BATON_KERNELS_CUDA_DEVICE_CUH

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#if defined(CUDA_EMU)
#include <emu_device.h>
#else
#include <cuda_runtime.h>
#endif

#define _Noreturn [[noreturn]]
extern "C" {
#include "common/base/assert.h"
}
#include "kernels/cuda_kernels.h"

#define FULL 0xffffffffu

#define DEVICE static __device__ __forceinline__

/* ---- primitives: emulated ------------------------------------------------------------------- */
#if defined(CUDA_EMU)

/* Weights and other data that no running kernel writes. */
DEVICE uint4 load_stream(const void *p)
{
    EMU_ALIGNED(p, 16);
    return *(const uint4 *)p;
}
DEVICE uint4 load16(const void *p)
{
    EMU_ALIGNED(p, 16);
    return *(const uint4 *)p;
}
DEVICE float load_l2(const float *p)
{
    return *p;
}
DEVICE void prefetch_l2(const void *p)
{
    (void)*(const volatile uint8_t *)p;
}
DEVICE void store16(void *p, uint4 v)
{
    EMU_ALIGNED(p, 16);
    *(uint4 *)p = v;
}
DEVICE uint32_t pack_bf16(float lo, float hi)
{
    uint32_t r = 0;
    for (int i = 0; i < 2; i++) {
        uint32_t u = __float_as_uint(i ? hi : lo);
        u = (u & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : (u + 0x7fffu + (u >> 16 & 1)) >> 16;
        r |= u << 16 * i;
    }
    return r;
}
/* d += a b: m16n8k16, a row-major 16 x 16, b 16 x 8 by columns, in the fragments of the PTX manual */
#define mma16816(d, a0, a1, a2, a3, b0, b1)                               \
    do {                                                                  \
        uint32_t mma_in_[6] = {a0, a1, a2, a3, b0, b1};                   \
        const uint32_t *mma_out_ = emu_warp(EMU_MMA, __LINE__, mma_in_, 6); \
        for (int mma_i_ = 0; mma_i_ < 4; mma_i_++)                        \
            (d)[mma_i_] += __uint_as_float(mma_out_[8 * emu_self->lane + mma_i_]); \
    } while (0)
/* An 8 x 8 matrix of 16-bit numbers: lane 4 g + t gives row g, columns 2 t and 2 t + 1, and gets
 * the same place of the transpose. */
#define transpose8x8(v) emu_transpose(v, __LINE__)
static inline uint32_t emu_transpose(uint32_t v, int line)
{
    const uint32_t *all = emu_warp(EMU_TRANSPOSE, line, &v, 1);
    uint32_t row = emu_self->lane / 4, column = emu_self->lane % 4 * 2, r = 0;
    for (uint32_t i = 0; i < 2; i++)
        r |= (all[8 * ((column + i) * 4 + row / 2)] >> row % 2 * 16 & 0xffff) << 16 * i;
    return r;
}
/* 16 bytes of global memory into shared memory; the first `of` of them, the rest zeroes. */
DEVICE void copy_async(void *to, const void *from, uint32_t of)
{
    emu_copy_async(to, from, 16, of);
}
DEVICE void copy_commit(void)
{
    emu_copy_commit();
}
/* Until at most `groups` of this thread's groups are in flight. */
template <int groups> DEVICE void copy_wait(void)
{
    emu_copy_wait(groups);
}
DEVICE void grid_wait(void)
{
    emu_grid_wait();
}
DEVICE void grid_launch_next(void)
{
}
DEVICE float ex2(float x)
{
    return exp2f(x);
}

#define LAUNCH(l, kernel, grid, block, shared, args)                                              \
    (__builtin_clear_padding(&(args)), /* what is no argument is no stale address either */       \
     emu_launch_kernel((l)->stream, #kernel, grid, block, shared, &(args), sizeof(args),          \
                       [](const void *p_) { kernel(*(const __typeof__(args) *)p_); }))

static inline int emu_launch_kernel(void *stream, const char *name, dim3 grid, dim3 block,
                                    size_t shared, const void *args, size_t n_args,
                                    void (*body)(const void *args))
{
    const uint32_t g[3] = {grid.x, grid.y, grid.z}, b[3] = {block.x, block.y, block.z};
    return emu_submit(stream, name, body, g, b, shared, args, n_args);
}
/* More than 48 KiB of dynamic shared memory must be asked for once. */
#define ALLOW_SHARED(kernel, bytes) ((void)(bytes), 0)

/* ---- primitives: PTX ------------------------------------------------------------------------- */
#else

DEVICE uint4 load_stream(const void *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
DEVICE uint4 load16(const void *p)
{
    return *(const uint4 *)p;
}
/* Not through L1: written by another block of this grid. */
DEVICE float load_l2(const float *p)
{
    return __ldcg(p);
}
DEVICE void prefetch_l2(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}
DEVICE void store16(void *p, uint4 v)
{
    *(uint4 *)p = v;
}
DEVICE uint32_t pack_bf16(float lo, float hi)
{
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}
DEVICE void mma16816(float *d, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                     uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
DEVICE uint32_t transpose8x8(uint32_t v)
{
    uint32_t r;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(v));
    return r;
}
DEVICE void copy_async(void *to, const void *from, uint32_t of)
{
    uint32_t t = (uint32_t)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(t), "l"(from), "r"(of)
                 : "memory");
}
DEVICE void copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int groups> DEVICE void copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
}
/* Until the grid before this one is complete and what it wrote can be seen. */
DEVICE void grid_wait(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/* The next grid may start (and will wait for the end of this one in its grid_wait()). */
DEVICE void grid_launch_next(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
DEVICE float ex2(float x)
{
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

#define SHARED(type, name)          __shared__ type name
#define SHARED_ARRAY(type, name, n) __shared__ type name[n]
#define SHARED_DYNAMIC(type, name)                                \
    extern __shared__ __align__(128) unsigned char dynamic_[];    \
    type *name = (type *)dynamic_

#define LAUNCH(l, kernel, grid, block, shared, args) \
    launch_kernel(l, (const void *)(kernel), grid, block, shared, &(args))

static inline int launch_kernel(const struct gpu_launch *l, const void *kernel, dim3 grid,
                                dim3 block, size_t shared, void *args)
{
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t c = {};
    c.gridDim = grid;
    c.blockDim = block;
    c.dynamicSmemBytes = shared;
    c.stream = (cudaStream_t)l->stream;
    c.attrs = &attribute;
    c.numAttrs = l->pdl ? 1 : 0;
    return (int)cudaLaunchKernelExC(&c, kernel, &args);
}
#define ALLOW_SHARED(kernel, bytes)                                                      \
    ((int)cudaFuncSetAttribute((const void *)(kernel),                                   \
                               cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(bytes)))

#endif

/* ---- common ----------------------------------------------------------------------------------- */

DEVICE float bf16_lo(uint32_t pair)
{
    return __uint_as_float(pair << 16);
}
DEVICE float bf16_hi(uint32_t pair)
{
    return __uint_as_float(pair & 0xffff0000u);
}
DEVICE float from_bf16(uint16_t h)
{
    return __uint_as_float((uint32_t)h << 16);
}
DEVICE uint16_t to_bf16(float f)
{
    return (uint16_t)pack_bf16(f, 0);
}

DEVICE uint32_t warp_id(void)
{
    return threadIdx.x / 32;
}
DEVICE uint32_t lane_id(void)
{
    return threadIdx.x % 32;
}

/* Sum over the lanes that differ from this one in the bits of `lanes` - 1; the same in each. */
template <int lanes> DEVICE float sum_lanes(float v)
{
    for (int o = lanes / 2; o > 0; o /= 2)
        v = __fadd_rn(v, __shfl_xor_sync(FULL, v, o));
    return v;
}
template <int lanes> DEVICE float max_lanes(float v)
{
    for (int o = lanes / 2; o > 0; o /= 2)
        v = fmaxf(v, __shfl_xor_sync(FULL, v, o));
    return v;
}

/* Over the rows of an mma fragment: the lanes with this one's lane % 4. */
DEVICE float sum_rows(float v)
{
    for (int o = 16; o >= 4; o /= 2)
        v = __fadd_rn(v, __shfl_xor_sync(FULL, v, o));
    return v;
}
DEVICE float max_rows(float v)
{
    for (int o = 16; o >= 4; o /= 2)
        v = fmaxf(v, __shfl_xor_sync(FULL, v, o));
    return v;
}

/* ---- the split RMSNorm ----
 * ssq[row][i] is the sum of x^2 over the 16 neighbours from 16 i on: lanes 16 j .. 16 j + 15 of a
 * warp hold one group. */
DEVICE float ssq16(float x)
{
    return sum_lanes<16>(__fmul_rn(x, x));
}
/* 1 / rms of a row, by a whole warp: lane l adds the groups l, l + 32, ... */
DEVICE float norm_scale(const float *ssq, uint32_t hidden, float eps)
{
    float s = 0;
    for (uint32_t i = lane_id(); i < gpu_pad(hidden, 64) / 16; i += 32)
        s = __fadd_rn(s, ssq[i]);
    s = sum_lanes<32>(s);
    return __fdiv_rn(1.0f, sqrtf(__fadd_rn(__fdiv_rn(s, (float)hidden), eps)));
}

DEVICE float silu(float x)
{
    return __fdiv_rn(x, __fadd_rn(1.0f, ex2(__fmul_rn(x, -1.44269504f))));
}

/* Parts of cuda_kernels_init(), each in the file of its kernels. */
int cuda_linear_init(void);
int cuda_attention_decode_init(void);
int cuda_attention_prefill_init(void);

#endif
