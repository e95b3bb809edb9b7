/* toolcall_python: calls as Python writes them: [name(key='text', list=[1, 2], flag=True), …].
 *
 * Literals become JSON while they come. Only keyword arguments are calls, and only literals are
 * values: a name that is neither True, False nor None, an operator or an adjacent string is not. */
#include <string.h>

#include "common/text/toolcall_internal.h"
#include "common/text/unicode.h"

void engine_python_begin(struct toolcall *t, bool bare)
{
    t->e.python.bare = bare;
    toolcall_look(t, t->f->close, NULL, NULL);
}

static struct buf *arguments(struct toolcall *t)
{
    return &toolcall_last(t)->arguments;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || is_digit(c);
}

static char closing(char open)
{
    return open == '[' ? ']' : open == '{' ? '}' : ')';
}

static enum toolcall_step seek_byte(struct toolcall *t, char c)
{
    struct engine_python *e = &t->e.python;
    if (toolcall_blank(c))
        return STEP_MORE;
    if (c == '[' && !e->in_list && !e->any) {
        e->in_list = true;
        return STEP_MORE;
    }
    if (c == ']' && e->in_list && e->any) {
        e->in_list = false;
        return t->f->close && !e->bare ? STEP_MORE : STEP_DONE;
    }
    if (c == ',' && e->any)
        return STEP_MORE;
    if (c == '{' && !e->any && !e->bare)
        return engine_json_take(t, c, e->in_list);
    if (!is_word(c) || is_digit(c) || !toolcall_add(t))
        return STEP_BACK;
    buf_reset(&t->text);
    e->state = PYTHON_NAME;
    return toolcall_text(t, c) ? STEP_MORE : STEP_BACK;
}

static enum toolcall_step name_byte(struct toolcall *t, char c)
{
    struct engine_python *e = &t->e.python;
    if (toolcall_name_char(c))
        return toolcall_text(t, c) ? STEP_MORE : STEP_BACK;
    if (c != '(' || (e->bare && !toolcall_known(t, buf_str(&t->text), t->text.len)) ||
        !toolcall_name(t))
        return STEP_BACK;
    buf_putc(arguments(t), '{');
    e->depth = 0;
    e->first = true;
    e->state = PYTHON_ARGUMENT;
    return STEP_MORE;
}

static enum toolcall_step end_call(struct toolcall *t)
{
    buf_putc(arguments(t), '}');
    toolcall_done(t);
    t->e.python.any = true;
    t->e.python.state = PYTHON_SEEK;
    return STEP_MORE;
}

/* A key, or the end of the arguments. */
static enum toolcall_step argument_byte(struct toolcall *t, char c)
{
    struct engine_python *e = &t->e.python;
    if (toolcall_blank(c))
        return STEP_MORE;
    if (c == ')')
        return end_call(t);
    if (!is_word(c) || is_digit(c))
        return STEP_BACK;
    buf_reset(&t->text);
    e->state = PYTHON_KEY;
    return toolcall_text(t, c) ? STEP_MORE : STEP_BACK;
}

static enum toolcall_step key_byte(struct toolcall *t, char c)
{
    struct engine_python *e = &t->e.python;
    if (e->state == PYTHON_KEY && is_word(c))
        return toolcall_text(t, c) ? STEP_MORE : STEP_BACK;
    e->state = PYTHON_EQUALS;
    if (toolcall_blank(c))
        return STEP_MORE;
    if (c != '=')
        return STEP_BACK;
    if (!e->first)
        buf_puts(arguments(t), ", ");
    e->first = false;
    toolcall_quote(arguments(t), buf_str(&t->text), t->text.len);
    buf_puts(arguments(t), ": ");
    e->state = PYTHON_VALUE;
    return STEP_MORE;
}

static enum toolcall_step leave(struct toolcall *t, char c)
{
    struct engine_python *e = &t->e.python;
    if (e->depth == 0 || c != closing(e->stack[e->depth - 1]))
        return STEP_BACK;
    buf_putc(arguments(t), e->stack[--e->depth] == '{' ? '}' : ']');
    e->key = false;
    e->state = PYTHON_AFTER;
    return STEP_MORE;
}

/* A value, or the end of the brackets when nothing or a comma came before. */
static enum toolcall_step value_byte(struct toolcall *t, char c)
{
    struct engine_python *e = &t->e.python;
    char in = e->depth ? e->stack[e->depth - 1] : '\0';
    if (toolcall_blank(c))
        return STEP_MORE;
    if (c == ']' || c == '}' || c == ')')
        return leave(t, c);
    e->key = in == '{' && e->key;
    if (in && !e->first)
        buf_puts(arguments(t), e->key || in != '{' ? ", " : "");
    e->first = false;
    if (e->key && c != '\'' && c != '"')
        return STEP_BACK;
    toolcall_last(t)->shown = true;
    if (c == '\'' || c == '"') {
        buf_putc(arguments(t), '"');
        e->quote = c;
        e->state = PYTHON_STRING;
        return STEP_MORE;
    }
    buf_reset(&t->text);
    if (c == '[' || c == '{' || c == '(') {
        if (e->depth == TOOLCALL_DEPTH_MAX)
            return STEP_BACK;
        e->stack[e->depth++] = c;
        e->first = true;
        e->key = c == '{';
        buf_putc(arguments(t), c == '{' ? '{' : '[');
        return STEP_MORE;
    }
    e->state = is_digit(c) || c == '-' || c == '+' || c == '.' ? PYTHON_NUMBER : PYTHON_WORD;
    if (c != '+')
        buf_putc(&t->text, c);
    return e->state == PYTHON_NUMBER || is_word(c) ? STEP_MORE : STEP_BACK;
}

static enum toolcall_step after_byte(struct toolcall *t, char c)
{
    struct engine_python *e = &t->e.python;
    if (toolcall_blank(c))
        return STEP_MORE;
    if (e->depth == 0) {
        if (c == ')')
            return end_call(t);
        e->state = PYTHON_ARGUMENT;
        return c == ',' ? STEP_MORE : STEP_BACK;
    }
    bool dict = e->stack[e->depth - 1] == '{';
    if (dict && e->key) {
        e->key = false;
        e->first = true; /* no comma before the value */
        buf_puts(arguments(t), ": ");
        e->state = PYTHON_VALUE;
        return c == ':' ? STEP_MORE : STEP_BACK;
    }
    if (c != ',')
        return leave(t, c);
    e->first = false;
    e->key = dict;
    e->state = PYTHON_VALUE;
    return STEP_MORE;
}

static void put_code(struct buf *out, uint32_t code)
{
    static const char hex[] = "0123456789abcdef";
    if (code < 0x80) {
        toolcall_escape(out, (char)code);
    } else if (code >= 0xd800 && code < 0xe000) {
        char esc[6] = {
            '\\', 'u', hex[code >> 12], hex[code >> 8 & 15], hex[code >> 4 & 15], hex[code & 15]};
        buf_append(out, esc, sizeof esc);
    } else {
        char utf8[4];
        buf_append(out, utf8, unicode_put(code <= UNICODE_MAX ? code : UNICODE_REPLACEMENT, utf8));
    }
}

static enum toolcall_step string_byte(struct toolcall *t, char c)
{
    struct engine_python *e = &t->e.python;
    if (c == '\\') {
        e->state = PYTHON_ESCAPE;
    } else if (c == e->quote) {
        buf_putc(arguments(t), '"');
        e->state = PYTHON_AFTER;
    } else {
        toolcall_escape(arguments(t), c);
    }
    return STEP_MORE;
}

static enum toolcall_step escape_byte(struct toolcall *t, char c)
{
    static const char letters[] = "ntrabfv0\\'\"", means[] = "\n\t\r\a\b\f\v\0\\'\"";
    struct engine_python *e = &t->e.python;
    const char *at = c ? strchr(letters, c) : NULL;
    e->state = PYTHON_STRING;
    if (at) {
        put_code(arguments(t), (unsigned char)means[at - letters]);
    } else if (c == 'x' || c == 'u' || c == 'U') {
        e->digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        e->code = 0;
        e->state = PYTHON_CODE;
    } else if (c != '\n') { /* as Python: an unknown escape stays as it is */
        toolcall_escape(arguments(t), '\\');
        toolcall_escape(arguments(t), c);
    }
    return STEP_MORE;
}

static enum toolcall_step code_byte(struct toolcall *t, char c)
{
    struct engine_python *e = &t->e.python;
    int digit = is_digit(c)            ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
    if (digit < 0)
        return STEP_BACK;
    e->code = e->code << 4 | (uint32_t)digit;
    if (--e->digits == 0) {
        put_code(arguments(t), e->code);
        e->state = PYTHON_STRING;
    }
    return STEP_MORE;
}

/* A number or a word ends with the byte behind it. */
static enum toolcall_step scalar_byte(struct toolcall *t, char c)
{
    struct engine_python *e = &t->e.python;
    bool number = e->state == PYTHON_NUMBER;
    if (is_word(c) || (number && (c == '.' || c == '+' || c == '-'))) {
        if (!number || c != '_')
            return toolcall_text(t, c) ? STEP_MORE : STEP_BACK;
        return STEP_MORE;
    }
    size_t before = arguments(t)->len;
    toolcall_value(arguments(t), buf_str(&t->text), t->text.len, 0);
    if (arguments(t)->len > before && arguments(t)->data[before] == '"')
        return STEP_BACK; /* neither a number nor one of the three words */
    e->state = PYTHON_AFTER;
    return after_byte(t, c);
}

static enum toolcall_step byte(struct toolcall *t, char c)
{
    switch (t->e.python.state) {
    case PYTHON_SEEK:
        return seek_byte(t, c);
    case PYTHON_NAME:
        return name_byte(t, c);
    case PYTHON_ARGUMENT:
        return argument_byte(t, c);
    case PYTHON_KEY:
    case PYTHON_EQUALS:
        return key_byte(t, c);
    case PYTHON_VALUE:
        return value_byte(t, c);
    case PYTHON_STRING:
        return string_byte(t, c);
    case PYTHON_ESCAPE:
        return escape_byte(t, c);
    case PYTHON_CODE:
        return code_byte(t, c);
    case PYTHON_NUMBER:
    case PYTHON_WORD:
        return scalar_byte(t, c);
    case PYTHON_AFTER:
        return after_byte(t, c);
    }
    return STEP_BACK;
}

enum toolcall_step engine_python_push(struct toolcall *t, char c)
{
    char out[MARKS_LEN];
    size_t n;
    if (t->e.python.state != PYTHON_SEEK)
        return byte(t, c);
    int mark = marks_push(&t->look, c, out, &n);
    for (size_t i = 0; i < n; i++) {
        enum toolcall_step step = byte(t, out[i]);
        if (step != STEP_MORE)
            return i + 1 == n && mark < 0 ? step : STEP_BACK;
    }
    if (mark < 0)
        return STEP_MORE;
    return t->e.python.any ? STEP_DONE : STEP_BACK;
}
