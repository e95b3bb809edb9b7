/* chat: compiles a model's chat template once and renders conversations with it.
 *
 * The interpreter is in jinja_*: lexer, parser to a tree, evaluator. A template is an arena that
 * holds its tree and is never written to after creation, so any number of threads may render with
 * it. A rendering is a second arena with everything it makes, and ends in one of two ways:
 * normally, or by the longjmp of jinja_fail(), which records status and message. Either way the
 * arena goes.
 *
 * Budgets bound what a hostile template or conversation can cost: steps (about one per node visited
 * and one per 256 bytes moved), memory, nesting and output. */
#include "common/text/chat.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/text/jinja_eval.h"

#define COMPILE_MEMORY_MAX ((size_t)128 << 20)
#define COMPILE_STEPS_MAX  ((uint64_t)50 * 1000 * 1000)
#define RENDER_MEMORY_MAX  ((size_t)256 << 20)
#define RENDER_STEPS_MAX   ((uint64_t)10 * 1000 * 1000)
#define OUTPUT_MAX         ((size_t)64 << 20)

struct chat_template {
    struct arena arena;
    const struct jtemplate *t;
};

/* ChatML; content may be a string, a list of text parts, or null. */
static const char default_template[] =
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{%- if message['content'] is string -%}"
    "{{ message['content'] }}"
    "{%- else -%}"
    "{%- for part in message['content'] or [] if part['type'] == 'text' -%}"
    "{{ part['text'] }}"
    "{%- endfor -%}"
    "{%- endif -%}"
    "{{ '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}";

const char *chat_default_template(void)
{
    return default_template;
}

static void run_init(struct jrt *rt, size_t memory, uint64_t steps, char *err, size_t errlen)
{
    memset(rt, 0, sizeof *rt);
    arena_init(&rt->arena, memory);
    rt->steps = steps;
    rt->err = err;
    rt->errlen = errlen;
    if (errlen)
        err[0] = '\0';
}

int chat_template_create(const char *source, size_t n, struct chat_template **out, char *err,
                         size_t errlen)
{
    struct jrt *rt = malloc(sizeof *rt);
    struct chat_template *t = malloc(sizeof *t);
    if (!rt || !t) {
        free(rt);
        free(t);
        return STATUS_NOMEM;
    }
    run_init(rt, COMPILE_MEMORY_MAX, COMPILE_STEPS_MAX, err, errlen);
    if (setjmp(rt->stop)) {
        int rc = rt->status;
        arena_fini(&rt->arena);
        free(rt);
        free(t);
        return rc;
    }
    t->t = jinja_parse(rt, jinja_lex(rt, source, n));
    t->arena = rt->arena;
    free(rt);
    *out = t;
    return STATUS_OK;
}

void chat_template_destroy(struct chat_template *t)
{
    if (!t)
        return;
    arena_fini(&t->arena);
    free(t);
}

void chat_output_fini(struct chat_output *o)
{
    buf_fini(&o->text);
    free(o->spans);
    o->spans = NULL;
    o->n_spans = 0;
}

/* What the run wrote, as memory that outlives it. */
static int take_output(const struct jbuf *b, struct chat_output *out)
{
    *out = (struct chat_output){0};
    buf_init(&out->text, OUTPUT_MAX);
    buf_append(&out->text, b->n ? b->p : "", b->n);
    out->spans = mem_array(b->n_segs ? b->n_segs : 1, sizeof *out->spans);
    if (!out->spans || !buf_ok(&out->text)) {
        chat_output_fini(out);
        return STATUS_NOMEM;
    }
    size_t begin = 0;
    for (size_t i = 0; i < b->n_segs; i++) {
        out->spans[i] = (struct chat_span){begin, b->segs[i].end, b->segs[i].trusted};
        begin = b->segs[i].end;
    }
    out->n_spans = b->n_segs;
    return STATUS_OK;
}

int chat_render(const struct chat_template *t, const json_t *context, int64_t now,
                struct chat_output *out, char *err, size_t errlen)
{
    struct jrt *rt = malloc(sizeof *rt);
    if (!rt)
        return STATUS_NOMEM;
    run_init(rt, RENDER_MEMORY_MAX, RENDER_STEPS_MAX, err, errlen);
    if (setjmp(rt->stop)) {
        int rc = rt->status;
        arena_fini(&rt->arena);
        free(rt);
        return rc;
    }
    rt->t = t->t;
    rt->context = context;
    rt->now = now;
    rt->line = 1;
    if (!json_is_object(context))
        jinja_fail(rt, STATUS_INVALID, "the context is not a JSON object");
    rt->globals = jinja_array(rt, t->t->n_symbols, sizeof *rt->globals);
    rt->out = jinja_alloc(rt, sizeof *rt->out);
    jexec(rt, &t->t->body);
    if (rt->out->n > OUTPUT_MAX)
        jinja_fail(rt, STATUS_LIMIT, "writes more than %zu bytes", OUTPUT_MAX);
    int rc = take_output(rt->out, out);
    arena_fini(&rt->arena);
    free(rt);
    return rc;
}
