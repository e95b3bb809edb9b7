/* Sequences with a copy on another running decode worker: when theirs dies they go on there, the
 * answer is that of one engine alone, and only the end of the tokens is computed again. */
#include "tests/worker/relay.h"

static struct relay *relay;
static struct relay_worker *P, *D, *D2;
static struct oracle oracle;
static int32_t prompt[1200];

#define SLOWLY "d1/engine.step@1+1=delay:2,d2/engine.step@1+1=delay:2"
#define SLOWER "d1/engine.step@1+1=delay:5,d2/engine.step@1+1=delay:5"

/* faults: of the decode workers, d1 and d2. blocks: KV blocks of d2. lease: of d1. */
static void start_with(const char *faults, const char *blocks, const char *lease)
{
    relay = relay_create();
    P = relay_spawn(relay, PROTO_PREFILL_WORKER, NULL);
    setenv("BATON_FAULT", faults, 1);
    D = relay_spawn(relay, PROTO_DECODE_WORKER, SETTINGS("name=d1", lease));
    D2 = relay_spawn(relay, PROTO_DECODE_WORKER, SETTINGS("name=d2", blocks));
    unsetenv("BATON_FAULT");
    relay_open(relay);
    oracle_open(&oracle);
    relay_prompt(prompt, 1200, 1);
}

static void start(const char *faults, const char *blocks)
{
    start_with(faults, blocks, "lease_ms=5000");
}

static void stop(void)
{
    relay_close(relay);
    oracle_close(&oracle);
}

/* A replica of what runs on `from`, at `to`. */
static void copy(struct answer *a, struct relay_worker *from, const struct relay_worker *to)
{
    a->last_attempt = a->last_attempt > a->attempt ? a->last_attempt : a->attempt;
    a->copy_attempt = ++a->last_attempt;
    a->copy_lost = 0;
    struct proto_msg m = {.type = PROTO_MOVE,
                          .move = {.request = {relay->instance, a->counter, a->copy_attempt},
                                   .old_attempt = a->attempt,
                                   .copy = true,
                                   .decode = {.instance = to->hello.instance,
                                              .data_address = to->hello.data_address}}};
    mac_reserve(&relay->key, relay->instance, a->counter, a->copy_attempt, from->hello.instance,
                to->hello.instance, m.move.decode.mac);
    relay_send(from, &m);
}

static uint32_t wanted; /* tokens, or blocks */
static bool has_tokens(struct relay *r, void *arg)
{
    return ((struct answer *)arg)->n >= wanted;
}
static bool has_copied(struct relay *r, void *arg)
{
    return ((struct relay_worker *)arg)->replica_blocks >= wanted;
}
static bool is_lost(struct relay *r, void *arg)
{
    return ((struct answer *)arg)->lost != 0;
}
static bool is_not_copied(struct relay *r, void *arg)
{
    return ((struct answer *)arg)->copy_lost != 0;
}
static void until_tokens(struct answer *a, uint32_t n)
{
    wanted = n;
    UNTIL(relay, has_tokens, a);
}
static void until_copied(struct relay_worker *w, uint32_t blocks)
{
    wanted = blocks;
    UNTIL(relay, has_copied, w);
}

static void die(struct relay_worker *w)
{
    kill(w->pid, SIGKILL);
    ck_assert_int_eq(relay_reap(w), -SIGKILL);
    relay_disconnect(w);
}

/* The next attempt, at `w` alone. */
static void go_on(struct answer *a, const struct question *q, struct relay_worker *w)
{
    a->attempt = ++a->last_attempt;
    a->lost = 0;
    a->cached_tokens = 0;
    relay_submit(relay, a, q, w, w);
}

/* Greedy and sampled, with a budget of thinking that has ended or not, log probabilities, prompts
 * of any length, all at once. */
START_TEST(goes_on_from_its_copy)
{
    enum { N = 5 };
    struct question q[N];
    struct answer *a[N];
    uint32_t full = 0;
    start(SLOWER, "kv_blocks=200");
    for (uint32_t i = 0; i < N; i++) {
        q[i] = (struct question){.prompt = prompt + i,
                                 .n_prompt = 15 + 85 * i,
                                 .max_tokens = 250,
                                 .temperature = i % 2 ? 0.8f : 0,
                                 .seed = i,
                                 .keep_going = true,
                                 .logprobs = i == 3,
                                 .think_limit = i == 2   ? 40
                                                : i == 4 ? 150
                                                         : 0};
        a[i] = relay_ask(relay, &q[i], P, D);
    }
    for (uint32_t i = 0; i < N; i++) {
        until_tokens(a[i], 40);
        copy(a[i], D, D2);
        full += (q[i].n_prompt + 90) / 16;
    }
    until_copied(D, full);
    die(D);
    for (uint32_t i = 0; i < N; i++) {
        ck_assert_uint_eq(a[i]->finish, PROTO_FINISH_NONE);
        go_on(a[i], &q[i], D2);
    }
    UNTIL(relay, relay_all_finished, NULL);
    uint32_t held = 0;
    for (uint32_t i = 0; i < N; i++) {
        held += a[i]->cached_tokens;
        oracle_check(&oracle, &q[i], a[i]);
    }
    ck_assert_msg(held >= (full - 2 * N) * 16, "%u tokens of %u blocks were held", held, full);
    UNTIL(relay, relay_all_free, NULL);
    stop();
}
END_TEST

/* And again: from there back to a worker that was started anew. */
START_TEST(copied_twice)
{
    struct question q = {.prompt = prompt, .n_prompt = 300, .max_tokens = 300, .keep_going = true};
    start(SLOWLY, "kv_blocks=200");
    struct answer *a = relay_ask(relay, &q, P, D);
    until_tokens(a, 20);
    copy(a, D, D2);
    until_copied(D, 19);
    copy(a, D, D2); /* under another number: what is there is not sent again */
    until_copied(D, 20);
    relay_cancel(relay, a, D);
    go_on(a, &q, D2);
    until_tokens(a, a->n + 20);
    ck_assert_uint_ge(a->cached_tokens, 19 * 16);
    copy(a, D2, D);
    until_copied(D2, 22);
    die(D2);
    go_on(a, &q, D);
    UNTIL(relay, relay_all_finished, NULL);
    oracle_check(&oracle, &q, a);
    UNTIL(relay, relay_all_free, NULL);
    stop();
}
END_TEST

/* A decode worker computes the end of a prompt, or a short one, and leaves others alone. */
START_TEST(nothing_is_held)
{
    struct question little = {.prompt = prompt, .n_prompt = 100, .max_tokens = 40},
                    much = {.prompt = prompt + 1, .n_prompt = 600, .max_tokens = 40},
                    one = {.prompt = prompt + 2, .n_prompt = 33, .max_tokens = 1};
    start("", "kv_blocks=200");
    struct answer *a = relay_ask(relay, &little, D, D), *b = relay_ask(relay, &much, D, D),
                  *c = relay_ask(relay, &one, D, D), *elsewhere = relay_ask(relay, &little, D, D2);
    UNTIL(relay, is_lost, b);
    ck_assert_uint_eq(b->lost, PROTO_REASON_FULL);
    UNTIL(relay, is_lost, elsewhere);
    ck_assert(!b->parked && !elsewhere->parked);
    b->lost = 0;
    b->attempt++;
    relay_submit(relay, b, &much, P, D);
    UNTIL(relay, relay_all_finished, NULL);
    oracle_check(&oracle, &little, a);
    oracle_check(&oracle, &much, b);
    oracle_check(&oracle, &one, c);
    UNTIL(relay, relay_all_free, NULL);
    stop();
}
END_TEST

/* 0: KV is damaged, and sent again; 1: HANDOFF vanishes, and the lease ends it; 2: no room; 3: it
 * dies; 4: it drains. The sequence notices nothing. */
START_TEST(copy_fails)
{
    static const char *const faults[] = {SLOWLY ",d1/kv.sent@1=corrupt",
                                         "d1/engine.step@1+1=delay:6,d1/HANDOFF.sent@1=drop",
                                         SLOWLY, SLOWLY ",d2/kv.received@3=kill", SLOWLY};
    struct question q = {.prompt = prompt, .n_prompt = 300, .max_tokens = 500, .keep_going = true};
    start_with(faults[_i], _i == 2 ? "kv_blocks=20" : "kv_blocks=200",
               _i == 1 ? "lease_ms=1000" : "lease_ms=5000");
    struct answer *a = relay_ask(relay, &q, P, D);
    until_tokens(a, 20);
    if (_i == 4)
        relay_send(D2, &(struct proto_msg){.type = PROTO_DRAIN});
    copy(a, D, D2);
    if (_i == 0)
        until_copied(D, 20);
    else
        UNTIL(relay, is_not_copied, a);
    if (_i == 3) {
        ck_assert_int_eq(relay_reap(D2), -SIGKILL);
        relay_disconnect(D2);
    }
    UNTIL(relay, relay_all_finished, NULL);
    oracle_check(&oracle, &q, a);
    UNTIL(relay, relay_all_free, NULL);
    stop();
}
END_TEST

/* Who holds a copy needs the room: the copy goes, nothing else does. */
START_TEST(copy_gives_way)
{
    struct question q = {.prompt = prompt, .n_prompt = 300, .max_tokens = 400, .keep_going = true},
                    other = {.prompt = prompt + 50,
                             .n_prompt = 560,
                             .max_tokens = 60,
                             .keep_going = true};
    start(SLOWLY, "kv_blocks=45");
    struct answer *a = relay_ask(relay, &q, P, D);
    until_tokens(a, 20);
    copy(a, D, D2);
    until_copied(D, 20);
    struct answer *b = relay_ask(relay, &other, P, D2); /* 39 blocks of 45 */
    until_tokens(b, 5);
    die(D);
    go_on(a, &q, D2);
    UNTIL(relay, is_lost, a);
    ck_assert_uint_eq(a->lost, PROTO_REASON_FULL);
    a->lost = 0;
    a->attempt = ++a->last_attempt;
    relay_submit(relay, a, &q, P, D2);
    UNTIL(relay, relay_all_finished, NULL);
    oracle_check(&oracle, &q, a);
    oracle_check(&oracle, &other, b);
    UNTIL(relay, relay_all_free, NULL);
    stop();
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("worker/replica");
    TCase *c = tcase_create("copy_fails");
    ADD(goes_on_from_its_copy);
    ADD(copied_twice);
    ADD(nothing_is_held);
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, copy_fails, 0, 5);
    suite_add_tcase(s, c);
    ADD(copy_gives_way);
    return s;
}
