/* Sequences that the router moves, because a worker drains or somebody asks. */
#include "tests/routerd/relay_rig.h"

/* A decode worker that drains gives away what runs there; nothing is sent to a prefill worker. */
static struct fake *source;
static bool drain_it;
static void play_and_drain(struct fake *f, const struct proto_prefill *m)
{
    const struct proto_request *r = &m->job.request;
    source = fake_of(m->decode.instance);
    send(f, r->counter, 0, 0, ids, 1, PROTO_FINISH_NONE);
    send(source, r->counter, 0, 0, ids, 2, PROTO_FINISH_NONE);
    source->draining = drain_it;
}

static void moved(struct fake *f, const struct proto_move *m)
{
    struct fake *to = fake_of(m->decode.instance);
    ck_assert(f == source && to && to->decode && to != source);
    ck_assert(m->old_attempt == 0 && m->request.attempt == 1);
    send(to, m->request.counter, 1, 1, ids + 1, 3, PROTO_FINISH_STOP);
}

START_TEST(relay_move_away_from_who_drains)
{
    on_move = moved;
    drain_it = true;
    go(play_and_drain, 5000);
    ck_assert_str_eq(seen, "10 11 12 13 stop");
    ck_assert_int_eq(source->moves, 1);
    while (source->cancels == 0)
        run(2);
    ck_assert(source->cancels == 1 && source->canceled_attempt == 0);
    ck_assert_int_eq(fakes[0].prefills + fakes[1].prefills, 1);
}
END_TEST

/* The source cannot: the sequence stays. */
static void not_moved(struct fake *f, const struct proto_move *m)
{
    struct proto_msg l = {.type = PROTO_LOST,
                          .lost = {.request = m->request, .reason = PROTO_REASON_FULL}};
    (void)!link_send(f->link, &l);
    send(f, m->request.counter, m->old_attempt, 2, ids + 2, 2, PROTO_FINISH_STOP);
}

/* As a rebalancer would. */
START_TEST(relay_move_by_hand)
{
    on_move = not_moved;
    drain_it = false;
    go(play_and_drain, 100);
    ck_assert_str_eq(seen, "10 11 ");
    uint64_t other = source == &fakes[2] ? fakes[3].hello.instance : fakes[2].hello.instance;
    ck_assert_int_eq(relay_move(gen, source->hello.instance), STATUS_INVALID);
    ck_assert_int_eq(relay_move(gen, fakes[0].hello.instance), STATUS_INVALID);
    ck_assert_int_eq(relay_move(gen, 12345), STATUS_INVALID);
    ck_assert_ok(relay_move(gen, other));
    ck_assert_int_eq(relay_move(gen, other), STATUS_INVALID); /* it is on the way */
    run(5000);
    ck_assert_str_eq(seen, "10 11 12 13 stop");
    ck_assert_int_eq(source->moves, 1);
}
END_TEST

/* A long answer gets a replica; when its worker dies it goes on there, and nowhere else. */
static struct fake *copy_at;
static void play_long(struct fake *f, const struct proto_prefill *m)
{
    const struct proto_request *r = &m->job.request;
    if (m->job.emitted.n > 0) {
        ck_assert(f == copy_at && m->decode.instance == f->hello.instance);
        ck_assert_uint_eq(m->job.emitted.n, 40);
        send(f, r->counter, r->attempt, 40, ids, 2, PROTO_FINISH_STOP);
        return;
    }
    source = fake_of(m->decode.instance);
    send(f, r->counter, 0, 0, ids, 1, PROTO_FINISH_NONE);
    for (uint32_t i = 0; i < 5; i++)
        send(source, r->counter, 0, 8 * i, ids, 8, PROTO_FINISH_NONE);
}

static void copied(struct fake *f, const struct proto_move *m)
{
    copy_at = fake_of(m->decode.instance);
    ck_assert(f == source && m->copy && copy_at != source && copy_at->decode);
    ck_assert(m->old_attempt == 0 && m->request.attempt == 1);
    loop_stop(loop);
}

START_TEST(relay_move_to_a_replica)
{
    on_move = copied;
    relay_set_replicas(relay, 1);
    go(play_long, 5000);
    ck_assert_int_eq(source->moves, 1);
    link_listener_close(source->listener);
    source->listener = NULL;
    link_close(source->link);
    source->link = NULL;
    run(5000);
    ck_assert_int_eq(failed_with, 0);
    ck_assert_str_eq(seen + strlen(seen) - 10, "10 11 stop");
    ck_assert(copy_at->prefills == 1 && fakes[0].prefills + fakes[1].prefills == 1);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("relay_move");
    TCase *t = tcase_create("relay_move");
    tcase_set_timeout(t, 30);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, relay_move_away_from_who_drains);
    tcase_add_test(t, relay_move_by_hand);
    tcase_add_test(t, relay_move_to_a_replica);
    suite_add_tcase(s, t);
    return s;
}
