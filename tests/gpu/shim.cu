/* shim: lets the kernel tests of tests/cuda run on a device. They were written for the emulation:
 * memory by posix_memalign, results there when the launcher returns, hooks of tests/cuda_emu/emu.h.
 * Here memory is managed (both sides see it), launches block ($CUDA_LAUNCH_BLOCKING), and the hooks
 * do nothing. Linked with --wrap=posix_memalign --wrap=free. */
#include <cuda_runtime.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

extern "C" {
#include "kernels/cuda_kernels.h"

int __real_posix_memalign(void **out, size_t align, size_t n);
void __real_free(void *p);

static bool ready;

__attribute__((constructor)) static void start(void)
{
    setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
    setenv("CK_FORK", "no", 1); /* a CUDA context does not survive a fork */
    int rc = cuda_kernels_init();
    if (rc != 0) {
        fprintf(stderr, "shim: %s\n", cudaGetErrorString((cudaError_t)rc));
        exit(1);
    }
    ready = true;
}

int __wrap_posix_memalign(void **out, size_t align, size_t n)
{
    if (!ready || align != 256) /* what the tests hand to kernels is aligned to 256 */
        return __real_posix_memalign(out, align, n);
    return cudaMallocManaged(out, n) == cudaSuccess ? 0 : ENOMEM;
}

void __wrap_free(void *p)
{
    cudaPointerAttributes a;
    if (p && ready && cudaPointerGetAttributes(&a, p) == cudaSuccess &&
        a.type == cudaMemoryTypeManaged)
        cudaFree(p);
    else
        __real_free(p);
}

/* tests/cuda_emu/emu.h. */
void emu_seed(uint64_t seed)
{
    (void)seed;
}
void emu_before_dependent(void (*fn)(void *arg), void *arg)
{
    if (fn)
        fn(arg); /* what earlier nodes would have written is there from the start */
}
uint64_t emu_launches(void)
{
    return 0;
}
size_t emu_shared_max(void)
{
    return 0;
}
}
