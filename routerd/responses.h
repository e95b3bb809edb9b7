/* responses: the answer to a POST /v1/responses: items (thinking, text, function calls) that grow
 * with the model's answer, as events while it streams, and as one response object in the end.
 *
 * Fed by the same answer and message as a chat choice. Pure: JSON is appended to buffers. */
#ifndef BATON_ROUTERD_RESPONSES_H
#define BATON_ROUTERD_RESPONSES_H

#include "routerd/message.h"

struct responses;

struct responses_head { /* loans for the life of the responses */
    const char *id;     /* "resp_…" */
    int64_t created;
    const char *model;
    const char *echo; /* see responses_translate */
    bool stream;
};
struct responses_usage {
    size_t input, cached, output, thinking;
};

int responses_create(const struct responses_head *head, struct responses **out) WARN_UNUSED;
void responses_destroy(struct responses *r);

/* The events that open a stream. */
void responses_begin(struct responses *r, struct buf *out);
/* Takes what the answer has to show; its events go to out, when it streams. */
void responses_delta(struct responses *r, struct message *m, struct answer *a, struct buf *out);
/* The answer is complete (cut: by max_output_tokens), everything of it was taken: the last events
 * of a stream, or the response object. */
void responses_end(struct responses *r, struct message *m, struct answer *a, bool cut,
                   const struct responses_usage *u, struct buf *out);
/* The event that ends a stream that broke. */
void responses_failed(struct responses *r, const char *why, struct buf *out);

#endif
