/* workers: the router's links to its workers and what it knows of each (R8, R9).
 *
 * Each configured address is one worker entry for as long as it is configured; a restarted worker
 * comes back in the same entry with a new instance. A link that breaks may only be that: for
 * relink_ms its worker's instance stays, and when the link comes back to the same process the
 * attempts there go on. Where nobody listens any more, or somebody else does, the worker is dead at
 * once. Two workers of different kinds can be paired when model and KV layout agree (R8). */
#ifndef BATON_ROUTERD_WORKERS_H
#define BATON_ROUTERD_WORKERS_H

#include "common/base/buf.h"
#include "common/net/link.h"
#include "routerd/pick.h"

#define WORKERS_MAX 1024

struct workers;
struct workers_change; /* other addresses, not in force yet */

struct worker { /* a loan until the next workers_check */
    struct workers *owner;
    char *address;
    bool decode; /* role it is configured for */
    struct link *link;
    bool up, silent, draining, stalled;
    bool leaving;   /* configured no more: it gets nothing new, and is let go when it has nothing */
    bool relinking; /* not up, but its instance may come back until relink_until_ms */
    uint64_t relink_until_ms;
    /* From its HELLO, while up or relinking. */
    uint64_t instance, model, features;
    char name[64], kv_layout[96], numerics[64];
    uint8_t *data_address;
    size_t data_address_n;
    uint32_t pool; /* of the model that it computes */
    uint32_t kv_blocks, kv_block_size, context, vocab;
    /* From its heartbeats. */
    struct proto_heartbeat load;
    uint64_t progress_at_ms; /* when load.progress last moved, or work began */
    uint32_t others;         /* of load.running, what was not this router's at that time; */
    uint64_t others_tokens;  /* of load.queued_tokens */
    /* What this router has given it and not yet got back. */
    uint32_t assigned;        /* attempts that name it */
    uint64_t assigned_tokens; /* prompt tokens sent to it (prefill) and not yet answered */
    uint32_t sent_since_beat;
    struct buf page; /* its metrics page */
    char why[160];   /* why it is not usable, for /ready */
};

struct workers_callbacks {
    /* back: this is the instance whose link broke a moment ago. */
    void (*up)(void *arg, struct worker *w, bool back);
    /* The worker is gone, silent, without progress or not to be reached: its attempts must go on
     * elsewhere. dead: the process is known to be gone. */
    void (*lost)(void *arg, struct worker *w, bool dead, const char *why);
    void (*message)(void *arg, struct worker *w, const struct proto_msg *m);
    /* A heartbeat arrived: capacity may have changed. */
    void (*beat)(void *arg, struct worker *w);
};

/* A model of the router. A single one takes every worker, whatever name that announces. */
struct workers_pool {
    const char *name;
    char *const *aliases; /* end with NULL; may be NULL */
    uint32_t vocab;       /* ids of its tokenizer */
};

struct workers_options {
    const char *prefill, *decode; /* comma-separated addresses */
    struct proto_hello self;      /* what it points to is a loan for the workers' life */
    struct link_options link;
    uint64_t relink_ms;               /* 0: a broken link is a lost worker */
    const struct workers_pool *pools; /* copied; names are loans */
    uint32_t n_pools;
};

int workers_create(struct loop *loop, const struct workers_options *o,
                   const struct workers_callbacks *cb, void *arg, struct workers **out, char *err,
                   size_t errlen) WARN_UNUSED;
void workers_destroy(struct workers *ws);
/* A change of the addresses, in two steps: workers_prepare does all that can fail and changes
 * nothing (INVALID: an address is bad, or there twice), then either workers_adopt, which takes the
 * change, or workers_forget (NULL is fine). Nothing may happen to the workers in between. */
int workers_prepare(struct workers *ws, const char *prefill, const char *decode,
                    struct workers_change **out, char *err, size_t errlen) WARN_UNUSED;
void workers_adopt(struct workers *ws, struct workers_change *c);
void workers_forget(struct workers_change *c);
/* Renewed certificates, for connections from now on; kept. */
void workers_set_certificates(struct workers *ws, struct tls_context *certificates);
uint32_t workers_count(const struct workers *ws);
struct worker *workers_at(struct workers *ws, uint32_t i);
/* The worker of this instance, up or relinking, or NULL. */
struct worker *workers_find(struct workers *ws, uint64_t instance);
/* Fills out[workers_count]. */
void workers_view(const struct workers *ws, struct pick_worker *out);
/* Sends; a failure only means that the link is closing, which `lost` reports. */
void worker_send(struct worker *w, const struct proto_msg *m);
/* Looks for workers that have work and make no progress (R9), for links that did not come back, and
 * for workers to be let go; call some times a second. */
void workers_check(struct workers *ws, uint64_t now_ms, uint64_t stall_ms);
/* Appends a page of the metrics about workers that only a router has. */
void workers_report(const struct workers *ws, struct buf *out);
/* True when some prefill and some decode worker of the pool can be paired; otherwise why gets a
 * reason. */
bool workers_ready(struct workers *ws, uint32_t pool, char *why, size_t n);
/* The worker of that name or address. NOTFOUND; LIMIT: several have that name. */
int workers_by_name(struct workers *ws, const char *name, struct worker **out) WARN_UNUSED;

#endif
