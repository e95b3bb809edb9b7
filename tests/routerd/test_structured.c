/* Tests of routerd/structured: which fields say what, what is refused and under which name. */
#include "routerd/structured.h"

#include <string.h>

#include "tests/harness.h"

static int parse(const char *body, struct structured *s, struct api_error *e)
{
    json_t *o = json_loads(body, 0, NULL);
    ck_assert_msg(o != NULL, "%s", body);
    *e = (struct api_error){.http = 400};
    int rc = structured_parse(o, s, e);
    json_decref(o);
    return rc;
}

START_TEST(parse_accepts)
{
    static const struct {
        const char *body;
        enum grammar_kind kind;
        const char *source;
        bool compact;
    } cases[] = {
        {"{}", GRAMMAR_NONE, NULL, false},
        {"{\"response_format\":null}", GRAMMAR_NONE, NULL, false},
        {"{\"response_format\":{\"type\":\"text\"}}", GRAMMAR_NONE, NULL, false},
        {"{\"response_format\":{\"type\":\"json_object\"}}", GRAMMAR_JSON, "", false},
        {"{\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\","
         "\"strict\":true,"
         "\"schema\":{\"type\": \"null\"}}}}",
         GRAMMAR_SCHEMA, "{\"type\":\"null\"}", false},
        {"{\"structured_outputs\":{\"json\":{\"const\":1}}}", GRAMMAR_SCHEMA, "{\"const\":1}",
         false},
        {"{\"structured_outputs\":{\"json\":\"{\\\"const\\\": "
         "1}\",\"disable_any_whitespace\":true}}",
         GRAMMAR_SCHEMA, "{\"const\": 1}", true},
        {"{\"structured_outputs\":{\"regex\":\"a+\",\"json\":null}}", GRAMMAR_REGEX, "a+", false},
        {"{\"structured_outputs\":{\"choice\":[\"a\", \"b\"]}}", GRAMMAR_CHOICE, "[\"a\",\"b\"]",
         false},
        {"{\"structured_outputs\":{\"grammar\":\"root ::= \\\"a\\\"\"}}", GRAMMAR_GBNF,
         "root ::= \"a\"", false},
        {"{\"structured_outputs\":{\"json_object\":true}}", GRAMMAR_JSON, "", false},
        {"{\"guided_json\":{\"const\":1}}", GRAMMAR_SCHEMA, "{\"const\":1}", false},
        {"{\"guided_regex\":\"x\"}", GRAMMAR_REGEX, "x", false},
        {"{\"guided_choice\":[\"x\"]}", GRAMMAR_CHOICE, "[\"x\"]", false},
        {"{\"guided_grammar\":\"root ::= [a]\"}", GRAMMAR_GBNF, "root ::= [a]", false},
        {"{\"grammar\":\"root ::= [a]\"}", GRAMMAR_GBNF, "root ::= [a]", false},
        {"{\"json_schema\":{}}", GRAMMAR_SCHEMA, "{}", false},
        {"{\"json_schema\":\"{}\",\"grammar\":\"\"}", GRAMMAR_SCHEMA, "{}", false},
        {"{\"regex\":\"a+\"}", GRAMMAR_REGEX, "a+", false},
        {"{\"grammar\":\"\",\"regex\":\"\"}", GRAMMAR_NONE, NULL, false},
        {"{\"guided_json_object\":true}", GRAMMAR_JSON, "", false},
        {"{\"guided_json_object\":false}", GRAMMAR_NONE, NULL, false},
        {"{\"structured_outputs\":{\"regex\":\"a\",\"disable_additional_properties\":false}}",
         GRAMMAR_REGEX, "a", false},
    };
    for (int twice = 0; twice < 2; twice++) { /* the second time they are known */
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            struct structured s;
            struct api_error e;
            ck_assert_msg(parse(cases[i].body, &s, &e) == STATUS_OK, "%s: %s", cases[i].body,
                          e.message);
            ck_assert_int_eq(s.kind, cases[i].kind);
            ck_assert_int_eq(s.compact, cases[i].compact);
            if (cases[i].source)
                ck_assert_str_eq(s.source, cases[i].source);
            ck_assert_uint_eq(s.n, cases[i].source ? strlen(cases[i].source) : 0);
            ck_assert(cases[i].kind == GRAMMAR_NONE ||
                      structured_mentioned(cases[i].body, strlen(cases[i].body)));
            structured_fini(&s);
        }
    }
    ck_assert(!structured_mentioned("{\"messages\":[]}", 15));
}
END_TEST

START_TEST(parse_refuses)
{
#define SCHEMA(text)                                                                               \
    "{\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\","              \
    "\"schema\":" text "}}}"
    static const struct {
        const char *body, *param, *part;
    } cases[] = {
        {"{\"response_format\":\"json\"}", "response_format", "with a 'type'"},
        {"{\"response_format\":{}}", "response_format", "with a 'type'"},
        {"{\"response_format\":{\"type\":\"nope\"}}", "response_format", "unknown type 'nope'"},
        {"{\"response_format\":{\"type\":\"json_schema\"}}", "response_format.json_schema",
         "needs an object"},
        {"{\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"s\"}}}",
         "response_format.json_schema.schema", "missing"},
        {"{\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":1,\"schema\":{}}"
         "}}",
         "response_format.json_schema.name", "string"},
        {SCHEMA("\"\""), "response_format.json_schema.schema", "must be a JSON Schema"},
        {SCHEMA("null"), "response_format.json_schema.schema", "missing"},
        {SCHEMA("{\"properties\":{\"a\":{\"type\":\"strin\"}}}"),
         "response_format.json_schema.schema", "#/properties/a: unknown type \"strin\""},
        {SCHEMA("{\"enum\":[]}"), "response_format.json_schema.schema", "enum"},
        {SCHEMA("{\"allOf\":[{\"type\":\"string\"},{\"type\":\"number\"}]}"),
         "response_format.json_schema.schema", "nothing satisfies it"},
        {"{\"structured_outputs\":[]}", "structured_outputs", "must be an object"},
        {"{\"structured_outputs\":{}}", "structured_outputs", "needs one of"},
        {"{\"structured_outputs\":{\"regex\":1}}", "structured_outputs.regex", "string"},
        {"{\"structured_outputs\":{\"regex\":\"(\"}}", "structured_outputs.regex", "not closed"},
        {"{\"structured_outputs\":{\"choice\":[]}}", "structured_outputs.choice", "at least one"},
        {"{\"structured_outputs\":{\"choice\":[\"a\",1]}}", "structured_outputs.choice",
         "choice 1"},
        {"{\"structured_outputs\":{\"grammar\":\"x\"}}", "structured_outputs.grammar",
         "expected a rule"},
        {"{\"structured_outputs\":{\"regex\":\"a\",\"choice\":[\"b\"]}}",
         "structured_outputs.choice", "exclude each other"},
        {"{\"structured_outputs\":{\"regex\":\"a\"},\"response_format\":{\"type\":\"json_object\"}"
         "}",
         "structured_outputs.regex", "exclude each other"},
        {"{\"guided_regex\":\"a\",\"response_format\":{\"type\":\"json_object\"}}", "guided_regex",
         "exclude each other"},
        {"{\"structured_outputs\":{\"structural_tag\":\"{}\"}}", "structured_outputs",
         "structural_tag"},
        {"{\"structured_outputs\":{\"json_object\":1}}", "structured_outputs.json_object",
         "true or false"},
        {"{\"structured_outputs\":{\"json\":{},\"disable_additional_properties\":true}}",
         "structured_outputs", "disable_additional_properties"},
        {"{\"guided_regex\":\"\"}", "guided_regex", "not empty"},
        {"{\"guided_json_object\":1}", "guided_json_object", "true or false"},
        {"{\"grammar\":\"root ::= [a]\",\"json_schema\":{}}", "grammar", "exclude each other"},
        {"{\"regex\":5}", "regex", "string"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct structured s;
        struct api_error e;
        ck_assert_msg(parse(cases[i].body, &s, &e) == STATUS_INVALID, "%s", cases[i].body);
        ck_assert_int_eq(e.http, 400);
        ck_assert_msg(e.param && strcmp(e.param, cases[i].param) == 0, "%s: %s", cases[i].body,
                      e.param);
        ck_assert_msg(strstr(e.message, cases[i].part) != NULL, "%s: %s", cases[i].body, e.message);
        ck_assert_ptr_null(s.source);
    }
}
END_TEST

START_TEST(call_is_a_schema)
{
    json_t *tools =
        json_loads("[{\"function\":{\"name\":\"f\",\"parameters\":{\"$ref\":\"#/$defs/"
                   "p\",\"$defs\":{\"p\":{\"type\":"
                   "\"object\",\"properties\":{\"x\":{\"type\":\"integer\"}},\"required\":[\"x\"],"
                   "\"additionalProperties\":false}}}}},{\"function\":{\"name\":\"g\"}}]",
                   0, NULL);
    static const struct {
        const char *name, *text;
        bool derived;
    } cases[] = {{NULL, "{\"name\":\"f\",\"parameters\":{\"x\":3}}", true},
                 {NULL, "{\"name\": \"g\", \"parameters\": {}}", true},
                 {NULL, "{\"name\":\"f\",\"parameters\":{}}", false},
                 {"f", "{\"name\":\"f\",\"parameters\":{\"x\":3}}", true},
                 {"f", "{\"name\":\"g\",\"parameters\":{}}", false},
                 {"g", "{\"name\":\"g\",\"parameters\":{\"x\":3}}", false}};
    struct structured s;
    struct api_error e = {.http = 400};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct grammar *g;
        char err[300];
        bool yes;
        ck_assert_msg(structured_call(tools, cases[i].name, &s, &e) == STATUS_OK, "%s", e.message);
        ck_assert_int_eq(s.kind, GRAMMAR_SCHEMA);
        ck_assert_int_eq(grammar_compile(s.kind, s.source, s.n, NULL, &g, err, sizeof err),
                         STATUS_OK);
        ck_assert_int_eq(grammar_accepts(g, cases[i].text, strlen(cases[i].text), &yes), STATUS_OK);
        ck_assert_msg(yes == cases[i].derived, "%s: %s", cases[i].text, s.source);
        grammar_put(g);
        structured_fini(&s);
    }
    ck_assert_int_eq(structured_call(tools, "h", &s, &e), STATUS_INVALID);
    ck_assert_str_eq(e.param, "tool_choice");
    ck_assert_int_eq(structured_call(NULL, NULL, &s, &e), STATUS_INVALID);
    json_decref(tools);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("structured");
    TCase *c = tcase_create("structured");
    tcase_add_test(c, parse_accepts);
    tcase_add_test(c, parse_refuses);
    tcase_add_test(c, call_is_a_schema);
    suite_add_tcase(s, c);
    return s;
}
