/* post: see post.h.
 *
 * An exchange is connect, one write, and reading until the server closes, which it was asked to do.
 * What was read of the status line decides; the rest only lets the server finish in peace. An
 * exchange outlives its owner where libuv still has something of it: the owner is then NULL, and
 * the bytes of a body that is a loan are not looked at any more, since closing the handle ends the
 * write before the loop goes on. */
#include "common/net/post.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/mem.h"
#include "common/net/loop_uv.h"

#define ANSWER_MAX ((size_t)64 << 10) /* of an answer's body; what has more is not listened to */

struct exchange {
    struct post *owner; /* NULL once it is over */
    uv_tcp_t tcp;
    uv_timer_t timer;
    uv_getaddrinfo_t lookup;
    uv_connect_t connect;
    uv_write_t write;
    int pending; /* handles and lookups that libuv has */
    bool looking;
    uv_buf_t bufs[2];
    char head[1200];
    char status[16]; /* the first bytes of the answer */
    size_t got;
    char scratch[4096];
};

struct post {
    struct loop *loop;
    struct loop_owner in_loop;
    struct post_url to;
    uint64_t timeout_ms;
    struct exchange *now;
    void (*done)(void *arg, int rc);
    void *arg;
};

static int refuse(char *err, size_t errlen, const char *url, const char *why)
{
    snprintf(err, errlen, "\"%.200s\": %s", url, why);
    return STATUS_INVALID;
}

int post_url_parse(const char *url, struct post_url *out, char *err, size_t errlen)
{
    static const char scheme[] = "http://";
    struct post_url u;
    char address[320];
    if (strncmp(url, scheme, sizeof scheme - 1) != 0)
        return refuse(err, errlen, url, "write http://host:port/path; TLS is the collector's");
    const char *host = url + sizeof scheme - 1;
    size_t n = strcspn(host, "/?#");
    const char *path = host + n;
    for (const char *c = url; *c; c++) {
        if ((unsigned char)*c <= 0x20 || (unsigned char)*c >= 0x7f)
            return refuse(err, errlen, url, "it has a blank or a character beyond ASCII");
    }
    if (memchr(host, '@', n))
        return refuse(err, errlen, url, "a user's name has no place in it");
    if (n >= sizeof u.host || strlen(path) + 2 > sizeof u.path)
        return refuse(err, errlen, url, "it is too long");
    if (strchr(path, '#'))
        return refuse(err, errlen, url, "a fragment has no place in it");
    snprintf(u.host, sizeof u.host, "%.*s", (int)n, host);
    snprintf(u.path, sizeof u.path, "%s%s", *path == '/' ? "" : "/", path);
    const char *colon = strrchr(u.host, ':'), *bracket = strrchr(u.host, ']');
    snprintf(address, sizeof address, "%s%s", u.host,
             !colon || (bracket && colon < bracket) ? ":80" : "");
    TRY(address_split(address, &u.at, err, errlen));
    *out = u;
    return STATUS_OK;
}

/* ---- one exchange ------------------------------------------------------------------------------
 */

static void let_go(struct exchange *x)
{
    if (--x->pending == 0)
        free(x);
}

static void on_tcp_closed(uv_handle_t *h)
{
    let_go(container_of((uv_tcp_t *)h, struct exchange, tcp));
}

static void on_timer_closed(uv_handle_t *h)
{
    let_go(container_of((uv_timer_t *)h, struct exchange, timer));
}

/* It is over; the owner is told when it is still there. */
static void end(struct exchange *x, int rc)
{
    struct post *p = x->owner;
    if (!p)
        return;
    x->owner = NULL;
    p->now = NULL;
    if (x->looking)
        uv_cancel((uv_req_t *)&x->lookup); /* fails when it runs: then it is waited for */
    uv_close((uv_handle_t *)&x->tcp, on_tcp_closed);
    uv_close((uv_handle_t *)&x->timer, on_timer_closed);
    if (p->done)
        p->done(p->arg, rc);
}

/* What the status line says. */
static int status_of(const struct exchange *x)
{
    int major, minor, status;
    char text[sizeof x->status + 1];
    snprintf(text, sizeof text, "%.*s", (int)x->got, x->status);
    if (x->got < 12 || sscanf(text, "HTTP/%1d.%1d %3d", &major, &minor, &status) != 3 ||
        status < 100)
        return STATUS_FORMAT;
    return status;
}

static void on_timeout(uv_timer_t *t)
{
    struct exchange *x = container_of(t, struct exchange, timer);
    int status = status_of(x);
    end(x, status > 0 ? status : STATUS_TIMEOUT);
}

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *out)
{
    struct exchange *x = container_of((uv_tcp_t *)h, struct exchange, tcp);
    *out = uv_buf_init(x->scratch, sizeof x->scratch);
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *b)
{
    struct exchange *x = container_of((uv_tcp_t *)s, struct exchange, tcp);
    for (ssize_t i = 0; i < n; i++, x->got++) {
        if (x->got < sizeof x->status)
            x->status[x->got] = b->base[i];
    }
    if (n < 0 || x->got > ANSWER_MAX)
        end(x, n < 0 && n != UV_EOF && x->got == 0 ? status_from_uv((int)n) : status_of(x));
}

static void on_written(uv_write_t *w, int status)
{
    struct exchange *x = container_of(w, struct exchange, write);
    if (status < 0 && status != UV_ECANCELED)
        end(x, status_from_uv(status));
}

static void on_connected(uv_connect_t *c, int status)
{
    struct exchange *x = container_of(c, struct exchange, connect);
    if (!x->owner)
        return;
    if (status == 0)
        status = uv_read_start((uv_stream_t *)&x->tcp, on_alloc, on_read);
    if (status == 0)
        status = uv_write(&x->write, (uv_stream_t *)&x->tcp, x->bufs, 2, on_written);
    if (status < 0)
        end(x, status_from_uv(status));
}

static void dial(struct exchange *x, const struct sockaddr *to)
{
    int rc = uv_tcp_connect(&x->connect, &x->tcp, to, on_connected);
    if (rc < 0)
        end(x, status_from_uv(rc));
}

static void on_lookup(uv_getaddrinfo_t *req, int status, struct addrinfo *list)
{
    struct exchange *x = container_of(req, struct exchange, lookup);
    x->looking = false;
    if (x->owner && status == 0)
        dial(x, list->ai_addr);
    else
        end(x, status < 0 ? status_from_uv(status) : STATUS_NOTFOUND);
    uv_freeaddrinfo(list);
    let_go(x);
}

/* Begins in the next turn, so that no completion comes from inside post_send. */
static void on_begin(uv_timer_t *t)
{
    struct exchange *x = container_of(t, struct exchange, timer);
    struct post *p = x->owner;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct sockaddr_storage to;
    uv_timer_start(&x->timer, on_timeout, p->timeout_ms, 0);
    if (address_numeric(&p->to.at, &to) == STATUS_OK) {
        dial(x, (struct sockaddr *)&to);
        return;
    }
    int rc =
        uv_getaddrinfo(&p->loop->uv, &x->lookup, on_lookup, p->to.at.host, p->to.at.port, &hints);
    if (rc < 0)
        end(x, status_from_uv(rc));
    else
        x->looking = ++x->pending;
}

/* ---- for the owner -----------------------------------------------------------------------------
 */

static void close_in_loop(struct loop_owner *o)
{
    post_destroy(container_of(o, struct post, in_loop));
}

int post_create(struct loop *l, const struct post_url *to, uint64_t timeout_ms, struct post **out)
{
    struct post *p = mem_array(1, sizeof *p);
    if (!p)
        return STATUS_NOMEM;
    p->loop = l;
    p->to = *to;
    p->timeout_ms = timeout_ms;
    loop_owner_add(l, &p->in_loop, close_in_loop);
    *out = p;
    return STATUS_OK;
}

bool post_busy(const struct post *p)
{
    return p->now != NULL;
}

int post_send(struct post *p, const void *body, size_t n, void (*done)(void *arg, int rc),
              void *arg)
{
    struct exchange *x = mem_array(1, sizeof *x);
    ASSERT(!p->now);
    if (!x)
        return STATUS_NOMEM;
    p->done = done;
    p->arg = arg;
    x->owner = p;
    p->now = x;
    int len = snprintf(x->head, sizeof x->head,
                       "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n"
                       "Content-Length: %zu\r\nConnection: close\r\n\r\n",
                       p->to.path, p->to.host, n);
    x->bufs[0] = uv_buf_init(x->head, (unsigned)len);
    x->bufs[1] = uv_buf_init((char *)(uintptr_t)body, (unsigned)n);
    uv_tcp_init(&p->loop->uv, &x->tcp);
    uv_timer_init(&p->loop->uv, &x->timer);
    x->pending = 2;
    uv_timer_start(&x->timer, on_begin, 0, 0);
    return STATUS_OK;
}

void post_destroy(struct post *p)
{
    if (!p)
        return;
    p->done = NULL;
    if (p->now)
        end(p->now, STATUS_CANCELED);
    loop_owner_remove(&p->in_loop);
    free(p);
}
