/* exp2_avx512: 2^x for 16 floats, and what the AVX-512 kernels share. */
#ifndef BATON_KERNELS_EXP2_AVX512_H
#define BATON_KERNELS_EXP2_AVX512_H

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))

/* Splits off the nearest integer n; 2^(x - n) by a polynomial that is exactly 1 at 0 (an unchanged
 * maximum must rescale by 1), relative error 3e-6; scaled by 2^n, to 0 for very negative x and
 * to infinity for very large. */
INLINE __m512 exp2_512(__m512 x)
{
    __m512 f = _mm512_reduce_ps(x, 0);
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(0.009582855236f), f, _mm512_set1_ps(0.055906434179f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.240240986305f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.693124192325f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1));
    return _mm512_scalef_ps(p, _mm512_sub_ps(x, f));
}

#endif
