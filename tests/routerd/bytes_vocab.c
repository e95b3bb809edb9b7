/* bytes_vocab: see bytes_vocab.h. Token texts are in GPT-2's byte alphabet, as vocabularies have
 * them. */
#include "tests/routerd/bytes_vocab.h"

#include <stdio.h>
#include <string.h>

#include "common/text/unicode.h"
#include "tests/harness.h"

/* The printable stand-in of a byte (GPT-2's bytes_to_unicode). */
static uint32_t stand_in(int byte)
{
    int next = 256;
    for (int b = 0; b < 256; b++) {
        bool plain = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        if (b == byte)
            return plain ? (uint32_t)b : (uint32_t)next;
        next += !plain;
    }
    return 0;
}

struct tokenizer *bytes_vocab(void)
{
    static char text[256][4];
    struct token_text tokens[VOCAB_SIZE];
    uint8_t types[VOCAB_SIZE];
    for (int b = 0; b < 256; b++) {
        size_t n = unicode_put(stand_in(b), text[b]);
        tokens[b] = (struct token_text){text[b], n};
        types[b] = TOKEN_NORMAL;
    }
    tokens[256] = (struct token_text){"he", 2};
    tokens[257] = (struct token_text){"hello", 5};
    tokens[VOCAB_IM_START] = (struct token_text){"<|im_start|>", 12};
    tokens[VOCAB_IM_END] = (struct token_text){"<|im_end|>", 10};
    types[256] = types[257] = TOKEN_NORMAL;
    types[VOCAB_IM_START] = types[VOCAB_IM_END] = TOKEN_CONTROL;
    struct token_text merges[][2] = {{{"h", 1}, {"e", 1}}};
    struct tokenizer_spec spec = {.kind = TOKENIZER_BPE,
                                  .pre = "gpt-2",
                                  .n_tokens = VOCAB_SIZE,
                                  .tokens = tokens,
                                  .types = types,
                                  .n_merges = 1,
                                  .merges = (const struct token_text(*)[2])merges,
                                  .bos = -1,
                                  .eos = VOCAB_IM_END,
                                  .eot = -1,
                                  .unk = -1,
                                  .pad = -1};
    struct tokenizer *t = NULL;
    char err[200] = "";
    ck_assert_msg(tokenizer_create(&spec, &t, err, sizeof err) == 0, "%s", err);
    return t;
}
