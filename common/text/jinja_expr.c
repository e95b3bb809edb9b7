/* jinja_expr: the expression half of the parser: recursive descent over Jinja's precedences, lowest
 * first: if/else, or, and, not, comparisons and in, + -, ~, * / // %, **, unary + -, then postfix
 * (.name [index] (call)) and filters and tests. Two habits of Jinja are kept: ** groups to the
 * left, and a filter binds tighter than any operator but belongs to the operand, not to its sign.
 */
#include "common/text/jinja_ast.h"
#include "common/text/jinja_str.h"

static struct jnode *parse_or(struct jparser *p);
static struct jnode *parse_unary(struct jparser *p, bool with_filter);

static struct jnode *unary(struct jparser *p, enum jnode_kind kind, unsigned line, struct jnode *a)
{
    struct jnode *n = jparse_node(p, kind, line);
    n->a = jparse_child(p, n, a);
    return n;
}

static struct jnode *binary(struct jparser *p, enum jnode_kind kind, unsigned line, struct jnode *a,
                            struct jnode *b)
{
    struct jnode *n = unary(p, kind, line, a);
    n->b = jparse_child(p, n, b);
    return n;
}

struct jnode *jparse_expression(struct jparser *p)
{
    jparse_enter(p);
    unsigned line = p->t->line;
    struct jnode *n = parse_or(p);
    while (jparse_skip_name(p, "if")) {
        struct jnode *cond = unary(p, JN_COND, line, parse_or(p));
        cond->b = jparse_child(p, cond, n);
        if (jparse_skip_name(p, "else"))
            cond->c = jparse_child(p, cond, jparse_expression(p));
        n = cond;
    }
    p->nesting--;
    return n;
}

static struct jnode *parse_primary(struct jparser *p, bool with_namespace)
{
    const struct jtoken *t = p->t;
    struct jnode *n;
    switch (t->type) {
    case JT_NAME: {
        p->t++;
        bool yes = jstr_is(t->s, "true") || jstr_is(t->s, "True");
        if (yes || jstr_is(t->s, "false") || jstr_is(t->s, "False")) {
            n = jparse_node(p, JN_CONST, t->line);
            n->value = jbool(yes);
            return n;
        }
        if (jstr_is(t->s, "none") || jstr_is(t->s, "None")) {
            n = jparse_node(p, JN_CONST, t->line);
            n->value = jnone();
            return n;
        }
        bool ns = with_namespace && jparse_skip_op(p, '.');
        n = jparse_node(p, ns ? JN_NSREF : JN_NAME, t->line);
        n->name = jstr_freeze(p->rt, t->s);
        n->sym = jparse_symbol(p, t->s);
        if (ns)
            n->name = jparse_expect_name(p);
        return n;
    }
    case JT_STRING: {
        struct jstr *s = t->s;
        for (p->t++; p->t->type == JT_STRING; p->t++)
            s = jstr_concat(p->rt, s, p->t->s);
        n = jparse_node(p, JN_CONST, t->line);
        n->value = jstring(jstr_freeze(p->rt, s));
        return n;
    }
    case JT_INT:
    case JT_FLOAT:
        p->t++;
        n = jparse_node(p, JN_CONST, t->line);
        n->value = t->number;
        return n;
    default:
        break;
    }
    jparse_enter(p);
    if (jparse_skip_op(p, '(')) {
        if (jparse_skip_op(p, ')')) {
            n = jparse_node(p, JN_TUPLE, t->line);
        } else {
            n = jparse_tuple(p, true, NULL);
            jparse_expect_op(p, ')');
        }
    } else if (jparse_skip_op(p, '[')) {
        n = jparse_node(p, JN_LIST, t->line);
        while (!jparse_skip_op(p, ']')) {
            if (n->list.n) {
                jparse_expect_op(p, ',');
                if (jparse_skip_op(p, ']'))
                    break;
            }
            jparse_push(p, n, &n->list, jparse_expression(p));
        }
    } else if (jparse_skip_op(p, '{')) {
        n = jparse_node(p, JN_DICT, t->line);
        while (!jparse_skip_op(p, '}')) {
            if (n->list.n) {
                jparse_expect_op(p, ',');
                if (jparse_skip_op(p, '}'))
                    break;
            }
            jparse_push(p, n, &n->list, jparse_expression(p));
            jparse_expect_op(p, ':');
            jparse_push(p, n, &n->list, jparse_expression(p));
        }
    } else {
        jparse_fail(p, "an expression");
    }
    p->nesting--;
    return n;
}

/* One index or slice between brackets. */
static struct jnode *parse_subscript(struct jparser *p, struct jnode *of, unsigned line,
                                     bool *is_slice)
{
    struct jnode *part[3] = {NULL, NULL, NULL};
    *is_slice = false;
    if (!jparse_at_op(p, ':')) {
        part[0] = jparse_expression(p);
        if (!jparse_at_op(p, ':'))
            return part[0];
    }
    *is_slice = true;
    p->t++;
    for (int i = 1; i < 3; i++) {
        if (!jparse_at_op(p, ':') && !jparse_at_op(p, ']') && !jparse_at_op(p, ','))
            part[i] = jparse_expression(p);
        if (i == 1 && !jparse_skip_op(p, ':'))
            break;
    }
    struct jnode *n = unary(p, JN_SLICE, line, of);
    n->b = jparse_child(p, n, part[0]);
    n->c = jparse_child(p, n, part[1]);
    n->d = jparse_child(p, n, part[2]);
    return n;
}

static struct jnode *parse_brackets(struct jparser *p, struct jnode *of, unsigned line)
{
    bool is_slice;
    struct jnode *index = parse_subscript(p, of, line, &is_slice);
    if (jparse_at_op(p, ',')) {
        if (is_slice)
            jparse_fail(p, "]");
        struct jnode *tuple = jparse_node(p, JN_TUPLE, line);
        jparse_push(p, tuple, &tuple->list, index);
        while (jparse_skip_op(p, ','))
            jparse_push(p, tuple, &tuple->list, jparse_expression(p));
        index = tuple;
    }
    jparse_expect_op(p, ']');
    return is_slice ? index : binary(p, JN_ITEM, line, of, index);
}

/* The arguments after "(", into n. */
static void parse_args(struct jparser *p, struct jnode *n)
{
    struct jcall *call = jinja_alloc(p->rt, sizeof *call);
    size_t cap = 0;
    bool any = false;
    while (!jparse_skip_op(p, ')')) {
        if (any) {
            jparse_expect_op(p, ',');
            if (jparse_skip_op(p, ')'))
                break;
        }
        any = true;
        bool keyword = p->t->type == JT_NAME && p->t[1].type == JT_OPERATOR && p->t[1].op == '=';
        if (jparse_at_op(p, '*')) {
            if (call->star || call->star_star)
                jparse_fail(p, "an argument");
            p->t++;
            call->star = jparse_child(p, n, jparse_expression(p));
        } else if (jparse_at_op(p, JOP('*', '*'))) {
            if (call->star_star)
                jparse_fail(p, "an argument");
            p->t++;
            call->star_star = jparse_child(p, n, jparse_expression(p));
        } else if (keyword) {
            if (call->star_star)
                jparse_fail(p, ")");
            struct jstr *name = jstr_freeze(p->rt, p->t->s);
            jinja_step(p->rt, call->n_kw / 16);
            for (size_t i = 0; i < call->n_kw; i++)
                if (jstr_equal(call->kw[i].name, name))
                    jparse_fail(p, "each keyword once");
            p->t += 2;
            if (call->n_kw == cap) {
                struct jnode_kw *kw = jinja_array(p->rt, cap = 2 * cap + 4, sizeof *kw);
                if (call->n_kw)
                    memcpy(kw, call->kw, call->n_kw * sizeof *kw);
                call->kw = kw;
            }
            struct jnode *value = jparse_child(p, n, jparse_expression(p));
            call->kw[call->n_kw++] = (struct jnode_kw){name, value};
        } else {
            if (call->star || call->star_star || call->n_kw)
                jparse_fail(p, "positional arguments before the others");
            jparse_push(p, n, &n->list, jparse_expression(p));
        }
    }
    if (call->n_kw || call->star || call->star_star)
        n->call = call;
}

static struct jnode *parse_call(struct jparser *p, struct jnode *callee, unsigned line)
{
    struct jnode *n = unary(p, JN_CALL, line, callee);
    parse_args(p, n);
    return n;
}

static struct jnode *parse_postfix(struct jparser *p, struct jnode *n)
{
    for (;;) {
        unsigned line = p->t->line;
        if (jparse_skip_op(p, '.')) {
            if (p->t->type == JT_INT) {
                struct jnode *index = jparse_node(p, JN_CONST, line);
                index->value = p->t->number;
                p->t++;
                n = binary(p, JN_ITEM, line, n, index);
            } else {
                struct jstr *name = jparse_expect_name(p);
                n = unary(p, JN_ATTR, line, n);
                n->name = name;
            }
        } else if (jparse_skip_op(p, '[')) {
            n = parse_brackets(p, n, line);
        } else if (jparse_skip_op(p, '(')) {
            n = parse_call(p, n, line);
        } else {
            return n;
        }
    }
}

/* A filter's or test's name, which may have dots. */
static struct jstr *parse_dotted(struct jparser *p)
{
    struct jstr *name = jparse_expect_name(p);
    while (jparse_skip_op(p, '.')) {
        name = jstr_concat(p->rt, name, jstr_literal(p->rt, "."));
        name = jstr_concat(p->rt, name, jparse_expect_name(p));
    }
    return name;
}

struct jnode *jparse_filter(struct jparser *p, struct jnode *input)
{
    struct jnode *n = unary(p, JN_FILTER, p->t->line, input);
    n->name = jstr_freeze(p->rt, parse_dotted(p));
    if (jparse_skip_op(p, '('))
        parse_args(p, n);
    return n;
}

static struct jnode *parse_test(struct jparser *p, struct jnode *of, unsigned line)
{
    bool negated = jparse_skip_name(p, "not");
    struct jnode *n = unary(p, JN_TEST, line, of);
    n->name = jstr_freeze(p->rt, parse_dotted(p));
    const struct jtoken *t = p->t;
    if (jparse_skip_op(p, '(')) {
        parse_args(p, n);
    } else if (t->type == JT_NAME || t->type == JT_STRING || t->type == JT_INT ||
               t->type == JT_FLOAT || jparse_at_op(p, '[') || jparse_at_op(p, '{')) {
        if (jparse_at_name(p, "is"))
            jparse_fail(p, "one test with 'is'");
        if (!jparse_at_name(p, "else") && !jparse_at_name(p, "or") && !jparse_at_name(p, "and"))
            jparse_push(p, n, &n->list, parse_postfix(p, parse_primary(p, false)));
    }
    return negated ? unary(p, JN_NOT, line, n) : n;
}

static struct jnode *parse_unary(struct jparser *p, bool with_filter)
{
    struct jnode *n;
    unsigned line = p->t->line;
    jparse_enter(p);
    if (jparse_skip_op(p, '-'))
        n = unary(p, JN_NEG, line, parse_unary(p, false));
    else if (jparse_skip_op(p, '+'))
        n = unary(p, JN_POS, line, parse_unary(p, false));
    else
        n = parse_primary(p, false);
    n = parse_postfix(p, n);
    while (with_filter) {
        line = p->t->line;
        if (jparse_skip_op(p, '|'))
            n = jparse_filter(p, n);
        else if (jparse_skip_name(p, "is"))
            n = parse_test(p, n, line);
        else if (jparse_skip_op(p, '('))
            n = parse_call(p, n, line);
        else
            break;
    }
    p->nesting--;
    return n;
}

/* The operators of each level, which all group to the left: level 0 is "+ -", 2 is "* / // %", 3 is
 * "**"; 1 is "~", which joins any number of operands at once. */
static bool level_has(const struct jparser *p, int level)
{
    switch (level) {
    case 0:
        return jparse_at_op(p, '+') || jparse_at_op(p, '-');
    case 2:
        return jparse_at_op(p, '*') || jparse_at_op(p, '/') || jparse_at_op(p, JOP('/', '/')) ||
               jparse_at_op(p, '%');
    default:
        return jparse_at_op(p, JOP('*', '*'));
    }
}

static struct jnode *parse_math(struct jparser *p, int level)
{
    if (level == 4)
        return parse_unary(p, true);
    unsigned line = p->t->line;
    struct jnode *n = parse_math(p, level + 1);
    if (level == 1) {
        if (!jparse_at_op(p, '~'))
            return n;
        struct jnode *all = jparse_node(p, JN_CONCAT, line);
        jparse_push(p, all, &all->list, n);
        while (jparse_skip_op(p, '~'))
            jparse_push(p, all, &all->list, parse_math(p, 2));
        return all;
    }
    while (level_has(p, level)) {
        int op = p->t->op;
        p->t++;
        n = binary(p, JN_BINARY, line, n, parse_math(p, level + 1));
        n->op = op;
    }
    return n;
}

/* The comparison at the next token, or -1; moves over it. */
static int skip_comparison(struct jparser *p)
{
    static const struct {
        int op, code;
    } table[] = {{JOP('=', '='), JCMP_EQ}, {JOP('!', '='), JCMP_NE}, {'<', JCMP_LT},
                 {JOP('<', '='), JCMP_LE}, {'>', JCMP_GT},           {JOP('>', '='), JCMP_GE}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (jparse_skip_op(p, table[i].op))
            return table[i].code;
    if (jparse_skip_name(p, "in"))
        return JCMP_IN;
    if (jparse_at_name(p, "not") && p->t[1].type == JT_NAME && jstr_is(p->t[1].s, "in")) {
        p->t += 2;
        return JCMP_NOT_IN;
    }
    return -1;
}

static struct jnode *parse_compare(struct jparser *p)
{
    unsigned line = p->t->line;
    struct jnode *first = parse_math(p, 0);
    int op = skip_comparison(p);
    if (op < 0)
        return first;
    struct jnode *n = jparse_node(p, JN_COMPARE, line);
    jparse_push(p, n, &n->list, first);
    size_t cap = 0, count = 0;
    for (; op >= 0; op = skip_comparison(p)) {
        if (count == cap) {
            uint8_t *ops = jinja_alloc(p->rt, cap = 2 * cap + 4);
            if (count)
                memcpy(ops, n->ops, count);
            n->ops = ops;
        }
        n->ops[count++] = (uint8_t)op;
        jparse_push(p, n, &n->list, parse_math(p, 0));
    }
    return n;
}

static struct jnode *parse_not(struct jparser *p)
{
    unsigned line = p->t->line;
    if (!jparse_skip_name(p, "not"))
        return parse_compare(p);
    jparse_enter(p);
    struct jnode *n = unary(p, JN_NOT, line, parse_not(p));
    p->nesting--;
    return n;
}

static struct jnode *parse_and(struct jparser *p)
{
    unsigned line = p->t->line;
    struct jnode *n = parse_not(p);
    while (jparse_skip_name(p, "and"))
        n = binary(p, JN_AND, line, n, parse_not(p));
    return n;
}

static struct jnode *parse_or(struct jparser *p)
{
    unsigned line = p->t->line;
    struct jnode *n = parse_and(p);
    while (jparse_skip_name(p, "or"))
        n = binary(p, JN_OR, line, n, parse_and(p));
    return n;
}

/* -- tuples and targets -- */

static bool at_tuple_end(const struct jparser *p, const char *end)
{
    return p->t->type == JT_VAR_END || p->t->type == JT_BLOCK_END || jparse_at_op(p, ')') ||
           (end && jparse_at_name(p, end));
}

static struct jnode *tuple_item(struct jparser *p, int mode)
{
    switch (mode) {
    case 0:
        return parse_or(p);
    case 1:
        return jparse_expression(p);
    default:
        return parse_primary(p, mode == 3);
    }
}

/* mode: 0 no condition, 1 full expressions, 2 targets, 3 targets with namespaces. */
static struct jnode *parse_tuple(struct jparser *p, int mode, const char *end)
{
    unsigned line = p->t->line;
    if (at_tuple_end(p, end))
        jparse_fail(p, "an expression");
    struct jnode *first = tuple_item(p, mode);
    if (!jparse_at_op(p, ','))
        return first;
    struct jnode *n = jparse_node(p, JN_TUPLE, line);
    jparse_push(p, n, &n->list, first);
    while (jparse_skip_op(p, ',')) {
        if (at_tuple_end(p, end))
            break;
        jparse_push(p, n, &n->list, tuple_item(p, mode));
    }
    return n;
}

struct jnode *jparse_tuple(struct jparser *p, bool with_condition, const char *end)
{
    return parse_tuple(p, with_condition, end);
}

static void check_target(struct jparser *p, const struct jnode *n)
{
    bool name = n->kind == JN_NAME || n->kind == JN_NSREF;
    if (!name && n->kind != JN_TUPLE)
        jparse_fail(p, "a name to assign to");
    for (size_t i = 0; i < n->list.n; i++)
        check_target(p, n->list.v[i]);
}

struct jnode *jparse_target(struct jparser *p, bool with_namespace, const char *end)
{
    struct jnode *n = parse_tuple(p, with_namespace ? 3 : 2, end);
    check_target(p, n);
    return n;
}

struct jnode *jparse_target_name(struct jparser *p)
{
    if (p->t->type != JT_NAME)
        jparse_fail(p, "a name");
    struct jnode *n = parse_primary(p, false);
    check_target(p, n);
    return n;
}
