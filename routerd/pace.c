/* pace: see pace.h. The phases of a first token are route (the router's own waiting for a pair of
 * workers, and the ways), queue and prefill (as the prefill worker reports them); handover is what
 * comes behind it, until the second token: the exposed transfer and the first decode step. */
#include "routerd/pace.h"

#include <inttypes.h>

#include "common/base/assert.h"
#include "common/base/metrics.h"

enum phase { PHASE_ROUTE, PHASE_QUEUE, PHASE_PREFILL, PHASE_HANDOVER, PHASE_N };

static struct {
    struct pace_targets targets;
    struct metric *ttft, *itl, *phases[PHASE_N], *met, *missed;
    uint64_t tokens;
} pm;

void pace_init(const struct pace_targets *targets)
{
    static const char *const labels[PHASE_N] = {"phase=\"route\"", "phase=\"queue\"",
                                                "phase=\"prefill\"", "phase=\"handover\""};
    pm.targets = *targets;
    pm.ttft = metrics_histogram("baton_ttft_seconds", "", "Time from a request to its first token.",
                                metrics_ttft_bounds, metrics_ttft_bounds_n);
    pm.itl = metrics_histogram("baton_itl_seconds", "", "Time between two tokens of an answer.",
                               metrics_itl_bounds, metrics_itl_bounds_n);
    for (int i = 0; i < PHASE_N; i++)
        pm.phases[i] = metrics_histogram(
            "baton_phase_seconds", labels[i],
            "Where the time goes until the second token: route, queue and prefill make the first "
            "one, handover is between the two.",
            metrics_ttft_bounds, metrics_ttft_bounds_n);
    pm.met = metrics_counter("baton_goodput_answers_total", "targets=\"met\"",
                             "Answers, by whether they met ttft_target_ms and tpot_target_ms.");
    pm.missed = metrics_counter("baton_goodput_answers_total", "targets=\"missed\"",
                                "Answers, by whether they met ttft_target_ms and tpot_target_ms.");
}

void pace_set_targets(const struct pace_targets *targets)
{
    pm.targets = *targets;
}

static void observe_ms(struct metric *m, uint64_t ms)
{
    metrics_observe(m, (double)ms / 1e3);
}

void pace_token(struct pace *p, uint64_t started_ms, uint64_t now_ms, uint32_t queue_ms,
                uint32_t prefill_ms)
{
    if (p->n == 0) {
        uint64_t ttft = now_ms - started_ms, worker = (uint64_t)queue_ms + prefill_ms;
        observe_ms(pm.ttft, ttft);
        observe_ms(pm.phases[PHASE_ROUTE], ttft > worker ? ttft - worker : 0);
        observe_ms(pm.phases[PHASE_QUEUE], queue_ms);
        observe_ms(pm.phases[PHASE_PREFILL], prefill_ms);
        p->first_ms = now_ms;
    } else {
        observe_ms(pm.itl, now_ms - p->last_ms);
        if (p->n == 1)
            observe_ms(pm.phases[PHASE_HANDOVER], now_ms - p->last_ms);
    }
    p->last_ms = now_ms;
    p->n++;
    pm.tokens++;
}

bool pace_meets(const struct pace *p, uint64_t started_ms, const struct pace_targets *t)
{
    if (p->n == 0)
        return false;
    uint64_t spread = p->last_ms - p->first_ms;
    return p->first_ms - started_ms <= t->ttft_ms && spread <= t->tpot_ms * (p->n - 1);
}

void pace_end(const struct pace *p, uint64_t started_ms)
{
    if (p->n)
        metrics_add(pace_meets(p, started_ms, &pm.targets) ? pm.met : pm.missed, 1);
}

static void histogram_json(struct buf *b, const char *name, const struct metric *m,
                           const double *bounds, size_t n)
{
    uint64_t counts[64];
    ASSERT(n < sizeof counts / sizeof *counts);
    metrics_buckets(m, counts);
    buf_printf(b, "\"%s\":{\"bounds\":[", name);
    for (size_t i = 0; i < n; i++)
        buf_printf(b, "%s%g", i ? "," : "", bounds[i]);
    buf_puts(b, "],\"counts\":[");
    for (size_t i = 0; i <= n; i++)
        buf_printf(b, "%s%" PRIu64, i ? "," : "", counts[i]);
    buf_puts(b, "]}");
}

void pace_json(struct buf *out)
{
    histogram_json(out, "ttft", pm.ttft, metrics_ttft_bounds, metrics_ttft_bounds_n);
    buf_putc(out, ',');
    histogram_json(out, "itl", pm.itl, metrics_itl_bounds, metrics_itl_bounds_n);
    buf_printf(out, ",\"tokens\":%" PRIu64 ",\"met\":%.0f,\"missed\":%.0f", pm.tokens,
               metrics_value(pm.met), metrics_value(pm.missed));
}
