/* xfer_peer: endpoints: opening, failing, closing. See xfer.h.
 *
 * When UCX's error handler runs, or an operation fails at once, the endpoint is force-closed right
 * away: that ends every receive from it, and only then is the owner told (`lost`). Which receives
 * are a peer's is known from the endpoint that UCX names with each KV message. A peer is freed when
 * its owner has closed it and the last operation that points to it has ended: in_flight. */
#include "common/kv/xfer_internal.h"

#include <string.h>

static void close_done(void *request, ucs_status_t s, void *arg)
{
    ucp_request_free(request);
    xfer_peer_unref(arg);
}

/* Force-closes the endpoint, once. */
static void end_endpoint(struct xfer_peer *p)
{
    if (p->ended)
        return;
    p->ended = true;
    xfer_peer_drop_queue(p);
    p->in_flight++;
    ucp_request_param_t rp = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK |
                                              UCP_OP_ATTR_FIELD_USER_DATA,
                              .flags = UCP_EP_CLOSE_FLAG_FORCE,
                              .cb = {.send = close_done},
                              .user_data = p};
    ucs_status_ptr_t r = ucp_ep_close_nbx(p->ep, &rp);
    xfer_ring(p->x);
    if (UCS_PTR_IS_ERR(r))
        log_debug("data link: closing an endpoint: %s", ucs_status_string(UCS_PTR_STATUS(r)));
    if (!UCS_PTR_IS_PTR(r))
        xfer_peer_unref(p);
}

void xfer_peer_report(struct xfer_peer *p)
{
    if (!p->report || p->receives > 0)
        return;
    p->report = false;
    if (p->greeted)
        xfer_peer_close(p); /* nobody knows of it */
    else if (!p->closed && !p->x->ending)
        p->x->cb.lost(p->x->arg, p, p->status);
}

static void fire_lost(struct xfer *x, struct event *ev)
{
    struct xfer_peer *p = container_of(ev, struct xfer_peer, lost_event);
    list_init(&ev->node);
    p->in_flight++; /* the owner may close it from the callback */
    p->report = true;
    end_endpoint(p);
    xfer_peer_report(p);
    xfer_peer_unref(p);
}

void xfer_peer_fail(struct xfer_peer *p, int status)
{
    if (p->lost || p->closed)
        return;
    p->lost = true;
    p->status = status;
    xfer_post(p->x, &p->lost_event);
}

static void on_error(void *arg, ucp_ep_h ep, ucs_status_t s)
{
    struct xfer_peer *p = arg;
    log_debug("data link: endpoint failed: %s", ucs_status_string(s));
    xfer_peer_fail(p, xfer_status(s));
}

static void peer_free(struct xfer_peer *p)
{
    free(p->address);
    free(p);
}

int xfer_peer_create(struct xfer *x, const uint8_t *address, size_t n, struct xfer_peer **out)
{
    if (n < 16)
        return STATUS_INVALID;
    struct xfer_peer *p = calloc(1, sizeof *p);
    /* UCX parses the address without its length: a copy with zeroes behind bounds a truncated one
     */
    uint8_t *copy = calloc(1, n + 256);
    if (!p || !copy) {
        free(p);
        free(copy);
        return STATUS_NOMEM;
    }
    memcpy(copy, address, n);
    p->x = x;
    p->address = copy;
    p->address_len = n;
    list_init(&p->knock_node);
    p->lost_event.fire = fire_lost;
    list_init(&p->lost_event.node);
    list_init(&p->queue);
    ucp_ep_params_t ep = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                                        UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                                        UCP_EP_PARAM_FIELD_ERR_HANDLER,
                          .address = (const ucp_address_t *)copy,
                          .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                          .err_handler = {.cb = on_error, .arg = p}};
    ucs_status_t s = ucp_ep_create(x->worker, &ep, &p->ep);
    if (s != UCS_OK) {
        log_warn("data link: opening an endpoint: %s", ucs_status_string(s));
        peer_free(p);
        return xfer_status(s);
    }
    list_push_back(&x->peers, &p->node);
    xfer_ring(x);
    *out = p;
    return STATUS_OK;
}

int xfer_peer_open(struct xfer *x, const uint8_t *address, size_t n, void *arg,
                   struct xfer_peer **out)
{
    struct xfer_peer *p = xfer_knock_find(x, address, n, true);
    if (p) {
        p->greeted = false;
        x->n_greeted--;
    } else {
        TRY(xfer_peer_create(x, address, n, &p));
        xfer_knock_start(p);
    }
    p->arg = arg;
    *out = p;
    return STATUS_OK;
}

void *xfer_peer_arg(const struct xfer_peer *p)
{
    return p->arg;
}

void xfer_peer_unref(struct xfer_peer *p)
{
    ASSERT(p->in_flight > 0);
    if (--p->in_flight > 0 || !p->closed)
        return;
    list_remove(&p->node);
    peer_free(p);
}

void xfer_peer_drop_queue(struct xfer_peer *p)
{
    while (!list_empty(&p->queue)) {
        struct message *m = container_of(p->queue.next, struct message, node);
        list_remove(&m->node);
        p->queued -= m->n;
        free(m);
    }
}

void xfer_peer_close(struct xfer_peer *p)
{
    if (p->closed)
        return;
    p->in_flight++;
    p->closed = true;
    if (p->greeted)
        p->x->n_greeted--;
    p->greeted = false;
    xfer_knock_stop(p);
    list_remove(&p->lost_event.node);
    end_endpoint(p);
    xfer_peer_unref(p);
}
