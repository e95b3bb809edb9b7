/* silu: silu(g) * u with silu(g) = g / (1 + e^-g), plain C. */
#include "kernels/cpu.h"

#include <math.h>

void silu_c(const float *g, const float *u, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = g[i] / (1 + expf(-g[i])) * u[i];
}
