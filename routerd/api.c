/* api: parameters of a generation request; see api.h. prompt.c turns messages and prompts into ids.
 *
 * Rules that clients may want to know (docs/API.md repeats them): null is the default; unknown
 * fields are accepted; a field that would change the answer and is not supported yet is refused,
 * never ignored; a JSON key that appears twice is refused. */
#include "routerd/api.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "routerd/known.h"
#include "routerd/models.h"
#include "routerd/prompt.h"
#include "routerd/responses_request.h"

static int parse_stop(const json_t *o, struct api_params *p, struct api_error *e)
{
    const json_t *v = field_get(o, "stop");
    if (!v)
        return STATUS_OK;
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (!json_is_array(v) && !json_is_string(v))
        return api_fail(e, "stop", NULL, "'stop' must be a string or an array of strings.");
    if (n > API_STOPS_MAX)
        return api_fail(e, "stop", NULL, "'stop' may hold at most %d strings.", API_STOPS_MAX);
    for (size_t i = 0; i < n; i++) {
        const json_t *s = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_string(s))
            return api_fail(e, "stop", NULL, "'stop' must be a string or an array of strings.");
        size_t len = json_string_length(s);
        if (len == 0)
            return api_fail(e, "stop", NULL, "'stop' must not contain an empty string.");
        if (len > API_STOP_BYTES)
            return api_fail(e, "stop", NULL, "A stop string may have at most %d bytes.",
                            API_STOP_BYTES);
        if (!(p->stops[i] = mem_dup(json_string_value(s), len + 1)))
            return STATUS_NOMEM;
        p->stop_len[i] = len;
        p->n_stops = i + 1;
    }
    return STATUS_OK;
}

static int parse_logprobs(const json_t *o, struct api_params *p, struct api_error *e)
{
    int64_t top = -1;
    if (p->kind == API_COMPLETION) {
        TRY(field_int(o, "logprobs", 0, API_TOP_COMPLETION, &top, e));
        p->logprobs = top >= 0;
        p->top_logprobs = top > 0 ? (uint32_t)top : 0;
        return STATUS_OK;
    }
    TRY(field_bool(o, "logprobs", &p->logprobs, e));
    TRY(field_int(o, "top_logprobs", 0, API_TOP_CHAT, &top, e));
    if (top >= 0 && !p->logprobs)
        return api_fail(e, "top_logprobs", NULL, "'top_logprobs' needs 'logprobs' to be true.");
    p->top_logprobs = top > 0 ? (uint32_t)top : 0;
    return STATUS_OK;
}

static int parse_stream(const json_t *o, struct api_params *p, struct api_error *e)
{
    TRY(field_bool(o, "stream", &p->stream, e));
    const json_t *options = field_get(o, "stream_options");
    if (!options)
        return STATUS_OK;
    if (!json_is_object(options))
        return api_fail(e, "stream_options", NULL, "'stream_options' must be an object.");
    if (!p->stream)
        return api_fail(e, "stream_options", NULL,
                        "'stream_options' is only allowed when 'stream' is true.");
    bool obfuscation = false; /* there is nothing that it could hide */
    int rc = field_bool(options, "include_usage", &p->include_usage, e);
    if (rc == STATUS_OK)
        rc = field_bool(options, "continuous_usage_stats", &p->usage_in_events, e);
    if (rc == STATUS_OK)
        rc = field_bool(options, "include_obfuscation", &obfuscation, e);
    if (rc == STATUS_INVALID) {
        struct api_error inner = *e;
        api_fail(e, "stream_options", NULL, "'stream_options': %.400s", inner.message);
    }
    return rc;
}

static int parse_length(const json_t *o, struct api_params *p, struct api_error *e)
{
    int64_t min = p->kind == API_COMPLETION || field_get(o, "prompt_logprobs") ? 0 : 1, newer = -1;
    p->max_tokens = p->kind == API_COMPLETION ? 16 : -1;
    TRY(field_int(o, "max_tokens", min, INT32_MAX, &p->max_tokens, e));
    TRY(field_int(o, "max_completion_tokens", 1, INT32_MAX, &newer, e));
    if (newer >= 0)
        p->max_tokens = newer;
    return STATUS_OK;
}

static int parse_paths(const json_t *o, struct api_params *p, struct api_error *e)
{
    int64_t n = 1, best_of = 0;
    TRY(field_int(o, "n", 1, API_PATHS_MAX, &n, e));
    if (p->kind == API_COMPLETION)
        TRY(field_int(o, "best_of", 0, API_BEST_OF_MAX, &best_of, e));
    if (best_of && best_of < n)
        return api_fail(e, "best_of", NULL, "'best_of' must not be less than 'n'.");
    if (best_of > n && p->stream)
        return api_fail(e, "best_of", NULL,
                        "'best_of' greater than 'n' cannot be combined with 'stream'.");
    TRY(vote_parse(o, &p->vote, e));
    if (p->vote && (n < 2 || best_of || p->stream))
        return api_fail(e, "vote", NULL,
                        "'vote' needs 'n' of at least 2, and neither 'best_of' nor 'stream'.");
    p->n = (uint32_t)n;
    p->paths = best_of > n ? (uint32_t)best_of : p->n;
    return STATUS_OK;
}

static int parse_options(const json_t *o, struct api_params *p, struct api_error *e)
{
    int64_t priority = 0, top = -1;
    bool skip_special = true, spaces = true;
    TRY(field_bool(o, "return_token_ids", &p->return_token_ids, e));
    TRY(field_bool(o, "return_tokens_as_token_ids", &p->ids_as_tokens, e));
    TRY(field_bool(o, "include_stop_str_in_output", &p->show_stop, e));
    TRY(field_bool(o, "skip_special_tokens", &skip_special, e));
    TRY(field_bool(o, "spaces_between_special_tokens", &spaces, e));
    TRY(field_int(o, "priority", -API_PRIORITY_MAX, API_PRIORITY_MAX, &priority, e));
    TRY(field_int(o, "prompt_logprobs", 0, API_TOP_CHAT, &top, e));
    p->show_special = !skip_special;
    p->priority = (int32_t)priority;
    p->prompt_logprobs = top >= 0;
    p->prompt_top = top > 0 ? (uint32_t)top : 0;
    if (p->prompt_logprobs && p->stream)
        return api_fail(e, "prompt_logprobs", NULL,
                        "'prompt_logprobs' cannot be combined with 'stream'.");
    return STATUS_OK;
}

/* tool_choice: which calls there must be. */
static int parse_choice(const json_t *o, struct api_params *p, struct api_error *e)
{
    const json_t *choice = field_get(o, "tool_choice");
    const char *word = json_string_value(choice), *name = NULL;
    if (!choice || (word && (strcmp(word, "auto") == 0 || strcmp(word, "none") == 0)))
        return STATUS_OK;
    if (think_allows(choice)) {
        word = json_string_value(field_get(field_get(choice, "allowed_tools"), "mode"));
        if (!word || (strcmp(word, "auto") != 0 && strcmp(word, "required") != 0))
            return api_fail(e, "tool_choice", NULL,
                            "'tool_choice' of type 'allowed_tools' must have the 'mode' 'auto' or "
                            "'required'.");
        if (strcmp(word, "auto") == 0)
            return STATUS_OK;
    } else if (!word) {
        const json_t *type = field_get(choice, "type");
        name = json_string_value(field_get(field_get(choice, "function"), "name"));
        if (!json_is_string(type) || strcmp(json_string_value(type), "function") != 0 || !name)
            return api_fail(e, "tool_choice", NULL,
                            "'tool_choice' must be 'auto', 'none', 'required', or name functions.");
    } else if (strcmp(word, "required") != 0) {
        return api_fail(e, "tool_choice", NULL,
                        "'tool_choice' must be 'auto', 'none', 'required', or name functions.");
    }
    if (p->structured.kind != GRAMMAR_NONE)
        return api_fail(
            e, "tool_choice", NULL,
            "'tool_choice' asks for a call, and the request for another form of answer.");
    p->call = true;
    return structured_call(p->think.tools, name, &p->structured, e);
}

static int parse_salt(const json_t *o, struct api_params *p, struct api_error *e)
{
    const json_t *v = field_get(o, "cache_salt");
    if (!v)
        return STATUS_OK;
    size_t n = json_string_length(v);
    if (!json_is_string(v) || n == 0 || n > API_SALT_MAX || strlen(json_string_value(v)) != n)
        return api_fail(e, "cache_salt", NULL,
                        "'cache_salt' must be a string of 1 to %d bytes, none of them NUL.",
                        API_SALT_MAX);
    p->salt = mem_strdup(json_string_value(v));
    return p->salt ? STATUS_OK : STATUS_NOMEM;
}

int api_unknown_model(const struct api_env *first, const char *name, struct api_error *e)
{
    struct buf names;
    buf_init(&names, 0);
    for (const struct api_env *env = first; env; env = env->next) {
        buf_printf(&names, "%s'%s'", names.len ? ", " : "", env->model_name);
        for (char *const *alias = env->aliases; alias && *alias; alias++)
            buf_printf(&names, ", '%s'", *alias);
    }
    api_fail(e, "model", "model_not_found",
             "The model '%.100s' does not exist; this server has %.350s.", name, buf_str(&names));
    buf_fini(&names);
    e->http = 404;
    return STATUS_NOTFOUND;
}

int api_find_model(const struct api_env *first, const json_t *body, const struct api_env **out,
                   uint32_t *index, struct api_error *e)
{
    const json_t *model = field_get(body, "model");
    const struct api_env *env = first;
    uint32_t i = 0;
    if (model && !json_is_string(model))
        return api_fail(e, "model", NULL, "'model' must be a string.");
    while (model && env &&
           !model_is_called(env->model_name, env->aliases, json_string_value(model)))
        env = env->next, i++;
    if (!env)
        return api_unknown_model(first, json_string_value(model), e);
    *out = env;
    *index = i;
    return STATUS_OK;
}

static int parse_fields(const struct api_env *env, const json_t *o, int64_t now,
                        struct api_params *p, struct api_error *e)
{
    TRY(api_find_model(env, o, &env, &p->model, e));
    TRY(parse_stream(o, p, e));
    TRY(parse_length(o, p, e));
    TRY(sampling_parse(o, env->tokenizer, env->vocab, &p->sampling, e));
    if (p->max_tokens >= 0 && p->sampling.min_tokens > p->max_tokens)
        return api_fail(e, "min_tokens", NULL,
                        "'min_tokens' (%u) must not be greater than 'max_tokens' (%" PRId64 ").",
                        p->sampling.min_tokens, p->max_tokens);
    TRY(parse_paths(o, p, e));
    TRY(parse_logprobs(o, p, e));
    TRY(parse_stop(o, p, e));
    TRY(parse_salt(o, p, e));
    TRY(parse_options(o, p, e));
    enum known_kind kind = p->kind == API_CHAT ? KNOWN_CHAT : KNOWN_COMPLETION;
    TRY(known_check(o, kind, e));
    p->n_unknown = known_unknown(o, kind, p->unknown, sizeof p->unknown);
    if (p->kind == API_COMPLETION)
        TRY(field_bool(o, "echo", &p->echo, e));
    else
        TRY(think_parse(o, env->efforts, &p->think, e));
    TRY(structured_parse(o, &p->structured, e));
    if (p->kind == API_CHAT)
        TRY(parse_choice(o, p, e));
    if (p->structured.kind != GRAMMAR_NONE && p->think.tools && !p->call)
        return api_fail(
            e, "tools", "unsupported_value",
            "An answer of a given form cannot be a tool call as well: leave out 'tools' "
            "or set 'tool_choice' to 'none'.");
    if (p->max_tokens == 0 && !p->echo && !p->prompt_logprobs)
        return api_fail(e, "max_tokens", NULL,
                        "'max_tokens' may be 0 only together with 'echo' or 'prompt_logprobs'.");
    TRY(p->kind == API_CHAT ? prompt_from_messages(env, o, now, p, e)
                            : prompt_from_texts(env, o, "prompt", p, e));
    if ((uint64_t)p->n_prompts * p->paths > API_CHOICES_MAX)
        return api_fail(e, "n", NULL, "At most %d choices can be computed at once; these are %llu.",
                        API_CHOICES_MAX, (unsigned long long)p->n_prompts * p->paths);
    if (p->vote && p->n_prompts != 1)
        return api_fail(e, "vote", NULL, "'vote' is for a single prompt.");
    TRY(prompt_truncate(env, o, p, e));
    for (uint32_t i = 0; i < p->n_prompts; i++) {
        size_t n = p->prompts[i].tokens.n;
        if (n == 0)
            return api_fail(e, p->kind == API_CHAT ? "messages" : "prompt", NULL,
                            "The prompt is empty.");
        if (n >= env->context)
            return api_fail(e, p->kind == API_CHAT ? "messages" : "prompt",
                            "context_length_exceeded",
                            "This model's maximum context length is %u tokens; the prompt has %zu. "
                            "Shorten the prompt.",
                            env->context, n);
    }
    return STATUS_OK;
}

static int parse_response(const struct api_env *env, const json_t *o, int64_t now,
                          struct api_params *p, struct api_error *e)
{
    json_t *chat = NULL;
    TRY(responses_translate(o, &chat, &p->responses, e));
    int rc = parse_fields(env, chat, now, p, e);
    json_decref(chat);
    if (rc == STATUS_OK && p->paths != 1)
        rc = api_fail(e, "n", "unsupported_value", "A response has one answer.");
    if (rc != STATUS_OK)
        responses_rename(o, e);
    return rc;
}

int api_parse(const struct api_env *env, enum api_kind kind, const char *body, size_t n,
              int64_t now, struct api_params *out, struct api_error *e)
{
    json_t *o = NULL;
    *e = (struct api_error){.http = 400};
    *out = (struct api_params){.kind = kind == API_RESPONSES ? API_CHAT : kind};
    int rc = fields_parse(body, n, &o, e);
    if (rc == STATUS_OK && !json_is_object(o))
        rc = api_fail(e, NULL, "invalid_json", "The body must be a JSON object.");
    if (rc == STATUS_OK)
        rc = kind == API_RESPONSES ? parse_response(env, o, now, out, e)
                                   : parse_fields(env, o, now, out, e);
    json_decref(o);
    if (rc != STATUS_OK) {
        api_params_fini(out);
        if (rc == STATUS_NOMEM) {
            e->http = 503;
            strcpy(e->message, "Out of memory; try again later.");
        }
    }
    return rc;
}

void api_params_fini(struct api_params *p)
{
    for (uint32_t i = 0; i < p->n_prompts; i++) {
        token_list_fini(&p->prompts[i].tokens);
        free(p->prompts[i].text);
    }
    free(p->prompts);
    for (size_t i = 0; i < p->n_stops; i++)
        free(p->stops[i]);
    free(p->salt);
    free(p->responses);
    extract_destroy(p->vote);
    sampling_fini(&p->sampling);
    think_fini(&p->think);
    structured_fini(&p->structured);
    *p = (struct api_params){.kind = p->kind};
}
