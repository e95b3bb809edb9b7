/* silu: silu(g) * u = g / (1 + 2^(-g log2 e)) * u. For very negative g the power stops at 2^127:
 * the quotient is below 1e-35. */
#include "kernels/cpu.h"
#include "kernels/exp2_avx2.h"

void silu_avx2(const float *g, const float *u, size_t n, float *out)
{
    const __m256 one = _mm256_set1_ps(1), log2e = _mm256_set1_ps(-1.44269504088896340736f);
    for (size_t i = 0; i < n; i += 8) {
        __m256 v = _mm256_loadu_ps(g + i);
        __m256 e = exp2_256(_mm256_mul_ps(v, log2e));
        v = _mm256_div_ps(v, _mm256_add_ps(one, e));
        _mm256_storeu_ps(out + i, _mm256_mul_ps(v, _mm256_loadu_ps(u + i)));
    }
}
