/* threads: the compute threads of a backend.
 *
 * A job is a list of phases, each a number of tiles. Threads, the caller among them, take tiles one
 * by one; a phase begins when all tiles before it are done. Nobody waits for a thread, only for
 * tiles: one that was preempted or runs on a slow core delays the tile that it holds and nothing
 * else, and a job makes progress with any part of its threads. Whoever finds no tile spins for a
 * while and then parks on a futex: a busy step makes no system call, an idle or oversubscribed
 * process burns no core.
 *
 * Helpers are further threads that run only when nothing else wants their CPU (SCHED_IDLE), for
 * example while the other daemon of a small machine waits. A helper may be stopped for long at any
 * point, so it never holds anything up: it computes a tile for itself and writes the result only if
 * the tile is still its own; who waits for more than 100 us does the tile again instead. */
#ifndef BATON_KERNELS_THREADS_H
#define BATON_KERNELS_THREADS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

struct threads;

struct threads_job {
    size_t n_phases;
    /* Tiles of a phase, below 2^24; 0 skips it. Called once per phase, by any thread, when the
     * phases before are complete. */
    size_t (*tiles)(void *arg, size_t phase);
    void (*run)(void *arg, size_t phase, size_t tile, int thread);
    /* Called on the caller's thread between its tiles, and with n_phases at the end: everything
     * before `phase` is complete. May be NULL. */
    void (*progress)(void *arg, size_t phase);
    void *arg;
    /* For helpers; helps NULL: they take no part. With them the job and what arg points to must
     * stay until threads_quiesce. */
    bool (*helps)(void *arg, size_t phase);
    /* Notes what `compute` needs to know of the tile besides the bulk of its input; what was noted
     * is used only if the tile was not taken away meanwhile. */
    void (*begin)(void *arg, size_t phase, size_t tile, int thread);
    /* Computes what was noted into the helper's own memory. Its input may be overwritten meanwhile;
     * then the result is thrown away. */
    void (*compute)(void *arg, int thread);
    /* Writes the result where it belongs. */
    void (*finish)(void *arg, int thread);
};

/* n >= 1 threads, the caller's included. cpus: "0-3,8" or NULL; the i-th thread is bound to the
 * i-th CPU of the list, the caller's at its first threads_run. On failure err has one line. */
int threads_create(int n, const char *cpus, struct threads **out, char *err,
                   size_t errlen) WARN_UNUSED;
/* And `helpers` (>= 0) of the other kind: threads n .. n + helpers - 1. When cpus has room for them
 * too, they are bound to the CPUs behind those of the others. */
int threads_create_helped(int n, int helpers, const char *cpus, struct threads **out, char *err,
                          size_t errlen) WARN_UNUSED;
void threads_destroy(struct threads *t);
int threads_count(const struct threads *t);   /* without helpers */
int threads_helpers(const struct threads *t); /* helpers alone */
/* Tiles that were done again because a helper did not finish them. */
uint64_t threads_redone(const struct threads *t);
/* Waits until no helper is at work on a job that has ended. Not during a job. */
void threads_quiesce(struct threads *t);
/* Returns when the last phase is complete. One caller at a time; it is thread 0. */
void threads_run(struct threads *t, const struct threads_job *job);

#endif
