/* prompt: see prompt.h.
 *
 * Messages are normalised before the template sees them: text parts are joined by a newline,
 * developer becomes system, null content becomes "", arguments of tool calls take the form that the
 * template wants. Other members (name, tool_call_id, …) pass as they are. */
#include "routerd/prompt.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"

/* ---- chat --------------------------------------------------------------------------------------
 */

/* Joins the text parts of a content array; a new reference in *out. */
static int join_parts(const json_t *parts, size_t index, json_t **out, struct api_error *e)
{
    struct buf text;
    size_t i;
    const json_t *part;
    buf_init(&text, 0);
    if (json_array_size(parts) == 0)
        return api_fail(e, "messages", NULL, "messages[%zu].content is an empty array.", index);
    json_array_foreach(parts, i, part)
    {
        const json_t *type = json_object_get(part, "type"), *t = json_object_get(part, "text");
        if (!json_is_string(type)) {
            buf_fini(&text);
            return api_fail(e, "messages", NULL, "messages[%zu].content[%zu] has no 'type'.", index,
                            i);
        }
        if (strcmp(json_string_value(type), "text") != 0) {
            buf_fini(&text);
            return api_fail(e, "messages", "unsupported_value",
                            "messages[%zu].content[%zu]: parts of type '%.64s' are not supported.",
                            index, i, json_string_value(type));
        }
        if (!json_is_string(t)) {
            buf_fini(&text);
            return api_fail(e, "messages", NULL,
                            "messages[%zu].content[%zu].text must be a string.", index, i);
        }
        if (i)
            buf_putc(&text, '\n');
        buf_append(&text, json_string_value(t), json_string_length(t));
    }
    *out = buf_ok(&text) ? json_stringn(buf_str(&text), text.len) : NULL;
    buf_fini(&text);
    return *out ? STATUS_OK : STATUS_NOMEM;
}

/* One message as templates expect it; a new reference in *out. */
static int normalise(const struct api_env *env, const json_t *m, size_t index, json_t **out,
                     struct api_error *e)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
    const json_t *role = json_object_get(m, "role"), *content = field_get(m, "content");
    bool known = false, calls = json_array_size(field_get(m, "tool_calls")) > 0;
    if (!json_is_object(m) || !json_is_string(role))
        return api_fail(e, "messages", NULL, "messages[%zu] must be an object with a 'role'.",
                        index);
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++)
        known |= strcmp(json_string_value(role), roles[i]) == 0;
    if (!known)
        return api_fail(
            e, "messages", NULL,
            "messages[%zu].role must be system, developer, user, assistant or tool, not "
            "'%.64s'.",
            index, json_string_value(role));
    json_t *text = NULL;
    if (json_is_array(content))
        TRY(join_parts(content, index, &text, e));
    else if (json_is_string(content))
        text = json_incref((json_t *)content);
    else if (content)
        return api_fail(e, "messages", NULL,
                        "messages[%zu].content must be a string or an array of parts.", index);
    else if (strcmp(json_string_value(role), "assistant") == 0 || calls)
        text = json_string("");
    else
        return api_fail(e, "messages", NULL, "messages[%zu].content is missing.", index);
    json_t *copy = json_copy((json_t *)m);
    if (!copy || !text) {
        json_decref(copy);
        json_decref(text);
        return STATUS_NOMEM;
    }
    if (strcmp(json_string_value(role), "developer") == 0)
        json_object_set_new(copy, "role", json_string("system"));
    json_object_set_new(copy, "content", text);
    int rc = think_message(env->profile, copy, index, e);
    if (rc != STATUS_OK) {
        json_decref(copy);
        return rc;
    }
    *out = copy;
    return STATUS_OK;
}

static int set_token_text(const struct api_env *env, json_t *context, const char *key, int32_t id)
{
    struct token_text t = {"", 0};
    if (id >= 0)
        t = tokenizer_piece(env->tokenizer, id, false);
    return json_object_set_new(context, key, json_stringn(t.p, t.n)) == 0 ? STATUS_OK
                                                                          : STATUS_NOMEM;
}

/* The template's variables; a new reference in *out. */
static int build_context(const struct api_env *env, const json_t *o, const struct think_params *p,
                         bool turn, json_t **out, struct api_error *e)
{
    const json_t *messages = field_get(o, "messages"), *m, *v;
    const json_t *documents = field_get(o, "documents");
    const char *key;
    size_t i;
    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return api_fail(e, "messages", NULL,
                        "'messages' must be an array with at least one message.");
    const json_t *kwargs = field_get(o, "chat_template_kwargs");
    if (kwargs && !json_is_object(kwargs))
        return api_fail(e, "chat_template_kwargs", NULL,
                        "'chat_template_kwargs' must be an object.");
    if (documents && !json_is_array(documents))
        return api_fail(e, "documents", NULL, "'documents' must be an array.");
    json_t *context = json_object(), *list = json_array();
    int rc = context && list ? think_context(p, context) : STATUS_NOMEM;
    json_array_foreach(messages, i, m)
    {
        json_t *copy = NULL;
        if (rc == STATUS_OK)
            rc = normalise(env, m, i, &copy, e);
        if (rc == STATUS_OK && json_array_append_new(list, copy) != 0)
            rc = STATUS_NOMEM;
    }
    json_object_foreach((json_t *)kwargs, key, v)
    {
        if (rc == STATUS_OK && json_object_set(context, key, (json_t *)v) != 0)
            rc = STATUS_NOMEM;
    }
    if (rc == STATUS_OK && p->tools && json_object_set(context, "tools", p->tools) != 0)
        rc = STATUS_NOMEM;
    if (rc == STATUS_OK && documents &&
        json_object_set(context, "documents", (json_t *)documents) != 0)
        rc = STATUS_NOMEM;
    if (rc == STATUS_OK &&
        (json_object_set(context, "messages", list) != 0 ||
         json_object_set_new(context, "add_generation_prompt", json_boolean(turn)) != 0))
        rc = STATUS_NOMEM;
    if (rc == STATUS_OK)
        rc = set_token_text(env, context, "bos_token", tokenizer_bos(env->tokenizer));
    if (rc == STATUS_OK)
        rc = set_token_text(env, context, "eos_token", tokenizer_eos(env->tokenizer));
    json_decref(list);
    if (rc != STATUS_OK) {
        json_decref(context);
        return rc;
    }
    *out = context;
    return STATUS_OK;
}

/* Tokenises rendered text: control tokens only where the template wrote them. */
static int encode_rendered(const struct tokenizer *t, const struct chat_output *r,
                           struct token_list *out)
{
    struct token_range *trusted = mem_array(r->n_spans, sizeof *trusted);
    size_t n = 0;
    if (!trusted)
        return STATUS_NOMEM;
    for (size_t i = 0; i < r->n_spans; i++) {
        if (r->spans[i].from_template)
            trusted[n++] = (struct token_range){r->spans[i].begin, r->spans[i].end};
    }
    int rc = tokenizer_encode_ranges(t, buf_str(&r->text), r->text.len, 0, trusted, n, out);
    free(trusted);
    return rc;
}

static bool in_kwargs(const json_t *o, const char *name)
{
    return json_object_get(field_get(o, "chat_template_kwargs"), name) != NULL;
}

/* How the rendered text ends: with the beginning of the model's turn, or inside the last message.
 */
static int parse_ending(const json_t *o, bool *turn, bool *go_on, struct api_error *e)
{
    const json_t *messages = field_get(o, "messages");
    *turn = true;
    *go_on = false;
    TRY(field_bool(o, "add_generation_prompt", turn, e));
    TRY(field_bool(o, "continue_final_message", go_on, e));
    if (!*go_on)
        return STATUS_OK;
    if (*turn && field_get(o, "add_generation_prompt"))
        return api_fail(
            e, "continue_final_message", NULL,
            "'continue_final_message' and 'add_generation_prompt' cannot both be true.");
    *turn = false;
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    if (messages && last && (!role || strcmp(role, "assistant") != 0))
        return api_fail(e, "continue_final_message", NULL,
                        "'continue_final_message' needs a last message of the assistant.");
    return STATUS_OK;
}

static bool blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Cuts the rendered text behind the content of the last message, whose blanks at both ends
 * templates may have taken away. */
static int cut_behind_content(const json_t *context, struct chat_output *r, struct api_error *e)
{
    const json_t *messages = json_object_get(context, "messages");
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const json_t *content = json_object_get(last, "content");
    const char *text = json_string_value(content), *all = buf_str(&r->text);
    size_t n = json_string_length(content), at = r->text.len;
    while (n && blank(text[n - 1]))
        n--;
    while (n && blank(*text))
        text++, n--;
    if (n == 0)
        return api_fail(e, "continue_final_message", NULL,
                        "The last message has no content that could be continued.");
    do {
        if (at < n)
            return api_fail(e, "continue_final_message", NULL,
                            "The chat template does not show the last message as it is.");
        at--;
    } while (at + n > r->text.len || memcmp(all + at, text, n) != 0);
    size_t end = at + n;
    /* Blanks that ended the content and that the template kept. */
    const char *rest = text + n, *over = json_string_value(content) + json_string_length(content);
    while (rest < over && end < r->text.len && all[end] == *rest)
        end++, rest++;
    while (r->n_spans && r->spans[r->n_spans - 1].begin >= end)
        r->n_spans--;
    if (r->n_spans && r->spans[r->n_spans - 1].end > end)
        r->spans[r->n_spans - 1].end = end;
    if (end < r->text.len)
        r->text.data[end] = 0;
    r->text.len = end;
    return STATUS_OK;
}

int prompt_from_messages(const struct api_env *env, const json_t *o, int64_t now,
                         struct api_params *p, struct api_error *e)
{
    json_t *context = NULL;
    struct chat_output rendered;
    char why[300];
    bool turn;
    TRY(parse_ending(o, &turn, &p->continues, e));
    TRY(build_context(env, o, &p->think, turn, &context, e));
    int rc = chat_render(env->chat_template, context, now, &rendered, why, sizeof why);
    if (rc == STATUS_INVALID && p->think.effort[0] && !in_kwargs(o, "reasoning_effort") &&
        json_object_del(context, "reasoning_effort") == 0)
        /* it knows other words for efforts */
        rc = chat_render(env->chat_template, context, now, &rendered, why, sizeof why);
    if (rc != STATUS_OK) {
        json_decref(context);
        return rc == STATUS_NOMEM ? rc : api_fail(e, "messages", NULL, "Chat template: %s", why);
    }
    if (p->continues)
        rc = cut_behind_content(context, &rendered, e);
    json_decref(context);
    if (rc != STATUS_OK) {
        chat_output_fini(&rendered);
        return rc;
    }
    p->prompts = mem_array(1, sizeof *p->prompts);
    p->n_prompts = p->prompts ? 1 : 0;
    rc = p->prompts ? encode_rendered(env->tokenizer, &rendered, &p->prompts[0].tokens)
                    : STATUS_NOMEM;
    p->think.start = reply_profile_start(env->profile, &rendered);
    chat_output_fini(&rendered);
    return rc;
}

/* ---- completions -------------------------------------------------------------------------------
 */

static int prompt_text(const struct api_env *env, const json_t *s, bool bos, bool echo,
                       struct api_prompt *out)
{
    unsigned flags = TOKENIZE_SPECIAL | (bos ? TOKENIZE_BOS : 0);
    TRY(tokenizer_encode(env->tokenizer, json_string_value(s), json_string_length(s), flags,
                         &out->tokens));
    if (echo && !(out->text = mem_dup(json_string_value(s), json_string_length(s) + 1)))
        return STATUS_NOMEM;
    out->text_len = json_string_length(s);
    return STATUS_OK;
}

static int prompt_ids(const struct api_env *env, const json_t *ids, const char *name, bool echo,
                      struct api_prompt *out, struct api_error *e)
{
    size_t n = json_array_size(ids), i;
    const json_t *v;
    out->tokens.ids = mem_array(n, sizeof *out->tokens.ids);
    if (!out->tokens.ids)
        return STATUS_NOMEM;
    out->tokens.cap = n;
    json_array_foreach(ids, i, v)
    {
        if (!json_is_integer(v))
            return api_fail(e, name, NULL, "%s[%zu] must be a token id.", name, i);
        json_int_t id = json_integer_value(v);
        if (id < 0 || id >= env->vocab)
            return api_fail(e, name, NULL, "%s[%zu] is %lld; token ids of this model are 0 to %u.",
                            name, i, (long long)id, env->vocab - 1);
        out->tokens.ids[out->tokens.n++] = (int32_t)id;
    }
    if (echo) {
        struct buf text;
        buf_init(&text, 0);
        tokenizer_decode(env->tokenizer, out->tokens.ids, n, true, &text);
        out->text_len = text.len;
        out->text = buf_take(&text);
        buf_fini(&text);
        if (!out->text)
            return STATUS_NOMEM;
    }
    return STATUS_OK;
}

int prompt_from_texts(const struct api_env *env, const json_t *o, const char *name,
                      struct api_params *p, struct api_error *e)
{
    const json_t *v = field_get(o, name);
    const json_t *first = json_array_get(v, 0);
    bool many = json_is_string(first) || json_is_array(first);
    size_t n = many ? json_array_size(v) : 1;
    bool bos = true;
    TRY(field_bool(o, "add_special_tokens", &bos, e));
    bos = bos && tokenizer_add_bos(env->tokenizer);
    if (!json_is_string(v) && !json_is_array(v))
        return api_fail(e, name, NULL,
                        "'%s' must be a string, an array of strings, an array of token ids, or an "
                        "array of such arrays.",
                        name);
    if (n > API_PROMPTS_MAX)
        return api_fail(e, name, NULL, "'%s' may hold at most %d texts.", name, API_PROMPTS_MAX);
    p->prompts = mem_array(n, sizeof *p->prompts);
    if (!p->prompts)
        return STATUS_NOMEM;
    p->n_prompts = (uint32_t)n;
    for (size_t i = 0; i < n; i++) {
        const json_t *one = many ? json_array_get(v, i) : v;
        if (json_is_string(one))
            TRY(prompt_text(env, one, bos, p->echo, &p->prompts[i]));
        else if (json_is_array(one))
            TRY(prompt_ids(env, one, name, p->echo, &p->prompts[i], e));
        else
            return api_fail(e, name, NULL, "%s[%zu] must be a string or an array of ids.", name, i);
    }
    return STATUS_OK;
}

/* ---- length ------------------------------------------------------------------------------------
 */

int prompt_truncate(const struct api_env *env, const json_t *o, struct api_params *p,
                    struct api_error *e)
{
    int64_t keep = 0;
    TRY(field_int(o, "truncate_prompt_tokens", -1, INT32_MAX, &keep, e));
    if (!field_get(o, "truncate_prompt_tokens"))
        return STATUS_OK;
    if (keep == 0)
        return api_fail(e, "truncate_prompt_tokens", NULL,
                        "'truncate_prompt_tokens' must be -1 or at least 1.");
    if (keep < 0) {
        int64_t answer = p->max_tokens > 0 ? p->max_tokens : 1;
        keep = answer < env->context ? env->context - answer : 1;
    }
    for (uint32_t i = 0; i < p->n_prompts; i++) {
        struct api_prompt *one = &p->prompts[i];
        struct token_list *t = &one->tokens;
        if (t->n <= (uint64_t)keep)
            continue;
        memmove(t->ids, t->ids + (t->n - (size_t)keep), (size_t)keep * sizeof *t->ids);
        t->n = (size_t)keep;
        if (!one->text)
            continue;
        struct buf text;
        buf_init(&text, 0);
        tokenizer_decode(env->tokenizer, t->ids, t->n, true, &text);
        free(one->text);
        one->text_len = text.len;
        one->text = buf_take(&text);
        buf_fini(&text);
        if (!one->text)
            return STATUS_NOMEM;
    }
    return STATUS_OK;
}
