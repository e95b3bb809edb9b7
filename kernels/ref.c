/* ref: the oracle. Each operation as the formula says it, one row at a time, sums in double,
 * weights as the floats that the file defines. It shares nothing with the cpu backend but the order
 * of a KV cell, so that the two can also be compared block by block. Slow; for tests and for doubt.
 */
#include "kernels/backend_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "kernels/kv.h"

struct ref_backend {
    struct backend base;
    float *norm;     /* [max(hidden, ffn)] one normalised row */
    double *out;     /* [largest N] one row of a product */
    double *weights; /* [context] softmax of one row */
};

struct ref_replay {
    struct replay base;
    size_t n_ops;
    struct op ops[];
};

static void rmsnorm(const float *x, const float *gain, size_t n, float eps, float *out)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    double scale = 1 / sqrt(sum / (double)n + eps);
    for (size_t i = 0; i < n; i++)
        out[i] = (float)(x[i] * scale * (gain ? gain[i] : 1));
}

/* out[n] = w[n][k] x[k] */
static void matvec(const struct weight *w, const float *x, double *out)
{
    for (size_t n = 0; n < w->n; n++) {
        double sum = 0;
        for (size_t k = 0; k < w->k; k++)
            sum += (double)w->plain[n * w->k + k] * x[k];
        out[n] = sum;
    }
}

static void rotate(const struct backend *b, float *x, int32_t position)
{
    size_t half = b->dims.head_dim / 2;
    const float *cosine = b->rope + (size_t)position * b->dims.head_dim, *sine = cosine + half;
    for (size_t i = 0; i < half; i++) {
        float *p = b->dims.rope_neox ? x + i : x + 2 * i;
        float *q = b->dims.rope_neox ? x + half + i : x + 2 * i + 1;
        float a = *p, c = *q;
        *p = a * cosine[i] - c * sine[i];
        *q = c * cosine[i] + a * sine[i];
    }
}

static void *sub_block(const struct backend *b, const struct replay *r, uint32_t layer,
                       uint32_t row, uint32_t head, int32_t position)
{
    const struct backend_dims *d = &b->dims;
    const struct step_args *a = &b->args;
    uint32_t p = (uint32_t)position;
    uint32_t block = a->tables[(size_t)a->seq[row] * a->table_stride + p / d->kv_block_size];
    uint8_t *cell = backend_kv_cell(b, &r->kv, layer, block, head);
    return cell + p % d->kv_block_size / KV_SUB * kv_sub_bytes(d->kv_format, d->head_dim);
}

static void rope_append(const struct backend *b, const struct replay *r, const struct op *op,
                        uint32_t row)
{
    const struct backend_dims *d = &b->dims;
    size_t hd = d->head_dim, heads = d->n_heads + d->n_kv_heads;
    int32_t position = b->args.position[row];
    float *q = b->buffer[BUFFER_QKV] + row * (heads + d->n_kv_heads) * hd;
    for (size_t h = 0; h < heads; h++) {
        const float *gain = h < d->n_heads ? op->q_norm : op->k_norm;
        if (gain)
            rmsnorm(q + h * hd, gain, hd, d->rms_eps, q + h * hd);
        rotate(b, q + h * hd, position);
    }
    bool last = row + 1 == b->args.n_rows || b->args.seq[row + 1] != b->args.seq[row] ||
                b->args.position[row + 1] != position + 1;
    static const kv_append_fn appends[] = {kv_append_bf16_c, kv_append_int8_c, kv_append_f32_c};
    kv_append_fn append = appends[d->kv_format];
    for (uint32_t h = 0; h < d->n_kv_heads; h++)
        append(sub_block(b, r, op->layer, row, h, position), hd, (size_t)position % KV_SUB,
               q + (d->n_heads + h) * hd, q + (heads + h) * hd, position % 2 == 0 && last);
}

static void attend(struct ref_backend *b, const struct replay *r, uint32_t layer, uint32_t row,
                   uint32_t head)
{
    const struct backend_dims *d = &b->base.dims;
    size_t hd = d->head_dim;
    uint32_t kv_head = head / (d->n_heads / d->n_kv_heads);
    int32_t n = b->base.args.position[row] + 1;
    const float *q =
        b->base.buffer[BUFFER_QKV] + (row * (d->n_heads + 2 * (size_t)d->n_kv_heads) + head) * hd;
    double max = -INFINITY, sum = 0, out[256] = {0};
    for (int32_t i = 0; i < n; i++) {
        const void *sub = sub_block(&b->base, r, layer, row, kv_head, i);
        double s = 0;
        for (size_t e = 0; e < hd; e++)
            s += (double)q[e] * kv_read_k(d->kv_format, sub, hd, (size_t)i % KV_SUB, e);
        b->weights[i] = s / sqrt((double)hd);
        max = fmax(max, b->weights[i]);
    }
    for (int32_t i = 0; i < n; i++) {
        const void *sub = sub_block(&b->base, r, layer, row, kv_head, i);
        double p = exp(b->weights[i] - max);
        sum += p;
        for (size_t e = 0; e < hd; e++)
            out[e] += p * kv_read_v(d->kv_format, sub, hd, (size_t)i % KV_SUB, e);
    }
    float *to = b->base.buffer[BUFFER_ATT] + ((size_t)row * d->n_heads + head) * hd;
    for (size_t e = 0; e < hd; e++)
        to[e] = (float)(out[e] / sum);
}

static void linear(struct ref_backend *b, const struct op *op, uint32_t row)
{
    const struct backend_dims *d = &b->base.dims;
    float **buf = b->base.buffer;
    size_t source = op->kind == OP_LOGITS ? b->base.args.logit_row[row] : row;
    const float *x = op->kind == OP_OUT    ? buf[BUFFER_ATT] + source * op->w->k
                     : op->kind == OP_DOWN ? buf[BUFFER_HID] + source * op->w->k
                                           : buf[BUFFER_X] + source * op->w->k;
    if (op->norm) {
        rmsnorm(x, op->norm, op->w->k, d->rms_eps, b->norm);
        x = b->norm;
    }
    matvec(op->w, x, b->out);
    size_t n = op->w->n;
    for (size_t i = 0; i < n; i++) {
        if (op->kind == OP_QKV)
            buf[BUFFER_QKV][row * n + i] = (float)(b->out[i] + (op->bias ? op->bias[i] : 0));
        else if (op->kind == OP_LOGITS)
            buf[BUFFER_LOGITS][row * n + i] = (float)b->out[i];
        else if (op->kind != OP_GATE_UP)
            buf[BUFFER_X][row * n + i] += (float)b->out[i];
        else if (i < d->ffn)
            buf[BUFFER_HID][row * (size_t)d->ffn + i] =
                (float)(b->out[i] / (1 + exp(-b->out[i])) * b->out[d->ffn + i]);
    }
}

static int ref_replay_run(struct backend *base, struct replay *r)
{
    struct ref_backend *b = (struct ref_backend *)base;
    const struct ref_replay *list = (const struct ref_replay *)r;
    const struct step_args *a = &base->args;
    for (size_t i = 0; i < list->n_ops; i++) {
        const struct op *op = &list->ops[i];
        uint32_t rows = op->kind == OP_LOGITS ? a->n_logits : a->n_rows;
        if (op->kind == OP_KV_READY) {
            if (a->layer_done)
                a->layer_done(a->layer_arg, op->layer);
            continue;
        }
        for (uint32_t row = 0; row < rows; row++) {
            if (op->kind == OP_EMBED)
                memcpy(base->buffer[BUFFER_X] + (size_t)row * op->w->k,
                       op->w->plain + (size_t)a->token[row] * op->w->k, op->w->k * sizeof(float));
            else if (op->kind == OP_ROPE_APPEND)
                rope_append(base, r, op, row);
            else if (op->kind == OP_ATTENTION)
                for (uint32_t h = 0; h < base->dims.n_heads; h++)
                    attend(b, r, op->layer, row, h);
            else
                linear(b, op, row);
        }
    }
    return STATUS_OK;
}

static int ref_capture(struct backend *b, const struct op *ops, size_t n_ops, uint32_t bucket,
                       const struct kv_view *kv, struct replay **out)
{
    (void)b;
    struct ref_replay *r = calloc(1, sizeof *r + n_ops * sizeof *ops);
    if (!r)
        return STATUS_NOMEM;
    r->base = (struct replay){.bucket = bucket, .kv = *kv};
    r->n_ops = n_ops;
    memcpy(r->ops, ops, n_ops * sizeof *ops);
    *out = &r->base;
    return STATUS_OK;
}

static void ref_replay_destroy(struct backend *b, struct replay *r)
{
    (void)b;
    free(r);
}

static int ref_weight_create(struct backend *b, const struct matrix_view *parts, size_t n_parts,
                             enum weight_format format, bool interleave, bool embed,
                             struct weight **out)
{
    (void)b;
    TRY(weight_check(parts, n_parts, &format, interleave, embed));
    struct weight *w = mem_array(1, sizeof *w);
    if (!w)
        return STATUS_NOMEM;
    w->format = WEIGHT_F32;
    w->interleave = interleave;
    w->k = (uint32_t)parts[0].cols;
    for (size_t i = 0; i < n_parts; i++)
        w->n += (uint32_t)parts[i].rows;
    w->plain = mem_array(w->n, w->k * sizeof *w->plain);
    if (!w->plain) {
        free(w);
        return STATUS_NOMEM;
    }
    w->bytes = (size_t)w->n * w->k * sizeof *w->plain;
    float *to = w->plain;
    for (size_t i = 0; i < n_parts; i++)
        for (uint64_t row = 0; row < parts[i].rows; row++, to += w->k)
            matrix_decode(&parts[i], row, 0, w->k, to);
    *out = w;
    return STATUS_OK;
}

static void ref_weight_destroy(struct backend *b, struct weight *w)
{
    (void)b;
    free(w->plain);
    free(w);
}

static void ref_destroy(struct backend *base)
{
    struct ref_backend *b = (struct ref_backend *)base;
    backend_fini(base);
    free(b->norm);
    free(b->out);
    free(b->weights);
    free(b);
}

int ref_create(const struct backend_options *o, const struct backend_dims *d, struct backend **out,
               char *err, size_t errlen)
{
    static const struct backend_ops ops = {
        .destroy = ref_destroy,
        .weight_create = ref_weight_create,
        .weight_destroy = ref_weight_destroy,
        .capture = ref_capture,
        .replay = ref_replay_run,
        .replay_destroy = ref_replay_destroy,
    };
    (void)o;
    struct ref_backend *b = mem_array(1, sizeof *b);
    if (!b) {
        snprintf(err, errlen, "out of memory");
        return STATUS_NOMEM;
    }
    int rc = backend_init(&b->base, &ops, d, err, errlen);
    if (rc == STATUS_OK) {
        size_t qkv = ((size_t)d->n_heads + 2 * (size_t)d->n_kv_heads) * d->head_dim;
        size_t wide = 2 * (size_t)d->ffn + d->hidden + qkv;
        b->norm = mem_array(wide, sizeof *b->norm);
        b->out = mem_array(wide > d->vocab ? wide : d->vocab, sizeof *b->out);
        b->weights = mem_array(d->context, sizeof *b->weights);
        if (!b->norm || !b->out || !b->weights) {
            snprintf(err, errlen, "out of memory");
            rc = STATUS_NOMEM;
        }
    }
    if (rc != STATUS_OK) {
        ref_destroy(&b->base);
        return rc;
    }
    snprintf(b->base.name, sizeof b->base.name, "ref");
    *out = &b->base;
    return STATUS_OK;
}
