/* http_conn: the inside of the HTTP server; internal to common/net.
 *
 *   http.c         the server: listening, the number of connections, draining, closing
 *   http_conn.c    one connection: reading, states and deadlines, writing, noticing that a client
 *                  has gone
 *   http_parse.c   bytes to requests (llhttp), and which heads are acceptable
 *   http_answer.c  answers: heads, error objects, streams
 */
#ifndef BATON_NET_HTTP_CONN_H
#define BATON_NET_HTTP_CONN_H

#include <llhttp.h>

#include "common/base/buf.h"
#include "common/net/address.h"
#include "common/net/http.h"
#include "common/net/loop_uv.h"
#include "common/net/tls.h"

enum conn_state {
    CONN_IDLE,   /* between requests; nothing of the next one has arrived */
    CONN_HEAD,   /* the first byte of a request is here, the end of its headers is not */
    CONN_BODY,   /* headers accepted, body incomplete */
    CONN_ANSWER, /* the request is with its owner */
    CONN_LINGER, /* no more requests: send the rest, say goodbye, wait for the client's end */
    CONN_CLOSED
};

struct http_header {
    uint32_t name, value; /* offsets of strings in head */
};

struct http_request {
    struct http_conn *conn;
    void *data;
    const char *method;
    struct buf head; /* target, names and values, each NUL-terminated */
    struct http_header *headers;
    uint32_t n_headers, cap_headers;
    char id[HTTP_ID_MAX + 1];
    char *path;  /* decoded */
    char *query; /* raw */
    struct buf body;
    struct buf extra;             /* header lines for the answer */
    char user[HTTP_USER_MAX + 1]; /* see http_set_user */
    void *held;                   /* see http_hold */
    void (*held_end)(void *what);
    int status; /* of a streamed answer */
    bool http10, head_only, keep_alive;
    bool streaming, chunked;
    bool was_full;
    void (*drained)(void *arg, struct http_request *r);
};

struct http_conn {
    uv_tcp_t tcp;
    uv_timer_t timer;
    uv_write_t write;
    uv_shutdown_t shutdown;
    struct http_server *server;
    struct list node;  /* in server->conns */
    struct list idle;  /* in server->idle while CONN_IDLE */
    struct list dirty; /* in server->dirty while it has something to do at the end of the turn */
    enum conn_state state;
    unsigned refs; /* open handles */
    struct http_request *request;
    llhttp_t parser;
    size_t head_bytes; /* raw bytes of the head so far */
    size_t body_raw;   /* raw bytes of the body so far, chunk framing included */
    bool value_last;   /* a header value was seen last, so the next field begins a new header */
    int fail_status;   /* why the request is refused, with the message */
    const char *fail_message;
    struct buf in;        /* bytes that wait for the parser */
    struct buf chunk;     /* body bytes of this turn that become one chunk */
    struct buf out;       /* bytes that wait for the socket */
    struct buf flight;    /* with libuv */
    bool reading;         /* uv_read_start is in force */
    bool writing;         /* flight is with libuv */
    bool eof;             /* the client has shut down its side, or has gone */
    bool goodbye;         /* our side is shut down */
    bool cut;             /* close without a goodbye once everything is written */
    bool reset;           /* and so that the client sees an error */
    struct tls *tls;      /* NULL: plain HTTP */
    struct buf sealed;    /* with tls: what of `out` is encrypted and not yet sent */
    bool tls_ended;       /* with tls: the peer has said goodbye */
    bool said_goodbye;    /* with tls: close_notify is in `sealed`, or was */
    size_t lingered;      /* bytes thrown away in CONN_LINGER */
    uint64_t deadline_ms; /* of the state; 0: none */
    uint64_t idle_ms;     /* since when it has been CONN_IDLE */
    uint64_t written_ms;  /* when the socket took bytes last */
    size_t write_left;    /* bytes in libuv's queue at that time */
    unsigned probes;      /* bytes of the answer's first word that were sent ahead */
    uint64_t probe_ms;    /* when the next one is due */
    uint64_t gone_ms;     /* after an EOF: when to look next whether the client is there */
};

struct http_server {
    struct loop *loop;
    struct loop_owner owner;
    struct http_options options;
    struct http_callbacks cb;
    void *arg;
    struct tls_context *tls; /* NULL: plain HTTP */
    uv_poll_t poll;          /* of fd */
    uv_timer_t retry;
    int fd;
    unsigned refs; /* open handles and connections */
    bool accepting, draining, closed;
    bool flushing; /* http_server_turn is deferred */
    struct list conns, idle, dirty;
    uint32_t n_conns, n_requests;
    struct log_limit log_full, log_fds, log_refused;
    char address[ADDRESS_TEXT_MAX];
    int64_t date_s; /* the second that date belongs to */
    char date[40];
};

/* http.c */
void http_server_put(struct http_server *s);
void http_server_conn_closed(struct http_server *s);
/* A connection that could make room for another has nothing more to do. */
void http_server_conn_idle(struct http_server *s);
void http_server_turn_soon(struct http_server *s);

/* http_conn.c */
void http_conn_create(struct http_server *s, int fd);
void http_conn_set_state(struct http_conn *c, enum conn_state to);
/* Closes at once; an owner of a request is told by closed(). */
void http_conn_close(struct http_conn *c);
/* Something was queued or may go on: looked at when the turn ends. */
void http_conn_touch(struct http_conn *c);
void http_conn_turn(struct http_conn *c);
/* Gives the socket what it takes now, ahead of the end of the turn. Closes nothing. */
void http_conn_push(struct http_conn *c);
/* The answer is complete in the buffers; the request is freed. */
void http_conn_answered(struct http_conn *c, bool keep_alive);
size_t http_conn_pending(const struct http_conn *c);

/* http_parse.c */
enum http_parsed { HTTP_MORE, HTTP_DONE, HTTP_REFUSED };
struct http_request *http_request_create(struct http_conn *c);
void http_request_free(struct http_request *r);
void http_parse_begin(struct http_conn *c);
/* Takes bytes of c->in. HTTP_REFUSED: fail_status and fail_message say why. */
enum http_parsed http_parse(struct http_conn *c);

/* http_answer.c */
/* Answers for the owner, closes afterwards and frees the request. */
void http_refuse(struct http_conn *c, int status, const char *message);
/* Makes one chunk of what was streamed in this turn. */
void http_answer_pack(struct http_conn *c);
/* "HTTP/1.1 ", which every answer begins with. */
extern const char http_first_word[];

#endif
