/* The small nodes: first node of a step, norms, SwiGLU, checksums and clearing of KV blocks. */
#include "tests/cuda/kernels.h"

#include "common/base/hash.h"

static const struct shape shapes[] = {{64, 2, 1, 16, 48, 50, 0, 0, true},
                                      {160, 5, 1, 32, 88, 131, 0, 0, true},
                                      {1152, 3, 3, 16, 2056, 33, 0, 0, true}};
#define N_SHAPES ((int)(sizeof shapes / sizeof *shapes))
#define ROWS     7

START_TEST(step_begin)
{
    struct rig r;
    const struct shape *s = &shapes[_i];
    rig_init(&r, s, ROWS, 2, 4, 0, 5);
    struct gpu_model *m = &r.m;
    uint32_t ld = gpu_pad(s->hidden, 64), groups = ld / 16;
    uint16_t *w = random_matrix(&r.random, s->vocab, gpu_pad(s->vocab, 16), s->hidden, ld, 1);
    float *gain = random_vector(&r.random, s->hidden, ld, 1, 0.3f);
    m->table_stride = 5;
    struct gpu_step_args *step = rig_step(&r);
    step->n_rows = 6;
    /* Slots before the step; 2 and 3 are patched by it. */
    const struct gpu_slot slots[4] = {{11, 1}, {12, 0}, {13, 0}, {14, 1}};
    const struct gpu_row rows[6] = {
        {3, 0, 0, 0},                                /* a literal token */
        {GPU_TOKEN_OF_SLOT, 9, 0, GPU_ROW_IF_ALIVE}, /* the slot's: 11 */
        {GPU_TOKEN_OF_SLOT, 9, 1, GPU_ROW_IF_ALIVE}, /* dead */
        {GPU_TOKEN_OF_SLOT, 9, 2, GPU_ROW_IF_ALIVE}, /* alive by its patch: 21 */
        {GPU_TOKEN_OF_SLOT, 9, 3, GPU_ROW_IF_ALIVE}, /* dead by its patch */
        {GPU_TOKEN_OF_SLOT, 9, 1, 0},                /* dead, but asked for: 12 */
    };
    const int32_t token[6] = {3, 11, -1, 21, -1, 12};
    for (int seed = SEED_FIRST; seed < SEEDS; seed++) {
        uint32_t *tables = m->tables = test_memory(4 * 5 * sizeof *tables);
        memcpy(m->slots, slots, sizeof slots);
        memcpy(gpu_step_rows(step), rows, sizeof rows);
        step->n_patches = 2;
        gpu_step_patches(step, &m->caps)[0] = (struct gpu_patch){0, 4, 77};
        gpu_step_patches(step, &m->caps)[1] = (struct gpu_patch){3, 1, 78};
        step->n_slot_patches = 2;
        gpu_step_slots(step, &m->caps)[0] = (struct gpu_slot_patch){2, {21, 1}};
        gpu_step_slots(step, &m->caps)[1] = (struct gpu_slot_patch){3, {22, 0}};
        float *x = floats(ROWS * ld), *ssq = floats(ROWS * groups);
        uint16_t *xg = halves(ROWS * ld);
        memset(m->rows, 0xaa, ROWS * sizeof *m->rows);
        emu_seed((uint64_t)seed);
        if (seed == SEEDS - 1) {
            hide_begin();
            hide_input(m->slots, sizeof slots);
            hide_input((void *)m->step, gpu_step_bytes(&m->caps));
            watch_output(x, ROWS * ld * sizeof *x);
            watch_output(tables, 4 * 5 * sizeof *tables);
        }
        ck_assert_ok(cuda_step_begin(r.l, m, ROWS, w, gain, x, xg, ssq));
        if (seed == SEEDS - 1)
            hide_end();
        for (uint32_t i = 0; i < ROWS; i++) {
            bool live = i < 6 && token[i] >= 0;
            ck_assert_int_eq(m->rows[i].position, live ? rows[i].position : -1);
            if (!live) {
                ck_assert(untouched(x + i * ld, ld * sizeof *x));
                ck_assert(untouched(xg + i * ld, ld * sizeof *xg));
                continue;
            }
            ck_assert_int_eq(m->rows[i].token, token[i]);
            ck_assert_uint_eq(m->rows[i].slot, rows[i].slot);
            double sum[256] = {0};
            for (uint32_t j = 0; j < ld; j++) {
                float v = bf16_to_f32(w[(size_t)token[i] * ld + j]);
                ck_assert_msg(x[i * ld + j] == v, "x of row %u", i);
                ck_assert_uint_eq(xg[i * ld + j], bf16_from_f32(v * gain[j]));
                sum[j / 16] += (double)v * v;
            }
            assert_close(ssq + i * groups, sum, groups, TOL_F32, "ssq");
        }
        for (uint32_t i = 0; i < 20; i++)
            ck_assert_uint_eq(tables[i], i == 4 ? 77 : i == 16 ? 78 : 0xffffffffu);
        ck_assert(m->slots[2].alive && !m->slots[3].alive && m->slots[0].token == 11);
    }
    test_free_all();
}
END_TEST

/* A token that is no id must not address memory. */
START_TEST(step_begin_no_token)
{
    struct rig r;
    rig_init(&r, &shapes[0], 3, 2, 4, 0, 5);
    struct gpu_model *m = &r.m;
    uint16_t *w = random_matrix(&r.random, 50, 50, 64, 64, 1);
    float *gain = random_vector(&r.random, 64, 64, 1, 0), *x = floats(3 * 64), *ssq = floats(12);
    uint16_t *xg = halves(3 * 64);
    m->slots[0] = (struct gpu_slot){-1, 1};
    rig_step(&r)->n_rows = 3;
    gpu_step_rows(m->step)[0] = (struct gpu_row){GPU_TOKEN_OF_SLOT, 0, 0, 0};
    gpu_step_rows(m->step)[1] = (struct gpu_row){50, 0, 0, 0};
    gpu_step_rows(m->step)[2] = (struct gpu_row){49, 0, 0, 0};
    ck_assert_ok(cuda_step_begin(r.l, m, 3, w, gain, x, xg, ssq));
    ck_assert_int_eq(m->rows[0].position, -1);
    ck_assert_int_eq(m->rows[1].position, -1);
    ck_assert_int_eq(m->rows[2].position, 0);
    test_free_all();
}
END_TEST

START_TEST(rmsnorm)
{
    struct rig r;
    const struct shape *s = &shapes[_i];
    rig_init(&r, s, ROWS, 1, 1, 0, 6);
    rig_live(&r, ROWS, true);
    uint32_t ld = gpu_pad(s->hidden, 64);
    float *gain = random_vector(&r.random, s->hidden, ld, 1, 0.3f);
    struct normed v = rig_normed(&r, ROWS, gain);
    float *add = floats(ROWS * ld);
    for (uint32_t i = 0; i < ROWS * ld; i++)
        add[i] = i % ld < s->hidden ? source_float(&r.random, 1) : 0;
    double *want = malloc(s->hidden * sizeof *want);
    for (int seed = 2 * SEED_FIRST; seed < 2 * SEEDS; seed++) {
        bool with = seed % 2;
        float *x = floats(ROWS * ld);
        uint16_t *xn = halves(ROWS * ld);
        memcpy(x, v.x, ROWS * ld * sizeof *x);
        emu_seed((uint64_t)seed / 2);
        if (seed >= 2 * SEEDS - 2) {
            hide_begin();
            hide_input(x, ROWS * ld * sizeof *x);
            hide_input(r.m.rows, ROWS * sizeof *r.m.rows);
            watch_output(xn, ROWS * ld * sizeof *xn);
        }
        ck_assert_ok(cuda_rmsnorm(r.l, &r.m, ROWS, x, with ? add : NULL, gain, xn));
        if (seed >= 2 * SEEDS - 2)
            hide_end();
        for (uint32_t i = 0; i < ROWS; i++) {
            if (r.m.rows[i].position < 0) {
                ck_assert(untouched(xn + i * ld, ld * sizeof *xn));
                ck_assert(memcmp(x + i * ld, v.x + i * ld, ld * sizeof *x) == 0);
                continue;
            }
            double sum = 0;
            for (uint32_t j = 0; j < ld; j++) {
                float y = v.x[i * ld + j] + (with ? add[i * ld + j] : 0);
                ck_assert(x[i * ld + j] == y);
                sum += (double)y * y;
            }
            double rs = 1 / sqrt(sum / s->hidden + r.m.rms_eps);
            for (uint32_t j = 0; j < s->hidden; j++)
                want[j] = x[i * ld + j] * rs * gain[j];
            assert_close_bf16(xn + i * ld, want, s->hidden, TOL_BF16, "row %u", i);
            ck_assert(zeroes(xn + i * ld + s->hidden, (ld - s->hidden) * sizeof *xn));
        }
    }
    free(want);
    test_free_all();
}
END_TEST

/* What goes ahead of a fused node is the same whoever makes it: the residual node, with a product
 * of zero, and norm_prepare. */
START_TEST(norm_prepare)
{
    struct rig r;
    const struct shape *s = &shapes[_i];
    rig_init(&r, s, ROWS, 1, 1, 0, 6);
    rig_live(&r, ROWS, true);
    uint32_t ld = gpu_pad(s->hidden, 64), groups = ld / 16;
    float *gain = random_vector(&r.random, s->hidden, ld, 1, 0.3f);
    struct normed v = rig_normed(&r, ROWS, gain);
    uint16_t *w = test_memory(gpu_pad(s->hidden, 16) * 64 * 2), *in = test_memory(ROWS * 64 * 2);
    memset(w, 0, gpu_pad(s->hidden, 16) * 64 * sizeof *w);
    memset(in, 0, ROWS * 64 * sizeof *in);
    for (int seed = SEED_FIRST; seed < SEEDS; seed++) {
        uint16_t *xg[2] = {halves(ROWS * ld), halves(ROWS * ld)};
        float *ssq[2] = {floats(ROWS * groups), floats(ROWS * groups)};
        for (int i = 0; i < 2; i++) {
            for (uint32_t j = 0; j < ROWS * groups; j++)
                ssq[i][j] = 0;
            memset(xg[i], 0, ROWS * ld * sizeof **xg);
        }
        emu_seed((uint64_t)seed);
        if (seed == SEEDS - 1) {
            hide_begin();
            hide_input(v.x, ROWS * ld * sizeof *v.x);
            hide_input(r.m.rows, ROWS * sizeof *r.m.rows);
        }
        ck_assert_ok(cuda_norm_prepare(r.l, &r.m, ROWS, v.x, gain, xg[0], ssq[0]));
        if (seed == SEEDS - 1)
            hide_end();
        ck_assert_ok(cuda_linear_residual(r.l, &r.m, ROWS, w, 64, in, v.x, gain, xg[1], ssq[1]));
        ck_assert(memcmp(xg[0], xg[1], ROWS * ld * sizeof **xg) == 0);
        ck_assert(memcmp(ssq[0], ssq[1], ROWS * groups * sizeof **ssq) == 0);
        for (uint32_t i = 0; i < ROWS; i++) {
            double sum[256] = {0};
            for (uint32_t j = 0; j < ld; j++) {
                sum[j / 16] += (double)v.x[i * ld + j] * v.x[i * ld + j];
                if (r.m.rows[i].position >= 0)
                    ck_assert_uint_eq(xg[0][i * ld + j], bf16_from_f32(v.x[i * ld + j] * gain[j]));
            }
            if (r.m.rows[i].position >= 0)
                assert_close(ssq[0] + i * groups, sum, groups, TOL_F32, "row %u", i);
            else
                ck_assert(zeroes(ssq[0] + i * groups, groups * sizeof **ssq));
        }
    }
    test_free_all();
}
END_TEST

START_TEST(swiglu)
{
    struct rig r;
    const struct shape *s = &shapes[_i];
    rig_init(&r, s, ROWS, 1, 1, 0, 6);
    rig_live(&r, ROWS, true);
    uint32_t n = gpu_pad(s->ffn, 8), ld = gpu_pad(s->ffn, 64);
    uint16_t *gu = random_matrix(&r.random, ROWS, ROWS, 2 * n, 2 * n, 4);
    gu[3] = bf16_from_f32(-300);
    gu[4] = bf16_from_f32(300);
    double *want = malloc(n * sizeof *want);
    for (int seed = SEED_FIRST; seed < SEEDS; seed++) {
        uint16_t *hid = halves(ROWS * ld);
        emu_seed((uint64_t)seed);
        if (seed == SEEDS - 1) {
            hide_begin();
            hide_input(gu, (size_t)ROWS * 2 * n * sizeof *gu);
            hide_input(r.m.rows, ROWS * sizeof *r.m.rows);
            watch_output(hid, ROWS * ld * sizeof *hid);
        }
        ck_assert_ok(cuda_swiglu(r.l, &r.m, ROWS, gu, hid));
        if (seed == SEEDS - 1)
            hide_end();
        for (uint32_t i = 0; i < ROWS; i++) {
            if (r.m.rows[i].position < 0) {
                ck_assert(untouched(hid + i * ld, ld * sizeof *hid));
                continue;
            }
            for (uint32_t j = 0; j < n; j++) {
                double g = bf16_to_f32(gu[(size_t)i * 2 * n + j / 8 * 16 + j % 8]);
                want[j] = g / (1 + exp(-g)) *
                          (double)bf16_to_f32(gu[(size_t)i * 2 * n + j / 8 * 16 + 8 + j % 8]);
            }
            assert_close_bf16(hid + i * ld, want, n, TOL_BF16, "row %u", i);
            ck_assert(untouched(hid + i * ld + n, (ld - n) * sizeof *hid));
        }
    }
    free(want);
    test_free_all();
}
END_TEST

START_TEST(kv_checksum)
{
    static const size_t sizes[] = {16, 32, 4096, 8208, 65536};
    struct source random = {9, (uint64_t)_i};
    size_t n = sizes[_i];
    uint8_t *pool = test_memory(3 * n + 32);
    for (size_t i = 0; i < 3 * n + 32; i++)
        pool[i] = (uint8_t)source_u32(&random);
    uint64_t *offset = test_memory(3 * sizeof *offset);
    offset[0] = 2 * n + 32;
    offset[1] = 0;
    offset[2] = n + 16;
    struct gpu_launch l = {.n_sms = 3};
    for (int seed = SEED_FIRST; seed < SEEDS; seed++) {
        uint64_t *out = test_memory(3 * sizeof *out);
        emu_seed((uint64_t)seed);
        if (seed == SEEDS - 1) {
            hide_begin();
            hide_input(pool, 3 * n + 32);
            watch_output(out, 3 * sizeof *out);
        }
        ck_assert_ok(cuda_kv_checksum(l, pool, offset, 3, n, out));
        if (seed == SEEDS - 1)
            hide_end();
        for (int i = 0; i < 3; i++)
            ck_assert_uint_eq(out[i], hash_kv(pool + offset[i], n));
    }
    test_free_all();
}
END_TEST

START_TEST(kv_clear_tail)
{
    static const uint32_t heads = 3, layers = 2;
    uint32_t block = _i % 2 ? 48 : 16, hd = _i < 2 ? 80 : 32, hp = gpu_pad_head(hd);
    size_t cell = gpu_kv_cell_bytes(block, hd), stride = heads * cell + 256;
    struct gpu_launch l = {.n_sms = 3};
    for (uint32_t used = 0; used <= block; used += used < 17 ? 1 : 5) {
        uint8_t *pool = test_memory(layers * stride);
        emu_seed(used);
        ck_assert_ok(cuda_kv_clear_tail(l, pool, layers, stride, heads, block, hd, used));
        for (uint32_t i = 0; i < layers; i++) {
            for (uint32_t h = 0; h < heads; h++) {
                const uint16_t *c = (const uint16_t *)(pool + i * stride + h * cell);
                for (uint32_t s = 0; s < block; s++)
                    for (uint32_t d = 0; d < hp; d++) {
                        uint16_t want = s < used ? 0xffff : 0;
                        ck_assert_uint_eq(c[gpu_kv_k_index(hp, s, d)], want);
                        ck_assert_uint_eq(c[gpu_kv_v_index(hp, s, d)], want);
                    }
            }
            ck_assert(untouched(pool + i * stride + heads * cell, 256));
        }
        test_free_all();
    }
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("cuda nodes");
    add_cases(s, step_begin, N_SHAPES);
    add_cases(s, step_begin_no_token, 1);
    add_cases(s, rmsnorm, N_SHAPES);
    add_cases(s, norm_prepare, N_SHAPES);
    add_cases(s, swiglu, N_SHAPES);
    add_cases(s, kv_checksum, 5);
    add_cases(s, kv_clear_tail, 4);
    return s;
}
