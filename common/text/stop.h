/* stop: stop strings over a stream of text.
 *
 * Only the longest suffix that is a proper prefix of a stop string is held back. The match that is
 * complete first wins; of those complete at the same byte the one that starts first, since text
 * ends at its start. So the result does not depend on how the text comes in pieces. */
#ifndef BATON_TEXT_STOP_H
#define BATON_TEXT_STOP_H

#include "common/base/buf.h"
#include "common/base/status.h"

struct stop;
/* strings: n NUL-free strings of len bytes, none empty; copied. */
int stop_create(const char *const *strings, const size_t *len, size_t n,
                struct stop **out) WARN_UNUSED;
void stop_destroy(struct stop *s);
/* Appends to out what of text may be shown. Returns the index of the stop string that matched (all
 * text before it has been appended), or -1. After a match nothing more is shown. */
int stop_feed(struct stop *s, const char *text, size_t n, struct buf *out);
/* End of the stream: appends the tail that was held back. */
void stop_flush(struct stop *s, struct buf *out);

#endif
