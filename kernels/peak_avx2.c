/* peak: register-only loops for AVX2: 12 independent chains hide the latency. */
#include "kernels/peak.h"

#include <immintrin.h>

#define CHAINS 12

/* x: the bit pattern of both factors. */
#define PEAK_LOOP(x)                                                                               \
    __m256i acc[CHAINS], one = _mm256_set1_epi32(x);                                               \
    for (int i = 0; i < CHAINS; i++)                                                               \
        acc[i] = _mm256_setzero_si256();                                                           \
    for (size_t r = 0; r < n; r++) {                                                               \
        CHAIN(0);                                                                                  \
        CHAIN(1);                                                                                  \
        CHAIN(2);                                                                                  \
        CHAIN(3);                                                                                  \
        CHAIN(4);                                                                                  \
        CHAIN(5);                                                                                  \
        CHAIN(6);                                                                                  \
        CHAIN(7);                                                                                  \
        CHAIN(8);                                                                                  \
        CHAIN(9);                                                                                  \
        CHAIN(10);                                                                                 \
        CHAIN(11);                                                                                 \
    }

double peak_f32_avx2(size_t n)
{
#define CHAIN(i) __asm__ volatile("vfmadd231ps %1, %1, %0" : "+x"(acc[i]) : "x"(one))
    PEAK_LOOP(0x3f800000)
#undef CHAIN
    return (double)n * CHAINS * 8 * 2;
}

/* VPMADDUBSW and the addition that it needs. */
double peak_int8_avx2(size_t n)
{
    __m256i p;
#define CHAIN(i)                                                                                   \
    __asm__ volatile("vpmaddubsw %2, %2, %1\n\tvpaddw %1, %0, %0"                                  \
                     : "+x"(acc[i]), "=&x"(p)                                                      \
                     : "x"(one))
    PEAK_LOOP(0x01010101)
#undef CHAIN
    return (double)n * CHAINS * 32 * 2;
}
