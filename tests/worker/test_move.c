/* Sequences that go from one running decode worker to another: the answer is that of one engine
 * alone, no prompt is computed twice, and no block is lost, whatever happens on the way. */
#include "tests/worker/relay.h"

static struct relay *relay;
static struct relay_worker *P, *D, *D2;
static struct oracle oracle;
static int32_t prompt[1200];

/* faults: BATON_FAULT of the decode workers, d1 and d2. blocks: KV blocks of d2. */
static void start(const char *faults, const char *blocks)
{
    relay = relay_create();
    P = relay_spawn(relay, PROTO_PREFILL_WORKER, NULL);
    setenv("BATON_FAULT", faults, 1);
    D = relay_spawn(relay, PROTO_DECODE_WORKER, SETTINGS("name=d1"));
    D2 = relay_spawn(relay, PROTO_DECODE_WORKER, SETTINGS("name=d2", blocks));
    unsetenv("BATON_FAULT");
    relay_open(relay);
    oracle_open(&oracle);
    relay_prompt(prompt, 1200, 1);
}

static void stop(void)
{
    relay_close(relay);
    oracle_close(&oracle);
}

#define SLOWLY "d1/engine.step@1+1=delay:2,d2/engine.step@1+1=delay:2"
#define SLOWER "d1/engine.step@1+1=delay:5,d2/engine.step@1+1=delay:5"

static uint32_t wanted; /* tokens, or moves */
static bool has_tokens(struct relay *r, void *arg)
{
    return ((struct answer *)arg)->n >= wanted;
}
static bool has_moved(struct relay *r, void *arg)
{
    return ((struct answer *)arg)->moves >= wanted;
}
static bool is_not_moved(struct relay *r, void *arg)
{
    return ((struct answer *)arg)->move_lost != 0;
}
/* It kills itself; whoever waits for it must go on with everything else. */
static bool is_dead(struct relay *r, void *arg)
{
    struct relay_worker *w = arg;
    int status;
    if (w->pid && waitpid(w->pid, &status, WNOHANG) == w->pid) {
        ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        w->pid = 0;
        relay_disconnect(w);
    }
    return w->pid == 0;
}
static void until_tokens(struct answer *a, uint32_t n)
{
    wanted = n;
    UNTIL(relay, has_tokens, a);
}

static void all_exact(const struct question *q, struct answer **a, uint32_t n)
{
    UNTIL(relay, relay_all_finished, NULL);
    for (uint32_t i = 0; i < n; i++)
        oracle_check(&oracle, &q[i], a[i]);
    UNTIL(relay, relay_all_free, NULL);
}

/* Greedy and sampled, with a budget of thinking that ends here or there, prompts of any length. */
START_TEST(moves_there_and_back)
{
    enum { N = 5, MOVES = 4 };
    struct question q[N];
    struct answer *a[N];
    start(SLOWER, "kv_blocks=200");
    for (uint32_t i = 0; i < N; i++) {
        q[i] = (struct question){.prompt = prompt + i,
                                 .n_prompt = 15 + 85 * i,
                                 .max_tokens = 300,
                                 .temperature = i % 2 ? 0.8f : 0,
                                 .seed = i,
                                 .keep_going = true,
                                 .logprobs = i == 3,
                                 .think_limit = i == 2   ? 40
                                                : i == 4 ? 150
                                                         : 0};
        a[i] = relay_ask(relay, &q[i], P, D);
    }
    for (uint32_t m = 0; m < MOVES; m++) {
        for (uint32_t i = 0; i < N; i++) {
            until_tokens(a[i], 10 + 40 * m);
            relay_move(relay, a[i], m % 2 ? D2 : D, m % 2 ? D : D2);
        }
        for (uint32_t i = 0; i < N; i++) {
            wanted = m + 1;
            UNTIL(relay, has_moved, a[i]);
            ck_assert_uint_eq(a[i]->finish, PROTO_FINISH_NONE);
        }
    }
    all_exact(q, a, N);
    stop();
}
END_TEST

/* The source is gone as soon as the target has spoken, and with it tokens that the router never
 * saw.
 */
START_TEST(target_has_all_that_the_router_has_not)
{
    struct question q = {
        .prompt = prompt, .n_prompt = 50, .max_tokens = 400, .logprobs = true, .keep_going = true};
    start(SLOWLY, "kv_blocks=200");
    struct answer *a = relay_ask(relay, &q, P, D);
    until_tokens(a, 20);
    D->deaf = true;
    uint32_t n = a->n;
    relay_move(relay, a, D, D2);
    wanted = 1;
    UNTIL(relay, has_moved, a);
    D->deaf = false;
    kill(D->pid, SIGKILL);
    ck_assert_int_eq(relay_reap(D), -SIGKILL);
    relay_disconnect(D);
    until_tokens(a, n + 50);
    all_exact(&q, &a, 1);
    stop();
}
END_TEST

/* 0: killed at the first KV, 1: at HANDOFF, 2: when it has said that it has it. It goes on at the
 * source, which need not have noticed when the router has. */
START_TEST(target_killed)
{
    static const char *const points[] = {"kv.received", "HANDOFF.received", "HANDOFF_OK.sent"};
    char faults[200];
    struct question q = {.prompt = prompt, .n_prompt = 700, .max_tokens = 300, .keep_going = true};
    snprintf(faults, sizeof faults, "%s,d2/%s@1=kill", SLOWER, points[_i]);
    start(faults, "kv_blocks=200");
    struct answer *a = relay_ask(relay, &q, P, D);
    until_tokens(a, 20);
    relay_move(relay, a, D, D2);
    UNTIL(relay, is_dead, D2);
    UNTIL(relay, is_not_moved, a);
    all_exact(&q, &a, 1);
    ck_assert_uint_eq(a->attempt, 0);
    stop();
}
END_TEST

static bool has_reserved(struct relay *r, void *arg)
{
    const struct relay_worker *w = arg;
    return w->load.kv_free < w->hello.kv_blocks;
}

/* Its HANDOFF does not arrive: before anybody has noticed, the router says that the move is off. */
START_TEST(canceled_by_the_router)
{
    struct question q = {.prompt = prompt, .n_prompt = 700, .max_tokens = 200, .keep_going = true};
    start(SLOWER ",d2/HANDOFF.received@1=drop", "kv_blocks=200");
    struct answer *a = relay_ask(relay, &q, P, D);
    until_tokens(a, 20);
    relay_move(relay, a, D, D2);
    UNTIL(relay, has_reserved, D2);
    uint32_t attempt = a->move_attempt;
    ck_assert_uint_eq(attempt, 1);
    a->move_attempt = 0;
    relay_cancel_attempt(relay, a, attempt, D);
    relay_cancel_attempt(relay, a, attempt, D2);
    all_exact(&q, &a, 1);
    ck_assert_uint_eq(a->moves, 0);
    stop();
}
END_TEST

START_TEST(source_killed)
{
    struct question q = {.prompt = prompt, .n_prompt = 700, .max_tokens = 200, .keep_going = true};
    start(SLOWER ",d1/kv.sent@1=kill", "kv_blocks=200");
    struct answer *a = relay_ask(relay, &q, P, D);
    until_tokens(a, 20);
    relay_move(relay, a, D, D2);
    UNTIL(relay, is_dead, D);
    relay_cancel_attempt(relay, a, a->move_attempt, D2);
    a->move_attempt = 0;
    relay_cancel(relay, a, P);
    a->attempt = ++a->last_attempt;
    relay_submit(relay, a, &q, P, D2);
    all_exact(&q, &a, 1);
    stop();
}
END_TEST

/* 0: there is no room, 1: the target drains, 2: there never is. */
START_TEST(target_refuses)
{
    struct question q = {.prompt = prompt, .n_prompt = 200, .max_tokens = 150, .keep_going = true};
    struct question other = {
        .prompt = prompt + 7, .n_prompt = 250, .max_tokens = 80, .keep_going = true};
    start(_i == 0 ? SLOWER : SLOWLY, _i == 2 ? "kv_blocks=10" : "kv_blocks=24");
    struct answer *a = relay_ask(relay, &q, P, D), *b = NULL;
    if (_i == 0) {
        b = relay_ask(relay, &other, P, D2);
        until_tokens(b, 2);
    } else if (_i == 1) {
        struct proto_msg m = {.type = PROTO_DRAIN};
        relay_send(D2, &m);
    }
    until_tokens(a, 5);
    relay_move(relay, a, D, D2);
    UNTIL(relay, is_not_moved, a);
    static const uint32_t why[] = {PROTO_REASON_FULL, PROTO_REASON_DRAINING,
                                   PROTO_REASON_TOO_LARGE};
    ck_assert_uint_eq(a->move_lost, why[_i]);
    UNTIL(relay, relay_all_finished, NULL);
    oracle_check(&oracle, &q, a);
    if (b)
        oracle_check(&oracle, &other, b);
    UNTIL(relay, relay_all_free, NULL);
    if (_i == 1) { /* and takes work again when it is told so */
        struct proto_msg m = {.type = PROTO_DRAIN, .drain.off = true};
        relay_send(D2, &m);
        a = relay_ask(relay, &q, P, D);
        until_tokens(a, 5);
        relay_move(relay, a, D, D2);
        wanted = 1;
        UNTIL(relay, has_moved, a);
        all_exact(&q, &a, 1);
    }
    stop();
}
END_TEST

/* A bit of the KV flips on the way: it is sent again. */
START_TEST(damaged_on_the_way)
{
    struct question q = {.prompt = prompt, .n_prompt = 700, .max_tokens = 200, .keep_going = true};
    start(SLOWER ",d1/kv.sent@1+3=corrupt", "kv_blocks=200");
    struct answer *a = relay_ask(relay, &q, P, D);
    until_tokens(a, 20);
    relay_move(relay, a, D, D2);
    wanted = 1;
    UNTIL(relay, has_moved, a);
    all_exact(&q, &a, 1);
    stop();
}
END_TEST

/* Nothing to move: it is over, or unknown, or the target is the source itself. */
START_TEST(nothing_to_move)
{
    struct question q = {.prompt = prompt, .n_prompt = 30, .max_tokens = 100, .keep_going = true};
    start(SLOWLY, "kv_blocks=200");
    struct answer *a = relay_ask(relay, &q, P, D);
    until_tokens(a, 3);
    relay_move(relay, a, D2, D);
    UNTIL(relay, is_not_moved, a);
    relay_move(relay, a, D, D);
    UNTIL(relay, is_not_moved, a);
    all_exact(&q, &a, 1);
    relay_move(relay, a, D, D2);
    UNTIL(relay, is_not_moved, a);
    ck_assert_uint_eq(a->move_lost, PROTO_REASON_UNKNOWN);
    stop();
}
END_TEST

/* The client leaves at any moment: everything of both workers is free. */
START_TEST(abandoned_on_the_way)
{
    struct question q = {.prompt = prompt, .n_prompt = 700, .max_tokens = 400, .keep_going = true};
    static const char *const points[] = {"GRANT.received", "HANDOFF.sent", "RESERVE.sent"};
    char faults[200];
    snprintf(faults, sizeof faults, "%s,d1/%s@1=delay:30", SLOWLY, points[_i]);
    start(faults, "kv_blocks=200");
    struct answer *a = relay_ask(relay, &q, P, D);
    until_tokens(a, 20);
    relay_move(relay, a, D, D2);
    until_tokens(a, 20 + (uint32_t)_i);
    relay_cancel(relay, a, P);
    relay_cancel(relay, a, D);
    relay_cancel_attempt(relay, a, a->last_attempt, D2);
    a->lost = PROTO_REASON_CANCELED;
    UNTIL(relay, relay_all_free, NULL);
    stop();
}
END_TEST

#define ADD_LOOP(test, n)                                                                          \
    do {                                                                                           \
        TCase *t = tcase_create(#test);                                                            \
        tcase_set_timeout(t, 60);                                                                  \
        tcase_add_loop_test(t, test, 0, n);                                                        \
        suite_add_tcase(s, t);                                                                     \
    } while (0)

Suite *test_suite(void)
{
    Suite *s = suite_create("worker/move");
    ADD(moves_there_and_back);
    ADD(target_has_all_that_the_router_has_not);
    ADD_LOOP(target_killed, 3);
    ADD(canceled_by_the_router);
    ADD(source_killed);
    ADD_LOOP(target_refuses, 3);
    ADD(damaged_on_the_way);
    ADD(nothing_to_move);
    ADD_LOOP(abandoned_on_the_way, 3);
    return s;
}
