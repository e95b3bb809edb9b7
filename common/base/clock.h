/* clock: monotonic time. Pure code takes the time as an argument; only edges call these. */
#ifndef BATON_BASE_CLOCK_H
#define BATON_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
/* CPU time of the calling thread: for measurements on a machine that others use too. */
static inline uint64_t clock_thread_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
static inline uint64_t clock_ms(void)
{
    return clock_ns() / 1000000u;
}
/* Seconds since the epoch, for the "created" fields that clients see. */
static inline int64_t clock_unix_s(void)
{
    return (int64_t)time(0);
}

#endif
