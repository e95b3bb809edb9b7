/* cpu: life cycle of the CPU backend: choice of the instruction set, threads, static memory,
 * weights. The work is in cpu_graph.c and the kernel files. */
#include "kernels/cpu_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"

#define ALIGN 64

static size_t carve(uint8_t *mem, size_t *used, size_t bytes, void *out)
{
    uint8_t *p = mem ? mem + *used : NULL;
    memcpy(out, &p, sizeof p);
    *used += (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    return *used;
}

/* The forms share memory: a layer uses one of them at a time. */
size_t cpu_act_carve(struct act *a, uint8_t *mem, size_t rows, size_t k_max)
{
    size_t n = rows * k_max, blocks = n / Q_BLOCK, used = 0, floats = 0;
    carve(mem, &floats, n * sizeof(float), &a->f);
    a->h = (uint16_t *)(void *)a->f;
    carve(mem, &used, n, &a->q);
    carve(mem, &used, blocks * sizeof(float), &a->d);
    carve(mem, &used, blocks * sizeof(float), &a->ds);
    carve(mem, &used, 2 * blocks * sizeof(int32_t), &a->s);
    return floats > used ? floats : used;
}

static int cpu_weight_create(struct backend *base, const struct matrix_view *parts, size_t n_parts,
                             enum weight_format format, bool interleave, bool embed,
                             struct weight **out)
{
    struct cpu_backend *b = (struct cpu_backend *)base;
    return weight_create(&b->store, b->pool, parts, n_parts, format, interleave, embed, out);
}

static void cpu_weight_destroy(struct backend *base, struct weight *w)
{
    threads_quiesce(((struct cpu_backend *)base)->pool);
    weight_destroy(&((struct cpu_backend *)base)->store, w);
}

static struct threads *cpu_pool(struct backend *base)
{
    return ((struct cpu_backend *)base)->pool;
}

static void cpu_destroy(struct backend *base)
{
    struct cpu_backend *b = (struct cpu_backend *)base;
    threads_destroy(b->pool); /* first: a helper may still be computing */
    for (int i = 0; b->scratch && i < b->n_scratch; i++)
        free(b->scratch[i]);
    free(b->scratch);
    weight_store_fini(&b->store);
    mem_huge_free(b->act_mem, b->act_bytes);
    mem_huge_free(b->hidden_mem, b->hidden_bytes);
    free(b->attention_first);
    free(b->attention_parts);
    backend_fini(base);
    free(b);
}

static bool create_scratch(struct cpu_backend *b)
{
    struct act few;
    size_t few_bytes = cpu_act_carve(&few, NULL, CPU_FEW_ROWS, b->k_max);
    size_t head = (sizeof **b->scratch + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    size_t norm_bytes = (b->k_max * sizeof(float) + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    const struct backend_dims *d = &b->base.dims;
    size_t expanded = d->kv_format == KV_INT8 ? attention_expanded_bytes(d->head_dim) : 0;
    size_t size = head + few_bytes + norm_bytes + expanded;
    size = (size + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    size_t heads = (size_t)d->n_heads * d->head_dim,
           out = b->kernels->rows * CPU_HELP_UNITS * PANEL;
    size_t out_bytes = (out > heads ? out : heads) * sizeof(float);
    size_t table_bytes = (b->base.args.table_stride * sizeof(uint32_t) + ALIGN - 1) / ALIGN * ALIGN;
    b->n_scratch = threads_count(b->pool) + threads_helpers(b->pool);
    b->scratch = mem_array((size_t)b->n_scratch, sizeof *b->scratch);
    for (int i = 0; b->scratch && i < b->n_scratch; i++) {
        bool helper = i >= threads_count(b->pool);
        size_t all = size + (helper ? out_bytes + table_bytes : 0);
        uint8_t *mem = aligned_alloc(ALIGN, all / ALIGN * ALIGN + ALIGN);
        if (!mem)
            return false;
        memset(mem, 0, all);
        struct cpu_scratch *s = b->scratch[i] = (struct cpu_scratch *)(void *)mem;
        cpu_act_carve(&s->few, mem + head, CPU_FEW_ROWS, b->k_max);
        s->norm = (float *)(void *)(mem + head + few_bytes);
        s->attention.expanded = (uint16_t *)(void *)(mem + head + few_bytes + norm_bytes);
        s->help.out = helper ? (float *)(void *)(mem + size) : NULL;
        s->help.table = helper ? (uint32_t *)(void *)(mem + size + out_bytes) : NULL;
    }
    return b->scratch != NULL;
}

static bool create_memory(struct cpu_backend *b)
{
    const struct backend_dims *d = &b->base.dims;
    uint32_t heads = d->n_heads * d->head_dim, k = d->hidden > d->ffn ? d->hidden : d->ffn;
    k = k > heads ? k : heads;
    b->k_max = (k + Q_BLOCK - 1) / Q_BLOCK * Q_BLOCK;
    size_t rows = d->max_rows > d->max_logits ? d->max_rows : d->max_logits;
    b->act_bytes = cpu_act_carve(&b->act, NULL, rows, b->k_max);
    b->act_mem = mem_huge(b->act_bytes);
    b->attention_first = mem_array((size_t)d->max_rows + 1, sizeof *b->attention_first);
    size_t parts = attention_parts_floats(d, (size_t)threads_count(b->pool));
    b->attention_parts = parts ? mem_array(parts, sizeof(float)) : NULL;
    if (!b->act_mem || !b->attention_first || (parts && !b->attention_parts))
        return false;
    cpu_act_carve(&b->act, b->act_mem, rows, b->k_max);
    uint32_t ffn = (d->ffn + Q_BLOCK - 1) / Q_BLOCK * Q_BLOCK;
    b->hidden_bytes = cpu_act_carve(&b->hidden, NULL, d->max_rows, ffn);
    b->hidden_mem = mem_huge(b->hidden_bytes);
    if (!b->hidden_mem)
        return false;
    /* Touched from end to end, for huge pages: rows are far apart, and a first step that touches
     * them here and there gets small ones. */
    memset(b->act_mem, 0, b->act_bytes);
    memset(b->hidden_mem, 0, b->hidden_bytes);
    cpu_act_carve(&b->hidden, b->hidden_mem, d->max_rows, ffn);
    cpu_replay_init(b);
    return create_scratch(b);
}

static const struct kernels *select_kernels(const struct backend_options *o, char *err,
                                            size_t errlen)
{
    const char *isa = o->isa && *o->isa ? o->isa : "auto", *env = getenv("BATON_ISA");
    bool from_env = strcmp(isa, "auto") == 0 && env && *env;
    if (from_env)
        isa = env;
    if (strcmp(isa, "auto") && strcmp(isa, "amx") && strcmp(isa, "avx512") && strcmp(isa, "avx2") &&
        strcmp(isa, "c")) {
        snprintf(err, errlen, "%s \"%s\" is unknown (auto, amx, avx512, avx2, c)",
                 from_env ? "BATON_ISA" : "isa", isa);
        return NULL;
    }
    const struct kernels *k = kernels_select(isa);
    if (!k)
        snprintf(err, errlen, "%s \"%s\": this machine does not have it",
                 from_env ? "BATON_ISA" : "isa", isa);
    return k;
}

int cpu_create(const struct backend_options *o, const struct backend_dims *d, struct backend **out,
               char *err, size_t errlen)
{
    static const struct backend_ops ops = {
        .destroy = cpu_destroy,
        .weight_create = cpu_weight_create,
        .weight_destroy = cpu_weight_destroy,
        .capture = cpu_capture,
        .replay = cpu_replay,
        .replay_destroy = cpu_replay_destroy,
        .pool = cpu_pool,
    };
    const struct kernels *kernels = select_kernels(o, err, errlen);
    if (!kernels)
        return STATUS_UNSUPPORTED;
    struct cpu_backend *b = mem_array(1, sizeof *b);
    if (!b) {
        snprintf(err, errlen, "out of memory");
        return STATUS_NOMEM;
    }
    b->kernels = kernels;
    int rc = backend_init(&b->base, &ops, d, err, errlen);
    if (rc == STATUS_OK)
        rc = threads_create_helped(o->threads, o->helpers, o->cpus, &b->pool, err, errlen);
    if (rc == STATUS_OK && !create_memory(b)) {
        snprintf(err, errlen, "out of memory for the activations of %u rows", d->max_rows);
        rc = STATUS_NOMEM;
    }
    if (rc != STATUS_OK) {
        cpu_destroy(&b->base);
        return rc;
    }
    b->base.isa = kernels->isa;
    snprintf(b->base.name, sizeof b->base.name, "cpu/%s", kernels->isa);
    *out = &b->base;
    return STATUS_OK;
}
