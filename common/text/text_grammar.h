/* text_grammar: the grammar command of baton-text. */
#ifndef BATON_TEXT_TEXT_GRAMMAR_H
#define BATON_TEXT_TEXT_GRAMMAR_H

#include <stdio.h>

#include "common/text/tokenizer.h"

/* Reads questions from `in`, one JSON object a line, and writes an answer for each:
 *   {"kind": "json|schema|regex|choice|gbnf", "source": "…",
 *    "compact": false, "formats_ignored": false, "draft7": false,
 *    "texts": ["…"],                 is each derived?
 *    "walks": 3, "seed": 1, "tokens": 200,  random answers by the masks, each of about so many
 *    "ids": [[1, 2]], "bits": true}  the mask after each prefix of these ids
 *   {"vocab": true}                 all tokens' bytes, and the stop ids
 * Answers: {"status": 0, "error": "", "compile_us": 1, "texts": [true], "walks": ["…"],
 *    "masks": [[{"n": 3, "end": false, "bits": "hex"}]], "fill_us": […], "advance_us": […]}
 * tok may be NULL: then there are neither walks nor masks. Returns the exit status. */
int text_grammar_serve(const struct tokenizer *tok, FILE *in, FILE *out);

#endif
