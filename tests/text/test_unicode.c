/* Tests of common/text/unicode: every code point, ill-formed sequences, form C. */
#include "common/text/unicode.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "tests/harness.h"

START_TEST(next_reads_back_what_put_wrote)
{
    for (uint32_t cp = 0; cp <= UNICODE_MAX; cp++) {
        if (cp >= 0xd800 && cp < 0xe000)
            continue;
        char bytes[4];
        size_t n = unicode_put(cp, bytes), len = 0;
        uint32_t got = ~cp;
        if (unicode_next(bytes, n, &got, &len) != UNICODE_CHAR || got != cp || len != n)
            ck_abort_msg("U+%04X", cp);
        for (size_t cut = 1; cut < n; cut++)
            if (unicode_next(bytes, cut, &got, &len) != UNICODE_PART || len != cut)
                ck_abort_msg("U+%04X cut at %zu", cp, cut);
    }
}
END_TEST

/* Replaces each bad step by '?' and each unfinished end by '~'. */
static void walk(const char *text, size_t n, char *out)
{
    size_t k = 0;
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t cp;
        switch (unicode_next(text + i, n - i, &cp, &len)) {
        case UNICODE_CHAR:
            k += unicode_put(cp, out + k);
            break;
        case UNICODE_BAD:
            out[k++] = '?';
            break;
        case UNICODE_PART:
            out[k++] = '~';
            break;
        }
    }
    out[k] = 0;
}

START_TEST(next_stops_at_maximal_subparts)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        /* The example of Unicode 15, table 3-8, and its neighbours 3-9 to 3-11. */
        {"a\xf1\x80\x80\xe1\x80\xc2"
         "b\x80"
         "c\x80\xbf"
         "d",
         "a???b?c??d"},
        {"\xc0\xaf\xe0\x80\xbf\xf0\x81\x82"
         "A",
         "????????A"},
        {"\xed\xa0\x80\xed\xbf\xbf\xed\xaf"
         "A",
         "????????A"},
        {"\xf4\x91\x92\x93\xff"
         "A\x80\xbf"
         "B",
         "?????A??B"},
        {"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf"
         "A",
         "????A"},
        /* Beyond the last code point; bytes that never occur; cut ends. */
        {"\xf4\x90\x80\x80\xf5\xfe", "??????"},
        {"\xe2\x82", "~"},
        {"\xf0\x9f\x98", "~"},
        {"x\xc3", "x~"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char out[64];
        walk(cases[i].text, strlen(cases[i].text), out);
        ck_assert_str_eq(out, cases[i].want);
    }
}
END_TEST

START_TEST(valid_finds_the_first_bad_byte)
{
    char text[64];
    for (size_t at = 0; at < sizeof text; at++) {
        memset(text, 'x', sizeof text);
        ck_assert_uint_eq(unicode_valid(text, sizeof text), sizeof text);
        text[at] = (char)0xff;
        ck_assert_uint_eq(unicode_valid(text, sizeof text), at);
    }
    ck_assert_uint_eq(unicode_valid("aaaaaaaa\xe2\x82\xac\xe2\x82", 13), 11);
    ck_assert_uint_eq(unicode_valid("", 0), 0);
}
END_TEST

static char *nfc(const char *text, size_t n)
{
    struct buf out;
    buf_init(&out, 0);
    ck_assert_ok(unicode_nfc(text, n, &out));
    buf_putc(&out, 0);
    return buf_take(&out);
}

START_TEST(nfc_known_pairs)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"plain", "plain"},
        {"e\xcc\x81", "\xc3\xa9"}, /* e + acute */
        {"x e\xcc\x81 y", "x \xc3\xa9 y"},
        {"\xe2\x84\xab", "\xc3\x85"},                             /* Angstrom sign */
        {"a\xcc\x81\xcc\xa3", "\xe1\xba\xa1\xcc\x81"},            /* the dot below comes first */
        {"\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", "\xea\xb0\x81"}, /* three jamo */
        {"\xe0\xa5\x98", "\xe0\xa4\x95\xe0\xa4\xbc"},             /* excluded from composition */
        {"\xef\xac\x81", "\xef\xac\x81"},                         /* compatibility stays */
        {"\xc3\xa9\xcc\xa3", "\xe1\xba\xb9\xcc\x81"},             /* decomposes, then recomposes */
        {"q\xcc\x87\xcc\xa3", "q\xcc\xa3\xcc\x87"},
        {"\xcc\x81", "\xcc\x81"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *got = nfc(cases[i].text, strlen(cases[i].text));
        ck_assert_str_eq(got, cases[i].want);
        free(got);
    }
}
END_TEST

START_TEST(nfc_trivial_texts_stay)
{
    /* Whatever the quick look lets pass must be its own form C. */
    char text[16], *got;
    for (uint32_t cp = 1; cp <= UNICODE_MAX; cp++) {
        if (cp >= 0xd800 && cp < 0xe000)
            continue;
        text[0] = 'o';
        size_t n = 1 + unicode_put(cp, text + 1);
        if (!unicode_nfc_trivial(text, n))
            continue;
        got = nfc(text, n);
        if (strlen(got) != n || memcmp(got, text, n) != 0)
            ck_abort_msg("U+%04X", cp);
        free(got);
    }
    ck_assert(unicode_nfc_trivial("caf\xc3\xa9 \xe4\xbd\xa0\xe5\xa5\xbd", 12));
    ck_assert(!unicode_nfc_trivial("e\xcc\x81", 3));
}
END_TEST

START_TEST(nfc_hostile_marks_take_linear_time)
{
    /* Two classes in alternation, a million marks: quadratic sorting would take hours. */
    size_t pairs = 500000, n = 1 + 4 * pairs;
    char *text = malloc(n);
    ck_assert_ptr_nonnull(text);
    text[0] = 'x';
    for (size_t i = 0; i < pairs; i++)
        memcpy(text + 1 + 4 * i, "\xcc\x81\xcc\xa3", 4);
    char *once = nfc(text, n), *twice = nfc(once, strlen(once));
    ck_assert_uint_eq(strlen(once), n);
    for (size_t i = 0; i < pairs; i++)
        if (memcmp(once + 1 + 2 * i, "\xcc\xa3", 2) != 0)
            ck_abort_msg("mark %zu", i);
    ck_assert(strcmp(once, twice) == 0);
    free(text);
    free(once);
    free(twice);
}
END_TEST

START_TEST(classes_of_characters)
{
    static const uint32_t spaces[] = {0x09, 0x0d, 0x20, 0x85, 0xa0, 0x1680, 0x2000, 0x3000};
    static const uint32_t others[] = {0x08, 0x0e, 0x180e, 0x200b, 0xfeff, 'a'};
    for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++)
        ck_assert(unicode_is_space(spaces[i]));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        ck_assert(!unicode_is_space(others[i]));
    ck_assert(unicode_is_word('a') && unicode_is_word('_') && unicode_is_word(0x4f60));
    ck_assert(unicode_is_word(0x301) && unicode_is_word('7'));
    ck_assert(!unicode_is_word('-') && !unicode_is_word(' ') && !unicode_is_word(0x1f600));
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("unicode");
    TCase *t = tcase_create("unicode");
    tcase_add_test(t, next_reads_back_what_put_wrote);
    tcase_add_test(t, next_stops_at_maximal_subparts);
    tcase_add_test(t, valid_finds_the_first_bad_byte);
    tcase_add_test(t, nfc_known_pairs);
    tcase_add_test(t, nfc_trivial_texts_stay);
    tcase_add_test(t, nfc_hostile_marks_take_linear_time);
    tcase_add_test(t, classes_of_characters);
    suite_add_tcase(s, t);
    return s;
}
