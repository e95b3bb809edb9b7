/* settings: the table of keys; see settings.h. */
#include "common/worker/settings.h"

#include <stdio.h>
#include <string.h>

#define AT(field) offsetof(struct worker_settings, field)

const struct config_key worker_keys[] = {
    {"name", CONFIG_STRING, AT(name), NULL, 0, 0, NULL, NULL,
     "Name in logs, metrics and on the dashboard. Default: the program's name and its port."},
    {"listen", CONFIG_STRING, AT(listen), "127.0.0.1:0", 0, 0, NULL, "host:port",
     "Where routers connect. Port 0 takes any free one. Beyond loopback a cluster_key_file, "
     "or certificates (link_cert_file), are needed."},
    {"http", CONFIG_STRING, AT(http), "127.0.0.1:0", 0, 0, NULL, "host:port",
     "Where /health, /ready, /metrics and /debug/requests are served. Beyond loopback an "
     "api_key_file is needed, or insecure = yes."},
    {"model", CONFIG_STRING, AT(model), NULL, 0, 0, NULL, "path",
     "A GGUF file, or a Hugging Face directory. All workers and routers of a cluster need the same "
     "one."},
    {"model_name", CONFIG_STRING, AT(model_name), NULL, 0, 0, NULL, NULL,
     "The name that clients use. Default: the name in the model file."},
    {"threads", CONFIG_INT, AT(threads), "1", 1, 1024, NULL, "threads",
     "Compute threads of the engine."},
    {"helpers", CONFIG_INT, AT(helpers), "0", 0, 1023, NULL, "threads",
     "Further threads of the CPU backend, which compute only with what nothing else on the machine "
     "wants to use (SCHED_IDLE). One for each CPU that other daemons leave idle at times: a "
     "prefill worker then uses a decode worker's CPU between its steps, and the other way round."},
    {"cpus", CONFIG_LIST, AT(cpus), NULL, 0, 0, NULL, "list",
     "CPUs that the compute threads are pinned to, for example 0-3,8. Default: not pinned."},
    {"backend", CONFIG_ENUM, AT(backend), "auto", 0, 0, "auto|ref|cpu|cuda", NULL,
     "Who computes: cuda is a GPU, in programs that were built with it; ref is plain C and slow, "
     "the "
     "yardstick of the tests. auto: a GPU where there is one, else the CPU."},
    {"isa", CONFIG_ENUM, AT(isa), "auto", 0, 0, "auto|amx|avx512|avx2|c", NULL,
     "Instruction set of the CPU backend. All workers of a cluster should use the same: equal ones "
     "give equal tokens."},
    {"weights", CONFIG_ENUM, AT(weights), "auto", 0, 0, "auto|bf16|int8|int4|f32", NULL,
     "Format that the weights are packed into at load. auto follows the model file."},
    {"numerics", CONFIG_ENUM, AT(numerics), "fast", 0, 0, "fast|strict", NULL,
     "On a GPU: fast leaves prompts and batches above 64 to cuBLASLt, strict adds every row in one "
     "order, so that a sequence resumed elsewhere goes on with exactly the same tokens. The CPU "
     "always does."},
    {"device", CONFIG_INT, AT(device), "0", 0, 255, NULL, "index", "Which GPU."},
    {"device_memory_percent", CONFIG_INT, AT(device_memory_percent), "92", 1, 99, NULL, "percent",
     "How much of the GPU's memory may be in use, by whatever, when the KV cache has its own."},
    {"kv_format", CONFIG_ENUM, AT(kv_format), "auto", 0, 0, "auto|bf16|int8", NULL,
     "Keys and values in the cache: bf16, or 8 bits with one scale for each token, head and K or "
     "V: "
     "half the memory and transfer, at a small loss (docs/BENCHMARKS.md). Must be the same on all "
     "workers. auto is bf16."},
    {"kv_memory", CONFIG_SIZE, AT(kv_memory), "auto", 0, 0, NULL, "bytes",
     "Memory for the KV cache. auto: what max_batch sequences of full length need, but at most a "
     "quarter of the memory that is available at start; on a GPU, at most what is left there."},
    {"kv_blocks", CONFIG_INT, AT(kv_blocks), "0", 0, 16777216, NULL, "blocks",
     "Exact size of the KV cache in blocks. 0: kv_memory decides."},
    {"kv_block_size", CONFIG_INT, AT(kv_block_size), "16", 1, 256, NULL, "tokens",
     "Tokens in one KV block. Must be the same on all workers."},
    {"context_length", CONFIG_INT, AT(context_length), "0", 0, 16777216, NULL, "tokens",
     "Longest sequence, prompt and answer together. 0: what the model was trained for."},
    {"prefill_chunk", CONFIG_INT, AT(prefill_chunk), "512", 16, 65536, NULL, "tokens",
     "Most prompt tokens in one step; a multiple of kv_block_size. Smaller chunks let short "
     "prompts "
     "overtake long ones sooner, larger ones compute faster."},
    {"max_batch", CONFIG_INT, AT(max_batch), "64", 1, 1024, NULL, "sequences",
     "Most sequences in one step."},
    {"prefix_cache", CONFIG_BOOL, AT(prefix_cache), "on", 0, 0, NULL, NULL,
     "Keep the KV of finished prompts for others that begin with the same tokens."},
    {"graphs", CONFIG_BOOL, AT(graphs), "on", 0, 0, NULL, NULL,
     "Replay the captured forward pass; off binds it anew for every step, for comparison."},
    {"data_devices", CONFIG_LIST, AT(data_devices), "lo", 0, 0, NULL, "list",
     "Network devices for KV between workers, as UCX names them (eth0, mlx5_0:1); all leaves the "
     "choice to UCX. Anything but lo needs a cluster_key_file."},
    {"cluster_key_file", CONFIG_STRING, AT(cluster_key_file), NULL, 0, 0, NULL, "path",
     "File with the key (16 bytes or more) that all daemons of the cluster share."},
    {"link_cert_file", CONFIG_STRING, AT(link_cert_file), NULL, 0, 0, NULL, "path",
     "Certificate chain (PEM) for links between routers and workers: with it, link_key_file and "
     "link_ca_file they are mutual TLS instead of TLS under the cluster key. A reload reads the "
     "three again."},
    {"link_key_file", CONFIG_STRING, AT(link_key_file), NULL, 0, 0, NULL, "path",
     "Its private key (PEM, without a passphrase)."},
    {"link_ca_file", CONFIG_STRING, AT(link_ca_file), NULL, 0, 0, NULL, "path",
     "Authorities (PEM) that the other side's certificate must come from. Make one for the cluster "
     "alone: whoever has a certificate of it belongs to the cluster."},
    {"insecure", CONFIG_BOOL, AT(insecure), "off", 0, 0, NULL, NULL,
     "Allow http to be an address that other machines reach although there is no api_key_file. "
     "Only "
     "where something else asks who they are: a network policy."},
    {"api_key_file", CONFIG_STRING, AT(api_key_file), NULL, 0, 0, NULL, "path",
     "File with one name:hash a line: /metrics and /debug/requests then want one of these keys as "
     "a "
     "bearer token (docs/API.md)."},
    {"heartbeat_ms", CONFIG_MS, AT(heartbeat_ms), "250", 10, 60000, NULL, "ms",
     "How often progress and load are reported to the routers."},
    {"stall_ms", CONFIG_MS, AT(stall_ms), "2000", 100, 600000, NULL, "ms",
     "A peer that is silent for this long is suspected to be gone."},
    {"router_grace_ms", CONFIG_MS, AT(router_grace_ms), "5000", 0, 600000, NULL, "ms",
     "How long the requests of a router whose link broke are kept for its return."},
    {"lease_ms", CONFIG_MS, AT(lease_ms), "30000", 1000, 600000, NULL, "ms",
     "How long a reservation lives without progress. The backstop, not the mechanism, of freeing."},
    {"drain_ms", CONFIG_MS, AT(drain_ms), "30000", 0, 86400000, NULL, "ms",
     "After SIGTERM: how long running requests may take to finish, or to go to other workers."},
    {"queue_max", CONFIG_INT, AT(queue_max), "256", 1, 65536, NULL, "jobs",
     "Most prompts that wait here; more are refused."},
    {"parked_max_percent", CONFIG_INT, AT(parked_max_percent), "25", 1, 100, NULL, "percent",
     "A prefill worker starts no prompt while computed KV that no decode worker has room for takes "
     "up more than this part of its KV cache."},
    {"log_level", CONFIG_ENUM, AT(log_level), "info", 0, 0, "error|warn|info|debug|trace", NULL,
     "How much to log."},
    {"log_format", CONFIG_ENUM, AT(log_format), "text", 0, 0, "text|json|journald", NULL,
     "How: text for people, json with one object a line, or fields in systemd's journal, which "
     "text "
     "also is where standard error is the journal."},
};
const size_t worker_keys_n = sizeof worker_keys / sizeof *worker_keys;

const char *const worker_live[] = {"api_key_file", "parked_max_percent", "drain_ms",
                                   "log_level",    "log_format",         NULL};

const char *settings_choice(const char *key, int index, char out[32])
{
    out[0] = 0;
    for (size_t i = 0; i < worker_keys_n; i++) {
        const char *c = worker_keys[i].choices;
        if (!c || strcmp(worker_keys[i].name, key) != 0)
            continue;
        for (; index > 0; index--)
            c = strchr(c, '|') + 1;
        snprintf(out, 32, "%.*s", (int)strcspn(c, "|"), c);
    }
    return out;
}
