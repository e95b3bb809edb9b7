/* rope: rotary position embedding of one head, plain C. Pair i turns by the i-th angle of the
 * position; its two numbers are half a head apart (neox) or neighbours. */
#include "kernels/cpu.h"

void rope_c(float *x, const float *table, size_t head_dim, bool neox)
{
    size_t half = head_dim / 2;
    for (size_t i = 0; i < half; i++) {
        float *p = neox ? x + i : x + 2 * i, *q = neox ? x + half + i : x + 2 * i + 1;
        float a = *p, b = *q, cosine = table[i], sine = table[half + i];
        *p = a * cosine - b * sine;
        *q = b * cosine + a * sine;
    }
}
