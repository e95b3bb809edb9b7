/* explore: which events are possible, what they do, and which runs are tried; see explore.h. */
#include "tests/protocol/explore.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define STEPS_MAX   4000
#define CHECK_EVERY 4 /* events between two looks at the owners of all blocks of a worker */

static const char *const event_names[] = {
    "place",     "to router",   "to worker", "router notices", "worker notices", "relink",
    "refused",   "to peer",     "compute",   "step",           "KV lands",       "KV sent",
    "peer lost", "start",       "continue",  "copy",           "time",           "KILL",
    "STOP",      "CUT",         "TEAR",      "DROP",           "REPEAT",         "FLIP",
    "CANCEL",    "ROUTER DIES", "MOVE"};

const char *event_name(enum event_type t)
{
    return event_names[t];
}

const char *mutant_name(enum mutant m)
{
    static const char *const names[] = {"none",
                                        "the router takes stale attempts",
                                        "the router takes duplicates",
                                        "the router ignores LOST",
                                        "no tombstones",
                                        "the same ticket twice",
                                        "no quarantine",
                                        "no checksums",
                                        "nothing times out",
                                        "no grace",
                                        "no tokens again after RESUME",
                                        "no answer to RESUME",
                                        "prefill frees before HANDOFF_OK",
                                        "a sequence goes on and the router is not told",
                                        "a sequence is not frozen",
                                        "the router takes tokens of a move that is off",
                                        "a copy is taken for a sequence",
                                        "a replica has a block that is not complete"};
    return names[m];
}

void world_fail(struct world *w, const char *fmt, ...)
{
    if (w->broken)
        return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(w->why, sizeof w->why, fmt, ap);
    va_end(ap);
    w->broken = true;
    SAY(w, "WRONG: %s", w->why);
}

void world_say(struct world *w, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    printf("  %6" PRIu64 " ", w->now - 1000);
    vprintf(fmt, ap);
    printf("\n");
    va_end(ap);
}

uint64_t world_random(struct world *w)
{
    w->random += HASH_KV_STEP;
    return hash_mix64(w->random);
}

const char *node_name(const struct world *w, uint64_t instance)
{
    static const char *const names[] = {"P0", "P1", "D0", "D1"};
    for (uint32_t i = 0; i < NODES; i++) {
        if (w->nodes[i].instance == instance || w->views[i].instance == instance)
            return names[i];
    }
    return "nobody";
}

static const char *message_name(int type)
{
    return type == MSG_UP ? "UP" : type == MSG_KV ? "KV" : proto_type_name((enum proto_type)type);
}

static bool exists(const struct world *w, uint32_t node)
{
    return node < 2 ? node < w->s->n_prefill : node - 2 < w->s->n_decode;
}

void world_open(struct world *w, const struct scenario *s, uint64_t seed, enum mutant m)
{
    w->s = s;
    w->left = *s;
    w->mutant = m;
    w->now = 1000;
    w->random = seed;
    w->router_dead = w->settling = w->broken = false;
    w->instances = 100;
    w->steps = w->kills = w->stops = w->messages = 0;
    w->n_tickets = w->n_canceled = 0;
    w->why[0] = 0;
    memset(w->views, 0, sizeof w->views);
    for (uint32_t i = 0; i < NODES; i++) {
        struct node *n = &w->nodes[i];
        n->index = i;
        n->decode = i >= 2;
        n->numerics = s->mixed ? i % 2 : 0;
        n->alive = n->stopped = false;
        n->instance = 0;
        n->pool = NULL;
        n->n_notices = n->flying = n->landing = 0;
        w->control[i].whole = w->control[i].w_stale = false;
        w->control[i].to_w.n = w->control[i].to_r.n = 0;
        w->control[i].to_w.head = w->control[i].to_r.head = 0;
        for (uint32_t k = 0; k < NODES; k++)
            w->data[i][k].n = w->data[i][k].head = 0;
    }
    r_start(w);
    for (uint32_t i = 0; i < NODES; i++) {
        if (!exists(w, i))
            continue;
        node_start(w, &w->nodes[i]);
        r_up(w, i); /* connected from the start: the hand-shake has been explored by then */
        while (w->control[i].to_w.n) {
            struct msg m_up;
            queue_take(&w->control[i].to_w, &m_up);
            node_message(w, &w->nodes[i], &m_up);
        }
    }
}

void world_close(struct world *w)
{
    for (uint32_t i = 0; i < NODES; i++) {
        if (w->nodes[i].alive)
            node_kill(w, &w->nodes[i]);
    }
    r_close(w);
}

/* ---- what can happen ---- */

static void add(struct event *list, uint32_t *n, enum event_type t, uint32_t a, uint32_t b)
{
    if (*n < EVENTS_MAX)
        list[(*n)++] = (struct event){(uint8_t)t, (uint8_t)a, (uint8_t)b};
}

static bool can_land(const struct world *w, const struct node *n, const struct landing *l)
{
    if (peer_is_dead(n, l->from))
        return false;
    for (uint32_t i = 0; i < NODES; i++) {
        const struct node *p = &w->nodes[i];
        if (p->alive && p->instance == l->from)
            return !p->stopped && p->flights[l->flight].state == FLIGHT_FLYING;
    }
    return false;
}

static void worker_events(const struct world *w, uint32_t i, struct event *list, uint32_t *n)
{
    const struct node *x = &w->nodes[i];
    const struct control *c = &w->control[i];
    if (c->to_w.n)
        add(list, n, EV_TO_W, i, 0);
    if (p_can_compute(x))
        add(list, n, EV_COMPUTE, i, 0);
    for (uint32_t bits = x->landing; bits; bits &= bits - 1) {
        uint32_t f = (uint32_t)__builtin_ctz(bits);
        if (can_land(w, x, &x->landings[f]))
            add(list, n, EV_LAND, i, f);
    }
    for (uint32_t bits = x->flying; bits; bits &= bits - 1) {
        uint32_t f = (uint32_t)__builtin_ctz(bits);
        if (x->flights[f].state > FLIGHT_FLYING)
            add(list, n, EV_SENT, i, f);
    }
    if (x->decode && d_can_step(x))
        add(list, n, EV_STEP, i, 0);
    if (c->w_stale && x->linked)
        add(list, n, EV_W_DOWN, i, 0);
    if (x->n_notices)
        add(list, n, EV_NOTICE, i, 0);
}

/* The ordinary course of things; EV_TIME is not among them. */
uint32_t world_events(struct world *w, struct event *list)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < NODES; i++) {
        const struct node *x = &w->nodes[i];
        const struct link_view *v = &w->views[i];
        if (!exists(w, i))
            continue;
        if (!w->router_dead) {
            if (w->control[i].to_r.n)
                add(list, &n, EV_TO_R, i, 0);
            else if (v->up && !w->control[i].whole)
                add(list, &n, EV_R_DOWN, i, 0);
            if (!v->up && x->alive && !x->stopped)
                add(list, &n, EV_RELINK, i, 0);
            if (v->relinking && !x->alive)
                add(list, &n, EV_REFUSED, i, 0);
        }
        if (!x->alive)
            add(list, &n, EV_RESTART, i, 0);
        else if (x->stopped)
            add(list, &n, EV_CONTINUE, i, 0);
        else
            worker_events(w, i, list, &n);
    }
    for (uint32_t a = 0; a < NODES; a++) {
        for (uint32_t b = 0; b < NODES; b++) {
            if (w->data[a][b].n && w->nodes[b].alive && !w->nodes[b].stopped)
                add(list, &n, EV_TO_PEER, a, b);
        }
    }
    if (!w->router_dead && r_can_place(w))
        add(list, &n, EV_PLACE, 0, 0);
    for (uint32_t i = 0; i < w->s->n_seqs && w->s->replicas && !w->router_dead; i++) {
        for (uint32_t d = 2; d < 2 + w->s->n_decode; d++) {
            if (r_can_copy(w, i, d))
                add(list, &n, EV_COPY, i, d);
        }
    }
    return n;
}

static void pair_faults(const struct world *w, uint32_t one, uint32_t other, struct event *list,
                        uint32_t *n)
{
    const struct queue *q[2] = {&w->data[one][other], &w->data[other][one]};
    const struct node *x = &w->nodes[one], *y = &w->nodes[other];
    if (w->left.tears && x->alive && y->alive && !peer_is_dead(x, y->instance))
        add(list, n, EV_TEAR, one, other);
    for (uint32_t i = 0; i < 2; i++) {
        if (q[i]->n == 0 || q[i]->m[q[i]->head].type == MSG_KV)
            continue;
        uint32_t a = i == 0 ? one : other, b = i == 0 ? other : one;
        if (w->left.drops)
            add(list, n, EV_DROP, a, b);
        if (w->left.repeats)
            add(list, n, EV_REPEAT, a, b);
    }
}

uint32_t world_faults(struct world *w, struct event *list)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < NODES; i++) {
        const struct node *x = &w->nodes[i];
        if (!exists(w, i) || !x->alive)
            continue;
        if (w->left.kills)
            add(list, &n, EV_KILL, i, 0);
        if (w->left.stops && !x->stopped)
            add(list, &n, EV_STOP, i, 0);
        if (w->left.cuts && w->control[i].whole)
            add(list, &n, EV_CUT, i, 0);
        for (uint32_t bits = w->left.flips ? x->landing : 0; bits; bits &= bits - 1) {
            uint32_t f = (uint32_t)__builtin_ctz(bits);
            if (!x->stopped && can_land(w, x, &x->landings[f]))
                add(list, &n, EV_FLIP, i, f);
        }
    }
    for (uint32_t p = 0; p < w->s->n_prefill; p++) {
        for (uint32_t d = 0; d < w->s->n_decode; d++)
            pair_faults(w, p, 2 + d, list, &n);
    }
    if ((w->s->moves || w->s->replicas) && w->s->n_decode == 2)
        pair_faults(w, 2, 3, list, &n);
    for (uint32_t i = 0; i < w->s->n_seqs && w->left.moves && !w->router_dead; i++) {
        for (uint32_t d = 2; d < 2 + w->s->n_decode; d++) {
            if (r_can_move(w, i, d))
                add(list, &n, EV_MOVE, i, d);
        }
    }
    for (uint32_t i = 0; i < w->s->n_seqs && w->left.cancels; i++) {
        if (!w->seqs[i].over)
            add(list, &n, EV_CANCEL, i, 0);
    }
    if (w->left.deaths && !w->router_dead)
        add(list, &n, EV_DEATH, 0, 0);
    return n;
}

/* ---- what it does ---- */

static void fault(struct world *w, struct event e)
{
    struct node *x = &w->nodes[e.a];
    struct msg m;
    switch ((enum event_type)e.type) {
    case EV_KILL:
        w->left.kills--;
        w->kills++;
        node_kill(w, x);
        break;
    case EV_STOP:
        w->left.stops--;
        w->stops++;
        x->stopped = true;
        x->stopped_ms = w->now;
        break;
    case EV_CUT:
        w->left.cuts--;
        net_cut(w, e.a);
        break;
    case EV_TEAR:
        w->left.tears--;
        net_tear(w, x, &w->nodes[e.b]);
        break;
    case EV_DROP:
        w->left.drops--;
        queue_take(data_queue(w, e.a, e.b), &m);
        SAY(w, "  %s is lost", message_name(m.type));
        break;
    case EV_REPEAT: {
        struct queue *q = data_queue(w, e.a, e.b);
        w->left.repeats--;
        m = q->m[q->head];
        queue_put(w, q, &m);
        break;
    }
    case EV_FLIP:
        w->left.flips--;
        d_land(w, x, e.b, true, true);
        break;
    case EV_CANCEL:
        w->left.cancels--;
        r_cancel(w, e.a);
        break;
    case EV_DEATH:
        w->left.deaths--;
        r_death(w);
        break;
    case EV_MOVE:
        w->left.moves--;
        r_move(w, e.a, e.b);
        break;
    default:
        break;
    }
}

static uint64_t next_due(const struct world *w)
{
    uint64_t at = w->router_dead ? UINT64_MAX : r_due(w);
    for (uint32_t i = 0; i < NODES; i++) {
        const struct node *n = &w->nodes[i];
        uint64_t due = n->alive && !n->stopped ? node_due(n) : UINT64_MAX;
        at = due < at ? due : at;
    }
    return at;
}

static void pass_time(struct world *w)
{
    uint64_t at = next_due(w);
    if (at == UINT64_MAX)
        return;
    w->now = at > w->now ? at : w->now + 1;
    if (!w->router_dead)
        r_tick(w);
    for (uint32_t i = 0; i < NODES; i++) {
        struct node *n = &w->nodes[i];
        if (!n->alive || n->stopped)
            continue;
        node_tick(w, n);
        node_flush(w, n);
        node_check(w, n);
    }
}

static void say_event(struct world *w, struct event e)
{
    static const char *const names[] = {"P0", "P1", "D0", "D1"};
    const struct queue *q = NULL;
    switch ((enum event_type)e.type) {
    case EV_TO_R:
        q = &w->control[e.a].to_r;
        break;
    case EV_TO_W:
        q = &w->control[e.a].to_w;
        break;
    case EV_TO_PEER:
    case EV_DROP:
    case EV_REPEAT:
        q = data_queue(w, e.a, e.b);
        break;
    default:
        break;
    }
    const struct msg *m = q && q->n ? &q->m[q->head] : NULL;
    if (m)
        world_say(w, "%s %s %s: %s #%" PRIu64 ".%u", event_names[e.type], names[e.a],
                  e.b ? names[e.b] : "", message_name(m->type),
                  m->type == PROTO_TOKENS ? m->tokens[0].counter : m->counter,
                  m->type == PROTO_TOKENS ? m->tokens[0].attempt : m->attempt);
    else
        world_say(w, "%s %s %u", event_names[e.type], names[e.a], e.b);
}

void world_do(struct world *w, struct event e)
{
    struct node *x = &w->nodes[e.a];
    struct msg m;
    w->steps++;
    if (w->trace)
        say_event(w, e);
    switch ((enum event_type)e.type) {
    case EV_PLACE:
        r_place(w);
        return;
    case EV_TO_R:
        queue_take(&w->control[e.a].to_r, &m);
        r_message(w, x, &m);
        return;
    case EV_R_DOWN:
        r_down(w, e.a);
        return;
    case EV_RELINK:
        r_up(w, e.a);
        return;
    case EV_REFUSED:
        r_refused(w, e.a);
        return;
    case EV_TO_W:
        queue_take(&w->control[e.a].to_w, &m);
        node_message(w, x, &m);
        break;
    case EV_W_DOWN:
        node_down(w, x);
        break;
    case EV_TO_PEER:
        queue_take(data_queue(w, e.a, e.b), &m);
        x = &w->nodes[e.b];
        p_message(w, x, &m);
        if (x->decode)
            d_message(w, x, &m);
        break;
    case EV_COMPUTE:
        p_compute(w, x);
        break;
    case EV_STEP:
        d_step(w, x);
        break;
    case EV_LAND:
        d_land(w, x, e.b, true, false);
        break;
    case EV_SENT:
        p_sent(w, x, e.b);
        break;
    case EV_NOTICE:
        node_notice(w, x, x->notices[0]);
        break;
    case EV_RESTART:
        node_start(w, x);
        break;
    case EV_CONTINUE:
        x->stopped = false;
        break;
    case EV_COPY:
        r_copy(w, e.a, e.b);
        return;
    case EV_TIME:
        pass_time(w);
        return;
    default:
        fault(w, e);
        break;
    }
    if (x->alive && !x->stopped && e.type != EV_CANCEL && e.type != EV_DEATH && e.type != EV_MOVE) {
        node_flush(w, x);
        if (w->steps % CHECK_EVERY == 0 || w->trace)
            node_check(w, x);
    }
}

/* ---- the end ---- */

static bool all_over(const struct world *w)
{
    for (uint32_t i = 0; i < w->s->n_seqs; i++) {
        if (!w->seqs[i].over)
            return false;
    }
    return true;
}

static bool all_idle(const struct world *w)
{
    for (uint32_t i = 0; i < NODES; i++) {
        if (exists(w, i) && !node_is_idle(&w->nodes[i]))
            return false;
    }
    return all_over(w);
}

static void say_what_is_left(struct world *w)
{
    for (uint32_t i = 0; i < w->s->n_seqs; i++) {
        const struct gen *g = &w->seqs[i].g;
        if (!w->seqs[i].over)
            world_fail(w, "sequence %u is not over after %d ms: attempt %u, %s, %u tokens", i,
                       SETTLE_MS, g->attempt, gen_state_name(g->state), g->n_emitted);
    }
    for (uint32_t i = 0; i < NODES; i++) {
        struct node *n = &w->nodes[i];
        if (!exists(w, i) || node_is_idle(n))
            continue;
        const char *what = "nothing", *state = "";
        LIST_FOR (it, &n->jobs) {
            what = seq_text(&container_of(it, struct job, node)->key);
            state = job_state_name(container_of(it, struct job, node)->state);
        }
        LIST_FOR (it, &n->tickets.all) {
            what = seq_text(&container_of(it, struct ticket, node)->key);
            state = ticket_state_name(container_of(it, struct ticket, node)->state);
        }
        world_fail(w, "%s is not free after %d ms: %u of %u blocks; %s %s",
                   node_name(w, n->instance), SETTLE_MS, kv_pool_free(n->pool),
                   kv_pool_size(n->pool), what, state);
    }
}

void world_settle(struct world *w)
{
    struct event list[EVENTS_MAX];
    uint64_t until = w->now + SETTLE_MS, most = w->steps + STEPS_MAX;
    w->settling = true;
    SAY(w, "no more faults");
    while (!w->broken) {
        uint32_t n = world_events(w, list);
        if (n == 0 && all_idle(w))
            return;
        if (n == 0 && (next_due(w) > until || w->now > until))
            break;
        if (w->steps > most) {
            world_fail(w, "no end after %d steps", STEPS_MAX);
            return;
        }
        world_do(w, n ? list[world_random(w) % n] : (struct event){EV_TIME, 0, 0});
    }
    say_what_is_left(w);
}

/* ---- runs ---- */

static struct world *the_world(void)
{
    static struct world *w;
    if (!w)
        w = calloc(1, sizeof *w);
    if (!w)
        abort();
    return w;
}

static bool finish_run(struct world *w, struct explore_stats *st)
{
    if (!w->broken)
        world_settle(w);
    st->runs++;
    st->steps += w->steps;
    st->messages += w->messages;
    for (uint32_t i = 0; i < w->s->n_seqs; i++) {
        st->failed += w->seqs[i].failed;
        st->retries += w->seqs[i].g.retries;
        st->adopted += w->seqs[i].g.adopted;
    }
    if (w->broken)
        memcpy(st->why, w->why, sizeof st->why);
    bool ok = !w->broken;
    w->broken = true; /* what closing does is nobody's mistake */
    world_close(w);
    return ok;
}

bool explore_seed(const struct scenario *s, uint64_t seed, enum mutant m, bool trace,
                  struct explore_stats *st)
{
    struct world *w = the_world();
    struct event list[EVENTS_MAX];
    w->trace = trace;
    w->sent = st->sent;
    w->reasons = st->reasons;
    world_open(w, s, hash_mix64(seed + 1), m);
    while (!w->broken && w->steps < STEPS_MAX) {
        uint64_t dice = world_random(w);
        uint32_t n = 0;
        if (dice % 100 < s->percent) {
            n = world_faults(w, list);
            st->faults += n > 0;
        } else if (dice % 100 >= 98 && next_due(w) <= w->now + 2 * LEASE_MS) {
            list[n++] = (struct event){EV_TIME, 0, 0};
        }
        if (n == 0)
            n = world_events(w, list);
        if (n == 0 && all_over(w))
            break;
        if (n == 0)
            list[n++] = (struct event){EV_TIME, 0, 0};
        world_do(w, list[(dice >> 32) % n]);
    }
    st->seed = seed;
    return finish_run(w, st);
}

/* What may be chosen at this point, the ordinary event first. */
static uint32_t choices(struct world *w, struct event *list)
{
    uint32_t n = world_events(w, list);
    if (n == 0 && !all_over(w))
        list[n++] = (struct event){EV_TIME, 0, 0};
    if (n > 0 && n < EVENTS_MAX / 2)
        n += world_faults(w, list + n);
    return n;
}

/* Follows path, then takes the ordinary events. options[i]: how many there were at step i. */
static bool follow(const struct scenario *s, const uint32_t *path, uint32_t n_path, enum mutant m,
                   bool trace, uint32_t *options, uint32_t *n_steps, struct explore_stats *st)
{
    struct world *w = the_world();
    struct event list[EVENTS_MAX];
    uint32_t step = 0;
    w->trace = trace;
    w->sent = st->sent;
    w->reasons = st->reasons;
    world_open(w, s, 1, m);
    while (!w->broken) {
        uint32_t n = choices(w, list);
        if (n == 0 || step == 512)
            break;
        uint32_t pick = step < n_path ? path[step] : 0;
        if (options)
            options[step] = n;
        step++;
        st->faults += list[pick].type >= EV_KILL;
        world_do(w, list[pick]);
    }
    if (n_steps)
        *n_steps = step;
    return finish_run(w, st);
}

bool explore_path(const struct scenario *s, const uint32_t *path, uint32_t n, enum mutant m,
                  bool trace, struct explore_stats *st)
{
    return follow(s, path, n, m, trace, NULL, NULL, st);
}

bool explore_all(const struct scenario *s, uint32_t deviations, uint64_t limit, enum mutant m,
                 struct explore_stats *st)
{
    uint32_t path[512] = {0}, options[512], n = 0, used = 0, n_steps;
    for (;;) {
        if (!follow(s, path, n, m, false, options, &n_steps, st)) {
            memcpy(st->path, path, sizeof path);
            st->n_path = n;
            return false;
        }
        if (limit && st->runs >= limit)
            return true;
        /* The next path: the last point at which another choice is left and allowed. */
        for (uint32_t i = n; i < n_steps; i++)
            path[i] = 0;
        uint32_t at = n_steps;
        while (at > 0) {
            at--;
            uint32_t spent = used - (path[at] > 0);
            if (path[at] + 1 < options[at] && spent < deviations) {
                used = spent + 1;
                path[at]++;
                break;
            }
            used = spent;
            path[at] = 0;
            if (at == 0)
                return true;
        }
        n = at + 1;
    }
}
