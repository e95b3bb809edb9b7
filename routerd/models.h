/* models: the models that a router serves: what of each is needed to read requests and write
 * answers. Workers say in their HELLO which one they compute; the pool of a model has its index. */
#ifndef BATON_ROUTERD_MODELS_H
#define BATON_ROUTERD_MODELS_H

#include "common/text/reply.h"
#include "common/text/tokenizer.h"
#include "routerd/settings.h"
#include "routerd/think.h"

#define MODELS_MAX        64
#define MODEL_NAME_MAX    255
#define MODEL_ALIASES_MAX 16

struct model;

struct served {
    char name[MODEL_NAME_MAX + 1];
    char *aliases[MODEL_ALIASES_MAX + 1]; /* other names of it, then NULL */
    struct model *model;                  /* its vocabulary */
    struct tokenizer *tokenizer;
    struct chat_template *chat_template;
    struct reply_profile profile;
    struct think_efforts efforts;
    uint32_t vocab;
    bool pool_last;   /* embeddings are of the last token, else the mean */
    uint32_t context; /* configured or the model's; 0: unknown */
};
struct models {
    struct served list[MODELS_MAX];
    uint32_t n;      /* the first one is taken when a request names none */
    int64_t created; /* seconds since the epoch */
};

/* Reads what settings name: their own model, and the files of `models`. err: one line. */
int models_load(const struct settings *s, struct models **out, char *err,
                size_t errlen) WARN_UNUSED;
void models_destroy(struct models *m);
/* Whether the model goes by this name; aliases end with NULL, or are NULL. */
bool model_is_called(const char *name, char *const *aliases, const char *asked);
/* Index of the model of that name or alias, or -1. */
int models_find(const struct models *m, const char *name);

#endif
