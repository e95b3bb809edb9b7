/* timeline: see timeline.h. A span is opened when its phase begins and closed by the next one; the
 * queue is cut in two when the first token tells how long the prefill took. */
#include "routerd/timeline.h"

#include <stdio.h>
#include <string.h>

static const char *const phase_names[] = {"queue", "prefill", "transfer", "decode"};

const char *timeline_phase_name(enum timeline_phase p)
{
    return phase_names[p];
}

static struct timeline_span *open_span(struct timeline *t)
{
    return &t->spans[t->n_spans - 1];
}

/* The open span ends, and the next phase begins. When there is no room for more, the last span goes
 * on to the end. */
static void begin(struct timeline *t, enum timeline_phase phase, uint64_t at_ms)
{
    struct timeline_span *last = t->n_spans ? open_span(t) : NULL;
    if (last)
        last->to_ms = at_ms > last->from_ms ? at_ms : last->from_ms;
    if (t->n_spans == TIMELINE_SPANS_MAX) {
        t->dropped++;
        return;
    }
    struct timeline_span *s = &t->spans[t->n_spans++];
    *s = (struct timeline_span){.phase = phase, .attempt = t->attempt};
    s->from_ms = s->to_ms = last ? last->to_ms : at_ms;
    const char *worker = phase == TIMELINE_QUEUE     ? ""
                         : phase == TIMELINE_PREFILL ? t->prefill
                                                     : t->decode;
    snprintf(s->worker, sizeof s->worker, "%s", worker);
}

static void event(struct timeline *t, const char *name, uint64_t now_ms, const char *why)
{
    if (t->n_events == TIMELINE_EVENTS_MAX) {
        t->dropped++;
        return;
    }
    struct timeline_event *e = &t->events[t->n_events++];
    *e = (struct timeline_event){.name = name, .attempt = t->attempt, .at_ms = now_ms};
    snprintf(e->why, sizeof e->why, "%s", why);
}

/* The prefill of the attempt has taken the last work_ms. */
static void end_queue(struct timeline *t, uint64_t now_ms, uint64_t work_ms)
{
    if (open_span(t)->phase == TIMELINE_QUEUE)
        begin(t, TIMELINE_PREFILL, now_ms > work_ms ? now_ms - work_ms : 0);
}

/* The attempt was given up. */
static void lose(struct timeline *t, uint64_t now_ms)
{
    if (t->placed_ms) /* nobody said how long it waited there */
        end_queue(t, now_ms, now_ms - t->placed_ms);
    open_span(t)->lost = true;
}

void timeline_begin(struct timeline *t, const struct gen *g, uint64_t now_ms)
{
    *t = (struct timeline){.state = GEN_WAITING, .attempt = g->attempt};
    begin(t, TIMELINE_QUEUE, now_ms);
}

bool timeline_due(const struct timeline *t, const struct gen *g)
{
    return !t->done && (t->state != g->state || t->attempt != g->attempt || t->moves != g->moves ||
                        t->moves_failed != g->moves_failed || t->settled != g->settled);
}

void timeline_step(struct timeline *t, const struct gen *g, uint64_t now_ms, const char *prefill,
                   const char *decode, const char *why)
{
    if (!timeline_due(t, g))
        return;
    bool other = t->attempt != g->attempt;
    if (g->state == GEN_WAITING && other)
        lose(t, now_ms);
    t->attempt = g->attempt;
    if (g->state != GEN_DONE) { /* which has forgotten them */
        snprintf(t->prefill, sizeof t->prefill, "%s", prefill);
        snprintf(t->decode, sizeof t->decode, "%s", decode);
    }
    if (g->state == GEN_WAITING && other) {
        event(t, "retry", now_ms, why);
        begin(t, TIMELINE_QUEUE, now_ms);
        t->placed_ms = 0;
    } else if (g->moves != t->moves) {
        event(t, "move", now_ms, "");
        begin(t, TIMELINE_DECODE, now_ms);
    } else if (g->moves_failed != t->moves_failed) {
        event(t, "move_failed", now_ms, why);
    } else if (g->state == GEN_PARKED && t->state != GEN_PARKED) {
        event(t, "parked", now_ms, why);
    } else if (other) {
        event(t, "redirect", now_ms, "");
    }
    if (g->state == GEN_PREFILL && t->state == GEN_WAITING)
        t->placed_ms = now_ms;
    if (g->settled && open_span(t)->phase == TIMELINE_QUEUE) {
        uint64_t waited = now_ms - t->placed_ms;
        open_span(t)->worker_queue_ms = g->work_queue_ms;
        end_queue(t, now_ms, g->work_ms < waited && g->work_known ? g->work_ms : waited);
    }
    bool computed = g->settled && open_span(t)->phase == TIMELINE_PREFILL;
    if (computed && g->state != GEN_DONE)
        begin(t, TIMELINE_TRANSFER, now_ms);
    if (g->state == GEN_DECODE && open_span(t)->phase == TIMELINE_TRANSFER)
        begin(t, TIMELINE_DECODE, now_ms);
    if (g->state == GEN_DONE) {
        if (!g->settled && t->placed_ms)
            end_queue(t, now_ms, now_ms - t->placed_ms);
        open_span(t)->to_ms = now_ms;
        t->done = true;
    }
    t->state = g->state;
    t->moves = g->moves;
    t->moves_failed = g->moves_failed;
    t->settled = g->settled;
}
