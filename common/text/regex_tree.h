/* regex_tree: expressions as trees, and the automaton of one. regex.c and gbnf.c make trees. */
#ifndef BATON_TEXT_REGEX_TREE_H
#define BATON_TEXT_REGEX_TREE_H

#include "common/text/regex.h"

enum regex_type {
    REGEX_SET,
    REGEX_CAT, /* of no child: the empty text */
    REGEX_ALT, /* of no child: nothing at all */
    REGEX_REPEAT,
    REGEX_CALL, /* of a rule */
    REGEX_BEGIN,
    REGEX_END
};
struct regex_node { /* in the builder's arena */
    enum regex_type type;
    struct regex_set set;
    struct regex_node *first, *next; /* children, and the next one of the same parent */
    uint32_t min, max;
    uint32_t rule; /* that is called; of a repetition: its counted loop, once there is one */
};

/* Of a quantifier; larger ones are refused. */
#define REGEX_COUNT_MAX 1000000000u
/* Takes decimal digits at *p; REGEX_COUNT_MAX + 1 for all larger numbers. False: there is none. */
bool regex_take_number(const char **p, const char *end, uint32_t *out);

/* As regex_compile. Depth of the recursion: that of the tree. */
int regex_tree_compile(struct grammar_builder *b, struct regex_node *tree, unsigned flags,
                       enum automaton_form form, const char *where,
                       struct automaton *out) WARN_UNUSED;

#endif
