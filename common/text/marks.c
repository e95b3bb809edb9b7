/* marks: see marks.h.
 *
 * What is held is always the beginning of at least one mark. A byte that does not fit lets go of
 * the first held byte and tries again with the rest, so a mark that begins inside a false start is
 * found. Marks are few and short: comparing them one by one is cheaper than an automaton. */
#include "common/text/marks.h"

#include <string.h>

#include "common/base/assert.h"

void marks_add(struct marks *m, const char *text)
{
    if (!text)
        return;
    size_t n = strlen(text);
    ASSERT(m->n < MARKS_MAX && n > 0 && n <= MARKS_LEN);
    m->text[m->n] = text;
    m->len[m->n++] = (uint8_t)n;
}

/* The mark that is held in full, -1: what is held may become one, -2: it cannot. */
static int look(const struct marks *m)
{
    int found = -2;
    for (int i = 0; i < m->n; i++) {
        if (m->len[i] < m->n_held || memcmp(m->text[i], m->held, m->n_held) != 0)
            continue;
        if (m->len[i] == m->n_held)
            return i;
        found = -1;
    }
    return found;
}

int marks_push(struct marks *m, char c, char *out, size_t *n)
{
    *n = 0;
    m->held[m->n_held++] = c;
    while (m->n_held) {
        int found = look(m);
        if (found == -1)
            return -1;
        if (found >= 0) {
            m->n_held = 0;
            return found;
        }
        out[(*n)++] = m->held[0];
        memmove(m->held, m->held + 1, --m->n_held);
    }
    return -1;
}

size_t marks_end(struct marks *m, char *out)
{
    size_t n = m->n_held;
    memcpy(out, m->held, n);
    m->n_held = 0;
    return n;
}
