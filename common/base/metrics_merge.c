/* metrics_merge: one page of Prometheus text made of several.
 *
 * The pages come from peers, so every line is parsed in full and written anew; what does not parse
 * is dropped, and so is what would make the result invalid:
 *   - a family has one type: the first TYPE line wins, and a page that says otherwise loses its
 *     samples of that family;
 *   - a series (name and labels) appears once: the first wins;
 *   - a histogram or summary (its labels without le or quantile) comes from one page, because the
 *     buckets of two would not fit together.
 *
 * Two passes. The first collects families from HELP and TYPE lines of all pages; the second sorts
 * samples into them, each family's text growing in its own buffer. Lookups go through hash tables:
 * a page of a million different lines costs a million steps. Memory is bounded by a few times the
 * input, whose size the caller bounds.
 *
 * Grammar (exposition format 0.0.4): NAME [{LABEL="VALUE",...}] FLOAT [TIMESTAMP], fields separated
 * by blanks and tabs; \\, \" and \n are the only escapes. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/map.h"
#include "common/base/mem.h"
#include "common/base/metrics.h"

#define LABELS_MAX 64

enum kind { KIND_UNTYPED, KIND_COUNTER, KIND_GAUGE, KIND_HISTOGRAM, KIND_SUMMARY, KIND_N };
static const char *const kind_names[KIND_N] = {"untyped", "counter", "gauge", "histogram",
                                               "summary"};

/* A piece of a page. */
struct span {
    const char *at;
    size_t n;
};

struct family {
    UT_hash_handle hh;
    char *name; /* the key */
    struct span help;
    enum kind kind;
    bool has_help, has_kind;
    size_t page; /* page whose TYPE line was seen last, plus one, and */
    bool agrees; /* whether that line says the same as kind */
    struct buf samples;
};

/* A series that is taken, or a histogram with the page that it comes from. */
struct series {
    UT_hash_handle hh;
    size_t page;
    char key[];
};

struct merge {
    struct family *families;
    struct series *series, *groups;
    struct buf key; /* scratch */
};

/* ---- scanning ---- */

static bool is_first(char c)
{
    return isalpha((unsigned char)c) || c == '_';
}

/* Takes [a-zA-Z_][a-zA-Z0-9_]*, with colons if it may, off the front; n is 0 when there is none. */
static struct span take_name(struct span *s, bool colons)
{
    struct span name = {s->at, 0};
    while (name.n < s->n) {
        char c = name.at[name.n];
        if (!is_first(c) && !(colons && c == ':') && !(name.n && c >= '0' && c <= '9'))
            break;
        name.n++;
    }
    s->at += name.n;
    s->n -= name.n;
    return name;
}

static bool skip_blanks(struct span *s)
{
    size_t n = s->n;
    while (s->n && (*s->at == ' ' || *s->at == '\t')) {
        s->at++;
        s->n--;
    }
    return n != s->n;
}

static bool take_char(struct span *s, char c)
{
    if (!s->n || *s->at != c)
        return false;
    s->at++;
    s->n--;
    return true;
}

static struct span take_word(struct span *s)
{
    struct span w = {s->at, 0};
    while (w.n < s->n && w.at[w.n] != ' ' && w.at[w.n] != '\t')
        w.n++;
    s->at += w.n;
    s->n -= w.n;
    return w;
}

static bool span_is(struct span s, const char *text)
{
    return s.n == strlen(text) && memcmp(s.at, text, s.n) == 0;
}

/* A float as Prometheus reads it: decimal, or NaN, Inf with a sign. strtod takes more than that
 * (hexadecimal, "nan(1)", "infinity"), so the letters are checked first. */
static bool parse_float(struct span s, double *out)
{
    char text[64], *end;
    struct span bare = s;
    if (!take_char(&bare, '-'))
        take_char(&bare, '+');
    if (s.n == 0 || s.n >= sizeof text)
        return false;
    if (!span_is(bare, "NaN") && !span_is(bare, "Inf")) {
        for (size_t i = 0; i < s.n; i++) {
            if (!strchr("0123456789+-.eE", s.at[i]) || s.at[i] == 0)
                return false;
        }
    }
    memcpy(text, s.at, s.n);
    text[s.n] = 0;
    errno = 0;
    *out = strtod(text, &end);
    return end == text + s.n;
}

static bool is_timestamp(struct span s)
{
    size_t i = s.n && *s.at == '-';
    if (s.n - i == 0 || s.n - i > 18)
        return false;
    for (; i < s.n; i++) {
        if (s.at[i] < '0' || s.at[i] > '9')
            return false;
    }
    return true;
}

/* Well-formed UTF-8 without NUL (RFC 3629: no overlong forms, surrogates or values over 10FFFF). */
static bool is_utf8(struct span s)
{
    const unsigned char *p = (const unsigned char *)s.at, *end = p + s.n;
    while (p < end) {
        unsigned c = *p++;
        int more = c < 0x80 ? 0 : c < 0xc2 ? -1 : c < 0xe0 ? 1 : c < 0xf0 ? 2 : c < 0xf5 ? 3 : -1;
        if (c == 0 || more < 0 || more > end - p)
            return false;
        for (int i = 0; i < more; i++, p++) {
            unsigned low = 0x80, high = 0xbf;
            if (i == 0) {
                low = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : low;
                high = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : high;
            }
            if (*p < low || *p > high)
                return false;
        }
    }
    return true;
}

/* Only the escapes that the format knows. */
static bool escapes_valid(struct span s, bool quotes)
{
    for (size_t i = 0; i < s.n; i++) {
        if (s.at[i] != '\\')
            continue;
        i++;
        if (i == s.n || !(s.at[i] == '\\' || s.at[i] == 'n' || (quotes && s.at[i] == '"')))
            return false;
    }
    return true;
}

struct sample {
    struct span name, value, timestamp; /* timestamp.n 0: none */
    struct span label[LABELS_MAX], text[LABELS_MAX];
    size_t n_labels;
};

/* {LABEL="VALUE",...}; a comma may follow the last one. */
static bool parse_labels(struct span *line, struct sample *s)
{
    s->n_labels = 0;
    if (!take_char(line, '{'))
        return true;
    for (skip_blanks(line); !take_char(line, '}'); skip_blanks(line)) {
        size_t k = s->n_labels++;
        if (k == LABELS_MAX)
            return false;
        s->label[k] = take_name(line, false);
        skip_blanks(line);
        if (s->label[k].n == 0 || !take_char(line, '='))
            return false;
        skip_blanks(line);
        if (!take_char(line, '"'))
            return false;
        s->text[k] = (struct span){line->at, 0};
        size_t n = 0;
        while (n < line->n && line->at[n] != '"')
            n += line->at[n] == '\\' ? 2 : 1;
        if (n >= line->n)
            return false;
        s->text[k].n = n;
        line->at += n + 1;
        line->n -= n + 1;
        if (!escapes_valid(s->text[k], true))
            return false;
        for (size_t i = 0; i < k; i++) {
            if (s->label[i].n == s->label[k].n &&
                memcmp(s->label[i].at, s->label[k].at, s->label[k].n) == 0)
                return false;
        }
        skip_blanks(line);
        if (!take_char(line, ',') && !(line->n && *line->at == '}'))
            return false;
    }
    return true;
}

static bool parse_sample(struct span line, struct sample *s)
{
    double value;
    skip_blanks(&line);
    s->name = take_name(&line, true);
    if (s->name.n == 0)
        return false;
    bool apart = skip_blanks(&line), labels = line.n && *line.at == '{';
    if (!parse_labels(&line, s) || !(skip_blanks(&line) || apart || labels))
        return false;
    s->value = take_word(&line);
    skip_blanks(&line);
    s->timestamp = take_word(&line);
    skip_blanks(&line);
    return line.n == 0 && parse_float(s->value, &value) &&
           (s->timestamp.n == 0 || is_timestamp(s->timestamp));
}

/* The next line of a page, without its end; false when there is none. */
static bool next_line(struct span *page, struct span *line)
{
    if (!page->n)
        return false;
    const char *end = memchr(page->at, '\n', page->n);
    line->at = page->at;
    line->n = end ? (size_t)(end - page->at) : page->n;
    page->n -= line->n + (end != NULL);
    page->at += line->n + (end != NULL);
    return true;
}

/* "# HELP name rest" or "# TYPE name rest"; rest keeps its inner blanks. */
static bool parse_comment(struct span line, const char *word, struct span *name, struct span *rest)
{
    skip_blanks(&line);
    if (!take_char(&line, '#') || !skip_blanks(&line) || !span_is(take_word(&line), word) ||
        !skip_blanks(&line))
        return false;
    *name = take_name(&line, true);
    if (name->n == 0 || (line.n && !skip_blanks(&line)))
        return false;
    *rest = line;
    return true;
}

static bool parse_kind(struct span text, enum kind *out)
{
    while (text.n && (text.at[text.n - 1] == ' ' || text.at[text.n - 1] == '\t'))
        text.n--;
    for (int k = 0; k < KIND_N; k++) {
        if (span_is(text, kind_names[k])) {
            *out = (enum kind)k;
            return true;
        }
    }
    return false;
}

/* ---- families and series ---- */

static struct family *family_find(const struct merge *m, const char *name, size_t n)
{
    struct family *f;
    HASH_FIND(hh, m->families, name, n, f);
    return f;
}

/* Finds or adds; NULL when memory is short. */
static struct family *family_get(struct merge *m, struct span name)
{
    struct family *f = family_find(m, name.at, name.n);
    if (f)
        return f;
    f = mem_array(1, sizeof *f);
    if (!f)
        return NULL;
    buf_init(&f->samples, 0);
    f->name = mem_array(name.n + 1, 1);
    if (f->name) {
        memcpy(f->name, name.at, name.n);
        HASH_ADD_KEYPTR(hh, m->families, f->name, name.n, f);
        if (f->hh.tbl)
            return f;
    }
    free(f->name);
    free(f);
    return NULL;
}

/* Says which page the key belongs to: `page` when it is new. 0 when memory is short. */
static size_t series_owner(struct series **table, const struct buf *key, size_t page)
{
    struct series *s;
    if (!buf_ok(key))
        return 0;
    HASH_FIND(hh, *table, key->data, key->len, s);
    if (s)
        return s->page;
    s = malloc(sizeof *s + key->len);
    if (!s)
        return 0;
    s->page = page;
    memcpy(s->key, key->data, key->len);
    HASH_ADD_KEYPTR(hh, *table, s->key, key->len, s);
    if (s->hh.tbl)
        return page;
    free(s);
    return 0;
}

static int label_compare(const void *a, const void *b, void *ctx)
{
    const struct sample *s = ctx;
    struct span x = s->label[*(const size_t *)a], y = s->label[*(const size_t *)b];
    int c = memcmp(x.at, y.at, x.n < y.n ? x.n : y.n);
    return c ? c : (x.n > y.n) - (x.n < y.n);
}

/* Key of a series: the name and its labels in order of their names, without `skip`. */
static void series_key(struct buf *key, struct span name, struct sample *s, const char *skip)
{
    size_t order[LABELS_MAX];
    for (size_t i = 0; i < s->n_labels; i++)
        order[i] = i;
    qsort_r(order, s->n_labels, sizeof *order, label_compare, s);
    buf_reset(key);
    buf_append(key, name.at, name.n);
    for (size_t i = 0; i < s->n_labels; i++) {
        size_t k = order[i];
        if (skip && span_is(s->label[k], skip))
            continue;
        buf_putc(key, ',');
        buf_append(key, s->label[k].at, s->label[k].n);
        buf_putc(key, '"');
        buf_append(key, s->text[k].at, s->text[k].n);
    }
}

/* The family that a sample belongs to, and the part of the family that it is: "", "_bucket",
 * "_sum" or "_count". A family of the very name goes first, as in Prometheus' own parser. */
static struct family *sample_family(struct merge *m, struct span name, const char **part)
{
    static const char *const parts[] = {"_bucket", "_sum", "_count"};
    struct family *f = family_find(m, name.at, name.n);
    *part = "";
    if (f)
        return f;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        size_t n = strlen(parts[i]);
        if (name.n <= n || memcmp(name.at + name.n - n, parts[i], n) != 0)
            continue;
        f = family_find(m, name.at, name.n - n);
        if (f && f->has_kind &&
            (f->kind == KIND_HISTOGRAM || (f->kind == KIND_SUMMARY && i != 0))) {
            *part = parts[i];
            return f;
        }
    }
    return family_get(m, name);
}

/* The label that sets the members of a histogram or summary apart. */
static const char *member_label(enum kind kind)
{
    return kind == KIND_HISTOGRAM ? "le" : kind == KIND_SUMMARY ? "quantile" : NULL;
}

/* Has the sample the shape that its family's type asks for? */
static bool shape_valid(enum kind kind, const struct sample *s, const char *part)
{
    const char *label = member_label(kind);
    bool member = kind == KIND_HISTOGRAM ? strcmp(part, "_bucket") == 0 : *part == 0, found = false;
    double bound;
    if (!label)
        return true;
    if (kind == KIND_HISTOGRAM && *part == 0)
        return false;
    for (size_t i = 0; i < s->n_labels; i++) {
        if (span_is(s->label[i], label)) {
            found = true;
            if (!parse_float(s->text[i], &bound))
                return false;
        }
    }
    return found == member;
}

static void take_sample(struct merge *m, struct sample *s, size_t page)
{
    const char *part;
    struct family *f = sample_family(m, s->name, &part);
    if (!f || (f->page == page && !f->agrees) || !shape_valid(f->kind, s, part))
        return;
    const char *label = member_label(f->kind);
    if (label) {
        series_key(&m->key, (struct span){f->name, strlen(f->name)}, s, label);
        if (series_owner(&m->groups, &m->key, page) != page)
            return;
    }
    series_key(&m->key, s->name, s, NULL);
    unsigned known = HASH_COUNT(m->series);
    if (series_owner(&m->series, &m->key, page) != page || HASH_COUNT(m->series) == known)
        return;
    struct buf *out = &f->samples;
    buf_append(out, s->name.at, s->name.n);
    for (size_t i = 0; i < s->n_labels; i++) {
        buf_putc(out, i ? ',' : '{');
        buf_append(out, s->label[i].at, s->label[i].n);
        buf_puts(out, "=\"");
        buf_append(out, s->text[i].at, s->text[i].n);
        buf_putc(out, '"');
    }
    buf_puts(out, s->n_labels ? "} " : " ");
    buf_append(out, s->value.at, s->value.n);
    if (s->timestamp.n) {
        buf_putc(out, ' ');
        buf_append(out, s->timestamp.at, s->timestamp.n);
    }
    buf_putc(out, '\n');
}

/* ---- the passes ---- */

static bool line_usable(struct span line)
{
    return line.n && is_utf8(line);
}

static void collect_families(struct merge *m, const struct buf *page)
{
    struct span rest_of_page = {page->data, page->len}, line, name, rest;
    struct family *f;
    enum kind kind;
    while (next_line(&rest_of_page, &line)) {
        if (!line_usable(line))
            continue;
        if (parse_comment(line, "TYPE", &name, &rest) && parse_kind(rest, &kind)) {
            f = family_get(m, name);
            if (f && !f->has_kind) {
                f->kind = kind;
                f->has_kind = true;
            }
        } else if (parse_comment(line, "HELP", &name, &rest) && escapes_valid(rest, false)) {
            f = family_get(m, name);
            if (f && !f->has_help) {
                f->help = rest;
                f->has_help = true;
            }
        }
    }
}

static void collect_samples(struct merge *m, const struct buf *page, size_t number)
{
    struct span rest_of_page = {page->data, page->len}, line, name, rest;
    struct sample s;
    enum kind kind;
    while (next_line(&rest_of_page, &line)) {
        if (!line_usable(line))
            continue;
        if (parse_comment(line, "TYPE", &name, &rest) && parse_kind(rest, &kind)) {
            struct family *f = family_find(m, name.at, name.n);
            if (f && f->page != number) {
                f->page = number;
                f->agrees = f->kind == kind;
            }
        } else if (parse_sample(line, &s)) {
            take_sample(m, &s, number);
        }
    }
}

static void series_free(struct series **table)
{
    struct series *s, *next;
    HASH_ITER (hh, *table, s, next) {
        HASH_DEL(*table, s);
        free(s);
    }
}

void metrics_merge(struct buf *out, const struct buf *pages, size_t n)
{
    struct merge m = {0};
    struct family *f, *next;
    buf_init(&m.key, 0);
    for (size_t i = 0; i < n; i++)
        collect_families(&m, &pages[i]);
    for (size_t i = 0; i < n; i++)
        collect_samples(&m, &pages[i], i + 1);
    HASH_ITER (hh, m.families, f, next) {
        if (f->samples.len) {
            if (f->has_help) {
                buf_printf(out, "# HELP %s ", f->name);
                buf_append(out, f->help.at, f->help.n);
                buf_putc(out, '\n');
            }
            if (f->has_kind)
                buf_printf(out, "# TYPE %s %s\n", f->name, kind_names[f->kind]);
            buf_append(out, f->samples.data, f->samples.len);
        }
        HASH_DEL(m.families, f);
        buf_fini(&f->samples);
        free(f->name);
        free(f);
    }
    series_free(&m.series);
    series_free(&m.groups);
    buf_fini(&m.key);
}
