/* Pairing policy: least loaded, compatible, within capacity; over random states. */
#include "routerd/pick.h"
#include "tests/harness.h"

#include <stdlib.h>

static struct pick_worker worker(bool decode, uint64_t instance)
{
    return (struct pick_worker){.usable = true,
                                .decode = decode,
                                .instance = instance,
                                .credits = 8,
                                .kv_free = 100,
                                .kv_blocks = 100,
                                .kv_block_size = 16,
                                .context = 2048};
}

static const struct pick_request small = {.n_tokens = 50};

START_TEST(pick_pair_least_loaded)
{
    struct pick_worker w[4] = {worker(false, 1), worker(false, 2), worker(true, 3),
                               worker(true, 4)};
    uint32_t p, d;
    w[0].queued_tokens = 4000;
    w[2].running = 5;
    ck_assert_int_eq(pick_pair(w, 4, &small, &p, &d), PICK_OK);
    ck_assert_uint_eq(p, 1);
    ck_assert_uint_eq(d, 3);
    w[1].queued_tokens = 9000;
    w[3].running = 6;
    ck_assert_int_eq(pick_pair(w, 4, &small, &p, &d), PICK_OK);
    ck_assert_uint_eq(p, 0);
    ck_assert_uint_eq(d, 2);
}
END_TEST

/* Another path of a prompt goes where the prompt is, whatever the load, if there is room for it. */
START_TEST(pick_pair_near)
{
    struct pick_worker w[4] = {worker(false, 1), worker(false, 2), worker(true, 3),
                               worker(true, 4)};
    struct pick_request path = {.n_tokens = 1500, .near_prefill = 2, .near_decode = 4};
    uint32_t p, d;
    w[1].queued_tokens = 9000;
    w[3].running = 60;
    w[3].kv_free = 2; /* the prompt is not needed once more */
    ck_assert_int_eq(pick_pair(w, 4, &path, &p, &d), PICK_OK);
    ck_assert(p == 1 && d == 3);
    w[3].kv_free = 1;
    ck_assert_int_eq(pick_pair(w, 4, &path, &p, &d), PICK_OK);
    ck_assert(p == 1 && d == 2);
    w[3].kv_free = 50;
    path.avoid[0] = 4; /* it failed it */
    ck_assert_int_eq(pick_pair(w, 4, &path, &p, &d), PICK_OK);
    ck_assert_uint_eq(d, 2);
    w[1].credits = 0;
    ck_assert_int_eq(pick_pair(w, 4, &path, &p, &d), PICK_OK);
    ck_assert_uint_eq(p, 0);
}
END_TEST

START_TEST(pick_pair_only_compatible)
{
    struct pick_worker w[3] = {worker(false, 1), worker(true, 2), worker(true, 3)};
    uint32_t p, d;
    w[1].group = 1;
    w[2].running = 50;
    ck_assert_int_eq(pick_pair(w, 3, &small, &p, &d), PICK_OK);
    ck_assert_uint_eq(d, 2);
    w[2].group = 2;
    ck_assert_int_ne(pick_pair(w, 3, &small, &p, &d), PICK_OK);
}
END_TEST

START_TEST(pick_pair_says_what_is_missing)
{
    struct pick_worker w[2] = {worker(false, 1), worker(true, 2)};
    uint32_t p, d;
    w[1].usable = false;
    ck_assert_int_eq(pick_pair(w, 2, &small, &p, &d), PICK_NO_DECODE);
    w[1].usable = true;
    w[0].usable = false;
    ck_assert_int_eq(pick_pair(w, 2, &small, &p, &d), PICK_NO_PREFILL);
    w[0].usable = true;
    w[0].credits = 0;
    ck_assert_int_eq(pick_pair(w, 2, &small, &p, &d), PICK_BUSY);
    struct pick_request big = {.n_tokens = 1585};
    ck_assert_int_eq(pick_pair(w, 2, &big, &p, &d), PICK_TOO_LONG);
    ck_assert_uint_eq(pick_context(w, 2, 0), 1584);
    w[1].usable = false;
    ck_assert_uint_eq(pick_context(w, 2, 0), 0);
}
END_TEST

START_TEST(pick_pair_stays_in_its_pool)
{
    struct pick_worker w[4] = {worker(false, 1), worker(true, 2), worker(false, 3),
                               worker(true, 4)};
    struct pick_request other = {.n_tokens = 10, .pool = 1};
    uint32_t p = 9, d = 9;
    w[2].pool = w[3].pool = 1;
    w[2].group = w[3].group = 7;
    w[2].queued_tokens = 100000;
    ck_assert_int_eq(pick_pair(w, 4, &small, &p, &d), PICK_OK);
    ck_assert_uint_eq(p * 10 + d, 1);
    ck_assert_int_eq(pick_pair(w, 4, &other, &p, &d), PICK_OK);
    ck_assert_uint_eq(p * 10 + d, 23);
    ck_assert_uint_eq(pick_context(w, 4, 1), 1584);
    w[3].usable = false;
    ck_assert_int_eq(pick_pair(w, 4, &other, &p, &d), PICK_NO_DECODE);
    ck_assert_uint_eq(pick_context(w, 4, 1), 0);
    ck_assert_uint_eq(pick_context(w, 4, 0), 1584);
}
END_TEST

START_TEST(pick_pair_avoids_and_keeps_numerics)
{
    struct pick_worker w[4] = {worker(false, 1), worker(false, 2), worker(true, 3),
                               worker(true, 4)};
    uint32_t p, d;
    struct pick_request r = {.n_tokens = 50, .avoid = {3, 0}};
    w[3].running = 60;
    ck_assert_int_eq(pick_pair(w, 4, &r, &p, &d), PICK_OK);
    ck_assert_uint_eq(d, 3); /* instance 4, though busier */
    w[3].usable = false;
    ck_assert_int_eq(pick_pair(w, 4, &r, &p, &d), PICK_OK);
    ck_assert_uint_eq(d, 2); /* better the avoided one than none */
    w[3].usable = true;
    w[0].numerics = w[2].numerics = 7;
    r = (struct pick_request){.n_tokens = 50, .numerics = 7};
    w[0].queued_tokens = 100000;
    ck_assert_int_eq(pick_pair(w, 4, &r, &p, &d), PICK_OK);
    ck_assert_uint_eq(p, 0);
    ck_assert_uint_eq(d, 2);
}
END_TEST

START_TEST(pick_move_where_there_is_room)
{
    struct pick_worker w[4] = {worker(true, 1), worker(true, 2), worker(true, 3), worker(false, 4)};
    struct pick_request r = {.n_tokens = 160};
    uint32_t to = 9;
    ck_assert(!pick_move(w, 4, &r, 0, &to)); /* they do not know how */
    for (int i = 0; i < 4; i++)
        w[i].moves = true;
    w[0].usable = false; /* it drains, perhaps */
    w[1].running = 3;
    ck_assert(pick_move(w, 4, &r, 0, &to) && to == 2);
    w[2].numerics = 7; /* it would draw other tokens */
    ck_assert(pick_move(w, 4, &r, 0, &to) && to == 1);
    w[1].group = 1;
    ck_assert(!pick_move(w, 4, &r, 0, &to));
    w[1].group = 0;
    w[1].usable = false;
    ck_assert(!pick_move(w, 4, &r, 0, &to));
    w[1].usable = true;
    w[1].kv_free = 10 + 4 + 1 + 3; /* its blocks, those it may grow into, one for each sequence */
    ck_assert(!pick_move(w, 4, &r, 0, &to));
    w[1].kv_free++;
    ck_assert(pick_move(w, 4, &r, 0, &to) && to == 1);
    w[1].context = 159;
    ck_assert(!pick_move(w, 4, &r, 0, &to));
}
END_TEST

/* Whatever the state: a pair that is returned is usable, compatible, has credit and room; and there
 * is none only if no such pair exists. */
START_TEST(pick_pair_random_states)
{
    srand(7);
    for (int round = 0; round < 20000; round++) {
        struct pick_worker w[6];
        uint32_t p = 99, d = 99, n = 1 + (uint32_t)rand() % 6;
        struct pick_request r = {.n_tokens = (uint32_t)rand() % 3000,
                                 .numerics = (uint64_t)rand() % 3};
        for (uint32_t i = 0; i < n; i++) {
            w[i] = worker(rand() % 2, i + 1);
            w[i].usable = rand() % 4 > 0;
            w[i].group = (uint32_t)rand() % 2;
            w[i].numerics = 1 + (uint64_t)rand() % 2;
            w[i].credits = (uint32_t)rand() % 3;
            w[i].running = (uint32_t)rand() % 10;
            w[i].kv_free = (uint32_t)rand() % 101;
            w[i].context = 1000 + (uint32_t)rand() % 2000;
        }
        bool exists = false;
        for (uint32_t i = 0; i < n; i++) {
            for (uint32_t j = 0; j < n; j++)
                exists |= w[i].usable && w[j].usable && !w[i].decode && w[j].decode &&
                          w[i].group == w[j].group && w[i].credits && r.n_tokens <= w[i].context &&
                          r.n_tokens <= w[j].context && r.n_tokens <= 1584;
        }
        enum pick_result got = pick_pair(w, n, &r, &p, &d);
        ck_assert_int_eq(got == PICK_OK, exists);
        if (got != PICK_OK)
            continue;
        ck_assert(w[p].usable && w[d].usable && !w[p].decode && w[d].decode);
        ck_assert(w[p].group == w[d].group && w[p].credits > 0);
        ck_assert(r.n_tokens <= w[p].context && r.n_tokens <= w[d].context);
    }
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("pick");
    TCase *t = tcase_create("pick");
    tcase_add_test(t, pick_pair_least_loaded);
    tcase_add_test(t, pick_pair_near);
    tcase_add_test(t, pick_pair_only_compatible);
    tcase_add_test(t, pick_pair_stays_in_its_pool);
    tcase_add_test(t, pick_pair_says_what_is_missing);
    tcase_add_test(t, pick_pair_avoids_and_keeps_numerics);
    tcase_add_test(t, pick_move_where_there_is_room);
    tcase_add_test(t, pick_pair_random_states);
    suite_add_tcase(s, t);
    return s;
}
