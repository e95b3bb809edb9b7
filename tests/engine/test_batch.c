/* The batching policy: what one plan looks like, and fairness over simulated steps. */
#include <string.h>

#include "common/base/rng.h"
#include "common/engine/batch.h"
#include "tests/harness.h"

#define MAX 64

static struct batch_prompt prompts[MAX];
static struct batch_running running[MAX];
static struct batch_plan plan;
static struct batch_state state;
static uint64_t turn;

static void setup(void)
{
    memset(prompts, 0, sizeof prompts);
    memset(running, 0, sizeof running);
    state = (struct batch_state){.prompts = prompts,
                                 .running = running,
                                 .block_size = 16,
                                 .max_rows = 8,
                                 .max_tokens = 520,
                                 .prompt_tokens = 512};
    ck_assert_ok(batch_plan_init(&plan, MAX));
}

static void teardown(void)
{
    batch_plan_fini(&plan);
}

static void prompt_add(uint64_t arrival, uint32_t length)
{
    prompts[state.n_prompts++] = (struct batch_prompt){.arrival = arrival, .length = length};
}

static uint32_t share_of(uint32_t index)
{
    for (uint32_t i = 0; i < plan.n_prompts; i++)
        if (plan.prompts[i].index == index)
            return plan.prompts[i].n_tokens;
    return 0;
}

/* What every plan must keep, whatever the state. */
static void check_plan(void)
{
    uint32_t tokens = plan.n_running, prompt_tokens = 0;
    for (uint32_t i = 0; i < plan.n_running; i++) {
        ck_assert_uint_lt(plan.running[i], state.n_running);
        for (uint32_t j = 0; j < i; j++)
            ck_assert_uint_ne(plan.running[j], plan.running[i]);
    }
    for (uint32_t i = 0; i < plan.n_prompts; i++) {
        const struct batch_share *a = &plan.prompts[i];
        ck_assert_uint_lt(a->index, state.n_prompts);
        ck_assert_uint_gt(a->n_tokens, 0);
        for (uint32_t j = 0; j < i; j++)
            ck_assert_uint_ne(plan.prompts[j].index, a->index);
        const struct batch_prompt *q = &prompts[a->index];
        ck_assert_uint_le(q->done + a->n_tokens, q->length);
        if (q->done + a->n_tokens < q->length)
            ck_assert_uint_eq((q->done + a->n_tokens) % state.block_size, 0);
        prompt_tokens += a->n_tokens;
    }
    tokens += prompt_tokens;
    uint32_t most = state.prompt_tokens > state.block_size ? state.prompt_tokens : state.block_size;
    ck_assert_uint_le(prompt_tokens, state.prompt_tokens == 0 ? 0 : most);
    ck_assert_uint_eq(plan.n_tokens, tokens);
    ck_assert_uint_le(tokens, state.max_tokens);
    ck_assert_uint_le(plan.n_running + plan.n_prompts, state.max_rows);
    if (state.max_prompts > 0)
        ck_assert_uint_le(plan.n_prompts, state.max_prompts);
}

/* Applies the plan as a worker does; finished prompts leave. */
static void step(void)
{
    batch_plan(&state, &plan);
    check_plan();
    for (uint32_t i = 0; i < plan.n_running; i++)
        running[plan.running[i]].turn = ++turn;
    for (uint32_t i = 0; i < plan.n_prompts; i++)
        prompts[plan.prompts[i].index].done += plan.prompts[i].n_tokens;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < state.n_prompts; i++)
        if (prompts[i].done < prompts[i].length)
            prompts[kept++] = prompts[i];
    state.n_prompts = kept;
}

START_TEST(batch_plan_empty)
{
    batch_plan(&state, &plan);
    ck_assert_uint_eq(plan.n_tokens, 0);
    ck_assert_uint_eq(plan.n_prompts + plan.n_running, 0);
}
END_TEST

START_TEST(batch_plan_one_prompt_takes_all)
{
    prompt_add(1, 6000);
    uint32_t steps = 0;
    for (; state.n_prompts > 0; steps++)
        step();
    ck_assert_uint_eq(steps, (6000 + 511) / 512);
}
END_TEST

START_TEST(batch_plan_short_behind_long)
{
    prompt_add(1, 6000);
    prompts[0].done = 512;
    prompt_add(2, 100);
    batch_plan(&state, &plan);
    check_plan();
    ck_assert_uint_eq(share_of(1), 100);     /* all of it in the very next step ... */
    ck_assert_uint_eq(share_of(0), 512 / 4); /* ... the long one goes on ... */
    ck_assert_uint_eq(plan.n_tokens, 228);   /* ... and the step is not filled up */
    ck_assert_uint_eq(plan.prompts[0].index, 1);
}
END_TEST

START_TEST(batch_plan_shortest_first)
{
    prompt_add(1, 6000);
    prompt_add(2, 3000);
    prompt_add(3, 2000);
    batch_plan(&state, &plan);
    check_plan();
    ck_assert_uint_eq(share_of(2), 384);
    ck_assert_uint_eq(share_of(1), 0);
    ck_assert_uint_eq(share_of(0), 128);
    prompts[1].priority = 1;
    batch_plan(&state, &plan);
    check_plan();
    ck_assert_uint_eq(share_of(1), 384);
    ck_assert_uint_eq(share_of(2), 0);
    ck_assert_uint_eq(share_of(0), 128);
}
END_TEST

START_TEST(batch_plan_unaligned_start)
{
    prompt_add(1, 1000);
    prompts[0].done = 7; /* a suffix that begins inside a block */
    batch_plan(&state, &plan);
    check_plan();
    ck_assert_uint_eq(plan.n_tokens, 505);
}
END_TEST

START_TEST(batch_plan_long_never_starves)
{
    /* Every step brings as many short prompts as a step can take; the long one still finishes
     * within the promised 4 n / prompt_tokens steps. */
    uint64_t arrival = 1;
    prompt_add(arrival++, 6000);
    uint32_t steps = 0;
    for (; state.n_prompts > 0 && prompts[0].arrival == 1; steps++) {
        while (state.n_prompts < 12)
            prompt_add(arrival++, 100);
        step();
        ck_assert_uint_lt(steps, 1000);
    }
    ck_assert_uint_le(steps, 4 * 6000 / 512 + 1);
    ck_assert_uint_ge(steps, 6000 / 512);
}
END_TEST

START_TEST(batch_plan_everything_finishes)
{
    /* Random lengths and priorities under constant overload: each prompt finishes, and the wait
     * of a prompt is bounded by the work that was there when it came, at a quarter of the rate. */
    uint64_t arrival = 1, born[4096] = {0};
    uint64_t work[4096];
    uint32_t done = 0;
    for (uint64_t now = 1; now < 2000; now++) {
        while (state.n_prompts < 20) {
            struct rng_block r = rng_philox(7, arrival, 0);
            prompt_add(arrival, 1 + r.v[0] % (r.v[1] % 8 == 0 ? 4000 : 200));
            prompts[state.n_prompts - 1].priority = (int32_t)(r.v[2] % 3);
            uint64_t sum = 0;
            for (uint32_t i = 0; i < state.n_prompts; i++)
                sum += prompts[i].length - prompts[i].done;
            ck_assert_uint_lt(arrival, 4096);
            born[arrival] = now;
            work[arrival] = sum;
            arrival++;
        }
        uint64_t alive[MAX];
        uint32_t n = state.n_prompts;
        for (uint32_t i = 0; i < n; i++)
            alive[i] = prompts[i].arrival;
        step();
        for (uint32_t i = 0, at = 0; i < n; i++) {
            if (at < state.n_prompts && prompts[at].arrival == alive[i]) {
                at++;
                continue;
            }
            done++;
            /* 20 prompts may each waste part of a share at their end. */
            ck_assert_uint_le(now - born[alive[i]], work[alive[i]] / 128 + 20);
        }
    }
    ck_assert_uint_gt(done, 1000);
}
END_TEST

START_TEST(batch_plan_decode_rotates)
{
    state.n_running = 20;
    state.max_rows = 6;
    uint32_t rows[20] = {0};
    for (uint32_t i = 0; i < 20; i++)
        running[i].arrival = 100 + i * 7 % 20;
    for (uint64_t now = 1; now <= 200; now++) {
        step();
        ck_assert_uint_eq(plan.n_running, 6);
        for (uint32_t i = 0; i < plan.n_running; i++)
            rows[plan.running[i]]++;
    }
    for (uint32_t i = 0; i < 20; i++)
        ck_assert_uint_eq(rows[i], 60); /* 200 steps of 6 rows over 20 sequences */
}
END_TEST

START_TEST(batch_plan_mixed)
{
    /* A decode worker: all running rows and a small chunk; with a full batch one row is kept. */
    state.n_running = 5;
    state.prompt_tokens = 64;
    state.max_prompts = 1;
    prompt_add(1, 300);
    batch_plan(&state, &plan);
    check_plan();
    ck_assert_uint_eq(plan.n_running, 5);
    ck_assert_uint_eq(plan.n_tokens, 5 + 64);
    state.n_running = 30;
    for (uint32_t i = 0; i < 30; i++)
        running[i].arrival = i + 1;
    batch_plan(&state, &plan);
    check_plan();
    ck_assert_uint_eq(plan.n_running, 7);
    ck_assert_uint_eq(share_of(0), 64);
    state.prompt_tokens = 0; /* no prompts now */
    batch_plan(&state, &plan);
    check_plan();
    ck_assert_uint_eq(plan.n_running, 8);
    ck_assert_uint_eq(plan.n_prompts, 0);
    state.max_rows = 1; /* one row cannot be shared: the running sequences keep it */
    state.prompt_tokens = 512;
    batch_plan(&state, &plan);
    check_plan();
    ck_assert_uint_eq(plan.n_running, 1);
    ck_assert_uint_eq(plan.n_prompts, 0);
}
END_TEST

START_TEST(batch_plan_random_states)
{
    for (uint64_t t = 0; t < 3000; t++) {
        struct rng_block r = rng_philox(t, 1, 2);
        state.n_prompts = r.v[0] % 20;
        state.n_running = r.v[1] % 40;
        state.max_rows = 1 + r.v[2] % 40;
        state.prompt_tokens = r.v[3] % 600;
        state.max_tokens = state.max_rows + 16 + r.v[3] / 1000 % 700;
        state.max_prompts = r.v[2] / 1000 % 4;
        for (uint32_t i = 0; i < state.n_prompts; i++) {
            struct rng_block q = rng_philox(t, i, 3);
            prompts[i] = (struct batch_prompt){.arrival = (i * 13 + 5) % 23,
                                               .length = 1 + q.v[0] % 2000,
                                               .priority = (int32_t)(q.v[2] % 2)};
            prompts[i].done = q.v[1] % prompts[i].length;
        }
        for (uint32_t i = 0; i < state.n_running; i++)
            running[i] = (struct batch_running){.arrival = (i * 17 + 3) % 41,
                                                .turn = rng_philox(t, i, 4).v[0] % 5};
        batch_plan(&state, &plan);
        check_plan();
        /* Never idle while there is something to do. */
        if (state.n_running > 0 || (state.n_prompts > 0 && state.prompt_tokens > 0))
            ck_assert_uint_gt(plan.n_tokens, 0);
        if (state.n_prompts > 0 && state.prompt_tokens > 0 && state.max_rows > 1)
            ck_assert_uint_gt(plan.n_prompts, 0);
    }
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("batch");
    TCase *t = tcase_create("policy");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, batch_plan_empty);
    tcase_add_test(t, batch_plan_one_prompt_takes_all);
    tcase_add_test(t, batch_plan_short_behind_long);
    tcase_add_test(t, batch_plan_shortest_first);
    tcase_add_test(t, batch_plan_unaligned_start);
    tcase_add_test(t, batch_plan_long_never_starves);
    tcase_add_test(t, batch_plan_everything_finishes);
    tcase_add_test(t, batch_plan_decode_rotates);
    tcase_add_test(t, batch_plan_mixed);
    tcase_add_test(t, batch_plan_random_states);
    suite_add_tcase(s, t);
    return s;
}
