/* linear_q4: Q4 weights (d q + m) x int8 activations, plain C. Per block of 32 k: an exact integer
 * product times both scales, and the minimum times the activations' scaled sum. Weights: nibbles
 * [4][32][4], fp16 d[32], fp16 m[32]. */
#include "kernels/cpu.h"

#include "kernels/half.h"

void linear_q4_c(const struct linear_args *a)
{
    uint32_t blocks = a->k / Q_BLOCK;
    for (uint32_t r = 0; r < a->m; r++) {
        float sum[PANEL] = {0};
        const int8_t *x = a->a.q + (size_t)r * a->k;
        const uint8_t *w = a->w;
        for (uint32_t b = 0; b < blocks; b++, w += Q4_BLOCK_BYTES, x += Q_BLOCK) {
            int32_t dot[PANEL] = {0};
            for (int i = 0; i < 4; i++)
                for (int c = 0; c < PANEL; c++)
                    for (int j = 0; j < 4; j++) {
                        uint8_t v = w[i * PANEL * 4 + c * 4 + j];
                        dot[c] += x[8 * i + j] * (v & 15) + x[8 * i + 4 + j] * (v >> 4);
                    }
            const uint16_t *d = (const uint16_t *)(const void *)(w + PANEL * Q_BLOCK / 2);
            float da = a->a.d[(size_t)r * blocks + b], ds = a->a.ds[(size_t)r * blocks + b];
            for (int c = 0; c < PANEL; c++) {
                sum[c] += (float)dot[c] * (f16_to_f32(d[c]) * da);
                sum[c] += f16_to_f32(d[PANEL + c]) * ds;
            }
        }
        linear_store(a, r, sum);
    }
}
