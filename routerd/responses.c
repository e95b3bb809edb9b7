/* responses: see responses.h.
 *
 * One item is open at a time: reasoning, message, or function call. What comes next either belongs
 * to it, or closes it and opens another. A call that turns out to be none after it was shown stays
 * in a stream, as incomplete, and its text follows as a message; a whole response leaves it out.
 *
 *   event: TYPE
 *   data: {"type":TYPE,"sequence_number":N,…} */
#include "routerd/responses.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"

enum item_kind { ITEM_REASONING, ITEM_MESSAGE, ITEM_CALL };

struct item {
    enum item_kind kind;
    char id[40];
    struct buf text;               /* of reasoning and message */
    size_t call;                   /* index in the message's calls */
    uint32_t logs_from, logs_to;   /* items of the answer with the text's log probabilities */
    bool done, incomplete, broken; /* broken: it was no call */
};

struct responses {
    struct responses_head head;
    struct item *items;
    size_t n, cap;
    uint64_t sequence;
    bool failed; /* out of memory */
};

static struct item *open_item(const struct responses *r)
{
    return r->n && !r->items[r->n - 1].done ? &r->items[r->n - 1] : NULL;
}

int responses_create(const struct responses_head *head, struct responses **out)
{
    struct responses *r = mem_array(1, sizeof *r);
    if (!r)
        return STATUS_NOMEM;
    r->head = *head;
    *out = r;
    return STATUS_OK;
}

void responses_destroy(struct responses *r)
{
    if (!r)
        return;
    for (size_t i = 0; i < r->n; i++)
        buf_fini(&r->items[i].text);
    free(r->items);
    free(r);
}

/* ---- objects ------------------------------------------------------------------------------------
 */

static const char *item_status(const struct item *it)
{
    return !it->done ? "in_progress" : it->incomplete ? "incomplete" : "completed";
}

static void text_part(struct buf *out, const struct item *it, const struct answer *a)
{
    buf_puts(out, it->kind == ITEM_REASONING ? "{\"type\":\"reasoning_text\",\"text\":"
                                             : "{\"type\":\"output_text\",\"text\":");
    answer_json_string(out, buf_str(&it->text), it->text.len);
    if (it->kind == ITEM_MESSAGE) {
        buf_puts(out, ",\"annotations\":[],\"logprobs\":");
        answer_logprob_list(out, a, it->logs_from, it->logs_to);
    }
    buf_putc(out, '}');
}

/* The item as it is now. */
static void item_json(struct buf *out, const struct item *it, struct message *m, struct answer *a)
{
    static const char *const types[] = {"reasoning", "message", "function_call"};
    size_t n;
    buf_printf(out, "{\"id\":\"%s\",\"type\":\"%s\",\"status\":\"%s\"", it->id, types[it->kind],
               item_status(it));
    if (it->kind == ITEM_CALL) {
        const struct toolcall_call *call = &message_calls(m, a, &n)[it->call];
        buf_puts(out, ",\"call_id\":");
        answer_json_string(out, m->calls[it->call].id, strlen(m->calls[it->call].id));
        buf_puts(out, ",\"name\":");
        answer_json_string(out, buf_str(&call->name), call->name.len);
        buf_puts(out, ",\"arguments\":");
        size_t sent = m->calls[it->call].sent; /* what more a broken call has is content */
        answer_json_string(out, buf_str(&call->arguments),
                           sent < call->arguments.len ? sent : call->arguments.len);
        buf_putc(out, '}');
        return;
    }
    if (it->kind == ITEM_REASONING)
        buf_puts(out, ",\"summary\":[],\"encrypted_content\":null");
    else
        buf_puts(out, ",\"role\":\"assistant\"");
    buf_puts(out, ",\"content\":[");
    if (it->text.len || it->done)
        text_part(out, it, a);
    buf_puts(out, "]}");
}

static void usage_json(struct buf *out, const struct responses_usage *u)
{
    if (!u) {
        buf_puts(out, "null");
        return;
    }
    buf_printf(out,
               "{\"input_tokens\":%zu,\"input_tokens_details\":{\"cached_tokens\":%zu,"
               "\"cache_write_tokens\":0},\"output_tokens\":%zu,"
               "\"output_tokens_details\":{\"reasoning_tokens\":%zu},\"total_tokens\":%zu}",
               u->input, u->cached, u->output, u->thinking, u->input + u->output);
}

/* status: of the response; why: of a failure. m and a: NULL before there is an answer. */
static void response_json(const struct responses *r, struct buf *out, const char *status,
                          struct message *m, struct answer *a, const struct responses_usage *u,
                          const char *why)
{
    buf_printf(out,
               "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%" PRId64
               ",\"status\":\"%s\",\"background\":false,\"store\":false,"
               "\"previous_response_id\":null,\"error\":",
               r->head.id, r->head.created, status);
    if (why) {
        buf_puts(out, "{\"code\":\"server_error\",\"message\":");
        answer_json_string(out, why, strlen(why));
        buf_putc(out, '}');
    } else {
        buf_puts(out, "null");
    }
    buf_printf(out, ",\"incomplete_details\":%s,\"model\":",
               strcmp(status, "incomplete") == 0 ? "{\"reason\":\"max_output_tokens\"}" : "null");
    answer_json_string(out, r->head.model, strlen(r->head.model));
    buf_printf(out, ",%s,\"output\":[", r->head.echo);
    const char *comma = "";
    for (size_t i = 0; a && i < r->n; i++) {
        if (r->items[i].broken && !r->head.stream)
            continue;
        buf_puts(out, comma);
        item_json(out, &r->items[i], m, a);
        comma = ",";
    }
    buf_puts(out, "],\"usage\":");
    usage_json(out, u);
    buf_putc(out, '}');
}

/* ---- events -------------------------------------------------------------------------------------
 */

static void event_open(struct responses *r, struct buf *out, const char *type)
{
    buf_printf(out, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%" PRIu64, type, type,
               r->sequence++);
}

static void event_close(struct buf *out)
{
    buf_puts(out, "}\n\n");
}

/* An event about the open item; part: it is about the text in it. */
static void item_event(struct responses *r, struct buf *out, const char *type, bool part)
{
    event_open(r, out, type);
    buf_printf(out, ",\"output_index\":%zu,\"item_id\":\"%s\"", r->n - 1, r->items[r->n - 1].id);
    if (part)
        buf_puts(out, ",\"content_index\":0");
}

static void response_event(struct responses *r, struct buf *out, const char *type,
                           const char *status, struct message *m, struct answer *a,
                           const struct responses_usage *u, const char *why)
{
    event_open(r, out, type);
    buf_puts(out, ",\"response\":");
    response_json(r, out, status, m, a, u, why);
    event_close(out);
}

void responses_begin(struct responses *r, struct buf *out)
{
    response_event(r, out, "response.created", "in_progress", NULL, NULL, NULL, NULL);
    response_event(r, out, "response.in_progress", "in_progress", NULL, NULL, NULL, NULL);
}

/* ---- items --------------------------------------------------------------------------------------
 */

static void added_events(struct responses *r, struct message *m, struct answer *a, struct buf *out)
{
    const struct item *it = &r->items[r->n - 1];
    event_open(r, out, "response.output_item.added");
    buf_printf(out, ",\"output_index\":%zu,\"item\":", r->n - 1);
    item_json(out, it, m, a);
    event_close(out);
    if (it->kind == ITEM_CALL)
        return;
    item_event(r, out, "response.content_part.added", true);
    buf_puts(out, ",\"part\":");
    text_part(out, it, a);
    event_close(out);
}

static void done_events(struct responses *r, const struct item *it, struct message *m,
                        struct answer *a, struct buf *out)
{
    size_t n;
    if (it->kind == ITEM_CALL && !it->incomplete) {
        const struct buf *arguments = &message_calls(m, a, &n)[it->call].arguments;
        item_event(r, out, "response.function_call_arguments.done", false);
        buf_puts(out, ",\"arguments\":");
        answer_json_string(out, buf_str(arguments), arguments->len);
        event_close(out);
    } else if (it->kind != ITEM_CALL) {
        item_event(r, out,
                   it->kind == ITEM_MESSAGE ? "response.output_text.done"
                                            : "response.reasoning_text.done",
                   true);
        buf_puts(out, ",\"text\":");
        answer_json_string(out, buf_str(&it->text), it->text.len);
        if (it->kind == ITEM_MESSAGE) {
            buf_puts(out, ",\"logprobs\":");
            answer_logprob_list(out, a, it->logs_from, it->logs_to);
        }
        event_close(out);
        item_event(r, out, "response.content_part.done", true);
        buf_puts(out, ",\"part\":");
        text_part(out, it, a);
        event_close(out);
    }
    event_open(r, out, "response.output_item.done");
    buf_printf(out, ",\"output_index\":%zu,\"item\":", r->n - 1);
    item_json(out, it, m, a);
    event_close(out);
}

/* incomplete: it was cut. */
static void close_item(struct responses *r, bool incomplete, struct message *m, struct answer *a,
                       struct buf *out)
{
    struct item *it = open_item(r);
    if (!it)
        return;
    it->done = true;
    it->incomplete = incomplete;
    if (r->head.stream)
        done_events(r, it, m, a, out);
}

static struct item *new_item(struct responses *r, enum item_kind kind, struct message *m,
                             struct answer *a, struct buf *out)
{
    static const char *const prefixes[] = {"rs", "msg", "fc"};
    close_item(r, false, m, a, out);
    if (r->n == r->cap) {
        size_t cap = r->cap ? 2 * r->cap : 4;
        struct item *more = mem_resize(r->items, cap, sizeof *more);
        if (!more) {
            r->failed = true;
            return NULL;
        }
        r->items = more;
        r->cap = cap;
    }
    struct item *it = &r->items[r->n++];
    *it = (struct item){.kind = kind, .logs_from = a->released, .logs_to = a->released};
    buf_init(&it->text, 0);
    buf_printf(&it->text, "%s_%016" PRIx64 "%016" PRIx64, prefixes[kind], rng_u64(), rng_u64());
    memcpy(it->id, buf_str(&it->text), it->text.len + 1);
    buf_reset(&it->text);
    return it;
}

static void take_text(struct responses *r, enum item_kind kind, const struct buf *text,
                      struct message *m, struct answer *a, struct buf *out)
{
    struct item *it = open_item(r);
    if (!it || it->kind != kind) {
        it = new_item(r, kind, m, a, out);
        if (!it)
            return;
        if (r->head.stream)
            added_events(r, m, a, out);
    }
    buf_append(&it->text, buf_str(text), text->len);
    r->failed = r->failed || !buf_ok(&it->text);
    it->logs_to = kind == ITEM_MESSAGE ? a->ready : it->logs_to;
    if (!r->head.stream)
        return;
    item_event(r, out,
               kind == ITEM_MESSAGE ? "response.output_text.delta"
                                    : "response.reasoning_text.delta",
               true);
    buf_puts(out, ",\"delta\":");
    answer_json_string(out, buf_str(text), text->len);
    if (kind == ITEM_MESSAGE) {
        buf_puts(out, ",\"logprobs\":");
        answer_logprob_list(out, a, a->released, a->ready);
    }
    event_close(out);
}

static void take_arguments(struct responses *r, struct message_call *mc,
                           const struct toolcall_call *call, struct buf *out)
{
    if (r->head.stream && mc->sent < call->arguments.len) {
        item_event(r, out, "response.function_call_arguments.delta", false);
        buf_puts(out, ",\"delta\":");
        answer_json_string(out, buf_str(&call->arguments) + mc->sent,
                           call->arguments.len - mc->sent);
        event_close(out);
    }
    mc->sent = call->arguments.len;
}

/* fresh: calls that no item was opened for yet are taken too. */
static void take_calls(struct responses *r, bool fresh, struct message *m, struct answer *a,
                       struct buf *out)
{
    size_t n;
    const struct toolcall_call *calls = message_calls(m, a, &n);
    for (size_t i = 0; i < n; i++) {
        struct item *it = open_item(r);
        if (fresh && !m->calls[i].begun && !calls[i].broken) {
            it = new_item(r, ITEM_CALL, m, a, out);
            if (!it)
                return;
            it->call = i;
            if (r->head.stream)
                added_events(r, m, a, out); /* without arguments yet */
            m->calls[i].begun = true;
        }
        if (!it || it->kind != ITEM_CALL || it->call != i)
            continue;
        if (!calls[i].broken)
            take_arguments(r, &m->calls[i], &calls[i], out);
        it->broken = calls[i].broken;
        if (calls[i].broken || calls[i].complete)
            close_item(r, calls[i].broken, m, a, out);
    }
}

void responses_delta(struct responses *r, struct message *m, struct answer *a, struct buf *out)
{
    if (a->thinking.len && !m->hide)
        take_text(r, ITEM_REASONING, &a->thinking, m, a, out);
    take_calls(r, false, m, a, out);
    if (a->text.len)
        take_text(r, ITEM_MESSAGE, &a->text, m, a, out);
    take_calls(r, true, m, a, out);
    if (a->text.len || a->thinking.len)
        a->released = a->ready; /* thinking has none to show */
    buf_reset(&a->text);
    buf_reset(&a->thinking);
    if (r->failed)
        out->failed = true;
}

void responses_end(struct responses *r, struct message *m, struct answer *a, bool cut,
                   const struct responses_usage *u, struct buf *out)
{
    const char *status = cut ? "incomplete" : "completed";
    close_item(r, cut, m, a, out);
    if (!cut && r->n == 0) { /* an empty answer is a message without text */
        if (new_item(r, ITEM_MESSAGE, m, a, out) && r->head.stream)
            added_events(r, m, a, out);
        close_item(r, false, m, a, out);
    }
    if (!r->head.stream)
        response_json(r, out, status, m, a, u, NULL);
    else
        response_event(r, out, cut ? "response.incomplete" : "response.completed", status, m, a, u,
                       NULL);
    if (r->failed)
        out->failed = true;
}

void responses_failed(struct responses *r, const char *why, struct buf *out)
{
    response_event(r, out, "response.failed", "failed", NULL, NULL, NULL, why);
}
