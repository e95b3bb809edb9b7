/* buf: a growing byte buffer with an upper bound, owned by whoever declares it.
 *
 * Appending beyond max, or out of memory, sets `failed` and leaves the contents as they were, so a
 * writer may append many pieces and look at buf_ok() once at the end. */
#ifndef BATON_BASE_BUF_H
#define BATON_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf {
    char *data; /* len bytes and a NUL; NULL while nothing was appended */
    size_t len, cap, max;
    bool failed;
};

/* max 0: 1 GiB. */
void buf_init(struct buf *b, size_t max);
void buf_fini(struct buf *b);
/* Forgets the contents (and the failure), keeps the memory. */
void buf_reset(struct buf *b);
void buf_append(struct buf *b, const void *p, size_t n);
void buf_puts(struct buf *b, const char *s);
void buf_putc(struct buf *b, char c);
void buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Room for n more bytes at data+len, or NULL; the caller writes there and adds to len. */
void *buf_reserve(struct buf *b, size_t n);
/* Drops the first n bytes. */
void buf_consume(struct buf *b, size_t n);
/* The contents as a string ("" when empty); a loan until the next change. */
const char *buf_str(const struct buf *b);
/* Takes the memory (NUL-terminated, to be freed with free) and leaves the buffer empty; NULL when
 * failed. */
char *buf_take(struct buf *b);
static inline bool buf_ok(const struct buf *b)
{
    return !b->failed;
}

#endif
