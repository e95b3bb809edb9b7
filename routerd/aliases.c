/* aliases: see aliases.h. One series for each model; the KV cache is that of its decode workers,
 * where room runs out first. */
#include "routerd/aliases.h"

#include <inttypes.h>

#include "common/base/mem.h"
#include "common/base/metrics.h"

struct load {
    uint64_t running, waiting, blocks, blocks_free;
    uint32_t block_size;
};

static struct load load_of(struct workers *workers, uint32_t pool)
{
    struct load l = {0};
    for (uint32_t i = 0; i < workers_count(workers); i++) {
        const struct worker *w = workers_at(workers, i);
        if (!w->up || w->pool != pool)
            continue;
        l.waiting += w->load.waiting;
        if (!w->decode)
            continue;
        l.running += w->load.running;
        l.blocks += w->kv_blocks;
        l.blocks_free += w->load.kv_free;
        l.block_size = w->kv_block_size;
    }
    return l;
}

static void family(struct buf *out, const char *name, const char *help)
{
    buf_printf(out, "# HELP vllm:%s %s\n# TYPE vllm:%s gauge\n", name, help, name);
}

void aliases_page(struct buf *out, const struct models *models, struct workers *workers,
                  const struct relay *relay)
{
    static const char *const names[][2] = {
        {"num_requests_running", "Sequences that decode workers run."},
        {"num_requests_waiting", "Sequences that wait for a worker, or at one."},
        {"kv_cache_usage_perc", "Share of the decode workers' KV cache in use, 0 to 1."},
        {"cache_config_info", "Block size, and blocks of the decode workers' KV cache."}};
    struct buf labels;
    buf_init(&labels, 0);
    for (int n = 0; n < 4; n++) {
        family(out, names[n][0], names[n][1]);
        for (uint32_t i = 0; i < models->n; i++) {
            struct load l = load_of(workers, i);
            buf_reset(&labels);
            metrics_label(&labels, "model_name", models->list[i].name);
            buf_printf(out, "vllm:%s{%s", names[n][0], buf_str(&labels));
            if (n == 0)
                buf_printf(out, "} %" PRIu64 "\n", l.running);
            else if (n ==
                     1) /* what waits here is of the first model, or of one that nobody serves */
                buf_printf(out, "} %" PRIu64 "\n", l.waiting + (i == 0 ? relay_waiting(relay) : 0));
            else if (n == 2)
                buf_printf(out, "} %.6f\n",
                           l.blocks ? 1 - (double)l.blocks_free / (double)l.blocks : 0.0);
            else
                buf_printf(out, ",block_size=\"%u\",num_gpu_blocks=\"%" PRIu64 "\"} 1\n",
                           l.block_size, l.blocks);
        }
    }
    buf_fini(&labels);
}
