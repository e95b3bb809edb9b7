/* bench: what the files of baton-bench share. */
#ifndef BATON_KERNELS_BENCH_H
#define BATON_KERNELS_BENCH_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/ceiling.h"

struct bench {
    const char *isa; /* "avx512", … */
    bool json, cpu_time;
    uint64_t (*clock)(void);
    struct ceilings ceilings; /* of all threads */
};

_Noreturn void bench_die(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* bench_kernels.c: every kernel by itself, on one core. */
void bench_kernels(const struct bench *b);

#endif
