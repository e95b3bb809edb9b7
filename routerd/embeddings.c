/* embeddings: see embeddings.h.
 *
 * Each input is a sequence that ends with its prompt: the prefill worker adds up the hidden states
 * behind the last norm (SCORES of docs/PROTOCOL.md) and draws one token, which nobody gets; no
 * decode worker takes part. The vectors are given with length 1, as OpenAI's are. */
#include "routerd/embeddings.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/list.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "routerd/admit.h"
#include "routerd/answer.h"
#include "routerd/otlp.h"
#include "routerd/owner.h"
#include "routerd/prompt.h"

#define INLINE_MAX 16384 /* bytes of a body that is read at once, on the loop */

struct embeddings;
struct input {
    struct embeddings *of;
    struct gen *gen;           /* NULL before it starts, and once it has ended */
    float *vector;             /* [dims]; NULL: not come yet */
    struct timeline *timeline; /* when the request is traced; or NULL */
    size_t dims;
};

struct embeddings {
    struct request_owner owner;
    struct embedder *embedder; /* NULL once the client has gone: it may be gone as well */
    const struct models *models;
    struct http_request *http; /* NULL when the client has gone */
    struct api_env *envs;
    struct buf body;
    struct api_params p; /* the inputs are its prompts */
    uint32_t pool;       /* enum proto_pool */
    bool base64;
    struct api_error error;
    int rc;
    bool parsing;
    struct input *inputs; /* [p.n_prompts] */
    uint32_t n_done;
    char trace[OTLP_NAME_MAX];
    struct otlp_context span;
    uint64_t started_ms;
    int http_status;     /* that was answered; 0: none */
    const char *failure; /* of the trace; NULL: none. A loan until free_all */
};

/* Its spans; the sequences have ended. Once, and only while the router lives. */
static void trace_end(struct embeddings *s)
{
    const struct timeline *sequences[OTLP_SEQUENCES_MAX];
    char id[HTTP_ID_MAX + 1];
    if (!s->span.sampled || !s->embedder)
        return;
    snprintf(id, sizeof id, "%.*s", (int)strcspn(s->trace, " "), s->trace);
    struct otlp_request r = {.context = &s->span,
                             .name = "POST /v1/embeddings",
                             .operation = "embeddings",
                             .id = id,
                             .from_ms = s->started_ms,
                             .to_ms = clock_ms(),
                             .http_status = s->http_status,
                             .error = s->failure,
                             .sequences = sequences};
    for (uint32_t i = 0; s->inputs && i < s->p.n_prompts; i++) {
        if (r.n < OTLP_SEQUENCES_MAX)
            sequences[r.n++] = s->inputs[i].timeline;
        r.input_tokens += s->p.prompts[i].tokens.n;
        r.model = s->models->list[s->p.model].name;
    }
    otlp_request(s->embedder->otlp, &r);
    s->span.sampled = false;
}

static void free_all(struct embeddings *s)
{
    for (uint32_t i = 0; s->inputs && i < s->p.n_prompts; i++) {
        if (s->inputs[i].gen)
            relay_free(s->inputs[i].gen);
    }
    trace_end(s);
    for (uint32_t i = 0; s->inputs && i < s->p.n_prompts; i++) {
        free(s->inputs[i].timeline);
        free(s->inputs[i].vector);
    }
    free(s->inputs);
    if (s->rc == STATUS_OK)
        api_params_fini(&s->p);
    buf_fini(&s->body);
    if (s->embedder)
        s->embedder->n_open--;
    free(s->envs);
    free(s);
}

static void fail(struct embeddings *s, int http, const char *param, const char *code,
                 const char *why)
{
    if (http == 429 || http == 503)
        http_add_header(s->http, "Retry-After", "1");
    http_respond_error(s->http, http, param, code, "%s", why);
    s->http_status = http;
    s->failure = http >= 429 ? why : NULL;
    free_all(s);
}

/* ---- the request --------------------------------------------------------------------------------
 */

static int take_word(const json_t *o, const char *name, const char *first, const char *second,
                     bool *is_second, struct api_error *e)
{
    const json_t *v = field_get(o, name);
    const char *word = json_string_value(v);
    if (!v)
        return STATUS_OK;
    if (!word || (strcmp(word, first) != 0 && strcmp(word, second) != 0))
        return api_fail(e, name, NULL, "'%s' must be '%s' or '%s'.", name, first, second);
    *is_second = strcmp(word, second) == 0;
    return STATUS_OK;
}

static int take_inputs(const struct api_env *env, const json_t *o, struct api_params *p,
                       struct api_error *e)
{
    TRY(prompt_from_texts(env, o, "input", p, e));
    for (uint32_t i = 0; i < p->n_prompts; i++) {
        size_t n = p->prompts[i].tokens.n;
        if (n == 0)
            return api_fail(e, "input", NULL, "input[%u] is empty.", i);
        if (n >= env->context)
            return api_fail(e, "input", "context_length_exceeded",
                            "This model's maximum context length is %u tokens; input[%u] has %zu.",
                            env->context, i, n);
    }
    return STATUS_OK;
}

static int read_body(struct embeddings *s, const json_t *o)
{
    struct api_error *e = &s->error;
    const struct api_env *env = NULL;
    bool last = false;
    TRY(api_find_model(s->envs, o, &env, &s->p.model, e));
    TRY(take_word(o, "encoding_format", "float", "base64", &s->base64, e));
    last = s->models->list[s->p.model].pool_last;
    TRY(take_word(o, "pooling", "mean", "last", &last, e));
    s->pool = last ? PROTO_POOL_LAST : PROTO_POOL_MEAN;
    if (field_get(o, "dimensions"))
        return api_fail(e, "dimensions", "unsupported_value",
                        "'dimensions' is not supported: vectors have the length of the model's "
                        "hidden states.");
    if (field_get(o, "user") && !json_is_string(field_get(o, "user")))
        return api_fail(e, "user", NULL, "'user' must be a string.");
    return take_inputs(env, o, &s->p, e);
}

/* May run on another thread: touches nothing but s. */
static void parse(void *arg)
{
    struct embeddings *s = arg;
    json_t *o = NULL;
    s->error = (struct api_error){.http = 400};
    s->rc = fields_parse(buf_str(&s->body), s->body.len, &o, &s->error);
    if (s->rc == STATUS_OK && !json_is_object(o))
        s->rc = api_fail(&s->error, NULL, "invalid_json", "The body must be a JSON object.");
    if (s->rc == STATUS_OK)
        s->rc = read_body(s, o);
    json_decref(o);
    if (s->rc == STATUS_NOMEM) {
        api_fail(&s->error, NULL, NULL, "Out of memory; try again later.");
        s->error.http = 503;
    }
    if (s->rc != STATUS_OK)
        api_params_fini(&s->p);
}

/* ---- the answer ---------------------------------------------------------------------------------
 */

static void put_base64(struct buf *out, const unsigned char *p, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (; n > 0; p += 3, n -= n < 3 ? n : 3) {
        unsigned v = (unsigned)p[0] << 16 | (n > 1 ? (unsigned)p[1] << 8 : 0) | (n > 2 ? p[2] : 0);
        char four[4] = {digits[v >> 18], digits[v >> 12 & 63], n > 1 ? digits[v >> 6 & 63] : '=',
                        n > 2 ? digits[v & 63] : '='};
        buf_append(out, four, 4);
    }
}

/* Length 1, where it has one. */
static void normalise(struct input *in)
{
    double square = 0;
    for (size_t i = 0; i < in->dims; i++)
        square += (double)in->vector[i] * (double)in->vector[i];
    for (size_t i = 0; i < in->dims && square > 0; i++)
        in->vector[i] = (float)((double)in->vector[i] / sqrt(square));
}

static void vector_json(struct buf *out, struct input *in, bool base64)
{
    normalise(in);
    if (base64) {
        buf_putc(out, '"'); /* float32, little-endian, as on the wire */
        put_base64(out, (const unsigned char *)in->vector, in->dims * sizeof *in->vector);
        buf_putc(out, '"');
        return;
    }
    for (size_t i = 0; i < in->dims; i++)
        buf_printf(out, "%c%.9g", i ? ',' : '[', (double)in->vector[i]);
    buf_putc(out, ']');
}

static void respond(struct embeddings *s)
{
    const char *model = s->models->list[s->p.model].name;
    struct buf out;
    size_t tokens = 0;
    buf_init(&out, 0);
    buf_puts(&out, "{\"object\":\"list\",\"data\":[");
    for (uint32_t i = 0; i < s->p.n_prompts; i++) {
        buf_printf(&out, "%s{\"object\":\"embedding\",\"index\":%u,\"embedding\":", i ? "," : "",
                   i);
        vector_json(&out, &s->inputs[i], s->base64);
        buf_putc(&out, '}');
        tokens += s->p.prompts[i].tokens.n;
    }
    buf_puts(&out, "],\"model\":");
    answer_json_string(&out, model, strlen(model));
    buf_printf(&out, ",\"usage\":{\"prompt_tokens\":%zu,\"total_tokens\":%zu}}", tokens, tokens);
    s->http_status = buf_ok(&out) ? 200 : 503;
    if (buf_ok(&out))
        http_respond(s->http, 200, "application/json", buf_str(&out), out.len);
    else
        http_respond_error(s->http, 503, NULL, NULL, "Out of memory; try again later.");
    buf_fini(&out);
    free_all(s);
}

static void on_scores(void *arg, struct gen *g, const struct proto_scores *m)
{
    struct input *in = arg;
    if (in->vector || m->hidden.n == 0 || m->hidden.n % sizeof *in->vector)
        return;
    in->vector = mem_dup(m->hidden.p, m->hidden.n);
    in->dims = m->hidden.n / sizeof *in->vector;
}

static void on_token(void *arg, struct gen *g, const struct proto_token *t)
{
    /* The prompt is over; what was drawn is nobody's. */
}

static void on_finish(void *arg, struct gen *g, enum proto_finish f)
{
    struct input *in = arg;
    struct embeddings *s = in->of;
    in->gen = NULL;
    relay_free(g);
    if (!in->vector) {
        fail(s, 500, NULL, NULL, "The worker gave no embedding; it may be of an older version.");
        return;
    }
    if (++s->n_done == s->p.n_prompts)
        respond(s);
}

static void on_failed(void *arg, struct gen *g, int status, const char *why)
{
    struct input *in = arg;
    struct embeddings *s = in->of;
    log_warn_about(((struct log_about){NULL, s->trace}), "embeddings: %d %s", status_http(status),
                   why);
    fail(s, status_http(status), NULL, status == STATUS_RANGE ? "context_length_exceeded" : NULL,
         why);
}

static const struct gen_callbacks callbacks = {
    .token = on_token, .scores = on_scores, .finish = on_finish, .failed = on_failed};

/* ---- start --------------------------------------------------------------------------------------
 */

static int start_inputs(struct embeddings *s)
{
    s->inputs = mem_array(s->p.n_prompts, sizeof *s->inputs);
    if (!s->inputs)
        return STATUS_NOMEM;
    for (uint32_t i = 0; i < s->p.n_prompts; i++) {
        const struct token_list *tokens = &s->p.prompts[i].tokens;
        struct input *in = &s->inputs[i];
        struct proto_job job = {.prompt = {tokens->ids, tokens->n},
                                .max_tokens = 1,
                                .priority = admit_priority(s->http, 0),
                                .score_prompt = true,
                                .pool = s->pool,
                                .n_ids = s->models->list[s->p.model].vocab,
                                .sampling = {.top_p = 1},
                                .grammar = {"", 0},
                                .salt = {"", 0},
                                .trace = {s->trace, strlen(s->trace)}};
        in->of = s;
        TRY(relay_start(s->embedder->relay, s->p.model, &job, &callbacks, in, &in->gen));
        if (s->span.sampled && i < OTLP_SEQUENCES_MAX)
            in->timeline = malloc(sizeof *in->timeline);
        if (in->timeline)
            relay_watch(in->gen, in->timeline);
    }
    return STATUS_OK;
}

static void parsed(void *arg)
{
    struct embeddings *s = arg;
    s->parsing = false;
    if (!s->http) {
        free_all(s);
        return;
    }
    if (s->rc != STATUS_OK) {
        fail(s, s->error.http, s->error.param, s->error.code, s->error.message);
        return;
    }
    uint64_t n = 0;
    for (uint32_t i = 0; i < s->p.n_prompts; i++)
        n += s->p.prompts[i].tokens.n;
    if (!admit_prompt(s->http, n)) {
        free_all(s);
        return;
    }
    int rc = start_inputs(s);
    if (rc != STATUS_OK)
        fail(s, status_http(rc), NULL, NULL,
             rc == STATUS_FULL ? "Too many requests are waiting; try again later."
                               : "Out of memory; try again later.");
}

static void client_gone(struct request_owner *o)
{
    struct embeddings *s = (struct embeddings *)o;
    s->http = NULL;
    s->failure = "the client has gone";
    if (!s->parsing) {
        free_all(s);
        return;
    }
    trace_end(s);
    s->embedder->n_open--;
    s->embedder = NULL;
}

void embeddings_start(struct embedder *e, struct api_env *envs, struct http_request *r)
{
    struct embeddings *s = mem_array(1, sizeof *s);
    if (!s || !envs) {
        free(s);
        free(envs);
        http_respond_error(r, 503, NULL, NULL, "Out of memory; try again later.");
        return;
    }
    *s = (struct embeddings){.owner = {client_gone},
                             .embedder = e,
                             .models = e->models,
                             .http = r,
                             .envs = envs,
                             .p = {.kind = API_COMPLETION},
                             .parsing = true,
                             .started_ms = clock_ms()};
    e->n_open++;
    otlp_begin_http(e->otlp, r, &s->span, s->trace);
    http_take_body(r, &s->body);
    http_set_data(r, s);
    if (s->body.len <= INLINE_MAX || loop_work(e->loop, parse, parsed, s) != STATUS_OK) {
        parse(s);
        parsed(s);
    }
}
