/* The JSON-Schema-Test-Suite against the schema compiler. An instance is written without blanks,
 * numbers in their shortest form, with its properties in every order: a valid one must be derived
 * in some order, an invalid one in none. Schemas may be refused, but not more than 40 in 100, and
 * only by one of the reasons below. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/json.h"
#include "common/text/grammar.h"
#include "tests/harness.h"

#define ORDERS_MAX 400

/* What a refused schema may name, by draft; everything else must be supported. */
static const char *const reasons[] = {"unevaluated", "$dynamicRef",        "leads out of",
                                      "uniqueItems", "minProperties",      "unknown $schema",
                                      "multipleOf",  "enum is not a list", NULL};

struct writer {
    const struct grammar *g;
    bool found;
    int left; /* orders to try */
};

static void write_number(const json_t *v, char out[64])
{
    double d = json_number_value(v);
    if (json_is_integer(v))
        snprintf(out, 64, "%lld", (long long)json_integer_value(v));
    else if (d == (double)(long long)d && d < 1e15 && d > -1e15)
        snprintf(out, 64, "%lld", (long long)d);
    else
        for (int n = 1; n <= 17; n++) {
            snprintf(out, 64, "%.*g", n, d);
            if (strtod(out, NULL) == d)
                break;
        }
}

/* A value and what follows it, in all orders: `rest` is called with each text. */
struct next {
    void (*call)(struct writer *w, char *text, size_t n, const struct next *self);
    const struct next *then;
    const json_t *v;
    size_t at;         /* array: index */
    unsigned long set; /* object: properties written */
    bool first;
};

static void put_value(struct writer *w, char *text, size_t n, const json_t *v,
                      const struct next *then);

#define TEXT_MAX 100000

static size_t add(char *text, size_t n, const char *p)
{
    size_t len = strlen(p);
    ck_assert_uint_lt(n + len, TEXT_MAX);
    memcpy(text + n, p, len);
    return n + len;
}

static size_t add_string(char *text, size_t n, const json_t *v)
{
    char *s = json_dumps(v, JSON_ENCODE_ANY);
    n = add(text, n, s);
    free(s);
    return n;
}

static void next_item(struct writer *w, char *text, size_t n, const struct next *self)
{
    if (self->at == json_array_size(self->v)) {
        n = add(text, n, "]");
        self->then->call(w, text, n, self->then);
        return;
    }
    if (self->at > 0)
        n = add(text, n, ",");
    struct next more = *self;
    more.at++;
    put_value(w, text, n, json_array_get(self->v, self->at), &more);
}

static void next_member(struct writer *w, char *text, size_t n, const struct next *self)
{
    size_t i = 0;
    const char *key;
    json_t *v;
    if (self->set == (1ul << json_object_size(self->v)) - 1) {
        n = add(text, n, "}");
        self->then->call(w, text, n, self->then);
        return;
    }
    json_object_foreach((json_t *)self->v, key, v)
    {
        size_t bit = i++;
        if (self->set >> bit & 1 || w->found || w->left <= 0)
            continue;
        struct next more = *self;
        more.set |= 1ul << bit;
        more.first = false;
        size_t m = self->first ? n : add(text, n, ",");
        json_t *name = json_string(key);
        m = add_string(text, m, name);
        json_decref(name);
        put_value(w, text, add(text, m, ":"), v, &more);
    }
}

static void put_value(struct writer *w, char *text, size_t n, const json_t *v,
                      const struct next *then)
{
    char number[64];
    struct next in = {.then = then, .v = v, .first = true};
    switch (json_typeof(v)) {
    case JSON_ARRAY:
        in.call = next_item;
        next_item(w, text, add(text, n, "["), &in);
        return;
    case JSON_OBJECT:
        in.call = next_member;
        ck_assert_uint_lt(json_object_size(v), 32);
        next_member(w, text, add(text, n, "{"), &in);
        return;
    case JSON_STRING:
        n = add_string(text, n, v);
        break;
    case JSON_INTEGER:
    case JSON_REAL:
        write_number(v, number);
        n = add(text, n, number);
        break;
    case JSON_TRUE:
        n = add(text, n, "true");
        break;
    case JSON_FALSE:
        n = add(text, n, "false");
        break;
    case JSON_NULL:
        n = add(text, n, "null");
        break;
    }
    then->call(w, text, n, then);
}

static void at_end(struct writer *w, char *text, size_t n, const struct next *self)
{
    bool yes = false;
    ck_assert_ok(grammar_accepts(w->g, text, n, &yes));
    w->found |= yes;
    w->left--;
}

static bool derives(const struct grammar *g, const json_t *v)
{
    static char text[TEXT_MAX];
    struct writer w = {.g = g, .left = ORDERS_MAX};
    struct next end = {.call = at_end};
    put_value(&w, text, 0, v, &end);
    return w.found;
}

struct tally {
    int supported, refused, wrong, cases;
};

static void run_group(const json_t *group, bool draft7, const char *file, struct tally *t)
{
    struct grammar_options o = {.compact = true,
                                .formats_ignored = true, /* as the required tests have it */
                                .dialect = draft7 ? GRAMMAR_DRAFT_7 : GRAMMAR_2020_12};
    char err[512], *source = json_dumps(json_object_get(group, "schema"), JSON_ENCODE_ANY);
    struct grammar *g = NULL;
    const json_t *test;
    size_t i;
    int rc = grammar_compile(GRAMMAR_SCHEMA, source, strlen(source), &o, &g, err, sizeof err);
    free(source);
    if (rc != STATUS_OK && rc != STATUS_RANGE) {
        int k = 0;
        while (reasons[k] && !strstr(err, reasons[k]))
            k++;
        ck_assert_msg(reasons[k], "%s: %s: refused: %s", file,
                      json_string_value(json_object_get(group, "description")), err);
        t->refused++;
        return;
    }
    t->supported++;
    json_array_foreach(json_object_get(group, "tests"), i, test)
    {
        bool valid = json_is_true(json_object_get(test, "valid"));
        bool got = rc == STATUS_OK && derives(g, json_object_get(test, "data"));
        t->cases++;
        if (got != valid) {
            t->wrong++;
            printf("%s: %s: %s: %s expected\n", file,
                   json_string_value(json_object_get(group, "description")),
                   json_string_value(json_object_get(test, "description")),
                   valid ? "valid" : "invalid");
        }
    }
    grammar_put(g);
}

static struct tally run_draft(const char *name, bool draft7)
{
    char path[800];
    struct tally t = {0};
    snprintf(path, sizeof path, "json-schema-test-suite/%s", name);
    char dir_path[512];
    snprintf(dir_path, sizeof dir_path, "%s", test_data(path));
    DIR *dir = opendir(dir_path);
    ck_assert_ptr_nonnull(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        size_t n = strlen(e->d_name), i;
        const json_t *group;
        if (n < 6 || strcmp(e->d_name + n - 5, ".json") != 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", dir_path, e->d_name);
        json_t *groups = json_load_file(path, JSON_ALLOW_NUL, NULL);
        ck_assert_msg(json_is_array(groups), "%s", path);
        json_array_foreach(groups, i, group) run_group(group, draft7, e->d_name, &t);
        json_decref(groups);
    }
    closedir(dir);
    printf("%s: %d groups supported, %d refused; %d cases, %d wrong\n", name, t.supported,
           t.refused, t.cases, t.wrong);
    return t;
}

START_TEST(suite_draft_7)
{
    struct tally t = run_draft("draft7", true);
    ck_assert_int_eq(t.wrong, 0);
    ck_assert_int_eq(t.supported + t.refused, 257);
    ck_assert_int_ge(t.supported, 239);
}
END_TEST

START_TEST(suite_2020_12)
{
    struct tally t = run_draft("draft2020-12", false);
    ck_assert_int_eq(t.wrong, 0);
    ck_assert_int_eq(t.supported + t.refused, 383);
    ck_assert_int_ge(t.supported, 262);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("schema suite");
    TCase *c = tcase_create("suite");
    tcase_set_timeout(c, 300);
    tcase_add_test(c, suite_draft_7);
    tcase_add_test(c, suite_2020_12);
    suite_add_tcase(s, c);
    return s;
}
