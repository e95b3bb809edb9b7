/* guide: see guide.h. A forced token is a mask with one bit; only the next token can have one, so
 * one mask is enough, and a row ahead of another waits rather than have its own. The same goes for
 * a grammar: what may come depends on the token before. */
#include "common/worker/guide.h"

#include <stdlib.h>
#include <string.h>

#include "common/worker/adjust.h"

struct guide {
    const struct proto_job *job;
    struct adjust *adjust;   /* NULL: logits are as they are */
    struct budget *budget;   /* NULL: thinking is not watched */
    struct grammar_use *use; /* NULL: no grammar */
    bool writing;            /* the next token is the grammar's */
    uint32_t from;           /* emitted tokens before this are not */
    bool begun;              /* state is valid */
    struct tokenmask_state state;
    const char *error;
    uint32_t n_words;
    uint32_t mask[]; /* [n_words] */
};

/* The budget as it stands after the emitted tokens before the grammar's first. */
static int open_budget(struct guide *g, const struct tokenizer *t)
{
    const struct proto_job *j = g->job;
    if (j->think_limit == 0) {
        g->writing = true;
        return STATUS_OK;
    }
    if (!t)
        return STATUS_UNSUPPORTED;
    if (!g->use)
        return spec_budget(j, t, &g->budget);
    TRY(spec_budget_begin(j, t, &g->budget));
    g->writing = !budget_thinking(g->budget);
    while (!g->writing && g->from < j->emitted.n) {
        TRY(budget_feed(g->budget, j->emitted.p[g->from++]));
        g->writing = !budget_thinking(g->budget);
    }
    return STATUS_OK;
}

int guide_create(const struct proto_job *j, const struct tokenizer *t, uint32_t vocab,
                 struct grammars *gs, struct guide **out)
{
    *out = NULL;
    bool adjusts = adjust_wanted(j);
    if (j->think_limit == 0 && j->grammar_kind == GRAMMAR_NONE && !adjusts)
        return STATUS_OK;
    uint32_t n = vocab / 32 + 1;
    struct guide *g = mem_array(1, sizeof *g + n * sizeof g->mask[0]);
    if (!g)
        return STATUS_NOMEM;
    g->job = j;
    g->n_words = n;
    int rc = STATUS_OK;
    if (j->grammar_kind != GRAMMAR_NONE) {
        g->use = grammars_get(gs, (enum grammar_kind)j->grammar_kind, j->grammar.p, j->grammar.n,
                              j->grammar_compact);
        rc = g->use ? STATUS_OK : STATUS_NOMEM;
    }
    if (rc == STATUS_OK)
        rc = open_budget(g, t);
    if (rc == STATUS_OK && adjusts)
        rc = adjust_create(j, vocab, &g->adjust);
    if (rc != STATUS_OK) {
        guide_destroy(g);
        return rc;
    }
    *out = g;
    return STATUS_OK;
}

void guide_destroy(struct guide *g)
{
    if (!g)
        return;
    if (g->begun)
        tokenmask_state_fini(&g->state);
    grammars_put(g->use);
    budget_destroy(g->budget);
    adjust_destroy(g->adjust);
    free(g);
}

static bool is_stop(const struct proto_job *j, int32_t id)
{
    for (size_t i = 0; i < j->stop_ids.n; i++) {
        if (j->stop_ids.p[i] == id)
            return true;
    }
    return false;
}

/* A token of the grammar; the last one may be a stop id. */
static int follow(struct guide *g, int32_t id)
{
    int rc = tokenmask_advance(&g->state, id);
    if (rc == STATUS_INVALID && is_stop(g->job, id) && tokenmask_done(&g->state))
        return STATUS_OK;
    if (rc != STATUS_OK)
        g->error =
            rc == STATUS_INVALID ? "a token that the grammar does not allow" : status_text(rc);
    return rc;
}

bool guide_ready(struct guide *g)
{
    if (!g || !g->use || g->begun || g->error)
        return true;
    switch (grammars_state(g->use)) {
    case GRAMMARS_PENDING:
        return false;
    case GRAMMARS_FAILED:
        g->error = grammars_error(g->use);
        return true;
    case GRAMMARS_READY:
        break;
    }
    tokenmask_state_init(&g->state, grammars_mask(g->use));
    g->begun = true;
    for (size_t i = g->from; i < g->job->emitted.n; i++) {
        if (follow(g, g->job->emitted.p[i]) != STATUS_OK)
            break;
    }
    return true;
}

const char *guide_error(const struct guide *g)
{
    return g ? g->error : NULL;
}

/* A forced token: nothing else counts. */
static bool allow_one(struct guide *g, int32_t id, struct sample_params *p)
{
    if ((uint32_t)id / 32 >= g->n_words)
        return true; /* a token that the model does not have */
    memset(g->mask, 0, g->n_words * sizeof g->mask[0]);
    g->mask[id / 32] = 1u << id % 32;
    p->allowed = g->mask;
    p->n_banned = 0;
    return true;
}

/* The grammar's mask for the next token. */
static void fill_mask(struct guide *g, struct sample_params *p)
{
    const struct proto_job *j = g->job;
    int rc = tokenmask_fill(&g->state, j->stop_ids.p, j->ignore_eos ? 0 : j->stop_ids.n, g->mask,
                            g->n_words);
    if (rc != STATUS_OK) {
        g->error = status_text(rc);
        return;
    }
    if (g->adjust)
        adjust_mask(g->adjust, g->mask, g->n_words, p);
    p->allowed = g->mask;
}

bool guide_row(struct guide *g, uint32_t ahead, struct sample_params *p)
{
    if (!g)
        return true;
    bool writes = g->use && g->writing; /* the next token is the grammar's */
    int32_t id = g->budget && !writes ? budget_next(g->budget, ahead) : BUDGET_ANY;
    bool waits = g->use || id != BUDGET_ANY || (g->adjust && adjust_follows(g->adjust));
    if (waits && (ahead || (id != BUDGET_ANY && id < 0) || !guide_ready(g)))
        return false;
    p->allowed = NULL;
    if (g->adjust)
        adjust_row(g->adjust, ahead, p);
    if (id != BUDGET_ANY)
        return allow_one(g, id, p);
    if (writes && !g->error) /* after an error the token is thrown away by guide_feed */
        fill_mask(g, p);
    return true;
}

int guide_feed(struct guide *g, int32_t id)
{
    if (!g)
        return STATUS_OK;
    if (g->error)
        return STATUS_INVALID;
    if (g->adjust)
        TRY(adjust_feed(g->adjust, id));
    if (!g->use)
        return g->budget ? budget_feed(g->budget, id) : STATUS_OK;
    if (g->writing)
        return follow(g, id);
    TRY(budget_feed(g->budget, id));
    g->writing = !budget_thinking(g->budget);
    return STATUS_OK;
}

bool guide_ended(const struct guide *g)
{
    return g && g->begun && g->writing && !g->error && tokenmask_ended(&g->state);
}
