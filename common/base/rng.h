/* rng: random numbers without hidden state.
 *
 * Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC
 * 2011) maps a 64-bit key and a 128-bit counter to 128 random bits. Sampling keys it by (seed,
 * choice, position), so a sequence that moves to another worker draws the same numbers. */
#ifndef BATON_BASE_RNG_H
#define BATON_BASE_RNG_H

#include <stddef.h>
#include <stdint.h>

struct rng_block {
    uint32_t v[4];
};
struct rng_block rng_philox(uint64_t key, uint64_t counter_lo, uint64_t counter_hi);
/* Uniform in [0, 1) with 24 bits: the draw for token `position` of `choice` under `seed`. */
float rng_uniform(uint64_t seed, uint32_t choice, uint32_t position);
/* n unpredictable bytes from the kernel (instance ids, tickets, keys). Aborts when the kernel has
 * none: there is no safe way on. */
void rng_bytes(void *p, size_t n);
uint64_t rng_u64(void);

#endif
