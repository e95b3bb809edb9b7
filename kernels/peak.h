/* peak: how fast this core can go with everything in registers: the ceilings of baton-bench. Each
 * runs n rounds of independent multiply-adds and returns the number of operations (a multiply-add
 * is two). */
#ifndef BATON_KERNELS_PEAK_H
#define BATON_KERNELS_PEAK_H

#include <stddef.h>

double peak_f32_c(size_t n);
double peak_int8_c(size_t n);
double peak_f32_avx2(size_t n);
double peak_int8_avx2(size_t n);
double peak_f32_avx512(size_t n);
double peak_bf16_avx512(size_t n);
double peak_int8_avx512(size_t n);
double peak_bf16_amx(size_t n);
double peak_int8_amx(size_t n);

#endif
