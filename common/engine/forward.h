/* forward: a model as packed weights and one flat list of operations. */
#ifndef BATON_ENGINE_FORWARD_H
#define BATON_ENGINE_FORWARD_H

#include <stddef.h>

#include "common/base/status.h"
#include "common/model/model.h"
#include "kernels/backend.h"

struct forward {
    struct op *ops; /* the pass; the last one is OP_LOGITS */
    size_t n_ops;
    struct weight **weights; /* owned, each once */
    size_t n_weights;
    float *vectors; /* norms and biases as floats, one allocation */
    size_t weight_bytes;
    char format[8]; /* of the layers' matrices: "f32", "bf16", "q8", "q4", "mixed" */
};

/* Name of a weight format in the configuration ("auto", "bf16", "int8", "int4", "f32"). */
int forward_format(const char *name, enum weight_format *out) WARN_UNUSED;
/* Told after each matrix how many percent of them are packed; packed may be NULL. */
struct forward_watch {
    void (*packed)(void *arg, uint32_t percent);
    void *arg;
};
/* Packs the weights of the model; it may be closed afterwards. */
int forward_init(struct forward *f, const struct model *m, struct backend *b,
                 enum weight_format format, const struct forward_watch *watch, char *err,
                 size_t errlen) WARN_UNUSED;
/* Replays that were captured from the list must be gone. */
void forward_fini(struct forward *f, struct backend *b);

#endif
