/* cpu_graph: capture, update and replay of a forward pass on the CPU.
 *
 * Capture turns the op list into a flat list of calls: a function for one tile, the number of tiles
 * for the rows at hand, and pointers bound to weights, static buffers and the KV pool. Replay wakes
 * the pool once; every thread walks the whole list, takes tiles of each call from the shared
 * counter and meets the others at a barrier. Nothing is allocated, and only live rows are computed:
 * padding up to the bucket costs nothing and touches no KV block. The files behind the
 * calls are cpu_linear.c and cpu_attention.c. */
#include <stdatomic.h>

#include "kernels/cpu_calls.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/base/mem.h"

#define TOKEN_ROWS 8 /* of a tile of OP_EMBED and OP_ROPE_APPEND */

struct cpu_replay_list {
    struct replay base;
    size_t n_calls;
    struct call calls[];
};

/* ---- per token ------------------------------------------------------------------------------ */

static size_t token_tiles(const struct cpu_backend *b, const struct call *c)
{
    return ceil_div(b->base.args.n_rows, TOKEN_ROWS);
}

static void embed_run(struct cpu_backend *b, const struct call *c, struct cpu_scratch *s,
                      size_t tile)
{
    size_t end = min_size((tile + 1) * TOKEN_ROWS, b->base.args.n_rows);
    for (size_t r = tile * TOKEN_ROWS; r < end; r++)
        weight_embed(c->w, (uint32_t)b->base.args.token[r], c->out + r * c->out_width);
}

/* A token touches every line of a sub-block's keys and the lines of its values. */
static void fetch_for_append(const struct cpu_backend *b, uint8_t *cell, size_t bytes)
{
    for (size_t h = 0; h < b->base.dims.n_kv_heads; h++, cell += b->base.kv_cell_bytes)
        for (size_t i = 0; i < bytes; i += 64)
            __builtin_prefetch(cell + i, 1, 2);
}

static void rope_append_row(const struct cpu_backend *b, const struct call *c, size_t row)
{
    const struct backend_dims *d = &b->base.dims;
    const struct step_args *a = &b->base.args;
    size_t hd = d->head_dim, heads = d->n_heads + d->n_kv_heads, p = (size_t)a->position[row];
    float *q = b->base.buffer[BUFFER_QKV] + row * (heads + d->n_kv_heads) * hd;
    uint32_t block = a->tables[(size_t)a->seq[row] * a->table_stride + p / d->kv_block_size];
    uint8_t *cell = backend_kv_cell(&b->base, &c->kv, c->layer, block, 0);
    size_t sub_bytes = kv_sub_bytes(d->kv_format, hd);
    cell += p % d->kv_block_size / KV_SUB * sub_bytes;
    if (p % KV_SUB == 0 || row == 0 || a->seq[row - 1] != a->seq[row])
        fetch_for_append(b, cell, sub_bytes); /* while the heads are rotated */
    for (size_t h = 0; h < heads; h++) {
        const float *gain = h < d->n_heads ? c->q_norm : c->k_norm;
        if (gain)
            b->kernels->rmsnorm(q + h * hd, gain, hd, d->rms_eps, q + h * hd);
        b->kernels->rope(q + h * hd, b->base.rope + p * hd, hd, d->rope_neox);
    }
    /* The odd partner of an even slot is zeroed, unless the next row is that token. */
    bool alone = p % 2 == 0 && (row + 1 == a->n_rows || a->seq[row + 1] != a->seq[row] ||
                                a->position[row + 1] != a->position[row] + 1);
    kv_append_fn append = b->kernels->kv_append[d->kv_format];
    for (size_t h = 0; h < d->n_kv_heads; h++)
        append(cell + h * b->base.kv_cell_bytes, hd, p % KV_SUB, q + (d->n_heads + h) * hd,
               q + (heads + h) * hd, alone);
}

static void rope_append_run(struct cpu_backend *b, const struct call *c, struct cpu_scratch *s,
                            size_t tile)
{
    size_t end = min_size((tile + 1) * TOKEN_ROWS, b->base.args.n_rows);
    for (size_t r = tile * TOKEN_ROWS; r < end; r++)
        rope_append_row(b, c, r);
}

/* ---- capture -------------------------------------------------------------------------------- */

static linear_fn linear_for(const struct kernels *k, enum weight_format f)
{
    switch (f) {
    case WEIGHT_F32:
        return k->linear_f32;
    case WEIGHT_BF16:
        return k->linear_bf16;
    case WEIGHT_Q8:
        return k->linear_q8;
    case WEIGHT_Q8K:
        return k->linear_q8k;
    default:
        return k->linear_q4;
    }
}

/* Whether op is OP_DOWN right behind its OP_GATE_UP. */
static bool takes_hidden(const struct op *gate_up, const struct op *op)
{
    return gate_up->kind == OP_GATE_UP && op->kind == OP_DOWN && gate_up->layer == op->layer;
}

/* Appends one or two calls for ops[i]. */
static size_t bind(struct cpu_backend *b, const struct op *ops, size_t n_ops, size_t i,
                   const struct kv_view *kv, struct call *to)
{
    const struct op *op = &ops[i];
    float **buffer = b->base.buffer;
    struct call c = {.kind = op->kind,
                     .layer = op->layer,
                     .w = op->w,
                     .norm = op->norm,
                     .bias = op->bias,
                     .q_norm = op->q_norm,
                     .k_norm = op->k_norm,
                     .in = buffer[BUFFER_X],
                     .kv = *kv};
    switch (op->kind) {
    case OP_EMBED:
        c.tiles = token_tiles, c.run = embed_run;
        c.out = buffer[BUFFER_X], c.out_width = op->w->k;
        *to = c;
        return 1;
    case OP_ROPE_APPEND:
        c.tiles = token_tiles, c.run = rope_append_run;
        *to = c;
        return 1;
    case OP_ATTENTION:
        c.tiles = attention_tiles, c.run = attention_run, c.help = &attention_help;
        to[0] = c;
        c.tiles = join_tiles, c.run = join_run, c.help = NULL;
        to[1] = c;
        return 2;
    case OP_KV_READY:
        *to = c;
        return 1;
    case OP_QKV:
        c.out = buffer[BUFFER_QKV];
        break;
    case OP_OUT:
        c.in = buffer[BUFFER_ATT], c.out = buffer[BUFFER_X];
        break;
    case OP_GATE_UP:
        c.out = buffer[BUFFER_HID];
        if (i + 1 < n_ops && takes_hidden(op, op + 1))
            c.down = op[1].w;
        break;
    case OP_DOWN:
        c.in = buffer[BUFFER_HID], c.out = buffer[BUFFER_X];
        c.prepared = i > 0 && takes_hidden(op - 1, op);
        break;
    case OP_LOGITS:
        c.out = buffer[BUFFER_LOGITS];
        break;
    }
    c.out_width = op->kind == OP_GATE_UP ? op->w->n / 2 : op->w->n;
    c.linear = linear_for(b->kernels, op->w->format);
    c.tiles = prepare_tiles, c.run = prepare_run;
    to[0] = c;
    c.tiles = linear_tiles, c.run = linear_run, c.help = &linear_help;
    to[1] = c;
    return 2;
}

int cpu_capture(struct backend *base, const struct op *ops, size_t n_ops, uint32_t bucket,
                const struct kv_view *kv, struct replay **out)
{
    struct cpu_replay_list *r = calloc(1, sizeof *r + 2 * n_ops * sizeof *r->calls);
    if (!r)
        return STATUS_NOMEM;
    r->base = (struct replay){.bucket = bucket, .kv = *kv};
    for (size_t i = 0; i < n_ops; i++)
        r->n_calls += bind((struct cpu_backend *)base, ops, n_ops, i, kv, r->calls + r->n_calls);
    *out = &r->base;
    return STATUS_OK;
}

void cpu_replay_destroy(struct backend *b, struct replay *r)
{
    threads_quiesce(((struct cpu_backend *)b)->pool);
    free(r);
}

/* ---- replay --------------------------------------------------------------------------------- */

/* Everything before `call` is complete: the time since then belongs to the call before. */
static void replay_profile(struct cpu_replay_job *job, struct backend_profile *p, size_t call)
{
    uint64_t now = p->cpu_time ? clock_thread_ns() : clock_ns();
    if (call > 0)
        p->seconds[job->list->calls[call - 1].kind] += (double)(now - job->since) * 1e-9;
    job->since = now;
}

static bool replay_stopped(const struct cpu_replay_job *job)
{
    const _Atomic bool *stop = job->b->base.args.stop;
    return stop && atomic_load_explicit(stop, memory_order_relaxed);
}

static size_t replay_tiles(void *arg, size_t call)
{
    struct cpu_replay_job *job = arg;
    const struct call *c = &job->list->calls[call];
    if (replay_stopped(job))
        return 0;
    if (job->b->base.profile)
        replay_profile(job, job->b->base.profile, call);
    return c->run ? c->tiles(job->b, c) : 0;
}

static void replay_tile(void *arg, size_t call, size_t tile, int thread)
{
    const struct cpu_replay_job *job = arg;
    const struct call *c = &job->list->calls[call];
    c->run(job->b, c, job->b->scratch[thread], tile);
}

/* On the replaying thread: the calls before `call` are complete. */
static void replay_progress(void *arg, size_t call)
{
    struct cpu_replay_job *job = arg;
    const struct step_args *a = &job->b->base.args;
    for (; job->reported < call; job->reported++)
        if (!job->list->calls[job->reported].run && a->layer_done && !replay_stopped(job))
            a->layer_done(a->layer_arg, job->list->calls[job->reported].layer);
}

__attribute__((no_sanitize("thread"))) static bool replay_helps(void *arg, size_t call)
{
    const struct cpu_replay_job *job = arg;
    const struct call *c = &job->list->calls[call];
    return c->help && !(c->kind == OP_ATTENTION && job->b->in_parts); /* parts are for threads */
}

/* A late helper may find another list here than the one it took its tile of. */
__attribute__((no_sanitize("thread"))) static void replay_begin(void *arg, size_t call, size_t tile,
                                                                int thread)
{
    const struct cpu_replay_job *job = arg;
    const struct cpu_replay_list *list = job->list;
    if (call < list->n_calls && list->calls[call].help)
        list->calls[call].help->begin(job->b, &list->calls[call], job->b->scratch[thread], tile);
}

static void replay_compute(void *arg, int thread)
{
    const struct cpu_replay_job *job = arg;
    struct cpu_scratch *s = job->b->scratch[thread];
    s->help.call->help->compute(job->b, s);
}

static void replay_finish(void *arg, int thread)
{
    const struct cpu_replay_job *job = arg;
    struct cpu_scratch *s = job->b->scratch[thread];
    s->help.call->help->finish(job->b, s);
}

void cpu_replay_init(struct cpu_backend *b)
{
    b->job.b = b;
    b->job.run = (struct threads_job){.tiles = replay_tiles,
                                      .run = replay_tile,
                                      .progress = replay_progress,
                                      .arg = &b->job,
                                      .helps = replay_helps,
                                      .begin = replay_begin,
                                      .compute = replay_compute,
                                      .finish = replay_finish};
}

int cpu_replay(struct backend *base, struct replay *r)
{
    struct cpu_backend *b = (struct cpu_backend *)base;
    struct cpu_replay_job *job = &b->job;
    job->list = (const struct cpu_replay_list *)r;
    job->reported = 0;
    job->run.n_phases = job->list->n_calls;
    b->step++;
    attention_plan(b);
    threads_run(b->pool, &job->run);
    if (base->profile) {
        replay_profile(job, base->profile, job->list->n_calls);
        base->profile->passes++;
    }
    return replay_stopped(job) ? STATUS_CANCELED : STATUS_OK;
}
