/* gguf_build: makes GGUF files, good and bad, byte by byte, for the tests of this room. A header of
 * static functions, because a unit test is one object file. Keys and tensors are appended in the
 * order in which the file shall have them; counts can be overruled to lie. */
#ifndef BATON_TESTS_MODEL_GGUF_BUILD_H
#define BATON_TESTS_MODEL_GGUF_BUILD_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/model/gguf.h"
#include "common/model/model.h"
#include "common/model/tensor.h"
#include "tests/harness.h"

struct gguf_build {
    struct buf keys, tensors, data;
    uint32_t version;
    uint64_t n_keys, n_tensors;
    char magic[5];
};

static inline void build_init(struct gguf_build *b)
{
    *b = (struct gguf_build){.version = 3, .magic = "GGUF"};
    buf_init(&b->keys, 0);
    buf_init(&b->tensors, 0);
    buf_init(&b->data, 0);
}

static inline void put_u32(struct buf *out, uint32_t v)
{
    buf_append(out, &v, sizeof v);
}
static inline void put_u64(struct buf *out, uint64_t v)
{
    buf_append(out, &v, sizeof v);
}
static inline void put_string(struct buf *out, const char *s)
{
    put_u64(out, strlen(s));
    buf_puts(out, s);
}

/* Name and type; the caller appends the value to b->keys. */
static inline void build_key(struct gguf_build *b, const char *key, uint32_t type)
{
    put_string(&b->keys, key);
    put_u32(&b->keys, type);
    b->n_keys++;
}
static inline void build_u32(struct gguf_build *b, const char *key, uint32_t v)
{
    build_key(b, key, GGUF_U32);
    put_u32(&b->keys, v);
}
static inline void build_f32(struct gguf_build *b, const char *key, float v)
{
    build_key(b, key, GGUF_F32);
    buf_append(&b->keys, &v, sizeof v);
}
static inline void build_string(struct gguf_build *b, const char *key, const char *v)
{
    build_key(b, key, GGUF_STRING);
    put_string(&b->keys, v);
}
/* An array of n elements; the caller appends them. */
static inline void build_array(struct gguf_build *b, const char *key, uint32_t elem, uint64_t n)
{
    build_key(b, key, GGUF_ARRAY);
    put_u32(&b->keys, elem);
    put_u64(&b->keys, n);
}

/* A tensor's table entry and nothing else. */
static inline void build_entry(struct gguf_build *b, const char *name, uint32_t type,
                               uint32_t n_dims, const uint64_t *dims, uint64_t offset)
{
    put_string(&b->tensors, name);
    put_u32(&b->tensors, n_dims);
    for (uint32_t i = 0; i < n_dims && i < 16; i++)
        put_u64(&b->tensors, dims[i]);
    put_u32(&b->tensors, type);
    put_u64(&b->tensors, offset);
    b->n_tensors++;
}

/* A tensor with data: every byte is `fill`. */
static inline void build_tensor(struct gguf_build *b, const char *name, uint32_t type,
                                uint32_t n_dims, uint64_t d0, uint64_t d1, int fill)
{
    uint64_t dims[2] = {d0, d1}, bytes;
    while (b->data.len % 32)
        buf_putc(&b->data, 0);
    build_entry(b, name, type, n_dims, dims, b->data.len);
    ck_assert(tensor_size(tensor_any_layout(type), n_dims > 1 ? d1 : 1, d0, &bytes));
    void *p = buf_reserve(&b->data, bytes);
    ck_assert_ptr_nonnull(p);
    memset(p, fill, bytes);
    b->data.len += bytes;
}

/* The file, malloc'ed to its exact size so that AddressSanitizer sees every byte read too far;
 * releases the builder. */
static inline uint8_t *build_finish(struct gguf_build *b, size_t *size)
{
    struct buf out;
    buf_init(&out, 0);
    buf_append(&out, b->magic, 4);
    put_u32(&out, b->version);
    put_u64(&out, b->n_tensors);
    put_u64(&out, b->n_keys);
    buf_append(&out, buf_str(&b->keys), b->keys.len);
    buf_append(&out, buf_str(&b->tensors), b->tensors.len);
    while (out.len % 32 && b->n_tensors)
        buf_putc(&out, 0);
    buf_append(&out, buf_str(&b->data), b->data.len);
    ck_assert(buf_ok(&out) && buf_ok(&b->keys) && buf_ok(&b->tensors) && buf_ok(&b->data));
    uint8_t *p = malloc(out.len);
    ck_assert_ptr_nonnull(p);
    memcpy(p, out.data, out.len);
    *size = out.len;
    buf_fini(&out);
    buf_fini(&b->keys);
    buf_fini(&b->tensors);
    buf_fini(&b->data);
    return p;
}

/* Bytes in memory as a mapped file. */
static inline struct model_file file_of(const uint8_t *data, size_t size)
{
    static char name[] = "test.gguf";
    return (struct model_file){.path = name, .fd = -1, .data = data, .size = size};
}

/* Refusing a file must not have cost memory: the most that this process ever had. */
static inline void ck_assert_little_memory(void)
{
    struct rusage u;
    ck_assert_ok(getrusage(RUSAGE_SELF, &u));
    ck_assert_int_lt(u.ru_maxrss, 100 * 1024);
}

#endif
