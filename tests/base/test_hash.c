/* hash: the KV checksum against its definition, for every tail length and alignment; XXH3 against
 * values of its specification's implementation. */
#include "common/base/hash.c" /* the source itself, to reach every variant of hash_kv */

#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "tests/harness.h"

/* The definition in hash.h, word by word. */
static uint64_t plain(const unsigned char *p, size_t n)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n / 8; i++) {
        uint64_t w = 0;
        for (int k = 7; k >= 0; k--)
            w = w << 8 | p[i * 8 + (size_t)k];
        sum += hash_mix64(w + (i + 1) * HASH_KV_STEP);
    }
    return sum;
}

START_TEST(hash_kv_equals_its_definition)
{
    unsigned char *p = malloc(70000);
    rng_bytes(p, 70000);
    for (size_t n = 0; n <= 1024; n += 8)
        for (size_t shift = 0; shift < 3; shift++)
            ck_assert_uint_eq(hash_kv(p + shift, n), plain(p + shift, n));
    ck_assert_uint_eq(hash_kv(p, 65536), plain(p, 65536));
    ck_assert_uint_eq(hash_kv(p + 5, 69992), plain(p + 5, 69992));
    free(p);
}
END_TEST

/* Peers with different processors compare checksums. */
START_TEST(hash_kv_variants_agree)
{
    unsigned char p[3000];
    rng_bytes(p, sizeof p);
    for (size_t n = 0; n <= sizeof p / 8; n++) {
        uint64_t want = plain(p, n * 8);
        ck_assert_uint_eq(kv_sum_base((char *)p, n), want);
#if defined(__x86_64__)
        if (__builtin_cpu_supports("avx2"))
            ck_assert_uint_eq(kv_sum_avx2((char *)p, n), want);
        if (kv_sum_choose() == kv_sum_avx512)
            ck_assert_uint_eq(kv_sum_avx512((char *)p, n), want);
#endif
    }
}
END_TEST

START_TEST(hash_kv_sees_every_change)
{
    uint64_t w[256];
    for (size_t i = 0; i < 256; i++)
        w[i] = 0;
    uint64_t clean = hash_kv(w, sizeof w);
    for (size_t i = 0; i < 256; i++) {
        w[i] ^= 1ull << (i % 64);
        ck_assert_uint_ne(hash_kv(w, sizeof w), clean);
        w[i] ^= 1ull << (i % 64);
    }
    /* Words that change places are noticed: the position goes into each term. */
    w[3] = 17;
    uint64_t there = hash_kv(w, sizeof w);
    w[3] = 0, w[4] = 17;
    ck_assert_uint_ne(hash_kv(w, sizeof w), there);
    /* So is a block of zeros that got shorter. */
    w[4] = 0;
    ck_assert_uint_ne(hash_kv(w, sizeof w - 8), clean);
    ck_assert_uint_eq(hash_kv(w, 0), 0);
}
END_TEST

START_TEST(hash_mix64_known_answers)
{
    /* SplitMix64 from seed 0: state 1·step, 2·step, … through the finaliser. */
    ck_assert_uint_eq(hash_mix64(HASH_KV_STEP), 0xe220a8397b1dcdafu);
    ck_assert_uint_eq(hash_mix64(2 * HASH_KV_STEP), 0x6e789e6aa1b965f4u);
    ck_assert_uint_eq(hash_mix64(3 * HASH_KV_STEP), 0x06c45d188009454fu);
    ck_assert_uint_eq(hash_mix64(0), 0);
}
END_TEST

START_TEST(hash_xxh3_known_answers)
{
    /* XXH3_64bits("") and XXH3_128bits("") with seed 0. */
    ck_assert_uint_eq(hash64("", 0, 0), 0x2d06800538d394c2u);
    struct hash128 h = hash128("", 0, 0);
    ck_assert_uint_eq(h.lo, 0x6001c324468d497fu);
    ck_assert_uint_eq(h.hi, 0x99aa06d3014798d8u);
    ck_assert_uint_ne(hash64("baton", 5, 1), hash64("baton", 5, 2));
    ck_assert_uint_ne(hash128("baton", 5, 1).lo, hash128("baton", 5, 2).lo);
    ck_assert_uint_ne(hash128("baton", 5, 1).hi, hash128("batom", 5, 1).hi);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("hash");
    TCase *t = tcase_create("hash");
    tcase_add_test(t, hash_kv_equals_its_definition);
    tcase_add_test(t, hash_kv_variants_agree);
    tcase_add_test(t, hash_kv_sees_every_change);
    tcase_add_test(t, hash_mix64_known_answers);
    tcase_add_test(t, hash_xxh3_known_answers);
    suite_add_tcase(s, t);
    return s;
}
