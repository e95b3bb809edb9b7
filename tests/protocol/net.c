/* net: links that keep order, and what happens to what is under way when they break. */
#include "tests/protocol/world.h"

bool queue_put(struct world *w, struct queue *q, const struct msg *m)
{
    if (q->n == QUEUE_MAX) {
        world_fail(w, "a queue of the model is too short");
        return false;
    }
    q->m[(q->head + q->n++) % QUEUE_MAX] = *m;
    w->messages++;
    if (m->type < 64)
        w->sent[m->type]++;
    if (m->type == PROTO_LOST || m->type == PROTO_REFUSE)
        w->reasons[m->reason % 16]++;
    return true;
}

void queue_take(struct queue *q, struct msg *out)
{
    *out = q->m[q->head];
    q->head = (q->head + 1) % QUEUE_MAX;
    q->n--;
}

struct queue *data_queue(struct world *w, uint32_t from, uint32_t to)
{
    return &w->data[from][to];
}

struct node *node_of(struct world *w, uint64_t instance)
{
    for (uint32_t i = 0; i < NODES; i++) {
        if (w->nodes[i].alive && w->nodes[i].instance == instance)
            return &w->nodes[i];
    }
    return NULL;
}

void send_to_router(struct world *w, struct node *n, const struct msg *m)
{
    if (n->linked && !w->control[n->index].w_stale && !w->router_dead)
        queue_put(w, &w->control[n->index].to_r, m);
}

void send_to_worker(struct world *w, uint64_t instance, const struct msg *m)
{
    for (uint32_t i = 0; i < NODES; i++) {
        if (w->views[i].instance == instance && w->views[i].up && w->control[i].whole)
            queue_put(w, &w->control[i].to_w, m);
    }
}

bool peer_is_dead(const struct node *n, uint64_t instance)
{
    for (uint32_t i = 0; i < n->n_notices; i++) {
        if (n->notices[i] == instance)
            return true;
    }
    return false;
}

void notice_later(struct node *n, uint64_t instance)
{
    if (!peer_is_dead(n, instance) && n->n_notices < 8)
        n->notices[n->n_notices++] = instance;
}

void send_to_peer(struct world *w, struct node *n, uint64_t instance, struct msg *m)
{
    struct node *to = node_of(w, instance);
    m->instance = n->instance;
    if (peer_is_dead(n, instance))
        return; /* its end of the link is dead, and it has not noticed */
    if (!to) {
        notice_later(n, instance);
        return;
    }
    queue_put(w, data_queue(w, n->index, to->index), m);
}

/* The data link between two workers is gone, with everything on it. */
void net_tear(struct world *w, struct node *a, struct node *b)
{
    data_queue(w, a->index, b->index)->n = 0;
    data_queue(w, b->index, a->index)->n = 0;
    if (a->alive)
        notice_later(a, b->instance);
    if (b->alive)
        notice_later(b, a->instance);
}

void net_cut(struct world *w, uint32_t node)
{
    struct control *c = &w->control[node];
    c->whole = false;
    c->to_w.n = c->to_r.n = 0;
    c->w_stale = w->nodes[node].linked;
}

int32_t token_of(const int32_t *ids, uint32_t n, uint64_t numerics)
{
    return (int32_t)(2 + hash64(ids, n * sizeof *ids, 1) % 900 + 1000 * numerics);
}

uint64_t kv_of(uint32_t layer, const int32_t *ids, uint32_t end)
{
    return hash64(ids, end * sizeof *ids, 100 + layer) | 1;
}
