/* pick: least-loaded pairing.
 *
 * Every usable prefill worker is tried with every usable decode worker of its group; the pair with
 * the lowest cost wins. Cost, after Dynamo's router: prompt tokens that wait at the prefill worker
 * plus those of this request, in blocks, and sequences at the decode worker weighted by how full
 * its pool is. An instance to be avoided (it failed this request before) and a numerics class other
 * than the one that computed the tokens so far each cost more than any load, but less than not
 * serving. Workers that have the prompt already, because another path of it is there, come before
 * any that have not. */
#include "routerd/pick.h"

#define COST_AVOID      1e12
#define COST_NUMERICS   1e9
#define GAIN_NEAR       1e7 /* of not computing, or keeping, a prompt twice */
#define MOVE_ROOM_MIN   64  /* tokens beside its own that a worker reserves for a move, or */
#define MOVE_ROOM_SHARE 16  /* this part of them, at most */

/* A decode worker keeps one block for the sequence to grow into (R7), whatever it has grown to:
 * one that moved in its last block must fit the pool as well as before. */
static uint32_t longest(const struct pick_worker *w)
{
    uint32_t blocks = w->decode && w->kv_blocks ? w->kv_blocks - 1 : w->kv_blocks;
    uint64_t pool = (uint64_t)blocks * w->kv_block_size;
    return pool < w->context ? (uint32_t)pool : w->context;
}

static bool avoided(const struct pick_request *r, const struct pick_worker *w)
{
    return w->instance == r->avoid[0] || w->instance == r->avoid[1];
}

static double cost(const struct pick_request *r, const struct pick_worker *p,
                   const struct pick_worker *d)
{
    double tokens = (double)p->queued_tokens + r->n_tokens;
    double c = tokens / (p->kv_block_size ? p->kv_block_size : 16);
    double used = d->kv_free < d->kv_blocks ? 1.0 - (double)d->kv_free / d->kv_blocks : 0.0;
    c += d->running * (1.0 + used);
    uint32_t size = d->kv_block_size ? d->kv_block_size : 16;
    uint64_t need = ((uint64_t)r->n_tokens + size) / size;
    if (d->instance == r->near_decode)
        need = 2; /* the last block, and one to grow into */
    if (need > d->kv_free)
        c += 1e6; /* it would have to wait for blocks */
    if (avoided(r, p) || avoided(r, d))
        c += COST_AVOID;
    if (r->numerics && (p->numerics != r->numerics || d->numerics != r->numerics))
        c += COST_NUMERICS;
    if (r->near_prefill && p->instance == r->near_prefill)
        c -= GAIN_NEAR;
    if (r->near_decode && d->instance == r->near_decode && need <= d->kv_free)
        c -= GAIN_NEAR;
    return c;
}

enum pick_result pick_pair(const struct pick_worker *w, uint32_t n, const struct pick_request *r,
                           uint32_t *prefill, uint32_t *decode)
{
    bool any_p = false, any_d = false, any_pair = false, any_long = false, found = false;
    double best = 0;
    for (uint32_t i = 0; i < n; i++) {
        any_p |= w[i].usable && !w[i].decode && w[i].pool == r->pool;
        any_d |= w[i].usable && w[i].decode && w[i].pool == r->pool;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (!w[i].usable || w[i].decode || w[i].pool != r->pool)
            continue;
        for (uint32_t j = 0; j < n; j++) {
            if (!w[j].usable || !w[j].decode || w[j].group != w[i].group)
                continue;
            any_pair = true;
            if (r->n_tokens > longest(&w[i]) || r->n_tokens > longest(&w[j]))
                continue;
            any_long = true;
            if (w[i].credits == 0)
                continue;
            double c = cost(r, &w[i], &w[j]);
            if (!found || c < best) {
                found = true;
                best = c;
                *prefill = i;
                *decode = j;
            }
        }
    }
    if (found)
        return PICK_OK;
    if (any_long)
        return PICK_BUSY;
    if (any_pair)
        return PICK_TOO_LONG;
    return any_p && !any_d ? PICK_NO_DECODE : PICK_NO_PREFILL;
}

bool pick_decode(const struct pick_worker *w, uint32_t n, const struct pick_request *r,
                 uint32_t prefill, uint32_t *decode)
{
    bool found = false;
    double best = 0;
    for (uint32_t j = 0; j < n; j++) {
        if (!w[j].usable || !w[j].decode || w[j].group != w[prefill].group ||
            r->n_tokens > longest(&w[j]))
            continue;
        double c = cost(r, &w[prefill], &w[j]);
        if (!found || c < best) {
            found = true;
            best = c;
            *decode = j;
        }
    }
    return found;
}

bool pick_move(const struct pick_worker *w, uint32_t n, const struct pick_request *r, uint32_t from,
               uint32_t *to)
{
    bool found = false;
    double best = 0;
    for (uint32_t j = 0; j < n && w[from].moves; j++) {
        uint64_t size = w[j].kv_block_size ? w[j].kv_block_size : 16;
        /* room for what comes while it is copied, and each sequence there has a block to grow into
         */
        uint64_t tokens = (uint64_t)r->n_tokens + MOVE_ROOM_MIN + r->n_tokens / MOVE_ROOM_SHARE;
        uint64_t need = tokens / size + 1 + w[j].running + 1;
        if (j == from || !w[j].usable || !w[j].decode || !w[j].moves ||
            w[j].group != w[from].group || w[j].numerics != w[from].numerics ||
            r->n_tokens > longest(&w[j]) || need > w[j].kv_free)
            continue;
        double c = w[j].running * (2.0 - (double)w[j].kv_free / w[j].kv_blocks);
        if (!found || c < best) {
            found = true;
            best = c;
            *to = j;
        }
    }
    return found;
}

uint32_t pick_context(const struct pick_worker *w, uint32_t n, uint32_t pool)
{
    uint32_t best = 0;
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t j = 0; j < n; j++) {
            if (!w[i].usable || w[i].decode || w[i].pool != pool || !w[j].usable || !w[j].decode ||
                w[j].group != w[i].group)
                continue;
            uint32_t a = longest(&w[i]), b = longest(&w[j]);
            uint32_t both = a < b ? a : b;
            if (both > best)
                best = both;
        }
    }
    return best;
}
