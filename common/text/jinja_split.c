/* jinja_split: the string methods that cut, join and pad. Pieces are views into the string they
 * were cut from and keep the origin of every byte; padding has the origin of what pads. */
#include "common/text/jinja_eval.h"

static void push_part(struct jrt *rt, struct jlist *l, const struct jstr *s, size_t from, size_t to)
{
    jinja_step(rt, 1);
    jlist_push(rt, l, jstring(jstr_sub(rt, s, from, to)));
}

/* From at, over characters that are (or are not) white space. */
static size_t forward(const struct jstr *s, size_t at, bool space)
{
    while (at < s->n) {
        int32_t c;
        unsigned n = jutf8_decode(s->p + at, s->n - at, &c);
        if (jchar_space(c) != space)
            break;
        at += n;
    }
    return at;
}

static size_t backward(const struct jstr *s, size_t at, bool space)
{
    while (at > 0) {
        size_t from = at - 1;
        while (((unsigned char)s->p[from] & 0xc0) == 0x80)
            from--;
        int32_t c;
        jutf8_decode(s->p + from, at - from, &c);
        if (jchar_space(c) != space)
            break;
        at = from;
    }
    return at;
}

static void split_space(struct jrt *rt, struct jlist *l, const struct jstr *s, int64_t max)
{
    jinja_step(rt, s->n / 16);
    for (size_t at = forward(s, 0, true); at < s->n; max--) {
        size_t end = max == 0 ? s->n : forward(s, at, false);
        push_part(rt, l, s, at, end);
        at = forward(s, end, true);
    }
}

static void rsplit_space(struct jrt *rt, struct jlist *l, const struct jstr *s, int64_t max)
{
    jinja_step(rt, s->n / 16);
    for (size_t end = backward(s, s->n, true); end > 0; max--) {
        size_t at = max == 0 ? 0 : backward(s, end, false);
        push_part(rt, l, s, at, end);
        end = backward(s, at, true);
    }
}

static void split_at(struct jrt *rt, struct jlist *l, const struct jstr *s, const struct jstr *sep,
                     int64_t max)
{
    size_t from = 0, at;
    for (; max != 0 && (at = jstr_find(rt, s, sep, from, s->n)) != SIZE_MAX; max--) {
        push_part(rt, l, s, from, at);
        from = at + sep->n;
    }
    push_part(rt, l, s, from, s->n);
}

static void rsplit_at(struct jrt *rt, struct jlist *l, const struct jstr *s, const struct jstr *sep,
                      int64_t max)
{
    size_t end = s->n, at;
    for (; max != 0 && (at = jstr_rfind(rt, s, sep, 0, end)) != SIZE_MAX; max--) {
        push_part(rt, l, s, at + sep->n, end);
        end = at;
    }
    push_part(rt, l, s, 0, end);
}

static void reverse(struct jlist *l)
{
    for (size_t i = 0; i < l->n / 2; i++) {
        struct jvalue t = l->v[i];
        l->v[i] = l->v[l->n - 1 - i];
        l->v[l->n - 1 - i] = t;
    }
}

static struct jvalue split(struct jrt *rt, struct jvalue self, const struct jargs *a, bool right)
{
    struct jvalue p[2];
    JARGS_BIND(rt, right ? "rsplit" : "split", a, 0, p, "sep", "maxsplit");
    int64_t max = p[1].type == J_MISSING ? -1 : jvalue_index(rt, p[1], "split");
    struct jlist *l = jlist_new(rt, 0);
    if (p[0].type == J_MISSING || p[0].type == J_NONE) {
        (right ? rsplit_space : split_space)(rt, l, self.s, max);
    } else {
        struct jstr *sep = jmethod_str_arg(rt, p[0], "split");
        if (sep->n == 0)
            jinja_fail(rt, STATUS_INVALID, "split needs a separator that is not empty");
        (right ? rsplit_at : split_at)(rt, l, self.s, sep, max);
    }
    if (right)
        reverse(l);
    return jlist_value(l);
}

struct jvalue jmethod_split(struct jrt *rt, struct jvalue self, const struct jargs *a)
{
    return split(rt, self, a, false);
}

struct jvalue jmethod_rsplit(struct jrt *rt, struct jvalue self, const struct jargs *a)
{
    return split(rt, self, a, true);
}

struct jvalue jmethod_splitlines(struct jrt *rt, struct jvalue self, const struct jargs *a)
{
    struct jvalue p[1];
    JARGS_BIND(rt, "splitlines", a, 0, p, "keepends");
    return jlist_value(jstr_splitlines(rt, self.s, jvalue_truth(p[0])));
}

static struct jvalue partition(struct jrt *rt, struct jvalue self, const struct jargs *a, bool last)
{
    const char *what = last ? "rpartition" : "partition";
    jmethod_need(rt, a, 1, 1, what);
    const struct jstr *s = self.s, *sep = jmethod_str_arg(rt, a->pos[0], what);
    if (sep->n == 0)
        jinja_fail(rt, STATUS_INVALID, "%s needs a separator that is not empty", what);
    size_t at = (last ? jstr_rfind : jstr_find)(rt, s, sep, 0, s->n);
    size_t begin = at == SIZE_MAX ? (last ? 0 : s->n) : at;
    size_t end = at == SIZE_MAX ? begin : at + sep->n;
    struct jlist *l = jlist_new(rt, 3);
    push_part(rt, l, s, 0, begin);
    push_part(rt, l, s, begin, end);
    push_part(rt, l, s, end, s->n);
    return jtuple_value(l);
}

struct jvalue jmethod_partition(struct jrt *rt, struct jvalue self, const struct jargs *a)
{
    return partition(rt, self, a, false);
}

struct jvalue jmethod_rpartition(struct jrt *rt, struct jvalue self, const struct jargs *a)
{
    return partition(rt, self, a, true);
}

struct jvalue jmethod_join(struct jrt *rt, struct jvalue self, const struct jargs *a)
{
    jmethod_need(rt, a, 1, 1, "join");
    struct jiter it;
    struct jvalue v;
    struct jbuf b = {0};
    jiter_init(rt, &it, a->pos[0]);
    for (bool first = true; jiter_next(rt, &it, &v); first = false) {
        struct jstr *s = jmethod_str_arg(rt, v, "join");
        if (!first)
            jbuf_str(rt, &b, self.s);
        jbuf_str(rt, &b, self.s->markup ? jstr_escape(rt, s) : s);
    }
    return jstring(jstr_mark(rt, jbuf_finish(rt, &b), self.s->markup));
}

/* -- padding -- */

static void put_times(struct jrt *rt, struct jbuf *b, const struct jstr *s, int64_t times)
{
    if (times > 0)
        jbuf_str(rt, b, jstr_repeat(rt, s, times));
}

static struct jvalue pad(struct jrt *rt, struct jvalue self, const struct jargs *a, int left_share,
                         const char *what)
{
    jmethod_need(rt, a, 1, 2, what);
    int64_t width = jvalue_index(rt, a->pos[0], what), n = (int64_t)jstr_chars(rt, self.s);
    struct jstr *fill = a->n > 1 ? jmethod_str_arg(rt, a->pos[1], what) : jstr_literal(rt, " ");
    if (jstr_chars(rt, fill) != 1)
        jinja_fail(rt, STATUS_INVALID, "%s needs exactly one character to fill with", what);
    int64_t total = width > n ? width - n : 0;
    /* center gives the odd one to the left when the width is odd, as CPython does */
    int64_t left = left_share == 1 ? total / 2 + (total & width & 1) : left_share == 2 ? total : 0;
    struct jbuf b = {0};
    put_times(rt, &b, fill, left);
    jbuf_str(rt, &b, self.s);
    put_times(rt, &b, fill, total - left);
    return jstring(jstr_mark(rt, jbuf_finish(rt, &b), self.s->markup));
}

struct jvalue jmethod_ljust(struct jrt *rt, struct jvalue self, const struct jargs *a)
{
    return pad(rt, self, a, 0, "ljust");
}

struct jvalue jmethod_center(struct jrt *rt, struct jvalue self, const struct jargs *a)
{
    return pad(rt, self, a, 1, "center");
}

struct jvalue jmethod_rjust(struct jrt *rt, struct jvalue self, const struct jargs *a)
{
    return pad(rt, self, a, 2, "rjust");
}

struct jvalue jmethod_zfill(struct jrt *rt, struct jvalue self, const struct jargs *a)
{
    jmethod_need(rt, a, 1, 1, "zfill");
    int64_t width = jvalue_index(rt, a->pos[0], "zfill"), n = (int64_t)jstr_chars(rt, self.s);
    size_t sign = self.s->n > 0 && (self.s->p[0] == '-' || self.s->p[0] == '+');
    struct jbuf b = {0};
    jbuf_sub(rt, &b, self.s, 0, sign);
    put_times(rt, &b, jstr_literal(rt, "0"), width - n);
    jbuf_sub(rt, &b, self.s, sign, self.s->n);
    return jstring(jbuf_finish(rt, &b));
}

struct jvalue jmethod_expandtabs(struct jrt *rt, struct jvalue self, const struct jargs *a)
{
    struct jvalue p[1];
    JARGS_BIND(rt, "expandtabs", a, 0, p, "tabsize");
    int64_t size = p[0].type == J_MISSING ? 8 : jvalue_index(rt, p[0], "expandtabs"), column = 0;
    const struct jstr *space = jstr_literal(rt, " ");
    struct jbuf b = {0};
    jinja_step(rt, self.s->n / 8);
    for (size_t i = 0; i < self.s->n;) {
        int32_t c;
        unsigned n = jutf8_decode(self.s->p + i, self.s->n - i, &c);
        if (c == '\t') {
            int64_t fill = size > 0 ? size - column % size : 0;
            put_times(rt, &b, space, fill);
            column += fill;
        } else {
            jbuf_sub(rt, &b, self.s, i, i + n);
            column = c == '\n' || c == '\r' ? 0 : column + 1;
        }
        i += n;
    }
    return jstring(jbuf_finish(rt, &b));
}
