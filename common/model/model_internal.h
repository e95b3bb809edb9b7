/* model_internal: what the files of common/model share behind struct model.
 *
 *   file.c        mapping, directories          tensor.c         sizes and values of tensor types
 *   gguf.c        container                     safetensors.c    container
 *   params_gguf.c hyperparameters from GGUF     hfconfig.c       hyperparameters from config.json
 *   shards.c      the files of a directory      rope.c           frequencies of RoPE
 *   layers.c      tensors by role, with shapes  fingerprint.c    fingerprint
 *   model.c       open and close */
#ifndef BATON_MODEL_MODEL_INTERNAL_H
#define BATON_MODEL_MODEL_INTERNAL_H

#include "common/base/mem.h"
#include "common/model/file.h"
#include "common/model/gguf.h"
#include "common/model/model.h"
#include "common/model/safetensors.h"

/* A tensor of the file before it has a role. */
struct model_tensor {
    struct tensor t;       /* type is meaningless when !supported */
    const char *type_name; /* "Q6_K", "I64", … */
    uint32_t n_dims;
    bool supported;
    bool used; /* has a role */
};

/* A safetensors file of a directory. */
struct model_part {
    struct model_file file;
    struct safetensors safetensors;
};

/* struct model.opaque. Exactly one of gguf and dir is set. */
struct model_source {
    struct model_file file; /* the .gguf; fd -1 when there is none */
    struct gguf *gguf;      /* a GGUF file, or NULL */
    char *dir;              /* path of a Hugging Face directory, or NULL; see model_dir_read */
    char *path;             /* as given to model_open */
    struct model_part *parts;
    size_t n_parts;
    struct model_tensor *tensors; /* sorted by name; NULL with MODEL_VOCAB_ONLY */
    size_t n_tensors;
    struct arena arena; /* layers */
};

static inline const struct model_source *model_source(const struct model *m)
{
    return m->opaque;
}

/* Hyperparameters from GGUF metadata. With vocab_only an unknown architecture and missing keys are
 * fine and leave zeros. Also checks that the tokenizer's arrays and ids fit each other. */
int model_params_gguf(const struct gguf *g, const char *path, bool vocab_only,
                      struct model_params *p, char *err, size_t errlen) WARN_UNUSED;

/* rope.c: bounds of p->rope; the longest context with it; what YaRN multiplies cosines and sines
 * with; and m->rope_freqs, with the tensor of divisors when the file has one (data NULL: none). */
int model_rope_check(const struct model_params *p, const char *path, char *err,
                     size_t errlen) WARN_UNUSED;
uint32_t model_rope_context(const struct model_rope *r, uint32_t context);
float model_rope_magnitude(float factor, float weight);
int model_rope_resolve(struct model *m, struct model_source *s, const struct tensor *divisors,
                       char *err, size_t errlen) WARN_UNUSED;

/* Hyperparameters from config.json. With vocab_only a model that Baton cannot run is fine and
 * leaves zeros, but for vocab. *tie_known: the file says whether the head is tied; otherwise the
 * tensors decide. */
int model_params_hf(const char *dir, bool vocab_only, struct model_params *p, bool *tie_known,
                    char *err, size_t errlen) WARN_UNUSED;
/* One JSON object out of a file of the directory, at most max bytes. */
struct json_t;
int model_dir_json(const char *dir, const char *name, size_t max, struct json_t **out, char *err,
                   size_t errlen) WARN_UNUSED;
/* Opens the safetensors files of s->dir: s->parts, which model_parts_close closes, also those of an
 * open that failed. */
int model_parts_open(struct model_source *s, char *err, size_t errlen) WARN_UNUSED;
void model_parts_close(struct model_source *s);
/* The chat template of tokenizer_config.json or chat_template.jinja, malloc'ed; NULL when there is
 * none. */
int model_template_hf(const char *dir, char **out, char *err, size_t errlen) WARN_UNUSED;
/* Bounds and divisibility of all numbers, whatever they came from. */
int model_params_check(const struct model_params *p, const char *path, char *err,
                       size_t errlen) WARN_UNUSED;

/* Gives every tensor of source->tensors its role in m, checks types and shapes, and refuses what is
 * missing or left over. Sets qkv_bias, qk_norm and, unless tie_known, tied_head. */
int model_bind_layers(struct model *m, struct model_source *source, bool tie_known, char *err,
                      size_t errlen) WARN_UNUSED;

uint64_t model_fingerprint(const struct model *m, const struct model_source *source);

#endif
