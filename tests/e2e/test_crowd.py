"""Many connections that do nothing, and many that read slowly: what they cost in memory, and what others notice of them."""
import http.client
import json
import resource
import select
import socket
import statistics
import threading
import time

import pytest

from conftest import SLOW, TINY, Cluster, running, wait_for

IDLE, READERS, ROUNDS, REQUESTS = 5000, 200, 5, 400


@pytest.fixture(scope="module")
def tiny():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    want = IDLE + READERS + 1000  # here, and in the router, which inherits it
    if hard != resource.RLIM_INFINITY and hard < want:
        pytest.skip(f"at most {hard} files may be open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, want), hard))
    yield from running(Cluster(model=TINY / "qwen3", sets=("idle_timeout_ms=1h", "write_timeout_ms=1h")))


def resident(pid):
    """Bytes."""
    return int(open(f"/proc/{pid}/statm").read().split()[1]) * resource.getpagesize()


def p99(cluster):
    """Seconds that the slowest of a hundred requests takes: one token, on one kept connection."""
    c = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=60)
    body = json.dumps({"prompt": [5, 6, 7], "max_tokens": 1, "temperature": 0})
    took = []
    for _ in range(REQUESTS):
        begin = time.perf_counter()
        c.request("POST", "/v1/completions", body)
        r = c.getresponse()
        assert r.read() and r.status == 200
        took.append(time.perf_counter() - begin)
    c.close()
    return sorted(took)[REQUESTS * 99 // 100]


class Crowd:
    """Connections that have had one answer and stay, and streams whose answer is complete but not read."""

    def __init__(self, cluster):
        self.cluster, self.idle, self.readers, self.stop = cluster, [], [], threading.Event()

    def connect(self, request):
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.connect(("127.0.0.1", self.cluster.port))
        s.sendall(request)
        return s

    def __enter__(self):
        for _ in range(IDLE // 100):
            some = [self.connect(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n") for _ in range(100)]
            for s in some:
                assert s.recv(4096).startswith(b"HTTP/1.1 200")
            self.idle += some
        self.memory = resident(self.cluster.pid("routerd"))
        body = json.dumps({"prompt": [5, 6, 7], "max_tokens": 300, "ignore_eos": True, "stream": True}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        self.readers = [self.connect(head + body) for _ in range(READERS)]
        wait_for(lambda: self.cluster.sum("baton_requests_waiting") == 0 == self.cluster.sum("baton_requests_running"), 120)
        self.thread = threading.Thread(target=self.read_slowly)
        self.thread.start()
        return self

    def read_slowly(self):
        """64 bytes a second each."""
        by_fd = {s.fileno(): s for s in self.readers}
        poll = select.poll()
        for fd in by_fd:
            poll.register(fd, select.POLLIN)
        while not self.stop.wait(1):
            for fd, _ in poll.poll(0):
                by_fd[fd].recv(64)

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()
        for s in self.idle + self.readers:
            s.close()


@pytest.mark.long
def test_a_crowd_disturbs_nobody(tiny):
    p99(tiny)
    before, ratios = resident(tiny.pid("routerd")), []
    for _ in range(ROUNDS):
        quiet = p99(tiny)
        with Crowd(tiny) as crowd:
            each = (crowd.memory - before) / IDLE
            assert each <= 64 * 1024 * SLOW, f"{each / 1024:.1f} KiB a connection"
            ratios.append(p99(tiny) / quiet)
            print(f"quiet {quiet * 1e3:.1f} ms, crowd {ratios[-1]:.2f} times that, {each / 1024:.1f} KiB a connection")
        wait_for(lambda: tiny.sum("baton_requests_running") == 0, 20)
    assert statistics.median(ratios) <= 1.2, ratios
    tiny.settle(10)
