/* routerd: the OpenAI-compatible front of a Baton cluster.
 *
 * One thread, one loop: HTTP in, tokens to workers, tokens back, SSE out. It keeps no state beyond
 * the requests that are running, so any number of routers may serve one set of workers. main.c puts
 * the parts together; settings.c lists what can be configured. */
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/fault.h"
#include "common/base/log.h"
#include "common/base/rng.h"
#include "common/net/link_certs.h"
#include "common/net/service.h"
#include "routerd/lifecycle.h"
#include "routerd/models.h"

struct router {
    struct settings s;
    struct models *models;
    struct tls_context *certificates; /* of its links; the workers keep what a reload brings */
    struct loop *loop;
    struct relay *relay;
    struct workers *workers;
    struct otlp *otlp;
    struct calls *calls;
    struct server *server;
    struct lifecycle *lifecycle;
};

static int load_key(const struct settings *s, struct mac_key *key, char *err, size_t errlen)
{
    char path[PATH_MAX];
    return mac_key_load(service_secret(s->cluster_key_file, "baton.cluster_key", path, sizeof path),
                        key, err, errlen);
}

static int load_certificates(const struct settings *s, struct tls_context **out, char *err,
                             size_t errlen)
{
    return link_certs_load(s->link_cert_file, s->link_key_file, s->link_ca_file, out, err, errlen);
}

static int start(struct router *r, int argc, char **argv, char *err, size_t errlen)
{
    const struct settings *s = &r->s;
    struct mac_key key;
    uint64_t instance = rng_u64();
    TRY(load_key(s, &key, err, errlen));
    TRY(load_certificates(s, &r->certificates, err, errlen));
    TRY(models_load(s, &r->models, err, errlen));
    struct relay_options ro = {
        .instance = instance,
        .request_timeout_ms = (uint64_t)s->request_timeout_ms,
        .worker_wait_ms = (uint64_t)s->worker_wait_ms,
        .queue_timeout_ms = (uint64_t)s->queue_timeout_ms,
        .stall_ms = (uint64_t)s->stall_ms,
        .queue_max = (uint32_t)s->queue_max,
        .replicas = (uint32_t)s->replicas,
        .key = key,
    };
    struct workers_pool pools[MODELS_MAX];
    for (uint32_t i = 0; i < r->models->n; i++) {
        const struct served *m = &r->models->list[i];
        pools[i] = (struct workers_pool){m->name, m->aliases, m->vocab};
    }
    struct workers_options wo = {
        .prefill = s->prefill,
        .decode = s->decode,
        .self = {.version_min = PROTO_VERSION_MIN,
                 .version_max = fault_number("hello.version", PROTO_VERSION),
                 .instance = instance,
                 .role = PROTO_ROUTER,
                 .name = {s->name, strlen(s->name)},
                 .model_name = {r->models->list[0].name, strlen(r->models->list[0].name)}},
        .link = {.heartbeat_ms = (uint64_t)s->heartbeat_ms,
                 .stall_ms = (uint64_t)s->stall_ms,
                 .dead_ms = (uint64_t)s->stall_ms * 5,
                 .connect_timeout_ms = 2000,
                 .reconnect_min_ms = 50,
                 .reconnect_max_ms = 1000,
                 .queue_max = (size_t)64 << 20,
                 .key = key,
                 .certificates = r->certificates},
        .relink_ms = (uint64_t)s->relink_ms,
        .pools = pools,
        .n_pools = r->models->n,
    };
    struct calls_options co = {
        .models = r->models,
        .reasoning_field = (enum message_field)s->reasoning_field,
        .sse_keepalive_ms = (uint64_t)s->sse_keepalive_ms,
        .share_prefixes = s->share_prefixes,
        .targets = {(uint64_t)s->ttft_target_ms, (uint64_t)s->tpot_target_ms},
        .write_max = (size_t)s->write_max,
    };
    struct otlp_options oo = {s->otlp_endpoint, s->name, (uint32_t)s->otlp_sample_percent};
    int rc = loop_create(&r->loop);
    if (rc == STATUS_OK)
        rc = otlp_create(r->loop, &oo, &r->otlp, err, errlen);
    co.otlp = r->otlp;
    if (rc == STATUS_OK)
        rc = relay_create(r->loop, &ro, &r->relay);
    if (rc == STATUS_OK)
        rc = calls_create(r->loop, r->relay, &co, &r->calls);
    if (rc != STATUS_OK) {
        if (!*err)
            snprintf(err, errlen, "start: %s", status_text(rc));
        return rc;
    }
    TRY(workers_create(r->loop, &wo, &relay_workers_callbacks, r->relay, &r->workers, err, errlen));
    TRY(relay_set_workers(r->relay, r->workers));
    struct server_parts parts = {r->loop, r->relay, r->workers, r->calls, r->models, r->otlp};
    TRY(server_create(s, &parts, &r->server, err, errlen));
    struct lifecycle_parts lp = {r->loop,   &r->s,   r->relay, r->workers, r->calls,
                                 r->server, r->otlp, argc,     argv};
    return lifecycle_create(&lp, &r->lifecycle);
}

/* --check-config: what is beyond the table of keys, down to templates and vocabularies. */
static int check(struct router *r)
{
    char err[512] = "";
    struct mac_key key;
    struct server_gate gate = {0};
    int rc = load_key(&r->s, &key, err, sizeof err);
    if (rc == STATUS_OK)
        rc = server_gate_load(&r->s, NULL, &gate, err, sizeof err);
    server_gate_fini(&gate);
    if (rc == STATUS_OK)
        rc = otlp_check(r->s.otlp_endpoint, err, sizeof err);
    if (rc == STATUS_OK)
        rc = load_certificates(&r->s, &r->certificates, err, sizeof err);
    tls_context_put(r->certificates);
    log_set_level(LOG_WARN);
    if (rc == STATUS_OK)
        rc = models_load(&r->s, &r->models, err, sizeof err);
    models_destroy(r->models);
    if (rc == STATUS_OK)
        puts("routerd: the settings are valid");
    else
        fprintf(stderr, "routerd: %s\n", err[0] ? err : status_text(rc));
    return rc;
}

static void stop(struct router *r)
{
    lifecycle_destroy(r->lifecycle);
    server_destroy(r->server);
    calls_destroy(r->calls);
    workers_destroy(r->workers);
    relay_destroy(r->relay);
    otlp_destroy(r->otlp);
    if (r->loop)
        loop_destroy(r->loop);
    models_destroy(r->models);
    tls_context_put(r->certificates);
    config_fini(settings_keys, settings_keys_n, &r->s);
}

/* What a file of `models` may hold. */
static int print_model_config(void)
{
    struct model_settings s;
    if (config_load_file("routerd", model_keys, model_keys_n, &s, "/dev/null") != STATUS_OK)
        return EXIT_FAILURE;
    config_print(model_keys, model_keys_n, &s, stdout);
    config_fini(model_keys, model_keys_n, &s);
    return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    struct router r = {0};
    char err[512] = "";
    log_claim_stdio();
    if (argc == 2 && strcmp(argv[1], "--print-model-config") == 0)
        return print_model_config();
    config_live(settings_live);
    service_init();
    switch (config_load("routerd", settings_keys, settings_keys_n, &r.s, argc, argv)) {
    case CONFIG_EXIT_OK:
        config_fini(settings_keys, settings_keys_n, &r.s);
        return EXIT_SUCCESS;
    case CONFIG_EXIT_ERROR:
        config_fini(settings_keys, settings_keys_n, &r.s);
        return EXIT_FAILURE;
    case CONFIG_CHECK: {
        int checked = check(&r);
        config_fini(settings_keys, settings_keys_n, &r.s);
        return checked == STATUS_OK ? EXIT_SUCCESS : EXIT_FAILURE;
    }
    case CONFIG_RUN:
        break;
    }
    log_set_name(r.s.name);
    log_set_level((enum log_level)r.s.log_level);
    log_set_format((enum log_format)r.s.log_format);
    signal(SIGPIPE, SIG_IGN);
    int rc = fault_arm(err, sizeof err);
    if (rc == STATUS_OK)
        rc = start(&r, argc, argv, err, sizeof err);
    if (rc != STATUS_OK) {
        log_error("%s", err[0] ? err : status_text(rc));
        stop(&r);
        return EXIT_FAILURE;
    }
    log_info("%s on http%s://%s, %u model%s, waiting for workers", r.s.name,
             server_secure(r.server) ? "s" : "", server_address(r.server), r.models->n,
             r.models->n == 1 ? "" : "s");
    if (server_admin_address(r.server))
        log_info("admin on http%s://%s", server_secure(r.server) ? "s" : "",
                 server_admin_address(r.server));
    if (!r.s.prefill || !r.s.prefill[0])
        log_warn("no prefill worker is configured (prefill = host:port, …)");
    if (!r.s.decode || !r.s.decode[0])
        log_warn("no decode worker is configured (decode = host:port, …)");
    loop_run(r.loop);
    log_info("stopped");
    stop(&r);
    return EXIT_SUCCESS;
}
