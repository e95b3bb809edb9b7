/* http_test: what the tests of the HTTP server share: a server whose handler answers a few paths,
 * and clients made of plain sockets. */
#ifndef BATON_TESTS_NET_HTTP_TEST_H
#define BATON_TESTS_NET_HTTP_TEST_H

#include "common/net/http.h"
#include "common/net/loop_uv.h"
#include "tests/net/net_test.h"

struct fixture {
    struct loop *loop;
    struct http_server *server;
    struct http_options options;
    struct http_callbacks callbacks;
    struct http_request *held; /* the last request of /hold or /stream */
    int requests, closed, answered, drained, undelivered;
    int last_status;
    char log[4096]; /* "GET /a|…" of every request that was delivered */
};
static struct fixture t;

struct client {
    int fd;
    struct buf got;
    bool eof, reset;
};

UNUSED static void on_request(void *arg, struct http_request *r)
{
    size_t n;
    const char *body = http_body(r, &n);
    const char *path = http_path(r);

    ck_assert_ptr_eq(arg, &t);
    t.requests++;
    size_t used = strlen(t.log);
    snprintf(t.log + used, sizeof t.log - used, "%s %s?%s %zu|", http_method(r), path,
             http_query(r), n);
    if (strcmp(path, "/hold") == 0) {
        t.held = r;
    } else if (strcmp(path, "/stream") == 0) {
        t.held = r;
        http_stream_begin(r, 200, "text/event-stream");
    } else if (strcmp(path, "/echo") == 0) {
        http_add_header(r, "X-Kind", "echo");
        http_respond(r, 200, "text/plain", body, n);
    } else if (strcmp(path, "/big") == 0) {
        static char big[24 << 20];
        memset(big, 'b', sizeof big);
        http_respond(r, 200, "text/plain", big, sizeof big);
    } else if (strcmp(path, "/empty") == 0) {
        http_respond(r, 204, NULL, NULL, 0);
    } else {
        http_respond_error(r, 404, "path", "not_found", "No such path: %s", path);
    }
}

UNUSED static int on_head(void *arg, struct http_request *r, const char **message)
{
    if (!http_header(r, "x-refuse"))
        return 0;
    *message = "Refused by its head.";
    return 401;
}

UNUSED static void on_closed(void *arg, struct http_request *r)
{
    ck_assert_ptr_eq(r, t.held);
    t.held = NULL;
    t.closed++;
}

UNUSED static void on_answered(void *arg, int status)
{
    t.answered++;
    t.last_status = status;
}

UNUSED static void on_undelivered(void *arg)
{
    t.undelivered++;
}

UNUSED static void setup(void)
{
    memset(&t, 0, sizeof t);
    ck_assert_ok(loop_create(&t.loop));
    http_options_default(&t.options);
    t.options.header_max = 4096;
    t.options.headers_count_max = 20;
    t.options.body_max = 10000;
    t.callbacks =
        (struct http_callbacks){on_head, on_request, on_closed, on_answered, on_undelivered};
}

UNUSED static void teardown(void)
{
    loop_destroy(t.loop);
}

UNUSED static void serve(void)
{
    char err[256];
    ck_assert_msg(http_listen(t.loop, "127.0.0.1:0", &t.options, &t.callbacks, &t, &t.server, err,
                              sizeof err) == STATUS_OK,
                  "%s", err);
}

/* Some turns of the loop that wait for nothing. */
UNUSED static void turns(int n)
{
    for (int i = 0; i < n; i++)
        uv_run(&t.loop->uv, UV_RUN_NOWAIT);
}

UNUSED static struct client client_open(void)
{
    struct client c = {.fd = dial(http_server_address(t.server))};
    buf_init(&c.got, 0);
    return c;
}

UNUSED static void client_end(struct client *c)
{
    close(c->fd);
    buf_fini(&c->got);
}

UNUSED static void client_send(struct client *c, const char *p, size_t n)
{
    ck_assert_int_eq(send(c->fd, p, n, MSG_NOSIGNAL), (ssize_t)n);
}

UNUSED static void client_say(struct client *c, const char *text)
{
    client_send(c, text, strlen(text));
}

UNUSED static void client_pump(struct client *c)
{
    char part[65536];
    ssize_t n;
    while (!c->eof && !c->reset && (n = recv(c->fd, part, sizeof part, 0)) != 0) {
        if (n < 0) {
            c->reset = errno != EAGAIN;
            return;
        }
        buf_append(&c->got, part, (size_t)n);
    }
    c->eof = true;
}

UNUSED static bool ended(void *arg)
{
    struct client *c = arg;
    client_pump(c);
    return c->eof || c->reset;
}

UNUSED static unsigned count(const char *hay, const char *needle)
{
    unsigned n = 0;
    for (const char *p = hay; (p = strstr(p, needle)); p += strlen(needle))
        n++;
    return n;
}

struct expect {
    struct client *c;
    const char *text;
    unsigned times;
};
UNUSED static bool has_text(void *arg)
{
    struct expect *e = arg;
    client_pump(e->c);
    return count(buf_str(&e->c->got), e->text) >= e->times;
}
#define wait_for(client, what, n)                                                                  \
    do {                                                                                           \
        struct expect e_ = {client, what, n};                                                      \
        ck_assert_msg(run_until_quiet(t.loop, has_text, &e_, 10000), "waited for %s in: %.2000s",  \
                      what, buf_str(&(client)->got));                                              \
    } while (0)

UNUSED static bool is_held(void *arg)
{
    return t.held;
}
UNUSED static bool is_closed(void *arg)
{
    return t.closed;
}
UNUSED static bool is_undelivered(void *arg)
{
    return t.undelivered;
}
UNUSED static bool never(void *arg)
{
    return false;
}

UNUSED static void expect_refusal(struct client *c, const char *status)
{
    run_until(t.loop, ended, c);
    ck_assert_msg(strstr(buf_str(&c->got), status), "%s in: %s", status, buf_str(&c->got));
    ck_assert_ptr_nonnull(strstr(buf_str(&c->got), "Connection: close"));
    ck_assert_int_eq(t.requests, 0);
    client_end(c);
}

#define H       "Host: h\r\n"
#define SMUGGLE "GET /smuggled HTTP/1.1\r\n" H "\r\n"

#endif
