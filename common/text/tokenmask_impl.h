/* tokenmask_impl: what tokenmask.c, tokenmask_local.c and tokenmask_trie.c share. */
#ifndef BATON_TEXT_TOKENMASK_IMPL_H
#define BATON_TEXT_TOKENMASK_IMPL_H

#include "common/base/map.h"
#include "common/text/grammar_machine.h"
#include "common/text/tokenmask.h"

/* Nodes in preorder: the children of i are i + 1, then next of each, up to next[i]. Node 0 is the
 * root, the empty text. */
struct tokenmask_trie {
    uint32_t n;
    uint8_t *byte;
    uint16_t *depth;
    uint32_t *next;
    int32_t *token;         /* that ends here, or -1 */
    int32_t *same;          /* [n_ids] another token of the same bytes, or -1 */
    struct token_text *ids; /* [n_ids] bytes of each token; n 0: never allowed. Owned */
    char *text;
    uint32_t n_ids;
    uint32_t depth_max;
};
int tokenmask_trie_init(struct tokenmask_trie *t, const struct tokenizer *tok) WARN_UNUSED;
void tokenmask_trie_fini(struct tokenmask_trie *t);
size_t tokenmask_trie_bytes(const struct tokenmask_trie *t);

/* A set of tokens: a list while it is short. */
struct tokenmask_set {
    int32_t *ids;
    uint32_t n;
    uint32_t *bits; /* [n_words] or NULL */
};

/* What may follow a node, as far as that does not depend on what lies below (tokenmask_local.c). */
struct tokenmask_local {
    UT_hash_handle hh; /* by key; the order of the table is the order of use */
    struct hash128 key;
    size_t bytes;
    uint32_t depth;                             /* frames that it needs above the node's own */
    uint32_t n_inside, n_exited, n_exited_only; /* sets by rounds of the loop */
    struct tokenmask_set *inside;               /* cumulative for the first TOKENMASK_ROUNDS */
    struct tokenmask_set *exited;               /* the loop was left after exactly so many rounds */
    struct tokenmask_set *exited_only;          /* … and could not have gone on instead */
    /* Nodes of the trie whose parent is where the rule ended: they go on by what lies below. By
     * byte: those of byte b are kids[kid_at[b]] .. kids[kid_at[b + 1]]. */
    struct tokenmask_kid {
        uint32_t node, rounds;
    } * kids;
    uint32_t kid_at[257];
};
#define TOKENMASK_ROUNDS 16

struct tokenmask_vocab {
    struct tokenmask_trie trie;
    size_t n_words;
    struct tokenmask_local *locals;
    size_t local_bytes;
    uint32_t *walk; /* [depth_max + 1] configurations on the way down */
};

struct tokenmask_cached { /* a whole mask */
    UT_hash_handle hh;    /* by config, in order of use */
    uint32_t config;
    uint32_t bits[];
};

struct tokenmask {
    struct tokenmask_vocab *vocab;
    struct grammar *grammar;
    struct machine machine;
    struct list states;
    struct tokenmask_cached *cached;
    uint32_t n_cached;
    uint64_t visits; /* of trie nodes that a mask may still take */
};

static inline void tokenmask_set_bit(uint32_t *bits, int32_t id)
{
    bits[id / 32] |= 1u << (id % 32);
}
/* All tokens that end at the node. */
static inline void tokenmask_set_tokens(const struct tokenmask_trie *t, uint32_t node,
                                        uint32_t *bits)
{
    for (int32_t id = t->token[node]; id >= 0; id = t->same[id])
        tokenmask_set_bit(bits, id);
}

/* Tokens below `node` (itself included) that configuration c, which has consumed the node's byte,
 * can consume. */
void tokenmask_walk(struct tokenmask *t, uint32_t node, uint32_t c, uint32_t *bits);
/* The part of one entry's mask that comes by its local result. False: not to be had this way. */
bool tokenmask_local_apply(struct tokenmask *t, const struct machine_entry *e, uint32_t *bits);
void tokenmask_locals_fini(struct tokenmask_vocab *v);

#endif
