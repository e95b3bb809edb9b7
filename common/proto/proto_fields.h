/* proto_fields: the one table of what goes over the wire. Encoder, decoder and the tests walk it,
 * and docs/PROTOCOL.md lists the same keys (a test compares them).
 *
 * A shape is one MessagePack map: its fields with their keys, types and ranges. A field whose
 * `need` is NEED is always written and must be there; the others are left out when zero. Adding a
 * field: append it to the struct in proto.h, add one line here and one to PROTOCOL.md. Keys are
 * never reused for something else. Internal to common/proto and its tests. */
#ifndef BATON_PROTO_PROTO_FIELDS_H
#define BATON_PROTO_PROTO_FIELDS_H

#include "common/proto/proto.h"

enum proto_kind {
    PROTO_U32,    /* uint32_t, 0..max */
    PROTO_U64,    /* uint64_t, 0..max */
    PROTO_I32,    /* int32_t, min..max */
    PROTO_F32,    /* float, finite, min..max (max 0: any) */
    PROTO_BOOL,   /* bool */
    PROTO_STR,    /* struct proto_bytes, at most max bytes of text */
    PROTO_BIN,    /* struct proto_bytes, at most max bytes */
    PROTO_FIXED,  /* uint8_t[max], exactly max bytes */
    PROTO_IDS,    /* struct proto_ids, at most max ids, none negative */
    PROTO_STRUCT, /* a nested map of shape `of` */
    PROTO_LIST    /* pointer at `at`, uint32_t count at `at_n`: an array of at most max maps */
};

struct proto_shape;
struct proto_field {
    const char *key;
    enum proto_kind kind;
    bool need;
    uint32_t at, at_n; /* byte offsets in the struct */
    int64_t min;
    uint64_t max;
    const struct proto_shape *of;
};
struct proto_shape {
    const char *name;
    uint32_t size; /* of the struct */
    uint32_t n;    /* fields, at most 32 */
    const struct proto_field *fields;
};

#define NEED true
#define OPT  false
/* clang-format off */
#define AT(tag, f) .at = offsetof(struct proto_##tag, f)
#define F_U32(tag, k, f, req, hi)     {.key = k, .kind = PROTO_U32, .need = req, AT(tag, f), .max = hi}
#define F_U64(tag, k, f, req, hi)     {.key = k, .kind = PROTO_U64, .need = req, AT(tag, f), .max = hi}
#define F_I32(tag, k, f, req, lo, hi) {.key = k, .kind = PROTO_I32, .need = req, AT(tag, f), .min = lo, .max = hi}
#define F_F32(tag, k, f, req, lo, hi) {.key = k, .kind = PROTO_F32, .need = req, AT(tag, f), .min = lo, .max = hi}
#define F_BOOL(tag, k, f)             {.key = k, .kind = PROTO_BOOL, .need = OPT, AT(tag, f)}
#define F_STR(tag, k, f, hi)          {.key = k, .kind = PROTO_STR, .need = OPT, AT(tag, f), .max = hi}
#define F_BIN(tag, k, f, hi)          {.key = k, .kind = PROTO_BIN, .need = OPT, AT(tag, f), .max = hi}
#define F_FIXED(tag, k, f, req)       {.key = k, .kind = PROTO_FIXED, .need = req, AT(tag, f), \
                                       .max = sizeof(((struct proto_##tag *)0)->f)}
#define F_IDS(tag, k, f, req)         {.key = k, .kind = PROTO_IDS, .need = req, AT(tag, f), .max = PROTO_IDS_MAX}
#define F_STRUCT(tag, k, f, shape)    {.key = k, .kind = PROTO_STRUCT, .need = NEED, AT(tag, f), .of = &proto_shape_##shape}
#define F_LIST(tag, k, f, count, req, shape, hi)                                                  \
    {.key = k, .kind = PROTO_LIST, .need = req, AT(tag, f), .at_n = offsetof(struct proto_##tag, count), \
     .max = hi, .of = &proto_shape_##shape}
/* clang-format on */
#define SHAPE(tag)                                                                                 \
    static const struct proto_shape proto_shape_##tag = {                                          \
        #tag, sizeof(struct proto_##tag), sizeof tag##_fields / sizeof tag##_fields[0],            \
        tag##_fields}

#define PROTO_IDS_MAX          (4u << 20)
#define PROTO_LIST_MAX         (1u << 20)
#define PROTO_TEXT_MAX         1024u
#define PROTO_SALT_MAX         4096u
#define PROTO_MARK_MAX         64u
#define PROTO_GRAMMAR_MAX      (1u << 20)
#define PROTO_ADDRESS_MAX      65536u
#define PROTO_HIDDEN_MAX       (1u << 20)
#define PROTO_PAGE_MAX         (16u << 20)
#define PROTO_REASON_MAX       255u /* later versions may know more reasons */
#define PROTO_GRAMMAR_KIND_MAX 5u
#define PROTO_MS_MAX           0x7fffffffu
#define PROTO_COUNT_MAX        0x7fffffffu
#define ANY32                  UINT32_MAX
#define ANY64                  UINT64_MAX

static const struct proto_field request_fields[] = {
    F_U64(request, "r", router, NEED, ANY64),
    F_U64(request, "c", counter, NEED, ANY64),
    F_U32(request, "a", attempt, OPT, ANY32),
};
SHAPE(request);

static const struct proto_field sampling_fields[] = {
    F_F32(sampling, "te", temperature, OPT, 0, 1000000),
    F_F32(sampling, "tp", top_p, OPT, 0, 1),
    F_F32(sampling, "mp", min_p, OPT, 0, 1),
    F_I32(sampling, "tk", top_k, OPT, -1, INT32_MAX),
    F_U64(sampling, "sd", seed, OPT, ANY64),
    F_F32(sampling, "pp", presence, OPT, -2, 2),
    F_F32(sampling, "fp", frequency, OPT, -2, 2),
    F_F32(sampling, "rp", repetition, OPT, 0, 1000000),
    F_U32(sampling, "mn", min_tokens, OPT, PROTO_COUNT_MAX),
    F_IDS(sampling, "bi", bias_ids, OPT),
    F_BIN(sampling, "bv", bias, PROTO_IDS_MAX * 4),
    F_IDS(sampling, "al", allowed, OPT),
    F_IDS(sampling, "bn", banned, OPT),
    F_IDS(sampling, "bw", bad_words, OPT),
    F_IDS(sampling, "bl", bad_word_sizes, OPT),
};
SHAPE(sampling);

static const struct proto_field job_fields[] = {
    F_STRUCT(job, "rq", request, request),
    F_U32(job, "ch", choice, OPT, 65535),
    F_IDS(job, "pr", prompt, NEED),
    F_IDS(job, "em", emitted, OPT),
    F_STRUCT(job, "sa", sampling, sampling),
    F_U32(job, "mt", max_tokens, OPT, PROTO_COUNT_MAX),
    F_IDS(job, "st", stop_ids, OPT),
    F_BOOL(job, "ie", ignore_eos),
    F_BOOL(job, "lp", logprobs),
    F_U32(job, "tl", top_logprobs, OPT, PROTO_TOP_MAX),
    F_BOOL(job, "sp", score_prompt),
    F_U32(job, "ss", score_top, OPT, PROTO_TOP_MAX),
    F_U32(job, "ni", n_ids, OPT, PROTO_COUNT_MAX),
    F_BIN(job, "sl", salt, PROTO_SALT_MAX),
    F_U32(job, "py", priority, OPT, ANY32),
    F_U64(job, "dl", deadline_ms, OPT, PROTO_MS_MAX),
    F_U32(job, "kn", think_limit, OPT, PROTO_COUNT_MAX),
    F_U32(job, "kb", think_start, OPT, 2),
    F_STR(job, "ko", think_open, PROTO_MARK_MAX),
    F_STR(job, "kc", think_close, PROTO_MARK_MAX),
    F_STR(job, "kx", think_breaks, PROTO_MARK_MAX),
    F_STR(job, "kf", think_force, PROTO_TEXT_MAX),
    F_U32(job, "gk", grammar_kind, OPT, PROTO_GRAMMAR_KIND_MAX),
    F_BOOL(job, "gc", grammar_compact),
    F_STR(job, "gs", grammar, PROTO_GRAMMAR_MAX),
    F_STR(job, "tr", trace, PROTO_TEXT_MAX),
    F_U32(job, "po", pool, OPT, 2),
};
SHAPE(job);

static const struct proto_field target_fields[] = {
    F_U64(target, "i", instance, NEED, ANY64),
    F_BIN(target, "da", data_address, PROTO_ADDRESS_MAX),
    F_FIXED(target, "mac", mac, OPT),
};
SHAPE(target);

static const struct proto_field top_fields[] = {
    F_I32(top, "i", id, NEED, 0, INT32_MAX),
    F_F32(top, "l", logprob, NEED, 0, 0),
};
SHAPE(top);

static const struct proto_field token_fields[] = {
    F_U64(token, "c", counter, NEED, ANY64),
    F_U32(token, "a", attempt, OPT, ANY32),
    F_U32(token, "ch", choice, OPT, 65535),
    F_U32(token, "p", position, NEED, PROTO_COUNT_MAX),
    F_I32(token, "id", token, NEED, -1, INT32_MAX),
    F_F32(token, "l", logprob, OPT, 0, 0),
    F_LIST(token, "tp", top, n_top, OPT, top, PROTO_TOP_MAX),
    F_U32(token, "f", finish, OPT, PROTO_FINISH_ERROR),
    F_U32(token, "ct", cached_tokens, OPT, PROTO_COUNT_MAX),
    F_U32(token, "qm", queue_ms, OPT, PROTO_MS_MAX),
    F_U32(token, "pm", prefill_ms, OPT, PROTO_MS_MAX),
};
SHAPE(token);

static const struct proto_field seq_pos_fields[] = {
    F_U64(seq_pos, "c", counter, NEED, ANY64),
    F_U32(seq_pos, "a", attempt, OPT, ANY32),
    F_U32(seq_pos, "ch", choice, OPT, 65535),
    F_U32(seq_pos, "p", position, NEED, PROTO_COUNT_MAX),
};
SHAPE(seq_pos);

static const struct proto_field score_fields[] = {
    F_F32(score, "l", logprob, NEED, 0, 0),
    F_LIST(score, "tp", top, n_top, OPT, top, PROTO_TOP_MAX),
    F_U32(score, "rk", rank, OPT, PROTO_COUNT_MAX),
};
SHAPE(score);

static const struct proto_field extent_fields[] = {
    F_U32(extent, "ly", layer, NEED, 65535),
    F_U32(extent, "fi", first, NEED, PROTO_COUNT_MAX),
    F_U32(extent, "n", n, NEED, PROTO_COUNT_MAX),
};
SHAPE(extent);

static const struct proto_field hello_fields[] = {
    F_U32(hello, "lo", version_min, NEED, 65535),
    F_U32(hello, "hi", version_max, NEED, 65535),
    F_U64(hello, "f", features, OPT, ANY64),
    F_U64(hello, "i", instance, NEED, ANY64),
    F_U32(hello, "ro", role, NEED, PROTO_DECODE_WORKER),
    F_STR(hello, "n", name, PROTO_TEXT_MAX),
    F_STR(hello, "mn", model_name, PROTO_TEXT_MAX),
    F_U64(hello, "m", model, OPT, ANY64),
    F_STR(hello, "kl", kv_layout, PROTO_TEXT_MAX),
    F_STR(hello, "nu", numerics, PROTO_TEXT_MAX),
    F_BIN(hello, "da", data_address, PROTO_ADDRESS_MAX),
    F_U32(hello, "kb", kv_blocks, OPT, PROTO_COUNT_MAX),
    F_U32(hello, "bs", kv_block_size, OPT, 65536),
    F_U32(hello, "nl", n_layers, OPT, 65535),
    F_U32(hello, "cx", context, OPT, PROTO_COUNT_MAX),
    F_U32(hello, "vo", vocab, OPT, PROTO_COUNT_MAX),
    F_U32(hello, "mb", max_batch, OPT, 65536),
    F_U32(hello, "pc", prefill_chunk, OPT, PROTO_COUNT_MAX),
    F_FIXED(hello, "no", nonce, NEED),
};
SHAPE(hello);

static const struct proto_field hello_ok_fields[] = {
    F_FIXED(hello_ok, "mac", mac, OPT),
};
SHAPE(hello_ok);

static const struct proto_field hello_no_fields[] = {
    F_U32(hello_no, "re", reason, NEED, PROTO_REASON_MAX),
    F_STR(hello_no, "de", detail, PROTO_TEXT_MAX),
};
SHAPE(hello_no);

static const struct proto_field heartbeat_fields[] = {
    F_U64(heartbeat, "p", progress, OPT, ANY64),
    F_U32(heartbeat, "ru", running, OPT, PROTO_COUNT_MAX),
    F_U32(heartbeat, "wa", waiting, OPT, PROTO_COUNT_MAX),
    F_U32(heartbeat, "kf", kv_free, OPT, PROTO_COUNT_MAX),
    F_U32(heartbeat, "qt", queued_tokens, OPT, ANY32),
    F_U32(heartbeat, "cr", credits, OPT, PROTO_COUNT_MAX),
    F_BOOL(heartbeat, "dr", draining),
    F_BOOL(heartbeat, "bu", busy),
    F_U32(heartbeat, "us", step_us, OPT, ANY32),
};
SHAPE(heartbeat);

static const struct proto_field metrics_fields[] = {
    F_STR(metrics, "pg", page, PROTO_PAGE_MAX),
};
SHAPE(metrics);

static const struct proto_field prefill_fields[] = {
    F_STRUCT(prefill, "jo", job, job),
    F_STRUCT(prefill, "dw", decode, target),
};
SHAPE(prefill);

static const struct proto_field tokens_fields[] = {
    F_LIST(tokens, "ls", list, n, NEED, token, PROTO_LIST_MAX),
};
SHAPE(tokens);

static const struct proto_field ack_fields[] = {
    F_LIST(ack, "ls", list, n, NEED, seq_pos, PROTO_LIST_MAX),
};
SHAPE(ack);

static const struct proto_field cancel_fields[] = {
    F_STRUCT(cancel, "rq", request, request),
};
SHAPE(cancel);

static const struct proto_field lost_fields[] = {
    F_STRUCT(lost, "rq", request, request),
    F_U32(lost, "ch", choice, OPT, 65535),
    F_U32(lost, "re", reason, NEED, PROTO_REASON_MAX),
    F_STR(lost, "de", detail, PROTO_TEXT_MAX),
    F_BOOL(lost, "pk", parked),
};
SHAPE(lost);

static const struct proto_field resume_fields[] = {
    F_LIST(resume, "ls", list, n, NEED, seq_pos, PROTO_LIST_MAX),
};
SHAPE(resume);

static const struct proto_field scores_fields[] = {
    F_STRUCT(scores, "rq", request, request),
    F_LIST(scores, "ls", list, n, NEED, score, PROTO_LIST_MAX),
    F_BIN(scores, "hv", hidden, PROTO_HIDDEN_MAX),
};
SHAPE(scores);

static const struct proto_field redirect_fields[] = {
    F_STRUCT(redirect, "rq", request, request),
    F_U32(redirect, "oa", old_attempt, OPT, ANY32),
    F_STRUCT(redirect, "dw", decode, target),
};
SHAPE(redirect);

static const struct proto_field drain_fields[] = {
    F_U32(drain, "ms", remaining_ms, OPT, PROTO_MS_MAX),
    F_BOOL(drain, "off", off),
};
SHAPE(drain);

static const struct proto_field move_fields[] = {
    F_STRUCT(move, "rq", request, request),
    F_U32(move, "oa", old_attempt, OPT, ANY32),
    F_STRUCT(move, "dw", decode, target),
    F_BOOL(move, "co", copy),
};
SHAPE(move);

static const struct proto_field reserve_fields[] = {
    F_STRUCT(reserve, "rq", request, request),
    F_U32(reserve, "ch", choice, OPT, 65535),
    F_U64(reserve, "i", instance, NEED, ANY64),
    F_BIN(reserve, "da", data_address, PROTO_ADDRESS_MAX),
    F_U64(reserve, "m", model, OPT, ANY64),
    F_STR(reserve, "kl", kv_layout, PROTO_TEXT_MAX),
    F_U32(reserve, "nt", n_tokens, NEED, PROTO_COUNT_MAX),
    F_IDS(reserve, "ids", ids, OPT),
    F_BIN(reserve, "sl", salt, PROTO_SALT_MAX),
    F_U32(reserve, "py", priority, OPT, ANY32),
    F_FIXED(reserve, "mac", mac, OPT),
    F_BOOL(reserve, "co", copy),
};
SHAPE(reserve);

static const struct proto_field grant_fields[] = {
    F_STRUCT(grant, "rq", request, request),
    F_U32(grant, "ch", choice, OPT, 65535),
    F_U64(grant, "i", instance, NEED, ANY64),
    F_FIXED(grant, "tk", ticket, NEED),
    F_U32(grant, "hb", held_blocks, OPT, PROTO_COUNT_MAX),
    F_U32(grant, "le", lease_ms, OPT, PROTO_MS_MAX),
};
SHAPE(grant);

static const struct proto_field wait_fields[] = {
    F_STRUCT(wait, "rq", request, request),
    F_U32(wait, "ch", choice, OPT, 65535),
    F_U64(wait, "i", instance, NEED, ANY64),
};
SHAPE(wait);

static const struct proto_field refuse_fields[] = {
    F_STRUCT(refuse, "rq", request, request),
    F_U32(refuse, "ch", choice, OPT, 65535),
    F_U64(refuse, "i", instance, NEED, ANY64),
    F_U32(refuse, "re", reason, NEED, PROTO_REASON_MAX),
    F_STR(refuse, "de", detail, PROTO_TEXT_MAX),
};
SHAPE(refuse);

static const struct proto_field handoff_fields[] = {
    F_FIXED(handoff, "tk", ticket, NEED),
    F_U64(handoff, "i", instance, NEED, ANY64),
    F_STRUCT(handoff, "jo", job, job),
    F_STRUCT(handoff, "la", last, token),
    F_U64(handoff, "dg", digest, NEED, ANY64),
    F_LIST(handoff, "ea", earlier, n_earlier, OPT, token, PROTO_LIST_MAX),
};
SHAPE(handoff);

static const struct proto_field handoff_ok_fields[] = {
    F_FIXED(handoff_ok, "tk", ticket, NEED),
    F_U64(handoff_ok, "i", instance, NEED, ANY64),
};
SHAPE(handoff_ok);

static const struct proto_field handoff_bad_fields[] = {
    F_FIXED(handoff_bad, "tk", ticket, NEED),
    F_U64(handoff_bad, "i", instance, NEED, ANY64),
    F_LIST(handoff_bad, "ls", list, n, NEED, extent, PROTO_LIST_MAX),
};
SHAPE(handoff_bad);

static const struct proto_field release_fields[] = {
    F_STRUCT(release, "rq", request, request),
    F_U32(release, "ch", choice, OPT, 65535),
    F_U64(release, "i", instance, NEED, ANY64),
    F_FIXED(release, "tk", ticket, OPT),
};
SHAPE(release);

/* Every message: its number, its name in PROTOCOL.md and its shape. */
#define PROTO_TABLE(X)                                                                             \
    X(HELLO, hello)                                                                                \
    X(HELLO_OK, hello_ok)                                                                          \
    X(HELLO_NO, hello_no)                                                                          \
    X(HEARTBEAT, heartbeat)                                                                        \
    X(METRICS, metrics)                                                                            \
    X(PREFILL, prefill)                                                                            \
    X(TOKENS, tokens)                                                                              \
    X(ACK, ack)                                                                                    \
    X(CANCEL, cancel)                                                                              \
    X(LOST, lost)                                                                                  \
    X(RESUME, resume)                                                                              \
    X(SCORES, scores)                                                                              \
    X(REDIRECT, redirect)                                                                          \
    X(DRAIN, drain)                                                                                \
    X(MOVE, move)                                                                                  \
    X(RESERVE, reserve)                                                                            \
    X(GRANT, grant)                                                                                \
    X(WAIT, wait)                                                                                  \
    X(REFUSE, refuse)                                                                              \
    X(HANDOFF, handoff)                                                                            \
    X(HANDOFF_OK, handoff_ok)                                                                      \
    X(HANDOFF_BAD, handoff_bad)                                                                    \
    X(RELEASE, release)

struct proto_entry {
    enum proto_type type;
    const char *name;
    const struct proto_shape *shape;
};
static const struct proto_entry proto_entries[] = {
#define PROTO_ENTRY(upper, lower) {PROTO_##upper, #upper, &proto_shape_##lower},
    PROTO_TABLE(PROTO_ENTRY)
#undef PROTO_ENTRY
};
#define PROTO_ENTRIES (sizeof proto_entries / sizeof proto_entries[0])

#endif
