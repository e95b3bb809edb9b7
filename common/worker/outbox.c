/* outbox: tokens kept until acknowledged; see outbox.h.
 *
 * A stream holds a window of consecutive positions: tokens[0] is the first that is not
 * acknowledged. Streams live as long as their sequence or until their last token is acknowledged,
 * whichever is later; the owner lets go with stream_release or stream_drop. */
#include "common/worker/outbox.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"

void outbox_init(struct outbox *o)
{
    list_init(&o->streams);
    o->unsent = 0;
}

static void stream_free(struct stream *s)
{
    list_remove(&s->node);
    for (uint32_t i = 0; i < s->n; i++)
        free(s->tokens[i].top);
    free(s->tokens);
    free(s);
}

void outbox_fini(struct outbox *o)
{
    LIST_FOR_SAFE (n, &o->streams) {
        struct stream *s = container_of(n, struct stream, node);
        if (s->released) {
            stream_free(s);
        } else {
            s->box = NULL;
            list_remove(&s->node);
        }
    }
    o->unsent = 0;
}

struct stream *stream_open(struct outbox *o, uint64_t counter, uint32_t attempt, uint32_t choice)
{
    struct stream *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->box = o;
    s->counter = counter;
    s->attempt = attempt;
    s->choice = choice;
    list_push_back(&o->streams, &s->node);
    return s;
}

int stream_push(struct stream *s, const struct proto_token *t)
{
    if (!s->box)
        return STATUS_CLOSED;
    ASSERT(s->n == 0 || t->position == s->tokens[s->n - 1].position + 1);
    if (s->n == s->cap) {
        uint32_t cap = s->cap ? 2 * s->cap : 8;
        struct proto_token *p = mem_resize(s->tokens, cap, sizeof *p);
        if (!p)
            return STATUS_NOMEM;
        s->tokens = p;
        s->cap = cap;
    }
    struct proto_token copy = *t;
    copy.counter = s->counter;
    copy.attempt = s->attempt;
    copy.choice = s->choice;
    copy.top = NULL;
    if (t->n_top) {
        copy.top = mem_dup(t->top, t->n_top * sizeof *t->top);
        if (!copy.top)
            return STATUS_NOMEM;
    }
    s->tokens[s->n++] = copy;
    s->box->unsent++;
    return STATUS_OK;
}

static void unaccount(struct stream *s)
{
    if (s->box)
        s->box->unsent -= s->n - s->sent;
}

void stream_drop(struct stream *s)
{
    if (!s)
        return;
    unaccount(s);
    stream_free(s);
}

void stream_release(struct stream *s, uint64_t now_ms)
{
    if (!s->box || s->n == 0) {
        stream_drop(s);
        return;
    }
    s->released = true;
    s->since = now_ms;
}

uint32_t outbox_collect(struct outbox *o, struct proto_token *list, uint32_t max)
{
    uint32_t n = 0;
    LIST_FOR (it, &o->streams) {
        struct stream *s = container_of(it, struct stream, node);
        while (s->sent < s->n && n < max) {
            list[n++] = s->tokens[s->sent++];
            o->unsent--;
        }
        if (n == max)
            break;
    }
    return n;
}

static bool is_of(const struct stream *s, const struct proto_seq_pos *p)
{
    return s->counter == p->counter && s->attempt == p->attempt && s->choice == p->choice;
}

bool outbox_has(const struct outbox *o, const struct proto_seq_pos *p)
{
    LIST_FOR (it, &o->streams) {
        if (is_of(container_of(it, struct stream, node), p))
            return true;
    }
    return false;
}

void outbox_ack(struct outbox *o, const struct proto_seq_pos *p)
{
    LIST_FOR_SAFE (it, &o->streams) {
        struct stream *s = container_of(it, struct stream, node);
        if (!is_of(s, p))
            continue;
        uint32_t k = 0;
        while (k < s->n && s->tokens[k].position < p->position)
            free(s->tokens[k++].top);
        if (k > s->sent) {
            o->unsent -= k - s->sent;
            s->sent = k;
        }
        memmove(s->tokens, s->tokens + k, (s->n - k) * sizeof *s->tokens);
        s->n -= k;
        s->sent -= k;
        if (s->released && s->n == 0)
            stream_free(s);
        return;
    }
}

void outbox_rewind(struct outbox *o)
{
    o->unsent = 0;
    LIST_FOR (it, &o->streams) {
        struct stream *s = container_of(it, struct stream, node);
        s->sent = 0;
        o->unsent += s->n;
    }
}

void outbox_cancel(struct outbox *o, uint64_t counter, uint32_t attempt)
{
    LIST_FOR_SAFE (it, &o->streams) {
        struct stream *s = container_of(it, struct stream, node);
        if (s->released && s->counter == counter && s->attempt == attempt)
            stream_drop(s);
    }
}

void outbox_expire(struct outbox *o, uint64_t now_ms, uint64_t max_age_ms)
{
    LIST_FOR_SAFE (it, &o->streams) {
        struct stream *s = container_of(it, struct stream, node);
        if (s->released && s->sent == s->n && now_ms - s->since > max_age_ms)
            stream_drop(s);
    }
}

void outbox_keep_only(struct outbox *o, const struct proto_seq_pos *list, uint32_t n)
{
    LIST_FOR_SAFE (it, &o->streams) {
        struct stream *s = container_of(it, struct stream, node);
        bool wanted = false;
        for (uint32_t i = 0; i < n && !wanted; i++)
            wanted = is_of(s, &list[i]);
        if (s->released && !wanted)
            stream_drop(s);
    }
}
