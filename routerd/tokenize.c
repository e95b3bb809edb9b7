/* tokenize: see tokenize.h. Field names are those of vLLM ("prompt" or "messages", "tokens"), and
 * of llama.cpp's server ("content", "add_special"). Messages are read and rendered by the code that
 * reads a chat request, so their ids are those that the model would get. */
#include "routerd/tokenize.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "routerd/answer.h"
#include "routerd/owner.h"
#include "routerd/prompt.h"

#define INLINE_MAX 16384 /* bytes of a body that is answered at once, on the loop */
#define IDS_MAX    (4u << 20)

struct task {
    struct request_owner owner;
    struct http_request *http; /* NULL when the client has gone */
    struct api_env *envs;
    enum tokenize_kind kind;
    struct buf body, out;
    struct api_error error;
    int rc;
};

/* ---- what is asked ------------------------------------------------------------------------------
 */

static int encode_text(const struct api_env *env, const json_t *o, const json_t *text,
                       struct token_list *out, struct api_error *e)
{
    bool vllm = field_get(o, "prompt") != NULL, special = vllm;
    if (!json_is_string(text))
        return api_fail(e, vllm ? "prompt" : "content", NULL, "'%s' must be a string.",
                        vllm ? "prompt" : "content");
    TRY(field_bool(o, "add_special_tokens", &special, e));
    TRY(field_bool(o, "add_special", &special, e));
    unsigned flags = TOKENIZE_SPECIAL;
    if (special && tokenizer_add_bos(env->tokenizer))
        flags |= TOKENIZE_BOS;
    return tokenizer_encode(env->tokenizer, json_string_value(text), json_string_length(text),
                            flags, out);
}

static int encode_messages(const struct api_env *env, const json_t *o, int64_t now,
                           struct token_list *out, struct api_error *e)
{
    struct api_params p = {.kind = API_CHAT};
    int rc = think_parse(o, env->efforts, &p.think, e);
    if (rc == STATUS_OK)
        rc = prompt_from_messages(env, o, now, &p, e);
    if (rc == STATUS_OK) {
        *out = p.prompts[0].tokens;
        p.prompts[0].tokens = (struct token_list){0};
    }
    api_params_fini(&p);
    return rc;
}

static void ids_json(struct buf *out, const struct api_env *env, const struct token_list *ids,
                     bool strings)
{
    buf_printf(out, "{\"count\":%zu,\"max_model_len\":%u,\"tokens\":[", ids->n, env->context);
    for (size_t i = 0; i < ids->n; i++)
        buf_printf(out, "%s%d", i ? "," : "", ids->ids[i]);
    buf_puts(out, "],\"token_strs\":");
    if (!strings) {
        buf_puts(out, "null}");
        return;
    }
    for (size_t i = 0; i < ids->n; i++) {
        struct token_text t = tokenizer_piece(env->tokenizer, ids->ids[i], false);
        buf_putc(out, i ? ',' : '[');
        answer_json_string(out, t.p, t.n);
    }
    buf_puts(out, ids->n ? "]}" : "[]}");
}

static int tokenize(const struct api_env *env, const json_t *o, int64_t now, struct buf *out,
                    struct api_error *e)
{
    const json_t *prompt = field_get(o, "prompt"), *content = field_get(o, "content");
    const json_t *messages = field_get(o, "messages");
    struct token_list ids = {0};
    bool strings = false;
    if (!prompt + !content + !messages != 2)
        return api_fail(e, "prompt", NULL,
                        "Give one of 'prompt' (text), 'content' (text) and 'messages'.");
    TRY(field_bool(o, "return_token_strs", &strings, e));
    int rc = messages ? encode_messages(env, o, now, &ids, e)
                      : encode_text(env, o, prompt ? prompt : content, &ids, e);
    if (rc == STATUS_OK)
        ids_json(out, env, &ids, strings);
    token_list_fini(&ids);
    return rc;
}

static int take_ids(const struct api_env *env, const json_t *list, int32_t *ids,
                    struct api_error *e)
{
    const json_t *v;
    size_t i;
    json_array_foreach(list, i, v)
    {
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id >= env->vocab)
            return api_fail(e, "tokens", NULL,
                            "tokens[%zu] must be a token id of this model, 0 to %u.", i,
                            env->vocab - 1);
        ids[i] = (int32_t)id;
    }
    return STATUS_OK;
}

static int detokenize(const struct api_env *env, const json_t *o, struct buf *out,
                      struct api_error *e)
{
    const json_t *list = field_get(o, "tokens");
    size_t n = json_array_size(list);
    struct buf text;
    if (!json_is_array(list) || n > IDS_MAX)
        return api_fail(e, "tokens", NULL, "'tokens' must be an array of at most %u token ids.",
                        IDS_MAX);
    int32_t *ids = mem_array(n + 1, sizeof *ids);
    if (!ids)
        return STATUS_NOMEM;
    buf_init(&text, 0);
    int rc = take_ids(env, list, ids, e);
    if (rc == STATUS_OK) {
        tokenizer_decode(env->tokenizer, ids, n, true, &text);
        buf_puts(out, "{\"prompt\":");
        answer_json_string(out, buf_str(&text), text.len);
        buf_puts(out, ",\"content\":"); /* llama.cpp's name for it */
        answer_json_string(out, buf_str(&text), text.len);
        buf_putc(out, '}');
        rc = buf_ok(&text) ? STATUS_OK : STATUS_NOMEM;
    }
    buf_fini(&text);
    free(ids);
    return rc;
}

int tokenize_answer(const struct api_env *envs, enum tokenize_kind kind, const char *body, size_t n,
                    int64_t now, struct buf *out, struct api_error *e)
{
    const struct api_env *env = NULL;
    json_t *o = NULL;
    uint32_t index;
    *e = (struct api_error){.http = 400};
    int rc = fields_parse(body, n, &o, e);
    if (rc == STATUS_OK && !json_is_object(o))
        rc = api_fail(e, NULL, "invalid_json", "The body must be a JSON object.");
    if (rc == STATUS_OK)
        rc = api_find_model(envs, o, &env, &index, e);
    if (rc == STATUS_OK)
        rc = kind == TOKENIZE_TEXT ? tokenize(env, o, now, out, e) : detokenize(env, o, out, e);
    json_decref(o);
    if (rc == STATUS_OK && !buf_ok(out))
        rc = STATUS_NOMEM;
    if (rc == STATUS_NOMEM) {
        api_fail(e, NULL, NULL, "Out of memory; try again later.");
        e->http = 503;
    }
    return rc;
}

/* ---- requests -----------------------------------------------------------------------------------
 */

/* May run on another thread: touches nothing but the task. */
static void task_work(void *arg)
{
    struct task *t = arg;
    t->rc = tokenize_answer(t->envs, t->kind, buf_str(&t->body), t->body.len, clock_unix_s(),
                            &t->out, &t->error);
}

static void task_done(void *arg)
{
    struct task *t = arg;
    const struct api_error *e = &t->error;
    if (t->http && t->rc == STATUS_OK)
        http_respond(t->http, 200, "application/json", buf_str(&t->out), t->out.len);
    else if (t->http)
        http_respond_error(t->http, e->http, e->param, e->code, "%s", e->message);
    buf_fini(&t->body);
    buf_fini(&t->out);
    free(t->envs);
    free(t);
}

static void client_gone(struct request_owner *o)
{
    ((struct task *)o)->http = NULL;
}

void tokenize_start(struct loop *loop, enum tokenize_kind kind, struct api_env *envs,
                    struct http_request *r)
{
    struct task *t = mem_array(1, sizeof *t);
    if (!t || !envs) {
        free(t);
        free(envs);
        http_respond_error(r, 503, NULL, NULL, "Out of memory; try again later.");
        return;
    }
    *t = (struct task){.owner = {client_gone}, .http = r, .envs = envs, .kind = kind};
    buf_init(&t->out, 0);
    http_take_body(r, &t->body);
    http_set_data(r, t);
    if (t->body.len <= INLINE_MAX || loop_work(loop, task_work, task_done, t) != STATUS_OK) {
        task_work(t);
        task_done(t);
    }
}
