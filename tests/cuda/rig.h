/* rig: engines on the emulated device, and sequences on them. */
#ifndef BATON_TESTS_CUDA_RIG_H
#define BATON_TESTS_CUDA_RIG_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/engine/engine.h"
#include "common/model/model.h"
#include "tests/cuda_emu/emu.h"
#include "tests/cuda_emu/fake_gpu.h"
#include "tests/harness.h"

#define RIG_BLOCKS 64
#define RIG_SEQ    24 /* blocks of a sequence at most */

struct rig {
    struct engine *e;
    const struct engine_info *info;
    uint8_t *kv;
    uint32_t n_blocks, next;
    uint64_t ids; /* given to sequences */
};

static const struct engine_options rig_options = {.backend = "cuda",
                                                  .threads = 1,
                                                  .context = RIG_SEQ * 16,
                                                  .max_batch = 8,
                                                  .prefill_chunk = 64,
                                                  .kv_block_size = 16,
                                                  .graphs = true,
                                                  .numerics = "fast"};

static void rig_shuffle(const char *kernel, uint64_t random)
{
    (void)kernel;
    emu_seed(random | 1);
}

static inline void rig_open(struct rig *r, const char *model, const struct engine_options *o)
{
    char err[512] = "", path[128];
    struct model *m;
    void *kv;
    memset(r, 0, sizeof *r);
    snprintf(path, sizeof path, "tiny/%s", model);
    fake_gpu_on_kernel(rig_shuffle);
    ck_assert_msg(model_open(test_data(path), 0, &m, err, sizeof err) == 0, "%s: %s", path, err);
    ck_assert_msg(engine_create(m, o, &r->e, err, sizeof err) == 0, "%s: %s", path, err);
    model_close(m);
    r->info = engine_info(r->e);
    r->n_blocks = RIG_BLOCKS;
    ck_assert_msg(engine_kv_alloc(r->e, r->n_blocks, &kv, err, sizeof err) == 0, "%s", err);
    r->kv = kv;
    ck_assert_ok(engine_bind_kv(r->e, kv, r->n_blocks));
}

static inline void rig_close(struct rig *r)
{
    engine_destroy(r->e);
}

/* A sequence. */
struct rig_seq {
    int32_t ids[RIG_SEQ * 16 + 1];
    uint32_t n;    /* known ids */
    uint32_t done; /* ids whose KV is there */
    uint32_t blocks[RIG_SEQ];
    uint32_t n_blocks, max; /* max: ids it ends with */
    uint64_t id;
    struct sample_params sampling;
    int32_t stop[2];
    uint32_t n_stop;
    bool ended;
};

static inline void rig_seq_init(struct rig *r, struct rig_seq *q, const int32_t *ids, uint32_t n,
                                uint32_t new_ids)
{
    memset(q, 0, sizeof *q);
    memcpy(q->ids, ids, n * sizeof *ids);
    q->n = n;
    q->max = n + new_ids;
    q->id = ++r->ids;
    q->sampling = (struct sample_params){.top_p = 1};
    ck_assert_uint_le(q->max, RIG_SEQ * 16);
    q->n_blocks = (q->max + 15) / 16;
    for (uint32_t i = 0; i < q->n_blocks; i++)
        q->blocks[i] = 1 + r->next++ % (r->n_blocks - 1);
}

/* The next n ids; samples when they are the last that are known. */
static inline struct engine_row rig_row(struct rig_seq *q, uint32_t n)
{
    return (struct engine_row){.tokens = q->ids + q->done,
                               .n_tokens = n,
                               .position = q->done,
                               .blocks = q->blocks,
                               .sampling = q->done + n == q->n ? &q->sampling : NULL,
                               .id = q->id,
                               .stop = q->stop,
                               .n_stop = q->n_stop,
                               .last_position = q->max - 1,
                               .next_token = -1};
}

static inline void rig_take(struct rig_seq *q, int32_t token)
{
    ck_assert_int_ge(token, 0);
    q->ids[q->n++] = token;
    for (uint32_t i = 0; i < q->n_stop; i++)
        q->ended |= q->stop[i] == token;
    q->ended |= q->n >= q->max;
}

/* All that is known, in chunks; the first new id is drawn. */
static inline void rig_prefill(struct rig *r, struct rig_seq *q, uint32_t chunk)
{
    uint32_t known = q->n;
    while (q->done < known) {
        uint32_t n = known - q->done < chunk ? known - q->done : chunk;
        struct engine_row row = rig_row(q, n);
        struct engine_step s = {.rows = &row, .n_rows = 1};
        ck_assert_ok(engine_step(r->e, &s));
        q->done += n;
        if (q->done == known)
            rig_take(q, row.result.token);
    }
}

/* One step for each that has not ended. Returns how many there were. */
static inline uint32_t rig_decode(struct rig *r, struct rig_seq **q, uint32_t n)
{
    struct engine_row rows[64];
    struct rig_seq *of[64];
    struct engine_step s = {.rows = rows};
    for (uint32_t i = 0; i < n; i++)
        if (!q[i]->ended) {
            of[s.n_rows] = q[i];
            rows[s.n_rows++] = rig_row(q[i], 1);
        }
    if (s.n_rows == 0)
        return 0;
    ck_assert_ok(engine_step(r->e, &s));
    for (uint32_t i = 0; i < s.n_rows; i++) {
        of[i]->done++;
        rig_take(of[i], rows[i].result.token);
    }
    return s.n_rows;
}

/* Steps in flight, as the worker has them: rows of sequences whose last id nobody has read. */
struct rig_flight {
    struct engine_row rows[64];
    struct rig_seq *of[64];
    struct engine_step step;
};

static inline bool rig_launch(struct rig *r, struct rig_flight *f, const struct rig_flight *before,
                              struct rig_seq **q, uint32_t n)
{
    f->step = (struct engine_step){.rows = f->rows};
    for (uint32_t i = 0; i < n; i++) {
        uint32_t ahead = 0;
        for (uint32_t k = 0; before && k < before->step.n_rows; k++)
            ahead |= before->of[k] == q[i];
        if (q[i]->ended || q[i]->n + ahead >= q[i]->max)
            continue;
        struct engine_row row = rig_row(q[i], 1);
        if (ahead) {
            row.tokens = NULL;
            row.position++;
            row.sampling = &q[i]->sampling;
        }
        f->of[f->step.n_rows] = q[i];
        f->rows[f->step.n_rows++] = row;
    }
    if (f->step.n_rows == 0)
        return false;
    ck_assert_ok(engine_launch(r->e, &f->step));
    return true;
}

/* Reads the step; rows that had ended before give -1 or something that is dropped. */
static inline void rig_finish(struct rig *r, struct rig_flight *f)
{
    int rc;
    do {
        rc = engine_poll(r->e, &f->step, false);
    } while (rc == STATUS_AGAIN);
    ck_assert_ok(rc);
    for (uint32_t i = 0; i < f->step.n_rows; i++) {
        struct rig_seq *q = f->of[i];
        if (q->ended)
            continue;
        q->done++;
        rig_take(q, f->rows[i].result.token);
    }
}

/* Until all have ended, always with a second step launched before the first one is read. */
static inline void rig_decode_ahead(struct rig *r, struct rig_seq **q, uint32_t n)
{
    static struct rig_flight f[2];
    uint32_t at = 0;
    bool flies = rig_launch(r, &f[0], NULL, q, n);
    while (flies) {
        bool next = rig_launch(r, &f[at ^ 1], &f[at], q, n);
        rig_finish(r, &f[at]);
        at ^= 1;
        flies = next || rig_launch(r, &f[at], NULL, q, n);
    }
}

static inline void rig_random_ids(int32_t *ids, uint32_t n, uint32_t vocab, uint64_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (int32_t)(rng_philox(seed, i, 5).v[0] % vocab);
}

#endif
