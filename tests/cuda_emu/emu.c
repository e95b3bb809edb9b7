/* emu: fibers, barriers and warp operations; see emu.h.
 *
 * A block's fibers share the scheduler's loop, which visits them in rounds: a round takes the warps
 * in a random order and the lanes of each from a random one on. A warp sits out some rounds, and
 * some warps fall behind: they stand still until no other one can go on. When no lane of any warp
 * is ready, all must be at one barrier, or the block can never go on.
 *
 * A warp operation collects the words of its lanes in one of two buffers, taken in turns: a lane
 * cannot be two operations ahead of another, so nobody's words are overwritten before they are
 * read. The last lane to arrive computes what is common to all (mma). */
#include "tests/cuda_emu/emu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/cuda_emu/fake_gpu.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define STACK_BYTES (256 * 1024)
#else
#define STACK_BYTES (64 * 1024)
#endif

#define THREADS_MAX  1024
#define WARPS_MAX    (THREADS_MAX / 32)
#define ARRAYS_MAX   64
#define COPIES_MAX   64
#define SHARED_LIMIT (227 * 1024)

#pragma weak fake_gpu_enqueue

/* The same as in emu_device.h, which only C++ can read. */
enum emu_op { EMU_SYNCWARP, EMU_SHFL, EMU_BALLOT, EMU_REDUX, EMU_TRANSPOSE, EMU_MMA };
struct uint3 {
    uint32_t x, y, z;
};
struct emu_thread {
    struct uint3 tid;
    uint32_t lane;
};

enum fiber_state { FIBER_READY, FIBER_BARRIER, FIBER_WARP, FIBER_GRID, FIBER_DONE };

struct copy {
    void *to;
    const void *from;
    uint32_t bytes, of, group;
};

struct fiber {
    struct emu_thread pub; /* first: emu_self */
    enum fiber_state state;
    int line;    /* of the barrier waited at */
    bool waited; /* for the grid before */
    void *sp;
    uint8_t *stack;
    uint32_t n_copies, group;
    struct copy copies[COPIES_MAX];
#if defined(__SANITIZE_ADDRESS__)
    void *fake_stack;
#endif
};

struct warp {
    uint32_t words[2][32][8];
    uint32_t arrived, generation;
    uint32_t ready; /* lanes that can go on */
    enum emu_op op;
    int line;
};

struct array {
    int id;
    void *p;
    size_t bytes;
};

struct cta {
    const struct emu_launch *launch;
    struct fiber *fibers;
    struct warp warps[WARPS_MAX];
    uint32_t n, live;
    struct fiber *current;
    void *scheduler;
    struct array arrays[ARRAYS_MAX];
    uint32_t n_arrays;
    void *dynamic;
    bool any_grid_wait;
    uint64_t random;
#if defined(__SANITIZE_ADDRESS__)
    void *fake_stack;
    const void *bottom;
    size_t size;
#endif
};

_Thread_local struct emu_thread *emu_self;
_Thread_local struct uint3 emu_block_idx, emu_block_dim, emu_grid_dim;
static _Thread_local struct cta *cta;
static _Thread_local uint64_t seed_next;
static _Thread_local void (*dependent_fn)(void *arg);
static _Thread_local void *dependent_arg;
static _Thread_local uint64_t n_launches;
static _Thread_local size_t shared_max;

void emu_barrier(int line);
const uint32_t *emu_warp(enum emu_op op, int line, const uint32_t *words, int n);
void *emu_shared_array(int id, size_t bytes, size_t align);
void *emu_shared_dynamic(void);
void emu_copy_async(void *to, const void *from, uint32_t bytes, uint32_t of);
void emu_copy_commit(void);
void emu_copy_wait(uint32_t groups);
void emu_grid_wait(void);
void emu_die(const char *what, const void *p);

/* ---- switching stacks: callee-saved registers of the System V ABI ---- */
void emu_switch(void **save, void *load);
__asm__(".text\n"
        ".globl emu_switch\n"
        ".type emu_switch, @function\n"
        "emu_switch:\n"
        "    push %rbp\n    push %rbx\n    push %r12\n    push %r13\n    push %r14\n    push %r15\n"
        "    mov %rsp, (%rdi)\n"
        "    mov %rsi, %rsp\n"
        "    pop %r15\n    pop %r14\n    pop %r13\n    pop %r12\n    pop %rbx\n    pop %rbp\n"
        "    ret\n"
        ".size emu_switch, . - emu_switch\n");

static void to_scheduler(bool last)
{
    struct cta *c = cta;
    struct fiber *f = c->current;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(last ? NULL : &f->fake_stack, c->bottom, c->size);
#endif
    emu_switch(&f->sp, c->scheduler);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(f->fake_stack, &c->bottom, &c->size);
#endif
    (void)last;
}

static void to_fiber(struct cta *c, struct fiber *f)
{
    c->current = f;
    emu_self = &f->pub;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&c->fake_stack, f->stack, STACK_BYTES);
#endif
    emu_switch(&c->scheduler, f->sp);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(c->fake_stack, NULL, NULL);
#endif
}

void emu_die(const char *what, const void *p)
{
    const struct cta *c = cta;
    fprintf(stderr, "emu: %s: %s", c ? c->launch->name : "?", what);
    if (p)
        fprintf(stderr, " at %p", p);
    if (c)
        fprintf(stderr, ", block (%u %u %u) thread (%u %u %u)", emu_block_idx.x, emu_block_idx.y,
                emu_block_idx.z, c->current->pub.tid.x, c->current->pub.tid.y,
                c->current->pub.tid.z);
    fprintf(stderr, "\n");
    abort();
}

/* ---- what threads call ---- */

static struct warp *warp_of(struct cta *c, const struct fiber *f)
{
    return &c->warps[(f - c->fibers) / 32];
}

/* Stops the running thread until somebody sets its bit in `ready` again. */
static void wait_as(enum fiber_state state)
{
    struct fiber *f = cta->current;
    f->state = state;
    warp_of(cta, f)->ready &= ~(1u << f->pub.lane);
    to_scheduler(false);
    f->state = FIBER_READY;
}

void emu_barrier(int line)
{
    cta->current->line = line;
    wait_as(FIBER_BARRIER);
}

static float bf16(uint32_t h)
{
    uint32_t u = h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32: words 0-3 are a lane's part of A, 4-5 of B,
 * and D replaces 0-3 (C comes with it: emu_warp's caller adds it). The layouts are those of the PTX
 * manual; each product is summed over k in ascending order. */
__attribute__((no_sanitize("address", "undefined"))) static void mma(uint32_t (*x)[8])
{
    float a[16][16], b[16][8], d[16][8];
    for (int l = 0; l < 32; l++) {
        int g = l / 4, t = l % 4;
        for (int i = 0; i < 4; i++) {
            int row = g + i % 2 * 8, k = 2 * t + i / 2 * 8;
            a[row][k] = bf16(x[l][i] & 0xffff);
            a[row][k + 1] = bf16(x[l][i] >> 16);
        }
        for (int i = 0; i < 2; i++) {
            b[2 * t + 8 * i][g] = bf16(x[l][4 + i] & 0xffff);
            b[2 * t + 8 * i + 1][g] = bf16(x[l][4 + i] >> 16);
        }
    }
    for (int i = 0; i < 16; i++) {
        float s[8] = {0};
        for (int k = 0; k < 16; k++)
            for (int j = 0; j < 8; j++)
                s[j] += a[i][k] * b[k][j];
        memcpy(d[i], s, sizeof s);
    }
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < 4; i++)
            memcpy(&x[l][i], &d[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2], sizeof(float));
}

const uint32_t *emu_warp(enum emu_op op, int line, const uint32_t *words, int n)
{
    struct cta *c = cta;
    struct fiber *f = c->current;
    struct warp *w = warp_of(c, f);
    uint32_t(*x)[8] = w->words[w->generation & 1];
    if (w->arrived == 0) {
        w->op = op;
        w->line = line;
    } else if (w->op != op || w->line != line) {
        emu_die("lanes of a warp meet at different operations", NULL);
    }
    if (n > 0)
        memcpy(x[f->pub.lane], words, (size_t)n * sizeof *words);
    w->arrived |= 1u << f->pub.lane;
    if (w->arrived == 0xffffffffu) {
        if (op == EMU_MMA)
            mma(x);
        w->arrived = 0;
        w->generation++;
        w->ready = 0xffffffffu; /* the others waited here */
    } else {
        wait_as(FIBER_WARP);
    }
    return x[0];
}

void *emu_shared_array(int id, size_t bytes, size_t align)
{
    struct cta *c = cta;
    for (uint32_t i = 0; i < c->n_arrays; i++)
        if (c->arrays[i].id == id)
            return c->arrays[i].p;
    if (c->n_arrays == ARRAYS_MAX)
        emu_die("too many shared arrays", NULL);
    struct array *a = &c->arrays[c->n_arrays++];
    *a = (struct array){id, NULL, bytes};
    if (posix_memalign(&a->p, align < 16 ? 16 : align, bytes))
        emu_die("out of memory", NULL);
    memset(a->p, 0xff, bytes);
    return a->p;
}

void *emu_shared_dynamic(void)
{
    return cta->dynamic;
}

void emu_copy_async(void *to, const void *from, uint32_t bytes, uint32_t of)
{
    struct fiber *f = cta->current;
    if ((uintptr_t)to % bytes || (uintptr_t)from % bytes)
        emu_die("misaligned copy", to);
    if (f->n_copies == COPIES_MAX)
        emu_die("too many copies in flight", NULL);
    f->copies[f->n_copies++] = (struct copy){to, from, bytes, of, f->group};
}

void emu_copy_commit(void)
{
    cta->current->group++;
}

void emu_copy_wait(uint32_t groups)
{
    struct fiber *f = cta->current;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < f->n_copies; i++) {
        struct copy *p = &f->copies[i];
        if (p->group + groups >= f->group) {
            f->copies[kept++] = *p;
            continue;
        }
        if (p->of)
            memcpy(p->to, p->from, p->of);
        memset((uint8_t *)p->to + p->of, 0, p->bytes - p->of);
    }
    f->n_copies = kept;
}

void emu_grid_wait(void)
{
    struct cta *c = cta;
    struct fiber *f = c->current;
    f->waited = true;
    if (dependent_fn)
        wait_as(FIBER_GRID);
}

/* ---- running a block ---- */

static uint64_t next_random(struct cta *c)
{
    c->random += 0x9e3779b97f4a7c15u;
    uint64_t x = c->random;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static void fiber_main(void)
{
    struct cta *c = cta;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(NULL, &c->bottom, &c->size);
#endif
    c->launch->body(c->launch->args);
    struct fiber *f = c->current;
    if (f->n_copies)
        emu_die("a thread ends with copies in flight", NULL);
    f->state = FIBER_DONE;
    warp_of(c, f)->ready &= ~(1u << f->pub.lane);
    c->live--;
    to_scheduler(true);
    abort();
}

static void fiber_start(struct cta *c, uint32_t i)
{
    struct fiber *f = &c->fibers[i];
    const uint32_t *b = c->launch->block;
    f->pub = (struct emu_thread){{i % b[0], i / b[0] % b[1], i / (b[0] * b[1])}, i % 32};
    f->state = FIBER_READY;
    f->waited = false;
    f->n_copies = f->group = 0;
    void **sp = (void **)(f->stack + STACK_BYTES - 64);
    *--sp = NULL; /* the return address of fiber_main: keeps the stack aligned as after a call */
    *--sp = (void *)fiber_main;
    sp -= 6;
    memset(sp, 0, 6 * sizeof *sp);
    f->sp = sp;
}

/* Runs each lane that is ready once, from lane `first` on, upwards or downwards. */
static bool run_warp(struct cta *c, uint32_t warp, uint32_t first, bool down)
{
    uint32_t todo = c->warps[warp].ready;
    if (!todo)
        return false;
    todo = first ? todo >> first | todo << (32 - first) : todo;
    while (todo) {
        uint32_t bit = (uint32_t)(down ? 31 - __builtin_clz(todo) : __builtin_ctz(todo));
        struct fiber *f = &c->fibers[warp * 32 + (bit + first) % 32];
        todo &= ~(1u << bit);
        to_fiber(c, f);
        c->any_grid_wait |= f->waited;
    }
    return true;
}

/* Lets go of the threads at a barrier when all that live are there. */
static void release(struct cta *c)
{
    enum fiber_state at = FIBER_DONE;
    int line = -1;
    for (uint32_t i = 0; i < c->n; i++) {
        struct fiber *f = &c->fibers[i];
        if (f->state == FIBER_DONE)
            continue;
        if (at == FIBER_DONE) {
            at = f->state;
            line = f->line;
        }
        c->current = f;
        if (f->state != at || (at != FIBER_BARRIER && at != FIBER_GRID))
            emu_die("deadlock: some threads wait where others never come", NULL);
        if (at == FIBER_BARRIER && f->line != line)
            emu_die("threads of a block meet at different barriers", NULL);
    }
    if (at == FIBER_GRID && dependent_fn) {
        void (*fn)(void *) = dependent_fn;
        dependent_fn = NULL;
        fn(dependent_arg);
    }
    for (uint32_t i = 0; i < c->n; i++)
        if (c->fibers[i].state != FIBER_DONE)
            warp_of(c, &c->fibers[i])->ready |= 1u << i % 32;
}

static void run_block(struct cta *c, bool shuffle)
{
    uint32_t n_warps = c->n / 32, order[WARPS_MAX];
    memset(c->warps, 0, n_warps * sizeof *c->warps);
    memset(c->dynamic, 0xff, c->launch->shared);
    for (uint32_t i = 0; i < c->n_arrays; i++)
        memset(c->arrays[i].p, 0xff, c->arrays[i].bytes);
    c->live = c->n;
    c->any_grid_wait = false;
    for (uint32_t i = 0; i < c->n; i++)
        fiber_start(c, i);
    for (uint32_t i = 0; i < n_warps; i++) {
        order[i] = i;
        c->warps[i].ready = 0xffffffffu;
    }
    uint32_t behind = shuffle ? (uint32_t)(next_random(c) & next_random(c)) : 0;
    while (c->live) {
        bool ran = false, idle = false;
        for (uint32_t i = 0; i < n_warps; i++) {
            uint64_t r = shuffle ? next_random(c) : 0;
            uint32_t j = shuffle ? i + (uint32_t)(r >> 32) % (n_warps - i) : i, w = order[j];
            order[j] = order[i];
            order[i] = w;
            if (!c->warps[w].ready)
                continue;
            if (behind >> w & 1 || (shuffle && (r & 3) == 3))
                idle = true;
            else
                ran |= run_warp(c, w, (uint32_t)(r >> 8) & 31, r >> 2 & 1);
        }
        if (ran)
            continue;
        if (!idle && c->live)
            release(c);
        /* Others are behind in what comes next, and those that were may go on. */
        behind = shuffle && !idle ? (uint32_t)(next_random(c) & next_random(c)) : 0;
    }
    for (uint32_t i = 0; i < c->n && c->any_grid_wait; i++)
        if (!c->fibers[i].waited)
            emu_die("a thread ended without waiting for the grid before it", NULL);
}

/* ---- launches ---- */

static struct fiber *fibers_get(void)
{
    static _Thread_local struct fiber *fibers;
    if (fibers)
        return fibers;
    fibers = calloc(THREADS_MAX, sizeof *fibers);
    uint8_t *stacks = mmap(NULL, (size_t)THREADS_MAX * STACK_BYTES, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!fibers || stacks == MAP_FAILED) {
        fprintf(stderr, "emu: out of memory\n");
        abort();
    }
    for (size_t i = 0; i < THREADS_MAX; i++)
        fibers[i].stack = stacks + i * STACK_BYTES;
    return fibers;
}

void emu_run(const struct emu_launch *l)
{
    static _Thread_local struct cta c;
    c = (struct cta){.launch = l, .fibers = fibers_get(), .random = seed_next};
    c.n = l->block[0] * l->block[1] * l->block[2];
    c.current = c.fibers;
    if (cta) {
        fprintf(stderr, "emu: %s launched from a kernel\n", l->name);
        abort();
    }
    cta = &c;
    if (posix_memalign(&c.dynamic, 128, l->shared ? l->shared : 1))
        emu_die("out of memory", NULL);
    emu_block_dim = (struct uint3){l->block[0], l->block[1], l->block[2]};
    emu_grid_dim = (struct uint3){l->grid[0], l->grid[1], l->grid[2]};
    uint64_t n = (uint64_t)l->grid[0] * l->grid[1] * l->grid[2];
    bool shuffle = seed_next != 0;
    /* A random start and a step that is prime to n visit every block once. */
    uint64_t at = shuffle ? next_random(&c) % n : 0, step = 1;
    if (shuffle && n > 2)
        for (step = next_random(&c) % n;; step++) {
            uint64_t a = step, b = n;
            while (b) {
                uint64_t t = a % b;
                a = b;
                b = t;
            }
            if (a == 1)
                break;
        }
    for (uint64_t i = 0; i < n; i++, at = (at + step) % n) {
        emu_block_idx =
            (struct uint3){(uint32_t)(at % l->grid[0]), (uint32_t)(at / l->grid[0] % l->grid[1]),
                           (uint32_t)(at / l->grid[0] / l->grid[1])};
        run_block(&c, shuffle);
    }
    size_t shared = l->shared;
    for (uint32_t i = 0; i < c.n_arrays; i++) {
        shared += c.arrays[i].bytes;
        free(c.arrays[i].p);
    }
    free(c.dynamic);
    shared_max = shared > shared_max ? shared : shared_max;
    if (shared > SHARED_LIMIT)
        emu_die("more shared memory than a multiprocessor has", NULL);
    seed_next = shuffle ? next_random(&c) | 1 : 0;
    n_launches++;
    cta = NULL;
}

static void run_copy(const void *args)
{
    emu_run(args);
}

int emu_submit(void *stream, const char *name, void (*body)(const void *args), const uint32_t *grid,
               const uint32_t *block, size_t shared, const void *args, size_t n_args)
{
    uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
    struct emu_launch l;
    memset(&l, 0, sizeof l); /* gaps as well: the fake looks for stale addresses in all of it */
    l.body = body;
    l.shared = shared;
    if (n_args > sizeof l.args) {
        fprintf(stderr, "emu: %s: %zu bytes of arguments\n", name, n_args);
        abort();
    }
    if (threads == 0 || threads > THREADS_MAX || threads % 32 || shared > SHARED_LIMIT ||
        grid[0] == 0 || grid[1] == 0 || grid[2] == 0 || grid[1] > 65535 || grid[2] > 65535)
        return 9;
    memcpy(l.grid, grid, sizeof l.grid);
    memcpy(l.block, block, sizeof l.block);
    memcpy(l.args, args, n_args);
    snprintf(l.name, sizeof l.name, "%s", name);
    if (stream && fake_gpu_enqueue)
        return fake_gpu_enqueue(stream, name, run_copy, &l, sizeof l);
    emu_run(&l);
    return 0;
}

void emu_seed(uint64_t seed)
{
    seed_next = seed;
}

void emu_before_dependent(void (*fn)(void *arg), void *arg)
{
    dependent_fn = fn;
    dependent_arg = arg;
}

uint64_t emu_launches(void)
{
    return n_launches;
}

size_t emu_shared_max(void)
{
    return shared_max;
}
