/* bytes_vocab: a byte-level tokenizer for tests: ids 0..255 are single bytes, 256 "he", 257
 * "hello", 258 <|im_start|>, 259 <|im_end|> (stop). */
#ifndef BATON_TESTS_BYTES_VOCAB_H
#define BATON_TESTS_BYTES_VOCAB_H

#include "common/text/tokenizer.h"

#define VOCAB_IM_START 258
#define VOCAB_IM_END   259
#define VOCAB_SIZE     260

struct tokenizer *bytes_vocab(void);

#endif
