/* jinja_repr: values as text: str() and repr() as Python writes them, and JSON as json.dumps does.
 *
 * JSON and the text of containers count as the context's as a whole, unless nothing in them is:
 * quotes, brackets and escapes come from neither side. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/text/jinja_str.h"

int jfloat_repr(double f, char buf[40])
{
    if (isnan(f))
        return snprintf(buf, 40, "nan");
    if (isinf(f))
        return snprintf(buf, 40, f < 0 ? "-inf" : "inf");
    char e[40]; /* the shortest digits that read back as f: "-d.ddde+xx" */
    for (int prec = 0; prec < 17; prec++) {
        snprintf(e, sizeof e, "%.*e", prec, f);
        if (strtod(e, NULL) == f)
            break;
    }
    int exp = atoi(strchr(e, 'e') + 1);
    if (exp < -4 || exp >= 16) {
        int n = (int)(strchr(e, 'e') - e);
        return snprintf(buf, 40, "%.*se%c%02d", n, e, exp < 0 ? '-' : '+', abs(exp));
    }
    char digits[24];
    int n = 0;
    for (const char *p = e; *p != 'e'; p++)
        if (*p >= '0' && *p <= '9')
            digits[n++] = *p;
    int at = 0;
    if (e[0] == '-')
        buf[at++] = '-';
    if (exp < 0) {
        at += snprintf(buf + at, 40 - (size_t)at, "0.%.*s", -exp - 1, "0000");
        at += snprintf(buf + at, 40 - (size_t)at, "%.*s", n, digits);
        return at;
    }
    for (int i = 0; i <= exp || i < n; i++) {
        if (i == exp + 1)
            buf[at++] = '.';
        buf[at++] = i < n ? digits[i] : '0';
    }
    if (n <= exp + 1) {
        buf[at++] = '.';
        buf[at++] = '0';
    }
    buf[at] = '\0';
    return at;
}

static void put_escaped(struct jrt *rt, struct jbuf *b, const char *fmt, int32_t c)
{
    char e[16];
    snprintf(e, sizeof e, fmt, (unsigned)c);
    jbuf_puts(rt, b, e, false);
}

static void repr_string(struct jrt *rt, struct jbuf *b, const struct jstr *s)
{
    bool single = memchr(s->p, '\'', s->n) != NULL, dbl = memchr(s->p, '"', s->n) != NULL;
    char quote = single && !dbl ? '"' : '\'';
    jbuf_bytes(rt, b, &quote, 1, false);
    jinja_step(rt, s->n / 8);
    for (size_t i = 0; i < s->n;) {
        int32_t c;
        unsigned n = jutf8_decode(s->p + i, s->n - i, &c);
        if (c == quote || c == '\\') {
            jbuf_bytes(rt, b, "\\", 1, false);
            jbuf_bytes(rt, b, s->p + i, 1, false);
        } else if (c == '\n' || c == '\r' || c == '\t') {
            jbuf_puts(rt, b, c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t", false);
        } else if (!jchar_printable(c)) {
            put_escaped(rt, b, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
        } else {
            jbuf_bytes(rt, b, s->p + i, n, false);
        }
        i += n;
    }
    jbuf_bytes(rt, b, &quote, 1, false);
}

static void repr(struct jrt *rt, struct jbuf *b, struct jvalue v, unsigned depth);

static void repr_items(struct jrt *rt, struct jbuf *b, const struct jlist *l, unsigned depth)
{
    for (size_t i = 0; i < l->n; i++) {
        if (i)
            jbuf_puts(rt, b, ", ", false);
        repr(rt, b, l->v[i], depth + 1);
    }
}

static void repr_dict(struct jrt *rt, struct jbuf *b, const struct jdict *d, unsigned depth)
{
    jbuf_puts(rt, b, "{", false);
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            jbuf_puts(rt, b, ", ", false);
        repr(rt, b, d->e[i].key, depth + 1);
        jbuf_puts(rt, b, ": ", false);
        repr(rt, b, d->e[i].value, depth + 1);
    }
    jbuf_puts(rt, b, "}", false);
}

/* A scalar's text, with its origin; false when v is none. */
static bool put_scalar(struct jrt *rt, struct jbuf *b, struct jvalue v)
{
    char num[40];
    switch (v.type) {
    case J_NONE:
        jbuf_puts(rt, b, "None", !v.tainted);
        return true;
    case J_BOOL:
        jbuf_puts(rt, b, v.b ? "True" : "False", !v.tainted);
        return true;
    case J_INT:
        snprintf(num, sizeof num, "%lld", (long long)v.i);
        jbuf_puts(rt, b, num, !v.tainted);
        return true;
    case J_FLOAT:
        jbuf_bytes(rt, b, num, (size_t)jfloat_repr(v.f, num), !v.tainted);
        return true;
    default:
        return false;
    }
}

static void repr(struct jrt *rt, struct jbuf *b, struct jvalue v, unsigned depth)
{
    jinja_step(rt, 1);
    if (depth > JINJA_VALUE_DEPTH_MAX)
        jinja_fail(rt, STATUS_LIMIT, "values nested too deeply to print");
    if (put_scalar(rt, b, v))
        return;
    switch (v.type) {
    case J_STR:
        if (v.s->markup)
            jbuf_puts(rt, b, "Markup(", false);
        repr_string(rt, b, v.s);
        if (v.s->markup)
            jbuf_puts(rt, b, ")", false);
        break;
    case J_LIST:
        jbuf_puts(rt, b, "[", false);
        repr_items(rt, b, v.l, depth);
        jbuf_puts(rt, b, "]", false);
        break;
    case J_TUPLE:
        jbuf_puts(rt, b, "(", false);
        repr_items(rt, b, v.l, depth);
        jbuf_puts(rt, b, v.l->n == 1 ? ",)" : ")", false);
        break;
    case J_DICT:
        repr_dict(rt, b, v.d, depth);
        break;
    case J_NAMESPACE:
        jbuf_puts(rt, b, "<Namespace ", false);
        repr_dict(rt, b, v.d, depth);
        jbuf_puts(rt, b, ">", false);
        break;
    case J_VIEW: {
        static const char *const names[] = {"dict_keys", "dict_values", "dict_items"};
        jbuf_puts(rt, b, names[v.view->kind], false);
        jbuf_puts(rt, b, "([", false);
        repr_items(rt, b, jvalue_items(rt, v), depth);
        jbuf_puts(rt, b, "])", false);
        break;
    }
    case J_RANGE: {
        char r[96];
        const struct jrange *x = v.range;
        int n = snprintf(r, sizeof r, "range(%lld, %lld", (long long)x->start, (long long)x->stop);
        if (x->step != 1)
            snprintf(r + n, sizeof r - (size_t)n, ", %lld)", (long long)x->step);
        else
            snprintf(r + n, sizeof r - (size_t)n, ")");
        jbuf_puts(rt, b, r, false);
        break;
    }
    default:
        if (v.type == J_UNDEFINED) {
            jbuf_puts(rt, b, "Undefined", false);
            break;
        }
        jbuf_puts(rt, b, "<", false);
        jbuf_puts(rt, b, jvalue_type_name(v), false);
        jbuf_puts(rt, b, ">", false);
    }
}

void jbuf_repr(struct jrt *rt, struct jbuf *b, struct jvalue v)
{
    repr(rt, b, v, 0);
}

void jbuf_value(struct jrt *rt, struct jbuf *b, struct jvalue v)
{
    if (v.type == J_STR)
        jbuf_str(rt, b, v.s);
    else if (v.type != J_UNDEFINED && !put_scalar(rt, b, v))
        repr(rt, b, v, 0);
}

struct jstr *jvalue_str(struct jrt *rt, struct jvalue v)
{
    if (v.type == J_STR)
        return v.s;
    struct jbuf b = {0};
    jbuf_value(rt, &b, v);
    return jbuf_finish(rt, &b);
}

/* -- JSON -- */

struct json_run {
    struct jbuf *b;
    const struct jjson_style *style;
    bool trusted; /* no part of the value came from the context */
};

static void dump_puts(struct jrt *rt, struct json_run *j, const char *s)
{
    jbuf_puts(rt, j->b, s, j->trusted);
}

static void dump_string(struct jrt *rt, struct json_run *j, const struct jstr *s)
{
    dump_puts(rt, j, "\"");
    jinja_step(rt, s->n / 16);
    size_t from = 0;
    for (size_t i = 0; i < s->n;) {
        unsigned char c = (unsigned char)s->p[i];
        if (c >= 0x20 && c != '"' && c != '\\' && (c < 0x7f || !j->style->ascii)) {
            i++;
            continue;
        }
        jbuf_bytes(rt, j->b, s->p + from, i - from, j->trusted);
        char e[16] = {'\\', (char)c, 0};
        const char *at = c ? strchr("\nn\rr\tt\bb\ff", c) : NULL;
        int32_t code;
        unsigned n = jutf8_decode(s->p + i, s->n - i, &code);
        if (at)
            e[1] = at[1];
        else if (code >= 0x10000)
            snprintf(e, sizeof e, "\\u%04x\\u%04x", 0xd800u + (((unsigned)code - 0x10000) >> 10),
                     0xdc00u + (((unsigned)code - 0x10000) & 0x3ff));
        else if (c != '"' && c != '\\')
            snprintf(e, sizeof e, "\\u%04x", (unsigned)code);
        dump_puts(rt, j, e);
        from = i += n;
    }
    jbuf_bytes(rt, j->b, s->p + from, s->n - from, j->trusted);
    dump_puts(rt, j, "\"");
}

static void dump_newline(struct jrt *rt, struct json_run *j, unsigned depth)
{
    if (!j->style->indent)
        return;
    dump_puts(rt, j, "\n");
    for (unsigned i = 0; i < depth; i++)
        jbuf_bytes(rt, j->b, j->style->indent, j->style->n_indent, j->trusted);
}

static void dump_item_sep(struct jrt *rt, struct json_run *j)
{
    if (j->style->item_sep)
        jbuf_bytes(rt, j->b, j->style->item_sep->p, j->style->item_sep->n, j->trusted);
    else
        dump_puts(rt, j, j->style->indent ? "," : ", ");
}

static void dump_value(struct jrt *rt, struct json_run *j, struct jvalue v, unsigned depth);

static void dump_scalar(struct jrt *rt, struct json_run *j, struct jvalue v)
{
    char num[40];
    if (v.type == J_NONE)
        dump_puts(rt, j, "null");
    else if (v.type == J_BOOL)
        dump_puts(rt, j, v.b ? "true" : "false");
    else if (v.type == J_FLOAT && isnan(v.f))
        dump_puts(rt, j, "NaN");
    else if (v.type == J_FLOAT && isinf(v.f))
        dump_puts(rt, j, v.f < 0 ? "-Infinity" : "Infinity");
    else if (v.type == J_FLOAT)
        jbuf_bytes(rt, j->b, num, (size_t)jfloat_repr(v.f, num), j->trusted);
    else {
        snprintf(num, sizeof num, "%lld", (long long)v.i);
        dump_puts(rt, j, num);
    }
}

static void dump_key(struct jrt *rt, struct json_run *j, struct jvalue key)
{
    if (key.type == J_STR) {
        dump_string(rt, j, key.s);
    } else if (key.type == J_NONE || jvalue_is_number(key)) {
        dump_puts(rt, j, "\"");
        dump_scalar(rt, j, key);
        dump_puts(rt, j, "\"");
    } else {
        jinja_fail(rt, STATUS_INVALID, "a %s cannot be a JSON key", jvalue_type_name(key));
    }
}

static int entry_order(struct jrt *rt, const struct jentry *a, const struct jentry *b)
{
    return jvalue_compare(rt, a->key, b->key, "<");
}

/* The entries sorted by key, for sort_keys: insertion sort, since such dicts are small. */
static struct jentry *sorted_entries(struct jrt *rt, const struct jdict *d)
{
    struct jentry *e = jinja_array(rt, d->n, sizeof *e);
    for (size_t i = 0; i < d->n; i++) {
        size_t k = i;
        for (; k > 0 && entry_order(rt, &d->e[i], &e[k - 1]) < 0; k--)
            e[k] = e[k - 1];
        e[k] = d->e[i];
    }
    return e;
}

static void dump_dict(struct jrt *rt, struct json_run *j, const struct jdict *d, unsigned depth)
{
    const struct jentry *e = j->style->sort_keys ? sorted_entries(rt, d) : d->e;
    dump_puts(rt, j, "{");
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            dump_item_sep(rt, j);
        dump_newline(rt, j, depth + 1);
        dump_key(rt, j, e[i].key);
        if (j->style->key_sep)
            jbuf_bytes(rt, j->b, j->style->key_sep->p, j->style->key_sep->n, j->trusted);
        else
            dump_puts(rt, j, ": ");
        dump_value(rt, j, e[i].value, depth + 1);
    }
    if (d->n)
        dump_newline(rt, j, depth);
    dump_puts(rt, j, "}");
}

static void dump_value(struct jrt *rt, struct json_run *j, struct jvalue v, unsigned depth)
{
    jinja_step(rt, 1);
    if (depth > JINJA_VALUE_DEPTH_MAX)
        jinja_fail(rt, STATUS_LIMIT, "values nested too deeply for JSON");
    switch (v.type) {
    case J_STR:
        dump_string(rt, j, v.s);
        break;
    case J_NONE:
    case J_BOOL:
    case J_INT:
    case J_FLOAT:
        dump_scalar(rt, j, v);
        break;
    case J_DICT:
        dump_dict(rt, j, v.d, depth);
        break;
    case J_LIST:
    case J_TUPLE:
        dump_puts(rt, j, "[");
        for (size_t i = 0; i < v.l->n; i++) {
            if (i)
                dump_item_sep(rt, j);
            dump_newline(rt, j, depth + 1);
            dump_value(rt, j, v.l->v[i], depth + 1);
        }
        if (v.l->n)
            dump_newline(rt, j, depth);
        dump_puts(rt, j, "]");
        break;
    default:
        jinja_fail(rt, STATUS_INVALID, "an object of type %s cannot be written as JSON",
                   jvalue_type_name(v));
    }
}

struct jstr *jvalue_json(struct jrt *rt, struct jvalue v, const struct jjson_style *style)
{
    struct jbuf b = {0};
    struct json_run j = {&b, style, !jvalue_tainted(v)};
    dump_value(rt, &j, v, 0);
    return jbuf_finish(rt, &b);
}
