/* timeline: phases follow each other without gaps, whatever happens to a sequence. */
#include "routerd/timeline.h"

#include "tests/routerd/gen_rig.h"

static struct timeline line;

static void begin_line(void)
{
    setup();
    timeline_begin(&line, &g, now);
}

static const char *name(uint64_t instance)
{
    static const char *const names[] = {
        [0] = "", [P1] = "P1", [P2] = "P2", [D1] = "D1", [D2] = "D2"};
    return names[instance];
}

/* As the relay does, after every event. */
static void look(void)
{
    timeline_step(&line, &g, now, name(g.prefill), name(g.decode), t.why);
    ck_assert(!timeline_due(&line, &g));
}

static void after(uint64_t ms)
{
    now += ms;
}

/* The first token of an attempt: its prefill worker reports how long it waited and computed. */
static void first(uint64_t from, uint32_t attempt, uint32_t position, uint32_t queue, uint32_t work)
{
    struct proto_token tok = {.counter = 7,
                              .attempt = attempt,
                              .position = position,
                              .token = 100 + (int32_t)position,
                              .queue_ms = queue,
                              .prefill_ms = work};
    gen_token(&g, from, &tok, turn());
    look();
}

/* "queue.0 30, prefill.0 20 P1, …": phase, attempt, length and worker; "!" where it was lost. */
static const char *shape(void)
{
    static char text[4096];
    size_t n = 0;
    text[0] = 0;
    for (uint32_t i = 0; i < line.n_spans; i++) {
        const struct timeline_span *s = &line.spans[i];
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s.%u %u%s%s%s", i ? ", " : "",
                              timeline_phase_name(s->phase), s->attempt,
                              (unsigned)(s->to_ms - s->from_ms), *s->worker ? " " : "", s->worker,
                              s->lost ? "!" : "");
        ck_assert_uint_eq(s->from_ms, i ? s[-1].to_ms : g.created_ms);
    }
    if (line.done)
        ck_assert_uint_eq(line.spans[line.n_spans - 1].to_ms, now);
    return text;
}

static const char *events(void)
{
    static char text[2048];
    size_t n = 0;
    text[0] = 0;
    for (uint32_t i = 0; i < line.n_events; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s.%u", i ? ", " : "",
                              line.events[i].name, line.events[i].attempt);
    return text;
}

static void placed(void)
{
    place();
    look();
}

START_TEST(timeline_of_an_ordinary_one)
{
    after(10); /* waits here */
    placed();
    after(35); /* and there for 15 */
    first(P1, 0, 0, 15, 20);
    after(7);
    token(D1, 0, 1, 0);
    look();
    after(40);
    token(D1, 0, 2, PROTO_FINISH_STOP);
    look();
    ck_assert(line.done);
    ck_assert_str_eq(shape(), "queue.0 25, prefill.0 20 P1, transfer.0 7 D1, decode.0 40 D1");
    ck_assert_uint_eq(line.spans[0].worker_queue_ms, 15);
    ck_assert_str_eq(events(), "");
    after(5);
    look(); /* nothing is added */
    ck_assert_uint_eq(line.n_spans, 4);
}
END_TEST

START_TEST(timeline_of_one_token)
{
    struct proto_token tok = {
        .counter = 7, .token = 5, .finish = PROTO_FINISH_LENGTH, .prefill_ms = 9};
    placed();
    after(12);
    gen_token(&g, P1, &tok, turn());
    look();
    ck_assert_str_eq(shape(), "queue.0 3, prefill.0 9 P1");
    ck_assert(line.done);
}
END_TEST

/* The decode worker is heard first: nobody has said how long the prefill took. */
START_TEST(timeline_of_a_late_prefill_worker)
{
    after(5);
    placed();
    after(30);
    token(D1, 0, 0, 0);
    look();
    after(1);
    first(P1, 0, 0, 10, 20);
    after(9);
    token(D1, 0, 1, PROTO_FINISH_STOP);
    look();
    ck_assert_str_eq(shape(), "queue.0 5, prefill.0 30 P1, transfer.0 0 D1, decode.0 10 D1");
}
END_TEST

/* A worker that says it computed longer than it had the request is not believed. */
START_TEST(timeline_of_a_liar)
{
    after(5);
    placed();
    after(30);
    first(P1, 0, 0, 0, 4000000000u);
    ck_assert_str_eq(shape(), "queue.0 5, prefill.0 30 P1, transfer.0 0 D1");
}
END_TEST

START_TEST(timeline_of_failovers)
{
    after(10);
    placed();
    after(20);
    worker_lost(P1, GEN_LOSS_SUSPECT); /* during the prefill */
    look();
    after(3);
    placed();
    after(50);
    first(P2, 1, 0, 5, 40);
    after(2);
    token(D1, 1, 1, 0);
    look();
    after(30);
    worker_lost(D1, GEN_LOSS_SUSPECT); /* during the decode */
    look();
    after(4);
    placed();
    ck_assert_uint_eq(g.state, GEN_PREFILL);
    const char *p = name(g.prefill);
    after(25);
    first(g.prefill, 2, 2, 0, 25);
    after(1);
    token(D2, 2, 3, 0);
    look();
    after(6);
    token(D2, 2, 4, PROTO_FINISH_STOP);
    look();
    char want[300];
    snprintf(want, sizeof want,
             "queue.0 10, prefill.0 20 P1!, queue.1 13, prefill.1 40 P2, transfer.1 2 D1, "
             "decode.1 30 D1!, queue.2 4, prefill.2 25 %s, transfer.2 1 D2, decode.2 6 D2",
             p);
    ck_assert_str_eq(shape(), want);
    ck_assert_str_eq(events(), "retry.1, retry.2");
    ck_assert_str_eq(line.events[0].why, "lost");
    ck_assert_uint_eq(line.dropped, 0);
}
END_TEST

/* Only the decode worker is lost: the KV goes to another one, nothing is computed again. */
START_TEST(timeline_of_a_redirect)
{
    placed();
    after(20);
    first(P1, 0, 0, 0, 20);
    after(5);
    worker_lost(D1, GEN_LOSS_SUSPECT);
    look();
    after(1);
    placed();
    DONE("redirect.0-1 1>12");
    after(8);
    token(D2, 1, 1, 0);
    look();
    after(2);
    token(D2, 1, 2, PROTO_FINISH_STOP);
    look();
    ck_assert_str_eq(shape(), "queue.0 0, prefill.0 20 P1, transfer.0 14 D1, decode.1 2 D2");
    ck_assert_str_eq(events(), "parked.0, redirect.1");
}
END_TEST

START_TEST(timeline_of_a_move)
{
    placed();
    after(20);
    first(P1, 0, 0, 0, 20);
    token(D1, 0, 1, 0);
    look();
    after(5);
    gen_move(&g, D2, turn());
    look();
    after(6);
    token(D2, 1, 2, 0);
    look();
    after(7);
    gen_cancel(&g, turn()); /* the client has what it wants */
    look();
    ck_assert_str_eq(shape(),
                     "queue.0 0, prefill.0 20 P1, transfer.0 0 D1, decode.0 11 D1, decode.1 7 D2");
    ck_assert_str_eq(events(), "move.1");
}
END_TEST

START_TEST(timeline_of_one_that_never_began)
{
    after(5);
    gen_cancel(&g, turn());
    look();
    ck_assert_str_eq(shape(), "queue.0 5");
}
END_TEST

/* More attempts than there is room for: the last span goes on to the end, the rest is counted. */
START_TEST(timeline_is_bounded)
{
    for (uint32_t i = 0; i < 100 && g.state != GEN_DONE; i++) {
        after(1000);
        placed();
        after(1);
        lost(g.prefill, g.attempt, PROTO_REASON_FULL, false);
        look();
    }
    after(9);
    gen_cancel(&g, turn());
    look();
    ck_assert_uint_eq(line.n_spans, TIMELINE_SPANS_MAX);
    ck_assert_uint_eq(line.n_events, TIMELINE_EVENTS_MAX);
    ck_assert_uint_gt(line.dropped, 100);
    shape();
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("timeline");
    TCase *c = tcase_create("timeline");
    tcase_add_checked_fixture(c, begin_line, teardown);
    tcase_add_test(c, timeline_of_an_ordinary_one);
    tcase_add_test(c, timeline_of_one_token);
    tcase_add_test(c, timeline_of_a_late_prefill_worker);
    tcase_add_test(c, timeline_of_a_liar);
    tcase_add_test(c, timeline_of_failovers);
    tcase_add_test(c, timeline_of_a_redirect);
    tcase_add_test(c, timeline_of_a_move);
    tcase_add_test(c, timeline_of_one_that_never_began);
    tcase_add_test(c, timeline_is_bounded);
    suite_add_tcase(s, c);
    return s;
}
