/* post: URLs, and what becomes of a body at servers that answer, refuse, hang, lie or leave. */
#include "common/net/post.h"

#include "tests/net/net_test.h"

static struct loop *loop;
static struct post *post;
static struct post_url url;
static int listener, rc, calls;
static char address[64];

static void setup(void)
{
    uint16_t port;
    char text[100], err[256];
    calls = 0;
    listener = listen_local(&port);
    snprintf(address, sizeof address, "127.0.0.1:%u", port);
    snprintf(text, sizeof text, "http://%s/v1/traces?x=1", address);
    ck_assert_ok(post_url_parse(text, &url, err, sizeof err));
    ck_assert_ok(loop_create(&loop));
    ck_assert_ok(post_create(loop, &url, 300, &post));
}

static void teardown(void)
{
    post_destroy(post);
    loop_destroy(loop);
    if (listener >= 0)
        close(listener);
}

static void done(void *arg, int got)
{
    rc = got;
    calls++;
}

static bool called(void *arg)
{
    return calls > 0;
}

static int server = -1;
static char request[4096];
static size_t n_request;

/* Takes the connection and what comes, up to the end of the body "{}". */
static bool received(void *arg)
{
    if (server < 0) {
        struct pollfd p = {.fd = listener, .events = POLLIN};
        if (poll(&p, 1, 0) == 1)
            server = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        return false;
    }
    ssize_t n = read(server, request + n_request, sizeof request - 1 - n_request);
    if (n > 0)
        n_request += (size_t)n;
    request[n_request] = 0;
    return n_request > 2 && strcmp(request + n_request - 2, "{}") == 0;
}

static void send_it(void)
{
    calls = 0;
    n_request = 0;
    server = -1;
    ck_assert_ok(post_send(post, "{}", 2, done, NULL));
    ck_assert(post_busy(post) && calls == 0);
}

/* The server's whole answer to one body; then it closes. */
static int answered(const char *answer)
{
    send_it();
    run_until(loop, received, NULL);
    ck_assert_int_eq(write(server, answer, strlen(answer)), (ssize_t)strlen(answer));
    close(server);
    run_until(loop, called, NULL);
    ck_assert_int_eq(calls, 1);
    ck_assert(!post_busy(post));
    return rc;
}

START_TEST(post_request_is_complete)
{
    char want[512];
    ck_assert_int_eq(answered("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"), 200);
    snprintf(want, sizeof want,
             "POST /v1/traces?x=1 HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n"
             "Content-Length: 2\r\nConnection: close\r\n\r\n{}",
             address);
    ck_assert_str_eq(request, want);
    ck_assert_int_eq(answered("HTTP/1.0 503 No\r\n\r\n"), 503); /* and again */
    ck_assert_int_eq(answered("HTTP/1.1 204 "), 204);
}
END_TEST

START_TEST(post_answers_that_are_none)
{
    static const char *const answers[] = {"", "HTTP/1.1", "SSH-2.0-x\r\n", "HTTP/1.1 abc\r\n\r\n",
                                          "HTTP/1.1 099 x\r\n\r\n"};
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++)
        ck_assert_int_eq(answered(answers[i]), STATUS_FORMAT);
}
END_TEST

/* The status has come and the end has not: at the deadline the status counts. */
START_TEST(post_servers_that_hang)
{
    send_it();
    run_until(loop, called, NULL); /* it is not even accepted */
    ck_assert_int_eq(rc, STATUS_TIMEOUT);
    server = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    close(server);
    send_it();
    run_until(loop, received, NULL);
    ck_assert_int_eq(write(server, "HTTP/1.1 200 OK\r\n", 17), 17);
    run_until(loop, called, NULL);
    ck_assert_int_eq(rc, 200);
    close(server);
}
END_TEST

/* One that does not end is listened to for so long. */
START_TEST(post_endless_answer)
{
    static char much[100000] = "HTTP/1.1 200 OK\r\n\r\n";
    size_t at = 0;
    send_it();
    run_until(loop, received, NULL);
    while (calls == 0) {
        ssize_t n = send(server, much + at, sizeof much - at, MSG_NOSIGNAL);
        at = n > 0 ? (at + (size_t)n) % sizeof much : at;
        run_until_quiet(loop, called, NULL, 2);
    }
    ck_assert_int_eq(rc, 200);
    close(server);
}
END_TEST

START_TEST(post_nobody_there)
{
    close(listener);
    listener = -1;
    send_it();
    run_until(loop, called, NULL);
    ck_assert_int_eq(rc, STATUS_CLOSED);
}
END_TEST

START_TEST(post_unknown_name)
{
    char err[256];
    post_destroy(post);
    ck_assert_ok(post_url_parse("http://no-such-host.invalid:1/", &url, err, sizeof err));
    ck_assert_ok(post_create(loop, &url, 5000, &post));
    send_it();
    run_until(loop, called, NULL);
    ck_assert_int_lt(rc, 0);
}
END_TEST

/* Given up in each of its states: no completion, and nothing is left on the loop (teardown). */
START_TEST(post_destroy_under_way)
{
    send_it();
    post_destroy(post);
    ck_assert_ok(post_create(loop, &url, 300, &post));
    send_it();
    run_until(loop, received, NULL);
    post_destroy(post);
    close(server);
    run_until_quiet(loop, called, NULL, 20);
    ck_assert_int_eq(calls, 0);
    char err[256];
    ck_assert_ok(post_url_parse("http://no-such-host.invalid:1/", &url, err, sizeof err));
    ck_assert_ok(post_create(loop, &url, 300, &post));
    send_it();
    run_until_quiet(loop, called, NULL, 1); /* the look-up has begun, or even ended */
}
END_TEST

START_TEST(post_url_parse_forms)
{
    static const struct {
        const char *url, *host, *port, *header, *path;
    } good[] = {
        {"http://127.0.0.1:4318/v1/traces", "127.0.0.1", "4318", "127.0.0.1:4318", "/v1/traces"},
        {"http://collector", "collector", "80", "collector", "/"},
        {"http://collector?a=b", "collector", "80", "collector", "/?a=b"},
        {"http://[::1]:4318/x", "::1", "4318", "[::1]:4318", "/x"},
        {"http://[::1]", "::1", "80", "[::1]", "/"},
    };
    static const char *const bad[] = {"",
                                      "https://h/x",
                                      "h:4318",
                                      "http://",
                                      "http://:80/",
                                      "http://h:x/",
                                      "http://h:70000/",
                                      "http://user@h/",
                                      "http://h/a b",
                                      "http://h/\r\nX: y",
                                      "http://h/#f",
                                      "http://h/\xc3\xa9"};
    struct post_url u;
    char err[300], longer[700] = "http://h/";
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        ck_assert_ok(post_url_parse(good[i].url, &u, err, sizeof err));
        ck_assert_str_eq(u.at.host, good[i].host);
        ck_assert_str_eq(u.at.port, good[i].port);
        ck_assert_str_eq(u.host, good[i].header);
        ck_assert_str_eq(u.path, good[i].path);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ck_assert_msg(post_url_parse(bad[i], &u, err, sizeof err) == STATUS_INVALID, "%s", bad[i]);
    memset(longer + 9, 'a', 600);
    ck_assert_int_eq(post_url_parse(longer, &u, err, sizeof err), STATUS_INVALID);
    memset(longer + 7, 'a', 500);
    ck_assert_int_eq(post_url_parse(longer, &u, err, sizeof err), STATUS_INVALID);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("post");
    TCase *t = tcase_create("post");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, post_request_is_complete);
    tcase_add_test(t, post_answers_that_are_none);
    tcase_add_test(t, post_servers_that_hang);
    tcase_add_test(t, post_endless_answer);
    tcase_add_test(t, post_nobody_there);
    tcase_add_test(t, post_unknown_name);
    tcase_add_test(t, post_destroy_under_way);
    tcase_add_test(t, post_url_parse_forms);
    suite_add_tcase(s, t);
    return s;
}
