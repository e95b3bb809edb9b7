/* cpu_attention: how the attention of a step is cut into tiles.
 *
 * A tile is up to ATTENTION_MOST rows (query heads x tokens) of one KV head of a segment. With many
 * sequences that each have one token it is all heads of one of them: then the first keys of the
 * next head are fetched while the one before is computed. With so few of them that threads would
 * have nothing to do it is a part of the keys of one head, and a second call joins the parts. A
 * helper computes a tile into memory of its own, over copies of positions and block table; see
 * cpu_calls.h. */
#include <string.h>

#include "kernels/cpu_calls.h"

#define WHOLE_PER_THREAD 4 /* with so many sequences for each thread, a tile is a sequence */

static bool attention_whole(const struct cpu_backend *b)
{
    const struct step_args *a = &b->base.args;
    return a->n_segments == a->n_rows && a->n_segments >= WHOLE_PER_THREAD * cpu_workers(b);
}

/* Most segments whose keys are shared out, of how many heads: two tiles for each thread would do.
 */
static size_t attention_few(const struct backend_dims *d, size_t threads)
{
    return ceil_div(2 * threads, d->n_kv_heads);
}

static size_t parts_of(size_t keys)
{
    return ceil_div(keys, ATTENTION_PART);
}

size_t attention_parts_floats(const struct backend_dims *d, size_t threads)
{
    uint32_t group = d->n_heads / d->n_kv_heads;
    if (threads < 2 || group > ATTENTION_MOST || d->context <= ATTENTION_PART)
        return 0;
    return attention_few(d, threads) * d->n_kv_heads * parts_of(d->context) *
           attention_part_floats(group, d->head_dim);
}

static size_t segment_parts(const struct cpu_backend *b, size_t segment)
{
    const struct step_args *a = &b->base.args;
    return parts_of((size_t)a->position[a->segment[segment]] + 1);
}

/* Whether this step shares out the keys of its sequences. */
static bool plan_parts(const struct cpu_backend *b)
{
    const struct step_args *a = &b->base.args;
    size_t threads = (size_t)threads_count(b->pool), longest = 0;
    if (!b->attention_parts || a->n_segments != a->n_rows ||
        a->n_segments * b->base.dims.n_kv_heads >= 2 * threads)
        return false;
    for (size_t i = 0; i < a->n_segments; i++)
        longest = max_size(longest, segment_parts(b, i));
    return longest > 1;
}

/* Tiles of one KV head of a segment. */
static size_t attention_per_head(const struct cpu_backend *b, size_t segment)
{
    const struct backend_dims *d = &b->base.dims;
    const uint32_t *first = b->base.args.segment + segment;
    size_t rows = (first[1] - first[0]) * (size_t)(d->n_heads / d->n_kv_heads);
    return ceil_div(rows, ATTENTION_MOST);
}

void attention_plan(struct cpu_backend *b)
{
    uint32_t n = 0;
    bool whole = attention_whole(b);
    b->in_parts = !whole && plan_parts(b);
    for (size_t i = 0; i < b->base.args.n_segments; i++) {
        b->attention_first[i] = n;
        size_t per_head = b->in_parts ? segment_parts(b, i) : attention_per_head(b, i);
        n += whole ? 1 : (uint32_t)per_head * b->base.dims.n_kv_heads;
    }
    b->attention_first[b->base.args.n_segments] = n;
}

size_t attention_tiles(const struct cpu_backend *b, const struct call *c)
{
    return b->attention_first[b->base.args.n_segments];
}

static size_t attention_segment(const struct cpu_backend *b, size_t tile)
{
    size_t lo = 0, hi = b->base.args.n_segments;
    while (hi - lo > 1) {
        size_t mid = (lo + hi) / 2;
        if (b->attention_first[mid] <= tile)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

static const uint32_t *table_of(const struct step_args *a, size_t seq)
{
    return a->tables + seq * a->table_stride;
}
static const uint32_t *segment_table(const struct step_args *a, size_t segment)
{
    return table_of(a, a->seq[a->segment[segment]]);
}

/* One KV head of the tokens from row `row` on, which are of one sequence. */
static struct attention_args attention_head(const struct cpu_backend *b, const struct call *c,
                                            size_t row, const uint32_t *table, size_t head)
{
    const struct backend_dims *d = &b->base.dims;
    size_t hd = d->head_dim, group = d->n_heads / d->n_kv_heads;
    struct attention_args a = {
        .q_stride = (d->n_heads + 2 * (size_t)d->n_kv_heads) * hd,
        .out_stride = d->n_heads * hd,
        .position = b->base.args.position + row,
        .group = (uint32_t)group,
        .head_dim = d->head_dim,
        .kv = backend_kv_cell(&b->base, &c->kv, c->layer, 0, head),
        .block_stride = d->n_kv_heads * b->base.kv_cell_bytes,
        .table = table,
        .block_size = d->kv_block_size,
        .format = d->kv_format,
    };
    a.q = b->base.buffer[BUFFER_QKV] + row * a.q_stride + head * group * hd;
    a.out = b->base.buffer[BUFFER_ATT] + row * a.out_stride + head * group * hd;
    return a;
}

/* What a tile is: rows first .. first + n - 1 of a head of a segment, or the whole segment. */
static struct attention_place place_of(const struct cpu_backend *b, size_t tile)
{
    const struct step_args *args = &b->base.args;
    const struct backend_dims *d = &b->base.dims;
    if (attention_whole(b))
        return (struct attention_place){.segment = tile, .whole = true};
    size_t segment = attention_segment(b, tile), per_head = attention_per_head(b, segment);
    per_head = per_head > 0 ? per_head : 1; /* a helper may see a step that is being written */
    size_t at = tile - b->attention_first[segment];
    size_t tokens = args->segment[segment + 1] - args->segment[segment];
    size_t first = at % per_head * ATTENTION_MOST, rows = tokens * (d->n_heads / d->n_kv_heads);
    return (struct attention_place){.segment = segment,
                                    .head = min_size(at / per_head, d->n_kv_heads - 1),
                                    .first = first,
                                    .rows = min_size(ATTENTION_MOST, rows - min_size(first, rows))};
}

/* All heads of a segment of one token. */
static void run_whole(const struct cpu_backend *b, const struct call *c, struct cpu_scratch *s,
                      size_t segment)
{
    const struct backend_dims *d = &b->base.dims;
    const struct step_args *args = &b->base.args;
    size_t later = segment + cpu_workers(b); /* about what this thread takes next */
    for (size_t head = 0; head < d->n_kv_heads; head++) {
        struct attention_args a =
            attention_head(b, c, args->segment[segment], segment_table(args, segment), head);
        bool same = head + 1 < d->n_kv_heads;
        size_t next = same ? segment : later;
        if (next < args->n_segments) {
            a.next_kv = backend_kv_cell(&b->base, &c->kv, c->layer, 0, same ? head + 1 : 0);
            a.next_table = segment_table(args, next);
            a.next_keys = (uint32_t)args->position[args->segment[next]] + 1;
        }
        attention_rows(b->kernels, &a, 0, a.group, &s->attention);
    }
}

/* One KV head of a segment of one token, for a step in parts. */
static struct attention_args part_args(const struct cpu_backend *b, const struct call *c,
                                       size_t segment, size_t head)
{
    return attention_head(b, c, b->base.args.segment[segment],
                          segment_table(&b->base.args, segment), head);
}

/* The result of a tile, tiles of a head being neighbours. */
static float *part_at(const struct cpu_backend *b, size_t tile)
{
    const struct backend_dims *d = &b->base.dims;
    return b->attention_parts +
           tile * attention_part_floats(d->n_heads / d->n_kv_heads, d->head_dim);
}

static void run_part(const struct cpu_backend *b, const struct call *c, struct cpu_scratch *s,
                     size_t tile)
{
    size_t segment = attention_segment(b, tile), parts = segment_parts(b, segment);
    size_t at = tile - b->attention_first[segment];
    struct attention_args a = part_args(b, c, segment, at / parts);
    attention_part(b->kernels, &a, at % parts, &s->attention, part_at(b, tile));
}

size_t join_tiles(const struct cpu_backend *b, const struct call *c)
{
    return b->in_parts ? b->base.args.n_segments : 0;
}

void join_run(struct cpu_backend *b, const struct call *c, struct cpu_scratch *s, size_t segment)
{
    size_t parts = segment_parts(b, segment);
    for (size_t head = 0; head < b->base.dims.n_kv_heads; head++) {
        struct attention_args a = part_args(b, c, segment, head);
        attention_join(&a, part_at(b, b->attention_first[segment] + head * parts), parts,
                       &s->attention);
    }
}

void attention_run(struct cpu_backend *b, const struct call *c, struct cpu_scratch *s, size_t tile)
{
    if (b->in_parts) {
        run_part(b, c, s, tile);
        return;
    }
    struct attention_place p = place_of(b, tile);
    if (p.whole) {
        run_whole(b, c, s, p.segment);
        return;
    }
    const struct step_args *args = &b->base.args;
    struct attention_args a =
        attention_head(b, c, args->segment[p.segment], segment_table(args, p.segment), p.head);
    attention_rows(b->kernels, &a, p.first, (unsigned)p.rows, &s->attention);
}

/* ---- helpers -------------------------------------------------------------------------------- */

/* As in cpu_linear.c, this may read a step that is being written; so whatever addresses memory is
 * read here and not later, and every index is kept within its array. */
__attribute__((no_sanitize("thread"))) static void
begin(const struct cpu_backend *b, const struct call *c, struct cpu_scratch *s, size_t tile)
{
    const struct backend_dims *d = &b->base.dims;
    const struct step_args *args = &b->base.args;
    struct cpu_help *h = &s->help;
    struct attention_place *p = &h->attention;
    size_t group = d->n_heads / d->n_kv_heads, last_row = d->max_rows - 1, longest = 0;
    *p = place_of(b, tile);
    p->rows = p->whole ? group : p->rows;
    size_t first = p->first / group;
    size_t row = min_size(args->segment[min_size(p->segment, last_row)] + first, last_row);
    const uint32_t *table = table_of(args, min_size(args->seq[row], d->max_seqs - 1));
    h->call = c;
    h->token = row;
    h->offset = p->first % group;
    for (size_t t = 0; t * group < h->offset + p->rows; t++) {
        size_t position = (uint32_t)args->position[min_size(row + t, last_row)];
        position = min_size(position, d->context - 1);
        h->position[t] = (int32_t)position;
        longest = position > longest ? position : longest;
    }
    for (size_t i = 0; i <= longest / d->kv_block_size; i++)
        h->table[i] = table[i];
    h->args = attention_head(b, c, row, h->table, p->whole ? 0 : p->head);
    h->args.position = h->position;
    h->args.out = h->out;
    h->args.out_stride = (p->whole ? d->n_heads : group) * (size_t)d->head_dim;
}

static void compute(const struct cpu_backend *b, struct cpu_scratch *s)
{
    struct cpu_help *h = &s->help;
    const struct backend_dims *d = &b->base.dims;
    size_t width = d->n_heads / d->n_kv_heads * (size_t)d->head_dim;
    struct attention_args a = h->args;
    if (!h->attention.whole) {
        attention_rows(b->kernels, &a, h->offset, (unsigned)h->attention.rows, &s->attention);
        return;
    }
    for (size_t head = 0; head < d->n_kv_heads; head++) {
        attention_rows(b->kernels, &a, 0, a.group, &s->attention);
        a.q += width;
        a.out += width;
        a.kv += b->base.kv_cell_bytes;
    }
}

static void finish(const struct cpu_backend *b, struct cpu_scratch *s)
{
    const struct cpu_help *h = &s->help;
    const struct backend_dims *d = &b->base.dims;
    size_t hd = d->head_dim, group = d->n_heads / d->n_kv_heads, width = d->n_heads * hd;
    float *to = b->base.buffer[BUFFER_ATT] + h->token * width;
    if (h->attention.whole) {
        memcpy(to, h->out, width * sizeof *to);
        return;
    }
    to += h->attention.head * group * hd;
    for (size_t r = h->offset; r < h->offset + h->attention.rows; r++)
        memcpy(to + r / group * width + r % group * hd, h->out + r * hd, hd * sizeof *to);
}

const struct call_help attention_help = {begin, compute, finish};
