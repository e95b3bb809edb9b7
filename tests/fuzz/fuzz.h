/* fuzz: functions that take any bytes and must neither crash, leak, hang nor contradict themselves.
 *
 * `make fuzz` runs each under libFuzzer with AddressSanitizer and UBSan; make check replays the
 * committed corpora (tests/fuzz/corpus/TARGET) in the normal build. */
#ifndef BATON_TESTS_FUZZ_FUZZ_H
#define BATON_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct fuzz_target {
    const char *name;
    void (*run)(const uint8_t *data, size_t n);
};
extern const struct fuzz_target fuzz_targets[];
extern const size_t fuzz_targets_n;

/* What must hold; libFuzzer and Check both notice the abort. */
#define FUZZ_CHECK(expr)                                                                           \
    do {                                                                                           \
        if (!(expr)) {                                                                             \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #expr);                             \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

void fuzz_template_source(const uint8_t *data, size_t n);
void fuzz_template_context(const uint8_t *data, size_t n);
void fuzz_tokenizer_text(const uint8_t *data, size_t n);
void fuzz_tokenizer_json(const uint8_t *data, size_t n);
void fuzz_reply(const uint8_t *data, size_t n);

#endif
