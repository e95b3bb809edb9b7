/* channels: answers that are several messages, each with a header that says for whom it is.
 *
 *   <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…
 *   <|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>     (GPT-OSS)
 *    to=self<|message|>…<|eom|><|start|>assistant to=user<|message|>…                (Muse)
 *
 * The prompt ends in "<|start|>assistant", so an answer begins inside a header. Messages to
 * functions go to the tool parser, the analysis channel (the recipient self) is thinking, all else
 * is content. Several messages of one sort are joined by a line break. An answer without any header
 * is content. */
#ifndef BATON_TEXT_CHANNELS_H
#define BATON_TEXT_CHANNELS_H

#include "common/text/reasoning.h"
#include "common/text/toolcall.h"

enum channels_mode {
    CHANNELS_HEADER,
    CHANNELS_THINKING,
    CHANNELS_CONTENT,
    CHANNELS_CALL,
    CHANNELS_BETWEEN
};
struct channels {
    enum reasoning_kind kind;
    struct toolcall *tools; /* NULL: calls are content */
    reasoning_text_fn text;
    void *arg;
    struct marks marks;
    enum channels_mode mode;
    bool marked;                      /* the answer has headers */
    bool some_thinking, some_content; /* so far; */
    bool joined;                      /* the present message has been joined to the last */
    struct buf header;
    size_t channel_at; /* where in the header the channel's name begins; 0: none */
};
/* kind: REASONING_CHANNELS or REASONING_RECIPIENTS. tools must live as long as c. */
void channels_init(struct channels *c, enum reasoning_kind kind, struct toolcall *tools,
                   reasoning_text_fn text, void *arg);
void channels_fini(struct channels *c);
void channels_push(struct channels *c, char byte);
/* No more text; see reasoning_end. */
void channels_end(struct channels *c, bool cut);
/* Calls fn for every mark. */
void channels_marks(enum reasoning_kind kind, void (*fn)(void *arg, const char *mark), void *arg);

#endif
