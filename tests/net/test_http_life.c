/* The HTTP server over time: deadlines, streams, clients that go, many connections, the end. */
#include <sys/resource.h>

#include "tests/net/http_test.h"

/* ---- time ---- */

START_TEST(http_slow_clients)
{
    static const char *const parts[] = {"GET /ec", "POST /echo HTTP/1.1\r\n" H "A: b\r\n",
                                        "POST /echo HTTP/1.1\r\n" H "Content-Length: 5\r\n\r\nab",
                                        "POST /echo HTTP/1.1\r\n" H
                                        "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n"};
    t.options.header_timeout_ms = t.options.body_timeout_ms = 60;
    serve();
    struct client c = client_open();
    client_say(&c, parts[_i]);
    uint64_t end = clock_ms() + 5000;
    while (!ended(&c) && clock_ms() < end) { /* a byte now and then does not help */
        if (_i < 2 && send(c.fd, "x", 1, MSG_NOSIGNAL) < 0)
            break;
        if (_i == 3 && send(c.fd, "1\r\nx\r\n", 6, MSG_NOSIGNAL) < 0)
            break;
        run_until_quiet(t.loop, ended, &c, 10);
    }
    expect_refusal(&c, " 408 ");
}
END_TEST

START_TEST(http_idle_connections_are_closed_silently)
{
    t.options.idle_timeout_ms = 40;
    serve();
    struct client fresh = client_open(), used = client_open();
    client_say(&used, "GET /echo HTTP/1.1\r\n" H "\r\n");
    wait_for(&used, " 200 ", 1);
    run_until(t.loop, ended, &fresh);
    ck_assert_uint_eq(fresh.got.len, 0);
    run_until(t.loop, ended, &used);
    ck_assert_uint_eq(count(buf_str(&used.got), "HTTP/1.1"), 1);
    client_end(&fresh);
    client_end(&used);
}
END_TEST

START_TEST(http_client_that_takes_nothing)
{
    char part[60000];
    memset(part, 's', sizeof part);
    t.options.write_timeout_ms = 150;
    t.options.write_max = 200000;
    serve();
    struct client c = client_open();
    client_say(&c, "GET /stream HTTP/1.1\r\n" H "\r\n");
    run_until(t.loop, is_held, NULL);
    int rc = STATUS_OK;
    for (int i = 0; i < 1000 && rc == STATUS_OK; i++) {
        rc = http_stream_write(t.held, part, sizeof part);
        turns(1);
    }
    ck_assert_int_eq(rc, STATUS_FULL);
    ck_assert_uint_le(http_stream_pending(t.held), 200000 + 100);
    run_until(t.loop, is_closed, NULL);
    ck_assert_ptr_null(t.held);
    client_end(&c);
}
END_TEST

/* The owner is done, the client has not taken the end: it is dropped all the same, and counted. */
START_TEST(http_client_that_leaves_the_end)
{
    t.options.write_timeout_ms = 150;
    serve();
    struct client c = client_open();
    client_say(&c, "GET /big HTTP/1.1\r\n" H "\r\n");
    run_until(t.loop, is_undelivered, NULL);
    ck_assert_int_eq(t.answered, 1);
    ck_assert_int_eq(t.closed, 0);
    client_end(&c);
    c = client_open(); /* one that takes everything is none of those */
    client_say(&c, "GET /big HTTP/1.1\r\n" H "Connection: close\r\n\r\n");
    run_until(t.loop, ended, &c);
    client_end(&c);
    turns(5);
    ck_assert_int_eq(t.undelivered, 1);
}
END_TEST

/* ---- streams ---- */

static void on_drained(void *arg, struct http_request *r)
{
    ck_assert_ptr_eq(r, t.held);
    t.drained++;
}

START_TEST(http_stream_chunks)
{
    serve();
    struct client c = client_open();
    client_say(&c, "GET /stream HTTP/1.1\r\n" H "\r\nGET /echo HTTP/1.1\r\n" H "\r\n");
    run_until(t.loop, is_held, NULL);
    wait_for(&c, "\r\n\r\n", 1); /* the head is out before the first event */
    ck_assert_ok(http_stream_write(t.held, "one ", 4));
    ck_assert_ok(http_stream_write(t.held, "two ", 4));
    ck_assert_ok(http_stream_write(t.held, "", 0));
    wait_for(&c, "8\r\none two \r\n", 1); /* one chunk for one turn */
    ck_assert_int_eq(t.requests, 1);
    ck_assert_ok(http_stream_write(t.held, "three", 5));
    http_stream_end(t.held);
    wait_for(&c, "5\r\nthree\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n", 1);
    ck_assert_int_eq(t.closed, 0);
    ck_assert_int_eq(t.answered, 2);
    client_end(&c);
}
END_TEST

START_TEST(http_stream_back_pressure)
{
    char part[5000];
    size_t sent = 0;
    memset(part, 's', sizeof part);
    t.options.write_max = 50000;
    serve();
    struct client c = client_open();
    client_say(&c, "GET /stream HTTP/1.1\r\n" H "\r\n");
    run_until(t.loop, is_held, NULL);
    http_stream_on_drained(t.held, on_drained);
    for (int rounds = 1; rounds <= 3; rounds++) {
        while (http_stream_write(t.held, part, sizeof part) == STATUS_OK) {
            sent += sizeof part;
            turns(2);
        }
        ck_assert_uint_le(http_stream_pending(t.held), 50000 + 100);
        uint64_t end = clock_ms() + 5000;
        while (t.drained < rounds && clock_ms() < end) {
            client_pump(&c);
            turns(1);
        }
        ck_assert_int_eq(t.drained, rounds);
    }
    http_stream_end(t.held);
    wait_for(&c, "\r\n0\r\n\r\n", 1);
    size_t received = 0;
    for (size_t i = 0; i < c.got.len; i++)
        received += c.got.data[i] == 's';
    ck_assert_uint_ge(received, sent);
    ck_assert_uint_le(received, sent + 10); /* those in the head */
    client_end(&c);
}
END_TEST

/* Much in one turn is no slowness of the client. */
START_TEST(http_stream_burst)
{
    char part[4000];
    memset(part, 's', sizeof part);
    t.options.write_max = 5000;
    serve();
    struct client c = client_open();
    client_say(&c, "GET /stream HTTP/1.1\r\n" H "\r\n");
    run_until(t.loop, is_held, NULL);
    for (int i = 0; i < 10; i++)
        ck_assert_ok(http_stream_write(t.held, part, sizeof part));
    http_stream_end(t.held);
    wait_for(&c, "\r\n0\r\n\r\n", 1);
    ck_assert_uint_ge(c.got.len, 10 * sizeof part);
    client_end(&c);
}
END_TEST

START_TEST(http_stream_to_http10)
{
    serve();
    struct client c = client_open();
    client_say(&c, "GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    run_until(t.loop, is_held, NULL);
    ck_assert_ok(http_stream_write(t.held, "plain", 5));
    if (_i == 0)
        http_stream_end(t.held);
    else
        http_stream_abort(t.held);
    run_until(t.loop, ended, &c);
    ck_assert_ptr_null(strstr(buf_str(&c.got), "chunked"));
    ck_assert_int_eq(c.reset, _i == 1); /* the end of an aborted one must not look like an end */
    if (_i == 0) {
        ck_assert_ptr_nonnull(strstr(buf_str(&c.got), "\r\nConnection: close\r\n"));
        ck_assert_ptr_nonnull(strstr(buf_str(&c.got), "\r\n\r\nplain"));
    }
    client_end(&c);
}
END_TEST

START_TEST(http_stream_abort_leaves_no_last_chunk)
{
    serve();
    struct client c = client_open();
    client_say(&c, "GET /stream HTTP/1.1\r\n" H "\r\n");
    run_until(t.loop, is_held, NULL);
    ck_assert_ok(http_stream_write(t.held, "half", 4));
    http_stream_abort(t.held);
    run_until(t.loop, ended, &c);
    ck_assert_ptr_nonnull(strstr(buf_str(&c.got), "4\r\nhalf\r\n"));
    ck_assert_ptr_null(strstr(buf_str(&c.got), "\r\n0\r\n\r\n"));
    ck_assert_int_eq(t.closed, 0);
    client_end(&c);
}
END_TEST

START_TEST(http_stream_to_head)
{
    serve();
    struct client c = client_open();
    client_say(&c, "HEAD /stream HTTP/1.1\r\n" H "\r\nGET /echo HTTP/1.1\r\n" H "\r\n");
    run_until(t.loop, is_held, NULL);
    ck_assert_ok(http_stream_write(t.held, "nothing", 7));
    http_stream_end(t.held);
    wait_for(&c, "\r\n\r\nHTTP/1.1 200", 1);
    ck_assert_ptr_null(strstr(buf_str(&c.got), "nothing"));
    client_end(&c);
}
END_TEST

/* ---- clients that go (B05) ---- */

static void ask_and_wait(struct client *c, const char *path)
{
    char line[128];
    snprintf(line, sizeof line, "POST %s HTTP/1.1\r\n" H "Content-Length: 2\r\n\r\nok", path);
    *c = client_open();
    client_say(c, line);
    run_until(t.loop, is_held, NULL);
}

START_TEST(http_client_closes_while_it_waits)
{
    struct client c;
    serve();
    ask_and_wait(&c, "/hold");
    uint64_t before = clock_ms();
    if (_i == 1) { /* a reset instead of a plain close */
        struct linger hard = {1, 0};
        setsockopt(c.fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    }
    client_end(&c);
    run_until(t.loop, is_closed, NULL);
    ck_assert_uint_lt(clock_ms() - before, 1000);
    ck_assert_uint_eq(http_server_open_requests(t.server), 0);
    ck_assert_int_eq(t.answered, 0);
}
END_TEST

START_TEST(http_client_closes_during_a_stream)
{
    struct client c;
    serve();
    ask_and_wait(&c, "/stream");
    wait_for(&c, "\r\n\r\n", 1);
    client_end(&c);
    turns(5);
    ck_assert_int_eq(t.closed, 0); /* so far it may only have finished sending */
    uint64_t before = clock_ms();
    ck_assert_ok(http_stream_write(t.held, ": alive\n\n", 9));
    run_until(t.loop, is_closed, NULL);
    ck_assert_uint_lt(clock_ms() - before, 1000);
}
END_TEST

/* A client that shuts down its sending side gets its whole answer, byte for byte. */
START_TEST(http_half_closed_client)
{
    struct client c;
    serve();
    ask_and_wait(&c, _i == 1 ? "/stream" : "/hold");
    shutdown(c.fd, SHUT_WR);
    run_until_quiet(t.loop, is_closed, NULL, _i == 2 ? 1500 : 300); /* 2: two bytes ahead */
    ck_assert_int_eq(t.closed, 0);
    if (_i == 1) {
        ck_assert_ok(http_stream_write(t.held, "answer", 6));
        http_stream_end(t.held);
    } else {
        client_pump(&c);
        ck_assert_str_eq(buf_str(&c.got), _i == 2 ? "HT" : "H");
        http_respond(t.held, 200, "text/plain", "answer", 6);
    }
    t.held = NULL;
    run_until(t.loop, ended, &c);
    ck_assert(!c.reset);
    ck_assert_int_eq(strncmp(buf_str(&c.got), "HTTP/1.1 200 OK\r\nDate: ", 23), 0);
    ck_assert_ptr_nonnull(strstr(buf_str(&c.got), "answer"));
    ck_assert_int_eq(t.closed, 0);
    client_end(&c);
}
END_TEST

/* Everything that was asked before the end is answered. */
START_TEST(http_half_closed_pipeline)
{
    serve();
    struct client c = client_open();
    for (int i = 0; i < 5; i++)
        client_say(&c, "GET /echo HTTP/1.1\r\n" H "\r\n");
    shutdown(c.fd, SHUT_WR);
    run_until(t.loop, ended, &c);
    ck_assert_uint_eq(count(buf_str(&c.got), "HTTP/1.1 200"), 5);
    client_end(&c);
    c = client_open(); /* the end of a request is missing: nothing to answer */
    client_say(&c, "GET /echo HTTP/1.1\r\n" H);
    shutdown(c.fd, SHUT_WR);
    run_until(t.loop, ended, &c);
    ck_assert_uint_eq(c.got.len, 0);
    client_end(&c);
}
END_TEST

/* ---- many connections ---- */

START_TEST(http_full_server_makes_room)
{
    t.options.max_connections = 10;
    serve();
    struct client busy, idle[30];
    ask_and_wait(&busy, "/hold");
    for (int i = 0; i < 30; i++) {
        idle[i] = client_open();
        turns(3);
    }
    struct client c = client_open();
    client_say(&c, "GET /echo HTTP/1.1\r\n" H "\r\n");
    wait_for(&c, " 200 ", 1);
    ck_assert(ended(&idle[0])); /* the one that was idle longest */
    ck_assert(!ended(&idle[29]));
    http_respond(t.held, 200, "text/plain", "still here", 10);
    wait_for(&busy, "still here", 1);
    for (int i = 0; i < 30; i++)
        client_end(&idle[i]);
    client_end(&c);
    client_end(&busy);
}
END_TEST

/* A request that is still on its way keeps its connection, however many others wait. */
START_TEST(http_full_server_spares_who_came_just_now)
{
    t.options.max_connections = 4;
    serve();
    struct client c[12];
    for (int i = 0; i < 12; i++)
        c[i] = client_open();
    turns(5);
    for (int i = 0; i < 12; i++)
        client_say(&c[i], "GET /echo HTTP/1.1\r\n" H "Connection: close\r\n\r\n");
    for (int i = 0; i < 12; i++) {
        wait_for(&c[i], " 200 ", 1);
        client_end(&c[i]);
    }
}
END_TEST

static bool two_requests(void *arg)
{
    return t.requests == 2;
}

START_TEST(http_full_server_without_idle_ones)
{
    struct client a, b;
    t.options.max_connections = 1;
    serve();
    ask_and_wait(&a, "/hold");
    b = client_open();
    client_say(&b, "GET /echo HTTP/1.1\r\n" H "Connection: close\r\n\r\n");
    run_until_quiet(t.loop, two_requests, NULL, 20);
    ck_assert_int_eq(t.requests, 1);
    http_respond(t.held, 200, "text/plain", "", 0);
    t.held = NULL;
    wait_for(&a, " 200 ", 1);
    wait_for(&b, " 200 ", 1); /* a became idle and made room */
    client_end(&a);
    client_end(&b);
}
END_TEST

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* B08: no descriptor left: no spinning, running answers go on, and new clients are served soon
 * after some are free again. The limit is lowered below what is open already. */
START_TEST(http_out_of_descriptors)
{
    struct rlimit old, low;
    struct client busy;
    serve();
    ask_and_wait(&busy, "/hold");
    struct client waiting = client_open(), late = client_open();
    client_say(&waiting, "GET /echo HTTP/1.1\r\n" H "\r\n");
    getrlimit(RLIMIT_NOFILE, &old);
    low = old;
    low.rlim_cur = 4;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &low), 0);
    double before = cpu_seconds();
    uint64_t start = clock_ms();
    run_until_quiet(t.loop, two_requests, NULL, 300);
    ck_assert(cpu_seconds() - before < 0.3 * 0.3 * (double)(clock_ms() - start) / 300 + 0.1);
    ck_assert_int_eq(t.requests, 1);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
    http_respond(t.held, 200, "text/plain", "done", 4);
    wait_for(&busy, "done", 1);
    wait_for(&waiting, " 200 ", 1);
    ck_assert_uint_lt(clock_ms() - start, 2500);
    client_end(&late);
    client_end(&waiting);
    client_end(&busy);
}
END_TEST

START_TEST(http_many_connections)
{
    struct client c[200];
    serve();
    for (int i = 0; i < 200; i++) {
        c[i] = client_open();
        client_say(&c[i], "POST /echo HTTP/1.1\r\n" H "Content-Length: 5\r\n\r\nhe");
        turns(1);
    }
    for (int i = 199; i >= 0; i--)
        client_say(&c[i], "lloGET /empty HTTP/1.1\r\n" H "\r\n");
    for (int i = 0; i < 200; i++) {
        wait_for(&c[i], "HTTP/1.1 204", 1);
        ck_assert_ptr_nonnull(strstr(buf_str(&c[i].got), "hello"));
        client_end(&c[i]);
    }
    ck_assert_int_eq(t.requests, 400);
}
END_TEST

/* ---- the end of the server ---- */

static bool idle_ended(void *arg)
{
    (void)http_server_drain(t.server);
    return ended(arg);
}

static bool all_drained(void *arg)
{
    return http_server_drain(t.server);
}

START_TEST(http_drain)
{
    struct client busy, half;
    t.options.header_timeout_ms = 5000;
    serve();
    struct client idle = client_open();
    client_say(&idle, "GET /echo HTTP/1.1\r\n" H "\r\n");
    wait_for(&idle, " 200 ", 1);
    half = client_open();
    client_say(&half, "GET /echo HTTP/1.1\r\n");
    turns(3);
    ask_and_wait(&busy, "/stream");
    ck_assert_uint_eq(http_server_open_requests(t.server), 1);
    run_until(t.loop, idle_ended, &idle);
    ck_assert(!http_server_drain(t.server));
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    sa.sin_port = htons((uint16_t)atoi(strrchr(http_server_address(t.server), ':') + 1));
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_lt(connect(fd, (struct sockaddr *)&sa, sizeof sa), 0); /* nobody listens */
    close(fd);
    client_say(&half, H "\r\n");
    run_until(t.loop, ended, &half);
    ck_assert_ptr_nonnull(strstr(buf_str(&half.got), "Connection: close\r\n"));
    ck_assert_ok(http_stream_write(t.held, "last", 4));
    http_stream_end(t.held);
    wait_for(&busy, "4\r\nlast\r\n0\r\n\r\n", 1);
    ck_assert_uint_eq(http_server_open_requests(t.server), 0);
    run_until(t.loop, all_drained, NULL);
    client_end(&idle);
    client_end(&half);
    client_end(&busy);
}
END_TEST

START_TEST(http_close_with_open_requests)
{
    struct client c;
    serve();
    ask_and_wait(&c, _i ? "/stream" : "/hold");
    if (_i) /* bytes that were not written yet */
        ck_assert_ok(http_stream_write(t.held, "x", 1));
    http_server_close(t.server);
    ck_assert_int_eq(t.closed, 1);
    run_until(t.loop, ended, &c);
    client_end(&c);
}
END_TEST

/* loop_destroy alone cleans up as well (LeakSanitizer). */
START_TEST(http_left_open)
{
    struct client c;
    serve();
    ask_and_wait(&c, "/hold");
    client_end(&c);
    run_until_quiet(t.loop, never, NULL, 5);
}
END_TEST

START_TEST(http_listen_refusals)
{
    char err[256] = "";
    struct http_server *s;
    ck_assert_int_eq(http_listen(t.loop, ":80", &t.options, &t.callbacks, &t, &s, err, sizeof err),
                     STATUS_INVALID);
    ck_assert_msg(strstr(err, "host is missing"), "%s", err);
    serve();
    ck_assert_int_ne(http_listen(t.loop, http_server_address(t.server), &t.options, &t.callbacks,
                                 &t, &s, err, sizeof err),
                     STATUS_OK);
    ck_assert_msg(strstr(err, "in use"), "%s", err);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("http_life");
    TCase *c = tcase_create("life");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_set_timeout(c, 30);
    tcase_add_loop_test(c, http_slow_clients, 0, 4);
    tcase_add_test(c, http_idle_connections_are_closed_silently);
    tcase_add_test(c, http_client_that_takes_nothing);
    tcase_add_test(c, http_client_that_leaves_the_end);
    tcase_add_test(c, http_stream_chunks);
    tcase_add_test(c, http_stream_back_pressure);
    tcase_add_test(c, http_stream_burst);
    tcase_add_loop_test(c, http_stream_to_http10, 0, 2);
    tcase_add_test(c, http_stream_abort_leaves_no_last_chunk);
    tcase_add_test(c, http_stream_to_head);
    tcase_add_loop_test(c, http_client_closes_while_it_waits, 0, 2);
    tcase_add_test(c, http_client_closes_during_a_stream);
    tcase_add_loop_test(c, http_half_closed_client, 0, 3);
    tcase_add_test(c, http_half_closed_pipeline);
    tcase_add_test(c, http_full_server_makes_room);
    tcase_add_test(c, http_full_server_spares_who_came_just_now);
    tcase_add_test(c, http_full_server_without_idle_ones);
    tcase_add_test(c, http_out_of_descriptors);
    tcase_add_test(c, http_many_connections);
    tcase_add_test(c, http_drain);
    tcase_add_loop_test(c, http_close_with_open_requests, 0, 2);
    tcase_add_test(c, http_left_open);
    tcase_add_test(c, http_listen_refusals);
    suite_add_tcase(s, c);
    return s;
}
