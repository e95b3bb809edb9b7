/* What a step costs: launches, allocations, the host's time. */
#include <time.h>

#include "tests/cuda/rig.h"

static struct rig rig;
static struct rig_seq seqs[16];
static struct rig_seq *list[16];
static const char *const models[] = {"llama", "qwen2", "qwen3"};

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define COUNTS_MALLOC
/* Counts what is allocated while `counting`, but for what the emulation allocates for itself. */
static bool counting;
static uint64_t allocations;
extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);

static void count(void)
{
    if (counting && !fake_gpu_inside())
        allocations++;
}
void *malloc(size_t n)
{
    count();
    return __libc_malloc(n);
}
void *calloc(size_t n, size_t size)
{
    count();
    return __libc_calloc(n, size);
}
void *realloc(void *p, size_t n)
{
    count();
    return __libc_realloc(p, n);
}
#endif

static void open_three(const char *model)
{
    int32_t ids[20];
    rig_open(&rig, model, &rig_options);
    for (uint32_t i = 0; i < 3; i++) {
        rig_random_ids(ids, 20, rig.info->vocab, i);
        rig_seq_init(&rig, &seqs[i], ids, 20, 60);
        list[i] = &seqs[i];
        rig_prefill(&rig, &seqs[i], 64);
    }
    rig_decode(&rig, list, 3);
}

START_TEST(costs_one_launch_per_step)
{
    open_three(models[_i]);
    struct fake_gpu_stats a = fake_gpu_stats();
    for (int i = 0; i < 20; i++)
        ck_assert_uint_eq(rig_decode(&rig, list, 3), 3);
    struct fake_gpu_stats b = fake_gpu_stats();
    ck_assert_uint_eq(b.launches - a.launches, 20);
    ck_assert_uint_eq(b.enqueued, a.enqueued);
    ck_assert_uint_eq(b.allocs, a.allocs);
    ck_assert_uint_eq(b.used, a.used);
    /* five nodes a layer, and begin, logits, sample */
    ck_assert_uint_eq(b.kernels - a.kernels, 20 * (5 * rig.info->n_layers + 3));
    ck_assert_uint_le(b.copies - a.copies, 20 * 2 + 2);
    rig_close(&rig);
}
END_TEST

START_TEST(costs_two_launches_when_constrained)
{
    uint32_t mask[16];
    open_three("llama");
    memset(mask, 0x55, sizeof mask);
    struct engine_row rows[3];
    struct engine_step s = {.rows = rows, .n_rows = 3, .late = true};
    for (uint32_t i = 0; i < 3; i++)
        rows[i] = rig_row(&seqs[i], 1);
    struct sample_params p = {.top_p = 1, .allowed = mask};
    rows[1].sampling = &p;
    struct fake_gpu_stats a = fake_gpu_stats();
    ck_assert_ok(engine_launch(rig.e, &s));
    ck_assert_ok(engine_sample(rig.e, &s));
    int rc;
    do {
        rc = engine_poll(rig.e, &s, true);
    } while (rc == STATUS_AGAIN);
    ck_assert_ok(rc);
    struct fake_gpu_stats b = fake_gpu_stats();
    ck_assert_uint_eq(b.launches - a.launches, 2);
    ck_assert_uint_eq(b.enqueued, a.enqueued);
    ck_assert_int_eq(rows[1].result.token % 2, 0);
    rig_close(&rig);
}
END_TEST

START_TEST(costs_nothing_allocated)
{
#ifdef COUNTS_MALLOC
    /* Two steps in flight, 20 times over; Check's own macros allocate, so they come afterwards. */
    open_three("qwen3");
    struct engine_row rows[2][3];
    struct engine_step step[2];
    int rc = 0;
    for (uint32_t i = 0; i < 3; i++)
        rows[0][i] = rig_row(&seqs[i], 1);
    step[0] = (struct engine_step){.rows = rows[0], .n_rows = 3};
    allocations = 0;
    counting = true;
    rc |= engine_launch(rig.e, &step[0]);
    for (uint32_t n = 0; n < 20; n++) {
        struct engine_step *old = &step[n % 2], *next = &step[(n + 1) % 2];
        *next = (struct engine_step){.rows = rows[(n + 1) % 2], .n_rows = 3};
        for (uint32_t i = 0; i < 3; i++) {
            next->rows[i] = old->rows[i];
            next->rows[i].tokens = NULL;
            next->rows[i].position++;
        }
        rc |= engine_launch(rig.e, next);
        int one;
        do {
            one = engine_poll(rig.e, old, false);
        } while (one == STATUS_AGAIN);
        rc |= one;
    }
    counting = false;
    rc |= engine_poll(rig.e, &step[0], true);
    ck_assert_ok(rc);
    ck_assert_uint_eq(allocations, 0);
    counting = true; /* the counter works */
    free(mem_array(3, 4));
    counting = false;
    ck_assert_uint_eq(allocations, 1);
    rig_close(&rig);
#endif
}
END_TEST

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

START_TEST(costs_host_time)
{
    /* From the rows of a step to its launch, and from its end to the tokens, without what the table
     * of runtime calls takes: a benchmark with a generous bound. */
    struct engine_options o = rig_options;
    int32_t ids[4];
    o.max_batch = 16;
    rig_open(&rig, "llama", &o);
    for (uint32_t i = 0; i < 16; i++) {
        rig_random_ids(ids, 4, rig.info->vocab, i);
        rig_seq_init(&rig, &seqs[i], ids, 4, 20);
        list[i] = &seqs[i];
        rig_prefill(&rig, &seqs[i], 64);
    }
    rig_decode(&rig, list, 16);
    double best = 1; /* others only add to it */
    for (int i = 0; i < 10; i++) {
        double inside = fake_gpu_stats().seconds, start = seconds();
        rig_decode(&rig, list, 16);
        double host = seconds() - start - (fake_gpu_stats().seconds - inside);
        best = host < best ? host : best;
    }
    printf("host time of a step of 16 sequences: %.1f us\n", best * 1e6);
    ck_assert(best < 2e-3);
    rig_close(&rig);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("costs");
    TCase *t = tcase_create("steps");
    tcase_add_loop_test(t, costs_one_launch_per_step, 0, 3);
    tcase_add_test(t, costs_two_launches_when_constrained);
    tcase_add_test(t, costs_nothing_allocated);
    tcase_add_test(t, costs_host_time);
    tcase_set_timeout(t, 60);
    suite_add_tcase(s, t);
    return s;
}
