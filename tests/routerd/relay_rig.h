/* relay_rig: scripted workers on loopback links for the router's relay: each fake worker accepts
 * the router's link and answers PREFILL, REDIRECT and MOVE as the running scenario says. Included
 * by one test program each. */
#ifndef BATON_TESTS_ROUTERD_RELAY_RIG_H
#define BATON_TESTS_ROUTERD_RELAY_RIG_H

#include "routerd/relay.h"
#include "common/base/clock.h"
#include "common/base/metrics.h"
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Not every program uses every helper. */
#define UNUSED __attribute__((unused))

#define FAKES 4 /* two prefill workers, two decode workers */

struct fake {
    struct link_listener *listener;
    struct link *link;
    struct proto_hello hello;
    struct link_options link_options;
    bool decode;
    int prefills, redirects, cancels, acks, resumes, moves; /* received */
    struct proto_seq_pos resumed[4];                        /* of the last RESUME */
    uint32_t n_resumed;
    uint32_t canceled_attempt; /* of the last CANCEL */
    bool busy, stuck;          /* heartbeats claim work; and no progress */
    bool draining;
    uint32_t credits, running;
    uint64_t progress, announced; /* announced: sum of all credits */
};

static struct fake fakes[FAKES];
static struct loop *loop;
static struct relay *relay;
static struct workers *workers;
static void (*scenario)(struct fake *f, const struct proto_prefill *m);
static UNUSED void (*on_redirect)(struct fake *f, const struct proto_redirect *m);
static UNUSED void (*on_resume)(struct fake *f);
static UNUSED void (*on_move)(struct fake *f, const struct proto_move *m);
static struct gen *gen;
static char seen[256];  /* tokens as the owner saw them: "10 11 12 stop" */
static int failed_with; /* status, or 0 */
static bool ended;

static UNUSED struct fake *fake_of(uint64_t instance)
{
    for (int i = 0; i < FAKES; i++) {
        if (fakes[i].hello.instance == instance)
            return &fakes[i];
    }
    return NULL;
}

static UNUSED bool refusing; /* the fakes accept no link */

static int fake_hello(void *arg, struct link *l, const struct proto_hello *h, char *why, size_t n)
{
    snprintf(why, n, "not now");
    return refusing ? STATUS_MISMATCH : STATUS_OK;
}

static void fake_up(void *arg, struct link *l)
{
    ((struct fake *)arg)->link = l;
}

static void fake_down(void *arg, struct link *l, int status, const char *why)
{
    struct fake *f = arg;
    if (f->link == l)
        f->link = NULL;
}

static void fake_beat(void *arg, struct link *l, struct proto_heartbeat *h)
{
    struct fake *f = arg;
    h->credits = f->credits;
    f->announced += f->credits;
    h->progress = f->stuck ? f->progress : f->progress++;
    h->kv_free = f->hello.kv_blocks;
    h->busy = f->busy;
    h->running = f->running;
    h->draining = f->draining;
}

static void fake_message(void *arg, struct link *l, const struct proto_msg *m)
{
    struct fake *f = arg;
    if (m->type == PROTO_CANCEL) {
        f->cancels++;
        f->canceled_attempt = m->cancel.request.attempt;
    }
    f->acks += m->type == PROTO_ACK;
    if (m->type == PROTO_REDIRECT) {
        f->redirects++;
        on_redirect(f, &m->redirect);
    }
    if (m->type == PROTO_MOVE) {
        f->moves++;
        on_move(f, &m->move);
    }
    if (m->type == PROTO_RESUME) {
        f->resumes++;
        f->n_resumed = m->resume.n;
        for (uint32_t i = 0; i < m->resume.n && i < 4; i++)
            f->resumed[i] = m->resume.list[i];
        if (on_resume)
            on_resume(f);
    }
    if (m->type == PROTO_PREFILL) {
        f->prefills++;
        scenario(f, &m->prefill);
    }
}

static void fake_nothing(void *arg, struct link *l, const struct proto_heartbeat *h)
{
}

static void fake_silent(void *arg, struct link *l, bool silent)
{
}

static const struct link_callbacks fake_cb = {.hello = fake_hello,
                                              .up = fake_up,
                                              .message = fake_message,
                                              .heartbeat = fake_nothing,
                                              .fill_heartbeat = fake_beat,
                                              .silent = fake_silent,
                                              .down = fake_down};

static void on_token(void *arg, struct gen *g, const struct proto_token *t)
{
    size_t n = strlen(seen);
    snprintf(seen + n, sizeof seen - n, "%d ", t->token);
}

static void on_finish(void *arg, struct gen *g, enum proto_finish f)
{
    strcat(seen, f == PROTO_FINISH_STOP ? "stop" : "length");
    ended = true;
    loop_stop(loop);
}

static void on_failed(void *arg, struct gen *g, int status, const char *why)
{
    failed_with = status;
    ended = true;
    loop_stop(loop);
}

static const struct gen_callbacks gen_cb = {
    .token = on_token, .finish = on_finish, .failed = on_failed};

static UNUSED void give_up(void *arg)
{
    loop_stop(loop);
}

/* Runs the loop until the gen ends, or ms have passed. */
static UNUSED void run(uint64_t ms)
{
    struct loop_timer *t;
    ck_assert_ok(loop_timer_create(loop, give_up, NULL, &t));
    loop_timer_start(t, ms, 0);
    loop_run(loop);
    loop_timer_free(t);
}

/* Both sides of every link have seen it come up. */
static UNUSED bool all_up(void)
{
    for (int i = 0; i < FAKES; i++) {
        if (fakes[i].listener && !fakes[i].link)
            return false;
    }
    for (uint32_t i = 0; i < workers_count(workers); i++) {
        if (!workers_at(workers, i)->up)
            return false;
    }
    return true;
}

/* Sends the tokens ids[0..n) of positions from..: all but the last without finish. */
static UNUSED void send(struct fake *f, uint64_t counter, uint32_t attempt, uint32_t from,
                        const int32_t *ids, uint32_t n, enum proto_finish finish)
{
    struct proto_token list[16] = {0};
    for (uint32_t i = 0; i < n; i++)
        list[i] = (struct proto_token){.counter = counter,
                                       .attempt = attempt,
                                       .position = from + i,
                                       .token = ids[i],
                                       .finish = i + 1 == n ? finish : PROTO_FINISH_NONE};
    struct proto_msg m = {.type = PROTO_TOKENS, .tokens = {list, n}};
    if (f->link)
        (void)!link_send(f->link, &m);
}

static UNUSED uint64_t relink_ms = 400;
static const int32_t ids[] = {10, 11, 12, 13, 14, 15, 16, 17};

static UNUSED void start_workers(int n_prefill, int n_decode, uint64_t stall_ms,
                                 struct relay_options ro)
{
    char prefill[100] = "", decode[100] = "", err[200] = "";
    struct link_options lo = {.heartbeat_ms = 20,
                              .stall_ms = stall_ms,
                              .dead_ms = 10000,
                              .connect_timeout_ms = 1000,
                              .reconnect_min_ms = 5,
                              .reconnect_max_ms = 20,
                              .queue_max = 1 << 20};
    ck_assert_ok(loop_create(&loop));
    for (int i = 0; i < FAKES; i++) {
        struct fake *f = &fakes[i];
        *f = (struct fake){.decode = i >= 2, .credits = 8, .link_options = lo};
        f->hello =
            (struct proto_hello){.features = PROTO_FEATURE_MOVE | PROTO_FEATURE_COPY,
                                 .version_min = 1,
                                 .version_max = 1,
                                 .instance = (uint64_t)i + 1,
                                 .role = f->decode ? PROTO_DECODE_WORKER : PROTO_PREFILL_WORKER,
                                 .name = {"fake", 4},
                                 .model_name = {"m", 1},
                                 .kv_layout = {"kv", 2},
                                 .numerics = {"n", 1},
                                 .data_address = {"addr", 4},
                                 .kv_blocks = 64,
                                 .kv_block_size = 16,
                                 .n_layers = 2,
                                 .context = 1024,
                                 .vocab = 100,
                                 .max_batch = 8,
                                 .prefill_chunk = 64};
        int index = f->decode ? i - 2 : i;
        if (index >= (f->decode ? n_decode : n_prefill))
            continue;
        ck_assert_msg(link_listen(loop, "127.0.0.1:0", &f->hello, &lo, &fake_cb, f, &f->listener,
                                  err, sizeof err) == 0,
                      "%s", err);
        char *list = f->decode ? decode : prefill;
        if (list[0])
            strcat(list, ",");
        strcat(list, link_listener_address(f->listener));
    }
    struct workers_options wo = {.prefill = prefill,
                                 .decode = decode,
                                 .self = {.version_min = 1,
                                          .version_max = 1,
                                          .instance = 99,
                                          .role = PROTO_ROUTER,
                                          .name = {"router", 6}},
                                 .link = lo,
                                 .relink_ms = relink_ms,
                                 .pools = &(struct workers_pool){.name = "m", .vocab = 50},
                                 .n_pools = 1};
    ro.instance = 99;
    ro.stall_ms = stall_ms;
    ck_assert_ok(relay_create(loop, &ro, &relay));
    ck_assert_msg(
        workers_create(loop, &wo, &relay_workers_callbacks, relay, &workers, err, sizeof err) == 0,
        "%s", err);
    ck_assert_ok(relay_set_workers(relay, workers));
}

static const struct relay_options patient = {
    .request_timeout_ms = 20000, .worker_wait_ms = 5000, .queue_timeout_ms = 5000, .queue_max = 10};

static UNUSED void setup(void)
{
    start_workers(2, 2, 300, patient);
}

static UNUSED void teardown(void)
{
    if (gen)
        relay_free(gen);
    gen = NULL;
    on_resume = NULL;
    workers_destroy(workers);
    relay_destroy(relay);
    for (int i = 0; i < FAKES; i++) {
        if (fakes[i].link)
            link_close(fakes[i].link);
        if (fakes[i].listener)
            link_listener_close(fakes[i].listener);
    }
    loop_destroy(loop);
}

/* Starts one sequence of a 40-token prompt and runs the loop. */
static UNUSED void go(void (*play)(struct fake *, const struct proto_prefill *), uint64_t ms)
{
    static int32_t prompt[40];
    struct proto_job job = {.prompt = {prompt, 40}, .max_tokens = 8, .n_ids = 50};
    scenario = play;
    seen[0] = 0;
    failed_with = 0;
    ended = false;
    while (!all_up())
        run(2);
    ck_assert_ok(relay_start(relay, 0, &job, &gen_cb, NULL, &gen));
    run(ms);
}

#endif
