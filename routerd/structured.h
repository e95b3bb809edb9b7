/* structured: what a request says about the form of its answer: response_format and
 * structured_outputs, and the older names of the latter. */
#ifndef BATON_ROUTERD_STRUCTURED_H
#define BATON_ROUTERD_STRUCTURED_H

#include "common/text/grammar.h"
#include "routerd/fields.h"

struct structured {
    enum grammar_kind kind; /* GRAMMAR_NONE: anything goes */
    char *source;           /* owned; n bytes and a NUL */
    size_t n;
    bool compact;
};
/* Whether a body may have such a field: compiling a grammar takes its time. A cheap look at the
 * bytes. */
bool structured_mentioned(const char *body, size_t n);
/* Compiles what is asked for, so that what cannot be honoured is refused here. Any thread. */
int structured_parse(const json_t *request, struct structured *out,
                     struct api_error *e) WARN_UNUSED;
void structured_fini(struct structured *s);

/* A call of one of these functions (tools of the request) and nothing else; name: of the only one
 * that may be called, or NULL. Written as {"name": …, "parameters": …}. */
int structured_call(const json_t *tools, const char *name, struct structured *out,
                    struct api_error *e) WARN_UNUSED;

#endif
