/* jinja_ops: operators, subscripts, slices and attributes, with Python's rules.
 *
 * Integers have 64 bits; what Python would compute beyond them is an error. A result of arithmetic
 * counts as the context's when one of its operands does. Attributes follow the sandbox of
 * transformers: what Python's object has under that name comes first, names with a leading
 * underscore and methods that change their object are undefined, then keys of dicts. */
#include <math.h>

#include "common/text/jinja_eval.h"

static const char *op_text(int op)
{
    switch (op) {
    case '+':
        return "+";
    case '-':
        return "-";
    case '*':
        return "*";
    case '/':
        return "/";
    case '%':
        return "%";
    case JOP('/', '/'):
        return "//";
    default:
        return "**";
    }
}

static _Noreturn void fail_operands(struct jrt *rt, int op, struct jvalue a, struct jvalue b)
{
    if (a.type == J_UNDEFINED)
        jvalue_fail_undefined(rt, a);
    if (b.type == J_UNDEFINED)
        jvalue_fail_undefined(rt, b);
    jinja_fail(rt, STATUS_INVALID, "'%s' cannot join %s and %s", op_text(op), jvalue_type_name(a),
               jvalue_type_name(b));
}

static int64_t floor_div(int64_t a, int64_t b)
{
    int64_t q = a / b;
    return q - ((a % b != 0) && ((a < 0) != (b < 0)));
}

static double float_mod(double a, double b)
{
    double m = fmod(a, b);
    if (m != 0 && (m < 0) != (b < 0))
        m += b;
    return m == 0 ? copysign(0.0, b) : m;
}

static struct jvalue int_power(struct jrt *rt, int64_t a, int64_t b)
{
    if (b < 0) {
        if (a == 0)
            jinja_fail(rt, STATUS_INVALID, "0 cannot be raised to a negative power");
        return jfloat(pow((double)a, (double)b));
    }
    int64_t r = 1;
    bool over = false;
    while (b > 0 && !over) {
        if (b & 1)
            over |= __builtin_mul_overflow(r, a, &r);
        b >>= 1;
        if (b > 0)
            over |= __builtin_mul_overflow(a, a, &a);
    }
    if (over)
        jinja_fail(rt, STATUS_INVALID, "an integer is too large");
    return jint(r);
}

static struct jvalue int_op(struct jrt *rt, int op, int64_t a, int64_t b)
{
    int64_t r = 0;
    bool over = false;
    if (b == 0 && (op == '%' || op == '/' || op == JOP('/', '/')))
        jinja_fail(rt, STATUS_INVALID, "division by zero");
    switch (op) {
    case '+':
        over = __builtin_add_overflow(a, b, &r);
        break;
    case '-':
        over = __builtin_sub_overflow(a, b, &r);
        break;
    case '*':
        over = __builtin_mul_overflow(a, b, &r);
        break;
    case '/':
        return jfloat((double)a / (double)b);
    case '%':
        r = b == -1 ? 0 : a % b;
        if (r != 0 && (r < 0) != (b < 0))
            r += b;
        break;
    case JOP('/', '/'):
        over = a == INT64_MIN && b == -1;
        r = over ? 0 : floor_div(a, b);
        break;
    default:
        return int_power(rt, a, b);
    }
    if (over)
        jinja_fail(rt, STATUS_INVALID, "an integer is too large");
    return jint(r);
}

static struct jvalue float_op(struct jrt *rt, int op, double a, double b)
{
    if (b == 0 && (op == '%' || op == '/' || op == JOP('/', '/')))
        jinja_fail(rt, STATUS_INVALID, "division by zero");
    switch (op) {
    case '+':
        return jfloat(a + b);
    case '-':
        return jfloat(a - b);
    case '*':
        return jfloat(a * b);
    case '/':
        return jfloat(a / b);
    case '%':
        return jfloat(float_mod(a, b));
    case JOP('/', '/'): {
        double q = (a - float_mod(a, b)) / b;
        double f = floor(q);
        return jfloat(q - f > 0.5 ? f + 1 : f);
    }
    default:
        if ((a == 0 && b < 0) || (a < 0 && floor(b) != b))
            jinja_fail(rt, STATUS_INVALID, "this power is no real number");
        return jfloat(pow(a, b));
    }
}

static struct jvalue list_join(struct jrt *rt, struct jvalue a, struct jvalue b)
{
    struct jlist *l = jlist_new(rt, a.l->n + b.l->n);
    jinja_step(rt, (a.l->n + b.l->n) / 16);
    for (size_t i = 0; i < a.l->n; i++)
        jlist_push(rt, l, a.l->v[i]);
    for (size_t i = 0; i < b.l->n; i++)
        jlist_push(rt, l, b.l->v[i]);
    return a.type == J_TUPLE ? jtuple_value(l) : jlist_value(l);
}

static struct jvalue list_repeat(struct jrt *rt, struct jvalue a, int64_t times)
{
    size_t total = 0;
    if (times > 0 && !mem_mul(a.l->n, (size_t)times, &total))
        jinja_fail(rt, STATUS_LIMIT, "needs more memory than allowed");
    struct jlist *l = jlist_new(rt, total);
    jinja_step(rt, total / 16);
    for (size_t i = 0; i < total; i++)
        jlist_push(rt, l, a.l->v[i % a.l->n]);
    return a.type == J_TUPLE ? jtuple_value(l) : jlist_value(l);
}

static struct jvalue add_strings(struct jrt *rt, struct jstr *a, struct jstr *b)
{
    if (!a->markup && !b->markup)
        return jstring(jstr_concat(rt, a, b));
    struct jstr *s = jstr_concat(rt, jstr_escape(rt, a), jstr_escape(rt, b));
    return jstring(jstr_mark(rt, s, true));
}

struct jvalue jop_binary(struct jrt *rt, int op, struct jvalue a, struct jvalue b)
{
    bool tainted = a.tainted || b.tainted;
    if (op == '%' && a.type == J_STR)
        return jstring(jstr_percent(rt, a.s, b));
    if (jvalue_is_number(a) && jvalue_is_number(b)) {
        if (a.type == J_FLOAT || b.type == J_FLOAT)
            return jtaint(float_op(rt, op, jvalue_double(a), jvalue_double(b)), tainted);
        int64_t x = a.type == J_INT ? a.i : a.b, y = b.type == J_INT ? b.i : b.b;
        return jtaint(int_op(rt, op, x, y), tainted);
    }
    if (op == '+' && a.type == J_STR && b.type == J_STR)
        return add_strings(rt, a.s, b.s);
    if (op == '+' && a.type == b.type && (a.type == J_LIST || a.type == J_TUPLE))
        return list_join(rt, a, b);
    if (op == '*') {
        if (b.type == J_STR || b.type == J_LIST || b.type == J_TUPLE) {
            struct jvalue t = a;
            a = b;
            b = t;
        }
        if ((b.type == J_INT || b.type == J_BOOL) && a.type == J_STR)
            return jstring(jstr_repeat(rt, a.s, jvalue_index(rt, b, "*")));
        if ((b.type == J_INT || b.type == J_BOOL) && (a.type == J_LIST || a.type == J_TUPLE))
            return list_repeat(rt, a, jvalue_index(rt, b, "*"));
    }
    fail_operands(rt, op, a, b);
}

struct jvalue jop_concat(struct jrt *rt, const struct jvalue *v, size_t n)
{
    struct jstr *s = jstr_mark(rt, jvalue_str(rt, v[0]), false);
    for (size_t i = 1; i < n; i++)
        s = jstr_concat(rt, s, jstr_mark(rt, jvalue_str(rt, v[i]), false));
    return jstring(s);
}

struct jvalue jop_negate(struct jrt *rt, struct jvalue v, bool minus)
{
    if (v.type == J_UNDEFINED)
        jvalue_fail_undefined(rt, v);
    if (!jvalue_is_number(v))
        jinja_fail(rt, STATUS_INVALID, "a %s has no sign", jvalue_type_name(v));
    if (v.type == J_FLOAT)
        return jtaint(jfloat(minus ? -v.f : v.f), v.tainted);
    int64_t i = v.type == J_INT ? v.i : v.b;
    if (minus && i == INT64_MIN)
        jinja_fail(rt, STATUS_INVALID, "an integer is too large");
    return jtaint(jint(minus ? -i : i), v.tainted);
}

bool jop_compare(struct jrt *rt, int cmp, struct jvalue a, struct jvalue b)
{
    static const char *const names[] = {"==", "!=", "<", "<=", ">", ">="};
    int order;
    switch (cmp) {
    case JCMP_EQ:
        return jvalue_equal(rt, a, b);
    case JCMP_NE:
        return !jvalue_equal(rt, a, b);
    case JCMP_IN:
        return jvalue_contains(rt, b, a);
    case JCMP_NOT_IN:
        return !jvalue_contains(rt, b, a);
    default:
        order = jvalue_compare(rt, a, b, names[cmp]);
    }
    if (order == 2) /* not a number has no order */
        return false;
    return cmp == JCMP_LT   ? order < 0
           : cmp == JCMP_LE ? order <= 0
           : cmp == JCMP_GT ? order > 0
                            : order >= 0;
}

/* -- subscripts -- */

/* index into 0..n, or -1 when it is outside. */
static int64_t wrap_index(int64_t i, int64_t n)
{
    if (i < 0)
        i += n;
    return i >= 0 && i < n ? i : -1;
}

static struct jvalue str_at(struct jrt *rt, struct jstr *s, int64_t i)
{
    size_t from = jstr_offset(rt, s, (size_t)i);
    int32_t c;
    return jstring(jstr_sub(rt, s, from, from + jutf8_decode(s->p + from, s->n - from, &c)));
}

/* What `of` has as a Python attribute; J_MISSING when it has none of that name. */
static struct jvalue own_attr(struct jrt *rt, struct jvalue of, struct jstr *name)
{
    const struct jvalue none = {.type = J_MISSING};
    const char *type = jvalue_type_name(of);
    if (name->n >= 2 && memcmp(name->p, "__", 2) == 0 && of.type != J_NAMESPACE)
        return of.type == J_DICT && jdict_get_str(rt, of.d, name)
                   ? none
                   : jundefined_name(rt, type, jstring(name), true);
    const struct jmethod_def *def = jmethod_find(of, name);
    if (def && def->unsafe)
        return jundefined_name(rt, type, jstring(name), true);
    if (def) {
        struct jmethod *m = jinja_alloc(rt, sizeof *m);
        *m = (struct jmethod){of, def};
        return (struct jvalue){.type = J_METHOD, .method = m};
    }
    switch (of.type) {
    case J_NAMESPACE: {
        const struct jvalue *v = jdict_get_str(rt, of.d, name);
        return v ? *v : none;
    }
    case J_LOOP:
        return jloop_attr(rt, of.loop, name);
    case J_MACRO:
        return jstr_is(name, "name") ? jstring(jstr_literal(rt, of.macro->sig->name)) : none;
    case J_CYCLER:
        return jstr_is(name, "current") ? of.cycler->items->v[of.cycler->at] : none;
    default:
        return none;
    }
}

struct jvalue jop_attr(struct jrt *rt, struct jvalue of, struct jstr *name)
{
    if (of.type == J_UNDEFINED)
        jvalue_fail_undefined(rt, of);
    struct jvalue v = own_attr(rt, of, name);
    if (v.type != J_MISSING)
        return v;
    const struct jvalue *item = of.type == J_DICT ? jdict_get_str(rt, of.d, name) : NULL;
    return item ? *item : jundefined_name(rt, jvalue_type_name(of), jstring(name), false);
}

struct jvalue jop_item(struct jrt *rt, struct jvalue of, struct jvalue index)
{
    bool whole = index.type == J_INT || index.type == J_BOOL;
    int64_t i = index.type == J_INT ? index.i : index.type == J_BOOL ? index.b : 0, at;
    switch (of.type) {
    case J_UNDEFINED:
        jvalue_fail_undefined(rt, of);
    case J_DICT: {
        const struct jvalue *v = jdict_get(rt, of.d, index);
        if (v)
            return *v;
        break;
    }
    case J_LIST:
    case J_TUPLE:
        if (whole && (at = wrap_index(i, (int64_t)of.l->n)) >= 0)
            return of.l->v[at];
        break;
    case J_STR:
        if (whole && (at = wrap_index(i, (int64_t)jstr_chars(rt, of.s))) >= 0)
            return str_at(rt, of.s, at);
        break;
    case J_RANGE:
        if (whole && (at = wrap_index(i, of.range->n)) >= 0)
            return jint(of.range->start + at * of.range->step);
        break;
    default:
        break;
    }
    if (index.type == J_STR) {
        struct jvalue v = own_attr(rt, of, index.s);
        if (v.type != J_MISSING)
            return v;
    }
    return jundefined_name(rt, jvalue_type_name(of), index, false);
}

/* One bound of a slice over n items, clipped as Python clips it. */
static int64_t slice_bound(struct jrt *rt, struct jvalue v, int64_t n, int64_t step, bool is_start)
{
    if (v.type == J_MISSING || v.type == J_NONE) {
        if (step > 0)
            return is_start ? 0 : n;
        return is_start ? n - 1 : -1;
    }
    int64_t i = jvalue_index(rt, v, "a slice");
    int64_t low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
    if (i < 0)
        i = i < -n ? low : i + n;
    return i < low ? low : i > high ? high : i;
}

/* A slice of a range is a range. */
static struct jvalue slice_range(struct jrt *rt, const struct jrange *r, int64_t from, int64_t to,
                                 int64_t by)
{
    int64_t step, start, stop, off;
    if (__builtin_mul_overflow(r->step, by, &step) || __builtin_mul_overflow(from, r->step, &off) ||
        __builtin_add_overflow(r->start, off, &start) ||
        __builtin_mul_overflow(to, r->step, &off) || __builtin_add_overflow(r->start, off, &stop))
        jinja_fail(rt, STATUS_INVALID, "an integer is too large");
    return jrange_value(rt, start, stop, step);
}

struct jvalue jop_slice(struct jrt *rt, struct jvalue of, struct jvalue start, struct jvalue stop,
                        struct jvalue step)
{
    if (of.type == J_UNDEFINED)
        jvalue_fail_undefined(rt, of);
    if (of.type != J_STR && of.type != J_LIST && of.type != J_TUPLE && of.type != J_RANGE)
        jinja_fail(rt, STATUS_INVALID, "a %s cannot be sliced", jvalue_type_name(of));
    int64_t n = jvalue_length(rt, of);
    int64_t by =
        step.type == J_MISSING || step.type == J_NONE ? 1 : jvalue_index(rt, step, "a slice");
    if (by == 0)
        jinja_fail(rt, STATUS_INVALID, "a slice cannot have step 0");
    int64_t from = slice_bound(rt, start, n, by, true), to = slice_bound(rt, stop, n, by, false);
    if (of.type == J_STR && by == 1) {
        if (from >= to)
            return jstring(jstr_sub(rt, of.s, 0, 0));
        return jstring(jstr_sub(rt, of.s, jstr_offset(rt, of.s, (size_t)from),
                                jstr_offset(rt, of.s, (size_t)to)));
    }
    if (of.type == J_RANGE)
        return slice_range(rt, of.range, from, to, by);
    struct jbuf b = {0};
    struct jlist *l = jlist_new(rt, 0);
    for (int64_t i = from; by > 0 ? i < to : i > to;) {
        jinja_step(rt, 1);
        if (of.type == J_STR) {
            if (jstr_chars(rt, of.s) != of.s->n)
                jinja_step(rt, of.s->n / 64);
            struct jvalue c = str_at(rt, of.s, i);
            jbuf_str(rt, &b, c.s);
        } else {
            jlist_push(rt, l, of.l->v[i]);
        }
        if (__builtin_add_overflow(i, by, &i))
            break;
    }
    if (of.type == J_STR)
        return jstring(jstr_mark(rt, jbuf_finish(rt, &b), of.s->markup));
    return of.type == J_TUPLE ? jtuple_value(l) : jlist_value(l);
}
