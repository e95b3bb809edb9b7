/* regex: the syntax of regular expressions, to a tree (regex_tree.c makes it an automaton). A plain
 * recursive descent; groups nest at most NEST_MAX deep. */
#include "common/text/regex_tree.h"

#include <stdlib.h>
#include <string.h>

#include "common/text/unicode.h"

#define NEST_MAX 250

struct parser {
    struct grammar_builder *b;
    const char *p, *end, *begin, *where;
    int depth;
};

static struct regex_node *refuse(struct parser *p, int status, const char *what)
{
    grammar_fail(p->b, status, "%s%sregular expression, at byte %zu: %s", p->where,
                 *p->where ? ": " : "", (size_t)(p->p - p->begin), what);
    return NULL;
}

static struct regex_node *node_new(struct parser *p, enum regex_type type)
{
    struct regex_node *n = arena_alloc(&p->b->arena, sizeof *n);
    if (!n)
        return refuse(p, STATUS_LIMIT, "it is too large");
    n->type = type;
    return n;
}

static bool at(const struct parser *p, char c)
{
    return p->p < p->end && *p->p == c;
}

static bool take(struct parser *p, char c)
{
    if (!at(p, c))
        return false;
    p->p++;
    return true;
}

static bool take_text(struct parser *p, const char *s)
{
    size_t n = strlen(s);
    if ((size_t)(p->end - p->p) < n || memcmp(p->p, s, n) != 0)
        return false;
    p->p += n;
    return true;
}

/* One code point of the source. */
static uint32_t take_char(struct parser *p)
{
    uint32_t cp = UNICODE_REPLACEMENT;
    size_t len;
    if (unicode_next(p->p, (size_t)(p->end - p->p), &cp, &len) != UNICODE_CHAR)
        refuse(p, STATUS_FORMAT, "it is not UTF-8");
    p->p += len;
    return cp;
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool take_hex(struct parser *p, int digits, uint32_t *out)
{
    uint32_t v = 0;
    if (p->end - p->p < digits)
        return false;
    for (int i = 0; i < digits; i++) {
        int h = hex_value(p->p[i]);
        if (h < 0)
            return false;
        v = v << 4 | (uint32_t)h;
    }
    p->p += digits;
    *out = v;
    return true;
}

/* After \u: four digits, two such that make a pair, or {…}. */
static bool take_unicode(struct parser *p, uint32_t *out)
{
    uint32_t v = 0, low;
    if (take(p, '{')) {
        int digits = 0;
        for (; p->p < p->end && hex_value(*p->p) >= 0 && digits < 8; digits++)
            v = v << 4 | (uint32_t)hex_value(*p->p++);
        *out = v;
        return digits > 0 && digits < 8 && v <= UNICODE_MAX && take(p, '}');
    }
    if (!take_hex(p, 4, &v))
        return false;
    if (v >= 0xd800 && v < 0xdc00) {
        const char *back = p->p;
        if (take_text(p, "\\u") && take_hex(p, 4, &low) && low >= 0xdc00 && low < 0xe000)
            v = 0x10000 + ((v - 0xd800) << 10) + (low - 0xdc00);
        else
            p->p = back;
    }
    *out = v;
    return true;
}

/* An escape whose backslash has been taken: a set (into *set; *single false), or one character.
 * False after a failure. */
static bool take_escape(struct parser *p, struct regex_set *set, uint32_t *cp, bool *single)
{
    *single = true;
    if (p->p == p->end)
        return refuse(p, STATUS_FORMAT, "it ends in a backslash"), false;
    char c = *p->p;
    if ((uint8_t)c >= 0x80) {
        *cp = take_char(p);
        return p->b->status == STATUS_OK;
    }
    if (regex_set_escape(p->b, c, set)) {
        p->p++;
        *single = false;
        return p->b->status == STATUS_OK;
    }
    if (c == 'p' || c == 'P') {
        const char *name = p->p + 2, *close = NULL;
        struct regex_set t = {0};
        if (p->end - p->p > 2 && p->p[1] == '{')
            close = memchr(name, '}', (size_t)(p->end - name));
        if (close && strncmp(name, "General_Category=", 17) == 0)
            name += 17;
        else if (close && strncmp(name, "gc=", 3) == 0)
            name += 3;
        if (!close || !regex_set_property(p->b, name, (size_t)(close - name), &t))
            return refuse(p, STATUS_UNSUPPORTED, "this Unicode property is not supported"), false;
        if (c == 'P' && !regex_set_negate(p->b, &t))
            return false;
        p->p = close + 1;
        *single = false;
        return regex_set_join(p->b, set, &t);
    }
    p->p++;
    switch (c) {
    case 't':
        *cp = '\t';
        return true;
    case 'n':
        *cp = '\n';
        return true;
    case 'v':
        *cp = '\v';
        return true;
    case 'f':
        *cp = '\f';
        return true;
    case 'r':
        *cp = '\r';
        return true;
    case '0':
        *cp = 0;
        if (p->p < p->end && *p->p >= '0' && *p->p <= '9')
            return refuse(p, STATUS_FORMAT, "octal escapes are not allowed"), false;
        return true;
    case 'c':
        if (p->p < p->end && ((*p->p | 0x20) >= 'a' && (*p->p | 0x20) <= 'z')) {
            *cp = (uint32_t)(*p->p++ & 31);
            return true;
        }
        return refuse(p, STATUS_FORMAT, "\\c is not followed by a letter"), false;
    case 'x':
        return take_hex(p, 2, cp) ||
               (refuse(p, STATUS_FORMAT, "\\x is not followed by two hexadecimal digits"), false);
    case 'u':
        return take_unicode(p, cp) ||
               (refuse(p, STATUS_FORMAT, "\\u is not followed by hexadecimal digits"), false);
    case 'b':
    case 'B':
        return refuse(p, STATUS_UNSUPPORTED, "word boundaries are not supported"), false;
    case 'k':
        return refuse(p, STATUS_UNSUPPORTED, "back-references are not supported"), false;
    default:
        break;
    }
    if (c >= '1' && c <= '9')
        return refuse(p, STATUS_UNSUPPORTED, "back-references are not supported"), false;
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
        return refuse(p, STATUS_FORMAT, "unknown escape"), false;
    *cp = (uint8_t)c;
    return true;
}

/* One member of a class: a set, or a character. */
static bool take_member(struct parser *p, struct regex_set *set, uint32_t *cp, bool *single)
{
    if (take(p, '\\')) {
        if (take(p, 'b')) { /* in a class it is the backspace */
            *cp = '\b';
            *single = true;
            return true;
        }
        return take_escape(p, set, cp, single);
    }
    *single = true;
    *cp = take_char(p);
    return p->b->status == STATUS_OK;
}

static struct regex_node *parse_class(struct parser *p)
{
    struct regex_node *n = node_new(p, REGEX_SET);
    bool negate = take(p, '^');
    while (n && !at(p, ']')) {
        uint32_t lo, hi;
        bool single, single_hi;
        if (p->p == p->end)
            return refuse(p, STATUS_FORMAT, "a [ is not closed");
        if (!take_member(p, &n->set, &lo, &single))
            return NULL;
        if (p->end - p->p > 1 && p->p[0] == '-' && p->p[1] != ']') {
            p->p++;
            if (!take_member(p, &n->set, &hi, &single_hi))
                return NULL;
            if (!single || !single_hi)
                return refuse(p, STATUS_FORMAT, "a class such as \\d ends no range");
            if (lo > hi)
                return refuse(p, STATUS_FORMAT, "a range runs backwards");
            if (!regex_set_add(p->b, &n->set, lo, hi))
                return NULL;
        } else if (single && !regex_set_add(p->b, &n->set, lo, lo)) {
            return NULL;
        }
    }
    p->p++;
    if (!n)
        return NULL;
    regex_set_sort(&n->set);
    return negate && !regex_set_negate(p->b, &n->set) ? NULL : n;
}

static struct regex_node *parse_alternatives(struct parser *p);

static struct regex_node *parse_group(struct parser *p)
{
    if (take(p, '?')) {
        if (take_text(p, "=") || take_text(p, "!") || take_text(p, "<=") || take_text(p, "<!"))
            return refuse(p, STATUS_UNSUPPORTED, "look-around is not supported");
        if (take_text(p, "<") || take_text(p, "P<")) {
            const char *close = memchr(p->p, '>', (size_t)(p->end - p->p));
            if (!close || close == p->p)
                return refuse(p, STATUS_FORMAT, "a group has no name");
            p->p = close + 1;
        } else if (!take(p, ':')) {
            return refuse(p, STATUS_UNSUPPORTED, "this kind of group is not supported");
        }
    }
    if (++p->depth > NEST_MAX)
        return refuse(p, STATUS_LIMIT, "groups are nested too deep");
    struct regex_node *n = parse_alternatives(p);
    p->depth--;
    if (n && !take(p, ')'))
        return refuse(p, STATUS_FORMAT, "a ( is not closed");
    return n;
}

static struct regex_node *parse_atom(struct parser *p)
{
    struct regex_node *n;
    struct regex_set line_ends = {0};
    bool single = true;
    uint32_t cp = 0;
    if (take(p, '('))
        return parse_group(p);
    if (take(p, '['))
        return parse_class(p);
    if (at(p, '^') || at(p, '$'))
        return node_new(p, *p->p++ == '^' ? REGEX_BEGIN : REGEX_END);
    if (at(p, '*') || at(p, '+') || at(p, '?'))
        return refuse(p, STATUS_FORMAT, "there is nothing to repeat");
    n = node_new(p, REGEX_SET);
    if (!n)
        return NULL;
    if (take(p, '.')) {
        if (!regex_set_add(p->b, &line_ends, '\n', '\n') ||
            !regex_set_add(p->b, &line_ends, '\r', '\r') ||
            !regex_set_add(p->b, &line_ends, 0x2028, 0x2029) || !regex_set_negate(p->b, &line_ends))
            return NULL;
        n->set = line_ends;
        return n;
    }
    if (take(p, '\\')) {
        if (!take_escape(p, &n->set, &cp, &single))
            return NULL;
    } else {
        cp = take_char(p);
    }
    if (single)
        regex_set_add(p->b, &n->set, cp, cp);
    regex_set_sort(&n->set);
    return p->b->status == STATUS_OK ? n : NULL;
}

bool regex_take_number(const char **p, const char *end, uint32_t *out)
{
    uint64_t v = 0;
    const char *begin = *p;
    for (; *p < end && **p >= '0' && **p <= '9'; ++*p) {
        if (v <= REGEX_COUNT_MAX)
            v = v * 10 + (uint64_t)(**p - '0');
    }
    *out = v > REGEX_COUNT_MAX ? REGEX_COUNT_MAX + 1 : (uint32_t)v;
    return *p > begin;
}

/* {n}, {n,} or {n,m}; anything else after a { is plain text and leaves p where it is. */
static bool take_counts(struct parser *p, uint32_t *min, uint32_t *max)
{
    const char *back = p->p;
    if (take(p, '{') && regex_take_number(&p->p, p->end, min)) {
        *max = *min;
        if (take(p, ',') && !regex_take_number(&p->p, p->end, max))
            *max = GRAMMAR_NO_MAX;
        if (take(p, '}'))
            return true;
    }
    p->p = back;
    return false;
}

static struct regex_node *parse_repeated(struct parser *p)
{
    uint32_t min, max;
    if (take_counts(p, &min, &max))
        return refuse(p, STATUS_FORMAT, "there is nothing to repeat");
    struct regex_node *n = parse_atom(p);
    if (!n)
        return NULL;
    if (take(p, '*'))
        min = 0, max = GRAMMAR_NO_MAX;
    else if (take(p, '+'))
        min = 1, max = GRAMMAR_NO_MAX;
    else if (take(p, '?'))
        min = 0, max = 1;
    else if (!take_counts(p, &min, &max))
        return n;
    if (n->type == REGEX_BEGIN || n->type == REGEX_END)
        return refuse(p, STATUS_FORMAT, "there is nothing to repeat");
    if (min > max)
        return refuse(p, STATUS_FORMAT, "a repetition's limits are the wrong way round");
    if (min > REGEX_COUNT_MAX || (max > REGEX_COUNT_MAX && max != GRAMMAR_NO_MAX))
        return refuse(p, STATUS_LIMIT, "a repetition is too long");
    take(p, '?'); /* lazy: the same texts */
    uint32_t again;
    if (at(p, '*') || at(p, '+') || at(p, '?') || take_counts(p, &again, &again))
        return refuse(p, STATUS_FORMAT, "there is nothing to repeat");
    struct regex_node *r = node_new(p, REGEX_REPEAT);
    if (!r)
        return NULL;
    r->first = n;
    r->min = min;
    r->max = max;
    return r;
}

static struct regex_node *parse_sequence(struct parser *p)
{
    struct regex_node *cat = node_new(p, REGEX_CAT), **last;
    if (!cat)
        return NULL;
    last = &cat->first;
    while (p->p < p->end && !at(p, '|') && !at(p, ')')) {
        struct regex_node *n = parse_repeated(p);
        if (!n)
            return NULL;
        *last = n;
        last = &n->next;
    }
    return cat;
}

static struct regex_node *parse_alternatives(struct parser *p)
{
    struct regex_node *alt = node_new(p, REGEX_ALT), **last;
    if (!alt)
        return NULL;
    last = &alt->first;
    do {
        struct regex_node *n = parse_sequence(p);
        if (!n)
            return NULL;
        *last = n;
        last = &n->next;
    } while (take(p, '|'));
    return alt;
}

int regex_compile(struct grammar_builder *b, const char *source, size_t n, unsigned flags,
                  enum automaton_form form, const char *where, struct automaton *out)
{
    struct parser p = {.b = b, .p = source, .begin = source, .end = source + n, .where = where};
    TRY(b->status);
    struct regex_node *tree = parse_alternatives(&p);
    if (tree && p.p < p.end)
        tree = refuse(&p, STATUS_FORMAT, "a ) closes nothing");
    return tree ? regex_tree_compile(b, tree, flags, form, where, out) : b->status;
}

uint32_t regex_build(struct grammar_builder *b, const char *source, size_t n)
{
    struct automaton a;
    uint32_t rule = grammar_rule_new(b, "regex");
    if (!rule || regex_compile(b, source, n, REGEX_LOOPS, AUTOMATON_PLAIN, "", &a) != STATUS_OK)
        return 0;
    int rc = automaton_lower(&a, AUTOMATON_PLAIN);
    if (rc != STATUS_OK) {
        grammar_fail_automaton(b, rc, NULL);
        automaton_fini(&a);
        return 0;
    }
    return grammar_rule_set(b, rule, &a) == STATUS_OK ? rule : 0;
}
