/* quota: what the holder of a key may use: requests and tokens in a minute, requests at a time; and
 * what each tenant has used, for the metrics. Pure but for those: the clock is passed in.
 *
 * A minute's allowance refills steadily and holds at most a minute's worth. A request costs one
 * request and its prompt's tokens when it comes; each token of its answer costs one when it is
 * there. So an answer that has begun is never cut, and what it used too much is waited for. */
#ifndef BATON_ROUTERD_QUOTA_H
#define BATON_ROUTERD_QUOTA_H

#include "common/net/api_keys.h"

struct quotas; /* all of a router */
struct quota;  /* of one key */

enum quota_limit {
    QUOTA_FREE, /* none is reached */
    QUOTA_REQUESTS,
    QUOTA_TOKENS,
    QUOTA_CONCURRENCY,
    QUOTA_TOO_LARGE, /* more tokens than a minute has: never */
};
struct quota_verdict {
    enum quota_limit limit;
    uint64_t retry_ms; /* when it would go */
};
struct quota_state {
    uint32_t limit, left; /* limit 0: none */
    uint64_t full_ms;     /* until all is there again */
};

int quotas_create(struct quotas **out) WARN_UNUSED;
void quotas_destroy(struct quotas *qs);
/* Forgets who has used nothing in the last minute: all that a new key file may have left over. */
void quotas_sweep(struct quotas *qs, uint64_t now_ms);
/* Takes one request in for `name`, with limits as they are now. On QUOTA_FREE *out is to be given
 * back by quota_leave. STATUS_NOMEM. */
int quota_enter(struct quotas *qs, const char *name, const char *tenant,
                const struct api_limits *limits, uint64_t now_ms, struct quota **out,
                struct quota_verdict *v) WARN_UNUSED;
void quota_leave(struct quota *q);
/* Its prompt has n tokens. */
struct quota_verdict quota_prompt(struct quota *q, uint64_t n, uint64_t now_ms);
/* n tokens of its answer are there. */
void quota_tokens(struct quota *q, uint32_t n, uint64_t now_ms);
const struct api_limits *quota_limits(const struct quota *q);
struct quota_state quota_requests_left(struct quota *q, uint64_t now_ms);
struct quota_state quota_tokens_left(struct quota *q, uint64_t now_ms);

#endif
