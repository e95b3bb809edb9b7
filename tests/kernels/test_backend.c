/* The interface: names, what is refused, and step_args that would address foreign memory. */
#include <signal.h>

#include "tests/kernels/tiny.h"

static const struct backend_dims good = {.n_layers = 2,
                                         .hidden = 64,
                                         .n_heads = 4,
                                         .n_kv_heads = 2,
                                         .head_dim = 32,
                                         .ffn = 96,
                                         .vocab = 50,
                                         .context = 100,
                                         .max_rows = 8,
                                         .max_seqs = 4,
                                         .max_logits = 4,
                                         .kv_block_size = 16,
                                         .rms_eps = 1e-5f,
                                         .rope_theta = 10000};

START_TEST(backend_names)
{
    static const char *const wanted[][3] = {
        {"cpu", "c", "cpu/c"}, {"ref", NULL, "ref"}, {"auto", "c", "cpu/c"}};
    for (size_t i = 0; i < 3; i++) {
        struct backend_options o = {.name = wanted[i][0], .isa = wanted[i][1], .threads = 1};
        struct backend *b;
        char err[200];
        ck_assert_ok(backend_create(&o, &good, &b, err, sizeof err));
        ck_assert_str_eq(backend_name(b), wanted[i][2]);
        ck_assert_str_eq(backend_kv_layout(b), "kv1/bf16/k2x16-v16x2/b16/h2x32");
        ck_assert_uint_eq(backend_kv_cell_bytes(b), 16 * 32 * 2 * 2);
        ck_assert_uint_eq(backend_step_args(b)->table_stride, 7);
        ck_assert_int_eq(backend_step_args(b)->position[7], -1);
        backend_destroy(b);
        struct backend_dims small = good;
        small.kv_format = KV_INT8;
        ck_assert_ok(backend_create(&o, &small, &b, err, sizeof err));
        ck_assert_str_eq(backend_kv_layout(b), "kv1/int8/k2x16-v16x2-s32/b16/h2x32");
        ck_assert_uint_eq(backend_kv_cell_bytes(b), 16 * 32 * 2 + 2 * 16 * 4);
        backend_destroy(b);
    }
}
END_TEST

START_TEST(backend_refuses)
{
    struct backend_dims bad[] = {good, good, good, good, good, good, good};
    bad[0].head_dim = 24;
    bad[1].head_dim = 272;
    bad[2].kv_block_size = 20;
    bad[3].n_heads = 3;
    bad[4].hidden = 63;
    bad[5].n_layers = 0;
    bad[6].n_heads = 34;
    struct backend_options o = {.name = "cpu", .isa = "c", .threads = 1};
    struct backend *b = NULL;
    char err[200];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err[0] = '\0';
        ck_assert_msg(backend_create(&o, &bad[i], &b, err, sizeof err) < 0, "dims %zu", i);
        ck_assert_str_ne(err, "");
    }
    o.name = "gpu";
    ck_assert_int_eq(backend_create(&o, &good, &b, err, sizeof err), STATUS_INVALID);
    ck_assert_str_eq(err, "backend \"gpu\" is unknown (auto, ref, cpu, cuda)");
    o = (struct backend_options){.name = "cpu", .isa = "mmx", .threads = 1};
    ck_assert_int_eq(backend_create(&o, &good, &b, err, sizeof err), STATUS_UNSUPPORTED);
    ck_assert_str_eq(err, "isa \"mmx\" is unknown (auto, amx, avx512, avx2, c)");
    o = (struct backend_options){.name = "cpu", .isa = "c", .threads = 0};
    ck_assert_int_eq(backend_create(&o, &good, &b, err, sizeof err), STATUS_INVALID);
    ck_assert_ptr_null(b);
}
END_TEST

START_TEST(backend_isa_from_environment)
{
    struct backend_options o = {.name = "cpu", .isa = "auto", .threads = 1};
    struct backend *b;
    char err[200];
    setenv("BATON_ISA", "c", 1);
    ck_assert_ok(backend_create(&o, &good, &b, err, sizeof err));
    ck_assert_str_eq(backend_name(b), "cpu/c");
    backend_destroy(b);
    setenv("BATON_ISA", "sse9", 1);
    ck_assert_int_eq(backend_create(&o, &good, &b, err, sizeof err), STATUS_UNSUPPORTED);
    ck_assert_str_eq(err, "BATON_ISA \"sse9\" is unknown (auto, amx, avx512, avx2, c)");
    o.isa = "c"; /* what was configured wins */
    ck_assert_ok(backend_create(&o, &good, &b, err, sizeof err));
    backend_destroy(b);
    unsetenv("BATON_ISA");
}
END_TEST

/* A backend with one weight of each shape that `good` needs. */
struct fixture {
    struct backend *b;
    struct matrix_view view[2];
    struct weight *embed, *gated;
    struct kv_view kv;
};

static void fixture_init(struct fixture *f)
{
    struct backend_options o = {.name = "cpu", .isa = "c", .threads = 1};
    struct tiny_random r = {.key = 3};
    char err[200];
    ck_assert_ok(backend_create(&o, &good, &f->b, err, sizeof err));
    f->view[0] = tiny_matrix(&r, MATRIX_F32, good.vocab, good.hidden, 1);
    f->view[1] = tiny_matrix(&r, MATRIX_F32, good.ffn, good.hidden, 1);
    struct matrix_view two[] = {f->view[1], f->view[1]};
    ck_assert_ok(backend_weight_create(f->b, f->view, 1, WEIGHT_F32, false, true, &f->embed));
    ck_assert_ok(backend_weight_create(f->b, two, 2, WEIGHT_F32, true, false, &f->gated));
    f->kv.n_blocks = 4;
    f->kv.base = calloc(2 * 4 * 2, backend_kv_cell_bytes(f->b));
}
static void fixture_fini(struct fixture *f)
{
    backend_weight_destroy(f->b, f->embed);
    backend_weight_destroy(f->b, f->gated);
    backend_destroy(f->b);
    free((void *)(uintptr_t)f->view[0].data);
    free((void *)(uintptr_t)f->view[1].data);
    free(f->kv.base);
}

START_TEST(backend_capture_checks_shapes)
{
    struct fixture f;
    fixture_init(&f);
    struct op wrong[] = {{.kind = OP_QKV, .w = f.embed},    {.kind = OP_OUT, .w = f.embed},
                         {.kind = OP_DOWN, .w = f.gated},   {.kind = OP_GATE_UP, .w = f.embed},
                         {.kind = OP_LOGITS, .w = f.gated}, {.kind = OP_EMBED},
                         {.kind = OP_ATTENTION, .layer = 2}};
    struct replay *r = NULL;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        ck_assert_int_eq(backend_capture(f.b, &wrong[i], 1, 8, &f.kv, &r), STATUS_INVALID);
    struct op right = {.kind = OP_EMBED, .w = f.embed};
    ck_assert_int_eq(backend_capture(f.b, &right, 1, 9, &f.kv, &r), STATUS_INVALID);
    ck_assert_int_eq(backend_capture(f.b, &right, 1, 0, &f.kv, &r), STATUS_INVALID);
    ck_assert_int_eq(backend_capture(f.b, &right, 0, 8, &f.kv, &r), STATUS_INVALID);
    ck_assert_ptr_null(r);
    ck_assert_ok(backend_capture(f.b, &right, 1, 8, &f.kv, &r));
    backend_replay_destroy(f.b, r);
    backend_replay_destroy(f.b, NULL);
    backend_weight_destroy(f.b, NULL);
    backend_destroy(NULL);
    fixture_fini(&f);
}
END_TEST

/* Each case breaks one of the step's promises: the guard must stop it before memory is touched. */
START_TEST(backend_replay_guards_memory)
{
    struct fixture f;
    fixture_init(&f);
    struct op op = {.kind = OP_EMBED, .w = f.embed};
    struct replay *r;
    ck_assert_ok(backend_capture(f.b, &op, 1, 4, &f.kv, &r));
    struct step_args *a = backend_step_args(f.b);
    a->n_rows = 2, a->n_segments = 1, a->n_logits = 1;
    a->segment[0] = 0, a->segment[1] = 2;
    a->position[0] = 15, a->position[1] = 16;
    a->tables[0] = 3, a->tables[1] = 2;
    switch (_i) {
    case 0:
        a->tables[1] = 4; /* no such block */
        break;
    case 1:
        a->token[1] = 50;
        break;
    case 2:
        a->token[0] = -1;
        break;
    case 3:
        a->position[1] = 17; /* not the next one */
        break;
    case 4:
        a->position[0] = 99, a->position[1] = 100; /* beyond the context */
        break;
    case 5:
        a->seq[0] = a->seq[1] = 4;
        break;
    case 6:
        a->logit_row[0] = 2;
        break;
    case 7:
        a->n_rows = a->segment[1] = 5; /* beyond the bucket */
        break;
    case 8:
        a->segment[1] = 1; /* a row without a segment */
        break;
    default: /* nothing wrong */
        ck_assert_ok(backend_replay(f.b, r));
        backend_replay_destroy(f.b, r);
        fixture_fini(&f);
        return;
    }
    ck_assert_ok(backend_replay(f.b, r)); /* aborts */
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("backend");
    TCase *tc = tcase_create("backend");
    tcase_add_test(tc, backend_names);
    tcase_add_test(tc, backend_refuses);
    tcase_add_test(tc, backend_isa_from_environment);
    tcase_add_test(tc, backend_capture_checks_shapes);
    tcase_add_loop_test_raise_signal(tc, backend_replay_guards_memory, SIGABRT, 0, 9);
    tcase_add_loop_test(tc, backend_replay_guards_memory, 9, 10);
    suite_add_tcase(s, tc);
    return s;
}
