/* otlp: see otlp.h.
 *
 * Spans are written as JSON when their request ends, into `waiting`. A batch takes all of that into
 * `sending`, with the envelope around it, and stays there until the collector has taken or refused
 * it: after an answer that says "later" (408, 429, 502 to 504), or none, it is sent again after a
 * pause that grows up to RETRY_MAX_MS. Both are bounded by WAITING_MAX; what comes when `waiting`
 * is full is dropped, the newest first, since the oldest are those of the time when the trouble
 * began. */
#include "routerd/otlp.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/metrics.h"
#include "common/base/rng.h"
#include "common/net/post.h"
#include "routerd/answer.h"

#define FLUSH_MS     1000
#define FLUSH_BYTES  ((size_t)256 << 10)
#define WAITING_MAX  ((size_t)4 << 20)
#define ANSWER_MS    10000 /* a collector has so long for one batch */
#define RETRY_MIN_MS 1000
#define RETRY_MAX_MS 30000

struct otlp {
    struct loop *loop;
    struct post *post; /* NULL: off */
    char *endpoint, *name;
    uint32_t percent;
    struct buf waiting, sending;
    uint32_t n_waiting, n_sending; /* spans */
    struct loop_timer *timer, *limit;
    uint64_t retry_ms, not_before_ms;
    bool failing; /* and it was said */
    void (*flushed)(void *arg);
    void *flushed_arg;
    struct metric *sent, *dropped;
};

/* ---- JSON --------------------------------------------------------------------------------------
 */

/* Monotonic milliseconds as the protocol wants a time; one shift for all times of a request. */
static uint64_t unix_shift_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec - clock_ns();
}

static void put_time(struct buf *b, const char *key, uint64_t shift, uint64_t ms)
{
    buf_printf(b, ",\"%s\":\"%" PRIu64 "\"", key, shift + ms * 1000000u);
}

static const char *comma(const struct buf *b)
{
    return b->len && b->data[b->len - 1] != '[' ? "," : "";
}

static void put_key(struct buf *b, const char *key)
{
    buf_printf(b, "%s{\"key\":\"%s\",\"value\":", comma(b), key);
}

static void put_string(struct buf *b, const char *key, const char *value)
{
    if (!value || !*value)
        return;
    put_key(b, key);
    buf_puts(b, "{\"stringValue\":");
    answer_json_string(b, value, strlen(value));
    buf_puts(b, "}}");
}

static void put_int(struct buf *b, const char *key, uint64_t value)
{
    put_key(b, key); /* the protocol's JSON has 64-bit numbers as strings */
    buf_printf(b, "{\"intValue\":\"%" PRIu64 "\"}}", value);
}

static void random_id(char *out, size_t digits)
{
    uint64_t v;
    for (size_t i = 0; i < digits; i += 16) {
        do {
            v = rng_u64();
        } while (v == 0); /* all zeros mean none */
        snprintf(out + i, 17, "%016" PRIx64, v);
    }
}

static void put_event(struct buf *b, const struct timeline_event *e, uint32_t choice,
                      uint64_t shift)
{
    buf_printf(b, "%s{\"name\":\"%s\"", comma(b), e->name);
    put_time(b, "timeUnixNano", shift, e->at_ms);
    buf_puts(b, ",\"attributes\":[");
    put_int(b, "baton.choice", choice);
    put_int(b, "baton.attempt", e->attempt);
    put_string(b, "baton.reason", e->why);
    buf_puts(b, "]}");
}

static void put_root(struct buf *b, const struct otlp_request *r, uint64_t shift)
{
    const struct otlp_context *c = r->context;
    uint32_t dropped = 0;
    buf_printf(b, "{\"traceId\":\"%s\",\"spanId\":\"%s\"", c->trace, c->span);
    if (c->parent[0])
        buf_printf(b, ",\"parentSpanId\":\"%s\"", c->parent);
    buf_puts(b, ",\"name\":");
    answer_json_string(b, r->name, strlen(r->name));
    buf_puts(b, ",\"kind\":2");
    put_time(b, "startTimeUnixNano", shift, r->from_ms);
    put_time(b, "endTimeUnixNano", shift, r->to_ms);
    buf_puts(b, ",\"attributes\":[");
    put_string(b, "gen_ai.operation.name", r->operation);
    put_string(b, "gen_ai.request.model", r->model);
    put_string(b, "gen_ai.response.id", r->response);
    put_string(b, "baton.request_id", r->id);
    put_int(b, "gen_ai.usage.input_tokens", r->input_tokens);
    put_int(b, "gen_ai.usage.output_tokens", r->output_tokens);
    if (r->http_status)
        put_int(b, "http.response.status_code", (uint64_t)r->http_status);
    if (r->first_token_ms)
        put_int(b, "baton.ttft_ms", r->first_token_ms - r->from_ms);
    buf_puts(b, "],\"events\":[");
    for (uint32_t i = 0; i < r->n; i++) {
        const struct timeline *t = r->sequences[i];
        for (uint32_t k = 0; t && k < t->n_events; k++)
            put_event(b, &t->events[k], i, shift);
        dropped += t ? t->dropped : 0;
    }
    buf_printf(b, "],\"droppedEventsCount\":%u,\"status\":{", dropped);
    if (r->error) {
        buf_puts(b, "\"code\":2,\"message\":");
        answer_json_string(b, r->error, strlen(r->error));
    }
    buf_puts(b, "}}");
}

static void put_phase(struct buf *b, const struct otlp_context *c, const struct timeline_span *s,
                      uint32_t choice, uint64_t shift)
{
    char id[17];
    random_id(id, 16);
    buf_printf(b, ",{\"traceId\":\"%s\",\"spanId\":\"%s\",\"parentSpanId\":\"%s\",\"name\":\"%s\"",
               c->trace, id, c->span, timeline_phase_name(s->phase));
    buf_puts(b, ",\"kind\":1");
    put_time(b, "startTimeUnixNano", shift, s->from_ms);
    put_time(b, "endTimeUnixNano", shift, s->to_ms);
    buf_puts(b, ",\"attributes\":[");
    put_int(b, "baton.choice", choice);
    put_int(b, "baton.attempt", s->attempt);
    put_string(b, "baton.worker", s->worker);
    if (s->phase == TIMELINE_QUEUE)
        put_int(b, "baton.worker_queue_ms", s->worker_queue_ms);
    buf_printf(b, "],\"status\":{%s}}",
               s->lost ? "\"code\":2,\"message\":\"the attempt was lost\"" : "");
}

/* ---- batches -----------------------------------------------------------------------------------
 */

static void flush_over(void *arg)
{
    struct otlp *o = arg;
    void (*done)(void *) = o->flushed;
    if (!done)
        return;
    o->flushed = NULL;
    loop_timer_stop(o->limit);
    done(o->flushed_arg);
}

static void schedule(struct otlp *o)
{
    uint64_t now = clock_ms(), wait = FLUSH_MS;
    if (o->sending.len)
        wait = o->not_before_ms > now ? o->not_before_ms - now : 0;
    else if (o->waiting.len >= FLUSH_BYTES || o->flushed)
        wait = 0;
    loop_timer_start(o->timer, wait, 0);
}

/* The batch is done with, one way or the other. */
static void batch_over(struct otlp *o, bool taken)
{
    metrics_add(taken ? o->sent : o->dropped, o->n_sending);
    buf_fini(&o->sending);
    o->n_sending = 0;
    o->retry_ms = 0;
    if (o->waiting.len)
        schedule(o);
    else
        flush_over(o);
}

static void on_answer(void *arg, int rc)
{
    struct otlp *o = arg;
    bool later = rc < 0 || rc == 408 || rc == 429 || (rc >= 502 && rc <= 504);
    bool good = rc >= 200 && rc < 300;
    if (!good && !o->failing)
        log_warn("traces: %s: %s %d; spans wait, and are dropped when there are too many",
                 o->endpoint, rc < 0 ? status_text(rc) : "it answers", rc);
    if (good && o->failing)
        log_info("traces: %s takes spans again", o->endpoint);
    o->failing = !good;
    if (!later) {
        batch_over(o, good);
        return;
    }
    o->retry_ms = o->retry_ms ? o->retry_ms * 2 : RETRY_MIN_MS;
    if (o->retry_ms > RETRY_MAX_MS)
        o->retry_ms = RETRY_MAX_MS;
    o->not_before_ms = clock_ms() + o->retry_ms;
    schedule(o);
}

static void send_batch(struct otlp *o)
{
    if (post_busy(o->post))
        return;
    if (!o->sending.len && o->waiting.len) {
        struct buf *b = &o->sending;
        buf_init(b, WAITING_MAX * 2);
        buf_puts(b, "{\"resourceSpans\":[{\"resource\":{\"attributes\":[");
        put_string(b, "service.name", "baton");
        put_string(b, "service.instance.id", o->name);
        buf_puts(b, "]},\"scopeSpans\":[{\"scope\":{\"name\":\"baton.routerd\"},\"spans\":[");
        buf_append(b, o->waiting.data, o->waiting.len);
        buf_puts(b, "]}]}]}");
        o->n_sending = o->n_waiting;
        buf_fini(&o->waiting); /* a burst's memory is given back */
        buf_init(&o->waiting, WAITING_MAX);
        o->n_waiting = 0;
        if (!buf_ok(b)) {
            batch_over(o, false);
            return;
        }
    }
    if (o->sending.len &&
        post_send(o->post, o->sending.data, o->sending.len, on_answer, o) != STATUS_OK)
        on_answer(o, STATUS_NOMEM);
}

static void on_timer(void *arg)
{
    send_batch(arg);
}

void otlp_request(struct otlp *o, const struct otlp_request *r)
{
    uint64_t shift = unix_shift_ns();
    size_t before = o->waiting.len;
    uint32_t n = 1;
    struct otlp_request few = *r;
    few.n = r->n < OTLP_SEQUENCES_MAX ? r->n : OTLP_SEQUENCES_MAX;
    if (before)
        buf_putc(&o->waiting, ',');
    put_root(&o->waiting, &few, shift);
    for (uint32_t i = 0; i < few.n; i++) {
        const struct timeline *t = r->sequences[i];
        for (uint32_t k = 0; t && k < t->n_spans; k++, n++)
            put_phase(&o->waiting, r->context, &t->spans[k], i, shift);
    }
    if (!buf_ok(&o->waiting)) {
        o->waiting.failed = false;
        o->waiting.len = before;
        metrics_add(o->dropped, n);
        return;
    }
    o->n_waiting += n;
    if (!post_busy(o->post) && !o->sending.len && (before == 0 || o->waiting.len >= FLUSH_BYTES))
        schedule(o);
}

/* ---- contexts ----------------------------------------------------------------------------------
 */

static bool all_zero(const char *p, size_t n)
{
    return strspn(p, "0") >= n;
}

bool otlp_is_traceparent(const char *p)
{
    static const char form[] = "xx-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-xxxxxxxxxxxxxxxx-xx";
    for (size_t i = 0; i < sizeof form - 1; i++) {
        if (form[i] == 'x' ? !p[i] || !strchr("0123456789abcdef", p[i]) : p[i] != form[i])
            return false;
    }
    const char *end = p + sizeof form - 1;
    bool complete = strncmp(p, "00", 2) == 0 ? *end == 0 : *end == 0 || *end == '-';
    return complete && strncmp(p, "ff", 2) != 0 && !all_zero(p + 3, 32) && !all_zero(p + 36, 16);
}

bool otlp_begin(struct otlp *o, const char *traceparent, struct otlp_context *out)
{
    if (!o->post)
        return false;
    bool sampled = traceparent ? (strtoul((char[]){traceparent[54], 0}, NULL, 16) & 1) != 0
                               : rng_u64() % 100 < o->percent;
    if (!sampled)
        return false;
    *out = (struct otlp_context){.sampled = true};
    if (traceparent) {
        snprintf(out->trace, sizeof out->trace, "%.32s", traceparent + 3);
        snprintf(out->parent, sizeof out->parent, "%.16s", traceparent + 36);
    } else {
        random_id(out->trace, 32);
    }
    random_id(out->span, 16);
    snprintf(out->traceparent, sizeof out->traceparent, "00-%s-%s-01", out->trace, out->span);
    return true;
}

void otlp_begin_http(struct otlp *o, const struct http_request *r, struct otlp_context *out,
                     char name[OTLP_NAME_MAX])
{
    const char *parent = http_header(r, "traceparent");
    if (parent && !otlp_is_traceparent(parent))
        parent = NULL;
    if (otlp_begin(o, parent, out))
        parent = out->traceparent;
    snprintf(name, OTLP_NAME_MAX, "%s%s%.*s", http_request_id(r), parent ? " " : "",
             OTLP_PARENT_LEN, parent ? parent : "");
}

/* ---- life --------------------------------------------------------------------------------------
 */

int otlp_check(const char *endpoint, char *err, size_t errlen)
{
    struct post_url to;
    char why[256];
    if (!endpoint || !*endpoint)
        return STATUS_OK;
    int rc = post_url_parse(endpoint, &to, why, sizeof why);
    if (rc != STATUS_OK)
        snprintf(err, errlen, "otlp_endpoint = %s", why);
    return rc;
}

int otlp_create(struct loop *l, const struct otlp_options *options, struct otlp **out, char *err,
                size_t errlen)
{
    static const char help[] = "Spans of traces, by what became of them.";
    struct post_url to;
    TRY(otlp_check(options->endpoint, err, errlen));
    struct otlp *o = mem_array(1, sizeof *o);
    if (!o)
        return STATUS_NOMEM;
    bool on = options->endpoint && *options->endpoint;
    o->loop = l;
    o->percent = options->percent;
    o->sent = metrics_counter("baton_spans_total", "result=\"sent\"", help);
    o->dropped = metrics_counter("baton_spans_total", "result=\"dropped\"", help);
    o->endpoint = mem_strdup(on ? options->endpoint : "");
    o->name = mem_strdup(options->name);
    buf_init(&o->waiting, WAITING_MAX);
    buf_init(&o->sending, 0);
    int rc = o->endpoint && o->name ? STATUS_OK : STATUS_NOMEM;
    if (rc == STATUS_OK)
        rc = loop_timer_create(l, on_timer, o, &o->timer);
    if (rc == STATUS_OK)
        rc = loop_timer_create(l, flush_over, o, &o->limit);
    if (rc == STATUS_OK && on)
        rc = post_url_parse(options->endpoint, &to, err, errlen);
    if (rc == STATUS_OK && on)
        rc = post_create(l, &to, ANSWER_MS, &o->post);
    if (rc != STATUS_OK) {
        otlp_destroy(o);
        return rc;
    }
    *out = o;
    return STATUS_OK;
}

void otlp_set_percent(struct otlp *o, uint32_t percent)
{
    o->percent = percent;
}

void otlp_flush(struct otlp *o, uint64_t limit_ms, void (*done)(void *arg), void *arg)
{
    o->flushed = done;
    o->flushed_arg = arg;
    if (!o->waiting.len && !o->sending.len) {
        flush_over(o);
        return;
    }
    loop_timer_start(o->limit, limit_ms, 0);
    if (!post_busy(o->post))
        schedule(o);
}

void otlp_destroy(struct otlp *o)
{
    if (!o)
        return;
    post_destroy(o->post);
    loop_timer_free(o->timer);
    loop_timer_free(o->limit);
    buf_fini(&o->waiting);
    buf_fini(&o->sending);
    free(o->endpoint);
    free(o->name);
    free(o);
}
