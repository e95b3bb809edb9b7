/* batch: which rows go into the next step. Pure policy: a function from state to decision, without
 * a clock, I/O or memory of its own; prefill and decode workers differ in the numbers they pass.
 *
 * Running sequences (one token each) come first. When there are more than fit, they take turns.
 * Prompts share prompt_tokens per step:
 *   - the oldest prompt is always given at least a quarter of it, so nothing starves: it finishes,
 *     and the next one becomes the oldest;
 *   - the rest goes by priority (higher first), then shortest remaining first, then arrival. A
 *     100-token prompt behind a 6,000-token one waits for the chunk that is being computed and no
 *     longer;
 *   - a step that finishes a prompt is not filled up with chunks of prompts that it does not
 *     finish, beyond the oldest one's quarter: its first token need not wait for them.
 * Chunks end at multiples of the block size, the last one of a prompt at its end. */
#ifndef BATON_ENGINE_BATCH_H
#define BATON_ENGINE_BATCH_H

#include <stdint.h>

#include "common/base/status.h"

/* A prompt that is being computed. */
struct batch_prompt {
    uint64_t arrival; /* order of arrival: unique, ascending */
    uint32_t length;  /* tokens that must be in the KV cache in the end */
    uint32_t done;    /* of which are there (computed or cached); < length */
    int32_t priority; /* higher goes first */
};

/* A sequence that generates: one row, one token a step. */
struct batch_running {
    uint64_t arrival;
    uint64_t turn; /* place in the rotation: the worker counts every row it runs and, in the order
                      of plan.running, writes the count here. 0: no row yet. */
};

struct batch_state {
    const struct batch_prompt *prompts;
    uint32_t n_prompts;
    const struct batch_running *running;
    uint32_t n_running;
    uint32_t block_size;
    uint32_t max_rows;      /* sequences in a step (engine_options.max_batch), at least 1 */
    uint32_t max_tokens;    /* tokens in a step (engine_info.max_tokens); at least max_rows plus
                               a block */
    uint32_t prompt_tokens; /* prompt tokens in a step: prefill_chunk on a prefill worker, on a
                               decode worker what one step may take longer; 0: no prompts now.
                               Less than a block counts as a block. */
    uint32_t max_prompts;   /* prompts in a step; 0: as many as fit. With 1 they go strictly in
                               order of arrival: the oldest's share is then all there is. */
};

/* The next n_tokens tokens of prompts[index]: from done on. */
struct batch_share {
    uint32_t index, n_tokens;
};

struct batch_plan {
    struct batch_share *prompts; /* in the order of the policy */
    uint32_t n_prompts;
    uint32_t *running; /* indices into running: by turn when not all fit, else ascending */
    uint32_t n_running;
    uint32_t n_tokens; /* of all rows together */
    uint32_t cap;      /* rows the arrays hold */
};

/* Arrays for steps of up to max_rows rows; once, at start. */
int batch_plan_init(struct batch_plan *p, uint32_t max_rows) WARN_UNUSED;
void batch_plan_fini(struct batch_plan *p);
/* Decides the next step; s->max_rows must not exceed what the plan was made for. An empty plan
 * (n_tokens 0) means that there is nothing to do. While prompts wait, one row of two or more is
 * left for them even when running sequences would fill the step. */
void batch_plan(const struct batch_state *s, struct batch_plan *p);

#endif
