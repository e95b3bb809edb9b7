/* text_bench: the bench command of baton-text. */
#ifndef BATON_TEXT_TEXT_BENCH_H
#define BATON_TEXT_TEXT_BENCH_H

#include "common/text/tokenizer.h"

/* Prints one line for each text: NAME encode MB/s, tokens, and for what streams back tokens/s. */
int text_bench_tokenizer(const struct tokenizer *t, const char *const *paths, size_t n);
/* Prints microseconds for one rendering. argv: TEMPLATE CONTEXT. */
int text_bench_render(const char *template_path, const char *context_path);

#endif
