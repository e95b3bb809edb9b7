/* grammar: what an answer may look like, compiled from JSON Schema, a regular expression, a list of
 * choices, or a GBNF grammar, to a pushdown automaton over bytes.
 *
 * What a source asks for is honoured exactly or refused with the reason and the place; nothing that
 * changes what is allowed is ignored. docs/API.md ("Structured output") lists what is supported and
 * the canonical form in which JSON is written.
 *
 * A grammar knows nothing of a vocabulary and is immutable: any thread may use it. tokenmask.h says
 * which tokens may come next. */
#ifndef BATON_TEXT_GRAMMAR_H
#define BATON_TEXT_GRAMMAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

enum grammar_kind {
    GRAMMAR_NONE,
    GRAMMAR_JSON,   /* any JSON object; no source */
    GRAMMAR_SCHEMA, /* JSON Schema, 2020-12 or draft-7 */
    GRAMMAR_REGEX,  /* the whole answer matches it */
    GRAMMAR_CHOICE, /* a JSON array of strings: the answer is one of them */
    GRAMMAR_GBNF    /* rules, from `root` on */
};

enum grammar_dialect { GRAMMAR_2020_12, GRAMMAR_DRAFT_7 }; /* of schemas without $schema */

struct grammar_options {
    /* JSON without any blank. Otherwise: after { [ and , and before } and ] nothing, one blank, or
     * a line break and up to 32 blanks or tabs; after : nothing or one blank. */
    bool compact;
    bool formats_ignored; /* "format" says nothing about what is valid (it may, in the standard) */
    enum grammar_dialect dialect;
};

#define GRAMMAR_SOURCE_MAX (1u << 20) /* bytes */

struct grammar;
/* options may be NULL. On failure err has one sentence (with a path such as "#/properties/a") and
 * the result is
 *   STATUS_FORMAT       the source is malformed
 *   STATUS_UNSUPPORTED  a keyword or construct that is not honoured here
 *   STATUS_RANGE        nothing at all satisfies it
 *   STATUS_LIMIT        it is too large, too deep, or would take too long
 *   STATUS_NOMEM. */
int grammar_compile(enum grammar_kind kind, const char *source, size_t n,
                    const struct grammar_options *options, struct grammar **out, char *err,
                    size_t errlen) WARN_UNUSED;
/* Grammars are counted; compile gives the first reference. */
struct grammar *grammar_get(struct grammar *g);
void grammar_put(struct grammar *g);
/* Memory that it takes. */
size_t grammar_bytes(const struct grammar *g);
/* Whether it derives this text. For tests and tools; STATUS_LIMIT when that takes too long. */
int grammar_accepts(const struct grammar *g, const char *p, size_t n, bool *out) WARN_UNUSED;

#endif
