/* rng: Philox4x32-10 and the kernel's random bytes; see rng.h. */
#include "common/base/rng.h"

#include <errno.h>
#include <sys/random.h>

#include "common/base/assert.h"

#define PHILOX_M0 0xD2511F53u
#define PHILOX_M1 0xCD9E8D57u
#define PHILOX_W0 0x9E3779B9u
#define PHILOX_W1 0xBB67AE85u

struct rng_block rng_philox(uint64_t key, uint64_t counter_lo, uint64_t counter_hi)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    struct rng_block c = {{(uint32_t)counter_lo, (uint32_t)(counter_lo >> 32), (uint32_t)counter_hi,
                           (uint32_t)(counter_hi >> 32)}};
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)PHILOX_M0 * c.v[0], p1 = (uint64_t)PHILOX_M1 * c.v[2];
        c = (struct rng_block){{(uint32_t)(p1 >> 32) ^ c.v[1] ^ k0, (uint32_t)p1,
                                (uint32_t)(p0 >> 32) ^ c.v[3] ^ k1, (uint32_t)p0}};
        k0 += PHILOX_W0;
        k1 += PHILOX_W1;
    }
    return c;
}

float rng_uniform(uint64_t seed, uint32_t choice, uint32_t position)
{
    struct rng_block b = rng_philox(seed, position, choice);
    return (float)(b.v[0] >> 8) * 0x1p-24f;
}

void rng_bytes(void *p, size_t n)
{
    char *at = p;
    while (n) {
        ssize_t got = getrandom(at, n, 0);
        if (got < 0) {
            ASSERT_MSG(errno == EINTR, "getrandom failed: errno %d", errno);
            continue;
        }
        at += got;
        n -= (size_t)got;
    }
}

uint64_t rng_u64(void)
{
    uint64_t v;
    rng_bytes(&v, sizeof v);
    return v;
}
