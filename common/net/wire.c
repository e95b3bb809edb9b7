/* wire: frames over TCP; the contract is wire.h.
 *
 * Sending. Frames of one turn of the loop gather in `out`; a deferred flush writes them with one
 * uv_try_write, and only what the socket does not take goes into a uv_write, behind which later
 * frames gather again. So a decode step that touches many sequences costs one system call.
 *
 * Receiving. Bytes are read behind each other into `in`, which grows with what has really arrived
 * (a claimed length reserves nothing), complete frames are handed out in place, and the rest moves
 * to the front once per read. TCP's own checksum misses what is damaged beside it (one in 2^16, and
 * all of it where a device says that it has checked): a frame that is not what was sent breaks the
 * connection, and RESUME brings back what was lost with it.
 *
 * TLS. With a cluster key the frames go through a filter (tls.h): `out` is sealed when it is
 * flushed, and what is read is opened into `in`. A side with a key and one without find out by the
 * first bytes, and say so.
 *
 * Life. refs counts the two uv handles and a deferred flush. uv calls the callbacks of pending
 * requests before the close callback, so nothing of libuv points here after the last put. */
#include "common/net/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/fault.h"
#include "common/base/hash.h"

#define READ_BYTES 65536
#define KEEP_BYTES (1u << 20) /* larger buffers are given back when they are empty */
#define LINGER_MS  1000

static void wire_put(struct wire *w)
{
    if (--w->refs)
        return;
    buf_fini(&w->in);
    buf_fini(&w->out);
    buf_fini(&w->flight);
    buf_fini(&w->sealed);
    tls_destroy(w->tls);
    free(w);
}

static void handle_closed(uv_handle_t *h)
{
    wire_put(h->data);
}

int wire_create(struct loop *l, struct tls_context *tls, bool server, struct wire **out)
{
    struct wire *w = calloc(1, sizeof *w);
    if (!w)
        return STATUS_NOMEM;
    int status = tls ? tls_create(tls, server, &w->tls) : STATUS_OK;
    if (status == STATUS_OK)
        status = status_from_uv(uv_tcp_init(&l->uv, &w->tcp));
    if (status != STATUS_OK) {
        tls_destroy(w->tls);
        free(w);
        return status;
    }
    uv_timer_init(&l->uv, &w->linger);
    w->tcp.data = w->linger.data = w;
    list_init(&w->owner.node);
    w->refs = 2;
    w->loop = l;
    w->frame_max = PROTO_FRAME_MAX;
    w->queue_max = SIZE_MAX;
    w->corrupt = metrics_counter("baton_frames_corrupt_total", "",
                                 "Control frames that arrived damaged; each closes its link.");
    buf_init(&w->in, (size_t)PROTO_FRAME_MAX + WIRE_HEADER_BYTES + 2 * READ_BYTES);
    buf_init(&w->out, 0);
    buf_init(&w->flight, 0);
    buf_init(&w->sealed, 0);
    *out = w;
    return STATUS_OK;
}

void wire_close(struct wire *w)
{
    if (!w || w->closed)
        return;
    w->closed = true;
    loop_owner_remove(&w->owner);
    uv_close((uv_handle_t *)&w->tcp, handle_closed);
    uv_close((uv_handle_t *)&w->linger, handle_closed);
}

static void buf_shrink(struct buf *b)
{
    if (b->len == 0 && b->cap > KEEP_BYTES)
        buf_fini(b);
}

/* After this call w may be closed (but is still allocated). */
static void wire_fail(struct wire *w, int status, const char *why)
{
    if (w->closed)
        return;
    if (w->finishing) {
        wire_close(w);
        return;
    }
    uv_read_stop((uv_stream_t *)&w->tcp);
    w->failed(w->arg, status, why);
}

/* The first bytes of a TLS handshake or alert, where a frame is expected. */
static bool looks_like_tls(const struct buf *b)
{
    return b->len >= 3 && (b->data[0] == 0x15 || b->data[0] == 0x16) && b->data[1] == 0x03 &&
           b->data[2] <= 0x04;
}

static void key_is_missing(struct wire *w)
{
    wire_fail(w, STATUS_AUTH,
              "the cluster keys differ: the other side has one (or certificates), this side none");
}

static void wire_fail_uv(struct wire *w, int rc)
{
    bool ordinary = rc == UV_EOF || rc == UV_ECONNRESET || rc == UV_EPIPE;
    if (rc == UV_EOF && !w->tls && looks_like_tls(&w->in)) {
        key_is_missing(w);
        return;
    }
    if (ordinary && w->tls && !tls_ready(w->tls)) {
        wire_fail(w, STATUS_CLOSED,
                  "closed by the peer in the TLS handshake (if it goes on, the cluster keys "
                  "differ, or it "
                  "takes no such certificate)");
        return;
    }
    wire_fail(w, ordinary ? STATUS_CLOSED : status_from_uv(rc),
              rc == UV_EOF ? "closed by the peer" : uv_strerror(rc));
}

static void flush_soon(struct wire *w);
static void wire_flush_alert(struct wire *w);

/* ---- receiving ---- */

static void alloc_cb(uv_handle_t *h, size_t hint, uv_buf_t *out)
{
    struct wire *w = h->data;
    static _Thread_local char ciphertext[READ_BYTES]; /* used up before the next read */
    if (w->tls) {
        *out = uv_buf_init(ciphertext, sizeof ciphertext);
        return;
    }
    char *to = buf_reserve(&w->in, READ_BYTES);
    *out = uv_buf_init(to, to ? READ_BYTES : 0); /* none: read_cb gets UV_ENOBUFS */
}

static uint64_t get_le(const char *p, int bytes)
{
    uint64_t v = 0;
    for (int i = 0; i < bytes; i++)
        v |= (uint64_t)(uint8_t)p[i] << 8 * i;
    return v;
}

static void put_le(char *p, int bytes, uint64_t v)
{
    for (int i = 0; i < bytes; i++)
        p[i] = (char)(v >> 8 * i);
}

void wire_header(char header[WIRE_HEADER_BYTES], const void *p, size_t n)
{
    put_le(header, 4, n);
    put_le(header + 4, 4, ~(uint64_t)n);
    put_le(header + 8, 8, hash64(p, n, 0));
}

static void frame_is_corrupt(struct wire *w)
{
    metrics_add(w->corrupt, 1);
    wire_fail(w, STATUS_FORMAT, "a frame arrived damaged");
}

static void take_frames(struct wire *w)
{
    size_t at = 0;
    while (w->in.len - at >= WIRE_HEADER_BYTES) {
        const char *header = w->in.data + at, *message = header + WIRE_HEADER_BYTES;
        uint32_t n = (uint32_t)get_le(header, 4);
        if (get_le(header + 4, 4) != (uint32_t)~n) {
            if (!w->tls && looks_like_tls(&w->in))
                key_is_missing(w);
            else
                frame_is_corrupt(w);
            return;
        }
        if (n > w->frame_max) {
            char why[80];
            snprintf(why, sizeof why, "frame of %u bytes, at most %zu are allowed", n,
                     w->frame_max);
            wire_fail(w, STATUS_LIMIT, why);
            return;
        }
        if (w->in.len - at - WIRE_HEADER_BYTES < n)
            break;
        if (get_le(header + 8, 8) != hash64(message, n, 0)) {
            frame_is_corrupt(w);
            return;
        }
        w->frame(w->arg, message, n);
        if (w->closed || w->finishing)
            return;
        at += WIRE_HEADER_BYTES + n;
    }
    buf_consume(&w->in, at);
    buf_shrink(&w->in);
}

/* Ciphertext to w->in. After an error w is closed, once the peer's last frames are taken. */
static void unseal(struct wire *w, const char *p, size_t n)
{
    bool ready = tls_ready(w->tls);
    int status = tls_feed(w->tls, p, n, &w->in);
    if (status == STATUS_OK) {
        if (!ready)
            flush_soon(w); /* the handshake goes on, and what waited for its end goes out */
        return;
    }
    wire_flush_alert(w);
    take_frames(w);
    if (w->closed)
        return;
    char why[300];
    if (status == STATUS_CLOSED)
        snprintf(why, sizeof why, "closed by the peer");
    else
        snprintf(
            why, sizeof why, "%sTLS: %s",
            ready || tls_is_mutual(w->tls) ? "" : "the cluster keys differ: ", tls_error(w->tls));
    wire_fail(w, status, why);
    w->in.len = 0;
}

static void read_cb(uv_stream_t *s, ssize_t n, const uv_buf_t *b)
{
    struct wire *w = s->data;
    if (n == 0 || w->closed)
        return;
    if (n < 0) {
        wire_fail_uv(w, (int)n);
        return;
    }
    if (w->finishing) { /* to the end of what the peer still sends, without looking at it */
        buf_reset(&w->in);
        return;
    }
    w->last_rx_ms = uv_now(s->loop);
    if (w->tls)
        unseal(w, b->base, (size_t)n);
    else
        w->in.len += (size_t)n;
    if (!w->closed)
        take_frames(w);
}

static int wire_start(struct wire *w)
{
    UV_TRY(uv_read_start((uv_stream_t *)&w->tcp, alloc_cb, read_cb));
    w->last_rx_ms = loop_now_ms(w->loop);
    w->open = true;
    if (w->tls)
        flush_soon(w);
    return STATUS_OK;
}

int wire_accept(struct wire *w, uv_stream_t *listener)
{
    UV_TRY(uv_accept(listener, (uv_stream_t *)&w->tcp));
    return wire_start(w);
}

static void connect_cb(uv_connect_t *req, int rc)
{
    struct wire *w = req->data;
    if (w->closed)
        return;
    if (rc < 0) {
        wire_fail_uv(w, rc);
        return;
    }
    int status = wire_start(w);
    if (status)
        wire_fail(w, status, status_text(status));
    else
        w->opened(w->arg, STATUS_OK);
}

int wire_connect(struct wire *w, const struct sockaddr *to)
{
    w->connect.data = w;
    UV_TRY(uv_tcp_connect(&w->connect, &w->tcp, to, connect_cb));
    return STATUS_OK;
}

/* ---- sending ---- */

static void wire_flush(struct wire *w);

static void shutdown_cb(uv_shutdown_t *req, int status)
{
    struct wire *w = req->data;
    if (status < 0)
        wire_close(w);
}

static void write_cb(uv_write_t *req, int status)
{
    struct wire *w = req->data;
    w->writing = false;
    if (w->closed)
        return;
    buf_reset(&w->flight);
    buf_shrink(&w->flight);
    if (status < 0)
        wire_fail_uv(w, status);
    else
        wire_flush(w);
}

static void wire_flush(struct wire *w)
{
    if (w->full) {
        wire_fail(w, STATUS_FULL, "the peer takes too little; its queue is full");
        return;
    }
    if (w->writing || !w->open)
        return;
    struct buf *out = w->tls ? &w->sealed : &w->out;
    if (w->tls) {
        int status = tls_seal(w->tls, &w->out, &w->sealed);
        if (status != STATUS_OK) {
            wire_fail(w, status, tls_error(w->tls));
            return;
        }
        buf_shrink(&w->out);
    }
    if (out->len) {
        uv_buf_t b = uv_buf_init(out->data, (unsigned)out->len);
        int n = uv_try_write((uv_stream_t *)&w->tcp, &b, 1);
        if (n < 0 && n != UV_EAGAIN) {
            wire_fail_uv(w, n);
            return;
        }
        size_t done = n > 0 ? (size_t)n : 0;
        if (done < out->len) {
            struct buf empty = w->flight;
            w->flight = *out;
            *out = empty;
            b = uv_buf_init(w->flight.data + done, (unsigned)(w->flight.len - done));
            w->write.data = w;
            w->writing = true;
            int rc = uv_write(&w->write, (uv_stream_t *)&w->tcp, &b, 1, write_cb);
            if (rc < 0) {
                w->writing = false;
                wire_fail_uv(w, rc);
            }
            return;
        }
        buf_reset(out);
        buf_shrink(out);
    }
    if (w->finishing && !w->shutdown.data) {
        w->shutdown.data = w;
        if (uv_shutdown(&w->shutdown, (uv_stream_t *)&w->tcp, shutdown_cb) < 0)
            wire_close(w);
    }
}

/* Tells the peer what is wrong, if the socket takes it at once; the connection ends anyway. To
 * somebody whose first bytes are no TLS, OpenSSL says nothing: it gets handshake_failure. */
static void wire_flush_alert(struct wire *w)
{
    static char no_tls[] = {0x15, 0x03, 0x03, 0, 2, 2, 40};
    struct buf none = {0};
    if (w->writing || tls_seal(w->tls, &none, &w->sealed) == STATUS_OK)
        return;
    bool silent = w->sealed.len == 0 && !tls_ready(w->tls);
    uv_buf_t b = silent ? uv_buf_init(no_tls, sizeof no_tls)
                        : uv_buf_init(w->sealed.data, (unsigned)w->sealed.len);
    if (b.len && uv_try_write((uv_stream_t *)&w->tcp, &b, 1) < 0)
        w->sealed.len = 0;
}

static void flush_deferred(void *arg)
{
    struct wire *w = arg;
    w->flushing = false;
    if (!w->closed)
        wire_flush(w);
    wire_put(w);
}

static void flush_soon(struct wire *w)
{
    if (w->flushing)
        return;
    w->flushing = true;
    w->refs++;
    loop_defer(w->loop, flush_deferred, w);
}

size_t wire_queued(const struct wire *w)
{
    return w->out.len + w->sealed.len + w->tcp.write_queue_size;
}

int wire_send(struct wire *w, const struct proto_msg *m)
{
    if (!w->open || w->closed || w->finishing || w->full)
        return STATUS_CLOSED;
    size_t start = w->out.len;
    char header[WIRE_HEADER_BYTES] = {0};
    buf_append(&w->out, header, sizeof header);
    proto_encode(&w->out, m);
    size_t n = w->out.len - start - WIRE_HEADER_BYTES;
    if (!buf_ok(&w->out) || n > PROTO_FRAME_MAX) {
        int status = buf_ok(&w->out) ? STATUS_LIMIT : STATUS_NOMEM;
        w->out.failed = false;
        w->out.len = start;
        return status;
    }
    char *message = w->out.data + start + WIRE_HEADER_BYTES;
    wire_header(w->out.data + start, message, n);
    if (fault("frame.sent") == FAULT_CORRUPT)
        message[n / 2] ^= 1;
    flush_soon(w);
    if (wire_queued(w) > w->queue_max) {
        w->full = true;
        return STATUS_FULL;
    }
    return STATUS_OK;
}

static void linger_cb(uv_timer_t *t)
{
    wire_close(t->data);
}

/* The loop ends: one last try to send, without waiting for anybody. */
static void finish_now(struct loop_owner *o)
{
    struct wire *w = container_of(o, struct wire, owner);
    wire_flush(w);
    wire_close(w);
}

void wire_finish(struct wire *w)
{
    if (!w || w->closed || w->finishing)
        return;
    if (!w->open || w->full) {
        wire_close(w);
        return;
    }
    w->finishing = true;
    loop_owner_add(w->loop, &w->owner, finish_now);
    uv_timer_start(&w->linger, linger_cb, LINGER_MS, 0);
    flush_soon(w);
}
