/* workers: links, HELLO checks, liveness and load figures of the workers; see workers.h.
 *
 * A worker is unlinked, up, or relinking (the link broke, the instance is remembered). It is lost
 * once per instance by its death; it may be lost any number of times before that by suspicion
 * (silent, stalled), each time when the suspicion begins. Progress is compared for equality alone,
 * so a counter may wrap.
 *
 * A reload may change the list. What is new is connected before anything is decided, so that the
 * decision cannot fail; what is listed no more takes nothing new from this router, its sequences
 * move away as from one that drains, and it is let go when none is left. Other routers may keep it.
 *
 * The router's own view of a worker's load is what it has given it now, plus what others had there
 * at the last heartbeat, so that a burst of requests between two heartbeats spreads over the
 * workers instead of piling on one. */
#include "routerd/workers.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/metrics.h"
#include "routerd/models.h"

#define PAGE_MAX     ((size_t)1 << 20)
#define OWN_STALL_MS 200 /* between two checks: this process did not run */

struct workers {
    struct loop *loop;
    struct worker *list[WORKERS_MAX];
    uint32_t n;
    struct workers_callbacks cb;
    void *arg;
    struct workers_options o;
    uint64_t checked_ms; /* the last workers_check */
};

struct workers_change {
    struct worker *fresh[WORKERS_MAX]; /* not in the list yet */
    struct worker *kept[WORKERS_MAX];  /* of the list, what is in it still or again */
    uint32_t n_fresh, n_kept;
};

static void copy_text(char *to, size_t size, struct proto_bytes from)
{
    size_t n = from.n < size - 1 ? from.n : size - 1;
    if (n)
        memcpy(to, from.p, n);
    to[n] = 0;
}

/* The pool of the model that a worker announces, or -1. */
static int find_pool(const struct workers *ws, struct proto_bytes name)
{
    char text[1025];
    if (ws->o.n_pools == 1)
        return 0;
    copy_text(text, sizeof text, name);
    for (uint32_t i = 0; i < ws->o.n_pools; i++) {
        if (model_is_called(ws->o.pools[i].name, ws->o.pools[i].aliases, text))
            return (int)i;
    }
    return -1;
}

static int on_hello(void *arg, struct link *l, const struct proto_hello *h, char *why,
                    size_t whylen)
{
    struct worker *w = arg;
    uint32_t want = w->decode ? PROTO_DECODE_WORKER : PROTO_PREFILL_WORKER;
    int rc = STATUS_OK, pool = find_pool(w->owner, h->model_name);
    uint32_t vocab = pool >= 0 ? w->owner->o.pools[pool].vocab : 0;
    if (h->role != want) {
        snprintf(why, whylen, "%s is configured as a %s worker but says it is role %u", w->address,
                 w->decode ? "decode" : "prefill", h->role);
        rc = STATUS_MISMATCH;
    } else if (pool < 0) {
        snprintf(why, whylen, "it serves '%.*s', which is no model of this router (model_name)",
                 (int)(h->model_name.n < 200 ? h->model_name.n : 200),
                 h->model_name.n ? (const char *)h->model_name.p : "");
        rc = STATUS_MISMATCH;
    } else if (h->vocab < vocab) {
        snprintf(why, whylen, "vocabulary differs: router %u ids, worker %u", vocab, h->vocab);
        rc = STATUS_MISMATCH;
    } else if (h->kv_block_size == 0 || h->kv_blocks == 0) {
        snprintf(why, whylen, "worker announces no KV blocks");
        rc = STATUS_INVALID;
    }
    if (rc != STATUS_OK)
        snprintf(w->why, sizeof w->why, "%s", why);
    return rc;
}

/* The instance will not come back. */
static void gone(struct worker *w, bool dead, const char *why)
{
    w->relinking = false;
    snprintf(w->why, sizeof w->why, "%s", why);
    log_warn("worker %s at %s is lost: %s", w->name, w->address, w->why);
    w->owner->cb.lost(w->owner->arg, w, dead, w->why);
    buf_reset(&w->page);
    w->instance = 0;
}

static void on_up(void *arg, struct link *l)
{
    struct worker *w = arg;
    const struct proto_hello *h = link_peer(l);
    bool back = w->relinking && w->instance == h->instance;
    if (w->relinking && !back)
        gone(w, true, "another process listens there");
    uint8_t *address = mem_dup(h->data_address.p, h->data_address.n);
    if (!address) {
        log_error("%s: out of memory for its address", w->address);
        return;
    }
    free(w->data_address);
    w->data_address = address;
    w->data_address_n = h->data_address.n;
    w->instance = h->instance;
    w->model = h->model;
    w->pool = (uint32_t)find_pool(w->owner, h->model_name);
    w->features = h->features;
    copy_text(w->name, sizeof w->name, h->name);
    copy_text(w->kv_layout, sizeof w->kv_layout, h->kv_layout);
    copy_text(w->numerics, sizeof w->numerics, h->numerics);
    w->kv_blocks = h->kv_blocks;
    w->kv_block_size = h->kv_block_size;
    w->context = h->context;
    w->vocab = h->vocab;
    w->load = (struct proto_heartbeat){.kv_free = h->kv_blocks, .credits = 1};
    w->progress_at_ms = clock_ms();
    w->sent_since_beat = 0;
    w->others = 0, w->others_tokens = 0;
    if (!back)
        w->assigned = 0, w->assigned_tokens = 0;
    w->relinking = w->silent = w->stalled = false;
    w->draining = back && w->draining;
    w->up = true;
    w->why[0] = 0;
    if (back)
        log_info("worker %s at %s is back on a new link", w->name, w->address);
    else
        log_info("%s worker %s at %s is up, instance %016" PRIx64 ", %u blocks of %u tokens, %s",
                 w->decode ? "decode" : "prefill", w->name, w->address, w->instance, w->kv_blocks,
                 w->kv_block_size, w->numerics);
    w->owner->cb.up(w->owner->arg, w, back);
}

static void on_down(void *arg, struct link *l, int status, const char *why)
{
    struct worker *w = arg;
    char line[sizeof w->why];
    if (!w->up)
        return;
    w->up = false;
    snprintf(line, sizeof line, "link lost: %s", why && *why ? why : status_text(status));
    if (w->owner->o.relink_ms == 0) {
        gone(w, true, line);
        return;
    }
    memcpy(w->why, line, sizeof line);
    w->relinking = true;
    w->relink_until_ms = clock_ms() + w->owner->o.relink_ms;
    log_info("worker %s at %s: %s", w->name, w->address, w->why);
}

static void on_failed(void *arg, struct link *l, bool refused, const char *why)
{
    struct worker *w = arg;
    if (w->relinking && refused)
        gone(w, true, "its process is gone");
}

static void on_silent(void *arg, struct link *l, bool silent)
{
    struct worker *w = arg;
    if (silent == w->silent)
        return;
    w->silent = silent;
    w->progress_at_ms = clock_ms();
    if (silent) {
        snprintf(w->why, sizeof w->why, "silent");
        log_warn("worker %s at %s is silent: suspected", w->name, w->address);
        w->owner->cb.lost(w->owner->arg, w, false, w->why);
    } else {
        log_info("worker %s at %s is heard again", w->name, w->address);
        w->owner->cb.beat(w->owner->arg, w);
    }
}

static void on_heartbeat(void *arg, struct link *l, const struct proto_heartbeat *h)
{
    struct worker *w = arg;
    uint64_t now = clock_ms();
    if (h->progress != w->load.progress || !h->busy || !w->load.busy) {
        w->progress_at_ms = now;
        if (w->stalled) {
            w->stalled = false;
            log_info("worker %s makes progress again", w->name);
        }
    }
    w->load = *h;
    w->others = h->running > w->assigned ? h->running - w->assigned : 0;
    w->others_tokens =
        h->queued_tokens > w->assigned_tokens ? h->queued_tokens - w->assigned_tokens : 0;
    w->draining = h->draining;
    w->sent_since_beat = 0;
    w->owner->cb.beat(w->owner->arg, w);
}

static void on_message(void *arg, struct link *l, const struct proto_msg *m)
{
    struct worker *w = arg;
    switch (m->type) {
    case PROTO_METRICS:
        buf_reset(&w->page);
        buf_append(&w->page, m->metrics.page.p, m->metrics.page.n);
        return;
    case PROTO_DRAIN:
        w->draining = true;
        log_info("worker %s is draining", w->name);
        return;
    default:
        w->owner->cb.message(w->owner->arg, w, m);
    }
}

static void no_heartbeat_load(void *arg, struct link *l, struct proto_heartbeat *h)
{
    /* A router's heartbeat only says that it is alive. */
}

static const struct link_callbacks link_cb = {
    .hello = on_hello,
    .up = on_up,
    .message = on_message,
    .heartbeat = on_heartbeat,
    .fill_heartbeat = no_heartbeat_load,
    .silent = on_silent,
    .failed = on_failed,
    .down = on_down,
};

/* ---- which there are ---- */

static void worker_destroy(struct worker *w)
{
    if (w->link)
        link_close(w->link);
    free(w->address);
    free(w->data_address);
    buf_fini(&w->page);
    free(w);
}

static struct worker *listed(struct worker *const *list, uint32_t n, const char *address,
                             size_t len, bool decode)
{
    for (uint32_t i = 0; i < n; i++) {
        if (list[i]->decode == decode && strlen(list[i]->address) == len &&
            memcmp(list[i]->address, address, len) == 0)
            return list[i];
    }
    return NULL;
}

static int create(struct workers *ws, const char *address, size_t len, bool decode,
                  struct worker **out, char *err, size_t errlen)
{
    struct worker *w = mem_array(1, sizeof *w);
    if (!w || !(w->address = strndup(address, len))) {
        free(w);
        snprintf(err, errlen, "out of memory");
        return STATUS_NOMEM;
    }
    w->owner = ws;
    w->decode = decode;
    buf_init(&w->page, PAGE_MAX);
    snprintf(w->why, sizeof w->why, "not connected yet");
    snprintf(w->name, sizeof w->name, "%s", w->address);
    int rc = link_connect(ws->loop, w->address, &ws->o.self, &ws->o.link, &link_cb, w, &w->link,
                          err, errlen);
    if (rc != STATUS_OK)
        worker_destroy(w);
    else
        *out = w;
    return rc;
}

static int add(struct workers *ws, struct workers_change *c, const char *address, size_t len,
               bool decode, char *err, size_t errlen)
{
    struct worker *w = listed(ws->list, ws->n, address, len, decode);
    if (listed(c->fresh, c->n_fresh, address, len, decode) ||
        listed(c->kept, c->n_kept, address, len, decode)) {
        snprintf(err, errlen, "%s: %.*s is there twice", decode ? "decode" : "prefill",
                 (int)(len < 200 ? len : 200), address);
        return STATUS_INVALID;
    }
    if (w) {
        c->kept[c->n_kept++] = w;
        return STATUS_OK;
    }
    if (ws->n + c->n_fresh == WORKERS_MAX) {
        snprintf(err, errlen, "more than %d workers, with those that still drain", WORKERS_MAX);
        return STATUS_LIMIT;
    }
    TRY(create(ws, address, len, decode, &w, err, errlen));
    c->fresh[c->n_fresh++] = w;
    return STATUS_OK;
}

static int add_list(struct workers *ws, struct workers_change *c, const char *list, bool decode,
                    char *err, size_t errlen)
{
    const char *at = list ? list : "";
    while (*at) {
        size_t n = strcspn(at, ",");
        const char *begin = at;
        at += n + (at[n] == ',');
        while (n && (*begin == ' ' || *begin == '\t'))
            begin++, n--;
        while (n && (begin[n - 1] == ' ' || begin[n - 1] == '\t'))
            n--;
        if (n)
            TRY(add(ws, c, begin, n, decode, err, errlen));
    }
    return STATUS_OK;
}

int workers_prepare(struct workers *ws, const char *prefill, const char *decode,
                    struct workers_change **out, char *err, size_t errlen)
{
    struct workers_change *c = mem_array(1, sizeof *c);
    if (!c) {
        snprintf(err, errlen, "out of memory");
        return STATUS_NOMEM;
    }
    int rc = add_list(ws, c, prefill, false, err, errlen);
    if (rc == STATUS_OK)
        rc = add_list(ws, c, decode, true, err, errlen);
    if (rc == STATUS_OK)
        *out = c;
    else
        workers_forget(c);
    return rc;
}

void workers_forget(struct workers_change *c)
{
    for (uint32_t i = 0; c && i < c->n_fresh; i++)
        worker_destroy(c->fresh[i]);
    free(c);
}

void workers_adopt(struct workers *ws, struct workers_change *c)
{
    for (uint32_t i = 0; i < ws->n; i++) {
        struct worker *w = ws->list[i];
        bool kept = listed(c->kept, c->n_kept, w->address, strlen(w->address), w->decode);
        if (kept == !w->leaving)
            continue;
        w->leaving = !kept;
        log_info("worker %s at %s is %s", w->name, w->address,
                 kept ? "listed again" : "listed no more: what it has goes on or comes to its end");
    }
    for (uint32_t i = 0; i < c->n_fresh; i++)
        ws->list[ws->n++] = c->fresh[i];
    c->n_fresh = 0;
    workers_forget(c);
}

void workers_set_certificates(struct workers *ws, struct tls_context *certificates)
{
    tls_context_put(ws->o.link.certificates);
    ws->o.link.certificates = tls_context_get(certificates);
    for (uint32_t i = 0; i < ws->n; i++)
        link_set_certificates(ws->list[i]->link, certificates);
}

/* Takes those off the list that are no more on it and have nothing of this router's. */
static void let_go(struct workers *ws)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < ws->n; i++) {
        struct worker *w = ws->list[i];
        if (!w->leaving || w->assigned || w->relinking) {
            ws->list[n++] = w;
            continue;
        }
        log_info("worker %s at %s is let go", w->name, w->address);
        worker_destroy(w);
    }
    ws->n = n;
}

int workers_create(struct loop *loop, const struct workers_options *o,
                   const struct workers_callbacks *cb, void *arg, struct workers **out, char *err,
                   size_t errlen)
{
    struct workers_change *all;
    struct workers *ws = mem_array(1, sizeof *ws);
    struct workers_pool *pools = mem_dup(o->pools, o->n_pools * sizeof *pools);
    if (!ws || !pools) {
        free(ws);
        free(pools);
        snprintf(err, errlen, "out of memory");
        return STATUS_NOMEM;
    }
    ws->loop = loop;
    ws->cb = *cb;
    ws->arg = arg;
    ws->o = *o;
    ws->o.pools = pools;
    ws->checked_ms = clock_ms();
    tls_context_get(ws->o.link.certificates);
    int rc = workers_prepare(ws, o->prefill, o->decode, &all, err, errlen);
    if (rc != STATUS_OK) {
        workers_destroy(ws);
        return rc;
    }
    ws->o.prefill = ws->o.decode = NULL;
    workers_adopt(ws, all);
    *out = ws;
    return STATUS_OK;
}

void workers_destroy(struct workers *ws)
{
    if (!ws)
        return;
    for (uint32_t i = 0; i < ws->n; i++)
        worker_destroy(ws->list[i]);
    tls_context_put(ws->o.link.certificates);
    free((void *)ws->o.pools);
    free(ws);
}

uint32_t workers_count(const struct workers *ws)
{
    return ws->n;
}

struct worker *workers_at(struct workers *ws, uint32_t i)
{
    return ws->list[i];
}

struct worker *workers_find(struct workers *ws, uint64_t instance)
{
    for (uint32_t i = 0; i < ws->n; i++) {
        if (instance && ws->list[i]->instance == instance)
            return ws->list[i];
    }
    return NULL;
}

int workers_by_name(struct workers *ws, const char *name, struct worker **out)
{
    struct worker *found = NULL;
    for (uint32_t i = 0; i < ws->n; i++) {
        struct worker *w = ws->list[i];
        if (strcmp(w->address, name) == 0) {
            *out = w;
            return STATUS_OK;
        }
        if (strcmp(w->name, name) != 0)
            continue;
        if (found)
            return STATUS_LIMIT;
        found = w;
    }
    if (!found)
        return STATUS_NOTFOUND;
    *out = found;
    return STATUS_OK;
}

static bool takes_work(const struct worker *w)
{
    return w->up && !w->silent && !w->stalled && !w->draining && !w->leaving;
}

static bool same_group(const struct worker *a, const struct worker *b)
{
    return a->pool == b->pool && a->model == b->model && strcmp(a->kv_layout, b->kv_layout) == 0;
}

void workers_view(const struct workers *ws, struct pick_worker *out)
{
    for (uint32_t i = 0; i < ws->n; i++) {
        const struct worker *w = ws->list[i];
        struct pick_worker *p = &out[i];
        *p = (struct pick_worker){.decode = w->decode, .group = i, .instance = w->instance};
        if (!w->up)
            continue;
        for (uint32_t j = 0; j < i; j++) {
            if (ws->list[j]->up && same_group(w, ws->list[j])) {
                p->group = out[j].group;
                break;
            }
        }
        p->pool = w->pool;
        p->numerics = hash64(w->numerics, strlen(w->numerics), 0) | 1;
        p->alive = !w->silent && !w->stalled;
        p->usable = p->alive && takes_work(w);
        p->moves = w->features & PROTO_FEATURE_MOVE;
        p->copies = p->moves && w->features & PROTO_FEATURE_COPY;
        /* Other routers' as of the last heartbeat; of its own the router knows more than that. */
        if (!w->decode)
            p->queued_tokens = w->others_tokens + w->assigned_tokens;
        p->running = w->others + w->assigned;
        p->credits =
            w->load.credits > w->sent_since_beat ? w->load.credits - w->sent_since_beat : 0;
        p->kv_free = w->load.kv_free;
        p->kv_blocks = w->kv_blocks;
        p->kv_block_size = w->kv_block_size;
        p->context = w->context;
    }
}

void worker_send(struct worker *w, const struct proto_msg *m)
{
    int rc = w->up ? link_send(w->link, m) : STATUS_CLOSED;
    if (rc != STATUS_OK)
        log_debug("%s to %s not sent: %s", proto_type_name(m->type), w->name, status_text(rc));
}

/* For how long this process has stood still since the last check: what its workers said meanwhile
 * is not read yet, and nobody may be blamed for it. */
static uint64_t own_stall(struct workers *ws, uint64_t now_ms)
{
    uint64_t since = now_ms - ws->checked_ms;
    ws->checked_ms = now_ms;
    return since > OWN_STALL_MS ? since : 0;
}

void workers_check(struct workers *ws, uint64_t now_ms, uint64_t stall_ms)
{
    uint64_t own = own_stall(ws, now_ms);
    for (uint32_t i = 0; i < ws->n; i++) {
        struct worker *w = ws->list[i];
        w->progress_at_ms = now_ms - w->progress_at_ms > own ? w->progress_at_ms + own : now_ms;
        w->relink_until_ms += own;
        if (w->relinking && now_ms >= w->relink_until_ms)
            gone(w, false, "its link did not come back");
        if (!w->up || w->silent || w->stalled || !w->load.busy)
            continue;
        uint64_t limit = (uint64_t)w->load.step_us * 4 / 1000;
        if (limit < stall_ms)
            limit = stall_ms;
        if (now_ms - w->progress_at_ms <= limit)
            continue;
        w->stalled = true;
        snprintf(w->why, sizeof w->why, "no progress for %" PRIu64 " ms",
                 now_ms - w->progress_at_ms);
        log_warn("worker %s at %s: %s: suspected", w->name, w->address, w->why);
        ws->cb.lost(ws->arg, w, false, w->why);
    }
    let_go(ws);
}

static void report(const struct workers *ws, struct buf *out, const char *name, const char *help,
                   bool (*is)(const struct worker *w))
{
    struct buf labels;
    buf_init(&labels, 4096);
    buf_printf(out, "# HELP %s %s\n# TYPE %s gauge\n", name, help, name);
    for (uint32_t i = 0; i < ws->n; i++) {
        const struct worker *w = ws->list[i];
        buf_reset(&labels);
        metrics_label(&labels, "address", w->address);
        metrics_label(&labels, "role", w->decode ? "decode" : "prefill");
        buf_printf(out, "%s{%s} %d\n", name, buf_str(&labels), is(w));
    }
    buf_fini(&labels);
}

static bool is_up(const struct worker *w)
{
    return w->up && !w->silent && !w->stalled;
}

static bool is_draining(const struct worker *w)
{
    return w->up && (w->draining || w->leaving);
}

void workers_report(const struct workers *ws, struct buf *out)
{
    report(ws, out, "baton_worker_up",
           "Whether the configured worker is connected and not suspected.", is_up);
    report(ws, out, "baton_worker_draining",
           "Whether the worker finishes what runs and takes nothing new.", is_draining);
}

bool workers_ready(struct workers *ws, uint32_t pool, char *why, size_t n)
{
    const struct worker *p_seen = NULL, *d_seen = NULL;
    for (uint32_t i = 0; i < ws->n; i++) {
        const struct worker *p = ws->list[i];
        if (p->pool != pool || !takes_work(p))
            continue;
        if (p->decode)
            d_seen = p;
        else
            p_seen = p;
        for (uint32_t j = 0; j < ws->n && !p->decode; j++) {
            const struct worker *d = ws->list[j];
            if (d->decode && takes_work(d) && same_group(p, d))
                return true;
        }
    }
    if (p_seen && d_seen) {
        if (p_seen->model != d_seen->model)
            snprintf(why, n, "model differs: %s %016" PRIx64 ", %s %016" PRIx64, p_seen->name,
                     p_seen->model, d_seen->name, d_seen->model);
        else
            snprintf(why, n, "kv_layout differs: %s %s, %s %s", p_seen->name, p_seen->kv_layout,
                     d_seen->name, d_seen->kv_layout);
        return false;
    }
    bool need_decode = p_seen != NULL;
    snprintf(why, n, "no %s worker is ready", need_decode ? "decode" : "prefill");
    for (uint32_t i = 0; i < ws->n; i++) {
        const struct worker *w = ws->list[i];
        if (w->decode == need_decode && w->why[0] && !w->leaving) {
            snprintf(why, n, "no %s worker is ready: %s: %s", need_decode ? "decode" : "prefill",
                     w->name, w->why);
            break;
        }
    }
    return false;
}
