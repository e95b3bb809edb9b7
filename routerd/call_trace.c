/* call_trace: the spans of a call; see otlp.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "routerd/call_internal.h"

void call_trace_begin(struct call *c, struct otlp *o)
{
    otlp_begin_http(o, c->http, &c->span, c->trace);
}

void call_trace_choice(struct choice *ch)
{
    if (!ch->call->span.sampled || ch->index >= OTLP_SEQUENCES_MAX)
        return;
    ch->timeline = malloc(sizeof *ch->timeline); /* without memory it is left out */
    if (ch->timeline)
        relay_watch(ch->gen, ch->timeline);
}

static void names_of(const struct call *c, struct otlp_request *r)
{
    static const struct {
        const char *name, *operation;
    } kinds[] = {[API_CHAT] = {"POST /v1/chat/completions", "chat"},
                 [API_COMPLETION] = {"POST /v1/completions", "text_completion"},
                 [API_RESPONSES] = {"POST /v1/responses", "chat"}};
    enum api_kind kind = c->responses ? API_RESPONSES : c->p.kind;
    r->name = kinds[kind].name;
    r->operation = kinds[kind].operation;
}

void call_trace_end(struct call *c, struct otlp *o)
{
    const struct timeline *sequences[OTLP_SEQUENCES_MAX];
    char id[HTTP_ID_MAX + 1];
    if (!c->span.sampled)
        return;
    snprintf(id, sizeof id, "%.*s", (int)strcspn(c->trace, " "), c->trace);
    struct otlp_request r = {.context = &c->span,
                             .model = c->model ? c->model->name : NULL,
                             .id = id,
                             .response = c->id,
                             .from_ms = c->started_ms,
                             .to_ms = clock_ms(),
                             .http_status = c->http_status,
                             .sequences = sequences};
    names_of(c, &r);
    if (c->failure[0])
        r.error = c->failure;
    else if (c->http_status >= 500)
        r.error = "the server could not answer";
    for (uint32_t i = 0; i < c->n_choices; i++) {
        const struct choice *ch = &c->choices[i];
        if (r.n < OTLP_SEQUENCES_MAX)
            sequences[r.n++] = ch->timeline;
        r.output_tokens += ch->completion_tokens;
        if (ch->pace.n && (!r.first_token_ms || ch->pace.first_ms < r.first_token_ms))
            r.first_token_ms = ch->pace.first_ms;
    }
    for (uint32_t i = 0; c->model && i < c->p.n_prompts; i++)
        r.input_tokens += c->p.prompts[i].tokens.n;
    otlp_request(o, &r);
}
