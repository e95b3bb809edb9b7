/* message: the answer of a chat choice as JSON, whole or in deltas: content, thinking, tool calls.
 */
#ifndef BATON_ROUTERD_MESSAGE_H
#define BATON_ROUTERD_MESSAGE_H

#include "routerd/answer.h"

/* Under which names thinking is given. */
enum message_field { MESSAGE_REASONING_CONTENT, MESSAGE_REASONING, MESSAGE_BOTH };

struct message_call {
    char id[48];
    size_t sent; /* bytes of the arguments */
    bool begun;
};
struct message {
    enum message_field field;
    bool hide;           /* thinking is not given */
    bool one_call;       /* the first complete call ends the answer */
    struct buf thinking; /* all of it, when the answer is given whole */
    struct message_call *calls;
    size_t n_calls;
};
void message_init(struct message *m, enum message_field field, bool hide, bool one_call);
void message_fini(struct message *m);
/* The calls that are shown: at most one when that is all there may be. Gives each an id. */
struct toolcall_call *message_calls(struct message *m, struct answer *a, size_t *n);
/* Nothing more is wanted: the one call that there may be is complete. */
bool message_full(struct message *m, struct answer *a);
/* Keeps the thinking that came, for message_json. */
void message_keep(struct message *m, struct answer *a);
/* The delta object with what came since the last one. */
void message_delta_json(struct buf *out, struct message *m, struct answer *a);
/* Whether there is something for a delta. */
bool message_pending(struct message *m, struct answer *a);
/* The message object; text is the content. */
void message_json(struct buf *out, struct message *m, struct answer *a, const struct buf *text);
/* finish_reason. */
const char *message_finish(struct message *m, struct answer *a, enum proto_finish f);

#endif
