/* dashboard: frames of the feed, once a second to everybody who watches.
 *
 * A frame is a snapshot with counters that only grow; the page makes rates and percentiles of their
 * differences, so a frame that a slow watcher misses costs it nothing but resolution. What a worker
 * alone knows (bytes sent, buckets) comes from the metrics page that it pushes with its heartbeats.
 * A frame is made once, whoever watches, and lists at most REQUESTS_MAX requests. */
#include "routerd/dashboard.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/config.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/metrics.h"
#include "routerd/answer.h"
#include "routerd/owner.h"
#include "routerd/pace.h"

#define FRAME_MS     1000
#define WATCHERS_MAX 32
#define REQUESTS_MAX 100

/* The page, by the assembler; the Makefile knows that this file depends on it. */
__asm__(".section .rodata\n"
        ".global dashboard_html\n"
        ".global dashboard_html_end\n"
        "dashboard_html:\n"
        ".incbin \"routerd/dashboard.html\"\n"
        "dashboard_html_end:\n"
        ".byte 0\n"
        ".previous\n");
extern const char dashboard_html[], dashboard_html_end[];

struct watcher {
    struct request_owner of_request;
    struct dashboard *owner;
    struct list node;
    struct http_request *http;
};

struct dashboard {
    struct loop_timer *timer; /* runs while somebody watches */
    struct relay *relay;
    struct workers *workers;
    const struct models *models;
    struct list watchers;
    uint32_t n_watchers;
};

static void headers(struct http_request *r)
{
    http_add_header(r, "Content-Security-Policy",
                    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
                    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
                    "frame-ancestors 'none'");
    http_add_header(r, "X-Content-Type-Options", "nosniff");
    http_add_header(r, "Referrer-Policy", "no-referrer");
    http_add_header(r, "Cache-Control", "no-cache");
}

void dashboard_page(struct http_request *r)
{
    headers(r);
    http_respond(r, 200, "text/html; charset=utf-8", dashboard_html,
                 (size_t)(dashboard_html_end - dashboard_html));
}

/* ---- frames ---- */

/* What follows the name in a sample line of a page: labels and value; NULL when there is none. */
static const char *next_sample(const char **at, const char *name)
{
    size_t n = strlen(name);
    for (const char *line = *at; line && *line;) {
        const char *end = strchr(line, '\n');
        const char *rest = line + n;
        bool is = strncmp(line, name, n) == 0 && (*rest == '{' || *rest == ' ');
        line = *at = end ? end + 1 : NULL;
        if (is)
            return rest;
    }
    return NULL;
}

static double sample_value(const char *rest)
{
    const char *p = *rest == '{' ? strstr(rest, "} ") : rest;
    return p ? strtod(p + (*p == '}' ? 2 : 1), NULL) : 0;
}

static double page_value(const char *page, const char *name)
{
    const char *rest = next_sample(&page, name);
    return rest ? sample_value(rest) : 0;
}

/* "steps":{"8":120,…}: steps so far by bucket. */
static void steps_json(struct buf *b, const char *page)
{
    const char *comma = "", *rest;
    buf_puts(b, ",\"steps\":{");
    while ((rest = next_sample(&page, "baton_steps_total"))) {
        const char *bucket = strstr(rest, "bucket=\"");
        char *end;
        unsigned long n = bucket ? strtoul(bucket + 8, &end, 10) : 0;
        if (n) {
            buf_printf(b, "%s\"%lu\":%.0f", comma, n, sample_value(rest));
            comma = ",";
        }
    }
    buf_putc(b, '}');
}

static void text_json(struct buf *b, const char *key, const char *text)
{
    buf_printf(b, ",\"%s\":", key);
    answer_json_string(b, text, strlen(text));
}

static const char *state_of(const struct worker *w)
{
    if (!w->up)
        return w->relinking ? "relinking" : "down";
    return w->silent     ? "silent"
           : w->stalled  ? "stalled"
           : w->leaving  ? "leaving"
           : w->draining ? "draining"
                         : "up";
}

static void worker_json(const struct dashboard *d, const struct worker *w, struct buf *b)
{
    bool known = w->up || w->relinking;
    const char *page = w->up && w->page.len ? buf_str(&w->page) : "";
    buf_printf(b, "{\"role\":\"%s\",\"state\":\"%s\"", w->decode ? "decode" : "prefill",
               state_of(w));
    text_json(b, "address", w->address);
    text_json(b, "name", known ? w->name : "");
    text_json(b, "why", w->up ? "" : w->why);
    if (!known) {
        buf_putc(b, '}');
        return;
    }
    text_json(b, "numerics", w->numerics);
    if (w->pool < d->models->n)
        text_json(b, "model", d->models->list[w->pool].name);
    buf_printf(b,
               ",\"instance\":\"%016" PRIx64 "\",\"running\":%" PRIu64 ",\"waiting\":%" PRIu64
               ",\"queued_tokens\":%" PRIu64 ",\"kv_blocks\":%u,\"kv_free\":%" PRIu64,
               w->instance, (uint64_t)w->load.running, (uint64_t)w->load.waiting,
               (uint64_t)w->load.queued_tokens, w->kv_blocks, (uint64_t)w->load.kv_free);
    buf_printf(b, ",\"sent\":%.0f,\"received\":%.0f,\"drawn\":%.0f,\"prefilled\":%.0f",
               page_value(page, "baton_kv_bytes_sent_total"),
               page_value(page, "baton_kv_bytes_received_total"),
               page_value(page, "baton_drawn_tokens_total"),
               page_value(page, "baton_prefill_tokens_total"));
    steps_json(b, page);
    buf_putc(b, '}');
}

void dashboard_frame(struct dashboard *d, struct buf *b)
{
    buf_printf(b, "{\"now_ms\":%" PRIu64 ",\"version\":\"%s\",\"models\":[", clock_ms(),
               BATON_VERSION);
    for (uint32_t i = 0; i < d->models->n; i++) {
        if (i)
            buf_putc(b, ',');
        answer_json_string(b, d->models->list[i].name, strlen(d->models->list[i].name));
    }
    buf_printf(b, "],\"running\":%u,\"waiting\":%u,", relay_running(d->relay),
               relay_waiting(d->relay));
    pace_json(b);
    buf_puts(b, ",\"workers\":[");
    for (uint32_t i = 0; i < workers_count(d->workers); i++) {
        if (i)
            buf_putc(b, ',');
        worker_json(d, workers_at(d->workers, i), b);
    }
    buf_puts(b, "],\"requests\":[");
    relay_debug(d->relay, REQUESTS_MAX, b);
    buf_puts(b, "]}");
}

/* ---- watchers ---- */

static void watcher_free(struct watcher *w)
{
    struct dashboard *d = w->owner;
    list_remove(&w->node);
    free(w);
    if (--d->n_watchers == 0)
        loop_timer_stop(d->timer);
}

static void client_gone(struct request_owner *o)
{
    watcher_free(container_of(o, struct watcher, of_request));
}

static void event(struct dashboard *d, struct buf *b)
{
    buf_init(b, 0);
    buf_puts(b, "data: ");
    dashboard_frame(d, b);
    buf_puts(b, "\n\n");
}

/* A queue that is empty takes any frame; what cannot be sent is a frame less. */
static void send_event(struct http_request *r, const struct buf *b)
{
    int rc = buf_ok(b) ? http_stream_write(r, buf_str(b), b->len) : STATUS_NOMEM;
    if (rc != STATUS_OK)
        log_debug("dashboard: a frame is left out: %s", status_text(rc));
}

static void on_timer(void *arg)
{
    struct dashboard *d = arg;
    struct buf b;
    event(d, &b);
    LIST_FOR_SAFE (it, &d->watchers) {
        struct watcher *w = container_of(it, struct watcher, node);
        if (http_stream_pending(w->http) == 0) /* else it has not taken the last one yet */
            send_event(w->http, &b);
    }
    buf_fini(&b);
}

void dashboard_watch(struct dashboard *d, struct http_request *r)
{
    struct buf b;
    struct watcher *w = d->n_watchers < WATCHERS_MAX ? mem_array(1, sizeof *w) : NULL;
    if (!w) {
        http_respond_error(r, 503, NULL, "too_many_watchers", "%d dashboards are open; close one.",
                           WATCHERS_MAX);
        return;
    }
    w->of_request.client_gone = client_gone;
    w->owner = d;
    w->http = r;
    list_push_back(&d->watchers, &w->node);
    if (d->n_watchers++ == 0)
        loop_timer_start(d->timer, FRAME_MS, FRAME_MS);
    http_set_data(r, &w->of_request);
    http_add_header(r, "Cache-Control", "no-cache");
    http_add_header(r, "X-Accel-Buffering", "no");
    http_stream_begin(r, 200, "text/event-stream");
    event(d, &b);
    send_event(r, &b);
    buf_fini(&b);
}

void dashboard_close(struct dashboard *d)
{
    while (!list_empty(&d->watchers)) {
        struct watcher *w = container_of(d->watchers.next, struct watcher, node);
        struct http_request *r = w->http;
        http_set_data(r, NULL);
        watcher_free(w);
        http_stream_end(r);
    }
}

int dashboard_create(struct loop *loop, struct relay *relay, struct workers *workers,
                     const struct models *models, struct dashboard **out)
{
    struct dashboard *d = mem_array(1, sizeof *d);
    if (!d)
        return STATUS_NOMEM;
    d->relay = relay;
    d->workers = workers;
    d->models = models;
    list_init(&d->watchers);
    int rc = loop_timer_create(loop, on_timer, d, &d->timer);
    if (rc != STATUS_OK) {
        free(d);
        return rc;
    }
    *out = d;
    return STATUS_OK;
}

void dashboard_destroy(struct dashboard *d)
{
    if (!d)
        return;
    dashboard_close(d);
    loop_timer_free(d->timer);
    free(d);
}
