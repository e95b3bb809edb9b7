/* reply: a model's answer as a message: thinking, content and tool calls.
 *
 * The profile says how a model writes these, and is made once from its template and vocabulary. A
 * reply takes the answer's text as it comes. All of it is a function of that text: however it is
 * cut, and on whichever router it is read, the message is the same. */
#ifndef BATON_TEXT_REPLY_H
#define BATON_TEXT_REPLY_H

#include "common/text/channels.h"
#include "common/text/chat.h"

struct reply_profile {
    const struct reasoning_format *reasoning; /* NULL: the model does not think */
    const struct toolcall_format *tools;      /* NULL: the template knows no calls */
    bool arguments_text; /* the template wants a call's arguments as text, not as an object */
    int32_t *shown;      /* control tokens of the marks: a reply must see their text; ascending */
    size_t n_shown;
};
/* source: of the template t. reasoning, tools: names of formats, or "auto", "none"; STATUS_INVALID
 * when there is no such format. */
int reply_profile_init(struct reply_profile *p, const char *source, const struct chat_template *t,
                       const struct tokenizer *tok, const char *reasoning,
                       const char *tools) WARN_UNUSED;
void reply_profile_fini(struct reply_profile *p);
bool reply_profile_shows(const struct reply_profile *p, int32_t id);
/* How thinking stands where the prompt ends. */
enum reasoning_start reply_profile_start(const struct reply_profile *p,
                                         const struct chat_output *prompt);

struct reply {
    const struct reply_profile *profile;
    struct buf thinking, content; /* the caller may take and reset them between pushes */
    struct toolcall *tools;       /* NULL: calls are content */
    bool separate;                /* thinking is told apart */
    struct reasoning reasoning;
    struct channels channels;
};
/* tools: the request's list when calls are to be found, else NULL. r must not move. */
int reply_init(struct reply *r, const struct reply_profile *p, enum reasoning_start start,
               const json_t *tools) WARN_UNUSED;
void reply_fini(struct reply *r);
void reply_push(struct reply *r, const char *p, size_t n);
/* No more text. cut: by max_tokens or a stop string, not by the model. */
void reply_end(struct reply *r, bool cut);
/* Whether the next text continues a block of thinking. */
bool reply_thinking(const struct reply *r);
bool reply_ok(const struct reply *r);

#endif
