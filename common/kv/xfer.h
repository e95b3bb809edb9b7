/* xfer: worker-to-worker messages and KV blocks over UCX (its only home).
 *
 * Everything is an active message; KV payloads go by rendezvous. The sender names a ticket and an
 * extent; the receiver alone decides where bytes land, by answering on_kv with addresses of its own
 * memory: no address, length or key of a peer is ever used. Endpoints use peer error handling, but
 * liveness is the caller's business (heartbeats, deadlines): UCX does not notice a stopped peer.
 * A completed send proves nothing; only the peer's own answer does.
 *
 * Single-threaded: created, progressed and called on one loop thread. Callbacks come from
 * xfer_progress only, never from inside another call. */
#ifndef BATON_KV_XFER_H
#define BATON_KV_XFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

struct xfer;
struct xfer_peer; /* one endpoint to one worker instance */

#define XFER_EXTENT_BLOCKS_MAX 64
/* Header of a KV message; little-endian, followed by n_blocks checksums of 8 bytes.
 *   OFFSET SIZE
 *        0   16  ticket
 *       16    8  instance of the sender
 *       24    4  layer
 *       28    4  first: index of the first block within the sequence (not a block id)
 *       32    4  n_blocks, at most XFER_EXTENT_BLOCKS_MAX
 *       36    4  flags: 1 = resent after HANDOFF_BAD */
struct xfer_kv {
    uint8_t ticket[16];
    uint64_t instance;
    uint32_t layer, first, n_blocks, flags;
};
_Static_assert(sizeof(struct xfer_kv) == 40, "wire struct");

struct xfer_iov {
    void *p;
    size_t n;
};

struct xfer_callbacks {
    /* A control message (opaque bytes, at most msg_max). */
    void (*message)(void *arg, const uint8_t *p, size_t n);
    /* KV wants to come in: fill iov[0..*n_iov) with n_blocks block addresses of the layer (merged
     * where contiguous) and return true; false drops the message and counts it. Memory of a GPU
     * must be one piece, and must not be given when `copied`: the bytes are here already, and the
     * CPU puts them in place. */
    bool (*kv_begin)(void *arg, const struct xfer_kv *h, const uint64_t *sums, size_t bytes,
                     bool copied, struct xfer_iov *iov, size_t *n_iov, void **receive);
    /* The receive that kv_begin named has ended: its blocks may be touched again. status 0: all
     * bytes are there (the checksums are the caller's to check). Fires exactly once per accepted
     * receive. */
    void (*kv_end)(void *arg, void *receive, int status);
    /* The endpoint failed. Receives from it are ended first. The peer is still to be closed. */
    void (*lost)(void *arg, struct xfer_peer *peer, int status);
};

struct xfer_options {
    const char *devices; /* UCX_NET_DEVICES, "lo" by default; "all" leaves the choice to UCX */
    const char *tls;     /* UCX_TLS, NULL: "tcp,self" plus what the devices bring */
    size_t msg_max;      /* longest control message accepted, 64 MiB by default */
};

int xfer_create(const struct xfer_options *o, const struct xfer_callbacks *cb, void *arg,
                struct xfer **out, char *err, size_t errlen) WARN_UNUSED;
/* Closes all endpoints by force, ends all receives and sends, frees everything. */
void xfer_destroy(struct xfer *x);
/* The worker address to give to peers; a loan. */
const uint8_t *xfer_address(const struct xfer *x, size_t *n);
/* Readable when there is something to progress; poll it, then call xfer_progress. */
int xfer_fd(const struct xfer *x);
/* Progresses until idle or the budget (number of events) is spent, and arms the fd. Returns true
 * when there is more to do right now: call again soon. */
bool xfer_progress(struct xfer *x, int budget);

/* Zeroed memory registered for transfers (the KV pool). */
int xfer_mem_alloc(struct xfer *x, size_t n, void **out) WARN_UNUSED;
void xfer_mem_free(struct xfer *x, void *p);
/* Registers memory of a GPU, which stays the caller's and must outlive the xfer. UNSUPPORTED: this
 * UCX does not know it; then it must not be given to the functions below. */
int xfer_mem_adopt(struct xfer *x, void *p, size_t n) WARN_UNUSED;

int xfer_peer_open(struct xfer *x, const uint8_t *address, size_t n, void *arg,
                   struct xfer_peer **out) WARN_UNUSED;
void *xfer_peer_arg(const struct xfer_peer *p);
/* Force-closes: outstanding sends complete with an error (their callbacks fire from a later
 * xfer_progress), receives from it end. */
void xfer_peer_close(struct xfer_peer *p);

/* Sends a copy of n bytes; order is kept per peer. Fails with STATUS_CLOSED after the peer was
 * lost, STATUS_FULL when more than 64 MiB wait. */
int xfer_send(struct xfer_peer *p, const void *msg, size_t n) WARN_UNUSED;
/* Sends KV blocks from iov (loans until done); done fires exactly once, from xfer_progress. Memory
 * of a GPU must be one piece. */
int xfer_send_kv(struct xfer_peer *p, const struct xfer_kv *h, const uint64_t *sums,
                 const struct xfer_iov *iov, size_t n_iov, void (*done)(void *arg, int status),
                 void *arg) WARN_UNUSED;

struct xfer_stats {
    uint64_t kv_bytes_sent, kv_bytes_received, kv_messages_sent, kv_messages_received;
    uint64_t kv_dropped, messages_sent, messages_received, bad_messages;
    uint64_t sends_in_flight, receives_in_flight;
};
struct xfer_stats xfer_stats(const struct xfer *x);

#endif
