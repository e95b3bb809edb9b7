/* relay_move: running sequences that go to another decode worker, because theirs drains or somebody
 * asks, and those that get a replica on one. Which one is pick.c's decision, what follows gen.c's.
 */
#include "common/base/clock.h"
#include "common/base/rng.h"
#include "routerd/relay_internal.h"

#define MOVES_AT_ONCE   4  /* from one worker that drains */
#define COPIES_PER_TICK 16 /* replicas that are begun */

static uint32_t index_of(const struct relay *r, uint32_t n, uint64_t instance)
{
    uint32_t i = 0;
    while (i < n && (instance == 0 || r->view[i].instance != instance))
        i++;
    return i;
}

static uint32_t n_tokens(const struct gen *g)
{
    return (uint32_t)g->job.prompt.n + g->n_emitted;
}

/* A sequence goes to view[to]: what is there for the next one. */
static void charge(struct pick_worker *to, const struct gen *g)
{
    uint32_t need = n_tokens(g) / (to->kv_block_size ? to->kv_block_size : 16) + 1;
    to->running++;
    to->kv_free -= need < to->kv_free ? need : to->kv_free;
}

static bool anyone_drains(const struct relay *r, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (r->view[i].decode && r->view[i].alive && !r->view[i].usable)
            return true;
    }
    return false;
}

/* Sequences of decode workers that drain go to others, a few at a time. */
void relay_move_away(struct relay *r, uint64_t now)
{
    uint32_t n = workers_count(r->workers), to;
    workers_view(r->workers, r->view);
    if (!anyone_drains(r, n))
        return;
    for (uint32_t i = 0; i < n; i++)
        r->moving[i] = 0;
    LIST_FOR (it, &r->running) {
        const struct gen *g = &container_of(it, struct entry, in_list)->g;
        uint32_t from = index_of(r, n, g->decode), target = index_of(r, n, g->move_to);
        if (from < n && target < n) {
            r->moving[from]++;
            charge(&r->view[target], g);
        }
    }
    LIST_FOR_SAFE (it, &r->running) {
        struct entry *e = container_of(it, struct entry, in_list);
        uint32_t from = index_of(r, n, e->g.decode);
        struct pick_request want = {.n_tokens = n_tokens(&e->g)};
        if (from == n || !r->view[from].alive || r->view[from].usable ||
            r->moving[from] >= MOVES_AT_ONCE || !gen_can_move(&e->g, now) ||
            !pick_move(r->view, n, &want, from, &to))
            continue;
        struct gen_turn t;
        gen_turn_init(&t, now, rng_u64());
        gen_move(&e->g, r->view[to].instance, &t);
        relay_run(e, &t, NULL); /* calls no owner */
        r->moving[from]++;
        charge(&r->view[to], &e->g);
    }
}

/* Sequences that have no replica get one, on the least loaded of the other decode workers. */
void relay_replicate(struct relay *r, uint64_t now)
{
    uint32_t n = workers_count(r->workers), to, budget = COPIES_PER_TICK;
    workers_view(r->workers, r->view);
    for (uint32_t i = 0; i < n; i++)
        r->view[i].usable &= r->view[i].copies;
    LIST_FOR_SAFE (it, &r->running) {
        struct entry *e = container_of(it, struct entry, in_list);
        uint32_t from = index_of(r, n, e->g.decode);
        struct pick_request want = {.n_tokens = n_tokens(&e->g)};
        if (budget == 0)
            return;
        if (from == n || !r->view[from].alive || !r->view[from].copies ||
            !gen_can_copy(&e->g, now) || !pick_move(r->view, n, &want, from, &to))
            continue;
        struct gen_turn t;
        gen_turn_init(&t, now, rng_u64());
        gen_copy(&e->g, r->view[to].instance, &t);
        relay_run(e, &t, NULL); /* calls no owner */
        charge(&r->view[to], &e->g);
        budget--;
    }
}

int relay_move(struct gen *g, uint64_t to)
{
    struct entry *e = entry_of(g);
    struct relay *r = e->relay;
    struct gen_turn t;
    uint32_t n = workers_count(r->workers), only;
    if (r->dispatching || !gen_can_move(g, clock_ms()) || to == g->decode)
        return STATUS_INVALID;
    workers_view(r->workers, r->view);
    uint32_t from = index_of(r, n, g->decode), target = index_of(r, n, to);
    if (from == n || target == n)
        return STATUS_INVALID;
    struct pick_request want = {.n_tokens = n_tokens(g)};
    for (uint32_t i = 0; i < n; i++)
        r->view[i].usable &= i == target;
    if (!pick_move(r->view, n, &want, from, &only))
        return STATUS_INVALID;
    gen_turn_init(&t, clock_ms(), rng_u64());
    gen_move(g, to, &t);
    relay_run(e, &t, NULL);
    return STATUS_OK;
}
