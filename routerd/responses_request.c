/* responses_request: see responses_request.h.
 *
 * The Responses API says the same things as chat completions in other words: items instead of
 * messages, flat tools, text.format, max_output_tokens. What it adds is state kept by the server,
 * and there is none here: a request must bring its whole conversation. Fields of both APIs, and
 * those that only servers like this one know (top_k, chat_template_kwargs, …), pass as they are. */
#include "routerd/responses_request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "routerd/known.h"

#define METADATA_MAX 16

/* ---- input --------------------------------------------------------------------------------------
 */

/* The conversation while it is built. */
struct conversation {
    json_t *messages;
    json_t *assistant; /* the last message, when it is the assistant's and may go on; a loan */
    json_t *thinking;  /* text of reasoning items for the next assistant message, or NULL */
    size_t index;      /* of the item */
    struct api_error *e;
};

static int refuse(struct conversation *c, const char *code, const char *fmt, const char *arg)
{
    char what[300];
    snprintf(what, sizeof what, fmt, arg);
    return api_fail(c->e, "input", code, "input[%zu]%s", c->index, what);
}

/* Content of a message or of a tool's answer as chat has it: a string, or text parts. */
static int take_content(struct conversation *c, const json_t *content, json_t **out)
{
    const json_t *part;
    size_t i;
    if (json_is_string(content)) {
        *out = json_incref((json_t *)content);
        return STATUS_OK;
    }
    if (!json_is_array(content))
        return refuse(c, NULL, ".%s must be a string or an array of parts.",
                      field_get(content, "type") ? "content" : "content or output");
    json_t *parts = json_array();
    int rc = parts ? STATUS_OK : STATUS_NOMEM;
    json_array_foreach(content, i, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));
        bool refusal = type && strcmp(type, "refusal") == 0;
        const json_t *text = json_object_get(part, refusal ? "refusal" : "text");
        if (rc != STATUS_OK)
            break;
        if (!type)
            rc = refuse(c, NULL, ": a part of the content has no 'type'.%s", "");
        else if (!refusal && strcmp(type, "input_text") != 0 && strcmp(type, "output_text") != 0 &&
                 strcmp(type, "text") != 0)
            rc = refuse(c, "unsupported_value", ": parts of type '%.64s' are not supported.", type);
        else if (!json_is_string(text))
            rc = refuse(c, NULL, ": the text of a part must be a string.%s", "");
        else if (json_array_append_new(parts,
                                       json_pack("{s:s, s:O}", "type", "text", "text", text)) != 0)
            rc = STATUS_NOMEM;
    }
    if (rc != STATUS_OK) {
        json_decref(parts);
        return rc;
    }
    *out = parts;
    return STATUS_OK;
}

static int append(struct conversation *c, json_t *message)
{
    c->assistant = NULL;
    return json_array_append_new(c->messages, message) == 0 ? STATUS_OK : STATUS_NOMEM;
}

/* The assistant's message that what follows belongs to. */
static int open_assistant(struct conversation *c)
{
    if (!c->assistant) {
        TRY(append(c, json_pack("{s:s, s:n}", "role", "assistant", "content")));
        c->assistant = json_array_get(c->messages, json_array_size(c->messages) - 1);
    }
    if (c->thinking && json_object_set_new(c->assistant, "reasoning_content", c->thinking) != 0)
        return STATUS_NOMEM;
    c->thinking = NULL;
    return STATUS_OK;
}

static int take_message(struct conversation *c, const json_t *item)
{
    const char *role = json_string_value(json_object_get(item, "role"));
    json_t *content;
    if (!role || (strcmp(role, "user") != 0 && strcmp(role, "system") != 0 &&
                  strcmp(role, "developer") != 0 && strcmp(role, "assistant") != 0))
        return refuse(c, NULL, ".role must be user, system, developer or assistant.%s", "");
    TRY(take_content(c, field_get(item, "content"), &content));
    if (strcmp(role, "assistant") != 0) {
        json_decref(c->thinking);
        c->thinking = NULL;
        return append(c, json_pack("{s:s, s:o}", "role", role, "content", content));
    }
    if (c->assistant && field_get(c->assistant, "content"))
        c->assistant = NULL; /* two messages of the assistant */
    int rc = open_assistant(c);
    if (rc == STATUS_OK && json_object_set(c->assistant, "content", content) != 0)
        rc = STATUS_NOMEM;
    json_decref(content);
    return rc;
}

static int take_call(struct conversation *c, const json_t *item)
{
    const json_t *id = json_object_get(item, "call_id"), *name = json_object_get(item, "name");
    const json_t *arguments = json_object_get(item, "arguments");
    if (!json_is_string(id) || !json_is_string(name) || !json_is_string(arguments))
        return refuse(c, NULL, " must have strings 'call_id', 'name' and 'arguments'.%s", "");
    TRY(open_assistant(c));
    json_t *calls = json_object_get(c->assistant, "tool_calls");
    if (!calls) {
        calls = json_array();
        if (json_object_set_new(c->assistant, "tool_calls", calls) != 0)
            return STATUS_NOMEM;
    }
    json_t *call = json_pack("{s:O, s:s, s:{s:O, s:O}}", "id", id, "type", "function", "function",
                             "name", name, "arguments", arguments);
    return json_array_append_new(calls, call) == 0 ? STATUS_OK : STATUS_NOMEM;
}

static int take_output(struct conversation *c, const json_t *item)
{
    const json_t *id = json_object_get(item, "call_id");
    json_t *content;
    if (!json_is_string(id))
        return refuse(c, NULL, ".call_id must be a string.%s", "");
    TRY(take_content(c, field_get(item, "output"), &content));
    return append(
        c, json_pack("{s:s, s:O, s:o}", "role", "tool", "tool_call_id", id, "content", content));
}

/* Thinking of an earlier answer: its text, or where there is none its summary. */
static int take_reasoning(struct conversation *c, const json_t *item)
{
    const json_t *parts = field_get(item, "content"), *part;
    size_t i;
    struct buf text;
    if (json_array_size(parts) == 0)
        parts = field_get(item, "summary");
    buf_init(&text, 0);
    if (c->thinking)
        buf_append(&text, json_string_value(c->thinking), json_string_length(c->thinking));
    json_array_foreach(parts, i, part)
    {
        const json_t *t = json_object_get(part, "text");
        if (text.len && json_string_length(t))
            buf_putc(&text, '\n');
        buf_append(&text, json_is_string(t) ? json_string_value(t) : "", json_string_length(t));
    }
    json_decref(c->thinking);
    c->thinking = text.len ? json_stringn(buf_str(&text), text.len) : NULL;
    int rc = buf_ok(&text) && (c->thinking || !text.len) ? STATUS_OK : STATUS_NOMEM;
    buf_fini(&text);
    if (c->assistant &&
        (field_get(c->assistant, "content") || field_get(c->assistant, "tool_calls")))
        c->assistant = NULL;
    return rc;
}

static int take_item(struct conversation *c, const json_t *item)
{
    const char *type = json_string_value(field_get(item, "type"));
    if (!json_is_object(item))
        return refuse(c, NULL, " must be an object.%s", "");
    if (!type || strcmp(type, "message") == 0)
        return take_message(c, item);
    if (strcmp(type, "function_call") == 0)
        return take_call(c, item);
    if (strcmp(type, "function_call_output") == 0)
        return take_output(c, item);
    if (strcmp(type, "reasoning") == 0)
        return take_reasoning(c, item);
    if (strcmp(type, "item_reference") == 0)
        return refuse(c, "unsupported_value",
                      ": nothing is stored here that could be referred to; send the item itself.%s",
                      "");
    return refuse(c, "unsupported_value", ": items of type '%.64s' are not supported.", type);
}

static int take_input(const json_t *o, json_t *chat, struct api_error *e)
{
    const json_t *input = field_get(o, "input"), *instructions = field_get(o, "instructions");
    const json_t *item;
    struct conversation c = {.messages = json_array(), .e = e};
    size_t i;
    int rc = json_object_set_new(chat, "messages", c.messages) == 0 ? STATUS_OK : STATUS_NOMEM;
    if (rc == STATUS_OK && instructions && !json_is_string(instructions))
        rc = api_fail(e, "instructions", NULL, "'instructions' must be a string.");
    if (rc == STATUS_OK && instructions)
        rc = append(&c, json_pack("{s:s, s:O}", "role", "system", "content", instructions));
    if (rc == STATUS_OK && json_is_string(input))
        rc = append(&c, json_pack("{s:s, s:O}", "role", "user", "content", input));
    else if (rc == STATUS_OK && (!json_is_array(input) || json_array_size(input) == 0))
        rc = api_fail(e, "input", NULL, "'input' must be a string or an array of items.");
    json_array_foreach(input, i, item)
    {
        c.index = i;
        if (rc == STATUS_OK)
            rc = take_item(&c, item);
    }
    json_decref(c.thinking);
    return rc;
}

/* ---- tools --------------------------------------------------------------------------------------
 */

static int take_tool(const json_t *tool, size_t index, json_t *list, struct api_error *e)
{
    static const char *const members[] = {"name", "description", "parameters", "strict"};
    const char *type = json_string_value(json_object_get(tool, "type"));
    if (!type || strcmp(type, "function") != 0)
        return api_fail(e, "tools", type ? "unsupported_value" : NULL,
                        type
                            ? "tools[%zu]: tools of type '%.64s' are not supported, only functions."
                            : "tools[%zu] must be an object with a 'type'.%.0s",
                        index, type ? type : "");
    if (!json_is_string(json_object_get(tool, "name")))
        return api_fail(e, "tools", NULL, "tools[%zu] must have a 'name'.", index);
    json_t *function = json_object();
    int rc = function ? STATUS_OK : STATUS_NOMEM;
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        const json_t *v = field_get(tool, members[i]);
        if (rc == STATUS_OK && v && json_object_set(function, members[i], (json_t *)v) != 0)
            rc = STATUS_NOMEM;
    }
    if (rc == STATUS_OK && json_array_append_new(list, json_pack("{s:s, s:O}", "type", "function",
                                                                 "function", function)) != 0)
        rc = STATUS_NOMEM;
    json_decref(function);
    return rc;
}

/* tool_choice {"type": "allowed_tools", "mode", "tools"} as chat has it. */
static json_t *chat_allowed(const json_t *choice)
{
    const json_t *tool;
    size_t i;
    json_t *list = json_array();
    json_array_foreach(json_object_get(choice, "tools"), i, tool)
    {
        json_array_append_new(list, json_pack("{s:s, s:{s:O?}}", "type", "function", "function",
                                              "name", json_object_get(tool, "name")));
    }
    return json_pack("{s:s, s:{s:O?, s:o}}", "type", "allowed_tools", "allowed_tools", "mode",
                     json_object_get(choice, "mode"), "tools", list);
}

static int take_tools(const json_t *o, json_t *chat, struct api_error *e)
{
    const json_t *tools = field_get(o, "tools"), *choice = field_get(o, "tool_choice"), *tool;
    const char *type = json_string_value(json_object_get(choice, "type"));
    size_t i;
    if (tools && !json_is_array(tools))
        return api_fail(e, "tools", NULL, "'tools' must be an array.");
    json_t *list = json_array(), *chosen = NULL;
    int rc = list ? STATUS_OK : STATUS_NOMEM;
    json_array_foreach(tools, i, tool)
    {
        if (rc == STATUS_OK)
            rc = take_tool(tool, i, list, e);
    }
    if (rc == STATUS_OK && type && strcmp(type, "allowed_tools") == 0) {
        if (!(chosen = chat_allowed(choice)))
            rc = STATUS_NOMEM;
    } else if (type && strcmp(type, "function") == 0) {
        const json_t *name = json_object_get(choice, "name");
        chosen = json_is_string(name)
                     ? json_pack("{s:s, s:{s:O}}", "type", "function", "function", "name", name)
                     : json_incref((json_t *)choice);
    } else {
        chosen = json_incref((json_t *)choice);
    }
    if (rc == STATUS_OK && json_array_size(list) && json_object_set(chat, "tools", list) != 0)
        rc = STATUS_NOMEM;
    if (rc == STATUS_OK && chosen && json_object_set(chat, "tool_choice", chosen) != 0)
        rc = STATUS_NOMEM;
    json_decref(list);
    json_decref(chosen);
    return rc;
}

/* ---- other fields -------------------------------------------------------------------------------
 */

/* What would need state, or other models than one of text. */
static int refuse_unsupported(const json_t *o, struct api_error *e)
{
    static const struct {
        const char *name, *why;
    } fields[] = {
        {"previous_response_id", "nothing is stored here: send the whole conversation as 'input'"},
        {"conversation", "nothing is stored here: send the whole conversation as 'input'"},
        {"prompt", "nothing is stored here: send the text itself"},
        {"messages", "the Responses API calls it 'input'"},
    };
    bool background = false;
    const char *truncation = json_string_value(field_get(o, "truncation"));
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (field_get(o, fields[i].name))
            return api_fail(e, fields[i].name, "unsupported_value", "'%s' is not supported; %s.",
                            fields[i].name, fields[i].why);
    }
    TRY(field_bool(o, "background", &background, e));
    if (background)
        return api_fail(e, "background", "unsupported_value",
                        "'background' is not supported; use 'stream'.");
    if (field_get(o, "truncation") && (!truncation || strcmp(truncation, "disabled") != 0))
        return api_fail(e, "truncation", "unsupported_value",
                        "'truncation' must be 'disabled': nothing of a conversation is dropped.");
    if (json_array_size(field_get(o, "context_management")))
        return api_fail(e, "context_management", "unsupported_value",
                        "'context_management' is not supported.");
    return STATUS_OK;
}

/* What OpenAI's API can add to a response. Log probabilities are all there is to add here: the
 * others are parts of items that need tools, inputs or a store that are refused, and no thinking is
 * hidden here so that it would have to be encrypted. */
static int check_include(const json_t *include, struct api_error *e)
{
    static const char words[] =
        "message.output_text.logprobs reasoning.encrypted_content file_search_call.results "
        "web_search_call.results web_search_call.action.sources message.input_image.image_url "
        "computer_call_output.output.image_url code_interpreter_call.outputs";
    const json_t *v;
    size_t i;
    if (include && !json_is_array(include))
        return api_fail(e, "include", NULL, "'include' must be an array.");
    json_array_foreach(include, i, v)
    {
        if (!known_word(v, words))
            return api_fail(e, "include", NULL, "include[%zu] must be one of: %s.", i, words);
    }
    return STATUS_OK;
}

/* Fields that change nothing here, but may be wrong. */
static int check_others(const json_t *o, struct api_error *e)
{
    const json_t *metadata = field_get(o, "metadata"), *v;
    const char *key;
    const json_t *options = field_get(o, "stream_options");
    const json_t *summary = field_get(field_get(o, "reasoning"), "summary");
    bool store = false, obfuscation = false; /* there is nothing that it could hide */
    int64_t calls = 0;
    TRY(field_bool(o, "store", &store, e));
    TRY(field_int(o, "max_tool_calls", 1, INT64_MAX, &calls, e));
    TRY(check_include(field_get(o, "include"), e));
    if (options && !json_is_object(options))
        return api_fail(e, "stream_options", NULL, "'stream_options' must be an object.");
    if (field_bool(options, "include_obfuscation", &obfuscation, e) != STATUS_OK)
        return api_fail(e, "stream_options", NULL,
                        "'stream_options.include_obfuscation' must be true or false.");
    if (summary && !known_word(summary, "auto concise detailed"))
        return api_fail(e, "reasoning", NULL,
                        "'reasoning.summary' must be one of: auto concise detailed.");
    if (metadata && (!json_is_object(metadata) || json_object_size(metadata) > METADATA_MAX))
        return api_fail(e, "metadata", NULL, "'metadata' must be an object of at most %d strings.",
                        METADATA_MAX);
    json_object_foreach((json_t *)metadata, key, v)
    {
        if (!json_is_string(v))
            return api_fail(e, "metadata", NULL, "'metadata' must have strings as values.");
    }
    return STATUS_OK;
}

static int take_text(const json_t *o, json_t *chat, struct api_error *e)
{
    const json_t *text = field_get(o, "text"), *format = field_get(text, "format");
    const json_t *verbosity = field_get(text, "verbosity");
    const char *type = json_string_value(json_object_get(format, "type"));
    if (text && !json_is_object(text))
        return api_fail(e, "text", NULL, "'text' must be an object.");
    if (verbosity && json_object_set(chat, "verbosity", (json_t *)verbosity) != 0)
        return STATUS_NOMEM;
    if (!format)
        return STATUS_OK;
    if (!type)
        return api_fail(e, "text.format", NULL, "'text.format' must be an object with a 'type'.");
    if (strcmp(type, "json_schema") != 0)
        return json_object_set(chat, "response_format", (json_t *)format) == 0 ? STATUS_OK
                                                                               : STATUS_NOMEM;
    json_t *schema = json_copy((json_t *)format);
    if (schema)
        json_object_del(schema, "type");
    return json_object_set_new(
               chat, "response_format",
               json_pack("{s:s, s:o}", "type", "json_schema", "json_schema", schema)) == 0
               ? STATUS_OK
               : STATUS_NOMEM;
}

static int take_logprobs(const json_t *o, json_t *chat, struct api_error *e)
{
    const json_t *include = field_get(o, "include"), *v;
    int64_t top = 0;
    bool wanted = false;
    size_t i;
    TRY(field_int(o, "top_logprobs", 0, 20, &top, e));
    json_array_foreach(include, i, v)
    {
        wanted = wanted || strcmp(json_string_value(v), "message.output_text.logprobs") == 0;
    }
    json_object_del(chat, "top_logprobs");
    if (!wanted && top == 0)
        return STATUS_OK;
    return json_object_set_new(chat, "logprobs", json_true()) == 0 &&
                   json_object_set_new(chat, "top_logprobs", json_integer(top)) == 0
               ? STATUS_OK
               : STATUS_NOMEM;
}

static int take_length(const json_t *o, json_t *chat, struct api_error *e)
{
    int64_t most = 0;
    TRY(field_int(o, "max_output_tokens", 1, INT32_MAX, &most, e));
    json_object_del(chat, "max_output_tokens");
    if (most && json_object_set_new(chat, "max_completion_tokens", json_integer(most)) != 0)
        return STATUS_NOMEM;
    return STATUS_OK;
}

/* ---- the answer's share -------------------------------------------------------------------------
 */

/* The member of the request, or what stands for it; json is its text. */
static int put_echo(json_t *echo, const json_t *o, const char *name, const char *json)
{
    const json_t *v = field_get(o, name);
    json_t *new = v ? json_incref((json_t *)v) : json_loads(json, JSON_DECODE_ANY, NULL);
    return json_object_set_new(echo, name, new) == 0 ? STATUS_OK : STATUS_NOMEM;
}

static int make_echo(const json_t *o, char **out)
{
    static const char *const members[][2] = {
        {"instructions", "null"},
        {"max_output_tokens", "null"},
        {"max_tool_calls", "null"},
        {"metadata", "{}"},
        {"parallel_tool_calls", "true"},
        {"prompt_cache_key", "null"},
        {"reasoning", "{\"effort\":null,\"summary\":null}"},
        {"safety_identifier", "null"},
        {"temperature", "1.0"},
        {"text", "{\"format\":{\"type\":\"text\"}}"},
        {"tool_choice", "\"auto\""},
        {"tools", "[]"},
        {"top_logprobs", "0"},
        {"top_p", "1.0"},
        {"truncation", "\"disabled\""},
        {"user", "null"},
    };
    json_t *echo = json_object();
    int rc = echo ? STATUS_OK : STATUS_NOMEM;
    for (size_t i = 0; i < sizeof members / sizeof *members && rc == STATUS_OK; i++)
        rc = put_echo(echo, o, members[i][0], members[i][1]);
    char *text = rc == STATUS_OK ? json_dumps(echo, JSON_COMPACT) : NULL;
    json_decref(echo);
    if (!text)
        return STATUS_NOMEM;
    size_t n = strlen(text);
    memmove(text, text + 1, n - 2); /* without the braces */
    text[n - 2] = '\0';
    *out = text;
    return STATUS_OK;
}

int responses_translate(const json_t *o, json_t **out, char **echo, struct api_error *e)
{
    static const char *const own[] = {"input",
                                      "instructions",
                                      "text",
                                      "include",
                                      "store",
                                      "truncation",
                                      "background",
                                      "metadata",
                                      "tools",
                                      "tool_choice",
                                      "max_tool_calls",
                                      "stream_options",
                                      "context_management",
                                      "previous_response_id",
                                      "conversation",
                                      "prompt"};
    TRY(refuse_unsupported(o, e));
    TRY(check_others(o, e));
    json_t *chat = json_copy((json_t *)o);
    if (!chat)
        return STATUS_NOMEM;
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        json_object_del(chat, own[i]);
    int rc = take_input(o, chat, e);
    if (rc == STATUS_OK)
        rc = take_tools(o, chat, e);
    if (rc == STATUS_OK)
        rc = take_text(o, chat, e);
    if (rc == STATUS_OK)
        rc = take_length(o, chat, e);
    if (rc == STATUS_OK)
        rc = take_logprobs(o, chat, e);
    if (rc == STATUS_OK)
        rc = make_echo(o, echo);
    if (rc != STATUS_OK) {
        json_decref(chat);
        return rc;
    }
    *out = chat;
    return STATUS_OK;
}

/* A refusal that begins with the name, in quotes, begins with the other one. */
static void rename_text(struct api_error *e, const char *name, const char *other)
{
    struct api_error old = *e;
    size_t n = strlen(name);
    if (old.message[0] == '\'' && strncmp(old.message + 1, name, n) == 0 &&
        old.message[n + 1] == '\'')
        snprintf(e->message, sizeof e->message, "'%s%.400s", other, old.message + n + 1);
}

void responses_rename(const json_t *request, struct api_error *e)
{
    static const char *const names[][3] = {
        /* of chat, here, and where the former came from */
        {"messages", "input", "messages"},
        {"verbosity", "text.verbosity", "verbosity"},
        {"response_format", "text.format", "response_format"},
        {"response_format.json_schema.name", "text.format.name", "response_format"},
        {"response_format.json_schema.strict", "text.format.strict", "response_format"},
        {"response_format.json_schema.schema", "text.format.schema", "response_format"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (field_get(request, names[i][2])) /* the client's own word */
            continue;
        if (e->param && strcmp(e->param, names[i][0]) == 0)
            e->param = names[i][1];
        rename_text(e, names[i][0], names[i][1]);
    }
}
