/* reply_rig: what the tests of thinking and tool calls share. */
#ifndef BATON_TESTS_TEXT_REPLY_RIG_H
#define BATON_TESTS_TEXT_REPLY_RIG_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/text/reply.h"
#include "tests/harness.h"

#define TOOLS                                                                                      \
    "[{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"description\": \"w\", " \
    "\"parameters\": "                                                                             \
    "{\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\"}, \"days\": "         \
    "{\"type\": \"integer\"}, \"exact\": {\"type\": \"boolean\"}, \"tags\": {\"type\": "           \
    "\"array\", \"items\": {\"type\": \"string\"}}, \"at\": {\"type\": \"object\", "               \
    "\"properties\": {\"zip\": {\"type\": \"string\"}}}, \"unit\": {\"type\": [\"string\", "       \
    "\"null\"]}}}}}, {\"type\": \"function\", \"function\": {\"name\": \"stop\", "                 \
    "\"description\": \"s\", "                                                                     \
    "\"parameters\": {\"type\": \"object\", \"properties\": {}}}}]"

/* The message as one JSON text: {"thinking", "content", "calls": [[name, arguments, id], …],
 * "open": [name, arguments] of a call that was cut, "broken": how many}. */
static inline char *reply_message(struct reply *r)
{
    json_t *m = json_object(), *calls = json_array();
    json_object_set_new(m, "thinking", json_stringn(buf_str(&r->thinking), r->thinking.len));
    json_object_set_new(m, "content", json_stringn(buf_str(&r->content), r->content.len));
    size_t n = 0;
    struct toolcall_call *c = r->tools ? toolcall_calls(r->tools, &n) : NULL;
    json_int_t broken = 0;
    for (size_t i = 0; i < n; i++) {
        json_t *call = json_array();
        ck_assert(c[i].shown);
        json_array_append_new(call, json_string(buf_str(&c[i].name)));
        json_array_append_new(call, json_stringn(buf_str(&c[i].arguments), c[i].arguments.len));
        if (c[i].id.len)
            json_array_append_new(call, json_string(buf_str(&c[i].id)));
        if (c[i].complete) {
            json_error_t e;
            json_t *arguments = json_loads(buf_str(&c[i].arguments), JSON_ALLOW_NUL, &e);
            ck_assert_msg(json_is_object(arguments), "arguments %s", buf_str(&c[i].arguments));
            json_decref(arguments);
            json_array_append_new(calls, call);
        } else if (c[i].broken) {
            broken++;
            json_decref(call);
        } else {
            json_object_set_new(m, "open", call);
        }
    }
    json_object_set_new(m, "calls", calls);
    json_object_set_new(m, "broken", json_integer(broken));
    char *text = json_dumps(m, JSON_COMPACT);
    ck_assert_ptr_nonnull(text);
    json_decref(m);
    return text;
}

/* pieces: lengths of the pieces in which the text comes, the last one repeated; 0: all at once. */
static inline char *reply_of(const struct reply_profile *p, enum reasoning_start start,
                             const json_t *tools, const char *text, size_t n, bool cut,
                             const size_t *pieces, size_t n_pieces)
{
    struct reply r;
    ck_assert_ok(reply_init(&r, p, start, tools));
    for (size_t at = 0, i = 0; at < n; i++) {
        size_t piece = pieces[i < n_pieces ? i : n_pieces - 1];
        if (piece == 0 || piece > n - at)
            piece = n - at;
        reply_push(&r, text + at, piece);
        at += piece;
    }
    reply_end(&r, cut);
    ck_assert(reply_ok(&r));
    char *message = reply_message(&r);
    reply_fini(&r);
    return message;
}

/* The message of the text; the same however it is cut in two, and byte by byte. To be freed. */
static inline char *reply_read(const struct reply_profile *p, enum reasoning_start start,
                               const json_t *tools, const char *text, bool cut)
{
    size_t n = strlen(text);
    char *whole = reply_of(p, start, tools, text, n, cut, &(size_t){0}, 1);
    for (size_t k = 1; k < n; k++) {
        char *two = reply_of(p, start, tools, text, n, cut, (size_t[]){k, 0}, 2);
        ck_assert_str_eq(two, whole);
        free(two);
    }
    for (size_t piece = 1; piece <= 3; piece++) {
        char *bytes = reply_of(p, start, tools, text, n, cut, &piece, 1);
        ck_assert_str_eq(bytes, whole);
        free(bytes);
    }
    return whole;
}

static inline json_t *reply_json(const char *text)
{
    json_error_t e;
    json_t *j = json_loads(text, JSON_DECODE_ANY, &e);
    ck_assert_msg(j != NULL, "%s: %s", text, e.text);
    return j;
}

/* Compares a message with {"thinking", "content", "calls", "open", "broken"} of which missing
 * members are empty; arguments are compared as JSON. */
static inline void reply_compare(const char *got, const char *want, const char *text)
{
    json_t *g = reply_json(got), *w = reply_json(want), *empty = json_string("");
    static const char *const strings[] = {"thinking", "content"};
    for (size_t i = 0; i < 2; i++) {
        const json_t *a = json_object_get(g, strings[i]), *b = json_object_get(w, strings[i]);
        ck_assert_msg(json_equal(a, b ? b : empty), "%s\n%s: %s", text, strings[i], got);
    }
    const json_t *calls = json_object_get(g, "calls"), *wanted = json_object_get(w, "calls");
    ck_assert_msg(json_array_size(calls) == json_array_size(wanted), "%s\n%s", text, got);
    for (size_t i = 0; i < json_array_size(wanted); i++) {
        const json_t *a = json_array_get(calls, i), *b = json_array_get(wanted, i);
        json_t *arguments = reply_json(json_string_value(json_array_get(a, 1)));
        ck_assert_msg(
            json_equal(json_array_get(a, 0), json_array_get(b, 0)) &&
                json_equal(arguments, json_array_get(b, 1)) &&
                (json_array_size(b) < 3 || json_equal(json_array_get(a, 2), json_array_get(b, 2))),
            "%s\n%s", text, got);
        json_decref(arguments);
    }
    const json_t *open = json_object_get(w, "open"), *broken = json_object_get(w, "broken");
    ck_assert_msg(open ? json_equal(json_object_get(g, "open"), open)
                       : json_object_get(g, "open") == NULL,
                  "%s\n%s", text, got);
    ck_assert_msg(json_integer_value(json_object_get(g, "broken")) == json_integer_value(broken),
                  "%s\n%s", text, got);
    json_decref(g);
    json_decref(w);
    json_decref(empty);
}

#endif
