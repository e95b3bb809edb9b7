/* proto: table-driven MessagePack codec; the contract is proto.h, the table proto_fields.h.
 *
 * Encoding uses msgpack-c's packer (its only home) with the caller's buffer as its sink. A field
 * that is optional and zero is left out, so a token of a running stream costs about 20 bytes.
 *
 * Decoding walks the bytes with a cursor instead of building msgpack-c's object tree: that unpacker
 * reserves room for as many elements as an array header claims before it has seen one of them, and
 * its tree would be copied into our structs right after. The cursor never allocates by itself. What
 * bounds the work and the memory:
 *   - every byte is visited once, except the strings of keys (compared with a few short ones);
 *   - a count is believed only as far as the bytes that follow can carry it (a list entry takes at
 *     least 3 bytes per needed field and one for its map), and lists live in the caller's arena,
 *     whose limit has the last word;
 *   - nesting is fixed by the table; values of unknown keys may nest DEPTH_MAX deep;
 *   - strings, bytes and ids are loans from the frame. Ids that do not lie on a 4-byte boundary are
 *     copied into the arena.
 * The map's first key is "t". Known keys may come in any order, but once each. */
#include "common/proto/proto.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include <msgpack.h>

#include "common/proto/proto_fields.h"

#define DEPTH_MAX 8

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "ids are copied as they lie in memory");
_Static_assert(sizeof(float) == 4, "float32 on the wire");

static const struct proto_entry *entry_find(uint64_t type)
{
    for (size_t i = 0; i < PROTO_ENTRIES; i++) {
        if ((uint64_t)proto_entries[i].type == type)
            return &proto_entries[i];
    }
    return NULL;
}

const char *proto_type_name(enum proto_type t)
{
    const struct proto_entry *e = entry_find((uint64_t)t);
    return e ? e->name : "UNKNOWN";
}

const char *proto_reason_name(enum proto_reason r)
{
    static const char *const names[] = {"none",     "no_router", "full",           "draining",
                                        "canceled", "mismatch",  "auth",           "peer_lost",
                                        "timeout",  "preempted", "too_large",      "internal",
                                        "corrupt",  "invalid",   "unknown_attempt"};
    return (size_t)r < sizeof names / sizeof names[0] ? names[r] : "unknown";
}

/* ---- encoding ---- */

static int sink(void *data, const char *p, size_t n)
{
    buf_append(data, p, n);
    return 0; /* a failure stays in the buffer, see buf_ok */
}

static bool all_zero(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (p[i])
            return false;
    }
    return true;
}

static bool field_is_zero(const struct proto_field *f, const char *at, const char *base)
{
    switch (f->kind) {
    case PROTO_U32:
    case PROTO_I32:
        return *(const uint32_t *)(const void *)at == 0;
    case PROTO_U64:
        return *(const uint64_t *)(const void *)at == 0;
    case PROTO_F32:
        return *(const float *)(const void *)at == 0;
    case PROTO_BOOL:
        return !*(const bool *)(const void *)at;
    case PROTO_STR:
    case PROTO_BIN:
        return ((const struct proto_bytes *)(const void *)at)->n == 0;
    case PROTO_IDS:
        return ((const struct proto_ids *)(const void *)at)->n == 0;
    case PROTO_FIXED:
        return all_zero((const uint8_t *)at, f->max);
    case PROTO_LIST:
        return *(const uint32_t *)(const void *)(base + f->at_n) == 0;
    case PROTO_STRUCT:
        break;
    }
    return false;
}

static bool field_is_sent(const struct proto_field *f, const char *base)
{
    return f->need || !field_is_zero(f, base + f->at, base);
}

static uint32_t fields_sent(const struct proto_shape *s, const char *base)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n; i++)
        n += field_is_sent(&s->fields[i], base);
    return n;
}

/* Probabilities of masked tokens are -inf in the engine; the wire has finite numbers only. */
static float wire_float(float v)
{
    if (v > FLT_MAX)
        return FLT_MAX;
    return v >= -FLT_MAX ? v : -FLT_MAX;
}

static void pack_map(msgpack_packer *pk, const struct proto_shape *s, const char *base);

static void pack_value(msgpack_packer *pk, const struct proto_field *f, const char *base)
{
    const void *at = base + f->at;
    switch (f->kind) {
    case PROTO_U32:
        msgpack_pack_uint32(pk, *(const uint32_t *)at);
        break;
    case PROTO_I32:
        msgpack_pack_int32(pk, *(const int32_t *)at);
        break;
    case PROTO_U64:
        msgpack_pack_uint64(pk, *(const uint64_t *)at);
        break;
    case PROTO_F32:
        msgpack_pack_float(pk, wire_float(*(const float *)at));
        break;
    case PROTO_BOOL:
        if (*(const bool *)at)
            msgpack_pack_true(pk);
        else
            msgpack_pack_false(pk);
        break;
    case PROTO_STR: {
        const struct proto_bytes *b = at;
        msgpack_pack_str(pk, b->n);
        msgpack_pack_str_body(pk, b->p, b->n);
        break;
    }
    case PROTO_BIN: {
        const struct proto_bytes *b = at;
        msgpack_pack_bin(pk, b->n);
        msgpack_pack_bin_body(pk, b->p, b->n);
        break;
    }
    case PROTO_FIXED:
        msgpack_pack_bin(pk, f->max);
        msgpack_pack_bin_body(pk, at, f->max);
        break;
    case PROTO_IDS: {
        const struct proto_ids *ids = at;
        msgpack_pack_bin(pk, ids->n * sizeof(int32_t));
        msgpack_pack_bin_body(pk, ids->p, ids->n * sizeof(int32_t));
        break;
    }
    case PROTO_STRUCT:
        msgpack_pack_map(pk, fields_sent(f->of, at));
        pack_map(pk, f->of, at);
        break;
    case PROTO_LIST: {
        const char *list = *(const char *const *)at;
        uint32_t n = *(const uint32_t *)(const void *)(base + f->at_n);
        msgpack_pack_array(pk, n);
        for (uint32_t i = 0; i < n; i++, list += f->of->size) {
            msgpack_pack_map(pk, fields_sent(f->of, list));
            pack_map(pk, f->of, list);
        }
        break;
    }
    }
}

static void pack_map(msgpack_packer *pk, const struct proto_shape *s, const char *base)
{
    for (uint32_t i = 0; i < s->n; i++) {
        const struct proto_field *f = &s->fields[i];
        if (!field_is_sent(f, base))
            continue;
        size_t n = strlen(f->key);
        msgpack_pack_str(pk, n);
        msgpack_pack_str_body(pk, f->key, n);
        pack_value(pk, f, base);
    }
}

void proto_encode(struct buf *out, const struct proto_msg *m)
{
    const struct proto_entry *e = entry_find((uint64_t)m->type);
    msgpack_packer pk;

    if (!e) {
        out->failed = true;
        return;
    }
    const char *base = (const char *)&m->hello; /* all members of the union start there */
    msgpack_packer_init(&pk, out, sink);
    msgpack_pack_map(&pk, 1 + fields_sent(e->shape, base));
    msgpack_pack_str(&pk, 1);
    msgpack_pack_str_body(&pk, "t", 1);
    msgpack_pack_uint32(&pk, (uint32_t)e->type);
    pack_map(&pk, e->shape, base);
}

/* ---- decoding ---- */

struct cursor {
    const uint8_t *p, *end;
    struct arena *arena;
};

enum item_kind {
    ITEM_NIL,
    ITEM_BOOL,
    ITEM_UINT,
    ITEM_NINT,
    ITEM_FLOAT,
    ITEM_STR,
    ITEM_BIN,
    ITEM_ARRAY,
    ITEM_MAP,
    ITEM_EXT
};

/* One MessagePack head. For STR, BIN and EXT the n bytes at p have been passed already; for ARRAY
 * and MAP n elements (or pairs) follow at the cursor. */
struct item {
    enum item_kind kind;
    uint64_t u; /* BOOL, UINT */
    int64_t i;  /* NINT: below zero */
    double d;
    const uint8_t *p;
    size_t n;
};

static size_t left(const struct cursor *c)
{
    return (size_t)(c->end - c->p);
}

/* Big-endian number of 1, 2, 4 or 8 bytes. */
static int take_be(struct cursor *c, unsigned n, uint64_t *out)
{
    if (left(c) < n)
        return STATUS_FORMAT;
    uint64_t v = 0;
    for (unsigned i = 0; i < n; i++)
        v = v << 8 | *c->p++;
    *out = v;
    return STATUS_OK;
}

static int take_bytes(struct cursor *c, enum item_kind kind, uint64_t n, struct item *it)
{
    if (n > left(c))
        return STATUS_FORMAT;
    it->kind = kind;
    it->p = c->p;
    it->n = n;
    c->p += n;
    return STATUS_OK;
}

/* A container of n elements of at least `each` bytes. */
static int take_container(struct cursor *c, enum item_kind kind, uint64_t n, unsigned each,
                          struct item *it)
{
    if (n > left(c) / each)
        return STATUS_FORMAT;
    it->kind = kind;
    it->n = n;
    return STATUS_OK;
}

static int take_int(struct cursor *c, unsigned log_size, bool is_signed, struct item *it)
{
    TRY(take_be(c, 1u << log_size, &it->u));
    it->kind = ITEM_UINT;
    if (is_signed) {
        unsigned shift = 64 - (8u << log_size);
        it->i = (int64_t)(it->u << shift) >> shift;
        if (it->i < 0)
            it->kind = ITEM_NINT;
    }
    return STATUS_OK;
}

static int take_float(struct cursor *c, bool is_double, struct item *it)
{
    uint64_t bits;
    TRY(take_be(c, is_double ? 8 : 4, &bits));
    it->kind = ITEM_FLOAT;
    if (is_double) {
        memcpy(&it->d, &bits, sizeof it->d);
    } else {
        uint32_t low = (uint32_t)bits;
        float v;
        memcpy(&v, &low, sizeof v);
        it->d = (double)v;
    }
    return STATUS_OK;
}

static int take_sized(struct cursor *c, enum item_kind kind, unsigned log_size, struct item *it)
{
    uint64_t n;
    TRY(take_be(c, 1u << log_size, &n));
    if (kind == ITEM_ARRAY)
        return take_container(c, kind, n, 1, it);
    if (kind == ITEM_MAP)
        return take_container(c, kind, n, 2, it);
    return take_bytes(c, kind, kind == ITEM_EXT ? n + 1 : n, it); /* ext: one byte for its type */
}

static int take(struct cursor *c, struct item *it)
{
    if (c->p == c->end)
        return STATUS_FORMAT;
    uint8_t b = *c->p++;
    *it = (struct item){.kind = ITEM_UINT};
    if (b <= 0x7f) {
        it->u = b;
        return STATUS_OK;
    }
    if (b >= 0xe0) {
        it->kind = ITEM_NINT;
        it->i = (int8_t)b;
        return STATUS_OK;
    }
    if (b <= 0x8f)
        return take_container(c, ITEM_MAP, b & 0x0f, 2, it);
    if (b <= 0x9f)
        return take_container(c, ITEM_ARRAY, b & 0x0f, 1, it);
    if (b <= 0xbf)
        return take_bytes(c, ITEM_STR, b & 0x1f, it);
    switch (b) {
    case 0xc0:
        it->kind = ITEM_NIL;
        return STATUS_OK;
    case 0xc2:
    case 0xc3:
        it->kind = ITEM_BOOL;
        it->u = b & 1;
        return STATUS_OK;
    case 0xc4:
    case 0xc5:
    case 0xc6:
        return take_sized(c, ITEM_BIN, b - 0xc4u, it);
    case 0xc7:
    case 0xc8:
    case 0xc9:
        return take_sized(c, ITEM_EXT, b - 0xc7u, it);
    case 0xca:
    case 0xcb:
        return take_float(c, b == 0xcb, it);
    case 0xcc:
    case 0xcd:
    case 0xce:
    case 0xcf:
        return take_int(c, b - 0xccu, false, it);
    case 0xd0:
    case 0xd1:
    case 0xd2:
    case 0xd3:
        return take_int(c, b - 0xd0u, true, it);
    case 0xd4:
    case 0xd5:
    case 0xd6:
    case 0xd7:
    case 0xd8:
        return take_bytes(c, ITEM_EXT, 1 + (1u << (b - 0xd4u)), it);
    case 0xd9:
    case 0xda:
    case 0xdb:
        return take_sized(c, ITEM_STR, b - 0xd9u, it);
    case 0xdc:
    case 0xdd:
        return take_sized(c, ITEM_ARRAY, b - 0xdcu + 1, it);
    case 0xde:
    case 0xdf:
        return take_sized(c, ITEM_MAP, b - 0xdeu + 1, it);
    default: /* 0xc1 is never used */
        return STATUS_FORMAT;
    }
}

static int skip(struct cursor *c, unsigned depth)
{
    struct item it;
    TRY(take(c, &it));
    if (it.kind != ITEM_ARRAY && it.kind != ITEM_MAP)
        return STATUS_OK;
    if (depth == 0)
        return STATUS_FORMAT;
    size_t n = it.kind == ITEM_MAP ? 2 * it.n : it.n;
    for (size_t i = 0; i < n; i++)
        TRY(skip(c, depth - 1));
    return STATUS_OK;
}

static int unpack_map(struct cursor *c, size_t pairs, const struct proto_shape *s, char *base);

static int unpack_ids(struct cursor *c, const struct item *it, const struct proto_field *f,
                      struct proto_ids *out)
{
    if (it->kind != ITEM_BIN || it->n % sizeof(int32_t) || it->n / sizeof(int32_t) > f->max)
        return STATUS_FORMAT;
    const void *p = it->p;
    if (it->n && (uintptr_t)p % _Alignof(int32_t)) {
        void *copy = arena_alloc(c->arena, it->n);
        if (!copy)
            return STATUS_FORMAT;
        p = memcpy(copy, p, it->n);
    }
    const int32_t *ids = p;
    size_t n = it->n / sizeof(int32_t);
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0)
            return STATUS_FORMAT;
    }
    *out = (struct proto_ids){ids, n};
    return STATUS_OK;
}

/* The least a map of this shape can take: its head, and key and value of each needed field. */
static size_t shape_min_bytes(const struct proto_shape *s)
{
    size_t n = 1;
    for (uint32_t i = 0; i < s->n; i++)
        n += s->fields[i].need ? strlen(s->fields[i].key) + 2 : 0;
    return n;
}

static int unpack_list(struct cursor *c, const struct item *it, const struct proto_field *f,
                       char *base)
{
    size_t bytes;
    if (it->kind != ITEM_ARRAY || it->n > f->max || it->n > left(c) / shape_min_bytes(f->of) ||
        !mem_mul(it->n, f->of->size, &bytes))
        return STATUS_FORMAT;
    char *list = NULL;
    if (it->n) {
        list = arena_alloc(c->arena, bytes);
        if (!list)
            return STATUS_FORMAT;
    }
    for (size_t i = 0; i < it->n; i++) {
        struct item map;
        TRY(take(c, &map));
        if (map.kind != ITEM_MAP)
            return STATUS_FORMAT;
        TRY(unpack_map(c, map.n, f->of, list + i * f->of->size));
    }
    memcpy(base + f->at, &list, sizeof list);
    *(uint32_t *)(void *)(base + f->at_n) = (uint32_t)it->n;
    return STATUS_OK;
}

static int unpack_value(struct cursor *c, const struct proto_field *f, char *base)
{
    void *at = base + f->at;
    struct item it;
    TRY(take(c, &it));
    switch (f->kind) {
    case PROTO_U32:
        if (it.kind != ITEM_UINT || it.u > f->max)
            return STATUS_FORMAT;
        *(uint32_t *)at = (uint32_t)it.u;
        return STATUS_OK;
    case PROTO_U64:
        if (it.kind != ITEM_UINT || it.u > f->max)
            return STATUS_FORMAT;
        *(uint64_t *)at = it.u;
        return STATUS_OK;
    case PROTO_I32:
        if (it.kind == ITEM_NINT ? it.i < f->min : it.kind != ITEM_UINT || it.u > f->max)
            return STATUS_FORMAT;
        *(int32_t *)at = it.kind == ITEM_NINT ? (int32_t)it.i : (int32_t)it.u;
        return STATUS_OK;
    case PROTO_F32:
        if (it.kind != ITEM_FLOAT || !(fabs(it.d) <= (double)FLT_MAX) ||
            (f->max && (it.d < (double)f->min || it.d > (double)f->max)))
            return STATUS_FORMAT;
        *(float *)at = (float)it.d;
        return STATUS_OK;
    case PROTO_BOOL:
        if (it.kind != ITEM_BOOL)
            return STATUS_FORMAT;
        *(bool *)at = it.u;
        return STATUS_OK;
    case PROTO_STR:
    case PROTO_BIN:
        if (it.kind != (f->kind == PROTO_STR ? ITEM_STR : ITEM_BIN) || it.n > f->max)
            return STATUS_FORMAT;
        *(struct proto_bytes *)at = (struct proto_bytes){it.p, it.n};
        return STATUS_OK;
    case PROTO_FIXED:
        if (it.kind != ITEM_BIN || it.n != f->max)
            return STATUS_FORMAT;
        memcpy(at, it.p, it.n);
        return STATUS_OK;
    case PROTO_IDS:
        return unpack_ids(c, &it, f, at);
    case PROTO_STRUCT:
        return it.kind == ITEM_MAP ? unpack_map(c, it.n, f->of, at) : STATUS_FORMAT;
    case PROTO_LIST:
        return unpack_list(c, &it, f, base);
    }
    return STATUS_FORMAT;
}

static int unpack_map(struct cursor *c, size_t pairs, const struct proto_shape *s, char *base)
{
    uint32_t seen = 0;
    for (size_t k = 0; k < pairs; k++) {
        struct item key;
        TRY(take(c, &key));
        if (key.kind != ITEM_STR)
            return STATUS_FORMAT;
        uint32_t i = 0;
        while (i < s->n &&
               (strlen(s->fields[i].key) != key.n || memcmp(s->fields[i].key, key.p, key.n) != 0))
            i++;
        if (i == s->n) {
            TRY(skip(c, DEPTH_MAX));
            continue;
        }
        if (seen & 1u << i)
            return STATUS_FORMAT;
        seen |= 1u << i;
        TRY(unpack_value(c, &s->fields[i], base));
    }
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->fields[i].need && !(seen & 1u << i))
            return STATUS_FORMAT;
    }
    return STATUS_OK;
}

int proto_decode(const void *p, size_t n, struct arena *arena, struct proto_msg *out)
{
    struct cursor c = {p, (const uint8_t *)p + n, arena};
    struct item map, key, type;

    TRY(take(&c, &map));
    if (map.kind != ITEM_MAP || map.n == 0)
        return STATUS_FORMAT;
    TRY(take(&c, &key));
    if (key.kind != ITEM_STR || key.n != 1 || key.p[0] != 't')
        return STATUS_FORMAT;
    TRY(take(&c, &type));
    if (type.kind != ITEM_UINT)
        return STATUS_FORMAT;
    const struct proto_entry *e = entry_find(type.u);
    if (!e) {
        for (size_t i = 1; i < map.n; i++) {
            TRY(skip(&c, 0)); /* the key */
            TRY(skip(&c, DEPTH_MAX));
        }
        return c.p == c.end ? STATUS_UNSUPPORTED : STATUS_FORMAT;
    }
    struct proto_msg m;
    memset(&m, 0, sizeof m);
    m.type = e->type;
    TRY(unpack_map(&c, map.n - 1, e->shape, (char *)&m.hello));
    if (c.p != c.end)
        return STATUS_FORMAT;
    *out = m;
    return STATUS_OK;
}
