/* bpe: the merge table of a vocabulary and the merging of one word.
 *
 * Symbols are int32 ids. Ids that are no tokens (unknown characters of SentencePiece) may take
 * part: the table only compares them. */
#ifndef BATON_TEXT_BPE_H
#define BATON_TEXT_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

#define BPE_NONE UINT32_MAX

struct bpe_entry {
    uint64_t pair; /* left id << 32 | right id */
    uint32_t rank; /* lower merges first; BPE_NONE: the entry is free */
    int32_t id;    /* what the two become */
};
struct bpe {
    struct bpe_entry *entries;
    size_t mask, n;   /* mask + 1 entries, a power of two */
    uint64_t *filter; /* four bits for each entry: a pair whose bit is not set is not there */
};
/* Memory that merging needs beside the word itself: one per thread of work, reused over words. */
struct bpe_work {
    struct bpe_node *nodes;
    uint64_t *heap;
    size_t n_nodes, n_heap; /* capacities */
};

/* expected: how many merges will come; the table grows when more do. */
int bpe_init(struct bpe *b, size_t expected) WARN_UNUSED;
void bpe_fini(struct bpe *b);
/* Of several merges of one pair the one added first stays. rank < BPE_NONE. */
int bpe_add(struct bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t id) WARN_UNUSED;

void bpe_work_fini(struct bpe_work *w);
/* Merges the *n symbols at ids in place, always the best rank first and of equals the leftmost, as
 * long as two neighbours merge. O(n log n); no recursion. */
int bpe_merge(const struct bpe *b, struct bpe_work *w, int32_t *ids, size_t *n) WARN_UNUSED;

#endif
