/* The cluster key, MACs and addresses. */
#include "common/net/mac.h"

#include <sys/stat.h>

#include "common/net/address.h"
#include "tests/net/net_test.h"

static char dir[] = "/tmp/baton-mac-XXXXXX";
static char path[64];

static void setup(void)
{
    strcpy(dir + sizeof dir - 7, "XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/key", dir);
}

static void teardown(void)
{
    unlink(path);
    rmdir(dir);
}

static void write_key(const char *text, size_t n)
{
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(text, 1, n, f), n);
    fclose(f);
    chmod(path, 0600);
}

START_TEST(mac_key_load_cases)
{
    static const struct {
        const char *text;
        uint32_t n; /* 0: refused */
        const char *hint;
    } cases[] = {
        {"0123456789abcdef", 16, ""},
        {"0123456789abcdef \r\n\n", 16, ""},
        {"0123456789abcde\n", 0, "16 bytes"},
        {"", 0, "16 bytes"},
        {"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\n", 64, ""},
        {"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdefX", 0, "64 bytes"},
    };
    struct mac_key k = {.n = 99};
    char err[256] = "";
    write_key(cases[_i].text, strlen(cases[_i].text));
    int rc = mac_key_load(path, &k, err, sizeof err);
    ck_assert_int_eq(rc, cases[_i].n ? STATUS_OK : STATUS_INVALID);
    ck_assert_uint_eq(k.n, cases[_i].n ? cases[_i].n : 99);
    ck_assert_msg(strstr(err, cases[_i].hint), "%s", err);
    if (cases[_i].n)
        ck_assert_int_eq(memcmp(k.key, cases[_i].text, k.n), 0);
    else
        ck_assert_ptr_nonnull(strstr(err, path));
}
END_TEST

START_TEST(mac_key_load_files)
{
    struct mac_key k = {.n = 99};
    char err[256] = "";
    ck_assert_ok(mac_key_load(NULL, &k, err, sizeof err));
    ck_assert_uint_eq(k.n, 0);
    ck_assert_ok(mac_key_load("", &k, err, sizeof err));
    ck_assert_int_eq(mac_key_load(path, &k, err, sizeof err), STATUS_INVALID);
    ck_assert_msg(strstr(err, "No such file"), "%s", err);
    ck_assert_int_eq(mac_key_load(dir, &k, err, sizeof err), STATUS_INVALID);
    ck_assert_msg(strstr(err, "regular file"), "%s", err);
}
END_TEST

/* A key that others can read works, with a warning on standard error. */
START_TEST(mac_key_load_warns)
{
    struct mac_key k;
    char err[256], line[512] = "";
    int fds[2];
    write_key("0123456789abcdef", 16);
    chmod(path, 0644);
    ck_assert_int_eq(pipe(fds), 0);
    int saved = dup(STDERR_FILENO);
    dup2(fds[1], STDERR_FILENO);
    int rc = mac_key_load(path, &k, err, sizeof err);
    dup2(saved, STDERR_FILENO);
    ck_assert_ok(rc);
    ck_assert_int_gt(read(fds[0], line, sizeof line - 1), 0);
    ck_assert_msg(strstr(line, "chmod 600"), "%s", line);
}
END_TEST

static struct mac_key key_of(const char *text)
{
    struct mac_key k = {.n = (uint32_t)strlen(text)};
    memcpy(k.key, text, k.n);
    return k;
}

static void hex_of(const uint8_t mac[32], char out[65])
{
    for (int i = 0; i < 32; i++)
        snprintf(out + 2 * i, 3, "%02x", mac[i]);
}

/* Expected values are from Python's hmac over label, zero byte, data. */
START_TEST(mac_sign_known_answers)
{
    struct mac_key k = key_of("0123456789abcdef");
    uint8_t mac[32];
    char text[65];
    mac_sign(&k, "hello", "some data", 9, mac);
    hex_of(mac, text);
    ck_assert_str_eq(text, "890a07c1a92393097f01c66934eda16157f94a770bc9828ddc36ae43e969f656");
    mac_reserve(&k, 1, 0x0203040506070809, 3, 4, 0xffffffffffffffff, mac);
    hex_of(mac, text);
    ck_assert_str_eq(text, "e61ff947ec2c39bb664c7d01850a3452415c30521e189d398c6033cccd9a6e6e");
}
END_TEST

START_TEST(mac_sign_separates)
{
    struct mac_key k = key_of("0123456789abcdef"), none = {.n = 0};
    uint8_t a[32], b[32], zero[32] = {0};
    mac_sign(&k, "ab", "c", 1, a);
    mac_sign(&k, "a", "bc", 2, b);
    ck_assert(!mac_equal(a, b)); /* label and data do not run into each other */
    mac_sign(&k, "ab", "c", 1, b);
    ck_assert(mac_equal(a, b));
    b[31] ^= 1;
    ck_assert(!mac_equal(a, b));
    mac_sign(&none, "ab", "c", 1, b);
    ck_assert(mac_equal(b, zero));
    mac_reserve(&none, 1, 2, 3, 4, 5, b);
    ck_assert(mac_equal(b, zero));
    mac_reserve(&k, 1, 2, 3, 4, 5, a);
    mac_reserve(&k, 1, 2, 3, 5, 4, b);
    ck_assert(!mac_equal(a, b));
}
END_TEST

START_TEST(mac_check_listen_cases)
{
    static const struct {
        const char *address;
        int without, with;
    } cases[] = {{"127.0.0.1:0", STATUS_OK, STATUS_OK},
                 {"127.9.9.9:1", STATUS_OK, STATUS_OK},
                 {"localhost:1", STATUS_OK, STATUS_OK},
                 {"[::1]:1", STATUS_OK, STATUS_OK},
                 {"[::ffff:127.0.0.1]:1", STATUS_OK, STATUS_OK},
                 {"0.0.0.0:1", STATUS_AUTH, STATUS_OK},
                 {"[::]:1", STATUS_AUTH, STATUS_OK},
                 {"10.0.0.1:1", STATUS_AUTH, STATUS_OK},
                 {"[::ffff:10.0.0.1]:1", STATUS_AUTH, STATUS_OK},
                 {"128.0.0.1:1", STATUS_AUTH, STATUS_OK},
                 {":1", STATUS_INVALID, STATUS_INVALID},
                 {"no-such-host.invalid:1", STATUS_INVALID, STATUS_INVALID}};
    struct mac_key k = key_of("0123456789abcdef"), none = {.n = 0};
    char err[256];
    ck_assert_int_eq(mac_check_listen(&none, cases[_i].address, err, sizeof err),
                     cases[_i].without);
    ck_assert_int_eq(mac_check_listen(&k, cases[_i].address, err, sizeof err), cases[_i].with);
}
END_TEST

START_TEST(address_split_cases)
{
    static const struct {
        const char *text, *host, *port; /* host NULL: refused, port is what the message says */
    } cases[] = {{"a:1", "a", "1"},
                 {"127.0.0.1:65535", "127.0.0.1", "65535"},
                 {"[::1]:80", "::1", "80"},
                 {"host.example:00080", "host.example", "80"},
                 {":80", NULL, "host is missing"},
                 {"[]:80", NULL, "host is missing"},
                 {"a", NULL, "port is missing"},
                 {"", NULL, "port is missing"},
                 {"a:", NULL, "0 to 65535"},
                 {"a:-1", NULL, "0 to 65535"},
                 {"a:+1", NULL, "0 to 65535"},
                 {"a:80x", NULL, "0 to 65535"},
                 {"a:999999", NULL, "0 to 65535"},
                 {"a:65536", NULL, "0 to 65535"},
                 {"::1:80", NULL, "[address]:port"},
                 {"[::1:80", NULL, "[address]:port"},
                 {"[::1]", NULL, "[address]:port"}};
    struct address_parts p;
    char err[256] = "";
    int rc = address_split(cases[_i].text, &p, err, sizeof err);
    if (!cases[_i].host) {
        ck_assert_int_eq(rc, STATUS_INVALID);
        ck_assert_msg(strstr(err, cases[_i].port), "%s", err);
        return;
    }
    ck_assert_ok(rc);
    ck_assert_str_eq(p.host, cases[_i].host);
    ck_assert_str_eq(p.port, cases[_i].port);
}
END_TEST

START_TEST(address_format_round_trip)
{
    static const char *const texts[] = {"127.0.0.1:80", "[::1]:65535", "[2001:db8::5]:1"};
    struct sockaddr_storage ss;
    char err[256], out[ADDRESS_TEXT_MAX];
    for (size_t i = 0; i < 3; i++) {
        ck_assert_ok(address_resolve(texts[i], &ss, err, sizeof err));
        address_format(&ss, out);
        ck_assert_str_eq(out, texts[i]);
    }
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("mac");
    TCase *c = tcase_create("mac");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_set_timeout(c, 30);
    tcase_add_loop_test(c, mac_key_load_cases, 0, 6);
    tcase_add_test(c, mac_key_load_files);
    tcase_add_test(c, mac_key_load_warns);
    tcase_add_test(c, mac_sign_known_answers);
    tcase_add_test(c, mac_sign_separates);
    tcase_add_loop_test(c, mac_check_listen_cases, 0, 12);
    tcase_add_loop_test(c, address_split_cases, 0, 17);
    tcase_add_test(c, address_format_round_trip);
    suite_add_tcase(s, c);
    return s;
}
