/* server: routes, and what each endpoint answers.
 *
 * /health says that the loop runs; /ready that a prefill and a decode worker can be paired, else
 * why not; /metrics merges the router's page with the pages that the workers pushed. The first two
 * need no key.
 *
 * There are two listeners (struct front). The API's has what clients need, and unless api_pages is
 * off what watches the cluster; the admin's has all of it and /admin, with keys of its own. One
 * certificate serves both. While the router drains both stay, so that probes and operators see it.
 */
#include "routerd/server.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/metrics.h"
#include "common/net/address.h"
#include "common/net/service.h"
#include "routerd/access.h"
#include "routerd/admin.h"
#include "routerd/admit.h"
#include "routerd/aliases.h"
#include "routerd/answer.h"
#include "routerd/dashboard.h"
#include "routerd/embeddings.h"
#include "routerd/models.h"
#include "routerd/owner.h"
#include "routerd/tokenize.h"

#define DRAIN_POLL_MS     20
#define ADMIN_CONNECTIONS 64 /* beside the API's max_connections */
#define MODELS            "/v1/models"

struct front {
    struct server *server;
    struct http_server *http; /* NULL: there is no such listener */
    struct access *access;
    bool admin;
};

struct server {
    struct front api, admin;
    struct quotas *quotas;
    struct embedder embedder;
    struct dashboard *dashboard;
    struct server_parts p;
    bool draining;
    bool vllm_metrics, api_pages;
    bool inherited; /* of the API: the listener is the service manager's: it outlives this one */
    struct metric *m_undelivered;
    uint64_t drain_until_ms;
    struct loop_timer *drain_timer;
    void (*drained)(void *arg);
    void *drained_arg;
};

struct route {
    const char *path;    /* a star stands for one or more characters */
    const char *methods; /* for Allow */
    void (*get)(struct server *s, struct http_request *r);
    void (*post)(struct server *s, struct http_request *r);
    void (*delete)(struct server *s, struct http_request *r);
    enum { EVERYWHERE, PAGES, ADMIN } at; /* PAGES: on the API's listener only with api_pages */
};

static void respond_buf(struct http_request *r, int status, const char *type, struct buf *b)
{
    if (buf_ok(b))
        http_respond(r, status, type, buf_str(b), b->len);
    else
        http_respond_error(r, 503, NULL, NULL, "Out of memory; try again later.");
    buf_fini(b);
}

static void get_health(struct server *s, struct http_request *r)
{
    static const char ok[] = "{\"status\":\"ok\"}";
    http_respond(r, 200, "application/json", ok, sizeof ok - 1);
}

/* Ready when one model can be served; the reason says what the others lack. */
bool server_ready(const struct server *s, struct buf *reasons)
{
    const struct models *ms = s->p.models;
    bool ready = false;
    if (s->draining)
        buf_puts(reasons, "draining");
    for (uint32_t i = 0; i < ms->n && !s->draining; i++) {
        char why[300];
        if (workers_ready(s->p.workers, i, why, sizeof why)) {
            ready = true;
            continue;
        }
        if (ms->n > 1)
            buf_printf(reasons, "%s%s: ", reasons->len ? "; " : "", ms->list[i].name);
        buf_puts(reasons, why);
    }
    return ready;
}

static void get_ready(struct server *s, struct http_request *r)
{
    struct buf b, reasons;
    buf_init(&b, 0);
    buf_init(&reasons, 0);
    bool ready = server_ready(s, &reasons);
    buf_printf(&b, "{\"status\":\"%s\"", ready ? "ready" : "not ready");
    if (reasons.len) {
        buf_puts(&b, ",\"reason\":");
        answer_json_string(&b, buf_str(&reasons), reasons.len);
    }
    buf_putc(&b, '}');
    buf_fini(&reasons);
    respond_buf(r, ready ? 200 : 503, "application/json", &b);
}

static void get_metrics(struct server *s, struct http_request *r)
{
    uint32_t n = workers_count(s->p.workers), used = 1;
    struct buf *pages = mem_array(n + 1, sizeof *pages), out;
    buf_init(&out, 0);
    if (!pages) {
        http_respond_error(r, 503, NULL, NULL, "Out of memory; try again later.");
        return;
    }
    buf_init(&pages[0], 0);
    metrics_render(&pages[0]);
    workers_report(s->p.workers, &pages[0]);
    for (uint32_t i = 0; i < n; i++) {
        const struct worker *w = workers_at(s->p.workers, i);
        if (w->up && w->page.len)
            pages[used++] = w->page; /* a loan */
    }
    metrics_merge(&out, pages, used);
    if (s->vllm_metrics)
        aliases_page(&out, s->p.models, s->p.workers, s->p.relay);
    buf_fini(&pages[0]);
    free(pages);
    respond_buf(r, 200, "text/plain; version=0.0.4; charset=utf-8", &out);
}

/* name: one of the model's. */
static void model_json(struct server *s, struct buf *b, uint32_t index, const char *name)
{
    const struct served *m = &s->p.models->list[index];
    buf_puts(b, "{\"id\":");
    answer_json_string(b, name, strlen(name));
    buf_printf(b, ",\"object\":\"model\",\"created\":%" PRId64 ",\"owned_by\":\"baton\"",
               s->p.models->created);
    if (strcmp(name, m->name) != 0) {
        buf_puts(b, ",\"root\":");
        answer_json_string(b, m->name, strlen(m->name));
    }
    uint32_t context = relay_context(s->p.relay, index);
    if (context)
        buf_printf(b, ",\"max_model_len\":%u", context);
    buf_putc(b, '}');
}

static void get_models(struct server *s, struct http_request *r)
{
    const struct models *ms = s->p.models;
    struct buf b;
    buf_init(&b, 0);
    buf_puts(&b, "{\"object\":\"list\",\"data\":[");
    for (uint32_t i = 0; i < ms->n; i++) {
        if (i)
            buf_putc(&b, ',');
        model_json(s, &b, i, ms->list[i].name);
        for (char *const *alias = ms->list[i].aliases; *alias; alias++) {
            buf_putc(&b, ',');
            model_json(s, &b, i, *alias);
        }
    }
    buf_puts(&b, "]}");
    respond_buf(r, 200, "application/json", &b);
}

static void get_model(struct server *s, struct http_request *r)
{
    const char *name = http_path(r) + strlen(MODELS) + 1;
    struct buf b;
    int index = models_find(s->p.models, name);
    if (index < 0) {
        struct api_error e;
        api_unknown_model(calls_envs(s->p.calls), name, &e);
        http_respond_error(r, e.http, e.param, e.code, "%s", e.message);
        return;
    }
    buf_init(&b, 0);
    model_json(s, &b, (uint32_t)index, name);
    respond_buf(r, 200, "application/json", &b);
}

static void get_debug_requests(struct server *s, struct http_request *r)
{
    struct buf b;
    buf_init(&b, 0);
    buf_puts(&b, "{\"requests\":[");
    relay_debug(s->p.relay, UINT32_MAX, &b);
    buf_puts(&b, "],\"workers\":[");
    admin_workers_json(s->p.workers, &b);
    buf_puts(&b, "]}");
    respond_buf(r, 200, "application/json", &b);
}

/* What holds for every body; false when the request has been answered. */
static bool takes_body(struct server *s, struct http_request *r)
{
    const char *coding = http_header(r, "content-encoding");
    if (s->draining && !s->inherited) {
        http_add_header(r, "Retry-After", "1");
        http_respond_error(r, 503, NULL, "draining", "This server is shutting down; try another.");
        return false;
    }
    if (coding && strcasecmp(coding, "identity") != 0) {
        http_respond_error(r, 415, NULL, "unsupported_encoding",
                           "The body must be sent without Content-Encoding, not as '%.64s'.",
                           coding);
        return false;
    }
    return true;
}

/* Whether the key is a valid one still, and has something left of its limits. */
static bool admitted(const struct front *f, struct http_request *r)
{
    const struct api_key *key;
    if (access_key(f->access, r, &key))
        return admit_request(f->server->quotas, key, r);
    http_add_header(r, "WWW-Authenticate", "Bearer");
    http_respond_error(r, 401, NULL, "invalid_api_key", "The API key is not valid any more.");
    return false;
}

static void post_chat(struct server *s, struct http_request *r)
{
    call_start(s->p.calls, API_CHAT, r);
}

static void post_completion(struct server *s, struct http_request *r)
{
    call_start(s->p.calls, API_COMPLETION, r);
}

static void post_response(struct server *s, struct http_request *r)
{
    call_start(s->p.calls, API_RESPONSES, r);
}

static void post_embeddings(struct server *s, struct http_request *r)
{
    embeddings_start(&s->embedder, calls_copy_envs(s->p.calls), r);
}

static void post_tokenize(struct server *s, struct http_request *r)
{
    tokenize_start(s->p.loop, TOKENIZE_TEXT, calls_copy_envs(s->p.calls), r);
}

static void post_detokenize(struct server *s, struct http_request *r)
{
    tokenize_start(s->p.loop, TOKENIZE_IDS, calls_copy_envs(s->p.calls), r);
}

static void get_page(struct server *s, struct http_request *r)
{
    dashboard_page(r);
}

static void get_live(struct server *s, struct http_request *r)
{
    if (s->draining)
        http_respond_error(r, 503, NULL, "draining", "This server is shutting down.");
    else
        dashboard_watch(s->dashboard, r);
}

static void get_admin_workers(struct server *s, struct http_request *r)
{
    admin_list(s->p.workers, r);
}

static void post_admin_drain(struct server *s, struct http_request *r)
{
    admin_drain(s->p.workers, r, true);
}

static void delete_admin_drain(struct server *s, struct http_request *r)
{
    admin_drain(s->p.workers, r, false);
}

static const struct route routes[] = {
    {"/v1/chat/completions", "POST", .post = post_chat},
    {"/v1/completions", "POST", .post = post_completion},
    {"/v1/responses", "POST", .post = post_response},
    {"/v1/embeddings", "POST", .post = post_embeddings},
    {"/tokenize", "POST", .post = post_tokenize},
    {"/detokenize", "POST", .post = post_detokenize},
    {"/v1/tokenize", "POST", .post = post_tokenize},
    {"/v1/detokenize", "POST", .post = post_detokenize},
    {MODELS, "GET, HEAD", .get = get_models},
    {MODELS "/"
            "*",
     "GET, HEAD", .get = get_model},
    {"/health", "GET, HEAD", .get = get_health},
    {"/ready", "GET, HEAD", .get = get_ready},
    {"/metrics", "GET, HEAD", .get = get_metrics, .at = PAGES},
    {"/debug/requests", "GET, HEAD", .get = get_debug_requests, .at = PAGES},
    {"/debug/live", "GET", .get = get_live, .at = PAGES},
    {"/", "GET, HEAD", .get = get_page, .at = PAGES},
    {"/admin/workers", "GET, HEAD", .get = get_admin_workers, .at = ADMIN},
    {"/admin/workers/"
     "*"
     "/drain",
     "POST, DELETE", .post = post_admin_drain, .delete = delete_admin_drain, .at = ADMIN},
};

static bool route_is_at(const struct route *it, const struct front *f)
{
    return it->at == EVERYWHERE || f->admin || (it->at == PAGES && f->server->api_pages);
}

static bool route_matches(const struct route *it, const char *path)
{
    const char *star = strchr(it->path, '*');
    if (!star)
        return strcmp(path, it->path) == 0;
    size_t n = (size_t)(star - it->path), tail = strlen(star + 1), all = strlen(path);
    return all > n + tail && strncmp(path, it->path, n) == 0 &&
           strcmp(path + all - tail, star + 1) == 0;
}

/* Probes come without a key, and so does the page that asks for one. */
static bool is_open(const char *path)
{
    return strcmp(path, "/") == 0 || strcmp(path, "/health") == 0 || strcmp(path, "/ready") == 0;
}

static int on_head(void *arg, struct http_request *r, const char **message)
{
    const struct front *f = arg;
    return access_head(f->access, r, is_open(http_path(r)), message);
}

static void on_request(void *arg, struct http_request *r)
{
    const struct front *f = arg;
    struct server *s = f->server;
    const char *method = http_method(r), *path = http_path(r);
    bool elsewhere = false;
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        const struct route *it = &routes[i];
        if (!route_matches(it, path))
            continue;
        elsewhere = !route_is_at(it, f);
        if (elsewhere)
            break;
        bool get = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
        if (strcmp(method, "OPTIONS") == 0) {
            char allow[64];
            snprintf(allow, sizeof allow, "%s, OPTIONS", it->methods);
            access_options(f->access, r, allow);
        } else if (get && it->get) {
            it->get(s, r);
        } else if (strcmp(method, "POST") == 0 && it->post) {
            if (it->at == ADMIN || (takes_body(s, r) && admitted(f, r)))
                it->post(s, r);
        } else if (strcmp(method, "DELETE") == 0 && it->delete) {
            it->delete (s, r);
        } else {
            http_add_header(r, "Allow", it->methods);
            http_respond_error(r, 405, NULL, "method_not_allowed",
                               "%s does not take %s; it takes %s.", path, method, it->methods);
        }
        return;
    }
    http_respond_error(r, 404, NULL, "not_found", "There is nothing at %.200s%s.", path,
                       elsewhere ? " on this address; see admin_listen" : "");
}

static void on_closed(void *arg, struct http_request *r)
{
    struct request_owner *owner = http_data(r);
    if (owner)
        owner->client_gone(owner);
}

static struct metric *requests_metric(int status)
{
    char label[32];
    snprintf(label, sizeof label, "code=\"%d\"", status);
    return metrics_counter("baton_requests_total", label,
                           "HTTP requests answered, by status code.");
}

static void on_answered(void *arg, int status)
{
    metrics_add(requests_metric(status), 1);
}

static void on_undelivered(void *arg)
{
    struct front *f = arg;
    metrics_add(f->server->m_undelivered, 1);
}

static void on_drain_tick(void *arg)
{
    struct server *s = arg;
    uint32_t open = calls_open(s->p.calls) + s->embedder.n_open;
    bool left = open || (s->inherited && !http_server_drain(s->api.http));
    if (left && clock_ms() < s->drain_until_ms)
        return;
    if (open)
        log_warn("drain_ms is over: %u answers are cut", open);
    loop_timer_stop(s->drain_timer);
    s->drained(s->drained_arg);
}

static void set_limits(struct http_options *o, const struct settings *st, bool admin)
{
    uint32_t most = (uint32_t)st->max_connections;
    o->max_connections = admin && most > ADMIN_CONNECTIONS ? ADMIN_CONNECTIONS : most;
    o->header_timeout_ms = (uint64_t)st->header_timeout_ms;
    o->body_timeout_ms = (uint64_t)st->body_timeout_ms;
    o->idle_timeout_ms = (uint64_t)st->idle_timeout_ms;
    o->write_timeout_ms = (uint64_t)st->write_timeout_ms;
}

void server_set_limits(struct server *s, const struct settings *st)
{
    s->vllm_metrics = st->vllm_metrics;
    s->api_pages = st->api_pages;
    struct http_options o = *http_server_options(s->api.http);
    set_limits(&o, st, false);
    http_server_set_limits(s->api.http, &o);
    set_limits(&o, st, true);
    if (s->admin.http)
        http_server_set_limits(s->admin.http, &o);
}

/* ---- who may come in ---- */

/* Beyond loopback somebody must ask who the client is. */
static int check_exposed(const char *address, bool asked, const char *remedy, char *err,
                         size_t errlen)
{
    struct sockaddr_storage a;
    TRY(address_resolve(address, &a, err, errlen));
    if (address_is_loopback(&a) || asked)
        return STATUS_OK;
    snprintf(
        err, errlen,
        "%.100s is reachable from other machines, and nobody has to prove who they are: set %s",
        address, remedy);
    return STATUS_AUTH;
}

static int load_tls(const struct settings *st, struct tls_context **out, char *err, size_t errlen)
{
    char path[2][PATH_MAX];
    const char *cert = service_secret(st->tls_cert_file, "baton.tls_cert", path[0], sizeof path[0]);
    const char *key = service_secret(st->tls_key_file, "baton.tls_key", path[1], sizeof path[1]);
    if (!cert && !key)
        return STATUS_OK;
    if (cert && key)
        return tls_context_server(cert, key, out, err, errlen);
    snprintf(err, errlen, "tls_cert_file and tls_key_file go together; %s is not set",
             cert ? "tls_key_file" : "tls_cert_file");
    return STATUS_INVALID;
}

static int load_admin(const struct settings *st, bool api_keys, struct server_gate *g, char *err,
                      size_t errlen)
{
    char path[PATH_MAX];
    const char *keys = service_secret(st->admin_key_file, "baton.admin_keys", path, sizeof path);
    if (st->admin_listen)
        TRY(check_exposed(st->admin_listen, keys != NULL, "admin_key_file", err, errlen));
    TRY(access_create("admin_key_file", keys, NULL, &g->admin, err, errlen));
    access_prefix(g->admin, "admin/");
    if (api_keys && !keys)
        access_lock(g->admin, "No key is valid here: clients of the API have keys (api_key_file), "
                              "so this address wants some of its own (admin_key_file).");
    return STATUS_OK;
}

int server_gate_load(const struct settings *st, const struct server *s, struct server_gate *out,
                     char *err, size_t errlen)
{
    char path[PATH_MAX];
    struct server_gate g = {0};
    const char *keys = service_secret(st->api_key_file, "baton.api_keys", path, sizeof path);
    const char *api = s ? http_server_address(s->api.http) : st->listen;
    int rc =
        check_exposed(api, keys || st->insecure, "api_key_file, or insecure = yes", err, errlen);
    if (rc == STATUS_OK)
        rc = access_create("api_key_file", keys, st->cors_origins, &g.api, err, errlen);
    if (rc == STATUS_OK)
        rc = load_admin(st, keys != NULL, &g, err, errlen);
    if (rc == STATUS_OK)
        rc = load_tls(st, &g.tls, err, errlen);
    if (rc == STATUS_OK)
        *out = g;
    else
        server_gate_fini(&g);
    return rc;
}

void server_gate_fini(struct server_gate *g)
{
    access_destroy(g->api);
    access_destroy(g->admin);
    tls_context_put(g->tls);
    *g = (struct server_gate){0};
}

static void swap_access(struct access **a, struct access **b)
{
    struct access *old = *a;
    *a = *b;
    *b = old;
}

void server_set_gate(struct server *s, struct server_gate *g)
{
    swap_access(&s->api.access, &g->api);
    swap_access(&s->admin.access, &g->admin);
    http_server_set_tls(s->api.http, g->tls);
    if (s->admin.http)
        http_server_set_tls(s->admin.http, g->tls);
    server_gate_fini(g);
    quotas_sweep(s->quotas, clock_ms());
}

int server_create(const struct settings *st, const struct server_parts *parts, struct server **out,
                  char *err, size_t errlen)
{
    static const struct http_callbacks cb = {.head = on_head,
                                             .request = on_request,
                                             .closed = on_closed,
                                             .answered = on_answered,
                                             .undelivered = on_undelivered};
    struct http_options o;
    struct server *s = mem_array(1, sizeof *s);
    if (!s) {
        snprintf(err, errlen, "out of memory");
        return STATUS_NOMEM;
    }
    s->m_undelivered = metrics_counter(
        "baton_undelivered_answers_total", "",
        "Connections that ended before the client had taken the end of its answer.");
    s->p = *parts;
    s->embedder = (struct embedder){parts->loop, parts->relay, parts->models, parts->otlp, 0};
    http_options_default(&o);
    o.header_max = (size_t)st->header_max;
    o.body_max = (size_t)st->body_max;
    o.write_max = (size_t)st->write_max;
    set_limits(&o, st, false);
    s->vllm_metrics = st->vllm_metrics;
    s->api_pages = st->api_pages;
    s->api.server = s->admin.server = s;
    s->admin.admin = true;
    struct http_options api = o;
    int fd = service_socket("api");
    api.listen_fd = fd < 0 ? 0 : fd;
    s->inherited = fd >= 0;
    int rc = loop_timer_create(parts->loop, on_drain_tick, s, &s->drain_timer);
    if (rc == STATUS_OK)
        rc = dashboard_create(parts->loop, parts->relay, parts->workers, parts->models,
                              &s->dashboard);
    if (rc == STATUS_OK)
        rc = quotas_create(&s->quotas);
    if (rc != STATUS_OK)
        snprintf(err, errlen, "out of memory");
    if (rc == STATUS_OK)
        rc = http_listen(parts->loop, st->listen, &api, &cb, &s->api, &s->api.http, err, errlen);
    struct server_gate gate = {0};
    if (rc == STATUS_OK)
        rc = server_gate_load(st, s, &gate, err, errlen);
    set_limits(&o, st, true);
    if (rc == STATUS_OK && st->admin_listen)
        rc = http_listen(parts->loop, st->admin_listen, &o, &cb, &s->admin, &s->admin.http, err,
                         errlen);
    if (rc != STATUS_OK) {
        server_gate_fini(&gate);
        server_destroy(s);
        return rc;
    }
    server_set_gate(s, &gate);
    requests_metric(200); /* the family is there before the first request */
    *out = s;
    return STATUS_OK;
}

bool server_secure(const struct server *s)
{
    return http_server_tls(s->api.http) != NULL;
}

const char *server_address(const struct server *s)
{
    return http_server_address(s->api.http);
}

const char *server_admin_address(const struct server *s)
{
    return s->admin.http ? http_server_address(s->admin.http) : NULL;
}

void server_drain(struct server *s, uint64_t drain_ms, void (*done)(void *arg), void *arg)
{
    s->draining = true;
    s->drain_until_ms = clock_ms() + drain_ms;
    s->drained = done;
    s->drained_arg = arg;
    dashboard_close(s->dashboard);
    if (s->inherited)
        (void)http_server_drain(s->api.http); /* who comes now waits for the next process */
    loop_timer_start(s->drain_timer, 1, DRAIN_POLL_MS);
}

void server_destroy(struct server *s)
{
    if (!s)
        return;
    loop_timer_free(s->drain_timer);
    dashboard_destroy(s->dashboard);
    http_server_close(s->api.http);
    http_server_close(s->admin.http);
    access_destroy(s->api.access);
    access_destroy(s->admin.access);
    quotas_destroy(s->quotas);
    free(s);
}
