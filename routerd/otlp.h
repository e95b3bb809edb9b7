/* otlp: spans of requests to an OpenTelemetry collector, OTLP/HTTP with JSON
 * (opentelemetry-proto, "OTLP/HTTP Request", JSON encoding).
 *
 * A request is one span of kind server, below the client's span when it sent a traceparent; each of
 * its sequences adds the phases of its timeline as children, and what went wrong as events. They
 * wait, up to a bound, and leave in batches, once a second or when there are many. A collector that
 * is away or hangs costs spans, which are counted, and nothing else. No text of a prompt or an
 * answer is in them. */
#ifndef BATON_ROUTERD_OTLP_H
#define BATON_ROUTERD_OTLP_H

#include <stdbool.h>
#include <stdint.h>

#include "common/net/http.h"
#include "common/net/loop.h"
#include "routerd/timeline.h"

struct otlp;
struct otlp_options {
    const char *endpoint; /* "http://host:port/v1/traces"; "" or NULL: nothing is traced */
    const char *name;     /* of this router: service.instance.id */
    uint32_t percent;     /* of the requests that bring no decision of their own */
};
int otlp_create(struct loop *l, const struct otlp_options *o, struct otlp **out, char *err,
                size_t errlen) WARN_UNUSED;
void otlp_destroy(struct otlp *o);
/* Whether an endpoint can be used; err: one line. */
int otlp_check(const char *endpoint, char *err, size_t errlen) WARN_UNUSED;
void otlp_set_percent(struct otlp *o, uint32_t percent);
/* Sends what waits, for at most limit_ms, then calls done once; maybe from inside. */
void otlp_flush(struct otlp *o, uint64_t limit_ms, void (*done)(void *arg), void *arg);

#define OTLP_SEQUENCES_MAX 16 /* of one request; further ones are not in its trace */
#define OTLP_PARENT_LEN    55 /* of a traceparent: 00-<32>-<16>-<2> in lower-case hexadecimal */

#define OTLP_NAME_MAX (HTTP_ID_MAX + 64)

/* Who a request's spans belong to. */
struct otlp_context {
    bool sampled;
    char trace[33], span[17];
    char parent[17];                       /* the client's span, or "" */
    char traceparent[OTLP_PARENT_LEN + 1]; /* of this request's span, for those behind */
};
/* W3C trace context, version 00 or a later one's first part. */
bool otlp_is_traceparent(const char *p);
/* traceparent: the client's, valid, or NULL. Its sampled flag decides; without one the percentage
 * does. False, and nothing else set, when the request is not traced. */
bool otlp_begin(struct otlp *o, const char *traceparent, struct otlp_context *out);
/* The same for what came by HTTP. name: what log lines and workers call the request, "id", or
 * "id traceparent" with that of its span, or else the client's. */
void otlp_begin_http(struct otlp *o, const struct http_request *r, struct otlp_context *out,
                     char name[OTLP_NAME_MAX]);

struct otlp_request {
    const struct otlp_context *context;
    const char *name;                              /* "POST /v1/chat/completions" */
    const char *operation, *model, *id, *response; /* gen_ai.*, the client's id, ours */
    uint64_t from_ms, to_ms;                       /* of CLOCK_MONOTONIC, as in the timelines */
    uint64_t first_token_ms;                       /* 0: there was none */
    int http_status;                               /* 0: the client left before one */
    const char *error;                             /* why it failed, or NULL */
    uint64_t input_tokens, output_tokens;
    const struct timeline *const *sequences; /* [n]; NULL entries are left out */
    uint32_t n;
};
void otlp_request(struct otlp *o, const struct otlp_request *r);

#endif
