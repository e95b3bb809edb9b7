/* safetensors: one safetensors file, read from a mapping.
 *
 *   OFFSET SIZE
 *   0      8    n, length of the header, little-endian
 *   8      n    JSON: {"NAME": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, …}
 *   8+n    …    the data that the offsets count from
 *
 * safetensors_open accepts only files in which every byte of data belongs to exactly one tensor and
 * every range has the size that dtype and shape say. */
#ifndef BATON_MODEL_SAFETENSORS_H
#define BATON_MODEL_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/model/file.h"

#define SAFETENSORS_DIMS_MAX 8

struct safetensor {
    const char *name;  /* printable ASCII */
    const char *dtype; /* "BF16", … ; static */
    uint32_t type;     /* enum tensor_type, or UINT32_MAX for a dtype Baton does not compute with */
    uint32_t n_dims;
    uint64_t dims[SAFETENSORS_DIMS_MAX]; /* slowest first */
    const uint8_t *data;
    size_t bytes;
};

struct safetensors {
    struct safetensor *tensors; /* sorted by name (strcmp) */
    size_t n;
    void *header; /* the parsed JSON, which owns the names */
};

/* The file must stay mapped while the result lives. Embedded: *out is set only on success. */
int safetensors_open(const struct model_file *file, struct safetensors *out, char *err,
                     size_t errlen) WARN_UNUSED;
void safetensors_close(struct safetensors *s);

#endif
