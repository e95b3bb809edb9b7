/* Tests of common/text/tokenizer with small vocabularies made here. Real vocabularies and vectors
 * are in tests/model/test_vocab.c. */
#include "common/text/tokenizer.h"

#include <stdio.h>

#include "tests/text/vocab_build.h"

static void check_ids(const struct tokenizer *t, const char *text, unsigned flags,
                      const int32_t *want, size_t n_want)
{
    struct token_list ids = {0};
    ck_assert_ok(tokenizer_encode(t, text, strlen(text), flags, &ids));
    ck_assert_msg(ids.n == n_want, "'%s': %zu ids, not %zu", text, ids.n, n_want);
    for (size_t i = 0; i < n_want; i++)
        ck_assert_msg(ids.ids[i] == want[i], "'%s': id %zu is %d, not %d", text, i, ids.ids[i],
                      want[i]);
    token_list_fini(&ids);
}
#define CHECK_IDS(t, text, flags, ...)                                                             \
    do {                                                                                           \
        const int32_t want_[] = {__VA_ARGS__};                                                     \
        check_ids(t, text, flags, want_, sizeof want_ / sizeof *want_);                            \
    } while (0)

static void check_round_trip(const struct tokenizer *t, const char *p, size_t n)
{
    struct token_list ids = {0};
    struct buf out;
    buf_init(&out, 0);
    ck_assert_ok(tokenizer_encode(t, p, n, 0, &ids));
    tokenizer_decode(t, ids.ids, ids.n, true, &out);
    ck_assert_uint_eq(out.len, n);
    ck_assert(n == 0 || memcmp(out.data, p, n) == 0);
    buf_fini(&out);
    token_list_fini(&ids);
}

/* ---- merging ---- */

START_TEST(encode_merges_best_rank_first)
{
    struct vocab_build *b = vb_create(TOKENIZER_BPE);
    int32_t bc = vb_merge(b, "b", "c"), ab = vb_merge(b, "a", "b"), abc = vb_merge(b, "a", "bc");
    int32_t dd = vb_merge(b, "d", "d");
    struct tokenizer *t = vb_finish(b);
    CHECK_IDS(t, "bc", 0, bc);
    CHECK_IDS(t, "abc", 0, abc); /* a+bc although a+b comes first in the text */
    CHECK_IDS(t, "ab", 0, ab);
    CHECK_IDS(t, "ddd", 0, dd, 'd'); /* the leftmost of equals */
    CHECK_IDS(t, "xyz", 0, 'x', 'y', 'z');
    check_ids(t, "", 0, NULL, 0);
    tokenizer_destroy(t);
}
END_TEST

START_TEST(encode_first_of_equal_merges_wins)
{
    struct vocab_build *b = vb_create(TOKENIZER_BPE);
    int32_t ab = vb_merge(b, "a", "b");
    vb_merge(b, "b", "c");
    vb_merge(b, "a", "b"); /* again, with a worse rank */
    struct tokenizer *t = vb_finish(b);
    CHECK_IDS(t, "abc", 0, ab, 'c');
    tokenizer_destroy(t);
}
END_TEST

/* A merge of the oracle: the ids it joins and what they become. */
struct oracle_merge {
    int32_t left, right, id;
};

/* By definition: look at all pairs, take the best, until there is none. */
static size_t oracle_encode(const struct oracle_merge *merges, size_t n_merges, int32_t *ids,
                            size_t n)
{
    for (;;) {
        size_t best = n_merges, at = 0;
        for (size_t i = 0; i + 1 < n; i++)
            for (size_t m = 0; m < best; m++)
                if (merges[m].left == ids[i] && merges[m].right == ids[i + 1]) {
                    best = m;
                    at = i;
                }
        if (best == n_merges)
            return n;
        ids[at] = merges[best].id;
        memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof *ids);
        n--;
    }
}

static int32_t find_token(const struct vocab_build *b, const char *text)
{
    for (size_t id = 0; id < b->spec.n_tokens; id++)
        if (strlen(text) == b->tokens[id].n && memcmp(text, b->tokens[id].p, b->tokens[id].n) == 0)
            return (int32_t)id;
    return -1;
}

START_TEST(encode_random_merges_like_the_definition)
{
    uint64_t state = 0;
    for (int round = 0; round < 60; round++) {
        struct vocab_build *b = vb_create(TOKENIZER_BPE);
        struct oracle_merge merges[60];
        char parts[64][40] = {"a", "b", "c"};
        size_t n_parts = 3, n_merges = 5 + vb_random(&state, 55);
        for (size_t m = 0; m < n_merges; m++) {
            const char *left = parts[vb_random(&state, (uint32_t)n_parts)];
            const char *right = parts[vb_random(&state, (uint32_t)n_parts)];
            char both[80];
            snprintf(both, sizeof both, "%s%s", left, right);
            merges[m] = (struct oracle_merge){find_token(b, left), find_token(b, right), 0};
            merges[m].id = vb_merge(b, left, right);
            if (strlen(both) < 20)
                memcpy(parts[n_parts++], both, strlen(both) + 1);
        }
        struct tokenizer *t = vb_finish(b);
        /* Lengths on both sides of where the method for long words takes over. */
        for (int k = 0; k < 40; k++) {
            char text[300];
            int32_t want[300];
            size_t n = 1 + vb_random(&state, k % 4 ? 60 : 298);
            for (size_t i = 0; i < n; i++) {
                text[i] = (char)('a' + vb_random(&state, k % 3 ? 2 : 3));
                want[i] = text[i];
            }
            text[n] = 0;
            check_ids(t, text, 0, want, oracle_encode(merges, n_merges, want, n));
            check_round_trip(t, text, n);
        }
        tokenizer_destroy(t);
    }
}
END_TEST

START_TEST(encode_ignore_merges_takes_whole_words)
{
    struct vocab_build *b = vb_create(TOKENIZER_BPE);
    vb_merge(b, "a", "b");
    int32_t abc = vb_token(b, "abc", TOKEN_NORMAL); /* no merge arrives at it */
    b->spec.pre = NULL;
    struct tokenizer_split words = {.regex = {" ?\\p{L}+", 8}};
    b->spec.splits = &words;
    b->spec.n_splits = 1;
    b->spec.ignore_merges = true;
    struct tokenizer *t = vb_finish(b);
    CHECK_IDS(t, "abc", 0, abc);
    CHECK_IDS(t, "abc abcd", 0, abc, ' ', 256, 'c', 'd');
    tokenizer_destroy(t);
}
END_TEST

/* ---- bytes ---- */

START_TEST(encode_ill_formed_text_byte_by_byte)
{
    struct vocab_build *b = vb_create(TOKENIZER_BPE);
    int32_t eur = vb_merge(b, "\xe2\x82", "\xac");
    b->spec.n_merges--;
    vb_merge(b, "\xe2", "\x82");
    vb_merge(b, "\xe2\x82", "\xac");
    struct tokenizer *t = vb_finish(b);
    CHECK_IDS(t, "\xe2\x82\xac", 0, eur);
    CHECK_IDS(t, "a\xff\xfe z", 0, 'a', 0xff, 0xfe, ' ', 'z');
    CHECK_IDS(t, "\xe2\x82", 0, eur + 1);
    uint64_t state = 0;
    for (int round = 0; round < 500; round++) {
        char text[200];
        size_t n = vb_random(&state, sizeof text);
        for (size_t i = 0; i < n; i++)
            text[i] = (char)(vb_random(&state, 3) ? vb_random(&state, 256)
                                                  : 0x80 + vb_random(&state, 128));
        check_round_trip(t, text, n);
    }
    tokenizer_destroy(t);
}
END_TEST

START_TEST(encode_leaves_out_bytes_without_token)
{
    struct vocab_build *b = vb_create(TOKENIZER_BPE);
    int32_t ab = vb_merge(b, "a", "b");
    b->types['#'] = TOKEN_UNUSED;
    struct tokenizer *t = vb_finish(b);
    CHECK_IDS(t, "x#y", 0, 'x', 'y');
    CHECK_IDS(t, "ab#", 0, ab);
    check_ids(t, "#", 0, NULL, 0);
    tokenizer_destroy(t);

    b = vb_create(TOKENIZER_BPE);
    vb_merge(b, "a", "b");
    b->types['#'] = TOKEN_UNUSED;
    int32_t unk = b->spec.unk = vb_token(b, "<unk>", TOKEN_UNKNOWN);
    t = vb_finish(b);
    CHECK_IDS(t, "x#y", 0, 'x', unk, 'y');
    tokenizer_destroy(t);
}
END_TEST

START_TEST(encode_puts_text_into_form_c)
{
    struct vocab_build *b = vb_create(TOKENIZER_BPE);
    vb_merge(b, "a", "b");
    b->spec.nfc = true;
    struct tokenizer *t = vb_finish(b);
    CHECK_IDS(t, "e\xcc\x81\xff", 0, 0xc3, 0xa9, 0xff);
    tokenizer_destroy(t);
}
END_TEST

/* ---- special tokens ---- */

START_TEST(encode_control_tokens_only_when_asked)
{
    struct vocab_build *b = vb_create(TOKENIZER_BPE);
    vb_merge(b, "a", "b");
    int32_t bos = b->spec.bos = vb_token(b, "<s>", TOKEN_CONTROL);
    int32_t im = vb_token(b, "<|im|>", TOKEN_CONTROL);
    int32_t longer = vb_token(b, "<|im|>>", TOKEN_CONTROL);
    int32_t think = vb_token(b, "<t>", TOKEN_USER_DEFINED);
    struct tokenizer *t = vb_finish(b);
    CHECK_IDS(t, "x<|im|>", TOKENIZE_SPECIAL, 'x', im);
    CHECK_IDS(t, "<|im|>>", TOKENIZE_SPECIAL, longer);
    CHECK_IDS(t, "<|im|><", TOKENIZE_SPECIAL, im, '<');
    CHECK_IDS(t, "<|im|>", 0, '<', '|', 'i', 'm', '|', '>');
    CHECK_IDS(t, "<t>", 0, think);
    CHECK_IDS(t, "<<t>t>", 0, '<', think, 't', '>');
    CHECK_IDS(t, "<s>", TOKENIZE_BOS, bos, '<', 's', '>');
    CHECK_IDS(t, "", TOKENIZE_BOS, bos);
    ck_assert_int_eq(tokenizer_find(t, "<|im|>", 6), im);
    ck_assert_int_eq(tokenizer_find(t, "<t>", 3), think);
    ck_assert_int_eq(tokenizer_find(t, "ab", 2), 256);
    ck_assert_int_eq(tokenizer_find(t, "<|im", 4), -1);
    tokenizer_destroy(t);
}
END_TEST

START_TEST(encode_ranges_trusts_only_the_template)
{
    struct vocab_build *b = vb_create(TOKENIZER_BPE);
    int32_t ab = vb_merge(b, "a", "b");
    int32_t im = vb_token(b, "<|im|>", TOKEN_CONTROL);
    struct tokenizer *t = vb_finish(b);
    /* The template wrote the first and the last; a user wrote one in the middle, and begins with a
     * letter that joins the template's. */
    const char *text = "<|im|>ab<|im|><|im|>";
    struct token_range ranges[] = {{0, 7}, {14, 20}};
    struct token_list ids = {0};
    ck_assert_ok(tokenizer_encode_ranges(t, text, 20, 0, ranges, 2, &ids));
    const int32_t want[] = {im, ab, '<', '|', 'i', 'm', '|', '>', im};
    ck_assert_uint_eq(ids.n, sizeof want / sizeof *want);
    ck_assert(memcmp(ids.ids, want, sizeof want) == 0);
    token_list_fini(&ids);
    /* One that lies over the end of a range is not trusted. */
    ranges[0] = (struct token_range){0, 3};
    ck_assert_ok(tokenizer_encode_ranges(t, text, 6, 0, ranges, 1, &ids));
    ck_assert_uint_eq(ids.n, 6);
    token_list_fini(&ids);
    tokenizer_destroy(t);
}
END_TEST

START_TEST(encode_strips_around_special_tokens)
{
    struct vocab_build *b = vb_create(TOKENIZER_BPE);
    vb_merge(b, "a", "b");
    int32_t left = vb_token(b, "<l>", TOKEN_USER_DEFINED);
    int32_t right = vb_token(b, "<r>", TOKEN_USER_DEFINED);
    int32_t word = vb_token(b, "w", TOKEN_USER_DEFINED);
    b->strips[left] = TOKEN_LSTRIP;
    b->strips[right] = TOKEN_RSTRIP;
    b->strips[word] = TOKEN_SINGLE_WORD;
    struct tokenizer *t = vb_finish(b);
    CHECK_IDS(t, "x \xe3\x80\x80<l> y", 0, 'x', left, ' ', 'y');
    CHECK_IDS(t, "x <r> \n y", 0, 'x', ' ', right, 'y');
    CHECK_IDS(t, " <l>", 0, left);
    CHECK_IDS(t, "w-w", 0, word, '-', word);
    CHECK_IDS(t, "wa \xc3\xa9w", 0, 'w', 'a', ' ', 0xc3, 0xa9, 'w');
    tokenizer_destroy(t);
}
END_TEST

START_TEST(encode_special_texts_that_share_beginnings)
{
    /* A thousand tokens that begin alike, and a text of beginnings. */
    struct vocab_build *b = vb_create(TOKENIZER_BPE);
    vb_merge(b, "a", "b");
    int32_t first = (int32_t)b->spec.n_tokens;
    for (int i = 0; i < 1000; i++) {
        char text[32];
        snprintf(text, sizeof text, "[PAD%d]", i);
        vb_token(b, text, TOKEN_USER_DEFINED);
    }
    struct tokenizer *t = vb_finish(b);
    CHECK_IDS(t, "[PAD7][PAD77]", 0, first + 7, first + 77);
    CHECK_IDS(t, "[PAD77", 0, '[', 'P', 'A', 'D', '7', '7');
    size_t n = 200000;
    char *text = malloc(n);
    ck_assert_ptr_nonnull(text);
    for (size_t i = 0; i < n; i++)
        text[i] = "[PAD99"[i % 6];
    check_round_trip(t, text, n);
    free(text);
    tokenizer_destroy(t);
}
END_TEST

START_TEST(stops_are_the_customary_ends)
{
    struct vocab_build *b = vb_create(TOKENIZER_BPE);
    vb_merge(b, "a", "b");
    int32_t eos = b->spec.eos = vb_token(b, "<done>", TOKEN_CONTROL);
    int32_t im = vb_token(b, "<|im_end|>", TOKEN_CONTROL);
    vb_token(b, "<|im_start|>", TOKEN_CONTROL);
    int32_t eot = vb_token(b, "<|EOT|>", TOKEN_USER_DEFINED); /* as older files have it */
    int32_t more = vb_token(b, "<extra>", TOKEN_CONTROL);
    b->spec.stops = &more;
    b->spec.n_stops = 1;
    struct tokenizer *t = vb_finish(b);
    size_t n;
    const int32_t *stops = tokenizer_stops(t, &n);
    ck_assert_uint_eq(n, 4);
    const int32_t want[] = {eos, more, im, eot};
    ck_assert(memcmp(stops, want, sizeof want) == 0);
    ck_assert_int_eq(tokenizer_type(t, eot), TOKEN_CONTROL); /* users cannot write it */
    CHECK_IDS(t, "<|EOT|>", 0, '<', '|', 'E', 'O', 'T', '|', '>');
    tokenizer_destroy(t);
}
END_TEST

/* ---- SentencePiece ---- */

#define SPACE "\xe2\x96\x81"

static struct vocab_build *spm_create(void)
{
    static const struct {
        const char *text;
        float score;
    } pieces[] = {{SPACE, -1}, {"a", -2},     {"b", -3},          {"c", -4},
                  {"ab", -10}, {"bc", -9},    {SPACE "a", -11},   {SPACE "ab", -12},
                  {"aa", -13}, {"aaaa", -14}, {"\xc3\xa9q", -15}, {SPACE SPACE, -16}};
    struct vocab_build *b = vb_create(TOKENIZER_SPM);
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
        vb_add(b, pieces[i].text, strlen(pieces[i].text), TOKEN_NORMAL, pieces[i].score);
    vb_token(b, "<s>", TOKEN_CONTROL);
    return b;
}
enum { SP = 256, A, B, C, AB, BC, SP_A, SP_AB, AA, AAAA, EACUTE_Q, SP_SP, BOS };

START_TEST(spm_joins_by_score)
{
    struct tokenizer *t = vb_finish(spm_create());
    CHECK_IDS(t, "abc", 0, A, BC); /* bc scores above ab */
    CHECK_IDS(t, "ab", 0, AB);
    CHECK_IDS(t, " ab", 0, SP_AB);
    CHECK_IDS(t, SPACE "ab", 0, SP_AB);
    CHECK_IDS(t, "aaaaa", 0, AAAA, A);
    CHECK_IDS(t, "  a", 0, SP, SP_A);
    CHECK_IDS(t, "   ", 0, SP_SP, SP);
    /* Characters that are no tokens: joined when a token needs them, else their bytes. */
    CHECK_IDS(t, "q", 0, 'q');
    CHECK_IDS(t, "\xc3\xa9", 0, 0xc3, 0xa9);
    CHECK_IDS(t, "\xc3\xa9q", 0, EACUTE_Q);
    CHECK_IDS(t, "a\xc3", 0, A, 0xc3);
    CHECK_IDS(t, "<s>", 0, '<', 's', '>');
    CHECK_IDS(t, "<s>a", TOKENIZE_SPECIAL, BOS, A);
    uint64_t state = 0;
    for (int round = 0; round < 500; round++) {
        char text[120];
        size_t n = vb_random(&state, sizeof text);
        for (size_t i = 0; i < n; i++)
            text[i] = (char)(vb_random(&state, 3) ? " abcq\n"[vb_random(&state, 6)]
                                                  : (int)vb_random(&state, 256));
        if (memmem(text, n, SPACE, 3)) /* reads as a space */
            continue;
        check_round_trip(t, text, n);
    }
    tokenizer_destroy(t);
}
END_TEST

START_TEST(spm_space_prefix)
{
    struct vocab_build *b = spm_create();
    b->spec.add_space_prefix = true;
    struct tokenizer *t = vb_finish(b);
    CHECK_IDS(t, "ab", 0, SP_AB);
    CHECK_IDS(t, " ab", 0, SP, SP_AB);
    check_ids(t, "", 0, NULL, 0);
    CHECK_IDS(t, "a<s>a", TOKENIZE_SPECIAL, SP_A, BOS, SP_A);
    check_round_trip(t, "ab ab", 5);
    check_round_trip(t, "  ab", 4);
    tokenizer_destroy(t);

    b = spm_create();
    b->spec.add_space_prefix = b->spec.prefix_first_only = b->spec.prefix_unless_space = true;
    t = vb_finish(b);
    CHECK_IDS(t, "a<s>a", TOKENIZE_SPECIAL, SP_A, BOS, A);
    CHECK_IDS(t, " ab", 0, SP_AB);
    tokenizer_destroy(t);
}
END_TEST

START_TEST(spm_cutting_changes_nothing)
{
    /* One token with a space inside forbids cutting; unreachable, it changes no other result. */
    struct tokenizer *cut = vb_finish(spm_create());
    struct vocab_build *b = spm_create();
    vb_add(b, "z" SPACE "z", 5, TOKEN_NORMAL, -99);
    struct tokenizer *whole = vb_finish(b);
    uint64_t state = 0;
    for (int round = 0; round < 300; round++) {
        char text[200];
        size_t n = vb_random(&state, sizeof text - 1);
        for (size_t i = 0; i < n; i++)
            text[i] = "  aaabcq"[vb_random(&state, 8)];
        text[n] = 0;
        struct token_list ids = {0};
        ck_assert_ok(tokenizer_encode(whole, text, n, 0, &ids));
        check_ids(cut, text, 0, ids.ids, ids.n);
        token_list_fini(&ids);
    }
    tokenizer_destroy(cut);
    tokenizer_destroy(whole);
}
END_TEST

START_TEST(spm_without_byte_tokens_gives_unknown)
{
    struct vocab_build *b = spm_create();
    for (int i = 0; i < 256; i++)
        b->types[i] = TOKEN_UNUSED;
    int32_t unk = b->spec.unk = vb_token(b, "<unk>", TOKEN_UNKNOWN);
    struct tokenizer *t = vb_finish(b);
    CHECK_IDS(t, "axyb\xe2\x82\xac", 0, A, unk, B, unk);
    tokenizer_destroy(t);
}
END_TEST

/* ---- decoding and hostile vocabularies ---- */

START_TEST(decode_hides_control_tokens)
{
    struct vocab_build *b = vb_create(TOKENIZER_BPE);
    vb_merge(b, "a", "b");
    int32_t im = vb_token(b, "<|im_end|>", TOKEN_CONTROL);
    int32_t hole = vb_token(b, "", TOKEN_UNUSED);
    struct tokenizer *t = vb_finish(b);
    const int32_t ids[] = {'x', im, 256, hole, -5, 99999, INT32_MAX, INT32_MIN};
    size_t n = sizeof ids / sizeof *ids;
    struct buf out;
    buf_init(&out, 0);
    tokenizer_decode(t, ids, n, false, &out);
    ck_assert_str_eq(buf_str(&out), "xab");
    buf_reset(&out);
    tokenizer_decode(t, ids, n, true, &out);
    ck_assert_str_eq(buf_str(&out), "x<|im_end|>ab");
    buf_fini(&out);
    ck_assert_uint_eq(tokenizer_piece(t, 99999, true).n, 0);
    ck_assert_int_eq(tokenizer_type(t, -1), TOKEN_UNUSED);
    ck_assert_uint_eq(tokenizer_size(t), 259);
    tokenizer_destroy(t);
}
END_TEST

START_TEST(create_refuses_what_cannot_work)
{
    struct vocab_build *b = vb_create(TOKENIZER_BPE);
    vb_refuse(b, STATUS_FORMAT, "no merges");

    b = vb_create(TOKENIZER_BPE);
    vb_merge(b, "a", "b");
    b->merges[0][1] = vb_text(b, "nope", 4);
    vb_refuse(b, STATUS_FORMAT, "merge 0 names 'nope'");

    b = vb_create(TOKENIZER_BPE);
    vb_merge(b, "a", "b");
    b->spec.n_tokens--; /* what the merge gives */
    vb_refuse(b, STATUS_FORMAT, "merge 0 gives 'ab'");

    b = vb_create(TOKENIZER_BPE);
    vb_merge(b, "a", "b");
    b->spec.pre = "of-the-future";
    vb_refuse(b, STATUS_UNSUPPORTED, "unknown pre-tokenizer 'of-the-future'");

    b = vb_create(TOKENIZER_BPE);
    vb_merge(b, "a", "b");
    b->spec.eos = 257;
    vb_refuse(b, STATUS_FORMAT, "the eos token is 257, but there are 257 tokens");

    b = vb_create(TOKENIZER_BPE);
    vb_merge(b, "a", "b");
    b->types[5] = 77;
    vb_refuse(b, STATUS_FORMAT, "token 5 has the unknown type 77");

    b = vb_create(TOKENIZER_BPE);
    vb_merge(b, "a", "b");
    struct tokenizer_split split = {.regex = {"(unclosed", 9}};
    b->spec.pre = NULL;
    b->spec.splits = &split;
    b->spec.n_splits = 1;
    vb_refuse(b, STATUS_UNSUPPORTED, "(unclosed");

    b = vb_create(TOKENIZER_BPE);
    b->spec.n_tokens = 0;
    vb_refuse(b, STATUS_FORMAT, "a vocabulary of 0 tokens");

    b = vb_create(TOKENIZER_SPM);
    vb_token(b, "<0xZZ>", TOKEN_BYTE);
    vb_refuse(b, STATUS_FORMAT, "byte token 256");
}
END_TEST

/* GPT-OSS writes several messages; only the last ends the answer. */
START_TEST(stops_leave_inner_ends_out)
{
    for (int last = 0; last < 2; last++) {
        struct vocab_build *b = vb_create(TOKENIZER_BPE);
        vb_merge(b, "a", "b");
        int32_t end = vb_token(b, "<|end|>", TOKEN_CONTROL);
        int32_t call = last ? vb_token(b, "<|call|>", TOKEN_CONTROL) : -1;
        int32_t end2 = last ? vb_token(b, "<|return|>", TOKEN_CONTROL) : end;
        struct tokenizer *t = vb_finish(b);
        size_t n;
        const int32_t *stops = tokenizer_stops(t, &n);
        ck_assert_uint_eq(n, last ? 2 : 1);
        ck_assert_int_eq(stops[0], last ? call : end);
        ck_assert_int_eq(stops[n - 1], end2);
        tokenizer_destroy(t);
    }
}
END_TEST

START_TEST(encode_stops_expressions_that_run_wild)
{
    /* Exponential backtracking in an expression from a file ends in an error, not in a hang. */
    struct vocab_build *b = vb_create(TOKENIZER_BPE);
    vb_merge(b, "a", "b");
    struct tokenizer_split split = {.regex = {"((a+)+)+[!?]", 12}};
    b->spec.pre = NULL;
    b->spec.splits = &split;
    b->spec.n_splits = 1;
    struct tokenizer *t = vb_finish(b);
    char text[200];
    memset(text, 'a', sizeof text);
    struct token_list ids = {0};
    ck_assert_int_eq(tokenizer_encode(t, text, sizeof text, 0, &ids), STATUS_LIMIT);
    ck_assert_uint_eq(ids.n, 0);
    token_list_fini(&ids);
    tokenizer_destroy(t);
}
END_TEST

START_TEST(encode_split_behaviors)
{
    /* Marks where words begin by a merge that only works inside one. */
    static const struct {
        enum tokenizer_split_behavior behavior;
        bool invert;
        const char *want;
    } cases[] = {
        {TOKENIZER_SPLIT_ISOLATED, false, "aa|-|-|aa|-|a"},
        {TOKENIZER_SPLIT_ISOLATED, true, "aa|-|-|aa|-|a"},
        {TOKENIZER_SPLIT_REMOVED, false, "aa|aa|a"},
        {TOKENIZER_SPLIT_REMOVED, true, "-|-|-"},
        {TOKENIZER_SPLIT_WITH_PREVIOUS, false, "aa-|-|aa-|a"},
        {TOKENIZER_SPLIT_WITH_NEXT, false, "aa|-|-aa|-a"},
        {TOKENIZER_SPLIT_CONTIGUOUS, false, "aa|--|aa|-|a"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        /* Every word that can come out is one token, so ids show the borders. */
        static const char *const words[] = {"aa", "aa-", "-aa", "-a", "--"};
        struct vocab_build *b = vb_create(TOKENIZER_BPE);
        for (size_t k = 0; k < sizeof words / sizeof *words; k++)
            vb_token(b, words[k], TOKEN_NORMAL);
        vb_merge(b, "x", "y");
        struct tokenizer_split split = {
            .regex = {"-", 1}, .behavior = cases[i].behavior, .invert = cases[i].invert};
        b->spec.pre = NULL;
        b->spec.splits = &split;
        b->spec.n_splits = 1;
        b->spec.ignore_merges = true;
        struct tokenizer *t = vb_finish(b);
        struct token_list ids = {0};
        struct buf out;
        buf_init(&out, 0);
        ck_assert_ok(tokenizer_encode(t, "aa--aa-a", 8, 0, &ids));
        for (size_t k = 0; k < ids.n; k++) {
            struct token_text piece = tokenizer_piece(t, ids.ids[k], false);
            buf_printf(&out, "%s%.*s", k ? "|" : "", (int)piece.n, piece.p);
        }
        ck_assert_str_eq(buf_str(&out), cases[i].want);
        buf_fini(&out);
        token_list_fini(&ids);
        tokenizer_destroy(t);
    }
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("tokenizer");
    TCase *t = tcase_create("tokenizer");
    tcase_add_test(t, encode_merges_best_rank_first);
    tcase_add_test(t, encode_first_of_equal_merges_wins);
    tcase_add_test(t, encode_random_merges_like_the_definition);
    tcase_add_test(t, encode_ignore_merges_takes_whole_words);
    tcase_add_test(t, encode_ill_formed_text_byte_by_byte);
    tcase_add_test(t, encode_leaves_out_bytes_without_token);
    tcase_add_test(t, encode_puts_text_into_form_c);
    tcase_add_test(t, encode_control_tokens_only_when_asked);
    tcase_add_test(t, encode_ranges_trusts_only_the_template);
    tcase_add_test(t, encode_strips_around_special_tokens);
    tcase_add_test(t, encode_special_texts_that_share_beginnings);
    tcase_add_test(t, stops_are_the_customary_ends);
    tcase_add_test(t, stops_leave_inner_ends_out);
    tcase_add_test(t, spm_joins_by_score);
    tcase_add_test(t, spm_space_prefix);
    tcase_add_test(t, spm_cutting_changes_nothing);
    tcase_add_test(t, spm_without_byte_tokens_gives_unknown);
    tcase_add_test(t, decode_hides_control_tokens);
    tcase_add_test(t, create_refuses_what_cannot_work);
    tcase_add_test(t, encode_stops_expressions_that_run_wild);
    tcase_add_test(t, encode_split_behaviors);
    suite_add_tcase(s, t);
    return s;
}
