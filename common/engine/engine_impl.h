/* engine_impl: what engine.c and device.c share. */
#ifndef BATON_ENGINE_ENGINE_IMPL_H
#define BATON_ENGINE_ENGINE_IMPL_H

#include "common/engine/engine.h"
#include "common/engine/forward.h"
#include "common/engine/graph.h"
#include "kernels/backend.h"
#include "kernels/device.h"

/* A token of the step whose logits are wanted. */
struct place {
    uint32_t row, token;
};

/* The walk over all places of a step. */
struct places {
    struct place next;
    uint32_t base; /* row of the step where next.row begins */
};

struct device_engine;

struct engine {
    struct backend *backend;
    struct forward forward;
    struct graph_buckets buckets;
    struct graphs graphs; /* empty when options.graphs is false, on the host */
    struct kv_view kv;
    struct backend_dims dims;
    uint32_t max_batch;
    bool capture;
    struct engine_info info;
    struct place *places;         /* [max_logits] of the current group */
    uint32_t n_places;            /* that a late step waits with */
    float *scratch;               /* [threads][vocab] for sampling */
    const float *logits;          /* of the last place of the last step */
    const struct device_ops *dev; /* NULL on the host */
    struct device_engine *device;
};

/* The next group of places, at most dims.max_logits, and the rows of the step they are at. */
uint32_t places_next(const struct engine *e, const struct engine_step *s, struct places *p,
                     struct place *places, uint32_t *logit_row);
/* Log probability of the token that comes after the place, when the row asks for it. */
void place_score(const struct engine *e, struct engine_step *s, struct place at,
                 const float *logits);

/* device.c */
int device_engine_create(struct engine *e, const struct engine_options *o, char *err,
                         size_t errlen) WARN_UNUSED;
void device_engine_destroy(struct engine *e);
int device_engine_launch(struct engine *e, struct engine_step *s, uint32_t n_tokens) WARN_UNUSED;
int device_engine_sample(struct engine *e, struct engine_step *s) WARN_UNUSED;
int device_engine_poll(struct engine *e, struct engine_step *s, bool wait) WARN_UNUSED;
const float *device_engine_logits(const struct engine *e);

#endif
