"""routerd against clients that break the rules, leave at any byte, read nothing, or come in crowds, and
started as badly as can be. Tiny models: the point is what goes on around them."""
import concurrent.futures
import contextlib
import json
import os
import random
import re
import resource
import socket
import struct
import subprocess
import threading
import time

import pytest

from conftest import BIN, SLOW, TINY, Cluster, alive, running, wait_for
from test_http import completion, connect, read_answer


@pytest.fixture(scope="module")
def tiny():
    yield from running(Cluster(model=TINY / "llama", sets=["routerd.worker_wait_ms=200", "kv_blocks=600",
                                                           f"routerd.header_timeout_ms={3000 * SLOW}"]))


def rss_mb(pid):
    with open(f"/proc/{pid}/status") as f:
        return int(re.search(r"VmRSS:\s+(\d+)", f.read())[1]) / 1024


def serves(c):
    assert c.post("/v1/completions", {"prompt": "hi", "max_tokens": 2})[0] == 200
    c.settle()


def reset(s):
    """Closes so that the other side sees an error."""
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()


def everything(s):
    data = b""
    try:
        while chunk := s.recv(65536):
            data += chunk
    except ConnectionResetError:
        pass
    return data


def test_503_leaves_no_body_behind(tiny):
    """No decode worker: the answer comes after the wait; nothing in the body is ever a request."""
    inner = b"\r\n\r\nGET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 20
    body = json.dumps({"prompt": inner.decode(), "max_tokens": 1}).encode().ljust(20480)
    tiny.local("stop", "decoded-1")
    try:
        wait_for(lambda: tiny.get("/ready")[0] == 503, 10)
        s = connect(tiny)
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 20480\r\n\r\n" + body +
                  b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(inner) + inner +
                  b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        f = s.makefile("rb")
        first, second, third = (read_answer(f) for _ in range(3))
        assert first[0] == 503 and first[1]["retry-after"] and json.loads(first[2])["error"]["message"]
        assert second[0] == 400 and third[0] == 200 and json.loads(third[2])["data"]
        assert f.read() == b""
    finally:
        tiny.local("start", "decoded-1")
    wait_for(lambda: tiny.get("/ready")[0] == 200, 10)
    serves(tiny)


def test_mutated_requests(tiny):
    """Valid requests with some bytes changed, sent in pieces: an HTTP answer or the end, never silence."""
    rnd = random.Random(7)
    seeds = [completion(stream=True), completion(),
             b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nf\r\n"
             b'{"prompt":"hi",\r\nf;a=b\r\n"max_tokens":1}\r\n0\r\nX: y\r\n\r\nGET /health HTTP/1.1\r\nHost: x\r\n\r\n',
             b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\nHEAD /metrics HTTP/1.0\r\n\r\n"]
    extra = [b"\r\n", b"\0", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n",
             b"Upgrade: h2c\r\n", b"Expect: 100-continue\r\n", b"ffffffffffffffff\r\n", b" "]

    def one(seed):
        r = random.Random(seed)
        b = bytearray(r.choice(seeds))
        for _ in range(r.randint(1, 4)):
            i = r.randrange(len(b))
            match r.randrange(4):
                case 0: b[i] = r.randrange(256)
                case 1: del b[i:i + r.randint(1, 8)]
                case 2: b[i:i] = r.choice(extra)
                case 3: b[i:i] = b[r.randrange(len(b)):][:r.randint(1, 30)]
        s = connect(tiny)
        try:
            at = 0
            for cut in sorted(r.sample(range(len(b)), min(4, len(b)))):
                s.sendall(b[at:cut])
                at = cut
            s.sendall(b[at:])
            s.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        data = everything(s)
        s.close()
        assert data == b"" or data.startswith(b"HTTP/1.1 "), (bytes(b), data[:80])
        return data[9:12]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(one, [rnd.random() for _ in range(600)]))
    assert codes.count(b"200") > 20 and codes.count(b"400") > 100
    serves(tiny)


def test_leaving_at_every_byte(tiny):
    """Of the request; and after any number of bytes of the answer, politely or by a reset."""
    whole = completion(max_tokens=400, ignore_eos=True, stream=True)
    for n in range(0, len(whole) + 1, 3):
        s = connect(tiny)
        s.sendall(whole[:n])
        (reset if n % 2 else socket.socket.close)(s)
    for n in range(1, 900, 23):
        s = connect(tiny)
        s.sendall(whole)
        while n > 0:
            n -= len(s.recv(n))
        (reset if n % 2 else socket.socket.close)(s)
    serves(tiny)
    assert json.loads(tiny.get("/debug/requests")[1])["requests"] == []


def test_reader_that_reads_nothing_is_cut_off(tiny):
    """Its work stops, its blocks come back, and the memory for it is bounded."""
    pid, before = tiny.pid("routerd"), tiny.sum("baton_aborted_requests_total")
    start = rss_mb(pid)
    socks = []
    for _ in range(4):
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect(("127.0.0.1", tiny.port))
        s.sendall(completion(prompt=["a"] * 64, max_tokens=1500, ignore_eos=True, stream=True, logprobs=5))
        socks.append(s)
    wait_for(lambda: tiny.sum("baton_aborted_requests_total") == before + 4, 60)
    assert rss_mb(pid) - start < 40 * SLOW
    serves(tiny)
    for s in socks:
        s.close()


def test_unread_answers_stop_pipelining(tiny):
    """A client that asks and asks and takes no answer fills its own buffers, not ours."""
    pid = tiny.pid("routerd")
    s = connect(tiny)
    s.setblocking(False)
    start, sent, quiet = rss_mb(pid), 0, 0
    ask = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 500
    while quiet < 20 and sent < 64 << 20:
        try:
            sent += s.send(ask)
            quiet = 0
        except BlockingIOError:  # ask the server for something, which takes it a turn
            assert tiny.get("/health")[0] == 200
            quiet += 1
    assert quiet == 20 and rss_mb(pid) - start < 20 * SLOW
    s.close()
    serves(tiny)


def test_crowd(tiny):
    """200 at once, streams and not: each gets its whole answer."""
    def one(i):
        body = {"prompt": f"number {i}", "max_tokens": 20, "ignore_eos": True}
        if i % 2:
            return len(tiny.stream("/v1/completions", body)) == 22
        s, r = tiny.post("/v1/completions", body)
        return s == 200 and r["usage"]["completion_tokens"] == 20

    with concurrent.futures.ThreadPoolExecutor(200) as pool:
        assert all(pool.map(one, range(200)))
    tiny.settle()


def test_slow_heads_and_idle_connections(tiny):
    """500 idle connections and 100 that dribble a head: others are served; the dribblers get 408."""
    idle = [connect(tiny) for _ in range(500)]
    slow = [connect(tiny) for _ in range(100)]
    for s in slow:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nX")
    for k in range(20):
        for s in slow:
            with contextlib.suppress(OSError):  # its time is over: it has got its 408
                s.sendall(b"x")
        assert tiny.post("/v1/completions", {"prompt": "hi", "max_tokens": 1})[0] == 200
    for s in slow:
        assert s.recv(12) in (b"HTTP/1.1 408", b"")
        s.close()
    for s in idle[::50]:
        s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert s.recv(12) == b"HTTP/1.1 200"
    for s in idle:
        s.close()
    serves(tiny)


def test_long_bodies_hold_up_nobody(tiny):
    """Text that takes seconds to tokenise is worked on elsewhere; clients may leave meanwhile."""
    body = json.dumps({"prompt": "ab " * 4_000_000, "max_tokens": 1}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    worst, stop = [0], threading.Event()

    def others():
        while not stop.is_set():
            t = time.monotonic()
            assert tiny.get("/health")[0] == 200
            worst[0] = max(worst[0], time.monotonic() - t)

    t = threading.Thread(target=others)
    t.start()
    try:
        leaving, staying = connect(tiny), connect(tiny)
        leaving.sendall(head + body)
        leaving.close()
        staying.sendall(head + body)
        status, _, answer = read_answer(staying.makefile("rb"))
    finally:
        stop.set()
        t.join()
    assert status == 400 and json.loads(answer)["error"]["code"] == "context_length_exceeded"
    assert 0 < worst[0] < 1.0 * SLOW, worst
    serves(tiny)


class Routerd:
    """One more routerd for the workers of a cluster, started by hand."""

    def __init__(self, cluster, prepare=None, **kw):
        self.log = os.path.join(cluster.state, "extra.log")
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [BIN / "routerd", "-c", os.path.join(cluster.state, "routerd.conf"), "--listen", "127.0.0.1:0",
                 "--admin-listen", "127.0.0.1:0"],
                stderr=log, preexec_fn=prepare, **kw)

    def __enter__(self):
        try:
            self.port = wait_for(self.find_port, 20)
            self.url = f"http://127.0.0.1:{self.port}"
            wait_for(lambda: self.get("/ready")[0] == 200, 20)
        except BaseException:
            self.process.kill()
            raise
        return self

    def __exit__(self, failed, *_):
        self.process.terminate()
        try:
            rc = self.process.wait(30 * SLOW)
        finally:
            self.process.kill()
        assert failed or rc == 0, rc

    def find_port(self):
        """From the table of listening sockets: its log may be lost."""
        inodes = set()
        for fd in os.listdir(f"/proc/{self.process.pid}/fd"):
            try:
                inodes.add(os.readlink(f"/proc/{self.process.pid}/fd/{fd}").strip("socket:[]"))
            except OSError:
                pass
        for line in open("/proc/net/tcp").read().splitlines()[1:]:
            w = line.split()
            if w[3] == "0A" and w[9] in inodes:
                return int(w[1].split(":")[1], 16)

    get, post, stream = Cluster.get, Cluster.post, Cluster.stream


def full_disk():
    os.dup2(os.open("/dev/full", os.O_WRONLY), 2)


def no_stdio():
    for fd in (0, 1, 2):
        os.close(fd)


@pytest.mark.parametrize("prepare", [full_disk, no_stdio])
def test_log_that_cannot_be_written(tiny, prepare):
    with Routerd(tiny, prepare) as r:
        if prepare is no_stdio:  # nothing of its own got the number of a standard descriptor
            links = {os.readlink(f"/proc/{r.process.pid}/fd/{fd}") for fd in (0, 1, 2)}
            assert links == {"/dev/null"}
        assert r.post("/v1/completions", b"{")[0] == 400
        assert r.post("/v1/completions", {"prompt": "hi", "max_tokens": 2})[0] == 200


def test_few_descriptors(tiny):
    """64 descriptors and 200 connections: no spinning, the stream goes on, later clients are served."""
    with Routerd(tiny, lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))) as r:
        events = []

        def stream():
            events.extend(r.stream("/v1/completions", {"prompt": ["a"] * 16, "max_tokens": 1500, "ignore_eos": True}))

        def cpu():
            w = open(f"/proc/{r.process.pid}/stat").read().rsplit(")", 1)[1].split()
            return (int(w[11]) + int(w[12])) / os.sysconf("SC_CLK_TCK")

        t = threading.Thread(target=stream)
        t.start()
        wait_for(lambda: json.loads(r.get("/debug/requests")[1])["requests"], 20)  # it has its descriptor
        crowd = [socket.create_connection(("127.0.0.1", r.port)) for _ in range(200)]
        t.join()
        assert events[-1] == "[DONE]" and len(events) >= 16 * 1500
        used, since = cpu(), time.monotonic()
        wait_for(lambda: time.monotonic() - since > 1.5, 10)
        assert cpu() - used < 0.3 * 1.5 * SLOW, "it spins"
        for s in crowd:
            s.close()
        since = time.monotonic()
        assert r.get("/health")[0] == 200 and time.monotonic() - since < 2 * SLOW
        assert "connections are open" in open(r.log).read()


def test_nothing_died(tiny):
    """The processes that began are those that are left, whatever came before."""
    assert all(alive(p) for p, _, _ in tiny.status().values())
    for name in ("routerd", "prefilld-1", "decoded-1"):
        for word in ("Sanitizer", "runtime error", "assert"):
            assert word not in tiny.log(name), name
    assert tiny.sum("baton_requests_total", 'code="500"') == 0
