/* outbox: tokens are kept until acknowledged, and sent again from where the router stands. */
#include "common/worker/outbox.h"

#include "tests/harness.h"

static void push(struct stream *s, uint32_t position, uint32_t n_top)
{
    struct proto_top top[3] = {{1, -0.5f}, {2, -1}, {3, -2}};
    struct proto_token t = {
        .position = position, .token = (int32_t)position + 100, .top = top, .n_top = n_top};
    ck_assert_ok(stream_push(s, &t));
}

static void ack(struct outbox *o, uint64_t counter, uint32_t position)
{
    struct proto_seq_pos p = {.counter = counter, .position = position};
    outbox_ack(o, &p);
}

START_TEST(collect_once)
{
    struct outbox o;
    struct proto_token list[8];
    outbox_init(&o);
    struct stream *a = stream_open(&o, 1, 0, 0), *b = stream_open(&o, 2, 3, 0);
    push(a, 0, 0);
    push(a, 1, 3);
    push(b, 7, 0);
    ck_assert_uint_eq(o.unsent, 3);
    ck_assert_uint_eq(outbox_collect(&o, list, 2), 2);
    ck_assert_uint_eq(outbox_collect(&o, list + 2, 6), 1);
    ck_assert_uint_eq(outbox_collect(&o, list, 0), 0);
    ck_assert(list[1].position == 1 && list[1].n_top == 3 && list[1].top[2].id == 3);
    ck_assert(list[2].counter == 2 && list[2].attempt == 3 && list[2].token == 107);
    ck_assert_uint_eq(o.unsent, 0);
    stream_drop(a);
    stream_drop(b);
    outbox_fini(&o);
}
END_TEST

START_TEST(ack_and_rewind)
{
    struct outbox o;
    struct proto_token list[8];
    outbox_init(&o);
    struct stream *s = stream_open(&o, 1, 0, 0);
    for (uint32_t i = 4; i < 9; i++)
        push(s, i, i % 2);
    ck_assert_uint_eq(outbox_collect(&o, list, 3), 3);
    ack(&o, 1, 6); /* 4 and 5 have arrived */
    ack(&o, 1, 5); /* an old ACK changes nothing */
    ack(&o, 9, 9); /* nor does one for somebody else */
    outbox_rewind(&o);
    ck_assert_uint_eq(o.unsent, 3);
    ck_assert_uint_eq(outbox_collect(&o, list, 8), 3);
    ck_assert_uint_eq(list[0].position, 6);
    ck_assert_uint_eq(list[2].position, 8);
    ack(&o, 1, 1000); /* beyond what there is */
    ck_assert_uint_eq(s->n, 0);
    push(s, 9, 0);
    ck_assert_uint_eq(o.unsent, 1);
    ack(&o, 1, 10); /* acknowledged before it was sent: after RESUME this can be */
    ck_assert_uint_eq(o.unsent, 0);
    stream_drop(s);
    outbox_fini(&o);
}
END_TEST

START_TEST(release_keeps_until_acknowledged)
{
    struct outbox o;
    struct proto_token list[8];
    outbox_init(&o);
    struct stream *s = stream_open(&o, 1, 0, 0);
    push(s, 0, 0);
    push(s, 1, 2);
    stream_release(s, 100);
    ck_assert_uint_eq(outbox_collect(&o, list, 8), 2);
    ack(&o, 1, 1);
    ck_assert(!list_empty(&o.streams));
    ack(&o, 1, 2);
    ck_assert(list_empty(&o.streams));
    stream_release(stream_open(&o, 2, 0, 0), 100); /* nothing owed: gone at once */
    ck_assert(list_empty(&o.streams));
    outbox_fini(&o);
}
END_TEST

START_TEST(released_streams_go)
{
    struct outbox o;
    struct proto_token list[8];
    outbox_init(&o);
    struct stream *owned = stream_open(&o, 1, 0, 0);
    push(owned, 0, 0);
    for (uint64_t c = 2; c < 6; c++) {
        struct stream *s = stream_open(&o, c, 0, 0);
        push(s, 0, 1);
        stream_release(s, 100);
    }
    outbox_expire(&o, 5000, 1000); /* not before they were sent */
    ck_assert_uint_eq(outbox_collect(&o, list, 8), 5);
    outbox_cancel(&o, 2, 0);
    struct proto_seq_pos keep[] = {{.counter = 3}, {.counter = 4}};
    outbox_keep_only(&o, keep, 2);
    outbox_rewind(&o);
    ck_assert_uint_eq(outbox_collect(&o, list, 8), 3); /* the owned one, 3 and 4 */
    outbox_expire(&o, 1000, 1000);
    outbox_rewind(&o);
    ck_assert_uint_eq(outbox_collect(&o, list, 8), 3);
    outbox_expire(&o, 1101, 1000);
    ck_assert_ptr_eq(o.streams.next, &owned->node);
    ck_assert_ptr_eq(o.streams.prev, &owned->node);
    outbox_fini(&o); /* the router is gone, the sequence not yet */
    struct proto_token t = {.position = 1};
    ck_assert_int_eq(stream_push(owned, &t), STATUS_CLOSED);
    stream_release(owned, 100);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("worker/outbox");
    TCase *t = tcase_create("outbox");
    tcase_add_test(t, collect_once);
    tcase_add_test(t, ack_and_rewind);
    tcase_add_test(t, release_keeps_until_acknowledged);
    tcase_add_test(t, released_streams_go);
    suite_add_tcase(s, t);
    return s;
}
