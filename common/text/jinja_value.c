/* jinja_value: lists, dicts, iteration and what every value can do (truth, equality, order, length,
 * membership), as Python does it.
 *
 * A dict keeps its entries in insertion order and gets a hash index when it has more than
 * DICT_SMALL of them. Numbers that are equal are equal keys (1, 1.0 and true), so their hash is
 * taken from the number, not from the type. A generator is computed at once and hands its items out
 * once, which differs from Python only in when an error is noticed.
 *
 * Walks over nested values count their depth (a template can nest values without nesting its
 * source) and their steps (shared sublists make a small value exponentially large to walk). */
#include "common/text/jinja_value.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "common/base/hash.h"
#include "common/text/jinja_str.h"

#define DICT_SMALL 8

void jinja_fail_bare(struct jrt *rt, int status, const char *p, size_t n)
{
    rt->status = status;
    if (rt->errlen > 0) {
        if (n >= rt->errlen) {
            n = rt->errlen - 1;
            while (n > 0 && ((unsigned char)p[n] & 0xc0) == 0x80)
                n--;
        }
        memcpy(rt->err, p, n);
        rt->err[n] = '\0';
    }
    longjmp(rt->stop, 1);
}

void jinja_fail(struct jrt *rt, int status, const char *fmt, ...)
{
    char text[512];
    int head = snprintf(text, sizeof text, "chat template line %u: ", rt->line);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text + head, sizeof text - (size_t)head, fmt, ap);
    va_end(ap);
    size_t len = (size_t)head + (n > 0 ? (size_t)n : 0);
    if (len >= sizeof text) {
        len = sizeof text - 1;
        while (len > 0 && ((unsigned char)text[len] & 0xc0) == 0x80)
            len--; /* the text may have been cut inside a character */
    }
    jinja_fail_bare(rt, status, text, len);
}

void jinja_fail_steps(struct jrt *rt)
{
    jinja_fail(rt, STATUS_LIMIT, "takes too many steps");
}

void *jinja_alloc(struct jrt *rt, size_t n)
{
    void *p = arena_alloc(&rt->arena, n ? n : 1);
    if (p)
        return p;
    if (n > rt->arena.limit || rt->arena.used + 16 > rt->arena.limit - n)
        jinja_fail(rt, STATUS_LIMIT, "needs more memory than allowed");
    jinja_fail(rt, STATUS_NOMEM, "out of memory");
}

void *jinja_array(struct jrt *rt, size_t n, size_t size)
{
    size_t total;
    if (!mem_mul(n, size, &total))
        jinja_fail(rt, STATUS_LIMIT, "needs more memory than allowed");
    return jinja_alloc(rt, total);
}

/* -- constructors -- */

struct jvalue jgen_value(struct jrt *rt, struct jlist *items)
{
    struct jgen *g = jinja_alloc(rt, sizeof *g);
    g->items = items;
    return (struct jvalue){.type = J_GEN, .gen = g};
}

struct jvalue jrange_value(struct jrt *rt, int64_t start, int64_t stop, int64_t step)
{
    struct jrange *r = jinja_alloc(rt, sizeof *r);
    *r = (struct jrange){start, stop, step, 0};
    if (step == 0)
        jinja_fail(rt, STATUS_INVALID, "range() arg 3 must not be zero");
    __int128 span = step > 0 ? (__int128)stop - start : (__int128)start - stop;
    __int128 stride = step > 0 ? step : -(__int128)step;
    if (span > 0) {
        __int128 n = (span + stride - 1) / stride;
        if (n > JINJA_RANGE_MAX)
            jinja_fail(rt, STATUS_LIMIT, "range of more than %d numbers", JINJA_RANGE_MAX);
        r->n = (int64_t)n;
    }
    return (struct jvalue){.type = J_RANGE, .range = r};
}

struct jvalue jundefined(struct jrt *rt, const char *hint)
{
    struct jundef *u = jinja_alloc(rt, sizeof *u);
    u->hint = hint;
    return (struct jvalue){.type = J_UNDEFINED, .undef = u};
}

struct jvalue jundefined_name(struct jrt *rt, const char *of, struct jvalue name, bool unsafe)
{
    struct jundef *u = jinja_alloc(rt, sizeof *u);
    *u = (struct jundef){.of = of, .name = name, .unsafe = unsafe};
    return (struct jvalue){.type = J_UNDEFINED, .undef = u};
}

void jvalue_fail_undefined(struct jrt *rt, struct jvalue v)
{
    const struct jundef *u = v.undef;
    if (!u)
        jinja_fail(rt, STATUS_INVALID, "a value is undefined");
    if (u->hint)
        jinja_fail(rt, STATUS_INVALID, "%s", u->hint);
    struct jbuf b = {0};
    jbuf_repr(rt, &b, u->name);
    int n = b.n < 200 ? (int)b.n : 200;
    if (u->unsafe)
        jinja_fail(rt, STATUS_INVALID, "access to attribute %.*s of a %s is not allowed", n, b.p,
                   u->of);
    if (u->of)
        jinja_fail(rt, STATUS_INVALID, "a %s has no %s %.*s", u->of,
                   u->name.type == J_STR ? "attribute" : "element", n, b.p);
    jinja_fail(rt, STATUS_INVALID, "%.*s is undefined", n, b.p);
}

static struct jvalue from_json(struct jrt *rt, const json_t *j, bool trusted, unsigned depth)
{
    if (depth > JINJA_VALUE_DEPTH_MAX)
        jinja_fail(rt, STATUS_LIMIT, "the context is nested too deeply");
    struct jvalue v = jnone();
    switch (json_typeof(j)) {
    case JSON_NULL:
        break;
    case JSON_TRUE:
        v = jbool(true);
        break;
    case JSON_FALSE:
        v = jbool(false);
        break;
    case JSON_INTEGER:
        v = jint(json_integer_value(j));
        break;
    case JSON_REAL:
        v = jfloat(json_real_value(j));
        break;
    case JSON_STRING:
        return jstring(jstr_loan(rt, json_string_value(j), json_string_length(j), trusted));
    case JSON_ARRAY: {
        struct jlist *l = jlist_new(rt, json_array_size(j));
        for (size_t i = 0; i < json_array_size(j); i++)
            jlist_push(rt, l, from_json(rt, json_array_get(j, i), trusted, depth + 1));
        return jlist_value(l);
    }
    case JSON_OBJECT: {
        json_t *o = (json_t *)(uintptr_t)j; /* jansson iterates through a plain pointer */
        struct jdict *d = jdict_new(rt, json_object_size(j));
        for (void *it = json_object_iter(o); it; it = json_object_iter_next(o, it)) {
            const char *key = json_object_iter_key(it);
            struct jstr *s = jstr_loan(rt, key, strlen(key), trusted);
            jdict_set(rt, d, jstring(s),
                      from_json(rt, json_object_iter_value(it), trusted, depth + 1));
        }
        return jdict_value(d);
    }
    }
    v.tainted = !trusted;
    return v;
}

struct jvalue jvalue_from_json(struct jrt *rt, const json_t *j, bool trusted)
{
    return from_json(rt, j, trusted, 0);
}

bool jvalue_tainted(struct jvalue v)
{
    switch (v.type) {
    case J_UNDEFINED:
        return false;
    case J_NONE:
    case J_BOOL:
    case J_INT:
    case J_FLOAT:
        return v.tainted;
    case J_STR:
        return !jstr_trusted(v.s);
    default:
        return true;
    }
}

/* -- lists and dicts -- */

struct jlist *jlist_new(struct jrt *rt, size_t cap)
{
    struct jlist *l = jinja_alloc(rt, sizeof *l);
    if (cap > 0) {
        l->v = jinja_array(rt, cap, sizeof *l->v);
        l->cap = cap;
    }
    return l;
}

void jlist_push(struct jrt *rt, struct jlist *l, struct jvalue v)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 4;
        struct jvalue *p = jinja_array(rt, cap, sizeof *p);
        if (l->n)
            memcpy(p, l->v, l->n * sizeof *p);
        l->v = p;
        l->cap = cap;
    }
    l->v[l->n++] = v;
}

struct jlist *jpair(struct jrt *rt, struct jvalue a, struct jvalue b)
{
    struct jlist *l = jlist_new(rt, 2);
    l->v[0] = a;
    l->v[1] = b;
    l->n = 2;
    return l;
}

bool jvalue_hashable(struct jvalue v)
{
    if (v.type == J_TUPLE) {
        for (size_t i = 0; i < v.l->n; i++)
            if (v.l->v[i].type == J_TUPLE || !jvalue_hashable(v.l->v[i]))
                return false; /* nested tuples as keys: refused, to bound the walk */
        return true;
    }
    return v.type != J_LIST && v.type != J_DICT && v.type != J_VIEW && v.type != J_MISSING;
}

static uint32_t hash_number(double f)
{
    if (f == 0)
        f = 0; /* -0.0 too */
    uint64_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (uint32_t)hash_mix64(bits);
}

static uint32_t hash_value(struct jrt *rt, struct jvalue v)
{
    switch (v.type) {
    case J_STR:
        return jstr_hash(v.s);
    case J_BOOL:
    case J_INT:
    case J_FLOAT:
        return hash_number(jvalue_double(v));
    case J_TUPLE: {
        uint64_t h = 1;
        for (size_t i = 0; i < v.l->n; i++)
            h = hash_mix64(h + hash_value(rt, v.l->v[i]));
        return (uint32_t)h;
    }
    default:
        return (uint32_t)v.type; /* none, undefined, functions: few, and compared anyway */
    }
}

struct jdict *jdict_new(struct jrt *rt, size_t cap)
{
    struct jdict *d = jinja_alloc(rt, sizeof *d);
    if (cap > 0) {
        d->e = jinja_array(rt, cap, sizeof *d->e);
        d->cap = cap;
    }
    return d;
}

static void dict_index_insert(struct jdict *d, size_t entry)
{
    size_t slot = d->e[entry].hash & (d->n_index - 1);
    while (d->index[slot])
        slot = (slot + 1) & (d->n_index - 1);
    d->index[slot] = (uint32_t)entry + 1;
}

static void dict_reindex(struct jrt *rt, struct jdict *d)
{
    size_t n = 32;
    while (n < 3 * d->n)
        n *= 2;
    d->index = jinja_array(rt, n, sizeof *d->index);
    d->n_index = n;
    for (size_t i = 0; i < d->n; i++)
        dict_index_insert(d, i);
}

static bool same_key(struct jrt *rt, const struct jentry *e, struct jvalue key, uint32_t hash)
{
    return e->hash == hash && jvalue_equal(rt, e->key, key);
}

static struct jentry *dict_find(struct jrt *rt, const struct jdict *d, struct jvalue key,
                                uint32_t hash)
{
    if (!d->index) {
        for (size_t i = 0; i < d->n; i++)
            if (same_key(rt, &d->e[i], key, hash))
                return &d->e[i];
        return NULL;
    }
    for (size_t slot = hash & (d->n_index - 1); d->index[slot];
         slot = (slot + 1) & (d->n_index - 1)) {
        struct jentry *e = &d->e[d->index[slot] - 1];
        if (same_key(rt, e, key, hash))
            return e;
    }
    return NULL;
}

void jdict_set(struct jrt *rt, struct jdict *d, struct jvalue key, struct jvalue v)
{
    if (!jvalue_hashable(key))
        jinja_fail(rt, STATUS_INVALID, "a %s cannot be a key", jvalue_type_name(key));
    uint32_t hash = hash_value(rt, key);
    struct jentry *e = dict_find(rt, d, key, hash);
    if (e) {
        e->value = v;
        return;
    }
    if (d->n == UINT32_MAX)
        jinja_fail(rt, STATUS_LIMIT, "a dict has too many keys");
    if (d->n == d->cap) {
        size_t cap = d->cap ? 2 * d->cap : 4;
        struct jentry *p = jinja_array(rt, cap, sizeof *p);
        if (d->n)
            memcpy(p, d->e, d->n * sizeof *p);
        d->e = p;
        d->cap = cap;
    }
    d->e[d->n] = (struct jentry){key, v, hash};
    d->n++;
    if (d->index && 3 * d->n < 2 * d->n_index)
        dict_index_insert(d, d->n - 1);
    else if (d->n > DICT_SMALL)
        dict_reindex(rt, d);
}

struct jvalue *jdict_get(struct jrt *rt, const struct jdict *d, struct jvalue key)
{
    if (!jvalue_hashable(key))
        return NULL;
    struct jentry *e = dict_find(rt, d, key, hash_value(rt, key));
    return e ? &e->value : NULL;
}

struct jvalue *jdict_get_str(struct jrt *rt, const struct jdict *d, struct jstr *key)
{
    struct jentry *e = dict_find(rt, d, jstring(key), jstr_hash(key));
    return e ? &e->value : NULL;
}

/* -- what every value can do -- */

const char *jvalue_type_name(struct jvalue v)
{
    static const char *const names[] = {
        [J_MISSING] = "missing",   [J_UNDEFINED] = "Undefined",
        [J_NONE] = "NoneType",     [J_BOOL] = "bool",
        [J_INT] = "int",           [J_FLOAT] = "float",
        [J_STR] = "str",           [J_LIST] = "list",
        [J_TUPLE] = "tuple",       [J_DICT] = "dict",
        [J_VIEW] = "dict view",    [J_RANGE] = "range",
        [J_GEN] = "generator",     [J_NAMESPACE] = "namespace",
        [J_LOOP] = "loop",         [J_MACRO] = "macro",
        [J_FUNCTION] = "function", [J_METHOD] = "method",
        [J_CYCLER] = "cycler",     [J_JOINER] = "joiner",
    };
    return names[v.type];
}

bool jvalue_truth(struct jvalue v)
{
    switch (v.type) {
    case J_MISSING:
    case J_UNDEFINED:
    case J_NONE:
        return false;
    case J_BOOL:
        return v.b;
    case J_INT:
        return v.i != 0;
    case J_FLOAT:
        return v.f != 0;
    case J_STR:
        return v.s->n > 0;
    case J_LIST:
    case J_TUPLE:
        return v.l->n > 0;
    case J_DICT:
        return v.d->n > 0;
    case J_VIEW:
        return v.view->d->n > 0;
    case J_RANGE:
        return v.range->n > 0;
    default:
        return true;
    }
}

bool jvalue_is_number(struct jvalue v)
{
    return v.type == J_BOOL || v.type == J_INT || v.type == J_FLOAT;
}

double jvalue_double(struct jvalue v)
{
    return v.type == J_FLOAT ? v.f : v.type == J_INT ? (double)v.i : (double)v.b;
}

int64_t jvalue_index(struct jrt *rt, struct jvalue v, const char *what)
{
    if (v.type == J_INT)
        return v.i;
    if (v.type == J_BOOL)
        return v.b;
    if (v.type == J_UNDEFINED)
        jvalue_fail_undefined(rt, v);
    jinja_fail(rt, STATUS_INVALID, "%s needs an integer, not %s", what, jvalue_type_name(v));
}

static int compare_numbers(struct jvalue a, struct jvalue b)
{
    if (a.type != J_FLOAT && b.type != J_FLOAT) {
        int64_t x = a.type == J_INT ? a.i : a.b, y = b.type == J_INT ? b.i : b.b;
        return x < y ? -1 : x > y;
    }
    double x = jvalue_double(a), y = jvalue_double(b);
    return x < y ? -1 : x > y ? 1 : x == y ? 0 : 2; /* 2: not a number */
}

static bool equal(struct jrt *rt, struct jvalue a, struct jvalue b, unsigned depth)
{
    jinja_step(rt, 1);
    if (depth > JINJA_VALUE_DEPTH_MAX)
        jinja_fail(rt, STATUS_LIMIT, "values nested too deeply to compare");
    if (jvalue_is_number(a) && jvalue_is_number(b))
        return compare_numbers(a, b) == 0;
    if (a.type != b.type)
        return false;
    switch (a.type) {
    case J_STR:
        jinja_step(rt, a.s->n == b.s->n ? a.s->n / 256 : 0);
        return jstr_equal(a.s, b.s);
    case J_LIST:
    case J_TUPLE:
        if (a.l == b.l)
            return true;
        if (a.l->n != b.l->n)
            return false;
        for (size_t i = 0; i < a.l->n; i++)
            if (!equal(rt, a.l->v[i], b.l->v[i], depth + 1))
                return false;
        return true;
    case J_DICT:
        if (a.d == b.d)
            return true;
        if (a.d->n != b.d->n)
            return false;
        for (size_t i = 0; i < a.d->n; i++) {
            const struct jvalue *other = jdict_get(rt, b.d, a.d->e[i].key);
            if (!other || !equal(rt, a.d->e[i].value, *other, depth + 1))
                return false;
        }
        return true;
    case J_RANGE: {
        const struct jrange *x = a.range, *y = b.range;
        return x->n == y->n && (x->n == 0 || (x->start == y->start && //
                                              (x->n == 1 || x->step == y->step)));
    }
    case J_METHOD:
        return a.method == b.method;
    case J_MISSING:
    case J_UNDEFINED:
    case J_NONE:
        return true;
    default:
        return a.d == b.d; /* the same object */
    }
}

bool jvalue_equal(struct jrt *rt, struct jvalue a, struct jvalue b)
{
    return equal(rt, a, b, 0);
}

static int compare(struct jrt *rt, struct jvalue a, struct jvalue b, const char *op, unsigned depth)
{
    jinja_step(rt, 1);
    if (depth > JINJA_VALUE_DEPTH_MAX)
        jinja_fail(rt, STATUS_LIMIT, "values nested too deeply to compare");
    if (a.type == J_UNDEFINED)
        jvalue_fail_undefined(rt, a);
    if (b.type == J_UNDEFINED)
        jvalue_fail_undefined(rt, b);
    if (jvalue_is_number(a) && jvalue_is_number(b))
        return compare_numbers(a, b);
    if (a.type == J_STR && b.type == J_STR) {
        jinja_step(rt, (a.s->n < b.s->n ? a.s->n : b.s->n) / 256);
        return jstr_compare(a.s, b.s);
    }
    if (a.type == b.type && (a.type == J_LIST || a.type == J_TUPLE)) {
        size_t n = a.l->n < b.l->n ? a.l->n : b.l->n;
        for (size_t i = 0; i < n; i++)
            if (!equal(rt, a.l->v[i], b.l->v[i], depth + 1))
                return compare(rt, a.l->v[i], b.l->v[i], op, depth + 1);
        return a.l->n < b.l->n ? -1 : a.l->n > b.l->n;
    }
    jinja_fail(rt, STATUS_INVALID, "'%s' does not order %s and %s", op, jvalue_type_name(a),
               jvalue_type_name(b));
}

int jvalue_compare(struct jrt *rt, struct jvalue a, struct jvalue b, const char *op)
{
    return compare(rt, a, b, op, 0);
}

bool jvalue_contains(struct jrt *rt, struct jvalue container, struct jvalue v)
{
    switch (container.type) {
    case J_STR:
        if (v.type == J_UNDEFINED)
            jinja_fail(rt, STATUS_INVALID, "'in <string>' needs a string, not an undefined value");
        if (v.type != J_STR)
            jinja_fail(rt, STATUS_INVALID, "'in <string>' needs a string, not %s",
                       jvalue_type_name(v));
        return jstr_find(rt, container.s, v.s, 0, container.s->n) != SIZE_MAX;
    case J_DICT:
        if (!jvalue_hashable(v))
            jinja_fail(rt, STATUS_INVALID, "a %s cannot be a key", jvalue_type_name(v));
        return jdict_get(rt, container.d, v) != NULL;
    default: {
        struct jiter it;
        struct jvalue item;
        jiter_init(rt, &it, container);
        while (jiter_next(rt, &it, &item))
            if (jvalue_equal(rt, item, v))
                return true;
        return false;
    }
    }
}

bool jvalue_has_length(struct jvalue v)
{
    switch (v.type) {
    case J_UNDEFINED:
    case J_STR:
    case J_LIST:
    case J_TUPLE:
    case J_DICT:
    case J_VIEW:
    case J_RANGE:
    case J_LOOP:
        return true;
    default:
        return false;
    }
}

int64_t jvalue_length(struct jrt *rt, struct jvalue v)
{
    switch (v.type) {
    case J_UNDEFINED:
        return 0;
    case J_STR:
        return (int64_t)jstr_chars(rt, v.s);
    case J_LIST:
    case J_TUPLE:
        return (int64_t)v.l->n;
    case J_DICT:
        return (int64_t)v.d->n;
    case J_VIEW:
        return (int64_t)v.view->d->n;
    case J_RANGE:
        return v.range->n;
    default:
        jinja_fail(rt, STATUS_INVALID, "a %s has no length", jvalue_type_name(v));
    }
}

bool jvalue_iterable(struct jvalue v)
{
    return v.type == J_GEN || v.type == J_LOOP || (jvalue_has_length(v));
}

void jiter_init(struct jrt *rt, struct jiter *it, struct jvalue v)
{
    if (!jvalue_iterable(v) || v.type == J_LOOP)
        jinja_fail(rt, STATUS_INVALID, "a %s cannot be iterated over", jvalue_type_name(v));
    *it = (struct jiter){v, 0};
}

bool jiter_next(struct jrt *rt, struct jiter *it, struct jvalue *out)
{
    jinja_step(rt, 1);
    struct jvalue v = it->src;
    size_t i = it->i;
    switch (v.type) {
    case J_STR: {
        if (i >= v.s->n)
            return false;
        int32_t c;
        size_t n = jutf8_decode(v.s->p + i, v.s->n - i, &c);
        *out = jstring(jstr_loan(rt, v.s->p + i, n, jstr_trusted_at(v.s, i)));
        it->i += n;
        return true;
    }
    case J_LIST:
    case J_TUPLE:
        if (i >= v.l->n)
            return false;
        *out = v.l->v[i];
        break;
    case J_DICT:
        if (i >= v.d->n)
            return false;
        *out = v.d->e[i].key;
        break;
    case J_VIEW: {
        if (i >= v.view->d->n)
            return false;
        struct jentry *e = &v.view->d->e[i];
        *out = v.view->kind == JVIEW_KEYS     ? e->key
               : v.view->kind == JVIEW_VALUES ? e->value
                                              : jtuple_value(jpair(rt, e->key, e->value));
        break;
    }
    case J_RANGE:
        if (i >= (size_t)v.range->n)
            return false;
        *out = jint(v.range->start + (int64_t)i * v.range->step);
        break;
    case J_GEN:
        if (v.gen->at >= v.gen->items->n)
            return false;
        *out = v.gen->items->v[v.gen->at++];
        return true;
    default:
        return false;
    }
    it->i = i + 1;
    return true;
}

struct jlist *jvalue_items(struct jrt *rt, struct jvalue v)
{
    if (v.type == J_LIST || v.type == J_TUPLE)
        return v.l;
    struct jiter it;
    struct jvalue item;
    jiter_init(rt, &it, v);
    struct jlist *l = jlist_new(rt, v.type == J_DICT ? v.d->n : 0);
    while (jiter_next(rt, &it, &item))
        jlist_push(rt, l, item);
    return l;
}

void jargs_bind(struct jrt *rt, const char *what, const struct jargs *a, const char *const *names,
                size_t n_names, size_t n_required, struct jvalue *out)
{
    if (a->n > n_names)
        jinja_fail(rt, STATUS_INVALID, "%s takes at most %zu arguments, %zu given", what, n_names,
                   a->n);
    for (size_t i = 0; i < n_names; i++)
        out[i] = i < a->n ? a->pos[i] : (struct jvalue){.type = J_MISSING};
    for (size_t k = 0; k < a->n_kw; k++) {
        size_t i = 0;
        while (i < n_names && !jstr_is(a->kw[k].name, names[i]))
            i++;
        if (i == n_names)
            jinja_fail(rt, STATUS_INVALID, "%s has no argument '%.*s'", what,
                       (int)(a->kw[k].name->n < 64 ? a->kw[k].name->n : 64), a->kw[k].name->p);
        if (out[i].type != J_MISSING)
            jinja_fail(rt, STATUS_INVALID, "%s got its argument '%s' twice", what, names[i]);
        out[i] = a->kw[k].v;
    }
    for (size_t i = 0; i < n_required; i++)
        if (out[i].type == J_MISSING)
            jinja_fail(rt, STATUS_INVALID, "%s needs its argument '%s'", what, names[i]);
}
