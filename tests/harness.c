/* harness: main() of the unit tests; see harness.h. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

const char *test_data(const char *name)
{
    static char path[4096];
    const char *dir = getenv("TESTS_DATA");
    snprintf(path, sizeof path, "%s/%s", dir ? dir : "tests/data", name);
    return path;
}

const char *test_model(void)
{
    static char path[4096];
    const char *cache = getenv("BATON_CACHE"), *home = getenv("HOME");
    if (cache)
        snprintf(path, sizeof path, "%s/SmolLM2-135M-Instruct.Q4_1.gguf", cache);
    else
        snprintf(path, sizeof path, "%s/.cache/baton/SmolLM2-135M-Instruct.Q4_1.gguf",
                 home ? home : "");
    return access(path, R_OK) == 0 ? path : NULL;
}

int main(void)
{
    SRunner *runner = srunner_create(test_suite());
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
