/* model: opens a GGUF file or a Hugging Face directory as one struct model.
 *
 * Steps, each of which may refuse: map the file; prove the container (gguf.c, safetensors.c); read
 * the hyperparameters (params_gguf.c, hfconfig.c); give every tensor its role (layers.c); take the
 * fingerprint; look at the file once more. Nothing is copied but names and tables.
 *
 * A Hugging Face directory needs config.json and, for tensors, model.safetensors or an index of
 * shards (shards.c); tokenizer.json, tokenizer_config.json and chat_template.jinja are looked at
 * for the vocabulary and the template. No other name is ever opened.
 *
 * Files that exceed the machine's memory are refused before any tensor is read.
 *
 * With MODEL_VOCAB_ONLY no tensor is looked at: a GGUF file's table is still proven, so that a
 * truncated file is refused here too, and safetensors are not opened at all. The fingerprint is 0
 * then. */
#include "common/model/model.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/log.h"
#include "common/model/model_internal.h"
#include "common/model/tensor.h"

#define NAME_MAX_BYTES 128

static int check_range(const char *path, const char *what, uint64_t v, uint64_t min, uint64_t max,
                       char *err, size_t errlen)
{
    if (v >= min && v <= max)
        return 0;
    return model_error(err, errlen, STATUS_RANGE, "%s: %s is %llu, not %llu to %llu", path, what,
                       (unsigned long long)v, (unsigned long long)min, (unsigned long long)max);
}

int model_params_check(const struct model_params *p, const char *path, char *err, size_t errlen)
{
    TRY(check_range(path, "the number of layers", p->n_layers, 1, 1024, err, errlen));
    TRY(check_range(path, "the hidden size", p->hidden, 1, 1 << 17, err, errlen));
    TRY(check_range(path, "the number of heads", p->n_heads, 1, 1024, err, errlen));
    TRY(check_range(path, "the number of KV heads", p->n_kv_heads, 1, p->n_heads, err, errlen));
    TRY(check_range(path, "the head size", p->head_dim, 2, 1024, err, errlen));
    TRY(check_range(path, "the feed-forward size", p->ffn, 1, 1 << 20, err, errlen));
    TRY(check_range(path, "the vocabulary", p->vocab, 1, 1 << 22, err, errlen));
    TRY(check_range(path, "the context length", p->context, 1, 1 << 27, err, errlen));
    if (p->n_heads % p->n_kv_heads)
        return model_error(err, errlen, STATUS_RANGE, "%s: %u heads cannot share %u KV heads", path,
                           p->n_heads, p->n_kv_heads);
    if (p->head_dim % 2)
        return model_error(err, errlen, STATUS_RANGE, "%s: the head size %u is odd", path,
                           p->head_dim);
    if (!(p->rms_eps > 0 && p->rms_eps <= 0.1f))
        return model_error(err, errlen, STATUS_RANGE, "%s: the RMS norm's epsilon is %g", path,
                           (double)p->rms_eps);
    if (!(p->rope_theta >= 1 && isfinite(p->rope_theta)))
        return model_error(err, errlen, STATUS_RANGE, "%s: the RoPE base is %g", path,
                           (double)p->rope_theta);
    return model_rope_check(p, path, err, errlen);
}

static int no_memory(const struct model_source *s, char *err, size_t errlen)
{
    return model_error(err, errlen, STATUS_NOMEM, "%s: out of memory", s->path);
}

/* ---- tensors of both containers ---------------------------------------------------------------
 */

static int list_gguf(struct model_source *s, char *err, size_t errlen)
{
    s->n_tensors = gguf_n_tensors(s->gguf);
    s->tensors = mem_array(s->n_tensors, sizeof *s->tensors);
    if (!s->tensors)
        return no_memory(s, err, errlen);
    for (size_t i = 0; i < s->n_tensors; i++) {
        const struct gguf_tensor *g = gguf_tensor_at(s->gguf, i);
        struct model_tensor *x = &s->tensors[i];
        x->t = (struct tensor){g->name,
                               (enum tensor_type)g->type,
                               g->dims[1] * g->dims[2] * g->dims[3],
                               g->dims[0],
                               g->data,
                               g->bytes};
        x->type_name = tensor_any_layout(g->type)->name;
        x->supported = tensor_type_layout(g->type) != NULL;
        x->n_dims = g->n_dims;
    }
    return 0;
}

static void list_part(const struct safetensors *part, struct model_tensor *x)
{
    for (size_t i = 0; i < part->n; i++, x++) {
        const struct safetensor *t = &part->tensors[i];
        uint64_t rows = 1; /* no overflow unless a dimension is 0, and then no role fits */
        for (uint32_t d = 0; d + 1 < t->n_dims; d++)
            rows *= t->dims[d];
        x->t = (struct tensor){t->name, (enum tensor_type)t->type,
                               rows,    t->n_dims ? t->dims[t->n_dims - 1] : 1,
                               t->data, t->bytes};
        x->type_name = t->dtype;
        x->supported = t->type != UINT32_MAX;
        x->n_dims = t->n_dims;
    }
}

static int by_name(const void *x, const void *y)
{
    const struct model_tensor *a = x, *b = y;
    return strcmp(a->t.name, b->t.name);
}

/* Names are unique within a file, and the index has each once. */
static int list_safetensors(struct model_source *s, char *err, size_t errlen)
{
    for (size_t i = 0; i < s->n_parts; i++)
        s->n_tensors += s->parts[i].safetensors.n;
    s->tensors = mem_array(s->n_tensors, sizeof *s->tensors);
    if (!s->tensors)
        return no_memory(s, err, errlen);
    struct model_tensor *x = s->tensors;
    for (size_t i = 0; i < s->n_parts; x += s->parts[i++].safetensors.n)
        list_part(&s->parts[i].safetensors, x);
    qsort(s->tensors, s->n_tensors, sizeof *s->tensors, by_name);
    return 0;
}

/* ---- memory -----------------------------------------------------------------------------------
 */

/* What this machine or container can hold at most. */
static uint64_t memory_max(void)
{
    uint64_t pages = (uint64_t)sysconf(_SC_PHYS_PAGES), page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t max = pages * page, limit;
    FILE *f = fopen("/sys/fs/cgroup/memory.max", "r"); /* "max" or a number */
    if (f && fscanf(f, "%" SCNu64, &limit) == 1 && limit < max)
        max = limit;
    if (f)
        fclose(f);
    return max;
}

/* Packed weights take about what the file has; a model beyond memory would be packed for minutes
 * and then killed. */
static int check_memory(const struct model *m, const struct model_source *s, char *err,
                        size_t errlen)
{
    uint64_t max = memory_max();
    if (m->file_bytes <= max)
        return 0;
    return model_error(err, errlen, STATUS_NOMEM,
                       "%s: %.1f GB of tensors, more than the %.1f GB of memory here", s->path,
                       (double)m->file_bytes / 1e9, (double)max / 1e9);
}

/* ---- GGUF -------------------------------------------------------------------------------------
 */

static bool presentable(const char *p, size_t n)
{
    if (n == 0 || n > NAME_MAX_BYTES)
        return false;
    for (size_t i = 0; i < n; i++)
        if (p[i] < ' ' || p[i] > '~')
            return false;
    return true;
}

char *model_base_name(const char *path)
{
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    if (end - begin > 5 && memcmp(path + end - 5, ".gguf", 5) == 0)
        end -= 5;
    char *name = mem_array(end - begin + 1, 1);
    if (name)
        memcpy(name, path + begin, end - begin);
    return name;
}

static int gguf_texts(struct model *m, struct model_source *s, char *err, size_t errlen)
{
    static const char name[] = "general.name", template[] = "tokenizer.chat_template";
    struct gguf_string text;
    if (gguf_string(s->gguf, name, &text) == 0 && presentable(text.p, text.n)) {
        m->name = mem_array(text.n + 1, 1);
        if (m->name)
            memcpy(m->name, text.p, text.n);
    } else {
        m->name = model_base_name(s->path);
    }
    if (!m->name)
        return no_memory(s, err, errlen);
    int rc = gguf_string(s->gguf, template, &text);
    if (rc == STATUS_NOTFOUND)
        return 0;
    if (rc)
        return gguf_explain(s->gguf, template, rc, "a string", err, errlen);
    if (text.n && memchr(text.p, 0, text.n))
        return model_error(err, errlen, STATUS_FORMAT, "%s: key '%s' has a NUL byte", s->path,
                           template);
    m->chat_template = mem_array(text.n + 1, 1);
    if (!m->chat_template)
        return no_memory(s, err, errlen);
    if (text.n)
        memcpy(m->chat_template, text.p, text.n);
    return 0;
}

static int open_gguf(struct model *m, struct model_source *s, bool vocab_only, char *err,
                     size_t errlen)
{
    TRY(model_file_open(s->path, &s->file, err, errlen));
    m->file_bytes = s->file.size;
    TRY(gguf_open(&s->file, &s->gguf, err, errlen));
    TRY(model_params_gguf(s->gguf, s->path, vocab_only, &m->params, err, errlen));
    TRY(gguf_texts(m, s, err, errlen));
    if (vocab_only)
        return 0;
    if (gguf_n_tensors(s->gguf) == 0)
        return model_error(err, errlen, STATUS_FORMAT,
                           "%s: has no tensors, only hyperparameters and a vocabulary", s->path);
    TRY(check_memory(m, s, err, errlen));
    TRY(list_gguf(s, err, errlen));
    return model_bind_layers(m, s, false, err, errlen);
}

/* ---- Hugging Face directory -------------------------------------------------------------------
 */

static int open_directory(struct model *m, struct model_source *s, bool vocab_only, char *err,
                          size_t errlen)
{
    bool tie_known;
    if (!(s->dir = mem_strdup(s->path)))
        return no_memory(s, err, errlen);
    TRY(model_params_hf(s->dir, vocab_only, &m->params, &tie_known, err, errlen));
    TRY(model_template_hf(s->dir, &m->chat_template, err, errlen));
    if (!(m->name = model_base_name(s->path)))
        return no_memory(s, err, errlen);
    if (vocab_only)
        return 0;
    TRY(model_parts_open(s, err, errlen));
    for (size_t i = 0; i < s->n_parts; i++)
        m->file_bytes += s->parts[i].file.size;
    TRY(check_memory(m, s, err, errlen));
    TRY(list_safetensors(s, err, errlen));
    return model_bind_layers(m, s, tie_known, err, errlen);
}

/* ---- open and close ---------------------------------------------------------------------------
 */

/* "llama, 30 layers, 134.5 M parameters, 98.4 MB (211 Q4_1, 61 F32)". */
static void report(const struct model *m, const struct model_source *s)
{
    static const char *const names[] = {"llama", "qwen2", "qwen3"};
    static const uint32_t types[] = {TENSOR_F32,  TENSOR_F16,  TENSOR_BF16, TENSOR_Q8_0,
                                     TENSOR_Q4_0, TENSOR_Q4_1, TENSOR_Q5_0, TENSOR_Q5_1,
                                     TENSOR_Q4_K, TENSOR_Q5_K, TENSOR_Q6_K};
    struct buf mix;
    uint64_t params = 0;
    buf_init(&mix, 1024);
    for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
        size_t n = 0;
        for (size_t i = 0; i < s->n_tensors; i++)
            n += s->tensors[i].used && s->tensors[i].t.type == types[k];
        if (n)
            buf_printf(&mix, "%s%zu %s", mix.len ? ", " : "", n,
                       tensor_type_layout(types[k])->name);
    }
    for (size_t i = 0; i < s->n_tensors; i++)
        if (s->tensors[i].used)
            params += s->tensors[i].t.rows * s->tensors[i].t.cols;
    log_info("model %s: %s, %u layers, %.1f M parameters, %.1f MB mapped (%s)%s", m->name,
             names[m->params.arch], m->params.n_layers, (double)params / 1e6,
             (double)m->file_bytes / 1e6, buf_str(&mix), m->params.tied_head ? ", tied head" : "");
    buf_fini(&mix);
}

int model_open(const char *path, unsigned flags, struct model **out, char *err, size_t errlen)
{
    bool vocab_only = flags & MODEL_VOCAB_ONLY;
    struct stat st;
    if (stat(path, &st) != 0)
        return model_error(err, errlen, status_from_errno(errno), "%s: %s", path, strerror(errno));
    struct model *m = mem_array(1, sizeof *m);
    struct model_source *s = mem_array(1, sizeof *s);
    if (!m || !s || !(s->path = mem_strdup(path))) {
        free(m);
        free(s);
        return model_error(err, errlen, STATUS_NOMEM, "%s: out of memory", path);
    }
    m->opaque = s;
    s->file.fd = -1;
    arena_init(&s->arena, 0);
    int rc = S_ISDIR(st.st_mode) ? open_directory(m, s, vocab_only, err, errlen)
                                 : open_gguf(m, s, vocab_only, err, errlen);
    if (!rc && !vocab_only) {
        rc = model_check(m, err, errlen); /* before tensor data is touched for the first time */
        if (!rc)
            m->fingerprint = model_fingerprint(m, s);
    }
    if (!rc)
        rc = model_check(m, err, errlen);
    if (rc) {
        model_close(m);
        return rc;
    }
    if (!vocab_only) {
        if (s->file.fd >= 0)
            madvise((void *)(uintptr_t)s->file.data, s->file.size, MADV_WILLNEED);
        for (size_t i = 0; i < s->n_parts; i++)
            madvise((void *)(uintptr_t)s->parts[i].file.data, s->parts[i].file.size, MADV_WILLNEED);
        report(m, s);
    }
    if (errlen)
        *err = 0; /* files that may be missing left their message */
    *out = m;
    return 0;
}

int model_check(const struct model *m, char *err, size_t errlen)
{
    const struct model_source *s = model_source(m);
    if (s->file.fd >= 0)
        TRY(model_file_check(&s->file, err, errlen));
    for (size_t i = 0; i < s->n_parts; i++)
        TRY(model_file_check(&s->parts[i].file, err, errlen));
    return 0;
}

void model_close(struct model *m)
{
    if (!m)
        return;
    struct model_source *s = m->opaque;
    model_parts_close(s);
    gguf_close(s->gguf);
    if (s->file.fd >= 0)
        model_file_close(&s->file);
    arena_fini(&s->arena);
    free(s->tensors);
    free(s->dir);
    free(s->path);
    free(s);
    free(m->name);
    free(m->chat_template);
    free(m);
}
