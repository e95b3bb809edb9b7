/* log: one line per call whatever the message holds, levels, and lines that cannot be written. */
#include "common/base/log.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/json.h"
#include "common/base/rng.h"
#include "tests/harness.h"

static int saved = -1;
static FILE *captured;

/* Standard error goes to a temporary file until capture_end. */
static void capture_begin(void)
{
    fflush(stderr);
    captured = tmpfile();
    saved = dup(STDERR_FILENO);
    dup2(fileno(captured), STDERR_FILENO);
}

/* What was written; to be freed. */
static char *capture_end(void)
{
    dup2(saved, STDERR_FILENO);
    close(saved);
    long n = (long)lseek(fileno(captured), 0, SEEK_END);
    char *text = calloc(1, (size_t)n + 1);
    ck_assert_int_eq(pread(fileno(captured), text, (size_t)n, 0), n);
    fclose(captured);
    return text;
}

static size_t count_lines(const char *text)
{
    size_t n = 0;
    for (; *text; text++)
        n += *text == '\n';
    return n;
}

START_TEST(log_line_has_all_parts)
{
    log_set_name("decoded-1");
    capture_begin();
    log_info("ticket %d sealed", 7);
    char *text = capture_end();
    int y, mo, d, h, mi, s, ms, n = 0;
    ck_assert_int_eq(
        sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2d.%3dZ %n", &y, &mo, &d, &h, &mi, &s, &ms, &n), 7);
    ck_assert_str_eq(text + n, "INFO  decoded-1 test_log.c: ticket 7 sealed\n");
    free(text);
}
END_TEST

START_TEST(log_level_filters)
{
    log_set_level(LOG_WARN);
    capture_begin();
    log_error("a");
    log_warn("b");
    log_info("c");
    log_trace("d");
    char *text = capture_end();
    ck_assert_uint_eq(count_lines(text), 2);
    free(text);
    ck_assert(log_enabled(LOG_WARN) && !log_enabled(LOG_INFO));
    log_set_level(LOG_TRACE);
    capture_begin();
    log_trace("e");
    text = capture_end();
    ck_assert_ptr_nonnull(strstr(text, "mono_us="));
    free(text);
}
END_TEST

START_TEST(log_level_parse_words)
{
    enum log_level l = LOG_ERROR;
    ck_assert_ok(log_level_parse("trace", &l));
    ck_assert_int_eq(l, LOG_TRACE);
    ck_assert_int_ne(log_level_parse("loud", &l), 0);
    ck_assert_int_ne(log_level_parse("", &l), 0);
    ck_assert_int_eq(l, LOG_TRACE);
}
END_TEST

START_TEST(log_message_cannot_forge_or_colour)
{
    capture_begin();
    log_info("%s", "one\ntwo\r\n\x1b[31mred\x7f\tend");
    char *text = capture_end();
    ck_assert_uint_eq(count_lines(text), 1);
    ck_assert_ptr_null(strchr(text, '\r'));
    ck_assert_ptr_null(strchr(text, '\x1b'));
    ck_assert_ptr_null(strchr(text, '\x7f'));
    ck_assert_ptr_nonnull(strstr(text, "one two"));
    free(text);
}
END_TEST

START_TEST(log_long_line_is_cut)
{
    /* Cut inside a character: what is left must still be UTF-8. */
    for (int shift = 0; shift < 3; shift++) {
        char *big = calloc(1, 5000);
        memset(big, 'x', (size_t)shift);
        for (size_t i = (size_t)shift; i + 3 < 4999; i += 3)
            memcpy(big + i, "\xe2\x82\xac", 3);
        capture_begin();
        log_info("%s", big);
        char *text = capture_end();
        size_t n = strlen(text);
        ck_assert_uint_le(n, 2048 + 64); /* with what stands before the message */
        ck_assert_uint_ge(n, 2040);
        ck_assert_str_eq(text + n - 7, "\xe2\x82\xac\xe2\x80\xa6\n");
        free(text);
        free(big);
    }
}
END_TEST

/* Nobody reads the pipe: lines beyond what it holds are dropped, and nobody waits. */
START_TEST(log_full_pipe_does_not_block)
{
    int fds[2];
    uint64_t before = log_dropped();
    fflush(stderr);
    ck_assert_int_eq(pipe(fds), 0);
    saved = dup(STDERR_FILENO);
    dup2(fds[1], STDERR_FILENO);
    for (int i = 0; i < 5000; i++)
        log_error("a line of some forty bytes, number %d", i);
    dup2(saved, STDERR_FILENO);
    close(saved);
    ck_assert_uint_gt(log_dropped(), before + 1000);
    char line[4096] = "";
    ck_assert_int_gt(read(fds[0], line, sizeof line - 1), 100);
    ck_assert_ptr_nonnull(strstr(line, "number 0"));
    close(fds[0]);
    close(fds[1]);
}
END_TEST

START_TEST(log_unwritable_is_counted)
{
    uint64_t before = log_dropped();
    fflush(stderr);
    saved = dup(STDERR_FILENO);
    int full = open("/dev/full", O_WRONLY);
    dup2(full, STDERR_FILENO);
    log_error("lost");
    log_error("lost too");
    dup2(saved, STDERR_FILENO);
    close(full);
    close(saved);
    ck_assert_uint_eq(log_dropped(), before + 2);
}
END_TEST

static void *chatter(void *arg)
{
    for (int i = 0; i < 200; i++)
        log_info("thread %c says %0100d.", *(char *)arg, i);
    return NULL;
}

START_TEST(log_threads_do_not_mix)
{
    pthread_t t[4];
    char ids[4] = "abcd";
    capture_begin();
    for (int i = 0; i < 4; i++)
        pthread_create(&t[i], NULL, chatter, &ids[i]);
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    char *text = capture_end(), *at = NULL;
    ck_assert_uint_eq(count_lines(text), 800);
    for (char *line = strtok_r(text, "\n", &at); line; line = strtok_r(NULL, "\n", &at)) {
        ck_assert_ptr_nonnull(strstr(line, " says "));
        ck_assert_int_eq(line[strlen(line) - 1], '.');
        ck_assert_int_eq(line[4], '-');
    }
    free(text);
}
END_TEST

/* A process that was started without standard descriptors must not log into whatever comes to have
 * their numbers. */
START_TEST(log_claim_stdio_fills_the_gaps)
{
    int in = dup(STDIN_FILENO), err = dup(STDERR_FILENO);
    ck_assert(in > STDERR_FILENO && err > STDERR_FILENO);
    close(STDIN_FILENO);
    close(STDERR_FILENO);
    log_claim_stdio();
    int next = open("/dev/null", O_RDONLY);
    int flags = fcntl(STDERR_FILENO, F_GETFL);
    dup2(in, STDIN_FILENO);
    dup2(err, STDERR_FILENO);
    ck_assert_int_gt(next, STDERR_FILENO);
    ck_assert_int_eq(flags & O_ACCMODE, O_RDWR);
    close(next);
    log_claim_stdio(); /* nothing to do */
    ck_assert_int_eq(open("/dev/null", O_RDONLY), next);
}
END_TEST

/* One line, parsed. */
static json_t *object_of(char *text)
{
    json_error_t e;
    ck_assert_uint_eq(count_lines(text), 1);
    ck_assert_int_eq(text[strlen(text) - 1], '\n');
    ck_assert_uint_le(strlen(text), 4096); /* what a pipe takes at once */
    json_t *o = json_loads(text, JSON_REJECT_DUPLICATES, &e);
    ck_assert_msg(json_is_object(o), "%s in %s", e.text, text);
    return o;
}

static const char *member(const json_t *o, const char *name)
{
    const char *s = json_string_value(json_object_get(o, name));
    return s ? s : "(none)";
}

START_TEST(log_json_has_the_same_parts)
{
    struct log_about about = {"5f3c1d00#17.0.0", "abc 00-0123-4567-01"};
    log_set_format(LOG_JSON);
    log_set_name("decoded-1");
    capture_begin();
    log_warn_about(about, "ticket \"%d\" \\ sealed, %s", 7, "für Zoë");
    char *text = capture_end();
    json_t *o = object_of(text);
    ck_assert_str_eq(member(o, "level"), "warn");
    ck_assert_str_eq(member(o, "name"), "decoded-1");
    ck_assert_str_eq(member(o, "file"), "test_log.c");
    ck_assert_str_eq(member(o, "seq"), "5f3c1d00#17.0.0");
    ck_assert_str_eq(member(o, "request_id"), "abc");
    ck_assert_str_eq(member(o, "traceparent"), "00-0123-4567-01");
    ck_assert_str_eq(member(o, "message"), "ticket \"7\" \\ sealed, für Zoë");
    ck_assert_uint_eq(strlen(member(o, "time")), strlen("2026-11-29T19:20:01.123Z"));
    json_decref(o);
    free(text);
    capture_begin();
    log_info("%s", "\xc2\x85\xe2\x80\xa8\xe2\x80\xa9\xc2\xa0"); /* some readers break lines there */
    text = capture_end();
    ck_assert_ptr_nonnull(strstr(text, "\\u0085\\u2028\\u2029\xc2\xa0"));
    json_decref(object_of(text));
    free(text);
    capture_begin();
    log_info("about nothing");
    text = capture_end();
    o = object_of(text);
    ck_assert_uint_eq(json_object_size(o), 5);
    json_decref(o);
    free(text);
}
END_TEST

/* Whatever bytes come into a message, an id or a name: a line is one valid object. */
START_TEST(log_json_is_valid_whatever_comes)
{
    static char message[6000], request[300], seq[80], name[40];
    log_set_format(LOG_JSON);
    for (uint64_t i = 0; i < 3000; i++) {
        struct rng_block b = rng_philox(1, i, 0);
        struct {
            char *p;
            size_t n;
        } parts[] = {{message, b.v[0] % (i % 8 ? 200 : sizeof message)},
                     {request, b.v[1] % sizeof request},
                     {seq, b.v[2] % sizeof seq},
                     {name, b.v[3] % sizeof name}};
        for (size_t k = 0; k < 4; k++) {
            for (size_t at = 0; at < parts[k].n; at++) {
                uint32_t r = rng_philox(2, i, k << 32 | at).v[0];
                /* All bytes, or those that matter most to JSON and UTF-8. */
                parts[k].p[at] =
                    (char)(i % 2 ? (char)(1 + r % 255) : "\"\\\x7f\x01\xc3\xa9\xed\xf4u{"[r % 10]);
            }
            parts[k].p[parts[k].n] = 0;
        }
        log_set_name(name);
        capture_begin();
        log_info_about(((struct log_about){seq, request}), "%s", message);
        char *text = capture_end();
        json_decref(object_of(text));
        free(text);
    }
    log_set_name("test");
}
END_TEST

START_TEST(log_json_cuts_the_message_alone)
{
    static char big[3000];
    memset(big, '"', sizeof big - 1);
    log_set_format(LOG_JSON);
    capture_begin();
    log_info_about(((struct log_about){"s", "r"}), "%s", big);
    char *text = capture_end();
    json_t *o = object_of(text);
    const char *m = member(o, "message");
    ck_assert_str_eq(member(o, "request_id"), "r");
    ck_assert_str_eq(m + strlen(m) - 3, "\xe2\x80\xa6");
    json_decref(o);
    free(text);
}
END_TEST

/* The journal: one datagram of fields; without its socket, priorities on standard error. */
START_TEST(log_journal_has_fields)
{
    char path[] = "/tmp/baton-log-XXXXXX", text[4096];
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    ck_assert_ptr_nonnull(mkdtemp(path));
    snprintf(a.sun_path, sizeof a.sun_path, "%s/socket", path);
    log_set_name("decoded-1");
    log_set_journal_socket(a.sun_path);
    log_set_format(LOG_JOURNALD); /* nobody is there */
    capture_begin();
    log_error("one");
    char *line = capture_end();
    ck_assert_str_eq(line, "<3>decoded-1 test_log.c: one\n");
    free(line);
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    ck_assert_ok(bind(fd, (struct sockaddr *)&a, sizeof a));
    log_set_journal(true);
    log_set_format(LOG_TEXT); /* and standard error is the journal */
    capture_begin();
    log_info_about(((struct log_about){"5f3c1d00#17.0.0", "abc 00-0123-4567-01"}),
                   "two\nMESSAGE=no");
    line = capture_end();
    ck_assert_str_eq(line, "");
    free(line);
    ssize_t n = recv(fd, text, sizeof text - 1, MSG_DONTWAIT);
    ck_assert_int_gt(n, 0);
    text[n] = 0;
    ck_assert_str_eq(text, "PRIORITY=6\nSYSLOG_IDENTIFIER=decoded-1\nCODE_FILE=test_log.c\n"
                           "BATON_SEQ=5f3c1d00#17.0.0\nREQUEST_ID=abc\n"
                           "TRACEPARENT=00-0123-4567-01\nMESSAGE=decoded-1 test_log.c: two "
                           "MESSAGE=no (request abc 00-0123-4567-01)\n");
    uint64_t before = log_dropped();
    for (int i = 0; i < 3000; i++) /* nobody reads: nobody waits */
        log_info("%d", i);
    ck_assert_uint_gt(log_dropped(), before);
    close(fd);
    unlink(a.sun_path);
    rmdir(path);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("log");
    TCase *t = tcase_create("log");
    tcase_add_test(t, log_line_has_all_parts);
    tcase_add_test(t, log_level_filters);
    tcase_add_test(t, log_level_parse_words);
    tcase_add_test(t, log_message_cannot_forge_or_colour);
    tcase_add_test(t, log_long_line_is_cut);
    tcase_add_test(t, log_full_pipe_does_not_block);
    tcase_add_test(t, log_unwritable_is_counted);
    tcase_add_test(t, log_threads_do_not_mix);
    tcase_add_test(t, log_claim_stdio_fills_the_gaps);
    tcase_add_test(t, log_json_has_the_same_parts);
    tcase_add_test(t, log_json_is_valid_whatever_comes);
    tcase_add_test(t, log_json_cuts_the_message_alone);
    tcase_add_test(t, log_journal_has_fields);
    suite_add_tcase(s, t);
    return s;
}
