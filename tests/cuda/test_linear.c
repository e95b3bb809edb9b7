/* Products with few tokens and what is fused to them, against plain loops in double. */
#include "tests/cuda/kernels.h"

static const uint32_t buckets[] = {1, 2, 8, 9, 16, 24, 33, 64, 80};
/* hidden, heads, kv heads, head size, ffn, vocab: one unit of K; a K that is no multiple of 64; a K
 * that the 8 warps share unevenly; tails in N. */
static const struct shape shapes[] = {{64, 2, 1, 16, 48, 100, 0, 0, true},
                                      {160, 5, 1, 32, 88, 131, 0, 0, true},
                                      {1152, 3, 3, 16, 24, 33, 0, 0, true}};
#define N_SHAPES  (sizeof shapes / sizeof *shapes)
#define N_BUCKETS (sizeof buckets / sizeof *buckets)
#define CASES     (int)(N_SHAPES * N_BUCKETS)

/* sum over k of w[n][k] in[k] */
static double dot(const uint16_t *w, const uint16_t *in, uint32_t ld)
{
    double s = 0;
    for (uint32_t k = 0; k < ld; k++)
        s += (double)bf16_to_f32(w[k]) * bf16_to_f32(in[k]);
    return s;
}

struct run {
    struct rig r;
    uint32_t bucket;
    uint32_t ld; /* of x */
    float *gain;
    struct normed v;
};

static void run_init(struct run *t, int i)
{
    const struct shape *s = &shapes[(size_t)i / N_BUCKETS];
    t->bucket = buckets[(size_t)i % N_BUCKETS];
    rig_init(&t->r, s, t->bucket, t->bucket, 1, 0, 100 + (uint64_t)i);
    rig_live(&t->r, t->bucket, t->bucket > 2);
    t->ld = gpu_pad(s->hidden, 64);
    t->gain = random_vector(&t->r.random, s->hidden, t->ld, 1, 0.3f);
    t->v = rig_normed(&t->r, t->bucket, t->gain);
}

/* Everything that earlier nodes write, when the seed says so. */
static void run_hide(struct run *t, int seed, const void *out, size_t n)
{
    emu_seed((uint64_t)seed);
    if (seed != SEEDS - 1)
        return;
    hide_begin();
    hide_input(t->v.xg, t->bucket * t->ld * sizeof *t->v.xg);
    hide_input(t->v.ssq, t->bucket * t->v.groups * sizeof *t->v.ssq);
    hide_input(t->r.m.rows, t->bucket * sizeof *t->r.m.rows);
    watch_output(out, n);
}

START_TEST(linear_qkv)
{
    struct run t;
    run_init(&t, _i);
    const struct gpu_model *m = &t.r.m;
    uint32_t n = rig_qkv(m), np = gpu_pad(n, 16);
    uint16_t *w = random_matrix(&t.r.random, n, np, m->hidden, t.ld, 0.1f);
    float *bias = _i % 2 ? random_vector(&t.r.random, n, np, 0, 1) : NULL;
    double *want = malloc(n * sizeof *want);
    for (int seed = SEED_FIRST; seed < SEEDS; seed++) {
        size_t bytes = (size_t)t.bucket * np * sizeof(float);
        float *out = test_memory(bytes);
        run_hide(&t, seed, out, bytes);
        ck_assert_ok(cuda_linear_qkv(t.r.l, m, t.bucket, w, bias, t.v.xg, t.v.ssq, out));
        if (seed == SEEDS - 1)
            hide_end();
        for (uint32_t row = 0; row < t.bucket; row++) {
            if (m->rows[row].position < 0) {
                ck_assert(untouched(out + (size_t)row * np, np * sizeof *out));
                continue;
            }
            double rs = normed_scale(&t.r, &t.v, row);
            for (uint32_t j = 0; j < n; j++)
                want[j] = rs * dot(w + (size_t)j * t.ld, t.v.xg + row * t.ld, t.ld) +
                          (bias ? bias[j] : 0);
            assert_close(out + (size_t)row * np, want, n, TOL_F32, "bucket %u row %u", t.bucket,
                         row);
            ck_assert(zeroes(out + (size_t)row * np + n, (np - n) * sizeof *out));
        }
    }
    free(want);
    test_free_all();
}
END_TEST

START_TEST(linear_residual)
{
    struct run t;
    run_init(&t, _i);
    const struct gpu_model *m = &t.r.m;
    uint32_t n = m->hidden, k = _i % 2 ? m->ffn : m->n_heads * m->head_dim, kp = gpu_pad(k, 64);
    uint16_t *w = random_matrix(&t.r.random, n, gpu_pad(n, 16), k, kp, 0.2f);
    uint16_t *in = random_matrix(&t.r.random, t.bucket, t.bucket, k, kp, 1);
    double *want = malloc(n * sizeof *want), *scaled = malloc(n * sizeof *scaled);
    for (int seed = SEED_FIRST; seed < SEEDS; seed++) {
        float *x = floats((size_t)t.bucket * t.ld), *ssq = floats(t.bucket * t.v.groups);
        uint16_t *xg = halves((size_t)t.bucket * t.ld);
        memcpy(x, t.v.x, (size_t)t.bucket * t.ld * sizeof *x);
        emu_seed((uint64_t)seed);
        if (seed == SEEDS - 1) {
            hide_begin();
            hide_input(in, (size_t)t.bucket * kp * sizeof *in);
            hide_input(x, (size_t)t.bucket * t.ld * sizeof *x);
            hide_input(m->rows, t.bucket * sizeof *m->rows);
            watch_output(xg, (size_t)t.bucket * t.ld * sizeof *xg);
            watch_output(ssq, t.bucket * t.v.groups * sizeof *ssq);
        }
        ck_assert_ok(cuda_linear_residual(t.r.l, m, t.bucket, w, k, in, x, t.gain, xg, ssq));
        if (seed == SEEDS - 1)
            hide_end();
        for (uint32_t row = 0; row < t.bucket; row++) {
            size_t at = (size_t)row * t.ld;
            if (m->rows[row].position < 0) {
                ck_assert(memcmp(x + at, t.v.x + at, t.ld * sizeof *x) == 0);
                ck_assert(untouched(xg + at, t.ld * sizeof *xg));
                continue;
            }
            for (uint32_t j = 0; j < n; j++) {
                want[j] = t.v.x[at + j] + dot(w + (size_t)j * kp, in + (size_t)row * kp, kp);
                scaled[j] = want[j] * t.gain[j];
            }
            assert_close(x + at, want, n, TOL_F32, "x, bucket %u row %u", t.bucket, row);
            assert_close_bf16(xg + at, scaled, n, TOL_BF16, "xg, row %u", row);
            double sums[256] = {0};
            for (uint32_t j = 0; j < n; j++)
                sums[j / 16] += want[j] * want[j];
            assert_close(ssq + row * t.v.groups, sums, gpu_pad(n, 16) / 16, TOL_F32, "ssq, row %u",
                         row);
        }
    }
    free(want);
    free(scaled);
    test_free_all();
}
END_TEST

START_TEST(linear_gate_up)
{
    struct run t;
    run_init(&t, _i);
    const struct gpu_model *m = &t.r.m;
    uint32_t n = gpu_pad(m->ffn, 8), ld = gpu_pad(m->ffn, 64);
    uint16_t *gate = random_matrix(&t.r.random, m->ffn, n, m->hidden, t.ld, 0.3f);
    uint16_t *up = random_matrix(&t.r.random, m->ffn, n, m->hidden, t.ld, 0.3f);
    uint16_t *w = halves((size_t)2 * n * t.ld);
    for (uint32_t j = 0; j < n; j++) {
        uint16_t *to = w + (size_t)(j / 8 * 16 + j % 8) * t.ld;
        memcpy(to, gate + (size_t)j * t.ld, t.ld * sizeof *w);
        memcpy(to + 8 * t.ld, up + (size_t)j * t.ld, t.ld * sizeof *w);
    }
    double *want = malloc(m->ffn * sizeof *want);
    for (int seed = SEED_FIRST; seed < SEEDS; seed++) {
        size_t bytes = (size_t)t.bucket * ld * sizeof(uint16_t);
        uint16_t *out = test_memory(bytes);
        run_hide(&t, seed, out, bytes);
        ck_assert_ok(cuda_linear_gate_up(t.r.l, m, t.bucket, w, t.v.xg, t.v.ssq, out));
        if (seed == SEEDS - 1)
            hide_end();
        for (uint32_t row = 0; row < t.bucket; row++) {
            if (m->rows[row].position < 0) {
                ck_assert(untouched(out + (size_t)row * ld, ld * sizeof *out));
                continue;
            }
            double rs = normed_scale(&t.r, &t.v, row);
            for (uint32_t j = 0; j < m->ffn; j++) {
                double g = rs * dot(gate + (size_t)j * t.ld, t.v.xg + row * t.ld, t.ld);
                double u = rs * dot(up + (size_t)j * t.ld, t.v.xg + row * t.ld, t.ld);
                want[j] = g / (1 + exp(-g)) * u;
            }
            assert_close_bf16(out + (size_t)row * ld, want, m->ffn, TOL_BF16, "row %u", row);
            ck_assert(zeroes(out + (size_t)row * ld + m->ffn, (n - m->ffn) * sizeof *out));
        }
    }
    free(want);
    test_free_all();
}
END_TEST

START_TEST(linear_logits)
{
    struct run t;
    run_init(&t, _i);
    struct gpu_model *m = &t.r.m;
    uint32_t n = m->vocab, ld = gpu_pad(n, 128), live = t.bucket > 1 ? t.bucket - 1 : 1;
    uint16_t *w = random_matrix(&t.r.random, n, ld, m->hidden, t.ld, 0.2f);
    rig_step(&t.r)->n_logits = live;
    uint32_t *rows = gpu_step_logit_row(m->step, &m->caps);
    for (uint32_t i = 0; i < live; i++)
        rows[i] = source_below(&t.r.random, t.bucket);
    double *want = malloc(n * sizeof *want);
    for (int seed = SEED_FIRST; seed < SEEDS; seed++) {
        size_t bytes = (size_t)t.bucket * ld * sizeof(float);
        float *out = test_memory(bytes);
        run_hide(&t, seed, out, bytes);
        ck_assert_ok(cuda_linear_logits(t.r.l, m, t.bucket, w, t.v.xg, t.v.ssq, out));
        if (seed == SEEDS - 1)
            hide_end();
        for (uint32_t i = 0; i < live; i++) {
            double rs = normed_scale(&t.r, &t.v, rows[i]);
            for (uint32_t j = 0; j < n; j++)
                want[j] = rs * dot(w + (size_t)j * t.ld, t.v.xg + (size_t)rows[i] * t.ld, t.ld);
            assert_close(out + (size_t)i * ld, want, n, TOL_F32, "logits %u", i);
            ck_assert(zeroes(out + (size_t)i * ld + n, (ld - n) * sizeof *out));
        }
        ck_assert(untouched(out + (size_t)live * ld, (t.bucket - live) * ld * sizeof *out));
    }
    free(want);
    test_free_all();
}
END_TEST

/* A row's bits do not depend on the bucket, its place, or its neighbours. */
START_TEST(linear_any_bucket)
{
    struct run all;
    run_init(&all, _i * (int)N_BUCKETS + (int)N_BUCKETS - 1);
    struct gpu_model *m = &all.r.m;
    uint32_t n = rig_qkv(m), np = gpu_pad(n, 16), ld = all.ld, groups = (uint32_t)all.v.groups;
    uint16_t *w = random_matrix(&all.r.random, n, np, m->hidden, ld, 0.1f);
    uint16_t *wr =
        random_matrix(&all.r.random, m->hidden, gpu_pad(m->hidden, 16), m->hidden, ld, 0.1f);
    float *out = floats((size_t)all.bucket * np), *x = floats((size_t)all.bucket * ld);
    float *ssq = floats(all.bucket * groups);
    uint16_t *xg = halves((size_t)all.bucket * ld);
    memcpy(x, all.v.x, (size_t)all.bucket * ld * sizeof *x);
    emu_seed(1);
    ck_assert_ok(cuda_linear_qkv(all.r.l, m, all.bucket, w, NULL, all.v.xg, all.v.ssq, out));
    ck_assert_ok(cuda_linear_residual(all.r.l, m, all.bucket, wr, m->hidden, all.v.xg, x, all.gain,
                                      xg, ssq));
    for (size_t b = 0; b + 1 < N_BUCKETS; b++) {
        uint32_t rows = buckets[b], from = all.bucket - rows;
        struct gpu_model part = *m;
        part.rows = m->rows + from;
        float *o = floats((size_t)rows * np), *y = floats((size_t)rows * ld);
        float *s = floats((size_t)rows * groups);
        uint16_t *g = halves((size_t)rows * ld);
        memcpy(y, all.v.x + (size_t)from * ld, (size_t)rows * ld * sizeof *y);
        ck_assert_ok(cuda_linear_qkv(all.r.l, &part, rows, w, NULL, all.v.xg + (size_t)from * ld,
                                     all.v.ssq + (size_t)from * groups, o));
        ck_assert_ok(cuda_linear_residual(all.r.l, &part, rows, wr, m->hidden,
                                          all.v.xg + (size_t)from * ld, y, all.gain, g, s));
        ck_assert_msg(memcmp(o, out + (size_t)from * np, (size_t)rows * np * sizeof *o) == 0,
                      "qkv, bucket %u", rows);
        ck_assert_msg(memcmp(y, x + (size_t)from * ld, (size_t)rows * ld * sizeof *y) == 0,
                      "x, bucket %u", rows);
        for (uint32_t i = 0; i < rows; i++)
            ck_assert_msg(memcmp(s + (size_t)i * groups, ssq + (size_t)(from + i) * groups,
                                 gpu_pad(m->hidden, 16) / 16 * sizeof *s) == 0,
                          "ssq, bucket %u", rows);
    }
    test_free_all();
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("cuda linear");
    add_cases(s, linear_qkv, CASES);
    add_cases(s, linear_residual, CASES);
    add_cases(s, linear_gate_up, CASES);
    add_cases(s, linear_logits, CASES);
    add_cases(s, linear_any_bucket, (int)N_SHAPES);
    return s;
}
