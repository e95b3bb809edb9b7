/* baton-text: the text room from the command line.
 *
 *   baton-text encode [--bos] [--special] MODEL < text     ids, separated by blanks, on one line
 *   baton-text decode MODEL < ids                          the raw bytes they stand for
 *   baton-text render TEMPLATE < context.json              what a chat template gives
 *   baton-text bench MODEL TEXT…                           speed (text_bench.c)
 *
 * All of standard input is one text. MODEL is a GGUF file, also a vocabulary alone, or a Hugging
 * Face directory. Errors are one line on standard error and exit status 1; wrong usage is 2. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/model/model.h"
#include "common/text/text_bench.h"
#include "common/text/text_grammar.h"
#include "common/text/text_render.h"
#include "common/text/tokenizer.h"

#define INPUT_MAX ((size_t)1 << 30)

static int fail(const char *what)
{
    fprintf(stderr, "baton-text: %s\n", what);
    return EXIT_FAILURE;
}

static int read_input(struct buf *in)
{
    buf_init(in, INPUT_MAX);
    for (;;) {
        char chunk[65536];
        size_t n = fread(chunk, 1, sizeof chunk, stdin);
        if (n == 0)
            break;
        buf_append(in, chunk, n);
    }
    if (ferror(stdin))
        return fail("standard input cannot be read");
    return buf_ok(in) ? EXIT_SUCCESS : fail("standard input is larger than 1 GiB");
}

static int write_output(const char *p, size_t n)
{
    if (fwrite(p, 1, n, stdout) != n || fflush(stdout) != 0)
        return fail("standard output cannot be written");
    return EXIT_SUCCESS;
}

static struct tokenizer *open_tokenizer(const char *path)
{
    char err[1024] = "";
    struct model *model = NULL;
    struct tokenizer *t = NULL;
    int rc = model_open(path, MODEL_VOCAB_ONLY, &model, err, sizeof err);
    if (rc == STATUS_OK)
        rc = model_tokenizer(model, &t, err, sizeof err);
    if (rc != STATUS_OK)
        fail(err[0] ? err : status_text(rc));
    model_close(model);
    return t;
}

static int encode_text(const struct tokenizer *t, const struct buf *in, unsigned flags)
{
    struct token_list ids = {0};
    int rc = tokenizer_encode(t, buf_str(in), in->len, flags, &ids);
    if (rc != STATUS_OK) {
        token_list_fini(&ids);
        return fail(status_text(rc));
    }
    struct buf line;
    buf_init(&line, SIZE_MAX);
    for (size_t i = 0; i < ids.n; i++)
        buf_printf(&line, "%s%d", i ? " " : "", ids.ids[i]);
    buf_putc(&line, '\n');
    token_list_fini(&ids);
    int status =
        buf_ok(&line) ? write_output(buf_str(&line), line.len) : fail(status_text(STATUS_NOMEM));
    buf_fini(&line);
    return status;
}

static int encode_main(int argc, char **argv)
{
    unsigned flags = 0;
    const char *path = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--bos") == 0)
            flags |= TOKENIZE_BOS;
        else if (strcmp(argv[i], "--special") == 0)
            flags |= TOKENIZE_SPECIAL;
        else if (argv[i][0] == '-' || path)
            path = "";
        else
            path = argv[i];
        if (path && !path[0])
            break;
    }
    if (!path || !path[0]) {
        fprintf(stderr, "usage: baton-text encode [--bos] [--special] MODEL < text\n");
        return 2;
    }
    struct tokenizer *t = open_tokenizer(path);
    if (!t)
        return EXIT_FAILURE;
    struct buf in;
    int status = read_input(&in);
    if (status == EXIT_SUCCESS)
        status = encode_text(t, &in, flags);
    buf_fini(&in);
    tokenizer_destroy(t);
    return status;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static int parse_ids(const struct tokenizer *t, const char *p, struct token_list *ids)
{
    for (;;) {
        while (is_blank(*p))
            p++;
        if (!*p)
            return EXIT_SUCCESS;
        char *end;
        errno = 0;
        long id = strtol(p, &end, 10);
        if (end == p || (*end && !is_blank(*end)) || errno || id < 0 ||
            (size_t)id >= tokenizer_size(t)) {
            char what[96];
            snprintf(what, sizeof what, "'%.*s' is not a token id below %zu",
                     (int)(strcspn(p, " \n\t\r") < 32 ? strcspn(p, " \n\t\r") : 32), p,
                     tokenizer_size(t));
            return fail(what);
        }
        if (ids->n == ids->cap) {
            size_t cap = ids->cap * 2 + 64;
            int32_t *bigger = realloc(ids->ids, cap * sizeof *bigger);
            if (!bigger)
                return fail(status_text(STATUS_NOMEM));
            ids->ids = bigger;
            ids->cap = cap;
        }
        ids->ids[ids->n++] = (int32_t)id;
        p = end;
    }
}

static int decode_main(int argc, char **argv)
{
    if (argc != 2 || argv[1][0] == '-') {
        fprintf(stderr, "usage: baton-text decode MODEL < ids\n");
        return 2;
    }
    struct tokenizer *t = open_tokenizer(argv[1]);
    if (!t)
        return EXIT_FAILURE;
    struct buf in, out;
    struct token_list ids = {0};
    buf_init(&out, SIZE_MAX);
    int status = read_input(&in);
    if (status == EXIT_SUCCESS)
        status = parse_ids(t, buf_str(&in), &ids);
    if (status == EXIT_SUCCESS) {
        tokenizer_decode(t, ids.ids, ids.n, true, &out);
        status =
            buf_ok(&out) ? write_output(buf_str(&out), out.len) : fail(status_text(STATUS_NOMEM));
    }
    token_list_fini(&ids);
    buf_fini(&in);
    buf_fini(&out);
    tokenizer_destroy(t);
    return status;
}

static int bench_main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "--render") == 0)
        return text_bench_render(argv[2], argv[3]);
    if (argc < 3 || argv[1][0] == '-') {
        fprintf(stderr, "usage: baton-text bench MODEL TEXT...\n"
                        "       baton-text bench --render TEMPLATE CONTEXT\n");
        return 2;
    }
    struct tokenizer *t = open_tokenizer(argv[1]);
    if (!t)
        return EXIT_FAILURE;
    int status = text_bench_tokenizer(t, (const char *const *)argv + 2, (size_t)argc - 2);
    tokenizer_destroy(t);
    return status;
}

static int grammar_main(int argc, char **argv)
{
    struct tokenizer *t = argc == 2 ? open_tokenizer(argv[1]) : NULL;
    if (argc > 2) {
        fprintf(stderr, "usage: baton-text grammar [MODEL] < questions\n");
        return 2;
    }
    if (argc == 2 && !t)
        return EXIT_FAILURE;
    int status = text_grammar_serve(t, stdin, stdout);
    tokenizer_destroy(t);
    return status;
}

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *usage;
} commands[] = {
    {"encode", encode_main, "encode [--bos] [--special] MODEL < text"},
    {"decode", decode_main, "decode MODEL < ids"},
    {"render", text_render_main, "render [--spans] [--now SECONDS] TEMPLATE < context.json"},
    {"bench", bench_main, "bench MODEL TEXT..."},
    {"grammar", grammar_main, "grammar [MODEL] < questions"},
};

int main(int argc, char **argv)
{
    size_t n = sizeof commands / sizeof *commands;
    for (size_t i = 0; argc > 1 && i < n; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    bool help = argc > 1 && strcmp(argv[1], "--help") == 0;
    for (size_t i = 0; i < n; i++)
        fprintf(help ? stdout : stderr, "%s baton-text %s\n",
                i ? "      " : "usage:", commands[i].usage);
    return help ? EXIT_SUCCESS : 2;
}
