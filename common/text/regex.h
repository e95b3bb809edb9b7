/* regex: regular expressions to automata.
 *
 * The syntax is ECMA-262's with the u flag, as JSON Schema asks, as far as it describes a regular
 * language: no back-references, no look-around, no word boundaries; those are refused by name.
 * Lazy quantifiers mean the same as greedy ones here. ^ and $ are the ends of the text. */
#ifndef BATON_TEXT_REGEX_H
#define BATON_TEXT_REGEX_H

#include "common/text/grammar_build.h"

enum regex_flags {
    REGEX_SEARCH = 1, /* it may match anywhere in the text; else it matches all of it */
    REGEX_LOOPS = 2   /* long repetitions of a class become calls of counted loops */
};
/* Appends to `out`, from its start state on, an automaton over code points (and calls, whose loops
 * have bodies in the given form), not deterministic. where: names the place in messages. Failures
 * are noted in b. */
int regex_compile(struct grammar_builder *b, const char *source, size_t n, unsigned flags,
                  enum automaton_form form, const char *where, struct automaton *out) WARN_UNUSED;

/* regex_class.c: sets of code points, ascending and apart, in the builder's arena. */
struct regex_set {
    struct regex_range {
        uint32_t lo, hi;
    } * r;
    uint32_t n, cap;
};
bool regex_set_add(struct grammar_builder *b, struct regex_set *s, uint32_t lo, uint32_t hi);
bool regex_set_join(struct grammar_builder *b, struct regex_set *s, const struct regex_set *t);
void regex_set_sort(struct regex_set *s);
bool regex_set_negate(struct grammar_builder *b, struct regex_set *s);
/* \d \w \s and \D \W \S; false for another letter. */
bool regex_set_escape(struct grammar_builder *b, char letter, struct regex_set *s);
/* \p{name}: a general category by its short or long name; false: not known. */
bool regex_set_property(struct grammar_builder *b, const char *name, size_t n, struct regex_set *s);

#endif
