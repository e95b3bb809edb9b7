/* cuda_kv: the KV pool on the device, and blocks on their way in and out.
 *
 * Everything runs on a stream of its own and is complete when the call returns: a row joins only a
 * pass that is launched afterwards, and a layer is read only after its event has come. The stream
 * goes before the one that computes: its kernels are short, a loop waits for them, and behind the
 * blocks of a long pass they would wait for its end. Blocks that lie side by side are one copy. */
#include <string.h>

#include "common/base/assert.h"
#include "kernels/cuda_impl.h"

/* A device loads a kernel when it is first launched, which takes memory and may wait for all that
 * runs: not when the first block comes. */
static int load_kernels(struct cuda_backend *b)
{
    const struct backend_dims *d = &b->base.dims;
    struct gpu_launch l = {.stream = b->kv_stream, .n_sms = b->props.sms};
    b->sums[0] = 0;
    CUDA_RUN(b, cuda_kv_checksum(l, b->workspace, b->sums_device, 1, 16,
                                 b->sums_device + DEVICE_SUMS_MAX));
    CUDA_RUN(b, cuda_kv_clear_tail(l, b->workspace, 1, 0, d->n_kv_heads, d->kv_block_size,
                                   d->head_dim, d->kv_block_size));
    CUDA_TRY(b, stream_sync(b->kv_stream));
    return STATUS_OK;
}

int cuda_kv_init(struct cuda_backend *b)
{
    void *host, *device;
    CUDA_TRY(b, stream_create(&b->kv_stream, true));
    CUDA_TRY(b, host_alloc(&host, &device, 2 * DEVICE_SUMS_MAX * sizeof(uint64_t)));
    b->sums = host;
    b->sums_device = device;
    return load_kernels(b);
}

void cuda_kv_fini(struct cuda_backend *b)
{
    if (b->kv_stream) { /* first: what it still runs uses the rest */
        b->api->stream_sync(b->kv_stream);
        b->api->stream_destroy(b->kv_stream);
    }
    if (b->sums)
        b->api->host_free(b->sums);
}

int cuda_kv_alloc(struct backend *base, uint32_t n_blocks, void **out)
{
    struct cuda_backend *b = (struct cuda_backend *)base;
    const struct backend_dims *d = &base->dims;
    size_t block = cuda_block_bytes(b), layer, n;
    void *p;
    if (__builtin_mul_overflow(block, n_blocks, &layer) ||
        __builtin_mul_overflow(layer, d->n_layers, &n))
        return STATUS_RANGE;
    CUDA_TRY(b, thread_attach());
    int rc = b->api->mem_alloc(&p, n);
    if (rc == GPU_ERROR_MEMORY)
        return STATUS_NOMEM;
    if (rc != 0)
        return cuda_failed(b, rc, "mem_alloc");
    for (uint32_t l = 0; l < d->n_layers && rc == 0; l++) /* the sink */
        rc = b->api->fill_async((uint8_t *)p + l * layer, 0, block, b->kv_stream);
    if (rc == 0)
        rc = b->api->stream_sync(b->kv_stream);
    if (rc != 0) {
        b->api->mem_free(p);
        return cuda_failed(b, rc, "clearing the sink");
    }
    b->model.kv = p;
    b->model.n_blocks = n_blocks;
    if (b->api->watch)
        b->api->watch->kv_pool(p, d->n_layers, n_blocks, block, d->kv_block_size);
    *out = p;
    return STATUS_OK;
}

void cuda_kv_free(struct backend *base, void *p)
{
    struct cuda_backend *b = (struct cuda_backend *)base;
    cuda_graph_fini(b); /* it names the pool */
    b->api->mem_free(p);
    b->model.kv = NULL;
    b->model.n_blocks = 0;
}

static uint8_t *block_at(const struct cuda_backend *b, uint32_t layer, uint32_t block)
{
    ASSERT_MSG(layer < b->base.dims.n_layers && block < b->model.n_blocks, "layer %u, block %u",
               layer, block);
    return b->model.kv + ((size_t)layer * b->model.n_blocks + block) * cuda_block_bytes(b);
}

/* Neighbours among blocks[i..n). */
static uint32_t run_length(const uint32_t *blocks, uint32_t i, uint32_t n)
{
    uint32_t k = 1;
    while (i + k < n && blocks[i + k] == blocks[i] + k)
        k++;
    return k;
}

int cuda_kv_read(struct backend *base, uint32_t layer, const uint32_t *blocks, uint32_t n, void *to)
{
    struct cuda_backend *b = (struct cuda_backend *)base;
    size_t size = cuda_block_bytes(b);
    CUDA_TRY(b, thread_attach());
    for (uint32_t i = 0, k; i < n; i += k) {
        k = run_length(blocks, i, n);
        CUDA_TRY(b, copy_async((uint8_t *)to + i * size, block_at(b, layer, blocks[i]), k * size,
                               GPU_TO_HOST, b->kv_stream));
    }
    CUDA_TRY(b, stream_sync(b->kv_stream));
    return STATUS_OK;
}

int cuda_kv_write(struct backend *base, uint32_t layer, const uint32_t *blocks, uint32_t n,
                  const void *from)
{
    struct cuda_backend *b = (struct cuda_backend *)base;
    size_t size = cuda_block_bytes(b);
    CUDA_TRY(b, thread_attach());
    for (uint32_t i = 0, k; i < n; i += k) {
        k = run_length(blocks, i, n);
        CUDA_TRY(b, copy_async(block_at(b, layer, blocks[i]), (const uint8_t *)from + i * size,
                               k * size, GPU_TO_DEVICE, b->kv_stream));
    }
    CUDA_TRY(b, stream_sync(b->kv_stream));
    for (uint32_t i = 0; i < n; i++)
        cuda_kv_arrived(base, layer, blocks[i]);
    return STATUS_OK;
}

int cuda_kv_sums(struct backend *base, uint32_t layer, const uint32_t *blocks, uint32_t n,
                 uint64_t *out)
{
    struct cuda_backend *b = (struct cuda_backend *)base;
    struct gpu_launch l = {.stream = b->kv_stream, .n_sms = b->props.sms};
    ASSERT(n > 0 && n <= DEVICE_SUMS_MAX);
    CUDA_TRY(b, thread_attach());
    if (b->props.flush_needed) /* the blocks may just have been received */
        CUDA_TRY(b, flush_writes());
    for (uint32_t i = 0; i < n; i++)
        b->sums[i] = (uint64_t)(block_at(b, layer, blocks[i]) - b->model.kv);
    CUDA_RUN(b, cuda_kv_checksum(l, b->model.kv, b->sums_device, n, cuda_block_bytes(b),
                                 b->sums_device + DEVICE_SUMS_MAX));
    CUDA_TRY(b, stream_sync(b->kv_stream));
    memcpy(out, b->sums + DEVICE_SUMS_MAX, n * sizeof *out);
    return STATUS_OK;
}

int cuda_kv_clear(struct backend *base, uint32_t layer, uint32_t block, uint32_t used)
{
    struct cuda_backend *b = (struct cuda_backend *)base;
    const struct backend_dims *d = &base->dims;
    struct gpu_launch l = {.stream = b->kv_stream, .n_sms = b->props.sms};
    CUDA_TRY(b, thread_attach());
    CUDA_RUN(b, cuda_kv_clear_tail(l, block_at(b, layer, block), 1, 0, d->n_kv_heads,
                                   d->kv_block_size, d->head_dim, used));
    CUDA_TRY(b, stream_sync(b->kv_stream));
    return STATUS_OK;
}

void cuda_kv_incoming(struct backend *base, uint32_t layer, uint32_t block)
{
    const struct cuda_backend *b = (const struct cuda_backend *)base;
    if (b->api->watch)
        b->api->watch->kv_incoming(layer, block);
}

void cuda_kv_arrived(struct backend *base, uint32_t layer, uint32_t block)
{
    const struct cuda_backend *b = (const struct cuda_backend *)base;
    if (b->api->watch)
        b->api->watch->kv_arrived(layer, block);
}
