/* jinja_str: strings that know which of their bytes the template itself wrote.
 *
 * Most strings have one origin and no segment list. A mixed string lists its stretches; slicing
 * clips the list, joining appends to it. Where an operation cannot say which input a byte came from
 * the result counts as the context's.
 *
 * Concatenation leaves spare room behind its result (struct jbuf): when the left operand is the end
 * of its buffer, the right one is appended in place. The left string stays valid, since it covers
 * only its own n bytes; its last segment may have grown in the shared list and is read clipped. */
#include "common/text/jinja_str.h"

#include "common/base/hash.h"

struct jstr *jstr_loan(struct jrt *rt, const char *p, size_t n, bool trusted)
{
    struct jstr *s = jinja_alloc(rt, sizeof *s);
    s->p = p;
    s->n = n;
    s->chars = n <= 1 ? n : JSTR_UNKNOWN;
    s->trusted = trusted || n == 0;
    return s;
}

struct jstr *jstr_literal(struct jrt *rt, const char *text)
{
    return jstr_loan(rt, text, strlen(text), true);
}

static size_t seg_end(const struct jstr *s, size_t i)
{
    return s->segs[i].end < s->n ? s->segs[i].end : s->n;
}

/* The stretch that holds the byte at off. */
static size_t seg_at(const struct jstr *s, size_t off)
{
    size_t lo = 0, hi = s->n_segs - 1;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (s->segs[mid].end > off)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

bool jstr_trusted_at(const struct jstr *s, size_t off)
{
    return s->n_segs == 0 ? s->trusted : s->segs[seg_at(s, off)].trusted;
}

bool jstr_trusted(const struct jstr *s)
{
    return s->n_segs == 0 && s->trusted;
}

/* -- building -- */

static void buf_grow(struct jrt *rt, struct jbuf *b, size_t n)
{
    size_t need;
    if (!mem_add(b->n, n, &need))
        jinja_fail(rt, STATUS_LIMIT, "needs more memory than allowed");
    if (need <= b->cap)
        return;
    size_t cap = b->cap ? 2 * b->cap : 64;
    if (cap < need)
        cap = need;
    char *p = jinja_alloc(rt, cap);
    if (b->n)
        memcpy(p, b->p, b->n);
    b->p = p;
    b->cap = cap;
}

static void buf_segment(struct jrt *rt, struct jbuf *b, size_t end, bool trusted)
{
    if (b->n_segs && b->segs[b->n_segs - 1].trusted == trusted) {
        b->segs[b->n_segs - 1].end = end;
        return;
    }
    if (b->n_segs == b->cap_segs) {
        size_t cap = b->cap_segs ? 2 * b->cap_segs : 4;
        struct jseg *p = jinja_array(rt, cap, sizeof *p);
        if (b->n_segs)
            memcpy(p, b->segs, b->n_segs * sizeof *p);
        b->segs = p;
        b->cap_segs = cap;
    }
    b->segs[b->n_segs++] = (struct jseg){end, trusted};
}

void jbuf_bytes(struct jrt *rt, struct jbuf *b, const char *p, size_t n, bool trusted)
{
    if (n == 0)
        return;
    jinja_step(rt, n / 256);
    buf_grow(rt, b, n);
    memcpy(b->p + b->n, p, n);
    b->n += n;
    buf_segment(rt, b, b->n, trusted);
}

void jbuf_puts(struct jrt *rt, struct jbuf *b, const char *s, bool trusted)
{
    jbuf_bytes(rt, b, s, strlen(s), trusted);
}

void jbuf_code(struct jrt *rt, struct jbuf *b, int32_t code, bool trusted)
{
    char u[4];
    jbuf_bytes(rt, b, u, jutf8_encode(code, u), trusted);
}

void jbuf_sub(struct jrt *rt, struct jbuf *b, const struct jstr *s, size_t from, size_t to)
{
    if (from >= to)
        return;
    if (s->n_segs == 0) {
        jbuf_bytes(rt, b, s->p + from, to - from, s->trusted);
        return;
    }
    for (size_t i = seg_at(s, from); from < to; i++) {
        size_t end = seg_end(s, i) < to ? seg_end(s, i) : to;
        jbuf_bytes(rt, b, s->p + from, end - from, s->segs[i].trusted);
        from = end;
    }
}

void jbuf_str(struct jrt *rt, struct jbuf *b, const struct jstr *s)
{
    jbuf_sub(rt, b, s, 0, s->n);
}

static struct jstr *buf_string(struct jrt *rt, const struct jbuf *b)
{
    struct jstr *s = jstr_loan(rt, b->n ? b->p : "", b->n, b->n_segs == 0 || b->segs[0].trusted);
    if (b->n_segs > 1) {
        s->segs = b->segs;
        s->n_segs = b->n_segs;
    }
    return s;
}

struct jstr *jbuf_finish(struct jrt *rt, struct jbuf *b)
{
    return buf_string(rt, b);
}

/* -- whole strings -- */

struct jstr *jstr_sub(struct jrt *rt, const struct jstr *s, size_t from, size_t to)
{
    if (from >= to)
        from = to = 0;
    jinja_step(rt, (to - from) / 256); /* for the counting of characters that may follow */
    struct jstr *r = jstr_loan(rt, s->p + from, to - from, s->trusted);
    r->markup = s->markup;
    if (s->chars == s->n)
        r->chars = r->n;
    if (s->n_segs == 0 || r->n == 0)
        return r;
    size_t first = seg_at(s, from), last = seg_at(s, to - 1);
    r->trusted = s->segs[first].trusted;
    if (first == last)
        return r;
    struct jseg *segs = jinja_array(rt, last - first + 1, sizeof *segs);
    for (size_t i = first; i <= last; i++)
        segs[i - first] = (struct jseg){seg_end(s, i) - from, s->segs[i].trusted};
    r->segs = segs;
    r->n_segs = last - first + 1;
    return r;
}

struct jstr *jstr_concat(struct jrt *rt, struct jstr *a, struct jstr *b)
{
    if (b->n == 0 && !a->markup)
        return a;
    if (a->n == 0 && !b->markup)
        return b;
    struct jbuf *t = a->tail;
    if (!t || t->p != a->p || t->n != a->n) {
        bool again = t != NULL; /* a grown string that was appended to elsewhere */
        t = jinja_alloc(rt, sizeof *t);
        buf_grow(rt, t, (again ? 2 * a->n : a->n) + b->n);
        jbuf_str(rt, t, a);
    }
    jbuf_str(rt, t, b);
    struct jstr *s = buf_string(rt, t);
    s->tail = t;
    if (a->chars != JSTR_UNKNOWN && b->chars != JSTR_UNKNOWN)
        s->chars = a->chars + b->chars;
    return s;
}

struct jstr *jstr_repeat(struct jrt *rt, const struct jstr *s, int64_t times)
{
    struct jbuf b = {0};
    size_t total;
    if (times <= 0 || s->n == 0)
        return jstr_sub(rt, s, 0, 0);
    if (!mem_mul(s->n, (size_t)times, &total))
        jinja_fail(rt, STATUS_LIMIT, "needs more memory than allowed");
    buf_grow(rt, &b, total);
    for (int64_t i = 0; i < times; i++) {
        jinja_step(rt, 1);
        jbuf_str(rt, &b, s);
    }
    struct jstr *r = jbuf_finish(rt, &b);
    r->markup = s->markup;
    return r;
}

struct jstr *jstr_mark(struct jrt *rt, struct jstr *s, bool markup)
{
    if (s->markup == markup)
        return s;
    struct jstr *r = jinja_alloc(rt, sizeof *r);
    *r = *s;
    r->markup = markup;
    return r;
}

struct jstr *jstr_escape(struct jrt *rt, struct jstr *s)
{
    if (s->markup)
        return s;
    struct jbuf b = {0};
    size_t from = 0;
    jinja_step(rt, s->n / 16);
    for (size_t i = 0; i < s->n; i++) {
        const char *rep = s->p[i] == '&'    ? "&amp;"
                          : s->p[i] == '<'  ? "&lt;"
                          : s->p[i] == '>'  ? "&gt;"
                          : s->p[i] == '\'' ? "&#39;"
                          : s->p[i] == '"'  ? "&#34;"
                                            : NULL;
        if (!rep)
            continue;
        jbuf_sub(rt, &b, s, from, i);
        jbuf_puts(rt, &b, rep, jstr_trusted_at(s, i));
        from = i + 1;
    }
    if (from == 0)
        return jstr_mark(rt, s, true);
    jbuf_sub(rt, &b, s, from, s->n);
    struct jstr *r = jbuf_finish(rt, &b);
    r->markup = true;
    return r;
}

bool jstr_equal(const struct jstr *a, const struct jstr *b)
{
    return a == b || (a->n == b->n && memcmp(a->p, b->p, a->n) == 0);
}

bool jstr_is(const struct jstr *s, const char *text)
{
    return s->n == strlen(text) && memcmp(s->p, text, s->n) == 0;
}

/* The order of UTF-8 is the order of its code points. */
int jstr_compare(const struct jstr *a, const struct jstr *b)
{
    int c = memcmp(a->p, b->p, a->n < b->n ? a->n : b->n);
    return c ? c : a->n < b->n ? -1 : a->n > b->n;
}

uint32_t jstr_hash(struct jstr *s)
{
    if (s->hash == 0) {
        uint64_t h = hash64(s->p, s->n, 0x62617430);
        s->hash = (uint32_t)(h ^ h >> 32) | 1;
    }
    return s->hash;
}

size_t jstr_chars(struct jrt *rt, struct jstr *s)
{
    if (s->chars == JSTR_UNKNOWN) {
        size_t n = 0;
        jinja_step(rt, s->n / 256);
        for (size_t i = 0; i < s->n; i++)
            n += ((unsigned char)s->p[i] & 0xc0) != 0x80;
        s->chars = n;
    }
    return s->chars;
}

struct jstr *jstr_freeze(struct jrt *rt, struct jstr *s)
{
    jstr_hash(s);
    jstr_chars(rt, s);
    s->tail = NULL;
    return s;
}

size_t jstr_offset(struct jrt *rt, struct jstr *s, size_t i)
{
    size_t n = jstr_chars(rt, s);
    if (n == s->n)
        return i;
    if (i >= n)
        return s->n;
    size_t off = 0;
    jinja_step(rt, i / 32);
    for (; i > 0; i--)
        do
            off++;
        while (((unsigned char)s->p[off] & 0xc0) == 0x80);
    return off;
}

size_t jstr_find(struct jrt *rt, const struct jstr *s, const struct jstr *needle, size_t from,
                 size_t to)
{
    if (from > to || to > s->n || to - from < needle->n)
        return SIZE_MAX;
    if (needle->n == 0)
        return from;
    const char *p = needle->n == 1 ? memchr(s->p + from, needle->p[0], to - from)
                                   : memmem(s->p + from, to - from, needle->p, needle->n);
    size_t at = p ? (size_t)(p - s->p) : SIZE_MAX;
    jinja_step(rt, ((p ? at : to) - from) / 64);
    return at;
}

size_t jstr_rfind(struct jrt *rt, const struct jstr *s, const struct jstr *needle, size_t from,
                  size_t to)
{
    if (from > to || to > s->n || to - from < needle->n)
        return SIZE_MAX;
    for (size_t at = to - needle->n;; at--) {
        jinja_step(rt, 1 + needle->n / 256);
        if (memcmp(s->p + at, needle->p, needle->n) == 0)
            return at;
        if (at == from)
            return SIZE_MAX;
    }
}

struct jstr *jstr_case(struct jrt *rt, const struct jstr *s, enum jcase kind)
{
    struct jbuf b = {0};
    jinja_step(rt, s->n / 8);
    for (size_t i = 0; i < s->n;)
        i += jbuf_case(rt, &b, s, i, kind);
    struct jstr *r = jbuf_finish(rt, &b);
    r->markup = s->markup;
    return r;
}

static bool in_set(const struct jstr *chars, const char *p, size_t n)
{
    int32_t c;
    if (!chars) {
        jutf8_decode(p, n, &c);
        return jchar_space(c);
    }
    return memmem(chars->p, chars->n, p, n) != NULL;
}

struct jstr *jstr_strip(struct jrt *rt, const struct jstr *s, const struct jstr *chars,
                        enum jstrip sides)
{
    size_t from = 0, to = s->n;
    while ((sides & JSTRIP_LEFT) && from < to) {
        int32_t c;
        unsigned n = jutf8_decode(s->p + from, to - from, &c);
        if (!in_set(chars, s->p + from, n))
            break;
        jinja_step(rt, chars ? 1 + chars->n / 64 : 0);
        from += n;
    }
    while ((sides & JSTRIP_RIGHT) && to > from) {
        size_t at = to - 1;
        while (((unsigned char)s->p[at] & 0xc0) == 0x80)
            at--;
        if (!in_set(chars, s->p + at, to - at))
            break;
        jinja_step(rt, chars ? 1 + chars->n / 64 : 0);
        to = at;
    }
    jinja_step(rt, (s->n - (to - from)) / 16);
    return jstr_sub(rt, s, from, to);
}

struct jstr *jstr_replace(struct jrt *rt, const struct jstr *s, const struct jstr *old,
                          const struct jstr *with, int64_t count)
{
    struct jbuf b = {0};
    size_t from = 0;
    if (old->n == 0) { /* between all characters, and at both ends */
        for (size_t at = 0; count != 0; count--) {
            jinja_step(rt, 1);
            jbuf_str(rt, &b, with);
            if (at == s->n)
                break;
            int32_t c;
            size_t n = jutf8_decode(s->p + at, s->n - at, &c);
            jbuf_sub(rt, &b, s, at, at + n);
            from = at += n;
        }
    }
    while (old->n > 0 && count != 0) {
        size_t at = jstr_find(rt, s, old, from, s->n);
        if (at == SIZE_MAX)
            break;
        jinja_step(rt, 1);
        jbuf_sub(rt, &b, s, from, at);
        jbuf_str(rt, &b, with);
        from = at + old->n;
        count--;
    }
    jbuf_sub(rt, &b, s, from, s->n);
    struct jstr *r = jbuf_finish(rt, &b);
    r->markup = s->markup;
    return r;
}

struct jlist *jstr_splitlines(struct jrt *rt, const struct jstr *s, bool keep_ends)
{
    struct jlist *l = jlist_new(rt, 0);
    size_t from = 0;
    jinja_step(rt, s->n / 16);
    for (size_t i = 0; i < s->n;) {
        int32_t c;
        size_t n = jutf8_decode(s->p + i, s->n - i, &c);
        if (!jchar_line_end(c)) {
            i += n;
            continue;
        }
        if (c == '\r' && i + 1 < s->n && s->p[i + 1] == '\n')
            n = 2;
        jlist_push(rt, l, jstring(jstr_sub(rt, s, from, keep_ends ? i + n : i)));
        from = i += n;
    }
    if (from < s->n)
        jlist_push(rt, l, jstring(jstr_sub(rt, s, from, s->n)));
    return l;
}
