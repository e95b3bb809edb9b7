/* Helpers: threads that compute only with what nobody else wants. Every tile is written once, by
 * whomever; a helper that is stopped in the middle of one delays nothing and spoils nothing; and a
 * pass gives the same bits with them. */
#include <sched.h>
#include <stdatomic.h>

#include "common/base/clock.h"
#include "kernels/cpu.h"
#include "kernels/threads.h"
#include "tests/kernels/isas.h"
#include "tests/kernels/tiny.h"

static struct threads *pool(int n, int helpers)
{
    struct threads *t;
    char err[100];
    ck_assert_msg(threads_create_helped(n, helpers, NULL, &t, err, sizeof err) == 0, "%s", err);
    ck_assert_int_eq(threads_count(t), n);
    ck_assert_int_eq(threads_helpers(t), helpers);
    return t;
}

#define PHASES 60
#define TILES  23
#define MOST   8 /* threads */

struct work {
    struct threads_job job;
    _Atomic int written[PHASES][TILES + 1], in_phase[PHASES], early;
    _Atomic int begun[MOST], computed[MOST]; /* by helpers */
    size_t phase[MOST], tile[MOST];
    /* A helper's first tile does not end before this is set. */
    _Atomic bool hold, release;
};

/* Every fifth phase is empty, every fourth not for helpers. */
static size_t work_tiles(void *arg, size_t phase)
{
    (void)arg;
    return phase % 5 == 4 ? 0 : phase % TILES + 2;
}
static bool work_helps(void *arg, size_t phase)
{
    (void)arg;
    return phase % 4 != 3;
}

static void write_tile(struct work *w, size_t phase, size_t tile)
{
    for (size_t i = 0; i < phase; i++)
        if ((size_t)atomic_load(&w->in_phase[i]) != work_tiles(w, i))
            atomic_fetch_add(&w->early, 1);
    atomic_fetch_add(&w->written[phase][tile], 1);
    atomic_fetch_add(&w->in_phase[phase], 1);
}

static void work_run(void *arg, size_t phase, size_t tile, int thread)
{
    struct work *w = arg;
    /* When a helper is to be held, it must get a tile first. */
    while (thread == 0 && phase == 0 && atomic_load(&w->hold) && atomic_load(&w->begun[1]) == 0)
        sched_yield();
    write_tile(w, phase, tile);
}

static void work_begin(void *arg, size_t phase, size_t tile, int thread)
{
    struct work *w = arg;
    w->phase[thread] = phase;
    w->tile[thread] = tile;
    atomic_fetch_add(&w->begun[thread], 1);
}
static void work_compute(void *arg, int thread)
{
    struct work *w = arg;
    while (atomic_load(&w->hold) && !atomic_load(&w->release))
        sched_yield();
    atomic_fetch_add(&w->computed[thread], 1);
}
static void work_finish(void *arg, int thread)
{
    struct work *w = arg;
    write_tile(w, w->phase[thread], w->tile[thread]);
}

static void work_init(struct work *w)
{
    memset(w, 0, sizeof *w);
    w->job = (struct threads_job){.n_phases = PHASES,
                                  .tiles = work_tiles,
                                  .run = work_run,
                                  .arg = w,
                                  .helps = work_helps,
                                  .begin = work_begin,
                                  .compute = work_compute,
                                  .finish = work_finish};
}

static void check_first(struct work *w, size_t phases)
{
    ck_assert_int_eq(atomic_load(&w->early), 0);
    for (size_t i = 0; i < phases; i++)
        for (size_t k = 0; k <= TILES; k++)
            ck_assert_msg(atomic_load(&w->written[i][k]) == (k < work_tiles(w, i)),
                          "phase %zu, tile %zu: %d times", i, k, atomic_load(&w->written[i][k]));
}
static void check_written(struct work *w)
{
    check_first(w, PHASES);
}

START_TEST(helpers_each_tile_once)
{
    static const int counts[][2] = {{1, 1}, {1, 3}, {2, 1}, {3, 4}, {2, 0}};
    static struct work w;
    struct threads *t = pool(counts[_i][0], counts[_i][1]);
    for (int run = 0; run < 20; run++) {
        threads_quiesce(t);
        work_init(&w);
        threads_run(t, &w.job);
        threads_quiesce(t);
        check_written(&w);
    }
    threads_destroy(t);
}
END_TEST

/* The helper takes a tile of the first phase and comes back only after the whole job has ended. */
START_TEST(helpers_stopped_in_a_tile)
{
    static struct work w;
    struct threads *t = pool(1, 1);
    work_init(&w);
    atomic_store(&w.hold, true);
    w.job.n_phases = 40;
    threads_run(t, &w.job); /* thread 0 ends its first tile only when the helper has one */
    ck_assert_int_eq(atomic_load(&w.begun[1]), 1);
    ck_assert_uint_ge(threads_redone(t), 1);
    ck_assert_int_eq(atomic_load(&w.computed[1]), 0);
    check_first(&w, 40);
    atomic_store(&w.release, true);
    threads_quiesce(t); /* it computes, and writes nothing */
    ck_assert_int_eq(atomic_load(&w.computed[1]), 1);
    check_first(&w, 40);
    /* And it works again. */
    work_init(&w);
    threads_run(t, &w.job);
    threads_quiesce(t);
    check_written(&w);
    threads_destroy(t);
}
END_TEST

/* All on one CPU: whenever the helper writes a result it gives the CPU to thread 0, which can only
 * wait. The helper has no claim to a CPU that somebody wants, so waiting must not be wanting one:
 * else each result takes hundreds of milliseconds. */
static void slow_finish(void *arg, int thread)
{
    sched_yield();
    work_finish(arg, thread);
}
static void slow_run(void *arg, size_t phase, size_t tile, int thread)
{
    uint64_t end = clock_ns() + 50000; /* the helper is woken, and has a tile to take */
    while (clock_ns() < end)
        sched_yield();
    work_run(arg, phase, tile, thread);
}

START_TEST(helpers_stopped_while_they_write)
{
    static struct work w;
    cpu_set_t all, one;
    ck_assert_int_eq(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &all))
            CPU_SET(i, &one);
    ck_assert_int_eq(sched_setaffinity(0, sizeof one, &one), 0);
    struct threads *t = pool(1, 1);
    uint64_t best = UINT64_MAX;
    int helped = 0;
    for (int run = 0; run < 20; run++) {
        work_init(&w);
        w.job.finish = slow_finish;
        w.job.run = slow_run;
        w.job.n_phases = 10;
        uint64_t since = clock_ns();
        threads_run(t, &w.job);
        uint64_t took = clock_ns() - since;
        threads_quiesce(t);
        check_first(&w, 10);
        if (atomic_load(&w.computed[1]) < 5)
            continue;
        helped++;
        best = took < best ? took : best;
    }
    threads_destroy(t);
    ck_assert_int_gt(helped, 0);
    ck_assert_msg(best < 25000000, "%.1f ms", (double)best * 1e-6); /* idle machines: 4 */
}
END_TEST

/* A job without their functions is none of their business. */
static void plain_run(void *arg, size_t phase, size_t tile, int thread)
{
    struct work *w = arg;
    ck_assert_int_eq(thread, 0);
    atomic_fetch_add(&w->written[phase][tile], 1);
}

START_TEST(helpers_leave_other_jobs_alone)
{
    static struct work w;
    struct threads *t = pool(1, 2);
    for (int i = 0; i < 200; i++) {
        work_init(&w);
        struct threads_job job = {
            .n_phases = PHASES, .tiles = work_tiles, .run = plain_run, .arg = &w};
        threads_run(t, &job);
        check_written(&w);
    }
    threads_destroy(t);
}
END_TEST

START_TEST(helpers_refuse_bad_input)
{
    struct threads *t;
    char err[100];
    ck_assert_int_eq(threads_create_helped(1, -1, NULL, &t, err, sizeof err), STATUS_INVALID);
    ck_assert_int_eq(threads_create_helped(0, 1, NULL, &t, err, sizeof err), STATUS_INVALID);
    ck_assert_int_eq(threads_create_helped(1, 1 << 20, NULL, &t, err, sizeof err), STATUS_INVALID);
}
END_TEST

/* ---- whole passes --------------------------------------------------------------------------- */

static const struct tiny_shape shapes[] = {
    {"q4_1, 3:1", MATRIX_Q4_1, MATRIX_Q8_0, 2, 192, 3, 1, 64, 256, 101, 16, false, false, false,
     KV_BF16},
    {"bf16, bias, 8-bit KV, 5:1", MATRIX_BF16, MATRIX_BF16, 2, 96, 5, 1, 48, 96, 40, 32, true, true,
     true, KV_INT8},
    {"f32 and q6, ragged head", MATRIX_Q6_K, MATRIX_F32, 1, 256, 2, 2, 128, 256, 33, 16, false,
     false, false, KV_BF16},
};

/* Prompts, then several sequences one token each (attention by whole sequences), then a mixture. */
static const struct {
    uint32_t n;
    struct tiny_segment s[TINY_SEQS];
} script[] = {
    {1, {{0, 0, 290}}},
    {2, {{1, 0, 61}, {2, 0, 100}}},
    {3, {{0, 290, 1}, {1, 61, 1}, {2, 100, 1}}},
    {1, {{1, 62, 1}}},
    {2, {{0, 291, 5}, {2, 101, 90}}},
};
#define N_STEPS (sizeof script / sizeof *script)

/* Tiles are redone and dropped as it happens; the logits and all KV must not tell. */
START_TEST(helpers_same_bits)
{
#ifdef __SANITIZE_THREAD__
    printf("SKIP helpers_same_bits: late helpers read what they then throw away\n");
    return;
#endif
    struct tiny_model m;
    tiny_model_init(&m, &shapes[_i % 3], 21);
    struct tiny alone, helped;
    if (tiny_init(&alone, &m, "cpu", isas[_i / 3], 1)) {
        tiny_helpers = 2;
        ck_assert(tiny_init(&helped, &m, "cpu", isas[_i / 3], 1));
        tiny_helpers = 0;
        for (int round = 0; round < (_i / 3 ? 6 : 2); round++)
            for (size_t s = 0; s < N_STEPS; s++) {
                tiny_step(&alone, script[s].s, script[s].n);
                tiny_step(&helped, script[s].s, script[s].n);
                ck_assert_msg(memcmp(backend_logits(alone.b), backend_logits(helped.b),
                                     script[s].n * m.shape.vocab * sizeof(float)) == 0,
                              "%s, %s, round %d, step %zu", shapes[_i % 3].name, isas[_i / 3],
                              round, s);
                ck_assert_msg(memcmp(alone.kv.base, helped.kv.base, alone.kv_bytes) == 0,
                              "%s, %s: KV differs", shapes[_i % 3].name, isas[_i / 3]);
            }
        tiny_fini(&alone);
        tiny_fini(&helped);
    }
    tiny_model_fini(&m);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("helpers");
    TCase *tc = tcase_create("helpers");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, helpers_each_tile_once, 0, 5);
    tcase_add_test(tc, helpers_stopped_in_a_tile);
    tcase_add_test(tc, helpers_stopped_while_they_write);
    tcase_add_test(tc, helpers_leave_other_jobs_alone);
    tcase_add_test(tc, helpers_refuse_bad_input);
    tcase_add_loop_test(tc, helpers_same_bits, 0, 3 * N_ISAS);
    suite_add_tcase(s, tc);
    return s;
}
