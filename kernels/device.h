/* device: the side of a backend that computes beside the host (a GPU), for the engine.
 *
 * Here a step is not one call but has a life of its own:
 *
 *   open ──> the engine fills step->args ──> launch [──> sample] ──> poll … 0 ──> close
 *
 * DEVICE_AHEAD steps may be between open and close. They run in the order of their launches, each
 * sees what the one before it left: KV, and the token that was drawn for a slot. So step n + 1 can
 * be launched before anybody has read the tokens of step n.
 *
 * A sequence has a slot: its block table, its last token, and whether it goes on, all on the
 * device. The host keeps a copy of the tables; what a step changes in them travels as a few
 * patches. Who owns a slot is the engine's business.
 *
 * One thread calls open to close (the engine thread). The kv_* functions may be called by another
 * one beside it: they have a stream of their own and return when the work is complete. */
#ifndef BATON_KERNELS_DEVICE_H
#define BATON_KERNELS_DEVICE_H

#include "kernels/backend.h"
#include "kernels/cuda_kernels.h"

#define DEVICE_AHEAD 2

struct device_step {
    /* The engine's to fill: an image in page-locked memory, at offsets by device_caps(). Patches
     * are filled by device_table, n_slot_patches by the engine. */
    struct gpu_step_args *args;
    bool decode;    /* every row is the only one of its sequence */
    bool late;      /* sampling waits for device_sample */
    bool draw;      /* something is sampled */
    uint32_t *mask; /* [max_logits][mask_stride], page-locked; rows that samples name */
    uint32_t n_masks;
    /* [max_logits], page-locked: for device_sample, in place of those in the image, which a copy
     * may still be reading. */
    struct gpu_sample *late_samples;
    /* Room for bias and penalties of all samples; see device_ops.adjust. */
    struct gpu_adjust *adjust;
    const struct gpu_adjust *adjust_device; /* the same, as kernels see it */
    uint32_t adjust_cap;
    /* When poll has said 0: of each logits row. */
    const struct gpu_result *results;
};

struct device_memory {
    size_t total, free; /* now */
    size_t graphs;      /* what the captured passes took */
};

struct device_ops {
    const struct gpu_caps *(*caps)(const struct backend *b);
    uint32_t (*slots)(const struct backend *b);
    uint32_t (*mask_stride)(const struct backend *b); /* words */

    /* The KV pool, [layer][block], with the sink zeroed. n_blocks of it; NOMEM is not logged. */
    int (*kv_alloc)(struct backend *b, uint32_t n_blocks, void **out) WARN_UNUSED;
    void (*kv_free)(struct backend *b, void *base);
    int (*memory)(struct backend *b, struct device_memory *out) WARN_UNUSED;

    int (*open)(struct backend *b, struct device_step **out) WARN_UNUSED;
    /* The slot's table begins with these blocks from this step on. */
    int (*table)(struct backend *b, struct device_step *s, uint32_t slot, const uint32_t *blocks,
                 uint32_t n) WARN_UNUSED;
    /* Makes room for n entries in step->adjust; what was in it is lost. Before launch or sample. */
    int (*adjust)(struct backend *b, struct device_step *s, uint32_t n) WARN_UNUSED;
    /* r: a captured pass, or one of OP_LOGITS alone: logits of further rows of the pass before. */
    int (*launch)(struct backend *b, struct device_step *s, struct replay *r) WARN_UNUSED;
    int (*sample)(struct backend *b, struct device_step *s) WARN_UNUSED; /* when late */
    /* 0: the step is complete. STATUS_AGAIN: not yet. *layers: layers whose K and V are in memory,
     * in all rows. wait: do not come back before it is complete. */
    int (*poll)(struct backend *b, struct device_step *s, bool wait, uint32_t *layers) WARN_UNUSED;
    /* Logits [vocab] of row i of the step that ran last, which is complete. */
    int (*logits)(struct backend *b, uint32_t i, float *out) WARN_UNUSED;
    void (*close)(struct backend *b, struct device_step *s); /* waits if it must */

    /* Page-locked memory, for kv_read and kv_write. */
    int (*host_alloc)(struct backend *b, size_t n, void **out) WARN_UNUSED;
    void (*host_free)(struct backend *b, void *p);
    /* n blocks of one layer to or from host memory, one after another. */
    int (*kv_read)(struct backend *b, uint32_t layer, const uint32_t *blocks, uint32_t n,
                   void *to) WARN_UNUSED;
    int (*kv_write)(struct backend *b, uint32_t layer, const uint32_t *blocks, uint32_t n,
                    const void *from) WARN_UNUSED;
    /* Their checksums, computed on the device (hash_kv). At most DEVICE_SUMS_MAX. */
    int (*kv_sums)(struct backend *b, uint32_t layer, const uint32_t *blocks, uint32_t n,
                   uint64_t *out) WARN_UNUSED;
    int (*kv_clear_tail)(struct backend *b, uint32_t layer, uint32_t block,
                         uint32_t used) WARN_UNUSED;
    /* The block will be written from outside: nobody may read it before kv_arrived. Checked by the
     * emulation only. kv_arrived is for blocks that kv_write did not write. */
    void (*kv_incoming)(struct backend *b, uint32_t layer, uint32_t block);
    void (*kv_arrived)(struct backend *b, uint32_t layer, uint32_t block);

    /* After a failure that the device does not come back from. */
    bool (*lost)(const struct backend *b);
};
#define DEVICE_SUMS_MAX 256

/* NULL for backends that compute on the host. */
const struct device_ops *backend_device(const struct backend *b);

#endif
