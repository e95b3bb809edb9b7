/* Text, stop strings and log probabilities of one choice; JSON strings. */
#include "routerd/answer.h"
#include "common/base/json.h"
#include "tests/harness.h"
#include "tests/routerd/bytes_vocab.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct tokenizer *vocab;

static void setup(void)
{
    vocab = bytes_vocab();
}

static void teardown(void)
{
    tokenizer_destroy(vocab);
}

static void feed(struct answer *a, const char *text, size_t n)
{
    for (size_t i = 0; i < n && !a->stopped; i++) {
        struct proto_token t = {.token = (unsigned char)text[i], .logprob = -0.5f};
        ck_assert_ok(answer_token(a, &t, true));
    }
}

START_TEST(answer_token_never_half_a_character)
{
    struct answer a;
    const char *text = "a\xc3\xa9\xe6\x97\xa5\xf0\x9f\xa7\x91z";
    ck_assert_ok(answer_init(&a, vocab, NULL, NULL, 0, true));
    for (size_t i = 0; text[i]; i++) {
        struct proto_token t = {.token = (unsigned char)text[i], .logprob = -1};
        ck_assert_ok(answer_token(&a, &t, true));
        ck_assert_uint_eq(a.n_items, i + 1);
        ck_assert_uint_eq(a.ready, i + 1);
        json_t *whole = json_stringn(buf_str(&a.text), a.text.len); /* NULL unless valid UTF-8 */
        ck_assert_ptr_nonnull(whole);
        json_decref(whole);
    }
    answer_end(&a, false);
    ck_assert_str_eq(buf_str(&a.text), text);
    answer_fini(&a);
}
END_TEST

START_TEST(answer_token_stop_string)
{
    struct answer a;
    char gamma[] = "gamma", both[] = "beta gamma", *stops[] = {gamma, both};
    size_t len[] = {5, 10};
    ck_assert_ok(answer_init(&a, vocab, stops, len, 2, true));
    const char *text = "alpha beta gamma delta";
    feed(&a, text, strlen(text));
    ck_assert(a.stopped);
    answer_end(&a, false);
    ck_assert_str_eq(buf_str(&a.text), "alpha ");
    ck_assert_uint_eq(a.ready, 6); /* exactly the tokens of the visible text */
    ck_assert_uint_eq(a.n_tokens, 16);
    answer_fini(&a);
}
END_TEST

START_TEST(answer_end_releases_held_tail)
{
    struct answer a;
    char word[] = "assistant", *stops[] = {word};
    size_t len[] = {9};
    ck_assert_ok(answer_init(&a, vocab, stops, len, 1, true));
    feed(&a, "pleas", 5);
    ck_assert_str_eq(buf_str(&a.text), "ple");
    ck_assert_uint_eq(a.ready, 3);
    answer_end(&a, false);
    ck_assert_str_eq(buf_str(&a.text), "pleas");
    ck_assert_uint_eq(a.ready, 5);
    answer_fini(&a);
}
END_TEST

/* Whatever the text and the stop string: what is shown is the text before the first match. */
START_TEST(answer_token_random_stops)
{
    srand(11);
    for (int round = 0; round < 3000; round++) {
        char text[40], stop[4];
        size_t n = 1 + (size_t)rand() % 39, m = 1 + (size_t)rand() % 3;
        for (size_t i = 0; i < n; i++)
            text[i] = "ab"[rand() % 2];
        for (size_t i = 0; i < m; i++)
            stop[i] = "ab"[rand() % 2];
        char *stops[] = {stop};
        struct answer a;
        ck_assert_ok(answer_init(&a, vocab, stops, &m, 1, true));
        feed(&a, text, n);
        answer_end(&a, false);
        const char *at = memmem(text, n, stop, m);
        size_t want = at ? (size_t)(at - text) : n;
        ck_assert_uint_eq(a.text.len, want);
        ck_assert(want == 0 || memcmp(buf_str(&a.text), text, want) == 0);
        ck_assert_uint_eq(a.ready, want);
        ck_assert_int_eq(a.stopped, at != NULL);
        answer_fini(&a);
    }
}
END_TEST

START_TEST(answer_token_stop_id_is_counted_not_shown)
{
    struct answer a;
    struct proto_token t = {.token = VOCAB_IM_END, .finish = PROTO_FINISH_STOP};
    ck_assert_ok(answer_init(&a, vocab, NULL, NULL, 0, true));
    feed(&a, "x", 1);
    ck_assert_ok(answer_token(&a, &t, false));
    answer_end(&a, false);
    ck_assert_str_eq(buf_str(&a.text), "x");
    ck_assert_uint_eq(a.n_tokens, 2);
    ck_assert_uint_eq(a.n_items, 1);
    answer_fini(&a);
}
END_TEST

START_TEST(answer_json_string_any_bytes)
{
    srand(3);
    for (int round = 0; round < 5000; round++) {
        char bytes[64];
        size_t n = (size_t)rand() % 64;
        for (size_t i = 0; i < n; i++)
            bytes[i] = (char)(rand() % 3 ? rand() % 128 : rand());
        struct buf b;
        buf_init(&b, 0);
        answer_json_string(&b, bytes, n);
        json_t *v = json_loadb(buf_str(&b), b.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        ck_assert_msg(v != NULL, "not JSON: %s", buf_str(&b));
        bool ascii = true;
        for (size_t i = 0; i < n; i++)
            ascii &= (unsigned char)bytes[i] < 128;
        if (ascii) {
            ck_assert_uint_eq(json_string_length(v), n);
            ck_assert_int_eq(memcmp(json_string_value(v), bytes, n), 0);
        }
        json_decref(v);
        buf_fini(&b);
    }
}
END_TEST

START_TEST(answer_logprobs_are_json)
{
    struct answer a, prompt;
    struct proto_top top[2] = {{'h', -0.1f}, {0x85, -3.0f}};
    struct proto_token t = {.token = 'h', .logprob = -0.1f, .top = top, .n_top = 2};
    struct proto_token first = {.token = 'q', .logprob = 1};
    ck_assert_ok(answer_init(&prompt, vocab, NULL, NULL, 0, true));
    ck_assert_ok(answer_init(&a, vocab, NULL, NULL, 0, true));
    ck_assert_ok(answer_token(&prompt, &first, true));
    ck_assert_ok(answer_token(&a, &t, true));
    struct buf b;
    buf_init(&b, 0);
    answer_chat_logprobs(&b, &a, 0, a.ready);
    json_t *v = json_loads(buf_str(&b), 0, NULL);
    ck_assert_ptr_nonnull(v);
    json_t *item = json_array_get(json_object_get(v, "content"), 0);
    ck_assert_str_eq(json_string_value(json_object_get(item, "token")), "h");
    ck_assert_uint_eq(json_array_size(json_object_get(item, "top_logprobs")), 2);
    json_t *second = json_array_get(json_object_get(item, "top_logprobs"), 1);
    ck_assert_str_eq(json_string_value(json_object_get(second, "token")), "\xef\xbf\xbd");
    ck_assert_int_eq(json_integer_value(json_array_get(json_object_get(second, "bytes"), 0)), 0x85);
    json_decref(v);
    buf_reset(&b);
    struct answer_run runs[] = {{&prompt, 0, 1, 0}, {&a, 0, 1, 1}};
    answer_completion_logprobs(&b, runs, 2);
    v = json_loads(buf_str(&b), 0, NULL);
    ck_assert_ptr_nonnull(v);
    ck_assert(json_is_null(json_array_get(json_object_get(v, "token_logprobs"), 0)));
    ck_assert(json_is_real(json_array_get(json_object_get(v, "token_logprobs"), 1)));
    ck_assert_int_eq(json_integer_value(json_array_get(json_object_get(v, "text_offset"), 1)), 1);
    json_decref(v);
    buf_fini(&b);
    answer_fini(&a);
    answer_fini(&prompt);
}
END_TEST

/* Halves of characters are different keys of top_logprobs, and what is no number in JSON becomes
 * one. */
START_TEST(answer_logprobs_strict_json)
{
    struct answer a;
    struct proto_top top[] = {{0x85, -1.0f}, {0x86, -2.0f}, {0xe2, -INFINITY}, {'\\', NAN}};
    struct proto_token t = {.token = 0x85, .logprob = -INFINITY, .top = top, .n_top = 4};
    struct buf b;
    ck_assert_ok(answer_init(&a, vocab, NULL, NULL, 0, true));
    ck_assert_ok(answer_token(&a, &t, true));
    answer_end(&a, false);
    ck_assert_uint_eq(a.ready, 1);
    buf_init(&b, 0);
    struct answer_run run = {&a, 0, 1, 0};
    answer_completion_logprobs(&b, &run, 1);
    json_t *v = json_loads(buf_str(&b), JSON_REJECT_DUPLICATES, NULL);
    ck_assert_msg(v != NULL, "%s", buf_str(&b));
    json_t *keys = json_array_get(json_object_get(v, "top_logprobs"), 0);
    ck_assert_uint_eq(json_object_size(keys), 4);
    ck_assert(json_number_value(json_object_get(keys, "bytes:\\x86")) == -2);
    ck_assert(json_number_value(json_object_get(keys, "bytes:\\xe2")) == -9999);
    ck_assert(json_number_value(json_object_get(keys, "\\")) == -9999);
    ck_assert_str_eq(json_string_value(json_array_get(json_object_get(v, "tokens"), 0)),
                     "bytes:\\x85");
    json_decref(v);
    buf_reset(&b);
    answer_chat_logprobs(&b, &a, 0, 1);
    v = json_loads(buf_str(&b), JSON_REJECT_DUPLICATES, NULL);
    ck_assert_msg(v != NULL, "%s", buf_str(&b));
    json_decref(v);
    buf_fini(&b);
    answer_fini(&a);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("answer");
    TCase *t = tcase_create("answer");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, answer_token_never_half_a_character);
    tcase_add_test(t, answer_token_stop_string);
    tcase_add_test(t, answer_end_releases_held_tail);
    tcase_add_test(t, answer_token_random_stops);
    tcase_add_test(t, answer_token_stop_id_is_counted_not_shown);
    tcase_add_test(t, answer_json_string_any_bytes);
    tcase_add_test(t, answer_logprobs_are_json);
    tcase_add_test(t, answer_logprobs_strict_json);
    suite_add_tcase(s, t);
    return s;
}
