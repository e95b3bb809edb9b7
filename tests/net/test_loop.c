/* The loop's own services: timers, deferred calls, descriptors, signals, and what loop_destroy
 * cleans up. */
#include "common/net/loop.h"

#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>

#include "tests/net/net_test.h"

/* A string as the argument of a callback. */
#define S(text) ((void *)(intptr_t)(text))

static struct loop *loop;
static char order[64];

static void setup(void)
{
    order[0] = 0;
    ck_assert_ok(loop_create(&loop));
}

static void teardown(void)
{
    loop_destroy(loop);
}

static void note(void *arg)
{
    strcat(order, arg);
}

static bool noted(void *arg)
{
    return strlen(order) >= strlen(arg);
}

static void defer_more(void *arg)
{
    strcat(order, "1");
    loop_defer(loop, note, S("3"));
}

START_TEST(loop_defer_runs_in_order_once)
{
    loop_defer(loop, defer_more, NULL);
    loop_defer(loop, note, S("2"));
    ck_assert_str_eq(order, ""); /* not from inside */
    run_until(loop, noted, S("123"));
    ck_assert_str_eq(order, "123");
}
END_TEST

static int endless_runs;
static bool endless_enough;
static void endless(void *arg)
{
    endless_runs++;
    if (!endless_enough)
        loop_defer(loop, endless, NULL);
}

static void stop_endless(void *arg)
{
    loop_stop(loop);
}

/* A call that defers itself again and again does not starve timers. */
START_TEST(loop_defer_does_not_starve)
{
    struct loop_timer *t;
    endless(NULL);
    ck_assert_ok(loop_timer_create(loop, stop_endless, NULL, &t));
    loop_timer_start(t, 5, 0);
    loop_run(loop);
    ck_assert_int_gt(endless_runs, 2);
    loop_timer_free(t);
    endless_enough = true; /* loop_destroy waits for deferred calls */
}
END_TEST

START_TEST(loop_timer_order_and_repeat)
{
    struct loop_timer *a, *b, *c;
    ck_assert_ok(loop_timer_create(loop, note, S("a"), &a));
    ck_assert_ok(loop_timer_create(loop, note, S("b"), &b));
    ck_assert_ok(loop_timer_create(loop, note, S("c"), &c));
    loop_timer_start(a, 30, 0);
    loop_timer_start(b, 10, 0);
    loop_timer_start(c, 1, 0);
    loop_timer_stop(c);
    run_until(loop, noted, S("ba"));
    ck_assert_str_eq(order, "ba");
    loop_timer_start(c, 1, 1);
    run_until(loop, noted, S("baccc"));
    loop_timer_free(c);
    order[0] = 0;
    loop_timer_start(a, 5, 0);
    run_until(loop, noted, S("a"));
    ck_assert_str_eq(order, "a"); /* nothing of c after its end */
    loop_timer_free(a);
    loop_timer_free(b);
    loop_timer_free(NULL);
}
END_TEST

static struct loop_timer *self;
static void free_self(void *arg)
{
    strcat(order, "x");
    loop_timer_free(self);
}

START_TEST(loop_timer_freed_in_its_callback)
{
    ck_assert_ok(loop_timer_create(loop, free_self, NULL, &self));
    loop_timer_start(self, 0, 1);
    run_until(loop, noted, S("x"));
    ck_assert_str_eq(order, "x");
}
END_TEST

static uint64_t fired_ms;
static void fire(void *arg)
{
    fired_ms = clock_ms();
    strcat(order, "f");
}
static uint64_t started_ms;
static void busy_then_start(void *arg)
{
    uint64_t end = clock_ms() + 60;
    while (clock_ms() < end)
        ;
    started_ms = clock_ms();
    loop_timer_start(arg, 40, 0);
}

/* A timer counts from the moment it is started, not from the beginning of a long turn. */
START_TEST(loop_timer_after_a_long_turn)
{
    struct loop_timer *t;
    ck_assert_ok(loop_timer_create(loop, fire, NULL, &t));
    loop_defer(loop, busy_then_start, t);
    run_until(loop, noted, S("f"));
    ck_assert_uint_ge(fired_ms - started_ms + 1, 40);
    loop_timer_free(t);
}
END_TEST

static void take_event(void *arg)
{
    uint64_t v;
    ck_assert_int_eq(read(*(int *)arg, &v, sizeof v), sizeof v);
    ck_assert_uint_eq(v, 7);
    strcat(order, "r");
}

START_TEST(loop_on_readable_reports)
{
    int fd = eventfd(0, EFD_NONBLOCK);
    uint64_t v = 7;
    ck_assert_ok(loop_on_readable(loop, fd, take_event, &fd));
    for (int i = 0; i < 3; i++) {
        order[0] = 0;
        ck_assert_int_eq(write(fd, &v, sizeof v), sizeof v);
        run_until(loop, noted, S("r"));
    }
    ck_assert_int_ne(loop_on_readable(loop, -1, take_event, &fd), STATUS_OK);
}
END_TEST

static void on_signal(void *arg, int signo)
{
    ck_assert_int_eq(signo, SIGUSR1);
    strcat(order, "s");
}

START_TEST(loop_on_signal_reports)
{
    ck_assert_ok(loop_on_signal(loop, SIGUSR1, on_signal, NULL));
    raise(SIGUSR1);
    run_until(loop, noted, S("s"));
    ck_assert_int_ne(loop_on_signal(loop, SIGKILL, on_signal, NULL), STATUS_OK);
    struct sigaction now;
    sigaction(SIGPIPE, NULL, &now);
    ck_assert(now.sa_handler == SIG_IGN);
}
END_TEST

START_TEST(loop_now_is_monotonic_time)
{
    uint64_t now = loop_now_ms(loop), real = clock_ms();
    ck_assert(now <= real && real - now < 1000);
}
END_TEST

struct errand {
    pthread_t home;
    bool elsewhere;
};

static void errand_work(void *arg)
{
    struct errand *e = arg;
    e->elsewhere = !pthread_equal(e->home, pthread_self());
}

static void errand_done(void *arg)
{
    struct errand *e = arg;
    ck_assert(pthread_equal(e->home, pthread_self()));
    strcat(order, e->elsewhere ? "w" : "h");
}

START_TEST(loop_work_runs_elsewhere_ends_here)
{
    struct errand e[3];
    for (int i = 0; i < 3; i++) {
        e[i] = (struct errand){.home = pthread_self()};
        ck_assert_ok(loop_work(loop, errand_work, errand_done, &e[i]));
    }
    run_until(loop, noted, S("www"));
    ck_assert_str_eq(order, "www");
    ck_assert_ok(loop_work(loop, errand_work, errand_done, &e[0]));
    loop_destroy(loop); /* what is under way is waited for */
    ck_assert_str_eq(order, "wwww");
    ck_assert_ok(loop_create(&loop));
}
END_TEST

START_TEST(loop_destroy_frees_what_is_left)
{
    struct loop_timer *t;
    ck_assert_ok(loop_timer_create(loop, note, S("t"), &t));
    loop_timer_start(t, 1, 1);
    ck_assert_ok(loop_on_signal(loop, SIGUSR2, on_signal, NULL));
    loop_defer(loop, note, S("d"));
    loop_destroy(loop);
    ck_assert_str_eq(order, "d"); /* a deferred call runs: somebody's memory may hang on it */
    loop_destroy(NULL);
    ck_assert_ok(loop_create(&loop));
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("loop");
    TCase *c = tcase_create("loop");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, loop_defer_runs_in_order_once);
    tcase_add_test(c, loop_timer_order_and_repeat);
    tcase_add_test(c, loop_timer_freed_in_its_callback);
    tcase_add_test(c, loop_timer_after_a_long_turn);
    tcase_add_test(c, loop_on_readable_reports);
    tcase_add_test(c, loop_on_signal_reports);
    tcase_add_test(c, loop_now_is_monotonic_time);
    tcase_add_test(c, loop_work_runs_elsewhere_ends_here);
    tcase_add_test(c, loop_destroy_frees_what_is_left);
    tcase_add_test(c, loop_defer_does_not_starve);
    suite_add_tcase(s, c);
    return s;
}
