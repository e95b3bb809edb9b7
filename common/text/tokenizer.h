/* tokenizer: text <-> token ids, exactly as the model's reference tokenizer does it.
 *
 * Two families: byte-level BPE (GPT-2, Llama-3, Qwen2, SmolLM, DeepSeek; pre-tokenizers by PCRE2)
 * and SentencePiece BPE with byte fallback (Llama-2, Mistral). Immutable after creation, so any
 * number of threads may use one. Linear time in the text, constant stack. */
#ifndef BATON_TEXT_TOKENIZER_H
#define BATON_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/status.h"

enum tokenizer_kind { TOKENIZER_BPE, TOKENIZER_SPM };

/* Token types, with GGUF's numbers (tokenizer.ggml.token_type). */
enum token_type {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN = 2,
    TOKEN_CONTROL = 3,      /* never shown, matched in text only with TOKENIZE_SPECIAL */
    TOKEN_USER_DEFINED = 4, /* always matched in text before anything else, and shown */
    TOKEN_UNUSED = 5,
    TOKEN_BYTE = 6
};

struct token_text {
    const char *p;
    size_t n;
};

/* One stage of a pre-tokenizer as tokenizer.json describes it. */
enum tokenizer_split_behavior {
    TOKENIZER_SPLIT_ISOLATED, /* a match is a piece of its own */
    TOKENIZER_SPLIT_REMOVED,  /* what matches is dropped */
    TOKENIZER_SPLIT_WITH_PREVIOUS,
    TOKENIZER_SPLIT_WITH_NEXT,
    TOKENIZER_SPLIT_CONTIGUOUS /* neighbouring matches are one piece */
};
struct tokenizer_split {
    struct token_text regex; /* Oniguruma's syntax */
    enum tokenizer_split_behavior behavior;
    bool invert; /* what does not match counts as the match */
};
enum token_strip { TOKEN_LSTRIP = 1, TOKEN_RSTRIP = 2, TOKEN_SINGLE_WORD = 4 };

/* What a vocabulary file says; a loan for the call. Filled by common/model/vocab. */
struct tokenizer_spec {
    enum tokenizer_kind kind;
    const char *pre; /* pre-tokenizer: "gpt-2", "llama-bpe", "qwen2", "smollm", "deepseek-llm", … */
    size_t n_tokens;
    const struct token_text *tokens;
    const float *scores;  /* SPM: one per token, or NULL when merges say the order */
    const uint8_t *types; /* enum token_type, one per token */
    size_t n_merges;
    const struct token_text (*merges)[2]; /* left and right part, best rank first; SPM: or none */
    int32_t bos, eos, eot, unk, pad;      /* -1: none */
    bool add_bos, add_eos;
    bool add_space_prefix; /* SPM */

    /* Known from tokenizer.json only; zero otherwise. */
    const struct tokenizer_split *splits; /* BPE, when pre is NULL: the stages; none: one word */
    size_t n_splits;
    bool ignore_merges;       /* BPE: a word that is a token is that token */
    bool nfc;                 /* text is put into normalisation form C first */
    bool prefix_first_only;   /* SPM: no space prefix after special tokens */
    bool prefix_unless_space; /* SPM: no space prefix where the text begins with a space */
    bool split_at_spaces;     /* SPM: every space begins a word */
    const uint8_t *strips;    /* enum token_strip of special tokens, one per token; or NULL */
    const int32_t *stops;     /* further ids that end generation */
    size_t n_stops;
};

struct tokenizer;
/* err gets one sentence when the vocabulary cannot be used (unknown pre-tokenizer, a merge that
 * names an unknown token, no merges at all, …). */
int tokenizer_create(const struct tokenizer_spec *spec, struct tokenizer **out, char *err,
                     size_t errlen) WARN_UNUSED;
void tokenizer_destroy(struct tokenizer *t);

struct token_list {
    int32_t *ids; /* owned; free with token_list_fini */
    size_t n, cap;
};
void token_list_fini(struct token_list *l);

enum tokenize_flags {
    TOKENIZE_BOS = 1,    /* put BOS first (when the vocabulary has one) */
    TOKENIZE_SPECIAL = 2 /* text of control tokens becomes those tokens */
};
/* Appends the ids of text (any bytes; invalid UTF-8 is kept byte by byte where the vocabulary can).
 */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, unsigned flags,
                     struct token_list *out) WARN_UNUSED;

/* A stretch of a text. */
struct token_range {
    size_t begin, end;
};
/* The same for a text of which only some ranges (ascending, apart) may name control tokens, such as
 * what a chat template wrote, while users wrote the rest. flags: TOKENIZE_BOS; TOKENIZE_SPECIAL
 * makes the whole text one range. Words run on across the ends of ranges. */
int tokenizer_encode_ranges(const struct tokenizer *t, const char *text, size_t n, unsigned flags,
                            const struct token_range *ranges, size_t n_ranges,
                            struct token_list *out) WARN_UNUSED;

size_t tokenizer_size(const struct tokenizer *t);
int32_t tokenizer_bos(const struct tokenizer *t);
int32_t tokenizer_eos(const struct tokenizer *t);
bool tokenizer_add_bos(const struct tokenizer *t);
/* Every id that ends generation: EOS, EOT and what the vocabulary marks so (<|im_end|>, <|eot_id|>,
 * <|endoftext|> …). */
const int32_t *tokenizer_stops(const struct tokenizer *t, size_t *n);
enum token_type tokenizer_type(const struct tokenizer *t, int32_t id);
/* Whether text shown to users leaves id out: control tokens, <unk>, ids outside the vocabulary. */
bool tokenizer_hidden(const struct tokenizer *t, int32_t id);
/* The id whose text is exactly this (special tokens included), or -1. Text is what decoding gives:
 * plain bytes and spaces, not a vocabulary file's spelling of them. */
int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t n);
/* The raw bytes that id stands for, possibly part of a UTF-8 character; the token's text for
 * control tokens; empty for ids outside the vocabulary and holes. first: SPM drops the leading
 * space. The result is a loan from the tokenizer. */
struct token_text tokenizer_piece(const struct tokenizer *t, int32_t id, bool first);
/* All ids to bytes, as decode(encode(x)) == x needs it. special: show control tokens. */
void tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool special,
                      struct buf *out);

#endif
