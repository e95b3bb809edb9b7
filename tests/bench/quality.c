/* quality: what reduced formats cost, against float32.
 *
 *   quality MODEL TEXT [--positions N] [--window N] [--isa SET] [--only NAME]
 *
 * The yardstick is backend "ref" over the same file: its weights as floats, sums in double, keys
 * and values in float32. It and the engines under test walk the tokens of TEXT side by side, in
 * windows that each begin anew. Per format: KL divergence of its next-token distribution from the
 * yardstick's (mean and 99th percentile over all positions, in nats), how often the best token is
 * the same, and the perplexity of the text. About a quarter of a second of one core for each
 * position of a model of 135 M parameters. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/engine/cost.h"
#include "common/engine/engine.h"
#include "common/model/model.h"

#define STEP  32 /* rows of a step; the engine gives the logits of so many */
#define BLOCK 16

static const struct format {
    const char *name, *weights, *kv;
} formats[] = {
    {"auto, KV bf16", "auto", "bf16"}, {"auto, KV int8", "auto", "int8"},
    {"f32, KV bf16", "f32", "bf16"},   {"f32, KV int8", "f32", "int8"},
    {"bf16, KV bf16", "bf16", "bf16"}, {"int8, KV bf16", "int8", "bf16"},
    {"int4, KV bf16", "int4", "bf16"},
};
#define N_FORMATS ((int)(sizeof formats / sizeof formats[0]))

struct subject {
    struct engine *e;
    void *kv;
    size_t kv_bytes;
    double kl_sum, log_loss;
    float *kl; /* of each position */
    uint32_t same;
};

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "quality: %s\n", what);
    exit(1);
}

static void open_subject(struct subject *s, const struct model *m, const char *backend,
                         const char *isa, const char *weights, const char *kv, uint32_t window,
                         uint32_t positions)
{
    char err[512];
    struct engine_options o = {.backend = backend,
                               .isa = isa,
                               .weights = weights,
                               .kv_format = kv,
                               .threads = 1,
                               .context = window,
                               .max_batch = 1,
                               .prefill_chunk = STEP,
                               .kv_block_size = BLOCK,
                               .graphs = true};
    if (engine_create(m, &o, &s->e, err, sizeof err) != 0)
        die(err);
    const struct engine_info *i = engine_info(s->e);
    uint32_t blocks = window / BLOCK + 2;
    s->kv_bytes = (size_t)blocks * i->n_layers * i->kv_block_bytes;
    s->kv = mem_huge(s->kv_bytes);
    s->kl = mem_array(positions, sizeof *s->kl);
    if (!s->kv || !s->kl || engine_bind_kv(s->e, s->kv, blocks) != 0)
        die("out of memory");
}

static void close_subject(struct subject *s)
{
    engine_destroy(s->e);
    mem_huge_free(s->kv, s->kv_bytes);
    free(s->kl);
}

/* Logits [n][vocab] of n tokens at position `at` of the window. */
static const float *forward(struct subject *s, const int32_t *tokens, uint32_t n, uint32_t at,
                            const uint32_t *blocks)
{
    struct sample_result scores[STEP];
    struct engine_row row = {.tokens = tokens,
                             .n_tokens = n,
                             .position = at,
                             .blocks = blocks,
                             .scores = scores,
                             .next_token = 0};
    struct engine_step step = {.rows = &row, .n_rows = 1};
    if (engine_step(s->e, &step) != 0)
        die("a step failed");
    return backend_logits(engine_backend(s->e));
}

static uint32_t best_of(const float *x, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    return best;
}

static double log_sum_exp(const float *x, uint32_t n)
{
    double max = x[best_of(x, n)], sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)x[i] - max);
    return max + log(sum);
}

static double divergence(const float *p, const float *q, uint32_t n)
{
    double lp = log_sum_exp(p, n), lq = log_sum_exp(q, n), kl = 0;
    for (uint32_t i = 0; i < n; i++) {
        double a = (double)p[i] - lp;
        kl += exp(a) * (a - ((double)q[i] - lq));
    }
    return kl;
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static int32_t *tokens_of(const struct model *m, const char *path, uint32_t n)
{
    char err[512], *text = NULL;
    struct tokenizer *t;
    struct token_list list = {0};
    FILE *f = fopen(path, "rb");
    size_t size = 0, got = 0, k;
    if (!f)
        die("cannot read the text");
    do {
        size = 2 * size + 65536;
        text = mem_resize(text, size, 1);
        if (!text)
            die("out of memory");
        k = fread(text + got, 1, size - got, f);
        got += k;
    } while (k > 0);
    fclose(f);
    if (model_tokenizer(m, &t, err, sizeof err) != 0)
        die(err);
    if (tokenizer_encode(t, text, got, 0, &list) != 0 || list.n < n + 1)
        die("the text is shorter than the positions that are wanted");
    free(text);
    tokenizer_destroy(t);
    return list.ids;
}

static void compare(struct subject *ref, struct subject *s, int n_subjects, const int32_t *ids,
                    uint32_t positions, uint32_t window, uint32_t vocab)
{
    uint32_t *blocks = mem_array(window / BLOCK + 1, sizeof *blocks);
    if (!blocks)
        die("out of memory");
    for (uint32_t i = 0; i <= window / BLOCK; i++)
        blocks[i] = i + 1;
    for (uint32_t at = 0; at < positions; at += STEP) {
        uint32_t n = positions - at < STEP ? positions - at : STEP;
        const float *p = forward(ref, ids + at, n, at % window, blocks);
        for (uint32_t r = 0; r < n; r++)
            ref->log_loss += log_sum_exp(p + (size_t)r * vocab, vocab) -
                             (double)p[(size_t)r * vocab + (uint32_t)ids[at + r + 1]];
        for (int i = 0; i < n_subjects; i++) {
            const float *q = forward(&s[i], ids + at, n, at % window, blocks);
            for (uint32_t r = 0; r < n; r++) {
                const float *a = p + (size_t)r * vocab, *b = q + (size_t)r * vocab;
                double kl = divergence(a, b, vocab);
                s[i].kl_sum += kl;
                s[i].kl[at + r] = (float)kl;
                s[i].same += best_of(a, vocab) == best_of(b, vocab);
                s[i].log_loss += log_sum_exp(b, vocab) - (double)b[ids[at + r + 1]];
            }
        }
        fprintf(stderr, "\r%u of %u positions", at + n, positions);
    }
    fputc('\n', stderr);
    free(blocks);
}

int main(int argc, char **argv)
{
    const char *isa = "auto", *only = NULL;
    uint32_t positions = 2048, window = 512;
    if (argc < 3)
        die("usage: quality MODEL TEXT [--positions N] [--window N] [--isa SET] [--only NAME]");
    for (int i = 3; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--positions") == 0)
            positions = (uint32_t)atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--window") == 0)
            window = (uint32_t)atoi(argv[i + 1]) / STEP * STEP;
        else if (strcmp(argv[i], "--isa") == 0)
            isa = argv[i + 1];
        else if (strcmp(argv[i], "--only") == 0)
            only = argv[i + 1];
        else
            die("unknown option");
    }
    if (positions == 0 || window == 0)
        die("positions and window must be positive");
    char err[512];
    struct model *m;
    log_set_level(LOG_WARN);
    if (model_open(argv[1], 0, &m, err, sizeof err) != 0)
        die(err);
    int32_t *ids = tokens_of(m, argv[2], positions);
    struct subject ref = {0}, s[N_FORMATS] = {{0}};
    const char *names[N_FORMATS];
    int n = 0;
    open_subject(&ref, m, "ref", "auto", "auto", "f32", window, positions);
    for (int i = 0; i < N_FORMATS; i++) {
        if (only && !strstr(formats[i].name, only))
            continue;
        names[n] = formats[i].name;
        open_subject(&s[n++], m, "cpu", isa, formats[i].weights, formats[i].kv, window, positions);
    }
    uint32_t vocab = engine_info(ref.e)->vocab;
    compare(&ref, s, n, ids, positions, window, vocab);
    printf("%-18s %-26s %10s %10s %8s %10s\n", "weights, KV", "numerics", "KL mean", "KL p99",
           "top-1", "perplexity");
    printf("%-18s %-26s %10s %10s %8s %10.4f\n", "float32", engine_info(ref.e)->numerics, "", "",
           "", exp(ref.log_loss / positions));
    for (int i = 0; i < n; i++) {
        qsort(s[i].kl, positions, sizeof *s[i].kl, by_value);
        printf("%-18s %-26s %10.2e %10.2e %7.2f%% %10.4f\n", names[i],
               engine_info(s[i].e)->numerics, s[i].kl_sum / positions,
               (double)s[i].kl[(size_t)(positions * 0.99)], 100.0 * s[i].same / positions,
               exp(s[i].log_loss / positions));
        close_subject(&s[i]);
    }
    close_subject(&ref);
    free(ids);
    model_close(m);
    return 0;
}
