/* Tests of common/model/safetensors: every byte of data belongs to exactly one tensor, or the file
 * is refused. Files are made here, in memory of their exact size. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/model.h"
#include "common/model/safetensors.h"
#include "tests/harness.h"

/* Header length, header, and n_data bytes of data, malloc'ed to size. */
static uint8_t *make(const char *header, uint64_t claimed, size_t n_data, size_t *size)
{
    size_t n = strlen(header);
    *size = 8 + n + n_data;
    uint8_t *p = malloc(*size);
    ck_assert_ptr_nonnull(p);
    memcpy(p, &claimed, 8);
    memcpy(p + 8, header, n);
    for (size_t i = 0; i < n_data; i++)
        p[8 + n + i] = (uint8_t)i;
    return p;
}

static int open_bytes(const uint8_t *p, size_t size, struct safetensors *s, char err[512])
{
    static char name[] = "model.safetensors";
    /* What safetensors_open is given stays mapped in real life; here the caller keeps p. */
    const struct model_file f = {.path = name, .fd = -1, .data = p, .size = size};
    err[0] = 0;
    return safetensors_open(&f, s, err, 512);
}

static void refuse(const char *header, size_t n_data, const char *words)
{
    size_t size;
    char err[512];
    struct safetensors s;
    uint8_t *p = make(header, strlen(header), n_data, &size);
    ck_assert_msg(open_bytes(p, size, &s, err) < 0, "accepted: %s", header);
    ck_assert_msg(strstr(err, words) && strstr(err, "model.safetensors: ") == err,
                  "'%s' has no '%s'", err, words);
    ck_assert_ptr_null(strchr(err, '\n'));
    free(p);
}

START_TEST(safetensors_reads_tensors)
{
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[8,32]},"
        "\"a\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[0,8]},"
        "\"z\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[32,40]},"
        "\"none\":{\"dtype\":\"F16\",\"shape\":[0,5],\"data_offsets\":[8,8]}}   ";
    size_t size;
    char err[512];
    struct safetensors s;
    uint8_t *p = make(header, strlen(header), 40, &size);
    ck_assert_msg(open_bytes(p, size, &s, err) == 0, "%s", err);
    ck_assert_uint_eq(s.n, 4);
    ck_assert_str_eq(s.tensors[0].name, "a");
    ck_assert_uint_eq(s.tensors[0].type, TENSOR_BF16);
    ck_assert(s.tensors[0].n_dims == 1 && s.tensors[0].dims[0] == 4 && s.tensors[0].data[0] == 0);
    ck_assert_str_eq(s.tensors[1].name, "b");
    ck_assert(s.tensors[1].n_dims == 2 && s.tensors[1].dims[0] == 2 && s.tensors[1].dims[1] == 3);
    ck_assert(s.tensors[1].bytes == 24 && s.tensors[1].data[0] == 8);
    ck_assert(s.tensors[2].bytes == 0);
    ck_assert(s.tensors[3].type == UINT32_MAX && s.tensors[3].n_dims == 0);
    ck_assert_str_eq(s.tensors[3].dtype, "I64");
    safetensors_close(&s);
    free(p);
}
END_TEST

/* B67 */
START_TEST(safetensors_refuses_bad_ranges)
{
    /* k and v share one range */
    refuse("{\"k\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
           "\"v\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
           8, "overlap at byte");
    refuse("{\"k\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
           "\"v\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}",
           12, "tensors 'k' and 'v' overlap");
    refuse("{\"k\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
           "\"v\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[12,20]}}",
           20, "a hole of 4 bytes before tensor 'v'");
    refuse("{\"k\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", 12,
           "a hole of 4 bytes before tensor 'k'");
    refuse("{\"k\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 9,
           "1 bytes at byte 70 belong to no tensor");
    refuse("{\"k\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7,
           "not within the 7");
    refuse("{\"k\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, "not within");
    refuse("{\"k\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8,
           "span 8 bytes, dtype and shape need 12");
    refuse("{\"k\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,8]}}",
           8, "its size overflows");
    refuse("{\"k\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,9223372036854775807]}}", 8,
           "not within");
}
END_TEST

START_TEST(safetensors_refuses_unknown_dtypes)
{
    refuse("{\"k\":{\"dtype\":\"F99\",\"shape\":[2],\"data_offsets\":[9999999,88888888888]}}", 8,
           "tensor 'k': unknown dtype 'F99'");
    refuse("{\"k\":{\"dtype\":7,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "unknown dtype ''");
    refuse("{\"k\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "unknown dtype ''");
}
END_TEST

START_TEST(safetensors_refuses_malformed_headers)
{
    static const char *const cases[][2] = {
        {"", "no valid JSON"},
        {"{", "no valid JSON"},
        {"[]", "no JSON object"},
        {"{\"k\":{},\"k\":{}}", "no valid JSON"},
        {"{\"k\\u0000x\":{}}", "no valid JSON"},
        {"{\"k\xff\":{}}", "no valid JSON"},
        {"{\"k\":7}", "unknown dtype"},
        {"{\"a b\":{}}", "printable ASCII"},
        {"{\"\":{}}", "printable ASCII"},
        {"{\"k\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}}", "shape is no list"},
        {"{\"k\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]}}",
         "shape is no list of at most 8"},
        {"{\"k\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", "dimension 0"},
        {"{\"k\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}", "dimension 0"},
        {"{\"k\":{\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,8]}}",
         "no valid JSON"},
        {"{\"k\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", "no two offsets"},
        {"{\"k\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,-8]}}", "no two offsets"},
        {"{\"k\":{\"dtype\":\"F32\",\"shape\":[2]}}", "no two offsets"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refuse(cases[i][0], 8, cases[i][1]);
}
END_TEST

START_TEST(safetensors_refuses_deep_nesting)
{
    enum { DEPTH = 100000 };
    char *header = malloc(DEPTH + 1);
    ck_assert_ptr_nonnull(header);
    memset(header, '[', DEPTH);
    header[DEPTH] = 0;
    refuse(header, 0, "no valid JSON");
    free(header);
}
END_TEST

START_TEST(safetensors_refuses_wrong_lengths)
{
    static const char header[] = "{\"k\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}";
    static const uint64_t claims[] = {
        0, 1, sizeof header + 8, (uint64_t)1 << 40, UINT64_MAX - 7, UINT64_MAX};
    size_t size;
    char err[512];
    struct safetensors s;
    for (size_t i = 0; i < sizeof claims / sizeof *claims; i++) {
        uint8_t *p = make(header, claims[i], 8, &size);
        ck_assert_msg(open_bytes(p, size, &s, err) < 0, "length %zu was accepted",
                      (size_t)claims[i]);
        ck_assert_ptr_nonnull(strstr(err, "byte"));
        free(p);
    }
    uint8_t *whole = make(header, strlen(header), 8, &size);
    ck_assert_ok(open_bytes(whole, size, &s, err));
    safetensors_close(&s);
    for (size_t n = 0; n < size; n++) {
        uint8_t *p = malloc(n ? n : 1);
        ck_assert_ptr_nonnull(p);
        memcpy(p, whole, n);
        ck_assert_msg(open_bytes(p, n, &s, err) < 0, "cut at %zu was accepted", n);
        free(p);
    }
    free(whole);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("safetensors");
    TCase *t = tcase_create("safetensors");
    tcase_add_test(t, safetensors_reads_tensors);
    tcase_add_test(t, safetensors_refuses_bad_ranges);
    tcase_add_test(t, safetensors_refuses_unknown_dtypes);
    tcase_add_test(t, safetensors_refuses_malformed_headers);
    tcase_add_test(t, safetensors_refuses_deep_nesting);
    tcase_add_test(t, safetensors_refuses_wrong_lengths);
    suite_add_tcase(s, t);
    return s;
}
