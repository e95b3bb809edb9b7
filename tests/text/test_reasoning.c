/* Tests of common/text/reasoning: B28, B29, and what else models do with their tags. */
#include "tests/text/reply_rig.h"

struct sample {
    const char *format;
    enum reasoning_start start;
    const char *text, *want;
};

#define THINK "think", REASONING_UNSAID
#define OPEN  "think", REASONING_OPEN
#define OFF   "think", REASONING_OFF

static const struct sample samples[] = {
    /* The tag is in the prompt (B28), or the model writes it, or both. */
    {OPEN, "abc</think>def", "{\"thinking\": \"abc\", \"content\": \"def\"}"},
    {OPEN, "abc", "{\"thinking\": \"abc\"}"},
    {OPEN, "\nabc \n\n", "{\"thinking\": \"abc \\n\\n\"}"},
    {THINK, "<think>abc</think>def", "{\"thinking\": \"abc\", \"content\": \"def\"}"},
    {OPEN, "<think>\nabc\n</think>\n\ndef\n", "{\"thinking\": \"abc\", \"content\": \"def\\n\"}"},
    {THINK, "\n <think>\n\nabc\n\n d\n</think>\n\n def",
     "{\"thinking\": \"abc\\n\\n d\", \"content\": \"def\"}"},
    {THINK, "def", "{\"content\": \"def\"}"},
    {THINK, "\n\n def \n", "{\"content\": \"\\n\\n def \\n\"}"},
    {THINK, " \n", "{\"content\": \" \\n\"}"},
    {THINK, "<think>\n</think>\n", "{}"},
    {THINK, "", "{}"},
    {OPEN, "", "{}"},
    {OPEN, "</think>", "{}"},
    {OPEN, "a</think>b", "{\"thinking\": \"a\", \"content\": \"b\"}"},
    /* Several blocks; a tag that is no tag; a closing tag too many. */
    {THINK, "<think>a</think>x<think>b</think>y", "{\"thinking\": \"a\\nb\", \"content\": \"xy\"}"},
    {THINK, "<think>a</think>\n<think>b</think>\ny",
     "{\"thinking\": \"a\\nb\", \"content\": \"y\"}"},
    {THINK, "<think>a <b> </thin></think>< y </thank>",
     "{\"thinking\": \"a <b> </thin>\", \"content\": \"< y </thank>\"}"},
    {THINK, "a</think>b", "{\"content\": \"ab\"}"},
    {THINK, "<<think>a<</think>b", "{\"thinking\": \"a<\", \"content\": \"<b\"}"},
    {THINK, "<think>a<think>b</think>c", "{\"thinking\": \"a<think>b\", \"content\": \"c\"}"},
    /* Switched off: nothing is trapped, and tags in the text are text. */
    {OFF, "\n\nThe answer.", "{\"content\": \"The answer.\"}"},
    {OFF, "Write <think> and </think>.", "{\"content\": \"Write <think> and </think>.\"}"},
    {OFF, "</think>\n\nYes", "{\"content\": \"Yes\"}"},
    {OFF, "<think>\n\n</think>\n\nYes", "{\"content\": \"Yes\"}"},
    {OFF, "<think>still</think>Yes", "{\"thinking\": \"still\", \"content\": \"Yes\"}"},
    /* Other formats. */
    {"kimi", REASONING_UNSAID, "<think>a<|tool_calls_section_begin|>b",
     "{\"thinking\": \"a\", \"content\": \"<|tool_calls_section_begin|>b\"}"},
    {"granite", REASONING_UNSAID, "<think>a</think><response>b</response>",
     "{\"thinking\": \"a\", \"content\": \"b\"}"},
    {"granite", REASONING_UNSAID, "<response>b</response>",
     "{\"content\": \"<response>b</response>\"}"},
    {"apriel", REASONING_OPEN, "a\n[BEGIN FINAL RESPONSE]\nb\n[END FINAL RESPONSE]",
     "{\"thinking\": \"a\", \"content\": \"b\\n\"}"},
    {"final_response", REASONING_OPEN, "a[BEGIN FINAL RESPONSE]b",
     "{\"thinking\": \"a\", \"content\": \"b\"}"},
    {"gemma", REASONING_UNSAID, "<|channel>thought\na\n<channel|>b",
     "{\"thinking\": \"a\", \"content\": \"b\"}"},
    {"gemma", REASONING_UNSAID, "<|channel>thought<channel|>",
     "{\"content\": \"<|channel>thought\"}"},
    {"mistral", REASONING_UNSAID, "[THINK]a[/THINK]b [x]",
     "{\"thinking\": \"a\", \"content\": \"b [x]\"}"},
    {"solar", REASONING_UNSAID, "<|think|>a<|end|><|begin|>assistant<|content|>b",
     "{\"thinking\": \"a\", \"content\": \"b\"}"},
    {"cohere", REASONING_OPEN, "a<|END_THINKING|><|START_RESPONSE|>b<|END_RESPONSE|>",
     "{\"thinking\": \"a\", \"content\": \"b\"}"},
};

START_TEST(push_samples)
{
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        const struct sample *s = &samples[i];
        struct reply_profile p = {.reasoning = reasoning_format_find(s->format)};
        ck_assert_msg(p.reasoning != NULL, "%s", s->format);
        char *got = reply_read(&p, s->start, NULL, s->text, false);
        reply_compare(got, s->want, s->text);
        free(got);
    }
}
END_TEST

/* Cut by max_tokens anywhere: never a piece of a tag, never thinking in the content; and what was
 * shown before stays the beginning of what is shown later. */
START_TEST(push_cut_anywhere)
{
    const char *text = "<think>\nfirst idea\n</think>\n\nThe answer is 4.";
    struct reply_profile p = {.reasoning = reasoning_format_find("think")};
    for (size_t n = 0; n <= strlen(text); n++) {
        char *got = reply_of(&p, REASONING_UNSAID, NULL, text, n, true, &(size_t){1}, 1);
        json_t *g = reply_json(got);
        const char *thinking = json_string_value(json_object_get(g, "thinking"));
        const char *content = json_string_value(json_object_get(g, "content"));
        ck_assert_msg(!strchr(thinking, '/') && !strchr(thinking, '>'), "%s", got);
        ck_assert_msg(strncmp(thinking, "first idea\n", strlen(thinking)) == 0 ||
                          strcmp(thinking, "first idea\n<") == 0,
                      "%s", got);
        ck_assert_msg(strncmp(content, "The answer is 4.", strlen(content)) == 0 || n == 1, "%s",
                      got);
        json_decref(g);
        free(got);
    }
}
END_TEST

/* Counting: a token is thinking when the text stood in a block before it came. */
START_TEST(thinking_state)
{
    struct reply_profile p = {.reasoning = reasoning_format_find("think")};
    struct reply r;
    ck_assert_ok(reply_init(&r, &p, REASONING_UNSAID, NULL));
    ck_assert(!reply_thinking(&r));
    reply_push(&r, "<think>", 7);
    ck_assert(reply_thinking(&r));
    reply_push(&r, "x</th", 5);
    ck_assert(reply_thinking(&r));
    reply_push(&r, "ink>", 4);
    ck_assert(!reply_thinking(&r));
    reply_fini(&r);
    ck_assert_ok(reply_init(&r, &p, REASONING_OPEN, NULL));
    ck_assert(reply_thinking(&r));
    reply_fini(&r);
}
END_TEST

START_TEST(push_long_blanks)
{
    struct reply_profile p = {.reasoning = reasoning_format_find("think")};
    struct reply r;
    ck_assert_ok(reply_init(&r, &p, REASONING_OPEN, NULL));
    for (int i = 0; i < 1000000; i++)
        reply_push(&r, i % 2 ? "\n" : " ", 1);
    reply_push(&r, "x</think>", 9);
    for (int i = 0; i < 1000000; i++)
        reply_push(&r, "<", 1);
    reply_end(&r, false);
    ck_assert_str_eq(buf_str(&r.thinking), "x");
    ck_assert_uint_eq(r.content.len, 1000000);
    reply_fini(&r);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("reasoning");
    TCase *c = tcase_create("reasoning");
    tcase_set_timeout(c, 60);
    tcase_add_test(c, push_samples);
    tcase_add_test(c, push_cut_anywhere);
    tcase_add_test(c, thinking_state);
    tcase_add_test(c, push_long_blanks);
    suite_add_tcase(s, c);
    return s;
}
