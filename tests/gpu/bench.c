/* bench: what the CUDA backend costs, measured on the device it runs on. Part of tests/gpu/run.sh.
 *
 *   bench decode [--tiny]     steps of Llama-3.1-8B's shape: batch x context x (eager, graphs)
 *   bench prefill [--tiny]    chunks of a prompt
 *   bench gemm [--tiny]       cuBLASLt: 8192^3 and the layer's products at 1 to 256 rows
 *
 * Weights are random numbers made once on the host and used for every layer: what a step costs does
 * not depend on them, and nothing has to be carried to the machine. With --tiny the shapes are
 * small enough for the emulation, where the numbers mean nothing but the program is run. Each line
 * is "NAME VALUE UNIT"; times are medians. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "kernels/backend.h"
#include "kernels/device.h"
#include "kernels/gpu_api.h"
#include "kernels/half.h"
#include "kernels/weight.h"

#define REPEATS 15

static bool tiny;
static struct backend_dims dims;

static void must(int rc, const char *what)
{
    if (rc == 0)
        return;
    fprintf(stderr, "bench: %s: %d\n", what, rc);
    exit(1);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return v[n / 2];
}

/* ---- the model ------------------------------------------------------------------------------ */

static void choose_dims(uint32_t rows, uint32_t seqs, uint32_t context)
{
    dims = (struct backend_dims){.n_layers = tiny ? 2 : 32,
                                 .hidden = tiny ? 64 : 4096,
                                 .n_heads = tiny ? 4 : 32,
                                 .n_kv_heads = tiny ? 2 : 8,
                                 .head_dim = tiny ? 32 : 128,
                                 .ffn = tiny ? 96 : 14336,
                                 .vocab = tiny ? 300 : 128256,
                                 .context = context,
                                 .max_rows = rows,
                                 .max_seqs = seqs,
                                 .max_logits = seqs,
                                 .kv_block_size = 16,
                                 .rms_eps = 1e-5f,
                                 .rope_theta = 500000,
                                 .rope_neox = true};
}

/* A matrix of random bf16; all of them begin in one pool, at different places. */
static struct matrix_view matrix(uint64_t rows, uint64_t cols)
{
    static uint16_t *pool;
    static uint64_t n, at;
    if (!pool) {
        n = tiny ? 1 << 20 : (uint64_t)128256 * 4096 + (1 << 20);
        pool = mem_huge(n * 2);
        must(pool ? 0 : STATUS_NOMEM, "memory for the weights");
        for (uint64_t i = 0; i < n; i += 4) {
            struct rng_block r = rng_philox(1, i, 0);
            for (uint64_t k = 0; k < 4 && i + k < n; k++)
                pool[i + k] = bf16_from_f32((float)(int32_t)r.v[k] * 0x1p-31f * 0.03f);
        }
    }
    at = (at + 4096) % (1 << 19);
    return (struct matrix_view){MATRIX_BF16, rows, cols, pool + at};
}

struct model {
    struct backend *b;
    const struct device_ops *dev;
    struct op *ops;
    size_t n_ops;
    struct weight **weights;
    size_t n_weights;
    float *norm;
    size_t weight_bytes; /* read by a step: without the embedding */
    void *kv;
    uint32_t n_blocks;
};

static const struct weight *pack(struct model *m, const struct matrix_view *parts, size_t n,
                                 bool interleave, bool embed)
{
    struct weight *w;
    must(backend_weight_create(m->b, parts, n, WEIGHT_BF16, interleave, embed, &w), "weights");
    m->weights[m->n_weights++] = w;
    m->weight_bytes += embed ? 0 : backend_weight_bytes(w);
    return w;
}

static void add(struct model *m, struct op op)
{
    m->ops[m->n_ops++] = op;
}

static void model_open(struct model *m, bool graphs, uint32_t n_blocks)
{
    const struct backend_dims *d = &dims;
    struct backend_options o = {
        .name = "cuda", .threads = 1, .graphs = graphs, .strict = getenv("BENCH_STRICT") != NULL};
    char err[256] = "";
    *m = (struct model){.ops = mem_array(7 * d->n_layers + 2, sizeof *m->ops),
                        .weights = mem_array(4 * d->n_layers + 2, sizeof(struct weight *)),
                        .norm = mem_array(d->hidden, sizeof *m->norm)};
    int rc = backend_create(&o, d, &m->b, err, sizeof err);
    if (rc != 0)
        fprintf(stderr, "bench: %s\n", err);
    must(rc, "backend");
    m->dev = backend_device(m->b);
    for (uint32_t i = 0; i < d->hidden; i++)
        m->norm[i] = 1;
    uint64_t heads = (uint64_t)d->n_heads * d->head_dim, kv = (uint64_t)d->n_kv_heads * d->head_dim;
    struct matrix_view e = matrix(d->vocab, d->hidden);
    add(m, (struct op){.kind = OP_EMBED, .w = pack(m, &e, 1, false, true)});
    for (uint32_t l = 0; l < d->n_layers; l++) {
        struct matrix_view qkv[] = {matrix(heads, d->hidden), matrix(kv, d->hidden),
                                    matrix(kv, d->hidden)};
        struct matrix_view out = matrix(d->hidden, heads), down = matrix(d->hidden, d->ffn);
        struct matrix_view gu[] = {matrix(d->ffn, d->hidden), matrix(d->ffn, d->hidden)};
        add(m,
            (struct op){
                .kind = OP_QKV, .layer = l, .w = pack(m, qkv, 3, false, false), .norm = m->norm});
        add(m, (struct op){.kind = OP_ROPE_APPEND, .layer = l});
        add(m, (struct op){.kind = OP_KV_READY, .layer = l});
        add(m, (struct op){.kind = OP_ATTENTION, .layer = l});
        add(m, (struct op){.kind = OP_OUT, .layer = l, .w = pack(m, &out, 1, false, false)});
        add(m,
            (struct op){
                .kind = OP_GATE_UP, .layer = l, .w = pack(m, gu, 2, true, false), .norm = m->norm});
        add(m, (struct op){.kind = OP_DOWN, .layer = l, .w = pack(m, &down, 1, false, false)});
    }
    struct matrix_view h = matrix(d->vocab, d->hidden);
    add(m, (struct op){.kind = OP_LOGITS, .w = pack(m, &h, 1, false, false), .norm = m->norm});
    m->n_blocks = n_blocks;
    must(m->dev->kv_alloc(m->b, n_blocks, &m->kv), "memory for KV");
}

static void model_close(struct model *m)
{
    m->dev->kv_free(m->b, m->kv);
    for (size_t i = 0; i < m->n_weights; i++)
        backend_weight_destroy(m->b, m->weights[i]);
    backend_destroy(m->b);
    free(m->ops);
    free(m->weights);
    free(m->norm);
}

static struct replay *capture(struct model *m, uint32_t bucket)
{
    struct kv_view kv = {m->kv, m->n_blocks};
    struct replay *r;
    must(backend_capture(m->b, m->ops, m->n_ops, bucket, &kv, &r), "capture");
    return r;
}

/* ---- steps ---------------------------------------------------------------------------------- */

/* Fills a step of n sequences with `rows` rows each at position `position`. */
static struct device_step *fill(struct model *m, uint32_t n, uint32_t rows, uint32_t position)
{
    const struct gpu_caps *c = m->dev->caps(m->b);
    uint32_t blocks = (position + rows - 1) / 16 + 1;
    uint32_t *table = mem_array(blocks, sizeof *table);
    struct device_step *s;
    must(m->dev->open(m->b, &s), "open");
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < blocks; k++)
            table[k] = 1 + (i * blocks + k) % (m->n_blocks - 1);
        must(m->dev->table(m->b, s, i, table, blocks), "table");
        gpu_step_segment(s->args, c)[i] = i * rows;
        for (uint32_t k = 0; k < rows; k++)
            gpu_step_rows(s->args)[i * rows + k] =
                (struct gpu_row){.token = (int32_t)((i + k) % dims.vocab),
                                 .position = (int32_t)(position + k),
                                 .slot = i,
                                 .flags = rows == 1 ? GPU_ROW_SINGLE : 0};
        gpu_step_logit_row(s->args, c)[i] = i * rows + rows - 1;
        gpu_step_samples(s->args, c)[i] = (struct gpu_sample){.top_p = 1,
                                                              .min_floor = -INFINITY,
                                                              .position = position + rows,
                                                              .slot = i,
                                                              .mask = GPU_NO_MASK,
                                                              .last_position = UINT32_MAX};
    }
    gpu_step_segment(s->args, c)[n] = n * rows;
    s->args->n_segments = s->args->n_logits = n;
    s->args->n_rows = n * rows;
    s->decode = rows == 1;
    s->draw = true;
    free(table);
    return s;
}

static void finish(struct model *m, struct device_step *s)
{
    uint32_t layers;
    int rc;
    do {
        rc = m->dev->poll(m->b, s, true, &layers);
    } while (rc == STATUS_AGAIN);
    must(rc, "step");
    m->dev->close(m->b, s);
}

/* Seconds a step, with the next one launched before the last is waited for; and the host's own part
 * in *host. */
static double step_time(struct model *m, struct replay *r, uint32_t n, uint32_t rows,
                        uint32_t position, double *host)
{
    double t[REPEATS], h[REPEATS];
    int repeats = tiny ? 3 : REPEATS;
    struct device_step *last = fill(m, n, rows, position);
    must(m->dev->launch(m->b, last, r), "launch");
    for (int i = -2; i < repeats; i++) {
        uint64_t a = clock_ns();
        struct device_step *next = fill(m, n, rows, position);
        must(m->dev->launch(m->b, next, r), "launch");
        uint64_t b = clock_ns();
        finish(m, last);
        last = next;
        if (i < 0)
            continue;
        t[i] = (double)(clock_ns() - a) * 1e-9;
        h[i] = (double)(b - a) * 1e-9;
    }
    finish(m, last);
    *host = median(h, repeats);
    return median(t, repeats);
}

/* The emulation checks that nobody reads KV that nobody wrote: there, write it. */
static void write_kv(struct model *m, uint32_t n, uint32_t position, const struct replay *r)
{
    (void)r;
    if (!tiny)
        return;
    for (uint32_t l = 0; l < dims.n_layers; l++)
        for (uint32_t b = 1; b < m->n_blocks && b <= n * (position / 16 + 1); b++)
            m->dev->kv_incoming(m->b, l, b);
    for (uint32_t l = 0; l < dims.n_layers; l++)
        for (uint32_t b = 1; b < m->n_blocks && b <= n * (position / 16 + 1); b++) {
            must(m->dev->kv_clear_tail(m->b, l, b, 0), "clearing KV");
            m->dev->kv_arrived(m->b, l, b);
        }
}

static uint32_t pool_blocks(uint32_t n, uint32_t position)
{
    return n * (position / 16 + 2) + 1;
}

static void decode(void)
{
    static const uint32_t batches[] = {1, 2, 4, 8, 16, 32, 64, 128};
    static const uint32_t contexts[] = {2048, 8192};
    uint32_t most = tiny ? 4 : 128;
    for (int graphs = 1; graphs >= 0; graphs--) {
        struct model m;
        /* 64 sequences of 8k: 69 GB of KV; beyond that only the short context. */
        uint32_t blocks = tiny                                             ? 200
                          : pool_blocks(64, 8192) > pool_blocks(128, 2048) ? pool_blocks(64, 8192)
                                                                           : pool_blocks(128, 2048);
        choose_dims(most, most + 1, tiny ? 256 : 8192 + 16);
        model_open(&m, graphs, blocks);
        for (size_t i = 0; i < sizeof batches / sizeof *batches && batches[i] <= most; i++) {
            uint32_t n = batches[i];
            struct replay *r = capture(&m, n);
            for (size_t c = 0; c < 2; c++) {
                uint32_t context = tiny ? contexts[c] / 64 : contexts[c];
                double host;
                if (pool_blocks(n, context) > m.n_blocks)
                    continue;
                write_kv(&m, n, context, r);
                double t = step_time(&m, r, n, 1, context - 1, &host);
                double kv = 2.0 * dims.n_layers * dims.n_kv_heads * dims.head_dim * 2 * context * n;
                double bytes = (double)m.weight_bytes + kv;
                char name[64];
                snprintf(name, sizeof name, "decode.%s.b%u.c%u", graphs ? "graph" : "eager", n,
                         context);
                printf("%s.ms %.4f ms\n", name, t * 1e3);
                printf("%s.tokens %.1f tok/s\n", name, n / t);
                printf("%s.read %.1f GB/s\n", name, bytes / t * 1e-9);
                printf("%s.host %.1f us\n", name, host * 1e6);
                fflush(stdout);
            }
            backend_replay_destroy(m.b, r);
        }
        model_close(&m);
    }
}

static void prefill(void)
{
    static const uint32_t prompts[] = {512, 2048, 8192};
    uint32_t chunk = tiny ? 96 : 2048;
    struct model m;
    choose_dims(chunk, 2, tiny ? 256 : 8192);
    model_open(&m, true, tiny ? 40 : pool_blocks(1, 8192));
    for (size_t i = 0; i < 3; i++) {
        uint32_t n = tiny ? prompts[i] / 32 : prompts[i], rows = n < chunk ? n : chunk;
        double best = INFINITY;
        struct replay *r = capture(&m, rows);
        for (int k = 0; k < (tiny ? 1 : 4); k++) {
            uint64_t a = clock_ns();
            for (uint32_t at = 0; at < n; at += rows) {
                struct device_step *s = fill(&m, 1, rows < n - at ? rows : n - at, at);
                must(m.dev->launch(m.b, s, r), "launch");
                finish(&m, s);
            }
            double t = (double)(clock_ns() - a) * 1e-9;
            best = t < best ? t : best;
        }
        double layer = (double)m.weight_bytes / 2 -
                       (double)dims.vocab * dims.hidden; /* parameters but the head's */
        double flops =
            2.0 * n * layer + 2.0 * dims.n_heads * dims.head_dim * dims.n_layers * (double)n * n;
        printf("prefill.s%u.ms %.3f ms\n", n, best * 1e3);
        printf("prefill.s%u.flops %.1f TFLOP/s\n", n, flops / best * 1e-12);
        fflush(stdout);
        backend_replay_destroy(m.b, r);
    }
    model_close(&m);
}

/* ---- cuBLASLt ------------------------------------------------------------------------------- */

static const struct gpu_api *api;

static void *device_memory(size_t n, struct gpu_stream *s)
{
    void *p;
    must(api->mem_alloc(&p, n), "device memory");
    must(api->fill_async(p, 0x3c, n, s), "fill"); /* 0x3c3c: 0.0115 in bf16 */
    return p;
}

static void gemm_one(const char *name, uint32_t m, uint32_t n, uint32_t k, struct gpu_stream *s)
{
    size_t workspace = tiny ? 4096 : (size_t)32 << 20;
    struct gpu_matmul_desc d = {.n = n, .k = k, .ldy = n, .m_max = m, .workspace = workspace};
    struct gpu_matmul *p;
    struct gpu_event *a, *b;
    must(api->matmul_create(&d, &p), "matmul plan");
    void *x = device_memory((size_t)m * k * 2, s), *w = device_memory((size_t)n * k * 2, s);
    void *y = device_memory((size_t)m * n * 2, s), *ws = device_memory(workspace, s);
    must(api->event_create(&a, true) || api->event_create(&b, true), "event");
    int loops = tiny ? 1 : m * (double)n * k > 1e11 ? 10 : 50;
    double t[5];
    for (int i = -1; i < 5; i++) {
        float ms;
        must(api->event_record(a, s), "record");
        for (int l = 0; l < loops; l++)
            must(api->matmul_run(p, m, x, w, y, ws, s), "matmul");
        must(api->event_record(b, s), "record");
        must(api->event_sync(b), "sync");
        must(api->event_ms(&ms, a, b), "time");
        if (i >= 0)
            t[i] = (double)ms * 1e-3 / loops;
    }
    double time = median(t, 5);
    printf("gemm.%s.m%u.us %.2f us\n", name, m, time * 1e6);
    printf("gemm.%s.m%u.flops %.1f TFLOP/s\n", name, m, 2.0 * m * n * k / time * 1e-12);
    printf("gemm.%s.m%u.read %.1f GB/s\n", name, m, 2.0 * n * k / time * 1e-9);
    fflush(stdout);
    must(api->stream_sync(s), "sync");
    void *all[] = {x, w, y, ws};
    for (int i = 0; i < 4; i++)
        must(api->mem_free(all[i]), "free");
    must(api->event_destroy(a) || api->event_destroy(b) || api->matmul_destroy(p), "free");
}

static void gemm(void)
{
    static const struct {
        const char *name;
        uint32_t n, k;
    } products[] = {
        {"qkv", 6144, 4096}, {"out", 4096, 4096}, {"gate_up", 28672, 4096}, {"down", 4096, 14336}};
    char err[256] = "";
    struct gpu_props props;
    struct gpu_stream *s;
    api = gpu_api_open(err, sizeof err);
    if (!api) {
        fprintf(stderr, "bench: %s\n", err);
        exit(1);
    }
    must(api->device_open(0, &props) || api->stream_create(&s, false), "device");
    uint32_t square = tiny ? 64 : 8192, shrink = tiny ? 64 : 1;
    gemm_one("square", square, square, square, s);
    for (size_t i = 0; i < 4; i++)
        for (uint32_t m = 1; m <= 256; m *= 4)
            gemm_one(products[i].name, m, products[i].n / shrink, products[i].k / shrink, s);
    must(api->stream_destroy(s), "stream");
}

int main(int argc, char **argv)
{
    tiny = argc > 2 && strcmp(argv[2], "--tiny") == 0;
    if (argc > 1 && strcmp(argv[1], "decode") == 0)
        decode();
    else if (argc > 1 && strcmp(argv[1], "prefill") == 0)
        prefill();
    else if (argc > 1 && strcmp(argv[1], "gemm") == 0)
        gemm();
    else {
        fprintf(stderr, "usage: bench decode|prefill|gemm [--tiny]\n");
        return 2;
    }
    return 0;
}
