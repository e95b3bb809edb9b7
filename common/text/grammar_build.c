/* grammar_build: rules are collected, checked as a whole, and laid out flat.
 *
 * Checked: which rules derive anything at all (calls of the others are cut out, so an optional
 * property that nothing satisfies cannot be begun); that no rule begins with itself, which would
 * make the pushdown automaton call for ever without a byte; and that the body of a counted loop
 * consumes something, else the count says nothing: such a body is replaced by the same without the
 * empty text, and its minimum by 0. */
#include "common/text/grammar_build.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/rng.h"

#define BUILD_WORK   60000000u
#define BUILD_STATES 200000u
#define BUILD_RULES  20000u
#define BUILD_ARENA  ((size_t)64 << 20)
#define KEY_STATES   64 /* automata up to this size have keys that other grammars can share */
#define KEY_RULE     512
#define NEST_MAX     400 /* rules inside each other, where a function follows them */

int grammar_builder_init(struct grammar_builder *b, const struct grammar_options *o, char *err,
                         size_t errlen)
{
    *b = (struct grammar_builder){
        .budget = {BUILD_WORK, BUILD_STATES}, .err = err, .errlen = errlen};
    if (o)
        b->options = *o;
    if (errlen)
        err[0] = 0;
    arena_init(&b->arena, BUILD_ARENA);
    grammar_rule_new(b, ""); /* 0 says "none" */
    return b->status;
}

void grammar_builder_fini(struct grammar_builder *b)
{
    for (uint32_t i = 0; i < b->n_rules; i++) {
        if (b->rules[i].set && !b->rules[i].loop)
            automaton_fini(&b->rules[i].a);
    }
    free(b->rules);
    arena_fini(&b->arena);
}

int grammar_fail(struct grammar_builder *b, int status, const char *fmt, ...)
{
    if (b->status != STATUS_OK)
        return b->status;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(b->err, b->errlen, fmt, ap);
    va_end(ap);
    b->status = status;
    return status;
}

int grammar_fail_automaton(struct grammar_builder *b, int status, const char *where)
{
    const char *at = where ? where : "";
    if (status == STATUS_LIMIT)
        return grammar_fail(b, status, "%s%stoo large or too complex", at, *at ? ": " : "");
    return grammar_fail(b, status, "%s", status_text(status));
}

char *grammar_printf(struct grammar_builder *b, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    char *s = n < 0 ? NULL : arena_alloc(&b->arena, (size_t)n + 1);
    if (s)
        vsnprintf(s, (size_t)n + 1, fmt, again);
    else
        grammar_fail(b, STATUS_LIMIT, "the names in it take too much memory");
    va_end(again);
    va_end(ap);
    return s;
}

uint32_t grammar_rule_new(struct grammar_builder *b, const char *name)
{
    if (b->status != STATUS_OK)
        return 0;
    if (b->n_rules >= BUILD_RULES) {
        grammar_fail(b, STATUS_LIMIT, "%s: more than %u rules", name, BUILD_RULES);
        return 0;
    }
    if (b->n_rules == b->cap_rules) {
        uint32_t cap = b->cap_rules ? b->cap_rules * 2 : 32;
        struct grammar_rule *r = mem_resize(b->rules, cap, sizeof *r);
        if (!r) {
            grammar_fail(b, STATUS_NOMEM, "%s", status_text(STATUS_NOMEM));
            return 0;
        }
        b->rules = r;
        b->cap_rules = cap;
    }
    b->rules[b->n_rules] = (struct grammar_rule){.name = grammar_printf(b, "%s", name)};
    return b->n_rules++;
}

int grammar_rule_set(struct grammar_builder *b, uint32_t rule, struct automaton *a)
{
    if (b->status == STATUS_OK) {
        int rc = a->status == STATUS_OK ? automaton_minimise(a) : a->status;
        if (rc == STATUS_OK) {
            ASSERT(rule && !b->rules[rule].set);
            b->rules[rule].a = *a;
            b->rules[rule].set = true;
            return STATUS_OK;
        }
        grammar_fail_automaton(b, rc, b->rules[rule].name);
    }
    automaton_fini(a);
    return b->status;
}

uint32_t grammar_rule_loop(struct grammar_builder *b, const char *name, uint32_t body, uint32_t min,
                           uint32_t max)
{
    uint32_t r = grammar_rule_new(b, name);
    if (r) {
        b->rules[r].set = b->rules[r].loop = true;
        b->rules[r].body = body;
        b->rules[r].min = min;
        b->rules[r].max = max;
    }
    return r;
}

/* ---- checks over all rules ---- */

static bool is_call(const struct automaton_edge *e)
{
    return e->lo >= AUTOMATON_CALL;
}

static uint32_t called(const struct automaton_edge *e)
{
    return e->lo - AUTOMATON_CALL;
}

/* Whether the start reaches a final state by edges that are allowed: with empty, calls of rules in
 * `good` alone; without, bytes too. Repeated to a fixpoint by the caller. */
static bool reaches_end(const struct automaton *a, const uint8_t *good, bool bytes, uint8_t *seen,
                        uint32_t *stack)
{
    uint32_t n = 0;
    memset(seen, 0, a->n);
    stack[n++] = 0;
    seen[0] = 1;
    while (n > 0) {
        uint32_t s = stack[--n];
        if (a->final[s])
            return true;
        for (uint32_t e = a->first[s]; e < a->first[s + 1]; e++) {
            const struct automaton_edge *x = &a->edges[e];
            if (!seen[x->to] && (is_call(x) ? good[called(x)] : bytes)) {
                seen[x->to] = 1;
                stack[n++] = x->to;
            }
        }
    }
    return false;
}

/* bytes: which rules derive a text. Without: which derive the empty text. */
static int find_good(struct grammar_builder *b, bool bytes, uint8_t *good)
{
    uint32_t most = 1;
    for (uint32_t r = 1; r < b->n_rules; r++) {
        if (!b->rules[r].loop && b->rules[r].a.n > most)
            most = b->rules[r].a.n;
    }
    uint8_t *seen = mem_array(most, 1);
    uint32_t *stack = mem_array(most, sizeof *stack);
    bool changed = seen && stack;
    int rc = changed ? STATUS_OK : STATUS_NOMEM;
    while (changed) {
        changed = false;
        for (uint32_t r = b->n_rules - 1; r > 0; r--) { /* callees mostly come later */
            const struct grammar_rule *x = &b->rules[r];
            if (good[r])
                continue;
            if (!x->loop) {
                if (b->budget.work < x->a.n + x->a.n_edges) {
                    rc = STATUS_LIMIT;
                    goto out;
                }
                b->budget.work -= x->a.n + x->a.n_edges;
            }
            good[r] = x->loop ? x->min == 0 || good[x->body]
                              : reaches_end(&x->a, good, bytes, seen, stack);
            changed |= good[r];
        }
    }
out:
    free(seen);
    free(stack);
    return rc;
}

/* Cuts calls of rules that derive nothing. */
static int cut_dead_calls(struct grammar_builder *b, const uint8_t *alive)
{
    for (uint32_t r = 1; r < b->n_rules; r++) {
        struct grammar_rule *x = &b->rules[r];
        if (x->loop) {
            if (!alive[x->body])
                x->max = 0; /* min is 0, else it would not be alive, and nobody calls it */
            continue;
        }
        uint32_t n = 0;
        for (uint32_t e = 0; e < x->a.n_edges; e++) {
            if (!is_call(&x->a.edges[e]) || alive[called(&x->a.edges[e])])
                x->a.edges[n++] = x->a.edges[e];
        }
        if (n == x->a.n_edges)
            continue;
        x->a.n_edges = n;
        int rc = automaton_minimise(&x->a);
        if (rc != STATUS_OK)
            return grammar_fail_automaton(b, rc, x->name);
    }
    return STATUS_OK;
}

/* The rule without the empty text; twin[r] is what has been made for r already. */
static uint32_t without_empty(struct grammar_builder *b, uint32_t r, const uint8_t *nullable,
                              uint32_t *twin, uint32_t n_known, int depth)
{
    if (depth > NEST_MAX) {
        grammar_fail(b, STATUS_LIMIT, "%s: rules are nested too deep", b->rules[r].name);
        return 0;
    }
    if (r >= n_known || !nullable[r])
        return r; /* made here, or nothing to take away */
    if (twin[r])
        return twin[r];
    uint32_t t = grammar_rule_new(b, b->rules[r].name);
    if (!t)
        return 0;
    twin[r] = t;
    if (b->rules[r].loop) { /* its minimum is 0, or may as well be */
        uint32_t body = without_empty(b, b->rules[r].body, nullable, twin, n_known, depth + 1);
        b->rules[t].set = b->rules[t].loop = true;
        b->rules[t].body = body;
        b->rules[t].min = 1;
        b->rules[t].max = b->rules[r].max;
        return b->status == STATUS_OK ? t : 0;
    }
    /* Two copies: nothing consumed yet (0), and something (1). */
    struct automaton out;
    automaton_init(&out, &b->budget);
    uint32_t n = b->rules[r].a.n;
    for (uint32_t i = 1; i < 2 * n; i++)
        automaton_state(&out);
    for (uint32_t i = 0; i < n && out.status == STATUS_OK; i++)
        out.final[n + i] = b->rules[r].a.final[i];
    for (uint32_t i = 0; i < b->rules[r].a.n_edges && out.status == STATUS_OK; i++) {
        struct automaton_edge x = b->rules[r].a.edges[i];
        automaton_edge(&out, n + x.from, x.lo, x.hi, n + x.to);
        if (is_call(&x) && called(&x) < n_known && nullable[called(&x)]) {
            automaton_empty(&out, x.from, x.to);
            uint32_t u = without_empty(b, called(&x), nullable, twin, n_known, depth + 1);
            if (u)
                automaton_call(&out, x.from, u, n + x.to);
        } else {
            automaton_edge(&out, x.from, x.lo, x.hi, n + x.to);
        }
    }
    return grammar_rule_set(b, t, &out) == STATUS_OK ? t : 0;
}

/* Loops whose body may be empty count something else. */
static int mend_loops(struct grammar_builder *b, const uint8_t *nullable)
{
    uint32_t n = b->n_rules;
    uint32_t *twin = mem_array(n, sizeof *twin);
    if (!twin)
        return grammar_fail(b, STATUS_NOMEM, "%s", status_text(STATUS_NOMEM));
    for (uint32_t r = 1; r < n && b->status == STATUS_OK; r++) {
        if (b->rules[r].loop && nullable[b->rules[r].body]) {
            uint32_t body = without_empty(b, b->rules[r].body, nullable, twin, n, 0);
            b->rules[r].body = body;
            b->rules[r].min = 0;
        }
    }
    free(twin);
    return b->status;
}

/* A rule that calls itself before any byte. Depth first over "r may begin with s"; colour 1: on the
 * way, 2: done. */
struct left_walk {
    struct grammar_builder *b;
    const uint8_t *nullable;
    uint8_t *colour;
    uint32_t *path, n_path;
    uint8_t *seen;
    uint32_t *stack;
};

static bool begins_with_itself(struct left_walk *w, uint32_t root)
{
    struct left_item {
        uint32_t rule, *next, n, i;
    } *items = mem_array(w->b->n_rules, sizeof *items);
    uint32_t depth = 0;
    bool found = false;
    if (!items) {
        grammar_fail(w->b, STATUS_NOMEM, "%s", status_text(STATUS_NOMEM));
        return false;
    }
    items[depth++].rule = root;
    while (depth > 0 && !found && w->b->status == STATUS_OK) {
        struct left_item *t = &items[depth - 1];
        const struct grammar_rule *x = &w->b->rules[t->rule];
        if (w->colour[t->rule] == 0) { /* collect what it may begin with */
            w->colour[t->rule] = 1;
            if (x->loop) {
                t->next = mem_array(1, sizeof *t->next);
                if (t->next && x->max > 0)
                    t->next[t->n++] = x->body;
            } else {
                uint32_t n = 0;
                t->next = mem_array((size_t)x->a.n_edges + 1, sizeof *t->next);
                memset(w->seen, 0, x->a.n);
                w->stack[n++] = 0;
                w->seen[0] = 1;
                while (n > 0 && t->next) {
                    uint32_t s = w->stack[--n];
                    for (uint32_t e = x->a.first[s]; e < x->a.first[s + 1]; e++) {
                        const struct automaton_edge *y = &x->a.edges[e];
                        if (!is_call(y))
                            continue;
                        t->next[t->n++] = called(y);
                        if (w->nullable[called(y)] && !w->seen[y->to]) {
                            w->seen[y->to] = 1;
                            w->stack[n++] = y->to;
                        }
                    }
                }
            }
            if (!t->next)
                grammar_fail(w->b, STATUS_NOMEM, "%s", status_text(STATUS_NOMEM));
        } else if (t->i < t->n) {
            uint32_t s = t->next[t->i++];
            if (w->colour[s] == 1) {
                grammar_fail(w->b, STATUS_UNSUPPORTED, "%s: the rule begins with itself",
                             w->b->rules[s].name);
                found = true;
            } else if (w->colour[s] == 0) {
                items[depth++] = (struct left_item){.rule = s};
            }
        } else {
            w->colour[t->rule] = 2;
            free(t->next);
            depth--;
        }
    }
    while (depth > 0)
        free(items[--depth].next);
    free(items);
    return found;
}

static int check_left(struct grammar_builder *b, uint32_t root, const uint8_t *nullable)
{
    uint32_t most = 1;
    for (uint32_t r = 1; r < b->n_rules; r++) {
        if (!b->rules[r].loop && b->rules[r].a.n > most)
            most = b->rules[r].a.n;
    }
    struct left_walk w = {.b = b, .nullable = nullable};
    w.colour = mem_array(b->n_rules, 1);
    w.seen = mem_array(most, 1);
    w.stack = mem_array(most, sizeof *w.stack);
    if (!w.colour || !w.seen || !w.stack)
        grammar_fail(b, STATUS_NOMEM, "%s", status_text(STATUS_NOMEM));
    /* Every rule: those that come later in an answer may not begin with themselves either. */
    for (uint32_t r = 1; r < b->n_rules && b->status == STATUS_OK; r++) {
        uint32_t at = r == 1 ? root : r;
        if (w.colour[at] == 0)
            begins_with_itself(&w, at);
    }
    if (b->status == STATUS_OK && w.colour[1] == 0)
        begins_with_itself(&w, 1);
    free(w.colour);
    free(w.seen);
    free(w.stack);
    return b->status;
}

/* ---- laying out ---- */

static void find_needs(struct grammar *g)
{
    bool changed = true;
    for (uint32_t i = 0; i < g->n_nodes; i++)
        g->nodes[i].need = GRAMMAR_DEPTH + 1;
    while (changed) {
        changed = false;
        for (uint32_t i = g->n_nodes - 1; i-- > 0;) {
            struct grammar_node *x = &g->nodes[i];
            uint32_t need = x->need;
            if (x->loop) {
                const struct grammar_def *r = &g->rules[x->rule];
                uint32_t body = g->nodes[g->rules[r->body].node].need + 1;
                need = r->min == 0 ? 0 : body < need ? body : need;
            } else if (x->final || i < GRAMMAR_NODE_FIRST) {
                need = 0;
            }
            for (uint32_t e = x->edge; e < x[1].edge; e++) {
                if (g->nodes[g->edges[e].to].need < need)
                    need = g->nodes[g->edges[e].to].need;
            }
            for (uint32_t c = x->call; c < x[1].call; c++) {
                uint32_t in = g->nodes[g->rules[g->calls[c].rule].node].need + 1;
                uint32_t after = g->nodes[g->calls[c].to].need;
                if (after > in)
                    in = after;
                if (in < need)
                    need = in;
            }
            changed |= need != x->need;
            x->need = need;
        }
    }
}

static void find_classes(struct grammar *g, uint32_t n_edges)
{
    /* Refined by each distinct range in turn: class pairs (old, inside) become new classes. */
    uint8_t done[256][256 / 8] = {{0}};
    g->n_classes = 1;
    for (uint32_t e = 0; e < n_edges; e++) {
        uint8_t lo = g->edges[e].lo, hi = g->edges[e].hi;
        if (done[lo][hi / 8] >> (hi % 8) & 1)
            continue;
        done[lo][hi / 8] |= (uint8_t)(1 << hi % 8);
        int inside[256], outside[256];
        for (int i = 0; i < 256; i++)
            inside[i] = outside[i] = 0;
        for (int i = 0; i < 256; i++)
            (i >= lo && i <= hi ? inside : outside)[g->class[i]] = 1;
        for (uint32_t c = 0, n = g->n_classes; c < n; c++) {
            if (!inside[c] || !outside[c])
                continue;
            for (int i = lo; i <= hi; i++) {
                if (g->class[i] == c)
                    g->class[i] = (uint8_t)g->n_classes;
            }
            g->n_classes++;
        }
    }
    for (int i = 255; i >= 0; i--)
        g->sample[g->class[i]] = (uint8_t)i;
}

/* The automaton from state q on, in a form that only its language decides; false when it calls
 * rules or is too large. */
static bool state_key(const struct automaton *a, uint32_t q, uint64_t seed, struct hash128 *out)
{
    uint32_t order[KEY_STATES], n = 1, len = 0;
    uint32_t words[4096];
    order[0] = q;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t s = order[i];
        words[len++] = a->final[s] ? 0xffffff01u : 0xffffff00u;
        for (uint32_t e = a->first[s]; e < a->first[s + 1]; e++) {
            uint32_t k = 0;
            if (is_call(&a->edges[e]))
                return false;
            while (k < n && order[k] != a->edges[e].to)
                k++;
            if (k == n && n == KEY_STATES)
                return false;
            if (k == n)
                order[n++] = a->edges[e].to;
            if (len + 5 > sizeof words / sizeof *words)
                return false;
            words[len++] = a->edges[e].lo << 8 | a->edges[e].hi;
            words[len++] = k;
        }
    }
    *out = hash128(words, len * sizeof *words, seed);
    return true;
}

/* Keys are compared between grammars of different users, so nobody may choose them: the seed is
 * random, once per process. */
static uint64_t key_seed(void)
{
    static _Atomic uint64_t seed;
    uint64_t s = atomic_load(&seed), none = 0;
    if (s == 0) {
        s = rng_u64() | 1;
        if (!atomic_compare_exchange_strong(&seed, &none, s))
            s = none;
    }
    return s;
}

static void lay_rule(struct grammar *g, const struct grammar_rule *x, uint32_t r, uint64_t own,
                     uint32_t *edge, uint32_t *call)
{
    uint32_t at = g->rules[r].node;
    struct grammar_def *def = &g->rules[r];
    def->leaf = !x->loop;
    if (x->loop) {
        g->nodes[at] = (struct grammar_node){
            .edge = *edge, .call = *call, .loop = true, .rule = r, .key = {own, at}};
        return;
    }
    for (uint32_t s = 0; s < x->a.n; s++) {
        struct grammar_node *n = &g->nodes[at + s];
        *n = (struct grammar_node){
            .edge = *edge, .call = *call, .final = x->a.final[s], .rule = r, .key = {own, at + s}};
        if (x->a.n <= KEY_RULE)
            state_key(&x->a, s, key_seed(), &n->key);
        for (uint32_t e = x->a.first[s]; e < x->a.first[s + 1]; e++) {
            const struct automaton_edge *y = &x->a.edges[e];
            if (is_call(y)) {
                def->leaf = false;
                g->calls[(*call)++] = (struct grammar_call){called(y), at + y->to};
            } else {
                g->edges[(*edge)++] =
                    (struct grammar_edge){(uint8_t)y->lo, (uint8_t)y->hi, at + y->to};
            }
        }
    }
}

static int lay_out(struct grammar_builder *b, uint32_t root, const uint8_t *nullable,
                   struct grammar **out)
{
    struct grammar *g = mem_array(1, sizeof *g);
    uint32_t n_edges = 0, n_calls = 0, edge = 0, call = 0;
    uint64_t own = rng_u64();
    if (!g)
        goto nomem;
    g->refs = 1;
    g->root = root;
    g->n_rules = b->n_rules;
    g->rules = mem_array(g->n_rules, sizeof *g->rules);
    if (!g->rules)
        goto nomem;
    g->n_nodes = GRAMMAR_NODE_FIRST;
    for (uint32_t r = 1; r < b->n_rules; r++) {
        const struct grammar_rule *x = &b->rules[r];
        g->rules[r] = (struct grammar_def){.loop = x->loop,
                                           .nullable = nullable[r],
                                           .node = g->n_nodes,
                                           .body = x->body,
                                           .min = x->min,
                                           .max = x->max};
        g->n_nodes += x->loop ? 1 : x->a.n;
        for (uint32_t e = 0; !x->loop && e < x->a.n_edges; e++) {
            n_calls += is_call(&x->a.edges[e]);
            n_edges += !is_call(&x->a.edges[e]);
        }
    }
    g->n_nodes++; /* where the last one's edges end */
    g->nodes = mem_array(g->n_nodes, sizeof *g->nodes);
    g->edges = mem_array((size_t)n_edges + 1, sizeof *g->edges);
    g->calls = mem_array((size_t)n_calls + 1, sizeof *g->calls);
    if (!g->nodes || !g->edges || !g->calls)
        goto nomem;
    for (uint32_t r = 1; r < b->n_rules; r++)
        lay_rule(g, &b->rules[r], r, own, &edge, &call);
    g->nodes[g->n_nodes - 1] = (struct grammar_node){.edge = edge, .call = call};
    for (uint32_t i = 0; i + 1 < g->n_nodes; i++) {
        uint32_t bytes = 0;
        for (uint32_t e = g->nodes[i].edge; e < g->nodes[i + 1].edge; e++)
            bytes += g->edges[e].hi - g->edges[e].lo + 1u;
        g->nodes[i].wide = bytes >= GRAMMAR_WIDE;
    }
    g->bytes = sizeof *g + g->n_rules * sizeof *g->rules + g->n_nodes * sizeof *g->nodes +
               n_edges * sizeof *g->edges + n_calls * sizeof *g->calls;
    find_needs(g);
    find_classes(g, n_edges);
    if (g->nodes[g->rules[root].node].need > GRAMMAR_NEED) {
        grammar_put(g);
        return grammar_fail(b, STATUS_LIMIT, "%s: what it requires is nested too deep",
                            b->rules[root].name);
    }
    *out = g;
    return STATUS_OK;
nomem:
    grammar_put(g);
    return grammar_fail(b, STATUS_NOMEM, "%s", status_text(STATUS_NOMEM));
}

int grammar_finish(struct grammar_builder *b, uint32_t root, struct grammar **out)
{
    TRY(b->status);
    for (uint32_t r = 1; r < b->n_rules; r++)
        ASSERT_MSG(b->rules[r].set, "rule %u %s", r, b->rules[r].name);
    uint8_t *alive = mem_array(b->n_rules, 1), *nullable = NULL;
    if (!alive) {
        grammar_fail(b, STATUS_NOMEM, "%s", status_text(STATUS_NOMEM));
        goto end;
    }
    int rc = find_good(b, true, alive);
    if (rc != STATUS_OK) {
        grammar_fail_automaton(b, rc, NULL);
        goto end;
    }
    if (!alive[root]) {
        grammar_fail(b, STATUS_RANGE, "%s: nothing satisfies it, or it never ends",
                     b->rules[root].name);
        goto end;
    }
    if (cut_dead_calls(b, alive) != STATUS_OK)
        goto end;
    for (int round = 0; round < 2 && b->status == STATUS_OK; round++) {
        free(nullable);
        nullable = mem_array(b->n_rules, 1);
        rc = nullable ? find_good(b, false, nullable) : STATUS_NOMEM;
        if (rc != STATUS_OK)
            grammar_fail_automaton(b, rc, NULL);
        else if (round == 0)
            mend_loops(b, nullable);
    }
    if (b->status == STATUS_OK && check_left(b, root, nullable) == STATUS_OK)
        lay_out(b, root, nullable, out);
end:
    free(alive);
    free(nullable);
    return b->status;
}
