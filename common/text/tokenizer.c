/* tokenizer: encoding and decoding; see tokenizer.h. Building one is in tokenizer_build.c.
 *
 * A text is walked once. Special tokens cut it into stretches; each stretch goes through the
 * family's own splitting into words (pretok.c, spm.c), and each word either is a token that merging
 * would arrive at anyway (known since load, so one look into a hash table settles it) or is merged
 * from its smallest symbols by bpe.c. Nothing recurses with the text, and no step looks back, so
 * time is linear in the text up to the logarithm of the longest word.
 *
 * What text is may differ from UTF-8: ill-formed bytes are words of their own and become byte
 * tokens. A byte that the vocabulary has no token for is left out, as the reference does, unless
 * the model names a token for unknown things. */
#include "common/text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/text/tokenizer_internal.h"
#include "common/text/unicode.h"

#define TEXT_MAX ((size_t)1 << 30)

void token_list_fini(struct token_list *l)
{
    free(l->ids);
    *l = (struct token_list){0};
}

int32_t vocab_find(const struct tokenizer *t, const char *p, size_t n)
{
    uint32_t hash = (uint32_t)hash64(p, n, 0);
    for (size_t slot = hash & t->words.mask;; slot = (slot + 1) & t->words.mask) {
        const struct vocab_slot *s = &t->words.slots[slot];
        if (s->id < 0)
            return -1;
        if (s->hash != hash)
            continue;
        struct token_text piece = piece_of(t, s->id);
        if (piece.n == n && memcmp(piece.p, p, n) == 0)
            return s->id;
    }
}

int encoder_symbols(struct encoder *e, size_t n)
{
    if (n <= e->n_symbols)
        return STATUS_OK;
    size_t want = n + n / 2 + 64;
    int32_t *symbols = mem_resize(e->symbols, want, sizeof *symbols);
    if (!symbols)
        return STATUS_NOMEM;
    e->symbols = symbols;
    e->n_symbols = want;
    return STATUS_OK;
}

int encoder_emit(struct encoder *e, int32_t id)
{
    struct token_list *l = e->out;
    if (l->n == l->cap) {
        size_t want = l->cap + l->cap / 2 + 64;
        int32_t *ids = mem_resize(l->ids, want, sizeof *ids);
        if (!ids)
            return STATUS_NOMEM;
        l->ids = ids;
        l->cap = want;
    }
    l->ids[l->n++] = id;
    return STATUS_OK;
}

int encode_bpe_word(void *arg, const char *p, size_t n)
{
    struct encoder *e = arg;
    const struct tokenizer *t = e->t;
    int32_t id = vocab_find(t, p, n);
    if (id >= 0 && t->whole[id])
        return encoder_emit(e, id);
    TRY(encoder_symbols(e, n));
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t symbol = t->byte_id[(uint8_t)p[i]];
        if (symbol < 0)
            symbol = t->unk;
        if (symbol >= 0)
            e->symbols[count++] = symbol;
    }
    TRY(bpe_merge(&t->bpe, &e->bpe, e->symbols, &count));
    for (size_t i = 0; i < count; i++)
        TRY(encoder_emit(e, e->symbols[i]));
    return STATUS_OK;
}

/* Well-formed text. */
static int encode_bpe_valid(struct encoder *e, const char *p, size_t n)
{
    if (e->t->nfc && !unicode_nfc_trivial(p, n)) {
        buf_reset(&e->text);
        TRY(unicode_nfc(p, n, &e->text));
        p = e->text.data;
        n = e->text.len;
    }
    return pretok_run(e->t->pretok, e->pretok, p, n, encode_bpe_word, e);
}

static int encode_bpe_text(struct encoder *e, const char *p, size_t n)
{
    while (n) {
        size_t good = unicode_valid(p, n), bad = 0;
        if (good)
            TRY(encode_bpe_valid(e, p, good));
        for (size_t at = good; at < n;) {
            uint32_t cp;
            size_t len;
            if (unicode_next(p + at, n - at, &cp, &len) == UNICODE_CHAR)
                break;
            at += len;
            bad += len;
        }
        if (bad)
            TRY(encode_bpe_word(e, p + good, bad));
        p += good + bad;
        n -= good + bad;
    }
    return STATUS_OK;
}

static int encode_text(struct encoder *e, const char *p, size_t n, bool first)
{
    if (n == 0)
        return STATUS_OK;
    return e->t->kind == TOKENIZER_BPE ? encode_bpe_text(e, p, n) : encode_spm_text(e, p, n, first);
}

static size_t skip_spaces(const char *text, size_t at, size_t n)
{
    uint32_t cp;
    size_t len;
    while (at < n && unicode_next(text + at, n - at, &cp, &len) == UNICODE_CHAR &&
           unicode_is_space(cp))
        at += len;
    return at;
}

/* The end of text[from, at) without the white space before at. */
static size_t trim_spaces(const char *text, size_t from, size_t at)
{
    while (at > from) {
        size_t back = 1;
        while (back < 4 && at - back > from && (text[at - back] & 0xc0) == 0x80)
            back++;
        if (skip_spaces(text, at - back, at) != at)
            break;
        at -= back;
    }
    return at;
}

static int encode(struct encoder *e, const char *text, size_t n, const struct token_range *ranges,
                  size_t n_ranges)
{
    size_t from = 0, range = 0;
    for (;;) {
        size_t begin = n;
        const struct special_entry *s =
            special_find(&e->t->special, text, from, n, ranges, n_ranges, &range, &begin);
        size_t end = begin;
        if (s && (s->flags & SPECIAL_LSTRIP))
            end = trim_spaces(text, from, begin);
        TRY(encode_text(e, text + from, end - from, from == 0));
        if (!s)
            return STATUS_OK;
        TRY(encoder_emit(e, s->id));
        from = begin + s->n;
        if (s->flags & SPECIAL_RSTRIP)
            from = skip_spaces(text, from, n);
    }
}

int tokenizer_encode_ranges(const struct tokenizer *t, const char *text, size_t n, unsigned flags,
                            const struct token_range *ranges, size_t n_ranges,
                            struct token_list *out)
{
    if (n > TEXT_MAX)
        return STATUS_LIMIT;
    struct encoder e = {.t = t, .out = out};
    buf_init(&e.text, 2 * TEXT_MAX);
    size_t before = out->n;
    int rc = STATUS_OK;
    if (t->kind == TOKENIZER_BPE)
        rc = pretok_work_create(t->pretok, &e.pretok);
    if (rc == STATUS_OK && (flags & TOKENIZE_BOS) && t->bos >= 0)
        rc = encoder_emit(&e, t->bos);
    struct token_range all = {0, n};
    if (flags & TOKENIZE_SPECIAL) {
        ranges = &all;
        n_ranges = 1;
    }
    if (rc == STATUS_OK && n > 0)
        rc = encode(&e, text, n, ranges, n_ranges);
    pretok_work_destroy(e.pretok);
    bpe_work_fini(&e.bpe);
    free(e.symbols);
    buf_fini(&e.text);
    if (rc != STATUS_OK)
        out->n = before;
    return rc;
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, unsigned flags,
                     struct token_list *out)
{
    return tokenizer_encode_ranges(t, text, n, flags, NULL, 0, out);
}

size_t tokenizer_size(const struct tokenizer *t)
{
    return t->n;
}

int32_t tokenizer_bos(const struct tokenizer *t)
{
    return t->bos;
}

int32_t tokenizer_eos(const struct tokenizer *t)
{
    return t->eos;
}

bool tokenizer_add_bos(const struct tokenizer *t)
{
    return t->add_bos;
}

const int32_t *tokenizer_stops(const struct tokenizer *t, size_t *n)
{
    *n = t->n_stops;
    return t->stops;
}

static bool known(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && (size_t)id < t->n;
}

enum token_type tokenizer_type(const struct tokenizer *t, int32_t id)
{
    return known(t, id) ? (enum token_type)t->types[id] : TOKEN_UNUSED;
}

int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t n)
{
    int32_t id = special_lookup(&t->special, text, n);
    return id >= 0 ? id : vocab_find(t, text, n);
}

struct token_text tokenizer_piece(const struct tokenizer *t, int32_t id, bool first)
{
    if (!known(t, id))
        return (struct token_text){"", 0};
    struct token_text piece = piece_of(t, id);
    bool strip = first && t->add_space_prefix && t->kind == TOKENIZER_SPM;
    if (strip && piece.n > 0 && piece.p[0] == ' ' && t->types[id] == TOKEN_NORMAL) {
        piece.p++;
        piece.n--;
    }
    return piece;
}

void tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool special,
                      struct buf *out)
{
    bool first = true;
    for (size_t i = 0; i < n; i++) {
        if (!special && tokenizer_hidden(t, ids[i]))
            continue;
        struct token_text piece = tokenizer_piece(t, ids[i], first);
        buf_append(out, piece.p, piece.n);
        first = false;
    }
}

bool tokenizer_hidden(const struct tokenizer *t, int32_t id)
{
    enum token_type type = tokenizer_type(t, id);
    return type == TOKEN_CONTROL || type == TOKEN_UNKNOWN || type == TOKEN_UNUSED;
}
