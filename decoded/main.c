/* decoded: takes sequences over from prefill workers and generates their tokens in one running
 * batch. A thin shell around common/worker: settings, policy, exit status. */
#include "common/worker/worker.h"

/* Prompts are the prefill workers' business, but for the ends of those whose KV is here as a
 * replica: short ones, that somebody waits for. */
static uint32_t prompt_tokens(const struct worker_settings *s, uint32_t n_running)
{
    return (uint32_t)s->prefill_chunk;
}

int main(int argc, char **argv)
{
    static const struct worker_policy policy = {
        .program = "decoded", .role = PROTO_DECODE_WORKER, .prompt_tokens = prompt_tokens};
    return worker_main(&policy, argc, argv);
}
