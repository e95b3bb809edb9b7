/* pretok: cutting text into the words that BPE works on (PCRE2's only home).
 *
 * A pre-tokenizer is a chain of stages. Each stage cuts every piece of the one before by a regular
 * expression that sees the piece alone, as the Hugging Face tokenizers do it. Expressions are those
 * of Oniguruma as tokenizer files carry them; they are translated where PCRE2 means something else.
 * Immutable after creation: any number of threads may run one, each with its own work. */
#ifndef BATON_TEXT_PRETOK_H
#define BATON_TEXT_PRETOK_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"
#include "common/text/tokenizer.h"

#define PRETOK_STAGES_MAX 12

/* What is known about the pre-tokenizers that GGUF files name (tokenizer.ggml.pre). */
struct pretok_preset {
    const char *names;         /* separated by blanks */
    const char *const *stages; /* expressions, each match a piece of its own; NULL at the end */
    bool ignore_merges;        /* a word that is a token is that token, whatever the merges say */
    bool nfc;                  /* text is put into normalisation form C first */
    bool add_bos;              /* unless the file says otherwise */
};
/* NULL for a name that is not known. */
const struct pretok_preset *pretok_preset_find(const char *name);

struct pretok;
struct pretok_work;
/* err gets one sentence when an expression cannot be used. */
int pretok_create(const struct tokenizer_split *splits, size_t n, struct pretok **out, char *err,
                  size_t errlen) WARN_UNUSED;
int pretok_create_preset(const struct pretok_preset *preset, struct pretok **out, char *err,
                         size_t errlen) WARN_UNUSED;
void pretok_destroy(struct pretok *p);

int pretok_work_create(const struct pretok *p, struct pretok_work **out) WARN_UNUSED;
void pretok_work_destroy(struct pretok_work *w);

/* Calls word for every piece, in order; text is well-formed UTF-8. Stops at the first error of word
 * and returns it; STATUS_LIMIT when an expression backtracks beyond all measure. */
typedef int (*pretok_word_fn)(void *arg, const char *p, size_t n);
int pretok_run(const struct pretok *p, struct pretok_work *w, const char *text, size_t n,
               pretok_word_fn word, void *arg) WARN_UNUSED;

#endif
