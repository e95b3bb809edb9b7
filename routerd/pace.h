/* pace: how fast answers come, as clients see it: time to the first token and its phases, time
 * between tokens, and how many answers met both targets (goodput). */
#ifndef BATON_ROUTERD_PACE_H
#define BATON_ROUTERD_PACE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/buf.h"

struct pace_targets {
    uint64_t ttft_ms, tpot_ms;
};

/* Creates the metrics; before anything else. */
void pace_init(const struct pace_targets *targets);
/* For answers that end from now on. */
void pace_set_targets(const struct pace_targets *targets);

/* Times of one sequence; zeros at its start. */
struct pace {
    uint64_t first_ms, last_ms; /* when those tokens came; 0: none */
    uint32_t n;
};
/* A token came. started_ms: when its request did; queue_ms and prefill_ms: what the prefill worker
 * said of its waiting and computing. */
void pace_token(struct pace *p, uint64_t started_ms, uint64_t now_ms, uint32_t queue_ms,
                uint32_t prefill_ms);
/* The sequence came to its proper end. */
void pace_end(const struct pace *p, uint64_t started_ms);

/* Appends the distributions so far: "ttft":{"bounds":[…],"counts":[…]},"itl":…,"tokens":N,"met":N,
 * "missed":N. */
void pace_json(struct buf *out);

/* Whether these times meet the targets; for the metrics and for tests. */
bool pace_meets(const struct pace *p, uint64_t started_ms, const struct pace_targets *t);

#endif
