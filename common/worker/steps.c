/* steps: what the engine computes next, and what becomes of it.
 *
 * The loop plans a step (batch.h decides), hands it to the engine thread, and deals with layers and
 * results as they come back. Between steps sequences join, leave, grow or are preempted; during a
 * step every job and ticket in it has a hold. Arrays grow with the number of jobs and sequences and
 * are kept, so that a steady state allocates nothing.
 *
 * On a device the next step is planned while one runs, as if no sequence ended with it: a sequence
 * in both has the position behind the token that nobody has read yet, and the device fills that
 * token in. If it ended after all, its row in the second step is dropped. Only steps of sequences
 * alone run ahead, of each other; one with prompts starts when nothing runs, and a chunk hides what
 * the host does before the next. */
#include "common/worker/internal.h"

#include <stdlib.h>

int steps_open(struct worker *w)
{
    struct steps *s = &w->steps;
    uint32_t n = (uint32_t)w->settings->max_batch;
    TRY(batch_plan_init(&s->plan, n));
    for (uint32_t i = 0; i < w->info.ahead && i < STEPS_AHEAD; i++) {
        struct step_slot *o = &s->slots[i];
        o->rows = mem_array(n, sizeof *o->rows);
        o->row_jobs = mem_array(n, sizeof *o->row_jobs);
        o->row_tickets = mem_array(n, sizeof *o->row_tickets);
        o->params = mem_array(n, sizeof *o->params);
        if (!o->rows || !o->row_jobs || !o->row_tickets || !o->params)
            return STATUS_NOMEM;
    }
    return STATUS_OK;
}

void steps_close(struct worker *w)
{
    struct steps *s = &w->steps;
    batch_plan_fini(&s->plan);
    free(s->prompts);
    free(s->prompt_jobs);
    free(s->running);
    free(s->running_tickets);
    for (int i = 0; i < STEPS_AHEAD; i++) {
        free(s->slots[i].rows);
        free(s->slots[i].row_jobs);
        free(s->slots[i].row_tickets);
        free(s->slots[i].params);
    }
}

static bool room_prompts(struct steps *s, uint32_t n)
{
    if (n <= s->prompts_cap)
        return true;
    uint32_t cap = n + n / 2 + 16;
    struct batch_prompt *p = mem_resize(s->prompts, cap, sizeof *p);
    if (p)
        s->prompts = p;
    struct job **j = mem_resize(s->prompt_jobs, cap, sizeof *j);
    if (j)
        s->prompt_jobs = j;
    if (!p || !j)
        return false;
    s->prompts_cap = cap;
    return true;
}

static bool room_running(struct steps *s, uint32_t n)
{
    if (n <= s->running_cap)
        return true;
    uint32_t cap = n + n / 2 + 16;
    struct batch_running *p = mem_resize(s->running, cap, sizeof *p);
    if (p)
        s->running = p;
    struct ticket **k = mem_resize(s->running_tickets, cap, sizeof *k);
    if (k)
        s->running_tickets = k;
    if (!p || !k)
        return false;
    s->running_cap = cap;
    return true;
}

/* Prompts that may be in the next step; those that have not begun only when fresh is set. */
static void collect_prompts(struct worker *w, bool fresh)
{
    struct steps *s = &w->steps;
    s->n_prompts = 0;
    if (s->n_active > 0 || !room_prompts(s, w->n_jobs))
        return;
    LIST_FOR (n, &w->jobs) {
        struct job *j = container_of(n, struct job, node);
        bool begun = j->state == JOB_RUNNING && j->computed < j->n_tokens;
        if ((!begun && !(fresh && j->state == JOB_QUEUED)) || !guide_ready(j->guide))
            continue;
        s->prompt_jobs[s->n_prompts] = j;
        s->prompts[s->n_prompts++] =
            (struct batch_prompt){.arrival = j->arrival,
                                  .length = j->n_tokens,
                                  .done = j->computed,
                                  .priority = (int32_t)j->spec.job.priority};
    }
}

static int by_admission(const void *a, const void *b)
{
    const struct ticket *x = *(struct ticket *const *)a, *y = *(struct ticket *const *)b;
    return x->admitted < y->admitted ? -1 : x->admitted > y->admitted;
}

/* Is the token that is being computed the last one, whatever it is? */
static bool ends_ahead(const struct worker *w, const struct ticket *k)
{
    return k->emitted + 1 >= k->spec.job.max_tokens || k->n_tokens + 1 >= w->info.context;
}

/* A block to grow into, at the expense of the youngest if need be (R7). For a sequence whose last
 * token is not read yet nobody is preempted: it pauses until that is known. */
static bool grow(struct worker *w, struct ticket *k)
{
    if (k->in_step)
        return !ends_ahead(w, k) && ticket_grow_ahead(&w->tickets, k) == STATUS_OK;
    while (ticket_grow(&w->tickets, k) != STATUS_OK) {
        if (w->tickets.n_quarantine > 0 || prefill_preempt(w))
            return false; /* blocks are on their way back: this sequence pauses */
        struct ticket *youngest = ticket_youngest(&w->tickets);
        bool self = youngest == k;
        decode_preempt(w, youngest);
        if (self)
            return false;
    }
    return true;
}

/* Sequences that can go on, the oldest first. Growing may end younger ones. */
static void collect_running(struct worker *w)
{
    struct steps *s = &w->steps;
    uint32_t n = 0;
    s->n_running = 0;
    if (!room_running(s, w->tickets.n_active))
        return;
    LIST_FOR (it, &w->tickets.all) {
        struct ticket *k = container_of(it, struct ticket, node);
        if (k->state == TICKET_ACTIVE)
            s->running_tickets[n++] = k;
    }
    if (n > 1)
        qsort(s->running_tickets, n, sizeof *s->running_tickets, by_admission);
    /* n_active shrinks with every preemption, and the youngest are at the end: what is left of the
     * first n_active entries is alive */
    for (uint32_t i = 0; i < n && i < w->tickets.n_active; i++) {
        struct ticket *k = s->running_tickets[i];
        if (k->frozen || !guide_ready(k->guide) || !grow(w, k))
            continue;
        s->running_tickets[s->n_running] = k;
        s->running[s->n_running++] =
            (struct batch_running){.arrival = k->admitted, .turn = k->turn};
    }
}

static void plan(struct worker *w, bool fresh)
{
    struct steps *s = &w->steps;
    collect_prompts(w, fresh);
    struct batch_state state = {.prompts = s->prompts,
                                .n_prompts = s->n_prompts,
                                .running = s->running,
                                .n_running = s->n_running,
                                .block_size = w->info.kv_block_size,
                                .max_rows = (uint32_t)w->settings->max_batch,
                                .max_tokens = w->info.max_tokens,
                                .prompt_tokens =
                                    w->policy->prompt_tokens(w->settings, s->n_running)};
    batch_plan(&state, &s->plan);
}

/* Starts the queued jobs of the plan. Returns whether the plan must be made anew, because a job
 * begins further on than thought (cached prefix), is gone, or has no blocks (*fresh is cleared). */
static bool start_planned(struct worker *w, bool *fresh)
{
    struct steps *s = &w->steps;
    bool changed = false;
    for (uint32_t i = 0; i < s->plan.n_prompts; i++) {
        struct job *j = s->prompt_jobs[s->plan.prompts[i].index];
        if (j->state != JOB_QUEUED)
            continue;
        changed = true;
        if (worker_parked_full(w) || !prefill_start(w, j)) {
            *fresh = false;
            break;
        }
    }
    return changed;
}

/* Zeroes what the prompt leaves unused of its last block, so that its checksum is that of the
 * tokens alone. Before the step, which writes no slot beyond the prompt: from layer_done on,
 * attention reads the block while it is being sent. */
static void clear_unused(struct worker *w, const struct job *j)
{
    uint32_t used = j->n_tokens % w->info.kv_block_size;
    for (uint32_t l = 0; used && l < w->info.n_layers; l++)
        engine_kv_clear_tail(engine_thread_engine(w->engine), l, j->blocks[j->n_blocks - 1], used);
}

static void row_of_job(struct worker *w, struct step_slot *s, struct job *j, uint32_t n_tokens)
{
    uint32_t i = s->step.n_rows++;
    bool last = j->computed + n_tokens == j->n_tokens;
    const struct proto_job *spec = &j->spec.job;
    s->rows[i] = (struct engine_row){.tokens = j->tokens + j->computed,
                                     .n_tokens = n_tokens,
                                     .position = j->computed,
                                     .blocks = j->blocks,
                                     .choice = j->key.choice,
                                     .id = j->arrival << 1 | 1,
                                     .next_token = -1};
    if (last)
        clear_unused(w, j);
    if (last && spec->max_tokens > 0) {
        guide_row(j->guide, 0, &j->sampling);
        s->rows[i].sampling = &j->sampling;
    }
    if (j->scores) {
        s->rows[i].scores = j->scores + j->computed;
        s->rows[i].next_token = last ? -1 : j->tokens[j->computed + n_tokens];
        s->rows[i].score_top = spec->score_top;
    }
    if (j->pooled) {
        s->rows[i].hidden = j->pooled;
        s->rows[i].hidden_from = spec->pool == PROTO_POOL_MEAN ? 0 : last ? n_tokens - 1 : n_tokens;
    }
    s->row_jobs[i] = j;
    s->row_tickets[i] = NULL;
    j->step_tokens = n_tokens;
    j->in_step = true;
    j->holds++;
}

/* Position of the last token there can be. */
static uint32_t last_position(const struct worker *w, const struct proto_job *j)
{
    uint64_t n = (uint64_t)j->prompt.n + j->max_tokens;
    return (uint32_t)(n < w->info.context ? n : w->info.context) - 1;
}

static void row_of_ticket(struct worker *w, struct step_slot *s, struct ticket *k)
{
    const struct proto_job *j = &k->spec.job;
    uint32_t i = s->step.n_rows++, ahead = k->in_step;
    s->params[i] = spec_sampling(j, w->info.vocab);
    if (!guide_row(k->guide, ahead, &s->params[i]))
        s->late = true; /* complete_late asks again */
    s->rows[i] = (struct engine_row){.tokens = ahead ? NULL : k->tokens + k->n_tokens - 1,
                                     .n_tokens = 1,
                                     .position = k->n_tokens - 1 + ahead,
                                     .blocks = k->blocks,
                                     .sampling = &s->params[i],
                                     .choice = k->key.choice,
                                     .id = k->admitted << 1,
                                     .stop = j->stop_ids.p,
                                     .n_stop = j->ignore_eos ? 0 : (uint32_t)j->stop_ids.n,
                                     .last_position = last_position(w, j),
                                     .next_token = -1};
    s->row_jobs[i] = NULL;
    s->row_tickets[i] = k;
    k->turn = ++w->steps.turn;
    k->in_step++;
    ticket_hold(k);
}

/* Whether another step may be planned now: the first one, or one of sequences behind another. */
static bool may_plan(const struct worker *w)
{
    const struct steps *s = &w->steps;
    if (!engine_thread_room(w->engine))
        return false;
    if (s->n_active == 0)
        return true;
    if (s->slots[s->next ^ 1].prompts || s->slots[s->next ^ 1].late)
        return false;
    LIST_FOR (n, &w->jobs) {
        const struct job *j = container_of(n, struct job, node);
        if (j->state == JOB_QUEUED || (j->state == JOB_RUNNING && j->computed < j->n_tokens))
            return false; /* prompts are due: they come next, with the sequences */
    }
    return true;
}

static bool start_one(struct worker *w)
{
    struct steps *s = &w->steps;
    struct step_slot *o = &s->slots[s->next];
    bool fresh = !worker_parked_full(w);
    if (!may_plan(w))
        return false;
    collect_running(w);
    do {
        plan(w, fresh);
    } while (s->plan.n_tokens > 0 && start_planned(w, &fresh));
    if (s->plan.n_tokens == 0)
        return false;
    o->step = (struct engine_step){.rows = o->rows};
    o->late = false;
    for (uint32_t i = 0; i < s->plan.n_running; i++)
        row_of_ticket(w, o, s->running_tickets[s->plan.running[i]]);
    for (uint32_t i = 0; i < s->plan.n_prompts; i++)
        row_of_job(w, o, s->prompt_jobs[s->plan.prompts[i].index], s->plan.prompts[i].n_tokens);
    o->step.late = o->late;
    o->prompts = s->plan.n_prompts > 0;
    o->active = true;
    s->n_active++;
    s->next = (s->next + 1) % w->info.ahead;
    engine_thread_step(w->engine, &o->step, o->prompts);
    return true;
}

void steps_start(struct worker *w)
{
    while (start_one(w))
        ;
}

/* The active step with prompts, or NULL. There is one at most. */
static struct step_slot *prompt_step(struct worker *w)
{
    for (int i = 0; i < STEPS_AHEAD; i++)
        if (w->steps.slots[i].active && w->steps.slots[i].prompts)
            return &w->steps.slots[i];
    return NULL;
}

void steps_abandon(struct worker *w)
{
    const struct step_slot *s = prompt_step(w);
    for (uint32_t i = 0; s && i < s->step.n_rows; i++) {
        if (!s->row_jobs[i] || s->row_jobs[i]->state != JOB_ENDED)
            return;
    }
    if (s)
        engine_thread_stop(w->engine, &s->step);
}

void steps_layer(void *arg, uint32_t layer)
{
    struct worker *w = arg;
    struct step_slot *s = prompt_step(w);
    for (uint32_t i = 0; s && i < s->step.n_rows; i++) {
        if (s->row_jobs[i])
            prefill_layer(w, s->row_jobs[i], layer);
    }
}

/* The step before has been read: now it is known what its followers may draw. */
static void complete_late(struct worker *w)
{
    for (int i = 0; i < STEPS_AHEAD; i++) {
        struct step_slot *s = &w->steps.slots[i];
        if (!s->active || !s->late)
            continue;
        for (uint32_t r = 0; r < s->step.n_rows; r++) {
            struct ticket *k = s->row_tickets[r];
            if (k->state == TICKET_ACTIVE && !guide_row(k->guide, 0, &s->params[r]))
                log_warn_about(ticket_about(k), "ticket %s: what comes next is not known",
                               seq_text(&k->key));
        }
        s->late = false;
        engine_thread_sample(w->engine, &s->step);
    }
}

void steps_done(void *arg, struct engine_step *step, int status)
{
    struct worker *w = arg;
    struct step_slot *s = container_of(step, struct step_slot, step);
    s->active = false;
    w->steps.n_active--;
    if (status == STATUS_CANCELED)
        log_debug("engine: a step of %u rows was given up", step->n_rows);
    else if (status != STATUS_OK)
        log_error("engine: a step of %u rows failed: %s", step->n_rows, status_text(status));
    else
        report_step(w, step);
    for (uint32_t i = 0; i < step->n_rows; i++) {
        if (s->row_jobs[i])
            prefill_stepped(w, s->row_jobs[i], &s->rows[i], status);
        else /* no token: the device holds the sequence for ended, which only its owner may say */
            decode_stepped(w, s->row_tickets[i], &s->rows[i],
                           status == STATUS_OK && s->rows[i].result.token < 0 ? STATUS_INTERNAL
                                                                              : status);
    }
    complete_late(w);
    /* Now, not on the next turn: a HANDOFF_OK that comes first would end the job, and with it the
     * only frame that says what the prompt took (R3). */
    links_flush(w);
    if (engine_lost(engine_thread_engine(w->engine))) {
        log_error("the device has failed: this worker cannot go on");
        worker_stop(w, STATUS_INTERNAL);
    }
    worker_wake(w);
}
