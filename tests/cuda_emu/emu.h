/* emu: CUDA threads on the CPU, for tests. The .cu files are compiled as C++ against emu_device.h
 * and run here, unchanged.
 *
 * Every CUDA thread of a block is a fiber of the calling thread; blocks run one after another. A
 * fiber runs until it waits for others: at a barrier, or in an operation of a warp (shuffle, vote,
 * mma.sync), which is complete when all its lanes have arrived. The seed chooses the order of
 * blocks, of warps, of lanes, and which warps stand still for a while, so that what no barrier
 * orders happens in another order with another seed.
 *
 * What a device would forgive or punish at random aborts with a line that says what: a barrier or
 * warp operation that some threads never reach, or reach at another place in the source; a vector
 * access that is not aligned; a block that ends with copies in flight, or without having waited for
 * the grid before it. Shared memory is filled with NaNs; each array of it is an allocation of its
 * exact size, so that AddressSanitizer finds what is out of bounds, as it does for global memory
 * (tests allocate exact sizes). cp.async copies when it is waited for, not earlier.
 *
 * Not seen: races between blocks, weak memory order, timing. */
#ifndef BATON_TESTS_CUDA_EMU_EMU_H
#define BATON_TESTS_CUDA_EMU_EMU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EMU_ARGS_MAX 512

struct emu_launch {
    void (*body)(const void *args); /* one thread */
    uint32_t grid[3], block[3];
    size_t shared; /* bytes of dynamic shared memory */
    char name[64];
    _Alignas(16) uint8_t args[EMU_ARGS_MAX];
};

/* Enqueues on `stream` (fake_gpu_enqueue, when a fake runtime is linked), or runs at once when
 * stream is NULL. args: n_args bytes, copied. Returns 0 or a CUDA error number: 9 (invalid
 * configuration) when a block has no threads or more than 1024, or too much shared memory. */
int emu_submit(void *stream, const char *name, void (*body)(const void *args), const uint32_t *grid,
               const uint32_t *block, size_t shared, const void *args, size_t n_args);
/* Runs the grid on this thread. */
void emu_run(const struct emu_launch *l);

/* The order of the launches that follow on this thread; 0: everything in ascending order. */
void emu_seed(uint64_t seed);
/* Called once in the launches that follow on this thread, when all threads of the first block wait
 * for the grid before theirs (griddepcontrol.wait): so far nothing but weights may have been read,
 * and nothing written. NULL: none. */
void emu_before_dependent(void (*fn)(void *arg), void *arg);
/* Launches that ran on this thread so far; and the largest dynamic plus static shared memory of a
 * block. */
uint64_t emu_launches(void);
size_t emu_shared_max(void);

#ifdef __cplusplus
}
#endif

#endif
