/* answer: see answer.h. */
#include "routerd/answer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/text/unicode.h"

#define LOGPROB_MIN (-9999.0) /* stands for "impossible", as in OpenAI's API */

int answer_init(struct answer *a, const struct tokenizer *t, char *const *stops, const size_t *len,
                size_t n_stops, bool keep_items)
{
    *a = (struct answer){.tok = t, .keep_items = keep_items};
    detok_init(&a->detok, t, false);
    buf_init(&a->piece, 0);
    buf_init(&a->text, 0);
    buf_init(&a->thinking, 0);
    if (n_stops == 0)
        return STATUS_OK;
    a->stops = mem_array(n_stops, sizeof *a->stops);
    if (!a->stops)
        return STATUS_NOMEM;
    for (size_t i = 0; i < n_stops; i++)
        a->stops[i] = (struct token_text){stops[i], len[i]};
    return stop_create((const char *const *)stops, len, n_stops, &a->stop);
}

int answer_read(struct answer *a, const struct reply_profile *p, enum reasoning_start start,
                const json_t *tools)
{
    struct reply *r = mem_array(1, sizeof *r);
    if (!r)
        return STATUS_NOMEM;
    int rc = reply_init(r, p, start, tools);
    if (rc != STATUS_OK) {
        free(r);
        return rc;
    }
    a->reply = r;
    return STATUS_OK;
}

struct toolcall *answer_tools(const struct answer *a)
{
    return a->reply ? a->reply->tools : NULL;
}

unsigned answer_id_length(const struct answer *a)
{
    return toolcall_format_id_length(a->reply->profile->tools);
}

void answer_fini(struct answer *a)
{
    if (a->reply)
        reply_fini(a->reply);
    free(a->reply);
    stop_destroy(a->stop);
    free(a->stops);
    buf_fini(&a->piece);
    buf_fini(&a->text);
    buf_fini(&a->thinking);
    for (uint32_t i = 0; i < a->n_items; i++)
        free(a->items[i].top);
    free(a->items);
}

static size_t count_chars(const char *p, size_t n)
{
    size_t chars = 0;
    for (size_t i = 0; i < n; i++)
        chars += ((unsigned char)p[i] & 0xc0) != 0x80;
    return chars;
}

/* Moves text into what is visible, through the stop strings. */
static int show(struct answer *a, const struct buf *text)
{
    if (!buf_ok(text))
        return STATUS_NOMEM;
    size_t before = a->text.len;
    int match = -1;
    a->decoded += text->len;
    a->decoded_chars += count_chars(buf_str(text), text->len);
    if (!a->stop)
        buf_append(&a->text, buf_str(text), text->len);
    else
        match = stop_feed(a->stop, buf_str(text), text->len, &a->text);
    a->stopped = match >= 0;
    a->match = match;
    a->shown += a->text.len - before;
    if (a->stopped && a->show_stop) {
        buf_append(&a->text, a->stops[match].p, a->stops[match].n);
        a->shown += a->stops[match].n;
    }
    return buf_ok(&a->text) ? STATUS_OK : STATUS_NOMEM;
}

/* What the reply has told apart since the last time. */
static int show_reply(struct answer *a)
{
    struct reply *r = a->reply;
    buf_append(&a->thinking, buf_str(&r->thinking), r->thinking.len);
    int rc = reply_ok(r) && buf_ok(&a->thinking) ? show(a, &r->content) : STATUS_NOMEM;
    buf_reset(&r->thinking);
    buf_reset(&r->content);
    return rc;
}

/* An item may be shown once some of its text was, or all text before it when it has none. */
static void release_items(struct answer *a, bool all)
{
    while (a->ready < a->n_items) {
        const struct answer_item *i = &a->items[a->ready];
        bool visible = i->begin < i->end ? i->begin < a->shown : i->begin <= a->shown;
        if (a->stopped ? !visible || i->begin >= a->shown : !visible && !all && a->stop)
            break;
        a->ready++;
    }
}

static int push_item(struct answer *a, const struct proto_token *t, size_t begin, size_t chars)
{
    if (a->n_items == a->cap_items) {
        uint32_t cap = a->cap_items ? a->cap_items * 2 : 32;
        struct answer_item *p = mem_resize(a->items, cap, sizeof *p);
        if (!p)
            return STATUS_NOMEM;
        a->items = p;
        a->cap_items = cap;
    }
    struct proto_top *top = NULL;
    if (t->n_top && !(top = mem_dup(t->top, t->n_top * sizeof *top)))
        return STATUS_NOMEM;
    a->items[a->n_items++] =
        (struct answer_item){t->token, t->logprob, top, t->n_top, begin, a->decoded, chars};
    return STATUS_OK;
}

int answer_token(struct answer *a, const struct proto_token *t, bool shown_token)
{
    struct reply *r = a->reply;
    a->n_tokens++;
    a->n_thinking += r && reply_thinking(r);
    if (!shown_token || a->stopped)
        return STATUS_OK;
    size_t begin = a->decoded, chars = a->decoded_chars;
    bool special = a->detok.special;
    a->detok.special = special || (r && reply_profile_shows(r->profile, t->token));
    buf_reset(&a->piece);
    detok_feed(&a->detok, t->token, &a->piece);
    a->detok.special = special;
    int rc;
    if (r) {
        reply_push(r, buf_str(&a->piece), a->piece.len);
        rc = show_reply(a);
    } else {
        rc = show(a, &a->piece);
    }
    if (rc != STATUS_OK)
        return rc;
    if (a->keep_items)
        TRY(push_item(a, t, begin, chars));
    release_items(a, false);
    return STATUS_OK;
}

void answer_end(struct answer *a, bool cut)
{
    int rc;
    if (a->stopped)
        return;
    buf_reset(&a->piece);
    detok_flush(&a->detok, &a->piece);
    if (a->reply) {
        reply_push(a->reply, buf_str(&a->piece), a->piece.len);
        reply_end(a->reply, cut);
        rc = show_reply(a);
    } else {
        rc = show(a, &a->piece);
    }
    if (rc == STATUS_OK && a->stop && !a->stopped) {
        size_t before = a->text.len;
        stop_flush(a->stop, &a->text);
        a->shown += a->text.len - before;
    }
    release_items(a, true);
}

/* ---- JSON --------------------------------------------------------------------------------------
 */

void answer_json_string(struct buf *out, const char *p, size_t n)
{
    static const char hex[] = "0123456789abcdef";
    buf_putc(out, '"');
    while (n) {
        uint32_t cp = 0;
        size_t len = 0, plain = 0;
        while (plain < n && (unsigned char)p[plain] >= 0x20 && (unsigned char)p[plain] < 0x7f &&
               p[plain] != '"' && p[plain] != '\\')
            plain++;
        if (plain) {
            buf_append(out, p, plain);
            p += plain;
            n -= plain;
            continue;
        }
        enum unicode_step step = unicode_next(p, n, &cp, &len);
        if (step != UNICODE_CHAR) {
            buf_puts(out, "\xef\xbf\xbd");
        } else if (cp == '"' || cp == '\\') {
            char esc[2] = {'\\', (char)cp};
            buf_append(out, esc, 2);
        } else if (cp == '\n') {
            buf_puts(out, "\\n");
        } else if (cp < 0x20 || cp == 0x7f) {
            char esc[6] = {'\\', 'u', '0', '0', hex[cp >> 4], hex[cp & 15]};
            buf_append(out, esc, 6);
        } else {
            buf_append(out, p, len);
        }
        p += len;
        n -= len;
    }
    buf_putc(out, '"');
}

/* JSON knows neither infinity nor NaN. */
static void logprob_json(struct buf *out, float logprob)
{
    buf_printf(out, "%.6g", logprob > LOGPROB_MIN ? (double)logprob : LOGPROB_MIN);
}

/* A token of completions. One that is no text by itself, such as a part of a character, is spelled
 * "bytes:\xe2\x82", as OpenAI does: as U+FFFD several tokens would be one key of top_logprobs. */
static void token_json(struct buf *out, const struct answer *a, int32_t id)
{
    if (a->ids_as_tokens) {
        buf_printf(out, "\"token_id:%d\"", id);
        return;
    }
    struct token_text t = tokenizer_piece(a->tok, id, false);
    if (unicode_valid(t.p, t.n) == t.n) {
        answer_json_string(out, t.p, t.n);
        return;
    }
    buf_puts(out, "\"bytes:");
    for (size_t i = 0; i < t.n; i++)
        buf_printf(out, "\\\\x%02x", (unsigned char)t.p[i]);
    buf_putc(out, '"');
}

void answer_rank_json(struct buf *out, const struct tokenizer *t, int32_t id, float logprob,
                      uint32_t rank)
{
    struct token_text text = tokenizer_piece(t, id, false);
    buf_puts(out, "{\"logprob\":");
    logprob_json(out, logprob);
    buf_printf(out, ",\"rank\":%u,\"decoded_token\":", rank);
    answer_json_string(out, text.p, text.n);
    buf_putc(out, '}');
}

static void chat_entry(struct buf *out, const struct answer *a, int32_t id, float logprob)
{
    struct token_text t = tokenizer_piece(a->tok, id, false);
    buf_puts(out, "{\"token\":");
    if (a->ids_as_tokens)
        buf_printf(out, "\"token_id:%d\"", id);
    else
        answer_json_string(out, t.p, t.n);
    buf_puts(out, ",\"logprob\":");
    logprob_json(out, logprob);
    buf_puts(out, ",\"bytes\":[");
    for (size_t i = 0; i < t.n && !tokenizer_hidden(a->tok, id); i++) /* they add up to the text */
        buf_printf(out, "%s%u", i ? "," : "", (unsigned char)t.p[i]);
    buf_putc(out, ']');
}

void answer_logprob_list(struct buf *out, const struct answer *a, uint32_t from, uint32_t to)
{
    buf_putc(out, '[');
    for (uint32_t i = from; i < to; i++) {
        const struct answer_item *it = &a->items[i];
        if (i > from)
            buf_putc(out, ',');
        chat_entry(out, a, it->id, it->logprob);
        buf_puts(out, ",\"top_logprobs\":[");
        for (uint32_t k = 0; k < it->n_top; k++) {
            if (k)
                buf_putc(out, ',');
            chat_entry(out, a, it->top[k].id, it->top[k].logprob);
            buf_putc(out, '}');
        }
        buf_puts(out, "]}");
    }
    buf_putc(out, ']');
}

void answer_chat_logprobs(struct buf *out, const struct answer *a, uint32_t from, uint32_t to)
{
    buf_puts(out, "{\"content\":");
    answer_logprob_list(out, a, from, to);
    buf_puts(out, ",\"refusal\":null}");
}

/* {"token": logprob, …} of one position; null where nothing was reported. */
static void completion_top(struct buf *out, const struct answer *a, const struct answer_item *it)
{
    if (it->n_top == 0) {
        buf_puts(out, "null");
        return;
    }
    buf_putc(out, '{');
    for (uint32_t k = 0; k < it->n_top; k++) {
        if (k)
            buf_putc(out, ',');
        token_json(out, a, it->top[k].id);
        buf_putc(out, ':');
        logprob_json(out, it->top[k].logprob);
    }
    buf_putc(out, '}');
}

/* One array of the logprobs object; `which` names the member. */
enum member { MEMBER_TOKEN, MEMBER_LOGPROB, MEMBER_TOP, MEMBER_OFFSET };

static void completion_array(struct buf *out, enum member which, const struct answer_run *runs,
                             size_t n)
{
    const char *comma = "";
    for (size_t r = 0; r < n; r++) {
        const struct answer *a = runs[r].a;
        for (uint32_t i = runs[r].from; i < runs[r].to; i++) {
            const struct answer_item *it = &a->items[i];
            buf_puts(out, comma);
            comma = ",";
            if (which == MEMBER_TOKEN)
                token_json(out, a, it->id);
            else if (which == MEMBER_OFFSET)
                buf_printf(out, "%zu", runs[r].offset + it->chars);
            else if (which == MEMBER_TOP)
                completion_top(out, a, it);
            else if (it->logprob > 0)
                buf_puts(out, "null");
            else
                logprob_json(out, it->logprob);
        }
    }
}

void answer_completion_logprobs(struct buf *out, const struct answer_run *runs, size_t n)
{
    buf_puts(out, "{\"tokens\":[");
    completion_array(out, MEMBER_TOKEN, runs, n);
    buf_puts(out, "],\"token_logprobs\":[");
    completion_array(out, MEMBER_LOGPROB, runs, n);
    buf_puts(out, "],\"top_logprobs\":[");
    completion_array(out, MEMBER_TOP, runs, n);
    buf_puts(out, "],\"text_offset\":[");
    completion_array(out, MEMBER_OFFSET, runs, n);
    buf_puts(out, "]}");
}
