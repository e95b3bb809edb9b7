/* linear_q8: Q8 weights x int8 activations, plain C. Per block of 32 k: an exact integer product,
 * times the activation's and the column's scale. Weights: u8 q + 128 [8][32][4], fp16 d[32]. */
#include "kernels/cpu.h"

#include "kernels/half.h"

void linear_q8_c(const struct linear_args *a)
{
    uint32_t blocks = a->k / Q_BLOCK;
    for (uint32_t r = 0; r < a->m; r++) {
        float sum[PANEL] = {0};
        const int8_t *x = a->a.q + (size_t)r * a->k;
        const uint8_t *w = a->w;
        for (uint32_t b = 0; b < blocks; b++, w += Q8_BLOCK_BYTES, x += Q_BLOCK) {
            int32_t dot[PANEL] = {0};
            for (int k = 0; k < Q_BLOCK; k++)
                for (int c = 0; c < PANEL; c++)
                    dot[c] += x[k] * ((int)w[k / 4 * PANEL * 4 + c * 4 + k % 4] - 128);
            const uint16_t *d = (const uint16_t *)(const void *)(w + PANEL * Q_BLOCK);
            float da = a->a.d[(size_t)r * blocks + b];
            for (int c = 0; c < PANEL; c++)
                sum[c] += (float)dot[c] * (f16_to_f32(d[c]) * da);
        }
        linear_store(a, r, sum);
    }
}
