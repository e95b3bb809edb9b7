/* The buckets of captured passes. */
#include "common/engine/graph.h"
#include "tests/harness.h"

static struct graph_buckets b;

static void expect(uint32_t max_batch, uint32_t chunk, const uint32_t *rows, uint32_t n)
{
    ck_assert_ok(graph_buckets_init(&b, max_batch, chunk));
    ck_assert_uint_eq(b.n, n);
    for (uint32_t i = 0; i < n; i++)
        ck_assert_uint_eq(b.rows[i], rows[i]);
    graph_buckets_fini(&b);
}

START_TEST(graph_buckets_lists)
{
    expect(1, 64, (uint32_t[]){1, 64, 65}, 3);
    expect(8, 512, (uint32_t[]){1, 2, 4, 8, 64, 128, 256, 512, 520}, 9);
    expect(20, 48, (uint32_t[]){1, 2, 4, 8, 16, 24, 48, 68}, 8);
    expect(80, 96, (uint32_t[]){1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 176}, 14);
    expect(257, 16, (uint32_t[]){1,  2,   4,   8,   16,  24,  32,  40,  48,  56,  64,  80,
                                 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256, 273},
           24);
}
END_TEST

START_TEST(graph_buckets_shape)
{
    /* Ascending; decode buckets pad by less than a half from 3 rows on; everything is covered. */
    for (uint32_t batch = 1; batch <= 400; batch += 13) {
        for (uint32_t chunk = 16; chunk <= 4096; chunk = chunk * 3 / 16 * 16 + 16) {
            ck_assert_ok(graph_buckets_init(&b, batch, chunk));
            for (uint32_t i = 1; i < b.n; i++)
                ck_assert_uint_lt(b.rows[i - 1], b.rows[i]);
            ck_assert_uint_eq(b.rows[b.n - 1], batch + chunk);
            for (uint32_t n = 1; n <= batch; n++) {
                uint32_t at = graph_buckets_find(&b, n);
                ck_assert(at < b.n && b.rows[at] >= n && (at == 0 || b.rows[at - 1] < n));
                ck_assert(b.rows[at] <= 2 * n || (n > 4 && b.rows[at] < n + 8));
                ck_assert(n < 64 || b.rows[at] < n + 32);
            }
            ck_assert_uint_eq(b.rows[graph_buckets_find(&b, chunk)], chunk);
            ck_assert_uint_eq(graph_buckets_find(&b, batch + chunk + 1), b.n);
            graph_buckets_fini(&b);
        }
    }
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("graph");
    TCase *t = tcase_create("buckets");
    tcase_add_test(t, graph_buckets_lists);
    tcase_add_test(t, graph_buckets_shape);
    suite_add_tcase(s, t);
    return s;
}
