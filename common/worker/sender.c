/* sender: a job's KV on its way to the decode worker, and HANDOFF behind it.
 *
 * sender_pump is called whenever a layer is done, a GRANT arrives or a send ends; job_next_extent
 * says what may go. Checksums are taken here, block by block, of the bytes that are sent. Blocks
 * are only read: the engine may still be computing the attention of the very layer that goes out.
 * The unused slots of the last block were zeroed before its step began (clear_unused in steps.c).
 */
#include "common/worker/internal.h"

#include <string.h>

#define SENDS_MAX 64 /* in flight for one job */

struct send {
    struct worker *w;
    struct job *j;
    uint64_t instance; /* of the decode worker it goes to */
    uint32_t attempt;
    size_t bytes;
    struct kv_buffer *hold;
};

/* A buffer for KV has come back for which somebody waited. */
static void pump_all(struct worker *w)
{
    LIST_FOR_SAFE (n, &w->jobs) {
        struct job *j = container_of(n, struct job, node);
        if (j->state == JOB_RUNNING || j->state == JOB_COMPUTED)
            sender_pump(w, j);
    }
}

static void sent(void *arg, int status)
{
    struct send *s = arg;
    struct worker *w = s->w;
    struct job *j = s->j;
    struct peer *p = peer_find(w, s->instance);
    if (p)
        peer_idle(p);
    bool current = j->key.attempt == s->attempt && j->target.instance == s->instance;
    if (current)
        j->sends--;
    if (status == STATUS_OK && current) {
        j->progress_ms = worker_now(w);
        j->sent_bytes += s->bytes;
        if (j->moving)
            metrics_add(j->copy ? w->metrics.replica_bytes : w->metrics.moved_bytes,
                        (double)s->bytes);
        if (!j->moving && j->ready[j->n_layers - 1] < j->n_blocks) {
            j->early_bytes += s->bytes;
            metrics_add(w->metrics.early, (double)s->bytes);
        }
    } else if (status != STATUS_OK && current && j->state != JOB_ENDED && j->state != JOB_PARKED) {
        prefill_target_lost(w, j, PROTO_REASON_PEER_LOST, status_text(status));
    }
    bool waited = kvmem_sent(w, s->hold);
    free(s);
    if (j->state != JOB_ENDED)
        sender_pump(w, j);
    prefill_unhold(w, j);
    if (waited)
        pump_all(w);
}

static int send_extent(struct worker *w, struct job *j, struct peer *p,
                       const struct proto_extent *e, bool again)
{
    struct xfer_kv h = {.instance = w->instance,
                        .layer = e->layer,
                        .first = e->first,
                        .n_blocks = e->n,
                        .flags = again};
    uint64_t sums[XFER_EXTENT_BLOCKS_MAX];
    struct xfer_iov iov[XFER_EXTENT_BLOCKS_MAX];
    size_t n_iov = 0;
    memcpy(h.ticket, j->ticket, sizeof h.ticket);
    struct kv_buffer *hold;
    TRY(kvmem_send(w, e->layer, j->blocks + e->first, e->n, sums, iov, &n_iov, &hold));
    for (uint32_t i = 0; i < e->n && !again; i++)
        j->digest += digest_term(e->layer, e->first + i, sums[i]);
    struct send *s = malloc(sizeof *s);
    int rc = STATUS_NOMEM;
    if (s) {
        *s = (struct send){.w = w,
                           .j = j,
                           .instance = p->instance,
                           .attempt = j->key.attempt,
                           .bytes = e->n * w->info.kv_block_bytes,
                           .hold = hold};
        rc = xfer_send_kv(p->xp, &h, sums, iov, n_iov, sent, s);
    }
    if (rc != STATUS_OK) {
        kvmem_sent(w, hold);
        free(s);
        return rc;
    }
    j->sends++;
    j->holds++;
    if (!j->sending_ns)
        j->sending_ns = clock_ns();
    peer_busy(p);
    return STATUS_OK;
}

static bool send_handoff(struct worker *w, struct job *j, struct peer *p)
{
    const struct proto_job *spec = &j->spec.job;
    size_t n = spec->emitted.n;
    int32_t *emitted = mem_array(n + 1, sizeof *emitted);
    if (!emitted)
        return false;
    if (n)
        memcpy(emitted, spec->emitted.p, n * sizeof *emitted);
    emitted[n] = j->first.token;
    struct proto_msg m = {
        .type = PROTO_HANDOFF,
        .handoff = {.instance = w->instance, .job = *spec, .last = j->first, .digest = j->digest}};
    uint64_t now = worker_now(w);
    memcpy(m.handoff.ticket, j->ticket, sizeof m.handoff.ticket);
    m.handoff.job.request = seq_request(&j->key);
    m.handoff.job.choice = j->key.choice;
    m.handoff.job.emitted = (struct proto_ids){emitted, n + 1};
    if (j->moving && !j->copy)
        move_earlier(j, &m.handoff);
    if (j->expires_ms)
        m.handoff.job.deadline_ms = j->expires_ms > now ? j->expires_ms - now : 1;
    bool ok = peer_send(p, &m);
    free(emitted);
    return ok;
}

void sender_pump(struct worker *w, struct job *j)
{
    struct proto_extent e;
    bool again;
    if (j->reservation != JOB_RES_GRANTED)
        return;
    struct peer *p = peer_find(w, j->target.instance);
    if (!p)
        return; /* prefill_peer_lost is on its way */
    if (j->moving && move_prepare(w, j) != STATUS_OK) {
        prefill_target_lost(w, j, PROTO_REASON_INTERNAL, "out of memory");
        return;
    }
    while (j->sends < SENDS_MAX && kvmem_can_send(w) &&
           job_next_extent(j, XFER_EXTENT_BLOCKS_MAX, &e, &again)) {
        int rc = send_extent(w, j, p, &e, again);
        if (rc != STATUS_OK) {
            prefill_target_lost(w, j, PROTO_REASON_PEER_LOST, status_text(rc));
            return;
        }
    }
    if (!job_all_sent(j))
        return;
    if (!send_handoff(w, j, p)) {
        prefill_target_lost(w, j, PROTO_REASON_PEER_LOST, "HANDOFF could not be sent");
        return;
    }
    j->handed_ms = j->progress_ms = worker_now(w);
    job_set_state(j, JOB_HANDED);
}
