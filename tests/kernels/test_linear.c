/* Linear kernels of every format and instruction set: against sums in double over the very numbers
 * that they multiply, and a row alone against the same row among others. */
#include "tests/kernels/isas.h"
#include "tests/kernels/tiny.h"

#define ROWS  70
#define GUARD 8 /* columns behind a panel that must stay untouched */

static const struct {
    enum weight_format format;
    uint32_t type;
} formats[] = {{WEIGHT_F32, MATRIX_F32},  {WEIGHT_BF16, MATRIX_BF16}, {WEIGHT_Q8, MATRIX_Q8_0},
               {WEIGHT_Q4, MATRIX_Q4_1},  {WEIGHT_Q4, MATRIX_Q4_0},   {WEIGHT_BF16, MATRIX_F16},
               {WEIGHT_Q8, MATRIX_F32},   {WEIGHT_Q4, MATRIX_BF16},   {WEIGHT_Q8K, MATRIX_Q5_1},
               {WEIGHT_Q8K, MATRIX_Q6_K}, {WEIGHT_Q8K, MATRIX_Q5_K},  {WEIGHT_Q4, MATRIX_Q4_K}};
#define N_FORMATS (sizeof formats / sizeof *formats)

/* Columns (1, odd, tail, large) x depth; depths that are no multiple of 32 only for F32 and BF16.
 */
static const uint32_t shapes[][2] = {{1, 32},  {31, 64},  {33, 96}, {64, 576},  {70, 1536}, {40, 2},
                                     {32, 34}, {65, 130}, {3, 62},  {96, 1024}, {33, 256}};
#define N_SHAPES (sizeof shapes / sizeof *shapes)

struct fixture {
    const struct kernels *kernels;
    struct threads *pool;
    struct weight_store store;
    struct weight *w;
    linear_fn fn;
    struct matrix_view view;
    float *x; /* [rows][k] */
    float bias[96 + PANEL];
    struct act act;
    void *act_mem;
};

static bool quantised(enum weight_format f)
{
    return f == WEIGHT_Q8 || f == WEIGHT_Q4 || f == WEIGHT_Q8K;
}

static linear_fn linear_of(const struct kernels *k, enum weight_format format)
{
    return format == WEIGHT_F32    ? k->linear_f32
           : format == WEIGHT_BF16 ? k->linear_bf16
           : format == WEIGHT_Q8   ? k->linear_q8
           : format == WEIGHT_Q8K  ? k->linear_q8k
                                   : k->linear_q4;
}

static void fixture_init(struct fixture *f, const struct kernels *k, enum weight_format format,
                         uint32_t type, uint32_t n, uint32_t depth, uint32_t rows)
{
    char err[100];
    struct tiny_random r = {.key = n * 1000 + depth};
    f->kernels = k;
    f->store = (struct weight_store){0};
    ck_assert_ok(threads_create(1, NULL, &f->pool, err, sizeof err));
    f->view = tiny_matrix(&r, type, n, depth, 1);
    ck_assert_ok(weight_create(&f->store, f->pool, &f->view, 1, format, false, false, &f->w));
    ck_assert_int_eq(f->w->format, format);
    f->fn = linear_of(k, format);
    size_t count = (size_t)rows * depth;
    f->x = malloc(count * sizeof *f->x);
    for (size_t i = 0; i < count; i++)
        f->x[i] = tiny_float(&r) * (i % 7 == 0 ? 8 : 1);
    for (size_t i = 0; i < sizeof f->bias / sizeof *f->bias; i++)
        f->bias[i] = tiny_float(&r);
    /* Exactly as much memory as there are activations: reading beyond is an error under ASan. */
    f->act_mem = calloc(count, 8);
    uint8_t *p = f->act_mem;
    f->act = (struct act){.f = calloc(count, 4), .h = calloc(count, 2), .q = calloc(count, 1)};
    f->act.d = (float *)(void *)p;
    f->act.ds = f->act.d + count / Q_BLOCK;
    f->act.s = (int32_t *)(void *)(f->act.ds + count / Q_BLOCK);
    memcpy(f->act.f, f->x, count * 4);
    if (k->quant_bf16)
        k->quant_bf16(f->x, count, f->act.h);
    if (quantised(format)) {
        k->quant_q4(f->x, count, f->act.q, f->act.d, f->act.ds);
        if (format == WEIGHT_Q8)
            k->quant_q8(f->x, count, f->act.q, f->act.d, f->act.s);
        else
            k->quant_q8k(f->x, count, f->act.q, f->act.d, f->act.s, f->act.ds);
    }
}

static void fixture_fini(struct fixture *f)
{
    weight_destroy(&f->store, f->w);
    weight_store_fini(&f->store);
    threads_destroy(f->pool);
    free((void *)(uintptr_t)f->view.data);
    free(f->x);
    free(f->act_mem);
    free(f->act.f);
    free(f->act.h);
    free(f->act.q);
}

static struct linear_args args_at(const struct fixture *f, uint32_t panel, uint32_t row, uint32_t m,
                                  float *c)
{
    size_t k = f->w->k, at = row * k;
    return (struct linear_args){
        .w = f->w->data + panel * f->w->panel_bytes,
        .k = f->w->k,
        .m = m,
        .a = {.f = f->act.f + at,
              .h = f->act.h + at,
              .q = f->act.q + at,
              .d = f->act.d + at / Q_BLOCK,
              .s = f->act.s + at / (f->w->format == WEIGHT_Q8K ? 16 : Q_BLOCK),
              .ds = f->act.ds + at / Q_BLOCK},
        .c = c,
        .ldc = PANEL + GUARD};
}

/* The number that the kernel multiplies for x[i]. */
static double activation(const struct fixture *f, size_t i)
{
    if (quantised(f->w->format))
        return (double)f->act.q[i] * f->act.d[i / Q_BLOCK];
    if (f->w->format == WEIGHT_BF16 && f->kernels->bf16_act)
        return bf16_to_f32(bf16_from_f32(f->x[i]));
    return f->x[i];
}

static void check_values(const struct fixture *f, const float *c, uint32_t panel, uint32_t row,
                         bool bias, bool add)
{
    for (uint32_t i = 0; i < PANEL; i++) {
        uint32_t n = panel * PANEL + i;
        double want = 0, size = 1e-30;
        float *w = calloc(f->w->k, sizeof *w);
        if (n < f->w->n)
            weight_embed(f->w, n, w);
        for (size_t k = 0; k < f->w->k; k++) {
            double p = w[k] * activation(f, (size_t)row * f->w->k + k);
            want += p;
            size += fabs(p);
            /* A minimum is summed apart: its rounding counts too. */
            size += quantised(f->w->format) && f->w->format != WEIGHT_Q8
                        ? 2 * fabs(f->x[(size_t)row * f->w->k + k])
                        : 0;
        }
        free(w);
        if (bias)
            want += f->bias[i];
        if (add)
            want += 3;
        ck_assert_msg(fabs(c[i] - want) <= size * 1e-6 * sqrt(f->w->k) + 1e-6,
                      "%s: format %d, k %u, row %u, column %u: %g, not %g", f->kernels->isa,
                      f->w->format, f->w->k, row, n, c[i], want);
    }
}

static void check_shape(struct fixture *f)
{
    static float all[ROWS + 1][PANEL + GUARD], some[ROWS + 1][PANEL + GUARD];
    for (uint32_t p = 0; p < f->w->n_panels; p++) {
        memset(all, 0xff, sizeof all); /* NaN */
        struct linear_args a = args_at(f, p, 0, ROWS, all[0]);
        f->fn(&a);
        for (uint32_t r = 0; r <= ROWS; r++)
            for (uint32_t i = r < ROWS ? PANEL : 0; i < PANEL + GUARD; i++)
                ck_assert_msg(isnan(all[r][i]), "row %u, column %u was written", r, i);
        check_values(f, all[0], p, 0, false, false);
        check_values(f, all[37], p, 37, false, false);
        check_values(f, all[ROWS - 1], p, ROWS - 1, false, false);
        /* Long rows cost the sanitizers minutes: there only some counts. */
        for (uint32_t m = 1; m<ROWS; m += f->w->k> 600 && m > 13 ? 11 : 1) {
            uint32_t row = ROWS - m; /* the last m rows: every row at every place of a micro tile */
            memset(some, 0xff, sizeof some);
            a = args_at(f, p, row, m, some[0]);
            f->fn(&a);
            ck_assert_msg(memcmp(some, all[row], m * sizeof *some) == 0,
                          "%s: format %d, k %u: the last %u rows differ", f->kernels->isa,
                          f->w->format, f->w->k, m);
        }
    }
}

START_TEST(linear_values_and_bits)
{
    const struct kernels *k = isa_kernels(_i % N_ISAS);
    if (!k)
        return;
    static struct fixture f;
    int format = _i / N_ISAS;
    for (size_t s = 0; s < N_SHAPES; s++) {
        if (matrix_row_bytes(formats[format].type, shapes[s][1]) == 0 ||
            (quantised(formats[format].format) && shapes[s][1] % Q_BLOCK))
            continue;
        fixture_init(&f, k, formats[format].format, formats[format].type, shapes[s][0],
                     shapes[s][1], ROWS);
        check_shape(&f);
        fixture_fini(&f);
    }
}
END_TEST

START_TEST(linear_bias_and_add)
{
    const struct kernels *k = isa_kernels(_i % N_ISAS);
    if (!k)
        return;
    static struct fixture f;
    int format = _i / N_ISAS;
    uint32_t depth = matrix_row_bytes(formats[format].type, 96) ? 96 : 256;
    fixture_init(&f, k, formats[format].format, formats[format].type, 32, depth, ROWS);
    for (int how = 1; how < 4; how++) {
        float c[5][PANEL + GUARD];
        for (int r = 0; r < 5; r++)
            for (int i = 0; i < PANEL + GUARD; i++)
                c[r][i] = 3;
        struct linear_args a = args_at(&f, 0, 0, 5, c[0]);
        a.bias = how & 1 ? f.bias : NULL;
        a.add = how & 2;
        f.fn(&a);
        for (uint32_t r = 0; r < 5; r++)
            check_values(&f, c[r], 0, r, how & 1, how & 2);
    }
    fixture_fini(&f);
}
END_TEST

/* More rows than a kernel takes at once, deeper than it goes at once: passes and chunks give the
 * bits of few rows. A set's integers may go two ways; AMX's are AVX-512's. */
START_TEST(linear_many_rows)
{
    enum { MANY = 290, DEPTH = 2112 };
    static const uint32_t counts[] = {289, 260, 257, 193, 130, 129, 128,
                                      97,  96,  47,  33,  25,  24,  23};
    const struct kernels *k = isa_kernels(_i % N_ISAS), *same = NULL;
    if (!k)
        return;
    static struct fixture f;
    int format = _i / N_ISAS;
    fixture_init(&f, k, formats[format].format, formats[format].type, PANEL, DEPTH, MANY);
    if (strcmp(k->isa, "amx") == 0 && quantised(f.w->format))
        same = kernels_select("avx512");
    static float all[MANY][PANEL + GUARD], some[MANY][PANEL + GUARD];
    memset(all, 0xff, sizeof all);
    struct linear_args a = args_at(&f, 0, 0, MANY, all[0]);
    f.fn(&a);
    check_values(&f, all[0], 0, 0, false, false);
    check_values(&f, all[MANY - 1], 0, MANY - 1, false, false);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        memset(some, 0xff, sizeof some);
        a = args_at(&f, 0, MANY - counts[i], counts[i], some[0]);
        f.fn(&a);
        ck_assert_msg(memcmp(some, all[MANY - counts[i]], counts[i] * sizeof *some) == 0,
                      "%s: format %d: the last %u rows differ", k->isa, f.w->format, counts[i]);
    }
    for (uint32_t r = 0; r < MANY; r += 17) {
        memset(some, 0xff, sizeof some[0]);
        a = args_at(&f, 0, r, 1, some[0]);
        f.fn(&a);
        ck_assert_msg(memcmp(some[0], all[r], sizeof some[0]) == 0, "%s: format %d: row %u differs",
                      k->isa, f.w->format, r);
    }
    if (same) {
        memset(some, 0xff, sizeof some);
        a = args_at(&f, 0, 0, MANY, some[0]);
        linear_of(same, f.w->format)(&a);
        ck_assert_msg(memcmp(some, all, sizeof all) == 0, "format %d: not AVX-512's bits",
                      f.w->format);
    }
    fixture_fini(&f);
}
END_TEST

/* The largest integers on both sides: no accumulator may saturate. */
START_TEST(linear_extremes)
{
    const struct kernels *k = isa_kernels(_i);
    if (!k)
        return;
    enum { K = 1024, M = 32 };
    static const int corner[][2] = {{127, 127}, {-127, -128}, {127, -128}, {-127, 127}};
    for (int c = 0; c < 4; c++) {
        static int8_t q[M * K];
        float d[M * K / Q_BLOCK], ds[M * K / Q_BLOCK], out[M * PANEL];
        int32_t s[M * K / Q_BLOCK];
        static _Alignas(64) uint8_t w[K / Q_BLOCK * Q8K_BLOCK_BYTES];
        uint16_t one = f16_from_f32(1), zero = 0;
        memset(q, corner[c][0], sizeof q);
        for (int b = 0; b < M * K / Q_BLOCK; b++) {
            d[b] = 1;
            ds[b] = 0;
            s[b] = -128 * Q_BLOCK * corner[c][0];
        }
        for (int b = 0; b < K / Q_BLOCK; b++) {
            uint8_t *p = w + b * Q8_BLOCK_BYTES;
            memset(p, corner[c][1] + 128, PANEL * Q_BLOCK);
            for (int i = 0; i < PANEL; i++)
                memcpy(p + PANEL * Q_BLOCK + 2 * i, &one, 2);
        }
        struct linear_args a = {.w = w, .k = K, .m = M, .c = out, .ldc = PANEL};
        a.a = (struct act){.q = q, .d = d, .s = s, .ds = ds};
        k->linear_q8(&a);
        for (int i = 0; i < M * PANEL; i++)
            ck_assert_float_eq(out[i], (float)(K * corner[c][0] * corner[c][1]));
        int32_t halves[2 * M * K / Q_BLOCK];
        for (int b = 0; b < 2 * M * K / Q_BLOCK; b++)
            halves[b] = -128 * (Q_BLOCK / 2) * corner[c][0];
        for (int b = 0; b < K / Q_BLOCK; b++) {
            uint8_t *p = w + b * Q8K_BLOCK_BYTES;
            memset(p, corner[c][1] + 128, PANEL * Q_BLOCK);
            for (int i = 0; i < 3 * PANEL; i++)
                memcpy(p + PANEL * Q_BLOCK + 2 * i, i < 2 * PANEL ? &one : &zero, 2);
        }
        a.a.s = halves;
        k->linear_q8k(&a);
        for (int i = 0; i < M * PANEL; i++)
            ck_assert_float_eq(out[i], (float)(K * corner[c][0] * corner[c][1]));
        for (int b = 0; b < K / Q_BLOCK; b++) {
            uint8_t *p = w + b * Q4_BLOCK_BYTES;
            memset(p, 0xff, PANEL * Q_BLOCK / 2);
            for (int i = 0; i < PANEL; i++) {
                memcpy(p + PANEL * Q_BLOCK / 2 + 2 * i, &one, 2);
                memcpy(p + PANEL * Q_BLOCK / 2 + 2 * PANEL + 2 * i, &zero, 2);
            }
        }
        k->linear_q4(&a);
        for (int i = 0; i < M * PANEL; i++)
            ck_assert_float_eq(out[i], (float)(K * corner[c][0] * 15));
    }
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("linear");
    TCase *tc = tcase_create("linear");
    tcase_set_timeout(tc, 300);
    tcase_add_loop_test(tc, linear_values_and_bits, 0, N_FORMATS * N_ISAS);
    tcase_add_loop_test(tc, linear_bias_and_add, 0, N_FORMATS * N_ISAS);
    tcase_add_loop_test(tc, linear_many_rows, 0, 4 * N_ISAS); /* F32, BF16, Q8, Q4 */
    tcase_add_loop_test(tc, linear_extremes, 0, N_ISAS);
    suite_add_tcase(s, tc);
    return s;
}
