/* Packing: which format, and that the numbers of the file come back exactly. */
#include "tests/kernels/quant_vectors.h"
#include "tests/kernels/tiny.h"

struct fixture {
    struct threads *pool;
    struct weight_store store;
};

static void fixture_init(struct fixture *f)
{
    char err[100];
    *f = (struct fixture){0};
    ck_assert_ok(threads_create(2, NULL, &f->pool, err, sizeof err));
}
static void fixture_fini(struct fixture *f)
{
    weight_store_fini(&f->store);
    threads_destroy(f->pool);
}
static int create(struct fixture *f, const struct matrix_view *parts, size_t n,
                  enum weight_format format, bool interleave, bool embed, struct weight **w)
{
    return weight_create(&f->store, f->pool, parts, n, format, interleave, embed, w);
}
static void free_view(const struct matrix_view *v)
{
    free((void *)(uintptr_t)v->data);
}

static const struct {
    uint32_t type;
    enum weight_format want;
} types[] = {{MATRIX_F32, WEIGHT_BF16}, {MATRIX_F16, WEIGHT_BF16}, {MATRIX_BF16, WEIGHT_BF16},
             {MATRIX_Q8_0, WEIGHT_Q8},  {MATRIX_Q4_0, WEIGHT_Q4},  {MATRIX_Q4_1, WEIGHT_Q4},
             {MATRIX_Q5_0, WEIGHT_Q8},  {MATRIX_Q5_1, WEIGHT_Q8K}, {MATRIX_Q4_K, WEIGHT_Q4},
             {MATRIX_Q5_K, WEIGHT_Q8K}, {MATRIX_Q6_K, WEIGHT_Q8K}};
#define N_TYPES (sizeof types / sizeof *types)

/* Blocks decoded by somebody else. */
START_TEST(matrix_decode_as_gguf)
{
    float got[256];
    struct matrix_view v = {quant_vectors[_i].type, 1, 256, quant_vectors[_i].bytes};
    matrix_decode(&v, 0, 0, 256, got);
    for (int i = 0; i < 256; i++) {
        float want = half_float(quant_vectors[_i].bits[i]);
        /* The package multiplies and adds in another order where there is a minimum. */
        ck_assert_msg(fabsf(got[i] - want) <= 1e-6f * fabsf(want) + 1e-6f,
                      "type %u, %d: %g, not %g", v.type, i, got[i], want);
    }
}
END_TEST

/* Every format of every type: rows for OP_EMBED are the file's, but for the scales of K-quants. */
START_TEST(weight_embed_is_exact)
{
    enum { K = 512 };
    struct fixture f;
    fixture_init(&f);
    struct tiny_random r = {.key = 9};
    struct matrix_view v = tiny_matrix(&r, types[_i].type, 75, K, 3);
    bool rounds = v.type >= MATRIX_Q4_K && v.type <= MATRIX_Q6_K;
    for (enum weight_format format = WEIGHT_AUTO; format <= WEIGHT_Q4; format++) {
        struct weight *w;
        ck_assert_ok(create(&f, &v, 1, format, false, true, &w));
        ck_assert_int_eq(w->format, format == WEIGHT_AUTO ? types[_i].want : format);
        ck_assert_uint_eq(w->n_panels, 3);
        ck_assert_uint_ge(backend_weight_bytes(w), 3 * w->panel_bytes);
        for (uint32_t row = 0; row < 75; row++) {
            float want[K], got[K];
            matrix_decode(&v, row, 0, K, want);
            weight_embed(w, row, got);
            if (rounds && w->rows == NULL)
                for (int k = 0; k < K; k++) /* 2^-11 of the largest product and minimum */
                    ck_assert_msg(fabsf(want[k] - got[k]) <= 12 * 0x1p-11f, "%g for %g", got[k],
                                  want[k]);
            else
                ck_assert_msg(memcmp(want, got, sizeof got) == 0, "type %u, format %d, row %u",
                              v.type, format, row);
        }
        weight_destroy(&f.store, w);
    }
    free_view(&v);
    fixture_fini(&f);
}
END_TEST

/* Formats that round stay within half a step of the largest number of a block. */
START_TEST(weight_quantises_closely)
{
    struct fixture f;
    fixture_init(&f);
    struct tiny_random r = {.key = 10};
    struct matrix_view v = tiny_matrix(&r, MATRIX_F32, 40, 64, 1);
    static const struct {
        enum weight_format format;
        float error;
    } rounds[] = {
        {WEIGHT_F32, 0}, {WEIGHT_BF16, 0x1p-9f}, {WEIGHT_Q8, 0.0042f}, {WEIGHT_Q4, 0.068f}};
    for (int i = 0; i < 4; i++) {
        struct weight *w;
        ck_assert_ok(create(&f, &v, 1, rounds[i].format, false, false, &w));
        ck_assert_ptr_null(w->rows);
        for (uint32_t row = 0; row < 40; row++) {
            float want[64], got[64];
            matrix_decode(&v, row, 0, 64, want);
            weight_embed(w, row, got);
            for (int k = 0; k < 64; k++)
                ck_assert_msg(fabsf(want[k] - got[k]) <= rounds[i].error, "format %d: %g for %g",
                              rounds[i].format, got[k], want[k]);
        }
        weight_destroy(&f.store, w);
    }
    free_view(&v);
    fixture_fini(&f);
}
END_TEST

/* A Q4_0 scale whose eightfold overflows fp16. */
START_TEST(weight_q4_0_overflow_becomes_q8)
{
    struct fixture f;
    fixture_init(&f);
    struct tiny_random r = {.key = 11};
    struct matrix_view v = tiny_matrix(&r, MATRIX_Q4_0, 33, 64, 1);
    uint16_t big = f16_from_f32(-9000);
    memcpy((uint8_t *)(uintptr_t)v.data + 20 * 36 + 18, &big, 2); /* row 20, second block */
    static const enum weight_format asked[] = {WEIGHT_AUTO, WEIGHT_Q4};
    for (int i = 0; i < 2; i++) {
        struct weight *w;
        ck_assert_ok(create(&f, &v, 1, asked[i], false, true, &w));
        ck_assert_int_eq(w->format, WEIGHT_Q8);
        ck_assert_ptr_null(w->rows); /* exact without a copy */
        for (uint32_t row = 0; row < 33; row++) {
            float want[64], got[64];
            matrix_decode(&v, row, 0, 64, want);
            weight_embed(w, row, got);
            ck_assert(memcmp(want, got, sizeof got) == 0);
        }
        weight_destroy(&f.store, w);
    }
    free_view(&v);
    fixture_fini(&f);
}
END_TEST

/* Parts that need different formats: nothing is rounded. */
static void check_mixed(const uint32_t part_types[3], enum weight_format want_format)
{
    struct fixture f;
    fixture_init(&f);
    struct tiny_random r = {.key = 12};
    struct matrix_view v[] = {tiny_matrix(&r, part_types[0], 40, 64, 1),
                              tiny_matrix(&r, part_types[1], 7, 64, 1),
                              tiny_matrix(&r, part_types[2], 30, 64, 1)};
    struct weight *w;
    ck_assert_ok(create(&f, v, 3, WEIGHT_AUTO, false, false, &w));
    ck_assert_int_eq(w->format, want_format);
    ck_assert_uint_eq(w->n, 77);
    static const struct {
        uint32_t row, part, own;
    } places[] = {{0, 0, 0}, {39, 0, 39}, {40, 1, 0}, {46, 1, 6}, {47, 2, 0}, {76, 2, 29}};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        float want[64], got[64];
        matrix_decode(&v[places[i].part], places[i].own, 0, 64, want);
        weight_embed(w, places[i].row, got);
        ck_assert(memcmp(want, got, sizeof got) == 0);
    }
    weight_destroy(&f.store, w);
    for (int i = 0; i < 3; i++)
        free_view(&v[i]);
    fixture_fini(&f);
}

START_TEST(weight_mixed_parts_stay_exact)
{
    check_mixed((const uint32_t[]){MATRIX_Q4_1, MATRIX_Q8_0, MATRIX_Q5_1}, WEIGHT_Q8K);
    check_mixed((const uint32_t[]){MATRIX_Q4_0, MATRIX_Q5_0, MATRIX_Q4_0}, WEIGHT_Q8K);
    check_mixed((const uint32_t[]){MATRIX_Q4_1, MATRIX_F16, MATRIX_Q4_1}, WEIGHT_F32);
}
END_TEST

START_TEST(weight_interleaves_gate_and_up)
{
    struct fixture f;
    fixture_init(&f);
    struct tiny_random r = {.key = 13};
    struct matrix_view v[] = {tiny_matrix(&r, MATRIX_BF16, 40, 32, 1),
                              tiny_matrix(&r, MATRIX_BF16, 40, 32, 1)};
    struct weight *w;
    ck_assert_ok(create(&f, v, 2, WEIGHT_AUTO, true, false, &w));
    ck_assert_uint_eq(w->n, 80);
    ck_assert_uint_eq(w->n_panels, 4);
    struct weight flat = *w; /* panels in plain order: row 32 p + c */
    flat.n = 128;
    for (uint32_t p = 0; p < 4; p++)
        for (uint32_t c = 0; c < PANEL; c++) {
            float want[32] = {0}, got[32];
            if (p / 2 * PANEL + c < 40)
                matrix_decode(&v[p % 2], p / 2 * PANEL + c, 0, 32, want);
            weight_embed(&flat, p * PANEL + c, got);
            ck_assert(memcmp(want, got, sizeof got) == 0);
        }
    weight_destroy(&f.store, w);
    free_view(&v[0]);
    free_view(&v[1]);
    fixture_fini(&f);
}
END_TEST

START_TEST(weight_refuses)
{
    struct fixture f;
    fixture_init(&f);
    struct tiny_random r = {.key = 14};
    struct matrix_view a = tiny_matrix(&r, MATRIX_F32, 4, 34, 1);
    struct matrix_view b = tiny_matrix(&r, MATRIX_F32, 4, 32, 1), odd = a, unknown = b, none = b;
    struct matrix_view two[] = {a, b}, uneven[] = {b, b};
    odd.cols = 33;
    unknown.type = 10;
    none.rows = 0;
    uneven[1].rows = 3;
    struct weight *w;
    ck_assert_int_eq(create(&f, &a, 0, WEIGHT_AUTO, false, false, &w), STATUS_INVALID);
    ck_assert_int_eq(create(&f, two, 2, WEIGHT_AUTO, false, false, &w), STATUS_INVALID);
    ck_assert_int_eq(create(&f, &none, 1, WEIGHT_AUTO, false, false, &w), STATUS_INVALID);
    ck_assert_int_eq(create(&f, &b, 1, WEIGHT_AUTO, true, false, &w), STATUS_INVALID);
    ck_assert_int_eq(create(&f, uneven, 2, WEIGHT_AUTO, true, false, &w), STATUS_INVALID);
    ck_assert_int_eq(create(&f, uneven, 2, WEIGHT_AUTO, false, true, &w), STATUS_INVALID);
    ck_assert_int_eq(create(&f, &unknown, 1, WEIGHT_AUTO, false, false, &w), STATUS_UNSUPPORTED);
    ck_assert_int_eq(create(&f, &odd, 1, WEIGHT_AUTO, false, false, &w), STATUS_UNSUPPORTED);
    ck_assert_int_eq(create(&f, &a, 1, WEIGHT_Q8, false, false, &w), STATUS_UNSUPPORTED);
    ck_assert_int_eq(create(&f, &a, 1, WEIGHT_Q4, false, false, &w), STATUS_UNSUPPORTED);
    free_view(&a);
    free_view(&b);
    fixture_fini(&f);
}
END_TEST

/* More than a slab, freed in another order than created. */
START_TEST(weight_store_shares_slabs)
{
    struct fixture f;
    fixture_init(&f);
    enum { N = 40 };
    struct tiny_random r = {.key = 15};
    struct matrix_view v = tiny_matrix(&r, MATRIX_Q8_0, 64, 512, 1), big = v;
    struct weight *w[N];
    float want[512], got[512];
    matrix_decode(&v, 63, 0, 512, want);
    for (int i = 0; i < N; i++) {
        if (i == 3) { /* a slab of its own: the rows again and again */
            big.rows = 64;
            struct matrix_view many[600];
            for (int k = 0; k < 600; k++)
                many[k] = big;
            ck_assert_ok(create(&f, many, 600, WEIGHT_F32, false, false, &w[i]));
        } else {
            ck_assert_ok(create(&f, &v, 1, i % 2 ? WEIGHT_Q8 : WEIGHT_F32, false, false, &w[i]));
        }
    }
    for (int i = 0; i < N; i++) {
        weight_embed(w[i * 7 % N], 63, got);
        ck_assert(memcmp(want, got, sizeof got) == 0);
        weight_destroy(&f.store, w[i * 7 % N]);
    }
    free_view(&v);
    fixture_fini(&f);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("weight");
    TCase *tc = tcase_create("weight");
    tcase_set_timeout(tc, 30);
    tcase_add_loop_test(tc, matrix_decode_as_gguf, 0, sizeof quant_vectors / sizeof *quant_vectors);
    tcase_add_loop_test(tc, weight_embed_is_exact, 0, N_TYPES);
    tcase_add_test(tc, weight_quantises_closely);
    tcase_add_test(tc, weight_q4_0_overflow_becomes_q8);
    tcase_add_test(tc, weight_mixed_parts_stay_exact);
    tcase_add_test(tc, weight_interleaves_gate_and_up);
    tcase_add_test(tc, weight_refuses);
    tcase_add_test(tc, weight_store_shares_slabs);
    suite_add_tcase(s, tc);
    return s;
}
