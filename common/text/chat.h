/* chat: a model's own chat template (the Jinja that models ship) from messages to prompt text.
 *
 * Compiled once at load. Rendering is sandboxed: no I/O, budgets for steps, depth, memory and
 * output. Settings are those of the transformers library: trim_blocks, lstrip_blocks, loop
 * controls, raise_exception, strftime_now, tojson without ASCII or HTML escaping. */
#ifndef BATON_TEXT_CHAT_H
#define BATON_TEXT_CHAT_H

#include <stdbool.h>

#include "common/base/buf.h"
#include "common/base/json.h"
#include "common/base/status.h"

struct chat_template;
/* err: one sentence with line number when the template cannot be compiled. */
int chat_template_create(const char *source, size_t n, struct chat_template **out, char *err,
                         size_t errlen) WARN_UNUSED;
void chat_template_destroy(struct chat_template *t);
/* The template used for models that bring none (ChatML). */
const char *chat_default_template(void);

/* A stretch of the rendered text. Text that the template wrote itself may name special tokens
 * ("<|im_start|>"); text that came from the context (what users wrote) is always plain text. */
struct chat_span {
    size_t begin, end;
    bool from_template;
};
struct chat_output {
    struct buf text;
    struct chat_span *spans; /* cover the text, ascending, neighbours differ in from_template */
    size_t n_spans;
};
void chat_output_fini(struct chat_output *o);

/* context: a JSON object with the variables (messages, tools, add_generation_prompt, bos_token,
 * eos_token, and whatever chat_template_kwargs brings). STATUS_INVALID with the template's own
 * message in err when it calls raise_exception or fails; STATUS_LIMIT beyond a budget.
 * now: seconds since the epoch for strftime_now. */
int chat_render(const struct chat_template *t, const json_t *context, int64_t now,
                struct chat_output *out, char *err, size_t errlen) WARN_UNUSED;

#endif
