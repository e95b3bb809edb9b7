/* marks: fixed strings ("<think>", "</tool_call>") in a text that comes byte by byte.
 *
 * Only what may still become a mark is held back. A mark counts as soon as it is complete, so no
 * mark of a set may be the beginning of another. What comes out depends on the text alone, never on
 * how it was cut into pieces. */
#ifndef BATON_TEXT_MARKS_H
#define BATON_TEXT_MARKS_H

#include <stddef.h>
#include <stdint.h>

#define MARKS_LEN 64 /* bytes of a mark at most */
#define MARKS_MAX 16

/* Zero it first, then add the marks. */
struct marks {
    const char *text[MARKS_MAX]; /* loans */
    uint8_t len[MARKS_MAX];
    uint8_t n, n_held;
    char held[MARKS_LEN];
};
/* NULL is ignored. */
void marks_add(struct marks *m, const char *text);
/* Takes one byte. Returns the number of the mark that it completes, or -1. In any case the *n bytes
 * at out (room for MARKS_LEN) turned out to be plain text, before the mark. */
int marks_push(struct marks *m, char c, char *out, size_t *n);
/* The text has ended: what is held is plain text. Returns its length. */
size_t marks_end(struct marks *m, char *out);

#endif
