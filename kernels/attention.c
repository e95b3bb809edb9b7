/* attention: softmax(q K^T) V for one KV head, and the plain C version of its steps.
 *
 * The driver (attention_rows) is shared by all instruction sets. Rows (query head x token, token by
 * token) walk the keys in tiles cut at absolute multiples of 256 positions: scores, online softmax
 * (running maximum and sum in base 2), values, for 12 or 16 rows at a time while the tile is in the
 * cache. The order of a row's operations depends on its own position only:
 *
 *   - its maximum, sum and output change at the same tile ends, whatever rows are beside it;
 *   - keys that it must not see get the weight 0 exactly, and adding 0 * V changes nothing (V of a
 *     later token is finite; the partner of an even last token is zeroed, see kv.h);
 *   - so decode (one token) and prefill (a chunk) give the same bits;
 *   - parts of 2048 keys start afresh and are joined in order, so that threads can share the keys
 * of one token.
 *
 * Q is scaled by log2(e) / sqrt(head_dim) beforehand, so that the exponential is a power of two.
 *
 * An instruction set without an 8-bit version expands an 8-bit cache to bf16, tile by tile and once
 * for all rows of the call; what follows is the same. */
#include "kernels/cpu.h"

#include <math.h>
#include <string.h>

#include "kernels/half.h"

static const struct attention_kernel *kernel_for(const struct kernels *k,
                                                 const struct attention_args *a)
{
    return k->attention[a->format] ? k->attention[a->format] : k->attention[KV_BF16];
}

static const uint8_t *sub_at(const struct attention_args *a, const uint8_t *kv,
                             const uint32_t *table, size_t i)
{
    size_t per_block = a->block_size / KV_SUB;
    return kv + table[i / per_block] * a->block_stride +
           i % per_block * kv_sub_bytes(a->format, a->head_dim);
}

/* Sub-blocks of the tile at key k0, and ATTENTION_AHEAD more to fetch early: of the same sequence,
 * then of what comes next. */
static void find_subs(const struct attention_args *a, size_t k0, size_t last, const uint8_t **sub)
{
    size_t n = (last - 1) / KV_SUB + 1, next = a->next_kv ? (a->next_keys - 1) / KV_SUB + 1 : 0;
    for (size_t j = 0; j < ATTENTION_SUBS + ATTENTION_AHEAD; j++) {
        size_t i = k0 / KV_SUB + j;
        if (i < n)
            sub[j] = sub_at(a, a->kv, a->table, i);
        else if (i - n < next)
            sub[j] = sub_at(a, a->next_kv, a->next_table, i - n);
        else
            sub[j] = sub_at(a, a->kv, a->table, n - 1);
    }
}

/* The tile's n_sub sub-blocks as bf16, and the addresses of those. */
static void expand_subs(const struct kernels *k, const struct attention_args *a, unsigned n_sub,
                        uint16_t *to, const uint8_t **sub)
{
    size_t bytes = kv_sub_bytes(a->format, a->head_dim);
    for (unsigned j = 0; j < ATTENTION_SUBS + ATTENTION_AHEAD; j++) {
        uint16_t *out = to + (j < n_sub ? j : n_sub - 1) * (2 * KV_SUB * a->head_dim);
        if (j < n_sub) {
            for (size_t i = 0; i < bytes; i += 64)
                __builtin_prefetch(sub[j + ATTENTION_AHEAD] + i, 0, 2);
            k->kv_expand(sub[j], a->head_dim, out);
        }
        sub[j] = (const uint8_t *)out;
    }
}

/* Queries of the rows, and how many keys each sees. */
static void attention_begin(const struct attention_kernel *k, const struct attention_args *a,
                            size_t first, unsigned n, struct attention_scratch *s)
{
    size_t hd = a->head_dim;
    float scale = 1.44269504088896340736f / sqrtf((float)hd);
    for (unsigned r = 0; r < n; r++) {
        size_t token = (first + r) / a->group, head = (first + r) % a->group;
        k->load_q(a->q + token * a->q_stride + head * hd, scale, hd, s->q[r]);
        s->visible[r] = (size_t)a->position[token] + 1;
    }
}

static void attention_end(const struct attention_args *a, size_t first, unsigned n,
                          const struct attention_state *st)
{
    size_t hd = a->head_dim;
    for (unsigned r = 0; r < n; r++) {
        size_t token = (first + r) / a->group, head = (first + r) % a->group;
        float *out = a->out + token * a->out_stride + head * hd, inverse = 1 / st->sum[r];
        for (size_t d = 0; d < hd; d++)
            out[d] = st->o[r][d] * inverse;
    }
}

/* Rows r .. r + n - 1 of the scratch over the tile at k0. */
static void attention_tile(const struct attention_kernel *k, const struct attention_args *a,
                           const uint8_t *const *sub, size_t k0, unsigned first, unsigned n,
                           struct attention_scratch *s, struct attention_state *st)
{
    size_t last = s->visible[first + n - 1]; /* positions ascend */
    if (last <= k0)
        return;
    size_t keys = last - k0 < ATTENTION_TILE ? last - k0 : ATTENTION_TILE;
    unsigned n_sub = (unsigned)((keys + KV_SUB - 1) / KV_SUB);
    float alpha[ATTENTION_ROWS];
    k->scores(n, (const float(*)[HEAD_DIM_MAX])s->q[first], sub, n_sub, a->head_dim, s->s);
    for (unsigned r = 0; r < n; r++) {
        size_t visible = s->visible[first + r];
        if (visible <= k0) {
            alpha[r] = 1;
            memset(s->p[r], 0, n_sub * KV_SUB * sizeof(float));
            continue;
        }
        size_t own = visible - k0 < keys ? visible - k0 : keys;
        k->softmax(s->s[r], s->p[r], sub, a->head_dim, n_sub, (unsigned)own, &st->max[first + r],
                   &st->sum[first + r], &alpha[r]);
    }
    k->values(n, st->o + first, (const float(*)[ATTENTION_TILE])s->p, alpha, sub,
              (unsigned)((keys + 1) / 2), a->head_dim);
}

/* All n rows over the part that begins at key `start`. */
static void attention_walk(const struct kernels *k, const struct attention_args *a, size_t start,
                           unsigned n, struct attention_scratch *s, struct attention_state *st)
{
    const struct attention_kernel *kernel = kernel_for(k, a);
    bool expand = k->attention[a->format] == NULL;
    for (unsigned r = 0; r < n; r++) {
        st->max[r] = -1e30f;
        st->sum[r] = 0;
        memset(st->o[r], 0, a->head_dim * sizeof(float));
    }
    size_t last = s->visible[n - 1];
    for (size_t k0 = start; k0 < last && k0 < start + ATTENTION_PART; k0 += ATTENTION_TILE) {
        const uint8_t *sub[ATTENTION_SUBS + ATTENTION_AHEAD];
        find_subs(a, k0, last, sub);
        if (expand) {
            size_t keys = last - k0 < ATTENTION_TILE ? last - k0 : ATTENTION_TILE;
            expand_subs(k, a, (unsigned)((keys + KV_SUB - 1) / KV_SUB), s->expanded, sub);
        }
        for (unsigned r = 0; r < n; r += kernel->rows)
            attention_tile(kernel, a, sub, k0, r, n - r < kernel->rows ? n - r : kernel->rows, s,
                           st);
    }
}

/* Adds a part to what row r has from the parts before. */
static void join(struct attention_state *all, unsigned r, const float *o, float max, float sum,
                 size_t head_dim)
{
    float m = max > all->max[r] ? max : all->max[r];
    float before = exp2f(all->max[r] - m), now = exp2f(max - m);
    for (size_t d = 0; d < head_dim; d++)
        all->o[r][d] = all->o[r][d] * before + o[d] * now;
    all->sum[r] = all->sum[r] * before + sum * now;
    all->max[r] = m;
}

void attention_rows(const struct kernels *k, const struct attention_args *a, size_t first,
                    unsigned n, struct attention_scratch *s)
{
    attention_begin(kernel_for(k, a), a, first, n, s);
    attention_walk(k, a, 0, n, s, &s->all);
    for (size_t start = ATTENTION_PART; start < s->visible[n - 1]; start += ATTENTION_PART) {
        attention_walk(k, a, start, n, s, &s->part);
        for (unsigned r = 0; r < n; r++)
            if (s->visible[r] > start)
                join(&s->all, r, s->part.o[r], s->part.max[r], s->part.sum[r], a->head_dim);
    }
    attention_end(a, first, n, &s->all);
}

void attention_part(const struct kernels *k, const struct attention_args *a, size_t part,
                    struct attention_scratch *s, float *out)
{
    size_t hd = a->head_dim;
    attention_begin(kernel_for(k, a), a, 0, a->group, s);
    attention_walk(k, a, part * ATTENTION_PART, a->group, s, &s->part);
    for (uint32_t r = 0; r < a->group; r++) {
        memcpy(out + r * hd, s->part.o[r], hd * sizeof(float));
        out[a->group * hd + r] = s->part.max[r];
        out[a->group * (hd + 1) + r] = s->part.sum[r];
    }
}

void attention_join(const struct attention_args *a, const float *parts, size_t n_parts,
                    struct attention_scratch *s)
{
    size_t hd = a->head_dim, floats = attention_part_floats(a->group, a->head_dim);
    for (uint32_t r = 0; r < a->group; r++) {
        memcpy(s->all.o[r], parts + r * hd, hd * sizeof(float));
        s->all.max[r] = parts[a->group * hd + r];
        s->all.sum[r] = parts[a->group * (hd + 1) + r];
        for (size_t i = 1; i < n_parts; i++) {
            const float *p = parts + i * floats;
            join(&s->all, r, p + r * hd, p[a->group * hd + r], p[a->group * (hd + 1) + r], hd);
        }
    }
    attention_end(a, 0, a->group, &s->all);
}

static void load_q(const float *q, float scale, size_t head_dim, void *out)
{
    float *to = out;
    for (size_t d = 0; d < head_dim; d++)
        to[d] = q[d] * scale;
}

static void scores(unsigned n, const float (*q)[HEAD_DIM_MAX], const uint8_t *const *sub,
                   unsigned n_sub, size_t head_dim, float (*s)[ATTENTION_TILE])
{
    for (unsigned j = 0; j < n_sub; j++)
        for (unsigned r = 0; r < n; r++) {
            const uint16_t *k = (const uint16_t *)(const void *)sub[j];
            float dot[KV_SUB] = {0};
            for (size_t d = 0; d < head_dim; d += 2, k += 2 * KV_SUB)
                for (int t = 0; t < KV_SUB; t++) {
                    dot[t] += q[r][d] * bf16_to_f32(k[2 * t]);
                    dot[t] += q[r][d + 1] * bf16_to_f32(k[2 * t + 1]);
                }
            memcpy(s[r] + j * KV_SUB, dot, sizeof dot);
        }
}

static void softmax(const float *s, void *out, const uint8_t *const *sub, size_t head_dim,
                    unsigned n_sub, unsigned visible, float *max, float *sum, float *alpha)
{
    float *p = out, m = *max, lane[KV_SUB] = {0}, total = 0;
    for (unsigned i = 0; i < visible; i++)
        m = s[i] > m ? s[i] : m;
    *alpha = exp2f(*max - m);
    *max = m;
    for (unsigned i = 0; i < n_sub * KV_SUB; i++) {
        p[i] = i < visible ? exp2f(s[i] - m) : 0;
        lane[i % KV_SUB] += p[i];
    }
    for (int i = 0; i < KV_SUB; i++)
        total += lane[i];
    *sum = *sum * *alpha + total;
}

static void values(unsigned n, float (*o)[HEAD_DIM_MAX], const float (*p)[ATTENTION_TILE],
                   const float *alpha, const uint8_t *const *sub, unsigned n_pairs, size_t head_dim)
{
    for (unsigned r = 0; r < n; r++) {
        for (size_t d = 0; d < head_dim; d++)
            o[r][d] *= alpha[r];
        for (unsigned i = 0; i < n_pairs; i++) {
            const uint16_t *v = (const uint16_t *)(const void *)sub[i / (KV_SUB / 2)] +
                                kv_v_index(head_dim, i % (KV_SUB / 2) * 2, 0);
            for (size_t d = 0; d < head_dim; d++) {
                o[r][d] += p[r][2 * i] * bf16_to_f32(v[2 * d]);
                o[r][d] += p[r][2 * i + 1] * bf16_to_f32(v[2 * d + 1]);
            }
        }
    }
}

const struct attention_kernel attention_c = {12, load_q, scores, softmax, values};
