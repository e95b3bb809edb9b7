/* reasoning: what a model thinks and what it answers, told apart while the text comes.
 *
 * A format is a pair of tags and what surrounds them, found in the model's template and vocabulary
 * or chosen by name. Rules (docs/API.md repeats them):
 *   - everything between the tags is thinking; without a closing tag all the rest is;
 *   - blanks at the edges of a block, and before the first word of the answer behind one, belong to
 *     neither; several blocks are joined by a line break;
 *   - a tag is never shown; when the prompt has closed the thinking already (it is switched off),
 * an opening tag counts only as the very first thing of the answer. */
#ifndef BATON_TEXT_REASONING_H
#define BATON_TEXT_REASONING_H

#include <stdbool.h>

#include "common/base/buf.h"
#include "common/text/marks.h"
#include "common/text/tokenizer.h"

enum reasoning_kind {
    REASONING_TAGS,      /* this module */
    REASONING_CHANNELS,  /* messages with a channel (GPT-OSS): channels.h */
    REASONING_RECIPIENTS /* messages with a recipient (Muse): channels.h */
};

struct reasoning_format {
    const char *name;
    const char *needles[2]; /* all of them in what a template writes: this format */
    enum reasoning_kind kind;
    const char *open, *close;
    const char *breaks;  /* ends the thinking too, and is part of the answer; NULL: nothing */
    const char *skip[3]; /* marks around the answer that are not shown */
    bool skip_behind;    /* … but only behind a block of thinking */
    bool implicit;       /* every answer begins with thinking, without an opening tag */
    const char *force;   /* what ends thinking at once; NULL: close */
};
/* The format of that name, or NULL. */
const struct reasoning_format *reasoning_format_find(const char *name);
/* Number i of the table, or NULL behind its end. */
const struct reasoning_format *reasoning_format_at(size_t i);
/* The format of a model from what its template writes (source, renderings), else from its
 * vocabulary (t may be NULL); NULL: it does not think. */
const struct reasoning_format *reasoning_format_detect(const char *text, const struct tokenizer *t);

enum reasoning_start {
    REASONING_UNSAID, /* the model decides */
    REASONING_OPEN,   /* the prompt ends in the opening tag */
    REASONING_OFF     /* the prompt ends in the closing tag */
};
/* What the end of the prompt says; text is what the template itself wrote there. */
enum reasoning_start reasoning_start_of(const struct reasoning_format *f, const char *text,
                                        size_t n);

typedef void (*reasoning_text_fn)(void *arg, bool thinking, const char *p, size_t n);

struct reasoning {
    const struct reasoning_format *f;
    reasoning_text_fn text; /* may be NULL */
    void *arg;
    struct marks inside, outside;
    struct buf blanks; /* not yet known to be part of anything */
    bool thinking;     /* the next byte belongs to a block (or ends it) */
    bool off, closed;  /* closed: a block ended before this */
    bool answered;     /* something else than blanks of the answer came */
    bool thought;      /* the same for thinking, in any block */
    bool in_block;     /* the same for this block */
};
/* f (REASONING_TAGS) must live as long as r. */
void reasoning_init(struct reasoning *r, const struct reasoning_format *f,
                    enum reasoning_start start, reasoning_text_fn text, void *arg);
void reasoning_fini(struct reasoning *r);
void reasoning_push(struct reasoning *r, char c);
/* No more text: lets go of what was held back. cut: the model was not at its end, so that the
 * beginning of a tag (two bytes or more) is the rest of one, and left out. */
void reasoning_end(struct reasoning *r, bool cut);

#endif
