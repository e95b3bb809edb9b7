/* timeline: when a sequence was in which phase, on which workers, and what came between: the
 * material of its spans (otlp.h). Pure: it looks at a gen after each of its events.
 *
 *   queue ──> prefill ──> transfer ──> decode          one after another without gaps
 *     ^__________________________________│  another attempt begins in the queue again
 *
 * queue: until a prefill worker computes, whether the request waits in the router or there (which
 * is known with the attempt's first token; if that never comes, the queue ends where the attempt
 * was sent). transfer: from the first token to the first one of the decode worker, so what the
 * hand-over adds to what was sent during the prefill, and a first decode step. */
#ifndef BATON_ROUTERD_TIMELINE_H
#define BATON_ROUTERD_TIMELINE_H

#include "routerd/gen.h"

enum timeline_phase { TIMELINE_QUEUE, TIMELINE_PREFILL, TIMELINE_TRANSFER, TIMELINE_DECODE };
const char *timeline_phase_name(enum timeline_phase p);

#define TIMELINE_SPANS_MAX  32
#define TIMELINE_EVENTS_MAX 16
#define TIMELINE_NAME_MAX   64

struct timeline_span {
    enum timeline_phase phase;
    uint32_t attempt;
    uint64_t from_ms, to_ms;
    char worker[TIMELINE_NAME_MAX]; /* who computes, or is the target; "" in the queue */
    uint32_t worker_queue_ms;       /* of a queue: what of it was at the prefill worker */
    bool lost;                      /* the attempt ended here, and another one followed */
};

struct timeline_event {
    const char *name; /* retry, parked, redirect, move, move_failed */
    uint32_t attempt; /* that begins with it */
    uint64_t at_ms;
    char why[128];
};

struct timeline {
    struct timeline_span spans[TIMELINE_SPANS_MAX]; /* the last one is open until `done` */
    struct timeline_event events[TIMELINE_EVENTS_MAX];
    uint32_t n_spans, n_events, dropped; /* dropped: events and spans that found no room */
    bool done;
    /* The gen as it was last seen. */
    enum gen_state state;
    uint32_t attempt, moves, moves_failed;
    bool settled;
    uint64_t placed_ms;
    char prefill[TIMELINE_NAME_MAX], decode[TIMELINE_NAME_MAX];
};

void timeline_begin(struct timeline *t, const struct gen *g, uint64_t now_ms);
/* Cheap: whether timeline_step has anything to do. */
bool timeline_due(const struct timeline *t, const struct gen *g);
/* prefill, decode: names of the workers of the present attempt, "" for none. why: of a failure. */
void timeline_step(struct timeline *t, const struct gen *g, uint64_t now_ms, const char *prefill,
                   const char *decode, const char *why);

#endif
