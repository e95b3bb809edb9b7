/* spec: checks of a job, its copy, and where a sequence ends. */
#include "common/worker/spec.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/harness.h"

static const int32_t prompt[] = {5, 6, 7, 8}, emitted[] = {9, 10}, stops[] = {2, 0};
static const struct spec_limits limits = {.vocab = 100, .context = 16};

static struct proto_job good(void)
{
    return (struct proto_job){.prompt = {prompt, 4},
                              .emitted = {emitted, 2},
                              .stop_ids = {stops, 2},
                              .sampling = {.temperature = 1, .top_p = 1},
                              .max_tokens = 8,
                              .salt = {"salt", 4}};
}

static struct proto_job with_budget(uint32_t tokens)
{
    struct proto_job j = good();
    j.think_limit = tokens + 1;
    j.think_start = REASONING_OPEN;
    j.think_open = (struct proto_bytes){"<", 1};
    j.think_close = j.think_force = (struct proto_bytes){">>", 2};
    return j;
}

START_TEST(check)
{
    static const int32_t below[] = {-1}, above[] = {100};
    char why[128];
    struct proto_job j = good();
    ck_assert_int_eq(spec_check(&j, &limits, why, sizeof why), PROTO_REASON_NONE);
    struct proto_job bad[40];
    int n = 0;
    const float infinite = INFINITY;
    static const int32_t sizes[] = {2, 0};
    for (int i = 0; i < 40; i++)
        bad[i] = good();
    bad[n++].prompt.n = 0;
    bad[n++].prompt.n = SIZE_MAX;
    bad[n++].emitted = (struct proto_ids){prompt, 13};
    bad[n++].prompt = (struct proto_ids){below, 1};
    bad[n++].prompt = (struct proto_ids){above, 1};
    bad[n++].emitted = (struct proto_ids){above, 1};
    bad[n++].stop_ids = (struct proto_ids){above, 1};
    bad[n++].max_tokens = 2;
    bad[n++].max_tokens = 0;
    bad[n++].top_logprobs = SAMPLE_TOP_MAX + 1;
    bad[n++].score_top = SAMPLE_TOP_MAX + 1;
    bad[n++].n_ids = 101;
    bad[n++].sampling.temperature = NAN;
    bad[n++].sampling.temperature = -0.5f;
    bad[n++].sampling.top_p = 1.5f;
    bad[n++].sampling.min_p = INFINITY;
    bad[n++].sampling.presence = NAN;
    bad[n++].sampling.frequency = -2.5f;
    bad[n++].sampling.repetition = -1;
    bad[n++].sampling.allowed = (struct proto_ids){above, 1};
    bad[n++].sampling.bias_ids = (struct proto_ids){prompt, 1}; /* without its value */
    bad[n].sampling.bias_ids = (struct proto_ids){prompt, 1};
    bad[n++].sampling.bias = (struct proto_bytes){&infinite, sizeof infinite};
    bad[n++].sampling.bad_words = (struct proto_ids){prompt, 2}; /* sizes are missing */
    bad[n].sampling.bad_words = (struct proto_ids){prompt, 2};
    bad[n++].sampling.bad_word_sizes = (struct proto_ids){sizes, 2};
    bad[n++].think_limit = 1;
    bad[n] = with_budget(1);
    bad[n++].think_close = (struct proto_bytes){"a\0b", 3};
    bad[n] = with_budget(1);
    bad[n++].think_force.n = 0;
    for (int i = 0; i < n; i++) {
        why[0] = 0;
        ck_assert_msg(spec_check(&bad[i], &limits, why, sizeof why) == PROTO_REASON_INVALID,
                      "case %d", i);
        ck_assert_int_gt((int)strlen(why), 8);
    }
    j.max_tokens = 0; /* to score the prompt alone */
    j.score_prompt = true;
    ck_assert_int_eq(spec_check(&j, &limits, why, sizeof why), PROTO_REASON_NONE);
}
END_TEST

START_TEST(copy)
{
    struct spec s;
    int32_t ids[2] = {5, 6};
    char salt[] = "abc";
    struct proto_job j = good();
    j.prompt = (struct proto_ids){ids, 2};
    j.emitted.n = 0;
    j.salt = (struct proto_bytes){salt, 3};
    ck_assert_ok(spec_copy(&s, &j));
    ids[0] = 99;
    salt[0] = 'x';
    ck_assert_int_eq(s.job.prompt.p[0], 5);
    ck_assert_uint_eq(s.job.prompt.n, 2);
    ck_assert_uint_eq(s.job.emitted.n, 0);
    ck_assert_mem_eq(s.job.salt.p, "abc", 3);
    ck_assert_int_eq(s.job.stop_ids.p[1], 0);
    spec_fini(&s);
}
END_TEST

START_TEST(finish)
{
    struct proto_job j = good();
    ck_assert_int_eq(spec_finish(&j, 7, 3, 7, 16), PROTO_FINISH_NONE);
    ck_assert_int_eq(spec_finish(&j, 2, 3, 7, 16), PROTO_FINISH_STOP);
    ck_assert_int_eq(spec_finish(&j, 0, 8, 12, 16), PROTO_FINISH_STOP);
    ck_assert_int_eq(spec_finish(&j, 7, 8, 12, 16), PROTO_FINISH_LENGTH);
    ck_assert_int_eq(spec_finish(&j, 7, 3, 16, 16), PROTO_FINISH_LENGTH);
    j.ignore_eos = true;
    ck_assert_int_eq(spec_finish(&j, 2, 3, 7, 16), PROTO_FINISH_NONE);
}
END_TEST

START_TEST(sampling)
{
    struct proto_job j = good();
    j.sampling = (struct proto_sampling){.temperature = 0.5f, .top_k = 3, .seed = 9};
    j.top_logprobs = 4;
    struct sample_params p = spec_sampling(&j, 100);
    ck_assert(p.temperature == 0.5f && p.top_p == 1 && p.top_k == 3 && p.seed == 9);
    ck_assert(p.n_top == 4 && p.n_ids == 100 && p.n_banned == 0);
    j.ignore_eos = true;
    j.n_ids = 90;
    p = spec_sampling(&j, 100);
    ck_assert(p.n_ids == 90 && p.n_banned == 2 && p.banned[0] == 2);
}
END_TEST

START_TEST(digest_does_not_depend_on_order)
{
    uint64_t a = digest_term(0, 1, 77) + digest_term(1, 0, 78);
    uint64_t b = digest_term(1, 0, 78) + digest_term(0, 1, 77);
    ck_assert_uint_eq(a, b);
    ck_assert_uint_ne(a, digest_term(0, 1, 78) + digest_term(1, 0, 77)); /* swapped contents */
    ck_assert_uint_ne(digest_term(0, 1, 77), digest_term(1, 0, 77));
}
END_TEST

/* A budget goes on where the emitted tokens end. */
START_TEST(budget_after_emitted)
{
    char text[100][8];
    struct token_text tokens[100];
    uint8_t types[100];
    for (int i = 0; i < 100; i++) {
        int n = i < 94 ? snprintf(text[i], sizeof text[i], "%c", 33 + i)
                       : snprintf(text[i], sizeof text[i], "x%d", i);
        tokens[i] = (struct token_text){text[i], (size_t)n};
        types[i] = TOKEN_NORMAL;
    }
    struct token_text merges[][2] = {{{"x", 1}, {"9", 1}}, {{"x9", 2}, {"9", 1}}};
    tokens[98] = (struct token_text){"x9", 2};
    struct tokenizer_spec spec = {.kind = TOKENIZER_BPE,
                                  .pre = "gpt-2",
                                  .n_tokens = 100,
                                  .tokens = tokens,
                                  .types = types,
                                  .n_merges = 2,
                                  .merges = (const struct token_text(*)[2])merges,
                                  .bos = -1,
                                  .eos = -1,
                                  .eot = -1,
                                  .unk = -1,
                                  .pad = -1};
    struct tokenizer *t = NULL;
    char err[128];
    ck_assert_msg(tokenizer_create(&spec, &t, err, sizeof err) == 0, "%s", err);
    const int32_t end = '>' - 33;
    for (uint32_t limit = 0; limit < 5; limit++) {
        struct proto_job j = with_budget(limit);
        struct spec s;
        struct budget *b = NULL;
        int32_t ids[] = {20, 21};
        j.emitted = (struct proto_ids){ids, limit < 2 ? 0 : 2};
        ck_assert_ok(spec_copy(&s, &j));
        ck_assert_ok(spec_budget(&s.job, t, &b));
        ck_assert_int_eq(budget_next(b, 0), limit == 0 || limit == 2 ? end : BUDGET_ANY);
        ck_assert_uint_eq(budget_used(b), j.emitted.n);
        budget_destroy(b);
        spec_fini(&s);
    }
    tokenizer_destroy(t);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("worker/spec");
    TCase *t = tcase_create("spec");
    tcase_add_test(t, check);
    tcase_add_test(t, copy);
    tcase_add_test(t, budget_after_emitted);
    tcase_add_test(t, finish);
    tcase_add_test(t, sampling);
    tcase_add_test(t, digest_does_not_depend_on_order);
    suite_add_tcase(s, t);
    return s;
}
