/* router_side: what lies around gen.c, as relay.c and workers.c have it, and the owner of the
 * sequences, who checks every token. */
#include "tests/protocol/world.h"

static void turn(struct world *w, struct gen_turn *t)
{
    gen_turn_init(t, w->now, world_random(w));
}

static uint64_t classes(const struct world *w)
{
    return w->s->mixed ? 2 : 1;
}

/* ---- the owner ---- */

/* Tokens once, in order, and each one that follows from all before it. */
static void give_token(struct world *w, struct seq *s, const struct proto_token *t)
{
    int32_t ids[IDS];
    bool right = false;
    uint32_t n = s->n_prompt + s->given;
    if (s->over || t->position != s->given || s->given >= s->max_tokens) {
        world_fail(w, "sequence %u: token %d at position %u after %u tokens%s",
                   (unsigned)(s - w->seqs), t->token, t->position, s->given,
                   s->over ? ", after its end" : "");
        return;
    }
    memcpy(ids, s->prompt, s->n_prompt * sizeof *ids);
    memcpy(ids + s->n_prompt, s->g.emitted, s->given * sizeof *ids);
    for (uint64_t c = 0; c < classes(w); c++)
        right |= t->token == token_of(ids, n, c);
    if (!right)
        world_fail(w, "sequence %u: wrong token %d at position %u", (unsigned)(s - w->seqs),
                   t->token, t->position);
    s->given++;
}

static void give_end(struct world *w, struct seq *s, const struct gen_action *a, const char *why)
{
    unsigned i = (unsigned)(s - w->seqs);
    if (s->over) {
        world_fail(w, "sequence %u: two outcomes", i);
        return;
    }
    s->over = true;
    if (a->type == GEN_GIVE_FINISH) {
        if (a->finish != PROTO_FINISH_LENGTH || s->given != s->max_tokens)
            world_fail(w, "sequence %u: finish %d after %u of %u tokens", i, (int)a->finish,
                       s->given, s->max_tokens);
        return;
    }
    s->failed = true; /* only where a rule says so */
    bool two_deaths = a->status == STATUS_INTERNAL && w->kills >= 2;
    bool nobody = a->status == STATUS_UNAVAILABLE && (w->kills > 0 || w->stops > 0);
    if (!two_deaths && !nobody)
        world_fail(w, "sequence %u failed: %s: %s", i, status_name(a->status), why);
}

/* ---- actions ---- */

static bool is_up(const struct world *w, uint64_t instance)
{
    for (uint32_t i = 0; i < NODES; i++) {
        if (w->views[i].instance == instance)
            return w->views[i].up;
    }
    return false;
}

static bool send_attempt(struct world *w, const struct seq *s, const struct gen_action *a)
{
    const struct gen *g = &s->g;
    struct msg m = {.type = a->type == GEN_SEND_PREFILL    ? PROTO_PREFILL
                            : a->type == GEN_SEND_REDIRECT ? PROTO_REDIRECT
                                                           : PROTO_MOVE,
                    .copy = a->type == GEN_SEND_COPY,
                    .instance = a->decode,
                    .counter = g->counter,
                    .attempt = a->attempt,
                    .old_attempt = a->old_attempt,
                    .max_tokens = s->max_tokens,
                    .n = g->n_emitted};
    if (g->n_emitted)
        memcpy(m.ids, g->emitted, g->n_emitted * sizeof *m.ids);
    if (!is_up(w, a->worker))
        return false;
    send_to_worker(w, a->worker, &m);
    return true;
}

static void run(struct world *w, struct seq *s, const struct gen_turn *t)
{
    if (t->diverged)
        world_fail(w, "sequence %u: a token came again with another id", (unsigned)(s - w->seqs));
    for (uint32_t i = 0; i < t->n; i++) {
        const struct gen_action *a = &t->actions[i];
        struct msg m = {.type = PROTO_CANCEL, .counter = s->g.counter, .attempt = a->attempt};
        switch (a->type) {
        case GEN_SEND_PREFILL:
        case GEN_SEND_REDIRECT:
        case GEN_SEND_MOVE:
        case GEN_SEND_COPY:
            SAY(w, "  seq %u: attempt %u to %s and %s%s", (unsigned)(s - w->seqs), a->attempt,
                node_name(w, a->worker), node_name(w, a->decode),
                a->type == GEN_SEND_REDIRECT ? " (REDIRECT)"
                : a->type == GEN_SEND_MOVE   ? " (MOVE)"
                : a->type == GEN_SEND_COPY   ? " (COPY)"
                                             : "");
            if (!send_attempt(w, s, a)) {
                struct gen_turn u;
                turn(w, &u);
                gen_unsent(&s->g, STATUS_CLOSED, &u);
                run(w, s, &u);
                return;
            }
            break;
        case GEN_SEND_CANCEL:
            SAY(w, "  seq %u: CANCEL of attempt %u to %s", (unsigned)(s - w->seqs), a->attempt,
                node_name(w, a->worker));
            send_to_worker(w, a->worker, &m);
            break;
        case GEN_GIVE_SCORES:
            break;
        case GEN_GIVE_TOKEN:
            SAY(w, "  seq %u: token %d at %u", (unsigned)(s - w->seqs), a->token.token,
                a->token.position);
            give_token(w, s, &a->token);
            break;
        case GEN_GIVE_FINISH:
        case GEN_GIVE_FAILED:
            SAY(w, "  seq %u: %s %s", (unsigned)(s - w->seqs),
                a->type == GEN_GIVE_FINISH ? "finish" : "failed", t->why);
            give_end(w, s, a, t->why);
            break;
        }
    }
    if (s->g.state != GEN_DONE && gen_wake_ms(&s->g) > w->now + REQUEST_MS)
        world_fail(w, "sequence %u waits without a deadline", (unsigned)(s - w->seqs));
}

/* ---- workers ---- */

static void lose(struct world *w, uint64_t instance, enum gen_loss how)
{
    struct gen_turn t;
    for (uint32_t i = 0; i < w->s->n_seqs; i++) {
        turn(w, &t);
        gen_worker_lost(&w->seqs[i].g, instance, how, "lost", &t);
        run(w, &w->seqs[i], &t);
    }
}

static void gone(struct world *w, uint32_t node, enum gen_loss how)
{
    struct link_view *v = &w->views[node];
    uint64_t instance = v->instance;
    uint32_t under = 0;
    for (uint32_t i = 0; i < w->s->n_seqs; i++)
        under += gen_under(&w->seqs[i].g, instance);
    if (how == GEN_LOSS_DEAD && under == 1)
        how = GEN_LOSS_DEAD_ALONE;
    SAY(w, "  %s is %s", node_name(w, instance), how == GEN_LOSS_SUSPECT ? "not reached" : "dead");
    v->relinking = false;
    v->instance = 0;
    lose(w, instance, how);
}

void r_down(struct world *w, uint32_t node)
{
    struct link_view *v = &w->views[node];
    v->up = false;
    v->relinking = true;
    v->relink_until_ms = w->now + RELINK_MS;
}

void r_refused(struct world *w, uint32_t node)
{
    gone(w, node, GEN_LOSS_DEAD);
}

/* A new link; the worker hears of it before anything else that comes on it. */
void r_up(struct world *w, uint32_t node)
{
    struct link_view *v = &w->views[node];
    struct node *n = &w->nodes[node];
    struct control *c = &w->control[node];
    struct msg m = {.type = MSG_UP};
    bool back = v->relinking && v->instance == n->instance;
    if (v->relinking && !back)
        gone(w, node, GEN_LOSS_DEAD);
    c->whole = true;
    c->w_stale = n->linked;
    v->up = true;
    v->silent = v->relinking = false;
    v->instance = n->instance;
    queue_put(w, &c->to_w, &m);
    m.type = PROTO_RESUME;
    for (uint32_t i = 0; i < w->s->n_seqs && back; i++)
        m.n += gen_resume(&w->seqs[i].g, v->instance, &m.pos[m.n]);
    SAY(w, "  RESUME names %u", m.n);
    queue_put(w, &c->to_w, &m);
}

/* ---- messages ---- */

static void on_token(struct world *w, struct seq *s, uint64_t from, const struct proto_token *tok)
{
    struct gen_turn t;
    struct proto_token copy = *tok;
    if (w->mutant == MUTANT_STALE_ATTEMPT && copy.attempt < s->g.attempt && s->g.prefill) {
        copy.attempt = s->g.attempt;
        from = s->g.prefill;
    }
    if (w->mutant == MUTANT_MOVED_TWICE && !s->g.move_to && s->g.moves_failed &&
        copy.attempt == s->g.move_attempt) {
        copy.attempt = s->g.attempt;
        from = s->g.decode;
    }
    if (w->mutant == MUTANT_ACCEPT_DUPLICATE && copy.position < s->g.n_emitted)
        copy.position = s->g.n_emitted;
    turn(w, &t);
    gen_token(&s->g, from, &copy, &t);
    run(w, s, &t);
    while (s->g.n_gap > 0) {
        turn(w, &t);
        if (!gen_next(&s->g, &t))
            break;
        run(w, s, &t);
    }
}

void r_message(struct world *w, struct node *n, const struct msg *m)
{
    struct link_view *v = &w->views[n->index];
    struct gen_turn t;
    v->silent = false;
    if (m->type == PROTO_TOKENS) {
        struct msg ack = {.type = PROTO_ACK};
        for (uint32_t i = 0; i < m->n; i++) {
            const struct proto_token *tok = &m->tokens[i];
            struct seq *s = &w->seqs[tok->counter - 1];
            on_token(w, s, v->instance, tok);
            if (ack.n < SEQS && gen_ack(&s->g, tok, &ack.pos[ack.n]))
                ack.n++;
        }
        if (ack.n)
            send_to_worker(w, v->instance, &ack);
    } else if (m->type == PROTO_LOST && w->mutant != MUTANT_IGNORE_LOST) {
        struct seq *s = &w->seqs[m->counter - 1];
        struct proto_lost l = {
            .request = {ROUTER, m->counter, m->attempt}, .reason = m->reason, .parked = m->parked};
        turn(w, &t);
        gen_lost(&s->g, v->instance, "worker", &l, &t);
        run(w, s, &t);
    }
}

/* ---- placing and time ---- */

static uint32_t view_of(struct world *w, struct pick_worker *out)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < NODES; i++) {
        const struct link_view *v = &w->views[i];
        if (!v->up || v->silent)
            continue;
        out[n++] = (struct pick_worker){.alive = true,
                                        .usable = true,
                                        .decode = i >= 2,
                                        .numerics = w->nodes[i].numerics + 1,
                                        .instance = v->instance,
                                        .credits = 8,
                                        .kv_free = w->s->blocks,
                                        .kv_blocks = w->s->blocks,
                                        .kv_block_size = BLOCK,
                                        .context = CONTEXT};
    }
    for (uint32_t k = 0; k < w->s->n_seqs; k++) {
        for (uint32_t i = 0; i < n; i++)
            out[i].running +=
                w->seqs[k].g.prefill == out[i].instance || w->seqs[k].g.decode == out[i].instance;
    }
    return n;
}

static bool placeable(const struct world *w, const struct gen *g)
{
    return (g->state == GEN_WAITING || g->state == GEN_PARKED) && w->now >= g->retry_ms;
}

/* Whether placing would change something: workers of both kinds, and the one that holds the KV. */
bool r_can_place(const struct world *w)
{
    bool p = false, d = false;
    for (uint32_t i = 0; i < NODES; i++) {
        bool usable = w->views[i].up && !w->views[i].silent;
        if (i < 2)
            p |= usable;
        else
            d |= usable;
    }
    for (uint32_t i = 0; i < w->s->n_seqs; i++) {
        const struct gen *g = &w->seqs[i].g;
        if (!placeable(w, g))
            continue;
        if (g->state == GEN_WAITING && ((p && d) || w->now >= g->since_ms + WAIT_MS))
            return true;
        for (uint32_t k = 0; k < 2 && d && g->state == GEN_PARKED; k++) {
            if (w->views[k].up && !w->views[k].silent && w->views[k].instance == g->prefill)
                return true;
        }
    }
    return false;
}

void r_place(struct world *w)
{
    struct pick_worker view[NODES];
    struct gen_turn t;
    uint32_t n = view_of(w, view);
    for (uint32_t i = 0; i < w->s->n_seqs; i++) {
        turn(w, &t);
        gen_place(&w->seqs[i].g, view, n, &w->budget, &t);
        run(w, &w->seqs[i], &t);
    }
}

void r_tick(struct world *w)
{
    struct gen_turn t;
    for (uint32_t i = 0; i < NODES; i++) {
        struct link_view *v = &w->views[i];
        const struct node *n = &w->nodes[i];
        if (v->relinking && w->now >= v->relink_until_ms)
            gone(w, i, GEN_LOSS_SUSPECT);
        if (!v->up || !n->stopped || w->now < n->stopped_ms + STALL_MS)
            continue;
        if (!v->silent) {
            v->silent = true;
            SAY(w, "  %s is silent", node_name(w, v->instance));
            lose(w, v->instance, GEN_LOSS_SUSPECT);
        }
        if (w->now >= n->stopped_ms + 5 * STALL_MS) {
            net_cut(w, i);
            r_down(w, i);
        }
    }
    for (uint32_t i = 0; i < w->s->n_seqs; i++) {
        turn(w, &t);
        gen_tick(&w->seqs[i].g, &t);
        run(w, &w->seqs[i], &t);
    }
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t r_due(const struct world *w)
{
    uint64_t at = UINT64_MAX;
    for (uint32_t i = 0; i < NODES; i++) {
        const struct link_view *v = &w->views[i];
        const struct node *n = &w->nodes[i];
        if (v->relinking)
            at = earlier(at, v->relink_until_ms);
        if (v->up && n->stopped)
            at = earlier(at, n->stopped_ms + (v->silent ? 5 : 1) * STALL_MS);
    }
    for (uint32_t i = 0; i < w->s->n_seqs; i++) {
        const struct gen *g = &w->seqs[i].g;
        if (g->state == GEN_DONE)
            continue;
        at = earlier(at, gen_wake_ms(g));
        if ((g->state == GEN_WAITING || g->state == GEN_PARKED) && g->retry_ms > w->now)
            at = earlier(at, g->retry_ms);
    }
    return at;
}

bool r_can_move(const struct world *w, uint32_t seq, uint32_t node)
{
    const struct gen *g = &w->seqs[seq].g;
    const struct link_view *to = &w->views[node];
    return gen_can_move(g, w->now) && to->up && !to->silent && to->instance != g->decode;
}

/* To a worker of another class as well, which the real router does not: then every token that two
 * workers draw is two tokens. */
void r_move(struct world *w, uint32_t seq, uint32_t node)
{
    struct gen_turn t;
    turn(w, &t);
    gen_move(&w->seqs[seq].g, w->views[node].instance, &t);
    run(w, &w->seqs[seq], &t);
}

bool r_can_copy(const struct world *w, uint32_t seq, uint32_t node)
{
    const struct gen *g = &w->seqs[seq].g;
    const struct link_view *to = &w->views[node];
    return gen_can_copy(g, w->now) && to->up && !to->silent && to->instance != g->decode;
}

void r_copy(struct world *w, uint32_t seq, uint32_t node)
{
    struct gen_turn t;
    turn(w, &t);
    gen_copy(&w->seqs[seq].g, w->views[node].instance, &t);
    run(w, &w->seqs[seq], &t);
}

void r_cancel(struct world *w, uint32_t seq)
{
    struct gen_turn t;
    struct seq *s = &w->seqs[seq];
    turn(w, &t);
    gen_cancel(&s->g, &t);
    run(w, s, &t);
    s->over = s->canceled = true;
}

void r_death(struct world *w)
{
    w->router_dead = true;
    for (uint32_t i = 0; i < NODES; i++) {
        net_cut(w, i);
        w->views[i] = (struct link_view){0};
    }
    for (uint32_t i = 0; i < w->s->n_seqs; i++) {
        struct gen_turn t;
        turn(w, &t);
        gen_cancel(&w->seqs[i].g, &t); /* what it would send goes nowhere */
        w->seqs[i].over = w->seqs[i].canceled = true;
    }
}

void r_start(struct world *w)
{
    static const int32_t common[] = {11, 12, 13, 14, 15, 16, 17, 18};
    w->limits = (struct gen_limits){.request_timeout_ms = REQUEST_MS,
                                    .worker_wait_ms = WAIT_MS,
                                    .queue_timeout_ms = WAIT_MS,
                                    .stall_ms = STALL_MS,
                                    .park_ms = PARK_MS,
                                    .replica_tokens = 2};
    gen_budget_init(&w->budget, w->now);
    for (uint32_t i = 0; i < w->s->n_seqs; i++) {
        struct seq *s = &w->seqs[i];
        memset(s, 0, sizeof *s);
        s->open = true;
        s->n_prompt = w->s->prompt[i];
        s->max_tokens = w->s->answer[i];
        memcpy(s->prompt, common, s->n_prompt * sizeof *common);
        if (s->n_prompt > 2)
            s->prompt[s->n_prompt - 1] += (int32_t)(100 * i); /* they share what comes before */
        struct proto_job job = {.prompt = {s->prompt, s->n_prompt}, .max_tokens = s->max_tokens};
        gen_init(&s->g, &w->limits, i + 1, &job, w->now);
    }
}

void r_close(struct world *w)
{
    for (uint32_t i = 0; i < w->s->n_seqs; i++)
        gen_fini(&w->seqs[i].g);
}
