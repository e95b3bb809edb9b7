/* text_render: `baton-text render TEMPLATE < context.json`: what a chat template gives for a
 * context.
 *
 * Prints the text and nothing else; with --spans one line per span instead, marked T (the template
 * wrote it) or C (it came from the context), as a JSON string. Exit status 1 and the reason when
 * the template cannot be compiled or refuses.
 *
 * `baton-text render --lines CONTEXT < templates` renders many: a line of input is a template as a
 * JSON string, a line of output {"text": …} or {"error": …}. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/text/chat.h"
#include "common/text/text_render.h"

#define INPUT_MAX ((size_t)64 << 20)

static int fail(const char *what, const char *reason)
{
    fprintf(stderr, "baton-text: %s: %s\n", what, reason);
    return EXIT_FAILURE;
}

static int read_all(FILE *f, struct buf *in)
{
    buf_init(in, INPUT_MAX);
    for (;;) {
        char chunk[65536];
        size_t n = fread(chunk, 1, sizeof chunk, f);
        if (n == 0)
            break;
        buf_append(in, chunk, n);
    }
    return ferror(f) ? STATUS_IO : buf_ok(in) ? STATUS_OK : STATUS_LIMIT;
}

static int load_template(const char *path, struct chat_template **out)
{
    struct buf source;
    char err[512] = "";
    FILE *f = fopen(path, "rb");
    if (!f)
        return fail(path, "cannot be opened");
    int rc = read_all(f, &source);
    fclose(f);
    if (rc == STATUS_OK)
        rc = chat_template_create(buf_str(&source), source.len, out, err, sizeof err);
    buf_fini(&source);
    return rc == STATUS_OK ? EXIT_SUCCESS : fail(path, err[0] ? err : status_text(rc));
}

static void print_spans(const struct chat_output *out)
{
    for (size_t i = 0; i < out->n_spans; i++) {
        const struct chat_span *s = &out->spans[i];
        json_t *text = json_stringn_nocheck(out->text.data + s->begin, s->end - s->begin);
        char *line = text ? json_dumps(text, JSON_ENCODE_ANY) : NULL;
        printf("%c %s\n", s->from_template ? 'T' : 'C', line ? line : "?");
        free(line);
        json_decref(text);
    }
}

/* {"text": …} or {"error": …} for one template. */
static json_t *render_line(const json_t *source, const json_t *context, int64_t now)
{
    char err[512] = "";
    struct chat_template *t = NULL;
    struct chat_output out;
    json_t *line = json_object();
    int rc = chat_template_create(json_string_value(source), json_string_length(source), &t, err,
                                  sizeof err);
    if (rc == STATUS_OK)
        rc = chat_render(t, context, now, &out, err, sizeof err);
    if (rc == STATUS_OK) {
        json_object_set_new(line, "text", json_stringn_nocheck(buf_str(&out.text), out.text.len));
        chat_output_fini(&out);
    } else {
        json_object_set_new(line, "error", json_string(err[0] ? err : status_text(rc)));
    }
    chat_template_destroy(t);
    return line;
}

static int render_lines(const char *path, int64_t now)
{
    json_error_t at;
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    int status = EXIT_SUCCESS;
    json_t *context = json_load_file(path, JSON_ALLOW_NUL, &at);
    if (!context)
        return fail(path, at.text);
    while (status == EXIT_SUCCESS && (n = getline(&line, &cap, stdin)) > 0) {
        json_t *source = json_loadb(line, (size_t)n, JSON_ALLOW_NUL | JSON_DECODE_ANY, &at);
        if (json_is_string(source)) {
            json_t *result = render_line(source, context, now);
            char *text = json_dumps(result, JSON_COMPACT);
            if (!text || puts(text) < 0)
                status = fail("standard output", "cannot be written");
            free(text);
            json_decref(result);
        } else {
            status = fail("standard input", "a line is not a JSON string");
        }
        json_decref(source);
    }
    free(line);
    json_decref(context);
    return fflush(stdout) == 0 ? status : fail("standard output", "cannot be written");
}

static int render(const struct chat_template *t, const char *path, int64_t now, bool spans)
{
    struct buf in;
    char err[512] = "";
    json_error_t at;
    int rc = read_all(stdin, &in);
    json_t *context =
        rc == STATUS_OK ? json_loadb(buf_str(&in), in.len, JSON_ALLOW_NUL, &at) : NULL;
    buf_fini(&in);
    if (rc != STATUS_OK)
        return fail("standard input", status_text(rc));
    if (!context)
        return fail("standard input is not JSON", at.text);
    struct chat_output out;
    rc = chat_render(t, context, now, &out, err, sizeof err);
    json_decref(context);
    if (rc != STATUS_OK)
        return fail(path, err[0] ? err : status_text(rc));
    if (spans)
        print_spans(&out);
    else
        fwrite(buf_str(&out.text), 1, out.text.len, stdout);
    chat_output_fini(&out);
    return fflush(stdout) == 0 ? EXIT_SUCCESS : fail("standard output", "cannot be written");
}

int text_render_main(int argc, char **argv)
{
    const char *path = NULL;
    int64_t now = clock_unix_s();
    bool spans = false, lines = false, usage = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--spans") == 0)
            spans = true;
        else if (strcmp(argv[i], "--lines") == 0)
            lines = true;
        else if (strcmp(argv[i], "--now") == 0 && i + 1 < argc)
            now = strtoll(argv[++i], NULL, 10);
        else if (argv[i][0] == '-' || path)
            usage = true;
        else
            path = argv[i];
    }
    if (usage || !path || (lines && spans)) {
        fprintf(stderr, "usage: baton-text render [--spans] [--now SECONDS] TEMPLATE < "
                        "context.json\n"
                        "       baton-text render --lines [--now SECONDS] CONTEXT < templates\n");
        return 2;
    }
    if (lines)
        return render_lines(path, now);
    struct chat_template *t = NULL;
    int status = load_template(path, &t);
    if (status == EXIT_SUCCESS)
        status = render(t, path, now, spans);
    chat_template_destroy(t);
    return status;
}
