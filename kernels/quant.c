/* quant: activations to int8, one float scale per 32 numbers (largest magnitude to 127), plain C.
 * A block without a number above QUANT_MIN becomes zero: its scale would have no inverse. */
#include "kernels/cpu.h"

#include <math.h>

#define QUANT_MIN 1e-30f

/* Returns the sum of the integers; half: of the first 16. */
static int32_t quant_block(const float *x, int8_t *q, float *d, int32_t *half)
{
    float max = 0;
    for (int i = 0; i < Q_BLOCK; i++)
        max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
    *d = max > QUANT_MIN ? max * (1.0f / 127) : 0;
    float inverse = max > QUANT_MIN ? 1 / *d : 0;
    int32_t sum = 0;
    for (int i = 0; i < Q_BLOCK; i++) {
        long v = lrintf(x[i] * inverse);
        q[i] = (int8_t)(v < -127 ? -127 : v > 127 ? 127 : v);
        sum += q[i];
        if (i == Q_BLOCK / 2 - 1)
            *half = sum;
    }
    return sum;
}

void quant_q8_c(const float *x, size_t n, int8_t *q, float *d, int32_t *s)
{
    int32_t half;
    for (size_t b = 0; b < n / Q_BLOCK; b++)
        s[b] = -128 * quant_block(x + b * Q_BLOCK, q + b * Q_BLOCK, &d[b], &half);
}

void quant_q4_c(const float *x, size_t n, int8_t *q, float *d, float *ds)
{
    int32_t half;
    for (size_t b = 0; b < n / Q_BLOCK; b++) {
        int32_t sum = quant_block(x + b * Q_BLOCK, q + b * Q_BLOCK, &d[b], &half);
        ds[b] = d[b] * (float)sum;
    }
}

void quant_q8k_c(const float *x, size_t n, int8_t *q, float *d, int32_t *s, float *ds)
{
    for (size_t b = 0; b < n / Q_BLOCK; b++) {
        int32_t half, sum = quant_block(x + b * Q_BLOCK, q + b * Q_BLOCK, &d[b], &half);
        s[2 * b] = -128 * half;
        s[2 * b + 1] = -128 * (sum - half);
        ds[b] = d[b] * (float)sum;
    }
}
