/* bench_kernels: the table of kernels of baton-bench: each by itself on one core, over shapes of
 * decode and prefill, with its share of what bounds it: arithmetic at peak, or bytes at the rate of
 * reading. Best of several runs: other processes only ever slow a run down. */
#include "kernels/bench.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "kernels/cpu.h"
#include "kernels/half.h"

#define RUNS   25
#define RUN_NS 3000000u /* least length of a run: shorter than a time slice */

static const struct bench *bench;
static const struct kernels *kernels;
static struct ceilings one; /* of one core */
static uint64_t random_key;

static void *memory(size_t n)
{
    void *p = mem_huge(n);
    if (!p)
        bench_die("out of memory");
    return p;
}

static void fill_random(void *p, size_t n)
{
    uint8_t *to = p;
    for (size_t i = 0; i < n; i += 16) {
        struct rng_block b = rng_philox(1, random_key++, 0);
        memcpy(to + i, &b, n - i < 16 ? n - i : 16);
    }
}

static void fill_floats(float *p, size_t n)
{
    fill_random(p, n * sizeof *p);
    for (size_t i = 0; i < n; i++) {
        int32_t v;
        memcpy(&v, &p[i], sizeof v);
        p[i] = (float)v * 0x1p-31f;
    }
}

/* Seconds of one call of fn, the best of RUNS averages. */
static double best_time(void (*fn)(void *), void *arg)
{
    double best = INFINITY;
    fn(arg);
    for (int r = 0; r < RUNS; r++) {
        uint64_t start = bench->clock(), end;
        int n = 0;
        do {
            fn(arg);
            n++;
            end = bench->clock();
        } while (end - start < RUN_NS);
        best = fmin(best, (double)(end - start) * 1e-9 / n);
    }
    return best;
}

/* What bounds a kernel is the larger of arithmetic at peak and bytes at the read rate. */
static void line(const char *name, double seconds, double ops, double peak, double bytes)
{
    double arithmetic = ops / peak, reading = bytes / one.read;
    double share = fmax(arithmetic, reading) / seconds;
    const char *bound = arithmetic > reading ? "peak" : "read";
    if (bench->json)
        printf("{\"phase\":\"kernel\",\"name\":\"%s\",\"us\":%.2f,\"gop_s\":%.1f,\"gb_s\":%.2f,"
               "\"bound\":\"%s\",\"share\":%.3f}\n",
               name, seconds * 1e6, ops / seconds * 1e-9, bytes / seconds * 1e-9, bound, share);
    else
        printf("%-36s %9.2f us %8.1f GOP/s %7.2f GB/s   %3.0f %% of %s\n", name, seconds * 1e6,
               ops / seconds * 1e-9, bytes / seconds * 1e-9, 100 * share, bound);
    fflush(stdout);
}

/* ---- linear layers -------------------------------------------------------------------------- */

struct linear_job {
    const struct weight *w;
    linear_fn fn;
    struct act act;
    float *c;
    uint32_t m;
    uint32_t copies, copy; /* weights to walk through, so that decode reads memory */
    const struct weight *const *all;
};

static void linear_once(void *arg)
{
    struct linear_job *j = arg;
    const struct weight *w = j->all[j->copy++ % j->copies];
    for (uint32_t row = 0; row < j->m; row += 96) {
        struct linear_args a = {.k = w->k, .m = j->m - row < 96 ? j->m - row : 96, .ldc = w->n};
        size_t at = (size_t)row * w->k;
        a.a = (struct act){.f = j->act.f + at,
                           .h = j->act.h + at,
                           .q = j->act.q + at,
                           .d = j->act.d + at / Q_BLOCK,
                           .s = j->act.s + at / (w->format == WEIGHT_Q8K ? 16 : Q_BLOCK),
                           .ds = j->act.ds + at / Q_BLOCK};
        for (uint32_t p = 0; p < w->n_panels; p++) {
            a.w = w->data + p * w->panel_bytes;
            a.c = j->c + (size_t)row * w->n + (size_t)p * PANEL;
            j->fn(&a);
        }
    }
}

static void bench_linear(enum weight_format format, linear_fn fn, const char *name, double peak)
{
    enum { N = 3072, K = 576, M = 512, COPIES = 256 };
    static const uint32_t rows[] = {1, 4, 16, 64, 512};
    struct threads *pool;
    char err[200];
    if (threads_create(1, NULL, &pool, err, sizeof err) != 0)
        bench_die("%s", err);
    struct weight_store store = {0};
    const struct weight *all[COPIES];
    /* Beyond what a cache might keep: 226 MB or more. */
    int copies = format == WEIGHT_F32 || format == WEIGHT_BF16 ? COPIES / 4 : COPIES;
    float *source = memory((size_t)N * K * sizeof *source);
    fill_floats(source, (size_t)N * K);
    struct matrix_view v = {.type = MATRIX_F32, .rows = N, .cols = K, .data = source};
    for (int i = 0; i < copies; i++) {
        struct weight *w;
        if (weight_create(&store, pool, &v, 1, format, false, false, &w) != 0)
            bench_die("cannot pack a weight");
        all[i] = w;
    }
    size_t n = (size_t)M * K;
    struct linear_job j = {.fn = fn, .all = all};
    j.act = (struct act){.f = memory(n * 4),
                         .h = memory(n * 2),
                         .q = memory(n),
                         .d = memory(n / 8),
                         .s = memory(n / 8),
                         .ds = memory(n / 8)};
    j.c = memory((size_t)M * N * sizeof(float));
    fill_floats(j.act.f, n);
    fill_floats(j.act.d, n / Q_BLOCK);
    fill_floats(j.act.ds, n / Q_BLOCK);
    fill_random(j.act.q, n);
    for (size_t i = 0; i < n; i++)
        j.act.h[i] = bf16_from_f32(j.act.f[i]);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        j.m = rows[i];
        j.copies = (uint32_t)copies;
        char title[64];
        snprintf(title, sizeof title, "linear_%s_%s %ux%d*%d", name, kernels->isa, rows[i], K, N);
        line(title, best_time(linear_once, &j), 2.0 * rows[i] * N * K, peak,
             (double)all[0]->n_panels * (double)all[0]->panel_bytes);
    }
    for (int i = 0; i < copies; i++)
        weight_destroy(&store, (struct weight *)(uintptr_t)all[i]);
    weight_store_fini(&store);
    threads_destroy(pool);
    mem_huge_free(source, (size_t)N * K * sizeof *source);
    mem_huge_free(j.act.f, n * 4);
    mem_huge_free(j.act.h, n * 2);
    mem_huge_free(j.act.q, n);
    mem_huge_free(j.act.d, n / 8);
    mem_huge_free(j.act.s, n / 8);
    mem_huge_free(j.act.ds, n / 8);
    mem_huge_free(j.c, (size_t)M * N * sizeof(float));
}

/* ---- attention ------------------------------------------------------------------------------ */

struct attention_job {
    struct attention_args a; /* of a layer's first KV head */
    struct attention_scratch *scratch;
    uint32_t tokens, heads, layers, layer;
    const uint8_t *kv;
    size_t layer_bytes, cell;
};

static void attention_once(void *arg)
{
    struct attention_job *j = arg;
    struct attention_args a = j->a;
    uint32_t rows = j->tokens * a.group;
    /* The next layer each time: the pool as a whole exceeds the caches. */
    a.kv = j->kv + j->layer++ % j->layers * j->layer_bytes;
    for (uint32_t h = 0; h < j->heads; h++) {
        a.next_kv = h + 1 < j->heads ? a.kv + j->cell : NULL;
        a.next_table = a.table;
        a.next_keys = (uint32_t)a.position[j->tokens - 1] + 1;
        for (uint32_t first = 0; first < rows; first += ATTENTION_MOST)
            attention_rows(kernels, &a, first,
                           rows - first < ATTENTION_MOST ? rows - first : ATTENTION_MOST,
                           j->scratch);
        a.kv += j->cell;
        a.q += a.group * a.head_dim;
        a.out += a.group * a.head_dim;
    }
}

/* Blocks of a sequence lie one after the other, or are scattered. */
static void bench_attention(uint32_t head_dim, uint32_t heads, uint32_t group, uint32_t start,
                            uint32_t tokens, bool scattered)
{
    enum { BLOCK = 16 };
    uint32_t keys = start + tokens, blocks = (keys + BLOCK - 1) / BLOCK;
    size_t cell = kv_sub_bytes(KV_BF16, head_dim), layer_bytes = cell * heads * blocks;
    uint32_t layers = 1 + (uint32_t)(((size_t)256 << 20) / layer_bytes);
    size_t bytes = layer_bytes * layers, n = (size_t)tokens * heads * group * head_dim;
    uint16_t *kv = memory(bytes);
    fill_random(kv, bytes);
    for (size_t i = 0; i < bytes / 2; i++)
        kv[i] = (uint16_t)((kv[i] & 0x807f) | 0x3f00); /* 0.5 .. 1, both signs */
    struct attention_job j = {.tokens = tokens,
                              .heads = heads,
                              .layers = layers,
                              .kv = (uint8_t *)kv,
                              .layer_bytes = layer_bytes,
                              .cell = cell};
    float *q = memory(n * sizeof *q), *out = memory(n * sizeof *out);
    int32_t *position = memory(tokens * sizeof *position);
    uint32_t *table = memory(blocks * sizeof *table);
    fill_floats(q, n);
    for (uint32_t i = 0; i < tokens; i++)
        position[i] = (int32_t)(start + i);
    for (uint32_t i = 0; i < blocks; i++)
        table[i] = i;
    for (uint32_t i = blocks; scattered && i > 1; i--) {
        uint32_t k = rng_philox(2, i, 0).v[0] % i, t = table[i - 1];
        table[i - 1] = table[k];
        table[k] = t;
    }
    j.a = (struct attention_args){.q = q,
                                  .out = out,
                                  .q_stride = heads * group * head_dim,
                                  .out_stride = heads * group * head_dim,
                                  .position = position,
                                  .group = group,
                                  .head_dim = head_dim,
                                  .block_stride = cell * heads,
                                  .table = table,
                                  .block_size = BLOCK};
    j.scratch = memory(sizeof *j.scratch);
    double pairs = (double)tokens * start + (double)tokens * (tokens + 1) / 2;
    char title[64];
    snprintf(title, sizeof title, "attention_%s %u x %u:1 %u+%u%s", kernels->isa, heads * group,
             head_dim, start, tokens, scattered ? " scattered" : "");
    line(title, best_time(attention_once, &j), 4 * pairs * heads * group * head_dim, one.bf16,
         (double)layer_bytes);
    mem_huge_free(kv, bytes);
    mem_huge_free(q, n * sizeof *q);
    mem_huge_free(out, n * sizeof *out);
    mem_huge_free(position, tokens * sizeof *position);
    mem_huge_free(table, blocks * sizeof *table);
    mem_huge_free(j.scratch, sizeof *j.scratch);
}

void bench_kernels(const struct bench *b)
{
    struct threads *pool;
    char err[200];
    bench = b;
    kernels = kernels_select(b->isa);
    if (threads_create(1, NULL, &pool, err, sizeof err) != 0)
        bench_die("%s", err);
    struct ceiling *c = ceiling_create(b->isa, pool, b->cpu_time);
    if (!c)
        bench_die("out of memory");
    ceiling_measure(c, &one);
    ceiling_destroy(c);
    threads_destroy(pool);
    bench_linear(WEIGHT_F32, kernels->linear_f32, "f32", one.f32);
    bench_linear(WEIGHT_BF16, kernels->linear_bf16, "bf16", one.bf16);
    bench_linear(WEIGHT_Q8, kernels->linear_q8, "q8", one.int8);
    bench_linear(WEIGHT_Q8K, kernels->linear_q8k, "q8k", one.int8);
    bench_linear(WEIGHT_Q4, kernels->linear_q4, "q4", one.int8);
    for (int scattered = 0; scattered < 2; scattered++) {
        bench_attention(64, 3, 3, 1023, 1, scattered);
        bench_attention(64, 3, 3, 8191, 1, scattered);
        bench_attention(128, 8, 4, 4095, 1, scattered);
    }
    bench_attention(64, 3, 3, 0, 512, true);
    bench_attention(64, 3, 3, 2048, 512, true);
    bench_attention(128, 8, 4, 2048, 256, true);
}
