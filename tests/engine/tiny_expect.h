/* tiny_expect: reads tests/data/tiny/MODEL.expect.json; the format is in the README.md there. A
 * header of static functions, because a unit test is one object file. */
#ifndef BATON_TESTS_ENGINE_TINY_EXPECT_H
#define BATON_TESTS_ENGINE_TINY_EXPECT_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/json.h"
#include "tests/harness.h"

struct tiny_sequence {
    int32_t *ids;
    size_t n_ids;
    size_t first, n_rows; /* recorded positions first .. first + n_rows - 1 */
    size_t top;           /* entries per row */
    int32_t *top_ids;     /* [n_rows][top], best first */
    float *top_logits;    /* [n_rows][top] */
    float *lse;           /* [n_rows] */
};

struct tiny_greedy {
    int32_t *prompt, *output;
    size_t n_prompt, n_output;
    float *gaps; /* [n_output]: best minus second logit */
};

struct tiny_expect {
    size_t vocab, n_sequences, n_greedy;
    struct tiny_sequence *sequences;
    struct tiny_greedy *greedy;
};

static void *tiny_alloc(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);
    ck_assert_ptr_nonnull(p);
    return p;
}

static size_t tiny_ids(const json_t *a, int32_t **out)
{
    size_t n = json_array_size(a);
    *out = tiny_alloc(n, sizeof **out);
    for (size_t i = 0; i < n; i++)
        (*out)[i] = (int32_t)json_integer_value(json_array_get(a, i));
    return n;
}

static size_t tiny_floats(const json_t *a, float **out)
{
    size_t n = json_array_size(a);
    *out = tiny_alloc(n, sizeof **out);
    for (size_t i = 0; i < n; i++)
        (*out)[i] = (float)json_number_value(json_array_get(a, i));
    return n;
}

static void tiny_sequence_load(const json_t *j, struct tiny_sequence *s)
{
    const json_t *ids = json_object_get(j, "top_ids"), *logits = json_object_get(j, "top_logits");
    s->n_ids = tiny_ids(json_object_get(j, "ids"), &s->ids);
    s->first = (size_t)json_integer_value(json_object_get(j, "first"));
    s->n_rows = tiny_floats(json_object_get(j, "lse"), &s->lse);
    s->top = json_array_size(json_array_get(ids, 0));
    ck_assert_uint_eq(s->first + s->n_rows, s->n_ids);
    ck_assert_uint_eq(json_array_size(ids), s->n_rows);
    ck_assert_uint_eq(json_array_size(logits), s->n_rows);
    ck_assert_uint_gt(s->top, 0);
    s->top_ids = tiny_alloc(s->n_rows * s->top, sizeof *s->top_ids);
    s->top_logits = tiny_alloc(s->n_rows * s->top, sizeof *s->top_logits);
    for (size_t i = 0; i < s->n_rows * s->top; i++) {
        const json_t *id_row = json_array_get(ids, i / s->top);
        const json_t *logit_row = json_array_get(logits, i / s->top);
        s->top_ids[i] = (int32_t)json_integer_value(json_array_get(id_row, i % s->top));
        s->top_logits[i] = (float)json_number_value(json_array_get(logit_row, i % s->top));
    }
}

/* name: "llama", "qwen2", "qwen3", "llama-q8_0", … The test fails when the file is not as it
 * should be. */
static inline void tiny_expect_load(const char *name, struct tiny_expect *e)
{
    char file[128];
    json_error_t error;
    snprintf(file, sizeof file, "tiny/%s.expect.json", name);
    json_t *root = json_load_file(test_data(file), 0, &error);
    ck_assert_msg(root != NULL, "%s: %s", file, error.text);
    const json_t *sequences = json_object_get(root, "sequences");
    const json_t *greedy = json_object_get(root, "greedy");
    e->vocab = (size_t)json_integer_value(json_object_get(root, "vocab"));
    e->n_sequences = json_array_size(sequences);
    e->n_greedy = json_array_size(greedy);
    ck_assert(e->vocab > 0 && e->n_sequences > 0 && e->n_greedy > 0);
    e->sequences = tiny_alloc(e->n_sequences, sizeof *e->sequences);
    e->greedy = tiny_alloc(e->n_greedy, sizeof *e->greedy);
    for (size_t i = 0; i < e->n_sequences; i++)
        tiny_sequence_load(json_array_get(sequences, i), &e->sequences[i]);
    for (size_t i = 0; i < e->n_greedy; i++) {
        const json_t *g = json_array_get(greedy, i);
        struct tiny_greedy *out = &e->greedy[i];
        out->n_prompt = tiny_ids(json_object_get(g, "prompt"), &out->prompt);
        out->n_output = tiny_ids(json_object_get(g, "output"), &out->output);
        ck_assert_uint_eq(tiny_floats(json_object_get(g, "gaps"), &out->gaps), out->n_output);
    }
    json_decref(root);
}

static inline void tiny_expect_free(struct tiny_expect *e)
{
    for (size_t i = 0; i < e->n_sequences; i++) {
        free(e->sequences[i].ids);
        free(e->sequences[i].top_ids);
        free(e->sequences[i].top_logits);
        free(e->sequences[i].lse);
    }
    for (size_t i = 0; i < e->n_greedy; i++) {
        free(e->greedy[i].prompt);
        free(e->greedy[i].output);
        free(e->greedy[i].gaps);
    }
    free(e->sequences);
    free(e->greedy);
}

#endif
