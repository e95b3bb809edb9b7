/* sample: from logits to a token.
 *
 * The vocabulary is never sorted. A cut (top_k, top_p) is a threshold on the scaled logit, found by
 * a radix selection: three passes that count tokens, or add up their weight, by the leading bits of
 * the logit's distance to the best one; ties at the threshold are kept from the lowest id on. So
 * the surviving set is exactly that of a stable descending sort, in linear time.
 *
 * Order: temperature, top_k, min_p, top_p. top_k and min_p both cut from the bottom, so their order
 * does not matter; top_p is taken of the weight that they leave.
 *
 * Everything is computed in one fixed order with plain float arithmetic and an exponential of our
 * own: equal logits give equal tokens and equal log probabilities on every machine of an
 * architecture. Blocks of BLOCK ids are summed in LANES parts, which compilers turn into vector
 * code without being allowed to reorder anything.
 *
 * Not a number: such a logit is treated as impossible. Infinite ones are clamped, so that no
 * difference of two logits is undefined and every reported log probability is finite. */
/* Vector code for selects, which could otherwise raise a flag that nobody reads. */
#pragma GCC optimize("O3", "no-trapping-math")

#include "common/engine/sample.h"

#include <math.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/rng.h"

#define BLOCK         256
#define LANES         8
#define LOGIT_MAX     1e30f
#define LOGPROB_FLOOR (-9999.0f)

#define RADIX_BITS  11
#define RADIX_BINS  (1 << RADIX_BITS)
#define RADIX_STEPS 3 /* 11 + 11 + 9 = the 31 bits of a float without its sign */

/* e^x for x <= 0, to about one unit in the last place; 0 below -87. The loop form of the usual
 * reduction to [-ln 2 / 2, ln 2 / 2]: no branches, so that it vectorises. */
static inline float exp_negative(float x)
{
    float c = x > -87.0f ? x : -87.0f;
    float n = c * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: the sum is rounded to an integer */
    int32_t k;
    memcpy(&k, &n, sizeof k);
    n -= 12582912.0f;
    float r = (c - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    k = (k - 0x4b400000 + 127) * (1 << 23);
    float scale;
    memcpy(&scale, &k, sizeof scale);
    p *= scale;
    memcpy(&k, &p, sizeof k);
    k &= -(x > -87.0f);
    memcpy(&p, &k, sizeof p);
    return p;
}

/* A logit that can be calculated with; not a number becomes "impossible". */
static inline float clean(float x)
{
    float lo = x > -LOGIT_MAX ? x : -LOGIT_MAX;
    return lo < LOGIT_MAX ? lo : LOGIT_MAX;
}

static float array_max(const float *x, uint32_t n)
{
    float m[LANES];
    for (int l = 0; l < LANES; l++)
        m[l] = -INFINITY;
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            m[l] = x[i + l] > m[l] ? x[i + l] : m[l];
    for (; i < n; i++)
        m[0] = x[i] > m[0] ? x[i] : m[0];
    for (int l = 1; l < LANES; l++)
        m[0] = m[l] > m[0] ? m[l] : m[0];
    return m[0];
}

static double block_sum(const float *w, uint32_t n)
{
    float s[LANES] = {0};
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            s[l] += w[i + l];
    for (; i < n; i++)
        s[0] += w[i];
    double sum = 0;
    for (int l = 0; l < LANES; l++)
        sum += (double)s[l];
    return sum;
}

static uint32_t block_size(uint32_t at, uint32_t n)
{
    return n - at < BLOCK ? n - at : BLOCK;
}

/* log(sum(exp(logit))) over the whole head, as max + log of the rest. */
struct log_sum {
    float max;
    double log;
};

static struct log_sum log_sum_exp(const float *logits, uint32_t vocab)
{
    struct log_sum s = {.max = clean(array_max(logits, vocab))};
    double sum = 0;
    for (uint32_t at = 0; at < vocab; at += BLOCK) {
        float w[BLOCK];
        uint32_t n = block_size(at, vocab);
        for (uint32_t i = 0; i < n; i++)
            w[i] = exp_negative(clean(logits[at + i]) - s.max);
        sum += block_sum(w, n);
    }
    s.log = log(sum); /* the maximum contributes 1: sum >= 1 */
    return s;
}

static float log_prob(const struct log_sum *s, float logit)
{
    double p = (double)(clean(logit) - s->max) - s->log;
    return p < (double)LOGPROB_FLOOR ? LOGPROB_FLOOR : p > 0 ? 0 : (float)p;
}

/* The n_top best ids, best first, ties by id. */
static void fill_top(const float *logits, uint32_t n_ids, uint32_t n_top, const struct log_sum *s,
                     struct sample_result *out)
{
    float best[SAMPLE_TOP_MAX];
    uint32_t n = 0;
    if (n_top > SAMPLE_TOP_MAX)
        n_top = SAMPLE_TOP_MAX;
    for (uint32_t i = 0; n_top > 0 && i < n_ids; i++) {
        float x = logits[i];
        if (n == n_top ? !(x > best[n - 1]) : x != x)
            continue;
        uint32_t at = n < n_top ? n++ : n - 1;
        for (; at > 0 && x > best[at - 1]; at--) {
            best[at] = best[at - 1];
            out->top_id[at] = out->top_id[at - 1];
        }
        best[at] = x;
        out->top_id[at] = (int32_t)i;
    }
    for (uint32_t i = 0; i < n; i++)
        out->top_logprob[i] = log_prob(s, best[i]);
    out->n_top = (uint8_t)n;
}

static void fill_score(const float *logits, uint32_t vocab, uint32_t n_ids, int32_t token,
                       uint8_t n_top, struct sample_result *out)
{
    struct log_sum s = log_sum_exp(logits, vocab);
    bool known = token >= 0 && (uint32_t)token < vocab;
    out->logprob = known ? log_prob(&s, logits[token]) : LOGPROB_FLOOR;
    fill_top(logits, n_ids, n_top, &s, out);
}

/* The candidates: scratch[i] holds -(distance to the best logit) / temperature, -INFINITY for what
 * must not be drawn. The radix key of a candidate is the bit pattern of the distance. */
static uint32_t key_of(float s)
{
    float d = 0.0f - s;
    uint32_t k;
    memcpy(&k, &d, sizeof k);
    return k;
}

#define KEY_NONE 0x7f800000u /* the key of -INFINITY: no candidate */

struct radix {
    uint32_t count[RADIX_BINS];
    double mass[RADIX_BINS];
};

/* Counts (and weighs) the candidates whose key begins with `prefix` by their next bits. */
static void radix_count(const float *s, uint32_t n, uint32_t prefix, int step, bool weigh,
                        struct radix *r)
{
    int shift = step == RADIX_STEPS - 1 ? 0 : 31 - RADIX_BITS * (step + 1);
    int above = 31 - RADIX_BITS * step; /* bits at and above this one are the prefix */
    uint32_t mask = (1u << (above - shift)) - 1;
    memset(r->count, 0, sizeof r->count);
    memset(r->mass, 0, sizeof r->mass);
    float w[BLOCK];
    for (uint32_t at = 0; at < n; at += BLOCK) {
        uint32_t len = block_size(at, n);
        for (uint32_t i = 0; weigh && step == 0 && i < len; i++)
            w[i] = exp_negative(s[at + i]);
        for (uint32_t i = 0; i < len; i++) {
            uint32_t k = key_of(s[at + i]);
            if (k >= KEY_NONE || (step > 0 && k >> above != prefix))
                continue;
            uint32_t bin = k >> shift & mask;
            r->count[bin]++;
            if (weigh)
                r->mass[bin] += (double)(step == 0 ? w[i] : exp_negative(s[at + i]));
        }
    }
}

/* Keeps the best candidates: `limit` of them, or as few as have `share` of the weight. */
static void cut(float *s, uint32_t n, bool by_mass, uint32_t limit, double share)
{
    struct radix r;
    uint32_t prefix = 0;
    uint64_t count = 0; /* kept for certain: all that are better than the prefix */
    double mass = 0, target = 0;
    for (int step = 0; step < RADIX_STEPS; step++) {
        radix_count(s, n, prefix, step, by_mass, &r);
        if (step == 0 && by_mass) {
            double total = 0;
            for (uint32_t i = 0; i < RADIX_BINS; i++)
                total += r.mass[i];
            target = share * total;
        }
        uint32_t bin = RADIX_BINS;
        for (uint32_t i = 0; i < RADIX_BINS; i++) {
            if (r.count[i] == 0)
                continue;
            if (bin < RADIX_BINS) {
                count += r.count[bin];
                mass += r.mass[bin];
            }
            bin = i;
            if (by_mass ? mass + r.mass[i] >= target : count + r.count[i] >= limit)
                break;
        }
        if (bin == RADIX_BINS)
            return; /* no candidates at all */
        prefix = prefix << (step == RADIX_STEPS - 1 ? 31 - RADIX_BITS * step : RADIX_BITS) | bin;
    }
    /* prefix is now the whole key of the last survivors; how many of these equals stay? */
    uint64_t ties = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = key_of(s[i]);
        if (k < prefix)
            continue;
        bool stay = k == prefix && (by_mass ? ties == 0 || mass < target : count + ties < limit);
        if (!stay) {
            s[i] = -INFINITY;
            continue;
        }
        ties++;
        mass += (double)exp_negative(s[i]);
    }
}

float sample_adjusted(float x, const struct sample_adjust *a, const struct sample_params *p)
{
    if (!(x > -INFINITY && x < INFINITY))
        return x;
    x += a->bias;
    if (a->seen && p->repetition > 0)
        x = x > 0 ? x / p->repetition : x * p->repetition;
    if (a->count > 0) {
        x -= p->frequency * (float)a->count;
        x -= p->presence;
    }
    return x < LOGIT_MAX ? x : LOGIT_MAX;
}

/* Fills scratch with the candidates; returns their number (0: nothing may be drawn). */
static uint32_t candidates(const float *logits, uint32_t vocab, const struct sample_params *p,
                           float *s)
{
    uint32_t n = p->n_ids == 0 || p->n_ids > vocab ? vocab : p->n_ids;
    for (uint32_t i = 0; i < n; i++) {
        float x = logits[i], c = x < LOGIT_MAX ? x : LOGIT_MAX;
        s[i] = x == x ? c : -INFINITY;
    }
    for (uint32_t i = 0; i < p->n_adjust; i++) {
        const struct sample_adjust *a = &p->adjust[i];
        if ((uint32_t)a->id < n)
            s[a->id] = sample_adjusted(s[a->id], a, p);
    }
    for (uint32_t i = 0; i < p->n_banned; i++)
        if (p->banned[i] >= 0 && (uint32_t)p->banned[i] < n)
            s[p->banned[i]] = -INFINITY;
    for (uint32_t i = 0; p->allowed != NULL && i < n; i++)
        if (!(p->allowed[i / 32] >> i % 32 & 1))
            s[i] = -INFINITY;
    return n;
}

/* The lowest id that is neither unknown nor banned, for heads without a usable logit. */
static int32_t first_allowed(uint32_t n, const struct sample_params *p)
{
    for (uint32_t i = 0; i < n; i++) {
        bool banned = false;
        for (uint32_t j = 0; j < p->n_banned; j++)
            banned = banned || p->banned[j] == (int32_t)i;
        if (p->allowed != NULL)
            banned = banned || !(p->allowed[i / 32] >> i % 32 & 1);
        if (!banned)
            return (int32_t)i;
    }
    return 0;
}

static uint32_t index_of(const float *s, float x)
{
    uint32_t i = 0;
    while (s[i] != x)
        i++;
    return i;
}

/* Turns the candidates into weights and draws one with the uniform number u. */
static uint32_t draw(float *s, uint32_t n, float u)
{
    double total = 0, at = 0;
    for (uint32_t b = 0; b < n; b += BLOCK) {
        uint32_t len = block_size(b, n);
        for (uint32_t i = 0; i < len; i++)
            s[b + i] = exp_negative(s[b + i]);
        total += block_sum(s + b, len);
    }
    double target = (double)u * total;
    uint32_t last = 0;
    for (uint32_t b = 0; b < n; b += BLOCK) {
        uint32_t len = block_size(b, n);
        double sum = block_sum(s + b, len);
        double next = at + sum;
        for (uint32_t i = 0; next > target && i < len; i++) {
            if (s[b + i] <= 0)
                continue;
            last = b + i;
            at += (double)s[b + i];
            if (at > target)
                return last;
        }
        at = next;
    }
    ASSERT(s[last] > 0);
    return last;
}

/* The best id without copying the logits; -1 when there is more to it: a best logit that is clamped
 * or must not be drawn. */
static int32_t best_plain(const float *logits, uint32_t n, const struct sample_params *p)
{
    float max = -INFINITY;
    uint32_t block = 0;
    for (uint32_t at = 0; at < n; at += BLOCK) {
        float m = array_max(logits + at, block_size(at, n));
        block = m > max ? at : block;
        max = m > max ? m : max;
    }
    if (!(max > -INFINITY && max < LOGIT_MAX))
        return -1;
    int32_t id = (int32_t)(block + index_of(logits + block, max));
    for (uint32_t i = 0; i < p->n_banned; i++)
        if (p->banned[i] == id)
            return -1;
    return id;
}

static int32_t choose(const float *logits, uint32_t vocab, const struct sample_params *p,
                      uint32_t choice, uint32_t position, float *s)
{
    if ((!(p->temperature > 0) || p->top_k == 1) && p->allowed == NULL && p->n_adjust == 0) {
        uint32_t known = p->n_ids == 0 || p->n_ids > vocab ? vocab : p->n_ids;
        int32_t id = best_plain(logits, known, p);
        if (id >= 0)
            return id;
    }
    uint32_t n = candidates(logits, vocab, p, s);
    float max = array_max(s, n);
    if (max == -INFINITY)
        return first_allowed(n, p);
    if (!(p->temperature > 0) || p->top_k == 1)
        return (int32_t)index_of(s, max);
    float floor = p->min_p > 0 ? logf(p->min_p < 1 ? p->min_p : 1) : -INFINITY;
    float temperature = p->temperature;
    for (uint32_t i = 0; i < n; i++) {
        float x = (s[i] - max) / temperature;
        s[i] = x >= floor ? x : -INFINITY;
    }
    if (p->top_k > 0 && (uint32_t)p->top_k < n)
        cut(s, n, false, (uint32_t)p->top_k, 0);
    if (p->top_p < 1)
        cut(s, n, true, 0, (double)p->top_p);
    return (int32_t)draw(s, n, rng_uniform(p->seed, choice, position));
}

void sample_token(const float *logits, uint32_t vocab, const struct sample_params *p,
                  uint32_t choice, uint32_t position, float *scratch, struct sample_result *out)
{
    out->n_top = 0;
    out->logprob = 0;
    out->rank = 0;
    out->token = choose(logits, vocab, p, choice, position, scratch);
    uint32_t n_ids = p->n_ids == 0 || p->n_ids > vocab ? vocab : p->n_ids;
    if (p->want_logprob || p->n_top > 0)
        fill_score(logits, vocab, n_ids, out->token, p->n_top, out);
}

void sample_score(const float *logits, uint32_t vocab, uint32_t n_ids, int32_t token, uint8_t n_top,
                  struct sample_result *out)
{
    out->token = token;
    out->n_top = 0;
    fill_score(logits, vocab, n_ids == 0 || n_ids > vocab ? vocab : n_ids, token, n_top, out);
    out->rank = 1;
    for (uint32_t i = 0; i < vocab && token >= 0 && (uint32_t)token < vocab; i++)
        out->rank += logits[i] > logits[token];
}
