/* pool: which KV blocks are free, used, or kept only by the prefix cache. Pure bookkeeping: the
 * memory itself belongs to the worker. Single-threaded: the worker's loop owns it.
 *
 * Block ids run from 1 to n-1; block 0 is the sink that padded rows point at and is never handed
 * out. A block is owned by reference count: allocated with 1, shared by prefix hits. A block whose
 * only reference is the prefix cache's counts as free and is evicted (least recently used) when
 * needed. */
#ifndef BATON_KV_POOL_H
#define BATON_KV_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

struct kv_pool;
int kv_pool_create(uint32_t n_blocks, uint32_t block_size, bool prefix_cache,
                   struct kv_pool **out) WARN_UNUSED;
void kv_pool_destroy(struct kv_pool *p);
uint32_t kv_pool_size(const struct kv_pool *p); /* usable blocks, without the sink */
uint32_t kv_pool_free(const struct kv_pool *p); /* free now, or held by the prefix cache alone */
uint32_t kv_pool_block_size(const struct kv_pool *p);

/* n blocks with one reference each, in as few contiguous ascending runs as possible; all or
 * nothing: STATUS_FULL leaves the pool, and what is cached, untouched. */
int kv_pool_alloc(struct kv_pool *p, uint32_t n, uint32_t *blocks) WARN_UNUSED;
void kv_pool_get(struct kv_pool *p, uint32_t block);
/* Drops a reference; the last one frees the block (or leaves it to the prefix cache). */
void kv_pool_put(struct kv_pool *p, uint32_t block);
/* References of sequences; the prefix cache's own is not among them. */
uint32_t kv_pool_refs(const struct kv_pool *p, uint32_t block);

/* Prefix cache: full blocks by keyed 128-bit hash over (parent, salt, exact ids); tokens are
 * compared on a hit. Salt: any bytes, "" for none; a prompt with a salt of more than KV_SALT_MAX
 * bytes is not cached. Only complete, verified blocks are inserted. Lookup takes a reference on
 * each block of the longest cached prefix of at most max_blocks blocks and returns their number.
 * Callers ask for at most (n_tokens - 1) / block_size blocks, so that at least one token is left to
 * compute. */
#define KV_SALT_MAX 1024
uint32_t kv_prefix_lookup(struct kv_pool *p, const void *salt, size_t n_salt, const int32_t *tokens,
                          size_t n_tokens, uint32_t max_blocks, uint32_t *blocks);
/* Remembers the first n_tokens / block_size blocks of a sequence. Blocks that are already known
 * under the same hash stay; the caller keeps its own references. */
void kv_prefix_insert(struct kv_pool *p, const void *salt, size_t n_salt, const int32_t *tokens,
                      size_t n_tokens, const uint32_t *blocks);
/* Forgets every cached block that nobody uses. */
void kv_prefix_clear(struct kv_pool *p);
struct kv_prefix_stats {
    uint64_t lookups, hit_blocks, inserted, evicted;
    uint32_t cached_blocks;
};
struct kv_prefix_stats kv_prefix_stats(const struct kv_pool *p);

#endif
