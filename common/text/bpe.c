/* bpe: merging by rank; see bpe.h.
 *
 * The table is open addressing with linear probing at a load of at most one half; a lookup is one
 * multiplication and mostly one cache line.
 *
 * Short words (nearly all) are merged by scanning an array of the ranks of neighbours: quadratic,
 * but in a few registers and cache lines. Longer ones (a million spaces are one word) use a heap of
 * (rank, position) packed into 64 bits over a doubly linked list. Heap entries are never deleted:
 * each node knows the rank of the pair that starts at it now, and an entry that disagrees is stale.
 * An entry that agrees by chance names the same merge at the same place, so acting on it is right.
 * Every merge removes one node and adds at most two entries: at most 3n entries in all. */
#include "common/text/bpe.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/mem.h"

#define SHORT_WORD 48

struct bpe_node {
    int32_t id;
    uint32_t prev, next; /* BPE_NONE at the ends */
    uint32_t rank;       /* of merging this node with the next; BPE_NONE: they do not merge */
    int32_t merged;      /* what that merge gives */
};

static inline uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static inline uint64_t hash_of(uint64_t pair)
{
    uint64_t h = pair * 0x9e3779b97f4a7c15u;
    return h ^ h >> 32;
}

static inline size_t slot_of(const struct bpe *b, uint64_t hash)
{
    return (size_t)hash & b->mask;
}

/* The table of a large vocabulary is larger than a core's caches, the filter is not; and most pairs
 * that are looked up do not merge. */
static inline size_t filter_bit(const struct bpe *b, uint64_t hash)
{
    return (size_t)(hash * 0xff51afd7ed558ccdu >> 24) & (4 * b->mask + 3);
}

static inline bool may_be_there(const struct bpe *b, uint64_t hash)
{
    size_t bit = filter_bit(b, hash);
    return b->filter[bit / 64] >> bit % 64 & 1;
}

int bpe_init(struct bpe *b, size_t expected)
{
    if (expected > SIZE_MAX / 64)
        return STATUS_LIMIT;
    size_t size = 64;
    while (2 * size < 3 * expected)
        size *= 2;
    b->entries = mem_array(size, sizeof *b->entries);
    b->filter = mem_array(size / 16, sizeof *b->filter);
    if (!b->entries || !b->filter) {
        bpe_fini(b);
        return STATUS_NOMEM;
    }
    for (size_t i = 0; i < size; i++)
        b->entries[i].rank = BPE_NONE;
    b->mask = size - 1;
    b->n = 0;
    return STATUS_OK;
}

void bpe_fini(struct bpe *b)
{
    free(b->entries);
    free(b->filter);
    *b = (struct bpe){0};
}

/* A new pair; there is room. */
static void put(struct bpe *b, const struct bpe_entry *e)
{
    uint64_t hash = hash_of(e->pair);
    size_t slot = slot_of(b, hash), bit = filter_bit(b, hash);
    while (b->entries[slot].rank != BPE_NONE)
        slot = (slot + 1) & b->mask;
    b->entries[slot] = *e;
    b->filter[bit / 64] |= (uint64_t)1 << bit % 64;
    b->n++;
}

static int grow(struct bpe *b)
{
    struct bpe bigger;
    TRY(bpe_init(&bigger, 2 * b->n + 2));
    for (size_t i = 0; i <= b->mask; i++) {
        if (b->entries[i].rank != BPE_NONE)
            put(&bigger, &b->entries[i]);
    }
    bpe_fini(b);
    *b = bigger;
    return STATUS_OK;
}

/* The entry of the pair, or NULL. */
static inline const struct bpe_entry *look(const struct bpe *b, uint64_t pair)
{
    uint64_t hash = hash_of(pair);
    if (!may_be_there(b, hash))
        return NULL;
    for (size_t slot = slot_of(b, hash);; slot = (slot + 1) & b->mask) {
        const struct bpe_entry *e = &b->entries[slot];
        if (e->rank == BPE_NONE)
            return NULL;
        if (e->pair == pair)
            return e;
    }
}

int bpe_add(struct bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t id)
{
    ASSERT(rank != BPE_NONE);
    if (3 * (b->n + 1) > 2 * (b->mask + 1))
        TRY(grow(b));
    struct bpe_entry e = {.pair = pair_of(left, right), .rank = rank, .id = id};
    if (!look(b, e.pair))
        put(b, &e);
    return STATUS_OK;
}

/* The rank of merging the two, and in *id what they become; BPE_NONE when they do not merge. */
static inline uint32_t find(const struct bpe *b, int32_t left, int32_t right, int32_t *id)
{
    const struct bpe_entry *e = look(b, pair_of(left, right));
    *id = e ? e->id : -1;
    return e ? e->rank : BPE_NONE;
}

static size_t merge_short(const struct bpe *b, int32_t *ids, size_t n)
{
    uint32_t rank[SHORT_WORD];
    int32_t merged[SHORT_WORD];
    for (size_t i = 0; i + 1 < n; i++)
        rank[i] = find(b, ids[i], ids[i + 1], &merged[i]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best])
                best = i;
        if (rank[best] == BPE_NONE)
            break;
        ids[best] = merged[best];
        n--;
        size_t tail = n - best - 1;
        memmove(ids + best + 1, ids + best + 2, tail * sizeof *ids);
        memmove(rank + best, rank + best + 1, tail * sizeof *rank);
        memmove(merged + best, merged + best + 1, tail * sizeof *merged);
        if (best + 1 < n)
            rank[best] = find(b, ids[best], ids[best + 1], &merged[best]);
        if (best > 0)
            rank[best - 1] = find(b, ids[best - 1], ids[best], &merged[best - 1]);
    }
    return n;
}

static void sift_down(uint64_t *heap, size_t n, size_t at)
{
    uint64_t value = heap[at];
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= n)
            break;
        if (child + 1 < n && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= value)
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = value;
}

static void heap_push(uint64_t *heap, size_t *n, uint64_t value)
{
    size_t at = (*n)++;
    while (at > 0 && heap[(at - 1) / 2] > value) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = value;
}

static int work_reserve(struct bpe_work *w, size_t n)
{
    if (n > w->n_nodes) {
        size_t want = n + n / 2;
        struct bpe_node *nodes = mem_resize(w->nodes, want, sizeof *nodes);
        if (!nodes)
            return STATUS_NOMEM;
        w->nodes = nodes;
        w->n_nodes = want;
    }
    if (3 * n > w->n_heap) {
        size_t want = 3 * n + n / 2;
        uint64_t *heap = mem_resize(w->heap, want, sizeof *heap);
        if (!heap)
            return STATUS_NOMEM;
        w->heap = heap;
        w->n_heap = want;
    }
    return STATUS_OK;
}

void bpe_work_fini(struct bpe_work *w)
{
    free(w->nodes);
    free(w->heap);
    *w = (struct bpe_work){0};
}

static inline uint64_t heap_entry(uint32_t rank, uint32_t at)
{
    return (uint64_t)rank << 32 | at;
}

/* Looks up the pair that starts at node i and puts it on the heap when it merges. */
static void offer(const struct bpe *b, struct bpe_node *nodes, uint32_t i, uint64_t *heap,
                  size_t *n_heap)
{
    struct bpe_node *node = &nodes[i];
    node->rank = BPE_NONE;
    if (node->next == BPE_NONE)
        return;
    node->rank = find(b, node->id, nodes[node->next].id, &node->merged);
    if (node->rank != BPE_NONE)
        heap_push(heap, n_heap, heap_entry(node->rank, i));
}

static void merge_long(const struct bpe *b, struct bpe_work *w, int32_t *ids, size_t *n)
{
    struct bpe_node *nodes = w->nodes;
    uint32_t last = (uint32_t)*n - 1;
    size_t n_heap = 0;
    for (uint32_t i = 0; i <= last; i++) {
        nodes[i] = (struct bpe_node){.id = ids[i],
                                     .prev = i ? i - 1 : BPE_NONE,
                                     .next = i < last ? i + 1 : BPE_NONE,
                                     .rank = BPE_NONE};
        if (i == last)
            break;
        nodes[i].rank = find(b, ids[i], ids[i + 1], &nodes[i].merged);
        if (nodes[i].rank != BPE_NONE)
            w->heap[n_heap++] = heap_entry(nodes[i].rank, i);
    }
    for (size_t i = n_heap / 2; i-- > 0;)
        sift_down(w->heap, n_heap, i);
    while (n_heap) {
        uint64_t top = w->heap[0];
        w->heap[0] = w->heap[--n_heap];
        if (n_heap)
            sift_down(w->heap, n_heap, 0);
        uint32_t i = (uint32_t)top;
        struct bpe_node *node = &nodes[i];
        if (node->rank != (uint32_t)(top >> 32))
            continue;
        struct bpe_node *gone = &nodes[node->next];
        node->id = node->merged;
        node->next = gone->next;
        if (node->next != BPE_NONE)
            nodes[node->next].prev = i;
        gone->rank = BPE_NONE;
        offer(b, nodes, i, w->heap, &n_heap);
        if (node->prev != BPE_NONE)
            offer(b, nodes, node->prev, w->heap, &n_heap);
    }
    size_t k = 0;
    for (uint32_t i = 0; i != BPE_NONE; i = nodes[i].next)
        ids[k++] = nodes[i].id;
    *n = k;
}

int bpe_merge(const struct bpe *b, struct bpe_work *w, int32_t *ids, size_t *n)
{
    if (*n < 2)
        return STATUS_OK;
    if (*n <= SHORT_WORD) {
        *n = merge_short(b, ids, *n);
        return STATUS_OK;
    }
    if (*n >= UINT32_MAX / 4)
        return STATUS_LIMIT;
    TRY(work_reserve(w, *n));
    merge_long(b, w, ids, n);
    return STATUS_OK;
}
