/* extract: see extract.h. */
#define PCRE2_CODE_UNIT_WIDTH 8

#include "common/text/extract.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <pcre2.h>

#include "common/base/mem.h"
#include "common/text/unicode.h"

#define MATCHES_MAX  2000 /* of all texts together */
#define MATCH_LIMIT  20000
#define HEAP_KIB_MAX 1024
#define WORD         "answer"

struct extract {
    pcre2_code *code; /* NULL: the rules */
    pcre2_match_data *match;
    pcre2_match_context *context;
    uint32_t left; /* matches */
};

int extract_create(const char *regex, size_t n, struct extract **out, char *err, size_t errlen)
{
    int code;
    PCRE2_SIZE offset;
    struct extract *x = mem_array(1, sizeof *x);
    if (!x)
        return STATUS_NOMEM;
    x->left = MATCHES_MAX;
    if (!regex) {
        *out = x;
        return STATUS_OK;
    }
    if (n > EXTRACT_REGEX_MAX) {
        snprintf(err, errlen, "the expression has more than %d bytes", EXTRACT_REGEX_MAX);
        goto invalid;
    }
    x->code = pcre2_compile((PCRE2_SPTR)regex, n,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                            &code, &offset, NULL);
    if (!x->code) {
        PCRE2_UCHAR text[128] = "";
        pcre2_get_error_message(code, text, sizeof text);
        snprintf(err, errlen, "at byte %zu: %s", (size_t)offset, (const char *)text);
        goto invalid;
    }
    x->match = pcre2_match_data_create_from_pattern(x->code, NULL);
    x->context = pcre2_match_context_create(NULL);
    if (!x->match || !x->context) {
        extract_destroy(x);
        return STATUS_NOMEM;
    }
    pcre2_set_match_limit(x->context, MATCH_LIMIT);
    pcre2_set_heap_limit(x->context, HEAP_KIB_MAX);
    *out = x;
    return STATUS_OK;
invalid:
    extract_destroy(x);
    return STATUS_INVALID;
}

void extract_destroy(struct extract *x)
{
    if (!x)
        return;
    pcre2_match_data_free(x->match);
    pcre2_match_context_free(x->context);
    pcre2_code_free(x->code);
    free(x);
}

/* ---- rules ------------------------------------------------------------------------------------
 */

struct part {
    const char *p;
    size_t n;
};

static bool is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static struct part trim(struct part t)
{
    while (t.n && (is_blank(*t.p) || strchr("*$", *t.p)))
        t.p++, t.n--;
    while (t.n && (is_blank(t.p[t.n - 1]) || strchr("*$.", t.p[t.n - 1])))
        t.n--;
    return t;
}

/* Behind the last place where `word` stands, in any ASCII case; NULL. */
static const char *behind_last(const char *text, size_t n, const char *word)
{
    size_t len = strlen(word);
    for (size_t i = n; i >= len; i--) {
        if (strncasecmp(text + i - len, word, len) == 0)
            return text + i;
    }
    return NULL;
}

static struct part boxed(const char *text, size_t n)
{
    const char *p = behind_last(text, n, "\\boxed{"), *end = text + n;
    int depth = 1;
    for (const char *q = p; q && q < end; q++) {
        depth += *q == '{' ? 1 : *q == '}' ? -1 : 0;
        if (depth == 0)
            return (struct part){p, (size_t)(q - p)};
    }
    return (struct part){NULL, 0};
}

/* What an "answer is" or "answer:" announces. */
static struct part announced(const char *text, size_t n)
{
    for (size_t left = n;;) {
        const char *p = behind_last(text, left, WORD), *q = p, *end = text + n;
        if (!p)
            return (struct part){NULL, 0};
        left = (size_t)(p - text) - strlen(WORD);
        while (q < end && (*q == ' ' || *q == '*'))
            q++;
        if (q < end && *q == ':')
            q++;
        else if (end - q > 2 && strncasecmp(q, "is", 2) == 0 && (is_blank(q[2]) || q[2] == ':'))
            q += 3;
        else
            continue;
        const char *line = memchr(q, '\n', (size_t)(end - q));
        struct part t = trim((struct part){q, (size_t)((line ? line : end) - q)});
        if (t.n)
            return t;
    }
}

/* Digits with commas between them, a fraction, and a sign. */
static struct part number(const char *text, size_t n)
{
    size_t end = n;
    while (end && !is_digit(text[end - 1]))
        end--;
    size_t at = end;
    while (at && (is_digit(text[at - 1]) ||
                  (at > 1 && strchr(".,", text[at - 1]) && text[at - 1] && is_digit(text[at - 2]))))
        at--;
    at -= end > at && at && text[at - 1] == '-';
    return (struct part){text + at, end - at};
}

static struct part last_line(const char *text, size_t n)
{
    struct part t = trim((struct part){text, n});
    const char *line = t.n ? memrchr(t.p, '\n', t.n) : NULL;
    return line ? (struct part){line + 1, t.n - (size_t)(line + 1 - t.p)} : t;
}

/* ---- both ways --------------------------------------------------------------------------------
 */

static struct part matched(struct extract *x, const char *text, size_t n)
{
    struct part found = {NULL, 0};
    for (size_t from = 0; from <= n && x->left > 0;) {
        x->left--;
        int rc = pcre2_match(x->code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK, x->match,
                             x->context);
        if (rc == PCRE2_ERROR_NOMATCH)
            return found;
        if (rc < 0)
            break;
        const PCRE2_SIZE *at = pcre2_get_ovector_pointer(x->match);
        int group = rc > 1 && at[2] != PCRE2_UNSET ? 1 : 0;
        if (at[2 * group + 1] >= at[2 * group])
            found = (struct part){text + at[2 * group], at[2 * group + 1] - at[2 * group]};
        from = at[1] > from ? at[1] : from + 1;
        while (from < n && ((unsigned char)text[from] & 0xc0) == 0x80)
            from++;
    }
    return (struct part){NULL, 0}; /* too many, or too long: the last one is not known */
}

bool extract_answer(struct extract *x, const char *text, size_t n, struct buf *out)
{
    struct part t = {NULL, 0};
    if (x->code) {
        if (unicode_valid(text, n) == n)
            t = matched(x, text, n);
    } else {
        struct part (*const rules[])(const char *, size_t) = {boxed, announced, number, last_line};
        for (size_t i = 0; i < sizeof rules / sizeof rules[0] && t.n == 0; i++)
            t = trim(rules[i](text, n));
    }
    t = trim(t);
    buf_reset(out);
    buf_append(out, t.n ? t.p : "", t.n);
    return t.n > 0;
}

bool extract_equal(const struct buf *a, const struct buf *b)
{
    return a->len == b->len && strncasecmp(buf_str(a), buf_str(b), a->len) == 0;
}
