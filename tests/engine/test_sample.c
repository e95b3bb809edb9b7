/* Sampling: against a plain sorting reference, distributions by chi-square with fixed seeds, and
 * hostile logits. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "common/engine/sample.h"
#include "tests/harness.h"

#define V 1000

static float scratch[V], logits[V];

static float normal(uint64_t key, uint64_t i)
{
    struct rng_block r = rng_philox(key, i, 0);
    float a = ((float)r.v[0] + 1) / 4294967296.0f, b = (float)r.v[1] / 4294967296.0f;
    return sqrtf(-2 * logf(a)) * cosf(6.2831853f * b);
}

static void fill(uint64_t key, float scale)
{
    for (uint32_t i = 0; i < V; i++)
        logits[i] = scale * normal(key, i);
}

static int32_t draw(const struct sample_params *p, uint32_t position)
{
    struct sample_result r;
    memset(&r, 0xff, sizeof r);
    sample_token(logits, V, p, 0, position, scratch, &r);
    ck_assert(r.token >= 0 && r.token < V && isfinite(r.logprob) && r.logprob <= 0);
    return r.token;
}

/* The plain reference: sort, cut, normalise. prob[id] is 0 for what must not be drawn. */
static int by_logit(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (logits[x] != logits[y])
        return logits[x] > logits[y] ? -1 : 1;
    return x < y ? -1 : 1;
}

static void reference(const struct sample_params *p, double *prob)
{
    int32_t id[V];
    double w[V];
    uint32_t n = 0;
    for (int32_t i = 0; i < V; i++) {
        bool banned = p->n_ids > 0 && (uint32_t)i >= p->n_ids;
        for (uint32_t j = 0; j < p->n_banned; j++)
            banned = banned || p->banned[j] == i;
        if (!banned)
            id[n++] = i;
    }
    qsort(id, n, sizeof *id, by_logit);
    for (uint32_t i = 0; i < n; i++)
        w[i] = exp(((double)logits[id[i]] - (double)logits[id[0]]) / (double)p->temperature);
    if (p->top_k > 0 && (uint32_t)p->top_k < n)
        n = (uint32_t)p->top_k;
    while (n > 1 && w[n - 1] < (double)p->min_p)
        n--;
    double total = 0, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        total += w[i];
    for (uint32_t i = 0; i < n; i++) {
        if (p->top_p < 1 && sum >= (double)p->top_p * total && i > 0)
            n = i;
        else
            sum += w[i];
    }
    memset(prob, 0, V * sizeof *prob);
    for (uint32_t i = 0; i < n; i++)
        prob[id[i]] = w[i] / sum;
}

/* Draws `n` tokens and compares the counts with the reference: nothing outside the set, and a
 * chi-square that a right sampler exceeds once in about 10^5 tries (and these are fixed ones). */
static void check_distribution(const struct sample_params *p, uint32_t n)
{
    double prob[V];
    uint32_t count[V] = {0};
    reference(p, prob);
    for (uint32_t i = 0; i < n; i++) {
        struct sample_result r;
        sample_token(logits, V, p, 0, i, scratch, &r);
        count[r.token]++;
    }
    double chi = 0, rest = 0, rest_count = 0;
    uint32_t cells = 0, survivors = 0;
    for (uint32_t i = 0; i < V; i++) {
        double want = prob[i] * n;
        survivors += prob[i] > 0;
        if (prob[i] <= 0) {
            ck_assert_msg(count[i] == 0, "id %u drawn %u times", i, count[i]);
        } else if (want < 5) {
            rest += want;
            rest_count += count[i];
        } else {
            chi += (count[i] - want) * (count[i] - want) / want;
            cells++;
        }
    }
    if (rest >= 5) {
        chi += (rest_count - rest) * (rest_count - rest) / rest;
        cells++;
    }
    if (survivors > 1) {
        double df = cells > 1 ? cells - 1 : 1; /* Wilson and Hilferty's approximation */
        double limit = df * pow(1 - 2 / (9 * df) + 4.3 * sqrt(2 / (9 * df)), 3);
        ck_assert_msg(chi < limit, "chi-square %.1f over %u cells, limit %.1f", chi, cells, limit);
    }
}

START_TEST(sample_distribution)
{
    static const struct sample_params cases[] = {
        {.temperature = 1, .top_p = 1},
        {.temperature = 0.7f, .top_p = 1, .top_k = 40},
        {.temperature = 1, .top_p = 0.9f},
        {.temperature = 1.3f, .top_p = 0.5f},
        {.temperature = 1, .top_p = 1, .min_p = 0.1f},
        {.temperature = 0.9f, .top_p = 0.8f, .top_k = 50, .min_p = 0.02f, .n_ids = 700},
        {.temperature = 2, .top_p = 0.999f, .top_k = 999},
        {.temperature = 1, .top_p = 0.95f, .top_k = 2},
    };
    struct sample_params p = cases[_i];
    p.seed = 77 + (uint64_t)_i;
    fill(5 + (uint64_t)_i, 2);
    check_distribution(&p, 20000);
}
END_TEST

START_TEST(sample_ties)
{
    /* Many equal logits: cuts keep the lowest ids, exactly as many as they should. */
    for (uint32_t i = 0; i < V; i++)
        logits[i] = i % 3 == 0 ? 2.0f : 1.0f;
    struct sample_params p = {.temperature = 1, .top_p = 1, .top_k = 7, .seed = 1};
    check_distribution(&p, 4000);
    p.top_k = 400; /* all 334 twos and 66 ones */
    check_distribution(&p, 20000);
    p.top_k = 0;
    p.top_p = 0.25f;
    check_distribution(&p, 20000);
}
END_TEST

START_TEST(sample_greedy)
{
    struct sample_params p = {.temperature = 0, .top_p = 1};
    for (uint64_t k = 0; k < 50; k++) {
        fill(k, 3);
        int32_t best = 0;
        for (int32_t i = 1; i < V; i++)
            if (logits[i] > logits[best])
                best = i;
        ck_assert_int_eq(draw(&p, 1), best);
        /* The same by other means, whatever the seed. */
        struct sample_params q[] = {{.temperature = 1, .top_p = 1e-9f, .seed = k},
                                    {.temperature = 1.7f, .top_p = 1, .top_k = 1, .seed = k},
                                    {.temperature = 1, .top_p = 1, .min_p = 1, .seed = k},
                                    {.temperature = 1e-30f, .top_p = 1, .seed = k}};
        for (size_t i = 0; i < sizeof q / sizeof q[0]; i++)
            for (uint32_t position = 0; position < 5; position++)
                ck_assert_int_eq(draw(&q[i], position), best);
    }
    logits[400] = logits[3] = logits[999] = 50; /* ties: the lowest id */
    ck_assert_int_eq(draw(&p, 1), 3);
    struct sample_params q = {.temperature = 1, .top_p = 1e-9f, .seed = 3};
    ck_assert_int_eq(draw(&q, 1), 3);
    p.n_ids = 3;
    ck_assert_int_lt(draw(&p, 1), 3);
}
END_TEST

START_TEST(sample_masked_never)
{
    fill(3, 1);
    int32_t banned[] = {0, 17, -1, 999, 5000, 2};
    logits[17] = 40;
    logits[950] = 60;
    struct sample_params p = {
        .temperature = 1, .top_p = 1, .n_ids = 900, .banned = banned, .n_banned = 6};
    for (uint32_t i = 0; i < 3000; i++) {
        p.temperature = (float)(i % 3);
        p.top_k = i % 2 ? 5 : 0;
        int32_t t = draw(&p, i);
        ck_assert(t != 0 && t != 17 && t != 2 && t < 900);
    }
}
END_TEST

START_TEST(sample_deterministic)
{
    fill(9, 2);
    float before[V];
    memcpy(before, logits, sizeof logits);
    struct sample_params p = {.temperature = 1, .top_p = 0.95f, .seed = 123, .n_top = 5};
    uint32_t other_seed = 0, other_choice = 0, other_position = 0;
    for (uint32_t i = 0; i < 200; i++) {
        struct sample_result a, b, c;
        sample_token(logits, V, &p, 1, i, scratch, &a);
        memset(scratch, 0x7f, sizeof scratch);
        sample_token(logits, V, &p, 1, i, scratch, &b);
        ck_assert(a.token == b.token && a.logprob == b.logprob);
        ck_assert_mem_eq(a.top_logprob, b.top_logprob, 5 * sizeof *a.top_logprob);
        sample_token(logits, V, &p, 2, i, scratch, &c);
        other_choice += a.token != c.token;
        sample_token(logits, V, &p, 1, i + 1, scratch, &c);
        other_position += a.token != c.token;
        struct sample_params q = p;
        q.seed++;
        sample_token(logits, V, &q, 1, i, scratch, &c);
        other_seed += a.token != c.token;
    }
    ck_assert_uint_gt(other_seed, 150);
    ck_assert_uint_gt(other_choice, 150);
    ck_assert_uint_gt(other_position, 150);
    ck_assert_mem_eq(before, logits, sizeof logits);
}
END_TEST

START_TEST(sample_logprobs)
{
    fill(4, 5);
    double sum = 0;
    for (uint32_t i = 0; i < V; i++)
        sum += exp((double)logits[i]);
    struct sample_result r;
    double total = 0;
    for (int32_t i = 0; i < V; i++) {
        sample_score(logits, V, V, i, 0, &r);
        double want = (double)logits[i] - log(sum);
        ck_assert_int_eq(r.token, i);
        ck_assert_msg(fabs((double)r.logprob - want) < 2e-6 * (1 + fabs(want)), "%g %g",
                      (double)r.logprob, want);
        total += exp((double)r.logprob);
    }
    ck_assert_double_eq_tol(total, 1, 1e-5);
    sample_score(logits, V, 800, 7, 20, &r);
    ck_assert_uint_eq(r.n_top, 20);
    int32_t id[V];
    for (int32_t i = 0; i < 800; i++)
        id[i] = i;
    qsort(id, 800, sizeof *id, by_logit);
    for (uint32_t i = 0; i < 20; i++) {
        struct sample_result one;
        ck_assert_int_eq(r.top_id[i], id[i]);
        sample_score(logits, V, V, id[i], 0, &one);
        ck_assert(one.logprob == r.top_logprob[i]);
    }
    /* Log probabilities are of the raw logits, whatever the temperature and the cuts. */
    struct sample_params p = {
        .temperature = 0.1f, .top_p = 0.1f, .want_logprob = true, .n_top = 255};
    struct sample_result s;
    sample_token(logits, V, &p, 0, 0, scratch, &s);
    ck_assert_int_eq(s.token, s.top_id[0]);
    ck_assert(s.logprob == s.top_logprob[0]);
    ck_assert_uint_eq(s.n_top, 20);
}
END_TEST

START_TEST(sample_score_accuracy)
{
    /* Two ids at every distance: our exponential against libm's, to the precision of a float. */
    for (float d = 0; d < 86; d += 0.0137f) {
        float two[2] = {3, 3 - d};
        struct sample_result r;
        sample_score(two, 2, 2, 0, 0, &r);
        double want = -log1p(exp(-(double)(3 - two[1])));
        ck_assert_msg(fabs((double)r.logprob - want) <= 2e-7 * fabs(want) + 1.2e-7, "%g: %g %g",
                      (double)d, (double)r.logprob, want);
    }
}
END_TEST

START_TEST(sample_hostile_logits)
{
    const float odd[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 0, -NAN};
    struct sample_result r;
    for (uint64_t t = 0; t < 300; t++) {
        fill(t, 4);
        for (uint32_t i = 0; i < V; i++) {
            struct rng_block x = rng_philox(t, i, 8);
            if (x.v[0] % 300 < t)
                logits[i] = odd[x.v[1] % (t % 7 + 1)];
        }
        struct sample_params p = {.temperature = (float)(t % 4) * 0.7f,
                                  .top_p = t % 2 ? 0.9f : 1,
                                  .top_k = t % 5 ? 0 : 30,
                                  .min_p = t % 3 ? 0 : 0.05f,
                                  .n_top = 20,
                                  .seed = t};
        sample_token(logits, V, &p, 0, (uint32_t)t, scratch, &r);
        ck_assert(r.token >= 0 && r.token < V);
        bool all_nan = true;
        for (uint32_t i = 0; i < V; i++)
            all_nan = all_nan && isnan(logits[i]);
        ck_assert(all_nan || !isnan(logits[r.token]));
        ck_assert(isfinite(r.logprob) && r.logprob <= 0 && r.logprob >= -9999);
        for (uint32_t i = 0; i < r.n_top; i++) {
            ck_assert(isfinite(r.top_logprob[i]) && r.top_logprob[i] <= 0);
            ck_assert(i == 0 || r.top_logprob[i] <= r.top_logprob[i - 1]);
            ck_assert(!isnan(logits[r.top_id[i]]));
        }
    }
    /* Nothing usable at all. */
    for (uint32_t i = 0; i < V; i++)
        logits[i] = NAN;
    int32_t banned[] = {0, 1};
    struct sample_params p = {
        .temperature = 1, .top_p = 1, .banned = banned, .n_banned = 2, .want_logprob = true};
    sample_token(logits, V, &p, 0, 0, scratch, &r);
    ck_assert_int_eq(r.token, 2);
    ck_assert(isfinite(r.logprob));
    sample_score(logits, V, V, -1, 20, &r);
    ck_assert(r.logprob == -9999 && r.n_top == 0);
    sample_score(logits, V, V, V, 3, &r);
    ck_assert(r.logprob == -9999);
}
END_TEST

START_TEST(sample_one_id)
{
    float x = -4;
    struct sample_params p = {.temperature = 1, .top_p = 0.5f, .top_k = 3, .n_top = 20};
    struct sample_result r;
    sample_token(&x, 1, &p, 0, 0, scratch, &r);
    ck_assert(r.token == 0 && r.logprob == 0 && r.n_top == 1 && r.top_id[0] == 0);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("sample");
    TCase *t = tcase_create("sample");
    tcase_add_loop_test(t, sample_distribution, 0, 8);
    tcase_add_test(t, sample_ties);
    tcase_add_test(t, sample_greedy);
    tcase_add_test(t, sample_masked_never);
    tcase_add_test(t, sample_deterministic);
    tcase_add_test(t, sample_logprobs);
    tcase_add_test(t, sample_score_accuracy);
    tcase_add_test(t, sample_hostile_logits);
    tcase_add_test(t, sample_one_id);
    tcase_set_timeout(t, 60);
    suite_add_tcase(s, t);
    return s;
}
