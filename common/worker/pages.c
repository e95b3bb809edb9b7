/* pages: the worker's own HTTP: /health (alive), /ready (takes work), /metrics, and
 * /debug/requests, which shows where every request is. Served from the start, also while the model
 * is loading.
 *
 * An engine that has work and makes no progress makes /ready say no after stall_ms, and /health
 * after HUNG_MS: nothing but a restart will help then. /ready?router asks for more: that a router
 * is connected, so that a roll-out goes on only when the worker gets work. */
#include "common/worker/internal.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "common/net/service.h"

static void jobs_json(const struct worker *w, struct buf *b)
{
    const char *comma = "";
    buf_puts(b, "\"jobs\":[");
    LIST_FOR (n, &w->jobs) {
        const struct job *j = container_of(n, struct job, node);
        buf_printf(b,
                   "%s{\"request\":\"%s\",\"state\":\"%s\",\"reservation\":\"%s\",\"tokens\":%u,"
                   "\"computed\":%u,\"cached\":%u,\"blocks\":%u,\"sends\":%u,\"holds\":%u,"
                   "\"move\":%s,\"copy\":%s,\"decode\":\"%016llx\"}",
                   comma, seq_text(&j->key), job_state_name(j->state),
                   job_reservation_name(j->reservation), j->n_tokens, j->computed, j->cached_tokens,
                   j->n_blocks, j->sends, j->holds, j->moving && !j->copy ? "true" : "false",
                   j->copy ? "true" : "false", (unsigned long long)j->target.instance);
        comma = ",";
    }
    buf_puts(b, "]");
}

static void tickets_json(const struct worker *w, struct buf *b)
{
    const char *comma = "";
    buf_puts(b, "\"tickets\":[");
    LIST_FOR (n, &w->tickets.all) {
        const struct ticket *k = container_of(n, struct ticket, node);
        buf_printf(b,
                   "%s{\"request\":\"%s\",\"state\":\"%s\",\"tokens\":%u,\"emitted\":%u,"
                   "\"frozen\":%s,\"moving_to\":\"%016llx\","
                   "\"blocks\":%u,\"held\":%u,\"good\":%u,\"wanted\":%u,\"holds\":%u,"
                   "\"copy\":%s,\"copied\":%u,\"prefill\":\"%016llx\"}",
                   comma, seq_text(&k->key), ticket_state_name(k->state), k->n_tokens, k->emitted,
                   k->frozen ? "true" : "false",
                   (unsigned long long)(k->move ? k->move->target.instance : 0), k->n_blocks,
                   k->held, k->n_good, k->n_want, k->holds, k->copy ? "true" : "false",
                   replica_copied(k), (unsigned long long)k->source);
        comma = ",";
    }
    buf_puts(b, "]");
}

static void requests_page(struct worker *w, struct http_request *r)
{
    struct buf b;
    buf_init(&b, (size_t)64 << 20);
    buf_puts(&b, "{");
    jobs_json(w, &b);
    buf_puts(&b, ",");
    tickets_json(w, &b);
    buf_puts(&b, "}\n");
    if (buf_ok(&b))
        http_respond(r, 200, "application/json", b.data, b.len);
    else
        http_respond_error(r, 503, NULL, NULL, "out of memory");
    buf_fini(&b);
}

static void metrics_page(struct worker *w, struct http_request *r)
{
    struct buf b;
    buf_init(&b, (size_t)16 << 20);
    if (w->ready)
        report_refresh(w);
    metrics_render(&b);
    http_respond(r, 200, "text/plain; version=0.0.4; charset=utf-8", b.data, b.len);
    buf_fini(&b);
}

#define HUNG_MS 30000

/* NULL: it is. text: room for a reason. */
static const char *why_not_ready(const struct worker *w, bool want_router, char text[64])
{
    if (w->draining)
        return "draining";
    if (!w->ready) {
        manage_loading(w, text, 64);
        return text;
    }
    if (manage_stalled_ms(w) >= (uint64_t)w->settings->stall_ms)
        return "the engine has work and makes no progress";
    if (want_router && !links_any(w))
        return "no router is connected";
    return NULL;
}

static void ready_page(struct worker *w, struct http_request *r)
{
    char text[160], room[64];
    const char *why = why_not_ready(w, strcmp(http_query(r), "router") == 0, room);
    int n = why ? snprintf(text, sizeof text, "{\"status\":\"not ready\",\"reason\":\"%s\"}\n", why)
                : snprintf(text, sizeof text, "{\"status\":\"ready\"}\n");
    http_respond(r, why ? 503 : 200, "application/json", text, (size_t)n);
}

static void health_page(struct worker *w, struct http_request *r)
{
    if (w->ready && manage_stalled_ms(w) >= HUNG_MS)
        http_respond_error(r, 503, NULL, "hung", "the engine has made no progress for %llu ms",
                           (unsigned long long)manage_stalled_ms(w));
    else
        http_respond(r, 200, "application/json", "{\"status\":\"ok\"}\n", 16);
}

static void on_request(void *arg, struct http_request *r)
{
    struct worker *w = arg;
    const char *path = http_path(r), *method = http_method(r);
    static const char *const paths[] = {"/health", "/ready", "/metrics", "/debug/requests"};
    size_t i = 0;
    while (i < sizeof paths / sizeof *paths && strcmp(path, paths[i]) != 0)
        i++;
    if (i == sizeof paths / sizeof *paths) {
        http_respond_error(r, 404, NULL, NULL, "there is no such page on a worker");
        return;
    }
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0) {
        http_add_header(r, "Allow", "GET, HEAD");
        http_respond_error(r, 405, NULL, NULL, "only GET and HEAD");
        return;
    }
    switch (i) {
    case 0:
        health_page(w, r);
        break;
    case 1:
        ready_page(w, r);
        break;
    case 2:
        metrics_page(w, r);
        break;
    default:
        requests_page(w, r);
        break;
    }
}

static int on_head(void *arg, struct http_request *r, const char **message)
{
    const struct worker *w = arg;
    const char *path = http_path(r);
    bool open = strcmp(path, "/health") == 0 || strcmp(path, "/ready") == 0;
    if (open || !w->api_keys || api_keys_find(w->api_keys, http_header(r, "authorization")))
        return 0;
    http_add_header(r, "WWW-Authenticate", "Bearer");
    *message = "An API key is needed: send it as 'Authorization: Bearer KEY'.";
    return 401;
}

int pages_keys(const struct worker_settings *s, struct api_keys **out, char *err, size_t errlen)
{
    char path[PATH_MAX];
    const char *keys = service_secret(s->api_key_file, "baton.api_keys", path, sizeof path);
    return api_keys_load("api_key_file", keys, out, err, errlen);
}

int pages_open(struct worker *w, char *err, size_t errlen)
{
    struct http_options o;
    static const struct http_callbacks cb = {.head = on_head, .request = on_request};
    TRY(pages_keys(w->settings, &w->api_keys, err, errlen));
    TRY(manage_exposed(w->settings, &w->key, w->certificates != NULL, w->api_keys != NULL, err,
                       errlen));
    http_options_default(&o);
    o.body_max = 4096;
    TRY(http_listen(w->loop, w->settings->http, &o, &cb, w, &w->http, err, errlen));
    snprintf(w->http_address, sizeof w->http_address, "%s", http_server_address(w->http));
    return STATUS_OK;
}
