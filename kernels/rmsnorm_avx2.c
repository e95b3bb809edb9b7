/* rmsnorm: y = x / sqrt(mean(x^2) + eps) * gain. The sum runs in 2 x 8 lanes, a remainder in plain
 * floats behind them. */
#include "kernels/cpu.h"
#include "kernels/exp2_avx2.h"

#include <math.h>

void rmsnorm_avx2(const float *x, const float *gain, size_t n, float eps, float *y)
{
    __m256 s0 = _mm256_setzero_ps(), s1 = s0;
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + i + 8);
        s0 = _mm256_fmadd_ps(a, a, s0);
        s1 = _mm256_fmadd_ps(b, b, s1);
    }
    float sum = sum_256(_mm256_add_ps(s0, s1));
    for (; i < n; i++)
        sum += x[i] * x[i];
    float scale = 1 / sqrtf(sum / (float)n + eps);
    for (i = 0; i < n; i++)
        y[i] = gain ? x[i] * scale * gain[i] : x[i] * scale;
}
