/* hash: 64- and 128-bit hashes (xxHash's only home) and the checksum of KV blocks. */
#ifndef BATON_BASE_HASH_H
#define BATON_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

struct hash128 {
    uint64_t lo, hi;
};

/* XXH3 with a seed. Not cryptographic: a key that peers must not know goes in as the seed, and
 * whoever acts on a match compares the data. */
uint64_t hash64(const void *p, size_t n, uint64_t seed);
struct hash128 hash128(const void *p, size_t n, uint64_t seed);

/* The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): a bijection that mixes all bits.
 */
static inline uint64_t hash_mix64(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

#define HASH_KV_STEP 0x9e3779b97f4a7c15u
/* Checksum of one (layer, block): the sum modulo 2^64 over its n/8 little-endian words of
 * hash_mix64(word_i + i * HASH_KV_STEP), i from 1. A sum does not depend on the order in which its
 * terms are added, so scalar code, vector code and a GPU agree. n is a multiple of 8. */
uint64_t hash_kv(const void *p, size_t n);

#endif
