/* metrics: the page of a process, pages merged, and promtool's opinion of both. */
#include "common/base/metrics.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"

static char *render(void)
{
    struct buf b;
    buf_init(&b, 0);
    metrics_render(&b);
    ck_assert(buf_ok(&b));
    return buf_take(&b);
}

/* Merges up to four texts. */
static char *merge(const char *a, const char *b, const char *c, const char *d)
{
    const char *texts[] = {a, b, c, d};
    struct buf pages[4], out;
    size_t n = 0;
    for (; n < 4 && texts[n]; n++) {
        buf_init(&pages[n], 0);
        buf_puts(&pages[n], texts[n]);
    }
    buf_init(&out, 0);
    metrics_merge(&out, pages, n);
    for (size_t i = 0; i < n; i++)
        buf_fini(&pages[i]);
    ck_assert(buf_ok(&out));
    return buf_take(&out);
}

static void expect_merge(const char *want, const char *a, const char *b, const char *c)
{
    char *got = merge(a, b, c, NULL);
    ck_assert_str_eq(got, want);
    free(got);
}

static void expect_clean(const char *page)
{
    FILE *f;
    if (system("command -v promtool >/dev/null") != 0) {
        printf("SKIP promtool check of a metrics page: no promtool (deploy/setup.sh --tests)\n");
        return;
    }
    f = popen("promtool check metrics", "w");
    ck_assert_ptr_nonnull(f);
    fputs(page, f);
    ck_assert_int_eq(pclose(f), 0);
}

START_TEST(metrics_page_of_all_types)
{
    const double bounds[] = {0.1, 1, 2.5};
    struct metric *c = metrics_counter("baton_requests_total", "code=\"200\"", "Requests \\ all.");
    struct metric *d = metrics_counter("baton_requests_total", "code=\"429\"", "Requests \\ all.");
    struct metric *g = metrics_gauge("baton_requests_running", "", "Running.");
    struct metric *h =
        metrics_histogram("baton_ttft_seconds", "role=\"x\"", "First token.", bounds, 3);
    metrics_add(c, 2);
    metrics_add(c, 0.5);
    metrics_add(d, 1e15);
    metrics_set(g, 7);
    metrics_add(g, -3);
    metrics_observe(h, 0.1); /* a bound belongs to its bucket */
    metrics_observe(h, 0.2);
    metrics_observe(h, 99);
    metrics_observe(h, NAN); /* ignored */
    char *page = render();
    ck_assert_str_eq(page, "# HELP baton_requests_total Requests \\\\ all.\n"
                           "# TYPE baton_requests_total counter\n"
                           "baton_requests_total{code=\"200\"} 2.5\n"
                           "baton_requests_total{code=\"429\"} 1e+15\n"
                           "# HELP baton_requests_running Running.\n"
                           "# TYPE baton_requests_running gauge\n"
                           "baton_requests_running 4\n"
                           "# HELP baton_ttft_seconds First token.\n"
                           "# TYPE baton_ttft_seconds histogram\n"
                           "baton_ttft_seconds_bucket{role=\"x\",le=\"0.1\"} 1\n"
                           "baton_ttft_seconds_bucket{role=\"x\",le=\"1\"} 2\n"
                           "baton_ttft_seconds_bucket{role=\"x\",le=\"2.5\"} 2\n"
                           "baton_ttft_seconds_bucket{role=\"x\",le=\"+Inf\"} 3\n"
                           "baton_ttft_seconds_sum{role=\"x\"} 99.3\n"
                           "baton_ttft_seconds_count{role=\"x\"} 3\n");
    expect_clean(page);
    /* A page that is merged with nothing stays as it is. */
    expect_merge(page, page, NULL, NULL);
    expect_merge(page, page, page, NULL);
    free(page);
}
END_TEST

START_TEST(metrics_same_name_same_metric)
{
    struct metric *a = metrics_counter("a_total", "x=\"1\"", "A.");
    ck_assert_ptr_eq(metrics_counter("a_total", "x=\"1\"", "A."), a);
    ck_assert_ptr_ne(metrics_counter("a_total", "x=\"2\"", "A."), a);
    ck_assert_ptr_ne(metrics_counter("a_total", "", "A."), a);
    metrics_add(a, 3);
    ck_assert_double_eq(metrics_value(a), 3);
}
END_TEST

START_TEST(metrics_two_definitions_abort)
{
    metrics_counter("a_total", "", "A.");
    metrics_gauge("a_total", "", "A.");
}
END_TEST

START_TEST(metrics_bad_name_aborts)
{
    metrics_counter("1a-total", "", "A.");
}
END_TEST

START_TEST(metrics_counter_never_falls)
{
    metrics_add(metrics_counter("a_total", "", "A."), -1);
}
END_TEST

START_TEST(metrics_numbers_read_back)
{
    const double values[] = {0.1, 1.0 / 3, 1e300, 123456789012345678.0, 5e-324, -0.25, 0};
    struct metric *g = metrics_gauge("g", "", "G.");
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        metrics_set(g, values[i]);
        char *page = render();
        ck_assert_double_eq(strtod(strstr(page, "\ng ") + 3, NULL), values[i]);
        free(page);
    }
    metrics_set(g, INFINITY);
    char *page = render();
    ck_assert_ptr_nonnull(strstr(page, "\ng +Inf\n"));
    free(page);
    metrics_set(g, NAN);
    page = render();
    ck_assert_ptr_nonnull(strstr(page, "\ng NaN\n"));
    free(page);
}
END_TEST

START_TEST(metrics_label_escapes)
{
    struct buf b;
    buf_init(&b, 0);
    metrics_label(&b, "worker", "decoded-1");
    metrics_label(&b, "path", "a\"b\\c\nd");
    ck_assert_str_eq(buf_str(&b), "worker=\"decoded-1\",path=\"a\\\"b\\\\c\\nd\"");
    metrics_gauge("g", buf_str(&b), "Line one.\nLine two.");
    buf_fini(&b);
    char *page = render();
    expect_merge(page, page, NULL, NULL);
    expect_clean(page);
    free(page);
}
END_TEST

static struct metric *shared_counter, *shared_histogram;
static void *hammer(void *arg)
{
    (void)arg;
    for (int i = 0; i < 20000; i++) {
        metrics_add(shared_counter, 1);
        metrics_observe(shared_histogram, i % 2 ? 0.005 : 50);
    }
    return NULL;
}

START_TEST(metrics_threads_lose_nothing)
{
    pthread_t t[4];
    shared_counter = metrics_counter("hits_total", "", "Hits.");
    shared_histogram =
        metrics_histogram("wait_seconds", "", "Wait.", metrics_itl_bounds, metrics_itl_bounds_n);
    for (int i = 0; i < 4; i++)
        pthread_create(&t[i], NULL, hammer, NULL);
    char *page = render(); /* while they run */
    expect_clean(page);
    free(page);
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    ck_assert_double_eq(metrics_value(shared_counter), 80000);
    page = render();
    ck_assert_ptr_nonnull(strstr(page, "wait_seconds_bucket{le=\"0.01\"} 40000\n"));
    ck_assert_ptr_nonnull(strstr(page, "wait_seconds_bucket{le=\"+Inf\"} 80000\n"));
    ck_assert_ptr_nonnull(strstr(page, "wait_seconds_count 80000\n"));
    free(page);
}
END_TEST

START_TEST(metrics_bounds_ascend)
{
    for (size_t i = 1; i < metrics_ttft_bounds_n; i++)
        ck_assert_double_lt(metrics_ttft_bounds[i - 1], metrics_ttft_bounds[i]);
    for (size_t i = 1; i < metrics_itl_bounds_n; i++)
        ck_assert_double_lt(metrics_itl_bounds[i - 1], metrics_itl_bounds[i]);
}
END_TEST

START_TEST(merge_groups_families)
{
    expect_merge("# HELP a_total A.\n# TYPE a_total counter\n"
                 "a_total{w=\"1\"} 1\na_total{w=\"2\"} 2\n"
                 "# TYPE b gauge\nb 5\nb{w=\"2\"} 6 1700000000000\n"
                 "# TYPE c gauge\nc 7\n",
                 "# HELP a_total A.\n# TYPE a_total counter\na_total{w=\"1\"} 1\n"
                 "# TYPE b gauge\nb 5\n",
                 "# TYPE b gauge\nb { w = \"2\" , }\t6 1700000000000\n# HELP a_total Other words.\n"
                 "# TYPE a_total counter\n  a_total{w=\"2\"}2\n",
                 "# TYPE c gauge\nc 7");
}
END_TEST

START_TEST(merge_drops_what_is_taken)
{
    /* Same series again, also with its labels in another order. */
    expect_merge("# TYPE a gauge\na{x=\"1\",y=\"2\"} 1\na{x=\"1\"} 3\n",
                 "# TYPE a gauge\na{x=\"1\",y=\"2\"} 1\na{y=\"2\",x=\"1\"} 2\n",
                 "# TYPE a gauge\na{y=\"2\",x=\"1\"} 9\na{x=\"1\"} 3\n", NULL);
    /* Another type: the page loses that family, and only that. */
    expect_merge("# TYPE a gauge\na 1\n# TYPE b gauge\nb 4\n", "# TYPE a gauge\na 1\n",
                 "# TYPE a counter\na{x=\"1\"} 3\n# TYPE b gauge\nb 4\n", NULL);
    /* A histogram of two pages would be a mixture of buckets. */
    expect_merge("# TYPE h histogram\nh_bucket{le=\"1\"} 1\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\n"
                 "h_count 1\nh_bucket{le=\"+Inf\",w=\"2\"} 0\n",
                 "# TYPE h histogram\nh_bucket{le=\"1\"} 1\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\n"
                 "h_count 1\n",
                 "# TYPE h histogram\nh_bucket{le=\"2\"} 1\nh_bucket{le=\"+Inf\",w=\"2\"} 0\n",
                 NULL);
    /* The suffix alone does not make a histogram. */
    expect_merge("x_count 1\n", "x_count 1\n", NULL, NULL);
    expect_merge("# TYPE s summary\ns{quantile=\"0.5\"} 1\ns_sum 2\ns_count 3\ns_bucket 4\n",
                 "# TYPE s summary\ns{quantile=\"0.5\"} 1\ns_sum 2\ns_count 3\ns 9\ns_bucket 4\n",
                 NULL, NULL);
}
END_TEST

static const char *const bad_lines[] = {
    "a",
    "a ",
    "a{} ",
    "a{",
    "a{x",
    "a{x=",
    "a{x=\"1\"",
    "a{x=\"1} 1",
    "a{x=\"\\\"} 1",
    "a{x=\"\\t\"} 1",
    "a{x='1'} 1",
    "a{x=\"1\" y=\"2\"} 1",
    "a{x=\"1\",x=\"1\"} 1",
    "a{1x=\"1\"} 1",
    "a{x:y=\"1\"} 1",
    "a{=\"1\"} 1",
    "a{,} 1",
    "a{x=\"\xff\"} 1",
    "a{x=\"\xc0\x80\"} 1",
    "a{x=\"\xed\xa0\x80\"} 1",
    "a{x=\"\xe2\x82\"} 1",
    "a{x=\"\xf5\x80\x80\x80\"} 1",
    "1a 1",
    "-a 1",
    "a 1x",
    "a 0x10",
    "a infinity",
    "a nan",
    "a NaN(1)",
    "a +NaN1",
    "a --1",
    "a 1e",
    "a 1 2 3",
    "a 1 1.5",
    "a 1 99999999999999999999",
    "a 11111111111111111111111111111111111111111111111111111111111111111111111111",
    "a,1",
    "a=1",
    "# TYPE a",
    "# TYPE a nothing",
    "# TYPE 1a gauge",
    "#TYPE a gauge",
    "# HELP",
    "# HELP a bad \\escape",
    "# just a comment",
    "#",
    "<html>",
    "h_bucket 1",
    "h_bucket{le=\"x\"} 1",
    "h 1",
    "h_sum{le=\"1\"} 1",
};

START_TEST(merge_drops_bad_lines)
{
    char page[512];
    snprintf(page, sizeof page,
             "# TYPE h histogram\n%s\ngood 1\n%s\nh_bucket{le=\"+Inf\"} 0\nh_sum 0\nh_count 0\n%s",
             bad_lines[_i], bad_lines[_i], bad_lines[_i]);
    expect_merge("# TYPE h histogram\nh_bucket{le=\"+Inf\"} 0\nh_sum 0\nh_count 0\ngood 1\n", page,
                 NULL, NULL);
}
END_TEST

START_TEST(merge_takes_any_bytes)
{
    /* Every prefix and every one-byte change of a page: no crash, and the result is stable. */
    const char *page = "# HELP a_total A \\\\ b.\n# TYPE a_total counter\n"
                       "a_total{x=\"\\\"\\n\",y=\"\xe2\x82\xac\"} 1.5e3 17\n"
                       "# TYPE h histogram\nh_bucket{le=\"+Inf\"} 3\nh_sum 1\nh_count 3\n";
    size_t n = strlen(page);
    for (size_t i = 0; i <= 2 * n; i++) {
        for (unsigned c = 0; c < (i < n ? 1 : 256); c += 5) {
            struct buf in, once, twice;
            buf_init(&in, 0);
            buf_append(&in, page, i < n ? i : n);
            if (i >= n && i < 2 * n)
                in.data[i - n] = (char)c;
            buf_init(&once, 0);
            buf_init(&twice, 0);
            metrics_merge(&once, &in, 1);
            metrics_merge(&twice, &once, 1);
            ck_assert_str_eq(buf_str(&once), buf_str(&twice));
            buf_fini(&in);
            buf_fini(&once);
            buf_fini(&twice);
        }
    }
}
END_TEST

START_TEST(merge_large_pages)
{
    /* 60,000 different series: lookups must not be linear. */
    struct buf pages[2], out;
    for (int p = 0; p < 2; p++) {
        buf_init(&pages[p], 0);
        for (int i = 0; i < 30000; i++)
            buf_printf(&pages[p], "m%d{w=\"%d\",p=\"%d\"} %d\n", i % 300, i, p, i);
    }
    buf_init(&out, 0);
    metrics_merge(&out, pages, 2);
    ck_assert_uint_eq(out.len, pages[0].len + pages[1].len);
    for (int p = 0; p < 2; p++)
        buf_fini(&pages[p]);
    buf_fini(&out);
}
END_TEST

START_TEST(merge_nothing)
{
    expect_merge("", "", "", "\n\n");
    struct buf none, out;
    buf_init(&none, 0);
    buf_init(&out, 0);
    metrics_merge(&out, &none, 1);
    metrics_merge(&out, NULL, 0);
    ck_assert_str_eq(buf_str(&out), "");
    buf_fini(&out);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("metrics");
    TCase *t = tcase_create("metrics");
    tcase_add_test(t, metrics_page_of_all_types);
    tcase_add_test(t, metrics_same_name_same_metric);
    tcase_add_test_raise_signal(t, metrics_two_definitions_abort, SIGABRT);
    tcase_add_test_raise_signal(t, metrics_bad_name_aborts, SIGABRT);
    tcase_add_test_raise_signal(t, metrics_counter_never_falls, SIGABRT);
    tcase_add_test(t, metrics_numbers_read_back);
    tcase_add_test(t, metrics_label_escapes);
    tcase_add_test(t, metrics_threads_lose_nothing);
    tcase_add_test(t, metrics_bounds_ascend);
    suite_add_tcase(s, t);
    t = tcase_create("merge");
    tcase_add_test(t, merge_groups_families);
    tcase_add_test(t, merge_drops_what_is_taken);
    tcase_add_loop_test(t, merge_drops_bad_lines, 0, sizeof bad_lines / sizeof bad_lines[0]);
    tcase_add_test(t, merge_takes_any_bytes);
    tcase_add_test(t, merge_large_pages);
    tcase_add_test(t, merge_nothing);
    suite_add_tcase(s, t);
    return s;
}
