/* Tests of common/text/toolcall: every format, cut at every byte, broken, cut off, in parallel. */
#include "common/text/json_scan.h"
#include "tests/text/reply_rig.h"

#define BAR       "\xe2\x96\x81"
#define DS(words) "<\xef\xbd\x9c" words "\xef\xbd\x9c>"
#define DSML                                                                                       \
    "\xef\xbd\x9c"                                                                                 \
    "DSML"                                                                                         \
    "\xef\xbd\x9c"
#define NS   "]<]minimax[>["
#define Z    "Z\xc3\xbcrich"
#define CALL "[\"get_weather\", {\"city\": \"" Z "\", \"days\": 2}]"
#define TWO  "{\"calls\": [" CALL ", [\"stop\", {}]]}"

struct sample {
    const char *format, *text, *want;
};

static const struct sample samples[] = {
    /* One and two calls in every format, with content before and after. */
    {"hermes",
     "I look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"" Z
     "\", \"days\": 2}}\n</tool_call>",
     "{\"content\": \"I look.\", \"calls\": [" CALL "]}"},
    {"hermes",
     "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"" Z
     "\", \"days\": 2}}\n</tool_call>\n<tool_call>\n{\"arguments\": {}, \"name\": \"stop\"}\n"
     "</tool_call>\n",
     TWO},
    {"hermes",
     "a <tool_call>{\"name\": \"stop\", \"arguments\": \"{\\\"a\\\": [1]}\"}</tool_call> b",
     "{\"content\": \"a b\", \"calls\": [[\"stop\", {\"a\": [1]}]]}"},
    {"hermes", "<tool_call>{\"name\": \"stop\", \"arguments\": null}</tool_call>",
     "{\"calls\": [[\"stop\", {}]]}"},
    {"hermes", "<tool_call>{\"name\": \"stop\"}</tool_call>", "{\"calls\": [[\"stop\", {}]]}"},
    {"hermes",
     "<tool_call>{\"name\": \"stop\", \"arguments\": {\"a\": \"</tool_call>\"}}</tool_call>",
     "{\"calls\": [[\"stop\", {\"a\": \"</tool_call>\"}]]}"},
    {"hermes", "<tool_call>{\"name\": \"stop\", \"arguments\": {\"n\": -1.5e3}}\n</tool_call>",
     "{\"calls\": [[\"stop\", {\"n\": -1500.0}]]}"},
    {"tool_calls",
     "<tool_calls>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"" Z
     "\", \"days\": 2}}\n{\"name\": \"stop\", \"arguments\": {}}\n</tool_calls>",
     TWO},
    {"tool_calls",
     "<tool_calls>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"" Z
     "\", \"days\": 2}, \"id\": \"c1\"}, {\"name\": \"stop\", \"arguments\": {}}]</tool_calls>",
     "{\"calls\": [[\"get_weather\", {\"city\": \"" Z
     "\", \"days\": 2}, \"c1\"], [\"stop\", {}]]}"},
    {"nemotron",
     "<TOOLCALL>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"" Z
     "\", \"days\": 2}}, {\"name\": \"stop\", \"arguments\": {}}]</TOOLCALL>",
     TWO},
    {"command",
     "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"get_weather\", "
     "\"parameters\": {\"city\": \"" Z "\", \"days\": 2}}\n]<|END_ACTION|>",
     "{\"calls\": [[\"get_weather\", {\"city\": \"" Z "\", \"days\": 2}, \"0\"]]}"},
    {"apertus",
     "<|tools_prefix|>[{\"get_weather\": {\"city\": \"" Z
     "\", \"days\": 2}}, {\"stop\": {}}]<|tools_suffix|>",
     TWO},
    {"granite",
     "<|tool_call|>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"" Z
     "\", \"days\": 2}}, {\"name\": \"stop\", \"arguments\": {}}]",
     TWO},
    {"gigachat",
     "Yes.<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"get_weather\", \"arguments\": "
     "{\"city\": \"" Z "\", \"days\": 2}}<|message_sep|>\n\n",
     "{\"content\": \"Yes.\", \"calls\": [" CALL "]}"},
    {"mistral",
     "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": {\"city\": \"" Z
     "\", \"days\": 2}}, {\"name\": \"stop\", \"arguments\": {}}]",
     TWO},
    {"mistral",
     "[TOOL_CALLS]get_weather[ARGS]{\"city\": \"" Z "\", \"days\": 2}[TOOL_CALLS]stop[ARGS]{}",
     TWO},
    {"mistral",
     "Sure.[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{\"city\": \"" Z
     "\", \"days\": 2}[TOOL_CALLS]stop{}",
     "{\"content\": \"Sure.\", \"calls\": [[\"get_weather\", {\"city\": \"" Z
     "\", \"days\": 2}, \"abcdefghi\"], [\"stop\", {}]]}"},
    {"llama3_json",
     "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"" Z "\", \"days\": 2}}",
     "{\"calls\": [" CALL "]}"},
    {"llama3_json",
     "<|python_tag|>{\"name\": \"get_weather\", \"parameters\": {\"city\": \"" Z
     "\", \"days\": 2}}; {\"type\": \"function\", \"name\": \"stop\", \"parameters\": {}}",
     TWO},
    {"functionary",
     "<function=get_weather>{\"city\": \"" Z
     "\", \"days\": 2}</function><function=stop>{}</function>",
     TWO},
    {"functionary_v3.2", "get_weather\n{\"city\": \"" Z "\", \"days\": 2}>>>stop\n{}", TWO},
    {"functionary_v3.2", "all\nHello >> there.>>>stop\n{}",
     "{\"content\": \"Hello >> there.\", \"calls\": [[\"stop\", {}]]}"},
    {"deepseek",
     "Let me see." DS("tool" BAR "calls" BAR "begin")
         DS("tool" BAR "call" BAR "begin") "function" DS(
             "tool" BAR
             "sep") "get_weather\n```json\n{\"city\": \"" Z
                    "\", \"days\": 2}\n```" DS("tool" BAR "call" BAR "end") "\n" DS(
                        "tool" BAR "call" BAR
                        "begin") "function" DS("tool" BAR
                                               "sep") "stop\n```json\n{}\n```" DS("tool" BAR
                                                                                  "call" BAR "end")
                        DS("tool" BAR "calls" BAR "end"),
     "{\"content\": \"Let me see.\", \"calls\": [" CALL ", [\"stop\", {}]]}"},
    {"deepseek",
     DS("tool" BAR "calls" BAR "begin") DS("tool" BAR "call" BAR "begin") "get_weather" DS(
         "tool" BAR "sep") "{\"city\": \"" Z "\", \"days\": 2}" DS("tool" BAR "call" BAR "end")
         DS("tool" BAR "call" BAR "begin") "stop" DS("tool" BAR "sep") "{}" DS(
             "tool" BAR "call" BAR "end") DS("tool" BAR "calls" BAR "end"),
     TWO},
    {"kimi",
     "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
     "<|tool_call_argument_begin|>{\"city\": \"" Z
     "\", \"days\": 2}<|tool_call_end|><|tool_call_begin|>functions.stop:1"
     "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
     "{\"calls\": [[\"get_weather\", {\"city\": \"" Z
     "\", \"days\": 2}, \"functions.get_weather:0\"], [\"stop\", {}, \"functions.stop:1\"]]}"},
    {"solar",
     "<|tool_calls|><|tool_call:begin|>a1<|tool_call:name|>get_weather<|tool_call:args|>{\"city\": "
     "\"" Z "\", \"days\": 2}<|tool_call:end|><|calls|>",
     "{\"calls\": [[\"get_weather\", {\"city\": \"" Z "\", \"days\": 2}, \"a1\"]]}"},
    {"qwen3_coder",
     "Now:\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\n" Z
     "\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n"
     "<function=stop>\n</function>\n</tool_call>",
     "{\"content\": \"Now:\", \"calls\": [" CALL ", [\"stop\", {}]]}"},
    {"qwen3_coder",
     "<function=get_weather><parameter=city>\n\na \"b\"\n\tc\\\n\n</parameter><parameter=exact>\n"
     "True\n</parameter><parameter=tags>\n[\"x\", \"y\"]\n</parameter></function>",
     "{\"calls\": [[\"get_weather\", {\"city\": \"\\na \\\"b\\\"\\n\\tc\\\\\\n\", \"exact\": true, "
     "\"tags\": [\"x\", \"y\"]}]]}"},
    {"qwen3_coder",
     "<function=get_weather><parameter=days>\nsoon\n</parameter><parameter=odd>\n[1]\n"
     "</parameter><parameter=unit>null</parameter></function>",
     "{\"calls\": [[\"get_weather\", {\"days\": \"soon\", \"odd\": [1], \"unit\": \"null\"}]]}"},
    {"glm",
     "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>" Z
     "</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</"
     "tool_call>\n<tool_call>stop"
     "\n</tool_call>",
     TWO},
    {"glm",
     "<tool_call>get_weather<arg_key>city</arg_key><arg_value>" Z
     "</arg_value><arg_key>days</arg_key><arg_value>2</arg_value></tool_call><tool_call>stop"
     "</tool_call>",
     TWO},
    {"hunyuan",
     "<tool_calls:opensource>\n<tool_call:opensource>get_weather<tool_sep:opensource>\n"
     "<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>" Z
     "</arg_value:opensource>\n<arg_key:opensource>days</arg_key:opensource>\n"
     "<arg_value:opensource>2</arg_value:opensource>\n</tool_call:opensource>\n"
     "</tool_calls:opensource>",
     "{\"calls\": [" CALL "]}"},
    {"minimax",
     "<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">" Z
     "</parameter>\n<parameter name=\"days\">2</parameter>\n</invoke>\n<invoke "
     "name=\"stop\">\n</invoke>\n</minimax:tool_call>",
     TWO},
    {"dsml",
     "<" DSML "tool_calls>\n<" DSML "invoke name=\"get_weather\">\n<" DSML
     "parameter name=\"city\" string=\"true\">" Z "</" DSML "parameter>\n<" DSML
     "parameter name=\"days\" string=\"false\">2</" DSML "parameter>\n</" DSML "invoke>\n<" DSML
     "invoke name=\"stop\">\n</" DSML "invoke>\n</" DSML "tool_calls>",
     TWO},
    {"dsml",
     "<" DSML "invoke name=\"stop\">\n<" DSML "parameter name=\"a\" string=\"true\">2</" DSML
     "parameter><" DSML "parameter name=\"b\" string=\"false\">[{}]</" DSML "parameter></" DSML
     "invoke>",
     "{\"calls\": [[\"stop\", {\"a\": \"2\", \"b\": [{}]}]]}"},
    {"atem",
     "<atem:function_calls>\n<atem:invoke name=\"get_weather\">\n<atem:parameter name=\"city\">" Z
     "</atem:parameter>\n<atem:parameter name=\"days\">2</atem:parameter>\n</atem:invoke>\n"
     "</atem:function_calls>",
     "{\"calls\": [" CALL "]}"},
    {"minimax_m3",
     NS "<tool_call>\n" NS "<invoke name=\"get_weather\">" NS "<city>" Z NS "</city>" NS
        "<days>2" NS "</days>" NS "</invoke>\n" NS "<invoke name=\"stop\">" NS "</invoke>\n" NS
        "</tool_call>",
     TWO},
    {"minimax_m3",
     NS "<invoke name=\"get_weather\">" NS "<tags>" NS "<item>1" NS "</item>" NS "<item>b" NS
        "</item>" NS "</tags>" NS "<at>" NS "<zip>8001" NS "</zip>" NS "<x>" NS "<y>1" NS "</y>" NS
        "</x>" NS "</at>" NS "</invoke>",
     "{\"calls\": [[\"get_weather\", {\"tags\": [\"1\", \"b\"], \"at\": {\"zip\": \"8001\", "
     "\"x\": {\"y\": 1}}}]]}"},
    {"lfm", "<|tool_call_start|>[get_weather(city='" Z "', days=2), stop()]<|tool_call_end|>Wait.",
     "{\"content\": \"Wait.\", \"calls\": [" CALL ", [\"stop\", {}]]}"},
    {"lfm",
     "<|tool_call_start|>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"" Z
     "\", \"days\": 2}}]<|tool_call_end|>",
     "{\"calls\": [" CALL "]}"},
    {"pythonic",
     "[get_weather(city=\"it's\\n\\x41\\u00fc\\q\", days = -1_000, exact=True, at={'zip': None, "
     "'l': [1, (2.5,), []], 'd': {}}), stop()]",
     "{\"calls\": [[\"get_weather\", {\"city\": \"it's\\nA\xc3\xbc\\\\q\", \"days\": -1000, "
     "\"exact\": true, \"at\": {\"zip\": null, \"l\": [1, [2.5], []], \"d\": {}}}], [\"stop\", "
     "{}]]}"},
    {"gemma",
     "<|tool_call>call:get_weather{city:<|\"|>" Z
     "<|\"|>,days:2}<tool_call|><|tool_call>call:stop{}<tool_call|>",
     TWO},
    {"gemma",
     "<|tool_call>call:get_weather{at:{zip:<|\"|>a\"}<|\"|>,<|\"|>b "
     "c<|\"|>:null},tags:[<|\"|>x<|\"|>,"
     "<|\"|><|\"|>],exact:false}<tool_call|>",
     "{\"calls\": [[\"get_weather\", {\"at\": {\"zip\": \"a\\\"}\", \"b c\": null}, \"tags\": "
     "[\"x\", \"\"], \"exact\": false}]]}"},

    /* What is no call stays content, byte for byte. */
    {"hermes", "<tool_call>\nnot JSON\n</tool_call>\n",
     "{\"content\": \"<tool_call>\\nnot JSON\\n</tool_call>\\n\"}"},
    {"hermes", " <tool_call>{\"name\": \"stop\", \"arguments\": {\"a\": }}</tool_call>",
     "{\"content\": \" <tool_call>{\\\"name\\\": \\\"stop\\\", \\\"arguments\\\": {\\\"a\\\": "
     "}}</tool_call>\"}"},
    {"hermes", "<tool_call>{\"arguments\": {}}</tool_call>",
     "{\"content\": \"<tool_call>{\\\"arguments\\\": {}}</tool_call>\"}"},
    {"hermes", "<tool_call>{\"name\": 5, \"arguments\": {}}</tool_call>",
     "{\"content\": \"<tool_call>{\\\"name\\\": 5, \\\"arguments\\\": {}}</tool_call>\"}"},
    {"hermes", "<tool_call>{\"name\": \"stop\", \"arguments\": [1]}</tool_call>",
     "{\"content\": \"<tool_call>{\\\"name\\\": \\\"stop\\\", \\\"arguments\\\": "
     "[1]}</tool_call>\"}"},
    {"hermes", "<tool_call></tool_call>", "{\"content\": \"<tool_call></tool_call>\"}"},
    {"hermes", "x <tool_cal> y <tool_call", "{\"content\": \"x <tool_cal> y <tool_call\"}"},
    {"hermes", "<tool_call>{\"name\": \"stop\", \"arguments\": {\"a\": 1, b}}</tool_call>",
     "{\"content\": \"<tool_call>{\\\"name\\\": \\\"stop\\\", \\\"arguments\\\": {\\\"a\\\": 1, "
     "b}}</tool_call>\", \"broken\": 1}"},
    {"hermes", "<tool_call>{\"name\": \"stop\", \"arguments\": {}}\n</tool_call> <tool_call>oh",
     "{\"content\": \"<tool_call>oh\", \"calls\": [[\"stop\", {}]]}"},
    {"hermes", "<tool_call>{\"name\": \"stop\", \"arguments\": {}</tool_call>",
     "{\"calls\": [[\"stop\", {}]]}"}, /* only the last brace is missing */
    {"llama3_json", "{\"name\": \"Ann\", \"parameters\": {}}",
     "{\"content\": \"{\\\"name\\\": \\\"Ann\\\", \\\"parameters\\\": {}}\"}"},
    {"llama3_json", "{\"age\": 3}", "{\"content\": \"{\\\"age\\\": 3}\"}"},
    {"llama3_json", "See {\"name\": \"stop\", \"parameters\": {}}",
     "{\"content\": \"See {\\\"name\\\": \\\"stop\\\", \\\"parameters\\\": {}}\"}"},
    {"pythonic", "[1, 2, 3]", "{\"content\": \"[1, 2, 3]\"}"},
    {"pythonic", "[other(a=1)]", "{\"content\": \"[other(a=1)]\"}"},
    {"pythonic", "[stop(1)]", "{\"content\": \"[stop(1)]\"}"},
    {"pythonic", "[stop(a=b)]", "{\"content\": \"[stop(a=b)]\", \"broken\": 1}"},
    {"glm", "<tool_call>\n</tool_call>", "{\"content\": \"<tool_call>\\n</tool_call>\"}"},
    {"qwen3_coder", "<tool_call>\nnothing\n</tool_call>",
     "{\"content\": \"<tool_call>\\nnothing\\n</tool_call>\"}"},
    {"mistral", "[TOOL_CALLS]stop[ARGS]oh", "{\"content\": \"[TOOL_CALLS]stop[ARGS]oh\"}"},
    {"kimi", "<|tool_call_begin|>functions.stop:0<|tool_call_argument_begin|>{1",
     "{\"content\": \"<|tool_call_begin|>functions.stop:0<|tool_call_argument_begin|>{1\"}"},
    {"gemma", "<|tool_call>call:stop{a:b}<tool_call|>",
     "{\"content\": \"<|tool_call>call:stop{a:b}<tool_call|>\", \"broken\": 1}"},

    /* The model ends inside a call. */
    {"hermes", "<tool_call>{\"name\": \"stop\", \"arguments\": {\"a\": \"x",
     "{\"content\": \"<tool_call>{\\\"name\\\": \\\"stop\\\", \\\"arguments\\\": {\\\"a\\\": "
     "\\\"x\", \"broken\": 1}"},
    {"hermes", "<tool_call>{\"name\": \"stop\", \"arguments\": {}}\n</tool_",
     "{\"calls\": [[\"stop\", {}]]}"},
};

/* max_tokens ends the text inside a call. */
static const struct sample cut_samples[] = {
    {"hermes", "<tool_call>{\"name\": \"stop\", \"arguments\": {\"a\": \"x",
     "{\"open\": [\"stop\", \"{\\\"a\\\": \\\"x\"]}"},
    {"hermes", "<tool_call>{\"name\": \"stop\", \"arguments\": {}}",
     "{\"calls\": [[\"stop\", {}]]}"},
    {"hermes", "Hm. <tool_call>{\"name\": \"st", "{\"content\": \"Hm.\"}"},
    {"hermes", "Hm. <tool_c", "{\"content\": \"Hm. \"}"},
    {"llama3_json", "{\"name\": \"st", "{\"content\": \"{\\\"name\\\": \\\"st\"}"},
    {"qwen3_coder", "<tool_call>\n<function=get_weather>\n<parameter=city>\nZu",
     "{\"open\": [\"get_weather\", \"{\\\"city\\\": \\\"Zu\"]}"},
};

static void check_samples(const struct sample *s, size_t n, bool cut)
{
    json_t *tools = reply_json(TOOLS);
    for (size_t i = 0; i < n; i++) {
        struct reply_profile p = {.tools = toolcall_format_find(s[i].format)};
        ck_assert_msg(p.tools != NULL, "%s", s[i].format);
        char *got = reply_read(&p, REASONING_UNSAID, tools, s[i].text, cut);
        reply_compare(got, s[i].want, s[i].text);
        free(got);
    }
    json_decref(tools);
}

START_TEST(push_samples)
{
    check_samples(samples, sizeof samples / sizeof *samples, false);
    check_samples(cut_samples, sizeof cut_samples / sizeof *cut_samples, true);
}
END_TEST

/* Every format of the table has a sample. */
START_TEST(formats_have_samples)
{
    for (size_t i = 0; toolcall_format_at(i); i++) {
        const char *name = toolcall_format_name(toolcall_format_at(i));
        bool found = strcmp(name, "harmony") == 0; /* test_reply.c */
        for (size_t k = 0; k < sizeof samples / sizeof *samples; k++)
            found = found || strcmp(samples[k].format, name) == 0;
        ck_assert_msg(found, "%s", name);
    }
}
END_TEST

/* Arguments come while they are written, and what is shown of them never changes. */
START_TEST(push_streams_arguments)
{
    json_t *tools = reply_json(TOOLS);
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        const struct sample *s = &samples[i];
        struct reply_profile p = {.tools = toolcall_format_find(s->format)};
        struct reply r;
        char seen[8][512] = {{0}};
        size_t n, steps = 0;
        ck_assert_ok(reply_init(&r, &p, REASONING_UNSAID, tools));
        for (const char *c = s->text; *c; c++) {
            reply_push(&r, c, 1);
            struct toolcall_call *calls = toolcall_calls(r.tools, &n);
            for (size_t k = 0; k < n; k++) {
                if (!calls[k].shown)
                    continue;
                const char *now = buf_str(&calls[k].arguments);
                ck_assert_msg(strncmp(now, seen[k], strlen(seen[k])) == 0, "%s: %s, then %s",
                              s->text, seen[k], now);
                steps += strcmp(now, seen[k]) != 0;
                snprintf(seen[k], sizeof seen[k], "%s", now);
            }
        }
        if (strstr(s->want, CALL) && strcmp(s->format, "minimax_m3") != 0)
            ck_assert_msg(steps >= 7, "%s: %zu steps", s->text, steps);
        reply_fini(&r);
    }
    json_decref(tools);
}
END_TEST

/* Any prefix of any sample is accepted, and a text without marks is content as it is. */
START_TEST(push_prefixes)
{
    json_t *tools = reply_json(TOOLS);
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        struct reply_profile p = {.tools = toolcall_format_find(samples[i].format)};
        for (size_t n = 0; n <= strlen(samples[i].text); n++) {
            for (int cut = 0; cut < 2; cut++)
                free(reply_of(&p, REASONING_UNSAID, tools, samples[i].text, n, cut, &(size_t){1},
                              1));
        }
        const char *text = " \n plain <b> {x} [y] text\n\n ";
        if (strcmp(samples[i].format, "functionary_v3.2") == 0)
            continue; /* there content needs a header */
        char *got = reply_read(&p, REASONING_UNSAID, tools, text, false);
        reply_compare(got, "{\"content\": \" \\n plain <b> {x} [y] text\\n\\n \"}", text);
        free(got);
    }
    json_decref(tools);
}
END_TEST

START_TEST(push_hostile)
{
    /* Depth, length, many calls: bounded, never a crash, and never lost. */
    json_t *tools = reply_json(TOOLS);
    struct buf b;
    buf_init(&b, 0);
    static const char *const formats[] = {"hermes", "pythonic", "gemma", "minimax_m3",
                                          "qwen3_coder"};
    static const char *const heads[] = {
        "<tool_call>{\"name\": \"stop\", \"arguments\": {\"a\": ", "[stop(a=",
        "<|tool_call>call:stop{a:", NS "<invoke name=\"stop\">", "<function=stop><parameter=a>"};
    static const char *const nests[] = {"[", "[", "[", NS "<a>", "<parameter=a>"};
    for (size_t i = 0; i < 5; i++) {
        struct reply_profile p = {.tools = toolcall_format_find(formats[i])};
        buf_reset(&b);
        buf_puts(&b, heads[i]);
        for (int k = 0; k < 20000; k++)
            buf_puts(&b, nests[i]);
        free(reply_of(&p, REASONING_UNSAID, tools, b.data, b.len, false, &(size_t){7}, 1));
        buf_reset(&b);
        for (int k = 0; k < 20000; k++)
            buf_puts(&b, heads[i]);
        free(reply_of(&p, REASONING_UNSAID, tools, b.data, b.len, false, &(size_t){7}, 1));
    }
    struct reply_profile p = {.tools = toolcall_format_find("hermes")};
    struct reply r;
    ck_assert_ok(reply_init(&r, &p, REASONING_UNSAID, tools));
    for (int k = 0; k < 1000; k++)
        reply_push(&r, "<tool_call>{\"name\": \"stop\"}</tool_call>\n", 43 - 3);
    reply_end(&r, false);
    size_t n;
    toolcall_calls(r.tools, &n);
    ck_assert_uint_eq(n, 1000);
    ck_assert_uint_eq(r.content.len, 0);
    reply_fini(&r);
    buf_fini(&b);
    json_decref(tools);
}
END_TEST

START_TEST(json_scan_cases)
{
    static const char *const good[] = {
        "{}",   "[]",      " { \"a\" : [ 1 , -0.5e+7 , true , null ] } ",
        "0",    "-1",      "\"\\u00e9\\n\"",
        "10e2", "[[],{}]", "{\"a\":{\"b\":\"c\"}}"};
    static const char *const bad[] = {
        "",      "{",     "}",          "{]",    "[1,]",    "{\"a\"}",     "01",        "1.",
        "-",     "+1",    ".5",         "1e",    "\"\\x\"", "\"\\u12g4\"", "\"\n\"",    "nul",
        "tru e", "[1 2]", "{\"a\":1,}", "{a:1}", "1 1",     "\"",          "{\"a\" 1}", "[,]"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        ck_assert_msg(json_scan_whole(good[i], strlen(good[i])), "%s", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ck_assert_msg(!json_scan_whole(bad[i], strlen(bad[i])), "%s", bad[i]);
    char deep[1200];
    memset(deep, '[', 600);
    memset(deep + 600, ']', 600);
    ck_assert(json_scan_whole(deep + 600 - 256, 512));
    ck_assert(!json_scan_whole(deep + 600 - 257, 514));
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("toolcall");
    TCase *c = tcase_create("toolcall");
    tcase_set_timeout(c, 60);
    tcase_add_test(c, json_scan_cases);
    tcase_add_test(c, push_samples);
    tcase_add_test(c, formats_have_samples);
    tcase_add_test(c, push_streams_arguments);
    tcase_add_test(c, push_prefixes);
    tcase_add_test(c, push_hostile);
    suite_add_tcase(s, c);
    return s;
}
