/* The emulation itself: what the operations of a warp compute, that orders are shuffled, and that
 * wrong kernels are found. */
#include "tests/cuda/probes.h"

#include <signal.h>

#include "tests/cuda/kernels.h"

START_TEST(emu_mma)
{
    struct source s = {1, (uint64_t)_i};
    uint16_t *in = halves(256 + 128);
    float *out = floats(128);
    double want[128];
    for (int i = 0; i < 256 + 128; i++)
        in[i] = bf16_from_f32(source_float(&s, 2));
    for (int i = 0; i < 128; i++) {
        want[i] = 1;
        for (int k = 0; k < 16; k++)
            want[i] +=
                (double)bf16_to_f32(in[i / 8 * 16 + k]) * bf16_to_f32(in[256 + i % 8 * 16 + k]);
    }
    emu_seed((uint64_t)_i);
    ck_assert_ok(probe(PROBE_MMA, 1, 32, in, (uint32_t *)out));
    assert_close(out, want, 128, 1e-6, "mma");
    test_free_all();
}
END_TEST

START_TEST(emu_warp)
{
    uint32_t *out = test_memory(32 * 8 * sizeof *out);
    emu_seed((uint64_t)_i);
    ck_assert_ok(probe(PROBE_WARP, 1, 32, NULL, out));
    for (uint32_t l = 0; l < 32; l++) {
        const uint32_t *o = out + 8 * l;
        float sum, max;
        memcpy(&sum, &o[6], sizeof sum);
        memcpy(&max, &o[7], sizeof max);
        ck_assert_uint_eq(o[0], (l ^ 5) * 3);
        ck_assert_uint_eq(o[1], l >= 4 ? l - 4 : l);
        ck_assert_uint_eq(o[2], 9);
        ck_assert_uint_eq(o[3], 0x49249249u);
        ck_assert_uint_eq(o[4], 31 * 16);
        uint32_t row = l / 4, column = l % 4 * 2;
        ck_assert_uint_eq(o[5], (100 * column + row) | (100 * (column + 1) + row) << 16);
        ck_assert_float_eq(sum, 31 * 16);
        ck_assert_float_eq(max, (float)(28 + l % 4));
    }
    test_free_all();
}
END_TEST

START_TEST(emu_copy)
{
    uint16_t *in = test_memory(64 * 8 * sizeof *in);
    uint32_t *out = test_memory(192 * sizeof *out);
    for (int i = 0; i < 64 * 8; i++)
        in[i] = (uint16_t)(i + 1);
    emu_seed((uint64_t)_i);
    ck_assert_ok(probe(PROBE_COPY, 1, 64, in, out));
    for (uint32_t i = 0; i < 64; i++) {
        ck_assert_uint_eq(out[i], 0xffffffffu);
        ck_assert_uint_eq(out[64 + i], (8 * i + 1) | (8 * i + 2) << 16);
        ck_assert_uint_eq(out[128 + i], i == 3 ? 0 : (8 * i + 7) | (8 * i + 8) << 16);
    }
    test_free_all();
}
END_TEST

/* With the barrier every order gives the same; without it some seed shows the race. */
START_TEST(emu_race)
{
    uint32_t out[64], wrong = 0;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        emu_seed(seed);
        ck_assert_ok(probe(PROBE_EXCHANGE, 1, 64, NULL, out));
        for (uint32_t i = 0; i < 64; i++)
            ck_assert_uint_eq(out[i], 63 - i);
        emu_seed(seed);
        ck_assert_ok(probe(PROBE_RACE, 1, 64, NULL, out));
        for (uint32_t i = 0; i < 64; i++)
            wrong += out[i] != 63 - i;
    }
    ck_assert_uint_gt(wrong, 0);
}
END_TEST

/* Every block runs once; equal seeds give equal orders, others other ones; 0 is ascending. */
START_TEST(emu_order)
{
    uint32_t first[45], again[45], other[45];
    for (uint64_t seed = 0; seed < 20; seed++) {
        memset(first, 0, sizeof first);
        memset(again, 0, sizeof again);
        emu_seed(seed);
        ck_assert_ok(probe(PROBE_ORDER, 22, 64, NULL, first));
        emu_seed(seed);
        ck_assert_ok(probe(PROBE_ORDER, 22, 64, NULL, again));
        ck_assert(memcmp(first, again, sizeof first) == 0);
        uint64_t seen = 0;
        for (uint32_t i = 0; i < 44; i++) {
            seen |= 1ull << first[1 + i];
            ck_assert(seed != 0 || first[1 + i] == i);
        }
        ck_assert_uint_eq(seen, (1ull << 44) - 1);
        ck_assert(seed == 0 || memcmp(first, other, sizeof first) != 0);
        memcpy(other, first, sizeof first);
    }
}
END_TEST

START_TEST(emu_fresh)
{
    uint32_t *out = test_memory(64 * sizeof *out);
    emu_seed((uint64_t)_i);
    for (int i = 0; i < 2; i++) {
        memset(out, 0, 64 * sizeof *out);
        ck_assert_ok(probe(PROBE_FRESH, 3, 64, NULL, out));
        ck_assert(untouched(out, 64 * sizeof *out));
    }
    test_free_all();
}
END_TEST

START_TEST(emu_bad_launch)
{
    ck_assert_int_eq(probe(PROBE_ORDER, 1, 1056, NULL, NULL), 9);
    ck_assert_int_eq(probe(PROBE_ORDER, 1, 40, NULL, NULL), 9);
    ck_assert_int_eq(probe(PROBE_ORDER, 0, 32, NULL, NULL), 9);
}
END_TEST

/* What is read before the wait is what was there before; what is written then is noticed. */
START_TEST(emu_before_wait)
{
    uint16_t *in = test_memory(64 * sizeof *in);
    uint32_t *out = test_memory(128 * sizeof *out);
    for (int i = 0; i < 64; i++)
        in[i] = 7;
    hide_begin();
    hide_input(in, 64 * sizeof *in);
    watch_output(out + 64, 64 * sizeof *out);
    ck_assert_ok(probe(PROBE_EARLY_READ, 1, 64, in, out));
    hide_end();
    for (int i = 0; i < 64; i++)
        ck_assert(out[i] == 0xffff && out[64 + i] == 7);
    test_free_all();
}
END_TEST

/* Each of these aborts. */
static const enum probe wrong[] = {
    PROBE_COPY_LOST,     PROBE_BARRIER_MISSED, PROBE_BARRIERS_MIXED, PROBE_WARP_MIXED,
    PROBE_LANES_GONE,    PROBE_MISALIGNED,     PROBE_WAIT_FORGOTTEN,
#if defined(__SANITIZE_ADDRESS__)
    PROBE_OUT_OF_SHARED, PROBE_OUT_OF_DYNAMIC, PROBE_OUT_OF_GLOBAL,
#endif
};

START_TEST(emu_wrong)
{
    uint16_t *in = test_memory(64 * 8 * sizeof *in);
    uint32_t *out = test_memory(64 * sizeof *out);
    emu_seed(3);
    (void)!freopen("/dev/null", "w", stderr); /* the report is not of interest */
    (void)probe(wrong[_i], 1, 64, in, out);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("cuda emulation");
    add_cases(s, emu_mma, 5);
    add_cases(s, emu_warp, 5);
    add_cases(s, emu_copy, 3);
    add_cases(s, emu_race, 1);
    add_cases(s, emu_order, 1);
    add_cases(s, emu_fresh, 3);
    add_cases(s, emu_bad_launch, 1);
    add_cases(s, emu_before_wait, 1);
    TCase *c = tcase_create("emu_wrong");
    tcase_add_loop_test_raise_signal(c, emu_wrong, SIGABRT, 0, sizeof wrong / sizeof *wrong);
    suite_add_tcase(s, c);
    return s;
}
