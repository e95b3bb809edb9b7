/* toolcall_tree: MiniMax-M3's calls: elements in elements, each tag behind a mark of its own.
 *
 *   ]<]minimax[>[<invoke
 * name="f">]<]minimax[>[<city>Paris]<]minimax[>[</city>]<]minimax[>[</invoke>
 *
 * An element with elements named item is a list, with others an object, with text a value of the
 * type that the tool's schema says. */
#include <string.h>

#include "common/text/toolcall_internal.h"

#define TAG_MARK "]<]minimax[>["

void engine_tree_begin(struct toolcall *t)
{
    buf_reset(&t->text);
    toolcall_look(t, "\">", NULL, NULL);
}

static struct buf *arguments(struct toolcall *t)
{
    return &toolcall_last(t)->arguments;
}

static bool is_type(const json_t *schema, const char *type)
{
    const char *is = json_string_value(json_object_get(schema, "type"));
    return is && strcmp(is, type) == 0;
}

/* A tag with the name in t->text opens inside the present element. */
static enum toolcall_step open_tag(struct toolcall *t)
{
    struct engine_tree *e = &t->e.tree;
    unsigned d = e->depth;
    bool item = strcmp(buf_str(&t->text), "item") == 0 && !is_type(e->schema[d], "object");
    for (size_t i = 0; i < t->value.len; i++) {
        if (!toolcall_blank(t->value.data[i]))
            return STEP_BACK; /* text beside elements */
    }
    if (t->text.len == 0 || d + 1 == TOOLCALL_DEPTH_MAX)
        return STEP_BACK;
    if (e->kind[d] == '?') {
        e->kind[d] = item ? '[' : '{';
        buf_putc(arguments(t), e->kind[d]);
    }
    if (e->filled[d])
        buf_puts(arguments(t), ", ");
    e->filled[d] = true;
    if (e->kind[d] == '{') {
        toolcall_quote(arguments(t), buf_str(&t->text), t->text.len);
        buf_puts(arguments(t), ": ");
        e->schema[d + 1] = toolcall_property(e->schema[d], buf_str(&t->text), t->text.len);
    } else {
        e->schema[d + 1] = json_object_get(e->schema[d], "items");
    }
    e->depth++;
    e->kind[d + 1] = '?';
    e->filled[d + 1] = false;
    toolcall_last(t)->shown = true;
    buf_reset(&t->value);
    e->state = TREE_TEXT;
    return STEP_MORE;
}

static enum toolcall_step close_tag(struct toolcall *t)
{
    struct engine_tree *e = &t->e.tree;
    unsigned d = e->depth;
    if (d == 0) {
        if (strcmp(buf_str(&t->text), "invoke") != 0)
            return STEP_BACK;
        buf_puts(arguments(t), e->kind[0] == '{' ? "}" : "{}");
        toolcall_done(t);
        return STEP_DONE;
    }
    if (e->kind[d] != '?')
        buf_putc(arguments(t), e->kind[d] == '{' ? '}' : ']');
    else if (t->value.len == 0 && is_type(e->schema[d], "array"))
        buf_puts(arguments(t), "[]");
    else if (t->value.len == 0 && is_type(e->schema[d], "object"))
        buf_puts(arguments(t), "{}");
    else
        toolcall_value(arguments(t), buf_str(&t->value), t->value.len, toolcall_type(e->schema[d]));
    e->depth--;
    buf_reset(&t->value);
    e->state = TREE_TEXT;
    return STEP_MORE;
}

static enum toolcall_step byte(struct toolcall *t, char c)
{
    struct engine_tree *e = &t->e.tree;
    switch (e->state) {
    case TREE_NAME:
        return toolcall_text(t, c) ? STEP_MORE : STEP_BACK;
    case TREE_TEXT:
        buf_putc(&t->value, c);
        return STEP_MORE;
    case TREE_TAG:
        buf_reset(&t->text);
        e->state = TREE_OPEN;
        return c == '<' ? STEP_MORE : STEP_BACK;
    case TREE_OPEN:
        if (c == '/' && t->text.len == 0) {
            e->state = TREE_CLOSE;
            return STEP_MORE;
        }
        /* fall through */
    case TREE_CLOSE:
        if (c != '>')
            return toolcall_text(t, c) ? STEP_MORE : STEP_BACK;
        return e->state == TREE_OPEN ? open_tag(t) : close_tag(t);
    }
    return STEP_BACK;
}

enum toolcall_step engine_tree_push(struct toolcall *t, char c)
{
    struct engine_tree *e = &t->e.tree;
    char out[MARKS_LEN];
    size_t n;
    int mark = marks_push(&t->look, c, out, &n);
    for (size_t i = 0; i < n; i++) {
        enum toolcall_step step = byte(t, out[i]);
        if (step != STEP_MORE)
            return i + 1 == n && mark < 0 ? step : STEP_BACK;
    }
    if (mark < 0)
        return STEP_MORE;
    if (e->state == TREE_NAME) {
        if (!toolcall_add(t) || !toolcall_name(t))
            return STEP_BACK;
        e->schema[0] = toolcall_schema(t, &toolcall_last(t)->name);
        e->kind[0] = '?';
        toolcall_look(t, TAG_MARK, NULL, NULL);
        buf_reset(&t->value);
        e->state = TREE_TEXT;
        return STEP_MORE;
    }
    if (e->state != TREE_TEXT)
        return STEP_BACK;
    e->state = TREE_TAG;
    return STEP_MORE;
}
