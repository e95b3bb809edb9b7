/* threads: a small pool for steps of microseconds to milliseconds; see threads.h.
 *
 * `ticket` holds a phase's serial number and the tiles of it that are still to be taken; taking one
 * is a compare-and-swap, so it succeeds only on a phase that is running, however late the thread
 * is. Whoever holds a tile keeps the job alive: job, phase and tiles stand still until it is done.
 * The thread that finishes the last tile of a phase (`left`) publishes the next one. Threads
 * therefore never register for a job or a phase, and being late is harmless.
 *
 * Waiting is for `word` to change, which is bumped after each publication: spin for SPIN_NS, then
 * announce oneself in `sleepers` and park on a futex. The waker bumps the word first and reads
 * `sleepers` afterwards; both sides are sequentially consistent, so either the sleeper sees the new
 * value or the waker sees the sleeper.
 *
 * A helper has a slot. It takes a tile as the others do, then says in its slot which one it holds.
 * From there on the tile is won by compare-and-swap on the slot: by the helper, to write its
 * result, or by a thread that has waited for REDO_NS, to do the tile itself. A helper that finishes
 * the last tile leaves the next phase to the others (`orphan`), for it could be stopped in the
 * middle of publishing. Thread 0 does not park for good while there are helpers: somebody must be
 * there to do a tile again.
 *
 * Between taking and saying lie a few instructions, and writing takes a microsecond or two, in
 * which a stopped helper does hold everybody up; and the scheduler would leave it stopped for most
 * of a second while others want its processor, as spinning and yielding threads do. So thread 0
 * naps: then a processor has nothing better to run. */
#include "kernels/threads.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/base/mem.h"

#define SPIN_NS    100000   /* about what a step boundary costs the caller (sampling, a frame) */
#define SPIN_IDLE  1000000u /* of helpers, which take nothing away from anybody */
#define REDO_NS    100000
#define NAP_NS     200000
#define SPIN_BURST 64 /* pauses between two looks at the clock */
#define MAX_CPUS   1024

#define TILE_BITS   24
#define TILE_MASK   (((uint64_t)1 << TILE_BITS) - 1)
#define TICKET_HELP ((uint64_t)1 << TILE_BITS) /* helpers may take tiles of the phase */
#define SERIAL_BITS (TILE_BITS + 1)

/* State of a helper's slot: what it does in the low bits, above them the phase's serial number and
 * the tile. */
enum { SLOT_FREE, SLOT_HELD, SLOT_WRITING };
#define SLOT_BITS 2

struct worker {
    struct threads *pool;
    pthread_t id;
    int index, cpu;
    bool helper;
    _Alignas(64) _Atomic uint64_t slot;
    _Atomic bool busy; /* with a tile, perhaps one that is not its own any more */
};

struct threads {
    int n, helpers;
    struct worker *workers; /* n + helpers, the first without a thread of its own */
    _Atomic uint64_t redone;
    /* Written by the publisher of a phase, read by those who hold a tile of it. */
    const struct threads_job *job;
    size_t tiles;
    uint64_t serial;
    _Atomic size_t phase; /* complete are those before; n_phases: the job is */
    _Atomic bool stop;
    _Alignas(64) _Atomic uint64_t ticket;
    _Alignas(64) _Atomic size_t left;
    _Alignas(64) _Atomic uint32_t word;
    _Atomic uint32_t sleepers;
    _Atomic bool orphan; /* the phase is complete and nobody has published the next one */
};

/* The pool whose thread 0 this thread was bound as. */
static _Thread_local const struct threads *bound_to;

static void cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Whether the word changed within ns. */
static bool spin(struct threads *t, uint32_t old, uint64_t ns)
{
    uint64_t deadline = 0;
    for (;;) {
        for (int i = 0; i < SPIN_BURST; i++) {
            if (atomic_load_explicit(&t->word, memory_order_acquire) != old)
                return true;
            cpu_relax();
        }
        uint64_t now = clock_ns();
        if (!deadline)
            deadline = now + ns;
        if (now >= deadline)
            return false;
    }
}

/* Sleeps while the word is `old`, or until it was for timeout, when not NULL. */
static void park(struct threads *t, uint32_t old, const struct timespec *timeout)
{
    atomic_fetch_add(&t->sleepers, 1);
    while (atomic_load(&t->word) == old) {
        syscall(SYS_futex, &t->word, FUTEX_WAIT_PRIVATE, old, timeout, NULL, 0);
        if (timeout)
            break;
    }
    atomic_fetch_sub(&t->sleepers, 1);
}

static void wait_change(struct threads *t, uint32_t old, uint64_t ns)
{
    if (!spin(t, old, ns))
        park(t, old, NULL);
}

static void bump(struct threads *t)
{
    atomic_fetch_add(&t->word, 1);
    if (atomic_load(&t->sleepers))
        syscall(SYS_futex, &t->word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* Publishes the first phase from `phase` on that has tiles, or the end of the job. All tiles before
 * are done. */
static void publish(struct threads *t, size_t phase)
{
    const struct threads_job *job = t->job;
    size_t tiles = 0;
    while (phase < job->n_phases && (tiles = job->tiles(job->arg, phase)) == 0)
        phase++;
    ASSERT(tiles <= TILE_MASK);
    t->tiles = tiles;
    atomic_store_explicit(&t->left, tiles, memory_order_relaxed);
    t->serial++;
    uint64_t ticket = t->serial << SERIAL_BITS | tiles;
    if (tiles && t->helpers && job->helps && job->helps(job->arg, phase))
        ticket |= TICKET_HELP;
    atomic_store_explicit(&t->phase, phase, memory_order_release);
    if (tiles) /* at the end nothing of the job is touched any more: it may be gone */
        atomic_store_explicit(&t->ticket, ticket, memory_order_release);
    bump(t);
}

/* Runs a tile that the thread has taken, or taken away. */
static void run_tile(struct threads *t, size_t tile, int thread)
{
    const struct threads_job *job = t->job;
    size_t phase = atomic_load_explicit(&t->phase, memory_order_relaxed);
    if (thread == 0 && job->progress)
        job->progress(job->arg, phase);
    job->run(job->arg, phase, tile, thread);
    if (atomic_fetch_sub_explicit(&t->left, 1, memory_order_acq_rel) == 1)
        publish(t, phase + 1);
}

/* Takes and runs one tile; false when there is none. */
static bool work(struct threads *t, int thread)
{
    if (t->helpers && atomic_exchange_explicit(&t->orphan, false, memory_order_acquire)) {
        publish(t, atomic_load_explicit(&t->phase, memory_order_relaxed) + 1);
        return true;
    }
    uint64_t ticket = atomic_load_explicit(&t->ticket, memory_order_relaxed);
    do {
        if ((ticket & TILE_MASK) == 0)
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&t->ticket, &ticket, ticket - 1,
                                                    memory_order_acquire, memory_order_relaxed));
    run_tile(t, t->tiles - (size_t)(ticket & TILE_MASK), thread);
    return true;
}

/* ---- helpers -------------------------------------------------------------------------------- */

static bool help_taken(struct threads *t, struct worker *w, uint64_t serial, size_t tile)
{
    const struct threads_job *job = t->job;
    size_t phase = atomic_load_explicit(&t->phase, memory_order_relaxed);
    uint64_t held = (serial << TILE_BITS | tile) << SLOT_BITS | SLOT_HELD;
    atomic_store(&w->slot, held);
    job->begin(job->arg, phase, tile, w->index);
    if (atomic_load(&w->slot) != held)
        return true;
    job->compute(job->arg, w->index);
    if (!atomic_compare_exchange_strong(&w->slot, &held, SLOT_WRITING))
        return true;
    job->finish(job->arg, w->index);
    atomic_store(&w->slot, SLOT_FREE);
    if (atomic_fetch_sub_explicit(&t->left, 1, memory_order_acq_rel) == 1) {
        atomic_store_explicit(&t->orphan, true, memory_order_release);
        bump(t);
    }
    return true;
}

static bool help(struct threads *t, struct worker *w)
{
    uint64_t ticket = atomic_load_explicit(&t->ticket, memory_order_relaxed);
    if ((ticket & TILE_MASK) == 0 || !(ticket & TICKET_HELP))
        return false;
    atomic_store(&w->busy, true);
    bool taken = atomic_compare_exchange_strong(&t->ticket, &ticket, ticket - 1);
    if (taken)
        help_taken(t, w, ticket >> SERIAL_BITS, t->tiles - (size_t)(ticket & TILE_MASK));
    atomic_store(&w->busy, false);
    return true;
}

/* Takes a tile away from a helper and runs it; false when none holds one. A tile that is held keeps
 * its phase, so what it says in the slot is of the phase that runs. */
static bool redo(struct threads *t, int thread)
{
    for (int i = t->n; i < t->n + t->helpers; i++) {
        uint64_t slot = atomic_load(&t->workers[i].slot);
        if ((slot & ((1u << SLOT_BITS) - 1)) != SLOT_HELD ||
            !atomic_compare_exchange_strong(&t->workers[i].slot, &slot, SLOT_FREE))
            continue;
        atomic_fetch_add_explicit(&t->redone, 1, memory_order_relaxed);
        run_tile(t, (size_t)(slot >> SLOT_BITS & TILE_MASK), thread);
        return true;
    }
    return false;
}

/* ---- threads -------------------------------------------------------------------------------- */

static int bind_to(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    return pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct threads *t = w->pool;
    if (w->cpu >= 0)
        bind_to(w->cpu); /* the list was checked against the allowed CPUs */
    if (w->helper)
        sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){0}); /* anybody may lower himself */
    for (;;) {
        uint32_t word = atomic_load(&t->word);
        if (atomic_load(&t->stop))
            return NULL;
        if (w->helper ? !help(t, w) : !work(t, w->index))
            wait_change(t, word, w->helper ? SPIN_IDLE : SPIN_NS);
    }
}

/* Parses "0-3,8" into cpus[0..n); at most `max` entries are kept. Returns the number of CPUs in the
 * list, or -1. */
static int parse_cpus(const char *list, int *cpus, int max)
{
    int n = 0;
    for (const char *p = list; *p;) {
        char *end;
        long first = strtol(p, &end, 10), last = first;
        if (end == p)
            return -1;
        if (*end == '-') {
            p = end + 1;
            last = strtol(p, &end, 10);
            if (end == p)
                return -1;
        }
        if (first < 0 || last < first || last >= MAX_CPUS)
            return -1;
        for (long c = first; c <= last; c++, n++)
            if (n < max)
                cpus[n] = (int)c;
        if (*end != ',' && *end != '\0')
            return -1;
        p = *end ? end + 1 : end;
        if (*end == ',' && !*p)
            return -1;
    }
    return n;
}

static int check_cpus(const char *list, struct threads *t, char *err, size_t errlen)
{
    int cpus[MAX_CPUS];
    int n = parse_cpus(list, cpus, MAX_CPUS);
    if (n < 0) {
        snprintf(err, errlen, "cpus: \"%s\" is no list like 0-3,8", list);
        return STATUS_INVALID;
    }
    if (n < t->n) {
        snprintf(err, errlen, "cpus: \"%s\" names %d CPUs for %d threads", list, n, t->n);
        return STATUS_INVALID;
    }
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
        snprintf(err, errlen, "cpus: cannot read the allowed CPUs");
        return STATUS_IO;
    }
    int all = t->n + t->helpers;
    for (int i = 0; i < all && i < n; i++) {
        if (i >= t->n && n < all)
            break; /* no room for all helpers: none is bound */
        if (!CPU_ISSET(cpus[i], &allowed)) {
            snprintf(err, errlen, "cpus: CPU %d is not available to this process", cpus[i]);
            return STATUS_INVALID;
        }
        t->workers[i].cpu = cpus[i];
    }
    return STATUS_OK;
}

static int start_threads(struct threads *t, char *err, size_t errlen)
{
    int all = t->n + t->helpers;
    for (int i = 1; i < all; i++) {
        int e = pthread_create(&t->workers[i].id, NULL, worker_main, &t->workers[i]);
        if (e) {
            snprintf(err, errlen, "threads: cannot start thread %d of %d: %s", i + 1, all,
                     strerror(e));
            t->helpers = i > t->n ? i - t->n : 0;
            t->n = i < t->n ? i : t->n;
            return status_from_errno(e);
        }
    }
    return STATUS_OK;
}

int threads_create_helped(int n, int helpers, const char *cpus, struct threads **out, char *err,
                          size_t errlen)
{
    if (n < 1 || n > MAX_CPUS || helpers < 0 || helpers > MAX_CPUS - n) {
        snprintf(err, errlen, "threads: %d and %d helpers are not 1..%d together", n, helpers,
                 MAX_CPUS);
        return STATUS_INVALID;
    }
    size_t all = (size_t)(n + helpers);
    struct threads *t = aligned_alloc(64, sizeof *t);
    struct worker *workers = aligned_alloc(64, all * sizeof *workers);
    if (!t || !workers) {
        free(t);
        free(workers);
        snprintf(err, errlen, "threads: out of memory");
        return STATUS_NOMEM;
    }
    memset(t, 0, sizeof *t);
    memset(workers, 0, all * sizeof *workers);
    t->n = n;
    t->helpers = helpers;
    t->workers = workers;
    for (int i = 0; i < n + helpers; i++) {
        workers[i].pool = t;
        workers[i].index = i;
        workers[i].cpu = -1;
        workers[i].helper = i >= n;
    }
    int rc = cpus && *cpus ? check_cpus(cpus, t, err, errlen) : STATUS_OK;
    if (rc != 0) {
        free(workers);
        free(t);
        return rc;
    }
    rc = start_threads(t, err, errlen);
    if (rc != 0) {
        threads_destroy(t);
        return rc;
    }
    *out = t;
    return STATUS_OK;
}

int threads_create(int n, const char *cpus, struct threads **out, char *err, size_t errlen)
{
    return threads_create_helped(n, 0, cpus, out, err, errlen);
}

void threads_destroy(struct threads *t)
{
    if (!t)
        return;
    atomic_store(&t->stop, true);
    bump(t);
    for (int i = 1; i < t->n + t->helpers; i++)
        pthread_join(t->workers[i].id, NULL);
    free(t->workers);
    free(t);
}

int threads_count(const struct threads *t)
{
    return t->n;
}

int threads_helpers(const struct threads *t)
{
    return t->helpers;
}

uint64_t threads_redone(const struct threads *t)
{
    return atomic_load_explicit(&t->redone, memory_order_relaxed);
}

void threads_quiesce(struct threads *t)
{
    for (int i = t->n; i < t->n + t->helpers; i++)
        while (atomic_load(&t->workers[i].busy))
            sched_yield();
}

static void run_alone(const struct threads_job *job)
{
    for (size_t phase = 0; phase < job->n_phases; phase++) {
        size_t tiles = job->tiles(job->arg, phase);
        for (size_t i = 0; i < tiles; i++)
            job->run(job->arg, phase, i, 0);
        if (job->progress)
            job->progress(job->arg, phase + 1);
    }
}

void threads_run(struct threads *t, const struct threads_job *job)
{
    if (t->workers[0].cpu >= 0 && bound_to != t) {
        bind_to(t->workers[0].cpu);
        bound_to = t;
    }
    if (t->n == 1 && !(t->helpers && job->helps)) {
        run_alone(job);
        return;
    }
    t->job = job;
    publish(t, 0);
    for (;;) {
        uint32_t word = atomic_load(&t->word);
        if (work(t, 0))
            continue;
        size_t phase = atomic_load_explicit(&t->phase, memory_order_acquire);
        if (job->progress)
            job->progress(job->arg, phase);
        if (phase >= job->n_phases)
            return;
        if (!t->helpers)
            wait_change(t, word, SPIN_NS);
        else if (!spin(t, word, REDO_NS) && !redo(t, 0))
            park(t, word, &(struct timespec){.tv_nsec = NAP_NS});
    }
}
