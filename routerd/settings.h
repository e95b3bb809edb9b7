/* settings: what routerd can be told; the table is the source of the parser, the flags, the
 * environment names, --help and configs/routerd.conf. */
#ifndef BATON_ROUTERD_SETTINGS_H
#define BATON_ROUTERD_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/config.h"

/* Of one model: the first one in routerd.conf, each further one in a file of its own. */
struct model_settings {
    char *model, *model_name, *aliases;
    char *chat_template, *reasoning_format, *tool_format, *reasoning_efforts;
    int64_t context_length;
    int pooling; /* 0 mean, 1 last */
};
extern const struct config_key model_keys[];
extern const size_t model_keys_n;

struct settings {
    struct model_settings m;
    char *models;
    int reasoning_field;
    char *name, *listen, *prefill, *decode, *cluster_key_file;
    char *link_cert_file, *link_key_file, *link_ca_file;
    char *admin_listen, *admin_key_file;
    char *api_key_file, *cors_origins, *tls_cert_file, *tls_key_file;
    bool insecure, api_pages;
    int log_level, log_format;
    int64_t header_max, body_max, write_max, max_connections;
    int64_t header_timeout_ms, body_timeout_ms, idle_timeout_ms, write_timeout_ms;
    int64_t sse_keepalive_ms;
    int64_t request_timeout_ms, worker_wait_ms, queue_timeout_ms, queue_max, replicas;
    int64_t heartbeat_ms, stall_ms, relink_ms, drain_ms;
    int64_t ttft_target_ms, tpot_target_ms, otlp_sample_percent;
    char *otlp_endpoint;
    bool vllm_metrics, share_prefixes;
};

extern const struct config_key settings_keys[];
extern const size_t settings_keys_n;
extern const char *const settings_live[]; /* what a reload may change; see config_live */

#endif
