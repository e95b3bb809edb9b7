#!/usr/bin/env python3
"""Chaos: injects faults into a running cluster, by seed, and checks what every client got.

    chaos.py [--seed N] [--injections N] [--only I] [--row TEXT] [--list] [--verbose]

One cluster of two prefill and two decode workers serves all injections; what died is restarted. Each
injection takes a row of the table in faults.py and a batch of mixed requests, and then holds:
  - every request has exactly one outcome: its whole answer, equal to the reference to the last bit
    (text, ids, log probabilities, usage), or what the row allows besides, well-formed;
  - none took longer than request_timeout_ms; baton_divergence_total has not grown;
  - all KV blocks of all workers come back; the fault really happened, and nobody died but the victim.
At the end no process is left. A seed replays the whole run; --only repeats one injection of it."""
import argparse
import asyncio
import os
import random
import sys
import time
import traceback

from client import Outcome, ask
from faults import ROWS, STALL, D, P, R
from load import Load
from rig import SLOW, Rig

from conftest import TINY

REQUEST_TIMEOUT = 20.0
SETTLE = 3.0  # blocks are free again so many seconds after the last answer
SETTINGS = {"stall_ms": int(STALL * 1000), "heartbeat_ms": 100, "router_grace_ms": 1000, "lease_ms": 1000,
            "request_timeout_ms": int(REQUEST_TIMEOUT * SLOW * 1000), "worker_wait_ms": 15000,
            "prefill_chunk": 64, "kv_blocks": 320, "drain_ms": 15000, "log_level": os.environ.get("CHAOS_LOG", "info")}


class Case:
    """One injection."""

    def __init__(self, rig, load, row, seed):
        self.rig, self.load, self.row = rig, load, row
        self.rng = random.Random(seed)
        self.notes, self.outcomes, self.tasks = [], [], []
        self.tokens_seen, self.hit, self.batches = 0, False, 0
        self.killed = set()  # who may be found dead

    def note(self, text):
        self.notes.append(text)

    # ---- the load ----

    def start(self, n=8, leavers=0, on_event=None):
        """Starts a batch; returns what to await for its end. The first `leavers` are not patient."""
        self.batches += 1
        needs = self.row.needs or {}
        indices = self.load.batch(self.rng, n, **needs)
        self.tasks = []

        def seen(out, leaver):
            self.tokens_seen += 1
            if leaver and on_event:
                on_event(out)

        for k, i in enumerate(indices):
            leaver = k < leavers
            stream = leaver or self.rng.random() < 0.7
            body = self.load.body(i, stream)
            task = asyncio.create_task(ask(self.rig.port, body, lambda o, l=leaver: seen(o, l),
                                           timeout=(REQUEST_TIMEOUT + 3) * SLOW))
            task.leaver = leaver
            self.tasks.append((i, task))
        return asyncio.ensure_future(self._collect(list(self.tasks)))

    async def _collect(self, tasks):
        for i, t in tasks:
            try:
                self.outcomes.append((i, await t))
            except asyncio.CancelledError:  # it left before it had begun
                self.outcomes.append((i, Outcome(aborted=True)))

    def abort_leavers(self):
        for _, t in self.tasks:
            if t.leaver:
                t.cancel()

    # ---- what the table asks ----

    def workers(self, who):
        kind = {P: "prefilld", D: "decoded"}[who]
        return [n for n in self.rig.workers if n.startswith(kind)]

    def victim(self, who):
        return "routerd" if who == R else self.rng.choice(self.workers(who))

    async def until(self, what, batch, seconds=20.0):
        """Waits until what() is true, at most until the batch has ended; says whether it came true."""
        end = time.monotonic() + seconds * SLOW
        while not batch.done() and time.monotonic() < end:
            if what():
                self.hit = True
                return True
            await asyncio.sleep(0.002)
        if what():
            self.hit = True
            return True
        return False

    def _debug(self, name, key):
        try:
            return self.rig.debug(name, key, timeout=2)
        except (OSError, ValueError):
            return []

    def computing(self, victim):
        if victim and victim.startswith("decoded"):
            return any(t["state"] in ("RESERVED", "FILLING", "reserved", "filling")
                       for t in self._debug(victim, "tickets"))
        names = [victim] if victim else self.workers(P)
        return any(0 < j["computed"] < j["tokens"] for n in names for j in self._debug(n, "jobs"))

    def decoding(self, victim):
        names = [victim] if victim else self.workers(D)
        return any(t["state"].lower() == "active" for n in names for t in self._debug(n, "tickets"))

    async def dead(self, name, seconds=10.0):
        """Waits for the end of a process that was told to end."""
        self.killed.add(name)
        await self._wait(lambda: not self.rig.pid(name), seconds, f"{name} does not die")

    async def stopped(self, name):
        await self._wait(lambda: self.rig.state_letter(name) == "T", 10.0, f"{name} does not stop")

    async def _wait(self, what, seconds, why):
        end = time.monotonic() + seconds * SLOW
        while not what():
            if time.monotonic() > end:
                raise AssertionError(why)
            await asyncio.sleep(0.002)

    async def restart(self, name):
        await asyncio.to_thread(self.rig.restart, name)

    # ---- the verdict ----

    def problems(self):
        found = []
        for i, o in self.outcomes:
            bad = o.malformed()
            kind = o.kind()
            if bad:
                found.append(f"request {i}: {bad}")
            elif kind == "whole":
                if not self.load.same(i, o):
                    found.append(self.load.differs(i, o))
            elif kind not in self.row.allowed:
                found.append(f"request {i}: {kind}: {o.error or o.cut}")
            if o.seconds > (REQUEST_TIMEOUT + 1) * SLOW:
                found.append(f"request {i}: {o.seconds:.1f} s, later than its deadline")
        return found


class Chaos:
    def __init__(self, seed, verbose):
        self.seed, self.verbose = seed, verbose
        self.rig = Rig("--threads", "1", proxied=True, model=TINY / "llama", prefill=2, decode=2,
                       sets=[f"{k}={v}" for k, v in SETTINGS.items()])
        self.load = Load(seed)
        self.table = {}
        self.passed = self.failed = 0

    def order(self, n):
        """Rows of a run: each once, shuffled, before any comes again."""
        rng, rows = random.Random(self.seed), []
        while len(rows) < n:
            some = list(ROWS)
            rng.shuffle(some)
            rows += some
        return rows[:n]

    async def begin(self):
        await asyncio.to_thread(self.rig.start)
        await self.load.learn(self.rig.port)
        await asyncio.to_thread(self.rig.settle, SETTLE)

    async def inject(self, row, number):
        case = Case(self.rig, self.load, row, f"{self.seed}/{number}")
        before = await asyncio.to_thread(self.rig.metrics)
        begin = time.monotonic()
        problems = []
        try:
            for _ in range(4):
                await row.run(case)
                if case.hit:
                    break
                await asyncio.to_thread(self.rig.heal)
            problems += [f"{n} died by itself" for n in self.rig.names
                         if not self.rig.pid(n) and n not in case.killed]
            await asyncio.to_thread(self.rig.heal)
            calm = time.monotonic()
            await asyncio.to_thread(self.rig.settle, SETTLE + 1)
            case.settled = time.monotonic() - calm
            after = await asyncio.to_thread(self.rig.metrics)
            problems += self._counters(before, after)
            if not case.hit:
                problems.append(f"the fault did not happen in {case.batches} batches")
        except Exception as e:
            problems.append(f"{type(e).__name__}: {e}")
            if self.verbose:
                traceback.print_exc()
        problems += case.problems()
        self._record(row, number, case, time.monotonic() - begin, problems)
        if problems:
            await self._recover()

    def _counters(self, before, after):
        name = ("baton_divergence_total", frozenset())
        grown = after.get(name, 0) - before.get(name, 0)
        return [f"baton_divergence_total grew by {grown:.0f}"] if grown > 0 else []

    async def _recover(self):
        """After a failure the next injection starts from a clean cluster."""
        try:
            await asyncio.to_thread(self.rig.heal)
            await asyncio.to_thread(self.rig.settle, 10)
        except AssertionError:
            for name in self.rig.names:
                self.rig.signal(name, 9)
            for name in self.rig.names:
                await Case(self.rig, self.load, ROWS[0], 0).dead(name)
            await asyncio.to_thread(self.rig.heal)

    def _record(self, row, number, case, seconds, problems):
        kinds = {}
        for _, o in case.outcomes:
            kinds[o.kind()] = kinds.get(o.kind(), 0) + 1
        cell = self.table.setdefault((row.fault, row.where, row.phase), dict(runs=0, bad=0, kinds={}, gap=0))
        cell["runs"] += 1
        cell["bad"] += bool(problems)
        cell["gap"] = max([cell["gap"]] + [o.seconds for _, o in case.outcomes])
        for k, n in kinds.items():
            cell["kinds"][k] = cell["kinds"].get(k, 0) + n
        self.passed += not problems
        self.failed += bool(problems)
        if problems or self.verbose:
            got = ", ".join(f"{n} {k}" for k, n in sorted(kinds.items()))
            print(f"{number:4} {'FAIL' if problems else 'ok  '} {row.name} [{' '.join(case.notes)}]: {got}, "
                  f"{seconds:.1f} s", flush=True)
        for p in problems:
            print(f"     {p}", flush=True)
        if problems:
            print(f"     replay: tests/chaos/run.sh --seed {self.seed} --only {number}; logs in "
                  f"{self.rig.state}", flush=True)

    def report(self):
        print(f"\n{'fault':<26}{'where':<17}{'phase':<21}{'runs':>5}{'failed':>7}  outcomes (slowest request)")
        for (fault, where, phase), c in sorted(self.table.items()):
            kinds = ", ".join(f"{n} {k}" for k, n in sorted(c["kinds"].items(), reverse=True))
            print(f"{fault:<26}{where:<17}{phase:<21}{c['runs']:>5}{c['bad']:>7}  {kinds} ({c['gap']:.1f} s)")
        print(f"\nseed {self.seed}: {len(self.table)} combinations of fault and phase, "
              f"{self.passed + self.failed} injections")


async def main(args):
    chaos = Chaos(args.seed, args.verbose)
    rows = list(enumerate(chaos.order(max(args.injections, (args.only or 0) + 1))))
    if args.only is not None:
        rows = [rows[args.only]]
    if args.row:
        some = [(k, r) for k, r in enumerate(ROWS) if args.row in r.name]
        rows = [(k + 1000 * t, r) for t in range(args.times) for k, r in some]
    begin = time.monotonic()
    try:
        await chaos.begin()
        for number, row in rows:
            await chaos.inject(row, number)
    finally:
        chaos.rig.keep = args.keep and chaos.failed
        try:
            chaos.rig.stop()
        except AssertionError as e:
            chaos.failed += 1
            print(e)
    chaos.report()
    print(f"{time.monotonic() - begin:.0f} s")
    print(f"{chaos.passed} passed, {chaos.failed} failed")
    return chaos.failed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--injections", type=int, default=60)
    parser.add_argument("--only", type=int, help="one injection of the run")
    parser.add_argument("--row", help="all rows whose name contains this, in their order")
    parser.add_argument("--times", type=int, default=1, help="how often each of them")
    parser.add_argument("--list", action="store_true", help="the table of faults")
    parser.add_argument("--keep", action="store_true", help="keep the logs when something failed")
    parser.add_argument("--verbose", action="store_true", help="a line per injection")
    options = parser.parse_args()
    if options.list:
        for number, r in enumerate(ROWS):
            print(f"{number:4} {r.name}")
        sys.exit(0)
    sys.exit(asyncio.run(main(options)) != 0)
