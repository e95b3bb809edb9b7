/* Tests of common/text/tokenmask: every mask against trying each token, along random answers of
 * many grammars; states that are replayed, copied, and that outlive a store made anew. */
#include "common/text/tokenmask.h"

#include "common/text/tokenmask_impl.h"
#include "tests/text/grammar_rig.h"
#include "tests/text/vocab_build.h"

#define N_WORDS 64 /* larger than the vocabulary needs */

struct rig {
    struct tokenizer *tok;
    struct tokenmask_vocab *vocab;
    int32_t stop, shown, unused;
    uint64_t random;
};

static void add_words(struct vocab_build *b)
{
    static const char *const words[] = {"\"",
                                        "{\"",
                                        "\":",
                                        "\",",
                                        "\",\"",
                                        "\": \"",
                                        "},",
                                        "}]",
                                        "]}",
                                        "\"}",
                                        ",\"",
                                        "\"]",
                                        "ab",
                                        "abc",
                                        "name",
                                        "true",
                                        "false",
                                        "null",
                                        "12",
                                        "123",
                                        "-1",
                                        "0.",
                                        ".5",
                                        "e+",
                                        "\\n",
                                        "\\u",
                                        "\\u0",
                                        "\\\"",
                                        "  ",
                                        "    ",
                                        "\n  ",
                                        "\n\t",
                                        ", ",
                                        ": ",
                                        "[\"",
                                        "[[[",
                                        "aaaaaaaaaaaaaaaa",
                                        "aaaaaaaaaaaaaaaaaaaaaaaaa",
                                        "aa\"",
                                        "a\",\"b",
                                        "\xc3\xa9",
                                        "\xc3\xa9t\xc3\xa9",
                                        "\xe4\xb8\xad\xe6\x96\x87",
                                        "\xe4\xb8",
                                        "\xad\xe6",
                                        "\xa9\"",
                                        "\xf0\x9f\x98\x80",
                                        "\xf0\x9f",
                                        "\x98\x80\"",
                                        "\xc0\x80",
                                        "\"\"",
                                        "{}",
                                        "[]",
                                        "\\\\",
                                        "\\\\\"",
                                        "1,2",
                                        "a-",
                                        "-a",
                                        "--",
                                        "ab-ab",
                                        "a\n",
                                        "\n\n"};
    char spelt[256];
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t n = vb_spell(words[i], strlen(words[i]), spelt);
        bool known = false;
        for (size_t k = 0; k < b->spec.n_tokens && !known; k++)
            known = b->tokens[k].n == n && memcmp(b->tokens[k].p, spelt, n) == 0;
        if (!known)
            vb_add(b, spelt, n, TOKEN_NORMAL, 0);
    }
}

static void rig_open(struct rig *r)
{
    struct vocab_build *b = vb_create(TOKENIZER_BPE);
    memset(r, 0, sizeof *r);
    add_words(b);
    vb_merge(b, "a", "b");
    r->stop = vb_token(b, "<|end|>", TOKEN_CONTROL);
    r->shown = vb_token(b, "<tag>", TOKEN_USER_DEFINED);
    r->unused = vb_token(b, "unused", TOKEN_UNUSED);
    b->spec.eos = r->stop;
    r->tok = vb_finish(b);
    ck_assert_ok(tokenmask_vocab_create(r->tok, &r->vocab));
}

static void rig_close(struct rig *r)
{
    tokenmask_vocab_destroy(r->vocab);
    tokenizer_destroy(r->tok);
}

static struct tokenmask *mask_of(struct rig *r, enum grammar_kind kind, const char *source)
{
    struct grammar *g = rig_compile(kind, source, NULL);
    struct tokenmask *t;
    ck_assert_ok(tokenmask_create(r->vocab, g, &t));
    grammar_put(g);
    return t;
}

static bool bit(const uint32_t *bits, int32_t id)
{
    return bits[id / 32] >> (id % 32) & 1;
}

/* The mask of a state says what trying each token says. */
static uint32_t compare(struct rig *r, struct tokenmask_state *s, uint32_t *bits, const char *what)
{
    uint32_t n = 0;
    ck_assert_ok(tokenmask_fill(s, &r->stop, 1, bits, N_WORDS));
    for (int32_t id = 0; id < N_WORDS * 32; id++) {
        struct tokenmask_state try;
        tokenmask_state_copy(&try, s);
        bool want = id == r->stop ? tokenmask_done(s) : tokenmask_advance(&try, id) == STATUS_OK;
        tokenmask_state_fini(&try);
        struct token_text t = tokenizer_piece(r->tok, id, false);
        ck_assert_msg(bit(bits, id) == want, "%s: token %d \"%.*s\": %d", what, id, (int)t.n, t.p,
                      bit(bits, id));
        n += bit(bits, id);
    }
    ck_assert_msg(n > 0, "%s: nothing is allowed", what);
    ck_assert(!bit(bits, r->unused));
    return n;
}

/* A random allowed token, closing ones more often the longer it takes. */
static int32_t choose(struct rig *r, const uint32_t *bits, uint32_t n, int step)
{
    static const char *const closing[] = {"\"", "}", "]", "\"}", "\"]"};
    for (size_t i = 0; step > 40 && i < 5; i++) {
        int32_t id = tokenizer_find(r->tok, closing[i], strlen(closing[i]));
        if (id >= 0 && bit(bits, id) && vb_random(&r->random, 2))
            return id;
    }
    uint32_t k = vb_random(&r->random, n);
    for (int32_t id = 0;; id++) {
        if (bit(bits, id) && k-- == 0)
            return id;
    }
}

static void walk(struct rig *r, struct tokenmask *t, const char *what, int steps)
{
    struct tokenmask_state s, again;
    uint32_t bits[N_WORDS], second[N_WORDS];
    int32_t ids[400];
    int n_ids = 0;
    tokenmask_state_init(&s, t);
    for (int i = 0; i < steps; i++) {
        uint32_t n = compare(r, &s, bits, what);
        int32_t id = choose(r, bits, n, i);
        if (id == r->stop)
            break;
        ck_assert_ok(tokenmask_advance(&s, id));
        ids[n_ids++] = id;
    }
    /* The state is a function of the ids. */
    tokenmask_state_init(&again, t);
    for (int i = 0; i < n_ids; i++)
        ck_assert_ok(tokenmask_advance(&again, ids[i]));
    ck_assert_ok(tokenmask_fill(&s, &r->stop, 1, bits, N_WORDS));
    ck_assert_ok(tokenmask_fill(&again, &r->stop, 1, second, N_WORDS));
    ck_assert_mem_eq(bits, second, sizeof bits);
    tokenmask_state_fini(&s);
    tokenmask_state_fini(&again);
}

static const struct {
    enum grammar_kind kind;
    const char *source;
} grammars[] = {
    {GRAMMAR_JSON, ""},
    {GRAMMAR_SCHEMA, "{\"type\":\"string\"}"},
    {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"maxLength\":5}"},
    {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"minLength\":3,\"maxLength\":40}"},
    {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"minLength\":18}"},
    {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^[a-z\\u00e9\\u4e2d]{1,64}$\"}"},
    {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^[a-c]{2,20}-[^\\\\n]{17,30}b?$\"}"},
    {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"pattern\":\"a.{20,22}\"}"},
    {GRAMMAR_SCHEMA,
     "{\"type\":\"array\",\"items\":{\"type\":[\"integer\",\"string\"]},\"minItems\":2,"
     "\"maxItems\":30}"},
    {GRAMMAR_SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":20},"
     "\"abc\":{\"enum\":[\"ab\",\"abc\",null,12]},\"a\":{\"type\":\"number\"}},\"required\":["
     "\"abc\"]}"},
    {GRAMMAR_SCHEMA,
     "{\"anyOf\":[{\"type\":\"string\",\"maxLength\":3},{\"type\":\"string\",\"pattern\":\"^a\"},"
     "{\"type\":\"string\",\"minLength\":20}]}"},
    {GRAMMAR_SCHEMA,
     "{\"$ref\":\"#/$defs/n\",\"$defs\":{\"n\":{\"type\":\"array\",\"items\":{\"$ref\":"
     "\"#/$defs/n\"}}}}"},
    {GRAMMAR_REGEX, "[ab]{1,50}"},
    {GRAMMAR_REGEX, "([ab]{1,20}-){2,20}"},
    {GRAMMAR_REGEX, "(a|ab){1,40}c|.{17,}\\n"},
    {GRAMMAR_REGEX, "([ab]{0,20}[b-]{0,20}){0,20}"},
    {GRAMMAR_REGEX, "[^\\n]*\\n[^\\n]{0,18}"},
    {GRAMMAR_CHOICE, "[\"name\",\"names\",\"aaaaaaaaaaaaaaaaaaaaaaaaa\",\"\"]"},
    {GRAMMAR_GBNF, "root ::= line{0,30}\nline ::= [^\\n]{0,20} \"\\n\""},
    {GRAMMAR_GBNF, "root ::= x\nx ::= \"a\" x \"\" | \"a\" y \"b\" | \"\"\ny ::= \"a\" x \"\" | "
                   "[a-z] y \"-\" | \"\""},
};

START_TEST(fill_agrees_with_trying)
{
    struct rig r;
    rig_open(&r);
    for (size_t i = 0; i < sizeof grammars / sizeof *grammars; i++) {
        struct tokenmask *t = mask_of(&r, grammars[i].kind, grammars[i].source);
        for (r.random = 1000; r.random < 8 * 1000; r.random = r.random / 1000 * 1000 + 1000)
            walk(&r, t, grammars[i].source, 60);
        tokenmask_destroy(t);
    }
    rig_close(&r);
}
END_TEST

START_TEST(fill_is_the_same_whoever_came_before)
{
    /* One vocabulary shares results between grammars; another one starts afresh each time. */
    struct rig shared;
    rig_open(&shared);
    for (size_t i = 0; i < sizeof grammars / sizeof *grammars; i++) {
        struct rig fresh;
        uint32_t a[N_WORDS], b[N_WORDS];
        struct tokenmask_state s, f;
        rig_open(&fresh);
        struct tokenmask *ts = mask_of(&shared, grammars[i].kind, grammars[i].source);
        struct tokenmask *tf = mask_of(&fresh, grammars[i].kind, grammars[i].source);
        tokenmask_state_init(&s, ts);
        tokenmask_state_init(&f, tf);
        for (int k = 0; k < 40; k++) {
            ck_assert_ok(tokenmask_fill(&s, &shared.stop, 1, a, N_WORDS));
            ck_assert_ok(tokenmask_fill(&f, &fresh.stop, 1, b, N_WORDS));
            ck_assert_mem_eq(a, b, sizeof a);
            uint32_t n = 0;
            for (int32_t id = 0; id < N_WORDS * 32; id++)
                n += bit(a, id);
            int32_t id = choose(&shared, a, n, k);
            if (id == shared.stop)
                break;
            ck_assert_ok(tokenmask_advance(&s, id));
            ck_assert_ok(tokenmask_advance(&f, id));
        }
        tokenmask_state_fini(&s);
        tokenmask_state_fini(&f);
        tokenmask_destroy(ts);
        tokenmask_destroy(tf);
        rig_close(&fresh);
    }
    rig_close(&shared);
}
END_TEST

START_TEST(advance_refuses_what_is_not_allowed)
{
    struct rig r;
    struct tokenmask_state s;
    uint32_t bits[N_WORDS], before[N_WORDS];
    rig_open(&r);
    struct tokenmask *t = mask_of(&r, GRAMMAR_CHOICE, "[\"ab\",\"ab<tag>\"]");
    tokenmask_state_init(&s, t);
    ck_assert(!tokenmask_done(&s));
    ck_assert_ok(tokenmask_fill(&s, &r.stop, 1, before, N_WORDS));
    ck_assert_int_eq(tokenmask_advance(&s, 'b'), STATUS_INVALID);
    ck_assert_int_eq(tokenmask_advance(&s, r.stop), STATUS_INVALID);
    ck_assert_int_eq(tokenmask_advance(&s, r.unused), STATUS_INVALID);
    ck_assert_int_eq(tokenmask_advance(&s, -1), STATUS_INVALID);
    ck_assert_int_eq(tokenmask_advance(&s, 1 << 30), STATUS_INVALID);
    ck_assert_ok(tokenmask_fill(&s, &r.stop, 1, bits, N_WORDS));
    ck_assert_mem_eq(bits, before, sizeof bits); /* it is where it was */
    ck_assert_ok(tokenmask_advance(&s, tokenizer_find(r.tok, "ab", 2)));
    ck_assert(tokenmask_done(&s) && !tokenmask_ended(&s));
    ck_assert_ok(tokenmask_fill(&s, &r.stop, 1, bits, N_WORDS));
    ck_assert(bit(bits, r.stop) && bit(bits, r.shown) && bit(bits, tokenizer_find(r.tok, "<", 1)));
    ck_assert_ok(tokenmask_fill(&s, NULL, 0, bits, N_WORDS));
    ck_assert(!bit(bits, r.stop));
    /* A stop id that is ordinary text ends the answer where it may end, and is no text elsewhere.
     */
    ck_assert_ok(tokenmask_fill(&s, &r.shown, 1, bits, N_WORDS));
    ck_assert(bit(bits, r.shown));
    ck_assert_ok(tokenmask_advance(&s, r.shown));
    ck_assert(tokenmask_done(&s) && tokenmask_ended(&s));
    tokenmask_state_fini(&s);
    tokenmask_destroy(t);
    rig_close(&r);
}
END_TEST

START_TEST(states_outlive_a_new_store)
{
    struct rig r;
    struct tokenmask_state s, deep;
    uint32_t before[N_WORDS], after[N_WORDS], bits[N_WORDS];
    rig_open(&r);
    struct tokenmask *t = mask_of(&r, GRAMMAR_JSON, "");
    tokenmask_state_init(&s, t);
    tokenmask_state_init(&deep, t);
    const char *text = "{\"name\":[[[{\"ab\":\"\xe4\xb8";
    for (const char *c = text; *c; c++) {
        char one = *c;
        ck_assert_ok(tokenmask_advance(&deep, tokenizer_find(r.tok, &one, 1)));
    }
    ck_assert_ok(tokenmask_fill(&deep, &r.stop, 1, before, N_WORDS));
    size_t most = 0;
    for (int round = 0; round < 400; round++) { /* much that is forgotten again */
        struct tokenmask_state w;
        tokenmask_state_copy(&w, &s);
        ck_assert_ok(tokenmask_advance(&w, '{'));
        for (int i = 0; i < 60; i++) {
            ck_assert_ok(tokenmask_fill(&w, &r.stop, 1, bits, N_WORDS));
            uint32_t n = 0;
            for (int32_t id = 0; id < N_WORDS * 32; id++)
                n += bit(bits, id);
            int32_t id = choose(&r, bits, n, 0);
            if (id == r.stop)
                break;
            ck_assert_ok(tokenmask_advance(&w, id));
        }
        tokenmask_state_fini(&w);
        most = tokenmask_bytes(t) > most ? tokenmask_bytes(t) : most;
        if (round % 50 == 49) {
            uint32_t keep[2] = {s.config, deep.config};
            ck_assert_ok(machine_forget(&t->machine, keep, 2));
            s.config = keep[0];
            deep.config = keep[1];
            while (t->cached) { /* whole masks go by number */
                struct tokenmask_cached *c = t->cached;
                HASH_DELETE(hh, t->cached, c);
                free(c);
                t->n_cached--;
            }
        }
        ck_assert_ok(tokenmask_fill(&deep, &r.stop, 1, after, N_WORDS));
        ck_assert_mem_eq(before, after, sizeof before);
    }
    ck_assert_uint_lt(most, (size_t)64 << 20);
    tokenmask_state_fini(&s);
    tokenmask_state_fini(&deep);
    tokenmask_destroy(t);
    rig_close(&r);
}
END_TEST

START_TEST(nesting_is_bounded_and_can_always_be_closed)
{
    struct rig r;
    struct tokenmask_state s;
    uint32_t bits[N_WORDS];
    int depth = 0, closed = 0;
    rig_open(&r);
    struct tokenmask *t = mask_of(
        &r, GRAMMAR_GBNF,
        "root ::= \"[\" root \"]\" | \"(\" two \")\" | \"x\"\ntwo ::= \"{\" root \"}\" root");
    tokenmask_state_init(&s, t);
    for (; depth < 5000; depth++) {
        ck_assert_ok(tokenmask_fill(&s, &r.stop, 1, bits, N_WORDS));
        int32_t id = bit(bits, '(') && depth % 3 == 0 ? '(' : bit(bits, '{') ? '{' : '[';
        if (!bit(bits, id))
            break;
        ck_assert_ok(tokenmask_advance(&s, id));
    }
    ck_assert_int_gt(depth, 300);
    ck_assert_int_lt(depth, 2000);
    for (; !tokenmask_done(&s); closed++) {
        ck_assert_ok(tokenmask_fill(&s, &r.stop, 1, bits, N_WORDS));
        int32_t id = bit(bits, 'x') ? 'x' : bit(bits, ']') ? ']' : bit(bits, '}') ? '}' : ')';
        ck_assert(bit(bits, id));
        ck_assert_ok(tokenmask_advance(&s, id));
        ck_assert_int_lt(closed, 10000);
    }
    tokenmask_state_fini(&s);
    tokenmask_destroy(t);
    rig_close(&r);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("tokenmask");
    TCase *c = tcase_create("tokenmask");
    tcase_set_timeout(c, 300);
    tcase_add_test(c, fill_agrees_with_trying);
    tcase_add_test(c, fill_is_the_same_whoever_came_before);
    tcase_add_test(c, advance_refuses_what_is_not_allowed);
    tcase_add_test(c, states_outlive_a_new_store);
    tcase_add_test(c, nesting_is_bounded_and_can_always_be_closed);
    suite_add_tcase(s, c);
    return s;
}
