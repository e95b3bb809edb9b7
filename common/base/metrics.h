/* metrics: counters, gauges and histograms in Prometheus' text exposition (format 0.0.4).
 *
 * Metrics are created once at start-up and live as long as the process; updating one is an atomic
 * add, from any thread. A metric may carry labels, fixed when it is created; metrics that share a
 * name form a family and must agree in type and help. */
#ifndef BATON_BASE_METRICS_H
#define BATON_BASE_METRICS_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/status.h"

struct metric;

/* Labels that say which process this is, added in front of those of every metric that is created
 * from now on; a page may be merged with those of others. "" for none. */
void metrics_identify(const char *labels);
/* labels: "code=\"200\"" or "" (already escaped by metrics_label). The call returns the existing
 * metric when name and labels are known. Aborts when memory is short at start-up. */
struct metric *metrics_counter(const char *name, const char *labels, const char *help);
struct metric *metrics_gauge(const char *name, const char *labels, const char *help);
/* bounds: n upper bounds, ascending; +Inf is added. */
struct metric *metrics_histogram(const char *name, const char *labels, const char *help,
                                 const double *bounds, size_t n);
void metrics_add(struct metric *m, double v); /* counters (v >= 0) and gauges */
void metrics_set(struct metric *m, double v); /* gauges */
void metrics_observe(struct metric *m, double v);
/* Of a histogram: how many observations fell into each bucket so far, +Inf last; out[n + 1]. */
void metrics_buckets(const struct metric *m, uint64_t *out);
double metrics_value(const struct metric *m); /* of a counter or gauge */

/* Buckets in seconds for TTFT and for ITL, as vLLM names them. */
extern const double metrics_ttft_bounds[];
extern const size_t metrics_ttft_bounds_n;
extern const double metrics_itl_bounds[];
extern const size_t metrics_itl_bounds_n;

/* Appends key="value" with the value escaped; a comma first when out is not empty. */
void metrics_label(struct buf *out, const char *key, const char *value);
/* Appends this process's page. */
void metrics_render(struct buf *out);
/* Appends one page made of several, families merged (a family's HELP and TYPE once, all its samples
 * together). Lines that are no valid exposition are dropped: pages may come from peers. */
void metrics_merge(struct buf *out, const struct buf *pages, size_t n);

#endif
