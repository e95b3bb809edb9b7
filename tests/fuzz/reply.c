/* Thinking and tool calls: any text in every format. The first bytes choose format, start and end;
 * however the rest is cut, the message is the same, and complete calls have JSON arguments. */
#include "common/text/budget.h"
#include "common/text/json_scan.h"
#include "common/text/reply.h"
#include "tests/fuzz/fuzz.h"

static const char tools_text[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": "
    "\"object\", \"properties\": {\"a\": {\"type\": \"string\"}, \"b\": {\"type\": \"integer\"}, "
    "\"c\": {\"type\": \"array\", \"items\": {\"type\": \"object\"}}}}}}]";

static void put_message(struct reply *r, struct buf *out)
{
    size_t n = 0;
    struct toolcall_call *c = r->tools ? toolcall_calls(r->tools, &n) : NULL;
    buf_printf(out, "T%zu:", r->thinking.len);
    buf_append(out, buf_str(&r->thinking), r->thinking.len);
    buf_printf(out, "C%zu:", r->content.len);
    buf_append(out, buf_str(&r->content), r->content.len);
    for (size_t i = 0; i < n; i++) {
        FUZZ_CHECK(c[i].shown);
        FUZZ_CHECK(!c[i].complete || json_scan_whole(buf_str(&c[i].arguments), c[i].arguments.len));
        FUZZ_CHECK(!c[i].complete || buf_str(&c[i].arguments)[0] == '{');
        FUZZ_CHECK(c[i].name.len > 0 && !(c[i].complete && c[i].broken));
        buf_printf(out, "F%d%d%zu:", c[i].complete, c[i].broken, c[i].name.len);
        buf_append(out, buf_str(&c[i].name), c[i].name.len);
        buf_append(out, buf_str(&c[i].id), c[i].id.len);
        buf_append(out, buf_str(&c[i].arguments), c[i].arguments.len);
    }
}

static void read_reply(const struct reply_profile *p, enum reasoning_start start,
                       const json_t *tools, const char *text, size_t n, size_t piece, bool cut,
                       struct buf *out)
{
    struct reply r;
    FUZZ_CHECK(reply_init(&r, p, start, tools) == STATUS_OK);
    for (size_t at = 0; at < n; at += piece)
        reply_push(&r, text + at, piece < n - at ? piece : n - at);
    reply_end(&r, cut);
    FUZZ_CHECK(reply_ok(&r));
    /* nothing is made up: all that comes out was in the text, or is punctuation of JSON */
    FUZZ_CHECK(r.content.len <= n + 64 && r.thinking.len <= 2 * n + 64);
    put_message(&r, out);
    reply_fini(&r);
}

void fuzz_reply(const uint8_t *data, size_t n)
{
    static json_t *tools;
    static size_t n_reasoning, n_tools;
    json_error_t e;
    if (!tools) {
        tools = json_loads(tools_text, 0, &e);
        FUZZ_CHECK(tools);
        while (reasoning_format_at(n_reasoning))
            n_reasoning++;
        while (toolcall_format_at(n_tools))
            n_tools++;
    }
    if (n < 3)
        return;
    struct reply_profile p = {.reasoning = reasoning_format_at(data[0] % (n_reasoning + 1)),
                              .tools = toolcall_format_at(data[1] % (n_tools + 1))};
    enum reasoning_start start = (enum reasoning_start)(data[2] % 3);
    bool cut = data[2] / 3 % 2;
    size_t piece = 1 + data[2] / 6 % 7;
    const char *text = (const char *)data + 3;
    struct buf whole, pieces;
    n -= 3;
    buf_init(&whole, 0);
    buf_init(&pieces, 0);
    read_reply(&p, start, tools, text, n, n ? n : 1, cut, &whole);
    read_reply(&p, start, tools, text, n, piece, cut, &pieces);
    FUZZ_CHECK(whole.len == pieces.len &&
               memcmp(buf_str(&whole), buf_str(&pieces), whole.len) == 0);
    buf_fini(&whole);
    buf_fini(&pieces);
}
