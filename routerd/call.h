/* call: one generation request of a client, from its body to the last byte of the answer.
 *
 * Owns the parameters, one sequence (struct gen) per prompt, and the answer's JSON or SSE events.
 */
#ifndef BATON_ROUTERD_CALL_H
#define BATON_ROUTERD_CALL_H

#include "common/net/http.h"
#include "routerd/api.h"
#include "routerd/message.h"
#include "routerd/otlp.h"
#include "routerd/pace.h"
#include "routerd/relay.h"

struct calls; /* all calls of a router, with what they share */

struct calls_options {
    const struct models *models;
    enum message_field reasoning_field;
    uint64_t sse_keepalive_ms;
    struct pace_targets targets;
    bool share_prefixes; /* between the users of different keys */
    size_t write_max;
    struct otlp *otlp;
};
int calls_create(struct loop *loop, struct relay *relay, const struct calls_options *o,
                 struct calls **out) WARN_UNUSED;
void calls_destroy(struct calls *cs);

/* Takes over the request: answers it, now or later. */
void call_start(struct calls *cs, enum api_kind kind, struct http_request *r);
/* What is known of the models now, the first of a chain; until the next call for these calls. */
const struct api_env *calls_envs(struct calls *cs);
/* A copy for another thread, to be freed; NULL when out of memory. */
struct api_env *calls_copy_envs(struct calls *cs);
void calls_set_keepalive(struct calls *cs, uint64_t sse_keepalive_ms);
uint32_t calls_open(const struct calls *cs);

#endif
