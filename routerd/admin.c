/* admin: draining a worker, and undoing it; see admin.h.
 *
 * The router only passes the wish on (DRAIN): the worker keeps it and tells all routers in its
 * heartbeats, so it holds whichever router was asked, and outlives that router. A worker that was
 * started anew takes work again. Web pages that a browser on this machine shows must not do this,
 * so what has an Origin is refused. */
#include "routerd/admin.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/json.h"
#include "common/base/log.h"
#include "routerd/answer.h"

#define DRAIN "/drain"

static const char *state_of(const struct worker *w)
{
    if (!w->up)
        return w->relinking ? "relinking" : "down";
    if (w->silent || w->stalled)
        return w->silent ? "silent" : "stalled";
    return w->leaving ? "leaving" : w->draining ? "draining" : "up";
}

static void worker_json(const struct worker *w, struct buf *out)
{
    buf_puts(out, "{\"name\":");
    answer_json_string(out, w->name, strlen(w->name));
    buf_puts(out, ",\"address\":");
    answer_json_string(out, w->address, strlen(w->address));
    buf_printf(out,
               ",\"role\":\"%s\",\"state\":\"%s\",\"instance\":\"%016" PRIx64
               "\",\"running\":%u,\"waiting\":%u,\"kv_blocks\":%u,\"kv_free\":%u}",
               w->decode ? "decode" : "prefill", state_of(w), w->instance, w->load.running,
               w->load.waiting, w->kv_blocks, w->load.kv_free);
}

void admin_workers_json(struct workers *ws, struct buf *out)
{
    for (uint32_t i = 0; i < workers_count(ws); i++) {
        if (i > 0)
            buf_putc(out, ',');
        worker_json(workers_at(ws, i), out);
    }
}

static void respond(struct http_request *r, struct buf *b)
{
    if (buf_ok(b))
        http_respond(r, 200, "application/json", buf_str(b), b->len);
    else
        http_respond_error(r, 503, NULL, NULL, "Out of memory; try again later.");
    buf_fini(b);
}

static bool refused(struct http_request *r)
{
    if (http_header(r, "origin")) { /* a page of some site in a browser on this machine */
        http_respond_error(r, 403, NULL, "no_browsers", "%s does not answer to browsers.",
                           http_path(r));
        return true;
    }
    return false;
}

void admin_list(struct workers *ws, struct http_request *r)
{
    struct buf b;
    if (refused(r))
        return;
    buf_init(&b, 0);
    buf_puts(&b, "{\"workers\":[");
    admin_workers_json(ws, &b);
    buf_puts(&b, "]}");
    respond(r, &b);
}

/* "/admin/workers/NAME/drain"; a name that is too long is nobody's. */
static void name_of(const char *path, char *name, size_t size)
{
    const char *begin = path + strlen(ADMIN_WORKERS) + 1;
    size_t n = strlen(begin) - strlen(DRAIN);
    snprintf(name, size, "%.*s", (int)(n < size ? n : size - 1), begin);
}

/* {"drain": false}, or nothing. */
static bool wish_of(struct http_request *r, bool *drain)
{
    size_t n;
    const char *body = http_body(r, &n);
    if (n == 0)
        return true;
    json_error_t e;
    json_t *o = json_loadb(body, n, JSON_REJECT_DUPLICATES, &e);
    const json_t *v = json_object_get(o, "drain");
    bool ok = json_is_object(o) && (v == NULL || json_is_boolean(v));
    if (ok && v)
        *drain = json_is_true(v);
    json_decref(o);
    return ok;
}

void admin_drain(struct workers *ws, struct http_request *r, bool drain)
{
    char name[256];
    struct worker *w;
    struct buf b;
    if (refused(r))
        return;
    name_of(http_path(r), name, sizeof name);
    if (!wish_of(r, &drain)) {
        http_respond_error(r, 400, "drain", NULL,
                           "The body must be empty or {\"drain\": true} or {\"drain\": false}.");
        return;
    }
    int rc = workers_by_name(ws, name, &w);
    if (rc == STATUS_LIMIT) {
        http_respond_error(r, 409, NULL, "ambiguous",
                           "Several workers are named '%.200s': use an address (host:port).", name);
        return;
    }
    if (rc != STATUS_OK) {
        http_respond_error(r, 404, NULL, "worker_not_found",
                           "There is no worker '%.200s'; GET " ADMIN_WORKERS " lists them.", name);
        return;
    }
    if (!w->up) {
        http_respond_error(r, 503, NULL, "worker_not_connected",
                           "The worker '%.200s' is not connected: %s.", name, w->why);
        return;
    }
    struct proto_msg m = {.type = PROTO_DRAIN, .drain = {.off = !drain}};
    log_info("worker %s is asked to %s", w->name, drain ? "drain" : "take work again");
    worker_send(w, &m);
    w->draining = drain; /* its next heartbeat says the same */
    buf_init(&b, 0);
    worker_json(w, &b);
    respond(r, &b);
}
