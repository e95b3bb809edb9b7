/* mailbox: many threads post, the loop thread drains.
 *
 * A post pushes onto a lock-free stack and wakes the loop (uv_async_send coalesces, so one wake-up
 * may stand for many posts). Draining takes the whole stack with one exchange and reverses it: what
 * one thread posted arrives in its order. The release of the push and the acquire of the exchange
 * make the contents of an item visible to the loop thread.
 *
 * The chain that is being delivered hangs in the mailbox, so fn may destroy the mailbox: the rest
 * is delivered first, then the handle closes. Nobody may post after mailbox_destroy has begun. */
#include "common/net/loop.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "common/net/loop_uv.h"

struct mailbox {
    uv_async_t h;
    struct loop_owner owner;
    _Atomic(struct mail *) stack; /* newest first */
    struct mail *pending;         /* oldest first; loop thread only */
    void (*fn)(void *arg, struct mail *m);
    void *arg;
};

static void mailbox_deliver(struct mailbox *b)
{
    while (b->pending) {
        struct mail *m = b->pending;
        b->pending = m->next;
        b->fn(b->arg, m);
    }
}

static void mailbox_collect(struct mailbox *b)
{
    struct mail *m = atomic_exchange_explicit(&b->stack, NULL, memory_order_acquire);
    struct mail *ordered = NULL;
    while (m) {
        struct mail *next = m->next;
        m->next = ordered;
        ordered = m;
        m = next;
    }
    struct mail **tail = &b->pending;
    while (*tail)
        tail = &(*tail)->next;
    *tail = ordered;
}

static void mailbox_cb(uv_async_t *h)
{
    struct mailbox *b = container_of(h, struct mailbox, h);
    mailbox_collect(b);
    mailbox_deliver(b); /* b stays allocated until its close callback, even if fn destroys it */
}

static void mailbox_close(struct loop_owner *o)
{
    mailbox_destroy(container_of(o, struct mailbox, owner));
}

int mailbox_create(struct loop *l, void (*fn)(void *arg, struct mail *m), void *arg,
                   struct mailbox **out)
{
    struct mailbox *b = calloc(1, sizeof *b);
    if (!b)
        return STATUS_NOMEM;
    int rc = uv_async_init(&l->uv, &b->h, mailbox_cb);
    if (rc < 0) {
        free(b);
        return status_from_uv(rc);
    }
    b->fn = fn;
    b->arg = arg;
    loop_owner_add(l, &b->owner, mailbox_close);
    *out = b;
    return STATUS_OK;
}

void mailbox_post(struct mailbox *b, struct mail *m)
{
    struct mail *top = atomic_load_explicit(&b->stack, memory_order_relaxed);
    do {
        m->next = top;
    } while (!atomic_compare_exchange_weak_explicit(&b->stack, &top, m, memory_order_release,
                                                    memory_order_relaxed));
    uv_async_send(&b->h);
}

static void mailbox_closed(uv_handle_t *h)
{
    free(container_of((uv_async_t *)h, struct mailbox, h));
}

void mailbox_destroy(struct mailbox *b)
{
    if (!b || uv_is_closing((uv_handle_t *)&b->h))
        return;
    loop_owner_remove(&b->owner);
    uv_close((uv_handle_t *)&b->h, mailbox_closed);
    mailbox_collect(b);
    mailbox_deliver(b);
}
