/* explore: runs of the world: one by chance from a seed, or all that differ from the ordinary one
 * at up to so many points. Both can be repeated with a trace. */
#ifndef BATON_TESTS_PROTOCOL_EXPLORE_H
#define BATON_TESTS_PROTOCOL_EXPLORE_H

#include "tests/protocol/world.h"

struct explore_stats {
    uint64_t runs, steps, messages, faults, failed; /* failed: sequences that a rule gave up */
    uint64_t retries, adopted;                      /* adopted: by a replica */
    uint64_t sent[64], reasons[16]; /* messages by type; reasons of LOST and REFUSE */
    char why[256];                  /* of the run that went wrong; empty: none did */
    uint64_t seed;
    uint32_t path[512], n_path;
};

/* One run; false when a check failed (why and seed are filled in). */
bool explore_seed(const struct scenario *s, uint64_t seed, enum mutant m, bool trace,
                  struct explore_stats *st);
/* All runs with at most `deviations` choices other than the ordinary one, faults included, but at
 * most `limit` runs (0: no limit). False when a check failed; then path says where. */
bool explore_all(const struct scenario *s, uint32_t deviations, uint64_t limit, enum mutant m,
                 struct explore_stats *st);
bool explore_path(const struct scenario *s, const uint32_t *path, uint32_t n, enum mutant m,
                  bool trace, struct explore_stats *st);

#endif
