/* http: the HTTP server as a whole: listening, how many connections there are, draining, closing.
 * The parts are listed in http_conn.h.
 *
 * Accepting is done here with accept4 on a polled descriptor, because libuv answers a full table of
 * descriptors by accepting and dropping whoever waits. When max_connections is reached, or the
 * process or the system has no descriptor left, the connection that has been idle longest makes
 * room; when none is idle, accepting pauses until one closes (or RETRY_MS), and clients wait in the
 * kernel's queue. One that has come just now counts as at work: its request is on the way.
 * max_connections is lowered at start-up to what the descriptor limit allows beside the other needs
 * of the process. */
#include "common/net/http.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/net/http_conn.h"

#define RETRY_MS      1000
#define FRESH_MS      100
#define ACCEPT_BUDGET 64 /* per turn */
#define BACKLOG       1024
#define FDS_RESERVED  64 /* for links, logs, models, … */

void http_options_default(struct http_options *o)
{
    *o = (struct http_options){.header_max = 64 << 10,
                               .headers_count_max = 100,
                               .body_max = 32 << 20,
                               .header_timeout_ms = 10000,
                               .body_timeout_ms = 30000,
                               .idle_timeout_ms = 75000,
                               .write_timeout_ms = 60000,
                               .write_max = 1 << 20,
                               .max_connections = 4096};
}

/* ---- life ---- */

void http_server_put(struct http_server *s)
{
    if (--s->refs)
        return;
    tls_context_put(s->tls);
    free(s);
}

const struct tls_context *http_server_tls(const struct http_server *s)
{
    return s->tls;
}

void http_server_set_tls(struct http_server *s, struct tls_context *tls)
{
    tls_context_put(s->tls);
    s->tls = tls_context_get(tls);
}

static void handle_closed(uv_handle_t *h)
{
    http_server_put(h->data);
}

static void stop_accepting(struct http_server *s)
{
    if (s->accepting)
        uv_poll_stop(&s->poll);
    s->accepting = false;
}

static void listener_close(struct http_server *s)
{
    if (s->fd < 0)
        return;
    stop_accepting(s);
    uv_timer_stop(&s->retry);
    uv_close((uv_handle_t *)&s->poll, handle_closed);
    uv_close((uv_handle_t *)&s->retry, handle_closed);
    close(s->fd); /* libuv forgot it in uv_poll_stop */
    s->fd = -1;
}

void http_server_close(struct http_server *s)
{
    if (!s || s->closed)
        return;
    s->closed = true;
    loop_owner_remove(&s->owner);
    listener_close(s);
    while (!list_empty(&s->conns))
        http_conn_close(container_of(s->conns.next, struct http_conn, node));
    http_server_put(s);
}

static void server_owner_close(struct loop_owner *o)
{
    http_server_close(container_of(o, struct http_server, owner));
}

/* Accepted, or done with a request, so little ago that the next may be on the way. */
static bool is_fresh(const struct http_server *s, const struct http_conn *c)
{
    return loop_now_ms(s->loop) < c->idle_ms + FRESH_MS;
}

bool http_server_drain(struct http_server *s)
{
    if (s->closed)
        return true;
    s->draining = true;
    listener_close(s);
    LIST_FOR_SAFE (it, &s->idle) {
        struct http_conn *c = container_of(it, struct http_conn, idle);
        if (is_fresh(s, c))
            continue;
        http_conn_set_state(c, CONN_LINGER);
        http_conn_touch(c);
    }
    LIST_FOR (it, &s->conns) {
        struct http_conn *c = container_of(it, struct http_conn, node);
        if (c->state != CONN_LINGER || http_conn_pending(c))
            return false;
    }
    return true;
}

/* ---- turns ---- */

static void server_turn(void *arg)
{
    struct http_server *s = arg;
    struct list batch;

    s->flushing = false;
    list_init(&batch);
    while (!list_empty(&s->dirty)) {
        struct list *n = s->dirty.next;
        list_remove(n);
        list_push_back(&batch, n);
    }
    while (!list_empty(&batch)) {
        struct http_conn *c = container_of(batch.next, struct http_conn, dirty);
        list_remove(&c->dirty);
        http_conn_turn(c);
    }
    http_server_put(s);
}

void http_server_turn_soon(struct http_server *s)
{
    if (s->flushing)
        return;
    s->flushing = true;
    s->refs++;
    loop_defer(s->loop, server_turn, s);
}

/* ---- accepting ---- */

static void poll_cb(uv_poll_t *h, int status, int events);

static void start_accepting(struct http_server *s)
{
    if (s->accepting || s->fd < 0)
        return;
    uv_timer_stop(&s->retry);
    s->accepting = uv_poll_start(&s->poll, UV_READABLE, poll_cb) == 0;
}

static void retry_cb(uv_timer_t *t)
{
    start_accepting(t->data);
}

void http_server_conn_closed(struct http_server *s)
{
    s->n_conns--;
    start_accepting(s);
    http_server_put(s);
}

void http_server_conn_idle(struct http_server *s)
{
    start_accepting(s);
}

/* Closes the connection that has been idle longest; false when all are at work. */
static bool make_room(struct http_server *s)
{
    LIST_FOR (it, &s->idle) {
        struct http_conn *c = container_of(it, struct http_conn, idle);
        if (is_fresh(s, c))
            return false; /* and all that follow are younger */
        if (http_conn_pending(c) == 0) {
            http_conn_close(c);
            return true;
        }
    }
    return false;
}

static void pause_accepting(struct http_server *s)
{
    stop_accepting(s);
    uv_timer_start(&s->retry, retry_cb, list_empty(&s->idle) ? RETRY_MS : FRESH_MS, 0);
}

static void out_of_descriptors(struct http_server *s, int err)
{
    uint32_t held_back;
    bool room = make_room(s);
    if (log_limit_pass(&s->log_fds, loop_now_ms(s->loop), &held_back))
        log_error("cannot accept a connection: %s; %s", strerror(err),
                  room ? "an idle one makes room" : "waiting for one to end");
    pause_accepting(s); /* until the idle one has been closed, or for a while */
}

static void poll_cb(uv_poll_t *h, int status, int events)
{
    struct http_server *s = h->data;
    for (int i = 0; i < ACCEPT_BUDGET && s->accepting; i++) {
        if (s->n_conns >= s->options.max_connections) {
            if (i > 0)
                return; /* if anybody else waits, the next poll says so */
            uint32_t held_back;
            bool room = make_room(s);
            if (log_limit_pass(&s->log_full, loop_now_ms(s->loop), &held_back))
                log_warn("%u connections are open, the most allowed; %s", s->n_conns,
                         room ? "idle ones make room" : "new ones wait");
            pause_accepting(s);
            return;
        }
        int fd = accept4(s->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            http_conn_create(s, fd);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            if (i > 0) /* said even when nobody waits */
                return;
            out_of_descriptors(s, errno);
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            return; /* EAGAIN: nobody waits any more */
        }
    }
}

static uint32_t connections_possible(uint32_t wanted)
{
    struct rlimit lim;
    if (getrlimit(RLIMIT_NOFILE, &lim) != 0 || lim.rlim_cur == RLIM_INFINITY)
        return wanted;
    uint64_t most =
        lim.rlim_cur >= 2 * FDS_RESERVED ? lim.rlim_cur - FDS_RESERVED : lim.rlim_cur / 2;
    if (wanted <= most)
        return wanted;
    log_info("at most %llu HTTP connections: the limit of open files is %llu",
             (unsigned long long)most, (unsigned long long)lim.rlim_cur);
    return (uint32_t)most;
}

static int open_listener(struct http_server *s, struct sockaddr_storage *ss)
{
    socklen_t len = sizeof *ss;
    if (s->options.listen_fd > 0) {
        s->fd = s->options.listen_fd;
        if (getsockname(s->fd, (struct sockaddr *)ss, &len) != 0 ||
            fcntl(s->fd, F_SETFL, fcntl(s->fd, F_GETFL) | O_NONBLOCK) != 0)
            return errno;
        address_format(ss, s->address);
        return 0;
    }
    len = ss->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    int on = 1;
    s->fd = socket(ss->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (s->fd < 0)
        return errno;
    setsockopt(s->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(s->fd, (struct sockaddr *)ss, len) != 0 || listen(s->fd, BACKLOG) != 0 ||
        getsockname(s->fd, (struct sockaddr *)ss, &len) != 0)
        return errno;
    address_format(ss, s->address);
    return 0;
}

int http_listen(struct loop *loop, const char *address, const struct http_options *o,
                const struct http_callbacks *cb, void *arg, struct http_server **out, char *err,
                size_t errlen)
{
    struct sockaddr_storage ss;
    TRY(address_resolve(address, &ss, err, errlen));
    struct http_server *s = calloc(1, sizeof *s);
    if (!s) {
        snprintf(err, errlen, "%s", status_text(STATUS_NOMEM));
        return STATUS_NOMEM;
    }
    s->loop = loop;
    s->options = *o;
    s->options.max_connections = connections_possible(o->max_connections);
    s->cb = *cb;
    s->arg = arg;
    list_init(&s->conns);
    list_init(&s->idle);
    list_init(&s->dirty);
    int rc = open_listener(s, &ss);
    if (rc == 0)
        rc = -uv_poll_init(&loop->uv, &s->poll, s->fd);
    if (rc) {
        snprintf(err, errlen, "cannot listen on \"%.100s\": %s", address, strerror(rc));
        if (s->fd >= 0)
            close(s->fd);
        free(s);
        return status_from_errno(rc);
    }
    uv_timer_init(&loop->uv, &s->retry);
    s->poll.data = s->retry.data = s;
    s->refs = 3; /* the user's, and two handles */
    loop_owner_add(loop, &s->owner, server_owner_close);
    start_accepting(s);
    *out = s;
    return STATUS_OK;
}

const char *http_server_address(const struct http_server *s)
{
    return s->address;
}

const struct http_options *http_server_options(const struct http_server *s)
{
    return &s->options;
}

void http_server_set_limits(struct http_server *s, const struct http_options *o)
{
    s->options.header_timeout_ms = o->header_timeout_ms;
    s->options.body_timeout_ms = o->body_timeout_ms;
    s->options.idle_timeout_ms = o->idle_timeout_ms;
    s->options.write_timeout_ms = o->write_timeout_ms;
    s->options.max_connections = connections_possible(o->max_connections);
    start_accepting(s);
}

uint32_t http_server_open_requests(const struct http_server *s)
{
    return s->n_requests;
}
