/* toolcall_xml: names, keys and values between tags (Qwen3-Coder, GLM, MiniMax-M2, DeepSeek's
 * DSML).
 *
 * Values carry no quotes, so the tool's schema says what they are: strings are passed on while they
 * come, anything else when it is complete, and becomes a string when it is not what it should be.
 */
#include <string.h>

#include "common/text/toolcall_internal.h"

void engine_xml_begin(struct toolcall *t)
{
    const struct toolcall_xml *x = &t->f->xml;
    buf_reset(&t->text);
    if (x->name_end)
        toolcall_look(t, x->name_end, NULL, NULL);
    else
        toolcall_look(t, x->key_open, x->end, NULL);
}

static enum toolcall_step to_body(struct toolcall *t)
{
    t->e.xml.state = XML_BODY;
    toolcall_look(t, t->f->xml.key_open, t->f->xml.end, NULL);
    return STEP_MORE;
}

static bool take_name(struct toolcall *t)
{
    if (!t->open && !toolcall_add(t))
        return false;
    if (!toolcall_name(t))
        return false;
    t->e.xml.schema = toolcall_schema(t, &toolcall_last(t)->name);
    return true;
}

static enum toolcall_step to_key(struct toolcall *t)
{
    t->e.xml.state = XML_KEY;
    buf_reset(&t->text);
    toolcall_look(t, t->f->xml.key_end, NULL, NULL);
    return STEP_MORE;
}

static enum toolcall_step finish(struct toolcall *t)
{
    buf_puts(&toolcall_last(t)->arguments, t->e.xml.params ? "}" : "{}");
    toolcall_done(t);
    return STEP_DONE;
}

static enum toolcall_step to_value(struct toolcall *t)
{
    struct engine_xml *e = &t->e.xml;
    struct toolcall_call *c = toolcall_last(t);
    e->state = XML_VALUE;
    e->first = true;
    e->line = false;
    buf_reset(&t->value);
    toolcall_look(t, t->f->xml.value_end, NULL, NULL);
    buf_puts(&c->arguments, e->params++ ? ", " : "{");
    toolcall_quote(&c->arguments, buf_str(&t->text), t->text.len);
    buf_puts(&c->arguments, ": ");
    if (e->type == 1)
        buf_putc(&c->arguments, '"');
    c->shown = true;
    return STEP_MORE;
}

/* The key (and its attributes, in value) is complete. */
static enum toolcall_step key_done(struct toolcall *t)
{
    struct engine_xml *e = &t->e.xml;
    const char *attributes = buf_str(&t->value);
    e->type = toolcall_type(toolcall_property(e->schema, buf_str(&t->text), t->text.len));
    if (strstr(attributes, "string=\"true\""))
        e->type = 1;
    else if (strstr(attributes, "string=\"false\""))
        e->type = 0;
    if (!t->f->xml.value_open)
        return to_value(t);
    e->state = XML_GAP;
    toolcall_look(t, t->f->xml.value_open, NULL, NULL);
    return STEP_MORE;
}

static void value_byte(struct toolcall *t, char c)
{
    struct engine_xml *e = &t->e.xml;
    bool first = e->first;
    e->first = false;
    if (first && c == '\n' && t->f->xml.lines)
        return;
    struct buf *out = e->type == 1 ? &toolcall_last(t)->arguments : &t->value;
    if (e->line)
        e->type == 1 ? toolcall_escape(out, '\n') : buf_putc(out, '\n');
    e->line = c == '\n' && t->f->xml.lines;
    if (e->line)
        return;
    e->type == 1 ? toolcall_escape(out, c) : buf_putc(out, c);
}

static enum toolcall_step value_done(struct toolcall *t)
{
    struct engine_xml *e = &t->e.xml;
    struct buf *out = &toolcall_last(t)->arguments;
    if (e->type == 1)
        buf_putc(out, '"');
    else
        toolcall_value(out, buf_str(&t->value), t->value.len, e->type);
    return to_body(t);
}

static enum toolcall_step byte(struct toolcall *t, char c)
{
    const struct toolcall_xml *x = &t->f->xml;
    switch (t->e.xml.state) {
    case XML_NAME:
        if (x->name_end || c != '\n')
            return toolcall_text(t, c) ? STEP_MORE : STEP_BACK;
        if (t->text.len == 0)
            return STEP_MORE; /* the name is on the next line */
        return take_name(t) ? to_body(t) : STEP_BACK;
    case XML_NAME_TAIL:
    case XML_BODY:
    case XML_GAP:
        return toolcall_blank(c) ? STEP_MORE : STEP_BACK;
    case XML_KEY:
        return toolcall_text(t, c) ? STEP_MORE : STEP_BACK;
    case XML_KEY_TAIL:
        buf_putc(&t->value, c);
        return t->value.len <= TOOLCALL_NAME_MAX ? STEP_MORE : STEP_BACK;
    case XML_VALUE:
        value_byte(t, c);
        return STEP_MORE;
    }
    return STEP_BACK;
}

static enum toolcall_step mark(struct toolcall *t, int i)
{
    const struct toolcall_xml *x = &t->f->xml;
    struct engine_xml *e = &t->e.xml;
    switch (e->state) {
    case XML_NAME:
        if (!take_name(t))
            return STEP_BACK;
        if (!x->name_end)
            return i == 0 ? to_key(t) : finish(t);
        if (!x->name_tail)
            return to_body(t);
        e->state = XML_NAME_TAIL;
        toolcall_look(t, x->name_tail, NULL, NULL);
        return STEP_MORE;
    case XML_NAME_TAIL:
        return to_body(t);
    case XML_BODY:
        return i == 0 ? to_key(t) : finish(t);
    case XML_KEY:
        if (t->text.len == 0)
            return STEP_BACK;
        buf_reset(&t->value);
        if (!x->key_tail)
            return key_done(t);
        e->state = XML_KEY_TAIL;
        toolcall_look(t, x->key_tail, NULL, NULL);
        return STEP_MORE;
    case XML_KEY_TAIL:
        return key_done(t);
    case XML_GAP:
        return to_value(t);
    case XML_VALUE:
        return value_done(t);
    }
    return STEP_BACK;
}

enum toolcall_step engine_xml_push(struct toolcall *t, char c)
{
    char out[MARKS_LEN];
    size_t n;
    int found = marks_push(&t->look, c, out, &n);
    for (size_t i = 0; i < n; i++) {
        enum toolcall_step step = byte(t, out[i]);
        if (step != STEP_MORE)
            return STEP_BACK;
    }
    return found < 0 ? STEP_MORE : mark(t, found);
}
