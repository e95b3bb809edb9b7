/* fault: entries, counting, names, actions in a child, and the file that is read again. */
#include "common/base/fault.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "tests/harness.h"

static void arm(const char *text)
{
    char err[256] = "";
    ck_assert_msg(fault_arm_text(text, err, sizeof err) == STATUS_OK, "%s", err);
}

START_TEST(fault_unarmed_does_nothing)
{
    arm(NULL);
    ck_assert(!atomic_load(&fault_armed));
    ck_assert_int_eq(fault("a.b"), FAULT_NONE);
    ck_assert_int_eq(fault_message("HANDOFF", "sent"), FAULT_NONE);
    ck_assert_uint_eq(fault_number("n", 7), 7);
    arm("");
    ck_assert(!atomic_load(&fault_armed));
}
END_TEST

START_TEST(fault_counts_hits)
{
    arm("a=drop,b@3=fail,c@2+3=corrupt,HANDOFF.sent=refuse,n@2=set:9");
    for (int i = 1; i <= 9; i++) {
        ck_assert_int_eq(fault("a"), i == 1 ? FAULT_DROP : FAULT_NONE);
        ck_assert_int_eq(fault("b"), i == 3 ? FAULT_FAIL : FAULT_NONE);
        ck_assert_int_eq(fault("c"), i % 3 == 2 ? FAULT_CORRUPT : FAULT_NONE);
        ck_assert_uint_eq(fault_number("n", 1), i == 2 ? 9 : 1);
    }
    ck_assert_int_eq(fault_message("HANDOFF", "received"), FAULT_NONE);
    ck_assert_int_eq(fault_message("HANDOFF", "sent"), FAULT_REFUSE);
    ck_assert_int_eq(fault("unknown"), FAULT_NONE);
}
END_TEST

START_TEST(fault_names_a_process)
{
    log_set_name("decoded-1");
    arm("decoded-1/x@1+1=drop,decoded-2/y@1+1=drop");
    ck_assert_int_eq(fault("x"), FAULT_DROP);
    ck_assert_int_eq(fault("y"), FAULT_NONE);
    log_set_name("decoded-2");
    ck_assert_int_eq(fault("x"), FAULT_NONE);
    ck_assert_int_eq(fault("y"), FAULT_DROP);
}
END_TEST

static const char *const wrong[] = {"a",       "=kill",    "a=",       "a=boom",     "a=delay",
                                    "a=kill:", "a=kill:5", "a@=kill",  "a@0=kill",   "a@x=kill",
                                    "a@1+=x",  "/a=kill",  "a=set:1x", "a=drop,b@y", "n=set"};

START_TEST(fault_refuses_nonsense)
{
    char err[256] = "";
    ck_assert_int_eq(fault_arm_text(wrong[_i], err, sizeof err), STATUS_INVALID);
    ck_assert(*err);
}
END_TEST

/* The wait status of a child that hits the point twice. */
static int child(const char *text)
{
    int status;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        arm(text);
        fault("p");
        fault("p");
        _exit(42);
    }
    ck_assert_int_eq(waitpid(pid, &status, WUNTRACED), pid);
    if (WIFSTOPPED(status)) {
        kill(pid, SIGCONT);
        int rest;
        ck_assert_int_eq(waitpid(pid, &rest, 0), pid);
        ck_assert(WIFEXITED(rest) && WEXITSTATUS(rest) == 42);
    }
    return status;
}

START_TEST(fault_acts_on_the_process)
{
    int s = child("p@2=kill");
    ck_assert(WIFSIGNALED(s) && WTERMSIG(s) == SIGKILL);
    s = child("p@2=exit");
    ck_assert(WIFEXITED(s) && WEXITSTATUS(s) == EXIT_FAILURE);
    s = child("p@2=stop");
    ck_assert(WIFSTOPPED(s) && WSTOPSIG(s) == SIGSTOP);
    s = child("p@3=kill");
    ck_assert(WIFEXITED(s) && WEXITSTATUS(s) == 42);
    uint64_t begin = clock_ms();
    s = child("p=delay:60");
    ck_assert(WIFEXITED(s) && clock_ms() - begin >= 60);
}
END_TEST

static void write_file(const char *path, const char *text)
{
    char fresh[64];
    snprintf(fresh, sizeof fresh, "%s.new", path);
    FILE *f = fopen(fresh, "w");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    fclose(f);
    ck_assert_int_eq(rename(fresh, path), 0);
}

START_TEST(fault_follows_its_file)
{
    char path[32] = "/tmp/test_fault_XXXXXX", spec[40];
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    close(fd);
    snprintf(spec, sizeof spec, "@%s", path);
    arm(spec);
    ck_assert_int_eq(fault("a"), FAULT_NONE);
    write_file(path, "a@2=drop\nb=fail\n");
    ck_assert_int_eq(fault("a"), FAULT_NONE);
    ck_assert_int_eq(fault("a"), FAULT_DROP);
    ck_assert_int_eq(fault("b"), FAULT_FAIL);
    write_file(path, "a@2=fail"); /* counted anew */
    ck_assert_int_eq(fault("a"), FAULT_NONE);
    ck_assert_int_eq(fault("a"), FAULT_FAIL);
    ck_assert_int_eq(fault("b"), FAULT_NONE);
    unlink(path);
    ck_assert_int_eq(fault("a"), FAULT_NONE);
    ck_assert_int_eq(fault("a"), FAULT_NONE);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("fault");
    TCase *t = tcase_create("fault");
    tcase_add_test(t, fault_unarmed_does_nothing);
    tcase_add_test(t, fault_counts_hits);
    tcase_add_test(t, fault_names_a_process);
    tcase_add_loop_test(t, fault_refuses_nonsense, 0, sizeof wrong / sizeof *wrong);
    tcase_add_test(t, fault_acts_on_the_process);
    tcase_add_test(t, fault_follows_its_file);
    suite_add_tcase(s, t);
    return s;
}
