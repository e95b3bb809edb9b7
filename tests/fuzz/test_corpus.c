/* The committed corpora through their targets: what fuzzing has found once stays found. */
#include <dirent.h>

#include "tests/fuzz/fuzz.h"
#include "tests/harness.h"

static size_t replay(const struct fuzz_target *t, const char *dir)
{
    size_t n = 0;
    DIR *d = opendir(dir);
    ck_assert_msg(d != NULL, "%s", dir);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        char path[4400];
        static uint8_t data[1 << 20];
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        FILE *f = fopen(path, "rb");
        ck_assert_msg(f != NULL, "%s", path);
        size_t size = fread(data, 1, sizeof data, f);
        fclose(f);
        uint8_t *copy = malloc(size + 1); /* of its own size, so that a sanitizer sees overruns */
        ck_assert_ptr_nonnull(copy);
        memcpy(copy, data, size);
        t->run(copy, size);
        free(copy);
        n++;
    }
    closedir(d);
    return n;
}

START_TEST(corpora)
{
    char dir[4096];
    const char *data = getenv("TESTS_DATA");
    const struct fuzz_target *t = &fuzz_targets[_i];
    snprintf(dir, sizeof dir, "%s%stests/fuzz/corpus/%s", data ? data : "", data ? "/../../" : "",
             t->name);
    ck_assert_uint_gt(replay(t, dir), 10);
    t->run((const uint8_t *)"", 0);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("fuzz");
    TCase *c = tcase_create("corpora");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, corpora, 0, (int)fuzz_targets_n);
    suite_add_tcase(s, c);
    return s;
}
