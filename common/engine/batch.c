/* batch: which rows go into the next step (batch.h says by what rules).
 *
 * Both choices are "the k first of n under a strict total order" (arrivals are unique), found with
 * a heap of k indices inside the plan's own arrays: O(n log k), no memory, no change to the state.
 * Turns are unique numbers rather than "the step of the last row": with ties, whoever wins them
 * gets more than its share.
 *
 * Why the oldest prompt's share is a share of tokens and not an age: an age would be state that
 * the worker has to keep and that a test has to reach; a share makes the bound plain. A prompt of
 * n tokens that has become the oldest is done after at most 4 n / prompt_tokens steps, whatever
 * arrives. */
#include "common/engine/batch.h"

#include <stdbool.h>

#include "common/base/assert.h"
#include "common/base/mem.h"

#define OLDEST_SHARE 4 /* the oldest prompt's part of prompt_tokens: a quarter */

typedef bool (*before_fn)(const struct batch_state *s, uint32_t a, uint32_t b);

static bool running_before(const struct batch_state *s, uint32_t a, uint32_t b)
{
    const struct batch_running *x = &s->running[a], *y = &s->running[b];
    return x->turn != y->turn ? x->turn < y->turn : x->arrival < y->arrival;
}

static bool prompt_before(const struct batch_state *s, uint32_t a, uint32_t b)
{
    const struct batch_prompt *x = &s->prompts[a], *y = &s->prompts[b];
    if (x->priority != y->priority)
        return x->priority > y->priority;
    uint32_t left_x = x->length - x->done, left_y = y->length - y->done;
    return left_x != left_y ? left_x < left_y : x->arrival < y->arrival;
}

/* A max-heap of indices: h[0] comes last. The stride lets it live in any array of the plan. */
struct heap {
    const struct batch_state *s;
    before_fn before;
    char *base;
    size_t stride;
    uint32_t n;
};

static uint32_t *heap_at(const struct heap *h, uint32_t i)
{
    return (uint32_t *)(void *)(h->base + i * h->stride);
}

static void heap_sink(const struct heap *h, uint32_t i)
{
    for (;;) {
        uint32_t last = i;
        for (uint32_t c = 2 * i + 1; c <= 2 * i + 2 && c < h->n; c++)
            if (h->before(h->s, *heap_at(h, last), *heap_at(h, c)))
                last = c;
        if (last == i)
            return;
        uint32_t t = *heap_at(h, i);
        *heap_at(h, i) = *heap_at(h, last);
        *heap_at(h, last) = t;
        i = last;
    }
}

/* The k first of 0..n-1 into the heap; k <= n. */
static void heap_select(struct heap *h, uint32_t n, uint32_t k)
{
    h->n = k;
    for (uint32_t i = 0; i < k; i++)
        *heap_at(h, i) = i;
    for (uint32_t i = k / 2; i-- > 0;)
        heap_sink(h, i);
    for (uint32_t i = k; k > 0 && i < n; i++) {
        if (h->before(h->s, i, *heap_at(h, 0))) {
            *heap_at(h, 0) = i;
            heap_sink(h, 0);
        }
    }
}

/* Turns the heap into an ascending list. */
static void heap_sort(struct heap *h)
{
    while (h->n > 1) {
        uint32_t t = *heap_at(h, 0);
        *heap_at(h, 0) = *heap_at(h, h->n - 1);
        *heap_at(h, h->n - 1) = t;
        h->n--;
        heap_sink(h, 0);
    }
}

int batch_plan_init(struct batch_plan *p, uint32_t max_rows)
{
    *p = (struct batch_plan){.cap = max_rows};
    p->prompts = mem_array(max_rows, sizeof *p->prompts);
    p->running = mem_array(max_rows, sizeof *p->running);
    if (p->prompts == NULL || p->running == NULL) {
        batch_plan_fini(p);
        return STATUS_NOMEM;
    }
    return 0;
}

void batch_plan_fini(struct batch_plan *p)
{
    free(p->prompts);
    free(p->running);
    *p = (struct batch_plan){0};
}

static void plan_running(const struct batch_state *s, uint32_t rows, struct batch_plan *p)
{
    if (s->n_running <= rows) {
        for (uint32_t i = 0; i < s->n_running; i++)
            p->running[i] = i;
        p->n_running = s->n_running;
        return;
    }
    struct heap h = {
        .s = s, .before = running_before, .base = (char *)p->running, .stride = sizeof *p->running};
    heap_select(&h, s->n_running, rows);
    heap_sort(&h);
    p->n_running = rows;
}

static uint32_t prompt_oldest(const struct batch_state *s)
{
    uint32_t oldest = 0;
    for (uint32_t i = 1; i < s->n_prompts; i++)
        if (s->prompts[i].arrival < s->prompts[oldest].arrival)
            oldest = i;
    return oldest;
}

/* Tokens of the prompt that fit into room: all that are left, or up to a block's edge. */
static uint32_t prompt_chunk(const struct batch_state *s, uint32_t i, uint32_t room)
{
    const struct batch_prompt *q = &s->prompts[i];
    ASSERT(q->done < q->length);
    if (q->length - q->done <= room)
        return q->length - q->done;
    uint32_t end = (q->done + room) / s->block_size * s->block_size;
    return end > q->done ? end - q->done : 0;
}

static void plan_prompts(const struct batch_state *s, uint32_t rows, struct batch_plan *p)
{
    uint32_t room = s->prompt_tokens < s->block_size ? s->block_size : s->prompt_tokens;
    if (room > s->max_tokens - p->n_running)
        room = s->max_tokens - p->n_running;
    uint32_t n = s->n_prompts < rows ? s->n_prompts : rows;
    struct heap h = {.s = s,
                     .before = prompt_before,
                     .base = (char *)&p->prompts[0].index,
                     .stride = sizeof *p->prompts};
    heap_select(&h, s->n_prompts, n);
    heap_sort(&h);
    uint32_t oldest = prompt_oldest(s), at = 0;
    while (at < n && p->prompts[at].index != oldest)
        at++;
    if (at == n) /* it has a row whatever its rank */
        p->prompts[--at].index = oldest;
    uint32_t share = prompt_chunk(s, oldest, room / OLDEST_SHARE);
    if (share == 0) /* a quarter is less than a block */
        share = prompt_chunk(s, oldest, s->block_size);
    uint32_t left = room - share, finished = 0, kept = 0;
    bool open = true; /* until the first prompt that cannot be finished in this step */
    for (uint32_t i = 0; i < n; i++) {
        uint32_t index = p->prompts[i].index, own = i == at ? share : 0;
        uint32_t want = s->prompts[index].length - s->prompts[index].done;
        uint32_t limit = own + (open ? left : 0), chunk;
        if (want <= limit) {
            chunk = want;
            finished++;
        } else {
            chunk = finished > 0 ? own : prompt_chunk(s, index, limit);
            open = false;
        }
        if (chunk == 0)
            continue;
        left -= chunk - own;
        p->prompts[kept++] = (struct batch_share){index, chunk};
        p->n_tokens += chunk;
    }
    p->n_prompts = kept;
}

void batch_plan(const struct batch_state *s, struct batch_plan *p)
{
    ASSERT(s->max_rows >= 1 && s->max_rows <= p->cap && s->block_size > 0);
    ASSERT(s->max_tokens >= s->max_rows && s->max_tokens - s->max_rows >= s->block_size);
    p->n_prompts = p->n_running = p->n_tokens = 0;
    bool prompts = s->n_prompts > 0 && s->prompt_tokens > 0;
    plan_running(s, s->max_rows - (prompts && s->max_rows > 1), p);
    p->n_tokens = p->n_running;
    uint32_t rows = s->max_rows - p->n_running;
    if (s->max_prompts > 0 && rows > s->max_prompts)
        rows = s->max_prompts;
    if (prompts && rows > 0)
        plan_prompts(s, rows, p);
}
