/* api: a request body of POST /v1/chat/completions or /v1/completions to what the router runs.
 * Pure: bytes in, parameters or an error object out. */
#ifndef BATON_ROUTERD_API_H
#define BATON_ROUTERD_API_H

#include "common/base/buf.h"
#include "common/text/chat.h"
#include "common/text/tokenizer.h"
#include "routerd/fields.h"
#include "routerd/sampling.h"
#include "routerd/structured.h"
#include "routerd/think.h"
#include "routerd/vote.h"

#define API_STOPS_MAX      16
#define API_STOP_BYTES     4096
#define API_PROMPTS_MAX    128
#define API_PATHS_MAX      128
#define API_BEST_OF_MAX    20
#define API_CHOICES_MAX    512 /* prompts times paths */
#define API_SALT_MAX       1024
#define API_PRIORITY_MAX   1000000
#define API_TOP_CHAT       20
#define API_TOP_COMPLETION 5

/* Responses are read as the chat requests that ask for the same; parameters are never of that kind.
 */
enum api_kind { API_CHAT, API_COMPLETION, API_RESPONSES };

/* What the model brings; loans. */
struct api_env {
    const struct tokenizer *tokenizer;
    const struct chat_template *chat_template;
    const struct reply_profile *profile; /* how the model thinks and calls */
    const struct think_efforts *efforts;
    const char *model_name;
    uint32_t vocab;   /* ids that prompts may contain */
    uint32_t context; /* longest sequence the cluster holds now (or the model's, while unknown) */
    char *const *aliases;       /* other names, then NULL; may be NULL */
    const struct api_env *next; /* a further model, or NULL */
};

struct api_prompt {
    struct token_list tokens;
    char *text; /* for echo: the prompt as text_len bytes; NULL when it was not asked for */
    size_t text_len;
};

struct api_params {
    enum api_kind kind;
    uint32_t model; /* which of the models, counted from 0 */
    struct api_prompt *prompts;
    uint32_t n_prompts;
    uint32_t n;           /* choices of each prompt that are given */
    uint32_t paths;       /* and computed: n, or best_of */
    struct extract *vote; /* how their final answers are found, when they vote; or NULL */
    bool stream, include_usage;
    bool usage_in_events; /* stream_options.continuous_usage_stats */
    int64_t max_tokens;   /* -1: up to the context */
    struct sampling sampling;
    int32_t priority; /* smaller is more urgent */
    bool logprobs, echo, return_token_ids, show_special;
    bool ids_as_tokens; /* tokens of log probabilities are "token_id:5" */
    uint32_t top_logprobs;
    bool continues; /* the answer goes on with the last message */
    bool prompt_logprobs;
    uint32_t prompt_top;
    char *stops[API_STOPS_MAX];
    size_t stop_len[API_STOPS_MAX];
    size_t n_stops;
    bool show_stop;            /* include_stop_str_in_output */
    char *salt;                /* or NULL */
    struct think_params think; /* chat */
    struct structured structured;
    char *responses; /* of a response: what its object repeats of the request; else NULL */
    bool call;       /* the answer is a tool call and nothing else (structured says which) */
    /* Fields that nobody knows: how many, and the name of one. */
    uint32_t n_unknown;
    char unknown[64];
};

/* The model that a body names, the first one when it names none. */
int api_find_model(const struct api_env *first, const json_t *body, const struct api_env **out,
                   uint32_t *index, struct api_error *e) WARN_UNUSED;
/* 404, with the names that there are. Returns STATUS_NOTFOUND. */
int api_unknown_model(const struct api_env *first, const char *name, struct api_error *e);

/* env: the first of the models, for one of which the parameters are. now: seconds since the epoch,
 * for templates. On failure e is filled and out is empty. */
int api_parse(const struct api_env *env, enum api_kind kind, const char *body, size_t n,
              int64_t now, struct api_params *out, struct api_error *e) WARN_UNUSED;
void api_params_fini(struct api_params *p);

#endif
