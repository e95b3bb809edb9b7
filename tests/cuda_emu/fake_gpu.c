/* fake_gpu: streams, events and graphs of the emulated device; see fake_gpu.h.
 *
 * One lock for everything: it is let go between two items of work, so a thread that waits for its
 * own stream meanwhile does pieces of the others'. An item that has a source in host memory carries
 * a checksum of it, taken when it was enqueued and compared when it runs. */
#include "tests/cuda_emu/fake_gpu.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/hash.h"
#include "tests/cuda_emu/fake_internal.h"

#define ARGS_MAX      1024
#define POISON        0xa5
#define GRAPH_BYTES   ((size_t)64 << 10) /* what an instantiated graph takes, and each node */
#define NODE_BYTES    ((size_t)2 << 10)
#define STREAMS_MAX   16
#define ERROR_INVALID 1
#define ERROR_CAPTURE 900 /* cudaErrorStreamCaptureUnsupported */

enum item_kind { ITEM_KERNEL, ITEM_COPY, ITEM_FILL, ITEM_RECORD, ITEM_WAIT, ITEM_GRAPH };

struct item {
    struct item *next;
    enum item_kind kind;
    const char *name;
    void (*run)(const void *args);
    _Alignas(16) uint8_t args[ARGS_MAX];
    size_t n_args;
    void *to; /* ITEM_COPY, ITEM_FILL */
    const void *from;
    size_t n;
    int byte;
    enum gpu_copy copy;
    uint64_t sum;
    struct gpu_event *event; /* ITEM_RECORD, ITEM_WAIT */
    uint64_t ticket;
    struct gpu_exec *exec; /* ITEM_GRAPH; at: the node that comes next */
    struct item *at;
};

struct gpu_graph {
    struct item *first, **last;
    size_t n;
};
struct gpu_exec {
    struct item *first;
    size_t n, pending;
    bool dead;
};
struct gpu_event {
    uint64_t recorded, done;
    struct timespec when;
};
struct gpu_stream {
    struct item *first, **last;
    bool open;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    struct gpu_stream streams[STREAMS_MAX];
    struct gpu_stream *captured;
    struct gpu_graph *capture;
    pthread_t capturer;
    struct item *free_items;
    struct fake_gpu_stats stats;
    uint64_t random;
    char fail[32];
    unsigned fail_in;
    int fail_rc, last_error;
    void (*on_kernel)(const char *name, uint64_t random);
} gpu;
static char expected[128];
static _Thread_local struct timespec entered;
static _Thread_local bool inside_table;

/* ---- failures ------------------------------------------------------------------------------- */

void fake_gpu_expect(const char *part)
{
    snprintf(expected, sizeof expected, "%s", part);
}

void fake_die(const char *fmt, ...)
{
    char line[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (*expected && strstr(line, expected))
        _exit(FAKE_GPU_EXPECTED);
    fprintf(stderr, "fake gpu: %s\n", line);
    abort();
}

static int fail(int rc)
{
    gpu.last_error = rc;
    return rc;
}

/* Takes the lock. Returns the planned failure of this call, if it is its turn. */
static int enter(const char *function)
{
    clock_gettime(CLOCK_MONOTONIC, &entered);
    inside_table = true;
    pthread_mutex_lock(&lock);
    if (gpu.fail_in && strcmp(gpu.fail, function) == 0 && --gpu.fail_in == 0)
        return fail(gpu.fail_rc);
    return 0;
}

static int leave(int rc)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    inside_table = false;
    gpu.stats.seconds +=
        (double)(now.tv_sec - entered.tv_sec) + (double)(now.tv_nsec - entered.tv_nsec) * 1e-9;
    pthread_mutex_unlock(&lock);
    return rc;
}

static void forbid_in_capture(const char *what)
{
    if (gpu.captured)
        fake_die("%s while a stream is captured", what);
}

static uint64_t next_random(void)
{
    gpu.random += HASH_KV_STEP;
    return hash_mix64(gpu.random);
}

/* ---- queues --------------------------------------------------------------------------------- */

static struct item *item_new(enum item_kind kind)
{
    struct item *i = gpu.free_items;
    if (i)
        gpu.free_items = i->next;
    else if (!(i = malloc(sizeof *i)))
        fake_die("out of host memory");
    *i = (struct item){.kind = kind};
    return i;
}

static void item_free(struct item *i)
{
    i->next = gpu.free_items;
    gpu.free_items = i;
}

static void check_stream(const struct gpu_stream *s, const char *what)
{
    if (!s || s < gpu.streams || s >= gpu.streams + STREAMS_MAX || !s->open)
        fake_die("%s: no such stream", what);
    if (gpu.captured && gpu.captured != s)
        fake_die("%s on another stream while one is captured", what);
}

/* To the end of the stream, or of the graph that is being captured. */
static void push(struct gpu_stream *s, struct item *i, const char *what)
{
    check_stream(s, what);
    if (gpu.captured == s) {
        if (!pthread_equal(gpu.capturer, pthread_self()))
            fake_die("%s from another thread while the stream is captured", what);
        *gpu.capture->last = i;
        gpu.capture->last = &i->next;
        gpu.capture->n++;
        return;
    }
    *s->last = i;
    s->last = &i->next;
}

static void run_kernel(const struct item *i)
{
    fake_check_args(i->args, i->n_args, i->name);
    if (gpu.on_kernel)
        gpu.on_kernel(i->name, next_random());
    gpu.stats.kernels++;
    i->run(i->args);
}

static void check_poison(const uint8_t *p, size_t n)
{
    for (size_t k = 0; k < n; k++)
        if (p[k] != POISON)
            fake_die("copy: the host wrote to memory that a copy is going to fill");
}

static void run_copy(const struct item *i)
{
    bool up = i->copy == GPU_TO_DEVICE, down = i->copy == GPU_TO_HOST;
    fake_check_range(down ? FAKE_HOST : FAKE_DEVICE, i->to, i->n, "copy, target");
    fake_check_range(up ? FAKE_HOST : FAKE_DEVICE, i->from, i->n, "copy, source");
    if (up && fake_sum(i->from, i->n) != i->sum)
        fake_die("copy: host memory was used again before the copy from it had run");
    if (down)
        check_poison(i->to, i->n);
    memcpy(i->to, i->from, i->n);
    if (!down)
        fake_watch_copy(i->to, i->n, -1);
}

static void run_record(struct gpu_event *e, uint64_t ticket)
{
    e->done = ticket;
    clock_gettime(CLOCK_MONOTONIC, &e->when);
}

/* Runs what an item stands for. False: it cannot run now. True with *done false: a graph that has
 * more nodes. */
static bool run_item(struct item *i, bool *done)
{
    *done = true;
    switch (i->kind) {
    case ITEM_KERNEL:
        run_kernel(i);
        return true;
    case ITEM_COPY:
        run_copy(i);
        return true;
    case ITEM_FILL:
        fake_check_range(FAKE_DEVICE, i->to, i->n, "fill");
        memset(i->to, i->byte, i->n);
        return true;
    case ITEM_RECORD:
        run_record(i->event, i->ticket);
        return true;
    case ITEM_WAIT:
        return i->event->done >= i->ticket;
    case ITEM_GRAPH:
        if (i->exec->dead)
            fake_die("graph: destroyed before it had finished");
        if (i->at) {
            bool one;
            run_item(i->at, &one); /* nodes always can */
            i->at = i->at->next;
        }
        *done = i->at == NULL;
        if (*done)
            i->exec->pending--;
        return true;
    }
    return true;
}

/* Does one item of the stream. False: it is empty or has to wait. */
static bool step_stream(struct gpu_stream *s)
{
    bool done;
    struct item *i = s->first;
    if (!i || !run_item(i, &done))
        return false;
    if (done) {
        s->first = i->next;
        if (!s->first)
            s->last = &s->first;
        item_free(i);
    }
    return true;
}

/* One item of any stream; dies when none can go on. */
static void step_any(const char *what)
{
    struct gpu_stream *list[STREAMS_MAX];
    uint64_t n = 0;
    for (int k = 0; k < STREAMS_MAX; k++)
        if (gpu.streams[k].first)
            list[n++] = &gpu.streams[k];
    while (n > 0) {
        uint64_t k = next_random() % n;
        if (step_stream(list[k]))
            return;
        list[k] = list[--n]; /* it waits for another */
    }
    fake_die("%s would wait for ever", what);
}

int fake_gpu_enqueue(void *stream, const char *name, void (*run)(const void *args),
                     const void *args, size_t n_args)
{
    int rc = enter("kernel");
    if (rc)
        return leave(rc);
    if (n_args > ARGS_MAX)
        fake_die("%s: %zu bytes of arguments", name, n_args);
    fake_check_args(args, n_args, name);
    struct item *i = item_new(ITEM_KERNEL);
    i->name = name;
    i->run = run;
    i->n_args = n_args;
    memcpy(i->args, args, n_args);
    gpu.stats.enqueued += gpu.captured == NULL;
    push(stream, i, name);
    return leave(0);
}

/* ---- device and memory ---------------------------------------------------------------------- */

static int device_open(int index, struct gpu_props *out)
{
    int rc = enter("device_open");
    if (rc || index != 0)
        return leave(rc ? rc : fail(101)); /* cudaErrorInvalidDevice */
    size_t used, total, other;
    fake_memory_info(&used, &total, &other);
    *out = (struct gpu_props){
        .name = "emulation", .sms = 3, .major = 9, .memory = total, .flush_needed = true};
    return leave(0);
}

static int mem_info(size_t *unused, size_t *total)
{
    size_t used, other;
    int rc = enter("mem_info");
    forbid_in_capture("mem_info");
    fake_memory_info(&used, total, &other);
    *unused = *total - used - other;
    return leave(rc);
}

static int thread_attach(void)
{
    return leave(enter("thread_attach"));
}

static int flush_writes(void)
{
    int rc = enter("flush_writes");
    forbid_in_capture("flush_writes");
    gpu.stats.flushes++;
    return leave(rc);
}

static int allocate(const char *function, enum fake_kind kind, void **out, size_t n)
{
    int rc = enter(function);
    forbid_in_capture(function);
    if (!rc) {
        gpu.stats.allocs++;
        rc = fake_alloc(kind, n, out);
        if (rc)
            fail(rc);
    }
    return leave(rc);
}

static int mem_alloc(void **out, size_t n)
{
    return allocate("mem_alloc", FAKE_DEVICE, out, n);
}

static int host_alloc(void **out, void **device, size_t n)
{
    int rc = allocate("host_alloc", FAKE_HOST, out, n);
    *device = rc ? NULL : *out;
    return rc;
}

static bool inside(const void *p, const void *base, size_t n)
{
    return (const uint8_t *)p >= (const uint8_t *)base &&
           (const uint8_t *)p < (const uint8_t *)base + n;
}

/* Nothing that is still to run may copy from or to the memory. */
static void check_unused(const void *base, size_t n)
{
    for (int k = 0; k < STREAMS_MAX; k++)
        for (const struct item *i = gpu.streams[k].first; i; i = i->next)
            if ((i->kind == ITEM_COPY && (inside(i->from, base, n) || inside(i->to, base, n))) ||
                (i->kind == ITEM_FILL && inside(i->to, base, n)))
                fake_die("memory is freed before a copy that uses it has run");
}

static int mem_free(void *p)
{
    int rc = enter("mem_free");
    forbid_in_capture("mem_free");
    if (p) {
        check_unused(p, 1);
        fake_watch_freed(p);
        fake_free(FAKE_DEVICE, p);
    }
    return leave(rc);
}

static int host_free(void *p)
{
    int rc = enter("host_free");
    forbid_in_capture("host_free");
    if (p) {
        check_unused(p, 1);
        fake_free(FAKE_HOST, p);
    }
    return leave(rc);
}

/* ---- streams and events --------------------------------------------------------------------- */

static int stream_create(struct gpu_stream **out, bool high_priority)
{
    (void)high_priority;
    int rc = enter("stream_create"), k = 0;
    forbid_in_capture("stream_create");
    if (rc)
        return leave(rc);
    while (k < STREAMS_MAX && gpu.streams[k].open)
        k++;
    if (k == STREAMS_MAX)
        fake_die("more than %d streams", STREAMS_MAX);
    struct gpu_stream *s = &gpu.streams[k];
    *s = (struct gpu_stream){.open = true, .last = &s->first};
    gpu.stats.allocs++;
    *out = s;
    return leave(0);
}

static int stream_destroy(struct gpu_stream *s)
{
    int rc = enter("stream_destroy");
    check_stream(s, "stream_destroy");
    if (s->first)
        fake_die("a stream is destroyed with work in it");
    s->open = false;
    return leave(rc);
}

static int stream_sync(struct gpu_stream *s)
{
    int rc = enter("stream_sync");
    forbid_in_capture("stream_sync");
    check_stream(s, "stream_sync");
    while (s->first) {
        step_any("stream_sync");
        pthread_mutex_unlock(&lock);
        pthread_mutex_lock(&lock);
    }
    return leave(rc);
}

static int stream_wait(struct gpu_stream *s, struct gpu_event *e)
{
    int rc = enter("stream_wait");
    forbid_in_capture("stream_wait");
    struct item *i = item_new(ITEM_WAIT);
    i->event = e;
    i->ticket = e->recorded;
    push(s, i, "stream_wait");
    return leave(rc);
}

static int copy_async(void *to, const void *from, size_t n, enum gpu_copy kind,
                      struct gpu_stream *s)
{
    int rc = enter("copy_async");
    if (rc)
        return leave(rc);
    bool up = kind == GPU_TO_DEVICE, down = kind == GPU_TO_HOST;
    if (gpu.captured && (up || down))
        fake_die("a copy of host memory inside of a graph would keep its address");
    fake_check_range(down ? FAKE_HOST : FAKE_DEVICE, to, n, "copy_async, target");
    fake_check_range(up ? FAKE_HOST : FAKE_DEVICE, from, n, "copy_async, source");
    struct item *i = item_new(ITEM_COPY);
    i->to = to;
    i->from = from;
    i->n = n;
    i->copy = kind;
    if (up)
        i->sum = fake_sum(from, n);
    if (down)
        memset(to, POISON, n);
    if (!down && !gpu.captured)
        fake_watch_copy(to, n, 1);
    gpu.stats.copies++;
    push(s, i, "copy_async");
    return leave(0);
}

static int fill_async(void *to, int byte, size_t n, struct gpu_stream *s)
{
    int rc = enter("fill_async");
    if (rc)
        return leave(rc);
    fake_check_range(FAKE_DEVICE, to, n, "fill_async");
    struct item *i = item_new(ITEM_FILL);
    i->to = to;
    i->byte = byte;
    i->n = n;
    gpu.stats.fills++;
    push(s, i, "fill_async");
    return leave(0);
}

static int event_create(struct gpu_event **out, bool timing)
{
    (void)timing;
    int rc = enter("event_create");
    forbid_in_capture("event_create");
    if (rc)
        return leave(rc);
    gpu.stats.allocs++;
    *out = calloc(1, sizeof **out);
    return leave(*out ? 0 : GPU_ERROR_MEMORY);
}

static int event_destroy(struct gpu_event *e)
{
    int rc = enter("event_destroy");
    if (e && e->done < e->recorded)
        fake_die("an event is destroyed before it has come");
    free(e);
    return leave(rc);
}

static int event_record(struct gpu_event *e, struct gpu_stream *s)
{
    int rc = enter("event_record");
    forbid_in_capture("event_record");
    struct item *i = item_new(ITEM_RECORD);
    i->event = e;
    i->ticket = ++e->recorded;
    push(s, i, "event_record");
    return leave(rc);
}

static int event_query(struct gpu_event *e)
{
    int rc = enter("event_query");
    forbid_in_capture("event_query");
    if (!rc && e->done < e->recorded) {
        step_any("event_query");
        rc = e->done < e->recorded ? GPU_ERROR_NOT_READY : 0;
    }
    return leave(rc);
}

static int event_sync(struct gpu_event *e)
{
    int rc = enter("event_sync");
    forbid_in_capture("event_sync");
    while (e->done < e->recorded) {
        step_any("event_sync");
        pthread_mutex_unlock(&lock);
        pthread_mutex_lock(&lock);
    }
    return leave(rc);
}

static int event_ms(float *out, struct gpu_event *from, struct gpu_event *to)
{
    int rc = enter("event_ms");
    *out = (float)(to->when.tv_sec - from->when.tv_sec) * 1e3f +
           (float)(to->when.tv_nsec - from->when.tv_nsec) * 1e-6f;
    return leave(rc);
}

/* ---- graphs --------------------------------------------------------------------------------- */

static int capture_begin(struct gpu_stream *s)
{
    int rc = enter("capture_begin");
    forbid_in_capture("capture_begin");
    check_stream(s, "capture_begin");
    if (rc)
        return leave(rc);
    if (s->first)
        fake_die("capture_begin: the stream has work in it");
    gpu.capture = calloc(1, sizeof *gpu.capture);
    if (!gpu.capture)
        fake_die("out of host memory");
    gpu.capture->last = &gpu.capture->first;
    gpu.captured = s;
    gpu.capturer = pthread_self();
    return leave(0);
}

static void items_free(struct item *first)
{
    while (first) {
        struct item *next = first->next;
        item_free(first);
        first = next;
    }
}

static int capture_end(struct gpu_stream *s, struct gpu_graph **out)
{
    int rc = enter("capture_end");
    if (gpu.captured != s)
        fake_die("capture_end: the stream is not captured");
    struct gpu_graph *g = gpu.capture;
    gpu.captured = NULL;
    gpu.capture = NULL;
    if (rc) {
        items_free(g->first);
        free(g);
        return leave(rc);
    }
    *out = g;
    return leave(0);
}

static int graph_destroy(struct gpu_graph *g)
{
    int rc = enter("graph_destroy");
    if (g)
        items_free(g->first);
    free(g);
    return leave(rc);
}

static int graph_nodes(struct gpu_graph *g, size_t *out)
{
    int rc = enter("graph_nodes");
    *out = g->n;
    return leave(rc);
}

static int graph_instantiate(struct gpu_graph *g, struct gpu_exec **out)
{
    int rc = enter("graph_instantiate");
    forbid_in_capture("graph_instantiate");
    if (!rc)
        rc = fake_reserve(GRAPH_BYTES + g->n * NODE_BYTES);
    if (rc)
        return leave(fail(rc));
    struct gpu_exec *x = calloc(1, sizeof *x);
    if (!x)
        fake_die("out of host memory");
    struct item **last = &x->first;
    for (const struct item *i = g->first; i; i = i->next) {
        *last = item_new(i->kind);
        **last = *i;
        (*last)->next = NULL;
        last = &(*last)->next;
    }
    x->n = g->n;
    gpu.stats.nodes += x->n;
    gpu.stats.allocs++;
    *out = x;
    return leave(0);
}

static int exec_destroy(struct gpu_exec *x)
{
    int rc = enter("exec_destroy");
    forbid_in_capture("exec_destroy");
    if (!x)
        return leave(rc);
    if (x->dead || x->pending)
        fake_die("graph: destroyed twice, or before it had finished");
    items_free(x->first);
    x->first = NULL;
    fake_release(GRAPH_BYTES + x->n * NODE_BYTES);
    gpu.stats.nodes -= x->n;
    x->dead = true; /* kept, so that a launch of it is noticed */
    return leave(rc);
}

static int exec_upload(struct gpu_exec *x, struct gpu_stream *s)
{
    int rc = enter("exec_upload");
    forbid_in_capture("exec_upload");
    check_stream(s, "exec_upload");
    if (x->dead)
        fake_die("graph: used after it was destroyed");
    return leave(rc);
}

static int exec_launch(struct gpu_exec *x, struct gpu_stream *s)
{
    int rc = enter("exec_launch");
    forbid_in_capture("exec_launch");
    if (x->dead)
        fake_die("graph: launched after it was destroyed");
    if (rc)
        return leave(rc);
    struct item *i = item_new(ITEM_GRAPH);
    i->exec = x;
    i->at = x->first;
    x->pending++;
    gpu.stats.launches++;
    push(s, i, "exec_launch");
    return leave(0);
}

/* ---- the rest ------------------------------------------------------------------------------- */

static int matmul_run(struct gpu_matmul *p, uint32_t m, const void *x, const void *w, void *y,
                      void *workspace, struct gpu_stream *s)
{
    struct fake_matmul_run r = {
        .d = *fake_matmul_desc(p), .m = m, .x = x, .w = w, .y = y, .workspace = workspace};
    if (m == 0 || m > r.d.m_max)
        fake_die("matmul: %u rows, the plan is for %u", m, r.d.m_max);
    __builtin_clear_padding(&r);
    return fake_gpu_enqueue(s, "matmul", fake_matmul_run, &r, sizeof r);
}

static int last_error(void)
{
    pthread_mutex_lock(&lock);
    int rc = gpu.last_error;
    gpu.last_error = 0;
    pthread_mutex_unlock(&lock);
    return rc;
}

static const char *error_text(int rc)
{
    switch (rc) {
    case GPU_ERROR_MEMORY:
        return "out of memory";
    case GPU_ERROR_NOT_READY:
        return "not ready";
    case 101:
        return "invalid device ordinal";
    default:
        return "unknown error";
    }
}

const struct gpu_api *fake_gpu_api(void)
{
    static const struct gpu_api api = {
        .name = "emulation",
        .watch = &fake_watch,
        .device_open = device_open,
        .mem_info = mem_info,
        .thread_attach = thread_attach,
        .flush_writes = flush_writes,
        .mem_alloc = mem_alloc,
        .mem_free = mem_free,
        .host_alloc = host_alloc,
        .host_free = host_free,
        .stream_create = stream_create,
        .stream_destroy = stream_destroy,
        .stream_sync = stream_sync,
        .stream_wait = stream_wait,
        .copy_async = copy_async,
        .fill_async = fill_async,
        .event_create = event_create,
        .event_destroy = event_destroy,
        .event_record = event_record,
        .event_query = event_query,
        .event_sync = event_sync,
        .event_ms = event_ms,
        .capture_begin = capture_begin,
        .capture_end = capture_end,
        .graph_destroy = graph_destroy,
        .graph_nodes = graph_nodes,
        .graph_instantiate = graph_instantiate,
        .exec_destroy = exec_destroy,
        .exec_upload = exec_upload,
        .exec_launch = exec_launch,
        .matmul_create = fake_matmul_create,
        .matmul_destroy = fake_matmul_destroy,
        .matmul_run = matmul_run,
        .last_error = last_error,
        .error_text = error_text,
    };
    return &api;
}

const struct gpu_api *gpu_api_open(char *err, size_t errlen)
{
    (void)err;
    (void)errlen;
    return fake_gpu_api();
}

bool fake_gpu_is_device(const void *p)
{
    pthread_mutex_lock(&lock);
    bool yes = fake_is_device(p);
    pthread_mutex_unlock(&lock);
    return yes;
}

bool fake_gpu_inside(void)
{
    return inside_table;
}

struct fake_gpu_stats fake_gpu_stats(void)
{
    size_t other;
    pthread_mutex_lock(&lock);
    struct fake_gpu_stats s = gpu.stats;
    fake_memory_info(&s.used, &s.total, &other);
    pthread_mutex_unlock(&lock);
    return s;
}

/* For tests of whole programs. */
__attribute__((destructor)) static void report(void)
{
    struct fake_gpu_stats s = fake_gpu_stats();
    if (getenv("FAKE_GPU_REPORT"))
        fprintf(stderr, "fake gpu: %llu graphs launched, %llu kernels enqueued\n",
                (unsigned long long)s.launches, (unsigned long long)s.enqueued);
}

void fake_gpu_seed(uint64_t seed)
{
    pthread_mutex_lock(&lock);
    gpu.random = seed;
    pthread_mutex_unlock(&lock);
}

void fake_gpu_fail(const char *function, unsigned nth, int rc)
{
    pthread_mutex_lock(&lock);
    snprintf(gpu.fail, sizeof gpu.fail, "%s", function ? function : "");
    gpu.fail_in = function ? nth : 0;
    gpu.fail_rc = rc;
    pthread_mutex_unlock(&lock);
}

void fake_gpu_on_kernel(void (*fn)(const char *name, uint64_t random))
{
    pthread_mutex_lock(&lock);
    gpu.on_kernel = fn;
    pthread_mutex_unlock(&lock);
}
