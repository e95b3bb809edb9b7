/* cuda_graph: capture, update and replay of a forward pass on the device. Nowhere else is a graph
 * touched.
 *
 * Capture walks the op list and enqueues its kernels on a stream in capture mode; what is recorded
 * becomes a graph. The same walk, with the stream as it is, is the eager mode: the kernels, their
 * arguments and hence the bits are the same. Each bucket is walked once eagerly before it is
 * captured, with no live row: every kernel is loaded and every algorithm chosen by then.
 *
 * Update: nothing in a graph depends on the step. All that changes is in one block of device memory
 * (struct gpu_step_args), which cuda_step.c overwrites in stream order ahead of the launch.
 *
 * A bucket of up to CUDA_SKINNY_ROWS rows has three graphs: pure decode with sampling, pure decode
 * without (constrained rows: sampling follows as a graph of its own), and any mix of rows. Larger
 * ones have one pass, cut into a list of graphs: at the point where the KV of a group of layers is
 * complete, one graph ends and the next begins, and cuda_step.c records an event between them. Why
 * several launches rather than event nodes inside of one graph: whether the host sees the event of
 * this launch or still that of the last one is not documented for event nodes, and a chunk of many
 * rows takes milliseconds, against microseconds for a launch. Why eight groups: the KV of the last
 * group is what is left to send when the pass ends, and every cut costs a gap.
 *
 *   PASS     ROWS           NODES A LAYER
 *   DECODE   <= 64, single  qkv, attention, out, gate|up, down
 *   ROWS     any            qkv, rope+append, attention, out, gate|up, down
 *   LARGE    any            norm, qkv, rope+append, attention x 2, out, norm, gate|up, swiglu, down
 *
 * DECODE and ROWS run through kernels whose rows have the same bits in both and in every bucket.
 * LARGE goes through cuBLASLt: numerics = strict never takes it. */
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/log.h"
#include "kernels/cuda_impl.h"

struct walk {
    struct cuda_backend *b;
    const struct cuda_replay *r;
    struct gpu_model m;
    struct gpu_launch l;
    uint32_t bucket;
    enum cuda_pass_kind kind;
};

/* ---- one operation -------------------------------------------------------------------------- */

/* The gain of the norm that reads what op `i` writes: the next one in the list. */
static int next_gain(const struct walk *w, size_t i, const float **out)
{
    const struct backend_dims *d = &w->b->base.dims;
    const struct cuda_replay *r = w->r;
    for (i++; i < r->n_ops; i++)
        if (r->ops[i].norm)
            return cuda_vector(w->b, r->ops[i].norm, d->hidden, gpu_pad(d->hidden, 64), out);
    *out = NULL;
    return STATUS_INVALID;
}

static int gain(const struct walk *w, const struct op *op, const float **out)
{
    const struct backend_dims *d = &w->b->base.dims;
    return cuda_vector(w->b, op->norm, d->hidden, gpu_pad(d->hidden, 64), out);
}

static int gemm(const struct walk *w, int which, const struct op *op, const void *x, void *y)
{
    struct cuda_backend *b = w->b;
    CUDA_TRY(b, matmul_run(b->gemm[which], w->bucket, x, op->w->data, y, b->workspace, b->stream));
    return STATUS_OK;
}

static int run_embed(const struct walk *w, size_t i)
{
    struct cuda_buffers *p = &w->b->buffers;
    const float *g;
    TRY(next_gain(w, i, &g));
    CUDA_RUN(w->b, cuda_step_begin(w->l, &w->m, w->bucket,
                                   (const uint16_t *)(const void *)w->r->ops[i].w->data, g, p->x,
                                   p->xg, p->ssq));
    return STATUS_OK;
}

static int qkv_bias(const struct walk *w, const struct op *op, const float **out)
{
    return cuda_vector(w->b, op->bias, op->w->n, gpu_pad(op->w->n, 16), out);
}

static int run_qkv(const struct walk *w, const struct op *op)
{
    struct cuda_buffers *p = &w->b->buffers;
    const float *g, *bias;
    if (w->kind == CUDA_PASS_LARGE) {
        TRY(gain(w, op, &g));
        CUDA_RUN(w->b, cuda_rmsnorm(w->l, &w->m, w->bucket, p->x, NULL, g, p->xn));
        return gemm(w, CUDA_GEMM_QKV, op, p->xn, p->qkv);
    }
    TRY(qkv_bias(w, op, &bias));
    CUDA_RUN(w->b,
             cuda_linear_qkv(w->l, &w->m, w->bucket, (const uint16_t *)(const void *)op->w->data,
                             bias, p->xg, p->ssq, p->qkv));
    return STATUS_OK;
}

static int head_norms(const struct walk *w, const struct op *op, const float **q, const float **k)
{
    uint32_t hd = w->b->base.dims.head_dim;
    TRY(cuda_vector(w->b, op->q_norm, hd, hd, q));
    return cuda_vector(w->b, op->k_norm, hd, hd, k);
}

static const struct op *op_before(const struct walk *w, size_t i, enum op_kind kind)
{
    while (i-- > 0)
        if (w->r->ops[i].kind == kind)
            return &w->r->ops[i];
    return NULL;
}

static int run_rope(const struct walk *w, size_t i)
{
    const struct op *op = &w->r->ops[i], *qkv = op_before(w, i, OP_QKV);
    struct cuda_buffers *p = &w->b->buffers;
    const float *bias = NULL, *q, *k;
    if (w->kind == CUDA_PASS_DECODE)
        return STATUS_OK; /* the attention kernel does it */
    if (w->kind == CUDA_PASS_LARGE)
        TRY(qkv_bias(w, qkv, &bias));
    TRY(head_norms(w, op, &q, &k));
    CUDA_RUN(w->b, cuda_rope_append(w->l, &w->m, w->bucket, op->layer, p->qkv, bias, q, k, p->q));
    return STATUS_OK;
}

static int run_attention(const struct walk *w, size_t i)
{
    const struct op *op = &w->r->ops[i], *rope = op_before(w, i, OP_ROPE_APPEND);
    struct cuda_buffers *p = &w->b->buffers;
    struct gpu_attention a = {.layer = op->layer, .att = p->att};
    if (w->kind == CUDA_PASS_DECODE) {
        a.qkv = p->qkv;
        TRY(head_norms(w, rope, &a.q_norm, &a.k_norm));
    } else {
        a.q = p->q;
    }
    if (w->bucket <= CUDA_SKINNY_ROWS) {
        a.split = true;
        a.scratch = p->attention;
        a.counters = p->counters;
    }
    if (w->kind == CUDA_PASS_LARGE) {
        a.single_only = true;
        CUDA_RUN(w->b,
                 cuda_attention_prefill(w->l, &w->m, w->bucket, op->layer, p->q, true, p->att));
    }
    CUDA_RUN(w->b, cuda_attention_decode(w->l, &w->m, w->bucket, &a));
    return STATUS_OK;
}

/* OP_OUT and OP_DOWN. */
static int run_residual(const struct walk *w, size_t i)
{
    const struct op *op = &w->r->ops[i];
    struct cuda_buffers *p = &w->b->buffers;
    const uint16_t *in = op->kind == OP_OUT ? p->att : p->hid;
    const float *g;
    if (w->kind == CUDA_PASS_LARGE)
        return gemm(w, op->kind == OP_OUT ? CUDA_GEMM_OUT : CUDA_GEMM_DOWN, op, in, p->x);
    TRY(next_gain(w, i, &g));
    CUDA_RUN(w->b, cuda_linear_residual(w->l, &w->m, w->bucket,
                                        (const uint16_t *)(const void *)op->w->data, op->w->k, in,
                                        p->x, g, p->xg, p->ssq));
    return STATUS_OK;
}

static int run_gate_up(const struct walk *w, const struct op *op)
{
    struct cuda_buffers *p = &w->b->buffers;
    const float *g;
    if (w->kind != CUDA_PASS_LARGE) {
        CUDA_RUN(w->b, cuda_linear_gate_up(w->l, &w->m, w->bucket,
                                           (const uint16_t *)(const void *)op->w->data, p->xg,
                                           p->ssq, p->hid));
        return STATUS_OK;
    }
    TRY(gain(w, op, &g));
    CUDA_RUN(w->b, cuda_rmsnorm(w->l, &w->m, w->bucket, p->x, NULL, g, p->xn));
    TRY(gemm(w, CUDA_GEMM_GATE_UP, op, p->xn, p->gu));
    CUDA_RUN(w->b, cuda_swiglu(w->l, &w->m, w->bucket, p->gu, p->hid));
    return STATUS_OK;
}

/* Logits rows of a pass: a decode pass has no more than rows. */
static uint32_t logit_rows(const struct walk *w)
{
    uint32_t all = w->m.caps.max_logits;
    return w->kind == CUDA_PASS_DECODE && w->bucket < all ? w->bucket : all;
}

static int run_logits(const struct walk *w, const struct op *op)
{
    struct cuda_buffers *p = &w->b->buffers;
    const float *g;
    if (w->kind == CUDA_PASS_LARGE) {
        TRY(gain(w, op, &g));
        CUDA_RUN(w->b, cuda_norm_prepare(w->l, &w->m, w->bucket, p->x, g, p->xg, p->ssq));
    }
    CUDA_RUN(w->b, cuda_linear_logits(w->l, &w->m, logit_rows(w),
                                      (const uint16_t *)(const void *)op->w->data, p->xg, p->ssq,
                                      p->logits));
    return STATUS_OK;
}

static int run_op(const struct walk *w, size_t i)
{
    const struct op *op = &w->r->ops[i];
    switch (op->kind) {
    case OP_EMBED:
        return run_embed(w, i);
    case OP_QKV:
        return run_qkv(w, op);
    case OP_ROPE_APPEND:
        return run_rope(w, i);
    case OP_KV_READY:
        return STATUS_OK; /* where parts are cut */
    case OP_ATTENTION:
        return run_attention(w, i);
    case OP_OUT:
    case OP_DOWN:
        return run_residual(w, i);
    case OP_GATE_UP:
        return run_gate_up(w, op);
    case OP_LOGITS:
        return run_logits(w, op);
    }
    return STATUS_INVALID;
}

static int enqueue_sample(struct cuda_backend *b, uint32_t max_logits)
{
    CUDA_RUN(b, cuda_sample(b->launch, &b->model, max_logits, b->buffers.logits, b->mask,
                            b->mask_stride, b->buffers.scratch_logits, b->results));
    return STATUS_OK;
}

static int enqueue_part(struct cuda_backend *b, const struct cuda_replay *r,
                        const struct cuda_pass *p, uint32_t part)
{
    struct walk w = {
        .b = b, .r = r, .m = b->model, .l = b->launch, .bucket = r->base.bucket, .kind = p->kind};
    w.m.kv = r->base.kv.base;
    w.m.n_blocks = r->base.kv.n_blocks;
    for (size_t i = part ? p->end[part - 1] : 0; i < p->end[part]; i++)
        TRY(run_op(&w, i));
    if (p->sampled && part + 1 == p->n_parts)
        TRY(enqueue_sample(b, logit_rows(&w)));
    return STATUS_OK;
}

/* ---- capture -------------------------------------------------------------------------------- */

typedef int (*record_fn)(struct cuda_backend *b, const void *arg);

/* Ends the capture whatever happened in it: a stream must not be left in capture mode. */
static int record(struct cuda_backend *b, record_fn fn, const void *arg, struct gpu_exec **out)
{
    struct gpu_graph *g = NULL;
    CUDA_TRY(b, capture_begin(b->stream));
    int rc = fn(b, arg);
    int ended = b->api->capture_end(b->stream, &g);
    if (rc == STATUS_OK && ended == 0) {
        ended = b->api->graph_instantiate(g, out);
        if (ended == 0)
            ended = b->api->exec_upload(*out, b->stream);
    }
    if (g)
        b->api->graph_destroy(g);
    if (rc != STATUS_OK)
        return rc;
    return ended == 0                  ? STATUS_OK
           : ended == GPU_ERROR_MEMORY ? STATUS_NOMEM
                                       : cuda_failed(b, ended, "capture of a graph");
}

struct part_arg {
    const struct cuda_replay *r;
    const struct cuda_pass *p;
    uint32_t part;
};

static int record_part(struct cuda_backend *b, const void *arg)
{
    const struct part_arg *a = arg;
    return enqueue_part(b, a->r, a->p, a->part);
}

static int record_sample(struct cuda_backend *b, const void *arg)
{
    (void)arg;
    return enqueue_sample(b, b->model.caps.max_logits);
}

/* Where the pass is cut. Layers that come together in a part are announced together. */
static void cut(struct cuda_pass *p, const struct cuda_replay *r, uint32_t n_layers)
{
    uint32_t group = p->kind == CUDA_PASS_LARGE || r->base.bucket > CUDA_SKINNY_ROWS
                         ? (n_layers + CUDA_GROUPS - 1) / CUDA_GROUPS
                         : 0;
    for (size_t i = 0; i < r->n_ops && group; i++) {
        const struct op *op = &r->ops[i];
        if (op->kind != OP_KV_READY || ((op->layer + 1) % group != 0 && op->layer + 1 != n_layers))
            continue;
        ASSERT(p->n_parts + 1 < CUDA_PARTS_MAX);
        p->layers[p->n_parts] = op->layer + 1;
        p->end[p->n_parts++] = i + 1;
    }
    p->layers[p->n_parts] = n_layers;
    p->end[p->n_parts++] = r->n_ops;
}

static int capture_pass(struct cuda_backend *b, const struct cuda_replay *r, struct cuda_pass *p)
{
    /* Eagerly, with nothing to do: loads what is loaded at the first use. */
    CUDA_TRY(b, fill_async(b->step, 0, sizeof *b->step, b->stream));
    for (uint32_t i = 0; i < p->n_parts; i++)
        TRY(enqueue_part(b, r, p, i));
    CUDA_TRY(b, stream_sync(b->stream));
    for (uint32_t i = 0; i < p->n_parts && b->graphs; i++) {
        struct part_arg a = {r, p, i};
        TRY(record(b, record_part, &a, &p->exec[i]));
    }
    return STATUS_OK;
}

static void pass_add(struct cuda_replay *r, int which, enum cuda_pass_kind kind, bool sampled,
                     uint32_t n_layers)
{
    struct cuda_pass *p = &r->pass[which];
    *p = (struct cuda_pass){.kind = kind, .sampled = sampled};
    cut(p, r, n_layers);
}

static int capture_all(struct cuda_backend *b, struct cuda_replay *r)
{
    uint32_t n_layers = b->base.dims.n_layers;
    bool skinny = r->base.bucket <= CUDA_SKINNY_ROWS;
    if (r->n_ops == 1) {
        pass_add(r, CUDA_ANY, CUDA_PASS_HEAD, false, n_layers);
    } else if (skinny) {
        pass_add(r, CUDA_DECODE_SAMPLED, CUDA_PASS_DECODE, true, n_layers);
        pass_add(r, CUDA_DECODE, CUDA_PASS_DECODE, false, n_layers);
        pass_add(r, CUDA_ANY, CUDA_PASS_ROWS, false, n_layers);
    } else {
        pass_add(r, CUDA_ANY, b->strict ? CUDA_PASS_ROWS : CUDA_PASS_LARGE, false, n_layers);
    }
    for (int i = 0; i < CUDA_PASSES; i++)
        TRY(capture_pass(b, r, &r->pass[i]));
    if (b->sample_exec || !b->graphs)
        return STATUS_OK;
    TRY(enqueue_sample(b, b->model.caps.max_logits));
    CUDA_TRY(b, stream_sync(b->stream));
    return record(b, record_sample, NULL, &b->sample_exec);
}

/* Free memory, to see what graphs take. */
static size_t memory_free(struct cuda_backend *b)
{
    size_t left, total;
    return b->api->mem_info(&left, &total) == 0 ? left : 0;
}

int cuda_capture(struct backend *base, const struct op *ops, size_t n_ops, uint32_t bucket,
                 const struct kv_view *kv, struct replay **out)
{
    struct cuda_backend *b = (struct cuda_backend *)base;
    struct cuda_replay *r = calloc(1, sizeof *r + n_ops * sizeof *ops);
    if (!r)
        return STATUS_NOMEM;
    r->base = (struct replay){.bucket = bucket, .kv = *kv};
    r->n_ops = n_ops;
    memcpy(r->ops, ops, n_ops * sizeof *ops);
    size_t before = memory_free(b);
    int rc = capture_all(b, r);
    size_t after = memory_free(b);
    b->graph_bytes += before > after ? before - after : 0;
    if (rc != STATUS_OK) {
        cuda_replay_destroy(base, &r->base);
        return rc;
    }
    *out = &r->base;
    return STATUS_OK;
}

void cuda_replay_destroy(struct backend *base, struct replay *replay)
{
    struct cuda_backend *b = (struct cuda_backend *)base;
    struct cuda_replay *r = (struct cuda_replay *)replay;
    if (b->api->stream_sync(b->stream) != 0)
        b->lost = true;
    size_t before = memory_free(b);
    for (int i = 0; i < CUDA_PASSES; i++)
        for (uint32_t k = 0; k < CUDA_PARTS_MAX; k++)
            if (r->pass[i].exec[k])
                b->api->exec_destroy(r->pass[i].exec[k]);
    size_t after = memory_free(b), back = after > before ? after - before : 0;
    b->graph_bytes -= back < b->graph_bytes ? back : b->graph_bytes;
    free(r);
}

void cuda_graph_fini(struct cuda_backend *b)
{
    if (b->sample_exec)
        b->api->exec_destroy(b->sample_exec);
    b->sample_exec = NULL;
}

/* ---- replay --------------------------------------------------------------------------------- */

int cuda_pass_run(struct cuda_backend *b, const struct cuda_replay *r, const struct cuda_pass *p,
                  uint32_t part)
{
    if (!b->graphs)
        return enqueue_part(b, r, p, part);
    CUDA_TRY(b, exec_launch(p->exec[part], b->stream));
    return STATUS_OK;
}

int cuda_sample_run(struct cuda_backend *b)
{
    if (!b->graphs)
        return enqueue_sample(b, b->model.caps.max_logits);
    CUDA_TRY(b, exec_launch(b->sample_exec, b->stream));
    return STATUS_OK;
}
