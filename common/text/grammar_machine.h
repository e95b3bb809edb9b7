/* grammar_machine: the pushdown automaton at work.
 *
 * A configuration is the set of all stacks that the bytes so far allow. It is kept in one canonical
 * form, a set of (frame, configuration below): stacks with equal tops share what is below them, and
 * equal configurations are one, by number. So an ambiguous grammar costs what its distinct frames
 * cost, not what its derivations do, and "byte c in configuration k" is computed once and looked up
 * from then on, like the states of a lazily built DFA.
 *
 * A frame is a node and a count (of a loop's iterations that have begun). In a configuration that
 * is reached by a byte, the nodes on top have a byte edge, or are DONE; below they are where a call
 * returns to, or loops. */
#ifndef BATON_TEXT_GRAMMAR_MACHINE_H
#define BATON_TEXT_GRAMMAR_MACHINE_H

#include "common/text/grammar_build.h"

struct machine_entry {
    uint32_t node, count, below;
};
struct machine_config {
    uint32_t first, n; /* entries, ascending in (node, count) */
    uint32_t depth;    /* frames of its highest stack */
    uint32_t row;      /* of the table of transitions + 1; 0: none yet */
    uint32_t resumed;  /* what popping into it gives + 1; 0: not computed yet */
    uint64_t hash;
};

#define MACHINE_EMPTY  0u /* configuration without a stack: dead */
#define MACHINE_BOTTOM 1u /* (DONE): below the root rule */

/* Counts from here on are relative to one that is not known ("so many more iterations"); see
 * tokenmask_local.c. */
#define MACHINE_SYMBOLIC 0x80000000u

struct machine {
    const struct grammar *g;
    struct machine_config *configs;
    uint32_t n_configs, cap_configs;
    struct machine_entry *entries;
    uint32_t n_entries, cap_entries;
    uint32_t *rows; /* [n_rows][n_classes] target + 1 */
    uint32_t n_rows, cap_rows;
    uint32_t *table, n_table; /* of configurations */
    uint32_t start;           /* before the first byte */
    uint64_t work;            /* left; the caller fills it up. Used up: everything is EMPTY */
    bool failed;              /* work or memory ran out; what was answered since is worthless */
    uint64_t epoch;           /* grows with machine_forget */

    /* scratch of one closure */
    struct machine_entry *todo, *found;
    uint32_t n_todo, cap_todo, n_found, cap_found;
    struct machine_entry *seen;
    uint32_t *seen_stamp, stamp, n_seen, cap_seen;
    struct machine_entry *pile; /* entries being sorted, a stack */
    uint32_t n_pile, cap_pile;
    uint32_t *unions, n_unions; /* cache: a, b, union */
};

/* g outlives the machine. */
int machine_init(struct machine *m, const struct grammar *g) WARN_UNUSED;
void machine_fini(struct machine *m);
size_t machine_bytes(const struct machine *m);

/* The configuration after one more byte, by its class. */
static inline uint32_t machine_known(const struct machine *m, uint32_t config, uint8_t class)
{
    uint32_t row = m->configs[config].row;
    return row ? m->rows[(size_t)(row - 1) * m->g->n_classes + class] : 0;
}
uint32_t machine_step_slow(struct machine *m, uint32_t config, uint8_t class);
static inline uint32_t machine_step(struct machine *m, uint32_t config, uint8_t class)
{
    uint32_t to = machine_known(m, config, class);
    return to ? to - 1 : machine_step_slow(m, config, class);
}
uint32_t machine_step_bytes(struct machine *m, uint32_t config, const char *p, size_t n);
/* What may go on where the rule above has ended and `below` is what it returns to. */
uint32_t machine_resume(struct machine *m, uint32_t below);
/* A single frame on top of another configuration. */
uint32_t machine_push(struct machine *m, uint32_t node, uint32_t count, uint32_t below);
uint32_t machine_union(struct machine *m, uint32_t a, uint32_t b);

/* The text so far is complete. */
bool machine_done(const struct machine *m, uint32_t config);
/* Nothing may follow. */
bool machine_ended(const struct machine *m, uint32_t config);

/* Drops everything but what `keep` (n configurations) needs; they get their new numbers. */
int machine_forget(struct machine *m, uint32_t *keep, uint32_t n) WARN_UNUSED;

#endif
