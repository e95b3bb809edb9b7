/* Text through real tokenizers and back: the big list of naughty strings and random Unicode, with
 * every byte-level vocabulary; and token by token through the streaming detokeniser. */
#include <dirent.h>

#include "common/base/rng.h"
#include "common/text/detok.h"
#include "common/text/unicode.h"
#include "tests/model/model_files.h"

/* All of the cache that we can read are byte-level but these. */
static const char *const others[] = {"llama-spm", "phi-3", "baichuan", "gemma-4"};

static bool is_byte_level(const char *name)
{
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (strcmp(name, others[i]) == 0)
            return false;
    }
    return true;
}

/* NULL when the file is no vocabulary that we know. */
static struct tokenizer *load(const char *path)
{
    char err[512] = "";
    struct model *m = NULL;
    struct tokenizer *t = NULL;
    if (model_open(path, MODEL_VOCAB_ONLY, &m, err, sizeof err) != STATUS_OK ||
        model_tokenizer(m, &t, err, sizeof err) != STATUS_OK)
        t = NULL;
    model_close(m);
    return t;
}

/* Some vocabularies have no token for bytes that their training text lacked; such bytes are lost,
 * in the reference tokenizers too. */
static void find_bytes(const struct tokenizer *t, bool have[256])
{
    for (int byte = 0; byte < 256; byte++) {
        struct token_list ids = {0};
        char c = (char)byte;
        struct token_text piece = {NULL, 0};
        ck_assert_ok(tokenizer_encode(t, &c, 1, 0, &ids));
        if (ids.n == 1)
            piece = tokenizer_piece(t, ids.ids[0], false);
        token_list_fini(&ids);
        have[byte] = piece.n == 1 && piece.p[0] == c;
    }
}

static bool has_bytes(const bool have[256], const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!have[(unsigned char)p[i]])
            return false;
    }
    return true;
}

struct texts {
    json_t *naughty;
    char **random;
    size_t *length, n;
};

static struct texts texts_create(size_t n)
{
    json_error_t e;
    struct texts t = {.naughty = json_load_file(test_data("blns/blns.json"), JSON_ALLOW_NUL, &e),
                      .random = calloc(n, sizeof *t.random),
                      .length = calloc(n, sizeof *t.length),
                      .n = n};
    ck_assert_msg(t.naughty && t.random && t.length, "%s", e.text);
    ck_assert_uint_eq(json_array_size(t.naughty), 515);
    for (size_t i = 0; i < n; i++) {
        uint32_t len = rng_philox(5, i, 0).v[0] % 40;
        t.random[i] = malloc(4 * len + 1);
        ck_assert_ptr_nonnull(t.random[i]);
        for (uint32_t k = 0; k < len; k++) {
            /* all planes, with more weight on those that people write */
            struct rng_block r = rng_philox(5, i, k + 1);
            static const uint32_t below[] = {0x80, 0x250, 0x3000, 0x10000, 0x20000, 0x110000};
            uint32_t cp = r.v[0] % below[r.v[1] % 6];
            if (cp >= 0xd800 && cp < 0xe000)
                cp = ' ';
            t.length[i] += unicode_put(cp, t.random[i] + t.length[i]);
        }
    }
    return t;
}

static void texts_destroy(struct texts *t)
{
    for (size_t i = 0; i < t->n; i++)
        free(t->random[i]);
    free(t->random);
    free(t->length);
    json_decref(t->naughty);
}

/* decode(encode(x)) is x, and the tokens one by one give the same. Qwen's tokenizer puts text into
 * form C first. */
static void check(const struct tokenizer *t, const char *name, const char *p, size_t n)
{
    struct token_list ids = {0};
    struct buf whole, stream, form_c;
    struct detok d;
    const char *text = p;
    size_t length = n;
    buf_init(&form_c, 0);
    if (strncmp(name, "qwen", 4) == 0) {
        ck_assert_ok(unicode_nfc(p, n, &form_c));
        p = buf_str(&form_c);
        n = form_c.len;
    }
    buf_init(&whole, 0);
    buf_init(&stream, 0);
    ck_assert_ok(tokenizer_encode(t, text, length, 0, &ids));
    tokenizer_decode(t, ids.ids, ids.n, false, &whole);
    ck_assert_msg(whole.len == n && (n == 0 || memcmp(whole.data, p, n) == 0),
                  "%s: '%.*s' comes back as '%s'", name, (int)n, p, buf_str(&whole));
    detok_init(&d, t, false);
    for (size_t i = 0; i < ids.n; i++) {
        detok_feed(&d, ids.ids[i], &stream);
        ck_assert_uint_eq(unicode_valid(buf_str(&stream), stream.len), stream.len);
    }
    detok_flush(&d, &stream);
    ck_assert_msg(stream.len == n && (n == 0 || memcmp(stream.data, p, n) == 0),
                  "%s: '%.*s' streams as '%s'", name, (int)n, p, buf_str(&stream));
    token_list_fini(&ids);
    buf_fini(&form_c);
    buf_fini(&whole);
    buf_fini(&stream);
}

/* Returns how many texts were checked. */
static size_t check_all(const struct tokenizer *t, const char *name, const struct texts *texts)
{
    bool have[256];
    size_t n = 0;
    find_bytes(t, have);
    for (size_t i = 0; i < json_array_size(texts->naughty); i++) {
        const json_t *s = json_array_get(texts->naughty, i);
        if (!has_bytes(have, json_string_value(s), json_string_length(s)))
            continue;
        check(t, name, json_string_value(s), json_string_length(s));
        n++;
    }
    for (size_t i = 0; i < texts->n; i++) {
        if (!has_bytes(have, texts->random[i], texts->length[i]))
            continue;
        check(t, name, texts->random[i], texts->length[i]);
        n++;
    }
    return n;
}

START_TEST(every_byte_level_vocabulary)
{
    char dir[4096], path[4608];
    const char *cache = getenv("BATON_CACHE"), *home = getenv("HOME");
    const char *offline = getenv("BATON_OFFLINE"), *model = test_model();
    struct texts texts = texts_create(2000);
    size_t n = 0, complete = 0; /* complete: with a token for every byte */
    snprintf(dir, sizeof dir, "%s%s/vocabs",
             cache  ? cache
             : home ? home
                    : "",
             cache ? "" : "/.cache/baton");
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        char name[256];
        if (sscanf(e->d_name, "ggml-vocab-%255[^.].gguf", name) != 1 || !is_byte_level(name))
            continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        struct tokenizer *t = load(path);
        if (t) {
            complete += check_all(t, name, &texts) == 515 + texts.n;
            n++;
        }
        tokenizer_destroy(t);
    }
    if (d)
        closedir(d);
    struct tokenizer *t = model ? load(model) : NULL;
    if (t)
        ck_assert_uint_gt(check_all(t, "the default model", &texts), 515);
    tokenizer_destroy(t);
    texts_destroy(&texts);
    if (n >= 5 && complete >= 3 && model)
        return;
    if (!offline || strcmp(offline, "1") != 0)
        ck_abort_msg("%zu vocabularies: run deploy/fetch_model.sh and fetch_model.sh vocabs", n);
    printf("SKIP round trips: %zu vocabularies in the cache and BATON_OFFLINE=1\n", n);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("round_trip");
    TCase *t = tcase_create("round_trip");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, every_byte_level_vocabulary);
    suite_add_tcase(s, t);
    return s;
}
