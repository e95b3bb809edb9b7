/* detok: token ids to text, one at a time, never emitting half a character.
 *
 * Feed bytes of each token; what comes out is always valid UTF-8: complete characters at once,
 * malformed sequences as U+FFFD (one per maximal subpart, Unicode 15 §3.9 / WHATWG), and an
 * incomplete tail held back until it completes or turns out malformed. Pure function of the ids
 * fed so far, so a stream resumed elsewhere gives the same text. */
#ifndef BATON_TEXT_DETOK_H
#define BATON_TEXT_DETOK_H

#include "common/text/tokenizer.h"

struct detok {
    const struct tokenizer *tok;
    char held[4]; /* start of a character that is not complete yet */
    uint8_t n_held;
    bool any;     /* a token was shown (SPM's leading space is gone); set it after detok_init when
                     the ids continue a text, so that their first space stays */
    bool special; /* show control tokens */
};
void detok_init(struct detok *d, const struct tokenizer *t, bool special);
/* Appends the text that id completes. */
void detok_feed(struct detok *d, int32_t id, struct buf *out);
/* End of the stream: an incomplete tail is left out. */
void detok_flush(struct detok *d, struct buf *out);

#endif
