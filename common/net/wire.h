/* wire: one TCP connection that carries length-prefixed frames; internal to common/net, used by
 * link.c. A frame is a header and a message; numbers are little-endian.
 *   OFFSET SIZE
 *        0    4  n: length of the message
 *        4    4  ~n, so that a wrong length is noticed before its bytes are waited for
 *        8    8  hash64(message, n, 0)
 *       16    n  message
 *
 * Callbacks come from the loop only, never from inside a wire_ call, and not after wire_close or
 * wire_finish. After `failed` the owner calls wire_close. */
#ifndef BATON_NET_WIRE_H
#define BATON_NET_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/metrics.h"
#include "common/net/loop_uv.h"
#include "common/net/tls.h"
#include "common/proto/proto.h"

#define WIRE_HEADER_BYTES 16
/* Writes the header of the frame whose message is p[0..n). */
void wire_header(char header[WIRE_HEADER_BYTES], const void *p, size_t n);

struct wire {
    uv_tcp_t tcp;
    uv_timer_t linger;
    uv_connect_t connect;
    uv_write_t write;
    uv_shutdown_t shutdown;
    struct loop *loop;
    struct loop_owner owner; /* on the loop's list while finishing */
    struct buf in;           /* bytes of frames that are not complete yet */
    struct buf out;          /* frames of this turn, or waiting behind `flight` */
    struct buf flight;       /* handed to libuv */
    struct tls *tls;         /* NULL: frames go as they are */
    struct buf sealed;       /* with tls: what of `out` is encrypted and not yet in flight */
    size_t frame_max;        /* longest frame taken from the peer */
    size_t queue_max;        /* most bytes that may wait for the peer */
    struct metric *corrupt;  /* frames that arrived damaged */
    uint64_t last_rx_ms;
    unsigned refs; /* open handles and a deferred flush: freed with the last */
    bool open;     /* connected or accepted */
    bool writing;  /* `flight` is with libuv */
    bool flushing; /* wire_flush is deferred */
    bool full;     /* queue_max was passed; `failed` follows */
    bool finishing, closed;
    void (*opened)(void *arg, int status); /* of wire_connect */
    void (*frame)(void *arg, const void *p, size_t n);
    void (*failed)(void *arg, int status, const char *why);
    void *arg;
};

/* tls: both sides have this pre-shared key (tls_context_psk); NULL: neither has one. */
int wire_create(struct loop *l, struct tls_context *tls, bool server,
                struct wire **out) WARN_UNUSED;
int wire_accept(struct wire *w, uv_stream_t *listener) WARN_UNUSED;
int wire_connect(struct wire *w, const struct sockaddr *to) WARN_UNUSED;
/* Queues m. STATUS_CLOSED when the wire is not open or failing, STATUS_LIMIT when m makes a frame
 * above PROTO_FRAME_MAX, STATUS_FULL when queue_max would be passed (the wire fails then). */
int wire_send(struct wire *w, const struct proto_msg *m) WARN_UNUSED;
size_t wire_queued(const struct wire *w);
/* Closes at once; frees itself. NULL is fine. */
void wire_close(struct wire *w);
/* Sends what is queued, says goodbye, and closes when the peer has, at the latest after a second:
 * so that the last words arrive before the reset that unread bytes would cause. A wire that is not
 * open yet closes at once; NULL is fine. */
void wire_finish(struct wire *w);

#endif
