/* grammars: see grammars.h.
 *
 * A grammar is known by what was asked for, byte for byte. It is compiled on the loop's pool, one
 * at a time, in the order of asking; the first one makes the vocabulary's trie as well. Grammars
 * without users stay, the one used longest ago goes when there are more than KEEP_MAX or they take
 * more than KEEP_BYTES. */
#include "common/worker/grammars.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/mem.h"

#define KEEP_MAX   64
#define KEEP_BYTES ((size_t)192 << 20)

struct grammar_use {
    struct list node; /* of all, the one used longest ago first */
    struct grammars *owner;
    uint32_t users;
    enum grammars_state state;
    enum grammar_kind kind;
    bool compact;
    char *source;
    size_t n;
    uint64_t hash;
    struct tokenmask *mask;
    char err[256];
};

/* What the other thread works on; owns all of it but the tokenizer. */
struct compilation {
    struct grammars *owner;  /* NULL: gone meanwhile */
    struct grammar_use *use; /* it has a user more while this runs */
    const struct tokenizer *tok;
    enum grammar_kind kind;
    bool compact;
    char *source;
    size_t n;
    struct tokenmask_vocab *vocab; /* made here, if tok was given */
    pthread_mutex_t lock;
    pthread_cond_t read; /* tok is not needed any more */
    bool tok_read;
    struct grammar *grammar;
    int status;
    char err[256];
};

struct grammars {
    struct loop *loop;
    struct grammars_options o;
    struct list all;
    struct compilation *running;
    struct tokenmask_vocab *vocab;
};

int grammars_create(struct loop *loop, const struct grammars_options *o, struct grammars **out)
{
    struct grammars *gs = mem_array(1, sizeof *gs);
    if (!gs)
        return STATUS_NOMEM;
    gs->loop = loop;
    gs->o = *o;
    list_init(&gs->all);
    *out = gs;
    return STATUS_OK;
}

static void use_free(struct grammar_use *u)
{
    list_remove(&u->node);
    tokenmask_destroy(u->mask);
    free(u->source);
    free(u);
}

void grammars_destroy(struct grammars *gs)
{
    if (!gs)
        return;
    struct compilation *c = gs->running;
    if (c) { /* it may go on, but the tokenizer is going to leave */
        pthread_mutex_lock(&c->lock);
        while (c->tok && !c->tok_read)
            pthread_cond_wait(&c->read, &c->lock);
        pthread_mutex_unlock(&c->lock);
        c->owner = NULL;
    }
    LIST_FOR_SAFE (n, &gs->all)
        use_free(container_of(n, struct grammar_use, node));
    tokenmask_vocab_destroy(gs->vocab);
    free(gs);
}

/* ---- compiling ---- */

static void compilation_free(struct compilation *c)
{
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->read);
    free(c->source);
    free(c);
}

static void compile(void *arg) /* on another thread */
{
    struct compilation *c = arg;
    const struct grammar_options o = {.compact = c->compact};
    c->status = c->tok ? tokenmask_vocab_create(c->tok, &c->vocab) : STATUS_OK;
    pthread_mutex_lock(&c->lock);
    c->tok_read = true;
    pthread_cond_signal(&c->read);
    pthread_mutex_unlock(&c->lock);
    if (c->status != STATUS_OK)
        snprintf(c->err, sizeof c->err, "%s", status_text(c->status));
    else
        c->status =
            grammar_compile(c->kind, c->source, c->n, &o, &c->grammar, c->err, sizeof c->err);
}

static void compile_next(struct grammars *gs);

static void fail(struct grammar_use *u, const char *why)
{
    u->state = GRAMMARS_FAILED;
    snprintf(u->err, sizeof u->err, "%s", why);
    log_warn("a grammar cannot be used: %s", why);
}

static void take(struct grammars *gs, struct compilation *c)
{
    struct grammar_use *u = c->use;
    if (c->vocab) {
        gs->vocab = c->vocab;
        c->vocab = NULL;
    }
    if (c->status == STATUS_OK)
        c->status = tokenmask_create(gs->vocab, c->grammar, &u->mask);
    if (c->status == STATUS_OK)
        u->state = GRAMMARS_READY;
    else
        fail(u, c->err[0] ? c->err : status_text(c->status));
    gs->running = NULL;
    grammars_put(u);
}

static void compiled(void *arg)
{
    struct compilation *c = arg;
    struct grammars *gs = c->owner;
    if (gs) {
        take(gs, c);
        compile_next(gs);
        gs->o.ready(gs->o.arg);
    }
    tokenmask_vocab_destroy(c->vocab);
    grammar_put(c->grammar);
    compilation_free(c);
}

/* False: it could not be begun. */
static bool begin(struct grammars *gs, struct grammar_use *u)
{
    struct compilation *c = mem_array(1, sizeof *c);
    if (!c)
        return false;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->read, NULL);
    c->owner = gs;
    c->use = u;
    c->kind = u->kind;
    c->compact = u->compact;
    c->n = u->n;
    c->source = mem_dup(u->source, u->n + 1);
    if (!gs->vocab)
        c->tok = gs->o.tokenizer(gs->o.arg);
    bool known = gs->vocab || c->tok;
    if (!known)
        fail(u, "this worker has no tokenizer");
    if (!known || !c->source || loop_work(gs->loop, compile, compiled, c) != STATUS_OK) {
        compilation_free(c);
        return !known;
    }
    gs->running = c;
    u->users++;
    return true;
}

static void compile_next(struct grammars *gs)
{
    LIST_FOR (n, &gs->all) {
        struct grammar_use *u = container_of(n, struct grammar_use, node);
        if (gs->running)
            return;
        if (u->state == GRAMMARS_PENDING && !begin(gs, u))
            fail(u, status_text(STATUS_NOMEM));
    }
}

/* ---- users ---- */

static void make_room(struct grammars *gs)
{
    size_t bytes = 0, n = 0;
    LIST_FOR (it, &gs->all) {
        const struct grammar_use *u = container_of(it, struct grammar_use, node);
        bytes += sizeof *u + u->n + (u->mask ? tokenmask_bytes(u->mask) : 0);
        n++;
    }
    LIST_FOR_SAFE (it, &gs->all) {
        struct grammar_use *u = container_of(it, struct grammar_use, node);
        if (n <= KEEP_MAX && bytes <= KEEP_BYTES)
            return;
        if (u->users > 0)
            continue;
        bytes -= sizeof *u + u->n + (u->mask ? tokenmask_bytes(u->mask) : 0);
        n--;
        use_free(u);
    }
}

static struct grammar_use *find(struct grammars *gs, const struct grammar_use *like)
{
    LIST_FOR (it, &gs->all) {
        struct grammar_use *u = container_of(it, struct grammar_use, node);
        if (u->hash == like->hash && u->kind == like->kind && u->compact == like->compact &&
            u->n == like->n && memcmp(u->source, like->source, u->n) == 0)
            return u;
    }
    return NULL;
}

struct grammar_use *grammars_get(struct grammars *gs, enum grammar_kind kind, const char *source,
                                 size_t n, bool compact)
{
    struct grammar_use like = {.kind = kind,
                               .compact = compact,
                               .source = (char *)source,
                               .n = n,
                               .hash = hash64(source, n, kind)};
    struct grammar_use *u = find(gs, &like);
    if (u) {
        list_remove(&u->node);
        list_push_back(&gs->all, &u->node);
        u->users++;
        return u;
    }
    make_room(gs);
    u = mem_array(1, sizeof *u);
    char *copy = malloc(n + 1);
    if (!u || !copy) {
        free(u);
        free(copy);
        return NULL;
    }
    memcpy(copy, source, n);
    copy[n] = 0;
    *u = like;
    u->owner = gs;
    u->source = copy;
    u->users = 1;
    list_push_back(&gs->all, &u->node);
    compile_next(gs);
    return u;
}

void grammars_put(struct grammar_use *u)
{
    if (!u)
        return;
    ASSERT(u->users > 0);
    if (--u->users == 0 && u->state == GRAMMARS_FAILED)
        use_free(u); /* next time it may work: memory */
}

enum grammars_state grammars_state(const struct grammar_use *u)
{
    return u->state;
}

struct tokenmask *grammars_mask(const struct grammar_use *u)
{
    return u->mask;
}

const char *grammars_error(const struct grammar_use *u)
{
    return u->err;
}
