/* known: the fields that a request may have beyond those that are understood: what does not change
 * an answer is checked for its type, what would change it and is not provided is refused, and the
 * rest is counted. */
#ifndef BATON_ROUTERD_KNOWN_H
#define BATON_ROUTERD_KNOWN_H

#include "routerd/fields.h"

enum known_kind { KNOWN_CHAT = 1, KNOWN_COMPLETION = 2 };
/* kind: one of them. */
int known_check(const json_t *request, enum known_kind kind, struct api_error *e) WARN_UNUSED;
/* Number of members that are neither understood nor known; the first one's name goes to `name`. */
uint32_t known_unknown(const json_t *request, enum known_kind kind, char *name, size_t size);

/* Whether the value is a string, and one of the words, which are separated by one blank each. */
bool known_word(const json_t *v, const char *words);

#endif
