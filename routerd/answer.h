/* answer: the tokens of one choice as the client sees them: text, thinking, tool calls, stop
 * strings, log probabilities.
 *
 * Pure function of the ids fed so far. After each answer_token (and after answer_end) `text` holds
 * what may be shown since the caller last cleared it (`thinking` the same of thinking), and items
 * released..ready are the log probabilities that go with it. Text that could be the start of a stop
 * string, and half characters, are held back; the items of tokens whose text is held back wait with
 * it. */
#ifndef BATON_ROUTERD_ANSWER_H
#define BATON_ROUTERD_ANSWER_H

#include "common/proto/proto.h"
#include "common/text/detok.h"
#include "common/text/reply.h"
#include "common/text/stop.h"

struct answer_item {
    int32_t id;
    float logprob;
    struct proto_top *top;
    uint32_t n_top;
    size_t begin, end; /* bytes of the text before and after this token, held-back bytes excluded;
                          thinking and tool calls are no text */
    size_t chars;      /* characters of the text before this token */
};

struct answer {
    const struct tokenizer *tok;
    struct detok detok;
    struct reply *reply;      /* tells thinking and tool calls from text; NULL: all is text */
    struct stop *stop;        /* NULL without stop strings; they are looked for in the text alone */
    bool show_stop;           /* the stop string that matched is shown */
    struct token_text *stops; /* [n_stops] loans */
    size_t n_stops;
    struct buf piece; /* scratch: text of one token */
    struct buf text;  /* shown and not yet taken by the caller */
    struct buf thinking;
    size_t decoded; /* bytes of text decoded so far */
    size_t decoded_chars;
    size_t shown; /* bytes of it that were appended to text so far */
    bool keep_items;
    struct answer_item *items;
    uint32_t n_items, cap_items;
    uint32_t released;   /* items before this one were taken by the caller */
    uint32_t ready;      /* items before this one may be shown */
    uint32_t n_tokens;   /* tokens fed */
    uint32_t n_thinking; /* of them thinking, the closing tag included */
    bool stopped;        /* a stop string matched: stops[match] */
    int match;
    bool ids_as_tokens; /* log probabilities name tokens "token_id:5" */
};

int answer_init(struct answer *a, const struct tokenizer *t, char *const *stops, const size_t *len,
                size_t n_stops, bool keep_items) WARN_UNUSED;
void answer_fini(struct answer *a);
/* From the first token on: thinking and, when tools are given, calls are told from the text. */
int answer_read(struct answer *a, const struct reply_profile *p, enum reasoning_start start,
                const json_t *tools) WARN_UNUSED;
/* The calls; NULL when none are looked for. Length of the ids that they need, or 0. */
struct toolcall *answer_tools(const struct answer *a);
unsigned answer_id_length(const struct answer *a);
/* shown_token: false for a stop id that ended the sequence (counted, but no text and no item). */
int answer_token(struct answer *a, const struct proto_token *t, bool shown_token) WARN_UNUSED;
/* No more tokens: releases what was held back. cut: by max_tokens, not by the model. */
void answer_end(struct answer *a, bool cut);

/* JSON text of a string: quoted, escaped, invalid UTF-8 replaced by U+FFFD. */
void answer_json_string(struct buf *out, const char *p, size_t n);
/* {"logprob":…,"rank":…,"decoded_token":…} */
void answer_rank_json(struct buf *out, const struct tokenizer *t, int32_t id, float logprob,
                      uint32_t rank);
/* Tokens with their log probabilities, as chat completions and responses list them, for items
 * [from, to). */
void answer_logprob_list(struct buf *out, const struct answer *a, uint32_t from, uint32_t to);
/* The logprobs object of chat completions for items [from, to). */
void answer_chat_logprobs(struct buf *out, const struct answer *a, uint32_t from, uint32_t to);
/* The logprobs object of completions over runs of items, one after another (echoed prompt, answer).
 * An item whose logprob is above 0 has none to report (the first token of a prompt). */
struct answer_run {
    const struct answer *a;
    uint32_t from, to;
    size_t offset; /* characters before the first token of a */
};
void answer_completion_logprobs(struct buf *out, const struct answer_run *runs, size_t n);

#endif
