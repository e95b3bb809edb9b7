/* isa: the kernel tables and the choice between them, by what the CPU and the operating system
 * support (cpuid and XCR0, through the compiler's run-time support). */
#include "kernels/cpu.h"

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#ifdef __x86_64__
#include <cpuid.h>
#endif

/* lin: the set whose linear layers for BF16, Q8 and Q4 weights it takes; rest: that of all else. */
#define KERNELS_TABLE(set, lin, rest, ...)                                                         \
    static const struct kernels kernels_##set = {.isa = #set,                                      \
                                                 .linear_f32 = linear_f32_##rest,                  \
                                                 .linear_bf16 = linear_bf16_##lin,                 \
                                                 .linear_q8 = linear_q8_##lin,                     \
                                                 .linear_q8k = linear_q8k_##rest,                  \
                                                 .linear_q4 = linear_q4_##lin,                     \
                                                 .rmsnorm = rmsnorm_##rest,                        \
                                                 .quant_q8 = quant_q8_##rest,                      \
                                                 .quant_q4 = quant_q4_##rest,                      \
                                                 .quant_q8k = quant_q8k_##rest,                    \
                                                 .silu = silu_##rest,                              \
                                                 .rope = rope_##rest,                              \
                                                 .kv_expand = kv_expand_##rest,                    \
                                                 __VA_ARGS__}

#define KV_APPEND(set)  .kv_append = {kv_append_bf16_##set, kv_append_int8_##set}
#define ATTENTION(b, i) .attention = {b, i}

KERNELS_TABLE(c, c, c, .rows = 96, .bf16_act = false, KV_APPEND(c), ATTENTION(&attention_c, NULL));
#ifdef __x86_64__
KERNELS_TABLE(avx2, avx2, avx2, .rows = 96, .bf16_act = false, KV_APPEND(c),
              ATTENTION(&attention_avx2, NULL));
KERNELS_TABLE(avx512, avx512, avx512, .rows = 96, .bf16_act = true, .quant_bf16 = quant_bf16_avx512,
              KV_APPEND(avx512), ATTENTION(&attention_avx512, &attention_int8_avx512));
KERNELS_TABLE(amx, amx, avx512, .rows = 256, .bf16_act = true, .quant_bf16 = quant_bf16_avx512,
              KV_APPEND(avx512), ATTENTION(&attention_amx, &attention_int8_avx512));

static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
}

/* CPUID leaf 7 (Intel SDM): AMX-BF16, AMX-TILE, AMX-INT8. Linux gives the 8 KB of tile registers to
 * programs that ask for them (Documentation/arch/x86/xstate.rst), and only where it can save them.
 */
static bool has_amx(void)
{
    enum { BF16 = 1 << 22, TILE = 1 << 24, INT8 = 1 << 25, ALL = BF16 | TILE | INT8 };
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XTILE_DATA = 18 };
    unsigned a, b, c, d;
    return has_avx512() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & ALL) == ALL &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILE_DATA) == 0;
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
    if ((any || strcmp(isa, "amx") == 0) && has_amx())
        return &kernels_amx;
    if ((any || strcmp(isa, "avx512") == 0) && has_avx512())
        return &kernels_avx512;
    if ((any || strcmp(isa, "avx2") == 0) && has_avx2())
        return &kernels_avx2;
#endif
    return any || strcmp(isa, "c") == 0 ? &kernels_c : NULL;
}
