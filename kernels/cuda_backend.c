/* cuda_backend: the life of the CUDA backend: buffers, weights, vectors, and its table of
 * functions.
 *
 * The object is that of backend.h, with struct device_ops beside it for the engine. All memory is
 * allocated here, before the first capture; afterwards the only allocations are those of the KV
 * pool and of graphs. Capture, update and replay are in cuda_graph.c, steps in cuda_step.c, KV
 * blocks in cuda_kv.c, kernels in *.cu behind cuda_kernels.h. No CUDA header is included here: the
 * runtime comes as a table (gpu_api.h), so the same object code runs in tests on the emulation.
 *
 * Weights are bf16 whatever the file has, padded so that no kernel has a tail. A vector of the
 * engine (norms, biases) is copied once and found again by its address. */
#include "kernels/cuda_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "kernels/half.h"

int cuda_failed(struct cuda_backend *b, int rc, const char *call)
{
    if (rc != GPU_ERROR_MEMORY)
        b->lost = true;
    return gpu_failed(b->api, rc, call);
}

int cuda_mem(struct cuda_backend *b, void **out, size_t n)
{
    void *p;
    int rc = b->api->mem_alloc(&p, n);
    if (rc == GPU_ERROR_MEMORY)
        return STATUS_NOMEM;
    if (rc != 0)
        return cuda_failed(b, rc, "mem_alloc");
    rc = b->api->fill_async(p, 0, n, b->stream);
    if (rc != 0) {
        b->api->mem_free(p);
        return cuda_failed(b, rc, "fill_async");
    }
    *out = p;
    return STATUS_OK;
}

/* ---- vectors -------------------------------------------------------------------------------- */

int cuda_vector(struct cuda_backend *b, const float *host, size_t n, size_t padded,
                const float **out)
{
    *out = NULL;
    if (!host)
        return STATUS_OK;
    for (size_t i = 0; i < b->n_vectors; i++)
        if (b->vectors[i].host == host && b->vectors[i].n == n) {
            *out = b->vectors[i].device;
            return STATUS_OK;
        }
    if (b->n_vectors == b->vectors_cap) {
        size_t cap = 2 * b->vectors_cap + 64;
        struct cuda_vector *v = mem_resize(b->vectors, cap, sizeof *v);
        if (!v)
            return STATUS_NOMEM;
        b->vectors = v;
        b->vectors_cap = cap;
    }
    ASSERT(n <= padded && padded * sizeof(float) <= CUDA_STAGING);
    void *device;
    TRY(cuda_mem(b, &device, padded * sizeof(float)));
    b->vectors[b->n_vectors++] = (struct cuda_vector){host, device, n};
    memcpy(b->staging, host, n * sizeof(float));
    CUDA_TRY(b, copy_async(device, b->staging, n * sizeof(float), GPU_TO_DEVICE, b->stream));
    CUDA_TRY(b, stream_sync(b->stream));
    *out = device;
    return STATUS_OK;
}

/* ---- weights -------------------------------------------------------------------------------- */

/* Rows of the packed matrix: the vocabulary is padded for the head, gate and up are woven by 8. */
static uint32_t packed_rows(const struct cuda_backend *b, const struct weight *w)
{
    if (w->interleave)
        return 2 * gpu_pad(w->n / 2, 8);
    return gpu_pad(w->n, w->n == b->base.dims.vocab ? 128 : 16);
}

static bool source_of(const struct weight *w, const struct matrix_view *parts, uint32_t row,
                      const struct matrix_view **part, uint64_t *at)
{
    if (w->interleave) {
        *part = &parts[row / 8 % 2];
        *at = row / 16 * 8 + row % 8;
        return *at < (*part)->rows;
    }
    *at = row;
    for (*part = parts; row < w->n; (*part)++) {
        if (*at < (*part)->rows)
            return true;
        *at -= (*part)->rows;
    }
    return false;
}

static void pack_row(const struct matrix_view *v, uint64_t row, size_t k, float *scratch,
                     uint16_t *to)
{
    if (v->type == MATRIX_BF16) {
        memcpy(to, (const uint8_t *)v->data + row * k * 2, k * 2);
        return;
    }
    matrix_decode(v, row, 0, k, scratch);
    for (size_t i = 0; i < k; i++)
        to[i] = bf16_from_f32(scratch[i]);
}

static int pack(struct cuda_backend *b, const struct weight *w, const struct matrix_view *parts,
                uint32_t rows)
{
    size_t width = gpu_pad(w->k, 64), at_once = CUDA_STAGING / (2 * width);
    float *scratch = mem_array(w->k, sizeof *scratch);
    if (!scratch)
        return STATUS_NOMEM;
    ASSERT(at_once > 0);
    int rc = 0;
    for (uint32_t first = 0; first < rows && rc == 0;) {
        uint32_t n = rows - first < at_once ? rows - first : (uint32_t)at_once;
        uint16_t *to = b->staging;
        memset(to, 0, n * width * 2);
        for (uint32_t i = 0; i < n; i++, to += width) {
            const struct matrix_view *part;
            uint64_t row;
            if (source_of(w, parts, first + i, &part, &row))
                pack_row(part, row, w->k, scratch, to);
        }
        rc = b->api->copy_async(w->data + first * width * 2, b->staging, n * width * 2,
                                GPU_TO_DEVICE, b->stream);
        if (rc == 0)
            rc = b->api->stream_sync(b->stream);
        first += n;
    }
    free(scratch);
    return rc ? cuda_failed(b, rc, "copying weights") : STATUS_OK;
}

static void weight_destroy_device(struct backend *base, struct weight *w)
{
    struct cuda_backend *b = (struct cuda_backend *)base;
    if (b->api->stream_sync(b->stream) != 0) /* a copy may have been left behind by a failure */
        b->lost = true;
    b->api->mem_free(w->data);
    free(w);
}

static int weight_create_device(struct backend *base, const struct matrix_view *parts,
                                size_t n_parts, enum weight_format format, bool interleave,
                                bool embed, struct weight **out)
{
    struct cuda_backend *b = (struct cuda_backend *)base;
    if (format != WEIGHT_AUTO && format != WEIGHT_BF16) {
        log_error("weights: the CUDA backend keeps bf16 only");
        return STATUS_UNSUPPORTED;
    }
    format = WEIGHT_BF16;
    TRY(weight_check(parts, n_parts, &format, interleave, embed));
    struct weight *w = mem_array(1, sizeof *w);
    if (!w)
        return STATUS_NOMEM;
    w->format = WEIGHT_BF16;
    w->interleave = interleave;
    w->k = (uint32_t)parts[0].cols;
    for (size_t i = 0; i < n_parts; i++)
        w->n += (uint32_t)parts[i].rows;
    uint32_t rows = packed_rows(b, w);
    w->bytes = (size_t)rows * gpu_pad(w->k, 64) * 2;
    void *data;
    int rc = cuda_mem(b, &data, w->bytes);
    if (rc != 0) {
        size_t left = 0, total = 0;
        b->api->mem_info(&left, &total);
        if (rc == STATUS_NOMEM)
            log_error(
                "device: %zu MiB are needed for a matrix, %zu of %zu MiB are free: use a smaller "
                "model or another device",
                w->bytes >> 20, left >> 20, total >> 20);
        free(w);
        return rc;
    }
    w->data = data;
    rc = pack(b, w, parts, rows);
    if (rc != 0) {
        weight_destroy_device(base, w);
        return rc;
    }
    *out = w;
    return STATUS_OK;
}

/* ---- buffers -------------------------------------------------------------------------------- */

struct need {
    void *to; /* address of a pointer */
    size_t n;
};

static int buffers_init(struct cuda_backend *b)
{
    const struct backend_dims *d = &b->base.dims;
    const struct gpu_model *m = &b->model;
    struct cuda_buffers *p = &b->buffers;
    size_t rows = d->max_rows, hidden = gpu_pad(d->hidden, 64), vocab = gpu_pad(d->vocab, 128);
    size_t qkv = gpu_pad((d->n_heads + 2 * d->n_kv_heads) * d->head_dim, 16);
    size_t heads = (size_t)d->n_heads * gpu_pad_head(d->head_dim);
    size_t skinny = rows < CUDA_SKINNY_ROWS ? rows : CUDA_SKINNY_ROWS;
    size_t stride = m->table_stride;
    const struct need needs[] = {
        {&p->x, rows * hidden * 4},
        {&p->xg, rows * hidden * 2},
        {&p->xn, rows * hidden * 2},
        {&p->ssq, rows * hidden / 16 * 4},
        {&p->qkv, rows * qkv * 4},
        {&p->q, rows * heads * 2},
        {&p->att, rows * gpu_pad(d->n_heads * d->head_dim, 64) * 2},
        {&p->gu, rows * 2 * gpu_pad(d->ffn, 8) * 2},
        {&p->hid, rows * gpu_pad(d->ffn, 64) * 2},
        {&p->logits, d->max_logits * vocab * 4},
        {&p->scratch_logits, d->max_logits * vocab * 4},
        {&p->attention,
         gpu_attention_scratch((uint32_t)skinny, d->n_heads, d->head_dim) * sizeof(float)},
        {&p->counters, rows * d->n_kv_heads * 4},
        {&b->workspace, CUDA_WORKSPACE},
        {&b->step, gpu_step_bytes(&m->caps)},
        {&b->results, d->max_logits * sizeof *b->results},
        {&b->mask, (size_t)d->max_logits * b->mask_stride * 4},
        {(void *)&m->tables, m->max_slots * stride * 4},
        {(void *)&m->slots, m->max_slots * sizeof *m->slots},
        {(void *)&m->rows, rows * sizeof *m->rows},
        {(void *)&m->rope, (size_t)d->context * d->head_dim * sizeof(float)},
    };
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++) {
        void *got;
        TRY(cuda_mem(b, &got, needs[i].n));
        memcpy(needs[i].to, &got, sizeof got);
    }
    b->shadow = mem_array(m->max_slots * stride, sizeof *b->shadow);
    return b->shadow ? STATUS_OK : STATUS_NOMEM;
}

/* The table of angles moves to the device, piece by piece. */
static int rope_init(struct cuda_backend *b)
{
    size_t n = (size_t)b->base.dims.context * b->base.dims.head_dim * sizeof(float);
    for (size_t at = 0; at < n;) {
        size_t piece = n - at < CUDA_STAGING ? n - at : CUDA_STAGING;
        memcpy(b->staging, (const uint8_t *)b->base.rope + at, piece);
        CUDA_TRY(b, copy_async((uint8_t *)(uintptr_t)b->model.rope + at, b->staging, piece,
                               GPU_TO_DEVICE, b->stream));
        CUDA_TRY(b, stream_sync(b->stream));
        at += piece;
    }
    mem_huge_free(b->base.rope, b->base.rope_bytes);
    b->base.rope = NULL;
    b->base.rope_bytes = 0;
    return STATUS_OK;
}

static void model_init(struct cuda_backend *b)
{
    const struct backend_dims *d = &b->base.dims;
    uint32_t slots = 2 * d->max_seqs;
    b->mask_stride = gpu_pad(d->vocab, 128) / 32;
    b->model = (struct gpu_model){
        .hidden = d->hidden,
        .n_heads = d->n_heads,
        .n_kv_heads = d->n_kv_heads,
        .head_dim = d->head_dim,
        .ffn = d->ffn,
        .vocab = d->vocab,
        .context = d->context,
        .kv_block_size = d->kv_block_size,
        .max_slots = slots,
        .table_stride = (d->context + d->kv_block_size - 1) / d->kv_block_size,
        .rms_eps = d->rms_eps,
        .rope_neox = d->rope_neox,
        .caps = {.max_rows = d->max_rows,
                 .max_logits = d->max_logits,
                 .max_patches = CUDA_PATCHES * d->max_seqs,
                 .max_slot_patches = d->max_seqs},
    };
}

static int gemms_init(struct cuda_backend *b)
{
    const struct backend_dims *d = &b->base.dims;
    uint32_t hidden = gpu_pad(d->hidden, 64), ffn = gpu_pad(d->ffn, 64);
    uint32_t qkv = gpu_pad((d->n_heads + 2 * d->n_kv_heads) * d->head_dim, 16);
    uint32_t gu = 2 * gpu_pad(d->ffn, 8), heads = gpu_pad(d->n_heads * d->head_dim, 64);
    const struct gpu_matmul_desc desc[CUDA_GEMMS] = {
        [CUDA_GEMM_QKV] = {.n = qkv, .k = hidden, .ldy = qkv, .y_f32 = true},
        [CUDA_GEMM_OUT] = {.n = gpu_pad(d->hidden, 16),
                           .k = heads,
                           .ldy = hidden,
                           .y_f32 = true,
                           .accumulate = true},
        [CUDA_GEMM_GATE_UP] = {.n = gu, .k = hidden, .ldy = gu},
        [CUDA_GEMM_DOWN] = {.n = gpu_pad(d->hidden, 16),
                            .k = ffn,
                            .ldy = hidden,
                            .y_f32 = true,
                            .accumulate = true},
    };
    for (int i = 0; i < CUDA_GEMMS; i++) {
        struct gpu_matmul_desc one = desc[i];
        one.m_max = d->max_rows;
        one.workspace = CUDA_WORKSPACE;
        CUDA_TRY(b, matmul_create(&one, &b->gemm[i]));
    }
    return STATUS_OK;
}

/* ---- life ----------------------------------------------------------------------------------- */

static void buffers_fini(struct cuda_backend *b)
{
    struct cuda_buffers *p = &b->buffers;
    const void *all[] = {p->x,
                         p->xg,
                         p->xn,
                         p->ssq,
                         p->qkv,
                         p->q,
                         p->att,
                         p->gu,
                         p->hid,
                         p->logits,
                         p->scratch_logits,
                         p->attention,
                         p->counters,
                         b->workspace,
                         b->step,
                         b->results,
                         b->mask,
                         b->model.tables,
                         b->model.slots,
                         b->model.rows,
                         b->model.rope};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i])
            b->api->mem_free((void *)(uintptr_t)all[i]);
    for (size_t i = 0; i < b->n_vectors; i++)
        b->api->mem_free(b->vectors[i].device);
    free(b->vectors);
    free(b->shadow);
}

static void cuda_destroy(struct backend *base)
{
    struct cuda_backend *b = (struct cuda_backend *)base;
    if (b->api->thread_attach() != 0)
        b->lost = true;
    if (b->stream)
        b->api->stream_sync(b->stream);
    cuda_kv_fini(b);
    cuda_steps_fini(b);
    cuda_graph_fini(b);
    for (int i = 0; i < CUDA_GEMMS; i++)
        if (b->gemm[i])
            b->api->matmul_destroy(b->gemm[i]);
    buffers_fini(b);
    if (b->staging)
        b->api->host_free(b->staging);
    if (b->stream)
        b->api->stream_destroy(b->stream);
    backend_fini(base);
    free(b);
}

static const struct gpu_caps *caps(const struct backend *b)
{
    return &((const struct cuda_backend *)b)->model.caps;
}
static uint32_t slots(const struct backend *b)
{
    return ((const struct cuda_backend *)b)->model.max_slots;
}
static uint32_t mask_stride(const struct backend *b)
{
    return ((const struct cuda_backend *)b)->mask_stride;
}
static bool lost(const struct backend *b)
{
    return ((const struct cuda_backend *)b)->lost;
}

static int memory(struct backend *base, struct device_memory *out)
{
    struct cuda_backend *b = (struct cuda_backend *)base;
    CUDA_TRY(b, stream_sync(b->stream));
    CUDA_TRY(b, mem_info(&out->free, &out->total));
    out->graphs = b->graph_bytes;
    return STATUS_OK;
}

static int host_alloc(struct backend *base, size_t n, void **out)
{
    struct cuda_backend *b = (struct cuda_backend *)base;
    void *mapped;
    CUDA_TRY(b, thread_attach());
    CUDA_TRY(b, host_alloc(out, &mapped, n));
    return STATUS_OK;
}

static void host_free(struct backend *base, void *p)
{
    struct cuda_backend *b = (struct cuda_backend *)base;
    if (p)
        b->api->host_free(p);
}

static const struct device_ops device = {
    .caps = caps,
    .slots = slots,
    .mask_stride = mask_stride,
    .kv_alloc = cuda_kv_alloc,
    .kv_free = cuda_kv_free,
    .memory = memory,
    .open = cuda_step_open,
    .table = cuda_step_table,
    .adjust = cuda_step_adjust,
    .launch = cuda_step_launch,
    .sample = cuda_step_sample,
    .poll = cuda_step_poll,
    .logits = cuda_step_logits,
    .close = cuda_step_close,
    .host_alloc = host_alloc,
    .host_free = host_free,
    .kv_read = cuda_kv_read,
    .kv_write = cuda_kv_write,
    .kv_sums = cuda_kv_sums,
    .kv_clear_tail = cuda_kv_clear,
    .kv_incoming = cuda_kv_incoming,
    .kv_arrived = cuda_kv_arrived,
    .lost = lost,
};

static const struct backend_ops ops = {
    .destroy = cuda_destroy,
    .weight_create = weight_create_device,
    .weight_destroy = weight_destroy_device,
    .capture = cuda_capture,
    .replay = cuda_replay,
    .replay_destroy = cuda_replay_destroy,
    .device = &device,
};

static int check_shapes(const struct backend_dims *d, char *err, size_t errlen)
{
    if (gpu_pad_head(d->head_dim) == 0 || gpu_pad(d->hidden, 64) * 8 > CUDA_STAGING ||
        gpu_pad(d->ffn, 64) * 2 > CUDA_STAGING) {
        snprintf(err, errlen,
                 "the CUDA backend has no kernels for head size %u, hidden size %u, "
                 "ffn size %u",
                 d->head_dim, d->hidden, d->ffn);
        return STATUS_UNSUPPORTED;
    }
    return STATUS_OK;
}

static int open_device(struct cuda_backend *b, int index, char *err, size_t errlen)
{
    b->api = gpu_api_open(err, errlen);
    if (!b->api)
        return STATUS_UNAVAILABLE;
    int rc = b->api->device_open(index, &b->props);
    if (rc != 0) {
        snprintf(err, errlen, "device %d cannot be used: %s", index, b->api->error_text(rc));
        return STATUS_UNAVAILABLE;
    }
    if (b->props.major < 8) {
        snprintf(err, errlen, "%s has compute capability %d.%d, 8.0 is needed", b->props.name,
                 b->props.major, b->props.minor);
        return STATUS_UNSUPPORTED;
    }
    return STATUS_OK;
}

static int init(struct cuda_backend *b)
{
    void *mapped;
    CUDA_TRY(b, stream_create(&b->stream, false));
    b->launch =
        (struct gpu_launch){.stream = b->stream, .n_sms = b->props.sms, .pdl = b->props.major >= 9};
    CUDA_RUN(b, cuda_kernels_init());
    int rc = b->api->host_alloc(&b->staging, &mapped, CUDA_STAGING);
    if (rc != 0) {
        b->staging = NULL;
        return cuda_failed(b, rc, "host_alloc");
    }
    model_init(b);
    TRY(buffers_init(b));
    b->model.step = b->step;
    TRY(rope_init(b));
    if (!b->strict)
        TRY(gemms_init(b));
    TRY(cuda_steps_init(b));
    TRY(cuda_kv_init(b));
    CUDA_TRY(b, stream_sync(b->stream));
    return STATUS_OK;
}

bool cuda_present(void)
{
    char err[256];
    const struct gpu_api *api = gpu_api_open(err, sizeof err);
    return api && strcmp(api->name, "cuda") == 0; /* the emulation is asked for by name only */
}

int cuda_create(const struct backend_options *o, const struct backend_dims *d, struct backend **out,
                char *err, size_t errlen)
{
    TRY(check_shapes(d, err, errlen));
    struct cuda_backend *b = mem_array(1, sizeof *b);
    if (!b) {
        snprintf(err, errlen, "out of memory");
        return STATUS_NOMEM;
    }
    int rc = open_device(b, o->device, err, errlen);
    if (rc != 0) {
        free(b);
        return rc;
    }
    b->strict = o->strict;
    b->graphs = o->graphs;
    rc = backend_init(&b->base, &ops, d, err, errlen);
    if (rc == 0) {
        b->base.kv_cell_bytes = gpu_kv_cell_bytes(d->kv_block_size, d->head_dim);
        snprintf(b->base.kv_layout, sizeof b->base.kv_layout, GPU_KV_LAYOUT "/b%u/h%ux%u",
                 d->kv_block_size, d->n_kv_heads, d->head_dim);
        snprintf(b->base.name, sizeof b->base.name, "%s/sm%d%d/%s", b->api->name, b->props.major,
                 b->props.minor, b->strict ? "strict" : "fast");
        rc = init(b);
        if (rc != 0) {
            size_t left = 0, total = 0;
            b->api->mem_info(&left, &total);
            snprintf(err, errlen,
                     "buffers for %u rows do not fit: %zu of %zu MiB of the device are free; lower "
                     "prefill_chunk, max_batch or context_length",
                     d->max_rows, left >> 20, total >> 20);
            if (rc != STATUS_NOMEM)
                snprintf(err, errlen, "the device failed: %s", status_text(rc));
        }
    }
    if (rc != 0) {
        cuda_destroy(&b->base);
        return rc;
    }
    log_info("device %d: %s, sm_%d%d, %d multiprocessors, %zu MiB; numerics %s, graphs %s",
             o->device, b->props.name, b->props.major, b->props.minor, b->props.sms,
             b->props.memory >> 20, b->strict ? "strict" : "fast", b->graphs ? "on" : "off");
    *out = &b->base;
    return STATUS_OK;
}
