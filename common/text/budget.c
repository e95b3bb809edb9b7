/* budget: see budget.h.
 *
 * The separator of reasoning.h runs over the text of the ids, with control tokens shown. The forced
 * tokens are those of the tag's text; when the model has just written the beginning of the tag, of
 * its rest, so that it is not written twice. A block is closed by force once: should the tag not
 * come out of the vocabulary's tokens, the model is left alone. */
#include "common/text/budget.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/mem.h"
#include "common/text/detok.h"

struct budget {
    uint32_t limit, used;
    char open[MARKS_LEN + 1], close[MARKS_LEN + 1], breaks[MARKS_LEN + 1];
    struct buf force;
    struct reasoning_format format; /* of the texts above */
    struct reasoning reasoning;
    struct detok detok;
    struct buf piece;
    struct token_list queue; /* tokens to force, the first `at` of them done */
    size_t at;
    bool forced; /* in this block */
};

static const char *keep(char *to, const char *from)
{
    if (!from || !*from)
        return NULL;
    size_t n = strlen(from);
    ASSERT(n <= MARKS_LEN);
    memcpy(to, from, n + 1);
    return to;
}

/* The limit is reached inside a block: which tokens follow? */
static int check(struct budget *b)
{
    const struct reasoning *r = &b->reasoning;
    if (!r->thinking)
        b->forced = false;
    if (!r->thinking || b->forced || b->used < b->limit)
        return STATUS_OK;
    const char *text = buf_str(&b->force);
    size_t n = b->force.len, held = r->inside.n_held;
    if (held < n && memcmp(text, r->inside.held, held) == 0) {
        text += held;
        n -= held;
    }
    b->forced = true;
    b->queue.n = b->at = 0;
    return tokenizer_encode(b->detok.tok, text, n, TOKENIZE_SPECIAL, &b->queue);
}

int budget_create(const struct tokenizer *t, const struct budget_spec *spec, struct budget **out)
{
    struct budget *b = mem_array(1, sizeof *b);
    if (!b)
        return STATUS_NOMEM;
    b->limit = spec->limit;
    b->format.open = keep(b->open, spec->open);
    b->format.close = keep(b->close, spec->close);
    b->format.breaks = keep(b->breaks, spec->breaks);
    buf_init(&b->force, 0);
    buf_puts(&b->force, spec->force);
    buf_init(&b->piece, 0);
    detok_init(&b->detok, t, true);
    b->detok.any = true;
    reasoning_init(&b->reasoning, &b->format, spec->start, NULL, NULL);
    int rc = buf_ok(&b->force) ? check(b) : STATUS_NOMEM;
    if (rc != STATUS_OK) {
        budget_destroy(b);
        return rc;
    }
    *out = b;
    return STATUS_OK;
}

void budget_destroy(struct budget *b)
{
    if (!b)
        return;
    reasoning_fini(&b->reasoning);
    token_list_fini(&b->queue);
    buf_fini(&b->piece);
    buf_fini(&b->force);
    free(b);
}

int budget_feed(struct budget *b, int32_t id)
{
    if (b->at < b->queue.n && b->queue.ids[b->at++] != id)
        b->queue.n = b->at = 0; /* not one of ours */
    b->used += b->reasoning.thinking;
    buf_reset(&b->piece);
    detok_feed(&b->detok, id, &b->piece);
    for (size_t i = 0; i < b->piece.len; i++)
        reasoning_push(&b->reasoning, b->piece.data[i]);
    if (!buf_ok(&b->piece) || !buf_ok(&b->reasoning.blanks))
        return STATUS_NOMEM;
    return b->at < b->queue.n ? STATUS_OK : check(b);
}

int32_t budget_next(const struct budget *b, uint32_t ahead)
{
    size_t left = b->queue.n - b->at;
    if (ahead < left)
        return b->queue.ids[b->at + ahead];
    if (ahead == left)
        return BUDGET_ANY;
    return ahead < b->limit && b->used < b->limit - ahead ? BUDGET_ANY : BUDGET_UNKNOWN;
}

uint32_t budget_used(const struct budget *b)
{
    return b->used;
}

bool budget_thinking(const struct budget *b)
{
    return b->reasoning.thinking;
}
