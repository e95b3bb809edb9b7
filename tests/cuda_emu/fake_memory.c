/* fake_memory: memory of the emulated device and page-locked memory; see fake_gpu.h.
 *
 * Each allocation is one of the host's, so that AddressSanitizer sees the ends of it. Freed ones
 * are kept for a while: their addresses stay unused, and whoever still names one is found out. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/cuda_emu/fake_internal.h"

#define BLOCKS_MAX  8192
#define FREED_MAX   64                 /* freed allocations that are kept */
#define BIG         ((size_t)64 << 20) /* from here on sparse: mapped, zero, not filled */
#define TOTAL_BYTES ((size_t)1 << 40)

struct block {
    uint8_t *p;
    size_t n;
    enum fake_kind kind;
    bool freed;
    uint64_t order; /* of freeing */
};

static struct {
    struct block blocks[BLOCKS_MAX];
    int n;
    size_t used, total, other;
    uint64_t order;
    int n_freed;
} mem;

static void configure(void)
{
    if (mem.total)
        return;
    const char *s = getenv("FAKE_GPU_MEMORY");
    mem.total = s && strtoull(s, NULL, 10) ? strtoull(s, NULL, 10) : TOTAL_BYTES;
}

void fake_gpu_memory(size_t total, size_t other)
{
    mem.total = total;
    mem.other = other;
}

void fake_memory_info(size_t *used, size_t *total, size_t *other)
{
    configure();
    *used = mem.used;
    *total = mem.total;
    *other = mem.other;
}

int fake_reserve(size_t n)
{
    configure();
    if (n > mem.total - mem.other - mem.used)
        return GPU_ERROR_MEMORY;
    mem.used += n;
    return 0;
}

void fake_release(size_t n)
{
    mem.used -= n;
}

static void really_free(struct block *b)
{
    if (b->n >= BIG)
        munmap(b->p, b->n);
    else
        free(b->p);
    *b = mem.blocks[--mem.n];
}

static void free_oldest(void)
{
    struct block *oldest = NULL;
    for (int i = 0; i < mem.n; i++)
        if (mem.blocks[i].freed && (!oldest || mem.blocks[i].order < oldest->order))
            oldest = &mem.blocks[i];
    really_free(oldest);
    mem.n_freed--;
}

int fake_alloc(enum fake_kind kind, size_t n, void **out)
{
    if (n == 0)
        fake_die("an allocation of 0 bytes");
    if (mem.n == BLOCKS_MAX)
        fake_die("more than %d allocations", BLOCKS_MAX);
    if (kind == FAKE_DEVICE) {
        int rc = fake_reserve(n);
        if (rc)
            return rc;
    }
    void *p = NULL;
    if (n >= BIG) {
        p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                 0);
        if (p == MAP_FAILED)
            return GPU_ERROR_MEMORY;
    } else {
        if (posix_memalign(&p, 256, n) != 0)
            fake_die("out of host memory");
        memset(p, 0xff, n);
    }
    mem.blocks[mem.n++] = (struct block){.p = p, .n = n, .kind = kind};
    *out = p;
    return 0;
}

void fake_free(enum fake_kind kind, void *p)
{
    for (int i = 0; i < mem.n; i++) {
        struct block *b = &mem.blocks[i];
        if (b->p != p || b->kind != kind)
            continue;
        if (b->freed)
            fake_die("memory is freed twice");
        b->freed = true;
        b->order = ++mem.order;
        if (kind == FAKE_DEVICE)
            mem.used -= b->n;
        if (b->n < BIG)
            memset(p, 0xff, b->n);
        if (++mem.n_freed > FREED_MAX || b->n >= BIG)
            free_oldest();
        return;
    }
    fake_die("memory is freed that was not allocated");
}

static const struct block *find(const void *p)
{
    const uint8_t *at = p;
    for (int i = 0; i < mem.n; i++)
        if (at >= mem.blocks[i].p && at < mem.blocks[i].p + mem.blocks[i].n)
            return &mem.blocks[i];
    return NULL;
}

bool fake_is_device(const void *p)
{
    const struct block *b = find(p);
    return b && b->kind == FAKE_DEVICE && !b->freed;
}

void fake_check_range(enum fake_kind kind, const void *p, size_t n, const char *what)
{
    const char *name = kind == FAKE_DEVICE ? "device memory" : "page-locked memory";
    const struct block *b = find(p);
    if (!b || b->kind != kind)
        fake_die("%s: %p is no %s", what, p, name);
    if (b->freed)
        fake_die("%s: %s was freed", what, name);
    if (n > b->n - (size_t)((const uint8_t *)p - b->p))
        fake_die("%s: %zu bytes go beyond the end of %s", what, n, name);
}

void fake_check_args(const void *args, size_t n, const char *kernel)
{
    for (size_t at = 0; at + sizeof(void *) <= n; at += sizeof(void *)) {
        const void *p;
        memcpy(&p, (const uint8_t *)args + at, sizeof p);
        const struct block *b = p ? find(p) : NULL;
        if (b && b->freed)
            fake_die("%s: an argument points to memory that was freed", kernel);
    }
}

uint64_t fake_sum(const void *p, size_t n)
{
    const uint8_t *at = p;
    uint64_t h = 0xcbf29ce484222325u;
    for (; n >= 8; n -= 8, at += 8) {
        uint64_t w;
        memcpy(&w, at, 8);
        h = (h ^ w) * 0x100000001b3u;
        h ^= h >> 29;
    }
    for (; n > 0; n--)
        h = (h ^ *at++) * 0x100000001b3u;
    return h;
}
