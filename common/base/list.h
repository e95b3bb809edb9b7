/* list: intrusive doubly linked list. A node sits inside its owner and is on at most one list. */
#ifndef BATON_BASE_LIST_H
#define BATON_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct list {
    struct list *next, *prev;
};

static inline void list_init(struct list *l)
{
    l->next = l->prev = l;
}
static inline bool list_empty(const struct list *l)
{
    return l->next == l;
}
static inline void list_insert_before(struct list *at, struct list *n)
{
    n->prev = at->prev;
    n->next = at;
    at->prev->next = n;
    at->prev = n;
}
static inline void list_push_back(struct list *l, struct list *n)
{
    list_insert_before(l, n);
}
static inline void list_push_front(struct list *l, struct list *n)
{
    list_insert_before(l->next, n);
}
/* Takes n off its list; harmless when it is on none (but was initialised). */
static inline void list_remove(struct list *n)
{
    n->prev->next = n->next;
    n->next->prev = n->prev;
    list_init(n);
}

#define container_of(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))
#define LIST_FOR(it, l)                 for (struct list *it = (l)->next; it != (l); it = it->next)
#define LIST_FOR_SAFE(it, l)                                                                       \
    for (struct list *it = (l)->next, *it##_next = it->next; it != (l);                            \
         it = it##_next, it##_next = it->next)

#endif
