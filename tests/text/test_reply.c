/* Tests of common/text/reply: thinking, content and calls together; what is found out about the
 * templates that models ship; and that what those templates write is read back. */
#include "tests/text/chat_rig.h"
#include "tests/text/reply_rig.h"
#include "tests/text/vocab_build.h"

/* Of each template: how its model thinks, how thinking stands where its prompt ends, how it calls,
 * and in which form it wants the arguments of calls. */
static const struct template
{
    const char *name, *reasoning, *start, *tools, *arguments;
}
templates[] = {
    {"Apertus-8B-Instruct", "apertus", "unsaid", "apertus", "object"},
    {"Apriel-1.6-15b-Thinker-fixed", "apriel", "open", "tool_calls", "object"},
    {"ByteDance-Seed-OSS", "seed", "unsaid", "qwen3_coder", "object"},
    {"Cohere2MoE", "cohere", "open", "command", "object"},
    {"CohereForAI-c4ai-command-r7b-12-2024-tool_use", "cohere", "off", "command", "object"},
    {"GLM-4.6", "think", "unsaid", "glm", "object"},
    {"GigaChat3-10B-A1.8B", "-", "unsaid", "gigachat", "object"},
    {"GigaChat3.1-10B-A1.8B", "-", "unsaid", "gigachat", "object"},
    {"Kimi-K2-Instruct", "-", "unsaid", "kimi", "object"},
    {"Kimi-K2-Thinking", "kimi", "unsaid", "kimi", "object"},
    {"LFM2-8B-A1B", "-", "unsaid", "-", "object"},
    {"LFM2.5-8B-A1B", "think", "unsaid", "lfm", "object"},
    {"MiMo-VL", "-", "unsaid", "hermes", "object"},
    {"MiniMax-M1", "-", "unsaid", "tool_calls", "object"},
    {"MiniMax-M3", "minimax", "unsaid", "minimax_m3", "object"},
    {"Mistral-Small-3.2-24B-Instruct-2506", "-", "unsaid", "mistral", "object"},
    {"NVIDIA-Nemotron-Nano-v2", "think", "open", "nemotron", "object"},
    {"NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", "-", "unsaid", "hermes", "object"},
    {"Qwen-QwQ-32B", "think", "off", "hermes", "object"},
    {"Qwen-Qwen2.5-7B-Instruct", "-", "unsaid", "hermes", "object"},
    {"Qwen3-Coder", "-", "unsaid", "qwen3_coder", "object"},
    {"Qwen3.5-4B", "think", "open", "qwen3_coder", "object"},
    {"Spark2.5", "think", "open", "glm", "object"},
    {"StepFun3.5-Flash", "think", "open", "qwen3_coder", "object"},
    {"deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "think", "off", "deepseek", "object"},
    {"deepseek-ai-DeepSeek-V3.1", "think", "off", "deepseek", "object"},
    {"deepseek-ai-DeepSeek-V4", "think", "off", "dsml", "object"},
    {"deepseek-ai-DeepSeek-V4-Flash-0731", "think", "off", "dsml", "object"},
    {"google-gemma-2-2b-it", "-", "unsaid", "-", "object"},
    {"google-gemma-4-31B-it", "gemma", "off", "gemma", "object"},
    {"ibm-granite-granite-3.3-2B-Instruct", "granite", "unsaid", "granite", "object"},
    {"ibm-granite-granite-4.0", "-", "unsaid", "hermes", "object"},
    {"inclusionai-ling-3.0-flash", "think", "open", "glm", "object"},
    {"llama-cpp-deepseek-r1", "think", "open", "deepseek", "object"},
    {"meetkai-functionary-medium-v3.1", "-", "unsaid", "functionary", "object"},
    {"meetkai-functionary-medium-v3.2", "-", "unsaid", "functionary_v3.2", "text"},
    {"meta-llama-Llama-3.2-3B-Instruct", "-", "unsaid", "llama3_json", "object"},
    {"meta-llama-Llama-3.3-70B-Instruct", "-", "unsaid", "llama3_json", "object"},
    {"mistralai-Ministral-3-14B-Reasoning-2512", "mistral", "unsaid", "mistral", "object"},
    {"mistralai-Mistral-Nemo-Instruct-2407", "-", "unsaid", "mistral", "object"},
    {"muse-glimmer", "recipient", "unsaid", "atem", "object"},
    {"openai-gpt-oss-120b", "harmony", "unsaid", "harmony", "object"},
    {"poolside-Laguna-S-2.1", "think", "open", "glm", "object"},
    {"poolside-Laguna-XS-2.1", "think", "off", "glm", "object"},
    {"tencent-Hy3", "hunyuan", "off", "hunyuan", "object"},
    {"unsloth-Apriel-1.5", "final_response", "open", "tool_calls", "object"},
    {"upstage-Solar-Open-100B", "solar", "unsaid", "solar", "object"},
};
#define N_TEMPLATES (sizeof templates / sizeof *templates)

/* Those that write no calls, or not two messages in a row. */
static const char *const without_calls[] = {
    "Kimi-K2-Instruct",     "Kimi-K2-Thinking",
    "LFM2-8B-A1B",          "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
    "google-gemma-2-2b-it", "ibm-granite-granite-3.3-2B-Instruct",
    "llama-cpp-deepseek-r1"};

static struct tokenizer *tokenizer_any(void)
{
    struct vocab_build *b = vb_create(TOKENIZER_BPE);
    vb_merge(b, "h", "e");
    return vb_finish(b);
}

static const char *start_name(enum reasoning_start s)
{
    return s == REASONING_OPEN ? "open" : s == REASONING_OFF ? "off" : "unsaid";
}

static char *render_text(const struct chat_template *t, const json_t *context)
{
    struct chat_output out;
    char err[256];
    if (chat_render(t, context, NOW, &out, err, sizeof err) != STATUS_OK)
        return NULL;
    char *text = buf_take(&out.text);
    chat_output_fini(&out);
    return text;
}

/* A question; the generation prompt follows it. */
static json_t *question(void)
{
    json_t *c = parse("{\"messages\": [{\"role\": \"user\", \"content\": \"QQQ\"}], "
                      "\"add_generation_prompt\": true, \"bos_token\": \"<s>\", "
                      "\"eos_token\": \"</s>\"}"),
           *tools = reply_json(TOOLS);
    json_array_remove(tools, 1);
    json_object_del(
        json_object_get(
            json_object_get(json_object_get(json_array_get(tools, 0), "function"), "parameters"),
            "properties"),
        "unit");
    json_object_set_new(c, "tools", tools);
    return c;
}

/* The same with an answer that has everything. */
static void add_answer(json_t *context, bool text)
{
    json_t *m = parse("{\"role\": \"assistant\", \"content\": \"CCC\", \"reasoning_content\": "
                      "\"RRR\", \"tool_calls\": [{\"id\": \"call12345\", \"type\": "
                      "\"function\", \"function\": {\"name\": \"get_weather\", \"arguments\": "
                      "{\"city\": \"Z\", \"days\": 2}}}]}");
    json_t *f = json_object_get(json_array_get(json_object_get(m, "tool_calls"), 0), "function");
    if (text)
        json_object_set_new(f, "arguments", json_string("{\"city\": \"Z\", \"days\": 2}"));
    json_array_append_new(json_object_get(context, "messages"), m);
    json_object_set_new(context, "add_generation_prompt", json_false());
}

/* What the template writes for that answer behind its own generation prompt is read as the answer.
 */
static void check_round(const struct template *want, const struct chat_template *t,
                        const struct reply_profile *p)
{
    json_t *c = question();
    struct chat_output prompt;
    char err[256];
    if (strcmp(want->name, "llama-cpp-deepseek-r1") == 0)
        json_object_del(c, "tools"); /* it cannot write any */
    ck_assert_msg(chat_render(t, c, NOW, &prompt, err, sizeof err) == STATUS_OK, "%s: %s",
                  want->name, err);
    enum reasoning_start start = reply_profile_start(p, &prompt);
    ck_assert_msg(strcmp(start_name(start), want->start) == 0, "%s: %s", want->name,
                  start_name(start));
    add_answer(c, p->arguments_text);
    char *full = render_text(t, c);
    for (size_t i = 0; i < sizeof without_calls / sizeof *without_calls; i++) {
        if (strcmp(want->name, without_calls[i]) == 0) {
            free(full);
            full = NULL;
        }
    }
    if (full) {
        const char *a = strstr(full, "QQQ"), *b = strstr(buf_str(&prompt.text), "QQQ");
        ck_assert(a && b);
        while (*a && *a == *b) {
            a++;
            b++;
        }
        if (start == REASONING_OPEN && !strstr(full, "RRR"))
            start = REASONING_UNSAID; /* it leaves thinking out of what was said before */
        char *got = reply_read(p, start, json_object_get(c, "tools"), a, false);
        json_t *g = reply_json(got);
        const json_t *call = json_array_get(json_object_get(g, "calls"), 0);
        ck_assert_msg(json_array_size(json_object_get(g, "calls")) == 1 &&
                          strcmp(json_string_value(json_array_get(call, 0)), "get_weather") == 0,
                      "%s: %s\n%s", want->name, a, got);
        json_t *arguments = reply_json(json_string_value(json_array_get(call, 1)));
        json_t *expected = parse("{\"city\": \"Z\", \"days\": 2}");
        ck_assert_msg(json_equal(arguments, expected), "%s: %s", want->name, got);
        bool thinks = strstr(full, "RRR") && start != REASONING_OFF;
        ck_assert_msg(!thinks ||
                          strcmp(json_string_value(json_object_get(g, "thinking")), "RRR") == 0 ||
                          strcmp(want->reasoning, "-") == 0,
                      "%s: %s", want->name, got);
        json_decref(arguments);
        json_decref(expected);
        json_decref(g);
        free(got);
    }
    free(full);
    chat_output_fini(&prompt);
    json_decref(c);
}

START_TEST(profile_of_templates)
{
    struct tokenizer *tok = tokenizer_any();
    size_t length, missing = 0;
    for (size_t i = 0; i < N_TEMPLATES; i++) {
        const struct template *want = &templates[i];
        char *source = template_source(want->name, &length), err[256];
        struct chat_template *t = NULL;
        struct reply_profile p;
        if (!source) {
            missing++;
            continue;
        }
        ck_assert_ok(chat_template_create(source, length, &t, err, sizeof err));
        ck_assert_ok(reply_profile_init(&p, source, t, tok, "auto", "auto"));
        const char *reasoning = p.reasoning ? p.reasoning->name : "-";
        const char *tools = p.tools ? toolcall_format_name(p.tools) : "-";
        ck_assert_msg(strcmp(reasoning, want->reasoning) == 0, "%s: %s", want->name, reasoning);
        ck_assert_msg(strcmp(tools, want->tools) == 0, "%s: %s", want->name, tools);
        ck_assert_msg(p.arguments_text == (strcmp(want->arguments, "text") == 0), "%s", want->name);
        check_round(want, t, &p);
        reply_profile_fini(&p);
        chat_template_destroy(t);
        free(source);
    }
    if (missing)
        printf("SKIP reply profiles: %zu of %zu templates are not in the cache "
               "(deploy/fetch_model.sh vocabs)\n",
               missing, N_TEMPLATES);
    tokenizer_destroy(tok);
}
END_TEST

START_TEST(profile_by_name)
{
    struct tokenizer *tok = tokenizer_any();
    struct chat_template *t = NULL;
    struct reply_profile p;
    char err[128];
    const char *source = "<think>";
    ck_assert_ok(chat_template_create(source, strlen(source), &t, err, sizeof err));
    ck_assert_ok(reply_profile_init(&p, source, t, tok, "none", "none"));
    ck_assert(!p.reasoning && !p.tools);
    reply_profile_fini(&p);
    ck_assert_ok(reply_profile_init(&p, source, t, tok, "mistral", "hermes"));
    ck_assert_str_eq(p.reasoning->name, "mistral");
    ck_assert_str_eq(toolcall_format_name(p.tools), "hermes");
    reply_profile_fini(&p);
    ck_assert_int_eq(reply_profile_init(&p, source, t, tok, "nope", "auto"), STATUS_INVALID);
    ck_assert_int_eq(reply_profile_init(&p, source, t, tok, "auto", "nope"), STATUS_INVALID);
    chat_template_destroy(t);
    tokenizer_destroy(tok);
}
END_TEST

/* Control tokens are shown to the parser when they are part of a mark; a model's vocabulary alone
 * can say that it thinks. */
START_TEST(profile_uses_vocabulary)
{
    struct vocab_build *b = vb_create(TOKENIZER_BPE);
    vb_merge(b, "h", "e");
    int32_t open = vb_token(b, "<think>", TOKEN_CONTROL);
    int32_t close = vb_token(b, "</think>", TOKEN_CONTROL);
    int32_t call = vb_token(b, "<tool_call>", TOKEN_USER_DEFINED);
    int32_t end = vb_token(b, "<|im_end|>", TOKEN_CONTROL);
    struct tokenizer *tok = vb_finish(b);
    struct chat_template *t = NULL;
    struct reply_profile p;
    char err[128];
    const char *source = "{{ messages[0].content }}<tool_call>";
    ck_assert_ok(chat_template_create(source, strlen(source), &t, err, sizeof err));
    ck_assert_ok(reply_profile_init(&p, source, t, tok, "auto", "auto"));
    ck_assert_str_eq(p.reasoning->name, "think");
    ck_assert(reply_profile_shows(&p, open) && reply_profile_shows(&p, close));
    ck_assert(!reply_profile_shows(&p, call) && !reply_profile_shows(&p, end));
    reply_profile_fini(&p);
    chat_template_destroy(t);
    tokenizer_destroy(tok);
}
END_TEST

/* What a user wrote at the end of a prompt does not begin to think. */
START_TEST(profile_start_is_the_templates)
{
    struct reply_profile p = {.reasoning = reasoning_format_find("think")};
    static const struct {
        const char *source, *content;
        enum reasoning_start want;
    } cases[] = {
        {"{{ c }}<think>\n", "", REASONING_OPEN},
        {"{{ c }}<think>\n\n</think>\n\n", "", REASONING_OFF},
        {"{{ c }}</think>", "", REASONING_OFF},
        {"{{ c }}", "<think>", REASONING_UNSAID},
        {"{{ c }}</s>", "<think>", REASONING_UNSAID},
        {"", "", REASONING_UNSAID},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *c = json_pack("{s: s}", "c", cases[i].content);
        struct result r = run(cases[i].source, strlen(cases[i].source), c);
        ck_assert_ok(r.rc);
        ck_assert_int_eq(reply_profile_start(&p, &r.out), cases[i].want);
        result_fini(&r);
        json_decref(c);
    }
}
END_TEST

/* ---- thinking and calls together ---------------------------------------------------------------
 */

#define HCALL                                                                                      \
    "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": "       \
    "\"Z\"}"
static const struct sample {
    const char *reasoning, *tools, *text, *want;
} samples[] = {
    {"think", "hermes",
     "<think>\nI call <tool_call>?\n</think>\n\n<tool_call>{\"name\": \"stop\"}</tool_call>",
     "{\"thinking\": \"I call <tool_call>?\", \"calls\": [[\"stop\", {}]]}"},
    {"think", "hermes",
     "<think>a</think>b<tool_call>{\"name\": \"stop\", \"arguments\": {\"x\": "
     "\"<think>\"}}</tool_call><think>c</think>d",
     "{\"thinking\": \"a\\nc\", \"content\": \"bd\", \"calls\": [[\"stop\", {\"x\": "
     "\"<think>\"}]]}"},
    {"kimi", "kimi",
     "<think>hm<|tool_calls_section_begin|><|tool_call_begin|>functions.stop:0"
     "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
     "{\"thinking\": \"hm\", \"calls\": [[\"stop\", {}, \"functions.stop:0\"]]}"},
    {"think", NULL, "<think>a</think><tool_call>{}",
     "{\"thinking\": \"a\", \"content\": \"<tool_call>{}\"}"},
    {NULL, "hermes", "<think>a</think>", "{\"content\": \"<think>a</think>\"}"},

    {"harmony", "harmony",
     "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi!",
     "{\"thinking\": \"Hm.\", \"content\": \"Hi!\"}"},
    {"harmony", "harmony",
     "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>commentary<|message|>I "
     "look.<|end|><|start|>assistant" HCALL "<|call|>",
     "{\"thinking\": \"A\", \"content\": \"I look.\", \"calls\": [[\"get_weather\", {\"city\": "
     "\"Z\"}]]}"},
    {"harmony", "harmony", HCALL, "{\"calls\": [[\"get_weather\", {\"city\": \"Z\"}]]}"},
    {"harmony", "harmony",
     " to=functions.stop<|channel|>commentary json<|message|>{}<|call|><|start|>assistant "
     "to=functions.stop<|channel|>commentary<|message|>{\"a\": 1}",
     "{\"calls\": [[\"stop\", {}], [\"stop\", {\"a\": 1}]]}"},
    {"harmony", "harmony", "<|channel|>commentary to=functions.stop<|message|>no JSON<|call|>",
     "{\"content\": \"no JSON\"}"},
    {"harmony", NULL, HCALL, "{\"content\": \"{\\\"city\\\": \\\"Z\\\"}\"}"},
    {"harmony", "harmony", "Just an answer.", "{\"content\": \"Just an answer.\"}"},
    {"harmony", "harmony", "assistant", "{\"content\": \"assistant\"}"},
    {"harmony", "harmony",
     "<|channel|>analysis<|message|>a<|channel|>analysis<|message|>b<|start|>assistant<|channel|>"
     "final"
     "<|message|>c<|return|>",
     "{\"thinking\": \"a\\nb\", \"content\": \"c\"}"},
    {"recipient", "atem",
     " to=self<|message|>hm<|eom|><|start|>assistant to=user<|message|>Hi<|eom|><|start|>assistant "
     "to=get_weather<|message|><atem:function_calls>\n<atem:invoke name=\"get_weather\">\n"
     "<atem:parameter name=\"city\">Z</atem:parameter>\n</atem:invoke>\n</atem:function_calls>",
     "{\"thinking\": \"hm\", \"content\": \"Hi\", \"calls\": [[\"get_weather\", {\"city\": "
     "\"Z\"}]]}"},
};

START_TEST(push_samples)
{
    json_t *tools = reply_json(TOOLS);
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        const struct sample *s = &samples[i];
        struct reply_profile p = {.reasoning =
                                      s->reasoning ? reasoning_format_find(s->reasoning) : NULL,
                                  .tools = s->tools ? toolcall_format_find(s->tools) : NULL};
        char *got = reply_read(&p, REASONING_UNSAID, tools, s->text, false);
        reply_compare(got, s->want, s->text);
        free(got);
        for (size_t n = 0; n < strlen(s->text); n++) {
            got = reply_of(&p, REASONING_UNSAID, tools, s->text, n, true, &(size_t){1}, 1);
            ck_assert_msg(!p.reasoning || !strstr(got, "<|"), "%.*s: %s", (int)n, s->text, got);
            free(got);
        }
    }
    json_decref(tools);
}
END_TEST

/* The whole, whatever the model writes: pieces and single bytes give the same. */
START_TEST(push_random)
{
    static const char *const words[] = {"<think>",
                                        "</think>",
                                        "<tool_call>",
                                        "</tool_call>",
                                        "{\"name\": \"stop\", ",
                                        "\"arguments\": {}}",
                                        "{",
                                        "}",
                                        "\"",
                                        "[",
                                        "]",
                                        ",",
                                        "stop",
                                        "(",
                                        ")",
                                        "a=",
                                        "1",
                                        "\n",
                                        " ",
                                        "<|channel|>",
                                        "analysis",
                                        "<|message|>",
                                        "<|end|>",
                                        "<|start|>",
                                        "commentary to=functions.stop",
                                        "<",
                                        "x"};
    static const char *const reasoning[] = {"think", "harmony", "granite", "apriel"};
    json_t *tools = reply_json(TOOLS);
    uint64_t seed = 7;
    for (int round = 0; round < 3000; round++) {
        char text[400] = "";
        uint32_t n = vb_random(&seed, 14);
        for (uint32_t i = 0; i < n; i++)
            strcat(text, words[vb_random(&seed, sizeof words / sizeof *words)]);
        size_t k = 0;
        while (toolcall_format_at(k))
            k++;
        struct reply_profile p = {.reasoning = reasoning_format_find(reasoning[round % 4]),
                                  .tools = toolcall_format_at(vb_random(&seed, (uint32_t)k))};
        enum reasoning_start start = (enum reasoning_start)vb_random(&seed, 3);
        bool cut = vb_random(&seed, 2);
        size_t length = strlen(text), piece = 1 + vb_random(&seed, 9);
        char *whole = reply_of(&p, start, tools, text, length, cut, &(size_t){0}, 1);
        char *pieces = reply_of(&p, start, tools, text, length, cut, &piece, 1);
        ck_assert_str_eq(pieces, whole);
        free(whole);
        free(pieces);
    }
    json_decref(tools);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("reply");
    TCase *c = tcase_create("reply");
    tcase_set_timeout(c, 60);
    tcase_add_test(c, profile_of_templates);
    tcase_add_test(c, profile_by_name);
    tcase_add_test(c, profile_uses_vocabulary);
    tcase_add_test(c, profile_start_is_the_templates);
    tcase_add_test(c, push_samples);
    tcase_add_test(c, push_random);
    suite_add_tcase(s, c);
    return s;
}
