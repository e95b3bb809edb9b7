/* jinja_parse: the statement half of the parser, and what both halves share.
 *
 * Blocks nest by recursion, counted together with brackets (JINJA_NESTING_MAX), so the stack that a
 * hostile template can use is bounded. Names become numbers here; a rendering keeps its variables
 * by number. Filters and tests are looked up when they are evaluated, since templates name ones
 * they use only under a condition.
 *
 * Left out, with an error that says so: include, import, extends, block, autoescape, do. */
#include <stdio.h>

#include "common/text/jinja_ast.h"
#include "common/text/jinja_str.h"

void jparse_fail(struct jparser *p, const char *expected)
{
    const struct jtoken *t = p->t;
    p->rt->line = t->line;
    switch (t->type) {
    case JT_EOF:
        jinja_fail(p->rt, STATUS_INVALID, "expected %s, but the template ends", expected);
    case JT_NAME:
    case JT_STRING:
        jinja_fail(p->rt, STATUS_INVALID, "expected %s, not '%.*s'", expected,
                   (int)(t->s->n < 64 ? t->s->n : 64), t->s->p);
    case JT_OPERATOR: {
        char op[3] = {(char)(t->op > 255 ? t->op >> 8 : t->op), (char)(t->op > 255 ? t->op : 0), 0};
        jinja_fail(p->rt, STATUS_INVALID, "expected %s, not '%s'", expected, op);
    }
    case JT_INT:
    case JT_FLOAT:
        jinja_fail(p->rt, STATUS_INVALID, "expected %s, not a number", expected);
    default:
        jinja_fail(p->rt, STATUS_INVALID, "expected %s before the end of the tag", expected);
    }
}

struct jnode *jparse_node(struct jparser *p, enum jnode_kind kind, unsigned line)
{
    struct jnode *n = jinja_alloc(p->rt, sizeof *n);
    n->kind = kind;
    n->line = line;
    n->depth = 1;
    return n;
}

struct jnode *jparse_child(struct jparser *p, struct jnode *n, struct jnode *child)
{
    if (child && child->depth >= n->depth)
        n->depth = child->depth + 1;
    if (n->depth > JINJA_TREE_DEPTH_MAX) {
        p->rt->line = n->line;
        jinja_fail(p->rt, STATUS_LIMIT, "an expression is too long or nested too deeply");
    }
    return child;
}

static void list_push(struct jparser *p, struct jnode_list *l, struct jnode *child)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 4;
        struct jnode **v = jinja_array(p->rt, cap, sizeof *v);
        if (l->n)
            memcpy(v, l->v, l->n * sizeof *v);
        l->v = v;
        l->cap = cap;
    }
    l->v[l->n++] = child;
}

void jparse_push(struct jparser *p, struct jnode *n, struct jnode_list *l, struct jnode *child)
{
    list_push(p, l, jparse_child(p, n, child));
}

/* Macros get caller, kwargs and varargs only when their body names them. */
static void note_special(struct jparser *p, struct jstr *name)
{
    bool caller = jstr_is(name, "caller"), kwargs = jstr_is(name, "kwargs");
    if (!caller && !kwargs && !jstr_is(name, "varargs"))
        return;
    for (struct jmacro_frame *f = p->macros; f; f = f->outer) {
        bool *flag = caller   ? &f->sig->uses_caller
                     : kwargs ? &f->sig->uses_kwargs
                              : &f->sig->uses_varargs;
        *flag = true;
    }
}

uint32_t jparse_symbol(struct jparser *p, struct jstr *name)
{
    struct jtemplate *t = p->out;
    const struct jvalue *known = jdict_get_str(p->rt, p->symbols, name);
    note_special(p, name);
    if (known)
        return (uint32_t)known->i;
    if (t->n_symbols == p->cap_symbols) {
        size_t cap = p->cap_symbols ? 2 * p->cap_symbols : 64;
        struct jstr **v = jinja_array(p->rt, cap, sizeof *v);
        if (t->n_symbols)
            memcpy(v, t->symbols, t->n_symbols * sizeof *v);
        t->symbols = v;
        p->cap_symbols = cap;
    }
    jdict_set(p->rt, p->symbols, jstring(name), jint((int64_t)t->n_symbols));
    t->symbols[t->n_symbols] = jstr_freeze(p->rt, name);
    return (uint32_t)t->n_symbols++;
}

void jparse_enter(struct jparser *p)
{
    /* one bracket takes up to three levels: expression, operand, primary */
    if (++p->nesting > 4 * JINJA_NESTING_MAX) {
        p->rt->line = p->t->line;
        jinja_fail(p->rt, STATUS_LIMIT, "the template is nested too deeply");
    }
}

bool jparse_at_op(const struct jparser *p, int op)
{
    return p->t->type == JT_OPERATOR && p->t->op == op;
}

bool jparse_at_name(const struct jparser *p, const char *name)
{
    return p->t->type == JT_NAME && jstr_is(p->t->s, name);
}

bool jparse_skip_op(struct jparser *p, int op)
{
    bool yes = jparse_at_op(p, op);
    p->t += yes;
    return yes;
}

bool jparse_skip_name(struct jparser *p, const char *name)
{
    bool yes = jparse_at_name(p, name);
    p->t += yes;
    return yes;
}

void jparse_expect_op(struct jparser *p, int op)
{
    char text[4] = {'\'', (char)op, '\'', 0};
    if (!jparse_skip_op(p, op))
        jparse_fail(p, text);
}

struct jstr *jparse_expect_name(struct jparser *p)
{
    if (p->t->type != JT_NAME)
        jparse_fail(p, "a name");
    return jstr_freeze(p->rt, (p->t++)->s);
}

/* -- statements -- */

static void expect(struct jparser *p, enum jtoken_type type, const char *what)
{
    if (p->t->type != type)
        jparse_fail(p, what);
    p->t++;
}

static struct jnode *parse_statement(struct jparser *p);

static bool at_any(const struct jparser *p, const char *const *ends)
{
    for (; *ends; ends++)
        if (jparse_at_name(p, *ends))
            return true;
    return false;
}

/* Statements until a tag named in ends (NULL: the end of the template), which is left as the next
 * token. They go below owner, or into the template's body when that is NULL. */
static void parse_body(struct jparser *p, struct jnode *owner, struct jnode_list *into,
                       const char *const *ends)
{
    jparse_enter(p);
    while (p->t->type != JT_EOF) {
        const struct jtoken *t = p->t++;
        struct jnode *n;
        if (t->type == JT_DATA) {
            n = jparse_node(p, JN_TEXT, t->line);
            n->value = jstring(jstr_freeze(p->rt, t->s));
        } else if (t->type == JT_VAR_BEGIN) {
            n = jparse_node(p, JN_PRINT, t->line);
            n->a = jparse_child(p, n, jparse_tuple(p, true, NULL));
            expect(p, JT_VAR_END, "'}}'");
        } else {
            if (ends && at_any(p, ends)) {
                p->nesting--;
                return;
            }
            n = parse_statement(p);
            expect(p, JT_BLOCK_END, "'%}'");
        }
        if (owner)
            jparse_child(p, owner, n);
        list_push(p, into, n);
    }
    if (ends) {
        char what[32];
        snprintf(what, sizeof what, "'%s'", ends[0]);
        jparse_fail(p, what);
    }
    p->nesting--;
}

/* The body of a block tag, from the end of that tag. */
static void parse_block(struct jparser *p, struct jnode *owner, struct jnode_list *into,
                        const char *const *ends)
{
    jparse_skip_op(p, ':');
    expect(p, JT_BLOCK_END, "'%}'");
    parse_body(p, owner, into, ends);
}

/* The same, up to and with its one end tag. */
static void parse_whole(struct jparser *p, struct jnode *owner, struct jnode_list *into,
                        const char *end)
{
    const char *const ends[] = {end, NULL};
    parse_block(p, owner, into, ends);
    p->t++;
}

static struct jnode *parse_if(struct jparser *p, struct jnode *n)
{
    static const char *const ends[] = {"endif", "elif", "else", NULL};
    bool more = true;
    while (more) {
        struct jnode *branch = jparse_node(p, JN_BRANCH, p->t->line);
        branch->a = jparse_child(p, branch, jparse_tuple(p, false, NULL));
        parse_block(p, branch, &branch->list, ends);
        jparse_push(p, n, &n->list, branch);
        more = jparse_skip_name(p, "elif");
    }
    if (jparse_skip_name(p, "else")) {
        struct jnode *branch = jparse_node(p, JN_BRANCH, p->t->line);
        parse_whole(p, branch, &branch->list, "endif");
        jparse_push(p, n, &n->list, branch);
    } else {
        p->t++;
    }
    return n;
}

static struct jnode *parse_for(struct jparser *p, struct jnode *n)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    n->a = jparse_child(p, n, jparse_target(p, false, "in"));
    if (!jparse_skip_name(p, "in"))
        jparse_fail(p, "'in'");
    n->b = jparse_child(p, n, jparse_tuple(p, false, "recursive"));
    if (jparse_skip_name(p, "if"))
        n->c = jparse_child(p, n, jparse_expression(p));
    n->recursive = jparse_skip_name(p, "recursive");
    p->loops++;
    parse_block(p, n, &n->list, ends);
    p->loops--;
    if (jparse_skip_name(p, "else"))
        parse_whole(p, n, &n->other, "endfor");
    else
        p->t++;
    return n;
}

static struct jnode *parse_set(struct jparser *p, struct jnode *n)
{
    n->a = jparse_child(p, n, jparse_target(p, true, NULL));
    if (jparse_skip_op(p, '=')) {
        n->b = jparse_child(p, n, jparse_tuple(p, true, NULL));
        return n;
    }
    n->kind = JN_SET_BLOCK;
    if (jparse_at_op(p, '|')) {
        struct jnode *filter = jparse_node(p, JN_CAPTURED, n->line);
        while (jparse_skip_op(p, '|'))
            filter = jparse_filter(p, filter);
        n->b = jparse_child(p, n, filter);
    }
    parse_whole(p, n, &n->list, "endset");
    return n;
}

static void parse_signature(struct jparser *p, struct jnode *n)
{
    struct jsignature *sig = n->sig;
    jparse_expect_op(p, '(');
    while (!jparse_skip_op(p, ')')) {
        if (sig->params.n)
            jparse_expect_op(p, ',');
        jparse_push(p, n, &sig->params, jparse_target_name(p));
        if (jparse_skip_op(p, '='))
            jparse_push(p, n, &sig->defaults, jparse_expression(p));
        else if (sig->defaults.n)
            jparse_fail(p, "a default, as the parameter before has one");
    }
}

/* A body that is called: break and continue do not reach the loops around it. */
static void parse_callable(struct jparser *p, struct jnode *n, const char *end)
{
    struct jmacro_frame frame = {p->macros, n->sig};
    unsigned loops = p->loops;
    p->macros = &frame;
    p->loops = 0;
    parse_whole(p, n, &n->list, end);
    p->loops = loops;
    p->macros = frame.outer;
    n->sig->caller_sym = jparse_symbol(p, jstr_literal(p->rt, "caller"));
    n->sig->kwargs_sym = jparse_symbol(p, jstr_literal(p->rt, "kwargs"));
    n->sig->varargs_sym = jparse_symbol(p, jstr_literal(p->rt, "varargs"));
}

static struct jnode *parse_macro(struct jparser *p, struct jnode *n)
{
    n->sig = jinja_alloc(p->rt, sizeof *n->sig);
    struct jnode *name = jparse_target_name(p);
    n->name = name->name;
    n->sym = name->sym;
    n->sig->name = arena_strndup(&p->rt->arena, n->name->p, n->name->n);
    if (!n->sig->name)
        jinja_fail(p->rt, STATUS_LIMIT, "needs more memory than allowed");
    parse_signature(p, n);
    parse_callable(p, n, "endmacro");
    return n;
}

static struct jnode *parse_call_block(struct jparser *p, struct jnode *n)
{
    n->sig = jinja_alloc(p->rt, sizeof *n->sig);
    n->sig->name = "caller";
    if (jparse_at_op(p, '('))
        parse_signature(p, n);
    n->a = jparse_child(p, n, jparse_expression(p));
    if (n->a->kind != JN_CALL)
        jparse_fail(p, "a call before it");
    parse_callable(p, n, "endcall");
    return n;
}

static struct jnode *parse_with(struct jparser *p, struct jnode *n)
{
    while (p->t->type != JT_BLOCK_END) {
        if (n->other.n)
            jparse_expect_op(p, ',');
        jparse_push(p, n, &n->other, jparse_target(p, false, NULL));
        jparse_expect_op(p, '=');
        jparse_push(p, n, &n->values, jparse_expression(p));
    }
    parse_whole(p, n, &n->list, "endwith");
    return n;
}

static struct jnode *parse_print(struct jparser *p, struct jnode *n)
{
    bool any = false;
    while (p->t->type != JT_BLOCK_END) {
        if (any)
            jparse_expect_op(p, ',');
        any = true;
        struct jnode *item = jparse_node(p, JN_PRINT, p->t->line);
        item->a = jparse_child(p, item, jparse_expression(p));
        jparse_push(p, n, &n->list, item);
    }
    return n;
}

static struct jnode *parse_filter_block(struct jparser *p, struct jnode *n)
{
    struct jnode *filter = jparse_node(p, JN_CAPTURED, n->line);
    do
        filter = jparse_filter(p, filter);
    while (jparse_skip_op(p, '|'));
    n->a = jparse_child(p, n, filter);
    parse_whole(p, n, &n->list, "endfilter");
    return n;
}

static struct jnode *parse_generation(struct jparser *p, struct jnode *n)
{
    unsigned loops = p->loops;
    p->loops = 0;
    parse_whole(p, n, &n->list, "endgeneration");
    p->loops = loops;
    return n;
}

static struct jnode *parse_loop_control(struct jparser *p, struct jnode *n)
{
    if (p->loops == 0) {
        p->rt->line = n->line;
        jinja_fail(p->rt, STATUS_INVALID, "break or continue outside a loop");
    }
    return n;
}

static struct jnode *parse_statement(struct jparser *p)
{
    static const struct {
        const char *name;
        enum jnode_kind kind;
        struct jnode *(*parse)(struct jparser *, struct jnode *);
    } table[] = {
        {"if", JN_IF, parse_if},
        {"for", JN_FOR, parse_for},
        {"set", JN_SET, parse_set},
        {"macro", JN_MACRO, parse_macro},
        {"call", JN_CALL_BLOCK, parse_call_block},
        {"filter", JN_FILTER_BLOCK, parse_filter_block},
        {"with", JN_WITH, parse_with},
        {"print", JN_SCOPE, parse_print},
        {"generation", JN_SCOPE, parse_generation},
        {"break", JN_BREAK, parse_loop_control},
        {"continue", JN_CONTINUE, parse_loop_control},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        unsigned line = p->t->line;
        if (jparse_skip_name(p, table[i].name))
            return table[i].parse(p, jparse_node(p, table[i].kind, line));
    }
    jparse_fail(p, "a statement that chat templates may use");
}

struct jtemplate *jinja_parse(struct jrt *rt, const struct jtoken *tokens)
{
    struct jtemplate *t = jinja_alloc(rt, sizeof *t);
    struct jparser p = {.rt = rt, .t = tokens, .out = t, .symbols = jdict_new(rt, 64)};
    t->sym_loop = jparse_symbol(&p, jstr_literal(rt, "loop"));
    parse_body(&p, NULL, &t->body, NULL);
    return t;
}
