/* manage: what a worker and its surroundings say to each other: the shared main(), reload (SIGHUP),
 * and the service manager, whose watchdog is fed by the engine's progress (R9). */
#include "common/worker/internal.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/net/link_certs.h"
#include "common/net/service.h"

#define START_EXTEND_MS 60000
#define START_TELL_MS   5000

int manage_key(const struct worker_settings *s, struct mac_key *key, char *err, size_t errlen)
{
    char path[PATH_MAX];
    return mac_key_load(service_secret(s->cluster_key_file, "baton.cluster_key", path, sizeof path),
                        key, err, errlen);
}

int manage_certificates(const struct worker_settings *s, struct tls_context **out, char *err,
                        size_t errlen)
{
    return link_certs_load(s->link_cert_file, s->link_key_file, s->link_ca_file, out, err, errlen);
}

int manage_exposed(const struct worker_settings *s, const struct mac_key *key, bool certificates,
                   bool api_keys, char *err, size_t errlen)
{
    struct sockaddr_storage http;
    if (!certificates)
        TRY(mac_check_listen(key, s->listen, err, errlen));
    TRY(address_resolve(s->http, &http, err, errlen));
    if (address_is_loopback(&http) || api_keys || s->insecure)
        return STATUS_OK;
    snprintf(
        err, errlen,
        "http = %.100s is reachable from other machines, and nobody has to prove who they are: "
        "set api_key_file, or insecure = yes",
        s->http);
    return STATUS_AUTH;
}

int manage_check(const struct worker_settings *s, char *err, size_t errlen)
{
    if (!s->model || !*s->model) {
        snprintf(err, errlen, "no model: set model to a GGUF file or a directory");
        return STATUS_INVALID;
    }
    if (s->prefill_chunk % s->kv_block_size != 0) {
        snprintf(err, errlen, "prefill_chunk (%lld) must be a multiple of kv_block_size (%lld)",
                 (long long)s->prefill_chunk, (long long)s->kv_block_size);
        return STATUS_INVALID;
    }
    return STATUS_OK;
}

static void on_reload(void *arg, int signo)
{
    struct worker *w = arg;
    const struct worker_source *from = w->source;
    struct worker_settings fresh = {0};
    struct api_keys *keys = NULL;
    struct tls_context *certificates = NULL;
    char err[512] = "";
    if (w->leaving)
        return;
    service_reloading();
    int rc = config_reread(worker_keys, worker_keys_n, from->settings, &fresh, from->argc,
                           from->argv, err, sizeof err);
    if (rc == STATUS_OK) {
        rc = pages_keys(&fresh, &keys, err, sizeof err);
        if (rc == STATUS_OK)
            rc = manage_exposed(&fresh, &w->key, w->certificates != NULL, keys != NULL, err,
                                sizeof err);
        if (rc == STATUS_OK)
            rc = manage_certificates(&fresh, &certificates, err, sizeof err);
        if (rc != STATUS_OK) {
            api_keys_destroy(keys);
            config_fini(worker_keys, worker_keys_n, &fresh);
        }
    }
    if (rc == STATUS_OK) {
        uint32_t n = config_adopt(worker_keys, worker_keys_n, from->settings, &fresh);
        api_keys_destroy(w->api_keys);
        w->api_keys = keys;
        if (w->listener && certificates)
            link_listener_set_certificates(w->listener, certificates);
        tls_context_put(w->certificates);
        w->certificates = certificates;
        log_set_level((enum log_level)from->settings->log_level);
        log_set_format((enum log_format)from->settings->log_format);
        log_info("reload: %u settings changed", n);
    } else {
        log_error("reload refused, nothing is changed: %s", err);
    }
    if (w->ready)
        manage_ready(w);
}

int manage_open(struct worker *w)
{
    return w->source ? loop_on_signal(w->loop, SIGHUP, on_reload, w) : STATUS_OK;
}

void manage_ready(const struct worker *w)
{
    service_ready("model %s, routers at %s, http at %s", w->model_name,
                  link_listener_address(w->listener), w->http_address);
}

void manage_loading(const struct worker *w, char *out, size_t n)
{
    uint32_t percent = engine_thread_packed(w->engine);
    if (percent < 100)
        snprintf(out, n, "loading: %u percent of the weights are packed", percent);
    else
        snprintf(out, n, "loading: the weights are packed, passes are being captured");
}

uint64_t manage_stalled_ms(const struct worker *w)
{
    return worker_now(w) - w->progress_ms;
}

void manage_tick(struct worker *w, uint64_t now)
{
    uint64_t progress = engine_thread_progress(w->engine);
    bool busy = engine_thread_busy(w->engine);
    if (!busy || progress != w->progress || !w->ready)
        w->progress_ms = now;
    w->progress = progress;
    service_watchdog(now, progress, busy);
    if (!w->ready && now >= w->start_told_ms + START_TELL_MS) {
        w->start_told_ms = now;
        service_starting(START_EXTEND_MS);
        char text[64];
        manage_loading(w, text, sizeof text);
        service_status("%s", text);
        log_info("%s", text);
    }
}

/* --check-config: what is beyond the table of keys. The model is only looked for, not read. */
static int check(const struct worker_policy *policy, const struct worker_settings *s)
{
    char err[512] = "";
    struct mac_key key;
    int rc = manage_check(s, err, sizeof err);
    if (rc == STATUS_OK)
        rc = manage_key(s, &key, err, sizeof err);
    struct api_keys *keys = NULL;
    struct tls_context *certificates = NULL;
    if (rc == STATUS_OK)
        rc = pages_keys(s, &keys, err, sizeof err);
    if (rc == STATUS_OK)
        rc = manage_certificates(s, &certificates, err, sizeof err);
    if (rc == STATUS_OK)
        rc = manage_exposed(s, &key, certificates != NULL, keys != NULL, err, sizeof err);
    api_keys_destroy(keys);
    tls_context_put(certificates);
    if (rc == STATUS_OK && access(s->model, R_OK) != 0) {
        snprintf(err, sizeof err, "model = %s: %s", s->model, strerror(errno));
        rc = STATUS_INVALID;
    }
    if (rc == STATUS_OK)
        printf("%s: the settings are valid\n", policy->program);
    else
        fprintf(stderr, "%s: %s\n", policy->program, err[0] ? err : status_text(rc));
    return rc;
}

int worker_main(const struct worker_policy *policy, int argc, char **argv)
{
    struct worker_settings s = {0};
    struct worker_source from = {&s, argc, argv};
    int rc = STATUS_OK;
    log_claim_stdio();
    signal(SIGPIPE, SIG_IGN);
    log_set_name(policy->program);
    config_live(worker_live);
    service_init();
    enum config_action action =
        config_load(policy->program, worker_keys, worker_keys_n, &s, argc, argv);
    if (action == CONFIG_RUN)
        rc = worker_serve(policy, &s, &from, NULL, NULL);
    else if (action == CONFIG_CHECK)
        rc = check(policy, &s);
    config_fini(worker_keys, worker_keys_n, &s);
    return action == CONFIG_EXIT_ERROR || rc != STATUS_OK ? EXIT_FAILURE : EXIT_SUCCESS;
}
