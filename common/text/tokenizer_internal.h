/* tokenizer_internal: what the files behind tokenizer.h share. Other rooms do not include it. */
#ifndef BATON_TEXT_TOKENIZER_INTERNAL_H
#define BATON_TEXT_TOKENIZER_INTERNAL_H

#include "common/base/buf.h"
#include "common/text/bpe.h"
#include "common/text/pretok.h"
#include "common/text/special.h"
#include "common/text/tokenizer.h"

/* Texts to ids by open addressing; the texts themselves are the tokenizer's pieces. */
struct vocab_slot {
    uint32_t hash;
    int32_t id; /* -1: free */
};
struct vocab_map {
    struct vocab_slot *slots;
    size_t mask;
};

struct tokenizer {
    enum tokenizer_kind kind;
    size_t n;               /* ids */
    char *pool;             /* the bytes of all pieces, one after the other */
    uint32_t *at;           /* n + 1 offsets into pool */
    uint8_t *types;         /* enum token_type */
    uint8_t *whole;         /* the piece as a word is this one token */
    struct vocab_map words; /* pieces of normal tokens, the lowest id of equal ones */
    struct special special; /* control and user-defined tokens */
    struct bpe bpe;
    struct pretok *pretok; /* BPE */
    int32_t byte_id[256];  /* BPE: the token of a byte; SPM: the byte token; -1: none */
    int32_t bos, eos, unk;
    int32_t *stops;
    size_t n_stops;
    bool add_bos, add_space_prefix;
    bool nfc, prefix_first_only, prefix_unless_space, split_at_spaces;
    bool cut_before_space; /* SPM: no token has a space behind another character */
};

static inline struct token_text piece_of(const struct tokenizer *t, int32_t id)
{
    return (struct token_text){t->pool + t->at[id], t->at[id + 1] - t->at[id]};
}

int32_t vocab_find(const struct tokenizer *t, const char *p, size_t n);

/* Everything that one call of tokenizer_encode needs beside its arguments. */
struct encoder {
    const struct tokenizer *t;
    struct token_list *out;
    struct pretok_work *pretok;
    struct bpe_work bpe;
    int32_t *symbols; /* of the word being merged */
    size_t n_symbols; /* capacity */
    struct buf text;  /* SPM: with the space prefix; BPE: in form C */
};
int encoder_symbols(struct encoder *e, size_t n) WARN_UNUSED;
int encoder_emit(struct encoder *e, int32_t id) WARN_UNUSED;

/* bpe words (tokenizer.c) and SentencePiece words (spm.c). arg: struct encoder. */
int encode_bpe_word(void *arg, const char *p, size_t n) WARN_UNUSED;
int encode_spm_word(struct encoder *e, const char *p, size_t n) WARN_UNUSED;
/* A stretch without special tokens. first: nothing but BOS came before it. */
int encode_spm_text(struct encoder *e, const char *p, size_t n, bool first) WARN_UNUSED;

/* SPM: the symbol of the character at p, and its length: a token's id, or below -1 what is not in
 * the vocabulary (a character, or one byte of ill-formed text). */
int32_t spm_symbol(const struct tokenizer *t, const char *p, size_t n, size_t *len);
/* Fills t->bpe from the tokens and their scores. */
int spm_build_scores(struct tokenizer *t, const float *scores, char *err,
                     size_t errlen) WARN_UNUSED;
/* Whether t->cut_before_space holds. */
bool spm_can_cut(const struct tokenizer *t);

#endif
