/* fake_watch: which KV blocks may be read.
 *
 * Each block has a number of token slots that are complete: a pass that appends a token makes its
 * slot complete, a block that arrived is complete in that layer, one that is announced is not. A
 * pass over a sequence needs every block before its first row whole, and its own block up to there.
 * A copy that was enqueued towards a block but has not run makes a launch that names the block
 * wrong, even if the device would have happened to be in time: a row joins only a pass that was
 * launched after its receive had ended on the CPU.
 *
 * Passes of all layers advance together, so one count per block serves them, beside a bit for each
 * layer while a block is being received. */
#include <stdlib.h>
#include <string.h>

#include "tests/cuda_emu/fake_internal.h"

#define LAYERS_MAX 64

static struct {
    const uint8_t *base;
    uint32_t n_layers, n_blocks, block_size;
    size_t block_bytes;
    uint32_t *complete; /* [n_blocks] token slots */
    uint64_t *missing;  /* [n_blocks] bit l: layer l is announced and has not arrived */
    uint32_t *copies;   /* [n_blocks] enqueued, not run */
} pool;

static void kv_pool(const void *base, uint32_t n_layers, uint32_t n_blocks, size_t block_bytes,
                    uint32_t block_size)
{
    free(pool.complete);
    free(pool.missing);
    free(pool.copies);
    if (n_layers > LAYERS_MAX)
        fake_die("watch: more than %d layers", LAYERS_MAX);
    pool.base = base;
    pool.n_layers = n_layers;
    pool.n_blocks = n_blocks;
    pool.block_bytes = block_bytes;
    pool.block_size = block_size;
    pool.complete = calloc(n_blocks, sizeof *pool.complete);
    pool.missing = calloc(n_blocks, sizeof *pool.missing);
    pool.copies = calloc(n_blocks, sizeof *pool.copies);
    if (!pool.complete || !pool.missing || !pool.copies)
        fake_die("out of host memory");
}

static void check_block(uint32_t layer, uint32_t block)
{
    if (layer >= pool.n_layers || block == 0 || block >= pool.n_blocks)
        fake_die("watch: layer %u, block %u of %u", layer, block, pool.n_blocks);
}

static void kv_incoming(uint32_t layer, uint32_t block)
{
    check_block(layer, block);
    pool.missing[block] |= 1ull << layer;
    pool.complete[block] = 0;
}

static void kv_arrived(uint32_t layer, uint32_t block)
{
    check_block(layer, block);
    pool.missing[block] &= ~(1ull << layer);
    if (!pool.missing[block])
        pool.complete[block] = pool.block_size;
}

static void step(uint32_t bucket, uint32_t n_rows)
{
    if (n_rows == 0 || n_rows > bucket)
        fake_die("wrong bucket: %u rows in a pass for %u", n_rows, bucket);
}

static void sequence(uint32_t position, uint32_t n, const uint32_t *blocks)
{
    uint32_t bs = pool.block_size;
    for (uint32_t b = 0; b <= (position + n - 1) / bs; b++) {
        uint32_t id = blocks[b], at = b * bs;
        check_block(0, id);
        if (pool.copies[id])
            fake_die("launched before the KV of block %u was complete on the CPU", id);
        if (pool.missing[id])
            fake_die("launched with KV that is not complete: block %u is being received", id);
        uint32_t want = position <= at ? 0 : position - at < bs ? position - at : bs;
        if (pool.complete[id] < want)
            fake_die("launched with KV that is not complete: block %u has %u of %u slots", id,
                     pool.complete[id], want);
        if (position + n > at && position < at + bs) {
            uint32_t end = position + n - at;
            pool.complete[id] = end < bs ? end : bs;
        }
    }
}

void fake_watch_copy(const void *to, size_t n, int change)
{
    size_t all = (size_t)pool.n_layers * pool.n_blocks * pool.block_bytes;
    const uint8_t *p = to;
    if (!pool.base || p < pool.base || p >= pool.base + all)
        return;
    size_t first = (size_t)(p - pool.base) / pool.block_bytes;
    size_t last = ((size_t)(p - pool.base) + n - 1) / pool.block_bytes;
    for (size_t i = first; i <= last; i++)
        pool.copies[i % pool.n_blocks] += (uint32_t)change;
}

void fake_watch_freed(const void *p)
{
    if (p == pool.base)
        pool.base = NULL;
}

const struct gpu_watch fake_watch = {
    .kv_pool = kv_pool,
    .kv_incoming = kv_incoming,
    .kv_arrived = kv_arrived,
    .step = step,
    .sequence = sequence,
};
