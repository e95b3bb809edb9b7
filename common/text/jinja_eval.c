/* jinja_eval: walks the tree: variables, expressions and calls.
 *
 * Recursion is bounded by JINJA_EVAL_DEPTH_MAX over everything that nests: expressions, statements,
 * macro calls and recursive loops. A call of the form value.name(…) finds the method without making
 * a bound method first. Scopes are dynamic chains, which gives the same results as Jinja's compiled
 * name resolution: blocks see outer variables and their own changes end with them. */
#include "common/text/jinja_eval.h"

/* -- variables -- */

struct jscope *jscope_push(struct jrt *rt)
{
    struct jscope *s = jinja_alloc(rt, sizeof *s);
    s->parent = rt->scope;
    rt->scope = s;
    return s;
}

/* Only these are our own words; everything else in the context may be a user's. */
static bool trusted_name(const struct jstr *name)
{
    return jstr_is(name, "bos_token") || jstr_is(name, "eos_token") || jstr_is(name, "unk_token") ||
           jstr_is(name, "pad_token");
}

static struct jvalue global_get(struct jrt *rt, uint32_t sym)
{
    struct jvalue *v = &rt->globals[sym];
    if (v->type != J_MISSING)
        return *v;
    struct jstr *name = rt->t->symbols[sym];
    const json_t *j = json_object_getn(rt->context, name->p, name->n);
    const struct jfunction *fn = j ? NULL : jfunction_find(name);
    if (j)
        *v = jvalue_from_json(rt, j, trusted_name(name));
    else if (fn)
        *v = (struct jvalue){.type = J_FUNCTION, .fn = fn};
    else
        *v = jundefined_name(rt, NULL, jstring(name), false);
    return *v;
}

struct jvalue jscope_get(struct jrt *rt, uint32_t sym)
{
    for (struct jscope *s = rt->scope; s; s = s->parent) {
        jinja_step(rt, s->n / 16);
        for (uint32_t i = 0; i < s->n; i++)
            if (s->vars[i].sym == sym)
                return s->vars[i].v;
    }
    return global_get(rt, sym);
}

void jscope_set(struct jrt *rt, uint32_t sym, struct jvalue v)
{
    struct jscope *s = rt->scope;
    if (!s) {
        rt->globals[sym] = v;
        return;
    }
    jinja_step(rt, s->n / 16);
    for (uint32_t i = 0; i < s->n; i++)
        if (s->vars[i].sym == sym) {
            s->vars[i].v = v;
            return;
        }
    if (s->n == s->cap) {
        uint32_t cap = s->cap ? 2 * s->cap : 4;
        struct jbinding *p = jinja_array(rt, cap, sizeof *p);
        if (s->n)
            memcpy(p, s->vars, s->n * sizeof *p);
        s->vars = p;
        s->cap = cap;
    }
    s->vars[s->n++] = (struct jbinding){sym, v};
}

void jscope_assign(struct jrt *rt, const struct jnode *target, struct jvalue v)
{
    switch (target->kind) {
    case JN_NAME:
        jscope_set(rt, target->sym, v);
        return;
    case JN_NSREF: {
        struct jvalue ns = jscope_get(rt, target->sym);
        if (ns.type != J_NAMESPACE)
            jinja_fail(rt, STATUS_INVALID, "only attributes of namespaces can be assigned to");
        jdict_set(rt, ns.d, jstring(target->name), v);
        return;
    }
    default:
        break;
    }
    if (v.type == J_UNDEFINED && target->list.n)
        jinja_fail(rt, STATUS_INVALID, "an undefined value has no items to unpack");
    struct jlist *items = jvalue_items(rt, v);
    if (items->n != target->list.n)
        jinja_fail(rt, STATUS_INVALID, "%zu values cannot be unpacked into %zu names", items->n,
                   target->list.n);
    for (size_t i = 0; i < items->n; i++)
        jscope_assign(rt, target->list.v[i], items->v[i]);
}

/* -- calls -- */

void jargs_eval(struct jrt *rt, const struct jnode *n, struct jargs *a)
{
    *a = (struct jargs){0};
    const struct jcall *call = n->call;
    struct jlist *extra = NULL;
    struct jdict *more = NULL;
    struct jvalue *pos = n->list.n ? jinja_array(rt, n->list.n, sizeof *pos) : NULL;
    for (size_t i = 0; i < n->list.n; i++)
        pos[i] = jeval(rt, n->list.v[i]);
    a->pos = pos;
    a->n = n->list.n;
    if (!call)
        return;
    struct jkw *kw = jinja_array(rt, call->n_kw + 1, sizeof *kw);
    for (size_t i = 0; i < call->n_kw; i++)
        kw[i] = (struct jkw){call->kw[i].name, jeval(rt, call->kw[i].value)};
    a->kw = kw;
    a->n_kw = call->n_kw;
    if (call->star) {
        extra = jvalue_items(rt, jeval(rt, call->star));
        a->pos = jinja_array(rt, a->n + extra->n, sizeof *a->pos);
        if (a->n)
            memcpy(a->pos, pos, a->n * sizeof *pos);
        if (extra->n)
            memcpy(a->pos + a->n, extra->v, extra->n * sizeof *pos);
        a->n += extra->n;
    }
    if (call->star_star) {
        struct jvalue v = jeval(rt, call->star_star);
        if (v.type != J_DICT)
            jinja_fail(rt, STATUS_INVALID, "** needs a dict, not %s", jvalue_type_name(v));
        more = v.d;
        a->kw = jinja_array(rt, a->n_kw + more->n + 1, sizeof *kw);
        memcpy(a->kw, kw, a->n_kw * sizeof *kw);
        for (size_t i = 0; i < more->n; i++) {
            if (more->e[i].key.type != J_STR)
                jinja_fail(rt, STATUS_INVALID, "keywords must be strings");
            a->kw[a->n_kw++] = (struct jkw){more->e[i].key.s, more->e[i].value};
        }
    }
}

/* Takes the keyword out of the list; J_MISSING when it is not there. */
static struct jvalue take_keyword(struct jkw *kw, size_t *n, const char *name)
{
    for (size_t i = 0; i < *n; i++)
        if (jstr_is(kw[i].name, name)) {
            struct jvalue v = kw[i].v;
            memmove(kw + i, kw + i + 1, (--*n - i) * sizeof *kw);
            return v;
        }
    return (struct jvalue){.type = J_MISSING};
}

static void bind_params(struct jrt *rt, const struct jsignature *sig, const struct jargs *a,
                        struct jkw *kw, size_t *n_kw, bool *found_caller)
{
    size_t first_default = sig->params.n - sig->defaults.n;
    for (size_t i = 0; i < sig->params.n; i++) {
        const struct jnode *param = sig->params.v[i];
        struct jvalue v = {.type = J_MISSING};
        char name[128];
        if (i < a->n) {
            v = a->pos[i];
        } else if (param->name->n < sizeof name) {
            memcpy(name, param->name->p, param->name->n);
            name[param->name->n] = '\0';
            v = take_keyword(kw, n_kw, name);
        }
        *found_caller |= jstr_is(param->name, "caller");
        if (v.type == J_MISSING && i >= first_default)
            v = jeval(rt, sig->defaults.v[i - first_default]);
        else if (v.type == J_MISSING)
            v = jundefined(rt, "a parameter of a macro was not given");
        jscope_set(rt, param->sym, v);
    }
}

static struct jvalue call_macro(struct jrt *rt, const struct jmacro *m, const struct jargs *a)
{
    const struct jsignature *sig = m->sig;
    struct jscope *saved = rt->scope;
    size_t n_kw = a->n_kw;
    struct jkw *kw = jinja_array(rt, n_kw + 1, sizeof *kw);
    bool found_caller = false;
    if (n_kw)
        memcpy(kw, a->kw, n_kw * sizeof *kw);
    rt->scope = m->scope;
    jscope_push(rt);
    bind_params(rt, sig, a, kw, &n_kw, &found_caller);
    if (sig->uses_caller && !found_caller) {
        struct jvalue caller = take_keyword(kw, &n_kw, "caller");
        if (caller.type == J_MISSING || caller.type == J_NONE)
            caller = jundefined(rt, "No caller defined");
        jscope_set(rt, sig->caller_sym, caller);
    }
    if (sig->uses_kwargs) {
        struct jdict *d = jdict_new(rt, n_kw);
        for (size_t i = 0; i < n_kw; i++)
            jdict_set(rt, d, jstring(kw[i].name), kw[i].v);
        jscope_set(rt, sig->kwargs_sym, jdict_value(d));
    } else if (n_kw) {
        jinja_fail(rt, STATUS_INVALID, "macro '%s' has no parameter '%.*s'", sig->name,
                   (int)(kw[0].name->n < 64 ? kw[0].name->n : 64), kw[0].name->p);
    }
    if (sig->uses_varargs) {
        struct jlist *l = jlist_new(rt, 0);
        for (size_t i = sig->params.n; i < a->n; i++)
            jlist_push(rt, l, a->pos[i]);
        jscope_set(rt, sig->varargs_sym, jtuple_value(l));
    } else if (a->n > sig->params.n) {
        jinja_fail(rt, STATUS_INVALID, "macro '%s' takes not more than %zu arguments", sig->name,
                   sig->params.n);
    }
    struct jbuf out = {0}, *outer = rt->out;
    rt->out = &out;
    jexec(rt, m->body);
    rt->out = outer;
    rt->scope = saved;
    return jstring(jbuf_finish(rt, &out));
}

static struct jvalue call_cycler(struct jrt *rt, struct jcycler *c)
{
    struct jvalue v = c->items->v[c->at];
    c->at = (c->at + 1) % c->items->n;
    return v;
}

struct jvalue jcall(struct jrt *rt, struct jvalue callee, const struct jargs *a)
{
    switch (callee.type) {
    case J_MACRO:
        return call_macro(rt, callee.macro, a);
    case J_FUNCTION:
        return callee.fn->fn(rt, a);
    case J_METHOD:
        return jmethod_call(rt, callee.method->def, callee.method->self, a);
    case J_UNDEFINED:
        jvalue_fail_undefined(rt, callee);
    case J_LOOP: {
        struct jvalue p[1];
        JARGS_BIND(rt, "loop", a, 1, p, "iterable");
        if (!callee.loop->node->recursive)
            jinja_fail(rt, STATUS_INVALID, "only a 'recursive' loop can be called");
        struct jbuf out = {0}, *outer = rt->out;
        struct jscope *saved = rt->scope;
        rt->out = &out;
        jloop_run(rt, callee.loop->node, p[0], callee.loop->depth0 + 1, callee.loop->outer);
        rt->out = outer;
        rt->scope = saved;
        return jstring(jbuf_finish(rt, &out));
    }
    case J_JOINER: {
        bool used = callee.joiner->used;
        callee.joiner->used = true;
        return jstring(used ? callee.joiner->sep : jstr_literal(rt, ""));
    }
    default:
        jinja_fail(rt, STATUS_INVALID, "a %s cannot be called", jvalue_type_name(callee));
    }
}

static struct jvalue cycler_attr(struct jrt *rt, struct jcycler *c, const struct jstr *name,
                                 bool *known)
{
    *known = true;
    if (jstr_is(name, "next"))
        return call_cycler(rt, c);
    if (jstr_is(name, "reset")) {
        c->at = 0;
        return jnone();
    }
    *known = false;
    return jnone();
}

/* loop.cycle(…) and loop.changed(…). */
static struct jvalue call_loop_method(struct jrt *rt, struct jloop *l, const struct jstr *name,
                                      const struct jargs *a, bool *known)
{
    *known = true;
    if (jstr_is(name, "cycle")) {
        if (a->n == 0)
            jinja_fail(rt, STATUS_INVALID, "loop.cycle needs items");
        return a->pos[(size_t)l->index0 % a->n];
    }
    if (jstr_is(name, "changed")) {
        struct jlist *args = jlist_new(rt, a->n);
        for (size_t i = 0; i < a->n; i++)
            jlist_push(rt, args, a->pos[i]);
        struct jvalue now = jtuple_value(args);
        bool changed = !jvalue_equal(rt, l->last_changed, now);
        l->last_changed = now;
        return jbool(changed);
    }
    *known = false;
    return jnone();
}

static struct jvalue eval_call(struct jrt *rt, const struct jnode *n)
{
    struct jargs a;
    const struct jnode *callee = n->a;
    if (callee->kind != JN_ATTR) {
        struct jvalue f = jeval(rt, callee);
        jargs_eval(rt, n, &a);
        rt->line = n->line;
        return jcall(rt, f, &a);
    }
    struct jvalue self = jeval(rt, callee->a);
    const struct jmethod_def *def = jmethod_find(self, callee->name);
    if (def) {
        jargs_eval(rt, n, &a);
        rt->line = n->line;
        return jmethod_call(rt, def, self, &a);
    }
    bool known = false;
    struct jvalue v = jnone();
    if (self.type == J_LOOP) {
        jargs_eval(rt, n, &a);
        v = call_loop_method(rt, self.loop, callee->name, &a, &known);
    } else if (self.type == J_CYCLER) {
        v = cycler_attr(rt, self.cycler, callee->name, &known);
    }
    if (known)
        return v;
    rt->line = callee->line;
    struct jvalue f = jop_attr(rt, self, callee->name);
    jargs_eval(rt, n, &a);
    rt->line = n->line;
    return jcall(rt, f, &a);
}

/* -- expressions -- */

static struct jvalue eval_compare(struct jrt *rt, const struct jnode *n)
{
    struct jvalue left = jeval(rt, n->list.v[0]);
    for (size_t i = 1; i < n->list.n; i++) {
        struct jvalue right = jeval(rt, n->list.v[i]);
        rt->line = n->line;
        if (!jop_compare(rt, n->ops[i - 1], left, right))
            return jbool(false);
        left = right;
    }
    return jbool(true);
}

static struct jvalue eval_list(struct jrt *rt, const struct jnode *n)
{
    struct jlist *l = jlist_new(rt, n->list.n);
    for (size_t i = 0; i < n->list.n; i++)
        jlist_push(rt, l, jeval(rt, n->list.v[i]));
    return n->kind == JN_TUPLE ? jtuple_value(l) : jlist_value(l);
}

static struct jvalue eval_dict(struct jrt *rt, const struct jnode *n)
{
    struct jdict *d = jdict_new(rt, n->list.n / 2);
    for (size_t i = 0; i + 1 < n->list.n; i += 2) {
        struct jvalue key = jeval(rt, n->list.v[i]);
        jdict_set(rt, d, key, jeval(rt, n->list.v[i + 1]));
    }
    return jdict_value(d);
}

static struct jvalue eval_concat(struct jrt *rt, const struct jnode *n)
{
    struct jvalue *v = jinja_array(rt, n->list.n, sizeof *v);
    for (size_t i = 0; i < n->list.n; i++)
        v[i] = jeval(rt, n->list.v[i]);
    return jop_concat(rt, v, n->list.n);
}

static struct jvalue eval_slice(struct jrt *rt, const struct jnode *n)
{
    const struct jvalue none = {.type = J_MISSING};
    struct jvalue of = jeval(rt, n->a);
    struct jvalue start = n->b ? jeval(rt, n->b) : none;
    struct jvalue stop = n->c ? jeval(rt, n->c) : none;
    struct jvalue step = n->d ? jeval(rt, n->d) : none;
    rt->line = n->line;
    return jop_slice(rt, of, start, stop, step);
}

static struct jvalue eval_node(struct jrt *rt, const struct jnode *n)
{
    struct jvalue a, b;
    struct jargs args;
    switch (n->kind) {
    case JN_CONST:
        return n->value;
    case JN_NAME:
        return jscope_get(rt, n->sym);
    case JN_TUPLE:
    case JN_LIST:
        return eval_list(rt, n);
    case JN_DICT:
        return eval_dict(rt, n);
    case JN_ATTR:
        a = jeval(rt, n->a);
        rt->line = n->line;
        return jop_attr(rt, a, n->name);
    case JN_ITEM:
        a = jeval(rt, n->a);
        b = jeval(rt, n->b);
        rt->line = n->line;
        return jop_item(rt, a, b);
    case JN_SLICE:
        return eval_slice(rt, n);
    case JN_CALL:
        return eval_call(rt, n);
    case JN_FILTER:
        a = jeval(rt, n->a);
        jargs_eval(rt, n, &args);
        rt->line = n->line;
        return jfilter_apply(rt, n->name, a, &args);
    case JN_TEST:
        a = jeval(rt, n->a);
        jargs_eval(rt, n, &args);
        rt->line = n->line;
        return jbool(jtest_apply(rt, n->name, a, &args));
    case JN_NOT:
        return jbool(!jvalue_truth(jeval(rt, n->a)));
    case JN_NEG:
    case JN_POS:
        a = jeval(rt, n->a);
        rt->line = n->line;
        return jop_negate(rt, a, n->kind == JN_NEG);
    case JN_AND:
        a = jeval(rt, n->a);
        return jvalue_truth(a) ? jeval(rt, n->b) : a;
    case JN_OR:
        a = jeval(rt, n->a);
        return jvalue_truth(a) ? a : jeval(rt, n->b);
    case JN_COND:
        if (jvalue_truth(jeval(rt, n->a)))
            return jeval(rt, n->b);
        return n->c ? jeval(rt, n->c) : jundefined(rt, "an inline if was false and has no else");
    case JN_COMPARE:
        return eval_compare(rt, n);
    case JN_BINARY:
        a = jeval(rt, n->a);
        b = jeval(rt, n->b);
        rt->line = n->line;
        return jop_binary(rt, n->op, a, b);
    case JN_CONCAT:
        return eval_concat(rt, n);
    case JN_CAPTURED:
        return rt->captured;
    default:
        jinja_fail(rt, STATUS_INTERNAL, "an expression of unknown kind %d", n->kind);
    }
}

struct jvalue jeval(struct jrt *rt, const struct jnode *n)
{
    jinja_step(rt, 1);
    rt->line = n->line;
    if (++rt->depth > JINJA_EVAL_DEPTH_MAX)
        jinja_fail(rt, STATUS_LIMIT, "calls are nested too deeply");
    struct jvalue v = eval_node(rt, n);
    rt->depth--;
    return v;
}
