/* Limits of keys, under a clock of the test's own. */
#include "routerd/quota.h"

#include <stdio.h>
#include <string.h>

#include "common/base/metrics.h"
#include "tests/harness.h"

static struct quotas *qs;
static uint64_t now = 1000000;

static void setup(void)
{
    ck_assert_int_eq(quotas_create(&qs), STATUS_OK);
}

static void teardown(void)
{
    quotas_destroy(qs);
}

static struct quota_verdict enter(const char *name, const struct api_limits *l, struct quota **q)
{
    struct quota_verdict v;
    ck_assert_int_eq(quota_enter(qs, name, name, l, now, q, &v), STATUS_OK);
    return v;
}

START_TEST(requests_refill_steadily)
{
    struct api_limits l = {.requests_per_minute = 3};
    struct quota *q;
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(enter("r", &l, &q).limit, QUOTA_FREE);
        quota_leave(q);
        ck_assert_uint_eq(quota_requests_left(q, now).left, 2u - (unsigned)i);
    }
    struct quota_verdict v = enter("r", &l, &q);
    ck_assert(v.limit == QUOTA_REQUESTS && v.retry_ms == 20000);
    ck_assert_uint_eq(quota_requests_left(q, now).full_ms, 60000);
    now += 19999;
    v = enter("r", &l, &q);
    ck_assert(v.limit == QUOTA_REQUESTS && v.retry_ms == 1);
    now += 1;
    ck_assert_int_eq(enter("r", &l, &q).limit, QUOTA_FREE);
    quota_leave(q);
    ck_assert_int_eq(enter("r", &l, &q).limit, QUOTA_REQUESTS);
    now += 3600000; /* an hour saves up a minute's worth, no more */
    for (int i = 0; i < 4; i++) {
        v = enter("r", &l, &q);
        ck_assert_int_eq(v.limit, i < 3 ? QUOTA_FREE : QUOTA_REQUESTS);
        if (v.limit == QUOTA_FREE)
            quota_leave(q);
    }
}
END_TEST

START_TEST(a_minute_gives_no_more_than_two)
{
    /* The most that any minute sees: what was saved up, and what refills meanwhile. */
    struct api_limits l = {.requests_per_minute = 60};
    struct quota *q;
    unsigned in = 0;
    for (uint64_t end = now + 60000; now < end; now += 10) {
        if (enter("m", &l, &q).limit == QUOTA_FREE) {
            quota_leave(q);
            in++;
        }
    }
    ck_assert_msg(in >= 119 && in <= 120, "%u", in);
}
END_TEST

START_TEST(tokens_of_prompts_and_answers)
{
    struct api_limits l = {.tokens_per_minute = 600};
    struct quota *q;
    ck_assert_int_eq(enter("t", &l, &q).limit, QUOTA_FREE);
    ck_assert_int_eq(quota_prompt(q, 601, now).limit, QUOTA_TOO_LARGE);
    ck_assert_int_eq(quota_prompt(q, 500, now).limit, QUOTA_FREE);
    struct quota_verdict v = quota_prompt(q, 101, now);
    ck_assert(v.limit == QUOTA_TOKENS && v.retry_ms == 100);
    quota_tokens(q, 300, now); /* an answer is never cut: it owes 200 */
    ck_assert_uint_eq(quota_tokens_left(q, now).left, 0);
    quota_leave(q);
    v = enter("t", &l, &q);
    ck_assert(v.limit == QUOTA_TOKENS && v.retry_ms == 20100);
    now += v.retry_ms;
    ck_assert_int_eq(enter("t", &l, &q).limit, QUOTA_FREE);
    ck_assert_int_eq(quota_prompt(q, 1, now).limit, QUOTA_FREE);
    quota_leave(q);
}
END_TEST

START_TEST(requests_at_a_time)
{
    struct api_limits l = {.concurrency = 2};
    struct quota *a, *b, *c;
    ck_assert_int_eq(enter("c", &l, &a).limit, QUOTA_FREE);
    ck_assert_int_eq(enter("c", &l, &b).limit, QUOTA_FREE);
    struct quota_verdict v = enter("c", &l, &c);
    ck_assert(v.limit == QUOTA_CONCURRENCY && v.retry_ms > 0);
    quota_leave(a);
    ck_assert_int_eq(enter("c", &l, &c).limit, QUOTA_FREE);
    quota_leave(b);
    quota_leave(c);
}
END_TEST

START_TEST(keys_do_not_share)
{
    struct api_limits l = {.requests_per_minute = 1}, none = {.requests_per_minute = 0};
    struct quota *q;
    ck_assert_int_eq(enter("k1", &l, &q).limit, QUOTA_FREE);
    quota_leave(q);
    ck_assert_int_eq(enter("k1", &l, &q).limit, QUOTA_REQUESTS);
    ck_assert_int_eq(enter("k2", &l, &q).limit, QUOTA_FREE);
    quota_leave(q);
    for (int i = 0; i < 100; i++) {
        ck_assert_int_eq(enter("k3", &none, &q).limit, QUOTA_FREE);
        ck_assert_int_eq(quota_prompt(q, 1000000, now).limit, QUOTA_FREE);
        quota_leave(q);
    }
    ck_assert_uint_eq(quota_requests_left(q, now).limit, 0);
}
END_TEST

START_TEST(a_new_limit_keeps_what_was_used)
{
    struct api_limits l = {.requests_per_minute = 10};
    struct quota *q;
    for (int i = 0; i < 6; i++) {
        ck_assert_int_eq(enter("n", &l, &q).limit, QUOTA_FREE);
        quota_leave(q);
    }
    l.requests_per_minute = 5; /* 6 of 5 are used */
    struct quota_verdict v = enter("n", &l, &q);
    ck_assert(v.limit == QUOTA_REQUESTS && v.retry_ms == 24000);
    quotas_sweep(qs, now); /* it is not forgotten */
    ck_assert_int_eq(enter("n", &l, &q).limit, QUOTA_REQUESTS);
    l.requests_per_minute = 20; /* 6 of 20 */
    for (int i = 0; i < 14; i++) {
        ck_assert_int_eq(enter("n", &l, &q).limit, QUOTA_FREE);
        quota_leave(q);
    }
    ck_assert_int_eq(enter("n", &l, &q).limit, QUOTA_REQUESTS);
    now += 60000;
    quotas_sweep(qs, now); /* now it is as good as new */
    ck_assert_int_eq(enter("n", &l, &q).limit, QUOTA_FREE);
    quotas_sweep(qs, now + 60000); /* but not while a request holds it */
    quota_leave(q);
}
END_TEST

static double labelled(const char *name, const char *tenant)
{
    char label[128];
    snprintf(label, sizeof label, "tenant=\"%s\"", tenant);
    return metrics_value(metrics_counter(name, label, "Requests that were let in, by tenant."));
}

START_TEST(tenants_are_counted_and_bounded)
{
    struct api_limits l = {.concurrency = 5};
    struct buf page;
    for (int i = 0; i < 150; i++) {
        char name[32];
        struct quota *q;
        snprintf(name, sizeof name, "tenant%d", i);
        ck_assert_int_eq(enter(name, &l, &q).limit, QUOTA_FREE);
        quota_leave(q);
    }
    ck_assert_double_eq(labelled("baton_tenant_requests_total", "tenant0"), 1);
    ck_assert_double_eq(labelled("baton_tenant_requests_total", "tenant99"), 1);
    ck_assert_double_eq(labelled("baton_tenant_requests_total", "other"), 50);
    buf_init(&page, 0);
    metrics_render(&page);
    ck_assert_ptr_null(strstr(buf_str(&page), "tenant=\"tenant100\""));
    buf_fini(&page);
}
END_TEST

START_TEST(tenants_of_several_keys_add_up)
{
    struct api_limits l = {.requests_per_minute = 1};
    struct quota *q;
    struct quota_verdict v;
    for (int i = 0; i < 4; i++) {
        const char *name = i % 2 ? "left" : "right";
        ck_assert_int_eq(quota_enter(qs, name, "team", &l, now, &q, &v), STATUS_OK);
        if (v.limit == QUOTA_FREE) {
            ck_assert_int_eq(quota_prompt(q, 10, now).limit, QUOTA_FREE);
            quota_tokens(q, 3, now);
            quota_leave(q);
        }
    }
    struct buf page;
    buf_init(&page, 0);
    metrics_render(&page);
    static const char *const lines[] = {
        "baton_tenant_requests_total{tenant=\"team\"} 2\n",
        "baton_tenant_refused_total{tenant=\"team\",limit=\"requests\"} 2\n",
        "baton_tenant_tokens_total{tenant=\"team\",kind=\"prompt\"} 20\n",
        "baton_tenant_tokens_total{tenant=\"team\",kind=\"answer\"} 6\n",
        "baton_tenant_requests_open{tenant=\"team\"} 0\n"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        ck_assert_msg(strstr(buf_str(&page), lines[i]), "%s in:\n%s", lines[i], buf_str(&page));
    buf_fini(&page);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("quota");
    TCase *c = tcase_create("quota");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, requests_refill_steadily);
    tcase_add_test(c, a_minute_gives_no_more_than_two);
    tcase_add_test(c, tokens_of_prompts_and_answers);
    tcase_add_test(c, requests_at_a_time);
    tcase_add_test(c, keys_do_not_share);
    tcase_add_test(c, a_new_limit_keeps_what_was_used);
    tcase_add_test(c, tenants_are_counted_and_bounded);
    tcase_add_test(c, tenants_of_several_keys_add_up);
    suite_add_tcase(s, c);
    return s;
}
