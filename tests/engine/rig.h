/* rig: an engine with KV memory and block ids, for the engine's tests. */
#ifndef BATON_TESTS_ENGINE_RIG_H
#define BATON_TESTS_ENGINE_RIG_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/engine/engine.h"
#include "common/model/model.h"
#include "tests/harness.h"

#define RIG_BLOCKS 256
#define RIG_SEQ    64 /* blocks of a sequence at most */

struct rig {
    struct engine *e;
    const struct engine_info *info;
    void *kv;
    size_t kv_bytes;
    uint32_t next; /* block to hand out next */
    uint32_t stride;
};

static const struct engine_options rig_options = {.backend = "cpu",
                                                  .isa = "auto",
                                                  .weights = "auto",
                                                  .threads = 1,
                                                  .max_batch = 8,
                                                  .prefill_chunk = 512,
                                                  .kv_block_size = 16,
                                                  .graphs = true};

/* Instruction sets that this machine has; the engine must offer each. */
static inline bool rig_has_isa(const char *isa)
{
    if (strcmp(isa, "avx2") == 0)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (strcmp(isa, "avx512") == 0)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
    if (strcmp(isa, "amx") == 0)
        return system("grep -qw amx_bf16 /proc/cpuinfo && grep -qw amx_int8 /proc/cpuinfo") == 0;
    return true;
}

static inline void rig_open(struct rig *r, const char *path, const struct engine_options *o)
{
    char err[256] = "";
    struct model *m;
    ck_assert_msg(model_open(path, 0, &m, err, sizeof err) == 0, "%s: %s", path, err);
    memset(r, 0, sizeof *r);
    ck_assert_msg(engine_create(m, o, &r->e, err, sizeof err) == 0, "%s: %s", path, err);
    model_close(m);
    r->info = engine_info(r->e);
    r->kv_bytes = (size_t)r->info->n_layers * RIG_BLOCKS * r->info->kv_block_bytes;
    r->kv = mem_huge(r->kv_bytes);
    ck_assert_ptr_nonnull(r->kv);
    memset(r->kv, 0xff, r->kv_bytes); /* NaNs: nobody may read what nobody wrote */
    memset(r->kv, 0, r->info->kv_block_bytes);
    ck_assert_ok(engine_bind_kv(r->e, r->kv, RIG_BLOCKS));
    r->stride = 1;
}

static inline void rig_close(struct rig *r)
{
    engine_destroy(r->e);
    mem_huge_free(r->kv, r->kv_bytes);
}

/* One sequence: ids, its blocks, and what the model said about it. */
struct rig_seq {
    int32_t ids[RIG_SEQ * 16];
    uint32_t n;    /* ids known */
    uint32_t done; /* ids whose KV is there */
    uint32_t blocks[RIG_SEQ];
    struct sample_result scores[RIG_SEQ * 16]; /* [i]: of ids[i + 1], or of -1 for the last */
    float *logits;                             /* [vocab] after the last id */
};

/* n blocks from the pool, `stride` apart (odd: visits all before it comes round). */
static inline void rig_blocks(struct rig *r, struct rig_seq *q, uint32_t from, uint32_t n)
{
    for (uint32_t i = from; i < n; i++) {
        q->blocks[i] = 1 + r->next * r->stride % (RIG_BLOCKS - 1);
        r->next++;
    }
}

static inline void rig_seq_init(struct rig *r, struct rig_seq *q, const int32_t *ids, uint32_t n)
{
    memset(q, 0, sizeof *q);
    memcpy(q->ids, ids, n * sizeof *ids);
    q->n = n;
    q->logits = mem_array(r->info->vocab, sizeof(float));
    rig_blocks(r, q, 0, (n + 15) / 16);
}

static inline void rig_seq_fini(struct rig_seq *q)
{
    free(q->logits);
}

/* A row for the next n ids, every one of them scored with all alternatives. */
static inline struct engine_row rig_row(struct rig_seq *q, uint32_t n)
{
    return (struct engine_row){.tokens = q->ids + q->done,
                               .n_tokens = n,
                               .position = q->done,
                               .blocks = q->blocks,
                               .scores = q->scores + q->done,
                               .next_token = q->done + n < q->n ? q->ids[q->done + n] : 0,
                               .score_top = SAMPLE_TOP_MAX};
}

/* Computes the rest of the sequence in chunks of the sizes given (the last one repeats). */
static inline void rig_eval(struct rig *r, struct rig_seq *q, const uint32_t *chunks)
{
    while (q->done < q->n) {
        uint32_t n = *chunks < q->n - q->done ? *chunks : q->n - q->done;
        struct engine_row row = rig_row(q, n);
        struct engine_step s = {.rows = &row, .n_rows = 1};
        ck_assert_ok(engine_step(r->e, &s));
        ck_assert_uint_eq(s.bucket, engine_bucket(r->e, n));
        q->done += n;
        if (chunks[1] != 0)
            chunks++;
    }
    memcpy(q->logits, engine_logits(r->e), r->info->vocab * sizeof(float));
}

static inline void rig_compare_scores(const struct rig_seq *a, const struct rig_seq *b,
                                      uint32_t from, uint32_t to, const char *what)
{
    for (uint32_t i = from; i < to; i++) {
        const struct sample_result *x = &a->scores[i], *y = &b->scores[i];
        ck_assert_msg(x->token == y->token && x->logprob == y->logprob && x->n_top == y->n_top &&
                          memcmp(x->top_id, y->top_id, x->n_top * sizeof *x->top_id) == 0 &&
                          memcmp(x->top_logprob, y->top_logprob, x->n_top * sizeof(float)) == 0,
                      "%s: position %u of %u differs (%.9g, %.9g)", what, i, a->n,
                      (double)x->logprob, (double)y->logprob);
    }
}

/* Equal to the bit: scores of all positions from `from` on, last logits, and the KV itself. */
static inline void rig_compare(const struct rig *ra, const struct rig_seq *a, const struct rig *rb,
                               const struct rig_seq *b, uint32_t from, const char *what)
{
    ck_assert_uint_eq(a->n, b->n);
    rig_compare_scores(a, b, from, a->n, what);
    ck_assert_msg(memcmp(a->logits, b->logits, ra->info->vocab * sizeof(float)) == 0,
                  "%s: the last logits differ", what);
    for (uint32_t l = 0; l < ra->info->n_layers; l++) {
        for (uint32_t i = 0; i < (a->n + 15) / 16; i++) {
            uint32_t used = a->n - i * 16 < 16 ? a->n - i * 16 : 16;
            engine_kv_clear_tail(ra->e, l, a->blocks[i], used);
            engine_kv_clear_tail(rb->e, l, b->blocks[i], used);
            ck_assert_msg(memcmp(engine_kv_block(ra->e, l, a->blocks[i]),
                                 engine_kv_block(rb->e, l, b->blocks[i]),
                                 ra->info->kv_block_bytes) == 0,
                          "%s: KV of layer %u, block %u differs", what, l, i);
        }
    }
}

static inline void rig_random_ids(int32_t *ids, uint32_t n, uint32_t vocab, uint64_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (int32_t)(rng_philox(seed, i, 5).v[0] % vocab);
}

static inline json_t *rig_json(const char *name)
{
    json_error_t e;
    json_t *j = json_load_file(test_data(name), 0, &e);
    ck_assert_msg(j != NULL, "%s: %s", name, e.text);
    return j;
}

static inline uint32_t rig_json_ids(const json_t *list, int32_t *ids, uint32_t max)
{
    size_t n = json_array_size(list);
    ck_assert_uint_le(n, max);
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return (uint32_t)n;
}

#endif
