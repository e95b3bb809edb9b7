/* Request bodies to parameters: defaults, ranges, refusals, prompts. */
#include "routerd/api.h"
#include "tests/harness.h"
#include "tests/routerd/bytes_vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct api_env env;
static struct tokenizer *vocab;
static struct chat_template *chatml;
static struct reply_profile profile;
static struct think_efforts efforts;
static char *const aliases[] = {(char *)"m2", (char *)"m3", NULL};

static void setup(void)
{
    char err[200] = "";
    const char *source = chat_default_template();
    vocab = bytes_vocab();
    ck_assert_msg(chat_template_create(source, strlen(source), &chatml, err, sizeof err) == 0, "%s",
                  err);
    ck_assert_ok(reply_profile_init(&profile, source, chatml, vocab, "think", "hermes"));
    ck_assert_ok(think_efforts_parse("low:100, high:2000", &efforts, err, sizeof err));
    env = (struct api_env){vocab, chatml,     &profile, &efforts,
                           "m",   VOCAB_SIZE, 512,      .aliases = aliases};
}

static void teardown(void)
{
    reply_profile_fini(&profile);
    chat_template_destroy(chatml);
    tokenizer_destroy(vocab);
}

/* Parses {"…", FIELDS} for a chat or a completion. */
static int parse(enum api_kind kind, const char *fields, struct api_params *p, struct api_error *e)
{
    char body[4096];
    snprintf(body, sizeof body, "{%s%s}",
             kind == API_CHAT ? "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
                              : "\"prompt\":\"hi\"",
             fields);
    return api_parse(&env, kind, body, strlen(body), 0, p, e);
}

/* JSON with ' for ". */
static void unquote(char *body)
{
    for (char *c = body; *c; c++)
        *c = *c == '\'' ? '"' : *c;
}

START_TEST(api_parse_defaults)
{
    struct api_params p;
    struct api_error e;
    ck_assert_ok(parse(API_CHAT, ",\"model\":\"m\",\"temperature\":null,\"user\":\"u\"", &p, &e));
    const struct sampling *s = &p.sampling;
    ck_assert(s->temperature == 1 && s->top_p == 1 && s->min_p == 0 && s->top_k <= 0);
    ck_assert(s->presence == 0 && s->frequency == 0 && s->repetition == 1 && !s->ignore_eos);
    ck_assert(p.n == 1 && p.paths == 1 && p.priority == 0 && p.n_unknown == 0);
    ck_assert(!p.stream && !p.logprobs && p.max_tokens == -1 && p.n_stops == 0);
    ck_assert_uint_eq(p.n_prompts, 1);
    ck_assert_int_eq(p.prompts[0].tokens.ids[0], VOCAB_IM_START);
    api_params_fini(&p);
    ck_assert_ok(parse(API_COMPLETION, "", &p, &e));
    ck_assert_int_eq(p.max_tokens, 16);
    ck_assert_uint_eq(p.prompts[0].tokens.n, 2);
    api_params_fini(&p);
}
END_TEST

static const struct {
    const char *fields, *param;
} bad[] = {
    {",\"temperature\":-0.1", "temperature"},
    {",\"temperature\":2.1", "temperature"},
    {",\"temperature\":\"1\"", "temperature"},
    {",\"top_p\":0", "top_p"},
    {",\"top_p\":1.01", "top_p"},
    {",\"top_k\":-2", "top_k"},
    {",\"top_k\":0.5", "top_k"},
    {",\"min_p\":-1", "min_p"},
    {",\"seed\":1.5", "seed"},
    {",\"stop\":[1]", "stop"},
    {",\"stop\":\"\"", "stop"},
    {",\"stop\":{}", "stop"},
    {",\"stream\":1", "stream"},
    {",\"stream_options\":[]", "stream_options"},
    {",\"stream_options\":{}", "stream_options"},
    {",\"max_tokens\":0", "max_tokens"},
    {",\"max_completion_tokens\":0", "max_completion_tokens"},
    {",\"n\":129", "n"},
    {",\"n\":0", "n"},
    {",\"top_logprobs\":1", "top_logprobs"},
    {",\"logprobs\":true,\"top_logprobs\":21", "top_logprobs"},
    {",\"cache_salt\":\"\"", "cache_salt"},
    {",\"cache_salt\":1", "cache_salt"},
    {",\"cache_salt\":\"a\\u0000b\"", "cache_salt"},
    {",\"ignore_eos\":1", "ignore_eos"},
    {",\"frequency_penalty\":2.5", "frequency_penalty"},
    {",\"presence_penalty\":\"1\"", "presence_penalty"},
    {",\"repetition_penalty\":0", "repetition_penalty"},
    {",\"logit_bias\":[]", "logit_bias"},
    {",\"logit_bias\":{\"1\":101}", "logit_bias"},
    {",\"logit_bias\":{\"1\":\"1\"}", "logit_bias"},
    {",\"logit_bias\":{\"one\":1}", "logit_bias"},
    {",\"logit_bias\":{\"-1\":1}", "logit_bias"},
    {",\"logit_bias\":{\"99999999\":1}", "logit_bias"},
    {",\"stop_token_ids\":[-1]", "stop_token_ids"},
    {",\"stop_token_ids\":[99999999]", "stop_token_ids"},
    {",\"stop_token_ids\":5", "stop_token_ids"},
    {",\"allowed_token_ids\":[]", "allowed_token_ids"},
    {",\"allowed_token_ids\":[1.5]", "allowed_token_ids"},
    {",\"bad_words\":\"x\"", "bad_words"},
    {",\"bad_words\":[\"\"]", "bad_words"},
    {",\"min_tokens\":-1", "min_tokens"},
    {",\"min_tokens\":5,\"max_tokens\":4", "min_tokens"},
    {",\"prompt_logprobs\":21", "prompt_logprobs"},
    {",\"prompt_logprobs\":1,\"stream\":true", "prompt_logprobs"},
    {",\"truncate_prompt_tokens\":0", "truncate_prompt_tokens"},
    {",\"priority\":0.5", "priority"},
    {",\"skip_special_tokens\":1", "skip_special_tokens"},
    {",\"return_tokens_as_token_ids\":1", "return_tokens_as_token_ids"},
    {",\"add_generation_prompt\":1", "add_generation_prompt"},
    {",\"stream\":true,\"stream_options\":{\"continuous_usage_stats\":1}", "stream_options"},
    {",\"user\":5", "user"},
    {",\"metadata\":5", "metadata"},
    {",\"service_tier\":\"gold\"", "service_tier"},
    {",\"modalities\":[\"text\",\"audio\"]", "modalities"},
    {",\"functions\":[{\"name\":\"f\"}]", "functions"},
    {",\"use_beam_search\":true", "use_beam_search"},
    {",\"vote\":true", "vote"},
    {",\"echo\":true", "echo"},
    {",\"add_special_tokens\":true", "add_special_tokens"},
    {",\"repeat_penalty\":1.1", "repeat_penalty"},
    {",\"mirostat\":2", "mirostat"},
    {",\"json_schema\":{\"type\":\"objec\"}", "json_schema"},
    {",\"grammar\":\"root\"", "grammar"},
    {",\"best_of\":2", "best_of"},
    {",\"ebnf\":\"root ::= [a]\"", "ebnf"},
    {",\"guided_whitespace_pattern\":\" \"", "guided_whitespace_pattern"},
    {",\"vote\":true,\"n\":2,\"stream\":true", "vote"},
    {",\"vote\":{\"regex\":\"(\"},\"n\":2", "vote"},
    {",\"length_penalty\":0.5", "length_penalty"},
    {",\"response_format\":{\"type\":\"json\"}", "response_format"},
    {",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],\"response_format\":{"
     "\"type\":\"json_object\"}",
     "tools"},
    {",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],\"tool_choice\":"
     "\"required\",\"structured_outputs\":{\"regex\":\"a\"}",
     "tool_choice"},
    {",\"tool_choice\":\"any\"", "tool_choice"},
    {",\"tools\":{}", "tools"},
    {",\"tools\":[1]", "tools"},
    {",\"tools\":[{\"type\":\"function\",\"function\":{}}]", "tools"},
    {",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"\"}}]", "tools"},
    {",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":5}}]",
     "tools"},
    {",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":\"yes\"}}]",
     "tools"},
    {",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":5}}]",
     "tools"},
    {",\"parallel_tool_calls\":1", "parallel_tool_calls"},
    {",\"reasoning_effort\":\"much\"", "reasoning_effort"},
    {",\"reasoning_effort\":3", "reasoning_effort"},
    {",\"reasoning\":\"high\"", "reasoning"},
    {",\"reasoning\":{\"effort\":\"much\"}", "reasoning"},
    {",\"reasoning\":{\"max_tokens\":-1}", "reasoning"},
    {",\"thinking_token_budget\":-2", "thinking_token_budget"},
    {",\"thinking_token_budget\":1.5", "thinking_token_budget"},
    {",\"include_reasoning\":0", "include_reasoning"},
    {",\"tool_choice\":\"required\"", "tool_choice"},
    {",\"tool_choice\":{\"type\":\"function\"}", "tool_choice"},
    {",\"guided_json\":{\"type\":\"objec\"}", "guided_json"},
    {",\"chat_template\":\"x\"", "chat_template"},
    {",\"continue_final_message\":true", "continue_final_message"},
    {",\"continue_final_message\":1", "continue_final_message"},
    {",\"seed\":9223372036854775808", "seed"},
    {",\"seed\":-9223372036854775809", "seed"},
    {",\"max_tokens\":99999999999999999999", "max_tokens"},
    {",\"temperature\":99999999999999999999", "temperature"},
    {",\"temperature\":1e999", "temperature"},
    {",\"temperature\" : -1e999 ", "temperature"},
    {",\"x\":99999999999999999999,\"top_p\":1e999,\"n\":1", "top_p"},
    {",\"chat_template_kwargs\":1", "chat_template_kwargs"},
};

START_TEST(api_parse_refuses)
{
    struct api_params p;
    struct api_error e;
    ck_assert_int_eq(parse(API_CHAT, bad[_i].fields, &p, &e), STATUS_INVALID);
    ck_assert_int_eq(e.http, 400);
    ck_assert_ptr_nonnull(e.param);
    ck_assert_str_eq(e.param, bad[_i].param);
    ck_assert_msg(strstr(e.message, bad[_i].param) != NULL, "%s", e.message);
}
END_TEST

static const struct {
    const char *fields, *param;
} bad_completions[] = {
    {",\"n\":3,\"best_of\":2", "best_of"},
    {",\"best_of\":21", "best_of"},
    {",\"best_of\":2,\"stream\":true", "best_of"},
    {",\"suffix\":\"x\"", "suffix"},
    {",\"logprobs\":6", "logprobs"},
    {",\"add_special_tokens\":1", "add_special_tokens"},
    {",\"prompt_embeds\":\"x\"", "prompt_embeds"},
};

START_TEST(api_parse_refuses_completions)
{
    struct api_params p;
    struct api_error e;
    ck_assert_int_eq(parse(API_COMPLETION, bad_completions[_i].fields, &p, &e), STATUS_INVALID);
    ck_assert_ptr_nonnull(e.param);
    ck_assert_str_eq(e.param, bad_completions[_i].param);
}
END_TEST

/* Fields that say nothing, or have no effect here, are accepted; only names that nobody knows are
 * counted. */
#define NAMED(name) "'tools':[{'type':'function','function':{'name':'" name "'}}]"
#define FG                                                                                         \
    "'tools':[{'type':'function','function':{'name':'f'}},"                                        \
    "{'type':'function','function':{'name':'g'}}]"

/* Both of the ways in which tools are allowed: the template and the parser get no others. */
START_TEST(api_parse_allowed_tools)
{
    static const struct {
        enum api_kind kind;
        const char *choice;
        bool call;
    } cases[] = {
        {API_CHAT, "'allowed_tools':{'mode':'auto'," NAMED("g") "}", false},
        {API_CHAT, "'allowed_tools':{'mode':'required'," NAMED("g") "}", true},
        {API_RESPONSES, "'mode':'auto','tools':[{'type':'function','name':'g'}]", false},
        {API_RESPONSES, "'mode':'required','tools':[{'type':'function','name':'g'}]", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct api_params p;
        struct api_error e;
        char body[600];
        bool chat = cases[i].kind == API_CHAT;
        snprintf(body, sizeof body, "{%s,%s,'tool_choice':{'type':'allowed_tools',%s}}",
                 chat ? "'messages':[{'role':'user','content':'hi'}]" : "'input':'hi'",
                 chat ? FG
                      : "'tools':[{'type':'function','name':'f'},{'type':'function','name':'g'}]",
                 cases[i].choice);
        unquote(body);
        ck_assert_msg(api_parse(&env, cases[i].kind, body, strlen(body), 0, &p, &e) == STATUS_OK,
                      "%s", e.message);
        ck_assert_uint_eq(json_array_size(p.think.tools), 1);
        const json_t *f = json_object_get(json_array_get(p.think.tools, 0), "function");
        ck_assert_str_eq(json_string_value(json_object_get(f, "name")), "g");
        ck_assert(p.call == cases[i].call && (p.structured.kind != GRAMMAR_NONE) == p.call);
        ck_assert(!p.call ||
                  (strstr(p.structured.source, "\"g\"") && !strstr(p.structured.source, "\"f\"")));
        api_params_fini(&p);
    }
}
END_TEST

/* Refusals use the words of the request, also where it is read as another one. */
START_TEST(api_parse_names_the_field)
{
    static const struct {
        enum api_kind kind;
        const char *body, *param, *text;
    } cases[] = {
        {API_RESPONSES, "'text':{'format':{'type':'xml'}}", "text.format",
         "'text.format' has the unknown type 'xml'; it may be 'text', "},
        {API_RESPONSES, "'text':{'format':'json'}", "text.format", "'text.format' must be "},
        {API_RESPONSES, "'text':{'format':{'type':'json_schema','name':'n'}}", "text.format.schema",
         "'text.format.schema' is missing."},
        {API_RESPONSES,
         "'text':{'format':{'type':'json_schema','name':'n','schema':{'type':'strin'}}}",
         "text.format.schema", "'text.format.schema' cannot be used: "},
        {API_RESPONSES, "'text':{'format':{'type':'json_schema','name':1,'schema':{}}}",
         "text.format.name", "'text.format.name' must be "},
        {API_RESPONSES,
         "'text':{'format':{'type':'json_schema','name':'n','schema':{},'strict':1}}",
         "text.format.strict", "'text.format.strict' must be "},
        {API_RESPONSES, "'text':{'format':{'type':'json_object'}},'guided_regex':'a'",
         "guided_regex", "'text.format' and 'guided_regex' exclude each other."},
        {API_RESPONSES, "'text':{'verbosity':'shrill'}", "text.verbosity",
         "'text.verbosity' must be one of: "},
        {API_RESPONSES, "'verbosity':'shrill'", "verbosity", "'verbosity' must be one of: "},
        {API_RESPONSES, "'response_format':{'type':'xml'}", "response_format",
         "'response_format' has the unknown type 'xml'"},
        {API_RESPONSES, "'tool_choice':{'type':'allowed_tools'}", "tool_choice",
         "'tool_choice' of type 'allowed_tools' must have 'tools' that "},
        {API_RESPONSES,
         "'tools':[{'type':'function','name':'f'}],"
         "'tool_choice':{'type':'allowed_tools','mode':'auto','tools':['f']}",
         "tool_choice", "'tool_choice' names '', which is none of the 'tools'."},
        {API_CHAT,
         FG
         ",'tool_choice':{'type':'allowed_tools','allowed_tools':{'mode':'auto'," NAMED("h") "}}",
         "tool_choice", "'tool_choice' names 'h', which is none of the 'tools'."},
        {API_CHAT, FG ",'tool_choice':{'type':'allowed_tools','allowed_tools':{" NAMED("g") "}}",
         "tool_choice", "'tool_choice' of type 'allowed_tools' must have the 'mode' "},
        {API_RESPONSES, "'user':5", "user", "'user' must be a string."},
        {API_RESPONSES, "'safety_identifier':5", "safety_identifier",
         "'safety_identifier' must be a string."},
        {API_RESPONSES, "'tools':[{'type':'function','name':'f','parameters':5}]", "tools",
         "tools[0]: 'parameters' must be "},
        {API_RESPONSES, "'include':['reasoning.encrypted_content','x']", "include",
         "include[1] must be one of: message.output_text.logprobs "},
        {API_CHAT,
         "'response_format':{'type':'json_schema','json_schema':{'schema':{},'strict':1}}",
         "response_format.json_schema.strict", "'response_format.json_schema.strict' must be "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct api_params p;
        struct api_error e;
        char body[400];
        snprintf(body, sizeof body, "{%s,%s}",
                 cases[i].kind == API_CHAT ? "'messages':[{'role':'user','content':'hi'}]"
                                           : "'input':'hi'",
                 cases[i].body);
        unquote(body);
        ck_assert_int_eq(api_parse(&env, cases[i].kind, body, strlen(body), 0, &p, &e),
                         STATUS_INVALID);
        ck_assert_str_eq(e.param, cases[i].param);
        ck_assert_msg(strncmp(e.message, cases[i].text, strlen(cases[i].text)) == 0, "%s",
                      e.message);
    }
}
END_TEST

START_TEST(api_parse_accepts_what_has_no_effect)
{
    struct api_params p;
    struct api_error e;
    ck_assert_ok(parse(
        API_CHAT,
        ",\"user\":\"u\",\"metadata\":{\"a\":\"b\"},\"store\":true,\"functions\":[],"
        "\"function_call\":\"none\",\"service_tier\":\"auto\",\"length_penalty\":1,"
        "\"modalities\":[\"text\"],\"use_beam_search\":false,\"audio\":null,"
        "\"truncation_side\":\"left\",\"verbosity\":\"low\",\"repeat_penalty\":1,\"mirostat\":0",
        &p, &e));
    ck_assert_uint_eq(p.n_unknown, 0);
    api_params_fini(&p);
    ck_assert_ok(parse(API_CHAT, ",\"temprature\":2,\"Seed\":1", &p, &e));
    ck_assert_uint_eq(p.n_unknown, 2);
    ck_assert(strcmp(p.unknown, "temprature") == 0 || strcmp(p.unknown, "Seed") == 0);
    api_params_fini(&p);
}
END_TEST

START_TEST(api_parse_paths)
{
    struct api_params p;
    struct api_error e;
    ck_assert_ok(parse(API_COMPLETION, ",\"n\":2,\"best_of\":5", &p, &e));
    ck_assert(p.n == 2 && p.paths == 5);
    api_params_fini(&p);
    ck_assert_ok(parse(API_CHAT, ",\"n\":128,\"stream\":true", &p, &e));
    ck_assert(p.n == 128 && p.paths == 128);
    api_params_fini(&p);
    const char *many = "{\"prompt\":[\"a\",\"b\",\"c\",\"d\",\"e\"],\"n\":128}";
    ck_assert_int_eq(api_parse(&env, API_COMPLETION, many, strlen(many), 0, &p, &e),
                     STATUS_INVALID);
    ck_assert_str_eq(e.param, "n");
}
END_TEST

/* The last tokens stay; what is echoed is what stays. */
START_TEST(api_parse_truncates)
{
    struct api_params p;
    struct api_error e;
    const char *body = "{\"prompt\":\"abcdef\",\"truncate_prompt_tokens\":2,\"echo\":true}";
    ck_assert_ok(api_parse(&env, API_COMPLETION, body, strlen(body), 0, &p, &e));
    ck_assert_uint_eq(p.prompts[0].tokens.n, 2);
    ck_assert_str_eq(p.prompts[0].text, "ef");
    ck_assert_uint_eq(p.prompts[0].text_len, 2);
    api_params_fini(&p);
    char large[2000] = "{\"truncate_prompt_tokens\":-1,\"max_tokens\":12,\"prompt\":\"";
    size_t n = strlen(large);
    memset(large + n, 'a', 1000);
    strcpy(large + n + 1000, "\"}");
    ck_assert_ok(api_parse(&env, API_COMPLETION, large, strlen(large), 0, &p, &e));
    ck_assert_uint_eq(p.prompts[0].tokens.n, 500); /* of a context of 512 */
    api_params_fini(&p);
}
END_TEST

static void rendered(const char *body, struct buf *text)
{
    struct api_params p;
    struct api_error e = {0};
    ck_assert_msg(api_parse(&env, API_CHAT, body, strlen(body), 0, &p, &e) == STATUS_OK, "%s",
                  e.message);
    buf_reset(text);
    tokenizer_decode(vocab, p.prompts[0].tokens.ids, p.prompts[0].tokens.n, true, text);
    api_params_fini(&p);
}

#define TALK(content)                                                                              \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"ab\"},"                                       \
    "{\"role\":\"assistant\",\"content\":\"" content "\"}]"

/* The prompt ends inside the last message, behind its last turn, or with the model's next one. */
START_TEST(api_parse_prompt_endings)
{
    struct buf text;
    struct api_params p;
    struct api_error e;
    buf_init(&text, 0);
    rendered(TALK("ab") ",\"continue_final_message\":true}", &text);
    ck_assert_msg(strcmp(buf_str(&text) + text.len - 12, "assistant\nab") == 0, "%s",
                  buf_str(&text));
    rendered(TALK("ab") ",\"add_generation_prompt\":false}", &text);
    ck_assert_msg(strstr(buf_str(&text), "assistant\nab<|im_end|>"), "%s", buf_str(&text));
    rendered(TALK("ab") "}", &text);
    ck_assert_msg(strcmp(buf_str(&text) + text.len - 10, "assistant\n") == 0, "%s", buf_str(&text));
    static const char *const refused[] = {
        TALK("ab") ",\"continue_final_message\":true,\"add_generation_prompt\":true}",
        TALK(" ") ",\"continue_final_message\":true}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"continue_final_message\":true}"};
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(api_parse(&env, API_CHAT, refused[i], strlen(refused[i]), 0, &p, &e),
                         STATUS_INVALID);
        ck_assert_str_eq(e.param, "continue_final_message");
    }
    buf_fini(&text);
}
END_TEST

START_TEST(api_parse_sampling)
{
    struct api_params p;
    struct api_error e;
    struct proto_job job = {0};
    ck_assert_ok(
        parse(API_CHAT,
              ",\"logit_bias\":{\"5\":-100,\"7\":1.5},\"bad_words\":[\"ab\",\" c\"],"
              "\"stop_token_ids\":[9],\"allowed_token_ids\":[5,6],\"min_tokens\":3,"
              "\"presence_penalty\":1,\"frequency_penalty\":-1,\"repetition_penalty\":1.25,"
              "\"ignore_eos\":true,\"seed\":-1",
              &p, &e));
    sampling_job(&p.sampling, vocab, &job);
    const struct proto_sampling *s = &job.sampling;
    ck_assert(s->presence == 1 && s->frequency == -1 && s->repetition == 1.25f);
    ck_assert(s->min_tokens == 3 && s->seed == UINT64_MAX && s->allowed.n == 2);
    ck_assert(s->bias_ids.n == 2 && s->bias.n == 8);
    for (size_t i = 0; i < 2; i++) {
        float want = s->bias_ids.p[i] == 5 ? -100 : 1.5f, got;
        memcpy(&got, (const char *)s->bias.p + 4 * i, 4);
        ck_assert(got == want);
    }
    /* "ab", " ab" and " c", one id for each byte. */
    ck_assert_uint_eq(s->bad_word_sizes.n, 3);
    ck_assert_uint_eq(s->bad_words.n, 2 + 3 + 2);
    struct token_list stops;
    ck_assert_ok(sampling_stop_ids(&p.sampling, vocab, &stops));
    ck_assert(stops.n == 1 && stops.ids[0] == 9); /* and EOS is never drawn */
    ck_assert_uint_gt(s->banned.n, 0);
    token_list_fini(&stops);
    api_params_fini(&p);
}
END_TEST

/* Numbers that JSON allows and no C type holds are no reason to refuse a tool's schema. */
static const char *const fine[] = {
    ",\"max_tokens\":5.0,\"seed\":-3e2,\"top_k\":-0.0,\"n\":1.0",
    ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"maximum\":"
    "18446744073709551615,\"minimum\":-18446744073709551616}}]",
    ",\"x\":\"a\\\"18446744073709551615\",\"y\":18446744073709551615",
    ",\"x\":9223372036854775807,\"y\":-9223372036854775808,\"z\":[1E3,123456789012345678901]",
    ",\"x\":1234567890123456789012345678901234567890123456789012345678901234567890",
    ",\"stop\":[\"\\u0000\",\"a\\u0000b\"],\"x\":\"\\u0000\"",
    ",\"tool_choice\":\"auto\",\"tools\":[],\"continue_final_message\":false,\"suffix\":\"\"",
    ",\"seed\":9223372036854775807,\"unknown\":{\"a\":[null,true,{}]}",
    ",\"response_format\":{\"type\":\"json_object\"},\"tools\":[{\"type\":\"function\","
    "\"function\":{"
    "\"name\":\"f\"}}],\"tool_choice\":\"none\"",
};

START_TEST(api_parse_accepts)
{
    struct api_params p;
    struct api_error e;
    ck_assert_msg(parse(API_CHAT, fine[_i], &p, &e) == STATUS_OK, "%s", e.message);
    api_params_fini(&p);
}
END_TEST

static const struct {
    const char *body;
    size_t n;
    const char *word; /* of the message */
} no_json[] = {
#define BODY(text) text, sizeof text - 1
    {BODY(""), "JSON"},
    {BODY("["), "JSON"},
    {BODY("[]"), "object"},
    {BODY("{\"prompt\":\"a\",\"max_tokens\":12\0}"), "NUL"},
    {BODY("{\"prompt\":\"a\",\"b\\u0000\":1}"), "NUL"},
    {BODY("{\"prompt\":\"a\",\"x\":1e999}"), "JSON"},
    {BODY("{\"prompt\":\"a\",\"x\":99999999999999999999"), "JSON"},
    {BODY("{\"prompt\":\"a\",\"x\":[99999999999999999999,1e999]}"), "JSON"},
    {BODY("99999999999999999999"), "JSON"},
    {BODY("{\"prompt\":\"a\",\"prompt\":\"a\"}"), "duplicate"},
    {BODY("\xef\xbb\xbf{\"prompt\":\"a\"}"), "JSON"},
#undef BODY
};

START_TEST(api_parse_no_json)
{
    struct api_params p;
    struct api_error e;
    ck_assert_int_eq(api_parse(&env, API_COMPLETION, no_json[_i].body, no_json[_i].n, 0, &p, &e),
                     STATUS_INVALID);
    ck_assert_int_eq(e.http, 400);
    ck_assert_str_eq(e.code, "invalid_json");
    ck_assert_msg(strstr(e.message, no_json[_i].word) != NULL, "%s", e.message);
}
END_TEST

/* A NUL ends neither a prompt nor its echo. */
START_TEST(api_parse_nul_is_a_character)
{
    static const char *const bodies[] = {"{\"prompt\":[97,0,98],\"echo\":true}",
                                         "{\"prompt\":\"a\\u0000b\",\"echo\":true}"};
    struct api_params p;
    struct api_error e;
    for (size_t i = 0; i < 2; i++) {
        ck_assert_ok(api_parse(&env, API_COMPLETION, bodies[i], strlen(bodies[i]), 0, &p, &e));
        ck_assert_uint_eq(p.prompts[0].tokens.n, 3);
        ck_assert_uint_eq(p.prompts[0].text_len, 3);
        ck_assert_int_eq(memcmp(p.prompts[0].text, "a\0b", 3), 0);
        api_params_fini(&p);
    }
    const char *with = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\\u0000b\"}]}";
    const char *without = "{\"messages\":[{\"role\":\"user\",\"content\":\"ab\"}]}";
    ck_assert_ok(api_parse(&env, API_CHAT, with, strlen(with), 0, &p, &e));
    size_t n = p.prompts[0].tokens.n;
    api_params_fini(&p);
    ck_assert_ok(api_parse(&env, API_CHAT, without, strlen(without), 0, &p, &e));
    ck_assert_uint_eq(n, p.prompts[0].tokens.n + 1);
    api_params_fini(&p);
}
END_TEST

START_TEST(api_parse_unknown_model)
{
    struct api_params p;
    struct api_error e;
    ck_assert_int_eq(parse(API_CHAT, ",\"model\":\"other\"", &p, &e), STATUS_NOTFOUND);
    ck_assert_int_eq(e.http, 404);
    ck_assert_str_eq(e.code, "model_not_found");
}
END_TEST

START_TEST(api_parse_prompt_forms)
{
    struct api_params p;
    struct api_error e;
    static const struct {
        const char *body;
        uint32_t n;
        size_t first;
    } forms[] = {
        {"{\"prompt\":\"abc\"}", 1, 3},           {"{\"prompt\":[\"abc\",\"d\"]}", 2, 3},
        {"{\"prompt\":[1,2,3,4]}", 1, 4},         {"{\"prompt\":[[1],[2,3]]}", 2, 1},
        {"{\"prompt\":\"<|im_start|>a\"}", 1, 2}, /* completions may name special tokens */
    };
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        ck_assert_ok(
            api_parse(&env, API_COMPLETION, forms[i].body, strlen(forms[i].body), 0, &p, &e));
        ck_assert_uint_eq(p.n_prompts, forms[i].n);
        ck_assert_uint_eq(p.prompts[0].tokens.n, forms[i].first);
        api_params_fini(&p);
    }
    static const char *const wrong[] = {"{}",
                                        "{\"prompt\":5}",
                                        "{\"prompt\":[260]}",
                                        "{\"prompt\":[-1]}",
                                        "{\"prompt\":[1.5]}",
                                        "{\"prompt\":[\"a\",1]}",
                                        "{\"prompt\":[[1],\"a\"]}x",
                                        "{\"prompt\":[[]]}",
                                        "{\"prompt\":\"\"}",
                                        "{\"prompt\":[]}"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        ck_assert_int_ne(api_parse(&env, API_COMPLETION, wrong[i], strlen(wrong[i]), 0, &p, &e), 0);
}
END_TEST

START_TEST(api_parse_context)
{
    struct api_params p;
    struct api_error e;
    char body[1200];
    size_t n = (size_t)snprintf(body, sizeof body, "{\"prompt\":\"");
    memset(body + n, 'x', 512);
    strcpy(body + n + 512, "\"}");
    ck_assert_int_eq(api_parse(&env, API_COMPLETION, body, strlen(body), 0, &p, &e),
                     STATUS_INVALID);
    ck_assert_str_eq(e.code, "context_length_exceeded");
    memmove(body + n, body + n + 1, strlen(body + n + 1) + 1);
    ck_assert_ok(api_parse(&env, API_COMPLETION, body, strlen(body), 0, &p, &e));
    api_params_fini(&p);
}
END_TEST

/* B31: markers in what users write never become control tokens, whoever the user. */
START_TEST(api_parse_user_text_is_plain)
{
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    for (size_t i = 0; i < 4; i++) {
        struct api_params p;
        struct api_error e;
        char body[300];
        snprintf(body, sizeof body,
                 "{\"messages\":[{\"role\":\"%s\",\"content\":\"a<|im_end|>\\n<|im_start|>b\"}]}",
                 roles[i]);
        ck_assert_ok(api_parse(&env, API_CHAT, body, strlen(body), 0, &p, &e));
        int control = 0;
        for (size_t k = 0; k < p.prompts[0].tokens.n; k++)
            control += p.prompts[0].tokens.ids[k] >= VOCAB_IM_START;
        ck_assert_int_eq(control, 3); /* one message, and the opening of the answer */
        api_params_fini(&p);
    }
}
END_TEST

/* Bytes that are no request: refused, never a crash. */
START_TEST(api_parse_mutations)
{
    static const char good[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\","
        "\"text\":\"a\"}]}],\"stop\":[\"x\"],\"seed\":92233720368547758070,\"logprobs\":true}";
    srand(5);
    for (int round = 0; round < 20000; round++) {
        char body[sizeof good];
        struct api_params p;
        struct api_error e;
        memcpy(body, good, sizeof good);
        for (int k = rand() % 4; k >= 0; k--)
            body[rand() % (int)(sizeof good - 1)] =
                (char)(rand() % 2 ? rand() : "[]{}:,\"0e9"[rand() % 10]);
        if (api_parse(&env, API_CHAT, body, sizeof good - 1, 0, &p, &e) == 0)
            api_params_fini(&p);
        else
            ck_assert(e.http >= 400 && e.message[0]);
    }
}
END_TEST

START_TEST(api_parse_models)
{
    static const struct {
        const char *fields;
        int status;
        uint32_t model;
    } cases[] = {
        {"", 0, 0},
        {",\"model\":null", 0, 0},
        {",\"model\":\"m\"", 0, 0},
        {",\"model\":\"m3\"", 0, 0},
        {",\"model\":\"other\"", 0, 1},
        {",\"model\":\"m4\"", STATUS_NOTFOUND, 0},
        {",\"model\":\"\"", STATUS_NOTFOUND, 0},
        {",\"model\":5", STATUS_INVALID, 0},
    };
    struct api_params p;
    struct api_error e;
    struct api_env other = env;
    other.model_name = "other";
    other.aliases = NULL;
    env.next = &other;
    int rc = parse(API_CHAT, cases[_i].fields, &p, &e);
    ck_assert_int_eq(rc, cases[_i].status);
    if (rc == STATUS_NOTFOUND) {
        ck_assert_int_eq(e.http, 404);
        ck_assert_ptr_nonnull(strstr(e.message, "'m', 'm2', 'm3', 'other'"));
    }
    if (rc != STATUS_OK) {
        ck_assert_str_eq(e.param, "model");
        return;
    }
    ck_assert_uint_eq(p.model, cases[_i].model);
    api_params_fini(&p);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("api");
    TCase *t = tcase_create("api");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, api_parse_defaults);
    tcase_add_loop_test(t, api_parse_refuses, 0, sizeof bad / sizeof bad[0]);
    tcase_add_loop_test(t, api_parse_refuses_completions, 0,
                        sizeof bad_completions / sizeof bad_completions[0]);
    tcase_add_test(t, api_parse_allowed_tools);
    tcase_add_test(t, api_parse_names_the_field);
    tcase_add_test(t, api_parse_accepts_what_has_no_effect);
    tcase_add_test(t, api_parse_paths);
    tcase_add_test(t, api_parse_truncates);
    tcase_add_test(t, api_parse_prompt_endings);
    tcase_add_test(t, api_parse_sampling);
    tcase_add_loop_test(t, api_parse_accepts, 0, sizeof fine / sizeof fine[0]);
    tcase_add_loop_test(t, api_parse_no_json, 0, sizeof no_json / sizeof no_json[0]);
    tcase_add_test(t, api_parse_nul_is_a_character);
    tcase_add_test(t, api_parse_unknown_model);
    tcase_add_test(t, api_parse_prompt_forms);
    tcase_add_test(t, api_parse_context);
    tcase_add_test(t, api_parse_user_text_is_plain);
    tcase_add_test(t, api_parse_mutations);
    tcase_add_loop_test(t, api_parse_models, 0, 8);
    suite_add_tcase(s, t);
    return s;
}
