/* device: steps on a backend that computes beside the host (engine_impl.h, kernels/device.h).
 *
 * A launch writes the step's image: rows, what to sample, and what changed in the block tables. At
 * most DEVICE_AHEAD steps fly; each keeps its walk over the places of its step, for the answers.
 *
 * Slots. The device keeps a block table and the last token of each slot. A sequence, named by its
 * id, keeps its slot from step to step for as long as there are others to take: the one that was
 * not used for longest goes. There are twice as many slots as sequences in a step, so that those of
 * a step in flight stay. Losing a slot costs a table copy and nothing else, unless the row counts
 * on the token there: such a row is refused.
 *
 * Memory. Before anybody can say how much is left for KV, all buckets are captured once over a pool
 * of two blocks, and the memory they take is measured; then they are thrown away. engine_bind_kv
 * captures them again, over the real pool.
 *
 * Scoring (echo with log probabilities) is rare and slow: the logits come to the host, group after
 * group. Nothing may be launched behind such a step before it has ended. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/engine/engine_impl.h"

#define MEMORY_PERCENT 92
#define MEMORY_MARGIN  ((size_t)64 << 20) /* what drivers and libraries take later */

struct slot {
    uint64_t id, used; /* used: number of the step */
};

struct flight {
    struct engine_step *step; /* NULL: free */
    struct device_step *device;
    uint64_t number;
    struct place *places; /* [max_logits] */
    uint32_t n;
    struct places walk;
    uint32_t layers; /* passed on */
    bool scores;
    bool waits; /* to be sampled: what comes behind it would not see its tokens */
};

struct device_engine {
    struct slot *slots;
    uint32_t n_slots;
    uint64_t steps;
    struct flight flights[DEVICE_AHEAD];
    void *kv; /* owned */
    float *logits;
    uint32_t last_place;
    uint32_t percent;
};

/* ---- memory --------------------------------------------------------------------------------- */

/* Captures everything over a pool of two blocks, to see what it takes. */
static int rehearse(struct engine *e, struct device_memory *m)
{
    void *kv;
    struct graphs g;
    TRY(e->dev->kv_alloc(e->backend, 2, &kv));
    struct kv_view view = {kv, 2};
    int rc = graphs_capture(&g, e->backend, &e->forward, &e->buckets, &view);
    if (rc == 0) {
        rc = e->dev->memory(e->backend, m);
        graphs_release(&g);
    }
    e->dev->kv_free(e->backend, kv);
    return rc;
}

static int measure(struct engine *e, char *err, size_t errlen)
{
    struct device_engine *d = e->device;
    struct device_memory with, now;
    int rc = rehearse(e, &with);
    if (rc == 0)
        rc = e->dev->memory(e->backend, &now);
    if (rc == STATUS_NOMEM && e->dev->memory(e->backend, &now) == 0) {
        snprintf(err, errlen,
                 "the captured passes do not fit: %zu of %zu MiB of the device are free; lower "
                 "max_batch or prefill_chunk",
                 now.free >> 20, now.total >> 20);
        return rc;
    }
    if (rc != 0) {
        snprintf(err, errlen, "the forward pass could not be captured: %s", status_text(rc));
        return rc;
    }
    size_t graphs = with.graphs, margin = now.total / 100 * (100 - d->percent);
    size_t keep = graphs + (margin > MEMORY_MARGIN ? margin : MEMORY_MARGIN);
    e->info.graph_bytes = graphs;
    e->info.kv_bytes_max = now.free > keep ? now.free - keep : 1;
    log_info(
        "device: %zu MiB of weights, %zu MiB of graphs, %zu of %zu MiB free: at most %zu MiB of "
        "KV",
        e->info.weight_bytes >> 20, graphs >> 20, now.free >> 20, now.total >> 20,
        e->info.kv_bytes_max >> 20);
    return 0;
}

int device_engine_create(struct engine *e, const struct engine_options *o, char *err, size_t errlen)
{
    struct device_engine *d = e->device = mem_array(1, sizeof *d);
    int rc = STATUS_NOMEM;
    if (d == NULL)
        goto no_memory;
    d->n_slots = e->dev->slots(e->backend);
    d->percent = o->device_memory_percent != 0 ? o->device_memory_percent : MEMORY_PERCENT;
    d->slots = mem_array(d->n_slots, sizeof *d->slots);
    d->logits = mem_array(e->dims.vocab, sizeof *d->logits);
    if (d->slots == NULL || d->logits == NULL)
        goto no_memory;
    for (int i = 0; i < DEVICE_AHEAD; i++) {
        d->flights[i].places = mem_array(e->dims.max_logits, sizeof(struct place));
        if (d->flights[i].places == NULL)
            goto no_memory;
    }
    e->info.ahead = DEVICE_AHEAD;
    e->info.kv_on_device = true;
    rc = measure(e, err, errlen);
    if (rc != 0)
        device_engine_destroy(e);
    return rc;
no_memory:
    snprintf(err, errlen, "out of memory");
    device_engine_destroy(e);
    return rc;
}

void device_engine_destroy(struct engine *e)
{
    struct device_engine *d = e->device;
    if (d == NULL)
        return;
    for (int i = 0; i < DEVICE_AHEAD; i++) {
        if (d->flights[i].step != NULL)
            e->dev->close(e->backend, d->flights[i].device);
        free(d->flights[i].places);
    }
    graphs_release(&e->graphs);
    if (d->kv != NULL)
        e->dev->kv_free(e->backend, d->kv);
    free(d->slots);
    free(d->logits);
    free(d);
    e->device = NULL;
}

int engine_kv_alloc(struct engine *e, uint32_t n_blocks, void **out, char *err, size_t errlen)
{
    ASSERT(e->dev != NULL && e->device->kv == NULL && n_blocks >= 2);
    size_t one = e->info.kv_block_bytes * e->info.n_layers, need = one * n_blocks;
    struct device_memory m = {0};
    int rc = need > e->info.kv_bytes_max ? STATUS_NOMEM
                                         : e->dev->kv_alloc(e->backend, n_blocks, &e->device->kv);
    if (rc == STATUS_NOMEM && e->dev->memory(e->backend, &m) == 0) {
        snprintf(err, errlen,
                 "%u KV blocks need %zu bytes of the device, %zu are free for them (%zu of %zu in "
                 "all, graphs will take %zu): lower kv_memory or kv_blocks, max_batch or "
                 "prefill_chunk, or raise device_memory_percent (%u)",
                 n_blocks, need, e->info.kv_bytes_max, m.free, m.total, e->info.graph_bytes,
                 e->device->percent);
        return rc;
    }
    if (rc != 0) {
        snprintf(err, errlen, "no memory for the KV cache: %s", status_text(rc));
        return rc;
    }
    *out = e->device->kv;
    return 0;
}

void *engine_host_alloc(struct engine *e, size_t n)
{
    void *p;
    return e->dev->host_alloc(e->backend, n, &p) == 0 ? p : NULL;
}

void engine_host_free(struct engine *e, void *p)
{
    e->dev->host_free(e->backend, p);
}

int engine_kv_read(struct engine *e, uint32_t layer, const uint32_t *blocks, uint32_t n, void *to)
{
    return e->dev->kv_read(e->backend, layer, blocks, n, to);
}

int engine_kv_write(struct engine *e, uint32_t layer, const uint32_t *blocks, uint32_t n,
                    const void *from)
{
    return e->dev->kv_write(e->backend, layer, blocks, n, from);
}

int engine_kv_sums(struct engine *e, uint32_t layer, const uint32_t *blocks, uint32_t n,
                   uint64_t *out)
{
    for (uint32_t i = 0; i < n; i += DEVICE_SUMS_MAX) {
        uint32_t k = n - i < DEVICE_SUMS_MAX ? n - i : DEVICE_SUMS_MAX;
        TRY(e->dev->kv_sums(e->backend, layer, blocks + i, k, out + i));
    }
    return 0;
}

void engine_kv_incoming(struct engine *e, uint32_t layer, uint32_t block)
{
    if (e->dev != NULL)
        e->dev->kv_incoming(e->backend, layer, block);
}

void engine_kv_arrived(struct engine *e, uint32_t layer, uint32_t block)
{
    if (e->dev != NULL)
        e->dev->kv_arrived(e->backend, layer, block);
}

/* ---- slots ---------------------------------------------------------------------------------- */

/* The slot of the row in this step; *had: it was the sequence's already. */
static uint32_t slot_take(struct device_engine *d, uint64_t id, bool *had)
{
    uint32_t best = 0;
    *had = false;
    for (uint32_t i = 0; i < d->n_slots; i++) {
        if (id != 0 && d->slots[i].id == id) {
            *had = true;
            best = i;
            break;
        }
        if (d->slots[i].used < d->slots[best].used)
            best = i;
    }
    ASSERT_MSG(d->slots[best].used < d->steps, "two rows of one sequence in a step");
    d->slots[best] = (struct slot){id, d->steps};
    return best;
}

/* ---- launch --------------------------------------------------------------------------------- */

static int fill_row(struct engine *e, struct device_step *s, const struct engine_row *r,
                    uint32_t *at)
{
    struct device_engine *d = e->device;
    const struct gpu_caps *c = e->dev->caps(e->backend);
    struct gpu_row *row = gpu_step_rows(s->args) + *at;
    uint32_t bs = e->dims.kv_block_size, blocks = (r->position + r->n_tokens - 1) / bs + 1;
    bool had;
    for (uint32_t b = r->position / bs; b < blocks; b++)
        ASSERT_MSG(r->blocks[b] > 0 && r->blocks[b] < e->kv.n_blocks, "block %u of %u",
                   r->blocks[b], e->kv.n_blocks);
    uint32_t slot = slot_take(d, r->id, &had);
    if (r->tokens == NULL && !had) {
        log_error("a row counts on a token that is not on the device any more");
        return STATUS_INVALID;
    }
    TRY(e->dev->table(e->backend, s, slot, r->blocks, blocks));
    gpu_step_segment(s->args, c)[s->args->n_segments++] = *at;
    for (uint32_t t = 0; t < r->n_tokens; t++)
        row[t] = (struct gpu_row){.token = r->tokens != NULL ? r->tokens[t] : GPU_TOKEN_OF_SLOT,
                                  .position = (int32_t)(r->position + t),
                                  .slot = slot,
                                  .flags = (r->n_tokens == 1 ? GPU_ROW_SINGLE : 0) |
                                           (r->tokens == NULL ? GPU_ROW_IF_ALIVE : 0)};
    if (r->tokens != NULL)
        gpu_step_slots(s->args, c)[s->args->n_slot_patches++] =
            (struct gpu_slot_patch){slot, {r->tokens[r->n_tokens - 1], 1}};
    s->decode &= r->n_tokens == 1;
    *at += r->n_tokens;
    return 0;
}

/* Banned ids that the kernel has no room for, and the mask of the row. */
static void fill_mask(const struct engine *e, struct device_step *s, const struct sample_params *p,
                      struct gpu_sample *to)
{
    to->n_banned = 0;
    for (uint32_t i = 0; i < p->n_banned && p->n_banned <= GPU_BANNED_MAX; i++)
        if (p->banned[i] >= 0 && (uint32_t)p->banned[i] < e->dims.vocab)
            to->banned[to->n_banned++] = p->banned[i];
    to->mask = GPU_NO_MASK;
    if (p->allowed == NULL && p->n_banned <= GPU_BANNED_MAX)
        return;
    uint32_t stride = e->dev->mask_stride(e->backend), words = (e->dims.vocab + 31) / 32;
    uint32_t *mask = s->mask + (size_t)s->n_masks * stride;
    memset(mask + words, 0, (stride - words) * sizeof *mask);
    if (p->allowed != NULL)
        memcpy(mask, p->allowed, words * sizeof *mask);
    else
        memset(mask, 0xff, words * sizeof *mask);
    for (uint32_t i = 0; i < p->n_banned; i++)
        if (p->banned[i] >= 0 && (uint32_t)p->banned[i] < e->dims.vocab)
            mask[p->banned[i] / 32] &= ~(1u << p->banned[i] % 32);
    to->mask = s->n_masks++;
}

static void fill_sample(const struct engine *e, struct device_step *s, const struct engine_row *r,
                        uint32_t slot, uint32_t *n_adjust, struct gpu_sample *to)
{
    const struct sample_params *p = r->sampling;
    *to = (struct gpu_sample){
        .seed = p->seed,
        .temperature = p->temperature,
        .top_p = p->top_p,
        .min_floor = p->min_p > 0 ? logf(p->min_p < 1 ? p->min_p : 1) : -INFINITY,
        .top_k = p->top_k,
        .choice = r->choice,
        .position = r->position + r->n_tokens,
        .slot = slot,
        .n_ids = p->n_ids,
        .flags = (p->want_logprob ? GPU_SAMPLE_LOGPROB : 0) |
                 (r->tokens == NULL ? GPU_SAMPLE_IF_ALIVE : 0),
        .n_top = p->n_top < GPU_TOP_MAX ? p->n_top : GPU_TOP_MAX,
        .last_position = r->last_position != 0 ? r->last_position : UINT32_MAX,
    };
    for (uint32_t i = 0; i < r->n_stop && to->n_stop < GPU_STOP_MAX; i++)
        to->stop[to->n_stop++] = r->stop[i];
    to->presence = p->presence;
    to->frequency = p->frequency;
    to->repetition = p->repetition;
    to->n_adjust = p->n_adjust;
    to->adjust = s->adjust_device + *n_adjust;
    if (p->n_adjust)
        memcpy(s->adjust + *n_adjust, p->adjust, p->n_adjust * sizeof *s->adjust);
    *n_adjust += p->n_adjust;
    fill_mask(e, s, p, to);
}

static bool draws(const struct flight *f, uint32_t i)
{
    const struct engine_row *r = &f->step->rows[f->places[i].row];
    return r->sampling != NULL && f->places[i].token + 1 == r->n_tokens;
}

/* Samples of the places of the group. With `later`, what is to be sampled is not looked at: its
 * owner may still be changing it. */
static int fill_group(const struct engine *e, struct flight *f, struct gpu_sample *sample,
                      bool later)
{
    _Static_assert(sizeof(struct gpu_adjust) == sizeof(struct sample_adjust) &&
                       offsetof(struct gpu_adjust, bias) == offsetof(struct sample_adjust, bias),
                   "copied as they are");
    struct device_step *s = f->device;
    uint32_t n_adjust = 0;
    for (uint32_t i = 0; i < f->n && !later; i++)
        n_adjust += draws(f, i) ? f->step->rows[f->places[i].row].sampling->n_adjust : 0;
    TRY(e->dev->adjust(e->backend, s, n_adjust));
    n_adjust = 0;
    const struct gpu_caps *c = e->dev->caps(e->backend);
    const uint32_t *logit_row = gpu_step_logit_row(s->args, c);
    s->args->n_logits = f->n;
    s->n_masks = 0;
    s->draw = false;
    for (uint32_t i = 0; i < f->n; i++) {
        const struct engine_row *r = &f->step->rows[f->places[i].row];
        sample[i] =
            (struct gpu_sample){.flags = GPU_SAMPLE_SKIP, .slot = GPU_NO_SLOT, .mask = GPU_NO_MASK};
        if (!draws(f, i))
            continue;
        s->draw = true;
        if (!later)
            fill_sample(e, s, r, gpu_step_rows(s->args)[logit_row[i]].slot, &n_adjust, &sample[i]);
    }
    return 0;
}

static int fill(struct engine *e, struct flight *f, uint32_t n_tokens)
{
    struct device_step *s = f->device;
    const struct gpu_caps *c = e->dev->caps(e->backend);
    uint32_t at = 0;
    s->decode = true;
    for (uint32_t i = 0; i < f->step->n_rows; i++) {
        TRY(fill_row(e, s, &f->step->rows[i], &at));
        f->scores |= f->step->rows[i].scores != NULL;
    }
    ASSERT(at == n_tokens);
    s->args->n_rows = n_tokens;
    gpu_step_segment(s->args, c)[s->args->n_segments] = n_tokens;
    f->walk = (struct places){{0, 0}, 0};
    f->n = places_next(e, f->step, &f->walk, f->places, gpu_step_logit_row(s->args, c));
    TRY(fill_group(e, f, gpu_step_samples(s->args, c), f->step->late));
    s->late = f->waits = f->step->late && s->draw;
    return f->step->late && f->scores ? STATUS_INVALID : 0;
}

static void end(struct engine *e, struct flight *f)
{
    e->dev->close(e->backend, f->device);
    f->step->flight = NULL;
    f->step = NULL;
}

int device_engine_launch(struct engine *e, struct engine_step *s, uint32_t n_tokens)
{
    struct device_engine *d = e->device;
    struct flight *f = NULL;
    for (int i = 0; i < DEVICE_AHEAD; i++) {
        if (d->flights[i].step == NULL)
            f = &d->flights[i];
        else if (d->flights[i].scores || d->flights[i].waits)
            return STATUS_FULL;
    }
    if (f == NULL)
        return STATUS_FULL;
    TRY(e->dev->open(e->backend, &f->device));
    f->number = ++d->steps;
    f->step = s;
    f->layers = 0;
    f->scores = f->waits = false;
    s->flight = f;
    int rc = fill(e, f, n_tokens);
    if (rc == 0)
        rc = e->dev->launch(e->backend, f->device,
                            e->graphs.passes[graph_buckets_find(&e->buckets, n_tokens)]);
    if (rc != 0)
        end(e, f);
    return rc;
}

int device_engine_sample(struct engine *e, struct engine_step *s)
{
    struct flight *f = s->flight;
    ASSERT(f != NULL && f->step == s);
    if (!f->waits)
        return 0; /* nothing is drawn in this step */
    f->waits = false;
    int rc = fill_group(e, f, f->device->late_samples, false);
    if (rc == 0)
        rc = e->dev->sample(e->backend, f->device);
    if (rc != 0)
        end(e, f);
    return rc;
}

/* ---- answers -------------------------------------------------------------------------------- */

static void take_result(const struct gpu_result *from, struct sample_result *to)
{
    to->token = from->token;
    to->logprob = from->logprob;
    to->n_top = (uint8_t)from->n_top;
    memcpy(to->top_id, from->top_id, from->n_top * sizeof *to->top_id);
    memcpy(to->top_logprob, from->top_logprob, from->n_top * sizeof *to->top_logprob);
}

static int answer(struct engine *e, struct flight *f)
{
    struct device_engine *d = e->device;
    for (uint32_t i = 0; i < f->n; i++) {
        struct engine_row *r = &f->step->rows[f->places[i].row];
        if (r->scores != NULL) {
            TRY(e->dev->logits(e->backend, i, d->logits));
            place_score(e, f->step, f->places[i], d->logits);
        }
        if (r->sampling == NULL || f->places[i].token + 1 != r->n_tokens)
            continue;
        const struct gpu_result *g = &f->device->results[i];
        ASSERT_MSG(g->token >= -1 && g->token < (int32_t)e->dims.vocab && g->n_top <= GPU_TOP_MAX,
                   "result %u: token %d", i, g->token);
        take_result(g, &r->result);
    }
    d->last_place = f->n - 1;
    return 0;
}

/* The pass is done: answers of its group, then the head over further ones. */
static int complete(struct engine *e, struct flight *f)
{
    struct gpu_step_args *a = f->device->args;
    const struct gpu_caps *c = e->dev->caps(e->backend);
    uint32_t layers;
    while (f->n > 0) {
        TRY(answer(e, f));
        f->n = places_next(e, f->step, &f->walk, f->places, gpu_step_logit_row(a, c));
        if (f->n == 0)
            return 0;
        a->n_patches = a->n_slot_patches = 0;
        TRY(fill_group(e, f, gpu_step_samples(a, c), false));
        TRY(e->dev->launch(e->backend, f->device, e->graphs.head));
        int rc;
        do {
            rc = e->dev->poll(e->backend, f->device, true, &layers);
        } while (rc == STATUS_AGAIN);
        TRY(rc);
    }
    return 0;
}

static bool oldest(const struct device_engine *d, const struct flight *f)
{
    for (int i = 0; i < DEVICE_AHEAD; i++)
        if (d->flights[i].step != NULL && d->flights[i].number < f->number)
            return false;
    return true;
}

int device_engine_poll(struct engine *e, struct engine_step *s, bool wait)
{
    struct flight *f = s->flight;
    uint32_t layers = 0;
    ASSERT(f != NULL && f->step == s && oldest(e->device, f));
    int rc = e->dev->poll(e->backend, f->device, wait, &layers);
    for (; f->layers < layers; f->layers++)
        if (s->layer_done != NULL)
            s->layer_done(s->layer_arg, f->layers);
    if (rc == STATUS_AGAIN)
        return rc;
    if (rc == 0)
        rc = complete(e, f);
    end(e, f);
    return rc;
}

const float *device_engine_logits(const struct engine *e)
{
    struct device_engine *d = e->device;
    return e->dev->logits(e->backend, d->last_place, d->logits) == 0 ? d->logits : NULL;
}
