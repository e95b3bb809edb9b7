/* graph: the forward pass, captured once per bucket. */
#ifndef BATON_ENGINE_GRAPH_H
#define BATON_ENGINE_GRAPH_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/engine/forward.h"
#include "kernels/backend.h"

/* Row counts, ascending. */
struct graph_buckets {
    uint32_t *rows;
    uint32_t n;
};
/* Decode buckets that cover max_batch (1 2 4 8, steps of 8 to 64, of 16 to 256, of 32 above), chunk
 * buckets (powers of two from 64, and chunk itself), and chunk + max_batch for a step with both. */
int graph_buckets_init(struct graph_buckets *b, uint32_t max_batch, uint32_t chunk) WARN_UNUSED;
void graph_buckets_fini(struct graph_buckets *b);
/* Index of the smallest bucket of at least n rows; b->n when there is none. */
uint32_t graph_buckets_find(const struct graph_buckets *b, uint32_t n);

struct graphs {
    struct backend *backend;
    struct replay **passes; /* one per bucket */
    uint32_t n;
    struct replay *head; /* only OP_LOGITS, over the rows of the last pass */
};
int graphs_capture(struct graphs *g, struct backend *b, const struct forward *f,
                   const struct graph_buckets *buckets, const struct kv_view *kv) WARN_UNUSED;
void graphs_release(struct graphs *g);

#endif
