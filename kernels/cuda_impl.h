/* cuda_impl: the CUDA backend's object, shared by cuda_backend.c (life cycle, memory, weights),
 * cuda_graph.c (capture, update, replay), cuda_step.c (steps from open to close) and cuda_kv.c. */
#ifndef BATON_KERNELS_CUDA_IMPL_H
#define BATON_KERNELS_CUDA_IMPL_H

#include <pthread.h>

#include "kernels/backend_impl.h"
#include "kernels/cuda_kernels.h"
#include "kernels/device.h"
#include "kernels/gpu_api.h"

#define CUDA_SKINNY_ROWS   64 /* up to so many rows the skinny kernels serve every pass */
#define CUDA_PARTS_MAX     9  /* graphs of one pass */
#define CUDA_GROUPS        8  /* of layers, whose KV is announced together */
#define CUDA_RING          (DEVICE_AHEAD + 1)
#define CUDA_PATCHES       8 /* for each slot: more of a table is copied as a whole */
#define CUDA_TABLE_STAGING ((size_t)4 << 20)
#define CUDA_WORKSPACE     ((size_t)32 << 20)
#define CUDA_ADJUST        ((uint32_t)16 << 10) /* biases and counts of a step; more are rare */
#define CUDA_STAGING       ((size_t)8 << 20)    /* of weights on their way */

enum cuda_pass_kind {
    CUDA_PASS_DECODE, /* one row per sequence: five nodes a layer */
    CUDA_PASS_ROWS,   /* any rows, through the same kernels: six nodes a layer */
    CUDA_PASS_LARGE,  /* any rows, through cuBLASLt: ten nodes a layer */
    CUDA_PASS_HEAD    /* OP_LOGITS alone */
};

/* A pass: a list of operations, cut into parts after which the KV of some layers is complete. */
struct cuda_pass {
    enum cuda_pass_kind kind;
    bool sampled; /* sampling is the last node */
    uint32_t n_parts;
    size_t end[CUDA_PARTS_MAX];            /* first op behind the part */
    uint32_t layers[CUDA_PARTS_MAX];       /* complete after the part */
    struct gpu_exec *exec[CUDA_PARTS_MAX]; /* NULL when graphs are off */
};

enum { CUDA_DECODE_SAMPLED, CUDA_DECODE, CUDA_ANY, CUDA_PASSES };

struct cuda_replay {
    struct replay base;
    struct cuda_pass pass[CUDA_PASSES]; /* n_parts 0: there is none */
    size_t n_ops;
    struct op ops[];
};

/* A float vector of the engine, padded, on the device. */
struct cuda_vector {
    const float *host;
    float *device;
    size_t n;
};

struct cuda_step {
    struct device_step pub; /* first */
    bool open, flying;
    struct gpu_result *results; /* page-locked */
    uint32_t *tables;           /* page-locked, [CUDA_TABLE_STAGING] bytes */
    size_t tables_used;
    struct gpu_event *part[CUDA_PARTS_MAX], *done;
    const struct cuda_pass *pass;
    uint32_t at; /* parts that are complete */
};

struct cuda_buffers {
    float *x, *ssq, *qkv, *logits, *scratch_logits, *attention;
    uint16_t *xg, *xn, *q, *att, *gu, *hid;
    uint32_t *counters;
};

enum { CUDA_GEMM_QKV, CUDA_GEMM_OUT, CUDA_GEMM_GATE_UP, CUDA_GEMM_DOWN, CUDA_GEMMS };

struct cuda_backend {
    struct backend base;
    const struct gpu_api *api;
    struct gpu_props props;
    bool strict, graphs, lost;
    struct gpu_launch launch;
    struct gpu_model model; /* kv and n_blocks: of the replay that is bound */
    struct gpu_stream *stream;
    struct cuda_buffers buffers;
    void *workspace;
    struct gpu_matmul *gemm[CUDA_GEMMS];
    struct gpu_exec *sample_exec;
    struct gpu_step_args *step; /* on the device */
    struct gpu_result *results;
    uint32_t *mask;
    uint32_t mask_stride;
    struct cuda_step steps[CUDA_RING];
    uint32_t *shadow; /* [max_slots][table_stride] */
    struct cuda_vector *vectors;
    size_t n_vectors, vectors_cap;
    size_t graph_bytes;
    void *staging; /* page-locked */

    /* For the thread that moves KV. */
    struct gpu_stream *kv_stream;
    uint64_t *sums, *sums_device; /* page-locked: offsets, then results */
};

/* Memory on the device, zeroed in stream order. Logs nothing when it is used up. */
int cuda_mem(struct cuda_backend *b, void **out, size_t n) WARN_UNUSED;
/* The vector with zeros up to `padded`; cached by its host address. NULL stays NULL. */
int cuda_vector(struct cuda_backend *b, const float *host, size_t n, size_t padded,
                const float **out) WARN_UNUSED;

/* cuda_graph.c */
int cuda_capture(struct backend *b, const struct op *ops, size_t n_ops, uint32_t bucket,
                 const struct kv_view *kv, struct replay **out) WARN_UNUSED;
void cuda_replay_destroy(struct backend *b, struct replay *r);
/* Runs part `part` of the pass on the stream: a launch of its graph, or its kernels one by one. */
int cuda_pass_run(struct cuda_backend *b, const struct cuda_replay *r, const struct cuda_pass *p,
                  uint32_t part) WARN_UNUSED;
int cuda_sample_run(struct cuda_backend *b) WARN_UNUSED;
void cuda_graph_fini(struct cuda_backend *b);

/* cuda_step.c */
int cuda_steps_init(struct cuda_backend *b) WARN_UNUSED;
void cuda_steps_fini(struct cuda_backend *b);
int cuda_step_open(struct backend *b, struct device_step **out) WARN_UNUSED;
int cuda_step_table(struct backend *b, struct device_step *s, uint32_t slot, const uint32_t *blocks,
                    uint32_t n) WARN_UNUSED;
int cuda_step_adjust(struct backend *b, struct device_step *s, uint32_t n) WARN_UNUSED;
int cuda_step_launch(struct backend *b, struct device_step *s, struct replay *r) WARN_UNUSED;
int cuda_step_sample(struct backend *b, struct device_step *s) WARN_UNUSED;
int cuda_step_poll(struct backend *b, struct device_step *s, bool wait,
                   uint32_t *layers) WARN_UNUSED;
int cuda_step_logits(struct backend *b, uint32_t i, float *out) WARN_UNUSED;
void cuda_step_close(struct backend *b, struct device_step *s);
/* backend_replay: a step from open to close, by step_args. */
int cuda_replay(struct backend *b, struct replay *r) WARN_UNUSED;

/* cuda_kv.c */
int cuda_kv_init(struct cuda_backend *b) WARN_UNUSED;
void cuda_kv_fini(struct cuda_backend *b);
int cuda_kv_alloc(struct backend *b, uint32_t n_blocks, void **out) WARN_UNUSED;
void cuda_kv_free(struct backend *b, void *base);
int cuda_kv_read(struct backend *b, uint32_t layer, const uint32_t *blocks, uint32_t n,
                 void *to) WARN_UNUSED;
int cuda_kv_write(struct backend *b, uint32_t layer, const uint32_t *blocks, uint32_t n,
                  const void *from) WARN_UNUSED;
int cuda_kv_sums(struct backend *b, uint32_t layer, const uint32_t *blocks, uint32_t n,
                 uint64_t *out) WARN_UNUSED;
int cuda_kv_clear(struct backend *b, uint32_t layer, uint32_t block, uint32_t used) WARN_UNUSED;
void cuda_kv_incoming(struct backend *b, uint32_t layer, uint32_t block);
void cuda_kv_arrived(struct backend *b, uint32_t layer, uint32_t block);

/* Logs, remembers that the device is lost, and returns the status. */
int cuda_failed(struct cuda_backend *b, int rc, const char *call) WARN_UNUSED;
#define CUDA_TRY(b_, call_)                                                                        \
    do {                                                                                           \
        int cuda_rc_ = (b_)->api->call_;                                                           \
        if (cuda_rc_ != 0)                                                                         \
            return cuda_failed((b_), cuda_rc_, #call_);                                            \
    } while (0)
/* For launchers of cuda_kernels.h. */
#define CUDA_RUN(b_, call_)                                                                        \
    do {                                                                                           \
        int cuda_rc_ = (call_);                                                                    \
        if (cuda_rc_ != 0)                                                                         \
            return cuda_failed((b_), cuda_rc_, #call_);                                            \
    } while (0)

static inline size_t cuda_block_bytes(const struct cuda_backend *b)
{
    return b->base.dims.n_kv_heads * b->base.kv_cell_bytes;
}

#endif
