/* quota: see quota.h.
 *
 * A bucket holds what is left of a minute's allowance as a real number; tokens of answers may take
 * it below zero. A quota that nobody uses and whose buckets are full is as good as none, so
 * quotas_sweep drops it; a new limit keeps what has been used.
 *
 * Tenants have metrics of their own, and metrics live as long as the process: the first TENANTS_MAX
 * that are seen have their name as a label, all others together are "other". */
#include "routerd/quota.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/map.h"
#include "common/base/mem.h"
#include "common/base/metrics.h"

#define MINUTE_MS   60000.0
#define TENANTS_MAX 100
#define BUSY_MS     1000 /* when to come back while too many requests run: nobody knows */
#define NAME_BYTES  (API_KEY_NAME_MAX + 16)

struct tenant {
    char name[API_KEY_NAME_MAX + 1];
    struct metric *requests, *open, *prompt, *answer, *refused[QUOTA_TOO_LARGE];
};

struct bucket {
    uint32_t size; /* 0: no limit */
    double left;
    uint64_t at_ms;
};

struct quota {
    UT_hash_handle hh;
    char name[NAME_BYTES];
    struct tenant *tenant;
    struct api_limits limits;
    struct bucket requests, tokens;
    uint32_t open;
};

struct quotas {
    struct quota *by_name;
    struct tenant tenants[TENANTS_MAX + 1]; /* the last one: all others */
    uint32_t n_tenants;
};

/* ---- buckets ---- */

static void bucket_set(struct bucket *b, uint32_t size, uint64_t now_ms)
{
    if (b->size != size) {
        b->left = b->size ? size - (b->size - b->left) : size;
        b->size = size;
    }
    double more = (double)(now_ms - b->at_ms) * size / MINUTE_MS;
    b->left = fmin(b->left + more, size);
    b->at_ms = now_ms;
}

/* How long until n are there. */
static uint64_t bucket_wait_ms(const struct bucket *b, double n)
{
    return b->left >= n ? 0 : (uint64_t)ceil((n - b->left) * MINUTE_MS / b->size);
}

static struct quota_state bucket_state(struct bucket *b, uint64_t now_ms)
{
    bucket_set(b, b->size, now_ms);
    return (struct quota_state){.limit = b->size,
                                .left = b->left > 0 ? (uint32_t)b->left : 0,
                                .full_ms = b->size ? bucket_wait_ms(b, b->size) : 0};
}

/* ---- tenants ---- */

static struct metric *counter(const struct tenant *t, const char *name, const char *key,
                              const char *value, const char *help)
{
    struct buf labels;
    buf_init(&labels, 512);
    metrics_label(&labels, "tenant", t->name);
    if (key)
        metrics_label(&labels, key, value);
    struct metric *m = metrics_counter(name, buf_str(&labels), help);
    buf_fini(&labels);
    return m;
}

static void tenant_init(struct tenant *t, const char *name)
{
    static const char *const limits[] = {"", "requests", "tokens", "concurrency"};
    struct buf labels;
    snprintf(t->name, sizeof t->name, "%s", name);
    t->requests = counter(t, "baton_tenant_requests_total", NULL, NULL,
                          "Requests that were let in, by tenant.");
    t->prompt = counter(t, "baton_tenant_tokens_total", "kind", "prompt",
                        "Tokens of prompts and answers, by tenant.");
    t->answer = counter(t, "baton_tenant_tokens_total", "kind", "answer",
                        "Tokens of prompts and answers, by tenant.");
    for (int i = QUOTA_REQUESTS; i <= QUOTA_CONCURRENCY; i++)
        t->refused[i] = counter(t, "baton_tenant_refused_total", "limit", limits[i],
                                "Requests that were refused for a limit of their key, by tenant.");
    buf_init(&labels, 512);
    metrics_label(&labels, "tenant", t->name);
    t->open = metrics_gauge("baton_tenant_requests_open", buf_str(&labels),
                            "Requests that are being answered, by tenant.");
    buf_fini(&labels);
}

static struct tenant *find_tenant(struct quotas *qs, const char *name)
{
    for (uint32_t i = 0; i < qs->n_tenants; i++) {
        if (strcmp(qs->tenants[i].name, name) == 0)
            return &qs->tenants[i];
    }
    struct tenant *t = &qs->tenants[qs->n_tenants];
    if (qs->n_tenants == TENANTS_MAX) {
        if (!t->requests)
            tenant_init(t, "other");
        return t;
    }
    tenant_init(t, name);
    qs->n_tenants++;
    return t;
}

/* ---- quotas ---- */

int quotas_create(struct quotas **out)
{
    struct quotas *qs = mem_array(1, sizeof *qs);
    if (!qs)
        return STATUS_NOMEM;
    *out = qs;
    return STATUS_OK;
}

static void drop(struct quotas *qs, struct quota *q)
{
    HASH_DELETE(hh, qs->by_name, q);
    free(q);
}

void quotas_destroy(struct quotas *qs)
{
    struct quota *q, *next;
    if (!qs)
        return;
    HASH_ITER (hh, qs->by_name, q, next)
        drop(qs, q);
    free(qs);
}

void quotas_sweep(struct quotas *qs, uint64_t now_ms)
{
    struct quota *q, *next;
    HASH_ITER (hh, qs->by_name, q, next) {
        bool full = bucket_state(&q->requests, now_ms).full_ms == 0 &&
                    bucket_state(&q->tokens, now_ms).full_ms == 0;
        if (full && q->open == 0)
            drop(qs, q);
    }
}

static struct quota *find(struct quotas *qs, const char *name)
{
    struct quota *q = NULL;
    HASH_FIND_STR(qs->by_name, name, q);
    if (q)
        return q;
    q = mem_array(1, sizeof *q);
    if (!q)
        return NULL;
    snprintf(q->name, sizeof q->name, "%s", name);
    HASH_ADD_STR(qs->by_name, name, q);
    if (!q->hh.tbl) {
        free(q);
        return NULL;
    }
    return q;
}

static struct quota_verdict refuse(struct quota *q, enum quota_limit limit, uint64_t retry_ms)
{
    metrics_add(q->tenant->refused[limit == QUOTA_TOO_LARGE ? QUOTA_TOKENS : limit], 1);
    return (struct quota_verdict){limit, retry_ms};
}

static struct quota_verdict enter(struct quota *q)
{
    if (q->limits.concurrency && q->open >= q->limits.concurrency)
        return refuse(q, QUOTA_CONCURRENCY, BUSY_MS);
    if (q->limits.requests_per_minute && q->requests.left < 1)
        return refuse(q, QUOTA_REQUESTS, bucket_wait_ms(&q->requests, 1));
    if (q->limits.tokens_per_minute && q->tokens.left < 1)
        return refuse(q, QUOTA_TOKENS, bucket_wait_ms(&q->tokens, 1));
    q->requests.left -= 1;
    q->open++;
    metrics_add(q->tenant->requests, 1);
    metrics_add(q->tenant->open, 1);
    return (struct quota_verdict){QUOTA_FREE, 0};
}

int quota_enter(struct quotas *qs, const char *name, const char *tenant,
                const struct api_limits *limits, uint64_t now_ms, struct quota **out,
                struct quota_verdict *v)
{
    struct quota *q = find(qs, name);
    if (!q)
        return STATUS_NOMEM;
    if (q->open == 0)
        q->tenant = find_tenant(qs, tenant);
    q->limits = *limits;
    bucket_set(&q->requests, limits->requests_per_minute, now_ms);
    bucket_set(&q->tokens, limits->tokens_per_minute, now_ms);
    *v = enter(q);
    *out = q;
    return STATUS_OK;
}

void quota_leave(struct quota *q)
{
    ASSERT(q->open > 0);
    q->open--;
    metrics_add(q->tenant->open, -1);
}

struct quota_verdict quota_prompt(struct quota *q, uint64_t n, uint64_t now_ms)
{
    bucket_set(&q->tokens, q->tokens.size, now_ms);
    if (q->tokens.size && n > q->tokens.size)
        return refuse(q, QUOTA_TOO_LARGE, 0);
    if (q->tokens.size && q->tokens.left < (double)n)
        return refuse(q, QUOTA_TOKENS, bucket_wait_ms(&q->tokens, (double)n));
    q->tokens.left -= (double)n;
    metrics_add(q->tenant->prompt, (double)n);
    return (struct quota_verdict){QUOTA_FREE, 0};
}

void quota_tokens(struct quota *q, uint32_t n, uint64_t now_ms)
{
    bucket_set(&q->tokens, q->tokens.size, now_ms);
    q->tokens.left -= n;
    metrics_add(q->tenant->answer, n);
}

const struct api_limits *quota_limits(const struct quota *q)
{
    return &q->limits;
}

struct quota_state quota_requests_left(struct quota *q, uint64_t now_ms)
{
    return bucket_state(&q->requests, now_ms);
}

struct quota_state quota_tokens_left(struct quota *q, uint64_t now_ms)
{
    return bucket_state(&q->tokens, now_ms);
}
