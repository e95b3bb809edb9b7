/* Sharded checkpoints: the tiny llama cut in pieces is the same model, and no index leads astray.
 */
#include <fcntl.h>

#include "tests/model/model_files.h"

#define N_TENSORS 20

/* The tensors of the tiny llama's file, spread over n shards: tensor i goes to shard i % n. Also
 * writes the index, with `change` (or NULL) applied to it. */
static void make_shards(const char *dir, size_t n, void (*change)(json_t *index))
{
    char path[128];
    make_directory(dir, "{}");
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    size_t size;
    char *file = read_file(at(path), &size);
    ck_assert_ok(unlink(at(path)));
    uint64_t head;
    memcpy(&head, file, 8);
    json_t *header = json_loadb(file + 8, head, 0, NULL), *tensor, *map = json_object();
    ck_assert_ptr_nonnull(header);
    for (size_t shard = 0; shard < n; shard++) {
        json_t *own = json_object();
        char *data = malloc(size), name[64];
        size_t used = 0, i = 0;
        const char *key;
        snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", shard + 1, n);
        json_object_foreach(header, key, tensor)
        {
            if (strcmp(key, "__metadata__") == 0 || i++ % n != shard)
                continue;
            json_t *range = json_object_get(tensor, "data_offsets"), *copy = json_deep_copy(tensor);
            size_t begin = (size_t)json_integer_value(json_array_get(range, 0));
            size_t bytes = (size_t)json_integer_value(json_array_get(range, 1)) - begin;
            memcpy(data + used, file + 8 + head + begin, bytes);
            json_object_set_new(copy, "data_offsets",
                                json_pack("[I, I]", (json_int_t)used, (json_int_t)(used + bytes)));
            json_object_set_new(own, key, copy);
            json_object_set_new(map, key, json_string(name));
            used += bytes;
        }
        char *compact = json_dumps(own, JSON_COMPACT), *text;
        uint64_t len = (strlen(compact) + 7) / 8 * 8; /* data are aligned */
        ck_assert_int_eq(asprintf(&text, "%-*s", (int)len, compact), (int)len);
        free(compact);
        snprintf(path, sizeof path, "%s/%s", dir, name);
        FILE *f = fopen(at(path), "wb");
        ck_assert_uint_eq(fwrite(&len, 1, 8, f) + fwrite(text, 1, len, f) +
                              fwrite(data, 1, used, f),
                          8 + len + used);
        ck_assert_ok(fclose(f));
        free(text);
        free(data);
        json_decref(own);
    }
    json_t *index = json_pack("{s: {}, s: o}", "metadata", "weight_map", map);
    if (change)
        change(index);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
    ck_assert_ok(json_dump_file(index, at(path), 0));
    json_decref(index);
    json_decref(header);
    free(file);
}

/* However it is cut, it has the fingerprint of the whole: names, types, shapes and contents. */
START_TEST(shards_are_the_model)
{
    struct model *whole = open_good(test_data("tiny/llama"), 0);
    static const size_t counts[] = {1, 2, 3, N_TENSORS};
    for (size_t i = 0; i < 4; i++) {
        char dir[16];
        snprintf(dir, sizeof dir, "s%zu", i);
        make_shards(dir, counts[i], NULL);
        struct model *m = open_good(at(dir), 0);
        ck_assert_uint_eq(m->fingerprint, whole->fingerprint);
        char err[256];
        ck_assert_ok(model_check(m, err, sizeof err));
        ck_assert_str_eq(m->layers[1].down.name, "model.layers.1.mlp.down_proj.weight");
        ck_assert_mem_eq(m->layers[1].down.data, whole->layers[1].down.data,
                         whole->layers[1].down.bytes);
        model_close(m);
    }
    model_close(whole);
}
END_TEST

/* Every shard is watched. */
START_TEST(shards_changed_are_noticed)
{
    char err[256];
    make_shards("s", 3, NULL);
    struct model *m = open_good(at("s"), 0);
    struct timespec times[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
    ck_assert_ok(utimensat(AT_FDCWD, at("s/model-00002-of-00003.safetensors"), times, 0));
    ck_assert_int_eq(model_check(m, err, sizeof err), STATUS_CORRUPT);
    ck_assert_ptr_nonnull(strstr(err, "model-00002-of-00003.safetensors"));
    model_close(m);
}
END_TEST

static void set_file(json_t *index, const char *tensor, const char *file)
{
    json_t *map = json_object_get(index, "weight_map");
    if (file)
        json_object_set_new(map, tensor, json_string(file));
    else
        json_object_del(map, tensor);
}
#define NORM "model.norm.weight"
static void up(json_t *index)
{
    set_file(index, NORM, "../model-00001-of-00002.safetensors");
}
static void absolute(json_t *index)
{
    set_file(index, NORM, "/etc/x.safetensors");
}
static void hidden(json_t *index)
{
    set_file(index, NORM, ".x.safetensors");
}
static void other_kind(json_t *index)
{
    set_file(index, NORM, "config.json");
}
static void missing(json_t *index)
{
    set_file(index, NORM, "model-00009-of-00002.safetensors");
}
static void another(json_t *index)
{
    const char *file =
        json_string_value(json_object_get(json_object_get(index, "weight_map"), NORM));
    set_file(index, NORM,
             strstr(file, "00001-of") ? "model-00002-of-00002.safetensors"
                                      : "model-00001-of-00002.safetensors");
}
static void unlisted(json_t *index)
{
    set_file(index, NORM, NULL);
}
static void invented(json_t *index)
{
    set_file(index, "model.more.weight", "model-00001-of-00002.safetensors");
}
static void number(json_t *index)
{
    json_object_set_new(json_object_get(index, "weight_map"), NORM, json_integer(1));
}
static void empty(json_t *index)
{
    json_object_clear(json_object_get(index, "weight_map"));
}
static void no_map(json_t *index)
{
    json_object_del(index, "weight_map");
}

START_TEST(shards_refuse)
{
    static const struct {
        void (*change)(json_t *index);
        const char *words;
    } cases[] = {
        {up, "is not a plain file name"},
        {absolute, "is not a plain file name"},
        {hidden, "is not a plain file name"},
        {other_kind, "tensor '" NORM "' is in no *.safetensors file"},
        {missing, "the index says model-00009-of-00002.safetensors"},
        {another, "tensor '" NORM "' is in model-0000"},
        {unlisted, "the index says nothing of it"},
        {invented, "1 of its 21 tensors are not in their files"},
        {number, "tensor '" NORM "' is in no *.safetensors file"},
        {empty, "names 0 files"},
        {no_map, "'weight_map' is no object"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char dir[16];
        snprintf(dir, sizeof dir, "s%zu", i);
        make_shards(dir, 2, cases[i].change);
        refuse(at(dir), cases[i].words);
    }
    make_directory("t", "{}");
    ck_assert_ok(unlink(at("t/model.safetensors")));
    refuse(at("t"), "there is no model.safetensors and no index of shards");
    write_file(at("t/model.safetensors.index.json"), "no JSON", 7);
    refuse(at("t"), "no valid JSON");
}
END_TEST

/* More tensors than any machine has memory for: a file with holes is enough to say so. */
START_TEST(files_beyond_memory)
{
    make_directory("h", "{}");
    /* A header of one tensor of 8 TiB. */
    const char *text = "{\"x\":{\"dtype\":\"F32\",\"shape\":[16777216,131072],\"data_offsets\":[0,"
                       "8796093022208]}}";
    uint64_t len = strlen(text);
    FILE *f = fopen(at("h/model.safetensors"), "wb");
    ck_assert_uint_eq(fwrite(&len, 1, 8, f) + fwrite(text, 1, len, f), 8 + len);
    ck_assert_ok(fclose(f));
    char err[512] = "";
    struct model *m;
    if (truncate(at("h/model.safetensors"), (off_t)(8 + len + ((uint64_t)1 << 43))) != 0) {
        printf("SKIP files_beyond_memory: this file system has no files of 8 TiB\n");
        return;
    }
    ck_assert_int_eq(model_open(at("h"), 0, &m, err, sizeof err), STATUS_NOMEM);
    ck_assert_msg(strstr(err, "8796.1 GB of tensors, more than the ") &&
                      strstr(err, "GB of memory"),
                  "%s", err);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("shards");
    TCase *t = tcase_create("shards");
    tcase_add_checked_fixture(t, scratch_setup, scratch_teardown);
    tcase_add_test(t, shards_are_the_model);
    tcase_add_test(t, shards_changed_are_noticed);
    tcase_add_test(t, shards_refuse);
    tcase_add_test(t, files_beyond_memory);
    suite_add_tcase(s, t);
    return s;
}
