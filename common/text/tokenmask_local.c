/* tokenmask_local: the part of a mask that does not depend on what lies below a node.
 *
 * Inside a JSON string almost every token is possible, and what comes after the string matters for
 * the few that contain its closing quote only. So a node that allows many tokens is walked once
 * with BASE below it. What the walk finds is good for every configuration with that node on top:
 *   - tokens that stay inside the node's rule, or end exactly where it does;
 *   - the children ("kids") of the trie's nodes at which the rule ended: the rest of such a token
 *     is walked with what really lies below.
 * Results are kept by the node's key, which says what its rule may still derive; so all strings of
 * all grammars of a vocabulary share one.
 *
 * A node in the body of a counted loop is walked with a relative count, and everything found is
 * sorted by the number of rounds that it takes. With c rounds begun of min..max, then
 *   - inside[j]: j more rounds were begun, allowed when c + j <= max;
 *   - exited[i]: the loop was left after i more, allowed when min <= c + i <= max. A token that
 *     could also begin round i + 1 is in `exited`, the others are in `exited_only`; of the former
 *     only i = max - c adds anything to the tokens that are inside.
 * One walk so serves every maxLength and every position in the string. The walk goes on into the
 * rule that called the loop: in a string every character could be the last one, and only the quote
 * that must follow keeps the number of kids small. */
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/text/tokenmask_impl.h"

#define LOCALS_MAX  ((size_t)48 << 20) /* bytes of all results of a vocabulary */
#define LOCAL_DEPTH 256                /* frames */
#define LOOKS_MAX   10000
#define TAGS_MAX    6

/* Where the stacks of a configuration end: in the loop, behind it, or at the rule's end. */
struct tags {
    bool known;
    uint8_t n_inside, n_exited, n_ended;
    uint16_t inside[TAGS_MAX], exited[TAGS_MAX], ended[TAGS_MAX]; /* rounds */
};

enum family { INSIDE, EXITED, EXITED_ONLY };
struct finding {
    int32_t token;
    uint16_t rounds;
    uint8_t family;
};

struct analysis {
    struct tokenmask *t;
    uint32_t loop; /* node, or UINT32_MAX */
    struct tags *tags;
    uint32_t n_tags;
    struct finding *found;
    uint32_t n_found, cap_found;
    struct tokenmask_kid *kids;
    uint32_t n_kids, cap_kids;
    uint32_t looks; /* at configurations, for one set of tags */
    bool failed;
};

static void *room(struct analysis *a, void *p, uint32_t n, uint32_t *cap, size_t size)
{
    if (n < *cap)
        return p;
    uint32_t to = *cap ? *cap * 2 : 256;
    void *q = mem_resize(p, to, size);
    if (!q) {
        a->failed = true;
        return p;
    }
    *cap = to;
    return q;
}

static void add_tag(struct analysis *a, uint16_t *list, uint8_t *n, uint32_t rounds)
{
    for (uint8_t i = 0; i < *n; i++) {
        if (list[i] == rounds)
            return;
    }
    if (*n == TAGS_MAX || rounds > UINT16_MAX)
        a->failed = true;
    else
        list[(*n)++] = (uint16_t)rounds;
}

/* top: the configuration itself, not one below. Depth: frames above BASE, at most LOCAL_DEPTH. */
static void find_tags(struct analysis *a, uint32_t config, bool top, struct tags *out)
{
    const struct machine *m = &a->t->machine;
    const struct machine_config *c = &m->configs[config];
    if (++a->looks > LOOKS_MAX)
        a->failed = true;
    for (uint32_t i = 0; i < c->n && !a->failed; i++) {
        const struct machine_entry *e = &m->entries[c->first + i];
        if (e->node == GRAMMAR_NODE_BASE && top)
            add_tag(a, out->ended, &out->n_ended, e->count);
        else if (e->node == GRAMMAR_NODE_BASE)
            add_tag(a, out->exited, &out->n_exited, e->count);
        else if (e->node == a->loop && e->count >= MACHINE_SYMBOLIC)
            add_tag(a, out->inside, &out->n_inside, e->count - MACHINE_SYMBOLIC);
        else
            find_tags(a, e->below, false, out);
    }
}

static const struct tags *tags_of(struct analysis *a, uint32_t config)
{
    static const struct tags none;
    if (config >= a->n_tags) {
        uint32_t n = a->t->machine.n_configs + 256;
        struct tags *p = mem_resize(a->tags, n, sizeof *p);
        if (!p) {
            a->failed = true;
            return &none;
        }
        memset(p + a->n_tags, 0, (n - a->n_tags) * sizeof *p);
        a->tags = p;
        a->n_tags = n;
    }
    struct tags *x = &a->tags[config];
    if (!x->known) {
        x->known = true;
        a->looks = 0;
        if (a->t->machine.configs[config].depth > LOCAL_DEPTH)
            a->failed = true;
        else
            find_tags(a, config, true, x);
    }
    return x;
}

static void add_finding(struct analysis *a, int32_t token, enum family family, uint32_t rounds)
{
    a->found = room(a, a->found, a->n_found, &a->cap_found, sizeof *a->found);
    if (!a->failed)
        a->found[a->n_found++] = (struct finding){token, (uint16_t)rounds, (uint8_t)family};
}

static void add_exit(struct analysis *a, const struct tags *x, int32_t token, uint16_t rounds)
{
    bool goes_on = false;
    for (uint8_t i = 0; i < x->n_inside; i++)
        goes_on |= x->inside[i] == rounds + 1;
    add_finding(a, token, goes_on ? EXITED : EXITED_ONLY, rounds);
}

static void visit(struct analysis *a, uint32_t node, uint32_t config)
{
    const struct tokenmask_trie *trie = &a->t->vocab->trie;
    const struct tags *x = tags_of(a, config);
    for (int32_t id = trie->token[node]; id >= 0; id = trie->same[id]) {
        uint16_t least = UINT16_MAX;
        for (uint8_t i = 0; i < x->n_inside; i++)
            least = x->inside[i] < least ? x->inside[i] : least;
        if (x->n_inside)
            add_finding(a, id, INSIDE, least);
        for (uint8_t i = 0; i < x->n_exited; i++)
            add_exit(a, x, id, x->exited[i]);
        for (uint8_t i = 0; i < x->n_ended; i++)
            add_exit(a, x, id, x->ended[i]);
    }
    for (uint8_t i = 0; i < x->n_ended; i++) {
        for (uint32_t k = node + 1; k < trie->next[node] && !a->failed; k = trie->next[k]) {
            a->kids = room(a, a->kids, a->n_kids, &a->cap_kids, sizeof *a->kids);
            if (!a->failed)
                a->kids[a->n_kids++] = (struct tokenmask_kid){k, x->ended[i]};
        }
    }
}

static void walk(struct analysis *a, uint32_t config)
{
    struct tokenmask_vocab *v = a->t->vocab;
    const struct tokenmask_trie *trie = &v->trie;
    struct machine *m = &a->t->machine;
    v->walk[0] = config;
    for (uint32_t i = 1; i < trie->n && !a->failed && !m->failed;) {
        uint32_t d = trie->depth[i];
        uint32_t to = machine_step(m, v->walk[d - 1], m->g->class[trie->byte[i]]);
        if (a->t->visits-- == 0) {
            m->failed = true;
            break;
        }
        if (to == MACHINE_EMPTY) {
            i = trie->next[i];
            continue;
        }
        v->walk[d] = to;
        visit(a, i, to);
        i++;
    }
}

/* ---- results ---- */

static bool make_set(struct tokenmask_set *s, const int32_t *ids, uint32_t n, size_t n_words,
                     size_t *bytes)
{
    s->n = n;
    if (n > n_words / 2) {
        s->bits = mem_array(n_words, sizeof *s->bits);
        for (uint32_t i = 0; s->bits && i < n; i++)
            tokenmask_set_bit(s->bits, ids[i]);
        *bytes += n_words * sizeof *s->bits;
        return s->bits != NULL;
    }
    s->ids = mem_array((size_t)n + 1, sizeof *s->ids);
    if (s->ids && n)
        memcpy(s->ids, ids, n * sizeof *ids);
    *bytes += n * sizeof *ids;
    return s->ids != NULL;
}

/* Sets of one family by rounds, [*n]; NULL, or sets without ids and bits, when memory is short. */
static struct tokenmask_set *make_sets(const struct analysis *a, enum family family, uint32_t *n,
                                       size_t *bytes)
{
    size_t n_words = a->t->vocab->n_words;
    bool cumulate = family == INSIDE;
    *n = 0;
    for (uint32_t i = 0; i < a->n_found; i++) {
        if (a->found[i].family == family && a->found[i].rounds >= *n)
            *n = a->found[i].rounds + 1u;
    }
    struct tokenmask_set *sets = mem_array((size_t)*n + 1, sizeof *sets);
    uint32_t *at = mem_array((size_t)*n + 2, sizeof *at); /* first token of each round, in ids */
    int32_t *ids = mem_array((size_t)a->n_found + 1, sizeof *ids);
    bool ok = sets && at && ids;
    for (uint32_t i = 0; ok && i < a->n_found; i++) {
        if (a->found[i].family == family)
            at[a->found[i].rounds + 2]++;
    }
    for (uint32_t r = 0; ok && r < *n; r++)
        at[r + 1] += at[r];
    for (uint32_t i = 0; ok && i < a->n_found; i++) {
        if (a->found[i].family == family)
            ids[at[a->found[i].rounds + 1]++] = a->found[i].token;
    }
    for (uint32_t r = 0; ok && r < *n; r++) {
        uint32_t begin = cumulate && r < TOKENMASK_ROUNDS ? 0 : at[r];
        ok = make_set(&sets[r], ids + begin, at[r + 1] - begin, n_words, bytes);
    }
    *bytes += *n * sizeof *sets;
    free(at);
    free(ids);
    return sets;
}

static bool sets_whole(const struct tokenmask_set *s, uint32_t n)
{
    for (uint32_t i = 0; s && i < n; i++) {
        if (!s[i].ids && !s[i].bits)
            return false;
    }
    return s != NULL;
}

static void sets_free(struct tokenmask_set *s, uint32_t n)
{
    for (uint32_t i = 0; s && i < n; i++) {
        free(s[i].ids);
        free(s[i].bits);
    }
    free(s);
}

static void local_free(struct tokenmask_local *l)
{
    if (!l)
        return;
    sets_free(l->inside, l->n_inside);
    sets_free(l->exited, l->n_exited);
    sets_free(l->exited_only, l->n_exited_only);
    free(l->kids);
    free(l);
}

static void sort_kids(struct analysis *a, struct tokenmask_local *l)
{
    const struct tokenmask_trie *trie = &a->t->vocab->trie;
    uint32_t at[257] = {0};
    for (uint32_t i = 0; i < a->n_kids; i++)
        l->kid_at[trie->byte[a->kids[i].node] + 1]++;
    for (int b = 0; b < 256; b++)
        l->kid_at[b + 1] += l->kid_at[b];
    memcpy(at, l->kid_at, sizeof at);
    for (uint32_t i = 0; i < a->n_kids; i++)
        l->kids[at[trie->byte[a->kids[i].node]]++] = a->kids[i];
}

static struct tokenmask_local *make_local(struct analysis *a, struct hash128 key)
{
    struct tokenmask_local *l = mem_array(1, sizeof *l);
    if (!l)
        return NULL;
    l->key = key;
    l->bytes = sizeof *l + a->n_kids * sizeof *l->kids;
    l->inside = make_sets(a, INSIDE, &l->n_inside, &l->bytes);
    l->exited = make_sets(a, EXITED, &l->n_exited, &l->bytes);
    l->exited_only = make_sets(a, EXITED_ONLY, &l->n_exited_only, &l->bytes);
    l->kids = mem_array((size_t)a->n_kids + 1, sizeof *l->kids);
    if (!sets_whole(l->inside, l->n_inside) || !sets_whole(l->exited, l->n_exited) ||
        !sets_whole(l->exited_only, l->n_exited_only) || !l->kids) {
        local_free(l);
        return NULL;
    }
    sort_kids(a, l);
    return l;
}

static void drop(struct tokenmask_vocab *v, struct tokenmask_local *l)
{
    HASH_DELETE(hh, v->locals, l);
    v->local_bytes -= l->bytes;
    local_free(l);
}

void tokenmask_locals_fini(struct tokenmask_vocab *v)
{
    while (v->locals)
        drop(v, v->locals);
}

/* The result for this key, made by a walk from `config` if need be; NULL: not to be had. */
static struct tokenmask_local *local_get(struct tokenmask *t, struct hash128 key, uint32_t config,
                                         uint32_t loop)
{
    struct tokenmask_vocab *v = t->vocab;
    struct tokenmask_local *l = NULL;
    HASH_FIND(hh, v->locals, &key, sizeof key, l);
    if (l) {
        HASH_DELETE(hh, v->locals, l); /* it goes to the end: used last */
        v->local_bytes -= l->bytes;
    } else {
        struct analysis a = {.t = t, .loop = loop};
        walk(&a, config);
        if (!a.failed && !t->machine.failed)
            l = make_local(&a, key);
        free(a.tags);
        free(a.found);
        free(a.kids);
        if (!l)
            return NULL;
    }
    HASH_ADD(hh, v->locals, key, sizeof l->key, l);
    if (!l->hh.tbl) {
        local_free(l);
        return NULL;
    }
    v->local_bytes += l->bytes;
    while (v->local_bytes > LOCALS_MAX && v->locals != l)
        drop(v, v->locals);
    return l;
}

/* ---- use ---- */

static void apply_set(const struct tokenmask_set *s, size_t n_words, uint32_t *bits)
{
    if (s->bits) {
        for (size_t i = 0; i < n_words; i++)
            bits[i] |= s->bits[i];
        return;
    }
    for (uint32_t i = 0; i < s->n; i++)
        tokenmask_set_bit(bits, s->ids[i]);
}

/* least, most: rounds that the loop must, and may, still take. back: where the rule's end leads. */
static void apply(struct tokenmask *t, const struct tokenmask_local *l, uint32_t least,
                  uint32_t most, uint32_t back, uint32_t *bits)
{
    size_t n_words = t->vocab->n_words;
    uint32_t whole = most < TOKENMASK_ROUNDS ? most : TOKENMASK_ROUNDS - 1;
    if (l->n_inside)
        apply_set(&l->inside[whole < l->n_inside ? whole : l->n_inside - 1], n_words, bits);
    for (uint32_t j = TOKENMASK_ROUNDS; j < l->n_inside && j <= most; j++)
        apply_set(&l->inside[j], n_words, bits);
    if (most < l->n_exited && most >= least)
        apply_set(&l->exited[most], n_words, bits);
    for (uint32_t i = least; i < l->n_exited_only && i <= most; i++)
        apply_set(&l->exited_only[i], n_words, bits);
    struct machine *m = &t->machine;
    for (uint32_t b = 0; b < 256 && !m->failed && back != MACHINE_EMPTY; b++) {
        if (l->kid_at[b] == l->kid_at[b + 1])
            continue;
        uint32_t to = machine_step(m, back, m->g->class[b]);
        for (uint32_t k = l->kid_at[b]; to != MACHINE_EMPTY && k < l->kid_at[b + 1]; k++) {
            if (l->kids[k].rounds >= least && l->kids[k].rounds <= most)
                tokenmask_walk(t, l->kids[k].node, to, bits);
        }
    }
}

/* One stack in a counted loop: `at` is its frame of the loop, `after` the one below. */
static bool apply_loop(struct tokenmask *t, uint32_t node, struct machine_entry at,
                       struct machine_entry after, uint32_t *bits)
{
    struct machine *m = &t->machine;
    const struct grammar_def *r = &m->g->rules[m->g->nodes[at.node].rule];
    struct hash128 parts[4] = {m->g->nodes[node].key,
                               m->g->nodes[m->g->rules[r->body].node].key,
                               m->g->nodes[after.node].key,
                               {2, 2}};
    uint32_t c = machine_push(m, GRAMMAR_NODE_BASE, 0, MACHINE_EMPTY);
    c = machine_push(m, after.node, 0, c);
    c = machine_push(m, at.node, MACHINE_SYMBOLIC, c);
    c = machine_push(m, node, 0, c);
    struct tokenmask_local *l =
        m->failed ? NULL : local_get(t, hash128(parts, sizeof parts, 0), c, at.node);
    if (!l)
        return false;
    uint32_t back =
        after.node == GRAMMAR_NODE_DONE ? MACHINE_EMPTY : machine_resume(m, after.below);
    apply(t, l, r->min > at.count ? r->min - at.count : 0,
          r->max == GRAMMAR_NO_MAX ? UINT32_MAX : r->max - at.count, back, bits);
    return true;
}

bool tokenmask_local_apply(struct tokenmask *t, const struct machine_entry *e, uint32_t *bits)
{
    struct machine *m = &t->machine;
    const struct grammar *g = m->g;
    struct machine_entry top = *e;
    uint32_t plain = MACHINE_EMPTY, rule = g->nodes[top.node].rule;
    if (m->configs[top.below].depth > GRAMMAR_DEPTH / 2)
        return false;
    for (uint32_t i = 0; i < m->configs[top.below].n && !m->failed; i++) {
        struct machine_entry at = m->entries[m->configs[top.below].first + i];
        if (!g->nodes[at.node].loop || g->rules[g->nodes[at.node].rule].body != rule ||
            !g->rules[rule].leaf) {
            plain = machine_union(m, plain, machine_push(m, at.node, at.count, at.below));
            continue;
        }
        for (uint32_t k = 0; k < m->configs[at.below].n && !m->failed; k++) {
            struct machine_entry after = m->entries[m->configs[at.below].first + k];
            if (g->nodes[after.node].loop || !apply_loop(t, top.node, at, after, bits))
                return false;
        }
    }
    if (m->failed || plain == MACHINE_EMPTY)
        return !m->failed;
    struct hash128 parts[2] = {g->nodes[top.node].key, {1, 1}};
    uint32_t c = machine_push(m, GRAMMAR_NODE_BASE, 0, MACHINE_EMPTY);
    c = machine_push(m, top.node, 0, c);
    struct tokenmask_local *l =
        m->failed ? NULL : local_get(t, hash128(parts, sizeof parts, 0), c, UINT32_MAX);
    if (!l)
        return false;
    apply(t, l, 0, 0, machine_resume(m, plain), bits);
    return true;
}
