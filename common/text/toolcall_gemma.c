/* toolcall_gemma: Gemma 4's calls: call:name{key:<|"|>text<|"|>,n:2,list:[1,2],deep:{a:true}}.
 *
 * Keys have no quotes (or the same as strings), strings stand between two marks, everything else is
 * as in JSON. */
#include <string.h>

#include "common/text/toolcall_internal.h"

#define STRING_MARK "<|\"|>"

void engine_gemma_begin(struct toolcall *t)
{
    buf_reset(&t->text);
    toolcall_look(t, STRING_MARK, t->f->close, NULL);
}

static struct buf *arguments(struct toolcall *t)
{
    return &toolcall_last(t)->arguments;
}

static enum toolcall_step enter(struct toolcall *t, char c)
{
    struct engine_gemma *e = &t->e.gemma;
    if (e->depth == TOOLCALL_DEPTH_MAX)
        return STEP_BACK;
    e->stack[e->depth++] = c;
    e->first = true;
    e->state = c == '{' ? GEMMA_KEY : GEMMA_VALUE;
    buf_reset(&t->text);
    buf_putc(arguments(t), c);
    return STEP_MORE;
}

static enum toolcall_step leave(struct toolcall *t, char c)
{
    struct engine_gemma *e = &t->e.gemma;
    if (c != (e->stack[e->depth - 1] == '{' ? '}' : ']'))
        return STEP_BACK;
    buf_putc(arguments(t), c);
    e->state = GEMMA_AFTER;
    if (--e->depth == 0) {
        toolcall_done(t);
        e->state = GEMMA_TAIL;
    }
    return STEP_MORE;
}

static void begin_item(struct toolcall *t)
{
    struct engine_gemma *e = &t->e.gemma;
    if (!e->first)
        buf_puts(arguments(t), ", ");
    e->first = false;
}

static enum toolcall_step key_done(struct toolcall *t)
{
    struct engine_gemma *e = &t->e.gemma;
    const char *p = buf_str(&t->text);
    size_t n = t->text.len;
    while (!e->quoted_key && n && toolcall_blank(*p)) {
        p++;
        n--;
    }
    if (n == 0)
        return STEP_BACK;
    begin_item(t);
    toolcall_quote(arguments(t), p, n);
    buf_puts(arguments(t), ": ");
    e->quoted_key = false;
    e->state = GEMMA_VALUE;
    return STEP_MORE;
}

static enum toolcall_step key_byte(struct toolcall *t, char c)
{
    struct engine_gemma *e = &t->e.gemma;
    if (c == ':')
        return key_done(t);
    if (c == '}' && e->first && t->text.len == 0)
        return leave(t, c);
    if (e->quoted_key)
        return toolcall_blank(c) ? STEP_MORE : STEP_BACK;
    return toolcall_text(t, c) ? STEP_MORE : STEP_BACK;
}

static enum toolcall_step value_byte(struct toolcall *t, char c)
{
    struct engine_gemma *e = &t->e.gemma;
    bool list = e->stack[e->depth - 1] == '[';
    if (toolcall_blank(c))
        return STEP_MORE;
    if (c == ']' && list && e->first)
        return leave(t, c);
    if (list)
        begin_item(t);
    toolcall_last(t)->shown = true;
    if (c == '{' || c == '[')
        return enter(t, c);
    buf_reset(&t->text);
    e->state = GEMMA_WORD;
    return toolcall_name_char(c) && toolcall_text(t, c) ? STEP_MORE : STEP_BACK;
}

static enum toolcall_step after_byte(struct toolcall *t, char c)
{
    struct engine_gemma *e = &t->e.gemma;
    if (toolcall_blank(c))
        return STEP_MORE;
    if (c != ',')
        return leave(t, c);
    buf_reset(&t->text);
    e->state = e->stack[e->depth - 1] == '{' ? GEMMA_KEY : GEMMA_VALUE;
    return STEP_MORE;
}

static enum toolcall_step word_byte(struct toolcall *t, char c)
{
    if (toolcall_name_char(c) || c == '+')
        return toolcall_text(t, c) ? STEP_MORE : STEP_BACK;
    size_t before = arguments(t)->len;
    toolcall_value(arguments(t), buf_str(&t->text), t->text.len, 0);
    if (arguments(t)->len > before && arguments(t)->data[before] == '"')
        return STEP_BACK;
    t->e.gemma.state = GEMMA_AFTER;
    return after_byte(t, c);
}

static enum toolcall_step byte(struct toolcall *t, char c)
{
    switch (t->e.gemma.state) {
    case GEMMA_NAME:
        if (c != '{')
            return toolcall_name_char(c) && toolcall_text(t, c) ? STEP_MORE : STEP_BACK;
        return toolcall_add(t) && toolcall_name(t) ? enter(t, c) : STEP_BACK;
    case GEMMA_KEY:
        return key_byte(t, c);
    case GEMMA_VALUE:
        return value_byte(t, c);
    case GEMMA_STRING:
        toolcall_escape(t->e.gemma.quoted_key ? &t->text : arguments(t), c);
        return STEP_MORE;
    case GEMMA_WORD:
        return word_byte(t, c);
    case GEMMA_AFTER:
        return after_byte(t, c);
    case GEMMA_TAIL:
        return toolcall_blank(c) ? STEP_MORE : STEP_BACK;
    }
    return STEP_BACK;
}

static enum toolcall_step string_mark(struct toolcall *t)
{
    struct engine_gemma *e = &t->e.gemma;
    switch (e->state) {
    case GEMMA_KEY:
        if (e->quoted_key || t->text.len)
            return STEP_BACK;
        e->quoted_key = true;
        e->state = GEMMA_STRING;
        return STEP_MORE;
    case GEMMA_VALUE:
        if (e->stack[e->depth - 1] == '[')
            begin_item(t);
        toolcall_last(t)->shown = true;
        buf_putc(arguments(t), '"');
        e->state = GEMMA_STRING;
        return STEP_MORE;
    case GEMMA_STRING:
        if (!e->quoted_key)
            buf_putc(arguments(t), '"');
        e->state = e->quoted_key ? GEMMA_KEY : GEMMA_AFTER;
        return STEP_MORE;
    default:
        return STEP_BACK;
    }
}

enum toolcall_step engine_gemma_push(struct toolcall *t, char c)
{
    char out[MARKS_LEN];
    size_t n;
    int mark = marks_push(&t->look, c, out, &n);
    for (size_t i = 0; i < n; i++) {
        if (byte(t, out[i]) != STEP_MORE)
            return STEP_BACK;
    }
    if (mark == 0)
        return string_mark(t);
    if (mark < 0)
        return STEP_MORE;
    return t->e.gemma.state == GEMMA_TAIL ? STEP_DONE : STEP_BACK;
}
