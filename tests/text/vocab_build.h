/* vocab_build: small vocabularies for the tests of this room: the 256 bytes in GPT-2's spelling (or
 * as SentencePiece's byte tokens), then whatever the test adds. A header of static functions,
 * because a unit test is one object file. */
#ifndef BATON_TESTS_TEXT_VOCAB_BUILD_H
#define BATON_TESTS_TEXT_VOCAB_BUILD_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "common/text/tokenizer.h"
#include "common/text/unicode.h"
#include "tests/harness.h"

#define VB_MAX 2048

struct vocab_build {
    struct tokenizer_spec spec;
    struct token_text tokens[VB_MAX];
    struct token_text merges[VB_MAX][2];
    uint8_t types[VB_MAX], strips[VB_MAX];
    float scores[VB_MAX];
    char *owned[4 * VB_MAX];
    size_t n_owned;
};

static inline struct token_text vb_text(struct vocab_build *b, const char *p, size_t n)
{
    char *copy = malloc(n + 1);
    ck_assert_ptr_nonnull(copy);
    memcpy(copy, p, n);
    copy[n] = 0;
    b->owned[b->n_owned++] = copy;
    return (struct token_text){copy, n};
}

static inline int32_t vb_add(struct vocab_build *b, const char *p, size_t n, enum token_type type,
                             float score)
{
    size_t id = b->spec.n_tokens++;
    ck_assert_uint_lt(id, VB_MAX);
    b->tokens[id] = vb_text(b, p, n);
    b->types[id] = (uint8_t)type;
    b->scores[id] = score;
    return (int32_t)id;
}

static inline int32_t vb_token(struct vocab_build *b, const char *text, enum token_type type)
{
    return vb_add(b, text, strlen(text), type, 0);
}

/* The code point that GPT-2's mapping writes for a byte. */
static inline uint32_t vb_spelling(int byte)
{
    uint32_t next = 256;
    for (int i = 0; i <= byte; i++) {
        bool plain = (i >= 33 && i <= 126) || (i >= 161 && i <= 172) || i >= 174;
        if (i == byte)
            return plain ? (uint32_t)i : next;
        next += !plain;
    }
    return 0;
}

/* Bytes to GPT-2's spelling; returns its length. */
static inline size_t vb_spell(const char *p, size_t n, char *out)
{
    size_t k = 0;
    for (size_t i = 0; i < n; i++)
        k += unicode_put(vb_spelling((uint8_t)p[i]), out + k);
    return k;
}

static inline struct vocab_build *vb_create(enum tokenizer_kind kind)
{
    struct vocab_build *b = calloc(1, sizeof *b);
    ck_assert_ptr_nonnull(b);
    b->spec = (struct tokenizer_spec){.kind = kind,
                                      .pre = kind == TOKENIZER_BPE ? "gpt-2" : NULL,
                                      .tokens = b->tokens,
                                      .types = b->types,
                                      .strips = b->strips,
                                      .scores = kind == TOKENIZER_SPM ? b->scores : NULL,
                                      .merges = (const struct token_text(*)[2])b->merges,
                                      .bos = -1,
                                      .eos = -1,
                                      .eot = -1,
                                      .unk = -1,
                                      .pad = -1};
    for (int i = 0; i < 256; i++) {
        char text[8], byte = (char)i;
        if (kind == TOKENIZER_BPE)
            vb_add(b, text, vb_spell(&byte, 1, text), TOKEN_NORMAL, 0);
        else
            vb_add(b, text, (size_t)snprintf(text, sizeof text, "<0x%02X>", i), TOKEN_BYTE, 0);
    }
    return b;
}

/* The merge of two parts given as bytes, and its token, which may be there already. */
static inline int32_t vb_merge(struct vocab_build *b, const char *left, const char *right)
{
    char spelt[256];
    size_t n = vb_spell(left, strlen(left), spelt);
    struct token_text *merge = b->merges[b->spec.n_merges++];
    merge[0] = vb_text(b, spelt, n);
    size_t m = vb_spell(right, strlen(right), spelt + n);
    merge[1] = vb_text(b, spelt + n, m);
    for (size_t id = 0; id < b->spec.n_tokens; id++)
        if (b->tokens[id].n == n + m && memcmp(b->tokens[id].p, spelt, n + m) == 0)
            return (int32_t)id;
    return vb_add(b, spelt, n + m, TOKEN_NORMAL, 0);
}

/* Releases the builder; the tokenizer is the caller's. */
static inline struct tokenizer *vb_finish(struct vocab_build *b)
{
    struct tokenizer *t = NULL;
    char err[256];
    int rc = tokenizer_create(&b->spec, &t, err, sizeof err);
    ck_assert_msg(rc == 0, "%s", err);
    for (size_t i = 0; i < b->n_owned; i++)
        free(b->owned[i]);
    free(b);
    return t;
}

/* The same for a vocabulary that must be refused with `want` in the message. */
static inline void vb_refuse(struct vocab_build *b, int want_rc, const char *want)
{
    struct tokenizer *t = NULL;
    char err[256] = "";
    ck_assert_int_eq(tokenizer_create(&b->spec, &t, err, sizeof err), want_rc);
    ck_assert_ptr_null(t);
    ck_assert_msg(strstr(err, want), "'%s' does not say '%s'", err, want);
    for (size_t i = 0; i < b->n_owned; i++)
        free(b->owned[i]);
    free(b);
}

/* Random numbers that are the same in every run. */
static inline uint32_t vb_random(uint64_t *state, uint32_t below)
{
    return rng_philox(1, ++*state, 0).v[0] % below;
}

#endif
