/* layers: gives each tensor of a file its role, and proves that it has the shape of that role.
 *
 * One table of roles serves both name schemes. A role is required, optional or impossible, which
 * for biases and QK-norms depends on the architecture and on what layer 0 has: all layers must
 * agree. A tensor that gets no role is refused, because it would take part in the computation if
 * the model were run by its own code (a bias of the output projection, for example); the few names
 * known to be harmless are listed. Weights may have any supported type; gains and
 * biases must be F32, F16 or BF16. */
#include <stdio.h>
#include <string.h>

#include "common/model/model_internal.h"
#include "common/model/tensor.h"

struct role {
    const char *gguf, *hf; /* below "blk.N." and "model.layers.N." */
    size_t offset;         /* in struct model_layer */
    bool vector;
};

#define ROLE(field, gguf, hf, vector)                                                              \
    {                                                                                              \
        gguf, hf, offsetof(struct model_layer, field), vector                                      \
    }
enum role_index {
    ROLE_ATTN_NORM,
    ROLE_Q,
    ROLE_K,
    ROLE_V,
    ROLE_O,
    ROLE_FFN_NORM,
    ROLE_GATE,
    ROLE_UP,
    ROLE_DOWN,
    ROLE_Q_BIAS,
    ROLE_K_BIAS,
    ROLE_V_BIAS,
    ROLE_Q_NORM,
    ROLE_K_NORM,
    ROLE_N
};
static const struct role roles[ROLE_N] = {
    [ROLE_ATTN_NORM] = ROLE(attn_norm, "attn_norm.weight", "input_layernorm.weight", true),
    [ROLE_Q] = ROLE(q, "attn_q.weight", "self_attn.q_proj.weight", false),
    [ROLE_K] = ROLE(k, "attn_k.weight", "self_attn.k_proj.weight", false),
    [ROLE_V] = ROLE(v, "attn_v.weight", "self_attn.v_proj.weight", false),
    [ROLE_O] = ROLE(o, "attn_output.weight", "self_attn.o_proj.weight", false),
    [ROLE_FFN_NORM] = ROLE(ffn_norm, "ffn_norm.weight", "post_attention_layernorm.weight", true),
    [ROLE_GATE] = ROLE(gate, "ffn_gate.weight", "mlp.gate_proj.weight", false),
    [ROLE_UP] = ROLE(up, "ffn_up.weight", "mlp.up_proj.weight", false),
    [ROLE_DOWN] = ROLE(down, "ffn_down.weight", "mlp.down_proj.weight", false),
    [ROLE_Q_BIAS] = ROLE(q_bias, "attn_q.bias", "self_attn.q_proj.bias", true),
    [ROLE_K_BIAS] = ROLE(k_bias, "attn_k.bias", "self_attn.k_proj.bias", true),
    [ROLE_V_BIAS] = ROLE(v_bias, "attn_v.bias", "self_attn.v_proj.bias", true),
    [ROLE_Q_NORM] = ROLE(q_norm, "attn_q_norm.weight", "self_attn.q_norm.weight", true),
    [ROLE_K_NORM] = ROLE(k_norm, "attn_k_norm.weight", "self_attn.k_norm.weight", true),
};

struct binder {
    struct model *m;
    struct model_source *source;
    bool hf;
    char *err;
    size_t errlen;
};

static const char *path_of(const struct binder *b)
{
    const struct model_source *s = b->source;
    return s->n_parts == 1 ? s->parts[0].file.path : s->path;
}

static struct model_tensor *find(const struct binder *b, const char *name)
{
    size_t lo = 0, hi = b->source->n_tensors;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int d = strcmp(name, b->source->tensors[mid].t.name);
        if (d == 0)
            return &b->source->tensors[mid];
        if (d < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

/* Takes the tensor into *out when type and shape are right. rows 1 for vectors. */
static int bind(struct binder *b, const char *name, bool vector, uint64_t rows, uint64_t cols,
                struct tensor *out)
{
    struct model_tensor *x = find(b, name);
    if (!x)
        return model_error(b->err, b->errlen, STATUS_FORMAT, "%s: tensor '%s' is missing",
                           path_of(b), name);
    const struct tensor *t = &x->t;
    if (!x->supported)
        return model_error(b->err, b->errlen, STATUS_UNSUPPORTED,
                           "%s: tensor '%s': type %s is not supported (F32, F16, BF16, Q4_0, Q4_1, "
                           "Q5_0, Q5_1, Q8_0, Q4_K, Q5_K and Q6_K are)",
                           path_of(b), name, x->type_name);
    if (x->n_dims != (vector ? 1u : 2u) || t->rows != rows || t->cols != cols)
        return model_error(
            b->err, b->errlen, STATUS_FORMAT,
            "%s: tensor '%s' has %u dimensions, %llu x %llu; the hyperparameters say "
            "%llu x %llu",
            path_of(b), name, x->n_dims, (unsigned long long)t->rows, (unsigned long long)t->cols,
            (unsigned long long)rows, (unsigned long long)cols);
    size_t unit = t->type == TENSOR_F32 ? 4 : 2;
    if ((uintptr_t)t->data % unit)
        return model_error(b->err, b->errlen, STATUS_FORMAT,
                           "%s: tensor '%s' is not aligned to %zu bytes", path_of(b), name, unit);
    if (vector && t->type != TENSOR_F32 && t->type != TENSOR_F16 && t->type != TENSOR_BF16)
        return model_error(b->err, b->errlen, STATUS_UNSUPPORTED,
                           "%s: tensor '%s': type %s is not supported for gains and biases",
                           path_of(b), name, x->type_name);
    x->used = true;
    *out = *t;
    return 0;
}

static void role_shape(const struct model_params *p, enum role_index role, uint64_t *rows,
                       uint64_t *cols)
{
    uint64_t q = (uint64_t)p->n_heads * p->head_dim, kv = (uint64_t)p->n_kv_heads * p->head_dim;
    const uint64_t shapes[ROLE_N][2] = {
        [ROLE_ATTN_NORM] = {1, p->hidden}, [ROLE_Q] = {q, p->hidden},
        [ROLE_K] = {kv, p->hidden},        [ROLE_V] = {kv, p->hidden},
        [ROLE_O] = {p->hidden, q},         [ROLE_FFN_NORM] = {1, p->hidden},
        [ROLE_GATE] = {p->ffn, p->hidden}, [ROLE_UP] = {p->ffn, p->hidden},
        [ROLE_DOWN] = {p->hidden, p->ffn}, [ROLE_Q_BIAS] = {1, q},
        [ROLE_K_BIAS] = {1, kv},           [ROLE_V_BIAS] = {1, kv},
        [ROLE_Q_NORM] = {1, p->head_dim},  [ROLE_K_NORM] = {1, p->head_dim},
    };
    *rows = shapes[role][0];
    *cols = shapes[role][1];
}

static void role_name(const struct binder *b, enum role_index role, uint32_t layer, char name[128])
{
    if (b->hf)
        snprintf(name, 128, "model.layers.%u.%s", layer, roles[role].hf);
    else
        snprintf(name, 128, "blk.%u.%s", layer, roles[role].gguf);
}

static bool role_wanted(const struct model_params *p, enum role_index role)
{
    if (role >= ROLE_Q_BIAS && role <= ROLE_V_BIAS)
        return p->qkv_bias;
    if (role >= ROLE_Q_NORM)
        return p->qk_norm;
    return true;
}

static int bind_layer(struct binder *b, uint32_t layer)
{
    struct model_layer *l = &b->m->layers[layer];
    for (enum role_index role = 0; role < ROLE_N; role++) {
        char name[128];
        uint64_t rows, cols;
        if (!role_wanted(&b->m->params, role))
            continue;
        role_name(b, role, layer, name);
        role_shape(&b->m->params, role, &rows, &cols);
        TRY(bind(b, name, roles[role].vector, rows, cols,
                 (struct tensor *)(void *)((char *)l + roles[role].offset)));
    }
    return 0;
}

/* Tensors that may be there without a role: the head of a tied checkpoint saved twice, and tables
 * that old versions of transformers stored although they follow from rope_theta. */
static bool harmless(const struct binder *b, const char *name)
{
    static const char table[] = ".rotary_emb.inv_freq";
    size_t n = strlen(name), k = sizeof table - 1;
    if (!b->hf)
        return false;
    return (b->m->params.tied_head && strcmp(name, "lm_head.weight") == 0) ||
           (n > k && strcmp(name + n - k, table) == 0);
}

static int refuse_leftovers(const struct binder *b)
{
    for (size_t i = 0; i < b->source->n_tensors; i++) {
        const struct model_tensor *x = &b->source->tensors[i];
        if (x->used || harmless(b, x->t.name))
            continue;
        return model_error(b->err, b->errlen, STATUS_UNSUPPORTED,
                           "%s: tensor '%s' has no place in this architecture of %u layers",
                           path_of(b), x->t.name, b->m->params.n_layers);
    }
    return 0;
}

int model_bind_layers(struct model *m, struct model_source *source, bool tie_known, char *err,
                      size_t errlen)
{
    struct binder b = {m, source, source->dir != NULL, err, errlen};
    struct model_params *p = &m->params;
    const char *head = b.hf ? "lm_head.weight" : "output.weight";
    char name[128];
    role_name(&b, ROLE_Q_BIAS, 0, name);
    p->qkv_bias = p->arch == MODEL_QWEN2 || find(&b, name) != NULL;
    p->qk_norm = p->arch == MODEL_QWEN3;
    if (!tie_known)
        p->tied_head = find(&b, head) == NULL;
    m->layers = arena_alloc(&source->arena, (size_t)p->n_layers * sizeof *m->layers);
    if (!m->layers)
        return model_error(err, errlen, STATUS_NOMEM, "%s: out of memory for %u layers",
                           path_of(&b), p->n_layers);
    TRY(bind(&b, b.hf ? "model.embed_tokens.weight" : "token_embd.weight", false, p->vocab,
             p->hidden, &m->embedding));
    TRY(bind(&b, b.hf ? "model.norm.weight" : "output_norm.weight", true, 1, p->hidden,
             &m->output_norm));
    m->output = m->embedding;
    if (!p->tied_head)
        TRY(bind(&b, head, false, p->vocab, p->hidden, &m->output));
    for (uint32_t i = 0; i < p->n_layers; i++)
        TRY(bind_layer(&b, i));
    struct tensor divisors = {.data = NULL};
    static const char divisors_name[] = "rope_freqs.weight";
    if (!b.hf && find(&b, divisors_name))
        TRY(bind(&b, divisors_name, true, 1, p->head_dim / 2, &divisors));
    TRY(model_rope_resolve(m, source, &divisors, err, errlen));
    return refuse_leftovers(&b);
}
