"""The installed units on a booted systemd: OPERATIONS' steps, an answer, a hung worker, reload, rolling
restart, stop. One container for all; the tests go in order."""
import json
import os
import re
import shutil
import signal
import threading
import time
import urllib.request

import pytest

from container import ROOT, Container, why_not

URL = "http://127.0.0.1:8080"
TINY = ROOT / "tests/data/tiny/llama-q8_0.gguf"
UNITS = ["routerd.service", "prefilld@0.service", "prefilld@1.service", "decoded@0.service", "decoded@1.service"]
pytestmark = [pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]

def operations():
    """The commands of docs/OPERATIONS.md's "Install on a machine", as they stand there."""
    text = (ROOT / "docs/OPERATIONS.md").read_text().split("## Install on a machine (systemd)")[1].split("\n### ")[0]
    blocks = re.findall(r"```sh\n(.*?)```", text, re.S)
    lines = [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]
    assert lines[0] == "make install" and any(line.startswith("curl ") for line in lines)
    return "\n".join(lines[1:]).replace("MODEL.gguf", "tiny.gguf")  # Container.install has done the first


# A second worker of each kind.
SECOND = """
sed -i 's|^prefill =.*|prefill = 127.0.0.1:7100, 127.0.0.1:7101|
        s|^decode =.*|decode = 127.0.0.1:7200, 127.0.0.1:7201|' /etc/baton/routerd.conf
systemctl enable prefilld@1 decoded@1
systemctl start prefilld@1 decoded@1
systemctl restart routerd
"""


@pytest.fixture(scope="module")
def box():
    c = Container()
    try:
        c.make_root()
        c.install()
        models = c.root / "var/lib/baton/models"
        models.mkdir(parents=True)
        shutil.copy(TINY, models / "tiny.gguf")
        drop = c.root / "etc/systemd/system/decoded@.service.d"  # a shorter leash than 30 s, to save time
        drop.mkdir(parents=True)
        (drop / "watchdog.conf").write_text("[Service]\nWatchdogSec=4\n")
        c.boot()
        c.enter_network()
        yield c
    finally:
        c.leave_network()
        c.close()


def post(body, timeout=60, **headers):
    req = urllib.request.Request(URL + "/v1/completions", json.dumps(body).encode(),
                                 {"Content-Type": "application/json", **headers})
    with urllib.request.urlopen(req, timeout=timeout) as r:
        return json.loads(r.read())


def stream(body, timeout=60):
    """The finish reason of a streamed answer; raises when it is not whole."""
    req = urllib.request.Request(URL + "/v1/completions", json.dumps({**body, "stream": True}).encode(),
                                 {"Content-Type": "application/json"})
    reason = done = None
    with urllib.request.urlopen(req, timeout=timeout) as r:
        for raw in r:
            line = raw.decode().strip()
            if line == "data: [DONE]":
                done = True
            elif line.startswith("data: "):
                reason = json.loads(line[6:])["choices"][0]["finish_reason"] or reason
    if not done or reason != "length":
        raise AssertionError(f"stream ended with {reason}, done {done}")


class Load:
    """Streams without a pause, each on a connection of its own, until it is stopped."""

    def __init__(self, threads=6, tokens=60):
        self.stop, self.ok, self.failed = threading.Event(), 0, []
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.work, args=(i, tokens)) for i in range(threads)]

    def work(self, i, tokens):
        n = 0
        while not self.stop.is_set():
            n += 1
            try:
                stream({"prompt": [3 + (i * 37 + n * 11 + k) % 250 for k in range(40)], "max_tokens": tokens,
                        "ignore_eos": True, "temperature": 0})
                with self.lock:
                    self.ok += 1
            except Exception as e:  # every kind is a failed request
                with self.lock:
                    self.failed.append(f"{time.monotonic():.2f} {type(e).__name__}: {e}")

    def __enter__(self):
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, *exc):
        self.stop.set()
        for t in self.threads:
            t.join(90)


def running():
    with urllib.request.urlopen(URL + "/debug/requests", timeout=20) as r:
        return len(json.loads(r.read())["requests"])


def wait_for(what, seconds):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.1)


def test_install_start_answer(box):
    """What OPERATIONS says, word by word, ends with an answer, since `systemctl start baton.target` returns when
    there is one; nothing listens beyond loopback."""
    t = time.monotonic()
    said = box.shell(operations()).stdout
    print(f"an answer {time.monotonic() - t:.1f} s after the installation")
    assert json.loads(said[said.index("{"):])["usage"]["completion_tokens"] > 0
    box.shell(SECOND)
    assert post({"prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": True})["usage"]["completion_tokens"] == 4
    for u in UNITS:
        assert box.show(u, "ActiveState") == "active", box.journal("-u", u)
        assert box.show(u, "User") == "baton"
    listeners = [line.split()[1] for table in ("tcp", "tcp6") for line in
                 box.run("cat", f"/proc/net/{table}").stdout.splitlines()[1:] if line.split()[3] == "0A"]
    assert listeners
    for a in listeners:
        assert a.startswith("0100007F:") or a.startswith("00000000000000000000000001000000:"), listeners
    # a line about a request is found by its id
    post({"prompt": [5, 6, 7], "max_tokens": 1, "no_such_field": 1}, **{"X-Request-Id": "boot-1"})
    box.run("journalctl", "--sync")
    [line] = box.run("journalctl", "REQUEST_ID=boot-1", "-o", "json", "--no-pager").stdout.splitlines()
    fields = json.loads(line)
    assert "no_such_field" in fields["MESSAGE"] and fields["_SYSTEMD_UNIT"] == "routerd.service"
    assert fields["SYSLOG_IDENTIFIER"] == "routerd" and fields["CODE_FILE"] == "call.c"
    # the journal has the level as its own field
    fields = box.run("journalctl", "-u", "decoded@0", "-o", "json", "-n", "5", "--no-pager").stdout.splitlines()
    assert any(json.loads(f).get("PRIORITY") == "6" and "decoded-0" in json.loads(f)["MESSAGE"] for f in fields)


def test_bad_config_refuses_reload(box):
    """`systemctl reload` of a bad file fails with its line, and the running process does not notice."""
    conf = "/etc/baton/routerd.conf"
    pid = box.show("routerd", "MainPID")
    box.shell(f"cp {conf} {conf}.good; sed -i 's|^queue_max =.*|queue_max = lots|' {conf}")
    assert box.run("systemctl", "reload", "routerd", check=False).returncode != 0
    assert "queue_max" in box.journal("-u", "routerd")
    box.shell(f"sed -i 's|^queue_max =.*|queue_max = 17|; s|^log_level =.*|log_level = debug|' {conf}")
    box.run("systemctl", "reload", "routerd")
    # systemctl has sent SIGHUP and does not wait for what comes of it
    wait_for(lambda: "reload: 2 settings changed" in box.journal("-u", "routerd"), 20)
    box.shell(f"mv {conf}.good {conf}")
    box.run("systemctl", "reload", "routerd")
    assert box.show("routerd", "MainPID") == pid
    post({"prompt": [5, 6, 7], "max_tokens": 2})


def test_watchdog_restarts_a_hung_worker(box):
    before = int(box.show("decoded@0", "NRestarts"))
    with Load(threads=2) as load:
        wait_for(lambda: load.ok >= 2, 60)
        os.kill(box.pid_outside("decoded@0"), signal.SIGSTOP)
        wait_for(lambda: int(box.show("decoded@0", "NRestarts")) == before + 1, 60)
        wait_for(lambda: box.show("decoded@0", "ActiveState") == "active", 60)
    assert "watchdog" in box.journal("-u", "decoded@0").lower()
    assert load.failed == []


def test_rolling_restart(box):
    """All five units one after another, three times, under load: no request fails."""
    with Load() as load:
        wait_for(lambda: load.ok >= 6, 60)
        for _ in range(3):
            for u in UNITS:
                box.run("systemctl", "restart", u)
        so_far = load.ok
        wait_for(lambda: load.ok >= so_far + 6, 60)
    print(f"rolling restart: {load.ok} requests answered, {len(load.failed)} failed")
    assert load.failed == []


def test_stop_drains(box):
    """Answers that run when the target is stopped come to their end."""
    results = []

    def one():
        try:
            stream({"prompt": [9] * 20, "max_tokens": 2000, "ignore_eos": True})
            results.append("ok")
        except Exception as e:
            results.append(repr(e))

    for _ in range(50):  # until the four are seen at work together: they may end between two looks
        results.clear()
        threads = [threading.Thread(target=one) for _ in range(4)]
        for t in threads:
            t.start()
        while (n := running()) < 4 and any(t.is_alive() for t in threads):
            pass
        if n == 4:
            break
        for t in threads:
            t.join(60)
    assert n == 4
    box.run("systemctl", "stop", "baton.target")
    for t in threads:
        t.join(60)
    assert results == ["ok"] * 4
    for u in UNITS:  # systemctl waits for the target alone
        wait_for(lambda u=u: box.show(u, "ActiveState") == "inactive", 60)
        assert box.show(u, "Result") == "success", box.journal("-u", u)
