/* http: HTTP/1.1 server on the loop (llhttp's only home): strict parsing, limits, pipelining,
 * chunked bodies, Expect: 100-continue, keep-alive, streamed responses with back-pressure.
 *
 * A request is delivered once its body is complete. Exactly one answer per request, in order; the
 * next pipelined request waits for it. After any parse error, an early refusal with an unread body,
 * or a limit: an OpenAI error object, Connection: close, and the connection is closed (lingering so
 * that the answer arrives). Exactly one Host header is required in HTTP/1.1; Transfer-Encoding
 * together with Content-Length, differing or repeated Content-Length, and unknown codings are 400.
 */
#ifndef BATON_NET_HTTP_H
#define BATON_NET_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/net/loop.h"
#include "common/net/tls.h"

#define HTTP_ID_MAX   128
#define HTTP_USER_MAX 80

struct http_server;
struct http_request; /* one request and its answer; valid until `closed` was called or the answer
                        ended */

struct http_options {
    size_t header_max;          /* 64 KiB for the request line and all headers -> 431 */
    size_t headers_count_max;   /* 100 -> 431 */
    size_t body_max;            /* 413 */
    uint64_t header_timeout_ms; /* first byte of a request to the end of its headers -> 408 */
    uint64_t body_timeout_ms;   /* end of headers to the end of the body -> 408 */
    uint64_t idle_timeout_ms;   /* between requests; closed silently */
    uint64_t write_timeout_ms;  /* a client that takes nothing for this long is dropped */
    size_t write_max; /* bytes queued for one slow client before http_stream_write says FULL */
    uint32_t max_connections;
    int listen_fd; /* a socket that listens already, now the server's; 0: open one at the address */
};
void http_options_default(struct http_options *o);

struct http_callbacks {
    /* The head is complete, the body may not be: return 0 to go on, or an HTTP status to refuse
     * with (body unread, connection closed afterwards; *message is a static string; headers that
     * were added go with it); NULL callback: all accepted. */
    int (*head)(void *arg, struct http_request *r, const char **message);
    void (*request)(void *arg, struct http_request *r);
    /* The client went away before the answer was complete, or the server was closed. r is freed
     * after the call. A request that head() saw and whose body never became complete is not told.
     */
    void (*closed)(void *arg, struct http_request *r);
    /* For metrics and the log: status of every answer, also of those the server gave itself. Called
     * from inside the call that completes the answer. */
    void (*answered)(void *arg, int status);
    /* A client went away, or was dropped, before it had taken the end of complete answers. May be
     * NULL, as may closed and answered. */
    void (*undelivered)(void *arg);
};

int http_listen(struct loop *loop, const char *address, const struct http_options *o,
                const struct http_callbacks *cb, void *arg, struct http_server **out, char *err,
                size_t errlen) WARN_UNUSED;
const char *http_server_address(const struct http_server *s);
/* Stops accepting; idle connections are closed, but one that was accepted a moment ago may still
 * bring its request; running answers go on, further requests on their connections get Connection:
 * close. Call it again and again: true once nobody is owed anything. */
bool http_server_drain(struct http_server *s);
const struct http_options *http_server_options(const struct http_server *s);
/* Takes over the four time limits and max_connections; for deadlines that are set from now on. */
void http_server_set_limits(struct http_server *s, const struct http_options *o);
/* HTTPS from the next connection on; keeps the context. Before: plain HTTP. */
const struct tls_context *http_server_tls(const struct http_server *s);
void http_server_set_tls(struct http_server *s, struct tls_context *tls);
uint32_t http_server_open_requests(const struct http_server *s);
/* Closes everything now; owners of running requests get closed() from inside this call. Freed once
 * the loop has run its close callbacks. */
void http_server_close(struct http_server *s);

const char *http_method(const struct http_request *r); /* "GET" */
const char *http_path(const struct http_request *r); /* decoded, without the query; starts with / */
const char *http_query(const struct http_request *r); /* raw, "" when there is none */
/* First header of that name (case-insensitive), or NULL. */
const char *http_header(const struct http_request *r, const char *name);
/* The request's id: the client's x-request-id when it has 1 to HTTP_ID_MAX visible ASCII
 * characters, else one of our own. Every answer to a request whose head was read carries it as
 * X-Request-Id. */
/* Who sent it, as its owner found out; "" as long as nobody did. Copied, cut at HTTP_USER_MAX. */
void http_set_user(struct http_request *r, const char *name);
const char *http_user(const struct http_request *r);
const char *http_request_id(const struct http_request *r);
const char *http_body(const struct http_request *r, size_t *n);
/* Hands the body over to the caller (buf_fini frees it); the request has none any more. */
void http_take_body(struct http_request *r, struct buf *out);
/* Something that the request uses; end takes it back when the request is over, however that is.
 * Once for each request. */
void http_hold(struct http_request *r, void *what, void (*end)(void *what));
void *http_held(const struct http_request *r); /* NULL: nothing */
void http_set_data(struct http_request *r, void *data);
void *http_data(const struct http_request *r);

/* Extra response header; before the answer begins. A value with a line break is left out. */
void http_add_header(struct http_request *r, const char *name, const char *value);
/* The whole answer at once; r is gone after this call. HEAD gets no body. */
void http_respond(struct http_request *r, int status, const char *content_type, const void *body,
                  size_t n);
/* {"error":{"message":…,"type":…,"param":…,"code":…}}; type from the status; param and code may be
 * NULL. r is gone after this call. */
void http_respond_error(struct http_request *r, int status, const char *param, const char *code,
                        const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/* A streamed answer (chunked; for HTTP/1.0 until close). */
void http_stream_begin(struct http_request *r, int status, const char *content_type);
/* Queues a copy. STATUS_FULL when more than write_max would wait for the client (an empty queue
 * takes any n): nothing was queued, `drained` fires when there is room again. What the socket takes
 * at once does not wait, however much it is in one turn of the loop. */
int http_stream_write(struct http_request *r, const void *p, size_t n) WARN_UNUSED;
void http_stream_on_drained(struct http_request *r, void (*fn)(void *arg, struct http_request *r));
size_t http_stream_pending(const struct http_request *r);
/* Completes the answer; r is gone after this call. */
void http_stream_end(struct http_request *r);
/* Cuts the connection so that the client sees the answer is incomplete; r is gone after this call.
 */
void http_stream_abort(struct http_request *r);

#endif
