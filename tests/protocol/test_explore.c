/* The protocol under every order of events: tokens once and in order, one outcome for each request,
 * no block owned twice, no ticket used again, no reservation after its CANCEL, nothing that waits
 * without a deadline, and every block free at the end.
 *
 * by_chance draws runs from seeds; every_order plays all runs of a tiny cluster that differ from
 * the ordinary one at up to so many points (an event before its turn, or a fault). A run that fails
 * is played again with a trace, and by hand with EXPLORE=cuts:16253
 * build/tests/protocol/test_explore            a seed EXPLORE='pair, kill/0.0.3.1'
 * build/tests/protocol/test_explore  a path LONG=1 tries more. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "common/base/log.h"
#include "tests/harness.h"
#include "tests/protocol/explore.h"

#define WORLD .n_prefill = 2, .n_decode = 2, .layers = 2, .blocks = 20
#define MOVES WORLD, .n_seqs = 2, .prompt = {3, 4}, .answer = {9, 8}, .mixed = true
#define REPLICAS                                                                                   \
    WORLD, .n_seqs = 2, .prompt = {3, 4}, .answer = {11, 8}, .prefix_cache = true, .replicas = true
#define TWO WORLD, .n_seqs = 2, .prompt = {3, 4}, .answer = {4, 3}

static const struct scenario by_seed[] = {
    {.name = "calm", WORLD, .n_seqs = 2, .prompt = {3, 4}, .answer = {3, 1}, .prefix_cache = true},
    {.name = "kills", TWO, .kills = 2, .percent = 4},
    {.name = "cuts", TWO, .cuts = 3, .cancels = 1, .percent = 6},
    {.name = "tears",
     TWO,
     .tears = 2,
     .drops = 1,
     .repeats = 2,
     .flips = 2,
     .percent = 8,
     .prefix_cache = true},
    {.name = "stops", TWO, .stops = 2, .kills = 1, .percent = 5},
    {.name = "full pool",
     .n_prefill = 1,
     .n_decode = 1,
     .layers = 1,
     .blocks = 7,
     .n_seqs = 3,
     .prompt = {2, 3, 2},
     .answer = {7, 6, 4},
     .kills = 1,
     .cuts = 1,
     .tears = 1,
     .flips = 1,
     .cancels = 1,
     .percent = 5},
    {.name = "everything",
     WORLD,
     .n_seqs = 3,
     .prompt = {3, 4, 5},
     .answer = {4, 3, 2},
     .kills = 2,
     .cuts = 2,
     .tears = 2,
     .drops = 1,
     .repeats = 2,
     .flips = 2,
     .stops = 1,
     .cancels = 1,
     .percent = 8,
     .prefix_cache = true},
    {.name = "mixed numerics", TWO, .mixed = true, .kills = 1, .cuts = 1, .stops = 2, .percent = 6},
    {.name = "moves", MOVES, .moves = 3, .kills = 1, .cuts = 1, .percent = 12},
    {.name = "moves, links",
     MOVES,
     .moves = 3,
     .tears = 2,
     .drops = 1,
     .repeats = 2,
     .flips = 1,
     .cancels = 1,
     .percent = 12,
     .prefix_cache = true},
    {.name = "moves, stops", MOVES, .moves = 3, .stops = 1, .tears = 1, .cuts = 1, .percent = 12},
    {.name = "moves, router dies", MOVES, .moves = 2, .deaths = 1, .cuts = 1, .percent = 8},
    {.name = "moves, full pool",
     .n_prefill = 1,
     .n_decode = 2,
     .layers = 1,
     .blocks = 8,
     .n_seqs = 3,
     .prompt = {2, 3, 2},
     .answer = {7, 6, 8},
     .moves = 4,
     .kills = 1,
     .tears = 1,
     .percent = 12},
    {.name = "replicas", REPLICAS, .kills = 1, .percent = 3},
    {.name = "replicas, cuts", REPLICAS, .kills = 1, .cuts = 2, .cancels = 1, .percent = 4},
    {.name = "replicas, links",
     REPLICAS,
     .kills = 1,
     .tears = 2,
     .drops = 1,
     .repeats = 2,
     .flips = 2,
     .percent = 6},
    {.name = "replicas, stops", REPLICAS, .stops = 2, .kills = 1, .moves = 2, .percent = 5},
    {.name = "replicas, router", REPLICAS, .deaths = 1, .kills = 1, .cuts = 1, .percent = 4},
    {.name = "replicas, full pool",
     .n_prefill = 1,
     .n_decode = 2,
     .layers = 1,
     .blocks = 9,
     .n_seqs = 3,
     .prompt = {2, 3, 2},
     .answer = {9, 8, 10},
     .prefix_cache = true,
     .replicas = true,
     .moves = 1,
     .kills = 1,
     .tears = 1,
     .percent = 6},
    {.name = "router dies", TWO, .deaths = 1, .cuts = 1, .tears = 1, .percent = 4},
};
#define BY_SEED (sizeof by_seed / sizeof *by_seed)

#define PAIR                                                                                       \
    .n_prefill = 1, .n_decode = 1, .layers = 1, .blocks = 6, .n_seqs = 1, .prompt = {2},           \
    .answer = {2}
#define MOVE_ONE                                                                                   \
    .n_prefill = 1, .n_decode = 2, .layers = 1, .blocks = 10, .n_seqs = 1, .prompt = {2},          \
    .answer = {7}, .mixed = true
#define COPY_ONE                                                                                   \
    .n_prefill = 1, .n_decode = 2, .layers = 1, .blocks = 10, .n_seqs = 1, .prompt = {2},          \
    .answer = {7}, .prefix_cache = true, .replicas = true
#define ALL 512 /* as many deviations as there are points: every order there is */

static const struct {
    struct scenario s;
    uint32_t deviations, when_long;
    bool smooth; /* what happens costs no attempt */
} by_order[] = {
    {{.name = "pair", PAIR}, ALL, ALL, true},
    {{.name = "pair, drop", PAIR, .drops = 1}, ALL, ALL, false},
    {{.name = "pair, repeat", PAIR, .repeats = 1}, ALL, ALL, true},
    {{.name = "pair, flip", PAIR, .flips = 1}, ALL, ALL, true},
    {{.name = "pair, stop", PAIR, .stops = 1}, ALL, ALL, false},
    {{.name = "pair, cancel", PAIR, .cancels = 1}, 7, 9, false},
    {{.name = "pair, kill", PAIR, .kills = 1}, 5, 5, false},
    {{.name = "pair, cut", PAIR, .cuts = 1}, 5, 6, false},
    {{.name = "pair, tear", PAIR, .tears = 1}, 5, 6, false},
    {{.name = "pair, router dies", PAIR, .deaths = 1}, 5, 7, false},
    {{.name = "pair, kill and cut", PAIR, .kills = 1, .cuts = 1}, 3, 4, false},
    {{.name = "four, kill", WORLD, .n_seqs = 1, .prompt = {3}, .answer = {3}, .kills = 1},
     3,
     4,
     false},
    {{.name = "move", MOVE_ONE, .moves = 1}, 3, 5, true},
    {{.name = "move, kill", MOVE_ONE, .moves = 1, .kills = 1}, 3, 4, false},
    {{.name = "move, tear", MOVE_ONE, .moves = 1, .tears = 1}, 3, 4, false},
    {{.name = "move, drop", MOVE_ONE, .moves = 1, .drops = 1}, 3, 4, false},
    {{.name = "move, cut", MOVE_ONE, .moves = 1, .cuts = 1}, 3, 4, false},
    {{.name = "replica, kill", COPY_ONE, .kills = 1}, 2, 3, false},
    {{.name = "replica, tear", COPY_ONE, .kills = 1, .tears = 1}, 2, 3, false},
    {{.name = "replica, cut", COPY_ONE, .kills = 1, .cuts = 1}, 2, 3, false},
};
#define BY_ORDER (sizeof by_order / sizeof *by_order)

#define SEEDS        20000
#define SEEDS_LONG   60000
#define MUTANT_SEEDS 5000

/* Of all tests: shared by the processes that Check forks. */
static struct {
    uint64_t runs, adopted, sent[64], reasons[16];
} * total;

static bool set(const char *name)
{
    const char *s = getenv(name);
    return s && *s && strcmp(s, "0") != 0;
}

static uint64_t cpu_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static void report(const struct scenario *s, const struct explore_stats *st, uint64_t begun)
{
    double n = (double)st->runs;
    total->runs += st->runs;
    total->adopted += st->adopted;
    for (int i = 0; i < 64; i++)
        total->sent[i] += st->sent[i];
    for (int i = 0; i < 16; i++)
        total->reasons[i] += st->reasons[i];
    printf("%-20s %8" PRIu64
           " runs of %5.1f events, %4.1f faults, %4.2f attempts more, %5.3f given "
           "up; %4.1f us each\n",
           s->name, st->runs, (double)st->steps / n, (double)st->faults / n,
           (double)st->retries / n, (double)st->failed / n, (double)(cpu_us() - begun) / n);
}

START_TEST(by_chance)
{
    const struct scenario *s = &by_seed[_i];
    struct explore_stats st = {0}, again = {0};
    uint64_t seeds = set("SANITIZE") ? SEEDS / 20 : set("LONG") ? SEEDS_LONG : SEEDS;
    uint64_t begun = cpu_us();
    for (uint64_t seed = 0; seed < seeds; seed++) {
        if (explore_seed(s, seed, MUTANT_NONE, false, &st))
            continue;
        printf("%s: seed %" PRIu64 ": %s\n", s->name, seed, st.why);
        explore_seed(s, seed, MUTANT_NONE, true, &again);
        printf("EXPLORE='%s:%" PRIu64 "'\n", s->name, seed);
        fflush(stdout);
        ck_abort_msg("%s: seed %" PRIu64 ": %s", s->name, seed, st.why);
    }
    report(s, &st, begun);
}
END_TEST

START_TEST(every_order)
{
    const struct scenario *s = &by_order[_i].s;
    struct explore_stats st = {0}, again = {0};
    uint32_t deviations = set("LONG") ? by_order[_i].when_long : by_order[_i].deviations;
    uint64_t begun = cpu_us(), limit = set("SANITIZE") ? 20000 : 0;
    if (!explore_all(s, deviations, limit, MUTANT_NONE, &st)) {
        printf("%s: %s\n", s->name, st.why);
        explore_path(s, st.path, st.n_path, MUTANT_NONE, true, &again);
        printf("EXPLORE='%s/", s->name);
        for (uint32_t i = 0; i < st.n_path; i++)
            printf("%s%u", i ? "." : "", st.path[i]);
        printf("'\n");
        fflush(stdout);
        ck_abort_msg("%s: %s", s->name, st.why);
    }
    ck_assert(st.retries == 0 || !by_order[_i].smooth);
    report(s, &st, begun);
}
END_TEST

START_TEST(a_million_runs)
{
    printf("%" PRIu64 " runs, each another order of events\n", total->runs);
    ck_assert_uint_ge(total->runs, 1000000);
}
END_TEST

/* Nothing is tested that does not happen. */
START_TEST(everything_happens)
{
    static const enum proto_type types[] = {
        PROTO_PREFILL,    PROTO_TOKENS,      PROTO_ACK,      PROTO_CANCEL,
        PROTO_LOST,       PROTO_RESUME,      PROTO_REDIRECT, PROTO_RESERVE,
        PROTO_GRANT,      PROTO_WAIT,        PROTO_REFUSE,   PROTO_HANDOFF,
        PROTO_HANDOFF_OK, PROTO_HANDOFF_BAD, PROTO_RELEASE,  PROTO_MOVE};
    static const enum proto_reason reasons[] = {PROTO_REASON_NO_ROUTER, PROTO_REASON_CANCELED,
                                                PROTO_REASON_PEER_LOST, PROTO_REASON_TIMEOUT,
                                                PROTO_REASON_PREEMPTED, PROTO_REASON_UNKNOWN};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        printf("%s %" PRIu64 "  ", proto_type_name(types[i]), total->sent[types[i]]);
        ck_assert_msg(total->sent[types[i]] > 0, "%s", proto_type_name(types[i]));
    }
    printf("\nLOST and REFUSE: ");
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++) {
        printf("%s %" PRIu64 "  ", proto_reason_name(reasons[i]), total->reasons[reasons[i]]);
        ck_assert_msg(total->reasons[reasons[i]] > 0, "%s", proto_reason_name(reasons[i]));
    }
    printf("\n%" PRIu64 " sequences went on from a replica\n", total->adopted);
    ck_assert_uint_gt(total->adopted, 0);
}
END_TEST

/* A test of the tests: each deliberate mistake is found. */
START_TEST(mutants_are_found)
{
    enum mutant m = (enum mutant)_i;
    for (uint64_t seed = 0; seed < MUTANT_SEEDS; seed++) {
        for (size_t i = 0; i < BY_SEED; i++) {
            struct explore_stats st = {0};
            if (explore_seed(&by_seed[i], seed, m, false, &st))
                continue;
            printf("%s: found in \"%s\", seed %" PRIu64 ": %s\n", mutant_name(m), by_seed[i].name,
                   seed, st.why);
            return;
        }
    }
    ck_abort_msg("%s: not found", mutant_name(m));
}
END_TEST

/* The same seed and the same path give the same run. */
START_TEST(runs_repeat)
{
    struct explore_stats a = {0}, b = {0};
    const uint32_t path[] = {0, 1, 0, 2, 0, 0, 1};
    explore_seed(&by_seed[6], 77, MUTANT_NONE, false, &a);
    explore_path(&by_order[6].s, path, 7, MUTANT_NONE, false, &a);
    explore_seed(&by_seed[2], 5, MUTANT_NONE, false, &b);
    b = (struct explore_stats){0};
    explore_seed(&by_seed[6], 77, MUTANT_NONE, false, &b);
    explore_path(&by_order[6].s, path, 7, MUTANT_NONE, false, &b);
    ck_assert(a.steps == b.steps && a.messages == b.messages && a.retries == b.retries);
    ck_assert_uint_gt(a.messages, 0);
}
END_TEST

START_TEST(by_hand)
{
    const char *want = getenv("EXPLORE");
    size_t n = strcspn(want, ":/");
    struct explore_stats st = {0};
    uint32_t path[512], n_path = 0;
    bool found = false, ok = true;
    for (size_t i = 0; i < BY_SEED && want[n] == ':'; i++) {
        if (strlen(by_seed[i].name) != n || strncmp(by_seed[i].name, want, n) != 0)
            continue;
        found = true;
        ok = explore_seed(&by_seed[i], strtoull(want + n + 1, NULL, 10), MUTANT_NONE, true, &st);
    }
    for (char *at = (char *)(uintptr_t)want + n; *at && n_path < 512;)
        path[n_path++] = (uint32_t)strtoul(at + 1, &at, 10);
    for (size_t i = 0; i < BY_ORDER && want[n] == '/'; i++) {
        if (strlen(by_order[i].s.name) != n || strncmp(by_order[i].s.name, want, n) != 0)
            continue;
        found = true;
        ok = explore_path(&by_order[i].s, path, n_path, MUTANT_NONE, true, &st);
    }
    fflush(stdout);
    ck_assert_msg(found, "there is no scenario of that name");
    ck_assert_msg(ok, "%s", st.why);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("protocol");
    TCase *t = tcase_create("explore");
    total = mmap(NULL, sizeof *total, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (total == MAP_FAILED)
        abort();
    log_set_level(LOG_ERROR);
    tcase_set_timeout(t, 300);
    if (getenv("EXPLORE")) {
        tcase_add_test(t, by_hand);
        suite_add_tcase(s, t);
        return s;
    }
    tcase_add_test(t, runs_repeat);
    tcase_add_loop_test(t, by_chance, 0, (int)BY_SEED);
    tcase_add_loop_test(t, every_order, 0, (int)BY_ORDER);
    tcase_add_loop_test(t, mutants_are_found, MUTANT_NONE + 1, MUTANTS);
    tcase_add_test(t, everything_happens); /* after all that it counts */
    if (set("SANITIZE"))
        printf("SKIP protocol: fewer runs, for sanitizers are slow\n");
    else
        tcase_add_test(t, a_million_runs);
    suite_add_tcase(s, t);
    return s;
}
