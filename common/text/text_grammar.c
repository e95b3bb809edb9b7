/* text_grammar: the grammar engine from the command line, for scripts that compare it with others
 * and measure it.
 *
 * A random answer takes any allowed token, each as likely as the other; after the number of tokens
 * that was asked for it prefers tokens that close something, then single characters that separate,
 * so that it comes to an end. One that does not, in ten times as many tokens, is null. */
#include "common/text/text_grammar.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/text/grammar.h"
#include "common/text/tokenmask.h"

struct serve {
    const struct tokenizer *tok;
    struct tokenmask_vocab *vocab;
    const int32_t *stops;
    size_t n_stops, n_words;
    uint32_t *bits;
    uint64_t seed, draws;
};

static uint32_t draw(struct serve *s, uint32_t n)
{
    struct rng_block b = rng_philox(s->seed, s->draws++, 0);
    return n ? (uint32_t)(((uint64_t)b.v[0] * n) >> 32) : 0;
}

static bool is_stop(const struct serve *s, int32_t id)
{
    for (size_t i = 0; i < s->n_stops; i++) {
        if (s->stops[i] == id)
            return true;
    }
    return false;
}

static uint32_t count_bits(const uint32_t *bits, size_t n)
{
    uint32_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += (uint32_t)__builtin_popcount(bits[i]);
    return count;
}

/* The k-th bit that is set. */
static int32_t pick_bit(const uint32_t *bits, size_t n, uint32_t k)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t here = (uint32_t)__builtin_popcount(bits[i]);
        for (uint32_t w = bits[i]; k < here && w; w &= w - 1, k--) {
            if (k == 0)
                return (int32_t)(i * 32 + (uint32_t)__builtin_ctz(w));
        }
        k -= here;
    }
    return -1;
}

/* An allowed token of closing characters alone, the longest; else a separator, now and then; or -1.
 */
static int32_t closing_token(struct serve *s)
{
    int32_t best = -1, separators[64];
    uint32_t n_separators = 0;
    size_t best_n = 0;
    for (size_t i = 0; i < s->n_words; i++) {
        for (uint32_t w = s->bits[i]; w; w &= w - 1) {
            int32_t id = (int32_t)(i * 32 + (uint32_t)__builtin_ctz(w));
            struct token_text t = tokenizer_piece(s->tok, id, false);
            size_t n = 0;
            if (is_stop(s, id) || t.n == 0)
                continue;
            while (n < t.n && strchr("\"]})", t.p[n]))
                n++;
            if (n == t.n && t.p[0] == '"') /* inside a string, brackets close nothing */
                n += 1000;
            if (n >= t.n && n > best_n)
                best = id, best_n = n;
            if (t.n == 1 && strchr("@.:-+TZ0", t.p[0]) && n_separators < 64)
                separators[n_separators++] = id;
        }
    }
    if (best_n < 1000 && n_separators > 0 && draw(s, 2))
        return separators[draw(s, n_separators)];
    return best;
}

static int fill(struct serve *s, struct tokenmask_state *st, json_t *times)
{
    uint64_t before = clock_thread_ns();
    int rc = tokenmask_fill(st, s->stops, s->n_stops, s->bits, s->n_words);
    if (times)
        json_array_append_new(times, json_real((double)(clock_thread_ns() - before) / 1000));
    return rc;
}

static int advance(struct tokenmask_state *st, int32_t id, json_t *times)
{
    uint64_t before = clock_thread_ns();
    int rc = tokenmask_advance(st, id);
    if (times)
        json_array_append_new(times, json_real((double)(clock_thread_ns() - before) / 1000));
    return rc;
}

/* One random answer, or NULL with a reason in the answer. */
static json_t *walk(struct serve *s, struct tokenmask *mask, uint32_t tokens, json_t *answer)
{
    struct tokenmask_state st;
    struct buf text;
    json_t *out = NULL, *ids = json_array();
    tokenmask_state_init(&st, mask);
    buf_init(&text, 0);
    for (uint32_t i = 0; i < tokens * 10; i++) {
        int rc = fill(s, &st, json_object_get(answer, "fill_us"));
        uint32_t n = count_bits(s->bits, s->n_words);
        if (rc != STATUS_OK || n == 0) {
            json_object_set_new(answer, "error",
                                json_string(rc ? status_text(rc) : "a mask allows nothing"));
            break;
        }
        bool done = tokenmask_done(&st);
        int32_t id = i >= tokens && !done ? closing_token(s) : -1;
        if (done && (tokenmask_ended(&st) || i >= tokens || draw(s, 8) == 0)) {
            out = json_stringn(buf_str(&text), text.len);
            if (!out)
                json_object_set_new(answer, "error", json_string("the text is not UTF-8"));
            break;
        }
        while (id < 0 || is_stop(s, id))
            id = pick_bit(s->bits, s->n_words, draw(s, n));
        rc = advance(&st, id, json_object_get(answer, "advance_us"));
        if (rc != STATUS_OK) {
            json_object_set_new(answer, "error", json_string("an allowed token is refused"));
            break;
        }
        struct token_text t = tokenizer_piece(s->tok, id, false);
        buf_append(&text, t.p, t.n);
        json_array_append_new(ids, json_integer(id));
    }
    json_array_append_new(json_object_get(answer, "ids"), ids);
    buf_fini(&text);
    tokenmask_state_fini(&st);
    return out ? out : json_null();
}

static json_t *mask_now(struct serve *s, struct tokenmask_state *st, bool bits, json_t *answer)
{
    int rc = fill(s, st, json_object_get(answer, "fill_us"));
    if (rc != STATUS_OK)
        return json_string(status_text(rc));
    json_t *m = json_pack("{s:I,s:b}", "n", (json_int_t)count_bits(s->bits, s->n_words), "end",
                          tokenmask_done(st));
    if (bits) {
        struct buf hex;
        buf_init(&hex, 0);
        for (size_t i = 0; i < s->n_words; i++)
            buf_printf(&hex, "%08x", s->bits[i]);
        json_object_set_new(m, "bits", json_string(buf_str(&hex)));
        buf_fini(&hex);
    }
    return m;
}

static json_t *masks_of(struct serve *s, struct tokenmask *mask, const json_t *ids, bool bits,
                        json_t *answer)
{
    struct tokenmask_state st;
    json_t *out = json_array();
    size_t i;
    const json_t *v;
    tokenmask_state_init(&st, mask);
    json_array_append_new(out, mask_now(s, &st, bits, answer));
    json_array_foreach(ids, i, v)
    {
        int rc =
            advance(&st, (int32_t)json_integer_value(v), json_object_get(answer, "advance_us"));
        if (rc != STATUS_OK) {
            json_array_append_new(out, json_string(status_text(rc)));
            break;
        }
        json_array_append_new(out, mask_now(s, &st, bits, answer));
    }
    tokenmask_state_fini(&st);
    return out;
}

static void use_tokens(struct serve *s, struct grammar *g, const json_t *q, json_t *answer)
{
    struct tokenmask *mask;
    size_t i;
    const json_t *v;
    if (!s->tok || tokenmask_create(s->vocab, g, &mask) != STATUS_OK)
        return;
    json_object_set_new(answer, "fill_us", json_array());
    json_object_set_new(answer, "advance_us", json_array());
    json_object_set_new(answer, "ids",
                        json_array()); /* of each random answer, also of an unfinished one */
    uint32_t walks = (uint32_t)json_integer_value(json_object_get(q, "walks"));
    uint32_t tokens = (uint32_t)json_integer_value(json_object_get(q, "tokens"));
    s->seed = (uint64_t)json_integer_value(json_object_get(q, "seed"));
    s->draws = 0;
    json_t *list = json_array();
    for (uint32_t k = 0; k < walks; k++)
        json_array_append_new(list, walk(s, mask, tokens ? tokens : 200, answer));
    json_object_set_new(answer, "walks", list);
    list = json_array();
    json_array_foreach(json_object_get(q, "ids"), i, v) json_array_append_new(
        list, masks_of(s, mask, v, json_is_true(json_object_get(q, "bits")), answer));
    json_object_set_new(answer, "masks", list);
    json_object_set_new(answer, "bytes", json_integer((json_int_t)tokenmask_bytes(mask)));
    tokenmask_destroy(mask);
}

static enum grammar_kind kind_of(const char *name)
{
    static const char *const names[] = {"none", "json", "schema", "regex", "choice", "gbnf"};
    for (int i = 1; name && i < 6; i++) {
        if (strcmp(name, names[i]) == 0)
            return (enum grammar_kind)i;
    }
    return GRAMMAR_NONE;
}

/* The vocabulary: the bytes of each token in hexadecimal digits, "" for those that are no text. */
static json_t *vocab_answer(struct serve *s)
{
    json_t *tokens = json_array(), *stops = json_array();
    size_t n = s->tok ? tokenizer_size(s->tok) : 0;
    struct buf hex;
    buf_init(&hex, 0);
    for (size_t id = 0; id < n; id++) {
        struct token_text t = tokenmask_vocab_token(s->vocab, (int32_t)id);
        buf_reset(&hex);
        for (size_t i = 0; i < t.n; i++)
            buf_printf(&hex, "%02x", (uint8_t)t.p[i]);
        json_array_append_new(tokens, json_string(buf_str(&hex)));
    }
    for (size_t i = 0; i < s->n_stops; i++)
        json_array_append_new(stops, json_integer(s->stops[i]));
    buf_fini(&hex);
    return json_pack("{s:o,s:o}", "tokens", tokens, "stops", stops);
}

static json_t *answer_to(struct serve *s, const json_t *q)
{
    if (json_is_true(json_object_get(q, "vocab")))
        return vocab_answer(s);
    const json_t *source = json_object_get(q, "source"), *v;
    struct grammar_options o = {
        .compact = json_is_true(json_object_get(q, "compact")),
        .formats_ignored = json_is_true(json_object_get(q, "formats_ignored")),
        .dialect = json_is_true(json_object_get(q, "draft7")) ? GRAMMAR_DRAFT_7 : GRAMMAR_2020_12};
    struct grammar *g = NULL;
    char err[1024] = "";
    size_t i;
    uint64_t before = clock_thread_ns();
    int rc = grammar_compile(kind_of(json_string_value(json_object_get(q, "kind"))),
                             json_string_value(source), json_string_length(source), &o, &g, err,
                             sizeof err);
    json_t *answer = json_pack("{s:i,s:s,s:f}", "status", rc, "error", err, "compile_us",
                               (double)(clock_thread_ns() - before) / 1000);
    if (rc != STATUS_OK)
        return answer;
    json_t *texts = json_array();
    json_array_foreach(json_object_get(q, "texts"), i, v)
    {
        bool yes = false;
        rc = grammar_accepts(g, json_string_value(v), json_string_length(v), &yes);
        json_array_append_new(texts, rc ? json_string(status_text(rc)) : json_boolean(yes));
    }
    json_object_set_new(answer, "texts", texts);
    use_tokens(s, g, q, answer);
    grammar_put(g);
    return answer;
}

int text_grammar_serve(const struct tokenizer *tok, FILE *in, FILE *out)
{
    struct serve s = {.tok = tok};
    int status = EXIT_SUCCESS;
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    if (tok) {
        s.stops = tokenizer_stops(tok, &s.n_stops);
        s.n_words = (tokenizer_size(tok) + 31) / 32;
        s.bits = mem_array(s.n_words, sizeof *s.bits);
        if (!s.bits || tokenmask_vocab_create(tok, &s.vocab) != STATUS_OK) {
            free(s.bits);
            return EXIT_FAILURE;
        }
    }
    while (status == EXIT_SUCCESS && (n = getline(&line, &cap, in)) > 0) {
        json_t *q = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, NULL);
        json_t *answer = q ? answer_to(&s, q)
                           : json_pack("{s:i,s:s}", "status", STATUS_FORMAT, "error", "not JSON");
        if (!answer || json_dumpf(answer, out, JSON_COMPACT) != 0 || fputc('\n', out) == EOF ||
            fflush(out) != 0)
            status = EXIT_FAILURE;
        json_decref(answer);
        json_decref(q);
    }
    free(line);
    free(s.bits);
    tokenmask_vocab_destroy(s.vocab);
    return status;
}
