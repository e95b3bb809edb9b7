/* spm: SentencePiece BPE with byte fallback; see tokenizer_internal.h and tokenizer.h.
 *
 * SentencePiece joins, of all neighbours whose joined text is a token, the pair with the highest
 * score, the leftmost of equals, until none is left. That is the same machine as merging by rank:
 * for every token and every way to cut it into two symbols there is a merge, ranked by the token's
 * score. A symbol is a token or a single character; characters that are no tokens get ids below -1
 * so that they can take part in merges (a token may contain them) and fall back to byte tokens when
 * they remain.
 *
 * Vocabularies write a space as U+2581. Pieces are kept with plain spaces (that is what they decode
 * to), and a U+2581 in a text counts as a space, so texts need no rewriting.
 *
 * A whole text is one word to SentencePiece. When no token has a space behind another character, no
 * merge can cross such a place and cutting there changes nothing; words then are short, and most of
 * them tokens as they stand. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/mem.h"
#include "common/text/tokenizer_internal.h"
#include "common/text/unicode.h"

#define SPACE_SYMBOL      "\xe2\x96\x81"
#define TOKEN_BYTES_MAX   1024
#define SYMBOL_OF_CHAR(c) (-2 - (int32_t)(c))
#define SYMBOL_OF_BYTE(b) (-2 - (int32_t)(UNICODE_MAX + 1 + (b)))

static bool is_space_symbol(const char *p, size_t n)
{
    return n >= 3 && memcmp(p, SPACE_SYMBOL, 3) == 0;
}

int32_t spm_symbol(const struct tokenizer *t, const char *p, size_t n, size_t *len)
{
    if (is_space_symbol(p, n)) {
        int32_t id = vocab_find(t, " ", 1);
        *len = 3;
        return id >= 0 ? id : SYMBOL_OF_CHAR(' ');
    }
    uint32_t cp;
    if (unicode_next(p, n, &cp, len) != UNICODE_CHAR) {
        *len = 1;
        return SYMBOL_OF_BYTE((uint8_t)p[0]);
    }
    int32_t id = vocab_find(t, p, *len);
    return id >= 0 ? id : SYMBOL_OF_CHAR(cp);
}

static int emit_bytes(struct encoder *e, const char *p, size_t n)
{
    const struct tokenizer *t = e->t;
    for (size_t i = 0; i < n; i++) {
        if (t->byte_id[(uint8_t)p[i]] >= 0)
            continue;
        /* No fallback: the character as a whole is unknown, and a run of them is one <unk>. */
        bool again = e->out->n > 0 && e->out->ids[e->out->n - 1] == t->unk;
        return t->unk < 0 || again ? STATUS_OK : encoder_emit(e, t->unk);
    }
    for (size_t i = 0; i < n; i++)
        TRY(encoder_emit(e, t->byte_id[(uint8_t)p[i]]));
    return STATUS_OK;
}

static int emit_symbol(struct encoder *e, int32_t symbol)
{
    if (symbol >= 0)
        return encoder_emit(e, symbol);
    uint32_t value = (uint32_t)(-2 - symbol);
    char bytes[4];
    if (value > UNICODE_MAX) {
        bytes[0] = (char)(value - UNICODE_MAX - 1);
        return emit_bytes(e, bytes, 1);
    }
    /* A space that is no token is the byte sequence of U+2581 to SentencePiece. */
    size_t n = unicode_put(value == ' ' ? 0x2581 : value, bytes);
    return emit_bytes(e, bytes, n);
}

int encode_spm_word(struct encoder *e, const char *p, size_t n)
{
    const struct tokenizer *t = e->t;
    int32_t id = vocab_find(t, p, n);
    if (id >= 0 && t->whole[id])
        return encoder_emit(e, id);
    TRY(encoder_symbols(e, n));
    size_t count = 0;
    for (size_t i = 0, len; i < n; i += len)
        e->symbols[count++] = spm_symbol(t, p + i, n - i, &len);
    TRY(bpe_merge(&t->bpe, &e->bpe, e->symbols, &count));
    for (size_t i = 0; i < count; i++)
        TRY(emit_symbol(e, e->symbols[i]));
    return STATUS_OK;
}

int encode_spm_text(struct encoder *e, const char *p, size_t n, bool first)
{
    const struct tokenizer *t = e->t;
    bool begins_with_space = p[0] == ' ' || is_space_symbol(p, n);
    bool prefix = t->add_space_prefix && (first || !t->prefix_first_only) &&
                  !(t->prefix_unless_space && begins_with_space);
    if (prefix) {
        buf_reset(&e->text);
        buf_putc(&e->text, ' ');
        buf_append(&e->text, p, n);
        if (!buf_ok(&e->text))
            return STATUS_NOMEM;
        p = e->text.data;
        n = e->text.len;
    }
    if (!t->cut_before_space && !t->split_at_spaces)
        return encode_spm_word(e, p, n);
    size_t begin = 0;
    for (size_t i = 1; i < n; i++) {
        bool before = p[i - 1] == ' ' || (i >= 3 && is_space_symbol(p + i - 3, 3));
        if ((before && !t->split_at_spaces) || (p[i] != ' ' && !is_space_symbol(p + i, n - i)))
            continue;
        TRY(encode_spm_word(e, p + begin, i - begin));
        begin = i;
    }
    return encode_spm_word(e, p + begin, n - begin);
}

static bool joins(const struct tokenizer *t, int32_t id)
{
    return t->types[id] == TOKEN_NORMAL && t->at[id + 1] > t->at[id];
}

bool spm_can_cut(const struct tokenizer *t)
{
    for (int32_t id = 0; id < (int32_t)t->n; id++) {
        struct token_text piece = piece_of(t, id);
        if (!joins(t, id))
            continue;
        for (size_t i = 1; i < piece.n; i++)
            if (piece.p[i] == ' ' && piece.p[i - 1] != ' ')
                return false;
    }
    return true;
}

/* A token by falling score. */
struct scored {
    float score;
    int32_t id;
};

static int compare_scores(const void *a, const void *b)
{
    const struct scored *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* The symbol that p[0, n) as a whole can be, or -1. */
static int32_t part_symbol(const struct tokenizer *t, const char *p, size_t n)
{
    size_t len;
    int32_t symbol = spm_symbol(t, p, n, &len);
    return len == n ? symbol : vocab_find(t, p, n);
}

static int add_cuts(struct tokenizer *t, int32_t id, uint32_t rank)
{
    struct token_text piece = piece_of(t, id);
    for (size_t i = 1; i < piece.n; i++) {
        if ((piece.p[i] & 0xc0) == 0x80)
            continue;
        int32_t left = part_symbol(t, piece.p, i);
        int32_t right = part_symbol(t, piece.p + i, piece.n - i);
        if (left != -1 && right != -1)
            TRY(bpe_add(&t->bpe, left, right, rank, id));
    }
    return STATUS_OK;
}

int spm_build_scores(struct tokenizer *t, const float *scores, char *err, size_t errlen)
{
    TRY(bpe_init(&t->bpe, 4 * t->n));
    struct scored *order = mem_array(t->n, sizeof *order);
    if (!order)
        return STATUS_NOMEM;
    size_t n = 0;
    int rc = STATUS_OK;
    for (int32_t id = 0; id < (int32_t)t->n && rc == STATUS_OK; id++) {
        struct token_text piece = piece_of(t, id);
        if (!joins(t, id) || vocab_find(t, piece.p, piece.n) != id)
            continue;
        order[n++] = (struct scored){scores[id], id};
        if (!isfinite(scores[id]) || piece.n > TOKEN_BYTES_MAX) {
            snprintf(err, errlen, "token %d has %s", id,
                     piece.n > TOKEN_BYTES_MAX ? "more than 1024 bytes"
                                               : "a score that is no number");
            rc = STATUS_FORMAT;
        }
    }
    qsort(order, n, sizeof *order, compare_scores);
    uint32_t rank = 0;
    for (size_t i = 0; i < n && rc == STATUS_OK; i++) {
        if (i > 0 && order[i].score != order[i - 1].score)
            rank++;
        rc = add_cuts(t, order[i].id, rank);
    }
    free(order);
    return rc;
}
