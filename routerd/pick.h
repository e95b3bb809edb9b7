/* pick: which prefill and decode worker a request goes to. Pure: state in, decision out; the
 * router, its tests and simulations call the same code. */
#ifndef BATON_ROUTERD_PICK_H
#define BATON_ROUTERD_PICK_H

#include <stdbool.h>
#include <stdint.h>

/* What the router knows of one worker. */
struct pick_worker {
    bool alive;        /* link up, neither silent nor stalled */
    bool usable;       /* … and not draining: it takes new work */
    bool decode;       /* role */
    uint32_t pool;     /* the model it computes */
    bool moves;        /* it can take part in moves */
    bool copies;       /* and in replicas */
    uint32_t group;    /* equal groups share model and KV layout, so they can be paired */
    uint64_t numerics; /* equal classes compute the same bits */
    uint64_t instance;
    uint64_t queued_tokens; /* prompt tokens it still has to compute, ours on the way included */
    uint32_t running;       /* sequences it holds, ours on the way included */
    uint32_t credits;       /* jobs a prefill worker will take now */
    uint32_t kv_free, kv_blocks, kv_block_size, context;
};
struct pick_request {
    uint32_t pool;     /* workers of others are left alone */
    uint32_t n_tokens; /* positions whose KV must exist before decoding */
    uint64_t avoid[2]; /* instances not to use when there is another (0: none) */
    uint64_t numerics; /* class that computed the emitted tokens; 0: none has */
    /* Pair that has the prompt's KV, as another path of the same prompt is there; 0: none. */
    uint64_t near_prefill, near_decode;
};
enum pick_result {
    PICK_OK,
    PICK_NO_PREFILL, /* no usable prefill worker that can be paired */
    PICK_NO_DECODE,
    PICK_BUSY,    /* usable pairs exist, but none takes a job now */
    PICK_TOO_LONG /* no usable pair can ever hold so many tokens */
};
/* Least loaded pair: the prefill worker with the fewest prompt tokens to compute, the decode worker
 * with the fewest sequences for its size; ties go to the lower index. Writes indices. */
enum pick_result pick_pair(const struct pick_worker *w, uint32_t n, const struct pick_request *r,
                           uint32_t *prefill, uint32_t *decode);
/* For KV that the prefill worker `prefill` holds already (it need not be usable): the decode worker
 * that pick_pair would take with it, whether or not it must wait for blocks. */
bool pick_decode(const struct pick_worker *w, uint32_t n, const struct pick_request *r,
                 uint32_t prefill, uint32_t *decode);
/* For a sequence that runs on the decode worker `from` (it need not be usable): where to move it,
 * with room for it now, and the same numerics class, so that its tokens stay what they would have
 * been. */
bool pick_move(const struct pick_worker *w, uint32_t n, const struct pick_request *r, uint32_t from,
               uint32_t *to);
/* Longest sequence that some usable pair of the pool could hold; 0 when there is no pair. */
uint32_t pick_context(const struct pick_worker *w, uint32_t n, uint32_t pool);

#endif
