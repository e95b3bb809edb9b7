/* The whole pass against transformers: tiny random models of all architectures and formats, by the
 * reference backend and by every instruction set. */
#include <math.h>

#include "tests/engine/rig.h"

static const char *const models[] = {"llama",       "qwen2",      "qwen3",      "llama-q8_0",
                                     "llama-q4_0",  "llama-q4_1", "qwen2-q8_0", "qwen3-q8_0",
                                     "llama-mixed", "llama-k"};
#define N_MODELS ((int)(sizeof models / sizeof models[0]))

/* How far the log probabilities may be from transformers' float32: root mean square over the ids
 * that are recorded, the largest one, and the gap above which the best id is never another one. The
 * models are random and their logits large (around 18), so rounding shows: KV is bf16 on every
 * path, which alone gives 0.04. bf16 weights round the activations to bf16 as well; quantised
 * weights take them in 8 bits. */
struct tolerance {
    double rms, worst, gap;
};
static const struct tolerance exact = {0.06, 0.25, 0.1}, bf16 = {0.1, 0.4, 0.2},
                              int8 = {0.25, 1.0, 0.6};

static const struct {
    const char *backend, *isa, *weights;
} paths[] = {{"ref", "auto", "auto"},   {"cpu", "c", "f32"},   {"cpu", "avx2", "f32"},
             {"cpu", "avx512", "f32"},  {"cpu", "c", "auto"},  {"cpu", "avx2", "auto"},
             {"cpu", "avx512", "auto"}, {"cpu", "amx", "auto"}};
#define N_PATHS ((int)(sizeof paths / sizeof paths[0]))

static struct rig rig;
static struct rig_seq seq;

static double log_sum(const float *x, uint32_t n)
{
    double max = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        max = fmax(max, (double)x[i]);
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)x[i] - max);
    return max + log(sum);
}

/* One token; its logits. */
static const float *step_one(void)
{
    struct engine_row row = rig_row(&seq, 1);
    struct engine_step s = {.rows = &row, .n_rows = 1};
    ck_assert_ok(engine_step(rig.e, &s));
    seq.done++;
    return engine_logits(rig.e);
}

struct error {
    double squares, worst, gap; /* gap: the largest one at which another id won */
    uint32_t n, greedy;
};

static void check_sequence(const json_t *q, struct error *e)
{
    static int32_t ids[RIG_SEQ * 16];
    uint32_t n = rig_json_ids(json_object_get(q, "ids"), ids, RIG_SEQ * 16);
    uint32_t first = (uint32_t)json_integer_value(json_object_get(q, "first"));
    rig_seq_init(&rig, &seq, ids, n);
    for (uint32_t i = 0; i < n; i++) {
        const float *logits = step_one();
        if (i < first)
            continue;
        double lse = log_sum(logits, rig.info->vocab);
        double want_lse = json_number_value(json_array_get(json_object_get(q, "lse"), i - first));
        const json_t *top = json_array_get(json_object_get(q, "top_ids"), i - first);
        const json_t *values = json_array_get(json_object_get(q, "top_logits"), i - first);
        for (size_t j = 0; j < json_array_size(top); j++) {
            double want = json_number_value(json_array_get(values, j)) - want_lse;
            double got = (double)logits[json_integer_value(json_array_get(top, j))] - lse;
            e->squares += (got - want) * (got - want);
            e->worst = fmax(e->worst, fabs(got - want));
            e->n++;
        }
    }
    rig_seq_fini(&seq);
}

/* Greedy generation along transformers' own ids. */
static void check_greedy(const json_t *g, struct error *e)
{
    static int32_t ids[RIG_SEQ * 16], out[64];
    uint32_t n = rig_json_ids(json_object_get(g, "prompt"), ids, 64);
    uint32_t n_out = rig_json_ids(json_object_get(g, "output"), out, 64);
    memcpy(ids + n, out, n_out * sizeof *out);
    struct sample_params greedy = {.temperature = 0, .top_p = 1};
    rig_seq_init(&rig, &seq, ids, n + n_out);
    for (uint32_t i = 0; i < n_out; i++) {
        struct engine_row row = rig_row(&seq, i == 0 ? n : 1);
        row.scores = NULL;
        row.sampling = &greedy;
        struct engine_step s = {.rows = &row, .n_rows = 1};
        ck_assert_ok(engine_step(rig.e, &s));
        seq.done += row.n_tokens;
        double gap = json_number_value(json_array_get(json_object_get(g, "gaps"), i));
        if (row.result.token != out[i])
            e->gap = fmax(e->gap, gap);
        e->greedy++;
    }
    rig_seq_fini(&seq);
}

START_TEST(forward_matches_transformers)
{
    const char *model = models[_i / N_PATHS];
    char path[96], what[96];
    if (!rig_has_isa(paths[_i % N_PATHS].isa))
        return;
    struct engine_options o = rig_options;
    o.backend = paths[_i % N_PATHS].backend;
    o.isa = paths[_i % N_PATHS].isa;
    o.weights = paths[_i % N_PATHS].weights;
    snprintf(path, sizeof path, "tiny/%s%s", model, strchr(model, '-') != NULL ? ".gguf" : "");
    rig_open(&rig, test_data(path), &o);
    snprintf(path, sizeof path, "tiny/%s.expect.json", model);
    snprintf(what, sizeof what, "%s, %s", model, rig.info->numerics);
    json_t *expect = rig_json(path), *q;
    const struct tolerance *t = &exact;
    if (strcmp(o.backend, "cpu") == 0 && strcmp(o.weights, "auto") == 0)
        t = strchr(model, '-') != NULL ? &int8 : &bf16;
    struct error e = {0};
    size_t i;
    json_array_foreach(json_object_get(expect, "sequences"), i, q) check_sequence(q, &e);
    json_array_foreach(json_object_get(expect, "greedy"), i, q) check_greedy(q, &e);
    double rms = sqrt(e.squares / e.n);
    if (getenv("ENGINE_TEST_PRINT"))
        printf("%s: rms %.4f, worst %.4f, gap %.4f\n", what, rms, e.worst, e.gap);
    ck_assert_uint_ge(e.n, 25 * 16); /* it compares something */
    ck_assert_uint_ge(e.greedy, 64);
    ck_assert_msg(rms <= t->rms && e.worst <= t->worst && e.gap <= t->gap,
                  "%s: rms %.4f, worst %.4f, another id at a gap of %.4f", what, rms, e.worst,
                  e.gap);
    json_decref(expect);
    rig_close(&rig);
}
END_TEST

START_TEST(forward_formats_named)
{
    /* The numerics class and the layout say what must be equal for equal bits. */
    static const struct {
        const char *path, *weights, *tag;
    } cases[] = {
        {"tiny/llama", "auto", "/bf16/tp1"},
        {"tiny/llama", "f32", "/f32/tp1"},
        {"tiny/llama", "int8", "/q8/tp1"},
        {"tiny/llama", "int4", "/q4/tp1"},
        {"tiny/llama-q8_0.gguf", "auto", "/q8/tp1"},
        {"tiny/llama-q4_0.gguf", "auto", "/q4/tp1"},
        {"tiny/llama-q4_1.gguf", "auto", "/q4/tp1"},
        {"tiny/llama-mixed.gguf", "auto", "/mixed/tp1"},
        {"tiny/llama-q8_0.gguf", "bf16", "/bf16/tp1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct engine_options o = rig_options;
        o.weights = cases[i].weights;
        rig_open(&rig, test_data(cases[i].path), &o);
        ck_assert_msg(strstr(rig.info->numerics, cases[i].tag) != NULL, "%s", rig.info->numerics);
        ck_assert_ptr_nonnull(strstr(rig.info->kv_layout, "/l2"));
        ck_assert_uint_gt(rig.info->weight_bytes, 0);
        /* A weight format that was asked for is still the same model. */
        int32_t ids[20];
        rig_random_ids(ids, 20, rig.info->vocab, 4);
        rig_seq_init(&rig, &seq, ids, 20);
        rig_eval(&rig, &seq, (uint32_t[]){20, 0});
        ck_assert(isfinite(seq.scores[19].logprob));
        rig_seq_fini(&seq);
        rig_close(&rig);
    }
}
END_TEST

/* The tiny llama under RoPE scalings. */
START_TEST(forward_scaled_rope)
{
    json_t *all = rig_json("tiny/scaled.expect.json"), *q;
    json_t *one = json_array_get(json_object_get(all, "models"), (size_t)_i / 2);
    char dir[256], file[320], command[1024];
    const char *tmp = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%s/baton-rope-XXXXXX", tmp ? tmp : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(command, sizeof command, "cp '%s'/* '%s'", test_data("tiny/llama"), dir);
    ck_assert_ok(system(command));
    snprintf(file, sizeof file, "%s/config.json", dir);
    json_t *config = json_load_file(file, 0, NULL);
    ck_assert_ok(json_object_update(config, json_object_get(one, "patch")));
    ck_assert_ok(json_dump_file(config, file, 0));
    struct engine_options o = rig_options;
    o.backend = _i % 2 ? "cpu" : "ref";
    rig_open(&rig, dir, &o);
    struct error e = {0};
    size_t i;
    json_array_foreach(json_object_get(one, "sequences"), i, q) check_sequence(q, &e);
    const struct tolerance *t = _i % 2 ? &bf16 : &exact;
    double rms = sqrt(e.squares / e.n);
    ck_assert_msg(e.n == 2 * 6 * 12 && rms <= t->rms && e.worst <= t->worst,
                  "%s, %s: %u, rms %.4f, worst %.4f",
                  json_string_value(json_object_get(one, "name")), rig.info->numerics, e.n, rms,
                  e.worst);
    rig_close(&rig);
    json_decref(config);
    json_decref(all);
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    ck_assert_ok(system(command));
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("forward");
    TCase *t = tcase_create("transformers");
    tcase_add_loop_test(t, forward_matches_transformers, 0, N_MODELS * N_PATHS);
    tcase_add_test(t, forward_formats_named);
    tcase_add_loop_test(t, forward_scaled_rope, 0, 6);
    tcase_set_timeout(t, 60);
    suite_add_tcase(s, t);
    return s;
}
