/* rope: how fast each pair of dimensions rotates, with the scalings that stretch a context.
 *
 * Pair i of a head of n dimensions turns by theta^(-2 i / n) radians for each position. The
 * scalings slow that down, so that more positions fit into the angles that the model was trained
 * on:
 *
 *   linear   all pairs by `factor` (position interpolation)
 *   llama3   pairs whose wave is longer than original / low by `factor`, those shorter than
 *            original / high not at all, those between by a mixture
 *   yarn     the same idea, with the bounds given as turns over the original context (beta_fast and
 *            beta_slow); and cosines and sines times a magnitude
 *
 * GGUF files of Llama 3.1 and later say it as a table instead, rope_freqs.weight: divisors, one for
 * each pair, on top of whatever else there is. Formulas as in transformers' modeling_rope_utils;
 * the results are compared with its own in tests/model/test_rope.c. */
#include <math.h>

#include "common/model/model_internal.h"
#include "common/model/tensor.h"

#define FACTOR_MAX 1e6

static const double two_pi = 6.283185307179586476925;

int model_rope_check(const struct model_params *p, const char *path, char *err, size_t errlen)
{
    const struct model_rope *r = &p->rope;
    if (r->kind == ROPE_PLAIN)
        return 0;
    if (!(r->factor >= 1 && r->factor <= FACTOR_MAX))
        return model_error(err, errlen, STATUS_RANGE, "%s: the factor of the RoPE scaling is %g",
                           path, (double)r->factor);
    if (r->kind == ROPE_LINEAR)
        return 0;
    if (r->original == 0 || r->original > 1u << 27)
        return model_error(err, errlen, STATUS_RANGE,
                           "%s: the original context of the RoPE scaling is %u", path, r->original);
    bool ordered = r->kind == ROPE_LLAMA3
                       ? r->low > 0 && r->high > r->low && isfinite(r->high)
                       : r->low > 0 && r->high > r->low && isfinite(r->high) && p->rope_theta > 1;
    if (!ordered)
        return model_error(err, errlen, STATUS_RANGE, "%s: the RoPE scaling's bounds are %g and %g",
                           path, (double)r->low, (double)r->high);
    if (!(r->magnitude > 0 && r->magnitude <= 100))
        return model_error(err, errlen, STATUS_RANGE, "%s: the RoPE scaling's magnitude is %g",
                           path, (double)r->magnitude);
    return 0;
}

uint32_t model_rope_context(const struct model_rope *r, uint32_t context)
{
    if (r->kind != ROPE_LINEAR && r->kind != ROPE_YARN)
        return context;
    double stretched = (double)(r->original ? r->original : context) * (double)r->factor;
    return stretched > 1 << 27 ? 1 << 27 : stretched > context ? (uint32_t)stretched : context;
}

float model_rope_magnitude(float factor, float weight)
{
    return factor > 1 ? 0.1f * weight * logf(factor) + 1 : 1;
}

static double llama3(const struct model_rope *r, double freq)
{
    double wave = two_pi / freq, original = r->original;
    if (wave < original / (double)r->high)
        return freq;
    if (wave > original / (double)r->low)
        return freq / (double)r->factor;
    double mix = (original / wave - (double)r->low) / ((double)r->high - (double)r->low);
    return (1 - mix) * freq / (double)r->factor + mix * freq;
}

/* The dimension pair that makes `turns` turns over the original context. */
static double turning_at(const struct model_params *p, double turns)
{
    return p->head_dim * log(p->rope.original / (turns * two_pi)) /
           (2 * log((double)p->rope_theta));
}

static double yarn(const struct model_params *p, uint32_t pair, double freq)
{
    double from = turning_at(p, (double)p->rope.high), to = turning_at(p, (double)p->rope.low);
    if (p->rope.truncate) {
        from = floor(from);
        to = ceil(to);
    }
    from = fmax(from, 0);
    to = fmin(to, p->head_dim - 1.0);
    if (from == to)
        to += 0.001;
    double ramp = fmin(fmax((pair - from) / (to - from), 0), 1);
    return ramp * freq / (double)p->rope.factor + (1 - ramp) * freq;
}

int model_rope_resolve(struct model *m, struct model_source *s, const struct tensor *divisors,
                       char *err, size_t errlen)
{
    const struct model_params *p = &m->params;
    uint32_t half = p->head_dim / 2;
    double *freqs = arena_alloc(&s->arena, half * sizeof *freqs);
    float *by = arena_alloc(&s->arena, half * sizeof *by);
    if (!freqs || !by)
        return model_error(err, errlen, STATUS_NOMEM, "%s: out of memory", s->path);
    if (divisors->data)
        tensor_row_f32(divisors, 0, by);
    for (uint32_t i = 0; i < half; i++) {
        double f = pow((double)p->rope_theta, -2.0 * i / p->head_dim);
        if (p->rope.kind == ROPE_LINEAR)
            f /= (double)p->rope.factor;
        else if (p->rope.kind == ROPE_LLAMA3)
            f = llama3(&p->rope, f);
        else if (p->rope.kind == ROPE_YARN)
            f = yarn(p, i, f);
        if (divisors->data && !(by[i] > 0 && isfinite(by[i])))
            return model_error(err, errlen, STATUS_FORMAT, "%s: tensor '%s': entry %u is %g",
                               s->path, divisors->name, i, (double)by[i]);
        freqs[i] = divisors->data ? f / (double)by[i] : f;
    }
    m->rope_freqs = freqs;
    return 0;
}
