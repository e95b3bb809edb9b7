/* hfconfig: hyperparameters and chat template from the JSON files of a Hugging Face directory.
 *
 * Reads what Llama, Mistral, Qwen2 and Qwen3 checkpoints have, in the old spelling (rope_theta and
 * rope_scaling beside each other) and the new one (both inside rope_parameters). What would change
 * the mathematics in a way Baton does not compute (RoPE scalings other than rope.c's, quantised
 * checkpoints, another activation) is refused by name. A sliding window is not computed either, but
 * inside of it full attention is the same: the context is cut to the window. Checkpoints keep q and
 * k as they were trained, so RoPE rotates halves. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/base/log.h"
#include "common/model/model_internal.h"

#define CONFIG_MAX   ((size_t)1 << 20)
#define TEMPLATE_MAX ((size_t)4 << 20)

static const struct {
    const char *name;
    enum model_arch arch;
} archs[] = {
    {"LlamaForCausalLM", MODEL_LLAMA},
    {"MistralForCausalLM", MODEL_LLAMA},
    {"Qwen2ForCausalLM", MODEL_QWEN2},
    {"Qwen3ForCausalLM", MODEL_QWEN3},
};

struct reader {
    const char *dir;
    const json_t *root;
    char *err;
    size_t errlen;
};

#define FAIL(r, rc, fmt, ...)                                                                      \
    model_error((r)->err, (r)->errlen, (rc), "%s/config.json: " fmt, (r)->dir, __VA_ARGS__)

/* The value, or NULL when it is missing or null. */
static const json_t *get(const json_t *object, const char *key)
{
    const json_t *j = json_object_get(object, key);
    return json_is_null(j) ? NULL : j;
}

static int read_u32(const struct reader *r, const char *key, bool required, uint32_t *out)
{
    const json_t *j = get(r->root, key);
    if (!j && !required)
        return 0;
    if (!j)
        return FAIL(r, STATUS_FORMAT, "'%s' is missing", key);
    if (!json_is_integer(j) || json_integer_value(j) < 0 || json_integer_value(j) > UINT32_MAX)
        return FAIL(r, STATUS_FORMAT, "'%s' is no size", key);
    *out = (uint32_t)json_integer_value(j);
    return 0;
}

static int read_f32(const struct reader *r, const json_t *object, const char *key, bool required,
                    float *out)
{
    const json_t *j = get(object, key);
    if (!j && !required)
        return 0;
    if (!json_is_number(j))
        return FAIL(r, STATUS_FORMAT, "'%s' is %s", key, j ? "no number" : "missing");
    *out = (float)json_number_value(j);
    return 0;
}

static int read_arch(const struct reader *r, struct model_params *p)
{
    const json_t *list = get(r->root, "architectures");
    const char *name = json_string_value(json_array_get(list, 0));
    if (!name || json_array_size(list) != 1)
        return FAIL(r, STATUS_FORMAT, "'%s' is no list of one name", "architectures");
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (strcmp(archs[i].name, name) == 0) {
            p->arch = archs[i].arch;
            return 0;
        }
    return FAIL(r, STATUS_UNSUPPORTED,
                "architecture '%.64s' is not supported (Llama, Mistral, Qwen2 and Qwen3 are)",
                name);
}

static int read_llama3(const struct reader *r, const json_t *rope, struct model_params *p)
{
    p->rope.kind = ROPE_LLAMA3;
    TRY(read_f32(r, rope, "factor", true, &p->rope.factor));
    TRY(read_f32(r, rope, "low_freq_factor", true, &p->rope.low));
    TRY(read_f32(r, rope, "high_freq_factor", true, &p->rope.high));
    return 0;
}

static int read_yarn(const struct reader *r, const json_t *rope, struct model_params *p)
{
    struct model_rope *to = &p->rope;
    float scale = 0, scale_all = 0;
    to->kind = ROPE_YARN;
    to->low = 1;
    to->high = 32;
    if (!to->original)
        to->original = p->context;
    to->factor = (float)p->context / (float)to->original;
    TRY(read_f32(r, rope, "factor", false, &to->factor));
    TRY(read_f32(r, rope, "beta_slow", false, &to->low));
    TRY(read_f32(r, rope, "beta_fast", false, &to->high));
    TRY(read_f32(r, rope, "mscale", false, &scale));
    TRY(read_f32(r, rope, "mscale_all_dim", false, &scale_all));
    to->magnitude = model_rope_magnitude(to->factor, 1);
    if (scale != 0 && scale_all != 0)
        to->magnitude =
            model_rope_magnitude(to->factor, scale) / model_rope_magnitude(to->factor, scale_all);
    TRY(read_f32(r, rope, "attention_factor", false, &to->magnitude));
    to->truncate = !json_is_false(get(rope, "truncate"));
    return 0;
}

static int read_scaling(const struct reader *r, const json_t *rope, struct model_params *p)
{
    const json_t *type = get(rope, "rope_type") ? get(rope, "rope_type") : get(rope, "type");
    const char *name = json_string_value(type);
    static const char original[] = "original_max_position_embeddings";
    if (name && strcmp(name, "default") == 0)
        return 0;
    p->rope = (struct model_rope){.kind = ROPE_LINEAR, .factor = 1, .magnitude = 1};
    const json_t *context = get(rope, original) ? get(rope, original) : get(r->root, original);
    if (context && (!json_is_integer(context) || json_integer_value(context) <= 0 ||
                    json_integer_value(context) > UINT32_MAX))
        return FAIL(r, STATUS_FORMAT, "'%s' is no size", original);
    p->rope.original = (uint32_t)json_integer_value(context);
    if (name && strcmp(name, "linear") == 0)
        TRY(read_f32(r, rope, "factor", true, &p->rope.factor));
    else if (name && strcmp(name, "llama3") == 0)
        TRY(read_llama3(r, rope, p));
    else if (name && strcmp(name, "yarn") == 0)
        TRY(read_yarn(r, rope, p));
    else
        return FAIL(r, STATUS_UNSUPPORTED,
                    "RoPE scaling '%.32s' is not supported (linear, llama3 and yarn are)",
                    name ? name : "without a type");
    p->context = model_rope_context(&p->rope, p->context);
    return 0;
}

/* rope_theta and the scaling: at the top level, in rope_scaling or in rope_parameters. */
static int read_rope(const struct reader *r, struct model_params *p)
{
    static const char *const objects[] = {"rope_scaling", "rope_parameters"};
    p->rope_theta = 10000;
    TRY(read_f32(r, r->root, "rope_theta", false, &p->rope_theta));
    for (size_t i = 0; i < sizeof objects / sizeof *objects; i++) {
        const json_t *rope = get(r->root, objects[i]);
        if (!rope)
            continue;
        if (!json_is_object(rope))
            return FAIL(r, STATUS_FORMAT, "'%s' is no object", objects[i]);
        TRY(read_f32(r, rope, "rope_theta", false, &p->rope_theta));
        TRY(read_scaling(r, rope, p));
    }
    float part = 1;
    TRY(read_f32(r, r->root, "partial_rotary_factor", false, &part));
    if (part != 1)
        return FAIL(r, STATUS_UNSUPPORTED, "partial_rotary_factor %g is not supported",
                    (double)part);
    return 0;
}

static int read_window(const struct reader *r, struct model_params *p)
{
    uint32_t window = 0;
    const json_t *types = get(r->root, "layer_types");
    bool used = !json_is_false(get(r->root, "use_sliding_window"));
    if (used)
        TRY(read_u32(r, "sliding_window", false, &window));
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *type = json_string_value(json_array_get(types, i));
        if (type && strcmp(type, "full_attention") == 0)
            continue;
        if (!type || strcmp(type, "sliding_attention") != 0 || !window)
            return FAIL(r, STATUS_UNSUPPORTED, "layer type '%.32s' is not supported",
                        type ? type : "");
    }
    if (window && window < p->context) {
        log_warn("%s: context cut from %u to the sliding window of %u tokens", r->dir, p->context,
                 window);
        p->context = window;
    }
    return 0;
}

static int read_config(const struct reader *r, struct model_params *p, bool *tie_known)
{
    TRY(read_arch(r, p));
    p->rope_neox = true;
    TRY(read_u32(r, "num_hidden_layers", true, &p->n_layers));
    TRY(read_u32(r, "hidden_size", true, &p->hidden));
    TRY(read_u32(r, "intermediate_size", true, &p->ffn));
    TRY(read_u32(r, "num_attention_heads", true, &p->n_heads));
    TRY(read_u32(r, "vocab_size", true, &p->vocab));
    TRY(read_u32(r, "max_position_embeddings", true, &p->context));
    TRY(read_f32(r, r->root, "rms_norm_eps", true, &p->rms_eps));
    p->n_kv_heads = p->n_heads;
    TRY(read_u32(r, "num_key_value_heads", false, &p->n_kv_heads));
    TRY(read_u32(r, "head_dim", false, &p->head_dim));
    if (!p->head_dim && p->n_heads && p->hidden % p->n_heads == 0)
        p->head_dim = p->hidden / p->n_heads;
    TRY(read_rope(r, p));
    TRY(read_window(r, p));
    const json_t *act = get(r->root, "hidden_act");
    if (act && (!json_is_string(act) || strcmp(json_string_value(act), "silu") != 0))
        return FAIL(r, STATUS_UNSUPPORTED, "hidden_act '%.32s' is not supported",
                    json_is_string(act) ? json_string_value(act) : "");
    if (get(r->root, "quantization_config"))
        return FAIL(r, STATUS_UNSUPPORTED, "%s is not supported", "a quantised checkpoint");
    const json_t *tied = get(r->root, "tie_word_embeddings");
    if (tied && !json_is_boolean(tied))
        return FAIL(r, STATUS_FORMAT, "'%s' is no boolean", "tie_word_embeddings");
    *tie_known = tied != NULL;
    p->tied_head = json_is_true(tied);
    return model_params_check(p, r->dir, r->err, r->errlen);
}

int model_dir_json(const char *dir, const char *name, size_t max, json_t **out, char *err,
                   size_t errlen)
{
    char *text;
    size_t n;
    json_error_t e;
    TRY(model_dir_read(dir, name, max, &text, &n, err, errlen));
    json_t *j = json_loadb(text, n, JSON_REJECT_DUPLICATES, &e);
    free(text);
    if (!j)
        return model_error(err, errlen, STATUS_FORMAT, "%s/%s: no valid JSON at byte %d: %s", dir,
                           name, e.position, e.text);
    if (!json_is_object(j)) {
        json_decref(j);
        return model_error(err, errlen, STATUS_FORMAT, "%s/%s: no JSON object", dir, name);
    }
    *out = j;
    return 0;
}

int model_params_hf(const char *dir, bool vocab_only, struct model_params *p, bool *tie_known,
                    char *err, size_t errlen)
{
    json_t *root;
    int rc = model_dir_json(dir, "config.json", CONFIG_MAX, &root, err, errlen);
    if (rc == STATUS_NOTFOUND)
        return model_error(err, errlen, rc, "%s: no model directory (there is no config.json)",
                           dir);
    TRY(rc);
    struct reader r = {dir, root, err, errlen};
    struct model_params params = {0};
    rc = read_config(&r, &params, tie_known);
    if (rc == STATUS_UNSUPPORTED && vocab_only) { /* the tokenizer is all that is wanted */
        params = (struct model_params){0};
        rc = read_u32(&r, "vocab_size", true, &params.vocab);
    }
    json_decref(root);
    TRY(rc);
    *p = params;
    return 0;
}

/* chat_template is a string, or a list of {"name", "template"} of which "default" counts. */
static const char *find_template(const json_t *j)
{
    if (json_is_string(j))
        return json_string_value(j);
    for (size_t i = 0; i < json_array_size(j); i++) {
        const json_t *item = json_array_get(j, i);
        const char *name = json_string_value(json_object_get(item, "name"));
        if (name && strcmp(name, "default") == 0)
            return json_string_value(json_object_get(item, "template"));
    }
    return NULL;
}

int model_template_hf(const char *dir, char **out, char *err, size_t errlen)
{
    char *text = NULL;
    size_t n;
    json_t *root;
    int rc = model_dir_read(dir, "chat_template.jinja", TEMPLATE_MAX, &text, &n, err, errlen);
    if (rc && rc != STATUS_NOTFOUND)
        return rc;
    if (rc == 0 && strlen(text) != n) {
        free(text);
        return model_error(err, errlen, STATUS_FORMAT, "%s/chat_template.jinja: has a NUL byte",
                           dir);
    }
    if (rc == 0) {
        *out = text;
        return 0;
    }
    *out = NULL;
    rc = model_dir_json(dir, "tokenizer_config.json", TEMPLATE_MAX, &root, err, errlen);
    if (rc == STATUS_NOTFOUND)
        return 0;
    TRY(rc);
    const char *found = find_template(json_object_get(root, "chat_template"));
    if (found && !(*out = mem_strdup(found)))
        rc = model_error(err, errlen, STATUS_NOMEM, "%s: out of memory", dir);
    json_decref(root);
    return rc;
}
