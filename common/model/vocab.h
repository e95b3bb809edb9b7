/* vocab: what the readers of vocabularies share; the entry is model_tokenizer (model.h). */
#ifndef BATON_MODEL_VOCAB_H
#define BATON_MODEL_VOCAB_H

#include "common/base/json.h"
#include "common/base/mem.h"
#include "common/base/status.h"
#include "common/text/tokenizer.h"

struct gguf;

/* Tokenizer from GGUF metadata, or from a directory's tokenizer.json and what is beside it. On
 * failure err has a sentence; model_tokenizer puts the file's name before it. */
int vocab_from_gguf(const struct gguf *g, struct tokenizer **out, char *err,
                    size_t errlen) WARN_UNUSED;
int vocab_from_dir(const char *dir, struct tokenizer **out, char *err, size_t errlen) WARN_UNUSED;

/* What the sections "normalizer" and "pre_tokenizer" of tokenizer.json say. Strings and arrays live
 * in the arena or are loans from the JSON. */
struct vocab_pipeline {
    bool byte_level;    /* tokens are GPT-2's spelling of bytes */
    bool space_symbols; /* spaces are U+2581 */
    bool nfc;
    bool prefix, prefix_first_only, prefix_unless_space, split_at_spaces;
    struct tokenizer_split *splits;
    size_t n_splits;
};
int vocab_pipeline_read(const json_t *root, struct arena *arena, struct vocab_pipeline *out,
                        char *err, size_t errlen) WARN_UNUSED;

#endif
