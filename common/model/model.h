/* model: a model file as named tensors and hyperparameters, from GGUF or a Hugging Face directory.
 *
 * The file is mapped, never copied; tensors are loans from the mapping until model_close. The file
 * is hostile input: every size is checked against the file before anything is allocated, and every
 * refusal is one line that names the file, the offset or tensor, and what is wrong. */
#ifndef BATON_MODEL_MODEL_H
#define BATON_MODEL_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/text/tokenizer.h"

/* Tensor types; the numbers are GGUF's (ggml_type). */
enum tensor_type {
    TENSOR_F32 = 0,
    TENSOR_F16 = 1,
    TENSOR_Q4_0 = 2,
    TENSOR_Q4_1 = 3,
    TENSOR_Q5_0 = 6,
    TENSOR_Q5_1 = 7,
    TENSOR_Q8_0 = 8,
    TENSOR_Q4_K = 12,
    TENSOR_Q5_K = 13,
    TENSOR_Q6_K = 14,
    TENSOR_BF16 = 30
};
/* Elements and bytes of one block: F32 1/4, F16 1/2, BF16 1/2, Q4_0 32/18, Q4_1 32/20, Q5_0 32/22,
 * Q5_1 32/24, Q8_0 32/34, Q4_K 256/144, Q5_K 256/176, Q6_K 256/210. */
struct tensor_layout {
    const char *name;
    uint32_t block_elems, block_bytes;
};
/* NULL for a type that is not supported. */
const struct tensor_layout *tensor_type_layout(uint32_t type);

struct tensor {
    const char *name;
    enum tensor_type type;
    uint64_t rows, cols; /* row-major; a row is contiguous. 1-D: rows 1. (GGUF ne[1], ne[0]) */
    const void *data;    /* loan from the mapping */
    size_t bytes;
};

enum model_arch { MODEL_LLAMA, MODEL_QWEN2, MODEL_QWEN3 };

/* How RoPE is stretched beyond the context that a model was first trained for. */
enum model_rope_kind { ROPE_PLAIN, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN };
struct model_rope {
    enum model_rope_kind kind;
    float factor;
    uint32_t original; /* that context; 0 for linear scaling that does not name it */
    float low, high;   /* llama3: low_freq_factor, high_freq_factor; yarn: beta_slow, beta_fast */
    bool truncate;     /* yarn: its bounds are whole dimensions */
    float magnitude;   /* of cosines and sines; 1 but for yarn */
};

/* Hyperparameters, with the names of config.json where they have one. */
struct model_params {
    enum model_arch arch;
    uint32_t n_layers, hidden, n_heads, n_kv_heads, head_dim, ffn, vocab;
    uint32_t context; /* longest sequence, with the scaling of RoPE that the file has */
    float rms_eps, rope_theta;
    bool rope_neox; /* rotate halves (HF layout) rather than neighbouring pairs. GGUF Llama files
                       have q/k rows permuted for pairs; HF directories and Qwen use halves */
    bool qkv_bias, qk_norm, tied_head;
    struct model_rope rope;
};

struct model_layer {
    struct tensor attn_norm, q, k, v, o, ffn_norm, gate, up, down;
    struct tensor q_bias, k_bias, v_bias; /* data NULL when absent */
    struct tensor q_norm, k_norm;         /* data NULL when absent */
};

struct model {
    struct model_params params;
    struct tensor embedding; /* vocab x hidden */
    struct tensor output_norm;
    struct tensor output; /* the embedding again when the head is tied */
    struct model_layer *layers;
    const double *rope_freqs; /* [head_dim / 2] radians for each position, scaling applied */
    char *name;               /* general.name, or the directory's name */
    char *chat_template;      /* NULL when the model has none */
    uint64_t fingerprint;     /* of hyperparameters and all tensors' sampled contents: equal for the
                                 same model file, on every machine; 0 with MODEL_VOCAB_ONLY */
    size_t file_bytes;
    void *opaque; /* mappings and tables, for model_close */
};

enum model_open_flags {
    MODEL_VOCAB_ONLY = 1 /* no tensors wanted: tokenizer, template and hyperparameters only */
};
/* path: a .gguf file or a directory. On failure err has the line to show and *out is not set. */
int model_open(const char *path, unsigned flags, struct model **out, char *err,
               size_t errlen) WARN_UNUSED;
/* Whether the mapped file is still what it was when it was opened (size and time). A file that is
 * cut short while it is mapped raises SIGBUS on the next read of the missing part, so whoever reads
 * all tensors calls this right before and after; see file.h. */
int model_check(const struct model *m, char *err, size_t errlen) WARN_UNUSED;
void model_close(struct model *m);
/* What a model is called by its path: the last part, without trailing slashes and ".gguf". To be
 * freed; NULL without memory. */
char *model_base_name(const char *path);

/* The tokenizer of the model at path (GGUF, also vocabulary-only, or a directory with
 * tokenizer.json). vocab.c; the caller owns the result. */
int model_tokenizer(const struct model *m, struct tokenizer **out, char *err,
                    size_t errlen) WARN_UNUSED;

#endif
