/* models: see models.h. */
#include "routerd/models.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/model/model.h"
#include "common/text/chat.h"

#define TEMPLATE_MAX ((size_t)1 << 20)

/* The whole file as a string, to be freed. */
static char *read_template(const char *path, char *err, size_t errlen)
{
    struct buf text;
    char chunk[4096];
    size_t n;
    FILE *f = fopen(path, "rb");
    buf_init(&text, TEMPLATE_MAX);
    while (f && (n = fread(chunk, 1, sizeof chunk, f)) > 0)
        buf_append(&text, chunk, n);
    bool ok = f && !ferror(f) && buf_ok(&text);
    if (!ok)
        snprintf(err, errlen, "chat_template = %s: %s", path,
                 f && !buf_ok(&text) ? "larger than 1 MiB" : strerror(errno));
    if (f)
        fclose(f);
    char *source = ok ? buf_take(&text) : NULL;
    buf_fini(&text);
    return ok && !source ? mem_strdup("") : source;
}

/* The chat template, and what it says about thinking and tool calls. */
static int load_template(struct served *m, const struct model_settings *s, char *err, size_t errlen)
{
    char why[300];
    char *own = NULL;
    const char *source = m->model->chat_template;
    if (s->chat_template && *s->chat_template) {
        own = read_template(s->chat_template, err, errlen);
        if (!own)
            return STATUS_INVALID;
        source = own;
    }
    if (!source) {
        source = chat_default_template();
        log_info("%s has no chat template: ChatML is used", m->name);
    }
    int rc = chat_template_create(source, strlen(source), &m->chat_template, why, sizeof why);
    if (rc != STATUS_OK)
        snprintf(err, errlen, "%s: chat template: %s", own ? s->chat_template : s->model, why);
    if (rc == STATUS_OK) {
        rc = reply_profile_init(&m->profile, source, m->chat_template, m->tokenizer,
                                s->reasoning_format, s->tool_format);
        if (rc == STATUS_INVALID)
            snprintf(err, errlen, "reasoning_format = %s or tool_format = %s: no such format",
                     s->reasoning_format, s->tool_format);
    }
    free(own);
    TRY(rc);
    log_info("model %s, %u ids; thinking: %s; tool calls: %s", m->name, m->vocab,
             m->profile.reasoning ? m->profile.reasoning->name : "none",
             m->profile.tools ? toolcall_format_name(m->profile.tools) : "none");
    return think_efforts_parse(s->reasoning_efforts, &m->efforts, err, errlen);
}

static int take_names(struct models *ms, struct served *m, const struct model_settings *s,
                      char *err, size_t errlen)
{
    size_t n_aliases = 0;
    if (s->model_name && strlen(s->model_name) > MODEL_NAME_MAX) {
        snprintf(err, errlen, "model_name has more than %d bytes", MODEL_NAME_MAX);
        return STATUS_LIMIT;
    }
    char *of_path = model_base_name(s->model);
    if (!of_path)
        return STATUS_NOMEM;
    snprintf(m->name, sizeof m->name, "%s", s->model_name ? s->model_name : of_path);
    free(of_path);
    for (const char *p = s->aliases ? s->aliases : ""; *p;) {
        p += strspn(p, ", \t");
        size_t n = strcspn(p, ",");
        while (n && (p[n - 1] == ' ' || p[n - 1] == '\t'))
            n--;
        if (n_aliases == MODEL_ALIASES_MAX) {
            snprintf(err, errlen, "model_aliases: at most %d", MODEL_ALIASES_MAX);
            return STATUS_LIMIT;
        }
        if (n && !(m->aliases[n_aliases++] = strndup(p, n)))
            return STATUS_NOMEM;
        p += strcspn(p, ",");
    }
    for (size_t i = 0; i <= n_aliases; i++) {
        const char *name = i ? m->aliases[i - 1] : m->name;
        if (models_find(ms, name) < 0)
            continue;
        snprintf(err, errlen, "two models are called '%.200s': set model_name", name);
        return STATUS_EXISTS;
    }
    return STATUS_OK;
}

static int load_one(struct models *ms, const struct model_settings *s, char *err, size_t errlen)
{
    struct served *m = &ms->list[ms->n];
    if (ms->n == MODELS_MAX) {
        snprintf(err, errlen, "more than %d models", MODELS_MAX);
        return STATUS_LIMIT;
    }
    int rc = take_names(ms, m, s, err, errlen);
    ms->n++; /* models_destroy cleans up */
    if (rc == STATUS_NOMEM)
        snprintf(err, errlen, "out of memory");
    TRY(rc);
    TRY(model_open(s->model, MODEL_VOCAB_ONLY, &m->model, err, errlen));
    TRY(model_tokenizer(m->model, &m->tokenizer, err, errlen));
    m->pool_last = s->pooling == 1;
    m->vocab = (uint32_t)tokenizer_size(m->tokenizer);
    m->context = m->model->params.context;
    if (s->context_length && (m->context == 0 || s->context_length < m->context))
        m->context = (uint32_t)s->context_length;
    return load_template(m, s, err, errlen);
}

static int load_file(struct models *ms, const char *path, char *err, size_t errlen)
{
    struct model_settings s;
    int rc = config_load_file("routerd", model_keys, model_keys_n, &s, path);
    if (rc != STATUS_OK) {
        snprintf(err, errlen, "models: %s cannot be used", path);
        return rc;
    }
    if (!s.model) {
        snprintf(err, errlen, "%s: no model: set model = PATH", path);
        rc = STATUS_INVALID;
    }
    if (rc == STATUS_OK)
        rc = load_one(ms, &s, err, errlen);
    config_fini(model_keys, model_keys_n, &s);
    return rc;
}

int models_load(const struct settings *s, struct models **out, char *err, size_t errlen)
{
    struct models *ms = mem_array(1, sizeof *ms);
    if (!ms) {
        snprintf(err, errlen, "out of memory");
        return STATUS_NOMEM;
    }
    ms->created = clock_unix_s();
    int rc = s->m.model ? load_one(ms, &s->m, err, errlen) : STATUS_OK;
    for (const char *p = s->models ? s->models : ""; *p && rc == STATUS_OK;) {
        char path[4096];
        p += strspn(p, ", \t");
        int n = (int)strcspn(p, ",");
        snprintf(path, sizeof path, "%.*s", n, p);
        p += n;
        for (n = (int)strlen(path); n && (path[n - 1] == ' ' || path[n - 1] == '\t');)
            path[--n] = '\0';
        if (n)
            rc = load_file(ms, path, err, errlen);
    }
    if (rc == STATUS_OK && ms->n == 0) {
        snprintf(err, errlen, "no model: set model = PATH (a GGUF file or a model directory)");
        rc = STATUS_INVALID;
    }
    if (rc != STATUS_OK) {
        models_destroy(ms);
        return rc;
    }
    *out = ms;
    return STATUS_OK;
}

void models_destroy(struct models *ms)
{
    if (!ms)
        return;
    for (uint32_t i = 0; i < ms->n; i++) {
        struct served *m = &ms->list[i];
        for (size_t k = 0; m->aliases[k]; k++)
            free(m->aliases[k]);
        reply_profile_fini(&m->profile);
        chat_template_destroy(m->chat_template);
        tokenizer_destroy(m->tokenizer);
        if (m->model)
            model_close(m->model);
    }
    free(ms);
}

bool model_is_called(const char *name, char *const *aliases, const char *asked)
{
    if (strcmp(name, asked) == 0)
        return true;
    for (; aliases && *aliases; aliases++) {
        if (strcmp(*aliases, asked) == 0)
            return true;
    }
    return false;
}

int models_find(const struct models *ms, const char *name)
{
    for (uint32_t i = 0; i < ms->n; i++) {
        if (model_is_called(ms->list[i].name, ms->list[i].aliases, name))
            return (int)i;
    }
    return -1;
}
