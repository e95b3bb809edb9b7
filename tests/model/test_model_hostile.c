/* Tests of common/model with models that lie, are cut short, or ask for mathematics that Baton does
 * not do: each is refused with one line, in under a second, with little memory. */
#include <fcntl.h>

#include "tests/model/model_files.h"

START_TEST(model_refuses_what_is_no_file)
{
    ck_assert_ok(mkfifo(at("fifo"), 0600));
    refuse(at("fifo"), "not a regular file");
    write_file(at("empty"), "", 0);
    refuse(at("empty"), "the file is empty");
    refuse(at("missing"), "No such file");
    refuse("/dev/null", "not a regular file");
    write_file(at("four"), "GGUF", 4);
    refuse(at("four"), "truncated");
    write_file(at("text"), "hello, world", 12);
    refuse(at("text"), "not a GGUF file");
    ck_assert_ok(mkdir(at("dir"), 0700));
    refuse(at("dir"), "no model directory (there is no config.json)");
    ck_assert_ok(mkfifo(at("dir/config.json"), 0600));
    refuse(at("dir"), "config.json: not a regular file");
    ck_assert_ok(unlink(at("dir/config.json")));
    ck_assert_ok(mkdir(at("dir/config.json"), 0700));
    refuse(at("dir"), "config.json: not a regular file");
    refuse_flags(at("fifo"), MODEL_VOCAB_ONLY, "not a regular file");
    refuse_flags(at("empty"), MODEL_VOCAB_ONLY, "the file is empty");
    ck_assert_little_memory();
}
END_TEST

/* A good model cut in its header and in its data, as a file. */
START_TEST(model_refuses_cut_files)
{
    size_t n;
    char *p = read_file(test_data("tiny/llama-mixed.gguf"), &n);
    for (size_t cut = 1; cut < n; cut += cut < 400 ? 1 : 3001) {
        write_file(at("cut.gguf"), p, cut);
        refuse(at("cut.gguf"), "cut.gguf: ");
        refuse_flags(at("cut.gguf"), MODEL_VOCAB_ONLY, "cut.gguf: ");
    }
    write_file(at("cut.gguf"), p, n - 1);
    refuse(at("cut.gguf"), "end beyond the file's");
    free(p);
    make_directory("cut", "{}");
    p = read_file(at("cut/model.safetensors"), &n);
    for (size_t cut = 1; cut < n; cut += cut < 100 ? 1 : 3001) {
        write_file(at("cut/model.safetensors"), p, cut);
        char err[512];
        struct model *m;
        ck_assert_int_lt(model_open(at("cut"), 0, &m, err, sizeof err), 0);
    }
    free(p);
    ck_assert_little_memory();
}
END_TEST

START_TEST(gguf_model_needs_every_key)
{
    static const char *const keys[] = {"general.architecture",
                                       "llama.block_count",
                                       "llama.context_length",
                                       "llama.embedding_length",
                                       "llama.feed_forward_length",
                                       "llama.attention.head_count",
                                       "llama.attention.layer_norm_rms_epsilon",
                                       "tokenizer.ggml.tokens"};
    struct gguf_build b;
    build_llama(&b, "");
    model_close(open_good(finish_file(&b), 0));
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char words[128];
        snprintf(words, sizeof words, "key '%s' is missing", keys[i]);
        build_llama(&b, keys[i]);
        refuse_built(&b, words);
        snprintf(words, sizeof words, "key '%s' at byte ", keys[i]);
        build_llama(&b, keys[i]);
        build_key(&b, keys[i], GGUF_BOOL); /* a required key with the wrong type */
        buf_putc(&b.keys, 1);
        refuse_built(&b, strcmp(keys[i], "tokenizer.ggml.tokens") ? words : "no usable list");
    }
}
END_TEST

START_TEST(gguf_model_refuses_bad_numbers)
{
    static const struct {
        const char *key;
        uint32_t v;
        const char *words;
    } cases[] = {
        {"llama.block_count", 0, "number of layers is 0"},
        {"llama.block_count", UINT32_MAX, "number of layers is 4294967295"},
        {"llama.block_count", 2, "'blk.1.attn_norm.weight' is missing"},
        {"llama.embedding_length", 64, "'token_embd.weight' has 2 dimensions, 40 x 32"},
        {"llama.embedding_length", 0, "hidden size is 0"},
        {"llama.embedding_length", 33, "head size is 0"},
        {"llama.feed_forward_length", 32, "'blk.0.ffn_gate.weight' has 2 dimensions, 64 x 32"},
        {"llama.attention.head_count", 0, "number of heads is 0"},
        {"llama.attention.head_count", 4, "'blk.0.attn_k.weight' has 2 dimensions, 16 x 32"},
        {"llama.attention.head_count_kv", 0, "number of KV heads is 0"},
        {"llama.attention.head_count_kv", 2, "'blk.0.attn_k.weight' has 2 dimensions, 16 x 32"},
        {"llama.attention.head_count_kv", 3, "number of KV heads is 3"},
        {"llama.context_length", 0, "context length is 0"},
        {"llama.expert_count", 8, "'llama.expert_count' is 8"},
        {"llama.rope.dimension_count", 8, "RoPE over 8 of 16 dimensions"},
        {"llama.attention.key_length", 15, "head size 15 is odd"},
        {"llama.attention.value_length", 32, "key length 16 and value length 32 differ"},
        {"tokenizer.ggml.bos_token_id", 40, "'tokenizer.ggml.bos_token_id' is 40"},
        {"tokenizer.ggml.eos_token_id", 1000, "the vocabulary has 40 tokens"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gguf_build b;
        build_llama(&b, cases[i].key);
        build_u32(&b, cases[i].key, cases[i].v);
        refuse_built(&b, cases[i].words);
    }
    static const struct {
        const char *key;
        float v;
        const char *words;
    } floats[] = {
        {"llama.attention.layer_norm_rms_epsilon", 0, "epsilon is 0"},
        {"llama.attention.layer_norm_rms_epsilon", -1, "epsilon is -1"},
        {"llama.rope.freq_base", 0, "RoPE base is 0"},
        {"llama.rope.freq_base", (float)(1 / 0.0), "RoPE base is inf"},
        {"llama.rope.scaling.factor", 0.25f, "factor of the RoPE scaling is 0.25"},
        {"llama.rope.scaling.yarn_log_multiplier", 0.1f,
         "'llama.rope.scaling.yarn_log_multiplier' is 0.1"},
        {"llama.attention.scale", 0.5f, "'llama.attention.scale' is 0.5"},
    };
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) {
        struct gguf_build b;
        build_llama(&b, floats[i].key);
        build_f32(&b, floats[i].key, floats[i].v);
        refuse_built(&b, floats[i].words);
    }
}
END_TEST

START_TEST(gguf_model_refuses_other_mathematics)
{
    struct gguf_build b;
    build_llama(&b, "general.architecture");
    build_string(&b, "general.architecture", "mamba");
    refuse_built(&b, "architecture 'mamba' is not supported");
    build_llama(&b, "general.architecture");
    build_string(&b, "general.architecture", "a\nb");
    refuse_built(&b, "architecture 'a?b' is not supported");
    build_llama(&b, "");
    build_string(&b, "llama.rope.scaling.type", "longrope");
    refuse_built(&b, "RoPE scaling 'longrope' is not supported (linear and yarn are)");
    build_llama(&b, "");
    build_string(&b, "llama.rope.scaling.type", "none");
    model_close(open_good(finish_file(&b), 0));
    build_llama(&b, "");
    build_tensor(&b, "blk.0.attn_output.bias", TENSOR_F32, 1, 32, 1, 0);
    refuse_built(&b, "'blk.0.attn_output.bias' has no place");
    build_llama(&b, "");
    build_tensor(&b, "blk.1.attn_q.weight", TENSOR_F32, 2, 32, 32, 0);
    refuse_built(&b, "'blk.1.attn_q.weight' has no place in this architecture of 1 layers");
    build_llama(&b, "");
    build_tensor(&b, "blk.0.attn_k.bias", TENSOR_F32, 1, 16, 1, 0);
    refuse_built(&b, "'blk.0.attn_k.bias' has no place"); /* a bias for k alone */
    build_llama(&b, "");
    build_tensor(&b, "blk.0.attn_q.bias", TENSOR_F32, 1, 32, 1, 0);
    refuse_built(&b, "'blk.0.attn_k.bias' is missing");
}
END_TEST

START_TEST(gguf_model_refuses_bad_tensors)
{
    struct gguf_build b;
    build_llama(&b, "blk.0.ffn_up.weight");
    refuse_built(&b, "'blk.0.ffn_up.weight' is missing");
    build_llama(&b, "blk.0.ffn_up.weight");
    build_tensor(&b, "blk.0.ffn_up.weight", 10, 2, 256, 8, 0);
    refuse_built(&b, "'blk.0.ffn_up.weight': type Q2_K is not supported (F32, ");
    build_llama(&b, "blk.0.ffn_up.weight"); /* the transposed shape */
    build_tensor(&b, "blk.0.ffn_up.weight", TENSOR_F32, 2, 64, 32, 0);
    refuse_built(&b, "'blk.0.ffn_up.weight' has 2 dimensions, 32 x 64");
    build_llama(&b, "blk.0.attn_norm.weight");
    build_tensor(&b, "blk.0.attn_norm.weight", TENSOR_Q8_0, 1, 32, 1, 0);
    refuse_built(&b, "type Q8_0 is not supported for gains and biases");
    build_llama(&b, "blk.0.attn_norm.weight");
    build_tensor(&b, "blk.0.attn_norm.weight", TENSOR_F32, 2, 32, 1, 0);
    refuse_built(&b, "'blk.0.attn_norm.weight' has 2 dimensions");
    build_llama(&b, "token_embd.weight"); /* fewer rows than tokens */
    build_tensor(&b, "token_embd.weight", TENSOR_F32, 2, 32, 39, 0);
    refuse_built(&b, "'token_embd.weight' has 39 rows for 40 tokens");
    build_llama(&b, "token_embd.weight"); /* more: padding */
    build_tensor(&b, "token_embd.weight", TENSOR_F32, 2, 32, 41, 0);
    struct model *m = open_good(finish_file(&b), 0);
    ck_assert_uint_eq(m->params.vocab, 41);
    model_close(m);
    build_llama(&b, ""); /* an own head */
    build_tensor(&b, "output.weight", TENSOR_F16, 2, 32, 40, 0);
    m = open_good(finish_file(&b), 0);
    ck_assert(!m->params.tied_head && m->output.type == TENSOR_F16);
    model_close(m);
    build_llama(&b, "");
    build_tensor(&b, "output.weight", TENSOR_F16, 2, 32, 41, 0);
    refuse_built(&b, "'output.weight' has 2 dimensions, 41 x 32");
}
END_TEST

START_TEST(gguf_model_refuses_bad_vocabularies)
{
    struct gguf_build b;
    build_llama(&b, "");
    build_array(&b, "tokenizer.ggml.scores", GGUF_F32, 39);
    for (int i = 0; i < 39; i++)
        put_u32(&b.keys, 0);
    refuse_built(&b, "'tokenizer.ggml.scores' has 39 entries for 40 tokens");
    build_llama(&b, "");
    build_array(&b, "tokenizer.ggml.token_type", GGUF_I32, 41);
    for (int i = 0; i < 41; i++)
        put_u32(&b.keys, 1);
    refuse_built(&b, "'tokenizer.ggml.token_type' has 41 entries for 40 tokens");
    build_llama(&b, "tokenizer.ggml.tokens");
    build_array(&b, "tokenizer.ggml.tokens", GGUF_STRING, 0);
    refuse_built(&b, "no usable list of tokens");
    build_llama(&b, "");
    build_key(&b, "tokenizer.chat_template", GGUF_STRING);
    put_u64(&b.keys, 3);
    buf_append(&b.keys, "a\0b", 3);
    refuse_built(&b, "'tokenizer.chat_template' has a NUL byte");
    build_llama(&b, "");
    build_u32(&b, "tokenizer.chat_template", 1);
    refuse_built(&b, "'tokenizer.chat_template' at byte ");
}
END_TEST

/* Tokens are bytes to this room: invalid UTF-8 and NULs neither harm nor are lost. What a tokenizer
 * makes of them is its own business; it must answer. */
START_TEST(gguf_model_survives_odd_tokens)
{
    struct gguf_build b;
    build_init(&b);
    build_string(&b, "general.architecture", "llama");
    build_string(&b, "tokenizer.ggml.model", "gpt2");
    build_string(&b, "tokenizer.ggml.pre", "gpt-2");
    build_array(&b, "tokenizer.ggml.tokens", GGUF_STRING, 4);
    put_string(&b.keys, "a");
    put_string(&b.keys, "\xff\xfe");
    put_u64(&b.keys, 3);
    buf_append(&b.keys, "x\0y", 3);
    put_string(&b.keys, "\xe2\x82");
    build_array(&b, "tokenizer.ggml.token_type", GGUF_I32, 4);
    for (int i = 0; i < 4; i++)
        put_u32(&b.keys, 1);
    build_array(&b, "tokenizer.ggml.merges", GGUF_STRING, 0);
    struct model *m = open_good(finish_file(&b), MODEL_VOCAB_ONLY);
    struct tokenizer *t = NULL;
    char err[512] = "";
    int rc = model_tokenizer(m, &t, err, sizeof err);
    ck_assert_msg(rc == 0 || strlen(err) > 10, "refused without a reason");
    if (rc == 0)
        tokenizer_destroy(t);
    model_close(m);
}
END_TEST

START_TEST(directory_refuses_bad_configs)
{
    static const char *const cases[][2] = {
        {"{\"architectures\":[\"MixtralForCausalLM\"]}", "'MixtralForCausalLM' is not supported"},
        {"{\"architectures\":[]}", "'architectures' is no list of one name"},
        {"{\"architectures\":\"REMOVE\"}", "'architectures' is no list of one name"},
        {"{\"architectures\":[\"Qwen2ForCausalLM\"]}", "q_proj.bias' is missing"},
        {"{\"architectures\":[\"Qwen3ForCausalLM\"]}", "q_norm.weight' is missing"},
        {"{\"vocab_size\":302}", "'model.embed_tokens.weight' has 2 dimensions, 301 x 64"},
        {"{\"vocab_size\":300}", "'model.embed_tokens.weight' has 2 dimensions, 301 x 64"},
        {"{\"vocab_size\":-1}", "'vocab_size' is no size"},
        {"{\"vocab_size\":1e9}", "'vocab_size' is no size"},
        {"{\"vocab_size\":99999999999}", "'vocab_size' is no size"},
        {"{\"hidden_size\":\"REMOVE\"}", "'hidden_size' is missing"},
        {"{\"hidden_size\":null}", "'hidden_size' is missing"},
        {"{\"hidden_size\":128}", "hyperparameters say 301 x 128"},
        {"{\"num_hidden_layers\":3}", "'model.layers.2.input_layernorm.weight' is missing"},
        {"{\"num_hidden_layers\":1}", "'model.layers.1.input_layernorm.weight' has no place"},
        {"{\"num_key_value_heads\":4}", "k_proj.weight' has 2 dimensions, 64 x 64"},
        {"{\"num_key_value_heads\":3}", "4 heads cannot share 3 KV heads"},
        {"{\"head_dim\":64}", "q_proj.weight' has 2 dimensions, 128 x 64"},
        {"{\"tie_word_embeddings\":false}", "'lm_head.weight' is missing"},
        {"{\"tie_word_embeddings\":1}", "'tie_word_embeddings' is no boolean"},
        {"{\"rms_norm_eps\":\"REMOVE\"}", "'rms_norm_eps' is missing"},
        {"{\"rms_norm_eps\":\"x\"}", "'rms_norm_eps' is no number"},
        {"{\"hidden_act\":\"gelu\"}", "hidden_act 'gelu' is not supported"},
        {"{\"rope_parameters\":{\"rope_type\":\"longrope\",\"rope_theta\":5e5}}",
         "RoPE scaling 'longrope' is not supported"},
        {"{\"rope_parameters\":[]}", "'rope_parameters' is no object"},
        {"{\"partial_rotary_factor\":0.5}", "partial_rotary_factor 0.5 is not supported"},
        {"{\"layer_types\":[\"full_attention\",\"linear_attention\"]}",
         "layer type 'linear_attention' is not supported"},
        {"{\"quantization_config\":{\"bits\":4}}", "a quantised checkpoint is not supported"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char dir[16];
        snprintf(dir, sizeof dir, "c%zu", i);
        make_directory(dir, cases[i][0]);
        refuse(at(dir), cases[i][1]);
    }
    make_directory("json", "{}");
    write_file(at("json/config.json"), "{\"a\":1,", 7);
    refuse(at("json"), "config.json: no valid JSON at byte");
    write_file(at("json/config.json"), "[]", 2);
    refuse(at("json"), "config.json: no JSON object");
}
END_TEST

/* B67: nothing outside the directory is opened, whatever links and indexes say. */
START_TEST(directory_stays_inside)
{
    make_directory("outside", "{}");
    make_directory("a", "{}");
    ck_assert_ok(unlink(at("a/model.safetensors")));
    ck_assert_ok(symlink("../outside/model.safetensors", at("a/model.safetensors")));
    refuse(at("a"), "model.safetensors: a link that leads out of the model directory");
    ck_assert_ok(unlink(at("a/model.safetensors")));
    ck_assert_ok(symlink("/etc/passwd", at("a/model.safetensors")));
    refuse(at("a"), "model.safetensors: a link that leads out of the model directory");
    ck_assert_ok(unlink(at("a/model.safetensors")));
    ck_assert_ok(symlink("model.safetensors", at("a/model.safetensors"))); /* a cycle */
    refuse(at("a"), "model.safetensors: ");
    ck_assert_ok(unlink(at("a/model.safetensors")));
    ck_assert_ok(rename(at("outside/model.safetensors"), at("a/weights.bin")));
    ck_assert_ok(symlink("weights.bin", at("a/model.safetensors"))); /* stays inside */
    model_close(open_good(at("a"), 0));
    ck_assert_ok(unlink(at("a/config.json")));
    ck_assert_ok(symlink("../outside/config.json", at("a/config.json")));
    refuse(at("a"), "config.json: a link that leads out of the model directory");
}
END_TEST

/* The layout of a Hugging Face cache: snapshots/REVISION/ links into blobs/ beside snapshots/. */
START_TEST(directory_follows_cache_links)
{
    make_directory("plain", "{}");
    ck_assert_ok(mkdir(at("blobs"), 0700));
    ck_assert_ok(mkdir(at("snapshots"), 0700));
    ck_assert_ok(mkdir(at("snapshots/r1"), 0700));
    ck_assert_ok(rename(at("plain/config.json"), at("blobs/c0")));
    ck_assert_ok(rename(at("plain/model.safetensors"), at("blobs/5a")));
    ck_assert_ok(symlink("../../blobs/c0", at("snapshots/r1/config.json")));
    ck_assert_ok(symlink("../../blobs/5a", at("snapshots/r1/model.safetensors")));
    model_close(open_good(at("snapshots/r1"), 0));
    ck_assert_ok(rename(at("blobs/5a"), at("plain/5a")));
    ck_assert_ok(unlink(at("snapshots/r1/model.safetensors")));
    ck_assert_ok(symlink("../../plain/5a", at("snapshots/r1/model.safetensors")));
    refuse(at("snapshots/r1"), "a link that leads out of the model directory");
}
END_TEST

START_TEST(dir_open_takes_plain_names_only)
{
    static const char *const names[] = {"",    ".",      "..", "../config.json", "/etc/passwd",
                                        "a/b", ".hidden"};
    struct model_file f;
    char err[512], *text;
    size_t n;
    make_directory("d", "{}");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        ck_assert_int_eq(model_dir_open(at("d"), names[i], &f, err, sizeof err), STATUS_INVALID);
    ck_assert_int_eq(model_dir_open(at("d"), "none", &f, err, sizeof err), STATUS_NOTFOUND);
    ck_assert_int_eq(model_dir_read(at("d"), "config.json", 10, &text, &n, err, sizeof err),
                     STATUS_LIMIT);
    ck_assert_ok(model_dir_read(at("d"), "config.json", 10000, &text, &n, err, sizeof err));
    ck_assert_uint_eq(strlen(text), n);
    free(text);
}
END_TEST

/* safetensors that are sound as a container, but not the model that config.json describes. */
START_TEST(directory_refuses_wrong_tensors)
{
    static const char header[] =
        "{\"model.embed_tokens.weight\":{\"dtype\":\"I16\",\"shape\":[301,64],\"data_offsets\":[0,"
        "38528]}}";
    static const char odd[] =
        "{\"model.embed_tokens.weight\":{\"dtype\":\"BF16\",\"shape\":[301,64],\"data_offsets\":[0,"
        "38528]}} "; /* one blank too many: the data begins at an odd byte */
    size_t sizes[] = {sizeof header - 1, sizeof odd - 1};
    const char *headers[] = {header, odd};
    const char *words[] = {"type I16 is not supported", "is not aligned to 2 bytes"};
    make_directory("w", "{}");
    for (int i = 0; i < 2; i++) {
        size_t n = 8 + sizes[i] + 38528;
        char *p = calloc(n, 1);
        ck_assert_ptr_nonnull(p);
        memcpy(p, &sizes[i], 8);
        memcpy(p + 8, headers[i], sizes[i]);
        write_file(at("w/model.safetensors"), p, n);
        free(p);
        char err[512] = "";
        struct model *m;
        ck_assert_int_lt(model_open(at("w"), 0, &m, err, sizeof err), 0);
        ck_assert_msg(strstr(err, words[i]) != NULL, "%s", err);
    }
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("model_hostile");
    TCase *t = tcase_create("files");
    tcase_add_checked_fixture(t, scratch_setup, scratch_teardown);
    tcase_add_test(t, model_refuses_what_is_no_file);
    tcase_add_test(t, model_refuses_cut_files);
    suite_add_tcase(s, t);
    t = tcase_create("gguf");
    tcase_add_checked_fixture(t, scratch_setup, scratch_teardown);
    tcase_add_test(t, gguf_model_needs_every_key);
    tcase_add_test(t, gguf_model_refuses_bad_numbers);
    tcase_add_test(t, gguf_model_refuses_other_mathematics);
    tcase_add_test(t, gguf_model_refuses_bad_tensors);
    tcase_add_test(t, gguf_model_refuses_bad_vocabularies);
    tcase_add_test(t, gguf_model_survives_odd_tokens);
    suite_add_tcase(s, t);
    t = tcase_create("directory");
    tcase_add_checked_fixture(t, scratch_setup, scratch_teardown);
    tcase_add_test(t, directory_refuses_bad_configs);
    tcase_add_test(t, directory_stays_inside);
    tcase_add_test(t, directory_follows_cache_links);
    tcase_add_test(t, dir_open_takes_plain_names_only);
    tcase_add_test(t, directory_refuses_wrong_tensors);
    suite_add_tcase(s, t);
    return s;
}
