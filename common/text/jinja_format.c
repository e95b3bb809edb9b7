/* jinja_format: "…".format(…), "…" % …, and numbers read from text.
 *
 * The format string's own text, and strings put in, keep their origin; converted numbers have the
 * origin of the number. Widths and precisions are bounded by the arena. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "common/text/jinja_eval.h"

#define PRECISION_MAX 100

/* [[fill]align][sign][#][0][width][grouping][.precision][type] */
struct spec {
    int32_t fill;
    char align, sign, group, type;
    bool alternate, zero;
    int64_t width, precision; /* precision -1: none */
};

static _Noreturn void fail_spec(struct jrt *rt)
{
    jinja_fail(rt, STATUS_INVALID, "a format has a specification that does not fit its value");
}

static size_t parse_count(struct jrt *rt, const char *p, size_t at, size_t n, int64_t *out)
{
    for (*out = 0; at < n && p[at] >= '0' && p[at] <= '9'; at++)
        if (__builtin_mul_overflow(*out, 10, out) || (*out += p[at] - '0') > INT32_MAX)
            jinja_fail(rt, STATUS_LIMIT, "a format is too wide");
    return at;
}

static struct spec parse_spec(struct jrt *rt, const char *p, size_t n)
{
    struct spec s = {.fill = ' ', .precision = -1};
    size_t at = 0;
    if (n > 0) {
        int32_t c;
        size_t len = jutf8_decode(p, n, &c);
        if (len < n && strchr("<>=^", p[len])) {
            s.fill = c;
            s.align = p[len];
            at = len + 1;
        } else if (strchr("<>=^", p[0])) {
            s.align = p[0];
            at = 1;
        }
    }
    if (at < n && strchr("+- ", p[at]))
        s.sign = p[at++];
    if (at < n && p[at] == '#')
        s.alternate = p[at++];
    if (at < n && p[at] == '0')
        s.zero = p[at++];
    at = parse_count(rt, p, at, n, &s.width);
    if (at < n && (p[at] == ',' || p[at] == '_'))
        s.group = p[at++];
    if (at < n && p[at] == '.') {
        size_t from = at + 1;
        at = parse_count(rt, p, from, n, &s.precision);
        if (at == from)
            fail_spec(rt);
    }
    if (at < n)
        s.type = p[at++];
    if (at < n)
        fail_spec(rt);
    if (s.zero && !s.align) {
        s.align = '=';
        s.fill = '0';
    }
    return s;
}

static void fill(struct jrt *rt, struct jbuf *b, int32_t c, int64_t times)
{
    char u[4];
    unsigned n = jutf8_encode(c, u);
    for (; times > 0; times--) {
        jinja_step(rt, 1);
        jbuf_bytes(rt, b, u, n, true);
    }
}

/* text (sign: its first bytes that stay left of zeros) into b, aligned. */
static void put_aligned(struct jrt *rt, struct jbuf *b, const struct spec *s, struct jstr *text,
                        size_t sign, char align)
{
    int64_t left = s->width - (int64_t)jstr_chars(rt, text);
    if (left < 0)
        left = 0;
    if (align == '=')
        jbuf_sub(rt, b, text, 0, sign);
    fill(rt, b, s->fill, align == '>' || align == '=' ? left : align == '^' ? left / 2 : 0);
    jbuf_sub(rt, b, text, align == '=' ? sign : 0, text->n);
    fill(rt, b, s->fill, align == '<' ? left : align == '^' ? left - left / 2 : 0);
}

/* Inserts sep into the digits of whole every `every` places from the right. */
static void put_grouped(struct jrt *rt, struct jbuf *b, const char *whole, size_t n, char sep,
                        size_t every, bool trusted)
{
    for (size_t i = 0; i < n; i++) {
        if (sep && i > 0 && (n - i) % every == 0)
            jbuf_bytes(rt, b, &sep, 1, trusted);
        jbuf_bytes(rt, b, whole + i, 1, trusted);
    }
}

static struct jstr *format_int(struct jrt *rt, const struct spec *s, int64_t v, bool trusted,
                               size_t *sign)
{
    char digits[72];
    size_t n = 0;
    uint64_t u = v < 0 ? -(uint64_t)v : (uint64_t)v;
    unsigned base = s->type == 'x' || s->type == 'X' ? 16
                    : s->type == 'o'                 ? 8
                    : s->type == 'b'                 ? 2
                                                     : 10;
    do {
        unsigned d = (unsigned)(u % base);
        digits[n++] = (char)(d < 10 ? '0' + d : (s->type == 'X' ? 'A' : 'a') + d - 10);
        u /= base;
    } while (u);
    for (size_t i = 0; i < n / 2; i++) {
        char t = digits[i];
        digits[i] = digits[n - 1 - i];
        digits[n - 1 - i] = t;
    }
    struct jbuf b = {0};
    if (v < 0)
        jbuf_bytes(rt, &b, "-", 1, trusted);
    else if (s->sign == '+' || s->sign == ' ')
        jbuf_bytes(rt, &b, &s->sign, 1, trusted);
    if (s->alternate && base != 10) {
        char prefix[2] = {'0', s->type};
        jbuf_bytes(rt, &b, prefix, 2, trusted);
    }
    *sign = b.n;
    put_grouped(rt, &b, digits, n, s->group, base == 10 ? 3 : 4, trusted);
    return jbuf_finish(rt, &b);
}

static struct jstr *format_float(struct jrt *rt, const struct spec *s, double v, bool trusted,
                                 size_t *sign)
{
    char text[512], fmt[16];
    char type = s->type == '%' ? 'f' : s->type;
    int precision = s->precision < 0 ? 6 : (int)s->precision;
    if (s->precision > PRECISION_MAX)
        jinja_fail(rt, STATUS_LIMIT, "a format has too many digits");
    if (s->type == '%')
        v *= 100;
    if (!type && s->precision < 0) {
        jfloat_repr(v, text);
    } else {
        snprintf(fmt, sizeof fmt, "%%%s.*%c", s->alternate ? "#" : "", type ? type : 'g');
        snprintf(text, sizeof text, fmt, precision, v);
        if (!type && isfinite(v) && !strpbrk(text, ".eE"))
            strcat(text, ".0"); /* without a type a float still looks like one */
    }
    const char *p = text;
    struct jbuf b = {0};
    if (*p == '-')
        jbuf_bytes(rt, &b, p++, 1, trusted);
    else if (s->sign == '+' || s->sign == ' ')
        jbuf_bytes(rt, &b, &s->sign, 1, trusted);
    *sign = b.n;
    size_t whole = strspn(p, "0123456789");
    put_grouped(rt, &b, p, whole, s->group, 3, trusted);
    jbuf_puts(rt, &b, p + whole, trusted);
    if (s->type == '%')
        jbuf_puts(rt, &b, "%", trusted);
    return jbuf_finish(rt, &b);
}

/* format(v, spec) into b. */
static void put_formatted(struct jrt *rt, struct jbuf *b, struct jvalue v, const struct spec *s)
{
    size_t sign = 0;
    bool trusted = !jvalue_tainted(v);
    bool whole = v.type == J_INT || v.type == J_BOOL;
    if (whole && (!s->type || strchr("dnxXob", s->type)) && s->precision < 0) {
        int64_t i = v.type == J_INT ? v.i : v.b;
        struct jstr *text = format_int(rt, s, i, trusted, &sign);
        put_aligned(rt, b, s, text, sign, s->align ? s->align : '>');
    } else if (v.type == J_INT && s->type == 'c' && v.i >= 0 && v.i <= 0x10ffff &&
               (v.i < 0xd800 || v.i > 0xdfff)) {
        struct jbuf one = {0};
        jbuf_code(rt, &one, (int32_t)v.i, trusted);
        put_aligned(rt, b, s, jbuf_finish(rt, &one), 0, s->align ? s->align : '<');
    } else if ((v.type == J_FLOAT && (!s->type || strchr("feEgGFn%", s->type))) ||
               (whole && s->type && strchr("feEgGF%", s->type))) {
        struct jstr *text = format_float(rt, s, jvalue_double(v), trusted, &sign);
        put_aligned(rt, b, s, text, sign, s->align ? s->align : '>');
    } else if (v.type == J_STR && (!s->type || s->type == 's') && s->align != '=' && !s->sign &&
               !s->group && !s->alternate) {
        struct jstr *text = v.s;
        if (s->precision >= 0 && (size_t)s->precision < jstr_chars(rt, text))
            text = jstr_sub(rt, text, 0, jstr_offset(rt, text, (size_t)s->precision));
        put_aligned(rt, b, s, text, 0, s->align ? s->align : '<');
    } else {
        fail_spec(rt);
    }
}

static void put_value(struct jrt *rt, struct jbuf *b, struct jvalue v, const char *spec, size_t n,
                      bool escape)
{
    if (escape && v.type == J_STR)
        v.s = jstr_escape(rt, v.s);
    if (n == 0) {
        jbuf_value(rt, b, v);
        return;
    }
    struct spec s = parse_spec(rt, spec, n);
    put_formatted(rt, b, v, &s);
}

/* -- str.format -- */

struct formatter {
    struct jrt *rt;
    const struct jstr *s;
    const struct jargs *a;
    struct jbuf *b;
    size_t next; /* number of the next {} */
    bool automatic, manual;
};

static bool all_digits(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] < '0' || p[i] > '9')
            return false;
    return n > 0 && n < 9;
}

static struct jvalue field_base(struct formatter *f, const char *p, size_t n)
{
    struct jrt *rt = f->rt;
    if (n == 0 || all_digits(p, n)) {
        *(n ? &f->manual : &f->automatic) = true;
        if (f->manual && f->automatic)
            jinja_fail(rt, STATUS_INVALID, "a format mixes {} and {0}");
        size_t i = n ? strtoul(p, NULL, 10) : f->next++;
        if (i >= f->a->n)
            jinja_fail(rt, STATUS_INVALID, "a format has no value for field %zu", i);
        return f->a->pos[i];
    }
    jinja_step(rt, f->a->n_kw / 8);
    for (size_t i = 0; i < f->a->n_kw; i++)
        if (f->a->kw[i].name->n == n && memcmp(f->a->kw[i].name->p, p, n) == 0)
            return f->a->kw[i].v;
    jinja_fail(rt, STATUS_INVALID, "a format has no value for field '%.*s'", (int)(n < 64 ? n : 64),
               p);
}

/* "0.name[key]" */
static struct jvalue field_value(struct formatter *f, const char *p, size_t n)
{
    struct jrt *rt = f->rt;
    size_t at = 0;
    while (at < n && p[at] != '.' && p[at] != '[')
        at++;
    struct jvalue v = field_base(f, p, at);
    while (at < n) {
        jinja_step(rt, 1);
        bool index = p[at] == '[';
        size_t from = ++at;
        while (at < n && (index ? p[at] != ']' : p[at] != '.' && p[at] != '['))
            at++;
        if (at == from || (index && at == n))
            jinja_fail(rt, STATUS_INVALID, "a format has a malformed field");
        struct jstr *name = jstr_loan(rt, p + from, at - from, true);
        if (!index)
            v = jop_attr(rt, v, name);
        else if (all_digits(p + from, at - from))
            v = jop_item(rt, v, jint(strtol(p + from, NULL, 10)));
        else
            v = jop_item(rt, v, jstring(name));
        at += index;
        if (index && at < n && p[at] != '.' && p[at] != '[')
            jinja_fail(rt, STATUS_INVALID, "a format has a malformed field");
    }
    return v;
}

/* The specification of a field; fields inside it are replaced first. */
static struct jstr *field_spec(struct formatter *f, const char *p, size_t n)
{
    struct jbuf b = {0};
    for (size_t i = 0; i < n; i++) {
        const char *close = p[i] == '{' ? memchr(p + i, '}', n - i) : NULL;
        if (!close) {
            jbuf_bytes(f->rt, &b, p + i, 1, true);
            continue;
        }
        size_t len = (size_t)(close - p) - i - 1;
        jbuf_value(f->rt, &b, field_value(f, p + i + 1, len));
        i += len + 1;
    }
    return jbuf_finish(f->rt, &b);
}

/* One {…}, from after its "{"; returns the place after its "}". */
static size_t put_field(struct formatter *f, size_t at)
{
    struct jrt *rt = f->rt;
    const char *p = f->s->p;
    size_t n = f->s->n, end = at, depth = 1;
    for (; end < n; end++) {
        depth += p[end] == '{';
        depth -= p[end] == '}';
        if (depth == 0)
            break;
    }
    if (end == n)
        jinja_fail(rt, STATUS_INVALID, "a format has a '{' that is not closed");
    size_t name = at;
    while (name < end && p[name] != '!' && p[name] != ':')
        name += p[name] == '[' ? strcspn(p + name, "]") : 1;
    if (name > end)
        name = end;
    struct jvalue v = field_value(f, p + at, name - at);
    if (name < end && p[name] == '!') {
        char kind = name + 1 < end ? p[name + 1] : 0;
        if (kind == 'r') {
            struct jbuf b = {0};
            jbuf_repr(rt, &b, v);
            v = jstring(jbuf_finish(rt, &b));
        } else if (kind == 's') {
            v = jstring(jvalue_str(rt, v));
        } else {
            jinja_fail(rt, STATUS_INVALID, "a format has an unknown conversion");
        }
        name += 2;
    }
    if (name < end && p[name] != ':')
        jinja_fail(rt, STATUS_INVALID, "a format has a malformed field");
    struct jstr *spec = field_spec(f, p + name + (name < end), name < end ? end - name - 1 : 0);
    put_value(rt, f->b, v, spec->p, spec->n, f->s->markup);
    return end + 1;
}

struct jstr *jstr_format(struct jrt *rt, const struct jstr *s, const struct jargs *a)
{
    struct jbuf b = {0};
    /* a copy that ends in NUL, for strcspn and strtoul */
    char *p = jinja_alloc(rt, s->n + 1);
    memcpy(p, s->p, s->n);
    jinja_step(rt, s->n / 16);
    struct jstr copy = *s;
    copy.p = p;
    struct formatter f = {rt, &copy, a, &b, 0, false, false};
    for (size_t at = 0; at < s->n;) {
        size_t from = at;
        while (at < s->n && p[at] != '{' && p[at] != '}')
            at++;
        jbuf_sub(rt, &b, s, from, at);
        if (at == s->n)
            break;
        jinja_step(rt, 1);
        if (at + 1 < s->n && p[at + 1] == p[at]) {
            jbuf_sub(rt, &b, s, at, at + 1);
            at += 2;
        } else if (p[at] == '{') {
            at = put_field(&f, at + 1);
        } else {
            jinja_fail(rt, STATUS_INVALID, "a format has a single '}'");
        }
    }
    return jstr_mark(rt, jbuf_finish(rt, &b), s->markup);
}

/* -- str % values -- */

struct percent {
    struct jrt *rt;
    struct jvalue values;
    size_t next;
};

static struct jvalue next_value(struct percent *x)
{
    struct jvalue v = x->values;
    size_t i = x->next++;
    if (v.type == J_TUPLE ? i >= v.l->n : i > 0)
        jinja_fail(x->rt, STATUS_INVALID, "a %% format has more places than values");
    return v.type == J_TUPLE ? v.l->v[i] : v;
}

static void put_percent(struct percent *x, struct jbuf *b, char kind, struct jvalue v,
                        struct spec *s, bool escape)
{
    struct jrt *rt = x->rt;
    if (kind == 's' || kind == 'r' || kind == 'a') {
        struct jbuf text = {0};
        if (kind == 's')
            jbuf_value(rt, &text, v);
        else
            jbuf_repr(rt, &text, v);
        v = jstring(jbuf_finish(rt, &text));
        if (escape)
            v.s = jstr_escape(rt, v.s);
        s->fill = ' ';
        s->sign = 0;
        s->alternate = false;
        if (s->align == '=' || !s->align)
            s->align = '>';
        s->type = 's';
    } else if (kind == 'c' && v.type == J_STR) {
        if (jstr_chars(rt, v.s) != 1)
            fail_spec(rt);
        s->type = 's';
    } else if (!jvalue_is_number(v)) {
        if (v.type == J_UNDEFINED)
            jvalue_fail_undefined(rt, v);
        jinja_fail(rt, STATUS_INVALID, "%%%c needs a number, not %s", kind, jvalue_type_name(v));
    } else if (strchr("diu", kind)) {
        double d = jvalue_double(v);
        if (v.type == J_FLOAT && !(fabs(d) < 9.2e18))
            jinja_fail(rt, STATUS_INVALID, "an integer is too large");
        if (v.type != J_INT)
            v = jtaint(jint((int64_t)d), v.tainted);
        s->type = 'd';
        s->precision = -1;
    } else if (!strchr("xXoeEfFgGc", kind)) {
        jinja_fail(rt, STATUS_INVALID, "a %% format has an unknown kind '%c'", kind);
    } else {
        s->type = kind;
    }
    put_formatted(rt, b, v, s);
}

/* The flags, width and precision at `at`; returns the place of the kind. */
static size_t percent_spec(struct percent *x, const struct jstr *f, size_t at, struct spec *s)
{
    struct jrt *rt = x->rt;
    bool zero = false, left = false;
    for (; at < f->n && strchr("#0- +", f->p[at]) && f->p[at]; at++) {
        left |= f->p[at] == '-';
        zero |= f->p[at] == '0';
        s->alternate |= f->p[at] == '#';
        if (f->p[at] == '+' || (f->p[at] == ' ' && s->sign != '+'))
            s->sign = f->p[at];
    }
    if (at < f->n && f->p[at] == '*') {
        s->width = jvalue_index(rt, next_value(x), "*");
        left |= s->width < 0;
        s->width = s->width < 0 ? -s->width : s->width;
        at++;
    } else {
        at = parse_count(rt, f->p, at, f->n, &s->width);
    }
    if (at < f->n && f->p[at] == '.') {
        at = parse_count(rt, f->p, at + 1, f->n, &s->precision);
    }
    s->align = left ? '<' : zero ? '=' : 0;
    s->fill = zero && !left ? '0' : ' ';
    while (at < f->n && (f->p[at] == 'l' || f->p[at] == 'h' || f->p[at] == 'L'))
        at++;
    if (at == f->n)
        jinja_fail(rt, STATUS_INVALID, "a %% format is incomplete");
    return at;
}

struct jstr *jstr_percent(struct jrt *rt, const struct jstr *f, struct jvalue values)
{
    struct percent x = {rt, values, 0};
    struct jbuf b = {0};
    bool mapped = false;
    for (size_t at = 0; at < f->n;) {
        const char *next = memchr(f->p + at, '%', f->n - at);
        size_t to = next ? (size_t)(next - f->p) : f->n;
        jbuf_sub(rt, &b, f, at, to);
        if (!next)
            break;
        jinja_step(rt, 1);
        at = to + 1;
        struct spec s = {.fill = ' ', .precision = -1};
        struct jvalue v = {.type = J_MISSING};
        if (at < f->n && f->p[at] == '(') {
            const char *close = memchr(f->p + at, ')', f->n - at);
            if (!close || values.type != J_DICT)
                jinja_fail(rt, STATUS_INVALID, "a %% format with names needs a dict");
            size_t end = (size_t)(close - f->p);
            struct jstr *name = jstr_sub(rt, f, at + 1, end);
            const struct jvalue *found = jdict_get_str(rt, values.d, name);
            if (!found)
                jinja_fail(rt, STATUS_INVALID, "a %% format names a key that is not there");
            v = *found;
            mapped = true;
            at = end + 1;
        }
        at = percent_spec(&x, f, at, &s);
        if (f->p[at] == '%')
            jbuf_sub(rt, &b, f, at, at + 1);
        else
            put_percent(&x, &b, f->p[at], v.type == J_MISSING ? next_value(&x) : v, &s, f->markup);
        at++;
    }
    bool single = values.type != J_TUPLE && values.type != J_DICT && values.type != J_LIST;
    if (!mapped && (values.type == J_TUPLE ? x.next < values.l->n : single && x.next == 0))
        jinja_fail(rt, STATUS_INVALID, "a %% format has fewer places than values");
    return jstr_mark(rt, jbuf_finish(rt, &b), f->markup);
}

/* -- numbers from text -- */

/* The text without white space around it and without single underscores between digits, as ASCII
 * in out; false when it is too long or has other underscores. */
static bool number_text(const struct jstr *s, char *out, size_t size)
{
    size_t from = 0, to = s->n, n = 0;
    int32_t c;
    while (from < to && (jutf8_decode(s->p + from, to - from, &c), jchar_space(c)))
        from += jutf8_decode(s->p + from, to - from, &c);
    while (to > from && (unsigned char)s->p[to - 1] <= ' ')
        to--;
    for (size_t i = from; i < to; i++) {
        if (s->p[i] == '_') {
            if (i == from || i + 1 == to || s->p[i - 1] == '_' || s->p[i + 1] == '_')
                return false;
            continue;
        }
        if (n + 1 == size || s->p[i] == '\0')
            return false;
        out[n++] = s->p[i];
    }
    out[n] = '\0';
    return n > 0;
}

bool jnumber_int(const struct jstr *s, int base, int64_t *out)
{
    char text[128], *p = text, *end;
    if (!number_text(s, text, sizeof text))
        return false;
    bool minus = *p == '-';
    p += *p == '-' || *p == '+';
    char kind = p[0] == '0' ? (char)(p[1] | 0x20) : 0;
    int prefix = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 0;
    if (prefix && (base == 0 || base == prefix)) {
        p += 2;
        base = prefix;
    } else if (base == 0) {
        if (p[0] == '0' && strspn(p, "0") != strlen(p))
            return false;
        base = 10;
    }
    if (!((*p >= '0' && *p <= '9') || ((*p | 0x20) >= 'a' && (*p | 0x20) <= 'z')))
        return false;
    if (base == 16 && p[0] == '0' && (p[1] | 0x20) == 'x')
        return false; /* strtoull would skip a second prefix */
    errno = 0;
    unsigned long long u = strtoull(p, &end, base);
    if (*end || errno || u > (unsigned long long)INT64_MAX)
        return false;
    *out = minus ? -(int64_t)u : (int64_t)u;
    return true;
}

bool jnumber_float(const struct jstr *s, double *out)
{
    char text[512], *end;
    if (!number_text(s, text, sizeof text))
        return false;
    const char *p = text + (*text == '-' || *text == '+');
    bool word =
        strcasecmp(p, "inf") == 0 || strcasecmp(p, "infinity") == 0 || strcasecmp(p, "nan") == 0;
    if (!word && p[strspn(p, "0123456789.eE+-")])
        return false;
    *out = strtod(text, &end);
    return *end == '\0';
}
