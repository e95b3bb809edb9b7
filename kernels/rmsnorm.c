/* rmsnorm: y = x / sqrt(mean(x^2) + eps) * gain, plain C. */
#include "kernels/cpu.h"

#include <math.h>

void rmsnorm_c(const float *x, const float *gain, size_t n, float eps, float *y)
{
    float sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    float scale = 1 / sqrtf(sum / (float)n + eps);
    for (size_t i = 0; i < n; i++)
        y[i] = gain ? x[i] * scale * gain[i] : x[i] * scale;
}
