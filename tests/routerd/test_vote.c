/* Tests of routerd/vote: what a request may say, and how votes are counted. */
#include "routerd/vote.h"

#include <string.h>

#include "tests/harness.h"

START_TEST(parse)
{
    static const struct {
        const char *request;
        int rc;
        bool wanted;
    } cases[] = {
        {"{}", STATUS_OK, false},
        {"{\"vote\":null}", STATUS_OK, false},
        {"{\"vote\":false}", STATUS_OK, false},
        {"{\"vote\":true}", STATUS_OK, true},
        {"{\"vote\":{}}", STATUS_OK, true},
        {"{\"vote\":{\"regex\":\"(\\\\d+)\"}}", STATUS_OK, true},
        {"{\"vote\":{\"regex\":\"(\"}}", STATUS_INVALID, false},
        {"{\"vote\":{\"regex\":1}}", STATUS_INVALID, false},
        {"{\"vote\":1}", STATUS_INVALID, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct extract *x;
        struct api_error e = {0};
        json_t *o = json_loads(cases[i].request, 0, NULL);
        ck_assert_int_eq(vote_parse(o, &x, &e), cases[i].rc);
        if (cases[i].rc == STATUS_OK)
            ck_assert_int_eq(x != NULL, cases[i].wanted);
        else
            ck_assert_str_eq(e.param, "vote");
        if (cases[i].rc == STATUS_OK)
            extract_destroy(x);
        json_decref(o);
    }
}
END_TEST

static void counts(const char *const *texts, uint32_t n, const char *want)
{
    struct vote_text list[16];
    struct extract *x;
    struct buf out;
    char err[100];
    buf_init(&out, 0);
    for (uint32_t i = 0; i < n; i++)
        list[i] = (struct vote_text){texts[i], strlen(texts[i])};
    ck_assert_ok(extract_create("=(.*)", 5, &x, err, sizeof err));
    ck_assert_ok(vote_json(&out, x, list, n));
    ck_assert_str_eq(buf_str(&out), want);
    extract_destroy(x);
    buf_fini(&out);
}

START_TEST(count)
{
    const char *const clear[] = {"=7", "nothing", "= Nine.", "=7.", "=nine", "=8", "=7"};
    counts(clear, 7,
           "{\"answer\":\"7\",\"choice\":0,\"votes\":3,\"abstained\":1,\"answers\":["
           "{\"answer\":\"7\",\"votes\":3,\"choices\":[0,3,6]},"
           "{\"answer\":\"Nine\",\"votes\":2,\"choices\":[2,4]},"
           "{\"answer\":\"8\",\"votes\":1,\"choices\":[5]}]}");
    const char *const even[] = {"", "=b", "=a", "=b", "=a"};
    counts(even, 5,
           "{\"answer\":\"b\",\"choice\":1,\"votes\":2,\"abstained\":1,\"answers\":["
           "{\"answer\":\"b\",\"votes\":2,\"choices\":[1,3]},"
           "{\"answer\":\"a\",\"votes\":2,\"choices\":[2,4]}]}");
    const char *const none[] = {"x", "="};
    counts(none, 2, "{\"answer\":null,\"choice\":null,\"votes\":0,\"abstained\":2,\"answers\":[]}");
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("vote");
    TCase *t = tcase_create("vote");
    tcase_add_test(t, parse);
    tcase_add_test(t, count);
    suite_add_tcase(s, t);
    return s;
}
