/* tokenmask: states, and whole masks.
 *
 * A mask is first looked up by the configuration. Else nodes that allow few bytes (a key, a
 * bracket) are walked through the trie together, which ends at once where they do; the others,
 * inside strings, bring their local result. The automaton's store grows with what is generated;
 * when it has become large it is made anew around the states that are in use. */
#include "common/text/tokenmask.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/text/tokenmask_impl.h"

#define MASKS_BYTES ((size_t)4 << 20)  /* of whole masks kept, for one grammar */
#define STORE_BYTES ((size_t)24 << 20) /* of configurations and transitions kept */
#define WORK        6000000u           /* of the automaton, for one mask or token */
#define VISITS      30000000u          /* of trie nodes, for one mask */

int tokenmask_vocab_create(const struct tokenizer *tok, struct tokenmask_vocab **out)
{
    struct tokenmask_vocab *v = mem_array(1, sizeof *v);
    if (!v)
        return STATUS_NOMEM;
    int rc = tokenmask_trie_init(&v->trie, tok);
    if (rc == STATUS_OK) {
        v->n_words = (v->trie.n_ids + 31) / 32;
        v->walk = mem_array((size_t)v->trie.depth_max + 1, sizeof *v->walk);
        rc = v->walk ? STATUS_OK : STATUS_NOMEM;
    }
    if (rc == STATUS_OK)
        *out = v;
    else
        tokenmask_vocab_destroy(v);
    return rc;
}

void tokenmask_vocab_destroy(struct tokenmask_vocab *v)
{
    if (!v)
        return;
    tokenmask_locals_fini(v);
    tokenmask_trie_fini(&v->trie);
    free(v->walk);
    free(v);
}

size_t tokenmask_vocab_bytes(const struct tokenmask_vocab *v)
{
    return sizeof *v + tokenmask_trie_bytes(&v->trie) + v->local_bytes;
}

struct token_text tokenmask_vocab_token(const struct tokenmask_vocab *v, int32_t id)
{
    bool known = id >= 0 && (uint32_t)id < v->trie.n_ids;
    return known ? v->trie.ids[id] : (struct token_text){"", 0};
}

int tokenmask_create(struct tokenmask_vocab *v, struct grammar *g, struct tokenmask **out)
{
    struct tokenmask *t = mem_array(1, sizeof *t);
    if (!t)
        return STATUS_NOMEM;
    int rc = machine_init(&t->machine, g);
    if (rc != STATUS_OK) {
        free(t);
        return rc;
    }
    t->vocab = v;
    t->grammar = grammar_get(g);
    list_init(&t->states);
    *out = t;
    return STATUS_OK;
}

static void drop_masks(struct tokenmask *t, uint32_t keep)
{
    while (t->n_cached > keep) {
        struct tokenmask_cached *c = t->cached; /* used longest ago */
        HASH_DELETE(hh, t->cached, c);
        free(c);
        t->n_cached--;
    }
}

void tokenmask_destroy(struct tokenmask *t)
{
    if (!t)
        return;
    ASSERT(list_empty(&t->states));
    drop_masks(t, 0);
    machine_fini(&t->machine);
    grammar_put(t->grammar);
    free(t);
}

static size_t mask_bytes(const struct tokenmask *t)
{
    return sizeof(struct tokenmask_cached) + t->vocab->n_words * sizeof(uint32_t);
}

size_t tokenmask_bytes(const struct tokenmask *t)
{
    return sizeof *t + machine_bytes(&t->machine) + grammar_bytes(t->grammar) +
           t->n_cached * mask_bytes(t);
}

/* ---- states ---- */

void tokenmask_state_init(struct tokenmask_state *s, struct tokenmask *t)
{
    s->mask = t;
    s->config = t->machine.start;
    list_push_back(&t->states, &s->node);
}

void tokenmask_state_copy(struct tokenmask_state *to, const struct tokenmask_state *from)
{
    to->mask = from->mask;
    to->config = from->config;
    list_push_back(&from->mask->states, &to->node);
}

void tokenmask_state_fini(struct tokenmask_state *s)
{
    if (s->mask)
        list_remove(&s->node);
    s->mask = NULL;
}

/* Makes the store anew when it is large. Every state keeps its place. */
static int make_room(struct tokenmask *t)
{
    uint32_t n = 0;
    t->machine.work = WORK;
    t->machine.failed = false;
    t->visits = VISITS;
    if (machine_bytes(&t->machine) < STORE_BYTES)
        return STATUS_OK;
    LIST_FOR (it, &t->states)
        n++;
    uint32_t *keep = mem_array((size_t)n + 1, sizeof *keep);
    if (!keep)
        return STATUS_NOMEM;
    n = 0;
    LIST_FOR (it, &t->states)
        keep[n++] = container_of(it, struct tokenmask_state, node)->config;
    drop_masks(t, 0);
    int rc = machine_forget(&t->machine, keep, n);
    n = 0;
    LIST_FOR (it, &t->states)
        container_of(it, struct tokenmask_state, node)->config =
            rc == STATUS_OK ? keep[n++] : MACHINE_EMPTY;
    free(keep);
    t->machine.work = WORK;
    return rc;
}

int tokenmask_advance(struct tokenmask_state *s, int32_t id)
{
    struct tokenmask *t = s->mask;
    const struct tokenmask_trie *trie = &t->vocab->trie;
    TRY(make_room(t));
    if (id < 0 || (uint32_t)id >= trie->n_ids || trie->ids[id].n == 0)
        return STATUS_INVALID;
    uint32_t c = machine_step_bytes(&t->machine, s->config, trie->ids[id].p, trie->ids[id].n);
    if (t->machine.failed)
        return STATUS_LIMIT;
    if (c == MACHINE_EMPTY)
        return STATUS_INVALID;
    s->config = c;
    return STATUS_OK;
}

bool tokenmask_done(const struct tokenmask_state *s)
{
    return machine_done(&s->mask->machine, s->config);
}

bool tokenmask_ended(const struct tokenmask_state *s)
{
    return machine_ended(&s->mask->machine, s->config);
}

/* ---- masks ---- */

void tokenmask_walk(struct tokenmask *t, uint32_t node, uint32_t c, uint32_t *bits)
{
    const struct tokenmask_trie *trie = &t->vocab->trie;
    struct machine *m = &t->machine;
    const uint8_t *class = m->g->class;
    uint32_t *walk = t->vocab->walk, end = trie->next[node];
    walk[trie->depth[node]] = c;
    tokenmask_set_tokens(trie, node, bits);
    uint64_t visits = 0;
    for (uint32_t i = node + 1; i < end; visits++) {
        uint32_t d = trie->depth[i];
        uint32_t to = machine_step(m, walk[d - 1], class[trie->byte[i]]);
        if (to == MACHINE_EMPTY) {
            i = trie->next[i];
            continue;
        }
        walk[d] = to;
        tokenmask_set_tokens(trie, i, bits);
        i++;
    }
    if (t->visits < visits)
        m->failed = true;
    else
        t->visits -= visits;
}

static void make_mask(struct tokenmask *t, uint32_t config, uint32_t *bits)
{
    struct machine *m = &t->machine;
    uint32_t narrow = MACHINE_EMPTY;
    for (uint32_t i = 0; i < m->configs[config].n && !m->failed; i++) {
        struct machine_entry e = m->entries[m->configs[config].first + i];
        if (e.node < GRAMMAR_NODE_FIRST)
            continue;
        bool wide = m->g->nodes[e.node].wide && tokenmask_local_apply(t, &e, bits);
        if (!wide)
            narrow = machine_union(m, narrow, machine_push(m, e.node, e.count, e.below));
    }
    if (!m->failed && narrow != MACHINE_EMPTY)
        tokenmask_walk(t, 0, narrow, bits);
}

/* The mask of the state without its stops. */
static int find_mask(struct tokenmask *t, uint32_t config, struct tokenmask_cached **out)
{
    struct tokenmask_cached *c = NULL;
    HASH_FIND(hh, t->cached, &config, sizeof config, c);
    if (c) {
        HASH_DELETE(hh, t->cached, c);
        t->n_cached--;
    } else {
        drop_masks(t, (uint32_t)(MASKS_BYTES / mask_bytes(t)));
        c = calloc(1, mask_bytes(t));
        if (!c)
            return STATUS_NOMEM;
        c->config = config;
        make_mask(t, config, c->bits);
        if (t->machine.failed) {
            free(c);
            return STATUS_LIMIT;
        }
    }
    HASH_ADD(hh, t->cached, config, sizeof c->config, c);
    if (!c->hh.tbl) {
        free(c);
        return STATUS_NOMEM;
    }
    t->n_cached++;
    *out = c;
    return STATUS_OK;
}

int tokenmask_fill(struct tokenmask_state *s, const int32_t *stops, size_t n_stops, uint32_t *out,
                   size_t n_words)
{
    struct tokenmask *t = s->mask;
    struct tokenmask_cached *c;
    TRY(make_room(t));
    TRY(find_mask(t, s->config, &c));
    size_t n = n_words < t->vocab->n_words ? n_words : t->vocab->n_words;
    memcpy(out, c->bits, n * sizeof *out);
    memset(out + n, 0, (n_words - n) * sizeof *out);
    bool done = tokenmask_done(s);
    for (size_t i = 0; i < n_stops; i++) {
        if (stops[i] < 0 || (size_t)stops[i] / 32 >= n_words)
            continue;
        if (done)
            tokenmask_set_bit(out, stops[i]);
        else /* a stop id with visible text would end it where it is not complete */
            out[stops[i] / 32] &= ~(1u << (stops[i] % 32));
    }
    return STATUS_OK;
}
