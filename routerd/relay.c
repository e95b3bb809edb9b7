/* relay: the I/O of gen.c. Events of the workers' links go to the sequence that they are about; the
 * actions that come back are sent to workers or given to the owner.
 *
 * Callbacks of an owner may free any sequence, so nothing of one is touched after them without
 * looking it up again (by counter, which is never used twice), and no list is walked on. */
#include "routerd/relay_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/rng.h"

#define TICK_MS         50
#define DISPATCH_BUDGET 256  /* placement attempts in one turn of the loop */
#define REPLICA_TOKENS  32   /* of an answer, before it gets a replica */
#define PARK_MS         2500 /* KV of a request whose decode worker died is free 3 s later */

static struct entry *find(struct relay *r, uint64_t counter)
{
    struct entry *e = NULL;
    HASH_FIND(hh, r->by_counter, &counter, sizeof counter, e);
    return e;
}

/* ---- what follows from a state -----------------------------------------------------------------
 */

static void count_load(struct entry *e)
{
    const struct gen *g = &e->g;
    struct workers *ws = e->relay->workers;
    uint32_t left = gen_prompt_left(g);
    if (e->at_prefill == g->prefill && e->at_decode == g->decode && e->at_tokens == left)
        return;
    struct worker *w = e->at_prefill ? workers_find(ws, e->at_prefill) : NULL;
    if (w) {
        w->assigned -= w->assigned > 0;
        w->assigned_tokens -= e->at_tokens < w->assigned_tokens ? e->at_tokens : w->assigned_tokens;
    }
    w = e->at_decode ? workers_find(ws, e->at_decode) : NULL;
    if (w)
        w->assigned -= w->assigned > 0;
    e->at_prefill = g->prefill;
    e->at_decode = g->decode;
    e->at_tokens = left;
    w = g->prefill ? workers_find(ws, g->prefill) : NULL;
    if (w) {
        w->assigned++;
        w->assigned_tokens += left;
    }
    w = g->decode ? workers_find(ws, g->decode) : NULL;
    if (w)
        w->assigned++;
}

/* Puts it on the right list and counts what it does. Idempotent. */
static void reconcile(struct entry *e)
{
    struct relay *r = e->relay;
    enum gen_state s = e->g.state;
    bool waits = s == GEN_WAITING || s == GEN_PARKED, listed = !list_empty(&e->in_list);
    count_load(e);
    if (e->retries != e->g.retries)
        metrics_add(r->m_retries, e->g.retries - e->retries);
    e->retries = e->g.retries;
    if (e->moves != e->g.moves)
        metrics_add(r->m_moves, e->g.moves - e->moves);
    e->moves = e->g.moves;
    if (e->moves_failed != e->g.moves_failed)
        metrics_add(r->m_moves_failed, e->g.moves_failed - e->moves_failed);
    e->moves_failed = e->g.moves_failed;
    if (e->adopted != e->g.adopted)
        metrics_add(r->m_adopted, e->g.adopted - e->adopted);
    e->adopted = e->g.adopted;
    if (listed && s != GEN_DONE && waits == e->waits)
        return;
    if (listed) {
        list_remove(&e->in_list);
        if (e->waits)
            r->n_waiting--;
        else
            r->n_running--;
    }
    if (s != GEN_DONE) {
        struct list *at = waits ? r->waiting.prev : r->running.prev;
        while (waits && at != &r->waiting &&
               container_of(at, struct entry, in_list)->g.job.priority < e->g.job.priority)
            at = at->prev; /* behind the last one that is as urgent */
        list_push_front(at, &e->in_list);
        if (waits)
            r->n_waiting++;
        else
            r->n_running++;
        e->waits = waits;
    }
    metrics_set(r->m_running, r->n_running);
    metrics_set(r->m_waiting, r->n_waiting);
}

static const char *name_of(const struct entry *e, uint64_t instance)
{
    const struct worker *w = instance ? workers_find(e->relay->workers, instance) : NULL;
    return w ? w->name : "";
}

static void note_time(struct entry *e, const struct gen_turn *t)
{
    const struct gen *g = &e->g;
    if (e->timeline && timeline_due(e->timeline, g))
        timeline_step(e->timeline, g, t->now_ms, name_of(e, g->prefill), name_of(e, g->decode),
                      t->why);
}

/* ---- actions -----------------------------------------------------------------------------------
 */

static struct proto_target target_of(struct relay *r, const struct gen *g,
                                     const struct gen_action *a, const struct worker *d)
{
    struct proto_target t = {.instance = d->instance,
                             .data_address = {d->data_address, d->data_address_n}};
    mac_reserve(&r->o.key, r->o.instance, g->counter, a->attempt, a->worker, d->instance, t.mac);
    return t;
}

static int send_attempt(struct entry *e, const struct gen_action *a)
{
    struct relay *r = e->relay;
    const struct gen *g = &e->g;
    struct worker *p = workers_find(r->workers, a->worker);
    struct worker *d = workers_find(r->workers, a->decode);
    struct proto_request request = {r->o.instance, g->counter, a->attempt};
    struct proto_msg m;
    if (!p || !d || !p->up)
        return STATUS_CLOSED;
    if (a->type == GEN_SEND_REDIRECT) {
        m = (struct proto_msg){.type = PROTO_REDIRECT};
        m.redirect.request = request;
        m.redirect.old_attempt = a->old_attempt;
        m.redirect.decode = target_of(r, g, a, d);
        metrics_add(r->m_redirects, 1);
    } else if (a->type == GEN_SEND_MOVE || a->type == GEN_SEND_COPY) {
        m = (struct proto_msg){.type = PROTO_MOVE};
        m.move.request = request;
        m.move.old_attempt = a->old_attempt;
        m.move.decode = target_of(r, g, a, d);
        m.move.copy = a->type == GEN_SEND_COPY;
    } else {
        uint64_t now = clock_ms();
        m = (struct proto_msg){.type = PROTO_PREFILL, .prefill = {.job = g->job}};
        struct proto_job *job = &m.prefill.job;
        job->request = request;
        job->emitted = (struct proto_ids){g->emitted, g->n_emitted};
        job->deadline_ms = g->deadline_ms > now ? g->deadline_ms - now : 1;
        job->score_prompt = !g->scored;
        m.prefill.decode = target_of(r, g, a, d);
        p->sent_since_beat++;
    }
    log_debug_about(gen_about_attempt(g, a->attempt), "request %" PRIu64 ".%u: %s to %s for %s",
                    g->counter, a->attempt, proto_type_name(m.type), p->name, d->name);
    return link_send(p->link, &m);
}

static void send_cancel(struct relay *r, uint64_t counter, const struct gen_action *a)
{
    struct worker *w = workers_find(r->workers, a->worker);
    struct proto_msg m = {.type = PROTO_CANCEL,
                          .cancel = {.request = {r->o.instance, counter, a->attempt}}};
    if (w) /* when its link is gone, RESUME says the same */
        worker_send(w, &m);
}

bool relay_run(struct entry *e, const struct gen_turn *t, const struct proto_scores *scores)
{
    struct relay *r = e->relay;
    struct gen *g = &e->g;
    uint64_t counter = g->counter;
    bool quiet = true;
    reconcile(e);
    note_time(e, t);
    for (uint32_t i = 0; i < t->n; i++) {
        const struct gen_action *a = &t->actions[i];
        if (!quiet && find(r, counter) != e)
            return false;
        switch (a->type) {
        case GEN_SEND_PREFILL:
        case GEN_SEND_REDIRECT:
        case GEN_SEND_MOVE:
        case GEN_SEND_COPY: {
            int rc = send_attempt(e, a);
            if (rc == STATUS_OK)
                break;
            struct gen_turn u;
            gen_turn_init(&u, t->now_ms, rng_u64());
            gen_unsent(g, rc, &u);
            return relay_run(e, &u, NULL);
        }
        case GEN_SEND_CANCEL:
            send_cancel(r, counter, a);
            break;
        case GEN_GIVE_SCORES:
            quiet = false;
            if (e->cb.scores)
                e->cb.scores(e->arg, g, scores);
            break;
        case GEN_GIVE_TOKEN:
            quiet = false;
            e->cb.token(e->arg, g, &a->token);
            break;
        case GEN_GIVE_FINISH:
            quiet = false;
            e->cb.finish(e->arg, g, a->finish);
            break;
        case GEN_GIVE_FAILED:
            quiet = false;
            e->cb.failed(e->arg, g, a->status, t->why);
            break;
        }
    }
    return quiet;
}

static void dispatch_later(struct relay *r)
{
    if (!list_empty(&r->waiting))
        loop_timer_start(r->soon, 0, 0);
}

/* ---- waiting -----------------------------------------------------------------------------------
 */

/* One that may be what kills workers waits until no other such one is under way. */
static bool trial_must_wait(struct relay *r, const struct entry *e)
{
    if (!gen_on_trial(&e->g) || r->trial == e->g.counter)
        return false;
    const struct entry *other = find(r, r->trial);
    return other && gen_on_trial(&other->g) && other->g.state != GEN_WAITING;
}

/* Places what waits; the budget bounds the work of one turn. */
static void dispatch(struct relay *r)
{
    struct gen_turn t;
    if (!r->workers || r->dispatching || list_empty(&r->waiting))
        return;
    r->dispatching = true;
    uint64_t now = clock_ms();
    int budget = DISPATCH_BUDGET;
    uint32_t n = workers_count(r->workers);
    workers_view(r->workers, r->view);
    bool again = true;
    while (again) {
        again = false;
        LIST_FOR_SAFE (it, &r->waiting) {
            struct entry *e = container_of(it, struct entry, in_list);
            if (now < e->g.retry_ms || trial_must_wait(r, e))
                continue;
            if (budget-- <= 0)
                break;
            gen_turn_init(&t, now, rng_u64());
            gen_place(&e->g, r->view, n, &r->budget, &t);
            if (gen_on_trial(&e->g) && t.n > 0)
                r->trial = e->g.counter;
            if (t.n > 0 && !relay_run(e, &t, NULL)) {
                again = true; /* the callback may have freed what came next */
                break;
            }
        }
    }
    r->dispatching = false;
}

static void dispatch_soon(void *arg)
{
    dispatch(arg);
}

/* Deadlines of one list. False when an owner was called. */
static bool tick_list(struct list *l, uint64_t now)
{
    struct gen_turn t;
    LIST_FOR_SAFE (it, l) {
        struct entry *e = container_of(it, struct entry, in_list);
        if (now < gen_wake_ms(&e->g))
            continue;
        gen_turn_init(&t, now, rng_u64());
        gen_tick(&e->g, &t);
        if (!relay_run(e, &t, NULL))
            return false;
    }
    return true;
}

static void on_tick(void *arg)
{
    struct relay *r = arg;
    uint64_t now = clock_ms();
    workers_check(r->workers, now, r->o.stall_ms);
    while (!tick_list(&r->waiting, now) || !tick_list(&r->running, now))
        ;
    relay_move_away(r, now);
    if (r->o.replicas)
        relay_replicate(r, now);
    dispatch(r);
}

/* ---- what workers say --------------------------------------------------------------------------
 */

static void on_token(struct relay *r, uint64_t instance, const struct proto_token *tok)
{
    struct gen_turn t;
    uint64_t now = clock_ms();
    struct entry *e = find(r, tok->counter);
    if (!e || e->g.state == GEN_DONE)
        return;
    gen_turn_init(&t, now, rng_u64());
    gen_token(&e->g, instance, tok, &t);
    if (t.diverged)
        metrics_add(r->m_divergence, 1);
    relay_run(e, &t, NULL);
    for (e = find(r, tok->counter); e && e->g.n_gap > 0; e = find(r, tok->counter)) {
        gen_turn_init(&t, now, rng_u64());
        if (!gen_next(&e->g, &t))
            break;
        relay_run(e, &t, NULL);
    }
}

static void on_tokens(struct relay *r, struct worker *w, const struct proto_tokens *ts)
{
    struct proto_seq_pos list[64];
    struct proto_msg ack = {.type = PROTO_ACK, .ack = {.list = list}};
    uint64_t instance = w->instance;
    for (uint32_t i = 0; i < ts->n; i++) {
        const struct proto_token *tok = &ts->list[i];
        struct proto_seq_pos *pos = &list[ack.ack.n];
        on_token(r, instance, tok);
        struct entry *e = find(r, tok->counter);
        if (!e) /* nothing of it is wanted any more */
            *pos =
                (struct proto_seq_pos){tok->counter, tok->attempt, tok->choice, tok->position + 1};
        else if (!gen_ack(&e->g, tok, pos))
            continue;
        if (++ack.ack.n == 64 && w->instance == instance) {
            worker_send(w, &ack);
            ack.ack.n = 0;
        }
    }
    if (ack.ack.n && w->instance == instance)
        worker_send(w, &ack);
}

static void on_lost(struct relay *r, struct worker *w, const struct proto_lost *l)
{
    struct gen_turn t;
    struct entry *e = find(r, l->request.counter);
    if (!e) {
        struct gen_action a = {.worker = w->instance, .attempt = l->request.attempt};
        if (l->parked) /* nobody will ask for it */
            send_cancel(r, l->request.counter, &a);
        return;
    }
    gen_turn_init(&t, clock_ms(), rng_u64());
    gen_lost(&e->g, w->instance, w->name, l, &t);
    relay_run(e, &t, NULL);
    dispatch_later(r);
}

static void on_scores(struct relay *r, struct worker *w, const struct proto_scores *s)
{
    struct gen_turn t;
    uint64_t counter = s->request.counter;
    struct entry *e = find(r, counter);
    if (!e)
        return;
    gen_turn_init(&t, clock_ms(), rng_u64());
    gen_scores(&e->g, w->instance, s->request.attempt, &t);
    relay_run(e, &t, s);
    while ((e = find(r, counter)) != NULL) { /* tokens that waited for them */
        gen_turn_init(&t, clock_ms(), rng_u64());
        if (!gen_next(&e->g, &t))
            break;
        relay_run(e, &t, NULL);
    }
}

static void worker_message(void *arg, struct worker *w, const struct proto_msg *m)
{
    struct relay *r = arg;
    switch (m->type) {
    case PROTO_TOKENS:
        on_tokens(r, w, &m->tokens);
        break;
    case PROTO_LOST:
        on_lost(r, w, &m->lost);
        break;
    case PROTO_SCORES:
        on_scores(r, w, &m->scores);
        break;
    default:
        log_debug("%s from %s ignored", proto_type_name(m->type), w->name);
    }
}

/* ---- what their links do -----------------------------------------------------------------------
 */

/* False when an owner was called. */
static bool lose_list(struct list *l, uint64_t instance, enum gen_loss how, const char *why)
{
    struct gen_turn t;
    LIST_FOR_SAFE (it, l) {
        struct entry *e = container_of(it, struct entry, in_list);
        gen_turn_init(&t, clock_ms(), rng_u64());
        gen_worker_lost(&e->g, instance, how, why, &t);
        if (!relay_run(e, &t, NULL))
            return false;
    }
    return true;
}

static uint32_t count_under(const struct list *l, uint64_t instance)
{
    uint32_t n = 0;
    LIST_FOR (it, l)
        n += gen_under(&container_of(it, struct entry, in_list)->g, instance);
    return n;
}

static void worker_lost(void *arg, struct worker *w, bool dead, const char *why)
{
    struct relay *r = arg;
    char line[256];
    uint64_t instance = w->instance;
    bool alone = count_under(&r->waiting, instance) + count_under(&r->running, instance) == 1;
    enum gen_loss how = !dead ? GEN_LOSS_SUSPECT : alone ? GEN_LOSS_DEAD_ALONE : GEN_LOSS_DEAD;
    snprintf(line, sizeof line, "%s: %s", w->name, why);
    while (!lose_list(&r->waiting, instance, how, line) ||
           !lose_list(&r->running, instance, how, line))
        ;
    dispatch_later(r);
}

/* RESUME: what is listed goes on, everything else that the worker holds of ours is over. */
static void worker_up(void *arg, struct worker *w, bool back)
{
    struct relay *r = arg;
    struct proto_msg m = {.type = PROTO_RESUME};
    struct entry *e, *next;
    struct proto_seq_pos *list = NULL;
    uint64_t instance = w->instance;
    if (back)
        list = mem_array(GEN_RESUME_MAX * (HASH_CNT(hh, r->by_counter) + 1), sizeof *list);
    HASH_ITER (hh, r->by_counter, e, next) {
        if (list)
            m.resume.n += gen_resume(&e->g, instance, &list[m.resume.n]);
    }
    m.resume.list = list;
    worker_send(w, &m);
    if (back && !list)
        worker_lost(r, w, false, "out of memory");
    if (m.resume.n) {
        log_info("%s goes on with %u sequences", w->name, m.resume.n);
        metrics_add(r->m_resumed, m.resume.n);
    }
    free(list);
    dispatch_later(r);
}

static void worker_beat(void *arg, struct worker *w)
{
    dispatch(arg);
}

const struct workers_callbacks relay_workers_callbacks = {
    .up = worker_up,
    .lost = worker_lost,
    .message = worker_message,
    .beat = worker_beat,
};

/* ---- for the owners of sequences ---------------------------------------------------------------
 */

int relay_create(struct loop *loop, const struct relay_options *o, struct relay **out)
{
    struct relay *r = mem_array(1, sizeof *r);
    if (!r)
        return STATUS_NOMEM;
    r->o = *o;
    r->limits = (struct gen_limits){.request_timeout_ms = o->request_timeout_ms,
                                    .worker_wait_ms = o->worker_wait_ms,
                                    .queue_timeout_ms = o->queue_timeout_ms,
                                    .stall_ms = o->stall_ms,
                                    .park_ms = PARK_MS,
                                    .replica_tokens = REPLICA_TOKENS};
    gen_budget_init(&r->budget, clock_ms());
    r->next_counter = 1;
    list_init(&r->waiting);
    list_init(&r->running);
    r->m_running =
        metrics_gauge("baton_requests_running", "", "Sequences that workers are working on.");
    r->m_waiting = metrics_gauge("baton_requests_waiting", "", "Sequences that wait for a worker.");
    r->m_divergence =
        metrics_counter("baton_divergence_total", "",
                        "Tokens that came twice for one position with different ids.");
    r->m_retries = metrics_counter("baton_retries_total", "",
                                   "Attempts started after the first one of a request.");
    r->m_redirects =
        metrics_counter("baton_redirects_total", "",
                        "Attempts that took KV over from the one before, without computing it.");
    r->m_resumed =
        metrics_counter("baton_resumed_sequences_total", "",
                        "Sequences that went on when a worker's link had broken and came back.");
    r->m_moves = metrics_counter("baton_moves_total", "",
                                 "Running sequences that went over to another decode worker.");
    r->m_moves_failed =
        metrics_counter("baton_moves_failed_total", "",
                        "Moves that came to nothing: the sequence stayed where it was.");
    r->m_adopted = metrics_counter("baton_replica_resumes_total", "",
                                   "Attempts that were sent to the replica of their sequence.");
    int rc = loop_timer_create(loop, on_tick, r, &r->tick);
    if (rc == STATUS_OK)
        rc = loop_timer_create(loop, dispatch_soon, r, &r->soon);
    if (rc != STATUS_OK) {
        loop_timer_free(r->tick);
        free(r);
        return rc;
    }
    *out = r;
    return STATUS_OK;
}

void relay_set_limits(struct relay *r, uint64_t request_timeout_ms, uint64_t worker_wait_ms,
                      uint64_t queue_timeout_ms, uint32_t queue_max)
{
    r->limits.request_timeout_ms = request_timeout_ms;
    r->limits.worker_wait_ms = worker_wait_ms;
    r->limits.queue_timeout_ms = queue_timeout_ms;
    r->o.queue_max = queue_max;
}

void relay_set_replicas(struct relay *r, uint32_t n)
{
    r->o.replicas = n;
}

int relay_set_workers(struct relay *r, struct workers *ws)
{
    r->view = mem_array(WORKERS_MAX, sizeof *r->view);
    r->moving = mem_array(WORKERS_MAX, sizeof *r->moving);
    if (!r->view || !r->moving)
        return STATUS_NOMEM;
    r->workers = ws;
    loop_timer_start(r->tick, TICK_MS, TICK_MS);
    return STATUS_OK;
}

void relay_destroy(struct relay *r)
{
    if (!r)
        return;
    loop_timer_free(r->tick);
    loop_timer_free(r->soon);
    ASSERT(r->by_counter == NULL);
    free(r->view);
    free(r->moving);
    free(r);
}

static int start(struct relay *r, uint32_t pool, const struct proto_job *job,
                 const struct gen *like, const struct gen_callbacks *cb, void *arg,
                 struct gen **out)
{
    struct entry *e = mem_array(1, sizeof *e);
    if (!e)
        return STATUS_NOMEM;
    e->relay = r;
    e->cb = *cb;
    e->arg = arg;
    list_init(&e->in_list);
    gen_init(&e->g, &r->limits, r->next_counter++, job, clock_ms());
    e->g.pool = pool;
    e->g.job.request.router = r->o.instance;
    if (like)
        gen_follow(&e->g, like);
    HASH_ADD(hh, r->by_counter, g.counter, sizeof e->g.counter, e);
    if (!e->hh.tbl) {
        free(e);
        return STATUS_NOMEM;
    }
    reconcile(e);
    dispatch_later(r);
    *out = &e->g;
    return STATUS_OK;
}

int relay_start(struct relay *r, uint32_t pool, const struct proto_job *job,
                const struct gen_callbacks *cb, void *arg, struct gen **out)
{
    return r->n_waiting >= r->o.queue_max ? STATUS_FULL : start(r, pool, job, NULL, cb, arg, out);
}

int relay_fork(struct relay *r, const struct proto_job *job, const struct gen *like,
               const struct gen_callbacks *cb, void *arg, struct gen **out)
{
    return start(r, like->pool, job, like, cb, arg, out);
}

void relay_watch(struct gen *g, struct timeline *t)
{
    timeline_begin(t, g, g->created_ms);
    entry_of(g)->timeline = t;
}

void relay_free(struct gen *g)
{
    struct entry *e = entry_of(g);
    struct relay *r = e->relay;
    struct gen_turn t;
    gen_turn_init(&t, clock_ms(), 0);
    gen_cancel(g, &t);
    relay_run(e, &t, NULL);
    HASH_DELETE(hh, r->by_counter, e);
    gen_fini(g);
    free(e);
}

uint32_t relay_waiting(const struct relay *r)
{
    return r->n_waiting;
}

uint32_t relay_running(const struct relay *r)
{
    return r->n_running;
}

uint32_t relay_context(struct relay *r, uint32_t pool)
{
    if (!r->workers)
        return 0;
    if (r->dispatching) /* the view counts what was just given */
        return pick_context(r->view, workers_count(r->workers), pool);
    workers_view(r->workers, r->view);
    return pick_context(r->view, workers_count(r->workers), pool);
}

void relay_debug(const struct relay *r, uint32_t max, struct buf *out)
{
    uint64_t now = clock_ms();
    const char *comma = "";
    const struct entry *e, *tmp;
    HASH_ITER (hh, r->by_counter, e, tmp) {
        const struct gen *g = &e->g;
        uint64_t wake = gen_wake_ms(g);
        if (max-- == 0)
            return;
        buf_printf(out,
                   "%s{\"request\":%" PRIu64 ",\"attempt\":%u,\"state\":\"%s\",\"age_ms\":%" PRIu64
                   ",\"state_ms\":%" PRIu64 ",\"deadline_ms\":%" PRIu64
                   ",\"prompt_tokens\":%zu,\"emitted\":%u,\"retries\":%u,"
                   "\"prefill\":\"%016" PRIx64 "\",\"decode\":\"%016" PRIx64
                   "\",\"moving_to\":\"%016" PRIx64 "\",\"moves\":%u,\"replica\":\"%016" PRIx64
                   "\"}",
                   comma, g->counter, g->attempt, gen_state_name(g->state), now - g->created_ms,
                   now - g->since_ms, wake > now ? wake - now : 0, g->job.prompt.n, g->n_emitted,
                   g->retries, g->prefill, g->decode, g->move_to, g->moves, g->replica);
        comma = ",";
    }
}
