/* relay under faults: workers and links that go away, decode workers that refuse, keys that differ.
 * Whatever happens, the answer is that of one engine alone, and no block is lost. */
#include "tests/worker/relay.h"

static struct relay *relay;
static struct relay_worker *P, *D, *D2;
static struct oracle oracle;
static int32_t prompt[1200];

/* faults: BATON_FAULT of the decode workers. */
static void start_with(const char *faults, const char *const *prefill, const char *const *decode)
{
    relay = relay_create();
    P = relay_spawn(relay, PROTO_PREFILL_WORKER, prefill);
    setenv("BATON_FAULT", faults, 1);
    D = relay_spawn(relay, PROTO_DECODE_WORKER, decode);
    D2 = relay_spawn(relay, PROTO_DECODE_WORKER, decode);
    unsetenv("BATON_FAULT");
    relay_open(relay);
    oracle_open(&oracle);
    relay_prompt(prompt, 1200, 1);
}

static void start(const char *const *prefill, const char *const *decode)
{
    start_with("", prefill, decode);
}

/* Each token takes 2 ms: what runs is not over before the test, which may have to wait for a
 * processor, has done something to it. */
static void start_slowly(const char *const *prefill, const char *const *decode)
{
    start_with("engine.step@1+1=delay:2", prefill, decode);
}

static void stop(void)
{
    relay_close(relay);
    oracle_close(&oracle);
}

static bool has_some(struct relay *r, void *arg)
{
    return ((struct answer *)arg)->n >= 5;
}
static bool is_lost(struct relay *r, void *arg)
{
    return ((struct answer *)arg)->lost != 0;
}

static void resubmit(struct answer *a, const struct question *q, struct relay_worker *p,
                     struct relay_worker *d)
{
    for (int i = 0; i < relay->n_workers; i++)
        relay_cancel(relay, a, &relay->workers[i]);
    a->attempt++;
    a->lost = 0;
    relay_submit(relay, a, q, p, d);
}

static void kill_worker(struct relay_worker *w)
{
    kill(w->pid, SIGKILL);
    ck_assert_int_eq(relay_reap(w), -SIGKILL);
    relay_disconnect(w);
}

START_TEST(decode_worker_killed_while_it_generates)
{
    enum { N = 4 };
    struct question q[N];
    struct answer *a[N];
    start_slowly(NULL, NULL);
    for (uint32_t i = 0; i < N; i++) {
        q[i] = (struct question){.prompt = prompt + i,
                                 .n_prompt = 90,
                                 .max_tokens = 400,
                                 .temperature = i % 2 ? 0.8f : 0,
                                 .seed = i,
                                 .keep_going = true,
                                 .think_limit = i < 2    ? 0
                                                : i == 2 ? 4
                                                         : 100};
        a[i] = relay_ask(relay, &q[i], P, D);
    }
    for (uint32_t i = 0; i < N; i++)
        UNTIL(relay, has_some, a[i]); /* one is about to close its thinking, one will on D2 */
    kill_worker(D);
    for (uint32_t i = 0; i < N; i++) {
        ck_assert_uint_eq(a[i]->finish, PROTO_FINISH_NONE);
        resubmit(a[i], &q[i], P, D2);
    }
    UNTIL(relay, relay_all_finished, NULL);
    for (uint32_t i = 0; i < N; i++)
        oracle_check(&oracle, &q[i], a[i]);
    UNTIL(relay, relay_all_free, NULL);
    stop();
}
END_TEST

START_TEST(decode_worker_killed_while_kv_is_sent)
{
    struct question q = {.prompt = prompt, .n_prompt = 1200, .max_tokens = 30, .keep_going = true};
    start(NULL, NULL);
    struct question warm = {.prompt = prompt + 7, .n_prompt = 20, .max_tokens = 3};
    UNTIL(relay, relay_finished, relay_ask(relay, &warm, P, D));
    struct answer *a = relay_ask(relay, &q, P, D);
    usleep(2000);
    kill_worker(D);
    resubmit(a, &q, P, D2);
    UNTIL(relay, relay_finished, a);
    oracle_check(&oracle, &q, a);
    UNTIL(relay, relay_all_free, NULL);
    stop();
}
END_TEST

START_TEST(prefill_worker_killed)
{
    struct question q = {.prompt = prompt, .n_prompt = 1200, .max_tokens = 60, .keep_going = true};
    relay = relay_create();
    P = relay_spawn(relay, PROTO_PREFILL_WORKER, NULL);
    struct relay_worker *P2 = relay_spawn(relay, PROTO_PREFILL_WORKER, NULL);
    D = relay_spawn(relay, PROTO_DECODE_WORKER, NULL);
    relay_open(relay);
    oracle_open(&oracle);
    relay_prompt(prompt, 1200, 1);
    struct question warm = {.prompt = prompt + 7, .n_prompt = 20, .max_tokens = 900};
    warm.keep_going = true;
    struct answer *w = relay_ask(relay, &warm, P, D);
    UNTIL(relay, has_some, w); /* handed over: P's death must not matter to it */
    struct answer *a = relay_ask(relay, &q, P, D);
    usleep(2000);
    kill_worker(P);
    resubmit(a, &q, P2, D);
    UNTIL(relay, relay_all_finished, NULL);
    oracle_check(&oracle, &q, a);
    oracle_check(&oracle, &warm, w);
    UNTIL(relay, relay_all_free, NULL);
    stop();
}
END_TEST

/* A decode worker without a link from this router refuses; the KV is parked and goes to another. */
START_TEST(refused_then_redirected)
{
    struct question q = {.prompt = prompt, .n_prompt = 300, .max_tokens = 25, .keep_going = true};
    start(NULL, NULL);
    struct proto_hello hello = D->hello;
    char address[sizeof D->data_address];
    memcpy(address, D->data_address, sizeof address);
    for (int i = 0; i < relay->n_workers; i++)
        relay_disconnect(&relay->workers[i]);
    relay->instance += 2; /* another router, that D has never seen */
    relay_connect(relay, P);
    relay_connect(relay, D2);
    UNTIL(relay, relay_all_up, NULL);
    struct relay_worker stranger = {.hello = hello};
    stranger.hello.data_address.p = address;
    struct answer *a = relay_ask(relay, &q, P, &stranger);
    UNTIL(relay, is_lost, a);
    ck_assert_uint_eq(a->lost, PROTO_REASON_NO_ROUTER);
    ck_assert(a->parked);
    struct proto_msg m = {.type = PROTO_REDIRECT,
                          .redirect = {.request = {relay->instance, a->counter, a->attempt + 1},
                                       .old_attempt = a->attempt,
                                       .decode = {.instance = D2->hello.instance,
                                                  .data_address = D2->hello.data_address}}};
    a->attempt++;
    a->lost = 0;
    relay_send(P, &m);
    UNTIL(relay, relay_finished, a);
    oracle_check(&oracle, &q, a);
    UNTIL(relay, relay_all_free, NULL);
    /* a redirect of what is not there is answered, and so is a RESUME */
    m.redirect.old_attempt = 7;
    m.redirect.request.attempt = ++a->attempt;
    relay_send(P, &m);
    UNTIL(relay, is_lost, a);
    ck_assert_uint_eq(a->lost, PROTO_REASON_UNKNOWN);
    struct proto_seq_pos pos = {.counter = a->counter, .attempt = a->attempt};
    m = (struct proto_msg){.type = PROTO_RESUME, .resume = {.list = &pos, .n = 1}};
    a->lost = 0;
    relay_send(D2, &m);
    UNTIL(relay, is_lost, a);
    ck_assert_uint_eq(a->lost, PROTO_REASON_UNKNOWN);
    stop();
}
END_TEST

static bool has_first(struct relay *r, void *arg)
{
    return ((struct answer *)arg)->n >= 1;
}

/* The router notices before the prefill worker that the decode worker does not move: REDIRECT takes
 * the job as it is, and does not wait for what is still under way to the old one. */
START_TEST(redirected_before_the_loss_is_noticed)
{
    struct question q = {.prompt = prompt, .n_prompt = 300, .max_tokens = 25, .keep_going = true};
    start(NULL, NULL);
    kill(D->pid, SIGSTOP);
    struct answer *a = relay_ask(relay, &q, P, D);
    UNTIL(relay, has_first, a);
    struct proto_msg m = {.type = PROTO_REDIRECT,
                          .redirect = {.request = {relay->instance, a->counter, a->attempt + 1},
                                       .old_attempt = a->attempt,
                                       .decode = {.instance = D2->hello.instance,
                                                  .data_address = D2->hello.data_address}}};
    a->attempt++;
    relay_send(P, &m);
    UNTIL(relay, relay_finished, a);
    oracle_check(&oracle, &q, a);
    kill(D->pid, SIGCONT);
    UNTIL(relay, relay_all_free, NULL);
    stop();
}
END_TEST

/* Parked KV is not kept for ever. */
START_TEST(parked_kv_is_freed)
{
    struct question q = {.prompt = prompt, .n_prompt = 300, .max_tokens = 25, .keep_going = true};
    start(SETTINGS("router_grace_ms=300"), NULL);
    struct relay_worker nowhere = {.hello = D->hello};
    nowhere.hello.instance ^= 2;
    nowhere.hello.data_address = (struct proto_bytes){D->data_address, 3};
    struct answer *a = relay_ask(relay, &q, P, &nowhere);
    UNTIL(relay, is_lost, a);
    ck_assert_uint_eq(a->lost, PROTO_REASON_PEER_LOST);
    ck_assert(a->parked);
    UNTIL(relay, relay_all_free, NULL);
    stop();
}
END_TEST

/* The link of the router breaks and comes back: RESUME, and tokens from where it stands. */
START_TEST(router_link_resumed)
{
    struct question q = {.prompt = prompt, .n_prompt = 50, .max_tokens = 500, .keep_going = true};
    start_slowly(NULL, NULL);
    relay->mute_acks = true; /* so that old tokens come again */
    struct answer *a = relay_ask(relay, &q, P, D), *b = relay_ask(relay, &q, P, D);
    UNTIL(relay, has_some, a);
    UNTIL(relay, has_some, b);
    relay_disconnect(D);
    relay_disconnect(P);
    uint32_t seen = a->n;
    relay_connect_all(relay);
    struct proto_seq_pos pos = {.counter = a->counter, .attempt = 0, .position = a->n};
    struct proto_msg m = {.type = PROTO_RESUME, .resume = {.list = &pos, .n = 1}};
    struct proto_msg done = {.type = PROTO_RESUME}; /* P has handed over */
    relay->mute_acks = false;
    relay_send(P, &done);
    relay_send(D, &m);
    UNTIL(relay, relay_finished, a);
    oracle_check(&oracle, &q, a);
    ck_assert_uint_gt(a->n, seen);
    b->used = false; /* not named in RESUME: freed */
    UNTIL(relay, relay_all_free, NULL);
    ck_assert_uint_lt(b->n, 500);
    stop();
}
END_TEST

/* The router does not come back: its requests are freed, those of another go on. */
START_TEST(router_gone)
{
    struct question q = {.prompt = prompt, .n_prompt = 50, .max_tokens = 1900, .keep_going = true};
    start_slowly(SETTINGS("router_grace_ms=200"), SETTINGS("router_grace_ms=200"));
    struct answer *a = relay_ask(relay, &q, P, D);
    UNTIL(relay, has_some, a);
    for (int i = 0; i < relay->n_workers; i++)
        relay_disconnect(&relay->workers[i]);
    relay->instance += 2; /* another router */
    relay_connect_all(relay);
    UNTIL(relay, relay_all_free, NULL);
    ck_assert_uint_lt(a->n, 1900);
    q.max_tokens = 20;
    struct answer *b = relay_ask(relay, &q, P, D);
    UNTIL(relay, relay_finished, b);
    oracle_check(&oracle, &q, b);
    stop();
}
END_TEST

static bool draining(struct relay *r, void *arg)
{
    return ((struct relay_worker *)arg)->draining;
}

/* SIGTERM: what runs is finished, new work refused, exit status 0. */
START_TEST(drained)
{
    struct question q = {.prompt = prompt, .n_prompt = 50, .max_tokens = 500, .keep_going = true};
    start_slowly(SETTINGS("drain_ms=20000"), SETTINGS("drain_ms=20000"));
    struct answer *a = relay_ask(relay, &q, P, D);
    UNTIL(relay, has_some, a);
    kill(D->pid, SIGTERM);
    UNTIL(relay, draining, D);
    struct answer *b = relay_ask(relay, &q, P, D);
    UNTIL(relay, is_lost, b);
    ck_assert_uint_eq(b->lost, PROTO_REASON_DRAINING);
    relay_cancel(relay, b, P);
    UNTIL(relay, relay_finished, a);
    oracle_check(&oracle, &q, a);
    ck_assert_int_eq(relay_reap(D), 0);
    relay_disconnect(D);
    kill(P->pid, SIGTERM);
    ck_assert_int_eq(relay_reap(P), 0);
    relay_disconnect(P);
    stop();
}
END_TEST

static void write_key(char *path, const char *text)
{
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

/* With a cluster key, RESERVE must carry the router's MAC over this very attempt and pair. */
START_TEST(cluster_key)
{
    struct question q = {.prompt = prompt, .n_prompt = 50, .max_tokens = 20, .keep_going = true};
    char path[] = "/tmp/baton-test-key-XXXXXX", setting[64], err[128];
    write_key(path, "0123456789abcdef0123456789abcdef\n");
    snprintf(setting, sizeof setting, "cluster_key_file=%s", path);
    relay = relay_create();
    ck_assert_ok(mac_key_load(path, &relay->key, err, sizeof err));
    P = relay_spawn(relay, PROTO_PREFILL_WORKER, SETTINGS(setting));
    D = relay_spawn(relay, PROTO_DECODE_WORKER, SETTINGS(setting));
    unlink(path);
    relay_open(relay);
    oracle_open(&oracle);
    relay_prompt(prompt, 1200, 1);
    struct answer *a = relay_ask(relay, &q, P, D);
    UNTIL(relay, relay_finished, a);
    oracle_check(&oracle, &q, a);
    relay->key.key[0] ^= 1; /* signs jobs with another key from here on */
    struct answer *b = relay_ask(relay, &q, P, D);
    UNTIL(relay, is_lost, b);
    ck_assert_uint_eq(b->lost, PROTO_REASON_AUTH);
    relay_cancel(relay, b, P);
    UNTIL(relay, relay_all_free, NULL);
    stop();
}
END_TEST

/* A stopped decode worker: its sends are ended by force, so that P's blocks come back. */
START_TEST(decode_worker_stopped)
{
    struct question q = {.prompt = prompt, .n_prompt = 1200, .max_tokens = 30, .keep_going = true};
    start(SETTINGS("stall_ms=500"), SETTINGS("stall_ms=500"));
    struct question warm = {.prompt = prompt + 7, .n_prompt = 20, .max_tokens = 3};
    UNTIL(relay, relay_finished, relay_ask(relay, &warm, P, D));
    struct answer *a = relay_ask(relay, &q, P, D);
    usleep(1500);
    kill(D->pid, SIGSTOP);
    resubmit(a, &q, P, D2);
    UNTIL(relay, relay_finished, a);
    oracle_check(&oracle, &q, a);
    relay_disconnect(D);
    UNTIL(relay, relay_all_free, NULL);
    kill(D->pid, SIGCONT);
    stop();
}
END_TEST

/* Start-up errors: exit status 1, nothing listening. */
static int start_fails(const char *const *settings, int n)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        static const struct worker_policy policy = {"decoded", PROTO_DECODE_WORKER,
                                                    relay_whole_chunk};
        struct worker_settings s = {0};
        char *argv[16] = {(char *)(uintptr_t) "decoded"};
        for (int i = 0; i < n; i++)
            argv[i + 1] = (char *)(uintptr_t)settings[i];
        if (config_load("decoded", worker_keys, worker_keys_n, &s, n + 1, argv) != CONFIG_RUN)
            exit(2);
        int rc = worker_run(&policy, &s, NULL, NULL);
        config_fini(worker_keys, worker_keys_n, &s);
        exit(rc == STATUS_OK ? 0 : 1);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

START_TEST(start_up_errors)
{
    char model[512];
    snprintf(model, sizeof model, "--model=%s", test_data(RELAY_MODEL));
    ck_assert_int_eq(start_fails(NULL, 0), 1);
    ck_assert_int_eq(start_fails((const char *[]){"--model=/no/such/file"}, 1), 1);
    ck_assert_int_eq(start_fails((const char *[]){model, "--listen=0.0.0.0:0"}, 2), 1);
    ck_assert_int_eq(start_fails((const char *[]){model, "--http=0.0.0.0:0"}, 2), 1);
    ck_assert_int_eq(start_fails((const char *[]){model, "--data_devices=eth0"}, 2), 1);
    ck_assert_int_eq(start_fails((const char *[]){model, "--prefill_chunk=100"}, 2), 1);
    ck_assert_int_eq(start_fails((const char *[]){model, "--kv_memory=1k"}, 2), 1);
    ck_assert_int_eq(start_fails((const char *[]){model, "--cluster_key_file=/none"}, 2), 1);
    ck_assert_int_eq(start_fails((const char *[]){model, "--no_such_key=1"}, 2), 2);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("worker/relay_faults");
    ADD(decode_worker_killed_while_it_generates);
    ADD(decode_worker_killed_while_kv_is_sent);
    ADD(prefill_worker_killed);
    ADD(refused_then_redirected);
    ADD(redirected_before_the_loss_is_noticed);
    ADD(parked_kv_is_freed);
    ADD(router_link_resumed);
    ADD(router_gone);
    ADD(drained);
    ADD(cluster_key);
    ADD(decode_worker_stopped);
    ADD(start_up_errors);
    return s;
}
