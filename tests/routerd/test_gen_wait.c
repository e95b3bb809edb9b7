/* The router's half of R7 and R10 as a pure machine: waiting, deadlines, and many retries at once
 * (which must not become a storm). */
#include "tests/routerd/gen_rig.h"

/* R10 and R7: waiting. */

START_TEST(wait_for_a_worker)
{
    view[_i ? 2 : 0].usable = view[_i ? 3 : 1].usable = false;
    place();
    DONE("");
    ck_assert_uint_eq(gen_wake_ms(&g), now + limits.worker_wait_ms);
    now += limits.worker_wait_ms - 1;
    place();
    DONE("");
    now++;
    place();
    DONE("failed STATUS_UNAVAILABLE");
    ck_assert_str_eq(t.why,
                     _i ? "No decode worker is available." : "No prefill worker is available.");
}
END_TEST

START_TEST(wait_for_a_busy_worker)
{
    view[0].credits = view[1].credits = 0;
    now += limits.queue_timeout_ms - 1;
    place();
    DONE("");
    now++;
    place();
    DONE("failed STATUS_FULL");
}
END_TEST

/* Another path of a prompt goes where the first one was, also when that has ended; it counts as the
 * little that is left to compute, and waits as long as the request may. */
START_TEST(wait_beside_another_path)
{
    struct gen path;
    view[1].queued_tokens = view[3].running = 1;
    place();
    DONE("prefill.0 1>11");
    gen_cancel(&g, turn());
    view[0].queued_tokens = view[2].running = 50;
    gen_init(&path, &limits, 20, &g.job, now);
    gen_follow(&path, &g);
    view[0].credits = view[1].credits = 0;
    now += limits.queue_timeout_ms;
    gen_place(&path, view, 4, NULL, turn());
    ck_assert_str_eq(done(), "");
    view[0].credits = view[1].credits = 1;
    gen_place(&path, view, 4, NULL, turn());
    ck_assert_str_eq(done(), "prefill.0 1>11");
    ck_assert_uint_eq(gen_prompt_left(&path), 16);
    ck_assert_uint_eq(view[0].queued_tokens, 50 + 16);
    gen_fini(&path);
}
END_TEST

START_TEST(wait_credits_are_counted)
{
    struct gen more[3];
    view[0].credits = view[1].credits = 1;
    for (int i = 0; i < 3; i++) {
        gen_init(&more[i], &limits, 20 + (uint64_t)i, &g.job, now);
        gen_place(&more[i], view, 4, NULL, turn());
        ck_assert_str_eq(done(), i == 0 ? "prefill.0 1>11" : i == 1 ? "prefill.0 2>12" : "");
        ck_assert_uint_eq(gen_prompt_left(&more[i]), i < 2 ? 40 : 0);
    }
    for (int i = 0; i < 3; i++)
        gen_fini(&more[i]);
}
END_TEST

START_TEST(wait_too_long_for_any)
{
    for (int i = 0; i < 4; i++)
        view[i].context = 39;
    place();
    DONE("failed STATUS_RANGE");
    setup();
    decoding(20);
    for (int i = 0; i < 4; i++)
        view[i].context = 50;
    worker_lost(D1, GEN_LOSS_DEAD);
    place();
    DONE("finish 2"); /* as long as it can be */
}
END_TEST

/* Whatever it waits for, the request's deadline ends it, and the workers are told. */
START_TEST(wait_deadline)
{
    if (_i > 0)
        place();
    if (_i == 2)
        lost(P1, 0, PROTO_REASON_PEER_LOST, true);
    if (_i == 3)
        token(D1, 0, 0, 0);
    ck_assert_uint_le(gen_wake_ms(&g), now + limits.request_timeout_ms);
    tick(limits.request_timeout_ms);
    static const char *const ends[] = {
        "failed STATUS_TIMEOUT", "cancel.0 1, cancel.0 11, failed STATUS_TIMEOUT",
        "cancel.0 1, failed STATUS_TIMEOUT", "cancel.0 1, cancel.0 11, failed STATUS_TIMEOUT"};
    DONE(ends[_i]);
    tick(1);
    DONE("");
}
END_TEST

START_TEST(wait_canceled)
{
    if (_i > 0)
        place();
    gen_cancel(&g, turn());
    ck_assert_str_eq(done(), _i ? "cancel.0 1, cancel.0 11" : "");
    token(D1, 0, 0, 0);
    lost(P1, 0, PROTO_REASON_PEER_LOST, true);
    DONE("cancel.0 1");
    worker_lost(D1, GEN_LOSS_DEAD);
    gen_cancel(&g, turn());
    DONE("");
}
END_TEST

START_TEST(wait_unsent)
{
    place();
    gen_unsent(&g, _i ? STATUS_LIMIT : STATUS_FULL, turn());
    ck_assert_str_eq(done(), _i ? "cancel.0 1, cancel.0 11, failed STATUS_LIMIT"
                                : "cancel.0 1, cancel.0 11");
}
END_TEST

/* Faults 58 and 59: many retries at once. */

START_TEST(storm_backoff_grows_and_is_bounded)
{
    uint64_t last = 0;
    for (uint32_t a = 0; a < 12; a++) {
        rnd = a % 2 ? UINT64_MAX : 0;
        now += 5000;
        gen_budget_init(&budget, now);
        place();
        IS(GEN_PREFILL, a);
        lost(P1, a, PROTO_REASON_FULL, false);
        lost(P2, a, PROTO_REASON_FULL, false);
        IS(GEN_WAITING, a + 1);
        uint64_t wait = g.retry_ms - now;
        ck_assert_uint_ge(wait, last / 3);
        ck_assert(wait >= 20 && wait <= 1000);
        last = wait;
        place();
        DONE(""); /* not before its time */
    }
    ck_assert_uint_ge(last, 500);
    rnd = 0;
    now += 5000;
    place();
    for (uint32_t i = 0; i < 20; i++) /* progress: the next one is quick again */
        token(g.decode, 12, i, 0);
    lost(g.decode, 12, PROTO_REASON_PREEMPTED, false);
    ck_assert_uint_le(g.retry_ms - now, 40);
}
END_TEST

START_TEST(storm_jitter)
{
    uint64_t seen[8];
    for (int i = 0; i < 8; i++) {
        teardown();
        open_job(NULL);
        rnd = (uint64_t)i * 3;
        place();
        lost(g.prefill, 0, PROTO_REASON_FULL, false);
        seen[i] = g.retry_ms;
    }
    int same = 0;
    for (int i = 1; i < 8; i++)
        same += seen[i] == seen[0];
    ck_assert_int_le(same, 1);
}
END_TEST

/* 500 requests that fail at every try: the attempts per second stay within the budget. */
START_TEST(storm_budget)
{
    enum { N = 500 };
    static struct gen many[N];
    uint32_t sent = 0, first = 0;
    for (int i = 0; i < N; i++)
        gen_init(&many[i], &limits, 100 + (uint64_t)i, &g.job, now);
    for (int ms = 0; ms < 20000; ms += 50, now += 50) {
        for (int i = 0; i < N; i++) {
            view[0].credits = view[1].credits = 1000;
            rnd = (uint64_t)rand();
            uint32_t before = many[i].fruitless;
            gen_place(&many[i], view, 4, &budget, turn());
            if (many[i].state != GEN_PREFILL)
                continue;
            if (before > 2)
                sent++;
            else
                first++;
            struct proto_lost l = {.request = {99, 0, many[i].attempt},
                                   .reason = PROTO_REASON_FULL};
            gen_lost(&many[i], many[i].prefill, "w", &l, turn());
        }
    }
    ck_assert_uint_eq(first, 3 * N);
    ck_assert_uint_le(sent, GEN_BUDGET_MAX + 20 * GEN_BUDGET_PER_S + 1);
    ck_assert_uint_ge(sent, 19 * GEN_BUDGET_PER_S); /* and it is used */
    for (int i = 0; i < N; i++) {
        ck_assert_int_eq(many[i].state, GEN_WAITING); /* none was given up */
        gen_fini(&many[i]);
    }
}
END_TEST

START_TEST(storm_budget_refills)
{
    for (int i = 0; i < GEN_BUDGET_MAX; i++)
        ck_assert(gen_budget_take(&budget, now));
    ck_assert(!gen_budget_take(&budget, now));
    now += 1000;
    for (int i = 0; i < GEN_BUDGET_PER_S; i++)
        ck_assert(gen_budget_take(&budget, now));
    ck_assert(!gen_budget_take(&budget, now - 500)); /* a clock that goes back gives nothing */
    now += UINT32_MAX;
    for (int i = 0; i < GEN_BUDGET_MAX; i++)
        ck_assert(gen_budget_take(&budget, now));
    ck_assert(!gen_budget_take(&budget, now));
}
END_TEST

/* Numbers from workers, whatever they are. */
START_TEST(odd_loads)
{
    view[2].kv_free = UINT32_MAX;
    view[2].running = UINT32_MAX;
    view[0].queued_tokens = UINT64_MAX;
    view[3].kv_block_size = 0;
    place();
    DONE("prefill.0 2>11"); /* D2 can hold nothing: it is not taken, however idle */
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("gen_wait");
    TCase *c = tcase_create("gen_wait");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_loop_test(c, wait_for_a_worker, 0, 2);
    tcase_add_test(c, wait_for_a_busy_worker);
    tcase_add_test(c, wait_beside_another_path);
    tcase_add_test(c, wait_credits_are_counted);
    tcase_add_test(c, wait_too_long_for_any);
    tcase_add_loop_test(c, wait_deadline, 0, 4);
    tcase_add_loop_test(c, wait_canceled, 0, 2);
    tcase_add_loop_test(c, wait_unsent, 0, 2);
    tcase_add_test(c, storm_backoff_grows_and_is_bounded);
    tcase_add_test(c, storm_jitter);
    tcase_add_test(c, storm_budget);
    tcase_add_test(c, storm_budget_refills);
    tcase_add_test(c, odd_loads);
    suite_add_tcase(s, c);
    return s;
}
