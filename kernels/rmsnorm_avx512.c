/* rmsnorm: y = x / sqrt(mean(x^2) + eps) * gain. The sum runs in 2 x 16 lanes, a remainder in
 * masked lanes of the first. */
#include "kernels/cpu.h"
#include "kernels/exp2_avx512.h"

#include <math.h>

void rmsnorm_avx512(const float *x, const float *gain, size_t n, float eps, float *y)
{
    __m512 s0 = _mm512_setzero_ps(), s1 = s0;
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m512 a = _mm512_loadu_ps(x + i), b = _mm512_loadu_ps(x + i + 16);
        s0 = _mm512_fmadd_ps(a, a, s0);
        s1 = _mm512_fmadd_ps(b, b, s1);
    }
    for (; i < n; i += 16) {
        __mmask16 m = n - i < 16 ? (__mmask16)((1u << (n - i)) - 1) : (__mmask16)0xffff;
        __m512 a = _mm512_maskz_loadu_ps(m, x + i);
        s0 = _mm512_fmadd_ps(a, a, s0);
    }
    float mean = _mm512_reduce_add_ps(_mm512_add_ps(s0, s1)) / (float)n;
    __m512 scale = _mm512_set1_ps(1 / sqrtf(mean + eps));
    for (i = 0; i < n; i += 16) {
        __mmask16 m = n - i < 16 ? (__mmask16)((1u << (n - i)) - 1) : (__mmask16)0xffff;
        __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(m, x + i), scale);
        if (gain)
            v = _mm512_mul_ps(v, _mm512_maskz_loadu_ps(m, gain + i));
        _mm512_mask_storeu_ps(y + i, m, v);
    }
}
