/* assert: ASSERT stays on in release builds and says where and why before it aborts. It guards
 * invariants of our own code (state edges, block owners, kernel shapes), never input, peers, memory
 * or device failures. DASSERT is for costly walks and is on with -DBATON_DEBUG. */
#ifndef BATON_BASE_ASSERT_H
#define BATON_BASE_ASSERT_H

_Noreturn void assert_failed(const char *file, int line, const char *expr, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

#define ASSERT(expr)                                                                               \
    do {                                                                                           \
        if (__builtin_expect(!(expr), 0))                                                          \
            assert_failed(__FILE__, __LINE__, #expr, " ");                                         \
    } while (0)
/* ASSERT with a message: ASSERT_MSG(n < max, "request %llu: n %d", id, n). */
#define ASSERT_MSG(expr, ...)                                                                      \
    do {                                                                                           \
        if (__builtin_expect(!(expr), 0))                                                          \
            assert_failed(__FILE__, __LINE__, #expr, __VA_ARGS__);                                 \
    } while (0)
#ifdef BATON_DEBUG
#define DASSERT(expr) ASSERT(expr)
#else
#define DASSERT(expr) ((void)sizeof(!(expr)))
#endif

#endif
