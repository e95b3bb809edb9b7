/* embeddings: POST /v1/embeddings: one vector for each text, from the model's hidden states. */
#ifndef BATON_ROUTERD_EMBEDDINGS_H
#define BATON_ROUTERD_EMBEDDINGS_H

#include "common/net/http.h"
#include "routerd/api.h"
#include "routerd/models.h"
#include "routerd/relay.h"

struct embedder { /* loans, for the life of its requests */
    struct loop *loop;
    struct relay *relay;
    const struct models *models;
    struct otlp *otlp;
    uint32_t n_open; /* requests that are not answered yet */
};

/* Takes over the request, and envs (the models as for api_parse, one allocation): answers it later.
 */
void embeddings_start(struct embedder *e, struct api_env *envs, struct http_request *r);

#endif
