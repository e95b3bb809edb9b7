/* cuda_step: steps from open to close; see device.h.
 *
 * A ring of CUDA_RING steps, each with page-locked memory of its own: nothing that a copy still
 * reads is written, and results are read before the memory is used again. Per step the stream gets
 *
 *   [tables] args [masks] pass … [masks sampling] results event
 *
 * and nothing of it waits for the host. */
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "kernels/cuda_impl.h"

/* Lists are read once, by the sampling of the step: where they lie in host memory is good enough.
 */
static int adjust_alloc(struct cuda_backend *b, struct device_step *step, uint32_t cap)
{
    void *host, *mapped;
    CUDA_TRY(b, host_alloc(&host, &mapped, (size_t)cap * sizeof *step->adjust));
    if (step->adjust)
        b->api->host_free(step->adjust);
    step->adjust = host;
    step->adjust_device = mapped;
    step->adjust_cap = cap;
    return STATUS_OK;
}

static int step_init(struct cuda_backend *b, struct cuda_step *s)
{
    const struct gpu_caps *c = &b->model.caps;
    void *mapped, **to[] = {(void **)&s->pub.args, (void **)&s->results, (void **)&s->tables,
                            (void **)&s->pub.mask, (void **)&s->pub.late_samples};
    const size_t bytes[] = {gpu_step_bytes(c), c->max_logits * sizeof *s->results,
                            CUDA_TABLE_STAGING, (size_t)c->max_logits * b->mask_stride * 4,
                            c->max_logits * sizeof(struct gpu_sample)};
    for (size_t i = 0; i < sizeof to / sizeof *to; i++)
        CUDA_TRY(b, host_alloc(to[i], &mapped, bytes[i]));
    memset(s->pub.args, 0, bytes[0]);
    TRY(adjust_alloc(b, &s->pub, CUDA_ADJUST));
    for (int i = 0; i < CUDA_PARTS_MAX; i++)
        CUDA_TRY(b, event_create(&s->part[i], false));
    CUDA_TRY(b, event_create(&s->done, false));
    return STATUS_OK;
}

int cuda_steps_init(struct cuda_backend *b)
{
    for (int i = 0; i < CUDA_RING; i++)
        TRY(step_init(b, &b->steps[i]));
    return STATUS_OK;
}

void cuda_steps_fini(struct cuda_backend *b)
{
    for (int i = 0; i < CUDA_RING; i++) {
        struct cuda_step *s = &b->steps[i];
        void *host[] = {s->pub.args, s->results,          s->tables,
                        s->pub.mask, s->pub.late_samples, s->pub.adjust};
        for (size_t k = 0; k < sizeof host / sizeof *host; k++)
            if (host[k])
                b->api->host_free(host[k]);
        for (int k = 0; k < CUDA_PARTS_MAX; k++)
            if (s->part[k])
                b->api->event_destroy(s->part[k]);
        if (s->done)
            b->api->event_destroy(s->done);
    }
}

int cuda_step_open(struct backend *base, struct device_step **out)
{
    struct cuda_backend *b = (struct cuda_backend *)base;
    struct cuda_step *free_one = NULL;
    int n = 0;
    for (int i = 0; i < CUDA_RING; i++) {
        if (b->steps[i].open)
            n++;
        else
            free_one = &b->steps[i];
    }
    if (n >= DEVICE_AHEAD)
        return STATUS_FULL;
    free_one->open = true;
    free_one->tables_used = 0;
    free_one->pub.n_masks = 0;
    free_one->pub.decode = free_one->pub.late = free_one->pub.draw = false;
    memset(free_one->pub.args, 0, sizeof *free_one->pub.args);
    *out = &free_one->pub;
    return STATUS_OK;
}

int cuda_step_adjust(struct backend *base, struct device_step *step, uint32_t n)
{
    const struct cuda_step *s = (const struct cuda_step *)step;
    ASSERT(s->open && !s->flying);
    if (n <= step->adjust_cap)
        return STATUS_OK;
    return adjust_alloc((struct cuda_backend *)base, step, n + n / 2);
}

/* ---- block tables --------------------------------------------------------------------------- */

/* Copies entries first .. first + n - 1 of the shadow. */
static int copy_table(struct cuda_backend *b, struct cuda_step *s, size_t first, size_t n)
{
    const size_t room = CUDA_TABLE_STAGING / sizeof *s->tables;
    while (n > 0) {
        if (s->tables_used == room) { /* rare: many long sequences come at once */
            CUDA_TRY(b, stream_sync(b->stream));
            s->tables_used = 0;
        }
        size_t piece = n < room - s->tables_used ? n : room - s->tables_used;
        uint32_t *from = s->tables + s->tables_used;
        memcpy(from, b->shadow + first, piece * sizeof *from);
        CUDA_TRY(b, copy_async(b->model.tables + first, from, piece * sizeof *from, GPU_TO_DEVICE,
                               b->stream));
        s->tables_used += piece;
        first += piece;
        n -= piece;
    }
    return STATUS_OK;
}

int cuda_step_table(struct backend *base, struct device_step *step, uint32_t slot,
                    const uint32_t *blocks, uint32_t n)
{
    struct cuda_backend *b = (struct cuda_backend *)base;
    struct cuda_step *s = (struct cuda_step *)step;
    const struct gpu_model *m = &b->model;
    ASSERT_MSG(slot < m->max_slots && n <= m->table_stride, "slot %u, %u blocks", slot, n);
    uint32_t *shadow = b->shadow + (size_t)slot * m->table_stride, changed = 0, first = 0, last = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (shadow[i] == blocks[i])
            continue;
        if (changed++ == 0)
            first = i;
        last = i;
    }
    uint32_t *n_patches = &s->pub.args->n_patches;
    if (changed > CUDA_PATCHES || *n_patches + changed > m->caps.max_patches) {
        memcpy(shadow + first, blocks + first, (last - first + 1) * sizeof *blocks);
        return copy_table(b, s, (size_t)slot * m->table_stride + first, last - first + 1);
    }
    struct gpu_patch *patches = gpu_step_patches(s->pub.args, &m->caps);
    for (uint32_t i = first; changed > 0 && i <= last; i++) {
        if (shadow[i] == blocks[i])
            continue;
        shadow[i] = blocks[i];
        patches[(*n_patches)++] = (struct gpu_patch){slot, i, blocks[i]};
    }
    return STATUS_OK;
}

/* ---- launch --------------------------------------------------------------------------------- */

/* The last guard before memory is addressed by what the image says; see backend_check_step. */
static void check(const struct cuda_backend *b, const struct cuda_step *s, const struct replay *r)
{
    const struct backend_dims *d = &b->base.dims;
    const struct gpu_model *m = &b->model;
    const struct gpu_step_args *a = s->pub.args;
    const struct gpu_row *row = gpu_step_rows(a);
    const uint32_t *segment = gpu_step_segment(a, &m->caps);
    const struct gpu_watch *watch = b->api->watch;
    ASSERT_MSG(a->n_rows <= r->bucket && a->n_segments <= a->n_rows &&
                   segment[a->n_segments] == a->n_rows,
               "%u rows in %u segments, bucket %u", a->n_rows, a->n_segments, r->bucket);
    if (watch)
        watch->step(r->bucket, a->n_rows);
    for (uint32_t i = 0; i < a->n_segments; i++) {
        uint32_t first = segment[i], n = segment[i + 1] - first;
        const struct gpu_row *p = &row[first];
        ASSERT_MSG(segment[i + 1] > first && p->position >= 0 && p->slot < m->max_slots &&
                       (uint64_t)(uint32_t)p->position + n <= d->context,
                   "segment %u: %u rows at %d, slot %u", i, n, p->position, p->slot);
        const uint32_t *table = b->shadow + (size_t)p->slot * m->table_stride;
        for (uint32_t k = 0; k < n; k++)
            ASSERT_MSG(p[k].position == p->position + (int32_t)k && p[k].slot == p->slot &&
                           p[k].token < (int32_t)d->vocab &&
                           (p[k].token >= 0 || (p[k].token == GPU_TOKEN_OF_SLOT && n == 1)) &&
                           !(p[k].flags & GPU_ROW_SINGLE) == (n > 1),
                       "row %u: token %d at %d", first + k, p[k].token, p[k].position);
        for (uint32_t k = 0; k <= ((uint32_t)p->position + n - 1) / d->kv_block_size; k++)
            ASSERT_MSG(table[k] > 0 && table[k] < r->kv.n_blocks, "block %u of %u", table[k],
                       r->kv.n_blocks);
        if (watch)
            watch->sequence((uint32_t)p->position, n, table);
    }
}

static void check_logits(const struct cuda_backend *b, const struct cuda_step *s,
                         const struct gpu_sample *sample)
{
    const struct gpu_step_args *a = s->pub.args;
    const struct gpu_caps *c = &b->model.caps;
    const uint32_t *logit_row = gpu_step_logit_row(a, c);
    ASSERT_MSG(a->n_logits <= c->max_logits && a->n_slot_patches <= c->max_slot_patches &&
                   s->pub.n_masks <= c->max_logits,
               "%u logits, %u patches of slots", a->n_logits, a->n_slot_patches);
    for (uint32_t i = 0; i < a->n_logits; i++)
        ASSERT_MSG(logit_row[i] < a->n_rows &&
                       (sample[i].mask == GPU_NO_MASK || sample[i].mask < c->max_logits),
                   "logits of row %u of %u", logit_row[i], a->n_rows);
}

static int copy_masks(struct cuda_backend *b, const struct cuda_step *s)
{
    size_t n = (size_t)s->pub.n_masks * b->mask_stride * sizeof *b->mask;
    if (n > 0)
        CUDA_TRY(b, copy_async(b->mask, s->pub.mask, n, GPU_TO_DEVICE, b->stream));
    return STATUS_OK;
}

/* Results to the host, and the event that ends the step. */
static int finish(struct cuda_backend *b, struct cuda_step *s)
{
    size_t n = s->pub.args->n_logits * sizeof *s->results;
    if (s->pub.draw)
        CUDA_TRY(b, copy_async(s->results, b->results, n, GPU_TO_HOST, b->stream));
    CUDA_TRY(b, event_record(s->done, b->stream));
    s->flying = true;
    return STATUS_OK;
}

static const struct cuda_pass *choose(const struct cuda_replay *r, const struct device_step *s)
{
    int which = CUDA_ANY;
    if (s->decode && r->pass[CUDA_DECODE].n_parts)
        which = s->draw && !s->late ? CUDA_DECODE_SAMPLED : CUDA_DECODE;
    return &r->pass[which];
}

int cuda_step_launch(struct backend *base, struct device_step *step, struct replay *replay)
{
    struct cuda_backend *b = (struct cuda_backend *)base;
    struct cuda_step *s = (struct cuda_step *)step;
    const struct cuda_replay *r = (const struct cuda_replay *)replay;
    ASSERT(s->open && !s->flying);
    if (r->n_ops > 1)
        check(b, s, replay);
    check_logits(b, s, gpu_step_samples(step->args, &b->model.caps));
    s->pass = choose(r, step);
    s->at = 0;
    CUDA_TRY(b, copy_async(b->step, step->args, gpu_step_bytes(&b->model.caps), GPU_TO_DEVICE,
                           b->stream));
    if (!step->late)
        TRY(copy_masks(b, s));
    for (uint32_t i = 0; i < s->pass->n_parts; i++) {
        TRY(cuda_pass_run(b, r, s->pass, i));
        if (i + 1 < s->pass->n_parts)
            CUDA_TRY(b, event_record(s->part[i], b->stream));
    }
    if (step->late && step->draw)
        return STATUS_OK;
    if (step->draw && !s->pass->sampled)
        TRY(cuda_sample_run(b));
    return finish(b, s);
}

int cuda_step_sample(struct backend *base, struct device_step *step)
{
    struct cuda_backend *b = (struct cuda_backend *)base;
    struct cuda_step *s = (struct cuda_step *)step;
    ASSERT(s->open && !s->flying && step->late && step->draw && s->pass && !s->pass->sampled);
    check_logits(b, s, step->late_samples);
    CUDA_TRY(b, copy_async(gpu_step_samples(b->step, &b->model.caps), step->late_samples,
                           step->args->n_logits * sizeof *step->late_samples, GPU_TO_DEVICE,
                           b->stream));
    TRY(copy_masks(b, s));
    TRY(cuda_sample_run(b));
    return finish(b, s);
}

/* ---- the end -------------------------------------------------------------------------------- */

/* 0, STATUS_AGAIN or an error. */
static int ask(struct cuda_backend *b, struct gpu_event *e, bool wait)
{
    int rc = wait ? b->api->event_sync(e) : b->api->event_query(e);
    if (rc == GPU_ERROR_NOT_READY)
        return STATUS_AGAIN;
    return rc ? cuda_failed(b, rc, "waiting for a step") : STATUS_OK;
}

int cuda_step_poll(struct backend *base, struct device_step *step, bool wait, uint32_t *layers)
{
    struct cuda_backend *b = (struct cuda_backend *)base;
    struct cuda_step *s = (struct cuda_step *)step;
    ASSERT(s->open && s->pass);
    *layers = s->at ? s->pass->layers[s->at - 1] : 0;
    if (s->at + 1 < s->pass->n_parts) {
        TRY(ask(b, s->part[s->at], wait));
        *layers = s->pass->layers[s->at++];
        return STATUS_AGAIN; /* the caller passes them on before it asks again */
    }
    if (!s->flying)
        return STATUS_AGAIN; /* sampling is still to come */
    TRY(ask(b, s->done, wait));
    *layers = b->base.dims.n_layers;
    s->pub.results = s->results;
    s->flying = false;
    return STATUS_OK;
}

int cuda_step_logits(struct backend *base, uint32_t i, float *out)
{
    struct cuda_backend *b = (struct cuda_backend *)base;
    size_t width = gpu_pad(b->base.dims.vocab, 128), n = b->base.dims.vocab;
    /* Through page-locked memory that no step in flight uses: packing is over. */
    const size_t room = CUDA_STAGING / sizeof(float);
    for (size_t at = 0; at < n;) {
        size_t piece = n - at < room ? n - at : room;
        CUDA_TRY(b, copy_async(b->staging, b->buffers.logits + i * width + at,
                               piece * sizeof(float), GPU_TO_HOST, b->stream));
        CUDA_TRY(b, stream_sync(b->stream));
        memcpy(out + at, b->staging, piece * sizeof(float));
        at += piece;
    }
    return STATUS_OK;
}

void cuda_step_close(struct backend *base, struct device_step *step)
{
    struct cuda_backend *b = (struct cuda_backend *)base;
    struct cuda_step *s = (struct cuda_step *)step;
    if (s->pass && (s->flying || s->at + 1 < s->pass->n_parts || step->late) &&
        b->api->stream_sync(b->stream) != 0)
        b->lost = true;
    const struct gpu_patch *patches = gpu_step_patches(step->args, &b->model.caps);
    for (uint32_t i = 0; i < step->args->n_patches && !s->pass;
         i++) /* never sent: to be sent again */
        b->shadow[(size_t)patches[i].slot * b->model.table_stride + patches[i].index] = UINT32_MAX;
    s->open = s->flying = false;
    s->pass = NULL;
}

/* ---- backend_replay ------------------------------------------------------------------------- */

static int fill(struct cuda_backend *b, struct cuda_step *s, const struct cuda_replay *r)
{
    const struct step_args *from = &b->base.args;
    const struct gpu_caps *c = &b->model.caps;
    struct gpu_step_args *to = s->pub.args;
    struct gpu_row *row = gpu_step_rows(to);
    to->n_rows = from->n_rows;
    to->n_segments = from->n_segments;
    to->n_logits = from->n_logits;
    memcpy(gpu_step_segment(to, c), from->segment, (from->n_segments + 1) * sizeof(uint32_t));
    memcpy(gpu_step_logit_row(to, c), from->logit_row, from->n_logits * sizeof(uint32_t));
    for (uint32_t i = 0; i < from->n_logits; i++)
        gpu_step_samples(to, c)[i] =
            (struct gpu_sample){.mask = GPU_NO_MASK, .slot = GPU_NO_SLOT, .flags = GPU_SAMPLE_SKIP};
    s->pub.decode = r->n_ops > 1;
    for (uint32_t i = 0; i < from->n_segments; i++) {
        uint32_t first = from->segment[i], last = from->segment[i + 1], slot = from->seq[first];
        s->pub.decode &= last - first == 1;
        for (uint32_t k = first; k < last; k++)
            row[k] = (struct gpu_row){.token = from->token[k],
                                      .position = from->position[k],
                                      .slot = slot,
                                      .flags = last - first == 1 ? GPU_ROW_SINGLE : 0};
        TRY(cuda_step_table(&b->base, &s->pub, slot,
                            from->tables + (size_t)slot * from->table_stride,
                            (uint32_t)from->position[last - 1] / b->base.dims.kv_block_size + 1));
    }
    return STATUS_OK;
}

int cuda_replay(struct backend *base, struct replay *r)
{
    struct cuda_backend *b = (struct cuda_backend *)base;
    const struct step_args *a = &base->args;
    struct device_step *s;
    uint32_t told = 0, layers = 0;
    TRY(cuda_step_open(base, &s));
    int rc = fill(b, (struct cuda_step *)s, (struct cuda_replay *)r);
    if (rc == STATUS_OK)
        rc = cuda_step_launch(base, s, r);
    if (rc == STATUS_OK)
        do {
            rc = cuda_step_poll(base, s, true, &layers);
            for (; told < layers && a->layer_done && ((struct cuda_replay *)r)->n_ops > 1; told++)
                a->layer_done(a->layer_arg, told);
        } while (rc == STATUS_AGAIN);
    for (uint32_t i = 0; i < a->n_logits && rc == STATUS_OK; i++)
        rc = cuda_step_logits(base, i, base->buffer[BUFFER_LOGITS] + (size_t)i * base->dims.vocab);
    cuda_step_close(base, s);
    return rc;
}
