/* relay: a small router for tests, straight on link.h and proto.h, and workers in child processes.
 *
 * The router takes tokens as R3 says: the current attempt, the next position, equal duplicates
 * dropped; a duplicate with another id fails the test. What a worker should have said is computed
 * by an engine of the test's own, alone and in one chunk. Included by one test program each. */
#ifndef BATON_TESTS_WORKER_RELAY_H
#define BATON_TESTS_WORKER_RELAY_H

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/engine/engine.h"
#include "common/net/link.h"
#include "common/text/budget.h"
#include "common/worker/worker.h"
#include "tests/harness.h"

/* Not every program uses every helper. */
#define UNUSED __attribute__((unused))

#define RELAY_MODEL    "tiny/llama-q8_0.gguf"
#define RELAY_DEADLINE 15000
#define RELAY_WORKERS  6
#define RELAY_REQUESTS 64
#define RELAY_TOKENS   2048

/* One answer as the router sees it. */
struct answer {
    bool used;
    uint64_t counter;
    uint32_t attempt;
    int32_t ids[RELAY_TOKENS];
    float logprobs[RELAY_TOKENS];
    uint32_t n;
    uint32_t finish;
    uint32_t duplicates;
    uint32_t cached_tokens;
    uint32_t lost; /* reason, 0: not */
    bool parked;
    uint32_t n_scores;
    float scores[RELAY_TOKENS];
    /* On the move: tokens of the target under move_attempt end the old attempt. */
    uint32_t last_attempt, move_attempt, moves, move_lost; /* move_lost: reason */
    struct relay_worker *move_from, *move_to;
    uint32_t copy_attempt, copy_lost; /* its replica; copy_lost: reason */
};

struct relay_worker {
    pid_t pid;
    char address[96], http[96];
    struct link *link;
    bool up, seen_heartbeat, draining;
    bool deaf; /* its tokens go nowhere, as if its link had broken */
    struct proto_hello hello;
    char data_address[8192], kv_layout[128];
    struct proto_heartbeat load;
    uint32_t replica_blocks; /* as its metrics say */
};

struct relay {
    struct loop *loop;
    struct loop_timer *poll;
    uint64_t instance;
    struct mac_key key;
    struct relay_worker workers[RELAY_WORKERS];
    int n_workers;
    struct answer answers[RELAY_REQUESTS];
    uint64_t next;
    bool mute_acks;
    const bool *condition;
    bool (*check)(struct relay *r, void *arg);
    void *check_arg;
    uint64_t limit;
    bool timed_out;
    uint32_t frames;
};

/* Workers. */

static UNUSED uint32_t relay_whole_chunk(const struct worker_settings *s, uint32_t n_running)
{
    return (uint32_t)s->prefill_chunk;
}
static UNUSED void relay_announce(void *arg, const char *listen, const char *http)
{
    char line[200];
    int n = snprintf(line, sizeof line, "%s %s\n", listen, http);
    if (write(*(int *)arg, line, (size_t)n) != n)
        _exit(9);
}

/* Forks a worker. extra: "key=value" settings, NULL-terminated, or NULL. */
static UNUSED struct relay_worker *relay_spawn(struct relay *r, enum proto_role role,
                                               const char *const *extra)
{
    static const struct worker_policy policies[] = {
        {"prefilld", PROTO_PREFILL_WORKER, relay_whole_chunk},
        {"decoded", PROTO_DECODE_WORKER, relay_whole_chunk}};
    const struct worker_policy *policy = &policies[role == PROTO_DECODE_WORKER];
    ck_assert_int_lt(r->n_workers, RELAY_WORKERS);
    struct relay_worker *w = &r->workers[r->n_workers++];
    int fds[2];
    ck_assert_int_eq(pipe(fds), 0);
    fflush(NULL);
    w->pid = fork();
    ck_assert_int_ge(w->pid, 0);
    if (w->pid == 0) {
        struct worker_settings s = {0};
        char name[32], model[512], *argv[48] = {name};
        int argc = 1;
        snprintf(name, sizeof name, "%s-%d", policy->program, r->n_workers);
        snprintf(model, sizeof model, "--model=%s", test_data(RELAY_MODEL));
        argv[argc++] = model;
        char level[32];
        snprintf(level, sizeof level, "--log_level=%s",
                 getenv("RELAY_LOG") ? getenv("RELAY_LOG") : "error");
        const char *const defaults[] = {level,
                                        "--kv_blocks=200",
                                        "--heartbeat_ms=20",
                                        "--prefill_chunk=64",
                                        "--lease_ms=5000",
                                        "--drain_ms=300"};
        char text[32][128];
        int n = 0;
        for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++) {
            size_t key = strcspn(defaults[i], "=");
            bool given = false;
            for (const char *const *e = extra; e && *e; e++)
                given |= strncmp(*e, defaults[i] + 2, key - 2) == 0;
            if (!given)
                argv[argc++] = (char *)(uintptr_t)defaults[i];
        }
        for (const char *const *e = extra; e && *e; e++) {
            snprintf(text[n], sizeof text[n], "--%s", *e);
            argv[argc++] = text[n++];
        }
        close(fds[0]);
        if (config_load(policy->program, worker_keys, worker_keys_n, &s, argc, argv) != CONFIG_RUN)
            _exit(8);
        int rc = worker_run(policy, &s, relay_announce, &fds[1]);
        config_fini(worker_keys, worker_keys_n, &s);
        close(fds[1]);
        exit(rc == STATUS_OK ? 0 : 1);
    }
    close(fds[1]);
    char line[200] = "";
    size_t n = 0;
    while (n < sizeof line - 1 && read(fds[0], line + n, 1) == 1 && line[n] != '\n')
        n++;
    close(fds[0]);
    ck_assert_msg(sscanf(line, "%95s %95s", w->address, w->http) == 2, "worker did not start");
    return w;
}

/* The router. */

static UNUSED struct answer *relay_answer(struct relay *r, uint64_t counter)
{
    for (int i = 0; i < RELAY_REQUESTS; i++) {
        if (r->answers[i].used && r->answers[i].counter == counter)
            return &r->answers[i];
    }
    return NULL;
}

static UNUSED void relay_send(struct relay_worker *w, const struct proto_msg *m)
{
    if (w->up)
        ck_assert_ok(link_send(w->link, m));
}

static UNUSED void relay_cancel_attempt(struct relay *r, const struct answer *a, uint32_t attempt,
                                        struct relay_worker *w)
{
    struct proto_msg m = {.type = PROTO_CANCEL,
                          .cancel = {.request = {r->instance, a->counter, attempt}}};
    relay_send(w, &m);
}

static UNUSED void relay_on_tokens(struct relay *r, struct relay_worker *w,
                                   const struct proto_tokens *m)
{
    struct proto_seq_pos acks[512];
    uint32_t n = 0;
    r->frames++;
    if (w->deaf)
        return;
    for (uint32_t i = 0; i < m->n; i++) {
        const struct proto_token *t = &m->list[i];
        struct answer *a = relay_answer(r, t->counter);
        if (a && a->move_attempt && w == a->move_to && t->attempt == a->move_attempt) {
            relay_cancel_attempt(r, a, a->attempt, a->move_from);
            a->attempt = a->move_attempt;
            a->move_attempt = 0;
            a->moves++;
        }
        if (!a || t->attempt != a->attempt)
            continue;
        if (t->position < a->n) {
            ck_assert_msg(a->ids[t->position] == t->token, "position %u: %d, then %d", t->position,
                          a->ids[t->position], t->token);
            a->duplicates++;
        } else {
            ck_assert_uint_eq(t->position, a->n);
            ck_assert_uint_eq(a->finish, PROTO_FINISH_NONE);
            a->ids[a->n] = t->token;
            a->logprobs[a->n++] = t->logprob;
            a->cached_tokens += t->cached_tokens;
            a->finish = t->finish;
        }
        if (n < 512)
            acks[n++] = (struct proto_seq_pos){t->counter, t->attempt, t->choice, t->position + 1};
    }
    struct proto_msg ack = {.type = PROTO_ACK, .ack = {.list = acks, .n = n}};
    if (!r->mute_acks)
        relay_send(w, &ack);
}

static UNUSED void relay_on_metrics(struct relay_worker *w, const struct proto_bytes *page)
{
    static const char name[] = "\nbaton_replica_blocks{";
    const char *at = memmem(page->p, page->n, name, sizeof name - 1);
    const char *end =
        at ? memchr(at + 1, '\n', (size_t)((const char *)page->p + page->n - at - 1)) : NULL;
    const char *value = end ? memrchr(at, ' ', (size_t)(end - at)) : NULL;
    if (value)
        w->replica_blocks = (uint32_t)strtoul(value, NULL, 10);
}

static UNUSED void relay_on_message(void *arg, struct link *l, const struct proto_msg *m)
{
    struct relay *r = arg;
    struct relay_worker *w = link_data(l);
    struct answer *a;
    switch (m->type) {
    case PROTO_TOKENS:
        relay_on_tokens(r, w, &m->tokens);
        break;
    case PROTO_LOST:
        a = relay_answer(r, m->lost.request.counter);
        if (a && a->move_attempt && a->move_attempt == m->lost.request.attempt) {
            a->move_lost = m->lost.reason;
            relay_cancel_attempt(r, a, a->move_attempt, a->move_from);
            relay_cancel_attempt(r, a, a->move_attempt, a->move_to);
            a->move_attempt = 0;
        } else if (a && a->copy_attempt && a->copy_attempt == m->lost.request.attempt) {
            a->copy_lost = m->lost.reason;
        } else if (a && a->attempt == m->lost.request.attempt) {
            a->lost = m->lost.reason;
            a->parked = m->lost.parked;
        }
        break;
    case PROTO_SCORES:
        a = relay_answer(r, m->scores.request.counter);
        ck_assert_ptr_nonnull(a);
        a->n_scores = m->scores.n;
        for (uint32_t i = 0; i < m->scores.n; i++)
            a->scores[i] = m->scores.list[i].logprob;
        break;
    case PROTO_DRAIN:
        w->draining = true;
        break;
    case PROTO_METRICS:
        relay_on_metrics(w, &m->metrics.page);
        break;
    default:
        break;
    }
}

static UNUSED int relay_on_hello(void *arg, struct link *l, const struct proto_hello *h, char *why,
                                 size_t n)
{
    struct relay_worker *w = link_data(l);
    w->hello = *h;
    ck_assert_uint_le(h->data_address.n, sizeof w->data_address);
    memcpy(w->data_address, h->data_address.p, h->data_address.n);
    w->hello.data_address.p = w->data_address;
    return STATUS_OK;
}

static UNUSED void relay_on_up(void *arg, struct link *l)
{
    struct relay_worker *w = link_data(l);
    w->up = true;
}

static UNUSED void relay_on_down(void *arg, struct link *l, int status, const char *why)
{
    struct relay_worker *w = link_data(l);
    w->up = w->seen_heartbeat = false;
}

static UNUSED void relay_on_heartbeat(void *arg, struct link *l, const struct proto_heartbeat *h)
{
    struct relay_worker *w = link_data(l);
    w->load = *h;
    w->seen_heartbeat = true;
}

static UNUSED void relay_fill(void *arg, struct link *l, struct proto_heartbeat *h)
{
}
static UNUSED void relay_silent(void *arg, struct link *l, bool silent)
{
}

static UNUSED void relay_connect(struct relay *r, struct relay_worker *w)
{
    static const struct link_callbacks cb = {.hello = relay_on_hello,
                                             .up = relay_on_up,
                                             .message = relay_on_message,
                                             .heartbeat = relay_on_heartbeat,
                                             .fill_heartbeat = relay_fill,
                                             .silent = relay_silent,
                                             .down = relay_on_down};
    struct proto_hello self = {.version_min = PROTO_VERSION_MIN,
                               .version_max = PROTO_VERSION,
                               .instance = r->instance,
                               .role = PROTO_ROUTER,
                               .name = {"test", 4}};
    struct link_options o = {.heartbeat_ms = 50,
                             .stall_ms = 2000,
                             .dead_ms = 10000,
                             .connect_timeout_ms = 2000,
                             .reconnect_min_ms = 20,
                             .reconnect_max_ms = 100,
                             .queue_max = 1 << 24,
                             .key = r->key};
    char err[256] = "";
    ck_assert_msg(link_connect(r->loop, w->address, &self, &o, &cb, r, &w->link, err, sizeof err) ==
                      STATUS_OK,
                  "%s", err);
    link_set_data(w->link, w);
}

static UNUSED void relay_disconnect(struct relay_worker *w)
{
    if (w->link)
        link_close(w->link);
    w->link = NULL;
    w->up = w->seen_heartbeat = false;
}

static UNUSED void relay_poll(void *arg)
{
    struct relay *r = arg;
    r->timed_out = clock_ms() > r->limit;
    if (r->timed_out || r->check(r, r->check_arg))
        loop_stop(r->loop);
}

/* Runs the router's loop until check says so; false after the deadline. */
static UNUSED bool relay_until(struct relay *r, bool (*check)(struct relay *r, void *arg),
                               void *arg)
{
    r->check = check;
    r->check_arg = arg;
    r->limit = clock_ms() + RELAY_DEADLINE;
    r->timed_out = false;
    if (check(r, arg))
        return true;
    loop_timer_start(r->poll, 1, 1);
    loop_run(r->loop);
    loop_timer_stop(r->poll);
    return !r->timed_out;
}

static UNUSED bool relay_all_up(struct relay *r, void *arg)
{
    for (int i = 0; i < r->n_workers; i++) {
        if (r->workers[i].link && !(r->workers[i].up && r->workers[i].seen_heartbeat))
            return false;
    }
    return true;
}

static UNUSED void relay_connect_all(struct relay *r)
{
    for (int i = 0; i < r->n_workers; i++) {
        if (!r->workers[i].link)
            relay_connect(r, &r->workers[i]);
    }
    ck_assert_msg(relay_until(r, relay_all_up, NULL), "the workers are not all up");
}

static UNUSED struct relay *relay_create(void)
{
    struct relay *r = calloc(1, sizeof *r);
    r->instance = rng_u64() | 1;
    log_set_level(LOG_ERROR);
    return r;
}

/* After the workers were forked: a loop does not survive a fork. */
static UNUSED void relay_open(struct relay *r)
{
    ck_assert_ok(loop_create(&r->loop));
    ck_assert_ok(loop_timer_create(r->loop, relay_poll, r, &r->poll));
    relay_connect_all(r);
}

static UNUSED int relay_reap(struct relay_worker *w)
{
    int status = -1;
    ck_assert_int_eq(waitpid(w->pid, &status, 0), w->pid);
    w->pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* Ends the workers with SIGTERM and wants exit status 0 from each that is left. */
static UNUSED void relay_close(struct relay *r)
{
    for (int i = 0; i < r->n_workers; i++)
        relay_disconnect(&r->workers[i]);
    loop_timer_free(r->poll);
    loop_destroy(r->loop);
    for (int i = 0; i < r->n_workers; i++) {
        if (r->workers[i].pid == 0)
            continue;
        kill(r->workers[i].pid, SIGTERM);
        ck_assert_int_eq(relay_reap(&r->workers[i]), 0);
    }
    free(r);
}

/* Requests. */

struct question {
    const int32_t *prompt;
    uint32_t n_prompt;
    uint32_t max_tokens;
    float temperature;
    uint64_t seed;
    bool logprobs, score, keep_going; /* keep_going: ignore_eos */
    const char *salt;
    uint32_t priority;
    uint32_t think_limit; /* a budget of thinking of so many tokens, less 1, begun in the prompt */
};
#define RELAY_CLOSE "</think>\n"

/* Sends the job of an answer (whose tokens so far are what was emitted) as its present attempt. */
static UNUSED void relay_submit(struct relay *r, const struct answer *a, const struct question *q,
                                struct relay_worker *p, const struct relay_worker *d)
{
    static const int32_t stops[] = {0, 2};
    const char *salt = q->salt ? q->salt : "";
    struct proto_msg m = {
        .type = PROTO_PREFILL,
        .prefill = {
            .job = {.request = {r->instance, a->counter, a->attempt},
                    .prompt = {q->prompt, q->n_prompt},
                    .emitted = {a->ids, a->n},
                    .sampling = {.temperature = q->temperature, .top_p = 1, .seed = q->seed},
                    .max_tokens = q->max_tokens,
                    .stop_ids = {stops, 2},
                    .ignore_eos = q->keep_going,
                    .logprobs = q->logprobs,
                    .score_prompt = q->score,
                    .n_ids = 301,
                    .salt = {salt, strlen(salt)},
                    .priority = q->priority,
                    .think_limit = q->think_limit,
                    .think_start = REASONING_OPEN,
                    .think_close = {RELAY_CLOSE, q->think_limit ? strlen(RELAY_CLOSE) : 0},
                    .think_force = {RELAY_CLOSE, q->think_limit ? strlen(RELAY_CLOSE) : 0}},
            .decode = {.instance = d->hello.instance, .data_address = d->hello.data_address}}};
    mac_reserve(&r->key, r->instance, a->counter, a->attempt, p->hello.instance, d->hello.instance,
                m.prefill.decode.mac);
    relay_send(p, &m);
}

static UNUSED struct answer *relay_ask(struct relay *r, const struct question *q,
                                       struct relay_worker *p, const struct relay_worker *d)
{
    ck_assert_uint_lt(r->next, RELAY_REQUESTS);
    struct answer *a = &r->answers[r->next];
    *a = (struct answer){.used = true, .counter = ++r->next};
    relay_submit(r, a, q, p, d);
    return a;
}

static UNUSED void relay_cancel(struct relay *r, const struct answer *a, struct relay_worker *w)
{
    relay_cancel_attempt(r, a, a->attempt, w);
}

/* Moves an answer that runs on `from`. */
static UNUSED void relay_move(struct relay *r, struct answer *a, struct relay_worker *from,
                              struct relay_worker *to)
{
    a->last_attempt = a->last_attempt > a->attempt ? a->last_attempt : a->attempt;
    a->move_attempt = ++a->last_attempt;
    a->move_from = from;
    a->move_to = to;
    a->move_lost = 0;
    struct proto_msg m = {.type = PROTO_MOVE,
                          .move = {.request = {r->instance, a->counter, a->move_attempt},
                                   .old_attempt = a->attempt,
                                   .decode = {.instance = to->hello.instance,
                                              .data_address = to->hello.data_address}}};
    mac_reserve(&r->key, r->instance, a->counter, a->move_attempt, from->hello.instance,
                to->hello.instance, m.move.decode.mac);
    relay_send(from, &m);
}

static UNUSED bool relay_finished(struct relay *r, void *arg)
{
    struct answer *a = arg;
    return a->finish != PROTO_FINISH_NONE || a->lost;
}

static UNUSED bool relay_all_finished(struct relay *r, void *arg)
{
    for (int i = 0; i < RELAY_REQUESTS; i++) {
        if (r->answers[i].used && !relay_finished(r, &r->answers[i]))
            return false;
    }
    return true;
}

/* Every worker that is up reports this many free blocks and no work. */
static UNUSED bool relay_all_free(struct relay *r, void *arg)
{
    for (int i = 0; i < r->n_workers; i++) {
        const struct relay_worker *w = &r->workers[i];
        if (w->up && (w->load.kv_free != w->hello.kv_blocks || w->load.running || w->load.waiting))
            return false;
    }
    return true;
}

/* What one engine alone says. */

struct oracle {
    struct engine *e;
    struct tokenizer *tokenizer;
    void *kv;
    size_t kv_bytes;
    uint32_t *blocks;
    uint32_t context;
};

static UNUSED void oracle_open(struct oracle *o)
{
    struct model *m;
    struct engine_options eo = {.backend = "auto",
                                .isa = "auto",
                                .weights = "auto",
                                .threads = 1,
                                .max_batch = 4,
                                .prefill_chunk = 2048,
                                .kv_block_size = 16,
                                .graphs = true};
    char err[256] = "";
    ck_assert_msg(model_open(test_data(RELAY_MODEL), 0, &m, err, sizeof err) == 0, "%s", err);
    ck_assert_msg(engine_create(m, &eo, &o->e, err, sizeof err) == 0, "%s", err);
    ck_assert_msg(model_tokenizer(m, &o->tokenizer, err, sizeof err) == 0, "%s", err);
    model_close(m);
    const struct engine_info *info = engine_info(o->e);
    o->context = info->context;
    uint32_t n = info->context / 16 + 2;
    o->kv_bytes = info->kv_block_bytes * info->n_layers * n;
    o->kv = mem_huge(o->kv_bytes);
    o->blocks = calloc(n, sizeof *o->blocks);
    for (uint32_t i = 0; i < n - 1; i++)
        o->blocks[i] = i + 1;
    ck_assert_ok(engine_bind_kv(o->e, o->kv, n));
}

static UNUSED void oracle_close(struct oracle *o)
{
    engine_destroy(o->e);
    tokenizer_destroy(o->tokenizer);
    mem_huge_free(o->kv, o->kv_bytes);
    free(o->blocks);
}

/* The whole answer; returns its length. */
static UNUSED uint32_t oracle_answer(struct oracle *o, const struct question *q, int32_t *out,
                                     float *logprobs)
{
    static const int32_t stops[] = {0, 2};
    int32_t *tokens = calloc(q->n_prompt + q->max_tokens + 1, sizeof *tokens);
    memcpy(tokens, q->prompt, q->n_prompt * sizeof *tokens);
    struct sample_params params = {.temperature = q->temperature,
                                   .top_p = 1,
                                   .seed = q->seed,
                                   .want_logprob = q->logprobs,
                                   .n_ids = 301,
                                   .banned = q->keep_going ? stops : NULL,
                                   .n_banned = q->keep_going ? 2 : 0};
    uint32_t done = 0, total = q->n_prompt, n = 0, mask[64];
    struct budget *budget = NULL;
    struct budget_spec spec = {.limit = q->think_limit - 1,
                               .start = REASONING_OPEN,
                               .close = RELAY_CLOSE,
                               .force = RELAY_CLOSE};
    if (q->think_limit)
        ck_assert_ok(budget_create(o->tokenizer, &spec, &budget));
    while (n < q->max_tokens && total <= o->context) {
        int32_t forced = budget ? budget_next(budget, 0) : BUDGET_ANY;
        memset(mask, 0, sizeof mask);
        if (forced >= 0)
            mask[forced / 32] = 1u << forced % 32;
        params.allowed = forced >= 0 ? mask : NULL;
        struct engine_row row = {.tokens = tokens + done,
                                 .n_tokens = total - done,
                                 .position = done,
                                 .blocks = o->blocks,
                                 .sampling = &params,
                                 .next_token = -1};
        struct engine_step step = {.rows = &row, .n_rows = 1};
        ck_assert_ok(engine_step(o->e, &step));
        done = total;
        tokens[total++] = row.result.token;
        if (budget)
            ck_assert_ok(budget_feed(budget, row.result.token));
        logprobs[n] = q->logprobs ? row.result.logprob : 0;
        out[n++] = row.result.token;
        if (!q->keep_going && (row.result.token == 0 || row.result.token == 2))
            break;
        if (total >= o->context)
            break;
    }
    budget_destroy(budget);
    free(tokens);
    return n;
}

static UNUSED void oracle_check(struct oracle *o, const struct question *q, const struct answer *a)
{
    int32_t ids[RELAY_TOKENS];
    float logprobs[RELAY_TOKENS];
    uint32_t n = oracle_answer(o, q, ids, logprobs);
    ck_assert_msg(a->lost == 0, "lost: %s", proto_reason_name(a->lost));
    ck_assert_uint_eq(a->n, n);
    for (uint32_t i = 0; i < n; i++) {
        ck_assert_msg(a->ids[i] == ids[i], "token %u of %u: %d, alone %d", i, n, a->ids[i], ids[i]);
        ck_assert_msg(a->logprobs[i] == logprobs[i], "logprob %u: %g, alone %g", i, a->logprobs[i],
                      logprobs[i]);
    }
}

/* A prompt of n ids that depends on which. */
static UNUSED void relay_prompt(int32_t *out, uint32_t n, uint32_t which)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = 3 + (int32_t)((i * 2654435761u + which * 40503u + i * i * 97u) >> 7) % 280;
    for (uint32_t i = 0; i < n; i++)
        out[i] = out[i] < 3 ? 3 : out[i];
}

/* A case of its own for each, so that CK_RUN_CASE=name runs one. */
#define ADD(test)                                                                                  \
    do {                                                                                           \
        TCase *t = tcase_create(#test);                                                            \
        tcase_set_timeout(t, 60);                                                                  \
        tcase_add_test(t, test);                                                                   \
        suite_add_tcase(s, t);                                                                     \
    } while (0)

#define UNTIL(relay, check, arg) ck_assert_msg(relay_until(relay, check, arg), "in vain: " #check)
#define SETTINGS(...)                                                                              \
    (const char *const[])                                                                          \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }

#endif
