/* forward: packs a model's matrices for the backend and lists the operations of one pass.
 *
 * All three architectures are the same list; what differs are pointers that are NULL (a bias, the
 * norms of q and k) and the order in which RoPE pairs dimensions, which is among the dims. So the
 * list is the whole description of the model:
 *
 *   EMBED, then per layer QKV, ROPE_APPEND, KV_READY, ATTENTION, OUT, GATE_UP, DOWN; LOGITS
 *
 * q, k and v are one stacked matrix and gate and up another one: fewer, larger products. KV_READY
 * comes as early as it can: the layer's KV travels while its attention is computed.
 *
 * A tied head shares the embedding's weight. An own head is packed by itself. */
#include "common/engine/forward.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/mem.h"
#include "common/model/tensor.h"

#define OPS_PER_LAYER     7
#define WEIGHTS_PER_LAYER 4

int forward_format(const char *name, enum weight_format *out)
{
    static const struct {
        const char *name;
        enum weight_format format;
    } names[] = {{"auto", WEIGHT_AUTO},
                 {"bf16", WEIGHT_BF16},
                 {"int8", WEIGHT_Q8},
                 {"int4", WEIGHT_Q4},
                 {"f32", WEIGHT_F32}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (name == NULL || strcmp(name, names[i].name) == 0) {
            *out = names[i].format;
            return 0;
        }
    }
    return STATUS_INVALID;
}

/* What one packing run needs at every turn. */
struct packer {
    struct forward *f;
    struct backend *b;
    enum weight_format format;
    float *vector;    /* next free float of f->vectors */
    size_t n_weights; /* that there will be */
    const struct forward_watch *watch;
    char *err;
    size_t errlen;
};

static int pack(struct packer *p, const char *what, const struct tensor *const *t, size_t n,
                bool interleave, bool embed, const struct weight **out)
{
    struct matrix_view parts[3];
    ASSERT(n <= 3);
    for (size_t i = 0; i < n; i++)
        parts[i] = (struct matrix_view){t[i]->type, t[i]->rows, t[i]->cols, t[i]->data};
    struct weight *w;
    int rc = backend_weight_create(p->b, parts, n, p->format, interleave, embed, &w);
    if (rc != 0) {
        snprintf(p->err, p->errlen, "cannot pack %s (%s): %s", what, t[0]->name ? t[0]->name : "",
                 status_text(rc));
        return rc;
    }
    p->f->weights[p->f->n_weights++] = w;
    p->f->weight_bytes += backend_weight_bytes(w);
    if (p->watch->packed)
        p->watch->packed(p->watch->arg, (uint32_t)(p->f->n_weights * 100 / p->n_weights));
    *out = w;
    return 0;
}

/* The tensor as floats behind what was copied before; NULL when the model has none. */
static const float *copy_vector(struct packer *p, const struct tensor *t)
{
    if (t->data == NULL)
        return NULL;
    float *to = p->vector;
    ASSERT_MSG(t->rows == 1, "%s is no vector", t->name);
    tensor_row_f32(t, 0, to);
    p->vector += t->cols;
    return to;
}

/* q, k and v biases in one piece, as the stacked matrix has its rows. All or none. */
static const float *copy_bias(struct packer *p, const struct model_layer *l)
{
    const float *bias = copy_vector(p, &l->q_bias);
    if (bias != NULL) {
        const float *k = copy_vector(p, &l->k_bias), *v = copy_vector(p, &l->v_bias);
        ASSERT(k == bias + l->q.rows && v == k + l->k.rows);
    }
    return bias;
}

static void op_add(struct packer *p, struct op op)
{
    p->f->ops[p->f->n_ops++] = op;
}

static int pack_layer(struct packer *p, const struct model_layer *l, uint32_t layer)
{
    const struct tensor *qkv[] = {&l->q, &l->k, &l->v}, *o[] = {&l->o};
    const struct tensor *gate_up[] = {&l->gate, &l->up}, *down[] = {&l->down};
    const struct weight *w[4];
    TRY(pack(p, "attention weights", qkv, 3, false, false, &w[0]));
    TRY(pack(p, "attention output", o, 1, false, false, &w[1]));
    TRY(pack(p, "gate and up", gate_up, 2, true, false, &w[2]));
    TRY(pack(p, "down", down, 1, false, false, &w[3]));
    op_add(p, (struct op){.kind = OP_QKV,
                          .layer = layer,
                          .w = w[0],
                          .norm = copy_vector(p, &l->attn_norm),
                          .bias = copy_bias(p, l)});
    op_add(p, (struct op){.kind = OP_ROPE_APPEND,
                          .layer = layer,
                          .q_norm = copy_vector(p, &l->q_norm),
                          .k_norm = copy_vector(p, &l->k_norm)});
    op_add(p, (struct op){.kind = OP_KV_READY, .layer = layer});
    op_add(p, (struct op){.kind = OP_ATTENTION, .layer = layer});
    op_add(p, (struct op){.kind = OP_OUT, .layer = layer, .w = w[1]});
    op_add(p, (struct op){.kind = OP_GATE_UP,
                          .layer = layer,
                          .w = w[2],
                          .norm = copy_vector(p, &l->ffn_norm)});
    op_add(p, (struct op){.kind = OP_DOWN, .layer = layer, .w = w[3]});
    return 0;
}

static size_t vector_floats(const struct model *m)
{
    size_t n = m->output_norm.cols;
    for (uint32_t i = 0; i < m->params.n_layers; i++) {
        const struct model_layer *l = &m->layers[i];
        const struct tensor *all[] = {&l->attn_norm, &l->ffn_norm, &l->q_bias, &l->k_bias,
                                      &l->v_bias,    &l->q_norm,   &l->k_norm};
        for (size_t t = 0; t < sizeof all / sizeof all[0]; t++)
            n += all[t]->data != NULL ? all[t]->cols : 0;
    }
    return n;
}

static int pack_model(struct packer *p, const struct model *m)
{
    const struct tensor *embedding[] = {&m->embedding}, *output[] = {&m->output};
    const struct weight *embed, *head;
    TRY(pack(p, "the embedding", embedding, 1, false, true, &embed));
    if (m->params.tied_head)
        head = embed;
    else
        TRY(pack(p, "the output head", output, 1, false, false, &head));
    op_add(p, (struct op){.kind = OP_EMBED, .w = embed});
    for (uint32_t i = 0; i < m->params.n_layers; i++)
        TRY(pack_layer(p, &m->layers[i], i));
    op_add(p, (struct op){.kind = OP_LOGITS, .w = head, .norm = copy_vector(p, &m->output_norm)});
    return 0;
}

static const char *format_tag(enum weight_format format, enum tensor_type type)
{
    switch (format) {
    case WEIGHT_F32:
        return "f32";
    case WEIGHT_BF16:
        return "bf16";
    case WEIGHT_Q8:
        return "q8";
    case WEIGHT_Q4:
        return "q4";
    case WEIGHT_Q8K:
        return "q8k";
    case WEIGHT_AUTO:
        break;
    }
    switch (type) {
    case TENSOR_Q8_0:
    case TENSOR_Q5_0:
        return "q8";
    case TENSOR_Q4_0:
    case TENSOR_Q4_1:
    case TENSOR_Q4_K:
        return "q4";
    case TENSOR_Q5_1:
    case TENSOR_Q5_K:
    case TENSOR_Q6_K:
        return "q8k";
    default:
        return "bf16";
    }
}

static void describe_format(struct forward *f, const struct model *m, enum weight_format format)
{
    const char *tag = NULL;
    for (uint32_t i = 0; i < m->params.n_layers; i++) {
        const struct model_layer *l = &m->layers[i];
        const struct tensor *all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        for (size_t t = 0; t < sizeof all / sizeof all[0]; t++) {
            const char *one = format_tag(format, all[t]->type);
            tag = tag == NULL || strcmp(tag, one) == 0 ? one : "mixed";
        }
    }
    snprintf(f->format, sizeof f->format, "%s", tag != NULL ? tag : "none");
}

int forward_init(struct forward *f, const struct model *m, struct backend *b,
                 enum weight_format format, const struct forward_watch *watch, char *err,
                 size_t errlen)
{
    size_t layers = m->params.n_layers;
    *f = (struct forward){0};
    f->ops = mem_array(layers * OPS_PER_LAYER + 2, sizeof *f->ops);
    f->weights = mem_array(layers * WEIGHTS_PER_LAYER + 2, sizeof(struct weight *));
    f->vectors = mem_array(vector_floats(m), sizeof *f->vectors);
    struct packer p = {.f = f,
                       .b = b,
                       .format = format,
                       .vector = f->vectors,
                       .n_weights = layers * WEIGHTS_PER_LAYER + 2 - m->params.tied_head,
                       .watch = watch,
                       .err = err,
                       .errlen = errlen};
    int rc = STATUS_NOMEM;
    if (f->ops == NULL || f->weights == NULL || f->vectors == NULL)
        snprintf(err, errlen, "out of memory for the weights' table");
    else
        rc = pack_model(&p, m);
    if (rc != 0) {
        forward_fini(f, b);
        return rc;
    }
    describe_format(f, m, format);
    return 0;
}

void forward_fini(struct forward *f, struct backend *b)
{
    for (size_t i = 0; i < f->n_weights; i++)
        backend_weight_destroy(b, f->weights[i]);
    free(f->ops);
    free(f->weights);
    free(f->vectors);
    *f = (struct forward){0};
}
