/* harness: what every unit test shares. A test file defines `Suite *test_suite(void)`; harness.c
 * has main(), which runs it (CK_FORK=no to debug in one process) and prints Check's totals. */
#ifndef BATON_TESTS_HARNESS_H
#define BATON_TESTS_HARNESS_H

#include <check.h>

Suite *test_suite(void);

/* Path of a file below tests/data: from $TESTS_DATA, else tests/data of the current directory. The
 * string is static. */
const char *test_data(const char *name);
/* Path of the default model in $BATON_CACHE (~/.cache/baton), or NULL when it is not there. */
const char *test_model(void);

#define ck_assert_ok(expr) ck_assert_int_eq((expr), 0)

#endif
