/* special: sorted texts, narrowed byte by byte; see special.h.
 *
 * At a place whose byte starts some text, the range of sorted entries that agree with the text so
 * far shrinks with each byte (two binary searches), so a place costs at most the length of the
 * longest entry, however many share a beginning. An entry that ends where the search stands is the
 * first of its range, because it sorts before everything it is a prefix of. */
#include "common/text/special.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/text/unicode.h"

static int compare_entries(const void *a, const void *b)
{
    const struct special_entry *x = a, *y = b;
    size_t n = x->n < y->n ? x->n : y->n;
    int c = memcmp(x->p, y->p, n);
    if (c)
        return c;
    if (x->n != y->n)
        return x->n < y->n ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static bool same_text(const struct special_entry *x, const struct special_entry *y)
{
    return x->n == y->n && memcmp(x->p, y->p, x->n) == 0;
}

int special_init(struct special *s, const struct special_entry *entries, size_t n)
{
    *s = (struct special){0};
    s->entries = mem_array(n, sizeof *entries);
    if (!s->entries)
        return STATUS_NOMEM;
    if (n)
        memcpy(s->entries, entries, n * sizeof *entries);
    qsort(s->entries, n, sizeof *entries, compare_entries);
    for (size_t i = 0; i < n; i++)
        if (s->n == 0 || !same_text(&s->entries[s->n - 1], &s->entries[i]))
            s->entries[s->n++] = s->entries[i];
    for (size_t i = 0; i < s->n; i++)
        s->bucket[(uint8_t)s->entries[i].p[0] + 1]++;
    for (size_t i = 1; i <= 256; i++)
        s->bucket[i] += s->bucket[i - 1];
    return STATUS_OK;
}

void special_fini(struct special *s)
{
    free(s->entries);
    *s = (struct special){0};
}

/* First entry in [low, high), all longer than depth, whose byte at depth is at least c. */
static size_t lower(const struct special *s, size_t low, size_t high, size_t depth, unsigned c)
{
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if ((uint8_t)s->entries[mid].p[depth] < c)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

int32_t special_lookup(const struct special *s, const char *p, size_t n)
{
    struct special_entry key = {.p = p, .n = (uint32_t)n, .id = 0};
    if (n == 0 || n > UINT32_MAX)
        return -1;
    size_t low = s->bucket[(uint8_t)p[0]], high = s->bucket[(uint8_t)p[0] + 1];
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (same_text(&s->entries[mid], &key))
            return s->entries[mid].id;
        if (compare_entries(&s->entries[mid], &key) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return -1;
}

static bool word_at(const char *text, size_t at, size_t n)
{
    uint32_t cp;
    size_t len;
    return at < n && unicode_next(text + at, n - at, &cp, &len) == UNICODE_CHAR &&
           unicode_is_word(cp);
}

static bool word_before(const char *text, size_t at)
{
    size_t back = 0;
    while (back < 4 && back < at && (text[at - back - 1] & 0xc0) == 0x80)
        back++;
    return back < at && word_at(text, at - back - 1, at);
}

static bool fits(const struct special_entry *e, const char *text, size_t at, size_t n,
                 bool control_until, size_t until)
{
    if ((e->flags & SPECIAL_CONTROL) && (!control_until || at + e->n > until))
        return false;
    if (e->flags & SPECIAL_WORD)
        return !word_before(text, at) && !word_at(text, at + e->n, n);
    return true;
}

static const struct special_entry *longest_at(const struct special *s, const char *text, size_t at,
                                              size_t n, bool control, size_t until)
{
    uint8_t first = (uint8_t)text[at];
    size_t low = s->bucket[first], high = s->bucket[first + 1];
    const struct special_entry *best = NULL;
    for (size_t depth = 1; low < high; depth++) {
        if (s->entries[low].n == depth) {
            if (fits(&s->entries[low], text, at, n, control, until))
                best = &s->entries[low];
            low++;
        }
        if (at + depth == n)
            break;
        unsigned c = (uint8_t)text[at + depth];
        low = lower(s, low, high, depth, c);
        high = lower(s, low, high, depth, c + 1);
    }
    return best;
}

const struct special_entry *special_find(const struct special *s, const char *text, size_t from,
                                         size_t n, const struct token_range *ranges,
                                         size_t n_ranges, size_t *range, size_t *begin)
{
    if (s->n == 0)
        return NULL;
    for (size_t at = from; at < n; at++) {
        uint8_t first = (uint8_t)text[at];
        if (s->bucket[first] == s->bucket[first + 1])
            continue;
        while (*range < n_ranges && ranges[*range].end <= at)
            ++*range;
        bool control = *range < n_ranges && ranges[*range].begin <= at;
        const struct special_entry *e =
            longest_at(s, text, at, n, control, control ? ranges[*range].end : 0);
        if (e) {
            *begin = at;
            return e;
        }
    }
    return NULL;
}
