/* tokenmask: which tokens a grammar allows next.
 *
 * A vocabulary is put into a trie of its tokens' bytes once. With it, a grammar's masks are made on
 * demand and kept: whole masks by the configuration of the automaton, and, for states that allow
 * thousands of tokens (inside a string), the part that does not depend on what surrounds them,
 * which all grammars of the vocabulary share (tokenmask_local.c).
 *
 * Special tokens are never allowed, but the caller's stop ids are where the text may end.
 *
 * A state is a function of (grammar, tokens so far) and nothing else: replaying the tokens gives
 * it again, on another worker too.
 *
 * Threads: one vocabulary, with all masks and states over it, belongs to one thread at a time. */
#ifndef BATON_TEXT_TOKENMASK_H
#define BATON_TEXT_TOKENMASK_H

#include "common/base/list.h"
#include "common/text/grammar.h"
#include "common/text/tokenizer.h"

struct tokenmask_vocab;
/* Reads the tokenizer; does not keep it. */
int tokenmask_vocab_create(const struct tokenizer *t, struct tokenmask_vocab **out) WARN_UNUSED;
void tokenmask_vocab_destroy(struct tokenmask_vocab *v);
size_t tokenmask_vocab_bytes(const struct tokenmask_vocab *v); /* the shared parts too */
/* What a token is as text; empty when no grammar ever allows it. A loan from the vocabulary. */
struct token_text tokenmask_vocab_token(const struct tokenmask_vocab *v, int32_t id);

struct tokenmask;
/* Takes a reference to the grammar; the vocabulary outlives the mask. */
int tokenmask_create(struct tokenmask_vocab *v, struct grammar *g,
                     struct tokenmask **out) WARN_UNUSED;
/* No state of it is left. */
void tokenmask_destroy(struct tokenmask *t);
size_t tokenmask_bytes(const struct tokenmask *t);

struct tokenmask_state {
    struct list node; /* the mask's states */
    struct tokenmask *mask;
    uint32_t config;
};
/* Before the first token. A state stays where it is in memory until tokenmask_state_fini. */
void tokenmask_state_init(struct tokenmask_state *s, struct tokenmask *t);
/* Another state at the same place. */
void tokenmask_state_copy(struct tokenmask_state *to, const struct tokenmask_state *from);
void tokenmask_state_fini(struct tokenmask_state *s);

/* The token was drawn. STATUS_INVALID, and the state as it was: it was not allowed. STATUS_LIMIT:
 * the grammar is so ambiguous that following it costs too much; STATUS_NOMEM. Stop ids that end the
 * text are not for this function. */
int tokenmask_advance(struct tokenmask_state *s, int32_t id) WARN_UNUSED;
/* The text may end here; nothing but the end may follow. */
bool tokenmask_done(const struct tokenmask_state *s);
bool tokenmask_ended(const struct tokenmask_state *s);
/* Bit id % 32 of word id / 32: may come next. n_words: of out; ids beyond it, and beyond the
 * vocabulary, are not allowed. stops: allowed when the text may end. Errors as above. */
int tokenmask_fill(struct tokenmask_state *s, const int32_t *stops, size_t n_stops, uint32_t *out,
                   size_t n_words) WARN_UNUSED;

#endif
