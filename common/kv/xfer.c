/* xfer: the UCX context and worker, progress, events, and registered memory. See xfer.h.
 *
 * UCX calls back from ucp_worker_progress, and completes some operations before the starting call
 * returns. Both are hidden here: whatever ends becomes an event in one queue, and the queue is
 * emptied by xfer_progress alone, so callbacks to the owner keep the order in which UCX reported
 * things and never come from inside another call. The one exception is kv_begin, which has to
 * answer while UCX still holds the message; it too runs inside xfer_progress.
 *
 * poll_fd is an epoll set of UCX's event descriptor and a doorbell (eventfd). The doorbell rings
 * when an event is queued or an operation started outside of xfer_progress, so an owner that only
 * polls xfer_fd misses nothing.
 *
 * Settings go in through ucp_config_modify or, where UCX offers no other way, its environment
 * variables; one that is set already stays: the operator's word wins. Segments of 256 KiB triple
 * the speed of tcp; keep-alive is short because the default would let an idle dead peer go
 * unnoticed for minutes (a stopped one is never noticed: liveness is the owner's). */
#include "common/kv/xfer_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/clock.h"

#define DESTROY_WAIT_MS 2000
#define FLUSH_WAIT_MS   200

int xfer_status(ucs_status_t s)
{
    switch (s) {
    case UCS_OK:
        return STATUS_OK;
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_NO_RESOURCE:
        return STATUS_NOMEM;
    case UCS_ERR_INVALID_PARAM:
    case UCS_ERR_INVALID_ADDR:
        return STATUS_INVALID;
    case UCS_ERR_CANCELED:
        return STATUS_CANCELED;
    case UCS_ERR_TIMED_OUT:
        return STATUS_TIMEOUT;
    case UCS_ERR_UNSUPPORTED:
        return STATUS_UNSUPPORTED;
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_REJECTED:
        return STATUS_CLOSED;
    default:
        return STATUS_IO;
    }
}

static int ucx_fail(const char *what, ucs_status_t s, char *err, size_t errlen)
{
    snprintf(err, errlen, "data link: %s: %s", what, ucs_status_string(s));
    return xfer_status(s);
}

static int modify(ucp_config_t *config, const char *key, const char *value, char *err,
                  size_t errlen)
{
    char name[64];
    snprintf(name, sizeof name, "UCX_%s", key);
    if (getenv(name))
        return STATUS_OK;
    ucs_status_t s = ucp_config_modify(config, key, value);
    if (s != UCS_OK) {
        snprintf(err, errlen, "data link: setting %s=%s: %s", key, value, ucs_status_string(s));
        return xfer_status(s);
    }
    return STATUS_OK;
}

/* Transport settings: UCX 1.13 takes these from the environment only. */
static void configure_transports(const char *tls)
{
    static const char *const settings[][2] = {{"UCX_TCP_TX_SEG_SIZE", "256k"},
                                              {"UCX_TCP_RX_SEG_SIZE", "256k"},
                                              {"UCX_TCP_KEEPIDLE", "1s"},
                                              {"UCX_TCP_KEEPCNT", "3"},
                                              {"UCX_TCP_KEEPINTVL", "1s"}};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        setenv(settings[i][0], settings[i][1], 0);
    if (!tls || strstr(tls, "posix") || strstr(tls, "sm") || strstr(tls, "all"))
        setenv("UCX_POSIX_ERROR_HANDLING", "y", 0);
}

static int open_context(struct xfer *x, const struct xfer_options *o, char *err, size_t errlen)
{
    const char *devices = o->devices && *o->devices ? o->devices : "lo";
    const char *tls = o->tls && *o->tls ? o->tls : strcmp(devices, "lo") == 0 ? "tcp,self" : NULL;
    ucp_config_t *config;
    configure_transports(tls);
    ucs_status_t s = ucp_config_read(NULL, NULL, &config);
    if (s != UCS_OK)
        return ucx_fail("reading the UCX settings", s, err, errlen);
    int rc = tls ? modify(config, "TLS", tls, err, errlen) : STATUS_OK;
    if (rc == STATUS_OK)
        rc = modify(config, "NET_DEVICES", devices, err, errlen);
    if (rc == STATUS_OK)
        rc = modify(config, "KEEPALIVE_INTERVAL", "1s", err, errlen);
    if (rc == STATUS_OK) {
        ucp_params_t p = {.field_mask =
                              UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED,
                          .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
                          .mt_workers_shared = 0};
        s = ucp_init(&p, config, &x->context);
        if (s != UCS_OK)
            rc = ucx_fail("starting UCX", s, err, errlen);
    }
    ucp_config_release(config);
    return rc;
}

static int open_worker(struct xfer *x, char *err, size_t errlen)
{
    ucp_worker_params_t wp = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE |
                                            UCP_WORKER_PARAM_FIELD_EVENTS,
                              .thread_mode = UCS_THREAD_MODE_SINGLE,
                              .events = UCP_WAKEUP_RX | UCP_WAKEUP_TX};
    ucs_status_t s = ucp_worker_create(x->context, &wp, &x->worker);
    if (s != UCS_OK)
        return ucx_fail("creating a UCX worker (is there such a device?)", s, err, errlen);
    ucp_worker_attr_t attr = {.field_mask = UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER};
    s = ucp_worker_query(x->worker, &attr);
    if (s != UCS_OK)
        return ucx_fail("asking the UCX worker", s, err, errlen);
    if (attr.max_am_header < XFER_HEADER_MAX) {
        snprintf(err, errlen, "data link: the transport takes headers of %zu bytes, %zu are needed",
                 attr.max_am_header, XFER_HEADER_MAX);
        return STATUS_UNSUPPORTED;
    }
    s = ucp_worker_get_address(x->worker, &x->address, &x->address_len);
    if (s != UCS_OK)
        return ucx_fail("getting the UCX address", s, err, errlen);
    s = ucp_worker_get_efd(x->worker, &x->ucx_fd);
    if (s != UCS_OK)
        return ucx_fail("getting the UCX event descriptor", s, err, errlen);
    return STATUS_OK;
}

static int open_fds(struct xfer *x, char *err, size_t errlen)
{
    x->bell_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    x->poll_fd = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event ev = {.events = EPOLLIN};
    if (x->bell_fd < 0 || x->poll_fd < 0 ||
        epoll_ctl(x->poll_fd, EPOLL_CTL_ADD, x->bell_fd, &ev) != 0 ||
        epoll_ctl(x->poll_fd, EPOLL_CTL_ADD, x->ucx_fd, &ev) != 0) {
        snprintf(err, errlen, "data link: event descriptors: %s", strerror(errno));
        return status_from_errno(errno);
    }
    return STATUS_OK;
}

int xfer_create(const struct xfer_options *o, const struct xfer_callbacks *cb, void *arg,
                struct xfer **out, char *err, size_t errlen)
{
    struct xfer *x = calloc(1, sizeof *x);
    if (!x) {
        snprintf(err, errlen, "data link: out of memory");
        return STATUS_NOMEM;
    }
    x->cb = *cb;
    x->arg = arg;
    x->msg_max = o->msg_max ? o->msg_max : XFER_MSG_MAX_DEFAULT;
    x->ucx_fd = x->bell_fd = x->poll_fd = -1;
    struct list *lists[] = {&x->events,     &x->peers,    &x->regions,       &x->sends,
                            &x->free_sends, &x->receives, &x->free_receives, &x->knocking};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        list_init(lists[i]);

    int rc = open_context(x, o, err, errlen);
    if (rc == STATUS_OK)
        rc = open_worker(x, err, errlen);
    if (rc == STATUS_OK)
        rc = open_fds(x, err, errlen);
    if (rc == STATUS_OK && (rc = xfer_recv_setup(x)) != STATUS_OK)
        snprintf(err, errlen, "data link: registering message handlers failed");
    if (rc != STATUS_OK) {
        xfer_destroy(x);
        return rc;
    }
    xfer_ring(x); /* the first progress arms UCX's descriptor */
    *out = x;
    return STATUS_OK;
}

void xfer_ring(struct xfer *x)
{
    if (x->rung)
        return;
    uint64_t one = 1;
    if (write(x->bell_fd, &one, sizeof one) == sizeof one)
        x->rung = true;
}

static void unring(struct xfer *x)
{
    uint64_t n;
    if (x->rung && read(x->bell_fd, &n, sizeof n) == sizeof n)
        x->rung = false;
}

void xfer_post(struct xfer *x, struct event *ev)
{
    list_push_back(&x->events, &ev->node);
    xfer_ring(x);
}

/* Fires at most budget events and returns how many. */
static int dispatch(struct xfer *x, int budget)
{
    int n = 0;
    while (n < budget && !list_empty(&x->events)) {
        struct event *ev = container_of(x->events.next, struct event, node);
        list_remove(&ev->node);
        ev->fire(x, ev);
        n++;
    }
    return n;
}

bool xfer_progress(struct xfer *x, int budget)
{
    unring(x);
    while (budget > 0) {
        int n = dispatch(x, budget);
        budget -= n;
        xfer_knock_all(x);
        if (ucp_worker_progress(x->worker) > 0) {
            budget--;
            continue;
        }
        if (n > 0 || !list_empty(&x->events))
            continue;
        ucs_status_t s = ucp_worker_arm(x->worker);
        if (s == UCS_OK)
            return false;
        if (s != UCS_ERR_BUSY) {
            log_error("data link: arming UCX: %s", ucs_status_string(s));
            break;
        }
        budget--;
    }
    xfer_ring(x);
    return true;
}

/* Waits until nothing is in flight; what a dead transport never ends is ended by the caller. */
static void settle(struct xfer *x)
{
    uint64_t deadline = clock_ms() + DESTROY_WAIT_MS;
    while (clock_ms() < deadline) {
        dispatch(x, 1 << 20);
        if (list_empty(&x->peers) && list_empty(&x->receives) && list_empty(&x->sends))
            return;
        if (ucp_worker_progress(x->worker) == 0)
            usleep(500);
    }
    log_warn("data link: %llu sends and %llu receives did not end in %d ms",
             (unsigned long long)x->stats.sends_in_flight,
             (unsigned long long)x->stats.receives_in_flight, DESTROY_WAIT_MS);
}

static void flushed(void *request, ucs_status_t s, void *arg)
{
    ucp_request_free(request);
    --*(int *)arg;
}

/* Lets what was sent leave, and connections that are being made come to an end: UCX 1.13 aborts in
 * a process whose peer vanishes between its first message and the answer to it. */
static void flush(struct xfer *x)
{
    ucp_request_param_t rp = {.op_attr_mask =
                                  UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                              .cb = {.send = flushed},
                              .user_data = &x->flushing};
    LIST_FOR (n, &x->peers) {
        struct xfer_peer *p = container_of(n, struct xfer_peer, node);
        if (!p->ended && UCS_PTR_IS_PTR(ucp_ep_flush_nbx(p->ep, &rp)))
            x->flushing++;
    }
    uint64_t deadline = clock_ms() + FLUSH_WAIT_MS;
    while (x->flushing > 0 && clock_ms() < deadline) {
        if (ucp_worker_progress(x->worker) == 0)
            usleep(100);
    }
}

static void free_list(struct list *l, size_t node_offset)
{
    while (!list_empty(l)) {
        struct list *n = l->next;
        list_remove(n);
        free((char *)n - node_offset);
    }
}

void xfer_destroy(struct xfer *x)
{
    if (!x)
        return;
    x->ending = true;
    if (x->worker)
        flush(x);
    LIST_FOR_SAFE (n, &x->peers)
        xfer_peer_close(container_of(n, struct xfer_peer, node));
    if (x->worker) {
        settle(x);
        if (x->address)
            ucp_worker_release_address(x->worker, x->address);
        ucp_worker_destroy(x->worker); /* from here on UCX touches no memory of ours */
    }
    LIST_FOR (n, &x->receives) {
        struct receive *r = container_of(n, struct receive, node);
        if (list_empty(&r->ev.node)) {
            r->status = STATUS_CLOSED;
            list_push_back(&x->events, &r->ev.node);
        }
    }
    LIST_FOR (n, &x->sends) {
        struct kv_send *s = container_of(n, struct kv_send, node);
        if (list_empty(&s->ev.node)) {
            s->status = STATUS_CLOSED;
            list_push_back(&x->events, &s->ev.node);
        }
    }
    dispatch(x, INT32_MAX);
    LIST_FOR_SAFE (n, &x->peers) { /* UCX never ended their close */
        struct xfer_peer *p = container_of(n, struct xfer_peer, node);
        list_remove(n);
        free(p->sending);
        free(p->address);
        free(p);
    }
    free_list(&x->free_sends, offsetof(struct kv_send, node));
    free_list(&x->free_receives, offsetof(struct receive, node));
    LIST_FOR_SAFE (n, &x->regions)
        xfer_mem_free(x, container_of(n, struct region, node)->p);
    if (x->context)
        ucp_cleanup(x->context);
    if (x->bell_fd >= 0)
        close(x->bell_fd);
    if (x->poll_fd >= 0)
        close(x->poll_fd);
    free(x);
}

const uint8_t *xfer_address(const struct xfer *x, size_t *n)
{
    *n = x->address_len;
    return (const uint8_t *)x->address;
}

int xfer_fd(const struct xfer *x)
{
    return x->poll_fd;
}

struct xfer_stats xfer_stats(const struct xfer *x)
{
    return x->stats;
}

int xfer_mem_alloc(struct xfer *x, size_t n, void **out)
{
    struct region *r = calloc(1, sizeof *r);
    if (!r)
        return STATUS_NOMEM;
    r->n = n;
    r->p = mem_huge(n);
    if (!r->p) {
        free(r);
        return STATUS_NOMEM;
    }
    ucp_mem_map_params_t mp = {.field_mask =
                                   UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
                               .address = r->p,
                               .length = n};
    ucs_status_t s = ucp_mem_map(x->context, &mp, &r->handle);
    if (s != UCS_OK) {
        log_error("data link: registering %zu bytes: %s", n, ucs_status_string(s));
        mem_huge_free(r->p, n);
        free(r);
        return xfer_status(s);
    }
    list_push_back(&x->regions, &r->node);
    *out = r->p;
    return STATUS_OK;
}

int xfer_mem_adopt(struct xfer *x, void *p, size_t n)
{
    ucp_context_attr_t a = {.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES};
    if (ucp_context_query(x->context, &a) != UCS_OK ||
        !(a.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)))
        return STATUS_UNSUPPORTED;
    struct region *r = calloc(1, sizeof *r);
    if (!r)
        return STATUS_NOMEM;
    *r = (struct region){.p = p, .n = n, .adopted = true};
    ucp_mem_map_params_t mp = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS |
                                             UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                                             UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
                               .address = p,
                               .length = n,
                               .memory_type = UCS_MEMORY_TYPE_CUDA};
    ucs_status_t s = ucp_mem_map(x->context, &mp, &r->handle);
    if (s != UCS_OK) {
        log_warn("data link: registering %zu bytes of the device: %s", n, ucs_status_string(s));
        free(r);
        return STATUS_UNSUPPORTED;
    }
    list_push_back(&x->regions, &r->node);
    return STATUS_OK;
}

bool xfer_adopted(const struct xfer *x, const void *p)
{
    LIST_FOR (n, &x->regions) {
        const struct region *r = container_of(n, struct region, node);
        if (r->adopted && (const uint8_t *)p >= (const uint8_t *)r->p &&
            (const uint8_t *)p < (const uint8_t *)r->p + r->n)
            return true;
    }
    return false;
}

void xfer_mem_free(struct xfer *x, void *p)
{
    LIST_FOR_SAFE (n, &x->regions) {
        struct region *r = container_of(n, struct region, node);
        if (r->p != p)
            continue;
        list_remove(n);
        ucp_mem_unmap(x->context, r->handle);
        if (!r->adopted)
            mem_huge_free(r->p, r->n);
        free(r);
        return;
    }
}
