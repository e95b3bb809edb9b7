/* engine_thread: the one thread that runs the engine. The loop thread hands it one command at a
 * time (load, bind), then steps, as many at a time as the engine can have under way, and gets the
 * results back as callbacks on the loop. All other functions are the loop thread's. */
#ifndef BATON_WORKER_ENGINE_THREAD_H
#define BATON_WORKER_ENGINE_THREAD_H

#include <stdbool.h>
#include <stdint.h>

#include "common/engine/engine.h"
#include "common/net/loop.h"

struct engine_thread;
struct engine_thread_callbacks {
    /* The model is loaded and packed; name is a loan. Otherwise err has the line to show. */
    void (*loaded)(void *arg, int status, const char *name, const char *err);
    void (*bound)(void *arg, int status);
    /* A layer of the running step is complete; only when the step asked for it. All of a step's
     * calls come before its `stepped`. */
    void (*layer)(void *arg, uint32_t layer);
    void (*stepped)(void *arg, struct engine_step *s, int status);
};
int engine_thread_create(struct loop *loop, const struct engine_thread_callbacks *cb, void *arg,
                         struct engine_thread **out) WARN_UNUSED;
/* Waits for what runs. No callbacks from here on. */
void engine_thread_finish(struct engine_thread *t);
/* Finishes, then frees the engine, and with it KV on a device. */
void engine_thread_destroy(struct engine_thread *t);

/* path and the strings in o are loans until `loaded`. */
void engine_thread_load(struct engine_thread *t, const char *path, const struct engine_options *o);
void engine_thread_bind(struct engine_thread *t, void *kv, uint32_t n_blocks);
/* The step and what it points to belong to the engine until `stepped`. Steps end in order. Only
 * when there is room; at most one that wants layers is under way. */
void engine_thread_step(struct engine_thread *t, struct engine_step *s, bool want_layers);
/* A step that was given with `late`: its sampling parameters are complete now. */
void engine_thread_sample(struct engine_thread *t, const struct engine_step *s);
bool engine_thread_room(const struct engine_thread *t);
/* Nobody wants this step any more: it ends soon, with STATUS_CANCELED. */
void engine_thread_stop(struct engine_thread *t, const struct engine_step *s);

/* NULL before `loaded`. Addresses of KV and the info may be asked at any time. */
struct engine *engine_thread_engine(const struct engine_thread *t);
/* NULL before `loaded`, and when the model has no vocabulary that can be used. */
const struct tokenizer *engine_thread_tokenizer(const struct engine_thread *t);
bool engine_thread_busy(const struct engine_thread *t);         /* a command or a step runs */
uint64_t engine_thread_progress(const struct engine_thread *t); /* layers computed so far */
uint32_t engine_thread_packed(const struct engine_thread *t);   /* percent of the weights, so far */
uint32_t engine_thread_layer_us(const struct engine_thread *t); /* typical time for one layer */

#endif
