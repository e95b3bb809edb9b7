/* ceiling: see ceiling.h. A run is short enough to fit between two time slices of other processes;
 * the best of many is what the machine does when it is left alone. Reading goes round a buffer
 * of 1 GiB, window after window, so that nothing is read from a cache. */
#include "kernels/ceiling.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "kernels/peak.h"

#define READ_BYTES   ((size_t)1 << 30)
#define READ_WINDOW  ((size_t)64 << 20)
#define READ_TILE    ((size_t)4 << 20)
#define PEAK_SECONDS 5e-4 /* of one tile */
#define BEST_OF      40
#define PROBE_OF     3

struct ceiling {
    struct threads *pool;
    uint64_t (*clock)(void);
    double (*f32)(size_t), (*bf16)(size_t), (*int8)(size_t);
    size_t f32_rounds, bf16_rounds, int8_rounds; /* of PEAK_SECONDS */
    uint8_t *mem;
    size_t at;                /* where the next window begins */
    size_t reread, reread_at; /* the same within the first bytes, whole windows; or 0 */
};

/* ---- arithmetic ----------------------------------------------------------------------------- */

struct peak_job {
    double (*loop)(size_t rounds);
    size_t rounds, tiles;
    double ops; /* of a tile; every thread writes the same */
};

static size_t peak_tiles(void *arg, size_t phase)
{
    (void)phase;
    return ((const struct peak_job *)arg)->tiles;
}

static void peak_tile(void *arg, size_t phase, size_t tile, int thread)
{
    (void)phase;
    (void)thread;
    struct peak_job *j = arg;
    double ops = j->loop(j->rounds);
    if (tile == 0)
        j->ops = ops;
}

static double run_seconds(struct ceiling *c, const struct threads_job *job)
{
    uint64_t start = c->clock();
    threads_run(c->pool, job);
    return (double)(c->clock() - start) * 1e-9;
}

static double peak_rate(struct ceiling *c, double (*loop)(size_t), size_t rounds)
{
    struct peak_job j = {loop, rounds, 4 * (size_t)threads_count(c->pool), 0};
    struct threads_job job = {.n_phases = 1, .tiles = peak_tiles, .run = peak_tile, .arg = &j};
    double seconds = run_seconds(c, &job);
    return j.ops * (double)j.tiles / seconds;
}

static size_t peak_rounds(double (*loop)(size_t))
{
    size_t rounds = 1000;
    for (;; rounds *= 2) {
        uint64_t start = clock_ns();
        loop(rounds);
        double seconds = (double)(clock_ns() - start) * 1e-9;
        if (seconds > PEAK_SECONDS)
            return (size_t)((double)rounds * PEAK_SECONDS / seconds);
    }
}

/* ---- reading -------------------------------------------------------------------------------- */

typedef uint64_t vector __attribute__((vector_size(16)));

static size_t read_tiles(void *arg, size_t phase)
{
    (void)arg;
    (void)phase;
    return READ_WINDOW / READ_TILE;
}

static void read_tile(void *arg, size_t phase, size_t tile, int thread)
{
    (void)phase;
    (void)thread;
    const vector *p = (const vector *)(const void *)((const uint8_t *)arg + tile * READ_TILE);
    /* Not an array: one whose address is taken lives in memory. No prefetch: it slows a stream. */
    vector s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    for (size_t i = 0; i < READ_TILE / sizeof *p; i += 4) {
        s0 += p[i];
        s1 += p[i + 1];
        s2 += p[i + 2];
        s3 += p[i + 3];
    }
    s0 += s1 + s2 + s3;
    __asm__ volatile("" ::"r"(s0[0] + s0[1]));
}

static double read_rate(struct ceiling *c, size_t *at, size_t within)
{
    struct threads_job job = {
        .n_phases = 1, .tiles = read_tiles, .run = read_tile, .arg = c->mem + *at};
    *at = (*at + READ_WINDOW) % within;
    return (double)READ_WINDOW / run_seconds(c, &job);
}

/* ---- the interface -------------------------------------------------------------------------- */

struct ceiling *ceiling_create(const char *isa, struct threads *pool, bool cpu_time)
{
    struct ceiling *c = mem_array(1, sizeof *c);
    if (!c || !(c->mem = mem_huge(READ_BYTES))) {
        free(c);
        return NULL;
    }
    memset(c->mem, 1, READ_BYTES);
    c->pool = pool;
    c->clock = cpu_time ? clock_thread_ns : clock_ns;
    c->f32 = c->bf16 = peak_f32_c;
    c->int8 = peak_int8_c;
#ifdef __x86_64__
    bool amx = strcmp(isa, "amx") == 0;
    if (amx || strcmp(isa, "avx512") == 0) {
        c->f32 = peak_f32_avx512;
        c->bf16 = amx ? peak_bf16_amx : peak_bf16_avx512;
        c->int8 = amx ? peak_int8_amx : peak_int8_avx512;
    } else if (strcmp(isa, "avx2") == 0) {
        c->f32 = c->bf16 = peak_f32_avx2; /* no bf16 products: they are multiplied as floats */
        c->int8 = peak_int8_avx2;
    }
#endif
    c->f32_rounds = peak_rounds(c->f32);
    c->bf16_rounds = peak_rounds(c->bf16);
    c->int8_rounds = peak_rounds(c->int8);
    return c;
}

void ceiling_destroy(struct ceiling *c)
{
    if (!c)
        return;
    mem_huge_free(c->mem, READ_BYTES);
    free(c);
}

void ceiling_reread(struct ceiling *c, size_t bytes)
{
    size_t windows = (bytes + READ_WINDOW - 1) / READ_WINDOW;
    c->reread = windows * READ_WINDOW < READ_BYTES ? windows * READ_WINDOW : 0;
    c->reread_at = 0;
}

static void best_of(struct ceiling *c, int runs, struct ceilings *out)
{
    *out = (struct ceilings){0};
    for (int i = 0; i < runs; i++) {
        out->f32 = fmax(out->f32, peak_rate(c, c->f32, c->f32_rounds));
        out->bf16 = fmax(out->bf16, peak_rate(c, c->bf16, c->bf16_rounds));
        out->int8 = fmax(out->int8, peak_rate(c, c->int8, c->int8_rounds));
        out->read = fmax(out->read, read_rate(c, &c->at, READ_BYTES));
        if (c->reread)
            out->read = fmax(out->read, read_rate(c, &c->reread_at, c->reread));
    }
}

void ceiling_probe(struct ceiling *c, struct ceilings *out)
{
    best_of(c, PROBE_OF, out);
}

void ceiling_measure(struct ceiling *c, struct ceilings *out)
{
    best_of(c, BEST_OF, out);
}
