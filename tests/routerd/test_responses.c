/* The Responses API: requests as chat requests, answers as items, whole and as events. */
#include "routerd/responses.h"
#include "common/base/json.h"
#include "routerd/responses_request.h"
#include "tests/harness.h"
#include "tests/routerd/bytes_vocab.h"

#include <stdlib.h>
#include <string.h>

static json_t *parse(const char *text, size_t n)
{
    json_error_t e;
    json_t *j = json_loadb(text, n, 0, &e);
    ck_assert_msg(j != NULL, "%.*s: %s", (int)n, text, e.text);
    return j;
}

/* ---- requests ---- */

static const struct {
    const char *request, *chat; /* chat: every member of it must be there */
} good[] = {
    {"{'input': 'hi', 'model': 'm', 'temperature': 0.5, 'top_k': 3}",
     "{'messages': [{'role': 'user', 'content': 'hi'}], 'model': 'm', 'temperature': 0.5, 'top_k': "
     "3}"},
    {"{'input': [{'role': 'user', 'content': [{'type': 'input_text', 'text': 'a'}]}], "
     "'instructions': 'be brief'}",
     "{'messages': [{'role': 'system', 'content': 'be brief'}, "
     "{'role': 'user', 'content': [{'type': 'text', 'text': 'a'}]}]}"},
    {"{'input': [{'type': 'message', 'role': 'assistant', 'status': 'completed', 'id': 'msg_1', "
     "'content': [{'type': 'output_text', 'text': 'x', 'annotations': []}, {'type': 'refusal', "
     "'refusal': 'y'}]}, {'role': 'developer', 'content': 'z'}]}",
     "{'messages': [{'role': 'assistant', 'content': [{'type': 'text', 'text': 'x'}, "
     "{'type': 'text', 'text': 'y'}]}, {'role': 'developer', 'content': 'z'}]}"},
    /* what a tool-using turn gives back: one assistant message */
    {"{'input': [{'type': 'reasoning', 'id': 'rs_1', 'summary': [], 'content': [{'type': "
     "'reasoning_text', 'text': 'hm'}]}, {'type': 'function_call', 'call_id': 'c1', 'name': 'f', "
     "'arguments': '{}'}, {'type': 'function_call', 'call_id': 'c2', 'name': 'g', 'arguments': "
     "''}, "
     "{'type': 'function_call_output', 'call_id': 'c1', 'output': '1'}, {'type': "
     "'function_call_output', 'call_id': 'c2', 'output': [{'type': 'input_text', 'text': '2'}]}, "
     "{'type': 'message', 'role': 'assistant', 'content': 'done'}]}",
     "{'messages': [{'role': 'assistant', 'content': null, 'reasoning_content': 'hm', "
     "'tool_calls': "
     "[{'id': 'c1', 'type': 'function', 'function': {'name': 'f', 'arguments': '{}'}}, {'id': "
     "'c2', "
     "'type': 'function', 'function': {'name': 'g', 'arguments': ''}}]}, {'role': 'tool', "
     "'tool_call_id': 'c1', 'content': '1'}, {'role': 'tool', 'tool_call_id': 'c2', 'content': "
     "[{'type': 'text', 'text': '2'}]}, {'role': 'assistant', 'content': 'done'}]}"},
    {"{'input': [{'type': 'reasoning', 'summary': [{'type': 'summary_text', 'text': 's'}]}, "
     "{'role': "
     "'assistant', 'content': 'a'}, {'type': 'reasoning', 'content': [{'text': 'u'}, {'text': "
     "'v'}]}, "
     "{'role': 'assistant', 'content': 'b'}, {'role': 'assistant', 'content': 'c'}]}",
     "{'messages': [{'role': 'assistant', 'content': 'a', 'reasoning_content': 's'}, {'role': "
     "'assistant', 'content': 'b', 'reasoning_content': 'u\\nv'}, {'role': 'assistant', 'content': "
     "'c'}]}"},
    {"{'input': 'x', 'tools': [{'type': 'function', 'name': 'f', 'parameters': {}, 'strict': true, "
     "'description': 'd'}], 'tool_choice': {'type': 'function', 'name': 'f'}}",
     "{'tools': [{'type': 'function', 'function': {'name': 'f', 'parameters': {}, 'strict': true, "
     "'description': 'd'}}], 'tool_choice': {'type': 'function', 'function': {'name': 'f'}}}"},
    {"{'input': 'x', 'tools': [{'type': 'function', 'name': 'f'}, {'type': 'function', 'name': "
     "'g'}], "
     "'tool_choice': {'type': 'allowed_tools', 'mode': 'required', 'tools': [{'type': 'function', "
     "'name': 'g'}]}}",
     "{'tools': [{'type': 'function', 'function': {'name': 'f'}}, {'type': 'function', 'function': "
     "{'name': 'g'}}], 'tool_choice': {'type': 'allowed_tools', 'allowed_tools': {'mode': "
     "'required', 'tools': [{'type': 'function', 'function': {'name': 'g'}}]}}}"},
    {"{'input': 'x', 'text': {'format': {'type': 'json_schema', 'name': 'n', 'strict': true, "
     "'schema': "
     "{'type': 'object'}}}}",
     "{'response_format': {'type': 'json_schema', 'json_schema': {'name': 'n', 'strict': true, "
     "'schema': {'type': 'object'}}}}"},
    {"{'input': 'x', 'text': {'format': {'type': 'json_object'}, 'verbosity': 'low'}}",
     "{'response_format': {'type': 'json_object'}, 'verbosity': 'low'}"},
    {"{'input': 'x', 'max_output_tokens': 20, 'reasoning': {'effort': 'low', 'summary': 'auto'}, "
     "'store': true, 'truncation': 'disabled', 'background': false, 'metadata': {'a': 'b'}, "
     "'include': "
     "['reasoning.encrypted_content'], 'previous_response_id': null, 'stream': true, "
     "'stream_options': {'include_obfuscation': false}}",
     "{'max_completion_tokens': 20, 'reasoning': {'effort': 'low', 'summary': 'auto'}, 'stream': "
     "true}"},
    {"{'input': 'x', 'include': ['message.output_text.logprobs'], 'top_logprobs': 2}",
     "{'logprobs': true, 'top_logprobs': 2}"},
    {"{'input': 'x', 'include': ['file_search_call.results', 'web_search_call.results', "
     "'web_search_call.action.sources', 'message.input_image.image_url', "
     "'computer_call_output.output.image_url', 'code_interpreter_call.outputs', "
     "'reasoning.encrypted_content', 'message.output_text.logprobs']}",
     "{'logprobs': true}"},
};

/* JSON with ' for ". */
static json_t *quoted(const char *text)
{
    char *copy = strdup(text);
    for (char *p = copy; *p; p++)
        *p = *p == '\'' ? '"' : *p;
    json_t *j = parse(copy, strlen(copy));
    free(copy);
    return j;
}

START_TEST(responses_translate_cases)
{
    static const char *const own[] = {"input", "instructions", "text",    "max_output_tokens",
                                      "store", "metadata",     "include", "stream_options"};
    json_t *request = quoted(good[_i].request), *want = quoted(good[_i].chat), *chat = NULL, *v;
    struct api_error e = {0};
    const char *key;
    char *echo = NULL;
    int rc = responses_translate(request, &chat, &echo, &e);
    ck_assert_msg(rc == STATUS_OK, "%s", e.message);
    json_object_foreach(want, key, v)
    {
        json_t *got = json_object_get(chat, key);
        char *text = json_dumps(got, JSON_ENCODE_ANY);
        ck_assert_msg(json_equal(got, v), "%s: %s", key, text);
        free(text);
    }
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        ck_assert_ptr_null(json_object_get(chat, own[i]));
    char *object = malloc(strlen(echo) + 3);
    sprintf(object, "{%s}", echo);
    json_t *repeated = parse(object, strlen(object));
    ck_assert_uint_eq(json_object_size(repeated), 16);
    json_object_foreach(repeated, key, v)
    {
        const json_t *given = field_get(request, key);
        ck_assert_msg(!given || json_equal(v, given), "%s", key);
    }
    free(object);
    free(echo);
    json_decref(repeated);
    json_decref(request);
    json_decref(want);
    json_decref(chat);
}
END_TEST

static const struct {
    const char *request, *param;
} bad[] = {
    {"{}", "input"},
    {"{'input': 5}", "input"},
    {"{'input': []}", "input"},
    {"{'input': ['a']}", "input"},
    {"{'input': [{'role': 'tool', 'content': 'a'}]}", "input"},
    {"{'input': [{'role': 'user'}]}", "input"},
    {"{'input': [{'role': 'user', 'content': [{'type': 'input_image', 'image_url': 'x'}]}]}",
     "input"},
    {"{'input': [{'role': 'user', 'content': [{'text': 'x'}]}]}", "input"},
    {"{'input': [{'role': 'user', 'content': [{'type': 'input_text', 'text': 1}]}]}", "input"},
    {"{'input': [{'type': 'item_reference', 'id': 'x'}]}", "input"},
    {"{'input': [{'type': 'web_search_call'}]}", "input"},
    {"{'input': [{'type': 'function_call', 'name': 'f'}]}", "input"},
    {"{'input': [{'type': 'function_call_output', 'output': 'x'}]}", "input"},
    {"{'input': [{'type': 'function_call_output', 'call_id': 'x'}]}", "input"},
    {"{'input': 'x', 'instructions': 5}", "instructions"},
    {"{'input': 'x', 'previous_response_id': 'resp_1'}", "previous_response_id"},
    {"{'input': 'x', 'conversation': 'c'}", "conversation"},
    {"{'input': 'x', 'prompt': {'id': 'p'}}", "prompt"},
    {"{'input': 'x', 'messages': []}", "messages"},
    {"{'input': 'x', 'background': true}", "background"},
    {"{'input': 'x', 'truncation': 'auto'}", "truncation"},
    {"{'input': 'x', 'context_management': [{'type': 'compaction'}]}", "context_management"},
    {"{'input': 'x', 'store': 'yes'}", "store"},
    {"{'input': 'x', 'metadata': {'a': 1}}", "metadata"},
    {"{'input': 'x', 'include': 'a'}", "include"},
    {"{'input': 'x', 'stream_options': 5}", "stream_options"},
    {"{'input': 'x', 'stream_options': {'include_obfuscation': 1}}", "stream_options"},
    {"{'input': 'x', 'reasoning': {'summary': 'long'}}", "reasoning"},
    {"{'input': 'x', 'include': [1]}", "include"},
    {"{'input': 'x', 'include': ['message.output_text']}", "include"},
    {"{'input': 'x', 'include': ['message.output_text.logprobs', 'all']}", "include"},
    {"{'input': 'x', 'max_output_tokens': 0}", "max_output_tokens"},
    {"{'input': 'x', 'top_logprobs': 21}", "top_logprobs"},
    {"{'input': 'x', 'text': 'json'}", "text"},
    {"{'input': 'x', 'text': {'format': 'json'}}", "text.format"},
    {"{'input': 'x', 'tools': {}}", "tools"},
    {"{'input': 'x', 'tools': [5]}", "tools"},
    {"{'input': 'x', 'tools': [{'type': 'web_search'}]}", "tools"},
    {"{'input': 'x', 'tools': [{'type': 'function'}]}", "tools"},
};

START_TEST(responses_translate_refuses)
{
    json_t *request = quoted(bad[_i].request), *chat = NULL;
    struct api_error e = {0};
    char *echo = NULL;
    ck_assert_int_eq(responses_translate(request, &chat, &echo, &e), STATUS_INVALID);
    ck_assert_str_eq(e.param, bad[_i].param);
    ck_assert_int_eq(e.http, 400);
    ck_assert_uint_gt(strlen(e.message), 10);
    ck_assert_ptr_null(chat);
    ck_assert_ptr_null(echo);
    json_decref(request);
}
END_TEST

/* ---- answers ---- */

static struct tokenizer *vocab;
static json_t *tools;
static const struct responses_usage usage = {10, 4, 7, 2};

static void setup(void)
{
    vocab = bytes_vocab();
    tools = quoted("[{'type': 'function', 'function': {'name': 'f'}}]");
}

static void teardown(void)
{
    json_decref(tools);
    tokenizer_destroy(vocab);
}

/* What the model writes, and the items: kind, then text, or name and arguments. */
static const struct {
    const char *text;
    bool cut, hide;
    const char *items;
    const char *streamed; /* where a stream has shown something else: broken calls */
} samples[] = {
    {"abc", false, false, "[['message', 'abc']]", NULL},
    {"", false, false, "[['message', '']]", NULL},
    {"", true, false, "[]", NULL},
    {"<think>abc</think>def", false, false, "[['reasoning', 'abc'], ['message', 'def']]", NULL},
    {"<think>abc</think>def", false, true, "[['message', 'def']]", NULL},
    {"<think>abc", true, false, "[['reasoning', 'abc']]", NULL},
    {"Hm.\n<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"\xc3\xa9\"}}</tool_call>", false,
     false, "[['message', 'Hm.'], ['function_call', 'f', {'a': '\xc3\xa9'}]]", NULL},
    {"<think>t</think><tool_call>{\"name\": \"f\"}</tool_call>\n<tool_call>{\"name\": "
     "\"g\"}</tool_call>",
     false, false, "[['reasoning', 't'], ['function_call', 'f', {}], ['function_call', 'g', {}]]",
     NULL},
    {"<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1", true, false,
     "[['function_call', 'f', '{\\\"a\\\": 1']]", NULL},
    {"<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": [\"bc\" x</tool_call>y", false, false,
     "[['message', '<tool_call>{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": {\\\"a\\\": "
     "[\\\"bc\\\" x</tool_call>y']]",
     "[['function_call', 'f', '{\\\"a\\\": [\\\"bc\\\" '], ['message', '<tool_call>{\\\"name\\\": "
     "\\\"f\\\", "
     "\\\"arguments\\\": {\\\"a\\\": [\\\"bc\\\" x</tool_call>y']]"},
};

static const char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "(none)";
}

/* [kind, text] or [kind, name, arguments] of an item. */
static json_t *brief(const json_t *item)
{
    const char *type = text_of(item, "type");
    if (strcmp(type, "function_call") != 0) {
        const json_t *part = json_array_get(json_object_get(item, "content"), 0);
        return json_pack("[s, s]", type, part ? text_of(part, "text") : "");
    }
    json_error_t e;
    json_t *arguments = json_loads(text_of(item, "arguments"), 0, &e);
    if (!arguments)
        arguments = json_string(text_of(item, "arguments"));
    return json_pack("[s, s, o]", type, text_of(item, "name"), arguments);
}

static void check_items(const json_t *output, const char *want_text)
{
    json_t *want = parse(want_text, strlen(want_text)), *got = json_array();
    const json_t *item;
    size_t i;
    json_array_foreach(output, i, item)
    {
        json_array_append_new(got, brief(item));
        ck_assert_uint_gt(strlen(text_of(item, "id")), 20);
    }
    char *text = json_dumps(got, 0);
    ck_assert_msg(json_equal(got, want), "%s instead of %s", text, want_text);
    free(text);
    json_decref(want);
    json_decref(got);
}

/* What the events say so far, as a client would put them together. */
struct client {
    json_t *items;   /* as they were added, with deltas appended */
    json_t *last;    /* the response of the last event */
    json_int_t next; /* sequence number */
    char final[64];
};

static void append_text(json_t *o, const char *key, const char *more)
{
    char text[512];
    snprintf(text, sizeof text, "%s%s", json_string_value(json_object_get(o, key)), more);
    json_object_set_new(o, key, json_string(text));
}

static void client_event(struct client *c, const char *type, json_t *data)
{
    json_t *item = NULL, *part = NULL;
    ck_assert_str_eq(text_of(data, "type"), type);
    ck_assert_int_eq(json_integer_value(json_object_get(data, "sequence_number")), c->next++);
    if (json_object_get(data, "output_index")) {
        size_t at = (size_t)json_integer_value(json_object_get(data, "output_index"));
        ck_assert_uint_le(at, json_array_size(c->items));
        item = json_array_get(c->items, at);
        part = json_array_get(json_object_get(item, "content"), 0);
    }
    if (item && json_object_get(data, "item_id"))
        ck_assert_str_eq(text_of(data, "item_id"), text_of(item, "id"));
    if (json_object_get(data, "response")) {
        json_decref(c->last);
        c->last = json_incref(json_object_get(data, "response"));
        snprintf(c->final, sizeof c->final, "%s", type);
    } else if (strcmp(type, "response.output_item.added") == 0) {
        ck_assert_ptr_null(item);
        ck_assert_str_eq(text_of(json_object_get(data, "item"), "status"), "in_progress");
        json_array_append(c->items, json_object_get(data, "item"));
    } else if (strcmp(type, "response.content_part.added") == 0) {
        json_array_append(json_object_get(item, "content"), json_object_get(data, "part"));
    } else if (strstr(type, "text.delta")) {
        append_text(part, "text", text_of(data, "delta"));
    } else if (strstr(type, "arguments.delta")) {
        append_text(item, "arguments", text_of(data, "delta"));
    } else if (strstr(type, "text.done")) {
        ck_assert_str_eq(text_of(data, "text"), text_of(part, "text"));
    } else if (strstr(type, "arguments.done")) {
        ck_assert_str_eq(text_of(data, "arguments"), text_of(item, "arguments"));
    } else if (strcmp(type, "response.content_part.done") == 0) {
        ck_assert_str_eq(text_of(json_object_get(data, "part"), "text"), text_of(part, "text"));
    } else {
        ck_assert_str_eq(type, "response.output_item.done");
        json_t *seen = brief(item), *said = brief(json_object_get(data, "item"));
        ck_assert(json_equal(seen, said));
        ck_assert_str_ne(text_of(json_object_get(data, "item"), "status"), "in_progress");
        json_decref(seen);
        json_decref(said);
    }
}

static void client_read(struct client *c, const struct buf *out)
{
    for (const char *p = buf_str(out); *p;) {
        char type[64];
        int used = 0;
        const char *end = strstr(p, "\n\n");
        ck_assert_int_eq(sscanf(p, "event: %63s%n", type, &used), 1);
        ck_assert_int_eq(strncmp(p + used, "\ndata: ", 7), 0);
        ck_assert_ptr_nonnull(end);
        json_t *data = parse(p + used + 7, (size_t)(end - p) - (size_t)used - 7);
        client_event(c, type, data);
        json_decref(data);
        p = end + 2;
    }
}

static const struct responses_head head = {"resp_1", 5, "m", "\"tools\":[],\"top_p\":1.0", true};

static void start(struct responses **r, struct answer *a, struct message *m, bool stream, bool hide)
{
    static struct reply_profile p;
    struct responses_head h = head;
    h.stream = stream;
    p = (struct reply_profile){.reasoning = reasoning_format_find("think"),
                               .tools = toolcall_format_find("hermes")};
    ck_assert_ok(responses_create(&h, r));
    ck_assert_ok(answer_init(a, vocab, NULL, NULL, 0, true));
    ck_assert_ok(answer_read(a, &p, REASONING_UNSAID, tools));
    message_init(m, MESSAGE_BOTH, hide, false);
}

/* Feeds the sample, `step` bytes between two looks at the answer. */
static void play(size_t i, bool stream, size_t step, struct buf *out)
{
    struct responses *r;
    struct answer a;
    struct message m;
    start(&r, &a, &m, stream, samples[i].hide);
    if (stream)
        responses_begin(r, out);
    for (size_t k = 0; samples[i].text[k]; k++) {
        struct proto_token t = {.token = (unsigned char)samples[i].text[k], .logprob = -1};
        ck_assert_ok(answer_token(&a, &t, true));
        if (k % step == 0)
            responses_delta(r, &m, &a, out);
    }
    answer_end(&a, samples[i].cut);
    responses_delta(r, &m, &a, out);
    responses_end(r, &m, &a, samples[i].cut, &usage, out);
    ck_assert(buf_ok(out));
    message_fini(&m);
    answer_fini(&a);
    responses_destroy(r);
}

static void check_response(const json_t *o, size_t i, const char *items)
{
    const char *reason = text_of(json_object_get(o, "incomplete_details"), "reason");
    ck_assert_str_eq(text_of(o, "object"), "response");
    ck_assert_str_eq(text_of(o, "id"), "resp_1");
    ck_assert_str_eq(text_of(o, "status"), samples[i].cut ? "incomplete" : "completed");
    ck_assert_str_eq(reason, samples[i].cut ? "max_output_tokens" : "(none)");
    ck_assert(json_is_false(json_object_get(o, "store")));
    const json_t *u = json_object_get(o, "usage");
    ck_assert_int_eq(json_integer_value(json_object_get(u, "total_tokens")), 17);
    check_items(json_object_get(o, "output"), items);
}

START_TEST(responses_whole)
{
    struct buf out;
    char items[512];
    json_t *want = quoted(samples[_i].items);
    buf_init(&out, 0);
    play((size_t)_i, false, 1, &out);
    json_t *o = parse(buf_str(&out), out.len);
    char *text = json_dumps(want, 0);
    snprintf(items, sizeof items, "%s", text);
    check_response(o, (size_t)_i, items);
    free(text);
    json_decref(want);
    json_decref(o);
    buf_fini(&out);
}
END_TEST

START_TEST(responses_stream)
{
    json_t *want = quoted(samples[_i].streamed ? samples[_i].streamed : samples[_i].items);
    char *items = json_dumps(want, 0);
    for (size_t step = 1; step < 9; step++) {
        struct client c = {.items = json_array()};
        struct buf out;
        buf_init(&out, 0);
        play((size_t)_i, true, step, &out);
        client_read(&c, &out);
        ck_assert_str_eq(c.final, samples[_i].cut ? "response.incomplete" : "response.completed");
        if (!samples[_i].streamed || step == 1) { /* larger steps may never show the broken call */
            check_items(c.items, items);
            check_response(c.last, (size_t)_i, items);
        }
        json_decref(c.items);
        json_decref(c.last);
        buf_fini(&out);
    }
    free(items);
    json_decref(want);
}
END_TEST

START_TEST(responses_logprobs)
{
    struct responses *r;
    struct answer a;
    struct message m;
    struct buf out;
    start(&r, &a, &m, false, false);
    buf_init(&out, 0);
    for (const char *p = "<think>ab</think>cde"; *p; p++) {
        struct proto_token t = {.token = (unsigned char)*p, .logprob = -1};
        ck_assert_ok(answer_token(&a, &t, true));
        responses_delta(r, &m, &a, &out);
    }
    answer_end(&a, false);
    responses_delta(r, &m, &a, &out);
    responses_end(r, &m, &a, false, &usage, &out);
    json_t *o = parse(buf_str(&out), out.len);
    const json_t *message = json_array_get(json_object_get(o, "output"), 1);
    const json_t *part = json_array_get(json_object_get(message, "content"), 0);
    const json_t *list = json_object_get(part, "logprobs");
    size_t n = json_array_size(list);
    ck_assert_uint_ge(n, 3);
    for (size_t i = 0; i < 3; i++) /* the text's own tokens are the last ones */
        ck_assert_int_eq(text_of(json_array_get(list, n - 3 + i), "token")[0], "cde"[i]);
    json_decref(o);
    message_fini(&m);
    answer_fini(&a);
    responses_destroy(r);
    buf_fini(&out);
}
END_TEST

START_TEST(responses_failed_event)
{
    struct responses *r;
    struct client c = {.items = json_array()};
    struct buf out;
    buf_init(&out, 0);
    ck_assert_ok(responses_create(&head, &r));
    responses_begin(r, &out);
    responses_failed(r, "the \"worker\" died", &out);
    client_read(&c, &out);
    ck_assert_str_eq(c.final, "response.failed");
    ck_assert_str_eq(text_of(c.last, "status"), "failed");
    ck_assert_str_eq(text_of(json_object_get(c.last, "error"), "message"), "the \"worker\" died");
    json_decref(c.items);
    json_decref(c.last);
    responses_destroy(r);
    buf_fini(&out);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("responses");
    TCase *t = tcase_create("requests"), *c = tcase_create("answers");
    tcase_add_loop_test(t, responses_translate_cases, 0, sizeof good / sizeof *good);
    tcase_add_loop_test(t, responses_translate_refuses, 0, sizeof bad / sizeof *bad);
    suite_add_tcase(s, t);
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_loop_test(c, responses_whole, 0, sizeof samples / sizeof *samples);
    tcase_add_loop_test(c, responses_stream, 0, sizeof samples / sizeof *samples);
    tcase_add_test(c, responses_logprobs);
    tcase_add_test(c, responses_failed_event);
    suite_add_tcase(s, c);
    return s;
}
