/* ticket: states, capacity rule and verification of the decode side; see ticket.h.
 *
 * Invariants, checked where they change: a ticket is on `waiting` exactly while WAITING and has no
 * blocks then; it can be found by id from RESERVED to ACTIVE and by key until it ends; it owns one
 * reference on each of blocks[0..n_blocks) until FREE. What is good was begun; what is begun and
 * not good has a receive in flight. */
#include "common/worker/ticket.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/rng.h"

#define REPAIRS_MAX    3
#define TOMBSTONES_MAX 65536

struct tombstone {
    UT_hash_handle hh;
    struct list node; /* table.tombs_by_age */
    struct tomb_key {
        uint64_t router, counter, attempt;
    } key;
    uint64_t expires;
};

static const char *const names[] = {"waiting", "reserved",   "filling", "sealed",
                                    "active",  "quarantine", "free"};

const char *ticket_state_name(enum ticket_state s)
{
    return names[s];
}

/* Which edges there are: bit `to` of edges[from]. */
static const uint32_t edges[] = {
    [TICKET_WAITING] = 1u << TICKET_RESERVED | 1u << TICKET_FREE,
    [TICKET_RESERVED] = 1u << TICKET_FILLING | 1u << TICKET_SEALED | 1u << TICKET_FREE,
    [TICKET_FILLING] = 1u << TICKET_SEALED | 1u << TICKET_QUARANTINE | 1u << TICKET_FREE,
    [TICKET_SEALED] = 1u << TICKET_ACTIVE | 1u << TICKET_QUARANTINE | 1u << TICKET_FREE,
    [TICKET_ACTIVE] = 1u << TICKET_QUARANTINE | 1u << TICKET_FREE,
    [TICKET_QUARANTINE] = 1u << TICKET_FREE,
    [TICKET_FREE] = 0,
};

static uint32_t *counter_of(struct ticket_table *t, enum ticket_state s)
{
    switch (s) {
    case TICKET_WAITING:
        return &t->n_waiting;
    case TICKET_RESERVED:
    case TICKET_FILLING:
    case TICKET_SEALED:
        return &t->n_granted;
    case TICKET_ACTIVE:
        return &t->n_active;
    case TICKET_QUARANTINE:
        return &t->n_quarantine;
    case TICKET_FREE:
        break;
    }
    return NULL;
}

/* The only writer of a ticket's state. */
static void ticket_set_state(struct ticket_table *t, struct ticket *k, enum ticket_state to)
{
    ASSERT_MSG(edges[k->state] & 1u << to, "ticket of %s: %s -> %s", seq_text(&k->key),
               names[k->state], names[to]);
    log_trace_about(ticket_about(k), "ticket %s: %s -> %s", seq_text(&k->key), names[k->state],
                    names[to]);
    --*counter_of(t, k->state);
    k->state = to;
    uint32_t *n = counter_of(t, to);
    if (n)
        ++*n;
}

void ticket_table_init(struct ticket_table *t, const struct ticket_config *c, struct kv_pool *pool)
{
    *t = (struct ticket_table){.config = *c, .pool = pool};
    list_init(&t->all);
    list_init(&t->waiting);
    list_init(&t->tombs_by_age);
}

static void drop_earlier(struct ticket *k)
{
    for (uint32_t i = 0; i < k->n_earlier; i++)
        free(k->earlier[i].top);
    free(k->earlier);
    k->earlier = NULL;
    k->n_earlier = 0;
}

static void ticket_destroy(struct ticket_table *t, struct ticket *k)
{
    for (uint32_t i = 0; i < k->n_blocks; i++)
        kv_pool_put(t->pool, k->blocks[i]);
    list_remove(&k->node);
    if (k->handed)
        spec_fini(&k->spec);
    drop_earlier(k);
    guide_destroy(k->guide);
    free(k->replica);
    free(k->tokens);
    free(k->salt);
    free(k->blocks);
    free(k->begun);
    free(k->good);
    free(k);
}

static void unlink_names(struct ticket_table *t, struct ticket *k)
{
    if (k->by_id.tbl)
        HASH_DELETE(by_id, t->by_id, k);
    if (k->by_key.tbl)
        HASH_DELETE(by_key, t->by_key, k);
    k->by_id.tbl = k->by_key.tbl = NULL;
}

static void tomb_free(struct ticket_table *t, struct tombstone *b)
{
    HASH_DEL(t->tombs, b);
    list_remove(&b->node);
    t->n_tombs--;
    free(b);
}

void ticket_table_fini(struct ticket_table *t)
{
    LIST_FOR_SAFE (n, &t->all) {
        struct ticket *k = container_of(n, struct ticket, node);
        unlink_names(t, k);
        list_remove(&k->wait);
        stream_drop(k->stream);
        ticket_destroy(t, k);
    }
    LIST_FOR_SAFE (n, &t->tombs_by_age)
        tomb_free(t, container_of(n, struct tombstone, node));
}

/* Tombstones. */

static struct tombstone *tomb_find(struct ticket_table *t, uint64_t router, uint64_t counter,
                                   uint32_t attempt)
{
    struct tomb_key key = {router, counter, attempt};
    struct tombstone *b;
    HASH_FIND(hh, t->tombs, &key, sizeof key, b);
    return b;
}

void ticket_tombstone(struct ticket_table *t, uint64_t now, uint64_t router, uint64_t counter,
                      uint32_t attempt)
{
    while (!list_empty(&t->tombs_by_age)) {
        struct tombstone *old = container_of(t->tombs_by_age.next, struct tombstone, node);
        if (old->expires > now && t->n_tombs < TOMBSTONES_MAX)
            break;
        tomb_free(t, old);
    }
    struct tombstone *b = tomb_find(t, router, counter, attempt);
    if (b)
        return;
    b = calloc(1, sizeof *b);
    if (!b)
        return; /* without it a late RESERVE is granted; the lease ends it */
    b->key = (struct tomb_key){router, counter, attempt};
    b->expires = now + t->config.lease_ms;
    HASH_ADD(hh, t->tombs, key, sizeof b->key, b);
    if (!b->hh.tbl) {
        free(b);
        return;
    }
    list_push_back(&t->tombs_by_age, &b->node);
    t->n_tombs++;
}

bool ticket_buried(struct ticket_table *t, uint64_t now, const struct seq_key *k)
{
    struct tombstone *b = tomb_find(t, k->router, k->counter, k->attempt);
    return b && b->expires > now;
}

/* Reservation. */

static struct ticket *ticket_create(struct ticket_table *t, const struct ticket_request *r)
{
    struct ticket *k = calloc(1, sizeof *k);
    if (!k)
        return NULL;
    list_init(&k->wait);
    k->key = r->key;
    k->source = r->source;
    k->priority = r->priority;
    k->copy = r->copy;
    k->n_kv = r->n_tokens;
    k->n_tokens = r->n_ids;
    k->n_sent = k->stride = blocks_for(r->n_tokens, t->config.block_size);
    k->tokens = mem_dup(r->ids, r->n_ids * sizeof *r->ids);
    k->salt = mem_dup(r->salt, r->n_salt);
    k->n_salt = r->n_salt;
    k->blocks_cap = k->n_sent + 1;
    k->blocks = mem_array(k->blocks_cap, sizeof *k->blocks);
    size_t words = ((size_t)k->n_sent * t->config.n_layers + 63) / 64;
    k->begun = mem_array(words, 8);
    k->good = mem_array(words, 8);
    list_push_back(&t->all, &k->node);
    if (!k->tokens || !k->salt || !k->blocks || !k->begun || !k->good) {
        ticket_destroy(t, k);
        return NULL;
    }
    HASH_ADD(by_key, t->by_key, key, sizeof k->key, k);
    if (!k->by_key.tbl) {
        ticket_destroy(t, k);
        return NULL;
    }
    return k;
}

enum proto_reason ticket_reserve(struct ticket_table *t, uint64_t now,
                                 const struct ticket_request *r, struct ticket **out)
{
    struct ticket *k = ticket_by_key(t, &r->key);
    if (k) {
        *out = k;
        return k->source == r->source && (k->handed || k->n_kv == r->n_tokens)
                   ? PROTO_REASON_NONE
                   : PROTO_REASON_INVALID;
    }
    if (ticket_buried(t, now, &r->key))
        return PROTO_REASON_CANCELED;
    if (r->n_ids == 0 || r->n_ids > r->n_tokens || r->n_tokens > t->config.context)
        return PROTO_REASON_INVALID;
    if (blocks_for(r->n_tokens, t->config.block_size) + 1 > kv_pool_size(t->pool))
        return PROTO_REASON_TOO_LARGE;
    if (t->n_waiting >= t->config.waiting_max)
        return PROTO_REASON_FULL;
    k = ticket_create(t, r);
    if (!k)
        return PROTO_REASON_FULL;
    t->n_waiting++;
    struct list *at = t->waiting.prev; /* behind the last one of at least its priority */
    while (at != &t->waiting && container_of(at, struct ticket, wait)->priority < k->priority)
        at = at->prev;
    list_push_front(at, &k->wait);
    *out = k;
    return PROTO_REASON_NONE;
}

/* R7: what stays free must give every sequence that runs, or will, one block to grow into. */
uint32_t ticket_spare(const struct ticket_table *t)
{
    return t->n_active + t->n_granted + 1;
}

static bool take_blocks(struct ticket_table *t, struct ticket *k)
{
    uint32_t most = (k->n_tokens - 1) / t->config.block_size;
    uint32_t held =
        kv_prefix_lookup(t->pool, k->salt, k->n_salt, k->tokens, k->n_tokens, most, k->blocks);
    uint32_t need = k->n_sent - held;
    if (kv_pool_free(t->pool) >= (uint64_t)need + ticket_spare(t) &&
        kv_pool_alloc(t->pool, need, k->blocks + held) == STATUS_OK) {
        k->held = held;
        k->n_blocks = k->n_sent;
        k->n_want = need * t->config.n_layers;
        return true;
    }
    for (uint32_t i = 0; i < held; i++)
        kv_pool_put(t->pool, k->blocks[i]);
    return false;
}

struct ticket *ticket_admit(struct ticket_table *t, uint64_t now)
{
    if (list_empty(&t->waiting))
        return NULL;
    struct ticket *k = container_of(t->waiting.next, struct ticket, wait);
    if (!take_blocks(t, k))
        return NULL;
    rng_bytes(k->id, sizeof k->id);
    HASH_ADD(by_id, t->by_id, id, sizeof k->id, k);
    if (!k->by_id.tbl) {
        for (uint32_t i = 0; i < k->n_blocks; i++)
            kv_pool_put(t->pool, k->blocks[i]);
        k->n_blocks = k->held = 0;
        return NULL;
    }
    list_remove(&k->wait);
    k->admitted = ++t->grants;
    k->deadline = now + t->config.lease_ms;
    ticket_set_state(t, k, TICKET_RESERVED);
    return k;
}

struct ticket *ticket_by_id(struct ticket_table *t, const uint8_t id[16])
{
    struct ticket *k;
    HASH_FIND(by_id, t->by_id, id, 16, k);
    return k;
}

struct ticket *ticket_by_key(struct ticket_table *t, const struct seq_key *key)
{
    struct ticket *k;
    HASH_FIND(by_key, t->by_key, key, sizeof *key, k);
    return k;
}

/* KV. */

static bool bit(const uint64_t *map, size_t i)
{
    return map[i / 64] >> i % 64 & 1;
}
static void bit_set(uint64_t *map, size_t i)
{
    map[i / 64] |= (uint64_t)1 << i % 64;
}
static void bit_clear(uint64_t *map, size_t i)
{
    map[i / 64] &= ~((uint64_t)1 << i % 64);
}
static size_t cell(const struct ticket *k, uint32_t layer, uint32_t index)
{
    return (size_t)layer * k->stride + index;
}

bool ticket_kv_begin(struct ticket_table *t, struct ticket *k, uint64_t now, uint32_t layer,
                     uint32_t first, uint32_t n)
{
    if ((k->state != TICKET_RESERVED && k->state != TICKET_FILLING) ||
        layer >= t->config.n_layers || first < k->held || n == 0 || n > k->n_sent ||
        first > k->n_sent - n)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        if (bit(k->begun, cell(k, layer, first + i)))
            return false;
    }
    for (uint32_t i = 0; i < n; i++)
        bit_set(k->begun, cell(k, layer, first + i));
    if (k->state == TICKET_RESERVED)
        ticket_set_state(t, k, TICKET_FILLING);
    k->holds++;
    k->deadline = now + t->config.lease_ms;
    return true;
}

void ticket_kv_end(struct ticket_table *t, struct ticket *k, uint64_t now, uint32_t layer,
                   uint32_t first, uint32_t n, const uint64_t *sums, const bool *right)
{
    for (uint32_t i = 0; i < n; i++) {
        size_t c = cell(k, layer, first + i);
        ASSERT(bit(k->begun, c) && !bit(k->good, c));
        if (!right || !right[i]) {
            bit_clear(k->begun, c);
            continue;
        }
        bit_set(k->good, c);
        k->n_good++;
        k->digest += digest_term(layer, first + i, sums[i]);
    }
    k->deadline = now + t->config.lease_ms;
    ticket_unhold(t, k);
}

/* Hand-over. */

/* Token i of prompt and answer. */
static int32_t token_at(const struct proto_job *j, uint32_t i)
{
    return i < j->prompt.n ? j->prompt.p[i] : j->emitted.p[i - j->prompt.n];
}

/* Does the job fit what was reserved, and does it begin with what the prefix was looked up for? */
static bool fits_reservation(const struct ticket *k, const struct proto_handoff *h)
{
    const struct proto_job *j = &h->job;
    if (j->emitted.n == 0 || j->prompt.n + j->emitted.n - 1 < k->n_tokens ||
        j->prompt.n + j->emitted.n - 1 > k->n_kv ||
        h->last.token != j->emitted.p[j->emitted.n - 1] || h->last.position != j->emitted.n - 1 ||
        h->last.n_top > PROTO_TOP_MAX || h->n_earlier > h->last.position)
        return false;
    for (uint32_t i = 0; i < k->n_tokens; i++) {
        if (k->tokens[i] != token_at(j, i))
            return false;
    }
    for (uint32_t i = 0; i < h->n_earlier; i++) {
        uint32_t position = h->last.position - h->n_earlier + i;
        if (h->earlier[i].position != position || h->earlier[i].token != j->emitted.p[position] ||
            h->earlier[i].n_top > PROTO_TOP_MAX || h->earlier[i].finish != PROTO_FINISH_NONE)
            return false;
    }
    return j->salt.n == k->n_salt && (k->n_salt == 0 || memcmp(j->salt.p, k->salt, k->n_salt) == 0);
}

/* n_kv positions it is, in the end: the blocks for more go back. INVALID: KV came for them. */
static enum proto_reason settle_size(struct ticket_table *t, struct ticket *k,
                                     const struct proto_job *j)
{
    uint32_t n_kv = (uint32_t)(j->prompt.n + j->emitted.n - 1);
    uint32_t n_sent = blocks_for(n_kv, t->config.block_size);
    for (uint32_t l = 0; l < t->config.n_layers; l++) {
        for (uint32_t i = n_sent; i < k->n_sent; i++) {
            if (bit(k->begun, cell(k, l, i)))
                return PROTO_REASON_INVALID;
        }
    }
    int32_t *tokens = mem_resize(k->tokens, n_kv, sizeof *tokens);
    if (!tokens)
        return PROTO_REASON_FULL;
    k->tokens = tokens;
    for (uint32_t i = k->n_tokens; i < n_kv; i++)
        k->tokens[i] = token_at(j, i);
    k->n_tokens = k->n_kv = n_kv;
    while (k->n_blocks > n_sent)
        kv_pool_put(t->pool, k->blocks[--k->n_blocks]);
    k->n_sent = n_sent;
    k->n_want = (n_sent - k->held) * t->config.n_layers;
    return PROTO_REASON_NONE;
}

static bool copy_earlier(struct ticket *k, const struct proto_handoff *h)
{
    drop_earlier(k);
    if (h->n_earlier == 0)
        return true;
    k->earlier = mem_array(h->n_earlier, sizeof *k->earlier);
    for (uint32_t i = 0; k->earlier && i < h->n_earlier; i++) {
        struct proto_token t = h->earlier[i];
        t.top = t.n_top ? mem_dup(t.top, t.n_top * sizeof *t.top) : NULL;
        if (t.n_top && !t.top)
            return false;
        k->earlier[k->n_earlier++] = t;
    }
    return k->earlier != NULL;
}

enum proto_reason ticket_handoff(struct ticket_table *t, struct ticket *k,
                                 const struct proto_handoff *h)
{
    if ((k->state != TICKET_RESERVED && k->state != TICKET_FILLING) || !fits_reservation(k, h))
        return PROTO_REASON_INVALID;
    enum proto_reason bad = settle_size(t, k, &h->job);
    if (bad != PROTO_REASON_NONE)
        return bad;
    if (!k->handed) {
        if (spec_copy(&k->spec, &h->job) != STATUS_OK)
            return PROTO_REASON_FULL;
        k->handed = true;
    }
    if (!copy_earlier(k, h))
        return PROTO_REASON_FULL;
    k->want_digest = h->digest;
    k->last = h->last;
    if (h->last.n_top)
        memcpy(k->last_top, h->last.top, h->last.n_top * sizeof *k->last_top);
    k->last.top = k->last_top;
    k->last.finish = PROTO_FINISH_NONE;
    return PROTO_REASON_NONE;
}

static uint32_t list_missing(struct ticket_table *t, struct ticket *k, struct proto_extent *list,
                             uint32_t max)
{
    uint32_t n = 0;
    for (uint32_t l = 0; l < t->config.n_layers; l++) {
        for (uint32_t i = k->held; i < k->n_sent; i++) {
            if (bit(k->good, cell(k, l, i)))
                continue;
            if (n > 0 && list[n - 1].layer == l && list[n - 1].first + list[n - 1].n == i) {
                list[n - 1].n++;
            } else if (n < max) {
                list[n++] = (struct proto_extent){.layer = l, .first = i, .n = 1};
            } else {
                return n;
            }
        }
    }
    return n;
}

enum ticket_verdict ticket_verify(struct ticket_table *t, struct ticket *k,
                                  struct proto_extent *list, uint32_t max, uint32_t *n)
{
    ASSERT(k->handed);
    *n = 0;
    if (k->holds > 0)
        return TICKET_PENDING;
    if (k->n_good == k->n_want && k->digest == k->want_digest)
        return TICKET_COMPLETE;
    if (++k->repairs > REPAIRS_MAX)
        return TICKET_HOPELESS;
    if (k->n_good == k->n_want) { /* each right by itself, but not what was sent: all again */
        size_t words = ((size_t)k->stride * t->config.n_layers + 63) / 64;
        memset(k->begun, 0, words * 8);
        memset(k->good, 0, words * 8);
        k->n_good = 0;
        k->digest = 0;
    }
    *n = list_missing(t, k, list, max);
    return TICKET_MISSING;
}

void ticket_seal(struct ticket_table *t, struct ticket *k)
{
    ASSERT(k->n_good == k->n_want && k->holds == 0);
    kv_prefix_insert(t->pool, k->salt, k->n_salt, k->tokens, k->n_kv, k->blocks);
    ticket_set_state(t, k, TICKET_SEALED);
}

struct ticket *ticket_adopt(struct ticket_table *t, const struct ticket_request *r,
                            const uint32_t *blocks, const struct proto_handoff *h)
{
    struct ticket *k = ticket_create(t, r);
    if (!k)
        return NULL;
    t->n_waiting++;
    rng_bytes(k->id, sizeof k->id);
    HASH_ADD(by_id, t->by_id, id, sizeof k->id, k);
    k->n_blocks = k->held = k->n_sent;
    for (uint32_t i = 0; i < k->n_blocks; i++) {
        kv_pool_get(t->pool, blocks[i]);
        k->blocks[i] = blocks[i];
    }
    k->admitted = ++t->grants;
    ticket_set_state(t, k, TICKET_RESERVED);
    if (!k->by_id.tbl || ticket_handoff(t, k, h) != PROTO_REASON_NONE) {
        ticket_end(t, k);
        return NULL;
    }
    ticket_seal(t, k);
    return k;
}

int ticket_activate(struct ticket_table *t, struct ticket *k, uint64_t now)
{
    const struct proto_job *j = &k->spec.job;
    uint64_t most = (uint64_t)j->prompt.n + j->max_tokens;
    if (most > (uint64_t)t->config.context + 1)
        most = (uint64_t)t->config.context + 1;
    if (most < (uint64_t)k->n_kv + 1)
        most = (uint64_t)k->n_kv + 1;
    uint32_t cap = blocks_for((uint32_t)most, t->config.block_size) + 1;
    int32_t *tokens = mem_resize(k->tokens, most, sizeof *tokens);
    if (!tokens)
        return STATUS_NOMEM;
    k->tokens = tokens;
    uint32_t *blocks = mem_resize(k->blocks, cap, sizeof *blocks);
    if (!blocks)
        return STATUS_NOMEM;
    k->blocks = blocks;
    k->blocks_cap = cap;
    ASSERT(k->n_blocks <= k->blocks_cap);
    k->tokens[k->n_kv] = k->last.token;
    k->n_tokens = k->n_kv + 1;
    k->emitted = (uint32_t)j->emitted.n;
    k->expires_ms = j->deadline_ms ? now + j->deadline_ms : 0;
    ticket_set_state(t, k, TICKET_ACTIVE);
    return STATUS_OK;
}

static int grow_to(struct ticket_table *t, struct ticket *k, uint32_t n_tokens)
{
    ASSERT(k->state == TICKET_ACTIVE);
    uint32_t need = blocks_for(n_tokens, t->config.block_size);
    if (need <= k->n_blocks)
        return STATUS_OK;
    ASSERT(need == k->n_blocks + 1 && need <= k->blocks_cap);
    TRY(kv_pool_alloc(t->pool, 1, k->blocks + k->n_blocks));
    k->n_blocks = need;
    return STATUS_OK;
}

int ticket_grow(struct ticket_table *t, struct ticket *k)
{
    return grow_to(t, k, k->n_tokens);
}

int ticket_grow_ahead(struct ticket_table *t, struct ticket *k)
{
    return grow_to(t, k, k->n_tokens + 1);
}

bool ticket_fits(const struct ticket_table *t, const struct ticket *k)
{
    return blocks_for(k->n_tokens, t->config.block_size) <= kv_pool_size(t->pool);
}

struct ticket *ticket_youngest(struct ticket_table *t)
{
    struct ticket *best = NULL;
    LIST_FOR (n, &t->all) {
        struct ticket *k = container_of(n, struct ticket, node);
        if (k->state < TICKET_RESERVED || k->state > TICKET_ACTIVE)
            continue;
        if (!best || k->copy > best->copy ||
            (k->copy == best->copy && k->admitted > best->admitted))
            best = k;
    }
    return best;
}

/* The end. */

void ticket_hold(struct ticket *k)
{
    k->holds++;
}

void ticket_unhold(struct ticket_table *t, struct ticket *k)
{
    ASSERT(k->holds > 0);
    if (--k->holds > 0 || k->state != TICKET_QUARANTINE)
        return;
    ticket_set_state(t, k, TICKET_FREE);
    ticket_destroy(t, k);
}

void ticket_end(struct ticket_table *t, struct ticket *k)
{
    if (k->state == TICKET_QUARANTINE)
        return;
    unlink_names(t, k);
    list_remove(&k->wait);
    k->stream = NULL;
    if (k->holds > 0) {
        ticket_set_state(t, k, TICKET_QUARANTINE);
        return;
    }
    ticket_set_state(t, k, TICKET_FREE);
    ticket_destroy(t, k);
}

struct ticket *ticket_expired(struct ticket_table *t, uint64_t now)
{
    LIST_FOR (n, &t->all) {
        struct ticket *k = container_of(n, struct ticket, node);
        if (k->state >= TICKET_RESERVED && k->state <= TICKET_SEALED && k->deadline <= now)
            return k;
    }
    return NULL;
}
