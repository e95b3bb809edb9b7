/* hash: XXH3, and the checksum of KV blocks.
 *
 * hash_kv runs over every byte of KV that is sent and received, so it has to keep up with memory.
 * Its sum may be formed in any order, so the loop keeps four vectors of eight partial sums, written
 * once in GCC's vector types and compiled three times: for AVX-512 (which multiplies 64 bit lanes
 * in one instruction), for AVX2, and for the baseline. The choice is made once, by CPUID. Explicit
 * dispatch instead of target_clones: ifunc resolvers run before the sanitizers are ready. */
#include "common/base/hash.h"

#include <stdatomic.h>
#include <string.h>
#include <xxhash.h>

#include "common/base/assert.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "KV words are little-endian in memory");

uint64_t hash64(const void *p, size_t n, uint64_t seed)
{
    return XXH3_64bits_withSeed(p, n, seed);
}

struct hash128 hash128(const void *p, size_t n, uint64_t seed)
{
    XXH128_hash_t h = XXH3_128bits_withSeed(p, n, seed);
    return (struct hash128){.lo = h.low64, .hi = h.high64};
}

#define LANES  8 /* words in a vector */
#define CHAINS 4 /* vectors in flight */
#define STRIDE (LANES * CHAINS)

typedef uint64_t lanes __attribute__((vector_size(LANES * sizeof(uint64_t))));

/* The words [0, n) of p; n is any number. Inlined into each of the variants below. */
static inline __attribute__((always_inline)) uint64_t kv_sum(const char *p, size_t n)
{
    const lanes first = {1, 2, 3, 4, 5, 6, 7, 8};
    lanes sum[CHAINS] = {{0}}, step[CHAINS];
    size_t i = 0;
    uint64_t total = 0;

    for (int c = 0; c < CHAINS; c++)
        step[c] = (first + (uint64_t)(c * LANES)) * HASH_KV_STEP;
    for (; i + STRIDE <= n; i += STRIDE) {
        for (int c = 0; c < CHAINS; c++) {
            lanes x;
            memcpy(&x, p + (i + (size_t)c * LANES) * sizeof(uint64_t), sizeof x);
            x += step[c];
            step[c] += (uint64_t)STRIDE * HASH_KV_STEP;
            x ^= x >> 30;
            x *= 0xbf58476d1ce4e5b9u;
            x ^= x >> 27;
            x *= 0x94d049bb133111ebu;
            sum[c] += x ^ (x >> 31);
        }
    }
    for (int c = 0; c < CHAINS; c++)
        for (int k = 0; k < LANES; k++)
            total += sum[c][k];
    for (; i < n; i++) {
        uint64_t x;
        memcpy(&x, p + i * sizeof x, sizeof x);
        total += hash_mix64(x + (i + 1) * HASH_KV_STEP);
    }
    return total;
}

static uint64_t kv_sum_base(const char *p, size_t n)
{
    return kv_sum(p, n);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static uint64_t kv_sum_avx2(const char *p, size_t n)
{
    return kv_sum(p, n);
}

__attribute__((target("avx512f,avx512dq,avx512vl,prefer-vector-width=512"))) static uint64_t
kv_sum_avx512(const char *p, size_t n)
{
    return kv_sum(p, n);
}
#endif

typedef uint64_t (*kv_sum_fn)(const char *, size_t);

static kv_sum_fn kv_sum_choose(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return kv_sum_avx512;
    if (__builtin_cpu_supports("avx2"))
        return kv_sum_avx2;
#endif
    return kv_sum_base;
}

uint64_t hash_kv(const void *p, size_t n)
{
    static _Atomic(kv_sum_fn) chosen;
    ASSERT(n % sizeof(uint64_t) == 0);
    kv_sum_fn sum = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (!sum) {
        sum = kv_sum_choose();
        atomic_store_explicit(&chosen, sum, memory_order_relaxed);
    }
    return sum(p, n / sizeof(uint64_t));
}
