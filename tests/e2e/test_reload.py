"""Reload on SIGHUP, --check-config, listeners beyond loopback, the service manager's side of start and
drain. The units themselves are tested on a booted systemd (tests/deploy)."""
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from conftest import BIN, SLOW, TINY, Cluster, running, wait_for

MODEL = TINY / "llama-q8_0.gguf"
PROMPT = {"prompt": [5, 6, 7, 8], "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def tiny():
    yield from running(Cluster("--threads", "1", model=MODEL))


def change(cluster, name, old, new):
    """Replaces in the configuration file; returns what it was."""
    path = Path(cluster.state, f"{name}.conf")
    text = path.read_text()
    path.write_text(re.sub(old, new, text, flags=re.M) if old else text + new)
    return path, text


def test_a_hundred_reloads_drop_nothing(tiny):
    """100 SIGHUPs, half of them with a file that is refused, while streams run: all come whole."""
    stop, ok, bad = threading.Event(), [], []

    def work():
        while not stop.is_set():
            try:
                events = tiny.stream("/v1/completions", {**PROMPT, "max_tokens": 40})
                (ok if events[-1] == "[DONE]" and len(events) >= 41 else bad).append(events[-1])
            except Exception as e:
                bad.append(repr(e))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    path = Path(tiny.state, "routerd.conf")
    text, pid = path.read_text(), tiny.pid("routerd")
    try:
        for i in range(100):
            path.write_text(text + (f"queue_max = {100 + i}\n" if i % 2 else f"\nqueue_max = x{i}\n"))
            tiny.reload("routerd", "reload: " if i % 2 else "reload refused, nothing is changed", pid)
    finally:
        path.write_text(text)
        stop.set()
        for t in threads:
            t.join()
    assert bad == [] and len(ok) >= 3
    assert tiny.sum("baton_reloads_total", 'result="applied"') == 50
    assert tiny.sum("baton_reloads_total", 'result="refused"') == 50
    tiny.reload("routerd", "reload: ")


def test_reload_changes_what_it_says(tiny):
    path, text = change(tiny, "routerd", "", "queue_max = 1\nrequest_timeout_ms = 50ms\nlog_level = debug\n")
    try:
        tiny.reload("routerd", "reload: 3 settings changed")
        status, answer = tiny.post("/v1/completions", {**PROMPT, "max_tokens": 1900})
        assert status == 504, answer
    finally:
        path.write_text(text)
    tiny.reload("routerd", "reload: 3 settings changed")
    assert tiny.post("/v1/completions", {**PROMPT, "max_tokens": 4})[0] == 200


def test_reload_changes_the_keys(tmp_path):
    """Keys are changed by a reload; a broken key file is refused and the old keys stay."""
    def line(key):
        return f"k:{hashlib.sha256(key.encode()).hexdigest()}\n"

    def status(key):
        req = urllib.request.Request(f"{cluster.url}/v1/models", headers={"Authorization": f"Bearer {key}"})
        try:
            return urllib.request.urlopen(req, timeout=10 * SLOW).status
        except urllib.error.HTTPError as e:
            return e.code

    def page(url, key):
        req = urllib.request.Request(f"{url}/metrics", headers={"Authorization": f"Bearer {key}"})
        try:
            return urllib.request.urlopen(req, timeout=10 * SLOW).status
        except urllib.error.HTTPError as e:
            return e.code

    keys = tmp_path / "keys"
    keys.write_text(line("old"))
    cluster = Cluster("--threads", "1", model=MODEL)
    try:
        cluster.start()
        assert status("nobody") == 200
        for name in ("prefilld-1", "decoded-1"):
            assert cluster.post(f"/admin/workers/{name}/drain", {}, at=cluster.admin)[0] == 200
        change(cluster, "routerd", "", f"api_key_file = {keys}\n")
        cluster.reload("routerd", "reload: 1 settings changed")
        assert [status(k) for k in ("old", "new", "nobody")] == [200, 401, 401]
        keys.write_text("k:short\n")
        cluster.reload("routerd", "reload refused, nothing is changed")
        assert status("old") == 200
        keys.write_text(line("new"))
        cluster.reload("routerd", "reload: 0 settings changed")
        assert [status(k) for k in ("old", "new")] == [401, 200]
        for name in ("prefilld-1", "decoded-1"):  # workers too, also while an operator drains them
            url = f"http://{cluster.status()[name][2]}"
            assert page(url, "nobody") == 200
            change(cluster, name, "", f"api_key_file = {keys}\n")
            cluster.reload(name, "reload: 1 settings changed")
            assert [page(url, k) for k in ("new", "nobody")] == [200, 401]
            keys.write_text("k:short\n")
            cluster.reload(name, "reload refused, nothing is changed")
            assert page(url, "new") == 200
            keys.write_text(line("new"))
    finally:
        cluster.stop()


@pytest.mark.parametrize("name", ["routerd", "prefilld-1", "decoded-1"])
def test_reload_refuses_what_needs_a_restart(tiny, name):
    """The whole file is refused, with the line of the key that cannot change."""
    path, text = change(tiny, name, "^model = .*", "model = /nowhere")
    path.write_text("log_level = trace\n" + path.read_text())
    line = path.read_text().splitlines().index("model = /nowhere") + 1
    pid = tiny.pid(name)
    try:
        tiny.reload(name, f"{path} line {line}: model cannot change while the program runs")
    finally:
        path.write_text(text)
    assert "TRACE" not in tiny.log(name)
    path.write_text("log_level = debug\n" + text)
    try:
        tiny.reload(name, "reload: 1 settings changed")
    finally:
        path.write_text(text)
    tiny.reload(name, "reload: 1 settings changed")
    assert tiny.pid(name) == pid


def check_config(program, *args):
    p = subprocess.run([BIN / program, *args, "--check-config"], capture_output=True, text=True, timeout=30 * SLOW)
    return p.returncode, p.stdout + p.stderr


def test_check_config(tmp_path):
    """What only the daemon can judge is judged as well, and nothing is started."""
    key = tmp_path / "key"
    key.write_text("short")
    for program in ("routerd", "prefilld", "decoded"):
        assert check_config(program, "--model", str(MODEL))[0] == 0
        rc, said = check_config(program, "--model", "/nowhere/x.gguf")
        assert rc == 1 and "/nowhere/x.gguf: No such file" in said
        rc, said = check_config(program, "--model", str(MODEL), "--cluster-key-file", str(key))
        assert rc == 1 and "at least 16 bytes" in said
        rc, said = check_config(program, "--model", str(MODEL), "--listen", "0.0.0.0:1")
        assert rc == 1 and "other machines" in said
    assert check_config("routerd", "--model", str(MODEL), "--listen", "0.0.0.0:1", "--insecure", "yes")[0] == 0
    rc, said = check_config("decoded", "--model", str(MODEL), "--prefill-chunk", "24")
    assert rc == 1 and "multiple of kv_block_size" in said


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0"])
def test_listener_beyond_loopback_is_refused(address):
    for program, flags, why in (("routerd", ["--listen"], "api_key_file"), ("prefilld", ["--listen"], "cluster_key_file"),
                                ("decoded", ["--http"], "api_key_file"),
                                ("routerd", ["--insecure", "yes", "--listen", "127.0.0.1:0", "--admin-listen"],
                                 "admin_key_file")):
        p = subprocess.run([BIN / program, "--model", MODEL, *flags, address], capture_output=True, text=True,
                           timeout=30 * SLOW)
        assert p.returncode != 0 and why in p.stderr, p.stderr


def test_key_from_a_credential(tmp_path):
    """A systemd credential stands in for cluster_key_file."""
    (tmp_path / "baton.cluster_key").write_text("0123456789abcdef\n")
    env = {**os.environ, "CREDENTIALS_DIRECTORY": str(tmp_path)}
    args = [BIN / "prefilld", "--model", MODEL, "--listen", "0.0.0.0:1", "--check-config"]
    assert subprocess.run(args, env=env, capture_output=True, timeout=30 * SLOW).returncode == 0
    (tmp_path / "baton.cluster_key").unlink()
    assert subprocess.run(args, env=env, capture_output=True, timeout=30 * SLOW).returncode != 0


def test_notify_and_inherited_socket(tmp_path):
    """A router with a manager's socket: it is ready only when a request would be answered, and after
    SIGTERM a connection that comes too late waits in the socket instead of being refused."""
    cluster = Cluster("--threads", "1", model=MODEL)
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.bind(str(tmp_path / "notify"))
    notify.settimeout(30 * SLOW)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    conf = f"{cluster.state}/routerd.conf"
    try:
        cluster.start()
        cluster.local("stop", "decoded-1")
        # the shell sets LISTEN_PID to what routerd's pid will be
        os.set_inheritable(listener.fileno(), True)
        p = subprocess.Popen(["bash", "-c", f"exec env LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=api "
                              f"NOTIFY_SOCKET={tmp_path}/notify WATCHDOG_USEC=2000000 {BIN}/routerd -c {conf} "
                              f"--admin-listen 127.0.0.1:0 "
                              f"3<&{listener.fileno()}"],
                             pass_fds=[listener.fileno()], stderr=subprocess.PIPE, text=True)
        try:
            said = ""
            while "STATUS=waiting for workers" not in said:
                said = notify.recv(4096).decode()
                assert "READY=1" not in said
            cluster.local("start", "decoded-1")
            seen = set()
            while not {"READY", "WATCHDOG"} <= seen:
                seen |= {part.split("=")[0] for part in notify.recv(4096).decode().split("\n")}
            p.send_signal(signal.SIGTERM)
            _, log = p.communicate(timeout=30 * SLOW)
            assert p.returncode == 0, log
            assert f"on http://127.0.0.1:{port}" in log
            late = socket.create_connection(("127.0.0.1", port), timeout=5)  # the kernel still takes it
            late.close()
        finally:
            p.kill()
    finally:
        listener.close()
        notify.close()
        cluster.stop()


def lists(cluster, **addresses):
    """The router's file gets these lists of workers; returns what it was."""
    path = Path(cluster.state, "routerd.conf")
    text = path.read_text()
    new = text
    for kind, names in addresses.items():
        rows = {r[0]: r[1] for line in Path(cluster.state, "cluster").read_text().splitlines() if (r := line.split())}
        new, n = re.subn(rf"(?m)^{kind} = .*$", f"{kind} = {', '.join(rows.get(x, x) for x in names)}", new)
        assert n == 1
    path.write_text(new)
    return text


def listed(cluster):
    """name -> state"""
    return {w["name"]: w["state"] for w in json.loads(cluster.get("/admin/workers", at=cluster.admin)[1])["workers"]}


@pytest.fixture(scope="module")
def six():
    yield from running(Cluster("--threads", "1", model=TINY / "llama", prefill=2, decode=2,
                               sets=["prefix_cache=off"], faults=True))


def test_reload_changes_the_workers(six):
    """Under load workers are listed no more and again: none of the requests fails, and none is cut."""
    stop, ok, bad = threading.Event(), [], []

    def work(i):
        n = 0
        while not stop.is_set():
            n += 1
            try:
                events = six.stream("/v1/completions", {**PROMPT, "prompt": [5 + i + n % 50] * 30, "max_tokens": 300})
                (ok if events[-1] == "[DONE]" and len(events) == 302 else bad).append((len(events), events[-1]))
            except Exception as e:
                bad.append(repr(e))

    text = Path(six.state, "routerd.conf").read_text()
    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    try:
        wait_for(lambda: len(ok) >= 3, 60)
        for prefill, decode in ((1, 1), (2, 2), (1, 2), (2, 1)):
            lists(six, prefill=[f"prefilld-{prefill}"], decode=[f"decoded-{decode}"])
            six.reload("routerd", "reload: ")
            want = {f"prefilld-{prefill}": "up", f"decoded-{decode}": "up"}
            wait_for(lambda: listed(six) == want, 60)  # the others are let go
            here = len(ok)
            wait_for(lambda: len(ok) >= here + 3, 60)
            assert {l for n, l in six.metrics() if n == "baton_worker_up"} and six.sum("baton_worker_up") == 2
            Path(six.state, "routerd.conf").write_text(text)
            six.reload("routerd", "reload: ")
            wait_for(lambda: set(listed(six).values()) == {"up"} and len(listed(six)) == 4, 60)
    finally:
        Path(six.state, "routerd.conf").write_text(text)
        stop.set()
        for t in threads:
            t.join()
    assert bad == [] and len(ok) >= 15, (bad, len(ok))
    assert six.sum("baton_retries_total") == 0
    six.settle()


def test_a_worker_that_is_listed_no_more_finishes(six):
    """With nobody to move to, what runs there is finished, and only then is the worker let go."""
    text = lists(six, decode=["decoded-1"])
    answers = []
    try:
        six.reload("routerd", "reload: ")
        wait_for(lambda: len(listed(six)) == 3, 20)
        six.arm("decoded-1/engine.step@1+1=delay:10")  # it is busy until this is over
        body = {**PROMPT, "n": 24, "max_tokens": 1900}
        t = threading.Thread(target=lambda: answers.append(six.post("/v1/completions", body)))
        t.start()
        six.when_busy("decoded-1")
        lists(six, decode=[])
        six.reload("routerd", "reload: ")
        assert listed(six)["decoded-1"] == "leaving"
        assert six.get("/ready")[0] == 503
        six.disarm()
        t.join()
        [(status, answer)] = answers
        assert status == 200 and answer["usage"]["completion_tokens"] == 24 * 1900
        wait_for(lambda: set(listed(six)) == {"prefilld-1", "prefilld-2"}, 10)
    finally:
        six.disarm()
        Path(six.state, "routerd.conf").write_text(text)
        six.reload("routerd", "reload: ")
    wait_for(lambda: len(listed(six)) == 4 and six.get("/ready")[0] == 200, 20)


@pytest.mark.parametrize("decode,why", [
    (["decoded-1", "decoded-1"], "is there twice"), (["decoded-1", "nowhere"], "nowhere"),
    (["decoded-1", "127.0.0.1:99999"], "99999"), ([f"127.0.0.1:{p}" for p in range(20000, 21100)], "more than 1024 workers")])
def test_a_bad_list_of_workers_is_refused(six, decode, why):
    """As a whole: also what else was changed, and the list of the other kind."""
    text = lists(six, prefill=["prefilld-1"], decode=decode)
    path = Path(six.state, "routerd.conf")
    path.write_text(path.read_text() + "log_level = debug\n")
    try:
        six.reload("routerd", "reload refused, nothing is changed: ")
        line = [l for l in six.log("routerd").splitlines() if "reload refused" in l][-1]
        assert why in line, line
        assert listed(six) == {n: "up" for n in ("prefilld-1", "prefilld-2", "decoded-1", "decoded-2")}
        assert "DEBUG" not in six.log("routerd")
    finally:
        path.write_text(text)
