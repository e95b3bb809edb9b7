/* settings: the table of routerd's keys; see settings.h. */
#include "routerd/settings.h"

#define AT(field) offsetof(struct settings, field)

/* The keys of one model, in a struct that has a struct model_settings at `base`. */
#define OF(base, field) (base) + offsetof(struct model_settings, field)
/* clang-format off */
#define MODEL_KEYS(base)                                                                           \
    {"model", CONFIG_STRING, OF(base, model), NULL, 0, 0, NULL, NULL,                              \
     "Model whose tokenizer and chat template are used: a GGUF file or a Hugging Face directory. " \
     "Only the vocabulary is read."},                                                              \
    {"model_name", CONFIG_STRING, OF(base, model_name), NULL, 0, 0, NULL, NULL,                    \
     "Name that clients use; by default the name of the file or directory."},                      \
    {"model_aliases", CONFIG_LIST, OF(base, aliases), NULL, 0, 0, NULL, NULL,                      \
     "Other names for it, separated by commas."},                                                  \
    {"context_length", CONFIG_INT, OF(base, context_length), "0", 0, 16777216, NULL, "tokens",     \
     "Longest prompt plus answer; 0 takes what model and workers allow."},                         \
    {"embedding_pooling", CONFIG_ENUM, OF(base, pooling), "mean", 0, 0, "mean|last", NULL,         \
     "What /v1/embeddings gives when a request does not say: the mean of a text's hidden states, " \
     "or that of its last token."},                                                                \
    {"chat_template", CONFIG_STRING, OF(base, chat_template), NULL, 0, 0, NULL, NULL,              \
     "File with a Jinja chat template to use instead of the model's own."},                        \
    {"reasoning_format", CONFIG_STRING, OF(base, reasoning_format), "auto", 0, 0, NULL, NULL,      \
     "How the model marks its thinking: auto (from its template and vocabulary), none (all is "    \
     "content), or a name of docs/API.md, such as think, harmony or mistral."},                    \
    {"reasoning_efforts", CONFIG_STRING, OF(base, reasoning_efforts),                              \
     "minimal:512,low:2048,medium:8192,high:24576", 0, 0, NULL, NULL,                              \
     "Tokens of thinking at most for each reasoning_effort of a request; one that is not listed "  \
     "has no limit."},                                                                             \
    {"tool_format", CONFIG_STRING, OF(base, tool_format), "auto", 0, 0, NULL, NULL,                \
     "How the model writes tool calls: auto (from its template), none (they are content), or a "   \
     "name of docs/API.md, such as hermes, llama3_json or mistral."}
/* clang-format on */

const struct config_key model_keys[] = {MODEL_KEYS(0)};
const size_t model_keys_n = sizeof model_keys / sizeof model_keys[0];

const struct config_key settings_keys[] = {
    {"name", CONFIG_STRING, AT(name), "routerd", 0, 0, NULL, NULL,
     "Name of this process in log lines and towards workers."},
    {"listen", CONFIG_STRING, AT(listen), "127.0.0.1:8080", 0, 0, NULL, NULL,
     "Address of the OpenAI-compatible API, host:port; port 0 takes a free one."},
    {"admin_listen", CONFIG_STRING, AT(admin_listen), "127.0.0.1:8081", 0, 0, NULL, "host:port",
     "Address for who runs the cluster: /admin (draining workers), and all that listen has. Empty: "
     "no such listener. Beyond loopback an admin_key_file is needed, insecure or not."},
    {"admin_key_file", CONFIG_STRING, AT(admin_key_file), NULL, 0, 0, NULL, NULL,
     "Keys for admin_listen, in the form of api_key_file, whose own keys do not count there. With "
     "an api_key_file and without this one admin_listen answers /health and /ready alone."},
    {"api_pages", CONFIG_BOOL, AT(api_pages), "on", 0, 0, NULL, NULL,
     "Show /metrics, /debug and the dashboard on listen too, to whoever may use the API. Off: only "
     "on admin_listen."},
    {"insecure", CONFIG_BOOL, AT(insecure), "off", 0, 0, NULL, NULL,
     "Allow listen to be an address that other machines reach although nobody has to prove who "
     "they are. Only where something else does that: a proxy, a network policy."},
    MODEL_KEYS(offsetof(struct settings, m)),
    {"models", CONFIG_LIST, AT(models), NULL, 0, 0, NULL, NULL,
     "Files, one for each further model, with the keys from model to tool_format above "
     "(configs/model.conf). Workers then belong to the model that they announce (their "
     "model_name)."},
    {"reasoning_field", CONFIG_ENUM, AT(reasoning_field), "reasoning_content", 0, 0,
     "reasoning_content|reasoning|both", NULL, "Name of the field that thinking is given in."},
    {"prefill", CONFIG_LIST, AT(prefill), NULL, 0, 0, NULL, NULL,
     "Control addresses of the prefill workers, host:port, separated by commas."},
    {"decode", CONFIG_LIST, AT(decode), NULL, 0, 0, NULL, NULL,
     "Control addresses of the decode workers, host:port, separated by commas."},
    {"cluster_key_file", CONFIG_STRING, AT(cluster_key_file), NULL, 0, 0, NULL, NULL,
     "File with the secret that all daemons of the cluster share (at least 16 bytes). Without it "
     "only loopback addresses are used."},
    {"link_cert_file", CONFIG_STRING, AT(link_cert_file), NULL, 0, 0, NULL, NULL,
     "Certificate chain (PEM) for links between routers and workers: with it, link_key_file and "
     "link_ca_file they are mutual TLS instead of TLS under the cluster key. A reload reads the "
     "three again."},
    {"link_key_file", CONFIG_STRING, AT(link_key_file), NULL, 0, 0, NULL, NULL,
     "Its private key (PEM, without a passphrase)."},
    {"link_ca_file", CONFIG_STRING, AT(link_ca_file), NULL, 0, 0, NULL, NULL,
     "Authorities (PEM) that the other side's certificate must come from. Make one for the cluster "
     "alone: whoever has a certificate of it belongs to the cluster."},
    {"api_key_file", CONFIG_STRING, AT(api_key_file), NULL, 0, 0, NULL, NULL,
     "File with one name:hash a line: clients must then send one of these keys as a bearer token, "
     "but for /health and /ready. The hash is the key's SHA-256 in hexadecimal; behind it there "
     "may be limits "
     "(docs/API.md)."},
    {"tls_cert_file", CONFIG_STRING, AT(tls_cert_file), NULL, 0, 0, NULL, NULL,
     "Certificate chain (PEM): the API is then HTTPS. A reload reads certificate and key again."},
    {"tls_key_file", CONFIG_STRING, AT(tls_key_file), NULL, 0, 0, NULL, NULL,
     "Its private key (PEM, without a passphrase)."},
    {"share_prefixes", CONFIG_BOOL, AT(share_prefixes), "off", 0, 0, NULL, NULL,
     "With API keys: let requests with different keys share the cached KV of equal prompts. The "
     "time to the first token then tells whether somebody else had a prompt before."},
    {"cors_origins", CONFIG_LIST, AT(cors_origins), NULL, 0, 0, NULL, NULL,
     "Origins whose pages may use the API from a browser, such as https://chat.example.com, or *."},
    {"header_max", CONFIG_SIZE, AT(header_max), "64k", 1024, 1048576, NULL, "bytes",
     "Limit of a request's line and headers; beyond it 431."},
    {"body_max", CONFIG_SIZE, AT(body_max), "16M", 1024, 1073741824, NULL, "bytes",
     "Limit of a request's body; beyond it 413."},
    {"write_max", CONFIG_SIZE, AT(write_max), "1M", 4096, 1073741824, NULL, "bytes",
     "Bytes that may wait for one slow reader; a reader further behind is cut off."},
    {"max_connections", CONFIG_INT, AT(max_connections), "10000", 1, 1000000, NULL, NULL,
     "Open client connections; more are answered with 503."},
    {"header_timeout_ms", CONFIG_MS, AT(header_timeout_ms), "10s", 1, 86400000, NULL, "ms",
     "From the first byte of a request to the end of its headers; beyond it 408."},
    {"body_timeout_ms", CONFIG_MS, AT(body_timeout_ms), "60s", 1, 86400000, NULL, "ms",
     "From the end of the headers to the end of the body; beyond it 408."},
    {"idle_timeout_ms", CONFIG_MS, AT(idle_timeout_ms), "75s", 1, 86400000, NULL, "ms",
     "A kept-alive connection without a request is closed after this time."},
    {"write_timeout_ms", CONFIG_MS, AT(write_timeout_ms), "60s", 1, 86400000, NULL, "ms",
     "A client that takes none of the bytes waiting for it is dropped after this time."},
    {"sse_keepalive_ms", CONFIG_MS, AT(sse_keepalive_ms), "5s", 10, 86400000, NULL, "ms",
     "A silent stream gets an SSE comment this often, so that proxies keep it open."},
    {"request_timeout_ms", CONFIG_MS, AT(request_timeout_ms), "1h", 1, 604800000, NULL, "ms",
     "A request that is not finished by then ends with an error."},
    {"worker_wait_ms", CONFIG_MS, AT(worker_wait_ms), "30s", 0, 86400000, NULL, "ms",
     "How long a request waits for a worker of a missing kind before it gets 503."},
    {"queue_timeout_ms", CONFIG_MS, AT(queue_timeout_ms), "10m", 1, 86400000, NULL, "ms",
     "How long a request waits for a busy worker before it gets 429."},
    {"queue_max", CONFIG_INT, AT(queue_max), "4096", 1, 1000000, NULL, "requests",
     "Requests that may wait for a worker; more get 429 at once."},
    {"replicas", CONFIG_INT, AT(replicas), "0", 0, 1, NULL, "copies",
     "Copies of the KV of each running answer that are kept on other decode workers. With 1, an "
     "answer whose decode worker dies goes on without its prompt and tokens being computed again; "
     "each decode worker also sends what it writes. Needs prefix_cache on the decode workers."},
    {"heartbeat_ms", CONFIG_MS, AT(heartbeat_ms), "250ms", 10, 60000, NULL, "ms",
     "Interval of heartbeats on worker links."},
    {"stall_ms", CONFIG_MS, AT(stall_ms), "2s", 50, 600000, NULL, "ms",
     "A worker that is silent, or has work and makes no progress, for this long is suspected: its "
     "requests continue elsewhere."},
    {"relink_ms", CONFIG_MS, AT(relink_ms), "500ms", 0, 600000, NULL, "ms",
     "A worker whose link breaks has this long to come back on a new one; its requests then go on "
     "where they are. Where nobody listens any more they continue elsewhere at once."},
    {"drain_ms", CONFIG_MS, AT(drain_ms), "30s", 0, 86400000, NULL, "ms",
     "After SIGTERM running answers have this long to finish."},
    {"ttft_target_ms", CONFIG_MS, AT(ttft_target_ms), "2s", 1, 86400000, NULL, "ms",
     "An answer counts as goodput when its first token came within this time, and its further ones"
     " within tpot_target_ms each on average (baton_goodput_answers_total)."},
    {"tpot_target_ms", CONFIG_MS, AT(tpot_target_ms), "100ms", 1, 86400000, NULL, "ms",
     "See ttft_target_ms."},
    {"vllm_metrics", CONFIG_BOOL, AT(vllm_metrics), "off", 0, 0, NULL, NULL,
     "Also give the load under vLLM's names (vllm:num_requests_waiting, …), for gateways and "
     "autoscalers that know those; their colons are not to promtool's taste."},
    {"otlp_endpoint", CONFIG_STRING, AT(otlp_endpoint), NULL, 0, 0, NULL, NULL,
     "Where spans of requests go (OTLP/HTTP with JSON), such as http://127.0.0.1:4318/v1/traces; "
     "empty: nowhere."},
    {"otlp_sample_percent", CONFIG_INT, AT(otlp_sample_percent), "100", 0, 100, NULL, "percent",
     "How many of the requests without a traceparent are traced; one that has it brings its own "
     "decision."},
    {"log_level", CONFIG_ENUM, AT(log_level), "info", 0, 0, "error|warn|info|debug|trace", NULL,
     "How much is logged."},
    {"log_format", CONFIG_ENUM, AT(log_format), "text", 0, 0, "text|json|journald", NULL,
     "How: text for people, json with one object a line, or fields in systemd's journal, which "
     "text "
     "also is where standard error is the journal."},
};
const size_t settings_keys_n = sizeof settings_keys / sizeof settings_keys[0];

const char *const settings_live[] = {
    "prefill",
    "decode",
    "admin_key_file",
    "api_pages",
    "api_key_file",
    "tls_cert_file",
    "tls_key_file",
    "cors_origins",
    "max_connections",
    "header_timeout_ms",
    "body_timeout_ms",
    "idle_timeout_ms",
    "write_timeout_ms",
    "sse_keepalive_ms",
    "worker_wait_ms",
    "queue_timeout_ms",
    "queue_max",
    "request_timeout_ms",
    "drain_ms",
    "log_level",
    "ttft_target_ms",
    "tpot_target_ms",
    "vllm_metrics",
    "replicas",
    "log_format",
    "otlp_sample_percent",
    NULL,
};
