/* The request cases of llhttp's own tests, through the whole server, cut at every size: what its
 * parser accepts is delivered, what it refuses gets a 4xx and the end of the connection, and the
 * cut changes nothing. Where Baton does otherwise, `differences` says why. */
#include "tests/net/http_test.h"

#include "common/base/json.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>

#define CLOSED_CONNECTION 5  /* data behind a request with Connection: close */
#define PAUSED_UPGRADE    22 /* the rest belongs to another protocol */

static json_t *load(const char *path)
{
    json_error_t e;
    json_t *list = json_load_file(path, JSON_ALLOW_NUL, &e);
    ck_assert_msg(json_array_size(list) > 100, "%s: %s", path, e.text);
    return list;
}

/* Cases that end otherwise than in llhttp: messages that are delivered, and how it ends. */
static const struct difference {
    const char *name;
    unsigned messages;
    const char *status; /* of the last answer, "4.." for a refusal */
    const char *why;
} differences[] = {
    {"connection: Multiple tokens with folding and LWS", 1, "400",
     "no upgrade: the rest is a request"},
    {"connection: Emitting part of body and pausing", 1, "400", "the same"},
    {"connection: Upgrade GET request", 1, "400", "the same"},
    {"connection: Upgrade POST request", 1, "400", "the same"},
    {"method: CONNECT request", 0, "405", "no proxy"},
    {"method: CONNECT request with CAPS", 0, "405", "the same"},
    {"method: CONNECT with body", 0, "405", "the same"},
    {"uri: Underscore in hostname", 0, "405", "the same: its method is CONNECT"},
    {"sample: No HTTP version", 0, "505", "HTTP/0.9 is not spoken"},
    {"transfer-encoding: POST with chunked as last transfer-encoding", 0, "400", "chunked alone"},
    {"transfer-encoding: POST with chunked as last transfer-encoding (multiple headers)", 0, "400",
     "the same"},
    {"uri: Fragment in URI", 0, "400", "a client never sends one"},
    {"content-length: Tabs in Content-Length (surrounding)", 0, "", "older llhttp refuses it"},
};

static const struct difference *difference(const char *name)
{
    for (size_t i = 0; i < sizeof differences / sizeof *differences; i++) {
        if (strcmp(differences[i].name, name) == 0)
            return &differences[i];
    }
    return NULL;
}

static bool long_run(void)
{
    const char *set = getenv("LONG");
    return set && *set;
}

/* One character per byte. */
static size_t bytes_of(const char *utf8, size_t n, char *out)
{
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char ch = (unsigned char)utf8[i];
        if (ch >= 0xc0 && i + 1 < n)
            ch = (unsigned char)((ch & 3) << 6 | ((unsigned char)utf8[++i] & 0x3f));
        out[used++] = (char)ch;
    }
    return used;
}

/* What came of it: "delivered requests, status of the last answer, whether it was closed". */
static void play(const char *input, size_t n, size_t split, char *out, size_t size)
{
    struct client c = client_open();
    int on = 1;
    ck_assert_int_eq(setsockopt(c.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on), 0);
    t.log[0] = 0;
    t.requests = 0;
    turns(2);
    for (size_t at = 0; at < n;) {
        size_t part = split < n - at ? split : n - at;
        if (send(c.fd, input + at, part, MSG_NOSIGNAL) < 0)
            break; /* refused and closed already */
        at += part;
        turns(2);
    }
    for (size_t quiet = 0, before = SIZE_MAX; quiet < 4;) { /* each answer takes a few turns */
        turns(2);
        client_pump(&c);
        quiet = c.got.len == before ? quiet + 1 : 0;
        before = c.got.len;
    }
    const char *last = "---";
    for (const char *p = buf_str(&c.got); (p = strstr(p, "HTTP/1.1 ")); p += 9)
        last = p + 9;
    snprintf(out, size, "%d %.3s %s", t.requests, last, c.eof || c.reset ? "closed" : "open");
    client_end(&c);
    turns(2);
}

static void check(const json_t *one, const char *input, size_t n)
{
    const char *name = json_string_value(json_object_get(one, "name"));
    json_int_t error = json_integer_value(json_object_get(one, "error"));
    unsigned messages = (unsigned)json_integer_value(json_object_get(one, "messages"));
    const struct difference *d = difference(name);
    char whole[64], got[64];
    play(input, n, n, whole, sizeof whole);
    bool refused = error && error != CLOSED_CONNECTION && error != PAUSED_UPGRADE;
    const char *status = d ? d->status : refused ? "4" : messages ? "404" : "---";
    unsigned seen = d ? d->messages : messages;
    int used = 0;
    unsigned delivered = 0;
    ck_assert_int_eq(sscanf(whole, "%u %n", &delivered, &used), 1);
    ck_assert_msg(delivered == seen && strncmp(whole + used, status, strlen(status)) == 0 &&
                      (!refused || strstr(whole, "closed")),
                  "%s: %s; llhttp has %u messages and error %d", name, whole, messages, (int)error);
    for (size_t split = 1; split < n; split += long_run() ? 1 : 1 + split / 4) {
        play(input, n, split, got, sizeof got);
        ck_assert_msg(strcmp(got, whole) == 0, "%s: %s instead of %s when cut at %zu", name, got,
                      whole, split);
    }
}

START_TEST(http_corpus_llhttp)
{
    json_t *cases = load("tests/data/llhttp/requests.json");
    const json_t *one;
    size_t i;
    serve();
    json_array_foreach(cases, i, one)
    {
        const json_t *input = json_object_get(one, "input");
        char *bytes = malloc(json_string_length(input) + 1);
        size_t n = bytes_of(json_string_value(input), json_string_length(input), bytes);
        check(one, bytes, n);
        free(bytes);
    }
    json_decref(cases);
}
END_TEST

START_TEST(http_corpus_h2o)
{
    static const size_t splits[] = {1, 2, 7, 64};
    const char *other = getenv("H2O_SEEDS"); /* a larger file of the same kind */
    json_t *seeds = load(other ? other : "tests/data/h2o/seeds.json");
    const json_t *one;
    size_t i;
    char whole[64], got[64];
    serve();
    json_array_foreach(seeds, i, one)
    {
        char *bytes = malloc(json_string_length(one) + 1);
        size_t n = bytes_of(json_string_value(one), json_string_length(one), bytes);
        play(bytes, n, n, whole, sizeof whole);
        for (size_t k = long_run() ? 0 : 2; k < sizeof splits / sizeof *splits; k++) {
            play(bytes, n, splits[k], got, sizeof got);
            ck_assert_msg(strcmp(got, whole) == 0, "seed %zu: %s instead of %s when cut at %zu", i,
                          got, whole, splits[k]);
        }
        free(bytes);
    }
    json_decref(seeds);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("http_corpus");
    TCase *c = tcase_create("http_corpus");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_set_timeout(c, 600);
    tcase_add_test(c, http_corpus_llhttp);
    tcase_add_test(c, http_corpus_h2o);
    suite_add_tcase(s, c);
    return s;
}
