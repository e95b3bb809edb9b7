/* http_conn: one HTTP connection: reading, states and deadlines, writing.
 *
 *            first byte        head accepted       body complete
 *    IDLE ──────────────> HEAD ────────────> BODY ──────────────> ANSWER
 *      ^                    │ refused, 408     │ refused, 408       │ answered
 *      └────────────────────┼──────────────────┼── keep-alive ──────┤
 *                           └──────────────────┴─────────────────> LINGER ──> CLOSED
 *
 * http_conn_set_state is the only writer of the state. Each state has a deadline but ANSWER, where
 * the owner's time-outs rule; in every state a client that takes no byte for write_timeout_ms while
 * some wait is dropped. IDLE waits idle_timeout_ms for the next request, counted from the last byte
 * of the answer before it; with TLS the first IDLE is the handshake, which has header_timeout_ms.
 *
 * Turns. Answers fill `out` (streams fill `chunk`); http_conn_turn, deferred to the end of the turn
 * of the loop, writes them with one uv_try_write and hands only the rest to a uv_write. A stream
 * that has more than write_max to say in one turn writes earlier: only what the socket has refused
 * counts as slowness of its reader. The next pipelined request is parsed there as well, when most
 * of the answers before it has been taken: one request of a connection is worked on at a time.
 *
 * Has the client gone, or only finished sending? Both look the same: an EOF. A client that closed
 * its socket answers any further byte with a reset; one that shut down its sending side reads on.
 * So after an EOF during ANSWER we look at the state of the TCP connection every GONE_POLL_MS, and
 * provoke the reset: a stream sends bytes anyway (comments keep it alive), and for an answer that
 * has not begun we send the first bytes of its first word ("HTTP/1.1 ", the same whatever the
 * status) one by one, at intervals that double. No client can tell this from a slow network.
 *
 * Life. refs counts the two uv handles. http_conn_close may be called in any state; the memory
 * stays until the close callbacks, so callers test for CONN_CLOSED after calling out. */
#include "common/net/http_conn.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/assert.h"
#include "common/base/log.h"

#define READ_BYTES      16384
#define READ_BYTES_BODY 65536
#define IN_MAX          65536 /* pipelined bytes kept while an answer is on its way */
#define LINGER_MS       2000
#define LINGER_BYTES    (64u << 20)
#define GONE_POLL_MS    100
#define PROBE_FIRST_MS  1000
#define FIRST_WORD      9 /* strlen(http_first_word) */

static void conn_advance(struct http_conn *c);
static void conn_rearm(struct http_conn *c);

/* From now on it waits for a request, or for the end of its handshake. */
static void conn_is_idle(struct http_conn *c)
{
    const struct http_options *o = &c->server->options;
    bool shaking = c->tls && !tls_ready(c->tls);
    c->idle_ms = loop_now_ms(c->server->loop);
    c->deadline_ms = c->idle_ms + (shaking ? o->header_timeout_ms : o->idle_timeout_ms);
}

void http_conn_set_state(struct http_conn *c, enum conn_state to)
{
    static const uint8_t next[] = {
        [CONN_IDLE] = 1 << CONN_HEAD | 1 << CONN_LINGER | 1 << CONN_CLOSED,
        [CONN_HEAD] = 1 << CONN_BODY | 1 << CONN_LINGER | 1 << CONN_CLOSED,
        [CONN_BODY] = 1 << CONN_ANSWER | 1 << CONN_LINGER | 1 << CONN_CLOSED,
        [CONN_ANSWER] = 1 << CONN_IDLE | 1 << CONN_LINGER | 1 << CONN_CLOSED,
        [CONN_LINGER] = 1 << CONN_CLOSED,
        [CONN_CLOSED] = 0,
    };
    struct http_server *s = c->server;
    const struct http_options *o = &s->options;
    uint64_t now = loop_now_ms(s->loop);

    ASSERT_MSG(next[c->state] >> to & 1, "HTTP connection: state %d -> %d", c->state, to);
    s->n_requests += to == CONN_ANSWER;
    s->n_requests -= c->state == CONN_ANSWER;
    c->state = to;
    list_remove(&c->idle);
    c->deadline_ms = 0;
    switch (to) {
    case CONN_IDLE:
        list_push_back(&s->idle, &c->idle);
        conn_is_idle(c);
        break;
    case CONN_HEAD:
        c->deadline_ms = now + o->header_timeout_ms;
        break;
    case CONN_BODY:
        c->deadline_ms = now + o->body_timeout_ms;
        break;
    case CONN_LINGER:
        buf_fini(&c->in);
        break;
    case CONN_ANSWER:
    case CONN_CLOSED:
        break;
    }
}

/* ---- ends ---- */

static void handle_closed(uv_handle_t *h)
{
    struct http_conn *c = h->data;
    if (--c->refs)
        return;
    struct http_server *s = c->server;
    buf_fini(&c->in);
    buf_fini(&c->chunk);
    buf_fini(&c->out);
    buf_fini(&c->flight);
    buf_fini(&c->sealed);
    tls_destroy(c->tls);
    free(c);
    http_server_conn_closed(s);
}

void http_conn_close(struct http_conn *c)
{
    if (c->state == CONN_CLOSED)
        return;
    struct http_server *s = c->server;
    struct http_request *r = c->request;
    bool owned = c->state == CONN_ANSWER;
    bool undelivered = !owned && !c->cut && (c->writing || c->out.len || c->sealed.len) &&
                       (!c->tls || (tls_ready(c->tls) && !c->said_goodbye));

    http_conn_set_state(c, CONN_CLOSED);
    list_remove(&c->node);
    list_remove(&c->dirty);
    if (!c->reset || uv_tcp_close_reset(&c->tcp, handle_closed) < 0)
        uv_close((uv_handle_t *)&c->tcp, handle_closed);
    uv_close((uv_handle_t *)&c->timer, handle_closed);
    c->request = NULL;
    if (owned && s->cb.closed)
        s->cb.closed(s->arg, r);
    if (undelivered && s->cb.undelivered)
        s->cb.undelivered(s->arg);
    if (r)
        http_request_free(r);
}

void http_conn_answered(struct http_conn *c, bool keep_alive)
{
    http_request_free(c->request);
    c->request = NULL;
    buf_fini(&c->chunk);
    bool more = keep_alive && !(c->eof && c->in.len == 0);
    http_conn_set_state(c, more ? CONN_IDLE : CONN_LINGER);
    http_conn_touch(c);
}

/* ---- writing ---- */

size_t http_conn_pending(const struct http_conn *c)
{
    return c->chunk.len + c->out.len + c->sealed.len + c->tcp.write_queue_size;
}

static void write_cb(uv_write_t *req, int status)
{
    struct http_conn *c = req->data;
    buf_fini(&c->flight);
    if (c->state == CONN_CLOSED)
        return;
    if (status < 0) {
        http_conn_close(c);
        return;
    }
    c->writing = false;
    if (c->state == CONN_IDLE && (!c->tls || tls_ready(c->tls)))
        conn_is_idle(c);
    http_conn_turn(c);
}

static void shutdown_cb(uv_shutdown_t *req, int status)
{
    struct http_conn *c = req->data;
    if (status < 0)
        http_conn_close(c);
}

static void conn_flush(struct http_conn *c);

/* Everything has been written and no request will follow. */
static void conn_goodbye(struct http_conn *c)
{
    if (c->cut || c->eof) {
        http_conn_close(c);
        return;
    }
    if (c->goodbye)
        return;
    if (c->tls && !c->said_goodbye) {
        c->said_goodbye = true;
        tls_goodbye(c->tls);
        conn_flush(c); /* and comes back here */
        return;
    }
    c->goodbye = true;
    c->deadline_ms = loop_now_ms(c->server->loop) + LINGER_MS;
    c->shutdown.data = c;
    if (uv_shutdown(&c->shutdown, (uv_stream_t *)&c->tcp, shutdown_cb) < 0)
        http_conn_close(c);
}

/* Gives the socket what it takes at once; the rest stays. False: the connection is broken. */
static bool conn_push(struct http_conn *c)
{
    struct buf *out = c->tls ? &c->sealed : &c->out;
    if (c->tls && tls_seal(c->tls, &c->out, &c->sealed) != STATUS_OK)
        c->cut = true; /* what is left to send is an alert */
    if (out->len == 0)
        return true;
    uv_buf_t b = uv_buf_init(out->data, (unsigned)out->len);
    int n = uv_try_write((uv_stream_t *)&c->tcp, &b, 1);
    if (n > 0)
        buf_consume(out, (size_t)n);
    return n >= 0 || n == UV_EAGAIN;
}

void http_conn_push(struct http_conn *c)
{
    http_answer_pack(c);
    if (!c->writing && buf_ok(&c->out))
        (void)conn_push(c); /* one that is broken is found so again when the turn ends */
}

static void conn_flush(struct http_conn *c)
{
    if (!buf_ok(&c->out)) {
        log_error("HTTP connection dropped: %s", status_text(STATUS_NOMEM));
        http_conn_close(c);
        return;
    }
    if (c->writing)
        return;
    struct buf *out = c->tls ? &c->sealed : &c->out;
    if (!conn_push(c) || (c->cut && c->tls && c->state <= CONN_BODY && out->len == 0)) {
        http_conn_close(c);
        return;
    }
    if (out->len) {
        c->flight = *out;
        buf_init(out, 0);
        uv_buf_t b = uv_buf_init(c->flight.data, (unsigned)c->flight.len);
        c->write.data = c;
        c->writing = true;
        c->written_ms = loop_now_ms(c->server->loop);
        if (uv_write(&c->write, (uv_stream_t *)&c->tcp, &b, 1, write_cb) < 0) {
            http_conn_close(c);
            return;
        }
        c->write_left = c->tcp.write_queue_size;
        return;
    }
    if (c->state != CONN_ANSWER || out->cap > c->server->options.write_max)
        buf_fini(out); /* connections that wait hold no buffers */
    if (c->tls && c->out.len == 0 && c->state != CONN_ANSWER)
        buf_fini(&c->out);
    if (c->state == CONN_LINGER)
        conn_goodbye(c);
    else if (c->state == CONN_IDLE)
        http_server_conn_idle(c->server);
}

void http_conn_turn(struct http_conn *c)
{
    if (c->state == CONN_CLOSED)
        return;
    if (c->request && c->request->streaming)
        http_answer_pack(c);
    conn_flush(c);
    if (c->state == CONN_CLOSED)
        return;
    struct http_request *r = c->request;
    if (r && r->was_full && http_conn_pending(c) <= c->server->options.write_max / 2) {
        r->was_full = false;
        if (r->drained)
            r->drained(c->server->arg, r);
        if (c->state == CONN_CLOSED)
            return;
    }
    conn_advance(c);
    if (c->state != CONN_CLOSED)
        conn_rearm(c);
}

/* ---- reading ---- */

static void alloc_cb(uv_handle_t *h, size_t hint, uv_buf_t *out)
{
    struct http_conn *c = h->data;
    static _Thread_local char ciphertext[READ_BYTES_BODY]; /* used up before the next read */
    if (c->tls) {
        *out = uv_buf_init(ciphertext, sizeof ciphertext);
        return;
    }
    size_t n = c->state == CONN_BODY || c->state == CONN_LINGER ? READ_BYTES_BODY : READ_BYTES;
    char *to = buf_reserve(&c->in, n);
    *out = uv_buf_init(to, to ? (unsigned)n : 0);
}

/* The client sends no more. What it has asked for is still answered, unless it has gone. */
static void conn_eof(struct http_conn *c)
{
    c->eof = true;
    c->reading = false;
    c->probe_ms = c->gone_ms = loop_now_ms(c->server->loop);
    if (c->state == CONN_LINGER) {
        if (!c->writing && c->out.len == 0)
            http_conn_close(c);
    } else if (c->state != CONN_ANSWER && c->in.len == 0) { /* else conn_advance comes back */
        if (http_conn_pending(c)) /* answers before the last one are still on their way */
            http_conn_set_state(c, CONN_LINGER);
        else
            http_conn_close(c);
    }
}

/* Ciphertext to c->in; how many bytes that were, or what read_cb does with an end. */
static ssize_t unseal(struct http_conn *c, const char *p, size_t n)
{
    size_t before = c->in.len;
    bool shaking = !tls_ready(c->tls);
    int rc = tls_feed(c->tls, p, n, &c->in);
    size_t got = c->in.len - before;
    if (shaking && tls_ready(c->tls) && c->state == CONN_IDLE)
        conn_is_idle(c);
    c->in.len = before; /* read_cb counts what it was given */
    if (rc == STATUS_OK || got) {
        if (rc != STATUS_OK)
            c->tls_ended = true; /* after these bytes */
        http_conn_touch(c);      /* the handshake may have something to say */
        return (ssize_t)got;
    }
    if (rc == STATUS_CLOSED)
        return UV_EOF;
    if (c->state != CONN_LINGER && !tls_ready(c->tls)) {
        struct http_server *s = c->server;
        uint32_t held_back;
        if (log_limit_pass(&s->log_refused, loop_now_ms(s->loop), &held_back))
            log_info("TLS handshake failed: %s (%u more since the last such line)",
                     tls_error(c->tls), held_back);
        c->cut = true;
        conn_flush(c); /* the alert */
    }
    return UV_ECONNABORTED;
}

static void read_cb(uv_stream_t *s, ssize_t n, const uv_buf_t *b)
{
    struct http_conn *c = s->data;
    if (n == 0 || c->state == CONN_CLOSED)
        return;
    if (c->tls && n > 0) {
        n = unseal(c, b->base, (size_t)n);
        if (n == 0 || c->state == CONN_CLOSED)
            return;
    }
    if (n == UV_EOF) {
        conn_eof(c);
    } else if (n < 0) {
        http_conn_close(c);
    } else if (c->state == CONN_LINGER) {
        buf_reset(&c->in);
        c->lingered += (size_t)n;
        if (c->lingered > LINGER_BYTES)
            http_conn_close(c);
    } else {
        c->in.len += (size_t)n;
        conn_advance(c);
    }
    if (c->state != CONN_CLOSED && c->tls_ended && !c->eof)
        conn_eof(c);
    if (c->state != CONN_CLOSED)
        conn_rearm(c);
}

/* Reads unless enough pipelined bytes wait already. */
static void conn_set_reading(struct http_conn *c)
{
    bool want = !c->eof && c->in.len < IN_MAX;
    if (want == c->reading)
        return;
    c->reading = want;
    if (!want)
        uv_read_stop((uv_stream_t *)&c->tcp);
    else if (uv_read_start((uv_stream_t *)&c->tcp, alloc_cb, read_cb) < 0)
        http_conn_close(c);
}

static bool conn_begin_request(struct http_conn *c)
{
    if (http_conn_pending(c) > c->server->options.write_max)
        return false; /* first the client takes the answers that wait; write_cb comes back here */
    c->request = http_request_create(c);
    if (!c->request) {
        http_conn_close(c);
        return false;
    }
    http_conn_set_state(c, CONN_HEAD);
    http_parse_begin(c);
    return true;
}

/* Works on the bytes that have arrived until they are used up or a request is with its owner. */
static void conn_advance(struct http_conn *c)
{
    while (c->state <= CONN_BODY && c->in.len) {
        if (c->state == CONN_IDLE && !conn_begin_request(c))
            break;
        enum http_parsed parsed = http_parse(c);
        if (c->state == CONN_CLOSED)
            return;
        if (parsed == HTTP_REFUSED) {
            struct http_server *s = c->server;
            uint32_t held_back;
            if (log_limit_pass(&s->log_refused, loop_now_ms(s->loop), &held_back))
                log_warn("request refused with %d: %s (%u more since the last such line)",
                         c->fail_status, c->fail_message, held_back);
            http_refuse(c, c->fail_status, c->fail_message);
        } else if (parsed == HTTP_DONE) {
            http_conn_set_state(c, CONN_ANSWER);
            c->probe_ms = c->gone_ms = loop_now_ms(c->server->loop);
            c->server->cb.request(c->server->arg, c->request);
            break; /* the request may have been answered: the turn goes on from there */
        }
    }
    if (c->state == CONN_CLOSED)
        return;
    if (c->eof && c->state <= CONN_BODY && c->in.len == 0)
        conn_eof(c);
    if (c->in.len == 0 && c->state != CONN_BODY)
        buf_fini(&c->in);
    if (c->state != CONN_CLOSED)
        conn_set_reading(c);
}

void http_conn_touch(struct http_conn *c)
{
    struct http_server *s = c->server;
    if (c->state == CONN_CLOSED || !list_empty(&c->dirty))
        return;
    list_push_back(&s->dirty, &c->dirty);
    http_server_turn_soon(s);
}

/* ---- time ---- */

static bool client_is_gone(const struct http_conn *c)
{
    struct tcp_info info;
    socklen_t len = sizeof info;
    uv_os_fd_t fd;
    return uv_fileno((const uv_handle_t *)&c->tcp, &fd) == 0 &&
           getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 && info.tcpi_state == TCP_CLOSE;
}

static void watch_half_closed(struct http_conn *c, uint64_t now)
{
    if (client_is_gone(c)) {
        http_conn_close(c);
        return;
    }
    c->gone_ms = now + GONE_POLL_MS;
    if (!c->request->streaming && now >= c->probe_ms && c->probes < FIRST_WORD &&
        http_conn_pending(c) == 0) {
        buf_append(&c->out, &http_first_word[c->probes], 1);
        c->probe_ms = now + ((uint64_t)PROBE_FIRST_MS << c->probes);
        c->probes++;
        http_conn_touch(c);
    }
}

static void state_deadline(struct http_conn *c)
{
    switch (c->state) {
    case CONN_HEAD:
        http_refuse(c, 408, "The request head did not arrive in time.");
        break;
    case CONN_BODY:
        http_refuse(c, 408, "The request body did not arrive in time.");
        break;
    default:
        http_conn_close(c);
    }
}

static void timer_cb(uv_timer_t *t)
{
    struct http_conn *c = t->data;
    uint64_t now = loop_now_ms(c->server->loop);

    if (c->writing && c->tcp.write_queue_size != c->write_left) {
        c->write_left = c->tcp.write_queue_size;
        c->written_ms = now;
    }
    if (c->writing && now - c->written_ms >= c->server->options.write_timeout_ms) {
        http_conn_close(c);
        return;
    }
    if (c->deadline_ms && now >= c->deadline_ms && (c->state != CONN_IDLE || !c->writing))
        state_deadline(c);
    else if (c->state == CONN_ANSWER && c->eof && now >= c->gone_ms)
        watch_half_closed(c, now);
    if (c->state != CONN_CLOSED)
        conn_rearm(c);
}

static void earlier(uint64_t *due, uint64_t t)
{
    *due = *due == 0 || t < *due ? t : *due;
}

static void conn_rearm(struct http_conn *c)
{
    uint64_t now = loop_now_ms(c->server->loop), due = c->deadline_ms;
    if (c->writing) {
        due = c->state == CONN_IDLE ? 0 : due;
        earlier(&due, now + c->server->options.write_timeout_ms / 4 + 1);
    }
    if (c->state == CONN_ANSWER && c->eof)
        earlier(&due, c->gone_ms);
    if (due == 0)
        uv_timer_stop(&c->timer);
    else
        uv_timer_start(&c->timer, timer_cb, due > now ? due - now : 0, 0);
}

/* ---- creation ---- */

void http_conn_create(struct http_server *s, int fd)
{
    struct http_conn *c = calloc(1, sizeof *c);
    if (!c) {
        close(fd);
        return;
    }
    uv_tcp_init(&s->loop->uv, &c->tcp);
    uv_timer_init(&s->loop->uv, &c->timer);
    c->tcp.data = c->timer.data = c;
    c->refs = 2;
    c->server = s;
    list_init(&c->idle);
    list_init(&c->dirty);
    buf_init(&c->in, IN_MAX + 2 * READ_BYTES_BODY);
    buf_init(&c->chunk, 0);
    buf_init(&c->out, 0);
    list_push_back(&s->conns, &c->node);
    list_push_back(&s->idle, &c->idle);
    s->n_conns++;
    s->refs++;
    if (s->tls && tls_create(s->tls, true, &c->tls) != STATUS_OK) {
        close(fd);
        http_conn_close(c);
        return;
    }
    conn_is_idle(c);
    buf_init(&c->sealed, 0);
    if (uv_tcp_open(&c->tcp, fd) < 0) {
        close(fd);
        http_conn_close(c);
        return;
    }
    tcp_tune(&c->tcp, s->options.write_timeout_ms);
    conn_set_reading(c);
    if (c->state != CONN_CLOSED)
        conn_rearm(c);
}
