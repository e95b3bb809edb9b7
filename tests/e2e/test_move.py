"""Running sequences that go from one decode worker to another: by POST /admin/workers/NAME/drain, by
SIGTERM. The clients notice nothing, and no prompt is computed again."""
import asyncio
import json
import signal
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from conftest import TINY, running, wait_for

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "chaos"))

from client import ask  # noqa: E402
from rig import Rig  # noqa: E402

SLOWED = [f"decoded-{i}/engine.step@1+1=delay:5" for i in (1, 2)]


@pytest.fixture(scope="module")
def four():
    yield from running(Rig("--threads", "1", model=TINY / "llama", prefill=1, decode=2,
                           sets=["prefix_cache=off", "drain_ms=60000", "stall_ms=5000"]))


def admin(r, path, method="POST", body=None, headers=None):
    data = None if body is None else json.dumps(body).encode()
    req = urllib.request.Request(r.admin + path, data, headers or {}, method=method)
    try:
        with urllib.request.urlopen(req, timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as e:
        return e.code, json.loads(e.read())


def state(r, name):
    workers = json.loads(r.get("/admin/workers", at=r.admin)[1])["workers"]
    return next(w for w in workers if w["name"] == name)


def tickets(r, name):
    return r.debug(name, "tickets")


@pytest.fixture(autouse=True)
def nobody_drains(four):
    yield
    for w in json.loads(four.get("/admin/workers", at=four.admin)[1])["workers"]:
        if w["state"] == "draining":
            admin(four, f"/admin/workers/{w['name']}/drain", "DELETE")
    wait_for(lambda: four.sum("baton_worker_draining") == 0, 10)


def worker_sum(r, name):
    """From the workers that live, themselves: the router hears of it a little later."""
    total = 0
    for worker in ("prefilld-1", "decoded-1", "decoded-2"):
        try:
            total += r.own(worker, name)
        except urllib.error.URLError:
            continue
    return total


def counters(r):
    by_router = ("baton_moves_total", "baton_moves_failed_total", "baton_retries_total", "baton_divergence_total")
    by_workers = ("baton_prefill_tokens_total", "baton_moved_bytes_total")
    return {**{name: r.sum(name) for name in by_router}, **{name: worker_sum(r, name) for name in by_workers}}


def grown(r, before):
    return {name: value - before[name] for name, value in counters(r).items()}


def bodies(n, tokens):
    """Greedy and sampled, with log probabilities, prompts that end anywhere in a block."""
    some = []
    for k in range(n):
        b = {"prompt": [3 + (k * 131 + i * i * 7 + i) % 290 for i in range(20 + 37 * k)],
             "max_tokens": tokens, "ignore_eos": True, "return_token_ids": True, "stream": True,
             "temperature": 0 if k % 2 else 0.9, "seed": k}
        if k % 3 == 0:
            b["logprobs"] = 2
        some.append(b)
    return some


def under_load(r, some, act):
    """Sends all; act(seen) happens while they stream. Returns the outcomes."""
    seen, outs = [], []

    async def run():
        return await asyncio.gather(*[ask(r.port, b, lambda o: seen.append(1)) for b in some])

    t = threading.Thread(target=lambda: outs.extend(asyncio.run(run())))
    t.start()
    try:
        act(seen)
    finally:
        r.disarm()
        t.join()
    assert all(o.whole() and not o.malformed() for o in outs), outs
    return [o.answer() for o in outs]


def test_drain_moves_everything_and_nothing_is_computed_again(four):
    some = bodies(6, 1200)
    want = under_load(four, some, lambda seen: None)
    four.settle()
    before = counters(four)
    four.arm(*SLOWED)

    def act(seen):
        wait_for(lambda: len(seen) > 200, 30, every=0.005)
        busy = {name: len(tickets(four, name)) for name in ("decoded-1", "decoded-2")}
        assert all(busy.values()), busy
        status, answer = admin(four, "/admin/workers/decoded-1/drain")
        assert status == 200 and answer["state"] == "draining", answer
        wait_for(lambda: not tickets(four, "decoded-1"), 30)
        assert len(tickets(four, "decoded-2")) == 6, "nobody has finished meanwhile"
        assert state(four, "decoded-1")["state"] == "draining"
        wait_for(lambda: four.sum("baton_worker_draining", 'role="decode"') == 1, 10)
        page = json.loads(four.get("/debug/requests")[1])
        assert {w["name"]: w["state"] for w in page["workers"]}["decoded-1"] == "draining"
        assert sum(q["moves"] for q in page["requests"]) == busy["decoded-1"]

    assert under_load(four, some, act) == want
    got = grown(four, before)
    assert got["baton_moves_total"] >= 1 and got["baton_moved_bytes_total"] > 0, got
    assert got["baton_retries_total"] == got["baton_moves_failed_total"] == 0, got
    assert got["baton_divergence_total"] == 0, got
    assert got["baton_prefill_tokens_total"] == sum(len(b["prompt"]) for b in some), "no prompt twice"
    four.settle()
    # it takes nothing new, until somebody wants it so
    under_load(four, bodies(2, 4), lambda seen: None)
    assert not tickets(four, "decoded-1")
    status, answer = admin(four, "/admin/workers/decoded-1/drain", "DELETE")
    assert status == 200 and answer["state"] == "up", answer
    wait_for(lambda: four.sum("baton_worker_draining") == 0 and state(four, "decoded-1")["state"] == "up", 10)


def test_it_stands_still_only_for_the_last_block(four):
    """When the sequence is frozen all its full blocks are at the target."""
    some = [dict(bodies(1, 800)[0], prompt=[3 + i * 7 % 290 for i in range(1000)])]
    want = under_load(four, some, lambda seen: None)
    four.arm(*SLOWED, "decoded-1/move.frozen@1=stop", "decoded-2/move.frozen@1=stop")

    def act(seen):
        source = wait_for(lambda: next((n for n in ("decoded-1", "decoded-2") if tickets(four, n)), None), 30)
        target = next(n for n in ("decoded-1", "decoded-2") if n != source)
        wait_for(lambda: len(seen) > 20, 30, every=0.005)
        admin(four, f"/admin/workers/{source}/drain")
        wait_for(lambda: four.state_letter(source) == "T", 30, every=0.005)
        full = (1000 + len(seen)) // 16  # what the source has sent may be on its way yet

        def all_there():
            [there] = tickets(four, target)
            assert there["state"] == "filling", there
            return there["good"] >= 2 * (full - 1)
        wait_for(all_there, 5)
        four.signal(source, signal.SIGCONT)
        wait_for(lambda: not tickets(four, source), 30)
        admin(four, f"/admin/workers/{source}/drain", "DELETE")

    assert under_load(four, some, act) == want
    four.settle()


def test_there_and_back_again(four):
    """Both workers in turn, five times, with the same streams running."""
    some = bodies(4, 1500)
    want = under_load(four, some, lambda seen: None)
    before = counters(four)
    four.arm(*SLOWED)

    def act(seen):
        wait_for(lambda: len(seen) > 100, 30, every=0.005)
        for k in range(5):
            name = f"decoded-{1 + k % 2}"
            assert admin(four, f"/admin/workers/{name}/drain", body={"drain": True})[0] == 200
            wait_for(lambda: not tickets(four, name), 30)
            assert admin(four, f"/admin/workers/{name}/drain", body={"drain": False})[0] == 200
            wait_for(lambda: state(four, name)["state"] == "up", 10)

    assert under_load(four, some, act) == want
    got = grown(four, before)
    assert got["baton_moves_total"] >= 8, got
    assert got["baton_retries_total"] == got["baton_divergence_total"] == 0, got
    four.settle()


def test_sigterm_moves_what_runs(four):
    """The worker leaves long before its sequences would have ended."""
    some = bodies(6, 1500)
    want = under_load(four, some, lambda seen: None)
    before = counters(four)
    four.arm(*SLOWED)

    def act(seen):
        wait_for(lambda: len(seen) > 200 and tickets(four, "decoded-1"), 30, every=0.005)
        four.signal("decoded-1", signal.SIGTERM)
        wait_for(lambda: not four.pid("decoded-1"), 30)
        assert len(seen) < 6000

    assert under_load(four, some, act) == want
    got = grown(four, before)
    assert got["baton_moves_total"] >= 1 and got["baton_retries_total"] == 0, got
    four.restart("decoded-1")
    four.wait_linked()
    four.settle()


def test_without_a_peer_it_finishes(four):
    """Both drain: what runs is finished where it is."""
    some = bodies(4, 600)
    want = under_load(four, some, lambda seen: None)
    before = counters(four)
    four.arm(*SLOWED)

    def act(seen):
        wait_for(lambda: len(seen) > 50, 30, every=0.005)
        for name in ("decoded-1", "decoded-2"):
            assert admin(four, f"/admin/workers/{name}/drain")[0] == 200

    assert under_load(four, some, act) == want
    assert grown(four, before)["baton_retries_total"] == 0
    assert four.get("/ready")[0] == 503
    for name in ("decoded-1", "decoded-2"):
        assert admin(four, f"/admin/workers/{name}/drain", "DELETE")[0] == 200
    wait_for(lambda: four.get("/ready")[0] == 200, 10)
    four.settle()


def test_draining_prefill_worker_leaves_when_its_kv_is_gone(four):
    """It computes and hands over what it has, and goes then, not before."""
    four.arm(*SLOWED, "prefilld-1/engine.step@1+1=delay:1000")  # its loop goes on, and can be asked
    some = bodies(4, 30)

    def act(seen):
        wait_for(lambda: four.debug("prefilld-1", "jobs"), 30, every=0.005)
        four.signal("prefilld-1", signal.SIGTERM)
        wait_for(lambda: not four.pid("prefilld-1"), 30)

    before = counters(four)
    under_load(four, some[-1:], act)
    assert grown(four, before)["baton_retries_total"] == 0
    four.restart("prefilld-1")
    four.wait_linked()
    four.settle()


@pytest.mark.parametrize("path,method,body,headers,status", [
    ("/admin/workers/nobody/drain", "POST", None, None, 404),
    ("/admin/workers/decoded-1/dry", "POST", None, None, 404),
    ("/admin/workers/decoded-1/drain", "POST", {"drain": 1}, None, 400),
    ("/admin/workers/decoded-1/drain", "POST", [], None, 400),
    ("/admin/workers/decoded-1/drain", "GET", None, None, 405),
    ("/admin/workers/decoded-1/drain", "POST", None, {"Origin": "http://example.org"}, 403),
    ("/admin/workers", "POST", None, None, 405),
])
def test_bad_admin_requests(four, path, method, body, headers, status):
    code, answer = admin(four, path, method, body, headers)
    assert code == status and answer["error"]["message"], answer
    assert four.sum("baton_worker_draining") == 0


def test_a_worker_is_named_by_its_address_too(four):
    address = state(four, "prefilld-1")["address"]
    assert admin(four, f"/admin/workers/{address}/drain")[1]["state"] == "draining"
    wait_for(lambda: four.get("/ready")[0] == 503, 10)
    assert admin(four, f"/admin/workers/{address}/drain", "DELETE")[1]["state"] == "up"
    wait_for(lambda: four.get("/ready")[0] == 200, 10)
