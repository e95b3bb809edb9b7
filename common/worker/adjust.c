/* adjust: see adjust.h.
 *
 * The changed ids are one list, as the sampler takes it, with a hash table of open addressing over
 * it. The list grows with the ids that the penalties look at: those of the answer, and those of the
 * prompt when there is a repetition penalty.
 *
 * A word of several tokens is banned by its last token, where the tokens before it have come. Only
 * the end of the answer matters for that, so the last tokens are kept, as many as the longest word
 * has. */
#include "common/worker/adjust.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"

struct adjust {
    const struct proto_job *job;
    uint32_t vocab, emitted;
    bool counts;                /* there are penalties */
    struct sample_adjust *list; /* [n] */
    uint32_t n, cap;
    uint32_t *slots;  /* [n_slots] index in list + 1; 0: free */
    uint32_t n_slots; /* a power of two, at least twice n */
    int32_t *tail;    /* [n_tail] the last tokens of the answer */
    uint32_t n_tail, tail_max;
    int32_t *banned;    /* room for all that can be banned at once */
    uint32_t *allowed;  /* bits of sampling.allowed, or NULL */
    uint32_t *combined; /* scratch as large, or NULL */
    uint32_t n_words;
};

static bool has_penalties(const struct proto_sampling *s)
{
    return s->presence != 0 || s->frequency != 0 || (s->repetition != 0 && s->repetition != 1);
}

bool adjust_wanted(const struct proto_job *j)
{
    const struct proto_sampling *s = &j->sampling;
    return has_penalties(s) || s->min_tokens || s->bias_ids.n || s->allowed.n || s->banned.n ||
           s->bad_words.n;
}

bool adjust_follows(const struct adjust *a)
{
    return a->counts || a->job->sampling.bad_words.n > 0;
}

/* ---- the list ---------------------------------------------------------------------------------
 */

static uint32_t slot_of(const struct adjust *a, int32_t id)
{
    uint32_t i = (uint32_t)id * 2654435761u & (a->n_slots - 1);
    while (a->slots[i] && a->list[a->slots[i] - 1].id != id)
        i = (i + 1) & (a->n_slots - 1);
    return i;
}

static int grow(struct adjust *a)
{
    uint32_t cap = a->cap ? a->cap * 2 : 64;
    struct sample_adjust *list = mem_resize(a->list, cap, sizeof *list);
    if (!list)
        return STATUS_NOMEM;
    a->list = list;
    uint32_t *slots = mem_array(2 * (size_t)cap, sizeof *slots);
    if (!slots)
        return STATUS_NOMEM;
    free(a->slots);
    a->slots = slots;
    a->cap = cap;
    a->n_slots = 2 * cap;
    for (uint32_t i = 0; i < a->n; i++)
        a->slots[slot_of(a, a->list[i].id)] = i + 1;
    return STATUS_OK;
}

/* The entry of an id, a new one if need be. */
static int entry(struct adjust *a, int32_t id, struct sample_adjust **out)
{
    if (a->n == a->cap)
        TRY(grow(a));
    uint32_t slot = slot_of(a, id);
    if (!a->slots[slot]) {
        a->list[a->n] = (struct sample_adjust){.id = id};
        a->slots[slot] = ++a->n;
    }
    *out = &a->list[a->slots[slot] - 1];
    return STATUS_OK;
}

static int add_bias(struct adjust *a, const struct proto_sampling *s)
{
    for (size_t i = 0; i < s->bias_ids.n; i++) {
        struct sample_adjust *e;
        float bias;
        TRY(entry(a, s->bias_ids.p[i], &e));
        memcpy(&bias, (const char *)s->bias.p + i * sizeof bias, sizeof bias);
        e->bias = bias;
    }
    return STATUS_OK;
}

static int add_prompt(struct adjust *a, const struct proto_ids *prompt)
{
    for (size_t i = 0; i < prompt->n; i++) {
        struct sample_adjust *e;
        TRY(entry(a, prompt->p[i], &e));
        e->seen = 1;
    }
    return STATUS_OK;
}

/* ---- words ------------------------------------------------------------------------------------
 */

static void push_tail(struct adjust *a, int32_t id)
{
    if (a->tail_max == 0)
        return;
    if (a->n_tail == a->tail_max)
        memmove(a->tail, a->tail + 1, --a->n_tail * sizeof *a->tail);
    a->tail[a->n_tail++] = id;
}

/* Appends the ids that would complete a word. */
static uint32_t ban_words(const struct adjust *a, int32_t *out)
{
    const struct proto_sampling *s = &a->job->sampling;
    uint32_t n = 0;
    for (size_t i = 0, at = 0; i < s->bad_word_sizes.n; at += (size_t)s->bad_word_sizes.p[i++]) {
        const int32_t *word = s->bad_words.p + at;
        uint32_t before = (uint32_t)s->bad_word_sizes.p[i] - 1;
        if (before <= a->n_tail &&
            memcmp(a->tail + a->n_tail - before, word, before * sizeof *word) == 0)
            out[n++] = word[before];
    }
    return n;
}

/* What is banned always, then the stop ids. */
static void set_banned(struct adjust *a)
{
    const struct proto_ids *always = &a->job->sampling.banned, *stops = &a->job->stop_ids;
    if (always->n)
        memcpy(a->banned, always->p, always->n * sizeof *a->banned);
    if (stops->n)
        memcpy(a->banned + always->n, stops->p, stops->n * sizeof *a->banned);
}

/* ---- life -------------------------------------------------------------------------------------
 */

static int prepare(struct adjust *a, const struct proto_job *j)
{
    const struct proto_sampling *s = &j->sampling;
    uint32_t longest = 1;
    for (size_t i = 0; i < s->bad_word_sizes.n; i++)
        longest =
            (uint32_t)s->bad_word_sizes.p[i] > longest ? (uint32_t)s->bad_word_sizes.p[i] : longest;
    a->tail_max = longest - 1;
    a->tail = mem_array(longest, sizeof *a->tail);
    a->banned = mem_array(s->bad_word_sizes.n + s->banned.n + j->stop_ids.n + 1, sizeof *a->banned);
    if (!a->tail || !a->banned)
        return STATUS_NOMEM;
    set_banned(a);
    TRY(grow(a));
    TRY(add_bias(a, s));
    if (s->repetition != 0 && s->repetition != 1)
        TRY(add_prompt(a, &j->prompt));
    if (s->allowed.n) {
        a->allowed = mem_array(a->n_words, sizeof *a->allowed);
        a->combined = mem_array(a->n_words, sizeof *a->combined);
        if (!a->allowed || !a->combined)
            return STATUS_NOMEM;
        for (size_t i = 0; i < s->allowed.n; i++)
            a->allowed[s->allowed.p[i] / 32] |= 1u << s->allowed.p[i] % 32;
    }
    for (size_t i = 0; i < j->emitted.n; i++)
        TRY(adjust_feed(a, j->emitted.p[i]));
    return STATUS_OK;
}

int adjust_create(const struct proto_job *j, uint32_t vocab, struct adjust **out)
{
    struct adjust *a = mem_array(1, sizeof *a);
    if (!a)
        return STATUS_NOMEM;
    a->job = j;
    a->vocab = vocab;
    a->n_words = vocab / 32 + 1;
    a->counts = has_penalties(&j->sampling);
    int rc = prepare(a, j);
    if (rc != STATUS_OK) {
        adjust_destroy(a);
        return rc;
    }
    *out = a;
    return STATUS_OK;
}

void adjust_destroy(struct adjust *a)
{
    if (!a)
        return;
    free(a->list);
    free(a->slots);
    free(a->tail);
    free(a->banned);
    free(a->allowed);
    free(a->combined);
    free(a);
}

int adjust_feed(struct adjust *a, int32_t id)
{
    a->emitted++;
    push_tail(a, id);
    if (!a->counts)
        return STATUS_OK;
    struct sample_adjust *e;
    TRY(entry(a, id, &e));
    e->count++;
    e->seen = 1;
    return STATUS_OK;
}

/* ---- rows -------------------------------------------------------------------------------------
 */

static void clear_ids(uint32_t *mask, uint32_t n_words, const int32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if ((uint32_t)ids[i] / 32 < n_words)
            mask[ids[i] / 32] &= ~(1u << ids[i] % 32);
    }
}

static bool any(const uint32_t *mask, uint32_t n_words)
{
    uint32_t all = 0;
    for (uint32_t i = 0; i < n_words; i++)
        all |= mask[i];
    return all != 0;
}

void adjust_row(struct adjust *a, uint32_t ahead, struct sample_params *p)
{
    const struct proto_job *j = a->job;
    const struct proto_sampling *s = &j->sampling;
    bool stays = j->ignore_eos || a->emitted + ahead < s->min_tokens;
    uint32_t n = (uint32_t)(s->banned.n + (stays ? j->stop_ids.n : 0));
    p->presence = s->presence;
    p->frequency = s->frequency;
    p->repetition = s->repetition == 1 ? 0 : s->repetition;
    p->adjust = a->list;
    p->n_adjust = a->n;
    if (s->bad_words.n) { /* else nothing is written here: another row may still be using it */
        set_banned(a);
        n += ban_words(a, a->banned + n);
    }
    p->banned = a->banned;
    p->n_banned = n;
    if (!a->allowed || p->allowed)
        return;
    p->allowed = a->allowed;
    memcpy(a->combined, a->allowed, a->n_words * sizeof *a->combined);
    clear_ids(a->combined, a->n_words, p->banned, n);
    if (!any(a->combined, a->n_words))
        p->n_banned = 0; /* what is allowed is all there is */
}

void adjust_mask(struct adjust *a, uint32_t *mask, uint32_t n_words, struct sample_params *p)
{
    uint32_t left = 0;
    for (uint32_t i = 0; i < n_words; i++) {
        uint32_t both = mask[i] & (a->allowed && i < a->n_words ? a->allowed[i] : ~0u);
        left |= both;
    }
    for (uint32_t i = 0; left && a->allowed && i < n_words && i < a->n_words; i++)
        mask[i] &= a->allowed[i];
    uint32_t kept = 0, n_banned = p->n_banned;
    for (uint32_t i = 0; i < n_words; i++)
        kept += (uint32_t)__builtin_popcount(mask[i]);
    for (uint32_t i = 0; i < n_banned; i++) {
        uint32_t id = (uint32_t)p->banned[i];
        bool again = false; /* the same id twice */
        for (uint32_t k = 0; k < i && !again; k++)
            again = p->banned[k] == p->banned[i];
        kept -= !again && id / 32 < n_words && (mask[id / 32] >> id % 32 & 1);
    }
    if (kept == 0)
        p->n_banned = 0;
}
