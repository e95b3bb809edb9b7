/* regex_tree: trees to automata, as Thompson did it. A bounded repetition is that many copies,
 * within the budget of states, or a counted loop where the caller allows it.
 *
 * ^ and $ consume nothing but hold only at the ends of the text. They become edges of their own,
 * and then each state is split by what is behind it ("something was consumed") and before it
 * ("nothing may come any more"): after that the anchors are plain empty edges, wherever in the
 * expression they stood. */
#include "common/text/regex_tree.h"

#include "common/text/unicode.h"

/* Edges of anchors, until they are resolved. */
#define SYMBOL_BEGIN 0xfffffffeu
#define SYMBOL_END   0xfffffffdu

#define LOOP_MIN 16 /* shorter repetitions are copied */

struct compiler {
    struct grammar_builder *b;
    struct automaton *a;
    unsigned flags;
    enum automaton_form form;
    const char *where;
};

static bool has_anchor(const struct regex_node *n)
{
    if (n->type == REGEX_BEGIN || n->type == REGEX_END)
        return true;
    for (const struct regex_node *x = n->first; x; x = x->next) {
        if (has_anchor(x))
            return true;
    }
    return false;
}

/* A call counts as some text: what is called is a rule of a grammar, which has no anchors. */
static bool may_be_empty(const struct regex_node *n)
{
    bool any = false;
    switch (n->type) {
    case REGEX_CAT:
        for (const struct regex_node *x = n->first; x; x = x->next) {
            if (!may_be_empty(x))
                return false;
        }
        return true;
    case REGEX_ALT:
        for (const struct regex_node *x = n->first; x; x = x->next)
            any |= may_be_empty(x);
        return any;
    case REGEX_REPEAT:
        return n->min == 0 || may_be_empty(n->first);
    case REGEX_BEGIN:
    case REGEX_END:
        return true;
    case REGEX_SET:
    case REGEX_CALL:
        break;
    }
    return false;
}

static uint32_t compile_node(struct compiler *c, struct regex_node *n, uint32_t from);

static void add_set(struct automaton *a, const struct regex_set *s, uint32_t from, uint32_t to)
{
    for (uint32_t i = 0; i < s->n; i++)
        automaton_edge(a, from, s->r[i].lo, s->r[i].hi, to);
}

/* A counted loop over a part of the tree, as a rule of its own. */
static uint32_t loop_rule(struct compiler *c, struct regex_node *n, uint32_t min, uint32_t max)
{
    uint32_t rule = n->type == REGEX_CALL ? n->rule : 0;
    if (!rule) {
        struct automaton body;
        rule = grammar_rule_new(c->b, c->where);
        if (!rule || regex_tree_compile(c->b, n, c->flags & ~REGEX_SEARCH, c->form, c->where,
                                        &body) != STATUS_OK)
            return 0;
        int rc = automaton_lower(&body, c->form);
        if (rc != STATUS_OK) {
            grammar_fail_automaton(c->b, rc, c->where);
            automaton_fini(&body);
            return 0;
        }
        if (grammar_rule_set(c->b, rule, &body) != STATUS_OK)
            return 0;
    }
    return grammar_rule_loop(c->b, c->where, rule, min, max);
}

static bool as_loop(const struct compiler *c, const struct regex_node *n)
{
    return c->flags & REGEX_LOOPS && !has_anchor(n->first) &&
           (n->min > LOOP_MIN || (n->max > LOOP_MIN && n->max != GRAMMAR_NO_MAX));
}

static uint32_t compile_repeat(struct compiler *c, struct regex_node *n, uint32_t from)
{
    struct automaton *a = c->a;
    if (as_loop(c, n)) {
        uint32_t to = automaton_state(a);
        if (!n->rule) /* copies of this node share it */
            n->rule = loop_rule(c, n->first, n->min ? n->min : 1, n->max);
        if (!n->rule)
            return from;
        automaton_call(a, from, n->rule, to);
        if (n->min == 0 || may_be_empty(n->first)) /* so that a call stands for some text: */
            automaton_empty(a, from, to);          /* resolve_anchors takes it for that */
        return to;
    }
    for (uint32_t i = 0; i < n->min && a->status == STATUS_OK; i++)
        from = compile_node(c, n->first, from);
    if (n->max == GRAMMAR_NO_MAX) {
        uint32_t loop = automaton_state(a), end = automaton_state(a);
        automaton_empty(a, from, loop);
        automaton_empty(a, loop, end);
        automaton_empty(a, compile_node(c, n->first, loop), loop);
        return end;
    }
    uint32_t end = automaton_state(a);
    for (uint32_t i = n->min; i < n->max && a->status == STATUS_OK; i++) {
        automaton_empty(a, from, end);
        from = compile_node(c, n->first, from);
    }
    automaton_empty(a, from, end);
    return end;
}

/* Adds n from a state on; returns the state behind it. */
static uint32_t compile_node(struct compiler *c, struct regex_node *n, uint32_t from)
{
    struct automaton *a = c->a;
    if (a->status != STATUS_OK || c->b->status != STATUS_OK)
        return from;
    uint32_t to;
    switch (n->type) {
    case REGEX_SET:
        to = automaton_state(a);
        add_set(a, &n->set, from, to);
        return to;
    case REGEX_CAT:
        for (struct regex_node *x = n->first; x; x = x->next)
            from = compile_node(c, x, from);
        return from;
    case REGEX_ALT:
        if (n->first && !n->first->next)
            return compile_node(c, n->first, from);
        to = automaton_state(a);
        for (struct regex_node *x = n->first; x; x = x->next) {
            uint32_t own = automaton_state(a); /* so that a loop at its begin stays its own */
            automaton_empty(a, from, own);
            automaton_empty(a, compile_node(c, x, own), to);
        }
        return to;
    case REGEX_REPEAT:
        return compile_repeat(c, n, from);
    case REGEX_BEGIN:
    case REGEX_END:
        to = automaton_state(a);
        automaton_edge(a, from, n->type == REGEX_BEGIN ? SYMBOL_BEGIN : SYMBOL_END,
                       n->type == REGEX_BEGIN ? SYMBOL_BEGIN : SYMBOL_END, to);
        return to;
    case REGEX_CALL:
        to = automaton_state(a);
        automaton_call(a, from, n->rule, to);
        return to;
    }
    return from;
}

/* Splits every state by "something was consumed" (1) and "the end has been seen" (2). */
static void resolve_anchors(const struct automaton *a, struct automaton *out)
{
    for (uint32_t i = 1; i < 4 * a->n; i++)
        automaton_state(out);
    for (uint32_t i = 0; i < 4 * a->n && out->status == STATUS_OK; i++)
        out->final[i] = a->final[i / 4];
    for (uint32_t i = 0; i < a->n_edges && out->status == STATUS_OK; i++) {
        const struct automaton_edge *e = &a->edges[i];
        for (uint32_t f = 0; f < 4; f++) {
            uint32_t from = e->from * 4 + f;
            if (e->lo == AUTOMATON_EMPTY)
                automaton_empty(out, from, e->to * 4 + f);
            else if (e->lo == SYMBOL_BEGIN && !(f & 1))
                automaton_empty(out, from, e->to * 4 + f);
            else if (e->lo == SYMBOL_END)
                automaton_empty(out, from, e->to * 4 + (f | 2));
            else if (e->lo != SYMBOL_BEGIN && !(f & 2))
                automaton_edge(out, from, e->lo, e->hi, e->to * 4 + (f | 1));
        }
    }
}

int regex_tree_compile(struct grammar_builder *b, struct regex_node *tree, unsigned flags,
                       enum automaton_form form, const char *where, struct automaton *out)
{
    struct automaton a;
    automaton_init(&a, &b->budget);
    struct compiler c = {b, &a, flags, form, where};
    if (flags & REGEX_SEARCH)
        automaton_edge(&a, 0, 0, UNICODE_MAX, 0);
    uint32_t begin = automaton_state(&a);
    automaton_empty(&a, 0, begin);
    uint32_t end = compile_node(&c, tree, begin), last = automaton_state(&a);
    automaton_empty(&a, end, last);
    if (flags & REGEX_SEARCH)
        automaton_edge(&a, last, 0, UNICODE_MAX, last);
    if (a.status == STATUS_OK)
        a.final[last] = 1;
    if (!has_anchor(tree)) {
        *out = a;
    } else {
        automaton_init(out, &b->budget);
        if (a.status == STATUS_OK)
            resolve_anchors(&a, out);
        else
            out->status = a.status;
        automaton_fini(&a);
    }
    if (out->status != STATUS_OK)
        grammar_fail_automaton(b, out->status, where);
    if (b->status != STATUS_OK)
        automaton_fini(out);
    return b->status;
}
