/* extract: the final answer in a text that reasons towards it, for votes among several texts.
 *
 * By the caller's regular expression: what its first group has matched last (the whole match, when
 * it has no group). Without one, the first of these that the text has:
 *   1. the inside of the last \boxed{…};
 *   2. what follows the last "answer is" or "answer:", to the end of the line;
 *   3. the last number;
 *   4. the last line that is not blank.
 * Answers lose blanks, full stops, * and $ around them, and compare without regard to ASCII case.
 */
#ifndef BATON_TEXT_EXTRACT_H
#define BATON_TEXT_EXTRACT_H

#include <stdbool.h>

#include "common/base/buf.h"
#include "common/base/status.h"

#define EXTRACT_REGEX_MAX 4096

struct extract;
/* regex: n bytes, or NULL. err: a sentence when it cannot be used. */
int extract_create(const char *regex, size_t n, struct extract **out, char *err,
                   size_t errlen) WARN_UNUSED;
void extract_destroy(struct extract *x);
/* Puts the answer of the text (UTF-8) into out, whose content is replaced; false: it has none, or
 * the expression takes too long for it. All calls for one extract share a budget. */
bool extract_answer(struct extract *x, const char *text, size_t n, struct buf *out);
bool extract_equal(const struct buf *a, const struct buf *b);

#endif
