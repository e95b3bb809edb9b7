/* Tests of common/model/vocab_json and vocab_pipeline: tokenizer.json in its dialects. A small
 * byte-level or SentencePiece file is made as JSON, changed by the test, and read. */
#include "common/text/unicode.h"
#include "tests/model/model_files.h"

/* The code point that GPT-2's mapping writes for a byte. */
static uint32_t spelling(int byte)
{
    uint32_t next = 256;
    for (int i = 0; i <= byte; i++) {
        bool plain = (i >= 33 && i <= 126) || (i >= 161 && i <= 172) || i >= 174;
        if (i == byte)
            return plain ? (uint32_t)i : next;
        next += !plain;
    }
    return 0;
}

/* Parses JSON with single quotes for double ones. */
static json_t *parse(const char *text)
{
    char *copy = strdup(text);
    ck_assert_ptr_nonnull(copy);
    for (char *p = copy; *p; p++)
        if (*p == '\'')
            *p = '"';
    json_error_t error;
    json_t *value = json_loads(copy, JSON_DECODE_ANY, &error);
    ck_assert_msg(value, "%s: %s", text, error.text);
    free(copy);
    return value;
}

/* 0..255 the bytes, 256 th, 257 the, 258 "Ġt", 259 "Ġthe"; <|end|> 260 special, <t> 261 not. */
static json_t *byte_level(void)
{
    json_t *root = parse("{'added_tokens': [{'id': 260, 'content': '<|end|>', 'special': true},"
                         "                  {'id': 261, 'content': '<t>', 'special': false}],"
                         " 'normalizer': null,"
                         " 'pre_tokenizer': {'type': 'ByteLevel', 'add_prefix_space': false},"
                         " 'model': {'type': 'BPE', 'unk_token': null, 'vocab': {},"
                         "  'merges': ['t h', 'th e', '\xc4\xa0 the']}}");
    json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab");
    for (int i = 0; i < 256; i++) {
        char text[8];
        text[unicode_put(spelling(i), text)] = 0;
        ck_assert_ok(json_object_set_new(vocab, text, json_integer(i)));
    }
    static const char *const more[] = {"th", "the", "\xc4\xa0t", "\xc4\xa0the"};
    for (int i = 0; i < 4; i++)
        ck_assert_ok(json_object_set_new(vocab, more[i], json_integer(256 + i)));
    return root;
}

/* As transformers writes a Llama-2 tokenizer: 0 <unk>, 1 <s>, 2 </s>, 3..258 bytes, then pieces. */
static json_t *sentence_piece(void)
{
    json_t *root = parse(
        "{'added_tokens': [{'id': 0, 'content': '<unk>', 'special': true},"
        "                  {'id': 1, 'content': '<s>', 'special': true},"
        "                  {'id': 2, 'content': '</s>', 'special': true}],"
        " 'normalizer': {'type': 'Sequence', 'normalizers': ["
        "   {'type': 'Prepend', 'prepend': '\xe2\x96\x81'},"
        "   {'type': 'Replace', 'pattern': {'String': ' '}, 'content': '\xe2\x96\x81'}]},"
        " 'pre_tokenizer': null,"
        " 'post_processor': {'type': 'TemplateProcessing', 'single': ["
        "   {'SpecialToken': {'id': '<s>', 'type_id': 0}}, {'Sequence': {'id': 'A'}}]},"
        " 'model': {'type': 'BPE', 'unk_token': '<unk>', 'byte_fallback': true,"
        "  'vocab': {'<unk>': 0, '<s>': 1, '</s>': 2, '\xe2\x96\x81': 259, 'h': 260, 'i': 261,"
        "            'hi': 262, '\xe2\x96\x81hi': 263},"
        "  'merges': ['h i', '\xe2\x96\x81 hi']}}");
    json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab");
    for (int i = 0; i < 256; i++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", i);
        ck_assert_ok(json_object_set_new(vocab, text, json_integer(3 + i)));
    }
    return root;
}

static void write_json(const char *name, json_t *value)
{
    char *text = json_dumps(value, 0);
    ck_assert_ptr_nonnull(text);
    write_file(at(name), text, strlen(text));
    free(text);
    json_decref(value);
}

static const char config[] =
    "{'model_type': 'llama', 'architectures': ['LlamaForCausalLM'], 'hidden_size': 64,"
    " 'num_hidden_layers': 1, 'num_attention_heads': 4, 'num_key_value_heads': 4,"
    " 'intermediate_size': 64, 'vocab_size': 300, 'rms_norm_eps': 1e-5,"
    " 'max_position_embeddings': 128}";

/* Writes the directory and opens its tokenizer; takes root. */
static int open_json(json_t *root, struct tokenizer **out, char *err, size_t errlen)
{
    struct model *m = NULL;
    write_json("tokenizer.json", root);
    write_json("config.json", parse(config));
    int rc = model_open(scratch, MODEL_VOCAB_ONLY, &m, err, errlen);
    if (rc == 0)
        rc = model_tokenizer(m, out, err, errlen);
    model_close(m);
    return rc;
}

static struct tokenizer *good(json_t *root)
{
    struct tokenizer *t = NULL;
    char err[512] = "";
    int rc = open_json(root, &t, err, sizeof err);
    ck_assert_msg(rc == 0, "%s", err);
    return t;
}

static void bad(json_t *root, const char *want)
{
    struct tokenizer *t = NULL;
    char err[512] = "";
    ck_assert_int_lt(open_json(root, &t, err, sizeof err), 0);
    ck_assert_ptr_null(t);
    ck_assert_msg(strstr(err, want), "'%s' does not say '%s'", err, want);
    ck_assert_msg(strncmp(err, scratch, strlen(scratch)) == 0, "no path in '%s'", err);
    ck_assert_ptr_null(strchr(err, '\n'));
}

static void check_ids(const struct tokenizer *t, const char *text, unsigned flags,
                      const int32_t *want, size_t n_want)
{
    struct token_list ids = {0};
    ck_assert_ok(tokenizer_encode(t, text, strlen(text), flags, &ids));
    ck_assert_msg(ids.n == n_want, "'%s': %zu ids, not %zu", text, ids.n, n_want);
    for (size_t i = 0; i < n_want; i++)
        ck_assert_msg(ids.ids[i] == want[i], "'%s': id %zu is %d, not %d", text, i, ids.ids[i],
                      want[i]);
    token_list_fini(&ids);
}
#define CHECK_IDS(t, text, flags, ...)                                                             \
    do {                                                                                           \
        const int32_t want_[] = {__VA_ARGS__};                                                     \
        check_ids(t, text, flags, want_, sizeof want_ / sizeof *want_);                            \
    } while (0)

static json_t *model_of(json_t *root)
{
    return json_object_get(root, "model");
}

static json_t *with_merges(const char *merges)
{
    json_t *root = byte_level();
    json_object_set_new(model_of(root), "merges", parse(merges));
    return root;
}

START_TEST(merges_as_strings_and_as_pairs)
{
    struct tokenizer *strings = good(byte_level());
    struct tokenizer *pairs = good(with_merges("[['t', 'h'], ['th', 'e'], ['\xc4\xa0', 'the']]"));
    CHECK_IDS(strings, "the the", 0, 257, 259);
    /* Identical ids on a text of one megabyte. */
    size_t n = 1 << 20;
    char *text = malloc(n);
    ck_assert_ptr_nonnull(text);
    uint32_t state = 1;
    for (size_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        text[i] = "the  xt\n"[state >> 29];
    }
    struct token_list a = {0}, b = {0};
    ck_assert_ok(tokenizer_encode(strings, text, n, 0, &a));
    ck_assert_ok(tokenizer_encode(pairs, text, n, 0, &b));
    ck_assert_uint_eq(a.n, b.n);
    ck_assert(a.n > n / 4 && memcmp(a.ids, b.ids, a.n * sizeof *a.ids) == 0);
    token_list_fini(&a);
    token_list_fini(&b);
    free(text);
    tokenizer_destroy(strings);
    tokenizer_destroy(pairs);
}
END_TEST

START_TEST(merges_of_parts_with_spaces)
{
    /* Only pairs can say it. Byte-level text has no plain spaces, so no text leads to such tokens;
     * they decode to what they are, and "Ġt" (258) is another token than " t". */
    json_t *root = with_merges("[['t', 'h'], ['th', 'e'], ['t', ' t'], ['t t', 'th']]");
    json_t *vocab = json_object_get(model_of(root), "vocab");
    ck_assert_ok(json_object_set_new(vocab, " t", json_integer(270)));
    ck_assert_ok(json_object_set_new(vocab, "t t", json_integer(271)));
    ck_assert_ok(json_object_set_new(vocab, "t tth", json_integer(272)));
    struct tokenizer *t = good(root);
    CHECK_IDS(t, "the t t", 0, 257, ' ', 't', ' ', 't');
    struct token_text piece = tokenizer_piece(t, 272, false);
    ck_assert_uint_eq(piece.n, 5);
    ck_assert(memcmp(piece.p, "t tth", 5) == 0);
    tokenizer_destroy(t);
    bad(with_merges("[['t', ' x']]"), "merge 0 names ' x', which is not a token");
}
END_TEST

START_TEST(merges_that_cannot_be_meant)
{
    json_t *root = byte_level();
    json_object_del(model_of(root), "merges");
    bad(root, "no merges");
    bad(with_merges("[]"), "no merges");
    bad(with_merges("['t h', 'th']"), "merge 1 is not two parts");
    bad(with_merges("['t h e']"), "merge 0 is not two parts");
    bad(with_merges("[['t', 'h', 'e']]"), "merge 0 is not two parts");
    bad(with_merges("[['t', 7]]"), "merge 0 is not two parts");
    bad(with_merges("[{}]"), "merge 0 is not two parts");
    bad(with_merges("['t h', 'th nix']"), "merge 1 names 'nix', which is not a token");
    bad(with_merges("['h t']"), "merge 0 gives 'ht', which is not a token");
    /* Twice the same: the first rank counts. */
    struct tokenizer *t = good(with_merges("['t h', 'th e', 't h']"));
    CHECK_IDS(t, "the", 0, 257);
    tokenizer_destroy(t);
}
END_TEST

static json_t *with_added(const char *token)
{
    json_t *root = byte_level();
    json_array_append_new(json_object_get(root, "added_tokens"), parse(token));
    return root;
}

START_TEST(ids_that_clash)
{
    bad(with_added("{'id': 65, 'content': '<new>', 'special': true}"), "id 65 belongs to");
    bad(with_added("{'id': 400, 'content': 'the', 'special': true}"), "'the' is id 257");
    bad(with_added("{'id': 261, 'content': '<u>', 'special': false}"),
        "id 261 belongs to '<t>' and to '<u>'");
    bad(with_added("{'id': -1, 'content': '<u>'}"), "'<u>' has no usable id");
    bad(with_added("{'id': 99999999999, 'content': '<u>'}"), "'<u>' has no usable id");
    bad(with_added("{'id': 300}"), "added token 2 has no content");
    json_t *root = byte_level();
    json_object_set_new(json_object_get(model_of(root), "vocab"), "xx", json_integer(65));
    bad(root, "id 65 belongs to 'A' and to 'xx'");
    root = byte_level();
    json_object_set_new(json_object_get(model_of(root), "vocab"), "xx", json_string("65"));
    bad(root, "'xx' has no usable id");
    /* A special token that merges give: no text becomes it. */
    struct tokenizer *special = good(with_added("{'id': 257, 'content': 'the', 'special': true}"));
    CHECK_IDS(special, "the", 0, 256, 'e');
    CHECK_IDS(special, "the", TOKENIZE_SPECIAL, 257);
    tokenizer_destroy(special);
    /* The same text and id twice is no clash. */
    struct tokenizer *t = good(with_added("{'id': 257, 'content': 'the', 'special': false}"));
    ck_assert_int_eq(tokenizer_type(t, 257), TOKEN_USER_DEFINED);
    tokenizer_destroy(t);
}
END_TEST

START_TEST(added_tokens_and_holes)
{
    struct tokenizer *t = good(with_added("{'id': 280, 'content': '<z>', 'special': true,"
                                          " 'lstrip': true, 'rstrip': true}"));
    ck_assert_uint_eq(tokenizer_size(t), 281);
    CHECK_IDS(t, "<t><|end|>", TOKENIZE_SPECIAL, 261, 260);
    CHECK_IDS(t, "a <z> \nb", TOKENIZE_SPECIAL, 'a', 280, 'b');
    CHECK_IDS(t, "<t><z>", 0, 261, '<', 'z', '>');
    ck_assert_int_eq(tokenizer_type(t, 270), TOKEN_UNUSED);
    ck_assert_uint_eq(tokenizer_piece(t, 270, false).n, 0);
    size_t n;
    ck_assert_int_eq(tokenizer_stops(t, &n)[0], 260);
    ck_assert_uint_eq(n, 1);
    tokenizer_destroy(t);
}
END_TEST

START_TEST(begin_and_end_tokens)
{
    struct tokenizer *t = good(byte_level());
    ck_assert(!tokenizer_add_bos(t));
    ck_assert_int_eq(tokenizer_eos(t), -1);
    tokenizer_destroy(t);

    write_json("tokenizer_config.json",
               parse("{'bos_token': {'content': '<|end|>'}, 'eos_token': '<t>',"
                     " 'add_bos_token': true}"));
    write_json("generation_config.json", parse("{'eos_token_id': [257, 260, 999]}"));
    t = good(byte_level());
    ck_assert(tokenizer_add_bos(t));
    ck_assert_int_eq(tokenizer_bos(t), 260);
    ck_assert_int_eq(tokenizer_eos(t), 261);
    size_t n;
    const int32_t *stops = tokenizer_stops(t, &n);
    ck_assert_uint_eq(n, 3);
    ck_assert(stops[0] == 261 && stops[1] == 257 && stops[2] == 260);
    tokenizer_destroy(t);

    /* Llama-3's form: the template is one of a sequence of processors. */
    write_json("tokenizer_config.json", parse("{}"));
    json_t *root = byte_level();
    json_object_set_new(
        root, "post_processor",
        parse("{'type': 'Sequence', 'processors': [{'type': 'ByteLevel'},"
              " {'type': 'TemplateProcessing', 'single': ["
              " {'SpecialToken': {'id': '<|end|>'}}, {'Sequence': {'id': 'A'}}]}]}"));
    t = good(root);
    ck_assert(tokenizer_add_bos(t));
    ck_assert_int_eq(tokenizer_bos(t), 260);
    ck_assert_int_eq(tokenizer_eos(t), 257); /* the first of generation_config.json */
    tokenizer_destroy(t);
}
END_TEST

START_TEST(sentence_piece_with_merges)
{
    struct tokenizer *t = good(sentence_piece());
    ck_assert(tokenizer_add_bos(t));
    CHECK_IDS(t, "hi", TOKENIZE_BOS, 1, 263);
    CHECK_IDS(t, "hi hi", 0, 263, 263);
    CHECK_IDS(t, "hi\n", 0, 263, 3 + '\n');
    CHECK_IDS(t, "\xc3\xa9", 0, 259, 3 + 0xc3, 3 + 0xa9);
    CHECK_IDS(t, "<s>hi", TOKENIZE_SPECIAL, 1, 263);
    struct buf out;
    buf_init(&out, 0);
    const int32_t ids[] = {1, 263, 263, 3 + '\n'};
    tokenizer_decode(t, ids, 4, false, &out);
    ck_assert_str_eq(buf_str(&out), "hi hi\n");
    buf_fini(&out);
    tokenizer_destroy(t);

    /* Mistral's form: Metaspace, the prefix only at the very beginning. */
    json_t *root = sentence_piece();
    json_object_set_new(root, "normalizer", json_null());
    json_object_set_new(root, "pre_tokenizer",
                        parse("{'type': 'Metaspace', 'replacement': '\xe2\x96\x81',"
                              " 'prepend_scheme': 'first', 'split': false}"));
    t = good(root);
    CHECK_IDS(t, " hi<s>hi", TOKENIZE_SPECIAL, 263, 1, 262);
    tokenizer_destroy(t);
}
END_TEST

static json_t *with_step(const char *section, const char *step)
{
    json_t *root = byte_level();
    json_object_set_new(root, section, parse(step));
    return root;
}

START_TEST(steps_of_pre_tokenizers)
{
    /* Llama-3's expression, used as it stands. */
    struct tokenizer *t = good(with_step(
        "pre_tokenizer",
        "{'type': 'Sequence', 'pretokenizers': ["
        " {'type': 'Split', 'behavior': 'Isolated', 'invert': false, 'pattern': {'Regex':"
        "  '[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| ?[^\\\\s\\\\p{L}\\\\p{N}]+"
        "[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+'}},"
        " {'type': 'ByteLevel', 'add_prefix_space': false, 'use_regex': false}]}"));
    CHECK_IDS(t, "the the", 0, 257, 259);
    tokenizer_destroy(t);
    /* A plain string with a character that means something in expressions. */
    t = good(with_step("pre_tokenizer",
                       "{'type': 'Sequence', 'pretokenizers': ["
                       " {'type': 'Split', 'behavior': 'Isolated', 'pattern': {'String': 'h'}},"
                       " {'type': 'Split', 'behavior': 'Removed', 'pattern': {'String': '.'}},"
                       " {'type': 'Digits', 'individual_digits': true},"
                       " {'type': 'ByteLevel', 'add_prefix_space': false, 'use_regex': false}]}"));
    CHECK_IDS(t, "the.", 0, 't', 'h', 'e');
    tokenizer_destroy(t);
    t = good(with_step("normalizer", "{'type': 'NFC'}"));
    CHECK_IDS(t, "e\xcc\x81", 0, 0xc3, 0xa9);
    tokenizer_destroy(t);
}
END_TEST

START_TEST(steps_that_are_not_understood)
{
    bad(with_step("normalizer", "{'type': 'Lowercase'}"), "normalizer 'Lowercase'");
    bad(with_step("normalizer", "{'type': 'Replace', 'pattern': {'String': 'x'}, 'content': 'y'}"),
        "normalizer 'Replace'");
    bad(with_step("pre_tokenizer", "{'type': 'UnicodeScripts'}"), "'UnicodeScripts'");
    bad(with_step("pre_tokenizer", "{'type': 'ByteLevel', 'add_prefix_space': true}"),
        "add_prefix_space");
    bad(with_step("pre_tokenizer", "{'type': 'Split', 'pattern': {}}"), "Split without a pattern");
    bad(with_step("pre_tokenizer", "{'type': 'Split', 'pattern': {'Regex': 'a'},"
                                   " 'behavior': 'Sideways'}"),
        "'Sideways'");
    bad(with_step("pre_tokenizer",
                  "{'type': 'Sequence', 'pretokenizers': ["
                  " {'type': 'Split', 'pattern': {'Regex': '('}, 'behavior': 'Isolated'},"
                  " {'type': 'ByteLevel', 'add_prefix_space': false}]}"),
        "expression '('");
    bad(with_step("pre_tokenizer", "null"), "neither byte-level nor SentencePiece");
    json_t *root = byte_level();
    json_object_set_new(model_of(root), "type", json_string("Unigram"));
    bad(root, "the tokenizer 'Unigram' is not supported");
    root = byte_level();
    json_object_set_new(model_of(root), "end_of_word_suffix", json_string("</w>"));
    bad(root, "marks inside words");
    bad(json_object(), "neither byte-level");
}
END_TEST

START_TEST(files_that_are_no_json)
{
    static const struct {
        const char *text, *want;
    } cases[] = {{"{\"model\": ", "tokenizer.json, line 1"},
                 {"[]", "tokenizer.json is not an object"},
                 {"{\"model\": \"\xff\"}", "tokenizer.json, line 1"},
                 {" ", "tokenizer.json, line 1"}};
    write_json("config.json", parse(config));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char err[512] = "";
        struct model *m = NULL;
        struct tokenizer *t = NULL;
        write_file(at("tokenizer.json"), cases[i].text, strlen(cases[i].text));
        ck_assert_ok(model_open(scratch, MODEL_VOCAB_ONLY, &m, err, sizeof err));
        ck_assert_int_lt(model_tokenizer(m, &t, err, sizeof err), 0);
        ck_assert_msg(strstr(err, cases[i].want), "'%s'", err);
        model_close(m);
    }
    ck_assert_ok(unlink(at("tokenizer.json")));
    char err[512] = "";
    struct model *m = NULL;
    struct tokenizer *t = NULL;
    ck_assert_ok(model_open(scratch, MODEL_VOCAB_ONLY, &m, err, sizeof err));
    ck_assert_int_lt(model_tokenizer(m, &t, err, sizeof err), 0);
    ck_assert_msg(strstr(err, "tokenizer.json"), "'%s'", err);
    model_close(m);
}
END_TEST

START_TEST(files_with_flipped_bytes)
{
    /* Whatever a byte becomes, the file is read or refused, and what is read works. */
    json_t *root = _i ? sentence_piece() : byte_level();
    char *text = json_dumps(root, JSON_COMPACT);
    ck_assert_ptr_nonnull(text);
    json_decref(root);
    size_t n = strlen(text);
    write_json("config.json", parse(config));
    char err[512] = "";
    struct model *m = NULL;
    ck_assert_ok(model_open(scratch, MODEL_VOCAB_ONLY, &m, err, sizeof err));
    int read = 0, refused = 0;
    for (size_t i = 0; i < n; i += 11) {
        static const char other[] = "\"[]{}:,0-9e\\n\x80 ";
        char old = text[i];
        text[i] = other[(i / 11) % (sizeof other - 1)];
        write_file(at("tokenizer.json"), text, n);
        text[i] = old;
        struct tokenizer *t = NULL;
        if (model_tokenizer(m, &t, err, sizeof err) == 0) {
            struct token_list ids = {0};
            struct buf out;
            buf_init(&out, 0);
            ck_assert_ok(tokenizer_encode(t, "the hi\n\xff", 8, TOKENIZE_SPECIAL, &ids));
            tokenizer_decode(t, ids.ids, ids.n, true, &out);
            buf_fini(&out);
            token_list_fini(&ids);
            tokenizer_destroy(t);
            read++;
        } else {
            refused++;
        }
    }
    ck_assert_int_gt(read, 0);
    ck_assert_int_gt(refused, 0);
    model_close(m);
    free(text);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("vocab_json");
    TCase *t = tcase_create("vocab_json");
    tcase_set_timeout(t, 30);
    tcase_add_checked_fixture(t, scratch_setup, scratch_teardown);
    tcase_add_test(t, merges_as_strings_and_as_pairs);
    tcase_add_test(t, merges_of_parts_with_spaces);
    tcase_add_test(t, merges_that_cannot_be_meant);
    tcase_add_test(t, ids_that_clash);
    tcase_add_test(t, added_tokens_and_holes);
    tcase_add_test(t, begin_and_end_tokens);
    tcase_add_test(t, sentence_piece_with_merges);
    tcase_add_test(t, steps_of_pre_tokenizers);
    tcase_add_test(t, steps_that_are_not_understood);
    tcase_add_test(t, files_that_are_no_json);
    tcase_add_loop_test(t, files_with_flipped_bytes, 0, 2);
    suite_add_tcase(s, t);
    return s;
}
