/* safetensors: one safetensors file; see safetensors.h.
 *
 * The header is JSON from an untrusted source. Its length is bounded by the file and by HEADER_MAX
 * before it is parsed; jansson bounds the depth and refuses duplicate keys, NUL in names and
 * invalid UTF-8. After that a tensor is three facts (dtype, shape, range) that must agree: range
 * within the data, range length = product of shape x size of dtype (checked arithmetic), and all
 * ranges in order of their begin must tile the data exactly: each begins where the one before ends,
 * the first at 0, the last ends at the end of the file. That rules out overlaps, holes and trailing
 * bytes in one rule, with empty tensors allowed anywhere. */
#include "common/model/safetensors.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/base/mem.h"
#include "common/model/model.h"

/* A header names each tensor in about 100 bytes: room for 20,000, and some 50 MB when parsed at
 * worst. */
#define HEADER_MAX     ((uint64_t)2 << 20)
#define NAME_MAX_BYTES 255

static const struct {
    const char *name;
    uint32_t type;
    uint8_t bytes;
} dtypes[] = {
    {"F32", TENSOR_F32, 4},  {"F16", TENSOR_F16, 2},     {"BF16", TENSOR_BF16, 2},
    {"F64", UINT32_MAX, 8},  {"I64", UINT32_MAX, 8},     {"U64", UINT32_MAX, 8},
    {"I32", UINT32_MAX, 4},  {"U32", UINT32_MAX, 4},     {"I16", UINT32_MAX, 2},
    {"U16", UINT32_MAX, 2},  {"I8", UINT32_MAX, 1},      {"U8", UINT32_MAX, 1},
    {"BOOL", UINT32_MAX, 1}, {"F8_E4M3", UINT32_MAX, 1}, {"F8_E5M2", UINT32_MAX, 1},
};

struct context {
    const struct model_file *file;
    size_t base; /* byte of the file where the data begins */
    char *err;
    size_t errlen;
};

#define FAIL(c, rc, fmt, ...)                                                                      \
    model_error((c)->err, (c)->errlen, (rc), "%s: " fmt, (c)->file->path, __VA_ARGS__)

static bool to_u64(const json_t *j, uint64_t *out)
{
    if (!json_is_integer(j) || json_integer_value(j) < 0)
        return false;
    *out = (uint64_t)json_integer_value(j);
    return true;
}

static int read_shape(const struct context *c, const json_t *shape, size_t elem_bytes,
                      struct safetensor *t, uint64_t *bytes)
{
    if (!json_is_array(shape) || json_array_size(shape) > SAFETENSORS_DIMS_MAX)
        return FAIL(c, STATUS_FORMAT, "tensor '%s': shape is no list of at most %d dimensions",
                    t->name, SAFETENSORS_DIMS_MAX);
    t->n_dims = (uint32_t)json_array_size(shape);
    *bytes = elem_bytes;
    for (uint32_t i = 0; i < t->n_dims; i++) {
        if (!to_u64(json_array_get(shape, i), &t->dims[i]))
            return FAIL(c, STATUS_FORMAT, "tensor '%s': dimension %u is no size", t->name, i);
        if (__builtin_mul_overflow(*bytes, t->dims[i], bytes))
            return FAIL(c, STATUS_FORMAT, "tensor '%s': its size overflows", t->name);
    }
    return 0;
}

static int read_tensor(const struct context *c, const char *name, const json_t *j,
                       struct safetensor *t)
{
    *t = (struct safetensor){.name = name, .type = UINT32_MAX};
    size_t len = strlen(name);
    for (const char *p = name; *p; p++)
        if (*p <= ' ' || *p > '~')
            len = 0;
    if (len == 0 || len > NAME_MAX_BYTES)
        return FAIL(c, STATUS_FORMAT,
                    "the header has a tensor whose name is not 1 to %d printable ASCII bytes",
                    NAME_MAX_BYTES);
    const char *dtype = json_string_value(json_object_get(j, "dtype"));
    size_t elem_bytes = 0;
    for (size_t i = 0; dtype && i < sizeof dtypes / sizeof *dtypes; i++)
        if (strcmp(dtype, dtypes[i].name) == 0) {
            t->dtype = dtypes[i].name;
            t->type = dtypes[i].type;
            elem_bytes = dtypes[i].bytes;
        }
    if (!elem_bytes)
        return FAIL(c, STATUS_UNSUPPORTED, "tensor '%s': unknown dtype '%.32s'", name,
                    dtype ? dtype : "");
    uint64_t bytes = 0, begin, end;
    TRY(read_shape(c, json_object_get(j, "shape"), elem_bytes, t, &bytes));
    const json_t *range = json_object_get(j, "data_offsets");
    if (json_array_size(range) != 2 || !to_u64(json_array_get(range, 0), &begin) ||
        !to_u64(json_array_get(range, 1), &end))
        return FAIL(c, STATUS_FORMAT, "tensor '%s': data_offsets are no two offsets", name);
    uint64_t room = c->file->size - c->base;
    if (begin > end || end > room)
        return FAIL(c, STATUS_FORMAT,
                    "tensor '%s': data_offsets %llu to %llu are not within the %llu bytes of data",
                    name, (unsigned long long)begin, (unsigned long long)end,
                    (unsigned long long)room);
    if (end - begin != bytes)
        return FAIL(c, STATUS_FORMAT,
                    "tensor '%s': data_offsets span %llu bytes, dtype and shape need %llu", name,
                    (unsigned long long)(end - begin), (unsigned long long)bytes);
    t->data = c->file->data + c->base + begin;
    t->bytes = (size_t)bytes;
    return 0;
}

static int by_range(const void *x, const void *y)
{
    const struct safetensor *a = x, *b = y;
    if (a->data != b->data)
        return a->data > b->data ? 1 : -1;
    return (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

static int by_name(const void *x, const void *y)
{
    const struct safetensor *a = x, *b = y;
    return strcmp(a->name, b->name);
}

static int check_tiling(const struct context *c, struct safetensors *s)
{
    const uint8_t *next = c->file->data + c->base, *end = c->file->data + c->file->size;
    qsort(s->tensors, s->n, sizeof *s->tensors, by_range);
    for (size_t i = 0; i < s->n; i++) {
        const struct safetensor *t = &s->tensors[i];
        size_t at = (size_t)(t->data - c->file->data);
        if (t->data < next)
            return FAIL(c, STATUS_FORMAT, "tensors '%s' and '%s' overlap at byte %zu",
                        s->tensors[i - 1].name, t->name, at);
        if (t->data > next)
            return FAIL(c, STATUS_FORMAT, "a hole of %zu bytes before tensor '%s' at byte %zu",
                        (size_t)(t->data - next), t->name, at);
        next = t->data + t->bytes;
    }
    if (next != end)
        return FAIL(c, STATUS_FORMAT, "%zu bytes at byte %zu belong to no tensor",
                    (size_t)(end - next), (size_t)(next - c->file->data));
    return 0;
}

static int read_tensors(const struct context *c, json_t *header, struct safetensors *s)
{
    const char *name;
    json_t *j;
    s->tensors = mem_array(json_object_size(header), sizeof *s->tensors);
    if (!s->tensors)
        return FAIL(c, STATUS_NOMEM, "out of memory for %zu tensors", json_object_size(header));
    json_object_foreach(header, name, j)
    {
        if (strcmp(name, "__metadata__") != 0)
            TRY(read_tensor(c, name, j, &s->tensors[s->n++]));
    }
    TRY(check_tiling(c, s));
    qsort(s->tensors, s->n, sizeof *s->tensors, by_name);
    return 0;
}

int safetensors_open(const struct model_file *file, struct safetensors *out, char *err,
                     size_t errlen)
{
    struct context c = {file, 8, err, errlen};
    uint64_t n = 0;
    if (file->size < 8)
        return FAIL(&c, STATUS_FORMAT, "truncated: %zu bytes, the header length needs 8",
                    file->size);
    for (int i = 7; i >= 0; i--)
        n = n << 8 | file->data[i];
    if (n > file->size - 8 || n > HEADER_MAX)
        return FAIL(&c, STATUS_FORMAT,
                    "a header of %llu bytes at byte 8: the file has %zu, %llu are allowed",
                    (unsigned long long)n, file->size - 8, (unsigned long long)HEADER_MAX);
    json_error_t e;
    json_t *header =
        json_loadb((const char *)file->data + 8, (size_t)n, JSON_REJECT_DUPLICATES, &e);
    if (!header)
        return FAIL(&c, STATUS_FORMAT, "the header is no valid JSON at byte %d: %s", 8 + e.position,
                    e.text);
    c.base = 8 + (size_t)n;
    struct safetensors s = {.header = header};
    int rc = json_is_object(header)
                 ? read_tensors(&c, header, &s)
                 : FAIL(&c, STATUS_FORMAT, "the header at byte %d is no JSON object", 8);
    if (rc) {
        safetensors_close(&s);
        return rc;
    }
    *out = s;
    return 0;
}

void safetensors_close(struct safetensors *s)
{
    free(s->tensors);
    json_decref(s->header);
    *s = (struct safetensors){0};
}
