/* The pool: every tile once, phases apart, more threads than cores, CPU lists. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/threads.h"
#include "tests/harness.h"

static struct threads *pool(int n)
{
    struct threads *t;
    char err[100];
    ck_assert_msg(threads_create(n, NULL, &t, err, sizeof err) == 0, "%s", err);
    return t;
}

#define PHASES 200
#define TILES  37

struct phases {
    _Atomic int done[PHASES][TILES];
    _Atomic int in_phase[PHASES];
    _Atomic int early;
    size_t reported;
    pthread_t caller;
};

/* Every third phase is empty. */
static size_t phase_tiles(void *arg, size_t phase)
{
    (void)arg;
    return phase % 3 == 2 ? 0 : phase % TILES + 1;
}

static bool complete(struct phases *p, size_t phase)
{
    return (size_t)atomic_load(&p->in_phase[phase]) == phase_tiles(p, phase);
}

static void phase_run(void *arg, size_t phase, size_t tile, int thread)
{
    struct phases *p = arg;
    (void)thread;
    for (size_t i = phase > 3 ? phase - 3 : 0; i < phase; i++)
        if (!complete(p, i))
            atomic_fetch_add(&p->early, 1);
    atomic_fetch_add(&p->done[phase][tile], 1);
    atomic_fetch_add(&p->in_phase[phase], 1);
}

static void phase_progress(void *arg, size_t phase)
{
    struct phases *p = arg;
    ck_assert_uint_ge(phase, p->reported);
    ck_assert(pthread_equal(pthread_self(), p->caller));
    for (; p->reported < phase; p->reported++)
        ck_assert(complete(p, p->reported));
}

START_TEST(threads_run_each_tile_once)
{
    static const int counts[] = {1, 2, 3, 8};
    static struct phases p;
    struct threads *t = pool(counts[_i]);
    ck_assert_int_eq(threads_count(t), counts[_i]);
    for (int run = 0; run < 3; run++) {
        memset(&p, 0, sizeof p);
        p.caller = pthread_self();
        struct threads_job job = {.n_phases = PHASES,
                                  .tiles = phase_tiles,
                                  .run = phase_run,
                                  .progress = phase_progress,
                                  .arg = &p};
        threads_run(t, &job);
        ck_assert_int_eq(atomic_load(&p.early), 0);
        ck_assert_uint_eq(p.reported, PHASES);
        for (size_t i = 0; i < PHASES; i++)
            for (size_t k = 0; k < TILES; k++)
                ck_assert_int_eq(atomic_load(&p.done[i][k]), k < phase_tiles(&p, i));
    }
    threads_destroy(t);
}
END_TEST

static size_t two_tiles(void *arg, size_t phase)
{
    (void)arg;
    (void)phase;
    return 2;
}
static void count(void *arg, size_t phase, size_t tile, int thread)
{
    (void)phase;
    (void)tile;
    (void)thread;
    atomic_fetch_add((_Atomic int *)arg, 1);
}
static void run_count(struct threads *t, _Atomic int *n)
{
    struct threads_job job = {.n_phases = 3, .tiles = two_tiles, .run = count, .arg = n};
    threads_run(t, &job);
}

/* The job's memory is gone when the next job starts: late threads must not look at it. */
START_TEST(threads_jobs_do_not_linger)
{
    struct threads *t = pool(4);
    for (int i = 0; i < 2000; i++) {
        _Atomic int *n = malloc(sizeof *n);
        atomic_init(n, 0);
        run_count(t, n);
        ck_assert_int_eq(atomic_load(n), 6);
        free((void *)(uintptr_t)n);
    }
    threads_destroy(t);
}
END_TEST

/* Idle long enough that workers park: they must wake up again. */
START_TEST(threads_wake_after_idling)
{
    struct threads *t = pool(3);
    _Atomic int n = 0;
    for (int i = 1; i <= 20; i++) {
        run_count(t, &n);
        ck_assert_int_eq(atomic_load(&n), 6 * i);
        struct timespec from, now;
        clock_gettime(CLOCK_MONOTONIC, &from);
        do
            clock_gettime(CLOCK_MONOTONIC, &now);
        while ((now.tv_sec - from.tv_sec) * 1000000000 + now.tv_nsec - from.tv_nsec < 500000);
    }
    threads_destroy(t);
}
END_TEST

/* Two pools at once, together more threads than cores: progress, no mixing. */
static void *other_pool(void *arg)
{
    struct threads *t = pool(2);
    for (int i = 0; i < 300; i++)
        run_count(t, arg);
    threads_destroy(t);
    return NULL;
}

START_TEST(threads_share_cores)
{
    _Atomic int here = 0, there = 0;
    pthread_t other;
    ck_assert_int_eq(pthread_create(&other, NULL, other_pool, &there), 0);
    struct threads *t = pool(2);
    for (int i = 0; i < 300; i++)
        run_count(t, &here);
    pthread_join(other, NULL);
    ck_assert_int_eq(atomic_load(&here), 1800);
    ck_assert_int_eq(atomic_load(&there), 1800);
    threads_destroy(t);
}
END_TEST

/* Each of the two tiles waits for the other, so that both threads have one. */
struct seen {
    _Atomic int arrived, wanted;
    int cpu[2];
};
static void note_cpu(void *arg, size_t phase, size_t tile, int thread)
{
    struct seen *s = arg;
    (void)phase;
    (void)tile;
    s->cpu[thread] = sched_getcpu();
    atomic_fetch_add(&s->arrived, 1);
    while (atomic_load(&s->arrived) < atomic_load(&s->wanted))
        sched_yield();
}

START_TEST(threads_bind_to_list)
{
    cpu_set_t allowed;
    ck_assert_int_eq(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    int cpus[2] = {-1, -1}, n = 0;
    for (int i = 0; i < CPU_SETSIZE && n < 2; i++)
        if (CPU_ISSET(i, &allowed))
            cpus[n++] = i;
    char list[40], err[100];
    if (n == 2)
        snprintf(list, sizeof list, "%d,%d", cpus[1], cpus[0]);
    else
        snprintf(list, sizeof list, "%d", cpus[0]);
    struct threads *t;
    ck_assert_msg(threads_create(n, list, &t, err, sizeof err) == 0, "%s", err);
    struct seen seen = {.wanted = n};
    struct threads_job job = {.n_phases = 1, .tiles = two_tiles, .run = note_cpu, .arg = &seen};
    threads_run(t, &job);
    ck_assert_int_eq(seen.cpu[0], n == 2 ? cpus[1] : cpus[0]);
    if (n == 2)
        ck_assert_int_eq(seen.cpu[1], cpus[0]);
    threads_destroy(t);
}
END_TEST

START_TEST(threads_refuse_bad_input)
{
    static const char *const lists[] = {"x", "1-", "3-1", "-1", "0,", ",0", "0 1", "0-2000", "999"};
    struct threads *t;
    char err[100];
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        err[0] = '\0';
        ck_assert_msg(threads_create(1, lists[i], &t, err, sizeof err) == STATUS_INVALID, "%s",
                      lists[i]);
        ck_assert_msg(strncmp(err, "cpus: ", 6) == 0, "%s", err);
    }
    ck_assert_int_eq(threads_create(2, "0", &t, err, sizeof err), STATUS_INVALID);
    ck_assert_int_eq(threads_create(0, NULL, &t, err, sizeof err), STATUS_INVALID);
    ck_assert_int_eq(threads_create(-1, NULL, &t, err, sizeof err), STATUS_INVALID);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("threads");
    TCase *tc = tcase_create("threads");
    tcase_set_timeout(tc, 30);
    tcase_add_loop_test(tc, threads_run_each_tile_once, 0, 4);
    tcase_add_test(tc, threads_jobs_do_not_linger);
    tcase_add_test(tc, threads_wake_after_idling);
    tcase_add_test(tc, threads_share_cores);
    tcase_add_test(tc, threads_bind_to_list);
    tcase_add_test(tc, threads_refuse_bad_input);
    suite_add_tcase(s, tc);
    return s;
}
