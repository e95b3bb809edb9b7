/* baton-bench: the engine against this machine.
 *
 *   baton-bench [--model FILE] [--threads T] [--prefill N,…] [--decode N] [--batch B,…]
 *               [--context C,…] [--kernels] [--json] …       (--help)
 *
 * First the ceilings, measured here and now: multiply-add loops in registers for each format, and a
 * stream over 1 GiB. Then the engine as a worker drives it: prompts in chunks, and batches of
 * sequences that decode at a context, sampling included. A phase is measured several times; what
 * is printed is the median. Its share is what the machine would need at its ceilings, by the time
 * that was taken: prefill by arithmetic (the sum over formats of operations by ceiling, attention
 * included), decode by arithmetic or by reading, whichever is longer. Rates of virtual machines
 * drift, so the ceilings are probed again before each run, and a share is the median of the runs'
 * own shares. "busy" is the CPU time that the process got by the time that its threads were to
 * work: below 1, others were running. */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/engine/cost.h"
#include "common/engine/engine.h"
#include "common/model/model.h"
#include "kernels/bench.h"
#include "kernels/cpu.h"

#define LIST_MAX  16
#define RUNS_MAX  99
#define FILL      256 /* tokens whose KV stands for any context */
#define SEQS_MAX  256
#define TOKENS_OK 1000000

struct list {
    uint32_t n, v[LIST_MAX];
};

struct options {
    const char *model, *isa, *weights, *kv, *cpus;
    uint32_t threads, helpers, decode, chunk, runs;
    struct list prefill, batch, context;
    bool kernels, engine;
};

static struct bench bench = {.clock = clock_ns};
static struct options o = {.isa = "auto",
                           .weights = "auto",
                           .kv = "auto",
                           .threads = 1,
                           .decode = 32,
                           .chunk = 512,
                           .runs = 5,
                           .prefill = {2, {512, 2048}},
                           .batch = {3, {1, 16, 32}},
                           .context = {1, {128}},
                           .engine = true};

void bench_die(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fputs("baton-bench: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    exit(1);
}

/* ---- allocations ---------------------------------------------------------------------------- */

/* Steps must not allocate; this program's malloc counts. */
static _Atomic uint64_t allocations;
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define COUNTS_ALLOCATIONS true
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *malloc(size_t n)
{
    atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
    return __libc_malloc(n);
}
void *calloc(size_t n, size_t size)
{
    atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
    return __libc_calloc(n, size);
}
void *realloc(void *p, size_t n)
{
    atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
    return __libc_realloc(p, n);
}
#else
#define COUNTS_ALLOCATIONS false
#endif

/* ---- the engine under test ------------------------------------------------------------------ */

struct rig {
    struct engine *e;
    struct engine_info info;
    struct ceiling *ceiling;
    void *kv;
    size_t kv_bytes;
    uint32_t n_blocks, per_seq; /* blocks of a sequence */
    uint32_t *tables;           /* [SEQS_MAX][per_seq] */
    int32_t *tokens;            /* a prompt */
    struct engine_row *rows;
    struct sample_params greedy;
    double ready_s;
};

static uint32_t max_of(const struct list *l)
{
    uint32_t m = 0;
    for (uint32_t i = 0; i < l->n; i++)
        m = l->v[i] > m ? l->v[i] : m;
    return m;
}

static uint32_t blocks_for(const struct rig *r, uint32_t tokens)
{
    return (tokens + r->info.kv_block_size - 1) / r->info.kv_block_size;
}

static void open_engine(struct rig *r)
{
    char err[512];
    struct model *m;
    struct engine_options eo = {.backend = "cpu",
                                .isa = o.isa,
                                .weights = o.weights,
                                .kv_format = o.kv,
                                .threads = (int)o.threads,
                                .helpers = (int)o.helpers,
                                .cpus = o.cpus,
                                .max_batch = max_of(&o.batch) > 0 ? max_of(&o.batch) : 1,
                                .prefill_chunk = o.chunk,
                                .kv_block_size = 16,
                                .graphs = true};
    uint64_t start = clock_ns();
    if (model_open(o.model, 0, &m, err, sizeof err) != 0 ||
        engine_create(m, &eo, &r->e, err, sizeof err) != 0)
        bench_die("%s", err);
    model_close(m);
    r->info = *engine_info(r->e);
    uint32_t longest = max_of(&o.prefill), context = max_of(&o.context) + o.decode;
    uint32_t seqs = max_of(&o.batch) > 0 ? max_of(&o.batch) : 1;
    longest = longest > FILL ? longest : FILL;
    if (longest > r->info.context || context > r->info.context)
        bench_die("the model's context is %u tokens", r->info.context);
    r->per_seq = blocks_for(r, longest > context ? longest : context);
    r->n_blocks = 1 + blocks_for(r, longest);
    if (r->n_blocks < 1 + seqs * blocks_for(r, context))
        r->n_blocks = 1 + seqs * blocks_for(r, context);
    r->kv_bytes = (size_t)r->n_blocks * r->info.n_layers * r->info.kv_block_bytes;
    r->kv = mem_huge(r->kv_bytes);
    if (!r->kv || engine_bind_kv(r->e, r->kv, r->n_blocks) != 0)
        bench_die("no memory for a KV cache of %zu MB", r->kv_bytes >> 20);
    r->ready_s = (double)(clock_ns() - start) * 1e-9;
    r->tables = mem_array(SEQS_MAX, r->per_seq * sizeof *r->tables);
    r->tokens = mem_array(longest, sizeof *r->tokens);
    r->rows = mem_array(SEQS_MAX, sizeof *r->rows);
    if (!r->tables || !r->tokens || !r->rows)
        bench_die("out of memory");
    for (uint32_t i = 0; i < longest; i++)
        r->tokens[i] = (int32_t)((i * 7919u + 11) % r->info.vocab);
}

/* Blocks of sequence s: scattered over the pool, as they are after hours of work. Their number is
 * coprime to the stride. */
static void place_blocks(struct rig *r, uint32_t seqs, uint32_t tokens)
{
    uint32_t n = r->n_blocks - 1, per = blocks_for(r, tokens), stride = 7919;
    while (n % stride == 0)
        stride += 2;
    for (uint32_t s = 0; s < seqs; s++)
        for (uint32_t i = 0; i < per; i++)
            r->tables[(size_t)s * r->per_seq + i] =
                1 + (uint32_t)((uint64_t)(s * per + i) * stride % n);
}

static void run_step(struct rig *r, uint32_t n)
{
    struct engine_step s = {.rows = r->rows, .n_rows = n};
    int rc = engine_step(r->e, &s);
    if (rc != 0)
        bench_die("a step failed: %s", status_text(rc));
}

/* Computes tokens 0 .. n - 1 of a prompt, and samples behind the last one. */
static void prefill(struct rig *r, uint32_t n)
{
    for (uint32_t at = 0; at < n; at += o.chunk) {
        uint32_t part = n - at < o.chunk ? n - at : o.chunk;
        r->rows[0] = (struct engine_row){.tokens = r->tokens + at,
                                         .n_tokens = part,
                                         .position = at,
                                         .blocks = r->tables,
                                         .sampling = at + part == n ? &r->greedy : NULL};
        run_step(r, 1);
    }
}

/* Gives every sequence a context of `tokens`: the KV of FILL tokens again and again. */
static void fill_context(struct rig *r, uint32_t seqs, uint32_t tokens)
{
    place_blocks(r, 1, FILL);
    prefill(r, FILL);
    uint32_t n = blocks_for(r, FILL);
    size_t bytes = r->info.kv_block_bytes;
    uint8_t *copy = mem_huge(n * bytes);
    if (!copy)
        bench_die("out of memory");
    uint32_t from[FILL / 16];
    memcpy(from, r->tables, n * sizeof *from);
    place_blocks(r, seqs, tokens);
    for (uint32_t l = 0; l < r->info.n_layers; l++) {
        for (uint32_t i = 0; i < n; i++)
            memcpy(copy + i * bytes, engine_kv_block(r->e, l, from[i]), bytes);
        for (uint32_t s = 0; s < seqs; s++)
            for (uint32_t i = 0; i < blocks_for(r, tokens); i++)
                memcpy(engine_kv_block(r->e, l, r->tables[(size_t)s * r->per_seq + i]),
                       copy + i % n * bytes, bytes);
    }
    mem_huge_free(copy, n * bytes);
}

/* n tokens of each of `seqs` sequences behind `context` others. */
static void decode(struct rig *r, uint32_t seqs, uint32_t context, uint32_t n)
{
    int32_t *token = r->tokens;
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t s = 0; s < seqs; s++)
            r->rows[s] = (struct engine_row){.tokens = &token[s],
                                             .n_tokens = 1,
                                             .position = context + i,
                                             .blocks = r->tables + (size_t)s * r->per_seq,
                                             .sampling = &r->greedy};
        run_step(r, seqs);
        for (uint32_t s = 0; s < seqs; s++)
            token[s] = r->rows[s].result.token;
    }
}

/* ---- measuring ------------------------------------------------------------------------------ */

static double process_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

struct run {
    double seconds, busy;
    struct ceilings ceilings;
};

struct result {
    double seconds, best, busy, share, peak_share, read_share; /* medians but for best */
    struct engine_cost cost;
};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, uint32_t n)
{
    qsort(v, n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static double peak_seconds(const struct engine_cost *c, const struct ceilings *m)
{
    return c->f32 / m->f32 + c->bf16 / m->bf16 + c->int8 / m->int8;
}

struct phase {
    uint32_t seqs, start, tokens; /* decode when start > 0 or tokens are generated */
    bool decode;
};

static void phase_once(struct rig *r, const struct phase *p)
{
    if (p->decode)
        decode(r, p->seqs, p->start, p->tokens);
    else
        prefill(r, p->tokens);
}

/* The work of the whole phase, step by step. */
static struct engine_cost phase_cost(struct rig *r, const struct phase *p,
                                     struct engine_cost kinds[OP_KINDS])
{
    memset(kinds, 0, OP_KINDS * sizeof *kinds);
    uint32_t step = p->decode ? 1 : o.chunk;
    for (uint32_t at = 0; at < p->tokens; at += step) {
        uint32_t n = p->tokens - at < step ? p->tokens - at : step;
        struct engine_load l = engine_load(p->seqs, p->start + at, n);
        if (!p->decode && at + n < p->tokens)
            l.logits = 0;
        struct engine_cost one[OP_KINDS];
        engine_cost(r->e, &l, one);
        for (int k = 0; k < OP_KINDS; k++) {
            kinds[k].f32 += one[k].f32;
            kinds[k].bf16 += one[k].bf16;
            kinds[k].int8 += one[k].int8;
            kinds[k].bytes += one[k].bytes;
        }
    }
    return engine_cost_sum(kinds);
}

static struct result measure(struct rig *r, const struct phase *p, struct backend_profile *profile)
{
    struct engine_cost kinds[OP_KINDS];
    struct result x = {.best = INFINITY, .cost = phase_cost(r, p, kinds)};
    double seconds[RUNS_MAX], busy[RUNS_MAX], share[RUNS_MAX], peak[RUNS_MAX], read[RUNS_MAX];
    phase_once(r, p);
    backend_set_profile(engine_backend(r->e), profile);
    for (uint32_t i = 0; i < o.runs; i++) {
        struct ceilings c;
        ceiling_probe(r->ceiling, &c);
        double cpu = process_seconds();
        uint64_t start = clock_ns(), begin = bench.clock();
        phase_once(r, p);
        seconds[i] = (double)(bench.clock() - begin) * 1e-9;
        double wall = (double)(clock_ns() - start) * 1e-9;
        busy[i] = (process_seconds() - cpu) / wall / o.threads;
        peak[i] = peak_seconds(&x.cost, &c) / seconds[i];
        read[i] = x.cost.bytes / c.read / seconds[i];
        share[i] = p->decode ? fmax(peak[i], read[i]) : peak[i];
        x.best = fmin(x.best, seconds[i]);
    }
    backend_set_profile(engine_backend(r->e), NULL);
    x.seconds = median(seconds, o.runs);
    x.busy = median(busy, o.runs);
    x.share = median(share, o.runs);
    x.peak_share = median(peak, o.runs);
    x.read_share = median(read, o.runs);
    return x;
}

/* ---- output --------------------------------------------------------------------------------- */

static void ceiling_line(const char *kind, double value, const char *unit)
{
    if (bench.json)
        printf("{\"phase\":\"ceiling\",\"kind\":\"%s\",\"threads\":%u,\"value\":%.1f,\"unit\":\"%"
               "s\"}\n",
               kind, o.threads, value * 1e-9, unit);
    else
        printf("ceiling  %-10s %8.1f %s\n", kind, value * 1e-9, unit);
}

static void print_result(const struct phase *p, const struct result *x)
{
    double tokens = (double)p->seqs * p->tokens;
    double ops = (x->cost.f32 + x->cost.bf16 + x->cost.int8) / x->seconds * 1e-9;
    double bytes = x->cost.bytes / x->seconds * 1e-9;
    const char *bound = p->decode && x->read_share > x->peak_share ? "read" : "peak";
    if (bench.json) {
        if (p->decode)
            printf("{\"phase\":\"decode\",\"threads\":%u,\"batch\":%u,\"context\":%u,", o.threads,
                   p->seqs, p->start);
        else
            printf("{\"phase\":\"prefill\",\"threads\":%u,\"tokens\":%u,", o.threads, p->tokens);
        printf("\"tok_s\":%.1f,\"share\":%.3f,\"bound\":\"%s\",\"ms\":%.3f,\"tok_s_best\":%.1f,"
               "\"gop_s\":%.1f,\"gb_s\":%.2f,\"busy\":%.3f}\n",
               tokens / x->seconds, x->share, bound, x->seconds * 1e3 / (p->decode ? p->tokens : 1),
               tokens / x->best, ops, bytes, x->busy);
    } else {
        if (p->decode)
            printf("decode   %3u x at %5u", p->seqs, p->start);
        else
            printf("prefill  %5u tokens ", p->tokens);
        printf(" %8.1f tok/s (best %8.1f) %8.2f ms  %6.1f GOP/s %6.2f GB/s  %5.1f %% of %s, busy "
               "%.0f %%%s\n",
               tokens / x->seconds, tokens / x->best,
               x->seconds * 1e3 / (p->decode ? p->tokens : 1), ops, bytes, 100 * x->share, bound,
               100 * x->busy, x->share > 1.05 ? "  FAILED: more than the machine can" : "");
    }
}

static const char *const kind_names[OP_KINDS] = {
    "embed", "qkv", "rope_append", "attention", "out", "gate_up", "down", "kv_ready", "logits"};

/* Where the time of the phase's runs went. */
static void print_profile(struct rig *r, const struct phase *p, const struct backend_profile *f)
{
    struct engine_cost kinds[OP_KINDS];
    struct ceilings *m = &bench.ceilings;
    phase_cost(r, p, kinds);
    double runs = o.runs, all = 0;
    for (int k = 0; k < OP_KINDS; k++)
        all += f->seconds[k];
    for (int k = 0; k < OP_KINDS; k++) {
        double s = f->seconds[k] / runs, ops = kinds[k].f32 + kinds[k].bf16 + kinds[k].int8;
        if (s <= 0 || k == OP_KV_READY)
            continue;
        double arithmetic = peak_seconds(&kinds[k], m), reading = kinds[k].bytes / m->read;
        double share = (p->decode ? fmax(arithmetic, reading) : arithmetic) / s;
        if (bench.json)
            printf("{\"phase\":\"op\",\"of\":\"%s\",\"threads\":%u,\"seqs\":%u,\"start\":%u,"
                   "\"tokens\":%u,\"op\":\"%s\",\"ms\":%.3f,\"part\":%.3f,\"gop_s\":%.1f,"
                   "\"gb_s\":%.2f,\"share\":%.3f}\n",
                   p->decode ? "decode" : "prefill", o.threads, p->seqs, p->start, p->tokens,
                   kind_names[k], s * 1e3, f->seconds[k] / all, ops / s * 1e-9,
                   kinds[k].bytes / s * 1e-9, share);
        else
            printf("   %-12s %9.3f ms %5.1f %%  %7.1f GOP/s %6.2f GB/s  %5.1f %%\n", kind_names[k],
                   s * 1e3, 100 * f->seconds[k] / all, ops / s * 1e-9, kinds[k].bytes / s * 1e-9,
                   100 * share);
    }
}

static void run_phase(struct rig *r, const struct phase *p)
{
    struct backend_profile profile = {.cpu_time = bench.cpu_time};
    struct result x = measure(r, p, &profile);
    print_result(p, &x);
    print_profile(r, p, &profile);
    fflush(stdout);
}

/* What a step costs besides its kernels: decode without logits, wall time less the time of all
 * operations. And that it allocates nothing. */
static void measure_overhead(struct rig *r)
{
    enum { STEPS = 200 };
    double us[STEPS];
    struct backend_profile f = {.passes = 0};
    fill_context(r, 1, FILL);
    decode(r, 1, FILL - STEPS - 1, 1);
    backend_set_profile(engine_backend(r->e), &f);
    uint64_t before = atomic_load(&allocations);
    for (uint32_t i = 0; i < STEPS; i++) {
        double inside = 0;
        memset(&f, 0, sizeof f);
        r->rows[0] = (struct engine_row){
            .tokens = r->tokens, .n_tokens = 1, .position = FILL - STEPS + i, .blocks = r->tables};
        uint64_t start = clock_ns();
        run_step(r, 1);
        double all = (double)(clock_ns() - start) * 1e-9;
        for (int k = 0; k < OP_KINDS; k++)
            inside += f.seconds[k];
        us[i] = (all - inside) * 1e6;
    }
    uint64_t n = atomic_load(&allocations) - before;
    backend_set_profile(engine_backend(r->e), NULL);
    double mid = median(us, STEPS);
    char count[32] = "null";
    if (COUNTS_ALLOCATIONS)
        snprintf(count, sizeof count, "%llu", (unsigned long long)n);
    if (bench.json)
        printf("{\"phase\":\"step\",\"threads\":%u,\"overhead_us\":%.2f,\"allocations\":%s}\n"
               "{\"phase\":\"ready\",\"threads\":%u,\"seconds\":%.3f}\n",
               o.threads, mid, count, o.threads, r->ready_s);
    else
        printf("step     %.2f us outside of its kernels, %s allocations in %d steps\n"
               "ready    %.3f s from the file to the first step, KV cache included\n",
               mid, count, STEPS, r->ready_s);
}

/* ---- the program ---------------------------------------------------------------------------- */

static void usage(FILE *to)
{
    fputs("baton-bench: the engine against this machine's ceilings\n"
          "  --model FILE     GGUF file or Hugging Face directory (the default model)\n"
          "  --threads T      compute threads (1)\n"
          "  --helpers H      and threads that use only what nobody else wants (0)\n"
          "  --cpus LIST      CPUs that they are bound to\n"
          "  --prefill N,...  prompt lengths (512,2048); 0: none\n"
          "  --decode N       tokens that each sequence generates (32); 0: none\n"
          "  --batch B,...    sequences that decode at once (1,16,32)\n"
          "  --context C,...  tokens behind which they do (128)\n"
          "  --chunk N        most prompt tokens in a step (512)\n"
          "  --runs N         measurements of each phase (5)\n"
          "  --isa SET        auto, amx, avx512, avx2 or c\n"
          "  --weights F      auto, bf16, int8, int4 or f32\n"
          "  --kv F           KV cache: bf16 or int8\n"
          "  --kernels        the table of single kernels, on one core\n"
          "  --no-engine      nothing else\n"
          "  --cpu-time       count the thread's CPU time: for a busy machine, with one thread\n"
          "  --json           one JSON object a line\n",
          to);
}

static uint32_t parse_number(const char *name, const char *s, char **end, uint32_t max)
{
    errno = 0;
    long v = strtol(s, end, 10);
    if (*end == s || errno || v < 0 || v > (long)max)
        bench_die("%s: \"%s\" is no number from 0 to %u", name, s, max);
    return (uint32_t)v;
}

static uint32_t parse_one(const char *name, const char *s, uint32_t max)
{
    char *end;
    uint32_t v = parse_number(name, s, &end, max);
    if (*end)
        bench_die("%s: \"%s\" is no number", name, s);
    return v;
}

static void parse_list(const char *name, const char *s, uint32_t max, struct list *out)
{
    *out = (struct list){0};
    for (;;) {
        char *end;
        uint32_t v = parse_number(name, s, &end, max);
        if (out->n == LIST_MAX)
            bench_die("%s: at most %d numbers", name, LIST_MAX);
        if (v > 0)
            out->v[out->n++] = v;
        if (*end == 0)
            return;
        if (*end != ',')
            bench_die("%s: \"%s\" is no list of numbers", name, s);
        s = end + 1;
    }
}

static void parse_options(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (strcmp(a, "--json") == 0)
            bench.json = true;
        else if (strcmp(a, "--kernels") == 0)
            o.kernels = true;
        else if (strcmp(a, "--cpu-time") == 0) {
            bench.cpu_time = true;
            bench.clock = clock_thread_ns;
        } else if (strcmp(a, "--no-engine") == 0)
            o.engine = false;
        else if (strcmp(a, "--help") == 0) {
            usage(stdout);
            exit(0);
        } else if (i + 1 == argc) {
            usage(stderr);
            exit(2);
        } else if (strcmp(a, "--model") == 0)
            o.model = argv[++i];
        else if (strcmp(a, "--isa") == 0)
            o.isa = argv[++i];
        else if (strcmp(a, "--weights") == 0)
            o.weights = argv[++i];
        else if (strcmp(a, "--kv") == 0)
            o.kv = argv[++i];
        else if (strcmp(a, "--cpus") == 0)
            o.cpus = argv[++i];
        else if (strcmp(a, "--threads") == 0)
            o.threads = parse_one(a, argv[++i], 1024);
        else if (strcmp(a, "--helpers") == 0)
            o.helpers = parse_one(a, argv[++i], 1023);
        else if (strcmp(a, "--decode") == 0)
            o.decode = parse_one(a, argv[++i], TOKENS_OK);
        else if (strcmp(a, "--chunk") == 0)
            o.chunk = parse_one(a, argv[++i], 65536);
        else if (strcmp(a, "--runs") == 0)
            o.runs = parse_one(a, argv[++i], RUNS_MAX);
        else if (strcmp(a, "--prefill") == 0)
            parse_list(a, argv[++i], TOKENS_OK, &o.prefill);
        else if (strcmp(a, "--batch") == 0)
            parse_list(a, argv[++i], SEQS_MAX, &o.batch);
        else if (strcmp(a, "--context") == 0)
            parse_list(a, argv[++i], TOKENS_OK, &o.context);
        else {
            usage(stderr);
            exit(2);
        }
    }
    if (o.threads == 0 || o.runs == 0 || o.chunk == 0)
        bench_die("threads, runs and chunk must be at least 1");
    if (bench.cpu_time && o.threads > 1)
        bench_die("--cpu-time is for one thread");
}

static void default_model(void)
{
    static char path[4096];
    const char *cache = getenv("BATON_CACHE"), *home = getenv("HOME");
    const char *name = "SmolLM2-135M-Instruct.Q4_1.gguf";
    if (cache)
        snprintf(path, sizeof path, "%s/%s", cache, name);
    else
        snprintf(path, sizeof path, "%s/.cache/baton/%s", home ? home : ".", name);
    o.model = path;
}

static void bench_engine(struct rig *r)
{
    for (uint32_t i = 0; i < o.prefill.n; i++) {
        struct phase p = {.seqs = 1, .tokens = o.prefill.v[i]};
        place_blocks(r, 1, p.tokens);
        run_phase(r, &p);
    }
    for (uint32_t c = 0; o.decode > 0 && c < o.context.n; c++)
        for (uint32_t i = 0; i < o.batch.n; i++) {
            struct phase p = {o.batch.v[i], o.context.v[c], o.decode, true};
            fill_context(r, p.seqs, p.start + p.tokens);
            run_phase(r, &p);
        }
    measure_overhead(r);
}

int main(int argc, char **argv)
{
    struct threads *pool;
    char err[200];
    struct rig r = {.greedy = {.temperature = 0, .top_p = 1}};
    parse_options(argc, argv);
    log_set_level(LOG_WARN);
    if (!o.model)
        default_model();
    if (o.engine)
        open_engine(&r);
    if (threads_create((int)o.threads, o.cpus, &pool, err, sizeof err) != 0)
        bench_die("%s", err);
    const struct kernels *k = kernels_select(o.isa);
    if (!o.engine && !k)
        bench_die("this machine does not have the instruction set \"%s\"", o.isa);
    bench.isa = o.engine ? backend_isa(engine_backend(r.e)) : k->isa;
    r.ceiling = ceiling_create(bench.isa, pool, bench.cpu_time);
    if (!r.ceiling)
        bench_die("no memory to read 1 GiB of");
    ceiling_measure(r.ceiling, &bench.ceilings);
    ceiling_line("read", bench.ceilings.read, "GB/s");
    ceiling_line("gemm_bf16", bench.ceilings.bf16, "GFLOP/s");
    ceiling_line("gemm_int8", bench.ceilings.int8, "GOP/s");
    ceiling_line("gemm_f32", bench.ceilings.f32, "GFLOP/s");
    if (o.engine) {
        struct ceilings again;
        ceiling_reread(r.ceiling, r.info.weight_bytes);
        ceiling_measure(r.ceiling, &again);
        ceiling_line("reread", again.read, "GB/s"); /* of as much as all weights: from caches? */
    }
    fflush(stdout);
    if (o.kernels)
        bench_kernels(&bench);
    if (o.engine) {
        bench_engine(&r);
        engine_destroy(r.e);
        mem_huge_free(r.kv, r.kv_bytes);
        free(r.tables);
        free(r.tokens);
        free(r.rows);
    }
    ceiling_destroy(r.ceiling);
    threads_destroy(pool);
    return 0;
}
