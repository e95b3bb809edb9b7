/* backend: the part of backend.h that is the same everywhere: choosing an implementation, checking
 * dims and op lists, static buffers, step_args and the table of rotary angles.
 *
 * Everything a step needs is allocated here or at capture. Op lists are checked once, at capture;
 * step_args are checked before each replay, because they address KV memory. */
#include "kernels/backend_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "kernels/device.h"
#include "kernels/kv.h"

#pragma weak cuda_create
#pragma weak cuda_present

#define HEAD_DIM_MAX 256
#define GROUP_MAX    16 /* query heads per KV head */

const char *backend_auto(void)
{
    return cuda_present && cuda_present() ? "cuda" : "cpu";
}

static bool kv_format_fits(const char *name, enum kv_format f)
{
    return f == KV_BF16 || (f == KV_INT8 && strcmp(name, "cuda") != 0) ||
           (f == KV_F32 && strcmp(name, "ref") == 0);
}

int backend_create(const struct backend_options *o, const struct backend_dims *d,
                   struct backend **out, char *err, size_t errlen)
{
    const char *name = o->name && strcmp(o->name, "auto") != 0 ? o->name : backend_auto();
    if (!kv_format_fits(name, d->kv_format)) {
        snprintf(err, errlen, "backend \"%s\" has no KV cache in that format", name);
        return STATUS_UNSUPPORTED;
    }
    if (strcmp(name, "ref") == 0)
        return ref_create(o, d, out, err, errlen);
    if (strcmp(name, "cpu") == 0)
        return cpu_create(o, d, out, err, errlen);
    if (strcmp(name, "cuda") == 0 && cuda_create)
        return cuda_create(o, d, out, err, errlen);
    if (strcmp(name, "cuda") == 0) {
        snprintf(err, errlen, "backend \"cuda\": this program was built without CUDA");
        return STATUS_UNSUPPORTED;
    }
    snprintf(err, errlen, "backend \"%s\" is unknown (auto, ref, cpu, cuda)", name);
    return STATUS_INVALID;
}

static int check_dims(const struct backend_dims *d, char *err, size_t errlen)
{
    const struct {
        const char *name;
        uint64_t value, min, max;
    } ranges[] = {
        {"layers", d->n_layers, 1, 1 << 16},
        {"hidden size", d->hidden, 2, 1 << 20},
        {"heads", d->n_heads, 1, 1 << 12},
        {"kv heads", d->n_kv_heads, 1, 1 << 12},
        {"head size", d->head_dim, 16, HEAD_DIM_MAX},
        {"ffn size", d->ffn, 2, 1 << 22},
        {"vocabulary", d->vocab, 1, 1 << 24},
        {"context", d->context, 1, 1 << 24},
        {"rows", d->max_rows, 1, 1 << 20},
        {"sequences", d->max_seqs, 1, 1 << 20},
        {"logit rows", d->max_logits, 1, 1 << 20},
        {"kv_block_size", d->kv_block_size, KV_SUB, 1 << 16},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (ranges[i].value < ranges[i].min || ranges[i].value > ranges[i].max) {
            snprintf(err, errlen, "%s: %llu is not in %llu..%llu", ranges[i].name,
                     (unsigned long long)ranges[i].value, (unsigned long long)ranges[i].min,
                     (unsigned long long)ranges[i].max);
            return STATUS_RANGE;
        }
    const char *what = NULL;
    if (d->head_dim % 16)
        what = "head size is no multiple of 16";
    else if (d->kv_block_size % KV_SUB)
        what = "kv_block_size is no multiple of 16";
    else if (d->n_heads % d->n_kv_heads || d->n_heads / d->n_kv_heads > GROUP_MAX)
        what = "heads must be 1 to 16 times the kv heads";
    else if (d->hidden % 2 || d->ffn % 2)
        what = "hidden and ffn sizes must be even";
    if (what) {
        snprintf(err, errlen, "%s", what);
        return STATUS_UNSUPPORTED;
    }
    return STATUS_OK;
}

static bool create_buffers(struct backend *b)
{
    const struct backend_dims *d = &b->dims;
    size_t heads = (size_t)d->n_heads * d->head_dim;
    size_t qkv = heads + 2 * (size_t)d->n_kv_heads * d->head_dim;
    const size_t width[BUFFER_N] = {d->hidden, qkv, heads, d->ffn, d->vocab};
    for (int i = 0; i < BUFFER_N; i++) {
        size_t rows = i == BUFFER_LOGITS ? d->max_logits : d->max_rows;
        if (!mem_mul(rows * sizeof(float), width[i], &b->buffer_bytes[i]))
            return false;
        b->buffer[i] = mem_huge(b->buffer_bytes[i]);
        if (!b->buffer[i])
            return false;
    }
    return true;
}

static bool create_args(struct backend *b)
{
    const struct backend_dims *d = &b->dims;
    struct step_args *a = &b->args;
    a->table_stride = (d->context + d->kv_block_size - 1) / d->kv_block_size;
    size_t n = 3 * (size_t)d->max_rows + d->max_rows + 1 + d->max_logits, tables;
    if (!mem_mul(d->max_seqs, a->table_stride, &tables) || !mem_add(n, tables, &n))
        return false;
    int32_t *p = b->args_mem = mem_array(n, sizeof *p);
    if (!p)
        return false;
    a->token = p;
    a->position = a->token + d->max_rows;
    a->seq = (uint32_t *)a->position + d->max_rows;
    a->segment = a->seq + d->max_rows;
    a->logit_row = a->segment + d->max_rows + 1;
    a->tables = a->logit_row + d->max_logits;
    for (uint32_t i = 0; i < d->max_rows; i++)
        a->position[i] = -1;
    return true;
}

/* Angles in double: at position 100,000 a float angle would be off by thousandths. */
static bool create_rope(struct backend *b)
{
    const struct backend_dims *d = &b->dims;
    size_t half = d->head_dim / 2;
    double size = d->rope_magnitude != 0 ? (double)d->rope_magnitude : 1;
    b->rope_bytes = (size_t)d->context * d->head_dim * sizeof(float);
    b->rope = mem_huge(b->rope_bytes);
    if (!b->rope)
        return false;
    for (size_t i = 0; i < half; i++) {
        double step =
            d->rope_freqs ? d->rope_freqs[i] : pow(d->rope_theta, -2.0 * (double)i / d->head_dim);
        for (size_t p = 0; p < d->context; p++) {
            b->rope[p * d->head_dim + i] = (float)(size * cos((double)p * step));
            b->rope[p * d->head_dim + half + i] = (float)(size * sin((double)p * step));
        }
    }
    return true;
}

int backend_init(struct backend *b, const struct backend_ops *ops, const struct backend_dims *d,
                 char *err, size_t errlen)
{
    b->ops = ops;
    b->dims = *d;
    b->isa = "c";
    TRY(check_dims(d, err, errlen));
    b->kv_cell_bytes = d->kv_block_size / KV_SUB * kv_sub_bytes(d->kv_format, d->head_dim);
    static const char *const orders[] = {"bf16/k2x16-v16x2", "int8/k2x16-v16x2-s32",
                                         "f32/k2x16-v16x2"};
    snprintf(b->kv_layout, sizeof b->kv_layout, "kv1/%s/b%u/h%ux%u", orders[d->kv_format],
             d->kv_block_size, d->n_kv_heads, d->head_dim);
    if (!create_buffers(b) || !create_args(b) || !create_rope(b)) {
        snprintf(err, errlen, "out of memory for the buffers of %u rows", d->max_rows);
        return STATUS_NOMEM;
    }
    b->dims.rope_freqs = NULL; /* was a loan */
    return STATUS_OK;
}

void backend_fini(struct backend *b)
{
    for (int i = 0; i < BUFFER_N; i++)
        mem_huge_free(b->buffer[i], b->buffer_bytes[i]);
    mem_huge_free(b->rope, b->rope_bytes);
    free(b->args_mem);
}

/* ---- checks --------------------------------------------------------------------------------- */

static bool op_fits(const struct backend_dims *d, const struct op *op)
{
    uint64_t heads = (uint64_t)d->n_heads * d->head_dim;
    uint64_t qkv = heads + 2 * (uint64_t)d->n_kv_heads * d->head_dim;
    const struct weight *w = op->w;
    switch (op->kind) {
    case OP_EMBED:
        return w && w->n == d->vocab && w->k == d->hidden && !w->interleave;
    case OP_QKV:
        return w && w->n == qkv && w->k == d->hidden && !w->interleave;
    case OP_OUT:
        return w && w->n == d->hidden && w->k == heads && !w->interleave;
    case OP_GATE_UP:
        return w && w->n == 2 * (uint64_t)d->ffn && w->k == d->hidden && w->interleave;
    case OP_DOWN:
        return w && w->n == d->hidden && w->k == d->ffn && !w->interleave;
    case OP_LOGITS:
        return w && w->n == d->vocab && w->k == d->hidden && !w->interleave;
    case OP_ROPE_APPEND:
    case OP_ATTENTION:
    case OP_KV_READY:
        return true;
    }
    return false;
}

int backend_check_ops(const struct backend *b, const struct op *ops, size_t n_ops, uint32_t bucket,
                      const struct kv_view *kv)
{
    if (n_ops == 0 || bucket == 0 || bucket > b->dims.max_rows || !kv->base || kv->n_blocks == 0) {
        log_error("capture: %zu ops, bucket %u of %u rows, %u blocks", n_ops, bucket,
                  b->dims.max_rows, kv->n_blocks);
        return STATUS_INVALID;
    }
    for (size_t i = 0; i < n_ops; i++)
        if (ops[i].layer >= b->dims.n_layers || !op_fits(&b->dims, &ops[i])) {
            log_error("capture: op %zu (kind %d, layer %u): weight %u x %u does not fit the model",
                      i, (int)ops[i].kind, ops[i].layer, ops[i].w ? ops[i].w->n : 0,
                      ops[i].w ? ops[i].w->k : 0);
            return STATUS_INVALID;
        }
    return STATUS_OK;
}

void backend_check_step(const struct backend *b, const struct replay *r)
{
    const struct step_args *a = &b->args;
    const struct backend_dims *d = &b->dims;
    ASSERT_MSG(a->n_rows <= r->bucket && a->n_logits <= d->max_logits, "%u rows, %u logits",
               a->n_rows, a->n_logits);
    ASSERT_MSG(a->n_segments <= a->n_rows && a->segment[a->n_segments] == a->n_rows,
               "%u segments of %u rows", a->n_segments, a->n_rows);
    for (uint32_t s = 0; s < a->n_segments; s++) {
        uint32_t first = a->segment[s], last = a->segment[s + 1];
        ASSERT_MSG(first < last && a->seq[first] < d->max_seqs, "segment %u: rows %u..%u, table %u",
                   s, first, last, a->seq[first]);
        const uint32_t *table = a->tables + (size_t)a->seq[first] * a->table_stride;
        int32_t start = a->position[first];
        ASSERT_MSG(start >= 0 && (uint64_t)start + (last - first) <= d->context,
                   "segment %u at %d, %u rows", s, start, last - first);
        for (uint32_t i = first; i < last; i++)
            ASSERT_MSG(a->position[i] == start + (int32_t)(i - first) && a->seq[i] == a->seq[first],
                       "row %u at %d", i, a->position[i]);
        uint32_t blocks = ((uint32_t)a->position[last - 1]) / d->kv_block_size + 1;
        for (uint32_t i = 0; i < blocks; i++)
            ASSERT_MSG(table[i] < r->kv.n_blocks, "block %u of %u", table[i], r->kv.n_blocks);
    }
    for (uint32_t i = 0; i < a->n_rows; i++)
        ASSERT_MSG(a->token[i] >= 0 && (uint32_t)a->token[i] < d->vocab, "token %d", a->token[i]);
    for (uint32_t i = 0; i < a->n_logits; i++)
        ASSERT_MSG(a->logit_row[i] < a->n_rows, "logits of row %u of %u", a->logit_row[i],
                   a->n_rows);
}

/* ---- the interface -------------------------------------------------------------------------- */

void backend_destroy(struct backend *b)
{
    if (b)
        b->ops->destroy(b);
}

const char *backend_name(const struct backend *b)
{
    return b->name;
}

const char *backend_kv_layout(const struct backend *b)
{
    return b->kv_layout;
}

size_t backend_kv_cell_bytes(const struct backend *b)
{
    return b->kv_cell_bytes;
}

void backend_kv_clear_tail(const struct backend *b, void *block, uint32_t used)
{
    for (uint32_t h = 0; h < b->dims.n_kv_heads; h++)
        kv_clear_tail(b->dims.kv_format, (uint8_t *)block + h * b->kv_cell_bytes, b->dims.head_dim,
                      b->dims.kv_block_size, used);
}

int backend_weight_create(struct backend *b, const struct matrix_view *parts, size_t n_parts,
                          enum weight_format format, bool interleave, bool embed,
                          struct weight **out)
{
    return b->ops->weight_create(b, parts, n_parts, format, interleave, embed, out);
}

void backend_weight_destroy(struct backend *b, struct weight *w)
{
    if (w)
        b->ops->weight_destroy(b, w);
}

size_t backend_weight_bytes(const struct weight *w)
{
    return w->bytes;
}

void backend_weight_info(const struct weight *w, struct backend_weight_info *out)
{
    *out = (struct backend_weight_info){w->n, w->k, w->format,
                                        w->plain ? w->bytes : (size_t)w->n_panels * w->panel_bytes};
}

/* ---- compute threads ------------------------------------------------------------------------ */

struct parallel {
    size_t n;
    void (*run)(void *arg, size_t tile, int thread);
    void *arg;
};

static size_t parallel_tiles(void *arg, size_t phase)
{
    (void)phase;
    return ((const struct parallel *)arg)->n;
}

static void parallel_run(void *arg, size_t phase, size_t tile, int thread)
{
    (void)phase;
    const struct parallel *p = arg;
    p->run(p->arg, tile, thread);
}

void backend_parallel(struct backend *b, size_t n, void (*run)(void *arg, size_t tile, int thread),
                      void *arg)
{
    if (!b->ops->pool || n < 2) {
        for (size_t i = 0; i < n; i++)
            run(arg, i, 0);
        return;
    }
    struct parallel p = {n, run, arg};
    struct threads_job job = {
        .n_phases = 1, .tiles = parallel_tiles, .run = parallel_run, .arg = &p};
    threads_run(b->ops->pool(b), &job);
}

int backend_threads(const struct backend *b)
{
    return b->ops->pool ? threads_count(b->ops->pool((struct backend *)(uintptr_t)b)) : 1;
}

void backend_set_profile(struct backend *b, struct backend_profile *p)
{
    b->profile = p;
}

const char *backend_isa(const struct backend *b)
{
    return b->isa;
}

/* ---- steps ---------------------------------------------------------------------------------- */

const struct device_ops *backend_device(const struct backend *b)
{
    return b->ops->device;
}

struct step_args *backend_step_args(struct backend *b)
{
    return &b->args;
}

int backend_capture(struct backend *b, const struct op *ops, size_t n_ops, uint32_t bucket,
                    const struct kv_view *kv, struct replay **out)
{
    TRY(backend_check_ops(b, ops, n_ops, bucket, kv));
    return b->ops->capture(b, ops, n_ops, bucket, kv, out);
}

int backend_replay(struct backend *b, struct replay *r)
{
    backend_check_step(b, r);
    return b->ops->replay(b, r);
}

void backend_replay_destroy(struct backend *b, struct replay *r)
{
    if (r)
        b->ops->replay_destroy(b, r);
}

const float *backend_logits(const struct backend *b)
{
    return b->buffer[BUFFER_LOGITS];
}

const float *backend_buffer(const struct backend *b, enum graph_buffer which)
{
    return b->buffer[which];
}
