/* Tests of common/text/budget: where the closing tag is forced, and that it is a function of the
 * ids. */
#include "common/text/budget.h"

#include "tests/text/vocab_build.h"

/* Every byte is a token; the tags are one token each, or spelled with bytes. */
struct rig {
    struct tokenizer *t;
    int32_t open, close;
};

static struct rig rig_create(bool tags)
{
    struct vocab_build *b = vb_create(TOKENIZER_BPE);
    struct rig r = {.open = -1, .close = -1};
    vb_merge(b, "h", "e");
    if (tags) {
        r.open = vb_token(b, "<think>", TOKEN_CONTROL);
        r.close = vb_token(b, "</think>", TOKEN_CONTROL);
    }
    r.t = vb_finish(b);
    return r;
}

static struct budget *start(const struct rig *r, uint32_t limit, bool begun, const char *force)
{
    struct budget *b = NULL;
    struct budget_spec spec = {.limit = limit,
                               .start = begun ? REASONING_OPEN : REASONING_UNSAID,
                               .open = "<think>",
                               .close = "</think>",
                               .breaks = "",
                               .force = force ? force : "</think>"};
    ck_assert_ok(budget_create(r->t, &spec, &b));
    return b;
}

/* Runs a sequence that would like to write want, forced where the budget says so; returns what it
 * wrote. Each step is checked against a budget that has seen the same ids from the beginning. */
static char *write_with(const struct rig *r, uint32_t limit, bool begun, const char *want,
                        uint32_t *used)
{
    struct budget *b = start(r, limit, begun, NULL);
    int32_t ids[512];
    size_t n = 0;
    struct buf out;
    buf_init(&out, 0);
    for (const char *p = want; *p || budget_next(b, 0) >= 0;) {
        int32_t id = budget_next(b, 0);
        ck_assert_int_ge(id, -1);
        if (id < 0) {
            struct token_list list = {0};
            bool tag =
                r->open >= 0 && (strncmp(p, "<think>", 7) == 0 || strncmp(p, "</think>", 8) == 0);
            size_t len = tag ? strcspn(p, ">") + 1 : 1;
            ck_assert_ok(tokenizer_encode(r->t, p, len, TOKENIZE_SPECIAL, &list));
            id = list.ids[0];
            token_list_fini(&list);
            p += len;
        }
        ids[n++] = id;
        ck_assert_uint_lt(n, 512);
        ck_assert_ok(budget_feed(b, id));
        struct budget *again = start(r, limit, begun, NULL);
        for (size_t i = 0; i < n; i++)
            ck_assert_ok(budget_feed(again, ids[i]));
        ck_assert_int_eq(budget_next(again, 0), budget_next(b, 0));
        ck_assert_uint_eq(budget_used(again), budget_used(b));
        budget_destroy(again);
    }
    *used = budget_used(b);
    tokenizer_decode(r->t, ids, n, true, &out);
    budget_destroy(b);
    return buf_take(&out);
}

START_TEST(force_at_the_limit)
{
    static const struct {
        bool tags, begun;
        uint32_t limit;
        const char *want, *got;
        uint32_t used;
    } cases[] = {
        {true, true, 3, "abcdef", "abc</think>def", 4},
        {true, true, 0, "abc", "</think>abc", 1},
        {true, true, 9, "abc</think>def", "abc</think>def", 4},
        {true, true, 3, "abc</think>def", "abc</think></think>def", 4},
        {true, false, 2, "abc", "abc", 0},
        {true, false, 2, "<think>abcd", "<think>ab</think>cd", 3},
        {true, false, 0, "<think>abcd", "<think></think>abcd", 1},
        {true, false, 2, "<think>a</think>b<think>cde", "<think>a</think>b<think></think>cde", 3},
        {true, false, 3, "<think>a</think>b<think>cde", "<think>a</think>b<think>c</think>de", 4},
        /* without tokens for the tags: as many as the tag has bytes */
        {false, true, 3, "abcdef", "abc</think>def", 11},
        {false, true, 4, "abc</think>def", "abc</think></think>def", 11},
        {false, true, 12, "abc</think>def", "abc</think>def", 11},
        {false, false, 1, "<think>abc", "<think>a</think>bc", 9},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rig r = rig_create(cases[i].tags);
        uint32_t used = 0;
        char *got = write_with(&r, cases[i].limit, cases[i].begun, cases[i].want, &used);
        const char *want = cases[i].got;
        /* The sequence of the test goes on with its own tag behind the forced one, or the rest of
         * it: what matters is the first. */
        ck_assert_msg(strncmp(got, want, strcspn(want, ">") + 1) == 0, "case %zu: %s", i, got);
        ck_assert_msg(strcmp(got, want) == 0 || strstr(cases[i].want, "</think>"), "case %zu: %s",
                      i, got);
        ck_assert_uint_eq(used, cases[i].used);
        free(got);
        tokenizer_destroy(r.t);
    }
}
END_TEST

/* A tag that has begun is not written twice. */
START_TEST(force_the_rest_of_the_tag)
{
    struct rig r = rig_create(false);
    uint32_t used;
    for (size_t k = 1; k < 8; k++) {
        char want[64];
        snprintf(want, sizeof want, "abc%.*s", (int)k, "</think>");
        char *got = write_with(&r, 3 + (uint32_t)k, true, want, &used);
        ck_assert_str_eq(got, "abc</think>");
        ck_assert_uint_eq(used, 11);
        free(got);
    }
    tokenizer_destroy(r.t);
}
END_TEST

START_TEST(force_other_text)
{
    struct rig r = rig_create(true);
    struct budget *b = start(&r, 1, true, "!</think>\n");
    ck_assert_ok(budget_feed(b, 'a'));
    const int32_t want[] = {'!', r.close, '\n'};
    for (size_t i = 0; i < 3; i++) {
        ck_assert_int_eq(budget_next(b, 0), want[i]);
        for (uint32_t ahead = 1; i + ahead < 3; ahead++)
            ck_assert_int_eq(budget_next(b, ahead), want[i + ahead]);
        ck_assert_int_eq(budget_next(b, (uint32_t)(3 - i)), BUDGET_ANY);
        ck_assert_int_eq(budget_next(b, (uint32_t)(4 - i)), BUDGET_UNKNOWN);
        ck_assert_ok(budget_feed(b, want[i]));
    }
    ck_assert_int_eq(budget_next(b, 0), BUDGET_ANY);
    ck_assert_int_eq(budget_next(b, 1), BUDGET_UNKNOWN);
    budget_destroy(b);
    /* text that does not close the block is forced once */
    b = start(&r, 0, true, "no");
    ck_assert_int_eq(budget_next(b, 0), 'n');
    ck_assert_ok(budget_feed(b, 'n'));
    ck_assert_ok(budget_feed(b, 'o'));
    ck_assert_int_eq(budget_next(b, 0), BUDGET_ANY);
    budget_destroy(b);
    /* far from the limit, steps may run ahead */
    b = start(&r, 5, true, NULL);
    ck_assert_int_eq(budget_next(b, 4), BUDGET_ANY);
    ck_assert_int_eq(budget_next(b, 5), BUDGET_UNKNOWN);
    budget_destroy(b);
    tokenizer_destroy(r.t);
}
END_TEST

/* Behind thinking that the template has closed, a tag in the answer is text. */
START_TEST(nothing_behind_thinking)
{
    struct rig r = rig_create(true);
    struct budget *b = NULL;
    struct budget_spec spec = {
        .start = REASONING_OFF, .open = "<think>", .close = "</think>", .force = "</think>"};
    ck_assert_ok(budget_create(r.t, &spec, &b));
    ck_assert_ok(budget_feed(b, 'a'));
    ck_assert_ok(budget_feed(b, r.open));
    ck_assert_int_eq(budget_next(b, 0), BUDGET_ANY);
    budget_destroy(b);
    ck_assert_ok(budget_create(r.t, &spec, &b));
    ck_assert_ok(budget_feed(b, r.open)); /* as the first thing it is one */
    ck_assert_int_eq(budget_next(b, 0), r.close);
    budget_destroy(b);
    tokenizer_destroy(r.t);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("budget");
    TCase *c = tcase_create("budget");
    tcase_add_test(c, force_at_the_limit);
    tcase_add_test(c, force_the_rest_of_the_tag);
    tcase_add_test(c, force_other_text);
    tcase_add_test(c, nothing_behind_thinking);
    suite_add_tcase(s, c);
    return s;
}
