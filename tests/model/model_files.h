/* model_files: model files and directories in a scratch directory of the test, and the two ways to
 * open them. Static functions, because a unit test is one object file. */
#ifndef BATON_TESTS_MODEL_MODEL_FILES_H
#define BATON_TESTS_MODEL_MODEL_FILES_H

#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/json.h"
#include "tests/model/gguf_build.h"

/* ---- scratch files ----------------------------------------------------------------------------
 */

static char scratch[256];

static inline void scratch_setup(void)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(scratch, sizeof scratch, "%s/baton-model-XXXXXX", tmp ? tmp : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(scratch));
}

static inline void scratch_teardown(void)
{
    char command[512];
    snprintf(command, sizeof command, "rm -rf '%s'", scratch);
    ck_assert_ok(system(command));
}

/* A path below the scratch directory; eight of them stay valid. */
static inline const char *at(const char *name)
{
    static char paths[8][512];
    static int next;
    char *p = paths[next++ % 8];
    snprintf(p, 512, "%s/%s", scratch, name);
    return p;
}

static inline void write_file(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(data, 1, n, f), n);
    ck_assert_ok(fclose(f));
}

static inline char *read_file(const char *path, size_t *n)
{
    struct stat st;
    FILE *f = fopen(path, "rb");
    ck_assert_ptr_nonnull(f);
    ck_assert_ok(fstat(fileno(f), &st));
    *n = (size_t)st.st_size;
    char *p = malloc(*n + 1);
    ck_assert_ptr_nonnull(p);
    ck_assert_uint_eq(fread(p, 1, *n, f), *n);
    ck_assert_ok(fclose(f));
    return p;
}

/* Copies tests/data/FROM to the scratch file TO. */
static inline void copy_data(const char *from, const char *to)
{
    size_t n;
    char *p = read_file(test_data(from), &n);
    write_file(at(to), p, n);
    free(p);
}

/* The directory DIR: the tiny llama's config with `changes` ({"key": value or null to remove it})
 * merged in, and its tensors. */
static inline void make_directory(const char *dir, const char *changes)
{
    char file[128];
    const char *key;
    json_t *value;
    ck_assert_ok(mkdir(at(dir), 0700));
    json_t *config = json_load_file(test_data("tiny/llama/config.json"), 0, NULL);
    json_t *patch = json_loads(changes, 0, NULL);
    ck_assert(config && patch);
    json_object_foreach(patch, key, value)
    {
        if (json_is_string(value) && strcmp(json_string_value(value), "REMOVE") == 0)
            json_object_del(config, key);
        else
            ck_assert_ok(json_object_set(config, key, value));
    }
    snprintf(file, sizeof file, "%s/config.json", dir);
    ck_assert_ok(json_dump_file(config, at(file), 0));
    json_decref(config);
    json_decref(patch);
    snprintf(file, sizeof file, "%s/model.safetensors", dir);
    copy_data("tiny/llama/model.safetensors", file);
}

/* ---- opening ----------------------------------------------------------------------------------
 */

static inline struct model *open_good(const char *path, unsigned flags)
{
    char err[512] = "";
    struct model *m = NULL;
    int rc = model_open(path, flags, &m, err, sizeof err);
    ck_assert_msg(rc == 0, "%s", err);
    ck_assert_str_eq(err, "");
    return m;
}

static inline void refuse_flags(const char *path, unsigned flags, const char *words)
{
    char err[512] = "";
    struct model *m = NULL;
    uint64_t start = clock_ms();
    ck_assert_msg(model_open(path, flags, &m, err, sizeof err) < 0, "accepted, but wanted '%s'",
                  words);
    ck_assert_ptr_null(m);
    ck_assert_msg(strstr(err, words) && strncmp(err, path, strlen(path)) == 0, "'%s' has no '%s'",
                  err, words);
    ck_assert_ptr_null(strchr(err, '\n'));
    ck_assert_uint_lt(clock_ms() - start, 1000);
}

static inline void refuse(const char *path, const char *words)
{
    refuse_flags(path, 0, words);
}

/* A complete one-layer Llama in GGUF: hidden 32, 2 heads, 1 KV head, ffn 64, 40 tokens. Keys and
 * tensors named in `without` (separated by blanks) are left out. */
static inline bool left_out(const char *without, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = without; (p = strstr(p, name)); p += n)
        if ((p == without || p[-1] == ' ') && (p[n] == ' ' || !p[n]))
            return true;
    return false;
}

static inline void build_llama(struct gguf_build *b, const char *without)
{
    static const struct {
        const char *key;
        uint32_t v;
    } numbers[] = {{"llama.block_count", 1},          {"llama.context_length", 256},
                   {"llama.embedding_length", 32},    {"llama.feed_forward_length", 64},
                   {"llama.attention.head_count", 2}, {"llama.attention.head_count_kv", 1},
                   {"tokenizer.ggml.bos_token_id", 1}};
    static const struct {
        const char *name;
        uint32_t type, n_dims, d0, d1;
    } tensors[] = {{"token_embd.weight", TENSOR_Q8_0, 2, 32, 40},
                   {"output_norm.weight", TENSOR_F32, 1, 32, 1},
                   {"blk.0.attn_norm.weight", TENSOR_F32, 1, 32, 1},
                   {"blk.0.attn_q.weight", TENSOR_Q4_0, 2, 32, 32},
                   {"blk.0.attn_k.weight", TENSOR_Q4_1, 2, 32, 16},
                   {"blk.0.attn_v.weight", TENSOR_F16, 2, 32, 16},
                   {"blk.0.attn_output.weight", TENSOR_BF16, 2, 32, 32},
                   {"blk.0.ffn_norm.weight", TENSOR_F32, 1, 32, 1},
                   {"blk.0.ffn_gate.weight", TENSOR_F32, 2, 32, 64},
                   {"blk.0.ffn_up.weight", TENSOR_Q8_0, 2, 32, 64},
                   {"blk.0.ffn_down.weight", TENSOR_Q8_0, 2, 64, 32}};
    build_init(b);
    if (!left_out(without, "general.architecture"))
        build_string(b, "general.architecture", "llama");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!left_out(without, numbers[i].key))
            build_u32(b, numbers[i].key, numbers[i].v);
    if (!left_out(without, "llama.attention.layer_norm_rms_epsilon"))
        build_f32(b, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    if (!left_out(without, "tokenizer.ggml.tokens")) {
        build_array(b, "tokenizer.ggml.tokens", GGUF_STRING, 40);
        for (int i = 0; i < 40; i++) {
            char token[16];
            snprintf(token, sizeof token, "t%d", i);
            put_string(&b->keys, token);
        }
    }
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        if (!left_out(without, tensors[i].name))
            build_tensor(b, tensors[i].name, tensors[i].type, tensors[i].n_dims, tensors[i].d0,
                         tensors[i].d1, 1);
}

static inline const char *finish_file(struct gguf_build *b)
{
    size_t size;
    uint8_t *p = build_finish(b, &size);
    const char *path = at("built.gguf");
    write_file(path, p, size);
    free(p);
    return path;
}

static inline void refuse_built(struct gguf_build *b, const char *words)
{
    refuse(finish_file(b), words);
}

#endif
