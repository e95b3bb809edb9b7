"""Replicas of running sequences (replicas = 1): when a decode worker dies, its sequences go on at the
worker that has their finished blocks; only the end of their tokens is computed again."""
import signal
import sys
from pathlib import Path

import pytest

from conftest import TINY, running, wait_for

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "chaos"))

from rig import Rig  # noqa: E402
from test_move import SLOWED, bodies, tickets, under_load  # noqa: E402

BLOCK = 16


@pytest.fixture(scope="module")
def cluster():
    yield from running(Rig("--threads", "1", model=TINY / "llama", prefill=1, decode=2,
                           sets=["replicas=1", "stall_ms=5000"]))


def counters(r):
    return {name: r.sum(name) for name in (
        "baton_replica_resumes_total", "baton_retries_total", "baton_divergence_total", "baton_checksum_errors_total")}


def copied_bytes(r):
    return sum(r.own(n, "baton_replica_bytes_total") for n in ("decoded-1", "decoded-2"))


def grown(r, before):
    return {name: value - before[name] for name, value in counters(r).items()}


def running_at(r, name):
    return [t for t in tickets(r, name) if t["state"] == "active"]


def salted(some, salt):
    """What one run leaves in the prefix caches is nothing to another."""
    return [dict(b, cache_salt=salt) for b in some]


def computed(r, name):
    return r.own(name, "baton_prefill_tokens_total")


def test_a_dead_worker_costs_only_the_tail(cluster):
    """Killed with sequences of about 700 tokens each: the prefill worker has nothing to do, and what the
    survivor computes is what had not been copied yet."""
    some = [dict(b, prompt=[3 + (k * 131 + i * i * 7 + i) % 290 for i in range(500 + 37 * k)])
            for k, b in enumerate(bodies(4, 1200))]
    want = under_load(cluster, salted(some, "undisturbed"), lambda seen: None)
    cluster.settle()
    before, sent = counters(cluster), copied_bytes(cluster)
    cluster.arm(*SLOWED)
    asked, tail, victims, copied = [], [], [], []

    def act(seen):
        wait_for(lambda: len(seen) > 4 * 100, 60, every=0.005)
        both = {n: running_at(cluster, n) for n in ("decoded-1", "decoded-2")}
        victims.append(max(both, key=lambda n: len(both[n])))
        other = next(n for n in both if n != victims[0])
        wait_for(lambda: all(t["copied"] >= t["tokens"] // BLOCK - 6 for t in running_at(cluster, victims[0])), 20,
                 every=0.002)
        copied.append(copied_bytes(cluster))  # a dead worker's count is gone
        asked.append(computed(cluster, "prefilld-1"))
        tail.append(computed(cluster, other))
        victims.append(len(running_at(cluster, victims[0])))
        cluster.signal(victims[0], signal.SIGKILL)

    assert under_load(cluster, salted(some, "killed"), act) == want
    got = grown(cluster, before)
    other = next(n for n in ("decoded-1", "decoded-2") if n != victims[0])
    assert got["baton_replica_resumes_total"] == got["baton_retries_total"] == victims[1] > 0, got
    assert got["baton_divergence_total"] == 0, got
    assert copied[0] > sent
    wait_for(lambda: computed(cluster, other) > tail[0], 10)
    assert computed(cluster, "prefilld-1") == asked[0], "nothing went back to the prefill worker"
    assert computed(cluster, other) - tail[0] <= victims[1] * 8 * BLOCK
    cluster.restart(victims[0])
    cluster.wait_linked()
    cluster.settle()


def test_without_its_replica_it_is_computed_again(cluster):
    """The holder has lost what it held, and the worker dies before there is another replica."""
    [body] = [dict(b, prompt=[3 + (i * i * 7 + i) % 290 for i in range(900)]) for b in bodies(1, 1000)]
    want = under_load(cluster, salted([body], "undisturbed"), lambda seen: None)
    cluster.settle()
    cluster.arm(*(s.replace("delay:5", "delay:20") for s in SLOWED))  # a restart takes a while
    before = counters(cluster)

    def act(seen):
        wait_for(lambda: len(seen) > 40, 60, every=0.005)
        [victim] = [n for n in ("decoded-1", "decoded-2") if running_at(cluster, n)]
        other = next(n for n in ("decoded-1", "decoded-2") if n != victim)
        wait_for(lambda: all(t["copied"] for t in running_at(cluster, victim)), 20, every=0.005)
        cluster.reset(replicas=0)  # there will be no other one
        for name in (other, victim):
            cluster.signal(name, signal.SIGKILL)
            wait_for(lambda: not cluster.pid(name), 10)
            cluster.restart(name)
            cluster.wait_linked()

    assert under_load(cluster, salted([body], "lost"), act) == want
    got = grown(cluster, before)
    assert got["baton_retries_total"] == 1 and got["baton_divergence_total"] == 0, got
    assert got["baton_replica_resumes_total"] == 0, got
    cluster.reset(replicas=1)
    cluster.settle()
