/* The default model against transformers, teacher-forced: the reference's own ids are fed, and each
 * step's best token is compared where the reference is sure enough of its own. Skipped when the
 * model is not in the cache. */
#include <math.h>

#include "tests/engine/rig.h"

static struct rig rig;
static struct rig_seq seq;

static bool golden_open(const char *isa)
{
    struct engine_options o = rig_options;
    o.isa = isa;
    o.max_batch = 1;
    o.context = RIG_SEQ * 16;
    if (test_model() == NULL || !rig_has_isa(isa))
        return false;
    rig_open(&rig, test_model(), &o);
    return true;
}

struct tally {
    uint32_t steps, sure, sure_same, very, very_same;
};

/* Prompt and output in one row, every position scored with its alternatives. */
static void golden_case(const json_t *c, struct tally *t)
{
    static int32_t ids[RIG_SEQ * 16], out[256];
    uint32_t n = rig_json_ids(json_object_get(c, "prompt_ids"), ids, 512);
    uint32_t n_out = rig_json_ids(json_object_get(c, "output_ids"), out, 256);
    memcpy(ids + n, out, n_out * sizeof *out);
    rig_seq_init(&rig, &seq, ids, n + n_out - 1);
    rig_eval(&rig, &seq, (uint32_t[]){512, 0});
    for (uint32_t i = 0; i < n_out; i++) {
        const json_t *top = json_array_get(json_object_get(c, "top5"), i);
        const json_t *best = json_array_get(top, 0), *second = json_array_get(top, 1);
        double gap = json_number_value(json_array_get(best, 1)) -
                     json_number_value(json_array_get(second, 1));
        bool same =
            seq.scores[n - 1 + i].top_id[0] == (int32_t)json_integer_value(json_array_get(best, 0));
        t->steps++;
        t->sure += gap > 0.2;
        t->sure_same += gap > 0.2 && same;
        t->very += gap > 0.5;
        t->very_same += gap > 0.5 && same;
    }
    rig_seq_fini(&seq);
}

static const char *const isas[] = {"amx", "avx512", "avx2"};

START_TEST(golden_best_tokens)
{
    if (!golden_open(isas[_i]))
        return;
    json_t *golden = rig_json("golden/smollm2-135m-instruct-q4_1.json"), *c;
    struct tally t = {0};
    size_t i;
    json_array_foreach(json_object_get(golden, "greedy_chat"), i, c) golden_case(c, &t);
    json_array_foreach(json_object_get(golden, "greedy_raw"), i, c) golden_case(c, &t);
    if (getenv("ENGINE_TEST_PRINT"))
        printf("%s: %u steps; gap > 0.2: %u of %u; gap > 0.5: %u of %u\n", rig.info->numerics,
               t.steps, t.sure_same, t.sure, t.very_same, t.very);
    ck_assert_uint_ge(t.sure, 255);
    ck_assert_msg(t.sure_same * 100 >= t.sure * 98, "%u of %u sure steps agree", t.sure_same,
                  t.sure);
    ck_assert_uint_eq(t.very_same, t.very);
    ck_assert_uint_gt(t.very, 150);
    json_decref(golden);
    rig_close(&rig);
}
END_TEST

START_TEST(golden_mean_log_probability)
{
    if (!golden_open(isas[_i]))
        return;
    static int32_t ids[RIG_SEQ * 16];
    json_t *golden = rig_json("golden/smollm2-135m-instruct-q4_1.json");
    const json_t *score = json_array_get(json_object_get(golden, "score"), 0);
    uint32_t n = rig_json_ids(json_object_get(score, "ids"), ids, 1024);
    rig_seq_init(&rig, &seq, ids, n);
    rig_eval(&rig, &seq, (uint32_t[]){512, 0});
    double sum = 0, want = json_number_value(json_object_get(score, "mean"));
    for (uint32_t i = 0; i + 1 < n; i++) {
        ck_assert_int_eq(seq.scores[i].token, ids[i + 1]);
        sum += (double)seq.scores[i].logprob;
    }
    double mean = sum / (n - 1);
    if (getenv("ENGINE_TEST_PRINT"))
        printf("%s: mean log probability %.5f, reference %.5f\n", rig.info->numerics, mean, want);
    ck_assert_uint_gt(n, 50);
    ck_assert_msg(fabs(mean - want) <= 0.01 * fabs(want), "%.5f, not %.5f", mean, want);
    rig_seq_fini(&seq);
    json_decref(golden);
    rig_close(&rig);
}
END_TEST

START_TEST(golden_one_answer)
{
    /* The one-answer rule with the real shapes: a prompt in one chunk, in chunks, by tokens. */
    if (!golden_open("auto"))
        return;
    static struct rig_seq base, other;
    json_t *golden = rig_json("golden/smollm2-135m-instruct-q4_1.json");
    static int32_t ids[RIG_SEQ * 16];
    const json_t *score = json_array_get(json_object_get(golden, "score"), 0);
    uint32_t n = rig_json_ids(json_object_get(score, "ids"), ids, 1024);
    rig_seq_init(&rig, &base, ids, n);
    rig_eval(&rig, &base, (uint32_t[]){512, 0});
    static const uint32_t ways[][4] = {{16, 0}, {48, 1, 1, 0}, {1, 0}};
    for (size_t i = 0; i < 3; i++) {
        rig.next = 50;
        rig_seq_init(&rig, &other, ids, n);
        rig_eval(&rig, &other, ways[i]);
        rig_compare(&rig, &base, &rig, &other, 0, "golden");
        rig_seq_fini(&other);
    }
    rig_seq_fini(&base);
    json_decref(golden);
    rig_close(&rig);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("golden");
    TCase *t = tcase_create("default model");
    tcase_add_loop_test(t, golden_best_tokens, 0, 3);
    tcase_add_loop_test(t, golden_mean_log_probability, 0, 3);
    tcase_add_test(t, golden_one_answer);
    tcase_set_timeout(t, 120);
    suite_add_tcase(s, t);
    return s;
}
