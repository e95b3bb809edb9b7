/* hidden: hidden states of a step's rows, for embeddings. */
#ifndef BATON_ENGINE_HIDDEN_H
#define BATON_ENGINE_HIDDEN_H

#include "common/engine/engine_impl.h"

/* After a replay on the host: adds the final hidden states that the step's rows ask for (see
 * struct engine_row). */
void hidden_add(const struct engine *e, const struct engine_step *s);

#endif
