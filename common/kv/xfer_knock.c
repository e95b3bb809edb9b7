/* xfer_knock: how two workers get to know each other. See xfer.h.
 *
 * UCX connects endpoints with messages of its own, at the first send: REQUEST, then REPLY. UCX 1.13
 * (Debian 12) aborts the process whose REPLY cannot leave because the other side has died in
 * between: a worker that dies young would take its peers with it. A REPLY leaves at once when the
 * connection that it uses stands already. So the side that comes first does not let UCX ask: it
 * knocks, with its address, by a short message that needs no answer of UCX; the side that was there
 * opens an endpoint and answers, and its UCX asks back over a connection that the other side has
 * made. Messages wait for the answer; the rest of xfer does not notice.
 *
 * KNOCK and its answer are active messages of their own:
 *   OFFSET SIZE
 *        0    8  number that the answer repeats
 *        8    n  KNOCK: UCX address of the sender; the answer ends before it */
#include "common/kv/xfer_internal.h"

#include <string.h>

#define NUMBER_BYTES  8
#define GREETED_MAX   64 /* peers that have knocked and whom the owner has not opened yet */
#define ANSWERED_LAST 14 /* UCX 1.14 and later need none of this */

static bool must_knock(void)
{
    unsigned major, minor, release;
    ucp_get_version(&major, &minor, &release);
    return major == 1 && minor < ANSWERED_LAST;
}

void xfer_knock_start(struct xfer_peer *p)
{
    if (!must_knock())
        return;
    p->knocking = true;
    p->number = ++p->x->knocks;
    list_push_back(&p->x->knocking, &p->knock_node);
}

void xfer_knock_stop(struct xfer_peer *p)
{
    p->knocking = false;
    list_remove(&p->knock_node);
}

/* Short messages go out within the call or not at all, and UCX does not ask for the peer first. */
static ucs_status_t send_short(struct xfer_peer *p, const uint8_t *m, size_t n)
{
    ucp_request_param_t rp = {.op_attr_mask = UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL};
    return UCS_PTR_STATUS(ucp_am_send_nbx(p->ep, XFER_AM_KNOCK, NULL, 0, m, n, &rp));
}

static void knock(struct xfer_peer *p)
{
    struct xfer *x = p->x;
    uint8_t m[NUMBER_BYTES + XFER_ADDRESS_MAX];
    ucs_status_t s = UCS_ERR_NO_RESOURCE;
    memcpy(m, &p->number, NUMBER_BYTES);
    if (x->address_len <= XFER_ADDRESS_MAX) {
        memcpy(m + NUMBER_BYTES, x->address, x->address_len);
        s = send_short(p, m, NUMBER_BYTES + x->address_len);
    }
    if (s == UCS_ERR_NO_RESOURCE) {
        uint64_t nobody = 0;
        if (send_short(p, (uint8_t *)&nobody, NUMBER_BYTES) == UCS_ERR_NO_RESOURCE)
            return; /* not connected yet: again after the next progress */
        /* Connected, but the address is too long for a short message, as over shared memory: there
         * UCX may ask. */
        xfer_knock_stop(p);
        xfer_pump(p);
        return;
    }
    list_remove(&p->knock_node);
    if (s != UCS_OK)
        xfer_peer_fail(p, xfer_status(s));
}

void xfer_knock_all(struct xfer *x)
{
    LIST_FOR_SAFE (n, &x->knocking) {
        struct xfer_peer *p = container_of(n, struct xfer_peer, knock_node);
        if (p->lost || p->closed)
            list_remove(n);
        else
            knock(p);
    }
}

static void answer_sent(void *request, ucs_status_t s, void *arg)
{
    struct message *m = arg;
    ucp_request_free(request);
    xfer_peer_unref(m->peer);
    free(m);
}

/* m is a KNOCK whose number is what goes back; takes it. */
static void answer(struct xfer_peer *p, struct message *m)
{
    m->peer = p;
    p->in_flight++;
    ucp_request_param_t rp = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK |
                                              UCP_OP_ATTR_FIELD_USER_DATA,
                              .flags = UCP_AM_SEND_FLAG_EAGER,
                              .cb = {.send = answer_sent},
                              .user_data = m};
    ucs_status_ptr_t r = ucp_am_send_nbx(p->ep, XFER_AM_KNOCK, NULL, 0, m->data, NUMBER_BYTES, &rp);
    if (UCS_PTR_IS_PTR(r))
        return;
    if (UCS_PTR_IS_ERR(r))
        xfer_peer_fail(p, xfer_status(UCS_PTR_STATUS(r)));
    free(m);
    xfer_peer_unref(p);
}

struct xfer_peer *xfer_knock_find(struct xfer *x, const uint8_t *address, size_t n, bool greeted)
{
    LIST_FOR (it, &x->peers) {
        struct xfer_peer *p = container_of(it, struct xfer_peer, node);
        if (!p->lost && !p->closed && (p->greeted || !greeted) && p->address_len == n &&
            memcmp(p->address, address, n) == 0)
            return p;
    }
    return NULL;
}

static struct xfer_peer *greet(struct xfer *x, const uint8_t *address, size_t n)
{
    struct xfer_peer *p = xfer_knock_find(x, address, n, false);
    if (p || x->n_greeted == GREETED_MAX)
        return p;
    if (xfer_peer_create(x, address, n, &p) != STATUS_OK)
        return NULL;
    p->greeted = true;
    x->n_greeted++;
    return p;
}

static void fire_knock(struct xfer *x, struct event *ev)
{
    struct message *m = container_of(ev, struct message, ev);
    struct xfer_peer *p = NULL;
    if (x->ending) {
        free(m);
        return;
    }
    if (m->n > NUMBER_BYTES) {
        p = greet(x, m->data + NUMBER_BYTES, m->n - NUMBER_BYTES);
    } else {
        LIST_FOR (it, &x->peers) {
            struct xfer_peer *q = container_of(it, struct xfer_peer, node);
            if (q->knocking && memcmp(&q->number, m->data, NUMBER_BYTES) == 0)
                p = q;
        }
    }
    bool answers = m->n > NUMBER_BYTES;
    if (p && p->knocking)
        xfer_knock_stop(p); /* whoever knocks here, or answers, can be talked to */
    if (p && answers)
        answer(p, m);
    else
        free(m);
    if (p)
        xfer_pump(p);
}

ucs_status_t xfer_on_knock(void *arg, const void *header, size_t header_len, void *data, size_t n,
                           const ucp_am_recv_param_t *param)
{
    struct xfer *x = arg;
    struct message *m = NULL;
    if (header_len == 0 && n >= NUMBER_BYTES && n <= NUMBER_BYTES + XFER_ADDRESS_MAX &&
        !(param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV))
        m = malloc(sizeof *m + n);
    if (!m) {
        x->stats.bad_messages++;
        return UCS_OK;
    }
    m->n = n;
    m->ev.fire = fire_knock;
    memcpy(m->data, data, n);
    xfer_post(x, &m->ev);
    return UCS_OK;
}
