/* prefix: which blocks hold the KV of which token prefixes.
 *
 * Cached blocks form a forest: a block's place is (parent block, its token ids), a block without
 * parent is the first of a prompt under one salt. The salts themselves are kept, byte for byte.
 * The table finds a block by a keyed 128-bit hash over (parent's hash, number of ids, ids), where
 * the parent's hash of a first block is the hash of the salt; but the hash only finds: a hit
 * compares hash, parent (or salt) and ids, and as the parent was compared before, whole prefixes
 * are equal. Two tenants with different salts therefore never share, whatever the hash does.
 *
 * Idle blocks (cached, used by nobody) sit in a heap. Leaves go first, the longest unused first;
 * an inner block goes after all leaves, so a prefix shrinks from its end and never loses its
 * middle. An inner block can be all that is left: two sequences computed the same prompt at the
 * same time, the first one's blocks were cached, the second one's continuation hangs below them
 * and is still in use. Such a block is evicted with everything below it: what is in use there
 * stays with its users and is merely forgotten.
 *
 * Invariants: parents of cached blocks are cached; heap == exactly the cached blocks with no
 * references; a block's tokens do not change while it is cached. */
#include <string.h>

#include "common/base/assert.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/kv/pool_impl.h"

struct kv_salt {
    struct kv_salt *next;
    struct hash128 hash;
    uint32_t child; /* first block of the prompts under this salt; never 0 */
    size_t n;
    unsigned char bytes[];
};

int kv_prefix_init(struct kv_pool *p, bool on)
{
    struct kv_prefix *x = &p->prefix;
    x->on = on;
    if (!on)
        return 0;
    uint32_t n = 16;
    while (n < p->n_blocks)
        n *= 2;
    size_t tokens;
    if (!mem_mul(p->n_blocks, p->block_size, &tokens))
        return STATUS_NOMEM;
    x->key = rng_u64();
    x->mask = n - 1;
    x->buckets = mem_array(n, sizeof *x->buckets);
    x->tokens = mem_array(tokens, sizeof *x->tokens);
    x->heap = mem_array(p->n_blocks, sizeof *x->heap);
    x->salts = mem_array(n, sizeof *x->salts);
    if (x->buckets == NULL || x->tokens == NULL || x->heap == NULL || x->salts == NULL)
        return STATUS_NOMEM;
    return 0;
}

void kv_prefix_fini(struct kv_pool *p)
{
    struct kv_prefix *x = &p->prefix;
    for (uint32_t i = 0; x->salts != NULL && i <= x->mask; i++) {
        while (x->salts[i] != NULL) {
            struct kv_salt *s = x->salts[i];
            x->salts[i] = s->next;
            free(s);
        }
    }
    free(x->salts);
    free(x->buckets);
    free(x->tokens);
    free(x->heap);
}

/* The eviction heap. */

static bool evict_before(const struct kv_pool *p, uint32_t a, uint32_t b)
{
    const struct kv_block *x = &p->blocks[a], *y = &p->blocks[b];
    bool inner_x = x->child != 0, inner_y = y->child != 0;
    return inner_x != inner_y ? inner_y : x->used < y->used;
}

static void heap_set(struct kv_pool *p, uint32_t at, uint32_t block)
{
    p->prefix.heap[at] = block;
    p->blocks[block].heap = at + 1;
}

/* Moves the block at `at` to where it belongs. */
static void heap_fix(struct kv_pool *p, uint32_t at)
{
    uint32_t *h = p->prefix.heap, n = p->prefix.n_heap, block = h[at];
    while (at > 0 && evict_before(p, block, h[(at - 1) / 2])) {
        heap_set(p, at, h[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (;;) {
        uint32_t c = 2 * at + 1;
        if (c + 1 < n && evict_before(p, h[c + 1], h[c]))
            c++;
        if (c >= n || !evict_before(p, h[c], block))
            break;
        heap_set(p, at, h[c]);
        at = c;
    }
    heap_set(p, at, block);
}

static void heap_remove(struct kv_pool *p, uint32_t block)
{
    uint32_t at = p->blocks[block].heap - 1;
    uint32_t last = p->prefix.heap[--p->prefix.n_heap];
    p->blocks[block].heap = 0;
    if (last == block)
        return;
    heap_set(p, at, last);
    heap_fix(p, at);
}

void kv_prefix_idle(struct kv_pool *p, uint32_t block)
{
    struct kv_block *b = &p->blocks[block];
    ASSERT_MSG(b->cached && b->refs == 0 && b->heap == 0, "block %u", block);
    b->used = ++p->prefix.now;
    heap_set(p, p->prefix.n_heap++, block);
    heap_fix(p, p->prefix.n_heap - 1);
}

/* The tree and the table. */

static struct hash128 salt_hash(const struct kv_pool *p, const void *salt, size_t n)
{
    return hash128(n > 0 ? salt : "", n, ~p->prefix.key);
}

static struct kv_salt *salt_find(const struct kv_pool *p, const void *salt, size_t n)
{
    struct hash128 h = salt_hash(p, salt, n);
    for (struct kv_salt *s = p->prefix.salts[h.lo & p->prefix.mask]; s != NULL; s = s->next)
        if (s->hash.lo == h.lo && s->hash.hi == h.hi && s->n == n &&
            (n == 0 || memcmp(s->bytes, salt, n) == 0))
            return s;
    return NULL;
}

static struct kv_salt *salt_add(struct kv_pool *p, const void *salt, size_t n)
{
    size_t bytes;
    struct kv_salt *s = mem_add(sizeof *s, n, &bytes) ? mem_array(1, bytes) : NULL;
    if (s == NULL)
        return NULL;
    s->hash = salt_hash(p, salt, n);
    s->n = n;
    if (n > 0)
        memcpy(s->bytes, salt, n);
    struct kv_salt **bucket = &p->prefix.salts[s->hash.lo & p->prefix.mask];
    s->next = *bucket;
    *bucket = s;
    return s;
}

static void salt_drop(struct kv_pool *p, struct kv_salt *salt)
{
    struct kv_salt **s = &p->prefix.salts[salt->hash.lo & p->prefix.mask];
    while (*s != salt)
        s = &(*s)->next;
    *s = salt->next;
    free(salt);
}

static uint32_t *first_child(struct kv_pool *p, uint32_t parent, struct kv_salt *salt)
{
    return parent != 0 ? &p->blocks[parent].child : &salt->child;
}

/* Hash of the block that follows `parent` (0: the first one under the salt) with these ids. Every
 * field has a fixed width and the number of ids is among them: nothing can be read two ways. */
static struct hash128 block_hash(const struct kv_pool *p, uint32_t parent,
                                 const struct kv_salt *salt, const int32_t *tokens)
{
    struct hash128 up = parent != 0 ? p->blocks[parent].hash : salt->hash;
    struct hash128 ids = hash128(tokens, p->block_size * sizeof *tokens, p->prefix.key);
    uint64_t fields[6] = {parent != 0, up.lo, up.hi, p->block_size, ids.lo, ids.hi};
    return hash128(fields, sizeof fields, p->prefix.key);
}

static int32_t *block_tokens(const struct kv_pool *p, uint32_t block)
{
    return p->prefix.tokens + (size_t)block * p->block_size;
}

static uint32_t block_find(const struct kv_pool *p, uint32_t parent, const struct kv_salt *salt,
                           const int32_t *tokens, struct hash128 h)
{
    for (uint32_t i = p->prefix.buckets[h.lo & p->prefix.mask]; i != 0; i = p->blocks[i].chain) {
        const struct kv_block *b = &p->blocks[i];
        if (b->hash.lo == h.lo && b->hash.hi == h.hi && b->parent == parent &&
            (parent != 0 || b->salt == salt) &&
            memcmp(block_tokens(p, i), tokens, p->block_size * sizeof *tokens) == 0)
            return i;
    }
    return 0;
}

static void block_link(struct kv_pool *p, uint32_t block, uint32_t parent, struct kv_salt *salt,
                       const int32_t *tokens, struct hash128 h)
{
    struct kv_block *b = &p->blocks[block];
    ASSERT_MSG(b->refs > 0 && !b->cached, "block %u", block);
    uint32_t *first = first_child(p, parent, salt);
    b->cached = true;
    b->hash = h;
    b->parent = parent;
    b->salt = parent == 0 ? salt : NULL;
    b->child = 0;
    b->sibling_prev = 0;
    b->sibling_next = *first;
    if (*first != 0)
        p->blocks[*first].sibling_prev = block;
    *first = block;
    if (parent != 0 && b->sibling_next == 0 && p->blocks[parent].heap != 0)
        heap_fix(p, p->blocks[parent].heap - 1); /* it became an inner block */
    b->chain = p->prefix.buckets[h.lo & p->prefix.mask];
    p->prefix.buckets[h.lo & p->prefix.mask] = block;
    memcpy(block_tokens(p, block), tokens, p->block_size * sizeof *tokens);
    p->prefix.stats.inserted++;
    p->prefix.stats.cached_blocks++;
}

/* Forgets a leaf; it joins the free runs when nobody uses it. */
static void block_unlink(struct kv_pool *p, uint32_t block)
{
    struct kv_block *b = &p->blocks[block];
    ASSERT_MSG(b->cached && b->child == 0, "block %u", block);
    uint32_t *at = &p->prefix.buckets[b->hash.lo & p->prefix.mask];
    while (*at != block)
        at = &p->blocks[*at].chain;
    *at = b->chain;

    uint32_t *first = first_child(p, b->parent, b->salt);
    if (b->sibling_prev != 0)
        p->blocks[b->sibling_prev].sibling_next = b->sibling_next;
    else
        *first = b->sibling_next;
    if (b->sibling_next != 0)
        p->blocks[b->sibling_next].sibling_prev = b->sibling_prev;
    if (*first == 0) {
        if (b->parent == 0)
            salt_drop(p, b->salt);
        else if (p->blocks[b->parent].heap != 0)
            heap_fix(p, p->blocks[b->parent].heap - 1); /* it became a leaf */
    }
    b->cached = false;
    b->salt = NULL;
    p->prefix.stats.cached_blocks--;
    if (b->refs == 0) {
        heap_remove(p, block);
        p->prefix.stats.evicted++;
        kv_pool_release(p, block);
    }
}

void kv_prefix_evict(struct kv_pool *p)
{
    ASSERT(p->prefix.n_heap > 0);
    uint32_t top = p->prefix.heap[0], at = top;
    for (;;) { /* from the leaves below it up to it */
        while (p->blocks[at].child != 0)
            at = p->blocks[at].child;
        uint32_t parent = p->blocks[at].parent;
        block_unlink(p, at);
        if (at == top)
            return;
        at = parent;
    }
}

uint32_t kv_prefix_lookup(struct kv_pool *p, const void *salt, size_t n_salt, const int32_t *tokens,
                          size_t n_tokens, uint32_t max_blocks, uint32_t *blocks)
{
    if (!p->prefix.on || n_salt > KV_SALT_MAX)
        return 0;
    p->prefix.stats.lookups++;
    if (max_blocks > n_tokens / p->block_size)
        max_blocks = (uint32_t)(n_tokens / p->block_size);
    struct kv_salt *s = salt_find(p, salt, n_salt);
    uint32_t n = 0, parent = 0;
    for (; s != NULL && n < max_blocks; n++) {
        struct hash128 h = block_hash(p, parent, s, tokens);
        uint32_t block = block_find(p, parent, s, tokens, h);
        if (block == 0)
            break;
        if (p->blocks[block].refs++ == 0)
            heap_remove(p, block);
        blocks[n] = parent = block;
        tokens += p->block_size;
    }
    p->prefix.stats.hit_blocks += n;
    return n;
}

void kv_prefix_insert(struct kv_pool *p, const void *salt, size_t n_salt, const int32_t *tokens,
                      size_t n_tokens, const uint32_t *blocks)
{
    size_t n = n_tokens / p->block_size;
    if (!p->prefix.on || n_salt > KV_SALT_MAX || n == 0)
        return;
    struct kv_salt *s = salt_find(p, salt, n_salt);
    if (s == NULL && (s = salt_add(p, salt, n_salt)) == NULL)
        return; /* out of memory: not remembered, nothing else */
    uint32_t parent = 0;
    for (size_t i = 0; i < n; i++, tokens += p->block_size) {
        struct hash128 h = block_hash(p, parent, s, tokens);
        uint32_t block = block_find(p, parent, s, tokens, h);
        if (block == 0) {
            block = blocks[i];
            block_link(p, block, parent, s, tokens, h);
        } else if (p->blocks[block].heap != 0) {
            p->blocks[block].used = ++p->prefix.now; /* somebody computed it: it is wanted */
            heap_fix(p, p->blocks[block].heap - 1);
        }
        parent = block;
    }
}

void kv_prefix_clear(struct kv_pool *p)
{
    while (p->prefix.n_heap > 0)
        kv_prefix_evict(p);
}

struct kv_prefix_stats kv_prefix_stats(const struct kv_pool *p)
{
    return p->prefix.stats;
}
