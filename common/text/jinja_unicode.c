/* jinja_unicode: UTF-8, character properties and case, as Python's str has them.
 *
 * Properties come from the Unicode categories. Full case mapping (ß to SS, ﬁ to FI) is derived from
 * full case folding, which utf8proc has: a lower- or title-case letter whose folding is several
 * characters is upper-cased by upper-casing those. A final sigma is the one context rule. */
#include <utf8proc.h>

#include "common/text/jinja_str.h"

unsigned jutf8_decode(const char *p, size_t n, int32_t *code)
{
    unsigned char c = (unsigned char)p[0];
    if (c < 0x80 || n < 2) {
        *code = c;
        return 1;
    }
    if (c < 0xe0 || n < 3) {
        *code = (c & 0x1f) << 6 | (p[1] & 0x3f);
        return 2;
    }
    if (c < 0xf0 || n < 4) {
        *code = (c & 0x0f) << 12 | (p[1] & 0x3f) << 6 | (p[2] & 0x3f);
        return 3;
    }
    *code = (c & 0x07) << 18 | (p[1] & 0x3f) << 12 | (p[2] & 0x3f) << 6 | (p[3] & 0x3f);
    return 4;
}

bool jutf8_valid(const char *p, size_t n)
{
    for (size_t i = 0; i < n;) {
        if ((unsigned char)p[i] < 0x80) {
            i++;
            continue;
        }
        size_t left = n - i;
        utf8proc_int32_t c;
        utf8proc_ssize_t len = utf8proc_iterate((const utf8proc_uint8_t *)p + i,
                                                (utf8proc_ssize_t)(left < 4 ? left : 4), &c);
        if (len <= 0)
            return false;
        i += (size_t)len;
    }
    return true;
}

unsigned jutf8_encode(int32_t code, char out[4])
{
    return (unsigned)utf8proc_encode_char(code, (utf8proc_uint8_t *)out);
}

static bool in_categories(int32_t c, unsigned mask)
{
    return mask >> utf8proc_category(c) & 1;
}
#define CAT(x) (1u << UTF8PROC_CATEGORY_##x)

bool jchar_space(int32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

bool jchar_line_end(int32_t c)
{
    return (c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
           c == 0x2029;
}

bool jchar_alpha(int32_t c)
{
    return in_categories(c, CAT(LU) | CAT(LL) | CAT(LT) | CAT(LM) | CAT(LO));
}

bool jchar_decimal(int32_t c)
{
    return in_categories(c, CAT(ND));
}

bool jchar_digit(int32_t c)
{
    return jchar_decimal(c) || c == 0xb2 || c == 0xb3 || c == 0xb9 ||
           (c >= 0x2070 && c <= 0x2079) || (c >= 0x2080 && c <= 0x2089) ||
           (c >= 0x2460 && c <= 0x2468);
}

bool jchar_numeric(int32_t c)
{
    return in_categories(c, CAT(ND) | CAT(NL) | CAT(NO));
}

bool jchar_upper(int32_t c)
{
    return utf8proc_isupper(c) || (c >= 0x2160 && c <= 0x216f) || (c >= 0x24b6 && c <= 0x24cf);
}

bool jchar_lower(int32_t c)
{
    return utf8proc_islower(c) || c == 0xaa || c == 0xba;
}

bool jchar_title(int32_t c)
{
    return in_categories(c, CAT(LT));
}

bool jchar_cased(int32_t c)
{
    return jchar_upper(c) || jchar_lower(c) || jchar_title(c);
}

bool jchar_printable(int32_t c)
{
    if (c < 0x7f)
        return c >= 0x20;
    return !in_categories(c, CAT(CC) | CAT(CF) | CAT(CS) | CAT(CO) | CAT(CN) | CAT(ZL) | CAT(ZP) |
                                 CAT(ZS));
}

bool jchar_word(int32_t c)
{
    return c == '_' || jchar_alpha(c) || jchar_numeric(c);
}

bool jchar_name(int32_t c)
{
    if (c < 0x80)
        return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
               (c >= 'A' && c <= 'Z');
    return jchar_alpha(c) || in_categories(c, CAT(MN) | CAT(MC) | CAT(ND) | CAT(NL) | CAT(PC));
}

/* Does not end a word for the final sigma. */
static bool case_ignorable(int32_t c)
{
    return c == '\'' || c == '.' || c == ':' || c == '^' || c == '`' || c == 0xa8 || c == 0xad ||
           c == 0xb7 || c == 0x2019 || c == 0x2018 || c == 0x2024 || c == 0x2027 ||
           in_categories(c, CAT(MN) | CAT(ME) | CAT(CF) | CAT(LM) | CAT(SK));
}

static bool cased_before(const struct jstr *s, size_t off)
{
    while (off > 0) {
        size_t at = off - 1;
        while (((unsigned char)s->p[at] & 0xc0) == 0x80)
            at--;
        int32_t c;
        jutf8_decode(s->p + at, off - at, &c);
        if (!case_ignorable(c))
            return jchar_cased(c);
        off = at;
    }
    return false;
}

static bool cased_after(const struct jstr *s, size_t off)
{
    while (off < s->n) {
        int32_t c;
        off += jutf8_decode(s->p + off, s->n - off, &c);
        if (!case_ignorable(c))
            return jchar_cased(c);
    }
    return false;
}

/* The full folding of c into out; returns the number of characters. */
static int full_fold(int32_t c, int32_t out[8])
{
    int boundary = 0;
    utf8proc_ssize_t n = utf8proc_decompose_char(c, out, 8, UTF8PROC_CASEFOLD, &boundary);
    if (n < 1 || n > 8) {
        out[0] = c;
        return 1;
    }
    return (int)n;
}

static void put_upper(struct jrt *rt, struct jbuf *b, int32_t c, bool title, bool trusted)
{
    int32_t fold[8];
    if (c >= 0x80 && (utf8proc_islower(c) || jchar_title(c)) &&
        !(title && (jchar_title(c) || utf8proc_totitle(c) != c))) {
        int n = full_fold(c, fold);
        if (n > 1) {
            for (int i = 0; i < n; i++)
                jbuf_code(rt, b, title && i > 0 ? fold[i] : utf8proc_toupper(fold[i]), trusted);
            return;
        }
    }
    jbuf_code(rt, b, title ? utf8proc_totitle(c) : utf8proc_toupper(c), trusted);
}

unsigned jbuf_case(struct jrt *rt, struct jbuf *b, const struct jstr *s, size_t off,
                   enum jcase kind)
{
    int32_t c;
    unsigned n = jutf8_decode(s->p + off, s->n - off, &c);
    bool trusted = jstr_trusted_at(s, off);
    if (kind == JCASE_SWAP)
        kind = jchar_upper(c) ? JCASE_LOWER : JCASE_UPPER;
    if (c < 0x80) {
        char a = (char)c;
        if (kind == JCASE_LOWER || kind == JCASE_FOLD)
            a = (char)(c >= 'A' && c <= 'Z' ? c + 32 : c);
        else
            a = (char)(c >= 'a' && c <= 'z' ? c - 32 : c);
        jbuf_bytes(rt, b, &a, 1, trusted);
        return n;
    }
    int32_t fold[8];
    switch (kind) {
    case JCASE_UPPER:
    case JCASE_TITLE:
        put_upper(rt, b, c, kind == JCASE_TITLE, trusted);
        break;
    case JCASE_FOLD:
        for (int i = 0, m = full_fold(c, fold); i < m; i++)
            jbuf_code(rt, b, fold[i], trusted);
        break;
    default:
        if (c == 0x130) { /* İ: the dot stays */
            jbuf_code(rt, b, 'i', trusted);
            jbuf_code(rt, b, 0x307, trusted);
        } else if (c == 0x3a3) {
            jinja_step(rt, 8);
            bool final = cased_before(s, off) && !cased_after(s, off + n);
            jbuf_code(rt, b, final ? 0x3c2 : 0x3c3, trusted);
        } else {
            jbuf_code(rt, b, utf8proc_tolower(c), trusted);
        }
    }
    return n;
}
