"""Requests and workers in trouble: full pools, ends at the first token, refusals, transfers that break,
workers that come back, health, drain. On tiny models, so that a case takes a second or two; the faults
themselves are tests/chaos."""
import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from conftest import BIN, SLOW, TINY, running, wait_for

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "chaos"))

from client import ask  # noqa: E402
from rig import Rig  # noqa: E402

BLOCK = 16
SALTS = iter(range(1 << 30))


def rig(prefill=1, decode=1, sets=(), model=TINY / "llama"):
    return Rig("--threads", "1", model=model, prefill=prefill, decode=decode, sets=sets)


def prompt(n, start=3):
    """n token ids; the same for the same arguments."""
    return [3 + (start * 131 + i * i * 7 + i) % 290 for i in range(n)]


def body(ids, n=8, cold=False, **kw):
    b = {"prompt": ids, "max_tokens": n, "temperature": 0, "return_token_ids": True, **kw}
    if cold:
        b["cache_salt"] = f"cold-{next(SALTS)}"
    return b


def one(r, b, **kw):
    return asyncio.run(ask(r.port, b, **kw))


def many(r, bodies, on_event=None):
    """Outcomes of requests sent together."""
    async def run():
        return await asyncio.gather(*[ask(r.port, b, on_event) for b in bodies])
    return asyncio.run(run())


def whole(out):
    assert out.whole() and not out.malformed(), out
    return out


@pytest.fixture(scope="module")
def pair():
    yield from running(rig())


@pytest.fixture(scope="module")
def four():
    yield from running(rig(2, 2, sets=["stall_ms=1000", "prefill_chunk=64", "lease_ms=2000"]))


# ---- prompts at the edges of blocks ----

def test_prompts_at_block_edges_are_the_same_cached_or_not(pair):
    """Cold, from the cache, as the prefix of a cached one, with scores; never all of it is cached."""
    for n in (BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 1, 64, 65):
        cold = whole(one(pair, body(prompt(n, n), 4, cold=True, logprobs=2)))
        scored = one(pair, body(prompt(n, n), 4, echo=True, logprobs=2, cold=True))
        assert whole(scored).ids[-4:] == cold.ids
        for _ in range(3):
            pair.settle()  # a worker knows a prompt once it has let go of it
            warm = whole(one(pair, body(prompt(n, n), 4, logprobs=2)))
            cached = warm.usage["prompt_tokens_details"]["cached_tokens"]
            assert warm.answer() == cold.answer(), n
            assert cached <= n - 1 and cached % BLOCK == 0
        assert cached == (n - 1) // BLOCK * BLOCK, "the third time all full blocks are known"
    first = whole(one(pair, body(prompt(80), 4)))
    for n in (BLOCK, BLOCK + 1, 64):
        shorter, cold = one(pair, body(prompt(n), 4)), one(pair, body(prompt(n), 4, cold=True))
        assert whole(shorter).ids == whole(cold).ids
    assert whole(one(pair, body(prompt(80), 4))).ids == first.ids
    pair.settle()


def test_block_size_and_cache_do_not_change_the_text(pair):
    """At and around block boundaries, and where the answer crosses one, as with other blocks."""
    bodies = [body(prompt(n, n), 20, cold=True) for n in (15, 16, 17, 31, 32, 33, 47, 63, 64, 65)]
    bodies += [dict(b, temperature=1.0, seed=7) for b in bodies]
    here = [whole(o).answer() for o in many(pair, bodies)]
    for other in running(rig(sets=["kv_block_size=64", "prefix_cache=off", "prefill_chunk=64"])):
        assert [whole(o).answer() for o in many(other, bodies)] == here


# ---- the first token is the last ----

def test_one_token_is_one_token(pair):
    decode = pair.own("decoded-1", "baton_drawn_tokens_total")
    for stream in (False, True):
        o = whole(one(pair, body(prompt(40), 1, stream=stream, cold=True)))
        assert len(o.ids) == 1 and o.finish == ["length"]
    assert pair.own("decoded-1", "baton_drawn_tokens_total") == decode
    pair.settle(2)


def first_is_end(r):
    """A request whose first token is the end-of-sequence token: some seed draws it."""
    base = body(prompt(20), 1, temperature=2.0, cold=False)
    for start in range(0, 4000, 50):
        outs = many(r, [dict(base, seed=s) for s in range(start, start + 50)])
        for s, o in enumerate(outs, start):
            if whole(o).finish == ["stop"]:
                return dict(base, seed=s, max_tokens=30)
    raise AssertionError("no seed draws the end at once")


def test_end_at_the_first_token(pair):
    """By the end token, or by a stop string that it completes: the decode worker never hears of it."""
    ending = first_is_end(pair)
    plain = whole(one(pair, body(prompt(30), 20)))
    word = whole(one(pair, body(prompt(30), 1))).text
    decode = pair.own("decoded-1", "baton_drawn_tokens_total")
    for stream in (False, True):
        o = whole(one(pair, dict(ending, stream=stream)))
        assert (o.text, o.finish, len(o.ids)) == ("", ["stop"], 1)
    assert pair.own("decoded-1", "baton_drawn_tokens_total") == decode
    for stream in (False, True):
        o = whole(one(pair, body(prompt(30), 20, stop=[word], stream=stream)))
        assert (o.text, o.finish) == ("", ["stop"])
    on = whole(one(pair, dict(ending, ignore_eos=True)))
    assert pair.own("decoded-1", "baton_drawn_tokens_total") > decode, "it is the right count"
    assert len(on.ids) == 30 and on.finish == ["length"] and on.ids[0] != 2
    assert len(plain.ids) == 20
    pair.settle(2)


# ---- what the router adds or forgets ----

def test_fields_survive_the_hand_over(pair):
    """Limits, log probabilities and usage are the client's, on both legs."""
    chat = {"messages": [{"role": "user", "content": "the baton"}], "temperature": 0, "ignore_eos": True}
    o = whole(one(pair, dict(chat, max_completion_tokens=9)))
    assert o.usage["completion_tokens"] == 9
    free = whole(one(pair, {**chat, "ignore_eos": False, "temperature": 1.0, "seed": 5}))  # no max_tokens
    assert free.finish == ["stop"] or free.usage["total_tokens"] == 2048
    o = whole(one(pair, dict(chat, max_tokens=5, logprobs=True, top_logprobs=2)))
    assert len(o.logprobs) == 5 and all(len(t[2]) == 2 for t in o.logprobs), "the first token has them too"
    events = pair.stream("/v1/chat/completions", dict(chat, max_tokens=4, stream_options={"include_usage": True}))
    usages = [e["usage"] for e in events if e != "[DONE]" and e.get("usage")]
    assert len(usages) == 1 and usages[0]["completion_tokens"] == 4
    assert whole(one(pair, dict(chat, max_tokens=4, some_unknown_field=1, user="x"))).usage["completion_tokens"] == 4
    pair.settle()


# ---- pools ----

def test_request_that_can_never_fit(pair):
    """It is told so at once; one that would outgrow the pool ends there; small ones are served meanwhile."""
    for r in running(rig(sets=["decoded.kv_blocks=20"])):  # 320 tokens
        began = time.monotonic()
        o = one(r, body(prompt(20 * BLOCK + 1), 8))
        assert o.status in (400, 503) and o.error, o
        assert time.monotonic() - began < 2 * SLOW
        outs = many(r, [body(prompt(200), 600, ignore_eos=True), body(prompt(20), 5, ignore_eos=True)])
        assert whole(outs[0]).finish == ["length"]
        assert 19 * BLOCK <= outs[0].usage["total_tokens"] <= 20 * BLOCK + 1  # one block is for growing
        assert whole(outs[1]).usage["completion_tokens"] == 5
        assert outs[0].ids == whole(one(pair, body(prompt(200), len(outs[0].ids), ignore_eos=True))).ids
        r.settle()


@pytest.mark.parametrize("n, blocks, tokens", [(6, 64, 620), (40, 24, 100)])
def test_full_pool_preempts_and_everything_ends(pair, n, blocks, tokens):
    """Six that grow to 40 blocks each in a pool of 64; forty in a pool of three. Two clients leave."""
    bodies = [body(prompt(20, k), tokens, ignore_eos=True, cold=True, stream=True,
                   stream_options={"include_usage": True},
                   **({"temperature": 1.0, "seed": k} if k % 2 else {})) for k in range(n)]
    alone = [whole(o).answer() for o in many(pair, bodies)]
    for r in running(rig(sets=[f"decoded.kv_blocks={blocks}", "prefilld.kv_blocks=128"])):
        ticks = []

        async def run():
            tasks = [asyncio.create_task(ask(r.port, b, lambda o: ticks.append(time.monotonic()))) for b in bodies]
            while not any(t.done() for t in tasks) and len(ticks) < n * tokens // 4:
                await asyncio.sleep(0.005)
            for t in tasks[2:4]:
                t.cancel()
            return await asyncio.gather(*tasks, return_exceptions=True)

        outs = asyncio.run(run())
        for k, o in enumerate(outs):
            if k in (2, 3):
                continue
            assert whole(o).answer() == alone[k], k
            assert o.usage["prompt_tokens_details"]["cached_tokens"] == 0, "recomputing is no cache hit"
        assert max(b - a for a, b in zip(ticks, ticks[1:])) < 5 * SLOW
        if n != 40:
            wait_for(lambda: r.sum("baton_preemptions_total"), 5)  # workers report once in a while
        r.settle()


# ---- refusals ----

def test_draining_decode_worker_refuses_at_once():
    """Twenty requests while the only decode worker drains: each is told at once, nothing is left behind."""
    for r in running(rig(sets=["worker_wait_ms=300"])):
        r.arm("decoded-1/engine.step@1+1=delay:8")
        t = threading.Thread(target=lambda: one(r, body(prompt(30), 400, ignore_eos=True)))
        t.start()
        wait_for(lambda: r.sum("baton_worker_sequences"), 10)
        r.signal("decoded-1", signal.SIGTERM)
        wait_for(lambda: r.get("/ready")[0] == 503, 5)
        for o in many(r, [body(prompt(50, k), 5) for k in range(20)]):
            assert o.status == 503 and o.error and o.seconds < 2 * SLOW, o
        for wrong, status in [({"prompt": prompt(5000)}, 400), ({"prompt": "x", "model": "nobody"}, 404),
                              ({"messages": "hello"}, 400)]:
            o = one(r, dict({"max_tokens": 3}, **wrong))
            assert o.status == status and o.error
        wait_for(lambda: r.sum("baton_worker_jobs") == 0, 2)
        t.join()
        wait_for(lambda: r.free_blocks() == r.all_blocks(), 2)


def test_prompt_longer_than_the_prefill_worker_takes():
    for r in running(rig(sets=["prefilld.context_length=512", "prefilld.queue_max=2"])):
        o = one(r, body(prompt(600), 5))
        assert o.status == 400 and o.error["code"] == "context_length_exceeded", o
        assert r.sum("baton_worker_reservations_waiting") == 0
        outs = many(r, [body(prompt(100, k), 3, cold=True) for k in range(24)])  # more than its queue
        assert all(o.whole() or o.status in (429, 503) for o in outs) and any(o.whole() for o in outs)
        r.settle(2)


def test_storm_of_cancellations(pair):
    """200 clients leave within a second, while their prompts are computed; the next ones are served as ever."""
    async def storm():
        tasks = [asyncio.create_task(ask(pair.port, body(prompt(400 + k, k), 50, cold=True))) for k in range(200)]
        for k, t in enumerate(tasks):
            await asyncio.sleep(0.004)
            t.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    whole(one(pair, body(prompt(50), 5)))
    asyncio.run(storm())
    began = time.monotonic()
    whole(one(pair, body(prompt(50), 5)))
    assert time.monotonic() - began < 2 * SLOW
    pair.settle(2)
    for name in ("prefilld-1", "decoded-1"):
        wait_for(lambda: work(pair, name) == [], 2)


def work(r, name):
    return r.debug(name, "jobs") + r.debug(name, "tickets")


def test_prefill_worker_dies_while_the_client_leaves(four):
    """The decode worker waits for nobody then, and leaks nothing."""
    for k in range(3):
        victim = f"prefilld-{1 + k % 2}"
        four.arm(f"{victim}/CANCEL.received=kill", *(f"prefilld-{i}/prefill.layer@1+1=delay:10" for i in (1, 2)))

        async def run():
            tasks = [asyncio.create_task(ask(four.port, body(prompt(900, j), 20, cold=True))) for j in range(4)]
            await asyncio.sleep(0)
            while len(work(four, victim)) == 0 and not all(t.done() for t in tasks):
                await asyncio.sleep(0.005)
            for t in tasks:
                t.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run(run())
        wait_for(lambda: not four.pid(victim), 5)
        wait_for(lambda: work(four, "decoded-1") == [] and work(four, "decoded-2") == [], 10)
        four.heal()
        four.settle()


# ---- transfers that break ----

def test_time_limit_in_mid_transfer():
    for r in running(rig(sets=["request_timeout_ms=800", "prefill_chunk=64"])):
        r.arm("prefilld-1/prefill.layer@1+1=delay:60")
        o = one(r, body(prompt(1500), 5))
        assert o.status == 504 and o.error and 0.7 < o.seconds < 2.5 * SLOW, o
        r.disarm()
        r.settle(2)
        whole(one(r, body(prompt(20), 3)))


def test_decode_worker_lost_for_good():
    """Before the first byte: 503 in JSON. After it: an error event, no finish_reason, no [DONE]."""
    for r in running(rig(sets=["worker_wait_ms=500"])):
        r.arm("decoded-1/HANDOFF.received=kill", "decoded-1/decode.token@1+1=delay:5")
        o = one(r, body(prompt(100), 50, cold=True, ignore_eos=True))
        assert o.status == 503 and o.error and o.seconds < 5 * SLOW, o
        r.heal()
        r.arm("decoded-1/decode.token@40=kill")  # the last tokens before it may die with it
        o = one(r, body(prompt(30), 50, cold=True, ignore_eos=True, stream=True))
        assert o.status == 200 and o.error and not o.finish and not o.done and len(o.ids) >= 5, o
        r.heal()
        r.arm("prefilld-1/prefill.layer=kill")
        o = one(r, body(prompt(100), 50, cold=True))
        assert o.status == 503 and o.error, o
        r.heal()
        r.settle()
        assert r.sum("baton_divergence_total") == 0


@pytest.mark.parametrize("fault", ["prefilld-{}/kv.sent@12=kill", "prefilld-{}/kv.sent@12=corrupt"])
def test_broken_transfer_enters_no_cache(four, fault):
    """Cut after half of the blocks, or with a flipped bit: the same prompt then gives the same text."""
    reference = whole(one(four, body(prompt(700, 9), 12, cold=True))).ids
    shorter = whole(one(four, body(prompt(400, 9), 12, cold=True))).ids
    failures = four.sum("baton_transfer_failures_total") + four.sum("baton_kv_checksum_errors_total")
    four.arm(*[fault.format(k) for k in (1, 2)][:1 if "kill" in fault else 2])
    salt = f"shared-{fault}"
    for _ in range(6):
        outs = many(four, [body(prompt(700, 9), 12, cache_salt=salt) for _ in range(2)])
        assert all(whole(o).ids == reference for o in outs)
        if four.fired("prefilld-1") or four.fired("prefilld-2"):
            break
    assert four.fired("prefilld-1") or four.fired("prefilld-2")
    if "corrupt" in fault:
        wait_for(lambda: four.sum("baton_transfer_failures_total") +
                 four.sum("baton_kv_checksum_errors_total") > failures, 3)
    four.heal()
    for _ in range(3):
        assert all(whole(o).ids == reference for o in many(four, [body(prompt(700, 9), 12, cache_salt=salt)] * 4))
    assert whole(one(four, body(prompt(400, 9), 12, cache_salt=salt))).ids == shorter
    four.settle()


# ---- workers that come back, and workers of another kind ----

def test_worker_returns_to_its_address(four):
    """Killed under load, when idle, and twice in a row; every pair serves afterwards, survivors were not touched."""
    want = whole(one(four, body(prompt(60, 4), 10, cold=True))).ids
    for name, times, idle in [("decoded-1", 1, False), ("prefilld-1", 1, False), ("decoded-2", 1, True),
                              ("prefilld-2", 2, False), ("decoded-1", 2, True)]:
        others = {n: four.pid(n) for n in four.names if n != name}
        stop, bad = threading.Event(), []

        def steady():
            while not stop.is_set():
                o = one(four, body(prompt(60, 4), 10, cold=True))
                if not o.whole() or o.ids != want:
                    bad.append(o)
                stop.wait(0.1)

        load = threading.Thread(target=steady)
        if not idle:
            load.start()
        for _ in range(times):
            four.signal(name, signal.SIGKILL)
            wait_for(lambda: not four.pid(name), 5)
            four.restart(name)
        four.wait_linked()
        stop.set()
        if not idle:
            load.join()
        assert not bad, bad[0]
        before = {n: moved_bytes(four, n) for n in four.workers}
        for _ in range(10):
            outs = many(four, [body(prompt(60, 4), 10, cold=True) for _ in range(16)])
            assert all(whole(o).ids == want for o in outs)
            if all(moved_bytes(four, n) > before[n] for n in four.workers):
                break
        assert all(moved_bytes(four, n) > before[n] for n in four.workers), "every worker took part"
        assert {n: four.pid(n) for n in others} == others
    four.settle()


def moved_bytes(r, name):
    """KV bytes that a worker has sent or received."""
    return r.own(name, "baton_kv_bytes_(?:sent|received)_total")


@pytest.mark.parametrize("other, why", [
    ("model = {tiny}/llama-q8_0.gguf", "model differs"),
    ("kv_block_size = 32", "kv_layout differs"),
    ("model = {tiny}/qwen3", "differs")])
def test_worker_of_another_kind_is_not_used(pair, other, why):
    """Another checkpoint of the same shape, another block size, another model: the reason is told, nobody is
    paired with it, and a good worker beside it serves."""
    want = whole(one(pair, body(prompt(60), 10))).ids
    for r in running(rig(1, 2)):
        r.local("stop", "decoded-2")
        wait_for(lambda: "decoded-2" not in r.get("/metrics")[1], 5)
        key = other.split(" = ")[0]
        conf = Path(r.state, "decoded-2.conf")
        lines = [line for line in conf.read_text().splitlines() if not line.startswith(key + " ")]
        conf.write_text("\n".join(lines) + "\n" + other.format(tiny=TINY) + "\n")
        bad = subprocess.Popen([BIN / "decoded", "-c", conf], stderr=subprocess.DEVNULL)
        try:
            wait_for(lambda: "decoded-2" in r.get("/metrics")[1], 10)
            assert all(whole(o).ids == want for o in many(r, [body(prompt(60), 10)] * 6))
            r.local("stop", "decoded-1")
            wait_for(lambda: r.get("/ready")[0] == 503, 5)
            assert why in r.get("/ready")[1], r.get("/ready")
        finally:
            bad.kill()
            bad.wait()


# ---- health ----

def test_health_from_the_first_moment():
    """Alive from the start; ready only when a pair can serve, and again after each loss."""
    r = rig(sets=["stall_ms=500", "heartbeat_ms=100"])
    seen = []
    stop = threading.Event()

    def watch():
        while not stop.is_set():
            try:
                seen.append((r.get("/health", 1)[0], r.get("/ready", 1)[0]))
            except OSError:
                pass
            time.sleep(0.002)

    t = threading.Thread(target=watch)
    t.start()
    try:
        r.start()
        wait_for(lambda: seen and seen[-1] == (200, 200), 5)
        stop.set()
        t.join()
        assert {h for h, _ in seen} == {200}, "alive whenever it answered"
        assert (200, 503) in seen or seen[0] == (200, 200)
        r.signal("decoded-1", signal.SIGSTOP)
        wait_for(lambda: r.get("/ready")[0] == 503, 2)
        assert r.get("/health")[0] == 200 and "decode" in json.loads(r.get("/ready")[1]).get("reason", r.get("/ready")[1])
        r.signal("decoded-1", signal.SIGCONT)
        wait_for(lambda: r.get("/ready")[0] == 200, 3)
        r.arm("decoded-1/engine.step@3=delay:2500")  # the engine hangs, the process lives
        t = threading.Thread(target=lambda: one(r, body(prompt(30), 20, ignore_eos=True)))
        t.start()
        wait_for(lambda: r.get("/ready")[0] == 503, 3, every=0.01)
        wait_for(lambda: r.get("/ready")[0] == 200, 6)
        t.join()
        r.signal("decoded-1", signal.SIGKILL)
        wait_for(lambda: r.get("/ready")[0] == 503, 2)
        r.heal()
    finally:
        stop.set()
        t.join()
        r.stop()


def test_long_prefill_is_no_hang():
    """A chunk that takes four times stall_ms: the worker makes progress, layer by layer, and stays in use."""
    long = {"prompt": [1000 + i * 7 % 9000 for i in range(2000)], "max_tokens": 2, "temperature": 0}
    for r in running(Rig(sets=["prefill_chunk=2048"])):  # how long it takes here
        stall_ms = max(150, int(whole(one(r, long, timeout=300)).seconds * 1000 / 4))
    for r in running(Rig(sets=["prefill_chunk=2048", f"stall_ms={stall_ms}", "heartbeat_ms=50"])):
        states, done = [], threading.Event()

        def watch():
            while not done.is_set():
                states.append(r.get("/ready")[0])
                time.sleep(0.02)

        t = threading.Thread(target=watch)
        t.start()
        o = one(r, long, timeout=300)
        done.set()
        t.join()
        assert whole(o).seconds > stall_ms / 1000, "it took longer than stall_ms"
        assert set(states) == {200}
        assert r.sum("baton_retries_total") == 0


# ---- drain ----

@pytest.mark.parametrize("who", ["routerd", "decoded-1", "prefilld-1"])
def test_sigterm_with_twenty_streams(pair, who):
    """They are finished, or go on elsewhere, exactly; new ones are refused or served by others; it ends."""
    bodies = [body(prompt(30, k), 150, ignore_eos=True, stream=True, cold=True) for k in range(20)]
    want = [whole(o).ids for o in many(pair, bodies)]
    for r in running(rig(2, 2)):
        r.arm("decoded-1/engine.step@1+1=delay:10", "decoded-2/engine.step@1+1=delay:10")
        seen, late = [], []

        def act():
            wait_for(lambda: len(seen) > 100, 20, every=0.005)
            pid = r.signal(who, signal.SIGTERM)
            wait_for(lambda: r.lines(who, "SIGTERM|signal 15"), 5)
            late.extend(many(r, [body(prompt(12), 3)] * 3))
            wait_for(lambda: not os.path.exists(f"/proc/{pid}") or r.state_letter(who) in "Z-", 30)

        t = threading.Thread(target=act)
        t.start()
        outs = many(r, bodies, lambda o: seen.append(1))
        t.join()
        assert [whole(o).ids for o in outs] == want
        if who == "routerd":
            assert all(o.status == 503 or o.cut.startswith("ConnectionRefused") for o in late), late
        else:
            assert all(o.whole() for o in late), late
            r.restart(who)
            r.wait_linked()
            r.settle()


def test_second_sigterm_ends_at_once(pair):
    for r in running(rig(1, 2)):
        r.arm("decoded-1/engine.step@1+1=delay:10", "decoded-2/engine.step@1+1=delay:10")
        want = whole(one(pair, body(prompt(30), 200, ignore_eos=True))).ids
        got = []
        t = threading.Thread(target=lambda: got.append(one(r, body(prompt(30), 200, ignore_eos=True))))
        t.start()
        busy = wait_for(lambda: next((n for n in ("decoded-1", "decoded-2") if work(r, n)), None), 10, every=0.005)
        r.signal(busy, signal.SIGTERM)
        wait_for(lambda: r.lines(busy, "draining"), 5)
        began = time.monotonic()
        r.signal(busy, signal.SIGTERM)
        wait_for(lambda: not r.pid(busy), 5, every=0.005)
        assert time.monotonic() - began < 3 * SLOW
        r.disarm()
        t.join()
        assert whole(got[0]).ids == want, "the other worker goes on with it"
        r.restart(busy)
        r.wait_linked()
        r.settle()
