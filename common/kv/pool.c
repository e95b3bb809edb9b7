/* pool: references and free runs of KV blocks.
 *
 * A free run is a maximal range of free blocks. Its length stands in its first and its last block
 * (boundary tags), so that a block that comes back finds its neighbours and merges with them in
 * constant time. Runs hang in bins by length: exact below RUN_EXACT, then one bin per power of two.
 * At 10^5 blocks at most some 1,500 runs are that long, so a scan of one such bin is short, and
 * everything shorter is found by two bit scans.
 *
 * Allocation is best-fit, because contiguity is worth something here: one layer of a contiguous
 * extent is one message to the decode worker. Where no run is long enough, the longest runs are
 * used up first, which gives the fewest pieces.
 *
 * Invariants: free, in use (refs > 0), or idle (cached, refs == 0, in the eviction heap) is exactly
 * one of three for every block but the sink; n_free counts the first, prefix.n_heap the last; no
 * two runs touch. */
#include "common/kv/pool.h"

#include "common/base/assert.h"
#include "common/base/mem.h"
#include "common/kv/pool_impl.h"

static uint32_t bin_of(uint32_t run)
{
    if (run < RUN_EXACT)
        return run;
    return RUN_EXACT + (31 - (uint32_t)__builtin_clz(run)) - 6;
}

static void run_add(struct kv_pool *p, uint32_t first, uint32_t n)
{
    struct kv_block *b = &p->blocks[first];
    uint32_t bin = bin_of(n);
    b->run = p->blocks[first + n - 1].run = n;
    b->run_prev = 0;
    b->run_next = p->bins[bin];
    if (b->run_next != 0)
        p->blocks[b->run_next].run_prev = first;
    p->bins[bin] = first;
    p->bin_map[bin / 64] |= UINT64_C(1) << bin % 64;
}

static void run_remove(struct kv_pool *p, uint32_t first)
{
    struct kv_block *b = &p->blocks[first];
    uint32_t bin = bin_of(b->run);
    if (b->run_prev != 0)
        p->blocks[b->run_prev].run_next = b->run_next;
    else
        p->bins[bin] = b->run_next;
    if (b->run_next != 0)
        p->blocks[b->run_next].run_prev = b->run_prev;
    if (p->bins[bin] == 0)
        p->bin_map[bin / 64] &= ~(UINT64_C(1) << bin % 64);
}

void kv_pool_release(struct kv_pool *p, uint32_t block)
{
    struct kv_block *b = p->blocks;
    ASSERT_MSG(block > 0 && block < p->n_blocks && !b[block].free && !b[block].cached &&
                   b[block].refs == 0,
               "block %u", block);
    uint32_t first = block, n = 1;
    if (b[block - 1].free) {
        n += b[block - 1].run;
        first = block - b[block - 1].run;
        run_remove(p, first);
    }
    if (block + 1 < p->n_blocks && b[block + 1].free) {
        run_remove(p, block + 1);
        n += b[block + 1].run;
    }
    b[block].free = true;
    run_add(p, first, n);
    p->n_free++;
}

/* First bin from `bin` on that is not empty, or RUN_BINS. */
static uint32_t bin_next(const struct kv_pool *p, uint32_t bin)
{
    for (uint32_t w = bin / 64; w < 2; w++) {
        uint64_t m = p->bin_map[w];
        if (w == bin / 64)
            m &= ~UINT64_C(0) << bin % 64;
        if (m != 0)
            return w * 64 + (uint32_t)__builtin_ctzll(m);
    }
    return RUN_BINS;
}

/* The shortest run of at least n blocks, else the longest run. There is one. */
static uint32_t run_find(const struct kv_pool *p, uint32_t n)
{
    for (uint32_t bin = bin_next(p, bin_of(n)); bin < RUN_BINS; bin = bin_next(p, bin + 1)) {
        uint32_t best = 0;
        for (uint32_t i = p->bins[bin]; i != 0; i = p->blocks[i].run_next) {
            uint32_t run = p->blocks[i].run;
            if (run >= n && (best == 0 || run < p->blocks[best].run))
                best = i;
            if (run == n || (best == i && bin < RUN_EXACT))
                break;
        }
        if (best != 0)
            return best;
    }
    uint64_t m = p->bin_map[1];
    uint32_t bin =
        m != 0 ? 127 - (uint32_t)__builtin_clzll(m) : 63 - (uint32_t)__builtin_clzll(p->bin_map[0]);
    uint32_t best = p->bins[bin];
    for (uint32_t i = best; i != 0; i = p->blocks[i].run_next)
        if (p->blocks[i].run > p->blocks[best].run)
            best = i;
    return best;
}

int kv_pool_alloc(struct kv_pool *p, uint32_t n, uint32_t *blocks)
{
    if (n > kv_pool_free(p))
        return STATUS_FULL;
    while (p->n_free < n)
        kv_prefix_evict(p);
    while (n > 0) {
        uint32_t first = run_find(p, n), run = p->blocks[first].run;
        uint32_t take = run < n ? run : n;
        run_remove(p, first);
        for (uint32_t i = 0; i < take; i++) {
            struct kv_block *b = &p->blocks[first + i];
            ASSERT_MSG(b->free && b->refs == 0, "block %u", first + i);
            b->free = false;
            b->refs = 1;
            *blocks++ = first + i;
        }
        if (run > take)
            run_add(p, first + take, run - take);
        p->n_free -= take;
        n -= take;
    }
    return 0;
}

void kv_pool_get(struct kv_pool *p, uint32_t block)
{
    ASSERT_MSG(block > 0 && block < p->n_blocks && p->blocks[block].refs > 0, "block %u", block);
    p->blocks[block].refs++;
}

void kv_pool_put(struct kv_pool *p, uint32_t block)
{
    ASSERT_MSG(block > 0 && block < p->n_blocks && p->blocks[block].refs > 0, "block %u", block);
    struct kv_block *b = &p->blocks[block];
    if (--b->refs > 0)
        return;
    if (b->cached)
        kv_prefix_idle(p, block);
    else
        kv_pool_release(p, block);
}

uint32_t kv_pool_refs(const struct kv_pool *p, uint32_t block)
{
    ASSERT_MSG(block < p->n_blocks, "block %u", block);
    return p->blocks[block].refs;
}

uint32_t kv_pool_size(const struct kv_pool *p)
{
    return p->n_blocks - 1;
}

uint32_t kv_pool_free(const struct kv_pool *p)
{
    return p->n_free + p->prefix.n_heap;
}

uint32_t kv_pool_block_size(const struct kv_pool *p)
{
    return p->block_size;
}

int kv_pool_create(uint32_t n_blocks, uint32_t block_size, bool prefix_cache, struct kv_pool **out)
{
    if (n_blocks < 2 || n_blocks > INT32_MAX || block_size == 0)
        return STATUS_INVALID;
    struct kv_pool *p = mem_array(1, sizeof *p);
    if (p == NULL)
        return STATUS_NOMEM;
    p->n_blocks = n_blocks;
    p->block_size = block_size;
    p->blocks = mem_array(n_blocks, sizeof *p->blocks);
    if (p->blocks == NULL || kv_prefix_init(p, prefix_cache) != 0) {
        kv_pool_destroy(p);
        return STATUS_NOMEM;
    }
    for (uint32_t i = 1; i < n_blocks; i++)
        p->blocks[i].free = true;
    run_add(p, 1, n_blocks - 1);
    p->n_free = n_blocks - 1;
    *out = p;
    return 0;
}

void kv_pool_destroy(struct kv_pool *p)
{
    if (p == NULL)
        return;
    kv_prefix_fini(p);
    free(p->blocks);
    free(p);
}
