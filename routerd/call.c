/* call: see call.h.
 *
 * Streaming: the response head is sent with the first event, so that a request that fails before
 * its first token still gets a proper status; a keep-alive comment counts as an event. Every token
 * makes one SSE event, also while its text is held back. Events are built in `out` and handed to
 * the connection; what it cannot take waits there, bounded by write_max, and is sent when it
 * drains.
 *
 * A long body, or one with a grammar, is parsed, rendered and tokenised on another thread, so that
 * it holds up nobody's stream; the call waits for that (struct intake) as it waits for its workers.
 *
 * A call ends exactly once, in call_free: by its last event, by an error, or by the client leaving.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/metrics.h"
#include "common/base/rng.h"
#include "routerd/admit.h"
#include "routerd/call_internal.h"

#define UNKNOWN_MAX       64
#define INTAKE_INLINE_MAX 16384 /* bytes of a body that is parsed at once, on the loop */

struct calls {
    struct loop *loop;
    struct relay *relay;
    struct calls_options o;
    struct api_env envs[MODELS_MAX]; /* see calls_envs */
    struct list open;
    uint32_t n_open;
    struct loop_timer *keepalive;
    struct metric *m_tokens, *m_aborted, *m_broken, *m_unknown;
    uint64_t unknown[UNKNOWN_MAX]; /* hashes of unknown fields that were logged */
    uint32_t n_unknown;
};

/* A body on its way to parameters. */
struct intake {
    struct call *call;    /* NULL once the call has ended */
    struct api_env *envs; /* [number of models] */
    enum api_kind kind;
    struct buf body;
    struct api_params p;
    struct api_error error;
    int rc;
};

static struct log_about about(const struct call *c)
{
    return (struct log_about){NULL, c->trace};
}

static void note_failure(struct call *c, const char *why)
{
    snprintf(c->failure, sizeof c->failure, "%s", why);
}

static void call_free(struct call *c)
{
    if (c->intake)
        c->intake->call = NULL;
    for (uint32_t i = 0; i < c->n_choices; i++) {
        if (c->choices[i].gen)
            relay_free(c->choices[i].gen);
    }
    call_trace_end(c, c->owner->o.otlp);
    for (uint32_t i = 0; i < c->n_choices; i++) {
        struct choice *ch = &c->choices[i];
        free(ch->timeline);
        answer_fini(&ch->answer);
        message_fini(&ch->message);
        buf_fini(&ch->text);
        buf_fini(&ch->ids);
    }
    free(c->choices);
    for (uint32_t i = 0; c->prompts && i < c->p.n_prompts; i++) {
        answer_fini(&c->prompts[i].answer);
        buf_fini(&c->prompts[i].scores);
    }
    free(c->prompts);
    responses_destroy(c->responses);
    token_list_fini(&c->stop_ids);
    api_params_fini(&c->p);
    buf_fini(&c->out);
    list_remove(&c->in_open);
    c->owner->n_open--;
    free(c);
}

/* ---- writing -----------------------------------------------------------------------------------
 */

/* Hands c->out to the connection; false when the call is gone. */
static bool flush(struct call *c)
{
    if (!c->http || !buf_ok(&c->out)) {
        if (c->http)
            http_stream_abort(c->http);
        call_free(c);
        return false;
    }
    if (!c->streaming) {
        http_add_header(c->http, "Cache-Control", "no-cache");
        http_stream_begin(c->http, 200, "text/event-stream");
        c->http_status = 200;
        c->streaming = true;
    }
    if (c->out.len) {
        int rc = http_stream_write(c->http, buf_str(&c->out), c->out.len);
        if (rc == STATUS_OK) {
            buf_reset(&c->out);
            c->last_write_ms = clock_ms();
        } else if (rc != STATUS_FULL || c->out.len > c->owner->o.write_max) {
            log_warn_about(about(c), "%s: the client reads too slowly: cut off", c->id);
            note_failure(c, "the client reads too slowly");
            metrics_add(c->owner->m_aborted, 1);
            http_stream_abort(c->http);
            call_free(c);
            return false;
        }
    }
    if (c->ending && c->out.len == 0) {
        http_stream_end(c->http);
        call_free(c);
        return false;
    }
    return true;
}

static void on_drained(void *arg, struct http_request *r)
{
    struct call *c = http_data(r);
    if (c)
        flush(c);
}

/* The whole answer of a request that does not stream. */
static void respond(struct call *c)
{
    struct http_request *r = c->http;
    call_body(c);
    c->http = NULL;
    c->http_status = buf_ok(&c->out) ? 200 : 503;
    if (buf_ok(&c->out))
        http_respond(r, 200, "application/json", c->out.data, c->out.len);
    else
        http_respond_error(r, 503, NULL, NULL, "Out of memory; try again later.");
    call_free(c);
}

/* ---- what the relay reports --------------------------------------------------------------------
 */

static void call_failed(struct call *c, int status, const char *why)
{
    int http = status_http(status);
    log_warn_about(about(c), "%s: %d %s", c->id, http, why);
    note_failure(c, why);
    if (!c->streaming) {
        struct http_request *r = c->http;
        c->http_status = http;
        const char *code = status == STATUS_RANGE ? "context_length_exceeded" : NULL;
        c->http = NULL;
        if (http == 429 || http == 503)
            http_add_header(r, "Retry-After", "1");
        http_respond_error(r, http, NULL, code, "%s", why);
        call_free(c);
        return;
    }
    metrics_add(c->owner->m_broken, 1);
    call_failed_event(c, status, why);
    for (uint32_t i = 0; i < c->n_choices; i++) {
        if (c->choices[i].gen)
            relay_free(c->choices[i].gen);
        c->choices[i].gen = NULL;
    }
    c->ending = true; /* no finish_reason and no [DONE]: the answer is visibly cut */
    flush(c);
}

static bool fork_paths(struct choice *first);

static void choice_done(struct choice *ch)
{
    struct call *c = ch->call;
    if (!fork_paths(ch))
        return;
    struct gen *g = ch->gen;
    ch->gen = NULL;
    ch->done = true;
    pace_end(&ch->pace, c->started_ms);
    c->n_done++;
    relay_free(g);
    answer_end(&ch->answer, ch->finish == PROTO_FINISH_LENGTH);
    if (c->p.stream) {
        if (!ch->begun)
            call_first_event(ch);
        if (message_pending(&ch->message, &ch->answer))
            call_delta_event(ch);
        call_finish_event(ch);
        if (c->n_done == c->n_choices) {
            call_end_events(c);
            c->ending = true;
        }
        flush(c);
        return;
    }
    call_keep(ch);
    if (c->n_done == c->n_choices)
        respond(c);
}

static bool listed(const struct token_list *l, int32_t id)
{
    for (size_t i = 0; i < l->n; i++) {
        if (l->ids[i] == id)
            return true;
    }
    return false;
}

/* Counts the token; false when nobody is to see it. */
static bool count_token(struct choice *ch, const struct gen *g, const struct proto_token *t)
{
    struct call *c = ch->call;
    struct calls *cs = c->owner;
    pace_token(&ch->pace, c->started_ms, clock_ms(), g->queue_ms, g->prefill_ms);
    if (ch->path == 0)
        c->prompts[ch->prompt].cached_tokens = g->cached_tokens;
    if (c->p.max_tokens == 0)
        return false; /* only the prompt was asked for; the drawn token is not part of the answer */
    metrics_add(cs->m_tokens, 1);
    admit_token(c->http);
    ch->completion_tokens++;
    ch->logprob += (double)t->logprob;
    if (c->p.return_token_ids)
        buf_printf(&ch->ids, "%s%d", ch->ids.len ? "," : "", t->token);
    return true;
}

static void on_token(void *arg, struct gen *g, const struct proto_token *t)
{
    struct choice *ch = arg;
    struct call *c = ch->call;
    if (g->state == GEN_DECODE && !fork_paths(ch))
        return;
    if (!count_token(ch, g, t))
        return;
    bool end = t->finish == PROTO_FINISH_STOP && listed(&c->stop_ids, t->token);
    if (end && listed(&c->p.sampling.stops, t->token))
        ch->stop_id = t->token;
    if (answer_token(&ch->answer, t, !end || (c->p.show_stop && ch->stop_id >= 0)) != STATUS_OK) {
        call_failed(c, STATUS_NOMEM, "Out of memory.");
        return;
    }
    if (ch->answer.stopped || message_full(&ch->message, &ch->answer)) {
        ch->finish = PROTO_FINISH_STOP;
        choice_done(ch);
        return;
    }
    if (!c->p.stream) {
        call_keep(ch);
        return;
    }
    if (end)
        return; /* the finish event follows */
    if (!ch->begun)
        call_first_event(ch);
    call_delta_event(ch);
    flush(c);
}

/* The items of an echoed prompt. */
static int keep_scores(struct call *c, uint32_t prompt, const struct proto_scores *s)
{
    const struct token_list *ids = &c->p.prompts[prompt].tokens;
    for (size_t i = 0; i < ids->n; i++) {
        struct proto_token t = {.token = ids->ids[i], .logprob = 1}; /* > 0: not known */
        if (i) {
            const struct proto_score *one = &s->list[i - 1];
            t.logprob = one->logprob;
            t.top = one->top;
            t.n_top = one->n_top < c->p.top_logprobs ? one->n_top : c->p.top_logprobs;
        }
        TRY(answer_token(&c->prompts[prompt].answer, &t, true));
    }
    return STATUS_OK;
}

static void on_scores(void *arg, struct gen *g, const struct proto_scores *s)
{
    struct choice *ch = arg;
    struct call *c = ch->call;
    struct common *prompt = &c->prompts[ch->prompt];
    const struct token_list *ids = &c->p.prompts[ch->prompt].tokens;
    if (prompt->answer.n_tokens || prompt->scores.len || s->n + 1 != ids->n)
        return;
    int rc = c->p.echo && c->p.logprobs ? keep_scores(c, ch->prompt, s) : STATUS_OK;
    if (rc == STATUS_OK && c->p.prompt_logprobs)
        call_scores_json(&prompt->scores, c->model->tokenizer, ids, s, c->p.prompt_top);
    if (rc != STATUS_OK || !buf_ok(&prompt->scores))
        call_failed(c, STATUS_NOMEM, "Out of memory.");
}

static void on_finish(void *arg, struct gen *g, enum proto_finish f)
{
    struct choice *ch = arg;
    if (f == PROTO_FINISH_ERROR) {
        call_failed(ch->call, STATUS_INTERNAL, "The worker could not go on with this request.");
        return;
    }
    ch->finish = ch->call->p.max_tokens == 0 ? PROTO_FINISH_LENGTH : f;
    choice_done(ch);
}

static void on_failed(void *arg, struct gen *g, int status, const char *why)
{
    struct choice *ch = arg;
    call_failed(ch->call, status, why);
}

static const struct gen_callbacks gen_cb = {
    .token = on_token,
    .scores = on_scores,
    .finish = on_finish,
    .failed = on_failed,
};

/* ---- start -------------------------------------------------------------------------------------
 */

static struct proto_bytes text_bytes(const char *p)
{
    return (struct proto_bytes){p ? p : "", p ? strlen(p) : 0};
}

/* What the workers need to end the thinking in time, or to know where it ends because a grammar
 * holds for what is behind it. */
static void set_budget(struct proto_job *job, const struct api_params *p,
                       const struct reasoning_format *f)
{
    bool unlimited = p->think.limit >= INT32_MAX - 1;
    if (p->kind != API_CHAT || !f || (unlimited && p->structured.kind == GRAMMAR_NONE))
        return;
    job->think_limit = unlimited ? INT32_MAX : (uint32_t)p->think.limit + 1;
    job->think_start = p->think.start;
    job->think_open = text_bytes(f->open);
    job->think_close = text_bytes(f->close);
    job->think_breaks = text_bytes(f->breaks);
    job->think_force = text_bytes(f->force ? f->force : f->close);
}

/* An answer of a given form is read as it is: thinking comes before it only where the prompt has
 * begun it, and calls only where they are what was asked for. */
static struct reply_profile profile_of(const struct served *m, const struct api_params *p)
{
    struct reply_profile f = m->profile;
    if (p->structured.kind == GRAMMAR_NONE)
        return f;
    if (p->think.start != REASONING_OPEN || (f.reasoning && f.reasoning->kind != REASONING_TAGS))
        f.reasoning = NULL;
    f.tools = p->call ? toolcall_format_find("llama3_json") : NULL;
    return f;
}

/* Tokens of the answer at most. */
static uint32_t answer_limit(const struct call *c, size_t n_prompt)
{
    uint64_t room = c->context - n_prompt;
    uint64_t want = c->p.max_tokens < 0 ? room : (uint64_t)c->p.max_tokens;
    return (uint32_t)(want < room ? (want ? want : 1) : room);
}

/* Sends the choice's sequence on its way; `like`: to the workers of that one, if it can be. */
static int start_choice(struct choice *ch, const struct gen *like)
{
    struct call *c = ch->call;
    struct calls *cs = c->owner;
    const struct api_params *p = &c->p;
    const struct token_list *prompt = &p->prompts[ch->prompt].tokens;
    bool scores = p->prompt_logprobs || (p->echo && p->logprobs);
    uint32_t score_top = p->prompt_logprobs ? p->prompt_top : 0;
    struct proto_job job = {
        .choice = ch->path,
        .prompt = {prompt->ids, prompt->n},
        .max_tokens = answer_limit(c, prompt->n),
        .stop_ids = {c->stop_ids.ids, c->stop_ids.n},
        .logprobs = p->logprobs || p->paths > p->n,
        .top_logprobs = p->top_logprobs,
        .score_prompt = scores && prompt->n > 1 && ch->path == 0,
        .score_top = score_top > p->top_logprobs ? score_top : p->top_logprobs,
        .n_ids = c->model->vocab,
        .salt = {p->salt, p->salt ? strlen(p->salt) : 0},
        .priority = admit_priority(c->http, p->priority),
        .trace = text_bytes(c->trace),
        .grammar_kind = p->structured.kind,
        .grammar_compact = p->structured.compact,
        .grammar = {p->structured.source ? p->structured.source : "", p->structured.n},
    };
    sampling_job(&p->sampling, c->model->tokenizer, &job);
    set_budget(&job, p, ch->profile.reasoning);
    TRY(like ? relay_fork(cs->relay, &job, like, &gen_cb, ch, &ch->gen)
             : relay_start(cs->relay, p->model, &job, &gen_cb, ch, &ch->gen));
    call_trace_choice(ch);
    return STATUS_OK;
}

/* The first path of a prompt has been handed over, or has ended: the others follow. They find its
 * KV in the caches of its workers. False when the call is gone. */
static bool fork_paths(struct choice *first)
{
    struct call *c = first->call;
    struct common *prompt = &c->prompts[first->prompt];
    if (first->path != 0 || prompt->forked)
        return true;
    prompt->forked = true;
    for (uint32_t i = 1; i < c->p.paths; i++) {
        int rc = start_choice(first + i, first->gen);
        if (rc != STATUS_OK) {
            call_failed(c, rc, "Out of memory; try again later.");
            return false;
        }
    }
    return true;
}

static int prepare_choice(struct call *c, uint32_t i)
{
    struct calls *cs = c->owner;
    struct choice *ch = &c->choices[i];
    const struct api_params *p = &c->p;
    ch->call = c;
    ch->prompt = i / p->paths;
    ch->path = i % p->paths;
    ch->index = i;
    ch->stop_id = -1;
    buf_init(&ch->text, 0);
    buf_init(&ch->ids, 0);
    TRY(answer_init(&ch->answer, c->model->tokenizer, p->stops, p->stop_len, p->n_stops,
                    p->logprobs));
    message_init(&ch->message, cs->o.reasoning_field, p->think.hide, p->think.one_call);
    ch->answer.show_stop = p->show_stop;
    ch->answer.ids_as_tokens = p->ids_as_tokens;
    ch->answer.detok.special = p->show_special;
    /* It continues a text, or a grammar says what it is: keep a first blank. */
    ch->answer.detok.any =
        p->kind == API_COMPLETION || p->continues || p->structured.kind != GRAMMAR_NONE;
    ch->profile = profile_of(c->model, p);
    if (p->kind == API_CHAT && (ch->profile.reasoning || p->think.tools))
        TRY(answer_read(&ch->answer, &ch->profile, p->think.start, p->think.tools));
    const struct api_prompt *echo = &p->prompts[ch->prompt];
    if (p->echo && echo->text && !p->stream)
        buf_append(&ch->text, echo->text, echo->text_len);
    return STATUS_OK;
}

static int prepare_prompt(struct call *c, uint32_t i)
{
    struct common *prompt = &c->prompts[i];
    const struct api_prompt *echo = &c->p.prompts[i];
    buf_init(&prompt->scores, 0);
    TRY(answer_init(&prompt->answer, c->model->tokenizer, NULL, NULL, 0, true));
    prompt->answer.detok.special = true;
    prompt->answer.ids_as_tokens = c->p.ids_as_tokens;
    for (size_t k = 0; c->p.echo && echo->text && k < echo->text_len; k++)
        prompt->echo_chars += ((unsigned char)echo->text[k] & 0xc0) != 0x80;
    /* A single token has no score to wait for. */
    if (c->p.echo && c->p.logprobs && echo->tokens.n == 1)
        return keep_scores(c, i, &(struct proto_scores){0});
    return STATUS_OK;
}

static int prepare(struct call *c)
{
    uint32_t n = c->p.n_prompts * c->p.paths;
    c->prompts = mem_array(c->p.n_prompts, sizeof *c->prompts);
    c->choices = mem_array(n, sizeof *c->choices);
    if (!c->prompts || !c->choices)
        return STATUS_NOMEM;
    struct responses_head head = {c->id, c->created, c->model->name, c->p.responses, c->p.stream};
    if (head.echo)
        TRY(responses_create(&head, &c->responses));
    TRY(sampling_stop_ids(&c->p.sampling, c->model->tokenizer, &c->stop_ids));
    for (uint32_t i = 0; i < c->p.n_prompts; i++)
        TRY(prepare_prompt(c, i));
    for (uint32_t i = 0; i < n; i++) {
        c->n_choices = i + 1;
        TRY(prepare_choice(c, i));
    }
    return STATUS_OK;
}

/* The parameters are known: starts the first path of each prompt. */
static void run(struct call *c, uint32_t context)
{
    c->context = context;
    c->model = &c->owner->o.models->list[c->p.model];
    int rc = prepare(c);
    for (uint32_t i = 0; i < c->p.n_prompts && rc == STATUS_OK; i++)
        rc = start_choice(&c->choices[i * c->p.paths], NULL);
    if (rc != STATUS_OK)
        call_failed(c, rc,
                    rc == STATUS_FULL ? "Too many requests are waiting; try again later."
                                      : "Out of memory; try again later.");
}

/* Fields that nobody knows are accepted, and each name is logged once. */
static void note_unknown(const struct call *c)
{
    struct calls *cs = c->owner;
    const struct api_params *p = &c->p;
    if (p->n_unknown == 0)
        return;
    metrics_add(cs->m_unknown, p->n_unknown);
    uint64_t hash = hash64(p->unknown, strlen(p->unknown), 0);
    for (uint32_t i = 0; i < cs->n_unknown; i++) {
        if (cs->unknown[i] == hash)
            return;
    }
    if (cs->n_unknown == UNKNOWN_MAX)
        return;
    cs->unknown[cs->n_unknown++] = hash;
    log_info_about(about(c), "requests have the field '%s', which has no effect", p->unknown);
}

/* May run on another thread: touches nothing but the intake. */
static void intake_parse(void *arg)
{
    struct intake *in = arg;
    in->rc = api_parse(in->envs, in->kind, buf_str(&in->body), in->body.len, clock_unix_s(), &in->p,
                       &in->error);
    buf_fini(&in->body);
}

static void intake_free(struct intake *in)
{
    if (in)
        free(in->envs);
    free(in);
}

/* Without share_prefixes the key's name is part of the salt: no client can name another one's. */
static int salt_by_user(struct call *c)
{
    struct buf b;
    if (!*c->user || c->owner->o.share_prefixes)
        return STATUS_OK;
    buf_init(&b, 0);
    buf_printf(&b, "%s\n%s", c->user, c->p.salt ? c->p.salt : "");
    char *salt = buf_take(&b);
    buf_fini(&b);
    if (!salt)
        return STATUS_NOMEM;
    free(c->p.salt);
    c->p.salt = salt;
    return STATUS_OK;
}

/* Whether its key has so many tokens left; else the call has been answered, and is gone. */
static bool admitted(struct call *c)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < c->p.n_prompts; i++)
        n += c->p.prompts[i].tokens.n;
    if (admit_prompt(c->http, n))
        return true;
    c->http = NULL;
    c->http_status = 429;
    call_free(c);
    return false;
}

static void intake_done(void *arg)
{
    struct intake *in = arg;
    struct call *c = in->call;
    if (!c) {
        if (in->rc == STATUS_OK)
            api_params_fini(&in->p);
        intake_free(in);
        return;
    }
    c->intake = NULL;
    if (in->rc == STATUS_OK) {
        c->p = in->p;
        note_unknown(c);
        if (salt_by_user(c) != STATUS_OK)
            call_failed(c, STATUS_NOMEM, "Out of memory; try again later.");
        else if (admitted(c))
            run(c, in->envs[c->p.model].context);
    } else {
        struct http_request *r = c->http;
        c->http = NULL;
        c->http_status = in->error.http;
        http_respond_error(r, in->error.http, in->error.param, in->error.code, "%s",
                           in->error.message);
        call_free(c);
    }
    intake_free(in);
}

const struct api_env *calls_envs(struct calls *cs)
{
    for (uint32_t i = 0; i < cs->o.models->n; i++) {
        const struct served *m = &cs->o.models->list[i];
        uint32_t context = relay_context(cs->relay, i);
        if (context == 0 || (m->context && m->context < context))
            context = m->context ? m->context : INT32_MAX; /* unknown: the workers will say */
        cs->envs[i] = (struct api_env){.tokenizer = m->tokenizer,
                                       .chat_template = m->chat_template,
                                       .profile = &m->profile,
                                       .efforts = &m->efforts,
                                       .model_name = m->name,
                                       .aliases = m->aliases,
                                       .vocab = m->vocab,
                                       .context = context,
                                       .next = i + 1 < cs->o.models->n ? &cs->envs[i + 1] : NULL};
    }
    return cs->envs;
}

struct api_env *calls_copy_envs(struct calls *cs)
{
    uint32_t n = cs->o.models->n;
    struct api_env *copy = mem_dup(calls_envs(cs), n * sizeof *copy);
    for (uint32_t i = 0; copy && i + 1 < n; i++)
        copy[i].next = &copy[i + 1];
    return copy;
}

static void client_gone(struct request_owner *o)
{
    struct call *c = container_of(o, struct call, of_request);
    log_info_about(about(c), "%s: the client has gone; work on it stops", c->id);
    metrics_add(c->owner->m_aborted, 1);
    note_failure(c, "the client has gone");
    c->http = NULL;
    call_free(c);
}

void call_start(struct calls *cs, enum api_kind kind, struct http_request *r)
{
    struct call *c = mem_array(1, sizeof *c);
    struct intake *in = mem_array(1, sizeof *in);
    if (in)
        in->envs = calls_copy_envs(cs);
    if (!c || !in || !in->envs) {
        free(c);
        intake_free(in);
        http_respond_error(r, 503, NULL, NULL, "Out of memory; try again later.");
        return;
    }
    c->of_request.client_gone = client_gone;
    c->owner = cs;
    c->http = r;
    c->intake = in;
    c->p.kind = kind;
    c->created = clock_unix_s();
    c->started_ms = c->last_write_ms = clock_ms();
    if (kind == API_RESPONSES)
        snprintf(c->id, sizeof c->id, "resp_%016" PRIx64 "%016" PRIx64, rng_u64(), rng_u64());
    else
        snprintf(c->id, sizeof c->id, "%s-%016" PRIx64, kind == API_CHAT ? "chatcmpl" : "cmpl",
                 rng_u64());
    snprintf(c->user, sizeof c->user, "%s", http_user(r));
    call_trace_begin(c, cs->o.otlp);
    log_debug_about(about(c), "%s begins", c->id);
    buf_init(&c->out, 0);
    list_push_back(&cs->open, &c->in_open);
    cs->n_open++;
    http_set_data(r, c);
    http_stream_on_drained(r, on_drained);
    in->call = c;
    in->kind = kind;
    http_take_body(r, &in->body);
    bool at_once = in->body.len <= INTAKE_INLINE_MAX &&
                   !structured_mentioned(buf_str(&in->body), in->body.len);
    if (at_once || loop_work(cs->loop, intake_parse, intake_done, in) != STATUS_OK) {
        intake_parse(in);
        intake_done(in);
    }
}

static void on_keepalive(void *arg)
{
    struct calls *cs = arg;
    uint64_t now = clock_ms();
    LIST_FOR_SAFE (it, &cs->open) { /* flush frees this call at most */
        struct call *c = container_of(it, struct call, in_open);
        if (!c->p.stream || c->ending || now - c->last_write_ms < cs->o.sse_keepalive_ms)
            continue;
        c->last_write_ms = now;
        if (c->out.len)
            continue; /* events wait for a slow reader already */
        buf_puts(&c->out, ": keep-alive\n\n");
        flush(c);
    }
}

void calls_set_keepalive(struct calls *cs, uint64_t sse_keepalive_ms)
{
    uint64_t every = sse_keepalive_ms / 4 ? sse_keepalive_ms / 4 : 1;
    cs->o.sse_keepalive_ms = sse_keepalive_ms;
    loop_timer_start(cs->keepalive, every, every);
}

int calls_create(struct loop *loop, struct relay *relay, const struct calls_options *o,
                 struct calls **out)
{
    struct calls *cs = mem_array(1, sizeof *cs);
    if (!cs)
        return STATUS_NOMEM;
    cs->loop = loop;
    cs->relay = relay;
    cs->o = *o;
    list_init(&cs->open);
    int rc = loop_timer_create(loop, on_keepalive, cs, &cs->keepalive);
    if (rc != STATUS_OK) {
        free(cs);
        return rc;
    }
    calls_set_keepalive(cs, o->sse_keepalive_ms);
    pace_init(&o->targets);
    cs->m_tokens = metrics_counter("baton_generated_tokens_total", "",
                                   "Tokens of answers that this router received.");
    cs->m_aborted = metrics_counter("baton_aborted_requests_total", "",
                                    "Requests whose client left before the answer was complete.");
    cs->m_broken = metrics_counter("baton_broken_streams_total", "",
                                   "Streams that ended with an error after they had begun.");
    cs->m_unknown = metrics_counter("baton_unknown_fields_total", "",
                                    "Fields of requests that the router does not know.");
    *out = cs;
    return STATUS_OK;
}

void calls_destroy(struct calls *cs)
{
    if (!cs)
        return;
    while (!list_empty(&cs->open)) {
        struct call *c = container_of(cs->open.next, struct call, in_open);
        if (c->http)
            http_set_data(c->http, NULL);
        call_free(c);
    }
    loop_timer_free(cs->keepalive);
    free(cs);
}

uint32_t calls_open(const struct calls *cs)
{
    return cs->n_open;
}
