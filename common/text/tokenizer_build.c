/* tokenizer_build: from what a vocabulary file says to a struct tokenizer; see tokenizer.h.
 *
 * Vocabulary files spell pieces in their own way. Byte-level BPE writes each byte as a printable
 * character (GPT-2's mapping), SentencePiece writes spaces as U+2581 and bytes as <0x0A>. Both
 * spellings are undone here, once, so that everywhere else a piece is the bytes it stands for.
 * Control and user-defined tokens are spelt literally.
 *
 * The file is not trusted: everything it says is checked, sums are bounded, and a refusal names the
 * token or merge. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/text/tokenizer_internal.h"
#include "common/text/unicode.h"

#define TOKENS_MAX     ((size_t)1 << 24)
#define PIECE_MAX      65535
#define SPACE_SYMBOL   "\xe2\x96\x81"
#define GPT2_CHARS     (256 + 68) /* code points that GPT-2's mapping uses */
#define SHOWN_IN_ERROR 40

/* The byte that each code point stands for, -1: none. Printable bytes stand for themselves, the
 * other 68 come in order from U+0100. */
static void gpt2_bytes(int16_t byte_of[GPT2_CHARS])
{
    for (int i = 0; i < GPT2_CHARS; i++)
        byte_of[i] = -1;
    int next = 256;
    for (int b = 0; b < 256; b++) {
        bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        byte_of[printable ? b : next++] = (int16_t)b;
    }
}

/* What is needed while building only. */
struct build {
    const struct tokenizer_spec *spec;
    struct tokenizer *t;
    int16_t gpt2[GPT2_CHARS];
    struct buf pool;
    uint8_t *literal;       /* per id: a normal token that is not spelt as its family spells */
    struct vocab_map spelt; /* all ids by their spelling; made when a merge needs it */
    char *err;
    size_t errlen;
};

#define REFUSE(b, rc, ...) (snprintf((b)->err, (b)->errlen, __VA_ARGS__), (rc))

/* Appends what the mapped text stands for; false (and nothing appended) when it is not mapped. */
static bool append_gpt2(const struct build *b, struct buf *out, const char *p, size_t n)
{
    size_t before = out->len;
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t cp;
        if (unicode_next(p + i, n - i, &cp, &len) != UNICODE_CHAR || cp >= GPT2_CHARS ||
            b->gpt2[cp] < 0) {
            out->len = before;
            return false;
        }
        buf_putc(out, (char)b->gpt2[cp]);
    }
    return true;
}

static void append_spm(struct buf *out, const char *p, size_t n)
{
    for (size_t i = 0; i < n;) {
        if (n - i >= 3 && memcmp(p + i, SPACE_SYMBOL, 3) == 0) {
            buf_putc(out, ' ');
            i += 3;
        } else {
            buf_putc(out, p[i++]);
        }
    }
}

/* Appends the bytes of a normal token, or of a part of a merge, as the file spells it. False when
 * the spelling is not of its family: then the text itself is appended. */
static bool append_spelt(const struct build *b, struct buf *out, struct token_text text)
{
    if (b->spec->kind == TOKENIZER_SPM) {
        append_spm(out, text.p, text.n);
        return true;
    }
    if (append_gpt2(b, out, text.p, text.n))
        return true;
    buf_append(out, text.p, text.n);
    return false;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* "<0x0A>" -> 10; -1 otherwise. */
static int byte_token_value(struct token_text text)
{
    if (text.n != 6 || memcmp(text.p, "<0x", 3) != 0 || text.p[5] != '>')
        return -1;
    int high = hex_digit(text.p[3]), low = hex_digit(text.p[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* The texts that end a turn or a text in the models that are about. */
static bool is_end_marker(struct token_text text)
{
    static const char *const markers[] = {
        "<|im_end|>",
        "<|endoftext|>",
        "<|eot_id|>",
        "<|end_of_text|>",
        "<|eom_id|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|calls|>",
        "<|flush|>",
        "<|observation|>",
        "<|tool_response>",
        "<|EOT|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<eos>",
        "</s>",
        "<|eos|>",
        "<end_of_turn>",
        "<turn|>",
        "<|endofprompt|>",
        "<|eot|>",
        "<|end_of_turn|>",
        "<|END_OF_TURN_TOKEN|>",
        "<|im_sep_end|>",
        "<\xef\xbd\x9c"
        "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>",
    };
    for (size_t i = 0; i < sizeof markers / sizeof *markers; i++)
        if (strlen(markers[i]) == text.n && memcmp(markers[i], text.p, text.n) == 0)
            return true;
    return false;
}

/* Older files call some end markers user-defined: then a user could write them. */
static uint8_t type_of(const struct tokenizer_spec *spec, size_t id)
{
    uint8_t type = spec->types ? spec->types[id] : TOKEN_NORMAL;
    if (type == TOKEN_USER_DEFINED && is_end_marker(spec->tokens[id]))
        return TOKEN_CONTROL;
    return type;
}

static int add_piece(struct build *b, size_t id)
{
    struct tokenizer *t = b->t;
    struct token_text text = b->spec->tokens[id];
    uint8_t type = type_of(b->spec, id);
    int byte;
    if (text.n > PIECE_MAX)
        return REFUSE(b, STATUS_FORMAT, "token %zu has %zu bytes", id, text.n);
    switch (type) {
    case TOKEN_NORMAL:
        b->literal[id] = !append_spelt(b, &b->pool, text);
        break;
    case TOKEN_UNKNOWN:
    case TOKEN_CONTROL:
        buf_append(&b->pool, text.p, text.n);
        break;
    case TOKEN_USER_DEFINED:
        if (b->spec->kind == TOKENIZER_SPM)
            append_spm(&b->pool, text.p, text.n);
        else
            buf_append(&b->pool, text.p, text.n);
        break;
    case TOKEN_UNUSED:
        break;
    case TOKEN_BYTE:
        byte = byte_token_value(text);
        if (byte < 0)
            return REFUSE(b, STATUS_FORMAT, "byte token %zu is not spelt <0x00> to <0xFF>", id);
        buf_putc(&b->pool, (char)byte);
        if (t->byte_id[byte] < 0)
            t->byte_id[byte] = (int32_t)id;
        break;
    default:
        return REFUSE(b, STATUS_FORMAT, "token %zu has the unknown type %u", id, type);
    }
    t->types[id] = type;
    t->at[id + 1] = (uint32_t)b->pool.len;
    return buf_ok(&b->pool) ? STATUS_OK : STATUS_NOMEM;
}

static int build_pieces(struct build *b)
{
    struct tokenizer *t = b->t;
    if (t->n == 0 || t->n > TOKENS_MAX)
        return REFUSE(b, STATUS_FORMAT, "a vocabulary of %zu tokens", t->n);
    t->at = mem_array(t->n + 1, sizeof *t->at);
    t->types = mem_array(t->n, 1);
    t->whole = mem_array(t->n, 1);
    b->literal = mem_array(t->n, 1);
    if (!t->at || !t->types || !t->whole || !b->literal)
        return STATUS_NOMEM;
    for (int i = 0; i < 256; i++)
        t->byte_id[i] = -1;
    for (size_t id = 0; id < t->n; id++)
        TRY(add_piece(b, id));
    buf_putc(&b->pool, 0);
    t->pool = buf_take(&b->pool);
    return t->pool ? STATUS_OK : STATUS_NOMEM;
}

static int map_init(struct vocab_map *map, size_t n)
{
    size_t size = 64;
    while (size < 2 * n + 2)
        size *= 2;
    map->slots = mem_array(size, sizeof *map->slots);
    if (!map->slots)
        return STATUS_NOMEM;
    for (size_t i = 0; i < size; i++)
        map->slots[i].id = -1;
    map->mask = size - 1;
    return STATUS_OK;
}

static void map_add(struct vocab_map *map, uint32_t hash, int32_t id)
{
    size_t slot = hash & map->mask;
    while (map->slots[slot].id >= 0)
        slot = (slot + 1) & map->mask;
    map->slots[slot] = (struct vocab_slot){hash, id};
}

static int build_words(struct build *b)
{
    struct tokenizer *t = b->t;
    TRY(map_init(&t->words, t->n));
    for (int32_t id = 0; id < (int32_t)t->n; id++) {
        struct token_text piece = piece_of(t, id);
        bool word = t->types[id] == TOKEN_NORMAL && !b->literal[id] && piece.n > 0;
        if (word && vocab_find(t, piece.p, piece.n) < 0)
            map_add(&t->words, (uint32_t)hash64(piece.p, piece.n, 0), id);
    }
    for (int i = 0; i < 256 && t->kind == TOKENIZER_BPE; i++) {
        char byte = (char)i;
        t->byte_id[i] = vocab_find(t, &byte, 1);
    }
    return STATUS_OK;
}

/* The token that the file spells p[0, n), whatever its type; -1 when there is none. */
static int32_t find_spelling(const struct build *b, const char *p, size_t n)
{
    uint32_t hash = (uint32_t)hash64(p, n, 0);
    for (size_t slot = hash & b->spelt.mask;; slot = (slot + 1) & b->spelt.mask) {
        const struct vocab_slot *s = &b->spelt.slots[slot];
        if (s->id < 0)
            return -1;
        const struct token_text *text = &b->spec->tokens[s->id];
        if (s->hash == hash && text->n == n && memcmp(text->p, p, n) == 0)
            return s->id;
    }
}

static int build_spelt(struct build *b)
{
    TRY(map_init(&b->spelt, b->t->n));
    for (int32_t id = 0; id < (int32_t)b->t->n; id++) {
        const struct token_text *text = &b->spec->tokens[id];
        if (text->n > 0 && find_spelling(b, text->p, text->n) < 0)
            map_add(&b->spelt, (uint32_t)hash64(text->p, text->n, 0), id);
    }
    return STATUS_OK;
}

static int shown(size_t n)
{
    return (int)(n < SHOWN_IN_ERROR ? n : SHOWN_IN_ERROR);
}

/* A merge whose parts or result are not all ordinary words: user-defined tokens, or spellings that
 * no text leads to. They must exist; text that would become a control token does not merge, so that
 * users cannot write one. */
static int add_odd_merge(struct build *b, size_t rank, struct buf *text)
{
    const struct token_text *part = b->spec->merges[rank];
    if (!b->spelt.slots)
        TRY(build_spelt(b));
    buf_reset(text);
    buf_append(text, part[0].p, part[0].n);
    buf_append(text, part[1].p, part[1].n);
    if (!buf_ok(text))
        return STATUS_NOMEM;
    int32_t left = find_spelling(b, part[0].p, part[0].n);
    int32_t right = find_spelling(b, part[1].p, part[1].n);
    int32_t both = find_spelling(b, buf_str(text), text->len);
    if (left < 0 || right < 0) {
        const struct token_text *missing = &part[left >= 0];
        return REFUSE(b, STATUS_FORMAT, "merge %zu names '%.*s', which is not a token", rank,
                      shown(missing->n), missing->p);
    }
    if (both < 0)
        return REFUSE(b, STATUS_FORMAT, "merge %zu gives '%.*s', which is not a token", rank,
                      shown(text->len), buf_str(text));
    if (b->t->types[both] != TOKEN_NORMAL && b->t->types[both] != TOKEN_USER_DEFINED)
        return STATUS_OK;
    return bpe_add(&b->t->bpe, left, right, (uint32_t)rank, both);
}

static int add_merge(struct build *b, size_t rank, struct buf *text)
{
    const struct token_text *part = b->spec->merges[rank];
    buf_reset(text);
    bool plain = append_spelt(b, text, part[0]);
    size_t cut = text->len;
    plain = append_spelt(b, text, part[1]) && plain;
    if (!buf_ok(text))
        return STATUS_NOMEM;
    const char *p = buf_str(text);
    int32_t left = vocab_find(b->t, p, cut);
    int32_t right = vocab_find(b->t, p + cut, text->len - cut);
    int32_t both = vocab_find(b->t, p, text->len);
    if (plain && left >= 0 && right >= 0 && both >= 0)
        return bpe_add(&b->t->bpe, left, right, (uint32_t)rank, both);
    return add_odd_merge(b, rank, text);
}

static int build_merges(struct build *b)
{
    const struct tokenizer_spec *spec = b->spec;
    if (spec->kind == TOKENIZER_SPM && spec->scores)
        return spm_build_scores(b->t, spec->scores, b->err, b->errlen);
    if (spec->n_merges == 0)
        return REFUSE(b, STATUS_FORMAT, "the vocabulary has no merges");
    if (spec->n_merges >= BPE_NONE)
        return REFUSE(b, STATUS_FORMAT, "the vocabulary has %zu merges", spec->n_merges);
    TRY(bpe_init(&b->t->bpe, spec->n_merges));
    struct buf text;
    buf_init(&text, 0);
    int rc = STATUS_OK;
    for (size_t i = 0; i < spec->n_merges && rc == STATUS_OK; i++)
        rc = add_merge(b, i, &text);
    buf_fini(&text);
    return rc;
}

static int build_special(struct build *b)
{
    struct tokenizer *t = b->t;
    struct special_entry *entries = mem_array(t->n, sizeof *entries);
    if (!entries)
        return STATUS_NOMEM;
    size_t n = 0;
    for (int32_t id = 0; id < (int32_t)t->n; id++) {
        struct token_text piece = piece_of(t, id);
        uint8_t type = t->types[id];
        bool control = type == TOKEN_CONTROL || type == TOKEN_UNKNOWN;
        if (piece.n == 0 || (!control && type != TOKEN_USER_DEFINED))
            continue;
        unsigned strip = b->spec->strips ? b->spec->strips[id] : 0;
        entries[n++] = (struct special_entry){
            .p = piece.p,
            .n = (uint32_t)piece.n,
            .id = id,
            .flags = (control ? SPECIAL_CONTROL : 0) | (strip & TOKEN_LSTRIP ? SPECIAL_LSTRIP : 0) |
                     (strip & TOKEN_RSTRIP ? SPECIAL_RSTRIP : 0) |
                     (strip & TOKEN_SINGLE_WORD ? SPECIAL_WORD : 0)};
    }
    int rc = special_init(&t->special, entries, n);
    free(entries);
    return rc;
}

static int build_pretok(struct build *b)
{
    const struct tokenizer_spec *spec = b->spec;
    struct tokenizer *t = b->t;
    if (t->kind != TOKENIZER_BPE)
        return STATUS_OK;
    if (!spec->pre)
        return pretok_create(spec->splits, spec->n_splits, &t->pretok, b->err, b->errlen);
    const struct pretok_preset *preset = pretok_preset_find(spec->pre);
    if (!preset)
        return REFUSE(b, STATUS_UNSUPPORTED, "unknown pre-tokenizer '%.60s'", spec->pre);
    t->nfc = t->nfc || preset->nfc;
    return pretok_create_preset(preset, &t->pretok, b->err, b->errlen);
}

/* Finds the tokens that merging arrives at when given their own text. */
static int build_whole(struct build *b)
{
    struct tokenizer *t = b->t;
    const struct pretok_preset *preset = b->spec->pre ? pretok_preset_find(b->spec->pre) : NULL;
    bool all =
        t->kind == TOKENIZER_BPE && (b->spec->ignore_merges || (preset && preset->ignore_merges));
    struct token_list ids = {0};
    struct encoder e = {.t = t, .out = &ids};
    int rc = STATUS_OK;
    for (int32_t id = 0; id < (int32_t)t->n && rc == STATUS_OK; id++) {
        struct token_text piece = piece_of(t, id);
        if (t->types[id] != TOKEN_NORMAL || piece.n == 0)
            continue;
        if (all) {
            t->whole[id] = 1;
            continue;
        }
        ids.n = 0;
        rc = t->kind == TOKENIZER_BPE ? encode_bpe_word(&e, piece.p, piece.n)
                                      : encode_spm_word(&e, piece.p, piece.n);
        t->whole[id] = ids.n == 1 && ids.ids[0] == id;
    }
    bpe_work_fini(&e.bpe);
    free(e.symbols);
    token_list_fini(&ids);
    return rc;
}

static void add_stop(struct tokenizer *t, int32_t id)
{
    if (id < 0)
        return;
    for (size_t i = 0; i < t->n_stops; i++)
        if (t->stops[i] == id)
            return;
    t->stops[t->n_stops++] = id;
}

static bool has_control(const struct tokenizer *t, const char *text)
{
    const struct special *s = &t->special;
    int32_t id = special_lookup(s, text, strlen(text));
    return id >= 0 && t->types[id] == TOKEN_CONTROL;
}

/* Where an answer may have several messages, "<|end|>" ends one of them and something else the last
 * (GPT-OSS, Solar). */
static bool end_is_inner(const struct tokenizer *t)
{
    return (has_control(t, "<|return|>") && has_control(t, "<|call|>")) ||
           (has_control(t, "<|calls|>") && has_control(t, "<|flush|>"));
}

static bool ends_text(const struct tokenizer *t, size_t id, bool inner)
{
    struct token_text text = piece_of(t, (int32_t)id);
    return t->types[id] == TOKEN_CONTROL && is_end_marker(text) &&
           !(inner && text.n == 7 && memcmp(text.p, "<|end|>", 7) == 0);
}

static int build_stops(struct build *b)
{
    struct tokenizer *t = b->t;
    size_t n = 2 + b->spec->n_stops;
    bool inner = end_is_inner(t);
    for (size_t id = 0; id < t->n; id++)
        n += ends_text(t, id, inner);
    t->stops = mem_array(n, sizeof *t->stops);
    if (!t->stops)
        return STATUS_NOMEM;
    add_stop(t, t->eos);
    add_stop(t, b->spec->eot);
    for (size_t i = 0; i < b->spec->n_stops; i++)
        add_stop(t, b->spec->stops[i]);
    for (size_t id = 0; id < t->n; id++)
        if (ends_text(t, id, inner))
            add_stop(t, (int32_t)id);
    return STATUS_OK;
}

static int check_ids(struct build *b)
{
    const struct tokenizer_spec *s = b->spec;
    const struct {
        const char *name;
        int32_t id;
    } named[] = {{"bos", s->bos}, {"eos", s->eos}, {"eot", s->eot}, {"unk", s->unk}};
    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
        if (named[i].id < -1 || (named[i].id >= 0 && (size_t)named[i].id >= s->n_tokens))
            return REFUSE(b, STATUS_FORMAT, "the %s token is %d, but there are %zu tokens",
                          named[i].name, named[i].id, s->n_tokens);
    for (size_t i = 0; i < s->n_stops; i++)
        if (s->stops[i] < 0 || (size_t)s->stops[i] >= s->n_tokens)
            return REFUSE(b, STATUS_FORMAT, "the end token %d is none of %zu tokens", s->stops[i],
                          s->n_tokens);
    return STATUS_OK;
}

static int build(struct build *b)
{
    TRY(check_ids(b));
    TRY(build_pieces(b));
    TRY(build_words(b));
    TRY(build_merges(b));
    TRY(build_special(b));
    TRY(build_pretok(b));
    b->t->cut_before_space = b->t->kind == TOKENIZER_SPM && spm_can_cut(b->t);
    TRY(build_whole(b));
    return build_stops(b);
}

int tokenizer_create(const struct tokenizer_spec *spec, struct tokenizer **out, char *err,
                     size_t errlen)
{
    struct tokenizer *t = mem_array(1, sizeof *t);
    if (!t)
        return STATUS_NOMEM;
    t->kind = spec->kind;
    t->n = spec->n_tokens;
    t->bos = spec->bos;
    t->eos = spec->eos;
    t->unk = spec->unk;
    t->add_bos = spec->add_bos && spec->bos >= 0;
    t->add_space_prefix = spec->add_space_prefix;
    t->prefix_first_only = spec->prefix_first_only;
    t->prefix_unless_space = spec->prefix_unless_space;
    t->split_at_spaces = spec->split_at_spaces;
    t->nfc = spec->nfc;
    struct build b = {.spec = spec, .t = t, .err = err, .errlen = errlen};
    if (errlen)
        err[0] = 0;
    gpt2_bytes(b.gpt2);
    buf_init(&b.pool, UINT32_MAX);
    int rc = build(&b);
    buf_fini(&b.pool);
    free(b.literal);
    free(b.spelt.slots);
    if (rc != STATUS_OK) {
        if (errlen && !err[0])
            snprintf(err, errlen, "%s", status_text(rc));
        tokenizer_destroy(t);
        return rc;
    }
    *out = t;
    return STATUS_OK;
}

void tokenizer_destroy(struct tokenizer *t)
{
    if (!t)
        return;
    free(t->pool);
    free(t->at);
    free(t->types);
    free(t->whole);
    free(t->words.slots);
    special_fini(&t->special);
    bpe_fini(&t->bpe);
    pretok_destroy(t->pretok);
    free(t->stops);
    free(t);
}
