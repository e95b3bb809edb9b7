/* jinja_methods: the methods of strings, dicts, lists, tuples and floats.
 *
 * The tables list what Python's types have, also what is not offered here, so that an attribute
 * that exists in Python is never taken for a key. Strings keep the origin of each part. */
#include <math.h>

#include "common/text/jinja_eval.h"

static const struct jvalue MISSING = {.type = J_MISSING};

void jmethod_need(struct jrt *rt, const struct jargs *a, size_t min, size_t max, const char *what)
{
    if (a->n < min || a->n > max || a->n_kw)
        jinja_fail(rt, STATUS_INVALID, "%s does not take these arguments", what);
}

static struct jvalue arg(const struct jargs *a, size_t i)
{
    return i < a->n ? a->pos[i] : MISSING;
}

struct jstr *jmethod_str_arg(struct jrt *rt, struct jvalue v, const char *what)
{
    if (v.type == J_UNDEFINED)
        jvalue_fail_undefined(rt, v);
    if (v.type != J_STR)
        jinja_fail(rt, STATUS_INVALID, "%s needs a string, not %s", what, jvalue_type_name(v));
    return v.s;
}

/* -- strip, case -- */

static struct jvalue strip(struct jrt *rt, struct jvalue self, const struct jargs *a,
                           enum jstrip sides, const char *what)
{
    jmethod_need(rt, a, 0, 1, what);
    struct jvalue chars = arg(a, 0);
    bool blank = chars.type == J_MISSING || chars.type == J_NONE;
    return jstring(jstr_strip(rt, self.s, blank ? NULL : jmethod_str_arg(rt, chars, what), sides));
}

static struct jvalue str_strip(struct jrt *rt, struct jvalue self, const struct jargs *a)
{
    return strip(rt, self, a, JSTRIP_BOTH, "strip");
}

static struct jvalue str_lstrip(struct jrt *rt, struct jvalue self, const struct jargs *a)
{
    return strip(rt, self, a, JSTRIP_LEFT, "lstrip");
}

static struct jvalue str_rstrip(struct jrt *rt, struct jvalue self, const struct jargs *a)
{
    return strip(rt, self, a, JSTRIP_RIGHT, "rstrip");
}

static struct jvalue str_upper(struct jrt *rt, struct jvalue self, const struct jargs *a)
{
    jmethod_need(rt, a, 0, 0, "upper");
    return jstring(jstr_case(rt, self.s, JCASE_UPPER));
}

static struct jvalue str_lower(struct jrt *rt, struct jvalue self, const struct jargs *a)
{
    jmethod_need(rt, a, 0, 0, "lower");
    return jstring(jstr_case(rt, self.s, JCASE_LOWER));
}

static struct jvalue str_casefold(struct jrt *rt, struct jvalue self, const struct jargs *a)
{
    jmethod_need(rt, a, 0, 0, "casefold");
    return jstring(jstr_case(rt, self.s, JCASE_FOLD));
}

static struct jvalue str_swapcase(struct jrt *rt, struct jvalue self, const struct jargs *a)
{
    jmethod_need(rt, a, 0, 0, "swapcase");
    return jstring(jstr_case(rt, self.s, JCASE_SWAP));
}

static struct jvalue str_capitalize(struct jrt *rt, struct jvalue self, const struct jargs *a)
{
    jmethod_need(rt, a, 0, 0, "capitalize");
    struct jbuf b = {0};
    jinja_step(rt, self.s->n / 8);
    for (size_t i = 0; i < self.s->n;)
        i += jbuf_case(rt, &b, self.s, i, i ? JCASE_LOWER : JCASE_TITLE);
    return jstring(jstr_mark(rt, jbuf_finish(rt, &b), self.s->markup));
}

static struct jvalue str_title(struct jrt *rt, struct jvalue self, const struct jargs *a)
{
    jmethod_need(rt, a, 0, 0, "title");
    struct jbuf b = {0};
    bool inside = false;
    jinja_step(rt, self.s->n / 8);
    for (size_t i = 0; i < self.s->n;) {
        int32_t c;
        jutf8_decode(self.s->p + i, self.s->n - i, &c);
        i += jbuf_case(rt, &b, self.s, i, inside ? JCASE_LOWER : JCASE_TITLE);
        inside = jchar_cased(c);
    }
    return jstring(jstr_mark(rt, jbuf_finish(rt, &b), self.s->markup));
}

/* -- searching -- */

/* Start and stop of a search, in bytes; false when the range is empty beyond the string. */
static bool search_range(struct jrt *rt, struct jstr *s, struct jvalue from, struct jvalue to,
                         size_t *begin, size_t *end)
{
    int64_t n = (int64_t)jstr_chars(rt, s);
    int64_t b = from.type == J_MISSING || from.type == J_NONE ? 0 : jvalue_index(rt, from, "find");
    int64_t e = to.type == J_MISSING || to.type == J_NONE ? n : jvalue_index(rt, to, "find");
    if (b < 0)
        b = b < -n ? 0 : b + n;
    if (e < 0)
        e = e < -n ? 0 : e + n;
    if (e > n)
        e = n;
    if (b > n || b > e)
        return false;
    *begin = jstr_offset(rt, s, (size_t)b);
    *end = jstr_offset(rt, s, (size_t)e);
    return true;
}

static int64_t find(struct jrt *rt, struct jvalue self, const struct jargs *a, bool last,
                    const char *what)
{
    size_t begin, end;
    jmethod_need(rt, a, 1, 3, what);
    struct jstr *needle = jmethod_str_arg(rt, a->pos[0], what);
    if (!search_range(rt, self.s, arg(a, 1), arg(a, 2), &begin, &end))
        return -1;
    size_t at = last ? jstr_rfind(rt, self.s, needle, begin, end)
                     : jstr_find(rt, self.s, needle, begin, end);
    if (at == SIZE_MAX)
        return -1;
    return (int64_t)jstr_chars(rt, jstr_sub(rt, self.s, 0, at));
}

static struct jvalue str_find(struct jrt *rt, struct jvalue self, const struct jargs *a)
{
    return jint(find(rt, self, a, false, "find"));
}

static struct jvalue str_rfind(struct jrt *rt, struct jvalue self, const struct jargs *a)
{
    return jint(find(rt, self, a, true, "rfind"));
}

static struct jvalue found(struct jrt *rt, int64_t at)
{
    if (at < 0)
        jinja_fail(rt, STATUS_INVALID, "substring not found");
    return jint(at);
}

static struct jvalue str_index(struct jrt *rt, struct jvalue self, const struct jargs *a)
{
    return found(rt, find(rt, self, a, false, "index"));
}

static struct jvalue str_rindex(struct jrt *rt, struct jvalue self, const struct jargs *a)
{
    return found(rt, find(rt, self, a, true, "rindex"));
}

static struct jvalue str_count(struct jrt *rt, struct jvalue self, const struct jargs *a)
{
    size_t at, end;
    int64_t n = 0;
    jmethod_need(rt, a, 1, 3, "count");
    struct jstr *needle = jmethod_str_arg(rt, a->pos[0], "count");
    if (!search_range(rt, self.s, arg(a, 1), arg(a, 2), &at, &end))
        return jint(0);
    if (needle->n == 0)
        return jint((int64_t)jstr_chars(rt, jstr_sub(rt, self.s, at, end)) + 1);
    while ((at = jstr_find(rt, self.s, needle, at, end)) != SIZE_MAX) {
        jinja_step(rt, 1);
        n++;
        at += needle->n;
    }
    return jint(n);
}

static bool affix(struct jrt *rt, const struct jstr *s, size_t begin, size_t end,
                  const struct jstr *part, bool last)
{
    if (end - begin < part->n)
        return false;
    jinja_step(rt, 1 + part->n / 256);
    return memcmp(s->p + (last ? end - part->n : begin), part->p, part->n) == 0;
}

static struct jvalue has_affix(struct jrt *rt, struct jvalue self, const struct jargs *a, bool last,
                               const char *what)
{
    size_t begin, end;
    jmethod_need(rt, a, 1, 3, what);
    bool any = search_range(rt, self.s, arg(a, 1), arg(a, 2), &begin, &end);
    if (a->pos[0].type != J_TUPLE) {
        struct jstr *part = jmethod_str_arg(rt, a->pos[0], what);
        return jbool(any && affix(rt, self.s, begin, end, part, last));
    }
    for (size_t i = 0; i < a->pos[0].l->n; i++) {
        struct jstr *part = jmethod_str_arg(rt, a->pos[0].l->v[i], what);
        if (any && affix(rt, self.s, begin, end, part, last))
            return jbool(true);
    }
    return jbool(false);
}

static struct jvalue str_startswith(struct jrt *rt, struct jvalue self, const struct jargs *a)
{
    return has_affix(rt, self, a, false, "startswith");
}

static struct jvalue str_endswith(struct jrt *rt, struct jvalue self, const struct jargs *a)
{
    return has_affix(rt, self, a, true, "endswith");
}

static struct jvalue str_removeprefix(struct jrt *rt, struct jvalue self, const struct jargs *a)
{
    jmethod_need(rt, a, 1, 1, "removeprefix");
    struct jstr *part = jmethod_str_arg(rt, a->pos[0], "removeprefix");
    bool has = affix(rt, self.s, 0, self.s->n, part, false);
    return jstring(jstr_sub(rt, self.s, has ? part->n : 0, self.s->n));
}

static struct jvalue str_removesuffix(struct jrt *rt, struct jvalue self, const struct jargs *a)
{
    jmethod_need(rt, a, 1, 1, "removesuffix");
    struct jstr *part = jmethod_str_arg(rt, a->pos[0], "removesuffix");
    bool has = affix(rt, self.s, 0, self.s->n, part, true);
    return jstring(jstr_sub(rt, self.s, 0, self.s->n - (has ? part->n : 0)));
}

/* -- what the characters are -- */

/* True when s is not empty and all its characters are like that. */
static bool all(struct jrt *rt, const struct jstr *s, bool (*is)(int32_t))
{
    jinja_step(rt, s->n / 16);
    for (size_t i = 0; i < s->n;) {
        int32_t c;
        i += jutf8_decode(s->p + i, s->n - i, &c);
        if (!is(c))
            return false;
    }
    return s->n > 0;
}

static bool alnum(int32_t c)
{
    return jchar_alpha(c) || jchar_numeric(c);
}

static bool ascii(int32_t c)
{
    return c < 0x80;
}

/* All cased characters are `want` and there is one. */
bool jmethod_all_cased(struct jrt *rt, const struct jstr *s, bool (*want)(int32_t))
{
    bool any = false;
    jinja_step(rt, s->n / 16);
    for (size_t i = 0; i < s->n;) {
        int32_t c;
        i += jutf8_decode(s->p + i, s->n - i, &c);
        if (!jchar_cased(c))
            continue;
        if (!want(c))
            return false;
        any = true;
    }
    return any;
}

#define CHARACTER_TEST(method, expr)                                                               \
    static struct jvalue str_##method(struct jrt *rt, struct jvalue self, const struct jargs *a)   \
    {                                                                                              \
        jmethod_need(rt, a, 0, 0, #method);                                                        \
        return jbool(expr);                                                                        \
    }
CHARACTER_TEST(isalpha, all(rt, self.s, jchar_alpha))
CHARACTER_TEST(isalnum, all(rt, self.s, alnum))
CHARACTER_TEST(isdigit, all(rt, self.s, jchar_digit))
CHARACTER_TEST(isdecimal, all(rt, self.s, jchar_decimal))
CHARACTER_TEST(isnumeric, all(rt, self.s, jchar_numeric))
CHARACTER_TEST(isspace, all(rt, self.s, jchar_space))
CHARACTER_TEST(isascii, self.s->n == 0 || all(rt, self.s, ascii))
CHARACTER_TEST(isprintable, self.s->n == 0 || all(rt, self.s, jchar_printable))
CHARACTER_TEST(isupper, jmethod_all_cased(rt, self.s, jchar_upper))
CHARACTER_TEST(islower, jmethod_all_cased(rt, self.s, jchar_lower))

static struct jvalue str_istitle(struct jrt *rt, struct jvalue self, const struct jargs *a)
{
    bool inside = false, any = false;
    jmethod_need(rt, a, 0, 0, "istitle");
    jinja_step(rt, self.s->n / 16);
    for (size_t i = 0; i < self.s->n;) {
        int32_t c;
        i += jutf8_decode(self.s->p + i, self.s->n - i, &c);
        bool big = jchar_upper(c) || jchar_title(c);
        if (big == inside && (big || jchar_lower(c)))
            return jbool(false);
        inside = jchar_cased(c);
        any |= inside;
    }
    return jbool(any);
}

static struct jvalue str_format(struct jrt *rt, struct jvalue self, const struct jargs *a)
{
    return jstring(jstr_format(rt, self.s, a));
}

static struct jvalue str_replace(struct jrt *rt, struct jvalue self, const struct jargs *a)
{
    jmethod_need(rt, a, 2, 3, "replace");
    struct jstr *old = jmethod_str_arg(rt, a->pos[0], "replace");
    struct jstr *with = jmethod_str_arg(rt, a->pos[1], "replace");
    int64_t count = a->n > 2 ? jvalue_index(rt, a->pos[2], "replace") : -1;
    if (self.s->markup)
        with = jstr_escape(rt, with);
    return jstring(jstr_replace(rt, self.s, old, with, count));
}

/* -- dicts, lists, numbers -- */

static struct jvalue view(struct jrt *rt, struct jvalue self, const struct jargs *a,
                          enum jview_kind kind)
{
    struct jview *v = jinja_alloc(rt, sizeof *v);
    jmethod_need(rt, a, 0, 0, "a dict's view");
    *v = (struct jview){kind, self.d};
    return (struct jvalue){.type = J_VIEW, .view = v};
}

static struct jvalue dict_keys(struct jrt *rt, struct jvalue self, const struct jargs *a)
{
    return view(rt, self, a, JVIEW_KEYS);
}

static struct jvalue dict_values(struct jrt *rt, struct jvalue self, const struct jargs *a)
{
    return view(rt, self, a, JVIEW_VALUES);
}

static struct jvalue dict_items(struct jrt *rt, struct jvalue self, const struct jargs *a)
{
    return view(rt, self, a, JVIEW_ITEMS);
}

static struct jvalue dict_get(struct jrt *rt, struct jvalue self, const struct jargs *a)
{
    jmethod_need(rt, a, 1, 2, "get");
    if (!jvalue_hashable(a->pos[0]))
        jinja_fail(rt, STATUS_INVALID, "a %s cannot be a key", jvalue_type_name(a->pos[0]));
    const struct jvalue *v = jdict_get(rt, self.d, a->pos[0]);
    return v ? *v : a->n > 1 ? a->pos[1] : jnone();
}

static struct jvalue dict_copy(struct jrt *rt, struct jvalue self, const struct jargs *a)
{
    jmethod_need(rt, a, 0, 0, "copy");
    return self; /* nothing can change either of the two */
}

static struct jvalue list_index(struct jrt *rt, struct jvalue self, const struct jargs *a)
{
    jmethod_need(rt, a, 1, 1, "index");
    for (size_t i = 0; i < self.l->n; i++)
        if (jvalue_equal(rt, self.l->v[i], a->pos[0]))
            return jint((int64_t)i);
    jinja_fail(rt, STATUS_INVALID, "the value is not in the list");
}

static struct jvalue list_count(struct jrt *rt, struct jvalue self, const struct jargs *a)
{
    int64_t n = 0;
    jmethod_need(rt, a, 1, 1, "count");
    for (size_t i = 0; i < self.l->n; i++)
        n += jvalue_equal(rt, self.l->v[i], a->pos[0]);
    return jint(n);
}

static struct jvalue float_is_integer(struct jrt *rt, struct jvalue self, const struct jargs *a)
{
    jmethod_need(rt, a, 0, 0, "is_integer");
    return jbool(isfinite(self.f) && floor(self.f) == self.f);
}

/* -- tables, sorted by name -- */

static const struct jmethod_def methods_str[] = {
    {"capitalize", str_capitalize, false},
    {"casefold", str_casefold, false},
    {"center", jmethod_center, false},
    {"count", str_count, false},
    {"encode", NULL, false},
    {"endswith", str_endswith, false},
    {"expandtabs", jmethod_expandtabs, false},
    {"find", str_find, false},
    {"format", str_format, false},
    {"format_map", NULL, false},
    {"index", str_index, false},
    {"isalnum", str_isalnum, false},
    {"isalpha", str_isalpha, false},
    {"isascii", str_isascii, false},
    {"isdecimal", str_isdecimal, false},
    {"isdigit", str_isdigit, false},
    {"isidentifier", NULL, false},
    {"islower", str_islower, false},
    {"isnumeric", str_isnumeric, false},
    {"isprintable", str_isprintable, false},
    {"isspace", str_isspace, false},
    {"istitle", str_istitle, false},
    {"isupper", str_isupper, false},
    {"join", jmethod_join, false},
    {"ljust", jmethod_ljust, false},
    {"lower", str_lower, false},
    {"lstrip", str_lstrip, false},
    {"maketrans", NULL, false},
    {"partition", jmethod_partition, false},
    {"removeprefix", str_removeprefix, false},
    {"removesuffix", str_removesuffix, false},
    {"replace", str_replace, false},
    {"rfind", str_rfind, false},
    {"rindex", str_rindex, false},
    {"rjust", jmethod_rjust, false},
    {"rpartition", jmethod_rpartition, false},
    {"rsplit", jmethod_rsplit, false},
    {"rstrip", str_rstrip, false},
    {"split", jmethod_split, false},
    {"splitlines", jmethod_splitlines, false},
    {"startswith", str_startswith, false},
    {"strip", str_strip, false},
    {"swapcase", str_swapcase, false},
    {"title", str_title, false},
    {"translate", NULL, false},
    {"upper", str_upper, false},
    {"zfill", jmethod_zfill, false},
};

static const struct jmethod_def methods_dict[] = {
    {"clear", NULL, true},    {"copy", dict_copy, false},     {"fromkeys", NULL, false},
    {"get", dict_get, false}, {"items", dict_items, false},   {"keys", dict_keys, false},
    {"pop", NULL, true},      {"popitem", NULL, true},        {"setdefault", NULL, true},
    {"update", NULL, true},   {"values", dict_values, false},
};

static const struct jmethod_def methods_list[] = {
    {"append", NULL, true},       {"clear", NULL, true},  {"copy", dict_copy, false},
    {"count", list_count, false}, {"extend", NULL, true}, {"index", list_index, false},
    {"insert", NULL, true},       {"pop", NULL, true},    {"remove", NULL, true},
    {"reverse", NULL, true},      {"sort", NULL, true},
};

static const struct jmethod_def methods_tuple[] = {
    {"count", list_count, false},
    {"index", list_index, false},
};

static const struct jmethod_def methods_float[] = {
    {"is_integer", float_is_integer, false},
};

#define COUNT(table) (sizeof(table) / sizeof *(table))

const struct jmethod_def *jmethod_find(struct jvalue of, const struct jstr *name)
{
    const struct jmethod_def *table;
    size_t lo = 0, hi;
    switch (of.type) {
    case J_STR:
        table = methods_str;
        hi = COUNT(methods_str);
        break;
    case J_DICT:
        table = methods_dict;
        hi = COUNT(methods_dict);
        break;
    case J_LIST:
        table = methods_list;
        hi = COUNT(methods_list);
        break;
    case J_TUPLE:
        table = methods_tuple;
        hi = COUNT(methods_tuple);
        break;
    case J_FLOAT:
        table = methods_float;
        hi = COUNT(methods_float);
        break;
    default:
        return NULL;
    }
    while (lo < hi) {
        size_t mid = (lo + hi) / 2, n = strlen(table[mid].name);
        int c = memcmp(name->p, table[mid].name, name->n < n ? name->n : n);
        if (c == 0 && name->n == n)
            return &table[mid];
        if (c > 0 || (c == 0 && name->n > n))
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

struct jvalue jmethod_call(struct jrt *rt, const struct jmethod_def *def, struct jvalue self,
                           const struct jargs *a)
{
    if (def->unsafe)
        jinja_fail(rt, STATUS_INVALID, "the method '%s' would change a %s, which is not allowed",
                   def->name, jvalue_type_name(self));
    if (!def->fn)
        jinja_fail(rt, STATUS_INVALID, "the method '%s' of %s is not supported", def->name,
                   jvalue_type_name(self));
    return def->fn(rt, self, a);
}
