/* chat_rig: what the tests of chat templates share. */
#ifndef BATON_TESTS_TEXT_CHAT_RIG_H
#define BATON_TESTS_TEXT_CHAT_RIG_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/text/chat.h"
#include "tests/harness.h"

#define NOW 1735787045 /* 2025-01-02 03:04:05 UTC */

static inline bool is_set(const char *name)
{
    const char *v = getenv(name);
    return v && *v;
}

struct result {
    int rc;
    struct chat_output out;
    char err[256];
};

static inline struct result run(const char *source, size_t n, const json_t *context)
{
    struct chat_template *t = NULL;
    struct result r = {0};
    r.rc = chat_template_create(source, n, &t, r.err, sizeof r.err);
    if (r.rc == STATUS_OK)
        r.rc = chat_render(t, context, NOW, &r.out, r.err, sizeof r.err);
    chat_template_destroy(t);
    return r;
}

static inline void result_fini(struct result *r)
{
    if (r->rc == STATUS_OK)
        chat_output_fini(&r->out);
}

static inline json_t *parse(const char *text)
{
    json_error_t e;
    json_t *j = json_loads(text, 0, &e);
    ck_assert_msg(j != NULL, "%s", e.text);
    return j;
}

static inline json_t *load(const char *name)
{
    json_error_t e;
    json_t *j = json_load_file(test_data(name), JSON_ALLOW_NUL, &e);
    ck_assert_msg(j != NULL, "%s: %s", name, e.text);
    return j;
}

static inline void expect_failure(const char *source, size_t n, const char *context, int rc,
                                  const char *part)
{
    json_t *c = parse(context);
    struct result r = run(source, n, c);
    ck_assert_msg(r.rc == rc, "%.60s: %s, not %s (%s)", source, status_name(r.rc), status_name(rc),
                  r.err);
    ck_assert_msg(strstr(r.err, part) != NULL, "%.60s: '%s' lacks '%s'", source, r.err, part);
    json_decref(c);
}

/* -- the templates of the cache -- */

static const char *template_path(const char *name)
{
    static char path[4096];
    const char *cache = getenv("BATON_CACHE"), *home = getenv("HOME");
    if (cache)
        snprintf(path, sizeof path, "%s/templates/%s.jinja", cache, name);
    else
        snprintf(path, sizeof path, "%s/.cache/baton/templates/%s.jinja", home ? home : "", name);
    return path;
}

/* A template's source, to be freed; NULL when the cache lacks it. */
static inline char *template_source(const char *name, size_t *n)
{
    FILE *f = fopen(template_path(name), "rb");
    if (!f)
        return NULL;
    char *p = malloc(1 << 20);
    ck_assert_ptr_nonnull(p);
    *n = fread(p, 1, (1 << 20) - 1, f);
    p[*n] = '\0';
    fclose(f);
    return p;
}

/* The names of the vectors, sorted; n of them. */
static inline char **vector_names(size_t *n)
{
    DIR *dir = opendir(test_data("templates"));
    ck_assert_ptr_nonnull(dir);
    char **names = calloc(1000, sizeof *names);
    *n = 0;
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        char *end = strstr(e->d_name, ".cases.json");
        if (end && *n < 1000)
            names[(*n)++] = strndup(e->d_name, (size_t)(end - e->d_name));
    }
    closedir(dir);
    for (size_t i = 1; i < *n; i++)
        for (size_t k = i; k > 0 && strcmp(names[k - 1], names[k]) > 0; k--) {
            char *t = names[k];
            names[k] = names[k - 1];
            names[k - 1] = t;
        }
    return names;
}

static inline void names_free(char **names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(names[i]);
    free(names);
}

#endif
