/* xfer_send: control messages and KV blocks on their way out. See xfer.h.
 *
 * UCX keeps no order between active messages of different protocols or lanes, so control messages
 * of one peer are sent one at a time, always eagerly: the next is started when UCX has taken the
 * one before. KV messages need no order: each names its place. */
#include "common/kv/xfer_internal.h"

#include <string.h>

#include "common/base/fault.h"
#include "common/base/hash.h"
#include "common/base/rng.h"

static void message_sent(void *request, ucs_status_t s, void *arg)
{
    struct message *m = arg;
    struct xfer_peer *p = m->peer;
    ucp_request_free(request);
    ASSERT(p->sending == m);
    p->sending = NULL;
    p->queued -= m->n;
    p->x->stats.sends_in_flight--;
    free(m);
    if (s == UCS_OK && !p->lost && !p->closed)
        xfer_pump(
            p); /* after a failure the error handler follows, behind the ends of the receives */
    xfer_peer_unref(p);
}

void xfer_pump(struct xfer_peer *p)
{
    while (!p->knocking && !p->sending && !list_empty(&p->queue)) {
        struct message *m = container_of(p->queue.next, struct message, node);
        list_remove(&m->node);
        p->sending = m;
        p->in_flight++;
        p->x->stats.sends_in_flight++;
        ucp_request_param_t rp = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS |
                                                  UCP_OP_ATTR_FIELD_CALLBACK |
                                                  UCP_OP_ATTR_FIELD_USER_DATA,
                                  .flags = UCP_AM_SEND_FLAG_EAGER,
                                  .cb = {.send = message_sent},
                                  .user_data = m};
        ucs_status_ptr_t r =
            ucp_am_send_nbx(p->ep, XFER_AM_MESSAGE, &m->sum, sizeof m->sum, m->data, m->n, &rp);
        if (UCS_PTR_IS_PTR(r))
            return;
        p->sending = NULL;
        p->queued -= m->n;
        p->in_flight--; /* the caller holds the peer: nothing to free here */
        p->x->stats.sends_in_flight--;
        free(m);
        if (UCS_PTR_IS_ERR(r)) {
            xfer_peer_fail(p, xfer_status(UCS_PTR_STATUS(r)));
            return;
        }
    }
}

int xfer_send(struct xfer_peer *p, const void *msg, size_t n)
{
    if (p->lost || p->closed)
        return STATUS_CLOSED;
    if (n > XFER_QUEUE_MAX - p->queued)
        return STATUS_FULL;
    struct message *m = malloc(sizeof *m + n);
    if (!m)
        return STATUS_NOMEM;
    m->peer = p;
    m->n = n;
    memcpy(m->data, msg, n);
    m->sum = hash64(m->data, n, 0);
    if (fault("message.sent") == FAULT_CORRUPT && n)
        m->data[n / 2] ^= 1;
    p->queued += n;
    p->x->stats.messages_sent++;
    list_push_back(&p->queue, &m->node);
    xfer_pump(p);
    xfer_ring(p->x);
    return STATUS_OK;
}

static void fire_sent(struct xfer *x, struct event *ev)
{
    struct kv_send *s = container_of(ev, struct kv_send, ev);
    struct xfer_peer *p = s->peer;
    list_init(&ev->node);
    list_remove(&s->node);
    list_push_back(&x->free_sends, &s->node);
    x->stats.sends_in_flight--;
    if (s->status == STATUS_OK) {
        x->stats.kv_bytes_sent += s->bytes;
        x->stats.kv_messages_sent++;
    }
    free(s->copy);
    s->done(s->arg, s->status);
    xfer_peer_unref(p);
}

static void kv_sent(void *request, ucs_status_t status, void *arg)
{
    struct kv_send *s = arg;
    ucp_request_free(request);
    s->status = xfer_status(status);
    xfer_post(s->peer->x, &s->ev);
}

static struct kv_send *send_take(struct xfer *x)
{
    struct kv_send *s;
    if (!list_empty(&x->free_sends)) {
        s = container_of(x->free_sends.next, struct kv_send, node);
        list_remove(&s->node);
    } else {
        s = malloc(sizeof *s);
        if (!s)
            return NULL;
        list_init(&s->node);
    }
    list_init(&s->ev.node);
    s->ev.fire = fire_sent;
    s->copy = NULL;
    return s;
}

/* For tests: what goes over the wire differs in one bit from what was summed. The blocks
 * themselves stay right. */
static void corrupt(struct kv_send *s, const struct xfer_iov *iov, size_t n_iov)
{
    uint8_t *to = malloc(s->bytes);
    if (!to)
        return;
    s->copy = to;
    for (size_t i = 0; i < n_iov; i++) {
        memcpy(to, iov[i].p, iov[i].n);
        to += iov[i].n;
    }
    uint64_t bit = rng_u64() % (8 * (uint64_t)s->bytes);
    ((uint8_t *)s->copy)[bit / 8] ^= (uint8_t)(1u << bit % 8);
}

int xfer_send_kv(struct xfer_peer *p, const struct xfer_kv *h, const uint64_t *sums,
                 const struct xfer_iov *iov, size_t n_iov, void (*done)(void *arg, int status),
                 void *arg)
{
    ASSERT(h->n_blocks > 0 && h->n_blocks <= XFER_EXTENT_BLOCKS_MAX);
    ASSERT(n_iov > 0 && n_iov <= XFER_EXTENT_BLOCKS_MAX);
    struct xfer *x = p->x;
    if (p->lost || p->closed)
        return STATUS_CLOSED;
    struct kv_send *s = send_take(x);
    if (!s)
        return STATUS_NOMEM;
    s->peer = p;
    s->done = done;
    s->arg = arg;
    s->status = STATUS_OK;
    s->bytes = 0;
    memcpy(s->header, h, sizeof *h);
    memcpy(s->header + sizeof *h, sums, 8 * (size_t)h->n_blocks);
    for (size_t i = 0; i < n_iov; i++) {
        s->iov[i] = (ucp_dt_iov_t){.buffer = iov[i].p, .length = iov[i].n};
        s->bytes += iov[i].n;
    }
    bool device = xfer_adopted(x, iov[0].p);
    ASSERT(!device || n_iov == 1);
    ucp_request_param_t rp = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK |
                                              UCP_OP_ATTR_FIELD_USER_DATA,
                              .flags = UCP_AM_SEND_FLAG_REPLY | (s->bytes > XFER_EAGER_MAX || device
                                                                     ? UCP_AM_SEND_FLAG_RNDV
                                                                     : UCP_AM_SEND_FLAG_EAGER),
                              .cb = {.send = kv_sent},
                              .user_data = s};
    const void *data = iov[0].p;
    size_t count = iov[0].n;
    if (fault("kv.sent") == FAULT_CORRUPT && !device)
        corrupt(s, iov, n_iov);
    if (s->copy) {
        data = s->copy;
        count = s->bytes;
    } else if (n_iov > 1) {
        rp.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
        rp.datatype = UCP_DATATYPE_IOV;
        data = s->iov;
        count = n_iov;
    } else if (device) { /* named: UCX may not have seen its allocation */
        rp.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE;
        rp.memory_type = UCS_MEMORY_TYPE_CUDA;
    }
    list_push_back(&x->sends, &s->node);
    p->in_flight++;
    x->stats.sends_in_flight++;
    ucs_status_ptr_t r = ucp_am_send_nbx(p->ep, XFER_AM_KV, s->header,
                                         sizeof *h + 8 * (size_t)h->n_blocks, data, count, &rp);
    xfer_ring(x);
    if (UCS_PTR_IS_PTR(r))
        return STATUS_OK;
    if (r == NULL) { /* complete already: the owner hears of it from xfer_progress */
        xfer_post(x, &s->ev);
        return STATUS_OK;
    }
    list_remove(&s->node);
    list_push_back(&x->free_sends, &s->node);
    free(s->copy);
    p->in_flight--;
    x->stats.sends_in_flight--;
    xfer_peer_fail(p, xfer_status(UCS_PTR_STATUS(r)));
    return xfer_status(UCS_PTR_STATUS(r));
}
