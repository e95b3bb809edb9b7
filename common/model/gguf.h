/* gguf: the container format GGUF, versions 2 and 3, read from a mapped file.
 *
 * gguf_open checks the whole header (metadata and tensor table) against the size of the file before
 * it allocates or hands out anything; afterwards every accessor works on proven ranges. It knows
 * nothing of models: names, types and shapes are given as the file has them. Vocabulary-only files
 * (no tensors) are as good as any other.
 *
 *   OFFSET SIZE
 *   0      4    magic "GGUF"
 *   4      4    version, little-endian: 2 or 3
 *   8      8    tensor count
 *   16     8    key count
 *   24     …    keys: name (u64 length, bytes), u32 value type, value
 *   …      …    tensors: name, u32 dimensions 1..4, u64 each (fastest first), u32 type, u64 offset
 *   …      …    padding to general.alignment (32), then the data that the offsets count from */
#ifndef BATON_MODEL_GGUF_H
#define BATON_MODEL_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/model/file.h"

/* Value types as the file numbers them. */
enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_TYPE_N
};

/* Bytes of the mapping, not NUL-terminated; any bytes, NUL included. */
struct gguf_string {
    const char *p;
    size_t n;
};

struct gguf_tensor {
    const char *name; /* NUL-terminated, printable ASCII */
    uint32_t type;    /* a ggml_type that tensor_any_layout knows */
    uint32_t n_dims;
    uint64_t dims[4]; /* fastest first, unused ones 1 */
    const uint8_t *data;
    size_t bytes; /* data .. data + bytes lies in the file */
};

struct gguf;

/* Parses the file, which must stay mapped while the result lives. On failure err has one line that
 * names the file and the byte offset, key or tensor. */
int gguf_open(const struct model_file *file, struct gguf **out, char *err,
              size_t errlen) WARN_UNUSED;
void gguf_close(struct gguf *g);

/* Metadata by key. 0; STATUS_NOTFOUND: no such key; STATUS_FORMAT: it has another type;
 * STATUS_RANGE: the number does not fit. *out is set only on success. */
int gguf_string(const struct gguf *g, const char *key, struct gguf_string *out) WARN_UNUSED;
int gguf_u32(const struct gguf *g, const char *key, uint32_t *out) WARN_UNUSED; /* any integer */
int gguf_f32(const struct gguf *g, const char *key, float *out) WARN_UNUSED;    /* F32 or F64 */
int gguf_bool(const struct gguf *g, const char *key, bool *out) WARN_UNUSED;
/* Arrays. The caller frees *out with free(); the strings themselves are loans from the mapping. An
 * empty array gives *n 0 and a block to free. gguf_i32s takes arrays of any integer type. */
int gguf_strings(const struct gguf *g, const char *key, struct gguf_string **out,
                 size_t *n) WARN_UNUSED;
int gguf_f32s(const struct gguf *g, const char *key, float **out, size_t *n) WARN_UNUSED;
int gguf_i32s(const struct gguf *g, const char *key, int32_t **out, size_t *n) WARN_UNUSED;
bool gguf_has(const struct gguf *g, const char *key);
/* Elements of the array at key; 0 when there is no such array. */
uint64_t gguf_count(const struct gguf *g, const char *key);

/* Puts the line for a failed accessor into err ("FILE: key 'x' is missing", "… at byte 1234 is a
 * string, not an unsigned 32-bit integer"; wanted: the words after "not"), and returns rc. */
int gguf_explain(const struct gguf *g, const char *key, int rc, const char *wanted, char *err,
                 size_t errlen);

size_t gguf_n_tensors(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i);
/* By name; NULL when there is none. */
const struct gguf_tensor *gguf_tensor(const struct gguf *g, const char *name);
uint32_t gguf_version(const struct gguf *g);

#endif
