/* gen: attempts, order of tokens, retry; see gen.h.
 *
 * Only gen_set_state writes a state. Only this file counts attempts (R4): the next one begins with
 * a CANCEL of the present one to every worker that it names, without waiting for an answer, and
 * starts from prompt + emitted ids. Nothing that belongs to an older attempt is looked at again.
 *
 * Where the prefill worker holds the KV and only the decode worker failed, the KV is not computed
 * anew: PARKED waits for a decode worker that fits and sends REDIRECT. When that takes too long, or
 * the prefill worker says that it has nothing, the ordinary retry follows.
 *
 * A move (gen_move) uses up an attempt, whether it comes to anything or not. While it goes on, two
 * attempts are alive, and only the old one counts. The decode worker that gives the sequence away
 * draws no token after its HANDOFF, unless it has said LOST of the new attempt or heard its CANCEL;
 * from either on the new attempt does not count here. So there is one continuation, whatever is
 * heard first.
 *
 * Attempts have no upper number: they end by success or by the request's deadline. What is bounded
 * is their rate: a retry without progress since the last one waits, twice as long each time up to
 * BACKOFF_MAX_MS, with jitter, and from the third on it also needs a share of the common budget.
 * Workers that die under a request without progress are counted apart: a request that kills its
 * workers must not go around the cluster. Two are enough when it was alone there the second time.
 * When others were, too, it may be innocent, and is tried once more, one such request at a time;
 * the next death is its own. */
#include "routerd/gen.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/mem.h"

#define DEATHS_MAX       2  /* workers that may die under a request without progress */
#define PROGRESS         16 /* tokens that count as progress */
#define BACKOFF_MIN_MS   20
#define BACKOFF_MAX_MS   1000
#define FREE_RETRIES     2    /* at once, and not from the budget */
#define MOVE_PAUSE_MS    1000 /* after a move that failed */
#define NEAR_TOKENS      16 /* to compute where another path has left the prompt, or a replica is */
#define REPLICA_PAUSE_MS 5000 /* after one that was given up */

static const char *const state_names[] = {"waiting", "parked", "prefill", "decode", "done"};

const char *gen_state_name(enum gen_state s)
{
    return state_names[s];
}

/* ---- budget and turn ---------------------------------------------------------------------------
 */

void gen_budget_init(struct gen_budget *b, uint64_t now_ms)
{
    *b = (struct gen_budget){.at_ms = now_ms, .milli = GEN_BUDGET_MAX * 1000};
}

bool gen_budget_take(struct gen_budget *b, uint64_t now_ms)
{
    const uint64_t most = GEN_BUDGET_MAX * 1000;
    uint64_t passed = now_ms > b->at_ms ? now_ms - b->at_ms : 0;
    b->milli = passed >= most ? most : b->milli + passed * GEN_BUDGET_PER_S;
    if (b->milli > most)
        b->milli = most;
    b->at_ms = now_ms;
    if (b->milli < 1000)
        return false;
    b->milli -= 1000;
    return true;
}

void gen_turn_init(struct gen_turn *t, uint64_t now_ms, uint64_t random)
{
    t->now_ms = now_ms;
    t->random = random;
    t->n = 0;
    t->diverged = false;
    t->why[0] = 0;
}

static struct gen_action *act(struct gen_turn *t, enum gen_action_type type)
{
    ASSERT(t->n < GEN_ACTIONS_MAX);
    struct gen_action *a = &t->actions[t->n++];
    memset(a, 0, sizeof *a);
    a->type = type;
    return a;
}

static void tell(struct gen_turn *t, const char *why)
{
    if (why != t->why)
        snprintf(t->why, sizeof t->why, "%s", why);
}

static void send_cancel(struct gen_turn *t, uint64_t worker, uint32_t attempt)
{
    if (worker == 0)
        return;
    struct gen_action *a = act(t, GEN_SEND_CANCEL);
    a->worker = worker;
    a->attempt = attempt;
}

/* ---- states ------------------------------------------------------------------------------------
 */

static void gen_set_state(struct gen *g, enum gen_state to, uint64_t now)
{
    static const uint8_t edges[] = {
        [GEN_WAITING] = 1 << GEN_PREFILL | 1 << GEN_DONE,
        [GEN_PARKED] = 1 << GEN_PREFILL | 1 << GEN_WAITING | 1 << GEN_DONE,
        [GEN_PREFILL] = 1 << GEN_DECODE | 1 << GEN_PARKED | 1 << GEN_WAITING | 1 << GEN_DONE,
        [GEN_DECODE] = 1 << GEN_WAITING | 1 << GEN_DONE,
        [GEN_DONE] = 0,
    };
    ASSERT_MSG(edges[g->state] & 1 << to, "request %" PRIu64 ": %s -> %s", g->counter,
               state_names[g->state], state_names[to]);
    log_debug_about(gen_about(g), "request %" PRIu64 ".%u %s -> %s", g->counter, g->attempt,
                    state_names[g->state], state_names[to]);
    g->state = to;
    g->since_ms = now;
}

struct log_about gen_about_attempt(const struct gen *g, uint32_t attempt)
{
    static char ring[4][64];
    static unsigned next;
    char *seq = ring[next++ % 4];
    snprintf(seq, sizeof ring[0], "%08x#%" PRIu64 ".%u.%u", (unsigned)(g->job.request.router >> 32),
             g->counter, attempt, g->job.choice);
    return (struct log_about){seq, (const char *)g->job.trace.p};
}

struct log_about gen_about(const struct gen *g)
{
    return gen_about_attempt(g, g->attempt);
}

static bool at_work(const struct gen *g)
{
    return g->state == GEN_PREFILL || g->state == GEN_DECODE || g->state == GEN_PARKED;
}

/* The prefill worker has something to do for it, or to hold. */
static bool needs_prefill(const struct gen *g)
{
    return g->state == GEN_PREFILL || g->state == GEN_PARKED ||
           (g->state == GEN_DECODE && !g->scored);
}

void gen_init(struct gen *g, const struct gen_limits *l, uint64_t counter,
              const struct proto_job *job, uint64_t now_ms)
{
    *g = (struct gen){.limits = l,
                      .counter = counter,
                      .job = *job,
                      .scored = !job->score_prompt || (job->prompt.n < 2 && !job->pool),
                      .created_ms = now_ms,
                      .since_ms = now_ms,
                      .deadline_ms = now_ms + l->request_timeout_ms};
}

void gen_follow(struct gen *g, const struct gen *other)
{
    g->near[0] = other->pair[0];
    g->near[1] = other->pair[1];
}

static void drop_gap(struct gen *g)
{
    for (uint32_t i = 0; i < g->n_gap; i++)
        free(g->gap[i].top);
    g->n_gap = 0;
}

void gen_fini(struct gen *g)
{
    drop_gap(g);
    free(g->gap);
    free(g->lent);
    free(g->emitted);
    g->gap = NULL;
    g->lent = NULL;
    g->emitted = NULL;
}

/* There is no move any more; its target is told. */
static void leave_move(struct gen *g, struct gen_turn *t)
{
    send_cancel(t, g->move_to, g->move_attempt);
    g->move_to = 0;
}

/* The same, and the sequence goes on where it is. */
static void drop_move(struct gen *g, const char *why, struct gen_turn *t)
{
    log_info_about(gen_about(g), "request %" PRIu64 ".%u is not moved: %s", g->counter, g->attempt,
                   why);
    tell(t, why);
    send_cancel(t, g->decode, g->move_attempt);
    leave_move(g, t);
    g->moves_failed++;
    g->move_after_ms = t->now_ms + MOVE_PAUSE_MS;
}

static void forget_replica(struct gen *g, uint64_t now)
{
    g->replica = 0;
    g->replica_after_ms = now + REPLICA_PAUSE_MS;
}

/* The attempt is over: its workers are told, and forgotten. */
static void leave_workers(struct gen *g, struct gen_turn *t)
{
    leave_move(g, t);
    send_cancel(t, g->prefill, g->attempt);
    if (g->decode != g->prefill)
        send_cancel(t, g->decode, g->attempt);
    g->prefill = g->decode = 0;
}

static void fail(struct gen *g, int status, const char *why, struct gen_turn *t)
{
    leave_workers(g, t);
    gen_set_state(g, GEN_DONE, t->now_ms);
    act(t, GEN_GIVE_FAILED)->status = status;
    tell(t, why);
}

static void finish(struct gen *g, enum proto_finish f, struct gen_turn *t)
{
    leave_move(g, t);
    g->prefill = g->decode = 0;
    gen_set_state(g, GEN_DONE, t->now_ms);
    act(t, GEN_GIVE_FINISH)->finish = f;
}

/* ---- retry -------------------------------------------------------------------------------------
 */

static void avoid(struct gen *g, uint64_t instance)
{
    if (instance == 0 || instance == g->avoid[0])
        return;
    g->avoid[1] = g->avoid[0];
    g->avoid[0] = instance;
}

/* Another try is due: counts it, and says how long it has to wait. */
static uint64_t backoff(struct gen *g, bool at_once, uint64_t random)
{
    if (g->n_emitted >= g->fruitless_at + PROGRESS)
        g->fruitless = 0;
    g->fruitless_at = g->fruitless ? g->fruitless_at : g->n_emitted;
    g->fruitless++;
    if (at_once && g->fruitless <= FREE_RETRIES)
        return 0;
    uint64_t top = (uint64_t)BACKOFF_MIN_MS << (g->fruitless < 7 ? g->fruitless : 7);
    if (top > BACKOFF_MAX_MS)
        top = BACKOFF_MAX_MS;
    return top / 2 + random % (top / 2 + 1);
}

/* R4: the next attempt, on another pair if there is one. */
static void retry(struct gen *g, uint64_t not_there, bool at_once, const char *why,
                  struct gen_turn *t)
{
    log_info_about(gen_about(g),
                   "request %" PRIu64 ".%u goes on in a new attempt after %u tokens: %s",
                   g->counter, g->attempt, g->n_emitted, why);
    tell(t, why);
    leave_workers(g, t);
    drop_gap(g);
    avoid(g, not_there);
    g->attempt = ++g->last_attempt;
    g->retries++;
    g->settled = false;
    gen_set_state(g, GEN_WAITING, t->now_ms);
    g->retry_ms = t->now_ms + backoff(g, at_once, t->random);
}

/* The prefill worker keeps what it has; the decode worker is given up. */
static void park(struct gen *g, uint64_t not_there, bool at_once, const char *why,
                 struct gen_turn *t)
{
    log_info_about(gen_about(g), "request %" PRIu64 ".%u needs another decode worker: %s",
                   g->counter, g->attempt, why);
    tell(t, why);
    send_cancel(t, g->decode, g->attempt);
    g->decode = 0;
    avoid(g, not_there);
    gen_set_state(g, GEN_PARKED, t->now_ms);
    g->retry_ms = t->now_ms + backoff(g, at_once, t->random);
}

/* ---- placing -----------------------------------------------------------------------------------
 */

/* What becomes of one that found no pair now. */
static void unplaced(struct gen *g, enum pick_result why, struct gen_turn *t)
{
    uint64_t waited = t->now_ms - g->since_ms;
    switch (why) {
    case PICK_TOO_LONG:
        if (g->n_emitted)
            finish(g, PROTO_FINISH_LENGTH, t);
        else
            fail(g, STATUS_RANGE, "The prompt is longer than any worker's context.", t);
        return;
    case PICK_BUSY:
        /* Another path of a prompt whose first one was served waits as long as the request may. */
        if (waited >= g->limits->queue_timeout_ms && !g->near[1])
            fail(g, STATUS_FULL, "All workers are busy; try again later.", t);
        return;
    case PICK_NO_PREFILL:
    case PICK_NO_DECODE:
        if (waited >= g->limits->worker_wait_ms)
            fail(g, STATUS_UNAVAILABLE,
                 why == PICK_NO_DECODE ? "No decode worker is available."
                                       : "No prefill worker is available.",
                 t);
        return;
    case PICK_OK:
        return;
    }
}

/* Prompt tokens to compute at a worker: little where another path has left the prompt's KV. */
static uint32_t to_compute(const struct gen *g, uint64_t prefill)
{
    size_t n = g->job.prompt.n + g->n_emitted;
    bool there = prefill == g->decode || (g->near[0] && prefill == g->near[0]);
    return there && n > NEAR_TOKENS ? NEAR_TOKENS : (uint32_t)n;
}

static bool affordable(const struct gen *g, struct gen_budget *budget, uint64_t now)
{
    return g->fruitless <= FREE_RETRIES || !budget || gen_budget_take(budget, now);
}

static void place_parked(struct gen *g, struct pick_worker *view, uint32_t n,
                         const struct pick_request *want, struct gen_budget *budget,
                         struct gen_turn *t)
{
    uint32_t p = 0, d = 0;
    while (p < n && view[p].instance != g->prefill)
        p++;
    if (p == n || !view[p].alive || !pick_decode(view, n, want, p, &d) ||
        !affordable(g, budget, t->now_ms))
        return;
    struct gen_action *a = act(t, GEN_SEND_REDIRECT);
    a->old_attempt = g->attempt;
    a->attempt = g->attempt = ++g->last_attempt;
    a->worker = g->prefill;
    a->decode = g->decode = g->pair[1] = view[d].instance;
    g->retries++;
    view[d].running++;
    g->doubt = false;
    gen_set_state(g, GEN_PREFILL, t->now_ms);
}

/* The worker that has the replica, if it can take it now: it is both prefill and decode worker. */
static struct pick_worker *replica_of(const struct gen *g, struct pick_worker *view, uint32_t n)
{
    for (uint32_t i = 0; i < n && g->replica; i++) {
        struct pick_worker *w = &view[i];
        uint32_t need = (uint32_t)(g->job.prompt.n + g->n_emitted) /
                            (w->kv_block_size ? w->kv_block_size : 16) +
                        2;
        if (w->instance == g->replica && w->usable && w->numerics == g->numerics &&
            w->instance != g->avoid[0] && w->instance != g->avoid[1] && need <= w->kv_free)
            return w;
    }
    return NULL;
}

void gen_place(struct gen *g, struct pick_worker *view, uint32_t n, struct gen_budget *budget,
               struct gen_turn *t)
{
    uint32_t p = 0, d = 0;
    if ((g->state != GEN_WAITING && g->state != GEN_PARKED) || t->now_ms < g->retry_ms)
        return;
    struct pick_request want = {.pool = g->pool,
                                .n_tokens = (uint32_t)(g->job.prompt.n + g->n_emitted),
                                .avoid = {g->avoid[0], g->avoid[1]},
                                .numerics = g->n_emitted ? g->numerics : 0,
                                .near_prefill = g->near[0],
                                .near_decode = g->near[1]};
    if (g->state == GEN_PARKED) {
        place_parked(g, view, n, &want, budget, t);
        return;
    }
    const struct pick_worker *kept = replica_of(g, view, n);
    if (kept) {
        p = d = (uint32_t)(kept - view);
    } else {
        enum pick_result got = pick_pair(view, n, &want, &p, &d);
        if (got != PICK_OK) {
            unplaced(g, got, t);
            return;
        }
    }
    if (!affordable(g, budget, t->now_ms))
        return;
    g->adopted += kept != NULL;
    g->replica = 0; /* the next worker is asked for one anew */
    g->replica_after_ms = 0;
    struct gen_action *a = act(t, GEN_SEND_PREFILL);
    a->attempt = g->attempt;
    a->worker = g->prefill = g->pair[0] = view[p].instance;
    a->decode = g->decode = g->pair[1] = view[d].instance;
    if (g->numerics == 0)
        g->numerics = view[d].numerics;
    view[p].queued_tokens += to_compute(g, g->prefill);
    view[p].credits -= kept == NULL;
    view[d].running++;
    g->doubt = false;
    gen_set_state(g, GEN_PREFILL, t->now_ms);
}

void gen_unsent(struct gen *g, int status, struct gen_turn *t)
{
    if (g->state == GEN_DECODE && g->move_to)
        drop_move(g, status_text(status), t);
    else if (g->state == GEN_DECODE)
        forget_replica(g, t->now_ms);
    if (g->state != GEN_PREFILL)
        return;
    if (status == STATUS_LIMIT)
        fail(g, STATUS_LIMIT, "The request is too large to be sent to a worker.", t);
    else
        retry(g, 0, false, status_text(status), t);
}

/* ---- moving ------------------------------------------------------------------------------------
 */

bool gen_can_move(const struct gen *g, uint64_t now_ms)
{
    return g->state == GEN_DECODE && g->scored && !g->move_to && now_ms >= g->move_after_ms;
}

void gen_move(struct gen *g, uint64_t to, struct gen_turn *t)
{
    ASSERT(gen_can_move(g, t->now_ms) && to && to != g->decode);
    struct gen_action *a = act(t, GEN_SEND_MOVE);
    a->worker = g->decode;
    a->decode = g->move_to = to;
    a->old_attempt = g->attempt;
    a->attempt = g->move_attempt = ++g->last_attempt;
}

bool gen_can_copy(const struct gen *g, uint64_t now_ms)
{
    return g->state == GEN_DECODE && g->scored && !g->move_to && !g->replica &&
           g->n_emitted >= g->limits->replica_tokens && now_ms >= g->replica_after_ms;
}

void gen_copy(struct gen *g, uint64_t to, struct gen_turn *t)
{
    ASSERT(gen_can_copy(g, t->now_ms) && to && to != g->decode);
    struct gen_action *a = act(t, GEN_SEND_COPY);
    a->worker = g->decode;
    a->decode = g->replica = to;
    a->old_attempt = g->attempt;
    a->attempt = g->replica_attempt = ++g->last_attempt;
}

/* The first word of the target: the sequence is there. */
static void moved(struct gen *g, struct gen_turn *t)
{
    log_debug_about(gen_about(g), "request %" PRIu64 ".%u has moved and is .%u", g->counter,
                    g->attempt, g->move_attempt);
    send_cancel(t, g->decode, g->attempt);
    g->attempt = g->move_attempt;
    g->decode = g->move_to;
    g->prefill = g->move_to = g->replica = 0;
    g->moves++;
}

/* ---- tokens ------------------------------------------------------------------------------------
 */

static bool emitted_push(struct gen *g, int32_t id)
{
    if (g->n_emitted == g->cap_emitted) {
        uint32_t cap = g->cap_emitted ? g->cap_emitted * 2 : 64;
        int32_t *p = mem_resize(g->emitted, cap, sizeof *p);
        if (!p)
            return false;
        g->emitted = p;
        g->cap_emitted = cap;
    }
    g->emitted[g->n_emitted++] = id;
    return true;
}

/* The next token in order. */
static void take(struct gen *g, const struct proto_token *tok, struct gen_turn *t)
{
    if (tok->token >= 0) {
        if (!emitted_push(g, tok->token)) {
            fail(g, STATUS_NOMEM, "Out of memory.", t);
            return;
        }
        act(t, GEN_GIVE_TOKEN)->token = *tok;
    }
    if (tok->finish != PROTO_FINISH_NONE)
        finish(g, (enum proto_finish)tok->finish, t);
}

/* A token whose turn has not come: kept, up to a bound. */
static void keep(struct gen *g, const struct proto_token *tok, struct gen_turn *t)
{
    for (uint32_t i = 0; i < g->n_gap; i++) {
        if (g->gap[i].position != tok->position)
            continue;
        t->diverged = g->gap[i].token != tok->token;
        return;
    }
    if (g->n_gap == GEN_GAP_MAX) {
        retry(g, 0, false, "too many tokens came before their turn", t);
        return;
    }
    if (!g->gap)
        g->gap = mem_array(GEN_GAP_MAX, sizeof *g->gap);
    struct proto_top *top = NULL;
    if (g->gap && tok->n_top)
        top = mem_dup(tok->top, tok->n_top * sizeof *top);
    if (!g->gap || (tok->n_top && !top)) {
        fail(g, STATUS_NOMEM, "Out of memory.", t);
        return;
    }
    if (g->n_gap == 0)
        g->gap_ms = t->now_ms;
    g->gap[g->n_gap] = *tok;
    g->gap[g->n_gap++].top = top;
}

void gen_token(struct gen *g, uint64_t from, const struct proto_token *tok, struct gen_turn *t)
{
    if (at_work(g) && g->move_to && from == g->move_to && tok->attempt == g->move_attempt)
        moved(g, t);
    if (!at_work(g) || tok->attempt != g->attempt || tok->choice != g->job.choice || from == 0 ||
        (from != g->prefill && from != g->decode))
        return; /* of an attempt that is over */
    if (from == g->decode && g->state == GEN_PREFILL)
        gen_set_state(g, GEN_DECODE, t->now_ms);
    if (g->state == GEN_DECODE && g->prefill == g->decode)
        g->prefill = 0; /* it has come to its replica */
    bool doubt = g->doubt && g->state == GEN_PREFILL;
    g->doubt = false;
    if (!g->settled) {
        g->work_known = from == g->prefill;
        g->work_queue_ms = g->work_known ? tok->queue_ms : 0;
        g->work_ms = g->work_known ? tok->prefill_ms : 0;
    }
    g->settled = true;
    if (from == g->prefill && tok->position == 0) {
        g->cached_tokens = tok->cached_tokens;
        g->queue_ms = tok->queue_ms;
        g->prefill_ms = tok->prefill_ms;
    }
    if (tok->position < g->n_emitted && tok->token >= 0) {
        if (g->emitted[tok->position] != tok->token) {
            t->diverged = true;
            log_error_about(
                gen_about(g),
                "request %" PRIu64 ".%u: position %u came as %d and from %016" PRIx64 " as %d",
                g->counter, g->attempt, tok->position, g->emitted[tok->position], from, tok->token);
        } else if (tok->position + 1 == g->n_emitted && tok->finish != PROTO_FINISH_NONE) {
            finish(g, (enum proto_finish)tok->finish, t); /* the same token, now as the last one */
        }
    } else if (tok->position > g->n_emitted || !g->scored) {
        keep(g, tok, t);
    } else if (tok->position == g->n_emitted) {
        take(g, tok, t);
    }
    if (doubt && g->state == GEN_PREFILL) /* whoever has the KV: the prefill worker is asked */
        park(g, 0, true, "the decode worker may have lost it", t);
}

bool gen_next(struct gen *g, struct gen_turn *t)
{
    free(g->lent);
    g->lent = NULL;
    for (uint32_t i = 0; i < g->n_gap && g->scored && at_work(g); i++) {
        struct proto_token tok = g->gap[i];
        if (tok.position > g->n_emitted)
            continue;
        g->gap[i] = g->gap[--g->n_gap];
        g->lent = tok.top;
        g->gap_ms = t->now_ms;
        if (tok.position == g->n_emitted)
            take(g, &tok, t);
        return true;
    }
    return false;
}

void gen_scores(struct gen *g, uint64_t from, uint32_t attempt, struct gen_turn *t)
{
    if (!at_work(g) || attempt != g->attempt || from == 0 || from != g->prefill || g->scored)
        return;
    g->scored = true;
    act(t, GEN_GIVE_SCORES);
}

/* ---- bad news ----------------------------------------------------------------------------------
 */

/* The worker does not know the attempt (RESUME, REDIRECT). That may be as it should be: the decode
 * worker hears of it late, the prefill worker forgets it early. Between the two, when the prompt is
 * computed and no token of the decode worker has come, the prefill worker may still have the KV. */
static void unknown(struct gen *g, uint64_t from, const char *why, struct gen_turn *t)
{
    if (from == g->decode && from != g->prefill && g->state == GEN_PREFILL) {
        if (g->settled)
            park(g, 0, true, why, t);
        else
            g->doubt = true; /* it may not have been asked yet, or it has freed what it had */
    } else if (from == g->decode || needs_prefill(g)) {
        retry(g, 0, true, why, t);
    }
}

/* Which of the two failed it, so that the next attempt goes elsewhere if it can; 0: none. */
static uint64_t culprit(const struct gen *g, uint64_t from, const struct proto_lost *l)
{
    switch ((enum proto_reason)l->reason) {
    case PROTO_REASON_DRAINING:
        return l->parked ? g->decode : from;
    case PROTO_REASON_PEER_LOST:
    case PROTO_REASON_NO_ROUTER:
    case PROTO_REASON_MISMATCH:
    case PROTO_REASON_CORRUPT:
        return from == g->prefill ? g->decode : g->prefill;
    default:
        return 0;
    }
}

void gen_lost(struct gen *g, uint64_t from, const char *name, const struct proto_lost *l,
              struct gen_turn *t)
{
    char why[200];
    snprintf(why, sizeof why, "%.64s: %s%s%.*s", name,
             proto_reason_name((enum proto_reason)l->reason), l->detail.n ? " " : "",
             l->detail.n < 120 ? (int)l->detail.n : 120,
             l->detail.n ? (const char *)l->detail.p : "");
    if (at_work(g) && g->move_to && l->request.attempt == g->move_attempt &&
        (from == g->decode || from == g->move_to)) {
        drop_move(g, why, t);
        return;
    }
    if (g->replica && l->request.attempt == g->replica_attempt) {
        if (from == g->decode)
            forget_replica(g, t->now_ms);
        return;
    }
    bool known = from != 0 && (from == g->prefill || from == g->decode);
    if (!at_work(g) || l->request.attempt != g->attempt || l->choice != g->job.choice || !known) {
        if (l->parked) /* nobody will ask for it */
            send_cancel(t, from, l->request.attempt);
        return;
    }
    if (l->reason == PROTO_REASON_UNKNOWN) {
        unknown(g, from, why, t);
        return;
    }
    if (from == g->prefill && !needs_prefill(g)) { /* it failed after the hand-over: no harm */
        if (l->parked)
            send_cancel(t, from, g->attempt);
        return;
    }
    if (g->state == GEN_PARKED && l->parked)
        return; /* said twice */
    switch ((enum proto_reason)l->reason) {
    case PROTO_REASON_INVALID:
        fail(g, STATUS_INVALID, why, t);
        return;
    case PROTO_REASON_TOO_LARGE:
        if (g->n_emitted) {
            leave_workers(g, t);
            finish(g, PROTO_FINISH_LENGTH, t);
        } else {
            fail(g, STATUS_RANGE, "The request does not fit the KV memory of the workers.", t);
        }
        return;
    case PROTO_REASON_AUTH:
        fail(g, STATUS_MISMATCH, "Workers and router do not share the cluster key.", t);
        return;
    default:
        break;
    }
    uint64_t bad = culprit(g, from, l);
    if (l->parked && g->state == GEN_PREFILL)
        park(g, bad, bad != 0, why, t);
    else
        retry(g, bad, bad != 0, why, t);
}

/* A worker died under it. True: this request has ended too many. */
static bool deadly(struct gen *g, bool alone)
{
    if (g->n_emitted >= g->deaths_at + PROGRESS) {
        g->deaths = 0;
        g->trial = false;
    }
    g->deaths++;
    g->deaths_at = g->n_emitted;
    if (g->deaths < DEATHS_MAX)
        return false;
    if (alone || g->trial)
        return true;
    g->trial = true;
    return false;
}

bool gen_on_trial(const struct gen *g)
{
    return g->trial && g->state != GEN_DONE && g->n_emitted < g->deaths_at + PROGRESS;
}

/* Before the prompt is computed, the decode worker has not even seen the request's KV. */
bool gen_under(const struct gen *g, uint64_t instance)
{
    return at_work(g) && instance != 0 &&
           ((instance == g->prefill && needs_prefill(g)) || (instance == g->decode && g->settled));
}

void gen_worker_lost(struct gen *g, uint64_t instance, enum gen_loss how, const char *why,
                     struct gen_turn *t)
{
    if (at_work(g) && g->move_to && instance == g->move_to) {
        drop_move(g, why, t);
        return;
    }
    if (instance != 0 && instance == g->replica)
        forget_replica(g, t->now_ms);
    if (!at_work(g) || instance == 0 || (instance != g->prefill && instance != g->decode))
        return;
    if (instance == g->prefill && !needs_prefill(g)) { /* it has done its part */
        g->prefill = 0;
        return;
    }
    if (how != GEN_LOSS_SUSPECT && gen_under(g, instance) &&
        deadly(g, how == GEN_LOSS_DEAD_ALONE)) {
        fail(g, STATUS_INTERNAL, "The request ended two workers and was given up.", t);
        return;
    }
    if (instance == g->decode && instance != g->prefill && g->state == GEN_PREFILL)
        park(g, instance, true, why, t);
    else
        retry(g, instance, true, why, t);
}

void gen_tick(struct gen *g, struct gen_turn *t)
{
    uint64_t now = t->now_ms;
    if (g->state == GEN_DONE)
        return;
    if (now >= g->deadline_ms)
        fail(g, STATUS_TIMEOUT, "The request took longer than request_timeout_ms.", t);
    else if (g->state == GEN_PARKED && now - g->since_ms >= g->limits->park_ms)
        retry(g, 0, true, "no decode worker took the KV in time", t);
    else if (at_work(g) && g->n_gap > 0 && now - g->gap_ms >= g->limits->stall_ms)
        retry(g, 0, false, "tokens are missing", t);
}

void gen_cancel(struct gen *g, struct gen_turn *t)
{
    if (g->state == GEN_DONE)
        return;
    leave_workers(g, t);
    gen_set_state(g, GEN_DONE, t->now_ms);
}

/* ---- what others want to know ------------------------------------------------------------------
 */

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t gen_wake_ms(const struct gen *g)
{
    const struct gen_limits *l = g->limits;
    uint64_t at = g->deadline_ms;
    if (g->state == GEN_WAITING)
        at = earlier(at, g->since_ms + earlier(l->worker_wait_ms, l->queue_timeout_ms));
    if (g->state == GEN_PARKED)
        at = earlier(at, g->since_ms + l->park_ms);
    if (at_work(g) && g->n_gap > 0)
        at = earlier(at, g->gap_ms + l->stall_ms);
    return at;
}

uint32_t gen_resume(const struct gen *g, uint64_t instance, struct proto_seq_pos *out)
{
    uint32_t n = 0;
    if (!at_work(g) || instance == 0)
        return 0;
    if (instance == g->decode || (instance == g->prefill && needs_prefill(g)))
        out[n++] = (struct proto_seq_pos){g->counter, g->attempt, g->job.choice, g->n_emitted};
    if (g->move_to && (instance == g->decode || instance == g->move_to))
        out[n++] = (struct proto_seq_pos){g->counter, g->move_attempt, g->job.choice, g->n_emitted};
    return n;
}

bool gen_ack(struct gen *g, const struct proto_token *tok, struct proto_seq_pos *out)
{
    bool stale = g->state == GEN_DONE || tok->attempt != g->attempt;
    if (!stale && g->n_emitted < g->acked + GEN_ACK_EVERY)
        return false;
    *out = (struct proto_seq_pos){tok->counter, tok->attempt, tok->choice,
                                  stale ? tok->position + 1 : g->n_emitted};
    if (!stale)
        g->acked = g->n_emitted;
    return true;
}

uint32_t gen_prompt_left(const struct gen *g)
{
    bool left =
        g->prefill != 0 && !g->settled && (g->state == GEN_PREFILL || g->state == GEN_PARKED);
    return left ? to_compute(g, g->prefill) : 0;
}
