/* guide: what a job asks of the next token beyond temperature and cuts: the budget of its thinking,
 * the grammar of its answer, and what it changes about logits (adjust.h). Where they contradict
 * each other, the budget wins, then the grammar: what would leave no token is not applied.
 *
 * Made from the job and its emitted tokens wherever a sequence is, and fed every token after them,
 * so it goes with a sequence to other workers without being sent. The grammar says what may come
 * from the answer's first token on, or, when the prompt ends inside thinking, from the token after
 * the one that ends it. */
#ifndef BATON_WORKER_GUIDE_H
#define BATON_WORKER_GUIDE_H

#include "common/worker/grammars.h"
#include "common/worker/spec.h"

struct guide;
/* *out is NULL when the job asks for nothing. j outlives the guide's last use, guide_destroy
 * excepted. STATUS_UNSUPPORTED without a tokenizer. */
int guide_create(const struct proto_job *j, const struct tokenizer *t, uint32_t vocab,
                 struct grammars *gs, struct guide **out) WARN_UNUSED;
/* The functions below take NULL, too. */
void guide_destroy(struct guide *g);
/* False: the grammar is still being compiled, so no row can be planned. */
bool guide_ready(struct guide *g);
/* Why there can be no row any more, or NULL. */
const char *guide_error(const struct guide *g);
/* Sets masks, bias and penalties in p for the next token but `ahead`; they point into g until the
 * row has ended. False: that is not known yet, so there can be no such row now. */
bool guide_row(struct guide *g, uint32_t ahead, struct sample_params *p);
int guide_feed(struct guide *g, int32_t id) WARN_UNUSED;
/* The answer is complete and nothing may follow: the sequence ends without an id that says so. */
bool guide_ended(const struct guide *g);

#endif
