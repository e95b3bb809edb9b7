/* The router's half of R1-R4 and R9 as a pure machine: tokens, attempts, REDIRECT, RESUME. */
#include "tests/routerd/gen_rig.h"

/* R3. */

START_TEST(order_either_first)
{
    place();
    if (_i) { /* D repeats the first token; it may come before P's */
        token(D1, 0, 0, 0);
        DONE("100@0");
        token(P1, 0, 0, 0);
    } else {
        token(P1, 0, 0, 0);
        DONE("100@0");
        token(D1, 0, 0, 0);
    }
    DONE("");
    IS(GEN_DECODE, 0);
    token(D1, 0, 1, 0);
    DONE("101@1");
    token(D1, 0, 2, PROTO_FINISH_LENGTH);
    DONE("102@2, finish 2");
    IS(GEN_DONE, 0);
    token(D1, 0, 3, 0);
    DONE("");
}
END_TEST

START_TEST(order_first_is_last)
{
    place();
    token(P1, 0, 0, PROTO_FINISH_STOP);
    DONE("100@0, finish 1");
}
END_TEST

START_TEST(order_end_without_token)
{
    decoding(1);
    struct proto_token end = {.position = 1, .token = -1, .finish = PROTO_FINISH_LENGTH};
    gen_token(&g, D1, &end, turn());
    DONE("finish 2");
}
END_TEST

START_TEST(order_gap)
{
    place();
    token(D1, 0, 2, PROTO_FINISH_LENGTH);
    token(D1, 0, 1, 0);
    token(D1, 0, 1, 0);
    DONE("");
    ck_assert_uint_eq(g.n_gap, 2);
    ck_assert(!gen_next(&g, turn()));
    token(P1, 0, 0, 0);
    DONE("100@0");
    ck_assert(gen_next(&g, turn()));
    DONE("101@1");
    ck_assert(gen_next(&g, turn()));
    DONE("102@2, finish 2");
    ck_assert(!gen_next(&g, turn()));
}
END_TEST

/* A gap does not stay open, and what is kept for it is bounded. */
START_TEST(order_gap_is_bounded)
{
    place();
    token(P1, 0, 0, 0);
    token(D1, 0, 2, 0);
    ck_assert_uint_eq(gen_wake_ms(&g), now + limits.stall_ms);
    if (_i) {
        tick(limits.stall_ms - 1);
        DONE("");
        tick(1);
    } else {
        for (uint32_t i = 3; i < 2 + GEN_GAP_MAX; i++)
            token(D1, 0, i, 0);
        DONE("");
        token(D1, 0, 2 + GEN_GAP_MAX, 0);
    }
    DONE("cancel.0 1, cancel.0 11");
    IS(GEN_WAITING, 1);
    ck_assert_uint_eq(g.n_gap, 0);
    ck_assert_uint_eq(g.n_emitted, 1);
}
END_TEST

START_TEST(order_gap_keeps_alternatives)
{
    struct proto_top top[2] = {{3, -1}, {4, -2}};
    struct proto_token tok = {.position = 1, .token = 101, .top = top, .n_top = 2};
    place();
    gen_token(&g, D1, &tok, turn());
    top[0].id = 99;
    token(P1, 0, 0, 0);
    ck_assert(gen_next(&g, turn()));
    DONE("101@1");
    ck_assert(t.actions[0].token.n_top == 2 && t.actions[0].token.top[0].id == 3);
}
END_TEST

START_TEST(order_divergence)
{
    decoding(2);
    struct proto_token other = {.position = 1, .token = 55};
    gen_token(&g, D1, &other, turn());
    DONE("");
    ck_assert(t.diverged && g.emitted[1] == 101);
    token(D1, 0, 1, 0);
    ck_assert(!t.diverged);
    token(D1, 0, 1, PROTO_FINISH_STOP); /* the same token, now as the last */
    DONE("finish 1");
}
END_TEST

START_TEST(order_acks)
{
    struct proto_seq_pos p;
    struct proto_token tok = {.counter = 7};
    decoding(GEN_ACK_EVERY - 1);
    ck_assert(!gen_ack(&g, &tok, &p));
    token(D1, 0, GEN_ACK_EVERY - 1, 0);
    ck_assert(gen_ack(&g, &tok, &p));
    ck_assert(p.counter == 7 && p.attempt == 0 && p.position == GEN_ACK_EVERY);
    ck_assert(!gen_ack(&g, &tok, &p));
    tok.attempt = 3; /* nothing of another attempt is wanted */
    tok.position = 9;
    ck_assert(gen_ack(&g, &tok, &p) && p.attempt == 3 && p.position == 10);
    token(D1, 0, GEN_ACK_EVERY, PROTO_FINISH_STOP);
    tok = (struct proto_token){.counter = 7, .position = GEN_ACK_EVERY};
    ck_assert(gen_ack(&g, &tok, &p) && p.position == GEN_ACK_EVERY + 1);
}
END_TEST

/* Scores come before the first token, whoever is faster, and are asked for until they came. */
START_TEST(order_scores)
{
    struct proto_job job = {.score_prompt = true};
    open_job(&job);
    place();
    token(D1, 0, 0, 0);
    token(D1, 0, 1, PROTO_FINISH_LENGTH);
    DONE("");
    IS(GEN_DECODE, 0);
    if (_i == 0) {
        gen_scores(&g, D1, 0, turn());
        DONE("");
        gen_scores(&g, P1, 0, turn());
        DONE("scores");
        gen_scores(&g, P1, 0, turn());
        DONE("");
        ck_assert(gen_next(&g, turn()));
        DONE("100@0");
        ck_assert(gen_next(&g, turn()));
        DONE("101@1, finish 2");
        return;
    }
    worker_lost(P1, GEN_LOSS_SUSPECT); /* without them it needs the prefill worker */
    DONE("cancel.0 1, cancel.0 11");
    place();
    DONE("prefill.1 2>11");
    ck_assert(!g.scored);
}
END_TEST

/* R1, R4, R9: attempts. */

START_TEST(attempt_decode_worker_dies)
{
    decoding(5);
    worker_lost(D1, _i ? GEN_LOSS_SUSPECT : GEN_LOSS_DEAD);
    DONE("cancel.0 1, cancel.0 11");
    IS(GEN_WAITING, 1);
    token(D1, 0, 5, 0); /* fenced: it wakes up, or its last frames come late */
    DONE("");
    place();
    DONE("prefill.1 1>12");
    token(D1, 0, 5, 0);
    token(D1, 1, 5, 0); /* not one of this attempt's workers */
    DONE("");
    token(P1, 0, 5, 0); /* the worker is, but its attempt is over */
    DONE("");
    lost(P1, 0, PROTO_REASON_FULL, false);
    DONE("");
    token(P1, 1, 5, 0);
    DONE("105@5");
    token(D2, 1, 5, 0);
    token(D2, 1, 6, PROTO_FINISH_STOP);
    DONE("106@6, finish 1");
    ck_assert_uint_eq(g.retries, 1);
}
END_TEST

START_TEST(attempt_prefill_worker_dies)
{
    place();
    worker_lost(P1, GEN_LOSS_DEAD);
    DONE("cancel.0 1, cancel.0 11");
    place();
    DONE("prefill.1 2>11");
}
END_TEST

START_TEST(attempt_prefill_worker_dies_after_handover)
{
    decoding(2);
    worker_lost(P1, GEN_LOSS_DEAD);
    DONE("");
    IS(GEN_DECODE, 0);
    lost(P1, 0, PROTO_REASON_PEER_LOST, true);
    DONE("cancel.0 1"); /* what it keeps is not wanted */
    token(D1, 0, 2, 0);
    DONE("102@2");
    worker_lost(P2, GEN_LOSS_DEAD); /* not one of ours */
    DONE("");
}
END_TEST

START_TEST(attempt_lost_by_reason)
{
    static const struct {
        enum proto_reason reason;
        const char *done; /* said by P1 */
        bool at_once, away;
    } cases[] = {
        {PROTO_REASON_NO_ROUTER, "cancel.0 1, cancel.0 11", true, true},
        {PROTO_REASON_FULL, "cancel.0 1, cancel.0 11", false, false},
        {PROTO_REASON_PEER_LOST, "cancel.0 1, cancel.0 11", true, true},
        {PROTO_REASON_TIMEOUT, "cancel.0 1, cancel.0 11", false, false},
        {PROTO_REASON_PREEMPTED, "cancel.0 1, cancel.0 11", false, false},
        {PROTO_REASON_INTERNAL, "cancel.0 1, cancel.0 11", false, false},
        {PROTO_REASON_CORRUPT, "cancel.0 1, cancel.0 11", true, true},
        {PROTO_REASON_UNKNOWN, "cancel.0 1, cancel.0 11", true, false},
        {200, "cancel.0 1, cancel.0 11", false, false}, /* a reason of a later version */
        {PROTO_REASON_INVALID, "cancel.0 1, cancel.0 11, failed STATUS_INVALID", false, false},
        {PROTO_REASON_AUTH, "cancel.0 1, cancel.0 11, failed STATUS_MISMATCH", false, false},
        {PROTO_REASON_TOO_LARGE, "cancel.0 1, cancel.0 11, failed STATUS_RANGE", false, false},
    };
    place();
    lost(P1, 0, cases[_i].reason, false);
    DONE(cases[_i].done);
    if (g.state == GEN_DONE)
        return;
    ck_assert_int_eq(g.retry_ms == now, cases[_i].at_once);
    now += 1000;
    place();
    ck_assert_str_eq(done(), cases[_i].away ? "prefill.1 1>12" : "prefill.1 1>11");
}
END_TEST

START_TEST(attempt_draining_prefill_worker)
{
    place();
    lost(P1, 0, PROTO_REASON_DRAINING, false);
    place();
    DONE("prefill.1 2>11");
}
END_TEST

START_TEST(attempt_too_large_after_tokens)
{
    decoding(3);
    lost(D1, 0, PROTO_REASON_TOO_LARGE, false);
    DONE("cancel.0 1, cancel.0 11, finish 2");
}
END_TEST

/* The request that kills its workers. */
START_TEST(attempt_poison)
{
    place();
    worker_lost(P1, GEN_LOSS_DEAD);
    place();
    worker_lost(P2, GEN_LOSS_SUSPECT); /* suspected is not dead */
    IS(GEN_WAITING, 2);
    place();
    ck_assert(gen_under(&g, g.prefill) && !gen_under(&g, g.decode) && !gen_under(&g, 0));
    worker_lost(g.prefill, GEN_LOSS_DEAD_ALONE);
    ck_assert(strstr(done(), "failed STATUS_INTERNAL"));
    IS(GEN_DONE, 2);
}
END_TEST

/* Others were there both times: it is tried once more, and only the next death is its own. */
START_TEST(attempt_poison_or_not)
{
    place();
    worker_lost(P1, GEN_LOSS_DEAD);
    ck_assert(!gen_on_trial(&g));
    place();
    worker_lost(g.prefill, GEN_LOSS_DEAD);
    ck_assert(gen_on_trial(&g));
    IS(GEN_WAITING, 2);
    now += 1000;
    place();
    IS(GEN_PREFILL, 2);
    if (_i == 0) {
        worker_lost(g.prefill, GEN_LOSS_DEAD);
        ck_assert(strstr(done(), "failed STATUS_INTERNAL"));
        return;
    }
    for (uint32_t i = 0; i < 16; i++) {
        ck_assert(gen_on_trial(&g));
        token(g.decode, 2, i, 0);
    }
    ck_assert(!gen_on_trial(&g)); /* innocent */
    worker_lost(g.decode, GEN_LOSS_DEAD_ALONE);
    IS(GEN_WAITING, 3);
    ck_assert(!gen_on_trial(&g));
}
END_TEST

START_TEST(attempt_deaths_with_progress)
{
    uint32_t n = 0;
    for (uint32_t a = 0; a < 6; a++) { /* a long answer outlives many workers */
        now += 1000;
        place();
        IS(GEN_PREFILL, a);
        for (uint32_t i = 0; i < 20; i++)
            token(g.decode, a, n++, 0);
        worker_lost(g.decode, GEN_LOSS_DEAD);
        IS(GEN_WAITING, a + 1);
    }
    now += 1000;
    place(); /* before the prompt is computed a decode worker's death is not the request's doing */
    worker_lost(g.decode, GEN_LOSS_DEAD);
    IS(GEN_PARKED, 6);
}
END_TEST

/* R4: REDIRECT. */

START_TEST(redirect_parked)
{
    place();
    token(P1, 0, 0, 0);
    lost(P1, 0, PROTO_REASON_PEER_LOST, true);
    DONE("cancel.0 11");
    IS(GEN_PARKED, 0);
    lost(P1, 0, PROTO_REASON_PEER_LOST, true); /* said again after RESUME */
    DONE("");
    ck_assert_uint_eq(gen_wake_ms(&g), now + limits.park_ms);
    place();
    DONE("redirect.0-1 1>12");
    IS(GEN_PREFILL, 1);
    token(P1, 1, 0, 0); /* the new attempt repeats the token */
    DONE("");
    token(D2, 1, 0, 0);
    token(D2, 1, 1, 0);
    DONE("101@1");
}
END_TEST

/* The router notices the death first: the prefill worker has the KV and is asked at once. */
START_TEST(redirect_before_lost)
{
    place();
    worker_lost(D1, GEN_LOSS_DEAD);
    DONE("cancel.0 11");
    place();
    DONE("redirect.0-1 1>12");
    lost(P1, 0, PROTO_REASON_PEER_LOST, true); /* crossed */
    DONE("cancel.0 1");
    IS(GEN_PREFILL, 1);
    lost(P1, 1, PROTO_REASON_UNKNOWN, false); /* it had handed over */
    DONE("cancel.1 1, cancel.1 12");
    place();
    DONE("prefill.2 1>12");
}
END_TEST

START_TEST(redirect_only_one_that_fits)
{
    place();
    token(P1, 0, 0, 0);
    view[3].group = 1;
    view[2].alive = view[2].usable = false;
    lost(P1, 0, PROTO_REASON_PEER_LOST, true);
    place();
    DONE("");
    IS(GEN_PARKED, 0);
    view[3].group = 0;
    view[3].context = 30;
    place();
    DONE("");
    view[3].context = 1000;
    view[0].usable = false; /* a draining prefill worker hands over what it has */
    place();
    DONE("redirect.0-1 1>12");
}
END_TEST

START_TEST(redirect_comes_to_nothing)
{
    place();
    token(P1, 0, 0, 0);
    lost(P1, 0, PROTO_REASON_PEER_LOST, true);
    switch (_i) {
    case 0: /* no decode worker in time */
        tick(limits.park_ms - 1);
        DONE("");
        tick(1);
        break;
    case 1: /* its prefill worker dies as well */
        worker_lost(P1, GEN_LOSS_SUSPECT);
        break;
    case 2: /* it says that it has nothing */
        lost(P1, 0, PROTO_REASON_UNKNOWN, false);
        break;
    }
    DONE("cancel.0 1");
    IS(GEN_WAITING, 1);
    now += 1000;
    place();
    ck_assert_str_eq(done(), _i == 1 ? "prefill.1 2>12" : "prefill.1 1>12");
}
END_TEST

START_TEST(redirect_not_while_link_is_down)
{
    place();
    view[0].alive = view[0].usable = false;
    lost(P1, 0, PROTO_REASON_NO_ROUTER, true);
    place();
    DONE("");
    view[0].alive = true;
    place();
    DONE("redirect.0-1 1>12");
}
END_TEST

START_TEST(redirect_with_backoff)
{
    place();
    lost(P1, 0, PROTO_REASON_PREEMPTED, true);
    place();
    DONE("");
    now += 2000;
    place();
    DONE("redirect.0-1 1>11");
}
END_TEST

START_TEST(redirect_stale_parked_is_freed)
{
    decoding(2);
    worker_lost(D1, GEN_LOSS_DEAD);
    lost(P1, 0, PROTO_REASON_PEER_LOST, true);
    DONE("cancel.0 1");
    IS(GEN_WAITING, 1);
}
END_TEST

/* R2: RESUME. */

START_TEST(resume_lists_what_is_needed)
{
    struct proto_seq_pos p;
    ck_assert(!gen_resume(&g, P1, &p)); /* waiting */
    place();
    ck_assert(gen_resume(&g, P1, &p) && p.counter == 7 && p.attempt == 0 && p.position == 0);
    ck_assert(gen_resume(&g, D1, &p) && !gen_resume(&g, D2, &p) && !gen_resume(&g, 0, &p));
    token(P1, 0, 0, 0);
    ck_assert(gen_resume(&g, D1, &p) && p.position == 1);
    token(D1, 0, 1, 0);
    ck_assert(!gen_resume(&g, P1, &p)); /* it has handed over */
    ck_assert(gen_resume(&g, D1, &p) && p.position == 2);
    worker_lost(D1, GEN_LOSS_SUSPECT);
    ck_assert(!gen_resume(&g, D1, &p));
}
END_TEST

START_TEST(resume_parked)
{
    struct proto_seq_pos p;
    place();
    lost(P1, 0, PROTO_REASON_PEER_LOST, true);
    ck_assert(gen_resume(&g, P1, &p) && p.attempt == 0);
    ck_assert(!gen_resume(&g, D1, &p));
}
END_TEST

/* What a worker does not know after its link came back. */
START_TEST(resume_unknown)
{
    place();
    lost(D1, 0, PROTO_REASON_UNKNOWN, false); /* not asked for blocks yet: as it should be */
    DONE("");
    IS(GEN_PREFILL, 0);
    if (_i == 0) { /* PREFILL went down with the link */
        lost(P1, 0, PROTO_REASON_UNKNOWN, false);
        DONE("cancel.0 1, cancel.0 11");
        ck_assert_uint_eq(g.retry_ms, now);
        return;
    }
    token(P1, 0, 0, 0); /* computed: by now D should know it, or it has freed what it had */
    DONE("100@0, cancel.0 11");
    IS(GEN_PARKED, 0);
    place();
    DONE("redirect.0-1 1>11");
    token(P1, 1, 0, 0);
    DONE("");
    if (_i == 1) { /* the same, said later: P is asked whether it still has it */
        lost(D1, 1, PROTO_REASON_UNKNOWN, false);
        DONE("cancel.1 11");
        IS(GEN_PARKED, 1);
        return;
    }
    token(D1, 1, 1, 0);
    lost(P1, 1, PROTO_REASON_UNKNOWN, false); /* it has handed over */
    DONE("");
    lost(D1, 1, PROTO_REASON_UNKNOWN, false); /* it has freed what it had */
    DONE("cancel.1 1, cancel.1 11");
    IS(GEN_WAITING, 2);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("gen");
    TCase *c = tcase_create("gen");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_loop_test(c, order_either_first, 0, 2);
    tcase_add_test(c, order_first_is_last);
    tcase_add_test(c, order_end_without_token);
    tcase_add_test(c, order_gap);
    tcase_add_loop_test(c, order_gap_is_bounded, 0, 2);
    tcase_add_test(c, order_gap_keeps_alternatives);
    tcase_add_test(c, order_divergence);
    tcase_add_test(c, order_acks);
    tcase_add_loop_test(c, order_scores, 0, 2);
    tcase_add_loop_test(c, attempt_decode_worker_dies, 0, 2);
    tcase_add_test(c, attempt_prefill_worker_dies);
    tcase_add_test(c, attempt_prefill_worker_dies_after_handover);
    tcase_add_loop_test(c, attempt_lost_by_reason, 0, 12);
    tcase_add_test(c, attempt_draining_prefill_worker);
    tcase_add_test(c, attempt_too_large_after_tokens);
    tcase_add_test(c, attempt_poison);
    tcase_add_loop_test(c, attempt_poison_or_not, 0, 2);
    tcase_add_test(c, attempt_deaths_with_progress);
    tcase_add_test(c, redirect_parked);
    tcase_add_test(c, redirect_before_lost);
    tcase_add_test(c, redirect_only_one_that_fits);
    tcase_add_loop_test(c, redirect_comes_to_nothing, 0, 3);
    tcase_add_test(c, redirect_not_while_link_is_down);
    tcase_add_test(c, redirect_with_backoff);
    tcase_add_test(c, redirect_stale_parked_is_freed);
    tcase_add_test(c, resume_lists_what_is_needed);
    tcase_add_test(c, resume_parked);
    tcase_add_loop_test(c, resume_unknown, 0, 3);
    suite_add_tcase(s, c);
    return s;
}
