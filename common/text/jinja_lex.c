/* jinja_lex: template source to tokens.
 *
 * The rules are those of Jinja's lexer with trim_blocks and lstrip_blocks on and the source's last
 * newline dropped: "{%-" strips all white space before it; a plain "{%" or "{#" strips the blanks
 * between it and the start of its line; "{%+" strips nothing; "-%}" strips all white space after
 * it, a plain "%}" or "#}" one newline, "+%}" nothing; variables strip only with "-". End marks
 * count only outside brackets, so that {{ {'a': {}} }} works. Linear in the source. */
#include <stdlib.h>

#include "common/text/jinja_ast.h"
#include "common/text/jinja_str.h"

struct lexer {
    struct jrt *rt;
    const char *p; /* normalised source: only "\n" ends lines */
    size_t n, at;
    bool line_starting; /* the last tag ended with a newline, or nothing came yet */
    struct jtoken *tokens;
    size_t n_tokens, cap;
};

static struct jtoken *push(struct lexer *x, enum jtoken_type type)
{
    if (x->n_tokens == x->cap) {
        size_t cap = x->cap ? 2 * x->cap : 256;
        struct jtoken *p = jinja_array(x->rt, cap, sizeof *p);
        if (x->n_tokens)
            memcpy(p, x->tokens, x->n_tokens * sizeof *p);
        x->tokens = p;
        x->cap = cap;
    }
    struct jtoken *t = &x->tokens[x->n_tokens++];
    *t = (struct jtoken){.type = type, .line = x->rt->line};
    return t;
}

static bool looking_at(const struct lexer *x, size_t at, const char *s)
{
    size_t n = strlen(s);
    return at <= x->n && x->n - at >= n && memcmp(x->p + at, s, n) == 0;
}

static size_t skip_space(const struct lexer *x, size_t at)
{
    while (at < x->n) {
        int32_t c;
        unsigned n = jutf8_decode(x->p + at, x->n - at, &c);
        if (!jchar_space(c))
            break;
        at += n;
    }
    return at;
}

/* Moves on to `to`, counting lines. */
static void advance(struct lexer *x, size_t to)
{
    for (; x->at < to; x->at++)
        x->rt->line += x->p[x->at] == '\n';
}

/* Emits from..to as text; sign and lstrip are those of the tag that follows. */
static void push_data(struct lexer *x, size_t from, size_t to, char sign, bool lstrip)
{
    if (sign == '-') {
        while (to > from) {
            size_t at = to - 1;
            while (at > from && ((unsigned char)x->p[at] & 0xc0) == 0x80)
                at--;
            int32_t c;
            jutf8_decode(x->p + at, to - at, &c);
            if (!jchar_space(c))
                break;
            to = at;
        }
    } else if (sign != '+' && lstrip) {
        const char *nl = memrchr(x->p + from, '\n', to - from);
        size_t line = nl ? (size_t)(nl + 1 - x->p) : from;
        if ((nl || x->line_starting) && skip_space(x, line) >= to)
            to = line;
    }
    if (from < to)
        push(x, JT_DATA)->s = jstr_loan(x->rt, x->p + from, to - from, true);
}

/* The place after an end mark at `at` that may carry a sign, or SIZE_MAX when there is none.
 * block: also "+" and the newline of trim_blocks. */
static size_t end_mark(const struct lexer *x, size_t at, const char *mark, bool block)
{
    if (looking_at(x, at, "-") && looking_at(x, at + 1, mark))
        return skip_space(x, at + 3);
    if (block && looking_at(x, at, "+") && looking_at(x, at + 1, mark))
        return at + 3;
    if (!looking_at(x, at, mark))
        return SIZE_MAX;
    return at + 2 + (block && looking_at(x, at + 2, "\n"));
}

static void tag_done(struct lexer *x, size_t end)
{
    advance(x, end);
    x->line_starting = x->p[end - 1] == '\n';
}

static void lex_comment(struct lexer *x, size_t from)
{
    const char *p = memmem(x->p + from, x->n - from, "#}", 2);
    if (!p)
        jinja_fail(x->rt, STATUS_INVALID, "a comment is not closed");
    size_t at = (size_t)(p - x->p);
    if (at > from && (p[-1] == '-' || p[-1] == '+'))
        at--;
    tag_done(x, end_mark(x, at, "#}", true));
}

/* "raw %}" after "{%": the place where the raw text begins, or SIZE_MAX. */
static size_t raw_begin(const struct lexer *x, size_t at)
{
    at = skip_space(x, at);
    if (!looking_at(x, at, "raw"))
        return SIZE_MAX;
    at = skip_space(x, at + 3);
    if (looking_at(x, at, "-%}"))
        return skip_space(x, at + 3);
    return looking_at(x, at, "%}") ? at + 2 : SIZE_MAX;
}

static void lex_raw(struct lexer *x, size_t from)
{
    for (size_t k = from;; k++) {
        const char *p = memmem(x->p + k, x->n - k, "{%", 2);
        if (!p)
            jinja_fail(x->rt, STATUS_INVALID, "a raw block is not closed");
        k = (size_t)(p - x->p);
        char sign = looking_at(x, k + 2, "-") ? '-' : looking_at(x, k + 2, "+") ? '+' : 0;
        size_t at = skip_space(x, k + 2 + (sign != 0));
        if (!looking_at(x, at, "endraw"))
            continue;
        size_t end = end_mark(x, skip_space(x, at + 6), "%}", true);
        if (end == SIZE_MAX)
            continue;
        push_data(x, from, k, sign, true);
        tag_done(x, end);
        return;
    }
}

/* -- inside tags -- */

static unsigned digit_value(char c)
{
    if (c >= '0' && c <= '9')
        return (unsigned)(c - '0');
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? (unsigned)(c - 'a' + 10) : 99;
}

/* Digits with single underscores between them; the place after them, or `at` when there are none.
 * prefixed: an underscore may come first (after 0x). */
static size_t digits(const struct lexer *x, size_t at, unsigned base, bool prefixed)
{
    size_t end = at;
    for (size_t k = at; k < x->n; k++) {
        if (x->p[k] == '_' && (k > at || prefixed) && k + 1 < x->n && x->p[k - 1] != '_')
            continue;
        if (digit_value(x->p[k]) >= base)
            break;
        end = k + 1;
    }
    return end;
}

static void push_int(struct lexer *x, size_t from, size_t to, unsigned base)
{
    int64_t v = 0;
    for (size_t k = from; k < to; k++)
        if (x->p[k] != '_' && (__builtin_mul_overflow(v, (int64_t)base, &v) ||
                               __builtin_add_overflow(v, (int64_t)digit_value(x->p[k]), &v)))
            jinja_fail(x->rt, STATUS_INVALID, "an integer is too large");
    push(x, JT_INT)->number = jint(v);
}

static void push_float(struct lexer *x, size_t from, size_t to)
{
    char text[64];
    size_t n = 0;
    for (size_t k = from; k < to; k++) {
        if (x->p[k] == '_')
            continue;
        if (n + 1 == sizeof text)
            jinja_fail(x->rt, STATUS_INVALID, "a number has too many digits");
        text[n++] = x->p[k];
    }
    text[n] = '\0';
    push(x, JT_FLOAT)->number = jfloat(strtod(text, NULL));
}

/* The place after a float at x->at, or x->at. */
static size_t float_end(const struct lexer *x)
{
    size_t whole = digits(x, x->at, 10, false), end = x->at;
    if (whole == x->at || (x->at > 0 && x->p[x->at - 1] == '.'))
        return x->at;
    size_t at = whole;
    if (looking_at(x, at, ".") && digits(x, at + 1, 10, false) > at + 1)
        end = at = digits(x, at + 1, 10, false);
    if (at < x->n && (x->p[at] | 0x20) == 'e') {
        at++;
        at += looking_at(x, at, "+") || looking_at(x, at, "-");
        if (digits(x, at, 10, false) > at)
            end = digits(x, at, 10, false);
    }
    return end;
}

static void lex_number(struct lexer *x)
{
    size_t at = x->at, end = float_end(x);
    if (end > at) {
        push_float(x, at, end);
        advance(x, end);
        return;
    }
    char kind = at + 1 < x->n ? (char)(x->p[at + 1] | 0x20) : 0;
    unsigned base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 10;
    if (x->p[at] == '0' && base != 10 && digits(x, at + 2, base, true) > at + 2) {
        end = digits(x, at + 2, base, true);
        push_int(x, at + 2, end, base);
    } else if (x->p[at] == '0') { /* "007" is three numbers, which no expression allows */
        for (end = at + 1; end < x->n; end++)
            if (x->p[end] != '0' && !(x->p[end] == '_' && looking_at(x, end + 1, "0")))
                break;
        push_int(x, at, end, 10);
    } else {
        end = digits(x, at, 10, false);
        push_int(x, at, end, 10);
    }
    advance(x, end);
}

/* \xhh, \uhhhh, \Uhhhhhhhh: n hex digits at `at`. */
static int32_t hex_escape(struct lexer *x, size_t at, size_t end, unsigned n)
{
    uint32_t c = 0;
    for (unsigned i = 0; i < n; i++) {
        if (at + i >= end || digit_value(x->p[at + i]) > 15)
            jinja_fail(x->rt, STATUS_INVALID, "a string has a truncated escape");
        c = c << 4 | digit_value(x->p[at + i]);
    }
    if (c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
        jinja_fail(x->rt, STATUS_INVALID, "a string escapes something that is no character");
    return (int32_t)c;
}

/* One escape after the backslash at k; returns the place after it. */
static size_t lex_escape(struct lexer *x, struct jbuf *b, size_t k, size_t end)
{
    static const char plain[] = "\\\\''\"\"a\ab\bf\fn\nr\rt\tv\v";
    char c = x->p[k + 1];
    const char *at = c ? strchr(plain, c) : NULL;
    if (c == '\n')
        return k + 2;
    if (at && (at - plain) % 2 == 0) {
        jbuf_bytes(x->rt, b, at + 1, 1, true);
        return k + 2;
    }
    if (c >= '0' && c <= '7') {
        int32_t code = 0;
        size_t i = k + 1;
        for (; i < k + 4 && i < end && x->p[i] >= '0' && x->p[i] <= '7'; i++)
            code = code * 8 + (x->p[i] - '0');
        jbuf_code(x->rt, b, code, true);
        return i;
    }
    if (c == 'x' || c == 'u' || c == 'U') {
        unsigned n = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        jbuf_code(x->rt, b, hex_escape(x, k + 2, end, n), true);
        return k + 2 + n;
    }
    if (c == 'N')
        jinja_fail(x->rt, STATUS_INVALID, "\\N escapes are not supported");
    jbuf_bytes(x->rt, b, "\\", 1, true); /* not an escape: both characters stay */
    return k + 1;
}

static void lex_string(struct lexer *x)
{
    char quote = x->p[x->at];
    size_t from = x->at + 1, end = from;
    while (end < x->n && x->p[end] != quote)
        end += x->p[end] == '\\' ? 2 : 1;
    if (end >= x->n)
        jinja_fail(x->rt, STATUS_INVALID, "a string is not closed");
    struct jtoken *t = push(x, JT_STRING);
    if (!memchr(x->p + from, '\\', end - from)) {
        t->s = jstr_loan(x->rt, x->p + from, end - from, true);
    } else {
        struct jbuf b = {0};
        for (size_t k = from; k < end;) {
            const char *p = memchr(x->p + k, '\\', end - k);
            size_t to = p ? (size_t)(p - x->p) : end;
            jbuf_bytes(x->rt, &b, x->p + k, to - k, true);
            k = p ? lex_escape(x, &b, to, end) : end;
        }
        t->s = jbuf_finish(x->rt, &b);
    }
    advance(x, end + 1);
}

static void lex_name(struct lexer *x)
{
    size_t end = x->at;
    while (end < x->n) {
        int32_t c;
        unsigned n = jutf8_decode(x->p + end, x->n - end, &c);
        if (!jchar_name(c))
            break;
        end += n;
    }
    if (end == x->at) {
        int32_t c;
        jinja_fail(x->rt, STATUS_INVALID, "unexpected character '%.*s'",
                   (int)jutf8_decode(x->p + end, x->n - end, &c), x->p + end);
    }
    push(x, JT_NAME)->s = jstr_loan(x->rt, x->p + x->at, end - x->at, true);
    advance(x, end);
}

static bool lex_operator(struct lexer *x, char *stack, unsigned *depth)
{
    static const char doubles[][3] = {"//", "**", "==", "!=", ">=", "<="};
    char c = x->p[x->at];
    for (size_t i = 0; i < sizeof doubles / sizeof *doubles; i++)
        if (looking_at(x, x->at, doubles[i])) {
            push(x, JT_OPERATOR)->op = JOP(c, doubles[i][1]);
            advance(x, x->at + 2);
            return true;
        }
    if (!c || !strchr("+-/*%~[](){}><=.:|,;", c))
        return false;
    if (c == '(' || c == '[' || c == '{') {
        if (*depth == JINJA_NESTING_MAX)
            jinja_fail(x->rt, STATUS_LIMIT, "brackets are nested too deeply");
        stack[(*depth)++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
        if (*depth == 0 || stack[--*depth] != c)
            jinja_fail(x->rt, STATUS_INVALID, "unexpected '%c'", c);
    }
    push(x, JT_OPERATOR)->op = c;
    advance(x, x->at + 1);
    return true;
}

/* The inside of {{ … }} or {% … %}, from x->at to after its end mark. */
static void lex_tag(struct lexer *x, bool block)
{
    char stack[JINJA_NESTING_MAX];
    unsigned depth = 0;
    for (;;) {
        size_t end = depth ? SIZE_MAX : end_mark(x, x->at, block ? "%}" : "}}", block);
        if (end != SIZE_MAX) {
            push(x, block ? JT_BLOCK_END : JT_VAR_END);
            tag_done(x, end);
            return;
        }
        size_t next = skip_space(x, x->at);
        if (next > x->at) {
            advance(x, next);
            continue;
        }
        if (x->at >= x->n)
            jinja_fail(x->rt, STATUS_INVALID, "a tag is not closed");
        char c = x->p[x->at];
        if (c >= '0' && c <= '9')
            lex_number(x);
        else if (c == '\'' || c == '"')
            lex_string(x);
        else if (!lex_operator(x, stack, &depth))
            lex_name(x);
    }
}

/* The next place of "{%", "{{" or "{#", or the end. */
static size_t next_tag(const struct lexer *x)
{
    for (size_t k = x->at; k + 1 < x->n; k++) {
        const char *p = memchr(x->p + k, '{', x->n - k - 1);
        if (!p)
            break;
        k = (size_t)(p - x->p);
        if (p[1] == '%' || p[1] == '{' || p[1] == '#')
            return k;
    }
    return x->n;
}

static void lex_template(struct lexer *x)
{
    for (;;) {
        size_t from = x->at, tag = next_tag(x);
        if (tag == x->n) {
            push_data(x, from, tag, '+', false);
            advance(x, tag);
            return;
        }
        char kind = x->p[tag + 1];
        char sign = looking_at(x, tag + 2, "-") ? '-' : looking_at(x, tag + 2, "+") ? '+' : 0;
        push_data(x, from, tag, sign, kind != '{');
        size_t inside = tag + 2 + (sign != 0);
        advance(x, inside);
        size_t raw = kind == '%' ? raw_begin(x, inside) : SIZE_MAX;
        if (kind == '#') {
            lex_comment(x, inside);
        } else if (raw != SIZE_MAX) {
            tag_done(x, raw);
            lex_raw(x, raw);
        } else {
            push(x, kind == '%' ? JT_BLOCK_BEGIN : JT_VAR_BEGIN);
            lex_tag(x, kind == '%');
        }
    }
}

/* "\r\n" and "\r" become "\n"; one newline at the end is dropped. */
static void normalise(struct lexer *x, const char *source, size_t n)
{
    char *p = jinja_alloc(x->rt, n + 1);
    for (size_t i = 0; i < n; i++) {
        if (source[i] == '\r' && i + 1 < n && source[i + 1] == '\n')
            continue;
        p[x->n++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (x->n > 0 && p[x->n - 1] == '\n')
        x->n--;
    x->p = p;
}

struct jtoken *jinja_lex(struct jrt *rt, const char *source, size_t n)
{
    struct lexer x = {.rt = rt, .line_starting = true};
    rt->line = 1;
    if (n > JINJA_SOURCE_MAX)
        jinja_fail(rt, STATUS_LIMIT, "the template has more than %u bytes", JINJA_SOURCE_MAX);
    if (!jutf8_valid(source, n))
        jinja_fail(rt, STATUS_INVALID, "the template is not valid UTF-8");
    normalise(&x, source, n);
    lex_template(&x);
    push(&x, JT_EOF);
    return x.tokens;
}
