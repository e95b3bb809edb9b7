/* kernels: what the tests of the device kernels share. Memory has exact sizes and begins as NaNs;
 * references are plain loops in double over the very numbers that the kernel is given; each launch
 * is repeated for three orders of blocks and threads. In one of them everything that nodes before
 * the kernel would have written appears only when the kernel says that it waits for it. */
#ifndef BATON_TESTS_CUDA_KERNELS_H
#define BATON_TESTS_CUDA_KERNELS_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "kernels/cuda_kernels.h"
#include "kernels/half.h"
#include "tests/cuda_emu/emu.h"
#include "tests/harness.h"

#define TOL_BF16 1e-2 /* of what is computed from bf16 */
#define TOL_F32  1e-4 /* of what is fp32 throughout */
/* Orders of threads and blocks that each case is run in; addresses do not depend on them, so the
 * run that looks for bad ones needs one only. */
#define SEEDS 3
#if defined(__SANITIZE_ADDRESS__)
#define SEED_FIRST (SEEDS - 1)
#else
#define SEED_FIRST 0
#endif

/* ---- memory ---- */

#define HELD_MAX 64
struct held {
    void *p[HELD_MAX];
    int n;
};
static struct held held;

/* n bytes of NaNs, freed by test_free_all. */
static inline void *test_memory(size_t n)
{
    void *p = NULL;
    ck_assert_int_lt(held.n, HELD_MAX);
    ck_assert_int_eq(posix_memalign(&p, 256, n ? n : 1), 0);
    memset(p, 0xff, n);
    held.p[held.n++] = p;
    return p;
}
static inline void test_free_all(void)
{
    while (held.n)
        free(held.p[--held.n]);
}
static inline float *floats(size_t n)
{
    return test_memory(n * sizeof(float));
}
static inline uint16_t *halves(size_t n)
{
    return test_memory(n * sizeof(uint16_t));
}

/* ---- random numbers ---- */

struct source {
    uint64_t key, n;
};
static inline uint32_t source_u32(struct source *s)
{
    return rng_philox(s->key, s->n++, 7).v[0];
}
static inline uint32_t source_below(struct source *s, uint32_t n)
{
    return (uint32_t)((uint64_t)source_u32(s) * n >> 32);
}
/* Uniform in [-a, a). */
static inline float source_float(struct source *s, float a)
{
    return (float)(int32_t)source_u32(s) * 0x1p-31f * a;
}
/* rows x cols bf16 of amplitude a in [rows_padded][ld]; zeroes in the padding. */
static inline uint16_t *random_matrix(struct source *s, uint32_t rows, uint32_t rows_padded,
                                      uint32_t cols, uint32_t ld, float a)
{
    uint16_t *w = halves((size_t)rows_padded * ld);
    for (uint32_t i = 0; i < rows_padded; i++)
        for (uint32_t j = 0; j < ld; j++)
            w[(size_t)i * ld + j] =
                i < rows && j < cols ? bf16_from_f32(source_float(s, a)) : (uint16_t)0;
    return w;
}
static inline float *random_vector(struct source *s, uint32_t n, uint32_t padded, float base,
                                   float a)
{
    float *v = floats(padded);
    for (uint32_t i = 0; i < padded; i++)
        v[i] = i < n ? base + source_float(s, a) : 0;
    return v;
}

/* ---- comparing ---- */

/* The largest |got - want| / (|want| + rms of want); INFINITY when a number is not one. */
static inline double worst(const float *got, const double *want, size_t n)
{
    double square = 0, most = 0;
    for (size_t i = 0; i < n; i++)
        square += want[i] * want[i];
    double rms = sqrt(square / (double)n);
    for (size_t i = 0; i < n; i++) {
        double e = fabs((double)got[i] - want[i]) / (fabs(want[i]) + rms + 1e-30);
        most = e > most || e != e ? (e != e ? INFINITY : e) : most;
    }
    return most;
}
static inline double worst_bf16(const uint16_t *got, const double *want, size_t n)
{
    float *f = malloc(n * sizeof *f);
    for (size_t i = 0; i < n; i++)
        f[i] = bf16_to_f32(got[i]);
    double w = worst(f, want, n);
    free(f);
    return w;
}
#define ASSERT_WORST(error, tol, ...)                                                              \
    do {                                                                                           \
        double worst_ = (error);                                                                   \
        char where_[128];                                                                          \
        snprintf(where_, sizeof where_, __VA_ARGS__);                                              \
        ck_assert_msg(worst_ < (tol), "%s: error %g", where_, worst_);                             \
    } while (0)
#define assert_close(got, want, n, tol, ...) ASSERT_WORST(worst(got, want, n), tol, __VA_ARGS__)
#define assert_close_bf16(got, want, n, tol, ...)                                                  \
    ASSERT_WORST(worst_bf16(got, want, n), tol, __VA_ARGS__)
static inline bool untouched(const void *p, size_t n)
{
    const uint8_t *b = p;
    for (size_t i = 0; i < n; i++)
        if (b[i] != 0xff)
            return false;
    return true;
}
static inline bool zeroes(const void *p, size_t n)
{
    const uint8_t *b = p;
    for (size_t i = 0; i < n; i++)
        if (b[i] != 0)
            return false;
    return true;
}

/* ---- what a kernel must wait for ---- */

#define HIDDEN_MAX 8
struct hidden {
    struct {
        void *p, *copy;
        size_t n;
    } in[HIDDEN_MAX];
    struct {
        const void *p;
        size_t n;
    } out[HIDDEN_MAX];
    int n_in, n_out;
    bool shown;
};
static struct hidden hidden;

/* p [n] is written by the node before: NaNs until the kernel waits. */
static inline void hide_input(void *p, size_t n)
{
    void *copy = malloc(n);
    memcpy(copy, p, n);
    memset(p, 0xff, n);
    hidden.in[hidden.n_in].p = p;
    hidden.in[hidden.n_in].copy = copy;
    hidden.in[hidden.n_in++].n = n;
}
/* p [n] may still be read by the node before: must not be written yet. */
static inline void watch_output(const void *p, size_t n)
{
    hidden.out[hidden.n_out].p = p;
    hidden.out[hidden.n_out++].n = n;
}
static inline void show_inputs(void *arg)
{
    (void)arg;
    for (int i = 0; i < hidden.n_out; i++)
        ck_assert_msg(untouched(hidden.out[i].p, hidden.out[i].n), "written before the wait");
    for (int i = 0; i < hidden.n_in; i++) {
        memcpy(hidden.in[i].p, hidden.in[i].copy, hidden.in[i].n);
        free(hidden.in[i].copy);
    }
    hidden.shown = true;
}
/* Around a launch whose inputs are hidden. */
static inline void hide_begin(void)
{
    memset(&hidden, 0, sizeof hidden);
    emu_before_dependent(show_inputs, NULL);
}
static inline void hide_end(void)
{
    ck_assert_msg(hidden.shown, "the kernel never waited");
    memset(&hidden, 0, sizeof hidden);
}

/* ---- a model and a step ---- */

struct shape {
    uint32_t hidden, n_heads, n_kv_heads, head_dim, ffn, vocab;
    uint32_t context, block;
    bool neox;
};

struct rig {
    struct gpu_model m;
    struct gpu_launch l;
    struct source random;
    float *rope;
};

static inline uint32_t rig_qkv(const struct gpu_model *m)
{
    return (m->n_heads + 2 * m->n_kv_heads) * m->head_dim;
}

/* Buffers of a model of the shape for up to max_rows rows; n_blocks of KV, all NaNs. */
static inline void rig_init(struct rig *r, const struct shape *s, uint32_t max_rows,
                            uint32_t max_logits, uint32_t max_slots, uint32_t n_blocks,
                            uint64_t seed)
{
    memset(r, 0, sizeof *r);
    r->random = (struct source){seed, 0};
    r->l = (struct gpu_launch){.n_sms = 3};
    struct gpu_model *m = &r->m;
    m->hidden = s->hidden;
    m->n_heads = s->n_heads;
    m->n_kv_heads = s->n_kv_heads;
    m->head_dim = s->head_dim;
    m->ffn = s->ffn;
    m->vocab = s->vocab;
    m->context = s->context;
    m->kv_block_size = s->block;
    m->max_slots = max_slots;
    m->n_blocks = n_blocks;
    m->rms_eps = 1e-5f;
    m->rope_neox = s->neox;
    m->table_stride = s->block ? (s->context + s->block - 1) / s->block : 0;
    m->caps = (struct gpu_caps){max_rows, max_logits, 16, 16};
    if (s->context) {
        m->rope = r->rope = floats((size_t)s->context * s->head_dim);
        for (uint32_t p = 0; p < s->context; p++)
            for (uint32_t i = 0; i < s->head_dim / 2; i++) {
                double a = p * pow(10000, -2.0 * i / s->head_dim);
                r->rope[p * s->head_dim + i] = (float)cos(a);
                r->rope[p * s->head_dim + s->head_dim / 2 + i] = (float)sin(a);
            }
        m->kv = test_memory((size_t)2 * n_blocks * s->n_kv_heads *
                            gpu_kv_cell_bytes(s->block, s->head_dim));
        m->tables = test_memory((size_t)max_slots * m->table_stride * sizeof *m->tables);
    }
    m->slots = test_memory(max_slots * sizeof *m->slots);
    m->rows = test_memory(max_rows * sizeof *m->rows);
    struct gpu_step_args *step = test_memory(gpu_step_bytes(&m->caps));
    memset(step, 0, sizeof *step);
    m->step = step;
}
static inline struct gpu_step_args *rig_step(struct rig *r)
{
    return (struct gpu_step_args *)r->m.step;
}
/* The rows as cuda_step_begin would leave them: every third one is padding when `holes` is set. */
static inline void rig_live(struct rig *r, uint32_t bucket, bool holes)
{
    for (uint32_t i = 0; i < bucket; i++)
        r->m.rows[i] = (struct gpu_row){1, holes && i % 3 == 1 ? -1 : (int32_t)i, i, 0};
}

/* x, and xg and ssq of it for `gain`, as the node before leaves them. */
struct normed {
    float *x, *ssq;
    uint16_t *xg;
    size_t ld, groups;
};
static inline struct normed rig_normed(struct rig *r, uint32_t rows, const float *gain)
{
    uint32_t n = r->m.hidden, ld = gpu_pad(n, 64);
    struct normed v = {floats((size_t)rows * ld), floats((size_t)rows * ld / 16),
                       halves((size_t)rows * ld), ld, ld / 16};
    for (uint32_t i = 0; i < rows; i++)
        for (uint32_t j = 0; j < ld; j++) {
            size_t at = (size_t)i * ld + j;
            v.x[at] = j < n ? source_float(&r->random, 1.5f) : 0;
            v.xg[at] = bf16_from_f32(v.x[at] * gain[j]);
            if (j % 16 == 0)
                v.ssq[at / 16] = 0;
            v.ssq[at / 16] += v.x[at] * v.x[at];
        }
    return v;
}
static inline double normed_scale(const struct rig *r, const struct normed *v, uint32_t row)
{
    double sum = 0;
    for (size_t i = 0; i < v->groups; i++)
        sum += v->ssq[row * v->groups + i];
    return 1 / sqrt(sum / r->m.hidden + r->m.rms_eps);
}

/* Tables of random blocks, each used once; block 0 is left out. */
static inline void rig_tables(struct rig *r)
{
    uint32_t n = r->m.n_blocks - 1, *ids = malloc(n * sizeof *ids);
    uint32_t entries = r->m.max_slots * r->m.table_stride;
    for (uint32_t i = 0; i < n; i++)
        ids[i] = i + 1;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = i + source_below(&r->random, n - i), t = ids[i];
        ids[i] = ids[j];
        ids[j] = t;
    }
    ck_assert_uint_le(entries, n);
    memcpy(r->m.tables, ids, entries * sizeof *ids);
    free(ids);
}
static inline uint16_t *rig_cell(const struct rig *r, uint32_t layer, uint32_t slot, uint32_t head,
                                 uint32_t position)
{
    const struct gpu_model *m = &r->m;
    uint32_t block = m->tables[slot * m->table_stride + position / m->kv_block_size];
    return (uint16_t *)(m->kv + (((size_t)layer * m->n_blocks + block) * m->n_kv_heads + head) *
                                    gpu_kv_cell_bytes(m->kv_block_size, m->head_dim));
}
/* k[dim] and v[dim] of a position: pointers into the pool. */
static inline uint16_t *rig_k(const struct rig *r, uint32_t layer, uint32_t slot, uint32_t head,
                              uint32_t position, uint32_t dim)
{
    return rig_cell(r, layer, slot, head, position) +
           gpu_kv_k_index(gpu_pad_head(r->m.head_dim), position % r->m.kv_block_size, dim);
}
static inline uint16_t *rig_v(const struct rig *r, uint32_t layer, uint32_t slot, uint32_t head,
                              uint32_t position, uint32_t dim)
{
    return rig_cell(r, layer, slot, head, position) +
           gpu_kv_v_index(gpu_pad_head(r->m.head_dim), position % r->m.kv_block_size, dim);
}
/* Keys and values for positions [0, n) of a slot; dims beyond head_dim are zero in all of the
 * blocks that these touch. */
static inline void rig_fill_kv(struct rig *r, uint32_t layer, uint32_t slot, uint32_t n)
{
    uint32_t hp = gpu_pad_head(r->m.head_dim);
    for (uint32_t h = 0; h < r->m.n_kv_heads; h++)
        for (uint32_t p = 0; p < gpu_pad(n + 1, r->m.kv_block_size) && p < r->m.context; p++)
            for (uint32_t d = 0; d < hp; d++) {
                if (d >= r->m.head_dim) {
                    *rig_k(r, layer, slot, h, p, d) = 0;
                    *rig_v(r, layer, slot, h, p, d) = 0;
                } else if (p < n) {
                    *rig_k(r, layer, slot, h, p, d) = bf16_from_f32(source_float(&r->random, 2));
                    *rig_v(r, layer, slot, h, p, d) = bf16_from_f32(source_float(&r->random, 1));
                }
            }
}

/* A head after norm, RoPE and scale, in double. */
static inline void ref_head(const struct rig *r, const float *x, const float *bias,
                            const float *gain, uint32_t position, double scale, double *out)
{
    uint32_t hd = r->m.head_dim, half = hd / 2;
    double y[256], sum = 0;
    for (uint32_t i = 0; i < hd; i++) {
        y[i] = (double)x[i] + (bias ? bias[i] : 0);
        sum += y[i] * y[i];
    }
    double rs = 1 / sqrt(sum / hd + r->m.rms_eps);
    for (uint32_t i = 0; gain && i < hd; i++)
        y[i] *= rs * gain[i];
    for (uint32_t i = 0; i < half; i++) {
        uint32_t p = r->m.rope_neox ? i : 2 * i, q = r->m.rope_neox ? half + i : 2 * i + 1;
        double c = r->rope[position * hd + i], s = r->rope[position * hd + half + i];
        out[p] = scale * (y[p] * c - y[q] * s);
        out[q] = scale * (y[q] * c + y[p] * s);
    }
}

/* Softmax attention over keys 0..position of a slot; q scaled to base 2, in double. */
static inline void ref_attention(const struct rig *r, uint32_t layer, uint32_t slot, uint32_t head,
                                 uint32_t position, const double *q, double *out)
{
    uint32_t hd = r->m.head_dim;
    double *w = malloc((position + 1) * sizeof *w), max = -INFINITY, sum = 0;
    for (uint32_t p = 0; p <= position; p++) {
        w[p] = 0;
        const uint16_t *k = rig_k(r, layer, slot, head, p, 0);
        for (uint32_t d = 0; d < hd; d++)
            w[p] += q[d] * bf16_to_f32(k[d]);
        max = fmax(max, w[p]);
    }
    memset(out, 0, hd * sizeof *out);
    for (uint32_t p = 0; p <= position; p++) {
        double x = exp2(w[p] - max);
        sum += x;
        const uint16_t *v = rig_v(r, layer, slot, head, p, 0);
        for (uint32_t d = 0; d < hd; d++)
            out[d] += x * bf16_to_f32(v[2 * d]);
    }
    for (uint32_t d = 0; d < hd; d++)
        out[d] /= sum;
    free(w);
}

/* Adds a test of n cases as a test case of its own name (CK_RUN_CASE=name runs it alone).
 * $KERNEL_CASES=FIRST-LAST: only these of them. */
#define add_cases(suite, fn, n) add_cases_(suite, #fn, fn, n)
static inline void add_cases_(Suite *s, const char *name, const TTest *fn, int n)
{
    int first = 0, last = n - 1;
    const char *only = getenv("KERNEL_CASES");
    if (only && sscanf(only, "%d-%d", &first, &last) == 2 && last >= n)
        last = n - 1;
    TCase *c = tcase_create(name);
    tcase_set_timeout(c, 120);
    tcase_add_loop_test(c, fn, first, last + 1);
    suite_add_tcase(s, c);
}

#endif
