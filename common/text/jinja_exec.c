/* jinja_exec: statements: output, conditions, loops, assignments, macros and captured blocks.
 *
 * A loop's items come one at a time and its filter runs just before the body, as in Jinja, so a
 * filter sees what earlier rounds did to a namespace. Each round has a fresh scope; the memory is
 * reused unless a macro defined in the round still points to it. */
#include "common/text/jinja_eval.h"

struct jstr *jexec_captured(struct jrt *rt, const struct jnode_list *body)
{
    struct jbuf out = {0}, *outer = rt->out;
    struct jscope *saved = rt->scope;
    rt->out = &out;
    jscope_push(rt);
    jexec(rt, body);
    rt->scope = saved;
    rt->out = outer;
    return jbuf_finish(rt, &out);
}

/* -- loops -- */

/* The next item that passes the loop's filter. */
static bool loop_fetch(struct jrt *rt, struct jloop *l, struct jvalue *out)
{
    if (l->rest) {
        if (l->at >= l->rest->n)
            return false;
        *out = l->rest->v[l->at++];
        return true;
    }
    const struct jnode *n = l->node;
    while (jiter_next(rt, &l->it, out)) {
        if (!n->c)
            return true;
        struct jscope *saved = rt->scope;
        rt->scope = l->outer;
        jscope_push(rt);
        jscope_assign(rt, n->a, *out);
        bool pass = jvalue_truth(jeval(rt, n->c));
        rt->scope = saved;
        if (pass)
            return true;
    }
    return false;
}

static bool loop_peek(struct jrt *rt, struct jloop *l)
{
    if (l->after.type == J_MISSING && !loop_fetch(rt, l, &l->after))
        l->after.type = J_MISSING;
    return l->after.type != J_MISSING;
}

static int64_t loop_length(struct jrt *rt, struct jloop *l)
{
    if (l->length >= 0)
        return l->length;
    if (!l->node->c && jvalue_has_length(l->it.src)) {
        l->length = jvalue_length(rt, l->it.src);
    } else {
        struct jlist *rest = jlist_new(rt, 0);
        struct jvalue v;
        while (loop_fetch(rt, l, &v))
            jlist_push(rt, rest, v);
        l->rest = rest;
        l->at = 0;
        l->length = (int64_t)rest->n + l->index0 + 1 + (l->after.type != J_MISSING);
    }
    return l->length;
}

static bool loop_next(struct jrt *rt, struct jloop *l, struct jvalue *out)
{
    if (l->after.type != J_MISSING) {
        *out = l->after;
        l->after.type = J_MISSING;
    } else if (!loop_fetch(rt, l, out)) {
        return false;
    }
    l->index0++;
    l->before = l->current;
    l->current = *out;
    return true;
}

struct jvalue jloop_attr(struct jrt *rt, struct jloop *l, struct jstr *name)
{
    if (jstr_is(name, "index"))
        return jint(l->index0 + 1);
    if (jstr_is(name, "index0"))
        return jint(l->index0);
    if (jstr_is(name, "first"))
        return jbool(l->index0 == 0);
    if (jstr_is(name, "last"))
        return jbool(!loop_peek(rt, l));
    if (jstr_is(name, "length"))
        return jint(loop_length(rt, l));
    if (jstr_is(name, "revindex"))
        return jint(loop_length(rt, l) - l->index0);
    if (jstr_is(name, "revindex0"))
        return jint(loop_length(rt, l) - l->index0 - 1);
    if (jstr_is(name, "depth"))
        return jint(l->depth0 + 1);
    if (jstr_is(name, "depth0"))
        return jint(l->depth0);
    if (jstr_is(name, "previtem"))
        return l->index0 > 0 ? l->before : jundefined(rt, "there is no previous item");
    if (jstr_is(name, "nextitem"))
        return loop_peek(rt, l) ? l->after : jundefined(rt, "there is no next item");
    return jundefined_name(rt, "loop", jstring(name), false);
}

struct jvalue jloop_run(struct jrt *rt, const struct jnode *n, struct jvalue items, int64_t depth0,
                        struct jscope *outer)
{
    struct jloop *l = jinja_alloc(rt, sizeof *l);
    struct jscope *saved = rt->scope, *scope = NULL;
    struct jvalue item;
    bool any = false;
    if (++rt->depth > JINJA_EVAL_DEPTH_MAX)
        jinja_fail(rt, STATUS_LIMIT, "loops are nested too deeply");
    *l = (struct jloop){.node = n, .outer = outer, .index0 = -1, .length = -1, .depth0 = depth0};
    jiter_init(rt, &l->it, items);
    while (loop_next(rt, l, &item)) {
        any = true;
        rt->scope = outer;
        if (scope && !scope->captured) {
            scope->n = 0;
            rt->scope = scope;
        } else {
            scope = jscope_push(rt);
        }
        jscope_assign(rt, n->a, item);
        jscope_set(rt, rt->t->sym_loop, (struct jvalue){.type = J_LOOP, .loop = l});
        if (jexec(rt, &n->list) == JFLOW_BREAK)
            break;
    }
    if (!any && n->other.n) {
        rt->scope = outer;
        jscope_push(rt);
        jexec(rt, &n->other);
    }
    rt->scope = saved;
    rt->depth--;
    return jnone();
}

/* -- the other statements -- */

static enum jflow exec_if(struct jrt *rt, const struct jnode *n)
{
    for (size_t i = 0; i < n->list.n; i++) {
        const struct jnode *branch = n->list.v[i];
        if (!branch->a || jvalue_truth(jeval(rt, branch->a)))
            return jexec(rt, &branch->list);
    }
    return JFLOW_NEXT;
}

static struct jvalue make_macro(struct jrt *rt, const struct jnode *n)
{
    struct jmacro *m = jinja_alloc(rt, sizeof *m);
    *m = (struct jmacro){n->sig, &n->list, rt->scope};
    for (struct jscope *s = rt->scope; s && !s->captured; s = s->parent)
        s->captured = true;
    return (struct jvalue){.type = J_MACRO, .macro = m};
}

static void exec_call_block(struct jrt *rt, const struct jnode *n)
{
    const struct jnode *call = n->a;
    struct jvalue callee = jeval(rt, call->a);
    struct jargs a;
    jargs_eval(rt, call, &a);
    struct jkw *kw = jinja_array(rt, a.n_kw + 1, sizeof *kw);
    if (a.n_kw)
        memcpy(kw, a.kw, a.n_kw * sizeof *kw);
    kw[a.n_kw++] = (struct jkw){jstr_literal(rt, "caller"), make_macro(rt, n)};
    a.kw = kw;
    rt->line = n->line;
    jbuf_value(rt, rt->out, jcall(rt, callee, &a));
}

/* Opens the scope and binds its names; the caller runs the body and leaves it. */
static void enter_with(struct jrt *rt, const struct jnode *n)
{
    struct jvalue *v = jinja_array(rt, n->values.n, sizeof *v);
    for (size_t i = 0; i < n->values.n; i++)
        v[i] = jeval(rt, n->values.v[i]);
    jscope_push(rt);
    for (size_t i = 0; i < n->values.n; i++)
        jscope_assign(rt, n->other.v[i], v[i]);
}

/* The text of a block through its filters (NULL: none). */
static struct jvalue filtered(struct jrt *rt, const struct jnode_list *body,
                              const struct jnode *filter)
{
    struct jvalue text = jstring(jexec_captured(rt, body));
    if (!filter)
        return text;
    rt->captured = text;
    return jeval(rt, filter);
}

static enum jflow exec_node(struct jrt *rt, const struct jnode *n)
{
    struct jscope *saved = rt->scope;
    enum jflow flow = JFLOW_NEXT;
    switch (n->kind) {
    case JN_TEXT:
        jbuf_str(rt, rt->out, n->value.s);
        break;
    case JN_PRINT:
        jbuf_value(rt, rt->out, jeval(rt, n->a));
        break;
    case JN_IF:
        return exec_if(rt, n);
    case JN_FOR:
        jloop_run(rt, n, jeval(rt, n->b), 0, rt->scope);
        break;
    case JN_SET:
        jscope_assign(rt, n->a, jeval(rt, n->b));
        break;
    case JN_SET_BLOCK:
        jscope_assign(rt, n->a, filtered(rt, &n->list, n->b));
        break;
    case JN_MACRO:
        jscope_set(rt, n->sym, make_macro(rt, n));
        break;
    case JN_CALL_BLOCK:
        exec_call_block(rt, n);
        break;
    case JN_FILTER_BLOCK:
        jbuf_value(rt, rt->out, filtered(rt, &n->list, n->a));
        break;
    case JN_WITH:
        enter_with(rt, n);
        flow = jexec(rt, &n->list);
        rt->scope = saved;
        break;
    case JN_SCOPE:
        jscope_push(rt);
        flow = jexec(rt, &n->list);
        rt->scope = saved;
        break;
    case JN_BREAK:
        return JFLOW_BREAK;
    case JN_CONTINUE:
        return JFLOW_CONTINUE;
    default:
        jinja_fail(rt, STATUS_INTERNAL, "a statement of unknown kind %d", n->kind);
    }
    return flow;
}

enum jflow jexec(struct jrt *rt, const struct jnode_list *body)
{
    enum jflow flow = JFLOW_NEXT;
    if (++rt->depth > JINJA_EVAL_DEPTH_MAX)
        jinja_fail(rt, STATUS_LIMIT, "blocks are nested too deeply");
    for (size_t i = 0; i < body->n && flow == JFLOW_NEXT; i++) {
        jinja_step(rt, 1);
        rt->line = body->v[i]->line;
        flow = exec_node(rt, body->v[i]);
    }
    rt->depth--;
    return flow;
}
