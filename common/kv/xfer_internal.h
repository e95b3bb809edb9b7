/* xfer_internal: what the files of xfer share. UCX's types appear here and in xfer*.c only. */
#ifndef BATON_KV_XFER_INTERNAL_H
#define BATON_KV_XFER_INTERNAL_H

#include <ucp/api/ucp.h>

#include "common/base/assert.h"
#include "common/base/list.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/kv/xfer.h"

enum { XFER_AM_MESSAGE = 1, XFER_AM_KV = 2, XFER_AM_KNOCK = 3 };

#define XFER_QUEUE_MAX       ((size_t)64 << 20) /* control bytes that may wait for one peer */
#define XFER_EAGER_MAX       ((size_t)16 << 10) /* KV up to here is sent at once and copied */
#define XFER_HEADER_MAX      (sizeof(struct xfer_kv) + 8 * XFER_EXTENT_BLOCKS_MAX)
#define XFER_ADDRESS_MAX     ((size_t)4096) /* of a UCX worker that knocks */
#define XFER_MSG_MAX_DEFAULT ((size_t)64 << 20)

/* Something to tell the owner from xfer_progress. Embedded in what it is about, which `fire` frees
 * or puts back; at most once in the queue. */
struct event {
    struct list node;
    void (*fire)(struct xfer *x, struct event *ev);
};

struct region {
    struct list node; /* xfer.regions */
    void *p;
    size_t n;
    bool adopted; /* somebody else's memory */
    ucp_mem_h handle;
};

/* A control message on its way out (peer.queue) or in (event queue). */
struct message {
    struct event ev;
    struct list node;
    struct xfer_peer *peer;
    size_t n;
    uint64_t sum; /* hash64 of data: the header on the wire */
    uint8_t data[];
};

struct kv_send {
    struct event ev;
    struct list node; /* xfer.sends while UCX or the event queue has it, else xfer.free_sends */
    struct xfer_peer *peer;
    void (*done)(void *arg, int status);
    void *arg;
    int status;
    size_t bytes;
    void *copy; /* of the blocks, when a test corrupts them */
    uint8_t header[XFER_HEADER_MAX];
    ucp_dt_iov_t iov[XFER_EXTENT_BLOCKS_MAX];
};

struct receive {
    struct event ev;
    struct list node; /* xfer.receives until kv_end was called, else xfer.free_receives */
    struct xfer *x;
    struct xfer_peer *peer; /* NULL when the sender's endpoint is none of ours */
    void *user;
    int status;
    size_t bytes;
    ucp_dt_iov_t iov[XFER_EXTENT_BLOCKS_MAX];
};

struct xfer_peer {
    struct list node; /* xfer.peers until freed */
    struct event lost_event;
    struct xfer *x;
    void *arg;
    ucp_ep_h ep;
    bool lost;         /* the error handler has run, or an operation failed at once */
    bool ended;        /* the endpoint was force-closed: p->ep is gone */
    bool report;       /* the owner hears of the loss when the last receive has ended */
    bool closed;       /* xfer_peer_close was called; the owner must not use it any more */
    uint32_t receives; /* accepted from this endpoint and not ended */
    int status;
    uint32_t in_flight; /* UCX operations and queued completions that point here, the close included
                         */
    uint8_t *address;   /* as it was given to xfer_peer_create */
    size_t address_len;
    bool greeted;           /* it has knocked; the owner has not opened it yet */
    bool knocking;          /* its answer is awaited: no message goes out */
    uint64_t number;        /* of the KNOCK */
    struct list knock_node; /* xfer.knocking until KNOCK has left */
    struct list queue;      /* messages that wait for `sending` */
    size_t queued;          /* bytes, of the one being sent too */
    struct message *sending;
};

struct xfer {
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_address_t *address;
    size_t address_len;
    int ucx_fd, bell_fd, poll_fd;
    struct xfer_callbacks cb;
    void *arg;
    size_t msg_max;
    bool rung;    /* bell_fd is readable */
    bool ending;  /* xfer_destroy: no message, lost or kv_begin any more */
    int flushing; /* endpoints that xfer_destroy waits for */
    struct list events;
    struct list peers, regions;
    struct list knocking;
    uint64_t knocks;
    uint32_t n_greeted;
    struct list sends, free_sends;
    struct list receives, free_receives;
    struct xfer_stats stats;
};

int xfer_status(ucs_status_t s);
/* Queues an event and makes xfer_fd readable. */
void xfer_post(struct xfer *x, struct event *ev);
void xfer_ring(struct xfer *x);
/* Whether p is memory of a GPU: the CPU must not touch it. */
bool xfer_adopted(const struct xfer *x, const void *p);
int xfer_recv_setup(struct xfer *x);
/* A reference of an operation on the peer has ended: frees a closed peer with the last one. */
void xfer_peer_unref(struct xfer_peer *p);
/* Tells the owner of a loss that is due. */
void xfer_peer_report(struct xfer_peer *p);
void xfer_peer_fail(struct xfer_peer *p, int status);
/* An endpoint to the address, without an owner. */
int xfer_peer_create(struct xfer *x, const uint8_t *address, size_t n,
                     struct xfer_peer **out) WARN_UNUSED;
/* Sends what waits, when it may. */
void xfer_pump(struct xfer_peer *p);

/* xfer_knock.c */
void xfer_knock_start(struct xfer_peer *p);
void xfer_knock_stop(struct xfer_peer *p);
void xfer_knock_all(struct xfer *x); /* those that wait for their connection */
/* A living peer of this address; greeted: one that the owner has not opened yet. */
struct xfer_peer *xfer_knock_find(struct xfer *x, const uint8_t *address, size_t n, bool greeted);
ucs_status_t xfer_on_knock(void *arg, const void *header, size_t header_len, void *data, size_t n,
                           const ucp_am_recv_param_t *param);

/* Drops the messages that wait (not the one that UCX holds). */
void xfer_peer_drop_queue(struct xfer_peer *p);

#endif
