/* gbnf: grammars as llama.cpp and its friends write them.
 *
 *   root ::= "yes" | "no" reason     # a comment
 *   reason ::= ": " [^\n]{1,80}
 *
 * Literals in double or single quotes, classes, `.`, groups, * + ? {n} {n,} {n,m}, alternatives.
 * Line ends are blanks: a rule ends where the next one begins (a name with ::= behind it). Escapes:
 * \n \r \t \\ \" \' \[ \] \- \^ \xHH \uHHHH \UHHHHHHHH.
 *
 * A rule whose alternatives begin with itself, a ::= a x | y, is read as y x*: the same language.
 * Other ways in which a rule begins with itself are refused (grammar_build.c). */
#include <stdlib.h>
#include <string.h>

#include "common/text/regex_tree.h"
#include "common/text/unicode.h"

#define NEST_MAX 250
#define NAME_MAX 200

struct gbnf_rule {
    const char *name; /* in the source */
    size_t n;
    uint32_t rule;
    struct regex_node *tree; /* NULL until it is defined */
};

struct parser {
    struct grammar_builder *b;
    const char *p, *end, *begin;
    int depth;
    struct gbnf_rule *rules; /* sorted by nothing; names are few */
    uint32_t n_rules, cap_rules;
};

static struct regex_node *refuse(struct parser *p, int status, const char *what)
{
    size_t line = 1;
    for (const char *c = p->begin; c < p->p; c++)
        line += *c == '\n';
    grammar_fail(p->b, status, "grammar, line %zu: %s", line, what);
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

static void skip_blanks(struct parser *p)
{
    while (p->p < p->end) {
        if (*p->p == '#') {
            while (p->p < p->end && *p->p != '\n')
                p->p++;
        } else if (*p->p == ' ' || *p->p == '\t' || *p->p == '\n' || *p->p == '\r') {
            p->p++;
        } else {
            break;
        }
    }
}

static bool take(struct parser *p, char c)
{
    if (p->p == p->end || *p->p != c)
        return false;
    p->p++;
    return true;
}

static bool is_name(char c, bool first)
{
    char low = c | 0x20;
    return (low >= 'a' && low <= 'z') || c == '_' ||
           (!first && ((c >= '0' && c <= '9') || c == '-'));
}

static size_t name_length(const struct parser *p)
{
    size_t n = 0, room = (size_t)(p->end - p->p);
    while (n < room && is_name(p->p[n], n == 0))
        n++;
    return n;
}

/* At "name ::=". */
static bool at_rule(struct parser *p)
{
    const char *back = p->p;
    size_t n = name_length(p);
    p->p += n;
    skip_blanks(p);
    bool yes = n > 0 && p->end - p->p >= 3 && memcmp(p->p, "::=", 3) == 0;
    p->p = back;
    return yes;
}

/* The rule of this name, a new one if need be. */
static struct gbnf_rule *rule_of(struct parser *p, const char *name, size_t n)
{
    for (uint32_t i = 0; i < p->n_rules; i++) {
        if (p->rules[i].n == n && memcmp(p->rules[i].name, name, n) == 0)
            return &p->rules[i];
    }
    if (n > NAME_MAX) {
        refuse(p, STATUS_LIMIT, "the name of a rule is too long");
        return NULL;
    }
    if (p->b->budget.work < p->n_rules) {
        refuse(p, STATUS_LIMIT, "there are too many rules");
        return NULL;
    }
    p->b->budget.work -= p->n_rules;
    if (p->n_rules == p->cap_rules) {
        uint32_t cap = p->cap_rules ? p->cap_rules * 2 : 16;
        struct gbnf_rule *r = mem_resize(p->rules, cap, sizeof *r);
        if (!r) {
            refuse(p, STATUS_NOMEM, status_text(STATUS_NOMEM));
            return NULL;
        }
        p->rules = r;
        p->cap_rules = cap;
    }
    char *text = grammar_printf(p->b, "%.*s", (int)n, name);
    uint32_t rule = text ? grammar_rule_new(p->b, text) : 0;
    if (!rule)
        return NULL;
    p->rules[p->n_rules] = (struct gbnf_rule){.name = name, .n = n, .rule = rule};
    return &p->rules[p->n_rules++];
}

static bool take_hex(struct parser *p, int digits, uint32_t *out)
{
    uint32_t v = 0;
    for (int i = 0; i < digits; i++) {
        char c = p->p < p->end ? *p->p : 0, low = c | 0x20;
        if (c >= '0' && c <= '9')
            v = v << 4 | (uint32_t)(c - '0');
        else if (low >= 'a' && low <= 'f')
            v = v << 4 | (uint32_t)(low - 'a' + 10);
        else
            return false;
        p->p++;
    }
    *out = v;
    return v <= UNICODE_MAX && !(v >= 0xd800 && v <= 0xdfff);
}

/* One character of a literal or class, escapes resolved. */
static bool take_char(struct parser *p, uint32_t *cp)
{
    size_t len;
    bool ok = true;
    if (!take(p, '\\')) {
        if (unicode_next(p->p, (size_t)(p->end - p->p), cp, &len) != UNICODE_CHAR)
            return refuse(p, STATUS_FORMAT, "it is not UTF-8"), false;
        p->p += len;
        return true;
    }
    char c = p->p < p->end ? *p->p++ : 0;
    switch (c) {
    case 'n':
        *cp = '\n';
        break;
    case 'r':
        *cp = '\r';
        break;
    case 't':
        *cp = '\t';
        break;
    case 'x':
        ok = take_hex(p, 2, cp);
        break;
    case 'u':
        ok = take_hex(p, 4, cp);
        break;
    case 'U':
        ok = take_hex(p, 8, cp);
        break;
    default:
        ok = c != 0 && strchr("\\\"'[]-^/.", c);
        *cp = (uint8_t)c;
    }
    if (!ok)
        refuse(p, STATUS_FORMAT, "unknown escape");
    return ok;
}

static struct regex_node *parse_literal(struct parser *p, char quote)
{
    struct regex_node *cat = node_new(p, REGEX_CAT), **last = cat ? &cat->first : NULL;
    while (cat && !take(p, quote)) {
        uint32_t cp;
        if (p->p == p->end)
            return refuse(p, STATUS_FORMAT, "a quote is not closed");
        if (!take_char(p, &cp))
            return NULL;
        struct regex_node *n = node_new(p, REGEX_SET);
        if (!n || !regex_set_add(p->b, &n->set, cp, cp))
            return NULL;
        *last = n;
        last = &n->next;
    }
    return cat;
}

static struct regex_node *parse_class(struct parser *p)
{
    struct regex_node *n = node_new(p, REGEX_SET);
    bool negate = take(p, '^');
    while (n && !take(p, ']')) {
        uint32_t lo, hi;
        if (p->p == p->end)
            return refuse(p, STATUS_FORMAT, "a [ is not closed");
        if (!take_char(p, &lo))
            return NULL;
        hi = lo;
        if (p->end - p->p > 1 && p->p[0] == '-' && p->p[1] != ']') {
            p->p++;
            if (!take_char(p, &hi))
                return NULL;
        }
        if (lo > hi)
            return refuse(p, STATUS_FORMAT, "a range runs backwards");
        if (!regex_set_add(p->b, &n->set, lo, hi))
            return NULL;
    }
    if (!n)
        return NULL;
    regex_set_sort(&n->set);
    return negate && !regex_set_negate(p->b, &n->set) ? NULL : n;
}

static struct regex_node *parse_alternatives(struct parser *p);

static struct regex_node *parse_atom(struct parser *p)
{
    struct regex_node *n;
    if (take(p, '"'))
        return parse_literal(p, '"');
    if (take(p, '\''))
        return parse_literal(p, '\'');
    if (take(p, '['))
        return parse_class(p);
    if (take(p, '.')) {
        n = node_new(p, REGEX_SET);
        return n && regex_set_add(p->b, &n->set, 0, UNICODE_MAX) ? n : NULL;
    }
    if (take(p, '(')) {
        if (++p->depth > NEST_MAX)
            return refuse(p, STATUS_LIMIT, "groups are nested too deep");
        n = parse_alternatives(p);
        p->depth--;
        if (n && !take(p, ')'))
            return refuse(p, STATUS_FORMAT, "a ( is not closed");
        return n;
    }
    size_t len = name_length(p);
    if (len == 0)
        return refuse(p, STATUS_FORMAT,
                      p->p < p->end && strchr("*+?{", *p->p) ? "there is nothing to repeat"
                                                             : "unexpected character");
    struct gbnf_rule *r = rule_of(p, p->p, len);
    n = r ? node_new(p, REGEX_CALL) : NULL;
    if (n)
        n->rule = r->rule;
    p->p += len;
    return n;
}

/* A quantifier at p; false when there is none, or after a failure. */
static bool take_quantifier(struct parser *p, uint32_t *min, uint32_t *max)
{
    *min = 0;
    *max = GRAMMAR_NO_MAX;
    if (take(p, '*'))
        return true;
    if (take(p, '+')) {
        *min = 1;
        return true;
    }
    if (take(p, '?')) {
        *max = 1;
        return true;
    }
    if (!take(p, '{'))
        return false;
    skip_blanks(p);
    bool first = regex_take_number(&p->p, p->end, min);
    *max = *min;
    skip_blanks(p);
    if (take(p, ',')) {
        skip_blanks(p);
        if (!regex_take_number(&p->p, p->end, max))
            *max = GRAMMAR_NO_MAX;
        first = true;
    }
    skip_blanks(p);
    if (!first || !take(p, '}') || *min > *max)
        return refuse(p, STATUS_FORMAT, "a repetition is malformed"), false;
    if (*min > REGEX_COUNT_MAX || (*max > REGEX_COUNT_MAX && *max != GRAMMAR_NO_MAX))
        return refuse(p, STATUS_LIMIT, "a repetition is too long"), false;
    return true;
}

static struct regex_node *parse_repeated(struct parser *p)
{
    struct regex_node *n = parse_atom(p);
    uint32_t min, max;
    while (n && take_quantifier(p, &min, &max)) {
        struct regex_node *r = node_new(p, REGEX_REPEAT);
        if (!r)
            return NULL;
        if (++p->depth > NEST_MAX)
            return refuse(p, STATUS_LIMIT, "repetitions are nested too deep");
        r->first = n;
        r->min = min;
        r->max = max;
        n = r;
    }
    return p->b->status == STATUS_OK ? n : NULL;
}

static struct regex_node *parse_sequence(struct parser *p)
{
    struct regex_node *cat = node_new(p, REGEX_CAT), **last = cat ? &cat->first : NULL;
    skip_blanks(p);
    while (cat && p->p < p->end && *p->p != '|' && *p->p != ')' && !at_rule(p)) {
        int depth = p->depth;
        struct regex_node *n = parse_repeated(p);
        p->depth = depth;
        if (!n)
            return NULL;
        *last = n;
        last = &n->next;
        skip_blanks(p);
    }
    return cat;
}

static struct regex_node *parse_alternatives(struct parser *p)
{
    struct regex_node *alt = node_new(p, REGEX_ALT), **last = alt ? &alt->first : NULL;
    while (alt) {
        struct regex_node *n = parse_sequence(p);
        if (!n)
            return NULL;
        *last = n;
        last = &n->next;
        if (!take(p, '|'))
            break;
    }
    return alt;
}

/* a ::= a x | y becomes (y)(x)*. */
static struct regex_node *turn_left_recursion(struct parser *p, struct regex_node *alt,
                                              uint32_t rule)
{
    struct regex_node *others = NULL, **last_other = &others, *tails = NULL, **last_tail = &tails;
    for (struct regex_node *x = alt->first, *next; x; x = next) {
        next = x->next;
        x->next = NULL;
        if (x->first && x->first->type == REGEX_CALL && x->first->rule == rule) {
            x->first = x->first->next;
            if (!x->first)
                continue; /* a ::= a says nothing */
            *last_tail = x;
            last_tail = &x->next;
        } else {
            *last_other = x;
            last_other = &x->next;
        }
    }
    alt->first = others;
    if (!tails)
        return alt;
    struct regex_node *cat = node_new(p, REGEX_CAT), *star = node_new(p, REGEX_REPEAT),
                      *tail = node_new(p, REGEX_ALT);
    if (!cat || !star || !tail)
        return NULL;
    tail->first = tails;
    star->first = tail;
    star->max = GRAMMAR_NO_MAX;
    cat->first = alt;
    alt->next = star;
    return cat;
}

static bool parse_rule(struct parser *p)
{
    if (!at_rule(p)) {
        refuse(p, STATUS_FORMAT, "expected a rule: name ::= …");
        return false;
    }
    size_t n = name_length(p);
    struct gbnf_rule *r = rule_of(p, p->p, n);
    if (!r)
        return false;
    size_t index = (size_t)(r - p->rules);
    if (r->tree) {
        refuse(p, STATUS_FORMAT, "a rule is defined twice");
        return false;
    }
    p->p += n;
    skip_blanks(p);
    p->p += 3;
    struct regex_node *tree = parse_alternatives(p);
    if (tree)
        tree = turn_left_recursion(p, tree, p->rules[index].rule);
    p->rules[index].tree = tree;
    return tree != NULL;
}

static void define(struct parser *p, const struct gbnf_rule *r)
{
    struct automaton a;
    struct grammar_builder *b = p->b;
    const char *name = b->rules[r->rule].name;
    if (!r->tree) {
        grammar_fail(b, STATUS_FORMAT, "grammar: the rule %s is not defined", name);
        return;
    }
    if (regex_tree_compile(b, r->tree, REGEX_LOOPS, AUTOMATON_PLAIN, name, &a) != STATUS_OK)
        return;
    int rc = automaton_lower(&a, AUTOMATON_PLAIN);
    if (rc == STATUS_OK) {
        rc = grammar_rule_set(b, r->rule, &a);
    } else {
        grammar_fail_automaton(b, rc, name);
        automaton_fini(&a);
    }
}

uint32_t gbnf_build(struct grammar_builder *b, const char *source, size_t n)
{
    struct parser p = {.b = b, .p = source, .begin = source, .end = source + n};
    uint32_t root = 0;
    skip_blanks(&p);
    while (p.p < p.end && b->status == STATUS_OK && parse_rule(&p))
        skip_blanks(&p);
    for (uint32_t i = 0; i < p.n_rules && b->status == STATUS_OK; i++) {
        if (p.rules[i].n == 4 && memcmp(p.rules[i].name, "root", 4) == 0)
            root = p.rules[i].rule;
    }
    if (b->status == STATUS_OK && !root)
        grammar_fail(b, STATUS_FORMAT, "grammar: there is no rule named root");
    for (uint32_t i = 0; i < p.n_rules && b->status == STATUS_OK; i++)
        define(&p, &p.rules[i]);
    free(p.rules);
    return b->status == STATUS_OK ? root : 0;
}
