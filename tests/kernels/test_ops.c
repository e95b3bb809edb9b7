/* The small operations of every instruction set, against the formula in double: RMS norm,
 * quantisation, SiLU, RoPE. Outputs start as NaN. */
#include "tests/kernels/isas.h"
#include "tests/kernels/tiny.h"

static const size_t lengths[] = {1, 2, 15, 16, 17, 31, 32, 33, 64, 100, 576, 1537, 4096};
#define N_LENGTHS (sizeof lengths / sizeof *lengths)

static float *random_floats(size_t n, float scale, uint64_t key)
{
    struct tiny_random r = {.key = key};
    float *x = malloc(n * sizeof *x);
    ck_assert_ptr_nonnull(x);
    for (size_t i = 0; i < n; i++)
        x[i] = tiny_float(&r) * scale;
    return x;
}
static float *nan_floats(size_t n)
{
    float *x = malloc(n * sizeof *x);
    ck_assert_ptr_nonnull(x);
    memset(x, 0xff, n * sizeof *x);
    return x;
}

START_TEST(rmsnorm_matches_formula)
{
    const struct kernels *k = isa_kernels(_i);
    for (size_t l = 0; k && l < 2 * N_LENGTHS; l++) {
        size_t n = lengths[l / 2];
        float *x = random_floats(n, 3, 1), *gain = l % 2 ? random_floats(n, 2, 2) : NULL;
        float *y = nan_floats(n);
        double sum = 0;
        for (size_t i = 0; i < n; i++)
            sum += (double)x[i] * x[i];
        double scale = 1 / sqrt(sum / (double)n + 1e-5);
        k->rmsnorm(x, gain, n, 1e-5f, y);
        for (size_t i = 0; i < n; i++) {
            double want = x[i] * scale * (gain ? gain[i] : 1);
            ck_assert_msg(fabs(y[i] - want) <= 2e-6 * fabs(want), "%s, n %zu, %zu: %g, not %g",
                          isas[_i], n, i, y[i], want);
        }
        k->rmsnorm(x, gain, n, 1e-5f, x); /* in place */
        ck_assert(memcmp(x, y, n * sizeof *x) == 0);
        free(x);
        free(y);
        free(gain);
    }
}
END_TEST

START_TEST(quant_rounds_to_nearest)
{
    const struct kernels *k = isa_kernels(_i);
    enum { N = 2048 };
    if (!k)
        return;
    float *x = random_floats(N, 5, 3), d[N / Q_BLOCK], d4[N / Q_BLOCK], ds[N / Q_BLOCK];
    int8_t q[N], q4[N];
    int32_t s[N / Q_BLOCK];
    for (int i = 0; i < Q_BLOCK; i++) {
        x[i] = 0;
        x[Q_BLOCK + i] = i % 2 ? 1e-38f : -1e-40f; /* too small for a scale */
        x[2 * Q_BLOCK + i] *= 1e-20f;
        x[3 * Q_BLOCK + i] *= 1e30f;
    }
    k->quant_q8(x, N, q, d, s);
    k->quant_q4(x, N, q4, d4, ds);
    ck_assert(memcmp(q, q4, sizeof q) == 0 && memcmp(d, d4, sizeof d) == 0);
    for (int b = 0; b < N / Q_BLOCK; b++) {
        int32_t sum = 0;
        for (int i = b * Q_BLOCK; i < (b + 1) * Q_BLOCK; i++) {
            sum += q[i];
            ck_assert_int_ge(q[i], -127);
            if (b < 2)
                ck_assert(q[i] == 0 && d[b] == 0);
            else
                ck_assert_msg(fabs(q[i] * (double)d[b] - x[i]) <= 0.5001 * d[b],
                              "%s: %d * %g for %g", isas[_i], q[i], d[b], x[i]);
        }
        ck_assert_int_eq(s[b], -128 * sum);
        ck_assert_float_eq(ds[b], d[b] * (float)sum);
    }
    free(x);
}
END_TEST

START_TEST(quant_bf16_rounds_to_even)
{
    const struct kernels *k = isa_kernels(_i);
    if (!k || !k->quant_bf16)
        return;
    for (size_t l = 0; l < N_LENGTHS; l++) {
        size_t n = lengths[l];
        float *x = random_floats(n, 100, 4);
        uint16_t *h = malloc((n + 1) * sizeof *h);
        if (n > 1)
            x[1] = 1 + 0x1p-8f; /* a tie */
        h[n] = 0x1234;
        k->quant_bf16(x, n, h);
        for (size_t i = 0; i < n; i++)
            ck_assert_uint_eq(h[i], bf16_from_f32(x[i]));
        ck_assert_uint_eq(h[n], 0x1234);
        free(x);
        free(h);
    }
}
END_TEST

START_TEST(silu_matches_formula)
{
    const struct kernels *k = isa_kernels(_i);
    for (int round = 0; k && round < 50; round++) {
        float *g = random_floats(PANEL, round < 25 ? 10 : 300, 5 + (uint64_t)round);
        float *u = random_floats(PANEL, 4, 100 + (uint64_t)round), *out = nan_floats(PANEL);
        g[0] = 0;
        g[1] = -1000;
        g[2] = 1000;
        k->silu(g, u, PANEL, out);
        for (int i = 0; i < PANEL; i++) {
            double want = g[i] / (1 + exp(-(double)g[i])) * u[i];
            ck_assert_msg(fabs(out[i] - want) <= 2e-5 * fabs(want) + 1e-30,
                          "%s: silu(%g) * %g: %g, not %g", isas[_i], g[i], u[i], out[i], want);
        }
        free(g);
        free(u);
        free(out);
    }
}
END_TEST

START_TEST(rope_rotates_pairs)
{
    const struct kernels *k = isa_kernels(_i);
    for (size_t hd = 16; k && hd <= HEAD_DIM_MAX; hd += 16)
        for (int neox = 0; neox < 2; neox++) {
            float *x = random_floats(hd, 2, hd), *y = malloc(hd * sizeof *y);
            float *table = random_floats(hd, 1, hd + 1);
            size_t half = hd / 2;
            memcpy(y, x, hd * sizeof *y);
            k->rope(y, table, hd, neox);
            for (size_t i = 0; i < half; i++) {
                size_t a = neox ? i : 2 * i, b = neox ? half + i : 2 * i + 1;
                double c = table[i], s = table[half + i];
                ck_assert_double_eq_tol(y[a], x[a] * c - x[b] * s, 1e-6);
                ck_assert_double_eq_tol(y[b], x[b] * c + x[a] * s, 1e-6);
            }
            free(x);
            free(y);
            free(table);
        }
}
END_TEST

START_TEST(half_round_trips)
{
    for (uint32_t h = 0; h < 65536; h++) {
        float f = f16_to_f32((uint16_t)h);
        if (isnan(f))
            ck_assert(isnan(f16_to_f32(f16_from_f32(f))));
        else
            ck_assert_uint_eq(f16_from_f32(f), h);
        float b = bf16_to_f32((uint16_t)h);
        if (isnan(b))
            ck_assert(isnan(bf16_to_f32(bf16_from_f32(b))));
        else
            ck_assert_uint_eq(bf16_from_f32(b), h);
    }
    ck_assert_float_eq(f16_to_f32(0x3555), 0.333251953125f);
    ck_assert_float_eq(f16_to_f32(1), 0x1p-24f);
    ck_assert_uint_eq(f16_from_f32(65520), 0x7c00); /* rounds to infinity */
    ck_assert_uint_eq(f16_from_f32(65519), 0x7bff);
    ck_assert_uint_eq(f16_from_f32(1 + 0x1p-11f), 0x3c00); /* ties to even */
    ck_assert_uint_eq(f16_from_f32(1 + 3 * 0x1p-11f), 0x3c02);
    ck_assert_uint_eq(f16_from_f32(0x1p-25f), 0);
    ck_assert_uint_eq(f16_from_f32(0x1.8p-25f), 1);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("ops");
    TCase *tc = tcase_create("ops");
    tcase_add_loop_test(tc, rmsnorm_matches_formula, 0, N_ISAS);
    tcase_add_loop_test(tc, quant_rounds_to_nearest, 0, N_ISAS);
    tcase_add_loop_test(tc, quant_bf16_rounds_to_even, 0, N_ISAS);
    tcase_add_loop_test(tc, silu_matches_formula, 0, N_ISAS);
    tcase_add_loop_test(tc, rope_rotates_pairs, 0, N_ISAS);
    tcase_add_test(tc, half_round_trips);
    suite_add_tcase(s, tc);
    return s;
}
