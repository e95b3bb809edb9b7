/* text_bench: `baton-text bench MODEL TEXT…` and `baton-text bench --render TEMPLATE CONTEXT`: how
 * fast tokenising, streaming detokenising and rendering are here. tests/text/bench.sh puts other
 * programs beside it.
 *
 * A text is taken in documents of about 4 KiB, as prompts are. Each measurement takes at least a
 * second of this process's CPU time (others on the machine do not count), after one round that
 * warms up. */
#include "common/text/text_bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/text/chat.h"
#include "common/text/detok.h"

#define DOCUMENT 4096
#define FILE_MAX ((size_t)256 << 20)
#define SECOND   1000000000ull

static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

static int fail(const char *what, const char *reason)
{
    fprintf(stderr, "baton-text: %s: %s\n", what, reason);
    return EXIT_FAILURE;
}

static int read_file(const char *path, struct buf *out)
{
    char chunk[65536];
    size_t n;
    FILE *f = fopen(path, "rb");
    buf_init(out, FILE_MAX);
    if (!f)
        return fail(path, "cannot be opened");
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0)
        buf_append(out, chunk, n);
    bool ok = !ferror(f) && buf_ok(out);
    fclose(f);
    return ok ? EXIT_SUCCESS : fail(path, "cannot be read");
}

/* Tokens of all documents; the ids of the last round stay in ids. */
static size_t encode_all(const struct tokenizer *t, const struct buf *text, struct token_list *ids)
{
    ids->n = 0;
    for (size_t at = 0; at < text->len;) {
        size_t n = text->len - at < DOCUMENT ? text->len - at : DOCUMENT;
        while (at + n < text->len && (text->data[at + n] & 0xc0) == 0x80)
            n++; /* not inside a character */
        if (tokenizer_encode(t, text->data + at, n, 0, ids) != STATUS_OK)
            return 0;
        at += n;
    }
    return ids->n;
}

static size_t decode_all(const struct tokenizer *t, const struct token_list *ids, struct buf *out)
{
    struct detok d;
    buf_reset(out);
    detok_init(&d, t, false);
    for (size_t i = 0; i < ids->n; i++)
        detok_feed(&d, ids->ids[i], out);
    return out->len;
}

static int bench_text(const struct tokenizer *t, const char *path)
{
    struct buf text, out;
    struct token_list ids = {0};
    uint64_t encode_ns = 0, decode_ns = 0, rounds = 0, decodes = 0;
    int status = read_file(path, &text);
    buf_init(&out, FILE_MAX);
    if (status == EXIT_SUCCESS && encode_all(t, &text, &ids) == 0)
        status = fail(path, "has no tokens");
    for (uint64_t start = cpu_ns(); status == EXIT_SUCCESS && encode_ns < SECOND; rounds++) {
        encode_all(t, &text, &ids);
        encode_ns = cpu_ns() - start;
    }
    decode_all(t, &ids, &out);
    for (uint64_t start = cpu_ns(); status == EXIT_SUCCESS && decode_ns < SECOND; decodes++) {
        decode_all(t, &ids, &out);
        decode_ns = cpu_ns() - start;
    }
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    if (status == EXIT_SUCCESS)
        printf("%s: encode %.2f MB/s, %zu tokens of %zu bytes, stream %.2f M tokens/s\n", name,
               (double)text.len * (double)rounds / ((double)encode_ns / 1e9) / 1e6, ids.n, text.len,
               (double)ids.n * (double)decodes / ((double)decode_ns / 1e9) / 1e6);
    token_list_fini(&ids);
    buf_fini(&text);
    buf_fini(&out);
    return status;
}

int text_bench_tokenizer(const struct tokenizer *t, const char *const *paths, size_t n)
{
    int status = EXIT_SUCCESS;
    for (size_t i = 0; i < n && status == EXIT_SUCCESS; i++)
        status = bench_text(t, paths[i]);
    return status;
}

static int bench_render(const struct chat_template *t, const json_t *context)
{
    uint64_t ns = 0, rounds = 0;
    size_t bytes = 0;
    for (uint64_t start = cpu_ns(); ns < SECOND; rounds++) {
        char err[256] = "";
        struct chat_output out;
        if (chat_render(t, context, 0, &out, err, sizeof err) != STATUS_OK)
            return fail("the template refuses", err);
        bytes = out.text.len;
        chat_output_fini(&out);
        ns = cpu_ns() - start;
    }
    printf("render %.1f us, %zu bytes\n", (double)ns / (double)rounds / 1e3, bytes);
    return EXIT_SUCCESS;
}

int text_bench_render(const char *template_path, const char *context_path)
{
    struct buf source;
    struct chat_template *t = NULL;
    json_error_t at;
    char err[256] = "";
    int status = read_file(template_path, &source);
    json_t *context = json_load_file(context_path, JSON_ALLOW_NUL, &at);
    if (status == EXIT_SUCCESS && !context)
        status = fail(context_path, at.text);
    if (status == EXIT_SUCCESS &&
        chat_template_create(buf_str(&source), source.len, &t, err, sizeof err) != STATUS_OK)
        status = fail(template_path, err);
    if (status == EXIT_SUCCESS)
        status = bench_render(t, context);
    chat_template_destroy(t);
    json_decref(context);
    buf_fini(&source);
    return status;
}
