/* vocab_pipeline: the sections "normalizer" and "pre_tokenizer" of tokenizer.json; see vocab.h.
 *
 * The two sections are programs in a small language of nested steps. The families that Baton serves
 * use few of them, and those are understood exactly; any other step is refused by name, because
 * leaving it out would give wrong ids without a word.
 *
 *   normalizer     Sequence, NFC, Prepend "▁", Replace " " by "▁"
 *   pre_tokenizer  Sequence, Split, Digits, Punctuation, Whitespace, WhitespaceSplit,
 *                  ByteLevel (as the last step), Metaspace */
#include <stdio.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/model/file.h"
#include "common/model/vocab.h"
#include "common/text/pretok.h"

#define SPACE_SYMBOL "\xe2\x96\x81"
#define NESTING_MAX  8

struct reader {
    struct vocab_pipeline *out;
    struct arena *arena;
    char *err;
    size_t errlen;
};

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static bool flag_of(const json_t *object, const char *key, bool fallback)
{
    const json_t *value = json_object_get(object, key);
    return json_is_boolean(value) ? json_is_true(value) : fallback;
}

static int refuse(const struct reader *r, const char *section, const char *what)
{
    return model_error(r->err, r->errlen, STATUS_UNSUPPORTED, "%s '%.60s' is not supported",
                       section, what);
}

static int read_normalizer(struct reader *r, const json_t *step, int depth)
{
    const char *type = text_of(step, "type");
    if (json_is_null(step) || !step)
        return STATUS_OK;
    if (depth > NESTING_MAX)
        return refuse(r, "normalizer", "a nest of sequences");
    if (strcmp(type, "Sequence") == 0) {
        size_t i;
        const json_t *inner;
        json_array_foreach(json_object_get(step, "normalizers"), i, inner)
            TRY(read_normalizer(r, inner, depth + 1));
        return STATUS_OK;
    }
    if (strcmp(type, "NFC") == 0) {
        r->out->nfc = true;
        return STATUS_OK;
    }
    if (strcmp(type, "Prepend") == 0 && strcmp(text_of(step, "prepend"), SPACE_SYMBOL) == 0) {
        r->out->prefix = true;
        return STATUS_OK;
    }
    if (strcmp(type, "Replace") == 0 && strcmp(text_of(step, "content"), SPACE_SYMBOL) == 0 &&
        strcmp(text_of(json_object_get(step, "pattern"), "String"), " ") == 0) {
        r->out->space_symbols = true;
        return STATUS_OK;
    }
    return refuse(r, "normalizer", type);
}

static int add_split(struct reader *r, const char *regex, size_t n,
                     enum tokenizer_split_behavior behavior, bool invert)
{
    if (r->out->n_splits == PRETOK_STAGES_MAX)
        return refuse(r, "pre_tokenizer", "a sequence of so many steps");
    r->out->splits[r->out->n_splits++] =
        (struct tokenizer_split){.regex = {regex, n}, .behavior = behavior, .invert = invert};
    return STATUS_OK;
}

static int behavior_of(const struct reader *r, const json_t *step,
                       enum tokenizer_split_behavior *out)
{
    static const struct {
        const char *name;
        enum tokenizer_split_behavior behavior;
    } names[] = {{"Isolated", TOKENIZER_SPLIT_ISOLATED},
                 {"Removed", TOKENIZER_SPLIT_REMOVED},
                 {"MergedWithPrevious", TOKENIZER_SPLIT_WITH_PREVIOUS},
                 {"MergedWithNext", TOKENIZER_SPLIT_WITH_NEXT},
                 {"Contiguous", TOKENIZER_SPLIT_CONTIGUOUS}};
    const char *name = text_of(step, "behavior");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i].name) == 0) {
            *out = names[i].behavior;
            return STATUS_OK;
        }
    return refuse(r, "pre_tokenizer: behavior", name);
}

/* A plain string as an expression that matches just it. */
static int quote(struct reader *r, const char *text, size_t n, const char **out, size_t *out_n)
{
    char *p = arena_alloc(r->arena, 2 * n + 1);
    if (!p)
        return STATUS_NOMEM;
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        if (strchr("\\^$.[]|()?*+{}#-&~", text[i]) && text[i])
            p[k++] = '\\';
        p[k++] = text[i];
    }
    *out = p;
    *out_n = k;
    return STATUS_OK;
}

static int read_split(struct reader *r, const json_t *step)
{
    const json_t *pattern = json_object_get(step, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex");
    const json_t *plain = json_object_get(pattern, "String");
    const json_t *text = regex ? regex : plain;
    enum tokenizer_split_behavior behavior;
    if (!json_is_string(text))
        return refuse(r, "pre_tokenizer", "Split without a pattern");
    TRY(behavior_of(r, step, &behavior));
    const char *p = json_string_value(text);
    size_t n = json_string_length(text);
    if (!regex)
        TRY(quote(r, p, n, &p, &n));
    return add_split(r, p, n, behavior, flag_of(step, "invert", false));
}

static int read_byte_level(struct reader *r, const json_t *step)
{
    r->out->byte_level = true;
    if (flag_of(step, "add_prefix_space", true))
        return refuse(r, "pre_tokenizer", "ByteLevel with add_prefix_space");
    if (!flag_of(step, "use_regex", true))
        return STATUS_OK;
    const char *words = pretok_preset_find("gpt-2")->stages[0];
    return add_split(r, words, strlen(words), TOKENIZER_SPLIT_ISOLATED, false);
}

static int read_metaspace(struct reader *r, const json_t *step)
{
    struct vocab_pipeline *out = r->out;
    const char *scheme = text_of(step, "prepend_scheme");
    if (!scheme[0]) /* before there were schemes */
        scheme = flag_of(step, "add_prefix_space", true) ? "always" : "never";
    if (strcmp(text_of(step, "replacement"), SPACE_SYMBOL) != 0)
        return refuse(r, "pre_tokenizer", "Metaspace with another symbol");
    out->space_symbols = true;
    out->prefix = strcmp(scheme, "never") != 0;
    out->prefix_first_only = strcmp(scheme, "first") == 0;
    out->prefix_unless_space = true;
    out->split_at_spaces = flag_of(step, "split", true);
    return STATUS_OK;
}

static int read_simple(struct reader *r, const json_t *step, const char *type)
{
    enum tokenizer_split_behavior behavior = TOKENIZER_SPLIT_ISOLATED;
    const char *regex;
    bool invert = false;
    if (strcmp(type, "Digits") == 0) {
        regex = flag_of(step, "individual_digits", false) ? "\\p{N}" : "\\p{N}+";
    } else if (strcmp(type, "Punctuation") == 0) {
        regex = "[\\p{P}!-/:-@\\[-`{-~]";
        if (json_object_get(step, "behavior"))
            TRY(behavior_of(r, step, &behavior));
    } else if (strcmp(type, "WhitespaceSplit") == 0) {
        regex = "\\s+";
        behavior = TOKENIZER_SPLIT_REMOVED;
    } else if (strcmp(type, "Whitespace") == 0) {
        regex = "\\w+|[^\\w\\s]+";
        behavior = TOKENIZER_SPLIT_REMOVED;
        invert = true;
    } else {
        return refuse(r, "pre_tokenizer", type);
    }
    return add_split(r, regex, strlen(regex), behavior, invert);
}

static int read_pre_tokenizer(struct reader *r, const json_t *step, int depth)
{
    if (json_is_null(step) || !step)
        return STATUS_OK;
    const char *type = text_of(step, "type");
    if (depth > NESTING_MAX)
        return refuse(r, "pre_tokenizer", "a nest of sequences");
    if (strcmp(type, "Sequence") == 0) {
        size_t i;
        const json_t *inner;
        json_array_foreach(json_object_get(step, "pretokenizers"), i, inner)
            TRY(read_pre_tokenizer(r, inner, depth + 1));
        return STATUS_OK;
    }
    if (r->out->byte_level)
        return refuse(r, "pre_tokenizer: after ByteLevel,", type);
    if (strcmp(type, "Split") == 0)
        return read_split(r, step);
    if (strcmp(type, "ByteLevel") == 0)
        return read_byte_level(r, step);
    if (strcmp(type, "Metaspace") == 0)
        return read_metaspace(r, step);
    return read_simple(r, step, type);
}

int vocab_pipeline_read(const json_t *root, struct arena *arena, struct vocab_pipeline *out,
                        char *err, size_t errlen)
{
    *out = (struct vocab_pipeline){0};
    out->splits = arena_alloc(arena, PRETOK_STAGES_MAX * sizeof *out->splits);
    if (!out->splits)
        return STATUS_NOMEM;
    struct reader r = {.out = out, .arena = arena, .err = err, .errlen = errlen};
    TRY(read_normalizer(&r, json_object_get(root, "normalizer"), 0));
    return read_pre_tokenizer(&r, json_object_get(root, "pre_tokenizer"), 0);
}
