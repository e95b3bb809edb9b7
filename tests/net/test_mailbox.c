/* Mailboxes: many threads, one loop; made for ThreadSanitizer. */
#include <pthread.h>

#include "common/net/loop.h"
#include "tests/net/net_test.h"

#define THREADS 4
#define ITEMS   20000

struct item {
    struct mail mail;
    int thread, number;
    int payload[4]; /* written by the poster, read by the loop */
};

static struct loop *loop;
static struct mailbox *box;
static int next[THREADS], total;
static bool destroy_at_first, post_back;

static void on_mail(void *arg, struct mail *m)
{
    struct item *it = (struct item *)m;
    ck_assert_int_eq(it->number, next[it->thread]); /* in the order of its thread */
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(it->payload[i], it->number + i);
    next[it->thread]++;
    total++;
    if (destroy_at_first) {
        destroy_at_first = false;
        mailbox_destroy(box);
    }
    if (post_back && it->number < 100) {
        it->number++;
        for (int i = 0; i < 4; i++)
            it->payload[i]++;
        mailbox_post(box, &it->mail);
        return;
    }
    free(it);
}

static void post(int thread, int number)
{
    struct item *it = calloc(1, sizeof *it);
    it->thread = thread;
    it->number = number;
    for (int i = 0; i < 4; i++)
        it->payload[i] = number + i;
    mailbox_post(box, &it->mail);
}

static void *poster(void *arg)
{
    for (int i = 0; i < ITEMS; i++)
        post((int)(intptr_t)arg, i);
    return NULL;
}

static void setup(void)
{
    ck_assert_ok(loop_create(&loop));
    ck_assert_ok(mailbox_create(loop, on_mail, NULL, &box));
}

static void teardown(void)
{
    loop_destroy(loop);
}

static bool have_all(void *arg)
{
    return total == *(int *)arg;
}

START_TEST(mailbox_many_threads)
{
    pthread_t threads[THREADS];
    int all = THREADS * ITEMS;
    for (intptr_t i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, poster, (void *)i), 0);
    run_until(loop, have_all, &all);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    mailbox_destroy(box);
}
END_TEST

START_TEST(mailbox_destroy_delivers_first)
{
    for (int i = 0; i < 10; i++)
        post(0, i);
    mailbox_destroy(box);
    ck_assert_int_eq(total, 10);
}
END_TEST

START_TEST(mailbox_destroyed_by_a_delivery)
{
    int all = 10;
    destroy_at_first = true;
    for (int i = 0; i < 10; i++)
        post(0, i);
    run_until(loop, have_all, &all);
}
END_TEST

START_TEST(mailbox_posts_from_the_loop)
{
    int all = 101;
    post_back = true;
    post(0, 0);
    run_until(loop, have_all, &all);
}
END_TEST

START_TEST(mailbox_left_to_the_loop)
{
    for (int i = 0; i < 3; i++)
        post(1, i);
    loop_destroy(loop);
    ck_assert_int_eq(total, 3);
    ck_assert_ok(loop_create(&loop));
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("mailbox");
    TCase *c = tcase_create("mailbox");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_set_timeout(c, 30);
    tcase_add_test(c, mailbox_many_threads);
    tcase_add_test(c, mailbox_destroy_delivers_first);
    tcase_add_test(c, mailbox_destroyed_by_a_delivery);
    tcase_add_test(c, mailbox_posts_from_the_loop);
    tcase_add_test(c, mailbox_left_to_the_loop);
    suite_add_tcase(s, c);
    return s;
}
