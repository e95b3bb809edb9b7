/* xfer_recv: what peers send. See xfer.h.
 *
 * Nothing in a message is believed: header and payload must agree in size, and the owner answers
 * kv_begin with addresses of its own. What is refused is dropped and counted; UCX then completes
 * the sender's operation, which is why a completed send proves nothing. Each accepted receive is on
 * x->receives until its kv_end was called. UCX ends the receives of an endpoint that fails or is
 * force-closed; it never cancels one by itself, so blocks stay untouched until then. */
#include "common/kv/xfer_internal.h"

#include <string.h>

#include "common/base/hash.h"

static void fire_message(struct xfer *x, struct event *ev)
{
    struct message *m = container_of(ev, struct message, ev);
    if (!x->ending)
        x->cb.message(x->arg, m->data, m->n);
    free(m);
}

static ucs_status_t on_message(void *arg, const void *header, size_t header_len, void *data,
                               size_t n, const ucp_am_recv_param_t *param)
{
    struct xfer *x = arg;
    struct message *m = NULL;
    uint64_t sum = 0;
    if (header_len == sizeof sum && n <= x->msg_max &&
        !(param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)) {
        memcpy(&sum, header, sizeof sum);
        if (sum == hash64(data, n, 0))
            m = malloc(sizeof *m + n);
    }
    if (!m) {
        x->stats.bad_messages++;
        log_warn("data link: dropped a damaged message of %zu bytes with a header of %zu", n,
                 header_len);
        return UCS_OK;
    }
    m->n = n;
    m->ev.fire = fire_message;
    memcpy(m->data, data, n);
    x->stats.messages_received++;
    xfer_post(x, &m->ev);
    return UCS_OK;
}

static void fire_received(struct xfer *x, struct event *ev)
{
    struct receive *r = container_of(ev, struct receive, ev);
    struct xfer_peer *p = r->peer;
    void *user = r->user;
    int status = r->status;
    list_init(&ev->node);
    list_remove(&r->node);
    list_push_back(&x->free_receives, &r->node);
    x->stats.receives_in_flight--;
    if (status == STATUS_OK) {
        x->stats.kv_bytes_received += r->bytes;
        x->stats.kv_messages_received++;
    }
    x->cb.kv_end(x->arg, user, status);
    if (p) {
        p->receives--;
        xfer_peer_report(p);
        xfer_peer_unref(p);
    }
}

static void received(void *request, ucs_status_t s, size_t n, void *arg)
{
    struct receive *r = arg;
    ucp_request_free(request);
    r->status = s == UCS_OK && n != r->bytes ? STATUS_FORMAT : xfer_status(s);
    xfer_post(r->x, &r->ev);
}

static struct receive *receive_take(struct xfer *x)
{
    struct receive *r;
    if (!list_empty(&x->free_receives)) {
        r = container_of(x->free_receives.next, struct receive, node);
        list_remove(&r->node);
    } else {
        r = malloc(sizeof *r);
        if (!r)
            return NULL;
        list_init(&r->node);
    }
    list_init(&r->ev.node);
    r->ev.fire = fire_received;
    r->x = x;
    return r;
}

/* Copies the header and its checksums out; false when they do not agree with the payload. */
static bool parse(const void *header, size_t header_len, size_t n, struct xfer_kv *h,
                  uint64_t sums[XFER_EXTENT_BLOCKS_MAX])
{
    if (header_len < sizeof *h)
        return false;
    memcpy(h, header, sizeof *h);
    if (h->n_blocks == 0 || h->n_blocks > XFER_EXTENT_BLOCKS_MAX ||
        header_len != sizeof *h + 8 * (size_t)h->n_blocks || n == 0 || n % h->n_blocks != 0)
        return false;
    memcpy(sums, (const uint8_t *)header + sizeof *h, 8 * (size_t)h->n_blocks);
    return true;
}

static void accept_eager(struct xfer *x, struct receive *r, const uint8_t *data,
                         const struct xfer_iov *iov, size_t n_iov)
{
    for (size_t i = 0; i < n_iov; i++) {
        ASSERT(!xfer_adopted(x, iov[i].p));
        memcpy(iov[i].p, data, iov[i].n);
        data += iov[i].n;
    }
    r->status = STATUS_OK;
    xfer_post(x, &r->ev);
}

static ucs_status_t accept_rendezvous(struct xfer *x, struct receive *r, void *desc,
                                      const struct xfer_iov *iov, size_t n_iov)
{
    ucp_request_param_t rp = {.op_attr_mask =
                                  UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                              .cb = {.recv_am = received},
                              .user_data = r};
    void *buffer = iov[0].p;
    size_t count = iov[0].n;
    if (n_iov > 1) {
        for (size_t i = 0; i < n_iov; i++)
            r->iov[i] = (ucp_dt_iov_t){.buffer = iov[i].p, .length = iov[i].n};
        rp.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
        rp.datatype = UCP_DATATYPE_IOV;
        buffer = r->iov;
        count = n_iov;
    } else if (xfer_adopted(x, buffer)) { /* named: UCX may not have seen its allocation */
        rp.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE;
        rp.memory_type = UCS_MEMORY_TYPE_CUDA;
    }
    ucs_status_ptr_t req = ucp_am_recv_data_nbx(x->worker, desc, buffer, count, &rp);
    if (!UCS_PTR_IS_PTR(req)) {
        r->status = xfer_status(UCS_PTR_STATUS(req));
        xfer_post(x, &r->ev);
    }
    return UCS_INPROGRESS;
}

static struct xfer_peer *find_peer(struct xfer *x, ucp_ep_h ep)
{
    LIST_FOR (n, &x->peers) {
        struct xfer_peer *p = container_of(n, struct xfer_peer, node);
        if (p->ep == ep && !p->ended)
            return p;
    }
    return NULL;
}

static ucs_status_t on_kv(void *arg, const void *header, size_t header_len, void *data, size_t n,
                          const ucp_am_recv_param_t *param)
{
    struct xfer *x = arg;
    struct xfer_kv h;
    uint64_t sums[XFER_EXTENT_BLOCKS_MAX];
    struct xfer_iov iov[XFER_EXTENT_BLOCKS_MAX];
    size_t n_iov = XFER_EXTENT_BLOCKS_MAX;
    struct receive *r = NULL;

    if (!x->ending && parse(header, header_len, n, &h, sums))
        r = receive_take(x);
    bool copied = !(param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV);
    if (!r || !x->cb.kv_begin(x->arg, &h, sums, n, copied, iov, &n_iov, &r->user)) {
        if (r)
            list_push_back(&x->free_receives, &r->node);
        x->stats.kv_dropped++;
        return UCS_OK;
    }
    size_t total = 0;
    for (size_t i = 0; i < n_iov; i++)
        total += iov[i].n;
    ASSERT_MSG(n_iov > 0 && n_iov <= XFER_EXTENT_BLOCKS_MAX && total == n,
               "kv_begin gave %zu pieces of %zu bytes for %zu", n_iov, total, n);
    r->bytes = n;
    r->peer =
        param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP ? find_peer(x, param->reply_ep) : NULL;
    if (r->peer) {
        r->peer->receives++;
        r->peer->in_flight++;
    }
    list_push_back(&x->receives, &r->node);
    x->stats.receives_in_flight++;
    if (!copied)
        return accept_rendezvous(x, r, data, iov, n_iov);
    accept_eager(x, r, data, iov, n_iov);
    return UCS_OK;
}

int xfer_recv_setup(struct xfer *x)
{
    ucp_am_handler_param_t h = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = XFER_AM_MESSAGE,
        .flags = UCP_AM_FLAG_WHOLE_MSG,
        .cb = on_message,
        .arg = x};
    ucs_status_t s = ucp_worker_set_am_recv_handler(x->worker, &h);
    if (s == UCS_OK) {
        h.id = XFER_AM_KV;
        h.cb = on_kv;
        s = ucp_worker_set_am_recv_handler(x->worker, &h);
    }
    if (s == UCS_OK) {
        h.id = XFER_AM_KNOCK;
        h.cb = xfer_on_knock;
        s = ucp_worker_set_am_recv_handler(x->worker, &h);
    }
    return xfer_status(s);
}
