/* toolcall: the tool calls in a model's answer, found while the text comes.
 *
 * Names are known as soon as the model has written them, and arguments are passed on as they come;
 * in formats that are not JSON they are turned into it. What looked like a call and turns out not
 * to be one (broken JSON) becomes content again, byte for byte. Blanks and wrappers around calls
 * are no content. The result depends on the text alone, not on how tokens cut it. */
#ifndef BATON_TEXT_TOOLCALL_H
#define BATON_TEXT_TOOLCALL_H

#include <stdbool.h>

#include "common/base/buf.h"
#include "common/base/json.h"
#include "common/base/status.h"

struct toolcall_format;
/* The format of that name, or NULL. */
const struct toolcall_format *toolcall_format_find(const char *name);
/* Number i of the table, or NULL behind its end. */
const struct toolcall_format *toolcall_format_at(size_t i);
const char *toolcall_format_name(const struct toolcall_format *f);
/* The format in which a template writes calls. rendered: what it wrote for a message with a call,
 * or NULL; source: the template itself. NULL: it knows no calls. */
const struct toolcall_format *toolcall_format_detect(const char *rendered, const char *source);
/* Calls fn for every fixed string of the format. */
void toolcall_format_marks(const struct toolcall_format *f, void (*fn)(void *arg, const char *mark),
                           void *arg);
/* Length of the ids that its templates insist on, or 0. */
unsigned toolcall_format_id_length(const struct toolcall_format *f);

struct toolcall_call {
    struct buf id; /* empty: the model gives none */
    struct buf name, arguments;
    bool shown;    /* the name is certain and the arguments look right so far */
    bool complete; /* arguments are JSON */
    bool broken;   /* shown, but then it was no call: its text has become content */
};

struct toolcall;
/* tools: the request's list (for the types of parameters), kept; may be NULL. content: where text
 * that belongs to no call is appended; it must outlive the parser. */
int toolcall_create(const struct toolcall_format *f, const json_t *tools, struct buf *content,
                    struct toolcall **out) WARN_UNUSED;
void toolcall_destroy(struct toolcall *t);
void toolcall_push(struct toolcall *t, char c);
/* No more text. cut: it stops in the middle, so a call that is shown stays although it is not
 * complete. */
void toolcall_end(struct toolcall *t, bool cut);
/* Whether a call, or what stands between the calls of a list, is being written: the bytes belong to
 * this parser, whatever they look like. */
bool toolcall_busy(const struct toolcall *t);
/* Calls so far; the last may still change. A pointer is valid until the next push. */
struct toolcall_call *toolcall_calls(struct toolcall *t, size_t *n);
/* False when memory ran out. */
bool toolcall_ok(const struct toolcall *t);

/* For a format in which something else says whose arguments follow (channels.h): begin, then push
 * the arguments, then leave. Between leave and begin push takes content. */
void toolcall_begin(struct toolcall *t, const char *name, size_t n);
void toolcall_leave(struct toolcall *t);

#endif
