/* no_fake: the hooks of the emulation that tests/cuda/rig.h calls, for a run on a device. */
#include "tests/cuda_emu/emu.h"
#include "tests/cuda_emu/fake_gpu.h"

void fake_gpu_on_kernel(void (*fn)(const char *name, uint64_t random))
{
    (void)fn;
}

void emu_seed(uint64_t seed)
{
    (void)seed;
}
