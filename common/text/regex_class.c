/* regex_class: sets of code points for character classes. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "common/text/regex.h"
#include "common/text/unicode.h"

bool regex_set_add(struct grammar_builder *b, struct regex_set *s, uint32_t lo, uint32_t hi)
{
    if (s->n == s->cap) {
        uint32_t cap = s->cap ? s->cap * 2 : 8;
        struct regex_range *r = arena_alloc(&b->arena, cap * sizeof *r);
        if (!r) {
            grammar_fail(b, STATUS_LIMIT, "a character class takes too much memory");
            return false;
        }
        if (s->n)
            memcpy(r, s->r, s->n * sizeof *r);
        s->r = r;
        s->cap = cap;
    }
    s->r[s->n++] = (struct regex_range){lo, hi};
    return true;
}

bool regex_set_join(struct grammar_builder *b, struct regex_set *s, const struct regex_set *t)
{
    for (uint32_t i = 0; i < t->n; i++) {
        if (!regex_set_add(b, s, t->r[i].lo, t->r[i].hi))
            return false;
    }
    return true;
}

static int range_order(const void *x, const void *y)
{
    const struct regex_range *a = x, *b = y;
    return a->lo < b->lo ? -1 : a->lo > b->lo;
}

void regex_set_sort(struct regex_set *s)
{
    uint32_t n = 0;
    if (s->n > 1)
        qsort(s->r, s->n, sizeof *s->r, range_order);
    for (uint32_t i = 0; i < s->n; i++) {
        if (n > 0 && s->r[i].lo <= s->r[n - 1].hi + 1) {
            if (s->r[i].hi > s->r[n - 1].hi)
                s->r[n - 1].hi = s->r[i].hi;
        } else {
            s->r[n++] = s->r[i];
        }
    }
    s->n = n;
}

bool regex_set_negate(struct grammar_builder *b, struct regex_set *s)
{
    struct regex_set out = {0};
    uint32_t next = 0;
    regex_set_sort(s);
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->r[i].lo > next && !regex_set_add(b, &out, next, s->r[i].lo - 1))
            return false;
        next = s->r[i].hi + 1;
    }
    if (next <= UNICODE_MAX && !regex_set_add(b, &out, next, UNICODE_MAX))
        return false;
    *s = out;
    return true;
}

bool regex_set_escape(struct grammar_builder *b, char letter, struct regex_set *s)
{
    static const struct regex_range digits[] = {{'0', '9'}},
                                    words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
                                    spaces[] = {{'\t', '\r'},     {' ', ' '},
                                                {0xa0, 0xa0},     {0x1680, 0x1680},
                                                {0x2000, 0x200a}, {0x2028, 0x2029},
                                                {0x202f, 0x202f}, {0x205f, 0x205f},
                                                {0x3000, 0x3000}, {0xfeff, 0xfeff}};
    const struct regex_range *r;
    size_t n;
    switch (letter | 0x20) {
    case 'd':
        r = digits, n = sizeof digits / sizeof *digits;
        break;
    case 'w':
        r = words, n = sizeof words / sizeof *words;
        break;
    case 's':
        r = spaces, n = sizeof spaces / sizeof *spaces;
        break;
    default:
        return false;
    }
    struct regex_set t = {0};
    for (size_t i = 0; i < n; i++) {
        if (!regex_set_add(b, &t, r[i].lo, r[i].hi))
            return true;
    }
    if (letter < 'a' && !regex_set_negate(b, &t))
        return true;
    regex_set_join(b, s, &t);
    return true;
}

/* General categories: the short name, the long one, and utf8proc's numbers that they cover. */
static const struct {
    const char *name, *full;
    utf8proc_category_t first, last;
} categories[] = {
    {"L", "Letter", UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LO},
    {"Lu", "Uppercase_Letter", UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LU},
    {"Ll", "Lowercase_Letter", UTF8PROC_CATEGORY_LL, UTF8PROC_CATEGORY_LL},
    {"Lt", "Titlecase_Letter", UTF8PROC_CATEGORY_LT, UTF8PROC_CATEGORY_LT},
    {"Lm", "Modifier_Letter", UTF8PROC_CATEGORY_LM, UTF8PROC_CATEGORY_LM},
    {"Lo", "Other_Letter", UTF8PROC_CATEGORY_LO, UTF8PROC_CATEGORY_LO},
    {"M", "Mark", UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_ME},
    {"Mn", "Nonspacing_Mark", UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_MN},
    {"Mc", "Spacing_Mark", UTF8PROC_CATEGORY_MC, UTF8PROC_CATEGORY_MC},
    {"Me", "Enclosing_Mark", UTF8PROC_CATEGORY_ME, UTF8PROC_CATEGORY_ME},
    {"N", "Number", UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NO},
    {"Nd", "Decimal_Number", UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_ND},
    {"Nl", "Letter_Number", UTF8PROC_CATEGORY_NL, UTF8PROC_CATEGORY_NL},
    {"No", "Other_Number", UTF8PROC_CATEGORY_NO, UTF8PROC_CATEGORY_NO},
    {"P", "Punctuation", UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_PO},
    {"S", "Symbol", UTF8PROC_CATEGORY_SM, UTF8PROC_CATEGORY_SO},
    {"Sm", "Math_Symbol", UTF8PROC_CATEGORY_SM, UTF8PROC_CATEGORY_SM},
    {"Sc", "Currency_Symbol", UTF8PROC_CATEGORY_SC, UTF8PROC_CATEGORY_SC},
    {"Z", "Separator", UTF8PROC_CATEGORY_ZS, UTF8PROC_CATEGORY_ZP},
    {"Zs", "Space_Separator", UTF8PROC_CATEGORY_ZS, UTF8PROC_CATEGORY_ZS},
};

#define CATEGORIES (sizeof categories / sizeof *categories)
#define SCAN_WORK  40000 /* units for looking at every code point */

static bool same(const char *name, const char *p, size_t n)
{
    return strlen(name) == n && memcmp(name, p, n) == 0;
}

/* All code points of a category. Failures are noted in b. */
static void scan(struct grammar_builder *b, size_t i, struct regex_set *s)
{
    uint32_t begin = UINT32_MAX;
    if (b->budget.work < SCAN_WORK) {
        b->budget.work = 0; /* what is built from it will notice */
        return;
    }
    b->budget.work -= SCAN_WORK;
    for (uint32_t cp = 0; cp <= UNICODE_MAX + 1; cp++) {
        utf8proc_category_t c =
            cp <= UNICODE_MAX ? utf8proc_category((utf8proc_int32_t)cp) : UTF8PROC_CATEGORY_CN;
        bool in = cp <= UNICODE_MAX && c >= categories[i].first && c <= categories[i].last;
        if (in && begin == UINT32_MAX)
            begin = cp;
        if (!in && begin != UINT32_MAX) {
            if (!regex_set_add(b, s, begin, cp - 1))
                return;
            begin = UINT32_MAX;
        }
    }
}

bool regex_set_property(struct grammar_builder *b, const char *name, size_t n, struct regex_set *s)
{
    size_t i = 0;
    while (i < CATEGORIES && !same(categories[i].name, name, n) &&
           !same(categories[i].full, name, n))
        i++;
    if (i == CATEGORIES)
        return false;
    if (!b->properties)
        b->properties = arena_alloc(&b->arena, CATEGORIES * sizeof *b->properties);
    if (!b->properties) {
        grammar_fail(b, STATUS_LIMIT, "a character class takes too much memory");
        return true;
    }
    if (b->properties[i].n == 0)
        scan(b, i, &b->properties[i]);
    regex_set_join(b, s, &b->properties[i]);
    return true;
}
