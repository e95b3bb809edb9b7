/* grammar_machine: configurations of the pushdown automaton, made once and numbered.
 *
 * The closure of a step (which frames with byte edges can be reached without a byte: by calling,
 * returning, beginning another round of a loop) is an explicit work list, so that neither deep nor
 * hostile grammars use the C stack. Visited items are kept in a stamped hash table that needs no
 * clearing.
 *
 * A frame is left out when the stack could not be brought to its end within GRAMMAR_DEPTH frames
 * (`need` of its node): so every configuration that is not empty leads to a complete text.
 *
 * A call whose return point has nothing left to do pushes no frame: right recursion, as in lists,
 * does not grow the stack. */
#include "common/text/grammar_machine.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"

#define UNIONS 1024 /* slots of the cache */

int machine_init(struct machine *m, const struct grammar *g)
{
    *m = (struct machine){.g = g, .work = 1000000};
    m->unions = mem_array(UNIONS * 3, sizeof *m->unions);
    if (!m->unions)
        goto fail;
    uint32_t none = 0;
    if (machine_forget(m, &none, 0) != STATUS_OK)
        goto fail;
    return STATUS_OK;
fail:
    machine_fini(m);
    return STATUS_NOMEM;
}

static void store_fini(struct machine *m)
{
    free(m->configs);
    free(m->entries);
    free(m->rows);
    free(m->table);
}

void machine_fini(struct machine *m)
{
    store_fini(m);
    free(m->todo);
    free(m->found);
    free(m->seen);
    free(m->seen_stamp);
    free(m->pile);
    free(m->unions);
    *m = (struct machine){0};
}

size_t machine_bytes(const struct machine *m)
{
    return sizeof *m + m->cap_configs * sizeof *m->configs + m->cap_entries * sizeof *m->entries +
           (size_t)m->cap_rows * m->g->n_classes * sizeof *m->rows + m->n_table * sizeof *m->table +
           (m->cap_todo + m->cap_found) * sizeof *m->todo + m->cap_seen * (sizeof *m->seen + 4) +
           m->cap_pile * sizeof *m->pile;
}

static bool fail(struct machine *m)
{
    m->failed = true;
    m->work = 0;
    return false;
}

static bool use(struct machine *m, uint64_t n)
{
    if (m->work < n)
        return fail(m);
    m->work -= n;
    return true;
}

/* Room for n more elements of size bytes behind *len. */
static bool grow(struct machine *m, void **p, uint32_t len, uint32_t n, uint32_t *cap, size_t size)
{
    if (*cap - len >= n)
        return true;
    uint64_t to = *cap ? *cap : 64;
    while (to - len < n)
        to *= 2;
    void *q = to > UINT32_MAX / 2 ? NULL : mem_resize(*p, to, size);
    if (!q)
        return fail(m);
    *p = q;
    *cap = (uint32_t)to;
    return true;
}

/* ---- the store ---- */

static bool table_grow(struct machine *m)
{
    uint32_t n = m->n_table ? m->n_table * 2 : 256;
    uint32_t *t = mem_array(n, sizeof *t);
    if (!t)
        return fail(m);
    for (uint32_t i = 0; i < m->n_configs; i++) {
        uint64_t h = m->configs[i].hash;
        while (t[h & (n - 1)])
            h++;
        t[h & (n - 1)] = i + 1;
    }
    free(m->table);
    m->table = t;
    m->n_table = n;
    return true;
}

static uint64_t entries_hash(const struct machine_entry *e, uint32_t n)
{
    uint64_t h = n;
    for (uint32_t i = 0; i < n; i++) {
        h = hash_mix64(h + ((uint64_t)e[i].node << 32 | e[i].below));
        h = hash_mix64(h + e[i].count);
    }
    return h;
}

/* The configuration of n entries, sorted and each frame once. */
static uint32_t intern(struct machine *m, const struct machine_entry *e, uint32_t n)
{
    if (m->n_table < (m->n_configs + 1) * 2 && !table_grow(m))
        return MACHINE_EMPTY;
    uint64_t h = entries_hash(e, n), at = h;
    uint32_t i;
    while ((i = m->table[at & (m->n_table - 1)]) != 0) {
        const struct machine_config *c = &m->configs[i - 1];
        if (c->hash == h && c->n == n &&
            (n == 0 || memcmp(m->entries + c->first, e, n * sizeof *e) == 0))
            return i - 1;
        at++;
    }
    if (!use(m, n + 1) ||
        !grow(m, (void **)&m->entries, m->n_entries, n, &m->cap_entries, sizeof *m->entries) ||
        !grow(m, (void **)&m->configs, m->n_configs, 1, &m->cap_configs, sizeof *m->configs))
        return MACHINE_EMPTY;
    struct machine_config *c = &m->configs[m->n_configs];
    *c = (struct machine_config){.first = m->n_entries, .n = n, .hash = h};
    for (uint32_t k = 0; k < n; k++) {
        uint32_t depth = m->configs[e[k].below].depth + 1;
        if (depth > c->depth)
            c->depth = depth;
        m->entries[m->n_entries++] = e[k];
    }
    m->table[at & (m->n_table - 1)] = m->n_configs + 1;
    return m->n_configs++;
}

uint32_t machine_push(struct machine *m, uint32_t node, uint32_t count, uint32_t below)
{
    struct machine_entry e = {node, count, below};
    return intern(m, &e, 1);
}

static int entry_order(const void *x, const void *y)
{
    const struct machine_entry *a = x, *b = y;
    if (a->node != b->node)
        return a->node < b->node ? -1 : 1;
    if (a->count != b->count)
        return a->count < b->count ? -1 : 1;
    return a->below < b->below ? -1 : a->below > b->below;
}

/* The configuration of the entries on the pile from `base` on, in any order; takes them off. */
static uint32_t intern_pile(struct machine *m, uint32_t base)
{
    struct machine_entry *e = m->pile + base;
    uint32_t n = m->n_pile - base, kept = 0;
    if (n > 1)
        qsort(e, n, sizeof *e, entry_order);
    for (uint32_t i = 0; i < n && !m->failed; i++) {
        e = m->pile + base; /* a union may move the pile */
        struct machine_entry x = e[i];
        struct machine_entry *last = kept ? &e[kept - 1] : NULL;
        if (!last || last->node != x.node || last->count != x.count) {
            e[kept++] = x;
        } else if (last->below != x.below) {
            uint32_t u = machine_union(m, last->below, x.below);
            m->pile[base + kept - 1].below = u;
        }
    }
    uint32_t c = m->failed ? MACHINE_EMPTY : intern(m, m->pile + base, kept);
    m->n_pile = base;
    return c;
}

/* Depth of the recursion: frames of the stacks. */
uint32_t machine_union(struct machine *m, uint32_t a, uint32_t b)
{
    if (a == b || b == MACHINE_EMPTY)
        return a;
    if (a == MACHINE_EMPTY)
        return b;
    if (a > b) {
        uint32_t t = a;
        a = b;
        b = t;
    }
    uint32_t *slot = m->unions + hash_mix64((uint64_t)a << 32 | b) % UNIONS * 3;
    if (slot[0] == a && slot[1] == b)
        return slot[2];
    uint32_t base = m->n_pile, na = m->configs[a].n, nb = m->configs[b].n;
    if (!use(m, na + nb) ||
        !grow(m, (void **)&m->pile, m->n_pile, na + nb, &m->cap_pile, sizeof *m->pile))
        return MACHINE_EMPTY;
    memcpy(m->pile + base, m->entries + m->configs[a].first, na * sizeof *m->pile);
    memcpy(m->pile + base + na, m->entries + m->configs[b].first, nb * sizeof *m->pile);
    m->n_pile += na + nb;
    uint32_t c = intern_pile(m, base);
    if (!m->failed) {
        slot[0] = a;
        slot[1] = b;
        slot[2] = c;
    }
    return c;
}

/* ---- closures ---- */

static bool seen_grow(struct machine *m)
{
    uint32_t cap = m->cap_seen ? m->cap_seen * 2 : 256;
    struct machine_entry *s = mem_array(cap, sizeof *s);
    uint32_t *stamps = mem_array(cap, sizeof *stamps);
    if (!s || !stamps) {
        free(s);
        free(stamps);
        return fail(m);
    }
    for (uint32_t i = 0; i < m->cap_seen; i++) {
        if (m->seen_stamp[i] != m->stamp)
            continue;
        uint64_t h = entries_hash(&m->seen[i], 1);
        while (stamps[h & (cap - 1)] == m->stamp)
            h++;
        s[h & (cap - 1)] = m->seen[i];
        stamps[h & (cap - 1)] = m->stamp;
    }
    free(m->seen);
    free(m->seen_stamp);
    m->seen = s;
    m->seen_stamp = stamps;
    m->cap_seen = cap;
    return true;
}

/* Puts an item on the work list unless it was there before in this closure. */
static void todo(struct machine *m, uint32_t node, uint32_t count, uint32_t below)
{
    struct machine_entry x = {node, count, below};
    if (m->cap_seen < (m->n_seen + 1) * 2 && !seen_grow(m))
        return;
    uint64_t h = entries_hash(&x, 1);
    for (;; h++) {
        uint32_t i = h & (m->cap_seen - 1);
        if (m->seen_stamp[i] != m->stamp) {
            m->seen_stamp[i] = m->stamp;
            m->seen[i] = x;
            m->n_seen++;
            break;
        }
        if (m->seen[i].node == node && m->seen[i].count == count && m->seen[i].below == below)
            return;
    }
    if (use(m, 4) && grow(m, (void **)&m->todo, m->n_todo, 1, &m->cap_todo, sizeof *m->todo))
        m->todo[m->n_todo++] = x;
}

static void closure_begin(struct machine *m)
{
    m->n_todo = m->n_found = m->n_seen = 0;
    if (++m->stamp == 0) {
        memset(m->seen_stamp, 0, m->cap_seen * sizeof *m->seen_stamp);
        m->stamp = 1;
    }
}

static void found(struct machine *m, uint32_t node, uint32_t count, uint32_t below)
{
    if (grow(m, (void **)&m->found, m->n_found, 1, &m->cap_found, sizeof *m->found))
        m->found[m->n_found++] = (struct machine_entry){node, count, below};
}

/* Returns into a configuration: each of its frames goes on. */
static void pop(struct machine *m, uint32_t below)
{
    for (uint32_t i = 0; i < m->configs[below].n && !m->failed; i++) {
        struct machine_entry e = m->entries[m->configs[below].first + i];
        todo(m, e.node, e.count, e.below);
    }
}

/* A loop whose count is relative to an unknown one: it may end here, and what is below is told
 * after how many rounds it did (tokenmask_local.c put one frame and BASE there). */
static void leave_symbolic(struct machine *m, uint32_t count, uint32_t below)
{
    const struct machine_config *c = &m->configs[below];
    for (uint32_t i = 0; i < c->n && !m->failed; i++) {
        struct machine_entry e = m->entries[c->first + i];
        uint32_t rounds = count - MACHINE_SYMBOLIC;
        if (e.node == GRAMMAR_NODE_BASE) {
            todo(m, GRAMMAR_NODE_BASE, rounds, MACHINE_EMPTY);
        } else {
            uint32_t base = machine_push(m, GRAMMAR_NODE_BASE, rounds, MACHINE_EMPTY);
            todo(m, e.node, e.count, base);
        }
        c = &m->configs[below];
    }
}

static void follow_loop(struct machine *m, uint32_t node, uint32_t count, uint32_t below)
{
    const struct grammar_def *r = &m->g->rules[m->g->nodes[node].rule];
    bool symbolic = count >= MACHINE_SYMBOLIC;
    if (symbolic)
        leave_symbolic(m, count, below);
    else if (count >= r->min)
        pop(m, below);
    if (!symbolic && count >= r->max)
        return;
    uint32_t next = count + 1;
    if (!symbolic && r->max == GRAMMAR_NO_MAX && next > r->min)
        next = r->min; /* beyond the minimum nobody counts */
    uint32_t body = m->g->rules[r->body].node;
    if (m->configs[below].depth + 1 + m->g->nodes[body].need > GRAMMAR_DEPTH)
        return;
    uint32_t inside = machine_push(m, node, next, below);
    if (!m->failed)
        todo(m, body, 0, inside);
}

static void follow_calls(struct machine *m, uint32_t node, uint32_t below)
{
    const struct grammar_node *n = &m->g->nodes[node];
    for (uint32_t c = n->call; c < n[1].call && !m->failed; c++) {
        const struct grammar_call *x = &m->g->calls[c];
        const struct grammar_node *after = &m->g->nodes[x->to];
        bool tail = after->final && after->edge == after[1].edge && after->call == after[1].call;
        uint32_t depth = m->configs[below].depth, callee = m->g->rules[x->rule].node;
        if (depth + 1 + m->g->nodes[callee].need > GRAMMAR_DEPTH ||
            depth + after->need > GRAMMAR_DEPTH)
            continue;
        uint32_t inside = tail ? below : machine_push(m, x->to, 0, below);
        if (!m->failed)
            todo(m, callee, 0, inside);
    }
}

/* Works the list off; the frames that were found are the new configuration. */
static uint32_t closure_end(struct machine *m)
{
    while (m->n_todo > 0 && !m->failed) {
        struct machine_entry x = m->todo[--m->n_todo];
        const struct grammar_node *n = &m->g->nodes[x.node];
        if (x.node < GRAMMAR_NODE_FIRST) {
            found(m, x.node, x.count, x.below);
            continue;
        }
        if (m->configs[x.below].depth + n->need > GRAMMAR_DEPTH)
            continue;
        if (n->loop) {
            follow_loop(m, x.node, x.count, x.below);
            continue;
        }
        if (n->edge != n[1].edge)
            found(m, x.node, 0, x.below);
        if (n->final)
            pop(m, x.below);
        follow_calls(m, x.node, x.below);
    }
    uint32_t base = m->n_pile;
    if (m->failed ||
        !grow(m, (void **)&m->pile, m->n_pile, m->n_found, &m->cap_pile, sizeof *m->pile))
        return MACHINE_EMPTY;
    if (m->n_found)
        memcpy(m->pile + base, m->found, m->n_found * sizeof *m->pile);
    m->n_pile += m->n_found;
    return intern_pile(m, base);
}

static uint32_t edge_target(const struct grammar *g, uint32_t node, uint8_t byte)
{
    for (uint32_t e = g->nodes[node].edge; e < g->nodes[node + 1].edge; e++) {
        if (byte >= g->edges[e].lo && byte <= g->edges[e].hi)
            return g->edges[e].to;
    }
    return UINT32_MAX;
}

uint32_t machine_step_slow(struct machine *m, uint32_t config, uint8_t class)
{
    const struct grammar *g = m->g;
    if (m->failed)
        return MACHINE_EMPTY;
    closure_begin(m);
    for (uint32_t i = 0; i < m->configs[config].n && !m->failed; i++) {
        struct machine_entry e = m->entries[m->configs[config].first + i];
        if (e.node < GRAMMAR_NODE_FIRST)
            continue;
        uint32_t to = edge_target(g, e.node, g->sample[class]);
        if (to != UINT32_MAX)
            todo(m, to, 0, e.below);
    }
    uint32_t to = closure_end(m);
    if (m->failed)
        return MACHINE_EMPTY;
    if (!m->configs[config].row) {
        uint64_t cap = (uint64_t)m->cap_rows * g->n_classes;
        if (m->n_rows == m->cap_rows) {
            uint32_t rows = m->cap_rows ? m->cap_rows * 2 : 64;
            uint32_t *p = mem_resize(m->rows, (size_t)rows * g->n_classes, sizeof *p);
            if (!p)
                return fail(m), MACHINE_EMPTY;
            memset(p + cap, 0, ((size_t)rows * g->n_classes - cap) * sizeof *p);
            m->rows = p;
            m->cap_rows = rows;
        }
        if (!use(m, g->n_classes / 16 + 1))
            return MACHINE_EMPTY;
        m->configs[config].row = ++m->n_rows;
    }
    m->rows[(size_t)(m->configs[config].row - 1) * g->n_classes + class] = to + 1;
    return to;
}

uint32_t machine_step_bytes(struct machine *m, uint32_t config, const char *p, size_t n)
{
    for (size_t i = 0; i < n && config != MACHINE_EMPTY; i++)
        config = machine_step(m, config, m->g->class[(uint8_t)p[i]]);
    return config;
}

uint32_t machine_resume(struct machine *m, uint32_t below)
{
    if (m->configs[below].resumed)
        return m->configs[below].resumed - 1;
    if (m->failed)
        return MACHINE_EMPTY;
    closure_begin(m);
    pop(m, below);
    uint32_t c = closure_end(m);
    if (!m->failed)
        m->configs[below].resumed = c + 1;
    return c;
}

bool machine_done(const struct machine *m, uint32_t config)
{
    const struct machine_config *c = &m->configs[config];
    return c->n > 0 && m->entries[c->first].node == GRAMMAR_NODE_DONE;
}

bool machine_ended(const struct machine *m, uint32_t config)
{
    return m->configs[config].n == 1 && machine_done(m, config);
}

/* ---- forgetting ---- */

/* Copies configuration c of `from` and what it stands on; known: new number + 1 of each. Depth of
 * the recursion: frames of the stacks. */
static uint32_t copy_config(struct machine *m, const struct machine *from, uint32_t *known,
                            uint32_t c)
{
    if (known[c])
        return known[c] - 1;
    const struct machine_config *x = &from->configs[c];
    uint32_t base = m->n_pile;
    if (!grow(m, (void **)&m->pile, m->n_pile, x->n, &m->cap_pile, sizeof *m->pile))
        return MACHINE_EMPTY;
    m->n_pile += x->n;
    for (uint32_t i = 0; i < x->n && !m->failed; i++) {
        struct machine_entry e = from->entries[x->first + i];
        e.below = copy_config(m, from, known, e.below);
        m->pile[base + i] = e;
    }
    uint32_t to = m->failed ? MACHINE_EMPTY : intern_pile(m, base);
    m->n_pile = base;
    known[c] = to + 1;
    return to;
}

int machine_forget(struct machine *m, uint32_t *keep, uint32_t n)
{
    struct machine old = *m;
    m->configs = NULL;
    m->entries = NULL;
    m->rows = m->table = NULL;
    m->n_configs = m->cap_configs = m->n_entries = m->cap_entries = 0;
    m->n_rows = m->cap_rows = m->n_table = 0;
    m->failed = false;
    m->work = UINT64_MAX;
    m->n_pile = 0;
    memset(m->unions, 0xff, UNIONS * 3 * sizeof *m->unions);
    intern(m, NULL, 0); /* EMPTY */
    if (!m->failed)
        machine_push(m, GRAMMAR_NODE_DONE, 0, MACHINE_EMPTY); /* BOTTOM */
    if (!m->failed) {
        closure_begin(m);
        todo(m, m->g->nodes ? m->g->rules[m->g->root].node : 0, 0, MACHINE_BOTTOM);
        m->start = closure_end(m);
    }
    uint32_t *known = old.n_configs ? mem_array(old.n_configs, sizeof *known) : NULL;
    if (n > 0 && !known)
        m->failed = true;
    for (uint32_t i = 0; i < n && !m->failed; i++)
        keep[i] = copy_config(m, &old, known, keep[i]);
    free(known);
    bool failed = m->failed;
    if (old.configs)
        store_fini(&old);
    m->epoch++;
    m->work = old.work;
    return failed ? STATUS_NOMEM : STATUS_OK;
}
