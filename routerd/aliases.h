/* aliases: the load of the cluster under the names that vLLM gave it, which gateways (the inference
 * extension of the Gateway API) and autoscalers know. */
#ifndef BATON_ROUTERD_ALIASES_H
#define BATON_ROUTERD_ALIASES_H

#include "common/base/buf.h"
#include "routerd/models.h"
#include "routerd/relay.h"
#include "routerd/workers.h"

void aliases_page(struct buf *out, const struct models *models, struct workers *workers,
                  const struct relay *relay);

#endif
