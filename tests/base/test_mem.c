/* mem: sizes are checked, arenas bounded, huge memory aligned. */
#include "common/base/mem.h"

#include <stdint.h>
#include <string.h>

#include "tests/harness.h"

START_TEST(mem_mul_add_catch_overflow)
{
    size_t r = 7;
    ck_assert(mem_mul(3, 5, &r));
    ck_assert_uint_eq(r, 15);
    ck_assert(!mem_mul(SIZE_MAX / 2, 3, &r));
    ck_assert(mem_mul(SIZE_MAX, 0, &r));
    ck_assert(mem_add(SIZE_MAX - 1, 1, &r));
    ck_assert_uint_eq(r, SIZE_MAX);
    ck_assert(!mem_add(SIZE_MAX, 1, &r));
}
END_TEST

START_TEST(mem_array_zeroed_and_checked)
{
    uint64_t *a = mem_array(100, sizeof *a);
    for (int i = 0; i < 100; i++)
        ck_assert_uint_eq(a[i], 0);
    free(a);
    volatile size_t many = SIZE_MAX / 4;
    ck_assert_ptr_null(mem_array(many, 8));
    void *none = mem_array(0, 0);
    ck_assert_ptr_nonnull(none);
    free(none);
}
END_TEST

START_TEST(mem_resize_keeps_contents)
{
    char *p = mem_strdup("baton");
    char *q = mem_resize(p, 1000, 3);
    ck_assert_ptr_nonnull(q);
    ck_assert_str_eq(q, "baton");
    volatile size_t many = SIZE_MAX / 2;
    ck_assert_ptr_null(mem_resize(q, many, 4));
    ck_assert_str_eq(q, "baton");
    free(q);
}
END_TEST

START_TEST(mem_dup_copies_bytes)
{
    const char src[4] = {1, 0, 2, 0};
    char *p = mem_dup(src, sizeof src);
    ck_assert_mem_eq(p, src, sizeof src);
    free(p);
    p = mem_dup(NULL, 0);
    ck_assert_ptr_nonnull(p);
    free(p);
}
END_TEST

START_TEST(mem_huge_aligned_and_writable)
{
    const size_t sizes[] = {1, 4096, 2 << 20, (2 << 20) + 1, 7 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char *p = mem_huge(sizes[i]);
        ck_assert_ptr_nonnull(p);
        ck_assert_uint_eq((uintptr_t)p % (2 << 20), 0);
        ck_assert_int_eq(p[0], 0);
        ck_assert_int_eq(p[sizes[i] - 1], 0);
        memset(p, 0x5a, sizes[i]);
        mem_huge_free(p, sizes[i]);
    }
    ck_assert_ptr_null(mem_huge(0));
    ck_assert_ptr_null(mem_huge(SIZE_MAX));
    ck_assert_ptr_null(mem_huge(SIZE_MAX / 2));
    mem_huge_free(NULL, 0);
}
END_TEST

START_TEST(arena_aligned_zeroed_apart)
{
    struct arena a;
    arena_init(&a, 0);
    unsigned char *prev = NULL;
    for (size_t n = 1; n < 9000; n += 37) {
        unsigned char *p = arena_alloc(&a, n);
        ck_assert_ptr_nonnull(p);
        ck_assert_uint_eq((uintptr_t)p % 16, 0);
        ck_assert(p[0] == 0 && memcmp(p, p + 1, n - 1) == 0);
        memset(p, 0xff, n);
        ck_assert_ptr_ne(p, prev);
        prev = p;
    }
    ck_assert_uint_gt(a.used, 9000);
    arena_fini(&a);
    ck_assert_uint_eq(a.used, 0);
    arena_fini(&a);
}
END_TEST

START_TEST(arena_keeps_to_its_limit)
{
    struct arena a;
    arena_init(&a, 1024);
    ck_assert_ptr_nonnull(arena_alloc(&a, 1000));
    ck_assert_ptr_null(arena_alloc(&a, 100));
    ck_assert_ptr_nonnull(arena_alloc(&a, 16));
    ck_assert_ptr_null(arena_alloc(&a, 1));
    ck_assert_ptr_null(arena_alloc(&a, SIZE_MAX));
    ck_assert_ptr_null(arena_alloc(&a, SIZE_MAX - 8));
    arena_fini(&a);
}
END_TEST

START_TEST(arena_strndup_terminates)
{
    struct arena a;
    arena_init(&a, 0);
    ck_assert_str_eq(arena_strndup(&a, "prefill and decode", 7), "prefill");
    ck_assert_str_eq(arena_strndup(&a, "", 0), "");
    arena_fini(&a);
    arena_init(&a, 16);
    ck_assert_ptr_null(arena_strndup(&a, "sixteen bytes, so", 16));
    ck_assert_ptr_null(arena_strndup(&a, "x", SIZE_MAX));
    arena_fini(&a);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("mem");
    TCase *t = tcase_create("mem");
    tcase_add_test(t, mem_mul_add_catch_overflow);
    tcase_add_test(t, mem_array_zeroed_and_checked);
    tcase_add_test(t, mem_resize_keeps_contents);
    tcase_add_test(t, mem_dup_copies_bytes);
    tcase_add_test(t, mem_huge_aligned_and_writable);
    suite_add_tcase(s, t);
    t = tcase_create("arena");
    tcase_add_test(t, arena_aligned_zeroed_apart);
    tcase_add_test(t, arena_keeps_to_its_limit);
    tcase_add_test(t, arena_strndup_terminates);
    suite_add_tcase(s, t);
    return s;
}
