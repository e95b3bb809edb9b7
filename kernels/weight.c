/* weight: choosing a format, packing and unpacking; see weight.h for the layouts.
 *
 * Exactness. Q8_0 -> Q8 and Q4_1 -> Q4 copy the file's integers and scales. Q4_0 is w = d (q - 8):
 * as Q4 with m = -8 d, which fp16 holds exactly unless it overflows; then the weight becomes Q8
 * with the same d and q - 8. Q8K holds the integers of every quantised type, so stacked parts of
 * different ones become Q8K; quantised parts beside others become F32. The one rounding is that of
 * K-quants' scales and minima, products of a fp16 number and 6 or 8 bits, to fp16: a relative
 * 2^-12, far below the step of the integers. Everything else (a format that was asked for)
 * quantises as GGUF does: the largest magnitude to 127, or minimum and maximum to 0 and 15.
 *
 * Packing runs on the pool, one panel per tile, from the model file's mapping: this is when the
 * file is read. */
#include "kernels/weight.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "kernels/half.h"

#define SLAB_BYTES ((size_t)64 << 20)
#define DATA_ALIGN ((size_t)4096)
#define MAX_COLS   ((uint64_t)1 << 24)
#define MAX_ROWS   ((uint64_t)1 << 28)
#define Q4_0_M_MAX 8188.0f /* 8 d must stay below fp16's 65504 */

/* ---- formats -------------------------------------------------------------------------------- */

static bool q4_0_fits(const struct matrix_view *v)
{
    struct matrix_block b;
    for (uint64_t r = 0; r < v->rows; r++)
        for (uint64_t i = 0; i < v->cols / Q_BLOCK; i++) {
            matrix_block(v, r, i, &b);
            if (!(fabsf(b.d[0]) < Q4_0_M_MAX))
                return false;
        }
    return true;
}

static enum weight_format format_of(const struct matrix_view *v)
{
    switch (v->type) {
    case MATRIX_Q8_0:
    case MATRIX_Q5_0:
        return WEIGHT_Q8;
    case MATRIX_Q4_1:
    case MATRIX_Q4_K:
        return WEIGHT_Q4;
    case MATRIX_Q4_0:
        return q4_0_fits(v) ? WEIGHT_Q4 : WEIGHT_Q8;
    case MATRIX_Q5_1:
    case MATRIX_Q5_K:
    case MATRIX_Q6_K:
        return WEIGHT_Q8K;
    default:
        return WEIGHT_BF16;
    }
}

static bool format_quantised(enum weight_format f)
{
    return f == WEIGHT_Q8 || f == WEIGHT_Q4 || f == WEIGHT_Q8K;
}

/* Whether the format holds the type's integers as they are. */
static bool format_exact(enum weight_format f, uint32_t type)
{
    switch (f) {
    case WEIGHT_F32:
        return true;
    case WEIGHT_BF16:
        return type == MATRIX_BF16;
    case WEIGHT_Q8:
        return type == MATRIX_Q8_0 || type == MATRIX_Q5_0 || type == MATRIX_Q4_0;
    case WEIGHT_Q4:
        return type == MATRIX_Q4_1 || type == MATRIX_Q4_0 || type == MATRIX_Q4_K;
    default:
        return matrix_quantised(type);
    }
}

/* Of a stack of parts in formats a and b. */
static enum weight_format format_both(enum weight_format a, enum weight_format b)
{
    if (a == b)
        return a;
    return format_quantised(a) && format_quantised(b) ? WEIGHT_Q8K : WEIGHT_F32;
}

int weight_check(const struct matrix_view *parts, size_t n_parts, enum weight_format *format,
                 bool interleave, bool embed)
{
    if (n_parts == 0 || (interleave && n_parts != 2) || (embed && n_parts != 1)) {
        log_error("weight: %zu parts, interleave %d, embed %d do not go together", n_parts,
                  interleave, embed);
        return STATUS_INVALID;
    }
    enum weight_format f = WEIGHT_AUTO;
    uint64_t rows = 0, cols = parts[0].cols;
    for (size_t i = 0; i < n_parts; i++) {
        if (cols == 0 || cols > MAX_COLS || parts[i].cols != cols || parts[i].rows == 0 ||
            parts[i].rows > MAX_ROWS || (interleave && parts[i].rows != parts[0].rows)) {
            log_error("weight: part %zu is %llu x %llu", i, (unsigned long long)parts[i].rows,
                      (unsigned long long)parts[i].cols);
            return STATUS_INVALID;
        }
        if (matrix_row_bytes(parts[i].type, cols) == 0) {
            log_error("weight: type %u with %llu columns is not supported", parts[i].type,
                      (unsigned long long)cols);
            return STATUS_UNSUPPORTED;
        }
        enum weight_format own = *format == WEIGHT_AUTO ? format_of(&parts[i]) : *format;
        /* A Q4_0 part that only Q8 can hold, asked for as Q4, would overflow. */
        if (own == WEIGHT_Q4 && parts[i].type == MATRIX_Q4_0 && !q4_0_fits(&parts[i]))
            own = WEIGHT_Q8;
        f = f == WEIGHT_AUTO ? own : format_both(f, own);
        rows += parts[i].rows;
    }
    if (rows > MAX_ROWS || cols % (format_quantised(f) ? Q_BLOCK : 2)) {
        log_error("weight: %llu columns: must be a multiple of %d for this format",
                  (unsigned long long)cols, format_quantised(f) ? Q_BLOCK : 2);
        return STATUS_UNSUPPORTED;
    }
    *format = f;
    return STATUS_OK;
}

/* ---- packing -------------------------------------------------------------------------------- */

static int clamp_int(long v, int lo, int hi)
{
    return v < lo ? lo : v > hi ? hi : (int)v;
}

static void block_quantise_q8(const float *x, struct matrix_block *b)
{
    float max = 0;
    for (int i = 0; i < Q_BLOCK; i++)
        max = fmaxf(max, fabsf(x[i]));
    float d = max / 127;
    *b = (struct matrix_block){.d = {d, d}};
    float inverse = d > 0 ? 1 / d : 0;
    for (int i = 0; i < Q_BLOCK; i++)
        b->q[i] = clamp_int(lrintf(x[i] * inverse), -127, 127);
}

static void block_quantise_q4(const float *x, struct matrix_block *b)
{
    float lo = x[0], hi = x[0];
    for (int i = 1; i < Q_BLOCK; i++) {
        lo = fminf(lo, x[i]);
        hi = fmaxf(hi, x[i]);
    }
    float d = (hi - lo) / 15;
    *b = (struct matrix_block){.d = {d, d}, .m = lo};
    float inverse = d > 0 ? 1 / d : 0;
    for (int i = 0; i < Q_BLOCK; i++)
        b->q[i] = clamp_int(lrintf((x[i] - lo) * inverse), 0, 15);
}

/* The block of a row in the integers of a quantised format. */
static void block_convert(enum weight_format f, const struct matrix_view *v, uint64_t row,
                          uint64_t block, struct matrix_block *b)
{
    if (format_exact(f, v->type)) {
        matrix_block(v, row, block, b);
        if (f == WEIGHT_Q4 && v->type == MATRIX_Q4_0) {
            b->m = -8 * b->d[0];
            for (int i = 0; i < Q_BLOCK; i++)
                b->q[i] += 8;
        }
        return;
    }
    float x[Q_BLOCK];
    matrix_decode(v, row, block * Q_BLOCK, Q_BLOCK, x);
    if (f == WEIGHT_Q4)
        block_quantise_q4(x, b);
    else
        block_quantise_q8(x, b);
}

static void put16(uint8_t *p, uint16_t v)
{
    memcpy(p, &v, sizeof v);
}
static void put_half(uint8_t *p, float v)
{
    put16(p, f16_from_f32(v));
}

static void block_put_q8(uint8_t *dst, unsigned c, const struct matrix_block *b)
{
    for (unsigned k = 0; k < Q_BLOCK; k++)
        dst[k / 4 * PANEL * 4 + c * 4 + k % 4] = (uint8_t)(b->q[k] + 128);
    put_half(dst + PANEL * Q_BLOCK + 2 * c, b->d[0]);
}

static void block_put_q8k(uint8_t *dst, unsigned c, const struct matrix_block *b)
{
    block_put_q8(dst, c, b);
    put_half(dst + PANEL * Q_BLOCK + 2 * (PANEL + c), b->d[1]);
    put_half(dst + PANEL * Q_BLOCK + 2 * (2 * PANEL + c), b->m);
}

static void block_put_q4(uint8_t *dst, unsigned c, const struct matrix_block *b)
{
    for (unsigned i = 0; i < 4; i++)
        for (unsigned j = 0; j < 4; j++)
            dst[i * PANEL * 4 + c * 4 + j] = (uint8_t)(b->q[8 * i + j] | b->q[8 * i + 4 + j] << 4);
    put_half(dst + PANEL * Q_BLOCK / 2 + 2 * c, b->d[0]);
    put_half(dst + PANEL * Q_BLOCK / 2 + 2 * PANEL + 2 * c, b->m);
}

static size_t block_bytes(enum weight_format f)
{
    return f == WEIGHT_Q8 ? Q8_BLOCK_BYTES : f == WEIGHT_Q8K ? Q8K_BLOCK_BYTES : Q4_BLOCK_BYTES;
}

struct pack_job {
    const struct matrix_view *parts;
    size_t n_parts;
    struct weight *w;
};

/* The part and row that column c of panel p shows; false for a column of padding. */
static bool pack_source(const struct pack_job *j, uint32_t p, uint32_t c,
                        const struct matrix_view **part, uint64_t *row)
{
    if (j->w->interleave) {
        *part = &j->parts[p % 2];
        *row = (uint64_t)(p / 2) * PANEL + c;
        return *row < (*part)->rows;
    }
    *row = (uint64_t)p * PANEL + c;
    for (size_t i = 0; i < j->n_parts; i++) {
        *part = &j->parts[i];
        if (*row < (*part)->rows)
            return true;
        *row -= (*part)->rows;
    }
    return false;
}

static void pack_column(const struct weight *w, uint8_t *panel, uint32_t c,
                        const struct matrix_view *part, uint64_t row)
{
    if (format_quantised(w->format)) {
        size_t step = block_bytes(w->format);
        for (uint32_t b = 0; b < w->k / Q_BLOCK; b++, panel += step) {
            struct matrix_block q = {.m = 0};
            if (part)
                block_convert(w->format, part, row, b, &q);
            if (w->format == WEIGHT_Q8)
                block_put_q8(panel, c, &q);
            else if (w->format == WEIGHT_Q8K)
                block_put_q8k(panel, c, &q);
            else
                block_put_q4(panel, c, &q);
        }
        return;
    }
    for (uint32_t k = 0; k < w->k; k += Q_BLOCK) {
        uint32_t n = w->k - k < Q_BLOCK ? w->k - k : Q_BLOCK;
        float x[Q_BLOCK] = {0};
        if (part)
            matrix_decode(part, row, k, n, x);
        for (uint32_t i = 0; i < n; i++) {
            if (w->format == WEIGHT_F32)
                memcpy(panel + 4 * ((size_t)(k + i) * PANEL + c), &x[i], 4);
            else
                put16(panel + 2 * ((size_t)(k + i) / 2 * 2 * PANEL + 2 * c + i % 2),
                      bf16_from_f32(x[i]));
        }
    }
}

static size_t pack_tiles(void *arg, size_t phase)
{
    (void)phase;
    return ((const struct pack_job *)arg)->w->n_panels;
}

static void pack_panel(void *arg, size_t phase, size_t p, int thread)
{
    (void)phase;
    (void)thread;
    const struct pack_job *j = arg;
    for (uint32_t c = 0; c < PANEL; c++) {
        const struct matrix_view *part;
        uint64_t row;
        bool live = pack_source(j, (uint32_t)p, c, &part, &row);
        pack_column(j->w, j->w->data + p * j->w->panel_bytes, c, live ? part : NULL, row);
    }
}

/* ---- memory --------------------------------------------------------------------------------- */

struct weight_slab {
    uint8_t *mem;
    size_t size, used;
    unsigned live;
};

static void slab_put(struct weight_store *store, struct weight_slab *s)
{
    if (--s->live > 0)
        return;
    if (store->open == s)
        store->open = NULL;
    mem_huge_free(s->mem, s->size);
    free(s);
}

/* Small weights share slabs: huge pages of their own would waste a megabyte each. */
static uint8_t *store_alloc(struct weight_store *store, size_t n, struct weight_slab **out)
{
    n = (n + DATA_ALIGN - 1) & ~(DATA_ALIGN - 1);
    struct weight_slab *s = store->open;
    if (!s || s->size - s->used < n) {
        s = mem_array(1, sizeof *s);
        if (!s)
            return NULL;
        s->size = n > SLAB_BYTES / 2 ? n : SLAB_BYTES;
        s->mem = mem_huge(s->size);
        if (!s->mem) {
            free(s);
            return NULL;
        }
        if (s->size == SLAB_BYTES) { /* the store itself holds the slab it fills */
            struct weight_slab *old = store->open;
            store->open = s;
            s->live++;
            if (old)
                slab_put(store, old);
        }
    }
    uint8_t *p = s->mem + s->used;
    s->used += n;
    s->live++;
    *out = s;
    return p;
}

void weight_store_fini(struct weight_store *store)
{
    if (store->open)
        slab_put(store, store->open);
}

static size_t panel_bytes(enum weight_format f, uint32_t k)
{
    switch (f) {
    case WEIGHT_F32:
        return (size_t)k * PANEL * 4;
    case WEIGHT_BF16:
        return (size_t)k * PANEL * 2;
    default:
        return (size_t)k / Q_BLOCK * block_bytes(f);
    }
}

static int keep_rows(struct weight *w, const struct matrix_view *v)
{
    w->rows_type = v->type;
    w->row_bytes = matrix_row_bytes(v->type, v->cols);
    size_t bytes;
    if (!mem_mul(v->rows, w->row_bytes, &bytes))
        return STATUS_NOMEM;
    w->rows = mem_dup(v->data, bytes);
    if (!w->rows)
        return STATUS_NOMEM;
    w->bytes += bytes;
    return STATUS_OK;
}

int weight_create(struct weight_store *store, struct threads *pool, const struct matrix_view *parts,
                  size_t n_parts, enum weight_format format, bool interleave, bool embed,
                  struct weight **out)
{
    TRY(weight_check(parts, n_parts, &format, interleave, embed));
    struct weight *w = mem_array(1, sizeof *w);
    if (!w)
        return STATUS_NOMEM;
    w->format = format;
    w->interleave = interleave;
    w->k = (uint32_t)parts[0].cols;
    for (size_t i = 0; i < n_parts; i++)
        w->n += (uint32_t)parts[i].rows;
    w->n_panels = interleave ? 2 * (((uint32_t)parts[0].rows + PANEL - 1) / PANEL)
                             : (w->n + PANEL - 1) / PANEL;
    w->panel_bytes = panel_bytes(format, w->k);
    int rc = STATUS_NOMEM;
    if (!mem_mul(w->n_panels, w->panel_bytes, &w->bytes))
        goto free_weight;
    if (embed && !format_exact(format, parts[0].type) && (rc = keep_rows(w, &parts[0])) != 0)
        goto free_weight;
    rc = STATUS_NOMEM;
    w->data = store_alloc(store, (size_t)w->n_panels * w->panel_bytes, &w->slab);
    if (!w->data)
        goto free_weight;
    struct pack_job pack = {.parts = parts, .n_parts = n_parts, .w = w};
    struct threads_job job = {.n_phases = 1, .tiles = pack_tiles, .run = pack_panel, .arg = &pack};
    threads_run(pool, &job);
    *out = w;
    return STATUS_OK;

free_weight:
    free(w->rows);
    free(w);
    return rc;
}

void weight_destroy(struct weight_store *store, struct weight *w)
{
    if (!w)
        return;
    slab_put(store, w->slab);
    free(w->rows);
    free(w);
}

/* ---- embedding ------------------------------------------------------------------------------ */

static float load_half(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return f16_to_f32(h);
}

static void embed_q8(const struct weight *w, const uint8_t *panel, uint32_t c, float *out)
{
    for (uint32_t b = 0; b < w->k / Q_BLOCK; b++, panel += Q8_BLOCK_BYTES, out += Q_BLOCK) {
        float d = load_half(panel + PANEL * Q_BLOCK + 2 * c);
        for (unsigned k = 0; k < Q_BLOCK; k++)
            out[k] = d * (float)((int)panel[k / 4 * PANEL * 4 + c * 4 + k % 4] - 128);
    }
}

static void embed_q8k(const struct weight *w, const uint8_t *panel, uint32_t c, float *out)
{
    for (uint32_t b = 0; b < w->k / Q_BLOCK; b++, panel += Q8K_BLOCK_BYTES, out += Q_BLOCK) {
        const uint8_t *scales = panel + PANEL * Q_BLOCK + 2 * c;
        struct matrix_block q = {.d = {load_half(scales), load_half(scales + 2 * PANEL)},
                                 .m = load_half(scales + 4 * PANEL)};
        for (int k = 0; k < Q_BLOCK; k++) {
            q.q[k] = (int)panel[(unsigned)k / 4 * PANEL * 4 + c * 4 + (unsigned)k % 4] - 128;
            out[k] = matrix_block_value(&q, k);
        }
    }
}

static void embed_q4(const struct weight *w, const uint8_t *panel, uint32_t c, float *out)
{
    for (uint32_t b = 0; b < w->k / Q_BLOCK; b++, panel += Q4_BLOCK_BYTES, out += Q_BLOCK) {
        float d = load_half(panel + PANEL * Q_BLOCK / 2 + 2 * c);
        float m = load_half(panel + PANEL * Q_BLOCK / 2 + 2 * PANEL + 2 * c);
        for (unsigned k = 0; k < Q_BLOCK; k++) {
            uint8_t v = panel[k / 8 * PANEL * 4 + c * 4 + k % 4];
            out[k] = d * (float)(k % 8 < 4 ? v & 15 : v >> 4) + m;
        }
    }
}

void weight_embed(const struct weight *w, uint32_t row, float *out)
{
    ASSERT(row < w->n);
    if (w->rows) {
        struct matrix_view v = {.type = w->rows_type, .rows = w->n, .cols = w->k, .data = w->rows};
        matrix_decode(&v, row, 0, w->k, out);
        return;
    }
    uint32_t c = row % PANEL;
    const uint8_t *panel = w->data + row / PANEL * w->panel_bytes;
    switch (w->format) {
    case WEIGHT_F32:
        for (uint32_t k = 0; k < w->k; k++)
            memcpy(&out[k], panel + 4 * ((size_t)k * PANEL + c), 4);
        return;
    case WEIGHT_BF16:
        for (uint32_t k = 0; k < w->k; k++) {
            uint16_t h;
            memcpy(&h, panel + 2 * ((size_t)k / 2 * 2 * PANEL + 2 * c + k % 2), sizeof h);
            out[k] = bf16_to_f32(h);
        }
        return;
    case WEIGHT_Q8:
        embed_q8(w, panel, c, out);
        return;
    case WEIGHT_Q8K:
        embed_q8k(w, panel, c, out);
        return;
    default:
        embed_q4(w, panel, c, out);
    }
}
