/* Tests of common/worker/guide and grammars: a grammar holds from the first token, or behind the
 * thinking; the same for a job that comes with emitted tokens; compiled once, kept, refused. */
#include "common/worker/guide.h"

#include <stdio.h>
#include <string.h>

#include "common/model/model.h"
#include "tests/harness.h"

#define VOCAB 1024

struct rig {
    struct loop *loop;
    struct model *model;
    struct tokenizer *tok;
    struct grammars *gs;
    int ready;
    bool none; /* there is no tokenizer */
};

static const struct tokenizer *tokenizer_of(void *arg)
{
    const struct rig *r = arg;
    return r->none ? NULL : r->tok;
}

static void on_ready(void *arg)
{
    struct rig *r = arg;
    r->ready++;
    loop_stop(r->loop);
}

static void rig_open(struct rig *r)
{
    char err[300] = "";
    const struct grammars_options o = {tokenizer_of, on_ready, r};
    memset(r, 0, sizeof *r);
    ck_assert_int_eq(loop_create(&r->loop), STATUS_OK);
    ck_assert_msg(model_open(test_data("tiny/llama-q8_0.gguf"), MODEL_VOCAB_ONLY, &r->model, err,
                             sizeof err) == STATUS_OK,
                  "%s", err);
    ck_assert_msg(model_tokenizer(r->model, &r->tok, err, sizeof err) == STATUS_OK, "%s", err);
    ck_assert_uint_le(tokenizer_size(r->tok), VOCAB);
    ck_assert_int_eq(grammars_create(r->loop, &o, &r->gs), STATUS_OK);
}

static void rig_close(struct rig *r)
{
    grammars_destroy(r->gs);
    loop_destroy(r->loop);
    tokenizer_destroy(r->tok);
    model_close(r->model);
}

static struct guide *guide_of(struct rig *r, const struct proto_job *j)
{
    struct guide *g = NULL;
    ck_assert_int_eq(guide_create(j, r->tok, VOCAB, r->gs, &g), STATUS_OK);
    while (!guide_ready(g))
        loop_run(r->loop);
    return g;
}

static struct proto_job job_with(enum grammar_kind kind, const char *source)
{
    return (struct proto_job){
        .max_tokens = 100, .grammar_kind = kind, .grammar = {source, strlen(source)}};
}

/* The text of what may come next, byte tokens alone, in ascending order. */
static const char *next_bytes(struct rig *r, struct guide *g, int32_t stop)
{
    static char out[300];
    struct sample_params p = {.temperature = 1};
    size_t n = 0;
    ck_assert(guide_row(g, 0, &p));
    if (!p.allowed)
        return "anything";
    for (int32_t id = 0; id < (int32_t)tokenizer_size(r->tok); id++) {
        struct token_text t = tokenizer_piece(r->tok, id, false);
        if (p.allowed[id / 32] >> (id % 32) & 1 && t.n == 1 && id != stop)
            out[n++] = *t.p;
    }
    if (stop >= 0 && p.allowed[stop / 32] >> (stop % 32) & 1)
        out[n++] = '$';
    out[n] = 0;
    return out;
}

static int32_t token_of(struct rig *r, char c)
{
    int32_t id = tokenizer_find(r->tok, &c, 1);
    ck_assert_int_ge(id, 0);
    return id;
}

START_TEST(row_follows_the_grammar)
{
    struct rig r;
    rig_open(&r);
    int32_t stop = tokenizer_eos(r.tok);
    struct proto_job j = job_with(GRAMMAR_CHOICE, "[\"ab\",\"ac\",\"acd\"]");
    j.stop_ids = (struct proto_ids){&stop, 1};
    struct guide *g = guide_of(&r, &j);
    struct sample_params p;
    ck_assert_str_eq(next_bytes(&r, g, stop), "a");
    ck_assert(!guide_row(g, 1, &p)); /* that depends on the token before */
    ck_assert_int_eq(guide_feed(g, token_of(&r, 'a')), STATUS_OK);
    ck_assert_str_eq(next_bytes(&r, g, stop), "bc");
    ck_assert_int_eq(guide_feed(g, token_of(&r, 'c')), STATUS_OK);
    ck_assert_str_eq(next_bytes(&r, g, stop), "d$");
    ck_assert(!guide_ended(g));
    /* The same place, from emitted tokens; without stop ids when they are not to be drawn. */
    int32_t ids[2] = {token_of(&r, 'a'), token_of(&r, 'c')};
    struct proto_job again = j;
    again.emitted = (struct proto_ids){ids, 2};
    again.ignore_eos = true;
    struct guide *g2 = guide_of(&r, &again);
    ck_assert_str_eq(next_bytes(&r, g2, stop), "d");
    ck_assert_int_eq(guide_feed(g2, token_of(&r, 'd')), STATUS_OK);
    ck_assert(guide_ended(g2));
    ck_assert_int_eq(guide_feed(g, stop), STATUS_OK);
    ck_assert_ptr_null(guide_error(g));
    ck_assert_int_eq(guide_feed(g, token_of(&r, 'x')), STATUS_INVALID);
    ck_assert_ptr_nonnull(guide_error(g));
    guide_destroy(g);
    guide_destroy(g2);
    ck_assert_int_eq(r.ready, 1); /* compiled once */
    rig_close(&r);
}
END_TEST

START_TEST(row_waits_for_the_end_of_thinking)
{
    struct rig r;
    rig_open(&r);
    struct proto_job j = job_with(GRAMMAR_REGEX, "[xy]z");
    j.think_limit = 1 << 30;
    j.think_start = REASONING_OPEN;
    j.think_open = (struct proto_bytes){"<", 1};
    j.think_close = j.think_force = (struct proto_bytes){">>", 2};
    const char *text = "ab>>y";
    int32_t ids[5];
    for (int i = 0; i < 5; i++)
        ids[i] = token_of(&r, text[i]);
    for (int come = 0; come <= 5; come++) { /* so many came as emitted tokens */
        struct proto_job k = j;
        k.emitted = (struct proto_ids){ids, (size_t)come};
        struct guide *g = guide_of(&r, &k);
        for (int i = come;; i++) {
            ck_assert_str_eq(next_bytes(&r, g, -1), i < 4 ? "anything" : i == 4 ? "xy" : "z");
            if (i == 5)
                break;
            ck_assert_int_eq(guide_feed(g, ids[i]), STATUS_OK);
        }
        ck_assert_int_eq(guide_feed(g, token_of(&r, 'z')), STATUS_OK);
        ck_assert(guide_ended(g));
        guide_destroy(g);
    }
    rig_close(&r);
}
END_TEST

START_TEST(row_forces_the_end_of_thinking_first)
{
    struct rig r;
    rig_open(&r);
    struct proto_job j = job_with(GRAMMAR_REGEX, "[xy]z");
    j.think_limit = 2 + 1; /* two tokens */
    j.think_start = REASONING_OPEN;
    j.think_open = (struct proto_bytes){"<", 1};
    j.think_close = j.think_force = (struct proto_bytes){"q", 1};
    struct guide *g = guide_of(&r, &j);
    ck_assert_str_eq(next_bytes(&r, g, -1), "anything");
    ck_assert_int_eq(guide_feed(g, token_of(&r, 'a')), STATUS_OK);
    ck_assert_int_eq(guide_feed(g, token_of(&r, 'b')), STATUS_OK);
    ck_assert_str_eq(next_bytes(&r, g, -1), "q");
    ck_assert_int_eq(guide_feed(g, token_of(&r, 'q')), STATUS_OK);
    ck_assert_str_eq(next_bytes(&r, g, -1), "xy");
    guide_destroy(g);
    rig_close(&r);
}
END_TEST

START_TEST(create_refuses)
{
    struct rig r;
    rig_open(&r);
    struct proto_job j = job_with(GRAMMAR_REGEX, "(");
    struct guide *g = guide_of(&r, &j);
    ck_assert_ptr_nonnull(strstr(guide_error(g), "not closed"));
    ck_assert_int_eq(guide_feed(g, 1), STATUS_INVALID);
    guide_destroy(g);
    j = job_with(GRAMMAR_CHOICE, "[\"a\"]");
    int32_t wrong = token_of(&r, 'b');
    j.emitted = (struct proto_ids){&wrong, 1}; /* cannot be */
    g = guide_of(&r, &j);
    ck_assert_ptr_nonnull(guide_error(g));
    guide_destroy(g);
    struct proto_job plain = {.max_tokens = 3};
    g = guide_of(&r, &plain);
    ck_assert_ptr_null(g);
    ck_assert(guide_ready(NULL) && !guide_ended(NULL) && !guide_error(NULL));
    rig_close(&r);
    rig_open(&r);
    r.none = true;
    j.emitted.n = 0;
    g = guide_of(&r, &j);
    ck_assert_ptr_nonnull(strstr(guide_error(g), "no tokenizer"));
    guide_destroy(g);
    rig_close(&r);
}
END_TEST

START_TEST(many_are_kept_within_bounds)
{
    struct rig r;
    char source[100];
    rig_open(&r);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 100; i++) {
            snprintf(source, sizeof source, "a{%d}", i + 1);
            struct proto_job j = job_with(GRAMMAR_REGEX, source);
            struct guide *g = guide_of(&r, &j);
            ck_assert_str_eq(next_bytes(&r, g, -1), "a");
            guide_destroy(g);
        }
    }
    ck_assert_int_eq(r.ready, 200); /* the first ones had to make room again */
    /* Closed while one is being compiled. */
    struct proto_job j = job_with(GRAMMAR_REGEX, "b{500}");
    struct guide *g = NULL;
    ck_assert_int_eq(guide_create(&j, r.tok, VOCAB, r.gs, &g), STATUS_OK);
    guide_destroy(g);
    rig_close(&r);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("worker/guide");
    TCase *c = tcase_create("guide");
    tcase_set_timeout(c, 60);
    tcase_add_test(c, row_follows_the_grammar);
    tcase_add_test(c, row_waits_for_the_end_of_thinking);
    tcase_add_test(c, row_forces_the_end_of_thinking_first);
    tcase_add_test(c, create_refuses);
    tcase_add_test(c, many_are_kept_within_bounds);
    suite_add_tcase(s, c);
    return s;
}
