/* service: the rule of the watchdog, the datagrams a manager gets, sockets and credentials that it
 * gives. Each test is a process of its own (Check forks), so the module is fresh in each. */
#include "common/net/service.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/harness.h"

START_TEST(service_dog_due_without_watchdog)
{
    struct service_dog d = {0};
    ck_assert(!service_dog_due(&d, 1000, 1, false));
}
END_TEST

START_TEST(service_dog_due_by_progress)
{
    struct service_dog d = {.limit_ms = 4000};
    ck_assert(service_dog_due(&d, 10, 7, true)); /* the first time always */
    ck_assert(!service_dog_due(&d, 500, 8, true));
    ck_assert(service_dog_due(&d, 1010, 8, true));
    for (uint64_t t = 2010; t < 20000; t += 100) /* work and no progress: hungry */
        ck_assert(!service_dog_due(&d, t, 8, true));
    ck_assert(service_dog_due(&d, 20000, 8, false)); /* nothing to do */
    ck_assert(service_dog_due(&d, 21000, 8, false));
    ck_assert(service_dog_due(&d, 22000, 9, true));
}
END_TEST

/* A manager's socket with an abstract name; what arrived last is in got. */
static char got[2048];

static int listen_as_manager(void)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    char name[64];
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    int n = snprintf(name, sizeof name, "@baton-test-%d", (int)getpid());
    memcpy(a.sun_path + 1, name + 1, (size_t)n - 1);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&a,
                          (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)n)),
                     0);
    setenv("NOTIFY_SOCKET", name, 1);
    return fd;
}

static const char *next(int fd)
{
    ssize_t n = recv(fd, got, sizeof got - 1, MSG_DONTWAIT);
    got[n < 0 ? 0 : n] = 0;
    return got;
}

START_TEST(service_notify_messages)
{
    int fd = listen_as_manager();
    setenv("WATCHDOG_USEC", "2000000", 1);
    service_init();
    service_reloading(); /* not ready yet: nothing to reload */
    ck_assert_str_eq(next(fd), "");
    service_starting(1500);
    ck_assert_str_eq(next(fd), "EXTEND_TIMEOUT_USEC=1500000");
    service_ready("on %s\nFDSTORE=1", "x");
    ck_assert_str_eq(next(fd), "READY=1\nSTATUS=on x FDSTORE=1");
    service_watchdog(1, 0, false);
    ck_assert_str_eq(next(fd), "WATCHDOG=1");
    service_watchdog(2, 0, false);
    ck_assert_str_eq(next(fd), "");
    service_reloading();
    ck_assert_ptr_nonnull(strstr(next(fd), "RELOADING=1\nMONOTONIC_USEC="));
    service_stopping();
    ck_assert_ptr_nonnull(strstr(next(fd), "STOPPING=1"));
    close(fd);
    service_ready("nobody listens: no harm");
}
END_TEST

START_TEST(service_without_manager)
{
    char path[64];
    unsetenv("NOTIFY_SOCKET");
    unsetenv("LISTEN_FDS");
    unsetenv("CREDENTIALS_DIRECTORY");
    service_init();
    service_ready("x");
    service_watchdog(1, 0, false);
    ck_assert_int_eq(service_socket("api"), -1);
    ck_assert(!service_credential("x", path, sizeof path));
}
END_TEST

/* In a child, because the numbers from 3 on are taken here: what it makes of the sockets that it is
 * given as "admin" (3) and "api" (4). */
static int ask_for_sockets(const char *pid)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    ck_assert_int_eq(listen(fd, 1), 0);
    pid_t child = fork();
    if (child == 0) {
        char own[32];
        snprintf(own, sizeof own, "%d", (int)getpid());
        if (fd == 3 || fd == 4)
            fd = dup(dup(fd));
        dup2(fd, 3);
        dup2(fd, 4);
        setenv("LISTEN_PID", pid ? pid : own, 1);
        setenv("LISTEN_FDS", "2", 1);
        setenv("LISTEN_FDNAMES", "admin:api", 1);
        service_init();
        int api = service_socket("api"), again = service_socket("api");
        int other = service_socket("other"), admin = service_socket("admin");
        if (getenv("LISTEN_FDS")) /* children would inherit the claim */
            _exit(9);
        _exit(api == 4 && again == -1 && other == -1 && admin == 3 ? 1
              : api == -1 && admin == -1                           ? 2
                                                                   : 3);
    }
    int status = 0;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    close(fd);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

START_TEST(service_socket_by_name)
{
    ck_assert_int_eq(ask_for_sockets(NULL), 1);
}
END_TEST

START_TEST(service_socket_of_another_process)
{
    ck_assert_int_eq(ask_for_sockets("1"), 2);
}
END_TEST

START_TEST(service_secret_order)
{
    char dir[] = "/tmp/baton-test-XXXXXX", path[256], out[256];
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/baton.cluster_key", dir);
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fclose(f);
    setenv("CREDENTIALS_DIRECTORY", dir, 1);
    service_init();
    ck_assert_str_eq(service_secret("/etc/key", "baton.cluster_key", out, sizeof out), "/etc/key");
    ck_assert_str_eq(service_secret(NULL, "baton.cluster_key", out, sizeof out), path);
    ck_assert_ptr_null(service_secret("", "baton.other", out, sizeof out));
    unlink(path);
    rmdir(dir);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("service");
    TCase *c = tcase_create("service");
    tcase_add_test(c, service_dog_due_without_watchdog);
    tcase_add_test(c, service_dog_due_by_progress);
    tcase_add_test(c, service_notify_messages);
    tcase_add_test(c, service_without_manager);
    tcase_add_test(c, service_socket_by_name);
    tcase_add_test(c, service_socket_of_another_process);
    tcase_add_test(c, service_secret_order);
    suite_add_tcase(s, c);
    return s;
}
