/* params_gguf: hyperparameters from the metadata of a GGUF file.
 *
 * The rule for what Baton does not compute is: say so. A key that changes the mathematics of a
 * known architecture (RoPE scalings other than those of rope.c, experts, capped logits) is refused
 * by name, because
 * running on would give fluent nonsense. Keys that only describe (file types, authors, licences)
 * are ignored.
 *
 * GGUF files of the Llama family have the rows of q and k permuted so that RoPE rotates
 * neighbouring pairs; Qwen files keep the halves of the original. */
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/model/model_internal.h"

static const struct {
    const char *name;
    enum model_arch arch;
    bool neox;
} archs[] = {
    {"llama", MODEL_LLAMA, false},
    {"qwen2", MODEL_QWEN2, true},
    {"qwen3", MODEL_QWEN3, true},
};

/* Keys below the architecture whose presence with a value other than 0 (integers) or 1 (floats)
 * means a computation that Baton does not do. */
static const char *const foreign_counts[] = {"expert_count", "attention.q_lora_rank",
                                             "leading_dense_block_count"};
static const char *const foreign_factors[] = {
    "attention.scale",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "embedding_scale",
    "residual_scale",
    "logit_scale",
    "attention.clamp_kqv",
    "rope.scaling.yarn_log_multiplier",
    "rope.scaling.yarn_ext_factor",
};

struct reader {
    const struct gguf *g;
    const char *path, *arch;
    bool lenient; /* missing keys are fine */
    char key[128];
    char *err;
    size_t errlen;
};

static const char *full_key(struct reader *r, const char *name)
{
    snprintf(r->key, sizeof r->key, "%s.%s", r->arch, name);
    return r->key;
}

static int read_u32(struct reader *r, const char *name, bool required, uint32_t *out)
{
    const char *key = full_key(r, name);
    int rc = gguf_u32(r->g, key, out);
    if (rc == STATUS_NOTFOUND && (!required || r->lenient))
        return 0;
    return rc ? gguf_explain(r->g, key, rc, "an integer", r->err, r->errlen) : 0;
}

static int read_f32(struct reader *r, const char *name, bool required, float *out)
{
    const char *key = full_key(r, name);
    int rc = gguf_f32(r->g, key, out);
    if (rc == STATUS_NOTFOUND && (!required || r->lenient))
        return 0;
    return rc ? gguf_explain(r->g, key, rc, "a float", r->err, r->errlen) : 0;
}

static int refuse_foreign(struct reader *r)
{
    for (size_t i = 0; i < sizeof foreign_counts / sizeof *foreign_counts; i++) {
        uint32_t n = 0;
        TRY(read_u32(r, foreign_counts[i], false, &n));
        if (n)
            return model_error(r->err, r->errlen, STATUS_UNSUPPORTED,
                               "%s: key '%s' is %u: such models are not supported", r->path, r->key,
                               n);
    }
    for (size_t i = 0; i < sizeof foreign_factors / sizeof *foreign_factors; i++) {
        float f = 1;
        TRY(read_f32(r, foreign_factors[i], false, &f));
        if (!(f == 1 || f == 0))
            return model_error(r->err, r->errlen, STATUS_UNSUPPORTED,
                               "%s: key '%s' is %g: such models are not supported", r->path, r->key,
                               (double)f);
    }
    return 0;
}

static bool string_is(const struct gguf_string *s, const char *text)
{
    return s->n == strlen(text) && memcmp(s->p, text, s->n) == 0;
}

static int read_yarn(struct reader *r, struct model_params *p)
{
    struct model_rope *rope = &p->rope;
    float factor = 0, more = 0;
    *rope = (struct model_rope){ROPE_YARN, rope->factor, p->context, 1, 32, true, 1};
    TRY(read_u32(r, "rope.scaling.original_context_length", false, &rope->original));
    TRY(read_f32(r, "rope.scaling.yarn_beta_slow", false, &rope->low));
    TRY(read_f32(r, "rope.scaling.yarn_beta_fast", false, &rope->high));
    TRY(read_f32(r, "rope.scaling.attn_factor", false, &factor));
    TRY(read_f32(r, "rope.scaling.yarn_attn_factor", false, &more));
    rope->magnitude =
        model_rope_magnitude(rope->factor, 1) * (factor != 0 ? factor : 1) * (more != 0 ? more : 1);
    return 0;
}

/* A factor without a type is linear. "scale_linear" is what the first files called it. */
static int read_rope(struct reader *r, struct model_params *p)
{
    struct model_rope *rope = &p->rope;
    struct gguf_string s = {.p = "linear", .n = 6};
    float factor = 0;
    TRY(read_f32(r, "rope.scale_linear", false, &factor));
    TRY(read_f32(r, "rope.scaling.factor", false, &factor));
    const char *key = full_key(r, "rope.scaling.type");
    int rc = gguf_string(r->g, key, &s);
    if (rc && rc != STATUS_NOTFOUND)
        return gguf_explain(r->g, key, rc, "a string", r->err, r->errlen);
    rope->factor = factor != 0 ? factor : 1;
    if (string_is(&s, "none"))
        return 0;
    if (string_is(&s, "yarn"))
        TRY(read_yarn(r, p));
    else if (!string_is(&s, "linear"))
        return model_error(r->err, r->errlen, STATUS_UNSUPPORTED,
                           "%s: RoPE scaling '%.*s' is not supported (linear and yarn are)",
                           r->path, s.n > 32 ? 32 : (int)s.n, s.p);
    else if (rope->factor != 1) {
        *rope = (struct model_rope){.kind = ROPE_LINEAR, .factor = rope->factor, .magnitude = 1};
        TRY(read_u32(r, "rope.scaling.original_context_length", false, &rope->original));
    }
    p->context = model_rope_context(rope, p->context);
    return 0;
}

static int read_head_dim(struct reader *r, struct model_params *p)
{
    uint32_t value_length = 0, rope_dims = 0;
    TRY(read_u32(r, "attention.key_length", false, &p->head_dim));
    TRY(read_u32(r, "attention.value_length", false, &value_length));
    TRY(read_u32(r, "rope.dimension_count", false, &rope_dims));
    if (!p->head_dim && p->n_heads && p->hidden % p->n_heads == 0)
        p->head_dim = p->hidden / p->n_heads;
    if (r->lenient)
        return 0;
    if (value_length && value_length != p->head_dim)
        return model_error(r->err, r->errlen, STATUS_UNSUPPORTED,
                           "%s: key length %u and value length %u differ: not supported", r->path,
                           p->head_dim, value_length);
    if (rope_dims && rope_dims != p->head_dim)
        return model_error(r->err, r->errlen, STATUS_UNSUPPORTED,
                           "%s: RoPE over %u of %u dimensions is not supported", r->path, rope_dims,
                           p->head_dim);
    return 0;
}

/* Lists of one length, ids inside: whoever reads the vocabulary may rely on it. */
static int check_tokenizer(struct reader *r, uint32_t *n_tokens)
{
    static const char tokens[] = "tokenizer.ggml.tokens";
    static const char *const lists[] = {"tokenizer.ggml.scores", "tokenizer.ggml.token_type"};
    static const char *const ids[] = {"bos",     "eos",     "eot",      "eom",
                                      "unknown", "padding", "seperator"};
    uint64_t n = gguf_count(r->g, tokens);
    if (n == 0 || n > INT32_MAX)
        return gguf_has(r->g, tokens)
                   ? model_error(r->err, r->errlen, STATUS_FORMAT,
                                 "%s: key '%s' has no usable list of tokens", r->path, tokens)
                   : gguf_explain(r->g, tokens, STATUS_NOTFOUND, "", r->err, r->errlen);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (gguf_has(r->g, lists[i]) && gguf_count(r->g, lists[i]) != n)
            return model_error(r->err, r->errlen, STATUS_FORMAT,
                               "%s: key '%s' has %llu entries for %llu tokens", r->path, lists[i],
                               (unsigned long long)gguf_count(r->g, lists[i]),
                               (unsigned long long)n);
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        char key[64];
        uint32_t id;
        snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", ids[i]);
        int rc = gguf_u32(r->g, key, &id);
        if (rc == STATUS_NOTFOUND)
            continue;
        /* -1 and 2^32-1 are how converters say "none". */
        if (rc == STATUS_FORMAT)
            return gguf_explain(r->g, key, rc, "an integer", r->err, r->errlen);
        if (rc == 0 && id != UINT32_MAX && id >= n)
            return model_error(r->err, r->errlen, STATUS_RANGE,
                               "%s: key '%s' is %u, the vocabulary has %llu tokens", r->path, key,
                               id, (unsigned long long)n);
    }
    *n_tokens = (uint32_t)n;
    return 0;
}

int model_params_gguf(const struct gguf *g, const char *path, bool vocab_only,
                      struct model_params *p, char *err, size_t errlen)
{
    static const char key[] = "general.architecture";
    struct gguf_string name;
    struct reader r = {
        .g = g, .path = path, .arch = "", .lenient = vocab_only, .err = err, .errlen = errlen};
    int rc = gguf_string(g, key, &name);
    if (rc)
        return gguf_explain(g, key, rc, "a string", err, errlen);
    *p = (struct model_params){.rope_theta = 10000};
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (strlen(archs[i].name) == name.n && memcmp(archs[i].name, name.p, name.n) == 0) {
            r.arch = archs[i].name;
            p->arch = archs[i].arch;
            p->rope_neox = archs[i].neox;
        }
    uint32_t n_tokens = 0;
    TRY(check_tokenizer(&r, &n_tokens));
    if (!*r.arch && vocab_only) {
        p->vocab = n_tokens;
        return 0;
    }
    if (!*r.arch)
        return model_error(err, errlen, STATUS_UNSUPPORTED,
                           "%s: architecture '%.*s' is not supported (llama, qwen2 and qwen3 are)",
                           path, name.n > 64 ? 64 : (int)name.n, name.p);
    TRY(read_u32(&r, "block_count", true, &p->n_layers));
    TRY(read_u32(&r, "context_length", true, &p->context));
    TRY(read_u32(&r, "embedding_length", true, &p->hidden));
    TRY(read_u32(&r, "feed_forward_length", true, &p->ffn));
    TRY(read_u32(&r, "attention.head_count", true, &p->n_heads));
    p->n_kv_heads = p->n_heads;
    TRY(read_u32(&r, "attention.head_count_kv", false, &p->n_kv_heads));
    TRY(read_f32(&r, "attention.layer_norm_rms_epsilon", true, &p->rms_eps));
    TRY(read_f32(&r, "rope.freq_base", false, &p->rope_theta));
    TRY(read_head_dim(&r, p));
    p->vocab = n_tokens;
    if (vocab_only)
        return 0;
    TRY(refuse_foreign(&r));
    TRY(read_rope(&r, p));
    uint32_t window = 0;
    TRY(read_u32(&r, "attention.sliding_window", false, &window));
    if (window && window < p->context) { /* inside it, windowed and full attention are the same */
        log_warn("%s: context cut from %u to the sliding window of %u tokens", path, p->context,
                 window);
        p->context = window;
    }
    /* The rows of the embedding decide; converters may pad them beyond the token list. */
    const struct gguf_tensor *embedding = gguf_tensor(g, "token_embd.weight");
    if (embedding && embedding->dims[1] < n_tokens)
        return model_error(err, errlen, STATUS_FORMAT,
                           "%s: tensor 'token_embd.weight' has %llu rows for %u tokens", path,
                           (unsigned long long)embedding->dims[1], n_tokens);
    if (embedding && embedding->dims[1] <= UINT32_MAX)
        p->vocab = (uint32_t)embedding->dims[1];
    return model_params_check(p, path, err, errlen);
}
