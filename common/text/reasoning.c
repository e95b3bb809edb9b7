/* reasoning: the table of formats, and the byte-wise separator; see reasoning.h.
 *
 * The separator is two sets of marks and a few flags. Inside a block it looks for the closing tag,
 * outside for an opening one; blanks wait in `blanks` until it is known whether they are at an
 * edge. All decisions depend on the bytes so far, so the result does not depend on how tokens cut
 * them. */
#include "common/text/reasoning.h"

#include <string.h>

#define CHANNEL_END "<|end|><|start|>assistant<|channel|>final<|message|>"

/* Special forms first: detection takes the first that fits. */
static const struct reasoning_format formats[] = {
    {.name = "harmony",
     .needles = {"<|channel|>", "analysis"},
     .kind = REASONING_CHANNELS,
     .open = "<|channel|>analysis<|message|>",
     .close = "<|end|>",
     .force = CHANNEL_END},
    {.name = "recipient",
     .needles = {"to=self<|message|>"},
     .kind = REASONING_RECIPIENTS,
     .open = " to=self<|message|>",
     .close = "<|eom|>",
     .force = "<|eom|><|start|>assistant to=user<|message|>"},
    {.name = "gemma",
     .needles = {"<|channel>thought"},
     .open = "<|channel>thought\n",
     .close = "<channel|>"},
    {.name = "seed", .needles = {"<seed:think>"}, .open = "<seed:think>", .close = "</seed:think>"},
    {.name = "minimax", .needles = {"<mm:think>"}, .open = "<mm:think>", .close = "</mm:think>"},
    {.name = "hunyuan",
     .needles = {"<think:opensource>"},
     .open = "<think:opensource>",
     .close = "</think:opensource>"},
    {.name = "cohere",
     .needles = {"<|START_THINKING|>"},
     .open = "<|START_THINKING|>",
     .close = "<|END_THINKING|>",
     .skip = {"<|START_RESPONSE|>", "<|END_RESPONSE|>"}},
    {.name = "mistral", .needles = {"[THINK]"}, .open = "[THINK]", .close = "[/THINK]"},
    {.name = "apertus",
     .needles = {"<|inner_prefix|>"},
     .open = "<|inner_prefix|>",
     .close = "<|inner_suffix|>"},
    {.name = "solar",
     .needles = {"<|think|>", "<|content|>"},
     .open = "<|think|>",
     .close = "<|end|>",
     .skip = {"<|begin|>assistant", "<|content|>"}},
    {.name = "apriel",
     .needles = {"[BEGIN FINAL RESPONSE]", "Here are my reasoning steps:"},
     .open = "Here are my reasoning steps:",
     .close = "[BEGIN FINAL RESPONSE]",
     .breaks = "<tool_calls>",
     .skip = {"[END FINAL RESPONSE]"},
     .skip_behind = true,
     .implicit = true},
    {.name = "final_response",
     .needles = {"[BEGIN FINAL RESPONSE]"},
     .close = "[BEGIN FINAL RESPONSE]",
     .breaks = "<tool_calls>",
     .skip = {"[END FINAL RESPONSE]"},
     .skip_behind = true,
     .implicit = true},
    {.name = "granite",
     .needles = {"<think>", "<response>"},
     .open = "<think>",
     .close = "</think>",
     .skip = {"<response>", "</response>"},
     .skip_behind = true},
    {.name = "kimi",
     .needles = {"think>", "<|tool_calls_section_begin|>"},
     .open = "<think>",
     .close = "</think>",
     .breaks = "<|tool_calls_section_begin|>"},
    {.name = "think", .needles = {"think>"}, .open = "<think>", .close = "</think>"},
};
#define N_FORMATS (sizeof formats / sizeof *formats)

const struct reasoning_format *reasoning_format_at(size_t i)
{
    return i < N_FORMATS ? &formats[i] : NULL;
}

const struct reasoning_format *reasoning_format_find(const char *name)
{
    for (size_t i = 0; i < N_FORMATS; i++) {
        if (strcmp(formats[i].name, name) == 0)
            return &formats[i];
    }
    return NULL;
}

const struct reasoning_format *reasoning_format_detect(const char *text, const struct tokenizer *t)
{
    for (size_t i = 0; i < N_FORMATS; i++) {
        const char *const *needles = formats[i].needles;
        if (strstr(text, needles[0]) && (!needles[1] || strstr(text, needles[1])))
            return &formats[i];
    }
    /* A template that says nothing of thinking, for a model that has the tags as tokens. */
    for (size_t i = 0; t && i < N_FORMATS; i++) {
        const struct reasoning_format *f = &formats[i];
        if (f->kind == REASONING_TAGS && f->open && !f->needles[1] &&
            tokenizer_find(t, f->open, strlen(f->open)) >= 0 &&
            tokenizer_find(t, f->close, strlen(f->close)) >= 0)
            return f;
    }
    return NULL;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* Whether the text ends in mark, blanks at the ends of both aside. */
static bool ends_in(const char *text, size_t n, const char *mark)
{
    size_t m = mark ? strlen(mark) : 0;
    while (n && is_blank(text[n - 1]))
        n--;
    while (m && is_blank(mark[m - 1]))
        m--;
    return m && n >= m && memcmp(text + n - m, mark, m) == 0;
}

enum reasoning_start reasoning_start_of(const struct reasoning_format *f, const char *text,
                                        size_t n)
{
    if (ends_in(text, n, f->close))
        return REASONING_OFF;
    return f->implicit || ends_in(text, n, f->open) ? REASONING_OPEN : REASONING_UNSAID;
}

/* ---- the separator -----------------------------------------------------------------------------
 */

/* The order in which marks are added. */
enum inside { IN_CLOSE, IN_OPEN };
enum outside { OUT_CLOSE, OUT_OPEN };

static void add_marks(struct marks *m, const char *first, const char *second)
{
    marks_add(m, first);
    if (second)
        marks_add(m, second);
    else
        marks_add(m, first); /* keeps its place; the first of equal marks is found */
}

void reasoning_init(struct reasoning *r, const struct reasoning_format *f,
                    enum reasoning_start start, reasoning_text_fn text, void *arg)
{
    *r = (struct reasoning){.f = f, .text = text, .arg = arg};
    buf_init(&r->blanks, 0);
    add_marks(&r->inside, f->close, f->open);
    marks_add(&r->inside, f->breaks);
    add_marks(&r->outside, f->close, f->open);
    for (size_t i = 0; i < sizeof f->skip / sizeof *f->skip; i++)
        marks_add(&r->outside, f->skip[i]);
    r->thinking = start == REASONING_OPEN;
    r->off = r->closed = start == REASONING_OFF;
}

void reasoning_fini(struct reasoning *r)
{
    buf_fini(&r->blanks);
}

static void give(struct reasoning *r, const char *p, size_t n)
{
    if (r->text && n)
        r->text(r->arg, r->thinking, p, n);
}

static void give_blanks(struct reasoning *r)
{
    give(r, buf_str(&r->blanks), r->blanks.len);
    buf_reset(&r->blanks);
}

static void thinking_byte(struct reasoning *r, char c)
{
    if (is_blank(c)) {
        if (r->in_block)
            buf_putc(&r->blanks, c);
        return;
    }
    if (!r->in_block && r->thought)
        give(r, "\n", 1);
    give_blanks(r);
    r->in_block = r->thought = true;
    give(r, &c, 1);
}

static void answer_byte(struct reasoning *r, char c)
{
    if (!r->answered && is_blank(c)) {
        buf_putc(&r->blanks, c);
        return;
    }
    if (!r->answered && r->closed)
        buf_reset(&r->blanks);
    r->answered = true;
    give_blanks(r);
    give(r, &c, 1);
}

static void bytes(struct reasoning *r, const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (r->thinking)
            thinking_byte(r, p[i]);
        else
            answer_byte(r, p[i]);
    }
}

static void open_block(struct reasoning *r)
{
    if (!r->answered)
        buf_reset(&r->blanks);
    r->thinking = true;
    r->in_block = false;
}

static void close_block(struct reasoning *r)
{
    buf_reset(&r->blanks);
    r->thinking = false;
    r->closed = true;
}

static void inside_mark(struct reasoning *r, int mark)
{
    const char *text = r->inside.text[mark];
    if (mark == IN_OPEN && r->in_block)
        bytes(r, text, strlen(text));
    if (mark == IN_OPEN)
        return; /* the template wrote the tag, and the model did so again */
    close_block(r);
    if (mark != IN_CLOSE)
        bytes(r, text, strlen(text));
}

static void outside_mark(struct reasoning *r, int mark)
{
    const char *text = r->outside.text[mark];
    bool tag = mark == OUT_OPEN || mark == OUT_CLOSE;
    bool plain = tag ? r->off && r->answered : r->f->skip_behind && !r->closed;
    if (plain) {
        bytes(r, text, strlen(text));
        return;
    }
    if (mark == OUT_OPEN)
        open_block(r);
    else if (mark == OUT_CLOSE && !r->answered)
        close_block(r);
}

void reasoning_push(struct reasoning *r, char c)
{
    char out[MARKS_LEN];
    size_t n;
    bool inside = r->thinking;
    int mark = marks_push(inside ? &r->inside : &r->outside, c, out, &n);
    bytes(r, out, n);
    if (mark < 0)
        return;
    if (inside)
        inside_mark(r, mark);
    else
        outside_mark(r, mark);
}

void reasoning_end(struct reasoning *r, bool cut)
{
    char out[MARKS_LEN];
    size_t n = marks_end(r->thinking ? &r->inside : &r->outside, out);
    if (!cut || n < 2)
        bytes(r, out, n);
    if (r->thinking || r->answered || !r->closed)
        give_blanks(r);
}
