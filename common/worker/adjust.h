/* adjust: what a job changes about the logits of its tokens, one by one: logit_bias, penalties,
 * minimum length, tokens and words that are allowed or banned.
 *
 * Pure: made from the job and its emitted tokens and fed every token after them, so that it is the
 * same wherever the sequence is. */
#ifndef BATON_WORKER_ADJUST_H
#define BATON_WORKER_ADJUST_H

#include <stdbool.h>
#include <stdint.h>

#include "common/engine/sample.h"
#include "common/proto/proto.h"

struct adjust;
/* Does the job ask for any of it? */
bool adjust_wanted(const struct proto_job *j);
/* As it stands after the emitted tokens. j is kept. */
int adjust_create(const struct proto_job *j, uint32_t vocab, struct adjust **out) WARN_UNUSED;
void adjust_destroy(struct adjust *a);
/* Whether rows depend on which tokens came, not only on how many. */
bool adjust_follows(const struct adjust *a);
/* The next token was id. */
int adjust_feed(struct adjust *a, int32_t id) WARN_UNUSED;
/* Fills penalties, adjust, banned and, unless it is set already, allowed for the next token but
 * `ahead`; with adjust_follows that must be 0. What p points to stays until the next feed. */
void adjust_row(struct adjust *a, uint32_t ahead, struct sample_params *p);
/* A mask of n_words, made by somebody else for the next token, without what the job does not allow;
 * as it was when nothing would be left. p->banned then holds nothing that is in the mask. */
void adjust_mask(struct adjust *a, uint32_t *mask, uint32_t n_words, struct sample_params *p);

#endif
