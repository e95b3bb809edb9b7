/* unicode: UTF-8 in and out, and normalisation form C (utf8proc's only home). */
#ifndef BATON_TEXT_UNICODE_H
#define BATON_TEXT_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/status.h"

#define UNICODE_REPLACEMENT 0xfffdu
#define UNICODE_MAX         0x10ffffu

enum unicode_step {
    UNICODE_CHAR, /* a well-formed character */
    UNICODE_BAD,  /* a maximal subpart of an ill-formed sequence (Unicode 15 §3.9, WHATWG) */
    UNICODE_PART  /* the text ends inside a character that may still become well-formed */
};
/* Looks at the first character of the n > 0 bytes at p. *len: the bytes that the step covers, at
 * least 1. *cp is set for UNICODE_CHAR only. */
enum unicode_step unicode_next(const char *p, size_t n, uint32_t *cp, size_t *len);
/* Bytes of the longest prefix that is well-formed UTF-8. */
size_t unicode_valid(const char *p, size_t n);
/* Writes cp (at most UNICODE_MAX, no surrogate) as UTF-8 and returns its 1..4 bytes. */
size_t unicode_put(uint32_t cp, char out[4]);

/* White_Space of the Unicode character database: what \s means to the regular expressions of
 * tokenizers, and what they strip. */
bool unicode_is_space(uint32_t cp);
/* Letters, marks, decimal digits, letter numbers and connectors: \w. */
bool unicode_is_word(uint32_t cp);

/* Whether the text surely is in form C already: no character that composes, decomposes or reorders.
 * May say false for text that is. p is well-formed UTF-8. */
bool unicode_nfc_trivial(const char *p, size_t n);
/* Appends the text in normalisation form C. Time is O(n log n) also for adversarial runs of
 * combining marks. p is well-formed UTF-8. */
int unicode_nfc(const char *p, size_t n, struct buf *out) WARN_UNUSED;

#endif
