/* tls: two sides over buffers: handshake in every cut, data in both directions, keys that differ,
 * an end that is told. */
#include "common/net/tls.h"

#include <string.h>

#include "tests/harness.h"

struct side {
    struct tls *tls;
    struct buf plain, sealed, got;
    int status;
};

static struct side client, server;

static void make(struct side *s, struct tls_context *c, bool is_server)
{
    *s = (struct side){0};
    buf_init(&s->plain, 0);
    buf_init(&s->sealed, 0);
    buf_init(&s->got, 0);
    ck_assert_ok(tls_create(c, is_server, &s->tls));
}

static void unmake(struct side *s)
{
    tls_destroy(s->tls);
    buf_fini(&s->plain);
    buf_fini(&s->sealed);
    buf_fini(&s->got);
}

static void open_both(uint8_t a, uint8_t b)
{
    uint8_t key[32];
    struct tls_context *c;
    memset(key, a, sizeof key);
    ck_assert_ok(tls_context_psk(key, &c));
    make(&client, c, false);
    tls_context_put(c); /* the connection keeps it */
    memset(key, b, sizeof key);
    ck_assert_ok(tls_context_psk(key, &c));
    make(&server, c, true);
    tls_context_put(c);
}

/* What arrived has no zero byte at its end. */
static void check_got(const struct side *s, const char *text)
{
    ck_assert_uint_eq(s->got.len, strlen(text));
    ck_assert_mem_eq(s->got.data, text, strlen(text));
}

/* What one side has to send goes to the other in pieces; false when there was nothing. */
static bool pass(struct side *from, struct side *to, size_t piece)
{
    int rc = tls_seal(from->tls, &from->plain, &from->sealed);
    if (rc != STATUS_OK)
        from->status = rc;
    bool any = from->sealed.len > 0;
    for (size_t at = 0; at < from->sealed.len && to->status == STATUS_OK; at += piece) {
        size_t n = from->sealed.len - at < piece ? from->sealed.len - at : piece;
        to->status = tls_feed(to->tls, from->sealed.data + at, n, &to->got);
    }
    buf_reset(&from->sealed);
    return any;
}

static void talk(size_t piece)
{
    for (int i = 0; i < 20; i++) {
        bool any = pass(&client, &server, piece);
        if (!pass(&server, &client, piece) && !any)
            return;
    }
}

static void close_both(void)
{
    unmake(&client);
    unmake(&server);
}

START_TEST(tls_both_directions)
{
    static const size_t pieces[] = {1, 7, 100, 1 << 20};
    static const size_t lengths[] = {1, 100, 16384, 16385, 300000};
    open_both(1, 1);
    buf_puts(&client.plain, "early"); /* waits for the handshake */
    talk(pieces[_i]);
    ck_assert(tls_ready(client.tls) && tls_ready(server.tls));
    check_got(&server, "early");
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        if (lengths[i] > 20000 * pieces[_i])
            continue; /* too many pieces */
        buf_reset(&client.got);
        buf_reset(&server.got);
        for (size_t n = 0; n < lengths[i]; n++) {
            buf_putc(&client.plain, (char)(n * 31));
            buf_putc(&server.plain, (char)(n * 37));
        }
        talk(pieces[_i]);
        ck_assert_uint_eq(client.got.len, lengths[i]);
        ck_assert_uint_eq(server.got.len, lengths[i]);
        for (size_t n = 0; n < lengths[i]; n++)
            ck_assert(client.got.data[n] == (char)(n * 37) && server.got.data[n] == (char)(n * 31));
    }
    ck_assert_uint_eq(client.plain.len + server.plain.len, 0);
    close_both();
}
END_TEST

START_TEST(tls_keys_differ)
{
    open_both(1, 2);
    buf_puts(&client.plain, "secret");
    talk(1 << 20);
    ck_assert(!tls_ready(client.tls) && !tls_ready(server.tls));
    ck_assert_int_eq(server.status, STATUS_AUTH);
    ck_assert_int_eq(client.status, STATUS_AUTH); /* by the alert */
    ck_assert_uint_eq(server.got.len, 0);
    ck_assert_uint_gt(strlen(tls_error(server.tls)), 0);
    close_both();
}
END_TEST

START_TEST(tls_rubbish)
{
    static const char *const texts[] = {"GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01\xff\xff", ""};
    open_both(1, 1);
    for (size_t i = 0; i < 3 && server.status == STATUS_OK; i++)
        server.status = tls_feed(server.tls, texts[i], strlen(texts[i]), &server.got);
    ck_assert_int_eq(server.status, STATUS_AUTH);
    ck_assert_int_eq(tls_feed(server.tls, "x", 1, &server.got), STATUS_AUTH); /* it stays so */
    close_both();
}
END_TEST

/* One bit of a record: nothing of it is taken. */
START_TEST(tls_damaged)
{
    open_both(1, 1);
    talk(1 << 20);
    buf_puts(&client.plain, "message");
    ck_assert_ok(tls_seal(client.tls, &client.plain, &client.sealed));
    client.sealed.data[client.sealed.len / 2] ^= 1;
    ck_assert_int_eq(tls_feed(server.tls, client.sealed.data, client.sealed.len, &server.got),
                     STATUS_AUTH);
    ck_assert_uint_eq(server.got.len, 0);
    close_both();
}
END_TEST

START_TEST(tls_goodbye_comes_behind_everything)
{
    open_both(1, 1);
    talk(1 << 20);
    buf_puts(&client.plain, "last words");
    ck_assert_ok(tls_seal(client.tls, &client.plain, &client.sealed));
    tls_goodbye(client.tls);
    pass(&client, &server, 1 << 20);
    ck_assert_int_eq(server.status, STATUS_CLOSED);
    check_got(&server, "last words");
    close_both();
}
END_TEST

START_TEST(tls_context_server_refuses)
{
    char err[300];
    struct tls_context *c;
    ck_assert_int_eq(tls_context_server("/nowhere", "/nowhere", &c, err, sizeof err),
                     STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(err, "/nowhere"));
    tls_context_put(NULL);
    ck_assert_ptr_null(tls_context_get(NULL));
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("tls");
    TCase *t = tcase_create("tls");
    tcase_add_loop_test(t, tls_both_directions, 0, 4);
    tcase_add_test(t, tls_keys_differ);
    tcase_add_test(t, tls_rubbish);
    tcase_add_test(t, tls_damaged);
    tcase_add_test(t, tls_goodbye_comes_behind_everything);
    tcase_add_test(t, tls_context_server_refuses);
    suite_add_tcase(s, t);
    return s;
}
