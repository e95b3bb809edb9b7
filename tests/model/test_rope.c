/* RoPE scalings, from config.json and from GGUF: frequencies against those of transformers, and the
 * contexts that they allow. */
#include <math.h>

#include "tests/model/model_files.h"
#include "tests/model/rope_vectors.h"

#define N_VECTORS ((int)(sizeof rope_vectors / sizeof *rope_vectors))

static void check_freqs(const struct model *m, const double *want, double magnitude)
{
    for (uint32_t i = 0; i < m->params.head_dim / 2; i++)
        ck_assert_msg(fabs(m->rope_freqs[i] - want[i]) <= 1e-6 * want[i], "pair %u: %g, not %g", i,
                      m->rope_freqs[i], want[i]);
    double got = m->params.rope.kind == ROPE_PLAIN ? 1 : (double)m->params.rope.magnitude;
    ck_assert_msg(fabs(got - magnitude) <= 1e-6, "magnitude %g, not %g", got, magnitude);
}

START_TEST(rope_as_transformers)
{
    make_directory("r", rope_vectors[_i].patch);
    struct model *m = open_good(at("r"), 0);
    ck_assert_int_ne(m->params.rope.kind, ROPE_PLAIN);
    check_freqs(m, rope_vectors[_i].freqs, rope_vectors[_i].magnitude);
    model_close(m);
}
END_TEST

START_TEST(rope_plain)
{
    struct model *m = open_good(test_data("tiny/llama"), 0);
    double want[16];
    for (int i = 0; i < 16; i++)
        want[i] = pow(10000, -i / 16.0);
    check_freqs(m, want, 1);
    model_close(m);
}
END_TEST

/* The context that a model is good for: what it was trained for, stretched by linear and YaRN. */
START_TEST(rope_contexts)
{
    static const struct {
        const char *patch;
        uint32_t context;
    } cases[] = {
        {"{}", 2048},
        {"{\"rope_scaling\":{\"type\":\"linear\",\"factor\":4.0}}", 8192},
        {"{\"rope_scaling\":{\"type\":\"linear\",\"factor\":1.0}}", 2048},
        {"{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4.0,"
         "\"original_max_position_embeddings\":1024}}",
         4096},
        {"{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2.0,"
         "\"original_max_position_embeddings\":512}}",
         2048},
        {"{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4.0}}", 8192},
        {"{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,"
         "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":256}}",
         2048},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char dir[16];
        snprintf(dir, sizeof dir, "c%zu", i);
        make_directory(dir, cases[i].patch);
        struct model *m = open_good(at(dir), 0);
        ck_assert_msg(m->params.context == cases[i].context, "%s: %u", cases[i].patch,
                      m->params.context);
        model_close(m);
    }
}
END_TEST

/* Scaled and unscaled models must not exchange KV. */
START_TEST(rope_is_in_the_fingerprint)
{
    uint64_t seen[N_VECTORS + 1];
    struct model *m = open_good(test_data("tiny/llama"), 0);
    seen[0] = m->fingerprint;
    model_close(m);
    for (int i = 0; i < N_VECTORS; i++) {
        char dir[16];
        snprintf(dir, sizeof dir, "f%d", i);
        make_directory(dir, rope_vectors[i].patch);
        m = open_good(at(dir), 0);
        seen[i + 1] = m->fingerprint;
        model_close(m);
        for (int k = 0; k <= i; k++)
            ck_assert_uint_ne(seen[k], seen[i + 1]);
    }
}
END_TEST

START_TEST(rope_refuses)
{
#define YARN "\"type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":64"
    static const char *const cases[][2] = {
        {"{\"type\":\"dynamic\",\"factor\":2}",
         "RoPE scaling 'dynamic' is not supported (linear, "},
        {"{\"rope_type\":\"longrope\",\"factor\":2}", "RoPE scaling 'longrope'"},
        {"{\"factor\":2}", "RoPE scaling 'without a type'"},
        {"{\"type\":\"linear\"}", "'factor' is missing"},
        {"{\"type\":\"linear\",\"factor\":\"2\"}", "'factor' is no number"},
        {"{\"type\":\"linear\",\"factor\":0.5}", "the factor of the RoPE scaling is 0.5"},
        {"{\"type\":\"linear\",\"factor\":1e9}", "the factor of the RoPE scaling is 1e+09"},
        {"{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1}",
         "'high_freq_factor' is missing"},
        {"{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4}",
         "the original context of the RoPE scaling is 0"},
        {"{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,\"high_freq_factor\":4,"
         "\"original_max_position_embeddings\":64}",
         "the RoPE scaling's bounds are 4 and 4"},
        {"{" YARN ",\"beta_fast\":0}", "the RoPE scaling's bounds are 1 and 0"},
        {"{" YARN ",\"attention_factor\":-1}", "the RoPE scaling's magnitude is -1"},
        {"{\"type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":-1}",
         "'original_max_position_embeddings' is no size"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char dir[16], patch[512];
        snprintf(dir, sizeof dir, "x%zu", i);
        snprintf(patch, sizeof patch, "{\"rope_scaling\":%s}", cases[i][0]);
        make_directory(dir, patch);
        refuse(at(dir), cases[i][1]);
    }
}
END_TEST

static struct model *open_built(struct gguf_build *b)
{
    return open_good(finish_file(b), 0);
}

/* The same scalings as GGUF says them: head size 16, theta 10000, context 256. */
START_TEST(rope_in_gguf)
{
    struct gguf_build b;
    build_llama(&b, "");
    build_f32(&b, "llama.rope.scaling.factor", 4); /* no type: linear */
    struct model *m = open_built(&b);
    for (int i = 0; i < 8; i++)
        ck_assert(fabs(m->rope_freqs[i] * 4 - pow(10000, -i / 8.0)) < 1e-9);
    ck_assert_uint_eq(m->params.context, 1024);
    model_close(m);

    build_llama(&b, "");
    build_f32(&b, "llama.rope.scaling.factor", 4);
    build_string(&b, "llama.rope.scaling.type", "none");
    m = open_built(&b);
    ck_assert(m->params.rope.kind == ROPE_PLAIN && m->rope_freqs[0] == 1);
    ck_assert_uint_eq(m->params.context, 256);
    model_close(m);

    build_llama(&b, "");
    build_string(&b, "llama.rope.scaling.type", "yarn");
    build_f32(&b, "llama.rope.scaling.factor", 4);
    build_u32(&b, "llama.rope.scaling.original_context_length", 128);
    build_f32(&b, "llama.rope.scaling.attn_factor", 0.5f);
    m = open_built(&b);
    ck_assert_int_eq(m->params.rope.kind, ROPE_YARN);
    ck_assert_uint_eq(m->params.context, 512);
    /* Pairs of more than 32 turns keep their speed, those of less than one are slowed by 4. */
    ck_assert(m->rope_freqs[0] == 1);
    ck_assert(fabs(m->rope_freqs[7] * 4 - pow(10000, -7 / 8.0)) < 1e-9);
    ck_assert(fabs((double)m->params.rope.magnitude - 0.5 * (0.1 * log(4) + 1)) < 1e-6);
    model_close(m);
}
END_TEST

static void add_divisors(struct gguf_build *b, const float *v)
{
    build_llama(b, "");
    build_tensor(b, "rope_freqs.weight", TENSOR_F32, 1, 8, 1, 0);
    /* The last tensor's data are the last bytes of the file. */
    size_t n;
    char *p = read_file(finish_file(b), &n);
    memcpy(p + n - 32, v, 32);
    write_file(at("built.gguf"), p, n);
    free(p);
}

START_TEST(rope_divisors)
{
    static const float good[8] = {1, 1, 1, 2, 4, 8, 8, 8};
    struct gguf_build b;
    add_divisors(&b, good);
    struct model *m = open_good(at("built.gguf"), 0);
    for (int i = 0; i < 8; i++)
        ck_assert(fabs(m->rope_freqs[i] * (double)good[i] - pow(10000, -i / 8.0)) < 1e-9);
    model_close(m);
    static const float bad[][8] = {{1, 1, 0}, {1, 1, -1}, {1, 1, INFINITY}, {1, 1, NAN}};
    for (int i = 0; i < 4; i++) {
        add_divisors(&b, bad[i]);
        refuse(at("built.gguf"), "tensor 'rope_freqs.weight': entry 2 is ");
    }
    build_llama(&b, "");
    build_tensor(&b, "rope_freqs.weight", TENSOR_F32, 1, 7, 1, 0);
    refuse_built(&b, "'rope_freqs.weight' has 1 dimensions, 1 x 7");
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("rope");
    TCase *t = tcase_create("rope");
    tcase_add_checked_fixture(t, scratch_setup, scratch_teardown);
    tcase_add_loop_test(t, rope_as_transformers, 0, N_VECTORS);
    tcase_add_test(t, rope_plain);
    tcase_add_test(t, rope_contexts);
    tcase_add_test(t, rope_is_in_the_fingerprint);
    tcase_add_test(t, rope_refuses);
    tcase_add_test(t, rope_in_gguf);
    tcase_add_test(t, rope_divisors);
    suite_add_tcase(s, t);
    return s;
}
