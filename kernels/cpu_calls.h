/* cpu_calls: one kernel call of a captured pass, and the files that run them: cpu_linear.c,
 * cpu_attention.c, cpu_graph.c. */
#ifndef BATON_KERNELS_CPU_CALLS_H
#define BATON_KERNELS_CPU_CALLS_H

#include "kernels/cpu_impl.h"

#define TILES_PER_THREAD 8 /* of a call: enough for balance, few enough to take */

typedef size_t (*call_tiles_fn)(const struct cpu_backend *b, const struct call *c);
typedef void (*call_run_fn)(struct cpu_backend *b, const struct call *c, struct cpu_scratch *s,
                            size_t tile);

/* How a helper does a tile (kernels/threads.h). */
struct call_help {
    void (*begin)(const struct cpu_backend *b, const struct call *c, struct cpu_scratch *s,
                  size_t tile);
    void (*compute)(const struct cpu_backend *b, struct cpu_scratch *s);
    void (*finish)(const struct cpu_backend *b, struct cpu_scratch *s);
};

struct call {
    call_tiles_fn tiles;
    call_run_fn run;              /* NULL: OP_KV_READY, for the replaying thread */
    const struct call_help *help; /* or NULL */
    enum op_kind kind;
    uint32_t layer;
    const struct weight *w;
    const float *norm, *bias, *q_norm, *k_norm;
    const float *in; /* [rows][w->k] */
    float *out;      /* [rows][out_width] */
    size_t out_width;
    linear_fn linear;
    /* OP_GATE_UP: what OP_DOWN behind it takes, instead of `out`. OP_DOWN: that it does so. */
    const struct weight *down;
    bool prepared;
    struct kv_view kv;
};

static inline size_t ceil_div(size_t a, size_t b)
{
    return (a + b - 1) / b;
}
static inline size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

static inline size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Threads that take tiles, helpers among them. */
static inline size_t cpu_workers(const struct cpu_backend *b)
{
    return (size_t)(threads_count(b->pool) + threads_helpers(b->pool));
}

/* cpu_linear.c: activations for all rows, then the product. */
size_t prepare_tiles(const struct cpu_backend *b, const struct call *c);
void prepare_run(struct cpu_backend *b, const struct call *c, struct cpu_scratch *s, size_t tile);
size_t linear_tiles(const struct cpu_backend *b, const struct call *c);
void linear_run(struct cpu_backend *b, const struct call *c, struct cpu_scratch *s, size_t tile);
extern const struct call_help linear_help;

/* cpu_attention.c. Plan: once per step, before the threads start. */
void attention_plan(struct cpu_backend *b);
size_t attention_tiles(const struct cpu_backend *b, const struct call *c);
void attention_run(struct cpu_backend *b, const struct call *c, struct cpu_scratch *s, size_t tile);
extern const struct call_help attention_help;
/* Joins what attention_run left in parts; no tiles when it did not. */
size_t join_tiles(const struct cpu_backend *b, const struct call *c);
void join_run(struct cpu_backend *b, const struct call *c, struct cpu_scratch *s, size_t segment);

#endif
