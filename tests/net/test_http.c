/* What the HTTP server accepts, refuses and answers, at every split of the bytes. */
#include "common/base/rng.h"
#include "tests/net/http_test.h"

/* The status codes of all answers, "200 404". */
static void statuses(const struct client *c, char *out, size_t n)
{
    *out = 0;
    for (const char *p = buf_str(&c->got); (p = strstr(p, "HTTP/1.1 ")); p += 9) {
        size_t used = strlen(out);
        snprintf(out + used, n - used, "%s%.3s", used ? " " : "", p + 9);
    }
}

/* ---- what is accepted and what is refused, at every split ---- */

struct exchange {
    const char *request;
    const char *answers; /* status codes in order */
    bool closes;         /* the server closes afterwards */
    const char *seen;    /* what the handler got, NULL: do not look */
};
static const struct exchange exchanges[] = {
    {"GET /echo HTTP/1.1\r\n" H "\r\n", "200", false, "GET /echo? 0|"},
    {"\r\n\r\nGET /echo?a=1&b=%20 HTTP/1.1\r\n" H "\r\n", "200", false, "GET /echo?a=1&b=%20 0|"},
    {"GET /%65cho HTTP/1.1\r\n" H "\r\n", "200", false, "GET /echo? 0|"},
    {"GET http://h/echo?x HTTP/1.1\r\n" H "\r\n", "200", false, "GET /echo?x 0|"},
    {"GET http://h HTTP/1.1\r\n" H "\r\n", "404", false, "GET /? 0|"},
    {"OPTIONS * HTTP/1.1\r\n" H "\r\n", "404", false, "OPTIONS /? 0|"},
    {"POST /echo HTTP/1.1\r\n" H "Content-Length: 5\r\n\r\nhello", "200", false, "POST /echo? 5|"},
    {"POST /echo HTTP/1.1\r\n" H "Content-Length: 0\r\n\r\n", "200", false, "POST /echo? 0|"},
    {"POST /echo HTTP/1.1\r\n" H "\r\n", "200", false, "POST /echo? 0|"},
    {"POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n"
     "3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n",
     "200", false, "POST /echo? 13|"},
    {"POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: Chunked\r\n\r\n0\r\n\r\n"
     "GET /echo HTTP/1.1\r\n" H "\r\n",
     "200 200", false, "POST /echo? 0|GET /echo? 0|"},
    /* B04: five kinds in one write, answered in order */
    {"GET /echo HTTP/1.1\r\n" H "\r\nDELETE /nope HTTP/1.1\r\n" H "\r\n"
     "HEAD /echo HTTP/1.1\r\n" H "\r\nPOST /echo HTTP/1.1\r\n" H "Content-Length: 2\r\n\r\nhi"
     "GET /empty HTTP/1.1\r\n" H "\r\n",
     "200 404 200 200 204", false,
     "GET /echo? 0|DELETE /nope? 0|HEAD /echo? 0|POST /echo? 2|GET /empty? 0|"},
    {"GET /echo HTTP/1.0\r\n\r\n", "200", true, NULL},
    {"GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /echo HTTP/1.0\r\n\r\n", "200 200",
     true, NULL},
    {"GET /echo HTTP/1.1\r\n" H "Connection: close\r\n\r\n", "200", true, NULL},
    {"GET /echo HTTP/1.1\r\n" H "Connection: close\r\n\r\n" SMUGGLE, "200", true, "GET /echo? 0|"},
    {"GET /echo HTTP/1.1\r\n" H "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
     "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\nGET /echo HTTP/1.1\r\n" H "\r\n",
     "200 200", false, NULL},
    {"POST /echo HTTP/1.1\r\n" H "Connection: upgrade\r\nUpgrade: websocket\r\n"
     "Content-Length: 2\r\n\r\nhiGET /echo HTTP/1.1\r\n" H "\r\n",
     "200 200", false, "POST /echo? 2|GET /echo? 0|"},
    {"POST /echo HTTP/1.1\r\n" H "Expect: 100-continue\r\nContent-Length: 2\r\n\r\nhi", "100 200",
     false, "POST /echo? 2|"},
    {"POST /echo HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nhi", "200", true,
     NULL},
    /* refusals; nothing behind them is ever answered */
    {"GET /echo HTTP/1.1\r\n\r\n" SMUGGLE, "400", true, ""},
    {"GET /echo HTTP/1.1\r\n" H H "\r\n" SMUGGLE, "400", true, ""},
    {"GET /echo HTTP/1.1\r\nHost: a, b\r\n\r\n" SMUGGLE, "400", true, ""},
    {"GET /echo HTTP/1.1\r\nHost: a/b\r\n\r\n" SMUGGLE, "400", true, ""},
    {"GET /echo HTTP/2.0\r\n" H "\r\n" SMUGGLE, "505", true, ""},
    {"GET /echo HTTP/0.9\r\n" H "\r\n" SMUGGLE, "505", true, ""},
    {"GET /echo HTTP/1.2\r\n" H "\r\n" SMUGGLE, "400", true, ""},
    {"GET /echo\r\n\r\n" SMUGGLE, "505", true, ""},
    {"BREW /echo HTTP/1.1\r\n" H "\r\n" SMUGGLE, "400", true, ""},
    {"get /echo HTTP/1.1\r\n" H "\r\n" SMUGGLE, "400", true, ""},
    {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "400", true, ""},
    {"CONNECT h:80 HTTP/1.1\r\n" H "\r\n" SMUGGLE, "405", true, ""},
    {"GET /a%zz HTTP/1.1\r\n" H "\r\n" SMUGGLE, "400", true, ""},
    {"GET /a%2 HTTP/1.1\r\n" H "\r\n" SMUGGLE, "400", true, ""},
    {"GET /a%00b HTTP/1.1\r\n" H "\r\n" SMUGGLE, "400", true, ""},
    {"GET /a%0ab HTTP/1.1\r\n" H "\r\n" SMUGGLE, "400", true, ""},
    {"GET /a#b HTTP/1.1\r\n" H "\r\n" SMUGGLE, "400", true, ""},
    {"GET /echo HTTP/1.1\n" H "\r\n" SMUGGLE, "400", true, ""},
    {"GET /echo HTTP/1.1\r\n" H "A : b\r\n\r\n" SMUGGLE, "400", true, ""},
    {"GET /echo HTTP/1.1\r\n" H "A: b\r\n c\r\n\r\n" SMUGGLE, "400", true, ""},
    {"GET /echo HTTP/1.1\r\n" H "A\x01: b\r\n\r\n" SMUGGLE, "400", true, ""},
    {"GET /echo HTTP/1.1\r\n" H "A: b\rX: y\r\n\r\n" SMUGGLE, "400", true, ""},
    {"GET /echo HTTP/1.1\r\n" H "Expect: the-best\r\n\r\n" SMUGGLE, "417", true, ""},
    {"GET /echo HTTP/1.1\r\n" H "X-Refuse: 1\r\nContent-Length: 60\r\n\r\n" SMUGGLE, "401", true,
     ""},
    /* B02: two ways to frame a body */
    {"POST /echo HTTP/1.1\r\n" H "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
     "X" SMUGGLE,
     "400", true, ""},
    {"POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n0\r\n\r\n"
     "X" SMUGGLE,
     "400", true, ""},
    {"POST /echo HTTP/1.1\r\n" H "Content-Length: 46\r\nContent-Length: 0\r\n\r\n" SMUGGLE, "400",
     true, ""},
    {"POST /echo HTTP/1.1\r\n" H "Content-Length: 2\r\nContent-Length: 2\r\n\r\nhi" SMUGGLE, "400",
     true, ""},
    {"POST /echo HTTP/1.1\r\n" H "Content-Length: +5\r\n\r\nhello" SMUGGLE, "400", true, ""},
    {"POST /echo HTTP/1.1\r\n" H "Content-Length: -1\r\n\r\nhello" SMUGGLE, "400", true, ""},
    {"POST /echo HTTP/1.1\r\n" H "Content-Length: 5, 6\r\n\r\nhello" SMUGGLE, "400", true, ""},
    {"POST /echo HTTP/1.1\r\n" H "Content-Length: 0x10\r\n\r\nhello" SMUGGLE, "400", true, ""},
    {"POST /echo HTTP/1.1\r\n" H "Content-Length: 18446744073709551616\r\n\r\n" SMUGGLE, "400",
     true, ""},
    {"POST /echo HTTP/1.1\r\n" H "Content-Length:\r\n\r\n" SMUGGLE, "400", true, ""},
    {"POST /echo HTTP/1.1\r\n" H "Content-Length: 18446744073709551615\r\n\r\n" SMUGGLE, "413",
     true, ""},
    {"POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: xchunked\r\n\r\n" SMUGGLE, "400", true, ""},
    {"POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" SMUGGLE, "400",
     true, ""},
    {"POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n" SMUGGLE, "400",
     true, ""},
    {"POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n"
     "0\r\n\r\n" SMUGGLE,
     NULL, true, ""},
    {"POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" SMUGGLE, "400", true, ""},
    {"POST /echo HTTP/1.1\r\n" H
     "Transfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n" SMUGGLE,
     "400", true, ""},
    {"POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n3\nabc\n0\n\n" SMUGGLE, "400",
     true, ""},
    {"POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n" SMUGGLE,
     "400", true, ""},
    {"POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\n" SMUGGLE,
     "400", true, ""},
    /* B07 (v): no 100 for a body that is too large */
    {"POST /echo HTTP/1.1\r\n" H "Expect: 100-continue\r\nContent-Length: 10001\r\n\r\n", "413",
     true, ""},
};

static void check_exchange(const struct exchange *x, size_t split)
{
    char got[256];
    size_t n = strlen(x->request);
    struct client c = client_open();
    int requests_before = t.requests;

    t.log[0] = 0;
    turns(2);
    for (size_t at = 0; at < n;) {
        size_t part = split == SIZE_MAX ? 1 + rng_u64() % 40 : split ? split : n;
        part = part < n - at ? part : n - at;
        if (send(c.fd, x->request + at, part, MSG_NOSIGNAL) < 0)
            break; /* refused and closed already */
        at += part;
        turns(3);
    }
    if (x->closes) {
        run_until(t.loop, ended, &c);
    } else {
        unsigned answers = x->answers[0] ? 1 + count(x->answers, " ") : 0;
        wait_for(&c, "HTTP/1.1 ", answers);
        turns(5);
        client_pump(&c);
        ck_assert_msg(!c.eof && !c.reset, "closed after: %s", x->request);
    }
    statuses(&c, got, sizeof got);
    if (x->answers)
        ck_assert_msg(strcmp(got, x->answers) == 0, "%s answers instead of %s to (split %zu): %s",
                      got, x->answers, split, x->request);
    ck_assert_ptr_null(strstr(t.log, "smuggled"));
    if (x->seen)
        ck_assert_msg(strcmp(t.log, x->seen) == 0, "handler saw %s instead of %s (split %zu)",
                      t.log, x->seen, split);
    if (x->closes && x->seen && !x->seen[0]) {
        ck_assert_int_eq(t.requests, requests_before);
        ck_assert_ptr_nonnull(strstr(buf_str(&c.got), "Connection: close\r\n"));
        ck_assert_ptr_nonnull(strstr(buf_str(&c.got), "{\"error\":{\"message\":"));
    }
    client_end(&c);
}

START_TEST(http_exchange_at_every_split)
{
    static const size_t splits[] = {0, 1, 2, 3, 5, 8, 13, 21, 34, SIZE_MAX, SIZE_MAX};
    serve();
    for (size_t i = 0; i < sizeof splits / sizeof splits[0]; i++)
        check_exchange(&exchanges[_i], splits[i]);
}
END_TEST

/* Bytes that are no HTTP at all, and valid requests with bytes changed: nothing breaks, and the
 * server goes on. */
START_TEST(http_junk)
{
    serve();
    for (int round = 0; round < 300; round++) {
        char junk[600];
        size_t n = 1 + rng_u64() % sizeof junk;
        const char *base = exchanges[rng_u64() % (sizeof exchanges / sizeof exchanges[0])].request;
        rng_bytes(junk, sizeof junk);
        if (round % 4) {
            n = strlen(base) < sizeof junk ? strlen(base) : sizeof junk;
            memcpy(junk, base, n);
            for (int k = 0; k < 1 + round % 5; k++)
                junk[rng_u64() % n] = (char)rng_u64();
        }
        struct client c = client_open();
        if (send(c.fd, junk, n, MSG_NOSIGNAL) < 0)
            ck_abort();
        turns(4);
        shutdown(c.fd, SHUT_WR);
        turns(4);
        client_pump(&c);
        client_end(&c);
        turns(2);
    }
    check_exchange(&exchanges[0], 0);
}
END_TEST

/* ---- answers ---- */

START_TEST(http_answer_bytes)
{
    serve();
    struct client c = client_open();
    client_say(&c, "POST /echo HTTP/1.1\r\n" H
                   "X-Request-ID: this~me\r\nContent-Length: 4\r\n\r\nbody");
    wait_for(&c, "body", 1);
    ck_assert_int_eq(strncmp(buf_str(&c.got), "HTTP/1.1 200 OK\r\nDate: ", 23), 0);
    ck_assert_ptr_nonnull(strstr(buf_str(&c.got), " GMT\r\nContent-Type: text/plain\r\n"
                                                  "Content-Length: 4\r\nX-Request-Id: this~me\r\n"
                                                  "X-Kind: echo\r\n\r\nbody"));
    client_say(&c, "GET /\"\\%c3%a9%ff%e2 HTTP/1.1\r\n" H "\r\n");
    wait_for(&c, "}}", 1);
    ck_assert_ptr_nonnull(strstr(buf_str(&c.got),
                                 "{\"error\":{\"message\":\"No such path: /\\\"\\\\\xc3\xa9\\ufffd"
                                 "\\ufffd\",\"type\":\"not_found_error\",\"param\":\"path\","
                                 "\"code\":\"not_found\"}}"));
    buf_reset(&c.got);
    client_say(&c, "HEAD /echo HTTP/1.1\r\n" H "\r\nGET /empty HTTP/1.1\r\n" H "\r\n");
    wait_for(&c, "204 No Content", 1);
    turns(3);
    client_pump(&c);
    ck_assert_ptr_nonnull(strstr(buf_str(&c.got), "\r\n\r\nHTTP/1.1 204 No Content\r\n"));
    ck_assert_ptr_null(strstr(strstr(buf_str(&c.got), "204"), "Content-"));
    ck_assert_int_eq(t.answered, 4);
    client_end(&c);
}
END_TEST

START_TEST(http_added_header_cannot_forge)
{
    serve();
    struct client c = client_open();
    client_say(&c, "GET /hold HTTP/1.1\r\n" H "\r\n");
    run_until(t.loop, is_held, NULL);
    http_add_header(t.held, "X-A", "x\r\nSet-Cookie: y");
    http_add_header(t.held, "X-B", "fine");
    http_respond(t.held, 200, "text/plain", "ok", 2);
    wait_for(&c, "\r\n\r\nok", 1);
    ck_assert_ptr_null(strstr(buf_str(&c.got), "Set-Cookie"));
    ck_assert_ptr_nonnull(strstr(buf_str(&c.got), "X-B: fine\r\n"));
    client_end(&c);
}
END_TEST

START_TEST(http_large_answer_to_a_slow_reader)
{
    serve();
    struct client c = client_open();
    client_say(&c, "GET /big HTTP/1.1\r\n" H "\r\nGET /echo HTTP/1.1\r\n" H "\r\n");
    turns(20);
    ck_assert_int_eq(t.requests, 1); /* the second waits until the first answer has been taken */
    wait_for(&c, "HTTP/1.1 200", 2);
    ck_assert_uint_gt(c.got.len, 24 << 20);
    client_end(&c);
}
END_TEST

/* ---- limits ---- */

START_TEST(http_head_limits)
{
    char filler[6000];
    serve();
    memset(filler, ' ', sizeof filler);
    struct client c = client_open();
    client_say(&c, "GET /echo HTTP/1.1\r\n" H "A:");
    client_send(&c, filler, 5000); /* blanks count, although no value holds them */
    expect_refusal(&c, " 431 ");
    memset(filler, 'x', sizeof filler);
    c = client_open();
    client_say(&c, "GET /");
    client_send(&c, filler, 5000);
    expect_refusal(&c, " 431 ");
    memset(filler, '\n', sizeof filler);
    c = client_open();
    for (int i = 0; i < 3000; i++)
        memcpy(filler + 2 * i, "\r\n", 2);
    client_send(&c, filler, 6000); /* empty lines before a request count as well */
    expect_refusal(&c, " 431 ");
    c = client_open();
    client_say(&c, "GET /echo HTTP/1.1\r\n" H);
    for (int i = 0; i < 20; i++)
        client_say(&c, "A: b\r\n");
    client_say(&c, "\r\n");
    expect_refusal(&c, " 431 ");
}
END_TEST

START_TEST(http_head_just_fits)
{
    char value[4096];
    serve();
    struct client c = client_open();
    memset(value, 'v', sizeof value);
    size_t rest = strlen("GET /echo HTTP/1.1\r\n" H "A: \r\n\r\n");
    client_say(&c, "GET /echo HTTP/1.1\r\n" H "A: ");
    client_send(&c, value, 4096 - rest);
    client_say(&c, "\r\n\r\n");
    wait_for(&c, " 200 ", 1);
    client_end(&c);
}
END_TEST

START_TEST(http_body_limits)
{
    char body[20000];
    serve();
    memset(body, 'b', sizeof body);
    struct client c = client_open(); /* refused before the body is there */
    client_say(&c, "POST /echo HTTP/1.1\r\n" H "Content-Length: 10001\r\n\r\n");
    expect_refusal(&c, " 413 ");
    c = client_open();
    client_say(&c, "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n2711\r\n");
    client_send(&c, body, 10001);
    expect_refusal(&c, " 413 ");
    c = client_open(); /* one-byte chunks with long extensions */
    client_say(&c, "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n1;");
    for (int i = 0; i < 4 && send(c.fd, body, sizeof body, MSG_NOSIGNAL) > 0; i++)
        turns(3);
    expect_refusal(&c, " 400 ");
    c = client_open(); /* exactly the limit */
    client_say(&c, "POST /echo HTTP/1.1\r\n" H "Content-Length: 10000\r\n\r\n");
    client_send(&c, body, 10000);
    wait_for(&c, "Content-Length: 10000\r\n", 1);
    client_end(&c);
}
END_TEST

/* B01: the answer arrives although the client is still sending, and body bytes are never parsed. */
START_TEST(http_refused_while_the_body_is_sent)
{
    char line[512];
    serve();
    struct client c = client_open();
    client_say(&c, "POST /echo HTTP/1.1\r\n" H "X-Refuse: 1\r\nContent-Length: 9000\r\n\r\n");
    snprintf(line, sizeof line, "%s", SMUGGLE);
    for (int i = 0; i < 150; i++) {
        ck_assert_int_gt(send(c.fd, line, strlen(line), MSG_NOSIGNAL), 0);
        turns(1);
    }
    expect_refusal(&c, " 401 ");
    ck_assert_int_eq(t.answered, 1);
}
END_TEST

START_TEST(http_expect_continue)
{
    serve();
    struct client c = client_open();
    client_say(&c, "POST /echo HTTP/1.1\r\n" H "Expect: 100-continue\r\nContent-Length: 2\r\n\r\n");
    wait_for(&c, "HTTP/1.1 100 Continue\r\n\r\n", 1);
    ck_assert_int_eq(t.requests, 0);
    client_say(&c, "ok");
    wait_for(&c, "\r\n\r\nok", 1);
    client_end(&c);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("http");
    TCase *c = tcase_create("exchanges");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_set_timeout(c, 30);
    tcase_add_loop_test(c, http_exchange_at_every_split, 0, sizeof exchanges / sizeof exchanges[0]);
    tcase_add_test(c, http_junk);
    tcase_add_test(c, http_answer_bytes);
    tcase_add_test(c, http_added_header_cannot_forge);
    tcase_add_test(c, http_large_answer_to_a_slow_reader);
    tcase_add_test(c, http_head_limits);
    tcase_add_test(c, http_head_just_fits);
    tcase_add_test(c, http_body_limits);
    tcase_add_test(c, http_refused_while_the_body_is_sent);
    tcase_add_test(c, http_expect_continue);
    suite_add_tcase(s, c);
    return s;
}
