/* xfer: two ends in one process, and a forked peer that is killed. Every wait is bounded by a
 * deadline that fails the test. */
#include "common/kv/xfer.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/fault.h"
#include "common/base/hash.h"
#include "tests/harness.h"

#define BLOCKS    64
#define BLOCK     ((size_t)64 << 10)
#define DEADLINE  10000
#define MSG_LIMIT ((size_t)1 << 20)

struct end {
    struct xfer *x;
    struct xfer_peer *peer;
    uint8_t *mem;
    /* what has happened */
    uint32_t next_message, bad_order, oversized;
    int begun, ended, ended_ok, lost, sent, sent_ok;
    bool refuse;
    uint32_t table[BLOCKS]; /* sequence block -> block of mem */
    uint64_t sums[BLOCKS];
    uint32_t sum_errors;
    struct xfer_kv last;
    bool ended_after_lost;
    bool split; /* one piece per block, also where they are neighbours */
};

static void on_message(void *arg, const uint8_t *p, size_t n)
{
    struct end *e = arg;
    uint32_t i;
    if (n < 4) {
        e->bad_order++;
        return;
    }
    memcpy(&i, p, 4);
    if (i != e->next_message++)
        e->bad_order++;
    for (size_t k = 4; k < n; k++) {
        if (p[k] != (uint8_t)(i + k))
            e->bad_order++;
    }
}

static bool on_begin(void *arg, const struct xfer_kv *h, const uint64_t *sums, size_t bytes,
                     bool copied, struct xfer_iov *iov, size_t *n_iov, void **receive)
{
    struct end *e = arg;
    if (e->refuse || h->ticket[0] != 7 || h->first + (uint64_t)h->n_blocks > BLOCKS ||
        bytes != h->n_blocks * BLOCK)
        return false;
    ck_assert_uint_ge(*n_iov, h->n_blocks);
    size_t n = 0;
    for (uint32_t i = 0; i < h->n_blocks; i++) {
        uint32_t b = e->table[h->first + i];
        e->sums[h->first + i] = sums[i];
        uint8_t *p = e->mem + b * BLOCK;
        if (n > 0 && !e->split && (uint8_t *)iov[n - 1].p + iov[n - 1].n == p)
            iov[n - 1].n += BLOCK;
        else
            iov[n++] = (struct xfer_iov){p, BLOCK};
    }
    *n_iov = n;
    e->last = *h;
    e->begun++;
    *receive = e;
    return true;
}

static void on_end(void *arg, void *receive, int status)
{
    struct end *e = arg;
    ck_assert_ptr_eq(receive, e);
    e->ended++;
    e->ended_ok += status == STATUS_OK;
    e->ended_after_lost |= e->lost > 0;
}

static void on_lost(void *arg, struct xfer_peer *peer, int status)
{
    struct end *e = arg;
    ck_assert_int_ne(status, STATUS_OK);
    e->lost++;
}

static void on_sent(void *arg, int status)
{
    struct end *e = arg;
    e->sent++;
    e->sent_ok += status == STATUS_OK;
}

static void end_open_over(struct end *e, const char *tls)
{
    static const struct xfer_callbacks cb = {on_message, on_begin, on_end, on_lost};
    struct xfer_options o = {.devices = "lo", .tls = tls, .msg_max = MSG_LIMIT};
    char err[256] = "";
    memset(e, 0, sizeof *e);
    ck_assert_msg(xfer_create(&o, &cb, e, &e->x, err, sizeof err) == 0, "%s", err);
    void *mem;
    ck_assert_ok(xfer_mem_alloc(e->x, BLOCKS * BLOCK, &mem));
    e->mem = mem;
    for (size_t i = 0; i < BLOCKS * BLOCK; i += 4096)
        ck_assert_uint_eq(e->mem[i], 0);
    for (uint32_t i = 0; i < BLOCKS; i++)
        e->table[i] = i;
}

static void end_open(struct end *e)
{
    end_open_over(e, NULL);
}

static void end_connect(struct end *e, const struct end *to)
{
    size_t n;
    const uint8_t *a = xfer_address(to->x, &n);
    ck_assert_ok(xfer_peer_open(e->x, a, n, e, &e->peer));
    ck_assert_ptr_eq(xfer_peer_arg(e->peer), e);
}

/* One turn of a loop over both ends, as a daemon's poll loop would do. */
static void turn(struct end *a, struct end *b)
{
    struct pollfd fds[2] = {{xfer_fd(a->x), POLLIN, 0}, {b ? xfer_fd(b->x) : -1, POLLIN, 0}};
    ck_assert_int_ge(poll(fds, b ? 2 : 1, 100), 0);
    if (fds[0].revents)
        xfer_progress(a->x, 64);
    if (b && fds[1].revents)
        xfer_progress(b->x, 64);
}

#define WAIT_FOR(a, b, cond)                                                                       \
    do {                                                                                           \
        uint64_t limit_ = clock_ms() + DEADLINE;                                                   \
        while (!(cond)) {                                                                          \
            ck_assert_msg(clock_ms() < limit_, "waited in vain for %s", #cond);                    \
            turn(a, b);                                                                            \
        }                                                                                          \
    } while (0)

static void fill(struct end *e)
{
    for (size_t i = 0; i < BLOCKS * BLOCK; i++)
        e->mem[i] = (uint8_t)(i * 2654435761u >> 13);
}

static int send_blocks(struct end *e, uint32_t first, uint32_t n)
{
    struct xfer_kv h = {.ticket = {7}, .instance = 1, .layer = 3, .first = first, .n_blocks = n};
    uint64_t sums[XFER_EXTENT_BLOCKS_MAX];
    for (uint32_t i = 0; i < n; i++)
        sums[i] = hash_kv(e->mem + (first + i) * BLOCK, BLOCK);
    struct xfer_iov iov = {e->mem + first * BLOCK, n * BLOCK};
    return xfer_send_kv(e->peer, &h, sums, &iov, 1, on_sent, e);
}

static void check_blocks(const struct end *from, const struct end *to, uint32_t first, uint32_t n)
{
    for (uint32_t i = first; i < first + n; i++) {
        const uint8_t *p = to->mem + to->table[i] * BLOCK;
        ck_assert_msg(memcmp(from->mem + i * BLOCK, p, BLOCK) == 0, "block %u differs", i);
        ck_assert_uint_eq(hash_kv(p, BLOCK), to->sums[i]);
    }
}

static void send_numbered(struct end *e, uint32_t i, size_t n)
{
    uint8_t *m = malloc(n);
    memcpy(m, &i, 4);
    for (size_t k = 4; k < n; k++)
        m[k] = (uint8_t)(i + k);
    ck_assert_ok(xfer_send(e->peer, m, n));
    free(m);
}

START_TEST(messages_ordered)
{
    struct end a, b;
    end_open(&a);
    end_open(&b);
    end_connect(&a, &b);
    end_connect(&b, &a);
    static const size_t sizes[] = {4, 100, 7000, 300000, 5, MSG_LIMIT, 64, 9000};
    enum { N = 160 };
    for (uint32_t i = 0; i < N; i++) {
        send_numbered(&a, i, sizes[i % 8]);
        send_numbered(&b, i, sizes[(i + 3) % 8]);
    }
    ck_assert_uint_eq(a.next_message, 0); /* nothing from inside xfer_send */
    WAIT_FOR(&a, &b, a.next_message >= N && b.next_message >= N);
    ck_assert_uint_eq(a.bad_order + b.bad_order, 0);
    ck_assert_uint_eq(xfer_stats(a.x).messages_received, N);
    xfer_destroy(a.x);
    xfer_destroy(b.x);
}
END_TEST

/* Where the first message does not fit what the transport sends at once. */
START_TEST(messages_over_shared_memory)
{
    struct end a, b;
    end_open_over(&a, "posix,self,tcp");
    end_open_over(&b, "posix,self,tcp");
    end_connect(&a, &b);
    for (uint32_t i = 0; i < 20; i++)
        send_numbered(&a, i, 100 + 1000 * i);
    fill(&a);
    ck_assert_ok(send_blocks(&a, 0, 8));
    WAIT_FOR(&a, &b, b.next_message == 20 && a.sent == 1 && b.ended == 1);
    ck_assert_uint_eq(b.bad_order, 0);
    check_blocks(&a, &b, 0, 8);
    end_connect(&b, &a);
    send_numbered(&b, 0, 64);
    WAIT_FOR(&a, &b, a.next_message == 1);
    xfer_destroy(a.x);
    xfer_destroy(b.x);
}
END_TEST

START_TEST(message_too_long_is_dropped)
{
    struct end a, b;
    end_open(&a);
    end_open(&b);
    end_connect(&a, &b);
    uint8_t *big = calloc(1, MSG_LIMIT + 1);
    ck_assert_ok(xfer_send(a.peer, big, MSG_LIMIT + 1));
    free(big);
    send_numbered(&a, 0, 50);
    WAIT_FOR(&a, &b, b.next_message == 1);
    ck_assert_uint_eq(b.bad_order, 0);
    ck_assert_uint_eq(xfer_stats(b.x).bad_messages, 1);
    xfer_destroy(a.x);
    xfer_destroy(b.x);
}
END_TEST

START_TEST(message_damaged_is_dropped)
{
    struct end a, b;
    char err[128];
    end_open(&a);
    end_open(&b);
    end_connect(&a, &b);
    ck_assert_ok(fault_arm_text("message.sent=corrupt", err, sizeof err));
    ck_assert_ok(xfer_send(a.peer, "a line of some length", 22));
    send_numbered(&a, 0, 50);
    WAIT_FOR(&a, &b, b.next_message == 1);
    ck_assert_uint_eq(b.bad_order, 0);
    ck_assert_uint_eq(xfer_stats(b.x).bad_messages, 1);
    ck_assert_ok(fault_arm_text(NULL, err, sizeof err));
    xfer_destroy(a.x);
    xfer_destroy(b.x);
}
END_TEST

START_TEST(send_bounds_the_queue)
{
    struct end a, b;
    end_open(&a);
    end_open(&b);
    end_connect(&a, &b);
    uint8_t *m = calloc(1, MSG_LIMIT);
    int rc = 0, n = 0;
    while (rc == 0 && n < 100) {
        rc = xfer_send(a.peer, m, MSG_LIMIT);
        n += rc == 0;
    }
    free(m);
    ck_assert_int_eq(rc, STATUS_FULL);
    ck_assert_int_ge(n, 64);
    xfer_destroy(a.x);
    xfer_destroy(b.x);
}
END_TEST

static void shuffle(struct end *e)
{
    for (uint32_t i = 0; i < BLOCKS; i++)
        e->table[i] = (i * 37 + 5) % BLOCKS; /* 37 and 64 are coprime: a permutation */
}

START_TEST(kv_into_scattered_blocks)
{
    struct end a, b;
    end_open(&a);
    end_open(&b);
    end_connect(&a, &b);
    fill(&a);
    shuffle(&b);
    ck_assert_ok(send_blocks(&a, 0, 64));
    ck_assert_int_eq(a.sent, 0);
    WAIT_FOR(&a, &b, a.sent == 1 && b.ended == 1);
    ck_assert_int_eq(b.ended_ok, 1);
    ck_assert_uint_eq(b.last.layer, 3);
    check_blocks(&a, &b, 0, 64);
    ck_assert_uint_eq(xfer_stats(b.x).kv_bytes_received, BLOCKS * BLOCK);
    ck_assert_uint_eq(xfer_stats(a.x).kv_bytes_sent, BLOCKS * BLOCK);
    xfer_destroy(a.x);
    xfer_destroy(b.x);
}
END_TEST

START_TEST(kv_many_extents)
{
    struct end a, b;
    end_open(&a);
    end_open(&b);
    end_connect(&a, &b);
    fill(&a);
    for (int round = 0; round < 8; round++) {
        memset(b.mem, 0, BLOCKS * BLOCK);
        b.split = round & 1;
        if (round & 2)
            shuffle(&b);
        static const uint32_t cuts[] = {0, 1, 3, 16, 17, 40, 64};
        for (int i = 0; i < 6; i++)
            ck_assert_ok(send_blocks(&a, cuts[i], cuts[i + 1] - cuts[i]));
        WAIT_FOR(&a, &b, a.sent == 6 * (round + 1) && b.ended == 6 * (round + 1));
        check_blocks(&a, &b, 0, 64);
    }
    ck_assert_int_eq(b.ended_ok, b.ended);
    ck_assert_uint_eq(xfer_stats(b.x).receives_in_flight, 0);
    ck_assert_uint_eq(xfer_stats(a.x).sends_in_flight, 0);
    xfer_destroy(a.x);
    xfer_destroy(b.x);
}
END_TEST

/* Sender-side pieces, as of a prompt whose blocks are scattered; also small ones (eager). */
START_TEST(kv_gathered_from_pieces)
{
    struct end a, b;
    end_open(&a);
    end_open(&b);
    end_connect(&a, &b);
    fill(&a);
    struct xfer_kv h = {.ticket = {7}, .n_blocks = 3, .first = 10};
    uint64_t sums[3];
    struct xfer_iov iov[3];
    for (int i = 0; i < 3; i++) {
        iov[i] = (struct xfer_iov){a.mem + (20 - 5 * i) * BLOCK, BLOCK};
        sums[i] = hash_kv(iov[i].p, BLOCK);
    }
    ck_assert_ok(xfer_send_kv(a.peer, &h, sums, iov, 3, on_sent, &a));
    WAIT_FOR(&a, &b, a.sent == 1 && b.ended == 1);
    for (int i = 0; i < 3; i++) {
        ck_assert_mem_eq(b.mem + (10 + i) * BLOCK, a.mem + (20 - 5 * i) * BLOCK, BLOCK);
        ck_assert_uint_eq(b.sums[10 + i], sums[i]);
    }
    xfer_destroy(a.x);
    xfer_destroy(b.x);
}
END_TEST

START_TEST(kv_unknown_is_dropped)
{
    struct end a, b;
    end_open(&a);
    end_open(&b);
    end_connect(&a, &b);
    fill(&a);
    b.refuse = true;
    ck_assert_ok(send_blocks(&a, 0, 8));
    send_numbered(&a, 0, 8);
    WAIT_FOR(&a, &b, a.sent == 1 && b.next_message == 1 && xfer_stats(b.x).kv_dropped == 1);
    ck_assert_int_eq(b.begun + b.ended, 0);
    uint8_t any = 0;
    for (size_t i = 0; i < BLOCKS * BLOCK; i++)
        any |= b.mem[i];
    ck_assert_uint_eq(any, 0);
    /* the link goes on */
    b.refuse = false;
    ck_assert_ok(send_blocks(&a, 8, 8));
    WAIT_FOR(&a, &b, b.ended == 1);
    check_blocks(&a, &b, 8, 8);
    xfer_destroy(a.x);
    xfer_destroy(b.x);
}
END_TEST

/* Headers that lie: n_blocks that does not divide the payload, an extent beyond the sequence. */
START_TEST(kv_forged_is_dropped)
{
    struct end a, b;
    end_open(&a);
    end_open(&b);
    end_connect(&a, &b);
    uint64_t sums[XFER_EXTENT_BLOCKS_MAX] = {0};
    const struct xfer_kv forged[] = {
        {.ticket = {7}, .first = 0, .n_blocks = 3},          /* 64 KiB does not divide by 3 */
        {.ticket = {7}, .first = 0, .n_blocks = 4},          /* blocks of another size */
        {.ticket = {7}, .first = UINT32_MAX, .n_blocks = 1}, /* wraps */
        {.ticket = {7}, .first = BLOCKS, .n_blocks = 1},
        {.ticket = {8}, .first = 0, .n_blocks = 1},
    };
    int n = sizeof forged / sizeof *forged;
    for (int i = 0; i < n; i++) {
        struct xfer_iov iov = {a.mem, BLOCK};
        ck_assert_ok(xfer_send_kv(a.peer, &forged[i], sums, &iov, 1, on_sent, &a));
        iov.n = 96; /* the eager way */
        ck_assert_ok(xfer_send_kv(a.peer, &forged[i], sums, &iov, 1, on_sent, &a));
    }
    WAIT_FOR(&a, &b, a.sent == 2 * n && xfer_stats(b.x).kv_dropped == (uint64_t)(2 * n));
    ck_assert_int_eq(b.begun, 0);
    xfer_destroy(a.x);
    xfer_destroy(b.x);
}
END_TEST

START_TEST(close_with_sends_in_flight)
{
    struct end a, b;
    end_open(&a);
    end_open(&b);
    end_connect(&a, &b);
    end_connect(&b, &a);
    fill(&a);
    send_numbered(&a, 0, 16);
    WAIT_FOR(&a, &b, b.next_message == 1);
    for (int i = 0; i < 20; i++)
        ck_assert_ok(send_blocks(&a, 0, 64));
    for (int i = 0; i < 3; i++) /* some of it is on its way */
        turn(&a, &b);
    xfer_peer_close(a.peer);
    WAIT_FOR(&a, &b, a.sent == 20);
    ck_assert_int_lt(a.sent_ok, 20);
    ck_assert_int_eq(a.lost, 0);
    WAIT_FOR(&a, &b, b.lost == 1 && b.ended == b.begun);
    ck_assert_uint_eq(xfer_stats(b.x).receives_in_flight, 0);
    ck_assert_int_eq(xfer_send(b.peer, "x", 1), STATUS_CLOSED);
    xfer_peer_close(b.peer);
    xfer_destroy(a.x);
    xfer_destroy(b.x);
}
END_TEST

START_TEST(close_ends_receives)
{
    struct end a, b;
    end_open(&a);
    end_open(&b);
    end_connect(&a, &b);
    end_connect(&b, &a);
    fill(&a);
    send_numbered(&a, 0, 16);
    send_numbered(&b, 0, 16);
    WAIT_FOR(&a, &b, b.next_message == 1 && a.next_message == 1);
    for (int i = 0; i < 20; i++)
        ck_assert_ok(send_blocks(&a, 0, 64));
    WAIT_FOR(&a, &b, b.begun > b.ended); /* the sender stops here */
    xfer_peer_close(b.peer);
    WAIT_FOR(&b, NULL, b.ended == b.begun);
    ck_assert_uint_eq(xfer_stats(b.x).receives_in_flight, 0);
    xfer_destroy(b.x);
    WAIT_FOR(&a, NULL, a.sent == 20 && a.lost == 1);
    xfer_destroy(a.x);
}
END_TEST

START_TEST(destroy_ends_everything)
{
    struct end a, b;
    end_open(&a);
    end_open(&b);
    end_connect(&a, &b);
    fill(&a);
    for (int i = 0; i < 10; i++)
        ck_assert_ok(send_blocks(&a, 0, 64));
    WAIT_FOR(&a, &b, b.begun > 0);
    xfer_destroy(a.x);
    ck_assert_int_eq(a.sent, 10);
    xfer_destroy(b.x);
    ck_assert_int_eq(b.ended, b.begun);
}
END_TEST

static void exchange(int fd, struct end *e)
{
    size_t n, m;
    const uint8_t *a = xfer_address(e->x, &n);
    ck_assert_int_eq(write(fd, &n, sizeof n), sizeof n);
    ck_assert_int_eq(write(fd, a, n), (ssize_t)n);
    ck_assert_int_eq(recv(fd, &m, sizeof m, MSG_WAITALL), sizeof m);
    uint8_t *b = malloc(m);
    ck_assert_int_eq(recv(fd, b, m, MSG_WAITALL), (ssize_t)m);
    ck_assert_ok(xfer_peer_open(e->x, b, m, e, &e->peer));
    free(b);
}

/* Starts a peer that sends 64-block messages for ever, or receives them, until it is killed. */
static pid_t peer_process(struct end *e, bool peer_sends)
{
    int sv[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, sv), 0);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        struct end c;
        end_open(&c);
        exchange(sv[1], &c);
        send_numbered(&c, 0, 8);
        for (uint64_t limit = clock_ms() + 2 * DEADLINE; clock_ms() < limit;) {
            while (peer_sends && c.begun < 4 && xfer_stats(c.x).sends_in_flight < 8) {
                if (send_blocks(&c, 0, 64) != 0)
                    _exit(2);
            }
            turn(&c, NULL);
        }
        _exit(1);
    }
    close(sv[1]);
    end_open(e);
    exchange(sv[0], e);
    close(sv[0]);
    send_numbered(e, 0, 8);
    return pid;
}

START_TEST(peer_killed_while_it_sends)
{
    struct end b;
    pid_t pid = peer_process(&b, true);
    WAIT_FOR(&b, NULL, b.begun > 3 && b.begun > b.ended);
    kill(pid, SIGKILL);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    uint64_t t = clock_ms();
    WAIT_FOR(&b, NULL, b.lost == 1 && b.ended == b.begun);
    ck_assert_uint_lt(clock_ms() - t, 3000);
    ck_assert(!b.ended_after_lost);
    ck_assert_uint_eq(xfer_stats(b.x).receives_in_flight, 0);
    xfer_peer_close(b.peer);
    xfer_destroy(b.x);
}
END_TEST

/* Peers that die within their first few turns, in the middle of getting to know each other. */
START_TEST(peer_killed_at_first_contact)
{
    enum { PEERS = 24 };
    struct end b;
    int fds[PEERS];
    pid_t pids[PEERS];
    for (int i = 0; i < PEERS; i++) {
        int sv[2];
        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, sv), 0);
        pids[i] = fork();
        ck_assert_int_ge(pids[i], 0);
        fds[i] = sv[0];
        if (pids[i] == 0) {
            struct end c;
            uint8_t address[4096];
            close(sv[0]);
            ssize_t n = recv(sv[1], address, sizeof address, 0);
            if (n <= 0)
                _exit(0);
            end_open(&c);
            ck_assert_ok(xfer_peer_open(c.x, address, (size_t)n, &c, &c.peer));
            send_numbered(&c, 0, 64);
            for (int turns = 0; turns < i % 12; turns++)
                turn(&c, NULL);
            kill(getpid(), SIGKILL);
        }
        close(sv[1]);
    }
    end_open(&b);
    for (int i = 0; i < PEERS; i++) {
        size_t n;
        const uint8_t *address = xfer_address(b.x, &n);
        ck_assert_int_eq(send(fds[i], address, n, 0), (ssize_t)n);
        uint64_t limit = clock_ms() + DEADLINE;
        while (waitpid(pids[i], NULL, WNOHANG) == 0) {
            ck_assert_msg(clock_ms() < limit, "peer %d does not end", i);
            if (i % 2) /* else everything comes at once, and after its death */
                turn(&b, NULL);
        }
        struct pollfd fd = {xfer_fd(b.x), POLLIN, 0};
        for (int turns = 0; turns < 20 && poll(&fd, 1, 10) > 0; turns++)
            xfer_progress(b.x, 64);
        b.next_message = 0;
        close(fds[i]);
    }
    xfer_destroy(b.x);
}
END_TEST

START_TEST(peer_killed_while_it_receives)
{
    struct end a;
    pid_t pid = peer_process(&a, false);
    fill(&a);
    WAIT_FOR(&a, NULL, a.next_message == 1);
    for (int i = 0; i < 16; i++)
        ck_assert_ok(send_blocks(&a, 0, 64));
    WAIT_FOR(&a, NULL, a.sent > 2);
    kill(pid, SIGKILL);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    WAIT_FOR(&a, NULL, a.lost == 1);
    int accepted = 16;
    if (send_blocks(&a, 0, 64) == 0)
        accepted++; /* STATUS_CLOSED is the rule; what is accepted must end */
    xfer_peer_close(a.peer);
    WAIT_FOR(&a, NULL, a.sent == accepted);
    ck_assert_uint_eq(xfer_stats(a.x).sends_in_flight, 0);
    xfer_destroy(a.x);
}
END_TEST

/* A worker that comes back has a new address; the old endpoint's end does not disturb the new. */
START_TEST(peer_reopened)
{
    struct end a, b, c;
    end_open(&a);
    end_open(&b);
    end_connect(&a, &b);
    fill(&a);
    ck_assert_ok(send_blocks(&a, 0, 4));
    WAIT_FOR(&a, &b, a.sent == 1 && b.ended == 1);
    xfer_destroy(b.x);
    WAIT_FOR(&a, NULL, a.lost == 1);
    xfer_peer_close(a.peer);
    end_open(&c);
    end_connect(&a, &c);
    ck_assert_ok(send_blocks(&a, 0, 4));
    WAIT_FOR(&a, &c, a.sent == 2 && c.ended == 1);
    check_blocks(&a, &c, 0, 4);
    xfer_destroy(a.x);
    xfer_destroy(c.x);
}
END_TEST

START_TEST(open_refuses_rubbish)
{
    struct end a;
    end_open(&a);
    struct xfer_peer *p;
    ck_assert_int_eq(xfer_peer_open(a.x, (const uint8_t *)"", 0, NULL, &p), STATUS_INVALID);
    struct xfer_options o = {.devices = "nosuchdevice9", .tls = "tcp"};
    static const struct xfer_callbacks cb = {on_message, on_begin, on_end, on_lost};
    struct xfer *x;
    char err[256] = "";
    ck_assert_int_ne(xfer_create(&o, &cb, NULL, &x, err, sizeof err), 0);
    ck_assert_int_gt(strlen(err), 10);
    xfer_destroy(a.x);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("kv/xfer");
    TCase *t = tcase_create("xfer");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, messages_ordered);
    tcase_add_test(t, messages_over_shared_memory);
    tcase_add_test(t, message_too_long_is_dropped);
    tcase_add_test(t, message_damaged_is_dropped);
    tcase_add_test(t, send_bounds_the_queue);
    tcase_add_test(t, kv_into_scattered_blocks);
    tcase_add_test(t, kv_many_extents);
    tcase_add_test(t, kv_gathered_from_pieces);
    tcase_add_test(t, kv_unknown_is_dropped);
    tcase_add_test(t, kv_forged_is_dropped);
    tcase_add_test(t, close_with_sends_in_flight);
    tcase_add_test(t, close_ends_receives);
    tcase_add_test(t, destroy_ends_everything);
    tcase_add_test(t, peer_killed_at_first_contact);
    tcase_add_test(t, peer_killed_while_it_sends);
    tcase_add_test(t, peer_killed_while_it_receives);
    tcase_add_test(t, peer_reopened);
    tcase_add_test(t, open_refuses_rubbish);
    suite_add_tcase(s, t);
    return s;
}
