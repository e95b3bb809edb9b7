/* The KV pool and its prefix cache: cases by hand, then long random runs against a model that keeps
 * everything in the plainest way. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "common/kv/pool.h"
#include "tests/harness.h"

#define BS 4

static struct kv_pool *pool;

static void make(uint32_t n_blocks, bool cache)
{
    ck_assert_ok(kv_pool_create(n_blocks, BS, cache, &pool));
}

static void teardown(void)
{
    kv_pool_destroy(pool);
    pool = NULL;
}

static void put_all(const uint32_t *blocks, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        kv_pool_put(pool, blocks[i]);
}

/* Computes n tokens under a salt as a worker would: lookup, alloc the rest, insert, give back.
 * Returns the number of blocks that were cached. */
static uint32_t serve(const char *salt, const int32_t *tokens, uint32_t n)
{
    uint32_t blocks[64], total = (n + BS - 1) / BS;
    uint32_t hit = kv_prefix_lookup(pool, salt, strlen(salt), tokens, n, (n - 1) / BS, blocks);
    ck_assert_ok(kv_pool_alloc(pool, total - hit, blocks + hit));
    kv_prefix_insert(pool, salt, strlen(salt), tokens, n, blocks);
    put_all(blocks, total);
    return hit;
}

START_TEST(pool_create_limits)
{
    ck_assert_int_eq(kv_pool_create(1, BS, true, &pool), STATUS_INVALID);
    ck_assert_int_eq(kv_pool_create(0, BS, true, &pool), STATUS_INVALID);
    ck_assert_int_eq(kv_pool_create(8, 0, true, &pool), STATUS_INVALID);
    make(2, true);
    uint32_t b;
    ck_assert_uint_eq(kv_pool_size(pool), 1);
    ck_assert_uint_eq(kv_pool_block_size(pool), BS);
    ck_assert_ok(kv_pool_alloc(pool, 1, &b));
    ck_assert_uint_eq(b, 1);
    uint32_t c = 77;
    ck_assert_int_eq(kv_pool_alloc(pool, 1, &c), STATUS_FULL);
    ck_assert_uint_eq(c, 77);
    ck_assert_ok(kv_pool_alloc(pool, 0, &c));
    kv_pool_put(pool, b);
    ck_assert_uint_eq(kv_pool_free(pool), 1);
}
END_TEST

START_TEST(pool_alloc_best_fit)
{
    make(101, false);
    uint32_t all[100];
    ck_assert_ok(kv_pool_alloc(pool, 100, all));
    for (uint32_t i = 0; i < 100; i++)
        ck_assert_uint_eq(all[i], i + 1);
    /* Holes of 10, 3 and 5 blocks. */
    for (uint32_t b = 11; b <= 20; b++)
        kv_pool_put(pool, b);
    for (uint32_t b = 31; b <= 33; b++)
        kv_pool_put(pool, b);
    for (uint32_t b = 55; b >= 51; b--)
        kv_pool_put(pool, b);
    uint32_t got[16];
    ck_assert_ok(kv_pool_alloc(pool, 4, got));
    ck_assert_uint_eq(got[0], 51); /* the smallest hole that is large enough */
    ck_assert_uint_eq(got[3], 54);
    ck_assert_ok(kv_pool_alloc(pool, 12, got)); /* 10 + 3: the longest, then what fits the rest */
    for (uint32_t i = 0; i < 10; i++)
        ck_assert_uint_eq(got[i], 11 + i);
    ck_assert_uint_eq(got[10], 31);
    ck_assert_uint_eq(got[11], 32);
    ck_assert_uint_eq(kv_pool_free(pool), 2);
}
END_TEST

START_TEST(pool_refs)
{
    make(10, false);
    uint32_t b;
    ck_assert_ok(kv_pool_alloc(pool, 1, &b));
    kv_pool_get(pool, b);
    ck_assert_uint_eq(kv_pool_refs(pool, b), 2);
    kv_pool_put(pool, b);
    ck_assert_uint_eq(kv_pool_free(pool), 8);
    kv_pool_put(pool, b);
    ck_assert_uint_eq(kv_pool_free(pool), 9);
    ck_assert_uint_eq(kv_pool_refs(pool, b), 0);
}
END_TEST

static uint32_t runs(const uint32_t *blocks, uint32_t n)
{
    uint32_t r = n > 0;
    for (uint32_t i = 1; i < n; i++)
        r += blocks[i] != blocks[i - 1] + 1;
    return r;
}

START_TEST(pool_large_churn)
{
    /* 10^5 blocks with random lifetimes: nothing is lost, and when all has come back, the pool is
     * one run again. */
    enum { N = 100000, SEQS = 600 };
    make(N + 1, false);
    uint32_t *seq[SEQS] = {0}, len[SEQS] = {0};
    for (uint32_t t = 0; t < 20000; t++) {
        struct rng_block r = rng_philox(11, t, 0);
        uint32_t i = r.v[0] % SEQS;
        if (seq[i] != NULL) {
            put_all(seq[i], len[i]);
            free(seq[i]);
            seq[i] = NULL;
        } else {
            len[i] = 1 + r.v[1] % (r.v[2] % 4 == 0 ? 900 : 40);
            seq[i] = malloc(len[i] * sizeof *seq[i]);
            if (kv_pool_alloc(pool, len[i], seq[i]) != 0) {
                ck_assert_uint_lt(kv_pool_free(pool), len[i]);
                free(seq[i]);
                seq[i] = NULL;
            }
        }
    }
    for (uint32_t i = 0; i < SEQS; i++)
        if (seq[i] != NULL) {
            put_all(seq[i], len[i]);
            free(seq[i]);
        }
    ck_assert_uint_eq(kv_pool_free(pool), N);
    uint32_t *all = malloc(N * sizeof *all);
    ck_assert_ok(kv_pool_alloc(pool, N, all));
    ck_assert_uint_eq(runs(all, N), 1);
    free(all);
}
END_TEST

START_TEST(prefix_lookup_never_whole_prompt)
{
    /* B44: prompts of BS - 1, BS, BS + 1, 2 BS tokens, three times each: at least one token is
     * always left to compute. */
    make(64, true);
    int32_t t[2 * BS] = {5, 6, 7, 8, 9, 10, 11, 12};
    const uint32_t len[] = {BS - 1, BS, BS + 1, 2 * BS};
    for (uint32_t i = 0; i < 4; i++) {
        int32_t own[2 * BS];
        for (uint32_t j = 0; j < 2 * BS; j++)
            own[j] = t[j] + (int32_t)(100 * i);
        for (uint32_t round = 0; round < 3; round++)
            ck_assert_uint_eq(serve("", own, len[i]), round == 0 ? 0 : (len[i] - 1) / BS);
    }
    /* A strict prefix of a cached prompt, and a prompt that goes on from one. */
    ck_assert_uint_eq(serve("", (int32_t[]){305, 306, 307, 308, 309, 310}, 6), 1);
    int32_t more[3 * BS];
    for (uint32_t j = 0; j < 3 * BS; j++)
        more[j] = 305 + (int32_t)j;
    ck_assert_uint_eq(serve("", more, 3 * BS), 2);
    uint32_t b[1];
    ck_assert_uint_eq(kv_prefix_lookup(pool, "", 0, more, 3 * BS, 0, b), 0);
    ck_assert_uint_eq(kv_pool_free(pool), 63);
}
END_TEST

START_TEST(prefix_salts_do_not_share)
{
    /* B49 */
    make(256, true);
    int32_t t[10 * BS];
    for (int32_t i = 0; i < 10 * BS; i++)
        t[i] = i * i;
    ck_assert_uint_eq(serve("A", t, 10 * BS), 0);
    ck_assert_uint_eq(serve("B", t, 10 * BS), 0);
    ck_assert_uint_eq(serve("", t, 10 * BS), 0);
    ck_assert_uint_eq(serve("A", t, 10 * BS), 9);
    ck_assert_uint_eq(serve("AB", t, 10 * BS), 0);
    /* A salt may hold any bytes, NUL too. */
    uint32_t b[10];
    ck_assert_uint_eq(kv_prefix_lookup(pool, "A\0B", 3, t, 10 * BS, 9, b), 0);
    ck_assert_uint_eq(kv_prefix_lookup(pool, "A\0", 2, t, 10 * BS, 9, b), 0);
    /* Neither a salt that looks like ids nor the other way round. */
    ck_assert_uint_eq(kv_prefix_lookup(pool, t, sizeof t / 2, t + 5 * BS, 5 * BS, 4, b), 0);
    /* Too long a salt is not cached, and no error. */
    char *huge = calloc(1, KV_SALT_MAX + 1);
    ck_assert_ok(kv_pool_alloc(pool, 10, b));
    kv_prefix_insert(pool, huge, KV_SALT_MAX + 1, t, 10 * BS, b);
    uint32_t c[10];
    ck_assert_uint_eq(kv_prefix_lookup(pool, huge, KV_SALT_MAX + 1, t, 10 * BS, 9, c), 0);
    kv_prefix_insert(pool, huge, KV_SALT_MAX, t, 10 * BS, b);
    ck_assert_uint_eq(kv_prefix_lookup(pool, huge, KV_SALT_MAX, t, 10 * BS, 9, c), 9);
    ck_assert_mem_eq(b, c, 9 * sizeof *b);
    free(huge);
    put_all(b, 10);
    put_all(c, 9);
    ck_assert_uint_eq(kv_pool_free(pool), 255);
}
END_TEST

START_TEST(prefix_exact_ids)
{
    /* Ids that read the same when written one after the other are different blocks; and the same
     * ids below another parent are another block. */
    make(64, true);
    int32_t a[] = {1, 23, 4, 5, 0}, b[] = {12, 3, 4, 5, 0}, c[] = {1, 2, 34, 5, 0};
    ck_assert_uint_eq(serve("", a, 5), 0);
    ck_assert_uint_eq(serve("", b, 5), 0);
    ck_assert_uint_eq(serve("", c, 5), 0);
    ck_assert_uint_eq(serve("", a, 5), 1);
    int32_t x[] = {1, 1, 1, 1, 9, 9, 9, 9, 0}, y[] = {2, 2, 2, 2, 9, 9, 9, 9, 0};
    int32_t z[] = {9, 9, 9, 9, 0};
    ck_assert_uint_eq(serve("", x, 9), 0);
    ck_assert_uint_eq(serve("", y, 9), 0);
    ck_assert_uint_eq(serve("", z, 5), 0);
    uint32_t bx[2], by[2];
    ck_assert_uint_eq(kv_prefix_lookup(pool, "", 0, x, 9, 2, bx), 2);
    ck_assert_uint_eq(kv_prefix_lookup(pool, "", 0, y, 9, 2, by), 2);
    ck_assert_uint_ne(bx[1], by[1]);
}
END_TEST

START_TEST(prefix_evicts_only_when_needed)
{
    make(11, true);
    int32_t a[] = {1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3}, b[] = {7, 7, 7, 7, 8, 8, 8, 8};
    serve("", a, 12);
    serve("", b, 8);
    ck_assert_uint_eq(kv_prefix_stats(pool).cached_blocks, 5);
    ck_assert_uint_eq(kv_pool_free(pool), 10);
    uint32_t got[16];
    ck_assert_int_eq(kv_pool_alloc(pool, 11, got), STATUS_FULL);
    ck_assert_uint_eq(kv_prefix_stats(pool).cached_blocks, 5);
    ck_assert_ok(kv_pool_alloc(pool, 5, got));
    ck_assert_uint_eq(kv_prefix_stats(pool).cached_blocks, 5);
    ck_assert_ok(kv_pool_alloc(pool, 1, got + 5)); /* the end of the longest unused prompt */
    ck_assert_uint_eq(kv_prefix_stats(pool).evicted, 1);
    uint32_t hit[3];
    ck_assert_uint_eq(kv_prefix_lookup(pool, "", 0, a, 12, 3, hit), 2);
    /* What is in use is not evicted: only the two blocks of b are left to take. */
    ck_assert_uint_eq(kv_pool_free(pool), 2);
    ck_assert_int_eq(kv_pool_alloc(pool, 3, got + 6), STATUS_FULL);
    ck_assert_ok(kv_pool_alloc(pool, 2, got + 6));
    ck_assert_uint_eq(kv_prefix_stats(pool).cached_blocks, 2);
    put_all(hit, 2);
    kv_prefix_clear(pool);
    ck_assert_uint_eq(kv_prefix_stats(pool).cached_blocks, 0);
    put_all(got, 8);
    ck_assert_uint_eq(kv_pool_free(pool), 10);
}
END_TEST

START_TEST(prefix_parent_goes_below_used_child)
{
    /* Two sequences computed the same first block at once; the second one's continuation is cached
     * below the first one's block. That block is free to take although its child is in use. */
    make(4, true);
    int32_t t[] = {1, 2, 3, 4, 5, 6, 7, 8};
    uint32_t a[1], b[2], c[2];
    ck_assert_ok(kv_pool_alloc(pool, 1, a));
    ck_assert_ok(kv_pool_alloc(pool, 2, b));
    kv_prefix_insert(pool, "", 0, t, 4, a);
    kv_prefix_insert(pool, "", 0, t, 8, b);
    kv_pool_put(pool, a[0]);
    ck_assert_uint_eq(kv_pool_free(pool), 1);
    ck_assert_ok(kv_pool_alloc(pool, 1, c));
    ck_assert_uint_eq(c[0], a[0]);
    ck_assert_uint_eq(kv_prefix_stats(pool).cached_blocks, 0);
    ck_assert_uint_eq(kv_prefix_lookup(pool, "", 0, t, 8, 2, a), 0);
    kv_prefix_insert(pool, "", 0, t, 8, b); /* it can be remembered again */
    ck_assert_uint_eq(kv_prefix_lookup(pool, "", 0, t, 8, 2, c), 2);
    ck_assert_mem_eq(b, c, sizeof b);
}
END_TEST

START_TEST(prefix_off)
{
    make(16, false);
    int32_t t[] = {1, 2, 3, 4, 5};
    ck_assert_uint_eq(serve("", t, 5), 0);
    ck_assert_uint_eq(serve("", t, 5), 0);
    ck_assert_uint_eq(kv_prefix_stats(pool).cached_blocks, 0);
    ck_assert_uint_eq(kv_pool_free(pool), 15);
}
END_TEST

/* The model: what each block holds, by full prefix, and who uses it. */
enum { M_BLOCKS = 40, M_SEQS = 12, M_LEN = 8 * BS };

struct naive_seq {
    bool live;
    char salt[2];
    uint32_t n, hit; /* tokens, cached blocks */
    int32_t tokens[M_LEN];
    uint32_t blocks[M_LEN / BS];
};

static void naive_check(const struct naive_seq *seqs)
{
    uint32_t refs[M_BLOCKS] = {0}, used = 0;
    for (uint32_t i = 0; i < M_SEQS; i++)
        for (uint32_t j = 0; seqs[i].live && j < (seqs[i].n + BS - 1) / BS; j++)
            refs[seqs[i].blocks[j]]++;
    for (uint32_t b = 1; b < M_BLOCKS; b++) {
        if (kv_pool_refs(pool, b) != refs[b]) /* an assertion is a system call; there are many */
            ck_abort_msg("block %u: %u references, not %u", b, kv_pool_refs(pool, b), refs[b]);
        used += refs[b] > 0;
    }
    if (refs[0] != 0 || kv_pool_free(pool) != M_BLOCKS - 1 - used)
        ck_abort_msg("%u free, not %u", kv_pool_free(pool), M_BLOCKS - 1 - used);
}

START_TEST(pool_random_against_model)
{
    make(M_BLOCKS, true);
    static struct naive_seq seqs[M_SEQS];
    memset(seqs, 0, sizeof seqs);
    /* What a block last held when it was written: salt and the whole prefix up to its end. */
    static struct {
        char salt[2];
        uint32_t n;
        int32_t tokens[M_LEN];
    } holds[M_BLOCKS];
    memset(holds, 0, sizeof holds);
    uint64_t hits = 0;
    for (uint32_t t = 0; t < 30000; t++) {
        struct rng_block r = rng_philox(_i + 1, t, 9);
        struct naive_seq *q = &seqs[r.v[0] % M_SEQS];
        if (q->live) {
            if (r.v[1] % 2 == 0) { /* remembers what it computed, perhaps not all of it */
                uint32_t part = r.v[2] % 3 == 0 ? q->n / 2 : q->n;
                kv_prefix_insert(pool, q->salt, strlen(q->salt), q->tokens, part, q->blocks);
            } else {
                put_all(q->blocks, (q->n + BS - 1) / BS);
                q->live = false;
            }
        } else if (r.v[1] % 64 == 0) {
            kv_prefix_clear(pool);
        } else {
            /* Few different ids, so that prefixes are shared, part, and meet again. */
            q->n = 1 + r.v[2] % M_LEN;
            snprintf(q->salt, sizeof q->salt, "%s", r.v[3] % 4 == 0 ? "s" : "");
            for (uint32_t i = 0; i < q->n; i++)
                q->tokens[i] = i % BS != 0 ? 7 : (int32_t)(rng_philox(t, i, 3).v[0] % 2);
            uint32_t want = (q->n + BS - 1) / BS, before = kv_pool_free(pool);
            q->hit = kv_prefix_lookup(pool, q->salt, strlen(q->salt), q->tokens, q->n,
                                      (q->n - 1) / BS, q->blocks);
            ck_assert_uint_le(q->hit, (q->n - 1) / BS);
            hits += q->hit;
            for (uint32_t i = 0; i < q->hit; i++) { /* it holds exactly this prefix */
                uint32_t b = q->blocks[i], n = (i + 1) * BS;
                ck_assert(holds[b].n == n && strcmp(holds[b].salt, q->salt) == 0 &&
                          memcmp(holds[b].tokens, q->tokens, n * sizeof *q->tokens) == 0);
            }
            if (kv_pool_alloc(pool, want - q->hit, q->blocks + q->hit) != 0) {
                ck_assert_uint_lt(kv_pool_free(pool), want - q->hit);
                put_all(q->blocks, q->hit);
                ck_assert_uint_eq(kv_pool_free(pool), before);
            } else {
                q->live = true;
                for (uint32_t i = q->hit; i < want; i++) {
                    uint32_t b = q->blocks[i], n = (i + 1) * BS;
                    holds[b].n = n < q->n ? n : q->n;
                    memcpy(holds[b].salt, q->salt, sizeof q->salt);
                    memcpy(holds[b].tokens, q->tokens, holds[b].n * sizeof *q->tokens);
                }
            }
        }
        naive_check(seqs);
    }
    ck_assert_uint_gt(hits, 1000);
    struct kv_prefix_stats st = kv_prefix_stats(pool);
    ck_assert_uint_eq(st.hit_blocks, hits);
    ck_assert_uint_gt(st.evicted, 100);
    for (uint32_t i = 0; i < M_SEQS; i++)
        if (seqs[i].live)
            put_all(seqs[i].blocks, (seqs[i].n + BS - 1) / BS);
    kv_prefix_clear(pool);
    ck_assert_uint_eq(kv_prefix_stats(pool).cached_blocks, 0);
    uint32_t all[M_BLOCKS];
    ck_assert_ok(kv_pool_alloc(pool, M_BLOCKS - 1, all));
    ck_assert_uint_eq(runs(all, M_BLOCKS - 1), 1);
}
END_TEST

START_TEST(prefix_large)
{
    /* A cache of 10^5 blocks that is always full: long prompts under many salts. */
    make(100001, true);
    enum { LEN = 400 };
    int32_t *t = malloc(LEN * BS * sizeof *t);
    uint32_t *b = malloc(LEN * sizeof *b);
    for (uint32_t i = 0; i < 600; i++) {
        char salt[16];
        int n = snprintf(salt, sizeof salt, "tenant-%u", i);
        for (uint32_t j = 0; j < LEN * BS; j++)
            t[j] = (int32_t)(rng_philox(i, j, 1).v[0] % 50000);
        ck_assert_uint_eq(kv_prefix_lookup(pool, salt, (size_t)n, t, LEN * BS, LEN, b), 0);
        ck_assert_ok(kv_pool_alloc(pool, LEN, b));
        kv_prefix_insert(pool, salt, (size_t)n, t, LEN * BS, b);
        put_all(b, LEN);
    }
    ck_assert_uint_eq(kv_prefix_stats(pool).cached_blocks, 100000);
    ck_assert_uint_eq(kv_prefix_lookup(pool, "tenant-599", 10, t, LEN * BS, LEN, b), LEN);
    put_all(b, LEN);
    free(t);
    free(b);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("pool");
    TCase *t = tcase_create("blocks");
    tcase_add_checked_fixture(t, NULL, teardown);
    tcase_add_test(t, pool_create_limits);
    tcase_add_test(t, pool_alloc_best_fit);
    tcase_add_test(t, pool_refs);
    tcase_add_test(t, pool_large_churn);
    suite_add_tcase(s, t);
    t = tcase_create("prefix");
    tcase_add_checked_fixture(t, NULL, teardown);
    tcase_add_test(t, prefix_lookup_never_whole_prompt);
    tcase_add_test(t, prefix_salts_do_not_share);
    tcase_add_test(t, prefix_exact_ids);
    tcase_add_test(t, prefix_evicts_only_when_needed);
    tcase_add_test(t, prefix_parent_goes_below_used_child);
    tcase_add_test(t, prefix_off);
    tcase_add_test(t, prefix_large);
    tcase_add_loop_test(t, pool_random_against_model, 0, 4);
    tcase_set_timeout(t, 60);
    suite_add_tcase(s, t);
    return s;
}
