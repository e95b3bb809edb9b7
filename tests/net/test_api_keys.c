/* Files of API keys, and the keys that requests carry. */
#include "common/net/api_keys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/harness.h"

/* SHA-256 of "secret-a" and "secret-b", as sha256sum prints them. */
#define HASH_A "8766b9cb08e6040b704f1e3ee1e186efccf2635b1d2634d6525333007e6aeae1"
#define HASH_B "ff492ef788c89b555e6f738b33d2422f57dbb6656af2402155672c5f123a90af"

static int load(const char *text, struct api_keys **out, char *err, size_t errlen)
{
    char path[] = "/tmp/baton-keys-XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    int rc = api_keys_load("api_key_file", path, out, err, errlen);
    unlink(path);
    return rc;
}

START_TEST(api_keys_find_cases)
{
    static const struct {
        const char *header, *name;
    } cases[] = {
        {"Bearer secret-a", "alice"},
        {"bearer secret-a", "alice"},
        {"Bearer   secret-b", "bob.2_x"},
        {"Bearer secret-c", NULL},
        {"Bearer secret-", NULL},
        {"Bearer secret-aa", NULL},
        {"Bearer ", NULL},
        {"Bearer", NULL},
        {"Basic secret-a", NULL},
        {"secret-a", NULL},
        {"Bearer " HASH_A, NULL},
        {NULL, NULL},
    };
    struct api_keys *k;
    char err[200];
    ck_assert_int_eq(
        load("# keys\n\nalice:" HASH_A "\n  bob.2_x:" HASH_B "  \r\n", &k, err, sizeof err),
        STATUS_OK);
    const struct api_key *got = api_keys_find(k, cases[_i].header);
    if (cases[_i].name)
        ck_assert_str_eq(got ? got->name : "none", cases[_i].name);
    else
        ck_assert_ptr_null(got);
    api_keys_destroy(k);
}
END_TEST

START_TEST(api_keys_load_refuses)
{
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"", "no key in it"},
        {"# nothing\n", "no key in it"},
        {"alice\n", "line 1: not of the form"},
        {":" HASH_A "\n", "line 1: not of the form"},
        {"\nalice:secret-a\n", "line 2: the hash must be"},
        {"alice:" HASH_A "0\n", "line 1: the hash must be"},
        {"alice:" HASH_A ":x\n", "line 1: the hash must be"},
        {"alice:" HASH_A " fast\n", "line 1: behind the hash"},
        {"alice:" HASH_A " speed=3\n", "line 1: a setting of a key is"},
        {"alice:" HASH_A " concurrency=0\n", "line 1: a limit is"},
        {"alice:" HASH_A " concurrency=-1\n", "line 1: a limit is"},
        {"alice:" HASH_A " concurrency=\n", "line 1: a limit is"},
        {"alice:" HASH_A " tokens_per_minute=1000000001\n", "line 1: a limit is"},
        {"alice:" HASH_A " requests_per_minute=5x\n", "line 1: a limit is"},
        {"alice:" HASH_A " concurrency=1 concurrency=2\n", "line 1: a limit is given twice"},
        {"alice:" HASH_A " priority=urgent\n", "line 1: a priority is"},
        {"alice:" HASH_A " tenant=a/b\n", "line 1: a tenant has"},
        {"alice:" HASH_A " tenant=\n", "line 1: a tenant has"},
        {"al ice:" HASH_A "\n", "line 1: a name has"},
        {"alice:" HASH_A "\nalice:" HASH_B "\n", "line 2: this name is used twice"},
    };
    struct api_keys *k = NULL;
    char err[300] = "";
    ck_assert_int_eq(load(cases[_i].text, &k, err, sizeof err), STATUS_INVALID);
    ck_assert_ptr_null(k);
    ck_assert_msg(strstr(err, cases[_i].part) != NULL, "%s", err);
}
END_TEST

START_TEST(api_keys_limits)
{
    struct api_keys *k;
    char err[200];
    ck_assert_int_eq(load("a:" HASH_A " \t tenant=lab  requests_per_minute=60 "
                          "tokens_per_minute=1000000000 concurrency=4 priority=high \nb:" HASH_B
                          " priority=low\n",
                          &k, err, sizeof err),
                     STATUS_OK);
    const struct api_key *a = api_keys_named(k, "a"), *b = api_keys_named(k, "b");
    ck_assert(a == api_keys_find(k, "Bearer secret-a") && b && !api_keys_named(k, "c"));
    ck_assert_str_eq(a->tenant, "lab");
    ck_assert(a->limits.requests_per_minute == 60 && a->limits.tokens_per_minute == 1000000000 &&
              a->limits.concurrency == 4 && a->limits.priority == API_PRIORITY_HIGH);
    ck_assert_str_eq(b->tenant, "b");
    ck_assert(b->limits.requests_per_minute == 0 && b->limits.tokens_per_minute == 0 &&
              b->limits.concurrency == 0 && b->limits.priority == API_PRIORITY_LOW);
    api_keys_destroy(k);
}
END_TEST

START_TEST(api_keys_load_no_file)
{
    struct api_keys *k = (struct api_keys *)1;
    char err[300] = "";
    ck_assert_int_eq(api_keys_load("api_key_file", NULL, &k, err, sizeof err), STATUS_OK);
    ck_assert_ptr_null(k);
    ck_assert_int_eq(api_keys_load("api_key_file", "", &k, err, sizeof err), STATUS_OK);
    ck_assert_int_eq(api_keys_load("api_key_file", "/nowhere/keys", &k, err, sizeof err),
                     STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(err, "/nowhere/keys"));
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("api_keys");
    TCase *c = tcase_create("api_keys");
    tcase_add_loop_test(c, api_keys_find_cases, 0, 12);
    tcase_add_loop_test(c, api_keys_load_refuses, 0, 20);
    tcase_add_test(c, api_keys_limits);
    tcase_add_test(c, api_keys_load_no_file);
    suite_add_tcase(s, c);
    return s;
}
