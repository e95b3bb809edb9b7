/* linear_q8k: Q8K weights (d[k / 16] q + m) x int8 activations, plain C. Per block of 32 k two
 * exact integer products of 16 k, each with its own scale, and the minimum times the activations'
 * sum. */
#include "kernels/cpu.h"

#include "kernels/half.h"

void linear_q8k_c(const struct linear_args *a)
{
    uint32_t blocks = a->k / Q_BLOCK;
    for (uint32_t r = 0; r < a->m; r++) {
        float sum[PANEL] = {0};
        const int8_t *x = a->a.q + (size_t)r * a->k;
        const uint8_t *w = a->w;
        for (uint32_t b = 0; b < blocks; b++, w += Q8K_BLOCK_BYTES, x += Q_BLOCK) {
            const uint16_t *d = (const uint16_t *)(const void *)(w + PANEL * Q_BLOCK);
            float da = a->a.d[(size_t)r * blocks + b], ds = a->a.ds[(size_t)r * blocks + b];
            for (int half = 0; half < 2; half++) {
                int32_t dot[PANEL] = {0};
                for (int k = 16 * half; k < 16 * half + 16; k++)
                    for (int c = 0; c < PANEL; c++)
                        dot[c] += x[k] * ((int)w[k / 4 * PANEL * 4 + c * 4 + k % 4] - 128);
                for (int c = 0; c < PANEL; c++)
                    sum[c] += (float)dot[c] * (f16_to_f32(d[half * PANEL + c]) * da);
            }
            for (int c = 0; c < PANEL; c++)
                sum[c] += f16_to_f32(d[2 * PANEL + c]) * ds;
        }
        linear_store(a, r, sum);
    }
}
