/* http_parse: llhttp (strict, its only home) and what we ask of a request beyond its grammar.
 *
 * llhttp refuses by itself: bad methods, targets, tokens and line ends, Transfer-Encoding together
 * with Content-Length, repeated or odd Content-Length values, obsolete line folding. Added here:
 * exactly one Host (HTTP/1.1), no coding but a single "chunked", versions 1.0 and 1.1 only, sizes
 * of head and body, no control characters in the decoded path.
 *
 * Every raw byte counts: the head up to header_max (blanks and line ends included), and the framing
 * of a chunked body (extensions, trailers) in proportion to the body it carries. The body buffer
 * grows with what has arrived, never with what was announced. */
#include "common/net/http_conn.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/assert.h"
#include "common/base/rng.h"

#define BODY_FRAMING_MAX  65536 /* bytes of chunk framing and trailers that are always allowed */
#define BODY_FRAMING_RATE 16    /* and per byte of the body */

struct http_request *http_request_create(struct http_conn *c)
{
    struct http_request *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->conn = c;
    /* one NUL for each string comes on top of the bytes of the wire */
    buf_init(&r->head,
             c->server->options.header_max + 4096 + 2 * (c->server->options.headers_count_max + 2));
    buf_init(&r->body, c->server->options.body_max + 1);
    buf_init(&r->extra, 16384);
    return r;
}

void http_request_free(struct http_request *r)
{
    if (r->held)
        r->held_end(r->held);
    buf_fini(&r->head);
    buf_fini(&r->body);
    buf_fini(&r->extra);
    free(r->headers);
    free(r->path);
    free(r->query);
    free(r);
}

/* Remembers why; the result makes llhttp stop. */
static int refuse(struct http_conn *c, int status, const char *message)
{
    if (!c->fail_status) {
        c->fail_status = status;
        c->fail_message = message;
    }
    return -1;
}

static int put(struct http_conn *c, const char *p, size_t n)
{
    buf_append(&c->request->head, p, n);
    return buf_ok(&c->request->head) ? 0 : refuse(c, 431, "The request head is too large.");
}

static int on_url(llhttp_t *parser, const char *p, size_t n)
{
    return put(parser->data, p, n);
}

static int on_url_complete(llhttp_t *parser)
{
    return put(parser->data, "", 1);
}

static int on_header_field(llhttp_t *parser, const char *p, size_t n)
{
    struct http_conn *c = parser->data;
    struct http_request *r = c->request;
    if (c->state != CONN_HEAD) /* a trailer: only its size matters */
        return 0;
    if (c->value_last) {
        if (r->n_headers == c->server->options.headers_count_max)
            return refuse(c, 431, "The request has too many headers.");
        if (r->n_headers == r->cap_headers) {
            uint32_t cap = r->cap_headers ? 2 * r->cap_headers : 16;
            struct http_header *more = realloc(r->headers, cap * sizeof *more);
            if (!more)
                return refuse(c, 503, "Out of memory.");
            r->headers = more;
            r->cap_headers = cap;
        }
        r->headers[r->n_headers++].name = (uint32_t)r->head.len;
        c->value_last = false;
    }
    return put(c, p, n);
}

static int on_header_field_complete(llhttp_t *parser)
{
    struct http_conn *c = parser->data;
    struct http_request *r = c->request;
    if (c->state != CONN_HEAD)
        return 0;
    if (put(c, "", 1) != 0)
        return -1;
    r->headers[r->n_headers - 1].value = (uint32_t)r->head.len;
    return 0;
}

static int on_header_value(llhttp_t *parser, const char *p, size_t n)
{
    struct http_conn *c = parser->data;
    return c->state == CONN_HEAD ? put(c, p, n) : 0;
}

static int on_header_value_complete(llhttp_t *parser)
{
    struct http_conn *c = parser->data;
    if (c->state != CONN_HEAD)
        return 0;
    c->value_last = true;
    struct buf *head = &c->request->head;
    size_t start = c->request->headers[c->request->n_headers - 1].value;
    while (head->len > start &&
           (head->data[head->len - 1] == ' ' || head->data[head->len - 1] == '\t'))
        head->len--;
    return put(c, "", 1);
}

static int hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Percent-decoding; false for a broken escape or a control character (NUL among them). */
static bool decode_path(char *to, const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int v = (unsigned char)p[i];
        if (v == '%') {
            if (n - i < 3 || hex(p[i + 1]) < 0 || hex(p[i + 2]) < 0)
                return false;
            v = hex(p[i + 1]) << 4 | hex(p[i + 2]);
            i += 2;
        }
        if (v < 0x20 || v == 0x7f)
            return false;
        *to++ = (char)v;
    }
    *to = 0;
    return true;
}

/* Splits the target into path and query: "/v1/models?x=1", "http://host/v1/models", "*". */
static int take_target(struct http_conn *c)
{
    struct http_request *r = c->request;
    const char *p = r->head.data;
    if (strncasecmp(p, "http://", 7) == 0 || strncasecmp(p, "https://", 8) == 0) {
        p = strstr(p, "//") + 2;
        p += strcspn(p, "/?");
    } else if (strcmp(p, "*") == 0) {
        p = "/";
    } else if (*p != '/') {
        return refuse(c, 400, "The request target is not understood.");
    }
    size_t n = strcspn(p, "?");
    if (strchr(p, '#'))
        return refuse(c, 400, "The request target must not have a fragment.");
    r->path = malloc(n + 2);
    r->query = strdup(p[n] ? p + n + 1 : "");
    if (!r->path || !r->query)
        return refuse(c, 503, "Out of memory.");
    bool ok = n ? decode_path(r->path, p, n) : decode_path(r->path, "/", 1);
    return ok ? 0 : refuse(c, 400, "The path of the request is not valid.");
}

static unsigned header_count(const struct http_request *r, const char *name)
{
    unsigned n = 0;
    for (uint32_t i = 0; i < r->n_headers; i++)
        n += strcasecmp(r->head.data + r->headers[i].name, name) == 0;
    return n;
}

static void take_id(struct http_request *r)
{
    const char *id = http_header(r, "x-request-id");
    size_t n = 0;
    while (id && id[n] > ' ' && id[n] < 0x7f)
        n++;
    if (n && n <= HTTP_ID_MAX && id[n] == '\0')
        memcpy(r->id, id, n + 1);
    else
        snprintf(r->id, sizeof r->id, "req-%016" PRIx64 "%016" PRIx64, rng_u64(), rng_u64());
}

static bool host_is_valid(const char *host)
{
    for (; *host; host++) {
        if ((unsigned char)*host <= ' ' || strchr(",/?#@\\\"<>", *host))
            return false;
    }
    return true;
}

static int check_head(struct http_conn *c)
{
    struct http_request *r = c->request;
    const llhttp_t *parser = &c->parser;
    const struct http_options *o = &c->server->options;

    if (parser->http_major != 1 || parser->http_minor > 1)
        return refuse(c, 505, "Only versions 1.0 and 1.1 of HTTP are spoken here.");
    if (parser->method == HTTP_CONNECT)
        return refuse(c, 405, "This is not a proxy.");
    unsigned hosts = header_count(r, "host");
    if (hosts > 1 || (hosts == 0 && !r->http10))
        return refuse(c, 400, hosts ? "More than one Host header." : "The Host header is missing.");
    if (hosts && !host_is_valid(http_header(r, "host")))
        return refuse(c, 400, "The Host header is not valid.");
    if (header_count(r, "content-length") > 1)
        return refuse(c, 400, "More than one Content-Length header.");
    unsigned codings = header_count(r, "transfer-encoding");
    if (codings && r->http10)
        return refuse(c, 400, "Transfer-Encoding needs HTTP/1.1.");
    if (codings && (codings > 1 || strcasecmp(http_header(r, "transfer-encoding"), "chunked") != 0))
        return refuse(c, 400, "The only transfer coding that is understood is chunked.");
    const char *expect = http_header(r, "expect");
    if (expect && (strcasecmp(expect, "100-continue") != 0 || header_count(r, "expect") > 1))
        return refuse(c, 417, "The only expectation that is understood is 100-continue.");
    if ((parser->flags & F_CONTENT_LENGTH) && parser->content_length > o->body_max)
        return refuse(c, 413, "The request body is too large.");
    return take_target(c);
}

static int on_headers_complete(llhttp_t *parser)
{
    struct http_conn *c = parser->data;
    struct http_request *r = c->request;
    const char *message = NULL;

    r->method = llhttp_method_name((llhttp_method_t)parser->method);
    r->http10 = parser->http_major == 1 && parser->http_minor == 0;
    r->head_only = parser->method == HTTP_HEAD;
    r->keep_alive = llhttp_should_keep_alive(parser) != 0;
    take_id(r);
    if (check_head(c) != 0)
        return -1;
    parser->upgrade = 0; /* we stay with HTTP/1.1, whatever else the client could speak */
    if (c->server->cb.head) {
        int status = c->server->cb.head(c->server->arg, r, &message);
        if (c->state == CONN_CLOSED) /* by the owner; r is gone */
            return -1;
        if (status)
            return refuse(c, status, message ? message : "The request is refused.");
    }
    bool has_body = (parser->flags & F_CHUNKED) ||
                    ((parser->flags & F_CONTENT_LENGTH) && parser->content_length > 0);
    if (has_body && !r->http10 && http_header(r, "expect")) {
        buf_puts(&c->out, "HTTP/1.1 100 Continue\r\n\r\n");
        http_conn_touch(c);
    }
    http_conn_set_state(c, CONN_BODY);
    return 0;
}

static int on_body(llhttp_t *parser, const char *p, size_t n)
{
    struct http_conn *c = parser->data;
    struct http_request *r = c->request;
    if (n > c->server->options.body_max - r->body.len)
        return refuse(c, 413, "The request body is too large.");
    buf_append(&r->body, p, n);
    return buf_ok(&r->body) ? 0 : refuse(c, 503, "Out of memory.");
}

static int on_message_complete(llhttp_t *parser)
{
    return HPE_PAUSED;
}

static const llhttp_settings_t settings = {.on_url = on_url,
                                           .on_url_complete = on_url_complete,
                                           .on_header_field = on_header_field,
                                           .on_header_field_complete = on_header_field_complete,
                                           .on_header_value = on_header_value,
                                           .on_header_value_complete = on_header_value_complete,
                                           .on_headers_complete = on_headers_complete,
                                           .on_body = on_body,
                                           .on_message_complete = on_message_complete};

void http_parse_begin(struct http_conn *c)
{
    llhttp_init(&c->parser, HTTP_REQUEST, &settings);
    c->parser.data = c;
    c->head_bytes = c->body_raw = 0;
    c->value_last = true;
    c->fail_status = 0;
}

enum http_parsed http_parse(struct http_conn *c)
{
    size_t header_max = c->server->options.header_max;
    size_t n = c->in.len;
    bool in_head = c->state == CONN_HEAD;

    if (in_head && n > header_max + 1 - c->head_bytes)
        n = header_max + 1 - c->head_bytes;
    llhttp_errno_t rc = llhttp_execute(&c->parser, c->in.data, n);
    size_t used = n;
    if (c->state == CONN_CLOSED)
        return HTTP_REFUSED;
    if (rc == HPE_PAUSED)
        used = (size_t)(llhttp_get_error_pos(&c->parser) - c->in.data);
    else if (rc != HPE_OK)
        refuse(c, 400, "The request is not valid HTTP.");
    if (c->fail_status)
        return HTTP_REFUSED;
    if (!in_head) {
        c->body_raw += used;
        size_t allowed = BODY_FRAMING_MAX + (1 + BODY_FRAMING_RATE) * c->request->body.len;
        if (c->body_raw > allowed) {
            refuse(c, 400, "The framing of the request body is too long.");
            return HTTP_REFUSED;
        }
    } else if (c->state == CONN_HEAD) {
        c->head_bytes += used;
        if (c->head_bytes > header_max) {
            refuse(c, 431, "The request head is too large.");
            return HTTP_REFUSED;
        }
    }
    buf_consume(&c->in, used);
    return rc == HPE_PAUSED ? HTTP_DONE : HTTP_MORE;
}

/* ---- what owners ask ---- */

const char *http_method(const struct http_request *r)
{
    return r->method;
}

const char *http_path(const struct http_request *r)
{
    return r->path;
}

const char *http_query(const struct http_request *r)
{
    return r->query;
}

const char *http_header(const struct http_request *r, const char *name)
{
    for (uint32_t i = 0; i < r->n_headers; i++) {
        if (strcasecmp(r->head.data + r->headers[i].name, name) == 0)
            return r->head.data + r->headers[i].value;
    }
    return NULL;
}

void http_hold(struct http_request *r, void *what, void (*end)(void *what))
{
    ASSERT(!r->held);
    r->held = what;
    r->held_end = end;
}

void *http_held(const struct http_request *r)
{
    return r->held;
}

void http_set_user(struct http_request *r, const char *name)
{
    snprintf(r->user, sizeof r->user, "%s", name);
}

const char *http_user(const struct http_request *r)
{
    return r->user;
}

const char *http_request_id(const struct http_request *r)
{
    return r->id;
}

const char *http_body(const struct http_request *r, size_t *n)
{
    *n = r->body.len;
    return buf_str(&r->body);
}

void http_take_body(struct http_request *r, struct buf *out)
{
    *out = r->body;
    buf_init(&r->body, 0);
}

void http_set_data(struct http_request *r, void *data)
{
    r->data = data;
}

void *http_data(const struct http_request *r)
{
    return r->data;
}
