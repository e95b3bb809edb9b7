/* peak: register-only loops for AVX-512: 16 independent chains hide the latency. */
#include "kernels/peak.h"

#include <immintrin.h>
#include <stdint.h>

#define CHAINS 16

/* x: the bit pattern of both factors; 1 in the format at hand, for denormals would be slow. */
#define PEAK_LOOP(instruction, x)                                                                  \
    __m512i acc[CHAINS], one = _mm512_set1_epi32(x);                                               \
    for (int i = 0; i < CHAINS; i++)                                                               \
        acc[i] = _mm512_setzero_si512();                                                           \
    for (size_t r = 0; r < n; r++) {                                                               \
        CHAIN(instruction, 0);                                                                     \
        CHAIN(instruction, 1);                                                                     \
        CHAIN(instruction, 2);                                                                     \
        CHAIN(instruction, 3);                                                                     \
        CHAIN(instruction, 4);                                                                     \
        CHAIN(instruction, 5);                                                                     \
        CHAIN(instruction, 6);                                                                     \
        CHAIN(instruction, 7);                                                                     \
        CHAIN(instruction, 8);                                                                     \
        CHAIN(instruction, 9);                                                                     \
        CHAIN(instruction, 10);                                                                    \
        CHAIN(instruction, 11);                                                                    \
        CHAIN(instruction, 12);                                                                    \
        CHAIN(instruction, 13);                                                                    \
        CHAIN(instruction, 14);                                                                    \
        CHAIN(instruction, 15);                                                                    \
    }
#define CHAIN(instruction, i) __asm__ volatile(instruction " %1, %1, %0" : "+v"(acc[i]) : "v"(one))

double peak_f32_avx512(size_t n)
{
    PEAK_LOOP("vfmadd231ps", 0x3f800000)
    return (double)n * CHAINS * 16 * 2;
}

double peak_bf16_avx512(size_t n)
{
    PEAK_LOOP("vdpbf16ps", 0x3f803f80)
    return (double)n * CHAINS * 32 * 2;
}

double peak_int8_avx512(size_t n)
{
    PEAK_LOOP("vpdpbusd", 0x01010101)
    return (double)n * CHAINS * 64 * 2;
}
