/* Memory of the device: what fits and what does not (B70), block ids at both ends of the pool and
 * far beyond 32 bits (B71), and blocks that padding must not touch (B68). */
#include "common/base/hash.h"
#include "kernels/gpu_api.h"
#include "tests/cuda/rig.h"

static struct rig rig;
static struct rig_seq seqs[20];
static struct rig_seq *list[20];

static int open_at(size_t total, size_t other, const struct engine_options *o, struct engine **e,
                   char *err, size_t errlen)
{
    struct model *m;
    fake_gpu_memory(total, other);
    ck_assert_ok(model_open(test_data("tiny/llama"), 0, &m, err, errlen));
    *err = 0;
    int rc = engine_create(m, o, e, err, errlen);
    model_close(m);
    return rc;
}

/* Starts, takes all KV that there is, and runs the longest prompt and then a full batch. */
static void use_all(struct engine *e)
{
    char err[512] = "";
    void *kv;
    const struct engine_info *i = engine_info(e);
    size_t one = i->kv_block_bytes * i->n_layers, blocks = i->kv_bytes_max / one;
    if (blocks > 300)
        blocks = 300;
    ck_assert_msg(engine_kv_alloc(e, (uint32_t)blocks, &kv, err, sizeof err) == 0, "%s", err);
    ck_assert_ok(engine_bind_kv(e, kv, (uint32_t)blocks));
    rig = (struct rig){.e = e, .info = i, .kv = kv, .n_blocks = (uint32_t)blocks};
    int32_t ids[RIG_SEQ * 16];
    rig_random_ids(ids, RIG_SEQ * 16, i->vocab, 1);
    uint32_t n = (uint32_t)blocks - 1 < RIG_SEQ ? ((uint32_t)blocks - 1) * 16 : RIG_SEQ * 16;
    struct fake_gpu_stats before = fake_gpu_stats();
    rig_seq_init(&rig, &seqs[0], ids, n - 2, 2);
    rig_prefill(&rig, &seqs[0], 64);
    uint32_t batch = (uint32_t)blocks - 1 < 8 ? (uint32_t)blocks - 1 : 8;
    rig.next = 0;
    for (uint32_t k = 0; k < batch; k++) {
        rig_seq_init(&rig, &seqs[k], ids + k, 3, 3);
        list[k] = &seqs[k];
        rig_prefill(&rig, &seqs[k], 64);
    }
    while (rig_decode(&rig, list, batch))
        ;
    ck_assert_uint_eq(fake_gpu_stats().allocs, before.allocs);
}

START_TEST(memory_of_any_size)
{
    /* From nothing to plenty: it starts and works, or says in one line what is wrong. */
    struct engine_options o = rig_options;
    uint32_t started = 0, refused = 0;
    o.device_memory_percent = 99;
    for (size_t mib = 1; mib < 160; mib += mib < 40 ? 3 : 23) {
        struct engine *e;
        char err[512];
        size_t other = _i ? (size_t)10 << 30 : 0;
        if (open_at((mib << 20) + other, other, &o, &e, err, sizeof err) == 0) {
            const struct engine_info *i = engine_info(e);
            started++;
            if (i->kv_bytes_max >= 3 * i->kv_block_bytes * i->n_layers)
                use_all(e);
            engine_destroy(e);
        } else {
            refused++;
            ck_assert_msg(strstr(err, "MiB") || strstr(err, "cannot pack"), "%s", err);
            ck_assert_ptr_null(strchr(err, '\n'));
        }
        ck_assert_uint_eq(fake_gpu_stats().used, 0);
    }
    ck_assert_uint_gt(started, 2);
    ck_assert_uint_gt(refused, 5);
}
END_TEST

START_TEST(memory_says_what_is_needed)
{
    struct engine_options o = rig_options;
    struct engine *e;
    char err[512], want[64];
    void *kv;
    o.device_memory_percent = 98;
    ck_assert_ok(open_at((size_t)300 << 20, (size_t)20 << 20, &o, &e, err, sizeof err));
    const struct engine_info *i = engine_info(e);
    struct fake_gpu_stats g = fake_gpu_stats();
    /* Graphs were measured, thrown away, and are kept room for. */
    ck_assert_uint_gt(i->graph_bytes, 0);
    ck_assert_uint_lt(i->kv_bytes_max + i->graph_bytes, g.total - g.used - (20 << 20));
    size_t one = i->kv_block_bytes * i->n_layers;
    uint32_t n = (uint32_t)(i->kv_bytes_max / one) + 1;
    ck_assert_int_eq(engine_kv_alloc(e, n, &kv, err, sizeof err), STATUS_NOMEM);
    snprintf(want, sizeof want, "%zu bytes", one * n);
    ck_assert_msg(strstr(err, want) != NULL, "%s", err);
    snprintf(want, sizeof want, "%zu are free", i->kv_bytes_max);
    ck_assert_msg(strstr(err, want) != NULL, "%s", err);
    ck_assert_msg(strstr(err, "kv_memory") && strstr(err, "device_memory_percent (98)"), "%s", err);
    ck_assert_ok(engine_kv_alloc(e, n - 1, &kv, err, sizeof err));
    ck_assert_ok(engine_bind_kv(e, kv, n - 1));
    ck_assert_uint_le(fake_gpu_stats().used, g.used + one * (n - 1) + i->graph_bytes);
    engine_destroy(e);
}
END_TEST

START_TEST(memory_failures_on_the_way)
{
    /* Whatever fails at start-up, at whichever call: an error, and nothing is left behind. */
    static const char *const calls[] = {
        "mem_alloc",   "host_alloc",        "stream_create", "event_create", "capture_begin",
        "capture_end", "graph_instantiate", "copy_async",    "fill_async",   "kernel"};
    struct engine_options o = rig_options;
    o.prefill_chunk = 16;
    o.max_batch = 2;
    unsigned nth = 1, rounds = 0;
    for (;; nth = nth * 3 / 2 + 1, rounds++) {
        struct engine *e;
        char err[512] = "";
        fake_gpu_fail(calls[_i], nth, _i < 2 ? GPU_ERROR_MEMORY : 700);
        int rc = open_at((size_t)1 << 40, 0, &o, &e, err, sizeof err);
        if (rc == 0) {
            engine_destroy(e);
            break;
        }
        ck_assert_msg(*err, "%s, call %u: no word", calls[_i], nth);
        ck_assert_uint_eq(fake_gpu_stats().used, 0);
        ck_assert_uint_eq(fake_gpu_stats().nodes, 0);
    }
    ck_assert_uint_gt(rounds, 0);
}
END_TEST

START_TEST(memory_lost_device)
{
    /* A failure in the middle of the work: steps fail, and the engine says that it is lost. */
    int32_t ids[4] = {7, 8, 9, 10};
    rig_open(&rig, "llama", &rig_options);
    rig_seq_init(&rig, &seqs[0], ids, 4, 10);
    rig_prefill(&rig, &seqs[0], 64);
    ck_assert(!engine_lost(rig.e));
    fake_gpu_fail("exec_launch", 1, 700);
    struct engine_row row = rig_row(&seqs[0], 1);
    struct engine_step s = {.rows = &row, .n_rows = 1};
    ck_assert_int_eq(engine_step(rig.e, &s), STATUS_INTERNAL);
    ck_assert(engine_lost(rig.e));
    rig_close(&rig);
}
END_TEST

/* ---- block ids ------------------------------------------------------------------------------ */

static void open_with(uint32_t n_blocks, const char *numerics)
{
    char err[512] = "";
    struct engine_options o = rig_options;
    void *kv;
    o.numerics = numerics;
    memset(&rig, 0, sizeof rig);
    ck_assert_ok(open_at((size_t)1 << 40, 0, &o, &rig.e, err, sizeof err));
    rig.info = engine_info(rig.e);
    rig.n_blocks = n_blocks;
    ck_assert_msg(engine_kv_alloc(rig.e, n_blocks, &kv, err, sizeof err) == 0, "%s", err);
    ck_assert_ok(engine_bind_kv(rig.e, kv, n_blocks));
    rig.kv = kv;
}

START_TEST(memory_ids_beyond_32_bits)
{
    /* A layer of more than 4 GiB and more than 2^31 numbers, almost all of it never touched. */
    const uint32_t n_blocks = 1200000;
    int32_t ids[100];
    open_with(n_blocks, _i ? "strict" : "fast");
    ck_assert_uint_gt((uint64_t)n_blocks * rig.info->kv_block_bytes, (uint64_t)1 << 32);
    rig_random_ids(ids, 100, rig.info->vocab, 9);
    for (uint32_t i = 0; i < 2; i++) {
        rig_seq_init(&rig, &seqs[i], ids, 100, 12);
        for (uint32_t k = 0; i == 1 && k < seqs[i].n_blocks; k++)
            seqs[i].blocks[k] = n_blocks - 1 - k;
        rig_prefill(&rig, &seqs[i], 64);
        list[i] = &seqs[i];
    }
    while (rig_decode(&rig, list, 2))
        ;
    ck_assert_uint_eq(seqs[0].n, 112);
    ck_assert_mem_eq(seqs[0].ids, seqs[1].ids, seqs[0].n * sizeof *ids);
    /* Reading, writing, summing and clearing at both ends. */
    uint8_t *a = engine_host_alloc(rig.e, 6 * rig.info->kv_block_bytes);
    uint8_t *b = engine_host_alloc(rig.e, 6 * rig.info->kv_block_bytes);
    for (uint32_t l = 0; l < rig.info->n_layers; l++) {
        uint64_t sums[2][6];
        ck_assert_ok(engine_kv_read(rig.e, l, seqs[0].blocks, 6, a));
        ck_assert_ok(engine_kv_read(rig.e, l, seqs[1].blocks, 6, b));
        ck_assert_mem_eq(a, b, 6 * rig.info->kv_block_bytes);
        for (uint32_t i = 0; i < 2; i++) {
            uint64_t flushes = fake_gpu_stats().flushes;
            ck_assert_ok(engine_kv_sums(rig.e, l, seqs[i].blocks, 6, sums[i]));
            ck_assert_uint_eq(fake_gpu_stats().flushes, flushes + 1); /* a network may write */
            engine_kv_clear_tail(rig.e, l, seqs[i].blocks[0], 3);
        }
        ck_assert_mem_eq(sums[0], sums[1], sizeof sums[0]);
        ck_assert_ok(engine_kv_write(rig.e, l, seqs[1].blocks + 1, 5, a));
        for (uint32_t i = 0; i < 2; i++)
            ck_assert_ok(engine_kv_sums(rig.e, l, seqs[i].blocks, 6, sums[i]));
        ck_assert(sums[0][0] == sums[1][0] && sums[0][0] != hash_kv(a, rig.info->kv_block_bytes));
        for (uint32_t i = 0; i < 5; i++)
            ck_assert(sums[1][i + 1] ==
                      hash_kv(a + i * rig.info->kv_block_bytes, rig.info->kv_block_bytes));
    }
    engine_host_free(rig.e, a);
    engine_host_free(rig.e, b);
    rig_close(&rig);
}
END_TEST

static uint64_t block_sum(uint32_t block)
{
    uint64_t sum = 0, one;
    for (uint32_t l = 0; l < rig.info->n_layers; l++) {
        ck_assert_ok(engine_kv_sums(rig.e, l, &block, 1, &one));
        sum = sum * 31 + one;
    }
    return sum;
}

START_TEST(memory_padding_touches_nothing)
{
    /* One sequence owns the block beside the sink, one the pool's last block. Batches below their
     * bucket run beside them, sequences end and leave stale rows behind: the two blocks stay as
     * they are, and everybody's text is what it would be alone. */
    static const uint32_t batches[] = {1, 3, 5, 7, 9, 17};
    static int32_t ids[20][32];
    static uint32_t lengths[20];
    struct engine_options o = rig_options;
    char err[512];
    void *kv;
    memset(&rig, 0, sizeof rig);
    o.max_batch = 20;
    ck_assert_ok(open_at((size_t)1 << 40, 0, &o, &rig.e, err, sizeof err));
    rig.info = engine_info(rig.e);
    rig.n_blocks = 128;
    ck_assert_ok(engine_kv_alloc(rig.e, rig.n_blocks, &kv, err, sizeof err));
    ck_assert_ok(engine_bind_kv(rig.e, kv, rig.n_blocks));
    for (uint32_t i = 0; i < 20; i++) {
        lengths[i] = i < 2 ? 16 : 2 + i % 9;
        rig_random_ids(ids[i], lengths[i], rig.info->vocab, i);
        rig_seq_init(&rig, &seqs[i], ids[i], lengths[i], 6 + i % 5);
    }
    for (uint32_t i = 0; i < 2; i++) {
        rig_seq_init(&rig, &seqs[i], ids[i], 16, 12);
        seqs[i].blocks[0] = i ? rig.n_blocks - 1 : 1;
        rig_prefill(&rig, &seqs[i], 64);
    }
    uint64_t sums[2] = {block_sum(1), block_sum(rig.n_blocks - 1)};
    rig.next = 40;
    for (size_t k = 0; k < sizeof batches / sizeof *batches; k++) {
        uint32_t n = batches[k];
        for (uint32_t i = 0; i < n; i++) {
            uint32_t q = 2 + i;
            rig_seq_init(&rig, &seqs[q], ids[q], lengths[q], 3 + i % 3);
            for (uint32_t b = 0; b < seqs[q].n_blocks; b++)
                seqs[q].blocks[b] = 2 + (rig.next++) % (rig.n_blocks - 3);
            rig_prefill(&rig, &seqs[q], 64);
            list[i] = &seqs[q];
        }
        rig_decode_ahead(&rig, list, n);
        ck_assert(block_sum(1) == sums[0] && block_sum(rig.n_blocks - 1) == sums[1]);
    }
    for (uint32_t i = 0; i < 2; i++) {
        list[i] = &seqs[i];
        seqs[i].blocks[1] = 30 + i;
    }
    rig_decode_ahead(&rig, list, 2);
    ck_assert(block_sum(1) == sums[0] && block_sum(rig.n_blocks - 1) == sums[1]);
    rig_close(&rig);
    /* Alone, and without graphs. */
    static struct rig_seq alone;
    o.graphs = false;
    memset(&rig, 0, sizeof rig);
    ck_assert_ok(open_at((size_t)1 << 40, 0, &o, &rig.e, err, sizeof err));
    rig.info = engine_info(rig.e);
    rig.n_blocks = 128;
    ck_assert_ok(engine_kv_alloc(rig.e, rig.n_blocks, &kv, err, sizeof err));
    ck_assert_ok(engine_bind_kv(rig.e, kv, rig.n_blocks));
    for (uint32_t q = 0; q < 19; q++) {
        struct rig_seq *one = &alone;
        rig_seq_init(&rig, &alone, ids[q], lengths[q], seqs[q].max - lengths[q]);
        rig_prefill(&rig, &alone, 64);
        while (rig_decode(&rig, &one, 1))
            ;
        ck_assert_uint_eq(alone.n, seqs[q].n);
        ck_assert_mem_eq(alone.ids, seqs[q].ids, alone.n * sizeof *alone.ids);
    }
    rig_close(&rig);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("memory");
    TCase *t = tcase_create("what fits");
    tcase_add_loop_test(t, memory_of_any_size, 0, 2);
    tcase_add_test(t, memory_says_what_is_needed);
    tcase_add_loop_test(t, memory_failures_on_the_way, 0, 10);
    tcase_add_test(t, memory_lost_device);
    tcase_set_timeout(t, 120);
    suite_add_tcase(s, t);
    t = tcase_create("blocks");
    tcase_add_loop_test(t, memory_ids_beyond_32_bits, 0, 2);
    tcase_add_test(t, memory_padding_touches_nothing);
    tcase_set_timeout(t, 120);
    suite_add_tcase(s, t);
    return s;
}
