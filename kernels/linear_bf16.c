/* linear_bf16: bf16 weights x float activations, plain C. Weights: [k/2][32][2] per panel. */
#include "kernels/cpu.h"

#include "kernels/half.h"

void linear_bf16_c(const struct linear_args *a)
{
    for (uint32_t r = 0; r < a->m; r++) {
        float sum[PANEL] = {0};
        const float *x = a->a.f + (size_t)r * a->k;
        const uint16_t *w = (const uint16_t *)(const void *)a->w;
        for (uint32_t k = 0; k < a->k; k += 2, w += 2 * PANEL)
            for (int c = 0; c < PANEL; c++) {
                sum[c] += x[k] * bf16_to_f32(w[2 * c]);
                sum[c] += x[k + 1] * bf16_to_f32(w[2 * c + 1]);
            }
        linear_store(a, r, sum);
    }
}
