/* toolcall_formats: in which ways models write calls, and how to tell from a template which.
 *
 * Order matters: special forms come before those whose marks they contain. To add a format, add it
 * here and to tests/text/test_toolcall.c; a new shape needs an engine (toolcall_internal.h). */
#include <string.h>

#include "common/text/toolcall_internal.h"

#define DSML                                                                                       \
    "\xef\xbd\x9c"                                                                                 \
    "DSML"                                                                                         \
    "\xef\xbd\x9c" /* ｜DSML｜ */
#define DS(words) "<\xef\xbd\x9c" words "\xef\xbd\x9c>"
#define BAR       "\xe2\x96\x81" /* ▁ */

static const struct toolcall_format formats[] = {
    /* GPT-OSS: the channel's header says the name (channels.c). */
    {.name = "harmony", .needles = {"<|channel|>", "functions."}, .engine = ENGINE_NAMED},
    /* Muse: the recipient is the name; the body has it again. */
    {.name = "atem",
     .needles = {"<atem:invoke"},
     .engine = ENGINE_XML,
     .open = {"<atem:invoke name=\""},
     .wrap = {"<atem:function_calls>", "</atem:function_calls>"},
     .xml = {.name_end = "\"",
             .name_tail = ">",
             .key_open = "<atem:parameter name=\"",
             .key_end = "\"",
             .key_tail = ">",
             .value_end = "</atem:parameter>",
             .end = "</atem:invoke>"}},
    {.name = "dsml",
     .needles = {DSML},
     .engine = ENGINE_XML,
     .open = {"<" DSML "invoke name=\""},
     .wrap = {"<" DSML "function_calls>", "</" DSML "function_calls>", "<" DSML "tool_calls>",
              "</" DSML "tool_calls>"},
     .xml = {.name_end = "\"",
             .name_tail = ">",
             .key_open = "<" DSML "parameter name=\"",
             .key_end = "\"",
             .key_tail = ">",
             .value_end = "</" DSML "parameter>",
             .end = "</" DSML "invoke>"}},
    {.name = "deepseek",
     .needles = {DS("tool" BAR "call" BAR "begin")},
     .engine = ENGINE_NAMED,
     .open = {DS("tool" BAR "call" BAR "begin")},
     .close = DS("tool" BAR "call" BAR "end"),
     .wrap = {DS("tool" BAR "calls" BAR "begin"), DS("tool" BAR "calls" BAR "end")},
     .header = HEADER_DEEPSEEK,
     .sep = {DS("tool" BAR "sep")}},
    {.name = "kimi",
     .needles = {"<|tool_call_argument_begin|>"},
     .engine = ENGINE_NAMED,
     .open = {"<|tool_call_begin|>"},
     .close = "<|tool_call_end|>",
     .wrap = {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"},
     .header = HEADER_KIMI,
     .sep = {"<|tool_call_argument_begin|>"}},
    {.name = "solar",
     .needles = {"<|tool_call:args|>"},
     .engine = ENGINE_NAMED,
     .open = {"<|tool_call:begin|>"},
     .close = "<|tool_call:end|>",
     .wrap = {"<|tool_calls|>", "<|calls|>", "<|begin|>assistant", "<|content|>"},
     .header = HEADER_ID_NAME,
     .sep = {"<|tool_call:name|>", "<|tool_call:args|>"}},
    {.name = "mistral",
     .needles = {"[TOOL_CALLS]"},
     .engine = ENGINE_NAMED,
     .open = {"[TOOL_CALLS]"},
     .id_length = 9,
     .header = HEADER_MISTRAL,
     .sep = {"[CALL_ID]", "[ARGS]"}},
    {.name = "gemma",
     .needles = {"<|tool_call>call:"},
     .engine = ENGINE_GEMMA,
     .open = {"<|tool_call>call:"},
     .close = "<tool_call|>"},
    {.name = "minimax_m3",
     .needles = {"]<]minimax[>[", "invoke"},
     .engine = ENGINE_TREE,
     .open = {"]<]minimax[>[<invoke name=\""},
     .wrap = {"]<]minimax[>[<tool_call>", "]<]minimax[>[</tool_call>"}},
    {.name = "minimax",
     .needles = {"<minimax:tool_call>"},
     .engine = ENGINE_XML,
     .open = {"<invoke name=\""},
     .wrap = {"<minimax:tool_call>", "</minimax:tool_call>"},
     .xml = {.name_end = "\"",
             .name_tail = ">",
             .key_open = "<parameter name=\"",
             .key_end = "\"",
             .key_tail = ">",
             .value_end = "</parameter>",
             .end = "</invoke>"}},
    {.name = "hunyuan",
     .needles = {"<arg_key:opensource>"},
     .engine = ENGINE_XML,
     .open = {"<tool_call:opensource>"},
     .wrap = {"<tool_calls:opensource>", "</tool_calls:opensource>"},
     .xml = {.name_end = "<tool_sep:opensource>",
             .key_open = "<arg_key:opensource>",
             .key_end = "</arg_key:opensource>",
             .value_open = "<arg_value:opensource>",
             .value_end = "</arg_value:opensource>",
             .end = "</tool_call:opensource>"}},
    {.name = "glm",
     .needles = {"<arg_key>", "<tool_call>"},
     .engine = ENGINE_XML,
     .open = {"<tool_call>"},
     .xml = {.key_open = "<arg_key>",
             .key_end = "</arg_key>",
             .value_open = "<arg_value>",
             .value_end = "</arg_value>",
             .end = "</tool_call>"}},
    {.name = "qwen3_coder",
     .needles = {"<function=", "<parameter="},
     .engine = ENGINE_XML,
     .open = {"<function="},
     .wrap = {"<tool_call>", "</tool_call>", "<seed:tool_call>", "</seed:tool_call>"},
     .xml = {.name_end = ">",
             .key_open = "<parameter=",
             .key_end = ">",
             .value_end = "</parameter>",
             .end = "</function>",
             .lines = true}},
    {.name = "functionary",
     .needles = {"<function="},
     .engine = ENGINE_NAMED,
     .open = {"<function="},
     .close = "</function>",
     .header = HEADER_NAME,
     .sep = {">"}},
    {.name = "functionary_v3.2",
     .needles = {">>>all"},
     .engine = ENGINE_NAMED,
     .open = {">>>"},
     .begun = true,
     .header = HEADER_LINE},
    {.name = "command",
     .needles = {"<|START_ACTION|>"},
     .engine = ENGINE_JSON,
     .open = {"<|START_ACTION|>"},
     .close = "<|END_ACTION|>"},
    {.name = "apertus",
     .needles = {"<|tools_prefix|>"},
     .engine = ENGINE_JSON,
     .open = {"<|tools_prefix|>"},
     .close = "<|tools_suffix|>",
     .key_is_name = true},
    {.name = "lfm",
     .needles = {"<|tool_call_start|>"},
     .engine = ENGINE_PYTHON,
     .open = {"<|tool_call_start|>"},
     .close = "<|tool_call_end|>"},
    {.name = "gigachat",
     .needles = {"<|role_sep|>", "function call"},
     .engine = ENGINE_JSON,
     .open = {"function call<|role_sep|>", "<|function_call|>"},
     .wrap = {"<|message_sep|>"}},
    {.name = "gigachat",
     .needles = {"<|function_call|>"},
     .engine = ENGINE_JSON,
     .open = {"function call<|role_sep|>", "<|function_call|>"},
     .wrap = {"<|message_sep|>"}},
    {.name = "nemotron",
     .needles = {"<TOOLCALL>"},
     .engine = ENGINE_JSON,
     .open = {"<TOOLCALL>"},
     .close = "</TOOLCALL>"},
    {.name = "granite",
     .needles = {"<|tool_call|>"},
     .engine = ENGINE_JSON,
     .open = {"<|tool_call|>"}},
    {.name = "tool_calls",
     .needles = {"<tool_calls>"},
     .engine = ENGINE_JSON,
     .open = {"<tool_calls>"},
     .close = "</tool_calls>"},
    {.name = "hermes",
     .needles = {"<tool_call>"},
     .engine = ENGINE_JSON,
     .open = {"<tool_call>"},
     .close = "</tool_call>"},
    {.name = "pythonic",
     .needles = {"[func_name1("},
     .rendered = "[baton_probe(",
     .engine = ENGINE_PYTHON,
     .open = {"<|python_start|>"},
     .wrap = {"<|python_end|>"},
     .bare = true},
    {.name = "llama3_json",
     .needles = {"\"parameters\": dictionary of argument name"},
     .rendered = "{\"name\": \"baton_probe\", \"parameters\": ",
     .engine = ENGINE_JSON,
     .open = {"<|python_tag|>"},
     .bare = true},
};
#define N_FORMATS (sizeof formats / sizeof *formats)

const struct toolcall_format *toolcall_format_at(size_t i)
{
    return i < N_FORMATS ? &formats[i] : NULL;
}

const char *toolcall_format_name(const struct toolcall_format *f)
{
    return f->name;
}

unsigned toolcall_format_id_length(const struct toolcall_format *f)
{
    return f->id_length;
}

const struct toolcall_format *toolcall_format_find(const char *name)
{
    for (size_t i = 0; i < N_FORMATS; i++) {
        if (strcmp(formats[i].name, name) == 0)
            return &formats[i];
    }
    return NULL;
}

static const struct toolcall_format *detect(const char *text)
{
    for (size_t i = 0; text && i < N_FORMATS; i++) {
        const struct toolcall_format *f = &formats[i];
        if (f->rendered && strstr(text, f->rendered))
            return f;
        if (strstr(text, f->needles[0]) && (!f->needles[1] || strstr(text, f->needles[1])))
            return f;
    }
    return NULL;
}

const struct toolcall_format *toolcall_format_detect(const char *rendered, const char *source)
{
    const struct toolcall_format *f = detect(rendered);
    return f ? f : detect(source);
}

void toolcall_format_marks(const struct toolcall_format *f, void (*fn)(void *arg, const char *mark),
                           void *arg)
{
    const struct toolcall_xml *x = &f->xml;
    const char *const all[] = {f->open[0],
                               f->open[1],
                               f->open[2],
                               f->close,
                               f->wrap[0],
                               f->wrap[1],
                               f->wrap[2],
                               f->wrap[3],
                               f->sep[0],
                               f->sep[1],
                               x->name_end,
                               x->name_tail,
                               x->key_open,
                               x->key_end,
                               x->key_tail,
                               x->value_open,
                               x->value_end,
                               x->end,
                               f->engine == ENGINE_GEMMA ? "<|\"|>" : NULL};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i])
            fn(arg, all[i]);
    }
}
