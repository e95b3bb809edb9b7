/* automaton: finite automata over symbols, with which the grammar engine works.
 *
 * A symbol is a code point (or a byte: automaton_utf8 turns the one into the other), or, from
 * AUTOMATON_CALL on, a call of a rule: "here comes whatever rule n derives" (grammar_build.h).
 * State 0 is the start. Edges carry ranges of symbols.
 *
 * Building never needs a check after each call: the first failure (no memory, budget used up) is
 * kept in `status`, what follows does nothing, and the functions that return int report it. */
#ifndef BATON_TEXT_AUTOMATON_H
#define BATON_TEXT_AUTOMATON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

#define AUTOMATON_CHAR_MAX 0x10ffffu
#define AUTOMATON_CALL     0x200000u   /* + rule */
#define AUTOMATON_CALL_MAX 0x3fffffu   /* symbols end here */
#define AUTOMATON_EMPTY    0xffffffffu /* lo and hi of an edge that consumes nothing */

/* What one compilation may cost, shared by all its automata: a hostile source ends with
 * STATUS_LIMIT, not with the memory. One unit of work is about one edge looked at. */
struct automaton_budget {
    uint64_t work;   /* left */
    uint32_t states; /* of one automaton, at most */
};

struct automaton_edge {
    uint32_t from, lo, hi, to;
};
struct automaton {
    struct automaton_budget *budget;
    int status;
    uint32_t n, cap; /* states */
    uint8_t *final;  /* [n] */
    struct automaton_edge *edges;
    uint32_t n_edges, cap_edges;
    uint32_t *first; /* [n + 1] edges of each state, ascending in lo; by automaton_index */
};

/* With one state, the start. */
void automaton_init(struct automaton *a, struct automaton_budget *budget);
void automaton_fini(struct automaton *a);
/* Takes n units; false, and STATUS_LIMIT in a, when they are not left. */
bool automaton_work(struct automaton *a, uint64_t n);
uint32_t automaton_state(struct automaton *a);
void automaton_edge(struct automaton *a, uint32_t from, uint32_t lo, uint32_t hi, uint32_t to);
void automaton_empty(struct automaton *a, uint32_t from, uint32_t to);
/* The bytes of a text, one edge each, from `from` to a new state that is returned. */
uint32_t automaton_bytes(struct automaton *a, uint32_t from, const char *p, size_t n);
/* The code points of a well-formed UTF-8 text. */
uint32_t automaton_chars(struct automaton *a, uint32_t from, const char *p, size_t n);
void automaton_call(struct automaton *a, uint32_t from, uint32_t rule, uint32_t to);
/* A copy of b's states and edges; *start is its start, and every final state of b leads to `to`. */
void automaton_splice(struct automaton *a, uint32_t from, const struct automaton *b, uint32_t to);

/* Sorts the edges and fills `first`. */
int automaton_index(struct automaton *a) WARN_UNUSED;

/* These replace a by another automaton of the same language. */
int automaton_trim(struct automaton *a) WARN_UNUSED;        /* states on a way to a final one */
int automaton_determinise(struct automaton *a) WARN_UNUSED; /* trimmed, one edge per symbol */
/* Deterministic, and as few states as there can be while there are at most 4,096; states are
 * numbered in the order of a breadth-first walk, so equal languages give equal automata. */
int automaton_minimise(struct automaton *a) WARN_UNUSED;

/* Of two deterministic, indexed automata, into an uninitialised one, trimmed: what both accept;
 * what a accepts and b does not. */
int automaton_intersect(const struct automaton *a, const struct automaton *b,
                        struct automaton *out) WARN_UNUSED;
int automaton_subtract(const struct automaton *a, const struct automaton *b,
                       struct automaton *out) WARN_UNUSED;

/* The same in a's place: what both accept or, with subtract, what a accepts and b does not. Takes
 * b, also when it fails, with a's or b's status or its own, which a has then. */
int automaton_combine(struct automaton *a, struct automaton *b, bool subtract);

bool automaton_is_never(const struct automaton *a); /* accepts nothing; trimmed */
/* Whether it accepts these symbols (bytes, or with chars the code points of UTF-8).
 * Deterministic and indexed. */
bool automaton_accepts(const struct automaton *a, const char *p, size_t n, bool chars);
/* The symbols that lead on from state s are edges first[s] .. first[s + 1]; the target by one
 * symbol, or UINT32_MAX. Deterministic and indexed. */
uint32_t automaton_next(const struct automaton *a, uint32_t s, uint32_t symbol);

/* automaton_utf8.c: from code points to bytes. Calls stay; the result is minimised. */
enum automaton_form {
    AUTOMATON_PLAIN, /* UTF-8 */
    AUTOMATON_JSON   /* inside a JSON string: what must be escaped is, in its shortest form */
};
int automaton_lower(struct automaton *a, enum automaton_form form) WARN_UNUSED;
/* Any one character of a JSON string, in all its spellings: plain, \n, \/, \u0041, \ud83d\ude00;
 * never half of a surrogate pair. Bytes. */
void automaton_json_char(struct automaton *a, uint32_t from, uint32_t to);

#endif
