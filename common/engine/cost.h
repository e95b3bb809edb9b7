/* cost: how much work a step is, from the list of operations: what a measurement is held against,
 * and what a time can be predicted from. */
#ifndef BATON_ENGINE_COST_H
#define BATON_ENGINE_COST_H

#include <stdint.h>

#include "common/engine/engine.h"
#include "kernels/backend.h"

struct engine_load {
    uint32_t rows, logits;
    double pairs; /* of a row and a key that it sees */
    double keys;  /* of all sequences of the step, each counted once */
};
/* A step that computes positions start .. start + n - 1 of each of `seqs` sequences. */
struct engine_load engine_load(uint32_t seqs, uint32_t start, uint32_t n);

/* A multiply-add is two operations. */
struct engine_cost {
    double f32, bf16, int8; /* operations, by the format they run in */
    double bytes;           /* of weights and KV that are read, each once */
};
/* By kind of operation; what is not listed there (norms, RoPE, sampling) is not counted. */
void engine_cost(const struct engine *e, const struct engine_load *l,
                 struct engine_cost out[OP_KINDS]);
struct engine_cost engine_cost_sum(const struct engine_cost cost[OP_KINDS]);

/* For measurements: what the engine computes with. */
struct backend *engine_backend(struct engine *e);

#endif
