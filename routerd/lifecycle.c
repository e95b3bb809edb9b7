/* lifecycle: signals in, service manager out; see lifecycle.h.
 *
 * The router is ready (in the manager's sense) once a prefill and a decode worker can be paired for
 * the first time: `systemctl start` returns when a request would be answered. Until then clients
 * are served as well; they wait for worker_wait_ms.
 *
 * A reload is taken as a whole or not at all. The new settings, and the files with keys that they
 * name, are read and judged first, then moved; nothing that can fail comes behind that. */
#include "routerd/lifecycle.h"

#include <signal.h>
#include <stdlib.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/metrics.h"
#include "common/net/link_certs.h"
#include "common/net/service.h"

#define PULSE_MS        250
#define START_EXTEND_MS 60000
#define FLUSH_MS        1000 /* for the last spans */

struct lifecycle {
    struct lifecycle_parts p;
    struct loop_timer *pulse;
    bool stopping, usable, told;
    uint64_t told_hash; /* of what the manager was told last */
    struct metric *reloads, *refused;
};

static void tell(struct lifecycle *l)
{
    struct buf why;
    buf_init(&why, 0);
    bool usable = server_ready(l->p.server, &why);
    uint64_t hash = hash64(buf_str(&why), why.len, usable);
    if (!l->told || hash != l->told_hash) {
        const char *but = why.len ? ", but " : "";
        if (usable)
            service_ready("serving on %s%s%s", server_address(l->p.server), but, buf_str(&why));
        else
            service_status("waiting for workers: %s", buf_str(&why));
    }
    buf_fini(&why);
    l->told = true;
    l->told_hash = hash;
    l->usable = usable;
}

/* The loop turns, so it lives: everything that the router has to do is done on it. */
static void on_pulse(void *arg)
{
    struct lifecycle *l = arg;
    service_watchdog(clock_ms(), 0, false);
    if (l->stopping)
        return;
    tell(l);
    if (!l->usable)
        service_starting(START_EXTEND_MS);
}

static void flushed(void *arg)
{
    struct lifecycle *l = arg;
    loop_stop(l->p.loop);
}

static void drained(void *arg)
{
    struct lifecycle *l = arg;
    otlp_flush(l->p.otlp, FLUSH_MS, flushed, l);
}

static void on_stop(void *arg, int signo)
{
    struct lifecycle *l = arg;
    if (l->stopping) {
        log_warn("second signal: stopping at once");
        loop_stop(l->p.loop);
        return;
    }
    l->stopping = true;
    service_stopping();
    log_info("signal %d: finishing %u running answers", signo, calls_open(l->p.calls));
    server_drain(l->p.server, (uint64_t)l->p.settings->drain_ms, drained, l);
}

static void apply(struct lifecycle *l)
{
    const struct settings *s = l->p.settings;
    log_set_level((enum log_level)s->log_level);
    log_set_format((enum log_format)s->log_format);
    relay_set_limits(l->p.relay, (uint64_t)s->request_timeout_ms, (uint64_t)s->worker_wait_ms,
                     (uint64_t)s->queue_timeout_ms, (uint32_t)s->queue_max);
    relay_set_replicas(l->p.relay, (uint32_t)s->replicas);
    pace_set_targets(
        &(struct pace_targets){(uint64_t)s->ttft_target_ms, (uint64_t)s->tpot_target_ms});
    otlp_set_percent(l->p.otlp, (uint32_t)s->otlp_sample_percent);
    calls_set_keepalive(l->p.calls, (uint64_t)s->sse_keepalive_ms);
    server_set_limits(l->p.server, s);
}

static void on_reload(void *arg, int signo)
{
    struct lifecycle *l = arg;
    struct settings fresh = {0};
    struct server_gate gate = {0};
    struct workers_change *list = NULL;
    struct tls_context *certificates = NULL;
    char err[512] = "";
    if (l->stopping)
        return;
    service_reloading();
    int rc = config_reread(settings_keys, settings_keys_n, l->p.settings, &fresh, l->p.argc,
                           l->p.argv, err, sizeof err);
    if (rc == STATUS_OK) {
        rc = server_gate_load(&fresh, l->p.server, &gate, err, sizeof err);
        if (rc == STATUS_OK)
            rc = link_certs_load(fresh.link_cert_file, fresh.link_key_file, fresh.link_ca_file,
                                 &certificates, err, sizeof err);
        if (rc == STATUS_OK)
            rc = workers_prepare(l->p.workers, fresh.prefill, fresh.decode, &list, err, sizeof err);
        if (rc != STATUS_OK) {
            server_gate_fini(&gate);
            config_fini(settings_keys, settings_keys_n, &fresh);
        }
    }
    if (rc == STATUS_OK) {
        uint32_t n = config_adopt(settings_keys, settings_keys_n, l->p.settings, &fresh);
        apply(l);
        server_set_gate(l->p.server, &gate);
        workers_adopt(l->p.workers, list);
        if (certificates)
            workers_set_certificates(l->p.workers, certificates);
        metrics_add(l->reloads, 1);
        log_info("reload: %u settings changed", n);
    } else {
        metrics_add(l->refused, 1);
        log_error("reload refused, nothing is changed: %s", err);
    }
    tls_context_put(certificates);
    l->told = false;
    tell(l);
}

int lifecycle_create(const struct lifecycle_parts *parts, struct lifecycle **out)
{
    struct lifecycle *l = mem_array(1, sizeof *l);
    if (!l)
        return STATUS_NOMEM;
    l->p = *parts;
    l->reloads = metrics_counter("baton_reloads_total", "result=\"applied\"",
                                 "Reloads of the configuration, by result.");
    l->refused = metrics_counter("baton_reloads_total", "result=\"refused\"",
                                 "Reloads of the configuration, by result.");
    int rc = loop_timer_create(l->p.loop, on_pulse, l, &l->pulse);
    if (rc == STATUS_OK)
        rc = loop_on_signal(l->p.loop, SIGTERM, on_stop, l);
    if (rc == STATUS_OK)
        rc = loop_on_signal(l->p.loop, SIGINT, on_stop, l);
    if (rc == STATUS_OK)
        rc = loop_on_signal(l->p.loop, SIGHUP, on_reload, l);
    if (rc != STATUS_OK) {
        loop_timer_free(l->pulse);
        free(l);
        return rc;
    }
    loop_timer_start(l->pulse, 0, PULSE_MS);
    *out = l;
    return STATUS_OK;
}

void lifecycle_destroy(struct lifecycle *l)
{
    if (!l)
        return;
    loop_timer_free(l->pulse);
    free(l);
}
