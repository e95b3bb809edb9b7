"""End-to-end tests: the three real daemons, started by deploy/local.sh on free ports.

Fixtures start a cluster once per module and stop it afterwards; no process is left behind, and every
test's own work is checked to have given its KV blocks back (see Cluster.settle)."""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCAL = ROOT / "deploy" / "local.sh"
BIN = Path(os.environ.get("BATON_BIN", ROOT / "build" / "bin"))
TINY = ROOT / "tests" / "data" / "tiny"
SLOW = 6 if os.environ.get("SANITIZE") == "1" else 1  # sanitizers stretch every time limit


def default_model():
    cache = os.environ.get("BATON_CACHE", os.path.expanduser("~/.cache/baton"))
    return os.path.join(cache, "SmolLM2-135M-Instruct.Q4_1.gguf")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Cluster:
    """One cluster under deploy/local.sh. faults: its programs have fault points (see arm)."""

    def __init__(self, *options, model=None, prefill=1, decode=1, sets=(), faults=False):
        self.port = free_port()
        self.state = tempfile.mkdtemp(prefix="baton-e2e-")
        self.fault_file = Path(self.state, "faults") if faults else None
        self.url = f"http://127.0.0.1:{self.port}"
        self.args = ["--model", str(model or default_model()), "--prefill", str(prefill), "--decode",
                     str(decode), *options]
        for s in (*sets, "helpers=0") if SLOW > 1 else sets:  # late helpers race on purpose
            self.args += ["--set", s]

    def local(self, *args, check=True, timeout=120):
        env = {**os.environ, "BATON_FAULT": f"@{self.fault_file}"} if self.fault_file else None
        p = subprocess.run([str(LOCAL), *args, "--dir", self.state, "--port", str(self.port)],
                           capture_output=True, text=True, timeout=timeout * SLOW, env=env)
        if check and p.returncode != 0:
            raise AssertionError(f"local.sh {' '.join(args)}: rc {p.returncode}\n{p.stdout}\n{p.stderr}")
        return p

    def start(self):
        self.local("start", *self.args)
        rows = [line.split() for line in Path(self.state, "cluster").read_text().splitlines()]
        self.http = {row[0]: row[2] for row in rows}  # where each process has its pages
        return self

    @property
    def admin(self):
        """Where the router listens for who runs it."""
        [row] = [r for line in Path(self.state, "cluster").read_text().splitlines() if (r := line.split())[0] == "routerd"]
        return f"http://{row[3]}"

    def stop(self):
        """Also looks for what sanitizers reported, up to the leaks that they find at the very end."""
        self.local("stop", check=False)
        reports = {log.name: text[at.start():at.start() + 4000] for log in Path(self.state).glob("*.log")
                   if (at := re.search(r"==\d+==ERROR|WARNING: ThreadSanitizer|: runtime error: ",
                                       text := log.read_text(errors="replace")))}
        shutil.rmtree(self.state, ignore_errors=True)
        assert not reports, "\n".join(f"{name}: {text}" for name, text in reports.items())

    def status(self):
        """name -> (pid, state, address)"""
        rows = {}
        for line in self.local("status", check=False).stdout.splitlines():
            name, pid, state, address = line.split()[:4]
            rows[name] = (int(pid) if pid.isdigit() else 0, state, address)
        return rows

    def pid(self, name):
        return self.status()[name][0]

    def log(self, name):
        return Path(self.state, f"{name}.log").read_text(errors="replace")

    def get(self, path, timeout=10, at=None):
        try:
            with urllib.request.urlopen((at or self.url) + path, timeout=timeout * SLOW) as r:
                return r.status, r.read().decode()
        except urllib.error.HTTPError as e:
            return e.code, e.read().decode()

    def post(self, path, body, timeout=600, at=None):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        req = urllib.request.Request((at or self.url) + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(req, timeout=timeout * SLOW) as r:
                return r.status, json.loads(r.read())
        except urllib.error.HTTPError as e:
            return e.code, json.loads(e.read())

    def stream(self, path, body, timeout=600):
        """All SSE events of a streamed answer; '[DONE]' as the string."""
        data = json.dumps({**body, "stream": True}).encode()
        req = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        events = []
        with urllib.request.urlopen(req, timeout=timeout * SLOW) as r:
            for raw in r:
                line = raw.decode().rstrip("\n")
                if line.startswith("data: "):
                    events.append("[DONE]" if line[6:] == "[DONE]" else json.loads(line[6:]))
        return events

    def metrics(self):
        """(name, labels) -> value; labels as a frozenset of key=value strings."""
        out = {}
        for line in self.get("/metrics")[1].splitlines():
            m = re.match(r"([a-zA-Z_:]+)(?:\{(.*)\})? (\S+)$", line)
            if m and not line.startswith("#"):
                labels = frozenset(re.findall(r'(\w+="(?:[^"\\]|\\.)*")', m.group(2) or ""))
                out[m.group(1), labels] = float(m.group(3))
        return out

    def sum(self, name, *labels):
        return sum(v for (n, l), v in self.metrics().items() if n == name and l.issuperset(labels))

    def arm(self, *entries):
        """Faults of docs/HACKING.md, for a cluster that has them. A delay makes a state last that a test looks for."""
        fresh = self.fault_file.with_suffix(".new")
        fresh.write_text("\n".join(entries) + "\n")
        fresh.rename(self.fault_file)

    def disarm(self):
        self.fault_file.unlink(missing_ok=True)

    def when_busy(self, *workers, seconds=60):
        """Waits until one of the workers decodes a sequence; its name."""
        def busy():
            return next((w for w in workers if "active" in self.tickets(w)), None)
        return wait_for(busy, seconds, every=0.01)

    def kill_busy(self, *workers):
        """The name of the worker that is dead now."""
        name = self.when_busy(*workers)
        os.kill(int(Path(self.state, f"{name}.pid").read_text().split()[0]), signal.SIGKILL)
        return name

    def page(self, name, path, timeout=10):
        """Of the process itself: the router hears of its workers' numbers a little later."""
        with urllib.request.urlopen(f"http://{self.http[name]}{path}", timeout=timeout * SLOW) as r:
            return r.read().decode()

    def own(self, name, metric):
        """The sum of a metric on the worker's own page."""
        return sum(map(float, re.findall(rf"(?m)^{metric}(?:{{.*}})? (\S+)$", self.page(name, "/metrics"))))

    def debug(self, name, key, timeout=10):
        return json.loads(self.page(name, "/debug/requests", timeout))[key]

    def tickets(self, worker):
        """States of the worker's sequences."""
        return [t["state"] for t in self.debug(worker, "tickets")]

    def reload(self, name="routerd", line="reload: ", pid=None):
        """SIGHUP; waits until the log has the line once more."""
        seen = self.log(name).count(line)
        os.kill(pid or self.pid(name), signal.SIGHUP)
        wait_for(lambda: self.log(name).count(line) > seen, 10, every=0.01)

    def free_blocks(self):
        return {l: v for (n, l), v in self.metrics().items() if n == "baton_kv_blocks_free"}

    def all_blocks(self):
        return {l: v for (n, l), v in self.metrics().items() if n == "baton_kv_blocks"}

    def settle(self, seconds=3.0):
        """Waits until nothing runs and every KV block is free again; says what is left otherwise."""
        end = time.monotonic() + seconds * SLOW
        while True:
            left = self.sum("baton_requests_running") + self.sum("baton_requests_waiting")
            blocks = self.all_blocks()
            if left == 0 and blocks and self.free_blocks() == blocks:
                return
            if time.monotonic() > end:
                raise AssertionError(f"{left} requests left; free {self.free_blocks()} of {blocks}")
            time.sleep(0.05)


def wait_for(what, seconds, every=0.05):
    """Polls until what() is true; returns its value."""
    end = time.monotonic() + seconds * SLOW
    while True:
        got = what()
        if got:
            return got
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds * SLOW} s")
        time.sleep(every)


def alive(pid):
    """Whether the process runs; one that its parent has not waited for does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] not in "ZX"


def pytest_terminal_summary(terminalreporter):
    """tests/check.sh lists these lines at its end."""
    for r in terminalreporter.stats.get("skipped", []):
        why = r.longrepr[2] if isinstance(r.longrepr, tuple) else str(r.longrepr)
        terminalreporter.write_line(f"SKIP {r.nodeid.split('::')[-1]}: {why.removeprefix('Skipped: ')}")


def running(cluster):
    try:
        yield cluster.start()
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def solo():
    """1 + 1 with the default model."""
    yield from running(Cluster())


@pytest.fixture(scope="module")
def duo():
    """2 + 2 with the default model."""
    yield from running(Cluster(prefill=2, decode=2))


def chat(client_or_cluster, content, **kw):
    body = {"messages": [{"role": "user", "content": content}], "temperature": 0, **kw}
    return client_or_cluster.post("/v1/chat/completions", body)
