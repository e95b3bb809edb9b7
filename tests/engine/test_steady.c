/* The steady state of a step: no allocation, and next to nothing besides its kernels.
 *
 * This program's malloc counts. Whoever allocates in a step does so here too. */
#include <stdatomic.h>

#include "common/base/clock.h"
#include "common/engine/cost.h"
#include "tests/engine/rig.h"

#define STEPS       50
#define OVERHEAD_US 20 /* of a step, outside of its kernels */

static _Atomic uint64_t allocations;
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define COUNTS_ALLOCATIONS 1
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *malloc(size_t n)
{
    atomic_fetch_add(&allocations, 1);
    return __libc_malloc(n);
}
void *calloc(size_t n, size_t size)
{
    atomic_fetch_add(&allocations, 1);
    return __libc_calloc(n, size);
}
void *realloc(void *p, size_t n)
{
    atomic_fetch_add(&allocations, 1);
    return __libc_realloc(p, n);
}
#else
#define COUNTS_ALLOCATIONS 0
#endif

static struct rig r;
static uint32_t blocks[8][8];
static int32_t tokens[64];
static const struct sample_params greedy = {.top_p = 1},
                                  drawn = {
                                      .temperature = 0.8f, .top_p = 0.9f, .top_k = 20, .seed = 7};

static void open_rig(int threads, int helpers)
{
    struct engine_options o = rig_options;
    o.threads = threads;
    o.helpers = helpers;
    rig_open(&r, test_data("tiny/llama-q4_1.gguf"), &o);
    for (uint32_t s = 0; s < 8; s++)
        for (uint32_t i = 0; i < 8; i++)
            blocks[s][i] = 1 + 8 * s + i;
}

/* n sequences that decode, the odd ones drawing, and when prompt > 0 a chunk of one more. Whether
 * it went well is for later: an assertion of Check allocates. */
static int step(uint32_t n, uint32_t prompt, uint32_t position)
{
    struct engine_row rows[9] = {0};
    for (uint32_t i = 0; i < n; i++)
        rows[i] = (struct engine_row){.tokens = tokens,
                                      .n_tokens = 1,
                                      .position = position,
                                      .blocks = blocks[i],
                                      .sampling = i % 2 ? &drawn : &greedy};
    if (prompt > 0)
        rows[n] = (struct engine_row){.tokens = tokens, .n_tokens = prompt, .blocks = blocks[7]};
    struct engine_step s = {.rows = rows, .n_rows = n + (prompt > 0)};
    return engine_step(r.e, &s);
}

START_TEST(steady_allocates_nothing)
{
    if (!COUNTS_ALLOCATIONS) {
        printf("SKIP steady: allocations are not counted in this build\n");
        return;
    }
    static const struct {
        int threads, helpers;
    } pools[] = {{1, 0}, {2, 0}, {1, 1}};
    for (size_t p = 0; p < sizeof pools / sizeof pools[0]; p++) {
        open_rig(pools[p].threads, pools[p].helpers);
        uint64_t before = atomic_load(&allocations);
        int failed = 0;
        for (uint32_t i = 0; i < STEPS; i++)
            failed += step(1 + i % 7, i % 3 == 0 ? 1 + i : 0, i) != 0;
        uint64_t n = atomic_load(&allocations) - before;
        ck_assert_int_eq(failed, 0);
        ck_assert_uint_eq(n, 0);
        rig_close(&r);
    }
}
END_TEST

START_TEST(steady_counter_counts)
{
    uint64_t before = atomic_load(&allocations);
    void *volatile p = malloc(1);
    free(p);
    ck_assert_uint_eq(atomic_load(&allocations) - before, COUNTS_ALLOCATIONS);
}
END_TEST

/* By the CPU time of the only thread, and the best of many, since others run beside the tests. */
START_TEST(steady_overhead)
{
    struct backend_profile f = {.cpu_time = true};
    double best = 1;
    open_rig(1, 0);
    ck_assert_ok(step(1, 0, 0));
    backend_set_profile(engine_backend(r.e), &f);
    for (uint32_t i = 1; i <= STEPS; i++) {
        double inside = 0;
        struct engine_row row = {
            .tokens = tokens, .n_tokens = 1, .position = i, .blocks = blocks[0]};
        struct engine_step s = {.rows = &row, .n_rows = 1};
        memset(f.seconds, 0, sizeof f.seconds);
        uint64_t start = clock_thread_ns();
        ck_assert_ok(engine_step(r.e, &s));
        double all = (double)(clock_thread_ns() - start) * 1e-9;
        for (int k = 0; k < OP_KINDS; k++)
            inside += f.seconds[k];
        best = all - inside < best ? all - inside : best;
    }
    backend_set_profile(engine_backend(r.e), NULL);
    ck_assert_double_ge(best, 0);
    if (COUNTS_ALLOCATIONS) /* sanitizers cost more */
        ck_assert_double_lt(best * 1e6, OVERHEAD_US);
    rig_close(&r);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("steady");
    TCase *t = tcase_create("steady");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, steady_counter_counts);
    tcase_add_test(t, steady_allocates_nothing);
    tcase_add_test(t, steady_overhead);
    suite_add_tcase(s, t);
    return s;
}
