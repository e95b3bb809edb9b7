/* sample: from logits to a token. Pure: no state but what is passed in, so that a sequence that
 * moves to another worker draws the same tokens. */
#ifndef BATON_ENGINE_SAMPLE_H
#define BATON_ENGINE_SAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

#define SAMPLE_TOP_MAX 20

/* What a request changes about one id's logit; see sample_adjusted. */
struct sample_adjust {
    int32_t id;     /* below vocab; each id once in a list */
    uint32_t count; /* of the id in the answer so far */
    uint32_t seen;  /* 1: in the prompt or in the answer, for the repetition penalty */
    float bias;     /* finite */
};

struct sample_params {
    float temperature; /* 0: greedy; ties go to the lowest id */
    float top_p;       /* (0, 1]; 1: off */
    int32_t top_k;     /* <= 0: off */
    float min_p;       /* [0, 1]; 0: off */
    uint64_t seed;
    uint8_t n_top;     /* alternatives to report */
    bool want_logprob; /* report logprob (always filled when n_top > 0) */
    /* Ids that must not be drawn now: padded rows of the head (>= n_ids), and while ignore_eos or
     * min_tokens hold, the stop ids. */
    uint32_t n_ids;        /* ids the tokenizer knows; larger ones are masked (0: all are known) */
    const int32_t *banned; /* or NULL */
    uint32_t n_banned;
    const uint32_t
        *allowed; /* bit id % 32 of word id / 32 [of vocab bits]: may be drawn; or NULL */
    const struct sample_adjust *adjust; /* [n_adjust] or NULL */
    uint32_t n_adjust;
    float presence, frequency; /* taken from the logit of an id: once, and for each count */
    float repetition; /* 0 or 1: off; else positive logits are divided, others multiplied */
};

struct sample_result {
    int32_t token;
    float logprob; /* natural log of the softmax of the raw logits of the whole head; within
                      [-9999, 0]; 0 when not asked for */
    uint32_t rank; /* sample_score: 1 + ids with a larger logit; 0 else */
    uint8_t n_top;
    int32_t top_id[SAMPLE_TOP_MAX]; /* descending logprob, ties by id */
    float top_logprob[SAMPLE_TOP_MAX];
};

/* logits: [vocab], unchanged. position: of the token that is drawn, counted from the first token of
 * the sequence. Order of operations: masks, bias, penalties, temperature, top_k, min_p, top_p (as
 * vLLM does), then one Philox draw keyed (seed, choice, position). Log probabilities are those of
 * the raw logits. Linear in vocab but for the part that survives.
 * scratch: [vocab] floats of the caller. */
void sample_token(const float *logits, uint32_t vocab, const struct sample_params *p,
                  uint32_t choice, uint32_t position, float *scratch, struct sample_result *out);
/* The logit x of the entry's id with bias and penalties: x + bias; repetition; frequency and
 * presence. Infinite and undefined logits stay so. Each step is rounded to float. */
float sample_adjusted(float x, const struct sample_adjust *a, const struct sample_params *p);
/* Log probability of `token`, with n_top alternatives. */
void sample_score(const float *logits, uint32_t vocab, uint32_t n_ids, int32_t token, uint8_t n_top,
                  struct sample_result *out);

#endif
