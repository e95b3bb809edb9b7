/* Tests of common/text/stop against the definition: the first match that completes ends the text
 * where it starts, and only a suffix that may become one is ever held back. */
#include "common/text/stop.h"

#include <stdlib.h>
#include <string.h>

#include "tests/text/vocab_build.h"

static struct stop *stops_of(const char *const *strings, size_t n)
{
    size_t len[8];
    for (size_t i = 0; i < n; i++)
        len[i] = strlen(strings[i]);
    struct stop *s = NULL;
    ck_assert_ok(stop_create(strings, len, n, &s));
    return s;
}

/* Feeds text in pieces of `step` bytes; the index of the match or -1. */
static int run(struct stop *s, const char *text, size_t step, struct buf *out)
{
    int matched = -1;
    size_t n = strlen(text);
    for (size_t i = 0; i < n && matched < 0; i += step)
        matched = stop_feed(s, text + i, n - i < step ? n - i : step, out);
    if (matched < 0)
        stop_flush(s, out);
    return matched;
}

START_TEST(feed_known_cases)
{
    static const struct {
        const char *stops[4], *text, *want;
        int index;
    } cases[] = {
        {{"ta gam"}, "alpha beta gamma delta", "alpha be", 0},
        {{"gamma", "beta gamma"}, "alpha beta gamma delta", "alpha ", 1},
        {{"alpha beta"}, "alpha beta", "", 0},
        {{"\xc3\xa9"}, "caf\xc3\xa9!", "caf", 0},
        {{"assistant"}, "if you pleas", "if you pleas", -1},
        {{"assistant"}, "as", "as", -1},
        {{"aab"}, "aaaaab", "aaa", 0},
        {{"abcd", "bc"}, "xabcd", "xa", 1},
        {{"abab", "ba"}, "abab", "a", 1},
        {{"abcabd"}, "abcabcabd", "abc", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t step = 1; step < 12; step++) {
            struct stop *s = stops_of(cases[i].stops, cases[i].stops[1] ? 2 : 1);
            struct buf out;
            buf_init(&out, 0);
            ck_assert_int_eq(run(s, cases[i].text, step, &out), cases[i].index);
            ck_assert_str_eq(buf_str(&out), cases[i].want);
            buf_fini(&out);
            stop_destroy(s);
        }
    }
}
END_TEST

START_TEST(create_rejects_empty_strings)
{
    const char *strings[] = {"a", ""};
    size_t len[] = {1, 0};
    struct stop *s = NULL;
    ck_assert_int_eq(stop_create(strings, len, 2, &s), STATUS_INVALID);
    ck_assert_ptr_null(s);
}
END_TEST

START_TEST(feed_without_strings_shows_all)
{
    struct stop *s = stops_of(NULL, 0);
    struct buf out;
    buf_init(&out, 0);
    ck_assert_int_eq(stop_feed(s, "text", 4, &out), -1);
    ck_assert_str_eq(buf_str(&out), "text");
    buf_fini(&out);
    stop_destroy(s);
}
END_TEST

START_TEST(feed_after_a_match_shows_nothing)
{
    const char *strings[] = {"end"};
    struct stop *s = stops_of(strings, 1);
    struct buf out;
    buf_init(&out, 0);
    ck_assert_int_eq(stop_feed(s, "the end is near", 15, &out), 0);
    ck_assert_int_eq(stop_feed(s, "more", 4, &out), 0);
    stop_flush(s, &out);
    ck_assert_str_eq(buf_str(&out), "the ");
    buf_fini(&out);
    stop_destroy(s);
}
END_TEST

/* Where text is cut by definition: *index -1 when no string occurs. */
static size_t cut_of(const char *const *strings, size_t n, const char *text, size_t len, int *index)
{
    for (size_t end = 1; end <= len; end++) {
        size_t longest = 0;
        for (size_t k = 0; k < n; k++) {
            size_t m = strlen(strings[k]);
            if (m <= end && m > longest && memcmp(text + end - m, strings[k], m) == 0) {
                longest = m;
                *index = (int)k;
            }
        }
        if (longest)
            return end - longest;
    }
    *index = -1;
    return len;
}

/* The longest end of text that is a proper beginning of a string. */
static size_t held_of(const char *const *strings, size_t n, const char *text, size_t len)
{
    for (size_t held = len; held > 0; held--)
        for (size_t k = 0; k < n; k++)
            if (held < strlen(strings[k]) && memcmp(text + len - held, strings[k], held) == 0)
                return held;
    return 0;
}

START_TEST(feed_random_like_the_definition)
{
    uint64_t state = 0;
    for (int round = 0; round < 4000; round++) {
        char strings[3][8], text[40];
        const char *list[3];
        size_t n = 1 + vb_random(&state, 3), len = vb_random(&state, sizeof text), at = 0;
        for (size_t k = 0; k < n; k++) {
            size_t m = 1 + vb_random(&state, 7);
            for (size_t i = 0; i < m; i++)
                strings[k][i] = (char)('a' + vb_random(&state, 2));
            strings[k][m] = 0;
            list[k] = strings[k];
        }
        for (size_t i = 0; i < len; i++)
            text[i] = (char)('a' + vb_random(&state, round % 2 ? 2 : 3));
        int want_index, got = -1;
        size_t want = cut_of(list, n, text, len, &want_index);
        struct stop *s = stops_of(list, n);
        struct buf out;
        buf_init(&out, 0);
        while (at < len && got < 0) {
            size_t step = 1 + vb_random(&state, 6);
            if (step > len - at)
                step = len - at;
            got = stop_feed(s, text + at, step, &out);
            at += step;
            if (got < 0)
                ck_assert_uint_eq(out.len, at - held_of(list, n, text, at));
        }
        if (got < 0)
            stop_flush(s, &out);
        ck_assert_int_eq(got, want_index);
        ck_assert_uint_eq(out.len, want);
        ck_assert(memcmp(buf_str(&out), text, want) == 0);
        buf_fini(&out);
        stop_destroy(s);
    }
}
END_TEST

START_TEST(feed_long_strings_in_linear_time)
{
    /* A stop string of 10,000 'a' and 'b' at the end; a megabyte of 'a'. */
    size_t m = 10000, n = 1000000;
    char *string = malloc(m + 1), *text = malloc(n);
    ck_assert(string && text);
    memset(string, 'a', m);
    memset(text, 'a', n);
    string[m - 1] = 'b';
    string[m] = 0;
    const char *list[] = {string};
    struct stop *s = stops_of(list, 1);
    struct buf out;
    buf_init(&out, 0);
    for (size_t i = 0; i < n; i += 10)
        ck_assert_int_eq(stop_feed(s, text + i, 10, &out), -1);
    ck_assert_uint_eq(out.len, n - (m - 1));
    ck_assert_int_eq(stop_feed(s, "b", 1, &out), 0);
    ck_assert_uint_eq(out.len, n - (m - 1));
    buf_fini(&out);
    stop_destroy(s);
    free(string);
    free(text);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("stop");
    TCase *t = tcase_create("stop");
    tcase_add_test(t, feed_known_cases);
    tcase_add_test(t, create_rejects_empty_strings);
    tcase_add_test(t, feed_without_strings_shows_all);
    tcase_add_test(t, feed_after_a_match_shows_nothing);
    tcase_add_test(t, feed_random_like_the_definition);
    tcase_add_test(t, feed_long_strings_in_linear_time);
    suite_add_tcase(s, t);
    return s;
}
