/* loop: a libuv loop with timers, signals, readable descriptors and deferred calls.
 *
 * Design. uv handles live in small heap objects that are freed in their close callbacks. Deferred
 * calls run in libuv's idle phase: an active idle handle also makes the next poll return at once,
 * so a call deferred from any callback runs right after the current turn. Each run takes only the
 * calls that were there when it began: a call that defers again cannot starve the sockets.
 *
 * Invariants. Only the thread of loop_run touches the loop. loop_destroy closes owners in reverse
 * order of creation, then runs the loop until every close callback has been called: nothing leaks
 * even when a daemon leaves early. SIGPIPE is ignored from the first loop on: libuv writes without
 * MSG_NOSIGNAL, and a peer that goes away is an ordinary error. */
#include "common/net/loop.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "common/base/assert.h"
#include "common/net/loop_uv.h"

#define KEEPALIVE_S 15

struct deferred {
    struct list node;
    void (*fn)(void *arg);
    void *arg;
};

int status_from_uv(int rc)
{
    return rc >= 0 ? STATUS_OK : status_from_errno(-rc);
}

bool log_limit_pass(struct log_limit *g, uint64_t now_ms, uint32_t *held_back)
{
    if (g->last_ms && now_ms - g->last_ms < 1000) {
        g->held_back++;
        return false;
    }
    *held_back = g->held_back;
    *g = (struct log_limit){.last_ms = now_ms ? now_ms : 1};
    return true;
}

void tcp_tune(uv_tcp_t *tcp, uint64_t user_timeout_ms)
{
    uv_os_fd_t fd;
    uv_tcp_nodelay(tcp, 1);
    uv_tcp_keepalive(tcp, 1, KEEPALIVE_S);
    if (user_timeout_ms && uv_fileno((uv_handle_t *)tcp, &fd) == 0) {
        unsigned ms = user_timeout_ms < INT32_MAX ? (unsigned)user_timeout_ms : INT32_MAX;
        setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
    }
}

void loop_owner_add(struct loop *l, struct loop_owner *o, void (*close)(struct loop_owner *o))
{
    o->close = close;
    list_push_front(&l->owners, &o->node);
}

void loop_owner_remove(struct loop_owner *o)
{
    list_remove(&o->node);
}

static void ignore_sigpipe(void)
{
    struct sigaction old;
    if (sigaction(SIGPIPE, NULL, &old) == 0 && old.sa_handler == SIG_DFL)
        signal(SIGPIPE, SIG_IGN);
}

static void keep_alive_cb(uv_async_t *h)
{
    (void)h;
}

int loop_create(struct loop **out)
{
    struct loop *l = calloc(1, sizeof *l);
    if (!l)
        return STATUS_NOMEM;
    ignore_sigpipe();
    int rc = uv_loop_init(&l->uv);
    if (rc < 0) {
        free(l);
        return status_from_uv(rc);
    }
    l->uv.data = l;
    list_init(&l->deferred);
    list_init(&l->owners);
    uv_idle_init(&l->uv, &l->defer_tick);
    rc = uv_async_init(&l->uv, &l->keep_alive, keep_alive_cb);
    if (rc < 0) {
        uv_close((uv_handle_t *)&l->defer_tick, NULL);
        uv_run(&l->uv, UV_RUN_DEFAULT);
        uv_loop_close(&l->uv);
        free(l);
        return status_from_uv(rc);
    }
    *out = l;
    return STATUS_OK;
}

static void find_closing(uv_handle_t *h, void *arg)
{
    if (uv_is_closing(h))
        *(bool *)arg = true;
}

static bool has_closing(struct loop *l)
{
    bool closing = false;
    uv_walk(&l->uv, find_closing, &closing);
    return closing;
}

void loop_run(struct loop *l)
{
    while (!l->stopped)
        uv_run(&l->uv, UV_RUN_DEFAULT);
    while (has_closing(l))
        uv_run(&l->uv, UV_RUN_NOWAIT);
    l->stopped = false;
}

void loop_stop(struct loop *l)
{
    l->stopped = true;
    uv_stop(&l->uv);
}

static void run_deferred(struct loop *l)
{
    struct list batch;
    list_init(&batch);
    while (!list_empty(&l->deferred)) {
        struct list *n = l->deferred.next;
        list_remove(n);
        list_push_back(&batch, n);
    }
    while (!list_empty(&batch)) {
        struct deferred *d = container_of(batch.next, struct deferred, node);
        void (*fn)(void *) = d->fn;
        void *arg = d->arg;
        list_remove(&d->node);
        free(d);
        fn(arg);
    }
}

void loop_destroy(struct loop *l)
{
    if (!l)
        return;
    while (!list_empty(&l->owners)) {
        struct loop_owner *o = container_of(l->owners.next, struct loop_owner, node);
        o->close(o);
    }
    do {
        run_deferred(l);
        uv_run(&l->uv, UV_RUN_NOWAIT);
    } while (has_closing(l) || !list_empty(&l->deferred));
    uv_close((uv_handle_t *)&l->keep_alive, NULL);
    uv_close((uv_handle_t *)&l->defer_tick, NULL);
    uv_run(&l->uv, UV_RUN_DEFAULT); /* ends when the last request (a lookup, work) has ended */
    int rc = uv_loop_close(&l->uv);
    ASSERT_MSG(rc == 0, "handles are left on the loop");
    free(l);
}

uint64_t loop_now_ms(const struct loop *l)
{
    return uv_now(&l->uv);
}

/* ---- deferred calls ---- */

static void defer_cb(uv_idle_t *h)
{
    struct loop *l = container_of(h, struct loop, defer_tick);
    run_deferred(l);
    if (list_empty(&l->deferred))
        uv_idle_stop(&l->defer_tick);
}

void loop_defer(struct loop *l, void (*fn)(void *arg), void *arg)
{
    struct deferred *d = malloc(sizeof *d);
    ASSERT_MSG(d, "out of memory for a deferred call");
    *d = (struct deferred){.fn = fn, .arg = arg};
    list_push_back(&l->deferred, &d->node);
    uv_idle_start(&l->defer_tick, defer_cb);
}

/* ---- work on other threads ---- */

struct loop_job {
    uv_work_t req;
    void (*work)(void *arg);
    void (*done)(void *arg);
    void *arg;
};

static void work_cb(uv_work_t *req)
{
    struct loop_job *j = container_of(req, struct loop_job, req);
    j->work(j->arg);
}

static void work_done_cb(uv_work_t *req, int status)
{
    struct loop_job *j = container_of(req, struct loop_job, req);
    void (*done)(void *) = j->done;
    void *arg = j->arg;
    free(j);
    done(arg);
}

int loop_work(struct loop *l, void (*work)(void *arg), void (*done)(void *arg), void *arg)
{
    struct loop_job *j = malloc(sizeof *j);
    if (!j)
        return STATUS_NOMEM;
    *j = (struct loop_job){.work = work, .done = done, .arg = arg};
    int rc = uv_queue_work(&l->uv, &j->req, work_cb, work_done_cb);
    if (rc < 0)
        free(j);
    return status_from_uv(rc);
}

/* ---- timers ---- */

struct loop_timer {
    uv_timer_t h;
    struct loop_owner owner;
    void (*fn)(void *arg);
    void *arg;
};

static void timer_closed(uv_handle_t *h)
{
    free(container_of((uv_timer_t *)h, struct loop_timer, h));
}

static void timer_close(struct loop_owner *o)
{
    loop_timer_free(container_of(o, struct loop_timer, owner));
}

static void timer_cb(uv_timer_t *h)
{
    struct loop_timer *t = container_of(h, struct loop_timer, h);
    t->fn(t->arg);
}

int loop_timer_create(struct loop *l, void (*fn)(void *arg), void *arg, struct loop_timer **out)
{
    struct loop_timer *t = calloc(1, sizeof *t);
    if (!t)
        return STATUS_NOMEM;
    uv_timer_init(&l->uv, &t->h);
    t->fn = fn;
    t->arg = arg;
    loop_owner_add(l, &t->owner, timer_close);
    *out = t;
    return STATUS_OK;
}

void loop_timer_start(struct loop_timer *t, uint64_t after_ms, uint64_t repeat_ms)
{
    /* libuv counts from the beginning of the turn, which may be long ago. */
    uint64_t spent = uv_hrtime() / 1000000 - uv_now(t->h.loop);
    uv_timer_start(&t->h, timer_cb, after_ms + spent, repeat_ms);
}

void loop_timer_stop(struct loop_timer *t)
{
    uv_timer_stop(&t->h);
}

void loop_timer_free(struct loop_timer *t)
{
    if (!t || uv_is_closing((uv_handle_t *)&t->h))
        return;
    loop_owner_remove(&t->owner);
    uv_close((uv_handle_t *)&t->h, timer_closed);
}

/* ---- signals ---- */

struct loop_signal {
    uv_signal_t h;
    struct loop_owner owner;
    void (*fn)(void *arg, int signo);
    void *arg;
};

static void signal_closed(uv_handle_t *h)
{
    free(container_of((uv_signal_t *)h, struct loop_signal, h));
}

static void signal_close(struct loop_owner *o)
{
    struct loop_signal *s = container_of(o, struct loop_signal, owner);
    loop_owner_remove(o);
    uv_close((uv_handle_t *)&s->h, signal_closed);
}

static void signal_cb(uv_signal_t *h, int signo)
{
    struct loop_signal *s = container_of(h, struct loop_signal, h);
    s->fn(s->arg, signo);
}

int loop_on_signal(struct loop *l, int signo, void (*fn)(void *arg, int signo), void *arg)
{
    struct loop_signal *s = calloc(1, sizeof *s);
    if (!s)
        return STATUS_NOMEM;
    int rc = uv_signal_init(&l->uv, &s->h);
    if (rc < 0) {
        free(s);
        return status_from_uv(rc);
    }
    s->fn = fn;
    s->arg = arg;
    loop_owner_add(l, &s->owner, signal_close);
    rc = uv_signal_start(&s->h, signal_cb, signo);
    if (rc < 0)
        signal_close(&s->owner);
    return status_from_uv(rc);
}

/* ---- descriptors ---- */

struct loop_poll {
    uv_poll_t h;
    struct loop_owner owner;
    void (*fn)(void *arg);
    void *arg;
};

static void poll_closed(uv_handle_t *h)
{
    free(container_of((uv_poll_t *)h, struct loop_poll, h));
}

static void poll_close(struct loop_owner *o)
{
    struct loop_poll *p = container_of(o, struct loop_poll, owner);
    loop_owner_remove(o);
    uv_close((uv_handle_t *)&p->h, poll_closed);
}

/* status below zero (the descriptor failed) is an event as well: fn reads and sees the error. */
static void poll_cb(uv_poll_t *h, int status, int events)
{
    struct loop_poll *p = container_of(h, struct loop_poll, h);
    (void)status;
    (void)events;
    p->fn(p->arg);
}

int loop_on_readable(struct loop *l, int fd, void (*fn)(void *arg), void *arg)
{
    struct loop_poll *p = calloc(1, sizeof *p);
    if (!p)
        return STATUS_NOMEM;
    int rc = uv_poll_init(&l->uv, &p->h, fd);
    if (rc < 0) {
        free(p);
        return status_from_uv(rc);
    }
    p->fn = fn;
    p->arg = arg;
    loop_owner_add(l, &p->owner, poll_close);
    rc = uv_poll_start(&p->h, UV_READABLE, poll_cb);
    if (rc < 0)
        poll_close(&p->owner);
    return status_from_uv(rc);
}
