/* Tests of common/text/regex: known cases, refusals, and random expressions against PCRE2. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "tests/text/grammar_rig.h"

START_TEST(compile_known_cases)
{
    static const struct {
        const char *regex, *texts[12];
    } cases[] = {
        {"", {"+", "-a"}},
        {"a|", {"+", "+a", "-aa"}},
        {"(ab|cd)*e?", {"+", "+abcde", "+e", "-abc", "-ee"}},
        {"[^a-c]{2}", {"+xy", "-ax", "+\xc3\xa9\xe4\xb8\xad", "-x"}},
        {".", {"+a", "-\n", "-\r", "-\xe2\x80\xa8", "+\xf0\x9f\x98\x80", "-ab"}},
        {"\\d+\\.\\w\\s", {"+12.a ", "-12,a ", "+1._\xc2\xa0", "-1.- "}},
        {"\\u0041\\x42\\u{1F600}\\ud83d\\ude00\\cJ\\0", {"-AB"}},
        {"^ab$", {"+ab", "-abc"}},
        {"(^a|b)c", {"+ac", "+bc"}},
        {"a$|b", {"+a", "+b", "-ab"}},
        {"(a$)?b", {"+b", "-ab"}},
        {"x{2,3}", {"-x", "+xx", "+xxx", "-xxxx"}},
        {"x{0}y{,2}", {"+y{,2}", "-yy"}},
        {"a{b", {"+a{b"}},
        {"[^]", {"+a", "+\n", "-"}},
        {"[\\]\\-^]", {"+]", "+-", "+^", "-\\"}},
        {"[a-]", {"+a", "+-", "-b"}},
        {"(?:a+?){2,}?b*?", {"+aa", "+aaab", "-a", "-b"}},
        {"(?<n>a)(?P<m>b)", {"+ab"}},
        {"\\p{Lu}\\p{L}+\\P{L}", {"+\xc3\x89t\xc3\xa9!", "-\xc3\xa9t!", "-Ab"}},
        {"\xc3\xa9+", {"+\xc3\xa9\xc3\xa9", "-e"}},
        {"[a-z]{1,40}", {"+abc", "-", "-A"}},
        {"([a-z]{1,30}-){20,40}", {"-a-", "+a-b-a-b-a-b-a-b-a-b-a-b-a-b-a-b-a-b-a-b-", "-a--"}},
        {"(a?){20,30}b",
         {"+b", "+aaab", "+aaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", "-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"}},
        {"((a{0,20}b?){0,20})*", {"+", "+aaabbbaab", "-c"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        rig_check(GRAMMAR_REGEX, cases[i].regex, NULL, cases[i].texts);
    struct grammar *g = rig_compile(GRAMMAR_REGEX, "[^x]{1,2000000}", NULL);
    char *text = rig_repeat("\xc3\xa9", 3000);
    ck_assert(rig_derives(g, text));
    text[0] = 'x';
    ck_assert(!rig_derives(g, text));
    free(text);
    grammar_put(g);
}
END_TEST

/* What a class of Unicode's costs is paid once; copies of a counted loop share their rule. */
START_TEST(compile_repeats_share)
{
    char *many = rig_repeat("\\p{Zs}", 2000);
    grammar_put(rig_compile(GRAMMAR_REGEX, many, NULL));
    free(many);
    struct grammar *one = rig_compile(GRAMMAR_REGEX, "(?:(?:\\p{L}{17,90} ){17,20};)", NULL);
    struct grammar *four = rig_compile(GRAMMAR_REGEX, "(?:(?:\\p{L}{17,90} ){17,20};){4}", NULL);
    ck_assert_uint_lt(grammar_bytes(four), 2 * grammar_bytes(one));
    grammar_put(one);
    grammar_put(four);
    rig_check(GRAMMAR_REGEX, "(?:[a-c]{17,18},){2}", NULL,
              TEXTS("+abcabcabcabcabcab,abcabcabcabcabcabc,", "-abcabcabcabcabcab,abc,",
                    "-abcabcabcabcabcab,", "-abcabcabcabcabcabcabc,abcabcabcabcabcab,"));
}
END_TEST

START_TEST(compile_refused)
{
    static const struct {
        const char *regex;
        int status;
        const char *part;
    } cases[] = {
        {"(", STATUS_FORMAT, "at byte 1: a ( is not closed"},
        {"a)", STATUS_FORMAT, "a ) closes nothing"},
        {"[a", STATUS_FORMAT, "a [ is not closed"},
        {"[b-a]", STATUS_FORMAT, "backwards"},
        {"[\\d-z]", STATUS_FORMAT, "ends no range"},
        {"*a", STATUS_FORMAT, "nothing to repeat"},
        {"a**", STATUS_FORMAT, "nothing to repeat"},
        {"a{2}{3}", STATUS_FORMAT, "nothing to repeat"},
        {"^*", STATUS_FORMAT, "nothing to repeat"},
        {"{2}x", STATUS_FORMAT, "nothing to repeat"},
        {"a{3,2}", STATUS_FORMAT, "wrong way round"},
        {"\\", STATUS_FORMAT, "backslash"},
        {"\\q", STATUS_FORMAT, "unknown escape"},
        {"\\u12", STATUS_FORMAT, "\\u is not"},
        {"(a)\\1", STATUS_UNSUPPORTED, "back-references"},
        {"\\k<n>", STATUS_UNSUPPORTED, "back-references"},
        {"(?=a)", STATUS_UNSUPPORTED, "look-around"},
        {"(?<!a)b", STATUS_UNSUPPORTED, "look-around"},
        {"\\bword", STATUS_UNSUPPORTED, "word boundaries"},
        {"(?i)a", STATUS_UNSUPPORTED, "kind of group"},
        {"(?>a)", STATUS_UNSUPPORTED, "kind of group"},
        {"\\p{Script=Greek}", STATUS_UNSUPPORTED, "Unicode property"},
        {"a{4000000000}", STATUS_LIMIT, "too long"},
        {"\xff", STATUS_FORMAT, "UTF-8"},
        {"[]", STATUS_RANGE, "nothing satisfies"},
        {"a^b|b$a", STATUS_RANGE, "nothing satisfies"},
        {"(a{1,9}){1,9}{", STATUS_OK, ""},
        {"((((a|b){9}){99}){99}){99}", STATUS_OK, ""},
        {"(a|b)*a(a|b){20}c", STATUS_OK, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        rig_refused(GRAMMAR_REGEX, cases[i].regex, cases[i].status, cases[i].part);
    char *deep = rig_repeat("(", 100000);
    rig_refused(GRAMMAR_REGEX, deep, STATUS_LIMIT, "nested too deep");
    free(deep);
    deep = rig_repeat("(a*)*", 20000);
    struct grammar *g = rig_compile(GRAMMAR_REGEX, deep, NULL);
    ck_assert(rig_derives(g, "aaaa"));
    grammar_put(g);
    free(deep);
    deep = rig_repeat("[ab]?", 20000); /* its deterministic form has 20,000 states, all alike */
    rig_refused(GRAMMAR_REGEX, deep, STATUS_LIMIT, "too large");
    free(deep);
}
END_TEST

/* ---- against PCRE2 ---- */

static uint64_t seed, draws;
static uint32_t draw(uint32_t n)
{
    return (uint32_t)(((uint64_t)rng_philox(seed, draws++, 7).v[0] * n) >> 32);
}

static const char *const atoms[] = {
    "a",   "b",     "c",        "[ab]", "[^a]",   ".", "\\d",
    "\\.", "[a-c]", "\xc3\xa9", "\\n",  "[^\\n]", "1", "[\xc3\xa9-\xe4\xb8\xad]"};
static const char *const quantifiers[] = {"*",      "+",    "?",  "{2}",    "{1,3}",
                                          "{0,20}", "{2,}", "*?", "{18,19}"};

/* A random expression; room: bytes of out that it may use. */
static size_t random_regex(char *out, size_t room, int depth)
{
    size_t n = 0;
    uint32_t parts = 1 + draw(3);
    for (uint32_t i = 0; i < parts && n + 60 < room; i++) {
        if (i && draw(3) == 0)
            out[n++] = '|';
        if (depth == 0 && draw(12) == 0)
            n += (size_t)sprintf(out + n, "%s", draw(2) ? "^" : "$");
        if (depth < 3 && draw(3) == 0) {
            n += (size_t)sprintf(out + n, "(?:");
            n += random_regex(out + n, room - n - 40, depth + 1);
            out[n++] = ')';
        } else {
            n += (size_t)sprintf(out + n, "%s", atoms[draw(sizeof atoms / sizeof *atoms)]);
        }
        if (draw(3) == 0)
            n += (size_t)sprintf(out + n, "%s",
                                 quantifiers[draw(sizeof quantifiers / sizeof *quantifiers)]);
    }
    out[n] = 0;
    return n;
}

static size_t random_text(char *out)
{
    static const char *const pieces[] = {
        "a", "b", "c", "1", ".", "\n", "\xc3\xa9", "\xe4\xb8\xad", "aa", "abab"};
    size_t n = 0;
    for (uint32_t k = draw(draw(4) ? 6 : 24); k > 0; k--)
        n += (size_t)sprintf(out + n, "%s", pieces[draw(sizeof pieces / sizeof *pieces)]);
    out[n] = 0;
    return n;
}

START_TEST(compile_agrees_with_pcre2)
{
    char regex[700], text[300], whole[800];
    int compiled = 0, matched = 0, compared = 0;
    pcre2_match_context *limits = pcre2_match_context_create(NULL);
    pcre2_set_match_limit(limits, 20000); /* it goes back and forth; we do not */
    for (seed = 1; seed <= 3000; seed++) {
        struct grammar *g = NULL;
        char err[300];
        int error;
        PCRE2_SIZE at;
        draws = 0;
        size_t n = random_regex(regex, sizeof regex, 0);
        /* JavaScript's dot and dollar: no line ends of any kind; the very end. */
        size_t m = (size_t)snprintf(whole, sizeof whole, "\\A(?:%s)\\z", regex);
        pcre2_code *code = pcre2_compile((PCRE2_SPTR)whole, m,
                                         PCRE2_UTF | PCRE2_DOLLAR_ENDONLY | PCRE2_NO_AUTO_CAPTURE,
                                         &error, &at, NULL);
        if (!code)
            continue; /* such as ^* */
        int rc = grammar_compile(GRAMMAR_REGEX, regex, n, NULL, &g, err, sizeof err);
        if (rc == STATUS_FORMAT &&
            strstr(err, "nothing to repeat")) { /* PCRE2 lets ^ be repeated */
            pcre2_code_free(code);
            continue;
        }
        ck_assert_msg(rc == STATUS_OK || rc == STATUS_RANGE, "%s: %s", regex, err);
        compiled++;
        pcre2_match_data *data = pcre2_match_data_create(1, NULL);
        for (int i = 0; i < 60; i++) {
            size_t len = random_text(text);
            int r = pcre2_match(code, (PCRE2_SPTR)text, len, 0, 0, data, limits);
            bool got = rc == STATUS_OK && rig_derives(g, text);
            if (r < PCRE2_ERROR_NOMATCH) /* it gave up */
                continue;
            ck_assert_msg(got == (r >= 0), "seed %d: %s on \"%s\": %d", (int)seed, regex, text, r);
            matched += got;
            compared++;
        }
        pcre2_match_data_free(data);
        pcre2_code_free(code);
        grammar_put(g);
    }
    pcre2_match_context_free(limits);
    printf("%d expressions, %d texts compared, %d match\n", compiled, compared, matched);
    ck_assert_int_gt(compiled, 2500);
    ck_assert_int_gt(matched, 5000);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("regex");
    TCase *c = tcase_create("regex");
    tcase_set_timeout(c, 120);
    tcase_add_test(c, compile_known_cases);
    tcase_add_test(c, compile_repeats_share);
    tcase_add_test(c, compile_refused);
    tcase_add_test(c, compile_agrees_with_pcre2);
    suite_add_tcase(s, c);
    return s;
}
