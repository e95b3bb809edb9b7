/* The emulated runtime itself: it does what a device does, and notices what it says it notices. */
#include "kernels/gpu_api.h"
#include "tests/cuda_emu/fake_gpu.h"
#include "tests/harness.h"

#include <stdlib.h>
#include <string.h>

static const struct gpu_api *api;
static struct gpu_stream *s;
static uint8_t *device;
static uint8_t *host, *back;
static void *mapped;

static void setup(void)
{
    void *p;
    api = fake_gpu_api();
    ck_assert_ok(api->stream_create(&s, false));
    ck_assert_ok(api->mem_alloc(&p, 64));
    device = p;
    ck_assert_ok(api->host_alloc(&p, &mapped, 64));
    host = p;
    ck_assert_ok(api->host_alloc(&p, &mapped, 64));
    back = p;
    memset(host, 7, 64);
}

struct add {
    uint8_t *at;
    int n;
};

static void add(const void *args)
{
    const struct add *a = args;
    for (int i = 0; i < 64; i++)
        a->at[i] = (uint8_t)(a->at[i] + a->n);
}

static void enqueue_add(int n)
{
    struct add a = {device, n};
    ck_assert_ok(fake_gpu_enqueue(s, "add", add, &a, sizeof a));
}

static struct gpu_exec *capture_add(int n)
{
    struct gpu_graph *g;
    struct gpu_exec *x;
    ck_assert_ok(api->capture_begin(s));
    enqueue_add(n);
    ck_assert_ok(api->capture_end(s, &g));
    ck_assert_ok(api->graph_instantiate(g, &x));
    ck_assert_ok(api->graph_destroy(g));
    return x;
}

START_TEST(fake_runs_in_order)
{
    /* Nothing before somebody waits; then all of it, in order, and a graph as often as launched. */
    ck_assert_uint_eq(device[0], 0xff);
    struct gpu_exec *x = capture_add(3);
    struct fake_gpu_stats before = fake_gpu_stats();
    ck_assert_ok(api->copy_async(device, host, 64, GPU_TO_DEVICE, s));
    ck_assert_ok(api->exec_launch(x, s));
    enqueue_add(1);
    ck_assert_ok(api->exec_launch(x, s));
    ck_assert_uint_eq(device[0], 0xff);
    ck_assert_ok(api->copy_async(back, device, 64, GPU_TO_HOST, s));
    ck_assert_uint_eq(back[32], 0xa5);
    ck_assert_ok(api->stream_sync(s));
    ck_assert_uint_eq(device[63], 14);
    ck_assert_uint_eq(back[32], 14);
    struct fake_gpu_stats after = fake_gpu_stats();
    ck_assert_uint_eq(after.launches - before.launches, 2);
    ck_assert_uint_eq(after.enqueued - before.enqueued, 1);
    ck_assert_uint_eq(after.kernels - before.kernels, 3);
    ck_assert_ok(api->exec_destroy(x));
}
END_TEST

START_TEST(fake_events_order_streams)
{
    /* Without the event, one of many seeds lets the second stream go first. */
    struct gpu_stream *other;
    struct gpu_event *e;
    int early = 0;
    ck_assert_ok(api->stream_create(&other, false));
    ck_assert_ok(api->event_create(&e, false));
    for (uint64_t seed = 0; seed < 64; seed++) {
        bool wait = seed % 2;
        fake_gpu_seed(seed);
        memset(host, (int)seed, 64);
        ck_assert_ok(api->copy_async(device, host, 64, GPU_TO_DEVICE, s));
        enqueue_add(1);
        ck_assert_ok(api->event_record(e, s));
        if (wait)
            ck_assert_ok(api->stream_wait(other, e));
        ck_assert_ok(api->copy_async(back, device, 64, GPU_TO_HOST, other));
        ck_assert_ok(api->stream_sync(other));
        if (wait)
            ck_assert_uint_eq(back[9], seed + 1);
        early += back[9] != seed + 1;
        ck_assert_ok(api->stream_sync(s));
    }
    ck_assert_int_gt(early, 5);
}
END_TEST

START_TEST(fake_queries)
{
    struct gpu_event *e;
    ck_assert_ok(api->event_create(&e, true));
    ck_assert_ok(api->event_query(e)); /* never recorded: nothing to wait for */
    ck_assert_ok(api->fill_async(device, 0, 64, s));
    enqueue_add(1);
    ck_assert_ok(api->event_record(e, s));
    ck_assert_int_eq(api->event_query(e), GPU_ERROR_NOT_READY);
    ck_assert_int_eq(api->event_query(e), GPU_ERROR_NOT_READY);
    ck_assert_ok(api->event_query(e));
    ck_assert_uint_eq(device[5], 1);
    ck_assert_ok(api->event_destroy(e));
}
END_TEST

START_TEST(fake_memory_is_counted)
{
    void *p;
    size_t left, total, after;
    fake_gpu_memory(1 << 20, 1000);
    ck_assert_ok(api->mem_info(&left, &total));
    ck_assert_uint_eq(total, 1 << 20);
    ck_assert_uint_eq(left, total - 1000 - 64);
    ck_assert_int_eq(api->mem_alloc(&p, left + 1), GPU_ERROR_MEMORY);
    ck_assert_ok(api->mem_alloc(&p, left));
    ck_assert_ok(api->mem_info(&after, &total));
    ck_assert_uint_eq(after, 0);
    ck_assert_ok(api->mem_free(p));
    struct gpu_exec *x = capture_add(1);
    ck_assert_ok(api->mem_info(&after, &total));
    ck_assert_uint_lt(after, left);
    ck_assert_ok(api->exec_destroy(x));
    ck_assert_ok(api->mem_info(&after, &total));
    ck_assert_uint_eq(after, left);
    fake_gpu_fail("mem_alloc", 2, GPU_ERROR_MEMORY);
    ck_assert_ok(api->mem_alloc(&p, 8));
    ck_assert_int_eq(api->mem_alloc(&p, 8), GPU_ERROR_MEMORY);
    ck_assert_ok(api->mem_alloc(&p, 8));
}
END_TEST

/* ---- what must abort ------------------------------------------------------------------------ */

static void sync_in_capture(void)
{
    ck_assert_ok(api->capture_begin(s));
    ck_assert_int_ne(api->stream_sync(s), 0);
}
static void alloc_in_capture(void)
{
    void *p;
    ck_assert_ok(api->capture_begin(s));
    ck_assert_int_ne(api->mem_alloc(&p, 1), 0);
}
static void query_in_capture(void)
{
    struct gpu_event *e;
    ck_assert_ok(api->event_create(&e, false));
    ck_assert_ok(api->capture_begin(s));
    ck_assert_int_ne(api->event_query(e), 0);
}
static void other_stream_in_capture(void)
{
    struct gpu_stream *other;
    ck_assert_ok(api->stream_create(&other, false));
    ck_assert_ok(api->capture_begin(s));
    ck_assert_int_ne(api->fill_async(device, 0, 1, other), 0);
}
static void host_copy_in_capture(void)
{
    ck_assert_ok(api->capture_begin(s));
    ck_assert_int_ne(api->copy_async(device, host, 64, GPU_TO_DEVICE, s), 0);
}
static void pageable_memory(void)
{
    uint8_t mine[8] = {0};
    ck_assert_int_ne(api->copy_async(device, mine, 8, GPU_TO_DEVICE, s), 0);
}
static void host_reuse(void)
{
    ck_assert_ok(api->copy_async(device, host, 64, GPU_TO_DEVICE, s));
    host[63]++;
    ck_assert_ok(api->stream_sync(s));
}
static void host_write_below_a_copy(void)
{
    ck_assert_ok(api->copy_async(host, device, 64, GPU_TO_HOST, s));
    host[63] = 0;
    ck_assert_ok(api->stream_sync(s));
}
static void freed_too_early(void)
{
    ck_assert_ok(api->copy_async(device, host, 64, GPU_TO_DEVICE, s));
    ck_assert_ok(api->host_free(host));
}
static void copy_beyond_the_end(void)
{
    ck_assert_int_ne(api->copy_async(device + 1, host, 64, GPU_TO_DEVICE, s), 0);
}
static void kernel_on_freed_memory(void)
{
    enqueue_add(1);
    ck_assert_ok(api->mem_free(device));
    ck_assert_ok(api->stream_sync(s));
}
static void graph_on_freed_memory(void)
{
    struct gpu_exec *x = capture_add(1);
    ck_assert_ok(api->mem_free(device));
    ck_assert_ok(api->exec_launch(x, s));
    ck_assert_ok(api->stream_sync(s));
}
static void graph_destroyed_in_flight(void)
{
    struct gpu_exec *x = capture_add(1);
    ck_assert_ok(api->exec_launch(x, s));
    ck_assert_ok(api->exec_destroy(x));
}
static void graph_launched_after_destroy(void)
{
    struct gpu_exec *x = capture_add(1);
    ck_assert_ok(api->exec_destroy(x));
    ck_assert_ok(api->exec_launch(x, s));
}
static void event_destroyed_in_flight(void)
{
    struct gpu_event *e;
    ck_assert_ok(api->event_create(&e, false));
    enqueue_add(1);
    ck_assert_ok(api->event_record(e, s));
    ck_assert_ok(api->event_destroy(e));
}
static void too_many_rows(void)
{
    api->watch->step(4, 5);
}

/* A pool of 2 layers and 4 blocks of 16 tokens. */
static void open_pool(void)
{
    api->watch->kv_pool(device, 2, 4, 8, 16);
}
static void kv_never_written(void)
{
    open_pool();
    api->watch->sequence(3, 1, (uint32_t[]){2});
}
static void kv_with_a_hole(void)
{
    open_pool();
    api->watch->sequence(0, 16, (uint32_t[]){1});
    api->watch->sequence(16, 4, (uint32_t[]){1, 2});
    api->watch->sequence(21, 1, (uint32_t[]){1, 2});
}
static void kv_half_received(void)
{
    open_pool();
    api->watch->kv_incoming(0, 3);
    api->watch->kv_incoming(1, 3);
    api->watch->kv_arrived(0, 3);
    api->watch->sequence(9, 1, (uint32_t[]){3});
}
static void kv_stale(void)
{
    open_pool();
    api->watch->sequence(0, 16, (uint32_t[]){3});
    api->watch->kv_incoming(1, 3); /* somebody else's by now */
    api->watch->sequence(16, 1, (uint32_t[]){3, 2});
}
static void kv_copy_in_flight(void)
{
    open_pool();
    api->watch->sequence(0, 16, (uint32_t[]){1});
    ck_assert_ok(api->copy_async(device + 5 * 8, host, 8, GPU_TO_DEVICE, s));
    api->watch->sequence(16, 1, (uint32_t[]){1, 2});
}
static void kv_in_the_sink(void)
{
    open_pool();
    api->watch->sequence(0, 1, (uint32_t[]){0});
}

static const struct {
    void (*fn)(void);
    const char *line;
} offences[] = {
    {sync_in_capture, "stream_sync while a stream is captured"},
    {alloc_in_capture, "mem_alloc while a stream is captured"},
    {query_in_capture, "event_query while a stream is captured"},
    {other_stream_in_capture, "on another stream while one is captured"},
    {host_copy_in_capture, "inside of a graph"},
    {pageable_memory, "is no page-locked memory"},
    {host_reuse, "was used again before the copy"},
    {host_write_below_a_copy, "wrote to memory that a copy is going to fill"},
    {freed_too_early, "freed before a copy that uses it"},
    {copy_beyond_the_end, "go beyond the end of device memory"},
    {kernel_on_freed_memory, "points to memory that was freed"},
    {graph_on_freed_memory, "points to memory that was freed"},
    {graph_destroyed_in_flight, "before it had finished"},
    {graph_launched_after_destroy, "launched after it was destroyed"},
    {event_destroyed_in_flight, "an event is destroyed before it has come"},
    {too_many_rows, "wrong bucket"},
    {kv_never_written, "KV that is not complete"},
    {kv_with_a_hole, "block 2 has 4 of 5 slots"},
    {kv_half_received, "is being received"},
    {kv_stale, "is being received"},
    {kv_copy_in_flight, "before the KV of block 1 was complete"},
    {kv_in_the_sink, "block 0 of 4"},
};

START_TEST(fake_notices)
{
    fake_gpu_expect(offences[_i].line);
    offences[_i].fn();
    ck_abort_msg("not noticed: %s", offences[_i].line);
}
END_TEST

START_TEST(fake_lets_pass)
{
    /* The same things done right. */
    uint32_t blocks[] = {1, 2};
    open_pool();
    api->watch->step(4, 4);
    api->watch->sequence(0, 16, blocks);
    ck_assert_ok(api->copy_async(device + 6 * 8, host, 8, GPU_TO_DEVICE, s));
    ck_assert_ok(api->stream_sync(s));
    api->watch->sequence(16, 4, blocks);
    api->watch->sequence(20, 1, blocks);
    api->watch->sequence(18, 2, blocks); /* computed again */
    for (uint32_t l = 0; l < 2; l++)
        api->watch->kv_incoming(l, 3);
    for (uint32_t l = 0; l < 2; l++)
        api->watch->kv_arrived(l, 3);
    api->watch->sequence(7, 1, (uint32_t[]){3});
    ck_assert_ok(api->host_free(host));
    ck_assert_ok(api->stream_destroy(s));
}
END_TEST

Suite *test_suite(void)
{
    Suite *suite = suite_create("fake");
    TCase *t = tcase_create("device");
    tcase_add_checked_fixture(t, setup, NULL);
    tcase_add_test(t, fake_runs_in_order);
    tcase_add_test(t, fake_events_order_streams);
    tcase_add_test(t, fake_queries);
    tcase_add_test(t, fake_memory_is_counted);
    tcase_add_test(t, fake_lets_pass);
    suite_add_tcase(suite, t);
    t = tcase_create("offences");
    tcase_add_checked_fixture(t, setup, NULL);
    tcase_add_loop_exit_test(t, fake_notices, FAKE_GPU_EXPECTED, 0,
                             (int)(sizeof offences / sizeof *offences));
    suite_add_tcase(suite, t);
    return suite;
}
