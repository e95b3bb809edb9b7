/* grammar_rig: compiling a source and asking what it derives, for the tests of the grammar engine.
 */
#ifndef BATON_TESTS_TEXT_GRAMMAR_RIG_H
#define BATON_TESTS_TEXT_GRAMMAR_RIG_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "common/text/grammar.h"
#include "tests/harness.h"

static inline struct grammar *rig_compile(enum grammar_kind kind, const char *source,
                                          const struct grammar_options *o)
{
    struct grammar *g = NULL;
    char err[512] = "";
    int rc = grammar_compile(kind, source, strlen(source), o, &g, err, sizeof err);
    ck_assert_msg(rc == STATUS_OK, "%s: %s %s", source, status_name(rc), err);
    return g;
}

static inline bool rig_derives(const struct grammar *g, const char *text)
{
    bool yes = false;
    ck_assert_ok(grammar_accepts(g, text, strlen(text), &yes));
    return yes;
}

/* texts: those that are derived begin with +, the others with -; NULL ends the list. */
static inline void rig_check(enum grammar_kind kind, const char *source,
                             const struct grammar_options *o, const char *const *texts)
{
    struct grammar *g = rig_compile(kind, source, o);
    for (; *texts; texts++)
        ck_assert_msg(rig_derives(g, *texts + 1) == (**texts == '+'), "%s: %s", source, *texts);
    grammar_put(g);
}

/* It is refused with this status, and what it says contains `part`. */
static inline void rig_refused(enum grammar_kind kind, const char *source, int status,
                               const char *part)
{
    struct grammar *g = NULL;
    char err[512] = "";
    int rc = grammar_compile(kind, source, strlen(source), NULL, &g, err, sizeof err);
    ck_assert_msg(rc == status && strstr(err, part), "%.200s: %s %s", source, status_name(rc), err);
    if (rc == STATUS_OK)
        grammar_put(g);
}

#define TEXTS(...)                                                                                 \
    (const char *const[])                                                                          \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }

/* n times s, to be freed. */
static inline char *rig_repeat(const char *s, size_t n)
{
    size_t len = strlen(s);
    char *out = malloc(n * len + 1);
    ck_assert_ptr_nonnull(out);
    for (size_t i = 0; i < n; i++)
        memcpy(out + i * len, s, len);
    out[n * len] = 0;
    return out;
}

#endif
