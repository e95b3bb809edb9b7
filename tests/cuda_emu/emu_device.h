/* emu_device: the CUDA that the kernels use, for g++ (see emu.h). Included by
 * kernels/cuda_device.cuh in place of cuda_runtime.h, by way of -Itests/cuda_emu. */
#ifndef BATON_TESTS_CUDA_EMU_EMU_DEVICE_H
#define BATON_TESTS_CUDA_EMU_EMU_DEVICE_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define _Alignas alignas
#include "emu.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __restrict__

struct uint3 {
    uint32_t x, y, z;
};
struct dim3 {
    uint32_t x, y, z;
    dim3(uint32_t x_ = 1, uint32_t y_ = 1, uint32_t z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};
struct uint2 {
    uint32_t x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
    return uint4{x, y, z, w};
}
static inline float4 make_float4(float x, float y, float z, float w)
{
    return float4{x, y, z, w};
}

/* ---- the running thread; see emu.c ---- */
enum emu_op { EMU_SYNCWARP, EMU_SHFL, EMU_BALLOT, EMU_REDUX, EMU_TRANSPOSE, EMU_MMA };
struct emu_thread {
    uint3 tid;
    uint32_t lane;
};
extern "C" {
extern __thread struct emu_thread *emu_self;
extern __thread struct uint3 emu_block_idx, emu_block_dim, emu_grid_dim;
void emu_barrier(int line);
/* Publishes n words (at most 8) of this lane; all 32 lanes must come here with the same op and
 * line. Returns the words of lane 0; lane l's are at +8 l. For EMU_MMA: the product is at words 0-3
 * of each lane. Valid until the lane's next operation. */
const uint32_t *emu_warp(enum emu_op op, int line, const uint32_t *words, int n);
void *emu_shared_array(int id, size_t bytes, size_t align);
void *emu_shared_dynamic(void);
void emu_copy_async(void *to, const void *from, uint32_t bytes, uint32_t of);
void emu_copy_commit(void);
void emu_copy_wait(uint32_t groups);
void emu_grid_wait(void);
void emu_die(const char *what, const void *p);
}

#define threadIdx (emu_self->tid)
#define blockIdx  emu_block_idx
#define blockDim  emu_block_dim
#define gridDim   emu_grid_dim

#define SHARED(type, name)                                                                         \
    type &name = *(type *)emu_shared_array(__COUNTER__, sizeof(type), alignof(type))
#define SHARED_ARRAY(type, name, n)                                                                \
    type *name = (type *)emu_shared_array(__COUNTER__, sizeof(type) * (n), alignof(type))
#define SHARED_DYNAMIC(type, name) type *name = (type *)emu_shared_dynamic()

#define __syncthreads() emu_barrier(__LINE__)
#define __syncwarp()    emu_warp(EMU_SYNCWARP, __LINE__, NULL, 0)
#define __threadfence() ((void)0)

static inline uint32_t __float_as_uint(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}
static inline float __uint_as_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

#define EMU_FULL(mask) ((mask) == 0xffffffffu ? (void)0 : emu_die("a partial warp mask", NULL))

template <class T> static inline T emu_shfl(unsigned mask, T v, uint32_t from, int line)
{
    uint32_t w[2] = {0, 0};
    EMU_FULL(mask);
    memcpy(w, &v, sizeof v);
    const uint32_t *all = emu_warp(EMU_SHFL, line, w, sizeof v / 4);
    memcpy(&v, all + 8 * (from & 31), sizeof v);
    return v;
}
#define __shfl_xor_sync(mask, v, o) emu_shfl(mask, v, emu_self->lane ^ (o), __LINE__)
#define __shfl_sync(mask, v, from)  emu_shfl(mask, v, from, __LINE__)
#define __shfl_up_sync(mask, v, d)                                                                 \
    emu_shfl(mask, v, emu_self->lane >= (d) ? emu_self->lane - (d) : emu_self->lane, __LINE__)

static inline uint32_t emu_ballot(unsigned mask, bool p, int line)
{
    uint32_t w = p, r = 0;
    EMU_FULL(mask);
    const uint32_t *all = emu_warp(EMU_BALLOT, line, &w, 1);
    for (int l = 0; l < 32; l++)
        r |= all[8 * l] << l;
    return r;
}
#define __ballot_sync(mask, p) emu_ballot(mask, p, __LINE__)

static inline uint32_t emu_reduce_add(unsigned mask, uint32_t v, int line)
{
    uint32_t r = 0;
    EMU_FULL(mask);
    const uint32_t *all = emu_warp(EMU_REDUX, line, &v, 1);
    for (int l = 0; l < 32; l++)
        r += all[8 * l];
    return r;
}
#define __reduce_add_sync(mask, v) emu_reduce_add(mask, v, __LINE__)

static inline int __popc(uint32_t v)
{
    return __builtin_popcount(v);
}
static inline int __ffs(uint32_t v)
{
    return __builtin_ffs((int)v);
}

/* Blocks run one after another, and a fiber is not interrupted: plain reads and writes will do. */
template <class T> static inline T atomicAdd(T *p, T v)
{
    T old = *p;
    *p = old + v;
    return old;
}
template <class T> static inline T atomicMax(T *p, T v)
{
    T old = *p;
    *p = old < v ? v : old;
    return old;
}

/* IEEE operations that the compiler must not contract (the build has -ffp-contract=off). */
static inline float __fadd_rn(float a, float b)
{
    return a + b;
}
static inline float __fsub_rn(float a, float b)
{
    return a - b;
}
static inline float __fmul_rn(float a, float b)
{
    return a * b;
}
static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
static inline float __fmaf_rn(float a, float b, float c)
{
    return __builtin_fmaf(a, b, c);
}
static inline double __dadd_rn(double a, double b)
{
    return a + b;
}
static inline double __dmul_rn(double a, double b)
{
    return a * b;
}

#define EMU_ALIGNED(p, n) ((uintptr_t)(p) % (n) == 0 ? (void)0 : emu_die("misaligned access", p))

#endif
