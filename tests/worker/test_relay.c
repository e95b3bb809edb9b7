/* relay: a prefill worker, decode workers and a router of the test, over real links and a real data
 * link, with a tiny model. Every answer must equal, bit for bit, what one engine alone says. */
#include "tests/worker/relay.h"

static struct relay *relay;
static struct relay_worker *P, *D;
static struct oracle oracle;

/* faults: BATON_FAULT of the decode worker. */
static void start_with(const char *faults, const char *const *prefill, const char *const *decode)
{
    relay = relay_create();
    P = relay_spawn(relay, PROTO_PREFILL_WORKER, prefill);
    setenv("BATON_FAULT", faults, 1);
    D = relay_spawn(relay, PROTO_DECODE_WORKER, decode);
    unsetenv("BATON_FAULT");
    relay_open(relay);
    oracle_open(&oracle);
}

static void start(const char *const *prefill, const char *const *decode)
{
    start_with("", prefill, decode);
}

/* Each token takes 2 ms: sequences overlap, whoever has to wait for a processor. */
static void start_slowly(const char *const *prefill, const char *const *decode)
{
    start_with("engine.step@1+1=delay:2", prefill, decode);
}

static void stop(void)
{
    relay_close(relay);
    oracle_close(&oracle);
}

START_TEST(relay_one_answer)
{
    start(NULL, NULL);
    int32_t prompt[150];
    relay_prompt(prompt, 150, 1);
    struct question q = {.prompt = prompt, .n_prompt = 150, .max_tokens = 40, .keep_going = true};
    struct answer *a = relay_ask(relay, &q, P, D);
    UNTIL(relay, relay_finished, a);
    oracle_check(&oracle, &q, a);
    ck_assert_uint_eq(a->finish, PROTO_FINISH_LENGTH);
    ck_assert_uint_eq(a->duplicates, 1); /* D repeats the token that P drew */
    UNTIL(relay, relay_all_free, NULL);
    stop();
}
END_TEST

/* Lengths around block, chunk and bucket edges; greedy and sampled, all at once. */
START_TEST(relay_many_at_once)
{
    enum { N = 16 };
    static const uint32_t lengths[N] = {1,  2,  15, 16, 17,  31,  32,  33,
                                        63, 64, 65, 80, 127, 128, 129, 300};
    static int32_t prompts[N][300];
    struct question q[N];
    struct answer *a[N];
    start(NULL, NULL);
    for (uint32_t i = 0; i < N; i++) {
        relay_prompt(prompts[i], lengths[i], i + 10);
        q[i] = (struct question){.prompt = prompts[i],
                                 .n_prompt = lengths[i],
                                 .max_tokens = 20 + i,
                                 .temperature = i % 2 ? 0.9f : 0,
                                 .seed = i * 77,
                                 .logprobs = i % 3 == 0};
        a[i] = relay_ask(relay, &q[i], P, D);
    }
    UNTIL(relay, relay_all_finished, NULL);
    for (uint32_t i = 0; i < N; i++) {
        oracle_check(&oracle, &q[i], a[i]);
        ck_assert_uint_eq(a[i]->duplicates, 1); /* P's own frame is never overtaken and dropped */
    }
    UNTIL(relay, relay_all_free, NULL);
    stop();
}
END_TEST

/* The second time the prefix comes from the caches, on both sides; with another salt it does not,
 * and without the cache nothing does. The answers are the same. */
START_TEST(relay_prefix_cache)
{
    int32_t prompt[100];
    relay_prompt(prompt, 100, 3);
    struct question q = {.prompt = prompt, .n_prompt = 100, .max_tokens = 8, .keep_going = true};
    struct answer *a;
    start(NULL, NULL);
    static const char *const salts[] = {"", "", "tenant", "tenant"};
    static const uint32_t cached[] = {0, 96, 0, 96};
    for (int i = 0; i < 4; i++) {
        q.salt = salts[i];
        a = relay_ask(relay, &q, P, D);
        UNTIL(relay, relay_finished, a);
        UNTIL(relay, relay_all_free, NULL);
        oracle_check(&oracle, &q, a);
        ck_assert_uint_eq(a->cached_tokens, cached[i]);
    }
    prompt[40]++; /* shares two blocks */
    q.salt = "";
    a = relay_ask(relay, &q, P, D);
    UNTIL(relay, relay_finished, a);
    oracle_check(&oracle, &q, a);
    ck_assert_uint_eq(a->cached_tokens, 32);
    stop();
    start(SETTINGS("prefix_cache=off"), SETTINGS("prefix_cache=off"));
    for (int i = 0; i < 2; i++) {
        a = relay_ask(relay, &q, P, D);
        UNTIL(relay, relay_finished, a);
        oracle_check(&oracle, &q, a);
        ck_assert_uint_eq(a->cached_tokens, 0);
    }
    UNTIL(relay, relay_all_free, NULL);
    stop();
}
END_TEST

/* The closing tag is forced at the limit: on P when it is 0, on D, and wherever an attempt begins.
 */
START_TEST(relay_budget_of_thinking)
{
    enum { N = 4 };
    static const uint32_t limits[N] = {0, 1, 7, 30};
    int32_t prompt[40];
    struct token_list tag = {0};
    start(NULL, NULL);
    relay_prompt(prompt, 40, 8);
    ck_assert_ok(tokenizer_encode(oracle.tokenizer, RELAY_CLOSE, strlen(RELAY_CLOSE),
                                  TOKENIZE_SPECIAL, &tag));
    ck_assert_uint_gt(tag.n, 1);
    for (uint32_t i = 0; i < N; i++) {
        struct question q = {.prompt = prompt,
                             .n_prompt = 40,
                             .max_tokens = 44,
                             .temperature = i % 2 ? 0.9f : 0,
                             .seed = i,
                             .logprobs = true,
                             .keep_going = true,
                             .think_limit = limits[i] + 1};
        struct answer *a = relay_ask(relay, &q, P, D);
        UNTIL(relay, relay_finished, a);
        oracle_check(&oracle, &q, a);
        ck_assert_mem_eq(a->ids + limits[i], tag.ids, tag.n * sizeof *tag.ids);
        for (uint32_t k = limits[i]; k <= limits[i] + tag.n; k++) {
            struct answer *b = &relay->answers[relay->next];
            *b = (struct answer){.used = true, .counter = ++relay->next, .attempt = 1, .n = k};
            memcpy(b->ids, a->ids, k * sizeof *b->ids);
            memcpy(b->logprobs, a->logprobs, k * sizeof *b->logprobs);
            relay_submit(relay, b, &q, P, D);
            UNTIL(relay, relay_finished, b);
            oracle_check(&oracle, &q, b);
        }
    }
    token_list_fini(&tag);
    UNTIL(relay, relay_all_free, NULL);
    stop();
}
END_TEST

/* Ends on P: one token wanted, and a stop id as the first token. */
START_TEST(relay_ends_with_first_token)
{
    int32_t prompt[40];
    start(NULL, NULL);
    relay_prompt(prompt, 40, 5);
    struct question q = {.prompt = prompt, .n_prompt = 40, .max_tokens = 1};
    struct answer *a = relay_ask(relay, &q, P, D);
    UNTIL(relay, relay_finished, a);
    oracle_check(&oracle, &q, a);
    ck_assert_uint_eq(a->n, 1);
    ck_assert_uint_eq(a->duplicates, 0);
    /* a temperature of 50 draws nearly uniformly: some seed begins with a stop id */
    q.max_tokens = 16;
    q.temperature = 50;
    int32_t ids[16];
    float logprobs[16];
    for (q.seed = 0; q.seed < 5000; q.seed++) {
        q.max_tokens = 1;
        oracle_answer(&oracle, &q, ids, logprobs);
        if (ids[0] == 0 || ids[0] == 2)
            break;
    }
    ck_assert_uint_lt(q.seed, 5000);
    q.max_tokens = 16;
    a = relay_ask(relay, &q, P, D);
    UNTIL(relay, relay_finished, a);
    ck_assert_uint_eq(a->n, 1);
    ck_assert_uint_eq(a->finish, PROTO_FINISH_STOP);
    UNTIL(relay, relay_all_free, NULL);
    stop();
}
END_TEST

START_TEST(relay_scores_the_prompt)
{
    int32_t prompt[150];
    start(NULL, NULL);
    relay_prompt(prompt, 150, 6);
    struct question q = {.prompt = prompt, .n_prompt = 150, .max_tokens = 3, .score = true};
    struct answer *a = relay_ask(relay, &q, P, D);
    UNTIL(relay, relay_finished, a);
    oracle_check(&oracle, &q, a);
    ck_assert_uint_eq(a->n_scores, 149);
    struct sample_result scores[150];
    struct engine_row row = {.tokens = prompt,
                             .n_tokens = 150,
                             .blocks = oracle.blocks,
                             .scores = scores,
                             .next_token = -1};
    struct engine_step step = {.rows = &row, .n_rows = 1};
    ck_assert_ok(engine_step(oracle.e, &step));
    for (int i = 0; i < 149; i++)
        ck_assert_msg(a->scores[i] == scores[i].logprob, "score %d: %g, alone %g", i, a->scores[i],
                      scores[i].logprob);
    UNTIL(relay, relay_all_free, NULL);
    stop();
}
END_TEST

START_TEST(relay_ends_at_the_context)
{
    int32_t prompt[120];
    start(SETTINGS("context_length=128"), SETTINGS("context_length=128"));
    relay_prompt(prompt, 120, 7);
    struct question q = {.prompt = prompt, .n_prompt = 120, .max_tokens = 500, .keep_going = true};
    struct answer *a = relay_ask(relay, &q, P, D);
    UNTIL(relay, relay_finished, a);
    ck_assert_uint_eq(a->lost, 0);
    ck_assert_uint_eq(a->finish, PROTO_FINISH_LENGTH);
    ck_assert_uint_eq(a->n, 8); /* prompt and answer fill the context */
    UNTIL(relay, relay_all_free, NULL);
    stop();
}
END_TEST

START_TEST(relay_refuses_bad_jobs)
{
    static int32_t prompt[2100];
    start(NULL, NULL);
    relay_prompt(prompt, 2100, 8);
    struct question good = {.prompt = prompt, .n_prompt = 20, .max_tokens = 4, .keep_going = true};
    struct question bad[4] = {good, good, good, good};
    bad[0].n_prompt = 0;
    bad[1].n_prompt = 2049; /* the context is 2048 */
    bad[2].max_tokens = 0;
    bad[3].n_prompt = 21;
    prompt[20] = 301; /* not in the vocabulary */
    for (int i = 0; i < 4; i++) {
        struct answer *a = relay_ask(relay, &bad[i], P, D);
        UNTIL(relay, relay_finished, a);
        ck_assert_uint_eq(a->lost, PROTO_REASON_INVALID);
        ck_assert(!a->parked);
    }
    struct answer *a = relay_ask(relay, &good, P, D);
    UNTIL(relay, relay_finished, a);
    oracle_check(&oracle, &good, a);
    UNTIL(relay, relay_all_free, NULL);
    stop();
}
END_TEST

static bool has_some(struct relay *r, void *arg)
{
    return ((struct answer *)arg)->n >= 5;
}

START_TEST(relay_cancel_frees_both_sides)
{
    static int32_t prompt[1500];
    start_slowly(NULL, NULL);
    relay_prompt(prompt, 1500, 9);
    struct question q = {.prompt = prompt, .n_prompt = 100, .max_tokens = 1900, .keep_going = true};
    struct answer *a = relay_ask(relay, &q, P, D);
    UNTIL(relay, has_some, a);
    uint64_t t = clock_ms();
    relay_cancel(relay, a, P);
    relay_cancel(relay, a, D);
    relay_cancel(relay, a, D); /* idempotent */
    UNTIL(relay, relay_all_free, NULL);
    ck_assert_uint_lt(clock_ms() - t, 1000);
    ck_assert_uint_eq(a->finish, PROTO_FINISH_NONE);
    /* while the prompt is being computed, and before it has begun */
    q.n_prompt = 1500;
    struct answer *b = relay_ask(relay, &q, P, D), *c = relay_ask(relay, &q, P, D);
    relay_cancel(relay, b, P);
    relay_cancel(relay, b, D);
    relay_cancel(relay, c, D); /* the tombstone: c's RESERVE comes later and is refused */
    UNTIL(relay, relay_finished, c);
    ck_assert_uint_eq(c->lost, PROTO_REASON_CANCELED);
    UNTIL(relay, relay_all_free, NULL);
    ck_assert_uint_eq(b->n, 0);
    stop();
}
END_TEST

/* A pool that holds two of eight at a time: the others wait, nobody is lost. */
START_TEST(relay_waits_for_blocks)
{
    enum { N = 8 };
    static int32_t prompts[N][160];
    struct question q[N];
    struct answer *a[N];
    start(NULL, SETTINGS("kv_blocks=26", "prefix_cache=off"));
    for (uint32_t i = 0; i < N; i++) {
        relay_prompt(prompts[i], 160, i + 40);
        q[i] = (struct question){
            .prompt = prompts[i], .n_prompt = 160, .max_tokens = 10, .keep_going = true};
        a[i] = relay_ask(relay, &q[i], P, D);
    }
    UNTIL(relay, relay_all_finished, NULL);
    for (uint32_t i = 0; i < N; i++)
        oracle_check(&oracle, &q[i], a[i]);
    /* what can never fit is refused, and its KV kept for another decode worker */
    static int32_t large[420];
    relay_prompt(large, 420, 60);
    struct question big = {.prompt = large, .n_prompt = 420, .max_tokens = 5, .keep_going = true};
    struct answer *b = relay_ask(relay, &big, P, D);
    UNTIL(relay, relay_finished, b);
    ck_assert_uint_eq(b->lost, PROTO_REASON_TOO_LARGE);
    ck_assert(b->parked);
    relay_cancel(relay, b, P);
    UNTIL(relay, relay_all_free, NULL);
    stop();
}
END_TEST

static bool any_done(struct relay *r, void *arg)
{
    struct answer **a = arg;
    bool all = true;
    for (int i = 0; i < 3; i++) {
        if (a[i]->lost)
            return true;
        all &= a[i]->finish != PROTO_FINISH_NONE;
    }
    return all;
}

/* Sequences outgrow the pool: the youngest are preempted, resubmitted by the router, and end with
 * the same tokens; one that alone exceeds the pool ends with `length`. */
START_TEST(relay_preempts_the_youngest)
{
    enum { N = 3 };
    static int32_t prompts[N][60];
    struct question q[N];
    struct answer *a[N];
    start_slowly(NULL, SETTINGS("kv_blocks=20", "prefix_cache=off"));
    for (uint32_t i = 0; i < N; i++) {
        relay_prompt(prompts[i], 60, i + 70);
        q[i] = (struct question){.prompt = prompts[i],
                                 .n_prompt = 60,
                                 .max_tokens = 120,
                                 .temperature = 0.7f,
                                 .seed = i,
                                 .keep_going = true};
        a[i] = relay_ask(relay, &q[i], P, D);
    }
    int preempted = 0;
    for (uint64_t limit = clock_ms() + RELAY_DEADLINE;;) {
        ck_assert_uint_lt(clock_ms(), limit);
        UNTIL(relay, any_done, a);
        uint32_t left = 0;
        for (uint32_t i = 0; i < N; i++) {
            if (a[i]->lost) {
                ck_assert_uint_eq(a[i]->lost, PROTO_REASON_PREEMPTED);
                ck_assert_uint_ne(i, 0); /* the oldest never is */
                preempted++;
                relay_cancel(relay, a[i], P);
                relay_cancel(relay, a[i], D);
                a[i]->attempt++;
                a[i]->lost = 0;
                relay_submit(relay, a[i], &q[i], P, D);
            }
            left += a[i]->finish == PROTO_FINISH_NONE;
        }
        if (left == 0)
            break;
    }
    ck_assert_int_gt(preempted, 0);
    for (uint32_t i = 0; i < N; i++)
        oracle_check(&oracle, &q[i], a[i]);
    struct question endless = q[0];
    endless.max_tokens = 1000;
    struct answer *b = relay_ask(relay, &endless, P, D);
    UNTIL(relay, relay_finished, b);
    ck_assert_uint_eq(b->lost, 0);
    ck_assert_uint_eq(b->finish, PROTO_FINISH_LENGTH);
    ck_assert_uint_eq(b->n, 20 * 16 + 1 - 60); /* every slot is used; the last token needs none */
    UNTIL(relay, relay_all_free, NULL);
    stop();
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("worker/relay");
    ADD(relay_one_answer);
    ADD(relay_many_at_once);
    ADD(relay_prefix_cache);
    ADD(relay_budget_of_thinking);
    ADD(relay_ends_with_first_token);
    ADD(relay_scores_the_prompt);
    ADD(relay_ends_at_the_context);
    ADD(relay_refuses_bad_jobs);
    ADD(relay_cancel_frees_both_sides);
    ADD(relay_waits_for_blocks);
    ADD(relay_preempts_the_youngest);
    return s;
}
