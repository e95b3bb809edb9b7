/* Sampling on the device against common/engine/sample.c: the same token, always. */
#include "tests/cuda/kernels.h"

#include "common/engine/sample.h"

#define ROWS   5
#define ROUNDS (2 * (SEEDS - SEED_FIRST))

static const uint32_t vocabs[] = {1, 17, 256, 300, 1000, 5003};
#define N_VOCABS ((int)(sizeof vocabs / sizeof *vocabs))

enum kind { NORMAL, SHARP, STEPS, EQUAL, ODD, NOTHING, N_KINDS };

/* One logit of a row: smooth, peaked, few distinct values, all equal, with infinities and what is
 * not a number, or nothing usable at all. */
static float logit(struct source *s, enum kind kind)
{
    float x = source_float(s, 1) + source_float(s, 1) + source_float(s, 1);
    uint32_t r = source_below(s, 20);
    switch (kind) {
    case NORMAL:
        return 4 * x;
    case SHARP:
        return 40 * x * x * x;
    case STEPS:
        return floorf(3 * x);
    case EQUAL:
        return 2;
    case ODD:
        return r == 0 ? NAN : r == 1 ? -INFINITY : r == 2 ? INFINITY : r == 3 ? -3e38f : 6 * x;
    default:
        return r < 10 ? NAN : -INFINITY;
    }
}

static float pick(struct source *s, const float *of, uint32_t n)
{
    return of[source_below(s, n)];
}

/* Random parameters; every switch is off in some rows. */
static void random_params(struct source *s, uint32_t vocab, struct sample_params *p,
                          int32_t *banned, struct gpu_sample *g)
{
    static const float temperatures[] = {0, -1, 0.3f, 0.7f, 1, 1, 2.5f, 100};
    static const float top_p[] = {1, 1, 0.1f, 0.5f, 0.9f, 0.95f, 0.999f, 1e-6f};
    static const float min_p[] = {0, 0, 0, 0.02f, 0.5f, 1};
    static const float top_k[] = {0, 0, -1, 1, 2, 20, 250, 100000};
    memset(g, 0, sizeof *g);
    *p = (struct sample_params){.temperature = pick(s, temperatures, 8),
                                .top_p = pick(s, top_p, 8),
                                .min_p = pick(s, min_p, 6),
                                .top_k = (int32_t)pick(s, top_k, 8),
                                .seed = (uint64_t)source_u32(s) << 32 | source_u32(s),
                                .n_top = (uint8_t)source_below(s, 4) * 5,
                                .want_logprob = source_below(s, 2) == 0,
                                .n_ids = source_below(s, 2) ? 0 : 1 + source_below(s, vocab)};
    p->n_banned = source_below(s, 2) ? 0 : source_below(s, GPU_BANNED_MAX + 1);
    for (uint32_t i = 0; i < p->n_banned; i++)
        banned[i] = g->banned[i] = (int32_t)source_below(s, vocab + 3) - 1;
    p->banned = banned;
    g->seed = p->seed;
    g->temperature = p->temperature;
    g->top_p = p->top_p;
    g->min_floor = p->min_p > 0 ? logf(p->min_p < 1 ? p->min_p : 1) : -INFINITY;
    g->top_k = p->top_k;
    g->choice = source_below(s, 3);
    g->position = source_below(s, 5000);
    g->n_ids = p->n_ids;
    g->mask = GPU_NO_MASK;
    g->flags = p->want_logprob ? GPU_SAMPLE_LOGPROB : 0;
    g->n_top = p->n_top;
    g->n_banned = p->n_banned;
    g->last_position = 0xffffffffu;
    g->slot = GPU_NO_SLOT;
}

static void check_result(const struct gpu_result *got, const struct sample_result *want,
                         const struct sample_params *p, const char *what)
{
    ck_assert_msg(got->token == want->token,
                  "%s: %d, not %d (temperature %g top_p %g top_k %d min_p %g ids %u)", what,
                  got->token, want->token, (double)p->temperature, (double)p->top_p, p->top_k,
                  (double)p->min_p, p->n_ids);
    ck_assert_float_eq_tol(got->logprob, want->logprob, 1e-5f + 1e-6f * fabsf(want->logprob));
    ck_assert_uint_eq(got->n_top, want->n_top);
    for (uint32_t i = 0; i < want->n_top; i++) {
        ck_assert_int_eq(got->top_id[i], want->top_id[i]);
        ck_assert_float_eq_tol(got->top_logprob[i], want->top_logprob[i],
                               1e-5f + 1e-6f * fabsf(want->top_logprob[i]));
    }
}

/* Bias and penalties for some ids of the row; `to` and `g->adjust` have room for ADJUST_MAX. */
#define ADJUST_MAX 64
static void random_adjust(struct source *s, uint32_t vocab, struct sample_adjust *to,
                          struct gpu_adjust *device, struct sample_params *p, struct gpu_sample *g)
{
    static const float biases[] = {0, 0, -100, 100, 0.5f, -3.25f};
    static const float repetitions[] = {0, 1, 1.3f, 0.5f, 1e-6f};
    uint32_t n = source_below(s, ADJUST_MAX + 1), id = source_below(s, 1 + vocab / 8);
    p->n_adjust = 0;
    for (uint32_t i = 0; i < n && id < vocab; i++, id += 1 + source_below(s, 1 + vocab / 16)) {
        to[i] = (struct sample_adjust){.id = (int32_t)id,
                                       .count = source_below(s, 4) * source_below(s, 30),
                                       .bias = pick(s, biases, 6)};
        to[i].seen = to[i].count > 0 || source_below(s, 2);
        memcpy(&device[i], &to[i], sizeof to[i]);
        p->n_adjust++;
    }
    p->adjust = to;
    p->presence = g->presence = pick(s, biases, 1 + source_below(s, 2) * 4) / 50;
    p->frequency = g->frequency = source_float(s, 1);
    p->repetition = g->repetition = pick(s, repetitions, 5);
    g->n_adjust = p->n_adjust;
    g->adjust = device;
}

struct run {
    struct rig r;
    uint32_t vocab, ld, words;
    float *logits, *scratch;
    uint32_t *mask;
    struct gpu_result *results;
};

static void run_init(struct run *t, uint32_t vocab, uint64_t seed)
{
    const struct shape s = {.vocab = vocab};
    rig_init(&t->r, &s, 1, ROWS, ROWS, 0, seed);
    t->vocab = vocab;
    t->ld = gpu_pad(vocab, 128);
    t->words = (vocab + 31) / 32;
    t->logits = floats((size_t)ROWS * t->ld);
    t->scratch = floats((size_t)ROWS * t->ld);
    t->mask = test_memory((size_t)2 * t->words * sizeof *t->mask);
    t->results = test_memory(ROWS * sizeof *t->results);
    rig_step(&t->r)->n_logits = ROWS;
}

static void fill_logits(struct run *t, enum kind kind)
{
    for (uint32_t row = 0; row < ROWS; row++)
        for (uint32_t i = 0; i < t->ld; i++)
            t->logits[row * t->ld + i] = i < t->vocab ? logit(&t->r.random, kind) : 0;
}

START_TEST(sample_as_cpu)
{
    struct run t;
    run_init(&t, vocabs[_i % N_VOCABS], 300 + (uint64_t)_i);
    enum kind kind = (enum kind)(_i / N_VOCABS);
    struct gpu_sample *samples = gpu_step_samples(t.r.m.step, &t.r.m.caps);
    float *scratch = malloc(t.vocab * sizeof *scratch);
    for (int round = 0; round < ROUNDS; round++) {
        struct sample_params p[ROWS];
        int32_t banned[ROWS][GPU_BANNED_MAX];
        fill_logits(&t, kind);
        for (int i = 0; i < ROWS; i++)
            random_params(&t.r.random, t.vocab, &p[i], banned[i], &samples[i]);
        memset(t.scratch, 0xff, ROWS * t.ld * sizeof *t.scratch);
        memset(t.results, 0xff, ROWS * sizeof *t.results);
        emu_seed((uint64_t)round);
        if (round % SEEDS == 0) {
            hide_begin();
            hide_input(t.logits, ROWS * t.ld * sizeof *t.logits);
            watch_output(t.results, ROWS * sizeof *t.results);
            watch_output(t.scratch, ROWS * t.ld * sizeof *t.scratch);
        }
        ck_assert_ok(cuda_sample(t.r.l, &t.r.m, ROWS, t.logits, NULL, 0, t.scratch, t.results));
        if (round % SEEDS == 0)
            hide_end();
        for (int i = 0; i < ROWS; i++) {
            struct sample_result want;
            char what[64];
            snprintf(what, sizeof what, "vocab %u kind %d round %d row %d", t.vocab, (int)kind,
                     round, i);
            sample_token(t.logits + i * t.ld, t.vocab, &p[i], samples[i].choice,
                         samples[i].position, scratch, &want);
            check_result(&t.results[i], &want, &p[i], what);
            ck_assert_uint_eq(t.results[i].position, samples[i].position);
            ck_assert_uint_eq(t.results[i].ended, 0);
        }
    }
    free(scratch);
    test_free_all();
}
END_TEST

/* A mask row is a long list of banned ids. */
START_TEST(sample_mask)
{
    struct run t;
    run_init(&t, 1000, 77);
    struct gpu_sample *samples = gpu_step_samples(t.r.m.step, &t.r.m.caps);
    int32_t *ids = malloc(t.vocab * sizeof *ids);
    float *scratch = malloc(t.vocab * sizeof *scratch);
    for (int round = 0; round < 2 * ROUNDS; round++) {
        struct sample_params p[ROWS];
        int32_t banned[ROWS][GPU_BANNED_MAX];
        uint32_t n = 0, every = 1 + source_below(&t.r.random, 40);
        fill_logits(&t, round % 2 ? NORMAL : ODD);
        memset(t.mask, 0, 2 * t.words * sizeof *t.mask);
        for (uint32_t i = 0; i < t.vocab; i++)
            if (round == 0 || source_below(&t.r.random, every))
                ids[n++] = (int32_t)i;
            else
                t.mask[t.words + i / 32] |= 1u << i % 32;
        for (int i = 0; i < ROWS; i++) {
            random_params(&t.r.random, t.vocab, &p[i], banned[i], &samples[i]);
            samples[i].n_banned = 0;
            samples[i].mask = 1;
            p[i].banned = ids;
            p[i].n_banned = n;
        }
        emu_seed((uint64_t)round);
        ck_assert_ok(
            cuda_sample(t.r.l, &t.r.m, ROWS, t.logits, t.mask, t.words, t.scratch, t.results));
        for (int i = 0; i < ROWS; i++) {
            struct sample_result want;
            sample_token(t.logits + i * t.ld, t.vocab, &p[i], samples[i].choice,
                         samples[i].position, scratch, &want);
            check_result(&t.results[i], &want, &p[i], "masked");
        }
    }
    free(ids);
    free(scratch);
    test_free_all();
}
END_TEST

/* Bias and penalties, with and without a mask. */
START_TEST(sample_adjusts)
{
    struct run t;
    run_init(&t, vocabs[1 + _i % (N_VOCABS - 1)], 500 + (uint64_t)_i);
    struct gpu_sample *samples = gpu_step_samples(t.r.m.step, &t.r.m.caps);
    struct gpu_adjust *device = test_memory(ROWS * ADJUST_MAX * sizeof *device);
    float *scratch = malloc(t.vocab * sizeof *scratch);
    for (int round = 0; round < ROUNDS; round++) {
        struct sample_params p[ROWS];
        struct sample_adjust list[ROWS][ADJUST_MAX];
        int32_t banned[ROWS][GPU_BANNED_MAX];
        fill_logits(&t, (enum kind)(round % N_KINDS));
        for (uint32_t i = 0; i < 2 * t.words; i++)
            t.mask[i] = source_u32(&t.r.random) | source_u32(&t.r.random);
        for (int i = 0; i < ROWS; i++) {
            random_params(&t.r.random, t.vocab, &p[i], banned[i], &samples[i]);
            random_adjust(&t.r.random, t.vocab, list[i], device + i * ADJUST_MAX, &p[i],
                          &samples[i]);
            samples[i].mask = i % 2 ? 1 : GPU_NO_MASK;
            p[i].allowed = i % 2 ? t.mask + t.words : NULL;
        }
        memset(t.scratch, 0xff, ROWS * t.ld * sizeof *t.scratch);
        emu_seed((uint64_t)round);
        ck_assert_ok(
            cuda_sample(t.r.l, &t.r.m, ROWS, t.logits, t.mask, t.words, t.scratch, t.results));
        for (int i = 0; i < ROWS; i++) {
            struct sample_result want;
            sample_token(t.logits + i * t.ld, t.vocab, &p[i], samples[i].choice,
                         samples[i].position, scratch, &want);
            check_result(&t.results[i], &want, &p[i], "adjusted");
        }
    }
    free(scratch);
    test_free_all();
}
END_TEST

/* Where a sequence ends, and what its slot holds then. */
START_TEST(sample_slots)
{
    struct run t;
    run_init(&t, 300, 78);
    struct gpu_model *m = &t.r.m;
    struct gpu_sample *samples = gpu_step_samples(m->step, &m->caps);
    for (uint32_t i = 0; i < ROWS * t.ld; i++)
        t.logits[i] = i % t.ld == 42 ? 5 : 0;
    for (int i = 0; i < ROWS; i++)
        samples[i] = (struct gpu_sample){.top_p = 1,
                                         .min_floor = -INFINITY,
                                         .slot = (uint32_t)i,
                                         .position = 10,
                                         .last_position = 11,
                                         .mask = GPU_NO_MASK};
    rig_step(&t.r)->n_logits = ROWS - 1;
    samples[0].n_stop = 2; /* 42 is a stop id */
    samples[0].stop[0] = 7;
    samples[0].stop[1] = 42;
    samples[1].last_position = 10; /* the last position */
    samples[2].flags = GPU_SAMPLE_SKIP;
    samples[3].flags = GPU_SAMPLE_IF_ALIVE; /* the slot died before */
    for (int seed = SEED_FIRST; seed < SEEDS; seed++) {
        for (int i = 0; i < ROWS; i++)
            m->slots[i] = (struct gpu_slot){1, i != 3};
        memset(t.results, 0xff, ROWS * sizeof *t.results);
        samples[3].flags = seed == 1 ? 0 : GPU_SAMPLE_IF_ALIVE;
        emu_seed((uint64_t)seed);
        ck_assert_ok(cuda_sample(t.r.l, m, ROWS, t.logits, NULL, 0, t.scratch, t.results));
        const struct gpu_result *r = t.results;
        ck_assert(r[0].token == 42 && r[0].ended && !m->slots[0].alive && m->slots[0].token == 42);
        ck_assert(r[1].token == 42 && r[1].ended && !m->slots[1].alive);
        ck_assert(r[2].token == -1 && !r[2].ended && m->slots[2].alive && m->slots[2].token == 1);
        if (seed == 1)
            ck_assert(r[3].token == 42 && !r[3].ended && m->slots[3].alive);
        else
            ck_assert(r[3].token == -1 && !m->slots[3].alive && m->slots[3].token == 1);
        ck_assert(untouched(&r[4], sizeof r[4]) && m->slots[4].token == 1);
    }
    test_free_all();
}
END_TEST

/* As many ids as real vocabularies have; weights over 120 binary orders. */
START_TEST(sample_large)
{
    struct run t;
    run_init(&t, 151936, 79);
    struct gpu_sample *samples = gpu_step_samples(t.r.m.step, &t.r.m.caps);
    float *scratch = malloc(t.vocab * sizeof *scratch);
    struct sample_params p[ROWS];
    int32_t banned[ROWS][GPU_BANNED_MAX];
    for (uint32_t i = 0; i < ROWS * t.ld; i++)
        t.logits[i] =
            (i / t.ld == 0 ? 44 : 5) * source_float(&t.r.random, 1) + source_float(&t.r.random, 2);
    for (int i = 0; i < ROWS; i++) {
        random_params(&t.r.random, t.vocab, &p[i], banned[i], &samples[i]);
        p[i].temperature = samples[i].temperature = i == 0 ? 1 : 0.8f;
        p[i].top_p = samples[i].top_p = 0.5f + 0.12f * (float)i;
        p[i].top_k = samples[i].top_k = i == 2 ? 40000 : 0;
        p[i].min_p = 0;
        samples[i].min_floor = -INFINITY;
        p[i].n_ids = samples[i].n_ids = 0;
        p[i].n_top = 0;
        samples[i].n_top = 0;
    }
    rig_step(&t.r)->n_logits = 3;
    ck_assert_ok(cuda_sample(t.r.l, &t.r.m, 3, t.logits, NULL, 0, t.scratch, t.results));
    for (int i = 0; i < 3; i++) {
        struct sample_result want;
        sample_token(t.logits + i * t.ld, t.vocab, &p[i], samples[i].choice, samples[i].position,
                     scratch, &want);
        check_result(&t.results[i], &want, &p[i], "large");
    }
    free(scratch);
    test_free_all();
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("cuda sampling");
    add_cases(s, sample_as_cpu, N_VOCABS * N_KINDS);
    add_cases(s, sample_mask, 1);
    add_cases(s, sample_adjusts, 2 * (N_VOCABS - 1));
    add_cases(s, sample_slots, 1);
    add_cases(s, sample_large, 1);
    return s;
}
