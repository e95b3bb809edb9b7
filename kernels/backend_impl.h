/* backend_impl: what the implementations of backend.h share: the object's head, its table of
 * functions, and the checks that do not depend on the device. */
#ifndef BATON_KERNELS_BACKEND_IMPL_H
#define BATON_KERNELS_BACKEND_IMPL_H

#include "kernels/backend.h"
#include "kernels/threads.h"
#include "kernels/weight.h"

struct device_ops;

struct backend_ops {
    void (*destroy)(struct backend *b);
    int (*weight_create)(struct backend *b, const struct matrix_view *parts, size_t n_parts,
                         enum weight_format format, bool interleave, bool embed,
                         struct weight **out);
    void (*weight_destroy)(struct backend *b, struct weight *w);
    int (*capture)(struct backend *b, const struct op *ops, size_t n_ops, uint32_t bucket,
                   const struct kv_view *kv, struct replay **out);
    int (*replay)(struct backend *b, struct replay *r);
    void (*replay_destroy)(struct backend *b, struct replay *r);
    const struct device_ops *device;            /* kernels/device.h; NULL on the host */
    struct threads *(*pool)(struct backend *b); /* NULL: no compute threads on the host */
};

/* First member of every implementation's backend. */
struct backend {
    const struct backend_ops *ops;
    struct backend_dims dims;
    struct step_args args;
    void *args_mem;
    float *buffer[BUFFER_N];
    size_t buffer_bytes[BUFFER_N];
    float *rope; /* [context][head_dim]: head_dim / 2 cosines, then as many sines */
    size_t rope_bytes;
    size_t kv_cell_bytes;
    char name[32], kv_layout[64];
    const char *isa;                 /* "c" unless the implementation says more */
    struct backend_profile *profile; /* or NULL */
};

/* First member of every implementation's replay. */
struct replay {
    uint32_t bucket;
    struct kv_view kv;
};

/* Head, buffers and tables for the dims; backend_fini undoes it, also after a failure. */
int backend_init(struct backend *b, const struct backend_ops *ops, const struct backend_dims *d,
                 char *err, size_t errlen) WARN_UNUSED;
void backend_fini(struct backend *b);
/* Shapes of an op list against the dims: a mistake of the engine or of a model file; logged. */
int backend_check_ops(const struct backend *b, const struct op *ops, size_t n_ops, uint32_t bucket,
                      const struct kv_view *kv) WARN_UNUSED;
/* Asserts that step_args fit the replay: the last guard before memory is addressed by them. */
void backend_check_step(const struct backend *b, const struct replay *r);

int ref_create(const struct backend_options *o, const struct backend_dims *d, struct backend **out,
               char *err, size_t errlen) WARN_UNUSED;
int cpu_create(const struct backend_options *o, const struct backend_dims *d, struct backend **out,
               char *err, size_t errlen) WARN_UNUSED;
/* Weak references: only programs that are linked with the CUDA backend have them. */
bool cuda_present(void);
int cuda_create(const struct backend_options *o, const struct backend_dims *d, struct backend **out,
                char *err, size_t errlen) WARN_UNUSED;

/* Address of the cell of (layer, block, kv head). */
static inline uint8_t *backend_kv_cell(const struct backend *b, const struct kv_view *kv,
                                       size_t layer, size_t block, size_t head)
{
    return (uint8_t *)kv->base +
           ((layer * kv->n_blocks + block) * b->dims.n_kv_heads + head) * b->kv_cell_bytes;
}

#endif
