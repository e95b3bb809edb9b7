/* Tests of common/text/schema*: keywords, the form in which JSON is written, formats, numbers
 * against plain arithmetic, refusals with their paths, and hostile schemas. */
#include <math.h>

#include "tests/text/grammar_rig.h"

static const struct grammar_options compact = {.compact = true};

static void check(const char *schema, const char *const *texts)
{
    rig_check(GRAMMAR_SCHEMA, schema, &compact, texts);
}

START_TEST(object_properties_in_order)
{
    const char *schema = "{\"type\":\"object\",\"properties\":{\"b\":{\"type\":\"integer\"},"
                         "\"a\":{\"type\":\"string\"},\"c\":{\"type\":\"null\"}},"
                         "\"required\":[\"a\"],\"additionalProperties\":false}";
    check(schema, TEXTS("+{\"a\":\"\"}", "+{\"b\":1,\"a\":\"x\",\"c\":null}", "-{\"b\":1}",
                        "-{\"a\":\"\",\"b\":1}", "-{\"a\":\"\",\"a\":\"\"}", "-{}",
                        "-{\"a\":\"\",\"d\":1}", "-{\"a\":1}", "-{\"a\":\"\",}", "-{,\"a\":\"\"}"));
    /* Other properties come last, and may not be one of the names in any spelling. */
    check("{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"null\"}},"
          "\"additionalProperties\":{\"type\":\"integer\"}}",
          TEXTS("+{}", "+{\"n\":null}", "+{\"n\":null,\"m\":1,\"nn\":2}", "+{\"\":1}", "-{\"n\":1}",
                "-{\"\\u006e\":1}", "-{\"m\":null}", "-{\"m\":1,\"n\":null}", "+{\"\\n\":1}",
                "+{\"\xc3\xa9\":1}"));
}
END_TEST

START_TEST(object_limits_and_patterns)
{
    check("{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"minProperties\":2,"
          "\"maxProperties\":2,\"additionalProperties\":false}",
          TEXTS("-{}", "-{\"a\":1}", "+{\"a\":1,\"b\":2}", "+{\"a\":1,\"c\":2}",
                "-{\"a\":1,\"b\":2,\"c\":3}"));
    check("{\"type\":\"object\",\"maxProperties\":2,\"additionalProperties\":{\"type\":\"null\"}}",
          TEXTS("+{}", "+{\"x\":null,\"y\":null}", "-{\"x\":null,\"y\":null,\"z\":null}"));
    check("{\"type\":\"object\",\"patternProperties\":{\"^i_\":{\"type\":\"integer\"},"
          "\"_s$\":{\"type\":[\"string\",\"integer\"],\"minimum\":5}},\"additionalProperties\":"
          "{\"type\":\"boolean\"}}",
          TEXTS("+{\"i_x\":1}", "-{\"i_x\":true}", "+{\"i_s\":7}", "-{\"i_s\":3}",
                "-{\"i_s\":\"\"}", "+{\"x_s\":\"y\"}", "+{\"q\":true}", "-{\"q\":1}"));
    check("{\"type\":\"object\",\"propertyNames\":{\"maxLength\":2,\"pattern\":\"^[a-z]*$\"}}",
          TEXTS("+{\"ab\":1}", "-{\"abc\":1}", "-{\"A\":1}", "+{\"\":[]}"));
    check("{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":"
          "\"integer\"}},\"dependentRequired\":{\"a\":[\"b\"]},\"additionalProperties\":false}",
          TEXTS("+{}", "+{\"b\":1}", "-{\"a\":1}", "+{\"a\":1,\"b\":1}"));
}
END_TEST

START_TEST(array_items)
{
    check("{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}],"
          "\"items\":{\"type\":\"null\"},\"minItems\":1,\"maxItems\":4}",
          TEXTS("-[]", "+[1]", "+[1,\"a\"]", "+[1,\"a\",null,null]", "-[1,\"a\",null,null,null]",
                "-[1,null]", "-[\"a\"]"));
    check("{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":30,\"maxItems\":31}",
          TEXTS("-[1,2]", "+[1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9,1,2,3]",
                "+[1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9,1,2,3,4]",
                "-[1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9,1,2,3,4,5]"));
    check("{\"type\":\"array\",\"items\":{\"type\":[\"integer\",\"null\"]},\"contains\":{\"const\":"
          "7},\"minContains\":2,\"maxContains\":3,\"maxItems\":5}",
          TEXTS("-[7]", "+[7,7]", "+[1,7,null,7]", "+[7,7,7,1]", "-[7,7,7,7]", "-[7,7,1,1,1,1]"));
    check("{\"items\":[{\"type\":\"integer\"}],\"additionalItems\":false,\"type\":\"array\","
          "\"$schema\":\"http://json-schema.org/draft-07/schema#\"}",
          TEXTS("+[]", "+[1]", "-[1,2]", "-[\"\"]"));
}
END_TEST

START_TEST(string_conditions)
{
    check("{\"type\":\"string\"}",
          TEXTS("+\"\"", "+\"a\\\"b\\\\\\/\\u0041\\n\"", "+\"\xf0\x9f\x98\x80\"",
                "+\"\\ud83d\\ude00\"", "-\"\\ud83d\"", "-\"\\ude00\"", "-\"\n\"", "-\"\\x\"",
                "-\"\xff\"", "-\"\xc0\x80\"", "-\"\xed\xa0\x80\"", "-a", "-\"a", "+\"\x7f\""));
    check("{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
          TEXTS("-\"a\"", "+\"ab\"", "+\"\xc3\xa9\\u00e9\\n\"", "-\"abcd\"",
                "+\"\\ud83d\\ude00\xf0\x9f\x98\x80\"", "-\"\xf0\x9f\x98\x80\""));
    check("{\"type\":\"string\",\"pattern\":\"b\"}", TEXTS("+\"abc\"", "-\"a\"", "+\"b\""));
    check("{\"type\":\"string\",\"pattern\":\"^[a-c\\\"\\\\n]+$\",\"maxLength\":3}",
          TEXTS("+\"abc\"", "+\"a\\\"\\n\"", "-\"abca\"", "-\"\"", "-\"d\"", "-\"\\u0061\""));
    check("{\"type\":\"string\",\"pattern\":\"^a.*z$\",\"minLength\":4,\"maxLength\":5}",
          TEXTS("-\"az\"", "+\"abcz\"", "+\"abcdz\"", "-\"abcdez\""));
    check("{\"type\":\"string\",\"allOf\":[{\"pattern\":\"x\"},{\"pattern\":\"y\"}]}",
          TEXTS("+\"xy\"", "+\"y--x\"", "-\"x\"", "-\"y\""));
    check("{\"type\":\"string\",\"not\":{\"pattern\":\"a\"}}",
          TEXTS("+\"b\"", "-\"bab\"", "+\"\""));
    check("{\"type\":\"string\",\"not\":{\"enum\":[\"no\",\"never\"]}}",
          TEXTS("+\"yes\"", "-\"no\"", "-\"never\"", "+\"n\"", "+\"none\""));
}
END_TEST

/* The values of an enum are checked one by one, against an expression that is made once. */
START_TEST(string_enum_with_format)
{
    char *schema = malloc(1 << 16);
    ck_assert_ptr_nonnull(schema);
    size_t n = (size_t)sprintf(schema, "{\"format\":\"email\",\"enum\":[\"no email\"");
    for (int i = 0; i < 1000; i++)
        n += (size_t)sprintf(schema + n, ",\"u%d@example.com\"", i);
    sprintf(schema + n, "]}");
    check(schema, TEXTS("+\"u0@example.com\"", "+\"u999@example.com\"", "-\"u1000@example.com\"",
                        "-\"no email\""));
    free(schema);
}
END_TEST

START_TEST(string_formats)
{
    static const struct {
        const char *format;
        const char *texts[16]; /* up to a NULL */
    } cases[] = {
        {"date",
         {"+2024-02-29", "-2023-02-29", "+2000-02-29", "-1900-02-29", "-2024-04-31", "+2024-12-31",
          "-2024-13-01", "-2024-1-1", "-2024-00-10", "-0000-01-01", "-0000-02-29", "+0001-01-01",
          "+0004-02-29", "+0400-02-29", "+0100-12-31"}},
        {"time",
         {"+08:30:06Z", "+08:30:06.283185Z", "+23:59:59+05:30", "-24:00:00Z", "-08:30:06",
          "-08:60:06Z", "-8:30:06Z"}},
        {"date-time",
         {"+1985-04-12T23:20:50.52Z", "+1996-12-19T16:39:57-08:00", "-1996-12-19 16:39:57Z",
          "-1996-02-30T16:39:57Z", "-0000-08-06T21:09:09Z", "+0002-08-06T21:09:09Z"}},
        {"duration",
         {"+P4DT12H30M5S", "+P1Y", "+PT0S", "+P2W", "-P", "-PT", "-P1", "-4DT1H", "-P1Y2W",
          "-P1D2H", "+P1Y2M3D"}},
        {"email",
         {"+joe.bloggs@example.com", "+te~st@example.com", "-.test@example.com",
          "-te..st@example.com", "-2962", "-joe@"}},
        {"hostname",
         {"+www.example.com", "+a-b", "-a_b", "--host", "-host-", "-a..b", "-xn--4gbwdl.xn--wgbh1c",
          "+a--b", "-ab--c"}},
        {"ipv4",
         {"+192.168.0.1", "-127.0.0.0.1", "-256.256.256.256", "-127.0", "-0x7f000001",
          "-087.10.0.1", "+0.0.0.0"}},
        {"ipv6",
         {"+::1", "+::", "-12345::", "+::abef", "-1::1::1", "+::ffff:192.168.0.1",
          "+1:2:3:4:5:6:7:8", "-1:2:3:4:5:6:7:8:9", "+1:2:3:4:5:6:1.2.3.4", "-1:2:3",
          "+1::", "+1:2:3:4:5:6:7::", "-:1", "-1:", "+a::b:c"}},
        {"uuid",
         {"+2eb8aa08-aa98-11ea-b4aa-73b441d16380", "-2eb8aa08aa9811eab4aa73b441d16380",
          "-2eb8aa08-aa98-11ea-b4aa-73b441d1638", "+2EB8AA08-AA98-11EA-B4AA-73B441D16380"}},
        {"uri",
         {"+http://foo.bar/?baz=qux#quux", "+urn:oasis:names:x", "+ldap://[2001:db8::7]/c=GB",
          "+mailto:John.Doe@example.com", "-//foo.bar/", "-/abc", "-http:// x", "-bar,,",
          "-http://a/%zz"}},
        {"uri-reference", {"+/abc", "+abc", "+#frag", "-\\\\\\\\x", "+", "+//foo.bar/?x"}},
        {"json-pointer", {"+", "+/a/b~0~1", "-a", "-/a~2", "+/"}},
        {"relative-json-pointer", {"+1", "+0/foo", "+2#", "-/foo", "-01", "-1##"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char schema[100], text[200];
        snprintf(schema, sizeof schema, "{\"type\":\"string\",\"format\":\"%s\"}", cases[i].format);
        struct grammar *g = rig_compile(GRAMMAR_SCHEMA, schema, NULL);
        for (const char *const *t = cases[i].texts; *t; t++) {
            snprintf(text, sizeof text, "\"%s\"", *t + 1);
            ck_assert_msg(rig_derives(g, text) == (**t == '+'), "%s: %s", cases[i].format, *t);
        }
        grammar_put(g);
    }
    check("{\"type\":\"string\",\"format\":\"password\"}", TEXTS("+\"anything\""));
    struct grammar_options ignored = {.compact = true, .formats_ignored = true};
    rig_check(GRAMMAR_SCHEMA, "{\"format\":\"ipv4\"}", &ignored, TEXTS("+\"x\""));
    rig_refused(GRAMMAR_SCHEMA, "{\"properties\":{\"p\":{\"format\":\"iri\"}}}", STATUS_UNSUPPORTED,
                "#/properties/p: the format iri");
}
END_TEST

/* Limits against arithmetic: many numbers near many limits. */
START_TEST(number_limits)
{
    static const double limits[] = {0,   1,   -1,  9,    10,    99,    100,
                                    101, 0.5, 1.1, -1.1, 12.05, -0.25, 1000.001};
    static const char *const keys[] = {"minimum", "maximum", "exclusiveMinimum",
                                       "exclusiveMaximum"};
    static const double numbers[] = {
        0,    1,     2,     -1,       -2,        9,         10,    11,   98,    99,
        100,  101,   102,   0.4,      0.5,       0.51,      0.6,   1.09, 1.1,   1.11,
        -1.0, -1.1,  -1.09, -1.2,     12.04,     12.05,     12.06, 12.5, -0.25, -0.24,
        -0.3, 999.9, 1000,  1000.001, 1000.0011, 1000.0009, -500};
    char schema[200], text[40];
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        for (size_t k = 0; k < 4; k++) {
            snprintf(schema, sizeof schema, "{\"type\":\"number\",\"%s\":%.10g}", keys[k],
                     limits[i]);
            struct grammar *g = rig_compile(GRAMMAR_SCHEMA, schema, NULL);
            for (size_t n = 0; n < sizeof numbers / sizeof *numbers; n++) {
                double x = numbers[n], l = limits[i];
                bool want = k == 0 ? x >= l : k == 1 ? x <= l : k == 2 ? x > l : x < l;
                snprintf(text, sizeof text, "%.10g", x);
                ck_assert_msg(rig_derives(g, text) == want, "%s: %s", schema, text);
                snprintf(text, sizeof text, x == floor(x) ? "%.0f.00" : "%.10g00", x);
                ck_assert_msg(rig_derives(g, text) == want, "%s: %s", schema, text);
            }
            grammar_put(g);
        }
    }
}
END_TEST

START_TEST(number_integers)
{
    char schema[200], text[40];
    static const int ranges[][2] = {{0, 0}, {-5, 12}, {7, 104}, {-230, -19}, {99, 1001}, {-1, 0}};
    for (size_t r = 0; r < sizeof ranges / sizeof *ranges; r++) {
        for (int m = 0; m <= 6; m += 3) {
            snprintf(schema, sizeof schema,
                     "{\"type\":\"integer\",\"minimum\":%d,\"maximum\":%d%s%d}", ranges[r][0],
                     ranges[r][1], m ? ",\"multipleOf\":" : ",\"minItems\":", m);
            struct grammar *g = rig_compile(GRAMMAR_SCHEMA, schema, NULL);
            for (int x = -1100; x <= 1100; x++) {
                bool want = x >= ranges[r][0] && x <= ranges[r][1] && (m == 0 || x % m == 0);
                snprintf(text, sizeof text, "%d", x);
                ck_assert_msg(rig_derives(g, text) == want, "%s: %s", schema, text);
            }
            grammar_put(g);
        }
    }
    check("{\"type\":\"integer\"}", TEXTS("+0", "+-7", "-1.0", "-1e2", "-01",
                                          "+123456789012345678901234567890", "--", "-+1"));
    check("{\"type\":\"number\"}",
          TEXTS("+0", "+-0.5", "+1e5", "+1.5E-07", "-1.", "-.5", "-1e", "-0123"));
    check("{\"type\":\"number\",\"multipleOf\":0.25}",
          TEXTS("+0.25", "+1.5", "+7", "+1.750", "-1.3", "-0.125", "+-2.25", "+10.00"));
    check("{\"type\":\"number\",\"not\":{\"multipleOf\":2}}", TEXTS("+1", "+2.5", "-2", "-4.0"));
    check("{\"type\":\"integer\",\"not\":{\"enum\":[3,-4,10]}}",
          TEXTS("+1", "-3", "-10", "--4", "+4", "+31", "+100"));
    check("{\"type\":\"integer\",\"minimum\":9007199254740993}",
          TEXTS("-9007199254740992", "+9007199254740993", "+9007199254740994"));
}
END_TEST

START_TEST(combinations)
{
    check(
        "{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"string\",\"maxLength\":1}],\"maximum\":5}",
        TEXTS("+3", "-7", "+\"a\"", "-\"ab\"", "-null"));
    check("{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\",\"minimum\":10}]}",
          TEXTS("+3", "-12", "+12.5", "-3.5"));
    check("{\"type\":[\"integer\",\"null\"],\"enum\":[1,null,\"x\",2.0]}",
          TEXTS("+1", "+null", "-\"x\"", "+2", "-3"));
    check("{\"type\":\"integer\",\"nullable\":true}", TEXTS("+1", "+null", "-\"\""));
    check(
        "{\"if\":{\"properties\":{\"k\":{\"const\":\"a\"}},\"required\":[\"k\"]},\"then\":{"
        "\"required\":[\"v\"]},\"else\":{\"maxProperties\":1},\"type\":\"object\",\"properties\":{"
        "\"k\":{\"enum\":[\"a\",\"b\"]},\"v\":{\"type\":\"null\"}},\"additionalProperties\":false}",
        TEXTS("+{\"k\":\"a\",\"v\":null}", "-{\"k\":\"a\"}", "+{\"k\":\"b\"}",
              "-{\"k\":\"b\",\"v\":null}", "+{}", "+{\"v\":null}"));
    check("{\"const\":{\"b\":[1,\"\\u00e9\"],\"a\":null}}",
          TEXTS("+{\"b\":[1,\"\xc3\xa9\"],\"a\":null}", "-{\"a\":null,\"b\":[1,\"\xc3\xa9\"]}"));
    check("true", TEXTS("+[{\"a\":[1,2,{}]},\"x\",null]", "-[", "-"));
    check("{\"$ref\":\"#/$defs/n\",\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"v\":{"
          "\"type\":\"integer\"},\"c\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/n\"}}},"
          "\"required\":[\"v\",\"c\"],\"additionalProperties\":false}}}",
          TEXTS("+{\"v\":1,\"c\":[]}", "+{\"v\":1,\"c\":[{\"v\":2,\"c\":[]},{\"v\":3,\"c\":[]}]}",
                "-{\"v\":1,\"c\":[{\"v\":2}]}"));
}
END_TEST

START_TEST(blanks_are_bounded)
{
    const char *schema = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\"}},"
                         "\"required\":[\"a\"],\"additionalProperties\":false}";
    rig_check(GRAMMAR_SCHEMA, schema, NULL,
              TEXTS("+{\"a\":[]}", "+{\"a\": []}", "+{ \"a\": [1, 2] }",
                    "+{\n  \"a\": [\n    1,\n    2\n  ]\n}", "+{\n\t\"a\": []\n}", "-{\"a\":  []}",
                    "-{  \"a\":[]}", "-{\n\n\"a\":[]}", "-{\"a\" :[]}", "- {\"a\":[]}",
                    "-{\"a\":[]} ", "-{\"a\":[1 ,2]}", "-{\"a\":\n[]}"));
    check(schema, TEXTS("+{\"a\":[1,2]}", "-{\"a\": [1,2]}", "-{\"a\":[1, 2]}", "-{\n\"a\":[]}"));
}
END_TEST

START_TEST(refused_with_path)
{
    static const struct {
        const char *schema;
        int status;
        const char *part;
    } cases[] = {
        {"{\"type\":\"strin\"}", STATUS_FORMAT, "#: unknown type \"strin\""},
        {"\"\"", STATUS_FORMAT, "a schema is an object"},
        {"null", STATUS_FORMAT, "a schema is an object"},
        {"{\"type\":\"object\"", STATUS_FORMAT, "not JSON"},
        {"{\"properties\":{\"x\":{\"items\":{\"type\":\"string\",\"pattern\":\"[\"}}}}",
         STATUS_FORMAT, "#/properties/x/items: regular expression, at byte 1"},
        {"{\"enum\":[]}", STATUS_FORMAT, "#: enum"},
        {"{\"allOf\":[{\"type\":\"string\"},{\"type\":\"number\"}]}", STATUS_RANGE,
         "nothing satisfies"},
        {"{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"$ref\":\"#/$defs/a\"}}}", STATUS_UNSUPPORTED,
         "#/$defs/a: it refers to itself"},
        {"{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}", STATUS_UNSUPPORTED,
         "it refers to itself"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}",
         STATUS_RANGE, "never ends"},
        {"{\"properties\":{\"a\":{\"$ref\":\"other.json\"}}}", STATUS_UNSUPPORTED,
         "#/properties/a: $ref \"other.json\" leads out"},
        {"{\"$ref\":\"#/$defs/none\"}", STATUS_FORMAT, "names no schema"},
        {"{\"items\":{\"uniqueItems\":true,\"type\":\"array\"}}", STATUS_UNSUPPORTED,
         "#/items: uniqueItems"},
        {"{\"unevaluatedProperties\":false}", STATUS_UNSUPPORTED, "unevaluatedProperties"},
        {"{\"type\":\"object\",\"minProperties\":3}", STATUS_UNSUPPORTED, "minProperties"},
        {"{\"minLength\":-1}", STATUS_FORMAT, "minLength"},
        {"{\"multipleOf\":0}", STATUS_FORMAT, "multipleOf"},
        {"{\"required\":[1]}", STATUS_FORMAT, "required"},
        {"{\"type\":\"string\",\"pattern\":\"(?<=x)*\"}", STATUS_UNSUPPORTED, "look-around"},
        {"{\"$schema\":\"http://example.com/mine\"}", STATUS_UNSUPPORTED, "unknown $schema"},
        {"{\"items\":3}", STATUS_FORMAT, "neither an object"},
        {"{\"type\":\"string\",\"minLength\":3,\"maxLength\":2}", STATUS_RANGE,
         "nothing satisfies"},
        {"{\"not\":{}}", STATUS_RANGE, "nothing satisfies"},
        {"{\"\\u0001notEnum\":[1]}", STATUS_UNSUPPORTED, "control character"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        rig_refused(GRAMMAR_SCHEMA, cases[i].schema, cases[i].status, cases[i].part);
}
END_TEST

/* prefix n times, then middle, then suffix n times. */
static char *nested(const char *prefix, const char *middle, const char *suffix, size_t n)
{
    char *a = rig_repeat(prefix, n), *c = rig_repeat(suffix, n);
    char *out = malloc(strlen(a) + strlen(middle) + strlen(c) + 1);
    ck_assert_ptr_nonnull(out);
    sprintf(out, "%s%s%s", a, middle, c);
    free(a);
    free(c);
    return out;
}

START_TEST(hostile_schemas)
{
    char *deep = nested("{\"items\":", "{}", "}", 100000);
    rig_refused(GRAMMAR_SCHEMA, deep, STATUS_FORMAT, "not JSON");
    free(deep);
    deep = nested("{\"items\":", "{}", "}", 200000);
    rig_refused(GRAMMAR_SCHEMA, deep, STATUS_LIMIT, "larger than");
    free(deep);
    deep = nested("{\"not\":", "{}", "}", 500);
    rig_refused(GRAMMAR_SCHEMA, deep, STATUS_LIMIT, "");
    free(deep);
    deep = nested("{\"type\":\"array\",\"minItems\":1,\"items\":", "{}", "}", 300);
    rig_refused(GRAMMAR_SCHEMA, deep, STATUS_LIMIT, "nested too deep");
    free(deep);
    char *parens = rig_repeat("(", 100000);
    char *schema = malloc(200000);
    ck_assert_ptr_nonnull(schema);
    sprintf(schema, "{\"type\":\"string\",\"pattern\":\"%s\"}", parens);
    rig_refused(GRAMMAR_SCHEMA, schema, STATUS_LIMIT, "nested too deep");
    free(parens);
    free(schema);
    rig_refused(GRAMMAR_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^+[a-z]$\"}", STATUS_FORMAT,
                "nothing to repeat");
    rig_refused(GRAMMAR_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^{2}x$\"}", STATUS_FORMAT,
                "nothing to repeat");
    rig_refused(GRAMMAR_SCHEMA,
                "{\"pattern\":\"((((a{1,99}){1,99}){1,99}){1,99})b\",\"minLength\":3}",
                STATUS_LIMIT, "too large");
    /* Nothing here costs what its numbers say. */
    check("{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"maxItems\":1000000000}",
          TEXTS("+[]", "+[\"a\",\"b\"]"));
    check("{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"minItems\":1000000000}",
          TEXTS("-[]"));
    check("{\"type\":\"object\",\"properties\":{\"o\":{\"type\":\"object\",\"properties\":{\"s\":{"
          "\"type\":\"string\",\"maxLength\":5000}},\"required\":[\"s\"]}},\"required\":[\"o\"]}",
          TEXTS("+{\"o\":{\"s\":\"x\"}}"));
    /* Alternatives that multiply. */
    rig_refused(
        GRAMMAR_SCHEMA,
        "{\"allOf\":[{\"anyOf\":[{\"minLength\":1},{\"minLength\":2},{\"minLength\":3},{"
        "\"minLength\":4},{\"minLength\":5},{\"minLength\":6},{\"minLength\":7},{\"minLength\":8}]}"
        ","
        "{\"anyOf\":[{\"maxLength\":11},{\"maxLength\":12},{\"maxLength\":13},{\"maxLength\":14},{"
        "\"maxLength\":15},{\"maxLength\":16},{\"maxLength\":17},{\"maxLength\":18}]},{\"anyOf\":[{"
        "\"minItems\":1},{\"minItems\":2},{\"minItems\":3},{\"minItems\":4},{\"minItems\":5},{"
        "\"minItems\":6},{\"minItems\":7},{\"minItems\":8}]},{\"anyOf\":[{\"maxItems\":11},{"
        "\"maxItems\":12},{\"maxItems\":13},{\"maxItems\":14},{\"maxItems\":15},{\"maxItems\":16},"
        "{\"maxItems\":17},{\"maxItems\":18}]},{\"anyOf\":[{\"minimum\":1},{\"minimum\":2},{"
        "\"minimum\":3},{\"minimum\":4},{\"minimum\":5},{\"minimum\":6},{\"minimum\":7}]}]}",
        STATUS_LIMIT, "");
}
END_TEST

START_TEST(references)
{
    check(
        "{\"$id\":\"http://x.org/a/root.json\",\"$ref\":\"other.json#/$defs/s\",\"$defs\":{\"o\":{"
        "\"$id\":\"other.json\",\"$defs\":{\"s\":{\"$anchor\":\"here\",\"type\":\"integer\"}}}}}",
        TEXTS("+1", "-\"\""));
    check("{\"$ref\":\"#here\",\"$defs\":{\"o\":{\"$anchor\":\"here\",\"type\":\"null\"}}}",
          TEXTS("+null", "-1"));
    check("{\"properties\":{\"a\":{\"$ref\":\"#/$defs/"
          "x~1y%25~0\",\"maximum\":3}},\"required\":[\"a\"],"
          "\"type\":\"object\",\"additionalProperties\":false,\"$defs\":{\"x/"
          "y%~\":{\"type\":\"integer\"}}}",
          TEXTS("+{\"a\":3}", "-{\"a\":4}", "-{\"a\":\"\"}"));
    struct grammar_options draft7 = {.compact = true, .dialect = GRAMMAR_DRAFT_7};
    rig_check(
        GRAMMAR_SCHEMA,
        "{\"properties\":{\"a\":{\"$ref\":\"#/definitions/i\",\"maximum\":3}},\"required\":[\"a\"],"
        "\"type\":\"object\",\"additionalProperties\":false,\"definitions\":{\"i\":{\"type\":"
        "\"integer\"}}}",
        &draft7, TEXTS("+{\"a\":3}", "+{\"a\":4}", "-{\"a\":\"\"}"));
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("schema");
    TCase *c = tcase_create("schema");
    tcase_set_timeout(c, 120);
    tcase_add_test(c, object_properties_in_order);
    tcase_add_test(c, object_limits_and_patterns);
    tcase_add_test(c, array_items);
    tcase_add_test(c, string_conditions);
    tcase_add_test(c, string_enum_with_format);
    tcase_add_test(c, string_formats);
    tcase_add_test(c, number_limits);
    tcase_add_test(c, number_integers);
    tcase_add_test(c, combinations);
    tcase_add_test(c, blanks_are_bounded);
    tcase_add_test(c, refused_with_path);
    tcase_add_test(c, references);
    tcase_add_test(c, hostile_schemas);
    suite_add_tcase(s, c);
    return s;
}
