/* grammar_build: rules on their way to a grammar, and what a compiled grammar is made of.
 *
 * A rule is an automaton over bytes and calls of rules, or a counted loop: a body rule min to max
 * times. Loops are rules of their own because a count is a number beside the state, not 5,000
 * copies of it. */
#ifndef BATON_TEXT_GRAMMAR_BUILD_H
#define BATON_TEXT_GRAMMAR_BUILD_H

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/text/automaton.h"
#include "common/text/grammar.h"

#define GRAMMAR_NO_MAX UINT32_MAX
#define GRAMMAR_DEPTH  1024 /* frames: calls and loops inside each other, while it is generated */
#define GRAMMAR_NEED   200  /* … of which a rule may make this many unavoidable */
#define GRAMMAR_WIDE   64

struct grammar_rule {
    char *name; /* for people: a path of the schema, a rule of a GBNF grammar; in the arena */
    bool set, loop;
    struct automaton a;      /* deterministic, bytes and calls; unless loop */
    uint32_t body, min, max; /* loop */
};

struct grammar_builder {
    struct automaton_budget budget;
    struct arena arena;
    struct grammar_options options;
    struct grammar_rule *rules;
    uint32_t n_rules, cap_rules;
    int status; /* the first failure; its text is in err */
    char *err;
    size_t errlen;
    struct regex_set *properties; /* Unicode's classes that were asked for (regex_class.c) */
};

int grammar_builder_init(struct grammar_builder *b, const struct grammar_options *o, char *err,
                         size_t errlen) WARN_UNUSED;
void grammar_builder_fini(struct grammar_builder *b);
/* Notes a failure unless there is one already; returns it. */
int grammar_fail(struct grammar_builder *b, int status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The failure of an automaton in words: too large, or no memory. where: a path, or NULL. */
int grammar_fail_automaton(struct grammar_builder *b, int status, const char *where);
char *grammar_printf(struct grammar_builder *b, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* A new rule, to be set later; 0 on failure. */
uint32_t grammar_rule_new(struct grammar_builder *b, const char *name);
/* Takes the automaton (bytes and calls), minimises it. */
int grammar_rule_set(struct grammar_builder *b, uint32_t rule, struct automaton *a) WARN_UNUSED;
/* A rule for body{min,max}; max may be GRAMMAR_NO_MAX. */
uint32_t grammar_rule_loop(struct grammar_builder *b, const char *name, uint32_t body, uint32_t min,
                           uint32_t max);
/* All rules that `root` needs must be set. Checks that it derives something and that no rule begins
 * with itself. */
int grammar_finish(struct grammar_builder *b, uint32_t root, struct grammar **out) WARN_UNUSED;

/* ---- the compiled form ---- */

/* A node is a state of a rule's automaton, a loop, or one of these. */
enum { GRAMMAR_NODE_DONE, GRAMMAR_NODE_BASE, GRAMMAR_NODE_FIRST };

struct grammar_edge {
    uint8_t lo, hi;
    uint32_t to;
};
struct grammar_call {
    uint32_t rule, to;
};
struct grammar_node {
    uint32_t edge, call; /* first of each; they end where those of the next node begin */
    uint32_t need;       /* frames without which the rule cannot be completed from here */
    bool final, loop;
    bool wide;          /* most bytes are possible: hundreds or thousands of tokens are */
    uint32_t rule;      /* loop: which */
    struct hash128 key; /* equal keys: the same bytes are possible from here to the rule's end */
};
struct grammar_def { /* a rule */
    bool loop, nullable;
    uint32_t node; /* its start, or its loop node */
    uint32_t body, min, max;
    bool leaf; /* no calls in it */
};
struct grammar {
    uint32_t refs; /* atomic */
    struct grammar_node *nodes;
    uint32_t n_nodes;
    struct grammar_edge *edges;
    struct grammar_call *calls;
    struct grammar_def *rules;
    uint32_t n_rules, root;
    uint8_t class[256]; /* bytes that no edge tells apart have one class */
    uint8_t sample[256];
    uint32_t n_classes;
    size_t bytes;
};

/* Front ends: the rule they made, 0 on failure. */
uint32_t schema_build(struct grammar_builder *b, const char *source, size_t n);
uint32_t schema_build_any(struct grammar_builder *b); /* any object */
uint32_t regex_build(struct grammar_builder *b, const char *source, size_t n);
uint32_t gbnf_build(struct grammar_builder *b, const char *source, size_t n);

#endif
