/* detok: ids to text without half characters; see detok.h.
 *
 * Tokens of byte-level vocabularies end anywhere, so the bytes of one token are looked at together
 * with the at most three bytes held back from before. unicode_next tells the three cases apart:
 * complete, hopeless, and not finished yet; only the last is held. An unfinished character that the
 * stream ends in is left out: the client may continue the text, and half a character would turn
 * into a U+FFFD that the model never meant. */
#include "common/text/detok.h"

#include <string.h>

#include "common/base/assert.h"
#include "common/text/unicode.h"

#define REPLACEMENT "\xef\xbf\xbd"

void detok_init(struct detok *d, const struct tokenizer *t, bool special)
{
    *d = (struct detok){.tok = t, .special = special};
}

/* Appends the well-formed part of p[0, n) with U+FFFD for each bad subpart; returns how many bytes
 * at the end belong to a character that is not finished. */
static size_t emit(const char *p, size_t n, struct buf *out)
{
    size_t i = 0;
    while (i < n) {
        size_t good = unicode_valid(p + i, n - i);
        buf_append(out, p + i, good);
        i += good;
        if (i == n)
            break;
        uint32_t cp;
        size_t len;
        if (unicode_next(p + i, n - i, &cp, &len) == UNICODE_PART)
            return len;
        buf_append(out, REPLACEMENT, 3);
        i += len;
    }
    return 0;
}

void detok_feed(struct detok *d, int32_t id, struct buf *out)
{
    if (!d->special && tokenizer_hidden(d->tok, id))
        return;
    struct token_text piece = tokenizer_piece(d->tok, id, !d->any);
    d->any = true;
    const char *p = piece.p;
    size_t n = piece.n;
    /* Finish the held character byte by byte: it takes at most three, and a byte that does not fit
     * makes what is held bad and starts afresh. */
    while (d->n_held && n) {
        char joined[5];
        memcpy(joined, d->held, d->n_held);
        joined[d->n_held] = *p++;
        n--;
        size_t all = d->n_held + 1u, left = emit(joined, all, out);
        ASSERT(left < sizeof d->held);
        memcpy(d->held, joined + all - left, left);
        d->n_held = (uint8_t)left;
    }
    if (n) {
        size_t left = emit(p, n, out);
        ASSERT(left < sizeof d->held);
        memcpy(d->held, p + n - left, left);
        d->n_held = (uint8_t)left;
    }
}

void detok_flush(struct detok *d, struct buf *out)
{
    (void)out;
    d->n_held = 0;
}
