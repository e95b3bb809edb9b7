/* Hidden states for embeddings: what the head makes of them are the logits, and their sum does not
 * depend on chunks, on the batch or on the instruction set's company. */
#include <math.h>

#include "common/model/tensor.h"
#include "tests/engine/rig.h"

#define N      70
#define HIDDEN 64

static int32_t ids[N];

static void setup(void)
{
    rig_random_ids(ids, N, 301, 3);
}

/* The sum of the hidden states from token `from` on, in chunks of n. */
static void sum(struct rig *r, uint32_t n, uint32_t from, float *out)
{
    struct rig_seq q;
    rig_seq_init(r, &q, ids, N);
    memset(out, 0, HIDDEN * sizeof *out);
    ck_assert_uint_eq(r->info->hidden, HIDDEN);
    while (q.done < N) {
        uint32_t k = n < N - q.done ? n : N - q.done;
        struct engine_row rows[2] = {rig_row(&q, k), rig_row(&q, k)};
        rows[0].hidden = out;
        rows[0].hidden_from = from < q.done ? 0 : from - q.done < k ? from - q.done : k;
        struct engine_step s = {.rows = rows, .n_rows = 1};
        ck_assert_ok(engine_step(r->e, &s));
        q.done += k;
    }
    rig_seq_fini(&q);
}

START_TEST(hidden_makes_the_logits)
{
    struct engine_options o = rig_options;
    struct rig r;
    struct model *m;
    char err[256];
    float last[HIDDEN], row[HIDDEN];
    o.backend = "ref";
    o.weights = "f32";
    rig_open(&r, test_data("tiny/llama"), &o);
    ck_assert_ok(model_open(test_data("tiny/llama"), 0, &m, err, sizeof err));
    ck_assert(m->params.tied_head);
    sum(&r, N, N - 1, last);
    const float *logits = engine_logits(r.e);
    for (uint32_t v = 0; v < r.info->vocab; v++) {
        double dot = 0;
        tensor_row_f32(&m->embedding, v, row);
        for (uint32_t i = 0; i < HIDDEN; i++)
            dot += (double)row[i] * (double)last[i];
        ck_assert_msg(fabs(dot - (double)logits[v]) < 1e-3, "%u: %g, %g", v, dot,
                      (double)logits[v]);
    }
    model_close(m);
    rig_close(&r);
}
END_TEST

START_TEST(hidden_ignores_chunks)
{
    static const uint32_t chunks[] = {1, 3, 16, 33, 64};
    struct rig r;
    float whole[HIDDEN], cut[HIDDEN];
    rig_open(&r, test_data("tiny/llama-q8_0.gguf"), &rig_options);
    for (uint32_t from = 0; from < N; from += N - 1) {
        sum(&r, N, from, whole);
        for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
            sum(&r, chunks[i], from, cut);
            ck_assert_msg(memcmp(whole, cut, sizeof whole) == 0, "chunks of %u", chunks[i]);
        }
    }
    rig_close(&r);
}
END_TEST

START_TEST(hidden_of_the_right_row)
{
    struct rig r;
    struct rig_seq a, b;
    float alone[HIDDEN], beside[HIDDEN] = {0};
    rig_open(&r, test_data("tiny/llama-q8_0.gguf"), &rig_options);
    sum(&r, N, 0, alone);
    rig_seq_init(&r, &a, ids + 20, 30);
    rig_seq_init(&r, &b, ids, N);
    struct engine_row rows[2] = {rig_row(&a, 30), rig_row(&b, N)};
    rows[1].hidden = beside;
    struct engine_step s = {.rows = rows, .n_rows = 2};
    ck_assert_ok(engine_step(r.e, &s));
    ck_assert_int_eq(memcmp(alone, beside, sizeof alone), 0);
    rig_seq_fini(&a);
    rig_seq_fini(&b);
    rig_close(&r);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("hidden");
    TCase *c = tcase_create("hidden");
    tcase_add_checked_fixture(c, setup, NULL);
    tcase_set_timeout(c, 120);
    tcase_add_test(c, hidden_makes_the_logits);
    tcase_add_test(c, hidden_ignores_chunks);
    tcase_add_test(c, hidden_of_the_right_row);
    suite_add_tcase(s, c);
    return s;
}
