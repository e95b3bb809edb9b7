/* sampling: how a request wants tokens to be drawn: temperature and cuts, penalties, bias, and the
 * tokens and words that may, must not, or must not yet come. */
#ifndef BATON_ROUTERD_SAMPLING_H
#define BATON_ROUTERD_SAMPLING_H

#include "common/proto/proto.h"
#include "common/text/tokenizer.h"
#include "routerd/fields.h"

#define SAMPLING_BIAS_MAX       4096
#define SAMPLING_STOPS_MAX      256
#define SAMPLING_WORDS_MAX      256
#define SAMPLING_WORD_BYTES_MAX 1024

struct sampling {
    float temperature, top_p, min_p;
    int32_t top_k;
    uint64_t seed;
    float presence, frequency, repetition;
    uint32_t min_tokens;
    bool ignore_eos;
    struct token_list stops; /* stop_token_ids */
    struct token_list bias_ids, allowed, bad_words, bad_word_sizes;
    float *bias; /* [bias_ids.n] */
};
/* vocab: ids that requests may name. Without a seed one is drawn. */
int sampling_parse(const json_t *request, const struct tokenizer *t, uint32_t vocab,
                   struct sampling *out, struct api_error *e) WARN_UNUSED;
void sampling_fini(struct sampling *s);
/* The ids that end the answer: the vocabulary's, unless ignore_eos is set, and the request's own.
 */
int sampling_stop_ids(const struct sampling *s, const struct tokenizer *t,
                      struct token_list *out) WARN_UNUSED;
/* The job's part; its lists are loans. */
void sampling_job(const struct sampling *s, const struct tokenizer *t, struct proto_job *job);

#endif
