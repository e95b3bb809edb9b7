#!/usr/bin/env python3
"""Networks that fail, with a network namespace for each worker: data links and control links that lose
packets, are slow, are cut in one direction or both, or whose other end is gone. Runs in namespaces of its
own, where it may do what it likes: unshare -n -m network.py ROUNDS SEED [NAME], with BATON_BIN set.
test_network.py starts it.

    router and clients ── bridge "ctl" 10.1.0.0/24 ── ctl0 of each worker   (control links)
                          bridge "dat"             ── dat0 of each worker   (KV between workers)

A classic BPF program on the bridge's side of a cable drops what it should; there is no netem here."""
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from client import ask
from load import Load

BIN = Path(os.environ["BATON_BIN"])
MODEL = Path(__file__).resolve().parent.parent / "data" / "tiny" / "llama"
WORKERS = ["prefilld-1", "prefilld-2", "decoded-1", "decoded-2"]
TIMEOUT = 60
DROP_ALL = "1,6 0 0 2"


def drop_some(share):
    """BPF: draws a number, drops the packet when it is among the lowest."""
    return f"4,32 0 0 4294963256,53 0 1 {int(share * 2**32)},6 0 0 4294967295,6 0 0 2"


def sh(*args, check=True):
    return subprocess.run(args, check=check, capture_output=not check, text=True)


class Cable:
    """The bridge's end of a worker's cable."""

    def __init__(self, name):
        self.name = name
        sh("tc", "qdisc", "add", "dev", name, "clsact")

    def drop(self, program, *directions):
        for d in directions or ("egress", "ingress"):
            sh("tc", "filter", "add", "dev", self.name, d, "bpf", "da", "bytecode", program)

    def slow(self, rate):
        sh("tc", "qdisc", "add", "dev", self.name, "root", "tbf", "rate", rate, "burst", "16k", "latency", "200ms")

    def down(self):
        sh("ip", "link", "set", self.name, "down")

    def heal(self):
        sh("ip", "link", "set", self.name, "up")
        for d in ("egress", "ingress"):
            sh("tc", "filter", "del", "dev", self.name, d, check=False)
        sh("tc", "qdisc", "del", "dev", self.name, "root", check=False)


class Net:
    def __init__(self, state):
        self.state = Path(state)
        self.processes = {}
        self.ctl, self.dat = {}, {}
        sh("mount", "-t", "tmpfs", "none", "/run")
        sh("ip", "link", "set", "lo", "up")
        for bridge in ("ctl", "dat"):
            sh("ip", "link", "add", bridge, "type", "bridge")
            sh("ip", "link", "set", bridge, "up")
        sh("ip", "addr", "add", "10.1.0.1/24", "dev", "ctl")
        for i, name in enumerate(WORKERS):
            ns = f"w{i}"
            sh("ip", "netns", "add", ns)
            sh("ip", "-n", ns, "link", "set", "lo", "up")
            for bridge, net in (("ctl", 1), ("dat", 2)):
                mine = f"{bridge[0]}{i}"
                sh("ip", "link", "add", mine, "type", "veth", "peer", "name", f"{bridge}0", "netns", ns)
                sh("ip", "link", "set", mine, "master", bridge, "up")
                sh("ip", "-n", ns, "addr", "add", f"10.{net}.0.{10 + i}/24", "dev", f"{bridge}0")
                sh("ip", "-n", ns, "link", "set", f"{bridge}0", "up")
            self.ctl[name], self.dat[name] = Cable(f"c{i}"), Cable(f"d{i}")

    def start(self):
        key = self.state / "key"
        key.write_text("0123456789abcdef0123456789abcdef")
        key.chmod(0o600)
        address = {n: f"10.1.0.{10 + i}" for i, n in enumerate(WORKERS)}
        common = f"cluster_key_file = {key}\nstall_ms = 1000\nheartbeat_ms = 100\nmodel = {MODEL}\n"
        for i, name in enumerate(WORKERS):
            conf = self.state / f"{name}.conf"
            conf.write_text(common + f"name = {name}\nlisten = {address[name]}:7000\nhttp = {address[name]}:7001\n"
                            "insecure = yes\ndata_devices = dat0\nlease_ms = 2000\nprefill_chunk = 64\nkv_blocks = 400\n")
            self.launch(name, "ip", "netns", "exec", f"w{i}", BIN / name[:-2], "-c", conf)
        conf = self.state / "routerd.conf"
        conf.write_text(common + "name = routerd\nlisten = 127.0.0.1:8000\nadmin_listen =\nworker_wait_ms = 20000\n"
                        f"request_timeout_ms = {TIMEOUT * 1000}\n"
                        f"prefill = {address['prefilld-1']}:7000,{address['prefilld-2']}:7000\n"
                        f"decode = {address['decoded-1']}:7000,{address['decoded-2']}:7000\n")
        self.launch("routerd", BIN / "routerd", "-c", conf)
        self.wait(lambda: len(self.blocks()) == 4, "four workers", 30)

    def launch(self, name, *command):
        with open(self.state / f"{name}.log", "a") as log:
            self.processes[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                # No shared memory, though they are on one machine; and slow enough to be hit at work.
                env=dict(os.environ, UCX_TLS="tcp,self",
                         BATON_FAULT="prefill.layer@1+1=delay:4,decode.token@1+1=delay:1"))

    def stop(self):
        for p in self.processes.values():
            p.terminate()
        for p in self.processes.values():
            try:
                p.wait(20)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()

    def blocks(self):
        """worker -> (free, all)"""
        try:
            with urllib.request.urlopen("http://127.0.0.1:8000/metrics", timeout=5) as page:
                lines = page.read().decode().splitlines()
        except OSError:
            return {}
        found = {}
        for kind in ("baton_kv_blocks_free{", "baton_kv_blocks{"):
            for line in lines:
                if line.startswith(kind):
                    name = line.split('worker="')[1].split('"')[0]
                    found.setdefault(name, []).append(float(line.split()[-1]))
        return {n: v for n, v in found.items() if len(v) == 2}

    def wait(self, what, why, seconds):
        end = time.monotonic() + seconds
        while not what():
            if time.monotonic() > end:
                raise AssertionError(f"{why}: not within {seconds} s: {self.blocks()}")
            time.sleep(0.05)

    def settle(self):
        self.wait(lambda: len(self.blocks()) == 4 and all(f == a for f, a in self.blocks().values()),
                  "blocks that come back", 15)

    def heal(self):
        for c in (*self.ctl.values(), *self.dat.values()):
            c.heal()


def faults(net, rng):
    """Name, and what to do; everything is healed afterwards."""
    p, d = rng.choice(WORKERS[:2]), rng.choice(WORKERS[2:])
    either = rng.choice([p, d])
    return [
        ("data link of a prefill worker cut", lambda: net.dat[p].drop(DROP_ALL)),
        ("data link of a decode worker cut", lambda: net.dat[d].drop(DROP_ALL)),
        ("data link one-way, to the worker", lambda: net.dat[either].drop(DROP_ALL, "egress")),
        ("data link one-way, from the worker", lambda: net.dat[either].drop(DROP_ALL, "ingress")),
        ("data link unplugged", lambda: net.dat[either].down()),
        ("data link loses 5 %", lambda: [c.drop(drop_some(0.05)) for c in net.dat.values()]),
        ("data link loses 30 %", lambda: net.dat[either].drop(drop_some(0.3))),
        ("data link of 8 Mbit/s", lambda: [c.slow("8mbit") for c in net.dat.values()]),
        ("data link of 1 Mbit/s", lambda: net.dat[either].slow("1mbit")),
        ("control link cut", lambda: net.ctl[either].drop(DROP_ALL)),
        ("control link one-way, to the worker", lambda: net.ctl[either].drop(DROP_ALL, "egress")),
        ("control link one-way, from the worker", lambda: net.ctl[either].drop(DROP_ALL, "ingress")),
        ("control link unplugged", lambda: net.ctl[either].down()),
        ("control link loses 5 %", lambda: [c.drop(drop_some(0.05)) for c in net.ctl.values()]),
        ("control link loses 30 %", lambda: net.ctl[either].drop(drop_some(0.3))),
        ("worker gone from both networks", lambda: (net.ctl[either].down(), net.dat[either].down())),
    ]


async def inject(net, load, rng, act):
    """A batch, the fault in the middle of it, healed after a while; what was wrong, and the longest wait."""
    indices = load.batch(rng, 10)
    tasks = [asyncio.create_task(ask(8000, load.body(i, rng.random() < 0.7), timeout=TIMEOUT + 5)) for i in indices]
    await asyncio.sleep(rng.uniform(0, 0.08))
    await asyncio.to_thread(act)
    done, _ = await asyncio.wait(tasks, timeout=rng.uniform(2, 6))
    late = [asyncio.create_task(ask(8000, load.body(i, True), timeout=TIMEOUT + 5)) for i in indices[:4]]
    await asyncio.wait(late, timeout=rng.uniform(0, 3))
    await asyncio.to_thread(net.heal)
    problems, slowest = [], 0
    for i, o in zip(indices + indices[:4], await asyncio.gather(*tasks, *late)):
        slowest = max(slowest, o.seconds)
        if not o.whole() or o.malformed():
            problems.append(f"request {i}: {o.malformed() or o.kind()}: {o.error or o.cut}")
        elif not load.same(i, o):
            problems.append(load.differs(i, o))
    return problems, slowest


def main(rounds, seed, only=""):
    failed = passed = 0
    rng = random.Random(seed)
    load = Load(seed)
    with tempfile.TemporaryDirectory(prefix="baton-net-") as state:
        net = Net(state)
        try:
            net.start()
            asyncio.run(load.learn(8000))
            net.settle()
            for _ in range(rounds):
                for name, act in faults(net, rng):
                    if only not in name:
                        continue
                    problems, slowest = asyncio.run(inject(net, load, rng, act))
                    try:
                        net.settle()
                    except AssertionError as e:
                        problems.append(str(e))
                    dead = [n for n, p in net.processes.items() if p.poll() is not None]
                    problems += [f"{n} died" for n in dead]
                    passed += not problems
                    failed += bool(problems)
                    print(f"{'FAIL' if problems else 'ok  '} {name}: slowest {slowest:.1f} s", flush=True)
                    for p in problems:
                        print(f"     {p}", flush=True)
                    if dead:
                        return 1
        finally:
            net.stop()
            if "KEEP" in os.environ:  # the logs
                sh("cp", "-r", state, os.environ["KEEP"])
    print(f"network faults, seed {seed}: {passed} passed, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))
