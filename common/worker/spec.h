/* spec: a job as the workers keep it: a deep copy of what came in PREFILL or HANDOFF, its check
 * against the model, and the pure functions of it that both roles share. */
#ifndef BATON_WORKER_SPEC_H
#define BATON_WORKER_SPEC_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/engine/sample.h"
#include "common/proto/proto.h"
#include "common/text/budget.h"

/* R1: seq = (request, attempt, choice). Zero it before filling: it is compared as bytes. */
struct seq_key {
    uint64_t router, counter;
    uint32_t attempt, choice;
};
_Static_assert(sizeof(struct seq_key) == 24, "no padding: compared as bytes");

static inline struct seq_key seq_key_of(const struct proto_request *r, uint32_t choice)
{
    return (struct seq_key){
        .router = r->router, .counter = r->counter, .attempt = r->attempt, .choice = choice};
}
struct proto_request seq_request(const struct seq_key *k);
/* "5f3c…#17.0.0" (router, counter, attempt, choice) for the log, in a static ring of buffers. */
const char *seq_text(const struct seq_key *k);
static inline struct log_about seq_about(const struct seq_key *k)
{
    return (struct log_about){seq_text(k), NULL};
}

struct spec_limits {
    uint32_t vocab, context;
};
/* PROTO_REASON_NONE, or PROTO_REASON_INVALID with a line in why. */
enum proto_reason spec_check(const struct proto_job *j, const struct spec_limits *l, char *why,
                             size_t n);

/* Owns its arena; job points into it. */
struct spec {
    struct arena arena;
    struct proto_job job;
};
/* For log lines about a sequence; s may still be zero. */
static inline struct log_about spec_about(const struct spec *s, const struct seq_key *k)
{
    return (struct log_about){seq_text(k), (const char *)s->job.trace.p};
}
int spec_copy(struct spec *s, const struct proto_job *j) WARN_UNUSED;
void spec_fini(struct spec *s);

/* What the sampler needs; banned is a loan from the job. */
struct sample_params spec_sampling(const struct proto_job *j, uint32_t vocab);
/* Does the sequence end with this token? emitted and total (prompt and answer) include it. */
enum proto_finish spec_finish(const struct proto_job *j, int32_t token, uint32_t emitted,
                              uint32_t total, uint32_t context);
/* The budget of thinking of a job that has one (think_limit): before its first token, and after its
 * emitted ones. */
int spec_budget_begin(const struct proto_job *j, const struct tokenizer *t,
                      struct budget **out) WARN_UNUSED;
int spec_budget(const struct proto_job *j, const struct tokenizer *t,
                struct budget **out) WARN_UNUSED;
/* Fills token, logprob and top from a draw. top has room for SAMPLE_TOP_MAX entries. */
void spec_token(const struct proto_job *j, const struct sample_result *r, struct proto_top *top,
                struct proto_token *out);

static inline uint32_t blocks_for(uint32_t n_tokens, uint32_t block_size)
{
    return n_tokens / block_size + (n_tokens % block_size != 0);
}

/* One term of the digest in HANDOFF (R5): the digest is the sum modulo 2^64 over every (layer,
 * index of the block within the sequence) that was sent, sum being the block's checksum. The order
 * of arrival does not matter. */
static inline uint64_t digest_term(uint32_t layer, uint32_t index, uint64_t sum)
{
    return hash_mix64(sum ^ hash_mix64((uint64_t)layer << 32 | index));
}

#endif
