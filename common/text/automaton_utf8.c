/* automaton_utf8: automata over code points become automata over the bytes that are written.
 *
 * A range of code points is cut where the number of bytes changes, and then so that each byte of
 * the encoding runs through a range of its own (the well-known cut at multiples of 64). Surrogates
 * have no encoding: a range never contains them. In a JSON string the quote, the backslash and
 * control characters are written as escapes. */
#include <string.h>

#include "common/base/assert.h"
#include "common/text/automaton.h"
#include "common/text/unicode.h"

#define SURROGATE_FIRST 0xd800u
#define SURROGATE_LAST  0xdfffu

/* One sequence of byte ranges. */
static void add_sequence(struct automaton *a, uint32_t from, const uint8_t *lo, const uint8_t *hi,
                         size_t n, uint32_t to)
{
    for (size_t i = 0; i < n && a->status == STATUS_OK; i++) {
        uint32_t next = i + 1 == n ? to : automaton_state(a);
        automaton_edge(a, from, lo[i], hi[i], next);
        from = next;
    }
}

/* A range all of whose characters have equally many bytes. */
static void add_even_range(struct automaton *a, uint32_t from, uint32_t lo, uint32_t hi, size_t len,
                           uint32_t to)
{
    for (size_t i = 1; i < len; i++) {
        uint32_t m = (1u << (6 * i)) - 1;
        if ((lo & ~m) == (hi & ~m))
            continue;
        if (lo & m) {
            add_even_range(a, from, lo, lo | m, len, to);
            add_even_range(a, from, (lo | m) + 1, hi, len, to);
            return;
        }
        if ((hi & m) != m) {
            add_even_range(a, from, lo, (hi & ~m) - 1, len, to);
            add_even_range(a, from, hi & ~m, hi, len, to);
            return;
        }
    }
    char first[4], last[4];
    unicode_put(lo, first);
    unicode_put(hi, last);
    add_sequence(a, from, (uint8_t *)first, (uint8_t *)last, len, to);
}

static void add_utf8(struct automaton *a, uint32_t from, uint32_t lo, uint32_t hi, uint32_t to)
{
    static const uint32_t last[] = {0x7f,           0x7ff,  SURROGATE_FIRST - 1,
                                    SURROGATE_LAST, 0xffff, UNICODE_MAX};
    static const uint8_t bytes[] = {1, 2, 3, 0, 3, 4};
    for (size_t i = 0; i < sizeof bytes && lo <= hi; i++) {
        uint32_t end = hi < last[i] ? hi : last[i];
        if (lo > end)
            continue;
        if (bytes[i])
            add_even_range(a, from, lo, end, bytes[i], to);
        lo = end + 1;
    }
}

/* The hexadecimal digit d, in both cases. */
static void add_hex(struct automaton *a, uint32_t from, uint32_t lo, uint32_t hi, uint32_t to)
{
    for (uint32_t d = lo; d <= hi; d++) {
        char lower = (char)(d < 10 ? '0' + d : 'a' + d - 10);
        automaton_edge(a, from, (uint8_t)lower, (uint8_t)lower, to);
        if (d >= 10)
            automaton_edge(a, from, (uint8_t)lower - 32u, (uint8_t)lower - 32u, to);
    }
}

static char short_escape(uint32_t cp)
{
    switch (cp) {
    case '"':
    case '\\':
        return (char)cp;
    case '\b':
        return 'b';
    case '\f':
        return 'f';
    case '\n':
        return 'n';
    case '\r':
        return 'r';
    case '\t':
        return 't';
    default:
        return 0;
    }
}

static void add_escaped(struct automaton *a, uint32_t from, uint32_t cp, uint32_t to)
{
    char c = short_escape(cp);
    uint32_t s = automaton_bytes(a, from, c ? "\\" : "\\u00", c ? 1 : 4);
    if (c) {
        automaton_edge(a, s, (uint8_t)c, (uint8_t)c, to);
    } else {
        uint32_t t = automaton_state(a);
        add_hex(a, s, cp >> 4, cp >> 4, t);
        add_hex(a, t, cp & 15, cp & 15, to);
    }
}

static void add_json(struct automaton *a, uint32_t from, uint32_t lo, uint32_t hi, uint32_t to)
{
    for (uint32_t cp = lo; cp <= hi && cp <= '\\' && a->status == STATUS_OK; cp++) {
        if (cp < 0x20 || cp == '"' || cp == '\\')
            add_escaped(a, from, cp, to);
        else
            automaton_edge(a, from, cp, cp, to);
    }
    if (hi > '\\')
        add_utf8(a, from, lo > '\\' ? lo : '\\' + 1, hi, to);
}

int automaton_lower(struct automaton *a, enum automaton_form form)
{
    struct automaton out;
    automaton_init(&out, a->budget);
    for (uint32_t i = 1; i < a->n; i++)
        automaton_state(&out);
    for (uint32_t i = 0; i < a->n && out.status == STATUS_OK; i++)
        out.final[i] = a->final[i];
    for (uint32_t i = 0; i < a->n_edges && out.status == STATUS_OK; i++) {
        const struct automaton_edge *x = &a->edges[i];
        if (x->lo > AUTOMATON_CHAR_MAX)
            automaton_edge(&out, x->from, x->lo, x->hi, x->to);
        else if (form == AUTOMATON_JSON)
            add_json(&out, x->from, x->lo, x->hi, x->to);
        else
            add_utf8(&out, x->from, x->lo, x->hi, x->to);
    }
    if (out.status == STATUS_OK)
        out.status = a->status;
    int rc = out.status;
    automaton_fini(a);
    *a = out;
    return rc == STATUS_OK ? automaton_minimise(a) : rc;
}

void automaton_json_char(struct automaton *a, uint32_t from, uint32_t to)
{
    add_utf8(a, from, 0x20, '"' - 1, to);
    add_utf8(a, from, '"' + 1, '\\' - 1, to);
    add_utf8(a, from, '\\' + 1, UNICODE_MAX, to);
    uint32_t escape = automaton_bytes(a, from, "\\", 1);
    for (const char *c = "\"\\/bfnrt"; *c; c++)
        automaton_edge(a, escape, (uint8_t)*c, (uint8_t)*c, to);
    /* \uXXXX: one unit that is no surrogate, or a pair of them */
    uint32_t u = automaton_bytes(a, escape, "u", 1), last[4];
    last[3] = to;
    for (int i = 2; i >= 0; i--) {
        last[i] = automaton_state(a);
        add_hex(a, last[i], 0, 15, last[i + 1]);
    }
    add_hex(a, u, 0, 12, last[0]);
    add_hex(a, u, 14, 15, last[0]);
    uint32_t d = automaton_state(a), high[2], low;
    add_hex(a, u, 13, 13, d);
    add_hex(a, d, 0, 7, last[1]);
    high[0] = automaton_state(a);
    high[1] = automaton_state(a);
    add_hex(a, d, 8, 11, high[0]);
    add_hex(a, high[0], 0, 15, high[1]);
    low = automaton_state(a);
    add_hex(a, high[1], 0, 15, low);
    low = automaton_bytes(a, low, "\\u", 2);
    d = automaton_state(a);
    add_hex(a, low, 13, 13, d);
    uint32_t dc = automaton_state(a);
    add_hex(a, d, 12, 15, dc);
    add_hex(a, dc, 0, 15, last[2]);
}
