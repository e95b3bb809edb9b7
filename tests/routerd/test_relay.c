/* Attempts, order of tokens and retry, against scripted workers. */
#include "tests/routerd/relay_rig.h"

static void play_normal(struct fake *f, const struct proto_prefill *m)
{
    const struct proto_request *r = &m->job.request;
    send(f, r->counter, r->attempt, 0, ids, 1, PROTO_FINISH_NONE);
    send(fake_of(m->decode.instance), r->counter, r->attempt, 0, ids, 2, PROTO_FINISH_NONE);
    send(fake_of(m->decode.instance), r->counter, r->attempt, 2, ids + 2, 2, PROTO_FINISH_STOP);
}

START_TEST(relay_tokens_once_in_order)
{
    go(play_normal, 5000);
    ck_assert_str_eq(seen, "10 11 12 13 stop");
    ck_assert_uint_eq(relay_running(relay) + relay_waiting(relay), 0);
}
END_TEST

static void play_gap(struct fake *f, const struct proto_prefill *m)
{
    struct fake *d = fake_of(m->decode.instance);
    const struct proto_request *r = &m->job.request;
    send(d, r->counter, r->attempt, 3, ids + 3, 1, PROTO_FINISH_LENGTH);
    send(d, r->counter, r->attempt, 1, ids + 1, 1, PROTO_FINISH_NONE);
    send(d, r->counter, r->attempt, 2, ids + 2, 1, PROTO_FINISH_NONE);
    send(d, r->counter, r->attempt, 0, ids, 1, PROTO_FINISH_NONE);
}

START_TEST(relay_gap_is_filled)
{
    go(play_gap, 5000);
    ck_assert_str_eq(seen, "10 11 12 13 length");
}
END_TEST

static void play_divergent(struct fake *f, const struct proto_prefill *m)
{
    const struct proto_request *r = &m->job.request;
    struct fake *d = fake_of(m->decode.instance);
    int32_t other = 40;
    send(d, r->counter, r->attempt, 0, ids, 2, PROTO_FINISH_NONE);
    send(d, r->counter, r->attempt, 1, &other, 1, PROTO_FINISH_NONE);
    send(d, r->counter, r->attempt, 2, ids + 2, 1, PROTO_FINISH_STOP);
}

START_TEST(relay_first_token_stands)
{
    struct metric *m =
        metrics_counter("baton_divergence_total", "",
                        "Tokens that came twice for one position with different ids.");
    double before = metrics_value(m);
    go(play_divergent, 5000);
    ck_assert_str_eq(seen, "10 11 12 stop");
    ck_assert(metrics_value(m) == before + 1);
}
END_TEST

/* The first attempt's decode worker sends two tokens and its link goes; the second attempt must
 * come with them as emitted, to another decode worker, and late tokens of the first are not taken.
 */
static void play_decode_dies(struct fake *f, const struct proto_prefill *m)
{
    const struct proto_request *r = &m->job.request;
    struct fake *d = fake_of(m->decode.instance);
    if (r->attempt == 0) {
        send(d, r->counter, 0, 0, ids, 2, PROTO_FINISH_NONE);
        send(f, r->counter, 0, 0, ids, 1, PROTO_FINISH_NONE);
        d->hello.instance = 1000; /* what restarts there is somebody else */
        struct link *l = d->link;
        d->link = NULL;
        link_listener_close(d->listener);
        d->listener = NULL;
        /* Both frames are on their way before the close. */
        loop_defer(loop, (void (*)(void *))link_close, l);
        return;
    }
    ck_assert_uint_eq(r->attempt, 1);
    ck_assert_uint_le(m->job.emitted.n, 2);
    ck_assert(d->hello.instance == 3 || d->hello.instance == 4);
    int32_t old = 49;
    uint32_t n = (uint32_t)m->job.emitted.n;
    send(f, r->counter, 0, n, &old, 1, PROTO_FINISH_NONE);
    send(d, r->counter, 1, n, ids + n, 4 - n, PROTO_FINISH_STOP);
}

START_TEST(relay_decode_worker_dies)
{
    go(play_decode_dies, 5000);
    ck_assert_str_eq(seen, "10 11 12 13 stop");
    ck_assert_int_eq(fakes[0].prefills + fakes[1].prefills, 2);
}
END_TEST

static int losses;
static enum proto_reason loss;

static void play_lost(struct fake *f, const struct proto_prefill *m)
{
    if (losses-- > 0) {
        struct proto_msg l = {.type = PROTO_LOST,
                              .lost = {.request = m->job.request, .reason = loss}};
        (void)!link_send(f->link, &l);
        return;
    }
    play_normal(f, m);
}

START_TEST(relay_lost_is_tried_again)
{
    static const enum proto_reason again[] = {PROTO_REASON_DRAINING,  PROTO_REASON_FULL,
                                              PROTO_REASON_PEER_LOST, PROTO_REASON_PREEMPTED,
                                              PROTO_REASON_CORRUPT,   PROTO_REASON_NO_ROUTER};
    loss = again[_i];
    losses = 3;
    go(play_lost, 5000);
    ck_assert_str_eq(seen, "10 11 12 13 stop");
}
END_TEST

START_TEST(relay_lost_for_good)
{
    losses = 1;
    loss = _i ? PROTO_REASON_TOO_LARGE : PROTO_REASON_INVALID;
    go(play_lost, 5000);
    ck_assert_int_eq(failed_with, _i ? STATUS_RANGE : STATUS_INVALID);
}
END_TEST

static void play_silence(struct fake *f, const struct proto_prefill *m)
{
}

START_TEST(relay_free_cancels_on_both)
{
    go(play_silence, 300);
    ck_assert(!ended && fakes[0].prefills + fakes[1].prefills == 1);
    relay_free(gen);
    gen = NULL;
    while (fakes[0].cancels + fakes[1].cancels == 0 || fakes[2].cancels + fakes[3].cancels == 0)
        run(2);
    ck_assert_int_eq(fakes[0].cancels + fakes[1].cancels, 1);
    ck_assert_int_eq(fakes[2].cancels + fakes[3].cancels, 1);
}
END_TEST

/* A worker that says it has work and makes no progress is left; the request goes on elsewhere. */
static void play_stall(struct fake *f, const struct proto_prefill *m)
{
    if (m->job.request.attempt == 0)
        f->busy = f->stuck = true;
    else
        play_normal(f, m);
}

START_TEST(relay_stalled_worker_is_left)
{
    go(play_stall, 5000);
    ck_assert_str_eq(seen, "10 11 12 13 stop");
    ck_assert(fakes[0].prefills == 1 && fakes[1].prefills == 1);
}
END_TEST

/* As when its process is killed: nobody listens any more. */
static void fake_kill(struct fake *f)
{
    struct link *l = f->link;
    f->link = NULL;
    link_listener_close(f->listener);
    f->listener = NULL;
    if (l) /* what was sent is still on its way */
        loop_defer(loop, (void (*)(void *))link_close, l);
}

/* Breaks the link alone; the process goes on, and the router comes back to it. */
static void fake_cut(struct fake *f)
{
    struct link *l = f->link;
    f->link = NULL;
    if (l)
        loop_defer(loop, (void (*)(void *))link_close, l);
}

/* A worker that is busy for long, and whose progress counter wraps meanwhile, is not suspected. */
static struct proto_request slow;
static struct fake *slow_p, *slow_d;
static void play_busy(struct fake *f, const struct proto_prefill *m)
{
    slow = m->job.request;
    slow_p = f;
    slow_d = fake_of(m->decode.instance);
    f->busy = true;
    f->progress = UINT64_MAX - 2;
}

START_TEST(relay_progress_may_wrap)
{
    go(play_busy, 700); /* more than twice stall_ms */
    ck_assert_uint_lt(slow_p->progress, 1000);
    ck_assert(!ended);
    ck_assert_uint_eq(gen->attempt, 0);
    send(slow_d, slow.counter, 0, 0, ids, 2, PROTO_FINISH_STOP);
    run(5000);
    ck_assert_str_eq(seen, "10 11 stop");
}
END_TEST

/* Workers and router share this loop. It stands still for longer than stall_ms, and looks at its
 * workers before it has read what they said: nobody is suspected. */
START_TEST(relay_own_stall_is_not_the_workers)
{
    go(play_busy, 100);
    for (int i = 0; i < 3; i++) {
        for (uint64_t end = clock_ms() + 400; clock_ms() < end;)
            ;
        run(60);
        ck_assert_uint_eq(gen->attempt, 0);
    }
    slow_p->stuck = true; /* this is its own */
    while (gen->attempt == 0)
        run(20);
}
END_TEST

static void play_kill_prefill(struct fake *f, const struct proto_prefill *m)
{
    fake_kill(f);
}

START_TEST(relay_two_deaths_are_enough)
{
    go(play_kill_prefill, 5000);
    ck_assert_int_eq(failed_with, STATUS_INTERNAL);
    ck_assert_int_eq(fakes[0].prefills + fakes[1].prefills, 2);
}
END_TEST

/* A link that breaks for a moment: the attempt stays, RESUME says where it stands, and what was
 * lost with the link comes again. */
static void play_cut(struct fake *f, const struct proto_prefill *m)
{
    const struct proto_request *r = &m->job.request;
    struct fake *d = fake_of(m->decode.instance);
    ck_assert_uint_eq(r->attempt, 0);
    send(f, r->counter, 0, 0, ids, 1, PROTO_FINISH_NONE);
    send(d, r->counter, 0, 0, ids, 2, PROTO_FINISH_NONE);
    fake_cut(d);
}
static void resume_cut(struct fake *f)
{
    if (f->n_resumed == 0)
        return;
    uint32_t at = f->resumed[0].position;
    ck_assert_uint_le(at, 2);
    send(f, f->resumed[0].counter, f->resumed[0].attempt, at, ids + at, 4 - at, PROTO_FINISH_STOP);
}

START_TEST(relay_link_comes_back)
{
    on_resume = resume_cut;
    go(play_cut, 5000);
    ck_assert_str_eq(seen, "10 11 12 13 stop");
    ck_assert_uint_eq(gen->retries, 0);
    ck_assert_int_eq(fakes[0].prefills + fakes[1].prefills, 1);
    struct fake *d = fakes[2].resumes == 2 ? &fakes[2] : &fakes[3];
    ck_assert_int_eq(d->resumes, 2);
    ck_assert_uint_eq(d->n_resumed, 1);
    ck_assert_uint_eq(d->resumed[0].attempt, 0);
    ck_assert_uint_eq(workers_find(workers, d->hello.instance)->assigned, 0);
}
END_TEST

/* PREFILL went down with the link: the worker says that it does not know it. */
static void play_cut_prefill(struct fake *f, const struct proto_prefill *m)
{
    if (m->job.request.attempt == 0)
        fake_cut(f);
    else
        play_normal(f, m);
}
static void resume_unknown(struct fake *f)
{
    if (f->n_resumed == 0 || f->decode)
        return;
    struct proto_msg l = {.type = PROTO_LOST,
                          .lost = {.request = {99, f->resumed[0].counter, f->resumed[0].attempt},
                                   .reason = PROTO_REASON_UNKNOWN}};
    (void)!link_send(f->link, &l);
}

START_TEST(relay_prefill_was_lost_with_the_link)
{
    on_resume = resume_unknown;
    go(play_cut_prefill, 5000);
    ck_assert_str_eq(seen, "10 11 12 13 stop");
    ck_assert_uint_eq(gen->retries, 1);
}
END_TEST

/* A link that is cut and does not come back: the address swallows connections. Here the worker's
 * listener refuses the router's HELLO, so that every attempt fails without being refused by TCP. */
static void play_cut_for_good(struct fake *f, const struct proto_prefill *m)
{
    const struct proto_request *r = &m->job.request;
    struct fake *d = fake_of(m->decode.instance);
    if (r->attempt > 0) {
        play_normal(f, m);
        return;
    }
    send(d, r->counter, 0, 0, ids, 2, PROTO_FINISH_NONE);
    refusing = true;
    fake_cut(d);
}

START_TEST(relay_link_does_not_come_back)
{
    uint64_t before = clock_ms();
    go(play_cut_for_good, 5000);
    refusing = false;
    ck_assert_str_eq(seen, "10 11 12 13 stop");
    ck_assert_uint_eq(gen->retries, 1);
    ck_assert_uint_ge(clock_ms() - before, relink_ms);
    ck_assert_uint_eq(gen->deaths, 0); /* nobody is known to have died */
}
END_TEST

/* Another process at the same address: the old one is dead, however fast the new one is. */
static void play_restart(struct fake *f, const struct proto_prefill *m)
{
    const struct proto_request *r = &m->job.request;
    struct fake *d = fake_of(m->decode.instance);
    if (r->attempt > 0) {
        play_normal(f, m);
        return;
    }
    char address[100], err[200];
    send(d, r->counter, 0, 0, ids, 2, PROTO_FINISH_NONE);
    snprintf(address, sizeof address, "%s", link_listener_address(d->listener));
    fake_kill(d);
    d->hello.instance += 100;
    ck_assert_msg(link_listen(loop, address, &d->hello, &d->link_options, &fake_cb, d, &d->listener,
                              err, sizeof err) == 0,
                  "%s", err);
}

START_TEST(relay_another_process_listens)
{
    go(play_restart, 5000);
    ck_assert_str_eq(seen, "10 11 12 13 stop");
    ck_assert_uint_eq(gen->retries, 1);
}
END_TEST

/* Killed: noticed within 100 ms, and the request goes on at its next token. */
static uint64_t killed_ms, again_ms;
static void play_killed(struct fake *f, const struct proto_prefill *m)
{
    const struct proto_request *r = &m->job.request;
    struct fake *d = fake_of(m->decode.instance);
    if (r->attempt > 0) {
        again_ms = clock_ms();
        ck_assert_uint_eq(m->job.emitted.n, 2);
        play_normal(f, m);
        return;
    }
    send(d, r->counter, 0, 0, ids, 2, PROTO_FINISH_NONE);
    fake_kill(d);
    killed_ms = clock_ms();
}

START_TEST(relay_death_is_noticed_at_once)
{
    go(play_killed, 5000);
    ck_assert_str_eq(seen, "10 11 12 13 stop");
    ck_assert_uint_le(again_ms - killed_ms, 100);
    ck_assert_uint_eq(gen->deaths, 1);
}
END_TEST

/* REDIRECT: parked KV goes to the other decode worker, not a second prompt. */
static void play_parked(struct fake *f, const struct proto_prefill *m)
{
    struct proto_msg l = {
        .type = PROTO_LOST,
        .lost = {.request = m->job.request, .reason = PROTO_REASON_PEER_LOST, .parked = true}};
    send(f, m->job.request.counter, 0, 0, ids, 1, PROTO_FINISH_NONE);
    (void)!link_send(f->link, &l);
}
static void redirected(struct fake *f, const struct proto_redirect *m)
{
    struct fake *d = fake_of(m->decode.instance);
    ck_assert(m->old_attempt == 0 && m->request.attempt == 1);
    ck_assert(m->decode.data_address.n == 4);
    send(f, m->request.counter, 1, 0, ids, 1, PROTO_FINISH_NONE);
    send(d, m->request.counter, 1, 0, ids, 4, PROTO_FINISH_STOP);
}

START_TEST(relay_redirect)
{
    on_redirect = redirected;
    go(play_parked, 5000);
    ck_assert_str_eq(seen, "10 11 12 13 stop");
    ck_assert_int_eq(fakes[0].prefills + fakes[1].prefills, 1);
    ck_assert_int_eq(fakes[0].redirects + fakes[1].redirects, 1);
    ck_assert_int_eq(fakes[0].cancels + fakes[1].cancels, 0);
    ck_assert_int_eq(fakes[2].cancels + fakes[3].cancels, 1);
}
END_TEST

/* What is parked for nobody is freed. */
static void play_parked_too_late(struct fake *f, const struct proto_prefill *m)
{
    struct proto_request old = m->job.request;
    play_normal(f, m);
    old.counter += 1000; /* a request that has ended */
    struct proto_msg l = {
        .type = PROTO_LOST,
        .lost = {.request = old, .reason = PROTO_REASON_PEER_LOST, .parked = true}};
    (void)!link_send(f->link, &l);
}

START_TEST(relay_parked_for_nobody)
{
    go(play_parked_too_late, 5000);
    ck_assert_str_eq(seen, "10 11 12 13 stop");
    while (fakes[0].cancels + fakes[1].cancels == 0)
        run(2);
}
END_TEST

/* The figures of the workers' load come back to nothing, whatever happened. */
START_TEST(relay_loads_are_given_back)
{
    on_redirect = redirected;
    go(_i ? play_parked : play_killed, 5000);
    ck_assert(ended);
    for (uint32_t i = 0; i < workers_count(workers); i++) {
        ck_assert_uint_eq(workers_at(workers, i)->assigned, 0);
        ck_assert_uint_eq(workers_at(workers, i)->assigned_tokens, 0);
    }
}
END_TEST

/* A burst after a burst is spread over the workers, although their last heartbeats still tell of
 * the first, of which one worker had more. */
START_TEST(relay_old_news_of_its_own)
{
    static int32_t prompt[40];
    struct proto_job job = {.prompt = {prompt, 40}, .max_tokens = 8, .n_ids = 50};
    struct gen *g[6];
    scenario = play_silence;
    while (!all_up() || workers_at(workers, 0)->load.credits < 8 ||
           workers_at(workers, 1)->load.credits < 8)
        run(2);
    for (int i = 0; i < 6; i++)
        ck_assert_ok(relay_start(relay, 0, &job, &gen_cb, NULL, &g[i]));
    struct worker *a = workers_find(workers, fakes[2].hello.instance);
    struct worker *b = workers_find(workers, fakes[3].hello.instance);
    while (a->assigned + b->assigned < 6)
        run(1);
    ck_assert(a->assigned == 3 && b->assigned == 3);
    for (int i = 0, n = 0; i < 6 && n < 2; i++) {
        if (g[i]->decode == b->instance) {
            relay_free(g[i]);
            g[i] = NULL;
            n++;
        }
    }
    fakes[2].running = 3 + 1; /* one is another router's */
    fakes[3].running = 1 + 1;
    while (a->load.running != 4 || b->load.running != 2)
        run(2);
    for (int i = 0; i < 6; i++) {
        if (g[i])
            relay_free(g[i]);
    }
    fakes[2].running = fakes[3].running = 1; /* what the next heartbeat will say */
    for (int i = 0; i < 4; i++)
        ck_assert_ok(relay_start(relay, 0, &job, &gen_cb, NULL, &g[i]));
    while (a->assigned + b->assigned < 4)
        run(1);
    ck_assert(a->assigned == 2 && b->assigned == 2);
    for (int i = 0; i < 4; i++)
        relay_free(g[i]);
}
END_TEST

START_TEST(relay_debug_says_where)
{
    struct buf b;
    buf_init(&b, 0);
    go(play_silence, 100);
    relay_debug(relay, UINT32_MAX, &b);
    ck_assert(strstr(buf_str(&b), "\"state\":\"prefill\"") && strstr(buf_str(&b), "deadline_ms"));
    buf_fini(&b);
}
END_TEST

START_TEST(relay_deadlines)
{
    struct relay_options o = patient;
    o.worker_wait_ms = 200;
    start_workers(1, 0, 300, o);
    go(play_normal, 5000);
    ck_assert_int_eq(failed_with, STATUS_UNAVAILABLE);
    teardown();
    o = patient;
    o.request_timeout_ms = 200;
    start_workers(1, 1, 300, o);
    go(play_silence, 5000);
    ck_assert_int_eq(failed_with, STATUS_TIMEOUT);
    teardown();
}
END_TEST

/* Many wait when workers come (back): each gets as many prompts as it said it takes, no more. */
static int open_gens;
static void count_finish(void *arg, struct gen *g, enum proto_finish f)
{
    open_gens--;
}
static void count_failed(void *arg, struct gen *g, int status, const char *why)
{
    failed_with = status;
}

START_TEST(relay_herd_keeps_to_credits)
{
    static int32_t prompt[40];
    static const struct gen_callbacks cb = {
        .token = on_token, .finish = count_finish, .failed = count_failed};
    struct proto_job job = {.prompt = {prompt, 40}, .max_tokens = 8, .n_ids = 50};
    struct gen *g[60];
    struct relay_options o = patient;
    o.queue_max = 60;
    failed_with = 0;
    scenario = play_silence;
    start_workers(2, 2, 2000, o);
    for (int i = 0; i < FAKES; i++)
        fakes[i].credits = 0;
    while (!all_up())
        run(2);
    for (int i = 0; i < 60; i++)
        ck_assert_ok(relay_start(relay, 0, &job, &cb, NULL, &g[i]));
    run(100);
    ck_assert_int_le(fakes[0].prefills + fakes[1].prefills,
                     2); /* one on trust before a heartbeat */
    fakes[0].credits = fakes[1].credits = 3;
    scenario = play_normal;
    open_gens = 60;
    for (int i = 0; i < 1000 && open_gens > 2; i++) {
        run(5);
        for (int p = 0; p < 2; p++)
            ck_assert_uint_le((uint64_t)fakes[p].prefills, fakes[p].announced + 1);
    }
    ck_assert_int_le(open_gens, 2); /* those that were given to the silent ones */
    ck_assert_int_eq(failed_with, 0);
    for (int i = 0; i < 60; i++)
        relay_free(g[i]);
    teardown();
}
END_TEST

static uint32_t sent[8], n_sent;
static void play_note(struct fake *f, const struct proto_prefill *m)
{
    ck_assert_uint_lt(n_sent, 8);
    sent[n_sent++] = m->job.max_tokens;
}

/* Who waits is sent by priority and, where that is equal, in the order of arrival. */
START_TEST(relay_urgent_goes_first)
{
    static const uint32_t priorities[] = {5, 1, 9, 5, 1, 9}, order[] = {2, 5, 0, 3, 1, 4};
    static int32_t prompt[40];
    struct proto_job job = {.prompt = {prompt, 40}, .n_ids = 50};
    struct gen *g[6];
    n_sent = 0;
    scenario = play_note;
    start_workers(1, 1, 2000, patient);
    fakes[0].credits = 0;
    while (!all_up() || workers_at(workers, 0)->load.credits > 0)
        run(2);
    for (uint32_t i = 0; i < 6; i++) {
        job.priority = priorities[i];
        job.max_tokens = 1 + i;
        ck_assert_ok(relay_start(relay, 0, &job, &gen_cb, NULL, &g[i]));
    }
    run(50);
    ck_assert_uint_eq(n_sent, 0);
    fakes[0].credits = 1;
    while (n_sent < 6)
        run(5);
    for (uint32_t i = 0; i < 6; i++) {
        ck_assert_uint_eq(sent[i], 1 + order[i]);
        relay_free(g[i]);
    }
    teardown();
}
END_TEST

START_TEST(relay_queue_is_bounded)
{
    struct relay_options o = patient;
    struct proto_job job = {.prompt = {ids, 8}, .max_tokens = 8, .n_ids = 50};
    struct gen *g[10], *more;
    start_workers(0, 0, 300, o);
    for (int i = 0; i < 10; i++)
        ck_assert_ok(relay_start(relay, 0, &job, &gen_cb, NULL, &g[i]));
    ck_assert_int_eq(relay_start(relay, 0, &job, &gen_cb, NULL, &more), STATUS_FULL);
    for (int i = 0; i < 10; i++)
        relay_free(g[i]);
    ck_assert_uint_eq(relay_waiting(relay), 0);
    teardown();
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("relay");
    TCase *t = tcase_create("relay"), *own = tcase_create("own workers");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 30);
    tcase_set_timeout(own, 30);
    tcase_add_test(t, relay_tokens_once_in_order);
    tcase_add_test(t, relay_gap_is_filled);
    tcase_add_test(t, relay_first_token_stands);
    tcase_add_test(t, relay_decode_worker_dies);
    tcase_add_loop_test(t, relay_lost_is_tried_again, 0, 6);
    tcase_add_loop_test(t, relay_lost_for_good, 0, 2);
    tcase_add_test(t, relay_free_cancels_on_both);
    tcase_add_test(t, relay_stalled_worker_is_left);
    tcase_add_test(t, relay_two_deaths_are_enough);
    tcase_add_test(t, relay_link_comes_back);
    tcase_add_test(t, relay_prefill_was_lost_with_the_link);
    tcase_add_test(t, relay_link_does_not_come_back);
    tcase_add_test(t, relay_another_process_listens);
    tcase_add_test(t, relay_death_is_noticed_at_once);
    tcase_add_test(t, relay_redirect);
    tcase_add_test(t, relay_parked_for_nobody);
    tcase_add_loop_test(t, relay_loads_are_given_back, 0, 2);
    tcase_add_test(t, relay_old_news_of_its_own);
    tcase_add_test(t, relay_debug_says_where);
    tcase_add_test(own, relay_deadlines);
    tcase_add_test(t, relay_progress_may_wrap);
    tcase_add_test(t, relay_own_stall_is_not_the_workers);
    tcase_add_test(own, relay_herd_keeps_to_credits);
    tcase_add_test(own, relay_urgent_goes_first);
    tcase_add_test(own, relay_queue_is_bounded);
    suite_add_tcase(s, t);
    suite_add_tcase(s, own);
    return s;
}
