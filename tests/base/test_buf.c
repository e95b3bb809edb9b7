/* buf: bounded growth, and a failure that stays until somebody looks. */
#include "common/base/buf.h"

#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"

START_TEST(buf_appends_pieces)
{
    struct buf b;
    buf_init(&b, 0);
    ck_assert_str_eq(buf_str(&b), "");
    buf_puts(&b, "one");
    buf_putc(&b, ',');
    buf_printf(&b, "%d%s", 2, "!");
    buf_append(&b, "\0x", 2);
    ck_assert(buf_ok(&b));
    ck_assert_uint_eq(b.len, 8);
    ck_assert_mem_eq(b.data, "one,2!\0x", 9);
    buf_fini(&b);
    buf_fini(&b);
}
END_TEST

START_TEST(buf_grows)
{
    struct buf b;
    buf_init(&b, 0);
    for (int i = 0; i < 100000; i++)
        buf_putc(&b, (char)('a' + i % 26));
    ck_assert_uint_eq(b.len, 100000);
    for (int i = 0; i < 100000; i += 997)
        ck_assert_int_eq(b.data[i], 'a' + i % 26);
    ck_assert_uint_eq(strlen(b.data), 100000);
    buf_fini(&b);
}
END_TEST

START_TEST(buf_limit_fails_and_keeps_contents)
{
    struct buf b;
    buf_init(&b, 10);
    buf_puts(&b, "0123456789");
    ck_assert(buf_ok(&b));
    buf_putc(&b, 'x');
    ck_assert(!buf_ok(&b));
    ck_assert_str_eq(buf_str(&b), "0123456789");
    ck_assert_ptr_null(buf_take(&b));
    buf_puts(&b, "");
    ck_assert(!buf_ok(&b));
    buf_reset(&b);
    ck_assert(buf_ok(&b));
    buf_printf(&b, "%s", "much too long for it");
    ck_assert(!buf_ok(&b));
    ck_assert_str_eq(buf_str(&b), "");
    buf_reset(&b);
    ck_assert_ptr_null(buf_reserve(&b, (size_t)-1));
    ck_assert(!buf_ok(&b));
    buf_fini(&b);
}
END_TEST

START_TEST(buf_reserve_then_write)
{
    struct buf b;
    buf_init(&b, 0);
    buf_puts(&b, "ab");
    char *p = buf_reserve(&b, 5000);
    ck_assert_ptr_eq(p, b.data + 2);
    memset(p, 'c', 5000);
    b.len += 5000;
    buf_putc(&b, 'd');
    ck_assert_uint_eq(b.len, 5003);
    ck_assert_str_eq(b.data + 5001, "cd");
    buf_fini(&b);
}
END_TEST

START_TEST(buf_consume_front)
{
    struct buf b;
    buf_init(&b, 0);
    buf_consume(&b, 3);
    buf_puts(&b, "headbody");
    buf_consume(&b, 4);
    ck_assert_str_eq(buf_str(&b), "body");
    buf_consume(&b, 100);
    ck_assert_str_eq(buf_str(&b), "");
    ck_assert_uint_eq(b.len, 0);
    buf_fini(&b);
}
END_TEST

START_TEST(buf_take_hands_over)
{
    struct buf b;
    buf_init(&b, 0);
    char *empty = buf_take(&b);
    ck_assert_str_eq(empty, "");
    free(empty);
    buf_puts(&b, "mine");
    char *s = buf_take(&b);
    ck_assert_str_eq(s, "mine");
    ck_assert_uint_eq(b.len, 0);
    buf_puts(&b, "next");
    ck_assert_str_eq(s, "mine");
    ck_assert_str_eq(buf_str(&b), "next");
    free(s);
    buf_fini(&b);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("buf");
    TCase *t = tcase_create("buf");
    tcase_add_test(t, buf_appends_pieces);
    tcase_add_test(t, buf_grows);
    tcase_add_test(t, buf_limit_fails_and_keeps_contents);
    tcase_add_test(t, buf_reserve_then_write);
    tcase_add_test(t, buf_consume_front);
    tcase_add_test(t, buf_take_hands_over);
    suite_add_tcase(s, t);
    return s;
}
