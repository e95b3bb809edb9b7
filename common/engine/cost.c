/* cost: see cost.h. A product of r rows with a matrix of n x k is 2 r n k operations in the format
 * that the matrix is packed in; attention is 4 operations for each pair, dimension and head, in
 * bf16. */
#include "common/engine/cost.h"

#include <string.h>

#include "common/engine/engine_impl.h"

struct engine_load engine_load(uint32_t seqs, uint32_t start, uint32_t n)
{
    return (struct engine_load){
        .rows = seqs * n,
        .logits = seqs,
        .pairs = (double)seqs * ((double)n * start + (double)n * (n + 1.0) / 2),
        .keys = (double)seqs * ((double)start + n),
    };
}

static void add_product(const struct op *op, double rows, struct engine_cost *c)
{
    struct backend_weight_info w;
    backend_weight_info(op->w, &w);
    double ops = 2.0 * rows * w.n * w.k;
    *(w.format == WEIGHT_F32 ? &c->f32 : w.format == WEIGHT_BF16 ? &c->bf16 : &c->int8) += ops;
    c->bytes += rows > 0 ? (double)w.bytes : 0;
}

void engine_cost(const struct engine *e, const struct engine_load *l,
                 struct engine_cost out[OP_KINDS])
{
    const struct backend_dims *d = &e->dims;
    double kv_token = (double)e->info.kv_block_bytes / d->kv_block_size;
    memset(out, 0, OP_KINDS * sizeof *out);
    for (size_t i = 0; i < e->forward.n_ops; i++) {
        const struct op *op = &e->forward.ops[i];
        struct engine_cost *c = &out[op->kind];
        if (op->kind == OP_ATTENTION) {
            c->bf16 += 4 * l->pairs * d->n_heads * d->head_dim;
            c->bytes += l->keys * kv_token;
        } else if (op->kind != OP_EMBED && op->w) {
            add_product(op, op->kind == OP_LOGITS ? l->logits : l->rows, c);
        }
    }
}

struct engine_cost engine_cost_sum(const struct engine_cost cost[OP_KINDS])
{
    struct engine_cost sum = {0};
    for (int i = 0; i < OP_KINDS; i++) {
        sum.f32 += cost[i].f32;
        sum.bf16 += cost[i].bf16;
        sum.int8 += cost[i].int8;
        sum.bytes += cost[i].bytes;
    }
    return sum;
}

struct backend *engine_backend(struct engine *e)
{
    return e->backend;
}
