/* vote: self-consistency: the final answer that most of n paths agree on. */
#ifndef BATON_ROUTERD_VOTE_H
#define BATON_ROUTERD_VOTE_H

#include "common/text/extract.h"
#include "routerd/fields.h"

/* "vote": true, or {"regex": "…"}. *out is NULL when the request wants none. */
int vote_parse(const json_t *request, struct extract **out, struct api_error *e) WARN_UNUSED;

/* Appends {"answer", "choice", "votes", "abstained", "answers": […]} for n texts, which are choices
 * 0 .. n - 1. Most votes win; of as many, the answer that came first. */
struct vote_text {
    const char *p;
    size_t n;
};
int vote_json(struct buf *out, struct extract *x, const struct vote_text *texts,
              uint32_t n) WARN_UNUSED;

#endif
