/* worker: start-up, the turn of the loop, and shut-down; see worker.h.
 *
 * Start-up goes by completions: HTTP first (so that /health answers), then the model on the engine
 * thread, then the KV pool, then the captured passes, and only then the listener for routers: a
 * worker that can be connected to can work. Errors on the way set the status and stop the loop. The
 * data link is opened first where KV lies in memory that UCX allocates, and behind the captured
 * passes where it lies on a device.
 *
 * SIGTERM or SIGINT drains: routers are told, new work is refused, what runs may finish within
 * drain_ms. A second signal stops at once; routers then see the link break and resume elsewhere. */
#include "common/worker/internal.h"

#include "common/net/service.h"
#include "kernels/backend.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TICK_MS            100
#define MEMORY_AUTO_FACTOR 4 /* at most a quarter of what is available */

uint64_t worker_now(const struct worker *w)
{
    return loop_now_ms(w->loop);
}

void worker_stop(struct worker *w, int status)
{
    if (w->stopping)
        return;
    w->stopping = true;
    w->status = status;
    loop_stop(w->loop);
}

/* Load. */

uint32_t worker_parked_blocks(const struct worker *w)
{
    uint32_t n = 0;
    LIST_FOR (it, &w->jobs) {
        const struct job *j = container_of(it, struct job, node);
        if (j->moving) /* its sequence's */
            continue;
        if (j->state == JOB_PARKED ||
            (j->state == JOB_COMPUTED && j->reservation != JOB_RES_GRANTED))
            n += j->n_blocks;
    }
    return n;
}

bool worker_parked_full(const struct worker *w)
{
    uint64_t max = (uint64_t)kv_pool_size(w->pool) * (uint64_t)w->settings->parked_max_percent;
    return (uint64_t)worker_parked_blocks(w) * 100 > max;
}

struct proto_heartbeat worker_load(const struct worker *w)
{
    struct proto_heartbeat h = {.progress = engine_thread_progress(w->engine),
                                .running = w->tickets.n_active,
                                .waiting = w->tickets.n_waiting,
                                .kv_free = kv_pool_free(w->pool),
                                .draining = w->draining,
                                .busy = engine_thread_busy(w->engine),
                                .step_us = engine_thread_layer_us(w->engine)};
    uint32_t queued = 0;
    LIST_FOR (n, &w->jobs) {
        const struct job *j = container_of(n, struct job, node);
        if (j->moving) /* its sequence counts */
            continue;
        if (j->state == JOB_RUNNING)
            h.running++;
        else if (j->state != JOB_ENDED)
            h.waiting++;
        if (j->state == JOB_QUEUED || j->state == JOB_RUNNING)
            queued += j->n_tokens - j->computed;
    }
    h.queued_tokens = queued;
    uint32_t limit = (uint32_t)w->settings->queue_max;
    uint32_t used = w->policy->role == PROTO_PREFILL_WORKER ? w->n_jobs : w->tickets.n_waiting;
    h.credits = w->draining || worker_parked_full(w) || used >= limit ? 0 : limit - used;
    return h;
}

/* The turn. */

static bool work_left(const struct worker *w)
{
    return w->n_jobs > 0 || !list_empty(&w->tickets.all) || w->steps.n_active > 0;
}

static void worker_turn(void *arg)
{
    struct worker *w = arg;
    w->woken = false;
    if (!w->ready || w->stopping)
        return;
    decode_admit(w);
    links_flush(w);
    steps_start(w);
    links_flush(w); /* planning may have ended sequences */
    if (w->leaving && !work_left(w) && links_idle(w) && xfer_stats(w->xfer).sends_in_flight == 0) {
        log_info("drained");
        worker_stop(w, STATUS_OK);
    }
}

void worker_wake(struct worker *w)
{
    if (w->woken)
        return;
    w->woken = true;
    loop_defer(w->loop, worker_turn, w);
}

static void on_tick(void *arg)
{
    struct worker *w = arg;
    uint64_t now = worker_now(w);
    manage_tick(w, now);
    if (w->ready) {
        prefill_tick(w, now);
        decode_tick(w, now);
        peers_tick(w, now);
        links_tick(w, now);
        worker_wake(w);
    }
    if (w->leaving && now >= w->drain_until) {
        log_warn("drain_ms has passed: stopping with work left");
        worker_stop(w, STATUS_OK);
    }
}

static void on_report(void *arg)
{
    struct worker *w = arg;
    if (w->ready)
        report_push(w);
}

void worker_drain(struct worker *w, bool on)
{
    if (!w->ready || (w->leaving && !on))
        return;
    if (w->draining != on && !w->leaving)
        log_info(on ? "asked to drain: no new work" : "asked to take work again");
    w->draining = on;
    if (on)
        decode_drain(w);
    worker_wake(w);
}

static void on_signal(void *arg, int signo)
{
    struct worker *w = arg;
    if (w->leaving || !w->ready) {
        log_info("%s: stopping at once", signo == SIGTERM ? "SIGTERM" : "SIGINT");
        worker_stop(w, STATUS_OK);
        return;
    }
    log_info("%s: draining for at most %lld ms", signo == SIGTERM ? "SIGTERM" : "SIGINT",
             (long long)w->settings->drain_ms);
    service_stopping();
    w->leaving = true;
    w->drain_until = worker_now(w) + (uint64_t)w->settings->drain_ms;
    worker_drain(w, true);
    links_drain(w);
}

/* Start-up. */

static int fail(struct worker *w, int status, const char *what)
{
    log_error("%s", what);
    worker_stop(w, status);
    return status;
}

static uint64_t memory_available(void)
{
    unsigned long long kib = 0;
    char line[256];
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && fgets(line, sizeof line, f) && sscanf(line, "MemAvailable: %llu", &kib) != 1)
        ;
    if (f)
        fclose(f);
    return kib * 1024;
}

/* A device's memory is measured by the engine, and not shared with others as the host's is. */
static uint64_t most_blocks(const struct worker *w, uint64_t bytes)
{
    if (!w->info.kv_on_device)
        return memory_available() / MEMORY_AUTO_FACTOR / bytes;
    uint64_t n = w->info.kv_bytes_max / bytes;
    return n > 0 ? n - 1 : 0; /* without the sink */
}

/* Blocks without the sink, or 0 with a line in err. */
static uint32_t pool_blocks(const struct worker *w, char *err, size_t errlen)
{
    const struct worker_settings *s = w->settings;
    uint64_t bytes = (uint64_t)w->info.kv_block_bytes * w->info.n_layers;
    uint64_t full = blocks_for(w->info.context, w->info.kv_block_size);
    uint64_t n = (uint64_t)s->kv_blocks;
    if (n == 0 && s->kv_memory >= 0) {
        n = (uint64_t)s->kv_memory / bytes;
    } else if (n == 0) {
        uint64_t most = most_blocks(w, bytes);
        n = full * (uint64_t)s->max_batch;
        n = n > most ? most : n;
    }
    if (n < 2 && w->info.kv_on_device) {
        snprintf(
            err, errlen,
            "the KV cache needs %llu bytes of the device at least, %zu are free for it (captured "
            "passes take %zu): lower max_batch or prefill_chunk, or raise "
            "device_memory_percent (%lld)",
            3 * (unsigned long long)bytes, w->info.kv_bytes_max, w->info.graph_bytes,
            (long long)s->device_memory_percent);
        return 0;
    }
    if (n < 2 || n > UINT32_MAX / 2) {
        snprintf(err, errlen,
                 "the KV cache would have %llu blocks of %llu KiB: set kv_memory or kv_blocks",
                 (unsigned long long)n, (unsigned long long)bytes / 1024);
        return 0;
    }
    if (n < full + 1)
        log_warn("the KV cache holds %llu tokens, less than one sequence of the context (%u)",
                 (unsigned long long)n * w->info.kv_block_size, w->info.context);
    return (uint32_t)n;
}

static void on_loaded(void *arg, int status, const char *name, const char *err)
{
    struct worker *w = arg;
    char why[512];
    if (status != STATUS_OK) {
        fail(w, status, err);
        return;
    }
    w->info = *engine_info(engine_thread_engine(w->engine));
    const char *wanted = w->settings->model_name;
    snprintf(w->model_name, sizeof w->model_name, "%s", wanted && *wanted ? wanted : name);
    uint32_t n = pool_blocks(w, why, sizeof why);
    if (n == 0) {
        fail(w, STATUS_RANGE, why);
        return;
    }
    size_t bytes;
    struct engine *e = engine_thread_engine(w->engine);
    if (w->info.kv_on_device && engine_kv_alloc(e, n + 1, &w->kv, why, sizeof why) != STATUS_OK) {
        fail(w, STATUS_NOMEM, why);
        return;
    }
    if (!mem_mul((size_t)w->info.kv_block_bytes * w->info.n_layers, (size_t)n + 1, &bytes) ||
        (!w->kv && xfer_mem_alloc(w->xfer, bytes, &w->kv) != STATUS_OK) ||
        kv_pool_create(n + 1, w->info.kv_block_size, w->settings->prefix_cache, &w->pool) !=
            STATUS_OK) {
        fail(w, STATUS_NOMEM, "no memory for the KV cache: set kv_memory");
        return;
    }
    log_info("weights %zu MiB, KV cache %zu MiB: %u blocks of %u tokens, %llu tokens at a time; %s",
             w->info.weight_bytes >> 20, bytes >> 20, n, w->info.kv_block_size,
             (unsigned long long)n * w->info.kv_block_size, w->info.numerics);
    engine_thread_bind(w->engine, w->kv, n + 1);
}

static const struct tokenizer *tokenizer_of(void *arg)
{
    const struct worker *w = arg;
    return engine_thread_tokenizer(w->engine);
}

static void on_grammar(void *arg)
{
    struct worker *w = arg;
    prefill_grammars(w);
    decode_grammars(w);
    worker_wake(w);
}

static int open_relay(struct worker *w, char *err, size_t errlen)
{
    const struct grammars_options g = {tokenizer_of, on_grammar, w};
    struct ticket_config c = {.n_layers = w->info.n_layers,
                              .block_size = w->info.kv_block_size,
                              .context = w->info.context,
                              .lease_ms = (uint64_t)w->settings->lease_ms,
                              .waiting_max = (uint32_t)w->settings->queue_max};
    if (!w->xfer)
        TRY(peers_open(w, err, errlen));
    ticket_table_init(&w->tickets, &c, w->pool);
    int rc = kvmem_open(w);
    if (rc == STATUS_OK)
        rc = steps_open(w);
    if (rc == STATUS_OK)
        rc = grammars_create(w->loop, &g, &w->grammars);
    if (rc == STATUS_OK)
        rc = report_open(w);
    if (rc != STATUS_OK) {
        snprintf(err, errlen, "%s", status_text(rc));
        return rc;
    }
    return links_open(w, err, errlen);
}

static void on_bound(void *arg, int status)
{
    struct worker *w = arg;
    char err[512] = "";
    if (status != STATUS_OK) {
        fail(w, status, "the forward pass could not be captured");
        return;
    }
    int rc = open_relay(w, err, sizeof err);
    if (rc != STATUS_OK) {
        fail(w, rc, err);
        return;
    }
    w->ready = true;
    const char *listen = link_listener_address(w->listener);
    log_info("ready: model %s, routers at %s, http at %s", w->model_name, listen, w->http_address);
    loop_timer_start(w->report, (uint64_t)w->settings->heartbeat_ms,
                     (uint64_t)w->settings->heartbeat_ms);
    manage_ready(w);
    if (w->ready_fn)
        w->ready_fn(w->ready_arg, listen, w->http_address);
    worker_wake(w);
}

static void name_worker(struct worker *w)
{
    const char *name = w->settings->name;
    if (name && *name) {
        snprintf(w->name, sizeof w->name, "%s", name);
    } else {
        const char *port = strrchr(w->http_address, ':');
        snprintf(w->name, sizeof w->name, "%s-%s", w->policy->program, port ? port + 1 : "0");
    }
    log_set_name(w->name);
    struct buf labels;
    buf_init(&labels, 400);
    metrics_label(&labels, "worker", w->name);
    metrics_label(&labels, "role", w->policy->role == PROTO_PREFILL_WORKER ? "prefill" : "decode");
    metrics_identify(buf_str(&labels));
    buf_fini(&labels);
}

/* Whether the engine will compute on a device. */
static bool on_device(const struct worker_settings *s)
{
    char name[32];
    const char *backend = settings_choice("backend", s->backend, name);
    return strcmp(strcmp(backend, "auto") == 0 ? backend_auto() : backend, "cuda") == 0;
}

static int open_edges(struct worker *w, char *err, size_t errlen)
{
    static const struct engine_thread_callbacks cb = {
        .loaded = on_loaded, .bound = on_bound, .layer = steps_layer, .stepped = steps_done};
    const struct worker_settings *s = w->settings;
    TRY(fault_arm(err, errlen));
    TRY(manage_check(s, err, errlen));
    TRY(manage_key(s, &w->key, err, errlen));
    TRY(manage_certificates(s, &w->certificates, err, errlen));
    TRY(pages_open(w, err, errlen));
    name_worker(w);
    if (!on_device(s)) /* passes of a device are captured before UCX may touch it */
        TRY(peers_open(w, err, errlen));
    int rc = engine_thread_create(w->loop, &cb, w, &w->engine);
    if (rc == STATUS_OK)
        rc = loop_timer_create(w->loop, on_tick, w, &w->tick);
    if (rc == STATUS_OK)
        rc = loop_timer_create(w->loop, on_report, w, &w->report);
    if (rc == STATUS_OK)
        rc = loop_on_signal(w->loop, SIGTERM, on_signal, w);
    if (rc == STATUS_OK)
        rc = loop_on_signal(w->loop, SIGINT, on_signal, w);
    if (rc == STATUS_OK)
        rc = manage_open(w);
    if (rc != STATUS_OK)
        snprintf(err, errlen, "start-up: %s", status_text(rc));
    return rc;
}

static void start_loading(struct worker *w)
{
    const struct worker_settings *s = w->settings;
    static char backend[32], isa[32], weights[32], kv_format[32],
        numerics[32]; /* loans to the engine thread */
    struct engine_options o = {.backend = settings_choice("backend", s->backend, backend),
                               .isa = settings_choice("isa", s->isa, isa),
                               .weights = settings_choice("weights", s->weights, weights),
                               .kv_format = settings_choice("kv_format", s->kv_format, kv_format),
                               .threads = (int)s->threads,
                               .helpers = (int)s->helpers,
                               .cpus = s->cpus,
                               .context = (uint32_t)s->context_length,
                               .max_batch = (uint32_t)s->max_batch,
                               .prefill_chunk = (uint32_t)s->prefill_chunk,
                               .kv_block_size = (uint32_t)s->kv_block_size,
                               .graphs = s->graphs,
                               .numerics = settings_choice("numerics", s->numerics, numerics),
                               .device = (int)s->device,
                               .device_memory_percent = (uint32_t)s->device_memory_percent};
    engine_thread_load(w->engine, s->model, &o);
}

/* In reverse order of start-up; every part may be missing. */
static void worker_close(struct worker *w)
{
    loop_timer_free(w->tick);
    loop_timer_free(w->report);
    w->stopping = true;
    engine_thread_finish(w->engine); /* nobody computes into the KV any more */
    peers_close(w);
    xfer_destroy(w->xfer); /* ends every send and receive: their holds go */
    kvmem_close(w);
    if (w->ready) {
        prefill_close(w);
        ticket_table_fini(&w->tickets);
    }
    links_close(w);
    if (w->http)
        http_server_close(w->http);
    api_keys_destroy(w->api_keys);
    tls_context_put(w->certificates);
    steps_close(w);
    grammars_destroy(w->grammars); /* reads the tokenizer, which is the engine thread's */
    report_close(w);
    if (w->pool)
        kv_pool_destroy(w->pool);
    engine_thread_destroy(w->engine);
    buf_fini(&w->scratch);
}

int worker_run(const struct worker_policy *policy, const struct worker_settings *settings,
               worker_ready_fn ready, void *arg)
{
    return worker_serve(policy, settings, NULL, ready, arg);
}

int worker_serve(const struct worker_policy *policy, const struct worker_settings *settings,
                 const struct worker_source *source, worker_ready_fn ready, void *arg)
{
    struct worker *w = calloc(1, sizeof *w);
    char err[512] = "";
    if (!w)
        return STATUS_NOMEM;
    w->policy = policy;
    w->settings = settings;
    w->source = source;
    w->ready_fn = ready;
    w->ready_arg = arg;
    w->instance = rng_u64() | 1;
    list_init(&w->routers);
    list_init(&w->jobs);
    buf_init(&w->scratch, PROTO_FRAME_MAX);
    log_set_level((enum log_level)settings->log_level);
    log_set_format((enum log_format)settings->log_format);
    log_set_name(policy->program);
    int rc = loop_create(&w->loop);
    if (rc != STATUS_OK) {
        log_error("start-up: %s", status_text(rc));
        free(w);
        return rc;
    }
    rc = open_edges(w, err, sizeof err);
    if (rc == STATUS_OK) {
        start_loading(w);
        loop_timer_start(w->tick, TICK_MS, TICK_MS);
        loop_run(w->loop);
        rc = w->status;
    } else {
        log_error("%s", err);
    }
    worker_close(w);
    loop_destroy(w->loop);
    free(w);
    return rc;
}
