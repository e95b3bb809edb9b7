/* job: the prefill side's states as pure functions: which KV may go out when. */
#include "common/worker/job.h"

#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"

#define LAYERS 3
#define BLOCK  16

static struct kv_pool *pool;
static int32_t ids[512];
static struct job *j;

static void open_job(uint32_t n_tokens, bool prefix)
{
    struct seq_key key = {.router = 1, .counter = 2};
    struct proto_job spec = {.prompt = {ids, n_tokens}, .max_tokens = 10};
    struct proto_target target = {.instance = 9, .data_address = {"addr", 4}};
    for (int i = 0; i < 512; i++)
        ids[i] = i;
    if (!pool)
        ck_assert_ok(kv_pool_create(64 + 1, BLOCK, prefix, &pool));
    ck_assert_ok(job_create(&key, &spec, &target, LAYERS, 100, &j));
    ck_assert_int_eq(j->state, JOB_QUEUED);
}

static void close_job(void)
{
    job_put_blocks(j, pool);
    job_free(j);
    ck_assert_uint_eq(kv_pool_free(pool), 64);
    kv_pool_destroy(pool);
    pool = NULL;
}

static void grant(uint32_t held)
{
    struct proto_grant g = {.ticket = {4}, .held_blocks = held};
    if (j->reservation == JOB_RES_NONE)
        job_set_reservation(j, JOB_RES_ASKED);
    ck_assert(job_grant(j, &g, BLOCK));
}

/* Takes everything that may go, as a map of (layer, block) -> times. */
static uint32_t sent[LAYERS][64];
static uint32_t take(uint32_t max)
{
    struct proto_extent e;
    bool again;
    uint32_t n = 0;
    while (job_next_extent(j, max, &e, &again)) {
        ck_assert_uint_le(e.n, max);
        for (uint32_t i = 0; i < e.n; i++)
            sent[e.layer][e.first + i]++;
        n += e.n;
    }
    return n;
}

static void step(uint32_t n, uint32_t layers)
{
    j->step_tokens = n;
    for (uint32_t l = 0; l < layers; l++)
        job_layer_done(j, l, BLOCK);
}

START_TEST(layers_go_out_as_they_are_done)
{
    memset(sent, 0, sizeof sent);
    open_job(70, false); /* 5 blocks, the last one partly */
    ck_assert_ok(job_start(j, pool, 0, 200));
    ck_assert_uint_eq(j->n_blocks, 5);
    grant(0);
    ck_assert_uint_eq(take(64), 0);
    step(40, 1); /* chunk of 40: two blocks are complete, the third is not */
    ck_assert_uint_eq(take(64), 2);
    ck_assert_uint_eq(sent[0][1], 1);
    job_layer_done(j, 1, BLOCK);
    job_layer_done(j, 2, BLOCK);
    ck_assert_uint_eq(take(64), 4);
    ck_assert(!job_step_done(j));
    step(30, LAYERS);
    ck_assert_uint_eq(take(2), 9); /* in pieces of two at most */
    ck_assert(job_step_done(j));
    ck_assert(!job_all_sent(j)); /* not COMPUTED yet */
    job_set_state(j, JOB_COMPUTED);
    ck_assert(job_all_sent(j));
    j->sends = 1;
    ck_assert(!job_all_sent(j));
    for (uint32_t l = 0; l < LAYERS; l++) {
        for (uint32_t b = 0; b < 5; b++)
            ck_assert_uint_eq(sent[l][b], 1);
    }
    close_job();
}
END_TEST

START_TEST(late_grant_sends_what_was_parked)
{
    memset(sent, 0, sizeof sent);
    open_job(64, false);
    ck_assert_ok(job_start(j, pool, 0, 200));
    job_set_reservation(j, JOB_RES_ASKED);
    job_set_reservation(j, JOB_RES_WAITING);
    step(64, LAYERS);
    ck_assert(job_step_done(j));
    job_set_state(j, JOB_COMPUTED);
    ck_assert_uint_eq(take(64), 0);
    ck_assert(!job_all_sent(j));
    grant(3);
    ck_assert_uint_eq(take(64), LAYERS);
    for (uint32_t l = 0; l < LAYERS; l++) {
        ck_assert_uint_eq(sent[l][2], 0);
        ck_assert_uint_eq(sent[l][3], 1);
    }
    ck_assert(job_all_sent(j));
    close_job();
}
END_TEST

START_TEST(held_beyond_what_is_computed)
{
    memset(sent, 0, sizeof sent);
    open_job(80, false);
    ck_assert_ok(job_start(j, pool, 0, 200));
    grant(4);
    step(32, LAYERS); /* two blocks: the decode worker has them, and two more */
    ck_assert_uint_eq(take(64), 0);
    job_step_done(j);
    step(48, LAYERS);
    ck_assert_uint_eq(take(64), LAYERS);
    ck_assert_uint_eq(sent[0][4], 1);
    close_job();
}
END_TEST

START_TEST(grant_out_of_range)
{
    open_job(64, false);
    ck_assert_ok(job_start(j, pool, 0, 200));
    job_set_reservation(j, JOB_RES_ASKED);
    struct proto_grant g = {.held_blocks = 4}; /* all four: nothing would be left to compute */
    ck_assert(!job_grant(j, &g, BLOCK));
    g.held_blocks = UINT32_MAX;
    ck_assert(!job_grant(j, &g, BLOCK));
    ck_assert_int_eq(j->reservation, JOB_RES_ASKED);
    close_job();
}
END_TEST

START_TEST(cached_prefix_is_sent_too)
{
    memset(sent, 0, sizeof sent);
    open_job(64, true);
    ck_assert_ok(job_start(j, pool, 0, 200));
    kv_prefix_insert(pool, "", 0, j->tokens, 64, j->blocks);
    job_put_blocks(j, pool);
    job_free(j);
    open_job(64, true);
    ck_assert_ok(job_start(j, pool, 0, 300));
    ck_assert_uint_eq(j->cached_tokens, 48); /* the last token is always computed */
    ck_assert_uint_eq(j->computed, 48);
    grant(1);
    ck_assert_uint_eq(take(64), 2 * LAYERS);
    step(16, LAYERS);
    ck_assert_uint_eq(take(64), LAYERS);
    ck_assert(job_step_done(j));
    close_job();
}
END_TEST

START_TEST(start_needs_all_blocks)
{
    open_job(500, false);
    uint32_t taken[40];
    ck_assert_ok(kv_pool_alloc(pool, 40, taken));
    ck_assert_int_eq(job_start(j, pool, 0, 200), STATUS_FULL);
    ck_assert_int_eq(j->state, JOB_QUEUED);
    ck_assert_uint_eq(kv_pool_free(pool), 24);
    for (int i = 0; i < 40; i++)
        kv_pool_put(pool, taken[i]);
    ck_assert_ok(job_start(j, pool, 0, 200));
    close_job();
}
END_TEST

START_TEST(send_again)
{
    memset(sent, 0, sizeof sent);
    open_job(80, false);
    ck_assert_ok(job_start(j, pool, 0, 200));
    grant(1);
    step(80, LAYERS);
    job_step_done(j);
    job_set_state(j, JOB_COMPUTED);
    ck_assert_uint_eq(take(64), 4 * LAYERS);
    job_set_state(j, JOB_HANDED);
    const struct proto_extent bad[] = {{LAYERS, 1, 1}, {0, 0, 1},          {0, 1, 5},
                                       {0, 1, 0},      {0, UINT32_MAX, 2}, {0, 4, UINT32_MAX}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ck_assert_int_eq(job_send_again(j, &bad[i], 1), STATUS_RANGE);
    const struct proto_extent good[] = {{0, 1, 4}, {2, 3, 1}};
    ck_assert_ok(job_send_again(j, good, 2));
    job_set_state(j, JOB_COMPUTED);
    ck_assert(!job_all_sent(j));
    ck_assert_uint_eq(take(3), 5);
    ck_assert_uint_eq(sent[0][1] + sent[0][4] + sent[2][3], 6);
    ck_assert_uint_eq(sent[1][1], 1);
    ck_assert(job_all_sent(j));
    close_job();
}
END_TEST

START_TEST(redirect_sends_everything_again)
{
    memset(sent, 0, sizeof sent);
    open_job(64, false);
    ck_assert_ok(job_start(j, pool, 0, 200));
    grant(2);
    step(64, LAYERS);
    job_step_done(j);
    job_set_state(j, JOB_COMPUTED);
    take(64);
    job_set_reservation(j, JOB_RES_REFUSED);
    job_set_state(j, JOB_PARKED);
    ck_assert_uint_eq(take(64), 0);
    struct proto_target other = {.instance = 10, .data_address = {"other", 5}};
    ck_assert_ok(job_redirect(j, 1, &other));
    ck_assert_int_eq(j->state, JOB_COMPUTED);
    ck_assert_uint_eq(j->key.attempt, 1);
    ck_assert_uint_eq(j->target.instance, 10);
    ck_assert_mem_eq(j->target.address, "other", 5);
    memset(sent, 0, sizeof sent);
    grant(0);
    ck_assert_uint_eq(take(64), 4 * LAYERS);
    close_job();
}
END_TEST

START_TEST(redirect_of_half_a_prompt)
{
    memset(sent, 0, sizeof sent);
    open_job(64, false);
    ck_assert_ok(job_start(j, pool, 0, 200));
    grant(0);
    step(32, LAYERS);
    job_step_done(j);
    take(64);
    job_set_reservation(j, JOB_RES_REFUSED);
    job_set_state(j, JOB_PARKED);
    struct proto_target other = {.instance = 10};
    ck_assert_ok(job_redirect(j, 1, &other));
    ck_assert_int_eq(j->state, JOB_RUNNING);
    ck_assert_uint_eq(j->computed, 32); /* nothing is computed twice */
    close_job();
}
END_TEST

/* A sequence that runs and is followed: n_kv of its tokens have KV. */
static uint32_t its_blocks[8];
static void follow(uint32_t n_kv, uint32_t room)
{
    open_job(20, false);
    ck_assert_ok(kv_pool_alloc(pool, 8, its_blocks));
    job_free(j);
    struct seq_key key = {.router = 1, .counter = 2, .attempt = 1};
    struct proto_job spec = {
        .prompt = {ids, 20}, .emitted = {ids + 20, n_kv - 20}, .max_tokens = 100};
    struct proto_target target = {.instance = 9, .data_address = {"addr", 4}};
    ck_assert_ok(job_create(&key, &spec, &target, LAYERS, 100, &j));
    job_follow_begin(j, NULL, room);
    ck_assert_int_eq(j->state, JOB_RUNNING);
    ck_assert_uint_eq(j->n_tokens, n_kv);
}

static bool caught_up(uint32_t n)
{
    bool yes;
    ck_assert_ok(job_follow(j, pool, its_blocks, n, &yes));
    return yes;
}

static void leave(void)
{
    job_put_blocks(j, pool);
    job_free(j);
    for (int i = 0; i < 8; i++) {
        ck_assert_uint_eq(kv_pool_refs(pool, its_blocks[i]), 1);
        kv_pool_put(pool, its_blocks[i]);
    }
    ck_assert_uint_eq(kv_pool_free(pool), 64);
    kv_pool_destroy(pool);
    pool = NULL;
}

START_TEST(follow_block_by_block_then_the_tail)
{
    struct proto_top top = {.id = 5, .logprob = -1};
    struct proto_token last = {
        .position = 999, .token = 999, .logprob = -2, .top = &top, .n_top = 1};
    memset(sent, 0, sizeof sent);
    follow(40, 100);
    ck_assert(!caught_up(2));                                /* no GRANT yet */
    ck_assert_uint_eq(kv_pool_refs(pool, its_blocks[1]), 2); /* the sequence may end meanwhile */
    grant(0);
    ck_assert(!caught_up(2)); /* nothing of it is sent yet */
    ck_assert_uint_eq(take(64), 2 * LAYERS);
    ck_assert(caught_up(2));
    ck_assert(!caught_up(3));
    j->sends = 1;
    ck_assert_uint_eq(take(64), LAYERS);
    ck_assert(!caught_up(3)); /* it is on its way */
    j->sends = 0;
    ck_assert(caught_up(3) && !job_all_sent(j));
    ck_assert_ok(job_follow_end(j, pool, ids, 53, its_blocks, &last)); /* 52 have KV */
    ck_assert_int_eq(j->state, JOB_COMPUTED);
    ck_assert_uint_eq(take(64), LAYERS);
    ck_assert(job_all_sent(j));
    for (uint32_t l = 0; l < LAYERS; l++) {
        for (uint32_t b = 0; b < 4; b++)
            ck_assert_uint_eq(sent[l][b], 1);
    }
    ck_assert_uint_eq(j->n_tokens, 52);
    ck_assert_uint_eq(j->spec.job.emitted.n, 32);
    ck_assert_int_eq(j->spec.job.emitted.p[31], 51);
    ck_assert(j->first.token == 52 && j->first.position == 32 && j->first.top[0].id == 5);
    leave();
}
END_TEST

START_TEST(follow_what_the_target_holds)
{
    memset(sent, 0, sizeof sent);
    follow(40, 100);
    grant(2); /* as much as there is */
    ck_assert(caught_up(2));
    ck_assert_uint_eq(take(64), 0);
    struct proto_token last = {.token = 40};
    ck_assert_ok(job_follow_end(j, pool, ids, 41, its_blocks, &last));
    ck_assert_uint_eq(take(64), LAYERS); /* the block that is not full */
    ck_assert_uint_eq(sent[0][2], 1);
    leave();
}
END_TEST

/* Full blocks of a running sequence for a replica: computed from the start, and shared with it. */
START_TEST(copy_of_a_sequence)
{
    uint32_t blocks[5];
    struct ticket *sequence = (struct ticket *)&blocks; /* only its address counts here */
    memset(sent, 0, sizeof sent);
    open_job(64, true);
    ck_assert_ok(kv_pool_alloc(pool, 5, blocks));
    ck_assert_ok(job_copy_begin(j, pool, sequence, blocks, 7));
    ck_assert(j->state == JOB_COMPUTED && j->copy && j->n_blocks == 4 && j->first.token == 7);
    ck_assert_uint_eq(kv_pool_refs(pool, blocks[3]), 2);
    ck_assert_uint_eq(kv_pool_refs(pool, blocks[4]), 1);
    ck_assert(!job_frees_blocks(j, pool));
    ck_assert_uint_eq(take(64), 0);
    grant(3); /* the other one has what was copied before */
    ck_assert_uint_eq(take(64), LAYERS);
    ck_assert_uint_eq(sent[LAYERS - 1][3], 1);
    ck_assert(job_all_sent(j));
    for (int i = 0; i < 5; i++)
        kv_pool_put(pool, blocks[i]);
    ck_assert(job_frees_blocks(j, pool)); /* the sequence has ended before it */
    j->moving = NULL;
    close_job();
}
END_TEST

/* On a decode worker what runs keeps room to grow. */
START_TEST(start_leaves_some_free)
{
    open_job(64, false);
    ck_assert_int_eq(job_start(j, pool, 61, 200), STATUS_FULL);
    ck_assert_int_eq(j->state, JOB_QUEUED);
    ck_assert_ok(job_start(j, pool, 60, 200));
    close_job();
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("worker/job");
    TCase *t = tcase_create("job");
    tcase_add_test(t, layers_go_out_as_they_are_done);
    tcase_add_test(t, late_grant_sends_what_was_parked);
    tcase_add_test(t, held_beyond_what_is_computed);
    tcase_add_test(t, grant_out_of_range);
    tcase_add_test(t, cached_prefix_is_sent_too);
    tcase_add_test(t, start_needs_all_blocks);
    tcase_add_test(t, send_again);
    tcase_add_test(t, redirect_sends_everything_again);
    tcase_add_test(t, redirect_of_half_a_prompt);
    tcase_add_test(t, follow_block_by_block_then_the_tail);
    tcase_add_test(t, follow_what_the_target_holds);
    tcase_add_test(t, copy_of_a_sequence);
    tcase_add_test(t, start_leaves_some_free);
    suite_add_tcase(s, t);
    return s;
}
