/* gguf: the container format GGUF; see gguf.h.
 *
 * Purpose: turn a hostile file into tables that need no further checks.
 *
 * Design: one pass over the header with a cursor that never moves beyond the end of the file. A
 * count is believed only after `count * smallest record <= bytes left`, so nothing is allocated
 * that the file could not fill; the numbers of keys and tensors have fixed bounds on top. Keys are
 * kept as (name, type, position) and decoded when asked for: arrays of 150,000 strings cost nothing
 * until the tokenizer wants them. Both tables are sorted by name, which finds duplicates and serves
 * look-ups. Tensor ranges are sorted by offset once to prove that none overlap.
 *
 * Refused on purpose, though the format allows it: arrays of arrays (no model has them, and their
 * depth would need a bound), tensors of no dimensions, big-endian files, version 1, names that are
 * not printable ASCII (they go into one-line messages). Gaps between tensors and trailing bytes are
 * allowed: writers pad. */
#include "common/model/gguf.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/model/tensor.h"

#define KEYS_MAX       65536
#define TENSORS_MAX    65536
#define NAME_MAX_BYTES 255
#define KEY_BYTES_MIN  13 /* empty name, type, one byte */
#define TENSOR_MIN     32 /* empty name, one dimension */
#define ALIGNMENT_MAX  65536

struct key {
    const char *name; /* in the mapping, name_len bytes */
    uint32_t name_len;
    uint32_t type;      /* enum gguf_type */
    uint32_t elem_type; /* arrays */
    uint64_t count;     /* arrays: elements; else 1 */
    size_t pos;         /* of the value (strings: of the length; arrays: of the first element) */
};

struct gguf {
    const struct model_file *file;
    uint32_t version;
    struct key *keys; /* sorted by name */
    size_t n_keys;
    struct gguf_tensor *tensors; /* sorted by name */
    size_t n_tensors;
    struct arena names;
};

struct cursor {
    const struct gguf *g;
    const uint8_t *data;
    size_t size, pos;
    char *err;
    size_t errlen;
};

static const struct {
    const char *name; /* with its article, for messages */
    uint8_t bytes;    /* 0: variable */
} value_types[GGUF_TYPE_N] = {
    [GGUF_U8] = {"an 8-bit unsigned integer", 1},
    [GGUF_I8] = {"an 8-bit integer", 1},
    [GGUF_U16] = {"a 16-bit unsigned integer", 2},
    [GGUF_I16] = {"a 16-bit integer", 2},
    [GGUF_U32] = {"a 32-bit unsigned integer", 4},
    [GGUF_I32] = {"a 32-bit integer", 4},
    [GGUF_F32] = {"a 32-bit float", 4},
    [GGUF_BOOL] = {"a boolean", 1},
    [GGUF_STRING] = {"a string", 0},
    [GGUF_ARRAY] = {"an array", 0},
    [GGUF_U64] = {"a 64-bit unsigned integer", 8},
    [GGUF_I64] = {"a 64-bit integer", 8},
    [GGUF_F64] = {"a 64-bit float", 8},
};

/* ---- reading ----------------------------------------------------------------------------------
 */

static uint32_t load_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint64_t load_u64(const uint8_t *p)
{
    return load_u32(p) | (uint64_t)load_u32(p + 4) << 32;
}

static size_t left(const struct cursor *c)
{
    return c->size - c->pos;
}

#define FAIL(c, rc, fmt, ...)                                                                      \
    model_error((c)->err, (c)->errlen, (rc), "%s: " fmt, (c)->g->file->path, __VA_ARGS__)

static int truncated(const struct cursor *c, const char *what)
{
    return FAIL(c, STATUS_FORMAT, "truncated: the file ends at byte %zu, inside %s at byte %zu",
                c->size, what, c->pos);
}

static int read_u32(struct cursor *c, const char *what, uint32_t *out)
{
    if (left(c) < 4)
        return truncated(c, what);
    *out = load_u32(c->data + c->pos);
    c->pos += 4;
    return 0;
}

static int read_u64(struct cursor *c, const char *what, uint64_t *out)
{
    if (left(c) < 8)
        return truncated(c, what);
    *out = load_u64(c->data + c->pos);
    c->pos += 8;
    return 0;
}

/* Leaves the cursor behind the string; any bytes. */
static int read_string(struct cursor *c, const char *what, struct gguf_string *out)
{
    uint64_t n = 0;
    TRY(read_u64(c, what, &n));
    if (n > left(c))
        return FAIL(c, STATUS_FORMAT, "%s at byte %zu claims %llu bytes, %zu are left", what,
                    c->pos - 8, (unsigned long long)n, left(c));
    *out = (struct gguf_string){(const char *)c->data + c->pos, (size_t)n};
    c->pos += (size_t)n;
    return 0;
}

/* The name of a key or a tensor: short, and safe to print. */
static int read_name(struct cursor *c, const char *what, struct gguf_string *out)
{
    size_t at = c->pos;
    TRY(read_string(c, what, out));
    if (out->n == 0 || out->n > NAME_MAX_BYTES)
        return FAIL(c, STATUS_FORMAT, "%s at byte %zu has %zu bytes, not 1 to %d", what, at, out->n,
                    NAME_MAX_BYTES);
    for (size_t i = 0; i < out->n; i++)
        if (out->p[i] <= ' ' || out->p[i] > '~')
            return FAIL(c, STATUS_FORMAT, "%s at byte %zu is not printable ASCII", what, at);
    return 0;
}

/* ---- metadata ---------------------------------------------------------------------------------
 */

/* Walks over one value of the key (a scalar, or each element of an array) and checks it. */
static int skip_values(struct cursor *c, const struct key *k, uint32_t type, uint64_t count)
{
    if (type == GGUF_STRING) {
        if (count > left(c) / 8)
            return FAIL(c, STATUS_FORMAT,
                        "key '%.*s' claims %llu strings at byte %zu, %zu bytes are left",
                        (int)k->name_len, k->name, (unsigned long long)count, c->pos, left(c));
        struct gguf_string s;
        for (uint64_t i = 0; i < count; i++)
            TRY(read_string(c, "a string", &s));
        return 0;
    }
    size_t bytes = value_types[type].bytes;
    if (count > left(c) / bytes)
        return FAIL(c, STATUS_FORMAT,
                    "key '%.*s' claims %llu values of %zu bytes at byte %zu, %zu bytes are left",
                    (int)k->name_len, k->name, (unsigned long long)count, bytes, c->pos, left(c));
    if (type == GGUF_BOOL)
        for (uint64_t i = 0; i < count; i++)
            if (c->data[c->pos + i] > 1)
                return FAIL(c, STATUS_FORMAT, "key '%.*s': byte %zu is no boolean",
                            (int)k->name_len, k->name, (size_t)(c->pos + i));
    c->pos += (size_t)count * bytes;
    return 0;
}

static int read_key(struct cursor *c, struct key *k)
{
    struct gguf_string name;
    TRY(read_name(c, "the name of a key", &name));
    *k = (struct key){.name = name.p, .name_len = (uint32_t)name.n, .count = 1};
    TRY(read_u32(c, "the type of a key", &k->type));
    if (k->type >= GGUF_TYPE_N)
        return FAIL(c, STATUS_FORMAT, "key '%.*s': unknown value type %u at byte %zu",
                    (int)k->name_len, k->name, k->type, c->pos - 4);
    if (k->type != GGUF_ARRAY) {
        k->pos = c->pos;
        return skip_values(c, k, k->type, 1);
    }
    TRY(read_u32(c, "the type of an array", &k->elem_type));
    if (k->elem_type >= GGUF_TYPE_N)
        return FAIL(c, STATUS_FORMAT, "key '%.*s': unknown element type %u at byte %zu",
                    (int)k->name_len, k->name, k->elem_type, c->pos - 4);
    if (k->elem_type == GGUF_ARRAY)
        return FAIL(c, STATUS_UNSUPPORTED,
                    "key '%.*s': arrays of arrays are not supported (byte %zu)", (int)k->name_len,
                    k->name, c->pos - 4);
    TRY(read_u64(c, "the length of an array", &k->count));
    k->pos = c->pos;
    return skip_values(c, k, k->elem_type, k->count);
}

static int name_order(const char *a, size_t an, const char *b, size_t bn)
{
    int d = memcmp(a, b, an < bn ? an : bn);
    return d ? d : (an > bn) - (an < bn);
}

static int key_order(const void *x, const void *y)
{
    const struct key *a = x, *b = y;
    return name_order(a->name, a->name_len, b->name, b->name_len);
}

static int read_keys(struct cursor *c, struct gguf *g, uint64_t n)
{
    if (n > left(c) / KEY_BYTES_MIN || n > KEYS_MAX)
        return FAIL(c, STATUS_FORMAT, "claims %llu keys at byte 16, more than the file holds or %d",
                    (unsigned long long)n, KEYS_MAX);
    g->keys = mem_array((size_t)n, sizeof *g->keys);
    if (!g->keys)
        return FAIL(c, STATUS_NOMEM, "out of memory for %llu keys", (unsigned long long)n);
    for (; g->n_keys < n; g->n_keys++)
        TRY(read_key(c, &g->keys[g->n_keys]));
    qsort(g->keys, g->n_keys, sizeof *g->keys, key_order);
    for (size_t i = 1; i < g->n_keys; i++)
        if (key_order(&g->keys[i - 1], &g->keys[i]) == 0)
            return FAIL(c, STATUS_FORMAT, "key '%.*s' is there twice (bytes %zu and %zu)",
                        (int)g->keys[i].name_len, g->keys[i].name, g->keys[i - 1].pos,
                        g->keys[i].pos);
    return 0;
}

static const struct key *find(const struct gguf *g, const char *name)
{
    struct key wanted = {.name = name, .name_len = (uint32_t)strlen(name)};
    return bsearch(&wanted, g->keys, g->n_keys, sizeof *g->keys, key_order);
}

/* ---- tensors ----------------------------------------------------------------------------------
 */

static int read_tensor(struct cursor *c, struct gguf *g, struct gguf_tensor *t, uint64_t *offset)
{
    struct gguf_string name;
    TRY(read_name(c, "the name of a tensor", &name));
    t->name = arena_strndup(&g->names, name.p, name.n);
    if (!t->name)
        return FAIL(c, STATUS_NOMEM, "out of memory for tensor names at byte %zu", c->pos);
    TRY(read_u32(c, "the dimensions of a tensor", &t->n_dims));
    if (t->n_dims < 1 || t->n_dims > 4)
        return FAIL(c, STATUS_FORMAT, "tensor '%s': %u dimensions at byte %zu, not 1 to 4", t->name,
                    t->n_dims, c->pos - 4);
    uint64_t rows = 1;
    for (uint32_t i = 0; i < 4; i++) {
        t->dims[i] = 1;
        if (i >= t->n_dims)
            continue;
        TRY(read_u64(c, "the dimensions of a tensor", &t->dims[i]));
        if (t->dims[i] == 0)
            return FAIL(c, STATUS_FORMAT, "tensor '%s': dimension %u is 0 at byte %zu", t->name, i,
                        c->pos - 8);
        if (i && __builtin_mul_overflow(rows, t->dims[i], &rows))
            return FAIL(c, STATUS_FORMAT, "tensor '%s': the product of its dimensions overflows",
                        t->name);
    }
    TRY(read_u32(c, "the type of a tensor", &t->type));
    const struct tensor_layout *layout = tensor_any_layout(t->type);
    if (!layout)
        return FAIL(c, STATUS_UNSUPPORTED, "tensor '%s': unknown type %u at byte %zu", t->name,
                    t->type, c->pos - 4);
    if (t->dims[0] % layout->block_elems)
        return FAIL(c, STATUS_FORMAT,
                    "tensor '%s': rows of %llu elements are no whole %s blocks of %u", t->name,
                    (unsigned long long)t->dims[0], layout->name, layout->block_elems);
    uint64_t bytes;
    if (!tensor_size(layout, rows, t->dims[0], &bytes))
        return FAIL(c, STATUS_FORMAT, "tensor '%s': its size overflows", t->name);
    if (bytes > c->size)
        return FAIL(c, STATUS_FORMAT, "tensor '%s': %llu bytes of data, the file has %zu", t->name,
                    (unsigned long long)bytes, c->size);
    t->bytes = (size_t)bytes;
    return read_u64(c, "the offset of a tensor", offset);
}

static int tensor_name_order(const void *x, const void *y)
{
    const struct gguf_tensor *a = x, *b = y;
    return strcmp(a->name, b->name);
}

static int tensor_data_order(const void *x, const void *y)
{
    const struct gguf_tensor *a = x, *b = y;
    return (a->data > b->data) - (a->data < b->data);
}

/* Offsets become pointers: aligned, inside the file, apart from each other. */
static int place_tensors(struct cursor *c, struct gguf *g, const uint64_t *offsets)
{
    uint32_t alignment = 32;
    const struct key *k = find(g, "general.alignment");
    if (k && k->type != GGUF_U32)
        return gguf_explain(g, "general.alignment", STATUS_FORMAT, "a 32-bit unsigned integer",
                            c->err, c->errlen);
    if (k)
        alignment = load_u32(c->data + k->pos);
    if (alignment < 8 || alignment > ALIGNMENT_MAX || (alignment & (alignment - 1)))
        return FAIL(c, STATUS_FORMAT,
                    "general.alignment is %u at byte %zu, not a power of two from 8 to %d",
                    alignment, k ? k->pos : 0, ALIGNMENT_MAX);
    size_t base;
    if (!mem_add(c->pos, alignment - 1, &base))
        return truncated(c, "the padding after the header");
    base -= base % alignment;
    if (base > c->size && g->n_tensors)
        return truncated(c, "the padding after the header");
    for (size_t i = 0; i < g->n_tensors; i++) {
        struct gguf_tensor *t = &g->tensors[i];
        size_t room = c->size - base;
        if (offsets[i] % alignment)
            return FAIL(c, STATUS_FORMAT, "tensor '%s': offset %llu is not aligned to %u", t->name,
                        (unsigned long long)offsets[i], alignment);
        if (offsets[i] > room || t->bytes > room - (size_t)offsets[i])
            return FAIL(c, STATUS_FORMAT,
                        "tensor '%s': %zu bytes at offset %llu (byte %zu + offset) end beyond the "
                        "file's %zu bytes",
                        t->name, t->bytes, (unsigned long long)offsets[i], base, c->size);
        t->data = c->data + base + (size_t)offsets[i];
    }
    qsort(g->tensors, g->n_tensors, sizeof *g->tensors, tensor_data_order);
    for (size_t i = 1; i < g->n_tensors; i++)
        if (g->tensors[i - 1].data + g->tensors[i - 1].bytes > g->tensors[i].data)
            return FAIL(c, STATUS_FORMAT, "tensors '%s' and '%s' overlap at byte %zu",
                        g->tensors[i - 1].name, g->tensors[i].name,
                        (size_t)(g->tensors[i].data - c->data));
    return 0;
}

static int read_tensors(struct cursor *c, struct gguf *g, uint64_t n)
{
    if (n > left(c) / TENSOR_MIN || n > TENSORS_MAX)
        return FAIL(c, STATUS_FORMAT,
                    "claims %llu tensors at byte 8, more than the file holds or %d",
                    (unsigned long long)n, TENSORS_MAX);
    uint64_t *offsets = mem_array((size_t)n, sizeof *offsets);
    g->tensors = mem_array((size_t)n, sizeof *g->tensors);
    int rc = 0;
    if (!offsets || !g->tensors)
        rc = FAIL(c, STATUS_NOMEM, "out of memory for %llu tensors", (unsigned long long)n);
    for (; !rc && g->n_tensors < n; g->n_tensors++)
        rc = read_tensor(c, g, &g->tensors[g->n_tensors], &offsets[g->n_tensors]);
    if (!rc)
        rc = place_tensors(c, g, offsets);
    free(offsets);
    TRY(rc);
    qsort(g->tensors, g->n_tensors, sizeof *g->tensors, tensor_name_order);
    for (size_t i = 1; i < g->n_tensors; i++)
        if (strcmp(g->tensors[i - 1].name, g->tensors[i].name) == 0)
            return FAIL(c, STATUS_FORMAT, "two tensors have the name '%s'", g->tensors[i].name);
    return 0;
}

/* ---- the file ---------------------------------------------------------------------------------
 */

static int read_header(struct cursor *c, struct gguf *g)
{
    if (c->size < 4 || memcmp(c->data, "GGUF", 4) != 0) {
        if (c->size >= 4 && memcmp(c->data, "FUGG", 4) == 0)
            return FAIL(c, STATUS_UNSUPPORTED,
                        "big-endian GGUF (magic at byte %d) is not supported", 0);
        return FAIL(c, STATUS_FORMAT, "not a GGUF file (no magic at byte %d)", 0);
    }
    c->pos = 4;
    TRY(read_u32(c, "the version", &g->version));
    if (g->version && !(g->version & 0xffffu))
        return FAIL(c, STATUS_UNSUPPORTED, "big-endian GGUF (version at byte %d) is not supported",
                    4);
    if (g->version != 2 && g->version != 3)
        return FAIL(c, STATUS_UNSUPPORTED,
                    "GGUF version %u at byte 4 is not supported, only 2 and 3", g->version);
    uint64_t n_tensors, n_keys;
    TRY(read_u64(c, "the tensor count", &n_tensors));
    TRY(read_u64(c, "the key count", &n_keys));
    TRY(read_keys(c, g, n_keys));
    return read_tensors(c, g, n_tensors);
}

int gguf_open(const struct model_file *file, struct gguf **out, char *err, size_t errlen)
{
    struct gguf *g = mem_array(1, sizeof *g);
    if (!g)
        return model_error(err, errlen, STATUS_NOMEM, "%s: out of memory", file->path);
    g->file = file;
    arena_init(&g->names, 0);
    struct cursor c = {g, file->data, file->size, 0, err, errlen};
    int rc = read_header(&c, g);
    if (rc) {
        gguf_close(g);
        return rc;
    }
    *out = g;
    return 0;
}

void gguf_close(struct gguf *g)
{
    if (!g)
        return;
    arena_fini(&g->names);
    free(g->keys);
    free(g->tensors);
    free(g);
}

uint32_t gguf_version(const struct gguf *g)
{
    return g->version;
}

size_t gguf_n_tensors(const struct gguf *g)
{
    return g->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i)
{
    return &g->tensors[i];
}

const struct gguf_tensor *gguf_tensor(const struct gguf *g, const char *name)
{
    struct gguf_tensor wanted = {.name = name};
    return bsearch(&wanted, g->tensors, g->n_tensors, sizeof *g->tensors, tensor_name_order);
}

/* ---- accessors --------------------------------------------------------------------------------
 */

/* One integer of any width as int64; values of 2^63 and more are not representable. */
static bool load_integer(const uint8_t *p, uint32_t type, int64_t *out)
{
    switch (type) {
    case GGUF_U8:
        *out = p[0];
        return true;
    case GGUF_I8:
        *out = (int8_t)p[0];
        return true;
    case GGUF_U16:
        *out = p[0] | p[1] << 8;
        return true;
    case GGUF_I16:
        *out = (int16_t)(p[0] | p[1] << 8);
        return true;
    case GGUF_U32:
        *out = load_u32(p);
        return true;
    case GGUF_I32:
        *out = (int32_t)load_u32(p);
        return true;
    case GGUF_U64:
    case GGUF_I64:
        *out = (int64_t)load_u64(p);
        return type == GGUF_I64 || *out >= 0;
    default:
        return false;
    }
}

static bool is_integer(uint32_t type)
{
    return type <= GGUF_I32 || type == GGUF_U64 || type == GGUF_I64;
}

int gguf_string(const struct gguf *g, const char *key, struct gguf_string *out)
{
    const struct key *k = find(g, key);
    if (!k)
        return STATUS_NOTFOUND;
    if (k->type != GGUF_STRING)
        return STATUS_FORMAT;
    const uint8_t *p = g->file->data + k->pos;
    *out = (struct gguf_string){(const char *)p + 8, (size_t)load_u64(p)};
    return 0;
}

int gguf_u32(const struct gguf *g, const char *key, uint32_t *out)
{
    const struct key *k = find(g, key);
    int64_t v;
    if (!k)
        return STATUS_NOTFOUND;
    if (!is_integer(k->type))
        return STATUS_FORMAT;
    if (!load_integer(g->file->data + k->pos, k->type, &v) || v < 0 || v > UINT32_MAX)
        return STATUS_RANGE;
    *out = (uint32_t)v;
    return 0;
}

int gguf_f32(const struct gguf *g, const char *key, float *out)
{
    const struct key *k = find(g, key);
    if (!k)
        return STATUS_NOTFOUND;
    const uint8_t *p = g->file->data + k->pos;
    if (k->type == GGUF_F32) {
        memcpy(out, p, sizeof *out);
        return 0;
    }
    if (k->type != GGUF_F64)
        return STATUS_FORMAT;
    double d;
    memcpy(&d, p, sizeof d);
    *out = (float)d;
    return 0;
}

int gguf_bool(const struct gguf *g, const char *key, bool *out)
{
    const struct key *k = find(g, key);
    if (!k)
        return STATUS_NOTFOUND;
    if (k->type != GGUF_BOOL)
        return STATUS_FORMAT;
    *out = g->file->data[k->pos] != 0;
    return 0;
}

int gguf_strings(const struct gguf *g, const char *key, struct gguf_string **out, size_t *n)
{
    const struct key *k = find(g, key);
    if (!k)
        return STATUS_NOTFOUND;
    if (k->type != GGUF_ARRAY || k->elem_type != GGUF_STRING)
        return STATUS_FORMAT;
    struct gguf_string *s = mem_array((size_t)k->count, sizeof *s);
    if (!s)
        return STATUS_NOMEM;
    const uint8_t *p = g->file->data + k->pos;
    for (uint64_t i = 0; i < k->count; i++) {
        s[i] = (struct gguf_string){(const char *)p + 8, (size_t)load_u64(p)};
        p += 8 + s[i].n;
    }
    *out = s;
    *n = (size_t)k->count;
    return 0;
}

int gguf_f32s(const struct gguf *g, const char *key, float **out, size_t *n)
{
    const struct key *k = find(g, key);
    if (!k)
        return STATUS_NOTFOUND;
    if (k->type != GGUF_ARRAY || k->elem_type != GGUF_F32)
        return STATUS_FORMAT;
    float *v = mem_array((size_t)k->count, sizeof *v);
    if (!v)
        return STATUS_NOMEM;
    if (k->count)
        memcpy(v, g->file->data + k->pos, (size_t)k->count * sizeof *v);
    *out = v;
    *n = (size_t)k->count;
    return 0;
}

int gguf_i32s(const struct gguf *g, const char *key, int32_t **out, size_t *n)
{
    const struct key *k = find(g, key);
    if (!k)
        return STATUS_NOTFOUND;
    if (k->type != GGUF_ARRAY || !is_integer(k->elem_type))
        return STATUS_FORMAT;
    int32_t *v = mem_array((size_t)k->count, sizeof *v);
    if (!v)
        return STATUS_NOMEM;
    const uint8_t *p = g->file->data + k->pos;
    for (uint64_t i = 0; i < k->count; i++, p += value_types[k->elem_type].bytes) {
        int64_t x;
        if (!load_integer(p, k->elem_type, &x) || x < INT32_MIN || x > INT32_MAX) {
            free(v);
            return STATUS_RANGE;
        }
        v[i] = (int32_t)x;
    }
    *out = v;
    *n = (size_t)k->count;
    return 0;
}

bool gguf_has(const struct gguf *g, const char *key)
{
    return find(g, key) != NULL;
}

uint64_t gguf_count(const struct gguf *g, const char *key)
{
    const struct key *k = find(g, key);
    return k && k->type == GGUF_ARRAY ? k->count : 0;
}

int gguf_explain(const struct gguf *g, const char *key, int rc, const char *wanted, char *err,
                 size_t errlen)
{
    const struct key *k = find(g, key);
    const char *path = g->file->path;
    if (!k)
        return model_error(err, errlen, rc, "%s: key '%s' is missing", path, key);
    switch (rc) {
    case STATUS_RANGE:
        return model_error(err, errlen, rc, "%s: key '%s' at byte %zu is out of range", path, key,
                           k->pos);
    case STATUS_NOMEM:
        return model_error(err, errlen, rc, "%s: out of memory for key '%s'", path, key);
    default:
        if (k->type == GGUF_ARRAY)
            return model_error(err, errlen, rc,
                               "%s: key '%s' at byte %zu is an array (each %s), not %s", path, key,
                               k->pos, value_types[k->elem_type].name, wanted);
        return model_error(err, errlen, rc, "%s: key '%s' at byte %zu is %s, not %s", path, key,
                           k->pos, value_types[k->type].name, wanted);
    }
}
