/* mem: checked allocation and arenas; see mem.h. */
#include "common/base/mem.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define ARENA_BLOCK 4096
#define HUGE_PAGE   ((size_t)2 << 20)

struct arena_block {
    struct arena_block *next;
    size_t size, used;
    char pad[8]; /* keeps data aligned to 16 bytes */
    char data[];
};
_Static_assert(offsetof(struct arena_block, data) % 16 == 0, "arena data must be aligned");

void *mem_array(size_t n, size_t size)
{
    size_t bytes;
    if (!mem_mul(n, size, &bytes))
        return NULL;
    return calloc(n ? n : 1, size ? size : 1);
}

void *mem_resize(void *p, size_t n, size_t size)
{
    size_t bytes;
    if (!mem_mul(n, size, &bytes))
        return NULL;
    return realloc(p, bytes ? bytes : 1);
}

char *mem_strdup(const char *s)
{
    return mem_dup(s, strlen(s) + 1);
}

void *mem_dup(const void *p, size_t n)
{
    void *q = malloc(n ? n : 1);
    if (q && n)
        memcpy(q, p, n);
    return q;
}

static size_t huge_round(size_t n)
{
    return (n + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
}

void *mem_huge(size_t n)
{
    if (n == 0 || n > SIZE_MAX - 2 * HUGE_PAGE)
        return NULL;
    size_t want = huge_round(n);
    char *p =
        mmap(NULL, want + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    size_t skip = (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE) % HUGE_PAGE;
    if (skip)
        munmap(p, skip);
    if (HUGE_PAGE - skip)
        munmap(p + skip + want, HUGE_PAGE - skip);
    madvise(p + skip, want, MADV_HUGEPAGE);
    return p + skip;
}

void mem_huge_free(void *p, size_t n)
{
    if (p)
        munmap(p, huge_round(n));
}

void arena_init(struct arena *a, size_t limit)
{
    *a = (struct arena){.limit = limit};
}

void arena_fini(struct arena *a)
{
    for (struct arena_block *b = a->head, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    a->head = NULL;
    a->used = 0;
}

void *arena_alloc(struct arena *a, size_t n)
{
    if (n > SIZE_MAX / 2)
        return NULL;
    n = (n + 15) & ~(size_t)15;
    if (a->limit && (n > a->limit || a->used > a->limit - n))
        return NULL;
    struct arena_block *b = a->head;
    if (!b || b->size - b->used < n) {
        size_t size = n > ARENA_BLOCK ? n : ARENA_BLOCK;
        b = malloc(sizeof *b + size);
        if (!b)
            return NULL;
        b->next = a->head;
        b->size = size;
        b->used = 0;
        a->head = b;
    }
    void *p = b->data + b->used;
    b->used += n;
    a->used += n;
    return memset(p, 0, n);
}

char *arena_strndup(struct arena *a, const char *s, size_t n)
{
    char *p = n < SIZE_MAX / 2 ? arena_alloc(a, n + 1) : NULL;
    if (p)
        memcpy(p, s, n);
    return p;
}
