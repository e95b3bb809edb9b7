/* receiver: KV that comes in (R6). The ticket alone decides: its own blocks are where bytes land,
 * and only while it waits for them. Checksums are verified when the receive has ended. */
#include "common/worker/internal.h"

#include <string.h>

struct receive {
    struct ticket *k;
    uint64_t source;
    size_t bytes;
    uint32_t layer, first, n;
    uint64_t sums[XFER_EXTENT_BLOCKS_MAX];
    struct kv_buffer *hold;
};

bool receiver_begin(void *arg, const struct xfer_kv *h, const uint64_t *sums, size_t bytes,
                    bool copied, struct xfer_iov *iov, size_t *n_iov, void **receive)
{
    struct worker *w = arg;
    if (!w->ready || h->n_blocks > XFER_EXTENT_BLOCKS_MAX ||
        bytes != h->n_blocks * w->info.kv_block_bytes)
        return false;
    struct ticket *k = ticket_by_id(&w->tickets, h->ticket);
    if (!k || k->source != h->instance)
        return false;
    struct receive *r = malloc(sizeof *r);
    if (!r || !ticket_kv_begin(&w->tickets, k, worker_now(w), h->layer, h->first, h->n_blocks)) {
        free(r);
        return false;
    }
    *r = (struct receive){.k = k,
                          .source = k->source,
                          .bytes = bytes,
                          .layer = h->layer,
                          .first = h->first,
                          .n = h->n_blocks};
    memcpy(r->sums, sums, h->n_blocks * sizeof *sums);
    if (!kvmem_receive(w, h->layer, k->blocks + h->first, h->n_blocks, copied, iov, n_iov,
                       &r->hold)) {
        ticket_kv_end(&w->tickets, k, worker_now(w), h->layer, h->first, h->n_blocks, sums, NULL);
        free(r);
        return false;
    }
    *receive = r;
    struct peer *p = peer_find(w, k->source);
    if (p)
        peer_busy(p);
    return true;
}

void receiver_end(void *arg, void *receive, int status)
{
    struct worker *w = arg;
    struct receive *r = receive;
    struct ticket *k = r->k;
    bool right[XFER_EXTENT_BLOCKS_MAX], all = true;
    bool filling = k->state == TICKET_FILLING && !w->stopping;
    struct peer *p = peer_find(w, r->source);
    fault("kv.received");
    if (p)
        peer_idle(p);
    const uint32_t *ids = k->blocks + r->first;
    bool arrived = status == STATUS_OK && filling;
    if (!arrived)
        kvmem_dropped(w, r->hold);
    else if (kvmem_received(w, r->layer, ids, r->n, r->hold, r->sums, right) != STATUS_OK)
        arrived = false;
    if (arrived) {
        for (uint32_t i = 0; i < r->n; i++)
            all &= right[i];
        if (!all) {
            metrics_add(w->metrics.checksum_errors, 1);
            log_warn_about(ticket_about(k), "ticket %s: layer %u, blocks %u to %u: checksum wrong",
                           seq_text(&k->key), r->layer, r->first, r->first + r->n - 1);
        }
        log_trace_about(ticket_about(k),
                        "kv arrived ticket=%s layer=%u first=%u blocks=%u bytes=%zu",
                        seq_text(&k->key), r->layer, r->first, r->n, r->bytes);
    }
    ticket_kv_end(&w->tickets, k, worker_now(w), r->layer, r->first, r->n, r->sums,
                  arrived ? right : NULL);
    free(r);
    if (filling) /* else it may be gone */
        decode_verify(w, k);
    else
        worker_wake(w);
}
