/* pool_impl: the inside of a KV pool, shared by pool.c (references and free runs) and prefix.c (the
 * prefix cache). Nobody else includes it. */
#ifndef BATON_KV_POOL_IMPL_H
#define BATON_KV_POOL_IMPL_H

#include "common/base/hash.h"
#include "common/kv/pool.h"

/* Free runs are kept in bins: one per length below RUN_EXACT, then one per power of two. */
#define RUN_EXACT 64
#define RUN_BINS  (RUN_EXACT + 32 - 6)

/* Block 0, the sink, is on no list: 0 stands for "none" in every link. */
struct kv_block {
    uint32_t refs; /* of sequences; the prefix cache's is `cached` */
    bool free;     /* part of a free run */
    bool cached;   /* known to the prefix cache */
    /* At the first and the last block of a free run: its length. */
    uint32_t run;
    /* At the first block: neighbours in the bin. */
    uint32_t run_next, run_prev;
    /* While cached: place in the prefix tree, in the hash table, and in the eviction heap. */
    uint32_t parent, child, sibling_next, sibling_prev; /* child: the first one */
    uint32_t chain;                                     /* next block of the hash bucket */
    uint32_t heap;                                      /* 1 + place in the heap; 0: in use */
    uint64_t used;                                      /* when the last reference was dropped */
    struct hash128 hash;
    struct kv_salt *salt; /* of a block without parent */
};

struct kv_prefix {
    bool on;
    uint64_t key; /* of the hash; random, so that nobody can aim at a bucket */
    uint32_t *buckets;
    uint32_t mask;
    int32_t *tokens; /* [n_blocks][block_size] of cached blocks */
    uint32_t *heap;  /* cached blocks that nobody uses, the next to evict first */
    uint32_t n_heap;
    uint64_t now;
    struct kv_salt **salts; /* hash table, as large as buckets */
    struct kv_prefix_stats stats;
};

struct kv_pool {
    uint32_t n_blocks, block_size; /* n_blocks with the sink */
    uint32_t n_free;               /* blocks in free runs */
    struct kv_block *blocks;
    uint32_t bins[RUN_BINS];
    uint64_t bin_map[2]; /* bins that are not empty */
    struct kv_prefix prefix;
};

/* pool.c: the block joins the free runs. */
void kv_pool_release(struct kv_pool *p, uint32_t block);

/* prefix.c */
int kv_prefix_init(struct kv_pool *p, bool on) WARN_UNUSED;
void kv_prefix_fini(struct kv_pool *p);
/* A cached block lost its last reference. */
void kv_prefix_idle(struct kv_pool *p, uint32_t block);
/* Evicts one block at least (there is one); it joins the free runs. */
void kv_prefix_evict(struct kv_pool *p);

#endif
