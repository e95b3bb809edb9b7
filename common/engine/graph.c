/* graph: which steps are prepared, and their replays.
 *
 * A bucket is a number of rows for which the pass was captured. Powers of two would pad up to twice
 * the work, so decode buckets are denser where the number of running sequences changes by one.
 *
 * The head is also captured by itself: a prompt that is scored (echo with logprobs) needs the
 * logits of all its rows, far more than the logits buffer holds. The pass computes the first group
 * of rows, then the head runs again over further groups: the residual stream of the last layer is
 * still there. */
#include "common/engine/graph.h"

#include <stdlib.h>

#include "common/base/mem.h"

static uint32_t decode_next(uint32_t rows)
{
    if (rows < 8)
        return 2 * rows;
    return rows + (rows < 64 ? 8 : rows < 256 ? 16 : 32);
}

static void bucket_add(struct graph_buckets *b, uint32_t rows)
{
    uint32_t at = b->n;
    for (; at > 0 && b->rows[at - 1] >= rows; at--)
        if (b->rows[at - 1] == rows)
            return;
    for (uint32_t i = b->n; i > at; i--)
        b->rows[i] = b->rows[i - 1];
    b->rows[at] = rows;
    b->n++;
}

int graph_buckets_init(struct graph_buckets *b, uint32_t max_batch, uint32_t chunk)
{
    uint32_t most = chunk + max_batch; /* no bucket is larger than any step */
    uint32_t n = 2;
    for (uint32_t r = 1; r < max_batch; r = decode_next(r))
        n++;
    *b = (struct graph_buckets){.rows = mem_array(n + 34, sizeof *b->rows)};
    if (b->rows == NULL)
        return STATUS_NOMEM;
    for (uint32_t r = 1;; r = decode_next(r)) {
        bucket_add(b, r < most ? r : most);
        if (r >= max_batch)
            break;
    }
    for (uint64_t r = 64; r < chunk; r *= 2)
        bucket_add(b, (uint32_t)r);
    bucket_add(b, chunk);
    bucket_add(b, most);
    return 0;
}

void graph_buckets_fini(struct graph_buckets *b)
{
    free(b->rows);
    *b = (struct graph_buckets){0};
}

uint32_t graph_buckets_find(const struct graph_buckets *b, uint32_t n)
{
    uint32_t lo = 0, hi = b->n;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (b->rows[mid] < n)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

int graphs_capture(struct graphs *g, struct backend *b, const struct forward *f,
                   const struct graph_buckets *buckets, const struct kv_view *kv)
{
    *g = (struct graphs){.backend = b, .passes = mem_array(buckets->n, sizeof(struct replay *))};
    if (g->passes == NULL)
        return STATUS_NOMEM;
    int rc = 0;
    g->n = buckets->n;
    for (uint32_t i = g->n;
         rc == 0 && i-- > 0;) /* the largest first: smaller ones fit in its room */
        rc = backend_capture(b, f->ops, f->n_ops, buckets->rows[i], kv, &g->passes[i]);
    if (rc == 0)
        rc = backend_capture(b, &f->ops[f->n_ops - 1], 1, buckets->rows[buckets->n - 1], kv,
                             &g->head);
    if (rc != 0)
        graphs_release(g);
    return rc;
}

void graphs_release(struct graphs *g)
{
    for (uint32_t i = 0; i < g->n; i++)
        backend_replay_destroy(g->backend, g->passes[i]);
    if (g->head != NULL)
        backend_replay_destroy(g->backend, g->head);
    free(g->passes);
    *g = (struct graphs){0};
}
