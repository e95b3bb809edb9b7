/* think: see think.h.
 *
 * Who says how long a model may think, the first one that does: thinking_token_budget,
 * reasoning.max_tokens, reasoning_effort (or reasoning.effort) by the configured table. An effort
 * also reaches the template, where models know it, together with the two switches that templates
 * use (enable_thinking, thinking); chat_template_kwargs of the request come last and win. */
#include "routerd/think.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const effort_names[] = {"none", "minimal", "low", "medium",
                                           "high", "xhigh",   "max"};
#define N_EFFORTS (sizeof effort_names / sizeof *effort_names)

static bool is_effort(const char *name)
{
    for (size_t i = 0; i < N_EFFORTS; i++) {
        if (strcmp(effort_names[i], name) == 0)
            return true;
    }
    return false;
}

int think_efforts_parse(const char *text, struct think_efforts *out, char *err, size_t errlen)
{
    *out = (struct think_efforts){0};
    for (const char *p = text ? text : ""; *p;) {
        char name[16], digits[10];
        int used = 0;
        if (sscanf(p, " %15[a-z] : %9[0-9] %n", name, digits, &used) != 2 || !is_effort(name) ||
            strcmp(name, "none") == 0 || (p[used] && p[used] != ',') ||
            out->n == THINK_EFFORTS_MAX) {
            snprintf(err, errlen,
                     "reasoning_efforts: '%.40s' is not a list like low:1024,medium:8192 (efforts "
                     "are minimal, low, medium, high, xhigh and max)",
                     p);
            return STATUS_INVALID;
        }
        snprintf(out->list[out->n].name, sizeof out->list[0].name, "%s", name);
        out->list[out->n++].tokens = (uint32_t)atoi(digits);
        p += used + (p[used] == ',');
    }
    return STATUS_OK;
}

/* ---- requests ----------------------------------------------------------------------------------
 */

static int parse_effort(const json_t *o, const char *name, struct think_params *p,
                        struct api_error *e)
{
    const json_t *v = field_get(o, name);
    if (!v)
        return STATUS_OK;
    if (!json_is_string(v) || !is_effort(json_string_value(v)))
        return api_fail(e, name, NULL,
                        "'%s' must be none, minimal, low, medium, high, xhigh or max.", name);
    snprintf(p->effort, sizeof p->effort, "%s", json_string_value(v));
    return STATUS_OK;
}

static int parse_reasoning(const json_t *o, struct think_params *p, int64_t *limit,
                           struct api_error *e)
{
    const json_t *r = field_get(o, "reasoning");
    bool enabled = true;
    if (!r)
        return STATUS_OK;
    if (!json_is_object(r))
        return api_fail(e, "reasoning", NULL, "'reasoning' must be an object.");
    int rc = parse_effort(r, "effort", p, e);
    if (rc == STATUS_OK)
        rc = field_int(r, "max_tokens", 0, INT32_MAX - 1, limit, e);
    if (rc == STATUS_OK)
        rc = field_bool(r, "enabled", &enabled, e);
    if (rc == STATUS_OK)
        rc = field_bool(r, "exclude", &p->hide, e);
    if (rc != STATUS_OK) {
        struct api_error inner = *e;
        api_fail(e, "reasoning", NULL, "'reasoning': %.400s", inner.message);
    }
    if (!enabled)
        strcpy(p->effort, "none");
    return rc;
}

bool think_allows(const json_t *choice)
{
    const char *type = json_string_value(field_get(choice, "type"));
    return type && strcmp(type, "allowed_tools") == 0;
}

static const json_t *tool_name(const json_t *tool)
{
    return field_get(field_get(tool, "function"), "name");
}

static bool has_tool(const json_t *list, const json_t *name)
{
    const json_t *tool;
    size_t i;
    json_array_foreach(list, i, tool)
    {
        if (name && json_equal(tool_name(tool), name))
            return true;
    }
    return false;
}

/* tool_choice {"type": "allowed_tools", "allowed_tools": {"mode", "tools"}}: the model hears of no
 * other tools. */
static int keep_allowed(const json_t *list, struct think_params *p, struct api_error *e)
{
    const json_t *tool;
    size_t i;
    if (json_array_size(list) == 0)
        return api_fail(e, "tool_choice", NULL,
                        "'tool_choice' of type 'allowed_tools' must have 'tools' that name "
                        "functions.");
    json_array_foreach(list, i, tool)
    {
        const char *name = json_string_value(tool_name(tool));
        if (!has_tool(p->tools, tool_name(tool)))
            return api_fail(e, "tool_choice", NULL,
                            "'tool_choice' names '%.100s', which is none of the 'tools'.",
                            name ? name : "");
    }
    json_t *kept = json_array();
    int rc = kept ? STATUS_OK : STATUS_NOMEM;
    json_array_foreach(p->tools, i, tool)
    {
        if (rc == STATUS_OK && has_tool(list, tool_name(tool)) &&
            json_array_append(kept, (json_t *)tool) != 0)
            rc = STATUS_NOMEM;
    }
    json_decref(p->tools);
    p->tools = kept;
    return rc;
}

static int check_function(const json_t *f, size_t index, struct api_error *e)
{
    const json_t *parameters = field_get(f, "parameters"), *strict = field_get(f, "strict");
    const json_t *description = field_get(f, "description");
    const char *wrong = NULL;
    if (json_string_length(json_object_get(f, "name")) == 0)
        wrong = "'name' must not be empty";
    else if (parameters && !json_is_object(parameters))
        wrong = "'parameters' must be a JSON Schema: an object";
    else if (description && !json_is_string(description))
        wrong = "'description' must be a string";
    else if (strict && !json_is_boolean(strict)) /* either way calls that must be are kept to it */
        wrong = "'strict' must be true or false";
    return wrong ? api_fail(e, "tools", NULL, "tools[%zu]: %s.", index, wrong) : STATUS_OK;
}

static int parse_tools(const json_t *o, struct think_params *p, struct api_error *e)
{
    const json_t *tools = field_get(o, "tools"), *choice = field_get(o, "tool_choice"), *tool;
    bool parallel = true;
    size_t i;
    TRY(field_bool(o, "parallel_tool_calls", &parallel, e));
    p->one_call = !parallel;
    if (tools && !json_is_array(tools))
        return api_fail(e, "tools", NULL, "'tools' must be an array.");
    json_array_foreach(tools, i, tool)
    {
        const json_t *f = json_object_get(tool, "function");
        const char *type = json_string_value(json_object_get(tool, "type"));
        if (!type || strcmp(type, "function") != 0 || !json_is_string(json_object_get(f, "name")))
            return api_fail(e, "tools", NULL,
                            "tools[%zu] must be an object with 'type': 'function' and a 'function' "
                            "with a 'name'.",
                            i);
        TRY(check_function(f, i, e));
    }
    bool none = json_is_string(choice) && strcmp(json_string_value(choice), "none") == 0;
    if (json_array_size(tools) && !none)
        p->tools = json_incref((json_t *)tools);
    if (think_allows(choice))
        return keep_allowed(field_get(field_get(choice, "allowed_tools"), "tools"), p, e);
    return STATUS_OK;
}

int think_parse(const json_t *o, const struct think_efforts *efforts, struct think_params *p,
                struct api_error *e)
{
    int64_t budget = -1, limit = -1;
    bool include = true;
    *p = (struct think_params){.limit = THINK_UNLIMITED};
    TRY(parse_reasoning(o, p, &limit, e));
    TRY(parse_effort(o, "reasoning_effort", p, e));
    TRY(field_int(o, "thinking_token_budget", -1, INT32_MAX - 1, &budget, e));
    TRY(field_bool(o, "include_reasoning", &include, e));
    p->hide = p->hide || !include;
    p->off = strcmp(p->effort, "none") == 0;
    for (size_t i = 0; i < efforts->n; i++) {
        if (strcmp(efforts->list[i].name, p->effort) == 0)
            p->limit = efforts->list[i].tokens;
    }
    if (p->off)
        p->limit = 0;
    if (limit >= 0)
        p->limit = limit;
    if (field_get(o, "thinking_token_budget"))
        p->limit = budget < 0 ? THINK_UNLIMITED : budget;
    return parse_tools(o, p, e);
}

void think_fini(struct think_params *p)
{
    json_decref(p->tools);
    p->tools = NULL;
}

int think_context(const struct think_params *p, json_t *context)
{
    bool on = !p->off;
    if (!p->effort[0])
        return STATUS_OK;
    if (json_object_set_new(context, "enable_thinking", json_boolean(on)) != 0 ||
        json_object_set_new(context, "thinking", json_boolean(on)) != 0)
        return STATUS_NOMEM;
    if (on && json_object_set_new(context, "reasoning_effort", json_string(p->effort)) != 0)
        return STATUS_NOMEM;
    return STATUS_OK;
}

/* ---- messages ----------------------------------------------------------------------------------
 */

/* Arguments in the form that the template wants. What is neither an object nor the text of one is
 * left as it is: a model's broken call may be part of a conversation. */
static int set_arguments(const struct reply_profile *profile, json_t *function)
{
    const json_t *v = json_object_get(function, "arguments");
    json_t *new = NULL;
    json_error_t e;
    if (profile->arguments_text) {
        if (!json_is_object(v))
            return STATUS_OK;
        char *text = json_dumps(v, 0);
        new = text ? json_string(text) : NULL;
        free(text);
    } else {
        if (json_is_object(v) || (v && !json_is_string(v) && !json_is_null(v)))
            return STATUS_OK;
        const char *text = v ? json_string_value(v) : NULL;
        new = text &&*text ? json_loads(text, JSON_ALLOW_NUL, &e) : json_object();
        if (!json_is_object(new)) {
            json_decref(new);
            return STATUS_OK;
        }
    }
    return new &&json_object_set_new(function, "arguments", new) == 0 ? STATUS_OK : STATUS_NOMEM;
}

static int set_calls(const struct reply_profile *profile, json_t *m, const json_t *calls,
                     size_t index, struct api_error *e)
{
    json_t *list = json_array();
    const json_t *call;
    size_t i;
    int rc = list ? STATUS_OK : STATUS_NOMEM;
    json_array_foreach(calls, i, call)
    {
        const json_t *f = json_object_get(call, "function");
        if (rc == STATUS_OK && (!json_is_object(f) || !json_is_string(json_object_get(f, "name"))))
            rc = api_fail(e, "messages", NULL,
                          "messages[%zu].tool_calls[%zu] must be an object with a 'function' that "
                          "has a 'name'.",
                          index, i);
        json_t *copy = json_copy((json_t *)call), *function = json_copy((json_t *)f);
        if (rc == STATUS_OK && (!copy || !function))
            rc = STATUS_NOMEM;
        if (rc == STATUS_OK)
            rc = set_arguments(profile, function);
        if (rc == STATUS_OK && (json_object_set(copy, "function", function) != 0 ||
                                json_array_append(list, copy) != 0))
            rc = STATUS_NOMEM;
        json_decref(copy);
        json_decref(function);
    }
    if (rc == STATUS_OK && json_object_set(m, "tool_calls", list) != 0)
        rc = STATUS_NOMEM;
    json_decref(list);
    return rc;
}

int think_message(const struct reply_profile *profile, json_t *m, size_t index, struct api_error *e)
{
    const json_t *calls = field_get(m, "tool_calls"), *reasoning = field_get(m, "reasoning");
    if (calls && !json_is_array(calls))
        return api_fail(e, "messages", NULL, "messages[%zu].tool_calls must be an array.", index);
    if (!calls)
        json_object_del(m, "tool_calls"); /* null */
    else
        TRY(set_calls(profile, m, calls, index, e));
    if (json_is_string(reasoning) && !field_get(m, "reasoning_content") &&
        json_object_set(m, "reasoning_content", (json_t *)reasoning) != 0)
        return STATUS_NOMEM;
    return STATUS_OK;
}
