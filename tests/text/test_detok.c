/* Tests of common/text/detok: characters over token borders, ill-formed bytes, hidden tokens. */
#include "common/text/detok.h"

#include "tests/text/vocab_build.h"

/* Every byte is a token; a few longer ones end and begin inside characters. */
struct rig {
    struct tokenizer *t;
    int32_t eos, think, cut_tail, cut_head;
};

static struct rig rig_create(void)
{
    struct vocab_build *b = vb_create(TOKENIZER_BPE);
    struct rig r;
    vb_merge(b, "\x9f", "\xa7");
    r.cut_tail = vb_merge(b, "\x9f\xa7", "\x91");
    r.cut_head = vb_merge(b, "x", "\xf0");
    r.eos = vb_token(b, "<|im_end|>", TOKEN_CONTROL);
    r.think = vb_token(b, "<think>", TOKEN_USER_DEFINED);
    r.t = vb_finish(b);
    return r;
}

/* Feeds all bytes, checking after each that what is out is well-formed; returns the text. */
static char *feed_bytes(const struct rig *r, const char *bytes, size_t n)
{
    struct detok d;
    struct buf out;
    detok_init(&d, r->t, false);
    buf_init(&out, 0);
    for (size_t i = 0; i < n; i++) {
        detok_feed(&d, (uint8_t)bytes[i], &out);
        ck_assert_uint_eq(unicode_valid(buf_str(&out), out.len), out.len);
    }
    detok_flush(&d, &out);
    buf_putc(&out, 0);
    return buf_take(&out);
}

START_TEST(feed_holds_unfinished_characters)
{
    /* B22 */
    struct rig r = rig_create();
    const char *text = "\xf0\x9f\xa7\x91\xe2\x80\x8d\xf0\x9f\x9a\x80 "
                       "\xd9\x85\xd8\xb1\xd8\xad\xd8\xa8\xd8\xa7 Vi\xe1\xbb\x87t "
                       "\xe6\x97\xa5\xe6\x9c\xac";
    char *got = feed_bytes(&r, text, strlen(text));
    ck_assert_str_eq(got, text);
    free(got);
    /* Cut anywhere: the whole characters, and nothing of the rest. */
    for (size_t cut = 0; cut < strlen(text); cut++) {
        got = feed_bytes(&r, text, cut);
        ck_assert_uint_eq(strlen(got), unicode_valid(text, cut));
        ck_assert(strncmp(got, text, strlen(got)) == 0);
        free(got);
    }
    tokenizer_destroy(r.t);
}
END_TEST

START_TEST(feed_replaces_bad_bytes)
{
    /* B23, and a good character right behind a bad start. */
    static const struct {
        const char *bytes, *want;
    } cases[] = {
        {"\x85\x85\x85", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"a\xc0\x80z", "a\xef\xbf\xbd\xef\xbf\xbdz"},
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xf5!", "\xef\xbf\xbd!"},
        {"\xe2\x82 ", "\xef\xbf\xbd "},
        {"\xe2\x82\xe2\x82\xac", "\xef\xbf\xbd\xe2\x82\xac"},
        {"\xf0\x9f\x98\xf0\x9f\x98\x80", "\xef\xbf\xbd\xf0\x9f\x98\x80"},
        {"ok\xe2\x82", "ok"},
    };
    struct rig r = rig_create();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *got = feed_bytes(&r, cases[i].bytes, strlen(cases[i].bytes));
        ck_assert_str_eq(got, cases[i].want);
        free(got);
    }
    tokenizer_destroy(r.t);
}
END_TEST

START_TEST(feed_random_bytes_like_the_whole)
{
    struct rig r = rig_create();
    uint64_t state = 0;
    for (int round = 0; round < 3000; round++) {
        static const char alphabet[] =
            "a\x80\xbf\x9f\xc2\xe0\xa0\xe2\x82\xac\xed\xf0\x90\xf4\x8f\xff";
        char bytes[12], want[64];
        size_t n = vb_random(&state, sizeof bytes), k = 0;
        for (size_t i = 0; i < n; i++)
            bytes[i] = alphabet[vb_random(&state, sizeof alphabet - 1)];
        for (size_t i = 0, len; i < n; i += len) {
            uint32_t cp;
            enum unicode_step step = unicode_next(bytes + i, n - i, &cp, &len);
            if (step != UNICODE_PART)
                k += unicode_put(step == UNICODE_CHAR ? cp : UNICODE_REPLACEMENT, want + k);
        }
        want[k] = 0;
        char *got = feed_bytes(&r, bytes, n);
        ck_assert_str_eq(got, want);
        free(got);
    }
    tokenizer_destroy(r.t);
}
END_TEST

START_TEST(feed_tokens_longer_than_a_character)
{
    struct rig r = rig_create();
    struct detok d;
    struct buf out;
    detok_init(&d, r.t, false);
    buf_init(&out, 0);
    detok_feed(&d, r.cut_head, &out);
    ck_assert_str_eq(buf_str(&out), "x");
    detok_feed(&d, r.eos, &out); /* hidden: the held byte waits on */
    detok_feed(&d, -1, &out);
    detok_feed(&d, 1 << 30, &out);
    ck_assert_str_eq(buf_str(&out), "x");
    detok_feed(&d, r.cut_tail, &out);
    ck_assert_str_eq(buf_str(&out), "x\xf0\x9f\xa7\x91");
    detok_feed(&d, r.think, &out);
    ck_assert_str_eq(buf_str(&out), "x\xf0\x9f\xa7\x91<think>");
    buf_reset(&out);
    detok_init(&d, r.t, true);
    detok_feed(&d, r.eos, &out);
    ck_assert_str_eq(buf_str(&out), "<|im_end|>");
    buf_fini(&out);
    tokenizer_destroy(r.t);
}
END_TEST

START_TEST(feed_spm_drops_the_first_space_only)
{
    struct vocab_build *b = vb_create(TOKENIZER_SPM);
    int32_t bos = vb_token(b, "<s>", TOKEN_CONTROL);
    int32_t hi = vb_add(b, "\xe2\x96\x81hi", 5, TOKEN_NORMAL, -1);
    b->spec.add_space_prefix = true;
    struct tokenizer *t = vb_finish(b);
    struct detok d;
    struct buf out;
    buf_init(&out, 0);
    detok_init(&d, t, false);
    detok_feed(&d, bos, &out);
    detok_feed(&d, hi, &out);
    detok_feed(&d, hi, &out);
    ck_assert_str_eq(buf_str(&out), "hi hi");
    buf_reset(&out);
    detok_init(&d, t, false);
    d.any = true; /* these ids continue a text */
    detok_feed(&d, hi, &out);
    ck_assert_str_eq(buf_str(&out), " hi");
    buf_fini(&out);
    tokenizer_destroy(t);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("detok");
    TCase *t = tcase_create("detok");
    tcase_add_test(t, feed_holds_unfinished_characters);
    tcase_add_test(t, feed_replaces_bad_bytes);
    tcase_add_test(t, feed_random_bytes_like_the_whole);
    tcase_add_test(t, feed_tokens_longer_than_a_character);
    tcase_add_test(t, feed_spm_drops_the_first_space_only);
    suite_add_tcase(s, t);
    return s;
}
