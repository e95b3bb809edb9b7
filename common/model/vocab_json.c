/* vocab_json: the reader of tokenizer.json and what lies beside it; see vocab.h.
 *
 *   tokenizer.json          model (BPE: vocab, merges), added_tokens, normalizer, pre_tokenizer,
 *                           post_processor (whether BOS comes first)
 *   tokenizer_config.json   bos_token, eos_token, add_bos_token
 *   generation_config.json  eos_token_id: one id or a list; all of them end generation
 *   config.json             the same, when there is no generation_config.json
 *
 * Only the first must exist. Ids may have holes; those decode to nothing. An id that two texts
 * claim, a merge of unknown tokens, or a step that is not understood refuses the whole file: ids
 * that are silently wrong are worse than none. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "common/model/file.h"
#include "common/model/vocab.h"

#define FILE_MAX ((size_t)256 << 20)
#define IDS_MAX  (1 << 24)

struct loader {
    const char *dir;
    struct arena arena;
    json_t *root, *config, *generation, *model_config; /* the last three may be NULL */
    struct vocab_pipeline pipeline;
    struct tokenizer_spec spec;
    struct token_text *tokens;
    uint8_t *types, *strips;
    char *err;
    size_t errlen;
};

#define REFUSE(l, rc, ...) model_error((l)->err, (l)->errlen, (rc), __VA_ARGS__)

static int read_json(struct loader *l, const char *name, json_t **out)
{
    char *text = NULL;
    size_t n = 0;
    json_error_t error;
    TRY(model_dir_read(l->dir, name, FILE_MAX, &text, &n, l->err, l->errlen));
    *out = json_loadb(text, n, JSON_ALLOW_NUL, &error);
    free(text);
    if (!*out)
        return REFUSE(l, STATUS_FORMAT, "%s, line %d: %s", name, error.line, error.text);
    if (!json_is_object(*out))
        return REFUSE(l, STATUS_FORMAT, "%s is not an object", name);
    return STATUS_OK;
}

static int read_optional(struct loader *l, const char *name, json_t **out)
{
    int rc = read_json(l, name, out);
    return rc == STATUS_NOTFOUND ? STATUS_OK : rc;
}

/* ---- ids and texts ---- */

static int read_id(struct loader *l, const json_t *value, const char *text, size_t *id)
{
    json_int_t n = json_integer_value(value);
    if (!json_is_integer(value) || n < 0 || n >= IDS_MAX)
        return REFUSE(l, STATUS_FORMAT, "token '%.40s' has no usable id", text);
    *id = (size_t)n;
    return STATUS_OK;
}

static int count_ids(struct loader *l, const json_t *vocab, const json_t *added)
{
    size_t i, id = 0;
    const char *text;
    json_t *value;
    json_object_foreach((json_t *)vocab, text, value)
    {
        TRY(read_id(l, value, text, &id));
        if (id >= l->spec.n_tokens)
            l->spec.n_tokens = id + 1;
    }
    json_array_foreach(added, i, value)
    {
        const char *content = json_string_value(json_object_get(value, "content"));
        if (!content)
            return REFUSE(l, STATUS_FORMAT, "added token %zu has no content", i);
        TRY(read_id(l, json_object_get(value, "id"), content, &id));
        if (id >= l->spec.n_tokens)
            l->spec.n_tokens = id + 1;
    }
    return STATUS_OK;
}

static int clash(struct loader *l, size_t id, const char *text)
{
    return REFUSE(l, STATUS_FORMAT, "id %zu belongs to '%.*s' and to '%.40s'", id,
                  (int)(l->tokens[id].n < 40 ? l->tokens[id].n : 40), l->tokens[id].p, text);
}

static bool is_byte_token(const char *text)
{
    return strlen(text) == 6 && strncmp(text, "<0x", 3) == 0 && text[5] == '>' &&
           strspn(text + 3, "0123456789ABCDEFabcdef") == 2;
}

static int place_vocab(struct loader *l, const json_t *vocab, bool byte_fallback)
{
    const char *text;
    json_t *value;
    json_object_foreach((json_t *)vocab, text, value)
    {
        size_t id = (size_t)json_integer_value(value);
        if (l->tokens[id].p)
            return clash(l, id, text);
        l->tokens[id] = (struct token_text){text, strlen(text)};
        l->types[id] = byte_fallback && is_byte_token(text) ? TOKEN_BYTE : TOKEN_NORMAL;
    }
    return STATUS_OK;
}

static int place_added(struct loader *l, const json_t *vocab, const json_t *added)
{
    size_t i;
    json_t *token;
    json_array_foreach(added, i, token)
    {
        const json_t *content = json_object_get(token, "content");
        const char *text = json_string_value(content);
        size_t n = json_string_length(content);
        size_t id = (size_t)json_integer_value(json_object_get(token, "id"));
        const json_t *other = json_object_get(vocab, text);
        bool same =
            l->tokens[id].p && l->tokens[id].n == n && memcmp(l->tokens[id].p, text, n) == 0;
        if (l->tokens[id].p && !same)
            return clash(l, id, text);
        if (other && (size_t)json_integer_value(other) != id)
            return REFUSE(l, STATUS_FORMAT, "'%.40s' is id %lld and, as an added token, id %zu",
                          text, (long long)json_integer_value(other), id);
        l->tokens[id] = (struct token_text){text, n};
        l->types[id] =
            json_is_true(json_object_get(token, "special")) ? TOKEN_CONTROL : TOKEN_USER_DEFINED;
        if (json_is_true(json_object_get(token, "lstrip")))
            l->strips[id] |= TOKEN_LSTRIP;
        if (json_is_true(json_object_get(token, "rstrip")))
            l->strips[id] |= TOKEN_RSTRIP;
        if (json_is_true(json_object_get(token, "single_word")))
            l->strips[id] |= TOKEN_SINGLE_WORD;
    }
    return STATUS_OK;
}

/* The id whose spelling is text, in vocabulary or added tokens; -1 when there is none. */
static int32_t id_of(const struct loader *l, const char *text)
{
    const json_t *model = json_object_get(l->root, "model");
    const json_t *id = json_object_get(json_object_get(model, "vocab"), text);
    if (id)
        return (int32_t)json_integer_value(id);
    size_t i;
    const json_t *token;
    json_array_foreach(json_object_get(l->root, "added_tokens"), i, token)
    {
        const char *content = json_string_value(json_object_get(token, "content"));
        if (content && strcmp(content, text) == 0)
            return (int32_t)json_integer_value(json_object_get(token, "id"));
    }
    return -1;
}

static int read_tokens(struct loader *l, const json_t *model)
{
    const json_t *vocab = json_object_get(model, "vocab");
    const json_t *added = json_object_get(l->root, "added_tokens");
    bool byte_fallback = json_is_true(json_object_get(model, "byte_fallback"));
    if (!json_is_object(vocab))
        return REFUSE(l, STATUS_FORMAT, "tokenizer.json has no vocabulary");
    TRY(count_ids(l, vocab, added));
    size_t n = l->spec.n_tokens;
    l->tokens = arena_alloc(&l->arena, n * sizeof *l->tokens);
    l->types = arena_alloc(&l->arena, n + 1);
    l->strips = arena_alloc(&l->arena, n + 1);
    if (!l->tokens || !l->types || !l->strips)
        return STATUS_NOMEM;
    memset(l->types, TOKEN_UNUSED, n);
    TRY(place_vocab(l, vocab, byte_fallback));
    TRY(place_added(l, vocab, added));
    for (size_t i = 0; i < n; i++)
        if (!l->tokens[i].p)
            l->tokens[i].p = "";
    l->spec.tokens = l->tokens;
    l->spec.types = l->types;
    l->spec.strips = l->strips;
    return STATUS_OK;
}

/* ---- merges ---- */

/* "a b": both parts lie in the string. */
static bool merge_of_string(const json_t *merge, struct token_text part[2])
{
    const char *p = json_string_value(merge);
    size_t n = json_string_length(merge);
    const char *space = memchr(p, ' ', n);
    if (!space || memchr(space + 1, ' ', n - (size_t)(space + 1 - p)))
        return false;
    part[0] = (struct token_text){p, (size_t)(space - p)};
    part[1] = (struct token_text){space + 1, n - part[0].n - 1};
    return part[0].n > 0 && part[1].n > 0;
}

/* ["a", "b"], where the parts may contain spaces. */
static bool merge_of_pair(const json_t *merge, struct token_text part[2])
{
    if (json_array_size(merge) != 2)
        return false;
    for (size_t k = 0; k < 2; k++) {
        const json_t *text = json_array_get(merge, k);
        if (!json_is_string(text) || json_string_length(text) == 0)
            return false;
        part[k] = (struct token_text){json_string_value(text), json_string_length(text)};
    }
    return true;
}

static int read_merges(struct loader *l, const json_t *model)
{
    const json_t *list = json_object_get(model, "merges");
    size_t n = json_array_size(list), i;
    if (n == 0)
        return REFUSE(l, STATUS_FORMAT, "tokenizer.json has no merges");
    struct token_text(*merges)[2] = arena_alloc(&l->arena, n * sizeof *merges);
    if (!merges)
        return STATUS_NOMEM;
    const json_t *merge;
    json_array_foreach(list, i, merge)
    {
        bool ok = json_is_string(merge) ? merge_of_string(merge, merges[i])
                                        : merge_of_pair(merge, merges[i]);
        if (!ok)
            return REFUSE(l, STATUS_FORMAT, "merge %zu is not two parts", i);
    }
    l->spec.merges = (const struct token_text(*)[2])merges;
    l->spec.n_merges = n;
    return STATUS_OK;
}

/* ---- what comes first and last ---- */

/* The special token that the post-processor puts before a single text, or NULL. */
static const char *template_bos(const json_t *processor)
{
    const char *type = json_string_value(json_object_get(processor, "type"));
    if (type && strcmp(type, "Sequence") == 0) {
        size_t i;
        const json_t *inner;
        json_array_foreach(json_object_get(processor, "processors"), i, inner)
        {
            const char *inner_type = json_string_value(json_object_get(inner, "type"));
            bool nested = inner_type && strcmp(inner_type, "Sequence") == 0;
            const char *found = nested ? NULL : template_bos(inner);
            if (found)
                return found;
        }
    }
    if (!type || strcmp(type, "TemplateProcessing") != 0)
        return NULL;
    const json_t *first = json_array_get(json_object_get(processor, "single"), 0);
    return json_string_value(json_object_get(json_object_get(first, "SpecialToken"), "id"));
}

/* A token of tokenizer_config.json: a string, or an object with its content. */
static int32_t named_token(const struct loader *l, const char *key)
{
    const json_t *value = json_object_get(l->config, key);
    const char *text =
        json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);
    return text ? id_of(l, text) : -1;
}

static bool usable(const struct loader *l, const json_t *id)
{
    return json_is_integer(id) && json_integer_value(id) >= 0 &&
           (size_t)json_integer_value(id) < l->spec.n_tokens;
}

/* eos_token_id of a configuration: all its ids become stops. */
static int read_stops(struct loader *l, const json_t *config)
{
    const json_t *eos = json_object_get(config, "eos_token_id");
    size_t n = json_is_array(eos) ? json_array_size(eos) : 1;
    int32_t *stops = arena_alloc(&l->arena, (n + 1) * sizeof *stops);
    if (!stops)
        return STATUS_NOMEM;
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(eos) ? json_array_get(eos, i) : eos;
        if (usable(l, id))
            stops[l->spec.n_stops++] = (int32_t)json_integer_value(id);
    }
    l->spec.stops = stops;
    return STATUS_OK;
}

static int read_ends(struct loader *l)
{
    struct tokenizer_spec *spec = &l->spec;
    const json_t *generation =
        json_object_get(l->generation, "eos_token_id") ? l->generation : l->model_config;
    TRY(read_stops(l, generation));
    const char *first = template_bos(json_object_get(l->root, "post_processor"));
    const json_t *add_bos = json_object_get(l->config, "add_bos_token");
    spec->eos = named_token(l, "eos_token");
    if (spec->eos < 0 && spec->n_stops)
        spec->eos = spec->stops[0];
    spec->bos = first ? id_of(l, first) : named_token(l, "bos_token");
    const json_t *bos_id = json_object_get(l->model_config, "bos_token_id");
    if (spec->bos < 0 && usable(l, bos_id))
        spec->bos = (int32_t)json_integer_value(bos_id);
    spec->pad = named_token(l, "pad_token");
    spec->add_bos = json_is_boolean(add_bos) ? json_is_true(add_bos) : first != NULL;
    return STATUS_OK;
}

/* ---- the whole ---- */

static bool set_text(const json_t *object, const char *key)
{
    return json_string_length(json_object_get(object, key)) > 0;
}

static int read_model(struct loader *l)
{
    struct tokenizer_spec *spec = &l->spec;
    const struct vocab_pipeline *pipe = &l->pipeline;
    const json_t *model = json_object_get(l->root, "model");
    const char *type = json_string_value(json_object_get(model, "type"));
    if (type && strcmp(type, "BPE") != 0)
        return REFUSE(l, STATUS_UNSUPPORTED, "the tokenizer '%.40s' is not supported", type);
    if (set_text(model, "continuing_subword_prefix") || set_text(model, "end_of_word_suffix"))
        return REFUSE(l, STATUS_UNSUPPORTED, "BPE with marks inside words is not supported");
    if (!pipe->byte_level && !pipe->space_symbols)
        return REFUSE(l, STATUS_UNSUPPORTED,
                      "tokenizer.json is neither byte-level nor SentencePiece");
    spec->kind = pipe->byte_level ? TOKENIZER_BPE : TOKENIZER_SPM;
    /* Spaces are symbols when these steps would see them: a Split at " " does nothing. */
    for (size_t i = 0; i < pipe->n_splits && spec->kind == TOKENIZER_SPM; i++)
        if (pipe->splits[i].regex.n != 1 || pipe->splits[i].regex.p[0] != ' ')
            return REFUSE(l, STATUS_UNSUPPORTED, "pre_tokenizer of a SentencePiece vocabulary");
    spec->splits = pipe->splits;
    spec->n_splits = pipe->n_splits;
    spec->nfc = pipe->nfc;
    spec->add_space_prefix = pipe->prefix;
    spec->prefix_first_only = pipe->prefix_first_only;
    spec->prefix_unless_space = pipe->prefix_unless_space;
    spec->split_at_spaces = pipe->split_at_spaces;
    spec->ignore_merges = json_is_true(json_object_get(model, "ignore_merges"));
    spec->bos = spec->eos = spec->eot = spec->unk = spec->pad = -1;
    TRY(read_tokens(l, model));
    TRY(read_merges(l, model));
    const char *unk = json_string_value(json_object_get(model, "unk_token"));
    if (unk)
        spec->unk = id_of(l, unk);
    return read_ends(l);
}

static int load(struct loader *l, struct tokenizer **out)
{
    TRY(read_json(l, "tokenizer.json", &l->root));
    TRY(read_optional(l, "tokenizer_config.json", &l->config));
    TRY(read_optional(l, "generation_config.json", &l->generation));
    TRY(read_optional(l, "config.json", &l->model_config));
    if (l->errlen)
        l->err[0] = 0; /* what missing files left there */
    TRY(vocab_pipeline_read(l->root, &l->arena, &l->pipeline, l->err, l->errlen));
    TRY(read_model(l));
    return tokenizer_create(&l->spec, out, l->err, l->errlen);
}

int vocab_from_dir(const char *dir, struct tokenizer **out, char *err, size_t errlen)
{
    struct loader l = {.dir = dir, .err = err, .errlen = errlen};
    arena_init(&l.arena, 0);
    int rc = load(&l, out);
    json_decref(l.root);
    json_decref(l.config);
    json_decref(l.generation);
    json_decref(l.model_config);
    arena_fini(&l.arena);
    return rc;
}
