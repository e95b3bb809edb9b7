/* prefill: jobs, from PREFILL to HANDOFF_OK (R2, R4, R7).
 *
 * Where a job waits: QUEUED for blocks and its turn in a step; COMPUTED for the GRANT or for its
 * sends; HANDED for HANDOFF_OK; PARKED for REDIRECT or CANCEL. Each of these waits is bounded in
 * prefill_tick. Whoever ends a job calls prefill_end, which lets go of the reservation and gives
 * the blocks back when the last hold has ended. */
#include "common/worker/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPAIRS_MAX         3
#define RESERVE_WAIT_MS_MAX 600000 /* in D's queue, for jobs without a deadline of their own */
#define TAIL_MIN            256    /* tokens that a decode worker computes of a prompt at most, */
#define TAIL_SHARE          16     /* with this part of it; more is the prefill workers' business */

static void job_release_blocks(struct worker *w, struct job *j)
{
    job_put_blocks(j, w->pool);
    w->n_jobs--;
    job_free(j);
    worker_wake(w);
}

void prefill_unhold(struct worker *w, struct job *j)
{
    ASSERT(j->holds > 0);
    if (--j->holds == 0 && j->state == JOB_ENDED)
        job_release_blocks(w, j);
}

/* RELEASE: whatever the target holds for this job is not wanted any more. */
static void release_target(struct worker *w, struct job *j)
{
    struct peer *p = j->asked ? peer_find(w, j->target.instance) : NULL;
    j->asked = false;
    if (!p)
        return;
    struct proto_msg m = {.type = PROTO_RELEASE,
                          .release = {.request = seq_request(&j->key),
                                      .choice = j->key.choice,
                                      .instance = w->instance}};
    memcpy(m.release.ticket, j->ticket, sizeof m.release.ticket);
    if (!peer_send(p, &m))
        log_debug_about(job_about(j), "job %s: RELEASE not sent", seq_text(&j->key));
}

/* Ends the job. Its stream is dropped unless it was released. */
void prefill_end(struct worker *w, struct job *j)
{
    if (j->state == JOB_ENDED)
        return;
    if (j->moving)
        move_detach(w, j);
    release_target(w, j);
    stream_drop(j->stream);
    j->stream = NULL;
    job_set_state(j, JOB_ENDED);
    if (j->in_step)
        steps_abandon(w);
    if (j->holds == 0)
        job_release_blocks(w, j);
}

static void job_fail(struct worker *w, struct job *j, enum proto_reason reason, const char *detail)
{
    if (j->moving) {
        move_lost(w, j, reason, detail);
        return;
    }
    router_lost(w, &j->key, reason, false, detail);
    prefill_end(w, j);
}

static void prefix_insert(struct worker *w, const struct job *j)
{
    kv_prefix_insert(w->pool, j->spec.job.salt.p, j->spec.job.salt.n, j->tokens, j->n_tokens,
                     j->blocks);
}

struct job *prefill_find(struct worker *w, const struct seq_key *k)
{
    LIST_FOR (n, &w->jobs) {
        struct job *j = container_of(n, struct job, node);
        if (j->state != JOB_ENDED && memcmp(&j->key, k, sizeof *k) == 0)
            return j;
    }
    return NULL;
}

/* Whether a decode worker is needed: not when the first token is also the last. */
static bool needs_decode(const struct worker *w, const struct job *j)
{
    const struct proto_job *s = &j->spec.job;
    return s->max_tokens > s->emitted.n + 1 && j->n_tokens + 1 < w->info.context;
}

/* From routers. */

static enum proto_reason refuse_job(struct worker *w, const struct proto_prefill *m, char *why,
                                    size_t n)
{
    struct spec_limits limits = {.vocab = w->info.vocab, .context = w->info.context};
    enum proto_reason bad = spec_check(&m->job, &limits, why, n);
    if (bad != PROTO_REASON_NONE)
        return bad;
    if (m->job.pool && w->info.hidden == 0) {
        snprintf(why, n, "embeddings are not computed on this backend (%s)", w->info.numerics);
        return PROTO_REASON_INVALID;
    }
    bool decodes = w->policy->role == PROTO_DECODE_WORKER;
    if (w->draining || (decodes && m->decode.instance != w->instance))
        return PROTO_REASON_DRAINING;
    uint32_t blocks =
        blocks_for((uint32_t)(m->job.prompt.n + m->job.emitted.n), w->info.kv_block_size);
    if (blocks + decodes > kv_pool_size(w->pool)) /* one to grow into */
        return PROTO_REASON_TOO_LARGE;
    return w->n_jobs >= (uint64_t)w->settings->queue_max ? PROTO_REASON_FULL : PROTO_REASON_NONE;
}

void prefill_accept(struct worker *w, struct router *r, const struct proto_prefill *m)
{
    struct seq_key key = seq_key_of(&m->job.request, m->job.choice);
    struct job *j;
    char why[128] = "";
    key.router = r->instance;
    if (prefill_find(w, &key))
        return; /* a repetition */
    enum proto_reason bad = refuse_job(w, m, why, sizeof why);
    if (bad == PROTO_REASON_NONE &&
        job_create(&key, &m->job, &m->decode, w->info.n_layers, worker_now(w), &j) != STATUS_OK)
        bad = PROTO_REASON_FULL;
    if (bad != PROTO_REASON_NONE) {
        router_lost(w, &key, bad, false, why);
        return;
    }
    if (m->job.pool && !(j->pooled = mem_array(w->info.hidden, sizeof *j->pooled))) {
        job_free(j);
        router_lost(w, &key, PROTO_REASON_FULL, false, "out of memory");
        return;
    }
    j->spec.job.request = seq_request(&key);
    j->arrival = ++w->arrivals;
    j->sampling = spec_sampling(&j->spec.job, w->info.vocab);
    list_push_back(&w->jobs, &j->node);
    w->n_jobs++;
    int rc = guide_create(&j->spec.job, engine_thread_tokenizer(w->engine), w->info.vocab,
                          w->grammars, &j->guide);
    if (rc != STATUS_OK) {
        job_fail(w, j, PROTO_REASON_INVALID, "what guides the answer cannot be kept here");
        return;
    }
    log_debug_about(job_about(j), "job %s: %u tokens for decode worker %016llx", seq_text(&key),
                    j->n_tokens, (unsigned long long)j->target.instance);
    worker_wake(w);
}

void prefill_cancel(struct worker *w, uint64_t router, uint64_t counter, uint32_t attempt)
{
    LIST_FOR_SAFE (n, &w->jobs) {
        struct job *j = container_of(n, struct job, node);
        if (j->key.router == router && j->key.counter == counter && j->key.attempt == attempt)
            prefill_end(w, j);
    }
}

void prefill_router_gone(struct worker *w, uint64_t router)
{
    LIST_FOR_SAFE (n, &w->jobs) {
        struct job *j = container_of(n, struct job, node);
        if (j->key.router == router)
            prefill_end(w, j);
    }
}

void prefill_keep_only(struct worker *w, uint64_t router, const struct proto_seq_pos *list,
                       uint32_t count)
{
    LIST_FOR_SAFE (n, &w->jobs) {
        struct job *j = container_of(n, struct job, node);
        bool wanted = j->key.router != router;
        for (uint32_t i = 0; i < count && !wanted; i++)
            wanted = list[i].counter == j->key.counter && list[i].attempt == j->key.attempt &&
                     list[i].choice == j->key.choice;
        if (!wanted)
            prefill_end(w, j);
    }
}

void prefill_grammars(struct worker *w)
{
    LIST_FOR_SAFE (n, &w->jobs) {
        struct job *j = container_of(n, struct job, node);
        if (j->state != JOB_ENDED && guide_ready(j->guide) && guide_error(j->guide))
            job_fail(w, j, PROTO_REASON_INVALID, guide_error(j->guide));
    }
}

void prefill_close(struct worker *w)
{
    LIST_FOR_SAFE (n, &w->jobs) {
        struct job *j = container_of(n, struct job, node);
        stream_drop(j->stream);
        j->holds = 0;
        job_put_blocks(j, w->pool);
        job_free(j);
    }
}

/* Reservation. */

void prefill_reserve(struct worker *w, struct job *j)
{
    struct peer *p = peer_get(w, j->target.instance, j->target.address, j->target.n_address);
    struct proto_msg m = {.type = PROTO_RESERVE,
                          .reserve = {.request = seq_request(&j->key),
                                      .choice = j->key.choice,
                                      .instance = w->instance,
                                      .model = w->info.model,
                                      .kv_layout = {w->info.kv_layout, strlen(w->info.kv_layout)},
                                      .n_tokens = j->moving ? j->room : j->n_tokens,
                                      .ids = {j->tokens, j->n_tokens},
                                      .salt = j->spec.job.salt,
                                      .priority = j->spec.job.priority,
                                      .copy = j->copy}};
    m.reserve.data_address.p = xfer_address(w->xfer, &m.reserve.data_address.n);
    memcpy(m.reserve.mac, j->target.mac, sizeof m.reserve.mac);
    if (!p || !peer_send(p, &m)) {
        prefill_target_lost(w, j, PROTO_REASON_PEER_LOST, "the decode worker cannot be reached");
        return;
    }
    j->asked = true;
    j->progress_ms = worker_now(w);
    job_set_reservation(j, JOB_RES_ASKED);
}

bool prefill_is_local(const struct worker *w, const struct job *j)
{
    return j->target.instance == w->instance;
}

bool prefill_preempt(struct worker *w)
{
    struct job *youngest = NULL;
    LIST_FOR (n, &w->jobs) {
        struct job *j = container_of(n, struct job, node);
        if (j->state == JOB_ENDED && job_frees_blocks(j, w->pool))
            return true;
        if (j->state != JOB_ENDED && j->n_blocks > 0 && prefill_is_local(w, j))
            youngest = j;
    }
    if (!youngest)
        return false;
    metrics_add(w->metrics.preemptions, 1);
    job_fail(w, youngest, PROTO_REASON_PREEMPTED, "");
    return true;
}

bool prefill_start(struct worker *w, struct job *j)
{
    bool local = prefill_is_local(w, j);
    int rc = job_start(j, w->pool, local ? ticket_spare(&w->tickets) : 0, worker_now(w));
    if (rc != STATUS_OK && local) {
        job_fail(w, j, PROTO_REASON_FULL, "there is no room for it now");
        return true;
    }
    if (rc != STATUS_OK)
        return false;
    metrics_add(w->metrics.hit_tokens, j->cached_tokens);
    fault("prefill.start");
    if (local && j->n_tokens - j->cached_tokens > TAIL_MIN + j->n_tokens / TAIL_SHARE)
        job_fail(w, j, PROTO_REASON_FULL, "too little of it is held here");
    else if (!local && needs_decode(w, j))
        prefill_reserve(w, j);
    return true;
}

void prefill_redirect(struct worker *w, struct router *r, const struct proto_redirect *m)
{
    LIST_FOR_SAFE (n, &w->jobs) {
        struct job *j = container_of(n, struct job, node);
        if (j->key.router != r->instance || j->key.counter != m->request.counter ||
            j->key.attempt != m->old_attempt || j->state == JOB_ENDED)
            continue;
        release_target(w, j);
        if (job_redirect(j, m->request.attempt, &m->decode) != STATUS_OK) {
            job_fail(w, j, PROTO_REASON_INTERNAL, "out of memory");
            return;
        }
        log_info_about(job_about(j), "job %s: redirected to %016llx", seq_text(&j->key),
                       (unsigned long long)j->target.instance);
        if (j->drawn) { /* the new attempt starts with the token that the old one ended with */
            stream_drop(j->stream);
            j->stream = stream_open(&r->outbox, j->key.counter, j->key.attempt, j->key.choice);
            if (!j->stream || stream_push(j->stream, &j->first) != STATUS_OK) {
                job_fail(w, j, PROTO_REASON_INTERNAL, "out of memory");
                return;
            }
        }
        if (j->state != JOB_QUEUED && needs_decode(w, j))
            prefill_reserve(w, j);
        worker_wake(w);
        return;
    }
    struct seq_key key = {
        .router = r->instance, .counter = m->request.counter, .attempt = m->request.attempt};
    router_lost(w, &key, PROTO_REASON_UNKNOWN, false, "there is nothing to redirect");
}

bool prefill_resume(struct worker *w, const struct seq_key *key)
{
    struct job *j = prefill_find(w, key);
    if (j && j->state == JOB_PARKED) /* the first LOST may have gone down with the link */
        router_lost(w, key, PROTO_REASON_PEER_LOST, true, "");
    return j != NULL;
}

void prefill_target_lost(struct worker *w, struct job *j, enum proto_reason reason,
                         const char *detail)
{
    if (j->moving) {
        move_lost(w, j, reason, detail);
        return;
    }
    metrics_add(w->metrics.failures, 1);
    release_target(w, j);
    if (j->reservation != JOB_RES_REFUSED)
        job_set_reservation(j, JOB_RES_REFUSED);
    if (reason == PROTO_REASON_CANCELED) {
        job_fail(w, j, reason, detail);
        return;
    }
    j->parked_ms = worker_now(w);
    job_set_state(j, JOB_PARKED);
    router_lost(w, &j->key, reason, true, detail);
}

static bool targets(const struct job *j, uint64_t instance)
{
    return j->target.instance == instance && j->reservation != JOB_RES_NONE &&
           (j->state == JOB_RUNNING || j->state == JOB_COMPUTED || j->state == JOB_HANDED);
}

void prefill_peer_lost(struct worker *w, uint64_t instance)
{
    LIST_FOR_SAFE (n, &w->jobs) {
        struct job *j = container_of(n, struct job, node);
        if (targets(j, instance))
            prefill_target_lost(w, j, PROTO_REASON_PEER_LOST, "the data link failed");
    }
}

/* From decode workers. */

static void on_grant(struct worker *w, const struct proto_grant *m)
{
    struct seq_key key = seq_key_of(&m->request, m->choice);
    struct job *j = prefill_find(w, &key);
    if (!j || !targets(j, m->instance)) { /* too late: the job is gone or goes elsewhere */
        struct peer *p = peer_find(w, m->instance);
        struct proto_msg r = {
            .type = PROTO_RELEASE,
            .release = {.request = m->request, .choice = m->choice, .instance = w->instance}};
        memcpy(r.release.ticket, m->ticket, sizeof r.release.ticket);
        if (p && !peer_send(p, &r))
            log_debug_about(seq_about(&key), "job %s: RELEASE not sent", seq_text(&key));
        return;
    }
    if (j->reservation != JOB_RES_ASKED && j->reservation != JOB_RES_WAITING)
        return; /* a repetition */
    if (!job_grant(j, m, w->info.kv_block_size)) {
        prefill_target_lost(w, j, PROTO_REASON_INVALID, "GRANT with too many held blocks");
        return;
    }
    j->progress_ms = worker_now(w);
    log_debug_about(job_about(j), "job %s: granted, %u blocks held there", seq_text(&key),
                    m->held_blocks);
    sender_pump(w, j);
    worker_wake(w);
}

static struct job *job_by_ticket(struct worker *w, uint64_t instance, const uint8_t ticket[16])
{
    LIST_FOR (n, &w->jobs) {
        struct job *j = container_of(n, struct job, node);
        if (j->reservation == JOB_RES_GRANTED && j->state == JOB_HANDED &&
            j->target.instance == instance && memcmp(j->ticket, ticket, sizeof j->ticket) == 0)
            return j;
    }
    return NULL;
}

static void on_handoff_ok(struct worker *w, const struct proto_handoff_ok *m)
{
    struct job *j = job_by_ticket(w, m->instance, m->ticket);
    if (!j)
        return;
    if (j->moving) {
        move_confirmed(w, j);
        return;
    }
    uint64_t now = clock_ns();
    metrics_add(w->metrics.exposed, (double)(now - j->computed_ns) * 1e-9);
    metrics_add(w->metrics.transfer, j->sending_ns ? (double)(now - j->sending_ns) * 1e-9 : 0);
    metrics_add(w->metrics.handovers, 1);
    log_debug_about(job_about(j), "job %s: handed over, %llu of %llu bytes were sent early",
                    seq_text(&j->key), (unsigned long long)j->early_bytes,
                    (unsigned long long)j->sent_bytes);
    prefix_insert(w, j);
    j->asked = false; /* nothing to release: the ticket is the decode worker's now */
    prefill_end(w, j);
}

static void on_handoff_bad(struct worker *w, const struct proto_handoff_bad *m)
{
    struct job *j = job_by_ticket(w, m->instance, m->ticket);
    if (!j)
        return;
    log_warn_about(job_about(j), "job %s: the decode worker asks for %u extents again",
                   seq_text(&j->key), m->n);
    if (++j->repairs > REPAIRS_MAX || job_send_again(j, m->list, m->n) != STATUS_OK) {
        prefill_target_lost(w, j, PROTO_REASON_CORRUPT, "KV could not be verified");
        return;
    }
    job_set_state(j, JOB_COMPUTED);
    sender_pump(w, j);
}

void prefill_message(struct worker *w, const struct proto_msg *m)
{
    struct seq_key key;
    struct job *j;
    char detail[128];
    switch (m->type) {
    case PROTO_GRANT:
        on_grant(w, &m->grant);
        break;
    case PROTO_WAIT:
        key = seq_key_of(&m->wait.request, m->wait.choice);
        j = prefill_find(w, &key);
        if (j && j->moving) { /* others must not wait behind it: another time, another worker */
            move_lost(w, j, PROTO_REASON_FULL, "there is no room for it now");
        } else if (j && targets(j, m->wait.instance) && j->reservation == JOB_RES_ASKED) {
            j->progress_ms = worker_now(w);
            job_set_reservation(j, JOB_RES_WAITING);
        }
        break;
    case PROTO_REFUSE:
        key = seq_key_of(&m->refuse.request, m->refuse.choice);
        j = prefill_find(w, &key);
        if (!j || !targets(j, m->refuse.instance))
            break;
        snprintf(detail, sizeof detail, "refused by the decode worker%s%.*s",
                 m->refuse.detail.n ? ": " : "", (int)m->refuse.detail.n,
                 m->refuse.detail.n ? (const char *)m->refuse.detail.p : "");
        j->asked = false;
        prefill_target_lost(w, j, m->refuse.reason, detail);
        break;
    case PROTO_HANDOFF_OK:
        on_handoff_ok(w, &m->handoff_ok);
        break;
    case PROTO_HANDOFF_BAD:
        on_handoff_bad(w, &m->handoff_bad);
        break;
    default:
        break;
    }
}

/* From the engine. */

void prefill_layer(struct worker *w, struct job *j, uint32_t layer)
{
    if (j->state == JOB_ENDED)
        return;
    fault("prefill.layer");
    job_layer_done(j, layer, w->info.kv_block_size);
    log_trace_about(job_about(j), "layer computed request=%s chunk=%u layer=%u", seq_text(&j->key),
                    j->chunk, layer);
    if (j->state == JOB_RUNNING || j->state == JOB_COMPUTED)
        sender_pump(w, j);
}

/* SCORES: one entry for each prompt token but the first. */
static bool send_scores(struct worker *w, struct job *j)
{
    struct router *r = router_find(w, j->key.router);
    uint32_t n = (uint32_t)j->spec.job.prompt.n - 1, top = j->spec.job.score_top;
    struct proto_score *list = mem_array(n, sizeof *list);
    struct proto_top *tops = mem_array((size_t)n * top, sizeof *tops);
    if (!list || !tops) {
        free(list);
        free(tops);
        return false;
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct sample_result *s = &j->scores[i];
        list[i].logprob = s->logprob;
        list[i].rank = s->rank;
        list[i].n_top = s->n_top < top ? s->n_top : top;
        list[i].top = tops + (size_t)i * top;
        for (uint32_t k = 0; k < list[i].n_top; k++)
            list[i].top[k] = (struct proto_top){s->top_id[k], s->top_logprob[k]};
    }
    struct proto_msg m = {.type = PROTO_SCORES,
                          .scores = {.request = seq_request(&j->key), .list = list, .n = n}};
    if (r)
        router_send(r, &m);
    free(list);
    free(tops);
    return true;
}

/* The embedding, in SCORES. */
static void send_pooled(struct worker *w, struct job *j)
{
    struct router *r = router_find(w, j->key.router);
    const struct proto_job *spec = &j->spec.job;
    for (uint32_t i = 0; i < w->info.hidden && spec->pool == PROTO_POOL_MEAN; i++)
        j->pooled[i] /= (float)j->n_tokens;
    struct proto_msg m = {.type = PROTO_SCORES,
                          .scores = {.request = seq_request(&j->key),
                                     .hidden = {j->pooled, w->info.hidden * sizeof *j->pooled}}};
    if (r)
        router_send(r, &m);
}

/* Token 0 of this attempt, at once (R3). False: it cannot be kept. */
static bool send_first(struct worker *w, struct job *j, const struct sample_result *result)
{
    const struct proto_job *s = &j->spec.job;
    struct router *r = router_find(w, j->key.router);
    fault("token.first");
    struct proto_token t = {.position = (uint32_t)s->emitted.n,
                            .cached_tokens = j->cached_tokens,
                            .queue_ms = (uint32_t)(j->started_ms - j->arrived_ms),
                            .prefill_ms = (uint32_t)(j->computed_ms - j->started_ms)};
    spec_token(s, result, j->first_top, &t);
    if (guide_feed(j->guide, t.token) != STATUS_OK)
        return false;
    t.finish =
        spec_finish(s, t.token, (uint32_t)s->emitted.n + 1, j->n_tokens + 1, w->info.context);
    if (guide_ended(j->guide))
        t.finish = PROTO_FINISH_STOP;
    j->first = t;
    j->drawn = true;
    metrics_add(w->metrics.generated, 1);
    j->stream = r ? stream_open(&r->outbox, j->key.counter, j->key.attempt, j->key.choice) : NULL;
    return j->stream && stream_push(j->stream, &t) == STATUS_OK;
}

/* The prompt is complete. */
static void computed(struct worker *w, struct job *j, const struct engine_row *row)
{
    const struct proto_job *s = &j->spec.job;
    j->computed_ms = worker_now(w);
    j->computed_ns = clock_ns();
    if (j->state == JOB_RUNNING)
        job_set_state(j, JOB_COMPUTED);
    if (j->pooled) {
        send_pooled(w, j);
    } else if (s->score_prompt && s->prompt.n > 1 && !send_scores(w, j)) {
        job_fail(w, j, PROTO_REASON_INTERNAL, "out of memory");
        return;
    }
    if (s->max_tokens > 0 && !send_first(w, j, &row->result)) {
        const char *why = guide_error(j->guide);
        job_fail(w, j, PROTO_REASON_INTERNAL, why ? why : "out of memory");
        return;
    }
    if (s->max_tokens == 0 || j->first.finish != PROTO_FINISH_NONE) {
        if (!s->score_prompt)
            prefix_insert(w, j);
        if (j->stream)
            stream_release(j->stream, worker_now(w));
        j->stream = NULL;
        prefill_end(w, j);
        return;
    }
    if (j->state == JOB_COMPUTED && prefill_is_local(w, j))
        replica_adopt(w, j);
    else if (j->state == JOB_COMPUTED)
        sender_pump(w, j);
}

void prefill_stepped(struct worker *w, struct job *j, const struct engine_row *row, int status)
{
    j->in_step = false;
    fault("prefill.chunk");
    if (j->state != JOB_ENDED) {
        if (status != STATUS_OK) {
            job_fail(w, j, PROTO_REASON_INTERNAL, status_text(status));
        } else {
            metrics_add(w->metrics.prefill_tokens, j->step_tokens);
            if (job_step_done(j))
                computed(w, j, row);
        }
    }
    prefill_unhold(w, j);
}

/* Time-outs. */

static void check(struct worker *w, struct job *j, uint64_t now)
{
    const struct worker_settings *s = w->settings;
    uint64_t waited = now - j->progress_ms;
    if (j->expires_ms && now >= j->expires_ms) {
        job_fail(w, j, PROTO_REASON_TIMEOUT, "the request's deadline has passed");
        return;
    }
    if (j->state == JOB_PARKED && now - j->parked_ms > (uint64_t)s->router_grace_ms) {
        prefill_end(w, j);
        return;
    }
    if (j->state != JOB_RUNNING && j->state != JOB_COMPUTED && j->state != JOB_HANDED)
        return;
    bool moving = j->sends > 0 || j->state == JOB_HANDED; /* for COMPUTED alone, see WAITING */
    if (j->reservation == JOB_RES_ASKED && waited > (uint64_t)s->lease_ms)
        prefill_target_lost(w, j, PROTO_REASON_TIMEOUT, "no answer to RESERVE");
    else if (j->reservation == JOB_RES_WAITING && waited > RESERVE_WAIT_MS_MAX)
        prefill_target_lost(w, j, PROTO_REASON_TIMEOUT, "waited too long for a GRANT");
    else if (j->reservation == JOB_RES_GRANTED && moving && waited > (uint64_t)s->lease_ms)
        prefill_target_lost(w, j, PROTO_REASON_TIMEOUT, "the transfer does not move");
}

void prefill_tick(struct worker *w, uint64_t now)
{
    LIST_FOR_SAFE (n, &w->jobs) {
        struct job *j = container_of(n, struct job, node);
        if (j->state != JOB_ENDED)
            check(w, j, now);
    }
}
