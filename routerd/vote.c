/* vote: see vote.h. */
#include "routerd/vote.h"

#include <stdlib.h>

#include "common/base/mem.h"
#include "routerd/answer.h"

int vote_parse(const json_t *o, struct extract **out, struct api_error *e)
{
    const json_t *v = field_get(o, "vote"), *regex = field_get(v, "regex");
    char err[200];
    *out = NULL;
    if (!v || json_is_false(v))
        return STATUS_OK;
    if (!json_is_true(v) && !json_is_object(v))
        return api_fail(e, "vote", NULL, "'vote' must be true, false or an object.");
    if (regex && !json_is_string(regex))
        return api_fail(e, "vote", NULL, "'vote.regex' must be a string.");
    int rc =
        extract_create(json_string_value(regex), json_string_length(regex), out, err, sizeof err);
    return rc == STATUS_INVALID ? api_fail(e, "vote", NULL, "'vote.regex' cannot be used: %s.", err)
                                : rc;
}

struct ballot {
    struct buf answer;
    bool given;
    uint32_t same;  /* index of the first equal answer */
    uint32_t votes; /* where same is its own index */
};

/* Groups equal answers; returns the index of the winner, or n. */
static uint32_t count(struct ballot *b, uint32_t n)
{
    uint32_t best = n;
    for (uint32_t i = 0; i < n; i++) {
        if (!b[i].given)
            continue;
        b[i].same = 0;
        while (!b[b[i].same].given || !extract_equal(&b[b[i].same].answer, &b[i].answer))
            b[i].same++;
        b[b[i].same].votes++;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (b[i].votes && (best == n || b[i].votes > b[best].votes))
            best = i;
    }
    return best;
}

/* One group: its answer, its votes and who gave them. */
static void group_json(struct buf *out, const struct ballot *b, uint32_t n, uint32_t first)
{
    const char *comma = "";
    buf_puts(out, "{\"answer\":");
    answer_json_string(out, buf_str(&b[first].answer), b[first].answer.len);
    buf_printf(out, ",\"votes\":%u,\"choices\":[", b[first].votes);
    for (uint32_t i = first; i < n; i++) {
        if (!b[i].given || b[i].same != first)
            continue;
        buf_printf(out, "%s%u", comma, i);
        comma = ",";
    }
    buf_puts(out, "]}");
}

static void write_json(struct buf *out, const struct ballot *b, uint32_t n, uint32_t best)
{
    uint32_t given = 0;
    for (uint32_t i = 0; i < n; i++)
        given += b[i].given;
    buf_puts(out, "{\"answer\":");
    if (best < n)
        answer_json_string(out, buf_str(&b[best].answer), b[best].answer.len);
    else
        buf_puts(out, "null");
    if (best < n)
        buf_printf(out, ",\"choice\":%u,\"votes\":%u", best, b[best].votes);
    else
        buf_puts(out, ",\"choice\":null,\"votes\":0");
    buf_printf(out, ",\"abstained\":%u,\"answers\":[", n - given);
    const char *comma = "";
    for (uint32_t votes = n; votes > 0; votes--) { /* most votes first */
        for (uint32_t i = 0; i < n; i++) {
            if (b[i].votes != votes)
                continue;
            buf_puts(out, comma);
            comma = ",";
            group_json(out, b, n, i);
        }
    }
    buf_puts(out, "]}");
}

int vote_json(struct buf *out, struct extract *x, const struct vote_text *texts, uint32_t n)
{
    struct ballot *b = mem_array(n, sizeof *b);
    bool ok = b != NULL;
    if (!b)
        return STATUS_NOMEM;
    for (uint32_t i = 0; i < n; i++) {
        buf_init(&b[i].answer, 0);
        b[i].given = extract_answer(x, texts[i].p, texts[i].n, &b[i].answer);
        ok = ok && buf_ok(&b[i].answer);
    }
    if (ok)
        write_json(out, b, n, count(b, n));
    for (uint32_t i = 0; i < n; i++)
        buf_fini(&b[i].answer);
    free(b);
    return ok ? STATUS_OK : STATUS_NOMEM;
}
