/* ticket: the decode side's states as pure functions, under a clock of the test's own. */
#include "common/worker/ticket.h"

#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"

#define LAYERS 3
#define LEASE  1000

static struct kv_pool *pool;
static struct ticket_table table;
static int32_t ids[4096];
static uint64_t now;

static void open_table(uint32_t blocks, bool prefix)
{
    struct ticket_config c = {
        .n_layers = LAYERS, .block_size = 16, .context = 4096, .lease_ms = LEASE, .waiting_max = 8};
    now = 1000;
    ck_assert_ok(kv_pool_create(blocks + 1, 16, prefix, &pool));
    ticket_table_init(&table, &c, pool);
    for (int i = 0; i < 4096; i++)
        ids[i] = i;
}

static void close_table(void)
{
    ticket_table_fini(&table);
    ck_assert_uint_eq(kv_pool_free(pool), kv_pool_size(pool));
    kv_pool_destroy(pool);
}

static enum proto_reason reserve(uint64_t counter, uint32_t n, uint32_t priority,
                                 struct ticket **out)
{
    struct ticket_request r = {.key = {.router = 1, .counter = counter},
                               .source = 77,
                               .ids = ids,
                               .n_ids = n,
                               .n_tokens = n,
                               .salt = "",
                               .priority = priority};
    return ticket_reserve(&table, now, &r, out);
}

static struct ticket *granted(uint64_t counter, uint32_t n)
{
    struct ticket *k;
    ck_assert_int_eq(reserve(counter, n, 0, &k), PROTO_REASON_NONE);
    ck_assert_ptr_eq(ticket_admit(&table, now), k);
    ck_assert_int_eq(k->state, TICKET_RESERVED);
    return k;
}

static uint64_t sum_of(uint32_t layer, uint32_t index)
{
    return layer * 1000 + index + 1;
}

/* One extent arrives; wrong: index of a block whose bytes are damaged, or -1. */
static void arrive(struct ticket *k, uint32_t layer, uint32_t first, uint32_t n, int wrong)
{
    uint64_t sums[64];
    bool right[64];
    ck_assert(ticket_kv_begin(&table, k, now, layer, first, n));
    for (uint32_t i = 0; i < n; i++) {
        sums[i] = sum_of(layer, first + i);
        right[i] = wrong != (int)(first + i);
    }
    ticket_kv_end(&table, k, now, layer, first, n, sums, right);
}

static uint64_t digest(const struct ticket *k)
{
    uint64_t d = 0;
    for (uint32_t l = 0; l < LAYERS; l++) {
        for (uint32_t i = k->held; i < k->n_sent; i++)
            d += digest_term(l, i, sum_of(l, i));
    }
    return d;
}

static struct proto_handoff handoff_of(const struct ticket *k, uint32_t max_tokens)
{
    static int32_t emitted[1] = {5};
    struct proto_handoff h = {.instance = 77,
                              .job = {.request = seq_request(&k->key),
                                      .prompt = {ids, k->n_kv},
                                      .emitted = {emitted, 1},
                                      .max_tokens = max_tokens},
                              .last = {.token = 5, .position = 0},
                              .digest = digest(k)};
    memcpy(h.ticket, k->id, sizeof h.ticket);
    return h;
}

static void activate(struct ticket *k, uint32_t max_tokens)
{
    struct proto_extent list[8];
    uint32_t n;
    for (uint32_t l = 0; l < LAYERS; l++) {
        if (k->held < k->n_sent)
            arrive(k, l, k->held, k->n_sent - k->held, -1);
    }
    struct proto_handoff h = handoff_of(k, max_tokens);
    ck_assert_int_eq(ticket_handoff(&table, k, &h), PROTO_REASON_NONE);
    ck_assert_int_eq(ticket_verify(&table, k, list, 8, &n), TICKET_COMPLETE);
    ticket_seal(&table, k);
    ck_assert_ok(ticket_activate(&table, k, now));
    ck_assert_int_eq(k->state, TICKET_ACTIVE);
}

START_TEST(relay_to_the_end)
{
    open_table(32, false);
    struct ticket *k = granted(1, 40);
    ck_assert_uint_eq(k->n_blocks, 3);
    ck_assert_uint_eq(kv_pool_free(pool), 29);
    ck_assert_ptr_eq(ticket_by_id(&table, k->id), k);
    activate(k, 100);
    ck_assert_uint_eq(k->n_tokens, 41);
    ck_assert_int_eq(k->tokens[40], 5);
    ck_assert_ok(ticket_grow(&table, k)); /* 41 tokens: still in the third block */
    ck_assert_uint_eq(k->n_blocks, 3);
    for (int i = 0; i < 8; i++) {
        k->tokens[k->n_tokens++] = 7;
        ck_assert_ok(ticket_grow(&table, k));
    }
    ck_assert_uint_eq(k->n_blocks, 4);
    uint8_t id[16];
    memcpy(id, k->id, 16);
    ticket_end(&table, k);
    ck_assert_ptr_null(ticket_by_id(&table, id));
    ck_assert_uint_eq(table.n_active, 0);
    close_table();
}
END_TEST

START_TEST(reserve_is_idempotent)
{
    struct ticket *a, *b;
    open_table(8, false);
    ck_assert_int_eq(reserve(1, 100, 0, &a), PROTO_REASON_NONE);
    ck_assert_int_eq(reserve(1, 100, 0, &b), PROTO_REASON_NONE);
    ck_assert_ptr_eq(a, b);
    ck_assert_uint_eq(table.n_waiting, 1);
    ck_assert_ptr_eq(ticket_admit(&table, now), a);
    ck_assert_int_eq(reserve(1, 100, 0, &b), PROTO_REASON_NONE);
    ck_assert_ptr_eq(a, b);
    ck_assert_int_eq(b->state, TICKET_RESERVED);
    ck_assert_int_eq(reserve(1, 99, 0, &b), PROTO_REASON_INVALID);
    close_table();
}
END_TEST

START_TEST(reserve_refuses)
{
    struct ticket *k;
    open_table(8, false);
    ck_assert_int_eq(reserve(1, 0, 0, &k), PROTO_REASON_INVALID);
    ck_assert_int_eq(reserve(1, 4097, 0, &k), PROTO_REASON_INVALID);
    ck_assert_int_eq(reserve(1, 16 * 7 + 1, 0, &k), PROTO_REASON_TOO_LARGE); /* no room to grow */
    for (uint64_t i = 0; i < 8; i++)
        ck_assert_int_eq(reserve(10 + i, 16 * 7, 0, &k), PROTO_REASON_NONE);
    ck_assert_int_eq(reserve(30, 16, 0, &k), PROTO_REASON_FULL);
    close_table();
}
END_TEST

/* R7: what is left must give everybody one block to grow into. */
START_TEST(admit_capacity)
{
    struct ticket *k, *a;
    open_table(10, false);
    a = granted(1, 16 * 4); /* 6 left */
    activate(a, 1000);
    ck_assert_int_eq(reserve(2, 16 * 5, 0, &k), PROTO_REASON_NONE);
    ck_assert_ptr_null(ticket_admit(&table, now)); /* 6 - 5 leaves one block for two */
    ck_assert_uint_eq(kv_pool_free(pool), 6);
    ticket_end(&table, k);
    ck_assert_int_eq(reserve(3, 16 * 4, 0, &k), PROTO_REASON_NONE);
    ck_assert_ptr_eq(ticket_admit(&table, now), k);
    close_table();
}
END_TEST

/* First come, first served within a priority; nobody overtakes the first that does not fit. */
START_TEST(admit_order)
{
    struct ticket *big, *small, *urgent, *late;
    open_table(10, false);
    struct ticket *a = granted(1, 16 * 4);
    ck_assert_int_eq(reserve(2, 16 * 8, 0, &big), PROTO_REASON_NONE);
    ck_assert_int_eq(reserve(3, 16, 0, &small), PROTO_REASON_NONE);
    ck_assert_ptr_null(ticket_admit(&table, now));
    ck_assert_int_eq(reserve(4, 16, 5, &urgent), PROTO_REASON_NONE);
    ck_assert_int_eq(reserve(5, 16, 5, &late), PROTO_REASON_NONE);
    ck_assert_ptr_eq(ticket_admit(&table, now), urgent);
    ck_assert_ptr_eq(ticket_admit(&table, now), late);
    ck_assert_ptr_null(ticket_admit(&table, now));
    ticket_end(&table, a);
    ticket_end(&table, urgent);
    ticket_end(&table, late);
    ck_assert_ptr_eq(ticket_admit(&table, now), big);
    ck_assert_ptr_null(ticket_admit(&table, now));
    ticket_end(&table, big);
    ck_assert_ptr_eq(ticket_admit(&table, now), small);
    close_table();
}
END_TEST

START_TEST(admit_uses_the_prefix)
{
    open_table(32, true);
    struct ticket *a = granted(1, 50), *b;
    activate(a, 10); /* three full blocks enter the cache */
    b = granted(2, 48);
    ck_assert_uint_eq(b->held, 2); /* not all three: one token must be left to compute */
    ck_assert_uint_eq(b->blocks[0], a->blocks[0]);
    ck_assert_uint_eq(b->n_want, 1 * LAYERS);
    ck_assert(!ticket_kv_begin(&table, b, now, 0, 1, 1)); /* nobody writes into what is shared */
    ticket_end(&table, a);
    activate(b, 10);
    ticket_end(&table, b);
    close_table();
}
END_TEST

START_TEST(kv_out_of_range)
{
    open_table(32, false);
    struct ticket *k = granted(1, 40);
    static const uint32_t bad[][3] = {{LAYERS, 0, 1}, {0, 3, 1},          {0, 0, 4},
                                      {0, 1, 3},      {0, 0, 0},          {0, UINT32_MAX, 2},
                                      {0, 2, 2},      {UINT32_MAX, 0, 1}, {0, 1, UINT32_MAX}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ck_assert(!ticket_kv_begin(&table, k, now, bad[i][0], bad[i][1], bad[i][2]));
    ck_assert_int_eq(k->state, TICKET_RESERVED);
    arrive(k, 0, 0, 2, -1);
    ck_assert(!ticket_kv_begin(&table, k, now, 0, 1, 1)); /* is there already */
    ck_assert(ticket_kv_begin(&table, k, now, 0, 2, 1));
    ck_assert(!ticket_kv_begin(&table, k, now, 0, 2, 1)); /* is on its way */
    ticket_kv_end(&table, k, now, 0, 2, 1, NULL, NULL);   /* it failed */
    arrive(k, 0, 2, 1, -1);
    ck_assert_uint_eq(k->n_good, 3);
    activate(granted(2, 8), 9);
    struct ticket *active = ticket_by_key(&table, &(struct seq_key){.router = 1, .counter = 2});
    ck_assert(!ticket_kv_begin(&table, active, now, 0, 0, 1)); /* consumed */
    close_table();
}
END_TEST

START_TEST(handoff_lists_what_is_missing)
{
    struct proto_extent list[8];
    uint32_t n;
    open_table(32, false);
    struct ticket *k = granted(1, 80); /* 5 blocks */
    arrive(k, 0, 0, 5, 3);             /* block 3 damaged */
    arrive(k, 2, 0, 2, -1);
    struct proto_handoff h = handoff_of(k, 50);
    ck_assert_int_eq(ticket_handoff(&table, k, &h), PROTO_REASON_NONE);
    ck_assert_int_eq(ticket_verify(&table, k, list, 8, &n), TICKET_MISSING);
    ck_assert_uint_eq(n, 3);
    ck_assert(list[0].layer == 0 && list[0].first == 3 && list[0].n == 1);
    ck_assert(list[1].layer == 1 && list[1].first == 0 && list[1].n == 5);
    ck_assert(list[2].layer == 2 && list[2].first == 2 && list[2].n == 3);
    ck_assert_int_eq(ticket_verify(&table, k, list, 1, &n), TICKET_MISSING);
    ck_assert_uint_eq(n, 1); /* the list is bounded; the rest comes with the next one */
    ck_assert(ticket_kv_begin(&table, k, now, 0, 3, 1));
    ck_assert_int_eq(ticket_verify(&table, k, list, 8, &n), TICKET_PENDING);
    uint64_t sum = sum_of(0, 3);
    bool right = true;
    ticket_kv_end(&table, k, now, 0, 3, 1, &sum, &right);
    arrive(k, 1, 0, 5, -1);
    arrive(k, 2, 2, 3, -1);
    ck_assert_int_eq(ticket_verify(&table, k, list, 8, &n), TICKET_COMPLETE);
    close_table();
}
END_TEST

/* Every block agrees with its header, but the digest says that something else was sent. */
START_TEST(handoff_digest)
{
    struct proto_extent list[8];
    uint32_t n;
    open_table(32, false);
    struct ticket *k = granted(1, 20);
    for (uint32_t l = 0; l < LAYERS; l++)
        arrive(k, l, 0, 2, -1);
    struct proto_handoff h = handoff_of(k, 50);
    h.digest++;
    ck_assert_int_eq(ticket_handoff(&table, k, &h), PROTO_REASON_NONE);
    ck_assert_int_eq(ticket_verify(&table, k, list, 8, &n), TICKET_MISSING);
    ck_assert_uint_eq(n, LAYERS); /* all again */
    for (int round = 0; round < 2; round++) {
        for (uint32_t l = 0; l < LAYERS; l++)
            arrive(k, l, 0, 2, -1);
        ck_assert_int_eq(ticket_verify(&table, k, list, 8, &n), TICKET_MISSING);
    }
    ck_assert_int_eq(ticket_verify(&table, k, list, 8, &n), TICKET_HOPELESS);
    close_table();
}
END_TEST

START_TEST(handoff_must_fit_the_reservation)
{
    open_table(32, false);
    struct ticket *k = granted(1, 40);
    static int32_t other[64], emitted[2] = {5, 6};
    struct proto_handoff h = handoff_of(k, 50), bad;
    memcpy(other, ids, sizeof other);
    other[39]++;
    bad = h;
    bad.job.prompt.p = other; /* another prompt: its prefix would be wrong */
    ck_assert_int_eq(ticket_handoff(&table, k, &bad), PROTO_REASON_INVALID);
    bad = h;
    bad.job.prompt.n--;
    ck_assert_int_eq(ticket_handoff(&table, k, &bad), PROTO_REASON_INVALID);
    bad = h;
    bad.job.emitted = (struct proto_ids){emitted, 2};
    ck_assert_int_eq(ticket_handoff(&table, k, &bad), PROTO_REASON_INVALID);
    bad = h;
    bad.job.emitted.n = 0;
    ck_assert_int_eq(ticket_handoff(&table, k, &bad), PROTO_REASON_INVALID);
    bad = h;
    bad.last.position = 1;
    ck_assert_int_eq(ticket_handoff(&table, k, &bad), PROTO_REASON_INVALID);
    bad = h;
    bad.job.salt = (struct proto_bytes){"x", 1};
    ck_assert_int_eq(ticket_handoff(&table, k, &bad), PROTO_REASON_INVALID);
    ck_assert_int_eq(ticket_handoff(&table, k, &h), PROTO_REASON_NONE);
    close_table();
}
END_TEST

/* A move reserves room for what is drawn meanwhile, and says at last how much it was. */
START_TEST(handoff_smaller_than_the_room)
{
    static int32_t emitted[17];
    struct proto_token earlier[2] = {{.position = 14, .token = 14 + 40, .logprob = -3},
                                     {.position = 15, .token = 15 + 40}};
    struct proto_extent list[8];
    struct ticket *k;
    uint32_t n;
    open_table(32, true);
    struct ticket_request r = {.key = {.router = 1, .counter = 1},
                               .source = 77,
                               .ids = ids,
                               .n_ids = 40,
                               .n_tokens = 130,
                               .salt = ""};
    ck_assert_int_eq(ticket_reserve(&table, now, &r, &k), PROTO_REASON_NONE);
    ck_assert_ptr_eq(ticket_admit(&table, now), k);
    ck_assert_uint_eq(k->n_blocks, 9);
    for (uint32_t l = 0; l < LAYERS; l++)
        arrive(k, l, 0, 4, -1); /* 56 positions and the token behind them are what it came to */
    for (int i = 0; i < 17; i++)
        emitted[i] = 40 + i;
    struct proto_handoff h = {.instance = 77,
                              .job = {.request = seq_request(&k->key),
                                      .prompt = {ids, 40},
                                      .emitted = {emitted, 17},
                                      .max_tokens = 90},
                              .last = {.token = 56, .position = 16},
                              .earlier = earlier,
                              .n_earlier = 2};
    memcpy(h.ticket, k->id, sizeof h.ticket);
    for (uint32_t l = 0; l < LAYERS; l++) {
        for (uint32_t i = 0; i < 4; i++)
            h.digest += digest_term(l, i, sum_of(l, i));
    }
    struct proto_handoff bad = h;
    earlier[0].position = 13; /* a gap */
    ck_assert_int_eq(ticket_handoff(&table, k, &bad), PROTO_REASON_INVALID);
    earlier[0].position = 14;
    earlier[1].token++; /* not what the job says */
    ck_assert_int_eq(ticket_handoff(&table, k, &bad), PROTO_REASON_INVALID);
    earlier[1].token--;
    bad.n_earlier = 17; /* more than there is */
    ck_assert_int_eq(ticket_handoff(&table, k, &bad), PROTO_REASON_INVALID);
    bad = h;
    bad.job.emitted.n = 8; /* shorter than what has come: 47 positions, three blocks */
    bad.last = (struct proto_token){.token = 47, .position = 7};
    bad.n_earlier = 0;
    ck_assert_int_eq(ticket_handoff(&table, k, &bad), PROTO_REASON_INVALID);
    ck_assert_int_eq(ticket_handoff(&table, k, &h), PROTO_REASON_NONE);
    ck_assert_uint_eq(k->n_blocks, 4);
    ck_assert_uint_eq(kv_pool_free(pool), 28);
    ck_assert_uint_eq(k->n_earlier, 2);
    ck_assert(k->earlier[0].logprob < -2 && k->earlier[0].token == 54);
    ck_assert_int_eq(ticket_verify(&table, k, list, 8, &n), TICKET_COMPLETE);
    ticket_seal(&table, k);
    ck_assert_ok(ticket_activate(&table, k, now));
    ck_assert_uint_eq(k->n_tokens, 57);
    ck_assert_int_eq(k->tokens[56], 56);
    ck_assert_uint_eq(k->emitted, 17);
    ticket_end(&table, k);
    close_table();
}
END_TEST

/* R6: blocks with a receive in flight are not reused before it has ended. */
START_TEST(quarantine)
{
    open_table(8, false);
    struct ticket *k = granted(1, 16 * 7);
    uint8_t id[16];
    memcpy(id, k->id, 16);
    ck_assert(ticket_kv_begin(&table, k, now, 0, 0, 3));
    ck_assert(ticket_kv_begin(&table, k, now, 1, 0, 3));
    ticket_end(&table, k);
    ck_assert_int_eq(k->state, TICKET_QUARANTINE);
    ck_assert_ptr_null(ticket_by_id(&table, id)); /* stale from now on */
    ck_assert_ptr_null(ticket_by_key(&table, &(struct seq_key){.router = 1, .counter = 1}));
    ck_assert_uint_eq(kv_pool_free(pool), 1);
    ticket_end(&table, k); /* idempotent */
    ticket_kv_end(&table, k, now, 0, 0, 3, NULL, NULL);
    ck_assert_uint_eq(kv_pool_free(pool), 1);
    ticket_kv_end(&table, k, now, 1, 0, 3, NULL, NULL);
    ck_assert_uint_eq(kv_pool_free(pool), 8);
    ck_assert_uint_eq(table.n_quarantine, 0);
    close_table();
}
END_TEST

START_TEST(quarantine_by_a_step)
{
    open_table(8, false);
    struct ticket *k = granted(1, 20);
    activate(k, 100);
    ticket_hold(k);
    ticket_end(&table, k);
    ck_assert_int_eq(k->state, TICKET_QUARANTINE);
    ticket_unhold(&table, k);
    ck_assert_uint_eq(kv_pool_free(pool), 8);
    close_table();
}
END_TEST

START_TEST(tombstones)
{
    struct ticket *k;
    open_table(8, false);
    ticket_tombstone(&table, now, 1, 5, 0);
    ticket_tombstone(&table, now, 1, 5, 0);
    ck_assert_uint_eq(table.n_tombs, 1);
    ck_assert_int_eq(reserve(5, 16, 0, &k), PROTO_REASON_CANCELED);
    ck_assert_int_eq(reserve(6, 16, 0, &k), PROTO_REASON_NONE);
    ticket_end(&table, k);
    now += LEASE; /* it has crumbled */
    ck_assert(!ticket_buried(&table, now, &(struct seq_key){.router = 1, .counter = 5}));
    ck_assert_int_eq(reserve(5, 16, 0, &k), PROTO_REASON_NONE);
    ticket_tombstone(&table, now, 1, 9, 0);
    ck_assert_uint_eq(table.n_tombs, 1);
    close_table();
}
END_TEST

START_TEST(lease)
{
    open_table(8, false);
    struct ticket *k = granted(1, 40);
    now += LEASE - 1;
    ck_assert_ptr_null(ticket_expired(&table, now));
    arrive(k, 0, 0, 1, -1); /* progress prolongs it */
    now += LEASE - 1;
    ck_assert_ptr_null(ticket_expired(&table, now));
    now += 1;
    ck_assert_ptr_eq(ticket_expired(&table, now), k);
    ticket_end(&table, k);
    k = granted(2, 20);
    activate(k, 100);
    now += 10 * LEASE;
    ck_assert_ptr_null(ticket_expired(&table, now)); /* an active one has no lease */
    close_table();
}
END_TEST

START_TEST(youngest_is_by_grant)
{
    struct ticket *a, *b, *c;
    open_table(32, false);
    a = granted(9, 20);
    b = granted(5, 20);
    ck_assert_int_eq(reserve(7, 20, 0, &c), PROTO_REASON_NONE);
    ck_assert_ptr_eq(ticket_youngest(&table), b); /* who waits holds nothing */
    ck_assert_ptr_eq(ticket_admit(&table, now), c);
    ck_assert_ptr_eq(ticket_youngest(&table), c);
    ck_assert(ticket_kv_begin(&table, c, now, 0, 0, 1));
    ticket_end(&table, c);
    ck_assert_ptr_eq(ticket_youngest(&table), b); /* who is in quarantine is gone already */
    ticket_kv_end(&table, c, now, 0, 0, 1, NULL, NULL);
    ticket_end(&table, b);
    ck_assert_ptr_eq(ticket_youngest(&table), a);
    ticket_end(&table, a);
    ck_assert_ptr_null(ticket_youngest(&table));
    close_table();
}
END_TEST

START_TEST(grow_full)
{
    open_table(4, false);
    struct ticket *k = granted(1, 40);
    activate(k, 1000);
    k->n_tokens = 49;
    ck_assert(ticket_fits(&table, k));
    ck_assert_ok(ticket_grow(&table, k));
    k->n_tokens = 64;
    ck_assert(ticket_fits(&table, k));
    ck_assert_ok(ticket_grow(&table, k));
    k->n_tokens = 65;
    ck_assert(!ticket_fits(&table, k)); /* alone it exceeds the pool */
    ck_assert_int_eq(ticket_grow(&table, k), STATUS_FULL);
    ck_assert_uint_eq(k->n_blocks, 4);
    close_table();
}
END_TEST

/* Random events; after each, every block is either free or owned by exactly one ticket. */
START_TEST(random_walk)
{
    open_table(40, false);
    uint32_t seed = 12345;
    uint64_t counter = 0;
    for (int step = 0; step < 20000; step++) {
        seed = seed * 1664525 + 1013904223;
        uint32_t r = seed >> 8, i = 0, n = 0;
        struct ticket *k = NULL, *it;
        LIST_FOR (node, &table.all)
            n++;
        LIST_FOR (node, &table.all) {
            it = container_of(node, struct ticket, node);
            if (n && i++ == r % n)
                k = it;
        }
        now += r % 7;
        switch (r / 64 % 6) {
        case 0:
            (void)reserve(++counter, 1 + r % 200, r % 3, &k);
            break;
        case 1:
            ticket_admit(&table, now);
            break;
        case 2:
            if (k && k->state < TICKET_QUARANTINE && k->n_sent)
                (void)ticket_kv_begin(&table, k, now, r % LAYERS, r / 3 % k->n_sent, 1);
            break;
        case 3:
            for (uint32_t l = 0; k && k->n_blocks && l < LAYERS; l++) {
                uint32_t b = r % k->n_sent;
                size_t c = (size_t)l * k->n_sent + b;
                if (!(k->begun[c / 64] >> c % 64 & 1) || (k->good[c / 64] >> c % 64 & 1))
                    continue;
                uint64_t sum = sum_of(l, b);
                bool right = r % 5 != 0, gone = k->state == TICKET_QUARANTINE && k->holds == 1;
                ticket_kv_end(&table, k, now, l, b, 1, &sum, &right);
                if (gone)
                    break;
            }
            break;
        case 4:
            if (k && r % 3 == 0)
                ticket_end(&table, k);
            break;
        default:
            k = ticket_expired(&table, now);
            if (k)
                ticket_end(&table, k);
            break;
        }
        uint32_t owned = 0;
        LIST_FOR (node, &table.all)
            owned += container_of(node, struct ticket, node)->n_blocks;
        ck_assert_uint_eq(owned + kv_pool_free(pool), 40);
    }
    ck_assert_uint_gt(table.grants, 100);
    close_table();
}
END_TEST

/* What was computed here runs at once, in the blocks of whoever computed it. */
START_TEST(adopted)
{
    uint32_t blocks[3];
    struct ticket_request r = {.key = {.router = 1, .counter = 9},
                               .source = 77,
                               .ids = ids,
                               .n_ids = 40,
                               .n_tokens = 40,
                               .salt = ""};
    int32_t emitted[1] = {5};
    struct proto_handoff h = {
        .job = {.prompt = {ids, 40}, .emitted = {emitted, 1}, .max_tokens = 9},
        .last = {.token = 5}};
    open_table(32, true);
    ck_assert_ok(kv_pool_alloc(pool, 3, blocks));
    struct ticket *k = ticket_adopt(&table, &r, blocks, &h);
    ck_assert(k && k->state == TICKET_SEALED && k->n_blocks == 3 && table.n_granted == 1);
    ck_assert_uint_eq(kv_pool_refs(pool, blocks[2]), 2);
    for (int i = 0; i < 3; i++)
        kv_pool_put(pool, blocks[i]);
    ck_assert_ok(ticket_activate(&table, k, now));
    ck_assert_uint_eq(k->n_tokens, 41);
    ck_assert_int_eq(k->tokens[40], 5);
    ck_assert_ok(ticket_grow(&table, k));
    ck_assert_ptr_eq(ticket_by_key(&table, &r.key), k);
    ck_assert_uint_eq(table.n_waiting, 0);
    ck_assert_uint_eq(kv_pool_free(pool), 29);
    ticket_end(&table, k);
    ck_assert_uint_eq(kv_pool_free(pool), 32);
    ck_assert_ok(kv_pool_alloc(pool, 3, blocks)); /* one that is not what it says is not taken */
    h.last.token = 6;
    r.key.counter = 10;
    ck_assert_ptr_null(ticket_adopt(&table, &r, blocks, &h));
    for (int i = 0; i < 3; i++)
        kv_pool_put(pool, blocks[i]);
    close_table();
}
END_TEST

/* A copy leaves its blocks in the prefix cache, and is the first to go when room is needed. */
START_TEST(copies)
{
    struct ticket *k, *run;
    struct proto_extent list[8];
    uint32_t n;
    struct ticket_request r = {.key = {.router = 1, .counter = 9},
                               .source = 77,
                               .ids = ids,
                               .n_ids = 32,
                               .n_tokens = 32,
                               .salt = "",
                               .copy = true};
    open_table(32, true);
    ck_assert_int_eq(ticket_reserve(&table, now, &r, &k), PROTO_REASON_NONE);
    ck_assert_ptr_eq(ticket_admit(&table, now), k);
    run = granted(2, 20);
    ck_assert(k->copy && !run->copy);
    ck_assert_ptr_eq(ticket_youngest(&table), k);
    for (uint32_t l = 0; l < LAYERS; l++)
        arrive(k, l, 0, 2, -1);
    struct proto_handoff h = handoff_of(k, 2);
    ck_assert_int_eq(ticket_handoff(&table, k, &h), PROTO_REASON_NONE);
    ck_assert_int_eq(ticket_verify(&table, k, list, 8, &n), TICKET_COMPLETE);
    ticket_seal(&table, k);
    ticket_end(&table, k);
    ck_assert_ptr_eq(ticket_youngest(&table), run);
    ck_assert_uint_eq(kv_prefix_stats(pool).cached_blocks, 2);
    ck_assert_uint_eq(kv_pool_free(pool), 32 - 2); /* they are as good as free */
    r.n_ids = r.n_tokens = 64;                     /* it grows: only what is new has to come */
    ck_assert_int_eq(ticket_reserve(&table, now, &r, &k), PROTO_REASON_NONE);
    ck_assert_ptr_eq(ticket_admit(&table, now), k);
    ck_assert_uint_eq(k->held, 2);
    ck_assert_uint_eq(k->n_want, 2 * LAYERS);
    close_table();
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("worker/ticket");
    TCase *t = tcase_create("ticket");
    tcase_add_test(t, relay_to_the_end);
    tcase_add_test(t, reserve_is_idempotent);
    tcase_add_test(t, reserve_refuses);
    tcase_add_test(t, admit_capacity);
    tcase_add_test(t, admit_order);
    tcase_add_test(t, admit_uses_the_prefix);
    tcase_add_test(t, kv_out_of_range);
    tcase_add_test(t, handoff_lists_what_is_missing);
    tcase_add_test(t, handoff_digest);
    tcase_add_test(t, handoff_must_fit_the_reservation);
    tcase_add_test(t, handoff_smaller_than_the_room);
    tcase_add_test(t, quarantine);
    tcase_add_test(t, quarantine_by_a_step);
    tcase_add_test(t, tombstones);
    tcase_add_test(t, lease);
    tcase_add_test(t, youngest_is_by_grant);
    tcase_add_test(t, grow_full);
    tcase_add_test(t, random_walk);
    tcase_add_test(t, adopted);
    tcase_add_test(t, copies);
    suite_add_tcase(s, t);
    return s;
}
