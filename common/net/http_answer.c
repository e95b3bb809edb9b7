/* http_answer: heads, error objects and streams. Everything here fills buffers of the connection;
 * bytes move when the turn of the loop ends (http_conn.c), so what a handler writes in one turn
 * leaves together, and no callback comes from inside these calls but answered().
 *
 * A client that has shut down its sending side may have got the first bytes of its answer ahead
 * (see http_conn.c): every answer begins with http_first_word, and a head leaves out what was sent.
 */
#include "common/net/http_conn.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "common/base/assert.h"
#include "common/base/clock.h"

const char http_first_word[] = "HTTP/1.1 ";

static const char *reason_phrase(int status)
{
    static const struct {
        int status;
        const char *phrase;
    } phrases[] = {{200, "OK"},
                   {201, "Created"},
                   {202, "Accepted"},
                   {204, "No Content"},
                   {304, "Not Modified"},
                   {400, "Bad Request"},
                   {401, "Unauthorized"},
                   {403, "Forbidden"},
                   {404, "Not Found"},
                   {405, "Method Not Allowed"},
                   {406, "Not Acceptable"},
                   {408, "Request Timeout"},
                   {409, "Conflict"},
                   {413, "Content Too Large"},
                   {415, "Unsupported Media Type"},
                   {417, "Expectation Failed"},
                   {422, "Unprocessable Content"},
                   {429, "Too Many Requests"},
                   {431, "Request Header Fields Too Large"},
                   {499, "Client Closed Request"},
                   {500, "Internal Server Error"},
                   {501, "Not Implemented"},
                   {502, "Bad Gateway"},
                   {503, "Service Unavailable"},
                   {504, "Gateway Timeout"},
                   {505, "HTTP Version Not Supported"}};
    for (size_t i = 0; i < sizeof phrases / sizeof phrases[0]; i++) {
        if (phrases[i].status == status)
            return phrases[i].phrase;
    }
    return "Other";
}

static const char *date_now(struct http_server *s)
{
    int64_t now = clock_unix_s();
    if (now != s->date_s) {
        struct tm tm;
        time_t t = (time_t)now;
        gmtime_r(&t, &tm);
        strftime(s->date, sizeof s->date, "%a, %d %b %Y %H:%M:%S GMT", &tm);
        s->date_s = now;
    }
    return s->date;
}

static bool has_no_body(int status)
{
    return status == 204 || status == 304;
}

/* length < 0: a stream. */
static void put_head(struct http_conn *c, struct http_request *r, int status,
                     const char *content_type, long long length, bool keep_alive)
{
    struct buf head;
    buf_init(&head, 0);
    buf_printf(&head, "%s%d %s\r\nDate: %s\r\n", http_first_word, status, reason_phrase(status),
               date_now(c->server));
    if (content_type && !has_no_body(status))
        buf_printf(&head, "Content-Type: %s\r\n", content_type);
    if (length >= 0 && !has_no_body(status))
        buf_printf(&head, "Content-Length: %lld\r\n", length);
    if (length < 0 && r->chunked)
        buf_puts(&head, "Transfer-Encoding: chunked\r\n");
    if (!keep_alive)
        buf_puts(&head, "Connection: close\r\n");
    else if (r && r->http10)
        buf_puts(&head, "Connection: keep-alive\r\n");
    if (r && r->id[0])
        buf_printf(&head, "X-Request-Id: %s\r\n", r->id);
    if (r)
        buf_append(&head, buf_str(&r->extra), r->extra.len);
    buf_puts(&head, "\r\n");
    if (!buf_ok(&head))
        c->out.failed = true;
    else
        buf_append(&c->out, head.data + c->probes, head.len - c->probes);
    c->probes = 0;
    buf_fini(&head);
}

static bool keeps_alive(const struct http_request *r)
{
    return r->keep_alive && !r->conn->server->draining;
}

static void tell_answered(struct http_server *s, int status)
{
    if (s->cb.answered)
        s->cb.answered(s->arg, status);
}

void http_add_header(struct http_request *r, const char *name, const char *value)
{
    for (const char *p = value; *p; p++) {
        if ((unsigned char)*p < ' ' && *p != '\t')
            return; /* it would forge another header */
    }
    buf_printf(&r->extra, "%s: %s\r\n", name, value);
}

void http_respond(struct http_request *r, int status, const char *content_type, const void *body,
                  size_t n)
{
    struct http_conn *c = r->conn;
    bool keep_alive = keeps_alive(r);
    ASSERT_MSG(!r->streaming && c->state == CONN_ANSWER, "%s %s: answered twice", r->method,
               r->path);
    put_head(c, r, status, content_type, (long long)n, keep_alive);
    if (!r->head_only && !has_no_body(status))
        buf_append(&c->out, body, n);
    struct http_server *s = c->server;
    http_conn_answered(c, keep_alive);
    tell_answered(s, status);
}

/* ---- error objects ---- */

static const char *error_type(int status)
{
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 429:
        return "rate_limit_error";
    default:
        return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

/* Length of the valid UTF-8 character at p (n bytes left), or 0. */
static size_t utf8_length(const unsigned char *p, size_t n)
{
    size_t len = *p < 0x80                 ? 1
                 : *p >= 0xc2 && *p < 0xe0 ? 2
                 : *p >= 0xe0 && *p < 0xf0 ? 3
                 : *p >= 0xf0 && *p < 0xf5 ? 4
                                           : 0;
    if (len == 0 || len > n)
        return 0;
    for (size_t i = 1; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    }
    if ((*p == 0xe0 && p[1] < 0xa0) || (*p == 0xed && p[1] >= 0xa0) ||
        (*p == 0xf0 && p[1] < 0x90) || (*p == 0xf4 && p[1] >= 0x90))
        return 0;
    return len;
}

/* A JSON string; bytes that are no UTF-8 become U+FFFD. NULL is null. */
static void put_json(struct buf *b, const char *text)
{
    if (!text) {
        buf_puts(b, "null");
        return;
    }
    buf_putc(b, '"');
    size_t n = strlen(text);
    for (size_t i = 0; i < n;) {
        unsigned char ch = (unsigned char)text[i];
        size_t len = utf8_length((const unsigned char *)text + i, n - i);
        if (len == 0)
            buf_puts(b, "\\ufffd");
        else if (ch == '"' || ch == '\\')
            buf_printf(b, "\\%c", ch);
        else if (ch < ' ')
            buf_printf(b, "\\u%04x", ch);
        else
            buf_append(b, text + i, len);
        i += len ? len : 1;
    }
    buf_putc(b, '"');
}

static void put_error(struct buf *b, int status, const char *param, const char *code,
                      const char *message)
{
    buf_puts(b, "{\"error\":{\"message\":");
    put_json(b, message);
    buf_printf(b, ",\"type\":\"%s\",\"param\":", error_type(status));
    put_json(b, param);
    buf_puts(b, ",\"code\":");
    put_json(b, code);
    buf_puts(b, "}}");
}

void http_respond_error(struct http_request *r, int status, const char *param, const char *code,
                        const char *fmt, ...)
{
    struct buf body;
    va_list ap;
    char line[2048];

    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    buf_init(&body, 0);
    put_error(&body, status, param, code, line);
    http_respond(r, status, "application/json", buf_str(&body), body.len);
    buf_fini(&body);
}

void http_refuse(struct http_conn *c, int status, const char *message)
{
    struct http_request *r = c->request;
    struct http_server *s = c->server;
    struct buf body;

    buf_init(&body, 0);
    put_error(&body, status, NULL, status == 401 ? "invalid_api_key" : NULL, message);
    put_head(c, r, status, "application/json", (long long)body.len, false);
    if (!r || !r->head_only)
        buf_append(&c->out, buf_str(&body), body.len);
    buf_fini(&body);
    http_conn_answered(c, false);
    tell_answered(s, status);
}

/* ---- streams ---- */

void http_stream_begin(struct http_request *r, int status, const char *content_type)
{
    ASSERT_MSG(!r->streaming && r->conn->state == CONN_ANSWER, "%s %s: answered twice", r->method,
               r->path);
    r->streaming = true;
    r->status = status;
    r->chunked = !r->http10 && !has_no_body(status);
    r->keep_alive = keeps_alive(r) && !r->http10;
    put_head(r->conn, r, status, content_type, -1, r->keep_alive);
    http_conn_touch(r->conn);
}

size_t http_stream_pending(const struct http_request *r)
{
    return http_conn_pending(r->conn);
}

static bool has_room(const struct http_conn *c, size_t n)
{
    size_t pending = http_conn_pending(c), max = c->server->options.write_max;
    return pending == 0 || (pending <= max && n <= max - pending);
}

int http_stream_write(struct http_request *r, const void *p, size_t n)
{
    struct http_conn *c = r->conn;
    ASSERT(r->streaming);
    if (n == 0 || r->head_only || has_no_body(r->status))
        return STATUS_OK;
    if (!has_room(c, n))
        http_conn_push(c);
    if (!has_room(c, n)) {
        r->was_full = true;
        return STATUS_FULL;
    }
    buf_append(&c->chunk, p, n);
    if (!buf_ok(&c->chunk))
        c->out.failed = true; /* out of memory: the connection is cut when the turn ends */
    http_conn_touch(c);
    return STATUS_OK;
}

void http_stream_on_drained(struct http_request *r, void (*fn)(void *arg, struct http_request *r))
{
    r->drained = fn;
}

void http_answer_pack(struct http_conn *c)
{
    if (c->chunk.len == 0)
        return;
    if (c->request->chunked)
        buf_printf(&c->out, "%zx\r\n", c->chunk.len);
    buf_append(&c->out, c->chunk.data, c->chunk.len);
    if (c->request->chunked)
        buf_puts(&c->out, "\r\n");
    buf_reset(&c->chunk);
}

void http_stream_end(struct http_request *r)
{
    struct http_conn *c = r->conn;
    struct http_server *s = c->server;
    int status = r->status;
    ASSERT(r->streaming);
    http_answer_pack(c);
    if (r->chunked && !r->head_only)
        buf_puts(&c->out, "0\r\n\r\n");
    http_conn_answered(c, r->keep_alive);
    tell_answered(s, status);
}

void http_stream_abort(struct http_request *r)
{
    struct http_conn *c = r->conn;
    struct http_server *s = c->server;
    int status = r->status;
    ASSERT(r->streaming);
    http_answer_pack(c);
    c->cut = true;          /* no last chunk, no goodbye */
    c->reset = !r->chunked; /* where the end of the connection would be the end of the answer */
    http_conn_answered(c, false);
    tell_answered(s, status);
}
