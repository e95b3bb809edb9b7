/* channels: see channels.h. */
#include "common/text/channels.h"

#include <string.h>

#define HEADER_MAX 512

enum mark {
    MARK_START,
    MARK_MESSAGE,
    MARK_END,
    MARK_END2,
    MARK_END3,
    MARK_CHANNEL,
    MARK_CONSTRAIN
};
static const char *const harmony_marks[] = {"<|start|>",  "<|message|>", "<|end|>",      "<|call|>",
                                            "<|return|>", "<|channel|>", "<|constrain|>"};
static const char *const recipient_marks[] = {"<|start|>", "<|message|>", "<|eom|>", "<|eot|>"};

static const char *const *marks_of(enum reasoning_kind kind, size_t *n)
{
    bool harmony = kind == REASONING_CHANNELS;
    *n = harmony ? sizeof harmony_marks / sizeof *harmony_marks
                 : sizeof recipient_marks / sizeof *recipient_marks;
    return harmony ? harmony_marks : recipient_marks;
}

void channels_marks(enum reasoning_kind kind, void (*fn)(void *arg, const char *mark), void *arg)
{
    size_t n;
    const char *const *marks = marks_of(kind, &n);
    for (size_t i = 0; i < n; i++)
        fn(arg, marks[i]);
}

void channels_init(struct channels *c, enum reasoning_kind kind, struct toolcall *tools,
                   reasoning_text_fn text, void *arg)
{
    size_t n;
    const char *const *marks = marks_of(kind, &n);
    *c = (struct channels){.kind = kind, .tools = tools, .text = text, .arg = arg};
    buf_init(&c->header, 0);
    for (size_t i = 0; i < n; i++)
        marks_add(&c->marks, marks[i]);
}

void channels_fini(struct channels *c)
{
    buf_fini(&c->header);
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static void give(struct channels *c, bool thinking, const char *p, size_t n)
{
    bool *some = thinking ? &c->some_thinking : &c->some_content;
    if (n == 0)
        return;
    if (*some && !c->joined)
        c->text(c->arg, thinking, "\n", 1);
    c->joined = *some = true;
    c->text(c->arg, thinking, p, n);
}

static void set_mode(struct channels *c, enum channels_mode mode)
{
    if (c->mode == CHANNELS_CALL)
        toolcall_leave(c->tools);
    c->mode = mode;
    c->joined = false;
    if (mode == CHANNELS_HEADER) {
        buf_reset(&c->header);
        c->channel_at = 0;
    }
}

/* The text behind "to=", up to a blank; NULL without one. */
static const char *recipient(const struct channels *c, size_t *n)
{
    const char *h = buf_str(&c->header), *at = strstr(h, "to=");
    if (!at)
        return NULL;
    at += 3;
    *n = strcspn(at, " \n\r\t");
    return at;
}

static bool is(const char *p, size_t n, const char *word)
{
    return n == strlen(word) && memcmp(p, word, n) == 0;
}

/* The header is complete: what is its message? */
static void begin_message(struct channels *c)
{
    static const char functions[] = "functions.";
    size_t n = 0;
    const char *to = recipient(c, &n);
    if (c->kind == REASONING_RECIPIENTS) {
        bool call = to && !is(to, n, "self") && !is(to, n, "user");
        set_mode(c, to && is(to, n, "self") ? CHANNELS_THINKING
                    : call && c->tools      ? CHANNELS_CALL
                                            : CHANNELS_CONTENT);
        return;
    }
    const char *channel = c->channel_at ? buf_str(&c->header) + c->channel_at : "";
    bool analysis = strncmp(channel, "analysis", 8) == 0;
    bool call =
        to && c->tools && n && !is(to, n, "assistant") && !is(to, n, "user") && !is(to, n, "all");
    if (!call) {
        set_mode(c, analysis ? CHANNELS_THINKING : CHANNELS_CONTENT);
        return;
    }
    if (n > sizeof functions - 1 && memcmp(to, functions, sizeof functions - 1) == 0) {
        to += sizeof functions - 1;
        n -= sizeof functions - 1;
    }
    set_mode(c, CHANNELS_CALL);
    toolcall_begin(c->tools, to, n);
}

/* Whether the text so far can be the beginning of the first header: " to=…" or a role. */
static bool header_like(const struct channels *c)
{
    const char *p = buf_str(&c->header);
    while (is_blank(*p))
        p++;
    size_t n = strlen(p);
    return strncmp(p, "to=", n < 3 ? n : 3) == 0 || strncmp(p, "assistant", n < 9 ? n : 9) == 0;
}

/* What looked like a header is an answer without one. */
static void plain(struct channels *c)
{
    c->mode = CHANNELS_CONTENT;
    give(c, false, buf_str(&c->header), c->header.len);
}

static void byte(struct channels *c, char b)
{
    switch (c->mode) {
    case CHANNELS_HEADER:
        buf_putc(&c->header, b);
        if ((!c->marked && !header_like(c)) || c->header.len > HEADER_MAX)
            plain(c);
        break;
    case CHANNELS_THINKING:
        give(c, true, &b, 1);
        break;
    case CHANNELS_CALL:
        toolcall_push(c->tools, b);
        break;
    case CHANNELS_BETWEEN:
        if (is_blank(b))
            break;
        c->mode = CHANNELS_CONTENT;
        /* fall through */
    case CHANNELS_CONTENT:
        give(c, false, &b, 1);
        break;
    }
}

static void mark(struct channels *c, int i)
{
    c->marked = true;
    switch ((enum mark)i) {
    case MARK_START:
        set_mode(c, CHANNELS_HEADER);
        break;
    case MARK_CHANNEL:
        if (c->mode != CHANNELS_HEADER)
            set_mode(c, CHANNELS_HEADER);
        buf_putc(&c->header, ' ');
        c->channel_at = c->header.len;
        break;
    case MARK_CONSTRAIN:
        if (c->mode == CHANNELS_HEADER)
            buf_putc(&c->header, ' ');
        break;
    case MARK_MESSAGE:
        if (c->mode == CHANNELS_HEADER)
            begin_message(c);
        break;
    case MARK_END:
    case MARK_END2:
    case MARK_END3:
        set_mode(c, CHANNELS_BETWEEN);
        break;
    }
}

void channels_push(struct channels *c, char b)
{
    char out[MARKS_LEN];
    size_t n;
    int found = marks_push(&c->marks, b, out, &n);
    for (size_t i = 0; i < n; i++)
        byte(c, out[i]);
    if (found >= 0)
        mark(c, found);
}

void channels_end(struct channels *c, bool cut)
{
    char out[MARKS_LEN];
    size_t n = marks_end(&c->marks, out);
    for (size_t i = 0; i < n && !(cut && n > 1); i++)
        byte(c, out[i]);
    if (c->mode == CHANNELS_HEADER && !c->marked)
        plain(c);
    /* a call whose end mark was the model's last token */
    if (c->mode == CHANNELS_CALL && !cut)
        toolcall_leave(c->tools);
}
