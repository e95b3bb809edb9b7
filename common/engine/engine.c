/* engine: a model on a backend (engine.h).
 *
 * A step is: write the rows into step_args, replay the bucket, turn logits into tokens. Everything
 * is allocated in engine_create and engine_bind_kv; a step allocates nothing.
 *
 * Layout of a step: the rows of the step follow one another, all tokens of one sequence side by
 * side (a segment); block table i belongs to engine_row i. Table max_batch is all zeros: padded
 * rows point at it, with position -1, so that whatever a backend does with them happens in block 0.
 *
 * Logits are computed only where somebody wants them: for the last token of a row that samples, and
 * for every token of a row that is scored. The places are walked in one order (struct places), in
 * groups of at most max_logits: the first group is part of the pass, for each further one the head
 * is replayed over the residual stream that the pass left.
 *
 * A backend that computes beside the host has its own way through a step: device.c.
 *
 * Invariant: the answer for a row does not depend on the other rows, on the bucket, on the chunk,
 * on the group or on where its blocks lie. The backend keeps it; nothing here may break it, which
 * is why no row is ever dropped, merged or reordered by content. */
#include "common/engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/engine/engine_impl.h"
#include "common/engine/hidden.h"

#define LOGIT_ROWS_MIN 32 /* rows of one head replay when prompts are scored */
#define BATCH_MAX      4096
#define CHUNK_MAX      65536

static int check_options(const struct model *m, const struct engine_options *o, char *err,
                         size_t errlen)
{
    if (o->kv_block_size == 0 || o->kv_block_size % 16 != 0 || o->kv_block_size > 1024) {
        snprintf(err, errlen, "kv_block_size = %u: must be a multiple of 16, at most 1024",
                 o->kv_block_size);
        return STATUS_INVALID;
    }
    if (o->prefill_chunk == 0 || o->prefill_chunk > CHUNK_MAX ||
        o->prefill_chunk % o->kv_block_size != 0) {
        snprintf(err, errlen,
                 "prefill_chunk = %u: must be a multiple of kv_block_size (%u), at most %u",
                 o->prefill_chunk, o->kv_block_size, CHUNK_MAX);
        return STATUS_INVALID;
    }
    if (o->max_batch == 0 || o->max_batch > BATCH_MAX) {
        snprintf(err, errlen, "max_batch = %u: must be 1 to %u", o->max_batch, BATCH_MAX);
        return STATUS_INVALID;
    }
    if (o->threads < 1) {
        snprintf(err, errlen, "threads = %d: must be at least 1", o->threads);
        return STATUS_INVALID;
    }
    if (o->context > m->params.context) {
        snprintf(err, errlen, "context_length = %u: the model was made for %u", o->context,
                 m->params.context);
        return STATUS_INVALID;
    }
    return 0;
}

static int kv_format(const char *name, enum kv_format *out)
{
    static const char *const names[] = {"bf16", "int8", "f32"};
    *out = KV_BF16;
    if (name == NULL || strcmp(name, "auto") == 0)
        return 0;
    for (int i = 0; i < 3; i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (enum kv_format)i;
            return 0;
        }
    return STATUS_INVALID;
}

static struct backend_dims dims_of(const struct model *model, const struct engine_options *o)
{
    const struct model_params *m = &model->params;
    return (struct backend_dims){
        .n_layers = m->n_layers,
        .hidden = m->hidden,
        .n_heads = m->n_heads,
        .n_kv_heads = m->n_kv_heads,
        .head_dim = m->head_dim,
        .ffn = m->ffn,
        .vocab = m->vocab,
        .context = o->context != 0 ? o->context : m->context,
        .max_rows = o->prefill_chunk + o->max_batch,
        .max_seqs = o->max_batch + 1, /* and the sink's table */
        .max_logits = o->max_batch > LOGIT_ROWS_MIN ? o->max_batch : LOGIT_ROWS_MIN,
        .kv_block_size = o->kv_block_size,
        .rms_eps = m->rms_eps,
        .rope_theta = m->rope_theta,
        .rope_neox = m->rope_neox,
        .rope_freqs = model->rope_freqs,
        .rope_magnitude = m->rope.magnitude,
    };
}

static void fill_info(struct engine *e, const struct model *m)
{
    static const char *const kv_tags[] = {"", "/kv8", "/kv32"}; /* by enum kv_format */
    const struct backend_dims *d = &e->dims;
    struct engine_info *i = &e->info;
    i->n_layers = d->n_layers;
    i->hidden = e->dev == NULL ? e->dims.hidden : 0;
    i->vocab = d->vocab;
    i->context = d->context;
    i->kv_block_size = d->kv_block_size;
    i->max_tokens = d->max_rows;
    i->kv_block_bytes = d->n_kv_heads * backend_kv_cell_bytes(e->backend);
    i->weight_bytes = e->forward.weight_bytes;
    i->model = m->fingerprint;
    i->ahead = 1;
    snprintf(i->numerics, sizeof i->numerics, "%s/%s%s/tp1", backend_name(e->backend),
             e->forward.format, kv_tags[d->kv_format]);
    snprintf(i->kv_layout, sizeof i->kv_layout, "%s/l%u", backend_kv_layout(e->backend),
             d->n_layers);
}

int engine_create(const struct model *m, const struct engine_options *o, struct engine **out,
                  char *err, size_t errlen)
{
    enum weight_format format;
    TRY(check_options(m, o, err, errlen));
    if (forward_format(o->weights, &format) != 0) {
        snprintf(err, errlen, "weights = %s: must be auto, bf16, int8, int4 or f32", o->weights);
        return STATUS_INVALID;
    }
    enum kv_format kv;
    if (kv_format(o->kv_format, &kv) != 0) {
        snprintf(err, errlen,
                 "kv_format = %s: must be auto, bf16 or int8 (or f32, with backend ref)",
                 o->kv_format);
        return STATUS_INVALID;
    }
    struct engine *e = mem_array(1, sizeof *e);
    if (e == NULL) {
        snprintf(err, errlen, "out of memory");
        return STATUS_NOMEM;
    }
    e->dims = dims_of(m, o);
    e->dims.kv_format = kv;
    e->max_batch = o->max_batch;
    e->capture = o->graphs;
    struct backend_options bo = {.name = o->backend != NULL ? o->backend : "auto",
                                 .isa = o->isa != NULL ? o->isa : "auto",
                                 .threads = o->threads,
                                 .helpers = o->helpers,
                                 .cpus = o->cpus,
                                 .device = o->device,
                                 .strict =
                                     o->numerics != NULL && strcmp(o->numerics, "strict") == 0,
                                 .graphs = o->graphs};
    int rc = backend_create(&bo, &e->dims, &e->backend, err, errlen);
    e->dims.rope_freqs = NULL;
    if (rc != 0)
        goto free_engine;
    e->dev = backend_device(e->backend);
    if (e->dev != NULL && format == WEIGHT_AUTO)
        format = WEIGHT_BF16; /* what the kernels read; the numerics class says so */
    rc = forward_init(&e->forward, m, e->backend, format, &o->watch, err, errlen);
    if (rc != 0)
        goto destroy_backend;
    e->places = mem_array(e->dims.max_logits, sizeof *e->places);
    e->scratch = mem_array(e->dims.vocab, (size_t)backend_threads(e->backend) * sizeof *e->scratch);
    rc = graph_buckets_init(&e->buckets, o->max_batch, o->prefill_chunk);
    if (rc != 0 || e->places == NULL || e->scratch == NULL) {
        snprintf(err, errlen, "out of memory");
        rc = STATUS_NOMEM;
        goto free_parts;
    }
    ASSERT(e->buckets.rows[e->buckets.n - 1] == e->dims.max_rows);
    fill_info(e, m);
    if (e->dev != NULL) {
        rc = device_engine_create(e, o, err, errlen);
        if (rc != 0)
            goto free_parts;
    }
    *out = e;
    return 0;

free_parts:
    graph_buckets_fini(&e->buckets);
    free(e->places);
    free(e->scratch);
    forward_fini(&e->forward, e->backend);
destroy_backend:
    backend_destroy(e->backend);
free_engine:
    free(e);
    return rc;
}

void engine_destroy(struct engine *e)
{
    if (e == NULL)
        return;
    if (e->dev != NULL)
        device_engine_destroy(e);
    graphs_release(&e->graphs);
    graph_buckets_fini(&e->buckets);
    free(e->places);
    free(e->scratch);
    forward_fini(&e->forward, e->backend);
    backend_destroy(e->backend);
    free(e);
}

const struct engine_info *engine_info(const struct engine *e)
{
    return &e->info;
}

uint32_t engine_bucket(const struct engine *e, uint32_t n)
{
    uint32_t i = graph_buckets_find(&e->buckets, n);
    ASSERT_MSG(i < e->buckets.n, "%u rows", n);
    return e->buckets.rows[i];
}

int engine_bind_kv(struct engine *e, void *base, uint32_t n_blocks)
{
    ASSERT(e->kv.base == NULL && base != NULL && n_blocks >= 2);
    struct kv_view kv = {base, n_blocks};
    if (e->capture || e->dev != NULL)
        TRY(graphs_capture(&e->graphs, e->backend, &e->forward, &e->buckets, &kv));
    e->kv = kv;
    struct step_args *a = backend_step_args(e->backend);
    memset(a->tables + (size_t)e->max_batch * a->table_stride, 0,
           a->table_stride * sizeof *a->tables);
    return 0;
}

void *engine_kv_block(const struct engine *e, uint32_t layer, uint32_t block)
{
    ASSERT_MSG(layer < e->dims.n_layers && block < e->kv.n_blocks, "layer %u, block %u", layer,
               block);
    return (char *)e->kv.base + ((size_t)layer * e->kv.n_blocks + block) * e->info.kv_block_bytes;
}

void engine_kv_clear_tail(const struct engine *e, uint32_t layer, uint32_t block, uint32_t used)
{
    if (e->dev == NULL)
        backend_kv_clear_tail(e->backend, engine_kv_block(e, layer, block), used);
    else if (e->dev->kv_clear_tail(e->backend, layer, block, used) != 0)
        log_error("layer %u, block %u: its tail was not cleared", layer, block);
}

/* Rows come from jobs that came over the wire: what they name is checked before memory is addressed
 * by it. Returns the number of tokens in *n. */
static int check_rows(const struct engine *e, const struct engine_step *s, uint32_t *n)
{
    uint64_t sum = 0;
    if (s->n_rows == 0 || s->n_rows > e->max_batch)
        return STATUS_INVALID;
    for (uint32_t i = 0; i < s->n_rows; i++) {
        const struct engine_row *r = &s->rows[i];
        sum += r->n_tokens;
        if (r->n_tokens == 0 || sum > e->dims.max_rows)
            return STATUS_INVALID;
        if ((uint64_t)r->position + r->n_tokens > e->dims.context)
            return STATUS_RANGE;
        if (r->tokens == NULL && (e->dev == NULL || r->n_tokens != 1 || r->id == 0))
            return STATUS_INVALID;
        for (uint32_t t = 0; t < r->n_tokens && r->tokens != NULL; t++)
            if (r->tokens[t] < 0 || (uint32_t)r->tokens[t] >= e->dims.vocab)
                return STATUS_INVALID;
    }
    *n = (uint32_t)sum;
    return 0;
}

static void write_args(const struct engine *e, const struct engine_step *s, uint32_t n,
                       uint32_t bucket, struct step_args *a)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i < s->n_rows; i++) {
        const struct engine_row *r = &s->rows[i];
        uint32_t blocks = (r->position + r->n_tokens - 1) / e->dims.kv_block_size + 1;
        for (uint32_t b = r->position / e->dims.kv_block_size; b < blocks; b++)
            ASSERT_MSG(r->blocks[b] > 0 && r->blocks[b] < e->kv.n_blocks,
                       "row %u writes block %u of %u", i, r->blocks[b], e->kv.n_blocks);
        memcpy(a->tables + (size_t)i * a->table_stride, r->blocks, blocks * sizeof *r->blocks);
        a->segment[i] = at;
        for (uint32_t t = 0; t < r->n_tokens; t++, at++) {
            a->token[at] = r->tokens[t];
            a->position[at] = (int32_t)(r->position + t);
            a->seq[at] = i;
        }
    }
    a->segment[s->n_rows] = at;
    a->n_segments = s->n_rows;
    a->n_rows = n;
    for (; at < bucket; at++) {
        a->token[at] = 0;
        a->position[at] = -1;
        a->seq[at] = e->max_batch;
    }
    a->layer_done = s->layer_done;
    a->layer_arg = s->layer_arg;
    a->stop = s->stop;
}

static bool wanted(const struct engine_row *r, uint32_t token)
{
    bool last = token + 1 == r->n_tokens;
    if (last && r->sampling != NULL)
        return true;
    return r->scores != NULL && (!last || r->next_token >= 0);
}

uint32_t places_next(const struct engine *e, const struct engine_step *s, struct places *p,
                     struct place *places, uint32_t *logit_row)
{
    uint32_t n = 0;
    while (p->next.row < s->n_rows && n < e->dims.max_logits) {
        const struct engine_row *r = &s->rows[p->next.row];
        if (r->scores == NULL) /* only the last one can be wanted */
            p->next.token = r->n_tokens - 1;
        if (wanted(r, p->next.token)) {
            logit_row[n] = p->base + p->next.token;
            places[n++] = p->next;
        }
        if (++p->next.token == r->n_tokens) {
            p->base += r->n_tokens;
            p->next = (struct place){p->next.row + 1, 0};
        }
    }
    return n;
}

void place_score(const struct engine *e, struct engine_step *s, struct place at,
                 const float *logits)
{
    const struct engine_row *r = &s->rows[at.row];
    int32_t next = at.token + 1 == r->n_tokens ? r->next_token : r->tokens[at.token + 1];
    if (r->scores == NULL || next < 0)
        return;
    uint32_t top = r->score_top < SAMPLE_TOP_MAX ? r->score_top : SAMPLE_TOP_MAX;
    sample_score(logits, e->dims.vocab, r->score_ids, next, (uint8_t)top, &r->scores[at.token]);
}

struct answer_job {
    const struct engine *e;
    struct engine_step *s;
};

static void answer_place(void *arg, size_t i, int thread)
{
    const struct answer_job *j = arg;
    const struct engine *e = j->e;
    const float *logits = backend_logits(e->backend) + i * e->dims.vocab;
    struct engine_row *r = &j->s->rows[e->places[i].row];
    place_score(e, j->s, e->places[i], logits);
    if (e->places[i].token + 1 == r->n_tokens && r->sampling != NULL)
        sample_token(logits, e->dims.vocab, r->sampling, r->choice, r->position + r->n_tokens,
                     e->scratch + (size_t)thread * e->dims.vocab, &r->result);
}

/* Places are independent: one tile each on the backend's threads. */
static void answer(struct engine *e, struct engine_step *s, uint32_t n)
{
    struct answer_job job = {e, s};
    e->logits = backend_logits(e->backend) + (size_t)(n - 1) * e->dims.vocab;
    backend_parallel(e->backend, n, answer_place, &job);
}

/* The pass with the first group of logits, then the head over the rest. */
static int run(struct engine *e, struct engine_step *s, struct graphs *g, uint32_t index,
               struct step_args *a)
{
    struct places p = {{0, 0}, 0};
    uint32_t n = a->n_logits = places_next(e, s, &p, e->places, a->logit_row);
    TRY(backend_replay(e->backend, g->passes[index]));
    hidden_add(e, s);
    if (s->late) {
        e->n_places = n;
        return 0;
    }
    while (n > 0) {
        answer(e, s, n);
        n = a->n_logits = places_next(e, s, &p, e->places, a->logit_row);
        if (n > 0)
            TRY(backend_replay(e->backend, g->head));
    }
    return 0;
}

static int launch_host(struct engine *e, struct engine_step *s, uint32_t n)
{
    uint32_t index = graph_buckets_find(&e->buckets, n);
    struct step_args *a = backend_step_args(e->backend);
    write_args(e, s, n, s->bucket, a);
    if (e->capture)
        return run(e, s, &e->graphs, index, a);
    /* For comparison: everything is bound anew. */
    struct graph_buckets one = {&e->buckets.rows[index], 1};
    struct graphs g;
    TRY(graphs_capture(&g, e->backend, &e->forward, &one, &e->kv));
    int rc = run(e, s, &g, 0, a);
    graphs_release(&g);
    return rc;
}

int engine_launch(struct engine *e, struct engine_step *s)
{
    uint32_t n;
    ASSERT(e->kv.base != NULL);
    TRY(check_rows(e, s, &n));
    s->bucket = engine_bucket(e, n);
    return e->dev != NULL ? device_engine_launch(e, s, n) : launch_host(e, s, n);
}

int engine_sample(struct engine *e, struct engine_step *s)
{
    ASSERT(s->late);
    if (e->dev != NULL)
        return device_engine_sample(e, s);
    if (e->n_places > 0)
        answer(e, s, e->n_places);
    return 0;
}

int engine_poll(struct engine *e, struct engine_step *s, bool wait)
{
    return e->dev != NULL ? device_engine_poll(e, s, wait) : 0;
}

int engine_step(struct engine *e, struct engine_step *s)
{
    ASSERT(!s->late);
    TRY(engine_launch(e, s));
    int rc;
    do {
        rc = engine_poll(e, s, true);
    } while (rc == STATUS_AGAIN);
    return rc;
}

const float *engine_logits(const struct engine *e)
{
    return e->dev != NULL ? device_engine_logits(e) : e->logits;
}

bool engine_lost(const struct engine *e)
{
    return e->dev != NULL && e->dev->lost(e->backend);
}
