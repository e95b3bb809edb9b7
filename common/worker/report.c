/* report: the worker's metrics; see docs/OPERATIONS for their meaning. Gauges and what the data
 * link counts are refreshed when a page is made: for /metrics, and for the routers with the
 * heartbeats.
 */
#include "common/worker/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int report_open(struct worker *w)
{
    struct worker_metrics *m = &w->metrics;
    const char *l = ""; /* name and role are on every metric of a worker: name_worker */
    m->kv_blocks_free = metrics_gauge("baton_kv_blocks_free", l,
                                      "KV blocks that are free or held by the prefix cache alone.");
    m->kv_blocks = metrics_gauge("baton_kv_blocks", l, "KV blocks of the worker.");
    m->jobs = metrics_gauge("baton_worker_jobs", l, "Prompts queued, in work or parked.");
    m->sequences = metrics_gauge("baton_worker_sequences", l, "Sequences that generate.");
    m->waiting = metrics_gauge("baton_worker_reservations_waiting", l,
                               "Reservations that wait for KV blocks.");
    m->generated = metrics_counter("baton_drawn_tokens_total", l, "Tokens drawn by this worker.");
    m->kv_sent = metrics_counter("baton_kv_bytes_sent_total", l, "KV bytes sent to workers.");
    m->kv_received =
        metrics_counter("baton_kv_bytes_received_total", l, "KV bytes received from workers.");
    m->exposed = metrics_counter("baton_kv_exposed_seconds_total", l,
                                 "Time from the end of a prompt's compute to HANDOFF_OK.");
    m->transfer = metrics_counter("baton_kv_transfer_seconds_total", l,
                                  "Time from the first KV sent of a prompt to HANDOFF_OK.");
    m->handovers = metrics_counter("baton_handovers_total", l,
                                   "Prompts whose KV a decode worker has taken over.");
    m->early = metrics_counter("baton_kv_early_bytes_total", l,
                               "KV bytes sent before the last layer of their prompt was computed.");
    m->rows = metrics_counter("baton_rows_total", l,
                              "Rows computed of prompts and sequences, without padding.");
    m->padded_rows =
        metrics_counter("baton_padded_rows_total", l, "Rows computed to fill up a bucket.");
    m->prefill_tokens = metrics_counter("baton_prefill_tokens_total", l, "Prompt tokens computed.");
    m->hit_tokens = metrics_counter("baton_prefix_hit_tokens_total", l,
                                    "Prompt tokens found in the prefix cache.");
    m->checksum_errors = metrics_counter("baton_kv_checksum_errors_total", l,
                                         "KV messages with a block whose checksum was wrong.");
    m->preemptions = metrics_counter("baton_preemptions_total", l,
                                     "Sequences ended for want of KV blocks, to be resumed.");
    m->failures = metrics_counter("baton_transfer_failures_total", l,
                                  "Hand-overs that failed: refused, lost or timed out.");
    m->moved_bytes = metrics_counter("baton_moved_bytes_total", l,
                                     "KV bytes sent of running sequences that move.");
    m->move_pause =
        metrics_counter("baton_move_pause_seconds_total", l,
                        "Time that sequences stood still while they went to another worker.");
    m->replica_bytes = metrics_counter("baton_replica_bytes_total", l,
                                       "KV bytes sent to keep replicas of running sequences.");
    m->replica_blocks =
        metrics_gauge("baton_replica_blocks", l,
                      "KV blocks of sequences that run here of which another worker has a copy.");
    metrics_set(m->kv_blocks, kv_pool_size(w->pool));
    report_refresh(w);
    return STATUS_OK;
}

void report_close(struct worker *w)
{
    free(w->metrics.steps);
    free(w->metrics.buckets);
}

static struct metric *bucket_metric(struct worker *w, uint32_t bucket)
{
    struct worker_metrics *m = &w->metrics;
    for (uint32_t i = 0; i < m->n_steps; i++) {
        if (m->buckets[i] == bucket)
            return m->steps[i];
    }
    struct metric **steps = mem_resize(m->steps, m->n_steps + 1, sizeof *steps);
    if (steps)
        m->steps = steps;
    uint32_t *buckets = mem_resize(m->buckets, m->n_steps + 1, sizeof *buckets);
    if (buckets)
        m->buckets = buckets;
    if (!steps || !buckets)
        return NULL;
    struct buf b;
    char text[16];
    buf_init(&b, 1 << 12);
    snprintf(text, sizeof text, "%u", bucket);
    metrics_label(&b, "bucket", text);
    buckets[m->n_steps] = bucket;
    steps[m->n_steps] =
        metrics_counter("baton_steps_total", buf_str(&b), "Steps of the engine, by bucket.");
    buf_fini(&b);
    return steps[m->n_steps++];
}

void report_step(struct worker *w, const struct engine_step *s)
{
    uint32_t rows = 0;
    for (uint32_t i = 0; i < s->n_rows; i++)
        rows += s->rows[i].n_tokens;
    struct metric *m = bucket_metric(w, s->bucket);
    if (m)
        metrics_add(m, 1);
    metrics_add(w->metrics.rows, rows);
    if (s->bucket > rows)
        metrics_add(w->metrics.padded_rows, s->bucket - rows);
}

void report_refresh(struct worker *w)
{
    struct worker_metrics *m = &w->metrics;
    struct xfer_stats x = xfer_stats(w->xfer);
    metrics_set(m->kv_blocks_free, kv_pool_free(w->pool));
    metrics_set(m->jobs, w->n_jobs);
    metrics_set(m->sequences, w->tickets.n_active);
    metrics_set(m->waiting, w->tickets.n_waiting);
    metrics_set(m->replica_blocks, replica_blocks(w));
    metrics_add(m->kv_sent, (double)(x.kv_bytes_sent - m->kv_sent_seen));
    metrics_add(m->kv_received, (double)(x.kv_bytes_received - m->kv_received_seen));
    m->kv_sent_seen = x.kv_bytes_sent;
    m->kv_received_seen = x.kv_bytes_received;
}

/* METRICS to every router that has not got this page yet. */
void report_push(struct worker *w)
{
    struct buf page;
    report_refresh(w);
    buf_init(&page, (size_t)4 << 20);
    metrics_render(&page);
    uint64_t hash = hash64(page.data, page.len, 1) | 1;
    struct proto_msg m = {.type = PROTO_METRICS, .metrics = {.page = {page.data, page.len}}};
    LIST_FOR (n, &w->routers) {
        struct router *r = container_of(n, struct router, node);
        if (!buf_ok(&page) || !r->link || r->page == hash)
            continue;
        router_send(r, &m);
        r->page = hash;
    }
    buf_fini(&page);
}
