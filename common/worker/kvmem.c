/* kvmem: KV blocks as the data link sees them.
 *
 * KV in host memory goes out and comes in where it lies. KV on a device does too when UCX knows the
 * device's memory and the blocks lie side by side: checksums are then computed there. Otherwise
 * (also for the few bytes that a message brings along, which only the CPU can put in place) blocks
 * pass through page-locked host memory: a bounded number of buffers of one extent each, for what
 * goes out and for what comes in. Without a buffer nothing is sent; the sender goes on when one is
 * given back.
 * What comes in cannot wait: beyond the buffers it lands in ordinary memory, up to a bound, and is
 * copied through the one buffer that is kept for that; beyond the bound it is refused, and the
 * decode worker asks for it again.
 *
 * Copies to and from a device are waited for here, on the loop thread: at most 4 MiB at a time, a
 * tenth of a millisecond. In return a block that is handed on is complete, and a sequence joins
 * only a step that is launched afterwards. */
#include "common/worker/internal.h"

#include <string.h>

#define STAGING_BYTES ((size_t)128 << 20)
#define BUFFERS_MIN   6
#define BUFFERS_MAX   32
#define HEAP_MAX      256 /* buffers in ordinary memory */

struct kv_buffer {
    struct kv_buffer *next;
    bool heap;
    uint8_t *p;
};

struct kvmem {
    bool direct; /* UCX reaches the device */
    size_t size;
    struct kv_buffer *all, *free_out, *free_in, *bounce;
    uint32_t n, heap;
};

static int buffers_create(struct worker *w, struct kvmem *m)
{
    uint32_t n = m->direct ? 0 : (uint32_t)(STAGING_BYTES / m->size);
    n = n < BUFFERS_MIN ? BUFFERS_MIN : n > BUFFERS_MAX ? BUFFERS_MAX : n;
    m->all = mem_array(n, sizeof *m->all);
    if (!m->all)
        return STATUS_NOMEM;
    for (m->n = 0; m->n < n; m->n++) {
        struct kv_buffer *b = &m->all[m->n];
        b->p = engine_host_alloc(engine_thread_engine(w->engine), m->size);
        if (!b->p)
            return STATUS_NOMEM;
        struct kv_buffer **list = m->n == 0 ? &m->bounce : m->n % 2 ? &m->free_out : &m->free_in;
        b->next = *list;
        *list = b;
    }
    return STATUS_OK;
}

int kvmem_open(struct worker *w)
{
    if (!w->info.kv_on_device)
        return STATUS_OK;
    struct kvmem *m = w->kvmem = calloc(1, sizeof *m);
    if (!m)
        return STATUS_NOMEM;
    size_t all = (size_t)w->info.kv_block_bytes * w->info.n_layers * (kv_pool_size(w->pool) + 1);
    m->size = w->info.kv_block_bytes * XFER_EXTENT_BLOCKS_MAX;
    m->direct = xfer_mem_adopt(w->xfer, w->kv, all) == STATUS_OK;
    TRY(buffers_create(w, m));
    log_info("KV lies on the device, and %s",
             m->direct ? "UCX reaches it there"
                       : "passes through page-locked memory to the network");
    return STATUS_OK;
}

void kvmem_close(struct worker *w)
{
    struct kvmem *m = w->kvmem;
    if (!m)
        return;
    for (uint32_t i = 0; i < m->n; i++)
        engine_host_free(engine_thread_engine(w->engine), m->all[i].p);
    free(m->all);
    free(m);
    w->kvmem = NULL;
}

bool kvmem_can_send(const struct worker *w)
{
    return !w->kvmem || w->kvmem->free_out;
}

/* Where the blocks lie, merged where they are neighbours. */
static size_t addresses(const struct worker *w, uint32_t layer, const uint32_t *ids, uint32_t n,
                        struct xfer_iov *iov)
{
    size_t size = w->info.kv_block_bytes, n_iov = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint8_t *p = engine_kv_block(engine_thread_engine(w->engine), layer, ids[i]);
        if (n_iov > 0 && (uint8_t *)iov[n_iov - 1].p + iov[n_iov - 1].n == p)
            iov[n_iov - 1].n += size;
        else
            iov[n_iov++] = (struct xfer_iov){p, size};
    }
    return n_iov;
}

static void sums_of(const void *p, size_t size, uint32_t n, uint64_t *sums)
{
    for (uint32_t i = 0; i < n; i++)
        sums[i] = hash_kv((const uint8_t *)p + i * size, size);
}

int kvmem_send(struct worker *w, uint32_t layer, const uint32_t *ids, uint32_t n, uint64_t *sums,
               struct xfer_iov *iov, size_t *n_iov, struct kv_buffer **hold)
{
    struct engine *e = engine_thread_engine(w->engine);
    struct kvmem *m = w->kvmem;
    *hold = NULL;
    *n_iov = addresses(w, layer, ids, n, iov);
    if (m && (!m->direct || *n_iov > 1)) {
        struct kv_buffer *b = m->free_out;
        ASSERT(b);
        TRY(engine_kv_read(e, layer, ids, n, b->p));
        m->free_out = b->next;
        sums_of(b->p, w->info.kv_block_bytes, n, sums);
        iov[0] = (struct xfer_iov){b->p, n * w->info.kv_block_bytes};
        *n_iov = 1;
        *hold = b;
        return STATUS_OK;
    }
    if (m)
        return engine_kv_sums(e, layer, ids, n, sums);
    for (uint32_t i = 0; i < n; i++)
        sums[i] = hash_kv(engine_kv_block(e, layer, ids[i]), w->info.kv_block_bytes);
    return STATUS_OK;
}

bool kvmem_sent(struct worker *w, struct kv_buffer *hold)
{
    if (!hold)
        return false;
    bool waited = !w->kvmem->free_out;
    hold->next = w->kvmem->free_out;
    w->kvmem->free_out = hold;
    return waited;
}

static struct kv_buffer *heap_buffer(struct kvmem *m, size_t bytes)
{
    struct kv_buffer *b = m->heap < HEAP_MAX ? malloc(sizeof *b + bytes) : NULL;
    if (!b)
        return NULL;
    *b = (struct kv_buffer){.heap = true, .p = (uint8_t *)(b + 1)};
    m->heap++;
    return b;
}

bool kvmem_receive(struct worker *w, uint32_t layer, const uint32_t *ids, uint32_t n, bool copied,
                   struct xfer_iov *iov, size_t *n_iov, struct kv_buffer **hold)
{
    struct kvmem *m = w->kvmem;
    *hold = NULL;
    for (uint32_t i = 0; m && i < n; i++)
        engine_kv_incoming(engine_thread_engine(w->engine), layer, ids[i]);
    *n_iov = addresses(w, layer, ids, n, iov);
    if (!m || (m->direct && !copied && *n_iov == 1))
        return true;
    struct kv_buffer *b = m->free_in;
    if (b)
        m->free_in = b->next;
    else
        b = heap_buffer(m, n * w->info.kv_block_bytes);
    if (!b)
        return false;
    iov[0] = (struct xfer_iov){b->p, n * w->info.kv_block_bytes};
    *n_iov = 1;
    *hold = b;
    return true;
}

static void give_back(struct kvmem *m, struct kv_buffer *b)
{
    if (!b)
        return;
    if (b->heap) {
        m->heap--;
        free(b);
        return;
    }
    b->next = m->free_in;
    m->free_in = b;
}

static int put(struct worker *w, uint32_t layer, const uint32_t *ids, uint32_t n,
               const struct kv_buffer *b)
{
    const uint8_t *from = b->p;
    if (b->heap)
        from = memcpy(w->kvmem->bounce->p, b->p, n * w->info.kv_block_bytes);
    return engine_kv_write(engine_thread_engine(w->engine), layer, ids, n, from);
}

int kvmem_received(struct worker *w, uint32_t layer, const uint32_t *ids, uint32_t n,
                   struct kv_buffer *hold, const uint64_t *sums, bool *right)
{
    struct engine *e = engine_thread_engine(w->engine);
    struct kvmem *m = w->kvmem;
    uint64_t got[XFER_EXTENT_BLOCKS_MAX];
    int rc = STATUS_OK;
    if (hold)
        sums_of(hold->p, w->info.kv_block_bytes, n, got);
    else if (m)
        rc = engine_kv_sums(e, layer, ids, n, got);
    for (uint32_t i = 0; i < n && rc == STATUS_OK; i++) {
        if (!m)
            got[i] = hash_kv(engine_kv_block(e, layer, ids[i]), w->info.kv_block_bytes);
        right[i] = got[i] == sums[i];
        if (m && !hold && right[i])
            engine_kv_arrived(e, layer, ids[i]);
    }
    if (hold && rc == STATUS_OK)
        rc = put(w, layer, ids, n, hold);
    give_back(m, hold);
    return rc;
}

void kvmem_dropped(struct worker *w, struct kv_buffer *hold)
{
    give_back(w->kvmem, hold);
}
