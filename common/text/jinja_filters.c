/* jinja_filters: filters over text and numbers, and the lookup of all filters.
 *
 * Jinja's list is complete but for filters that make no sense in a prompt or depend on chance:
 * filesizeformat, pprint, random, striptags, urlize, wordwrap, xmlattr. tojson is the one that
 * transformers installs (no ASCII or HTML escaping). Filters over sequences: jinja_filters_seq. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/text/jinja_eval.h"

static const struct jargs NO_ARGS = {0};

static bool given(struct jvalue v)
{
    return v.type != J_MISSING && v.type != J_NONE;
}

/* soft_str: strings stay as they are, everything else becomes text. */
static struct jvalue soft(struct jrt *rt, struct jvalue v)
{
    return jstring(jvalue_str(rt, v));
}

static struct jvalue plain(struct jrt *rt, struct jvalue v)
{
    return jstring(jstr_mark(rt, jvalue_str(rt, v), false));
}

static struct jvalue method(struct jrt *rt, const char *name, struct jvalue v,
                            const struct jargs *a)
{
    struct jvalue s = soft(rt, v);
    return jmethod_call(rt, jmethod_find(s, jstr_literal(rt, name)), s, a);
}

/* -- text -- */

static struct jvalue f_trim(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    struct jvalue p[1];
    JARGS_BIND(rt, "trim", a, 0, p, "chars");
    struct jargs chars = {.pos = p, .n = given(p[0])};
    return method(rt, "strip", v, &chars);
}

static struct jvalue f_upper(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    return method(rt, "upper", v, a);
}

static struct jvalue f_lower(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    return method(rt, "lower", v, a);
}

static struct jvalue f_capitalize(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    return method(rt, "capitalize", v, a);
}

static struct jvalue f_center(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    struct jvalue p[1];
    JARGS_BIND(rt, "center", a, 0, p, "width");
    if (p[0].type == J_MISSING)
        p[0] = jint(80);
    struct jargs width = {.pos = p, .n = 1};
    return method(rt, "center", v, &width);
}

/* Words begin after white space, hyphens and opening brackets. */
static struct jvalue f_title(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    struct jstr *s = jvalue_str(rt, v);
    struct jbuf b = {0};
    bool inside = false;
    jmethod_need(rt, a, 0, 0, "title");
    jinja_step(rt, s->n / 8);
    for (size_t i = 0; i < s->n;) {
        int32_t c;
        jutf8_decode(s->p + i, s->n - i, &c);
        bool gap = jchar_space(c) || (c < 0x80 && c > 0 && strchr("-({[<", (char)c));
        i += jbuf_case(rt, &b, s, i, inside ? JCASE_LOWER : JCASE_UPPER);
        inside = !gap;
    }
    return jstring(jbuf_finish(rt, &b));
}

static struct jvalue f_replace(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    struct jvalue p[3];
    JARGS_BIND(rt, "replace", a, 2, p, "old", "new", "count");
    int64_t count = given(p[2]) ? jvalue_index(rt, p[2], "replace") : -1;
    return jstring(
        jstr_replace(rt, plain(rt, v).s, jvalue_str(rt, p[0]), jvalue_str(rt, p[1]), count));
}

static struct jvalue f_string(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    jmethod_need(rt, a, 0, 0, "string");
    return soft(rt, v);
}

static struct jvalue f_safe(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    jmethod_need(rt, a, 0, 0, "safe");
    return jstring(jstr_mark(rt, jvalue_str(rt, v), true));
}

static struct jvalue f_escape(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    jmethod_need(rt, a, 0, 0, "escape");
    return jstring(jstr_escape(rt, jvalue_str(rt, v)));
}

static struct jvalue f_forceescape(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    jmethod_need(rt, a, 0, 0, "forceescape");
    return jstring(jstr_escape(rt, plain(rt, v).s));
}

static struct jvalue f_format(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    struct jvalue values;
    if (a->n && a->n_kw)
        jinja_fail(rt, STATUS_INVALID, "format takes positional or keyword arguments, not both");
    if (a->n_kw) {
        struct jdict *d = jdict_new(rt, a->n_kw);
        for (size_t i = 0; i < a->n_kw; i++)
            jdict_set(rt, d, jstring(a->kw[i].name), a->kw[i].v);
        values = jdict_value(d);
    } else {
        struct jlist *l = jlist_new(rt, a->n);
        for (size_t i = 0; i < a->n; i++)
            jlist_push(rt, l, a->pos[i]);
        values = jtuple_value(l);
    }
    return jstring(jstr_percent(rt, jvalue_str(rt, v), values));
}

static struct jvalue f_indent(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    struct jvalue p[3];
    JARGS_BIND(rt, "indent", a, 0, p, "width", "first", "blank");
    if (v.type != J_STR)
        jinja_fail(rt, STATUS_INVALID, "indent needs a string, not %s", jvalue_type_name(v));
    const struct jstr *by =
        p[0].type == J_STR
            ? p[0].s
            : jstr_repeat(rt, jstr_literal(rt, " "),
                          p[0].type == J_MISSING ? 4 : jvalue_index(rt, p[0], "indent"));
    bool blank = jvalue_truth(p[2]);
    struct jlist *lines = jstr_splitlines(rt, jstr_concat(rt, v.s, jstr_literal(rt, "\n")), false);
    struct jbuf b = {0};
    if (jvalue_truth(p[1]))
        jbuf_str(rt, &b, by);
    for (size_t i = 0; i < lines->n; i++) {
        struct jstr *line = lines->v[i].s;
        if (i)
            jbuf_puts(rt, &b, "\n", true);
        if (i && (blank || line->n))
            jbuf_str(rt, &b, by);
        jbuf_str(rt, &b, line);
    }
    return jstring(jstr_mark(rt, jbuf_finish(rt, &b), v.s->markup));
}

static struct jvalue f_truncate(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    struct jvalue p[4];
    JARGS_BIND(rt, "truncate", a, 0, p, "length", "killwords", "end", "leeway");
    struct jstr *s = jvalue_str(rt, v);
    struct jstr *end =
        p[2].type == J_MISSING ? jstr_literal(rt, "...") : jmethod_str_arg(rt, p[2], "truncate");
    int64_t length = p[0].type == J_MISSING ? 255 : jvalue_index(rt, p[0], "truncate");
    int64_t leeway = given(p[3]) ? jvalue_index(rt, p[3], "truncate") : 5;
    int64_t tail = (int64_t)jstr_chars(rt, end);
    if (length < tail || leeway < 0)
        jinja_fail(rt, STATUS_INVALID, "truncate needs room for its end text");
    if (length > INT32_MAX || leeway > INT32_MAX || (int64_t)jstr_chars(rt, s) <= length + leeway)
        return jstring(s);
    struct jstr *cut = jstr_sub(rt, s, 0, jstr_offset(rt, s, (size_t)(length - tail)));
    if (!jvalue_truth(p[1])) {
        size_t at = jstr_rfind(rt, cut, jstr_literal(rt, " "), 0, cut->n);
        cut = jstr_sub(rt, cut, 0, at == SIZE_MAX ? cut->n : at);
    }
    return jstring(jstr_concat(rt, cut, end));
}

static struct jvalue f_wordcount(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    struct jstr *s = jvalue_str(rt, v);
    int64_t n = 0;
    bool inside = false;
    jmethod_need(rt, a, 0, 0, "wordcount");
    jinja_step(rt, s->n / 16);
    for (size_t i = 0; i < s->n;) {
        int32_t c;
        i += jutf8_decode(s->p + i, s->n - i, &c);
        n += jchar_word(c) && !inside;
        inside = jchar_word(c);
    }
    return jint(n);
}

static void url_quote(struct jrt *rt, struct jbuf *b, struct jvalue v, bool query)
{
    const struct jstr *s = jvalue_str(rt, v);
    jinja_step(rt, s->n / 8);
    for (size_t i = 0; i < s->n; i++) {
        unsigned char c = (unsigned char)s->p[i];
        char hex[4];
        bool keep = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                    (c && strchr("_.-~", c)) || (c == '/' && !query);
        if (keep)
            jbuf_sub(rt, b, s, i, i + 1);
        else if (c == ' ' && query)
            jbuf_puts(rt, b, "+", false);
        else {
            snprintf(hex, sizeof hex, "%%%02X", c);
            jbuf_puts(rt, b, hex, false);
        }
    }
}

static struct jvalue f_urlencode(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    struct jbuf b = {0};
    jmethod_need(rt, a, 0, 0, "urlencode");
    if (v.type == J_STR || !jvalue_iterable(v)) {
        url_quote(rt, &b, v, false);
        return jstring(jbuf_finish(rt, &b));
    }
    struct jlist *pairs;
    if (v.type == J_DICT) {
        pairs = jlist_new(rt, v.d->n);
        for (size_t i = 0; i < v.d->n; i++)
            jlist_push(rt, pairs, jtuple_value(jpair(rt, v.d->e[i].key, v.d->e[i].value)));
    } else {
        pairs = jvalue_items(rt, v);
    }
    for (size_t i = 0; i < pairs->n; i++) {
        struct jlist *pair = jvalue_items(rt, pairs->v[i]);
        if (pair->n != 2)
            jinja_fail(rt, STATUS_INVALID, "urlencode needs pairs");
        if (i)
            jbuf_puts(rt, &b, "&", false);
        url_quote(rt, &b, pair->v[0], true);
        jbuf_puts(rt, &b, "=", false);
        url_quote(rt, &b, pair->v[1], true);
    }
    return jstring(jbuf_finish(rt, &b));
}

/* -- JSON -- */

static struct jvalue f_tojson(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    struct jvalue p[4];
    struct jjson_style style = {0};
    JARGS_BIND(rt, "tojson", a, 0, p, "ensure_ascii", "indent", "separators", "sort_keys");
    style.ascii = jvalue_truth(p[0]);
    style.sort_keys = jvalue_truth(p[3]);
    if (p[1].type == J_STR) {
        style.indent = p[1].s->p;
        style.n_indent = p[1].s->n;
    } else if (given(p[1])) {
        const struct jstr *by =
            jstr_repeat(rt, jstr_literal(rt, " "), jvalue_index(rt, p[1], "tojson"));
        style.indent = by->p;
        style.n_indent = by->n;
    }
    if (given(p[2])) {
        struct jlist *seps = jvalue_items(rt, p[2]);
        if (seps->n != 2)
            jinja_fail(rt, STATUS_INVALID, "tojson needs two separators");
        style.item_sep = jmethod_str_arg(rt, seps->v[0], "tojson");
        style.key_sep = jmethod_str_arg(rt, seps->v[1], "tojson");
    }
    return jstring(jvalue_json(rt, v, &style));
}

/* -- numbers -- */

static struct jvalue f_int(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    struct jvalue p[2], otherwise;
    JARGS_BIND(rt, "int", a, 0, p, "default", "base");
    otherwise = p[0].type == J_MISSING ? jint(0) : p[0];
    int64_t base = p[1].type == J_MISSING ? 10 : jvalue_index(rt, p[1], "int"), i;
    double d = NAN;
    if (base != 0 && (base < 2 || base > 36))
        return otherwise;
    if (v.type == J_UNDEFINED)
        jvalue_fail_undefined(rt, v);
    if (v.type == J_INT || v.type == J_BOOL)
        return jtaint(jint(v.type == J_INT ? v.i : v.b), v.tainted);
    if (v.type == J_STR && jnumber_int(v.s, (int)base, &i))
        return jtaint(jint(i), jvalue_tainted(v));
    if (v.type == J_FLOAT)
        d = v.f;
    else if (v.type != J_STR || !jnumber_float(v.s, &d))
        return otherwise;
    if (!isfinite(d))
        return otherwise;
    if (fabs(d) >= 9223372036854775808.0)
        jinja_fail(rt, STATUS_INVALID, "an integer is too large");
    return jtaint(jint((int64_t)d), jvalue_tainted(v));
}

static struct jvalue f_float(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    struct jvalue p[1];
    double d;
    JARGS_BIND(rt, "float", a, 0, p, "default");
    if (v.type == J_UNDEFINED)
        jvalue_fail_undefined(rt, v);
    if (jvalue_is_number(v))
        return jtaint(jfloat(jvalue_double(v)), v.tainted);
    if (v.type == J_STR && jnumber_float(v.s, &d))
        return jtaint(jfloat(d), jvalue_tainted(v));
    return p[0].type == J_MISSING ? jfloat(0) : p[0];
}

static struct jvalue f_abs(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    jmethod_need(rt, a, 0, 0, "abs");
    bool negative = jvalue_is_number(v) && jvalue_double(v) < 0;
    return jop_negate(rt, v, negative);
}

/* Half to even, in the decimal digits of the number, as Python's round does. */
static double round_common(double v, int64_t digits)
{
    char text[400];
    if (!isfinite(v) || digits > 300)
        return v;
    if (digits >= 0) {
        snprintf(text, sizeof text, "%.*f", (int)digits, v);
        return strtod(text, NULL);
    }
    if (digits < -308)
        return copysign(0.0, v);
    double scale = pow(10, (double)-digits);
    return nearbyint(v / scale) * scale;
}

static struct jvalue f_round(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    struct jvalue p[2];
    JARGS_BIND(rt, "round", a, 0, p, "precision", "method");
    int64_t digits = p[0].type == J_MISSING ? 0 : jvalue_index(rt, p[0], "round");
    struct jstr *how =
        p[1].type == J_MISSING ? jstr_literal(rt, "common") : jmethod_str_arg(rt, p[1], "round");
    if (v.type == J_UNDEFINED)
        jvalue_fail_undefined(rt, v);
    if (!jvalue_is_number(v))
        jinja_fail(rt, STATUS_INVALID, "round needs a number, not %s", jvalue_type_name(v));
    if (jstr_is(how, "common")) {
        if (v.type == J_FLOAT)
            return jtaint(jfloat(round_common(v.f, digits)), v.tainted);
        int64_t i = v.type == J_INT ? v.i : v.b;
        if (digits < 0)
            i = digits < -18 ? 0 : (int64_t)round_common((double)i, digits);
        return jtaint(jint(i), v.tainted);
    }
    bool up = jstr_is(how, "ceil");
    if (!up && !jstr_is(how, "floor"))
        jinja_fail(rt, STATUS_INVALID, "round knows common, ceil and floor");
    double scale = pow(10, (double)digits), scaled = jvalue_double(v) * scale;
    return jtaint(jfloat((up ? ceil(scaled) : floor(scaled)) / scale), v.tainted);
}

static struct jvalue f_default(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    struct jvalue p[2];
    JARGS_BIND(rt, "default", a, 0, p, "default_value", "boolean");
    bool use = v.type == J_UNDEFINED || (jvalue_truth(p[1]) && !jvalue_truth(v));
    if (!use)
        return v;
    return p[0].type == J_MISSING ? jstring(jstr_literal(rt, "")) : p[0];
}

const struct jfilter_def jfilters_text[] = {
    {"abs", f_abs},
    {"capitalize", f_capitalize},
    {"center", f_center},
    {"d", f_default},
    {"default", f_default},
    {"e", f_escape},
    {"escape", f_escape},
    {"float", f_float},
    {"forceescape", f_forceescape},
    {"format", f_format},
    {"indent", f_indent},
    {"int", f_int},
    {"lower", f_lower},
    {"replace", f_replace},
    {"round", f_round},
    {"safe", f_safe},
    {"string", f_string},
    {"title", f_title},
    {"tojson", f_tojson},
    {"trim", f_trim},
    {"truncate", f_truncate},
    {"upper", f_upper},
    {"urlencode", f_urlencode},
    {"wordcount", f_wordcount},
};
const size_t jfilters_text_n = sizeof jfilters_text / sizeof *jfilters_text;

static int compare_name(const struct jstr *name, const char *entry)
{
    size_t n = strlen(entry);
    int c = memcmp(name->p, entry, name->n < n ? name->n : n);
    return c ? c : name->n < n ? -1 : name->n > n;
}

static jfilter_fn find_in(const struct jfilter_def *table, size_t n, const struct jstr *name)
{
    for (size_t lo = 0, hi = n; lo < hi;) {
        size_t mid = (lo + hi) / 2;
        int c = compare_name(name, table[mid].name);
        if (c == 0)
            return table[mid].fn;
        if (c > 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

jfilter_fn jfilter_find(const struct jstr *name)
{
    jfilter_fn fn = find_in(jfilters_text, jfilters_text_n, name);
    return fn ? fn : find_in(jfilters_seq, jfilters_seq_n, name);
}

struct jvalue jfilter_apply(struct jrt *rt, const struct jstr *name, struct jvalue v,
                            const struct jargs *a)
{
    jfilter_fn fn = jfilter_find(name);
    if (!fn)
        jinja_fail(rt, STATUS_INVALID, "no filter is named '%.*s'",
                   (int)(name->n < 64 ? name->n : 64), name->p);
    return fn(rt, v, a ? a : &NO_ARGS);
}
