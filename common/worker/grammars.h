/* grammars: the grammars that this worker's jobs ask for, compiled on another thread, each once,
 * and kept for later jobs while there is room. All functions are the loop thread's. */
#ifndef BATON_WORKER_GRAMMARS_H
#define BATON_WORKER_GRAMMARS_H

#include "common/net/loop.h"
#include "common/text/tokenmask.h"

struct grammars;
struct grammar_use; /* one grammar; counted by its users */

/* tok is asked for when the first grammar is needed, and must stay from then on; it may return
 * NULL. ready(arg) whenever a grammar has become ready, or has failed. */
struct grammars_options {
    const struct tokenizer *(*tokenizer)(void *arg);
    void (*ready)(void *arg);
    void *arg;
};
int grammars_create(struct loop *loop, const struct grammars_options *o,
                    struct grammars **out) WARN_UNUSED;
/* No uses are left. Returns when the tokenizer is not needed any more; what is being compiled is
 * let go when it is done, at the latest inside loop_destroy. */
void grammars_destroy(struct grammars *gs);

/* A use of this grammar; put it back once. NULL when memory is short. */
struct grammar_use *grammars_get(struct grammars *gs, enum grammar_kind kind, const char *source,
                                 size_t n, bool compact);
void grammars_put(struct grammar_use *u);

enum grammars_state { GRAMMARS_PENDING, GRAMMARS_READY, GRAMMARS_FAILED };
enum grammars_state grammars_state(const struct grammar_use *u);
/* Ready: its masks. */
struct tokenmask *grammars_mask(const struct grammar_use *u);
/* Failed: a sentence. */
const char *grammars_error(const struct grammar_use *u);

#endif
