/* known: see known.h. */
#include "routerd/known.h"

#include <string.h>

enum what {
    TAKEN,  /* another file reads it */
    STRING, /* of this type, and without effect */
    BOOLEAN,
    OBJECT,
    WORD,  /* one of the words in `allowed`, separated by blanks */
    TEXTS, /* an array of such words */
    ABSENT /* must be null, false, 0, or empty, or one of the words in `allowed` */
};

#define CHAT       KNOWN_CHAT
#define COMPLETION KNOWN_COMPLETION
#define BOTH       (KNOWN_CHAT | KNOWN_COMPLETION)

static const struct known {
    const char *name;
    unsigned kinds;
    enum what what;
    const char *allowed;
} table[] = {
    /* OpenAI */
    {"model", BOTH, TAKEN, NULL},
    {"messages", CHAT, TAKEN, NULL},
    {"prompt", COMPLETION, TAKEN, NULL},
    {"max_tokens", BOTH, TAKEN, NULL},
    {"max_completion_tokens", BOTH, TAKEN, NULL},
    {"temperature", BOTH, TAKEN, NULL},
    {"top_p", BOTH, TAKEN, NULL},
    {"n", BOTH, TAKEN, NULL},
    {"best_of", COMPLETION, TAKEN, NULL},
    {"best_of", CHAT, ABSENT, "1"},
    {"stop", BOTH, TAKEN, NULL},
    {"stream", BOTH, TAKEN, NULL},
    {"stream_options", BOTH, TAKEN, NULL},
    {"frequency_penalty", BOTH, TAKEN, NULL},
    {"presence_penalty", BOTH, TAKEN, NULL},
    {"logit_bias", BOTH, TAKEN, NULL},
    {"logprobs", BOTH, TAKEN, NULL},
    {"top_logprobs", CHAT, TAKEN, NULL},
    {"seed", BOTH, TAKEN, NULL},
    {"echo", COMPLETION, TAKEN, NULL},
    {"response_format", BOTH, TAKEN, NULL},
    {"tools", CHAT, TAKEN, NULL},
    {"tool_choice", CHAT, TAKEN, NULL},
    {"parallel_tool_calls", CHAT, TAKEN, NULL},
    {"reasoning_effort", CHAT, TAKEN, NULL},
    {"user", BOTH, STRING, NULL},
    {"safety_identifier", BOTH, STRING, NULL},
    {"prompt_cache_key", BOTH, STRING, NULL},
    {"prompt_cache_retention", BOTH, STRING, NULL},
    {"prompt_cache_options", BOTH, OBJECT, NULL},
    {"metadata", BOTH, OBJECT, NULL},
    {"moderation", BOTH, OBJECT, NULL},
    {"prediction", CHAT, OBJECT, NULL},
    {"store", BOTH, BOOLEAN, NULL},
    {"service_tier", BOTH, WORD, "auto default flex scale priority"},
    {"verbosity", CHAT, WORD, "low medium high"},
    {"modalities", CHAT, TEXTS, "text"},
    {"audio", CHAT, ABSENT, NULL},
    {"web_search_options", CHAT, ABSENT, NULL},
    {"functions", CHAT, ABSENT, NULL},
    {"function_call", CHAT, ABSENT, "none auto"},
    {"suffix", COMPLETION, ABSENT, NULL},
    /* What others added */
    {"top_k", BOTH, TAKEN, NULL},
    {"min_p", BOTH, TAKEN, NULL},
    {"repetition_penalty", BOTH, TAKEN, NULL},
    {"min_tokens", BOTH, TAKEN, NULL},
    {"ignore_eos", BOTH, TAKEN, NULL},
    {"stop_token_ids", BOTH, TAKEN, NULL},
    {"include_stop_str_in_output", BOTH, TAKEN, NULL},
    {"skip_special_tokens", BOTH, TAKEN, NULL},
    {"spaces_between_special_tokens", BOTH, TAKEN, NULL},
    {"bad_words", BOTH, TAKEN, NULL},
    {"allowed_token_ids", BOTH, TAKEN, NULL},
    {"prompt_logprobs", BOTH, TAKEN, NULL},
    {"truncate_prompt_tokens", BOTH, TAKEN, NULL},
    {"return_token_ids", BOTH, TAKEN, NULL},
    {"return_tokens_as_token_ids", BOTH, TAKEN, NULL},
    {"cache_salt", BOTH, TAKEN, NULL},
    {"priority", BOTH, TAKEN, NULL},
    {"add_special_tokens", COMPLETION, TAKEN, NULL},
    {"add_special_tokens", CHAT, ABSENT, NULL}, /* templates write their own */
    {"structured_outputs", BOTH, TAKEN, NULL},
    {"guided_json", BOTH, TAKEN, NULL},
    {"guided_regex", BOTH, TAKEN, NULL},
    {"guided_choice", BOTH, TAKEN, NULL},
    {"guided_grammar", BOTH, TAKEN, NULL},
    {"guided_json_object", BOTH, TAKEN, NULL},
    {"guided_decoding_backend", BOTH, STRING, NULL},
    {"guided_whitespace_pattern", BOTH, ABSENT, NULL},
    {"json_schema", BOTH, TAKEN, NULL},
    {"grammar", BOTH, TAKEN, NULL},
    {"regex", BOTH, TAKEN, NULL},
    {"chat_template_kwargs", CHAT, TAKEN, NULL},
    {"documents", CHAT, TAKEN, NULL},
    {"include_reasoning", CHAT, TAKEN, NULL},
    {"reasoning", CHAT, TAKEN, NULL},
    {"thinking_token_budget", CHAT, TAKEN, NULL},
    {"add_generation_prompt", CHAT, TAKEN, NULL},
    {"continue_final_message", CHAT, TAKEN, NULL},
    {"vote", BOTH, TAKEN, NULL},
    {"request_id", BOTH, STRING, NULL},
    {"session_id", BOTH, STRING, NULL},
    {"truncation_side", BOTH, ABSENT, "left"},
    {"chat_template", CHAT, ABSENT, NULL},
    {"use_beam_search", BOTH, ABSENT, NULL},
    {"length_penalty", BOTH, ABSENT, "1"},
    {"logprob_token_ids", BOTH, ABSENT, NULL},
    {"prompt_embeds", COMPLETION, ABSENT, NULL},
    {"kv_transfer_params", BOTH, ABSENT, NULL},
    {"echo", CHAT, ABSENT, NULL},
    {"logits_processors", BOTH, ABSENT, NULL},
    {"lora", BOTH, ABSENT, NULL},
    {"lora_path", BOTH, ABSENT, NULL},
    {"ebnf", BOTH, ABSENT, NULL},
    {"n_predict", BOTH, ABSENT, NULL},
    {"repeat_penalty", BOTH, ABSENT, "1"},
    {"typical_p", BOTH, ABSENT, "1"},
    {"mirostat", BOTH, ABSENT, NULL},
    {"dry_multiplier", BOTH, ABSENT, NULL},
    {"xtc_probability", BOTH, ABSENT, NULL},
    {"dynatemp_range", BOTH, ABSENT, NULL},
    {"repetition_detection", BOTH, ABSENT, NULL},
    {"watermarking", BOTH, ABSENT, NULL},
};
#define TABLE_N (sizeof table / sizeof table[0])

bool known_word(const json_t *v, const char *words)
{
    const char *s = json_string_value(v);
    size_t n = s ? strlen(s) : 0;
    for (const char *w = words; s && w && *w; w += strcspn(w, " "), w += *w == ' ') {
        if (strcspn(w, " ") == n && memcmp(w, s, n) == 0)
            return true;
    }
    return false;
}

static bool all_listed(const json_t *v, const char *words)
{
    const json_t *one;
    size_t i;
    if (!json_is_array(v) || json_array_size(v) == 0)
        return false;
    json_array_foreach(v, i, one)
    {
        if (!known_word(one, words))
            return false;
    }
    return true;
}

/* Says nothing: what leaving the field out says as well. */
static bool says_nothing(const json_t *v, const char *allowed)
{
    return json_is_false(v) || (json_is_string(v) && json_string_length(v) == 0) ||
           ((json_is_array(v) || json_is_object(v)) &&
            json_array_size(v) + json_object_size(v) == 0) ||
           (json_is_number(v) && json_number_value(v) == (allowed && *allowed == '1' ? 1 : 0)) ||
           known_word(v, allowed);
}

static int check(const struct known *k, const json_t *v, struct api_error *e)
{
    switch (k->what) {
    case TAKEN:
        return STATUS_OK;
    case STRING:
        return json_is_string(v) ? STATUS_OK
                                 : api_fail(e, k->name, NULL, "'%s' must be a string.", k->name);
    case BOOLEAN:
        return json_is_boolean(v)
                   ? STATUS_OK
                   : api_fail(e, k->name, NULL, "'%s' must be true or false.", k->name);
    case OBJECT:
        return json_is_object(v) ? STATUS_OK
                                 : api_fail(e, k->name, NULL, "'%s' must be an object.", k->name);
    case WORD:
        return known_word(v, k->allowed)
                   ? STATUS_OK
                   : api_fail(e, k->name, NULL, "'%s' must be one of: %s.", k->name, k->allowed);
    case TEXTS:
        return all_listed(v, k->allowed)
                   ? STATUS_OK
                   : api_fail(e, k->name, "unsupported_value",
                              "'%s' must be an array that holds nothing but: %s.", k->name,
                              k->allowed);
    case ABSENT:
        return says_nothing(v, k->allowed)
                   ? STATUS_OK
                   : api_fail(e, k->name, "unsupported_value", "'%s' is not supported.", k->name);
    }
    return STATUS_OK;
}

int known_check(const json_t *o, enum known_kind kind, struct api_error *e)
{
    for (size_t i = 0; i < TABLE_N; i++) {
        const json_t *v = table[i].kinds & kind ? field_get(o, table[i].name) : NULL;
        if (v)
            TRY(check(&table[i], v, e));
    }
    return STATUS_OK;
}

static bool is_known(const char *name, enum known_kind kind)
{
    for (size_t i = 0; i < TABLE_N; i++) {
        if (table[i].kinds & kind && strcmp(table[i].name, name) == 0)
            return true;
    }
    return false;
}

uint32_t known_unknown(const json_t *o, enum known_kind kind, char *name, size_t size)
{
    const char *key;
    json_t *v;
    uint32_t n = 0;
    json_object_foreach((json_t *)o, key, v)
    {
        if (is_known(key, kind))
            continue;
        if (n++ == 0) {
            strncpy(name, key, size - 1);
            name[size - 1] = 0;
        }
    }
    return n;
}
