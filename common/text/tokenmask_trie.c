/* tokenmask_trie: the vocabulary's bytes as a trie in preorder. Tokens are sorted, so that each one
 * shares a prefix with the one before it and the nodes come out in order. */
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/text/tokenmask_impl.h"

#define TOKEN_BYTES_MAX 1024 /* longer ones are not allowed in a grammar */

struct entry {
    const char *p;
    size_t n;
    int32_t id;
};

static int entry_order(const void *x, const void *y)
{
    const struct entry *a = x, *b = y;
    int c = memcmp(a->p, b->p, a->n < b->n ? a->n : b->n);
    if (c != 0)
        return c;
    if (a->n != b->n)
        return a->n < b->n ? -1 : 1;
    return a->id < b->id ? -1 : 1;
}

static bool usable(const struct tokenizer *tok, int32_t id)
{
    enum token_type type = tokenizer_type(tok, id);
    return type != TOKEN_CONTROL && type != TOKEN_UNUSED && type != TOKEN_UNKNOWN &&
           !tokenizer_hidden(tok, id);
}

/* Copies the bytes of all usable tokens. */
static int read_tokens(struct tokenmask_trie *t, const struct tokenizer *tok)
{
    size_t total = 0, at = 0;
    for (uint32_t id = 0; id < t->n_ids; id++)
        total += tokenizer_piece(tok, (int32_t)id, false).n;
    t->text = malloc(total + 1);
    t->ids = mem_array(t->n_ids, sizeof *t->ids);
    t->same = mem_array(t->n_ids, sizeof *t->same);
    if (!t->text || !t->ids || !t->same)
        return STATUS_NOMEM;
    for (uint32_t id = 0; id < t->n_ids; id++) {
        struct token_text piece = tokenizer_piece(tok, (int32_t)id, false);
        t->same[id] = -1;
        if (!usable(tok, (int32_t)id) || piece.n == 0 || piece.n > TOKEN_BYTES_MAX)
            continue;
        memcpy(t->text + at, piece.p, piece.n);
        t->ids[id] = (struct token_text){t->text + at, piece.n};
        at += piece.n;
    }
    return STATUS_OK;
}

static size_t common_prefix(const struct entry *a, const struct entry *b)
{
    size_t n = a->n < b->n ? a->n : b->n, i = 0;
    while (i < n && a->p[i] == b->p[i])
        i++;
    return i;
}

static int build(struct tokenmask_trie *t, const struct entry *e, uint32_t n)
{
    size_t nodes = 1;
    for (uint32_t i = 0; i < n; i++)
        nodes += e[i].n - (i ? common_prefix(&e[i - 1], &e[i]) : 0);
    t->byte = mem_array(nodes, sizeof *t->byte);
    t->depth = mem_array(nodes, sizeof *t->depth);
    t->next = mem_array(nodes, sizeof *t->next);
    t->token = mem_array(nodes, sizeof *t->token);
    if (nodes > UINT32_MAX || !t->byte || !t->depth || !t->next || !t->token)
        return STATUS_NOMEM;
    uint32_t open[TOKEN_BYTES_MAX + 1] = {0}; /* the node of each depth that is not closed */
    size_t depth = 0;
    t->token[0] = -1;
    t->n = 1;
    for (uint32_t i = 0; i < n; i++) {
        size_t keep = i ? common_prefix(&e[i - 1], &e[i]) : 0;
        if (i && keep == e[i].n) { /* the same bytes again */
            int32_t last = t->token[open[keep]];
            while (t->same[last] >= 0)
                last = t->same[last];
            t->same[last] = e[i].id;
            continue;
        }
        for (; depth > keep; depth--)
            t->next[open[depth]] = t->n;
        while (depth < e[i].n) {
            t->byte[t->n] = (uint8_t)e[i].p[depth];
            t->depth[t->n] = (uint16_t)++depth;
            t->token[t->n] = -1;
            open[depth] = t->n++;
        }
        t->token[open[depth]] = e[i].id;
        if (depth > t->depth_max)
            t->depth_max = (uint32_t)depth;
    }
    for (;; depth--) {
        t->next[open[depth]] = t->n;
        if (depth == 0)
            break;
    }
    return STATUS_OK;
}

int tokenmask_trie_init(struct tokenmask_trie *t, const struct tokenizer *tok)
{
    *t = (struct tokenmask_trie){.n_ids = (uint32_t)tokenizer_size(tok)};
    struct entry *e = NULL;
    uint32_t n = 0;
    int rc = read_tokens(t, tok);
    if (rc == STATUS_OK) {
        e = mem_array((size_t)t->n_ids + 1, sizeof *e);
        rc = e ? STATUS_OK : STATUS_NOMEM;
    }
    if (rc == STATUS_OK) {
        for (uint32_t id = 0; id < t->n_ids; id++) {
            if (t->ids[id].n)
                e[n++] = (struct entry){t->ids[id].p, t->ids[id].n, (int32_t)id};
        }
        qsort(e, n, sizeof *e, entry_order);
        rc = build(t, e, n);
    }
    free(e);
    if (rc != STATUS_OK)
        tokenmask_trie_fini(t);
    return rc;
}

void tokenmask_trie_fini(struct tokenmask_trie *t)
{
    free(t->byte);
    free(t->depth);
    free(t->next);
    free(t->token);
    free(t->same);
    free(t->ids);
    free(t->text);
    *t = (struct tokenmask_trie){0};
}

size_t tokenmask_trie_bytes(const struct tokenmask_trie *t)
{
    size_t text = 0;
    for (uint32_t id = 0; id < t->n_ids; id++)
        text += t->ids[id].n;
    return (size_t)t->n * (1 + 2 + 4 + 4) + t->n_ids * (4 + sizeof *t->ids) + text;
}
