/* loop_uv: what the files of common/net share about the loop; internal to this room.
 *
 * Everything that lives on the loop and outlasts a callback (mailboxes, links, HTTP servers, …)
 * registers a struct loop_owner, so that loop_destroy can close what its users left open. */
#ifndef BATON_NET_LOOP_UV_H
#define BATON_NET_LOOP_UV_H

#include <uv.h>

#include "common/base/list.h"
#include "common/net/loop.h"

struct loop_owner {
    struct list node;
    /* Closes the object as its own close function would. It removes itself from the list. */
    void (*close)(struct loop_owner *o);
};

struct loop {
    uv_loop_t uv;
    uv_async_t keep_alive; /* so that an idle loop waits instead of returning */
    uv_idle_t defer_tick;  /* active while `deferred` is not empty */
    struct list deferred;  /* struct deferred */
    struct list owners;    /* struct loop_owner */
    bool stopped;
};

void loop_owner_add(struct loop *l, struct loop_owner *o, void (*close)(struct loop_owner *o));
void loop_owner_remove(struct loop_owner *o);

/* Lets one log line a second through; what was held back is told with the next one. */
struct log_limit {
    uint64_t last_ms;
    uint32_t held_back;
};
bool log_limit_pass(struct log_limit *g, uint64_t now_ms, uint32_t *held_back);

/* What every TCP connection of ours gets: no Nagle delay, keep-alive probes, and an error when sent
 * bytes stay unacknowledged for user_timeout_ms (0: the kernel's default). */
void tcp_tune(uv_tcp_t *tcp, uint64_t user_timeout_ms);

/* The status code of a libuv error (negative), 0 for success. */
int status_from_uv(int rc);

/* Returns from the calling function when a libuv call failed. */
#define UV_TRY(expr)                                                                               \
    do {                                                                                           \
        int uv_rc_ = (expr);                                                                       \
        if (uv_rc_ < 0)                                                                            \
            return status_from_uv(uv_rc_);                                                         \
    } while (0)

#endif
