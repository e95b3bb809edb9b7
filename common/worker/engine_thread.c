/* engine_thread: commands to the engine, results to the loop; see engine_thread.h.
 *
 * One command slot under a mutex: the loop thread fills it only when the thread is idle, so nothing
 * queues. Results are mails that are allocated once: one per layer, one for the end of a command,
 * and one for the end of each step that may be under way. They can be used again for the next one
 * because the loop thread starts it only after it has drained the end of the last one, and a
 * mailbox keeps its order.
 *
 * Steps are a ring: given by the loop, launched and ended by the thread. On the host a launch does
 * all the work. On a device the thread launches whatever it was given before it asks for the end of
 * the oldest step, and while there is room for another one it sleeps in short naps, so that a step
 * that is given meanwhile is launched at once and the device never runs dry. */
#include "common/worker/engine_thread.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/base/fault.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/model/model.h"

#define STEPS_MAX 2     /* under way */
#define NAP_NS    20000 /* between two questions to a device that still has room */

enum command { COMMAND_NONE, COMMAND_LOAD, COMMAND_BIND, COMMAND_QUIT };

struct layer_mail {
    struct mail mail;
    uint32_t layer;
};

struct step_mail {
    struct mail mail;
    struct engine_step *step;
    bool want_layers;
    int status;
    _Atomic bool stop;   /* nobody wants it */
    _Atomic bool sample; /* late: sampling may begin */
    bool sampled;        /* it did; the thread's */
};

struct engine_thread {
    struct engine_thread_callbacks cb;
    void *arg;
    struct mailbox *box;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    enum command command;     /* under lock */
    uint32_t given;           /* steps so far; under lock */
    uint32_t launched, ended; /* of them; the thread's */
    uint32_t seen;            /* loop thread: of which the end was seen */
    bool busy;                /* loop thread: a command was given and its end not seen */
    bool closing, joined;

    /* Arguments and results; whoever has the command owns them. */
    const char *path;
    struct engine_options options;
    void *kv;
    uint32_t n_blocks;
    struct step_mail steps[STEPS_MAX]; /* step i is at i % STEPS_MAX */
    enum command ran;
    int status;
    char err[512], name[128];

    struct engine *engine;
    struct tokenizer *tokenizer; /* or NULL */
    struct mail done;
    struct layer_mail *layers;
    uint64_t layer_start_ns;
    _Atomic uint64_t progress;
    _Atomic uint32_t layer_us, packed_percent;
};

static struct step_mail *step_at(struct engine_thread *t, uint32_t i)
{
    return &t->steps[i % STEPS_MAX];
}

static void layer_done(void *arg, uint32_t layer)
{
    struct engine_thread *t = arg;
    uint64_t now = clock_ns();
    uint32_t us = (uint32_t)((now - t->layer_start_ns) / 1000);
    uint32_t old = atomic_load_explicit(&t->layer_us, memory_order_relaxed);
    t->layer_start_ns = now;
    atomic_store_explicit(&t->layer_us, old ? old - old / 8 + us / 8 : us, memory_order_relaxed);
    atomic_fetch_add_explicit(&t->progress, 1, memory_order_relaxed);
    if (step_at(t, t->ended)->want_layers) /* it is the oldest's */
        mailbox_post(t->box, &t->layers[layer].mail);
}

static void packed(void *arg, uint32_t percent)
{
    struct engine_thread *t = arg;
    atomic_store_explicit(&t->packed_percent, percent, memory_order_relaxed);
}

static int load(struct engine_thread *t)
{
    struct model *m;
    uint64_t start = clock_ms();
    TRY(model_open(t->path, 0, &m, t->err, sizeof t->err));
    snprintf(t->name, sizeof t->name, "%s", m->name ? m->name : "");
    log_info("model %s: %zu MiB mapped, packing the weights", t->name, m->file_bytes >> 20);
    t->options.watch = (struct forward_watch){packed, t};
    int rc = engine_create(m, &t->options, &t->engine, t->err, sizeof t->err);
    char why[256] = "";
    if (rc == STATUS_OK && model_tokenizer(m, &t->tokenizer, why, sizeof why) != STATUS_OK)
        log_warn("no tokenizer, so no limits of thinking: %s", why);
    model_close(m);
    if (rc != STATUS_OK)
        return rc;
    uint32_t n = engine_info(t->engine)->n_layers;
    ASSERT(engine_info(t->engine)->ahead <= STEPS_MAX);
    t->layers = mem_array(n, sizeof *t->layers);
    if (!t->layers) {
        snprintf(t->err, sizeof t->err, "out of memory");
        return STATUS_NOMEM;
    }
    for (uint32_t i = 0; i < n; i++)
        t->layers[i].layer = i;
    log_info("model ready after %llu ms", (unsigned long long)(clock_ms() - start));
    return STATUS_OK;
}

static void run(struct engine_thread *t, enum command c)
{
    switch (c) {
    case COMMAND_LOAD:
        t->status = load(t);
        break;
    case COMMAND_BIND:
        t->status = engine_bind_kv(t->engine, t->kv, t->n_blocks);
        break;
    case COMMAND_NONE:
    case COMMAND_QUIT:
        break;
    }
    t->ran = c;
    mailbox_post(t->box, &t->done);
}

static void step_end(struct engine_thread *t, int status)
{
    struct step_mail *m = step_at(t, t->ended++);
    m->status = status;
    t->layer_start_ns = clock_ns();
    mailbox_post(t->box, &m->mail);
}

/* Launches the next step that was given. One that fails at once ends in its turn. */
static void launch(struct engine_thread *t)
{
    struct step_mail *m = step_at(t, t->launched++);
    if (t->launched - t->ended == 1)
        t->layer_start_ns = clock_ns();
    m->step->layer_done = layer_done;
    m->step->layer_arg = t;
    m->step->stop = &m->stop;
    m->status =
        fault("engine.step") == FAULT_FAIL ? STATUS_INTERNAL : engine_launch(t->engine, m->step);
}

/* Lets steps sample whose parameters are complete. Before anything is launched behind them: it may
 * count on the tokens that they draw. */
static void sample(struct engine_thread *t)
{
    for (uint32_t i = t->ended; i != t->launched; i++) {
        struct step_mail *m = step_at(t, i);
        if (m->status != STATUS_OK || !m->step->late || m->sampled ||
            !atomic_load_explicit(&m->sample, memory_order_acquire))
            continue;
        m->status = engine_sample(t->engine, m->step);
        m->sampled = true;
    }
}

/* Asks for the end of the oldest step; waits for it when nothing else can be done. */
static void advance(struct engine_thread *t, bool wait)
{
    struct step_mail *m = step_at(t, t->ended);
    int rc = m->status != STATUS_OK ? m->status : engine_poll(t->engine, m->step, wait);
    if (rc != STATUS_AGAIN)
        step_end(t, rc);
}

/* Sleeps until there is something to do. True: steps were given that are to be launched. */
static bool await(struct engine_thread *t, enum command *c)
{
    bool flying = t->ended != t->launched;
    pthread_mutex_lock(&t->lock);
    while (!flying && t->command == COMMAND_NONE && t->given == t->launched)
        pthread_cond_wait(&t->wake, &t->lock);
    *c = flying ? COMMAND_NONE : t->command; /* a command waits for the steps */
    if (*c != COMMAND_NONE)
        t->command = COMMAND_NONE;
    bool more = t->given != t->launched;
    pthread_mutex_unlock(&t->lock);
    return more;
}

static void nap(struct engine_thread *t)
{
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    at.tv_nsec += NAP_NS;
    if (at.tv_nsec >= 1000000000) {
        at.tv_nsec -= 1000000000;
        at.tv_sec++;
    }
    pthread_mutex_lock(&t->lock);
    if (t->given == t->launched && t->command == COMMAND_NONE)
        pthread_cond_timedwait(&t->wake, &t->lock, &at);
    pthread_mutex_unlock(&t->lock);
}

static void *thread_main(void *arg)
{
    struct engine_thread *t = arg;
    for (;;) {
        enum command c;
        bool more = await(t, &c);
        if (c == COMMAND_QUIT)
            return NULL;
        if (c != COMMAND_NONE) {
            run(t, c);
            continue;
        }
        sample(t);
        if (more) {
            launch(t);
            continue;
        }
        uint32_t under_way = t->launched - t->ended, ended = t->ended;
        advance(t, under_way >= engine_info(t->engine)->ahead);
        if (t->ended == ended && under_way < engine_info(t->engine)->ahead)
            nap(t);
    }
}

static void give(struct engine_thread *t, enum command c)
{
    pthread_mutex_lock(&t->lock);
    t->command = c;
    pthread_cond_signal(&t->wake);
    pthread_mutex_unlock(&t->lock);
}

static void start(struct engine_thread *t, enum command c)
{
    ASSERT(!t->busy);
    t->busy = true;
    give(t, c);
}

/* On the loop thread. */
static void on_mail(void *arg, struct mail *m)
{
    struct engine_thread *t = arg;
    for (int i = 0; i < STEPS_MAX; i++) {
        struct step_mail *s = &t->steps[i];
        if (m != &s->mail)
            continue;
        t->seen++;
        if (!t->closing)
            t->cb.stepped(t->arg, s->step, s->status);
        return;
    }
    if (m != &t->done) {
        if (!t->closing)
            t->cb.layer(t->arg, ((struct layer_mail *)(void *)m)->layer);
        return;
    }
    t->busy = false;
    if (t->closing)
        return;
    switch (t->ran) {
    case COMMAND_LOAD:
        t->cb.loaded(t->arg, t->status, t->name, t->err);
        break;
    case COMMAND_BIND:
        t->cb.bound(t->arg, t->status);
        break;
    case COMMAND_NONE:
    case COMMAND_QUIT:
        break;
    }
}

int engine_thread_create(struct loop *loop, const struct engine_thread_callbacks *cb, void *arg,
                         struct engine_thread **out)
{
    struct engine_thread *t = calloc(1, sizeof *t);
    if (!t)
        return STATUS_NOMEM;
    t->cb = *cb;
    t->arg = arg;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->wake, NULL);
    int rc = mailbox_create(loop, on_mail, t, &t->box);
    if (rc != STATUS_OK)
        goto free_thread;
    if (pthread_create(&t->thread, NULL, thread_main, t) != 0) {
        rc = STATUS_NOMEM;
        goto destroy_box;
    }
    *out = t;
    return STATUS_OK;
destroy_box:
    mailbox_destroy(t->box);
free_thread:
    free(t);
    return rc;
}

void engine_thread_finish(struct engine_thread *t)
{
    if (!t || t->joined)
        return;
    t->closing = t->joined = true;
    pthread_mutex_lock(&t->lock);
    while (t->command != COMMAND_NONE) { /* given, but not taken yet */
        pthread_mutex_unlock(&t->lock);
        sched_yield();
        pthread_mutex_lock(&t->lock);
    }
    t->command = COMMAND_QUIT;
    pthread_cond_signal(&t->wake);
    pthread_mutex_unlock(&t->lock);
    pthread_join(t->thread, NULL);
}

void engine_thread_destroy(struct engine_thread *t)
{
    if (!t)
        return;
    engine_thread_finish(t);
    mailbox_destroy(t->box);
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->wake);
    if (t->engine)
        engine_destroy(t->engine);
    tokenizer_destroy(t->tokenizer);
    free(t->layers);
    free(t);
}

void engine_thread_load(struct engine_thread *t, const char *path, const struct engine_options *o)
{
    t->path = path;
    t->options = *o;
    start(t, COMMAND_LOAD);
}

void engine_thread_bind(struct engine_thread *t, void *kv, uint32_t n_blocks)
{
    t->kv = kv;
    t->n_blocks = n_blocks;
    start(t, COMMAND_BIND);
}

void engine_thread_step(struct engine_thread *t, struct engine_step *s, bool want_layers)
{
    ASSERT(engine_thread_room(t));
    struct step_mail *m = step_at(t, t->given);
    m->step = s;
    m->want_layers = want_layers;
    m->sampled = false;
    atomic_store_explicit(&m->sample, false, memory_order_relaxed);
    atomic_store_explicit(&m->stop, false, memory_order_relaxed);
    pthread_mutex_lock(&t->lock);
    t->given++;
    pthread_cond_signal(&t->wake);
    pthread_mutex_unlock(&t->lock);
}

void engine_thread_sample(struct engine_thread *t, const struct engine_step *s)
{
    for (uint32_t i = t->seen; i != t->given; i++)
        if (step_at(t, i)->step == s)
            atomic_store_explicit(&step_at(t, i)->sample, true, memory_order_release);
    pthread_mutex_lock(&t->lock);
    pthread_cond_signal(&t->wake);
    pthread_mutex_unlock(&t->lock);
}

bool engine_thread_room(const struct engine_thread *t)
{
    return !t->busy && t->given - t->seen < engine_info(t->engine)->ahead;
}

void engine_thread_stop(struct engine_thread *t, const struct engine_step *s)
{
    for (uint32_t i = t->seen; i != t->given; i++)
        if (step_at(t, i)->step == s)
            atomic_store_explicit(&step_at(t, i)->stop, true, memory_order_relaxed);
}

struct engine *engine_thread_engine(const struct engine_thread *t)
{
    return t->engine;
}

const struct tokenizer *engine_thread_tokenizer(const struct engine_thread *t)
{
    return t->tokenizer;
}

bool engine_thread_busy(const struct engine_thread *t)
{
    return t->busy || t->given != t->seen;
}

uint64_t engine_thread_progress(const struct engine_thread *t)
{
    return atomic_load_explicit(&t->progress, memory_order_relaxed);
}

uint32_t engine_thread_packed(const struct engine_thread *t)
{
    return atomic_load_explicit(&t->packed_percent, memory_order_relaxed);
}

uint32_t engine_thread_layer_us(const struct engine_thread *t)
{
    return atomic_load_explicit(&t->layer_us, memory_order_relaxed);
}
