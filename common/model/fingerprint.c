/* fingerprint: 64 bits that say whether two workers have the same model.
 *
 * Hashed, in this order: the hyperparameters as text; then per tensor, by name: name, type, shape,
 * and a sample of its bytes. A tensor of up to SMALL bytes counts whole; of a larger one the first
 * and last EDGE bytes and PIECES pieces of PIECE bytes at even distances. So opening a model reads
 * some megabytes, not all of it (SmolLM2-135M, 98 MB: 3 ms from the page cache, 80 ms from the
 * disk), and two checkpoints of one training run differ, since training moves every tensor. Not
 * seen is a change of a few bytes between the pieces: a fingerprint tells models apart, it does not
 * prove a download complete. Everything is little-endian, so equal files give equal fingerprints
 * everywhere. */
#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/model/model_internal.h"

#define SMALL  ((size_t)16384)
#define EDGE   ((size_t)4096)
#define PIECES 8u
#define PIECE  ((size_t)256)

static uint64_t hash_data(const uint8_t *p, size_t n, uint64_t h)
{
    if (n <= SMALL)
        return hash64(p, n, h);
    h = hash64(p, EDGE, h);
    for (size_t i = 1; i <= PIECES; i++)
        h = hash64(p + n / (PIECES + 1) * i, PIECE, h);
    return hash64(p + n - EDGE, EDGE, h);
}

uint64_t model_fingerprint(const struct model *m, const struct model_source *source)
{
    const struct model_params *p = &m->params;
    char text[512];
    int n =
        snprintf(text, sizeof text,
                 "baton-model-1 arch %d layers %u hidden %u heads %u kv %u head %u ffn %u vocab "
                 "%u eps %a theta %a neox %d bias %d qknorm %d tied %d",
                 (int)p->arch, p->n_layers, p->hidden, p->n_heads, p->n_kv_heads, p->head_dim,
                 p->ffn, p->vocab, (double)p->rms_eps, (double)p->rope_theta, p->rope_neox,
                 p->qkv_bias, p->qk_norm, p->tied_head);
    uint64_t h = hash64(text, (size_t)n, 0);
    if (p->rope.kind != ROPE_PLAIN) {
        n = snprintf(
            text, sizeof text, "rope %d factor %a original %u low %a high %a trunc %d mag %a",
            (int)p->rope.kind, (double)p->rope.factor, p->rope.original, (double)p->rope.low,
            (double)p->rope.high, p->rope.truncate, (double)p->rope.magnitude);
        h = hash64(text, (size_t)n, h);
    }
    for (size_t i = 0; i < source->n_tensors; i++) {
        const struct model_tensor *x = &source->tensors[i];
        if (!x->used)
            continue;
        n = snprintf(text, sizeof text, "%.300s %d %llu %llu", x->t.name, (int)x->t.type,
                     (unsigned long long)x->t.rows, (unsigned long long)x->t.cols);
        h = hash_data(x->t.data, x->t.bytes, hash64(text, (size_t)n, h));
    }
    return h;
}
