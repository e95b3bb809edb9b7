/* toolcall_json: calls as JSON objects, alone, in a list, or one after another.
 *
 * The scanner checks every byte. Members on the first level with a known key are picked out while
 * they come: the arguments, when they are an object, byte by byte. Arguments that are a string (of
 * JSON) or null are taken when they are complete. A call is shown when its name is known and the
 * first value of its arguments has begun, so that what breaks early was never shown. */
#include <stdlib.h>
#include <string.h>

#include "common/text/toolcall_internal.h"

void engine_json_begin(struct toolcall *t, bool bare)
{
    t->e.json.bare = bare;
    toolcall_look(t, t->f->close, NULL, NULL);
}

/* The string that the raw JSON text is, in t->text; false when it is none. */
static bool unquote(struct toolcall *t, const struct buf *raw)
{
    json_error_t e;
    json_t *v = json_loadb(buf_str(raw), raw->len, JSON_DECODE_ANY, &e);
    bool ok = json_is_string(v);
    buf_reset(&t->text);
    if (ok)
        buf_append(&t->text, json_string_value(v), json_string_length(v));
    json_decref(v);
    return ok;
}

static bool is_one_of(const struct buf *s, const char *a, const char *b, const char *c)
{
    const char *p = buf_str(s);
    return strcmp(p, a) == 0 || strcmp(p, b) == 0 || strcmp(p, c) == 0;
}

/* The key is complete: what is its value? False: no call has this key. */
static bool choose(struct toolcall *t)
{
    struct engine_json *e = &t->e.json;
    if (!unquote(t, &t->value))
        return false;
    e->target = MEMBER_SKIP;
    if (t->f->key_is_name) {
        if (e->named || !toolcall_name(t))
            return false;
        e->named = true;
        e->target = MEMBER_ARGUMENTS;
    } else if (is_one_of(&t->text, "name", "tool_name", "function")) {
        e->target = MEMBER_NAME;
    } else if (is_one_of(&t->text, "arguments", "parameters", "args")) {
        e->target = MEMBER_ARGUMENTS;
    } else if (is_one_of(&t->text, "id", "tool_call_id", "call_id")) {
        e->target = MEMBER_ID;
    } else if (e->bare && strcmp(buf_str(&t->text), "type") != 0) {
        return false;
    }
    return (e->target != MEMBER_NAME || !e->named) && (e->target != MEMBER_ARGUMENTS || !e->argued);
}

/* A member's value has begun with c. */
static bool begin_value(struct toolcall *t, char c)
{
    struct engine_json *e = &t->e.json;
    e->in_value = true;
    buf_reset(&t->value);
    if (e->target == MEMBER_ARGUMENTS) {
        e->argued = true;
        if (c != '{')
            e->target = MEMBER_OTHER;
    }
    return e->target != MEMBER_NAME || c == '"';
}

static bool end_value(struct toolcall *t)
{
    struct engine_json *e = &t->e.json;
    struct toolcall_call *call = toolcall_last(t);
    e->in_value = false;
    switch (e->target) {
    case MEMBER_NAME:
        if (!unquote(t, &t->value) || !toolcall_name(t))
            return false;
        e->named = true;
        break;
    case MEMBER_ID:
        if (unquote(t, &t->value))
            buf_append(&call->id, buf_str(&t->text), t->text.len);
        break;
    case MEMBER_OTHER:
        if (strcmp(buf_str(&t->value), "null") == 0)
            break;
        if (!unquote(t, &t->value))
            return false;
        if (t->text.len == 0)
            break;
        if (t->text.data[0] != '{' || !json_scan_whole(t->text.data, t->text.len))
            return false;
        buf_append(&call->arguments, t->text.data, t->text.len);
        break;
    default:
        break;
    }
    t->args_done = e->named && e->argued;
    return !(e->named && e->bare) || toolcall_known(t, buf_str(&call->name), call->name.len);
}

static void value_byte(struct toolcall *t, char c)
{
    switch (t->e.json.target) {
    case MEMBER_SKIP:
        break;
    case MEMBER_ARGUMENTS:
        buf_putc(&toolcall_last(t)->arguments, c);
        break;
    default:
        buf_putc(&t->value, c);
        break;
    }
}

/* The arguments look right: a value in them has begun, or they are complete. */
static bool convincing(const struct engine_json *e)
{
    const struct json_scan *s = &e->scan;
    if (e->target == MEMBER_OTHER && e->in_value)
        return false;
    return e->target != MEMBER_ARGUMENTS || !e->in_value || s->depth > 2 ||
           s->state == JSON_SCAN_STRING || s->state == JSON_SCAN_NUMBER ||
           s->state == JSON_SCAN_AFTER;
}

static bool key_byte(struct toolcall *t, char c, uint8_t before)
{
    const struct json_scan *s = &t->e.json.scan;
    if (s->state != JSON_SCAN_IN_KEY && before != JSON_SCAN_IN_KEY)
        return true;
    if (before != JSON_SCAN_IN_KEY)
        buf_reset(&t->value);
    buf_putc(&t->value, c);
    return s->state != JSON_SCAN_COLON || choose(t);
}

/* One byte of a call object. */
static bool object_byte(struct toolcall *t, char c)
{
    struct engine_json *e = &t->e.json;
    struct json_scan *s = &e->scan;
    uint8_t before = s->state;
    bool member = s->depth == 1;
    if (!json_scan_push(s, c))
        return false;
    if (e->in_value && member && before == JSON_SCAN_NUMBER && s->state != JSON_SCAN_NUMBER) {
        if (!end_value(t)) /* a number ends with the byte behind it */
            return false;
    } else if (!e->in_value && member && before == JSON_SCAN_VALUE && s->state != JSON_SCAN_VALUE &&
               !begin_value(t, c)) {
        return false;
    }
    if (e->in_value) {
        value_byte(t, c);
        if (s->depth == 1 && s->state == JSON_SCAN_AFTER && !end_value(t))
            return false;
    } else if (!key_byte(t, c, before)) {
        return false;
    }
    struct toolcall_call *call = toolcall_last(t);
    call->shown = call->shown || (e->named && e->argued && convincing(e));
    return true;
}

static bool begin_object(struct toolcall *t)
{
    struct engine_json *e = &t->e.json;
    if (!toolcall_add(t))
        return false;
    e->scan = (struct json_scan){0};
    e->state = CALLS_OBJECT;
    e->named = e->argued = e->in_value = false;
    return json_scan_push(&e->scan, '{');
}

/* What stands around and between the objects. */
static enum toolcall_step seek_byte(struct toolcall *t, char c)
{
    struct engine_json *e = &t->e.json;
    if (toolcall_blank(c))
        return STEP_MORE;
    switch (c) {
    case '[':
        if (e->in_list || e->any || e->bare)
            return STEP_BACK;
        e->in_list = true;
        return STEP_MORE;
    case ']':
        if (!e->in_list)
            return STEP_BACK;
        e->in_list = false;
        return t->f->close ? STEP_MORE : STEP_DONE;
    case ',':
    case ';':
        return e->any ? STEP_MORE : STEP_BACK;
    case '{':
        return begin_object(t) ? STEP_MORE : STEP_BACK;
    default:
        return STEP_BACK;
    }
}

static enum toolcall_step seek(struct toolcall *t, char c)
{
    char out[MARKS_LEN];
    size_t n;
    int mark = marks_push(&t->look, c, out, &n);
    for (size_t i = 0; i < n; i++) {
        enum toolcall_step step = seek_byte(t, out[i]);
        if (step != STEP_MORE)
            return i + 1 == n && mark < 0 ? step : STEP_BACK;
    }
    if (mark < 0)
        return STEP_MORE;
    return t->e.json.any ? STEP_DONE : STEP_BACK;
}

enum toolcall_step engine_json_push(struct toolcall *t, char c)
{
    struct engine_json *e = &t->e.json;
    if (e->state == CALLS_SEEK)
        return seek(t, c);
    bool ok = object_byte(t, c);
    bool closed = ok && e->scan.depth == 0;
    bool unclosed = !ok && t->args_done && t->f->close && c == t->f->close[0];
    if (ok && !closed)
        return STEP_MORE;
    if ((!ok && !unclosed) || !e->named)
        return STEP_BACK;
    toolcall_done(t); /* also when only the last brace is missing */
    e->any = true;
    e->state = CALLS_SEEK;
    return ok ? STEP_MORE : seek(t, c);
}

enum toolcall_step engine_json_take(struct toolcall *t, char c, bool in_list)
{
    memset(&t->e, 0, sizeof t->e);
    engine_json_begin(t, false);
    t->e.json.in_list = in_list;
    t->as_json = true;
    return engine_json_push(t, c);
}
