/* silu: silu(g) * u = g / (1 + 2^(-g log2 e)) * u. For very negative g the power is infinite and
 * the quotient 0. */
#include "kernels/cpu.h"
#include "kernels/exp2_avx512.h"

void silu_avx512(const float *g, const float *u, size_t n, float *out)
{
    const __m512 one = _mm512_set1_ps(1), log2e = _mm512_set1_ps(-1.44269504088896340736f);
    for (size_t i = 0; i < n; i += 16) {
        __m512 v = _mm512_loadu_ps(g + i);
        __m512 e = exp2_512(_mm512_mul_ps(v, log2e));
        v = _mm512_div_ps(v, _mm512_add_ps(one, e));
        _mm512_storeu_ps(out + i, _mm512_mul_ps(v, _mm512_loadu_ps(u + i)));
    }
}
