/* toolcall: the text around calls; see toolcall.h, and toolcall_formats.c for the formats.
 *
 * Outside of calls the text is looked through for marks that open one. From there on an engine has
 * the bytes. Whatever it has taken since the last complete call is kept in `raw`: when it says that
 * this is no call after all, raw becomes content, and the byte that told it is looked at again as
 * the content that it is. A mark within text that was given back is not looked for again.
 *
 * Blanks and wrappers wait in `pending` until a call (they are dropped) or content (they are part
 * of it) follows. Blanks before a call come back when content follows the call, so that words do
 * not run together. */
#include "common/text/toolcall.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/mem.h"
#include "common/text/toolcall_internal.h"

int toolcall_create(const struct toolcall_format *f, const json_t *tools, struct buf *content,
                    struct toolcall **out)
{
    struct toolcall *t = mem_array(1, sizeof *t);
    if (!t)
        return STATUS_NOMEM;
    t->f = f;
    t->tools = json_incref((json_t *)tools);
    t->content = content;
    buf_init(&t->raw, 0);
    buf_init(&t->pending, 0);
    buf_init(&t->gap, 0);
    buf_init(&t->text, 0);
    buf_init(&t->value, 0);
    for (size_t i = 0; i < sizeof f->open / sizeof *f->open; i++)
        marks_add(&t->marks, f->open[i]);
    t->n_open = t->marks.n;
    for (size_t i = 0; i < sizeof f->wrap / sizeof *f->wrap; i++)
        marks_add(&t->marks, f->wrap[i]);
    if (f->begun) {
        for (const char *p = f->open[0]; *p; p++)
            toolcall_push(t, *p);
    }
    *out = t;
    return STATUS_OK;
}

static void call_fini(struct toolcall_call *c)
{
    buf_fini(&c->id);
    buf_fini(&c->name);
    buf_fini(&c->arguments);
}

void toolcall_destroy(struct toolcall *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->n_calls; i++)
        call_fini(&t->calls[i]);
    free(t->calls);
    json_decref(t->tools);
    buf_fini(&t->raw);
    buf_fini(&t->pending);
    buf_fini(&t->gap);
    buf_fini(&t->text);
    buf_fini(&t->value);
    free(t);
}

bool toolcall_busy(const struct toolcall *t)
{
    return t->busy;
}

struct toolcall_call *toolcall_calls(struct toolcall *t, size_t *n)
{
    *n = t->n_calls;
    return t->calls;
}

bool toolcall_ok(const struct toolcall *t)
{
    bool ok = !t->failed && buf_ok(&t->raw) && buf_ok(&t->pending) && buf_ok(&t->gap) &&
              buf_ok(&t->text) && buf_ok(&t->value) && buf_ok(t->content);
    for (size_t i = 0; i < t->n_calls; i++)
        ok = ok && buf_ok(&t->calls[i].name) && buf_ok(&t->calls[i].arguments);
    return ok;
}

/* ---- content -----------------------------------------------------------------------------------
 */

static void append(struct buf *to, const struct buf *from)
{
    buf_append(to, buf_str(from), from->len);
}

static void pending_reset(struct toolcall *t)
{
    buf_reset(&t->pending);
    t->blanks = 0;
    t->wrapped = false;
}

/* A byte that is content, or a blank of which it is not known yet. */
static void plain_byte(struct toolcall *t, char c)
{
    if (toolcall_blank(c)) {
        buf_putc(&t->pending, c);
        t->blanks += !t->wrapped;
        return;
    }
    if (!t->behind)
        append(t->content, &t->pending);
    else if (t->written)
        append(t->content, &t->gap);
    pending_reset(t);
    buf_reset(&t->gap);
    buf_putc(t->content, c);
    t->written = true;
    t->behind = false;
}

static void begin_engine(struct toolcall *t, bool bare)
{
    memset(&t->e, 0, sizeof t->e);
    t->as_json = false;
    switch (t->f->engine) {
    case ENGINE_JSON:
        engine_json_begin(t, bare);
        break;
    case ENGINE_NAMED:
        engine_named_begin(t);
        break;
    case ENGINE_XML:
        engine_xml_begin(t);
        break;
    case ENGINE_PYTHON:
        engine_python_begin(t, bare);
        break;
    case ENGINE_GEMMA:
        engine_gemma_begin(t);
        break;
    case ENGINE_TREE:
        engine_tree_begin(t);
        break;
    }
}

/* A call, or a list of them, may begin. */
static void begin(struct toolcall *t, const char *mark)
{
    if (!t->behind) {
        buf_reset(&t->gap);
        buf_append(&t->gap, buf_str(&t->pending), t->blanks);
    }
    buf_reset(&t->raw);
    append(&t->raw, &t->pending);
    buf_puts(&t->raw, mark);
    pending_reset(t);
    t->busy = true;
    t->marked = *mark != '\0';
    begin_engine(t, !*mark);
}

static enum toolcall_step engine_push(struct toolcall *t, char c)
{
    switch (t->as_json ? ENGINE_JSON : t->f->engine) {
    case ENGINE_JSON:
        return engine_json_push(t, c);
    case ENGINE_NAMED:
        return engine_named_push(t, c);
    case ENGINE_XML:
        return engine_xml_push(t, c);
    case ENGINE_PYTHON:
        return engine_python_push(t, c);
    case ENGINE_GEMMA:
        return engine_gemma_push(t, c);
    case ENGINE_TREE:
        return engine_tree_push(t, c);
    }
    return STEP_BACK;
}

/* The call that is being written is none. */
static void drop_call(struct toolcall *t)
{
    if (!t->open)
        return;
    struct toolcall_call *c = toolcall_last(t);
    if (c->shown) {
        c->broken = true;
    } else {
        call_fini(c);
        t->n_calls--;
    }
    t->open = false;
}

/* What the engine has taken since the last complete call becomes content. */
static void give_back(struct toolcall *t)
{
    drop_call(t);
    t->busy = false;
    for (size_t i = 0; i < t->raw.len; i++)
        plain_byte(t, t->raw.data[i]);
    buf_reset(&t->raw);
}

static void engine_byte(struct toolcall *t, char c)
{
    buf_putc(&t->raw, c);
    switch (engine_push(t, c)) {
    case STEP_MORE:
        break;
    case STEP_DONE:
        t->busy = false;
        buf_reset(&t->raw);
        break;
    case STEP_BACK:
        if (t->raw.len)
            t->raw.len--;
        give_back(t);
        toolcall_push(t, c);
        break;
    }
}

static void content_byte(struct toolcall *t, char c)
{
    char bracket = t->f->engine == ENGINE_PYTHON ? '[' : '{';
    if (t->f->bare && c == bracket && (!t->written || t->behind)) {
        begin(t, "");
        engine_byte(t, c);
        return;
    }
    if (t->f->bare && t->behind && c == ';') {
        buf_putc(&t->pending, c);
        return;
    }
    plain_byte(t, c);
}

void toolcall_push(struct toolcall *t, char c)
{
    char out[MARKS_LEN];
    size_t n;
    if (t->failed)
        return;
    if (t->busy) {
        engine_byte(t, c);
        return;
    }
    int mark = marks_push(&t->marks, c, out, &n);
    for (size_t i = 0; i < n; i++) {
        if (t->busy)
            engine_byte(t, out[i]);
        else
            content_byte(t, out[i]);
    }
    if (mark < 0)
        return;
    const char *text = t->marks.text[mark];
    if (mark < t->n_open && !t->busy) {
        begin(t, text);
    } else if (!t->busy) {
        t->wrapped = true;
        buf_puts(&t->pending, text);
    } else {
        for (; *text; text++)
            engine_byte(t, *text);
    }
}

void toolcall_begin(struct toolcall *t, const char *name, size_t n)
{
    begin(t, " ");
    buf_reset(&t->raw);
    toolcall_add(t);
    buf_reset(&t->text);
    buf_append(&t->text, name, n);
    if (t->failed || !toolcall_name(t))
        give_back(t);
}

void toolcall_leave(struct toolcall *t)
{
    if (t->busy && t->open && t->args_done)
        toolcall_done(t);
    if (t->busy)
        give_back(t);
}

void toolcall_end(struct toolcall *t, bool cut)
{
    char out[MARKS_LEN];
    if (t->busy && t->open && t->args_done)
        toolcall_done(t);
    if (t->busy && t->open && cut && toolcall_last(t)->name.len) {
        toolcall_last(t)->shown = true;
        t->open = t->busy = false;
        return;
    }
    if (t->busy && !t->open && t->behind)
        buf_reset(&t->raw); /* the beginning of what would have closed the list */
    if (t->busy && cut && t->marked) {
        drop_call(t); /* a call that has no name yet, like a mark that is not complete */
        buf_reset(&t->raw);
    }
    if (t->busy)
        give_back(t);
    size_t n = marks_end(&t->marks, out);
    for (size_t i = 0; i < n && !(cut && (n > 1 || t->wrapped)); i++)
        plain_byte(t, out[i]);
    if (!t->behind)
        buf_append(t->content, buf_str(&t->pending), cut ? t->blanks : t->pending.len);
    pending_reset(t);
}

/* ---- for the engines ---------------------------------------------------------------------------
 */

struct toolcall_call *toolcall_add(struct toolcall *t)
{
    ASSERT(!t->open);
    if (t->n_calls == t->cap_calls) {
        size_t cap = t->cap_calls * 2 + 4;
        struct toolcall_call *p = mem_resize(t->calls, cap, sizeof *p);
        if (!p) {
            t->failed = true;
            return NULL;
        }
        t->calls = p;
        t->cap_calls = cap;
    }
    struct toolcall_call *c = &t->calls[t->n_calls++];
    *c = (struct toolcall_call){0};
    buf_init(&c->id, 0);
    buf_init(&c->name, 0);
    buf_init(&c->arguments, 0);
    t->open = true;
    t->args_done = false;
    return c;
}

struct toolcall_call *toolcall_last(struct toolcall *t)
{
    return &t->calls[t->n_calls - 1];
}

bool toolcall_name(struct toolcall *t)
{
    struct toolcall_call *c = toolcall_last(t);
    const char *p = buf_str(&t->text);
    size_t n = t->text.len;
    while (n && toolcall_blank(*p)) {
        p++;
        n--;
    }
    while (n && toolcall_blank(p[n - 1]))
        n--;
    if (n == 0 || n > TOOLCALL_NAME_MAX)
        return false;
    buf_reset(&c->name);
    buf_append(&c->name, p, n);
    return true;
}

void toolcall_done(struct toolcall *t)
{
    struct toolcall_call *c = toolcall_last(t);
    if (c->arguments.len == 0)
        buf_puts(&c->arguments, "{}");
    c->shown = c->complete = true;
    t->open = false;
    t->behind = true;
    buf_reset(&t->raw);
}

bool toolcall_text(struct toolcall *t, char c)
{
    buf_putc(&t->text, c);
    return t->text.len <= TOOLCALL_NAME_MAX;
}

void toolcall_look(struct toolcall *t, const char *a, const char *b, const char *c)
{
    memset(&t->look, 0, sizeof t->look);
    marks_add(&t->look, a);
    marks_add(&t->look, b);
    marks_add(&t->look, c);
}

/* The function object of a tool, in either of the two spellings. */
static const json_t *tool_named(const struct toolcall *t, const char *name, size_t n)
{
    const json_t *tool;
    size_t i;
    json_array_foreach(t->tools, i, tool)
    {
        const json_t *f = json_object_get(tool, "function");
        const json_t *named = json_object_get(f ? f : tool, "name");
        if (json_is_string(named) && json_string_length(named) == n &&
            memcmp(json_string_value(named), name, n) == 0)
            return f ? f : tool;
    }
    return NULL;
}

bool toolcall_known(const struct toolcall *t, const char *name, size_t n)
{
    return tool_named(t, name, n) != NULL;
}

const json_t *toolcall_schema(const struct toolcall *t, const struct buf *name)
{
    return json_object_get(tool_named(t, buf_str(name), name->len), "parameters");
}

const json_t *toolcall_property(const json_t *schema, const char *key, size_t n)
{
    char text[TOOLCALL_NAME_MAX + 1];
    if (n > TOOLCALL_NAME_MAX)
        return NULL;
    memcpy(text, key, n);
    text[n] = '\0';
    return json_object_get(json_object_get(schema, "properties"), text);
}

static bool is_string_name(const json_t *type)
{
    return json_is_string(type) && strcmp(json_string_value(type), "string") == 0;
}

/* Of a list of types, schemas or values: 1 when one of them is a string. */
static int any_string(const json_t *list, bool schemas)
{
    const json_t *v;
    size_t i;
    json_array_foreach(list, i, v)
    {
        if (schemas ? is_string_name(json_object_get(v, "type")) : is_string_name(v))
            return 1;
    }
    return 0;
}

int toolcall_type(const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type");
    const json_t *any = json_object_get(schema, "anyOf"), *one = json_object_get(schema, "oneOf");
    const json_t *values = json_object_get(schema, "enum");
    if (json_is_string(type))
        return is_string_name(type);
    if (json_is_array(type))
        return any_string(type, false);
    if (json_is_array(any) || json_is_array(one))
        return any_string(json_is_array(any) ? any : one, true);
    if (json_array_size(values))
        return json_is_string(json_array_get(values, 0));
    return -1;
}

void toolcall_escape(struct buf *out, char c)
{
    static const char hex[] = "0123456789abcdef";
    static const char plain[] = "\"\\\b\f\n\r\t", letter[] = "\"\\bfnrt";
    const char *at = c ? strchr(plain, c) : NULL;
    unsigned char b = (unsigned char)c;
    if (at) {
        buf_putc(out, '\\');
        buf_putc(out, letter[at - plain]);
    } else if (b < 0x20) {
        char esc[6] = {'\\', 'u', '0', '0', hex[b >> 4], hex[b & 15]};
        buf_append(out, esc, sizeof esc);
    } else {
        buf_putc(out, c);
    }
}

void toolcall_quote(struct buf *out, const char *p, size_t n)
{
    buf_putc(out, '"');
    for (size_t i = 0; i < n; i++)
        toolcall_escape(out, p[i]);
    buf_putc(out, '"');
}

void toolcall_value(struct buf *out, const char *p, size_t n, int type)
{
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    const char *q = p;
    size_t m = n;
    while (m && toolcall_blank(*q)) {
        q++;
        m--;
    }
    while (m && toolcall_blank(q[m - 1]))
        m--;
    for (size_t i = 0; type == 0 && i < 3; i++) {
        if (m == strlen(words[i][0]) && memcmp(q, words[i][0], m) == 0) {
            buf_puts(out, words[i][1]);
            return;
        }
    }
    if (type != 1 && m && *q != '"' && json_scan_whole(q, m))
        buf_append(out, q, m);
    else
        toolcall_quote(out, p, n);
}
