/* jinja_value: the values of chat templates, with Python's semantics, and the run they live in.
 *
 * Everything that a compilation or a rendering allocates comes from one arena with a limit, so
 * nothing here is freed. Errors unwind: jinja_fail() records the message and jumps to the entry
 * point (chat_template_create, chat_render), which is safe because only the arena holds memory.
 * Functions below therefore return their results directly and never fail quietly.
 *
 * Lists, tuples, strings and dicts do not change once a template can see them (the sandbox forbids
 * it, as in transformers); only namespaces do. Strings are valid UTF-8 and indexed by character. */
#ifndef BATON_TEXT_JINJA_VALUE_H
#define BATON_TEXT_JINJA_VALUE_H

#include <assert.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "common/base/json.h"
#include "common/base/mem.h"
#include "common/base/status.h"

enum jtype {
    J_MISSING, /* no value at all: an argument that was not given */
    J_UNDEFINED,
    J_NONE,
    J_BOOL,
    J_INT,
    J_FLOAT,
    J_STR,
    J_LIST,
    J_TUPLE,
    J_DICT,
    J_VIEW,  /* dict.keys(), values(), items() */
    J_RANGE, /* range(…) */
    J_GEN,   /* what map, select, … give: iterable once, no length */
    J_NAMESPACE,
    J_LOOP,
    J_MACRO,
    J_FUNCTION, /* a global such as range */
    J_METHOD,   /* bound: "x".split */
    J_CYCLER,
    J_JOINER
};

struct jvalue {
    enum jtype type;
    bool tainted; /* a bool, number or none that came from the context */
    union {
        bool b;
        int64_t i;
        double f;
        struct jstr *s;
        struct jlist *l; /* J_LIST, J_TUPLE */
        struct jdict *d; /* J_DICT, J_NAMESPACE */
        struct jview *view;
        struct jrange *range;
        struct jgen *gen;
        struct jundef *undef; /* may be NULL */
        struct jloop *loop;
        struct jmacro *macro;
        const struct jfunction *fn;
        struct jmethod *method;
        struct jcycler *cycler;
        struct jjoiner *joiner;
    };
};

/* A stretch of a string that has one origin; it begins where the one before ends. */
struct jseg {
    size_t end;
    bool trusted; /* a literal of the template wrote it */
};

/* Text under construction, with origins. A string made by concatenation stays attached to the
 * buffer it ends, so that `s = s + x` in a loop appends instead of copying. */
struct jbuf {
    char *p;
    size_t n, cap;
    struct jseg *segs; /* cover 0..n, neighbours differ */
    size_t n_segs, cap_segs;
};

struct jstr {
    const char *p;
    size_t n;                /* bytes */
    size_t chars;            /* code points, or JSTR_UNKNOWN */
    uint32_t hash;           /* 0: not computed */
    bool trusted;            /* when n_segs is 0 */
    bool markup;             /* marked safe: + and format escape what they add */
    size_t n_segs;           /* of segs; ends beyond n count as n */
    const struct jseg *segs; /* two or more stretches */
    struct jbuf *tail;       /* the buffer whose end this may be, or NULL */
};
#define JSTR_UNKNOWN SIZE_MAX

struct jlist {
    struct jvalue *v;
    size_t n, cap;
};

struct jentry {
    struct jvalue key, value;
    uint32_t hash;
};
struct jdict {
    struct jentry *e; /* in insertion order */
    size_t n, cap;
    uint32_t *index; /* hash slots holding entry number + 1, or NULL while small */
    size_t n_index;  /* power of two */
};

enum jview_kind { JVIEW_KEYS, JVIEW_VALUES, JVIEW_ITEMS };
struct jview {
    enum jview_kind kind;
    struct jdict *d;
};
struct jrange {
    int64_t start, stop, step, n;
};
struct jgen {
    struct jlist *items;
    size_t at;
};
struct jundef {
    const char *of;   /* type of the object that lacks it, or NULL */
    const char *hint; /* a whole message, or NULL */
    struct jvalue name;
    bool unsafe; /* forbidden by the sandbox */
};
struct jcycler {
    struct jlist *items;
    size_t at;
};
struct jjoiner {
    struct jstr *sep;
    bool used;
};

struct jkw {
    struct jstr *name;
    struct jvalue v;
};
struct jargs {
    struct jvalue *pos;
    size_t n;
    struct jkw *kw;
    size_t n_kw;
};

struct jrt;
typedef struct jvalue (*jmethod_fn)(struct jrt *rt, struct jvalue self, const struct jargs *a);
struct jmethod_def {
    const char *name;
    jmethod_fn fn; /* NULL: exists in Python, not offered here */
    bool unsafe;   /* changes its object: forbidden */
};
struct jmethod {
    struct jvalue self;
    const struct jmethod_def *def;
};
struct jfunction {
    const char *name;
    struct jvalue (*fn)(struct jrt *rt, const struct jargs *a);
};

/* One compilation or one rendering. */
struct jrt {
    struct arena arena;
    jmp_buf stop;
    int status;
    char *err;
    size_t errlen;
    unsigned line;  /* of the template, for messages */
    uint64_t steps; /* left */
    unsigned depth; /* of nested evaluation */

    /* rendering only */
    const struct jtemplate *t;
    const json_t *context;
    int64_t now;
    struct jvalue *globals; /* by symbol; J_MISSING: not looked up yet */
    struct jscope *scope;   /* NULL: the top level */
    struct jbuf *out;
    struct jvalue captured; /* input of a filter block's first filter */
};

#define JINJA_VALUE_DEPTH_MAX 500  /* of nested values */
#define JINJA_EVAL_DEPTH_MAX  1500 /* of nested evaluation */
#define JINJA_RANGE_MAX       100000

/* Ends the run: status, and "line N: …" in err. */
_Noreturn void jinja_fail(struct jrt *rt, int status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Ends the run with exactly this message. */
_Noreturn void jinja_fail_bare(struct jrt *rt, int status, const char *p, size_t n);
/* Zeroed; ends the run when the arena is full. */
void *jinja_alloc(struct jrt *rt, size_t n);
void *jinja_array(struct jrt *rt, size_t n, size_t size);
_Noreturn void jinja_fail_steps(struct jrt *rt);
static inline void jinja_step(struct jrt *rt, uint64_t n)
{
    if (rt->steps < n)
        jinja_fail_steps(rt);
    rt->steps -= n;
}

/* -- constructors -- */
static inline struct jvalue jnone(void)
{
    return (struct jvalue){.type = J_NONE};
}
static inline struct jvalue jbool(bool b)
{
    return (struct jvalue){.type = J_BOOL, .b = b};
}
static inline struct jvalue jint(int64_t i)
{
    return (struct jvalue){.type = J_INT, .i = i};
}
static inline struct jvalue jfloat(double f)
{
    return (struct jvalue){.type = J_FLOAT, .f = f};
}
static inline struct jvalue jstring(struct jstr *s)
{
    return (struct jvalue){.type = J_STR, .s = s};
}
static inline struct jvalue jlist_value(struct jlist *l)
{
    return (struct jvalue){.type = J_LIST, .l = l};
}
static inline struct jvalue jtuple_value(struct jlist *l)
{
    return (struct jvalue){.type = J_TUPLE, .l = l};
}
static inline struct jvalue jdict_value(struct jdict *d)
{
    return (struct jvalue){.type = J_DICT, .d = d};
}
struct jvalue jgen_value(struct jrt *rt, struct jlist *items);
struct jvalue jrange_value(struct jrt *rt, int64_t start, int64_t stop, int64_t step);
struct jvalue jundefined(struct jrt *rt, const char *hint);
struct jvalue jundefined_name(struct jrt *rt, const char *of, struct jvalue name, bool unsafe);
/* Marks a scalar as coming from where `from` came from. */
static inline struct jvalue jtaint(struct jvalue v, bool tainted)
{
    v.tainted |= tainted;
    return v;
}
/* True unless all of v's text would be the template's own. */
bool jvalue_tainted(struct jvalue v);
/* The context's JSON as values; strings are loans from it. trusted: given by us, not by users. */
struct jvalue jvalue_from_json(struct jrt *rt, const json_t *j, bool trusted);

/* -- lists and dicts -- */
struct jlist *jlist_new(struct jrt *rt, size_t cap);
void jlist_push(struct jrt *rt, struct jlist *l, struct jvalue v);
struct jlist *jpair(struct jrt *rt, struct jvalue a, struct jvalue b);
struct jdict *jdict_new(struct jrt *rt, size_t cap);
/* Fails when the key cannot be hashed. */
void jdict_set(struct jrt *rt, struct jdict *d, struct jvalue key, struct jvalue v);
struct jvalue *jdict_get(struct jrt *rt, const struct jdict *d, struct jvalue key);
struct jvalue *jdict_get_str(struct jrt *rt, const struct jdict *d, struct jstr *key);
bool jvalue_hashable(struct jvalue v);

/* -- what every value can do -- */
const char *jvalue_type_name(struct jvalue v); /* Python's: "str", "NoneType", … */
bool jvalue_truth(struct jvalue v);
bool jvalue_is_number(struct jvalue v); /* int, float, bool */
double jvalue_double(struct jvalue v);  /* of a number */
int64_t jvalue_index(struct jrt *rt, struct jvalue v,
                     const char *what); /* int or bool, else fails */
bool jvalue_equal(struct jrt *rt, struct jvalue a, struct jvalue b);
/* <0, 0, >0; op names the operator in the message when they have no order. */
int jvalue_compare(struct jrt *rt, struct jvalue a, struct jvalue b, const char *op);
bool jvalue_contains(struct jrt *rt, struct jvalue container, struct jvalue v);
/* Length; fails for what has none. */
int64_t jvalue_length(struct jrt *rt, struct jvalue v);
bool jvalue_has_length(struct jvalue v);
bool jvalue_iterable(struct jvalue v);
_Noreturn void jvalue_fail_undefined(struct jrt *rt, struct jvalue v);

struct jiter {
    struct jvalue src;
    size_t i;
};
void jiter_init(struct jrt *rt, struct jiter *it, struct jvalue v); /* fails when not iterable */
bool jiter_next(struct jrt *rt, struct jiter *it, struct jvalue *out);
/* list(v); may be v's own list, which nobody changes. */
struct jlist *jvalue_items(struct jrt *rt, struct jvalue v);

/* Positional and keyword arguments into out[0..n_names), J_MISSING where not given; fails on
 * unknown, doubled or surplus arguments and when one of the first n_required is missing. */
void jargs_bind(struct jrt *rt, const char *what, const struct jargs *a, const char *const *names,
                size_t n_names, size_t n_required, struct jvalue *out);
#define JARGS_BIND(rt, what, a, required, out, ...)                                                \
    do {                                                                                           \
        static const char *const names_[] = {__VA_ARGS__};                                         \
        static_assert(sizeof names_ / sizeof *names_ == sizeof(out) / sizeof *(out), "arguments"); \
        jargs_bind(rt, what, a, names_, sizeof names_ / sizeof *names_, required, out);            \
    } while (0)

#endif
