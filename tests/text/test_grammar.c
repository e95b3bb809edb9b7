/* Tests of common/text/grammar and of the automata below it: kinds of sources, limits, references,
 * and products of automata against their definition. */
#include "common/text/automaton.h"

#include "tests/text/grammar_rig.h"

START_TEST(compile_choices)
{
    rig_check(GRAMMAR_CHOICE, "[\"yes\",\"no\",\"yes, \\u00e9\",\"\"]", NULL,
              TEXTS("+yes", "+no", "+yes, \xc3\xa9", "+", "-y", "-yes,", "-yesno"));
    rig_refused(GRAMMAR_CHOICE, "[]", STATUS_FORMAT, "at least one");
    rig_refused(GRAMMAR_CHOICE, "[\"a\",1]", STATUS_FORMAT, "choice 1 is not a string");
    rig_refused(GRAMMAR_CHOICE, "\"a\"", STATUS_FORMAT, "list of strings");
    rig_refused(GRAMMAR_CHOICE, "", STATUS_FORMAT, "list of strings");
    rig_refused(GRAMMAR_NONE, "x", STATUS_INVALID, "unknown kind");
}
END_TEST

START_TEST(compile_any_json)
{
    rig_check(GRAMMAR_JSON, "", NULL,
              TEXTS("+{}", "+{\"a\": [1, -2.5e10, true, null, \"x\"], \"b\": {}}", "-[]", "-\"x\"",
                    "-", "-{\"a\":1", "-{\"a\":01}", "-{a:1}", "-{\"a\":1}{"));
}
END_TEST

START_TEST(compile_bounds)
{
    char *many = malloc(500000), err[200];
    ck_assert_ptr_nonnull(many);
    size_t n = (size_t)sprintf(many, "[");
    for (int i = 0; i < 10001; i++)
        n += (size_t)sprintf(many + n, "%s\"%d\"", i ? "," : "", i);
    sprintf(many + n, "]");
    rig_refused(GRAMMAR_CHOICE, many, STATUS_LIMIT, "more than 10000");
    n = (size_t)sprintf(many, "[");
    for (int i = 0; i < 10000; i++)
        n += (size_t)sprintf(many + n, "%s\"%d some words\"", i ? "," : "", i);
    sprintf(many + n, "]");
    struct grammar *g = rig_compile(GRAMMAR_CHOICE, many, NULL);
    ck_assert(rig_derives(g, "9999 some words"));
    ck_assert(!rig_derives(g, "10000 some words"));
    ck_assert_uint_lt(grammar_bytes(g), 20 << 20);
    struct grammar *same = grammar_get(g);
    grammar_put(g);
    ck_assert(rig_derives(same, "0 some words"));
    grammar_put(same);
    free(many);
    char *large = rig_repeat("a", GRAMMAR_SOURCE_MAX + 1);
    ck_assert_int_eq(
        grammar_compile(GRAMMAR_REGEX, large, GRAMMAR_SOURCE_MAX + 1, NULL, &g, err, sizeof err),
        STATUS_LIMIT);
    ck_assert_int_eq(grammar_compile(GRAMMAR_REGEX, large, 3, NULL, &g, err, 0), STATUS_OK);
    grammar_put(g);
    ck_assert_int_eq(grammar_compile(GRAMMAR_REGEX, "a\xff", 2, NULL, &g, err, sizeof err),
                     STATUS_FORMAT);
    free(large);
}
END_TEST

/* ---- automata ---- */

static uint64_t seed, draws;
static uint32_t draw(uint32_t n)
{
    return (uint32_t)(((uint64_t)rng_philox(seed, draws++, 3).v[0] * n) >> 32);
}

static void random_automaton(struct automaton *a, struct automaton_budget *b)
{
    uint32_t n = 1 + draw(5);
    automaton_init(a, b);
    while (a->n < n)
        automaton_state(a);
    for (uint32_t e = draw(12); e > 0; e--) {
        uint32_t lo = 'a' + draw(4), hi = lo + draw(3);
        if (draw(6) == 0)
            automaton_empty(a, draw(n), draw(n));
        else
            automaton_edge(a, draw(n), lo, hi, draw(n));
    }
    a->final[draw(n)] = 1;
    a->final[draw(n)] = 1;
}

/* Straight from the definition, over sets of states as bits. */
static bool accepts(const struct automaton *a, const char *p)
{
    uint32_t now = 1;
    for (;; p++) {
        for (uint32_t round = 0; round < a->n; round++) {
            for (uint32_t e = 0; e < a->n_edges; e++)
                if (a->edges[e].lo == AUTOMATON_EMPTY && now >> a->edges[e].from & 1)
                    now |= 1u << a->edges[e].to;
        }
        if (!*p)
            break;
        uint32_t next = 0;
        for (uint32_t e = 0; e < a->n_edges; e++) {
            if (now >> a->edges[e].from & 1 && a->edges[e].lo <= (uint8_t)*p &&
                a->edges[e].hi >= (uint8_t)*p)
                next |= 1u << a->edges[e].to;
        }
        now = next;
    }
    for (uint32_t i = 0; i < a->n; i++) {
        if (now >> i & 1 && a->final[i])
            return true;
    }
    return false;
}

static void copy(struct automaton *to, const struct automaton *from, struct automaton_budget *b)
{
    automaton_init(to, b);
    while (to->n < from->n)
        automaton_state(to);
    for (uint32_t i = 0; i < from->n; i++)
        to->final[i] = from->final[i];
    for (uint32_t e = 0; e < from->n_edges; e++)
        automaton_edge(to, from->edges[e].from, from->edges[e].lo, from->edges[e].hi,
                       from->edges[e].to);
}

START_TEST(automata_by_definition)
{
    struct automaton_budget budget = {UINT64_MAX, 100000};
    for (seed = 1; seed <= 250; seed++) {
        struct automaton a, b, da, db, both, less, again;
        draws = 0;
        random_automaton(&a, &budget);
        random_automaton(&b, &budget);
        copy(&da, &a, &budget);
        copy(&db, &b, &budget);
        ck_assert_ok(automaton_minimise(&da));
        ck_assert_ok(automaton_minimise(&db));
        copy(&again, &da, &budget); /* minimal already */
        ck_assert_ok(automaton_minimise(&again));
        ck_assert_uint_eq(again.n, da.n);
        ck_assert_ok(automaton_intersect(&da, &db, &both));
        ck_assert_ok(automaton_subtract(&da, &db, &less));
        bool any = false;
        for (uint32_t i = 0; i < 7 * 7 * 7 * 7; i++) { /* all texts of up to 4 letters */
            char text[6] = "";
            uint32_t len = 0;
            for (uint32_t v = i; v % 7 > 0; v /= 7)
                text[len++] = (char)('a' - 1 + v % 7);
            text[len] = 0;
            size_t n = strlen(text);
            bool x = accepts(&a, text), y = accepts(&b, text);
            any |= x;
            ck_assert(automaton_accepts(&da, text, n, false) == x);
            ck_assert(automaton_accepts(&both, text, n, true) == (x && y));
            ck_assert(automaton_accepts(&less, text, n, false) == (x && !y));
        }
        ck_assert(!(any && automaton_is_never(&da)));
        struct automaton *all[] = {&a, &b, &da, &db, &both, &less, &again};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            automaton_fini(all[i]);
    }
}
END_TEST

START_TEST(automata_lower_to_utf8)
{
    static const uint32_t ends[] = {0,       0x20,    0x22,    0x5c,    0x7f,     0x80,    0x7ff,
                                    0x800,   0x1000,  0xd7ff,  0xd800,  0xdfff,   0xe000,  0xffff,
                                    0x10000, 0x3ffff, 0x40000, 0xfffff, 0x100000, 0x10ffff};
    size_t n = sizeof ends / sizeof *ends;
    struct automaton_budget budget = {UINT64_MAX, 100000};
    for (size_t i = 0; i < n; i++) {
        for (size_t k = i; k < n; k++) {
            struct automaton a;
            automaton_init(&a, &budget);
            uint32_t to = automaton_state(&a);
            a.final[to] = 1;
            automaton_edge(&a, 0, ends[i], ends[k], to);
            ck_assert_ok(automaton_lower(&a, AUTOMATON_PLAIN));
            for (uint32_t cp = 0; cp <= 0x10ffff; cp += cp < 0x900      ? 1
                                                        : cp % 64 == 63 ? 1
                                                                        : 127 - cp % 64) {
                char text[4];
                size_t len;
                if (cp >= 0xd800 && cp <= 0xdfff)
                    continue;
                if (cp < 0x80)
                    text[0] = (char)cp, len = 1;
                else if (cp < 0x800)
                    text[0] = (char)(0xc0 | cp >> 6), text[1] = (char)(0x80 | (cp & 63)), len = 2;
                else if (cp < 0x10000)
                    text[0] = (char)(0xe0 | cp >> 12), text[1] = (char)(0x80 | (cp >> 6 & 63)),
                    text[2] = (char)(0x80 | (cp & 63)), len = 3;
                else
                    text[0] = (char)(0xf0 | cp >> 18), text[1] = (char)(0x80 | (cp >> 12 & 63)),
                    text[2] = (char)(0x80 | (cp >> 6 & 63)), text[3] = (char)(0x80 | (cp & 63)),
                    len = 4;
                if (automaton_accepts(&a, text, len, false) != (cp >= ends[i] && cp <= ends[k]))
                    ck_abort_msg("%x in %x-%x", cp, ends[i], ends[k]);
            }
            automaton_fini(&a);
        }
    }
}
END_TEST

START_TEST(budget_ends_the_work)
{
    struct automaton_budget budget = {1000, 100000};
    struct automaton a;
    automaton_init(&a, &budget);
    for (int i = 0; i < 2000; i++)
        automaton_edge(&a, 0, 'a', 'z', 0);
    ck_assert_int_eq(a.status, STATUS_LIMIT);
    ck_assert_int_eq(automaton_minimise(&a), STATUS_LIMIT);
    automaton_fini(&a);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("grammar");
    TCase *c = tcase_create("grammar");
    tcase_set_timeout(c, 120);
    tcase_add_test(c, compile_choices);
    tcase_add_test(c, compile_any_json);
    tcase_add_test(c, compile_bounds);
    tcase_add_test(c, automata_by_definition);
    tcase_add_test(c, automata_lower_to_utf8);
    tcase_add_test(c, budget_ends_the_work);
    suite_add_tcase(s, c);
    return s;
}
