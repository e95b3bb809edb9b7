/* think: what a chat request says about thinking and tool calls: how long the model may think, what
 * the template is told about it, and which tools there are. */
#ifndef BATON_ROUTERD_THINK_H
#define BATON_ROUTERD_THINK_H

#include "common/text/reply.h"
#include "routerd/fields.h"

#define THINK_EFFORTS_MAX 16

/* Tokens of thinking by reasoning_effort, as configured. */
struct think_efforts {
    struct {
        char name[16];
        uint32_t tokens;
    } list[THINK_EFFORTS_MAX];
    size_t n;
};
/* text: "low:1024, medium:8192"; STATUS_INVALID with a line in err. An effort that is not listed
 * has no limit; "none" is always 0. */
int think_efforts_parse(const char *text, struct think_efforts *out, char *err,
                        size_t errlen) WARN_UNUSED;

#define THINK_UNLIMITED INT64_MAX
struct think_params {
    int64_t limit;              /* tokens of thinking; THINK_UNLIMITED */
    char effort[16];            /* "" when the request says nothing */
    bool off;                   /* the request wants none */
    bool hide;                  /* the client does not want to see it */
    enum reasoning_start start; /* of the rendered prompt */
    json_t *tools;              /* owned; NULL: text of calls is content. Those that are allowed */
    bool one_call;              /* parallel_tool_calls is false */
};
int think_parse(const json_t *request, const struct think_efforts *efforts, struct think_params *p,
                struct api_error *e) WARN_UNUSED;
/* Whether a tool_choice is of type "allowed_tools". */
bool think_allows(const json_t *choice);
void think_fini(struct think_params *p);
/* Adds to a template's variables what the request says outside of chat_template_kwargs. */
int think_context(const struct think_params *p, json_t *context) WARN_UNUSED;
/* The message as the template wants it: arguments of its tool calls as objects, or as text;
 * reasoning under the name that templates know. Changes m, which must not be shared. */
int think_message(const struct reply_profile *profile, json_t *m, size_t index,
                  struct api_error *e) WARN_UNUSED;

#endif
