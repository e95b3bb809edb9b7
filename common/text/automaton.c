/* automaton: states, edges, and the classic constructions over them.
 *
 * Ranges of symbols instead of single ones: a class such as [^"] is one or two edges. The subset
 * construction cuts the ranges that leave a set of states at all their ends and follows each piece
 * once. Minimising refines a partition (Moore) by the hash of what a state's edges lead to; it is
 * quadratic for long chains, so large automata stay as they are: nothing depends on it but size,
 * and what the masks of different grammars can share.
 *
 * All loops are charged to the budget; the constructions are iterative. */
#include "common/text/automaton.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/text/unicode.h"

#define MINIMISE_MAX 4096

void automaton_init(struct automaton *a, struct automaton_budget *budget)
{
    *a = (struct automaton){.budget = budget};
    automaton_state(a);
}

void automaton_fini(struct automaton *a)
{
    free(a->final);
    free(a->edges);
    free(a->first);
    *a = (struct automaton){.status = STATUS_INVALID};
}

static void fail(struct automaton *a, int status)
{
    if (a->status == STATUS_OK)
        a->status = status;
}

bool automaton_work(struct automaton *a, uint64_t n)
{
    if (a->status != STATUS_OK)
        return false;
    if (a->budget->work < n) {
        a->budget->work = 0;
        fail(a, STATUS_LIMIT);
        return false;
    }
    a->budget->work -= n;
    return true;
}

/* Room for one more element of size bytes in *p. */
static bool grow(struct automaton *a, void **p, uint32_t n, uint32_t *cap, size_t size)
{
    if (n < *cap)
        return true;
    uint32_t to = *cap ? *cap * 2 : 16;
    void *q = to < *cap ? NULL : mem_resize(*p, to, size);
    if (!q) {
        fail(a, STATUS_NOMEM);
        return false;
    }
    *p = q;
    *cap = to;
    return true;
}

uint32_t automaton_state(struct automaton *a)
{
    if (!automaton_work(a, 1))
        return 0;
    if (a->n >= a->budget->states) {
        fail(a, STATUS_LIMIT);
        return 0;
    }
    if (!grow(a, (void **)&a->final, a->n, &a->cap, 1))
        return 0;
    a->final[a->n] = 0;
    return a->n++;
}

void automaton_edge(struct automaton *a, uint32_t from, uint32_t lo, uint32_t hi, uint32_t to)
{
    if (!automaton_work(a, 1) ||
        !grow(a, (void **)&a->edges, a->n_edges, &a->cap_edges, sizeof *a->edges))
        return;
    ASSERT(from < a->n && to < a->n && lo <= hi);
    a->edges[a->n_edges++] = (struct automaton_edge){from, lo, hi, to};
}

void automaton_empty(struct automaton *a, uint32_t from, uint32_t to)
{
    automaton_edge(a, from, AUTOMATON_EMPTY, AUTOMATON_EMPTY, to);
}

void automaton_call(struct automaton *a, uint32_t from, uint32_t rule, uint32_t to)
{
    ASSERT(rule <= AUTOMATON_CALL_MAX - AUTOMATON_CALL);
    automaton_edge(a, from, AUTOMATON_CALL + rule, AUTOMATON_CALL + rule, to);
}

uint32_t automaton_bytes(struct automaton *a, uint32_t from, const char *p, size_t n)
{
    for (size_t i = 0; i < n && a->status == STATUS_OK; i++) {
        uint32_t next = automaton_state(a);
        automaton_edge(a, from, (uint8_t)p[i], (uint8_t)p[i], next);
        from = next;
    }
    return from;
}

uint32_t automaton_chars(struct automaton *a, uint32_t from, const char *p, size_t n)
{
    while (n > 0 && a->status == STATUS_OK) {
        uint32_t cp = UNICODE_REPLACEMENT;
        size_t len;
        unicode_next(p, n, &cp, &len);
        uint32_t next = automaton_state(a);
        automaton_edge(a, from, cp, cp, next);
        from = next;
        p += len;
        n -= len;
    }
    return from;
}

void automaton_splice(struct automaton *a, uint32_t from, const struct automaton *b, uint32_t to)
{
    uint32_t base = a->n;
    if (b->status != STATUS_OK)
        fail(a, b->status);
    for (uint32_t i = 0; i < b->n && a->status == STATUS_OK; i++) {
        automaton_state(a);
        if (b->final[i])
            automaton_empty(a, base + i, to);
    }
    for (uint32_t i = 0; i < b->n_edges && a->status == STATUS_OK; i++)
        automaton_edge(a, base + b->edges[i].from, b->edges[i].lo, b->edges[i].hi,
                       base + b->edges[i].to);
    if (a->status == STATUS_OK)
        automaton_empty(a, from, base);
}

static int edge_order(const void *x, const void *y)
{
    const struct automaton_edge *a = x, *b = y;
    if (a->from != b->from)
        return a->from < b->from ? -1 : 1;
    if (a->lo != b->lo)
        return a->lo < b->lo ? -1 : 1;
    if (a->hi != b->hi)
        return a->hi < b->hi ? -1 : 1;
    return a->to < b->to ? -1 : a->to > b->to;
}

int automaton_index(struct automaton *a)
{
    if (!automaton_work(a, a->n_edges))
        return a->status;
    uint32_t *first = mem_array((size_t)a->n + 1, sizeof *first);
    if (!first)
        return fail(a, STATUS_NOMEM), a->status;
    if (a->n_edges)
        qsort(a->edges, a->n_edges, sizeof *a->edges, edge_order);
    for (uint32_t i = 0; i < a->n_edges; i++)
        first[a->edges[i].from + 1]++;
    for (uint32_t i = 0; i < a->n; i++)
        first[i + 1] += first[i];
    free(a->first);
    a->first = first;
    return STATUS_OK;
}

static int replace(struct automaton *a, struct automaton *by)
{
    int rc = by->status;
    automaton_fini(a);
    *a = *by;
    return rc;
}

/* ---- trimming ---- */

/* Marks in seen, by the edges turned round, what leads to a marked state. order: [n] scratch. */
static void mark_back(const struct automaton *a, uint8_t *seen, uint32_t *order)
{
    uint32_t *head = order + a->n, *next = head + a->n, n = 0;
    for (uint32_t i = 0; i < a->n; i++)
        head[i] = UINT32_MAX;
    for (uint32_t i = 0; i < a->n_edges; i++) {
        next[i] = head[a->edges[i].to];
        head[a->edges[i].to] = i;
    }
    for (uint32_t i = 0; i < a->n; i++) {
        seen[i] = a->final[i];
        if (seen[i])
            order[n++] = i;
    }
    while (n > 0) {
        uint32_t s = order[--n];
        for (uint32_t e = head[s]; e != UINT32_MAX; e = next[e]) {
            if (!seen[a->edges[e].from]) {
                seen[a->edges[e].from] = 1;
                order[n++] = a->edges[e].from;
            }
        }
    }
}

/* Numbers what the start reaches among the states in keep, breadth first. */
static uint32_t number_reached(const struct automaton *a, const uint8_t *keep, uint32_t *number,
                               uint32_t *order)
{
    uint32_t n = 1;
    for (uint32_t i = 0; i < a->n; i++)
        number[i] = UINT32_MAX;
    number[0] = 0;
    order[0] = 0;
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t e = a->first[order[i]]; e < a->first[order[i] + 1]; e++) {
            uint32_t to = a->edges[e].to;
            if (keep[to] && number[to] == UINT32_MAX) {
                number[to] = n;
                order[n++] = to;
            }
        }
    }
    return n;
}

int automaton_trim(struct automaton *a)
{
    TRY(automaton_index(a));
    if (!automaton_work(a, (uint64_t)a->n + a->n_edges))
        return a->status;
    uint32_t *scratch = mem_array((size_t)a->n * 3 + a->n_edges + 1, sizeof *scratch);
    uint8_t *keep = mem_array(a->n, 1);
    if (!scratch || !keep) {
        free(scratch);
        free(keep);
        return fail(a, STATUS_NOMEM), a->status;
    }
    mark_back(a, keep, scratch);
    uint32_t *number = scratch, *order = scratch + a->n;
    uint32_t n = number_reached(a, keep, number, order);
    struct automaton to;
    automaton_init(&to, a->budget);
    for (uint32_t i = 1; i < n; i++)
        automaton_state(&to);
    for (uint32_t i = 0; i < n && to.status == STATUS_OK; i++) {
        to.final[i] = a->final[order[i]];
        for (uint32_t e = a->first[order[i]]; e < a->first[order[i] + 1]; e++) {
            const struct automaton_edge *x = &a->edges[e];
            bool loop = x->lo == AUTOMATON_EMPTY && x->to == order[i];
            if (keep[x->to] && !loop)
                automaton_edge(&to, i, x->lo, x->hi, number[x->to]);
        }
    }
    free(scratch);
    free(keep);
    if (to.status == STATUS_OK)
        to.status = automaton_index(&to);
    return replace(a, &to);
}

/* ---- subsets ---- */

/* Sets of states, each once: set i is ids[at[i]] .. ids[at[i + 1]]. */
struct sets {
    struct automaton *a; /* for its status */
    uint32_t *ids, n_ids, cap_ids;
    uint32_t *at, n, cap;
    uint32_t *table, n_table; /* open addressing; set + 1 */
};

static void sets_fini(struct sets *s)
{
    free(s->ids);
    free(s->at);
    free(s->table);
}

static bool sets_rehash(struct sets *s)
{
    uint32_t n = s->n_table ? s->n_table * 2 : 64;
    uint32_t *t = mem_array(n, sizeof *t);
    if (!t) {
        fail(s->a, STATUS_NOMEM);
        return false;
    }
    for (uint32_t i = 0; i < s->n; i++) {
        uint64_t h = hash64(s->ids + s->at[i], (s->at[i + 1] - s->at[i]) * sizeof *s->ids, 0);
        while (t[h & (n - 1)])
            h++;
        t[h & (n - 1)] = i + 1;
    }
    free(s->table);
    s->table = t;
    s->n_table = n;
    return true;
}

/* Number of the set, a new one if need be; UINT32_MAX on failure. */
static uint32_t sets_put(struct sets *s, const uint32_t *ids, uint32_t n)
{
    if (s->n_table < (s->n + 1) * 2 && !sets_rehash(s))
        return UINT32_MAX;
    uint64_t h = hash64(ids, n * sizeof *ids, 0);
    for (;; h++) {
        uint32_t i = s->table[h & (s->n_table - 1)];
        if (i == 0)
            break;
        i--;
        if (s->at[i + 1] - s->at[i] == n && memcmp(s->ids + s->at[i], ids, n * sizeof *ids) == 0)
            return i;
    }
    if (!automaton_work(s->a, n))
        return UINT32_MAX;
    if (s->n + 2 > s->cap) {
        uint32_t cap = s->cap ? s->cap * 2 : 64;
        uint32_t *at = mem_resize(s->at, cap, sizeof *at);
        if (!at)
            return fail(s->a, STATUS_NOMEM), UINT32_MAX;
        if (!s->cap)
            at[0] = 0;
        s->at = at;
        s->cap = cap;
    }
    while (s->cap_ids - s->n_ids < n) {
        uint32_t cap = s->cap_ids ? s->cap_ids * 2 : 256;
        uint32_t *p = cap > s->cap_ids ? mem_resize(s->ids, cap, sizeof *p) : NULL;
        if (!p)
            return fail(s->a, STATUS_NOMEM), UINT32_MAX;
        s->ids = p;
        s->cap_ids = cap;
    }
    if (n)
        memcpy(s->ids + s->n_ids, ids, n * sizeof *ids);
    s->n_ids += n;
    s->at[s->n + 1] = s->n_ids;
    s->table[h & (s->n_table - 1)] = s->n + 1;
    return s->n++;
}

static int u32_order(const void *x, const void *y)
{
    uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)y;
    return a < b ? -1 : a > b;
}

struct subset {
    struct automaton *a;
    uint8_t *in;       /* [n] state is in set */
    uint32_t *set, n;  /* [a->n] */
    uint32_t *ends;    /* [2 * cap_ends] where ranges begin, or end + 1 */
    uint32_t cap_ends; /* edges that there is room for */
    struct automaton_edge **live;
};

static void subset_add(struct subset *w, uint32_t s)
{
    if (!w->in[s]) {
        w->in[s] = 1;
        w->set[w->n++] = s;
    }
}

/* Completes the set by empty edges, sorts and numbers it. */
static uint32_t subset_close(struct subset *w, struct sets *sets)
{
    const struct automaton *a = w->a;
    for (uint32_t i = 0; i < w->n; i++) {
        uint32_t s = w->set[i];
        for (uint32_t e = a->first[s + 1]; e > a->first[s]; e--) { /* they sort last */
            if (a->edges[e - 1].lo != AUTOMATON_EMPTY)
                break;
            subset_add(w, a->edges[e - 1].to);
        }
    }
    automaton_work(w->a, w->n);
    if (w->n > 1)
        qsort(w->set, w->n, sizeof *w->set, u32_order);
    uint32_t id = sets_put(sets, w->set, w->n);
    for (uint32_t i = 0; i < w->n; i++)
        w->in[w->set[i]] = 0;
    w->n = 0;
    return id;
}

/* The edges of a set and the ends of their ranges. False on failure. */
static bool subset_edges(struct subset *w, const struct sets *sets, uint32_t set, uint32_t *n_live,
                         uint32_t *n_ends)
{
    const struct automaton *a = w->a;
    uint32_t live = 0;
    for (uint32_t i = sets->at[set]; i < sets->at[set + 1]; i++)
        live += a->first[sets->ids[i] + 1] - a->first[sets->ids[i]];
    if (!automaton_work(w->a, live))
        return false;
    if (live > w->cap_ends) {
        free(w->ends);
        free(w->live);
        w->cap_ends = live * 2;
        w->ends = mem_array((size_t)w->cap_ends * 2, sizeof *w->ends);
        w->live = mem_array(w->cap_ends, sizeof *w->live);
        if (!w->ends || !w->live)
            return fail(w->a, STATUS_NOMEM), false;
    }
    *n_live = *n_ends = 0;
    for (uint32_t i = sets->at[set]; i < sets->at[set + 1]; i++) {
        uint32_t s = sets->ids[i];
        for (uint32_t e = a->first[s]; e < a->first[s + 1]; e++) {
            if (a->edges[e].lo == AUTOMATON_EMPTY)
                break;
            w->live[(*n_live)++] = &a->edges[e];
            w->ends[(*n_ends)++] = a->edges[e].lo;
            w->ends[(*n_ends)++] = a->edges[e].hi + 1;
        }
    }
    if (*n_ends > 1)
        qsort(w->ends, *n_ends, sizeof *w->ends, u32_order);
    return true;
}

static int live_order(const void *x, const void *y)
{
    const struct automaton_edge *a = *(struct automaton_edge *const *)x,
                                *b = *(struct automaton_edge *const *)y;
    return a->lo < b->lo ? -1 : a->lo > b->lo;
}

/* Follows every piece of the ranges from one set. */
static void subset_follow(struct subset *w, struct sets *sets, uint32_t set, struct automaton *out)
{
    uint32_t n_live, n_ends, begun = 0, n_open = 0;
    if (!subset_edges(w, sets, set, &n_live, &n_ends))
        return;
    if (n_live > 1)
        qsort(w->live, n_live, sizeof *w->live, live_order);
    /* live[0 .. n_open): ranges that have begun and not ended; [begun, n_live): those to come. */
    for (uint32_t i = 0; i + 1 < n_ends && w->a->status == STATUS_OK; i++) {
        uint32_t lo = w->ends[i], hi = w->ends[i + 1] - 1, kept = 0;
        if (w->ends[i] == w->ends[i + 1])
            continue;
        for (uint32_t k = 0; k < n_open; k++) {
            if (w->live[k]->hi >= lo)
                w->live[kept++] = w->live[k];
        }
        n_open = kept;
        while (begun < n_live && w->live[begun]->lo == lo)
            w->live[n_open++] = w->live[begun++];
        if (n_open == 0 || !automaton_work(w->a, n_open))
            continue;
        for (uint32_t k = 0; k < n_open; k++)
            subset_add(w, w->live[k]->to);
        uint32_t to = subset_close(w, sets);
        if (to == UINT32_MAX)
            return;
        while (out->n <= to && out->status == STATUS_OK)
            automaton_state(out);
        if (out->status != STATUS_OK)
            return;
        struct automaton_edge *last = out->n_edges ? &out->edges[out->n_edges - 1] : NULL;
        if (last && last->from == set && last->to == to && last->hi + 1 == lo &&
            hi < AUTOMATON_CALL)
            last->hi = hi;
        else
            automaton_edge(out, set, lo, hi, to);
    }
}

int automaton_determinise(struct automaton *a)
{
    TRY(automaton_trim(a));
    struct automaton out;
    struct sets sets = {.a = a};
    struct subset w = {.a = a};
    automaton_init(&out, a->budget);
    w.in = mem_array(a->n, 1);
    w.set = mem_array(a->n, sizeof *w.set);
    if (!w.in || !w.set)
        fail(a, STATUS_NOMEM);
    if (a->status == STATUS_OK) {
        subset_add(&w, 0);
        subset_close(&w, &sets);
    }
    for (uint32_t i = 0; a->status == STATUS_OK && out.status == STATUS_OK && i < sets.n; i++) {
        for (uint32_t k = sets.at[i]; k < sets.at[i + 1]; k++)
            out.final[i] |= a->final[sets.ids[k]];
        subset_follow(&w, &sets, i, &out);
    }
    fail(&out, a->status);
    sets_fini(&sets);
    free(w.in);
    free(w.set);
    free(w.ends);
    free(w.live);
    if (out.status == STATUS_OK)
        out.status = automaton_index(&out);
    return replace(a, &out);
}

/* ---- minimising ---- */

struct signature {
    struct hash128 h;
    uint32_t state;
};

static int signature_order(const void *x, const void *y)
{
    const struct signature *a = x, *b = y;
    if (a->h.hi != b->h.hi)
        return a->h.hi < b->h.hi ? -1 : 1;
    if (a->h.lo != b->h.lo)
        return a->h.lo < b->h.lo ? -1 : 1;
    return a->state < b->state ? -1 : a->state > b->state;
}

/* What tells state s from others now: its class, and the classes that its symbols lead to. */
static struct hash128 signature(const struct automaton *a, const uint32_t *class, uint32_t s,
                                uint32_t *scratch)
{
    uint32_t n = 0;
    scratch[n++] = class[s];
    for (uint32_t e = a->first[s]; e < a->first[s + 1]; e++) {
        const struct automaton_edge *x = &a->edges[e];
        if (n > 1 && scratch[n - 2] + 1 == x->lo && scratch[n - 1] == class[x->to] &&
            x->lo < AUTOMATON_CALL) {
            scratch[n - 2] = x->hi; /* neighbouring ranges to one class are one range */
        } else {
            scratch[n++] = x->lo;
            scratch[n++] = x->hi;
            scratch[n++] = class[x->to];
        }
    }
    return hash128(scratch, n * sizeof *scratch, 0x6d696e);
}

/* One refinement; returns the number of classes. */
static uint32_t refine(const struct automaton *a, uint32_t *class, struct signature *sig,
                       uint32_t *scratch)
{
    uint32_t n = 0;
    for (uint32_t s = 0; s < a->n; s++)
        sig[s] = (struct signature){signature(a, class, s, scratch), s};
    qsort(sig, a->n, sizeof *sig, signature_order);
    for (uint32_t i = 0; i < a->n; i++) {
        if (i > 0 && (sig[i].h.hi != sig[i - 1].h.hi || sig[i].h.lo != sig[i - 1].h.lo))
            n++;
        class[sig[i].state] = n;
    }
    return n + 1;
}

static void merge_classes(const struct automaton *a, const uint32_t *class, struct automaton *out)
{
    uint8_t *done = mem_array(a->n, 1);
    uint32_t *number = mem_array(a->n, sizeof *number);
    if (!done || !number) {
        fail(out, STATUS_NOMEM);
    } else { /* the start keeps number 0; the order of the others is put right by the trim */
        uint32_t n = 1;
        for (uint32_t s = 0; s < a->n; s++)
            number[s] = UINT32_MAX;
        number[class[0]] = 0;
        for (uint32_t s = 0; s < a->n && out->status == STATUS_OK; s++) {
            if (number[class[s]] == UINT32_MAX) {
                number[class[s]] = n++;
                automaton_state(out);
            }
        }
        for (uint32_t s = 0; s < a->n && out->status == STATUS_OK; s++) {
            uint32_t from = number[class[s]];
            if (done[class[s]])
                continue;
            done[class[s]] = 1;
            out->final[from] = a->final[s];
            for (uint32_t e = a->first[s]; e < a->first[s + 1]; e++) {
                const struct automaton_edge *x = &a->edges[e];
                uint32_t to = number[class[x->to]];
                struct automaton_edge *last = out->n_edges ? &out->edges[out->n_edges - 1] : NULL;
                if (last && last->from == from && last->to == to && last->hi + 1 == x->lo &&
                    x->lo < AUTOMATON_CALL)
                    last->hi = x->hi;
                else
                    automaton_edge(out, from, x->lo, x->hi, to);
            }
        }
    }
    free(done);
    free(number);
}

int automaton_minimise(struct automaton *a)
{
    TRY(automaton_determinise(a));
    if (a->n > MINIMISE_MAX)
        return STATUS_OK;
    uint32_t *class = mem_array(a->n, sizeof *class);
    struct signature *sig = mem_array(a->n, sizeof *sig);
    uint32_t *scratch = mem_array((size_t)a->n_edges * 3 + 1, sizeof *scratch);
    struct automaton out;
    automaton_init(&out, a->budget);
    if (!class || !sig || !scratch) {
        fail(&out, STATUS_NOMEM);
    } else {
        uint32_t n = 0, before;
        for (uint32_t s = 0; s < a->n; s++)
            class[s] = a->final[s];
        do {
            before = n;
            if (!automaton_work(&out, (uint64_t)a->n + a->n_edges))
                break;
            n = refine(a, class, sig, scratch);
        } while (n != before);
        if (out.status == STATUS_OK)
            merge_classes(a, class, &out);
    }
    free(class);
    free(sig);
    free(scratch);
    if (out.status == STATUS_OK) {
        int rc = automaton_trim(&out);
        (void)rc; /* kept in out.status */
    }
    return replace(a, &out);
}

/* ---- products ---- */

/* Pairs of states, numbered as they are found; b's side is UINT32_MAX once b has lost the text. */
struct pairs {
    struct sets sets;
    struct automaton *out;
};

static uint32_t pair_state(struct pairs *p, uint32_t s, uint32_t t)
{
    uint32_t id = sets_put(&p->sets, (uint32_t[]){s, t}, 2);
    while (id != UINT32_MAX && p->out->status == STATUS_OK && p->out->n <= id)
        automaton_state(p->out);
    return id;
}

static void pair_follow(struct pairs *p, const struct automaton *a, const struct automaton *b,
                        bool keep_lost, uint32_t id)
{
    uint32_t s = p->sets.ids[p->sets.at[id]], t = p->sets.ids[p->sets.at[id] + 1];
    uint32_t k = t == UINT32_MAX ? 0 : b->first[t], k_end = t == UINT32_MAX ? 0 : b->first[t + 1];
    for (uint32_t e = a->first[s]; e < a->first[s + 1]; e++) {
        const struct automaton_edge *x = &a->edges[e];
        uint32_t lo = x->lo;
        while (lo <= x->hi && p->out->status == STATUS_OK) {
            while (k < k_end && b->edges[k].hi < lo)
                k++;
            bool both = k < k_end && b->edges[k].lo <= lo;
            uint32_t hi = x->hi, limit = both          ? b->edges[k].hi
                                         : (k < k_end) ? b->edges[k].lo - 1
                                                       : UINT32_MAX;
            if (limit < hi)
                hi = limit;
            if (both || keep_lost) {
                uint32_t to = pair_state(p, x->to, both ? b->edges[k].to : UINT32_MAX);
                if (to == UINT32_MAX)
                    return;
                automaton_edge(p->out, id, lo, hi, to);
            }
            lo = hi + 1;
        }
    }
}

static int product(const struct automaton *a, const struct automaton *b, bool subtract,
                   struct automaton *out)
{
    ASSERT(a->first && b->first);
    automaton_init(out, a->budget);
    struct pairs p = {.sets = {.a = out}, .out = out};
    if (out->status == STATUS_OK)
        pair_state(&p, 0, 0);
    for (uint32_t i = 0; i < p.sets.n && out->status == STATUS_OK; i++) {
        uint32_t s = p.sets.ids[p.sets.at[i]], t = p.sets.ids[p.sets.at[i] + 1];
        bool other = t != UINT32_MAX && b->final[t];
        out->final[i] = a->final[s] && other != subtract;
        pair_follow(&p, a, b, subtract, i);
    }
    sets_fini(&p.sets);
    int rc = out->status;
    if (rc == STATUS_OK)
        rc = automaton_trim(out);
    if (rc != STATUS_OK)
        automaton_fini(out);
    return rc;
}

int automaton_intersect(const struct automaton *a, const struct automaton *b, struct automaton *out)
{
    return product(a, b, false, out);
}

int automaton_subtract(const struct automaton *a, const struct automaton *b, struct automaton *out)
{
    return product(a, b, true, out);
}

int automaton_combine(struct automaton *a, struct automaton *b, bool subtract)
{
    struct automaton out;
    int rc = a->status != STATUS_OK ? a->status : b->status;
    if (rc == STATUS_OK)
        rc = product(a, b, subtract, &out);
    automaton_fini(b);
    if (rc == STATUS_OK) {
        automaton_fini(a);
        *a = out;
    } else {
        a->status = rc;
    }
    return rc;
}

/* ---- questions ---- */

bool automaton_is_never(const struct automaton *a)
{
    return a->n_edges == 0 && !a->final[0];
}

uint32_t automaton_next(const struct automaton *a, uint32_t s, uint32_t symbol)
{
    uint32_t lo = a->first[s], hi = a->first[s + 1];
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (a->edges[mid].hi < symbol)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < a->first[s + 1] && a->edges[lo].lo <= symbol ? a->edges[lo].to : UINT32_MAX;
}

bool automaton_accepts(const struct automaton *a, const char *p, size_t n, bool chars)
{
    uint32_t s = 0;
    while (n > 0 && s != UINT32_MAX) {
        uint32_t symbol = (uint8_t)*p;
        size_t len = 1;
        if (chars && unicode_next(p, n, &symbol, &len) != UNICODE_CHAR)
            return false;
        s = automaton_next(a, s, symbol);
        p += len;
        n -= len;
    }
    return s != UINT32_MAX && a->final[s];
}
