/* loop: the libuv loop of a daemon (libuv's only home, with the other files of common/net), timers,
 * signals, and the mailbox by which other threads reach it.
 *
 * One thread owns the loop and everything on it. Callbacks run on that thread. */
#ifndef BATON_NET_LOOP_H
#define BATON_NET_LOOP_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/list.h"
#include "common/base/status.h"

struct loop;
int loop_create(struct loop **out) WARN_UNUSED;
/* Runs until loop_stop; returns when it was called and pending closes are done. */
void loop_run(struct loop *l);
void loop_stop(struct loop *l);
/* Closes what is left and frees the loop. Timers, mailboxes, links and servers that their owners
 * did not close before are closed here: their pointers are dead afterwards. */
void loop_destroy(struct loop *l);
/* Milliseconds of CLOCK_MONOTONIC when this turn of the loop began. */
uint64_t loop_now_ms(const struct loop *l);

/* A timer lives in its owner on the heap of the loop: stopping is immediate and the callback never
 * fires after loop_timer_free. repeat_ms 0: one shot. */
struct loop_timer;
int loop_timer_create(struct loop *l, void (*fn)(void *arg), void *arg,
                      struct loop_timer **out) WARN_UNUSED;
void loop_timer_start(struct loop_timer *t, uint64_t after_ms, uint64_t repeat_ms);
void loop_timer_stop(struct loop_timer *t);
void loop_timer_free(struct loop_timer *t); /* NULL is fine */

/* fn(arg, signo) on every arrival of the signal. Freed with the loop. */
int loop_on_signal(struct loop *l, int signo, void (*fn)(void *arg, int signo),
                   void *arg) WARN_UNUSED;
/* fn(arg) whenever fd is readable. Freed with the loop. */
int loop_on_readable(struct loop *l, int fd, void (*fn)(void *arg), void *arg) WARN_UNUSED;
/* fn(arg) once, on the next turn of the loop. */
void loop_defer(struct loop *l, void (*fn)(void *arg), void *arg);

/* work(arg) on a thread of the loop's pool, then done(arg) on the loop. done always comes, at the
 * latest inside loop_destroy. */
int loop_work(struct loop *l, void (*work)(void *arg), void (*done)(void *arg),
              void *arg) WARN_UNUSED;

/* Mailbox: any thread posts items, the loop drains them in order. The item is embedded in what is
 * posted and belongs to the loop thread from then on. */
struct mailbox;
struct mail {
    struct mail *next;
};
int mailbox_create(struct loop *l, void (*fn)(void *arg, struct mail *m), void *arg,
                   struct mailbox **out) WARN_UNUSED;
void mailbox_post(struct mailbox *b, struct mail *m);
void mailbox_destroy(struct mailbox *b); /* undelivered items go to fn first */

#endif
