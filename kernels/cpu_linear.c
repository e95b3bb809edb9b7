/* cpu_linear: linear layers of a captured pass.
 *
 * A linear op is two calls. The first prepares the activations of all rows (RMS norm, then the form
 * that the weights want) into a shared buffer. The second multiplies: a tile is a block of rows
 * times a group of units, a unit being a panel, or a gate and an up panel. With few rows (decode)
 * the first is skipped and every thread prepares for itself, which costs less than another phase.
 * The split into tiles depends on rows and threads; the bits of a result do not.
 *
 * A gate and an up panel give 32 neighbouring numbers of the hidden layer, which is one block of
 * activations of the down projection: they are put into its form at once, and the hidden layer
 * never exists as floats.
 *
 * A helper computes the same tile into memory of its own; see cpu_calls.h. */
#include <string.h>

#include "kernels/cpu_calls.h"

#define PREP_ROWS 8

/* ---- activations ---------------------------------------------------------------------------- */

static size_t call_rows(const struct cpu_backend *b, const struct call *c)
{
    return c->kind == OP_LOGITS ? b->base.args.n_logits : b->base.args.n_rows;
}

static struct act act_at(const struct act *a, size_t row, const struct weight *w)
{
    size_t n = row * w->k, blocks = n / Q_BLOCK;
    return (struct act){.f = a->f + n,
                        .h = a->h + n,
                        .q = a->q + n,
                        .d = a->d + blocks,
                        .s = a->s + (w->format == WEIGHT_Q8K ? 2 : 1) * blocks,
                        .ds = a->ds + blocks};
}

static bool takes_floats(const struct cpu_backend *b, const struct weight *w)
{
    return w->format == WEIGHT_F32 || (w->format == WEIGHT_BF16 && !b->kernels->bf16_act);
}

/* n numbers in the form that w takes; floats are where they should be already. */
static void convert(const struct cpu_backend *b, const struct weight *w, const float *x, size_t n,
                    const struct act *a)
{
    const struct kernels *k = b->kernels;
    if (w->format == WEIGHT_Q8)
        k->quant_q8(x, n, a->q, a->d, a->s);
    else if (w->format == WEIGHT_Q8K)
        k->quant_q8k(x, n, a->q, a->d, a->s, a->ds);
    else if (w->format == WEIGHT_Q4)
        k->quant_q4(x, n, a->q, a->d, a->ds);
    else if (w->format == WEIGHT_BF16)
        k->quant_bf16(x, n, a->h);
}

static const float *input_row(const struct cpu_backend *b, const struct call *c, size_t row)
{
    return c->in + (c->kind == OP_LOGITS ? b->base.args.logit_row[row] : row) * c->w->k;
}

static void prepare_row(const struct cpu_backend *b, const struct call *c, float *norm,
                        const float *x, const struct act *a)
{
    size_t n = c->w->k;
    bool floats = takes_floats(b, c->w);
    if (c->norm) {
        float *y = floats ? a->f : norm;
        b->kernels->rmsnorm(x, c->norm, n, b->base.dims.rms_eps, y);
        x = y;
    } else if (floats) {
        memcpy(a->f, x, n * sizeof *x);
    }
    if (!floats)
        convert(b, c->w, x, n, a);
}

size_t prepare_tiles(const struct cpu_backend *b, const struct call *c)
{
    size_t rows = call_rows(b, c);
    return c->prepared || rows <= CPU_FEW_ROWS ? 0 : ceil_div(rows, PREP_ROWS);
}

void prepare_run(struct cpu_backend *b, const struct call *c, struct cpu_scratch *s, size_t tile)
{
    size_t end = min_size((tile + 1) * PREP_ROWS, call_rows(b, c));
    for (size_t r = tile * PREP_ROWS; r < end; r++) {
        struct act a = act_at(&b->act, r, c->w);
        prepare_row(b, c, s->norm, input_row(b, c, r), &a);
    }
}

/* ---- tiles ---------------------------------------------------------------------------------- */

/* How the product is cut: row blocks x groups of units. */
struct split {
    size_t rows, row_blocks, per_block, units, groups, per_group;
};

static struct split split_of(const struct cpu_backend *b, const struct call *c)
{
    struct split s = {.rows = call_rows(b, c)};
    if (s.rows == 0)
        return s;
    s.units = c->w->interleave ? c->w->n_panels / 2 : c->w->n_panels;
    s.row_blocks = ceil_div(s.rows, b->kernels->rows);
    s.per_block = ceil_div(s.rows, s.row_blocks);
    size_t workers = cpu_workers(b), least = ceil_div(s.units, CPU_HELP_UNITS);
    s.groups = workers == 1 ? 1 : ceil_div(workers * TILES_PER_THREAD, s.row_blocks);
    if (threads_helpers(b->pool) && s.groups < least)
        s.groups = least; /* a helper's memory holds no more */
    s.groups = min_size(s.groups, s.units);
    s.per_group = ceil_div(s.units, s.groups);
    s.groups = ceil_div(s.units, s.per_group);
    return s;
}

size_t linear_tiles(const struct cpu_backend *b, const struct call *c)
{
    struct split s = split_of(b, c);
    return s.row_blocks * s.groups;
}

static struct linear_place place_of(const struct cpu_backend *b, const struct call *c, size_t tile)
{
    struct split s = split_of(b, c);
    struct linear_place p = {.all_rows = s.rows};
    if (s.rows == 0)
        return p;
    p.row = tile / s.groups * s.per_block;
    p.rows = min_size(s.per_block, s.rows - min_size(p.row, s.rows));
    p.unit = tile % s.groups * s.per_group;
    p.end = min_size(p.unit + s.per_group, s.units);
    return p;
}

/* ---- one unit ------------------------------------------------------------------------------- */

/* One panel into out[rows][ldo] (+)= ; the last panel may be ragged. */
static void unit_plain(const struct call *c, struct linear_args *a, struct cpu_scratch *s,
                       size_t first, float *out, size_t ldo, bool add)
{
    if (first + PANEL <= c->out_width) {
        a->add = add;
        a->bias = c->bias ? c->bias + first : NULL;
        a->c = out;
        a->ldc = ldo;
        c->linear(a);
        return;
    }
    a->add = false;
    a->bias = NULL;
    a->c = s->row[0];
    a->ldc = 2 * PANEL;
    c->linear(a);
    for (size_t r = 0; r < a->m; r++, out += ldo)
        for (size_t i = 0; i < c->out_width - first; i++) {
            float v = c->bias ? s->row[r][i] + c->bias[first + i] : s->row[r][i];
            out[i] = add ? out[i] + v : v;
        }
}

/* A gate and an up panel, side by side in s->row. */
static void unit_gated(const struct call *c, struct linear_args *a, struct cpu_scratch *s)
{
    a->bias = NULL;
    a->add = false;
    a->ldc = 2 * PANEL;
    a->c = s->row[0];
    c->linear(a);
    a->w += c->w->panel_bytes;
    a->c = s->row[0] + PANEL;
    c->linear(a);
}
/* And what comes of row r, n numbers in s->row[r]. */
static const float *gated_row(const struct cpu_backend *b, struct cpu_scratch *s, size_t r,
                              size_t n)
{
    b->kernels->silu(s->row[r], s->row[r] + PANEL, n, s->row[r]);
    return s->row[r];
}

/* Where columns `first` to first + 31 of a row of the hidden layer go, in the form that OP_DOWN
 * takes, and how far it is to the next row. Worked out once for all rows: a row is converted in
 * less time than its addresses take. */
struct hidden_place {
    struct act at;
    size_t k, blocks, sums; /* to the next row: numbers, scales, sums */
    bool floats;
};
static struct hidden_place hidden_place(const struct cpu_backend *b, const struct call *c,
                                        size_t row, size_t first)
{
    struct hidden_place h = {.floats = !c->down || takes_floats(b, c->down), .k = c->out_width};
    if (h.floats) {
        h.at.f = (c->down ? b->hidden.f : c->out) + row * h.k + first;
        return h;
    }
    size_t per = c->down->format == WEIGHT_Q8K ? 2 : 1, block = first / Q_BLOCK;
    h.at = act_at(&b->hidden, row, c->down);
    h.k = c->down->k;
    h.blocks = h.k / Q_BLOCK;
    h.sums = per * h.blocks;
    h.at.h += first;
    h.at.q += first;
    h.at.d += block;
    h.at.ds += block;
    h.at.s += per * block;
    return h;
}
/* n numbers of a row; moves on to the next. */
static void store_hidden(const struct cpu_backend *b, const struct call *c, struct hidden_place *h,
                         const float *x, size_t n)
{
    if (h->floats) {
        memcpy(h->at.f, x, n * sizeof *x);
        h->at.f += h->k;
        return;
    }
    convert(b, c->down, x, n, &h->at);
    h->at.h += h->k;
    h->at.q += h->k;
    h->at.d += h->blocks;
    h->at.ds += h->blocks;
    h->at.s += h->sums;
}

/* What a unit will write, fetched while it is computed: a row's part is a line or two far from the
 * next row's. Worth a tenth of the gated units' time where products are fast (AMX). */
static void fetch_rows(const void *first, size_t row_bytes, size_t n, size_t rows)
{
    const char *p = first;
    for (size_t r = 0; r < rows; r++, p += row_bytes)
        for (size_t i = 0; i < n; i += 64)
            __builtin_prefetch(p + i, 1, 2);
}

static void fetch_out(const struct cpu_backend *b, const struct call *c, size_t row, size_t rows,
                      size_t first, size_t n)
{
    if (rows <= CPU_FEW_ROWS)
        return;
    if (c->kind != OP_GATE_UP) {
        fetch_rows(c->out + row * c->out_width + first, c->out_width * sizeof(float),
                   n * sizeof(float), rows);
        return;
    }
    struct hidden_place h = hidden_place(b, c, row, first);
    if (h.floats) {
        fetch_rows(h.at.f, h.k * sizeof *h.at.f, n * sizeof *h.at.f, rows);
    } else if (c->down->format == WEIGHT_BF16) {
        fetch_rows(h.at.h, h.k * sizeof *h.at.h, n * sizeof *h.at.h, rows);
    } else {
        fetch_rows(h.at.q, h.k, n, rows);
        fetch_rows(h.at.d, h.blocks * sizeof *h.at.d, 1, rows);
        if (c->down->format != WEIGHT_Q8)
            fetch_rows(h.at.ds, h.blocks * sizeof *h.at.ds, 1, rows);
        if (c->down->format != WEIGHT_Q4)
            fetch_rows(h.at.s, h.sums * sizeof *h.at.s, 1, rows);
    }
}

static const uint8_t *unit_weights(const struct call *c, size_t unit)
{
    return c->w->data + unit * (c->w->interleave ? 2 : 1) * c->w->panel_bytes;
}

static bool adds(const struct call *c)
{
    return c->kind == OP_OUT || c->kind == OP_DOWN;
}

/* ---- a tile --------------------------------------------------------------------------------- */

void linear_run(struct cpu_backend *b, const struct call *c, struct cpu_scratch *s, size_t tile)
{
    struct linear_place p = place_of(b, c, tile);
    if (p.rows == 0)
        return;
    struct linear_args a = {.k = c->w->k, .m = (uint32_t)p.rows};
    if (c->prepared) {
        a.a = act_at(&b->hidden, p.row, c->w);
    } else if (p.all_rows > CPU_FEW_ROWS) {
        a.a = act_at(&b->act, p.row, c->w);
    } else {
        for (size_t r = 0; r < p.all_rows && (s->few_call != c || s->few_step != b->step); r++) {
            struct act at = act_at(&s->few, r, c->w);
            prepare_row(b, c, s->norm, input_row(b, c, r), &at);
        }
        s->few_call = c;
        s->few_step = b->step;
        a.a = s->few;
    }
    for (size_t unit = p.unit; unit < p.end; unit++) {
        size_t first = unit * PANEL, n = min_size(PANEL, c->out_width - first);
        a.w = unit_weights(c, unit);
        fetch_out(b, c, p.row, p.rows, first, n);
        if (!c->w->interleave) {
            unit_plain(c, &a, s, first, c->out + p.row * c->out_width + first, c->out_width,
                       adds(c));
            continue;
        }
        unit_gated(c, &a, s);
        struct hidden_place h = hidden_place(b, c, p.row, first);
        for (size_t r = 0; r < p.rows; r++)
            store_hidden(b, c, &h, gated_row(b, s, r, n), n);
    }
}

/* ---- helpers -------------------------------------------------------------------------------- */

/* It may read a step that is being written: what it read is used only if that was not so, which the
 * pool checks. */
__attribute__((no_sanitize("thread"))) static void
begin(const struct cpu_backend *b, const struct call *c, struct cpu_scratch *s, size_t tile)
{
    struct cpu_help *h = &s->help;
    h->call = c;
    h->place = place_of(b, c, tile);
    for (size_t r = 0; r < h->place.all_rows && h->place.all_rows <= CPU_FEW_ROWS; r++)
        h->few[r] = c->prepared ? NULL : input_row(b, c, r);
}

static void compute(const struct cpu_backend *b, struct cpu_scratch *s)
{
    const struct cpu_help *h = &s->help;
    const struct call *c = h->call;
    const struct linear_place *p = &h->place;
    struct linear_args a = {.k = c->w->k, .m = (uint32_t)p->rows};
    if (c->prepared) {
        a.a = act_at(&b->hidden, p->row, c->w);
    } else if (p->all_rows > CPU_FEW_ROWS) {
        a.a = act_at(&b->act, p->row, c->w);
    } else {
        for (size_t r = 0; r < p->all_rows; r++) {
            struct act at = act_at(&s->few, r, c->w);
            prepare_row(b, c, s->norm, h->few[r], &at);
        }
        a.a = s->few;
    }
    size_t width = (p->end - p->unit) * PANEL;
    for (size_t unit = p->unit; unit < p->end; unit++) {
        size_t first = unit * PANEL, n = min_size(PANEL, c->out_width - first);
        float *out = h->out + (unit - p->unit) * PANEL;
        a.w = unit_weights(c, unit);
        if (!c->w->interleave) {
            unit_plain(c, &a, s, first, out, width, false);
            continue;
        }
        unit_gated(c, &a, s);
        for (size_t r = 0; r < p->rows; r++)
            memcpy(out + r * width, gated_row(b, s, r, n), n * sizeof *out);
    }
}

static void finish(const struct cpu_backend *b, struct cpu_scratch *s)
{
    const struct cpu_help *h = &s->help;
    const struct call *c = h->call;
    const struct linear_place *p = &h->place;
    size_t width = (p->end - p->unit) * PANEL, first = p->unit * PANEL;
    size_t n = min_size(width, c->out_width - first);
    if (c->kind == OP_GATE_UP) {
        for (size_t i = 0; i < n; i += PANEL) {
            struct hidden_place to = hidden_place(b, c, p->row, first + i);
            for (size_t r = 0; r < p->rows; r++)
                store_hidden(b, c, &to, h->out + r * width + i, min_size(PANEL, n - i));
        }
        return;
    }
    for (size_t r = 0; r < p->rows; r++) {
        const float *from = h->out + r * width;
        float *to = c->out + (p->row + r) * c->out_width + first;
        if (adds(c))
            for (size_t i = 0; i < n; i++)
                to[i] += from[i];
        else
            memcpy(to, from, n * sizeof *to);
    }
}

const struct call_help linear_help = {begin, compute, finish};
