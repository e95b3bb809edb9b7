/* call_json: the answer of a call as JSON: SSE events, or the whole body. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"

#include "routerd/call_internal.h"

/* ---- parts -------------------------------------------------------------------------------------
 */

/* {"id":…,"choices":[ of every event and of the body. */
static void open_object(struct call *c, const char *chat, const char *completion)
{
    buf_printf(&c->out,
               "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%" PRId64 ",\"model\":", c->id,
               call_is_chat(c) ? chat : completion, c->created);
    answer_json_string(&c->out, c->model->name, strlen(c->model->name));
    buf_puts(&c->out, ",\"choices\":[");
}

static void usage_json(struct buf *out, const struct call *c)
{
    size_t prompt = 0, completion = 0, cached = 0, thinking = 0;
    for (uint32_t i = 0; i < c->p.n_prompts; i++) {
        prompt += c->p.prompts[i].tokens.n;
        cached += c->prompts[i].cached_tokens;
    }
    for (uint32_t i = 0; i < c->n_choices; i++) {
        completion += c->choices[i].completion_tokens;
        thinking += c->choices[i].answer.n_thinking;
    }
    buf_printf(out,
               "{\"prompt_tokens\":%zu,\"completion_tokens\":%zu,\"total_tokens\":%zu,"
               "\"prompt_tokens_details\":{\"cached_tokens\":%zu},"
               "\"completion_tokens_details\":{\"reasoning_tokens\":%zu}}",
               prompt, completion, prompt + completion, cached, thinking);
}

static void ids_json(struct buf *out, const char *key, const struct token_list *ids)
{
    buf_printf(out, ",\"%s\":[", key);
    for (size_t i = 0; i < ids->n; i++)
        buf_printf(out, "%s%d", i ? "," : "", ids->ids[i]);
    buf_putc(out, ']');
}

/* The ids since the last report, as members of the choice; those of the prompt of a completion come
 * with the first of them. */
static void token_ids_json(struct choice *ch)
{
    struct call *c = ch->call;
    if (!c->p.return_token_ids)
        return;
    if (!call_is_chat(c) && !ch->told_prompt)
        ids_json(&c->out, "prompt_token_ids", &c->p.prompts[ch->prompt].tokens);
    ch->told_prompt = true;
    buf_printf(&c->out, ",\"token_ids\":[%s]", buf_str(&ch->ids));
    buf_reset(&ch->ids);
}

/* finish_reason, and what it was that stopped the answer: a string or an id of the request. */
static void finish_json(struct choice *ch)
{
    struct call *c = ch->call;
    const struct answer *a = &ch->answer;
    buf_printf(&c->out, ",\"finish_reason\":\"%s\",\"stop_reason\":",
               message_finish(&ch->message, &ch->answer, ch->finish));
    if (a->stopped)
        answer_json_string(&c->out, a->stops[a->match].p, a->stops[a->match].n);
    else if (ch->stop_id >= 0)
        buf_printf(&c->out, "%d", ch->stop_id);
    else
        buf_puts(&c->out, "null");
}

void call_scores_json(struct buf *out, const struct tokenizer *t, const struct token_list *prompt,
                      const struct proto_scores *s, uint32_t n_top)
{
    buf_puts(out, "[null");
    for (uint32_t i = 0; i < s->n && i + 1 < prompt->n; i++) {
        const struct proto_score *one = &s->list[i];
        buf_printf(out, ",{\"%d\":", prompt->ids[i + 1]);
        answer_rank_json(out, t, prompt->ids[i + 1], one->logprob, one->rank);
        for (uint32_t k = 0; k < one->n_top && k < n_top; k++) {
            if (one->top[k].id == prompt->ids[i + 1])
                continue;
            buf_printf(out, ",\"%d\":", one->top[k].id);
            answer_rank_json(out, t, one->top[k].id, one->top[k].logprob, k + 1);
        }
        buf_putc(out, '}');
    }
    buf_putc(out, ']');
}

/* ---- events ------------------------------------------------------------------------------------
 */

static void event_open(struct call *c)
{
    buf_puts(&c->out, "data: ");
    open_object(c, "chat.completion.chunk", "text_completion");
}

static void event_close(struct call *c)
{
    buf_putc(&c->out, ']');
    if (c->tell_prompt)
        ids_json(&c->out, "prompt_token_ids", &c->p.prompts[0].tokens);
    c->tell_prompt = false;
    if (c->p.usage_in_events) {
        buf_puts(&c->out, ",\"usage\":");
        usage_json(&c->out, c);
    } else if (c->p.include_usage) {
        buf_puts(&c->out, ",\"usage\":null");
    }
    buf_puts(&c->out, "}\n\n");
}

void call_first_event(struct choice *ch)
{
    struct call *c = ch->call;
    ch->begun = true;
    if (c->responses) {
        responses_begin(c->responses, &c->out);
        return;
    }
    if (call_is_chat(c)) {
        event_open(c);
        buf_printf(&c->out,
                   "{\"index\":%u,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                   "\"logprobs\":null,\"finish_reason\":null}",
                   ch->index);
        if (c->p.return_token_ids && ch->index == 0)
            c->tell_prompt = true;
        event_close(c);
        return;
    }
    const struct api_prompt *echo = &c->p.prompts[ch->prompt];
    const struct answer *prompt = &c->prompts[ch->prompt].answer;
    if (!c->p.echo || !echo->text)
        return;
    event_open(c);
    buf_printf(&c->out, "{\"index\":%u,\"text\":", ch->index);
    answer_json_string(&c->out, echo->text, echo->text_len);
    buf_puts(&c->out, ",\"logprobs\":");
    if (c->p.logprobs)
        answer_completion_logprobs(&c->out, &(struct answer_run){prompt, 0, prompt->n_items, 0}, 1);
    else
        buf_puts(&c->out, "null");
    buf_puts(&c->out, ",\"finish_reason\":null}");
    event_close(c);
}

void call_delta_event(struct choice *ch)
{
    struct call *c = ch->call;
    struct answer *a = &ch->answer;
    if (c->responses) {
        responses_delta(c->responses, &ch->message, a, &c->out);
        return;
    }
    event_open(c);
    buf_printf(&c->out,
               call_is_chat(c) ? "{\"index\":%u,\"delta\":" : "{\"index\":%u,\"text\":", ch->index);
    if (call_is_chat(c))
        message_delta_json(&c->out, &ch->message, a);
    else
        answer_json_string(&c->out, buf_str(&a->text), a->text.len);
    buf_puts(&c->out, ",\"logprobs\":");
    if (!c->p.logprobs)
        buf_puts(&c->out, "null");
    else if (call_is_chat(c))
        answer_chat_logprobs(&c->out, a, a->released, a->ready);
    else
        answer_completion_logprobs(
            &c->out,
            &(struct answer_run){a, a->released, a->ready, c->prompts[ch->prompt].echo_chars}, 1);
    token_ids_json(ch);
    buf_puts(&c->out, ",\"finish_reason\":null}");
    event_close(c);
    buf_reset(&a->text);
    a->released = a->ready;
}

void call_finish_event(struct choice *ch)
{
    struct call *c = ch->call;
    if (c->responses)
        return; /* the response says it */
    event_open(c);
    buf_printf(&c->out,
               call_is_chat(c) ? "{\"index\":%u,\"delta\":{},\"logprobs\":null"
                               : "{\"index\":%u,\"text\":\"\",\"logprobs\":null",
               ch->index);
    token_ids_json(ch);
    finish_json(ch);
    buf_putc(&c->out, '}');
    event_close(c);
}

/* The end of a response: its last events, or the whole object. */
static void end_response(struct call *c)
{
    struct choice *ch = &c->choices[0];
    struct responses_usage u = {.input = c->p.prompts[0].tokens.n,
                                .cached = c->prompts[0].cached_tokens,
                                .output = ch->completion_tokens,
                                .thinking = ch->answer.n_thinking};
    responses_end(c->responses, &ch->message, &ch->answer, ch->finish == PROTO_FINISH_LENGTH, &u,
                  &c->out);
}

void call_end_events(struct call *c)
{
    if (c->responses) {
        end_response(c);
        return;
    }
    if (c->p.include_usage) {
        event_open(c);
        buf_puts(&c->out, "],\"usage\":");
        usage_json(&c->out, c);
        buf_puts(&c->out, "}\n\n");
    }
    buf_puts(&c->out, "data: [DONE]\n\n");
}

void call_failed_event(struct call *c, int status, const char *why)
{
    if (c->responses) {
        responses_failed(c->responses, why, &c->out);
        return;
    }
    buf_puts(&c->out, "data: {\"error\":{\"message\":");
    answer_json_string(&c->out, why, strlen(why));
    buf_printf(&c->out, ",\"type\":\"server_error\",\"param\":null,\"code\":\"%s\"}}\n\n",
               status_name(status));
}

/* ---- the whole answer --------------------------------------------------------------------------
 */

static void prompt_scores(struct call *c, uint32_t prompt)
{
    const struct buf *scores = &c->prompts[prompt].scores;
    if (c->p.prompt_logprobs)
        buf_printf(&c->out, ",\"prompt_logprobs\":%s", scores->len ? buf_str(scores) : "[null]");
}

static void choice_json(struct choice *ch, uint32_t index)
{
    struct call *c = ch->call;
    const struct common *prompt = &c->prompts[ch->prompt];
    struct buf *b = &c->out;
    buf_printf(b, "%s{\"index\":%u,", index ? "," : "", index);
    buf_puts(b, call_is_chat(c) ? "\"message\":" : "\"text\":");
    if (call_is_chat(c))
        message_json(b, &ch->message, &ch->answer, &ch->text);
    else
        answer_json_string(b, buf_str(&ch->text), ch->text.len);
    buf_puts(b, ",\"logprobs\":");
    if (!c->p.logprobs)
        buf_puts(b, "null");
    else if (call_is_chat(c))
        answer_chat_logprobs(b, &ch->answer, 0, ch->answer.ready);
    else
        answer_completion_logprobs(
            b,
            (struct answer_run[]){{&prompt->answer, 0, prompt->answer.n_items, 0},
                                  {&ch->answer, 0, ch->answer.ready, prompt->echo_chars}},
            2);
    if (!call_is_chat(c))
        prompt_scores(c, ch->prompt);
    token_ids_json(ch);
    finish_json(ch);
    buf_putc(b, '}');
}

static double mean_logprob(const struct choice *ch)
{
    return ch->completion_tokens ? ch->logprob / ch->completion_tokens : 0;
}

/* The best path of the prompt that has not been given yet: by log probability per token where there
 * are more than are wanted, else the next. */
static struct choice *next_best(struct call *c, uint32_t prompt)
{
    struct choice *best = NULL;
    for (uint32_t i = 0; i < c->p.paths; i++) {
        struct choice *ch = &c->choices[prompt * c->p.paths + i];
        if (!ch->given && (!best || (c->p.paths > c->p.n && mean_logprob(ch) > mean_logprob(best))))
            best = ch;
    }
    best->given = true;
    return best;
}

void call_keep(struct choice *ch)
{
    struct answer *a = &ch->answer;
    if (ch->call->responses) {
        responses_delta(ch->call->responses, &ch->message, a, &ch->call->out);
        return;
    }
    buf_append(&ch->text, buf_str(&a->text), a->text.len);
    buf_reset(&a->text);
    message_keep(&ch->message, a);
}

/* What the choices agree on. */
static void votes(struct call *c)
{
    struct vote_text *texts = mem_array(c->n_choices, sizeof *texts);
    for (uint32_t i = 0; texts && i < c->n_choices; i++)
        texts[i] = (struct vote_text){buf_str(&c->choices[i].text), c->choices[i].text.len};
    buf_puts(&c->out, ",\"vote\":");
    if (!texts || vote_json(&c->out, c->p.vote, texts, c->n_choices) != STATUS_OK)
        c->out.failed = true;
    free(texts);
}

void call_body(struct call *c)
{
    if (c->responses) {
        end_response(c);
        return;
    }
    open_object(c, "chat.completion", "text_completion");
    for (uint32_t p = 0; p < c->p.n_prompts; p++) {
        for (uint32_t i = 0; i < c->p.n; i++)
            choice_json(next_best(c, p), p * c->p.n + i);
    }
    buf_putc(&c->out, ']');
    if (call_is_chat(c)) {
        prompt_scores(c, 0);
        if (c->p.return_token_ids)
            ids_json(&c->out, "prompt_token_ids", &c->p.prompts[0].tokens);
    }
    if (c->p.vote)
        votes(c);
    buf_puts(&c->out, ",\"usage\":");
    usage_json(&c->out, c);
    buf_putc(&c->out, '}');
}
