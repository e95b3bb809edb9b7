/* internal: the worker's one state and what its files ask of each other. Everything here belongs to
 * the loop thread; the engine thread touches the KV memory and the rows of the running step only.
 *
 * Whoever changes what a step, a grant, a frame or the end of a drain may depend on calls
 * worker_wake; the work itself is done once, on the next turn of the loop (worker_turn). */
#ifndef BATON_WORKER_INTERNAL_H
#define BATON_WORKER_INTERNAL_H

#include "common/base/assert.h"
#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/fault.h"
#include "common/base/list.h"
#include "common/base/log.h"
#include "common/base/map.h"
#include "common/base/mem.h"
#include "common/base/metrics.h"
#include "common/base/rng.h"
#include "common/engine/batch.h"
#include "common/engine/engine.h"
#include "common/kv/pool.h"
#include "common/kv/xfer.h"
#include "common/net/address.h"
#include "common/net/api_keys.h"
#include "common/net/http.h"
#include "common/net/link.h"
#include "common/net/loop.h"
#include "common/net/mac.h"
#include "common/proto/proto.h"
#include "common/worker/engine_thread.h"
#include "common/worker/grammars.h"
#include "common/worker/job.h"
#include "common/worker/outbox.h"
#include "common/worker/spec.h"
#include "common/worker/ticket.h"
#include "common/worker/worker.h"

/* A LOST that could not be told because the link was down. */
struct lost_note {
    struct list node;
    struct seq_key key;
    enum proto_reason reason;
    bool parked;
};

/* A router instance: outlives its link by router_grace_ms (R2). */
struct router {
    struct list node;
    struct worker *w;
    uint64_t instance;
    struct link *link;   /* NULL while it is gone */
    uint64_t down_since; /* ms */
    uint64_t back_since; /* ms; it has come back and its RESUME is awaited; 0: not so */
    struct outbox outbox;
    struct list notes;
    uint32_t n_notes;
    uint64_t page; /* hash of the metrics page that was sent last */
};

/* Another worker, by instance. */
struct peer {
    UT_hash_handle hh;
    struct worker *w;
    uint64_t instance;
    struct xfer_peer *xp;
    uint32_t in_flight;   /* KV sends to it and receives from it */
    uint64_t progress_ms; /* when one of them began while there was none, or ended */
};

/* A step that runs or is being planned. */
struct step_slot {
    struct engine_step step;
    struct engine_row *rows; /* [max_batch], with row_jobs, row_tickets and params */
    struct job **row_jobs;
    struct ticket **row_tickets;
    struct sample_params *params;
    bool active, prompts; /* prompts: some rows are of jobs */
    bool late;            /* what may be drawn depends on the step before, which is not read yet */
};

#define STEPS_AHEAD 2
struct steps {
    struct batch_plan plan;
    struct batch_prompt *prompts; /* [prompts_cap], with prompt_jobs */
    struct job **prompt_jobs;
    uint32_t n_prompts, prompts_cap;
    struct batch_running *running; /* [running_cap], with running_tickets */
    struct ticket **running_tickets;
    uint32_t n_running, running_cap;
    struct step_slot slots[STEPS_AHEAD];
    uint32_t n_active, next; /* the slot of the next step; the one before it is in the other */
    uint64_t turn;
};

struct worker_metrics {
    struct metric *kv_blocks_free, *kv_blocks, *generated, *kv_sent, *kv_received, *exposed, *early,
        *padded_rows, *prefill_tokens, *hit_tokens, *checksum_errors, *preemptions, *failures,
        *moved_bytes, *move_pause, *replica_bytes, *replica_blocks;
    struct metric *jobs, *sequences, *waiting, *rows, *handovers, *transfer;
    struct metric **steps; /* [n_steps] by bucket */
    uint32_t *buckets, n_steps;
    uint64_t kv_sent_seen, kv_received_seen;
};

/* Where the settings came from, for a reload. */
struct worker_source {
    struct worker_settings *settings; /* what worker.settings points to */
    int argc;
    char **argv;
};

struct worker {
    const struct worker_policy *policy;
    const struct worker_settings *settings;
    const struct worker_source *source; /* NULL: settings cannot be read again */
    uint64_t progress, progress_ms;     /* layers computed, and when that last changed or began */
    uint64_t start_told_ms;             /* when the service manager heard of the loading last */
    worker_ready_fn ready_fn;
    void *ready_arg;
    uint64_t instance;
    char name[64], model_name[128], http_address[96];
    struct mac_key key;
    struct tls_context *certificates; /* of its links with routers; NULL: there are none */

    struct loop *loop;
    struct loop_timer *tick, *report;
    struct http_server *http;
    struct api_keys *api_keys; /* of its pages; NULL: they are open */
    struct link_listener *listener;
    struct engine_thread *engine;
    struct engine_info info; /* from `loaded` on */
    struct xfer *xfer;
    void *kv;
    struct kv_pool *pool;
    struct kvmem *kvmem; /* NULL when KV lies in host memory */

    struct list routers;
    struct peer *peers;
    struct list jobs;
    uint32_t n_jobs;
    uint64_t arrivals;
    struct ticket_table tickets;
    struct steps steps;
    struct grammars *grammars;
    struct worker_metrics metrics;
    struct buf scratch; /* one encoded message */

    bool ready, stopping, woken;
    bool draining; /* it takes no new work: because it leaves, or because an operator wants it so */
    bool leaving;
    uint64_t drain_until; /* ms */
    int status;           /* what worker_run returns */
};

/* worker.c */
void worker_wake(struct worker *w);
void worker_stop(struct worker *w, int status);
void worker_drain(struct worker *w, bool on); /* new work is refused, or taken again */
uint64_t worker_now(const struct worker *w);  /* ms */
uint32_t worker_parked_blocks(const struct worker *w);
bool worker_parked_full(const struct worker *w); /* R7: start no prompt */
struct proto_heartbeat worker_load(const struct worker *w);

/* links.c: routers */
int links_open(struct worker *w, char *err, size_t errlen) WARN_UNUSED;
void links_close(struct worker *w);
struct router *router_find(struct worker *w, uint64_t instance);
bool router_is_up(struct worker *w, uint64_t instance);
/* For log lines about a sequence of which only the name is at hand: with the request's id when a
 * job or a ticket here has it. A ticket does from HANDOFF on; RESERVE does not carry it. */
struct log_about worker_about(struct worker *w, const struct seq_key *k);
/* Tells the attempt's router that it cannot go on here; noted when the link is down. */
void router_lost(struct worker *w, const struct seq_key *k, enum proto_reason reason, bool parked,
                 const char *detail);
void router_send(struct router *r, const struct proto_msg *m);
void links_flush(struct worker *w); /* one TOKENS frame to each router that has new ones */
void links_tick(struct worker *w, uint64_t now);
void links_drain(struct worker *w);
bool links_any(const struct worker *w);  /* some router is connected */
bool links_idle(const struct worker *w); /* nothing left to send or to be acknowledged */

/* peers.c: other workers */
int peers_open(struct worker *w, char *err, size_t errlen) WARN_UNUSED;
void peers_close(struct worker *w);
struct peer *peer_find(struct worker *w, uint64_t instance);
/* The peer, connected to if it is new; NULL when that fails. */
struct peer *peer_get(struct worker *w, uint64_t instance, const void *address, size_t n);
bool peer_send(struct peer *p, const struct proto_msg *m); /* false: it is as good as lost */
void peer_busy(struct peer *p);                            /* a KV operation began */
void peer_idle(struct peer *p);                            /* one ended */
void peers_tick(struct worker *w, uint64_t now);

/* prefill.c: jobs */
struct job *prefill_find(struct worker *w, const struct seq_key *k); /* NULL: ended, or none */
void prefill_accept(struct worker *w, struct router *r, const struct proto_prefill *m);
void prefill_redirect(struct worker *w, struct router *r, const struct proto_redirect *m);
void prefill_cancel(struct worker *w, uint64_t router, uint64_t counter, uint32_t attempt);
void prefill_router_gone(struct worker *w, uint64_t router);
void prefill_keep_only(struct worker *w, uint64_t router, const struct proto_seq_pos *list,
                       uint32_t n);
/* RESUME names it: is it here? What is parked is told again. */
bool prefill_resume(struct worker *w, const struct seq_key *key);
void prefill_peer_lost(struct worker *w, uint64_t instance);
void prefill_message(struct worker *w, const struct proto_msg *m);
/* False: there are no blocks for it now. Otherwise it has begun, or is over. */
bool prefill_start(struct worker *w, struct job *j);
void prefill_layer(struct worker *w, struct job *j, uint32_t layer);
void prefill_stepped(struct worker *w, struct job *j, const struct engine_row *row, int status);
void prefill_tick(struct worker *w, uint64_t now);
/* The decode worker is gone, refuses or is silent: the KV is parked and the router told. */
void prefill_target_lost(struct worker *w, struct job *j, enum proto_reason reason,
                         const char *detail);
void prefill_unhold(struct worker *w, struct job *j); /* j may be gone after the call */
void prefill_grammars(struct worker *w);              /* ends jobs whose grammar cannot be used */
void prefill_close(struct worker *w);

void prefill_reserve(struct worker *w, struct job *j);
bool prefill_is_local(const struct worker *w, const struct job *j); /* goes on here when computed */
/* R7: gives up a prompt that goes on here, if there is one; true when blocks will come back. */
bool prefill_preempt(struct worker *w);
void prefill_end(struct worker *w, struct job *j); /* j may be gone after the call */

/* move.c: sequences that go to another decode worker */
void move_start(struct worker *w, struct router *r, const struct proto_move *m);
/* Before its job is looked at for something to send: what is complete, and whether it is time to
 * freeze the sequence. */
int move_prepare(struct worker *w, struct job *j) WARN_UNUSED;
void move_stepped(struct worker *w, struct ticket *k); /* a sequence on the move has a token more */
void move_earlier(const struct job *j, struct proto_handoff *h); /* loans */
void move_confirmed(struct worker *w, struct job *j);            /* HANDOFF_OK */
/* It comes to nothing: the router is told, and the sequence goes on. */
void move_lost(struct worker *w, struct job *j, enum proto_reason reason, const char *detail);
void move_detach(struct worker *w, struct job *j); /* the job ends, the sequence may not */
struct ticket *move_sequence(struct worker *w, uint64_t router, uint64_t counter, uint32_t attempt);

/* replica.c: copies of running sequences on another decode worker; those that come back from one */
void replica_start(struct worker *w, struct router *r, const struct proto_move *m);
void replica_advance(struct worker *w, struct ticket *k); /* it may have a finished block more */
void replica_stop(struct worker *w, struct ticket *k);
void replica_confirmed(struct worker *w, struct job *j); /* HANDOFF_OK */
void replica_lost(struct worker *w, struct job *j, enum proto_reason reason, const char *detail);
void replica_detach(struct job *j);              /* the job ends */
uint32_t replica_copied(const struct ticket *k); /* blocks of it that the other one has */
uint32_t replica_blocks(const struct worker *w); /* of all */
/* A prompt that was computed here is to go on here. */
void replica_adopt(struct worker *w, struct job *j);

/* sender.c: KV of a job to its decode worker; HANDOFF when all of it is sent */
void sender_pump(struct worker *w, struct job *j);

/* decode.c: tickets and sequences */
void decode_message(struct worker *w, const struct proto_msg *m);
void decode_cancel(struct worker *w, uint64_t router, uint64_t counter, uint32_t attempt);
void decode_router_gone(struct worker *w, uint64_t router);
void decode_keep_only(struct worker *w, uint64_t router, const struct proto_seq_pos *list,
                      uint32_t n);
void decode_peer_lost(struct worker *w, uint64_t instance);
void decode_admit(struct worker *w);
void decode_verify(struct worker *w, struct ticket *k); /* after HANDOFF, and when receives end */
void decode_stepped(struct worker *w, struct ticket *k, const struct engine_row *row, int status);
void decode_end(struct worker *w, struct ticket *k); /* k may be gone after the call */
void decode_preempt(struct worker *w, struct ticket *k);
/* It has been computed here: it runs, with the stream of the job. */
bool decode_adopt(struct worker *w, struct job *j, const struct proto_handoff *h);
void decode_tick(struct worker *w, uint64_t now);
void decode_drain(struct worker *w);
void decode_grammars(struct worker *w); /* as prefill_grammars */

/* receiver.c: KV that comes in; callbacks of xfer */
bool receiver_begin(void *arg, const struct xfer_kv *h, const uint64_t *sums, size_t bytes,
                    bool copied, struct xfer_iov *iov, size_t *n_iov, void **receive);
void receiver_end(void *arg, void *receive, int status);

/* kvmem.c: where KV lies, and how it gets to the network and from there */
struct kv_buffer;
int kvmem_open(struct worker *w) WARN_UNUSED; /* after the pool; nothing to do on the host */
void kvmem_close(struct worker *w);
bool kvmem_can_send(const struct worker *w);
/* Blocks ids[0..n) of a layer to be sent: what to give to the data link, and their checksums. hold
 * is given back by kvmem_sent, which says whether somebody had to wait for it. */
int kvmem_send(struct worker *w, uint32_t layer, const uint32_t *ids, uint32_t n, uint64_t *sums,
               struct xfer_iov *iov, size_t *n_iov, struct kv_buffer **hold) WARN_UNUSED;
bool kvmem_sent(struct worker *w, struct kv_buffer *hold);
/* Where blocks may land; false: nowhere now. copied: by the CPU. Then kvmem_received compares and
 * puts them in place, or kvmem_dropped forgets them. */
bool kvmem_receive(struct worker *w, uint32_t layer, const uint32_t *ids, uint32_t n, bool copied,
                   struct xfer_iov *iov, size_t *n_iov, struct kv_buffer **hold);
int kvmem_received(struct worker *w, uint32_t layer, const uint32_t *ids, uint32_t n,
                   struct kv_buffer *hold, const uint64_t *sums, bool *right) WARN_UNUSED;
void kvmem_dropped(struct worker *w, struct kv_buffer *hold);

/* steps.c: what the engine does next */
int steps_open(struct worker *w) WARN_UNUSED;
void steps_close(struct worker *w);
void steps_start(struct worker *w);   /* if it is idle and there is work */
void steps_abandon(struct worker *w); /* a job in a step has ended: stops it when all have */
void steps_layer(void *arg, uint32_t layer);
void steps_done(void *arg, struct engine_step *s, int status);

/* report.c: metrics, and the page that routers get */
int report_open(struct worker *w) WARN_UNUSED;
void report_close(struct worker *w);
void report_refresh(struct worker *w);
void report_push(struct worker *w);
void report_step(struct worker *w, const struct engine_step *s);

/* worker.c; source may be NULL */
int worker_serve(const struct worker_policy *policy, const struct worker_settings *settings,
                 const struct worker_source *source, worker_ready_fn ready, void *arg) WARN_UNUSED;

/* manage.c: reload and service manager */
int manage_open(struct worker *w) WARN_UNUSED;
/* What a worker that is not ready does, for people. */
void manage_loading(const struct worker *w, char *out, size_t n);
void manage_ready(const struct worker *w);
void manage_tick(struct worker *w, uint64_t now);
/* How long the engine has had work without progress. */
uint64_t manage_stalled_ms(const struct worker *w);
int manage_key(const struct worker_settings *s, struct mac_key *key, char *err,
               size_t errlen) WARN_UNUSED;
/* What no key can judge by itself. */
int manage_certificates(const struct worker_settings *s, struct tls_context **out, char *err,
                        size_t errlen) WARN_UNUSED;
/* Whether listen and http may be where they are: beyond loopback peers must prove who they are. */
int manage_exposed(const struct worker_settings *s, const struct mac_key *key, bool certificates,
                   bool api_keys, char *err, size_t errlen) WARN_UNUSED;
int manage_check(const struct worker_settings *s, char *err, size_t errlen) WARN_UNUSED;

/* pages.c: HTTP */
int pages_open(struct worker *w, char *err, size_t errlen) WARN_UNUSED;
/* The keys that its pages want; NULL in *out: none. */
int pages_keys(const struct worker_settings *s, struct api_keys **out, char *err,
               size_t errlen) WARN_UNUSED;

#endif
