/* budget: a limit for the tokens that a model thinks.
 *
 * When so many tokens of thinking have come and it has not ended, the tokens of the closing tag are
 * forced. All of it is a function of (spec, ids so far): any worker that gets the ids of a sequence
 * forces the same tokens at the same places. A token counts when the text stood inside a block of
 * thinking before it came, so the closing tag counts and the opening one does not. */
#ifndef BATON_TEXT_BUDGET_H
#define BATON_TEXT_BUDGET_H

#include "common/text/reasoning.h"

struct budget_spec {
    uint32_t limit;             /* tokens of thinking */
    enum reasoning_start start; /* where the prompt ends */
    /* As in struct reasoning_format; at most MARKS_LEN bytes each, close and force not empty. Loans
     * for the call. open and breaks may be NULL. */
    const char *open, *close, *breaks;
    const char *force;
};

struct budget;
int budget_create(const struct tokenizer *t, const struct budget_spec *spec,
                  struct budget **out) WARN_UNUSED;
void budget_destroy(struct budget *b);
/* The next token of the sequence is id. */
int budget_feed(struct budget *b, int32_t id) WARN_UNUSED;
#define BUDGET_ANY     (-1)
#define BUDGET_UNKNOWN (-2)
/* The id that must come as the next token but `ahead`, or BUDGET_ANY; BUDGET_UNKNOWN when that
 * depends on the tokens in between. Never unknown for ahead 0. */
int32_t budget_next(const struct budget *b, uint32_t ahead);
/* Whether the next token is thinking, or ends it. */
bool budget_thinking(const struct budget *b);
/* Tokens of thinking so far. */
uint32_t budget_used(const struct budget *b);

#endif
