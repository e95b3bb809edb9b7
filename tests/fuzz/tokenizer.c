/* Tokenizers: any text through every pre-tokenizer, and any tokenizer.json. */
#include <sys/stat.h>
#include <unistd.h>

#include "common/model/vocab.h"
#include "common/text/detok.h"
#include "common/text/unicode.h"
#include "tests/fuzz/fuzz.h"

/* The 256 bytes in GPT-2's spelling, some merges, two special tokens. */
static void vocabulary(struct tokenizer_spec *spec, struct token_text tokens[300],
                       uint8_t types[300], struct token_text merges[8][2])
{
    static char spelt[256][4];
    static const char *const more[] = {"he", "hel", "\xc4\xa0t", "ab", "12"};
    static const char *const pairs[][2] = {
        {"h", "e"}, {"he", "l"}, {"\xc4\xa0", "t"}, {"a", "b"}, {"1", "2"}};
    uint32_t next = 256;
    for (int b = 0; b < 256; b++) {
        bool plain = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        tokens[b] =
            (struct token_text){spelt[b], unicode_put(plain ? (uint32_t)b : next, spelt[b])};
        next += !plain;
        types[b] = TOKEN_NORMAL;
    }
    for (int i = 0; i < 5; i++) {
        tokens[256 + i] = (struct token_text){more[i], strlen(more[i])};
        types[256 + i] = TOKEN_NORMAL;
        for (int k = 0; k < 2; k++)
            merges[i][k] = (struct token_text){pairs[i][k], strlen(pairs[i][k])};
    }
    tokens[261] = (struct token_text){"<|im_end|>", 10};
    tokens[262] = (struct token_text){"<t>", 3};
    types[261] = TOKEN_CONTROL;
    types[262] = TOKEN_USER_DEFINED;
    *spec = (struct tokenizer_spec){.kind = TOKENIZER_BPE,
                                    .n_tokens = 263,
                                    .tokens = tokens,
                                    .types = types,
                                    .n_merges = 5,
                                    .merges = (const struct token_text(*)[2])merges,
                                    .bos = -1,
                                    .eos = -1,
                                    .eot = -1,
                                    .unk = -1,
                                    .pad = -1};
}

/* Bytes of a SentencePiece vocabulary, and a few pieces with scores. */
static struct tokenizer *sentence_piece(void)
{
    static char spelt[256][8];
    static const char *const more[] = {"\xe2\x96\x81", "\xe2\x96\x81t", "a", "b", "ab", "t",
                                       "\xc3\xa9"};
    struct token_text tokens[264];
    uint8_t types[264];
    float scores[264] = {0};
    for (int b = 0; b < 256; b++) {
        tokens[b] = (struct token_text){spelt[b], (size_t)snprintf(spelt[b], 8, "<0x%02X>", b)};
        types[b] = TOKEN_BYTE;
    }
    for (int i = 0; i < 7; i++) {
        tokens[256 + i] = (struct token_text){more[i], strlen(more[i])};
        types[256 + i] = TOKEN_NORMAL;
        scores[256 + i] = (float)-i;
    }
    tokens[263] = (struct token_text){"</s>", 4};
    types[263] = TOKEN_CONTROL;
    struct tokenizer_spec spec = {.kind = TOKENIZER_SPM,
                                  .n_tokens = 264,
                                  .tokens = tokens,
                                  .types = types,
                                  .scores = scores,
                                  .bos = -1,
                                  .eos = 263,
                                  .eot = -1,
                                  .unk = -1,
                                  .pad = -1,
                                  .add_space_prefix = true};
    struct tokenizer *t = NULL;
    char err[200];
    FUZZ_CHECK(tokenizer_create(&spec, &t, err, sizeof err) == STATUS_OK);
    return t;
}

/* decode(encode(x)) is x (Qwen's puts well-formed text into form C first); token by token it is
 * well-formed. */
static void round_trip(const struct tokenizer *t, const char *p, size_t n, unsigned flags, bool nfc)
{
    struct token_list ids = {0};
    struct buf out, form_c;
    struct detok d;
    buf_init(&form_c, 0);
    FUZZ_CHECK(tokenizer_encode(t, p, n, flags, &ids) == STATUS_OK);
    if (nfc && unicode_valid(p, n) == n) {
        FUZZ_CHECK(unicode_nfc(p, n, &form_c) == STATUS_OK);
        p = buf_str(&form_c);
        n = form_c.len;
    }
    buf_init(&out, 0);
    tokenizer_decode(t, ids.ids, ids.n, true, &out);
    if (!nfc || unicode_valid(p, n) == n)
        FUZZ_CHECK(out.len == n && (n == 0 || memcmp(out.data, p, n) == 0));
    buf_reset(&out);
    detok_init(&d, t, true);
    for (size_t i = 0; i < ids.n; i++)
        detok_feed(&d, ids.ids[i], &out);
    FUZZ_CHECK(unicode_valid(buf_str(&out), out.len) == out.len);
    if (unicode_valid(p, n) == n)
        FUZZ_CHECK(out.len == n && (n == 0 || memcmp(out.data, p, n) == 0));
    token_list_fini(&ids);
    buf_fini(&out);
    buf_fini(&form_c);
}

void fuzz_tokenizer_text(const uint8_t *data, size_t n)
{
    static const char *const presets[] = {"gpt-2",  "llama-bpe",    "qwen2",
                                          "smollm", "deepseek-llm", "deepseek-coder"};
    enum { N = sizeof presets / sizeof *presets };
    static struct tokenizer *t[N + 1];
    if (!t[0]) {
        struct tokenizer_spec spec;
        struct token_text tokens[300], merges[8][2];
        uint8_t types[300];
        char err[200];
        vocabulary(&spec, tokens, types, merges);
        for (size_t i = 0; i < N; i++) {
            spec.pre = presets[i];
            FUZZ_CHECK(tokenizer_create(&spec, &t[i], err, sizeof err) == STATUS_OK);
        }
        t[N] = sentence_piece();
    }
    const char *p = (const char *)data;
    for (size_t i = 0; i < N; i++) {
        bool nfc = strcmp(presets[i], "qwen2") == 0;
        round_trip(t[i], p, n, 0, nfc);
        round_trip(t[i], p, n, TOKENIZE_SPECIAL, nfc);
        /* the halves of a text, of which one may name control tokens */
        struct token_list ids = {0};
        struct token_range range = {n / 3, n - n / 3};
        FUZZ_CHECK(tokenizer_encode_ranges(t[i], p, n, 0, &range, n != 0, &ids) == STATUS_OK);
        token_list_fini(&ids);
    }
    struct token_list ids = {0};
    FUZZ_CHECK(tokenizer_encode(t[N], p, n, 0, &ids) == STATUS_OK);
    token_list_fini(&ids);
}

static char scratch[64];

static void remove_scratch(void)
{
    char path[96];
    snprintf(path, sizeof path, "%s/tokenizer.json", scratch);
    unlink(path);
    rmdir(scratch);
}

void fuzz_tokenizer_json(const uint8_t *data, size_t n)
{
    char path[96], err[400] = "";
    struct tokenizer *t = NULL;
    if (!scratch[0]) {
        strcpy(scratch, "/tmp/baton-fuzz-XXXXXX");
        FUZZ_CHECK(mkdtemp(scratch));
        atexit(remove_scratch);
    }
    snprintf(path, sizeof path, "%s/tokenizer.json", scratch);
    FILE *f = fopen(path, "wb");
    FUZZ_CHECK(f && fwrite(data, 1, n, f) == n && fclose(f) == 0);
    int rc = vocab_from_dir(scratch, &t, err, sizeof err);
    FUZZ_CHECK(rc == STATUS_OK || t == NULL);
    FUZZ_CHECK(rc == STATUS_OK || rc == STATUS_NOMEM || err[0]);
    static const char text[] = "hello the <t> 123 \xc3\xa9\xe2\x82\xac \xff <|end|>";
    if (t) {
        struct token_list ids = {0};
        struct buf out;
        buf_init(&out, 0);
        if (tokenizer_encode(t, text, sizeof text - 1, TOKENIZE_BOS | TOKENIZE_SPECIAL, &ids) ==
            STATUS_OK)
            tokenizer_decode(t, ids.ids, ids.n, true, &out);
        for (size_t i = 0; i < ids.n; i++)
            FUZZ_CHECK(ids.ids[i] >= 0 && (size_t)ids.ids[i] < tokenizer_size(t));
        token_list_fini(&ids);
        buf_fini(&out);
    }
    tokenizer_destroy(t);
}
