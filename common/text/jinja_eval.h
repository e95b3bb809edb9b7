/* jinja_eval: the evaluator of chat templates: expressions, statements, calls, and the tables of
 * filters, tests, methods and global functions behind them. */
#ifndef BATON_TEXT_JINJA_EVAL_H
#define BATON_TEXT_JINJA_EVAL_H

#include "common/text/jinja_ast.h"
#include "common/text/jinja_str.h"
#include "common/text/jinja_value.h"

/* The variables of one block. Macros keep the scope that they were defined in. */
struct jbinding {
    uint32_t sym;
    struct jvalue v;
};
struct jscope {
    struct jscope *parent; /* NULL: the top level, which is rt->globals */
    struct jbinding *vars;
    uint32_t n, cap;
    bool captured; /* a macro points here, so a loop may not reuse it */
};

struct jmacro {
    const struct jsignature *sig;
    const struct jnode_list *body;
    struct jscope *scope;
};

/* The loop variable: a cursor that can look one item ahead. */
struct jloop {
    const struct jnode *node;
    struct jiter it;
    struct jscope *outer;
    struct jlist *rest; /* the remaining items once the length was asked for; at counts in it */
    size_t at;
    int64_t index0, length; /* length -1: not known */
    int64_t depth0;
    struct jvalue before, current, after; /* J_MISSING: none */
    struct jvalue last_changed;
};

enum jflow { JFLOW_NEXT, JFLOW_BREAK, JFLOW_CONTINUE };

struct jvalue jeval(struct jrt *rt, const struct jnode *n);
enum jflow jexec(struct jrt *rt, const struct jnode_list *body);
/* The text that body gives in a new scope. */
struct jstr *jexec_captured(struct jrt *rt, const struct jnode_list *body);
struct jscope *jscope_push(struct jrt *rt);
struct jvalue jscope_get(struct jrt *rt, uint32_t sym);
void jscope_set(struct jrt *rt, uint32_t sym, struct jvalue v);
void jscope_assign(struct jrt *rt, const struct jnode *target, struct jvalue v);

void jargs_eval(struct jrt *rt, const struct jnode *n, struct jargs *a);
struct jvalue jcall(struct jrt *rt, struct jvalue callee, const struct jargs *a);
struct jvalue jloop_run(struct jrt *rt, const struct jnode *n, struct jvalue items, int64_t depth0,
                        struct jscope *outer);
struct jvalue jloop_attr(struct jrt *rt, struct jloop *l, struct jstr *name);

/* -- operators (jinja_ops) -- */
struct jvalue jop_binary(struct jrt *rt, int op, struct jvalue a, struct jvalue b);
struct jvalue jop_concat(struct jrt *rt, const struct jvalue *v, size_t n);
struct jvalue jop_negate(struct jrt *rt, struct jvalue v, bool minus);
bool jop_compare(struct jrt *rt, int cmp, struct jvalue a, struct jvalue b);
struct jvalue jop_item(struct jrt *rt, struct jvalue of, struct jvalue index);
struct jvalue jop_attr(struct jrt *rt, struct jvalue of, struct jstr *name);
/* start, stop, step: J_MISSING or none where left out. */
struct jvalue jop_slice(struct jrt *rt, struct jvalue of, struct jvalue start, struct jvalue stop,
                        struct jvalue step);

/* -- tables -- */
const struct jmethod_def *jmethod_find(struct jvalue of, const struct jstr *name);
/* Calls it without binding it first; fails when the sandbox or Baton does not offer it. */
struct jvalue jmethod_call(struct jrt *rt, const struct jmethod_def *def, struct jvalue self,
                           const struct jargs *a);
/* Fails unless there are min..max positional arguments and no keywords. */
void jmethod_need(struct jrt *rt, const struct jargs *a, size_t min, size_t max, const char *what);
struct jstr *jmethod_str_arg(struct jrt *rt, struct jvalue v, const char *what);
/* All cased characters are `want`, and there is one. */
bool jmethod_all_cased(struct jrt *rt, const struct jstr *s, bool (*want)(int32_t));
/* Methods of strings that cut, join and pad (jinja_split). */
struct jvalue jmethod_center(struct jrt *rt, struct jvalue self, const struct jargs *a);
struct jvalue jmethod_expandtabs(struct jrt *rt, struct jvalue self, const struct jargs *a);
struct jvalue jmethod_join(struct jrt *rt, struct jvalue self, const struct jargs *a);
struct jvalue jmethod_ljust(struct jrt *rt, struct jvalue self, const struct jargs *a);
struct jvalue jmethod_partition(struct jrt *rt, struct jvalue self, const struct jargs *a);
struct jvalue jmethod_rjust(struct jrt *rt, struct jvalue self, const struct jargs *a);
struct jvalue jmethod_rpartition(struct jrt *rt, struct jvalue self, const struct jargs *a);
struct jvalue jmethod_rsplit(struct jrt *rt, struct jvalue self, const struct jargs *a);
struct jvalue jmethod_split(struct jrt *rt, struct jvalue self, const struct jargs *a);
struct jvalue jmethod_splitlines(struct jrt *rt, struct jvalue self, const struct jargs *a);
struct jvalue jmethod_zfill(struct jrt *rt, struct jvalue self, const struct jargs *a);

const struct jfunction *jfunction_find(const struct jstr *name);

typedef struct jvalue (*jfilter_fn)(struct jrt *rt, struct jvalue v, const struct jargs *a);
struct jfilter_def {
    const char *name;
    jfilter_fn fn;
};
/* Each sorted by name: text and numbers, and sequences. */
extern const struct jfilter_def jfilters_text[], jfilters_seq[];
extern const size_t jfilters_text_n, jfilters_seq_n;
jfilter_fn jfilter_find(const struct jstr *name);
struct jvalue jfilter_apply(struct jrt *rt, const struct jstr *name, struct jvalue v,
                            const struct jargs *a);

bool jtest_apply(struct jrt *rt, const struct jstr *name, struct jvalue v, const struct jargs *a);
bool jtest_known(const struct jstr *name);

/* int(s) in a base (0: by prefix) and float(s), as Python reads them. */
bool jnumber_int(const struct jstr *s, int base, int64_t *out);
bool jnumber_float(const struct jstr *s, double *out);

#endif
