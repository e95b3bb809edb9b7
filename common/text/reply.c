/* reply: thinking first, then calls, in one pass; see reply.h.
 *
 * The tag separator stands before the tool parser, except while the tool parser is inside a call:
 * then text that looks like a tag is part of an argument. */
#include "common/text/reply.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"

#define PROBE_NAME "baton_probe"
#define PROBE_KEY  "probe_key"

/* ---- profile -----------------------------------------------------------------------------------
 */

/* A conversation with a call: what the template makes of it shows the format. */
static json_t *probe_context(bool text)
{
    static const char messages[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", "
        "\"content\": \"\", \"reasoning_content\": \"Hm\", \"tool_calls\": [{\"id\": "
        "\"call12345\", \"type\": \"function\", \"function\": {\"name\": \"" PROBE_NAME "\", "
        "\"arguments\": {\"" PROBE_KEY "\": \"probe\"}}}]}], \"tools\": [{\"type\": \"function\", "
        "\"function\": {\"name\": \"" PROBE_NAME "\", \"description\": \"d\", \"parameters\": "
        "{\"type\": \"object\", \"properties\": {\"" PROBE_KEY "\": {\"type\": \"string\", "
        "\"description\": \"d\"}}, \"required\": [\"" PROBE_KEY "\"]}}}], "
        "\"add_generation_prompt\": false, \"bos_token\": \"\", \"eos_token\": \"\"}";
    json_error_t e;
    json_t *context = json_loads(messages, 0, &e);
    json_t *call = json_array_get(
        json_object_get(json_array_get(json_object_get(context, "messages"), 1), "tool_calls"), 0);
    if (text)
        json_object_set_new(json_object_get(call, "function"), "arguments",
                            json_string("{\"" PROBE_KEY "\": \"probe\"}"));
    return context;
}

static char *probe(const struct chat_template *t, bool text)
{
    struct chat_output out;
    char err[128], *s = NULL;
    json_t *context = probe_context(text);
    if (context && chat_render(t, context, 0, &out, err, sizeof err) == STATUS_OK) {
        s = buf_take(&out.text);
        chat_output_fini(&out);
    }
    json_decref(context);
    return s;
}

/* Objects are what nearly all templates want. Some can only join text: they refuse an object, or
 * write it as Python would. */
static char *probe_both(const struct chat_template *t, bool *text)
{
    char *object = probe(t, false);
    bool python = object && strstr(object, "{'" PROBE_KEY "'");
    *text = false;
    if (object && !python)
        return object;
    char *string = probe(t, true);
    if (!string || (object && !strstr(string, "{\"" PROBE_KEY "\""))) {
        free(string);
        return object;
    }
    free(object);
    *text = true;
    return string;
}

struct piece {
    const char *p;
    size_t n;
    bool found;
};

static void piece_in_mark(void *arg, const char *mark)
{
    struct piece *piece = arg;
    piece->found = piece->found || memmem(mark, strlen(mark), piece->p, piece->n);
}

/* Whether the text is part of one of the profile's marks. */
static bool is_in_marks(const struct reply_profile *p, struct token_text text)
{
    struct piece piece = {text.p, text.n, false};
    const struct reasoning_format *f = p->reasoning;
    if (p->tools)
        toolcall_format_marks(p->tools, piece_in_mark, &piece);
    if (f && f->kind != REASONING_TAGS)
        channels_marks(f->kind, piece_in_mark, &piece);
    if (f) {
        const char *const tags[] = {f->open, f->close, f->skip[0], f->skip[1], f->skip[2]};
        for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
            if (tags[i])
                piece_in_mark(&piece, tags[i]);
        }
    }
    return piece.found;
}

static int find_shown(struct reply_profile *p, const struct tokenizer *t)
{
    size_t cap = 0;
    for (int32_t id = 0; (size_t)id < tokenizer_size(t); id++) {
        struct token_text text = tokenizer_piece(t, id, false);
        if (!tokenizer_hidden(t, id) || text.n < 2 || !is_in_marks(p, text))
            continue;
        if (p->n_shown == cap) {
            cap = cap * 2 + 16;
            int32_t *bigger = mem_resize(p->shown, cap, sizeof *bigger);
            if (!bigger)
                return STATUS_NOMEM;
            p->shown = bigger;
        }
        p->shown[p->n_shown++] = id;
    }
    return STATUS_OK;
}

/* rendered may be NULL. */
static int choose(struct reply_profile *p, const char *rendered, const char *source,
                  const struct tokenizer *tok, const char *reasoning, const char *tools)
{
    if (strcmp(reasoning, "auto") == 0) {
        struct buf both;
        buf_init(&both, 0);
        buf_puts(&both, source);
        buf_puts(&both, rendered ? rendered : "");
        p->reasoning = reasoning_format_detect(buf_str(&both), tok);
        buf_fini(&both);
    } else if (strcmp(reasoning, "none") != 0) {
        p->reasoning = reasoning_format_find(reasoning);
        if (!p->reasoning)
            return STATUS_INVALID;
    }
    if (strcmp(tools, "auto") == 0) {
        p->tools = toolcall_format_detect(rendered, source);
    } else if (strcmp(tools, "none") != 0) {
        p->tools = toolcall_format_find(tools);
        if (!p->tools)
            return STATUS_INVALID;
    }
    return STATUS_OK;
}

int reply_profile_init(struct reply_profile *p, const char *source, const struct chat_template *t,
                       const struct tokenizer *tok, const char *reasoning, const char *tools)
{
    *p = (struct reply_profile){0};
    char *rendered = probe_both(t, &p->arguments_text);
    int rc = choose(p, rendered, source, tok, reasoning, tools);
    free(rendered);
    return rc == STATUS_OK ? find_shown(p, tok) : rc;
}

void reply_profile_fini(struct reply_profile *p)
{
    free(p->shown);
    *p = (struct reply_profile){0};
}

static int by_id(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

bool reply_profile_shows(const struct reply_profile *p, int32_t id)
{
    return p->n_shown && bsearch(&id, p->shown, p->n_shown, sizeof id, by_id);
}

enum reasoning_start reply_profile_start(const struct reply_profile *p,
                                         const struct chat_output *prompt)
{
    size_t begin = prompt->text.len, end = begin;
    if (!p->reasoning || p->reasoning->kind != REASONING_TAGS)
        return REASONING_UNSAID;
    /* only what the template itself wrote at the end counts */
    if (prompt->n_spans && prompt->spans[prompt->n_spans - 1].from_template)
        begin = prompt->spans[prompt->n_spans - 1].begin;
    return reasoning_start_of(p->reasoning, buf_str(&prompt->text) + begin, end - begin);
}

/* ---- reply -------------------------------------------------------------------------------------
 */

static void take_text(void *arg, bool thinking, const char *p, size_t n)
{
    struct reply *r = arg;
    if (thinking)
        buf_append(&r->thinking, p, n);
    else if (!r->tools)
        buf_append(&r->content, p, n);
    else
        for (size_t i = 0; i < n; i++)
            toolcall_push(r->tools, p[i]);
}

int reply_init(struct reply *r, const struct reply_profile *p, enum reasoning_start start,
               const json_t *tools)
{
    const struct reasoning_format *f = p->reasoning;
    *r = (struct reply){.profile = p, .separate = f != NULL};
    buf_init(&r->thinking, 0);
    buf_init(&r->content, 0);
    const struct toolcall_format *calls = p->tools;
    if (calls && f && f->kind == REASONING_CHANNELS)
        calls = toolcall_format_find("harmony"); /* the headers say where calls are */
    if (tools && calls)
        TRY(toolcall_create(calls, tools, &r->content, &r->tools));
    if (f && f->kind == REASONING_TAGS)
        reasoning_init(&r->reasoning, f, start, take_text, r);
    else if (f)
        channels_init(&r->channels, f->kind, r->tools, take_text, r);
    return STATUS_OK;
}

void reply_fini(struct reply *r)
{
    const struct reasoning_format *f = r->separate ? r->profile->reasoning : NULL;
    if (f && f->kind == REASONING_TAGS)
        reasoning_fini(&r->reasoning);
    else if (f)
        channels_fini(&r->channels);
    toolcall_destroy(r->tools);
    buf_fini(&r->thinking);
    buf_fini(&r->content);
}

void reply_push(struct reply *r, const char *p, size_t n)
{
    const struct reasoning_format *f = r->separate ? r->profile->reasoning : NULL;
    for (size_t i = 0; i < n; i++) {
        if (f && f->kind != REASONING_TAGS)
            channels_push(&r->channels, p[i]);
        else if (f && !(r->tools && toolcall_busy(r->tools)))
            reasoning_push(&r->reasoning, p[i]);
        else
            take_text(r, false, &p[i], 1);
    }
}

void reply_end(struct reply *r, bool cut)
{
    const struct reasoning_format *f = r->separate ? r->profile->reasoning : NULL;
    if (f && f->kind == REASONING_TAGS)
        reasoning_end(&r->reasoning, cut);
    else if (f)
        channels_end(&r->channels, cut);
    if (r->tools)
        toolcall_end(r->tools, cut);
}

bool reply_thinking(const struct reply *r)
{
    const struct reasoning_format *f = r->separate ? r->profile->reasoning : NULL;
    if (!f)
        return false;
    return f->kind == REASONING_TAGS ? r->reasoning.thinking
                                     : r->channels.mode == CHANNELS_THINKING;
}

bool reply_ok(const struct reply *r)
{
    return buf_ok(&r->thinking) && buf_ok(&r->content) && (!r->tools || toolcall_ok(r->tools));
}
