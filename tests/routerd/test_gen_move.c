/* A sequence on the move from one decode worker to another (R3, R4): two attempts are alive, one of
 * them counts, and whatever is heard first, every token comes once. */
#include "tests/routerd/gen_rig.h"

static void move_to(uint64_t to)
{
    ck_assert(gen_can_move(&g, now));
    gen_move(&g, to, turn());
}

/* Five tokens of D1, and on the way to D2 as attempt 1. */
static void moving(void)
{
    decoding(5);
    move_to(D2);
    DONE("move.0-1 11>12");
    IS(GEN_DECODE, 0);
    ck_assert(!gen_can_move(&g, now)); /* one at a time */
}

START_TEST(move_old_attempt_counts_until_the_new_one_speaks)
{
    moving();
    token(D1, 0, 5, 0);
    DONE("105@5");
    token(D2, 0, 6, 0); /* not its attempt */
    DONE("");
    token(D1, 1, 6, 0); /* not its attempt either */
    DONE("");
    token(D2, 1, 4, 0); /* it begins with what the router may not have */
    DONE("cancel.0 11");
    IS(GEN_DECODE, 1);
    token(D2, 1, 5, 0);
    DONE("");
    token(D2, 1, 6, 0);
    DONE("106@6");
    token(D1, 0, 6, 0); /* what D1 still says is history */
    DONE("");
    ck_assert(!t.diverged);
    ck_assert_uint_eq(g.moves, 1);
    ck_assert_uint_eq(g.retries, 0);
    token(D2, 1, 7, PROTO_FINISH_STOP);
    DONE("107@7, finish 1");
}
END_TEST

START_TEST(move_tokens_that_went_down_with_the_old_link)
{
    moving();
    token(D2, 1, 5, 0); /* D1 drew it last; the router never saw it from there */
    DONE("cancel.0 11, 105@5");
    token(D2, 1, 6, 0);
    DONE("106@6");
}
END_TEST

START_TEST(move_ends_with_its_first_token)
{
    moving();
    token(D2, 1, 5, PROTO_FINISH_LENGTH);
    DONE("cancel.0 11, 105@5, finish 2");
}
END_TEST

/* 0: D1 says that it comes to nothing; 1: D2 does; 2: D2 dies; 3: D2 falls silent. */
START_TEST(move_comes_to_nothing)
{
    moving();
    if (_i == 0)
        lost(D1, 1, PROTO_REASON_FULL, false);
    else if (_i == 1)
        lost(D2, 1, PROTO_REASON_PREEMPTED, false);
    else
        worker_lost(D2, _i == 2 ? GEN_LOSS_DEAD : GEN_LOSS_SUSPECT);
    DONE("cancel.1 11, cancel.1 12");
    IS(GEN_DECODE, 0);
    ck_assert_uint_eq(g.moves_failed, 1);
    token(D2, 1, 5, 0); /* too late: from here on it would be a second continuation */
    DONE("");
    token(D1, 0, 5, 0);
    DONE("105@5");
    lost(D1, 1, PROTO_REASON_UNKNOWN, false); /* said twice */
    DONE("");
    ck_assert(!gen_can_move(&g, now)); /* not at once again */
    now += 1000;
    move_to(D2);
    DONE("move.0-2 11>12"); /* a number is never used twice */
    token(D2, 2, 5, 0);
    DONE("cancel.0 11");
    IS(GEN_DECODE, 2);
}
END_TEST

START_TEST(move_source_dies)
{
    moving();
    worker_lost(D1, GEN_LOSS_DEAD);
    DONE("cancel.1 12, cancel.0 1, cancel.0 11");
    IS(GEN_WAITING, 2);
    token(D2, 1, 5, 0);
    DONE("");
    now += 100;
    place();
    DONE("prefill.2 1>12");
}
END_TEST

START_TEST(move_source_dies_after_it)
{
    moving();
    token(D2, 1, 4, 0);
    worker_lost(D1, GEN_LOSS_DEAD);
    DONE("");
    worker_lost(P1, GEN_LOSS_DEAD);
    DONE("");
    token(D2, 1, 5, 0);
    DONE("105@5");
}
END_TEST

START_TEST(move_source_loses_the_sequence)
{
    moving();
    lost(D1, 0, PROTO_REASON_PREEMPTED, false);
    DONE("cancel.1 12, cancel.0 1, cancel.0 11");
    IS(GEN_WAITING, 2);
}
END_TEST

START_TEST(move_overtaken_by_the_end)
{
    moving();
    token(D1, 0, 5, PROTO_FINISH_STOP);
    DONE("105@5, cancel.1 12, finish 1");
    token(D2, 1, 5, 0);
    DONE("");
}
END_TEST

START_TEST(move_canceled)
{
    moving();
    gen_cancel(&g, turn());
    DONE("cancel.1 12, cancel.0 1, cancel.0 11");
    IS(GEN_DONE, 0);
}
END_TEST

START_TEST(move_not_sent)
{
    moving();
    gen_unsent(&g, STATUS_CLOSED, turn());
    DONE("cancel.1 11, cancel.1 12");
    IS(GEN_DECODE, 0);
    token(D1, 0, 5, 0);
    DONE("105@5");
}
END_TEST

START_TEST(move_only_what_decodes)
{
    ck_assert(!gen_can_move(&g, now));
    place();
    ck_assert(!gen_can_move(&g, now));
    token(P1, 0, 0, 0);
    ck_assert(!gen_can_move(&g, now));
    token(D1, 0, 0, 0);
    ck_assert(gen_can_move(&g, now));
}
END_TEST

/* Both attempts are asked for, of those who know them. */
START_TEST(move_resumes)
{
    struct proto_seq_pos p[GEN_RESUME_MAX];
    moving();
    ck_assert_uint_eq(gen_resume(&g, P1, p), 0);
    ck_assert_uint_eq(gen_resume(&g, D1, p), 2);
    ck_assert(p[0].attempt == 0 && p[1].attempt == 1 && p[0].position == 5);
    ck_assert_uint_eq(gen_resume(&g, D2, p), 1);
    ck_assert(p[0].attempt == 1 && p[0].counter == 7);
    token(D2, 1, 5, 0);
    ck_assert_uint_eq(gen_resume(&g, D1, p), 0);
    ck_assert_uint_eq(gen_resume(&g, D2, p), 1);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("gen_move");
    TCase *c = tcase_create("gen_move");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, move_old_attempt_counts_until_the_new_one_speaks);
    tcase_add_test(c, move_tokens_that_went_down_with_the_old_link);
    tcase_add_test(c, move_ends_with_its_first_token);
    tcase_add_loop_test(c, move_comes_to_nothing, 0, 4);
    tcase_add_test(c, move_source_dies);
    tcase_add_test(c, move_source_dies_after_it);
    tcase_add_test(c, move_source_loses_the_sequence);
    tcase_add_test(c, move_overtaken_by_the_end);
    tcase_add_test(c, move_canceled);
    tcase_add_test(c, move_not_sent);
    tcase_add_test(c, move_only_what_decodes);
    tcase_add_test(c, move_resumes);
    suite_add_tcase(s, c);
    return s;
}
