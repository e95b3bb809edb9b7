/* job: states of a prompt on a prefill worker, and which of its KV may go out; see job.h.
 *
 * Per layer two marks run over the blocks of the prompt: sent[l] <= ready[l]. A chunk moves
 * ready[l] when its layer l is done; the sender moves sent[l] up to it once there is a GRANT. So
 * early and late GRANTs, cached prefixes and prefixes that the decode worker holds are one rule. */
#include "common/worker/job.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/log.h"

static const char *const state_names[] = {"queued", "running", "computed",
                                          "handed", "parked",  "ended"};
static const char *const reservation_names[] = {"none", "asked", "waiting", "granted", "refused"};

const char *job_state_name(enum job_state s)
{
    return state_names[s];
}
const char *job_reservation_name(enum job_reservation r)
{
    return reservation_names[r];
}

static const uint32_t edges[] = {
    [JOB_QUEUED] = 1u << JOB_RUNNING | 1u << JOB_ENDED,
    [JOB_RUNNING] = 1u << JOB_COMPUTED | 1u << JOB_PARKED | 1u << JOB_ENDED,
    [JOB_COMPUTED] = 1u << JOB_HANDED | 1u << JOB_PARKED | 1u << JOB_ENDED,
    [JOB_HANDED] = 1u << JOB_COMPUTED | 1u << JOB_PARKED | 1u << JOB_ENDED,
    [JOB_PARKED] = 1u << JOB_RUNNING | 1u << JOB_COMPUTED | 1u << JOB_ENDED,
    [JOB_ENDED] = 0,
};

void job_set_state(struct job *j, enum job_state to)
{
    ASSERT_MSG(edges[j->state] & 1u << to, "job %s: %s -> %s", seq_text(&j->key),
               state_names[j->state], state_names[to]);
    log_trace_about(job_about(j), "job %s: %s -> %s", seq_text(&j->key), state_names[j->state],
                    state_names[to]);
    j->state = to;
}

static const uint32_t reservation_edges[] = {
    [JOB_RES_NONE] = 1u << JOB_RES_ASKED | 1u << JOB_RES_REFUSED,
    [JOB_RES_ASKED] = 1u << JOB_RES_WAITING | 1u << JOB_RES_GRANTED | 1u << JOB_RES_REFUSED,
    [JOB_RES_WAITING] = 1u << JOB_RES_GRANTED | 1u << JOB_RES_REFUSED,
    [JOB_RES_GRANTED] = 1u << JOB_RES_REFUSED,
    [JOB_RES_REFUSED] = 1u << JOB_RES_NONE,
};

void job_set_reservation(struct job *j, enum job_reservation to)
{
    ASSERT_MSG(reservation_edges[j->reservation] & 1u << to, "job %s: reservation %s -> %s",
               seq_text(&j->key), reservation_names[j->reservation], reservation_names[to]);
    log_trace_about(job_about(j), "job %s: reservation %s -> %s", seq_text(&j->key),
                    reservation_names[j->reservation], reservation_names[to]);
    j->reservation = to;
}

static int target_copy(struct job_target *to, const struct proto_target *from)
{
    uint8_t *address = mem_dup(from->data_address.p, from->data_address.n);
    if (!address)
        return STATUS_NOMEM;
    free(to->address);
    to->instance = from->instance;
    to->address = address;
    to->n_address = from->data_address.n;
    memcpy(to->mac, from->mac, sizeof to->mac);
    return STATUS_OK;
}

int job_create(const struct seq_key *key, const struct proto_job *p, const struct proto_target *t,
               uint32_t n_layers, uint64_t now, struct job **out)
{
    struct job *j = calloc(1, sizeof *j);
    if (!j)
        return STATUS_NOMEM;
    list_init(&j->node);
    j->key = *key;
    j->n_layers = n_layers;
    j->n_tokens = (uint32_t)(p->prompt.n + p->emitted.n);
    j->arrived_ms = j->progress_ms = now;
    j->expires_ms = p->deadline_ms ? now + p->deadline_ms : 0;
    j->tokens = mem_array(j->n_tokens, sizeof *j->tokens);
    j->ready = mem_array(n_layers, sizeof *j->ready);
    j->sent = mem_array(n_layers, sizeof *j->sent);
    bool scores = p->score_prompt && !p->pool;
    if (scores)
        j->scores = mem_array(j->n_tokens, sizeof *j->scores);
    if (spec_copy(&j->spec, p) != STATUS_OK || !j->tokens || !j->ready || !j->sent ||
        (scores && !j->scores) || target_copy(&j->target, t) != STATUS_OK) {
        job_free(j);
        return STATUS_NOMEM;
    }
    memcpy(j->tokens, p->prompt.p, p->prompt.n * sizeof *j->tokens);
    if (p->emitted.n)
        memcpy(j->tokens + p->prompt.n, p->emitted.p, p->emitted.n * sizeof *j->tokens);
    *out = j;
    return STATUS_OK;
}

void job_free(struct job *j)
{
    ASSERT(j->holds == 0 && j->n_blocks == 0);
    list_remove(&j->node);
    spec_fini(&j->spec);
    guide_destroy(j->guide);
    free(j->target.address);
    free(j->tokens);
    free(j->blocks);
    free(j->ready);
    free(j->sent);
    free(j->again);
    free(j->scores);
    free(j->pooled);
    free(j);
}

int job_start(struct job *j, struct kv_pool *pool, uint32_t spare, uint64_t now)
{
    uint32_t block_size = kv_pool_block_size(pool);
    uint32_t n = blocks_for(j->n_tokens, block_size), cached = 0;
    uint32_t *blocks = mem_array(n, sizeof *blocks);
    if (!blocks)
        return STATUS_NOMEM;
    if (!j->spec.job.score_prompt)
        cached = kv_prefix_lookup(pool, j->spec.job.salt.p, j->spec.job.salt.n, j->tokens,
                                  j->n_tokens, (j->n_tokens - 1) / block_size, blocks);
    int rc = STATUS_FULL;
    if (kv_pool_free(pool) >= (uint64_t)n - cached + spare)
        rc = kv_pool_alloc(pool, n - cached, blocks + cached);
    if (rc != STATUS_OK) {
        for (uint32_t i = 0; i < cached; i++)
            kv_pool_put(pool, blocks[i]);
        free(blocks);
        return rc;
    }
    j->blocks = blocks;
    j->n_blocks = n;
    j->computed = j->cached_tokens = cached * block_size;
    for (uint32_t l = 0; l < j->n_layers; l++)
        j->ready[l] = cached;
    j->started_ms = now;
    job_set_state(j, JOB_RUNNING);
    return STATUS_OK;
}

void job_put_blocks(struct job *j, struct kv_pool *pool)
{
    for (uint32_t i = 0; i < j->n_blocks; i++)
        kv_pool_put(pool, j->blocks[i]);
    j->n_blocks = 0;
}

bool job_frees_blocks(const struct job *j, const struct kv_pool *pool)
{
    for (uint32_t i = 0; i < j->n_blocks; i++) {
        if (kv_pool_refs(pool, j->blocks[i]) == 1)
            return true;
    }
    return false;
}

void job_layer_done(struct job *j, uint32_t layer, uint32_t block_size)
{
    uint32_t end = j->computed + j->step_tokens;
    uint32_t blocks = end == j->n_tokens ? j->n_blocks : end / block_size;
    ASSERT_MSG(layer < j->n_layers && end <= j->n_tokens && blocks >= j->ready[layer],
               "job %s: layer %u, %u tokens", seq_text(&j->key), layer, end);
    j->ready[layer] = blocks;
}

bool job_step_done(struct job *j)
{
    j->computed += j->step_tokens;
    j->step_tokens = 0;
    j->chunk++;
    return j->computed == j->n_tokens;
}

bool job_grant(struct job *j, const struct proto_grant *g, uint32_t block_size)
{
    if (g->held_blocks > (j->n_tokens - 1) / block_size)
        return false;
    memcpy(j->ticket, g->ticket, sizeof j->ticket);
    j->held = g->held_blocks;
    for (uint32_t l = 0; l < j->n_layers; l++)
        j->sent[l] = j->held;
    j->digest = 0;
    j->sending_ns = 0;
    job_set_reservation(j, JOB_RES_GRANTED);
    return true;
}

bool job_next_extent(struct job *j, uint32_t max, struct proto_extent *out, bool *again)
{
    if (j->reservation != JOB_RES_GRANTED || (j->state != JOB_RUNNING && j->state != JOB_COMPUTED))
        return false;
    for (uint32_t l = 0; l < j->n_layers; l++) {
        if (j->sent[l] >= j->ready[l]) /* also when D holds more than we have computed */
            continue;
        uint32_t n = j->ready[l] - j->sent[l];
        *out = (struct proto_extent){.layer = l, .first = j->sent[l], .n = n < max ? n : max};
        j->sent[l] += out->n;
        *again = false;
        return true;
    }
    if (j->again_next == j->n_again)
        return false;
    struct proto_extent *e = &j->again[j->again_next];
    *out = *e;
    *again = true;
    if (e->n <= max) {
        j->again_next++;
        return true;
    }
    out->n = max;
    e->first += max;
    e->n -= max;
    return true;
}

int job_send_again(struct job *j, const struct proto_extent *list, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct proto_extent *e = &list[i];
        if (e->layer >= j->n_layers || e->n == 0 || e->n > j->n_blocks || e->first < j->held ||
            e->first > j->n_blocks - e->n)
            return STATUS_RANGE;
    }
    struct proto_extent *copy = mem_dup(list, n * sizeof *list);
    if (!copy)
        return STATUS_NOMEM;
    free(j->again);
    j->again = copy;
    j->n_again = n;
    j->again_next = 0;
    return STATUS_OK;
}

bool job_all_sent(const struct job *j)
{
    if (j->state != JOB_COMPUTED || j->reservation != JOB_RES_GRANTED || j->sends > 0 ||
        j->again_next < j->n_again)
        return false;
    for (uint32_t l = 0; l < j->n_layers; l++) {
        if (j->sent[l] < j->n_blocks)
            return false;
    }
    return true;
}

int job_redirect(struct job *j, uint32_t attempt, const struct proto_target *t)
{
    ASSERT(j->state != JOB_ENDED);
    TRY(target_copy(&j->target, t));
    j->key.attempt = attempt;
    j->spec.job.request.attempt = attempt;
    j->n_again = j->again_next = 0;
    j->held = 0;
    j->sends = j->repairs = 0;
    j->digest = 0;
    j->asked = false;
    memset(j->ticket, 0, sizeof j->ticket);
    memset(j->sent, 0, j->n_layers * sizeof *j->sent);
    if (j->reservation != JOB_RES_NONE && j->reservation != JOB_RES_REFUSED)
        job_set_reservation(j, JOB_RES_REFUSED);
    if (j->reservation == JOB_RES_REFUSED)
        job_set_reservation(j, JOB_RES_NONE);
    if (j->state == JOB_QUEUED)
        return STATUS_OK;
    if (j->state != JOB_PARKED)
        job_set_state(j, JOB_PARKED);
    job_set_state(j, j->computed == j->n_tokens ? JOB_COMPUTED : JOB_RUNNING);
    return STATUS_OK;
}

void job_follow_begin(struct job *j, struct ticket *k, uint32_t room)
{
    ASSERT(room >= j->n_tokens);
    j->moving = k;
    j->room = room;
    j->computed = j->n_tokens;
    job_set_state(j, JOB_RUNNING);
}

static int take_blocks(struct job *j, struct kv_pool *pool, const uint32_t *blocks, uint32_t n)
{
    ASSERT(j->state == JOB_RUNNING && n >= j->n_blocks);
    if (n == j->n_blocks)
        return STATUS_OK;
    uint32_t *copy = mem_resize(j->blocks, n, sizeof *copy);
    if (!copy)
        return STATUS_NOMEM;
    j->blocks = copy;
    while (j->n_blocks < n) {
        kv_pool_get(pool, blocks[j->n_blocks]);
        j->blocks[j->n_blocks] = blocks[j->n_blocks];
        j->n_blocks++;
    }
    for (uint32_t l = 0; l < j->n_layers; l++)
        j->ready[l] = n;
    return STATUS_OK;
}

int job_follow(struct job *j, struct kv_pool *pool, const uint32_t *blocks, uint32_t n,
               bool *caught_up)
{
    TRY(take_blocks(j, pool, blocks, n));
    *caught_up = j->reservation == JOB_RES_GRANTED && j->sends == 0;
    for (uint32_t l = 0; l < j->n_layers; l++)
        *caught_up &= j->sent[l] >= j->ready[l]; /* more when D holds more than is complete */
    return STATUS_OK;
}

int job_follow_end(struct job *j, struct kv_pool *pool, const int32_t *tokens, uint32_t n,
                   const uint32_t *blocks, const struct proto_token *last)
{
    struct proto_job *s = &j->spec.job;
    ASSERT_MSG(n - 1 >= j->n_tokens && n - 1 <= j->room && n > s->prompt.n, "job %s: %u tokens",
               seq_text(&j->key), n);
    int32_t *copy = mem_resize(j->tokens, n - 1, sizeof *copy);
    if (!copy)
        return STATUS_NOMEM;
    j->tokens = copy;
    memcpy(copy, tokens, (n - 1) * sizeof *copy);
    j->n_tokens = j->computed = n - 1;
    s->emitted = (struct proto_ids){copy + s->prompt.n, n - 1 - s->prompt.n};
    TRY(take_blocks(j, pool, blocks, blocks_for(n - 1, kv_pool_block_size(pool))));
    j->first = *last;
    j->first.token = tokens[n - 1];
    j->first.position = (uint32_t)s->emitted.n;
    if (last->n_top)
        memcpy(j->first_top, last->top, last->n_top * sizeof *last->top);
    j->first.top = j->first_top;
    j->drawn = true;
    job_set_state(j, JOB_COMPUTED);
    return STATUS_OK;
}

int job_copy_begin(struct job *j, struct kv_pool *pool, struct ticket *k, const uint32_t *blocks,
                   int32_t next)
{
    job_set_state(j, JOB_RUNNING);
    TRY(take_blocks(j, pool, blocks, j->n_tokens / kv_pool_block_size(pool)));
    j->moving = k;
    j->copy = true;
    j->room = j->computed = j->n_tokens;
    j->first = (struct proto_token){.token = next};
    j->drawn = true;
    job_set_state(j, JOB_COMPUTED);
    return STATUS_OK;
}
