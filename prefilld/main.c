/* prefilld: computes prompts and streams their KV to decode workers. A thin shell around
 * common/worker: settings, policy, exit status. */
#include "common/worker/worker.h"

/* The whole step belongs to prompts. */
static uint32_t prompt_tokens(const struct worker_settings *s, uint32_t n_running)
{
    return (uint32_t)s->prefill_chunk;
}

int main(int argc, char **argv)
{
    static const struct worker_policy policy = {
        .program = "prefilld", .role = PROTO_PREFILL_WORKER, .prompt_tokens = prompt_tokens};
    return worker_main(&policy, argc, argv);
}
