/* hidden: see hidden.h. The residual stream of every row is still there when the pass is over; the
 * head's norm is applied here once more, in double, and tokens are added one after another, so that
 * the sum does not depend on how the prompt was cut into steps. */
#include "common/engine/hidden.h"

#include <math.h>

static void add_row(const float *x, const float *gain, uint32_t n, float eps, float *sum)
{
    double square = 0;
    for (uint32_t i = 0; i < n; i++)
        square += (double)x[i] * (double)x[i];
    double scale = 1 / sqrt(square / n + (double)eps);
    for (uint32_t i = 0; i < n; i++)
        sum[i] += (float)((double)x[i] * scale * (gain ? (double)gain[i] : 1));
}

void hidden_add(const struct engine *e, const struct engine_step *s)
{
    const float *x = backend_buffer(e->backend, BUFFER_X);
    const struct op *head = &e->forward.ops[e->forward.n_ops - 1];
    uint32_t base = 0, n = e->dims.hidden;
    for (uint32_t i = 0; i < s->n_rows; i++) {
        const struct engine_row *r = &s->rows[i];
        for (uint32_t t = r->hidden_from; r->hidden && t < r->n_tokens; t++)
            add_row(x + (size_t)(base + t) * n, head->norm, n, e->dims.rms_eps, r->hidden);
        base += r->n_tokens;
    }
}
