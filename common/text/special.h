/* special: finding the texts of special tokens in a text. */
#ifndef BATON_TEXT_SPECIAL_H
#define BATON_TEXT_SPECIAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/text/tokenizer.h"

enum special_flags {
    SPECIAL_CONTROL = 1, /* found only where control tokens are allowed */
    SPECIAL_LSTRIP = 2,  /* swallows white space before it */
    SPECIAL_RSTRIP = 4,  /* and after it */
    SPECIAL_WORD = 8     /* only when no word character is next to it */
};
struct special_entry {
    const char *p; /* the text; a loan that lives as long as the set */
    uint32_t n;
    int32_t id;
    unsigned flags;
};
struct special {
    struct special_entry *entries; /* sorted by text */
    size_t n;
    uint32_t bucket[257]; /* entries whose first byte is b: bucket[b] .. bucket[b + 1] */
};

/* Takes n entries (copied, sorted). Texts are not empty; of equal ones the lowest id stays. */
int special_init(struct special *s, const struct special_entry *entries, size_t n) WARN_UNUSED;
void special_fini(struct special *s);

/* The id of the entry with exactly this text, or -1. */
int32_t special_lookup(const struct special *s, const char *p, size_t n);

/* The first entry in text[from, n), of those at one place the longest. Control tokens count only
 * inside one of the ranges, which ascend; *range is the first that may still matter and moves on.
 * NULL when there is none; else *begin is set. Linear in n for a given set. */
const struct special_entry *special_find(const struct special *s, const char *text, size_t from,
                                         size_t n, const struct token_range *ranges,
                                         size_t n_ranges, size_t *range, size_t *begin);

#endif
