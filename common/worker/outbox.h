/* outbox: the tokens a worker owes one router (R2, R3). Every sequence has a stream of numbered
 * tokens; a token is kept until the router's cumulative ACK covers it, and sent again when the
 * router comes back on a new link and says where it stands. Pure: no I/O. */
#ifndef BATON_WORKER_OUTBOX_H
#define BATON_WORKER_OUTBOX_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/list.h"
#include "common/base/mem.h"
#include "common/base/status.h"
#include "common/proto/proto.h"

struct outbox {
    struct list streams;
    uint32_t unsent; /* tokens that outbox_collect would give */
};

struct stream {
    struct list node; /* outbox.streams; on no list when the outbox was closed under its owner */
    struct outbox *box;
    uint64_t counter;
    uint32_t attempt, choice;
    struct proto_token *tokens; /* [n] in order of position, kept until acknowledged */
    uint32_t n, cap;
    uint32_t sent;  /* of these, how many have gone out on the present link */
    bool released;  /* its owner is done: freed when all is acknowledged */
    uint64_t since; /* ms, when it was released */
};

void outbox_init(struct outbox *o);
/* Frees released streams; the others are detached and go with stream_drop. */
void outbox_fini(struct outbox *o);

struct stream *stream_open(struct outbox *o, uint64_t counter, uint32_t attempt, uint32_t choice);
/* Copies the token and its alternatives. */
int stream_push(struct stream *s, const struct proto_token *t) WARN_UNUSED;
/* The owner is done; what is not acknowledged stays. The stream may be gone after the call. */
void stream_release(struct stream *s, uint64_t now_ms);
/* Forgets the stream and what it holds. NULL is fine. */
void stream_drop(struct stream *s);

/* Up to max unsent tokens into list (room for max); they count as sent. The alternatives are loans
 * until the next call that changes the outbox. */
uint32_t outbox_collect(struct outbox *o, struct proto_token *list, uint32_t max);
/* Is there something for this sequence, by its owner or still to be acknowledged? */
bool outbox_has(const struct outbox *o, const struct proto_seq_pos *p);
/* Drops tokens before position; frees a released stream that is empty. */
void outbox_ack(struct outbox *o, const struct proto_seq_pos *p);
/* New link: everything kept counts as unsent again. */
void outbox_rewind(struct outbox *o);
/* Drops the streams of an attempt that nobody owns any more. */
void outbox_cancel(struct outbox *o, uint64_t counter, uint32_t attempt);
/* Drops released streams older than max_age_ms. */
void outbox_expire(struct outbox *o, uint64_t now_ms, uint64_t max_age_ms);
/* Drops released streams that the list does not name. */
void outbox_keep_only(struct outbox *o, const struct proto_seq_pos *list, uint32_t n);

#endif
