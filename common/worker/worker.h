/* worker: what prefilld and decoded share: one library with two roles. A daemon is a main() that
 * loads the settings and calls worker_run with its policy. */
#ifndef BATON_WORKER_WORKER_H
#define BATON_WORKER_WORKER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/proto/proto.h"
#include "common/worker/settings.h"

/* What makes a prefill worker or a decode worker of it. */
struct worker_policy {
    const char *program; /* "prefilld" */
    enum proto_role role;
    /* Prompt tokens that the next step may compute, with n_running sequences in it; 0: none. */
    uint32_t (*prompt_tokens)(const struct worker_settings *s, uint32_t n_running);
};

/* Called once, on the loop, when the model is loaded and routers can connect. */
typedef void (*worker_ready_fn)(void *arg, const char *listen, const char *http);

/* Runs until SIGTERM or SIGINT was answered. STATUS_OK after a clean shut-down; otherwise one
 * line says on standard error what went wrong. ready may be NULL. */
int worker_run(const struct worker_policy *policy, const struct worker_settings *settings,
               worker_ready_fn ready, void *arg) WARN_UNUSED;
/* The whole of a daemon's main(): settings, --check-config, service manager, reload on SIGHUP. The
 * exit status. */
int worker_main(const struct worker_policy *policy, int argc, char **argv);

#endif
