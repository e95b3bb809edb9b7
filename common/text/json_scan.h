/* json_scan: JSON (RFC 8259) checked byte by byte, as a model writes it.
 *
 * Nothing is built or copied: the caller looks at state and depth around each byte. UTF-8 is not
 * checked (detokenised text is well-formed). */
#ifndef BATON_TEXT_JSON_SCAN_H
#define BATON_TEXT_JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JSON_SCAN_DEPTH 256

enum json_scan_state {
    JSON_SCAN_VALUE,     /* a value must follow */
    JSON_SCAN_ITEM,      /* a value or ] */
    JSON_SCAN_FIRST_KEY, /* a key or } */
    JSON_SCAN_KEY,       /* a key */
    JSON_SCAN_IN_KEY,
    JSON_SCAN_COLON,
    JSON_SCAN_STRING,
    JSON_SCAN_NUMBER,
    JSON_SCAN_WORD,  /* true, false, null */
    JSON_SCAN_AFTER, /* a value is complete; at depth 0 the text is */
    JSON_SCAN_BAD
};
/* Zero is the start. */
struct json_scan {
    uint8_t state, number, word, word_at, escape;
    uint16_t depth;                      /* open objects and arrays */
    uint8_t object[JSON_SCAN_DEPTH / 8]; /* bit: the level is an object */
};
/* Takes one byte; false: this is not JSON (and never will be). */
bool json_scan_push(struct json_scan *s, char c);
/* Whether all of the text is one value. */
bool json_scan_whole(const char *p, size_t n);

#endif
