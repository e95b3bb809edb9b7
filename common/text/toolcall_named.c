/* toolcall_named: the name of the function stands between marks, its arguments are a JSON object.
 *
 * Also used with no marks at all, when something else has said the name (toolcall_begin). Mistral's
 * models write a list of JSON objects behind the same mark, depending on their age: the first
 * character decides. */
#include <string.h>

#include "common/text/toolcall_internal.h"

#define DEEPSEEK_TYPE "function"

void engine_named_begin(struct toolcall *t)
{
    bool mistral = t->f->header == HEADER_MISTRAL;
    buf_reset(&t->text);
    if (!t->f->sep[0]) {
        toolcall_look(t, t->f->close, NULL, NULL);
        t->e.named.state = t->f->header == HEADER_LINE ? NAMED_HEADER : NAMED_SEEK;
        return;
    }
    toolcall_look(t, t->f->sep[0], mistral ? t->f->sep[1] : NULL, NULL);
}

static enum toolcall_step begin_arguments(struct toolcall *t)
{
    t->e.named.state = NAMED_SEEK;
    toolcall_look(t, t->f->close, NULL, NULL);
    return STEP_MORE;
}

/* "functions.NAME:3" is the id, and NAME the name. */
static bool kimi_name(struct toolcall *t)
{
    struct toolcall_call *c = toolcall_last(t);
    if (!toolcall_name(t))
        return false;
    buf_append(&c->id, buf_str(&c->name), c->name.len);
    const char *p = buf_str(&c->id), *dot = strchr(p, '.'), *colon = strrchr(p, ':');
    const char *from = dot ? dot + 1 : p, *to = colon && colon > from ? colon : p + c->id.len;
    buf_reset(&c->name);
    buf_append(&c->name, from, (size_t)(to - from));
    return c->name.len > 0;
}

/* The separator number i has come. */
static enum toolcall_step separator(struct toolcall *t, int i)
{
    struct engine_named *e = &t->e.named;
    const struct toolcall_format *f = t->f;
    if (!t->open && !toolcall_add(t))
        return STEP_BACK;
    struct toolcall_call *c = toolcall_last(t);
    switch (f->header) {
    case HEADER_ID_NAME:
        if (e->state == NAMED_HEADER) {
            buf_append(&c->id, buf_str(&t->text), t->text.len);
            buf_reset(&t->text);
            e->state = NAMED_ID;
            toolcall_look(t, f->sep[1], NULL, NULL);
            return STEP_MORE;
        }
        return toolcall_name(t) ? begin_arguments(t) : STEP_BACK;
    case HEADER_MISTRAL:
        if (e->state == NAMED_ID) {
            buf_append(&c->id, buf_str(&t->text), t->text.len);
            return begin_arguments(t);
        }
        if (!toolcall_name(t))
            return STEP_BACK;
        buf_reset(&t->text);
        if (i == 1)
            return begin_arguments(t);
        e->state = NAMED_ID;
        toolcall_look(t, f->sep[1], NULL, NULL);
        return STEP_MORE;
    case HEADER_KIMI:
        return kimi_name(t) ? begin_arguments(t) : STEP_BACK;
    case HEADER_DEEPSEEK:
        if (strcmp(buf_str(&t->text), DEEPSEEK_TYPE) == 0) {
            buf_reset(&t->text);
            e->state = NAMED_LINE;
            return STEP_MORE;
        }
        return toolcall_name(t) ? begin_arguments(t) : STEP_BACK;
    case HEADER_NAME:
    case HEADER_LINE:
        break;
    }
    return toolcall_name(t) ? begin_arguments(t) : STEP_BACK;
}

static enum toolcall_step argument_byte(struct toolcall *t, char c)
{
    struct engine_named *e = &t->e.named;
    struct toolcall_call *call = toolcall_last(t);
    if (!json_scan_push(&e->scan, c))
        return STEP_BACK;
    buf_putc(&call->arguments, c);
    const struct json_scan *s = &e->scan;
    call->shown = call->shown || s->depth > 1 || s->state == JSON_SCAN_STRING ||
                  s->state == JSON_SCAN_NUMBER || s->state == JSON_SCAN_AFTER;
    if (s->depth)
        return STEP_MORE;
    toolcall_done(t);
    e->state = NAMED_TAIL;
    return t->f->close || !t->f->open[0] ? STEP_MORE : STEP_DONE;
}

static enum toolcall_step header_byte(struct toolcall *t, char c)
{
    struct engine_named *e = &t->e.named;
    if (t->f->header == HEADER_MISTRAL && e->state == NAMED_HEADER) {
        bool start = t->text.len == 0;
        if (start && toolcall_blank(c))
            return STEP_MORE;
        if (start && c == '[')
            return engine_json_take(t, c, false);
        if (c == '{') {
            if (!toolcall_add(t) || !toolcall_name(t))
                return STEP_BACK;
            begin_arguments(t);
            e->state = NAMED_ARGUMENTS;
            return argument_byte(t, c);
        }
    }
    if (t->f->header != HEADER_LINE || c != '\n')
        return toolcall_text(t, c) ? STEP_MORE : STEP_BACK;
    if (strcmp(buf_str(&t->text), "all") == 0)
        return STEP_DONE; /* what follows is content */
    return toolcall_add(t) && toolcall_name(t) ? begin_arguments(t) : STEP_BACK;
}

/* DeepSeek-R1: the name, a line break, and a fence of code around the arguments. */
static enum toolcall_step line_byte(struct toolcall *t, char c)
{
    if (c != '\n')
        return toolcall_text(t, c) ? STEP_MORE : STEP_BACK;
    return toolcall_name(t) ? begin_arguments(t) : STEP_BACK;
}

static enum toolcall_step seek_byte(struct toolcall *t, char c)
{
    static const char fence[] = "```json";
    if (c == '{') {
        t->e.named.state = NAMED_ARGUMENTS;
        return argument_byte(t, c);
    }
    bool fenced = t->f->header == HEADER_DEEPSEEK && c && strchr(fence, c);
    return toolcall_blank(c) || fenced ? STEP_MORE : STEP_BACK;
}

static enum toolcall_step byte(struct toolcall *t, char c)
{
    switch (t->e.named.state) {
    case NAMED_HEADER:
    case NAMED_ID:
        return header_byte(t, c);
    case NAMED_LINE:
        return line_byte(t, c);
    case NAMED_SEEK:
        return seek_byte(t, c);
    case NAMED_ARGUMENTS:
        return argument_byte(t, c);
    case NAMED_TAIL:
        return toolcall_blank(c) || (t->f->header == HEADER_DEEPSEEK && c == '`') ? STEP_MORE
                                                                                  : STEP_BACK;
    }
    return STEP_BACK;
}

enum toolcall_step engine_named_push(struct toolcall *t, char c)
{
    char out[MARKS_LEN];
    size_t n;
    if (t->e.named.state == NAMED_ARGUMENTS)
        return argument_byte(t, c);
    int mark = marks_push(&t->look, c, out, &n);
    for (size_t i = 0; i < n; i++) {
        enum toolcall_step step = t->as_json ? engine_json_push(t, out[i]) : byte(t, out[i]);
        if (step != STEP_MORE)
            return i + 1 == n && mark < 0 ? step : STEP_BACK;
    }
    if (mark < 0)
        return STEP_MORE;
    switch (t->e.named.state) {
    case NAMED_TAIL:
        return STEP_DONE;
    case NAMED_SEEK: /* the call ends before its arguments: there are none */
        toolcall_done(t);
        return STEP_DONE;
    default:
        return separator(t, mark);
    }
}
