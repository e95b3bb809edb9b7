/* Tests of common/model: good models of every kind open with the right parameters and values. What
 * is refused is in test_model_hostile.c. */
#include <fcntl.h>
#include <math.h>

#include "common/model/model_internal.h"
#include "tests/model/model_files.h"

START_TEST(model_opens_tiny_models)
{
    static const struct {
        const char *path;
        struct model_params p;
        enum tensor_type q;
    } cases[] = {
        {"tiny/llama",
         {MODEL_LLAMA, 2, 64, 4, 2, 32, 128, 301, 2048, 1e-5f, 1e4f, true, false, false, true, {0}},
         TENSOR_BF16},
        {"tiny/qwen2",
         {MODEL_QWEN2, 2, 64, 4, 2, 16, 96, 320, 2048, 1e-6f, 1e6f, true, true, false, false, {0}},
         TENSOR_BF16},
        {"tiny/qwen3",
         {MODEL_QWEN3, 2, 64, 2, 1, 64, 128, 307, 2048, 1e-6f, 1e6f, true, false, true, true, {0}},
         TENSOR_BF16},
        {"tiny/llama-q8_0.gguf",
         {MODEL_LLAMA,
          2,
          64,
          4,
          2,
          32,
          128,
          301,
          2048,
          1e-5f,
          1e4f,
          false,
          false,
          false,
          true,
          {0}},
         TENSOR_Q8_0},
        {"tiny/llama-mixed.gguf",
         {MODEL_LLAMA,
          2,
          64,
          4,
          2,
          32,
          128,
          301,
          2048,
          1e-5f,
          1e4f,
          false,
          false,
          false,
          true,
          {0}},
         TENSOR_Q4_1},
        {"tiny/qwen2-q8_0.gguf",
         {MODEL_QWEN2, 2, 64, 4, 2, 16, 96, 320, 2048, 1e-6f, 1e6f, true, true, false, false, {0}},
         TENSOR_Q8_0},
        {"tiny/qwen3-q8_0.gguf",
         {MODEL_QWEN3, 2, 64, 2, 1, 64, 128, 307, 2048, 1e-6f, 1e6f, true, false, true, true, {0}},
         TENSOR_Q8_0},
    };
    const char *path = cases[_i].path;
    const struct model_params *want = &cases[_i].p;
    struct model *m = open_good(test_data(path), 0);
    const struct model_params *p = &m->params;
    ck_assert_int_eq(p->arch, want->arch);
    ck_assert_uint_eq(p->n_layers, want->n_layers);
    ck_assert_uint_eq(p->hidden, want->hidden);
    ck_assert_uint_eq(p->n_heads, want->n_heads);
    ck_assert_uint_eq(p->n_kv_heads, want->n_kv_heads);
    ck_assert_uint_eq(p->head_dim, want->head_dim);
    ck_assert_uint_eq(p->ffn, want->ffn);
    ck_assert_uint_eq(p->vocab, want->vocab);
    ck_assert_uint_eq(p->context, want->context);
    ck_assert(p->rms_eps == want->rms_eps && p->rope_theta == want->rope_theta);
    ck_assert_int_eq(p->rope_neox, want->rope_neox);
    ck_assert_int_eq(p->qkv_bias, want->qkv_bias);
    ck_assert_int_eq(p->qk_norm, want->qk_norm);
    ck_assert_int_eq(p->tied_head, want->tied_head);
    ck_assert_int_eq(m->layers[0].q.type, cases[_i].q);
    ck_assert_int_eq(m->output.data == m->embedding.data, want->tied_head);
    ck_assert(m->embedding.rows == want->vocab && m->embedding.cols == want->hidden);
    for (uint32_t i = 0; i < p->n_layers; i++) {
        const struct model_layer *l = &m->layers[i];
        ck_assert(l->q.rows == (uint64_t)p->n_heads * p->head_dim && l->q.cols == p->hidden);
        ck_assert(l->down.rows == p->hidden && l->down.cols == p->ffn);
        ck_assert(l->attn_norm.rows == 1 && l->attn_norm.cols == p->hidden);
        ck_assert_int_eq(l->q_bias.data != NULL, p->qkv_bias);
        ck_assert_int_eq(l->v_bias.data != NULL, p->qkv_bias);
        ck_assert_int_eq(l->k_norm.data != NULL, p->qk_norm);
    }
    ck_assert_ptr_nonnull(strstr(m->chat_template, "<|im_start|>"));
    ck_assert_uint_ne(m->fingerprint, 0);
    ck_assert_uint_gt(m->file_bytes, 50000);
    ck_assert_str_eq(m->name, strstr(path, ".gguf") ? p->arch == MODEL_LLAMA   ? "tiny llama"
                                                      : p->arch == MODEL_QWEN2 ? "tiny qwen2"
                                                                               : "tiny qwen3"
                                                    : path + 5);
    ck_assert_ok(model_check(m, NULL, 0));
    model_close(m);
}
END_TEST

/* Largest difference of two tensors with equal shapes; rows of b are permuted when heads > 0. */
static double difference(const struct tensor *a, const struct tensor *b, uint32_t heads)
{
    double worst = 0;
    uint64_t dim = heads ? a->rows / heads : 0;
    float *x = malloc(a->cols * sizeof *x), *y = malloc(a->cols * sizeof *y);
    ck_assert(x && y && a->rows == b->rows && a->cols == b->cols);
    for (uint64_t r = 0; r < a->rows; r++) {
        uint64_t i = heads ? r % dim : 0; /* half * dim/2 + j -> 2 j + half */
        uint64_t other = heads ? r - i + (i % (dim / 2)) * 2 + i / (dim / 2) : r;
        tensor_row_f32(a, r, x);
        tensor_row_f32(b, other, y);
        for (uint64_t c = 0; c < a->cols; c++)
            worst = fmax(worst, fabs((double)x[c] - (double)y[c]));
    }
    free(x);
    free(y);
    return worst;
}

/* The GGUF files hold the directory's weights: exactly where the type can, close elsewhere. */
START_TEST(model_values_agree)
{
    struct model *hf = open_good(test_data("tiny/llama"), 0);
    struct model *mixed = open_good(test_data("tiny/llama-mixed.gguf"), 0);
    struct model *q8 = open_good(test_data("tiny/llama-q8_0.gguf"), 0);
    struct model *q4 = open_good(test_data("tiny/llama-q4_0.gguf"), 0);
    struct model *q41 = open_good(test_data("tiny/llama-q4_1.gguf"), 0);
    for (uint32_t i = 0; i < 2; i++) {
        const struct model_layer *h = &hf->layers[i], *x = &mixed->layers[i];
        ck_assert(difference(&h->attn_norm, &x->attn_norm, 0) == 0); /* F32 */
        ck_assert(difference(&h->v, &x->v, 0) == 0);                 /* BF16 */
        ck_assert(difference(&h->o, &x->o, 0) == 0);                 /* F32 */
        ck_assert(difference(&h->k, &x->k, 2) < 1e-7);               /* F16, tiny values rounded */
        ck_assert(difference(&h->k, &x->k, 0) > 0.1);                /* really permuted */
        ck_assert(difference(&h->q, &x->q, 4) < 0.05);               /* Q4_1 */
        ck_assert(difference(&h->gate, &x->gate, 0) < 0.1);          /* Q4_0 */
        ck_assert(difference(&h->up, &x->up, 0) < 0.003);            /* Q8_0 */
        ck_assert(difference(&h->q, &q8->layers[i].q, 4) < 0.003);
        ck_assert(difference(&h->down, &q4->layers[i].down, 0) < 0.1);
        ck_assert(difference(&h->down, &q41->layers[i].down, 0) < 0.05);
    }
    ck_assert(difference(&hf->embedding, &mixed->embedding, 0) < 1e-6);
    model_close(hf);
    model_close(mixed);
    model_close(q8);
    model_close(q4);
    model_close(q41);
}
END_TEST

START_TEST(tensor_values_of_hand_made_blocks)
{
    float x[32];
    uint8_t b[34] = {0x00, 0x3c}; /* d = 1 */
    for (int i = 0; i < 16; i++)
        b[2 + i] = (uint8_t)(i | (15 - i) << 4);
    struct tensor t = {"t", TENSOR_Q4_0, 1, 32, b, 18};
    tensor_row_f32(&t, 0, x);
    for (int i = 0; i < 16; i++)
        ck_assert(x[i] == (float)(i - 8) && x[16 + i] == (float)(7 - i));
    memmove(b + 4, b + 2, 16);
    b[2] = 0x00, b[3] = 0xc0; /* m = -2 */
    t = (struct tensor){"t", TENSOR_Q4_1, 1, 32, b, 20};
    tensor_row_f32(&t, 0, x);
    for (int i = 0; i < 16; i++)
        ck_assert(x[i] == (float)(i - 2) && x[16 + i] == (float)(13 - i));
    b[0] = 0x00, b[1] = 0xb8; /* d = -0.5 */
    for (int i = 0; i < 32; i++)
        b[2 + i] = (uint8_t)(int8_t)(i * 8 - 128);
    t = (struct tensor){"t", TENSOR_Q8_0, 1, 32, b, 34};
    tensor_row_f32(&t, 0, x);
    for (int i = 0; i < 32; i++)
        ck_assert(x[i] == -0.5f * (float)(i * 8 - 128));
    /* 1, -2, largest subnormal, smallest subnormal, largest, infinity, -0 */
    static const uint16_t halves[] = {0x3c00, 0xc000, 0x03ff, 0x0001, 0x7bff, 0x7c00, 0x8000};
    static const float values[] = {1, -2, 0x1.ff8p-15f, 0x1p-24f, 65504, INFINITY, -0.0f};
    t = (struct tensor){"t", TENSOR_F16, 1, 7, halves, sizeof halves};
    tensor_row_f32(&t, 0, x);
    ck_assert_mem_eq(x, values, sizeof values);
    static const uint16_t brains[] = {0x3f80, 0xc000, 0x7f80};
    t = (struct tensor){"t", TENSOR_BF16, 1, 3, brains, sizeof brains};
    tensor_row_f32(&t, 0, x);
    ck_assert(x[0] == 1 && x[1] == -2 && x[2] == INFINITY);
}
END_TEST

START_TEST(model_opens_default_model)
{
    const char *path = test_model();
    if (!path) {
        printf("skipped: the default model is not in the cache\n");
        return;
    }
    struct model *m = open_good(path, 0);
    ck_assert_uint_eq(m->params.n_layers, 30);
    ck_assert_uint_eq(m->params.vocab, 49152);
    ck_assert(m->params.n_heads == 9 && m->params.n_kv_heads == 3 && m->params.head_dim == 64);
    ck_assert(m->params.tied_head && !m->params.rope_neox && m->params.rope_theta == 1e5f);
    ck_assert_int_eq(m->layers[29].down.type, TENSOR_Q4_1);
    model_close(m);
}
END_TEST

START_TEST(model_vocab_only_needs_no_tensors)
{
    struct gguf_build b;
    build_init(&b);
    build_string(&b, "general.architecture", "gpt2"); /* one that Baton cannot run */
    build_array(&b, "tokenizer.ggml.tokens", GGUF_STRING, 2);
    put_string(&b.keys, "a");
    put_string(&b.keys, "b");
    const char *path = finish_file(&b);
    struct model *m = open_good(path, MODEL_VOCAB_ONLY);
    ck_assert_uint_eq(m->params.vocab, 2);
    ck_assert_uint_eq(m->fingerprint, 0);
    ck_assert_str_eq(m->name, "built");
    ck_assert_ptr_null(m->chat_template);
    model_close(m);
    refuse(path, "architecture 'gpt2' is not supported");
    ck_assert_ok(mkdir(at("hf"), 0700));
    copy_data("tiny/qwen2/config.json", "hf/config.json");
    m = open_good(at("hf"), MODEL_VOCAB_ONLY);
    ck_assert_uint_eq(m->params.vocab, 320);
    model_close(m);
    refuse(at("hf"), "there is no model.safetensors");
    m = open_good(test_data("tiny/qwen3-q8_0.gguf"), MODEL_VOCAB_ONLY);
    ck_assert_uint_eq(m->params.n_layers, 2);
    ck_assert_ptr_nonnull(m->chat_template);
    model_close(m);
}
END_TEST

START_TEST(model_fingerprint_tells_models_apart)
{
    size_t n;
    char *p = read_file(test_data("tiny/llama-q8_0.gguf"), &n);
    struct model *m = open_good(test_data("tiny/llama-q8_0.gguf"), 0);
    uint64_t original = m->fingerprint;
    size_t where =
        (size_t)((const uint8_t *)m->layers[1].up.data - model_source(m)->file.data) + 100;
    model_close(m);
    write_file(at("copy.gguf"), p, n);
    m = open_good(at("copy.gguf"), 0);
    ck_assert_uint_eq(m->fingerprint, original);
    model_close(m);
    p[where] ^= 1;
    write_file(at("changed.gguf"), p, n);
    m = open_good(at("changed.gguf"), 0);
    ck_assert_uint_ne(m->fingerprint, original);
    model_close(m);
    free(p);
    /* The same tensors under another RoPE base are another model. */
    make_directory("same", "{}");
    make_directory("other", "{\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":500}}");
    m = open_good(at("same"), 0);
    original = m->fingerprint;
    model_close(m);
    m = open_good(at("other"), 0);
    ck_assert_uint_ne(m->fingerprint, original);
    ck_assert(m->params.rope_theta == 500);
    model_close(m);
}
END_TEST

/* A file that is cut short or rewritten while it is mapped is noticed before it is read. */
START_TEST(model_check_notices_changes)
{
    char err[512] = "";
    copy_data("tiny/llama-q4_0.gguf", "m.gguf");
    struct model *m = open_good(at("m.gguf"), 0);
    ck_assert_ok(model_check(m, err, sizeof err));
    ck_assert_ok(truncate(at("m.gguf"), 5000));
    ck_assert_int_eq(model_check(m, err, sizeof err), STATUS_CORRUPT);
    ck_assert_ptr_nonnull(strstr(err, "m.gguf: the file changed while it was read"));
    ck_assert_ptr_nonnull(strstr(err, "5000 now"));
    model_close(m);
    copy_data("tiny/llama-q4_0.gguf", "m.gguf");
    m = open_good(at("m.gguf"), 0);
    struct timespec times[2] = {{1, 0}, {1, 0}};
    ck_assert_ok(utimensat(AT_FDCWD, at("m.gguf"), times, 0));
    ck_assert_int_eq(model_check(m, err, sizeof err), STATUS_CORRUPT);
    model_close(m);
    /* Renaming another file over it is the safe way: the mapping keeps the old one. */
    copy_data("tiny/llama-q4_0.gguf", "m.gguf");
    m = open_good(at("m.gguf"), 0);
    copy_data("tiny/llama-q8_0.gguf", "new.gguf");
    ck_assert_ok(rename(at("new.gguf"), at("m.gguf")));
    ck_assert_ok(model_check(m, err, sizeof err));
    model_close(m);
}
END_TEST

/* Spellings of config.json that mean the same. */
START_TEST(model_accepts_config_variants)
{
    static const char *const variants[] = {
        "{\"architectures\":[\"MistralForCausalLM\"],\"sliding_window\":null}",
        "{\"rope_parameters\":null,\"rope_theta\":10000.0,\"rope_scaling\":null}",
        "{\"rope_parameters\":\"REMOVE\"}",
        "{\"rope_scaling\":{\"type\":\"default\"}}",
        "{\"tie_word_embeddings\":\"REMOVE\"}",
        "{\"sliding_window\":2048}",
        "{\"sliding_window\":16,\"use_sliding_window\":false}",
    };
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        char dir[16];
        snprintf(dir, sizeof dir, "v%zu", i);
        make_directory(dir, variants[i]);
        struct model *m = open_good(at(dir), 0);
        ck_assert(m->params.rope_theta == 1e4f && m->params.tied_head);
        ck_assert_uint_eq(m->params.context, 2048);
        model_close(m);
    }
    make_directory("window", "{\"sliding_window\":1024}");
    struct model *m = open_good(at("window"), 0);
    ck_assert_uint_eq(m->params.context, 1024); /* inside the window attention is full */
    model_close(m);
}
END_TEST

START_TEST(model_reads_chat_template_variants)
{
    static const char list[] = "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"x\"},"
                               "{\"name\":\"default\",\"template\":\"y\"}]}";
    static const char none[] = "{\"chat_template\":7}", bad[] = "{\"chat_template\":";
    make_directory("t", "{}");
    struct model *m = open_good(at("t"), 0);
    ck_assert_ptr_null(m->chat_template);
    model_close(m);
    write_file(at("t/tokenizer_config.json"), list, sizeof list - 1);
    m = open_good(at("t"), 0);
    ck_assert_str_eq(m->chat_template, "y");
    model_close(m);
    write_file(at("t/tokenizer_config.json"), none, sizeof none - 1);
    m = open_good(at("t"), 0);
    ck_assert_ptr_null(m->chat_template);
    model_close(m);
    write_file(at("t/chat_template.jinja"), "z", 1);
    m = open_good(at("t"), 0);
    ck_assert_str_eq(m->chat_template, "z");
    model_close(m);
    ck_assert_ok(unlink(at("t/chat_template.jinja")));
    write_file(at("t/tokenizer_config.json"), bad, sizeof bad - 1);
    refuse(at("t"), "tokenizer_config.json: no valid JSON at byte");
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("model");
    TCase *t = tcase_create("model");
    tcase_add_checked_fixture(t, scratch_setup, scratch_teardown);
    tcase_add_loop_test(t, model_opens_tiny_models, 0, 7);
    tcase_add_test(t, model_values_agree);
    tcase_add_test(t, tensor_values_of_hand_made_blocks);
    tcase_add_test(t, model_opens_default_model);
    tcase_add_test(t, model_vocab_only_needs_no_tensors);
    tcase_add_test(t, model_fingerprint_tells_models_apart);
    tcase_add_test(t, model_check_notices_changes);
    tcase_add_test(t, model_accepts_config_variants);
    tcase_add_test(t, model_reads_chat_template_variants);
    suite_add_tcase(s, t);
    return s;
}
