/* Tests of common/text/extract: the rules, in their order, and expressions, also hostile ones. */
#include "common/text/extract.h"

#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"

static const struct {
    const char *regex, *text, *answer; /* answer NULL: none */
} cases[] = {
    {NULL, "so \\boxed{4} and then \\boxed{ \\frac{1}{2} }. The answer is 7.", "\\frac{1}{2}"},
    {NULL, "\\boxed{3", "3"},
    {NULL, "The answer is 12.\nIs it? The Answer: **forty-two**.\nThat is 5", "forty-two"},
    {NULL, "the answer is: 8 apples.", "8 apples"},
    {NULL, "There is no answer here but 17 and -1,234.5.", "-1,234.5"},
    {NULL, "answers are 3", "3"},
    {NULL, "answer:\n9", "9"},
    {NULL, "2 + 3 = 5.", "5"},
    {NULL, "First this.\n\n**Then that**.\n\n", "Then that"},
    {NULL, "Yes", "Yes"},
    {NULL, " \n *.", NULL},
    {NULL, "", NULL},
    {"x=(\\d+)", "x=1 y x=22.", "22"},
    {"\\d+", "1 22 333", "333"},
    {"(a)?b", "b", "b"},
    {"^Result: (.*)$", "Result: one\nResult: two \nmore", "two"},
    {"x", "abc", NULL},
    {"", "abc", NULL},
    {"é+", "caféé", "éé"},
    {"(a+)+$", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", NULL},
    {"a", "\xff a", NULL}, /* no UTF-8 */
};

START_TEST(answers)
{
    struct extract *x;
    struct buf out;
    char err[200] = "";
    const char *regex = cases[_i].regex;
    buf_init(&out, 0);
    ck_assert_ok(extract_create(regex, regex ? strlen(regex) : 0, &x, err, sizeof err));
    bool found = extract_answer(x, cases[_i].text, strlen(cases[_i].text), &out);
    ck_assert_msg(found == (cases[_i].answer != NULL), "case %d: '%s'", _i, buf_str(&out));
    if (found)
        ck_assert_str_eq(buf_str(&out), cases[_i].answer);
    buf_fini(&out);
    extract_destroy(x);
}
END_TEST

START_TEST(refused)
{
    static char large[EXTRACT_REGEX_MAX + 1];
    struct extract *x;
    char err[200] = "";
    memset(large, 'a', sizeof large);
    ck_assert_int_eq(extract_create("(a", 2, &x, err, sizeof err), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(err, "at byte 2"));
    ck_assert_int_eq(extract_create("\\C", 2, &x, err, sizeof err), STATUS_INVALID);
    ck_assert_int_eq(extract_create(large, sizeof large, &x, err, sizeof err), STATUS_INVALID);
}
END_TEST

/* Many matches, each of many steps: the budget ends it. */
START_TEST(hostile)
{
    enum { N = 1 << 20 };
    struct extract *x;
    struct buf out;
    char err[200], *text = malloc(N);
    buf_init(&out, 0);
    memset(text, 'a', N);
    ck_assert_ok(extract_create("a{1,200}?(?=b|a)", 16, &x, err, sizeof err));
    for (int i = 0; i < 128; i++)
        ck_assert(!extract_answer(x, text, N, &out));
    buf_fini(&out);
    extract_destroy(x);
    free(text);
}
END_TEST

START_TEST(equal)
{
    struct buf a, b;
    buf_init(&a, 0);
    buf_init(&b, 0);
    buf_puts(&a, "Paris");
    buf_puts(&b, "PARIS");
    ck_assert(extract_equal(&a, &b));
    buf_puts(&b, "!");
    ck_assert(!extract_equal(&a, &b));
    buf_fini(&a);
    buf_fini(&b);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("extract");
    TCase *t = tcase_create("extract");
    tcase_add_loop_test(t, answers, 0, sizeof cases / sizeof cases[0]);
    tcase_add_test(t, refused);
    tcase_add_test(t, hostile);
    tcase_add_test(t, equal);
    suite_add_tcase(s, t);
    return s;
}
