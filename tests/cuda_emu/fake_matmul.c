/* fake_matmul: cuBLASLt of the emulated device.
 *
 * Sums run over K in pieces whose length depends on the number of rows: on a device, too, another
 * M may mean another kernel and another order. A test that takes for granted that a row has the
 * same bits in a large batch as in a small one fails here. */
#include <stdlib.h>
#include <string.h>

#include "tests/cuda_emu/fake_internal.h"

struct gpu_matmul {
    struct gpu_matmul_desc d;
};

int fake_matmul_create(const struct gpu_matmul_desc *d, struct gpu_matmul **out)
{
    struct gpu_matmul *p = malloc(sizeof *p);
    if (!p)
        return GPU_ERROR_MEMORY;
    p->d = *d;
    *out = p;
    return 0;
}

int fake_matmul_destroy(struct gpu_matmul *p)
{
    free(p);
    return 0;
}

const struct gpu_matmul_desc *fake_matmul_desc(const struct gpu_matmul *p)
{
    return &p->d;
}

static float to_f32(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static uint16_t to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

void fake_matmul_run(const void *args)
{
    const struct fake_matmul_run *r = args;
    uint32_t n = r->d.n, k = r->d.k, piece = 8 + r->m % 7 * 8;
    memset(r->workspace, 0xff, r->d.workspace); /* it is the library's: nobody else's */
    for (uint32_t i = 0; i < r->m; i++) {
        for (uint32_t j = 0; j < n; j++) {
            const uint16_t *x = r->x + (size_t)i * k, *w = r->w + (size_t)j * k;
            float sum = 0;
            for (uint32_t at = 0; at < k; at += piece) {
                float part = 0;
                for (uint32_t c = at; c < at + piece && c < k; c++)
                    part += to_f32(x[c]) * to_f32(w[c]);
                sum += part;
            }
            size_t to = (size_t)i * r->d.ldy + j;
            if (r->d.y_f32)
                ((float *)r->y)[to] = r->d.accumulate ? ((float *)r->y)[to] + sum : sum;
            else
                ((uint16_t *)r->y)[to] =
                    to_bf16(r->d.accumulate ? to_f32(((uint16_t *)r->y)[to]) + sum : sum);
        }
    }
}
