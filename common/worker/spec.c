/* spec: jobs copied, checked, and asked; see spec.h. Pure: no clock, no I/O. */
#include "common/worker/spec.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

struct proto_request seq_request(const struct seq_key *k)
{
    return (struct proto_request){
        .router = k->router, .counter = k->counter, .attempt = k->attempt};
}

const char *seq_text(const struct seq_key *k)
{
    static _Thread_local char ring[4][64];
    static _Thread_local unsigned next;
    char *s = ring[next++ % 4];
    snprintf(s, sizeof ring[0], "%08x#%llu.%u.%u", (unsigned)(k->router >> 32),
             (unsigned long long)k->counter, k->attempt, k->choice);
    return s;
}

static bool ids_in_range(const struct proto_ids *ids, uint32_t vocab)
{
    for (size_t i = 0; i < ids->n; i++) {
        if (ids->p[i] < 0 || (uint32_t)ids->p[i] >= vocab)
            return false;
    }
    return true;
}

static bool within(float x, float lo, float hi)
{
    return x >= lo && x <= hi; /* not a number is not */
}

static bool sampling_ok(const struct proto_sampling *s)
{
    return within(s->temperature, 0, FLT_MAX) && within(s->top_p, 0, 1) && within(s->min_p, 0, 1) &&
           within(s->presence, -2, 2) && within(s->frequency, -2, 2) &&
           within(s->repetition, 0, FLT_MAX);
}

/* Lists of ids, and what belongs to each of them. */
static bool lists_ok(const struct proto_sampling *s, uint32_t vocab)
{
    uint64_t total = 0;
    if (!ids_in_range(&s->bias_ids, vocab) || !ids_in_range(&s->allowed, vocab) ||
        !ids_in_range(&s->banned, vocab) || !ids_in_range(&s->bad_words, vocab) ||
        s->bias.n != s->bias_ids.n * sizeof(float))
        return false;
    for (size_t i = 0; i < s->bias_ids.n; i++) {
        float bias;
        memcpy(&bias, (const char *)s->bias.p + i * sizeof bias, sizeof bias);
        if (!isfinite(bias))
            return false;
    }
    for (size_t i = 0; i < s->bad_word_sizes.n; i++) {
        if (s->bad_word_sizes.p[i] <= 0)
            return false;
        total += (uint64_t)s->bad_word_sizes.p[i];
    }
    return total == s->bad_words.n;
}

/* Texts of a budget that can be used: C strings, and the closing tag and what is forced not empty.
 */
static bool budget_ok(const struct proto_job *j)
{
    const struct proto_bytes *const all[] = {&j->think_open, &j->think_close, &j->think_breaks,
                                             &j->think_force};
    for (size_t i = 0; i < 4; i++) {
        if (all[i]->n && memchr(all[i]->p, 0, all[i]->n))
            return false;
    }
    return j->think_open.n <= MARKS_LEN && j->think_close.n <= MARKS_LEN &&
           j->think_breaks.n <= MARKS_LEN && j->think_close.n && j->think_force.n;
}

enum proto_reason spec_check(const struct proto_job *j, const struct spec_limits *l, char *why,
                             size_t n)
{
    const char *bad = NULL;
    size_t total = j->prompt.n + j->emitted.n;
    if (j->prompt.n == 0)
        bad = "the prompt is empty";
    else if (j->prompt.n > l->context || total > l->context)
        bad = "prompt and answer are longer than the context";
    else if (!ids_in_range(&j->prompt, l->vocab) || !ids_in_range(&j->emitted, l->vocab) ||
             !ids_in_range(&j->stop_ids, l->vocab))
        bad = "a token id is outside of the vocabulary";
    else if (j->max_tokens <= j->emitted.n && !(j->score_prompt && j->max_tokens == 0))
        bad = "max_tokens is used up already";
    else if (j->top_logprobs > SAMPLE_TOP_MAX || j->score_top > SAMPLE_TOP_MAX)
        bad = "too many alternatives asked for";
    else if (j->n_ids > l->vocab)
        bad = "n_ids is larger than the vocabulary";
    else if (!sampling_ok(&j->sampling))
        bad = "a sampling parameter is out of range";
    else if (!lists_ok(&j->sampling, l->vocab))
        bad = "ids of a sampling parameter are out of range, or lists do not match";
    else if (j->think_limit && !budget_ok(j))
        bad = "the budget of thinking has no usable tags";
    if (!bad)
        return PROTO_REASON_NONE;
    snprintf(why, n, "%s", bad);
    return PROTO_REASON_INVALID;
}

static bool copy_ids(struct arena *a, const struct proto_ids *from, struct proto_ids *to)
{
    int32_t *p = arena_alloc(a, from->n * sizeof *p + 1);
    if (!p)
        return false;
    if (from->n)
        memcpy(p, from->p, from->n * sizeof *p);
    *to = (struct proto_ids){p, from->n};
    return true;
}

static bool copy_text(struct arena *a, const struct proto_bytes *from, struct proto_bytes *to)
{
    char *p = arena_strndup(a, from->n ? from->p : "", from->n);
    *to = (struct proto_bytes){p, from->n};
    return p != NULL;
}

static bool copy_sampling(struct arena *a, const struct proto_sampling *from,
                          struct proto_sampling *to)
{
    if (!copy_ids(a, &from->bias_ids, &to->bias_ids) ||
        !copy_ids(a, &from->allowed, &to->allowed) || !copy_ids(a, &from->banned, &to->banned) ||
        !copy_ids(a, &from->bad_words, &to->bad_words) ||
        !copy_ids(a, &from->bad_word_sizes, &to->bad_word_sizes))
        return false;
    to->bias.p = arena_alloc(a, from->bias.n + 1);
    if (to->bias.p && from->bias.n)
        memcpy((void *)to->bias.p, from->bias.p, from->bias.n);
    return to->bias.p != NULL;
}

int spec_copy(struct spec *s, const struct proto_job *j)
{
    arena_init(&s->arena, 0);
    s->job = *j;
    if (!copy_text(&s->arena, &j->salt, &s->job.salt) ||
        !copy_text(&s->arena, &j->grammar, &s->job.grammar) ||
        !copy_text(&s->arena, &j->trace, &s->job.trace) ||
        !copy_text(&s->arena, &j->think_open, &s->job.think_open) ||
        !copy_text(&s->arena, &j->think_close, &s->job.think_close) ||
        !copy_text(&s->arena, &j->think_breaks, &s->job.think_breaks) ||
        !copy_text(&s->arena, &j->think_force, &s->job.think_force) ||
        !copy_ids(&s->arena, &j->prompt, &s->job.prompt) ||
        !copy_ids(&s->arena, &j->emitted, &s->job.emitted) ||
        !copy_ids(&s->arena, &j->stop_ids, &s->job.stop_ids) ||
        !copy_sampling(&s->arena, &j->sampling, &s->job.sampling)) {
        arena_fini(&s->arena);
        return STATUS_NOMEM;
    }
    return STATUS_OK;
}

void spec_fini(struct spec *s)
{
    arena_fini(&s->arena);
}

struct sample_params spec_sampling(const struct proto_job *j, uint32_t vocab)
{
    return (struct sample_params){.temperature = j->sampling.temperature,
                                  .top_p = j->sampling.top_p > 0 ? j->sampling.top_p : 1,
                                  .top_k = j->sampling.top_k,
                                  .min_p = j->sampling.min_p,
                                  .seed = j->sampling.seed,
                                  .n_top = (uint8_t)j->top_logprobs,
                                  .want_logprob = j->logprobs,
                                  .n_ids = j->n_ids ? j->n_ids : vocab,
                                  .banned = j->ignore_eos ? j->stop_ids.p : NULL,
                                  .n_banned = j->ignore_eos ? (uint32_t)j->stop_ids.n : 0};
}

enum proto_finish spec_finish(const struct proto_job *j, int32_t token, uint32_t emitted,
                              uint32_t total, uint32_t context)
{
    for (size_t i = 0; i < j->stop_ids.n && !j->ignore_eos; i++) {
        if (j->stop_ids.p[i] == token)
            return PROTO_FINISH_STOP;
    }
    return emitted >= j->max_tokens || total >= context ? PROTO_FINISH_LENGTH : PROTO_FINISH_NONE;
}

void spec_token(const struct proto_job *j, const struct sample_result *r, struct proto_top *top,
                struct proto_token *out)
{
    out->token = r->token;
    out->logprob = j->logprobs || j->top_logprobs ? r->logprob : 0;
    out->n_top = j->top_logprobs ? r->n_top : 0;
    out->top = out->n_top ? top : NULL;
    for (uint32_t i = 0; i < out->n_top; i++)
        top[i] = (struct proto_top){.id = r->top_id[i], .logprob = r->top_logprob[i]};
}

int spec_budget_begin(const struct proto_job *j, const struct tokenizer *t, struct budget **out)
{
    const struct budget_spec spec = {.limit = j->think_limit - 1,
                                     .start = (enum reasoning_start)j->think_start,
                                     .open = j->think_open.p,
                                     .close = j->think_close.p,
                                     .breaks = j->think_breaks.p,
                                     .force = j->think_force.p};
    return budget_create(t, &spec, out);
}

int spec_budget(const struct proto_job *j, const struct tokenizer *t, struct budget **out)
{
    struct budget *b;
    TRY(spec_budget_begin(j, t, &b));
    for (size_t i = 0; i < j->emitted.n; i++) {
        int rc = budget_feed(b, j->emitted.p[i]);
        if (rc != STATUS_OK) {
            budget_destroy(b);
            return rc;
        }
    }
    *out = b;
    return STATUS_OK;
}
