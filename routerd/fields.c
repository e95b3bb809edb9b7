/* fields: see fields.h.
 *
 * jansson refuses a whole body for one number that it cannot hold. JSON has no such limit, and tool
 * schemas do contain them ("maximum": 18446744073709551615). So a body that was refused for its
 * numbers is read again with every integer beyond 64 bits written as a fraction ("….0"); what is
 * still too large for a double gets a 400 that names the member. */
#include "routerd/fields.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"

int api_fail(struct api_error *e, const char *param, const char *code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    e->http = 400;
    e->param = param;
    e->code = code;
    vsnprintf(e->message, sizeof e->message, fmt, ap);
    va_end(ap);
    return STATUS_INVALID;
}

/* Models may write NUL characters, and what they wrote comes back in the next request. */
#define LOAD_FLAGS (JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY)

/* ---- numbers that jansson cannot hold ----------------------------------------------------------
 */

static bool is_number_char(char c)
{
    return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E';
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Whether a number of n characters is an integer that does not fit. */
static bool integer_overflows(const char *p, size_t n)
{
    char text[24];
    if (memchr(p, '.', n) || memchr(p, 'e', n) || memchr(p, 'E', n) || n < 19)
        return false;
    if (n >= sizeof text)
        return true;
    memcpy(text, p, n);
    text[n] = 0;
    errno = 0;
    strtoll(text, NULL, 10);
    return errno == ERANGE;
}

/* Copies the body with ".0" behind every integer that does not fit. */
static void widen_integers(const char *body, size_t n, struct buf *out)
{
    size_t copied = 0, i = 0;
    while (i < n) {
        size_t begin = i++;
        if (body[begin] == '"') {
            while (i < n && body[i] != '"')
                i += body[i] == '\\' ? 2 : 1;
            i++;
        } else if (is_number_char(body[begin])) {
            while (i < n && is_number_char(body[i]))
                i++;
            if (integer_overflows(body + begin, i - begin)) {
                buf_append(out, body + copied, i - copied);
                buf_puts(out, ".0");
                copied = i;
            }
        }
    }
    if (copied < n)
        buf_append(out, body + copied, n - copied);
}

/* The parameter whose value, a number, ends before `at`; NULL when it is none that we know. */
static const char *number_member(const char *body, size_t at)
{
    static const char *const names[] = {"temperature",
                                        "top_p",
                                        "min_p",
                                        "top_k",
                                        "max_tokens",
                                        "max_completion_tokens",
                                        "top_logprobs",
                                        "logprobs",
                                        "best_of",
                                        "n",
                                        "seed",
                                        "presence_penalty",
                                        "min_tokens",
                                        "frequency_penalty",
                                        "repetition_penalty"};
    while (at > 0 && is_number_char(body[at - 1]))
        at--;
    while (at > 0 && is_blank(body[at - 1]))
        at--;
    if (at == 0 || body[--at] != ':')
        return NULL;
    while (at > 0 && is_blank(body[at - 1]))
        at--;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        size_t len = strlen(names[i]);
        if (at >= len + 2 && body[at - 1] == '"' && body[at - len - 2] == '"' &&
            memcmp(body + at - 1 - len, names[i], len) == 0)
            return names[i];
    }
    return NULL;
}

static int refuse_json(const char *body, size_t n, const json_error_t *je, struct api_error *e)
{
    enum json_error_code why = json_error_code(je);
    if (why == json_error_null_byte_in_key)
        return api_fail(e, NULL, "invalid_json",
                        "A key has a NUL character (line %d, column %d); that is not supported.",
                        je->line, je->column);
    if (why == json_error_numeric_overflow) {
        size_t at = je->position > 0 && (size_t)je->position < n ? (size_t)je->position : n;
        const char *name = number_member(body, at);
        if (name)
            return api_fail(e, name, NULL, "'%s' is out of range.", name);
    }
    return api_fail(e, NULL, "invalid_json",
                    "The body is not valid JSON: %.200s (line %d, column %d).", je->text, je->line,
                    je->column);
}

int fields_parse(const char *body, size_t n, json_t **out, struct api_error *e)
{
    json_error_t je;
    if (memchr(body, 0, n)) /* jansson would pass over some of them */
        return api_fail(e, NULL, "invalid_json", "The body is not valid JSON: a NUL byte.");
    *out = json_loadb(body, n, LOAD_FLAGS, &je);
    if (*out)
        return STATUS_OK;
    if (json_error_code(&je) != json_error_numeric_overflow)
        return refuse_json(body, n, &je, e);
    struct buf wide;
    buf_init(&wide, 0);
    widen_integers(body, n, &wide);
    int rc = STATUS_NOMEM;
    if (buf_ok(&wide)) {
        *out = json_loadb(wide.data, wide.len, LOAD_FLAGS, &je);
        rc = *out ? STATUS_OK : refuse_json(wide.data, wide.len, &je, e);
    }
    buf_fini(&wide);
    return rc;
}

/* ---- members -----------------------------------------------------------------------------------
 */

const json_t *field_get(const json_t *o, const char *name)
{
    const json_t *v = json_object_get(o, name);
    return v && !json_is_null(v) ? v : NULL;
}

int field_bool(const json_t *o, const char *name, bool *out, struct api_error *e)
{
    const json_t *v = field_get(o, name);
    if (!v)
        return STATUS_OK;
    if (!json_is_boolean(v))
        return api_fail(e, name, NULL, "'%s' must be true or false.", name);
    *out = json_is_true(v);
    return STATUS_OK;
}

int field_int(const json_t *o, const char *name, int64_t min, int64_t max, int64_t *out,
              struct api_error *e)
{
    const json_t *v = field_get(o, name);
    if (!v)
        return STATUS_OK;
    double real = json_real_value(v); /* 0 when it is none */
    if (real >= 0x1p63 || real <= -0x1p63)
        return api_fail(e, name, NULL, "'%s' must be an integer of at most 64 bits, not %g.", name,
                        real);
    bool whole = json_is_real(v) && real == trunc(real); /* 5.0 is 5 */
    if (!json_is_integer(v) && !whole)
        return api_fail(e, name, NULL, "'%s' must be an integer.", name);
    int64_t n = whole ? (int64_t)real : json_integer_value(v);
    if (n < min || n > max) {
        if (max == INT64_MAX)
            return api_fail(e, name, NULL, "'%s' must be at least %" PRId64 ", not %" PRId64 ".",
                            name, min, n);
        return api_fail(e, name, NULL,
                        "'%s' must be between %" PRId64 " and %" PRId64 ", not %" PRId64 ".", name,
                        min, max, n);
    }
    *out = n;
    return STATUS_OK;
}

int field_number(const json_t *o, const char *name, double min, double max, bool above, double *out,
                 struct api_error *e)
{
    const json_t *v = field_get(o, name);
    if (!v)
        return STATUS_OK;
    if (!json_is_number(v))
        return api_fail(e, name, NULL, "'%s' must be a number.", name);
    double x = json_number_value(v);
    if (!(x >= min && x <= max) || (above && x <= min))
        return api_fail(e, name, NULL, "'%s' must be %s %g and at most %g, not %g.", name,
                        above ? "above" : "at least", min, max, x);
    *out = x;
    return STATUS_OK;
}
