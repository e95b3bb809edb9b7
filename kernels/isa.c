/* isa: the kernel tables and the choice between them, by what the CPU and the operating system
 * support (cpuid and XCR0, through the compiler's run-time support). */
#include "kernels/cpu.h"

#include <string.h>

#define KERNELS_TABLE(set, ...)                                                                    \
    static const struct kernels kernels_##set = {.isa = #set,                                      \
                                                 .linear_f32 = linear_f32_##set,                   \
                                                 .linear_bf16 = linear_bf16_##set,                 \
                                                 .linear_q8 = linear_q8_##set,                     \
                                                 .linear_q8k = linear_q8k_##set,                   \
                                                 .linear_q4 = linear_q4_##set,                     \
                                                 .rmsnorm = rmsnorm_##set,                         \
                                                 .quant_q8 = quant_q8_##set,                       \
                                                 .quant_q4 = quant_q4_##set,                       \
                                                 .quant_q8k = quant_q8k_##set,                     \
                                                 .silu = silu_##set,                               \
                                                 .rope = rope_##set,                               \
                                                 .kv_expand = kv_expand_##set,                     \
                                                 __VA_ARGS__}

#define KV_APPEND(set)  .kv_append = {kv_append_bf16_##set, kv_append_int8_##set}
#define ATTENTION(b, i) .attention = {b, i}

KERNELS_TABLE(c, .bf16_act = false, KV_APPEND(c), ATTENTION(&attention_c, NULL));
#ifdef __x86_64__
KERNELS_TABLE(avx2, .bf16_act = false, KV_APPEND(c), ATTENTION(&attention_avx2, NULL));
KERNELS_TABLE(avx512, .bf16_act = true, .quant_bf16 = quant_bf16_avx512, KV_APPEND(avx512),
              ATTENTION(&attention_avx512, &attention_int8_avx512));

static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
}

/* Processors with AVX2 but without F16C are virtual machines that mask it; they get plain C. */
static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
}
#endif

const struct kernels *kernels_select(const char *isa)
{
    bool any = strcmp(isa, "auto") == 0;
#ifdef __x86_64__
    if ((any || strcmp(isa, "avx512") == 0) && has_avx512())
        return &kernels_avx512;
    if ((any || strcmp(isa, "avx2") == 0) && has_avx2())
        return &kernels_avx2;
#endif
    return any || strcmp(isa, "c") == 0 ? &kernels_c : NULL;
}
