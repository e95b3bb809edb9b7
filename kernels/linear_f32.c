/* linear_f32: float weights x float activations, plain C. Weights: [k][32] per panel (weight.h). */
#include "kernels/cpu.h"

void linear_f32_c(const struct linear_args *a)
{
    for (uint32_t r = 0; r < a->m; r++) {
        float sum[PANEL] = {0};
        const float *x = a->a.f + (size_t)r * a->k;
        const float *w = (const float *)(const void *)a->w;
        for (uint32_t k = 0; k < a->k; k++, w += PANEL)
            for (int c = 0; c < PANEL; c++)
                sum[c] += x[k] * w[c];
        linear_store(a, r, sum);
    }
}
