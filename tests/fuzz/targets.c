/* targets: the table, and the entry of libFuzzer, which runs the one that $FUZZ_TARGET names. */
#include "tests/fuzz/fuzz.h"

const struct fuzz_target fuzz_targets[] = {
    {"template_source", fuzz_template_source},
    {"template_context", fuzz_template_context},
    {"tokenizer_text", fuzz_tokenizer_text},
    {"tokenizer_json", fuzz_tokenizer_json},
    {"reply", fuzz_reply},
};
const size_t fuzz_targets_n = sizeof fuzz_targets / sizeof *fuzz_targets;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const struct fuzz_target *target;
    const char *name = getenv("FUZZ_TARGET");
    for (size_t i = 0; !target && i < fuzz_targets_n; i++) {
        if (name && strcmp(fuzz_targets[i].name, name) == 0)
            target = &fuzz_targets[i];
    }
    if (!target) {
        fprintf(stderr, "FUZZ_TARGET is none of the targets in targets.c\n");
        exit(2);
    }
    target->run(data, n);
    return 0;
}
