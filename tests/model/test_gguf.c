/* Tests of common/model/gguf: what good files give, and that no bad one gets past the parser. All
 * files are made here, in memory of their exact size. */
#include "tests/model/gguf_build.h"

#include <unistd.h>

/* Parses a built file that must be refused with a line that has `words` in it. */
static void refuse(struct gguf_build *b, const char *words)
{
    size_t size;
    char err[512] = "";
    struct gguf *g = NULL;
    uint8_t *p = build_finish(b, &size);
    struct model_file f = file_of(p, size);
    int rc = gguf_open(&f, &g, err, sizeof err);
    ck_assert_msg(rc < 0, "accepted, but wanted '%s'", words);
    ck_assert_ptr_null(g);
    ck_assert_msg(strstr(err, words) && !strchr(err, '\n'), "'%s' has no '%s'", err, words);
    ck_assert_ptr_nonnull(strstr(err, "test.gguf: "));
    free(p);
}

/* One F32 tensor of those dimensions, in a file that holds 64 bytes of data. */
static void refuse_dims(uint32_t n_dims, const uint64_t *dims, uint32_t type, uint64_t offset,
                        const char *words)
{
    struct gguf_build b;
    build_init(&b);
    build_entry(&b, "big.weight", type, n_dims, dims, offset);
    for (int i = 0; i < 64; i++)
        buf_putc(&b.data, 0);
    refuse(&b, words);
}

START_TEST(gguf_reads_values)
{
    struct gguf_build b;
    size_t size, n;
    char err[512];
    struct gguf *g;
    build_init(&b);
    b.version = (uint32_t)_i;
    build_u32(&b, "a.u32", 7);
    build_f32(&b, "a.f32", 0.5f);
    build_string(&b, "a.string", "text");
    build_key(&b, "a.bool", GGUF_BOOL);
    buf_putc(&b.keys, 1);
    build_key(&b, "a.u64", GGUF_U64);
    put_u64(&b.keys, (uint64_t)1 << 40);
    build_key(&b, "a.i8", GGUF_I8);
    buf_putc(&b.keys, (char)-3);
    build_key(&b, "a.u16", GGUF_U16);
    buf_append(&b.keys, "\xff\xff", 2);
    build_array(&b, "a.strings", GGUF_STRING, 3);
    put_string(&b.keys, "x");
    put_string(&b.keys, "");
    put_u64(&b.keys, 3);
    buf_append(&b.keys, "y\0z", 3);
    build_array(&b, "a.i16s", GGUF_I16, 2);
    buf_append(&b.keys, "\xfe\xff\x02\x00", 4);
    build_array(&b, "a.f32s", GGUF_F32, 2);
    buf_append(&b.keys, "\0\0\0\0\0\0\x80\x3f", 8);
    build_array(&b, "a.empty", GGUF_F32, 0);
    build_tensor(&b, "t.two", TENSOR_F32, 2, 4, 3, 0x11);
    build_tensor(&b, "t.one", TENSOR_Q8_0, 1, 64, 1, 0x22);
    uint8_t *p = build_finish(&b, &size);
    struct model_file f = file_of(p, size);
    ck_assert_ok(gguf_open(&f, &g, err, sizeof err));
    ck_assert_uint_eq(gguf_version(g), (unsigned)_i);

    uint32_t u = 0;
    float x = 0, *floats;
    bool flag = false;
    int32_t *ints;
    struct gguf_string s = {0}, *strings;
    ck_assert_ok(gguf_u32(g, "a.u32", &u));
    ck_assert_uint_eq(u, 7);
    ck_assert_ok(gguf_u32(g, "a.u16", &u));
    ck_assert_uint_eq(u, 65535);
    ck_assert_int_eq(gguf_u32(g, "a.i8", &u), STATUS_RANGE);
    ck_assert_int_eq(gguf_u32(g, "a.u64", &u), STATUS_RANGE);
    ck_assert_int_eq(gguf_u32(g, "a.f32", &u), STATUS_FORMAT);
    ck_assert_int_eq(gguf_u32(g, "a.none", &u), STATUS_NOTFOUND);
    ck_assert_ok(gguf_f32(g, "a.f32", &x));
    ck_assert(x == 0.5f);
    ck_assert_ok(gguf_bool(g, "a.bool", &flag));
    ck_assert(flag);
    ck_assert_ok(gguf_string(g, "a.string", &s));
    ck_assert(s.n == 4 && memcmp(s.p, "text", 4) == 0);
    ck_assert_int_eq(gguf_string(g, "a.u32", &s), STATUS_FORMAT);
    ck_assert_ok(gguf_strings(g, "a.strings", &strings, &n));
    ck_assert(n == 3 && strings[0].n == 1 && strings[1].n == 0 && strings[2].n == 3);
    ck_assert(memcmp(strings[2].p, "y\0z", 3) == 0);
    free(strings);
    ck_assert_ok(gguf_i32s(g, "a.i16s", &ints, &n));
    ck_assert(n == 2 && ints[0] == -2 && ints[1] == 2);
    free(ints);
    ck_assert_ok(gguf_f32s(g, "a.f32s", &floats, &n));
    ck_assert(n == 2 && floats[0] == 0 && floats[1] == 1);
    free(floats);
    ck_assert_ok(gguf_f32s(g, "a.empty", &floats, &n));
    ck_assert_uint_eq(n, 0);
    free(floats);
    ck_assert_uint_eq(gguf_count(g, "a.strings"), 3);
    ck_assert_uint_eq(gguf_count(g, "a.u32"), 0);
    ck_assert(gguf_has(g, "a.bool") && !gguf_has(g, "a.boo") && !gguf_has(g, "a.boolx"));

    ck_assert_uint_eq(gguf_n_tensors(g), 2);
    const struct gguf_tensor *t = gguf_tensor(g, "t.two");
    ck_assert_ptr_nonnull(t);
    ck_assert(t->n_dims == 2 && t->dims[0] == 4 && t->dims[1] == 3 && t->dims[2] == 1);
    ck_assert(t->bytes == 48 && t->data[0] == 0x11 && t->data[47] == 0x11);
    t = gguf_tensor(g, "t.one");
    ck_assert_ptr_nonnull(t);
    ck_assert(t->bytes == 68 && t->data + 68 == p + size && t->data[67] == 0x22);
    ck_assert_ptr_null(gguf_tensor(g, "t.three"));
    gguf_close(g);
    free(p);
}
END_TEST

START_TEST(gguf_explains_by_key_and_byte)
{
    struct gguf_build b;
    size_t size;
    char err[512];
    struct gguf *g;
    build_init(&b);
    build_string(&b, "k", "text");
    uint8_t *p = build_finish(&b, &size);
    struct model_file f = file_of(p, size);
    ck_assert_ok(gguf_open(&f, &g, err, sizeof err));
    ck_assert_int_eq(gguf_explain(g, "k", STATUS_FORMAT, "an integer", err, sizeof err),
                     STATUS_FORMAT);
    ck_assert_str_eq(err, "test.gguf: key 'k' at byte 37 is a string, not an integer");
    ck_assert_int_eq(gguf_explain(g, "x", STATUS_NOTFOUND, "", err, sizeof err), STATUS_NOTFOUND);
    ck_assert_str_eq(err, "test.gguf: key 'x' is missing");
    gguf_close(g);
    free(p);
}
END_TEST

/* B62: products, padded sizes, sums and offsets that overflow. */
START_TEST(gguf_refuses_overflowing_tensors)
{
    const uint64_t max = UINT64_MAX, one = 1;
    refuse_dims(2, (uint64_t[]){1152, (one << 42) + 1}, TENSOR_F32, 0, "'big.weight'");
    refuse_dims(2, (uint64_t[]){one << 62, 4}, TENSOR_F32, 0, "'big.weight': its size overflows");
    refuse_dims(2, (uint64_t[]){max, 2}, TENSOR_F32, 0, "'big.weight': its size overflows");
    refuse_dims(1, (uint64_t[]){max / 4}, TENSOR_F32, 0, "'big.weight'");
    refuse_dims(1, (uint64_t[]){max - 31}, TENSOR_Q8_0, 0, "'big.weight': its size overflows");
    refuse_dims(4, (uint64_t[]){32, max, max, 2}, TENSOR_F32, 0, "dimensions overflows");
    refuse_dims(1, (uint64_t[]){0}, TENSOR_F32, 0, "dimension 0 is 0");
    refuse_dims(1, (uint64_t[]){8}, TENSOR_F32, max - 31, "end beyond the file's");
    refuse_dims(1, (uint64_t[]){8}, TENSOR_F32, 64, "end beyond the file's");
    refuse_dims(1, (uint64_t[]){16}, TENSOR_F32, 32, "end beyond the file's");
    struct gguf_build b;
    build_init(&b); /* two tensors of 2^63 bytes */
    build_entry(&b, "half.0", TENSOR_F32, 1, (uint64_t[]){one << 61}, 0);
    build_entry(&b, "half.1", TENSOR_F32, 1, (uint64_t[]){one << 61}, one << 63);
    refuse(&b, "'half.0'");
    build_init(&b);
    b.n_tensors = one << 60;
    refuse(&b, "tensors at byte 8");
    ck_assert_little_memory();
}
END_TEST

/* B64: counts and lengths that the file cannot hold. */
START_TEST(gguf_refuses_huge_counts)
{
    struct gguf_build b;
    build_init(&b);
    b.n_keys = (uint64_t)1 << 60;
    refuse(&b, "keys at byte 16");
    build_init(&b);
    b.n_keys = 1;
    put_u64(&b.keys, (uint64_t)1 << 63);
    for (int i = 0; i < 32; i++)
        buf_putc(&b.keys, 'x');
    refuse(&b, "at byte 24 claims 9223372036854775808 bytes");
    build_init(&b);
    build_key(&b, "s", GGUF_STRING);
    put_u64(&b.keys, (uint64_t)1 << 63);
    refuse(&b, "at byte 37 claims 9223372036854775808 bytes");
    for (uint32_t type = 0; type < GGUF_TYPE_N; type++) {
        if (type == GGUF_ARRAY)
            continue;
        build_init(&b);
        build_array(&b, "long", type, (uint64_t)1 << 61);
        refuse(&b, "key 'long' claims 2305843009213693952 ");
    }
    ck_assert_little_memory();
}
END_TEST

START_TEST(gguf_refuses_nested_arrays)
{
    struct gguf_build b;
    build_init(&b);
    build_key(&b, "deep", GGUF_ARRAY);
    for (int i = 0; i < 100000; i++) {
        put_u32(&b.keys, GGUF_ARRAY);
        put_u64(&b.keys, 1);
    }
    put_u32(&b.keys, GGUF_U8);
    put_u64(&b.keys, 0);
    refuse(&b, "arrays of arrays are not supported (byte 40)");
}
END_TEST

START_TEST(gguf_refuses_bad_keys)
{
    struct gguf_build b;
    build_init(&b);
    build_key(&b, "odd", 99);
    put_u64(&b.keys, 0);
    refuse(&b, "unknown value type 99 at byte 35");
    build_init(&b);
    build_array(&b, "odd", 99, 0);
    refuse(&b, "unknown element type 99");
    build_init(&b);
    build_u32(&b, "twice", 1);
    build_u32(&b, "other", 1);
    build_u32(&b, "twice", 2);
    refuse(&b, "key 'twice' is there twice");
    build_init(&b);
    build_key(&b, "flag", GGUF_BOOL);
    buf_putc(&b.keys, 2);
    refuse(&b, "no boolean");
    build_init(&b);
    build_u32(&b, "line\nbreak", 1);
    refuse(&b, "not printable ASCII");
    build_init(&b);
    build_u32(&b, "", 1);
    refuse(&b, "0 bytes, not 1 to 255");
}
END_TEST

START_TEST(gguf_refuses_bad_versions)
{
    static const struct {
        const char *magic;
        uint32_t version;
        const char *words;
    } cases[] = {{"GGUF", 0, "version 0 at byte 4"},
                 {"GGUF", 1, "version 1 at byte 4"},
                 {"GGUF", 99, "version 99 at byte 4"},
                 {"GGUF", 0x03000000, "big-endian"},
                 {"FUGG", 0x03000000, "big-endian"},
                 {"GGML", 3, "not a GGUF file"},
                 {"\x7f"
                  "ELF",
                  3, "not a GGUF file"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gguf_build b;
        build_init(&b);
        memcpy(b.magic, cases[i].magic, 4);
        b.version = cases[i].version;
        refuse(&b, cases[i].words);
    }
}
END_TEST

/* B65: dimension counts, types, alignment. */
START_TEST(gguf_refuses_bad_tensor_entries)
{
    static const uint64_t dims[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    static const uint32_t counts[] = {0, 5, 9, UINT32_MAX};
    for (size_t i = 0; i < 4; i++)
        refuse_dims(counts[i], dims, TENSOR_F32, 0, "tensor 'big.weight': ");
    refuse_dims(1, (uint64_t[]){32}, 200, 0, "unknown type 200");
    refuse_dims(1, (uint64_t[]){32}, 4, 0, "unknown type 4"); /* a number ggml gave up */
    refuse_dims(1, (uint64_t[]){33}, TENSOR_Q4_0, 0, "no whole Q4_0 blocks of 32");
    refuse_dims(2, (uint64_t[]){16, 2}, TENSOR_Q8_0, 0, "no whole Q8_0 blocks of 32");
    refuse_dims(1, (uint64_t[]){4}, TENSOR_F32, 8, "offset 8 is not aligned to 32");
    struct gguf_build b;
    build_init(&b);
    build_tensor(&b, "same", TENSOR_F32, 1, 8, 1, 0);
    build_tensor(&b, "same", TENSOR_F32, 1, 8, 1, 0);
    refuse(&b, "two tensors have the name 'same'");
    build_init(&b);
    build_tensor(&b, "first", TENSOR_F32, 1, 16, 1, 0);
    build_entry(&b, "second", TENSOR_F32, 1, (uint64_t[]){8}, 32);
    refuse(&b, "tensors 'first' and 'second' overlap");
    build_init(&b);
    build_entry(&b, "new\nline", TENSOR_F32, 1, (uint64_t[]){8}, 0);
    refuse(&b, "not printable ASCII");
}
END_TEST

START_TEST(gguf_refuses_bad_alignment)
{
    static const uint32_t values[] = {0, 1, 3, 4, 48, (uint32_t)1 << 31};
    struct gguf_build b;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        build_init(&b);
        build_u32(&b, "general.alignment", values[i]);
        build_tensor(&b, "t", TENSOR_F32, 1, 8, 1, 0);
        refuse(&b, "general.alignment is");
    }
    build_init(&b);
    build_key(&b, "general.alignment", GGUF_I32);
    put_u32(&b.keys, 32);
    refuse(&b, "is a 32-bit integer, not a 32-bit unsigned integer");
    build_init(&b);
    build_string(&b, "general.alignment", "32");
    refuse(&b, "is a string, not a 32-bit unsigned integer");
}
END_TEST

START_TEST(gguf_honours_alignment)
{
    struct gguf_build b;
    size_t size;
    char err[512];
    struct gguf *g;
    build_init(&b);
    build_u32(&b, "general.alignment", 8);
    build_entry(&b, "t", TENSOR_F32, 1, (uint64_t[]){2}, 8);
    for (int i = 0; i < 16; i++)
        buf_putc(&b.data, (char)i);
    size_t header = 24 + b.keys.len + b.tensors.len;
    uint8_t *p = build_finish(&b, &size);
    /* build_finish pads to 32; move the data to where alignment 8 has it. */
    size_t base = (header + 7) / 8 * 8;
    memmove(p + base, p + size - 16, 16);
    struct model_file f = file_of(p, base + 16);
    ck_assert_msg(gguf_open(&f, &g, err, sizeof err) == 0, "%s", err);
    ck_assert_uint_eq(gguf_tensor(g, "t")->data[0], 8);
    gguf_close(g);
    free(p);
}
END_TEST

/* B64: a good file cut at every byte of its header, and inside the data. */
START_TEST(gguf_refuses_every_cut)
{
    struct gguf_build b;
    size_t size;
    char err[512];
    struct gguf *g;
    build_init(&b);
    build_string(&b, "general.architecture", "llama");
    build_u32(&b, "llama.block_count", 2);
    build_array(&b, "tokens", GGUF_STRING, 3);
    put_string(&b.keys, "a");
    put_string(&b.keys, "b");
    put_string(&b.keys, "cde");
    build_array(&b, "scores", GGUF_F32, 3);
    for (int i = 0; i < 3; i++)
        put_u32(&b.keys, 0);
    build_tensor(&b, "one", TENSOR_F32, 2, 8, 4, 1);
    build_tensor(&b, "two", TENSOR_Q4_1, 1, 64, 1, 2);
    uint8_t *whole = build_finish(&b, &size);
    struct model_file f = file_of(whole, size);
    ck_assert_ok(gguf_open(&f, &g, err, sizeof err));
    gguf_close(g);
    for (size_t n = 0; n < size; n++) {
        uint8_t *p = malloc(n ? n : 1);
        ck_assert_ptr_nonnull(p);
        memcpy(p, whole, n);
        f = file_of(p, n);
        err[0] = 0;
        int rc = gguf_open(&f, &g, err, sizeof err);
        ck_assert_msg(rc < 0, "cut at %zu was accepted", n);
        ck_assert_msg(strstr(err, "test.gguf: ") == err && strlen(err) > 20, "cut at %zu: '%s'", n,
                      err);
        free(p);
    }
    free(whole);
}
END_TEST

/* The same for a real file; the last bytes belong to a tensor. */
START_TEST(gguf_refuses_every_cut_of_a_model)
{
    struct model_file whole;
    char err[512];
    struct gguf *g;
    ck_assert_ok(model_file_open(test_data("tiny/llama-q4_0.gguf"), &whole, err, sizeof err));
    ck_assert_ok(gguf_open(&whole, &g, err, sizeof err));
    size_t header = (size_t)(gguf_tensor_at(g, 0)->data - whole.data);
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        size_t at = (size_t)(gguf_tensor_at(g, i)->data - whole.data);
        header = at < header ? at : header;
    }
    gguf_close(g);
    for (size_t n = 0; n < whole.size; n += n < header ? 1 : 997) {
        uint8_t *p = malloc(n ? n : 1);
        ck_assert_ptr_nonnull(p);
        memcpy(p, whole.data, n);
        struct model_file f = file_of(p, n);
        ck_assert_msg(gguf_open(&f, &g, err, sizeof err) < 0, "cut at %zu was accepted", n);
        free(p);
    }
    model_file_close(&whole);
}
END_TEST

/* Any single byte of a header may be anything: the parser answers, and the tables it accepts stay
 * inside the file. */
START_TEST(gguf_survives_flipped_bytes)
{
    struct gguf_build b;
    size_t size;
    char err[512];
    build_init(&b);
    build_u32(&b, "general.alignment", 32);
    build_array(&b, "tokens", GGUF_STRING, 2);
    put_string(&b.keys, "a");
    put_string(&b.keys, "bc");
    build_tensor(&b, "one", TENSOR_F32, 2, 8, 4, 1);
    uint8_t *p = build_finish(&b, &size);
    static const uint8_t values[] = {0, 1, 2, 4, 8, 9, 0x7f, 0x80, 0xff};
    for (size_t at = 0; at < size - 128; at++)
        for (size_t v = 0; v < sizeof values; v++) {
            uint8_t old = p[at];
            p[at] = values[v];
            struct model_file f = file_of(p, size);
            struct gguf *g = NULL;
            if (gguf_open(&f, &g, err, sizeof err) == 0) {
                for (size_t i = 0; i < gguf_n_tensors(g); i++) {
                    const struct gguf_tensor *t = gguf_tensor_at(g, i);
                    ck_assert(t->data >= p && t->data + t->bytes <= p + size);
                }
                struct gguf_string *s;
                size_t n;
                if (gguf_strings(g, "tokens", &s, &n) == 0) {
                    for (size_t i = 0; i < n; i++)
                        ck_assert((const uint8_t *)s[i].p + s[i].n <= p + size);
                    free(s);
                }
                gguf_close(g);
            }
            p[at] = old;
        }
    free(p);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("gguf");
    TCase *t = tcase_create("good");
    tcase_add_loop_test(t, gguf_reads_values, 2, 4);
    tcase_add_test(t, gguf_explains_by_key_and_byte);
    tcase_add_test(t, gguf_honours_alignment);
    suite_add_tcase(s, t);
    t = tcase_create("hostile");
    tcase_add_test(t, gguf_refuses_overflowing_tensors);
    tcase_add_test(t, gguf_refuses_huge_counts);
    tcase_add_test(t, gguf_refuses_nested_arrays);
    tcase_add_test(t, gguf_refuses_bad_keys);
    tcase_add_test(t, gguf_refuses_bad_versions);
    tcase_add_test(t, gguf_refuses_bad_tensor_entries);
    tcase_add_test(t, gguf_refuses_bad_alignment);
    tcase_add_test(t, gguf_refuses_every_cut);
    tcase_add_test(t, gguf_refuses_every_cut_of_a_model);
    tcase_add_test(t, gguf_survives_flipped_bytes);
    suite_add_tcase(s, t);
    return s;
}
