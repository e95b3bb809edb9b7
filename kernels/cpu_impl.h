/* cpu_impl: the CPU backend's object, shared by cpu.c (life cycle) and cpu_graph.c (capture and
 * replay). */
#ifndef BATON_KERNELS_CPU_IMPL_H
#define BATON_KERNELS_CPU_IMPL_H

#include "kernels/backend_impl.h"
#include "kernels/cpu.h"

#define CPU_FEW_ROWS 4   /* up to so many rows every thread prepares the activations by itself */
#define CPU_ROWS     256 /* most rows of a tile: see struct kernels */

#define CPU_HELP_UNITS 32 /* most panels (or gate and up pairs) of a helper's tile */

struct call;

/* A tile of a linear layer: rows x units. all_rows: of the call. */
struct linear_place {
    size_t all_rows, row, rows, unit, end;
};
/* A tile of attention: rows of a head of a segment, or (whole) a segment of one token. */
struct attention_place {
    size_t segment, head, first, rows;
    bool whole;
};

/* The tile that a helper computes, as it was when it took it. */
struct cpu_help {
    const struct call *call;
    struct linear_place place;
    const float *few[CPU_FEW_ROWS];
    struct attention_place attention;
    struct attention_args args;
    size_t token, offset; /* row of the step of the first token; first row within it */
    int32_t position[ATTENTION_MOST + 1];
    uint32_t *table; /* [table_stride] */
    float *out;      /* the result */
};

/* What one thread needs for itself. */
struct cpu_scratch {
    struct attention_scratch attention;
    float row[CPU_ROWS][2 * PANEL]; /* a gate and an up panel, or a ragged last panel */
    struct act few;                 /* [CPU_FEW_ROWS][k_max] */
    const struct call *few_call;    /* whose activations they are, in step few_step */
    uint64_t few_step;
    float *norm; /* [k_max] */
    struct cpu_help help;
};

struct cpu_replay_list;
/* The job of the pool. It stays, because helpers may be late. */
struct cpu_replay_job {
    struct threads_job run;
    struct cpu_backend *b;
    const struct cpu_replay_list *list;
    size_t reported; /* calls up to here: OP_KV_READY among them was passed on */
    uint64_t since;  /* profiling: when the call before this one began */
};

struct cpu_backend {
    struct backend base;
    const struct kernels *kernels;
    struct threads *pool;
    struct weight_store store;
    uint32_t k_max; /* widest input of a linear layer, rounded up to Q_BLOCK */
    void *act_mem;
    size_t act_bytes;
    struct act act; /* [max_rows][k_max], shared by all threads */
    void *hidden_mem;
    size_t hidden_bytes;
    struct act hidden; /* [max_rows][ffn]: the hidden layer in the form that OP_DOWN takes */
    struct cpu_replay_job job;
    struct cpu_scratch **scratch; /* of threads and helpers */
    int n_scratch;
    uint64_t step;
    /* Of the step: first attention tile of each segment, [max_rows + 1]. */
    uint32_t *attention_first;
    bool in_parts;          /* whether its tiles are parts of the keys (cpu_attention.c) */
    float *attention_parts; /* [tile][attention_part_floats]; NULL when that never happens */
};

/* Floats of attention_parts for so many threads; 0: none. */
size_t attention_parts_floats(const struct backend_dims *d, size_t threads);

/* Carves activations for `rows` rows out of mem (64-byte aligned); mem NULL: only the size. */
size_t cpu_act_carve(struct act *a, uint8_t *mem, size_t rows, size_t k_max);

void cpu_replay_init(struct cpu_backend *b);
int cpu_capture(struct backend *b, const struct op *ops, size_t n_ops, uint32_t bucket,
                const struct kv_view *kv, struct replay **out);
int cpu_replay(struct backend *b, struct replay *r);
void cpu_replay_destroy(struct backend *b, struct replay *r);

#endif
