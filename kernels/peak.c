/* peak: multiply-add loops in plain C, as the plain kernels are compiled: chains of numbers that
 * the compiler may put side by side into whatever vectors the build's flags allow. */
#include "kernels/peak.h"

#include <stdint.h>

#define CHAINS 32

double peak_f32_c(size_t n)
{
    float acc[CHAINS] = {0}, x = 0.5f;
    __asm__ volatile("" : "+m"(x));
    for (size_t r = 0; r < n; r++)
        for (int i = 0; i < CHAINS; i++)
            acc[i] += x * acc[i];
    __asm__ volatile("" ::"r"(acc) : "memory");
    return (double)n * CHAINS * 2;
}

double peak_int8_c(size_t n)
{
    int32_t acc[CHAINS] = {0};
    int8_t x = 3;
    __asm__ volatile("" : "+m"(x));
    for (size_t r = 0; r < n; r++)
        for (int i = 0; i < CHAINS; i++)
            acc[i] += x * (int8_t)(acc[i] + (int)r);
    __asm__ volatile("" ::"r"(acc) : "memory");
    return (double)n * CHAINS * 2;
}
