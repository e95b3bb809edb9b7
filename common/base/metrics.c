/* metrics: this process's counters, gauges and histograms.
 *
 * The registry is a list of families, each with a list of metrics, in the order of their creation;
 * nothing is ever removed, so a metric's address is good for the life of the process. One mutex
 * guards the lists (creating, rendering); the numbers are atomics, so updating takes no lock.
 *
 * Histogram buckets are stored apart and summed up while rendering, and _count is the sum of the
 * very buckets that were printed: a page never contradicts itself, even while others observe. */
#include "common/base/metrics.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/list.h"
#include "common/base/mem.h"

enum metric_type { METRIC_COUNTER, METRIC_GAUGE, METRIC_HISTOGRAM };
static const char *const type_names[] = {"counter", "gauge", "histogram"};

struct family {
    struct list link;
    struct list metrics;
    char *name, *help;
    enum metric_type type;
};

struct metric {
    struct list link;
    const struct family *family;
    char *labels;
    _Atomic double value; /* of a histogram: the sum of what was observed */
    size_t n_bounds;
    double *bounds;            /* [n_bounds] */
    _Atomic uint64_t *buckets; /* [n_bounds + 1], not cumulative; the last is +Inf */
};

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static struct list registry = {&registry, &registry};

static char identity[512];

void metrics_identify(const char *labels)
{
    ASSERT_MSG(strlen(labels) < sizeof identity, "labels of the process are too long");
    snprintf(identity, sizeof identity, "%s", labels);
}

const double metrics_ttft_bounds[] = {0.001, 0.005, 0.01, 0.02,  0.04,  0.06,  0.08, 0.1,
                                      0.25,  0.5,   0.75, 1.0,   2.5,   5.0,   7.5,  10.0,
                                      20.0,  40.0,  80.0, 160.0, 640.0, 2560.0};
const size_t metrics_ttft_bounds_n = sizeof metrics_ttft_bounds / sizeof metrics_ttft_bounds[0];
const double metrics_itl_bounds[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,  0.3,  0.4, 0.5,
                                     0.75, 1.0,   2.5,  5.0,   7.5, 10.0, 20.0, 40.0, 80.0};
const size_t metrics_itl_bounds_n = sizeof metrics_itl_bounds / sizeof metrics_itl_bounds[0];

static bool name_valid(const char *name)
{
    for (const char *p = name; *p; p++) {
        bool letter =
            (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || *p == '_' || *p == ':';
        if (!letter && !(*p >= '0' && *p <= '9' && p != name))
            return false;
    }
    return *name;
}

static void *must(void *p)
{
    ASSERT_MSG(p, "no memory for metrics");
    return p;
}

static struct family *family_get(const char *name, const char *help, enum metric_type type)
{
    LIST_FOR (it, &registry) {
        struct family *f = container_of(it, struct family, link);
        if (strcmp(f->name, name) == 0) {
            ASSERT_MSG(f->type == type && strcmp(f->help, help) == 0, "metric %s: two definitions",
                       name);
            return f;
        }
    }
    ASSERT_MSG(name_valid(name), "metric %s: bad name", name);
    struct family *f = must(mem_array(1, sizeof *f));
    f->name = must(mem_strdup(name));
    f->help = must(mem_strdup(help));
    f->type = type;
    list_init(&f->metrics);
    list_push_back(&registry, &f->link);
    return f;
}

static struct metric *metric_get(const char *name, const char *own, const char *help,
                                 enum metric_type type, const double *bounds, size_t n)
{
    struct metric *m;
    struct buf all;
    buf_init(&all, 0);
    buf_printf(&all, "%s%s%s", identity, *identity && *own ? "," : "", own);
    ASSERT_MSG(buf_ok(&all), "no memory for metrics");
    const char *labels = buf_str(&all);
    pthread_mutex_lock(&registry_lock);
    struct family *f = family_get(name, help, type);
    LIST_FOR (it, &f->metrics) {
        m = container_of(it, struct metric, link);
        if (strcmp(m->labels, labels) == 0)
            goto found;
    }
    m = must(mem_array(1, sizeof *m));
    m->family = f;
    m->labels = must(mem_strdup(labels));
    if (type == METRIC_HISTOGRAM) {
        for (size_t i = 1; i < n; i++)
            ASSERT_MSG(bounds[i - 1] < bounds[i], "metric %s: bounds must ascend", name);
        m->n_bounds = n;
        m->bounds = must(mem_dup(bounds, n * sizeof *bounds));
        m->buckets = must(mem_array(n + 1, sizeof *m->buckets));
    }
    list_push_back(&f->metrics, &m->link);
found:
    pthread_mutex_unlock(&registry_lock);
    buf_fini(&all);
    return m;
}

struct metric *metrics_counter(const char *name, const char *labels, const char *help)
{
    return metric_get(name, labels, help, METRIC_COUNTER, NULL, 0);
}

struct metric *metrics_gauge(const char *name, const char *labels, const char *help)
{
    return metric_get(name, labels, help, METRIC_GAUGE, NULL, 0);
}

struct metric *metrics_histogram(const char *name, const char *labels, const char *help,
                                 const double *bounds, size_t n)
{
    return metric_get(name, labels, help, METRIC_HISTOGRAM, bounds, n);
}

static void value_add(struct metric *m, double v)
{
    double old = atomic_load_explicit(&m->value, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&m->value, &old, old + v, memory_order_relaxed,
                                                  memory_order_relaxed))
        ;
}

void metrics_add(struct metric *m, double v)
{
    ASSERT_MSG(m->family->type == METRIC_GAUGE || (m->family->type == METRIC_COUNTER && v >= 0),
               "metric %s: cannot add %g", m->family->name, v);
    value_add(m, v);
}

void metrics_set(struct metric *m, double v)
{
    ASSERT_MSG(m->family->type == METRIC_GAUGE, "metric %s is no gauge", m->family->name);
    atomic_store_explicit(&m->value, v, memory_order_relaxed);
}

void metrics_observe(struct metric *m, double v)
{
    ASSERT_MSG(m->family->type == METRIC_HISTOGRAM, "metric %s is no histogram", m->family->name);
    if (isnan(v))
        return; /* one would make the sum NaN for ever */
    size_t i = 0;
    while (i < m->n_bounds && !(v <= m->bounds[i]))
        i++;
    atomic_fetch_add_explicit(&m->buckets[i], 1, memory_order_relaxed);
    value_add(m, v);
}

void metrics_buckets(const struct metric *m, uint64_t *out)
{
    ASSERT(m->family->type == METRIC_HISTOGRAM);
    for (size_t i = 0; i <= m->n_bounds; i++)
        out[i] = atomic_load_explicit(&m->buckets[i], memory_order_relaxed);
}

double metrics_value(const struct metric *m)
{
    return atomic_load_explicit(&m->value, memory_order_relaxed);
}

/* ---- the page ---- */

static void escape(struct buf *out, const char *text, bool quotes)
{
    for (; *text; text++) {
        if (*text == '\n')
            buf_puts(out, "\\n");
        else if (*text == '\\' || (*text == '"' && quotes))
            buf_printf(out, "\\%c", *text);
        else
            buf_putc(out, *text);
    }
}

void metrics_label(struct buf *out, const char *key, const char *value)
{
    buf_printf(out, "%s%s=\"", out->len ? "," : "", key);
    escape(out, value, true);
    buf_putc(out, '"');
}

/* The shortest decimal that reads back as v. */
static void append_number(struct buf *out, double v)
{
    char text[40];
    if (isnan(v)) {
        buf_puts(out, "NaN");
    } else if (isinf(v)) {
        buf_puts(out, v > 0 ? "+Inf" : "-Inf");
    } else {
        for (int digits = 15; digits <= 17; digits++) {
            snprintf(text, sizeof text, "%.*g", digits, v);
            if (strtod(text, NULL) == v)
                break;
        }
        buf_puts(out, text);
    }
}

/* name_suffix{labels,le="bound"}, each part where there is one, and a blank. */
static void append_series(struct buf *out, const struct metric *m, const char *suffix,
                          const double *le)
{
    buf_printf(out, "%s%s", m->family->name, suffix);
    if (*m->labels || le) {
        buf_printf(out, "{%s", m->labels);
        if (le) {
            buf_printf(out, "%sle=\"", *m->labels ? "," : "");
            append_number(out, *le);
            buf_putc(out, '"');
        }
        buf_putc(out, '}');
    }
    buf_putc(out, ' ');
}

static void render_histogram(struct buf *out, const struct metric *m)
{
    uint64_t count = 0;
    for (size_t i = 0; i <= m->n_bounds; i++) {
        double le = i < m->n_bounds ? m->bounds[i] : INFINITY;
        count += atomic_load_explicit(&m->buckets[i], memory_order_relaxed);
        append_series(out, m, "_bucket", &le);
        buf_printf(out, "%llu\n", (unsigned long long)count);
    }
    append_series(out, m, "_sum", NULL);
    append_number(out, metrics_value(m));
    buf_putc(out, '\n');
    append_series(out, m, "_count", NULL);
    buf_printf(out, "%llu\n", (unsigned long long)count);
}

void metrics_render(struct buf *out)
{
    pthread_mutex_lock(&registry_lock);
    LIST_FOR (it, &registry) {
        const struct family *f = container_of(it, struct family, link);
        buf_printf(out, "# HELP %s ", f->name);
        escape(out, f->help, false);
        buf_printf(out, "\n# TYPE %s %s\n", f->name, type_names[f->type]);
        LIST_FOR (at, &f->metrics) {
            const struct metric *m = container_of(at, struct metric, link);
            if (f->type == METRIC_HISTOGRAM) {
                render_histogram(out, m);
            } else {
                append_series(out, m, "", NULL);
                append_number(out, metrics_value(m));
                buf_putc(out, '\n');
            }
        }
    }
    pthread_mutex_unlock(&registry_lock);
}
