/* mem: allocation with checked sizes, and arenas.
 *
 * Sizes that come from files or peers go through mem_mul/mem_add or mem_array: they fail instead of
 * wrapping. A failed allocation returns NULL; callers turn it into STATUS_NOMEM. */
#ifndef BATON_BASE_MEM_H
#define BATON_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

static inline bool mem_mul(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool mem_add(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

/* Zeroed array of n elements of size bytes; NULL when the product overflows or memory is short. */
void *mem_array(size_t n, size_t size);
/* realloc to n elements; the old block stays valid when it returns NULL. */
void *mem_resize(void *p, size_t n, size_t size);
/* Copies; NULL when memory is short. */
char *mem_strdup(const char *s);
void *mem_dup(const void *p, size_t n);

/* Large zeroed memory for weights and caches: aligned to 2 MiB, huge pages asked for. */
void *mem_huge(size_t n);
void mem_huge_free(void *p, size_t n);

/* Arena: many small allocations with one lifetime. Blocks of at least 4 KiB, freed together.
 * limit bounds the total (0: none); beyond it arena_alloc returns NULL. */
struct arena_block;
struct arena {
    struct arena_block *head;
    size_t used;
    size_t limit;
};
void arena_init(struct arena *a, size_t limit);
void arena_fini(struct arena *a);
/* Zeroed, aligned to 16 bytes; valid until arena_fini. */
void *arena_alloc(struct arena *a, size_t n);
char *arena_strndup(struct arena *a, const char *s, size_t n);

#endif
