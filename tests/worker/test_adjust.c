/* Tests of common/worker/adjust: counts, bias, minimum length, banned words and allowed tokens; the
 * same after a hand-over at every place. */
#include "common/worker/adjust.h"

#include <string.h>

#include "common/base/rng.h"
#include "tests/harness.h"

#define VOCAB 300

static const int32_t prompt[] = {3, 7, 3, 9};
static const int32_t stops[] = {1, 2};

static struct proto_job job(void)
{
    return (struct proto_job){.prompt = {prompt, 4}, .stop_ids = {stops, 2}, .max_tokens = 100};
}

static struct adjust *made(const struct proto_job *j)
{
    struct adjust *a = NULL;
    ck_assert(adjust_wanted(j));
    ck_assert_ok(adjust_create(j, VOCAB, &a));
    return a;
}

static const struct sample_adjust *find(const struct sample_params *p, int32_t id)
{
    const struct sample_adjust *found = NULL;
    for (uint32_t i = 0; i < p->n_adjust; i++) {
        if (p->adjust[i].id != id)
            continue;
        ck_assert(!found); /* each id once */
        found = &p->adjust[i];
    }
    return found;
}

static bool banned(const struct sample_params *p, int32_t id)
{
    for (uint32_t i = 0; i < p->n_banned; i++) {
        if (p->banned[i] == id)
            return true;
    }
    return false;
}

static struct sample_params row(struct adjust *a, uint32_t ahead)
{
    struct sample_params p = {.temperature = 1};
    adjust_row(a, ahead, &p);
    return p;
}

START_TEST(penalties_count_the_answer)
{
    struct proto_job j = job();
    ck_assert(!adjust_wanted(&j));
    j.sampling.frequency = 0.5f;
    j.sampling.presence = 0.25f;
    struct adjust *a = made(&j);
    ck_assert(adjust_follows(a));
    ck_assert_uint_eq(row(a, 0).n_adjust, 0); /* the prompt does not count */
    for (int i = 0; i < 3; i++)
        ck_assert_ok(adjust_feed(a, 7));
    ck_assert_ok(adjust_feed(a, 8));
    struct sample_params p = row(a, 0);
    ck_assert_uint_eq(p.n_adjust, 2);
    ck_assert_uint_eq(find(&p, 7)->count, 3);
    ck_assert_uint_eq(find(&p, 8)->count, 1);
    ck_assert_float_eq(sample_adjusted(4, find(&p, 7), &p), 4 - 1.5f - 0.25f);
    ck_assert_float_eq(sample_adjusted(-INFINITY, find(&p, 7), &p), -INFINITY);
    adjust_destroy(a);
}
END_TEST

START_TEST(repetition_counts_the_prompt)
{
    struct proto_job j = job();
    j.sampling.repetition = 2;
    struct adjust *a = made(&j);
    struct sample_params p = row(a, 0);
    ck_assert_uint_eq(p.n_adjust, 3);
    ck_assert(find(&p, 3)->seen && find(&p, 3)->count == 0);
    ck_assert_float_eq(sample_adjusted(4, find(&p, 3), &p), 2);
    ck_assert_float_eq(sample_adjusted(-4, find(&p, 3), &p), -8);
    ck_assert_ok(adjust_feed(a, 20));
    p = row(a, 0);
    ck_assert(find(&p, 20)->seen);
    adjust_destroy(a);
}
END_TEST

START_TEST(bias_holds_ahead)
{
    static const int32_t ids[] = {5, 299};
    static const float bias[] = {-100, 2.5f};
    struct proto_job j = job();
    j.sampling.bias_ids = (struct proto_ids){ids, 2};
    j.sampling.bias = (struct proto_bytes){bias, sizeof bias};
    struct adjust *a = made(&j);
    ck_assert(!adjust_follows(a));
    struct sample_params p = row(a, 1);
    ck_assert_ok(adjust_feed(a, 5));
    ck_assert_uint_eq(p.n_adjust, 2); /* feeding changes nothing, so the row may run meanwhile */
    ck_assert_float_eq(sample_adjusted(1, find(&p, 5), &p), -99);
    ck_assert_float_eq(sample_adjusted(1, find(&p, 299), &p), 3.5f);
    adjust_destroy(a);
}
END_TEST

START_TEST(no_end_before_min_tokens)
{
    struct proto_job j = job();
    j.sampling.min_tokens = 2;
    struct adjust *a = made(&j);
    for (uint32_t i = 0; i < 4; i++) {
        struct sample_params now = row(a, 0), p = row(a, 1);
        ck_assert_int_eq(banned(&p, 1), i + 1 < 2);
        now = row(a, 0);
        ck_assert_int_eq(banned(&now, 1), i < 2);
        ck_assert_int_eq(banned(&now, 2), i < 2);
        ck_assert_ok(adjust_feed(a, 50));
    }
    adjust_destroy(a);
}
END_TEST

START_TEST(words_are_cut_at_their_last_token)
{
    static const int32_t words[] = {40, 41, 42, 50, 41, 60}, sizes[] = {3, 1, 2};
    struct proto_job j = job();
    j.sampling.bad_words = (struct proto_ids){words, 6};
    j.sampling.bad_word_sizes = (struct proto_ids){sizes, 3};
    struct adjust *a = made(&j);
    static const struct {
        int32_t feed;
        bool b42, b60;
    } steps[] = {{40, false, false}, {41, true, true}, {41, false, true}, {40, false, false},
                 {40, false, false}, {41, true, true}, {9, false, false}};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        ck_assert_ok(adjust_feed(a, steps[i].feed));
        struct sample_params p = row(a, 0);
        ck_assert(banned(&p, 50)); /* a word of one token, always */
        ck_assert_int_eq(banned(&p, 42), steps[i].b42);
        ck_assert_int_eq(banned(&p, 60), steps[i].b60);
    }
    adjust_destroy(a);
}
END_TEST

START_TEST(allowed_tokens_and_masks)
{
    static const int32_t only[] = {1, 4, 290}, never[] = {4, 290};
    struct proto_job j = job();
    j.sampling.allowed = (struct proto_ids){only, 3};
    j.sampling.banned = (struct proto_ids){never, 1};
    struct adjust *a = made(&j);
    struct sample_params p = row(a, 0);
    ck_assert(p.allowed[0] == (1u << 1 | 1u << 4) && p.allowed[290 / 32] == 1u << 290 % 32);
    ck_assert(banned(&p, 4));
    /* A grammar's mask: what both allow; where that is nothing, the grammar's. */
    uint32_t mask[VOCAB / 32 + 1] = {1u << 1 | 1u << 6};
    adjust_mask(a, mask, VOCAB / 32 + 1, &p);
    ck_assert_uint_eq(mask[0], 1u << 1);
    mask[0] = 1u << 6;
    adjust_mask(a, mask, VOCAB / 32 + 1, &p);
    ck_assert_uint_eq(mask[0], 1u << 6);
    mask[0] = 1u << 4; /* allowed by both, and banned */
    p = row(a, 0);
    adjust_mask(a, mask, VOCAB / 32 + 1, &p);
    ck_assert(mask[0] == 1u << 4 && p.n_banned == 0);
    adjust_destroy(a);
    j.sampling.allowed = (struct proto_ids){never, 2};
    j.sampling.banned = (struct proto_ids){never, 2};
    a = made(&j);
    ck_assert_uint_eq(row(a, 0).n_banned, 0); /* something must be drawn */
    adjust_destroy(a);
}
END_TEST

/* What a row gets depends on (job, emitted ids) alone, wherever they were fed. */
START_TEST(moved_anywhere_it_is_the_same)
{
    static const int32_t words[] = {5, 6, 5, 5, 5}, sizes[] = {2, 3};
    enum { N = 300 };
    int32_t ids[N];
    for (int i = 0; i < N; i++)
        ids[i] = (int32_t)(rng_u64() % (i % 2 ? 8 : VOCAB));
    struct proto_job j = job();
    j.sampling = (struct proto_sampling){.frequency = 1,
                                         .repetition = 1.5f,
                                         .min_tokens = N / 2,
                                         .bad_words = {words, 5},
                                         .bad_word_sizes = {sizes, 2}};
    struct adjust *a = made(&j);
    for (int at = 0; at < N; at++) {
        if (at % 13 == 0) {
            struct proto_job moved = j;
            moved.emitted = (struct proto_ids){ids, (size_t)at};
            struct adjust *b = made(&moved);
            struct sample_params x = row(a, 0), y = row(b, 0);
            ck_assert_uint_eq(x.n_adjust, y.n_adjust);
            for (uint32_t i = 0; i < x.n_adjust; i++) {
                const struct sample_adjust *other = find(&y, x.adjust[i].id);
                ck_assert_ptr_nonnull(other);
                ck_assert_mem_eq(other, &x.adjust[i], sizeof *other);
            }
            ck_assert_uint_eq(x.n_banned, y.n_banned);
            if (x.n_banned)
                ck_assert_mem_eq(x.banned, y.banned, x.n_banned * sizeof *x.banned);
            adjust_destroy(b);
        }
        ck_assert_ok(adjust_feed(a, ids[at]));
    }
    adjust_destroy(a);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("adjust");
    TCase *t = tcase_create("adjust");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, penalties_count_the_answer);
    tcase_add_test(t, repetition_counts_the_prompt);
    tcase_add_test(t, bias_holds_ahead);
    tcase_add_test(t, no_end_before_min_tokens);
    tcase_add_test(t, words_are_cut_at_their_last_token);
    tcase_add_test(t, allowed_tokens_and_masks);
    tcase_add_test(t, moved_anywhere_it_is_the_same);
    suite_add_tcase(s, t);
    return s;
}
