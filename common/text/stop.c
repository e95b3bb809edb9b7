/* stop: stop strings by the failure function of Knuth, Morris and Pratt; see stop.h.
 *
 * Each string keeps its own state: how many of its bytes the text so far ends with. The largest of
 * these is what must be held back, and it is always the end of what is held already plus new text,
 * so the held bytes need no copy of their own: they are the first bytes of that string.
 * Strings are few (a request has four or so), so one automaton per string costs less memory than a
 * common one and as little time. Time is linear: a state falls at most as often as it has risen. */
#include "common/text/stop.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/mem.h"

struct stop_string {
    char *p;
    size_t n;
    size_t *fail; /* fail[k]: longest proper border of the first k bytes, k = 0 .. n */
    size_t state; /* bytes of it that the text ends with; less than n */
};
struct stop {
    struct stop_string *strings;
    size_t n;
    int matched; /* index, or -1 */
};

static int string_init(struct stop_string *s, const char *p, size_t n)
{
    s->p = mem_dup(p, n);
    s->fail = mem_array(n + 1, sizeof *s->fail);
    if (!s->p || !s->fail)
        return STATUS_NOMEM;
    s->n = n;
    size_t k = 0;
    for (size_t i = 1; i < n; i++) {
        while (k && s->p[i] != s->p[k])
            k = s->fail[k];
        if (s->p[i] == s->p[k])
            k++;
        s->fail[i + 1] = k;
    }
    return STATUS_OK;
}

int stop_create(const char *const *strings, const size_t *len, size_t n, struct stop **out)
{
    struct stop *s = mem_array(1, sizeof *s);
    if (!s)
        return STATUS_NOMEM;
    s->matched = -1;
    s->strings = mem_array(n, sizeof *s->strings);
    int rc = s->strings ? STATUS_OK : STATUS_NOMEM;
    for (size_t i = 0; i < n && rc == STATUS_OK; i++) {
        rc = len[i] ? string_init(&s->strings[i], strings[i], len[i]) : STATUS_INVALID;
        s->n = i + 1;
    }
    if (rc != STATUS_OK) {
        stop_destroy(s);
        return rc;
    }
    *out = s;
    return STATUS_OK;
}

void stop_destroy(struct stop *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n; i++) {
        free(s->strings[i].p);
        free(s->strings[i].fail);
    }
    free(s->strings);
    free(s);
}

/* The string that holds back most. NULL when nothing is held. */
static const struct stop_string *longest(const struct stop *s)
{
    const struct stop_string *best = NULL;
    for (size_t i = 0; i < s->n; i++)
        if (s->strings[i].state > (best ? best->state : 0))
            best = &s->strings[i];
    return best;
}

static void step(struct stop_string *s, char c)
{
    while (s->state && s->p[s->state] != c)
        s->state = s->fail[s->state];
    if (s->p[s->state] == c)
        s->state++;
}

/* Shows all but the last `keep` of the bytes held before (the beginning of held) and text[0, n). */
static void show(const char *held, size_t n_held, const char *text, size_t n, size_t keep,
                 struct buf *out)
{
    size_t all = n_held + n;
    ASSERT(keep <= all);
    size_t shown = all - keep, from_held = shown < n_held ? shown : n_held;
    buf_append(out, held, from_held);
    buf_append(out, text, shown - from_held);
}

int stop_feed(struct stop *s, const char *text, size_t n, struct buf *out)
{
    if (s->matched >= 0)
        return s->matched;
    const struct stop_string *before = longest(s);
    const char *held = before ? before->p : "";
    size_t n_held = before ? before->state : 0;
    for (size_t i = 0; i < n; i++) {
        size_t cut = 0;
        for (size_t k = 0; k < s->n; k++) {
            struct stop_string *string = &s->strings[k];
            step(string, text[i]);
            if (string->state == string->n && string->n > cut) {
                cut = string->n;
                s->matched = (int)k;
            }
        }
        if (cut) {
            show(held, n_held, text, i + 1, cut, out);
            return s->matched;
        }
    }
    const struct stop_string *after = longest(s);
    show(held, n_held, text, n, after ? after->state : 0, out);
    return -1;
}

void stop_flush(struct stop *s, struct buf *out)
{
    const struct stop_string *held = s->matched < 0 ? longest(s) : NULL;
    if (held)
        buf_append(out, held->p, held->state);
    for (size_t i = 0; i < s->n; i++)
        s->strings[i].state = 0;
}
