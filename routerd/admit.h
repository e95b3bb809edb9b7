/* admit: the limits of a key as HTTP shows them: OpenAI's x-ratelimit headers, and 429 with
 * Retry-After. */
#ifndef BATON_ROUTERD_ADMIT_H
#define BATON_ROUTERD_ADMIT_H

#include "common/net/http.h"
#include "routerd/quota.h"

/* Whether the request may be worked on; else it has been answered. key: the one that it has, NULL
 * where none is asked for. What it takes is given back when it is over. */
bool admit_request(struct quotas *qs, const struct api_key *key, struct http_request *r);
/* The same, once it is known that its prompts have n tokens. */
bool admit_prompt(struct http_request *r, uint64_t n);
/* A token of its answer is there. */
void admit_token(struct http_request *r);
/* A job's priority (larger is more urgent) by the class of the key, and among equals by what the
 * request says (smaller is more urgent). */
uint32_t admit_priority(const struct http_request *r, int32_t priority);

#endif
