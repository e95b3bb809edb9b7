/* sampling: see sampling.h. */
#include "routerd/sampling.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"

static int push(struct token_list *l, int32_t id)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 16;
        int32_t *p = mem_resize(l->ids, cap, sizeof *p);
        if (!p)
            return STATUS_NOMEM;
        l->ids = p;
        l->cap = cap;
    }
    l->ids[l->n++] = id;
    return STATUS_OK;
}

/* A member that is an array of token ids, at most max of them. */
static int parse_ids(const json_t *o, const char *name, uint32_t vocab, size_t max,
                     struct token_list *out, struct api_error *e)
{
    const json_t *v = field_get(o, name), *id;
    size_t i;
    if (!v)
        return STATUS_OK;
    if (!json_is_array(v))
        return api_fail(e, name, NULL, "'%s' must be an array of token ids.", name);
    if (json_array_size(v) > max)
        return api_fail(e, name, NULL, "'%s' may hold at most %zu ids.", name, max);
    json_array_foreach(v, i, id)
    {
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= vocab)
            return api_fail(e, name, NULL,
                            "%s[%zu] must be a token id of this model, an integer from 0 to %u.",
                            name, i, vocab - 1);
        TRY(push(out, (int32_t)json_integer_value(id)));
    }
    return STATUS_OK;
}

/* A decimal number without anything else; -1. */
static int64_t id_of(const char *s)
{
    char *end;
    if (*s < '0' || *s > '9' || strlen(s) > 10)
        return -1;
    int64_t id = strtoll(s, &end, 10);
    return *end ? -1 : id;
}

static int parse_bias(const json_t *o, uint32_t vocab, struct sampling *s, struct api_error *e)
{
    json_t *v = (json_t *)field_get(o, "logit_bias"), *bias;
    const char *key;
    if (!v)
        return STATUS_OK;
    if (!json_is_object(v))
        return api_fail(e, "logit_bias", NULL,
                        "'logit_bias' must be an object of token ids and numbers.");
    if (json_object_size(v) > SAMPLING_BIAS_MAX)
        return api_fail(e, "logit_bias", NULL, "'logit_bias' may hold at most %d ids.",
                        SAMPLING_BIAS_MAX);
    s->bias = mem_array(json_object_size(v) + 1, sizeof *s->bias);
    if (!s->bias)
        return STATUS_NOMEM;
    json_object_foreach(v, key, bias)
    {
        int64_t id = id_of(key);
        double x = json_number_value(bias);
        if (id < 0 || id >= vocab)
            return api_fail(e, "logit_bias", NULL,
                            "'logit_bias': '%.32s' is no token id of this model (0 to %u).", key,
                            vocab - 1);
        if (!json_is_number(bias) || !(x >= -100 && x <= 100))
            return api_fail(e, "logit_bias", NULL,
                            "'logit_bias': the value of %lld must be a number from -100 to 100.",
                            (long long)id);
        TRY(push(&s->bias_ids, (int32_t)id));
        s->bias[s->bias_ids.n - 1] = (float)x;
    }
    return STATUS_OK;
}

/* ---- words ------------------------------------------------------------------------------------
 */

/* The ids of prefix + word as another banned sequence. */
static int push_word(const struct tokenizer *t, const char *prefix, const char *word, size_t n,
                     struct sampling *s)
{
    struct token_list ids = {0};
    struct buf text;
    buf_init(&text, 0);
    buf_puts(&text, prefix);
    buf_append(&text, word, n);
    int rc = buf_ok(&text) ? tokenizer_encode(t, text.data, text.len, 0, &ids) : STATUS_NOMEM;
    for (size_t i = 0; i < ids.n && rc == STATUS_OK; i++)
        rc = push(&s->bad_words, ids.ids[i]);
    if (rc == STATUS_OK && ids.n)
        rc = push(&s->bad_word_sizes, (int32_t)ids.n);
    token_list_fini(&ids);
    buf_fini(&text);
    return rc;
}

/* Each word as it begins an answer, and as it stands behind another word. */
static int parse_words(const json_t *o, const struct tokenizer *t, struct sampling *s,
                       struct api_error *e)
{
    const json_t *v = field_get(o, "bad_words"), *w;
    size_t i;
    if (!v)
        return STATUS_OK;
    if (!json_is_array(v) || json_array_size(v) > SAMPLING_WORDS_MAX)
        return api_fail(e, "bad_words", NULL, "'bad_words' must be an array of at most %d strings.",
                        SAMPLING_WORDS_MAX);
    json_array_foreach(v, i, w)
    {
        const char *text = json_string_value(w);
        size_t n = json_string_length(w);
        if (!text || n == 0 || n > SAMPLING_WORD_BYTES_MAX)
            return api_fail(e, "bad_words", NULL,
                            "bad_words[%zu] must be a string of 1 to %d bytes.", i,
                            SAMPLING_WORD_BYTES_MAX);
        TRY(push_word(t, "", text, n, s));
        if (*text != ' ')
            TRY(push_word(t, " ", text, n, s));
    }
    return STATUS_OK;
}

/* ---- all of it --------------------------------------------------------------------------------
 */

static int parse(const json_t *o, const struct tokenizer *t, uint32_t vocab, struct sampling *s,
                 struct api_error *e)
{
    double temperature = 1, top_p = 1, min_p = 0, presence = 0, frequency = 0, repetition = 1;
    int64_t top_k = -1, seed = 0, min_tokens = 0;
    TRY(field_number(o, "temperature", 0, 2, false, &temperature, e));
    TRY(field_number(o, "top_p", 0, 1, true, &top_p, e));
    TRY(field_number(o, "min_p", 0, 1, false, &min_p, e));
    TRY(field_int(o, "top_k", -1, INT64_MAX, &top_k, e));
    TRY(field_int(o, "seed", INT64_MIN, INT64_MAX, &seed, e));
    TRY(field_number(o, "presence_penalty", -2, 2, false, &presence, e));
    TRY(field_number(o, "frequency_penalty", -2, 2, false, &frequency, e));
    TRY(field_number(o, "repetition_penalty", 0, 10, true, &repetition, e));
    TRY(field_int(o, "min_tokens", 0, INT32_MAX, &min_tokens, e));
    TRY(field_bool(o, "ignore_eos", &s->ignore_eos, e));
    s->temperature = (float)temperature;
    s->top_p = (float)top_p > 0 ? (float)top_p : 1e-30f; /* underflow: as good as greedy */
    s->min_p = (float)min_p;
    s->top_k = top_k > INT32_MAX ? 0 : (int32_t)top_k;
    s->seed = field_get(o, "seed") ? (uint64_t)seed : rng_u64();
    s->presence = (float)presence;
    s->frequency = (float)frequency;
    s->repetition = (float)repetition > 1e-6f ? (float)repetition : 1e-6f;
    s->min_tokens = (uint32_t)min_tokens;
    TRY(parse_ids(o, "stop_token_ids", vocab, SAMPLING_STOPS_MAX, &s->stops, e));
    TRY(parse_ids(o, "allowed_token_ids", vocab, vocab, &s->allowed, e));
    if (field_get(o, "allowed_token_ids") && s->allowed.n == 0)
        return api_fail(e, "allowed_token_ids", NULL, "'allowed_token_ids' must not be empty.");
    TRY(parse_bias(o, vocab, s, e));
    return parse_words(o, t, s, e);
}

int sampling_parse(const json_t *o, const struct tokenizer *t, uint32_t vocab, struct sampling *out,
                   struct api_error *e)
{
    *out = (struct sampling){0};
    int rc = parse(o, t, vocab, out, e);
    if (rc != STATUS_OK)
        sampling_fini(out);
    return rc;
}

void sampling_fini(struct sampling *s)
{
    token_list_fini(&s->stops);
    token_list_fini(&s->bias_ids);
    token_list_fini(&s->allowed);
    token_list_fini(&s->bad_words);
    token_list_fini(&s->bad_word_sizes);
    free(s->bias);
    *s = (struct sampling){0};
}

int sampling_stop_ids(const struct sampling *s, const struct tokenizer *t, struct token_list *out)
{
    size_t n;
    const int32_t *ends = tokenizer_stops(t, &n);
    *out = (struct token_list){0};
    for (size_t i = 0; i < n && !s->ignore_eos; i++)
        TRY(push(out, ends[i]));
    for (size_t i = 0; i < s->stops.n; i++)
        TRY(push(out, s->stops.ids[i]));
    return STATUS_OK;
}

static struct proto_ids ids_of(const struct token_list *l)
{
    return (struct proto_ids){l->ids, l->n};
}

void sampling_job(const struct sampling *s, const struct tokenizer *t, struct proto_job *job)
{
    size_t n;
    const int32_t *ends = tokenizer_stops(t, &n);
    job->sampling = (struct proto_sampling){
        .temperature = s->temperature,
        .top_p = s->top_p,
        .min_p = s->min_p,
        .top_k = s->top_k,
        .seed = s->seed,
        .presence = s->presence,
        .frequency = s->frequency,
        .repetition = s->repetition == 1 ? 0 : s->repetition,
        .min_tokens = s->min_tokens,
        .bias_ids = ids_of(&s->bias_ids),
        .bias = {s->bias, s->bias_ids.n * sizeof *s->bias},
        .allowed = ids_of(&s->allowed),
        .bad_words = ids_of(&s->bad_words),
        .bad_word_sizes = ids_of(&s->bad_word_sizes),
    };
    if (s->ignore_eos)
        job->sampling.banned = (struct proto_ids){ends, n};
}
