/* unicode: UTF-8 and normalisation; see unicode.h.
 *
 * Decoding follows the table of well-formed byte sequences (Unicode 15, table 3-7): the second byte
 * decides about overlong forms, surrogates and values above U+10FFFF, so a bad sequence is known at
 * its first wrong byte. That is what makes "one U+FFFD per maximal subpart" fall out by itself.
 *
 * Form C is built from utf8proc's single-character decomposition and its composition. The step
 * between them, sorting combining marks by class, is done here: utf8proc sorts by exchanging
 * neighbours, which takes quadratic time when a hostile text alternates two classes. */
#include "common/text/unicode.h"

#include <string.h>
#include <utf8proc.h>

#include "common/base/mem.h"

enum unicode_step unicode_next(const char *p, size_t n, uint32_t *cp, size_t *len)
{
    const uint8_t *s = (const uint8_t *)p;
    uint8_t lead = s[0];
    *len = 1;
    if (lead < 0x80) {
        *cp = lead;
        return UNICODE_CHAR;
    }
    if (lead < 0xc2 || lead > 0xf4)
        return UNICODE_BAD;
    size_t want = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    uint8_t low = 0x80, high = 0xbf; /* what the second byte may be */
    if (lead == 0xe0)
        low = 0xa0;
    else if (lead == 0xed)
        high = 0x9f;
    else if (lead == 0xf0)
        low = 0x90;
    else if (lead == 0xf4)
        high = 0x8f;
    uint32_t value = lead & (0x7fu >> want);
    for (size_t i = 1; i < want; i++) {
        if (i == n) {
            *len = n;
            return UNICODE_PART;
        }
        if (s[i] < low || s[i] > high) {
            *len = i;
            return UNICODE_BAD;
        }
        value = value << 6 | (s[i] & 0x3fu);
        low = 0x80;
        high = 0xbf;
    }
    *cp = value;
    *len = want;
    return UNICODE_CHAR;
}

/* Bytes of the ASCII prefix, eight at a time and so perhaps up to 7 too few. */
static size_t ascii_prefix(const char *p, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint64_t word;
        memcpy(&word, p + i, 8);
        if (word & 0x8080808080808080u)
            break;
    }
    return i;
}

size_t unicode_valid(const char *p, size_t n)
{
    size_t i = 0;
    while (i < n) {
        i += ascii_prefix(p + i, n - i);
        uint32_t cp;
        size_t len;
        for (size_t stop = i + 8; i < n && i < stop; i += len)
            if (unicode_next(p + i, n - i, &cp, &len) != UNICODE_CHAR)
                return i;
    }
    return i;
}

size_t unicode_put(uint32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xc0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xe0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        out[2] = (char)(0x80 | (cp & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3f));
    out[3] = (char)(0x80 | (cp & 0x3f));
    return 4;
}

bool unicode_is_space(uint32_t cp)
{
    return (cp >= 0x09 && cp <= 0x0d) || cp == 0x20 || cp == 0x85 || cp == 0xa0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 || cp == 0x202f ||
           cp == 0x205f || cp == 0x3000;
}

bool unicode_is_word(uint32_t cp)
{
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        return false;
    }
}

bool unicode_nfc_trivial(const char *p, size_t n)
{
    /* Below U+0300 nothing combines with what precedes it and every character is its own form C:
     * lead bytes up to 0xcb. CJK ideographs (U+4E00 to U+9FFF: lead bytes 0xe4, from second byte
     * 0xb8, to 0xe9) are as inert and common enough to be worth a look. */
    const uint8_t *s = (const uint8_t *)p;
    size_t i = 0;
    while (i < n) {
        i += ascii_prefix(p + i, n - i);
        for (size_t stop = i + 8; i < n && i < stop;) {
            uint8_t c = s[i];
            if (c <= 0xcb)
                i++;
            else if ((c >= 0xe5 && c <= 0xe9) || (c == 0xe4 && i + 1 < n && s[i + 1] >= 0xb8))
                i += 3;
            else
                return false;
        }
    }
    return true;
}

static int combining_class(utf8proc_int32_t cp)
{
    return utf8proc_get_property(cp)->combining_class;
}

/* Stable merge sort of marks by combining class; tmp has room for n. Bottom-up: no recursion. */
static void sort_marks(utf8proc_int32_t *cps, utf8proc_int32_t *tmp, size_t n)
{
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t at = 0; at < n; at += 2 * width) {
            size_t mid = at + width < n ? at + width : n;
            size_t end = mid + width < n ? mid + width : n;
            size_t left = at, right = mid, k = at;
            while (left < mid || right < end) {
                bool take_left = right == end || (left < mid && combining_class(cps[left]) <=
                                                                    combining_class(cps[right]));
                tmp[k++] = take_left ? cps[left++] : cps[right++];
            }
        }
        memcpy(cps, tmp, n * sizeof *cps);
    }
}

/* Canonical order: every maximal run of characters with a class above 0 gets sorted. */
static void order_marks(utf8proc_int32_t *cps, utf8proc_int32_t *tmp, size_t n)
{
    for (size_t i = 0; i < n;) {
        if (combining_class(cps[i]) == 0) {
            i++;
            continue;
        }
        size_t end = i + 1;
        bool sorted = true;
        for (; end < n && combining_class(cps[end]) != 0; end++)
            sorted = sorted && combining_class(cps[end - 1]) <= combining_class(cps[end]);
        if (!sorted)
            sort_marks(cps + i, tmp, end - i);
        i = end;
    }
}

/* Code points of one span, and room for as many again while they are sorted. */
struct span {
    utf8proc_int32_t *cps;
    size_t cap;
};

static int nfc_span(struct span *s, const char *p, size_t n, struct buf *out)
{
    /* A character decomposes canonically into at most four (Unicode's stability promise), and only
     * those of two bytes or more decompose at all: 2n + 4 is enough. */
    size_t want = 2 * n + 4, count = 0;
    if (want > s->cap) {
        utf8proc_int32_t *cps = mem_resize(s->cps, 2 * want, sizeof *cps);
        if (!cps)
            return STATUS_NOMEM;
        s->cps = cps;
        s->cap = want;
    }
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t cp;
        int boundary = 0;
        if (unicode_next(p + i, n - i, &cp, &len) != UNICODE_CHAR)
            return STATUS_INVALID;
        utf8proc_ssize_t room = (utf8proc_ssize_t)(s->cap - count), got;
        got = utf8proc_decompose_char((utf8proc_int32_t)cp, s->cps + count, room,
                                      UTF8PROC_DECOMPOSE, &boundary);
        if (got < 0 || got > room)
            return STATUS_INTERNAL;
        count += (size_t)got;
    }
    order_marks(s->cps, s->cps + s->cap, count);
    utf8proc_ssize_t composed = utf8proc_normalize_utf32(s->cps, (utf8proc_ssize_t)count,
                                                         UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    if (composed < 0)
        return STATUS_INTERNAL;
    for (utf8proc_ssize_t i = 0; i < composed; i++) {
        char bytes[4];
        buf_append(out, bytes, unicode_put((uint32_t)s->cps[i], bytes));
    }
    return STATUS_OK;
}

int unicode_nfc(const char *p, size_t n, struct buf *out)
{
    /* A span is one character below U+0300, which may take marks, and all that follow it up to the
     * next such character. Nothing composes or reorders across the ends of a span. */
    struct span work = {0};
    int rc = STATUS_OK;
    const uint8_t *s = (const uint8_t *)p;
    size_t copied = 0, i = 0;
    while (rc == STATUS_OK) {
        while (i < n && s[i] <= 0xcb)
            i++;
        if (i == n)
            break;
        size_t begin = i;
        if (begin > copied) /* back over the character before */
            begin -= s[begin - 1] >= 0x80 ? 2 : 1;
        while (i < n && (s[i] > 0xcb || (s[i] & 0xc0) == 0x80))
            i++;
        buf_append(out, p + copied, begin - copied);
        rc = nfc_span(&work, p + begin, i - begin, out);
        copied = i;
    }
    free(work.cps);
    if (rc != STATUS_OK)
        return rc;
    buf_append(out, p + copied, n - copied);
    return buf_ok(out) ? STATUS_OK : STATUS_NOMEM;
}
