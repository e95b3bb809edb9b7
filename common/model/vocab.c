/* vocab: the tokenizer of a model (model.h) and the reader of GGUF vocabularies.
 *
 * The keys are those of llama.cpp's converter: tokenizer.ggml.model is "gpt2" for byte-level BPE
 * and "llama" for SentencePiece; tokenizer.ggml.pre names the pre-tokenizer of the former. What a
 * file leaves out takes the default that its makers assume: SentencePiece models want BOS and the
 * space prefix, byte-level ones want neither but for the families whose preset says so. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "common/model/model.h"
#include "common/model/model_internal.h"
#include "common/model/vocab.h"
#include "common/text/pretok.h"

/* Arrays of one GGUF vocabulary; the texts stay in the mapping. */
struct gguf_vocab {
    struct gguf_string *strings, *merge_strings;
    struct token_text *tokens;
    struct token_text (*merges)[2];
    float *scores;
    int32_t *types32;
    uint8_t *types;
    size_t n, n_merges;
};

static void gguf_vocab_fini(struct gguf_vocab *v)
{
    free(v->strings);
    free(v->merge_strings);
    free(v->tokens);
    free(v->merges);
    free(v->scores);
    free(v->types32);
    free(v->types);
}

static int read_tokens(const struct gguf *g, struct gguf_vocab *v, char *err, size_t errlen)
{
    const char *key = "tokenizer.ggml.tokens";
    int rc = gguf_strings(g, key, &v->strings, &v->n);
    if (rc != STATUS_OK)
        return gguf_explain(g, key, rc, "an array of strings", err, errlen);
    v->tokens = mem_array(v->n, sizeof *v->tokens);
    v->types = mem_array(v->n, 1);
    if (!v->tokens || !v->types)
        return STATUS_NOMEM;
    memset(v->types, TOKEN_NORMAL, v->n);
    for (size_t i = 0; i < v->n; i++)
        v->tokens[i] = (struct token_text){v->strings[i].p, v->strings[i].n};
    key = "tokenizer.ggml.token_type";
    if (!gguf_has(g, key))
        return STATUS_OK;
    size_t n = 0;
    rc = gguf_i32s(g, key, &v->types32, &n);
    if (rc != STATUS_OK)
        return gguf_explain(g, key, rc, "an array of integers", err, errlen);
    if (n != v->n)
        return model_error(err, errlen, STATUS_FORMAT, "key '%s' has %zu entries for %zu tokens",
                           key, n, v->n);
    for (size_t i = 0; i < n; i++) {
        if (v->types32[i] < TOKEN_NORMAL || v->types32[i] > TOKEN_BYTE)
            return model_error(err, errlen, STATUS_FORMAT, "token %zu has the unknown type %d", i,
                               v->types32[i]);
        v->types[i] = (uint8_t)v->types32[i];
    }
    return STATUS_OK;
}

static int read_scores(const struct gguf *g, struct gguf_vocab *v, char *err, size_t errlen)
{
    const char *key = "tokenizer.ggml.scores";
    size_t n = 0;
    int rc = gguf_f32s(g, key, &v->scores, &n);
    if (rc != STATUS_OK)
        return gguf_explain(g, key, rc, "an array of numbers", err, errlen);
    if (n != v->n)
        return model_error(err, errlen, STATUS_FORMAT, "key '%s' has %zu entries for %zu tokens",
                           key, n, v->n);
    return STATUS_OK;
}

static int read_merges(const struct gguf *g, struct gguf_vocab *v, char *err, size_t errlen)
{
    const char *key = "tokenizer.ggml.merges";
    int rc = gguf_strings(g, key, &v->merge_strings, &v->n_merges);
    if (rc != STATUS_OK)
        return gguf_explain(g, key, rc, "an array of strings", err, errlen);
    v->merges = mem_array(v->n_merges, sizeof *v->merges);
    if (!v->merges)
        return STATUS_NOMEM;
    for (size_t i = 0; i < v->n_merges; i++) {
        const char *p = v->merge_strings[i].p;
        size_t n = v->merge_strings[i].n;
        const char *space = n > 1 ? memchr(p + 1, ' ', n - 1) : NULL;
        if (!space)
            return model_error(err, errlen, STATUS_FORMAT, "merge %zu has no second part", i);
        size_t left = (size_t)(space - p);
        v->merges[i][0] = (struct token_text){p, left};
        v->merges[i][1] = (struct token_text){space + 1, n - left - 1};
    }
    return STATUS_OK;
}

/* An optional token id; *id stays as it is when the key is missing, and -1 is written for the
 * values that mean "none". */
static int read_id(const struct gguf *g, const char *key, int32_t *id, char *err, size_t errlen)
{
    uint32_t value;
    int rc = gguf_u32(g, key, &value);
    if (rc == STATUS_NOTFOUND)
        return STATUS_OK;
    if (rc == STATUS_RANGE || (rc == STATUS_OK && value > INT32_MAX)) {
        *id = -1;
        return STATUS_OK;
    }
    if (rc != STATUS_OK)
        return gguf_explain(g, key, rc, "a token id", err, errlen);
    *id = (int32_t)value;
    return STATUS_OK;
}

static int read_flag(const struct gguf *g, const char *key, bool *flag, char *err, size_t errlen)
{
    int rc = gguf_bool(g, key, flag);
    return rc == STATUS_OK || rc == STATUS_NOTFOUND
               ? STATUS_OK
               : gguf_explain(g, key, rc, "a flag", err, errlen);
}

static int read_ids(const struct gguf *g, struct tokenizer_spec *spec, char *err, size_t errlen)
{
    int32_t unk = -1;
    TRY(read_id(g, "tokenizer.ggml.bos_token_id", &spec->bos, err, errlen));
    TRY(read_id(g, "tokenizer.ggml.eos_token_id", &spec->eos, err, errlen));
    TRY(read_id(g, "tokenizer.ggml.eot_token_id", &spec->eot, err, errlen));
    TRY(read_id(g, "tokenizer.ggml.padding_token_id", &spec->pad, err, errlen));
    TRY(read_id(g, "tokenizer.ggml.unknown_token_id", &unk, err, errlen));
    /* Files of byte-level vocabularies name an unknown token that their tokenizers never give. */
    if (spec->kind == TOKENIZER_SPM)
        spec->unk = unk;
    TRY(read_flag(g, "tokenizer.ggml.add_bos_token", &spec->add_bos, err, errlen));
    TRY(read_flag(g, "tokenizer.ggml.add_eos_token", &spec->add_eos, err, errlen));
    return read_flag(g, "tokenizer.ggml.add_space_prefix", &spec->add_space_prefix, err, errlen);
}

static bool string_is(struct gguf_string s, const char *text)
{
    return s.n == strlen(text) && memcmp(s.p, text, s.n) == 0;
}

/* The pre-tokenizer's name; "default" when the file has none. */
static int read_pre(const struct gguf *g, char name[64], char *err, size_t errlen)
{
    const char *key = "tokenizer.ggml.pre";
    struct gguf_string pre = {"default", 7};
    int rc = gguf_string(g, key, &pre);
    if (rc != STATUS_OK && rc != STATUS_NOTFOUND)
        return gguf_explain(g, key, rc, "a string", err, errlen);
    snprintf(name, 64, "%.*s", (int)(pre.n < 63 ? pre.n : 63), pre.p);
    return STATUS_OK;
}

static int read_all(const struct gguf *g, struct gguf_vocab *v, struct tokenizer_spec *spec,
                    char pre[64], char *err, size_t errlen)
{
    const char *key = "tokenizer.ggml.model";
    struct gguf_string model;
    int rc = gguf_string(g, key, &model);
    if (rc != STATUS_OK)
        return gguf_explain(g, key, rc, "a string", err, errlen);
    bool spm = string_is(model, "llama");
    if (!spm && !string_is(model, "gpt2"))
        return model_error(err, errlen, STATUS_UNSUPPORTED, "the tokenizer '%.*s' is not supported",
                           (int)(model.n < 60 ? model.n : 60), model.p);
    TRY(read_tokens(g, v, err, errlen));
    TRY(spm ? read_scores(g, v, err, errlen) : read_merges(g, v, err, errlen));
    *spec = (struct tokenizer_spec){.kind = spm ? TOKENIZER_SPM : TOKENIZER_BPE,
                                    .n_tokens = v->n,
                                    .tokens = v->tokens,
                                    .scores = v->scores,
                                    .types = v->types,
                                    .n_merges = v->n_merges,
                                    .merges = v->merges,
                                    .bos = -1,
                                    .eos = -1,
                                    .eot = -1,
                                    .unk = -1,
                                    .pad = -1,
                                    .add_bos = spm,
                                    .add_space_prefix = spm};
    if (!spm) {
        TRY(read_pre(g, pre, err, errlen));
        spec->pre = pre;
        const struct pretok_preset *preset = pretok_preset_find(pre);
        spec->add_bos = preset && preset->add_bos;
    }
    return read_ids(g, spec, err, errlen);
}

int vocab_from_gguf(const struct gguf *g, struct tokenizer **out, char *err, size_t errlen)
{
    struct gguf_vocab v = {0};
    struct tokenizer_spec spec;
    char pre[64];
    int rc = read_all(g, &v, &spec, pre, err, errlen);
    if (rc == STATUS_OK)
        rc = tokenizer_create(&spec, out, err, errlen);
    gguf_vocab_fini(&v);
    return rc;
}

int model_tokenizer(const struct model *m, struct tokenizer **out, char *err, size_t errlen)
{
    const struct model_source *source = model_source(m);
    char reason[256] = "";
    int rc = source->gguf ? vocab_from_gguf(source->gguf, out, reason, sizeof reason)
                          : vocab_from_dir(source->dir, out, reason, sizeof reason);
    if (rc == STATUS_OK && m->params.vocab && tokenizer_size(*out) > m->params.vocab) {
        snprintf(reason, sizeof reason, "the tokenizer has %zu tokens, the embedding only %u rows",
                 tokenizer_size(*out), m->params.vocab);
        tokenizer_destroy(*out);
        rc = STATUS_FORMAT;
    }
    if (rc == STATUS_OK)
        return STATUS_OK;
    if (!reason[0])
        snprintf(reason, sizeof reason, "%s", status_text(rc));
    bool named = strncmp(reason, source->path, strlen(source->path)) == 0;
    return named ? model_error(err, errlen, rc, "%s", reason)
                 : model_error(err, errlen, rc, "%s: %s", source->path, reason);
}
