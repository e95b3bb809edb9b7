/* Links over loopback: both sides are real links, or one side is a plain socket that misbehaves. */
#include "common/net/link.h"

#include "common/base/rng.h"
#include "common/net/wire.h"
#include "common/proto/proto.h"
#include "tests/net/net_test.h"

struct side {
    struct link *link; /* the last one that came up, or the connecting one */
    int up, down, silent, heard, hellos, messages, heartbeats;
    int down_status;
    char why[256];
    const char *refuse; /* hello() says no with this */
    uint64_t next;      /* progress that the next message must carry */
    bool close_in_up, close_in_message, close_in_hello, close_in_down;
};

struct pair {
    struct loop *loop;
    struct link_listener *listener;
    struct link *router;
    struct side r, w; /* connecting and accepting side */
    struct link_options options;
    struct proto_hello router_hello, worker_hello;
};
static struct pair t;

static int on_hello(void *arg, struct link *l, const struct proto_hello *h, char *why,
                    size_t whylen)
{
    struct side *s = arg;
    s->hellos++;
    if (s->close_in_hello) {
        link_close(l);
        return STATUS_OK;
    }
    if (!s->refuse)
        return STATUS_OK;
    snprintf(why, whylen, "%s", s->refuse);
    return STATUS_MISMATCH;
}

static void on_up(void *arg, struct link *l)
{
    struct side *s = arg;
    s->up++;
    s->link = l;
    ck_assert(link_is_up(l));
    if (s->close_in_up) {
        link_close(l);
        s->link = NULL;
    }
}

static void on_message(void *arg, struct link *l, const struct proto_msg *m)
{
    struct side *s = arg;
    ck_assert_int_eq(m->type, PROTO_CANCEL);
    ck_assert_uint_eq(m->cancel.request.counter, s->next);
    s->next++;
    s->messages++;
    if (s->close_in_message) {
        link_close(l);
        s->link = NULL;
    }
}

static void on_heartbeat(void *arg, struct link *l, const struct proto_heartbeat *h)
{
    struct side *s = arg;
    ck_assert_uint_eq(h->credits, 77);
    s->heartbeats++;
}

static void fill_heartbeat(void *arg, struct link *l, struct proto_heartbeat *h)
{
    h->credits = 77;
}

static void on_silent(void *arg, struct link *l, bool silent)
{
    struct side *s = arg;
    if (silent)
        s->silent++;
    else
        s->heard++;
}

static void on_down(void *arg, struct link *l, int status, const char *why)
{
    struct side *s = arg;
    s->down++;
    s->down_status = status;
    snprintf(s->why, sizeof s->why, "%s", why);
    ck_assert(!link_is_up(l));
    if (s->close_in_down)
        link_close(l);
    if (s == &t.w)
        s->link = NULL;
}

static const struct link_callbacks callbacks = {.hello = on_hello,
                                                .up = on_up,
                                                .message = on_message,
                                                .heartbeat = on_heartbeat,
                                                .fill_heartbeat = fill_heartbeat,
                                                .silent = on_silent,
                                                .down = on_down};

static struct proto_bytes text(const char *s)
{
    return (struct proto_bytes){s, strlen(s)};
}

static void setup(void)
{
    memset(&t, 0, sizeof t);
    ck_assert_ok(loop_create(&t.loop));
    t.options =
        (struct link_options){.heartbeat_ms = 10, .reconnect_min_ms = 2, .reconnect_max_ms = 10};
    t.router_hello =
        (struct proto_hello){.instance = 1, .role = PROTO_ROUTER, .name = text("routerd-1")};
    t.worker_hello = (struct proto_hello){
        .instance = 2, .role = PROTO_DECODE_WORKER, .name = text("decoded-1"), .kv_blocks = 99};
}

static void teardown(void)
{
    loop_destroy(t.loop);
}

static void listen_on(const char *address)
{
    char err[256] = "";
    ck_assert_msg(link_listen(t.loop, address, &t.worker_hello, &t.options, &callbacks, &t.w,
                              &t.listener, err, sizeof err) == STATUS_OK,
                  "%s", err);
}

static void connect_to(const char *address)
{
    char err[256] = "";
    ck_assert_msg(link_connect(t.loop, address, &t.router_hello, &t.options, &callbacks, &t.r,
                               &t.router, err, sizeof err) == STATUS_OK,
                  "%s", err);
    t.r.link = t.router;
}

static bool both_up(void *arg)
{
    return t.r.up > t.r.down && t.w.up > t.w.down;
}
static bool router_down(void *arg)
{
    return t.r.down;
}
static bool worker_down(void *arg)
{
    return t.w.down;
}
static bool router_failed(void *arg)
{
    return t.router && link_last_error(t.router)[0];
}

static void start_pair(void)
{
    listen_on("127.0.0.1:0");
    connect_to(link_listener_address(t.listener));
    ck_assert(!link_is_up(t.router)); /* no callback from inside link_connect */
    ck_assert_int_eq(t.r.up, 0);
    run_until(t.loop, both_up, NULL);
}

static int send_number(struct link *l, uint64_t n)
{
    struct proto_msg m = {.type = PROTO_CANCEL};
    m.cancel.request.counter = n;
    return link_send(l, &m);
}

static bool all_arrived(void *arg)
{
    return t.r.messages == 10000 && t.w.messages == 10000;
}

START_TEST(link_both_directions_in_order)
{
    start_pair();
    ck_assert_uint_eq(link_peer(t.router)->kv_blocks, 99);
    ck_assert_int_eq(memcmp(link_peer(t.w.link)->name.p, "routerd-1", 9), 0);
    for (uint64_t i = 0; i < 10000; i++) {
        ck_assert_ok(send_number(t.r.link, i));
        ck_assert_ok(send_number(t.w.link, i));
    }
    ck_assert_int_eq(t.w.messages, 0); /* nor from inside link_send */
    ck_assert_uint_gt(link_queued(t.router), 0);
    run_until(t.loop, all_arrived, NULL);
    ck_assert_uint_eq(link_queued(t.router), 0);
    ck_assert_int_eq(t.r.hellos, 1);
    ck_assert_int_eq(t.w.hellos, 1);
}
END_TEST

static bool beats(void *arg)
{
    return t.r.heartbeats > 3 && t.w.heartbeats > 3;
}

START_TEST(link_heartbeats_flow)
{
    start_pair();
    run_until(t.loop, beats, NULL);
    ck_assert_int_eq(t.r.silent + t.w.silent, 0);
}
END_TEST

START_TEST(link_refused_by_worker)
{
    t.w.refuse = "another model";
    listen_on("127.0.0.1:0");
    connect_to(link_listener_address(t.listener));
    run_until(t.loop, router_failed, NULL);
    ck_assert_ptr_nonnull(strstr(link_last_error(t.router), "another model"));
    ck_assert_int_eq(t.r.up + t.w.up + t.r.down + t.w.down, 0);
}
END_TEST

static bool worker_heard_three(void *arg)
{
    return t.w.hellos >= 3;
}

START_TEST(link_refused_by_router)
{
    t.r.refuse = "not in my list";
    listen_on("127.0.0.1:0");
    connect_to(link_listener_address(t.listener));
    run_until(t.loop, worker_heard_three, NULL); /* it tries again */
    ck_assert_ptr_nonnull(strstr(link_last_error(t.router), "not in my list"));
    ck_assert_int_eq(t.r.up + t.w.up + t.r.down + t.w.down, 0);
}
END_TEST

static void set_key(const char *key)
{
    t.options.key.n = (uint32_t)strlen(key);
    memcpy(t.options.key.key, key, t.options.key.n);
}

/* Every pair of keys that differ is refused, by whichever side notices; equal ones work. */
START_TEST(link_keys)
{
    static const char *const keys[][2] = {{"0123456789abcdef", "0123456789abcdef"},
                                          {"0123456789abcdef", "0123456789abcdeF"},
                                          {"", "0123456789abcdef"},
                                          {"0123456789abcdef", ""}};
    set_key(keys[_i][0]);
    listen_on("127.0.0.1:0");
    set_key(keys[_i][1]);
    connect_to(link_listener_address(t.listener));
    run_until(t.loop, _i == 0 ? both_up : router_failed, NULL);
    if (_i == 0)
        return;
    ck_assert_ptr_nonnull(strstr(link_last_error(t.router), "cluster keys differ"));
    ck_assert_int_eq(t.r.up + t.w.up + t.r.hellos + t.w.hellos, 0);
}
END_TEST

START_TEST(link_versions)
{
    static const struct {
        uint32_t rmin, rmax, wmin, wmax;
        bool ok;
    } cases[] = {{1, 1, 1, 1, true},  {1, 2, 2, 3, true},  {2, 3, 1, 2, true},
                 {1, 1, 2, 3, false}, {4, 5, 2, 3, false}, {1, 9, 3, 4, true}};
    t.router_hello.version_min = cases[_i].rmin;
    t.router_hello.version_max = cases[_i].rmax;
    t.worker_hello.version_min = cases[_i].wmin;
    t.worker_hello.version_max = cases[_i].wmax;
    listen_on("127.0.0.1:0");
    connect_to(link_listener_address(t.listener));
    run_until(t.loop, cases[_i].ok ? both_up : router_failed, NULL);
    if (!cases[_i].ok)
        ck_assert_ptr_nonnull(strstr(link_last_error(t.router), "do not overlap"));
}
END_TEST

START_TEST(link_to_itself)
{
    t.router_hello.instance = t.worker_hello.instance;
    listen_on("127.0.0.1:0");
    connect_to(link_listener_address(t.listener));
    run_until(t.loop, router_failed, NULL);
    ck_assert_ptr_nonnull(strstr(link_last_error(t.router), "itself"));
}
END_TEST

START_TEST(link_listen_refusals)
{
    char err[256] = "";
    struct link_listener *l;
    static const struct {
        const char *address;
        int status;
        const char *hint;
    } cases[] = {
        {"0.0.0.0:0", STATUS_AUTH, "cluster_key_file"}, {"[::]:0", STATUS_AUTH, "cluster_key"},
        {":8080", STATUS_INVALID, "host is missing"},   {"127.0.0.1", STATUS_INVALID, "port"},
        {"::1:80", STATUS_INVALID, "[address]:port"},   {"127.0.0.1:x", STATUS_INVALID, "65535"},
        {"127.0.0.1:65536", STATUS_INVALID, "65535"},
    };
    ck_assert_int_eq(link_listen(t.loop, cases[_i].address, &t.worker_hello, &t.options, &callbacks,
                                 &t.w, &l, err, sizeof err),
                     cases[_i].status);
    ck_assert_msg(strstr(err, cases[_i].hint), "%s", err);
}
END_TEST

START_TEST(link_address_in_use)
{
    char err[256] = "";
    struct link_listener *l;
    listen_on("127.0.0.1:0");
    ck_assert_int_ne(link_listen(t.loop, link_listener_address(t.listener), &t.worker_hello,
                                 &t.options, &callbacks, &t.w, &l, err, sizeof err),
                     STATUS_OK);
    ck_assert_msg(strstr(err, "in use"), "%s", err);
}
END_TEST

START_TEST(link_reconnects)
{
    start_pair();
    link_close(t.w.link); /* the accepted side goes: no callback there, the router comes back */
    t.w.up = 0;
    run_until(t.loop, router_down, NULL);
    ck_assert_int_eq(t.r.down_status, STATUS_CLOSED);
    ck_assert_int_eq(send_number(t.router, 0), STATUS_CLOSED);
    run_until(t.loop, both_up, NULL);
    ck_assert_int_eq(t.r.up, 2);
    ck_assert_int_eq(t.w.down, 0);
}
END_TEST

static bool up_again(void *arg)
{
    return t.r.up == 2;
}

/* A worker that starts after the router, and one that is replaced on the same address. */
START_TEST(link_waits_for_the_listener)
{
    char address[64];
    listen_on("127.0.0.1:0");
    snprintf(address, sizeof address, "%s", link_listener_address(t.listener));
    link_listener_close(t.listener);
    connect_to(address);
    run_until(t.loop, router_failed, NULL);
    ck_assert_ptr_nonnull(strstr(link_last_error(t.router), "refused"));
    listen_on(address);
    run_until(t.loop, both_up, NULL);
    ck_assert_str_eq(link_last_error(t.router), "");
    link_listener_close(t.listener); /* accepted links stay */
    ck_assert_ok(send_number(t.router, 0));
    struct link *old = t.w.link;
    t.worker_hello.instance = 3;
    listen_on(address);
    link_close(old);
    run_until(t.loop, up_again, NULL);
    ck_assert_uint_eq(link_peer(t.router)->instance, 3);
}
END_TEST

/* What was sent just before link_close still arrives. */
START_TEST(link_close_sends_what_is_queued)
{
    start_pair();
    for (uint64_t i = 0; i < 1000; i++)
        ck_assert_ok(send_number(t.router, i));
    link_close(t.router);
    t.router = NULL;
    run_until(t.loop, worker_down, NULL);
    ck_assert_int_eq(t.w.messages, 1000);
}
END_TEST

START_TEST(link_close_of_the_router_is_noticed)
{
    start_pair();
    link_close(t.router);
    t.router = NULL;
    run_until(t.loop, worker_down, NULL);
    ck_assert_int_eq(t.w.down_status, STATUS_CLOSED);
    ck_assert_int_eq(t.r.down, 0);
}
END_TEST

static bool router_hello_seen(void *arg)
{
    return t.r.hellos;
}
static bool worker_hello_seen(void *arg)
{
    return t.w.hellos;
}
static bool router_up_seen(void *arg)
{
    return t.r.up;
}
static bool message_seen(void *arg)
{
    return t.w.messages == 1;
}

START_TEST(link_close_inside_callbacks)
{
    switch (_i) {
    case 0:
    case 1:
        t.r.close_in_hello = _i == 0;
        t.w.close_in_hello = _i == 1;
        listen_on("127.0.0.1:0");
        connect_to(link_listener_address(t.listener));
        run_until(t.loop, _i == 0 ? router_hello_seen : worker_hello_seen, NULL);
        ck_assert_int_eq(t.r.up + t.w.up, 0);
        break;
    case 2:
        t.r.close_in_up = true;
        listen_on("127.0.0.1:0");
        connect_to(link_listener_address(t.listener));
        run_until(t.loop, router_up_seen, NULL);
        run_until(t.loop, worker_down, NULL);
        ck_assert_int_eq(t.r.down, 0);
        break;
    case 3: /* the frames behind the first are not delivered any more */
        t.w.close_in_message = true;
        start_pair();
        for (uint64_t i = 0; i < 5; i++)
            ck_assert_ok(send_number(t.router, i));
        run_until(t.loop, message_seen, NULL);
        run_until(t.loop, router_down, NULL);
        ck_assert_int_eq(t.w.messages, 1);
        break;
    case 4:
        t.r.close_in_down = t.w.close_in_down = true;
        start_pair();
        link_close(t.w.link);
        run_until(t.loop, router_down, NULL);
        ck_assert_int_eq(t.r.up, 1);
        break;
    }
}
END_TEST

/* ---- a socket as the other side ---- */

static void put_frame(int fd, const void *p, size_t n)
{
    char header[WIRE_HEADER_BYTES];
    wire_header(header, p, n);
    ck_assert_int_eq(send(fd, header, sizeof header, MSG_NOSIGNAL), sizeof header);
    ck_assert_int_eq(send(fd, p, n, MSG_NOSIGNAL), (ssize_t)n);
}

static void put_message(int fd, const struct proto_msg *m)
{
    struct buf b;
    buf_init(&b, 0);
    proto_encode(&b, m);
    put_frame(fd, b.data, b.len);
    buf_fini(&b);
}

static bool socket_ended(void *arg)
{
    char c[4096];
    ssize_t n;
    while ((n = recv(*(int *)arg, c, sizeof c, 0)) > 0)
        ;
    return n == 0 || errno == ECONNRESET;
}

/* Says HELLO like a router and confirms; the worker's side is up afterwards. */
static int fake_router(void)
{
    int fd = dial(link_listener_address(t.listener));
    struct proto_msg m = {.type = PROTO_HELLO, .hello = t.router_hello};
    m.hello.version_min = m.hello.version_max = 1;
    put_message(fd, &m);
    m = (struct proto_msg){.type = PROTO_HELLO_OK};
    put_message(fd, &m);
    m = (struct proto_msg){.type = PROTO_HEARTBEAT};
    m.heartbeat.credits = 77;
    put_message(fd, &m);
    return fd;
}

static bool worker_up(void *arg)
{
    return t.w.up;
}

START_TEST(link_garbage_is_dropped)
{
    uint8_t junk[64];
    listen_on("127.0.0.1:0");
    for (int round = 0; round < 50; round++) {
        int fd = dial(link_listener_address(t.listener));
        rng_bytes(junk, sizeof junk);
        if (round % 2) /* a right header, so that the codec sees the junk */
            wire_header((char *)junk, junk + WIRE_HEADER_BYTES, sizeof junk - WIRE_HEADER_BYTES);
        ck_assert_int_eq(send(fd, junk, sizeof junk, MSG_NOSIGNAL), sizeof junk);
        shutdown(fd, SHUT_WR);
        run_until(t.loop, socket_ended, &fd);
        close(fd);
    }
    ck_assert_int_eq(t.w.up + t.w.hellos, 0);
    connect_to(link_listener_address(t.listener));
    run_until(t.loop, both_up, NULL);
}
END_TEST

START_TEST(link_oversized_frame)
{
    listen_on("127.0.0.1:0");
    int fd = fake_router();
    run_until(t.loop, worker_up, NULL);
    uint32_t header[4] = {PROTO_FRAME_MAX + 1, ~(uint32_t)(PROTO_FRAME_MAX + 1)};
    ck_assert_int_eq(send(fd, header, sizeof header, MSG_NOSIGNAL), sizeof header);
    run_until(t.loop, worker_down, NULL);
    ck_assert_int_eq(t.w.down_status, STATUS_LIMIT);
    close(fd);
}
END_TEST

/* One flipped bit, wherever it is in the frame. */
START_TEST(link_damaged_frame)
{
    struct buf b;
    listen_on("127.0.0.1:0");
    int fd = fake_router();
    run_until(t.loop, worker_up, NULL);
    buf_init(&b, 0);
    char header[WIRE_HEADER_BYTES] = {0};
    buf_append(&b, header, sizeof header);
    struct proto_msg m = {.type = PROTO_CANCEL, .cancel.request = {1, 2, 3}};
    proto_encode(&b, &m);
    wire_header(b.data, b.data + WIRE_HEADER_BYTES, b.len - WIRE_HEADER_BYTES);
    ck_assert_uint_lt((size_t)_i, b.len);
    b.data[_i] ^= (char)(1 << _i % 8);
    ck_assert_int_eq(send(fd, b.data, b.len, MSG_NOSIGNAL), (ssize_t)b.len);
    run_until(t.loop, worker_down, NULL);
    ck_assert_int_eq(t.w.down_status, STATUS_FORMAT);
    ck_assert_int_eq(t.w.messages, 0);
    buf_fini(&b);
    close(fd);
}
END_TEST

START_TEST(link_before_hello_frames_are_small)
{
    listen_on("127.0.0.1:0");
    int fd = dial(link_listener_address(t.listener));
    uint32_t header[4] = {1 << 20, ~(1u << 20)};
    ck_assert_int_eq(send(fd, header, sizeof header, MSG_NOSIGNAL), sizeof header);
    run_until(t.loop, socket_ended, &fd);
    close(fd);
}
END_TEST

START_TEST(link_malformed_message)
{
    listen_on("127.0.0.1:0");
    int fd = fake_router();
    run_until(t.loop, worker_up, NULL);
    put_frame(fd, "\x81\xa1t\x90", 4); /* {"t": []} */
    run_until(t.loop, worker_down, NULL);
    ck_assert_int_eq(t.w.down_status, STATUS_FORMAT);
    close(fd);
}
END_TEST

static bool beats_at_worker(void *arg)
{
    return t.w.heartbeats >= 2;
}

START_TEST(link_unknown_message_is_ignored)
{
    listen_on("127.0.0.1:0");
    int fd = fake_router();
    run_until(t.loop, worker_up, NULL);
    put_frame(fd, "\x81\xa1t\x7f", 4); /* {"t": 127} */
    struct proto_msg m = {.type = PROTO_HEARTBEAT, .heartbeat.credits = 77};
    put_message(fd, &m);
    run_until(t.loop, beats_at_worker, NULL);
    ck_assert_int_eq(t.w.down, 0);
    close(fd);
}
END_TEST

START_TEST(link_message_before_hello)
{
    listen_on("127.0.0.1:0");
    int fd = dial(link_listener_address(t.listener));
    struct proto_msg m = {.type = PROTO_CANCEL};
    put_message(fd, &m);
    run_until(t.loop, socket_ended, &fd);
    ck_assert_int_eq(t.w.up + t.w.messages, 0);
    close(fd);
}
END_TEST

START_TEST(link_byte_by_byte)
{
    struct buf b;
    listen_on("127.0.0.1:0");
    int fd = fake_router();
    run_until(t.loop, worker_up, NULL);
    buf_init(&b, 0);
    struct proto_msg m = {.type = PROTO_CANCEL};
    proto_encode(&b, &m);
    char header[WIRE_HEADER_BYTES];
    wire_header(header, b.data, b.len);
    struct buf wire;
    buf_init(&wire, 0);
    buf_append(&wire, header, sizeof header);
    buf_append(&wire, b.data, b.len);
    for (size_t i = 0; i < wire.len; i++) {
        ck_assert_int_eq(t.w.messages, 0);
        ck_assert_int_eq(send(fd, wire.data + i, 1, MSG_NOSIGNAL), 1);
        run_until_quiet(t.loop, message_seen, NULL, 1);
    }
    run_until(t.loop, message_seen, NULL);
    buf_fini(&b);
    buf_fini(&wire);
    close(fd);
}
END_TEST

START_TEST(link_peer_vanishes)
{
    listen_on("127.0.0.1:0");
    int fd = fake_router();
    run_until(t.loop, worker_up, NULL);
    struct linger hard = {1, 0}; /* RST instead of FIN */
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    uint64_t before = clock_ms();
    close(fd);
    run_until(t.loop, worker_down, NULL);
    ck_assert_int_eq(t.w.down_status, STATUS_CLOSED);
    ck_assert_uint_lt(clock_ms() - before, 100);
}
END_TEST

static bool silent_once(void *arg)
{
    return t.w.silent == 1;
}
static bool heard_again(void *arg)
{
    return t.w.heard == 1;
}

START_TEST(link_silent_peer)
{
    t.options.stall_ms = 60;
    t.options.dead_ms = 300;
    listen_on("127.0.0.1:0");
    int fd = fake_router();
    run_until(t.loop, worker_up, NULL);
    run_until(t.loop, silent_once, NULL);
    ck_assert_int_eq(t.w.down, 0);
    struct proto_msg m = {.type = PROTO_HEARTBEAT, .heartbeat.credits = 77};
    put_message(fd, &m);
    run_until(t.loop, heard_again, NULL);
    run_until(t.loop, worker_down, NULL);
    ck_assert_int_eq(t.w.silent, 2);
    ck_assert_int_eq(t.w.down_status, STATUS_TIMEOUT);
    close(fd);
}
END_TEST

static bool beats_after_stall(void *arg)
{
    return t.r.heartbeats > *(int *)arg && t.w.heartbeats > *(int *)arg;
}

/* Both ends live on this loop. It stands still for longer than dead_ms: nobody may be blamed. */
START_TEST(link_own_stall_is_not_the_peers)
{
    t.options.stall_ms = 50;
    t.options.dead_ms = 100;
    start_pair();
    run_until(t.loop, beats, NULL);
    for (int i = 0; i < 2; i++) {
        uint64_t end = clock_ms() + 150;
        while (clock_ms() < end)
            ;
        int seen = t.r.heartbeats > t.w.heartbeats ? t.r.heartbeats : t.w.heartbeats;
        run_until(t.loop, beats_after_stall, &seen);
    }
    ck_assert_int_eq(t.r.silent + t.w.silent + t.r.down + t.w.down, 0);
}
END_TEST

START_TEST(link_backlog_drops_the_peer)
{
    char page[60000];
    memset(page, 'x', sizeof page);
    t.options.queue_max = 1 << 20;
    listen_on("127.0.0.1:0");
    int fd = fake_router();
    run_until(t.loop, worker_up, NULL);
    struct proto_msg m = {.type = PROTO_METRICS, .metrics.page = {page, sizeof page}};
    int rc = STATUS_OK;
    for (int i = 0; i < 2000 && rc == STATUS_OK; i++) {
        rc = link_send(t.w.link, &m);
        if (i % 10 == 0)
            run_until_quiet(t.loop, worker_down, NULL, 1);
    }
    ck_assert_int_eq(rc, STATUS_FULL);
    ck_assert_int_eq(t.w.down, 0);
    ck_assert(!link_is_up(t.w.link));
    ck_assert_int_eq(link_send(t.w.link, &m), STATUS_CLOSED);
    run_until(t.loop, worker_down, NULL);
    ck_assert_int_eq(t.w.down_status, STATUS_FULL);
    close(fd);
}
END_TEST

START_TEST(link_too_long_message_is_refused)
{
    start_pair();
    struct proto_token *list = calloc(1u << 20, sizeof *list);
    struct proto_top top[20] = {{1, 1}};
    ck_assert_ptr_nonnull(list);
    for (uint32_t i = 0; i < 1u << 20; i++)
        list[i] = (struct proto_token){.counter = UINT64_MAX, .top = top, .n_top = 10};
    struct proto_msg m = {.type = PROTO_TOKENS, .tokens = {list, 1u << 20}};
    ck_assert_int_eq(link_send(t.router, &m), STATUS_LIMIT);
    ck_assert_ok(send_number(t.router, 0)); /* and the link goes on */
    run_until(t.loop, message_seen, NULL);
    free(list);
}
END_TEST

START_TEST(link_handshake_takes_limited_time)
{
    t.options.connect_timeout_ms = 50;
    listen_on("127.0.0.1:0");
    int fd = dial(link_listener_address(t.listener));
    run_until(t.loop, socket_ended, &fd);
    close(fd);
    /* and on the connecting side: a listener that accepts but says nothing */
    uint16_t port;
    char address[32];
    int lfd = listen_local(&port);
    snprintf(address, sizeof address, "localhost:%u", port);
    connect_to(address);
    run_until(t.loop, router_failed, NULL);
    ck_assert_ptr_nonnull(strstr(link_last_error(t.router), "in time"));
    close(lfd);
}
END_TEST

START_TEST(link_unknown_host)
{
    setenv("RES_OPTIONS", "timeout:1 attempts:1", 1); /* the end waits for name servers */
    connect_to("no-such-host.invalid:1");
    link_close(t.router); /* before, while and after the lookup */
    connect_to("no-such-host.invalid:1");
    run_until_quiet(t.loop, router_failed, NULL, 3);
    link_close(t.router);
    t.router = NULL;
}
END_TEST

START_TEST(link_beyond_loopback_needs_a_key)
{
    connect_to("192.0.2.1:1"); /* reserved for documentation */
    run_until(t.loop, router_failed, NULL);
    ck_assert_ptr_nonnull(strstr(link_last_error(t.router), "cluster_key_file"));
}
END_TEST

static bool never(void *arg)
{
    return false;
}

/* Destroying the loop in any state leaves nothing behind (LeakSanitizer). */
START_TEST(link_left_open)
{
    listen_on("127.0.0.1:0");
    connect_to(link_listener_address(t.listener));
    if (_i)
        run_until_quiet(t.loop, both_up, NULL, (uint64_t)_i);
}
END_TEST

START_TEST(link_many_strangers)
{
    int fds[140];
    listen_on("127.0.0.1:0");
    for (size_t i = 0; i < 140; i++) {
        fds[i] = dial(link_listener_address(t.listener));
        if (i % 50 == 49) /* the kernel's queue of the listener is shorter than this test */
            run_until_quiet(t.loop, never, NULL, 5);
    }
    run_until(t.loop, socket_ended, &fds[139]); /* the last ones are turned away at once */
    ck_assert(!socket_ended(&fds[0]));
    for (size_t i = 0; i < 140; i++)
        close(fds[i]);
    connect_to(link_listener_address(t.listener));
    run_until(t.loop, both_up, NULL);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("link");
    TCase *c = tcase_create("pair");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_set_timeout(c, 30);
    tcase_add_test(c, link_both_directions_in_order);
    tcase_add_test(c, link_heartbeats_flow);
    tcase_add_test(c, link_refused_by_worker);
    tcase_add_test(c, link_refused_by_router);
    tcase_add_loop_test(c, link_keys, 0, 4);
    tcase_add_loop_test(c, link_versions, 0, 6);
    tcase_add_test(c, link_to_itself);
    tcase_add_loop_test(c, link_listen_refusals, 0, 7);
    tcase_add_test(c, link_address_in_use);
    tcase_add_test(c, link_reconnects);
    tcase_add_test(c, link_waits_for_the_listener);
    tcase_add_test(c, link_close_sends_what_is_queued);
    tcase_add_test(c, link_close_of_the_router_is_noticed);
    tcase_add_loop_test(c, link_close_inside_callbacks, 0, 5);
    tcase_add_test(c, link_own_stall_is_not_the_peers);
    tcase_add_test(c, link_too_long_message_is_refused);
    tcase_add_test(c, link_unknown_host);
    tcase_add_test(c, link_beyond_loopback_needs_a_key);
    tcase_add_loop_test(c, link_left_open, 0, 4);
    suite_add_tcase(s, c);
    c = tcase_create("socket");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_set_timeout(c, 30);
    tcase_add_test(c, link_garbage_is_dropped);
    tcase_add_test(c, link_oversized_frame);
    tcase_add_loop_test(c, link_damaged_frame, 0, 24);
    tcase_add_test(c, link_before_hello_frames_are_small);
    tcase_add_test(c, link_malformed_message);
    tcase_add_test(c, link_unknown_message_is_ignored);
    tcase_add_test(c, link_message_before_hello);
    tcase_add_test(c, link_byte_by_byte);
    tcase_add_test(c, link_peer_vanishes);
    tcase_add_test(c, link_silent_peer);
    tcase_add_test(c, link_backlog_drops_the_peer);
    tcase_add_test(c, link_handshake_takes_limited_time);
    tcase_add_test(c, link_many_strangers);
    suite_add_tcase(s, c);
    return s;
}
