/* ceiling: how fast this machine can go: the yardstick of baton-bench.
 *
 * Arithmetic is measured in loops that keep everything in registers, reading in a stream over more
 * memory than the caches hold. All threads of the pool work at once. The rates of a virtual machine
 * drift with its neighbours, so they can be probed again, in milliseconds, beside each measurement
 * that is held against them. */
#ifndef BATON_KERNELS_CEILING_H
#define BATON_KERNELS_CEILING_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"
#include "kernels/threads.h"

struct ceilings {
    double f32, bf16, int8; /* operations per second; a multiply-add is two */
    double read;            /* bytes per second */
};

struct ceiling;
/* isa: of the kernels that will be measured, "amx", "avx512", "avx2" or "c". cpu_time: by the CPU
 * time of the calling thread, for a pool of one thread. Takes 1 GiB of memory; NULL when there is
 * none. */
struct ceiling *ceiling_create(const char *isa, struct threads *pool, bool cpu_time);
void ceiling_destroy(struct ceiling *c);
/* From now on the rate of reading is the better one of that stream and of reading so many bytes
 * again and again: caches may hold all weights of a small model. */
void ceiling_reread(struct ceiling *c, size_t bytes);
/* The best of many short runs, some tenths of a second. */
void ceiling_measure(struct ceiling *c, struct ceilings *out);
/* The best of a few: some hundredths. */
void ceiling_probe(struct ceiling *c, struct ceilings *out);

#endif
