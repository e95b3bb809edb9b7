/* Chat answers as clients get them: thinking, content and tool calls, whole and in deltas; and what
 * requests say about them. */
#include "routerd/message.h"
#include "common/base/json.h"
#include "routerd/think.h"
#include "tests/harness.h"
#include "tests/routerd/bytes_vocab.h"
#include "tests/text/vocab_build.h"

#include <stdlib.h>
#include <string.h>

static struct tokenizer *vocab;
static json_t *tools;

static void setup(void)
{
    json_error_t e;
    vocab = bytes_vocab();
    tools = json_loads("[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]", 0, &e);
    ck_assert_ptr_nonnull(tools);
}

static void teardown(void)
{
    json_decref(tools);
    tokenizer_destroy(vocab);
}

/* What the model writes, how it ends, and the message. */
struct sample {
    const char *text;
    enum proto_finish finish;
    const char *stop;                       /* a stop string, or NULL */
    const char *content, *thinking, *calls; /* calls: [[name, arguments], …] */
    const char *reason;
    bool one_call;
};
static const struct sample samples[] = {
    {"<think>abc</think>def", PROTO_FINISH_STOP, NULL, "def", "abc", NULL, "stop", false},
    {"<think>abc", PROTO_FINISH_LENGTH, NULL, NULL, "abc", NULL, "length", false},
    {"<think>abc", PROTO_FINISH_STOP, NULL, NULL, "abc", NULL, "stop", false},
    {"abc", PROTO_FINISH_STOP, NULL, "abc", NULL, NULL, "stop", false},
    {"", PROTO_FINISH_STOP, NULL, "", NULL, NULL, "stop", false},
    /* B29: stop strings look at the content alone */
    {"<think>first idea</think>The answer is 4.", PROTO_FINISH_STOP, "ZZZZZZZZ", "The answer is 4.",
     "first idea", NULL, "stop", false},
    {"<think>first idea</think>The answer is 4.", PROTO_FINISH_STOP, "</th", "The answer is 4.",
     "first idea", NULL, "stop", false},
    {"<think>first idea</think>The answer is 4.", PROTO_FINISH_STOP, "i", "The answer ",
     "first idea", NULL, "stop", false},
    {"<think>one</think>pleas", PROTO_FINISH_LENGTH, "assistant", "pleas", "one", NULL, "length",
     false},
    {"Hm.\n<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"\xc3\xa9\"}}</tool_call>",
     PROTO_FINISH_STOP, NULL, "Hm.", NULL, "[[\"f\", {\"a\": \"\xc3\xa9\"}]]", "tool_calls", false},
    {"<think>t</think><tool_call>{\"name\": \"f\"}</tool_call>\n<tool_call>{\"name\": \"g\"}"
     "</tool_call>",
     PROTO_FINISH_STOP, "a", NULL, "t", "[[\"f\", {}], [\"g\", {}]]", "tool_calls", false},
    {"<tool_call>{\"name\": \"f\"}</tool_call><tool_call>{\"name\": \"g\"}</tool_call>",
     PROTO_FINISH_STOP, NULL, NULL, NULL, "[[\"f\", {}]]", "tool_calls", true},
    {"<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1", PROTO_FINISH_LENGTH, NULL, NULL, NULL,
     "[[\"f\", \"{\\\"a\\\": 1\"]]", "length", false},
    {"<tool_call>{oops</tool_call>", PROTO_FINISH_STOP, NULL, "<tool_call>{oops</tool_call>", NULL,
     NULL, "stop", false},
};

static void start(const struct sample *s, const struct reply_profile *p, struct answer *a,
                  struct message *m)
{
    char *stops[] = {(char *)s->stop};
    size_t len = s->stop ? strlen(s->stop) : 0;
    ck_assert_ok(answer_init(a, vocab, stops, &len, s->stop ? 1 : 0, true));
    ck_assert_ok(answer_read(a, p, REASONING_UNSAID, tools));
    message_init(m, MESSAGE_BOTH, false, s->one_call);
}

static json_t *parse(const struct buf *b)
{
    json_error_t e;
    json_t *j = json_loadb(buf_str(b), b->len, 0, &e);
    ck_assert_msg(j != NULL, "%s: %s", buf_str(b), e.text);
    return j;
}

static const char *get(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

static void check_text(const char *got, const char *want, const char *text)
{
    ck_assert_msg(want ? got && strcmp(got, want) == 0 : !got, "%s: %s", text, got ? got : "null");
}

static void check_calls(const json_t *calls, const struct sample *s)
{
    json_error_t e;
    json_t *want = json_loads(s->calls ? s->calls : "[]", 0, &e);
    ck_assert_msg(want && json_array_size(calls) == json_array_size(want), "%s", s->text);
    for (size_t i = 0; i < json_array_size(want); i++) {
        const json_t *call = json_array_get(calls, i), *f = json_object_get(call, "function");
        const json_t *w = json_array_get(want, i), *arguments = json_array_get(w, 1);
        ck_assert_str_eq(get(call, "type"), "function");
        ck_assert_msg(strncmp(get(call, "id"), "call_", 5) == 0 && strlen(get(call, "id")) == 29,
                      "%s", get(call, "id"));
        ck_assert_str_eq(get(f, "name"), json_string_value(json_array_get(w, 0)));
        if (json_is_string(arguments)) {
            ck_assert_str_eq(get(f, "arguments"), json_string_value(arguments));
            continue;
        }
        json_t *got = json_loads(get(f, "arguments"), 0, &e);
        ck_assert_msg(json_equal(got, arguments), "%s", s->text);
        json_decref(got);
    }
    json_decref(want);
}

static bool feed(struct answer *a, struct message *m, char c)
{
    struct proto_token t = {.token = (unsigned char)c, .logprob = -1};
    ck_assert_ok(answer_token(a, &t, true));
    return a->stopped || message_full(m, a);
}

START_TEST(message_whole)
{
    struct reply_profile p = {.reasoning = reasoning_format_find("think"),
                              .tools = toolcall_format_find("hermes")};
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        const struct sample *s = &samples[i];
        struct answer a;
        struct message m;
        struct buf text, out;
        size_t fed = 0;
        start(s, &p, &a, &m);
        buf_init(&text, 0);
        buf_init(&out, 0);
        for (bool end = false; s->text[fed] && !end; fed++) {
            end = feed(&a, &m, s->text[fed]);
            buf_append(&text, buf_str(&a.text), a.text.len);
            buf_reset(&a.text);
            message_keep(&m, &a);
        }
        answer_end(&a, s->finish == PROTO_FINISH_LENGTH);
        buf_append(&text, buf_str(&a.text), a.text.len);
        message_keep(&m, &a);
        message_json(&out, &m, &a, &text);
        json_t *j = parse(&out);
        check_text(get(j, "content"), s->content, s->text);
        ck_assert(s->content || json_is_null(json_object_get(j, "content")));
        check_text(get(j, "reasoning_content"), s->thinking, s->text);
        check_text(get(j, "reasoning"), s->thinking, s->text);
        check_calls(json_object_get(j, "tool_calls"), s);
        ck_assert_str_eq(message_finish(&m, &a, s->finish), s->reason);
        if (!s->stop && !s->one_call)
            ck_assert_uint_eq(a.ready, fed); /* one log probability for each token */
        json_decref(j);
        message_fini(&m);
        answer_fini(&a);
        buf_fini(&text);
        buf_fini(&out);
    }
}
END_TEST

/* Adds a delta to what a client has put together. */
static void add_delta(const json_t *delta, struct buf *content, struct buf *thinking, json_t *calls)
{
    const json_t *call;
    size_t i;
    buf_puts(content, get(delta, "content") ? get(delta, "content") : "");
    buf_puts(thinking, get(delta, "reasoning_content") ? get(delta, "reasoning_content") : "");
    json_array_foreach(json_object_get(delta, "tool_calls"), i, call)
    {
        size_t index = (size_t)json_integer_value(json_object_get(call, "index"));
        const json_t *f = json_object_get(call, "function");
        ck_assert_uint_le(index, json_array_size(calls));
        if (index == json_array_size(calls)) {
            json_array_append_new(calls, json_deep_copy(call));
            continue;
        }
        json_t *known = json_object_get(json_array_get(calls, index), "function");
        struct buf b;
        buf_init(&b, 0);
        buf_puts(&b, get(known, "arguments"));
        buf_puts(&b, get(f, "arguments"));
        ck_assert(!get(call, "id") && !get(f, "name"));
        json_object_set_new(known, "arguments", json_string(buf_str(&b)));
        buf_fini(&b);
    }
}

START_TEST(message_deltas)
{
    struct reply_profile p = {.reasoning = reasoning_format_find("think"),
                              .tools = toolcall_format_find("hermes")};
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        const struct sample *s = &samples[i];
        struct answer a;
        struct message m;
        struct buf content, thinking, out;
        json_t *calls = json_array();
        size_t arguments = 0;
        start(s, &p, &a, &m);
        buf_init(&content, 0);
        buf_init(&thinking, 0);
        buf_init(&out, 0);
        size_t n = strlen(s->text);
        for (size_t k = 0; k <= n; k++) {
            bool end = k < n && feed(&a, &m, s->text[k]);
            if (end || k == n)
                answer_end(&a, s->finish == PROTO_FINISH_LENGTH);
            if (k < n || message_pending(&m, &a)) {
                buf_reset(&out);
                message_delta_json(&out, &m, &a);
                json_t *delta = parse(&out);
                ck_assert_uint_gt(json_object_size(delta), 0);
                arguments += strstr(out.data, "\"function\":{\"arguments\"") != NULL;
                add_delta(delta, &content, &thinking, calls);
                json_decref(delta);
            }
            if (end)
                break;
        }
        ck_assert(!message_pending(&m, &a) || a.released < a.ready);
        ck_assert_msg(strcmp(buf_str(&content), s->content ? s->content : "") == 0, "%s: %s",
                      s->text, buf_str(&content));
        ck_assert_str_eq(buf_str(&thinking), s->thinking ? s->thinking : "");
        check_calls(calls, s);
        if (s->calls && strstr(s->calls, "\"a\""))
            ck_assert_uint_gt(arguments, 1); /* they came in pieces */
        ck_assert_str_eq(message_finish(&m, &a, s->finish), s->reason);
        json_decref(calls);
        message_fini(&m);
        answer_fini(&a);
        buf_fini(&content);
        buf_fini(&thinking);
        buf_fini(&out);
    }
}
END_TEST

START_TEST(message_ids_and_fields)
{
    struct reply_profile p = {.reasoning = reasoning_format_find("think"),
                              .tools = toolcall_format_find("mistral")};
    struct answer a;
    struct message m;
    struct buf out, text;
    buf_init(&out, 0);
    buf_init(&text, 0);
    ck_assert_ok(answer_init(&a, vocab, NULL, NULL, 0, false));
    ck_assert_ok(answer_read(&a, &p, REASONING_OPEN, tools));
    message_init(&m, MESSAGE_REASONING, true, false);
    for (const char *c = "x</think>[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{}";
         *c; c++)
        feed(&a, &m, *c);
    answer_end(&a, false);
    message_keep(&m, &a);
    message_json(&out, &m, &a, &text);
    json_t *j = parse(&out), *calls = json_object_get(j, "tool_calls");
    ck_assert_ptr_null(json_object_get(j, "reasoning"));
    ck_assert_ptr_null(json_object_get(j, "reasoning_content"));
    ck_assert_uint_eq(strlen(get(json_array_get(calls, 0), "id")), 9);
    ck_assert_str_eq(get(json_array_get(calls, 1), "id"), "abcdefghi");
    ck_assert_uint_eq(a.n_thinking, 9); /* x and the tag's eight bytes */
    json_decref(j);
    message_fini(&m);
    answer_fini(&a);
    buf_fini(&out);
    buf_fini(&text);
}
END_TEST

/* GPT-OSS: the marks are control tokens; those of a mark reach the parser, others are not shown. */
START_TEST(message_of_control_tokens)
{
    static const char *const control[] = {"<|start|>", "<|channel|>",   "<|message|>", "<|end|>",
                                          "<|call|>",  "<|constrain|>", "<|return|>",  "<|other|>"};
    static const char source[] = "<|channel|>analysis functions. {{ messages }}";
    struct vocab_build *b = vb_create(TOKENIZER_BPE);
    vb_merge(b, "h", "e");
    for (size_t i = 0; i < sizeof control / sizeof *control; i++)
        vb_token(b, control[i], TOKEN_CONTROL);
    struct tokenizer *t = vb_finish(b);
    struct chat_template *template = NULL;
    struct reply_profile p;
    struct answer a;
    struct message m;
    struct buf out, text;
    struct token_list ids = {0};
    char err[128];
    static const char reply[] = "<|channel|>analysis<|message|>hm "
                                "<|other|>hm<|end|><|start|>assistant<|channel|>commentary "
                                "to=functions.f <|constrain|>json<|message|>{\"a\": 1}<|call|>";
    buf_init(&out, 0);
    buf_init(&text, 0);
    ck_assert_ok(chat_template_create(source, sizeof source - 1, &template, err, sizeof err));
    ck_assert_ok(reply_profile_init(&p, source, template, t, "auto", "auto"));
    ck_assert_str_eq(p.reasoning->name, "harmony");
    ck_assert_uint_eq(p.n_shown, 7);
    ck_assert_ok(answer_init(&a, t, NULL, NULL, 0, true));
    ck_assert_ok(answer_read(&a, &p, REASONING_UNSAID, tools));
    message_init(&m, MESSAGE_REASONING_CONTENT, false, false);
    ck_assert_ok(tokenizer_encode(t, reply, sizeof reply - 1, TOKENIZE_SPECIAL, &ids));
    for (size_t i = 0; i < ids.n; i++) {
        struct proto_token token = {.token = ids.ids[i]};
        ck_assert_ok(answer_token(&a, &token, i + 1 < ids.n)); /* the last one is a stop id */
        message_keep(&m, &a);
    }
    answer_end(&a, false);
    message_json(&out, &m, &a, &text);
    json_t *j = parse(&out);
    ck_assert_str_eq(get(j, "reasoning_content"), "hm hm");
    ck_assert(json_is_null(json_object_get(j, "content")));
    const json_t *f =
        json_object_get(json_array_get(json_object_get(j, "tool_calls"), 0), "function");
    ck_assert_str_eq(get(f, "name"), "f");
    ck_assert_str_eq(get(f, "arguments"), "{\"a\": 1}");
    ck_assert_str_eq(message_finish(&m, &a, PROTO_FINISH_STOP), "tool_calls");
    ck_assert_uint_eq(a.ready, ids.n - 1);
    json_decref(j);
    message_fini(&m);
    answer_fini(&a);
    token_list_fini(&ids);
    buf_fini(&out);
    buf_fini(&text);
    reply_profile_fini(&p);
    chat_template_destroy(template);
    tokenizer_destroy(t);
}
END_TEST

/* include_stop_str_in_output */
START_TEST(answer_shows_stop)
{
    struct answer a;
    char both[] = "b c", *stops[] = {both};
    size_t len = 3;
    ck_assert_ok(answer_init(&a, vocab, stops, &len, 1, true));
    a.show_stop = true;
    for (const char *c = "a b c d"; *c && !a.stopped; c++) {
        struct proto_token t = {.token = (unsigned char)*c};
        ck_assert_ok(answer_token(&a, &t, true));
    }
    answer_end(&a, false);
    ck_assert_str_eq(buf_str(&a.text), "a b c");
    ck_assert_uint_eq(a.ready, 5);
    answer_fini(&a);
}
END_TEST

/* ---- requests ----------------------------------------------------------------------------------
 */

START_TEST(efforts)
{
    struct think_efforts f;
    char err[200] = "";
    ck_assert_ok(think_efforts_parse(" low : 10 ,medium:200,max:0", &f, err, sizeof err));
    ck_assert_uint_eq(f.n, 3);
    ck_assert_str_eq(f.list[1].name, "medium");
    ck_assert_uint_eq(f.list[1].tokens, 200);
    ck_assert_ok(think_efforts_parse("", &f, err, sizeof err));
    ck_assert_ok(think_efforts_parse(NULL, &f, err, sizeof err));
    ck_assert_uint_eq(f.n, 0);
    static const char *const bad[] = {"low",          "low:",   "low:x", "few:1",  "none:1",
                                      "low:1;high:2", "low:-1", ":5",    "low:1 2"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err[0] = 0;
        ck_assert_msg(think_efforts_parse(bad[i], &f, err, sizeof err) == STATUS_INVALID, "%s",
                      bad[i]);
        ck_assert_ptr_nonnull(strstr(err, "reasoning_efforts"));
    }
}
END_TEST

START_TEST(limits)
{
    static const struct {
        const char *request;
        int64_t limit;
        const char *context; /* what the template is told */
    } cases[] = {
        {"{}", THINK_UNLIMITED, "{}"},
        {"{\"reasoning_effort\": \"low\"}", 10,
         "{\"enable_thinking\": true, \"thinking\": true, \"reasoning_effort\": \"low\"}"},
        {"{\"reasoning_effort\": \"max\"}", THINK_UNLIMITED,
         "{\"enable_thinking\": true, \"thinking\": true, \"reasoning_effort\": \"max\"}"},
        {"{\"reasoning_effort\": \"none\"}", 0,
         "{\"enable_thinking\": false, \"thinking\": false}"},
        {"{\"reasoning\": {\"enabled\": false}}", 0,
         "{\"enable_thinking\": false, \"thinking\": false}"},
        {"{\"reasoning\": {\"effort\": \"low\", \"max_tokens\": 7}}", 7,
         "{\"enable_thinking\": true, \"thinking\": true, \"reasoning_effort\": \"low\"}"},
        {"{\"reasoning\": {\"max_tokens\": 7}, \"thinking_token_budget\": 9}", 9, "{}"},
        {"{\"thinking_token_budget\": 0}", 0, "{}"},
        {"{\"thinking_token_budget\": -1, \"reasoning\": {\"max_tokens\": 7}}", THINK_UNLIMITED,
         "{}"},
        {"{\"thinking_token_budget\": null}", THINK_UNLIMITED, "{}"},
    };
    struct think_efforts f;
    char err[200];
    json_error_t je;
    ck_assert_ok(think_efforts_parse("low:10", &f, err, sizeof err));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct think_params p;
        struct api_error e;
        json_t *o = json_loads(cases[i].request, 0, &je),
               *want = json_loads(cases[i].context, 0, &je);
        json_t *context = json_object();
        ck_assert_ok(think_parse(o, &f, &p, &e));
        ck_assert_msg(p.limit == cases[i].limit, "%s: %lld", cases[i].request, (long long)p.limit);
        ck_assert_ok(think_context(&p, context));
        ck_assert_msg(json_equal(context, want), "%s", cases[i].request);
        think_fini(&p);
        json_decref(o);
        json_decref(want);
        json_decref(context);
    }
}
END_TEST

/* B16, and arguments in the form of the template. */
START_TEST(messages)
{
    static const struct {
        bool text;
        const char *message, *want; /* want: arguments as JSON */
    } cases[] = {
        {false, "\"{\\\"a\\\": [1]}\"", "{\"a\": [1]}"},
        {false, "{\"a\": 1}", "{\"a\": 1}"},
        {false, "\"{}\"", "{}"},
        {false, "\"\"", "{}"},
        {false, "null", "{}"},
        {false, "\"{oops\"", "\"{oops\""},
        {false, "\"[1]\"", "\"[1]\""},
        {true, "{\"a\": 1}", "\"{\\\"a\\\": 1}\""},
        {true, "\"{\\\"a\\\":1}\"", "\"{\\\"a\\\":1}\""},
        {true, "\"{oops\"", "\"{oops\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct reply_profile p = {.arguments_text = cases[i].text};
        char text[400];
        json_error_t je;
        struct api_error e;
        snprintf(text, sizeof text,
                 "{\"role\": \"assistant\", \"reasoning\": \"r\", \"tool_calls\": [{\"id\": \"i\", "
                 "\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": %s}}]}",
                 cases[i].message);
        json_t *o = json_loads(text, 0, &je), *m = json_copy(o);
        json_t *before = json_deep_copy(o), *want = json_loads(cases[i].want, JSON_DECODE_ANY, &je);
        ck_assert_ok(think_message(&p, m, 0, &e));
        const json_t *f =
            json_object_get(json_array_get(json_object_get(m, "tool_calls"), 0), "function");
        ck_assert_msg(json_equal(json_object_get(f, "arguments"), want), "%s", cases[i].message);
        ck_assert_str_eq(get(m, "reasoning_content"), "r");
        ck_assert(json_equal(o, before)); /* the request itself is as it was */
        json_decref(o);
        json_decref(m);
        json_decref(before);
        json_decref(want);
    }
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("message");
    TCase *c = tcase_create("message");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, message_whole);
    tcase_add_test(c, message_deltas);
    tcase_add_test(c, message_ids_and_fields);
    tcase_add_test(c, message_of_control_tokens);
    tcase_add_test(c, answer_shows_stop);
    tcase_add_test(c, efforts);
    tcase_add_test(c, limits);
    tcase_add_test(c, messages);
    suite_add_tcase(s, c);
    return s;
}
