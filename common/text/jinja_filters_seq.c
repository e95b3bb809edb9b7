/* jinja_filters_seq: filters over sequences and mappings.
 *
 * What is a generator in Jinja (map, select, unique, items, batch, …) is one here: always true,
 * without a length, iterable once. Sorting is stable merging; keys are lower-cased unless
 * case_sensitive, and compared as Python compares. */
#include "common/text/jinja_eval.h"

static bool given(struct jvalue v)
{
    return v.type != J_MISSING && v.type != J_NONE;
}

/* -- attributes named by a string: "a.b.0", or an index -- */

/* One part of a path: digits are an index. */
static struct jvalue path_part(struct jrt *rt, const struct jstr *path, size_t from, size_t to)
{
    int64_t i = 0;
    bool digits = to > from && to - from < 18;
    for (size_t k = from; k < to && digits; k++) {
        digits = path->p[k] >= '0' && path->p[k] <= '9';
        i = i * 10 + (path->p[k] - '0');
    }
    return digits ? jint(i) : jstring(jstr_sub(rt, path, from, to));
}

/* path's bytes from..to applied to v; fallback (J_MISSING: none) for what is undefined. */
static struct jvalue follow(struct jrt *rt, struct jvalue v, const struct jstr *path, size_t from,
                            size_t to, struct jvalue fallback)
{
    for (size_t at = from; at <= to;) {
        const char *dot = memchr(path->p + at, '.', to - at);
        size_t end = dot ? (size_t)(dot - path->p) : to;
        jinja_step(rt, 1);
        v = jop_item(rt, v, path_part(rt, path, at, end));
        if (v.type == J_UNDEFINED && given(fallback))
            v = fallback;
        at = end + 1;
    }
    return v;
}

static struct jvalue get_attribute(struct jrt *rt, struct jvalue v, struct jvalue attribute,
                                   struct jvalue fallback)
{
    if (!given(attribute))
        return v;
    if (attribute.type == J_STR)
        return follow(rt, v, attribute.s, 0, attribute.s->n, fallback);
    v = jop_item(rt, v, attribute);
    return v.type == J_UNDEFINED && given(fallback) ? fallback : v;
}

static struct jvalue fold_case(struct jrt *rt, struct jvalue v, bool case_sensitive)
{
    return v.type == J_STR && !case_sensitive ? jstring(jstr_case(rt, v.s, JCASE_LOWER)) : v;
}

/* -- sorting -- */

struct keyed {
    struct jvalue key, item;
};

/* Stable; descending keeps equal items in their order too. */
static void sort_keyed(struct jrt *rt, struct keyed *v, size_t n, bool descending)
{
    struct keyed *tmp = jinja_array(rt, n, sizeof *tmp);
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t lo = 0; lo < n; lo += 2 * width) {
            size_t mid = lo + width < n ? lo + width : n,
                   hi = lo + 2 * width < n ? lo + 2 * width : n;
            size_t i = lo, k = mid, out = lo;
            while (i < mid && k < hi) {
                int c = jvalue_compare(rt, v[k].key, v[i].key, "<");
                bool right = descending ? c > 0 && c != 2 : c < 0;
                tmp[out++] = right ? v[k++] : v[i++];
            }
            while (i < mid)
                tmp[out++] = v[i++];
            while (k < hi)
                tmp[out++] = v[k++];
        }
        memcpy(v, tmp, n * sizeof *v);
    }
}

/* The key of an item by a list of paths, "a,b.c". */
static struct jvalue sort_key(struct jrt *rt, struct jvalue item, struct jvalue attribute,
                              bool case_sensitive)
{
    struct jlist *key = jlist_new(rt, 1);
    if (attribute.type != J_STR) {
        struct jvalue none = {.type = J_MISSING};
        jlist_push(rt, key,
                   fold_case(rt, get_attribute(rt, item, attribute, none), case_sensitive));
        return jlist_value(key);
    }
    const struct jstr *paths = attribute.s;
    for (size_t at = 0; at <= paths->n;) {
        const char *comma = memchr(paths->p + at, ',', paths->n - at);
        size_t end = comma ? (size_t)(comma - paths->p) : paths->n;
        struct jvalue v = follow(rt, item, paths, at, end, (struct jvalue){.type = J_MISSING});
        jlist_push(rt, key, fold_case(rt, v, case_sensitive));
        at = end + 1;
    }
    return jlist_value(key);
}

static struct jvalue unkeyed(struct jrt *rt, const struct keyed *v, size_t n)
{
    struct jlist *l = jlist_new(rt, n);
    for (size_t i = 0; i < n; i++)
        jlist_push(rt, l, v[i].item);
    return jlist_value(l);
}

static struct jvalue f_sort(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    struct jvalue p[3];
    JARGS_BIND(rt, "sort", a, 0, p, "reverse", "case_sensitive", "attribute");
    struct jlist *l = jvalue_items(rt, v);
    struct keyed *k = jinja_array(rt, l->n, sizeof *k);
    for (size_t i = 0; i < l->n; i++)
        k[i] = (struct keyed){sort_key(rt, l->v[i], p[2], jvalue_truth(p[1])), l->v[i]};
    sort_keyed(rt, k, l->n, jvalue_truth(p[0]));
    return unkeyed(rt, k, l->n);
}

static struct jvalue f_dictsort(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    struct jvalue p[3];
    JARGS_BIND(rt, "dictsort", a, 0, p, "case_sensitive", "by", "reverse");
    bool by_value = p[1].type == J_STR && jstr_is(p[1].s, "value");
    if (p[1].type != J_MISSING && !by_value && !(p[1].type == J_STR && jstr_is(p[1].s, "key")))
        jinja_fail(rt, STATUS_INVALID, "dictsort sorts by key or value");
    if (v.type == J_UNDEFINED)
        jvalue_fail_undefined(rt, v);
    if (v.type != J_DICT)
        jinja_fail(rt, STATUS_INVALID, "dictsort needs a dict, not %s", jvalue_type_name(v));
    struct keyed *k = jinja_array(rt, v.d->n, sizeof *k);
    for (size_t i = 0; i < v.d->n; i++) {
        const struct jentry *e = &v.d->e[i];
        k[i].key = fold_case(rt, by_value ? e->value : e->key, jvalue_truth(p[0]));
        k[i].item = jtuple_value(jpair(rt, e->key, e->value));
    }
    sort_keyed(rt, k, v.d->n, jvalue_truth(p[2]));
    return unkeyed(rt, k, v.d->n);
}

static struct jvalue f_groupby(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    struct jvalue p[3];
    JARGS_BIND(rt, "groupby", a, 1, p, "attribute", "default", "case_sensitive");
    struct jlist *l = jvalue_items(rt, v), *groups = jlist_new(rt, 0);
    struct keyed *k = jinja_array(rt, l->n, sizeof *k);
    for (size_t i = 0; i < l->n; i++) {
        struct jvalue key = get_attribute(rt, l->v[i], p[0], p[1]);
        k[i] = (struct keyed){fold_case(rt, key, jvalue_truth(p[2])), l->v[i]};
    }
    sort_keyed(rt, k, l->n, false);
    for (size_t i = 0; i < l->n;) {
        struct jlist *group = jlist_new(rt, 0);
        struct jvalue real = get_attribute(rt, k[i].item, p[0], p[1]);
        size_t first = i;
        for (; i < l->n && jvalue_equal(rt, k[i].key, k[first].key); i++)
            jlist_push(rt, group, k[i].item);
        jlist_push(rt, groups, jtuple_value(jpair(rt, real, jlist_value(group))));
    }
    return jlist_value(groups);
}

static struct jvalue extreme(struct jrt *rt, struct jvalue v, const struct jargs *a, bool max)
{
    struct jvalue p[2], none = {.type = J_MISSING}, best = none, best_key = none;
    JARGS_BIND(rt, max ? "max" : "min", a, 0, p, "case_sensitive", "attribute");
    struct jlist *l = jvalue_items(rt, v);
    for (size_t i = 0; i < l->n; i++) {
        struct jvalue key =
            fold_case(rt, get_attribute(rt, l->v[i], p[1], none), jvalue_truth(p[0]));
        int c = i ? jvalue_compare(rt, key, best_key, max ? ">" : "<") : 0;
        if (i && (c == 2 || (max ? c <= 0 : c >= 0)))
            continue;
        best = l->v[i];
        best_key = key;
    }
    return l->n ? best : jundefined(rt, "the sequence was empty");
}

static struct jvalue f_min(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    return extreme(rt, v, a, false);
}

static struct jvalue f_max(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    return extreme(rt, v, a, true);
}

/* -- one result -- */

static struct jvalue f_length(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    jmethod_need(rt, a, 0, 0, "length");
    if (v.type == J_LOOP)
        return jloop_attr(rt, v.loop, jstr_literal(rt, "length"));
    return jint(jvalue_length(rt, v));
}

static struct jvalue f_first(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    struct jiter it;
    struct jvalue item;
    jmethod_need(rt, a, 0, 0, "first");
    jiter_init(rt, &it, v);
    return jiter_next(rt, &it, &item) ? item : jundefined(rt, "the sequence was empty");
}

static struct jvalue f_last(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    jmethod_need(rt, a, 0, 0, "last");
    if (v.type == J_GEN)
        jinja_fail(rt, STATUS_INVALID, "last needs a list, not a generator");
    struct jlist *l = jvalue_items(rt, v);
    return l->n ? l->v[l->n - 1] : jundefined(rt, "the sequence was empty");
}

static struct jvalue f_join(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    struct jvalue p[2], item;
    struct jiter it;
    struct jbuf b = {0};
    JARGS_BIND(rt, "join", a, 0, p, "d", "attribute");
    const struct jstr *sep = p[0].type == J_MISSING ? NULL : jvalue_str(rt, p[0]);
    jiter_init(rt, &it, v);
    for (bool first = true; jiter_next(rt, &it, &item); first = false) {
        if (!first && sep)
            jbuf_str(rt, &b, sep);
        jbuf_value(rt, &b, get_attribute(rt, item, p[1], (struct jvalue){.type = J_MISSING}));
    }
    return jstring(jbuf_finish(rt, &b));
}

static struct jvalue f_sum(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    struct jvalue p[2], item;
    struct jiter it;
    JARGS_BIND(rt, "sum", a, 0, p, "attribute", "start");
    struct jvalue total = p[1].type == J_MISSING ? jint(0) : p[1];
    if (total.type == J_STR)
        jinja_fail(rt, STATUS_INVALID, "sum does not add strings");
    jiter_init(rt, &it, v);
    while (jiter_next(rt, &it, &item))
        total = jop_binary(rt, '+', total,
                           get_attribute(rt, item, p[0], (struct jvalue){.type = J_MISSING}));
    return total;
}

static struct jvalue f_attr(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    struct jvalue p[1];
    JARGS_BIND(rt, "attr", a, 1, p, "name");
    struct jstr *name = jmethod_str_arg(rt, p[0], "attr");
    if (v.type != J_DICT || jmethod_find(v, name))
        return jop_attr(rt, v, name);
    return jundefined_name(rt, "dict", p[0], false); /* attributes only, no keys */
}

/* -- sequences -- */

static struct jvalue f_list(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    jmethod_need(rt, a, 0, 0, "list");
    struct jlist *l = jvalue_items(rt, v), *copy = jinja_alloc(rt, sizeof *copy);
    *copy = *l; /* a list of its own over the same items, which do not change */
    copy->cap = copy->n;
    return jlist_value(copy);
}

static struct jvalue f_items(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    struct jlist *l = jlist_new(rt, 0);
    jmethod_need(rt, a, 0, 0, "items");
    if (v.type != J_DICT && v.type != J_UNDEFINED)
        jinja_fail(rt, STATUS_INVALID, "items needs a dict, not %s", jvalue_type_name(v));
    for (size_t i = 0; v.type == J_DICT && i < v.d->n; i++)
        jlist_push(rt, l, jtuple_value(jpair(rt, v.d->e[i].key, v.d->e[i].value)));
    return jgen_value(rt, l);
}

static struct jvalue f_reverse(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    jmethod_need(rt, a, 0, 0, "reverse");
    if (v.type == J_STR)
        return jop_slice(rt, v, jnone(), jnone(), jint(-1));
    struct jlist *l = jvalue_items(rt, v), *r = jlist_new(rt, l->n);
    jinja_step(rt, l->n / 16);
    for (size_t i = l->n; i > 0; i--)
        jlist_push(rt, r, l->v[i - 1]);
    return v.type == J_GEN ? jlist_value(r) : jgen_value(rt, r);
}

static struct jvalue f_unique(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    struct jvalue p[2], item, none = {.type = J_MISSING};
    struct jiter it;
    JARGS_BIND(rt, "unique", a, 0, p, "case_sensitive", "attribute");
    struct jdict *seen = jdict_new(rt, 0);
    struct jlist *l = jlist_new(rt, 0);
    jiter_init(rt, &it, v);
    while (jiter_next(rt, &it, &item)) {
        struct jvalue key = fold_case(rt, get_attribute(rt, item, p[1], none), jvalue_truth(p[0]));
        if (jdict_get(rt, seen, key))
            continue;
        jdict_set(rt, seen, key, jnone());
        jlist_push(rt, l, item);
    }
    return jgen_value(rt, l);
}

static struct jvalue f_batch(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    struct jvalue p[2];
    JARGS_BIND(rt, "batch", a, 1, p, "linecount", "fill_with");
    int64_t size = jvalue_index(rt, p[0], "batch");
    struct jlist *l = jvalue_items(rt, v), *out = jlist_new(rt, 0), *row = jlist_new(rt, 0);
    jinja_step(rt, l->n / 16);
    for (size_t i = 0; i < l->n; i++) {
        if ((int64_t)row->n == size) {
            jlist_push(rt, out, jlist_value(row));
            row = jlist_new(rt, 0);
        }
        jlist_push(rt, row, l->v[i]);
    }
    if (row->n) {
        while (given(p[1]) && (int64_t)row->n < size) {
            jinja_step(rt, 1);
            jlist_push(rt, row, p[1]);
        }
        jlist_push(rt, out, jlist_value(row));
    }
    return jgen_value(rt, out);
}

static struct jvalue f_slice(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    struct jvalue p[2];
    JARGS_BIND(rt, "slice", a, 1, p, "slices", "fill_with");
    int64_t slices = jvalue_index(rt, p[0], "slice");
    if (slices == 0)
        jinja_fail(rt, STATUS_INVALID, "division by zero");
    struct jlist *l = jvalue_items(rt, v), *out = jlist_new(rt, 0);
    int64_t n = (int64_t)l->n, each = slices > 0 ? n / slices : 0,
            extra = slices > 0 ? n % slices : 0;
    for (int64_t s = 0, at = 0; s < slices; s++) {
        struct jlist *part = jlist_new(rt, 0);
        int64_t end = at + each + (s < extra);
        jinja_step(rt, 1);
        for (; at < end; at++)
            jlist_push(rt, part, l->v[at]);
        if (given(p[1]) && s >= extra)
            jlist_push(rt, part, p[1]);
        jlist_push(rt, out, jlist_value(part));
    }
    return jgen_value(rt, out);
}

/* -- map, select and their kin -- */

/* a without its first n positional arguments. */
static struct jargs after(const struct jargs *a, size_t n)
{
    return (struct jargs){a->n > n ? a->pos + n : NULL, a->n > n ? a->n - n : 0, a->kw, a->n_kw};
}

static struct jvalue f_map(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    struct jlist *out = jlist_new(rt, 0);
    struct jvalue item, attribute = {.type = J_MISSING}, fallback = attribute;
    struct jiter it;
    if (!jvalue_truth(v))
        return jgen_value(rt, out);
    if (a->n == 0) {
        for (size_t i = 0; i < a->n_kw; i++) {
            if (jstr_is(a->kw[i].name, "attribute"))
                attribute = a->kw[i].v;
            else if (jstr_is(a->kw[i].name, "default"))
                fallback = a->kw[i].v;
            else
                jinja_fail(rt, STATUS_INVALID, "map has no such argument");
        }
        if (attribute.type == J_MISSING)
            jinja_fail(rt, STATUS_INVALID, "map needs a filter or an attribute");
    }
    struct jargs rest = after(a, 1);
    jiter_init(rt, &it, v);
    while (jiter_next(rt, &it, &item)) {
        if (a->n == 0)
            item = get_attribute(rt, item, attribute, fallback);
        else
            item = jfilter_apply(rt, jmethod_str_arg(rt, a->pos[0], "map"), item, &rest);
        jlist_push(rt, out, item);
    }
    return jgen_value(rt, out);
}

static struct jvalue select_items(struct jrt *rt, struct jvalue v, const struct jargs *a,
                                  bool by_attribute, bool want)
{
    struct jlist *out = jlist_new(rt, 0);
    struct jvalue item, none = {.type = J_MISSING};
    struct jiter it;
    if (!jvalue_truth(v))
        return jgen_value(rt, out);
    if (by_attribute && a->n == 0)
        jinja_fail(rt, STATUS_INVALID, "selectattr and rejectattr need an attribute");
    struct jargs rest = after(a, by_attribute ? 2 : 1);
    const struct jvalue *test = a->n > by_attribute ? &a->pos[by_attribute] : NULL;
    jiter_init(rt, &it, v);
    while (jiter_next(rt, &it, &item)) {
        struct jvalue x = by_attribute ? get_attribute(rt, item, a->pos[0], none) : item;
        bool pass = test ? jtest_apply(rt, jmethod_str_arg(rt, *test, "select"), x, &rest)
                         : jvalue_truth(x);
        if (pass == want)
            jlist_push(rt, out, item);
    }
    return jgen_value(rt, out);
}

static struct jvalue f_select(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    return select_items(rt, v, a, false, true);
}

static struct jvalue f_reject(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    return select_items(rt, v, a, false, false);
}

static struct jvalue f_selectattr(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    return select_items(rt, v, a, true, true);
}

static struct jvalue f_rejectattr(struct jrt *rt, struct jvalue v, const struct jargs *a)
{
    return select_items(rt, v, a, true, false);
}

const struct jfilter_def jfilters_seq[] = {
    {"attr", f_attr},
    {"batch", f_batch},
    {"count", f_length},
    {"dictsort", f_dictsort},
    {"first", f_first},
    {"groupby", f_groupby},
    {"items", f_items},
    {"join", f_join},
    {"last", f_last},
    {"length", f_length},
    {"list", f_list},
    {"map", f_map},
    {"max", f_max},
    {"min", f_min},
    {"reject", f_reject},
    {"rejectattr", f_rejectattr},
    {"reverse", f_reverse},
    {"select", f_select},
    {"selectattr", f_selectattr},
    {"slice", f_slice},
    {"sort", f_sort},
    {"sum", f_sum},
    {"unique", f_unique},
};
const size_t jfilters_seq_n = sizeof jfilters_seq / sizeof *jfilters_seq;
