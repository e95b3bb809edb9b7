/* pretok: pre-tokenizers by PCRE2; see pretok.h.
 *
 * Expressions come from model makers and are compiled with UTF and UCP, so that \p{…}, \d and case
 * folding know Unicode. Three things differ from Oniguruma (Ruby syntax), and translate() settles
 * them:
 *   \s, \S  PCRE2 adds U+180E: they become an explicit White_Space class;
 *   \w, \W  become letters, marks, numbers and connectors;
 *   \h, \H  are hexadecimal digits in Ruby;
 *   $ and ^ match at every line: PCRE2_MULTILINE.
 *
 * Time. The known expressions are linear: each alternative that may run over a long stretch either
 * consumes it or is tried once per stretch. The one exception, `\s+$` (DeepSeek), would look from
 * every position of a run of spaces to its end; it is replaced by a form that starts only where a
 * run starts and never gives back, which matches the same in a piece without line breaks inside
 * (the stage before it cuts those out). Unknown expressions run under a match limit.
 *
 * Stages nest: a piece goes through all later stages before its right neighbour is cut, so the only
 * memory is one match block per stage, and recursion is as deep as there are stages. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "common/text/pretok.h"

#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/mem.h"

#define MATCH_LIMIT 50000000u

struct stage {
    pcre2_code *code;
    bool jit;
    enum tokenizer_split_behavior behavior;
    bool invert;
};
struct pretok {
    struct stage stages[PRETOK_STAGES_MAX];
    size_t n;
};
struct pretok_work {
    pcre2_match_data *match[PRETOK_STAGES_MAX];
    pcre2_match_context *context;
};

#define WORDS      "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define WORDS_I    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define REST       " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define REST_SLASH " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER      "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER      "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define HEAD       "[^\\r\\n\\p{L}\\p{N}]?"
#define TAIL       "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
/* U+4E00..U+9FA5, U+0800..U+4E00, U+AC00..U+D7FF as the DeepSeek tokenizers have it. */
#define CJK "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"
/* The cased letters of the DeepSeek-LLM tokenizer, as ranges. */
#define CASED                                                                                      \
    "A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}\\x{1c4}-"        \
    "\\x{293}\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}\\x{37f}"          \
    "\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}\\x{3f7}-\\x{481}"         \
    "\\x{48a}-\\x{52f}\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}"  \
    "\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{1d79}-"       \
    "\\x{1d9a}\\x{1e00}-\\x{1f15}\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}"        \
    "\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}\\x{1f5d}\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}"         \
    "\\x{1fb6}-\\x{1fbc}\\x{1fbe}\\x{1fc2}-\\x{1fc4}\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}"        \
    "\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}\\x{2102}"        \
    "\\x{2107}\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}\\x{2126}\\x{2128}"          \
    "\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}"        \
    "\\x{214e}\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}\\x{2ceb}-\\x{2cee}"         \
    "\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}\\x{a771}-"        \
    "\\x{a787}\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}"        \
    "\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}"             \
    "\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}"         \
    "\\x{1e900}-\\x{1e943}"
#define FULLWIDTH_PUNCTUATION                                                                      \
    "\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}"

#define STAGES(...)                                                                                \
    (const char *const[])                                                                          \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }

static const struct pretok_preset presets[] = {
    {.names = "gpt-2 gpt2 phi-2 mpt olmo jais trillion granite-docling gigachat jina-es jina-de",
     .stages = STAGES(WORDS)},
    {.names = "smollm starcoder refact command-r codeshell exaone minerva-7b",
     .stages = STAGES("\\p{N}", WORDS)},
    {.names = "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
     .stages = STAGES(WORDS_I "\\p{N}{1,3}|" REST),
     .ignore_merges = true,
     .add_bos = true},
    {.names = "dbrx smaug-bpe", .stages = STAGES(WORDS_I "\\p{N}{1,3}|" REST)},
    {.names = "qwen2 deepseek-r1-qwen", .stages = STAGES(WORDS_I "\\p{N}|" REST), .nfc = true},
    {.names = "stablelm2 hunyuan megrez", .stages = STAGES(WORDS_I "\\p{N}|" REST)},
    {.names = "deepseek-llm",
     .stages = STAGES("[\\r\\n]", "\\s?[" CASED "]+", "\\s?[!-/:-~" FULLWIDTH_PUNCTUATION "]+",
                      "\\s+$", CJK, "\\p{N}")},
    {.names = "deepseek-coder",
     .stages = STAGES("[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", CJK, "\\p{N}")},
    {.names = "deepseek-v3 hunyuan-dense",
     .stages = STAGES("\\p{N}{1,3}", "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+",
                      "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"
                      "[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|"
                      "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")},
    {.names = "tekken",
     .stages = STAGES(HEAD UPPER "*" LOWER "+|" HEAD UPPER "+" LOWER "*|\\p{N}|" REST_SLASH),
     .ignore_merges = true,
     .add_bos = true},
    {.names = "gpt-4o llama4",
     .stages = STAGES(HEAD UPPER "*" LOWER "+" TAIL "|" HEAD UPPER "+" LOWER "*" TAIL
                                 "|\\p{N}{1,3}|" REST_SLASH)},
    /* What llama.cpp does with files that name no pre-tokenizer. */
    {.names = "default",
     .stages = STAGES("[\\p{P}\\$\\+<=>\\^~\\|]+", WORDS, "\\p{N}+", "[0-9][0-9][0-9]")},
};

static bool has_name(const char *names, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = names; *p;) {
        size_t len = strcspn(p, " ");
        if (len == n && memcmp(p, name, n) == 0)
            return true;
        p += len;
        p += strspn(p, " ");
    }
    return false;
}

const struct pretok_preset *pretok_preset_find(const char *name)
{
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)
        if (has_name(presets[i].names, name))
            return &presets[i];
    return NULL;
}

#define SPACE_CLASS                                                                                \
    "\\x{09}-\\x{0d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}"           \
    "\\x{202f}\\x{205f}\\x{3000}"
#define WORD_CLASS "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}"
#define HEX_CLASS  "0-9A-Fa-f"

/* What the escape \c stands for as the inside of a class, and whether that is negated. */
static const char *escape_class(char c, bool *negated)
{
    *negated = c == 'S' || c == 'W' || c == 'H';
    switch (c) {
    case 's':
    case 'S':
        return SPACE_CLASS;
    case 'w':
    case 'W':
        return WORD_CLASS;
    case 'h':
    case 'H':
        return HEX_CLASS;
    default:
        return NULL;
    }
}

/* Rewrites an Oniguruma expression for PCRE2. STATUS_UNSUPPORTED for what has no equivalent. */
static int translate(const char *p, size_t n, struct buf *out)
{
    if (n == 4 && memcmp(p, "\\s+$", 4) == 0) {
        buf_puts(out, "(?<![" SPACE_CLASS "])[" SPACE_CLASS "]++$");
        return buf_ok(out) ? STATUS_OK : STATUS_NOMEM;
    }
    int depth = 0; /* of nested classes; PCRE2 10.42 has one level */
    for (size_t i = 0; i < n; i++) {
        if (p[i] != '\\' || i + 1 == n) {
            if (p[i] == '[')
                depth++;
            else if (p[i] == ']' && depth > 0)
                depth--;
            bool posix = depth > 1 && i + 1 < n && p[i + 1] == ':';
            bool both = depth > 0 && p[i] == '&' && i + 1 < n && p[i + 1] == '&';
            if ((depth > 1 && !posix) || both)
                return STATUS_UNSUPPORTED;
            buf_putc(out, p[i]);
            continue;
        }
        bool negated;
        const char *class = escape_class(p[++i], &negated);
        if (!class) {
            buf_putc(out, '\\');
            buf_putc(out, p[i]);
        } else if (depth == 0) {
            buf_printf(out, "[%s%s]", negated ? "^" : "", class);
        } else if (!negated) {
            buf_puts(out, class);
        } else {
            return STATUS_UNSUPPORTED;
        }
    }
    return buf_ok(out) ? STATUS_OK : STATUS_NOMEM;
}

static int stage_init(struct stage *s, const struct tokenizer_split *split, char *err,
                      size_t errlen)
{
    struct buf pattern;
    buf_init(&pattern, 1 << 20);
    int rc = translate(split->regex.p, split->regex.n, &pattern);
    if (rc != STATUS_OK) {
        snprintf(err, errlen, "pre-tokenizer expression '%.*s' is not supported",
                 (int)(split->regex.n < 60 ? split->regex.n : 60), split->regex.p);
        goto out;
    }
    int code;
    PCRE2_SIZE offset;
    s->code = pcre2_compile((PCRE2_SPTR)buf_str(&pattern), pattern.len,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &code, &offset, NULL);
    if (!s->code) {
        PCRE2_UCHAR text[128] = "";
        pcre2_get_error_message(code, text, sizeof text);
        snprintf(err, errlen, "pre-tokenizer expression '%.*s': %s",
                 (int)(split->regex.n < 60 ? split->regex.n : 60), split->regex.p, (char *)text);
        rc = STATUS_UNSUPPORTED;
        goto out;
    }
    s->jit = pcre2_jit_compile(s->code, PCRE2_JIT_COMPLETE) == 0;
    s->behavior = split->behavior;
    s->invert = split->invert;
out:
    buf_fini(&pattern);
    return rc;
}

int pretok_create(const struct tokenizer_split *splits, size_t n, struct pretok **out, char *err,
                  size_t errlen)
{
    if (n > PRETOK_STAGES_MAX) {
        snprintf(err, errlen, "pre-tokenizer has %zu stages, more than %d", n, PRETOK_STAGES_MAX);
        return STATUS_LIMIT;
    }
    struct pretok *p = mem_array(1, sizeof *p);
    if (!p)
        return STATUS_NOMEM;
    for (; p->n < n; p->n++) {
        int rc = stage_init(&p->stages[p->n], &splits[p->n], err, errlen);
        if (rc != STATUS_OK) {
            pretok_destroy(p);
            return rc;
        }
    }
    *out = p;
    return STATUS_OK;
}

int pretok_create_preset(const struct pretok_preset *preset, struct pretok **out, char *err,
                         size_t errlen)
{
    struct tokenizer_split splits[PRETOK_STAGES_MAX] = {0};
    size_t n = 0;
    for (; preset->stages[n]; n++)
        splits[n].regex = (struct token_text){preset->stages[n], strlen(preset->stages[n])};
    return pretok_create(splits, n, out, err, errlen);
}

void pretok_destroy(struct pretok *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < PRETOK_STAGES_MAX; i++)
        pcre2_code_free(p->stages[i].code);
    free(p);
}

int pretok_work_create(const struct pretok *p, struct pretok_work **out)
{
    struct pretok_work *w = mem_array(1, sizeof *w);
    if (!w)
        return STATUS_NOMEM;
    w->context = pcre2_match_context_create(NULL);
    bool ok = w->context != NULL;
    for (size_t i = 0; ok && i < p->n; i++) {
        w->match[i] = pcre2_match_data_create(1, NULL); /* only where the whole match lies */
        ok = w->match[i] != NULL;
    }
    if (!ok) {
        pretok_work_destroy(w);
        return STATUS_NOMEM;
    }
    pcre2_set_match_limit(w->context, MATCH_LIMIT);
    *out = w;
    return STATUS_OK;
}

void pretok_work_destroy(struct pretok_work *w)
{
    if (!w)
        return;
    for (size_t i = 0; i < PRETOK_STAGES_MAX; i++)
        pcre2_match_data_free(w->match[i]);
    pcre2_match_context_free(w->context);
    free(w);
}

/* One run of pretok_run, and one piece that a stage is still gathering. */
struct run {
    const struct pretok *p;
    struct pretok_work *w;
    pretok_word_fn word;
    void *arg;
};

/* The next match at or after from; false in *found when there is none. */
static int next_match(const struct run *r, size_t stage, const char *text, size_t n, size_t from,
                      bool *found, size_t *begin, size_t *end)
{
    const struct stage *s = &r->p->stages[stage];
    pcre2_match_data *m = r->w->match[stage];
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;
    if (s->jit)
        rc = pcre2_jit_match(s->code, (PCRE2_SPTR)text, n, from, 0, m, r->w->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(s->code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, m,
                         r->w->context);
    *found = rc >= 0;
    if (rc >= 0) {
        const PCRE2_SIZE *at = pcre2_get_ovector_pointer(m);
        *begin = at[0];
        *end = at[1] > at[0] ? at[1] : at[0];
        return STATUS_OK;
    }
    if (rc == PCRE2_ERROR_NOMATCH)
        return STATUS_OK;
    return rc == PCRE2_ERROR_NOMEMORY ? STATUS_NOMEM : STATUS_LIMIT;
}

static int cut(const struct run *r, size_t stage, const char *text, size_t n);

static int pass_on(const struct run *r, size_t stage, const char *text, size_t begin, size_t end)
{
    if (begin == end)
        return STATUS_OK;
    if (stage + 1 == r->p->n)
        return r->word(r->arg, text + begin, end - begin);
    return cut(r, stage + 1, text + begin, end - begin);
}

/* A piece under construction: text[begin, end), the last part of which was a match or was not. */
struct piece {
    size_t begin, end;
    bool match;
};

/* Adds the stretch text[begin, end) and passes on what is complete by the stage's behaviour. */
static int add(const struct run *r, size_t stage, const char *text, struct piece *held,
               size_t begin, size_t end, bool match)
{
    if (begin == end)
        return STATUS_OK;
    bool join = false;
    switch (r->p->stages[stage].behavior) {
    case TOKENIZER_SPLIT_ISOLATED:
    case TOKENIZER_SPLIT_REMOVED:
        break;
    case TOKENIZER_SPLIT_WITH_PREVIOUS:
        join = match && !held->match;
        break;
    case TOKENIZER_SPLIT_WITH_NEXT:
        join = held->match && !match;
        break;
    case TOKENIZER_SPLIT_CONTIGUOUS:
        join = match == held->match;
        break;
    }
    if (held->begin < held->end && !join) {
        bool drop = held->match && r->p->stages[stage].behavior == TOKENIZER_SPLIT_REMOVED;
        if (!drop)
            TRY(pass_on(r, stage, text, held->begin, held->end));
        held->begin = begin;
    } else if (held->begin == held->end) {
        held->begin = begin;
    }
    held->end = end;
    held->match = match;
    return STATUS_OK;
}

static int cut(const struct run *r, size_t stage, const char *text, size_t n)
{
    bool invert = r->p->stages[stage].invert;
    struct piece held = {0};
    size_t done = 0, from = 0;
    while (from < n) {
        bool found;
        size_t begin = 0, end = 0;
        TRY(next_match(r, stage, text, n, from, &found, &begin, &end));
        if (!found)
            break;
        TRY(add(r, stage, text, &held, done, begin, invert));
        TRY(add(r, stage, text, &held, begin, end, !invert));
        done = end;
        from = end;
        if (end == begin) { /* an empty match: go on behind the next character */
            from++;
            while (from < n && (text[from] & 0xc0) == 0x80)
                from++;
        }
    }
    TRY(add(r, stage, text, &held, done, n, invert));
    if (held.match && r->p->stages[stage].behavior == TOKENIZER_SPLIT_REMOVED)
        return STATUS_OK;
    return pass_on(r, stage, text, held.begin, held.end);
}

int pretok_run(const struct pretok *p, struct pretok_work *w, const char *text, size_t n,
               pretok_word_fn word, void *arg)
{
    if (n == 0)
        return STATUS_OK;
    if (p->n == 0)
        return word(arg, text, n);
    struct run r = {.p = p, .w = w, .word = word, .arg = arg};
    return cut(&r, 0, text, n);
}
