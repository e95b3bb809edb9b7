/* gpu_api: the calls of the CUDA runtime and of cuBLASLt that the host code uses, as one table.
 *
 * Implementations: gpu_cuda.cu (the device; built where nvcc is) and tests/cuda_emu/fake_gpu (runs
 * streams, graphs and kernels on the CPU and fails loudly on what a device would forgive). The host
 * code is the same C for both and includes no CUDA header.
 *
 * All functions return 0 or the runtime's own error number, which gpu_status turns into a status.
 * Handles are opaque. Streams do not synchronise with the default stream, which is never used. A
 * table is for one device; calls are allowed from several threads, capture from one while no other
 * thread calls. */
#ifndef BATON_KERNELS_GPU_API_H
#define BATON_KERNELS_GPU_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

struct gpu_stream;
struct gpu_event;
struct gpu_graph; /* what a capture recorded */
struct gpu_exec;  /* a graph that can be launched */
struct gpu_matmul;

#define GPU_ERROR_MEMORY    2   /* cudaErrorMemoryAllocation */
#define GPU_ERROR_NOT_READY 600 /* cudaErrorNotReady */

struct gpu_props {
    char name[64];
    int sms;
    int major, minor; /* compute capability */
    size_t memory;
    bool flush_needed; /* writes of a network card: flush_writes before a kernel reads them */
};

enum gpu_copy { GPU_TO_DEVICE, GPU_TO_HOST, GPU_ON_DEVICE };

/* Y[m][n] (+)= X[m][k] W[n][k]^T, all row-major; X and W bf16, Y bf16 or fp32, sums in fp32. */
struct gpu_matmul_desc {
    uint32_t n, k;
    uint32_t ldy;   /* numbers from a row of Y to the next; X and W are dense */
    uint32_t m_max; /* the algorithm is chosen for this m and pinned for all smaller ones */
    bool y_f32;
    bool accumulate; /* Y += */
    size_t workspace;
};

/* What the emulation is told beside the calls, to check what no device would. */
struct gpu_watch {
    /* The KV pool: [layer][block] of block_bytes, block_size tokens each. */
    void (*kv_pool)(const void *base, uint32_t n_layers, uint32_t n_blocks, size_t block_bytes,
                    uint32_t block_size);
    /* The block will be received: nobody may read it before it has arrived. */
    void (*kv_incoming)(uint32_t layer, uint32_t block);
    void (*kv_arrived)(uint32_t layer, uint32_t block);
    /* Ahead of a pass over n rows at position .. position + n - 1 of a sequence. */
    void (*step)(uint32_t bucket, uint32_t n_rows);
    void (*sequence)(uint32_t position, uint32_t n, const uint32_t *blocks);
};

struct gpu_api {
    const char *name;              /* "cuda" or "emulation" */
    const struct gpu_watch *watch; /* NULL on a device */

    int (*device_open)(int index, struct gpu_props *out);
    int (*mem_info)(size_t *free, size_t *total);
    /* Makes sure that the calling thread uses the device. Once per thread. */
    int (*thread_attach)(void);
    /* What other devices wrote into this one's memory, and what the CPU knows of, is visible to
     * work that is launched from now on. */
    int (*flush_writes)(void);

    int (*mem_alloc)(void **out, size_t n);
    int (*mem_free)(void *p);
    /* Page-locked host memory; *device is its address for kernels. */
    int (*host_alloc)(void **out, void **device, size_t n);
    int (*host_free)(void *p);

    int (*stream_create)(struct gpu_stream **out, bool high_priority);
    int (*stream_destroy)(struct gpu_stream *s);
    int (*stream_sync)(struct gpu_stream *s);
    int (*stream_wait)(struct gpu_stream *s, struct gpu_event *e);
    int (*copy_async)(void *to, const void *from, size_t n, enum gpu_copy kind,
                      struct gpu_stream *s);
    int (*fill_async)(void *to, int byte, size_t n, struct gpu_stream *s);

    int (*event_create)(struct gpu_event **out, bool timing);
    int (*event_destroy)(struct gpu_event *e);
    /* While s is being captured: a node of the graph, recorded anew by each launch. */
    int (*event_record)(struct gpu_event *e, struct gpu_stream *s);
    int (*event_query)(struct gpu_event *e); /* 0, GPU_ERROR_NOT_READY or an error */
    int (*event_sync)(struct gpu_event *e);
    int (*event_ms)(float *out, struct gpu_event *from, struct gpu_event *to);

    int (*capture_begin)(struct gpu_stream *s);
    int (*capture_end)(struct gpu_stream *s, struct gpu_graph **out);
    int (*graph_destroy)(struct gpu_graph *g);
    int (*graph_nodes)(struct gpu_graph *g, size_t *out);
    int (*graph_instantiate)(struct gpu_graph *g, struct gpu_exec **out);
    int (*exec_destroy)(struct gpu_exec *x);
    int (*exec_upload)(struct gpu_exec *x, struct gpu_stream *s);
    int (*exec_launch)(struct gpu_exec *x, struct gpu_stream *s);

    int (*matmul_create)(const struct gpu_matmul_desc *d, struct gpu_matmul **out);
    int (*matmul_destroy)(struct gpu_matmul *p);
    /* workspace: device memory of desc.workspace bytes that no concurrent launch uses. */
    int (*matmul_run)(struct gpu_matmul *p, uint32_t m, const void *x, const void *w, void *y,
                      void *workspace, struct gpu_stream *s);

    int (*last_error)(void); /* and clears it */
    const char *(*error_text)(int rc);
};

/* The table of this program; NULL with a line in err when there is no device. Defined by
 * gpu_cuda.cu or by the emulation: programs without either have no CUDA backend at all. */
const struct gpu_api *gpu_api_open(char *err, size_t errlen);

/* The status for an error number; gpu_failed logs it as well. */
int gpu_status(int rc);
int gpu_failed(const struct gpu_api *api, int rc, const char *call) WARN_UNUSED;

#endif
