/* Attention over the paged pool: fused, separate, split, whole and by tiles, against softmax in
 * double; what lies beyond a sequence's end is NaN throughout. */
#include "tests/cuda/kernels.h"

#define LAYER 1

/* heads, kv heads, head size (ffn, vocab unused), context, block, neox */
static const struct shape shapes[] = {
    {0, 4, 2, 64, 0, 0, 1100, 16, true},  /* the common one */
    {0, 3, 3, 16, 0, 0, 800, 16, false},  /* one head each; padded head; pairs of neighbours */
    {0, 9, 1, 32, 0, 0, 640, 32, true},   /* more than 8 heads: two tiles */
    {0, 16, 1, 80, 0, 0, 600, 16, true},  /* 16 heads; padded head */
    {0, 7, 1, 128, 0, 0, 600, 48, false}, /* a block that does not divide the chunk */
    {0, 10, 1, 256, 0, 0, 300, 16, true}, /* the largest head */
    {0, 2, 2, 96, 0, 0, 560, 64, true},
};
#define N_SHAPES ((int)(sizeof shapes / sizeof *shapes))
/* Lengths of the sequences; those beyond the context are cut to it. */
static const uint32_t lengths[] = {1, 2, 15, 16, 17, 255, 256, 257, 300, 511, 513, 1099};
#define N_SEQS ((uint32_t)(sizeof lengths / sizeof *lengths))

struct run {
    struct rig r;
    uint32_t rows, ld, qkv_ld;
    float *qkv, *q_norm, *k_norm;
    double *want; /* [rows][n_heads][head_dim] */
    float *scratch;
    uint32_t *counters;
    size_t kv_bytes;
    uint8_t *kv_before;
};

static uint32_t length_of(const struct shape *s, uint32_t i)
{
    return lengths[i] < s->context ? lengths[i] : s->context - i;
}

/* The rows' own keys and values are not in the pool yet. */
static void run_init(struct run *t, int i, uint32_t n_rows, const uint32_t *len, bool norms)
{
    const struct shape *s = &shapes[i];
    uint32_t stride = (s->context + s->block - 1) / s->block, n_blocks = n_rows * stride + 1;
    memset(t, 0, sizeof *t);
    rig_init(&t->r, s, n_rows + 2, 1, n_rows, n_blocks, 200 + (uint64_t)i);
    struct gpu_model *m = &t->r.m;
    rig_tables(&t->r);
    t->rows = n_rows + 2;
    t->qkv_ld = gpu_pad(rig_qkv(m), 16);
    t->ld = gpu_pad(m->n_heads * m->head_dim, 64);
    t->qkv = floats((size_t)t->rows * t->qkv_ld);
    if (norms) {
        t->q_norm = random_vector(&t->r.random, m->head_dim, m->head_dim, 1, 0.3f);
        t->k_norm = random_vector(&t->r.random, m->head_dim, m->head_dim, 1, 0.3f);
    }
    /* Row 0 and the last are padding. */
    for (uint32_t row = 0; row < t->rows; row++) {
        bool live = row > 0 && row <= n_rows;
        m->rows[row] = (struct gpu_row){1, live ? (int32_t)len[row - 1] - 1 : -1,
                                        live ? n_rows - row : 0, GPU_ROW_SINGLE};
        for (uint32_t j = 0; live && j < rig_qkv(m); j++)
            t->qkv[(size_t)row * t->qkv_ld + j] = source_float(&t->r.random, 1.5f);
        if (live)
            rig_fill_kv(&t->r, LAYER, n_rows - row, len[row - 1] - 1);
    }
    t->kv_bytes = (size_t)2 * n_blocks * m->n_kv_heads * gpu_kv_cell_bytes(s->block, s->head_dim);
    t->kv_before = test_memory(t->kv_bytes);
    memcpy(t->kv_before, m->kv, t->kv_bytes);
    t->scratch = floats(gpu_attention_scratch(t->rows, m->n_heads, m->head_dim));
    t->counters = test_memory(t->rows * m->n_kv_heads * sizeof *t->counters);
    memset(t->counters, 0, t->rows * m->n_kv_heads * sizeof *t->counters);
}

/* The pool as it must be after the append (checked against `kv`), and the outputs. */
static void check_pool(struct run *t)
{
    struct gpu_model *m = &t->r.m;
    uint32_t hd = m->head_dim, heads = m->n_heads / m->n_kv_heads;
    t->want = malloc((size_t)t->rows * m->n_heads * hd * sizeof *t->want);
    uint8_t *after = malloc(t->kv_bytes);
    memcpy(after, m->kv, t->kv_bytes);
    uint8_t *mine = m->kv;
    for (uint32_t row = 0; row < t->rows; row++) {
        struct gpu_row g = m->rows[row];
        const float *x = t->qkv + (size_t)row * t->qkv_ld;
        for (uint32_t h = 0; g.position >= 0 && h < m->n_kv_heads; h++) {
            double k[256], v[256];
            ref_head(&t->r, x + (m->n_heads + h) * hd, NULL, t->k_norm, (uint32_t)g.position, 1, k);
            uint16_t got[2][256];
            for (uint32_t d = 0; d < hd; d++) {
                v[d] = x[(m->n_heads + m->n_kv_heads + h) * hd + d];
                got[0][d] = *rig_k(&t->r, LAYER, g.slot, h, (uint32_t)g.position, d);
                got[1][d] = *rig_v(&t->r, LAYER, g.slot, h, (uint32_t)g.position, d);
                ck_assert_uint_eq(got[1][d], bf16_from_f32((float)v[d]));
            }
            assert_close_bf16(got[0], k, hd, TOL_BF16, "k of row %u", row);
            /* Put back what was there, to see that nothing else changed. */
            m->kv = after;
            uint16_t *to = rig_k(&t->r, LAYER, g.slot, h, (uint32_t)g.position, 0);
            size_t at = (size_t)((uint8_t *)to - after);
            memcpy(to, t->kv_before + at, gpu_pad_head(hd) * sizeof *to);
            for (uint32_t d = 0; d < hd; d++) {
                to = rig_v(&t->r, LAYER, g.slot, h, (uint32_t)g.position, d);
                at = (size_t)((uint8_t *)to - after);
                memcpy(to, t->kv_before + at, sizeof *to);
            }
            m->kv = mine;
        }
    }
    ck_assert_msg(memcmp(after, t->kv_before, t->kv_bytes) == 0, "the pool changed elsewhere");
    free(after);
    double scale = 1.4426950408889634 / sqrt(hd);
    for (uint32_t row = 0; row < t->rows; row++) {
        struct gpu_row g = m->rows[row];
        for (uint32_t h = 0; g.position >= 0 && h < m->n_heads; h++) {
            double q[256];
            ref_head(&t->r, t->qkv + (size_t)row * t->qkv_ld + h * hd, NULL, t->q_norm,
                     (uint32_t)g.position, scale, q);
            for (uint32_t d = 0; d < hd; d++)
                q[d] = bf16_to_f32(bf16_from_f32((float)q[d]));
            ref_attention(&t->r, LAYER, g.slot, h / heads, (uint32_t)g.position, q,
                          t->want + ((size_t)row * m->n_heads + h) * hd);
        }
    }
}

static void check_output(const struct run *t, const uint16_t *att, const char *what)
{
    const struct gpu_model *m = &t->r.m;
    uint32_t n = m->n_heads * m->head_dim;
    for (uint32_t row = 0; row < t->rows; row++) {
        const uint16_t *got = att + (size_t)row * t->ld;
        if (m->rows[row].position < 0)
            ck_assert_msg(untouched(got, t->ld * sizeof *got), "padding row %u", row);
        else
            assert_close_bf16(got, t->want + (size_t)row * n, n, TOL_BF16, "%s, row %u of %d", what,
                              row, m->rows[row].position + 1);
    }
    for (uint32_t i = 0; i < t->rows * m->n_kv_heads; i++)
        ck_assert_uint_eq(t->counters[i], 0);
}

static uint16_t *run_decode(struct run *t, const uint16_t *q, bool split, bool hide, int seed)
{
    struct gpu_model *m = &t->r.m;
    size_t n = (size_t)t->rows * t->ld * sizeof(uint16_t);
    uint16_t *att = test_memory(n);
    struct gpu_attention a = {.layer = LAYER,
                              .qkv = q ? NULL : t->qkv,
                              .q_norm = t->q_norm,
                              .k_norm = t->k_norm,
                              .q = q,
                              .att = att,
                              .split = split,
                              .scratch = split ? t->scratch : NULL,
                              .counters = split ? t->counters : NULL};
    emu_seed((uint64_t)seed);
    if (hide) {
        hide_begin();
        hide_input(t->qkv, (size_t)t->rows * t->qkv_ld * sizeof *t->qkv);
        hide_input(m->rows, t->rows * sizeof *m->rows);
        watch_output(att, n);
    }
    ck_assert_ok(cuda_attention_decode(t->r.l, m, t->rows, &a));
    if (hide)
        hide_end();
    return att;
}

/* Pure decode, fused; and the same from separate nodes, bit for bit. */
START_TEST(attention_decode)
{
    struct run t;
    uint32_t len[N_SEQS];
    for (uint32_t i = 0; i < N_SEQS; i++)
        len[i] = length_of(&shapes[_i], i);
    run_init(&t, _i, N_SEQS, len, _i % 2 == 0);
    struct gpu_model *m = &t.r.m;
    size_t n = (size_t)t.rows * t.ld * sizeof(uint16_t);
    uint16_t *first = NULL, *q = NULL;
    for (int seed = SEED_FIRST; seed < SEEDS; seed++) {
        memcpy(m->kv, t.kv_before, t.kv_bytes);
        uint16_t *att = run_decode(&t, NULL, true, seed == SEEDS - 1, seed);
        if (!first) {
            check_pool(&t);
            first = att;
        }
        check_output(&t, att, "fused");
        ck_assert_msg(memcmp(att, first, n) == 0, "seed %d", seed);
    }
    for (int seed = SEED_FIRST; seed < SEEDS; seed++) {
        memcpy(m->kv, t.kv_before, t.kv_bytes);
        q = halves((size_t)t.rows * m->n_heads * gpu_pad_head(m->head_dim));
        emu_seed((uint64_t)seed);
        ck_assert_ok(cuda_rope_append(t.r.l, m, t.rows, LAYER, t.qkv, NULL, t.q_norm, t.k_norm, q));
        ck_assert_msg(memcmp(run_decode(&t, q, true, false, seed), first, n) == 0, "separate");
        ck_assert_msg(memcmp(run_decode(&t, q, false, false, seed), first, n) == 0, "whole");
    }
    free(t.want);
    test_free_all();
}
END_TEST

/* More than 32 chunks: groups of two and three, the last one shorter. */
START_TEST(attention_long)
{
    static const uint32_t len[] = {8192, 8193, 16500};
    static const struct shape s = {0, 2, 1, 32, 0, 0, 16512, 16, true};
    struct run t;
    struct rig *r = &t.r;
    (void)_i;
    memset(&t, 0, sizeof t);
    rig_init(r, &s, 3, 1, 3, 3 * 1032 + 1, 3);
    struct gpu_model *m = &r->m;
    rig_tables(r);
    t.rows = 3;
    t.ld = 64;
    uint16_t *q = halves(3 * 2 * 32);
    double *want = malloc(3 * 64 * sizeof *want);
    for (uint32_t i = 0; i < 3; i++) {
        double x[32];
        rig_fill_kv(r, LAYER, i, len[i]);
        m->rows[i] = (struct gpu_row){1, (int32_t)len[i] - 1, i, 0};
        for (uint32_t h = 0; h < 2; h++) {
            for (uint32_t d = 0; d < 32; d++) {
                q[(i * 2 + h) * 32 + d] = bf16_from_f32(source_float(&r->random, 0.6f));
                x[d] = bf16_to_f32(q[(i * 2 + h) * 32 + d]);
            }
            ref_attention(r, LAYER, i, 0, len[i] - 1, x, want + i * 64 + h * 32);
        }
    }
    t.scratch = floats(gpu_attention_scratch(3, 2, 32));
    t.counters = test_memory(3 * sizeof *t.counters);
    memset(t.counters, 0, 3 * sizeof *t.counters);
    t.want = want;
    uint16_t *split = run_decode(&t, q, true, false, 1);
    check_output(&t, split, "split");
    ck_assert(memcmp(run_decode(&t, q, false, false, 2), split, 3 * 64 * sizeof *q) == 0);
    free(want);
    test_free_all();
}
END_TEST

/* Segments of a mixed step: chunks of prompts at any offset beside single rows, by tiles; and one
 * row at a time, whose bits are those of decode. */
static const struct {
    uint32_t first, n;
} segments[] = {{0, 1}, {0, 37}, {250, 12}, {17, 1}, {100, 70}, {511, 2}, {299, 1}, {9999, 3}};
#define N_SEGMENTS ((uint32_t)(sizeof segments / sizeof *segments))

/* The last one ends where the context ends; of the others, those beyond it are left out. */
static uint32_t first_of(const struct shape *s, uint32_t i)
{
    return segments[i].first == 9999 ? s->context - segments[i].n : segments[i].first;
}

START_TEST(attention_segments)
{
    struct run t;
    const struct shape *s = &shapes[_i];
    uint32_t len[N_SEGMENTS], n_rows = 0, hd = s->head_dim;
    for (uint32_t i = 0; i < N_SEGMENTS; i++)
        len[i] = 1;
    run_init(&t, _i, N_SEGMENTS, len, _i % 2 == 1);
    struct rig r = t.r;
    struct gpu_model *m = &r.m;
    memset(m->kv, 0xff, t.kv_bytes);
    for (uint32_t i = 0; i < N_SEGMENTS; i++)
        n_rows += first_of(s, i) + segments[i].n <= s->context ? segments[i].n : 0;
    m->caps = (struct gpu_caps){n_rows + 3, 1, 1, 1};
    struct gpu_step_args *step = test_memory(gpu_step_bytes(&m->caps));
    memset(step, 0, sizeof *step);
    m->step = step;
    m->rows = test_memory((n_rows + 3) * sizeof *m->rows);
    uint32_t at = 0;
    for (uint32_t i = 0; i < N_SEGMENTS; i++) {
        if (first_of(s, i) + segments[i].n > s->context)
            continue;
        gpu_step_segment(step, &m->caps)[step->n_segments++] = at;
        rig_fill_kv(&r, LAYER, i, first_of(s, i));
        for (uint32_t j = 0; j < segments[i].n; j++)
            m->rows[at++] = (struct gpu_row){1, (int32_t)(first_of(s, i) + j), i,
                                             segments[i].n == 1 ? GPU_ROW_SINGLE : 0};
    }
    gpu_step_segment(step, &m->caps)[step->n_segments] = at;
    step->n_rows = at;
    t.r = r;
    t.rows = n_rows + 3;
    for (uint32_t i = at; i < t.rows; i++)
        m->rows[i] = t.r.m.rows[i] = (struct gpu_row){0, -1, 0, 0};
    t.qkv = floats((size_t)t.rows * t.qkv_ld);
    float *bias = random_vector(&r.random, rig_qkv(m), t.qkv_ld, 0, 0.2f);
    float *sum = floats((size_t)t.rows * t.qkv_ld);
    for (uint32_t i = 0; i < at; i++)
        for (uint32_t j = 0; j < rig_qkv(m); j++) {
            t.qkv[(size_t)i * t.qkv_ld + j] = source_float(&r.random, 1.5f);
            sum[(size_t)i * t.qkv_ld + j] = t.qkv[(size_t)i * t.qkv_ld + j] + bias[j];
        }
    memcpy(t.kv_before, m->kv, t.kv_bytes);
    t.counters = test_memory(t.rows * m->n_kv_heads * sizeof *t.counters);
    memset(t.counters, 0, t.rows * m->n_kv_heads * sizeof *t.counters);
    t.scratch = floats(gpu_attention_scratch(t.rows, m->n_heads, hd));

    size_t q_size = (size_t)t.rows * m->n_heads * gpu_pad_head(hd);
    uint16_t *q = halves(q_size), *first = NULL;
    float *plain = t.qkv;
    for (int seed = SEED_FIRST; seed < SEEDS; seed++) {
        memcpy(m->kv, t.kv_before, t.kv_bytes);
        memset(q, 0xff, q_size * sizeof *q);
        emu_seed((uint64_t)seed);
        if (seed == SEEDS - 1) {
            hide_begin();
            hide_input(plain, (size_t)t.rows * t.qkv_ld * sizeof *plain);
            hide_input(m->rows, t.rows * sizeof *m->rows);
            watch_output(q, q_size * sizeof *q);
        }
        ck_assert_ok(cuda_rope_append(r.l, m, t.rows, LAYER, plain, bias, t.q_norm, t.k_norm, q));
        if (seed == SEEDS - 1)
            hide_end();
        t.qkv = sum;
        if (!first)
            check_pool(&t);
        size_t bytes = (size_t)t.rows * t.ld * sizeof(uint16_t);
        uint16_t *att = test_memory(bytes);
        if (seed == SEEDS - 1) {
            hide_begin();
            hide_input(q, q_size * sizeof *q);
            hide_input(m->rows, t.rows * sizeof *m->rows);
            watch_output(att, bytes);
        }
        ck_assert_ok(cuda_attention_prefill(r.l, m, t.rows, LAYER, q, false, att));
        if (seed == SEEDS - 1)
            hide_end();
        check_output(&t, att, "tiles");
        uint16_t *whole = run_decode(&t, q, false, false, seed);
        check_output(&t, whole, "whole");
        first = first ? first : whole;
        ck_assert(memcmp(first, whole, bytes) == 0);

        /* The two kernels share the rows: each leaves the other's alone. */
        uint16_t *shared = test_memory(bytes);
        struct gpu_attention a = {.layer = LAYER,
                                  .q = q,
                                  .att = shared,
                                  .split = true,
                                  .single_only = true,
                                  .scratch = t.scratch,
                                  .counters = t.counters};
        ck_assert_ok(cuda_attention_decode(r.l, m, t.rows, &a));
        for (uint32_t i = 0; i < t.rows; i++)
            if (m->rows[i].flags & GPU_ROW_SINGLE)
                ck_assert(memcmp(shared + i * t.ld, whole + i * t.ld, t.ld * 2) == 0);
            else
                ck_assert(untouched(shared + i * t.ld, t.ld * 2));
        ck_assert_ok(cuda_attention_prefill(r.l, m, t.rows, LAYER, q, true, shared));
        check_output(&t, shared, "shared");
        t.qkv = plain;
    }
    free(t.want);
    test_free_all();
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("cuda attention");
    add_cases(s, attention_decode, N_SHAPES);
    add_cases(s, attention_long, 1);
    add_cases(s, attention_segments, N_SHAPES);
    return s;
}
