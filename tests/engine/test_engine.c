/* One answer: whatever the chunks, the batch, the bucket, the blocks and their sharing, a sequence
 * gets the same bits, on every instruction set. And what a step must not do: allocate, touch blocks
 * that it was not given, or believe what it is told. */
#include <stdatomic.h>

#include "common/base/hash.h"
#include "tests/engine/rig.h"

static const char *const models[] = {"tiny/llama-mixed.gguf",
                                     "tiny/qwen3",
                                     "tiny/qwen2-q8_0.gguf",
                                     "tiny/llama",
                                     "tiny/qwen2",
                                     "tiny/llama-q8_0.gguf",
                                     "tiny/llama-q4_0.gguf",
                                     "tiny/llama-q4_1.gguf",
                                     "tiny/qwen3-q8_0.gguf"};
static const char *const isas[] = {"c", "avx2", "avx512", "amx"};
#define N_ISAS 4
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define N_MODELS 3 /* the first three go through all code; the others only differ in bits */
#else
#define N_MODELS ((int)(sizeof models / sizeof models[0]))
#endif

/* Counts allocations while `counting`; sanitizers have an allocator of their own. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define COUNTS_MALLOC 1
static atomic_bool counting;
static atomic_uint allocations;
extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t align, size_t n);

void *malloc(size_t n)
{
    allocations += counting;
    return __libc_malloc(n);
}
void *calloc(size_t n, size_t size)
{
    allocations += counting;
    return __libc_calloc(n, size);
}
void *realloc(void *p, size_t n)
{
    allocations += counting;
    return __libc_realloc(p, n);
}
void *aligned_alloc(size_t align, size_t n)
{
    allocations += counting;
    return __libc_memalign(align, n);
}
int posix_memalign(void **p, size_t align, size_t n)
{
    allocations += counting;
    *p = __libc_memalign(align, n);
    return *p != NULL ? 0 : 12;
}
#endif

static struct engine_options options_for(const char *isa)
{
    struct engine_options o = rig_options;
    o.isa = isa;
    return o;
}

static struct rig rig;
static struct rig_seq base, other; /* the reference, and what is compared with it */

START_TEST(engine_one_answer_chunks)
{
    /* The last round: an 8-bit KV cache. */
    bool small = _i / N_ISAS == N_MODELS;
    const char *isa = isas[_i % N_ISAS], *model = models[small ? 0 : _i / N_ISAS];
    if (!rig_has_isa(isa))
        return;
    struct engine_options o = options_for(isa);
    o.kv_format = small ? "int8" : "bf16";
    rig_open(&rig, test_data(model), &o);
    ck_assert_ptr_nonnull(strstr(rig.info->numerics, isa));
    ck_assert_ptr_nonnull(strstr(rig.info->kv_layout, o.kv_format));
    ck_assert_int_eq(strstr(rig.info->numerics, "/kv8/") != NULL, small);
    int32_t ids[283]; /* beyond 256, where attention is cut; not a whole block */
    rig_random_ids(ids, 283, rig.info->vocab, 42);
    static const uint32_t ways[][6] = {{16, 0},
                                       {32, 0},
                                       {48, 0},
                                       {1, 0},
                                       {64, 0},
                                       {160, 16, 80, 1, 1},
                                       {5, 11, 3, 250, 1, 0},
                                       {255, 1, 1, 7, 0}};
    rig_seq_init(&rig, &base, ids, 283);
    rig_eval(&rig, &base, (uint32_t[]){512, 0});
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        char what[64];
        snprintf(what, sizeof what, "%s %s way %zu", model, isa, i);
        rig.next = 100;
        rig_seq_init(&rig, &other, ids, 283);
        rig_eval(&rig, &other, ways[i]);
        rig_compare(&rig, &base, &rig, &other, 0, what);
        rig_seq_fini(&other);
    }
    rig_seq_fini(&base);
    rig_close(&rig);
}
END_TEST

#define BATCH 40

START_TEST(engine_one_answer_batch)
{
    /* Sequences of different lengths, alone and then by n: prefilled together, then decoded one
     * token a step, over all decode buckets up to 40. */
    bool small = _i / N_ISAS == N_MODELS; /* an 8-bit KV cache */
    const char *isa = isas[_i % N_ISAS], *model = models[small ? 0 : _i / N_ISAS];
    if (!rig_has_isa(isa))
        return;
    enum { STEPS = 4, LONGEST = 20 + STEPS };
    static const uint32_t sizes[] = {1, 2, 3, 5, 8, 11, 17, 25, 33, 40};
    static struct rig_seq alone[BATCH], seqs[BATCH];
    struct engine_options o = options_for(isa);
    o.max_batch = BATCH;
    o.kv_format = small ? "int8" : NULL;
    rig_open(&rig, test_data(model), &o);
    for (uint32_t i = 0; i < BATCH; i++) {
        int32_t ids[LONGEST];
        rig_random_ids(ids, LONGEST, rig.info->vocab, 100 + i);
        rig_seq_init(&rig, &alone[i], ids, 1 + i * 7 % 20 + STEPS);
        rig_eval(&rig, &alone[i], (uint32_t[]){LONGEST, 0});
    }
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        uint32_t n = sizes[k], tokens = 0;
        struct engine_row rows[BATCH];
        for (uint32_t i = 0; i < n; i++) {
            rig_seq_init(&rig, &seqs[i], alone[i].ids, alone[i].n);
            rows[i] = rig_row(&seqs[i], alone[i].n - STEPS);
            tokens += rows[i].n_tokens;
        }
        struct engine_step s = {.rows = rows, .n_rows = n};
        ck_assert_ok(engine_step(rig.e, &s));
        ck_assert_uint_ge(s.bucket, tokens);
        for (uint32_t i = 0; i < n; i++)
            seqs[i].done = seqs[i].n - STEPS;
        for (uint32_t t = 0; t < STEPS; t++) {
            for (uint32_t i = 0; i < n; i++)
                rows[i] = rig_row(&seqs[i], 1);
            ck_assert_ok(engine_step(rig.e, &s));
            ck_assert_uint_eq(s.bucket, engine_bucket(rig.e, n));
            for (uint32_t i = 0; i < n; i++)
                seqs[i].done++;
        }
        memcpy(seqs[n - 1].logits, engine_logits(rig.e), rig.info->vocab * sizeof(float));
        for (uint32_t i = 0; i < n; i++)
            rig_compare_scores(&alone[i], &seqs[i], 0, alone[i].n, "batch");
        rig_compare(&rig, &alone[n - 1], &rig, &seqs[n - 1], 0, "batch");
        for (uint32_t i = 0; i < n; i++)
            rig_seq_fini(&seqs[i]);
        rig.next = BATCH * 2; /* behind the blocks of `alone` */
    }
    for (uint32_t i = 0; i < BATCH; i++)
        rig_seq_fini(&alone[i]);
    rig_close(&rig);
}
END_TEST

/* Checksum of the first n blocks of `base` over all layers. */
static uint64_t shared_sum(uint32_t n)
{
    uint64_t sum = 0;
    for (uint32_t l = 0; l < rig.info->n_layers; l++)
        for (uint32_t i = 0; i < n; i++)
            sum = hash_mix64(sum) +
                  hash_kv(engine_kv_block(rig.e, l, base.blocks[i]), rig.info->kv_block_bytes);
    return sum;
}

START_TEST(engine_one_answer_shared_prefix)
{
    const char *isa = isas[_i];
    if (!rig_has_isa(isa))
        return;
    struct engine_options o = options_for(isa);
    rig_open(&rig, test_data("tiny/qwen3"), &o);
    int32_t ids[300];
    rig_random_ids(ids, 300, rig.info->vocab, 9);
    rig_seq_init(&rig, &base, ids, 300);
    rig_eval(&rig, &base, (uint32_t[]){512, 0});
    uint64_t before = shared_sum(18);
    for (uint32_t shared = 1; shared <= 18; shared += 4) {
        /* The first blocks are the other sequence's; only the rest is computed. */
        rig.next = 64;
        rig_seq_init(&rig, &other, ids, 300);
        memcpy(other.blocks, base.blocks, shared * sizeof *base.blocks);
        other.done = shared * 16;
        rig_eval(&rig, &other, (uint32_t[]){64, 0});
        rig_compare(&rig, &base, &rig, &other, shared * 16, "shared prefix");
        rig_seq_fini(&other);
    }
    /* Both at once, in one step, over the same blocks: decoding never writes a shared block. */
    static struct rig_seq fork[2];
    for (int i = 0; i < 2; i++) {
        rig.next = 100 + 20 * (uint32_t)i;
        rig_seq_init(&rig, &fork[i], ids, 290);
        memcpy(fork[i].blocks, base.blocks, 18 * sizeof *base.blocks); /* 288 tokens */
        fork[i].done = 288;
    }
    struct engine_row rows[2] = {rig_row(&fork[0], 2), rig_row(&fork[1], 2)};
    struct engine_step s = {.rows = rows, .n_rows = 2};
    ck_assert_ok(engine_step(rig.e, &s));
    rig_compare_scores(&base, &fork[0], 288, 289, "fork");
    rig_compare_scores(&fork[0], &fork[1], 288, 290, "fork");
    rig_seq_fini(&fork[0]);
    rig_seq_fini(&fork[1]);
    ck_assert(before == shared_sum(18));
    rig_seq_fini(&base);
    rig_close(&rig);
}
END_TEST

START_TEST(engine_one_answer_placement)
{
    const char *isa = isas[_i];
    if (!rig_has_isa(isa))
        return;
    struct engine_options o = options_for(isa);
    rig_open(&rig, test_data("tiny/llama-q4_1.gguf"), &o);
    int32_t ids[270];
    rig_random_ids(ids, 270, rig.info->vocab, 8);
    rig_seq_init(&rig, &base, ids, 270);
    rig_eval(&rig, &base, (uint32_t[]){512, 0});
    static const uint32_t strides[] = {2, 7, 254, 101};
    for (size_t i = 0; i < sizeof strides / sizeof strides[0]; i++) {
        struct rig fresh;
        rig_open(&fresh, test_data("tiny/llama-q4_1.gguf"), &o);
        fresh.stride = strides[i];
        rig_seq_init(&fresh, &other, ids, 270);
        rig_eval(&fresh, &other, (uint32_t[]){96, 1, 1, 64, 0});
        rig_compare(&rig, &base, &fresh, &other, 0, "placement");
        rig_seq_fini(&other);
        rig_close(&fresh);
    }
    rig_seq_fini(&base);
    rig_close(&rig);
}
END_TEST

START_TEST(engine_one_answer_threads_and_graphs)
{
    /* Several threads, and binding the pass anew for every step: the same bits. */
    struct rig alt;
    struct engine_options o = options_for("auto");
    rig_open(&rig, test_data("tiny/llama-mixed.gguf"), &o);
    int32_t ids[200];
    rig_random_ids(ids, 200, rig.info->vocab, 3);
    rig_seq_init(&rig, &base, ids, 200);
    rig_eval(&rig, &base, (uint32_t[]){128, 1, 0});
    o.threads = 1 + _i % 2 * 2;
    o.graphs = _i / 2 == 0;
    rig_open(&alt, test_data("tiny/llama-mixed.gguf"), &o);
    ck_assert_str_eq(alt.info->numerics, rig.info->numerics);
    ck_assert_str_eq(alt.info->kv_layout, rig.info->kv_layout);
    rig_seq_init(&alt, &other, ids, 200);
    rig_eval(&alt, &other, (uint32_t[]){96, 1, 0});
    rig_compare(&rig, &base, &alt, &other, 0, "threads, graphs");
    rig_seq_fini(&other);
    rig_seq_fini(&base);
    rig_close(&alt);
    rig_close(&rig);
}
END_TEST

/* Draws n tokens from where the sequence is, appending them. */
static void generate(struct rig *r, struct rig_seq *q, const struct sample_params *p, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        struct engine_row row = rig_row(q, q->n - q->done);
        row.scores = NULL;
        row.sampling = p;
        row.choice = 1;
        struct engine_step s = {.rows = &row, .n_rows = 1};
        ck_assert_ok(engine_step(r->e, &s));
        q->done = q->n;
        q->ids[q->n++] = row.result.token;
        if (q->n % 16 == 1)
            rig_blocks(r, q, q->n / 16, q->n / 16 + 1);
    }
}

START_TEST(engine_hand_over)
{
    /* The prompt on one engine, the KV copied block by block, the rest on another one with other
     * buckets and other blocks: the tokens of a single engine, sampled ones too. */
    struct engine_options o = options_for("auto");
    struct rig b;
    o.kv_format = _i < 2 ? "bf16" : "int8";
    rig_open(&rig, test_data("tiny/qwen2"), &o);
    o.max_batch = 3;
    o.prefill_chunk = 64;
    rig_open(&b, test_data("tiny/qwen2"), &o);
    b.next = 77;
    b.stride = 11;
    ck_assert_str_eq(rig.info->kv_layout, b.info->kv_layout);
    ck_assert_uint_eq(rig.info->model, b.info->model);
    int32_t ids[60];
    rig_random_ids(ids, 60, rig.info->vocab, 12);
    struct sample_params p = {.temperature = _i % 2 ? 0.9f : 0, .top_p = 0.95f, .seed = 5};
    rig_seq_init(&rig, &base, ids, 60);
    generate(&rig, &base, &p, 40);
    rig_seq_init(&rig, &other, ids, 60);
    generate(&rig, &other, &p, 1); /* the prompt and token 0 */
    struct rig_seq *moved = calloc(1, sizeof *moved);
    rig_seq_init(&b, moved, other.ids, 61);
    for (uint32_t l = 0; l < b.info->n_layers; l++)
        for (uint32_t i = 0; i < 4; i++) {
            if (i == 3)
                engine_kv_clear_tail(rig.e, l, other.blocks[i], 60 - 48);
            memcpy(engine_kv_block(b.e, l, moved->blocks[i]),
                   engine_kv_block(rig.e, l, other.blocks[i]), b.info->kv_block_bytes);
        }
    moved->done = 60;
    generate(&b, moved, &p, 39);
    ck_assert_uint_eq(moved->n, base.n);
    ck_assert_mem_eq(moved->ids, base.ids, base.n * sizeof *base.ids);
    rig_seq_fini(moved);
    free(moved);
    rig_seq_fini(&other);
    rig_seq_fini(&base);
    rig_close(&b);
    rig_close(&rig);
}
END_TEST

START_TEST(engine_padding_writes_nothing)
{
    struct engine_options o = options_for("auto");
    rig_open(&rig, test_data("tiny/llama-q8_0.gguf"), &o);
    int32_t ids[3][5];
    static struct rig_seq q[3];
    struct engine_row rows[3];
    for (uint32_t i = 0; i < 3; i++) {
        rig_random_ids(ids[i], 5, rig.info->vocab, i);
        rig_seq_init(&rig, &q[i], ids[i], 5);
        rows[i] = rig_row(&q[i], 5);
    }
    struct engine_step s = {.rows = rows, .n_rows = 3};
    memset(rig.kv, 0xa5, rig.kv_bytes);
    ck_assert_ok(engine_step(rig.e, &s));
    for (uint32_t i = 0; i < 3; i++) {
        q[i].done = 4;
        rows[i] = rig_row(&q[i], 1);
    }
    ck_assert_ok(engine_step(rig.e, &s)); /* 3 rows in the bucket of 4 */
    ck_assert_uint_eq(s.bucket, 4);
    for (uint32_t l = 0; l < rig.info->n_layers; l++) {
        for (uint32_t b = 1; b < RIG_BLOCKS; b++) {
            const unsigned char *p = engine_kv_block(rig.e, l, b);
            bool touched = false;
            for (size_t i = 0; i < rig.info->kv_block_bytes; i++)
                touched = touched || p[i] != 0xa5;
            bool own = b == q[0].blocks[0] || b == q[1].blocks[0] || b == q[2].blocks[0];
            ck_assert_msg(touched == own, "layer %u, block %u", l, b);
        }
    }
    for (uint32_t i = 0; i < 3; i++)
        rig_seq_fini(&q[i]);
    rig_close(&rig);
}
END_TEST

struct layer_log {
    uint32_t n;
    uint64_t sums[2][4]; /* of the first blocks, when the layer was announced */
};

static void layer_seen(void *arg, uint32_t layer)
{
    struct layer_log *log = arg;
    ck_assert_uint_eq(layer, log->n++);
    for (uint32_t i = 0; i < 4; i++)
        log->sums[layer][i] =
            hash_kv(engine_kv_block(rig.e, layer, base.blocks[i]), rig.info->kv_block_bytes);
}

START_TEST(engine_layer_done)
{
    /* Layers are announced in order, each when its K and V are complete. */
    struct engine_options o = options_for("auto");
    o.threads = 1 + _i;
    rig_open(&rig, test_data("tiny/llama"), &o);
    ck_assert_uint_eq(rig.info->n_layers, 2);
    int32_t ids[70];
    rig_random_ids(ids, 70, rig.info->vocab, 2);
    rig_seq_init(&rig, &base, ids, 70);
    struct layer_log log = {0};
    struct engine_row row = rig_row(&base, 70);
    struct engine_step s = {.rows = &row, .n_rows = 1, .layer_done = layer_seen, .layer_arg = &log};
    ck_assert_ok(engine_step(rig.e, &s));
    ck_assert_uint_eq(log.n, 2);
    for (uint32_t l = 0; l < 2; l++)
        for (uint32_t i = 0; i < 4; i++)
            ck_assert(log.sums[l][i] ==
                      hash_kv(engine_kv_block(rig.e, l, base.blocks[i]), rig.info->kv_block_bytes));
    s.layer_done = NULL; /* and it does not stick */
    ck_assert_ok(engine_step(rig.e, &s));
    ck_assert_uint_eq(log.n, 2);
    rig_seq_fini(&base);
    rig_close(&rig);
}
END_TEST

START_TEST(engine_step_allocates_nothing)
{
#ifdef COUNTS_MALLOC
    struct engine_options o = options_for("auto");
    o.threads = 2;
    rig_open(&rig, test_data("tiny/qwen2-q8_0.gguf"), &o);
    int32_t ids[130];
    rig_random_ids(ids, 130, rig.info->vocab, 2);
    rig_seq_init(&rig, &base, ids, 130);
    struct sample_params p = {.temperature = 1, .top_p = 0.9f, .top_k = 40, .n_top = 20};
    struct engine_row rows[2] = {rig_row(&base, 129), rig_row(&base, 1)};
    rows[0].sampling = &p;
    struct engine_step s = {.rows = rows, .n_rows = 1};
    allocations = 0;
    counting = true;
    int rc = engine_step(rig.e, &s);
    base.done = 129;
    rows[0] = rig_row(&base, 1);
    rows[0].sampling = &p;
    for (uint32_t i = 0; rc == 0 && i < 20; i++)
        rc = engine_step(rig.e, &s);
    counting = false;
    ck_assert_ok(rc);
    ck_assert_uint_eq(allocations, 0);
    counting = true; /* the counter works */
    free(mem_array(3, 4));
    counting = false;
    ck_assert_uint_eq(allocations, 1);
    rig_seq_fini(&base);
    rig_close(&rig);
#endif
}
END_TEST

START_TEST(engine_scores)
{
    /* What is scored, what is sampled, and both at once; ids beyond score_ids are never named. */
    struct engine_options o = options_for("auto");
    rig_open(&rig, test_data("tiny/qwen2"), &o); /* 290 tokens, 320 rows in the head */
    int32_t ids[100];
    rig_random_ids(ids, 100, 290, 6);
    rig_seq_init(&rig, &base, ids, 100);
    rig_seq_init(&rig, &other, ids, 100);
    struct sample_params greedy = {.temperature = 0, .top_p = 1, .n_ids = 290, .n_top = 3};
    struct engine_row rows[2] = {rig_row(&base, 100), rig_row(&other, 100)};
    rows[0].score_ids = 290;
    rows[0].score_top = 1000;   /* as many as there are */
    rows[0].next_token = -1;    /* unknown: the last place is not scored ... */
    rows[0].sampling = &greedy; /* ... but sampled */
    rows[1].scores = NULL;
    rows[1].sampling = &greedy;
    memset(base.scores, 0xee, sizeof base.scores);
    struct engine_step s = {.rows = rows, .n_rows = 2};
    ck_assert_ok(engine_step(rig.e, &s));
    for (uint32_t i = 0; i < 99; i++) {
        ck_assert_int_eq(base.scores[i].token, ids[i + 1]);
        ck_assert_uint_eq(base.scores[i].n_top, SAMPLE_TOP_MAX);
        for (uint32_t j = 0; j < SAMPLE_TOP_MAX; j++)
            ck_assert(base.scores[i].top_id[j] >= 0 && base.scores[i].top_id[j] < 290);
    }
    ck_assert_int_eq(base.scores[99].token, (int32_t)0xeeeeeeee);
    ck_assert_int_eq(rows[0].result.token, rows[1].result.token);
    ck_assert(rows[0].result.logprob == rows[1].result.logprob);
    ck_assert_uint_eq(rows[0].result.n_top, 3);
    ck_assert_int_eq(rows[0].result.top_id[0], rows[0].result.token);
    rig_seq_fini(&other);
    rig_seq_fini(&base);
    rig_close(&rig);
}
END_TEST

START_TEST(engine_step_refuses)
{
    struct engine_options o = options_for("auto");
    o.prefill_chunk = 64;
    o.context = 128;
    rig_open(&rig, test_data("tiny/llama"), &o);
    ck_assert_uint_eq(rig.info->max_tokens, 64 + 8);
    ck_assert_uint_eq(rig.info->context, 128);
    int32_t ids[160];
    rig_random_ids(ids, 160, rig.info->vocab, 2);
    rig_seq_init(&rig, &base, ids, 160);
    struct engine_row rows[9];
    for (int i = 0; i < 9; i++)
        rows[i] = rig_row(&base, 8);
    struct engine_step s = {.rows = rows, .n_rows = 0};
    ck_assert_int_eq(engine_step(rig.e, &s), STATUS_INVALID); /* no rows */
    s.n_rows = 9;
    ck_assert_int_eq(engine_step(rig.e, &s), STATUS_INVALID); /* more than max_batch */
    s.n_rows = 1;
    rows[0].n_tokens = 73;
    ck_assert_int_eq(engine_step(rig.e, &s), STATUS_INVALID); /* more than max_tokens */
    rows[0].n_tokens = UINT32_MAX;
    ck_assert_int_eq(engine_step(rig.e, &s), STATUS_INVALID);
    rows[0].n_tokens = 0;
    ck_assert_int_eq(engine_step(rig.e, &s), STATUS_INVALID);
    rows[0].n_tokens = 8;
    rows[0].position = 121;
    ck_assert_int_eq(engine_step(rig.e, &s), STATUS_RANGE); /* beyond the context */
    rows[0].position = UINT32_MAX;
    ck_assert_int_eq(engine_step(rig.e, &s), STATUS_RANGE);
    rows[0].position = 0;
    base.ids[3] = (int32_t)rig.info->vocab;
    ck_assert_int_eq(engine_step(rig.e, &s), STATUS_INVALID); /* no such token */
    base.ids[3] = -1;
    ck_assert_int_eq(engine_step(rig.e, &s), STATUS_INVALID);
    base.ids[3] = 0;
    ck_assert_ok(engine_step(rig.e, &s));
    rig_seq_fini(&base);
    rig_close(&rig);
}
END_TEST

START_TEST(engine_create_refuses)
{
    const struct {
        const char *what;
        struct engine_options o;
    } bad[] = {
        {"kv_block_size", {.kv_block_size = 24, .prefill_chunk = 48, .max_batch = 1, .threads = 1}},
        {"kv_block_size", {.kv_block_size = 0, .prefill_chunk = 48, .max_batch = 1, .threads = 1}},
        {"prefill_chunk", {.kv_block_size = 32, .prefill_chunk = 48, .max_batch = 1, .threads = 1}},
        {"prefill_chunk", {.kv_block_size = 16, .prefill_chunk = 0, .max_batch = 1, .threads = 1}},
        {"max_batch", {.kv_block_size = 16, .prefill_chunk = 64, .max_batch = 0, .threads = 1}},
        {"threads", {.kv_block_size = 16, .prefill_chunk = 64, .max_batch = 1, .threads = 0}},
        {"context_length",
         {.kv_block_size = 16, .prefill_chunk = 64, .max_batch = 1, .threads = 1, .context = 4096}},
        {"weights",
         {.kv_block_size = 16, .prefill_chunk = 64, .max_batch = 1, .threads = 1, .weights = "q3"}},
        {"kv_format",
         {.kv_block_size = 16,
          .prefill_chunk = 64,
          .max_batch = 1,
          .threads = 1,
          .kv_format = "i"}},
        {"backend",
         {.kv_block_size = 16, .prefill_chunk = 64, .max_batch = 1, .threads = 1, .backend = "x"}},
    };
    struct model *m;
    char err[256];
    ck_assert_ok(model_open(test_data("tiny/llama"), 0, &m, err, sizeof err));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct engine *e = NULL;
        err[0] = '\0';
        ck_assert_int_ne(engine_create(m, &bad[i].o, &e, err, sizeof err), 0);
        ck_assert_ptr_null(e);
        ck_assert_msg(strstr(err, bad[i].what) != NULL, "%s", err);
        ck_assert_ptr_null(strchr(err, '\n'));
    }
    model_close(m);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("engine");
    TCase *t = tcase_create("one answer");
    tcase_add_loop_test(t, engine_one_answer_chunks, 0, (N_MODELS + 1) * N_ISAS);
    tcase_add_loop_test(t, engine_one_answer_batch, 0, (N_MODELS + 1) * N_ISAS);
    tcase_add_loop_test(t, engine_one_answer_shared_prefix, 0, N_ISAS);
    tcase_add_loop_test(t, engine_one_answer_placement, 0, N_ISAS);
    tcase_add_loop_test(t, engine_one_answer_threads_and_graphs, 0, 4);
    tcase_add_loop_test(t, engine_hand_over, 0, 4);
    tcase_set_timeout(t, 60);
    suite_add_tcase(s, t);
    t = tcase_create("step");
    tcase_add_test(t, engine_padding_writes_nothing);
    tcase_add_loop_test(t, engine_layer_done, 0, 2);
    tcase_add_test(t, engine_step_allocates_nothing);
    tcase_add_test(t, engine_scores);
    tcase_add_test(t, engine_step_refuses);
    tcase_add_test(t, engine_create_refuses);
    tcase_set_timeout(t, 60);
    suite_add_tcase(s, t);
    return s;
}
