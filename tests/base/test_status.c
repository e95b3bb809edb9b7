/* status: the error table keeps its promises (unique codes, texts, sensible HTTP statuses). */
#include "common/base/status.h"

#include <errno.h>
#include <string.h>

#include "tests/harness.h"

static const struct {
    int code;
    const char *name;
} table[] = {
#define ROW(name, code, http, text) {code, #name},
    STATUS_TABLE(ROW)
#undef ROW
};
#define TABLE_N (sizeof table / sizeof table[0])

START_TEST(status_table_is_consistent)
{
    for (size_t i = 0; i < TABLE_N; i++) {
        ck_assert_str_eq(status_name(table[i].code), table[i].name);
        ck_assert_int_gt(strlen(status_text(table[i].code)), 1);
        ck_assert(status_http(table[i].code) >= 200 && status_http(table[i].code) < 600);
        ck_assert_int_le(table[i].code, 0);
        ck_assert_msg(table[i].code == 0 || status_http(table[i].code) >= 400, "%s has HTTP %d",
                      table[i].name, status_http(table[i].code));
        for (size_t j = 0; j < i; j++)
            ck_assert_int_ne(table[i].code, table[j].code);
    }
}
END_TEST

START_TEST(status_unknown_code)
{
    ck_assert_str_eq(status_name(1), "STATUS_UNKNOWN");
    ck_assert_str_eq(status_text(-9999), "unknown error");
    ck_assert_int_eq(status_http(-9999), 500);
}
END_TEST

START_TEST(status_from_errno_maps)
{
    ck_assert_int_eq(status_from_errno(0), STATUS_OK);
    ck_assert_int_eq(status_from_errno(ENOMEM), STATUS_NOMEM);
    ck_assert_int_eq(status_from_errno(ENOENT), STATUS_NOTFOUND);
    ck_assert_int_eq(status_from_errno(ECONNRESET), STATUS_CLOSED);
    ck_assert_int_eq(status_from_errno(EADDRINUSE), STATUS_EXISTS);
    ck_assert_int_eq(status_from_errno(EXDEV), STATUS_IO);
}
END_TEST

static int passes_on(int code, int *reached)
{
    TRY(code);
    *reached = 1;
    return STATUS_OK;
}

START_TEST(try_returns_the_first_error)
{
    int reached = 0;
    ck_assert_int_eq(passes_on(STATUS_FULL, &reached), STATUS_FULL);
    ck_assert_int_eq(reached, 0);
    ck_assert_ok(passes_on(STATUS_OK, &reached));
    ck_assert_int_eq(reached, 1);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("status");
    TCase *t = tcase_create("status");
    tcase_add_test(t, status_table_is_consistent);
    tcase_add_test(t, status_unknown_code);
    tcase_add_test(t, status_from_errno_maps);
    tcase_add_test(t, try_returns_the_first_error);
    suite_add_tcase(s, t);
    return s;
}
