/* Tests of common/model/vocab*: real vocabularies against committed ids, and the default model
 * against the golden file. Vocabularies come from $BATON_CACHE/vocabs (deploy/fetch_model.sh
 * vocabs); without them the tests fail, or with BATON_OFFLINE=1 say what they leave out.
 * tokenizer.json is in test_vocab_json.c. */
#include "common/base/json.h"
#include "common/text/detok.h"
#include "common/text/unicode.h"
#include "tests/model/model_files.h"

static const char *const vocabs[] = {"gpt-2",        "llama-bpe",      "qwen2",
                                     "deepseek-llm", "deepseek-coder", "llama-spm"};
#define N_VOCABS (sizeof vocabs / sizeof *vocabs)

static struct tokenizer *load(const char *path)
{
    char err[512] = "";
    struct model *m = NULL;
    struct tokenizer *t = NULL;
    ck_assert_msg(model_open(path, MODEL_VOCAB_ONLY, &m, err, sizeof err) == 0, "%s", err);
    ck_assert_msg(model_tokenizer(m, &t, err, sizeof err) == 0, "%s", err);
    model_close(m);
    return t;
}

/* NULL only with BATON_OFFLINE=1. */
static struct tokenizer *load_cached(const char *path, const char *name)
{
    const char *offline = getenv("BATON_OFFLINE");
    if (path && access(path, R_OK) == 0)
        return load(path);
    if (!offline || strcmp(offline, "1") != 0)
        ck_abort_msg("%s is not in the cache: run deploy/fetch_model.sh and fetch_model.sh vocabs",
                     name);
    printf("SKIP vectors of the tokenizer %s: not in the cache and BATON_OFFLINE=1\n", name);
    return NULL;
}

static struct tokenizer *load_vocab(const char *name)
{
    char path[4096];
    const char *cache = getenv("BATON_CACHE"), *home = getenv("HOME");
    if (strcmp(name, "smollm") == 0)
        return load_cached(test_model(), name);
    snprintf(path, sizeof path, "%s%s/vocabs/ggml-vocab-%s.gguf",
             cache  ? cache
             : home ? home
                    : "",
             cache ? "" : "/.cache/baton", name);
    return load_cached(path, name);
}

static void check_encode(const struct tokenizer *t, const char *p, size_t n, unsigned flags,
                         const int32_t *want, size_t n_want, const char *what)
{
    struct token_list ids = {0};
    ck_assert_ok(tokenizer_encode(t, p, n, flags, &ids));
    for (size_t i = 0; i < ids.n && i < n_want; i++)
        ck_assert_msg(ids.ids[i] == want[i], "%s, '%.*s': id %zu is %d, not %d", what, (int)n, p, i,
                      ids.ids[i], want[i]);
    ck_assert_msg(ids.n == n_want, "%s, '%.*s': %zu ids, not %zu", what, (int)n, p, ids.n, n_want);
    token_list_fini(&ids);
}

static void check_round_trip(const struct tokenizer *t, const char *p, size_t n)
{
    struct token_list ids = {0};
    struct buf out;
    buf_init(&out, 0);
    ck_assert_ok(tokenizer_encode(t, p, n, 0, &ids));
    tokenizer_decode(t, ids.ids, ids.n, false, &out);
    ck_assert_msg(out.len == n && (n == 0 || memcmp(out.data, p, n) == 0), "'%.*s' is not the same",
                  (int)n, p);
    buf_fini(&out);
    token_list_fini(&ids);
}

/* ---- committed vectors ---- */

/* The ids of one line; *line moves behind it. */
static size_t parse_line(char **line, int32_t *ids, size_t max)
{
    size_t n = 0;
    char *p = *line;
    while (*p && *p != '\n') {
        char *end;
        long id = strtol(p, &end, 10);
        if (end == p) {
            p++;
            continue;
        }
        ck_assert_uint_lt(n, max);
        ids[n++] = (int32_t)id;
        p = end;
    }
    *line = *p ? p + 1 : p;
    return n;
}

START_TEST(vectors_of_llama_cpp)
{
    static const char separator[] = "\n__ggml_vocab_test__\n";
    char name[128];
    size_t size;
    struct tokenizer *t = load_vocab(vocabs[_i]);
    if (!t)
        return;
    snprintf(name, sizeof name, "tokenizers/ggml-vocab-%s.gguf.inp", vocabs[_i]);
    char *texts = read_file(test_data(name), &size);
    texts[size] = 0;
    snprintf(name, sizeof name, "tokenizers/ggml-vocab-%s.gguf.out", vocabs[_i]);
    char *lines = read_file(test_data(name), &size);
    lines[size] = 0;
    int n_texts = 0;
    char *line = lines;
    for (char *text = texts, *end; (end = strstr(text, separator));
         text = end + strlen(separator)) {
        int32_t want[1024];
        size_t n = (size_t)(end - text), n_want = parse_line(&line, want, 1024);
        check_encode(t, text, n, 0, want, n_want, vocabs[_i]);
        check_round_trip(t, text, n);
        n_texts++;
    }
    ck_assert_int_eq(n_texts, 46);
    ck_assert_str_eq(line, "");
    free(texts);
    free(lines);
    tokenizer_destroy(t);
}
END_TEST

static json_t *load_json(const char *name)
{
    json_error_t error;
    json_t *root = json_load_file(test_data(name), 0, &error);
    ck_assert_msg(root, "%s: %s", name, error.text);
    return root;
}

static size_t json_ids(const json_t *list, int32_t *ids, size_t max)
{
    size_t i;
    const json_t *id;
    ck_assert_uint_le(json_array_size(list), max);
    json_array_foreach(list, i, id) ids[i] = (int32_t)json_integer_value(id);
    return json_array_size(list);
}

START_TEST(vectors_over_all_of_unicode)
{
    const char *name = _i ? vocabs[_i - 1] : "smollm";
    struct tokenizer *t = load_vocab(name);
    if (!t)
        return;
    json_t *root = load_json("tokenizers/unicode.json"), *text;
    json_t *texts = json_object_get(root, "texts"), *lists = json_object_get(root, name);
    ck_assert_uint_eq(json_array_size(texts), 150);
    ck_assert_uint_eq(json_array_size(lists), 150);
    size_t i;
    json_array_foreach(texts, i, text)
    {
        int32_t want[1024];
        size_t n_want = json_ids(json_array_get(lists, i), want, 1024);
        check_encode(t, json_string_value(text), json_string_length(text), TOKENIZE_SPECIAL, want,
                     n_want, name);
    }
    json_decref(root);
    tokenizer_destroy(t);
}
END_TEST

/* ---- the default model ---- */

static void check_pieces(const struct tokenizer *t, const json_t *chat)
{
    int32_t ids[256];
    size_t n = json_ids(json_object_get(chat, "output_ids"), ids, 256);
    struct detok d;
    struct buf out;
    buf_init(&out, 0);
    detok_init(&d, t, false);
    for (size_t i = 0; i < n; i++)
        detok_feed(&d, ids[i], &out);
    detok_flush(&d, &out);
    ck_assert_str_eq(buf_str(&out), json_string_value(json_object_get(chat, "output_text")));
    buf_fini(&out);
}

START_TEST(golden_prompts_of_the_default_model)
{
    struct tokenizer *t = load_vocab("smollm");
    if (!t)
        return;
    static const struct {
        const char *list, *text, *ids;
        unsigned flags;
    } parts[] = {{"greedy_chat", "rendered", "prompt_ids", TOKENIZE_SPECIAL},
                 {"greedy_raw", "prompt", "prompt_ids", 0},
                 {"score", "text", "ids", 0}};
    json_t *root = load_json("golden/smollm2-135m-instruct-q4_1.json");
    for (size_t k = 0; k < 3; k++) {
        json_t *list = json_object_get(root, parts[k].list), *item;
        size_t i;
        ck_assert_uint_gt(json_array_size(list), 0);
        json_array_foreach(list, i, item)
        {
            int32_t want[4096];
            const json_t *text = json_object_get(item, parts[k].text);
            size_t n = json_ids(json_object_get(item, parts[k].ids), want, 4096);
            check_encode(t, json_string_value(text), json_string_length(text), parts[k].flags, want,
                         n, parts[k].list);
            if (k < 2)
                check_pieces(t, item);
        }
    }
    size_t n;
    const int32_t *stops = tokenizer_stops(t, &n);
    ck_assert_uint_eq(n, 2);
    ck_assert_int_eq(stops[0], 2); /* <|im_end|>, its EOS */
    ck_assert_int_eq(stops[1], 0); /* <|endoftext|> */
    ck_assert(!tokenizer_add_bos(t));
    ck_assert_int_eq(tokenizer_find(t, "<|im_start|>", 12), 1);
    json_decref(root);
    tokenizer_destroy(t);
}
END_TEST

START_TEST(bos_by_family)
{
    static const struct {
        const char *name;
        bool add_bos;
        int32_t bos;
    } cases[] = {{"gpt-2", false, 50256},         {"llama-bpe", true, 128000},
                 {"qwen2", false, 151643},        {"deepseek-llm", true, 100000},
                 {"deepseek-coder", true, 32013}, {"llama-spm", true, 1}};
    for (size_t i = 0; i < N_VOCABS; i++) {
        struct tokenizer *t = load_vocab(cases[i].name);
        if (!t)
            continue;
        ck_assert_int_eq(tokenizer_add_bos(t), cases[i].add_bos);
        check_encode(t, "", 0, TOKENIZE_BOS, &cases[i].bos, 1, cases[i].name);
        tokenizer_destroy(t);
    }
}
END_TEST

/* ---- hostile texts ---- */

#define MILLION 1000000
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SECONDS_MAX 20
#else
#define SECONDS_MAX 2
#endif

START_TEST(a_million_of_one_character)
{
    /* A million of the first four, a tenth of it of the rest; words as long as they get. */
    static const char *const units[] = {"a",
                                        " ",
                                        "\xf0\x9f\x98\x80",
                                        "\xcc\x81",
                                        "\xcc\x81\xcc\xa3",
                                        "\n",
                                        "1",
                                        "\xe4\xbd\xa0",
                                        "'",
                                        " \n",
                                        "[PAD",
                                        "A",
                                        "\xff",
                                        "<|im_",
                                        "\xe2\x96\x81"};
    static const char *const tails[] = {"", "x", "\xe4\xbd\xa0"};
    const char *name = _i ? vocabs[_i - 1] : "smollm";
    struct tokenizer *t = load_vocab(name);
    if (!t)
        return;
    struct buf text;
    buf_init(&text, 0);
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        buf_reset(&text);
        for (size_t i = 0; i < (u < 4 && _i != 4 && _i != 5 ? MILLION : MILLION / 10); i++)
            buf_puts(&text, units[u]);
        buf_puts(&text, tails[u % 3]);
        struct token_list ids = {0};
        uint64_t start = clock_ms();
        ck_assert_ok(tokenizer_encode(t, text.data, text.len, TOKENIZE_SPECIAL, &ids));
        uint64_t ms = clock_ms() - start;
        ck_assert_msg(ms < 1000 * SECONDS_MAX, "%s: unit %zu took %u ms", name, u, (unsigned)ms);
        token_list_fini(&ids);
    }
    buf_fini(&text);
    tokenizer_destroy(t);
}
END_TEST

START_TEST(random_bytes_come_back)
{
    /* Vocabularies with a token for every byte that leave text as it is. */
    static const char *const complete[] = {"gpt-2", "llama-bpe", "llama-spm"};
    struct tokenizer *t = load_vocab(complete[_i]);
    if (!t)
        return;
    static const char alphabet[] =
        "ab '\n\r\t09.\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xcc\x81\xff\x80";
    uint32_t state = 1;
    for (int round = 0; round < 2000; round++) {
        char text[256];
        size_t n = (state >> 8) % sizeof text;
        for (size_t i = 0; i < n; i++) {
            state = state * 1664525u + 1013904223u;
            text[i] =
                round % 2 ? (char)(state >> 24) : alphabet[(state >> 16) % (sizeof alphabet - 1)];
        }
        state = state * 1664525u + 1013904223u;
        if (memmem(text, n, "\xe2\x96\x81", 3)) /* reads as a space to SentencePiece */
            continue;
        check_round_trip(t, text, n);
    }
    tokenizer_destroy(t);
}
END_TEST

/* ---- GGUF vocabularies that lie ---- */

/* A byte-level vocabulary with one merge; what is NULL or 0 is left out. */
struct lie {
    const char *model, *pre;
    uint64_t n_types, n_scores;
    const char *merge;
    uint32_t eos;
    const char *want; /* in the message; NULL: it loads */
};

static void build_vocab(struct gguf_build *b, const struct lie *lie)
{
    build_string(b, "general.architecture", "llama");
    build_string(b, "tokenizer.ggml.model", lie->model);
    if (lie->pre)
        build_string(b, "tokenizer.ggml.pre", lie->pre);
    build_array(b, "tokenizer.ggml.tokens", GGUF_STRING, 4);
    put_string(&b->keys, "a");
    put_string(&b->keys, "b");
    put_string(&b->keys, "ab");
    put_string(&b->keys, "<e>");
    if (lie->n_types) {
        build_array(b, "tokenizer.ggml.token_type", GGUF_I32, lie->n_types);
        for (uint64_t i = 0; i < lie->n_types; i++)
            put_u32(&b->keys, i == 3 ? 3 : 1);
    }
    if (lie->n_scores) {
        build_array(b, "tokenizer.ggml.scores", GGUF_F32, lie->n_scores);
        for (uint64_t i = 0; i < lie->n_scores; i++)
            put_u32(&b->keys, 0);
    }
    if (lie->merge) {
        build_array(b, "tokenizer.ggml.merges", GGUF_STRING, 1);
        put_string(&b->keys, lie->merge);
    }
    build_u32(b, "tokenizer.ggml.eos_token_id", lie->eos);
}

START_TEST(gguf_vocabularies_that_lie)
{
    static const struct lie lies[] = {
        {"gpt2", "gpt-2", 4, 0, "a b", 3, NULL},
        {"gpt2", NULL, 0, 0, "a b", 3, NULL},
        {"llama", NULL, 4, 4, NULL, 3, NULL},
        {"gpt2", "gpt-2", 4, 0, "a b", UINT32_MAX, NULL}, /* no EOS */
        {"bert", NULL, 4, 0, "a b", 3, "the tokenizer 'bert' is not supported"},
        {"gpt2", "unheard-of", 4, 0, "a b", 3, "unknown pre-tokenizer 'unheard-of'"},
        {"gpt2", "gpt-2", 3, 0, "a b", 3, "3 entries for 4 tokens"},
        {"gpt2", "gpt-2", 4, 0, NULL, 3, "tokenizer.ggml.merges"},
        {"gpt2", "gpt-2", 4, 0, "ab", 3, "merge 0 has no second part"},
        {"gpt2", "gpt-2", 4, 0, "a c", 3, "merge 0 names 'c'"},
        {"gpt2", "gpt-2", 4, 0, "b a", 3, "merge 0 gives 'ba'"},
        {"gpt2", "gpt-2", 4, 0, "a b", 4, "4 tokens"},
        {"llama", NULL, 4, 3, NULL, 3, "3 entries for 4 tokens"},
        {"llama", NULL, 4, 0, NULL, 3, "tokenizer.ggml.scores"},
    };
    scratch_setup();
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        struct gguf_build b;
        size_t size;
        char err[512] = "";
        build_init(&b);
        build_vocab(&b, &lies[i]);
        uint8_t *file = build_finish(&b, &size);
        const char *path = at("vocab.gguf");
        write_file(path, file, size);
        free(file);
        struct model *m = NULL;
        struct tokenizer *t = NULL;
        int rc = model_open(path, MODEL_VOCAB_ONLY, &m, err, sizeof err);
        if (rc == 0)
            rc = model_tokenizer(m, &t, err, sizeof err);
        if (lies[i].want) {
            ck_assert_int_lt(rc, 0);
            ck_assert_msg(strstr(err, lies[i].want), "case %zu: '%s'", i, err);
            ck_assert_msg(strncmp(err, path, strlen(path)) == 0, "no path in '%s'", err);
        } else {
            ck_assert_msg(rc == 0, "case %zu: %s", i, err);
            const int32_t ab = 2;
            check_encode(t, "ab", 2, 0, &ab, 1, "good file");
        }
        tokenizer_destroy(t);
        model_close(m);
    }
    scratch_teardown();
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("vocab");
    TCase *t = tcase_create("vocab");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, vectors_of_llama_cpp, 0, N_VOCABS);
    tcase_add_loop_test(t, vectors_over_all_of_unicode, 0, N_VOCABS + 1);
    tcase_add_test(t, golden_prompts_of_the_default_model);
    tcase_add_test(t, bos_by_family);
    tcase_add_loop_test(t, a_million_of_one_character, 0, N_VOCABS + 1);
    tcase_add_loop_test(t, random_bytes_come_back, 0, 3);
    tcase_add_test(t, gguf_vocabularies_that_lie);
    suite_add_tcase(s, t);
    return s;
}
