/* settings: what a worker can be told; one table for prefilld and decoded. */
#ifndef BATON_WORKER_SETTINGS_H
#define BATON_WORKER_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/config.h"

struct worker_settings {
    char *name, *listen, *http, *model, *model_name, *cpus, *data_devices, *cluster_key_file;
    char *api_key_file, *link_cert_file, *link_key_file, *link_ca_file;
    int backend, isa, weights, kv_format, numerics, log_level,
        log_format; /* index into the choices of the key */
    int64_t threads, helpers, max_batch, context_length, prefill_chunk;
    int64_t kv_memory, kv_blocks, kv_block_size; /* kv_memory -1: auto */
    int64_t device, device_memory_percent;
    bool prefix_cache, graphs, insecure;
    int64_t heartbeat_ms, stall_ms, router_grace_ms, lease_ms, drain_ms;
    int64_t queue_max, parked_max_percent;
};

extern const struct config_key worker_keys[];
extern const size_t worker_keys_n;
extern const char *const worker_live[]; /* what a reload may change; see config_live */
/* The name of an ENUM setting's choice: settings_choice("isa", s->isa, buffer). */
const char *settings_choice(const char *key, int index, char out[32]);

#endif
