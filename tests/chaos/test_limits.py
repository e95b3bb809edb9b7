"""Requests that kill, and surroundings that fail: disks, pipes, descriptors, clocks, system calls, slow
readers, a second router."""
import asyncio
import contextlib
import fcntl
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from client import ask
from load import Load
from notes import note
from rig import SLOW, Rig

from conftest import BIN, TINY, wait_for

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
/* The realtime clock is off by as many seconds as the file says. */
static volatile long *offset;
static long shift(void)
{
    if (!offset) {
        const char *path = getenv("CLOCK_OFFSET_FILE");
        int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        static long none;
        void *p = fd < 0 ? MAP_FAILED : mmap(0, sizeof(long), PROT_READ, MAP_SHARED, fd, 0);
        if (fd >= 0)
            close(fd);
        offset = p == MAP_FAILED ? &none : p;
    }
    return *offset;
}
int clock_gettime(clockid_t id, struct timespec *t)
{
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int rc = real(id, t);
    if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)
        t->tv_sec += shift();
    return rc;
}
int gettimeofday(struct timeval *t, void *zone)
{
    struct timespec s;
    clock_gettime(CLOCK_REALTIME, &s);
    t->tv_sec = s.tv_sec;
    t->tv_usec = s.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *out)
{
    struct timespec s;
    clock_gettime(CLOCK_REALTIME, &s);
    if (out)
        *out = s.tv_sec;
    return s.tv_sec;
}
"""


def rig(prefill=1, decode=1, sets=()):
    return Rig("--threads", "1", model=TINY / "llama", prefill=prefill, decode=decode, sets=sets)


def using(*args, **kw):
    r = rig(*args, **kw)
    try:
        yield r.start()
    finally:
        r.stop()


@pytest.fixture(scope="module")
def load():
    some = Load(9)
    for r in using():
        asyncio.run(some.learn(r.port))
    return some


def check(r, load, indices=range(16), port=None):
    """These requests, together: exact answers."""
    async def run():
        return await asyncio.gather(*[ask(port or r.port, load.body(i, k % 2 == 0), timeout=60 * SLOW)
                                      for k, i in enumerate(indices)])
    for i, o in zip(indices, asyncio.run(run())):
        assert o.whole() and load.same(i, o), load.differs(i, o) if o.whole() else o


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def relaunch(r, name, stderr, **kw):
    """The process again, with another standard error; local.sh knows it afterwards."""
    kind = name.split("-")[0]
    p = subprocess.Popen([BIN / kind, "-c", Path(r.state, f"{name}.conf")], stdin=subprocess.DEVNULL,
                         stdout=subprocess.DEVNULL, stderr=stderr, **kw)
    since = Path(f"/proc/{p.pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    Path(r.state, f"{name}.pid").write_text(f"{p.pid} {since}\n")
    return p


# ---- a request that kills every worker it touches ----

def test_poison_takes_two_workers_at_most(load):
    for r in using(2, 4, sets=["worker_wait_ms=4000"]):
        r.arm(*[f"decoded-{k}/decode.token=kill" for k in range(1, 5)])
        poison = dict(load.body(8, True), max_tokens=240, ignore_eos=True)
        o = asyncio.run(ask(r.port, poison, timeout=60 * SLOW))
        assert o.error and "two workers" in o.error["message"], o
        dead = [n for n in r.workers if not r.pid(n)]
        assert len(dead) == 2, dead
        assert not o.finish and not o.done and o.cut == ""
        r.disarm()
        check(r, load)  # the others serve
        r.heal()
        r.settle()


# ---- logs that cannot be written ----

@pytest.mark.parametrize("name", ["routerd", "prefilld-1", "decoded-1"])
def test_log_disk_full(load, name):
    """Every write to the log fails with ENOSPC; serving goes on."""
    for r in using(sets=["log_level=debug"]):
        r.local("stop", name)
        with open("/dev/full", "w") as full:
            p = relaunch(r, name, full)
        r.wait_linked()
        check(r, load)
        assert p.poll() is None
        r.settle()
        p.terminate()
        assert p.wait(20) == 0


@pytest.mark.parametrize("name", ["routerd", "prefilld-1", "decoded-1"])
def test_log_pipe_that_nobody_reads(load, name):
    """More lines than the pipe holds: they are dropped, nobody waits."""
    for r in using(sets=["log_level=trace"]):
        r.local("stop", name)
        reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 16384)
        p = relaunch(r, name, writer)
        os.close(writer)
        r.wait_linked()
        for _ in range(3):
            check(r, load, range(len(load.requests)))
        assert p.poll() is None
        os.set_blocking(reader, False)
        assert len(os.read(reader, 1 << 20)) > 8192, "the pipe was full"
        r.settle()
        p.terminate()
        p.wait(20)
        os.close(reader)


# ---- descriptors ----

def test_router_out_of_descriptors(load):
    """Accepting pauses without spinning, and resumes; requests that run are not harmed."""
    for r in using(sets=["decoded.kv_blocks=400"]):
        pid = r.pid("routerd")
        check(r, load, [8])
        used = len(os.listdir(f"/proc/{pid}/fd"))
        hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 6, hard))
        r.arm("decoded-1/engine.step@1+1=delay:4")
        got = []
        t = threading.Thread(target=lambda: got.append(asyncio.run(ask(r.port, load.body(8, True), timeout=60))))
        t.start()
        wait_for(lambda: r.sum("baton_requests_running"), 10)
        crowd = [socket.create_connection(("127.0.0.1", r.port)) for _ in range(40)]
        before = cpu_seconds(pid)
        t.join()
        time.sleep(1)
        assert cpu_seconds(pid) - before < 0.5, "it does not spin"
        assert got[0].whole() and load.same(8, got[0])
        r.disarm()
        for c in crowd:
            c.close()
        wait_for(lambda: asyncio.run(ask(r.port, load.body(0, False), timeout=5)).whole(), 10)
        check(r, load)
        r.settle()


# ---- clocks ----

@pytest.mark.skipif(os.environ.get("SANITIZE") == "1", reason="a preloaded library and a sanitizer")
@pytest.mark.parametrize("jump", [86400, -86400])
def test_clock_jumps_by_a_day(load, jump, tmp_path):
    """Time-outs and leases are monotonic: nothing expires, nobody is suspected."""
    if not shutil.which("cc"):
        pytest.skip("no C compiler for the shim")
    (tmp_path / "shim.c").write_text(SHIM)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", tmp_path / "shim.so", tmp_path / "shim.c", "-ldl"],
                   check=True)
    file = tmp_path / "offset"
    file.write_bytes((0).to_bytes(8, "little", signed=True))
    r = rig(2, 2)
    os.environ.update(LD_PRELOAD=str(tmp_path / "shim.so"), CLOCK_OFFSET_FILE=str(file))
    try:
        r.start()
    finally:
        del os.environ["LD_PRELOAD"], os.environ["CLOCK_OFFSET_FILE"]
    try:
        r.arm(*[f"decoded-{k}/engine.step@1+1=delay:3" for k in (1, 2)])
        t = threading.Thread(target=lambda: check(r, load))
        t.start()
        wait_for(lambda: r.sum("baton_requests_running"), 10)
        with open(file, "r+b") as f:
            f.write(jump.to_bytes(8, "little", signed=True))
        t.join()
        r.disarm()
        o = asyncio.run(ask(r.port, load.body(0, False)))
        assert o.whole()
        check(r, load)
        r.settle()
        assert r.sum("baton_retries_total") == 0
        assert not any(r.lines(n, "suspected|expired|lease|is gone") for n in r.names)
        assert not r.lines("routerd", "link lost")
        r.get("/v1/none")
        day = "|".join(time.strftime("%Y-%m-%d", time.gmtime(time.time() + jump + s)) for s in (0, 60))
        r.signal("decoded-2", signal.SIGTERM)  # a line is logged
        wait_for(lambda: r.lines("decoded-2", rf"(?:{day})T.*SIGTERM"), 5)
    finally:
        r.stop()


# ---- system calls that fail ----

@pytest.mark.skipif(os.environ.get("SANITIZE") == "1", reason="strace and a sanitizer")
@pytest.mark.parametrize("name, what", [
    ("routerd", "accept4:error=ECONNABORTED:when=2+3"),
    ("routerd", "write,writev,sendmsg,sendto:error=EINTR:when=3+5"),
    ("prefilld-1", "read,recvfrom,recvmsg,epoll_wait:error=EINTR:when=5+7"),
    ("decoded-1", "read,recvfrom,recvmsg,epoll_wait:error=EINTR:when=5+7"),
    ("decoded-1", "writev,sendto:error=EAGAIN:when=9+9")])
def test_system_calls_fail_now_and_then(load, name, what):
    if not shutil.which("strace"):
        pytest.skip("no strace")
    for r in using():
        calls = what.split(":")[0]
        p = subprocess.Popen(["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={calls}",
                              *[a for c in calls.split(",") for a in ("-e", f"inject={c}:" + what.split(":", 1)[1])],
                              "-p", str(r.pid(name))], stderr=subprocess.PIPE, text=True)
        try:
            wait_for(lambda: p.poll() is not None or "TracerPid:\t0" not in
                     Path(f"/proc/{r.pid(name)}/status").read_text(), 5)
            if p.poll() is not None:
                pytest.skip(f"strace: {p.stderr.read().strip()[:100]}")
            check(r, load, range(12))
            assert p.poll() is None
        finally:
            p.terminate()
            p.wait()
        check(r, load, range(8))
        r.settle()


# ---- clients ----

# 8 answers of 1,900 tokens are 19 MB: many times what two sockets and write_max hold.
LONG = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1900, "n": 8, "stream": True,
        "ignore_eos": True, "logprobs": True, "top_logprobs": 20, "temperature": 1, "seed": 3}


def test_slow_reader_is_cut_and_harms_nobody(load):
    """A client that takes a byte now and then: bounded buffer, cut off, KV free."""
    for r in using(sets=["write_max=128k", "write_timeout_ms=1000"]):
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        s.connect(("127.0.0.1", r.port))
        data = json.dumps(LONG).encode()
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                  b"Content-Length: %d\r\n\r\n%b" % (len(data), data))
        wait_for(lambda: s.recv(1), 10)
        before = rss(r.pid("routerd"))
        check(r, load)

        def cut():
            with contextlib.suppress(OSError):  # it may see the cut before the count is read
                s.recv(1, socket.MSG_DONTWAIT)
            return r.sum("baton_aborted_requests_total") == 1
        wait_for(cut, 60)
        assert rss(r.pid("routerd")) - before < 16 << 20
        s.close()
        r.settle(2)


def test_much_at_once_cuts_nobody(load):
    """A step's tokens are more than write_max, but the connection takes them at once."""
    for r in using(sets=["write_max=4k"]):
        o = asyncio.run(ask(r.port, dict(LONG, max_tokens=60), timeout=60 * SLOW))
        assert o.whole() and len(o.finish) == 8, o
        assert r.sum("baton_aborted_requests_total") == 0
        r.settle()


def rss(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def test_silent_stream_is_kept_alive(load):
    """While a worker is stopped, comments come, and then the rest."""
    for r in using(sets=["sse_keepalive_ms=100", "stall_ms=5000"]):
        r.arm("decoded-1/decode.token@20=stop")
        got = []
        t = threading.Thread(target=lambda: got.append(asyncio.run(ask(r.port, load.body(8, True)))))
        t.start()
        wait_for(lambda: r.state_letter("decoded-1") == "T", 10)
        time.sleep(1.0)
        r.signal("decoded-1", signal.SIGCONT)
        t.join()
        assert got[0].whole() and load.same(8, got[0]) and got[0].comments >= 5


# ---- two routers over the same workers ----

def test_two_routers_share_workers(load):
    """Both serve exactly; the death of one takes nothing from the other, and its KV is freed."""
    for r in using(2, 2, sets=["router_grace_ms=1000"]):
        conf = Path(r.state, "routerd.conf").read_text()
        second = Path(r.state, "second.conf")
        second.write_text(re.sub(r"(?m)^((admin_)?listen) = .*$", r"\1 = 127.0.0.1:0", conf))
        log = Path(r.state, "second.log")
        with open(log, "w") as f:
            p = subprocess.Popen([BIN / "routerd", "-c", second], stderr=f)
        try:
            port = int(wait_for(lambda: re.search(r"on http://127.0.0.1:(\d+)", log.read_text()), 10).group(1))
            wait_for(lambda: log.read_text().count("is up") == 4, 10)
            both = [threading.Thread(target=check, args=(r, load, range(20), q)) for q in (r.port, port)]
            for t in both:
                t.start()
            for t in both:
                t.join()
            r.arm(*[f"decoded-{k}/engine.step@1+1=delay:10" for k in (1, 2)])

            async def run():
                running = asyncio.Event()

                def event(out):
                    if out.events > 20:
                        running.set()

                mine = [asyncio.create_task(ask(r.port, load.body(8, True))) for _ in range(4)]
                theirs = [asyncio.create_task(ask(port, load.body(8, True), event)) for _ in range(4)]
                await asyncio.wait_for(running.wait(), 30 * SLOW)
                p.kill()
                return await asyncio.gather(*mine), await asyncio.gather(*theirs)

            mine, theirs = asyncio.run(run())
            assert all(o.whole() and load.same(8, o) for o in mine)
            cut = sum(bool(o.cut) for o in theirs)
            assert all(o.cut or (o.whole() and load.same(8, o)) for o in theirs) and cut > 0
            note(f"two routers: {cut} streams cut with the one that died, none of the other's")
            r.disarm()
            r.settle(1.0 + 1.0 + 2.0)
        finally:
            p.kill()
            p.wait()
