/* rng: Philox against the known answers of Random123 (file kat_vectors, "philox4x32 10"), and the
 * properties that sampling builds on. */
#include "common/base/rng.h"

#include <string.h>

#include "tests/harness.h"

static const struct {
    uint64_t counter_lo, counter_hi, key; /* little ends first: the file lists 32-bit words */
    uint32_t out[4];
} answers[] = {
    {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {0x85a308d3243f6a88,
     0x0370734413198a2e,
     0x299f31d0a4093822,
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

START_TEST(rng_philox_known_answers)
{
    struct rng_block b =
        rng_philox(answers[_i].key, answers[_i].counter_lo, answers[_i].counter_hi);
    for (int k = 0; k < 4; k++)
        ck_assert_uint_eq(b.v[k], answers[_i].out[k]);
}
END_TEST

START_TEST(rng_uniform_range_and_mean)
{
    double sum = 0;
    for (uint32_t i = 0; i < 100000; i++) {
        float u = rng_uniform(42, 0, i);
        ck_assert(u >= 0.0f && u < 1.0f);
        sum += u;
    }
    /* The standard deviation of the mean is 0.0009. */
    ck_assert_double_eq_tol(sum / 100000, 0.5, 0.005);
}
END_TEST

START_TEST(rng_uniform_depends_on_each_part)
{
    float u = rng_uniform(7, 1, 100);
    ck_assert_float_eq(u, rng_uniform(7, 1, 100));
    ck_assert_float_ne(u, rng_uniform(8, 1, 100));
    ck_assert_float_ne(u, rng_uniform(7 + (1ull << 32), 1, 100));
    ck_assert_float_ne(u, rng_uniform(7, 2, 100));
    ck_assert_float_ne(u, rng_uniform(7, 1, 101));
    ck_assert_float_ne(rng_uniform(7, 100, 1), u);
}
END_TEST

START_TEST(rng_bytes_fills_all)
{
    unsigned char a[3000], b[3000];
    int zero = 0;
    memset(a, 0, sizeof a);
    memset(b, 0, sizeof b);
    rng_bytes(a, sizeof a);
    rng_bytes(b, sizeof b);
    ck_assert_mem_ne(a, b, sizeof a);
    for (size_t i = sizeof a - 64; i < sizeof a; i++)
        zero += a[i] == 0;
    ck_assert_int_lt(zero, 10);
    ck_assert_uint_ne(rng_u64(), rng_u64());
    rng_bytes(a, 0);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("rng");
    TCase *t = tcase_create("rng");
    tcase_add_loop_test(t, rng_philox_known_answers, 0, sizeof answers / sizeof answers[0]);
    tcase_add_test(t, rng_uniform_range_and_mean);
    tcase_add_test(t, rng_uniform_depends_on_each_part);
    tcase_add_test(t, rng_bytes_fills_all);
    suite_add_tcase(s, t);
    return s;
}
