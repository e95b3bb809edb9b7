/* tiny: a small random model for the kernel tests: matrices in any file type, the op list of a
 * Llama or Qwen layer, a paged KV pool. Everything is a function of the seed. */
#ifndef BATON_TESTS_KERNELS_TINY_H
#define BATON_TESTS_KERNELS_TINY_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "kernels/backend.h"
#include "kernels/half.h"
#include "kernels/weight.h"
#include "tests/harness.h"

#define TINY_LAYERS_MAX 3
#define TINY_OPS_MAX    (2 + 7 * TINY_LAYERS_MAX)

struct tiny_random {
    uint64_t key, n;
};
/* Uniform in [-1, 1). */
static inline float tiny_float(struct tiny_random *r)
{
    struct rng_block b = rng_philox(r->key, r->n++, 0);
    return (float)(int32_t)b.v[0] * 0x1p-31f;
}

/* One block of random integers of a quantised type, under random scales (and minima) that keep its
 * numbers about within +-scale. */
static inline void tiny_block_bytes(struct tiny_random *r, uint32_t type, float scale, uint8_t *p)
{
    static const struct {
        uint32_t type;
        float top;   /* largest product of integer and integer scale */
        float min;   /* fp16 minimum as a multiple of d; 0: there is none */
        size_t d_at; /* of the fp16 scale; a minimum follows it */
    } kinds[] = {{MATRIX_Q4_0, 8, 0, 0},           {MATRIX_Q4_1, 8, -7.5f, 0},
                 {MATRIX_Q5_0, 16, 0, 0},          {MATRIX_Q5_1, 16, -15.5f, 0},
                 {MATRIX_Q8_0, 127, 0, 0},         {MATRIX_Q4_K, 63 * 8, 7.5f, 0},
                 {MATRIX_Q5_K, 63 * 16, 15.5f, 0}, {MATRIX_Q6_K, 128 * 32, 0, 208}};
    size_t k = 0, bytes = matrix_row_bytes(type, 256) / (type >= MATRIX_Q4_K ? 1 : 8);
    while (kinds[k].type != type)
        k++;
    float d = scale / kinds[k].top * (0.5f + fabsf(tiny_float(r)));
    uint16_t h = f16_from_f32(d), m = f16_from_f32(d * kinds[k].min);
    for (size_t i = 0; i < bytes; i++)
        p[i] = (uint8_t)(int8_t)(tiny_float(r) * 127.99f);
    memcpy(p + kinds[k].d_at, &h, 2);
    if (kinds[k].min != 0)
        memcpy(p + kinds[k].d_at + 2, &m, 2);
}

/* Encodes rows x cols floats of amplitude `scale` as a file would hold them; freed by the caller.
 */
static inline struct matrix_view tiny_matrix(struct tiny_random *r, uint32_t type, uint64_t rows,
                                             uint64_t cols, float scale)
{
    size_t row_bytes = matrix_row_bytes(type, cols);
    ck_assert_uint_ne(row_bytes, 0);
    uint8_t *data = malloc(rows * row_bytes), *p = data;
    ck_assert_ptr_nonnull(data);
    struct matrix_view v = {.type = type, .rows = rows, .cols = cols, .data = data};
    if (matrix_quantised(type)) {
        uint64_t elems = matrix_row_bytes(type, Q_BLOCK) ? Q_BLOCK : 256;
        size_t bytes = matrix_row_bytes(type, elems);
        for (uint64_t i = 0; i < rows * cols / elems; i++, p += bytes)
            tiny_block_bytes(r, type, scale, p);
        return v;
    }
    for (uint64_t i = 0; i < rows * cols; i++) {
        float x = tiny_float(r) * scale;
        uint16_t h = type == MATRIX_F16 ? f16_from_f32(x) : bf16_from_f32(x);
        if (type == MATRIX_F32)
            memcpy(p, &x, 4), p += 4;
        else
            memcpy(p, &h, 2), p += 2;
    }
    return v;
}

struct tiny_shape {
    const char *name;
    uint32_t type, embed_type; /* of the file's matrices */
    uint32_t n_layers, hidden, n_heads, n_kv_heads, head_dim, ffn, vocab, kv_block_size;
    bool neox, bias, qk_norm;
    enum kv_format kv;
};

struct tiny_model {
    struct tiny_shape shape;
    struct matrix_view embed, q[TINY_LAYERS_MAX], k[TINY_LAYERS_MAX], v[TINY_LAYERS_MAX],
        o[TINY_LAYERS_MAX], gate[TINY_LAYERS_MAX], up[TINY_LAYERS_MAX], down[TINY_LAYERS_MAX];
    float *vectors; /* gains and biases, drawn once, used by all layers */
};

static inline void tiny_model_init(struct tiny_model *m, const struct tiny_shape *s, uint64_t seed)
{
    struct tiny_random r = {.key = seed};
    *m = (struct tiny_model){.shape = *s};
    uint32_t heads = s->n_heads * s->head_dim, kv = s->n_kv_heads * s->head_dim;
    m->embed = tiny_matrix(&r, s->embed_type, s->vocab, s->hidden, 1);
    for (uint32_t l = 0; l < s->n_layers; l++) {
        float a = 2 / sqrtf((float)s->hidden);
        m->q[l] = tiny_matrix(&r, s->type, heads, s->hidden, a);
        m->k[l] = tiny_matrix(&r, s->type, kv, s->hidden, a);
        m->v[l] = tiny_matrix(&r, s->type, kv, s->hidden, a);
        m->o[l] = tiny_matrix(&r, s->type, s->hidden, heads, 1 / sqrtf((float)heads));
        m->gate[l] = tiny_matrix(&r, s->type, s->ffn, s->hidden, a);
        m->up[l] = tiny_matrix(&r, s->type, s->ffn, s->hidden, a);
        m->down[l] = tiny_matrix(&r, s->type, s->hidden, s->ffn, 1 / sqrtf((float)s->ffn));
    }
    size_t n = s->hidden + heads + 2 * kv + s->head_dim;
    m->vectors = calloc(n, sizeof *m->vectors);
    for (size_t i = 0; i < n; i++)
        m->vectors[i] = 1 + 0.3f * tiny_float(&r);
}

static inline void tiny_model_fini(struct tiny_model *m)
{
    free((void *)(uintptr_t)m->embed.data);
    for (uint32_t l = 0; l < m->shape.n_layers; l++) {
        const struct matrix_view *all[] = {&m->q[l],    &m->k[l],  &m->v[l],   &m->o[l],
                                           &m->gate[l], &m->up[l], &m->down[l]};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            free((void *)(uintptr_t)all[i]->data);
    }
    free(m->vectors);
}

/* The model on a backend, with a pool of n_blocks filled with NaN. */
struct tiny {
    const struct tiny_model *model;
    struct backend *b;
    struct weight *embed, *qkv[TINY_LAYERS_MAX], *out[TINY_LAYERS_MAX], *gate_up[TINY_LAYERS_MAX],
        *down[TINY_LAYERS_MAX];
    struct replay *replay;
    struct kv_view kv;
    size_t kv_bytes, block_bytes;
};

#define TINY_CONTEXT 640
#define TINY_ROWS    384
#define TINY_SEQS    8
#define TINY_LOGITS  8
#define TINY_BLOCKS  160

/* Of the next backend. */
static int tiny_helpers;
static uint32_t tiny_context = TINY_CONTEXT, tiny_blocks = TINY_BLOCKS; /* 3 sequences + the sink */

static inline bool tiny_init(struct tiny *t, const struct tiny_model *m, const char *name,
                             const char *isa, int threads)
{
    const struct tiny_shape *s = &m->shape;
    *t = (struct tiny){.model = m};
    struct backend_options o = {
        .name = name, .isa = isa, .threads = threads, .helpers = tiny_helpers};
    struct backend_dims d = {.n_layers = s->n_layers,
                             .hidden = s->hidden,
                             .n_heads = s->n_heads,
                             .n_kv_heads = s->n_kv_heads,
                             .head_dim = s->head_dim,
                             .ffn = s->ffn,
                             .vocab = s->vocab,
                             .context = tiny_context,
                             .max_rows = TINY_ROWS,
                             .max_seqs = TINY_SEQS,
                             .max_logits = TINY_LOGITS,
                             .kv_block_size = s->kv_block_size,
                             .kv_format = s->kv,
                             .rms_eps = 1e-5f,
                             .rope_theta = 10000,
                             .rope_neox = s->neox};
    char err[200] = "";
    int rc = backend_create(&o, &d, &t->b, err, sizeof err);
    if (rc == STATUS_UNSUPPORTED && isa) { /* this machine lacks the set */
        printf("skipped: %s\n", err);
        return false;
    }
    ck_assert_msg(rc == 0, "%s", err);
    ck_assert_ok(backend_weight_create(t->b, &m->embed, 1, WEIGHT_AUTO, false, true, &t->embed));
    struct op ops[TINY_OPS_MAX];
    size_t n = 0;
    const float *norm = m->vectors, *head_norm = norm + s->hidden, *bias = head_norm + s->head_dim;
    ops[n++] = (struct op){.kind = OP_EMBED, .w = t->embed};
    for (uint32_t l = 0; l < s->n_layers; l++) {
        struct matrix_view qkv[] = {m->q[l], m->k[l], m->v[l]}, gu[] = {m->gate[l], m->up[l]};
        ck_assert_ok(backend_weight_create(t->b, qkv, 3, WEIGHT_AUTO, false, false, &t->qkv[l]));
        ck_assert_ok(
            backend_weight_create(t->b, &m->o[l], 1, WEIGHT_AUTO, false, false, &t->out[l]));
        ck_assert_ok(backend_weight_create(t->b, gu, 2, WEIGHT_AUTO, true, false, &t->gate_up[l]));
        ck_assert_ok(
            backend_weight_create(t->b, &m->down[l], 1, WEIGHT_AUTO, false, false, &t->down[l]));
        ops[n++] = (struct op){.kind = OP_QKV,
                               .layer = l,
                               .w = t->qkv[l],
                               .norm = norm,
                               .bias = s->bias ? bias : NULL};
        ops[n++] = (struct op){.kind = OP_ROPE_APPEND,
                               .layer = l,
                               .q_norm = s->qk_norm ? head_norm : NULL,
                               .k_norm = s->qk_norm ? head_norm : NULL};
        ops[n++] = (struct op){.kind = OP_KV_READY, .layer = l};
        ops[n++] = (struct op){.kind = OP_ATTENTION, .layer = l};
        ops[n++] = (struct op){.kind = OP_OUT, .layer = l, .w = t->out[l]};
        ops[n++] = (struct op){.kind = OP_GATE_UP, .layer = l, .w = t->gate_up[l], .norm = norm};
        ops[n++] = (struct op){.kind = OP_DOWN, .layer = l, .w = t->down[l]};
    }
    ops[n++] = (struct op){.kind = OP_LOGITS, .w = t->embed, .norm = norm};
    t->block_bytes = backend_kv_cell_bytes(t->b) * s->n_kv_heads;
    t->kv_bytes = t->block_bytes * tiny_blocks * s->n_layers;
    t->kv = (struct kv_view){.base = aligned_alloc(64, t->kv_bytes), .n_blocks = tiny_blocks};
    ck_assert_ptr_nonnull(t->kv.base);
    memset(t->kv.base, 0xff,
           t->kv_bytes); /* every bf16 and scale a NaN: what was not written must not count */
    ck_assert_ok(backend_capture(t->b, ops, n, TINY_ROWS, &t->kv, &t->replay));
    return true;
}

static inline void tiny_fini(struct tiny *t)
{
    backend_replay_destroy(t->b, t->replay);
    backend_weight_destroy(t->b, t->embed);
    for (uint32_t l = 0; l < t->model->shape.n_layers; l++) {
        backend_weight_destroy(t->b, t->qkv[l]);
        backend_weight_destroy(t->b, t->out[l]);
        backend_weight_destroy(t->b, t->gate_up[l]);
        backend_weight_destroy(t->b, t->down[l]);
    }
    backend_destroy(t->b);
    free(t->kv.base);
}

/* Block i of sequence `seq`: scattered over the pool, never the sink. */
static inline uint32_t tiny_block(uint32_t seq, uint32_t i)
{
    uint32_t n = tiny_context / 16, linear = (seq % 3) * n + i;
    return 1 + linear * 37 % (tiny_blocks - 1);
}
static inline int32_t tiny_token(const struct tiny *t, uint32_t seq, uint32_t position)
{
    return (int32_t)(rng_philox(seq, position, 1).v[0] % t->model->shape.vocab);
}

/* A sequence's part of a step: tokens position .. position + n - 1. */
struct tiny_segment {
    uint32_t seq, position, n;
};
/* Runs one step; the logits of each segment's last row are in backend_logits, in order. */
static inline void tiny_step(struct tiny *t, const struct tiny_segment *segments, uint32_t n)
{
    struct step_args *a = backend_step_args(t->b);
    a->n_rows = 0;
    a->n_segments = a->n_logits = n;
    for (uint32_t i = 0; i < n; i++) {
        const struct tiny_segment *s = &segments[i];
        a->segment[i] = a->n_rows;
        for (uint32_t j = 0; j < s->n; j++, a->n_rows++) {
            a->token[a->n_rows] = tiny_token(t, s->seq, s->position + j);
            a->position[a->n_rows] = (int32_t)(s->position + j);
            a->seq[a->n_rows] = i;
        }
        a->logit_row[i] = a->n_rows - 1;
        uint32_t blocks = (s->position + s->n - 1) / t->model->shape.kv_block_size + 1;
        for (uint32_t j = 0; j < blocks; j++)
            a->tables[i * a->table_stride + j] = tiny_block(s->seq, j);
    }
    a->segment[n] = a->n_rows;
    for (uint32_t i = a->n_rows; i < TINY_ROWS; i++)
        a->position[i] = -1;
    ck_assert_ok(backend_replay(t->b, t->replay));
}

#endif
