/* Whole passes over a small random model: against the reference, and against themselves cut in
 * other ways, with paging, several sequences and a KV pool full of NaN. */
#include "tests/kernels/isas.h"
#include "tests/kernels/tiny.h"

static const struct tiny_shape shapes[] = {
    {"llama q4_1, q8_0 head, 3:1, pairs", MATRIX_Q4_1, MATRIX_Q8_0, 2, 192, 3, 1, 64, 256, 101, 16,
     false, false, false, KV_BF16},
    {"qwen2 q8_0, bias, 2:1, halves", MATRIX_Q8_0, MATRIX_Q8_0, 2, 128, 4, 2, 32, 96, 64, 32, true,
     true, false, KV_BF16},
    {"qwen3 bf16, head norm, 8:1, head size 128", MATRIX_BF16, MATRIX_BF16, 1, 96, 8, 1, 128, 144,
     70, 16, true, false, true, KV_BF16},
    {"f32 file, head size 48, ragged sizes", MATRIX_F32, MATRIX_F32, 2, 54, 2, 2, 48, 70, 33, 16,
     true, true, true, KV_BF16},
    {"q4_0, f16 head, 14:1, head size 16", MATRIX_Q4_0, MATRIX_F16, 1, 64, 14, 1, 16, 64, 40, 48,
     false, false, false, KV_BF16},
    {"q8_0, 8-bit KV, 3:1", MATRIX_Q8_0, MATRIX_Q8_0, 2, 192, 3, 1, 64, 256, 101, 16, false, false,
     false, KV_INT8},
    {"bf16, 8-bit KV, head size 48, 2:1, blocks of 32", MATRIX_BF16, MATRIX_BF16, 2, 96, 2, 1, 48,
     96, 40, 32, true, true, true, KV_INT8},
};
#define N_SHAPES (sizeof shapes / sizeof *shapes)

/* Prompts that cross sub-blocks, blocks and the 256-key tile, odd and even, then decode steps. */
static const struct tiny_segment script[][3] = {
    {{0, 0, 5}, {1, 0, 61}, {2, 0, 300}},
    {{0, 5, 1}, {1, 61, 1}, {2, 300, 1}},
    {{2, 301, 3}, {0, 6, 17}, {1, 62, 2}},
    {{0, 23, 1}, {1, 64, 1}, {2, 304, 1}},
};
#define N_STEPS (sizeof script / sizeof *script)

static double distance(const float *a, const float *b, size_t n)
{
    double difference = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        ck_assert_msg(isfinite(a[i]) && isfinite(b[i]), "number %zu of %zu", i, n);
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    return sqrt(difference / size);
}

/* Root mean square error of the logits relative to their size. Quantised activations cost up to
 * 1/254 of the largest of 32 numbers per layer input, bf16 keys and values 1/256. */
START_TEST(forward_matches_reference)
{
    struct tiny_model m;
    tiny_model_init(&m, &shapes[_i], 7);
    bool quantised = shapes[_i].type == MATRIX_Q8_0 || shapes[_i].type == MATRIX_Q4_0 ||
                     shapes[_i].type == MATRIX_Q4_1;
    for (size_t k = 0; k < N_ISAS; k++) {
        struct tiny ref, cpu;
        if (!tiny_init(&cpu, &m, "cpu", isas[k], 2))
            continue;
        ck_assert(tiny_init(&ref, &m, "ref", NULL, 1));
        for (size_t s = 0; s < N_STEPS; s++) {
            tiny_step(&ref, script[s], 3);
            tiny_step(&cpu, script[s], 3);
            double d = distance(backend_logits(cpu.b), backend_logits(ref.b),
                                3 * (size_t)shapes[_i].vocab);
            ck_assert_msg(d < (quantised ? 0.03 : 0.012), "%s, %s, step %zu: error %.4f",
                          shapes[_i].name, isas[k], s, d);
        }
        tiny_fini(&ref);
        tiny_fini(&cpu);
    }
    tiny_model_fini(&m);
}
END_TEST

/* Feeds sequence `seq` up to `n` tokens in steps of `chunk`, beside another sequence when `beside`
 * is not 0; the last token always alone in its step (or with the other's). */
static void feed(struct tiny *t, uint32_t seq, uint32_t n, uint32_t chunk, uint32_t beside,
                 float *logits)
{
    uint32_t other = 0;
    for (uint32_t at = 0; at < n;) {
        uint32_t step = at + chunk < n ? chunk : n - at;
        struct tiny_segment segments[2];
        uint32_t i = 0;
        if (beside) {
            segments[i++] = (struct tiny_segment){seq + 1, other, beside};
            other += beside;
        }
        segments[i++] = (struct tiny_segment){seq, at, step};
        tiny_step(t, segments, i);
        at += step;
        memcpy(logits, backend_logits(t->b) + (i - 1) * t->model->shape.vocab,
               t->model->shape.vocab * sizeof *logits);
    }
}

/* Compares the KV of a sequence's whole blocks (its tail has slots that nobody wrote). */
static void same_kv(const struct tiny *a, const struct tiny *b, uint32_t seq, uint32_t n,
                    const char *what)
{
    const struct tiny_shape *s = &a->model->shape;
    for (uint32_t l = 0; l < s->n_layers; l++)
        for (uint32_t i = 0; i < n / s->kv_block_size; i++) {
            size_t at = ((size_t)l * tiny_blocks + tiny_block(seq, i)) * a->block_bytes;
            ck_assert_msg(
                memcmp((char *)a->kv.base + at, (char *)b->kv.base + at, a->block_bytes) == 0,
                "%s: layer %u, block %u differs", what, l, i);
        }
}

START_TEST(forward_one_answer)
{
    /* chunk, rows of another sequence beside it, threads */
    static const uint32_t ways[][3] = {{1, 0, 1},  {7, 0, 2},   {64, 0, 2}, {97, 3, 2},
                                       {33, 1, 1}, {300, 1, 2}, {16, 4, 1}, {2, 2, 2}};
    enum { LENGTH = 291 };
    struct tiny_model m;
    tiny_model_init(&m, &shapes[_i], 11);
    float want[128], got[128];
    ck_assert_uint_le(m.shape.vocab, 128);
    for (size_t k = 0; k < N_ISAS; k++) {
        struct tiny whole;
        if (!tiny_init(&whole, &m, "cpu", isas[k], 1))
            continue;
        feed(&whole, 0, LENGTH, LENGTH, 0, want);
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
            if (k == 0 && w % 3) /* plain loops: a few ways will do */
                continue;
            struct tiny t;
            char what[120];
            snprintf(what, sizeof what, "%s, %s, chunks of %u beside %u rows, %u threads",
                     m.shape.name, isas[k], ways[w][0], ways[w][1], ways[w][2]);
            ck_assert(tiny_init(&t, &m, "cpu", isas[k], (int)ways[w][2]));
            feed(&t, 0, LENGTH, ways[w][0], ways[w][1], got);
            ck_assert_msg(memcmp(want, got, m.shape.vocab * sizeof *got) == 0, "%s", what);
            same_kv(&whole, &t, 0, LENGTH, what);
            tiny_fini(&t);
        }
        tiny_fini(&whole);
    }
    tiny_model_fini(&m);
}
END_TEST

/* Behind a long context threads share the keys of a token; each alone goes over all of them. */
START_TEST(forward_long_context_one_answer)
{
    enum { LENGTH = 2050, LAST = 2075 };
    struct tiny_model m;
    tiny_model_init(&m, &shapes[_i], 12);
    tiny_context = 2304, tiny_blocks = 433;
    float want[128], got[128];
    for (size_t k = 0; k < N_ISAS; k++) {
        struct tiny alone, four;
        if (!tiny_init(&alone, &m, "cpu", isas[k], 1))
            continue;
        ck_assert(tiny_init(&four, &m, "cpu", isas[k], 4));
        feed(&alone, 0, LENGTH, TINY_ROWS, 0, want);
        feed(&four, 0, LENGTH, 300, 0, got);
        for (uint32_t at = LENGTH; at < LAST; at++) {
            ck_assert_msg(memcmp(want, got, m.shape.vocab * sizeof *got) == 0, "%s, %s: token %u",
                          m.shape.name, isas[k], at);
            struct tiny_segment next = {0, at, 1};
            tiny_step(&alone, &next, 1);
            tiny_step(&four, &next, 1);
            memcpy(want, backend_logits(alone.b), m.shape.vocab * sizeof *want);
            memcpy(got, backend_logits(four.b), m.shape.vocab * sizeof *got);
        }
        same_kv(&alone, &four, 0, LAST, isas[k]);
        tiny_fini(&alone);
        tiny_fini(&four);
    }
    tiny_context = TINY_CONTEXT, tiny_blocks = TINY_BLOCKS;
    tiny_model_fini(&m);
}
END_TEST

/* Only the blocks of live rows change: not the sink, not another sequence's, not a free one. */
START_TEST(forward_padding_writes_nothing)
{
    struct tiny_model m;
    tiny_model_init(&m, &shapes[0], 5);
    for (size_t k = 0; k < N_ISAS; k++) {
        struct tiny t;
        if (!tiny_init(&t, &m, "cpu", isas[k], 2))
            continue;
        struct tiny_segment s[] = {{0, 0, 19}, {1, 0, 1}};
        tiny_step(&t, s, 2);
        uint32_t live[] = {tiny_block(0, 0), tiny_block(0, 1), tiny_block(1, 0)};
        for (uint32_t l = 0; l < m.shape.n_layers; l++)
            for (uint32_t i = 0; i < TINY_BLOCKS; i++) {
                const uint8_t *p =
                    (uint8_t *)t.kv.base + ((size_t)l * tiny_blocks + i) * t.block_bytes;
                bool touched = false;
                for (size_t j = 0; j < t.block_bytes; j++)
                    touched |= p[j] != 0xff;
                bool expected = i == live[0] || i == live[1] || i == live[2];
                ck_assert_msg(touched == expected, "%s: layer %u, block %u", isas[k], l, i);
            }
        tiny_fini(&t);
    }
    tiny_model_fini(&m);
}
END_TEST

START_TEST(forward_embeds_exactly)
{
    struct tiny_model m;
    tiny_model_init(&m, &shapes[_i], 3);
    const struct tiny_shape *s = &m.shape;
    struct tiny t;
    ck_assert(tiny_init(&t, &m, "cpu", "auto", 1));
    struct op embed = {.kind = OP_EMBED, .w = t.embed};
    struct replay *r;
    ck_assert_ok(backend_capture(t.b, &embed, 1, 1, &t.kv, &r));
    struct step_args *a = backend_step_args(t.b);
    float *want = calloc(s->hidden, sizeof *want);
    for (uint32_t token = 0; token < s->vocab; token++) {
        a->n_rows = a->n_segments = 1;
        a->n_logits = 0;
        a->token[0] = (int32_t)token;
        a->position[0] = 0;
        a->seq[0] = a->segment[0] = 0;
        a->segment[1] = 1;
        a->tables[0] = 1;
        ck_assert_ok(backend_replay(t.b, r));
        matrix_decode(&m.embed, token, 0, s->hidden, want);
        ck_assert(memcmp(want, backend_buffer(t.b, BUFFER_X), s->hidden * sizeof *want) == 0);
    }
    free(want);
    backend_replay_destroy(t.b, r);
    tiny_fini(&t);
    tiny_model_fini(&m);
}
END_TEST

struct ready_log {
    uint32_t n, layers[8];
};
static void ready(void *arg, uint32_t layer)
{
    struct ready_log *log = arg;
    ck_assert_uint_lt(log->n, 8);
    log->layers[log->n++] = layer;
}

START_TEST(forward_reports_layers)
{
    struct tiny_model m;
    tiny_model_init(&m, &shapes[0], 5);
    struct tiny t;
    ck_assert(tiny_init(&t, &m, "cpu", "auto", 2));
    struct ready_log log = {0};
    struct step_args *a = backend_step_args(t.b);
    a->layer_done = ready;
    a->layer_arg = &log;
    struct tiny_segment s = {0, 0, 33};
    tiny_step(&t, &s, 1);
    ck_assert_uint_eq(log.n, 2);
    ck_assert_uint_eq(log.layers[0], 0);
    ck_assert_uint_eq(log.layers[1], 1);
    tiny_fini(&t);
    tiny_model_fini(&m);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("forward");
    TCase *tc = tcase_create("forward");
    tcase_set_timeout(tc, 300);
    tcase_add_loop_test(tc, forward_matches_reference, 0, N_SHAPES);
    tcase_add_loop_test(tc, forward_one_answer, 0, N_SHAPES);
    tcase_add_loop_test(tc, forward_long_context_one_answer, 0, 2);
    tcase_add_test(tc, forward_padding_writes_nothing);
    tcase_add_loop_test(tc, forward_embeds_exactly, 0, N_SHAPES);
    tcase_add_test(tc, forward_reports_layers);
    suite_add_tcase(s, tc);
    return s;
}
