/* Tests of common/text/gbnf: the notation, recursion of all kinds, refusals. */
#include "tests/text/grammar_rig.h"

static void check(const char *source, const char *const *texts)
{
    rig_check(GRAMMAR_GBNF, source, NULL, texts);
}

START_TEST(notation)
{
    check("root ::= \"yes\" | 'no' reason # comment\n\n# another\nreason ::= \": \" [^\\n]{1,3}\n",
          TEXTS("+yes", "+no: abc", "-no", "-no: abcd", "-no: a\n"));
    check("root::=(\"a\"\n | \"b\"\n)+ [c-e]? \"\\x41\\u00e9\\U0001F600\\\"\\\\\"",
          TEXTS("+abA\xc3\xa9\xf0\x9f\x98\x80\"\\", "+acA\xc3\xa9\xf0\x9f\x98\x80\"\\", "-A"));
    check("root ::= item{2,4} end{2}\nitem ::= [0-9]\nend ::= \".\"",
          TEXTS("+12..", "+1234..", "-1..", "-12345..", "-12."));
    check("root ::= x{3,}\nx ::= \"ab\"", TEXTS("-abab", "+ababab", "+abababab"));
    check("root ::= . [^\\]\\-a] \"\"", TEXTS("+xb", "-xa", "-x]", "-x-", "+\nb"));
    check("root ::= a-b a_b\na-b ::= \"1\"\na_b ::= \"2\"", TEXTS("+12"));
    check("root ::= [a-z]{1,100} \" \" num{20,30}\nnum ::= [0-9] | \"x\"?",
          TEXTS("+abc ", "+abc 12", "+a xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
                "-a xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"));
    check("root ::= select_statement\nselect_statement ::= \"SELECT \" column \" from \" table \" "
          "where \" "
          "condition\ncolumn ::= \"col_1 \" | \"col_2 \"\ntable ::= \"table_1 \" | \"table_2 "
          "\"\ncondition "
          "::= column \"= \" number\nnumber ::= \"1 \" | \"2 \"",
          TEXTS("+SELECT col_1  from table_2  where col_2 = 1 ", "-SELECT"));
}
END_TEST

START_TEST(recursion)
{
    check("root ::= expr\nexpr ::= term | expr [+-] term\nterm ::= factor | term [*/] factor\n"
          "factor ::= [0-9]+ | \"(\" expr \")\"",
          TEXTS("+1", "+1+2*3", "+(1-2)*(3+(4))", "-1+", "-(1", "-()"));
    check("root ::= \"a\" root \"b\" | \"\"", TEXTS("+", "+ab", "+aaabbb", "-aab", "-abb"));
    /* Ambiguous: balanced parentheses in two ways. */
    check("root ::= p\np ::= \"(\" p \")\" p | \"(\" p \")\" | p2\np2 ::= \"\" | \"()\" p2",
          TEXTS("+", "+()()", "+(()())()", "-(()", "-())"));
    /* Exponentially many derivations, one configuration. */
    char *many = rig_repeat("a", 2000);
    struct grammar *g = rig_compile(GRAMMAR_GBNF,
                                    "root ::= x\nx ::= \"a\" x \"\" | \"a\" y \"\" | \"\"\n"
                                    "y ::= \"a\" x \"\" | \"a\" y \"\" | \"\"",
                                    NULL);
    ck_assert(rig_derives(g, many));
    grammar_put(g);
    /* Right recursion keeps the stack flat, nesting does not: it is bounded. */
    g = rig_compile(GRAMMAR_GBNF, "root ::= \"a\" root | \"b\"", NULL);
    many[1999] = 'b';
    ck_assert(rig_derives(g, many));
    grammar_put(g);
    g = rig_compile(GRAMMAR_GBNF, "root ::= \"a\" root \"c\" | \"b\"", NULL);
    ck_assert(!rig_derives(g, many));
    grammar_put(g);
    free(many);
}
END_TEST

START_TEST(refused)
{
    static const struct {
        const char *source;
        int status;
        const char *part;
    } cases[] = {
        {"", STATUS_FORMAT, "no rule named root"},
        {"a ::= \"x\"", STATUS_FORMAT, "no rule named root"},
        {"root ::= b", STATUS_FORMAT, "the rule b is not defined"},
        {"root ::= \"a\"\nroot ::= \"b\"", STATUS_FORMAT, "line 2: a rule is defined twice"},
        {"root ::= \"a", STATUS_FORMAT, "line 1: a quote is not closed"},
        {"root ::= [a", STATUS_FORMAT, "a [ is not closed"},
        {"root ::= (\"a\"", STATUS_FORMAT, "a ( is not closed"},
        {"root ::= \"a\" )", STATUS_FORMAT, "expected a rule"},
        {"root ::= *", STATUS_FORMAT, "nothing to repeat"},
        {"root ::= \"a\"{3,1}", STATUS_FORMAT, "malformed"},
        {"root ::= \"a\"{9999999999}", STATUS_LIMIT, "too long"},
        {"root ::= \"\\q\"", STATUS_FORMAT, "unknown escape"},
        {"start: \"a\"", STATUS_FORMAT, "expected a rule"},
        {"root ::= root \"a\"", STATUS_RANGE, "nothing satisfies it, or it never ends"},
        {"root ::= \"a\" root", STATUS_RANGE, "never ends"},
        {"root ::= a\na ::= b \"x\" | \"y\"\nb ::= a \"z\"", STATUS_UNSUPPORTED,
         "begins with itself"},
        {"root ::= n root \"x\" | \"y\"\nn ::= \"a\"?", STATUS_UNSUPPORTED, "begins with itself"},
        {"root ::= a{1,50} \"b\"\na ::= a{1,50} \"x\" | \"c\"", STATUS_UNSUPPORTED,
         "begins with itself"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        rig_refused(GRAMMAR_GBNF, cases[i].source, cases[i].status, cases[i].part);
    char *deep = rig_repeat("(", 60000), *source = malloc(100000);
    ck_assert_ptr_nonnull(source);
    sprintf(source, "root ::= %s", deep);
    rig_refused(GRAMMAR_GBNF, source, STATUS_LIMIT, "nested too deep");
    free(deep);
    deep = rig_repeat("*", 60000);
    sprintf(source, "root ::= \"a\"%s", deep);
    rig_refused(GRAMMAR_GBNF, source, STATUS_LIMIT, "nested too deep");
    free(deep);
    free(source);
    /* A chain of rules, each of which must be nested: too deep to be completed. */
    source = malloc(400000);
    ck_assert_ptr_nonnull(source);
    size_t n = (size_t)sprintf(source, "root ::= \"x\" a0 \"y\"\n");
    for (int i = 0; i < 2000; i++)
        n += (size_t)sprintf(source + n, "a%d ::= \"x\" a%d \"y\"\n", i, i + 1);
    sprintf(source + n, "a2000 ::= \"z\"\n");
    rig_refused(GRAMMAR_GBNF, source, STATUS_LIMIT, "nested too deep");
    free(source);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("gbnf");
    TCase *c = tcase_create("gbnf");
    tcase_set_timeout(c, 60);
    tcase_add_test(c, notation);
    tcase_add_test(c, recursion);
    tcase_add_test(c, refused);
    suite_add_tcase(s, c);
    return s;
}
