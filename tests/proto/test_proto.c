/* The codec against its table: random messages of every type go there and back, no prefix of a
 * message passes, no mutation crashes, and docs/PROTOCOL.md names every key. */
#include "common/proto/proto.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/rng.h"
#include "common/proto/proto_fields.h"
#include "tests/harness.h"

/* A repeatable source of random numbers. */
static uint64_t rng_state;
static uint64_t rnd(uint64_t below)
{
    struct rng_block b = rng_philox(42, rng_state++, 0);
    return ((uint64_t)b.v[0] << 32 | b.v[1]) % below;
}

/* 0, 1, the largest value, or anything between: small numbers are as likely as large ones. */
static uint64_t rnd_upto(uint64_t max)
{
    switch (rnd(6)) {
    case 0:
        return 0;
    case 1:
        return max;
    case 2:
        return max ? rnd(max) : 0;
    default: {
        uint64_t small = rnd(300);
        return small < max ? small : max;
    }
    }
}

static void fill(const struct proto_shape *s, char *base, struct arena *a);

static void *rnd_bytes(struct arena *a, size_t n)
{
    uint8_t *p = arena_alloc(a, n);
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)rnd(256);
    return p;
}

static void fill_value(const struct proto_field *f, char *base, struct arena *a)
{
    void *at = base + f->at;
    switch (f->kind) {
    case PROTO_U32:
        *(uint32_t *)at = (uint32_t)rnd_upto(f->max);
        break;
    case PROTO_U64:
        *(uint64_t *)at = rnd_upto(f->max);
        break;
    case PROTO_I32:
        *(int32_t *)at = rnd(5) ? (int32_t)rnd_upto(f->max) : (int32_t)f->min;
        break;
    case PROTO_F32:
        *(float *)at = f->max ? (float)rnd(1001) / 1000 * (float)f->max
                              : ((float)rnd(2000) - 1000) * 1e30f * (float)rnd(1000);
        break;
    case PROTO_BOOL:
        *(bool *)at = rnd(2);
        break;
    case PROTO_STR:
    case PROTO_BIN: {
        size_t n = rnd(4) ? rnd(40) : rnd(f->max < 70000 ? f->max + 1 : 70000);
        *(struct proto_bytes *)at = (struct proto_bytes){rnd_bytes(a, n), n};
        break;
    }
    case PROTO_FIXED:
        for (uint64_t i = 0; i < f->max; i++)
            ((uint8_t *)at)[i] = (uint8_t)rnd(256);
        break;
    case PROTO_IDS: {
        size_t n = rnd(50);
        int32_t *ids = rnd_bytes(a, n * sizeof *ids);
        for (size_t i = 0; i < n; i++)
            ids[i] &= INT32_MAX;
        *(struct proto_ids *)at = (struct proto_ids){ids, n};
        break;
    }
    case PROTO_STRUCT:
        fill(f->of, at, a);
        break;
    case PROTO_LIST: {
        uint32_t n = (uint32_t)rnd(f->max < 20 ? f->max + 1 : 20);
        char *list = arena_alloc(a, (size_t)n * f->of->size);
        for (uint32_t i = 0; i < n; i++)
            fill(f->of, list + i * f->of->size, a);
        *(char **)at = n ? list : NULL;
        *(uint32_t *)(void *)(base + f->at_n) = n;
        break;
    }
    }
}

static void fill(const struct proto_shape *s, char *base, struct arena *a)
{
    for (uint32_t i = 0; i < s->n; i++) {
        if (rnd(5)) /* the others stay zero */
            fill_value(&s->fields[i], base, a);
    }
}

static bool same(const struct proto_shape *s, const char *x, const char *y);

static bool same_value(const struct proto_field *f, const char *xbase, const char *ybase)
{
    const void *x = xbase + f->at, *y = ybase + f->at;
    switch (f->kind) {
    case PROTO_U32:
    case PROTO_I32:
        return memcmp(x, y, 4) == 0;
    case PROTO_F32: /* -0 may come back as 0 */
        return *(const float *)x == *(const float *)y;
    case PROTO_U64:
        return memcmp(x, y, 8) == 0;
    case PROTO_BOOL:
        return *(const bool *)x == *(const bool *)y;
    case PROTO_STR:
    case PROTO_BIN: {
        const struct proto_bytes *p = x, *q = y;
        return p->n == q->n && (p->n == 0 || memcmp(p->p, q->p, p->n) == 0);
    }
    case PROTO_FIXED:
        return memcmp(x, y, f->max) == 0;
    case PROTO_IDS: {
        const struct proto_ids *p = x, *q = y;
        return p->n == q->n && (p->n == 0 || memcmp(p->p, q->p, p->n * sizeof *p->p) == 0);
    }
    case PROTO_STRUCT:
        return same(f->of, x, y);
    case PROTO_LIST: {
        uint32_t n = *(const uint32_t *)(const void *)(xbase + f->at_n);
        const char *p = *(const char *const *)x, *q = *(const char *const *)y;
        if (*(const uint32_t *)(const void *)(ybase + f->at_n) != n)
            return false;
        for (uint32_t i = 0; i < n; i++) {
            if (!same(f->of, p + i * f->of->size, q + i * f->of->size))
                return false;
        }
        return true;
    }
    }
    return false;
}

static bool same(const struct proto_shape *s, const char *x, const char *y)
{
    for (uint32_t i = 0; i < s->n; i++) {
        if (!same_value(&s->fields[i], x, y))
            return false;
    }
    return true;
}

static struct proto_msg random_message(const struct proto_entry *e, struct arena *a)
{
    struct proto_msg m;
    memset(&m, 0, sizeof m);
    m.type = e->type;
    fill(e->shape, (char *)&m.hello, a);
    return m;
}

/* Decodes a copy in memory of exactly n bytes, so that ASan sees a step beyond its end. */
static int decode_copy(const void *p, size_t n, struct arena *a, struct proto_msg *out, void **copy)
{
    *copy = mem_dup(p, n);
    ck_assert_ptr_nonnull(*copy);
    return proto_decode(*copy, n, a, out);
}

START_TEST(proto_round_trip)
{
    const struct proto_entry *e = &proto_entries[_i];
    for (int round = 0; round < 200; round++) {
        struct arena a;
        struct buf b;
        struct proto_msg back;
        void *copy;
        arena_init(&a, 0);
        buf_init(&b, 0);
        buf_append(&b, "....", (size_t)(round % 5)); /* every alignment of ids in the frame */
        size_t start = b.len;
        struct proto_msg m = random_message(e, &a);
        proto_encode(&b, &m);
        ck_assert(buf_ok(&b));
        ck_assert_int_eq(proto_decode(b.data + start, b.len - start, &a, &back), STATUS_OK);
        ck_assert_int_eq(back.type, e->type);
        ck_assert(same(e->shape, (char *)&m.hello, (char *)&back.hello));
        ck_assert_int_eq(decode_copy(b.data + start, b.len - start, &a, &back, &copy), STATUS_OK);
        free(copy);
        buf_fini(&b);
        arena_fini(&a);
    }
}
END_TEST

START_TEST(proto_every_prefix_is_refused)
{
    const struct proto_entry *e = &proto_entries[_i];
    for (int round = 0; round < 3; round++) {
        struct arena a;
        struct buf b;
        struct proto_msg back;
        void *copy;
        arena_init(&a, 0);
        buf_init(&b, 0);
        struct proto_msg m = random_message(e, &a);
        proto_encode(&b, &m);
        size_t step = b.len > 4000 ? b.len / 4000 : 1;
        for (size_t n = 0; n < b.len; n += n < 300 || b.len - n < 300 ? 1 : step) {
            struct arena scratch;
            arena_init(&scratch, 1 << 20);
            ck_assert_int_eq(decode_copy(b.data, n, &scratch, &back, &copy), STATUS_FORMAT);
            free(copy);
            arena_fini(&scratch);
        }
        buf_putc(&b, 0); /* nor may anything follow */
        ck_assert_int_eq(proto_decode(b.data, b.len, &a, &back), STATUS_FORMAT);
        buf_fini(&b);
        arena_fini(&a);
    }
}
END_TEST

/* Any answer is fine but a crash, a leak or a step outside (sanitizers); what passes can be encoded
 * again and then comes back the same. */
START_TEST(proto_mutations)
{
    unsigned passed = 0;
    for (size_t k = 0; k < PROTO_ENTRIES; k++) {
        struct arena a;
        struct buf b;
        arena_init(&a, 0);
        buf_init(&b, 0);
        rng_state = 1000 + k;
        struct proto_msg m = random_message(&proto_entries[k], &a);
        proto_encode(&b, &m);
        if (b.len > 600 && k != 5) { /* long strings only cost time here */
            buf_reset(&b);
            memset(&m, 0, sizeof m);
            m.type = proto_entries[k].type;
            proto_encode(&b, &m);
        }
        for (int round = 0; round < 5000; round++) {
            struct arena scratch;
            struct proto_msg out;
            uint8_t *copy = mem_dup(b.data, b.len);
            size_t n = b.len;
            for (uint64_t i = 0; i <= rnd(4); i++)
                copy[rnd(n)] = rnd(3) ? (uint8_t)rnd(256) : (uint8_t)(0x80 + rnd(96));
            arena_init(&scratch, 8 * n + 4096);
            if (proto_decode(copy, n, &scratch, &out) == STATUS_OK) {
                struct buf again;
                struct proto_msg back;
                buf_init(&again, 0);
                proto_encode(&again, &out);
                ck_assert_int_eq(proto_decode(again.data, again.len, &scratch, &back), STATUS_OK);
                buf_fini(&again);
                passed++;
            }
            arena_fini(&scratch);
            free(copy);
        }
        buf_fini(&b);
        arena_fini(&a);
    }
    ck_assert_uint_gt(passed, 1000); /* bytes inside strings and numbers may change */
}
END_TEST

#define FRAME(bytes)                                                                               \
    {                                                                                              \
        bytes, sizeof bytes - 1                                                                    \
    }
static const struct {
    struct {
        const char *p;
        size_t n;
    } frame;
    int status;
} frames[] = {
    {FRAME("\x82\xa1t\x0e\xa2ms\x05"), STATUS_OK}, /* DRAIN {ms: 5} */
    {FRAME("\x81\xa1t\x0e"), STATUS_OK},
    {FRAME("\x82\xa1t\xcd\x00\x0e\xa2ms\xce\x00\x00\x00\x05"), STATUS_OK}, /* wide numbers */
    {FRAME("\xde\x00\x01\xa1t\xd1\x00\x0e"), STATUS_OK},                   /* map16, int16 */
    {FRAME("\x81\xd9\x01t\x0e"), STATUS_OK},                               /* str8 */
    {FRAME("\x82\xa1t\x0e\xa2zz\x93\x01\xc0\x81\xa1q\xc3"), STATUS_OK},    /* unknown key */
    {FRAME("\x82\xa1t\x0e\xa2zz\xc7\x02\x05\x61\x61"), STATUS_OK},         /* with an ext8 */
    {FRAME("\x82\xa1t\x0e\xa2zz\xd8\x05"
           "0123456789abcdef"),
     STATUS_OK}, /* fixext16 */
    {FRAME("\x82\xa1t\x0e\xa2zz\xcb\x40\x00\x00\x00\x00\x00\x00\x00"), STATUS_OK},
    {FRAME("\x81\xa1t\xcd\x03\xe8"), STATUS_UNSUPPORTED}, /* type 1000 */
    {FRAME("\x82\xa1t\x7f\xa1q\x91\xc0"), STATUS_UNSUPPORTED},
    {FRAME("\x82\xa1t\x7f\xa1q\x92\xc0"), STATUS_FORMAT},
    {FRAME(""), STATUS_FORMAT},
    {FRAME("\x80"), STATUS_FORMAT},
    {FRAME("\xc0"), STATUS_FORMAT},
    {FRAME("\x91\x01"), STATUS_FORMAT},
    {FRAME("\x81\xa1t\xff"), STATUS_FORMAT},                     /* type -1 */
    {FRAME("\x81\xa1t\xa1x"), STATUS_FORMAT},                    /* type "x" */
    {FRAME("\x81\xc4\x01t\x0e"), STATUS_FORMAT},                 /* bin as a key */
    {FRAME("\x82\xa2ms\x05\xa1t\x0e"), STATUS_FORMAT},           /* t is not the first key */
    {FRAME("\x82\xa1t\x0e\xa1t\x0e"), STATUS_OK},                /* a second t is an unknown key */
    {FRAME("\x83\xa1t\x0e\xa2ms\x05\xa2ms\x05"), STATUS_FORMAT}, /* a key twice */
    {FRAME("\x82\xa1t\x0e\xa2ms\xff"), STATUS_FORMAT},           /* -1 */
    {FRAME("\x82\xa1t\x0e\xa2ms\xce\x80\x00\x00\x00"), STATUS_FORMAT}, /* 2^31 */
    {FRAME("\x82\xa1t\x0e\xa2ms\xca\x00\x00\x00\x00"), STATUS_FORMAT}, /* a float */
    {FRAME("\x82\xa1t\x0e\xa2ms\xc0"), STATUS_FORMAT},                 /* nil */
    {FRAME("\x82\xa1t\x0e\xa2ms\xc1"), STATUS_FORMAT},                 /* never used */
    {FRAME("\x82\xa1t\x0e\x05\x05"), STATUS_FORMAT},                   /* number as a key */
    {FRAME("\x81\xa1t\x03"), STATUS_FORMAT}, /* HELLO_NO without its reason */
    {FRAME("\x82\xa1t\x07\xa2ls\xdd\xff\xff\xff\xff"), STATUS_FORMAT}, /* 4 billion tokens */
    {FRAME("\x82\xa1t\x07\xa2ls\xdc\xff\xff"), STATUS_FORMAT},
    {FRAME("\xdf\xff\xff\xff\xff\xa1t\x0e"), STATUS_FORMAT},
    {FRAME("\x82\xa1t\x05\xa2pg\xdb\xff\xff\xff\xff"), STATUS_FORMAT}, /* 4 GiB of text */
    {FRAME("\x82\xa1t\x05\xa2pg\xc4\x01x"), STATUS_FORMAT},            /* bin instead of str */
    {FRAME("\x82\xa1t\x02\xa3mac\xc4\x1f"
           "0123456789abcdef0123456789abcde"),
     STATUS_FORMAT},
    {FRAME("\x82\xa1t\x02\xa3mac\xc4\x20"
           "0123456789abcdef0123456789abcdef"),
     STATUS_OK},
    {FRAME("\x82\xa1t\x04\xa2"
           "bu\x01"),
     STATUS_FORMAT}, /* 1 instead of true */
    /* nine arrays inside each other below an unknown key */
    {FRAME("\x82\xa1t\x0e\xa1q\x91\x91\x91\x91\x91\x91\x91\x91\x91\xc0"), STATUS_FORMAT},
    {FRAME("\x82\xa1t\x0e\xa1q\x91\x91\x91\x91\x91\x91\x91\x91\xc0"), STATUS_OK},
};

START_TEST(proto_frames)
{
    struct arena a;
    struct proto_msg m;
    void *copy;
    arena_init(&a, 4096);
    ck_assert_int_eq(decode_copy(frames[_i].frame.p, frames[_i].frame.n, &a, &m, &copy),
                     frames[_i].status);
    free(copy);
    arena_fini(&a);
}
END_TEST

/* A frame that says "a million entries" and brings them: the arena has the last word. */
START_TEST(proto_arena_bounds_memory)
{
    struct arena a;
    struct proto_msg back;
    struct buf b;
    static struct proto_seq_pos list[20000];
    struct proto_msg m = {.type = PROTO_ACK, .ack = {list, 20000}};
    buf_init(&b, 0);
    proto_encode(&b, &m);
    arena_init(&a, 100000);
    ck_assert_int_eq(proto_decode(b.data, b.len, &a, &back), STATUS_FORMAT);
    ck_assert_uint_le(a.used, 100000);
    arena_fini(&a);
    arena_init(&a, 8 * b.len + 4096); /* what a link allows */
    ck_assert_int_eq(proto_decode(b.data, b.len, &a, &back), STATUS_OK);
    ck_assert_uint_eq(back.ack.n, 20000);
    arena_fini(&a);
    buf_fini(&b);
}
END_TEST

/* A list of the smallest entries fits the arena that a link allows (8 bytes per byte). */
START_TEST(proto_smallest_entries_fit)
{
    for (size_t k = 0; k < PROTO_ENTRIES; k++) {
        const struct proto_shape *s = proto_entries[k].shape;
        for (uint32_t i = 0; i < s->n; i++) {
            if (s->fields[i].kind != PROTO_LIST)
                continue;
            struct arena a;
            struct buf b;
            struct proto_msg m = {.type = proto_entries[k].type}, back;
            uint32_t n = 10000;
            void *list = calloc(n, s->fields[i].of->size);
            memcpy((char *)&m.hello + s->fields[i].at, &list, sizeof list);
            memcpy((char *)&m.hello + s->fields[i].at_n, &n, sizeof n);
            buf_init(&b, 0);
            proto_encode(&b, &m);
            arena_init(&a, 8 * b.len + 4096);
            ck_assert_msg(proto_decode(b.data, b.len, &a, &back) == STATUS_OK, "%s", s->name);
            arena_fini(&a);
            buf_fini(&b);
            free(list);
        }
    }
}
END_TEST

START_TEST(proto_floats)
{
    static const float values[] = {-INFINITY, INFINITY, NAN, -FLT_MAX, 0, -1.5f};
    static const float wire[] = {-FLT_MAX, FLT_MAX, -FLT_MAX, -FLT_MAX, 0, -1.5f};
    struct arena a;
    struct buf b;
    struct proto_token token = {.logprob = values[_i], .token = -1};
    struct proto_msg m = {.type = PROTO_TOKENS, .tokens = {&token, 1}}, back;
    arena_init(&a, 0);
    buf_init(&b, 0);
    proto_encode(&b, &m);
    ck_assert_int_eq(proto_decode(b.data, b.len, &a, &back), STATUS_OK);
    ck_assert(back.tokens.list[0].logprob == wire[_i]);
    ck_assert_int_eq(back.tokens.list[0].token, -1);
    /* and from a peer that does not clamp: the same bytes with an infinite float are refused */
    if (_i == 5) {
        char *at = memmem(b.data, b.len, "\xca\xbf\xc0\0\0", 5);
        ck_assert_ptr_nonnull(at);
        memcpy(at, "\xca\xff\x80\0\0", 5);
        ck_assert_int_eq(proto_decode(b.data, b.len, &a, &back), STATUS_FORMAT);
        memcpy(at, "\xca\x7f\xc0\0\0", 5);
        ck_assert_int_eq(proto_decode(b.data, b.len, &a, &back), STATUS_FORMAT);
    }
    buf_fini(&b);
    arena_fini(&a);
}
END_TEST

START_TEST(proto_negative_ids_are_refused)
{
    struct arena a;
    struct buf b;
    int32_t ids[3] = {1, -2, 3};
    struct proto_msg m = {.type = PROTO_RESERVE, .reserve.ids = {ids, 3}}, back;
    arena_init(&a, 0);
    buf_init(&b, 0);
    proto_encode(&b, &m);
    ck_assert_int_eq(proto_decode(b.data, b.len, &a, &back), STATUS_FORMAT);
    buf_fini(&b);
    arena_fini(&a);
}
END_TEST

START_TEST(proto_a_token_is_small)
{
    struct buf b;
    struct proto_token list[2] = {{.counter = 1000, .position = 500, .token = 30000},
                                  {.counter = 1000, .position = 500, .token = 30000}};
    struct proto_msg m = {.type = PROTO_TOKENS, .tokens = {list, 1}};
    buf_init(&b, 0);
    proto_encode(&b, &m);
    size_t one = b.len;
    buf_reset(&b);
    m.tokens.n = 2;
    proto_encode(&b, &m);
    ck_assert_uint_le(b.len - one, 20);
    buf_fini(&b);
}
END_TEST

START_TEST(proto_names)
{
    ck_assert_str_eq(proto_type_name(PROTO_HANDOFF_BAD), "HANDOFF_BAD");
    ck_assert_str_eq(proto_type_name((enum proto_type)99), "UNKNOWN");
    ck_assert_str_eq(proto_reason_name(PROTO_REASON_NO_ROUTER), "no_router");
    ck_assert_str_eq(proto_reason_name(PROTO_REASON_INVALID), "invalid");
    ck_assert_str_eq(proto_reason_name((enum proto_reason)200), "unknown");
}
END_TEST

/* ---- the page ---- */

static char *read_page(void)
{
    char path[512];
    snprintf(path, sizeof path, "%s/../../docs/PROTOCOL.md", test_data("."));
    FILE *f = fopen(path, "rb");
    if (!f)
        f = fopen("docs/PROTOCOL.md", "rb");
    ck_assert_msg(f, "docs/PROTOCOL.md cannot be read");
    static char page[1 << 18];
    size_t n = fread(page, 1, sizeof page - 1, f);
    page[n] = 0;
    fclose(f);
    return page;
}

/* The section "### NAME" of the page, up to the next heading, as a static string. */
static const char *section(const char *page, const char *name)
{
    static char text[16384];
    char heading[80];
    snprintf(heading, sizeof heading, "\n### %s", name);
    const char *p = page;
    while ((p = strstr(p, heading)) && !strchr(" \n", p[strlen(heading)]))
        p++;
    ck_assert_msg(p, "PROTOCOL.md has no section %s", name);
    p += 1;
    const char *end = strstr(p, "\n#");
    size_t n = end ? (size_t)(end - p) : strlen(p);
    ck_assert_uint_lt(n, sizeof text);
    memcpy(text, p, n);
    text[n] = 0;
    return text;
}

static unsigned count_rows(const char *text)
{
    unsigned n = 0;
    for (const char *p = text; (p = strstr(p, "\n| `")); p++)
        n++;
    return n;
}

static void check_page(const char *page, const char *name, const struct proto_shape *s)
{
    const char *text = section(page, name);
    for (uint32_t i = 0; i < s->n; i++) {
        char row[80];
        snprintf(row, sizeof row, "\n| `%s` |", s->fields[i].key);
        ck_assert_msg(strstr(text, row), "PROTOCOL.md: %s lacks key %s", name, s->fields[i].key);
    }
    ck_assert_msg(count_rows(text) == s->n, "PROTOCOL.md: %s lists %u keys instead of %u", name,
                  count_rows(text), s->n);
}

START_TEST(proto_page_lists_every_key)
{
    const char *page = read_page();
    for (size_t k = 0; k < PROTO_ENTRIES; k++) {
        const struct proto_entry *e = &proto_entries[k];
        char name[64];
        snprintf(name, sizeof name, "%s (%d)", e->name, e->type);
        check_page(page, name, e->shape);
    }
    check_page(page, "request", &proto_shape_request);
    check_page(page, "sampling", &proto_shape_sampling);
    check_page(page, "job", &proto_shape_job);
    check_page(page, "target", &proto_shape_target);
    check_page(page, "top", &proto_shape_top);
    check_page(page, "token", &proto_shape_token);
    check_page(page, "seq_pos", &proto_shape_seq_pos);
    check_page(page, "score", &proto_shape_score);
    check_page(page, "extent", &proto_shape_extent);
}
END_TEST

/* The table itself: keys are short and unique within a map, and no struct is forgotten. */
START_TEST(proto_table_is_sound)
{
    for (size_t k = 0; k < PROTO_ENTRIES; k++) {
        const struct proto_shape *s = proto_entries[k].shape;
        ck_assert_uint_le(s->n, 32);
        for (uint32_t i = 0; i < s->n; i++) {
            size_t n = strlen(s->fields[i].key);
            ck_assert(n >= 1 && n <= 3);
            ck_assert_str_ne(s->fields[i].key, "t");
            for (uint32_t j = 0; j < i; j++)
                ck_assert_str_ne(s->fields[i].key, s->fields[j].key);
        }
        for (size_t j = 0; j < k; j++)
            ck_assert_int_ne(proto_entries[j].type, proto_entries[k].type);
    }
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("proto");
    TCase *c = tcase_create("codec");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, proto_round_trip, 0, PROTO_ENTRIES);
    tcase_add_loop_test(c, proto_every_prefix_is_refused, 0, PROTO_ENTRIES);
    tcase_add_test(c, proto_mutations);
    tcase_add_loop_test(c, proto_frames, 0, sizeof frames / sizeof frames[0]);
    tcase_add_test(c, proto_arena_bounds_memory);
    tcase_add_test(c, proto_smallest_entries_fit);
    tcase_add_loop_test(c, proto_floats, 0, 6);
    tcase_add_test(c, proto_negative_ids_are_refused);
    tcase_add_test(c, proto_a_token_is_small);
    tcase_add_test(c, proto_names);
    tcase_add_test(c, proto_table_is_sound);
    tcase_add_test(c, proto_page_lists_every_key);
    suite_add_tcase(s, c);
    return s;
}
