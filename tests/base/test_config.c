/* config: every type, every source and their order, and what a user is told about a mistake. */
#include "common/base/config.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "tests/harness.h"

struct settings {
    char *model, *prefill;
    int64_t max_batch, kv_memory, body_max, stall_ms, offset;
    bool prefix_cache;
    int log_level;
};
#define AT(field) offsetof(struct settings, field)
static const struct config_key keys[] = {
    {"model", CONFIG_STRING, AT(model), NULL, 0, 0, NULL, NULL, "Where the model is."},
    {"prefill", CONFIG_LIST, AT(prefill), NULL, 0, 0, NULL, NULL, "Workers."},
    {"max_batch", CONFIG_INT, AT(max_batch), "64", 1, 512, NULL, "sequences",
     "How many sequences one step may hold. More of them use the weights better and make each of "
     "them wait longer, so this is where throughput is traded for latency."},
    {"kv_memory", CONFIG_SIZE, AT(kv_memory), "auto", 1024, 0, NULL, NULL, "Memory of the pool."},
    {"body_max", CONFIG_SIZE, AT(body_max), "16M", 1, (int64_t)1 << 30, NULL, NULL, "Limit."},
    {"stall_ms", CONFIG_MS, AT(stall_ms), "2s", 50, 600000, NULL, NULL, "Patience."},
    {"offset", CONFIG_INT, AT(offset), "-3", -10, 10, NULL, NULL, "May be negative."},
    {"prefix_cache", CONFIG_BOOL, AT(prefix_cache), "on", 0, 0, NULL, NULL, "Reuse prefixes."},
    {"log_level", CONFIG_ENUM, AT(log_level), "info", 0, 0, "error|warn|info|debug", NULL,
     "How much to say."},
};
#define KEYS_N (sizeof keys / sizeof keys[0])

static struct settings got;
static char file_path[64];
static char *said_out, *said_err; /* what the last load() wrote */

static char *slurp(FILE *f)
{
    struct buf b;
    char piece[4096];
    size_t n;
    buf_init(&b, 0);
    rewind(f);
    while ((n = fread(piece, 1, sizeof piece, f)) > 0)
        buf_append(&b, piece, n);
    fclose(f);
    return buf_take(&b);
}

/* config_load with up to five arguments after the program's name; captures both outputs. */
static enum config_action load(const char *a, const char *b, const char *c, const char *d,
                               const char *e)
{
    const char *args[] = {"testd", a, b, c, d, e, NULL};
    int argc = 1, saved[2] = {dup(1), dup(2)};
    FILE *out = tmpfile(), *err = tmpfile();
    while (args[argc])
        argc++;
    fflush(stdout);
    fflush(stderr);
    dup2(fileno(out), 1);
    dup2(fileno(err), 2);
    memset(&got, 0x55, sizeof got);
    enum config_action action = config_load("testd", keys, KEYS_N, &got, argc, (char **)args);
    fflush(stdout);
    fflush(stderr);
    for (int i = 0; i < 2; i++) {
        dup2(saved[i], i + 1);
        close(saved[i]);
    }
    free(said_out);
    free(said_err);
    said_out = slurp(out);
    said_err = slurp(err);
    return action;
}

static const char *write_file(const char *text)
{
    FILE *f = fopen(file_path, "w");
    fputs(text, f);
    fclose(f);
    return file_path;
}

static void expect_error(const char *part)
{
    ck_assert_msg(strstr(said_err, part), "\"%s\" is not in: %s", part, said_err);
    ck_assert_msg(strncmp(said_err, "testd: ", 7) == 0, "%s", said_err);
    ck_assert_msg(strchr(said_err, '\n') == said_err + strlen(said_err) - 1, "%s", said_err);
}

static void setup(void)
{
    strcpy(file_path, "/tmp/baton-config-XXXXXX");
    int fd = mkstemp(file_path);
    ck_assert_int_ge(fd, 0);
    close(fd);
    for (char **e = environ; *e;) {
        if (strncmp(*e, "BATON_", 6) == 0) {
            char name[64];
            snprintf(name, sizeof name, "%.*s", (int)strcspn(*e, "="), *e);
            unsetenv(name);
            e = environ;
        } else {
            e++;
        }
    }
}
static void teardown(void)
{
    unlink(file_path);
    free(said_out);
    free(said_err);
    said_out = said_err = NULL;
}

START_TEST(config_defaults)
{
    ck_assert_int_eq(load(NULL, NULL, NULL, NULL, NULL), CONFIG_RUN);
    ck_assert_ptr_null(got.model);
    ck_assert_ptr_null(got.prefill);
    ck_assert_int_eq(got.max_batch, 64);
    ck_assert_int_eq(got.kv_memory, -1);
    ck_assert_int_eq(got.body_max, 16 << 20);
    ck_assert_int_eq(got.stall_ms, 2000);
    ck_assert_int_eq(got.offset, -3);
    ck_assert(got.prefix_cache);
    ck_assert_int_eq(got.log_level, 2);
    ck_assert_str_eq(said_err, "");
    config_fini(keys, KEYS_N, &got);
}
END_TEST

START_TEST(config_sources_in_order)
{
    write_file("max_batch = 2\nstall_ms = 3s\nlog_level=debug\nmodel = from file\n");
    setenv("BATON_STALL_MS", "4s", 1);
    setenv("BATON_LOG_LEVEL", "warn", 1);
    setenv("BATON_MODEL", "", 1); /* empty counts as unset */
    ck_assert_int_eq(load("--log-level=error", "-c", file_path, "--offset", "7"), CONFIG_RUN);
    ck_assert_int_eq(got.max_batch, 2);
    ck_assert_int_eq(got.stall_ms, 4000);
    ck_assert_int_eq(got.log_level, 0);
    ck_assert_int_eq(got.offset, 7);
    ck_assert_str_eq(got.model, "from file");
    config_fini(keys, KEYS_N, &got);
    config_fini(keys, KEYS_N, &got);
}
END_TEST

START_TEST(config_file_syntax)
{
    write_file("\xef\xbb\xbf# comment\n; comment\n\n   max_batch=7  ; inline\r\n"
               "model = /a;b/c d = e   \n\tprefill =  a:1 ,b:2,\tc:3\n  stall-ms: 1m\nbody_max = ");
    ck_assert_int_eq(load("-c", file_path, NULL, NULL, NULL), CONFIG_EXIT_ERROR);
    expect_error("line 8: body_max: \"\" is not a size");
    write_file("\xef\xbb\xbf# comment\n; comment\n\n   max_batch=7  ; inline\r\n"
               "model = /a;b/c d = e   \n\tprefill =  a:1 ,b:2,\tc:3\n  stall-ms: 1m");
    ck_assert_int_eq(load("--config", file_path, NULL, NULL, NULL), CONFIG_RUN);
    ck_assert_int_eq(got.max_batch, 7);
    ck_assert_str_eq(got.model, "/a;b/c d = e");
    ck_assert_str_eq(got.prefill, "a:1,b:2,c:3");
    ck_assert_int_eq(got.stall_ms, 60000);
    config_fini(keys, KEYS_N, &got);
    write_file("model =\n");
    ck_assert_int_eq(load("-c", file_path, NULL, NULL, NULL), CONFIG_RUN);
    ck_assert_ptr_null(got.model);
}
END_TEST

START_TEST(config_file_long_values)
{
    /* Longer than inih's line buffer, with blanks where it is cut, and a comment behind. */
    struct buf text, want;
    buf_init(&text, 0);
    buf_init(&want, 0);
    for (int i = 0; i < 400; i++)
        buf_printf(&want, "%s%d ;%d a", i ? " b" : "x", i, i);
    /* " ;" would begin a comment: use only values without. */
    for (size_t i = 0; i + 1 < want.len; i++) {
        if (want.data[i] == ' ' && want.data[i + 1] == ';')
            want.data[i] = '.';
    }
    buf_printf(&text, "# %0500d\nmodel = %s ; %0500d\nmax_batch = 9\n", 0, buf_str(&want), 0);
    write_file(buf_str(&text));
    ck_assert_int_eq(load("-c", file_path, NULL, NULL, NULL), CONFIG_RUN);
    ck_assert_str_eq(got.model, buf_str(&want));
    ck_assert_int_eq(got.max_batch, 9);
    config_fini(keys, KEYS_N, &got);
    buf_fini(&text);
    buf_fini(&want);
}
END_TEST

static const struct {
    const char *text, *complaint;
} bad_files[] = {
    {"max_batch = 1\nmax_batch = 2\n", "line 2: max_batch is set twice"},
    {"max-batch = 1\nmax_batch = 2\n", "line 2: max_batch is set twice"},
    {"\nmaxbatch = 1\n", "line 2: there is no setting \"maxbatch\""},
    {"max_batch = 0\n", "max_batch: \"0\" is not allowed: 1 to 512 sequences"},
    {"max_batch = 513", "1 to 512 sequences"},
    {"max_batch = 99999999999999999999999", "not allowed"},
    {"max_batch = 1.5", "\"1.5\" is not a whole number"},
    {"max_batch = 0x10", "not a whole number"},
    {"max_batch = 1k", "not a whole number"},
    {"max_batch = ten", "not a whole number"},
    {"offset = -11", "-10 to 10"},
    {"body_max = -1", "not allowed"},
    {"body_max = auto", "not a size"},
    {"body_max = 2G", "1 to 1073741824 bytes"},
    {"body_max = 9999999999999G", "not allowed"},
    {"body_max = 5 k", "not a size"},
    {"kv_memory = 1023", "auto, or 1024 or more bytes"},
    {"kv_memory = automatic", "or auto"},
    {"stall_ms = 5d", "not a time such as"},
    {"stall_ms = 11m", "50 to 600000 ms"},
    {"prefix_cache = maybe", "\"maybe\" is not on or off"},
    {"log_level = loud", "\"loud\" is not one of error|warn|info|debug"},
    {"log_level = ", "is not one of"},
    {"log_level = warn|info", "is not one of"},
    {"just words\n", "line 1: \"just words\" is not of the form key = value"},
    {"max_batch = 1\n\n[section]\nlog_level = info\n", "line 4: [section]: sections"},
    {"[section\n", "not of the form"},
    {"model = a\x01z\n", "control characters"},
};

START_TEST(config_file_mistakes)
{
    write_file(bad_files[_i].text);
    ck_assert_int_eq(load("-c", file_path, NULL, NULL, NULL), CONFIG_EXIT_ERROR);
    expect_error(bad_files[_i].complaint);
    expect_error(strstr(bad_files[_i].complaint, "line") ? bad_files[_i].complaint : file_path);
}
END_TEST

START_TEST(config_file_is_no_text)
{
    FILE *f = fopen(file_path, "w");
    fwrite("max_batch\0 = 1\n", 1, 15, f);
    fclose(f);
    ck_assert_int_eq(load("-c", file_path, NULL, NULL, NULL), CONFIG_EXIT_ERROR);
    expect_error("line 1: not a text file");
    ck_assert_int_eq(load("-c", "/nowhere/at all", NULL, NULL, NULL), CONFIG_EXIT_ERROR);
    expect_error("/nowhere/at all: No such file");
    ck_assert_int_eq(load("-c", "/", NULL, NULL, NULL), CONFIG_EXIT_ERROR);
}
END_TEST

START_TEST(config_arguments_mistakes)
{
    ck_assert_int_eq(load("--max-batch", NULL, NULL, NULL, NULL), CONFIG_EXIT_ERROR);
    expect_error("command line: --max-batch needs a value");
    ck_assert_int_eq(load("--max_batch", "1", "--max-batch=2", NULL, NULL), CONFIG_EXIT_ERROR);
    expect_error("command line: max_batch is set twice");
    ck_assert_int_eq(load("--maximum", "1", NULL, NULL, NULL), CONFIG_EXIT_ERROR);
    expect_error("there is no setting \"maximum\"");
    ck_assert_int_eq(load("stray", NULL, NULL, NULL, NULL), CONFIG_EXIT_ERROR);
    expect_error("\"stray\" is not an option");
    ck_assert_int_eq(load("-c", "a", "-c", "b", NULL), CONFIG_EXIT_ERROR);
    expect_error("-c is given twice");
    setenv("BATON_MAX_BATCH", "none", 1);
    ck_assert_int_eq(load(NULL, NULL, NULL, NULL, NULL), CONFIG_EXIT_ERROR);
    expect_error("BATON_MAX_BATCH: max_batch: \"none\" is not a whole number");
}
END_TEST

START_TEST(config_values_that_look_like_flags)
{
    ck_assert_int_eq(load("--model", "--help", "--offset", "-5", NULL), CONFIG_RUN);
    ck_assert_str_eq(got.model, "--help");
    ck_assert_int_eq(got.offset, -5);
    config_fini(keys, KEYS_N, &got);
}
END_TEST

/* What --print-config shows is a file that gives the same settings again. */
START_TEST(config_print_reads_back)
{
    ck_assert_int_eq(load("--print-config", "--kv-memory=3M", "--stall-ms=90s", "--prefill=a, b",
                          "--prefix-cache=no"),
                     CONFIG_EXIT_OK);
    ck_assert_ptr_null(got.prefill);
    ck_assert_ptr_nonnull(strstr(said_out, "\nkv_memory = 3M\n"));
    ck_assert_ptr_nonnull(strstr(said_out, "\nmodel =\n"));
    ck_assert_ptr_nonnull(strstr(said_out, "\nprefill = a,b\n"));
    ck_assert_ptr_nonnull(strstr(said_out, "# Default: 64; 1 to 512 sequences.\n"));
    char *first = strdup(said_out), *save = NULL, *copy = strdup(said_out);
    for (char *line = strtok_r(copy, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        ck_assert_uint_le(strlen(line), 80);
    write_file(first);
    ck_assert_int_eq(load("-c", file_path, "--print-config", NULL, NULL), CONFIG_EXIT_OK);
    ck_assert_str_eq(said_out, first);
    free(first);
    free(copy);
}
END_TEST

START_TEST(config_actions_that_end)
{
    ck_assert_int_eq(load("--help", NULL, NULL, NULL, NULL), CONFIG_EXIT_OK);
    for (size_t i = 0; i < KEYS_N; i++)
        ck_assert_ptr_nonnull(strstr(said_out, keys[i].name));
    ck_assert_int_eq(load("--version", NULL, NULL, NULL, NULL), CONFIG_EXIT_OK);
    ck_assert_str_eq(said_out, "testd " BATON_VERSION "\n");
    write_file("max_batch = 3\n");
    ck_assert_int_eq(load("-c", file_path, "--check-config", NULL, NULL), CONFIG_CHECK);
    ck_assert_int_eq(got.max_batch, 3);
    config_fini(keys, KEYS_N, &got);
    write_file("max_batch = 0\n");
    ck_assert_int_eq(load("-c", file_path, "--check-config", NULL, NULL), CONFIG_EXIT_ERROR);
    expect_error("line 1: max_batch");
    /* A broken file does not keep anyone from the help. */
    ck_assert_int_eq(load("-c", file_path, "--help", NULL, NULL), CONFIG_EXIT_OK);
}
END_TEST

static const char *const live[] = {"max_batch", "prefill", "log_level", NULL};
static char reread_err[512];

/* The file as a running daemon reads it again; the result of config_reread. */
static int reread(const char *text, struct settings *fresh)
{
    char program[] = "testd", c[] = "-c", stall[] = "--stall-ms=3s";
    char *args[] = {program, c, file_path, stall, NULL};
    write_file(text);
    reread_err[0] = 0;
    return config_reread(keys, KEYS_N, &got, fresh, 4, args, reread_err, sizeof reread_err);
}

START_TEST(config_reread_takes_live_keys)
{
    struct settings fresh;
    config_live(live);
    write_file("max_batch = 3\nprefill = a\nmodel = m\n");
    ck_assert_int_eq(load("-c", file_path, "--stall-ms=3s", NULL, NULL), CONFIG_RUN);
    ck_assert_int_eq(reread("model = m\nprefill = b, c\nlog_level = debug\n", &fresh), STATUS_OK);
    ck_assert_int_eq(got.max_batch, 3); /* nothing is taken yet */
    ck_assert_uint_eq(config_adopt(keys, KEYS_N, &got, &fresh), 3);
    ck_assert_int_eq(got.max_batch, 64); /* no longer in the file: the default */
    ck_assert_str_eq(got.prefill, "b,c");
    ck_assert_int_eq(got.log_level, 3);
    ck_assert_str_eq(got.model, "m");
    ck_assert_int_eq(got.stall_ms, 3000);
    ck_assert_int_eq(reread("model = m\nprefill = b,c\nlog_level = debug\n", &fresh), STATUS_OK);
    ck_assert_uint_eq(config_adopt(keys, KEYS_N, &got, &fresh), 0);
    config_fini(keys, KEYS_N, &got);
    config_live(NULL);
}
END_TEST

/* One thing that cannot be done, and nothing is done. */
START_TEST(config_reread_refuses_as_a_whole)
{
    struct settings fresh;
    config_live(live);
    write_file("model = m\n");
    ck_assert_int_eq(load("-c", file_path, "--stall-ms=3s", NULL, NULL), CONFIG_RUN);
    ck_assert_int_eq(reread("max_batch = 5\n\nmodel = n\n", &fresh), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(reread_err, file_path));
    ck_assert_ptr_nonnull(strstr(reread_err, "line 3: model cannot change"));
    ck_assert_int_eq(reread("max_batch = 5\n", &fresh), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(reread_err, "model is no longer set"));
    ck_assert_int_eq(reread("model = m\nmax_batch = many\n", &fresh), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(reread_err, "line 2: max_batch"));
    ck_assert_int_eq(reread("model = m\nmodle = m\n", &fresh), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(reread_err, "line 2: there is no setting"));
    ck_assert_int_eq(got.max_batch, 64);
    ck_assert_str_eq(got.model, "m");
    config_fini(keys, KEYS_N, &got);
    config_live(NULL);
}
END_TEST

START_TEST(config_load_file_alone)
{
    static const char *const bad[] = {"max_batch = 0\n", "nothing = 1\n",
                                      "max_batch = 5\nmax_batch = 6\n"};
    struct settings one;
    ck_assert_int_eq(setenv("BATON_MAX_BATCH", "7", 1), 0); /* belongs to somebody else */
    ck_assert_ok(config_load_file("testd", keys, KEYS_N, &one,
                                  write_file("# a model\nmodel = /m\nmax_batch = 5\n")));
    ck_assert_str_eq(one.model, "/m");
    ck_assert_int_eq(one.max_batch, 5);
    ck_assert_int_eq(one.stall_ms, 2000);
    config_fini(keys, KEYS_N, &one);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ck_assert_int_eq(config_load_file("testd", keys, KEYS_N, &one, write_file(bad[i])),
                         STATUS_INVALID);
    ck_assert_int_eq(config_load_file("testd", keys, KEYS_N, &one, "/nowhere/at/all"),
                     STATUS_INVALID);
    unsetenv("BATON_MAX_BATCH");
}
END_TEST

START_TEST(config_set_changes_nothing_on_failure)
{
    struct settings s = {.max_batch = 5, .log_level = 1};
    char err[200] = "";
    ck_assert_int_ne(config_set(&keys[2], &s, "0", err, sizeof err), 0);
    ck_assert_int_eq(s.max_batch, 5);
    ck_assert_int_ne(config_set(&keys[8], &s, "x", err, sizeof err), 0);
    ck_assert_int_eq(s.log_level, 1);
    ck_assert_ok(config_set(&keys[0], &s, "one", err, sizeof err));
    ck_assert_int_ne(config_set(&keys[0], &s, "two\n", err, sizeof err), 0);
    ck_assert_str_eq(s.model, "one");
    ck_assert_ok(config_set(&keys[0], &s, "", err, sizeof err));
    ck_assert_ptr_null(s.model);
    ck_assert_ok(config_set(&keys[3], &s, "1T", err, sizeof err));
    ck_assert_int_eq(s.kv_memory, (int64_t)1 << 40);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("config");
    TCase *t = tcase_create("config");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, config_defaults);
    tcase_add_test(t, config_sources_in_order);
    tcase_add_test(t, config_file_syntax);
    tcase_add_test(t, config_file_long_values);
    tcase_add_loop_test(t, config_file_mistakes, 0, sizeof bad_files / sizeof bad_files[0]);
    tcase_add_test(t, config_file_is_no_text);
    tcase_add_test(t, config_arguments_mistakes);
    tcase_add_test(t, config_values_that_look_like_flags);
    tcase_add_test(t, config_print_reads_back);
    tcase_add_test(t, config_actions_that_end);
    tcase_add_test(t, config_load_file_alone);
    tcase_add_test(t, config_set_changes_nothing_on_failure);
    tcase_add_test(t, config_reread_takes_live_keys);
    tcase_add_test(t, config_reread_refuses_as_a_whole);
    suite_add_tcase(s, t);
    return s;
}
