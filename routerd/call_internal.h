/* call_internal: what the files of a call share: its life (call.c) and its JSON (call_json.c). */
#ifndef BATON_ROUTERD_CALL_INTERNAL_H
#define BATON_ROUTERD_CALL_INTERNAL_H

#include "common/base/list.h"
#include "common/net/http.h"
#include "routerd/answer.h"
#include "routerd/pace.h"
#include "routerd/call.h"
#include "routerd/message.h"
#include "routerd/models.h"
#include "routerd/otlp.h"
#include "routerd/owner.h"
#include "routerd/responses.h"

/* One path of one prompt: a sequence, and what the client sees of it. */
struct choice {
    struct call *call;
    uint32_t prompt, path, index; /* index: in the call's choices */
    struct gen *gen;              /* NULL until it is started, and once it has ended */
    struct reply_profile profile; /* how the answer is read; its parts are loans */
    struct answer answer;
    struct message message; /* of chat */
    struct buf text;        /* whole text, when not streaming */
    bool begun;             /* the first event (role, echo) was sent */
    bool told_prompt;       /* the prompt's ids were given */
    bool done, given;       /* given: in the body */
    enum proto_finish finish;
    int32_t stop_id; /* the request's own stop id that ended it, or -1 */
    uint32_t completion_tokens;
    double logprob; /* of all its tokens */
    struct buf ids; /* JSON list of the ids not yet reported, when return_token_ids is set */
    struct pace pace;
    struct timeline *timeline; /* when the request is traced; may be NULL then, too */
};

/* What the paths of a prompt have in common. */
struct common {
    struct answer answer; /* items of the echoed prompt */
    size_t echo_chars;
    struct buf scores; /* prompt_logprobs as JSON; empty: not known */
    uint32_t cached_tokens;
    bool forked; /* all paths are started */
};

struct intake;
struct call {
    struct request_owner of_request;
    struct calls *owner;
    struct list in_open;
    struct http_request *http; /* NULL when the client has gone */
    struct intake *intake;     /* while the body is being parsed */
    struct api_params p;
    struct token_list stop_ids;
    struct choice *choices; /* [n_prompts][paths] */
    struct common *prompts; /* [n_prompts] */
    uint32_t n_choices, n_done;
    uint32_t context;
    const struct served *model;  /* once the parameters are known */
    struct responses *responses; /* of POST /v1/responses, else NULL */
    char id[48];
    char trace[OTLP_NAME_MAX]; /* the client's name of it, for log lines here and at workers */
    struct otlp_context span;
    int http_status;   /* that was answered; 0: none yet */
    char failure[128]; /* why it failed, for the trace; "" */
    int64_t created;
    char user[HTTP_USER_MAX + 1]; /* whose key the request has; "" without keys */
    uint64_t started_ms, last_write_ms;
    bool streaming;   /* the response head was sent */
    bool tell_prompt; /* the next event has the prompt's ids */
    bool ending;      /* the last event is in out; free when it is written */
    struct buf out;
};

static inline bool call_is_chat(const struct call *c)
{
    return c->p.kind == API_CHAT;
}

/* call_trace.c: spans. Who the request's span belongs to, and the name of the request for log lines
 * and workers (c->trace); a choice's sequence has been started; the call ends. */
void call_trace_begin(struct call *c, struct otlp *o);
void call_trace_choice(struct choice *ch);
void call_trace_end(struct call *c, struct otlp *o);

/* Events, appended to c->out. The first one of a choice carries the role (chat) or the echoed
 * prompt; a delta has what the answer has to show and takes it. */
void call_first_event(struct choice *ch);
void call_delta_event(struct choice *ch);
void call_finish_event(struct choice *ch);
void call_end_events(struct call *c);
/* The last event of a stream that broke. */
void call_failed_event(struct call *c, int status, const char *why);
/* Takes what there is of an answer that is given whole. */
void call_keep(struct choice *ch);
/* The whole answer. */
void call_body(struct call *c);
/* The prompt's scores as prompt_logprobs has them. */
void call_scores_json(struct buf *out, const struct tokenizer *t, const struct token_list *prompt,
                      const struct proto_scores *s, uint32_t n_top);

#endif
