/* net_test: what the tests of common/net share: running a loop until a condition holds, and plain
 * blocking sockets on which a test plays the other side byte by byte. */
#ifndef BATON_TESTS_NET_TEST_H
#define BATON_TESTS_NET_TEST_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/net/loop.h"
#include "tests/harness.h"

#define UNUSED __attribute__((unused)) /* not every test file uses everything here */

struct until {
    struct loop *loop;
    bool (*done)(void *arg);
    void *arg;
    uint64_t deadline_ms;
    bool timed_out;
};

static void until_tick(void *arg)
{
    struct until *u = arg;
    u->timed_out = clock_ms() > u->deadline_ms;
    if (u->timed_out || u->done(u->arg))
        loop_stop(u->loop);
}

/* Runs the loop until done(arg), looked at every millisecond; the test fails after 10 s. */
#define run_until(loop, done, arg) ck_assert_msg(run_until_quiet(loop, done, arg, 10000), #done)

UNUSED static bool run_until_quiet(struct loop *l, bool (*done)(void *), void *arg,
                                   uint64_t limit_ms)
{
    struct until u = {l, done, arg, clock_ms() + limit_ms, false};
    struct loop_timer *t;
    ck_assert_ok(loop_timer_create(l, until_tick, &u, &t));
    loop_timer_start(t, 0, 1);
    loop_run(l);
    loop_timer_free(t);
    return !u.timed_out;
}

/* A non-blocking client socket to "127.0.0.1:port". */
UNUSED static int dial(const char *address)
{
    struct sockaddr_in sa = {.sin_family = AF_INET};
    sa.sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1));
    sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&sa, sizeof sa), 0);
    ck_assert_int_eq(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    return fd;
}

/* A server's socket on a free port of 127.0.0.1, and which port that is. */
UNUSED static int listen_local(uint16_t *port)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof sa;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&sa, sizeof sa), 0);
    ck_assert_int_eq(listen(fd, 8), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&sa, &len), 0);
    *port = ntohs(sa.sin_port);
    return fd;
}

#endif
