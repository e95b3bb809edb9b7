/* admit: see admit.h. A request that was let in holds its quota (http_hold) until it is over. */
#include "routerd/admit.h"

#include <inttypes.h>
#include <stdio.h>

#include "common/base/clock.h"
#include "routerd/api.h"

#define CLASS_SIZE (2 * API_PRIORITY_MAX + 1) /* priorities that a request may have */

/* OpenAI gives times like "250ms", "1.2s" and "6m0s". */
static void duration(uint64_t ms, char out[32])
{
    if (ms < 1000)
        snprintf(out, 32, "%" PRIu64 "ms", ms);
    else if (ms < 60000)
        snprintf(out, 32, "%gs", (double)ms / 1000);
    else
        snprintf(out, 32, "%" PRIu64 "m%" PRIu64 "s", ms / 60000, ms % 60000 / 1000);
}

static void add_state(struct http_request *r, const char *what, struct quota_state s)
{
    char name[64], value[32];
    if (s.limit == 0)
        return;
    snprintf(name, sizeof name, "x-ratelimit-limit-%s", what);
    snprintf(value, sizeof value, "%u", s.limit);
    http_add_header(r, name, value);
    snprintf(name, sizeof name, "x-ratelimit-remaining-%s", what);
    snprintf(value, sizeof value, "%u", s.left);
    http_add_header(r, name, value);
    snprintf(name, sizeof name, "x-ratelimit-reset-%s", what);
    duration(s.full_ms, value);
    http_add_header(r, name, value);
}

static void refuse(struct http_request *r, const struct quota *q, const struct quota_verdict *v)
{
    static const char *const what[] = {"", "requests per minute", "tokens per minute",
                                       "requests at a time", "tokens per minute"};
    const struct api_limits *l = quota_limits(q);
    uint32_t limit = v->limit == QUOTA_REQUESTS      ? l->requests_per_minute
                     : v->limit == QUOTA_CONCURRENCY ? l->concurrency
                                                     : l->tokens_per_minute;
    char value[32], wait[32];
    if (v->limit == QUOTA_TOO_LARGE) {
        http_add_header(r, "x-should-retry", "false");
        http_respond_error(r, 429, NULL, "rate_limit_exceeded",
                           "The prompt alone has more than this key's limit of %u %s.", limit,
                           what[v->limit]);
        return;
    }
    snprintf(value, sizeof value, "%" PRIu64, (v->retry_ms + 999) / 1000);
    http_add_header(r, "Retry-After", value);
    snprintf(value, sizeof value, "%" PRIu64, v->retry_ms);
    http_add_header(r, "Retry-After-Ms", value);
    duration(v->retry_ms, wait);
    http_respond_error(r, 429, NULL, "rate_limit_exceeded",
                       "This key's limit of %u %s is reached; try again in %s.", limit,
                       what[v->limit], wait);
}

static void leave(void *q)
{
    quota_leave(q);
}

bool admit_request(struct quotas *qs, const struct api_key *key, struct http_request *r)
{
    static const struct api_limits none = {.priority = API_PRIORITY_NORMAL};
    struct quota *q;
    struct quota_verdict v;
    uint64_t now = clock_ms();
    if (quota_enter(qs, http_user(r), key ? key->tenant : "none", key ? &key->limits : &none, now,
                    &q, &v) != STATUS_OK) {
        http_respond_error(r, 503, NULL, NULL, "Out of memory; try again later.");
        return false;
    }
    add_state(r, "requests", quota_requests_left(q, now));
    if (v.limit == QUOTA_FREE) {
        http_hold(r, q, leave);
        return true;
    }
    add_state(r, "tokens", quota_tokens_left(q, now));
    refuse(r, q, &v);
    return false;
}

bool admit_prompt(struct http_request *r, uint64_t n)
{
    struct quota *q = http_held(r);
    uint64_t now = clock_ms();
    struct quota_verdict v = quota_prompt(q, n, now);
    add_state(r, "tokens", quota_tokens_left(q, now));
    if (v.limit != QUOTA_FREE)
        refuse(r, q, &v);
    return v.limit == QUOTA_FREE;
}

void admit_token(struct http_request *r)
{
    quota_tokens(http_held(r), 1, clock_ms());
}

uint32_t admit_priority(const struct http_request *r, int32_t priority)
{
    uint32_t class = quota_limits(http_held(r))->priority;
    return class * CLASS_SIZE + (uint32_t)(API_PRIORITY_MAX - priority);
}
