/* tokenize: POST /tokenize and /detokenize: text or messages to token ids, and ids to text. */
#ifndef BATON_ROUTERD_TOKENIZE_H
#define BATON_ROUTERD_TOKENIZE_H

#include "common/net/http.h"
#include "routerd/api.h"

enum tokenize_kind { TOKENIZE_TEXT, TOKENIZE_IDS };

/* Takes over the request, and envs (the models as for api_parse, one allocation): answers it, now
 * or, when its body is long, later. */
void tokenize_start(struct loop *loop, enum tokenize_kind kind, struct api_env *envs,
                    struct http_request *r);

/* The answer to a body as JSON in out; on failure e is filled. Any thread. */
int tokenize_answer(const struct api_env *envs, enum tokenize_kind kind, const char *body, size_t n,
                    int64_t now, struct buf *out, struct api_error *e) WARN_UNUSED;

#endif
