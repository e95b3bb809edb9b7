/* fields: a request body as JSON, and typed, range-checked access to its members. Every refusal
 * names the parameter and says what is allowed; null counts as absent. */
#ifndef BATON_ROUTERD_FIELDS_H
#define BATON_ROUTERD_FIELDS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/json.h"
#include "common/base/status.h"

/* What an OpenAI error object needs. */
struct api_error {
    int http;          /* status */
    const char *param; /* static or NULL */
    const char *code;  /* static or NULL */
    char message[512];
};
/* Fills e (400) and returns STATUS_INVALID. */
int api_fail(struct api_error *e, const char *param, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* The body's value, a new reference. One JSON value and nothing else; keys that appear twice are
 * refused; strings may hold NUL characters; integers beyond 64 bits are taken as floating-point
 * numbers. */
int fields_parse(const char *body, size_t n, json_t **out, struct api_error *e) WARN_UNUSED;

/* The member, or NULL when absent or null. */
const json_t *field_get(const json_t *o, const char *name);
/* out keeps its value when the member is absent. Bounds are inclusive unless above says otherwise.
 */
int field_bool(const json_t *o, const char *name, bool *out, struct api_error *e) WARN_UNUSED;
int field_int(const json_t *o, const char *name, int64_t min, int64_t max, int64_t *out,
              struct api_error *e) WARN_UNUSED;
/* above: the value must be greater than min, not equal to it. */
int field_number(const json_t *o, const char *name, double min, double max, bool above, double *out,
                 struct api_error *e) WARN_UNUSED;

#endif
