/* message: see message.h.
 *
 * A call has its index in the list of all that were shown. One that turns out not to be a call
 * after it was shown in a stream keeps its index there; a whole answer leaves it out. */
#include "routerd/message.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"

void message_init(struct message *m, enum message_field field, bool hide, bool one_call)
{
    *m = (struct message){.field = field, .hide = hide, .one_call = one_call};
    buf_init(&m->thinking, 0);
}

void message_fini(struct message *m)
{
    buf_fini(&m->thinking);
    free(m->calls);
}

/* The id that the model wrote, or a random one as long as its templates want them. */
static void set_id(struct message_call *c, const struct toolcall_call *call, unsigned length)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    const char *own = buf_str(&call->id);
    if (call->id.len && call->id.len < sizeof c->id && (!length || call->id.len == length)) {
        memcpy(c->id, own, call->id.len + 1);
        return;
    }
    unsigned char random[24];
    size_t n = length ? length : sizeof random;
    char *p = c->id;
    if (!length)
        p += sprintf(p, "call_");
    rng_bytes(random, n);
    for (size_t i = 0; i < n; i++)
        *p++ = letters[random[i] % (sizeof letters - 1)];
    *p = '\0';
}

struct toolcall_call *message_calls(struct message *m, struct answer *a, size_t *n)
{
    struct toolcall *t = answer_tools(a);
    struct toolcall_call *calls = NULL;
    *n = 0;
    if (!t)
        return NULL;
    calls = toolcall_calls(t, n);
    if (*n && !calls[*n - 1].shown)
        --*n;
    if (m->one_call && *n > 1)
        *n = 1;
    while (m->n_calls < *n) {
        struct message_call *bigger = mem_resize(m->calls, m->n_calls + 1, sizeof *bigger);
        if (!bigger) {
            *n = m->n_calls;
            break;
        }
        m->calls = bigger;
        bigger[m->n_calls] = (struct message_call){0};
        set_id(&bigger[m->n_calls], &calls[m->n_calls], answer_id_length(a));
        m->n_calls++;
    }
    return calls;
}

bool message_full(struct message *m, struct answer *a)
{
    size_t n = 0;
    const struct toolcall_call *calls = m->one_call ? message_calls(m, a, &n) : NULL;
    return n && calls[0].complete;
}

void message_keep(struct message *m, struct answer *a)
{
    if (!m->hide)
        buf_append(&m->thinking, buf_str(&a->thinking), a->thinking.len);
    buf_reset(&a->thinking);
}

/* ,"reasoning_content":"…" and its other name. */
static void thinking_json(struct buf *out, const struct message *m, const struct buf *text)
{
    if (m->hide || text->len == 0)
        return;
    if (m->field != MESSAGE_REASONING) {
        buf_puts(out, ",\"reasoning_content\":");
        answer_json_string(out, buf_str(text), text->len);
    }
    if (m->field != MESSAGE_REASONING_CONTENT) {
        buf_puts(out, ",\"reasoning\":");
        answer_json_string(out, buf_str(text), text->len);
    }
}

static void call_json(struct buf *out, const struct message_call *c,
                      const struct toolcall_call *call)
{
    buf_puts(out, "\"id\":");
    answer_json_string(out, c->id, strlen(c->id));
    buf_puts(out, ",\"type\":\"function\",\"function\":{\"name\":");
    answer_json_string(out, buf_str(&call->name), call->name.len);
    buf_puts(out, ",\"arguments\":");
    answer_json_string(out, buf_str(&call->arguments), call->arguments.len);
    buf_putc(out, '}');
}

static bool call_pending(const struct message_call *c, const struct toolcall_call *call)
{
    return !call->broken && (!c->begun || c->sent < call->arguments.len);
}

bool message_pending(struct message *m, struct answer *a)
{
    size_t n;
    const struct toolcall_call *calls = message_calls(m, a, &n);
    for (size_t i = 0; i < n; i++) {
        if (call_pending(&m->calls[i], &calls[i]))
            return true;
    }
    return a->text.len || (a->thinking.len && !m->hide) || a->released < a->ready;
}

static void calls_delta(struct buf *out, struct message *m, struct answer *a)
{
    size_t n;
    const struct toolcall_call *calls = message_calls(m, a, &n);
    const char *comma = ",\"tool_calls\":[";
    for (size_t i = 0; i < n; i++) {
        struct message_call *c = &m->calls[i];
        if (!call_pending(c, &calls[i]))
            continue;
        buf_printf(out, "%s{\"index\":%zu,", comma, i);
        comma = ",";
        const struct buf *arguments = &calls[i].arguments;
        if (c->begun) {
            buf_puts(out, "\"function\":{\"arguments\":");
            answer_json_string(out, buf_str(arguments) + c->sent, arguments->len - c->sent);
            buf_putc(out, '}');
        } else {
            call_json(out, c, &calls[i]);
        }
        buf_putc(out, '}');
        c->sent = arguments->len;
        c->begun = true;
    }
    if (*comma == ',' && comma[1] == '\0')
        buf_putc(out, ']');
}

void message_delta_json(struct buf *out, struct message *m, struct answer *a)
{
    struct buf rest; /* of the members, each with a comma before it */
    buf_init(&rest, 0);
    thinking_json(&rest, m, &a->thinking);
    calls_delta(&rest, m, a);
    buf_putc(out, '{');
    if (a->text.len || rest.len == 0) {
        buf_puts(out, "\"content\":");
        answer_json_string(out, buf_str(&a->text), a->text.len);
        buf_append(out, buf_str(&rest), rest.len);
    } else {
        buf_append(out, buf_str(&rest) + 1, rest.len - 1);
    }
    buf_putc(out, '}');
    if (!buf_ok(&rest))
        out->failed = true;
    buf_fini(&rest);
    buf_reset(&a->text);
    buf_reset(&a->thinking);
}

void message_json(struct buf *out, struct message *m, struct answer *a, const struct buf *text)
{
    size_t n, shown = 0;
    const struct toolcall_call *calls = message_calls(m, a, &n);
    for (size_t i = 0; i < n; i++)
        shown += !calls[i].broken;
    buf_puts(out, "{\"role\":\"assistant\",\"content\":");
    if (text->len || (shown == 0 && m->thinking.len == 0))
        answer_json_string(out, buf_str(text), text->len);
    else
        buf_puts(out, "null");
    buf_puts(out, ",\"refusal\":null");
    thinking_json(out, m, &m->thinking);
    const char *comma = ",\"tool_calls\":[";
    for (size_t i = 0; i < n; i++) {
        if (calls[i].broken)
            continue;
        buf_puts(out, comma);
        buf_putc(out, '{');
        call_json(out, &m->calls[i], &calls[i]);
        buf_putc(out, '}');
        comma = ",";
    }
    buf_puts(out, shown ? "]}" : "}");
}

const char *message_finish(struct message *m, struct answer *a, enum proto_finish f)
{
    size_t n;
    const struct toolcall_call *calls = message_calls(m, a, &n);
    bool complete = false;
    for (size_t i = 0; i < n; i++)
        complete = complete || calls[i].complete;
    return f == PROTO_FINISH_LENGTH ? "length" : complete ? "tool_calls" : "stop";
}
