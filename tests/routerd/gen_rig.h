/* gen_rig: one sequence of routerd/gen under a virtual clock, two prefill and two decode workers as
 * the router sees them, and what the machine wants done after each event, as a line of text.
 * Included by one test program each. */
#ifndef BATON_TESTS_ROUTERD_GEN_RIG_H
#define BATON_TESTS_ROUTERD_GEN_RIG_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "routerd/gen.h"
#include "tests/harness.h"

/* Not every program uses every helper. */
#define UNUSED __attribute__((unused))
enum { P1 = 1, P2 = 2, D1 = 11, D2 = 12 };

static const struct gen_limits limits = {.request_timeout_ms = 100000,
                                         .worker_wait_ms = 3000,
                                         .queue_timeout_ms = 5000,
                                         .stall_ms = 200,
                                         .park_ms = 1000,
                                         .replica_tokens = 32};
static struct gen g;
static struct gen_turn t;
static struct pick_worker view[4];
static struct gen_budget budget;
static uint64_t now;
static UNUSED uint64_t rnd; /* given to the machine as randomness */
static int32_t prompt[40];

static struct gen_turn *turn(void)
{
    gen_turn_init(&t, now, rnd);
    return &t;
}

/* What the last event led to. */
static UNUSED const char *done(void)
{
    static char text[512];
    size_t n = 0;
    text[0] = 0;
    for (uint32_t i = 0; i < t.n; i++) {
        const struct gen_action *a = &t.actions[i];
        const char *gap = i ? ", " : "";
        size_t room = sizeof text - n;
        switch (a->type) {
        case GEN_SEND_PREFILL:
            n += (size_t)snprintf(text + n, room, "%sprefill.%u %d>%d", gap, a->attempt,
                                  (int)a->worker, (int)a->decode);
            break;
        case GEN_SEND_REDIRECT:
            n += (size_t)snprintf(text + n, room, "%sredirect.%u-%u %d>%d", gap, a->old_attempt,
                                  a->attempt, (int)a->worker, (int)a->decode);
            break;
        case GEN_SEND_MOVE:
            n += (size_t)snprintf(text + n, room, "%smove.%u-%u %d>%d", gap, a->old_attempt,
                                  a->attempt, (int)a->worker, (int)a->decode);
            break;
        case GEN_SEND_COPY:
            n += (size_t)snprintf(text + n, room, "%scopy.%u-%u %d>%d", gap, a->old_attempt,
                                  a->attempt, (int)a->worker, (int)a->decode);
            break;
        case GEN_SEND_CANCEL:
            n +=
                (size_t)snprintf(text + n, room, "%scancel.%u %d", gap, a->attempt, (int)a->worker);
            break;
        case GEN_GIVE_SCORES:
            n += (size_t)snprintf(text + n, room, "%sscores", gap);
            break;
        case GEN_GIVE_TOKEN:
            n +=
                (size_t)snprintf(text + n, room, "%s%d@%u", gap, a->token.token, a->token.position);
            break;
        case GEN_GIVE_FINISH:
            n += (size_t)snprintf(text + n, room, "%sfinish %d", gap, (int)a->finish);
            break;
        case GEN_GIVE_FAILED:
            n += (size_t)snprintf(text + n, room, "%sfailed %s", gap, status_name(a->status));
            break;
        }
    }
    return text;
}
#define DONE(text)           ck_assert_str_eq(done(), text)
#define IS(state_, attempt_) ck_assert(g.state == (state_) && g.attempt == (attempt_))

static UNUSED void open_job(const struct proto_job *more)
{
    struct proto_job job = more ? *more : (struct proto_job){0};
    job.prompt = (struct proto_ids){prompt, 40};
    job.max_tokens = 100;
    gen_init(&g, &limits, 7, &job, now);
}

static UNUSED void setup(void)
{
    now = 1000000;
    rnd = 0;
    log_set_level(LOG_ERROR);
    for (int i = 0; i < 4; i++)
        view[i] =
            (struct pick_worker){.alive = true,
                                 .usable = true,
                                 .decode = i >= 2,
                                 .instance = i < 2 ? (uint64_t)(P1 + i) : (uint64_t)(D1 + i - 2),
                                 .numerics = 5,
                                 .credits = 8,
                                 .kv_free = 64,
                                 .kv_blocks = 64,
                                 .kv_block_size = 16,
                                 .context = 1000};
    gen_budget_init(&budget, now);
    open_job(NULL);
}

static UNUSED void teardown(void)
{
    gen_fini(&g);
}

static UNUSED void place(void)
{
    struct pick_worker v[4]; /* as before: the loads are the test's */
    memcpy(v, view, sizeof v);
    gen_place(&g, v, 4, &budget, turn());
}
static UNUSED void token(uint64_t from, uint32_t attempt, uint32_t position, enum proto_finish f)
{
    struct proto_token tok = {.counter = 7,
                              .attempt = attempt,
                              .position = position,
                              .token = 100 + (int32_t)position,
                              .finish = f};
    gen_token(&g, from, &tok, turn());
}
static UNUSED void lost(uint64_t from, uint32_t attempt, enum proto_reason reason, bool parked)
{
    struct proto_lost l = {
        .request = {99, 7, attempt}, .reason = reason, .parked = parked, .detail = {"x", 1}};
    gen_lost(&g, from, "w", &l, turn());
}
static UNUSED void worker_lost(uint64_t instance, enum gen_loss how)
{
    gen_worker_lost(&g, instance, how, "lost", turn());
}
static UNUSED void tick(uint64_t ms)
{
    now += ms;
    gen_tick(&g, turn());
}
/* Placed on P1 and D1, and decoding after n tokens. */
static UNUSED void decoding(uint32_t n)
{
    place();
    DONE("prefill.0 1>11");
    token(P1, 0, 0, 0);
    DONE("100@0");
    for (uint32_t i = 0; i < n; i++)
        token(D1, 0, i, 0);
    IS(GEN_DECODE, 0);
}

#endif
