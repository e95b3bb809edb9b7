/* cuda_kernels: what all kernels need once, before the first launch. */
#include "kernels/cuda_device.cuh"

int cuda_kernels_init(void)
{
    int rc = cuda_linear_init();
    rc = rc ? rc : cuda_attention_decode_init();
    return rc ? rc : cuda_attention_prefill_init();
}
