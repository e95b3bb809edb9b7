/* pace: targets at their edges. */
#include "routerd/pace.h"

#include "tests/harness.h"

static const struct pace_targets targets = {.ttft_ms = 100, .tpot_ms = 10};

static struct pace paced(uint64_t first, uint64_t each, uint32_t n)
{
    struct pace p = {0};
    pace_init(&targets);
    for (uint32_t i = 0; i < n; i++)
        pace_token(&p, 1000, 1000 + first + i * each, 1, 2);
    return p;
}

START_TEST(pace_meets_both)
{
    struct pace p = paced(100, 10, 50);
    ck_assert(pace_meets(&p, 1000, &targets));
    p = paced(101, 10, 50);
    ck_assert(!pace_meets(&p, 1000, &targets));
    p = paced(100, 11, 50);
    ck_assert(!pace_meets(&p, 1000, &targets));
}
END_TEST

START_TEST(pace_meets_short_answers)
{
    struct pace p = paced(100, 1000, 1); /* one token has no time per further token */
    ck_assert(pace_meets(&p, 1000, &targets));
    p = paced(100, 10, 0);
    ck_assert(!pace_meets(&p, 1000, &targets));
    pace_end(&p, 1000); /* nothing came: not an answer */
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("pace");
    TCase *t = tcase_create("pace");
    tcase_add_test(t, pace_meets_both);
    tcase_add_test(t, pace_meets_short_answers);
    suite_add_tcase(s, t);
    return s;
}
