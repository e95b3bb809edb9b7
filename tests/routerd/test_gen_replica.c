/* A sequence with a replica: the decode worker keeps a copy elsewhere, and when it is lost the next
 * attempt goes to that copy, with one worker in both roles. */
#include "tests/routerd/gen_rig.h"

/* Forty tokens of D1, and a copy on D2 under number 1. */
static void copying(void)
{
    decoding(40);
    ck_assert(gen_can_copy(&g, now));
    gen_copy(&g, D2, turn());
    DONE("copy.0-1 11>12");
    ck_assert(!gen_can_copy(&g, now)); /* one is enough */
    IS(GEN_DECODE, 0);
}

START_TEST(replica_takes_over)
{
    copying();
    worker_lost(D1, GEN_LOSS_DEAD);
    DONE("cancel.0 1, cancel.0 11");
    IS(GEN_WAITING, 2);
    place();
    DONE("prefill.2 12>12");
    ck_assert_uint_eq(gen_prompt_left(&g), 16); /* the rest is there */
    token(D2, 2, 40, 0);
    DONE("140@40");
    IS(GEN_DECODE, 2);
    ck_assert_uint_eq(g.prefill, 0);
    ck_assert_uint_eq(g.adopted, 1);
    struct proto_seq_pos pos[GEN_RESUME_MAX];
    ck_assert_uint_eq(gen_resume(&g, D2, pos), 1);
    ck_assert(gen_can_copy(&g, now)); /* and it gets a replica again */
    lost(D2, 2, PROTO_REASON_PREEMPTED, false);
    DONE("cancel.2 12"); /* it was not a prefill worker that could be let go */
    IS(GEN_WAITING, 3);
}
END_TEST

/* 0: it says that it has too little; 1: it does not know; 2: it dies as well; 3: it falls silent.
 */
START_TEST(replica_fails)
{
    copying();
    worker_lost(D1, GEN_LOSS_SUSPECT);
    place();
    DONE("prefill.2 12>12");
    if (_i == 0)
        lost(D2, 2, PROTO_REASON_FULL, false);
    else if (_i == 1)
        lost(D2, 2, PROTO_REASON_UNKNOWN, false);
    else
        worker_lost(D2, _i == 2 ? GEN_LOSS_DEAD : GEN_LOSS_SUSPECT);
    DONE("cancel.2 12"); /* once, and nothing is parked */
    IS(GEN_WAITING, 3);
    now += 1000;
    place();
    ck_assert_uint_eq(t.n, 1);
    ck_assert(t.actions[0].worker == P1 || t.actions[0].worker == P2);
}
END_TEST

/* 0: the worker says that there is none; 1: its holder is lost; 2: it could not be asked for. */
START_TEST(replica_is_given_up)
{
    copying();
    if (_i == 0)
        lost(D1, 1, PROTO_REASON_FULL, false);
    else if (_i == 1)
        worker_lost(D2, GEN_LOSS_DEAD);
    else
        gen_unsent(&g, STATUS_CLOSED, turn());
    DONE("");
    IS(GEN_DECODE, 0);
    ck_assert(!gen_can_copy(&g, now));
    now += 5000;
    ck_assert(gen_can_copy(&g, now));
    worker_lost(D1, GEN_LOSS_DEAD);
    place();
    ck_assert(t.actions[t.n - 1].worker == P1 || t.actions[t.n - 1].worker == P2);
}
END_TEST

/* What the number of a copy says about tokens does not count. */
START_TEST(replica_has_no_tokens)
{
    copying();
    token(D2, 1, 40, 0);
    DONE("");
    token(D1, 1, 40, 0);
    DONE("");
    token(D1, 0, 40, 0);
    DONE("140@40");
}
END_TEST

/* A worker that is full, of another class, or that drains, is passed over. */
START_TEST(replica_cannot_take_it)
{
    copying();
    worker_lost(D1, GEN_LOSS_DEAD);
    if (_i == 0)
        view[3].kv_free = 3;
    else if (_i == 1)
        view[3].numerics = 6;
    else
        view[3].usable = false;
    view[2].usable = _i == 2;
    place();
    ck_assert_uint_eq(t.n, 1);
    ck_assert(t.actions[0].worker == P1 || t.actions[0].worker == P2);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("gen_replica");
    TCase *c = tcase_create("gen_replica");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, replica_takes_over);
    tcase_add_loop_test(c, replica_fails, 0, 4);
    tcase_add_loop_test(c, replica_is_given_up, 0, 3);
    tcase_add_test(c, replica_has_no_tokens);
    tcase_add_loop_test(c, replica_cannot_take_it, 0, 3);
    suite_add_tcase(s, c);
    return s;
}
