/* otlp: whose request it is, spans as valid JSON whatever is in a name, and what a collector that
 * takes nothing costs. The phases of a real request are tested end to end
 * (tests/e2e/test_traces.py). */
#include "routerd/otlp.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "common/base/metrics.h"
#include "common/base/rng.h"
#include "tests/net/net_test.h"

static struct loop *loop;
static struct otlp *o;
static int listener, server;
static char *got; /* what has come on the connection */
static size_t n_got;
static uint64_t end_ms;
static struct loop_timer *timer;

#define PARENT "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

static void open_otlp(uint32_t percent)
{
    uint16_t port;
    char url[64], err[256];
    log_set_level(LOG_ERROR);
    listener = listen_local(&port);
    snprintf(url, sizeof url, "http://127.0.0.1:%u/v1/traces", port);
    ck_assert_ok(loop_create(&loop));
    ck_assert_ok(otlp_create(loop, &(struct otlp_options){url, "r", percent}, &o, err, sizeof err));
    server = -1;
    got = NULL;
    n_got = 0;
}

static void setup(void)
{
    open_otlp(100);
}

static void teardown(void)
{
    otlp_destroy(o);
    loop_destroy(loop);
    close(listener);
    if (server >= 0)
        close(server);
    free(got);
}

/* The body when it is complete, else NULL. */
static char *body(void)
{
    char *head = got ? strstr(got, "\r\n\r\n") : NULL,
         *length = got ? strstr(got, "Length: ") : NULL;
    if (!head || n_got < (size_t)(head + 4 - got) + strtoul(length + 8, NULL, 10))
        return NULL;
    return head + 4;
}

static void on_tick(void *arg)
{
    struct pollfd p = {.fd = listener, .events = POLLIN};
    if (server < 0 && poll(&p, 1, 0) == 1)
        server = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    for (ssize_t n = 1; server >= 0 && n > 0;) {
        got = realloc(got, n_got + 65537);
        n = read(server, got + n_got, 65536);
        n_got += n > 0 ? (size_t)n : 0;
        got[n_got] = 0;
    }
    if (body() || clock_ms() > end_ms)
        loop_stop(loop);
}

/* Takes one batch; the object, whose spans are `spans`. */
static json_t *batch(json_t **spans)
{
    json_error_t e;
    end_ms = clock_ms() + 10000;
    ck_assert_ok(loop_timer_create(loop, on_tick, NULL, &timer));
    loop_timer_start(timer, 0, 1);
    loop_run(loop);
    loop_timer_free(timer);
    ck_assert_ptr_nonnull(body());
    json_t *j = json_loads(body(), JSON_REJECT_DUPLICATES, &e);
    ck_assert_msg(j != NULL, "%s", e.text);
    json_t *scope = json_array_get(json_object_get(j, "resourceSpans"), 0);
    scope = json_array_get(json_object_get(scope, "scopeSpans"), 0);
    *spans = json_object_get(scope, "spans");
    return j;
}

static void add(const char *text, const struct timeline *t, uint32_t n)
{
    const struct timeline *list[20];
    struct otlp_context c;
    for (uint32_t i = 0; i < n; i++)
        list[i] = t;
    ck_assert(otlp_begin(o, NULL, &c));
    otlp_request(o, &(struct otlp_request){.context = &c,
                                           .name = text,
                                           .operation = "chat",
                                           .model = text,
                                           .id = text,
                                           .response = text,
                                           .from_ms = 5,
                                           .to_ms = 9,
                                           .error = text,
                                           .sequences = list,
                                           .n = n});
}

START_TEST(otlp_context_of_a_client)
{
    struct otlp_context c;
    ck_assert(otlp_begin(o, PARENT, &c));
    ck_assert_str_eq(c.trace, "4bf92f3577b34da6a3ce929d0e0e4736");
    ck_assert_str_eq(c.parent, "00f067aa0ba902b7");
    ck_assert_uint_eq(strlen(c.span), 16);
    ck_assert_str_ne(c.span, c.parent);
    ck_assert(otlp_is_traceparent(c.traceparent));
    ck_assert_ok(strncmp(c.traceparent, PARENT, 36));
    ck_assert_ok(strncmp(c.traceparent + 36, c.span, 16));
    ck_assert(!otlp_begin(o, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-02", &c));
    ck_assert(otlp_begin(o, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-03", &c));
    otlp_set_percent(o, 0); /* of those that bring no decision */
    ck_assert(!otlp_begin(o, NULL, &c));
    ck_assert(otlp_begin(o, PARENT, &c));
    otlp_set_percent(o, 50);
    int n = 0;
    for (int i = 0; i < 2000; i++)
        n += otlp_begin(o, NULL, &c);
    ck_assert_int_gt(n, 800);
    ck_assert_int_lt(n, 1200);
}
END_TEST

START_TEST(otlp_traceparent_forms)
{
    static const char *const good[] = {PARENT,
                                       "cc"
                                       "-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
                                       "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"};
    static const char *const bad[] = {"",
                                      "00",
                                      PARENT "-",
                                      PARENT "0",
                                      "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
                                      "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01x",
                                      "00-4BF92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
                                      "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
                                      "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
                                      "00-4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7-01",
                                      "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        ck_assert_msg(otlp_is_traceparent(good[i]), "%s", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ck_assert_msg(!otlp_is_traceparent(bad[i]), "%s", bad[i]);
}
END_TEST

/* All bytes in every text; and a request of more sequences than are told. */
START_TEST(otlp_is_json_whatever_comes)
{
    struct timeline t = {.n_spans = 1, .n_events = 1};
    char text[64];
    json_t *spans;
    for (uint64_t i = 0; i < 300; i++) {
        for (size_t k = 0; k < sizeof text - 1; k++)
            text[k] = (char)(1 + rng_philox(3, i, k).v[0] % 255);
        text[sizeof text - 1] = 0;
        memcpy(t.spans[0].worker, text, sizeof text);
        memcpy(t.events[0].why, text, sizeof text);
        t.events[0].name = "retry";
        add(text, &t, i % 20);
    }
    json_t *j = batch(&spans);
    size_t want = 0;
    for (size_t i = 0; i < 300; i++)
        want += 1 + (i % 20 < OTLP_SEQUENCES_MAX ? i % 20 : OTLP_SEQUENCES_MAX);
    ck_assert_uint_eq(json_array_size(spans), want);
    json_decref(j);
}
END_TEST

/* The collector takes the connection and nothing more: what waits is bounded, the rest is counted.
 */
START_TEST(otlp_waiting_is_bounded)
{
    struct metric *dropped = metrics_counter("baton_spans_total", "result=\"dropped\"",
                                             "Spans of traces, by what became of them.");
    char text[1025];
    json_t *spans;
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    for (int i = 0; i < 5000; i++)
        add(text, NULL, 0); /* 5 KiB each */
    double lost = metrics_value(dropped);
    ck_assert(lost > 3000 && lost < 5000);
    json_decref(batch(&spans));
    for (int i = 0; i < 5000; i++)
        add(text, NULL, 0);
    double more = metrics_value(dropped) - lost;
    ck_assert_msg(more > 3000 && more < 5000, "%f", more);
}
END_TEST

static void noted(void *arg)
{
    *(bool *)arg = true;
}

static void stopped(void *arg)
{
    *(bool *)arg = true;
    loop_stop(loop);
}

START_TEST(otlp_flush_ends)
{
    bool done = false;
    otlp_flush(o, 50, noted, &done); /* nothing waits */
    ck_assert(done);
    done = false;
    add("x", NULL, 0);
    uint64_t t = clock_ms();
    otlp_flush(o, 50, stopped, &done);
    ck_assert(!done);
    loop_run(loop); /* nobody answers */
    ck_assert(done && clock_ms() - t >= 40);
}
END_TEST

START_TEST(otlp_off_traces_nothing)
{
    struct otlp *off;
    struct otlp_context c;
    char err[256];
    bool done = false;
    ck_assert_ok(otlp_create(loop, &(struct otlp_options){"", "r", 100}, &off, err, sizeof err));
    ck_assert(!otlp_begin(off, PARENT, &c));
    otlp_flush(off, 1000, noted, &done);
    ck_assert(done);
    otlp_destroy(off);
    ck_assert_int_ne(
        otlp_create(loop, &(struct otlp_options){"ftp://x/", "r", 100}, &off, err, sizeof err), 0);
    ck_assert_ptr_nonnull(strstr(err, "otlp_endpoint"));
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("otlp");
    TCase *t = tcase_create("otlp");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, otlp_context_of_a_client);
    tcase_add_test(t, otlp_traceparent_forms);
    tcase_add_test(t, otlp_is_json_whatever_comes);
    tcase_add_test(t, otlp_waiting_is_bounded);
    tcase_add_test(t, otlp_flush_ends);
    tcase_add_test(t, otlp_off_traces_nothing);
    suite_add_tcase(s, t);
    return s;
}
