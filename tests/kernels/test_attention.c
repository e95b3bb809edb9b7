/* Attention of every instruction set: against softmax in double over the numbers in the cells, and
 * a row alone (decode) against the same row among others (prefill). Blocks are scattered and every
 * slot that was not written is NaN. */
#include "tests/kernels/isas.h"
#include "tests/kernels/tiny.h"

static const struct {
    uint32_t head_dim, group, block_size, tokens;
} shapes[] = {{64, 3, 16, 300}, {128, 8, 16, 270}, {64, 1, 32, 40},   {16, 16, 48, 33},
              {48, 5, 16, 259}, {256, 2, 16, 20},  {80, 7, 64, 70},   {112, 4, 16, 17},
              {64, 12, 16, 5},  {64, 13, 16, 1},   {128, 1, 16, 530}, {32, 6, 16, 257}};
#define N_SHAPES (sizeof shapes / sizeof *shapes)

struct cache {
    const struct kernels *kernels;
    enum kv_format format;
    uint32_t head_dim, group, block_size, tokens;
    uint8_t *kv;
    size_t cell;
    uint32_t table[160];
    float *q, *k, *v; /* [tokens][group * hd], [tokens][hd] */
    int32_t *position;
    size_t written; /* tokens */
};

static void cache_fill(struct cache *c, uint64_t key)
{
    uint32_t blocks = (c->tokens + c->block_size - 1) / c->block_size;
    c->cell = c->block_size / KV_SUB * kv_sub_bytes(c->format, c->head_dim);
    c->kv = aligned_alloc(64, c->cell * (blocks + 1));
    memset(c->kv, 0xff, c->cell * (blocks + 1));
    for (uint32_t i = 0; i < blocks; i++)
        c->table[i] = 1 + (i * 5) % blocks * 1u;
    if (blocks % 5 == 0) /* not a permutation then */
        for (uint32_t i = 0; i < blocks; i++)
            c->table[i] = blocks - i;
    struct tiny_random r = {.key = key};
    size_t n = (size_t)c->tokens * c->head_dim;
    c->q = malloc(n * c->group * sizeof(float));
    c->k = malloc(n * sizeof(float));
    c->v = malloc(n * sizeof(float));
    c->position = malloc(c->tokens * sizeof *c->position);
    for (size_t i = 0; i < n * c->group; i++)
        c->q[i] = 4 * tiny_float(&r);
    for (size_t i = 0; i < n; i++) {
        c->k[i] = 2 * tiny_float(&r);
        c->v[i] = tiny_float(&r);
    }
    for (uint32_t i = 0; i < c->tokens; i++)
        c->position[i] = (int32_t)i;
}

/* A case of a loop over formats, shapes and instruction sets. */
static void cache_init(struct cache *c, const struct kernels *k, int n_case)
{
    size_t shape = (size_t)n_case / N_ISAS % N_SHAPES;
    enum kv_format format = (size_t)n_case / N_ISAS < N_SHAPES ? KV_BF16 : KV_INT8;
    *c = (struct cache){.kernels = k,
                        .format = format,
                        .head_dim = shapes[shape].head_dim,
                        .group = shapes[shape].group,
                        .block_size = shapes[shape].block_size,
                        .tokens = shapes[shape].tokens};
    cache_fill(c, (uint64_t)shape + 50);
}

static void cache_fini(struct cache *c)
{
    free(c->kv);
    free(c->q);
    free(c->k);
    free(c->v);
    free(c->position);
}

static void *sub_block(const struct cache *c, size_t token)
{
    return (void *)(c->kv + c->table[token / c->block_size] * c->cell +
                    token % c->block_size / KV_SUB * kv_sub_bytes(c->format, c->head_dim));
}

/* Appends tokens as one step does: only the last may have an odd partner to zero. */
static void cache_append(struct cache *c, size_t end)
{
    for (size_t t = c->written; t < end; t++)
        c->kernels->kv_append[c->format](sub_block(c, t), c->head_dim, t % KV_SUB,
                                         c->k + t * c->head_dim, c->v + t * c->head_dim,
                                         t % 2 == 0 && t + 1 == end);
    c->written = end;
}

static struct attention_args args_of(const struct cache *c, size_t first, float *out)
{
    size_t width = (size_t)c->group * c->head_dim;
    return (struct attention_args){.q = c->q + first * width,
                                   .out = out + first * width,
                                   .q_stride = width,
                                   .out_stride = width,
                                   .position = c->position + first,
                                   .group = c->group,
                                   .head_dim = c->head_dim,
                                   .kv = c->kv,
                                   .block_stride = c->cell,
                                   .table = c->table,
                                   .block_size = c->block_size,
                                   .format = c->format};
}

/* Full of NaN. */
static struct attention_scratch *scratch_new(const struct cache *c)
{
    static struct attention_scratch s;
    memset(&s, 0xff, sizeof s);
    s.expanded = aligned_alloc(64, attention_expanded_bytes(c->head_dim));
    memset(s.expanded, 0xff, attention_expanded_bytes(c->head_dim));
    return &s;
}

static void attend(const struct kernels *k, struct cache *c, size_t first, size_t tokens,
                   unsigned rows_at_once, float *out)
{
    struct attention_args a = args_of(c, first, out);
    struct attention_scratch *s = scratch_new(c);
    size_t rows = tokens * c->group;
    for (size_t r = 0; r < rows; r += rows_at_once)
        attention_rows(k, &a, r, (unsigned)(rows - r < rows_at_once ? rows - r : rows_at_once), s);
    free(s->expanded);
}

static void check_row(const struct cache *c, size_t token, uint32_t head, const float *got,
                      const char *isa)
{
    size_t hd = c->head_dim;
    const float *q = c->q + (token * c->group + head) * hd;
    double score[2400], max = -INFINITY, sum = 0;
    for (size_t i = 0; i <= token; i++) {
        score[i] = 0;
        for (size_t d = 0; d < hd; d++)
            score[i] += (double)q[d] * kv_read_k(c->format, sub_block(c, i), hd, i % KV_SUB, d);
        score[i] /= sqrt((double)hd);
        max = fmax(max, score[i]);
    }
    for (size_t i = 0; i <= token; i++)
        sum += score[i] = exp(score[i] - max);
    for (size_t d = 0; d < hd; d++) {
        double want = 0;
        for (size_t i = 0; i <= token; i++)
            want += score[i] / sum * kv_read_v(c->format, sub_block(c, i), hd, i % KV_SUB, d);
        ck_assert_msg(fabs(got[d] - want) < 0.02, "%s: hd %zu, token %zu, head %u: %g, not %g", isa,
                      hd, token, head, got[d], want);
    }
}

START_TEST(attention_values)
{
    const struct kernels *k = isa_kernels(_i % N_ISAS);
    if (!k)
        return;
    struct cache c;
    cache_init(&c, k, _i);
    size_t width = (size_t)c.group * c.head_dim, bytes = c.tokens * width * sizeof(float);
    float *out = malloc(bytes);
    memset(out, 0xff, bytes);
    cache_append(&c, c.tokens);
    attend(k, &c, 0, c.tokens, ATTENTION_MOST, out);
    for (size_t t = 0; t < c.tokens; t += t + 8 < c.tokens && t > 2 ? 7 : 1)
        for (uint32_t h = 0; h < c.group; h++)
            check_row(&c, t, h, out + t * width + h * c.head_dim, isas[_i % N_ISAS]);
    free(out);
    cache_fini(&c);
}
END_TEST

START_TEST(attention_decode_is_a_chunk_of_one)
{
    const struct kernels *k = isa_kernels(_i % N_ISAS);
    if (!k)
        return;
    struct cache whole, c;
    cache_init(&whole, k, _i);
    size_t width = (size_t)whole.group * whole.head_dim;
    size_t bytes = whole.tokens * width * sizeof(float);
    float *want = malloc(bytes), *got = malloc(bytes);
    cache_append(&whole, whole.tokens);
    attend(k, &whole, 0, whole.tokens, ATTENTION_MOST, want);
    static const size_t chunks[] = {1, 3, 16, 101};
    static const unsigned counts[] = {1, 5, ATTENTION_ROWS, 29, ATTENTION_MOST};
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++)
        for (size_t j = i ? 0 : 4; j < 5; j++) {
            unsigned rows = counts[j];
            cache_init(&c, k, _i);
            memset(got, 0xff, bytes);
            for (size_t t = 0; t < c.tokens; t += chunks[i]) {
                size_t n = t + chunks[i] < c.tokens ? chunks[i] : c.tokens - t;
                cache_append(&c, t + n); /* nothing behind is written: all NaN */
                attend(k, &c, t, n, rows, got);
            }
            ck_assert_msg(memcmp(want, got, bytes) == 0, "%s: hd %u, chunks of %zu, %u rows",
                          isas[_i % N_ISAS], c.head_dim, chunks[i], rows);
            ck_assert_msg(c.tokens % 2 || memcmp(c.kv, whole.kv, c.cell) == 0, "cells differ");
            cache_fini(&c);
        }
    free(want);
    free(got);
    cache_fini(&whole);
}
END_TEST

/* Behind more than a part of keys: a chunk, its tokens one by one, and their parts joined. */
START_TEST(attention_parts_give_the_same_bits)
{
    enum { FIRST = ATTENTION_PART - 9, TOKENS = ATTENTION_PART + 280 };
    const struct kernels *k = isa_kernels(_i % N_ISAS);
    if (!k)
        return;
    struct cache c = {.kernels = k,
                      .format = _i < N_ISAS ? KV_BF16 : KV_INT8,
                      .head_dim = 64,
                      .group = 3,
                      .block_size = 16,
                      .tokens = TOKENS};
    cache_fill(&c, 99);
    cache_append(&c, TOKENS);
    size_t width = (size_t)c.group * c.head_dim, bytes = TOKENS * width * sizeof(float);
    float *want = malloc(bytes), *alone = malloc(bytes), *joined = malloc(bytes);
    float *parts = malloc(2 * attention_part_floats(c.group, c.head_dim) * sizeof *parts);
    attend(k, &c, FIRST, 30, ATTENTION_MOST, want); /* rows on both sides of the edge together */
    attend(k, &c, FIRST + 30, TOKENS - FIRST - 30, ATTENTION_MOST, want);
    for (size_t t = FIRST; t<TOKENS; t += t> FIRST + 30 ? 61 : 1) {
        attend(k, &c, t, 1, ATTENTION_MOST, alone);
        struct attention_args a = args_of(&c, t, joined);
        size_t n = t / ATTENTION_PART + 1;
        for (size_t i = n; i-- > 0;) {
            struct attention_scratch *s = scratch_new(&c);
            attention_part(k, &a, i, s, parts + i * attention_part_floats(c.group, c.head_dim));
            free(s->expanded);
        }
        struct attention_scratch *s = scratch_new(&c);
        attention_join(&a, parts, n, s);
        free(s->expanded);
        size_t row = width * sizeof(float);
        ck_assert_msg(memcmp(want + t * width, alone + t * width, row) == 0, "token %zu alone", t);
        ck_assert_msg(memcmp(want + t * width, joined + t * width, row) == 0, "token %zu in parts",
                      t);
        if (t == FIRST || t == ATTENTION_PART)
            check_row(&c, t, 1, want + t * width + c.head_dim, isas[_i % N_ISAS]);
    }
    free(parts);
    free(joined);
    free(alone);
    free(want);
    cache_fini(&c);
}
END_TEST

/* What is appended can be read: in bf16 to a relative 2^-8, in 8 bits to half a step. A number that
 * is none becomes 0 in 8 bits. */
START_TEST(kv_append_and_expand)
{
    const struct kernels *k = isa_kernels(_i);
    if (!k)
        return;
    struct tiny_random r = {.key = 77};
    static const size_t dims[] = {16, 48, 64, 128, 256};
    for (size_t n = 0; n < 2 * sizeof dims / sizeof *dims; n++) {
        enum kv_format f = n % 2 ? KV_INT8 : KV_BF16;
        size_t hd = dims[n / 2], bytes = kv_sub_bytes(f, hd);
        uint8_t *sub = aligned_alloc(64, bytes);
        uint16_t *expanded = aligned_alloc(64, kv_sub_bytes(KV_BF16, hd));
        float kv[KV_SUB][2][256], step[KV_SUB][2];
        memset(sub, 0xff, bytes);
        for (size_t t = 0; t < KV_SUB; t++) {
            step[t][0] = step[t][1] = 0;
            for (size_t d = 0; d < hd; d++)
                for (int w = 0; w < 2; w++) {
                    kv[t][w][d] = t == 5 ? 0 : tiny_float(&r) * (float)(1 + t);
                    step[t][w] = fmaxf(step[t][w], fabsf(kv[t][w][d]) / 127);
                }
            k->kv_append[f](sub, hd, t, kv[t][0], kv[t][1], t % 2 == 0);
        }
        if (f == KV_INT8)
            k->kv_expand(sub, hd, expanded);
        for (size_t t = 0; t < KV_SUB; t++)
            for (size_t d = 0; d < hd; d++) {
                float got[2] = {kv_read_k(f, sub, hd, t, d), kv_read_v(f, sub, hd, t, d)};
                uint16_t wide[2] = {expanded[kv_k_index(t, d)], expanded[kv_v_index(hd, t, d)]};
                for (int w = 0; w < 2; w++) {
                    float x = kv[t][w][d], e = f == KV_BF16 ? fabsf(x) / 256 : step[t][w] * 0.501f;
                    ck_assert_msg(fabsf(got[w] - x) <= e,
                                  "%s: format %d, token %zu, dim %zu: %g for %g", isas[_i], f, t, d,
                                  got[w], x);
                    if (f == KV_INT8)
                        ck_assert_uint_eq(wide[w], bf16_from_f32(got[w]));
                }
            }
        free(sub);
        free(expanded);
    }
    _Alignas(64) uint8_t sub[2 * KV_SUB * 16 + 128];
    float odd[16] = {NAN, INFINITY, -INFINITY, 3, NAN}, fine[16] = {NAN, 3, -1};
    k->kv_append[KV_INT8](sub, 16, 3, odd, fine, false);
    for (size_t d = 0; d < 16; d++) {
        ck_assert_float_eq(kv_read_k(KV_INT8, sub, 16, 3, d), 0);
        ck_assert_float_eq_tol(kv_read_v(KV_INT8, sub, 16, 3, d),
                               d == 1   ? 3
                               : d == 2 ? -1
                                        : 0,
                               0.02);
    }
}
END_TEST

START_TEST(kv_clear_tail_zeroes_slots)
{
    enum { HD = 48, TOKENS = 32 };
    enum kv_format f = _i ? KV_INT8 : KV_BF16;
    static _Alignas(64) uint8_t cell[TOKENS / KV_SUB * 4 * KV_SUB * HD];
    size_t bytes = kv_sub_bytes(f, HD);
    for (size_t used = 0; used <= TOKENS; used++) {
        memset(cell, 0x41, sizeof cell);
        kv_clear_tail(f, cell, HD, TOKENS, used);
        size_t zeros = 0;
        for (size_t i = 0; i < TOKENS / KV_SUB * bytes; i++)
            zeros += cell[i] == 0;
        /* Exactly the bytes of the slots. */
        ck_assert_uint_eq(zeros, (TOKENS - used) * bytes / KV_SUB);
        for (size_t t = 0; t < TOKENS; t++)
            for (size_t d = 0; d < HD; d++) {
                const uint8_t *sub = cell + t / KV_SUB * bytes;
                bool cleared = kv_read_k(f, sub, HD, t % KV_SUB, d) == 0 &&
                               kv_read_v(f, sub, HD, t % KV_SUB, d) == 0;
                ck_assert_int_eq(cleared, t >= used);
            }
    }
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("attention");
    TCase *tc = tcase_create("attention");
    tcase_set_timeout(tc, 300);
    tcase_add_loop_test(tc, attention_values, 0, 2 * N_SHAPES * N_ISAS);
    tcase_add_loop_test(tc, attention_parts_give_the_same_bits, 0, 2 * N_ISAS);
    tcase_add_loop_test(tc, attention_decode_is_a_chunk_of_one, 0, 2 * N_SHAPES * N_ISAS);
    tcase_add_loop_test(tc, kv_append_and_expand, 0, N_ISAS);
    tcase_add_loop_test(tc, kv_clear_tail_zeroes_slots, 0, 2);
    suite_add_tcase(s, tc);
    return s;
}
